/* Kept sorted by name at registration, which happens once; setting and observing are array
 * writes. */
#include "node/metrics.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fsm/base/check.h"

#define SUFFIX_LEN_MAX 8u /* of "_bucket", "_count", "_sum" */

struct metric {
    const char *name;
    const char *help;
    enum metric_kind kind;
    uint64_t value; /* counters and gauges; histograms: observations */
    uint64_t sum;
    unsigned bound_count;
    uint64_t bounds[METRIC_BUCKETS_MAX];
    uint64_t buckets[METRIC_BUCKETS_MAX + 1]; /* not cumulative; the last is +Inf */
};

struct metrics {
    struct metric *sorted[METRICS_MAX];
    unsigned count;
};

static struct metric *add(struct metrics *metrics, enum metric_kind kind, const char *name,
                          const char *help);
static void check_name(const char *name);
static void render_value(const char *name, const char *suffix, uint64_t value, struct buf *out);
static void render_buckets(const struct metric *metric, struct buf *out);
static void render_head(const struct metric *metric, struct buf *out);

struct metrics *metrics_create(void)
{
    struct metrics *metrics = calloc(1, sizeof *metrics);
    CHECK(metrics != NULL);
    return metrics;
}

void metrics_destroy(struct metrics *metrics)
{
    if (metrics == NULL) {
        return;
    }
    for (unsigned i = 0; i < metrics->count; i++) {
        free(metrics->sorted[i]);
    }
    free(metrics);
}

struct metric *metrics_counter(struct metrics *metrics, const char *name, const char *help)
{
    return add(metrics, METRIC_KIND_COUNTER, name, help);
}

struct metric *metrics_gauge(struct metrics *metrics, const char *name, const char *help)
{
    return add(metrics, METRIC_KIND_GAUGE, name, help);
}

struct metric *metrics_histogram(struct metrics *metrics, const char *name, const char *help,
                                 const uint64_t *bounds, unsigned count)
{
    CHECK(count > 0 && count <= METRIC_BUCKETS_MAX);
    struct metric *metric = add(metrics, METRIC_KIND_HISTOGRAM, name, help);
    for (unsigned i = 0; i < count; i++) {
        CHECK(i == 0 || bounds[i] > bounds[i - 1]);
        metric->bounds[i] = bounds[i];
    }
    metric->bound_count = count;
    return metric;
}

void metric_add(struct metric *metric, uint64_t by)
{
    CHECK(metric->kind != METRIC_KIND_HISTOGRAM);
    metric->value += by;
}

void metric_set(struct metric *metric, uint64_t value)
{
    CHECK(metric->kind != METRIC_KIND_HISTOGRAM);
    CHECK(metric->kind != METRIC_KIND_COUNTER || value >= metric->value);
    metric->value = value;
}

void metric_observe(struct metric *metric, uint64_t value)
{
    CHECK(metric->kind == METRIC_KIND_HISTOGRAM);
    unsigned idx = 0;
    while (idx < metric->bound_count && value > metric->bounds[idx]) {
        idx++;
    }
    metric->buckets[idx]++;
    metric->value++;
    metric->sum += value;
}

uint64_t metric_value(const struct metric *metric)
{
    return metric->value;
}

uint64_t metric_quantile(const struct metric *metric, unsigned per_mille)
{
    CHECK(metric->kind == METRIC_KIND_HISTOGRAM && per_mille <= 1000);
    if (metric->value == 0) {
        return 0;
    }
    /* The rank is rounded up, without the product that could overflow. */
    uint64_t rank = metric->value / 1000 * per_mille +
                    (metric->value % 1000 * per_mille + 999) / 1000;
    uint64_t seen = 0;
    for (unsigned i = 0; i < metric->bound_count; i++) {
        seen += metric->buckets[i];
        if (seen >= rank) {
            return metric->bounds[i];
        }
    }
    return UINT64_MAX;
}

void metrics_each(const struct metrics *metrics,
                  void (*cb)(void *ctx, const char *name, uint64_t value), void *ctx)
{
    for (unsigned i = 0; i < metrics->count; i++) {
        const struct metric *metric = metrics->sorted[i];
        if (metric->kind != METRIC_KIND_HISTOGRAM) {
            cb(ctx, metric->name, metric->value);
            continue;
        }
        char name[METRIC_NAME_LEN_MAX + SUFFIX_LEN_MAX];
        (void)snprintf(name, sizeof name, "%s_count", metric->name);
        cb(ctx, name, metric->value);
        (void)snprintf(name, sizeof name, "%s_sum", metric->name);
        cb(ctx, name, metric->sum);
    }
}

void metrics_render(const struct metrics *metrics, struct buf *out)
{
    for (unsigned i = 0; i < metrics->count; i++) {
        const struct metric *metric = metrics->sorted[i];
        render_head(metric, out);
        if (metric->kind != METRIC_KIND_HISTOGRAM) {
            render_value(metric->name, "", metric->value, out);
            continue;
        }
        render_buckets(metric, out);
        render_value(metric->name, "_sum", metric->sum, out);
        render_value(metric->name, "_count", metric->value, out);
    }
}

static struct metric *add(struct metrics *metrics, enum metric_kind kind, const char *name,
                          const char *help)
{
    CHECK(metrics->count < METRICS_MAX);
    check_name(name);
    struct metric *metric = calloc(1, sizeof *metric);
    CHECK(metric != NULL);
    metric->kind = kind;
    metric->name = name;
    metric->help = help;

    unsigned idx = metrics->count;
    while (idx > 0 && strcmp(metrics->sorted[idx - 1]->name, name) > 0) {
        metrics->sorted[idx] = metrics->sorted[idx - 1];
        idx--;
    }
    CHECK(idx == 0 || strcmp(metrics->sorted[idx - 1]->name, name) != 0);
    metrics->sorted[idx] = metric;
    metrics->count++;
    return metric;
}

static void check_name(const char *name)
{
    size_t len = strlen(name);
    CHECK(len > 0 && len <= METRIC_NAME_LEN_MAX);
    for (size_t i = 0; i < len; i++) {
        bool letter = (name[i] >= 'a' && name[i] <= 'z') || name[i] == '_';
        CHECK(letter || (i > 0 && name[i] >= '0' && name[i] <= '9'));
    }
}

static void render_head(const struct metric *metric, struct buf *out)
{
    static const char *const kinds[] = {
        [METRIC_KIND_COUNTER] = "counter",
        [METRIC_KIND_GAUGE] = "gauge",
        [METRIC_KIND_HISTOGRAM] = "histogram",
    };
    const char *const parts[] = {"# HELP ",   metric->name, " ", metric->help, "\n# TYPE ",
                                 metric->name, " ",         kinds[metric->kind], "\n"};
    for (unsigned i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        buf_append(out, parts[i], strlen(parts[i]));
    }
}

static void render_value(const char *name, const char *suffix, uint64_t value, struct buf *out)
{
    char line[METRIC_NAME_LEN_MAX + SUFFIX_LEN_MAX + 24];
    int len = snprintf(line, sizeof line, "%s%s %" PRIu64 "\n", name, suffix, value);
    CHECK(len > 0 && (size_t)len < sizeof line);
    buf_append(out, line, (size_t)len);
}

/* Prometheus' buckets are cumulative. */
static void render_buckets(const struct metric *metric, struct buf *out)
{
    uint64_t seen = 0;
    for (unsigned i = 0; i <= metric->bound_count; i++) {
        char bound[24] = "+Inf";
        if (i < metric->bound_count) {
            (void)snprintf(bound, sizeof bound, "%" PRIu64, metric->bounds[i]);
        }
        seen += metric->buckets[i];
        char line[METRIC_NAME_LEN_MAX + SUFFIX_LEN_MAX + 64];
        int len = snprintf(line, sizeof line, "%s_bucket{le=\"%s\"} %" PRIu64 "\n", metric->name,
                           bound, seen);
        CHECK(len > 0 && (size_t)len < sizeof line);
        buf_append(out, line, (size_t)len);
    }
}
