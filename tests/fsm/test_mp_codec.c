/* Our own MessagePack against msgpack-c: the same bytes are written, the same values read; and what
 * is cut off, of the wrong type or announced without being there fails. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <msgpack.h>
#include <stdlib.h>

#include "fsm/mp_codec.h"

#define LEN_MAX 200000u

static const uint64_t edges[] = {
    0,          1,           0x7f,        0x80,           0xff,           0x100,
    0x7fff,     0x8000,      0xffff,      0x10000,        0x7fffffff,     0x80000000,
    0xffffffff, 0x100000000, 0x7fffffffffffffff, 0x8000000000000000, UINT64_MAX - 1, UINT64_MAX,
};
static const uint32_t lens[] = {0, 1, 15, 16, 31, 32, 255, 256, 257, 65535, 65536, 65537};

static struct slice zeros(size_t len)
{
    static const uint8_t bytes[LEN_MAX];
    return slice_from(bytes, len);
}

static void assert_written_as(const struct buf *ours, const msgpack_sbuffer *theirs)
{
    assert_false(buf_overflown(ours));
    assert_int_equal(ours->len, theirs->size);
    assert_memory_equal(ours->base, theirs->data, theirs->size);
}

static void test_mp_codec__numbers_are_written_as_msgpack_c_does(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof edges / sizeof edges[0]; i++) {
        struct buf ours;
        buf_init(&ours, LEN_MAX);
        msgpack_sbuffer theirs;
        msgpack_sbuffer_init(&theirs);
        msgpack_packer packer;
        msgpack_packer_init(&packer, &theirs, msgpack_sbuffer_write);
        mp_write_u64(&ours, edges[i]);
        (void)msgpack_pack_uint64(&packer, edges[i]);
        mp_write_optional_u64(&ours, true, edges[i]);
        (void)msgpack_pack_uint64(&packer, edges[i]);
        mp_write_optional_u64(&ours, false, edges[i]);
        (void)msgpack_pack_nil(&packer);
        mp_write_bool(&ours, i % 2 == 0);
        (void)(i % 2 == 0 ? msgpack_pack_true(&packer) : msgpack_pack_false(&packer));
        assert_written_as(&ours, &theirs);
        struct mp_reader reader = mp_reader_of(buf_slice(&ours));
        bool has = false;
        assert_true(mp_read_u64(&reader) == edges[i]);
        assert_true(mp_read_optional_u64(&reader, &has) == edges[i] && has);
        assert_true(mp_read_optional_u64(&reader, &has) == 0 && !has);
        assert_true(mp_read_bool(&reader) == (i % 2 == 0));
        assert_true(mp_done(&reader));
        msgpack_sbuffer_destroy(&theirs);
        buf_deinit(&ours);
    }
}

static void test_mp_codec__arrays_and_bytes_are_written_as_msgpack_c_does(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof lens / sizeof lens[0]; i++) {
        struct buf ours;
        buf_init(&ours, 4 * LEN_MAX);
        msgpack_sbuffer theirs;
        msgpack_sbuffer_init(&theirs);
        msgpack_packer packer;
        msgpack_packer_init(&packer, &theirs, msgpack_sbuffer_write);
        mp_write_array(&ours, lens[i]);
        (void)msgpack_pack_array(&packer, lens[i]);
        mp_write_bin(&ours, zeros(lens[i]));
        (void)msgpack_pack_bin_with_body(&packer, zeros(lens[i]).base, lens[i]);
        mp_write_optional_bin(&ours, zeros(lens[i]));
        (void)msgpack_pack_bin_with_body(&packer, zeros(lens[i]).base, lens[i]);
        mp_write_optional_bin(&ours, slice_from(NULL, 0));
        (void)msgpack_pack_nil(&packer);
        assert_written_as(&ours, &theirs);
        struct mp_reader reader = mp_reader_of(buf_slice(&ours));
        assert_int_equal(mp_read_array(&reader), lens[i]);
        assert_int_equal(mp_read_bin(&reader).len, lens[i]);
        struct slice bytes = mp_read_optional_bin(&reader);
        assert_non_null(bytes.base);
        assert_int_equal(bytes.len, lens[i]);
        assert_null(mp_read_optional_bin(&reader).base);
        assert_true(mp_done(&reader));
        msgpack_sbuffer_destroy(&theirs);
        buf_deinit(&ours);
    }
}

static void write_some(struct buf *out)
{
    mp_write_array(out, 3);
    mp_write_u64(out, UINT64_MAX);
    mp_write_bin(out, slice_text("bytes"));
    mp_write_array(out, 17);
    mp_write_optional_bin(out, slice_from(NULL, 0));
    mp_write_u64(out, 300);
    mp_write_bool(out, true);
    mp_write_bin(out, zeros(300));
}

/* At every maximum that is too small the buffer says so; at the exact one it does not. */
static void test_mp_codec__a_buffer_that_is_too_small_overflows(void **state)
{
    (void)state;
    struct buf whole;
    buf_init(&whole, LEN_MAX);
    write_some(&whole);
    for (size_t max = 1; max <= whole.len; max++) {
        struct buf small;
        buf_init(&small, max);
        write_some(&small);
        assert_int_equal(buf_overflown(&small), max < whole.len);
        assert_true(small.len <= max);
        assert_memory_equal(small.base == NULL ? whole.base : small.base, whole.base, small.len);
        buf_deinit(&small);
    }
    buf_deinit(&whole);
}

static void read_some(struct mp_reader *reader)
{
    mp_read_array_of(reader, 3);
    assert_true(mp_read_u64(reader) == UINT64_MAX || reader->failed);
    assert_true(slice_equal(mp_read_bin(reader), slice_text("bytes")) || reader->failed);
    assert_true(mp_read_array(reader) == 17 || reader->failed);
    assert_true(mp_read_optional_bin(reader).base == NULL || reader->failed);
    assert_true(mp_read_u64(reader) == 300 || reader->failed);
    assert_true(mp_read_bool(reader) || reader->failed);
    assert_true(mp_read_bin(reader).len == 300 || reader->failed);
}

static void test_mp_codec__every_cut_fails_and_nothing_is_read_behind_it(void **state)
{
    (void)state;
    struct buf whole;
    buf_init(&whole, LEN_MAX);
    write_some(&whole);
    for (size_t len = 0; len <= whole.len; len++) {
        uint8_t *exact = malloc(len + 1); /* so that a sanitizer sees a byte too far */
        assert_non_null(exact);
        memcpy(exact + 1, whole.base, len);
        struct mp_reader reader = mp_reader_of(slice_from(exact + 1, len));
        read_some(&reader);
        assert_int_equal(mp_done(&reader), len == whole.len);
        assert_ptr_equal(reader.at, reader.end);
        free(exact);
    }
    buf_deinit(&whole);
}

struct form {
    uint8_t bytes[9];
    size_t len;
    bool fine;
    uint64_t value;
};

static void test_mp_codec__numbers_are_read_in_any_form_of_theirs(void **state)
{
    (void)state;
    static const struct form forms[] = {
        {{0x05}, 1, true, 5},
        {{0xcc, 5}, 2, true, 5},
        {{0xcd, 0, 5}, 3, true, 5},
        {{0xce, 0, 0, 0, 5}, 5, true, 5},
        {{0xcf, 0, 0, 0, 0, 0, 0, 0, 5}, 9, true, 5},
        {{0xd0, 5}, 2, true, 5},
        {{0xd0, 0x7f}, 2, true, 0x7f},
        {{0xd1, 0x7f, 0xff}, 3, true, 0x7fff},
        {{0xd2, 0x7f, 0xff, 0xff, 0xff}, 5, true, 0x7fffffff},
        {{0xd3, 0x7f, 0, 0, 0, 0, 0, 0, 1}, 9, true, 0x7f00000000000001},
        {{0xd0, 0x80}, 2, false, 0}, /* negative ones */
        {{0xd1, 0x80, 0}, 3, false, 0},
        {{0xd2, 0xff, 0xff, 0xff, 0xff}, 5, false, 0},
        {{0xd3, 0x80, 0, 0, 0, 0, 0, 0, 0}, 9, false, 0},
        {{0xff}, 1, false, 0},
        {{0xe0}, 1, false, 0},
        {{0xca, 0x40, 0, 0, 0}, 5, false, 0}, /* reals */
        {{0xcb, 0x40, 0, 0, 0, 0, 0, 0, 0}, 9, false, 0},
        {{0xc0}, 1, false, 0},
        {{0xc1}, 1, false, 0},
        {{0xc3}, 1, false, 0},
        {{0xa1, '5'}, 2, false, 0},
        {{0xc4, 0}, 2, false, 0},
        {{0x90}, 1, false, 0},
        {{0x80}, 1, false, 0},
        {{0xd4, 1, 1}, 3, false, 0},
    };
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        struct mp_reader reader = mp_reader_of(slice_from(forms[i].bytes, forms[i].len));
        uint64_t value = mp_read_u64(&reader);
        assert_int_equal(mp_done(&reader), forms[i].fine);
        assert_true(value == forms[i].value);
    }
}

static void test_mp_codec__other_types_fail(void **state)
{
    (void)state;
    for (unsigned lead = 0; lead < 256; lead++) {
        const uint8_t bytes[32] = {(uint8_t)lead};
        struct slice all = slice_from(bytes, sizeof bytes);
        struct mp_reader reader = mp_reader_of(all);
        (void)mp_read_bool(&reader);
        assert_int_equal(!reader.failed, lead == 0xc2 || lead == 0xc3);
        reader = mp_reader_of(all);
        (void)mp_read_bin(&reader);
        assert_int_equal(!reader.failed, lead >= 0xc4 && lead <= 0xc6);
        reader = mp_reader_of(all);
        (void)mp_read_array(&reader);
        assert_int_equal(!reader.failed,
                         (lead >= 0x90 && lead <= 0x9f) || lead == 0xdc || lead == 0xdd);
        reader = mp_reader_of(all);
        (void)mp_read_u64(&reader);
        assert_int_equal(!reader.failed, lead <= 0x7f || (lead >= 0xcc && lead <= 0xd3));
    }
}

/* I1: what is announced is believed only as far as there are bytes for it. */
static void test_mp_codec__announced_counts_need_bytes_I1(void **state)
{
    (void)state;
    static const uint8_t three[] = {0x93, 1, 2};
    static const uint8_t many[] = {0xdc, 0, 3, 1, 2};
    static const uint8_t most[] = {0xdd, 0xff, 0xff, 0xff, 0xff, 1, 2};
    static const uint8_t bytes[] = {0xc6, 0xff, 0xff, 0xff, 0xff, 1, 2};
    static const uint8_t fine[] = {0xdc, 0, 2, 1, 2};
    struct mp_reader reader = mp_reader_of(slice_from(three, sizeof three));
    assert_int_equal(mp_read_array(&reader), 0);
    assert_true(reader.failed);
    reader = mp_reader_of(slice_from(many, sizeof many));
    assert_int_equal(mp_read_array(&reader), 0);
    assert_true(reader.failed);
    reader = mp_reader_of(slice_from(most, sizeof most));
    assert_int_equal(mp_read_array(&reader), 0);
    assert_true(reader.failed);
    reader = mp_reader_of(slice_from(bytes, sizeof bytes));
    assert_int_equal(mp_read_bin(&reader).len, 0);
    assert_true(reader.failed);
    reader = mp_reader_of(slice_from(fine, sizeof fine));
    assert_int_equal(mp_read_array(&reader), 2);
    assert_false(reader.failed);
    reader = mp_reader_of(slice_from(fine, sizeof fine));
    mp_read_array_of(&reader, 3);
    assert_true(reader.failed);
}

static void test_mp_codec__ranges_and_what_stands_for_a_failure(void **state)
{
    (void)state;
    static const uint8_t five[] = {5};
    struct slice all = slice_from(five, sizeof five);
    struct mp_reader reader = mp_reader_of(all);
    assert_int_equal(mp_read_u64_within(&reader, 5, 5), 5);
    assert_true(mp_done(&reader));
    reader = mp_reader_of(all);
    assert_int_equal(mp_read_u64_within(&reader, 1, 4), 1);
    assert_true(reader.failed);
    reader = mp_reader_of(all);
    assert_int_equal(mp_read_u64_within(&reader, 6, 9), 6);
    assert_true(reader.failed);
    assert_int_equal(mp_read_u64(&reader), 0);
    assert_int_equal(mp_read_array(&reader), 0);
    assert_int_equal(mp_read_bin(&reader).len, 0);
    assert_false(mp_read_bool(&reader));
    assert_false(mp_done(&reader));
    reader = mp_reader_of(slice_from(NULL, 0));
    assert_true(mp_done(&reader));
    assert_false(mp_read_lead(&reader, 0));
    (void)mp_read_bin(&reader);
    assert_true(reader.failed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mp_codec__numbers_are_written_as_msgpack_c_does),
        cmocka_unit_test(test_mp_codec__arrays_and_bytes_are_written_as_msgpack_c_does),
        cmocka_unit_test(test_mp_codec__a_buffer_that_is_too_small_overflows),
        cmocka_unit_test(test_mp_codec__every_cut_fails_and_nothing_is_read_behind_it),
        cmocka_unit_test(test_mp_codec__numbers_are_read_in_any_form_of_theirs),
        cmocka_unit_test(test_mp_codec__other_types_fail),
        cmocka_unit_test(test_mp_codec__announced_counts_need_bytes_I1),
        cmocka_unit_test(test_mp_codec__ranges_and_what_stands_for_a_failure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
