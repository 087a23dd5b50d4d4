/* The replica's life and its turn.
 *
 *   EMPTY --init or join--> RUNNING --close--> CLOSED
 *                              |
 *                              +--fail-stop--> FAILED --close--> CLOSED
 *
 * A founder's node id is the beginning of its cluster's id, so that a node which died between
 * writing its identity and its first log entry knows after the restart that it still has to write
 * that entry; every other node without a log waits to be admitted. */
#include "raft/replica_internal.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "fsm/base/check.h"
#include "fsm/snapshot.h"

#define TICK_MS_DEFAULT 50u
#define ELECTION_MS_DEFAULT 500u
#define SNAPSHOT_ENTRIES_DEFAULT 8192u

/* The log in memory stays below 16 MiB: what was added since the last snapshot, and what trails
 * behind it (rule 14). */
#define SNAPSHOT_BYTES_DEFAULT (8u * 1024u * 1024u)
#define TRAILING_BYTES (8u * 1024u * 1024u)
#define TRAILING_ENTRIES_MIN 256u
#define TRAILING_ENTRIES_MAX 8192u
#define ENTRIES_FOR_MEAN 32u /* before their mean length is believed */

#define WHY_LEN 256u /* of replica_open's text */

static void config_default(struct replica_config *config);
static enum status open_disk(struct replica *replica, char *out_why);
static enum status start(struct replica *replica, bool bootstrap, char *out_why);
static enum status start_disk(struct replica *replica, bool *bootstrap, struct raft_io **out_io,
                              char *out_why);
static enum status start_raft(struct replica *replica, bool bootstrap, char *out_why);
static void raft_settings(struct replica *replica);
static enum status verify_entry(void *ctx, struct slice bytes, struct disk_detail *out_why);
static enum status verify_snapshot(void *ctx, struct slice bytes, struct disk_detail *out_why);
static bool founder(const struct disk_identity *identity);
static void on_guard_fatal(void *ctx, enum status status, const char *detail);
static void on_disk_failure(void *ctx, enum status status, const char *detail);
static void on_disk_report(void *ctx, const char *line);
static void close_begin(struct replica *replica);
static void on_raft_closed(struct raft *raft);
static void on_disk_closed(void *ctx);
static void fire_completed(struct replica *replica);
static void disk_turn(struct replica *replica, uint64_t now_ns);
static void snapshot_turn(struct replica *replica);
static unsigned trailing_entries(const struct replica_config *config, uint64_t entry_len);
static void view_turn(struct replica *replica);
static void abandon(struct replica *replica);

/* --- life */

enum status replica_open(const struct replica_config *config,
                         const struct replica_callbacks *callbacks, char *out_why,
                         struct replica **out_replica)
{
    CHECK((config->backend == NULL) != (config->dir == NULL));
    struct replica *replica = calloc(1, sizeof *replica);
    CHECK(replica != NULL);
    replica->config = *config;
    config_default(&replica->config);
    replica->callbacks = *callbacks;
    replica->state = REPLICA_STATE_EMPTY;
    replica_entries_init(replica);
    read_index_init(&replica->reads);
    list_init(&replica->applied_waits);
    buf_init(&replica->scratch_message, MESSAGE_PEER_LEN_MAX);
    replica->transfer_number = replica_now(replica);

    enum status status = STATUS_OK;
    if (config->backend != NULL) {
        replica->identity.node_id = config->backend_node_id;
        replica->identity.cluster = config->backend_identity;
    } else {
        status = open_disk(replica, out_why);
    }
    if (status == STATUS_OK && replica->identity.node_id != 0) {
        status = start(replica, false, out_why);
    }
    if (status != STATUS_OK) {
        if (!replica->raft_started && replica->guard == NULL) {
            if (replica->disk != NULL) {
                disk_close(replica->disk, NULL, NULL);
            }
            replica->state = REPLICA_STATE_CLOSED;
            replica_destroy(replica);
        }
        return status;
    }
    *out_replica = replica;
    return STATUS_OK;
}

void replica_close(struct replica *replica, replica_close_cb cb, void *ctx)
{
    CHECK(!replica->closing && replica->state != REPLICA_STATE_CLOSED);
    replica->closing = true;
    replica->close_cb = cb;
    replica->close_ctx = ctx;
    replica_enter(replica);
    replica_leave(replica);
}

void replica_destroy(struct replica *replica)
{
    CHECK(replica->state == REPLICA_STATE_CLOSED && replica->depth == 0);
    if (replica->guard != NULL) {
        return; /* it failed: libraft's handles may still point here until the process ends */
    }
    replica_entries_deinit(replica);
    replica_links_deinit(replica);
    buf_deinit(&replica->scratch_message);
    free(replica);
}

enum status replica_init_cluster(struct replica *replica, uint64_t token_floor,
                                 const uint8_t random[40])
{
    if (replica->state != REPLICA_STATE_EMPTY) {
        return STATUS_BUSY;
    }
    struct disk_identity identity = {.cluster = {.generation = 1}};
    memcpy(identity.cluster.id, random, CLUSTER_ID_LEN);
    memcpy(&identity.cluster.generation_random, random + CLUSTER_ID_LEN, 8);
    memcpy(&identity.node_id, random, sizeof identity.node_id);
    if (identity.node_id == 0) {
        identity.cluster.id[0] = 1;
        memcpy(&identity.node_id, identity.cluster.id, sizeof identity.node_id);
    }
    replica->config.birth_token_floor = token_floor;
    struct disk_detail detail = {""};
    if (replica->disk != NULL) {
        enum status status = disk_identity_store(replica->disk, &identity, &detail);
        if (status != STATUS_OK) {
            replica_log(replica, 0, "event=init_failed status=%s detail=\"%s\"",
                        status_name(status), detail.text);
            return status;
        }
    }
    replica->identity = identity;
    char why[WHY_LEN];
    enum status status = start(replica, true, why);
    if (status != STATUS_OK) {
        replica_log(replica, 0, "event=init_failed status=%s detail=\"%s\"", status_name(status),
                    why);
    }
    return status;
}

enum status replica_join_cluster(struct replica *replica, const struct cluster_identity *cluster,
                                 uint64_t node_id)
{
    if (replica->state != REPLICA_STATE_EMPTY) {
        return STATUS_BUSY;
    }
    struct disk_identity identity = {.cluster = *cluster, .node_id = node_id};
    if (node_id == 0 || founder(&identity)) {
        return STATUS_INVALID;
    }
    struct disk_detail detail = {""};
    if (replica->disk != NULL) {
        enum status status = disk_identity_store(replica->disk, &identity, &detail);
        if (status != STATUS_OK) {
            replica_log(replica, 0, "event=join_failed status=%s detail=\"%s\"",
                        status_name(status), detail.text);
            return status;
        }
    }
    replica->identity = identity;
    char why[WHY_LEN];
    enum status status = start(replica, false, why);
    if (status != STATUS_OK) {
        replica_log(replica, 0, "event=join_failed status=%s detail=\"%s\"", status_name(status),
                    why);
    }
    return status;
}

static void config_default(struct replica_config *config)
{
    if (config->tick_ms == 0) {
        config->tick_ms = TICK_MS_DEFAULT;
    }
    if (config->election_ms == 0) {
        config->election_ms = ELECTION_MS_DEFAULT;
    }
    if (config->voters_wanted == 0) {
        config->voters_wanted = REPLICA_VOTERS_WANTED_DEFAULT;
    }
    if (config->snapshot_entries == 0) {
        config->snapshot_entries = SNAPSHOT_ENTRIES_DEFAULT;
    }
    if (config->snapshot_bytes == 0) {
        config->snapshot_bytes = SNAPSHOT_BYTES_DEFAULT;
    }
    if (config->reserve_len == 0) {
        config->reserve_len = DISK_RESERVE_LEN;
    }
}

static bool founder(const struct disk_identity *identity)
{
    return memcmp(&identity->node_id, identity->cluster.id, sizeof identity->node_id) == 0;
}

/* --- start */

static enum status open_disk(struct replica *replica, char *out_why)
{
    struct disk_detail detail = {""};
    enum status status = disk_open(replica->config.dir, &replica->disk, &detail);
    if (status == STATUS_OK) {
        status = disk_identity_load(replica->disk, &replica->identity, &detail);
        if (status == STATUS_UNINITIALISED) {
            replica->identity.node_id = 0;
            return STATUS_OK;
        }
    }
    if (status != STATUS_OK) {
        (void)snprintf(out_why, WHY_LEN, "%.*s", (int)(WHY_LEN - 1), detail.text);
    }
    return status;
}

static enum status start(struct replica *replica, bool bootstrap, char *out_why)
{
    int len = snprintf(replica->address, sizeof replica->address, "%" PRIu64,
                       replica->identity.node_id);
    CHECK(len > 0 && (size_t)len < sizeof replica->address);

    struct raft_io *io = replica->config.backend;
    if (replica->disk != NULL) {
        enum status status = start_disk(replica, &bootstrap, &io, out_why);
        if (status != STATUS_OK) {
            return status;
        }
    }
    struct guard_options options;
    guard_options_init(&options);
    options.on_send = replica_links_on_send;
    options.on_fatal = on_guard_fatal;
    options.ctx = replica;
    replica->guard = guard_create(io, &options);

    struct fsm_adapter_hooks hooks;
    replica_entries_hooks(replica, &hooks);
    fsm_adapter_init(&replica->adapter, &replica->raft, &hooks);
    replica->opening = true;
    enum status status = start_raft(replica, bootstrap, out_why);
    replica->opening = false;
    return status;
}

static enum status start_disk(struct replica *replica, bool *bootstrap, struct raft_io **out_io,
                              char *out_why)
{
    struct disk_detail detail = {""};
    struct disk_state state = {0};
    struct command_decoder *decoder = command_decoder_create();
    struct disk_check_options check = {
        .verify_entry = verify_entry,
        .verify_snapshot = verify_snapshot,
        .on_report = on_disk_report,
        .ctx = replica,
    };
    replica->adapter.decoder = decoder; /* for verify_entry, until the adapter has its own */
    enum status status = disk_verify(replica->disk, &check, &state, &detail);
    replica->adapter.decoder = NULL;
    command_decoder_destroy(decoder);
    if (status == STATUS_OK) {
        if (founder(&replica->identity) && state.term == 0 && state.last_index == 0) {
            *bootstrap = true;
        }
        struct disk_options options;
        disk_options_init(&options);
        options.on_failure = on_disk_failure;
        options.on_report = on_disk_report;
        options.ctx = replica;
        options.reserve_len = replica->config.reserve_len;
        status = disk_start(replica->disk, replica->config.loop, &options, out_io, &detail);
    }
    if (status != STATUS_OK) {
        (void)snprintf(out_why, WHY_LEN, "%.*s", (int)(WHY_LEN - 1), detail.text);
    }
    return status;
}

static enum status start_raft(struct replica *replica, bool bootstrap, char *out_why)
{
    struct raft *raft = &replica->raft;
    int rv = raft_init(raft, guard_io(replica->guard), &replica->adapter.raft_fsm,
                       replica->identity.node_id, replica->address);
    if (rv == 0) {
        raft_settings(replica);
        if (bootstrap) {
            struct raft_configuration configuration;
            raft_configuration_init(&configuration);
            rv = raft_configuration_add(&configuration, replica->identity.node_id,
                                        replica->address, RAFT_VOTER);
            if (rv == 0) {
                rv = raft_bootstrap(raft, &configuration);
            }
            raft_configuration_close(&configuration);
        }
    }
    if (rv == 0) {
        rv = raft_start(raft);
    }
    if (rv != 0 || guard_failed(replica->guard)) {
        /* What an in-process caller can't free here it keeps: libraft closes asynchronously. The
         * files were checked before, so that this is a disk that fails in this very moment. */
        bool known = replica->opening_status != STATUS_OK;
        (void)snprintf(out_why, WHY_LEN, "%.*s", (int)(WHY_LEN - 1),
                       known ? replica->opening_detail : raft->errmsg);
        return known ? replica->opening_status : status_from_raft(rv);
    }
    raft_set_heartbeat_timeout(raft, REPLICA_HEARTBEAT_MS);
    replica->raft_started = true;
    replica->state = REPLICA_STATE_RUNNING;
    return STATUS_OK;
}

static void raft_settings(struct replica *replica)
{
    const struct replica_config *config = &replica->config;
    struct raft *raft = &replica->raft;
    raft->data = replica;
    raft->tracer = NULL; /* the default one formats every step, read or not */
    raft_set_pre_vote(raft, true);
    raft_set_heartbeat_timeout(raft, config->tick_ms); /* raft_start makes it the tick */
    raft_set_election_timeout(raft, config->election_ms);
    raft_set_max_inflight_entries(raft, MESSAGE_ENTRIES_MAX);
    raft_set_max_catch_up_round_duration(raft, REPLICA_CATCH_UP_MS);
    raft_set_snapshot_threshold(raft, (unsigned)min_u64(config->snapshot_entries, UINT32_MAX));
    raft_set_snapshot_trailing(raft, trailing_entries(config, 1));
    if (config->seed != 0) {
        raft_seed(raft, (unsigned)config->seed);
    }
}

static enum status verify_entry(void *ctx, struct slice bytes, struct disk_detail *out_why)
{
    struct replica *replica = ctx;
    struct entry entry;
    uint32_t version = 0;
    enum status status = entry_decode(replica->adapter.decoder, bytes, &entry, &version);
    if (status == STATUS_INCOMPATIBLE) {
        (void)snprintf(out_why->text, sizeof out_why->text,
                       "an entry has format version %" PRIu32 ", this node knows version %u",
                       version, ENTRY_FORMAT_VERSION);
    } else if (status != STATUS_OK) {
        (void)snprintf(out_why->text, sizeof out_why->text, "an entry can't be decoded");
    }
    return status;
}

static enum status verify_snapshot(void *ctx, struct slice bytes, struct disk_detail *out_why)
{
    (void)ctx;
    struct fsm *fsm = NULL;
    uint32_t version = 0;
    const char *why = "";
    enum status status = snapshot_decode(bytes, &fsm, &version, &why);
    if (status == STATUS_OK) {
        fsm_destroy(fsm);
    } else if (status == STATUS_INCOMPATIBLE) {
        (void)snprintf(out_why->text, sizeof out_why->text,
                       "the snapshot has format version %" PRIu32 ", this node knows version %u",
                       version, SNAPSHOT_FORMAT_VERSION);
    } else {
        (void)snprintf(out_why->text, sizeof out_why->text, "%s", why);
    }
    return status;
}

/* --- failing and closing */

static void on_guard_fatal(void *ctx, enum status status, const char *detail)
{
    struct replica *replica = ctx;
    if (replica->state == REPLICA_STATE_RUNNING) {
        replica->state = REPLICA_STATE_FAILED;
    }
    if (replica->opening) {
        replica->opening_status = status;
        (void)snprintf(replica->opening_detail, sizeof replica->opening_detail, "%s", detail);
        return;
    }
    replica->callbacks.on_fatal(replica->callbacks.ctx, status, detail);
}

static void on_disk_failure(void *ctx, enum status status, const char *detail)
{
    struct replica *replica = ctx;
    if (replica->guard != NULL) {
        guard_fail(replica->guard, status, detail);
    }
}

static void on_disk_report(void *ctx, const char *line)
{
    struct replica *replica = ctx;
    replica->callbacks.on_log(replica->callbacks.ctx, 1, line);
}

/* Everything that waits ends before libraft closes; what is in flight ends inside raft_close. */
static void close_begin(struct replica *replica)
{
    replica->close_begun = true;
    replica_entries_drop_waiting(replica, STATUS_CLOSING);
    replica_reads_drop_rounds(replica, STATUS_CLOSING);
    replica_reads_drop_waits(replica, STATUS_CLOSING);
    bool failed = replica->state == REPLICA_STATE_FAILED;
    if (failed && replica->disk != NULL) {
        /* Nothing of libraft is called any more; memory and lock stay until the process ends. */
        abandon(replica);
        replica->state = REPLICA_STATE_CLOSED;
        replica->close_cb(replica->close_ctx);
        return;
    }
    if (replica->guard != NULL) {
        replica_links_drop_transfers(replica);
        raft_close(&replica->raft, on_raft_closed);
        return;
    }
    if (replica->disk != NULL) {
        disk_close(replica->disk, on_disk_closed, replica);
        return;
    }
    on_disk_closed(replica);
}

static void on_raft_closed(struct raft *raft)
{
    struct replica *replica = raft->data;
    replica_members_abandon(replica);
    fsm_adapter_deinit(&replica->adapter);
    guard_destroy(replica->guard);
    replica->guard = NULL;
    if (replica->disk != NULL) {
        disk_close(replica->disk, on_disk_closed, replica);
        return;
    }
    on_disk_closed(replica);
}

static void on_disk_closed(void *ctx)
{
    struct replica *replica = ctx;
    replica->disk = NULL;
    replica->state = REPLICA_STATE_CLOSED;
    replica->close_cb(replica->close_ctx);
}

/* --- the turn */

void replica_turn(struct replica *replica, uint64_t now_ns)
{
    if (replica->closing || replica->depth > 0) {
        return;
    }
    replica->now_ns = max_u64(replica->now_ns, now_ns);
    now_ns = replica->now_ns;
    replica_enter(replica);
    if (replica_running(replica)) {
        fire_completed(replica);
        replica_entries_role(replica, now_ns);
        replica_members_turn(replica, now_ns);
        replica_reads_turn(replica, now_ns);
        replica_entries_turn(replica, now_ns);
        replica_links_turn(replica, now_ns);
    }
    if (replica_running(replica)) {
        (void)guard_notify_commit(replica->guard);
        guard_end_turn(replica->guard);
        snapshot_turn(replica);
        disk_turn(replica, now_ns);
    }
    if (replica->state == REPLICA_STATE_FAILED) {
        abandon(replica);
    }
    view_turn(replica);
    replica_leave(replica);
}

uint64_t replica_next_timer_ns(const struct replica *replica)
{
    if (!replica_running(replica) || replica->closing) {
        return UINT64_MAX;
    }
    uint64_t next = replica_entries_timer_ns(replica);
    next = min_u64(next, replica_reads_timer_ns(replica));
    next = min_u64(next, replica_members_timer_ns(replica));
    return min_u64(next, replica_links_timer_ns(replica));
}

bool replica_running(const struct replica *replica)
{
    return replica->state == REPLICA_STATE_RUNNING && !replica->close_begun &&
           !guard_failed(replica->guard);
}

void replica_enter(struct replica *replica)
{
    replica->depth++;
}

void replica_leave(struct replica *replica)
{
    CHECK(replica->depth > 0);
    replica->depth--;
    if (replica->depth == 0 && replica->closing && !replica->close_begun) {
        close_begin(replica);
    }
}

uint64_t replica_now(struct replica *replica)
{
    uint64_t now_ns = replica->callbacks.now_ns(replica->callbacks.ctx);
    replica->now_ns = max_u64(replica->now_ns, now_ns);
    return replica->now_ns;
}

void replica_log(struct replica *replica, int level, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    replica->callbacks.on_log(replica->callbacks.ctx, level, text);
}

/* Call back for what libraft has completed. raft_uv does it too, from handles of its own, but before
 * or after our turn as it happens; and a backend of the simulator does not. The function that
 * libraft has for it is hidden in its shared object, the queue is not: a ring of requests, each with
 * its links in `queue` and the kind of request in `type`. */
static void fire_completed(struct replica *replica)
{
    void **ring = replica->raft.legacy.requests;
    while (ring[0] != ring && replica_running(replica)) {
        void **links = ring[0];
        void **next = links[0];
        ring[0] = next;
        next[1] = ring;
        struct raft_apply *request = CONTAINER_OF(links, struct raft_apply, queue);
        if (request->type == RAFT_COMMAND) {
            request->cb(request, request->status, request->result);
        } else if (request->type == RAFT_CHANGE) {
            struct raft_change *change = CONTAINER_OF(links, struct raft_change, queue);
            change->cb(change, change->status);
        } else {
            /* A transfer: barriers of the request kind are not used. */
            CHECK(request->type == RAFT_CHANGE + 1);
            struct raft_transfer *transfer = CONTAINER_OF(links, struct raft_transfer, queue);
            transfer->cb(transfer);
        }
    }
}

static void disk_turn(struct replica *replica, uint64_t now_ns)
{
    if (replica->disk == NULL) {
        return;
    }
    disk_note_durable(replica->disk, guard_durable_index(replica->guard));
    if (now_ns < replica->watched_ns + ms_to_ns(replica->config.tick_ms)) {
        return;
    }
    replica->watched_ns = now_ns;
    disk_tick(replica->disk, now_ns, guard_pending_entries(replica->guard) > 0);
    if (replica_running(replica)) {
        guard_watch(replica->guard, now_ns, disk_oldest_write(replica->disk));
    }
}

/* Threshold and trailing are counted in entries by libraft; we want bytes as well. */
static void snapshot_turn(struct replica *replica)
{
    const struct fsm_adapter *adapter = &replica->adapter;
    bool full = adapter->bytes_since_snapshot >= replica->config.snapshot_bytes;
    uint64_t threshold = full ? 1 : replica->config.snapshot_entries;
    raft_set_snapshot_threshold(&replica->raft, (unsigned)min_u64(threshold, UINT32_MAX));
    if (adapter->entries_since_snapshot >= ENTRIES_FOR_MEAN) {
        uint64_t entry_len = adapter->bytes_since_snapshot / adapter->entries_since_snapshot;
        raft_set_snapshot_trailing(&replica->raft,
                                   trailing_entries(&replica->config, entry_len));
    }
}

/* As many as fit, but not more than lie between two snapshots, and never so few that a follower
 * which was away for a moment needs a snapshot. */
static unsigned trailing_entries(const struct replica_config *config, uint64_t entry_len)
{
    uint64_t entries = TRAILING_BYTES / max_u64(1, entry_len);
    entries = min_u64(entries, min_u64(config->snapshot_entries, TRAILING_ENTRIES_MAX));
    return (unsigned)max_u64(entries, TRAILING_ENTRIES_MIN);
}

/* Fail-stop: nobody will answer for what is pending. */
static void abandon(struct replica *replica)
{
    replica_entries_abandon(replica);
    replica_reads_drop_rounds(replica, STATUS_NOT_LEADER);
    replica_reads_drop_waits(replica, STATUS_CLOSING);
    replica_members_abandon(replica);
}

/* --- view */

void replica_view(const struct replica *replica, struct replica_view *out_view)
{
    const struct raft *raft = &replica->raft;
    *out_view = (struct replica_view){
        .state = replica->close_begun ? REPLICA_STATE_CLOSED : replica->state,
        .node_id = replica->identity.node_id,
        .identity = replica->identity.cluster,
    };
    if (out_view->state != REPLICA_STATE_RUNNING) {
        return;
    }
    for (unsigned i = 0; i < raft->configuration.n; i++) {
        if (raft->configuration.servers[i].id == raft->id) {
            out_view->role = replica_role_from_raft(raft->configuration.servers[i].role);
        }
    }
    out_view->leader = raft->state == RAFT_LEADER;
    out_view->serving =
        out_view->leader && replica->lead.serving && replica->lead.term == raft->current_term;
    out_view->transferring = raft_transferee(raft) != 0;
    out_view->term = raft->current_term;
    out_view->commit_index = raft->commit_index;
    out_view->applied_index = raft->last_applied;
    /* Its prototype has forgotten a const. */
    out_view->last_index = raft_last_index((struct raft *)(uintptr_t)raft);
    out_view->disk_full =
        replica->disk_full || (replica->disk != NULL && disk_low(replica->disk));
    if (out_view->leader) {
        out_view->leader_id = out_view->transferring ? 0 : replica->identity.node_id;
        out_view->clock_lost_ms =
            out_view->serving ? ns_to_ms_floor(replica->lead.clock.lost_ns) : 0;
    } else if (raft->state == RAFT_FOLLOWER) {
        /* libraft clears the hint of voters only, when their timer fires (rule 21). */
        uint64_t leader_id = raft->follower_state.current_leader.id;
        out_view->leader_id = replica_links_up(replica, leader_id) ? leader_id : 0;
    }
}

void replica_stats(const struct replica *replica, struct replica_stats *out_stats)
{
    *out_stats = replica->stats;
    if (replica->guard == NULL) {
        return;
    }
    const struct guard_stats *guard = guard_stats(replica->guard);
    out_stats->snapshots_taken = replica->adapter.snapshots_taken;
    out_stats->guard_cures = guard->commits_held + guard->messages_split +
                             guard->snapshots_refused + guard->snapshots_spared +
                             guard->terms_corrected + guard->snapshots_unread;
}

const struct fsm *replica_fsm(const struct replica *replica)
{
    return replica_running(replica) ? replica->adapter.fsm : NULL;
}

/* Call on_view when something changed that others act upon; indexes move all the time. */
static void view_turn(struct replica *replica)
{
    struct replica_view view;
    replica_view(replica, &view);
    uint64_t configuration = replica->raft_started ? replica->raft.configuration_committed_index +
                                                         replica->raft.configuration_uncommitted_index
                                                   : 0;
    const struct replica_view *told = &replica->told;
    bool same = view.state == told->state && view.node_id == told->node_id &&
                view.role == told->role && view.leader == told->leader &&
                view.serving == told->serving && view.transferring == told->transferring &&
                view.term == told->term && view.leader_id == told->leader_id &&
                view.disk_full == told->disk_full && configuration == replica->told_configuration;
    if (same) {
        return;
    }
    if (view.role != told->role || view.leader != told->leader || view.serving != told->serving) {
        static const char *const roles[] = {"none", "spare", "standby", "voter"};
        replica_log(replica, 2, "event=role role=%s leader=%d serving=%d term=%" PRIu64,
                    roles[view.role], view.leader, view.serving, view.term);
    }
    replica->told = view;
    replica->told_configuration = configuration;
    replica->callbacks.on_view(replica->callbacks.ctx);
}
