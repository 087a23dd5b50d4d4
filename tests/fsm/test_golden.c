/* Bytes of commands, entries and results against the golden files, and what decoders do with every
 * truncation and every flipped byte of them: a status, never a crash (hazards I1, X5). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <cmocka.h>

#include "fsm/command_codec.h"
#include "fsm/result.h"
#include "tests/fsm/samples.h"
#include "tests/golden/golden.h"

#define STAMP_MS 1234567890123ull

struct entry_range {
    const char *name;
    size_t first;
    size_t count;
};

/* Entries of no, of one and of several sample commands. */
static const struct entry_range ranges[] = {
    {"empty", 0, 0}, {"one", 0, 1}, {"three", 3, 3}, {"origin_and_settle", 15, 2}, {"birth", 17, 1},
};

static void encode_command(size_t idx, struct buf *out)
{
    size_t count = 0;
    command_encode(&sample_commands(&count)[idx].command, out);
    assert_true(idx < count);
}

static void encode_entry(const struct entry_range *range, struct buf *out)
{
    struct buf body;
    buf_init(&body, ENTRY_LEN_MAX);
    for (size_t i = 0; i < range->count; i++) {
        encode_command(range->first + i, &body);
    }
    entry_encode(STAMP_MS, buf_slice(&body), (uint32_t)range->count, out);
    buf_deinit(&body);
}

static void test_golden__commands_have_their_bytes(void **state)
{
    (void)state;
    struct golden *golden = golden_open("commands.hex");
    struct buf bytes;
    buf_init(&bytes, ENTRY_LEN_MAX);
    size_t count = 0;
    const struct sample_command *samples = sample_commands(&count);
    bool fine = true;
    for (size_t i = 0; i < count; i++) {
        buf_clear(&bytes);
        encode_command(i, &bytes);
        fine = golden_matches(golden, samples[i].name, buf_slice(&bytes)) && fine;
    }
    buf_deinit(&bytes);
    assert_true(golden_close(golden));
    assert_true(fine);
}

static void test_golden__entries_have_their_bytes(void **state)
{
    (void)state;
    struct golden *golden = golden_open("entries.hex");
    struct buf bytes;
    buf_init(&bytes, ENTRY_LEN_MAX);
    bool fine = true;
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++) {
        buf_clear(&bytes);
        encode_entry(&ranges[i], &bytes);
        fine = golden_matches(golden, ranges[i].name, buf_slice(&bytes)) && fine;
    }
    buf_deinit(&bytes);
    assert_true(golden_close(golden));
    assert_true(fine);
}

static void test_golden__results_have_their_bytes(void **state)
{
    (void)state;
    struct golden *golden = golden_open("results.hex");
    struct buf bytes;
    buf_init(&bytes, MESSAGE_LEN_MAX);
    size_t count = 0;
    const struct sample_result *samples = sample_results(&count);
    bool fine = true;
    for (size_t i = 0; i < count; i++) {
        buf_clear(&bytes);
        result_encode(&samples[i].result, &bytes);
        fine = golden_matches(golden, samples[i].name, buf_slice(&bytes)) && fine;
    }
    buf_deinit(&bytes);
    assert_true(golden_close(golden));
    assert_true(fine);
}

/* A decoder under attack. Copies are of exact length, so that a sanitizer sees a byte too far. */
typedef enum status (*decode_cb)(void *decoder, struct slice bytes);

static enum status decode_copy(decode_cb decode, void *decoder, struct slice bytes)
{
    uint8_t *copy = malloc(bytes.len == 0 ? 1 : bytes.len);
    assert_non_null(copy);
    memcpy(copy, bytes.base, bytes.len);
    enum status st = decode(decoder, slice_from(copy, bytes.len));
    free(copy);
    return st;
}

/* Every truncation must be refused; every other value of every byte must yield some status. With
 * `all_refused` no changed byte may be accepted either. */
static void damage(decode_cb decode, void *decoder, struct buf *bytes, bool all_refused)
{
    struct slice whole = buf_slice(bytes);
    assert_int_equal(decode_copy(decode, decoder, whole), STATUS_OK);
    for (size_t len = 0; len < whole.len; len++) {
        assert_int_not_equal(decode_copy(decode, decoder, slice_from(whole.base, len)),
                             STATUS_OK);
    }
    for (size_t at = 0; at < whole.len; at++) {
        uint8_t right = bytes->base[at];
        for (unsigned flip = 1; flip < 256; flip++) {
            bytes->base[at] = (uint8_t)(right ^ flip);
            enum status st = decode_copy(decode, decoder, buf_slice(bytes));
            assert_true(!all_refused || st != STATUS_OK);
        }
        bytes->base[at] = right;
    }
    buf_append_u8(bytes, 0xc0); /* one byte too many */
    assert_int_not_equal(decode_copy(decode, decoder, buf_slice(bytes)), STATUS_OK);
}

static enum status decode_command(void *decoder, struct slice bytes)
{
    struct command command;
    return command_decode(decoder, bytes, &command);
}

static enum status decode_entry(void *decoder, struct slice bytes)
{
    struct entry entry;
    uint32_t version = 0;
    return entry_decode(decoder, bytes, &entry, &version);
}

static enum status decode_result(void *decoder, struct slice bytes)
{
    struct result result;
    return result_decode(decoder, bytes, &result);
}

static void test_golden__a_damaged_command_yields_a_status(void **state)
{
    (void)state;
    struct command_decoder *decoder = command_decoder_create();
    size_t count = 0;
    (void)sample_commands(&count);
    for (size_t i = 0; i < count; i++) {
        struct buf bytes;
        buf_init(&bytes, ENTRY_LEN_MAX);
        encode_command(i, &bytes);
        damage(decode_command, decoder, &bytes, false);
        buf_deinit(&bytes);
    }
    command_decoder_destroy(decoder);
}

static void test_golden__a_damaged_entry_is_always_refused(void **state)
{
    (void)state;
    struct command_decoder *decoder = command_decoder_create();
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++) {
        struct buf bytes;
        buf_init(&bytes, ENTRY_LEN_MAX);
        encode_entry(&ranges[i], &bytes);
        damage(decode_entry, decoder, &bytes, true);
        buf_deinit(&bytes);
    }
    command_decoder_destroy(decoder);
}

static void test_golden__a_damaged_result_yields_a_status(void **state)
{
    (void)state;
    struct result_decoder *decoder = result_decoder_create();
    size_t count = 0;
    const struct sample_result *samples = sample_results(&count);
    for (size_t i = 0; i < count; i++) {
        struct buf bytes;
        buf_init(&bytes, MESSAGE_LEN_MAX);
        result_encode(&samples[i].result, &bytes);
        damage(decode_result, decoder, &bytes, false);
        buf_deinit(&bytes);
    }
    result_decoder_destroy(decoder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden__commands_have_their_bytes),
        cmocka_unit_test(test_golden__entries_have_their_bytes),
        cmocka_unit_test(test_golden__results_have_their_bytes),
        cmocka_unit_test(test_golden__a_damaged_command_yields_a_status),
        cmocka_unit_test(test_golden__a_damaged_entry_is_always_refused),
        cmocka_unit_test(test_golden__a_damaged_result_yields_a_status),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
