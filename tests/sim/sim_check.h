/* The promises, as far as one run shows them.
 *
 * The history is what the state machines say they changed, recorded by whichever node applies an
 * index first; every other node must say the same of that index (P10). Against it:
 *
 *   P1   what each state machine holds passes its invariants (every 256 entries)
 *   P2   while a teardown marker stands nothing else is granted
 *   P3   no lease expires before its holder's latest answered grant or renewal allows it to
 *   P5   each grant's token is larger than every earlier one of its key
 *   P6   a read shows what the history says at its index, and no read or write is answered from
 *        before something that had been answered when it was asked
 *   P7, P11  a grant that was answered stands in the history at that place, with that token */
#ifndef TESTS_SIM_SIM_CHECK_H_
#define TESTS_SIM_SIM_CHECK_H_

#include "tests/sim/sim.h"

#define SIM_KEYS_MAX 256u

void sim_check_create(struct sim *sim);
void sim_check_destroy(struct sim *sim);

/* A node has applied an entry, or (`changes` NULL) has installed a snapshot. */
void sim_check_applied(struct sim *sim, unsigned node, uint64_t index,
                       const struct changes *changes);

/* The index that an answer given from now on must have reached. */
uint64_t sim_check_floor(const struct sim *sim);

/* A write of `owner` was answered with this outcome. */
void sim_check_outcome(struct sim *sim, unsigned key, const char *owner,
                       const struct keyed_outcome *outcome, uint64_t floor);

/* Its holder believes to have the key until then: 0.99 of the TTL after it asked. Token 0: it does
 * not know what it has. */
void sim_check_belief(struct sim *sim, unsigned key, uint64_t token, uint64_t until_ns);

/* A read of one key was answered; view->key.base NULL: nobody has it. */
void sim_check_read(struct sim *sim, unsigned key, const struct proto_reply *reply, uint64_t floor);

/* When all is at rest. */
void sim_check_end(struct sim *sim);

uint64_t sim_check_entries(const struct sim *sim);

/* "k0", "k1", ...; the number of a key or SIM_KEYS_MAX for any other. */
unsigned sim_key_of(struct slice key);

#endif
