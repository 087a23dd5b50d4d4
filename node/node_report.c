/* What a node says of itself: greeting, status, members, metrics. Names are part of the API and
 * listed in docs/operations.md; units stand in the names. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "fsm/base/units.h"
#include "node/node_internal.h"

#define MEMBERS_ROW_LEN 7u

struct census {
    struct replica_member members[REPLICA_MEMBERS_MAX];
    unsigned count;
    unsigned voters;
    unsigned voters_up; /* this node and those whose link is up */
    unsigned standbys;
};

struct metric_row {
    const char *name;
    uint64_t value;
};

static void add_metrics(const struct metric_row *rows, size_t count, struct fields *out);
static void add_traffic_metrics(const struct node *node, struct fields *out);
static void add_request_metrics(const struct node *node, struct fields *out);
static void add_raft_metrics(const struct node *node, struct fields *out);
static void take_census(const struct node *node, const struct replica_view *view,
                        struct census *out_census);
static void add_identity(const struct node *node, const struct replica_view *view,
                         struct fields *out);
static uint64_t voters_designed(const struct node *node);
static void add_health(const struct node *node, const struct replica_view *view,
                       struct fields *out);
static void add_table(const struct node *node, struct fields *out);
static void add_member(const struct node *node, const struct replica_view *view,
                       const struct replica_member *member, struct fields *out);
static const char *state_name(const struct replica_view *view);
static const char *why_not_writable(const struct replica_view *view,
                                    const struct dispatch_view *known,
                                    const struct census *census);

void node_report_hello(void *ctx, struct fields *out_fields)
{
    const struct node *node = ctx;
    struct replica_view view;
    replica_view(node->replica, &view);
    fields_add_text(out_fields, "version", TENURE_VERSION);
    fields_add_u64(out_fields, "protocol", PROTOCOL_VERSION);
    add_identity(node, &view, out_fields);
}

void node_report_status(void *ctx, struct fields *out_fields)
{
    const struct node *node = ctx;
    struct replica_view view;
    replica_view(node->replica, &view);
    fields_add_text(out_fields, "version", TENURE_VERSION);
    fields_add_u64(out_fields, "protocol", PROTOCOL_VERSION);
    add_identity(node, &view, out_fields);
    fields_add_text(out_fields, "name", node->config.name);
    fields_add_text(out_fields, "address", links_address(node->links));
    fields_add_u64(out_fields, "pid", (uint64_t)getpid());
    fields_add_u64(out_fields, "uptime_ms",
                   ns_to_ms_floor(loop_now_ns(node->loop) - node->start_ns));
    add_health(node, &view, out_fields);
    fields_add_u64(out_fields, "term", view.term);
    fields_add_u64(out_fields, "commit_index", view.commit_index);
    fields_add_u64(out_fields, "applied_index", view.applied_index);
    fields_add_u64(out_fields, "last_index", view.last_index);
    fields_add_u64(out_fields, "clock_lost_ms", view.clock_lost_ms);
    fields_add_bool(out_fields, "insecure_network", node->config.insecure_network);
    add_table(node, out_fields);
}

void node_report_metrics(void *ctx, struct fields *out_fields)
{
    const struct node *node = ctx;
    add_traffic_metrics(node, out_fields);
    add_request_metrics(node, out_fields);
    add_raft_metrics(node, out_fields);
}

void node_report_members(void *ctx, struct fields *out_fields, uint32_t *out_row_len)
{
    const struct node *node = ctx;
    struct replica_view view;
    replica_view(node->replica, &view);
    struct census census;
    take_census(node, &view, &census);
    if (census.count == 0) {
        /* A spare holds no configuration; it knows what the leader told it. */
        memcpy(census.members, node->told, sizeof census.members);
        census.count = node->told_count;
        struct dispatch_view known;
        dispatch_view(node->dispatch, &known);
        view.leader_id = known.leader_id;
    }
    bool listed = view.node_id == 0;
    for (unsigned i = 0; i < census.count; i++) {
        listed = listed || census.members[i].id == view.node_id;
        add_member(node, &view, &census.members[i], out_fields);
    }
    if (!listed) {
        struct replica_member self = {.id = view.node_id, .link_up = true};
        add_member(node, &view, &self, out_fields);
    }
    *out_row_len = MEMBERS_ROW_LEN;
}

const char *node_role_name(enum replica_member_role role)
{
    switch (role) {
    case REPLICA_MEMBER_ROLE_NONE:
        return "none";
    case REPLICA_MEMBER_ROLE_SPARE:
        return "spare";
    case REPLICA_MEMBER_ROLE_STANDBY:
        return "standby";
    case REPLICA_MEMBER_ROLE_VOTER:
        return "voter";
    }
    return "none";
}

static void add_metrics(const struct metric_row *rows, size_t count, struct fields *out)
{
    for (size_t i = 0; i < count; i++) {
        fields_add_u64(out, rows[i].name, rows[i].value);
    }
}

static void add_traffic_metrics(const struct node *node, struct fields *out)
{
    struct api_stats api;
    api_stats(node->api, &api);
    struct link_stats links;
    link_stats(node->links, &links);
    struct log_stats log;
    log_stats(node->log, &log);
    const struct metric_row rows[] = {
        {"tenure_api_connections", api.connections},
        {"tenure_api_connections_accepted_total", api.connections_accepted},
        {"tenure_api_connections_refused_total", api.connections_refused},
        {"tenure_api_connections_unread_total", api.unread},
        {"tenure_api_messages_total", api.messages},
        {"tenure_api_messages_refused_total", api.refused},
        {"tenure_api_input_bytes", api.input_len},
        {"tenure_api_kept_bytes", api.kept_len},
        {"tenure_link_up", links.up},
        {"tenure_link_accepted_total", links.accepted},
        {"tenure_link_dialled_total", links.dialled},
        {"tenure_link_refused_total", links.refused},
        {"tenure_link_malformed_total", links.malformed},
        {"tenure_link_frames_dropped_total", links.dropped},
        {"tenure_link_sent_bytes_total", links.bytes_sent},
        {"tenure_link_received_bytes_total", links.bytes_received},
        {"tenure_log_lines_total", log.lines},
        {"tenure_log_lines_suppressed_total", log.suppressed},
        {"tenure_log_lines_dropped_total", log.dropped},
    };
    add_metrics(rows, sizeof rows / sizeof rows[0], out);
}

static void add_request_metrics(const struct node *node, struct fields *out)
{
    struct service_stats service;
    service_stats(node->service, &service);
    struct dispatch_stats dispatch;
    dispatch_stats(node->dispatch, &dispatch);
    const struct metric_row rows[] = {
        {"tenure_calls_total", service.calls},
        {"tenure_calls_invalid_total", service.invalid},
        {"tenure_calls_denied_total", service.denied},
        {"tenure_calls_in_flight", service.in_flight},
        {"tenure_calls_unknown_total", dispatch.calls_unknown},
        {"tenure_calls_unavailable_total", dispatch.calls_unavailable},
        {"tenure_forwards_sent_total", dispatch.forwards_sent},
        {"tenure_forwards_received_total", dispatch.forwards_received},
        {"tenure_forwards_refused_total", dispatch.forwards_refused},
        {"tenure_resubmissions_total", dispatch.resubmissions},
        {"tenure_settles_total", dispatch.settles},
        {"tenure_settling", dispatch.settling},
        {"tenure_origins_opened_total", dispatch.origins},
        {"tenure_reads_total", dispatch.reads},
        {"tenure_reads_waited_for_due_total", dispatch.reads_waited_due},
    };
    add_metrics(rows, sizeof rows / sizeof rows[0], out);
}

static void add_raft_metrics(const struct node *node, struct fields *out)
{
    struct replica_stats raft;
    replica_stats(node->replica, &raft);
    const struct metric_row rows[] = {
        {"tenure_raft_entries_appended_total", raft.entries_appended},
        {"tenure_raft_entries_applied_total", raft.entries_applied},
        {"tenure_raft_commands_applied_total", raft.commands_applied},
        {"tenure_raft_stamps_total", raft.stamps},
        {"tenure_raft_read_rounds_total", raft.read_rounds},
        {"tenure_raft_snapshots_taken_total", raft.snapshots_taken},
        {"tenure_raft_snapshots_sent_total", raft.snapshots_sent},
        {"tenure_raft_snapshots_installed_total", raft.snapshots_installed},
        {"tenure_raft_elections_won_total", raft.elections},
        {"tenure_raft_messages_sent_total", raft.messages_sent},
        {"tenure_raft_messages_received_total", raft.messages_received},
        {"tenure_raft_messages_refused_total", raft.messages_refused},
        {"tenure_raft_guard_cures_total", raft.guard_cures},
        {"tenure_raft_batch_commands_max", raft.batch_len_max},
        {"tenure_disk_write_last_us", raft.disk_write_last_us},
        {"tenure_disk_write_max_us", raft.disk_write_max_us},
    };
    add_metrics(rows, sizeof rows / sizeof rows[0], out);
}

static void take_census(const struct node *node, const struct replica_view *view,
                        struct census *out_census)
{
    *out_census = (struct census){0};
    out_census->count = replica_members(node->replica, out_census->members);
    for (unsigned i = 0; i < out_census->count; i++) {
        const struct replica_member *member = &out_census->members[i];
        bool up = member->id == view->node_id || links_peer_up(node->links, member->id);
        if (member->role == REPLICA_MEMBER_ROLE_VOTER) {
            out_census->voters++;
            out_census->voters_up += up ? 1 : 0;
        } else if (member->role == REPLICA_MEMBER_ROLE_STANDBY) {
            out_census->standbys++;
        }
    }
}

static void add_identity(const struct node *node, const struct replica_view *view,
                         struct fields *out)
{
    (void)node;
    char cluster[2 * CLUSTER_ID_LEN + 1];
    for (unsigned i = 0; i < CLUSTER_ID_LEN; i++) {
        (void)snprintf(cluster + (size_t)2 * i, 3, "%02x", view->identity.id[i]);
    }
    bool born = view->state != REPLICA_STATE_EMPTY;
    fields_add_text(out, "cluster_id", born ? cluster : "");
    fields_add_u64(out, "generation", view->identity.generation);
    if (born) {
        fields_add_id(out, "node_id", view->node_id);
    } else {
        fields_add_text(out, "node_id", "");
    }
}

/* As the cluster was born, not as this node is configured; a node whose table is not born yet has
 * nothing else to show. */
static uint64_t voters_designed(const struct node *node)
{
    const struct fsm *fsm = replica_fsm(node->replica);
    return fsm != NULL && fsm_born(fsm) ? fsm_settings(fsm)->voters_wanted : node->config.voters;
}

static void add_health(const struct node *node, const struct replica_view *view,
                       struct fields *out)
{
    struct dispatch_view known;
    dispatch_view(node->dispatch, &known);
    struct census census;
    take_census(node, view, &census);
    uint64_t designed = voters_designed(node);
    const char *reason = why_not_writable(view, &known, &census);
    const char *role = node_role_name(view->role);
    if (view->role == REPLICA_MEMBER_ROLE_NONE && node->admitted) {
        role = "spare"; /* spares are not told; the leader said so when it admitted us */
    }
    fields_add_text(out, "role", role);
    fields_add_text(out, "state", state_name(view));
    if (known.leader_id == 0) {
        fields_add_text(out, "leader_id", "");
    } else {
        fields_add_id(out, "leader_id", known.leader_id);
    }
    fields_add_bool(out, "live", true);
    fields_add_bool(out, "ready", known.ready);
    fields_add_bool(out, "read", reason == NULL || view->disk_full);
    fields_add_bool(out, "write", reason == NULL);
    fields_add_text(out, "reason", reason == NULL ? "" : reason);
    fields_add_u64(out, "voters_designed", designed);
    fields_add_u64(out, "voters", census.voters);
    fields_add_u64(out, "voters_up", census.voters_up);
    fields_add_u64(out, "standbys", census.standbys);
    /* How many more voters may fail before no majority is left. */
    unsigned majority = census.voters / 2 + 1;
    fields_add_u64(out, "redundancy_left",
                   census.voters_up > majority ? census.voters_up - majority : 0);
    /* A node without the configuration can't judge. */
    bool degraded = census.count > 0 &&
                    (census.voters < designed || census.voters_up < census.voters);
    fields_add_bool(out, "degraded", degraded);
}

static void add_table(const struct node *node, struct fields *out)
{
    const struct fsm *fsm = replica_fsm(node->replica);
    if (fsm == NULL) {
        return;
    }
    struct fsm_stats stats;
    fsm_stats(fsm, &stats);
    char digest[17];
    (void)snprintf(digest, sizeof digest, "%016llx", (unsigned long long)fsm_digest(fsm));
    fields_add_text(out, "digest", digest);
    fields_add_u64(out, "digest_index", fsm_index(fsm));
    fields_add_u64(out, "clock_ms", fsm_clock_ms(fsm));
    fields_add_u64(out, "token", fsm_token(fsm));
    fields_add_u64(out, "leases_own", stats.leases_own);
    fields_add_u64(out, "leases_del", stats.leases_del);
    fields_add_u64(out, "tombstones", stats.tombstones);
    fields_add_u64(out, "owners", stats.owners);
    fields_add_u64(out, "origins", stats.origins);
    fields_add_u64(out, "outcomes_unconfirmed", stats.outcomes);
    fields_add_u64(out, "table_bytes", stats.memory_len);
}

static void add_member(const struct node *node, const struct replica_view *view,
                       const struct replica_member *member, struct fields *out)
{
    bool self = member->id == view->node_id;
    const char *address = self ? links_address(node->links)
                               : links_peer_address(node->links, member->id);
    bool up = self || links_peer_up(node->links, member->id);
    uint64_t lag = 0;
    if (view->leader && !self && member->match_index < view->last_index) {
        lag = view->last_index - member->match_index;
    }
    fields_add_id(out, "id", member->id);
    fields_add_text(out, "address", address == NULL ? "" : address);
    fields_add_text(out, "role", node_role_name(member->role));
    fields_add_text(out, "state", up ? "up" : "down");
    fields_add_bool(out, "leader", member->id == view->leader_id);
    fields_add_bool(out, "self", self);
    fields_add_u64(out, "lag_entries", lag);
}

static const char *state_name(const struct replica_view *view)
{
    switch (view->state) {
    case REPLICA_STATE_EMPTY:
        return "empty";
    case REPLICA_STATE_RUNNING:
        return view->leader ? "leader" : "follower";
    case REPLICA_STATE_FAILED:
        return "failed";
    case REPLICA_STATE_CLOSED:
        return "closed";
    }
    return "closed";
}

/* NULL when writes can be expected to work. */
static const char *why_not_writable(const struct replica_view *view,
                                    const struct dispatch_view *known,
                                    const struct census *census)
{
    if (view->state == REPLICA_STATE_EMPTY) {
        return "this node belongs to no cluster yet";
    }
    if (view->state != REPLICA_STATE_RUNNING) {
        return "this node has stopped";
    }
    if (known->leader_id == 0) {
        return "no leader is known";
    }
    if (view->leader && !view->serving) {
        return "the leader has not committed an entry of its term yet";
    }
    if (view->leader && census->voters_up < census->voters / 2 + 1) {
        return "no majority of the voters is reachable";
    }
    if (view->disk_full) {
        return "disk full";
    }
    return known->ready ? NULL : "not caught up with the leader yet";
}
