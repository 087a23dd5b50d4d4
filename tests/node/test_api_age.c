/* What ends a connection by its age. I8: an incomplete message that is too old, counted from its
 * first byte; one that goes on with whole messages does not. I9: a reply that nobody reads; one
 * that is read slowly does not. In a program of its own, since it takes half a minute of doing
 * nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/socket.h>
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

/* What the kernel holds for the reader: it takes more only when most of that is read. */
static size_t read_some(int fd)
{
    size_t all = 0;
    for (;;) {
        uint8_t bytes[65536];
        ssize_t len = recv(fd, bytes, sizeof bytes, 0);
        if (len <= 0) {
            return all;
        }
        all += (size_t)len;
    }
}

static void test_api__i9_a_reply_that_nobody_reads_is_ended_by_its_age(void **state)
{
    (void)state;
    struct api_bed bed;
    struct buf in;
    char why[256];
    bed_open(&bed);
    buf_init(&in, 1000);
    assert_int_equal(bed_listen(&bed, (struct api_config){.mode = 0600, .gid = -1}, why),
                     STATUS_OK);
    bed.reply_len = 6u * 1024u * 1024u;
    bed_message(1, 0, &in);
    int slow = bed_connect(&bed);
    int dead = bed_connect(&bed);
    (void)bed_write(slow, buf_slice(&in));
    (void)bed_write(dead, buf_slice(&in));
    while (bed.messages < 2) {
        (void)uv_run(loop_uv(bed.loop), UV_RUN_ONCE);
    }
    uint64_t start_ns = loop_clock_ns();
    uint64_t age_ns = ms_to_ns(API_UNREAD_MS_MAX);
    struct api_stats stats = {.connections = 2};
    while (stats.connections == 2 && loop_clock_ns() - start_ns < age_ns + ms_to_ns(DRIVE_MS)) {
        assert_true(read_some(slow) > 0);
        drive_for(bed.loop, 500);
        api_stats(bed.api, &stats);
    }
    assert_true(loop_clock_ns() - start_ns >= age_ns);
    assert_int_equal(stats.connections, 1);
    assert_int_equal(stats.unread, 1);
    assert_int_equal(stats.refused, 0);
    assert_int_equal(bed.unwritten, 1);

    /* The one that reads stays, and its last byte counts from when it came. */
    for (unsigned i = 0; i < 4; i++) {
        assert_true(read_some(slow) > 0);
        drive_for(bed.loop, 1000);
    }
    api_stats(bed.api, &stats);
    assert_int_equal(stats.connections, 1);
    drive_for(bed.loop, API_UNREAD_MS_MAX - 1500); /* 1000 have passed */
    api_stats(bed.api, &stats);
    assert_int_equal(stats.connections, 1);
    uint64_t end_ns = loop_clock_ns() + ms_to_ns(DRIVE_MS);
    while (stats.connections == 1 && loop_clock_ns() < end_ns) {
        (void)uv_run(loop_uv(bed.loop), UV_RUN_ONCE);
        api_stats(bed.api, &stats);
    }
    assert_int_equal(stats.unread, 2);
    assert_int_equal(bed.unwritten, 2);
    (void)close(slow);
    (void)close(dead);
    buf_deinit(&in);
    bed_close(&bed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
         cmocka_unit_test(test_api__i8_a_message_that_drips_in_is_ended_by_its_age),
        cmocka_unit_test(test_api__i9_a_reply_that_nobody_reads_is_ended_by_its_age),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
