/* The local API on a real socket: order and batching of replies, bounds, hostile bytes (I1, I2,
 * I4), connections over the limit (I8), callers that do not read (I9). */
#include "node/api.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cmocka.h>

#include "client/protocol.h"
#include "tests/node/api_bed.h"

static struct api_bed bed;
static struct buf out;
static struct buf in;

static int setup(void **state)
{
    (void)state;
    char why[256];
    bed_open(&bed);
    buf_init(&out, 512u * 1024u * 1024u);
    buf_init(&in, 64u * 1024u * 1024u);
    assert_int_equal(bed_listen(&bed, (struct api_config){.mode = 0600, .gid = -1}, why),
                     STATUS_OK);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    bed_close(&bed);
    buf_deinit(&out);
    buf_deinit(&in);
    return 0;
}

static struct api_stats stats_of(void)
{
    struct api_stats stats;
    api_stats(bed.api, &stats);
    return stats;
}

static void say(int fd, const struct buf *bytes)
{
    assert_int_equal(bed_write(fd, buf_slice(bytes)), bytes->len);
}

static bool is_held(void *ctx)
{
    return bed.held_count >= *(unsigned *)ctx;
}

static bool held(unsigned count)
{
    return drive(bed.loop, is_held, &count);
}

static bool is_lost(void *ctx)
{
    return bed.lost + bed.unwritten >= *(unsigned *)ctx;
}

static bool has_connections(void *ctx)
{
    return stats_of().connections == *(unsigned *)ctx;
}

static bool connections(unsigned count)
{
    return drive(bed.loop, has_connections, &count);
}

static void test_api__answers_and_names_the_caller(void **state)
{
    (void)state;
    int fd = bed_connect(&bed);
    bed_message(7, 10, &in);
    say(fd, &in);
    assert_true(bed_read(&bed, fd, in.len, &out));
    assert_memory_equal(out.base, in.base, in.len);
    assert_int_equal(bed.peer.uid, getuid());
    assert_int_equal(bed.peer.gid, getgid());
    assert_int_equal(bed.peer.pid, getpid());
    drive_for(bed.loop, 1);
    assert_int_equal(bed.written, 1);
    assert_int_equal(stats_of().messages, 1);
    (void)close(fd);
}

static void test_api__cuts_messages_wherever_bytes_end(void **state)
{
    (void)state;
    int fd = bed_connect(&bed);
    for (uint32_t id = 0; id < 3; id++) {
        bed_message(id, 20, &in);
    }
    for (size_t i = 0; i < in.len; i++) {
        assert_int_equal(bed_write(fd, slice_from(in.base + i, 1)), 1);
        (void)uv_run(loop_uv(bed.loop), UV_RUN_NOWAIT);
    }
    assert_true(bed_read(&bed, fd, in.len, &out));
    assert_memory_equal(out.base, in.base, in.len);
    assert_int_equal(bed.messages, 3);
    assert_int_equal(stats_of().input_len, 0);
    (void)close(fd);
}

static void test_api__replies_go_out_in_the_order_in_which_they_are_given(void **state)
{
    (void)state;
    bed.hold = true;
    int fd = bed_connect(&bed);
    struct buf expected;
    buf_init(&expected, 1000);
    for (uint32_t id = 1; id <= 3; id++) {
        bed_message(id, 0, &in);
    }
    say(fd, &in);
    assert_true(held(3));
    /* The last one first. */
    list_append(&bed.held, list_pop(&bed.held));
    list_append(&bed.held, list_pop(&bed.held));
    bed_message(3, 0, &expected);
    bed_message(1, 0, &expected);
    bed_message(2, 0, &expected);
    for (unsigned i = 0; i < 3; i++) {
        bed_answer_one(&bed);
    }
    assert_int_equal(bed.written, 0); /* not before the end of the turn */
    assert_true(bed_read(&bed, fd, expected.len, &out));
    assert_memory_equal(out.base, expected.base, expected.len);
    assert_int_equal(bed.written, 3);
    buf_deinit(&expected);
    (void)close(fd);
}

static void test_api__the_largest_message_and_one_byte_more(void **state)
{
    (void)state;
    int fd = bed_connect(&bed);
    bed_message(1, MESSAGE_LEN_MAX - 17, &in);
    assert_int_equal(in.len, MESSAGE_LEN_MAX);
    size_t sent = 0;
    while (sent < in.len) {
        sent += bed_write(fd, slice_from(in.base + sent, in.len - sent));
        (void)uv_run(loop_uv(bed.loop), UV_RUN_NOWAIT);
    }
    assert_true(bed_read(&bed, fd, in.len, &out));
    assert_memory_equal(out.base, in.base, in.len);
    (void)close(fd);

    buf_clear(&in);
    buf_clear(&out);
    bed_message(1, MESSAGE_LEN_MAX - 16, &in);
    assert_true(bed_say_until_closed(&bed, bed_connect(&bed), buf_slice(&in), &out));
    assert_int_equal(bed.messages, 1);
    assert_int_equal(stats_of().refused, 1);
}

static void test_api__calls_in_flight_are_bounded_and_go_on(void **state)
{
    (void)state;
    bed.hold = true;
    int fd = bed_connect(&bed);
    for (uint32_t id = 0; id < API_IN_FLIGHT_MAX + 100; id++) {
        bed_message(id, 0, &in);
    }
    say(fd, &in);
    assert_true(held(API_IN_FLIGHT_MAX));
    drive_for(bed.loop, 100);
    assert_int_equal(bed.held_count, API_IN_FLIGHT_MAX);
    bed_answer_one(&bed);
    assert_true(held(API_IN_FLIGHT_MAX));
    assert_int_equal(bed.messages, API_IN_FLIGHT_MAX + 1);
    bed.hold = false; /* the rest is answered as it comes, many in one turn */
    while (bed.held_count > 0) {
        bed_answer_one(&bed);
    }
    assert_true(bed_read(&bed, fd, in.len, &out));
    assert_memory_equal(out.base, in.base, in.len);
    assert_int_equal(stats_of().refused, 0);
    (void)close(fd);
}

static void test_api__a_caller_that_hangs_up_loses_its_calls(void **state)
{
    (void)state;
    bed.hold = true;
    int fd = bed_connect(&bed);
    bed_message(1, 0, &in);
    bed_message(2, 0, &in);
    say(fd, &in);
    assert_true(held(2));
    (void)close(fd);
    unsigned wanted = 2;
    assert_true(drive(bed.loop, is_lost, &wanted));
    assert_int_equal(bed.lost, 2);
    assert_int_equal(bed.held_count, 0);
    assert_true(connections(0));
}

static void test_api__a_hang_up_is_noticed_where_nobody_reads(void **state)
{
    (void)state;
    bed.hold = true;
    int fd = bed_connect(&bed);
    for (uint32_t id = 0; id <= API_IN_FLIGHT_MAX; id++) {
        bed_message(id, 0, &in);
    }
    say(fd, &in);
    assert_true(held(API_IN_FLIGHT_MAX));
    (void)close(fd);
    assert_true(connections(0));
    assert_int_equal(bed.lost, API_IN_FLIGHT_MAX);
}

static void test_api__a_refused_connection_loses_its_calls_after_the_call(void **state)
{
    (void)state;
    bed.hold = true;
    int fd = bed_connect(&bed);
    bed_message(1, 0, &in);
    say(fd, &in);
    assert_true(held(1));
    bed.refuse = true;
    say(fd, &in);
    assert_true(bed_say_until_closed(&bed, fd, slice_from("", 0), &out));
    assert_true(connections(0));
    assert_int_equal(bed.messages, 2);
    assert_int_equal(bed.lost, 1);
    assert_int_equal(out.len, 0);
}

static void test_api__i9_a_caller_that_never_reads_is_bounded_and_then_closed(void **state)
{
    (void)state;
    bed.hold = true;
    bed.reply_len = 4u * 1024u * 1024u;
    int fd = bed_connect(&bed);
    for (uint32_t id = 0; id < 100; id++) {
        bed_message(id, 0, &in);
    }
    say(fd, &in);
    assert_true(held(100));
    unsigned answered = 0;
    while (stats_of().unread == 0 && bed.held_count > 0) {
        bed_answer_one(&bed);
        answered++;
        (void)uv_run(loop_uv(bed.loop), UV_RUN_NOWAIT);
    }
    assert_true(answered <= 9); /* 32 MiB, and what the socket took */
    assert_true(connections(0));
    assert_int_equal(bed.lost + bed.unwritten, 100);
    (void)close(fd);
}

/* Eight that read nothing share nearly all that may wait; the reply that finds no room is that of
 * somebody who does read. */
static void test_api__i9_whoever_has_left_most_unread_makes_room(void **state)
{
    (void)state;
    enum { HOARDERS = 8, REPLIES = 7, MOST = 5 };
    int fds[HOARDERS];
    bed.hold = true;
    for (unsigned i = 0; i < HOARDERS; i++) {
        fds[i] = bed_connect(&bed);
        buf_clear(&in);
        for (uint32_t id = 0; id < REPLIES; id++) {
            bed_message(id, 0, &in);
        }
        say(fds[i], &in);
        assert_true(held(REPLIES));
        bed.reply_len = 4500u * 1024u + (i == MOST ? 1000 : 0);
        while (bed.held_count > 0) {
            bed_answer_one(&bed);
        }
    }
    assert_int_equal(stats_of().unread, 0); /* 246 of 256 MiB */
    int reader = bed_connect(&bed);
    say(reader, &in);
    assert_true(held(REPLIES));
    bed.reply_len = 2u * 1024u * 1024u;
    while (bed.held_count > 0) {
        bed_answer_one(&bed);
    }
    assert_int_equal(stats_of().unread, 1);
    assert_true(bed_read(&bed, reader, REPLIES * bed.reply_len, &out));
    drive_for(bed.loop, 1);
    assert_int_equal(bed.written, REPLIES);
    assert_int_equal(bed.unwritten, REPLIES);
    assert_true(connections(HOARDERS));
    buf_clear(&out);
    assert_true(bed_say_until_closed(&bed, fds[MOST], slice_from("", 0), &out));
    for (unsigned i = 0; i < HOARDERS; i++) {
        if (i != MOST) {
            (void)close(fds[i]);
        }
    }
    (void)close(reader);
}

static void test_api__a_slow_reader_is_not_read_from_until_it_has_read(void **state)
{
    (void)state;
    bed.reply_len = 512u * 1024u;
    int fd = bed_connect(&bed);
    for (uint32_t id = 0; id < 20; id++) {
        bed_message(id, 0, &in);
    }
    say(fd, &in);
    drive_for(bed.loop, 100);
    assert_true(bed.messages < 6); /* 1 MiB waits, and what the socket took */
    assert_true(bed_read(&bed, fd, 20 * bed.reply_len, &out));
    assert_int_equal(bed.messages, 20);
    drive_for(bed.loop, 1);
    assert_int_equal(bed.written, 20);
    (void)close(fd);
}

/* --- hostile bytes */

struct hostile {
    const char *what;
    const char *bytes;
    size_t len;
};

#define HOSTILE(what, bytes) {what, bytes, sizeof bytes - 1}

/* All of these are refused at once, with one error under the id 0. */
static const struct hostile hostile[] = {
    HOSTILE("array of 4 billion", "\xdd\xff\x00\x00\x00"),
    HOSTILE("map of 4 billion", "\xdf\xff\x00\x00\x00"),
    HOSTILE("str of 4 billion", "\xdb\xff\x00\x00\x00"),
    HOSTILE("bin of 4 billion", "\xc6\xff\x00\x00\x00"),
    HOSTILE("ext of 4 billion", "\xc9\xff\x00\x00\x00\x01"),
    HOSTILE("map inside parameters", "\x94\x00\x01\xa1m\xdf\xff\x00\x00\x00"),
    HOSTILE("array inside parameters", "\x94\x00\x01\xa1m\x81\xa1p\xdd\xff\x00\x00\x00"),
    HOSTILE("str inside parameters", "\x94\x00\x01\xa1m\x81\xa1p\xdb\xff\x00\x00\x00"),
    HOSTILE("bin inside parameters", "\x94\x00\x01\xa1m\x81\xa1p\xc6\xff\x00\x00\x00"),
    HOSTILE("ext inside parameters", "\x94\x00\x01\xa1m\x81\xa1p\xc9\xff\x00\x00\x00\x01"),
    HOSTILE("fixext inside parameters", "\x94\x00\x01\xa1m\x81\xa1p\xd4\x01\x01"),
    HOSTILE("byte never used", "\xc1"),
    HOSTILE("byte never used inside", "\x94\x00\x01\xa1m\xc1"),
    HOSTILE("nil", "\xc0"),
    HOSTILE("a text protocol", "GET / HTTP/1.1\r\n\r\n"),
    HOSTILE("depth of 9", "\x94\x00\x01\xa1m\x91\x91\x91\x91\x91\x91\x91\x91\x91\x00"),
};

static void test_api__i1_i2_i4_hostile_bytes_close_their_connection_only(void **state)
{
    (void)state;
    int bystander = bed_connect(&bed);
    for (size_t i = 0; i < sizeof hostile / sizeof hostile[0]; i++) {
        struct buf answer;
        buf_init(&answer, 65536);
        if (!bed_say_until_closed(&bed, bed_connect(&bed),
                                  slice_from(hostile[i].bytes, hostile[i].len), &answer)) {
            fail_msg("not closed: %s", hostile[i].what);
        }
        uint32_t id = 99;
        size_t len = 0;
        assert_int_equal(proto_scan(buf_slice(&answer), &len), PROTO_VERDICT_WHOLE);
        assert_int_equal(len, answer.len);
        assert_int_equal(proto_reply_id(buf_slice(&answer), &id), STATUS_OK);
        assert_int_equal(id, 0);
        assert_int_equal(stats_of().refused, i + 1);
        assert_int_equal(stats_of().input_len, 0);
        buf_deinit(&answer);
    }
    assert_int_equal(bed.messages, 0);
    bed_message(5, 1, &in);
    say(bystander, &in);
    assert_true(bed_read(&bed, bystander, in.len, &out));
    (void)close(bystander);
}

static void test_api__i2_nesting_of_ten_thousand_is_refused(void **state)
{
    (void)state;
    buf_append(&in, "\x94\x00\x01\xa1m", 5);
    uint8_t *nesting = buf_reserve(&in, 10000);
    memset(nesting, 0x91, 10000);
    buf_commit(&in, 10000);
    assert_true(bed_say_until_closed(&bed, bed_connect(&bed), buf_slice(&in), &out));
    assert_int_equal(bed.messages, 0);
}

/* What costs memory is counted for two hundred at once: the figure of one drowns in the allocator's
 * rounding. Half of them are refused, half wait for the rest of a large message. */
static void test_api__i1_a_bad_connection_costs_less_than_64_kib(void **state)
{
    (void)state;
    int fds[200];
    fds[0] = bed_connect(&bed); /* what the first connection costs once is no matter */
    (void)bed_write(fds[0], slice_from("\x94\x00\x01\xa1m\x81\xa1p\xc6\x00\x7f\xff\x00", 12));
    drive_for(bed.loop, 20);
    size_t before_kib = bed_rss_kib();
    for (unsigned i = 1; i < 200; i++) {
        fds[i] = bed_connect(&bed);
        if (i % 2 == 0) {
            (void)bed_write(fds[i], slice_from("\xdd\xff\x00\x00\x00", 5));
        } else {
            /* Announces 8 MiB less a little, and stops there. */
            (void)bed_write(fds[i],
                            slice_from("\x94\x00\x01\xa1m\x81\xa1p\xc6\x00\x7f\xff\x00", 12));
        }
    }
    drive_for(bed.loop, 100);
    assert_int_equal(stats_of().refused, 99);
    assert_int_equal(stats_of().connections, 101);
    size_t after_kib = bed_rss_kib();
    assert_true(after_kib < before_kib + 199 * 64);
    for (unsigned i = 0; i < 200; i++) {
        (void)close(fds[i]);
    }
    assert_true(connections(0));
}

static void test_api__input_of_all_connections_is_bounded(void **state)
{
    (void)state;
    enum { MANY = 12 };
    int fds[MANY];
    size_t sent[MANY] = {0};
    bed_message(1, MESSAGE_LEN_MAX - 17, &in);
    size_t part = in.len - 1; /* none is ever complete */
    for (unsigned i = 0; i < MANY; i++) {
        fds[i] = bed_connect(&bed);
    }
    size_t all = 0;
    for (unsigned idle = 0; idle < 20;) {
        size_t before = all;
        for (unsigned i = 0; i < MANY; i++) {
            size_t done = bed_write(fds[i], slice_from(in.base + sent[i], part - sent[i]));
            sent[i] += done;
            all += done;
        }
        (void)uv_run(loop_uv(bed.loop), UV_RUN_NOWAIT);
        idle = all == before ? idle + 1 : 0;
        assert_true(stats_of().input_len <= API_INPUT_LEN_MAX + 65536);
    }
    assert_true(all < MANY * part);
    assert_true(stats_of().input_len > API_INPUT_LEN_MAX - 65536);

    /* A small request is served all the same. */
    int small = bed_connect(&bed);
    struct buf request;
    buf_init(&request, 1000);
    bed_message(9, 100, &request);
    say(small, &request);
    assert_true(bed_read(&bed, small, request.len, &out));
    buf_deinit(&request);
    (void)close(small);

    /* When half of them leave the others are read again. */
    for (unsigned i = 0; i < MANY / 2; i++) {
        (void)close(fds[i]);
    }
    uint64_t end_ns = loop_clock_ns() + ms_to_ns(DRIVE_MS);
    for (unsigned i = MANY / 2; i < MANY; i++) {
        while (sent[i] < in.len && loop_clock_ns() < end_ns) {
            sent[i] += bed_write(fds[i], slice_from(in.base + sent[i], in.len - sent[i]));
            (void)uv_run(loop_uv(bed.loop), UV_RUN_NOWAIT);
        }
        buf_clear(&out);
        assert_true(bed_read(&bed, fds[i], in.len, &out));
        (void)close(fds[i]);
    }
    assert_true(connections(0));
    assert_int_equal(stats_of().input_len, 0);
}

/* The owner keeps 20 MiB for each call: four pass the 64 MiB, three small ones more the 128. */
static void test_api__what_calls_keep_is_bounded(void **state)
{
    (void)state;
    bed.hold = true;
    bed.keep_len = 20 * MIB;
    int greedy = bed_connect(&bed);
    for (uint32_t id = 0; id < 10; id++) {
        bed_message(id, API_SMALL_LEN, &in); /* a little more than small */
    }
    say(greedy, &in);
    assert_true(held(4));
    drive_for(bed.loop, 100);
    assert_int_equal(bed.held_count, 4);
    assert_int_equal(stats_of().kept_len, 80 * MIB);

    int small = bed_connect(&bed);
    buf_clear(&in);
    for (uint32_t id = 0; id < 5; id++) {
        bed_message(id, 10, &in);
    }
    say(small, &in);
    assert_true(held(7));
    drive_for(bed.loop, 100);
    assert_int_equal(bed.held_count, 7);

    /* Below 128 MiB small ones go on, below 64 the others too. */
    bed_answer_one(&bed);
    assert_true(held(7));
    bed_answer_one(&bed);
    assert_true(held(7));
    assert_int_equal(stats_of().kept_len, 140 * MIB);
    for (unsigned i = 0; i < 3; i++) {
        bed_answer_one(&bed);
    }
    drive_for(bed.loop, 100);
    assert_int_equal(bed.held_count, 4); /* 80 MiB: still too much */
    bed_answer_one(&bed);
    assert_true(held(4));
    assert_int_equal(bed.messages, 10);

    /* Who hangs up keeps nothing, and whoever waits goes on. */
    (void)close(small);
    (void)close(greedy);
    assert_true(connections(0));
    assert_int_equal(stats_of().kept_len, 0);
    int last = bed_connect(&bed);
    buf_clear(&in);
    bed_message(1, API_SMALL_LEN, &in);
    say(last, &in);
    assert_true(held(1));
    (void)close(last);
    assert_true(connections(0));
}

static void test_api__a_message_that_waits_for_room_is_served_whole(void **state)
{
    (void)state;
    bed.hold = true;
    bed.keep_len = API_KEPT_LEN_MAX;
    int greedy = bed_connect(&bed);
    bed_message(1, 10, &in);
    say(greedy, &in);
    assert_true(held(1));
    int fd = bed_connect(&bed);
    buf_clear(&in);
    bed_message(2, 100u * 1024u, &in);
    say(fd, &in);
    drive_for(bed.loop, 100);
    assert_int_equal(bed.messages, 1);
    bed.hold = false;
    bed_answer_one(&bed);
    assert_true(bed_read(&bed, fd, in.len, &out));
    assert_memory_equal(out.base, in.base, in.len);
    assert_int_equal(stats_of().kept_len, 0);
    assert_int_equal(stats_of().input_len, 0);
    (void)close(greedy);
    (void)close(fd);
}

/* --- connections */

static void test_api__i8_over_the_limit_a_newcomer_is_told_busy(void **state)
{
    (void)state;
    char why[256];
    bed_close_api(&bed);
    struct api_config config = {.mode = 0600, .gid = -1, .connections_max = 3};
    assert_int_equal(bed_listen(&bed, config, why), STATUS_OK);
    int fds[3];
    for (unsigned i = 0; i < 3; i++) {
        fds[i] = bed_connect(&bed);
    }
    assert_true(connections(3));
    for (unsigned i = 0; i < 20; i++) {
        struct buf answer;
        buf_init(&answer, 65536);
        assert_true(
            bed_say_until_closed(&bed, bed_connect(&bed), slice_from("", 0), &answer));
        struct proto_decoder *decoder = proto_decoder_create();
        struct proto_reply reply;
        uint32_t id = 99;
        assert_int_equal(proto_reply_id(buf_slice(&answer), &id), STATUS_OK);
        assert_int_equal(id, 0);
        assert_int_equal(proto_decode_reply(decoder, buf_slice(&answer), PROTO_METHOD_HELLO,
                                            &reply),
                         STATUS_OK);
        assert_int_equal(status_api_error(reply.status), API_ERROR_UNAVAILABLE);
        assert_true(slice_starts_with(reply.detail, slice_text("busy")));
        proto_decoder_destroy(decoder);
        buf_deinit(&answer);
    }
    assert_int_equal(stats_of().connections_refused, 20);
    assert_int_equal(stats_of().connections, 3);

    /* Those that are there are served, and whoever leaves makes room. */
    bed_message(1, 1, &in);
    say(fds[0], &in);
    assert_true(bed_read(&bed, fds[0], in.len, &out));
    (void)close(fds[0]);
    assert_true(connections(2));
    int fd = bed_connect(&bed);
    say(fd, &in);
    buf_clear(&out);
    assert_true(bed_read(&bed, fd, in.len, &out));
    (void)close(fd);
    (void)close(fds[1]);
    (void)close(fds[2]);
}

static void test_api__many_newcomers_at_once_are_all_told(void **state)
{
    (void)state;
    char why[256];
    bed_close_api(&bed);
    struct api_config config = {.mode = 0600, .gid = -1, .connections_max = 1};
    assert_int_equal(bed_listen(&bed, config, why), STATUS_OK);
    int first = bed_connect(&bed);
    assert_true(connections(1));
    int fds[30];
    for (unsigned i = 0; i < 30; i++) {
        fds[i] = bed_connect(&bed); /* they wait in the backlog */
        assert_true(fds[i] >= 0);
    }
    for (unsigned i = 0; i < 30; i++) {
        buf_clear(&out);
        assert_true(bed_say_until_closed(&bed, fds[i], slice_from("", 0), &out));
        assert_true(out.len > 0);
    }
    (void)close(first);
}

static void test_api__closing_loses_what_was_open(void **state)
{
    (void)state;
    bed.hold = true;
    int fd = bed_connect(&bed);
    bed_message(1, 0, &in);
    say(fd, &in);
    assert_true(held(1));
    bed_close_api(&bed);
    assert_int_equal(bed.lost, 1);
    assert_int_equal(bed_connect(&bed), -1);
    assert_true(bed_say_until_closed(&bed, fd, slice_from("", 0), &out));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_api__answers_and_names_the_caller),
        TEST(test_api__cuts_messages_wherever_bytes_end),
        TEST(test_api__replies_go_out_in_the_order_in_which_they_are_given),
        TEST(test_api__the_largest_message_and_one_byte_more),
        TEST(test_api__calls_in_flight_are_bounded_and_go_on),
        TEST(test_api__a_caller_that_hangs_up_loses_its_calls),
        TEST(test_api__a_hang_up_is_noticed_where_nobody_reads),
        TEST(test_api__a_refused_connection_loses_its_calls_after_the_call),
        TEST(test_api__i9_a_caller_that_never_reads_is_bounded_and_then_closed),
        TEST(test_api__i9_whoever_has_left_most_unread_makes_room),
        TEST(test_api__a_slow_reader_is_not_read_from_until_it_has_read),
        TEST(test_api__i1_i2_i4_hostile_bytes_close_their_connection_only),
        TEST(test_api__i2_nesting_of_ten_thousand_is_refused),
        TEST(test_api__i1_a_bad_connection_costs_less_than_64_kib),
        TEST(test_api__input_of_all_connections_is_bounded),
        TEST(test_api__what_calls_keep_is_bounded),
        TEST(test_api__a_message_that_waits_for_room_is_served_whole),
        TEST(test_api__i8_over_the_limit_a_newcomer_is_told_busy),
        TEST(test_api__many_newcomers_at_once_are_all_told),
        TEST(test_api__closing_loses_what_was_open),
    };
#undef TEST
    return cmocka_run_group_tests(tests, NULL, NULL);
}
