/* A state machine for tests of the log: how many commands it applied, and a sum that depends on
 * their order, so that two of them agree only after the same commands. */
#ifndef TESTS_RAFT_SUM_STATE_H_
#define TESTS_RAFT_SUM_STATE_H_

#include <raft.h>
#include <stdint.h>

struct sum_state {
    uint64_t applied;
    uint64_t sum;
};

void sum_state_add(struct sum_state *state, uint64_t command);

/* As libraft asks of raft_fsm: a snapshot in one buffer that libraft will own; one that is
 * released here. */
void sum_state_save(const struct sum_state *state, struct raft_buffer *out_bufs[],
                    unsigned *out_count);
void sum_state_load(struct sum_state *state, struct raft_buffer *buf);

#endif
