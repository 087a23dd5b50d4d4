/* The registry: values, buckets at both sides of their bounds, quantiles, order and text. */
#include "node/metrics.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

static const uint64_t bounds[] = {10, 100, 1000};

static void test_metrics__counters_add_and_gauges_are_set(void **state)
{
    (void)state;
    struct metrics *metrics = metrics_create();
    struct metric *counter = metrics_counter(metrics, "calls_total", "Calls.");
    struct metric *gauge = metrics_gauge(metrics, "leases", "Leases.");
    metric_add(counter, 2);
    metric_add(counter, 3);
    assert_int_equal(metric_value(counter), 5);
    metric_set(counter, 5);
    metric_set(counter, 9);
    metric_set(gauge, 7);
    metric_set(gauge, 1);
    assert_int_equal(metric_value(counter), 9);
    assert_int_equal(metric_value(gauge), 1);
    metrics_destroy(metrics);
}

static void test_metrics__a_bound_belongs_to_its_bucket(void **state)
{
    (void)state;
    struct metrics *metrics = metrics_create();
    struct metric *metric = metrics_histogram(metrics, "commit_us", "Commit.", bounds, 3);
    assert_int_equal(metric_quantile(metric, 500), 0);
    metric_observe(metric, 10);
    assert_int_equal(metric_quantile(metric, 1000), 10);
    metric_observe(metric, 11);
    assert_int_equal(metric_quantile(metric, 1000), 100);
    assert_int_equal(metric_quantile(metric, 500), 10);
    assert_int_equal(metric_quantile(metric, 501), 100);
    metric_observe(metric, 1001);
    assert_int_equal(metric_quantile(metric, 1000), UINT64_MAX);
    assert_int_equal(metric_value(metric), 3);
    metrics_destroy(metrics);
}

static void test_metrics__text_is_in_the_order_of_names(void **state)
{
    (void)state;
    struct metrics *metrics = metrics_create();
    struct metric *gauge = metrics_gauge(metrics, "b_bytes", "Bytes.");
    struct metric *histogram = metrics_histogram(metrics, "c_us", "Time.", bounds, 3);
    struct metric *counter = metrics_counter(metrics, "a_total", "All.");
    metric_add(counter, 1);
    metric_set(gauge, 18446744073709551615ull);
    metric_observe(histogram, 5);
    metric_observe(histogram, 100);
    metric_observe(histogram, 5000);
    struct buf out;
    buf_init(&out, 4096);
    metrics_render(metrics, &out);
    static const char expected[] = "# HELP a_total All.\n"
                                   "# TYPE a_total counter\n"
                                   "a_total 1\n"
                                   "# HELP b_bytes Bytes.\n"
                                   "# TYPE b_bytes gauge\n"
                                   "b_bytes 18446744073709551615\n"
                                   "# HELP c_us Time.\n"
                                   "# TYPE c_us histogram\n"
                                   "c_us_bucket{le=\"10\"} 1\n"
                                   "c_us_bucket{le=\"100\"} 2\n"
                                   "c_us_bucket{le=\"1000\"} 2\n"
                                   "c_us_bucket{le=\"+Inf\"} 3\n"
                                   "c_us_sum 5105\n"
                                   "c_us_count 3\n";
    assert_int_equal(out.len, sizeof expected - 1);
    assert_memory_equal(out.base, expected, out.len);
    buf_deinit(&out);
    metrics_destroy(metrics);
}

static void on_metric(void *ctx, const char *name, uint64_t value)
{
    char *text = ctx;
    size_t len = strlen(text);
    assert_true(value < 10);
    memcpy(text + len, name, strlen(name) + 1);
    len = strlen(text);
    text[len] = (char)('0' + value);
    text[len + 1] = '\0';
}

static void test_metrics__each_gives_a_histogram_as_count_and_sum(void **state)
{
    (void)state;
    struct metrics *metrics = metrics_create();
    metric_observe(metrics_histogram(metrics, "b_us", "Time.", bounds, 1), 4);
    metric_add(metrics_counter(metrics, "a_total", "All."), 2);
    char text[128] = "";
    metrics_each(metrics, on_metric, text);
    assert_string_equal(text, "a_total2b_us_count1b_us_sum4");
    metrics_destroy(metrics);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_metrics__counters_add_and_gauges_are_set),
        cmocka_unit_test(test_metrics__a_bound_belongs_to_its_bucket),
        cmocka_unit_test(test_metrics__text_is_in_the_order_of_names),
        cmocka_unit_test(test_metrics__each_gives_a_histogram_as_count_and_sum),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
