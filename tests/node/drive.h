/* Runs a real loop until something is so, for tests of the input and output of a node. The deadline
 * is one for hangs: a loop of ours wakes at least twenty times a second. */
#ifndef TESTS_NODE_DRIVE_H_
#define TESTS_NODE_DRIVE_H_

#include <stdbool.h>
#include <uv.h>

#include "fsm/base/units.h"
#include "node/loop.h"

#define DRIVE_MS 20000u

/* True as soon as `done` says so; false at the deadline. */
static inline bool drive(struct loop *loop, bool (*done)(void *ctx), void *ctx)
{
    uint64_t end_ns = loop_clock_ns() + ms_to_ns(DRIVE_MS);
    while (!done(ctx)) {
        if (loop_clock_ns() > end_ns) {
            return false;
        }
        (void)uv_run(loop_uv(loop), UV_RUN_ONCE);
    }
    return true;
}

static inline bool drive_flag(void *ctx)
{
    return *(bool *)ctx;
}

/* Run for that long, whatever happens: to see that something does not. */
static inline void drive_for(struct loop *loop, uint64_t ms)
{
    uint64_t end_ns = loop_clock_ns() + ms_to_ns(ms);
    while (loop_clock_ns() < end_ns) {
        (void)uv_run(loop_uv(loop), UV_RUN_ONCE);
    }
}

#endif
