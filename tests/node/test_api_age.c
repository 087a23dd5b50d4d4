/* I8: an incomplete message ends its connection when it is too old, counted from its first byte;
 * one that goes on with whole messages does not. In a program of its own, since it takes half a
 * minute of doing nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/node/api_bed.h"

static bool has_connections(void *ctx)
{
    struct api_bed *bed = ctx;
    struct api_stats stats;
    api_stats(bed->api, &stats);
    return stats.connections == 1;
}

/* Dripping: a byte each time. */
static void drip(struct api_bed *bed, int fd, struct slice bytes, uint64_t ms)
{
    for (size_t i = 0; i < bytes.len; i++) {
        (void)bed_write(fd, slice_from(bytes.base + i, 1));
        drive_for(bed->loop, ms / bytes.len);
    }
}

static void test_api__i8_a_message_that_drips_in_is_ended_by_its_age(void **state)
{
    (void)state;
    struct api_bed bed;
    struct buf in;
    char why[256];
    bed_open(&bed);
    buf_init(&in, 1000);
    assert_int_equal(bed_listen(&bed, (struct api_config){.mode = 0600, .gid = -1}, why),
                     STATUS_OK);
    int bad = bed_connect(&bed);
    int good = bed_connect(&bed);
    bed_message(1, 100, &in);
    uint64_t start_ns = loop_clock_ns();
    (void)bed_write(bad, slice_from(in.base, 1));
    uint64_t age_ns = ms_to_ns(API_MESSAGE_AGE_MS_MAX);
    for (unsigned i = 0; i < 5; i++) {
        (void)bed_write(good, buf_slice(&in));
        drip(&bed, bad, slice_from(in.base + 1 + i, 1), API_MESSAGE_AGE_MS_MAX / 5 - 400);
    }
    struct api_stats stats;
    api_stats(bed.api, &stats);
    assert_true(loop_clock_ns() - start_ns < age_ns);
    assert_int_equal(stats.connections, 2);
    uint64_t end_ns = start_ns + age_ns + ms_to_ns(DRIVE_MS);
    while (!has_connections(&bed) && loop_clock_ns() < end_ns) {
        (void)uv_run(loop_uv(bed.loop), UV_RUN_ONCE);
    }
    assert_true(has_connections(&bed));
    assert_true(loop_clock_ns() - start_ns >= age_ns);
    api_stats(bed.api, &stats);
    assert_int_equal(stats.refused, 1);
    assert_int_equal(bed.messages, 5);
    (void)close(bad);
    (void)close(good);
    buf_deinit(&in);
    bed_close(&bed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_api__i8_a_message_that_drips_in_is_ended_by_its_age),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
