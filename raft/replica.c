/* The replica's life: start, fail-stop, close.
 *
 *   EMPTY --init or join--> RUNNING --close--> CLOSED
 *     |                        |
 *     +--start failed--+       +--fail-stop--> FAILED --close--> CLOSED
 *                      +-----------------------^
 *
 * A start that failed has run no turn of the loop, so that no write can have failed half way and
 * libraft may still be closed in order; after a later fail-stop it may not be touched.
 *
 * A founder's node id is the beginning of its cluster's id, so that a node which died between
 * writing its identity and its first log entry knows after the restart that it still has to write
 * that entry; every other node without a log waits to be admitted. What the cluster was asked to be
 * stands in the identity too: written at once, there is no moment in which one is on disk without
 * the other. It holds until the birth is in the log, behind libraft's first entry. */
#include "raft/replica_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "fsm/base/check.h"
#include "fsm/snapshot.h"

#define TICK_MS_DEFAULT 50u
#define ELECTION_MS_DEFAULT 500u
#define SNAPSHOT_ENTRIES_DEFAULT 8192u

/* The log in memory stays below 16 MiB: what was added since the last snapshot, and what trails
 * behind it. */
#define SNAPSHOT_BYTES_DEFAULT (8u * 1024u * 1024u)
#define TRAILING_BYTES (8u * 1024u * 1024u)
#define TRAILING_ENTRIES_MIN 256u
#define TRAILING_ENTRIES_MAX 8192u

/* The log of a founder that has written libraft's configuration and not yet the birth. */
#define UNBORN_INDEX_MAX 1u

#define WHY_LEN 256u /* of replica_open's text */

static enum status become(struct replica *replica, const struct disk_identity *identity,
                          const char *what);
static void config_default(struct replica_config *config);
static enum status open_disk(struct replica *replica, char *out_why);
static enum status start(struct replica *replica, bool bootstrap, char *out_why);
static enum status start_disk(struct replica *replica, bool *bootstrap, struct raft_io **out_io,
                              char *out_why);
static enum status start_raft(struct replica *replica, bool bootstrap, char *out_why);
static enum status start_or_stop(struct replica *replica, bool bootstrap);
static void start_failed(struct replica *replica, enum status status, const char *why);
static void raft_settings(struct replica *replica);
static enum status verify_entry(void *ctx, struct slice bytes, struct disk_detail *out_why);
static enum status verify_snapshot(void *ctx, struct slice bytes, struct disk_detail *out_why);
static bool founder(const struct disk_identity *identity);
static enum status birth_prepare(struct replica *replica, const struct disk_state *state,
                                 struct disk_detail *out_detail);
static void on_guard_fatal(void *ctx, enum status status, const char *detail);
static void on_disk_failure(void *ctx, enum status status, const char *detail);
static void on_disk_report(void *ctx, const char *line);
static void on_raft_closed(struct raft *raft);
static void on_disk_closed(void *ctx);

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
        replica->identity.founding.voters = replica->config.voters_wanted;
        replica->birth_due = founder(&replica->identity);
    } else {
        status = open_disk(replica, out_why);
    }
    if (status == STATUS_OK && replica->identity.node_id != 0) {
        status = start(replica, false, out_why);
    }
    if (status != STATUS_OK && replica->guard == NULL && !replica->disk_started) {
        if (replica->disk != NULL) {
            disk_close(replica->disk, NULL, NULL);
        }
        replica->state = REPLICA_STATE_CLOSED;
        replica_destroy(replica);
        replica = NULL;
    }
    *out_replica = replica;
    return status;
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
                                 uint64_t voters_wanted, const uint8_t random[40])
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
    identity.founding = (struct disk_founding){
        .voters = voters_wanted != 0 ? voters_wanted : replica->config.voters_wanted,
        .token_floor = token_floor,
    };
    struct op birth = replica_birth_op(&identity);
    struct violation violation;
    if (op_validate(&birth, &violation) != STATUS_OK) {
        return STATUS_INVALID;
    }
    enum status status = become(replica, &identity, "init");
    if (status != STATUS_OK) {
        return status;
    }
    replica->config.voters_wanted = (unsigned)identity.founding.voters;
    replica->birth_due = true;
    return start_or_stop(replica, true);
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
    enum status status = become(replica, &identity, "join");
    if (status != STATUS_OK) {
        return status;
    }
    replica->birth_due = false;
    return start_or_stop(replica, false);
}

/* Write down who this is. Where nobody can say whether the disk keeps it, this process must not go
 * on as if it were nobody: it could be asked again, and answer that no cluster was begun. */
static enum status become(struct replica *replica, const struct disk_identity *identity,
                          const char *what)
{
    struct disk_detail detail = {""};
    enum status status = STATUS_OK;
    if (replica->disk != NULL) {
        status = disk_identity_store(replica->disk, identity, &detail);
    }
    if (status == STATUS_OK || status == STATUS_UNKNOWN) {
        replica->identity = *identity;
    }
    if (status != STATUS_OK) {
        replica_log(replica, 0, "event=%s_failed status=%s detail=\"%s\"", what,
                    status_name(status), detail.text);
    }
    if (status == STATUS_UNKNOWN) {
        replica->opening = true;
        start_failed(replica, status, detail.text);
        replica->callbacks.on_fatal(replica->callbacks.ctx, status, detail.text);
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
        config->voters_wanted = VOTERS_WANTED_DEFAULT;
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

/* Has this node still to write the birth, and does it know which? */
static enum status birth_prepare(struct replica *replica, const struct disk_state *state,
                                 struct disk_detail *out_detail)
{
    replica->birth_due = founder(&replica->identity) && state->last_index <= UNBORN_INDEX_MAX;
    if (!replica->birth_due) {
        return STATUS_OK;
    }
    struct op birth = replica_birth_op(&replica->identity);
    struct violation violation;
    if (op_validate(&birth, &violation) != STATUS_OK) {
        (void)snprintf(out_detail->text, sizeof out_detail->text,
                       "identity: this node began to found a cluster, and what for is not said");
        return STATUS_CORRUPT;
    }
    replica->config.voters_wanted = (unsigned)birth.settings.voters_wanted;
    return STATUS_OK;
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
        /* What is to be finished may have been finished before, and its log lost: the tokens of
         * then lie below the floor of now, and not below the one that was kept. */
        struct disk_founding *founding = &replica->identity.founding;
        founding->token_floor = max_u64(founding->token_floor, replica->config.token_floor);
    }
    if (status != STATUS_OK) {
        (void)snprintf(out_why, WHY_LEN, "%.*s", (int)(WHY_LEN - 1), detail.text);
    }
    return status;
}

/* In a node that runs already, where nobody waits for the reason. */
static enum status start_or_stop(struct replica *replica, bool bootstrap)
{
    char why[WHY_LEN] = "";
    enum status status = start(replica, bootstrap, why);
    if (status != STATUS_OK) {
        replica->callbacks.on_fatal(replica->callbacks.ctx, status, why);
    }
    return status;
}

static enum status start(struct replica *replica, bool bootstrap, char *out_why)
{
    replica->opening = true;
    int len = snprintf(replica->address, sizeof replica->address, "%" PRIu64,
                       replica->identity.node_id);
    CHECK(len > 0 && (size_t)len < sizeof replica->address);

    struct raft_io *io = replica->config.backend;
    if (replica->disk != NULL) {
        enum status status = start_disk(replica, &bootstrap, &io, out_why);
        if (status != STATUS_OK) {
            start_failed(replica, status, out_why);
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
    fsm_adapter_init(&replica->adapter, &replica->raft, &replica->config.hash_key, &hooks);
    enum status status = start_raft(replica, bootstrap, out_why);
    if (status != STATUS_OK) {
        start_failed(replica, status, out_why);
        return status;
    }
    replica->opening = false;
    return STATUS_OK;
}

/* Nothing is to come of libraft any more, and nobody to be told what still fails: only closing is
 * left. */
static void start_failed(struct replica *replica, enum status status, const char *why)
{
    replica->state = REPLICA_STATE_FAILED;
    if (replica->guard != NULL) {
        guard_fail(replica->guard, status, why);
    }
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
        status = birth_prepare(replica, &state, &detail);
    }
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
        replica->disk_started = status == STATUS_OK;
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
    if (rv != 0) {
        (void)snprintf(out_why, WHY_LEN, "%.*s", (int)(WHY_LEN - 1), raft->errmsg);
        fsm_adapter_deinit(&replica->adapter);
        guard_destroy(replica->guard);
        replica->guard = NULL; /* there is nothing of libraft to be closed */
        return status_from_raft(rv);
    }
    raft_settings(replica);
    if (bootstrap) {
        struct raft_configuration configuration;
        raft_configuration_init(&configuration);
        rv = raft_configuration_add(&configuration, replica->identity.node_id, replica->address,
                                    RAFT_VOTER);
        if (rv == 0) {
            rv = raft_bootstrap(raft, &configuration);
        }
        raft_configuration_close(&configuration);
    }
    if (rv == 0) {
        rv = raft_start(raft);
    }
    if (rv != 0 || guard_failed(replica->guard)) {
        /* The files were checked before, so that this is a disk that fails in this very moment. */
        bool known = replica->opening_status != STATUS_OK;
        (void)snprintf(out_why, WHY_LEN, "%.*s", (int)(WHY_LEN - 1),
                       known ? replica->opening_detail : raft->errmsg);
        return known ? replica->opening_status : status_from_raft(rv);
    }
    raft_set_heartbeat_timeout(raft, REPLICA_HEARTBEAT_MS);
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
    raft_set_snapshot_trailing(raft, replica_trailing_entries(config, 1));
    if (config->seed != 0) {
        raft_seed(raft, (unsigned)config->seed);
    }
}

/* As many as fit, but not more than lie between two snapshots, and never so few that a follower
 * which was away for a moment needs a snapshot. */
unsigned replica_trailing_entries(const struct replica_config *config, uint64_t entry_len)
{
    uint64_t entries = TRAILING_BYTES / max_u64(1, entry_len);
    entries = min_u64(entries, min_u64(config->snapshot_entries, TRAILING_ENTRIES_MAX));
    return (unsigned)max_u64(entries, TRAILING_ENTRIES_MIN);
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
    const struct replica *replica = ctx;
    struct fsm *fsm = NULL;
    uint32_t version = 0;
    const char *why = "";
    enum status status = snapshot_decode(bytes, &replica->config.hash_key, &fsm, &version, &why);
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
void replica_close_begin(struct replica *replica)
{
    replica->close_begun = true;
    replica_entries_drop_waiting(replica, STATUS_CLOSING);
    replica_reads_drop_rounds(replica, STATUS_CLOSING);
    replica_reads_drop_waits(replica, STATUS_CLOSING);
    bool failed = replica->state == REPLICA_STATE_FAILED && !replica->opening;
    if (failed && replica->disk != NULL) {
        /* Nothing of libraft is called any more; memory and lock stay until the process ends. */
        replica_abandon(replica);
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

/* Fail-stop: nobody will answer for what is pending. */
void replica_abandon(struct replica *replica)
{
    replica_entries_abandon(replica);
    replica_reads_drop_rounds(replica, STATUS_NOT_LEADER);
    replica_reads_drop_waits(replica, STATUS_CLOSING);
    replica_members_abandon(replica);
}
