/* Counting, then one decision. Whoever is not reachable counts as not there. */
#include "raft/change_plan.h"

#include "fsm/base/check.h"

struct census {
    unsigned voters;
    unsigned standbys_up; /* standbys whose link is up */
    unsigned candidates;  /* those of them that have caught up */
    const struct replica_member *candidate; /* the first to promote */
    const struct replica_member *spare;     /* the first to make a standby */
};

static void take_census(const struct change_view *view, struct census *out);
static bool caught_up(const struct change_view *view, const struct replica_member *member);
static bool voters_know(const struct change_view *view, uint64_t without_id);
static bool remaining_online(const struct change_view *view, uint64_t without_id);
static const struct replica_member *voter_to_demote(const struct change_view *view);
static struct change_step step_odd(const struct change_plan *plan, const struct change_view *view,
                                   const struct census *census);
static struct change_step step_even(struct change_plan *plan, const struct change_view *view,
                                    const struct census *census);
static struct change_step nothing(void);

void change_plan_init(struct change_plan *plan)
{
    *plan = (struct change_plan){0};
}

struct change_step change_plan_next(struct change_plan *plan, const struct change_view *view)
{
    struct census census;
    take_census(view, &census);
    if (census.voters % 2 != 0) {
        plan->pair_since_ns = 0;
    } else if (plan->pair_since_ns == 0) {
        plan->pair_since_ns = view->now_ns;
    }
    if (!view->serving || view->running || census.voters == 0) {
        return nothing();
    }
    return census.voters % 2 != 0 ? step_odd(plan, view, &census)
                                  : step_even(plan, view, &census);
}

uint64_t change_plan_timer_ns(const struct change_plan *plan)
{
    return plan->pair_since_ns == 0 ? UINT64_MAX : plan->pair_since_ns + CHANGE_PLAN_PAIR_NS_MAX;
}

bool change_plan_may_admit(const struct change_view *view)
{
    return view->serving && !view->running;
}

/* At rest: find candidates, and when there are two, promote the first of the pair. */
static struct change_step step_odd(const struct change_plan *plan, const struct change_view *view,
                                   const struct census *census)
{
    if (census->voters >= view->voters_wanted || !voters_know(view, 0)) {
        return nothing();
    }
    if (census->candidates >= 2 && view->now_ns >= plan->pause_until_ns) {
        return (struct change_step){.id = census->candidate->id,
                                    .role = REPLICA_MEMBER_ROLE_VOTER};
    }
    if (census->standbys_up < 2 && census->spare != NULL) {
        return (struct change_step){.id = census->spare->id, .role = REPLICA_MEMBER_ROLE_STANDBY};
    }
    return nothing();
}

/* Half way: the second of the pair at once, or back. */
static struct change_step step_even(struct change_plan *plan, const struct change_view *view,
                                    const struct census *census)
{
    const struct replica_member *demote = voter_to_demote(view);
    CHECK(demote != NULL);
    bool wanted = census->voters < view->voters_wanted;
    if (wanted && demote->link_up && census->candidates > 0 && voters_know(view, 0)) {
        return (struct change_step){.id = census->candidate->id,
                                    .role = REPLICA_MEMBER_ROLE_VOTER};
    }
    bool waited = view->now_ns - plan->pair_since_ns >= CHANGE_PLAN_PAIR_NS_MAX;
    bool hopeless = !wanted || !demote->link_up || census->standbys_up == 0 || waited;
    if (hopeless && voters_know(view, demote->id) && remaining_online(view, demote->id)) {
        plan->pause_until_ns = view->now_ns + CHANGE_PLAN_PAUSE_NS;
        return (struct change_step){.id = demote->id, .role = REPLICA_MEMBER_ROLE_STANDBY};
    }
    return nothing();
}

static void take_census(const struct change_view *view, struct census *out)
{
    *out = (struct census){0};
    for (unsigned i = 0; i < view->count; i++) {
        const struct replica_member *member = &view->members[i];
        if (member->role == REPLICA_MEMBER_ROLE_VOTER) {
            out->voters++;
        } else if (member->role == REPLICA_MEMBER_ROLE_STANDBY && member->link_up) {
            out->standbys_up++;
            if (caught_up(view, member)) {
                out->candidates++;
                if (out->candidate == NULL || member->id < out->candidate->id) {
                    out->candidate = member;
                }
            }
        } else if (member->role == REPLICA_MEMBER_ROLE_SPARE && member->link_up &&
                   (out->spare == NULL || member->id < out->spare->id)) {
            out->spare = member;
        }
    }
}

static bool caught_up(const struct change_view *view, const struct replica_member *member)
{
    return member->match_index >= view->change_index &&
           view->last_index - member->match_index <= CHANGE_PLAN_LAG_MAX;
}

/* Every voter but `without_id` has the entry of the last change on its disk. */
static bool voters_know(const struct change_view *view, uint64_t without_id)
{
    for (unsigned i = 0; i < view->count; i++) {
        const struct replica_member *member = &view->members[i];
        if (member->role == REPLICA_MEMBER_ROLE_VOTER && member->id != view->self_id &&
            member->id != without_id && member->match_index < view->change_index) {
            return false;
        }
    }
    return true;
}

static bool remaining_online(const struct change_view *view, uint64_t without_id)
{
    unsigned remaining = 0;
    unsigned online = 0;
    for (unsigned i = 0; i < view->count; i++) {
        const struct replica_member *member = &view->members[i];
        if (member->role == REPLICA_MEMBER_ROLE_VOTER && member->id != without_id) {
            remaining++;
            online += member->id == view->self_id || member->link_up ? 1 : 0;
        }
    }
    return online > remaining / 2;
}

/* Of the others: one that is not there, else the one furthest behind. */
static const struct replica_member *voter_to_demote(const struct change_view *view)
{
    const struct replica_member *found = NULL;
    for (unsigned i = 0; i < view->count; i++) {
        const struct replica_member *member = &view->members[i];
        if (member->role != REPLICA_MEMBER_ROLE_VOTER || member->id == view->self_id) {
            continue;
        }
        if (found == NULL || (found->link_up && !member->link_up) ||
            (found->link_up == member->link_up && member->match_index < found->match_index)) {
            found = member;
        }
    }
    return found;
}

static struct change_step nothing(void)
{
    return (struct change_step){0};
}
