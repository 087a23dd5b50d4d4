/* Units of time and sizes, and arithmetic on values that came from outside.
 *
 * `*_ms` is cluster time or a duration in milliseconds, `*_ns` the local monotonic clock (counting
 * suspend). The two never meet without one of these functions. */
#ifndef FSM_BASE_UNITS_H_
#define FSM_BASE_UNITS_H_

#include <stdbool.h>
#include <stdint.h>

#include "fsm/base/check.h"

#define NS_PER_MS 1000000ull
#define MS_PER_S 1000ull
#define KIB 1024ull
#define MIB (1024ull * 1024ull)

/* Milliseconds to nanoseconds. The argument must be below 2^64 / 10^6 (584,942 years). */
static inline uint64_t ms_to_ns(uint64_t ms)
{
    CHECK(ms <= UINT64_MAX / NS_PER_MS);
    return ms * NS_PER_MS;
}

/* Nanoseconds to milliseconds, fraction cut. */
static inline uint64_t ns_to_ms_floor(uint64_t ns)
{
    return ns / NS_PER_MS;
}

/* Nanoseconds to milliseconds, rounded up: for timers that must not fire early. */
static inline uint64_t ns_to_ms_ceil(uint64_t ns)
{
    return ns / NS_PER_MS + (ns % NS_PER_MS != 0 ? 1 : 0);
}

/* a + b in *out; false and *out untouched when it does not fit. */
static inline bool add_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    uint64_t sum;
    if (__builtin_add_overflow(a, b, &sum)) {
        return false;
    }
    *out = sum;
    return true;
}

/* a - b, or 0 where b is larger. */
static inline uint64_t sub_or_zero_u64(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

static inline uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static inline uint64_t max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

#endif
