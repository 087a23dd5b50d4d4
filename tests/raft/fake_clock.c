/* A binary heap of events by value; the sequence breaks ties, so that runs repeat. */
#include "tests/raft/fake_clock.h"

#include <stdlib.h>

#include "fsm/base/check.h"

struct fake_clock_event {
    uint64_t at_ns;
    uint64_t sequence;
    fake_clock_cb run;
    void *arg;
};

static bool event_before(const struct fake_clock_event *a, const struct fake_clock_event *b)
{
    return a->at_ns < b->at_ns || (a->at_ns == b->at_ns && a->sequence < b->sequence);
}

void fake_clock_init(struct fake_clock *clock, uint64_t now_ns)
{
    *clock = (struct fake_clock){.now_ns = now_ns};
}

void fake_clock_deinit(struct fake_clock *clock)
{
    free(clock->events);
    *clock = (struct fake_clock){0};
}

void fake_clock_schedule(struct fake_clock *clock, uint64_t at_ns, fake_clock_cb run, void *arg)
{
    if (clock->count == clock->cap) {
        clock->cap = clock->cap == 0 ? 64 : clock->cap * 2;
        clock->events = realloc(clock->events, clock->cap * sizeof(*clock->events));
        CHECK(clock->events != NULL);
    }
    struct fake_clock_event event = {
        .at_ns = at_ns > clock->now_ns ? at_ns : clock->now_ns,
        .sequence = clock->sequence++,
        .run = run,
        .arg = arg,
    };
    size_t at = clock->count++;
    while (at > 0 && event_before(&event, &clock->events[(at - 1) / 2])) {
        clock->events[at] = clock->events[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    clock->events[at] = event;
}

static struct fake_clock_event event_pop(struct fake_clock *clock)
{
    struct fake_clock_event first = clock->events[0];
    struct fake_clock_event last = clock->events[--clock->count];
    size_t at = 0;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= clock->count) {
            break;
        }
        if (child + 1 < clock->count &&
            event_before(&clock->events[child + 1], &clock->events[child])) {
            child++;
        }
        if (!event_before(&clock->events[child], &last)) {
            break;
        }
        clock->events[at] = clock->events[child];
        at = child;
    }
    clock->events[at] = last;
    return first;
}

bool fake_clock_step(struct fake_clock *clock, uint64_t until_ns)
{
    if (clock->count == 0 || clock->events[0].at_ns > until_ns) {
        clock->now_ns = until_ns > clock->now_ns ? until_ns : clock->now_ns;
        return false;
    }
    struct fake_clock_event event = event_pop(clock);
    clock->now_ns = event.at_ns;
    event.run(event.arg);
    return true;
}

void fake_clock_advance(struct fake_clock *clock, uint64_t duration_ns)
{
    uint64_t until_ns = clock->now_ns + duration_ns;
    while (fake_clock_step(clock, until_ns)) {
    }
}
