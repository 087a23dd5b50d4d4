/* Frames of the links: round trips, the bytes of a greeting, both sides of each length, and every
 * malformed greeting. */
#include "node/link_frame.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

static struct link_greeting example(void)
{
    return (struct link_greeting){
        .version_min = 1,
        .version_max = 2,
        .identity = {.id = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16},
                     .generation = 3,
                     .generation_random = 0x1122334455667788},
        .node_id = 0xfedcba9876543210,
        .instance = 99,
        .address = "127.0.0.1:7420",
    };
}

static struct link_frame scanned(const struct buf *bytes)
{
    struct link_frame frame = {0};
    size_t len = 0;
    assert_int_equal(link_frame_scan(buf_slice(bytes), &frame, &len), LINK_FRAME_VERDICT_WHOLE);
    assert_int_equal(len, bytes->len);
    return frame;
}

static void test_link_frame__greetings_come_back_as_they_were(void **state)
{
    (void)state;
    static const enum frame_type types[] = {FRAME_TYPE_HELLO, FRAME_TYPE_WELCOME};
    for (unsigned i = 0; i < 2; i++) {
        struct buf out;
        buf_init(&out, 4096);
        struct link_greeting greeting = example();
        link_frame_greet(types[i], &greeting, &out);
        struct link_frame frame = scanned(&out);
        assert_int_equal(frame.type, types[i]);
        struct link_greeting again = {0};
        assert_int_equal(link_frame_read_greeting(frame.payload, &again), STATUS_OK);
        assert_int_equal(again.version_min, greeting.version_min);
        assert_int_equal(again.version_max, greeting.version_max);
        assert_memory_equal(&again.identity, &greeting.identity, sizeof again.identity);
        assert_int_equal(again.node_id, greeting.node_id);
        assert_int_equal(again.instance, greeting.instance);
        assert_string_equal(again.address, greeting.address);
        buf_deinit(&out);
    }
}

static void test_link_frame__the_bytes_of_a_hello(void **state)
{
    (void)state;
    static const uint8_t expected[] = {
        71,   0,    0,    0,    1,    0,    0,    0,                          /* header */
        'T',  'N',  'R',  'L',  1,    0,    2,    0,                          /* versions */
        1,    2,    3,    4,    5,    6,    7,    8,   9,   10,  11,  12,     /* cluster */
        13,   14,   15,   16,   3,    0,    0,    0,   0,   0,   0,   0,      /* generation */
        0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11,                       /* its random part */
        0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe,                       /* node id */
        99,   0,    0,    0,    0,    0,    0,    0,                          /* instance */
        14,   '1',  '2',  '7',  '.',  '0',  '.',  '0', '.', '1', ':', '7', '4', '2', '0'};
    struct buf out;
    buf_init(&out, 4096);
    struct link_greeting greeting = example();
    link_frame_greet(FRAME_TYPE_HELLO, &greeting, &out);
    assert_int_equal(out.len, sizeof expected);
    assert_memory_equal(out.base, expected, sizeof expected);
    buf_deinit(&out);
}

static void test_link_frame__refusals_come_back_as_they_were(void **state)
{
    (void)state;
    struct buf out;
    buf_init(&out, 4096);
    link_frame_refuse(LINK_REFUSAL_CLUSTER, "not ours", &out);
    struct link_refused refused;
    assert_int_equal(link_frame_read_refused(scanned(&out).payload, &refused), STATUS_OK);
    assert_int_equal(refused.code, LINK_REFUSAL_CLUSTER);
    assert_string_equal(refused.why, "not ours");

    char why[LINK_FRAME_WHY_LEN_MAX + 20];
    memset(why, 'y', sizeof why - 1);
    why[sizeof why - 1] = '\0';
    buf_clear(&out);
    link_frame_refuse(LINK_REFUSAL_BUSY, why, &out);
    assert_int_equal(link_frame_read_refused(scanned(&out).payload, &refused), STATUS_OK);
    assert_int_equal(strlen(refused.why), LINK_FRAME_WHY_LEN_MAX);
    buf_deinit(&out);
}

static void test_link_frame__shorter_payloads_are_malformed_and_longer_ones_not(void **state)
{
    (void)state;
    struct buf out;
    buf_init(&out, 4096);
    struct link_greeting greeting = example();
    link_frame_greet(FRAME_TYPE_HELLO, &greeting, &out);
    struct slice payload = scanned(&out).payload;
    struct link_greeting again;
    for (size_t len = 0; len < payload.len; len++) {
        assert_int_equal(link_frame_read_greeting(slice_from(payload.base, len), &again),
                         STATUS_MALFORMED);
    }
    /* A later version may add fields. */
    buf_append_u64(&out, 7);
    payload = slice_from(out.base + LINK_FRAME_HEADER_LEN, out.len - LINK_FRAME_HEADER_LEN);
    assert_int_equal(link_frame_read_greeting(payload, &again), STATUS_OK);

    buf_clear(&out);
    link_frame_refuse(LINK_REFUSAL_SELF, "abc", &out);
    payload = scanned(&out).payload;
    struct link_refused refused;
    for (size_t len = 0; len < payload.len; len++) {
        assert_int_equal(link_frame_read_refused(slice_from(payload.base, len), &refused),
                         STATUS_MALFORMED);
    }
    buf_deinit(&out);
}

/* Payload of the example with one byte changed. */
static enum status with_byte(size_t at, uint8_t byte)
{
    struct buf out;
    buf_init(&out, 4096);
    struct link_greeting greeting = example();
    link_frame_greet(FRAME_TYPE_HELLO, &greeting, &out);
    out.base[LINK_FRAME_HEADER_LEN + at] = byte;
    struct slice payload =
        slice_from(out.base + LINK_FRAME_HEADER_LEN, out.len - LINK_FRAME_HEADER_LEN);
    struct link_greeting again;
    enum status st = link_frame_read_greeting(payload, &again);
    buf_deinit(&out);
    return st;
}

static void test_link_frame__malformed_greetings(void **state)
{
    (void)state;
    assert_int_equal(with_byte(0, 't'), STATUS_MALFORMED);
    assert_int_equal(with_byte(3, 0), STATUS_MALFORMED);
    assert_int_equal(with_byte(4, 2), STATUS_OK);
    assert_int_equal(with_byte(4, 3), STATUS_MALFORMED); /* lowest version above the highest */
    assert_int_equal(with_byte(56, 13), STATUS_OK);
    assert_int_equal(with_byte(56, 15), STATUS_MALFORMED); /* longer than there are bytes */
    assert_int_equal(with_byte(57, 0x1b), STATUS_MALFORMED);
    assert_int_equal(with_byte(57, 0), STATUS_MALFORMED);
    assert_int_equal(with_byte(57, 0x80), STATUS_MALFORMED);

    struct link_greeting greeting = example();
    memset(greeting.address, 'a', LINK_FRAME_ADDRESS_LEN_MAX);
    struct buf out;
    buf_init(&out, 4096);
    link_frame_greet(FRAME_TYPE_HELLO, &greeting, &out);
    struct link_greeting again;
    assert_int_equal(link_frame_read_greeting(scanned(&out).payload, &again), STATUS_OK);
    buf_append_u8(&out, 'a');
    out.base[LINK_FRAME_HEADER_LEN + 56]++; /* one byte of address more than may be */
    struct slice payload =
        slice_from(out.base + LINK_FRAME_HEADER_LEN, out.len - LINK_FRAME_HEADER_LEN);
    assert_int_equal(link_frame_read_greeting(payload, &again), STATUS_MALFORMED);
    buf_deinit(&out);
}

static enum link_frame_verdict scan_header(uint32_t len, uint8_t type, uint8_t flags,
                                           uint16_t reserved)
{
    struct buf out;
    buf_init(&out, 64);
    buf_append_u32(&out, len);
    buf_append_u8(&out, type);
    buf_append_u8(&out, flags);
    buf_append_u16(&out, reserved);
    struct link_frame frame;
    size_t out_len = 0;
    enum link_frame_verdict verdict = link_frame_scan(buf_slice(&out), &frame, &out_len);
    buf_deinit(&out);
    return verdict;
}

static void test_link_frame__each_type_has_a_maximum_that_its_header_tells(void **state)
{
    (void)state;
    for (unsigned type = 0; type < 256; type++) {
        size_t max = link_frame_len_max((enum frame_type)type);
        assert_true(max <= FRAME_LEN_MAX);
        bool known = max > 0 || type == FRAME_TYPE_PING;
        enum link_frame_verdict at_max =
            max == 0 ? LINK_FRAME_VERDICT_WHOLE : LINK_FRAME_VERDICT_MORE;
        assert_int_equal(scan_header((uint32_t)max, (uint8_t)type, 0, 0),
                         known ? at_max : LINK_FRAME_VERDICT_REFUSED);
        assert_int_equal(scan_header((uint32_t)max + 1, (uint8_t)type, 0, 0),
                         LINK_FRAME_VERDICT_REFUSED);
        assert_int_equal(scan_header(UINT32_MAX, (uint8_t)type, 0, 0), LINK_FRAME_VERDICT_REFUSED);
        assert_int_equal(link_frame_for_owner((enum frame_type)type), known && type >= 16);
    }
    assert_int_equal(link_frame_len_max(FRAME_TYPE_REPLICA), FRAME_REPLICA_LEN_MAX);
    assert_int_equal(scan_header(0, FRAME_TYPE_PING, 1, 0), LINK_FRAME_VERDICT_REFUSED);
    assert_int_equal(scan_header(0, FRAME_TYPE_PING, 0, 1), LINK_FRAME_VERDICT_REFUSED);
    assert_int_equal(scan_header(0, FRAME_TYPE_PING, 0, 256), LINK_FRAME_VERDICT_REFUSED);
}

static void test_link_frame__scanning_waits_for_the_last_byte(void **state)
{
    (void)state;
    struct buf out;
    buf_init(&out, 64);
    link_frame_head(FRAME_TYPE_REPLICA, 3, &out);
    buf_append(&out, "abcX", 4);
    struct link_frame frame;
    size_t len = 0;
    for (size_t part = 0; part < 11; part++) {
        assert_int_equal(link_frame_scan(slice_from(out.base, part), &frame, &len),
                         LINK_FRAME_VERDICT_MORE);
    }
    assert_int_equal(link_frame_scan(buf_slice(&out), &frame, &len), LINK_FRAME_VERDICT_WHOLE);
    assert_int_equal(len, 11);
    assert_true(slice_equal(frame.payload, slice_text("abc")));
    buf_deinit(&out);
}

static void test_link_frame__identities_as_text(void **state)
{
    (void)state;
    struct link_greeting greeting = example();
    char text[LINK_IDENTITY_TEXT_LEN];
    link_identity_text(&greeting.identity, text);
    assert_string_equal(text, "0102030405060708090a0b0c0d0e0f10.3.1122334455667788");
    struct cluster_identity none = {0};
    struct cluster_identity other = greeting.identity;
    assert_true(link_identity_none(&none));
    assert_false(link_identity_none(&other));
    assert_true(link_identity_equal(&greeting.identity, &other));
    other.generation_random++;
    assert_false(link_identity_equal(&greeting.identity, &other));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_link_frame__greetings_come_back_as_they_were),
        cmocka_unit_test(test_link_frame__the_bytes_of_a_hello),
        cmocka_unit_test(test_link_frame__refusals_come_back_as_they_were),
        cmocka_unit_test(test_link_frame__shorter_payloads_are_malformed_and_longer_ones_not),
        cmocka_unit_test(test_link_frame__malformed_greetings),
        cmocka_unit_test(test_link_frame__each_type_has_a_maximum_that_its_header_tells),
        cmocka_unit_test(test_link_frame__scanning_waits_for_the_last_byte),
        cmocka_unit_test(test_link_frame__identities_as_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
