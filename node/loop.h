/* The uv loop of a node: its clock, its timers, the end of each turn, and the count of live
 * handles.
 *
 * One loop thread runs everything of a node. The clock is read once per wake-up, per frame of a
 * peer and when a turn ends, and passed down as now_ns: CLOCK_BOOTTIME, monotonic and counting
 * suspend, in nanoseconds. Only the stamp of an entry reads it by itself (loop_clock_ns). No
 * callback may block for over 10 ms. */
#ifndef NODE_LOOP_H_
#define NODE_LOOP_H_

#include <stdbool.h>
#include <stdint.h>

#include "fsm/base/check.h"
#include "fsm/base/status.h"

struct uv_loop_s;
struct loop;
struct loop_timer;

NODISCARD enum status loop_create(struct loop **out_loop);

/* Only when no handle is live any more (CHECK). */
void loop_destroy(struct loop *loop);

struct uv_loop_s *loop_uv(struct loop *loop);

/* The clock as of this wake-up, or as it was refreshed since. Timers and turn ends of one turn see
 * the same. */
uint64_t loop_now_ns(const struct loop *loop);

/* The clock is read anew, for all that is still to come in this turn; what has passed since the
 * wake-up counts as a stall. Before input is judged whose age matters: the process may have been
 * stopped in the middle of a turn. */
uint64_t loop_refresh_ns(struct loop *loop);

/* The clock now. */
uint64_t loop_clock_ns(void);

/* Run until loop_stop. */
void loop_run(struct loop *loop);
void loop_stop(struct loop *loop);

/* Called at the end of every turn, after all its input and timers were handled and after what libuv
 * itself and handles of others (libraft's) did in it; in the order of adding. It may be called when
 * nothing was to be done. */
void loop_add_turn_end(struct loop *loop, void (*cb)(void *ctx, uint64_t now_ns), void *ctx);

/* For a turn end that left something to be done: the loop does not block before the next one. */
void loop_turn_again(struct loop *loop);

/* Longest time between two turn starts while work was there, since the last call; for the alarm at
 * one tick and for the rule of 500 ms of stall. */
uint64_t loop_stall_ns(struct loop *loop);

/* A one-shot timer that may be set anew at any time; never fires early. Timers of a turn run after
 * its input, so that a loop that stalled reads what waits before it judges who was silent. */
struct loop_timer *loop_timer_create(struct loop *loop, void (*cb)(void *ctx, uint64_t now_ns),
                                     void *ctx);
void loop_timer_set(struct loop_timer *timer, uint64_t at_ns); /* UINT64_MAX: off */
void loop_timer_destroy(struct loop_timer *timer); /* also inside its own callback */

/* SIGTERM, SIGINT: cb on the loop for each. SIGPIPE is blocked for the thread. */
void loop_catch_signals(struct loop *loop, void (*cb)(void *ctx, int signal_number), void *ctx);

/* Close what the loop itself owns, then run until what others have closed is gone. Whatever else is
 * still open is a bug of its owner (CHECK). */
void loop_close(struct loop *loop);

#endif
