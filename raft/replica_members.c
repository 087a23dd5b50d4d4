/* Members: who they are, the one change that runs, and the transfer of leadership.
 *
 * The plan decides (change_plan.h), this file asks libraft and waits. Three ways in which
 * libraft may never call back for a change are closed here: a refused assignment (the guard's
 * cure L8), a catch-up that ended well and whose entry then found no room, and the loss of
 * leadership, of which libraft does tell. */
#include "raft/replica_internal.h"

#include <inttypes.h>
#include <stdio.h>

#include "fsm/base/check.h"

static void plan_turn(struct replica *replica, uint64_t now_ns);
static unsigned voters_wanted(const struct replica *replica);
static void view_of_change(const struct replica *replica, struct replica_member *members,
                           struct change_view *out_view);
static void assign(struct replica *replica, const struct change_step *step);
static bool change_running(const struct replica *replica);
static bool change_lost(const struct replica *replica);
static void on_change(struct raft_change *request, int code);
static void finish_change(struct replica *replica);
static void on_transfer(struct raft_transfer *request);
static void finish_transfer(struct replica *replica);
static int role_to_raft(enum replica_member_role role);
static const char *role_name(enum replica_member_role role);

unsigned replica_members(const struct replica *replica, struct replica_member *out_members)
{
    if (!replica_running(replica)) {
        return 0;
    }
    const struct raft *raft = &replica->raft;
    unsigned count = raft->configuration.n;
    CHECK(count <= REPLICA_MEMBERS_MAX);
    for (unsigned i = 0; i < count; i++) {
        const struct raft_server *server = &raft->configuration.servers[i];
        raft_index match = 0;
        if (raft->state == RAFT_LEADER) {
            CHECK(raft_match_index(raft, server->id, &match) == 0);
        }
        out_members[i] = (struct replica_member){
            .id = server->id,
            .role = replica_role_from_raft(server->role),
            .match_index = match,
            .link_up = server->id == raft->id || replica_links_up(replica, server->id),
        };
    }
    return count;
}

enum status replica_admit(struct replica *replica, uint64_t node_id, replica_change_cb cb,
                          void *ctx)
{
    if (replica->closing || replica->state == REPLICA_STATE_CLOSED) {
        return STATUS_CLOSING;
    }
    if (!replica_running(replica) || replica->raft.state != RAFT_LEADER ||
        raft_transferee(&replica->raft) != 0) {
        return STATUS_NOT_LEADER;
    }
    if (!replica->lead.serving || replica->lead.term != replica->raft.current_term) {
        return STATUS_NOT_SERVING;
    }
    if (node_id == 0) {
        return STATUS_INVALID;
    }
    struct replica_member members[REPLICA_MEMBERS_MAX];
    struct change_view view;
    view_of_change(replica, members, &view);
    bool member = false;
    for (unsigned i = 0; i < view.count; i++) {
        member = member || members[i].id == node_id;
    }
    if (replica->change.kind != REPLICA_CHANGE_KIND_NONE ||
        (!member && !change_plan_may_admit(&view))) {
        return STATUS_BUSY;
    }
    if (!member && view.count >= REPLICA_MEMBERS_MAX) {
        return STATUS_LIMIT;
    }
    replica->change = (struct replica_change){
        .kind = REPLICA_CHANGE_KIND_ADMIT,
        .done = member,
        .status = STATUS_OK,
        .cb = cb,
        .ctx = ctx,
        .node_id = node_id,
        .role = REPLICA_MEMBER_ROLE_SPARE,
    };
    if (member) {
        return STATUS_OK;
    }
    char address[24];
    (void)snprintf(address, sizeof address, "%" PRIu64, node_id);
    int code = raft_add(&replica->raft, &replica->change.request, node_id, address, on_change);
    if (code != 0) {
        replica->change.kind = REPLICA_CHANGE_KIND_NONE;
        return status_from_raft(code);
    }
    return STATUS_OK;
}

enum status replica_transfer(struct replica *replica, uint64_t node_id, replica_change_cb cb,
                             void *ctx)
{
    if (replica->closing || replica->state == REPLICA_STATE_CLOSED) {
        return STATUS_CLOSING;
    }
    if (!replica_running(replica) || replica->raft.state != RAFT_LEADER) {
        return STATUS_NOT_LEADER;
    }
    if (replica->transfer.running || raft_transferee(&replica->raft) != 0) {
        return STATUS_BUSY;
    }
    replica->transfer = (struct replica_transfer){.running = true, .cb = cb, .ctx = ctx};
    int code = raft_transfer(&replica->raft, &replica->transfer.request, node_id, on_transfer);
    if (code != 0) {
        replica->transfer.running = false;
        bool nobody = code == RAFT_NOTFOUND || code == RAFT_BADID;
        return nobody ? STATUS_INVALID : status_from_raft(code);
    }
    return STATUS_OK;
}

void replica_members_turn(struct replica *replica, uint64_t now_ns)
{
    if (replica->change.done) {
        finish_change(replica);
    }
    if (replica->transfer.done) {
        finish_transfer(replica);
    }
    if (!replica_running(replica) || replica->raft.state != RAFT_LEADER) {
        return;
    }
    if (change_lost(replica)) {
        replica->raft.legacy.change = NULL;
        replica->change.status = STATUS_DISK_FULL;
        finish_change(replica);
    }
    plan_turn(replica, now_ns);
}

uint64_t replica_members_timer_ns(const struct replica *replica)
{
    if (replica->change.done || replica->transfer.done) {
        return 0;
    }
    return replica->lead.serving ? change_plan_timer_ns(&replica->plan) : UINT64_MAX;
}

void replica_members_abandon(struct replica *replica)
{
    if (replica->change.kind != REPLICA_CHANGE_KIND_NONE) {
        if (!replica->change.done) {
            replica->change.status = STATUS_LEADERSHIP_LOST;
        }
        finish_change(replica);
    }
    if (replica->transfer.running) {
        finish_transfer(replica);
    }
}

/* --- the plan */

/* Usually there is nothing to plan, and that is seen without building a view. */
static void plan_turn(struct replica *replica, uint64_t now_ns)
{
    const struct raft_configuration *configuration = &replica->raft.configuration;
    unsigned voters = 0;
    for (unsigned i = 0; i < configuration->n; i++) {
        voters += configuration->servers[i].role == RAFT_VOTER ? 1 : 0;
    }
    bool at_rest = voters % 2 != 0 &&
                   (voters >= voters_wanted(replica) || configuration->n == voters);
    if (at_rest || !replica->lead.serving || raft_transferee(&replica->raft) != 0) {
        replica->plan.pair_since_ns = voters % 2 != 0 ? 0 : replica->plan.pair_since_ns;
        return;
    }
    struct replica_member members[REPLICA_MEMBERS_MAX];
    struct change_view view;
    view_of_change(replica, members, &view);
    view.now_ns = now_ns;
    struct change_step step = change_plan_next(&replica->plan, &view);
    if (step.id != 0) {
        assign(replica, &step);
    }
}

/* What the cluster was designed for, the same on every node that comes to lead it; until the birth
 * is applied this node's own configuration, by which nothing is changed yet. */
static unsigned voters_wanted(const struct replica *replica)
{
    const struct fsm *fsm = replica->adapter.fsm;
    return fsm_born(fsm) ? (unsigned)fsm_settings(fsm)->voters_wanted
                         : replica->config.voters_wanted;
}

static void view_of_change(const struct replica *replica, struct replica_member *members,
                           struct change_view *out_view)
{
    const struct raft *raft = &replica->raft;
    struct replica_view view;
    replica_view(replica, &view);
    *out_view = (struct change_view){
        .self_id = raft->id,
        .members = members,
        .count = replica_members(replica, members),
        .voters_wanted = voters_wanted(replica),
        .last_index = view.last_index,
        .change_index = raft->configuration_committed_index,
        .running = change_running(replica),
        .serving = replica->lead.serving,
    };
}

static void assign(struct replica *replica, const struct change_step *step)
{
    replica->change = (struct replica_change){
        .kind = REPLICA_CHANGE_KIND_PLAN,
        .node_id = step->id,
        .role = step->role,
    };
    int code = guard_assign(replica->guard, &replica->change.request, step->id,
                            role_to_raft(step->role), on_change);
    if (code != 0) {
        replica->change.kind = REPLICA_CHANGE_KIND_NONE;
        return;
    }
    replica_log(replica, 2, "event=change node=%016" PRIx64 " role=%s", step->id,
                role_name(step->role));
}

static bool change_running(const struct replica *replica)
{
    const struct raft *raft = &replica->raft;
    return replica->change.kind != REPLICA_CHANGE_KIND_NONE ||
           raft->configuration_uncommitted_index != 0 || raft->leader_state.promotee_id != 0;
}

/* The candidate had caught up, and its entry was refused for lack of space: libraft has forgotten
 * the promotion, keeps the request, and calls nobody. */
static bool change_lost(const struct replica *replica)
{
    const struct raft *raft = &replica->raft;
    return replica->change.kind != REPLICA_CHANGE_KIND_NONE && !replica->change.done &&
           raft->legacy.change == &replica->change.request &&
           replica->change.request.catch_up_id == 0 && raft->leader_state.promotee_id == 0 &&
           raft->configuration_uncommitted_index == 0;
}

static void on_change(struct raft_change *request, int code)
{
    struct replica_change *change = CONTAINER_OF(request, struct replica_change, request);
    change->done = true;
    change->status = status_from_raft(code);
}

static void finish_change(struct replica *replica)
{
    struct replica_change change = replica->change;
    replica->change = (struct replica_change){0};
    replica_log(replica, change.status == STATUS_OK ? 2 : 1,
                "event=change_done node=%016" PRIx64 " role=%s status=%s", change.node_id,
                role_name(change.role), status_name(change.status));
    if (change.cb != NULL) {
        replica_enter(replica);
        change.cb(change.ctx, change.status);
        replica_leave(replica);
    }
}

/* --- transfer */

static void on_transfer(struct raft_transfer *request)
{
    struct replica_transfer *transfer =
        CONTAINER_OF(request, struct replica_transfer, request);
    transfer->done = true;
}

/* libraft calls back at success and at the time-out alike. */
static void finish_transfer(struct replica *replica)
{
    struct replica_transfer transfer = replica->transfer;
    replica->transfer = (struct replica_transfer){0};
    const struct raft *raft = &replica->raft;
    bool moved = replica_running(replica) && raft->state == RAFT_FOLLOWER &&
                 raft->follower_state.current_leader.id != 0;
    replica_enter(replica);
    transfer.cb(transfer.ctx, moved ? STATUS_OK : STATUS_NO_LEADER);
    replica_leave(replica);
}

/* --- roles */

enum replica_member_role replica_role_from_raft(int role)
{
    return role == RAFT_VOTER     ? REPLICA_MEMBER_ROLE_VOTER
           : role == RAFT_STANDBY ? REPLICA_MEMBER_ROLE_STANDBY
           : role == RAFT_SPARE   ? REPLICA_MEMBER_ROLE_SPARE
                                  : REPLICA_MEMBER_ROLE_NONE;
}

static int role_to_raft(enum replica_member_role role)
{
    CHECK(role != REPLICA_MEMBER_ROLE_NONE);
    return role == REPLICA_MEMBER_ROLE_VOTER     ? RAFT_VOTER
           : role == REPLICA_MEMBER_ROLE_STANDBY ? RAFT_STANDBY
                                                 : RAFT_SPARE;
}

static const char *role_name(enum replica_member_role role)
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
