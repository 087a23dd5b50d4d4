/* A registry of counters, gauges and histograms, and their text for Prometheus. Pure.
 *
 * Names are static words of [a-z0-9_] with the unit at their end (`_ms`, `_us`, `_bytes`, counters
 * `_total`). Modules count in plain structs of their own; whoever owns them sets the metrics from
 * those when somebody asks. */
#ifndef NODE_METRICS_H_
#define NODE_METRICS_H_

#include "fsm/base/buf.h"

#define METRICS_MAX 512u
#define METRIC_NAME_LEN_MAX 64u
#define METRIC_BUCKETS_MAX 24u

enum metric_kind {
    METRIC_KIND_COUNTER,
    METRIC_KIND_GAUGE,
    METRIC_KIND_HISTOGRAM,
};

struct metrics;
struct metric;

struct metrics *metrics_create(void);
void metrics_destroy(struct metrics *metrics);

/* Register; name and help are static. Each name once (CHECK). */
struct metric *metrics_counter(struct metrics *metrics, const char *name, const char *help);
struct metric *metrics_gauge(struct metrics *metrics, const char *name, const char *help);

/* `bounds` are the upper bounds of the buckets, rising, at most METRIC_BUCKETS_MAX, copied; what is
 * larger than the last counts as +Inf. */
struct metric *metrics_histogram(struct metrics *metrics, const char *name, const char *help,
                                 const uint64_t *bounds, unsigned count);

void metric_add(struct metric *metric, uint64_t by); /* counters and gauges */

/* A gauge's value, or a counter's that is counted elsewhere: a counter never goes back (CHECK). */
void metric_set(struct metric *metric, uint64_t value);

void metric_observe(struct metric *metric, uint64_t value); /* histograms */

/* Counters and gauges: the value. Histograms: how many were observed. */
uint64_t metric_value(const struct metric *metric);

/* Upper bound of the bucket in which the `per_mille`-th part of the observations ends; 0 without
 * any; UINT64_MAX beyond the last bound. */
uint64_t metric_quantile(const struct metric *metric, unsigned per_mille);

/* In the order of the names; a histogram as NAME_count and NAME_sum. `name` is valid during the
 * call. */
void metrics_each(const struct metrics *metrics,
                  void (*cb)(void *ctx, const char *name, uint64_t value), void *ctx);

/* The text format of Prometheus, in the order of the names. */
void metrics_render(const struct metrics *metrics, struct buf *out);

#endif
