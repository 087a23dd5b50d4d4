/* Which reads one confirmation round may serve.
 *
 * A leader may be deposed without knowing it, so before a linearizable read it asks the other
 * voters whether they still have its term. A majority of "yes" to a question that was asked after
 * the read arrived proves that no later leader had committed anything when it arrived; the read is
 * then true of the commit index at which the round began (Ongaro, "Consensus: Bridging Theory and
 * Practice", 6.4; docs/design.md has the argument for libraft's membership changes).
 *
 *   - a round serves the reads that waited when it began, never one that came later
 *   - one round is under way at a time; those who come meanwhile share the next one
 *   - only answers with the round's own term and number count, each voter once
 *
 * Pure: who is asked, and when, is the caller's business (raft/replica). */
#ifndef RAFT_READ_INDEX_H_
#define RAFT_READ_INDEX_H_

#include <stdint.h>

#include "fsm/base/list.h"

#define READ_INDEX_VOTERS_MAX 64u

/* Asked again after this long without a majority: frames may be dropped. */
#define READ_INDEX_RETRY_NS 50000000ull

struct read_round {
    uint64_t term;
    uint64_t index;    /* commit index when it began */
    uint64_t clock_ms; /* the leader's clock when it began */
    uint64_t began_ns;
};

struct read_index {
    struct list waiting;    /* no round covers these yet */
    struct list confirming; /* served by the round under way */
    bool running;
    struct read_round round;
    uint64_t nonce; /* of the latest round */
    uint64_t asked_ns;
    uint64_t voters[READ_INDEX_VOTERS_MAX]; /* who may still answer; the leader is not among them */
    bool answered[READ_INDEX_VOTERS_MAX];
    unsigned voter_count;
    unsigned missing; /* answers that are still needed */
};

void read_index_init(struct read_index *reads);
void read_index_add(struct read_index *reads, struct list *read);

/* True when reads wait and no round is under way. */
bool read_index_wants_round(const struct read_index *reads);

/* Begin a round for everything that waits. `voters` are all voters of the configuration but the
 * leader itself, which is one of them. */
void read_index_begin(struct read_index *reads, const struct read_round *round,
                      const uint64_t *voters, unsigned voter_count);

/* True when it is time to ask those who have not answered (the first time: at once); the caller
 * then asks each of read_index_unanswered(). */
bool read_index_should_ask(const struct read_index *reads, uint64_t now_ns);
unsigned read_index_ask(struct read_index *reads, uint64_t now_ns, uint64_t *out_ids);

/* A voter says that it has this term. Anything that doesn't belong to the round is ignored. */
void read_index_answer(struct read_index *reads, uint64_t voter, uint64_t term, uint64_t nonce);

/* The round under way has its majority. */
bool read_index_confirmed(const struct read_index *reads);

/* End the round: its reads go to the end of `out_reads`. */
void read_index_end(struct read_index *reads, struct list *out_reads);

/* Leadership is gone: everything that waits or is being confirmed goes to `out_reads`. */
void read_index_drop(struct read_index *reads, struct list *out_reads);

#endif
