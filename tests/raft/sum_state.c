/* See the header. */
#include "tests/raft/sum_state.h"

#include <string.h>

#include "fsm/base/check.h"

void sum_state_add(struct sum_state *state, uint64_t command)
{
    state->applied++;
    state->sum = state->sum * 1000003 + command;
}

void sum_state_save(const struct sum_state *state, struct raft_buffer *out_bufs[],
                    unsigned *out_count)
{
    struct raft_buffer *buf = raft_malloc(sizeof(*buf));
    CHECK(buf != NULL);
    buf->len = sizeof(*state);
    buf->base = raft_malloc(sizeof(*state));
    CHECK(buf->base != NULL);
    memcpy(buf->base, state, sizeof(*state));
    *out_bufs = buf;
    *out_count = 1;
}

void sum_state_load(struct sum_state *state, struct raft_buffer *buf)
{
    CHECK(buf->len == sizeof(*state));
    memcpy(state, buf->base, sizeof(*state));
    raft_free(buf->base);
}
