/* Recording of durations in the manner of HdrHistogram: log-linear buckets, 1/64 relative error,
 * constant cost, no allocation. Nanoseconds. */
#ifndef TESTS_BENCH_HISTOGRAM_H_
#define TESTS_BENCH_HISTOGRAM_H_

#include <stdint.h>

#define HISTOGRAM_SUB_BITS 6u
#define HISTOGRAM_BUCKETS ((64u - HISTOGRAM_SUB_BITS) << HISTOGRAM_SUB_BITS)

struct histogram {
    uint64_t count;
    uint64_t max_ns;
    uint64_t buckets[HISTOGRAM_BUCKETS];
};

static inline unsigned histogram_bucket(uint64_t ns)
{
    if (ns < (1u << HISTOGRAM_SUB_BITS)) {
        return (unsigned)ns;
    }
    unsigned top = 63u - (unsigned)__builtin_clzll(ns);
    unsigned shift = top - HISTOGRAM_SUB_BITS;
    unsigned sub = (unsigned)(ns >> shift) & ((1u << HISTOGRAM_SUB_BITS) - 1u);
    return ((shift + 1u) << HISTOGRAM_SUB_BITS) + sub;
}

static inline void histogram_add(struct histogram *histogram, uint64_t ns)
{
    histogram->count++;
    histogram->max_ns = ns > histogram->max_ns ? ns : histogram->max_ns;
    histogram->buckets[histogram_bucket(ns)]++;
}

/* The lower edge of the bucket in which the value at `per_mille` of the way lies; 0 when empty. */
static inline uint64_t histogram_at(const struct histogram *histogram, unsigned per_mille)
{
    uint64_t wanted = histogram->count * per_mille / 1000u;
    uint64_t seen = 0;
    for (unsigned i = 0; i < HISTOGRAM_BUCKETS; i++) {
        seen += histogram->buckets[i];
        if (seen > wanted) {
            unsigned shift = i >> HISTOGRAM_SUB_BITS;
            uint64_t sub = i & ((1u << HISTOGRAM_SUB_BITS) - 1u);
            return shift == 0 ? sub : (sub | (1u << HISTOGRAM_SUB_BITS)) << (shift - 1u);
        }
    }
    return histogram->max_ns;
}

#endif
