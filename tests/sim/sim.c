/* Nodes, network and time. Every event of a node (a frame, a disk completion, a timer, something a
 * client does) is followed by the end of a turn, as the loop of a node does it. */
#include "tests/sim/sim.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fsm/base/check.h"
#include "fsm/base/hash.h"
#include "tests/sim/sim_check.h"

#define LATENCY_NS_MIN 50000u
#define LATENCY_NS_SPREAD 300000u
#define LINK_NS 1000000u
#define SILENT_MS 300u /* node/link tells it after so long */
#define REST_S_MAX 30u
#define FORM_MS_MAX 20000u

enum event_kind {
    EVENT_RUN,  /* a client's, of this incarnation of the node */
    EVENT_DISK, /* has to run in any case: the disk knows what was cancelled, and frees it */
    EVENT_FRAME,
    EVENT_TURN,
    EVENT_TIMER,
    EVENT_LINK_UP,
    EVENT_LINK_DOWN,
    EVENT_LINK_SILENT,
    EVENT_LINK_HEARD,
};

struct event {
    struct list link;
    struct sim_node *node;
    unsigned incarnation;
    enum event_kind kind;
    unsigned peer;
    unsigned peer_incarnation;
    enum frame_type type;
    void (*run)(void *arg);
    void *arg;
    uint8_t *bytes; /* owned */
    size_t len;
    uint64_t at_ns;
};

static void on_event(void *arg);
static void handle(struct event *event);
static void turn(struct sim_node *node);
static void boot(struct sim_node *node);
static void forget(struct sim_node *node);
static void links_change(struct sim_node *node, enum event_kind kind);
static void form(struct sim *sim);
static void admit(struct sim *sim, unsigned idx);
static int leader_of(const struct sim *sim);
static void steps(struct sim *sim, uint64_t ms);
static void schedule_stop(struct sim *sim);
static void stop_leader(void *arg);
static void start_again(void *arg);
static bool at_rest(const struct sim *sim);

static struct event *event_new(struct sim_node *node, enum event_kind kind)
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
    fake_clock_schedule(&event->node->sim->clock, at_ns, on_event, event);
}

/* --- seams of a node */

static uint64_t clock_now(void *ctx)
{
    const struct sim_node *node = ctx;
    return node->sim->clock.now_ns;
}

static uint64_t work_clock(void *ctx)
{
    const struct sim_node *node = ctx;
    return node->sim->clock.now_ns + node->worked_ns;
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
    struct sim_node *node = ctx;
    return rng_next(&node->sim->rng);
}

static bool transport_waits(void *ctx, uint64_t peer_id)
{
    const struct sim_node *node = ctx;
    (void)peer_id;
    return node->crowded;
}

static bool transport_send(void *ctx, uint64_t peer_id, enum frame_type type, bool bulk,
                           struct slice payload)
{
    struct sim_node *node = ctx;
    struct sim *sim = node->sim;
    (void)bulk;
    struct sim_node *to = NULL;
    for (unsigned i = 0; i < sim->config.nodes; i++) {
        if (sim->nodes[i].node_id == peer_id && peer_id != 0) {
            to = &sim->nodes[i];
        }
    }
    if (to == NULL || !node->link_up[to->idx]) {
        return false;
    }
    struct event *event = event_new(to, EVENT_FRAME);
    event->peer = node->idx;
    event->peer_incarnation = node->incarnation;
    event->type = type;
    event->bytes = malloc(payload.len + 1);
    CHECK(event->bytes != NULL);
    if (payload.len > 0) {
        memcpy(event->bytes, payload.base, payload.len);
    }
    event->len = payload.len;
    uint64_t at_ns = sim->clock.now_ns + LATENCY_NS_MIN + rng_below(&sim->rng, LATENCY_NS_SPREAD);
    uint64_t *last = &sim->arrival_ns[node->idx][to->idx];
    *last = at_ns > *last ? at_ns : *last;
    event_schedule(event, *last);
    return true;
}

static bool replica_send(void *ctx, uint64_t peer_id, bool bulk, struct slice bytes)
{
    CHECK(bytes.len <= FRAME_REPLICA_LEN_MAX); /* a link would say false for ever */
    return transport_send(ctx, peer_id, FRAME_TYPE_REPLICA, bulk, bytes);
}

static void on_view(void *ctx)
{
    struct sim_node *node = ctx;
    if (node->dispatch != NULL) {
        dispatch_on_view(node->dispatch);
    }
}

static void on_applied(void *ctx, uint64_t index, const struct changes *changes)
{
    struct sim_node *node = ctx;
    if (node->dispatch != NULL) {
        dispatch_on_applied(node->dispatch, index, changes);
    }
    if (node->replica != NULL) {
        sim_check_applied(node->sim, node->idx, index, changes);
    }
}

static void on_fatal(void *ctx, enum status status, const char *detail)
{
    struct sim_node *node = ctx;
    sim_fail(node->sim, "node %u stopped for good: %s: %s", node->idx, status_name(status),
             detail);
}

static void on_log(void *ctx, int level, const char *text)
{
    struct sim_node *node = ctx;
    if (node->sim->config.trace) {
        (void)printf("%12.3f node=%u level=%d %s\n", (double)node->sim->clock.now_ns / 1e6,
                     node->idx, level, text);
    }
}

static void on_closed(void *ctx)
{
    *(bool *)ctx = true;
}

/* --- events */

static void on_event(void *arg)
{
    struct event *event = arg;
    struct sim_node *node = event->node;
    if (event->incarnation != node->incarnation || node->replica == NULL) {
        if (event->kind == EVENT_DISK) {
            event->run(event->arg);
        }
        event_free(event);
        return;
    }
    if (node->paused) {
        list_append(&node->held, &event->link);
        return;
    }
    handle(event);
    event_free(event);
}

static void handle(struct event *event)
{
    struct sim_node *node = event->node;
    struct sim *sim = node->sim;
    struct sim_node *peer = &sim->nodes[event->peer];
    uint64_t now_ns = sim->clock.now_ns;
    sim->events++;
    switch (event->kind) {
    case EVENT_RUN:
    case EVENT_DISK:
        event->run(event->arg);
        break;
    case EVENT_FRAME:
        if (!node->link_up[event->peer] || peer->incarnation != event->peer_incarnation) {
            return;
        }
        /* Of libraft's messages only the length: it leaves a field of a refused AppendEntries'
         * answer as the stack had it, which its receiver never looks at. */
        sim_note(sim, "frame", (uint64_t)event->type << 32 | event->len,
                 event->type == FRAME_TYPE_REPLICA
                     ? node->idx
                     : hash64(node->idx, event->bytes, event->len));
        dispatch_receive(node->dispatch, peer->node_id, event->type,
                         slice_from(event->bytes, event->len), now_ns);
        break;
    case EVENT_TURN:
        turn(node);
        return;
    case EVENT_TIMER:
        if (node->timer_ns == event->at_ns) {
            node->timer_ns = UINT64_MAX;
        }
        turn(node);
        return;
    case EVENT_LINK_UP:
        if (peer->replica == NULL || peer->node_id == 0 || node->link_up[event->peer]) {
            return;
        }
        node->link_up[event->peer] = true;
        dispatch_peer_up(node->dispatch, peer->node_id, now_ns);
        break;
    case EVENT_LINK_DOWN:
        if (!node->link_up[event->peer]) {
            return;
        }
        node->link_up[event->peer] = false;
        dispatch_peer_down(node->dispatch, peer->node_id, now_ns);
        break;
    case EVENT_LINK_SILENT:
        if (!node->link_up[event->peer] || !peer->paused) {
            return;
        }
        dispatch_peer_silent(node->dispatch, peer->node_id, now_ns);
        break;
    case EVENT_LINK_HEARD:
        if (!node->link_up[event->peer] || peer->paused) {
            return;
        }
        dispatch_peer_heard(node->dispatch, peer->node_id, now_ns);
        break;
    }
    sim_turn_soon(node);
}

static void turn(struct sim_node *node)
{
    node->turn_scheduled = false;
    uint64_t now_ns = node->sim->clock.now_ns;
    dispatch_turn(node->dispatch, now_ns);
    replica_view(node->replica, &node->view);
    uint64_t next_ns = dispatch_next_timer_ns(node->dispatch);
    if (next_ns == UINT64_MAX) {
        return;
    }
    next_ns = next_ns > now_ns ? next_ns : now_ns + 1;
    if (node->timer_ns == UINT64_MAX || next_ns < node->timer_ns) {
        node->timer_ns = next_ns;
        event_schedule(event_new(node, EVENT_TIMER), next_ns);
    }
}

void sim_at(struct sim_node *node, uint64_t at_ns, void (*run)(void *arg), void *arg)
{
    struct event *event = event_new(node, EVENT_RUN);
    event->run = run;
    event->arg = arg;
    event_schedule(event, at_ns);
}

void sim_turn_soon(struct sim_node *node)
{
    if (!node->turn_scheduled && node->replica != NULL) {
        node->turn_scheduled = true;
        event_schedule(event_new(node, EVENT_TURN), node->sim->clock.now_ns);
    }
}

void sim_fail(struct sim *sim, const char *format, ...)
{
    if (sim->failure[0] != '\0') {
        return;
    }
    va_list args;
    va_start(args, format);
    (void)vsnprintf(sim->failure, sizeof sim->failure, format, args);
    va_end(args);
}

void sim_note(struct sim *sim, const char *what, uint64_t a, uint64_t b)
{
    uint64_t words[4] = {sim->clock.now_ns, a, b, (uint64_t)what[0]};
    sim->hash = hash64(sim->hash, words, sizeof words);
    if (sim->config.trace) {
        (void)printf("%12.3f %s %016llx %016llx\n", (double)sim->clock.now_ns / 1e6, what,
                     (unsigned long long)a, (unsigned long long)b);
    }
}

/* --- life of nodes */

static void boot(struct sim_node *node)
{
    struct sim *sim = node->sim;
    CHECK(node->replica == NULL);
    node->incarnation++;
    node->turn_scheduled = false;
    node->timer_ns = UINT64_MAX;
    memset(node->link_up, 0, sizeof node->link_up);
    struct replica_config config = {
        .backend = fake_disk_boot(node->disk),
        .backend_node_id = node->node_id,
        .backend_identity = node->identity,
        .seed = rng_next(&sim->rng) | 1,
        .tick_ms = 50,
        .election_ms = 500,
        .voters_wanted = 3,
    };
    struct replica_callbacks callbacks = {
        .ctx = node,
        .now_ns = clock_now,
        .send = replica_send,
        .on_view = on_view,
        .on_applied = on_applied,
        .on_fatal = on_fatal,
        .on_log = on_log,
    };
    char why[256] = "";
    CHECK(replica_open(&config, &callbacks, why, &node->replica) == STATUS_OK);
    struct dispatch_config of_dispatch = {
        .replica = node->replica,
        .transport = {.ctx = node, .send = transport_send, .waits = transport_waits},
        .seed = rng_next(&sim->rng),
        .clock_ns = work_clock,
        .clock_ctx = node,
    };
    node->dispatch = dispatch_create(&of_dispatch);
    replica_view(node->replica, &node->view);
    sim_turn_soon(node);
    if (node->node_id != 0) {
        links_change(node, EVENT_LINK_UP);
    }
}

static void forget(struct sim_node *node)
{
    sim_clients_node_died(node->sim, node->idx);
    dispatch_destroy(node->dispatch);
    replica_destroy(node->replica);
    node->dispatch = NULL;
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
    links_change(node, EVENT_LINK_DOWN);
}

/* Both ends of every link of the node hear of it about a millisecond later. */
static void links_change(struct sim_node *node, enum event_kind kind)
{
    struct sim *sim = node->sim;
    for (unsigned i = 0; i < sim->config.nodes; i++) {
        if (i == node->idx || sim->nodes[i].replica == NULL || sim->nodes[i].node_id == 0) {
            continue;
        }
        struct event *there = event_new(&sim->nodes[i], kind);
        there->peer = node->idx;
        event_schedule(there, sim->clock.now_ns + LINK_NS + rng_below(&sim->rng, LINK_NS));
        if (node->replica != NULL) {
            struct event *here = event_new(node, kind);
            here->peer = i;
            event_schedule(here, sim->clock.now_ns + LINK_NS + rng_below(&sim->rng, LINK_NS));
        }
    }
}

static void form(struct sim *sim)
{
    struct sim_node *first = &sim->nodes[0];
    boot(first);
    uint8_t random[40];
    for (unsigned i = 0; i < sizeof random; i++) {
        random[i] = (uint8_t)rng_next(&sim->rng);
    }
    CHECK(replica_init_cluster(first->replica, 1000000, 0, random) == STATUS_OK);
    replica_view(first->replica, &first->view);
    first->node_id = first->view.node_id;
    first->identity = first->view.identity;
    sim_turn_soon(first);
    for (unsigned waited = 0; leader_of(sim) < 0 && waited < FORM_MS_MAX; waited++) {
        steps(sim, 1);
    }
    for (unsigned i = 1; i < sim->config.nodes; i++) {
        struct sim_node *node = &sim->nodes[i];
        boot(node);
        node->node_id = rng_next(&sim->rng) | 1;
        node->identity = first->identity;
        CHECK(replica_join_cluster(node->replica, &node->identity, node->node_id) == STATUS_OK);
        links_change(node, EVENT_LINK_UP);
        sim_turn_soon(node);
        steps(sim, 20);
        admit(sim, i);
    }
    unsigned voters = 0;
    unsigned wanted = sim->config.nodes < 3 ? 1 : 3;
    for (unsigned waited = 0; voters != wanted && waited < FORM_MS_MAX; waited += 10) {
        steps(sim, 10);
        struct replica_member members[REPLICA_MEMBERS_MAX];
        unsigned count = replica_members(first->replica, members);
        voters = 0;
        for (unsigned i = 0; i < count; i++) {
            voters += members[i].role == REPLICA_MEMBER_ROLE_VOTER ? 1 : 0;
        }
    }
    if (voters != wanted) {
        sim_fail(sim, "the cluster has %u voters, not %u", voters, wanted);
    }
}

struct admission {
    bool done;
    enum status status;
};

static void on_admitted(void *ctx, enum status status)
{
    struct admission *admission = ctx;
    admission->done = true;
    admission->status = status;
}

static void admit(struct sim *sim, unsigned idx)
{
    for (unsigned waited = 0; waited < FORM_MS_MAX; waited += 10) {
        int leader = leader_of(sim);
        struct admission admission = {0};
        if (leader >= 0 && replica_admit(sim->nodes[leader].replica, sim->nodes[idx].node_id,
                                         on_admitted, &admission) == STATUS_OK) {
            sim_turn_soon(&sim->nodes[leader]);
            while (!admission.done) {
                steps(sim, 1);
            }
            if (admission.status == STATUS_OK) {
                return;
            }
        }
        steps(sim, 10);
    }
    sim_fail(sim, "node %u was not admitted", idx);
}

static int leader_of(const struct sim *sim)
{
    int found = -1;
    for (unsigned i = 0; i < sim->config.nodes; i++) {
        const struct sim_node *node = &sim->nodes[i];
        if (node->replica != NULL && !node->paused && node->view.serving &&
            (found < 0 || node->view.term > sim->nodes[found].view.term)) {
            found = (int)i;
        }
    }
    return found;
}

/* --- runs */

struct sim *sim_create(const struct sim_config *config)
{
    CHECK(config->nodes >= 1 && config->nodes <= SIM_NODES_MAX);
    CHECK(config->keys >= 1 && config->keys <= SIM_KEYS_MAX);
    struct sim *sim = calloc(1, sizeof *sim);
    CHECK(sim != NULL);
    sim->config = *config;
    fake_clock_init(&sim->clock, SIM_START_NS);
    rng_init(&sim->rng, config->seed);
    sim_check_create(sim);
    for (unsigned i = 0; i < config->nodes; i++) {
        struct sim_node *node = &sim->nodes[i];
        node->sim = sim;
        node->idx = i;
        list_init(&node->held);
        struct fake_disk_env env = {
            .ctx = node,
            .now_ns = clock_now,
            .schedule = disk_schedule,
            .random = disk_random,
        };
        node->disk = fake_disk_create(&env);
        struct fake_disk_timing timing = {
            .append_ns_min = 100000,
            .append_ns_max = 400000,
            .snapshot_ns_min = 5000000,
            .snapshot_ns_max = 20000000,
        };
        fake_disk_set_timing(node->disk, &timing);
    }
    sim_clients_create(sim);
    form(sim);
    return sim;
}

void sim_run(struct sim *sim, uint64_t seconds)
{
    sim->loaded = true;
    for (unsigned i = 0; i < sim->config.nodes; i++) {
        sim_clients_begin(sim, i);
    }
    if (sim->config.stop_every_s != 0) {
        schedule_stop(sim);
    }
    for (uint64_t ms = 0; ms < seconds * 1000 && sim->failure[0] == '\0'; ms += 100) {
        steps(sim, 100);
    }
    sim->ending = true;
    for (unsigned s = 0; s < REST_S_MAX && !at_rest(sim) && sim->failure[0] == '\0'; s++) {
        steps(sim, 1000);
    }
    if (!at_rest(sim)) {
        sim_fail(sim, "no rest %u s after the load ended", REST_S_MAX);
    }
    sim_check_end(sim);
}

void sim_report(const struct sim *sim, struct sim_report *out_report)
{
    *out_report = (struct sim_report){
        .events = sim->events,
        .hash = sim->hash,
        .entries = sim_check_entries(sim),
        .stops = sim->stops,
    };
    sim_clients_report(sim, out_report);
    for (unsigned i = 0; i < sim->config.nodes; i++) {
        if (sim->nodes[i].dispatch != NULL) {
            struct dispatch_stats stats;
            dispatch_stats(sim->nodes[i].dispatch, &stats);
            out_report->reads_waited_due += stats.reads_waited_due;
            out_report->forwards += stats.forwards_sent;
            out_report->settles += stats.settles;
        }
    }
}

void sim_destroy(struct sim *sim)
{
    sim->ending = true;
    for (unsigned i = 0; i < sim->config.nodes; i++) {
        struct sim_node *node = &sim->nodes[i];
        if (node->paused) {
            start_again(node);
        }
        if (node->replica == NULL) {
            continue;
        }
        bool closed = false;
        replica_close(node->replica, on_closed, &closed);
        while (!closed) {
            CHECK(fake_clock_step(&sim->clock, UINT64_MAX));
        }
        forget(node);
    }
    while (fake_clock_step(&sim->clock, UINT64_MAX)) {
    }
    for (unsigned i = 0; i < sim->config.nodes; i++) {
        fake_disk_destroy(sim->nodes[i].disk);
    }
    fake_clock_deinit(&sim->clock);
    sim_clients_destroy(sim);
    sim_check_destroy(sim);
    free(sim);
}

static void steps(struct sim *sim, uint64_t ms)
{
    uint64_t end_ns = sim->clock.now_ns + ms * SIM_MS;
    while (sim->failure[0] == '\0' && fake_clock_step(&sim->clock, end_ns)) {
    }
}

static void schedule_stop(struct sim *sim)
{
    uint64_t every_ns = sim->config.stop_every_s * 1000 * SIM_MS;
    fake_clock_schedule(&sim->clock,
                        sim->clock.now_ns + every_ns / 2 + rng_below(&sim->rng, every_ns),
                        stop_leader, sim);
}

/* Kill it or pause it; either way it is back after 0.1 .. 2 s. */
static void stop_leader(void *arg)
{
    struct sim *sim = arg;
    int leader = leader_of(sim);
    if (sim->ending) {
        return;
    }
    schedule_stop(sim);
    for (unsigned i = 0; i < sim->config.nodes; i++) {
        if (sim->nodes[i].replica == NULL || sim->nodes[i].paused) {
            return; /* one at a time */
        }
    }
    if (leader < 0) {
        return;
    }
    struct sim_node *node = &sim->nodes[leader];
    bool kill = rng_chance(&sim->rng, 500);
    sim->stops++;
    sim_note(sim, kill ? "kill" : "pause", node->idx, node->view.term);
    if (kill) {
        fake_disk_crash(node->disk);
        bool closed = false;
        replica_close(node->replica, on_closed, &closed);
        CHECK(closed);
        forget(node);
    } else {
        sim_pause(node);
    }
    fake_clock_schedule(&sim->clock,
                        sim->clock.now_ns + (100 + rng_below(&sim->rng, 1900)) * SIM_MS,
                        start_again, node);
}

static void start_again(void *arg)
{
    struct sim_node *node = arg;
    struct sim *sim = node->sim;
    if (node->replica == NULL) {
        if (!sim->ending || sim->failure[0] == '\0') {
            boot(node);
            sim_clients_begin(sim, node->idx);
        }
        return;
    }
    if (node->paused) {
        sim_resume(node);
    }
}

void sim_pause(struct sim_node *node)
{
    struct sim *sim = node->sim;
    node->paused = true;
    node->paused_ns = sim->clock.now_ns;
    for (unsigned i = 0; i < sim->config.nodes; i++) {
        if (i != node->idx && sim->nodes[i].replica != NULL) {
            struct event *event = event_new(&sim->nodes[i], EVENT_LINK_SILENT);
            event->peer = node->idx;
            event_schedule(event, sim->clock.now_ns + SILENT_MS * SIM_MS);
        }
    }
}

void sim_resume(struct sim_node *node)
{
    struct sim *sim = node->sim;
    node->paused = false;
    node->resumed_ns = sim->clock.now_ns;
    dispatch_stalled(node->dispatch, sim->clock.now_ns - node->paused_ns, sim->clock.now_ns);
    struct list *link;
    while ((link = list_pop(&node->held)) != NULL) {
        event_schedule(CONTAINER_OF(link, struct event, link), sim->clock.now_ns);
    }
    for (unsigned i = 0; i < sim->config.nodes; i++) {
        if (i != node->idx && sim->nodes[i].replica != NULL) {
            struct event *event = event_new(&sim->nodes[i], EVENT_LINK_HEARD);
            event->peer = node->idx;
            event_schedule(event, sim->clock.now_ns + LATENCY_NS_MIN);
        }
    }
}

/* Nothing is under way any more: no call, no settle, and all are as far as each other. */
static bool at_rest(const struct sim *sim)
{
    if (!sim_clients_idle(sim) || leader_of(sim) < 0) {
        return false;
    }
    uint64_t index = 0;
    for (unsigned i = 0; i < sim->config.nodes; i++) {
        const struct sim_node *node = &sim->nodes[i];
        if (node->replica == NULL || node->paused) {
            return false;
        }
        struct dispatch_stats stats;
        dispatch_stats(node->dispatch, &stats);
        if (stats.settling > 0 || stats.calls_waiting > 0) {
            return false;
        }
        struct replica_view view;
        replica_view(node->replica, &view);
        bool has_log = view.role == REPLICA_MEMBER_ROLE_VOTER ||
                       view.role == REPLICA_MEMBER_ROLE_STANDBY;
        const struct fsm *fsm = replica_fsm(node->replica);
        if (has_log && index != 0 && fsm_index(fsm) != index) {
            return false;
        }
        index = has_log ? fsm_index(fsm) : index;
    }
    return true;
}
