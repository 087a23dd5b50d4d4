/* The reply to a read, from a table that has reached the read's point.
 *
 * The table's own clock decides what is there, not the leader's: a lease that is due at the
 * leader's clock may still be renewed under the stamp of a next leader, so that calling it absent
 * before an entry has ended it would be a lie. The read waits for that instead
 * (read_answer_shows_due). What a lease has left is counted at the later of the two clocks. */
#ifndef NODE_READ_ANSWER_H_
#define NODE_READ_ANSWER_H_

#include "client/protocol.h"
#include "fsm/fsm.h"

/* Scratch that replies point into; one at a time. */
struct read_answer {
    struct lease_view *leases; /* owned */
    uint32_t cap;
};

void read_answer_init(struct read_answer *answer);
void read_answer_deinit(struct read_answer *answer);

/* True when the answer would show a lease that is due at this clock. */
bool read_answer_shows_due(const struct fsm *fsm, const struct proto_request *asked,
                           uint64_t clock_ms);

/* `clock_ms` is the read point's; 0 for a stale read. The reply is valid until the next use of the
 * scratch and until the table changes. */
void read_answer_make(struct read_answer *answer, const struct fsm *fsm,
                      const struct proto_request *asked, uint64_t clock_ms,
                      struct proto_reply *out_reply);

#endif
