/* Events carry the node and its incarnation, so that what a dead process had scheduled is dropped;
 * what a stopped one had is kept in order. */
#include "tests/raft/replica_world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fsm/base/check.h"
#include "fsm/base/units.h"
#include "fsm/command_codec.h"

#define LATENCY_NS_MIN 100000u
#define LATENCY_NS_SPREAD 400000u
#define LINK_NS 1000000u

enum event_kind {
    EVENT_DISK,
    EVENT_FRAME,
    EVENT_TURN,
    EVENT_TIMER,
    EVENT_LINK_UP,
    EVENT_LINK_DOWN,
};

struct event {
    struct list link;
    struct world_node *node;
    unsigned incarnation;
    enum event_kind kind;
    unsigned peer; /* frames and links: the other end */
    unsigned peer_incarnation;
    void (*run)(void *arg);
    void *arg;
    uint8_t *bytes;
    size_t len;
    uint64_t at_ns;
};

static void on_event(void *arg);
static void event_handle(struct event *event);
static void turn(struct world_node *node);

static struct event *event_new(struct world_node *node, enum event_kind kind)
{
    struct event *event = calloc(1, sizeof *event);
    CHECK(event != NULL);
    list_init(&event->link);
    event->node = node;
    event->incarnation = node->incarnation;
    event->kind = kind;
    return event;
}

static void event_free(struct event *event)
{
    free(event->bytes);
    free(event);
}

static void event_schedule(struct event *event, uint64_t at_ns)
{
    event->at_ns = at_ns;
    fake_clock_schedule(&event->node->world->clock, at_ns, on_event, event);
}

static void schedule_turn(struct world_node *node)
{
    if (!node->turn_scheduled && node->replica != NULL) {
        node->turn_scheduled = true;
        event_schedule(event_new(node, EVENT_TURN), node->world->clock.now_ns);
    }
}

/* --- environment of the disk */

static uint64_t disk_now(void *ctx)
{
    struct world_node *node = ctx;
    return node->world->clock.now_ns;
}

static void disk_schedule(void *ctx, uint64_t at_ns, void (*run)(void *arg), void *arg)
{
    struct event *event = event_new(ctx, EVENT_DISK);
    event->run = run;
    event->arg = arg;
    event_schedule(event, at_ns);
}

static uint64_t disk_random(void *ctx)
{
    struct world_node *node = ctx;
    return rng_next(&node->world->rng);
}

/* --- callbacks of the replica */

static uint64_t cb_now(void *ctx)
{
    struct world_node *node = ctx;
    return node->world->clock.now_ns;
}

static int node_by_id(const struct world *world, uint64_t id)
{
    for (unsigned i = 0; i < world->count; i++) {
        if (world->nodes[i].node_id == id) {
            return (int)i;
        }
    }
    return -1;
}

static void schedule_frame(struct world_node *node, unsigned to, struct slice bytes)
{
    struct world *world = node->world;
    struct event *event = event_new(&world->nodes[to], EVENT_FRAME);
    event->peer = node->idx;
    event->peer_incarnation = node->incarnation;
    event->bytes = malloc(bytes.len);
    CHECK(event->bytes != NULL);
    memcpy(event->bytes, bytes.base, bytes.len);
    event->len = bytes.len;
    uint64_t at_ns =
        world->clock.now_ns + LATENCY_NS_MIN + rng_below(&world->rng, LATENCY_NS_SPREAD);
    uint64_t *last = &world->arrival_ns[node->idx][to];
    if (rng_chance(&world->rng, world->reorder_per_mille)) {
        event_schedule(event, at_ns + rng_below(&world->rng, 20 * WORLD_MS));
        return;
    }
    *last = at_ns > *last ? at_ns : *last;
    event_schedule(event, *last);
}

static bool cb_send(void *ctx, uint64_t peer_id, bool bulk, struct slice bytes)
{
    struct world_node *node = ctx;
    struct world *world = node->world;
    int to = node_by_id(world, peer_id);
    if (to < 0 || world->nodes[to].replica == NULL || world->cut[node->idx][to]) {
        return false;
    }
    CHECK(bytes.len <= REPLICA_MESSAGE_LEN_MAX);
    world->message_len_max = max_u64(world->message_len_max, bytes.len);
    node->messages_out++;
    node->bulk_out += bulk ? 1 : 0;
    if (rng_chance(&world->rng, world->loss_per_mille)) {
        return true;
    }
    schedule_frame(node, (unsigned)to, bytes);
    if (rng_chance(&world->rng, world->double_per_mille)) {
        schedule_frame(node, (unsigned)to, bytes);
    }
    return true;
}

static void cb_view(void *ctx)
{
    struct world_node *node = ctx;
    if (node->replica != NULL) {
        replica_view(node->replica, &node->view);
    }
}

static void cb_applied(void *ctx, uint64_t index, const struct changes *changes)
{
    struct world_node *node = ctx;
    (void)index;
    node->applied += changes != NULL ? 1 : 0;
    node->installs += changes == NULL ? 1 : 0;
}

static void cb_log(void *ctx, int level, const char *text)
{
    struct world_node *node = ctx;
    if (getenv("WORLD_LOG") != NULL) {
        (void)fprintf(stderr, "%10.3f node=%u level=%d %s\n",
                      (double)node->world->clock.now_ns / 1e6, node->idx, level, text);
    }
}

static void cb_fatal(void *ctx, enum status status, const char *detail)
{
    struct world_node *node = ctx;
    cb_log(ctx, 0, detail);
    node->fatals++;
    node->fatal_status = status;
    schedule_turn(node);
}

static void cb_closed(void *ctx)
{
    struct world_node *node = ctx;
    node->closes++;
}

/* --- events */

static void on_event(void *arg)
{
    struct event *event = arg;
    struct world_node *node = event->node;
    if (event->incarnation != node->incarnation || node->replica == NULL) {
        if (event->kind == EVENT_DISK) {
            event->run(event->arg); /* the disk knows that it was cancelled, and frees it */
        }
        event_free(event);
        return;
    }
    if (node->stopped) {
        list_append(&node->held, &event->link);
        return;
    }
    event_handle(event);
    event_free(event);
}

static void event_handle(struct event *event)
{
    struct world_node *node = event->node;
    struct world *world = node->world;
    uint64_t now_ns = world->clock.now_ns;
    world->events++;
    switch (event->kind) {
    case EVENT_DISK:
        event->run(event->arg);
        schedule_turn(node);
        break;
    case EVENT_FRAME:
        if (!world->cut[event->peer][node->idx] &&
            world->nodes[event->peer].incarnation == event->peer_incarnation) {
            replica_receive(node->replica, world->nodes[event->peer].node_id,
                            slice_from(event->bytes, event->len), now_ns);
            schedule_turn(node);
        }
        break;
    case EVENT_TURN:
        turn(node);
        break;
    case EVENT_TIMER:
        if (node->timer_ns == event->at_ns) {
            node->timer_ns = UINT64_MAX;
        }
        turn(node);
        break;
    case EVENT_LINK_UP:
        if (world->nodes[event->peer].replica != NULL && !world->cut[event->peer][node->idx]) {
            replica_link_up(node->replica, world->nodes[event->peer].node_id);
            schedule_turn(node);
        }
        break;
    case EVENT_LINK_DOWN:
        replica_link_down(node->replica, world->nodes[event->peer].node_id, now_ns);
        schedule_turn(node);
        break;
    }
}

static void turn(struct world_node *node)
{
    node->turn_scheduled = false;
    uint64_t now_ns = node->world->clock.now_ns;
    replica_turn(node->replica, now_ns);
    replica_view(node->replica, &node->view);
    uint64_t next = replica_next_timer_ns(node->replica);
    if (next == UINT64_MAX) {
        return;
    }
    next = next > now_ns ? next : now_ns + 1;
    if (node->timer_ns == UINT64_MAX || next < node->timer_ns) {
        node->timer_ns = next;
        event_schedule(event_new(node, EVENT_TIMER), next);
    }
}

static void links_change(struct world *world, unsigned idx, enum event_kind kind)
{
    for (unsigned i = 0; i < world->count; i++) {
        if (i == idx || world->nodes[i].replica == NULL) {
            continue;
        }
        struct event *there = event_new(&world->nodes[i], kind);
        there->peer = idx;
        event_schedule(there, world->clock.now_ns + LINK_NS + rng_below(&world->rng, LINK_NS));
        if (world->nodes[idx].replica != NULL) {
            struct event *here = event_new(&world->nodes[idx], kind);
            here->peer = i;
            event_schedule(here, world->clock.now_ns + LINK_NS + rng_below(&world->rng, LINK_NS));
        }
    }
}

/* --- life */

void world_init(struct world *world, unsigned count, uint64_t seed)
{
    CHECK(count <= WORLD_NODES_MAX);
    memset(world, 0, sizeof *world);
    fake_clock_init(&world->clock, 1000 * WORLD_MS);
    rng_init(&world->rng, seed);
    world->count = count;
    world->voters_wanted = 3;
    for (unsigned i = 0; i < count; i++) {
        struct world_node *node = &world->nodes[i];
        node->world = world;
        node->idx = i;
        node->timer_ns = UINT64_MAX;
        list_init(&node->held);
        struct fake_disk_env env = {
            .ctx = node,
            .now_ns = disk_now,
            .schedule = disk_schedule,
            .random = disk_random,
        };
        node->disk = fake_disk_create(&env);
    }
}

void world_deinit(struct world *world)
{
    for (unsigned i = 0; i < world->count; i++) {
        if (world->nodes[i].replica != NULL) {
            world_stop(world, i, false);
            world_close(world, i);
        }
    }
    while (fake_clock_step(&world->clock, UINT64_MAX)) {
    }
    for (unsigned i = 0; i < world->count; i++) {
        fake_disk_destroy(world->nodes[i].disk);
    }
    fake_clock_deinit(&world->clock);
}

void world_boot(struct world *world, unsigned idx)
{
    CHECK(world_try_boot(world, idx) == STATUS_OK);
}

enum status world_try_boot(struct world *world, unsigned idx)
{
    struct world_node *node = &world->nodes[idx];
    CHECK(node->replica == NULL);
    node->incarnation++;
    node->stopped = false;
    node->turn_scheduled = false;
    node->timer_ns = UINT64_MAX;
    struct replica_config config = {
        .backend = fake_disk_boot(node->disk),
        .backend_node_id = node->node_id,
        .backend_identity = node->identity,
        .seed = rng_next(&world->rng) | 1,
        .voters_wanted = world->voters_wanted,
        .snapshot_entries = world->snapshot_entries,
    };
    struct replica_callbacks callbacks = {
        .ctx = node,
        .now_ns = cb_now,
        .send = cb_send,
        .on_view = cb_view,
        .on_applied = cb_applied,
        .on_fatal = cb_fatal,
        .on_log = cb_log,
    };
    char why[256] = "";
    enum status status = replica_open(&config, &callbacks, why, &node->replica);
    if (status != STATUS_OK) {
        CHECK(why[0] != '\0' && node->replica != NULL);
        return status;
    }
    replica_view(node->replica, &node->view);
    schedule_turn(node);
    links_change(world, idx, EVENT_LINK_UP);
    return STATUS_OK;
}

static void forget(struct world *world, unsigned idx)
{
    struct world_node *node = &world->nodes[idx];
    replica_destroy(node->replica);
    node->replica = NULL;
    node->incarnation++;
    struct list *link;
    while ((link = list_pop(&node->held)) != NULL) {
        struct event *event = CONTAINER_OF(link, struct event, link);
        if (event->kind == EVENT_DISK) {
            event->run(event->arg);
        }
        event_free(event);
    }
    memset(&node->view, 0, sizeof node->view);
    links_change(world, idx, EVENT_LINK_DOWN);
}

void world_crash(struct world *world, unsigned idx)
{
    struct world_node *node = &world->nodes[idx];
    fake_disk_crash(node->disk);
    unsigned before = node->closes;
    replica_close(node->replica, cb_closed, node);
    CHECK(node->closes == before + 1);
    forget(world, idx);
}

void world_close(struct world *world, unsigned idx)
{
    struct world_node *node = &world->nodes[idx];
    unsigned before = node->closes;
    replica_close(node->replica, cb_closed, node);
    while (node->closes == before) {
        CHECK(fake_clock_step(&world->clock, UINT64_MAX));
    }
    forget(world, idx);
}

void world_stop(struct world *world, unsigned idx, bool stopped)
{
    struct world_node *node = &world->nodes[idx];
    node->stopped = stopped;
    struct list *link;
    while (!stopped && (link = list_pop(&node->held)) != NULL) {
        event_schedule(CONTAINER_OF(link, struct event, link), world->clock.now_ns);
    }
}

void world_cut(struct world *world, unsigned a, unsigned b, bool cut)
{
    world->cut[a][b] = cut;
    world->cut[b][a] = cut;
    enum event_kind kind = cut ? EVENT_LINK_DOWN : EVENT_LINK_UP;
    unsigned ends[2] = {a, b};
    for (unsigned i = 0; i < 2; i++) {
        if (world->nodes[ends[i]].replica != NULL) {
            struct event *event = event_new(&world->nodes[ends[i]], kind);
            event->peer = ends[1 - i];
            event_schedule(event, world->clock.now_ns + LINK_NS);
        }
    }
}

void world_run(struct world *world, uint64_t ms)
{
    fake_clock_advance(&world->clock, ms * WORLD_MS);
}

bool world_run_until(struct world *world, world_cond cond, uint64_t ms)
{
    uint64_t end_ns = world->clock.now_ns + ms * WORLD_MS;
    while (!cond(world)) {
        if (!fake_clock_step(&world->clock, end_ns)) {
            return cond(world);
        }
    }
    return true;
}

/* --- clusters */

void world_init_cluster(struct world *world, unsigned idx)
{
    struct world_node *node = &world->nodes[idx];
    uint8_t random[40];
    for (unsigned i = 0; i < sizeof random; i++) {
        random[i] = (uint8_t)rng_next(&world->rng);
    }
    CHECK(replica_init_cluster(node->replica, 1000000, world->voters_born, random) == STATUS_OK);
    replica_view(node->replica, &node->view);
    node->node_id = node->view.node_id;
    node->identity = node->view.identity;
    schedule_turn(node);
}

void world_join(struct world *world, unsigned idx)
{
    struct world_node *node = &world->nodes[idx];
    int leader = world_leader(world);
    CHECK(leader >= 0);
    node->identity = world->nodes[leader].identity;
    node->node_id = rng_next(&world->rng) | 1;
    CHECK(replica_join_cluster(node->replica, &node->identity, node->node_id) == STATUS_OK);
    schedule_turn(node);
    links_change(world, idx, EVENT_LINK_UP);
}

struct change_done {
    bool done;
    enum status status;
};

static void on_change_done(void *ctx, enum status status)
{
    struct change_done *change = ctx;
    change->done = true;
    change->status = status;
}

enum status world_admit(struct world *world, unsigned idx)
{
    for (unsigned attempt = 0; attempt < 200; attempt++) {
        int leader = world_leader(world);
        struct change_done change = {0};
        enum status status =
            leader < 0 ? STATUS_NO_LEADER
                       : replica_admit(world->nodes[leader].replica, world->nodes[idx].node_id,
                                       on_change_done, &change);
        if (status == STATUS_OK) {
            schedule_turn(&world->nodes[leader]);
            while (!change.done) {
                CHECK(fake_clock_step(&world->clock, UINT64_MAX));
            }
            if (change.status == STATUS_OK) {
                return STATUS_OK;
            }
        } else if (status_class(status) == STATUS_CLASS_NEVER) {
            return status;
        }
        world_run(world, 10);
    }
    return STATUS_BUSY;
}

void world_form(struct world *world, unsigned voters)
{
    world_boot(world, 0);
    world_init_cluster(world, 0);
    CHECK(world_run_until(world, world_has_leader, 1000));
    for (unsigned i = 1; i < world->count; i++) {
        world_boot(world, i);
        world_join(world, i);
        world_run(world, 20);
        CHECK(world_admit(world, i) == STATUS_OK);
    }
    for (unsigned i = 0; i < 500 && world_voters(world, 0) != voters; i++) {
        world_run(world, 10);
    }
    CHECK(world_voters(world, 0) == voters);
    world_run(world, 300);
}

int world_leader(const struct world *world)
{
    int found = -1;
    for (unsigned i = 0; i < world->count; i++) {
        const struct world_node *node = &world->nodes[i];
        if (node->replica != NULL && !node->stopped && node->view.serving &&
            (found < 0 || node->view.term > world->nodes[found].view.term)) {
            found = (int)i;
        }
    }
    return found;
}

bool world_has_leader(const struct world *world)
{
    return world_leader(world) >= 0;
}

unsigned world_voters(const struct world *world, unsigned idx)
{
    struct replica_member members[REPLICA_MEMBERS_MAX];
    unsigned count = replica_members(world->nodes[idx].replica, members);
    unsigned voters = 0;
    for (unsigned i = 0; i < count; i++) {
        voters += members[i].role == REPLICA_MEMBER_ROLE_VOTER ? 1 : 0;
    }
    return voters;
}

bool world_in_step(const struct world *world)
{
    uint64_t index = 0;
    for (unsigned i = 0; i < world->count; i++) {
        const struct world_node *node = &world->nodes[i];
        if (node->replica == NULL) {
            continue;
        }
        struct replica_view view;
        replica_view(node->replica, &view);
        if (view.role == REPLICA_MEMBER_ROLE_NONE || view.role == REPLICA_MEMBER_ROLE_SPARE) {
            continue; /* keeps no log */
        }
        if (index != 0 && view.applied_index != index) {
            return false;
        }
        index = view.applied_index;
    }
    return true;
}

/* --- commands and reads */

static void on_result(struct replica_proposal *proposal, enum status status, struct slice result)
{
    struct world_call *call = CONTAINER_OF(proposal, struct world_call, proposal);
    call->completions++;
    call->status = status;
    call->done_ns = call->world->clock.now_ns;
    if (status != STATUS_OK) {
        CHECK(result.len == 0);
        return;
    }
    struct result_decoder *decoder = result_decoder_create();
    struct result decoded;
    CHECK(result_decode(decoder, result, &decoded) == STATUS_OK);
    call->result_status = decoded.status;
    call->origin = decoded.origin;
    if (decoded.outcome_count > 0) {
        call->outcome = decoded.outcomes[0].kind;
        call->token = decoded.outcomes[0].token;
    }
    result_decoder_destroy(decoder);
}

enum status world_propose(struct world *world, unsigned idx, const struct command *command,
                          struct world_call *call)
{
    return world_propose_until(world, idx, command, UINT64_MAX, call);
}

enum status world_propose_until(struct world *world, unsigned idx, const struct command *command,
                                uint64_t deadline_ns, struct world_call *call)
{
    *call = (struct world_call){.world = world};
    call->proposal.cb = on_result;
    call->proposal.deadline_ns = deadline_ns;
    struct buf bytes;
    buf_init(&bytes, ENTRY_LEN_MAX);
    command_encode(command, &bytes);
    enum status status =
        replica_propose(world->nodes[idx].replica, buf_slice(&bytes), &call->proposal);
    buf_deinit(&bytes);
    schedule_turn(&world->nodes[idx]);
    return status;
}

void world_call(struct world *world, const struct command *command, struct world_call *call)
{
    CHECK(world_run_until(world, world_has_leader, 10000));
    CHECK(world_propose(world, (unsigned)world_leader(world), command, call) == STATUS_OK);
    while (call->completions == 0) {
        CHECK(fake_clock_step(&world->clock, UINT64_MAX));
    }
}

uint64_t world_open_origin(struct world *world, uint64_t nonce)
{
    struct command command = {
        .op = {.kind = OP_KIND_OPEN_ORIGIN, .node_id = 1, .nonce = nonce},
    };
    struct world_call call;
    world_call(world, &command, &call);
    CHECK(call.status == STATUS_OK && call.result_status == STATUS_OK && call.origin != 0);
    return call.origin;
}

struct command world_take(uint64_t origin, uint64_t sequence, const char *key, const char *owner,
                          uint64_t ttl_ms)
{
    static struct key_item items[16];
    static unsigned next;
    struct key_item *item = &items[next++ % 16];
    *item = (struct key_item){.key = slice_text(key)};
    return (struct command){
        .origin = origin,
        .sequence = sequence,
        .confirmed = sequence > 0 ? sequence - 1 : 0,
        .op =
            {
                .kind = OP_KIND_TAKE,
                .ns = slice_text(NAMESPACE_DEFAULT),
                .owner = slice_text(owner),
                .ttl_ms = ttl_ms,
                .keys = item,
                .key_count = 1,
            },
    };
}

static void on_read(struct replica_read *read, enum status status, struct read_point point)
{
    struct world_read *mine = CONTAINER_OF(read, struct world_read, read);
    mine->completions++;
    mine->status = status;
    mine->point = point;
}

enum status world_read(struct world *world, unsigned idx, struct world_read *read)
{
    *read = (struct world_read){.read = {.cb = on_read}};
    enum status status = replica_read_start(world->nodes[idx].replica, &read->read);
    schedule_turn(&world->nodes[idx]);
    return status;
}
