/* The base that every folder stands on: buf, list, heap, hash, rng, utf8, mp_scan, units, status,
 * violation. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <cmocka.h>

#include "fsm/base/buf.h"
#include "fsm/base/hash.h"
#include "fsm/base/heap.h"
#include "fsm/base/list.h"
#include "fsm/base/mp_scan.h"
#include "fsm/base/rng.h"
#include "fsm/base/slice.h"
#include "fsm/base/status.h"
#include "fsm/base/units.h"
#include "fsm/base/utf8.h"
#include "fsm/base/violation.h"

static void test_base__slices_compare_by_bytes_then_length(void **state)
{
    (void)state;
    assert_true(slice_compare(slice_text("a"), slice_text("b")) < 0);
    assert_true(slice_compare(slice_text("ab"), slice_text("a")) > 0);
    assert_true(slice_compare(slice_text(""), slice_text("a")) < 0);
    assert_true(slice_compare(slice_text("\xff"), slice_text("a")) > 0); /* bytes are unsigned */
    assert_int_equal(slice_compare(slice_text("x"), slice_text("x")), 0);
    assert_true(slice_equal(slice_from(NULL, 0), slice_text("")));
    assert_true(slice_starts_with(slice_text("abc"), slice_text("ab")));
    assert_true(slice_starts_with(slice_text("abc"), slice_from(NULL, 0)));
    assert_false(slice_starts_with(slice_text("ab"), slice_text("abc")));
}

static void test_base__buf_grows_up_to_its_maximum_and_no_further(void **state)
{
    (void)state;
    struct buf buf;
    buf_init(&buf, 1000);
    buf_append_zeros(&buf, 999);
    assert_false(buf_overflown(&buf));
    buf_append_u8(&buf, 7);
    assert_false(buf_overflown(&buf));
    assert_int_equal(buf.len, 1000);
    buf_append_u8(&buf, 8);
    assert_true(buf_overflown(&buf));
    assert_int_equal(buf.len, 1000);
    buf_append(&buf, "", 0);
    assert_int_equal(buf.len, 1000);
    buf_clear(&buf);
    assert_false(buf_overflown(&buf));
    buf_append_zeros(&buf, 1001);
    assert_true(buf_overflown(&buf));
    assert_int_equal(buf.len, 0);
    buf_deinit(&buf);
}

static void test_base__buf_integers_are_little_endian(void **state)
{
    (void)state;
    static const uint8_t expected[] = {0x02, 0x01, 0x06, 0x05, 0x04, 0x03, 0x0e,
                                       0x0d, 0x0c, 0x0b, 0x0a, 0x09, 0x08, 0x07};
    struct buf buf;
    buf_init(&buf, 100);
    buf_append_u16(&buf, 0x0102);
    buf_append_u32(&buf, 0x03040506);
    buf_append_u64(&buf, 0x0708090a0b0c0d0eull);
    assert_int_equal(buf.len, sizeof expected);
    assert_memory_equal(buf.base, expected, sizeof expected);
    buf_deinit(&buf);
}

static void test_base__buf_reserve_commit_and_consume(void **state)
{
    (void)state;
    struct buf buf;
    buf_init(&buf, 10);
    uint8_t *room = buf_reserve(&buf, 6);
    assert_non_null(room);
    memcpy(room, "abcdef", 6);
    buf_commit(&buf, 5);
    buf_consume(&buf, 2);
    assert_true(slice_equal(buf_slice(&buf), slice_text("cde")));
    assert_int_equal(buf_write_cb(&buf, "fg", 2), 0);
    buf_consume(&buf, 5);
    assert_int_equal(buf.len, 0);
    assert_null(buf_reserve(&buf, 11));
    assert_true(buf_overflown(&buf));
    buf_deinit(&buf);
}

struct element {
    struct list link;
    int value;
};

static void test_base__list_keeps_order_and_survives_removal(void **state)
{
    (void)state;
    struct list head;
    struct element elements[4];
    list_init(&head);
    assert_true(list_empty(&head));
    assert_null(list_pop(&head));
    for (int i = 0; i < 4; i++) {
        list_init(&elements[i].link);
        elements[i].value = i;
        assert_false(list_linked(&elements[i].link));
    }
    list_append(&head, &elements[1].link);
    list_append(&head, &elements[2].link);
    list_append(&head, &elements[3].link);
    list_prepend(&head, &elements[0].link);
    struct list *link;
    struct list *after;
    int expected = 0;
    LIST_FOR_EACH (link, after, &head) {
        assert_int_equal(CONTAINER_OF(link, struct element, link)->value, expected++);
        if (expected == 2 || expected == 4) {
            list_remove(link);
        }
    }
    assert_int_equal(expected, 4);
    assert_ptr_equal(list_pop(&head), &elements[0].link);
    list_remove(&elements[0].link); /* in none: harmless */
    assert_ptr_equal(list_first(&head), &elements[2].link);
    assert_ptr_equal(list_pop(&head), &elements[2].link);
    assert_true(list_empty(&head));
}

struct weight {
    struct heap_node node;
    uint64_t value;
};

static bool weight_before(const struct heap_node *a, const struct heap_node *b)
{
    return ((const struct weight *)(const void *)a)->value <
           ((const struct weight *)(const void *)b)->value;
}

static void test_base__heap_yields_the_smallest_first(void **state)
{
    (void)state;
    enum { COUNT = 500 };
    static struct weight weights[COUNT];
    struct heap heap;
    struct rng rng;
    rng_init(&rng, 42);
    heap_init(&heap, weight_before);
    assert_null(heap_min(&heap));
    for (size_t i = 0; i < COUNT; i++) {
        heap_node_init(&weights[i].node);
        assert_false(heap_contains(&weights[i].node));
        weights[i].value = rng_below(&rng, 100);
        heap_insert(&heap, &weights[i].node);
    }
    for (size_t i = 0; i < COUNT; i += 3) { /* move some, remove some */
        weights[i].value = rng_below(&rng, 100);
        heap_moved(&heap, &weights[i].node);
    }
    for (size_t i = 1; i < COUNT; i += 5) {
        heap_remove(&heap, &weights[i].node);
        assert_false(heap_contains(&weights[i].node));
    }
    uint64_t last = 0;
    size_t count = 0;
    while (heap_min(&heap) != NULL) {
        struct weight *weight = (struct weight *)(void *)heap_min(&heap);
        assert_true(weight->value >= last);
        last = weight->value;
        heap_remove(&heap, &weight->node);
        count++;
    }
    assert_int_equal(count, COUNT - COUNT / 5);
    heap_deinit(&heap);
}

/* RFC 3720, appendix B.4, and the check value of the catalogue of CRCs. */
static void test_base__crc32c_has_its_published_values(void **state)
{
    (void)state;
    uint8_t bytes[32];
    assert_int_equal(crc32c(0, "123456789", 9), 0xe3069283);
    memset(bytes, 0, sizeof bytes);
    assert_int_equal(crc32c(0, bytes, sizeof bytes), 0x8a9136aa);
    memset(bytes, 0xff, sizeof bytes);
    assert_int_equal(crc32c(0, bytes, sizeof bytes), 0x62a8ab43);
    for (unsigned i = 0; i < sizeof bytes; i++) {
        bytes[i] = (uint8_t)i;
    }
    assert_int_equal(crc32c(0, bytes, sizeof bytes), 0x46dd794e);
    for (unsigned i = 0; i < sizeof bytes; i++) {
        bytes[i] = (uint8_t)(31 - i);
    }
    assert_int_equal(crc32c(0, bytes, sizeof bytes), 0x113fdb5c);
    static const uint8_t iscsi_read[48] = {
        0x01, 0xc0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x14, 0, 0, 0, 0, 0, 0x04, 0,
        0, 0, 0, 0x14, 0, 0, 0, 0x18, 0x28, 0, 0, 0, 0, 0, 0, 0, 0x02, 0, 0, 0, 0, 0, 0, 0};
    assert_int_equal(crc32c(0, iscsi_read, sizeof iscsi_read), 0xd9963a56);
    assert_int_equal(crc32c(0, "", 0), 0);
}

static void test_base__crc32c_continues_where_it_stopped(void **state)
{
    (void)state;
    const char *text = "123456789";
    for (size_t cut = 0; cut <= 9; cut++) {
        assert_int_equal(crc32c(crc32c(0, text, cut), text + cut, 9 - cut), 0xe3069283);
    }
}

static void test_base__hash64_depends_on_seed_bytes_and_length(void **state)
{
    (void)state;
    assert_int_equal(hash64(1, "abc", 3), hash64(1, "abc", 3));
    assert_int_not_equal(hash64(1, "abc", 3), hash64(2, "abc", 3));
    assert_int_not_equal(hash64(1, "abc", 3), hash64(1, "abd", 3));
    assert_int_not_equal(hash64(1, "\0", 1), hash64(1, "\0\0", 2));
    assert_int_not_equal(hash64(1, "abcdefgh", 8), hash64(1, "abcdefg", 7));
}

/* Low bits must spread too: they choose the bucket. */
static void test_base__hash64_spreads_over_buckets(void **state)
{
    (void)state;
    unsigned buckets[64] = {0};
    for (uint32_t i = 0; i < 6400; i++) {
        buckets[hash64(0, &i, sizeof i) & 63]++;
    }
    for (size_t i = 0; i < 64; i++) {
        assert_in_range(buckets[i], 50, 160);
    }
}

/* As the hash of CPython 3.12, which is SipHash-1-3 too, has them for the bytes 0, 1, 2, ... under
 * PYTHONHASHSEED=1. */
static void test_base__hash64_keyed_is_siphash_1_3(void **state)
{
    (void)state;
    static const struct hash_key key = {{0xaed66ce184be2329u, 0xebe9bbf1f1499052u}};
    static const struct {
        size_t len;
        uint64_t hash;
    } rows[] = {
        {1, 0xecd3e5afcecda4b9u},  {7, 0xfd15e78052a69ddfu},  {8, 0xc0b5739e7e28dd01u},
        {9, 0x208a1a5a0cbbf778u},  {15, 0xfa87985f39e97a53u}, {16, 0x12e9d283f9f37002u},
        {40, 0xdb056b8b4f38310bu},
    };
    uint8_t bytes[40];
    for (size_t i = 0; i < sizeof bytes; i++) {
        bytes[i] = (uint8_t)i;
    }
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_true(hash64_keyed(&key, bytes, rows[i].len) == rows[i].hash);
    }
}

static void test_base__hash64_keyed_depends_on_both_words_of_the_key(void **state)
{
    (void)state;
    static const struct hash_key keys[] = {{{0, 0}}, {{1, 0}}, {{0, 1}}};
    assert_true(hash64_keyed(&keys[0], "abc", 3) != hash64_keyed(&keys[1], "abc", 3));
    assert_true(hash64_keyed(&keys[0], "abc", 3) != hash64_keyed(&keys[2], "abc", 3));
    assert_true(hash64_keyed(&keys[0], NULL, 0) != hash64_keyed(&keys[0], "\0", 1));
}

static void test_base__rng_repeats_from_its_seed(void **state)
{
    (void)state;
    struct rng a;
    struct rng b;
    rng_init(&a, 7);
    rng_init(&b, 7);
    for (int i = 0; i < 100; i++) {
        assert_int_equal(rng_next(&a), rng_next(&b));
    }
    rng_init(&b, 8);
    assert_int_not_equal(rng_next(&a), rng_next(&b));
}

/* The generator of the paper: state {1, 2, 3, 4} yields these first. */
static void test_base__rng_is_xoshiro256_star_star(void **state)
{
    (void)state;
    struct rng rng = {.s = {1, 2, 3, 4}};
    assert_int_equal(rng_next(&rng), 11520);
    assert_int_equal(rng_next(&rng), 0);
    assert_int_equal(rng_next(&rng), 1509978240);
    assert_int_equal(rng_next(&rng), 1215971899390074240);
}

static void test_base__rng_stays_below_its_bound(void **state)
{
    (void)state;
    struct rng rng;
    rng_init(&rng, 1);
    bool seen[3] = {false};
    unsigned hits = 0;
    for (int i = 0; i < 1000; i++) {
        uint64_t value = rng_below(&rng, 3);
        assert_true(value < 3);
        seen[value] = true;
        assert_int_equal(rng_below(&rng, 1), 0);
        assert_false(rng_chance(&rng, 0));
        assert_true(rng_chance(&rng, 1000));
        hits += rng_chance(&rng, 500) ? 1 : 0;
    }
    assert_true(seen[0] && seen[1] && seen[2]);
    assert_in_range(hits, 400, 600);
}

static void test_base__utf8_follows_the_table_of_well_formed_sequences(void **state)
{
    (void)state;
    static const char *const fine[] = {"", "a~ ", "\xc2\xa0", "\xdf\xbf", "\xe0\xa0\x80",
                                       "\xed\x9f\xbf", "\xee\x80\x80", "\xef\xbf\xbf",
                                       "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"};
    for (size_t i = 0; i < sizeof fine / sizeof fine[0]; i++) {
        assert_int_equal(utf8_check(slice_text(fine[i])), UTF8_OK);
    }
    static const char *const broken[] = {
        "\x80",             /* continuation without a lead */
        "\xc0\xaf",         /* overlong '/' */
        "\xc1\xbf",         /* overlong */
        "\xe0\x9f\xbf",     /* overlong */
        "\xf0\x8f\xbf\xbf", /* overlong */
        "\xed\xa0\x80",     /* surrogate */
        "\xed\xbf\xbf",     /* surrogate */
        "\xf4\x90\x80\x80", /* beyond U+10FFFF */
        "\xf5\x80\x80\x80", /* no such lead */
        "\xff", "\xc2", "\xe2\x82", "\xf0\x9f\x98", /* cut */
        "\xc2z", "\xe2\x82z",                       /* broken off */
        "a\xc3\xa4\x80"};
    for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++) {
        assert_int_equal(utf8_check(slice_text(broken[i])), UTF8_INVALID);
    }
}

/* Plain text is looked at in words: every byte value at every place of texts of every length. */
static void test_base__utf8_sees_each_byte_at_each_place(void **state)
{
    (void)state;
    uint8_t text[26];
    for (size_t len = 1; len <= sizeof text; len++) {
        for (size_t at = 0; at < len; at++) {
            memset(text, 'k', len);
            for (unsigned value = 0; value < 256; value++) {
                text[at] = (uint8_t)value;
                enum utf8_verdict verdict = value >= 0x80                 ? UTF8_INVALID
                                            : value < 0x20 || value == 0x7f ? UTF8_CONTROL
                                                                            : UTF8_OK;
                assert_int_equal(utf8_check(slice_from(text, len)), verdict);
            }
        }
    }
}

static void test_base__utf8_names_control_characters(void **state)
{
    (void)state;
    static const char *const controls[] = {"\x01", "\x1f", "\x7f", "\xc2\x80", "\xc2\x9f", "a\nb"};
    for (size_t i = 0; i < sizeof controls / sizeof controls[0]; i++) {
        assert_int_equal(utf8_check(slice_text(controls[i])), UTF8_CONTROL);
    }
    assert_int_equal(utf8_check(slice_from("\0", 1)), UTF8_CONTROL);
    assert_int_equal(utf8_check(slice_text("\x01\xff")), UTF8_INVALID); /* the worse one */
    assert_int_equal(utf8_check(slice_text(" ")), UTF8_OK);
    uint32_t code = 0;
    assert_int_equal(utf8_decode(slice_text("\xf0\x9f\x98\x80"), 0, &code), 4);
    assert_int_equal(code, 0x1f600);
}

static enum mp_scan_verdict scan(const void *bytes, size_t len, size_t *out_len)
{
    static const struct mp_scan_limits limits = {.depth = 3, .items = 10, .len = 64};
    return mp_scan(slice_from(bytes, len), &limits, out_len);
}

static void test_base__mp_scan_finds_the_end_of_each_type(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t len;
    } objects[] = {
        {"\x00", 1}, {"\x7f", 1}, {"\xe0", 1}, {"\xc0", 1}, {"\xc2", 1}, {"\xc3", 1},
        {"\xcc\xff", 2}, {"\xcd\xff\xff", 3}, {"\xce\1\2\3\4", 5}, {"\xcf\1\2\3\4\5\6\7\10", 9},
        {"\xd0\xff", 2}, {"\xd1\xff\xff", 3}, {"\xd2\1\2\3\4", 5}, {"\xd3\1\2\3\4\5\6\7\10", 9},
        {"\xca\1\2\3\4", 5}, {"\xcb\1\2\3\4\5\6\7\10", 9}, {"\xa0", 1}, {"\xa2xy", 3},
        {"\xd9\1x", 3}, {"\xda\0\1x", 4}, {"\xdb\0\0\0\1x", 6}, {"\xc4\1x", 3},
        {"\xc5\0\1x", 4}, {"\xc6\0\0\0\1x", 6}, {"\x90", 1}, {"\x92\1\x91\2", 4}, {"\x80", 1},
        {"\x81\1\x90", 3}, {"\xdc\0\1\1", 4}, {"\xdd\0\0\0\1\1", 6}, {"\xde\0\1\1\2", 5},
        {"\xdf\0\0\0\1\1\2", 7},
    };
    for (size_t i = 0; i < sizeof objects / sizeof objects[0]; i++) {
        size_t len = 0;
        assert_int_equal(scan(objects[i].bytes, objects[i].len, &len), MP_SCAN_WHOLE);
        assert_int_equal(len, objects[i].len);
        for (size_t cut = 0; cut < objects[i].len; cut++) {
            assert_int_equal(scan(objects[i].bytes, cut, &len), MP_SCAN_MORE);
        }
    }
}

static void test_base__mp_scan_stops_at_the_first_object(void **state)
{
    (void)state;
    size_t len = 0;
    assert_int_equal(scan("\x01\x02", 2, &len), MP_SCAN_WHOLE);
    assert_int_equal(len, 1);
}

static void test_base__mp_scan_refuses_what_is_beyond_a_limit_I1(void **state)
{
    (void)state;
    size_t len = 0;
    assert_int_equal(scan("\x91\x91\x91\x01", 4, &len), MP_SCAN_WHOLE);
    assert_int_equal(scan("\x91\x91\x91\x91\x01", 5, &len), MP_SCAN_REFUSED);
    assert_int_equal(scan("\x99\1\1\1\1\1\1\1\1\1", 10, &len), MP_SCAN_WHOLE);
    assert_int_equal(scan("\x9a\1\1\1\1\1\1\1\1\1\1", 11, &len), MP_SCAN_REFUSED);
    assert_int_equal(scan("\x9a", 1, &len), MP_SCAN_REFUSED); /* by its header alone */
    assert_int_equal(scan("\x85", 1, &len), MP_SCAN_REFUSED);
    assert_int_equal(scan("\xdd\xff\xff\xff\xff", 5, &len), MP_SCAN_REFUSED);
    assert_int_equal(scan("\xdf\xff\xff\xff\xff", 5, &len), MP_SCAN_REFUSED);
    assert_int_equal(scan("\xc6\xff\xff\xff\xff", 5, &len), MP_SCAN_REFUSED);
    uint8_t bytes[70] = {0xc4, 62};
    assert_int_equal(scan(bytes, 64, &len), MP_SCAN_WHOLE);
    assert_int_equal(len, 64);
    bytes[1] = 63;
    assert_int_equal(scan(bytes, 65, &len), MP_SCAN_REFUSED);
}

/* What a message costs must not depend on how it is cut: the scanner goes on where it stopped. */
static void test_base__mp_scanner_resumes_at_any_cut(void **state)
{
    (void)state;
    /* [1, {"ab": bin 4, 300: [nil, -1.0]}, "tail"] */
    static const uint8_t object[] = {0x93, 0x01, 0x82, 0xa2, 'a',  'b',  0xc4, 0x04, 1,    2,   3,
                                     4,    0xcd, 0x01, 0x2c, 0x92, 0xc0, 0xcb, 0xbf, 0xf0, 0,   0,
                                     0,    0,    0,    0,    0xd9, 0x04, 't',  'a',  'i',  'l'};
    struct mp_scan_limits limits = {.depth = 3, .items = 10, .len = 64};
    for (size_t first = 0; first < sizeof object; first++) {
        struct mp_scanner scanner;
        mp_scanner_init(&scanner, &limits);
        size_t len = 0;
        assert_int_equal(mp_scanner_look(&scanner, slice_from(object, first), &len), MP_SCAN_MORE);
        size_t at = scanner.at;
        for (size_t there = first; there < sizeof object; there++) {
            assert_int_equal(mp_scanner_look(&scanner, slice_from(object, there), &len),
                             MP_SCAN_MORE);
            assert_true(scanner.at >= at);
            at = scanner.at;
        }
        assert_int_equal(mp_scanner_look(&scanner, slice_from(object, sizeof object), &len),
                         MP_SCAN_WHOLE);
        assert_int_equal(len, sizeof object);
    }
}

static void test_base__mp_scan_refuses_unused_and_extension_types(void **state)
{
    (void)state;
    static const uint8_t leads[] = {0xc1, 0xc7, 0xc8, 0xc9, 0xd4, 0xd5, 0xd6, 0xd7, 0xd8};
    for (size_t i = 0; i < sizeof leads; i++) {
        uint8_t bytes[20] = {leads[i], 1};
        size_t len = 0;
        assert_int_equal(scan(bytes, sizeof bytes, &len), MP_SCAN_REFUSED);
    }
}

static void test_base__units_convert_and_never_wrap(void **state)
{
    (void)state;
    assert_int_equal(ms_to_ns(3), 3000000);
    assert_int_equal(ns_to_ms_floor(1999999), 1);
    assert_int_equal(ns_to_ms_ceil(1000001), 2);
    assert_int_equal(ns_to_ms_ceil(1000000), 1);
    assert_int_equal(ns_to_ms_ceil(0), 0);
    uint64_t sum = 5;
    assert_true(add_u64(UINT64_MAX - 1, 1, &sum));
    assert_int_equal(sum, UINT64_MAX);
    sum = 5;
    assert_false(add_u64(UINT64_MAX, 1, &sum));
    assert_int_equal(sum, 5);
    assert_int_equal(sub_or_zero_u64(5, 3), 2);
    assert_int_equal(sub_or_zero_u64(3, 5), 0);
    assert_int_equal(min_u64(1, 2), 1);
    assert_int_equal(max_u64(1, 2), 2);
}

static void test_base__every_status_has_name_text_class_and_error(void **state)
{
    (void)state;
    for (int i = 0; i < STATUS_COUNT; i++) {
        enum status st = (enum status)i;
        assert_true(strlen(status_name(st)) > 0);
        assert_true(strlen(status_text(st)) > 0);
        enum api_error error = status_api_error(st);
        assert_true((error == API_ERROR_NONE) == (st == STATUS_OK));
        assert_true((status_class(st) == STATUS_CLASS_DONE) == (st == STATUS_OK));
        /* P8: what may have happened is told as UNKNOWN and nothing else is. */
        assert_true((status_class(st) == STATUS_CLASS_MAYBE) == (error == API_ERROR_UNKNOWN));
        assert_true((status_class(st) == STATUS_CLASS_NOT_DONE) ==
                    (error == API_ERROR_UNAVAILABLE));
    }
    assert_string_equal(status_name(STATUS_NO_LEADER), "NO_LEADER");
    assert_string_equal(api_error_name(API_ERROR_NONE), "NONE");
    assert_string_equal(api_error_name(API_ERROR_INVALID), "INVALID");
    assert_string_equal(api_error_name(API_ERROR_UNAVAILABLE), "UNAVAILABLE");
    assert_string_equal(api_error_name(API_ERROR_UNKNOWN), "UNKNOWN");
    assert_string_equal(api_error_name(API_ERROR_DENIED), "DENIED");
    assert_string_equal(api_error_name(API_ERROR_INCOMPATIBLE), "INCOMPATIBLE");
    assert_string_equal(api_error_name(API_ERROR_INTERNAL), "INTERNAL");
}

static void test_base__a_violation_shows_its_value_printable_and_cut(void **state)
{
    (void)state;
    struct violation violation;
    violation_set(&violation, "key", slice_from("a\0\\\x1b[2J\xc3\xa4", 9), "rule");
    assert_string_equal(violation.field, "key");
    assert_string_equal(violation.rule, "rule");
    assert_string_equal(violation.value, "a\\x00\\x5c\\x1b[2J\\xc3\\xa4");
    char text[200];
    memset(text, 'x', sizeof text);
    violation_set(&violation, "key", slice_from(text, 92), "rule");
    assert_int_equal(strlen(violation.value), 92);
    assert_int_equal(violation.value[91], 'x');
    violation_set(&violation, "key", slice_from(text, 93), "rule");
    assert_int_equal(strlen(violation.value), 95);
    assert_string_equal(violation.value + 92, "...");
    violation_set_u64(&violation, "ttl_ms", UINT64_MAX, "rule");
    assert_string_equal(violation.value, "18446744073709551615");
    violation_set_u64(&violation, "ttl_ms", 0, "rule");
    assert_string_equal(violation.value, "0");
    violation_set_text(&violation, "ttl_ms", "a float", "rule");
    assert_string_equal(violation.value, "a float");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_base__slices_compare_by_bytes_then_length),
        cmocka_unit_test(test_base__buf_grows_up_to_its_maximum_and_no_further),
        cmocka_unit_test(test_base__buf_integers_are_little_endian),
        cmocka_unit_test(test_base__buf_reserve_commit_and_consume),
        cmocka_unit_test(test_base__list_keeps_order_and_survives_removal),
        cmocka_unit_test(test_base__heap_yields_the_smallest_first),
        cmocka_unit_test(test_base__crc32c_has_its_published_values),
        cmocka_unit_test(test_base__crc32c_continues_where_it_stopped),
        cmocka_unit_test(test_base__hash64_depends_on_seed_bytes_and_length),
        cmocka_unit_test(test_base__hash64_spreads_over_buckets),
        cmocka_unit_test(test_base__hash64_keyed_is_siphash_1_3),
        cmocka_unit_test(test_base__hash64_keyed_depends_on_both_words_of_the_key),
        cmocka_unit_test(test_base__rng_repeats_from_its_seed),
        cmocka_unit_test(test_base__rng_is_xoshiro256_star_star),
        cmocka_unit_test(test_base__rng_stays_below_its_bound),
        cmocka_unit_test(test_base__utf8_follows_the_table_of_well_formed_sequences),
        cmocka_unit_test(test_base__utf8_sees_each_byte_at_each_place),
        cmocka_unit_test(test_base__utf8_names_control_characters),
        cmocka_unit_test(test_base__mp_scan_finds_the_end_of_each_type),
        cmocka_unit_test(test_base__mp_scan_stops_at_the_first_object),
        cmocka_unit_test(test_base__mp_scan_refuses_what_is_beyond_a_limit_I1),
        cmocka_unit_test(test_base__mp_scan_refuses_unused_and_extension_types),
        cmocka_unit_test(test_base__mp_scanner_resumes_at_any_cut),
        cmocka_unit_test(test_base__units_convert_and_never_wrap),
        cmocka_unit_test(test_base__every_status_has_name_text_class_and_error),
        cmocka_unit_test(test_base__a_violation_shows_its_value_printable_and_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
