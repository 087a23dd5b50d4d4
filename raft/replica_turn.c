/* The turn: what the replica does at the end of each turn of the loop, in which order, and what can
 * be seen of it from outside.
 *
 * First what libraft has completed, then who leads; then members, reads and entries, whose order
 * does not matter but that entries come last, so that whatever was asked in this turn leaves in it;
 * then messages. The guard ends the turn. */
#include "raft/replica_internal.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "fsm/base/check.h"

#define ENTRIES_FOR_MEAN 32u /* before their mean length is believed */

static void fire_completed(struct replica *replica);
static void disk_turn(struct replica *replica, uint64_t now_ns);
static void snapshot_turn(struct replica *replica);
static void view_turn(struct replica *replica);

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
        replica_abandon(replica);
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
        replica_close_begin(replica);
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

/* Call back for what libraft has completed. raft_uv does it too, from handles of its own, but
 * before or after our turn as it happens; and a backend of the simulator does not. The function
 * that libraft has for it is hidden in its shared object, the queue is not: a ring of requests,
 * each with its links in `queue` and the kind of request in `type`. */
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
                                   replica_trailing_entries(&replica->config, entry_len));
    }
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
    out_view->founding = replica->birth_due && !fsm_born(replica->adapter.fsm);
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
        /* libraft clears the hint of voters only, when their timer fires. */
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
    if (replica->disk != NULL) {
        disk_write_times(replica->disk, &out_stats->disk_write_last_us,
                         &out_stats->disk_write_max_us);
    }
    out_stats->guard_cures = guard->commits_held + guard->messages_split +
                             guard->snapshots_refused + guard->snapshots_spared +
                             guard->terms_corrected + guard->snapshots_unread +
                             guard->results_dropped + guard->votes_opened;
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
    /* Grows with every change that is appended or committed; a change that is taken back shows as
     * the loss of its leader. */
    const struct raft *raft = &replica->raft;
    uint64_t configuration =
        view.state == REPLICA_STATE_RUNNING
            ? raft->configuration_committed_index + raft->configuration_uncommitted_index
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
        replica_log(replica, 3, "event=role role=%s leader=%d serving=%d term=%" PRIu64,
                    roles[view.role], view.leader, view.serving, view.term);
    }
    replica->told = view;
    replica->told_configuration = configuration;
    replica->callbacks.on_view(replica->callbacks.ctx);
}
