/* Five libraft nodes behind guards on fake disks, a network that loses, doubles, reorders and cuts,
 * processes that crash with writes in flight, snapshots all the time, and a node that changes its
 * role: many seeds, one after the other. After every apply the same index must hold the same
 * command and lead to the same sum everywhere; after every healing there must be a leader, and all
 * agree. Prints the seed of a failure; `test_guard_cluster SEED` runs that one alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <raft.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fsm/base/rng.h"
#include "fsm/base/units.h"
#include "raft/guard.h"
#include "tests/raft/fake_clock.h"
#include "tests/raft/fake_disk.h"
#include "tests/raft/sum_state.h"

#define NODES       5u /* 1..5; 1, 2 and 3 vote, 4 changes its role, 5 is a standby */
#define VOTERS      3u
#define LOG_MAX     20000u
#define TICK_MS     20u
#define ELECTION_MS 150u
#define STORM_NS    (6000 * NS_PER_MS)
#define HEALING_NS  (4000 * NS_PER_MS)
#define SEEDS       60u
#define START_NS    (1000000 * NS_PER_MS)

struct cluster;

struct cluster_node {
    struct cluster *cluster;
    raft_id id;
    bool up;
    struct fake_disk *disk;
    struct guard *guard;
    struct raft raft;
    struct raft_fsm fsm;
    struct sum_state state;
};

struct cluster {
    uint64_t seed;
    struct rng rng;
    struct fake_clock clock;
    struct cluster_node nodes[NODES + 1];
    bool cut[NODES + 1][NODES + 1]; /* from, to */
    unsigned loss_per_mille;
    uint64_t commands[LOG_MAX]; /* what was applied at an index, by whoever came first */
    uint64_t sums[LOG_MAX];
    raft_index highest;
    uint64_t proposed;
    unsigned crashes;
    unsigned snapshots_sent;
    uint64_t cures;
};

/* A message under way. */
struct parcel {
    struct cluster *cluster;
    raft_id from;
    raft_id to;
    struct raft_message message;
};

static void judge(const struct cluster *cluster, bool sound, const char *what, raft_id id)
{
    if (!sound) {
        print_error("seed %llu: %s on node %llu\n", (unsigned long long)cluster->seed, what, id);
        fail();
    }
}

/* --- environment --------------------------------------------------------------------------- */

static uint64_t env_now(void *ctx)
{
    struct cluster *cluster = ctx;
    return cluster->clock.now_ns;
}

static void env_schedule(void *ctx, uint64_t at_ns, void (*run)(void *arg), void *arg)
{
    struct cluster *cluster = ctx;
    fake_clock_schedule(&cluster->clock, at_ns, run, arg);
}

static uint64_t env_random(void *ctx)
{
    struct cluster *cluster = ctx;
    return rng_next(&cluster->rng);
}

static void end_turn(struct cluster_node *node)
{
    if (node->up) {
        fake_disk_fire(node->disk);
        (void)guard_notify_commit(node->guard);
        guard_end_turn(node->guard);
    }
}

/* --- network ------------------------------------------------------------------------------- */

static void copy_entries(struct raft_append_entries *append)
{
    if (append->n_entries == 0) {
        append->entries = NULL;
        return;
    }
    size_t len = 0;
    for (unsigned idx = 0; idx < append->n_entries; idx++) {
        len += append->entries[idx].buf.len;
    }
    struct raft_entry *entries = raft_malloc(append->n_entries * sizeof(*entries));
    uint8_t *batch = raft_malloc(len);
    CHECK(entries != NULL && batch != NULL);
    uint8_t *at = batch;
    for (unsigned idx = 0; idx < append->n_entries; idx++) {
        entries[idx] = append->entries[idx];
        entries[idx].batch = batch;
        entries[idx].buf.base = at;
        memcpy(at, append->entries[idx].buf.base, entries[idx].buf.len);
        at += entries[idx].buf.len;
    }
    append->entries = entries;
}

static void copy_install(struct raft_install_snapshot *install)
{
    struct raft_configuration configuration;
    raft_configuration_init(&configuration);
    for (unsigned idx = 0; idx < install->conf.n; idx++) {
        const struct raft_server *server = &install->conf.servers[idx];
        CHECK(raft_configuration_add(&configuration, server->id, server->address, server->role) ==
              0);
    }
    install->conf = configuration;
    void *base = raft_malloc(install->data.len);
    CHECK(base != NULL);
    memcpy(base, install->data.base, install->data.len);
    install->data.base = base;
}

static void on_arrival(void *arg)
{
    struct parcel *parcel = arg;
    struct cluster *cluster = parcel->cluster;
    struct cluster_node *sender = &cluster->nodes[parcel->from];
    struct cluster_node *receiver = &cluster->nodes[parcel->to];
    if (parcel->message.type == RAFT_INSTALL_SNAPSHOT && sender->up) {
        guard_snapshot_done(sender->guard, parcel->to);
    }
    if (!receiver->up || cluster->cut[parcel->from][parcel->to]) {
        guard_message_clear(&parcel->message);
    } else {
        char address[8];
        (void)snprintf(address, sizeof(address), "%llu", parcel->from);
        parcel->message.server_id = parcel->from;
        parcel->message.server_address = address;
        (void)guard_receive(receiver->guard, &parcel->message);
        end_turn(receiver);
    }
    free(parcel);
}

static void dispatch(struct cluster_node *node, const struct raft_message *message)
{
    struct cluster *cluster = node->cluster;
    struct parcel *parcel = calloc(1, sizeof(*parcel));
    CHECK(parcel != NULL);
    parcel->cluster = cluster;
    parcel->from = node->id;
    parcel->to = message->server_id;
    parcel->message = *message;
    if (message->type == RAFT_APPEND_ENTRIES) {
        copy_entries(&parcel->message.append_entries);
    } else if (message->type == RAFT_INSTALL_SNAPSHOT) {
        copy_install(&parcel->message.install_snapshot);
        cluster->snapshots_sent++;
    }
    uint64_t delay_ns = NS_PER_MS / 2 + rng_below(&cluster->rng, 3 * NS_PER_MS);
    if (rng_chance(&cluster->rng, 10)) {
        delay_ns += rng_below(&cluster->rng, 200 * NS_PER_MS); /* overtaken by many */
    }
    fake_clock_schedule(&cluster->clock, cluster->clock.now_ns + delay_ns, on_arrival, parcel);
}

static void on_send(void *ctx, const struct raft_message *message)
{
    struct cluster_node *node = ctx;
    struct cluster *cluster = node->cluster;
    if (rng_chance(&cluster->rng, cluster->loss_per_mille)) {
        if (message->type == RAFT_INSTALL_SNAPSHOT) {
            guard_snapshot_done(node->guard, message->server_id);
        }
        return;
    }
    dispatch(node, message);
    if (rng_chance(&cluster->rng, cluster->loss_per_mille)) {
        dispatch(node, message); /* twice */
    }
}

static void on_fatal(void *ctx, enum status status, const char *detail)
{
    struct cluster_node *node = ctx;
    (void)status;
    judge(node->cluster, false, detail, node->id);
}

/* --- state machine ------------------------------------------------------------------------- */

static int on_apply(struct raft_fsm *fsm, const struct raft_buffer *buf, void **result)
{
    struct cluster_node *node = fsm->data;
    struct cluster *cluster = node->cluster;
    raft_index index = raft_last_applied(&node->raft) + 1;
    uint64_t command;
    CHECK(buf->len == sizeof(command) && index < LOG_MAX);
    memcpy(&command, buf->base, sizeof(command));
    sum_state_add(&node->state, command);
    if (cluster->commands[index] == 0) {
        cluster->commands[index] = command;
        cluster->sums[index] = node->state.sum;
    }
    judge(cluster, cluster->commands[index] == command, "another command at an index", node->id);
    judge(cluster, cluster->sums[index] == node->state.sum, "the states diverged", node->id);
    cluster->highest = max_u64(cluster->highest, index);
    *result = NULL;
    return 0;
}

static int on_snapshot(struct raft_fsm *fsm, struct raft_buffer *bufs[], unsigned *n_bufs)
{
    struct cluster_node *node = fsm->data;
    if (raft_commit_index(&node->raft) != raft_last_applied(&node->raft)) {
        return RAFT_BUSY;
    }
    sum_state_save(&node->state, bufs, n_bufs);
    return 0;
}

static int on_restore(struct raft_fsm *fsm, struct raft_buffer *buf)
{
    struct cluster_node *node = fsm->data;
    sum_state_load(&node->state, buf);
    return 0;
}

/* --- nodes --------------------------------------------------------------------------------- */

static void node_boot(struct cluster_node *node, bool birth)
{
    struct cluster *cluster = node->cluster;
    struct guard_options options;
    guard_options_init(&options);
    options.on_send = on_send;
    options.on_fatal = on_fatal;
    options.ctx = node;
    options.snapshot_pause_ms = 100;
    node->guard = guard_create(fake_disk_boot(node->disk), &options);
    node->fsm = (struct raft_fsm){.version = 1,
                                  .data = node,
                                  .apply = on_apply,
                                  .snapshot = on_snapshot,
                                  .restore = on_restore};
    node->state = (struct sum_state){0};
    memset(&node->raft, 0, sizeof(node->raft));
    char address[8];
    (void)snprintf(address, sizeof(address), "%llu", node->id);
    CHECK(raft_init(&node->raft, guard_io(node->guard), &node->fsm, node->id, address) == 0);
    node->raft.tracer = NULL;
    raft_seed(&node->raft, (unsigned)rng_next(&cluster->rng));
    raft_set_pre_vote(&node->raft, true);
    raft_set_heartbeat_timeout(&node->raft, TICK_MS);
    raft_set_election_timeout(&node->raft, ELECTION_MS);
    raft_set_install_snapshot_timeout(&node->raft, 500);
    raft_set_snapshot_threshold(&node->raft, 40);
    raft_set_snapshot_trailing(&node->raft, 10);
    if (birth) {
        struct raft_configuration configuration;
        raft_configuration_init(&configuration);
        for (unsigned id = 1; id <= NODES; id++) {
            (void)snprintf(address, sizeof(address), "%u", id);
            CHECK(raft_configuration_add(&configuration, id, address,
                                         id <= VOTERS ? RAFT_VOTER : RAFT_STANDBY) == 0);
        }
        CHECK(raft_bootstrap(&node->raft, &configuration) == 0);
        raft_configuration_close(&configuration);
    }
    CHECK(raft_start(&node->raft) == 0);
    raft_set_heartbeat_timeout(&node->raft, 2);
    node->up = true;
    end_turn(node);
}

static void on_closed(struct raft *raft)
{
    (void)raft;
}

static void node_down(struct cluster_node *node)
{
    const struct guard_stats *stats = guard_stats(node->guard);
    node->cluster->cures += stats->commits_held + stats->messages_split + stats->snapshots_refused +
                            stats->snapshots_spared + stats->terms_corrected;
    node->up = false;
    fake_disk_crash(node->disk);
    raft_close(&node->raft, on_closed);
    guard_destroy(node->guard);
}

static struct cluster_node *leader_of(struct cluster *cluster)
{
    struct cluster_node *leader = NULL;
    for (unsigned id = 1; id <= NODES; id++) {
        struct cluster_node *node = &cluster->nodes[id];
        if (node->up && raft_state(&node->raft) == RAFT_LEADER &&
            (leader == NULL || raft_current_term(&node->raft) > raft_current_term(&leader->raft))) {
            leader = node;
        }
    }
    return leader;
}

static void on_applied(struct raft_apply *request, int status, void *result)
{
    (void)status;
    (void)result;
    free(request);
}

static void propose(struct cluster *cluster)
{
    for (unsigned id = 1; id <= NODES; id++) {
        struct cluster_node *node = &cluster->nodes[id];
        if (!node->up || raft_state(&node->raft) != RAFT_LEADER) {
            continue;
        }
        for (uint64_t count = 1 + rng_below(&cluster->rng, 3); count > 0; count--) {
            struct raft_apply *request = calloc(1, sizeof(*request));
            struct raft_buffer buf = {.len = 8, .base = raft_malloc(8)};
            CHECK(request != NULL && buf.base != NULL);
            cluster->proposed++;
            memcpy(buf.base, &cluster->proposed, 8);
            if (raft_apply(&node->raft, request, &buf, 1, on_applied) != 0) {
                free(request);
                raft_free(buf.base);
            }
        }
        end_turn(node);
    }
}

static void on_changed(struct raft_change *request, int status)
{
    (void)status;
    free(request);
}

/* Node 4 goes back and forth between standby and spare: configurations in the log, no voters. */
static void change_role(struct cluster *cluster)
{
    struct cluster_node *leader = leader_of(cluster);
    if (leader == NULL) {
        return;
    }
    struct raft_change *request = calloc(1, sizeof(*request));
    CHECK(request != NULL);
    int role = rng_chance(&cluster->rng, 500) ? RAFT_STANDBY : RAFT_SPARE;
    if (guard_assign(leader->guard, request, 4, role, on_changed) != 0) {
        free(request);
    }
    end_turn(leader);
}

static void do_harm(struct cluster *cluster)
{
    struct cluster_node *node = &cluster->nodes[1 + rng_below(&cluster->rng, NODES)];
    uint64_t other = 1 + rng_below(&cluster->rng, NODES);
    uint64_t delay_ns;
    switch (rng_below(&cluster->rng, 7)) {
    case 0:
    case 1:
        if (node->up) {
            cluster->crashes++;
            node_down(node);
        }
        break;
    case 2:
    case 3:
        for (unsigned id = 1; id <= NODES; id++) {
            if (!cluster->nodes[id].up) {
                node_boot(&cluster->nodes[id], false);
                break;
            }
        }
        break;
    case 4:
        cluster->cut[node->id][other] = true;
        cluster->cut[other][node->id] = rng_chance(&cluster->rng, 700);
        break;
    case 5:
        if (node->up && guard_leader_link_lost(node->guard, other, &delay_ns)) {
            guard_campaign(node->guard);
            end_turn(node);
        }
        break;
    default:
        memset(cluster->cut, 0, sizeof(cluster->cut));
        break;
    }
}

static void run_until(struct cluster *cluster, uint64_t until_ns)
{
    while (fake_clock_step(&cluster->clock, until_ns)) {
        for (unsigned id = 1; id <= NODES; id++) {
            end_turn(&cluster->nodes[id]);
        }
    }
}

/* --- a run --------------------------------------------------------------------------------- */

static void storm(struct cluster *cluster)
{
    uint64_t end_ns = cluster->clock.now_ns + STORM_NS;
    uint64_t next_harm_ns = cluster->clock.now_ns + 500 * NS_PER_MS;
    uint64_t next_change_ns = cluster->clock.now_ns + 300 * NS_PER_MS;
    while (cluster->clock.now_ns < end_ns) {
        run_until(cluster, cluster->clock.now_ns + (3 + rng_below(&cluster->rng, 15)) * NS_PER_MS);
        propose(cluster);
        if (cluster->clock.now_ns >= next_harm_ns) {
            do_harm(cluster);
            next_harm_ns = cluster->clock.now_ns + (60 + rng_below(&cluster->rng, 300)) * NS_PER_MS;
        }
        if (cluster->clock.now_ns >= next_change_ns) {
            change_role(cluster);
            next_change_ns =
                cluster->clock.now_ns + (50 + rng_below(&cluster->rng, 200)) * NS_PER_MS;
        }
    }
}

/* Everything is repaired: a leader, and the same state on all who keep the log. */
static void heal(struct cluster *cluster)
{
    memset(cluster->cut, 0, sizeof(cluster->cut));
    cluster->loss_per_mille = 0;
    for (unsigned id = 1; id <= NODES; id++) {
        if (!cluster->nodes[id].up) {
            node_boot(&cluster->nodes[id], false);
        }
    }
    run_until(cluster, cluster->clock.now_ns + HEALING_NS);
    struct cluster_node *leader = leader_of(cluster);
    judge(cluster, leader != NULL, "no leader after healing", 0);
    raft_index before = raft_commit_index(&leader->raft);
    propose(cluster);
    run_until(cluster, cluster->clock.now_ns + 500 * NS_PER_MS);
    leader = leader_of(cluster);
    judge(cluster, leader != NULL, "no leader after healing", 0);
    judge(cluster, raft_commit_index(&leader->raft) > before, "nothing commits", leader->id);
    for (unsigned idx = 0; idx < leader->raft.configuration.n; idx++) {
        const struct raft_server *server = &leader->raft.configuration.servers[idx];
        struct cluster_node *node = &cluster->nodes[server->id];
        if (server->role == RAFT_SPARE) {
            continue;
        }
        judge(cluster, raft_last_applied(&node->raft) == raft_last_applied(&leader->raft),
              "lags after healing", node->id);
        judge(cluster, node->state.sum == leader->state.sum, "differs after healing", node->id);
        judge(cluster,
              node->raft.configuration_committed_index ==
                      leader->raft.configuration_committed_index &&
                  node->raft.configuration_uncommitted_index == 0,
              "believes in another configuration", node->id);
    }
}

struct tally {
    uint64_t crashes;
    uint64_t snapshots_sent;
    uint64_t cures;
    uint64_t applied;
};

static void drop_parcels(struct cluster *cluster)
{
    for (unsigned id = 1; id <= NODES; id++) {
        if (cluster->nodes[id].up) {
            node_down(&cluster->nodes[id]);
        }
    }
    /* Nobody is up: what is under way arrives nowhere, and what the disks had planned ends. */
    while (fake_clock_step(&cluster->clock, UINT64_MAX)) {
    }
}

static void run_seed(uint64_t seed, struct tally *tally)
{
    struct cluster *cluster = calloc(1, sizeof(*cluster));
    CHECK(cluster != NULL);
    cluster->seed = seed;
    rng_init(&cluster->rng, seed);
    fake_clock_init(&cluster->clock, START_NS);
    cluster->loss_per_mille = (unsigned)rng_below(&cluster->rng, 15);
    const struct fake_disk_env env = {
        .ctx = cluster, .now_ns = env_now, .schedule = env_schedule, .random = env_random};
    for (unsigned id = 1; id <= NODES; id++) {
        struct cluster_node *node = &cluster->nodes[id];
        node->cluster = cluster;
        node->id = id;
        node->disk = fake_disk_create(&env);
        const struct fake_disk_timing timing = {.append_ns_min = NS_PER_MS / 2,
                                                .append_ns_max = 8 * NS_PER_MS,
                                                .snapshot_ns_min = 5 * NS_PER_MS,
                                                .snapshot_ns_max = 60 * NS_PER_MS};
        fake_disk_set_timing(node->disk, &timing);
        node_boot(node, true);
    }
    storm(cluster);
    heal(cluster);
    tally->crashes += cluster->crashes;
    tally->snapshots_sent += cluster->snapshots_sent;
    tally->applied += cluster->highest;
    drop_parcels(cluster);
    tally->cures += cluster->cures;
    for (unsigned id = 1; id <= NODES; id++) {
        fake_disk_destroy(cluster->nodes[id].disk);
    }
    fake_clock_deinit(&cluster->clock);
    free(cluster);
}

static void test_guard__replicas_agree_whatever_happens(void **state)
{
    const uint64_t *only = *state;
    struct tally tally = {0};
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        run_seed(only != NULL ? *only : seed, &tally);
        if (only != NULL) {
            return;
        }
    }
    print_message("%u seeds: %llu entries, %llu crashes, %llu snapshots sent, %llu cures at work\n",
                  SEEDS, (unsigned long long)tally.applied, (unsigned long long)tally.crashes,
                  (unsigned long long)tally.snapshots_sent, (unsigned long long)tally.cures);
    /* A run in which nothing happens proves nothing. */
    assert_true(tally.applied > SEEDS * 100 && tally.crashes > SEEDS * 2);
    assert_true(tally.snapshots_sent > SEEDS && tally.cures > SEEDS);
}

int main(int argc, char **argv)
{
    uint64_t only = argc > 1 ? strtoull(argv[1], NULL, 10) : 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(test_guard__replicas_agree_whatever_happens,
                                  argc > 1 ? &only : NULL),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
