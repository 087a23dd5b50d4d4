/* Virtual time: a queue of events in the order of their time, then of their scheduling. Nothing
 * runs by itself; whoever owns the clock steps it. */
#ifndef TESTS_RAFT_FAKE_CLOCK_H_
#define TESTS_RAFT_FAKE_CLOCK_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef void (*fake_clock_cb)(void *arg);

struct fake_clock_event;

struct fake_clock {
    uint64_t now_ns;
    uint64_t sequence;
    struct fake_clock_event *events; /* owned, a binary heap */
    size_t count;
    size_t cap;
};

void fake_clock_init(struct fake_clock *clock, uint64_t now_ns);

/* Events that were not run are dropped. */
void fake_clock_deinit(struct fake_clock *clock);

/* Run `run(arg)` at `at_ns`, or now if that has passed, but never inside this call. */
void fake_clock_schedule(struct fake_clock *clock, uint64_t at_ns, fake_clock_cb run, void *arg);

/* Move to the next event and run it; false when there is none at or before `until_ns`, and then the
 * time is `until_ns`. */
bool fake_clock_step(struct fake_clock *clock, uint64_t until_ns);

/* All events of the next `duration_ns`. */
void fake_clock_advance(struct fake_clock *clock, uint64_t duration_ns);

#endif
