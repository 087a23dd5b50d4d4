/* The guard, membership and fail-over: L8, and voters that stand one after the other when their
 * leader is gone. */
#include "raft/guard_internal.h"

int guard_assign(struct guard *guard, struct raft_change *request, raft_id id, int role,
                 raft_change_cb cb)
{
    struct raft *raft = guard_raft(guard);
    if (!guard_runs(guard)) {
        return RAFT_NOTLEADER;
    }
    int code = raft_assign(raft, request, id, role, cb);
    if (code != 0 && !guard->failed && guard_cures(guard, GUARD_CURE_L8) &&
        raft->legacy.change == request) {
        raft->legacy.change = NULL;
    }
    return code;
}

/* This node as it knows itself in its configuration: a voter? */
static bool guard_votes(const struct raft *raft)
{
    const struct raft_server *self = guard_self(raft);
    return self != NULL && self->role == RAFT_VOTER;
}

bool guard_leader_link_lost(struct guard *guard, raft_id peer, uint64_t *out_delay_ns)
{
    struct raft *raft = guard_raft(guard);
    if (!guard_runs(guard) || peer == 0 || raft->state != RAFT_FOLLOWER ||
        raft->follower_state.current_leader.id != peer) {
        return false;
    }
    raft->follower_state.current_leader.id = 0;
    if (!guard_votes(raft)) {
        return false; /* it forgets too: its vote may be asked for all the same */
    }
    uint64_t rank = 0;
    for (unsigned idx = 0; idx < raft->configuration.n; idx++) {
        const struct raft_server *server = &raft->configuration.servers[idx];
        if (server->role == RAFT_VOTER && server->id != peer && server->id < raft->id) {
            rank++;
        }
    }
    *out_delay_ns = rank * GUARD_CAMPAIGN_STEP_NS;
    return true;
}

bool guard_campaign_open(const struct guard *guard)
{
    const struct raft *raft = guard_raft(guard);
    if (raft->state == RAFT_CANDIDATE) {
        return raft->candidate_state.in_pre_vote;
    }
    return raft->state == RAFT_FOLLOWER && raft->follower_state.current_leader.id == 0 &&
           guard_votes(raft);
}

void guard_campaign(struct guard *guard)
{
    struct raft *raft = guard_raft(guard);
    if (!guard_runs(guard) || !guard_campaign_open(guard)) {
        return;
    }
    /* The timer runs out now; the subtraction may wrap and the addition in libraft wraps back. */
    unsigned timeout_ms = raft->state == RAFT_FOLLOWER
                              ? raft->follower_state.randomized_election_timeout
                              : raft->candidate_state.randomized_election_timeout;
    raft->election_timer_start = raft->now - timeout_ms;
    guard_tick(guard);
}
