/* One safe membership change at a time.
 *
 * libraft changes one member per entry and checks nothing else: not that the leader has committed
 * in its own term, not that the others know of the change before, not that a majority of what would
 * remain is there. A cluster that shrinks or grows at the wrong moment can be left without a
 * possible leader, all its nodes alive. So each change is decided here, from one view, by these
 * rules:
 *
 *   - on quiet ground only: no change under way, the leader serves, and every voter that would
 *     remain has the entry of the last change on its disk
 *   - a node goes spare -> standby -> voter; it becomes a voter when its log is close to the
 *     leader's
 *   - the number of voters is odd at rest. Two candidates must have caught up before the first is
 *     promoted, the second follows at once, and if it does not, the first becomes a standby again:
 *     with two voters either one's death stops the cluster
 *   - before a voter is demoted, a majority of those who remain is online and caught up
 *   - nodes beyond the wanted voters stay spares
 *
 *        1 voter --(two caught up)--> 2 --(second)--> 3      likewise from 3 to 5
 *              ^                       |
 *              +-----(link lost, or no second in time)
 *
 * Pure. Driven by raft/replica while its node leads. */
#ifndef RAFT_CHANGE_PLAN_H_
#define RAFT_CHANGE_PLAN_H_

#include "raft/replica.h"

/* How far behind the leader a candidate may be: what may be unacknowledged. */
#define CHANGE_PLAN_LAG_MAX 64u

/* How long an even number of voters may last while both are there. */
#define CHANGE_PLAN_PAIR_NS_MAX 2000000000ull

/* After an undone pair, before the next is tried. */
#define CHANGE_PLAN_PAUSE_NS 1000000000ull

struct change_view {
    uint64_t self_id;
    const struct replica_member *members;
    unsigned count;
    unsigned voters_wanted; /* 1, 3 or 5 */
    uint64_t last_index;    /* of the leader's log */
    uint64_t change_index;  /* entry of the last configuration */
    bool running;           /* a change is not committed, or catching up */
    bool serving;           /* an entry of the leader's own term is applied */
    uint64_t now_ns;
};

/* Give this member this role; id 0: nothing to do now. */
struct change_step {
    uint64_t id;
    enum replica_member_role role;
};

struct change_plan {
    uint64_t pair_since_ns;  /* an even number of voters since then; 0: not so */
    uint64_t pause_until_ns; /* no new pair before */
};

/* Also at the beginning of each term. */
void change_plan_init(struct change_plan *plan);

struct change_step change_plan_next(struct change_plan *plan, const struct change_view *view);

/* When the plan must be asked again though nothing happens; UINT64_MAX: never. */
uint64_t change_plan_timer_ns(const struct change_plan *plan);

/* Whether a new spare may be added now. It changes no majority, so that only a change under way and
 * a leader that does not serve stand against it. */
bool change_plan_may_admit(const struct change_view *view);

#endif
