/* Round trips, and bytes that are well-formed MessagePack but not a command. */
#include "fsm/command_codec.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "fsm/base/hash.h"
#include "tests/fsm/samples.h"

static void assert_slice_equal(struct slice a, struct slice b)
{
    assert_true((a.base == NULL) == (b.base == NULL)); /* absent stays absent, empty empty */
    assert_true(slice_equal(a, b));
}

static void assert_op_equal(const struct op *a, const struct op *b)
{
    assert_int_equal(a->kind, b->kind);
    assert_slice_equal(a->ns, b->ns);
    assert_slice_equal(a->owner, b->owner);
    assert_int_equal(a->ttl_ms, b->ttl_ms);
    assert_int_equal(a->destroy, b->destroy);
    assert_int_equal(a->adopt, b->adopt);
    assert_int_equal(a->grace_ms, b->grace_ms);
    assert_int_equal(a->reestablish, b->reestablish);
    assert_int_equal(a->has_set_version, b->has_set_version);
    assert_int_equal(a->set_version, b->set_version);
    assert_int_equal(a->node_id, b->node_id);
    assert_int_equal(a->nonce, b->nonce);
    assert_int_equal(a->target_origin, b->target_origin);
    assert_int_equal(a->target_sequence, b->target_sequence);
    assert_int_equal(a->token_floor, b->token_floor);
    assert_memory_equal(&a->identity, &b->identity, sizeof a->identity);
    assert_memory_equal(&a->settings, &b->settings, sizeof a->settings);
    assert_int_equal(a->key_count, b->key_count);
    for (uint32_t i = 0; i < a->key_count; i++) {
        assert_slice_equal(a->keys[i].key, b->keys[i].key);
        assert_slice_equal(a->keys[i].meta, b->keys[i].meta);
        assert_slice_equal(a->keys[i].identity, b->keys[i].identity);
        assert_int_equal(a->keys[i].has_if_token, b->keys[i].has_if_token);
        assert_int_equal(a->keys[i].if_token, b->keys[i].if_token);
    }
}

static void assert_command_equal(const struct command *a, const struct command *b)
{
    assert_int_equal(a->origin, b->origin);
    assert_int_equal(a->sequence, b->sequence);
    assert_int_equal(a->confirmed, b->confirmed);
    assert_op_equal(&a->op, &b->op);
}

static void test_command_codec__every_sample_survives_a_round_trip(void **state)
{
    (void)state;
    struct command_decoder *decoder = command_decoder_create();
    struct buf bytes;
    buf_init(&bytes, ENTRY_LEN_MAX);
    size_t count = 0;
    const struct sample_command *samples = sample_commands(&count);
    for (size_t i = 0; i < count; i++) {
        buf_clear(&bytes);
        command_encode(&samples[i].command, &bytes);
        struct command command;
        assert_int_equal(command_decode(decoder, buf_slice(&bytes), &command), STATUS_OK);
        assert_command_equal(&command, &samples[i].command);
    }
    buf_deinit(&bytes);
    command_decoder_destroy(decoder);
}

static void test_command_codec__the_most_keys_survive_a_round_trip(void **state)
{
    (void)state;
    static char texts[KEYS_MAX][8];
    static struct key_item items[KEYS_MAX];
    for (uint32_t i = 0; i < KEYS_MAX; i++) {
        for (unsigned digit = 0; digit < 8; digit++) {
            texts[i][digit] = (char)('a' + ((i >> (2 * digit)) & 3));
        }
        items[i] = (struct key_item){.key = slice_from(texts[i], 8), .has_if_token = i % 2 == 0,
                                     .if_token = i % 2 == 0 ? i : 0};
    }
    struct command command = {
        .origin = 1, .sequence = 1,
        .op = {.kind = OP_KIND_RENEW, .ns = slice_text("n"), .owner = slice_text("o"),
               .ttl_ms = 10, .keys = items, .key_count = KEYS_MAX}};
    struct buf bytes;
    buf_init(&bytes, MESSAGE_LEN_MAX);
    command_encode(&command, &bytes);
    assert_false(buf_overflown(&bytes));
    struct command_decoder *decoder = command_decoder_create();
    struct command decoded;
    assert_int_equal(command_decode(decoder, buf_slice(&bytes), &decoded), STATUS_OK);
    assert_command_equal(&decoded, &command);
    command_decoder_destroy(decoder);
    buf_deinit(&bytes);
}

static void test_command_codec__an_entry_keeps_all_commands_in_order(void **state)
{
    (void)state;
    struct buf body;
    struct buf bytes;
    buf_init(&body, ENTRY_LEN_MAX);
    buf_init(&bytes, ENTRY_LEN_MAX);
    size_t count = 0;
    const struct sample_command *samples = sample_commands(&count);
    for (size_t i = 0; i < count; i++) {
        command_encode(&samples[i].command, &body);
    }
    entry_encode(CLOCK_MS_MAX, buf_slice(&body), (uint32_t)count, &bytes);
    assert_int_equal(bytes.len % 8, 0);
    assert_int_equal(bytes.len, entry_encoded_len(body.len));
    struct command_decoder *decoder = command_decoder_create();
    struct entry entry;
    uint32_t version = 0;
    assert_int_equal(entry_decode(decoder, buf_slice(&bytes), &entry, &version), STATUS_OK);
    assert_int_equal(entry.stamp_ms, CLOCK_MS_MAX);
    assert_int_equal(entry.command_count, count);
    for (size_t i = 0; i < count; i++) {
        assert_command_equal(&entry.commands[i], &samples[i].command);
    }
    command_decoder_destroy(decoder);
    buf_deinit(&body);
    buf_deinit(&bytes);
}

static void test_command_codec__an_empty_entry_only_moves_the_clock(void **state)
{
    (void)state;
    struct buf bytes;
    buf_init(&bytes, ENTRY_LEN_MAX);
    entry_encode(77, slice_from(NULL, 0), 0, &bytes);
    assert_int_equal(bytes.len, 24);
    struct command_decoder *decoder = command_decoder_create();
    struct entry entry;
    uint32_t version = 0;
    assert_int_equal(entry_decode(decoder, buf_slice(&bytes), &entry, &version), STATUS_OK);
    assert_int_equal(entry.stamp_ms, 77);
    assert_int_equal(entry.command_count, 0);
    command_decoder_destroy(decoder);
    buf_deinit(&bytes);
}

/* The checksum is made right again, so that what comes after it is what refuses. */
static void seal(struct buf *entry, size_t body_len)
{
    uint32_t crc = crc32c(0, entry->base + 8, 16 + body_len);
    for (unsigned i = 0; i < 4; i++) {
        entry->base[4 + i] = (uint8_t)(crc >> (8 * i));
    }
}

static void test_command_codec__another_version_is_named(void **state)
{
    (void)state;
    struct buf bytes;
    buf_init(&bytes, ENTRY_LEN_MAX);
    entry_encode(77, slice_from(NULL, 0), 0, &bytes);
    bytes.base[8] = 0x02;
    bytes.base[9] = 0x01;
    struct command_decoder *decoder = command_decoder_create();
    struct entry entry;
    uint32_t version = 0;
    assert_int_equal(entry_decode(decoder, buf_slice(&bytes), &entry, &version),
                     STATUS_INCOMPATIBLE);
    assert_int_equal(version, 0x0102);
    command_decoder_destroy(decoder);
    buf_deinit(&bytes);
}

static void test_command_codec__an_entry_with_a_right_checksum_is_still_checked(void **state)
{
    (void)state;
    struct buf body;
    struct buf bytes;
    buf_init(&body, ENTRY_LEN_MAX);
    buf_init(&bytes, ENTRY_LEN_MAX);
    size_t count = 0;
    command_encode(&sample_commands(&count)[0].command, &body);
    entry_encode(1, buf_slice(&body), 1, &bytes);
    struct command_decoder *decoder = command_decoder_create();
    struct entry entry;
    uint32_t version = 0;
    bytes.base[10] = 2; /* more commands than there are */
    seal(&bytes, body.len);
    assert_int_equal(entry_decode(decoder, buf_slice(&bytes), &entry, &version), STATUS_CORRUPT);
    bytes.base[10] = 0; /* fewer */
    seal(&bytes, body.len);
    assert_int_equal(entry_decode(decoder, buf_slice(&bytes), &entry, &version), STATUS_CORRUPT);
    bytes.base[10] = 1;
    bytes.base[23] = 0x80; /* a stamp beyond the end of time */
    seal(&bytes, body.len);
    assert_int_equal(entry_decode(decoder, buf_slice(&bytes), &entry, &version), STATUS_CORRUPT);
    bytes.base[23] = 0;
    seal(&bytes, body.len);
    assert_int_equal(entry_decode(decoder, buf_slice(&bytes), &entry, &version), STATUS_OK);
    assert_true(body.len % 8 != 0);
    bytes.base[bytes.len - 1] = 1; /* padding that is not zero */
    assert_int_equal(entry_decode(decoder, buf_slice(&bytes), &entry, &version), STATUS_CORRUPT);
    command_decoder_destroy(decoder);
    buf_deinit(&body);
    buf_deinit(&bytes);
}

static enum status decode_bytes(const void *bytes, size_t len)
{
    struct command_decoder *decoder = command_decoder_create();
    struct command command;
    enum status st = command_decode(decoder, slice_from(bytes, len), &command);
    command_decoder_destroy(decoder);
    return st;
}

static void test_command_codec__types_and_counts_are_exact(void **state)
{
    (void)state;
    /* purge: [8, origin, sequence, confirmed, ns] */
    static const uint8_t fine[] = {0x95, 8, 1, 2, 1, 0xc4, 1, 'n'};
    assert_int_equal(decode_bytes(fine, sizeof fine), STATUS_OK);
    static const uint8_t wide[] = {0xdc, 0, 5, 0xcc, 8, 0xcd, 0, 1, 2, 1, 0xc5, 0, 1, 'n'};
    assert_int_equal(decode_bytes(wide, sizeof wide), STATUS_OK); /* not canonical, but clear */
    static const uint8_t text[] = {0x95, 8, 1, 2, 1, 0xa1, 'n'};
    assert_int_equal(decode_bytes(text, sizeof text), STATUS_MALFORMED);
    static const uint8_t few[] = {0x94, 8, 1, 2, 1};
    assert_int_equal(decode_bytes(few, sizeof few), STATUS_MALFORMED);
    static const uint8_t many[] = {0x96, 8, 1, 2, 1, 0xc4, 1, 'n', 0xc0};
    assert_int_equal(decode_bytes(many, sizeof many), STATUS_MALFORMED);
    static const uint8_t trailing[] = {0x95, 8, 1, 2, 1, 0xc4, 1, 'n', 0xc0};
    assert_int_equal(decode_bytes(trailing, sizeof trailing), STATUS_MALFORMED);
    static const uint8_t negative[] = {0x95, 8, 1, 0xff, 1, 0xc4, 1, 'n'};
    assert_int_equal(decode_bytes(negative, sizeof negative), STATUS_MALFORMED);
    static const uint8_t real[] = {0x95, 8, 1, 0xca, 0x40, 0, 0, 0, 1, 0xc4, 1, 'n'};
    assert_int_equal(decode_bytes(real, sizeof real), STATUS_MALFORMED);
    static const uint8_t map[] = {0x81, 8, 1};
    assert_int_equal(decode_bytes(map, sizeof map), STATUS_MALFORMED);
    static const uint8_t kind_0[] = {0x95, 0, 1, 2, 1, 0xc4, 1, 'n'};
    assert_int_equal(decode_bytes(kind_0, sizeof kind_0), STATUS_MALFORMED);
    static const uint8_t kind_15[] = {0x95, 15, 1, 2, 1, 0xc4, 1, 'n'};
    assert_int_equal(decode_bytes(kind_15, sizeof kind_15), STATUS_MALFORMED);
    assert_int_equal(decode_bytes("", 0), STATUS_MALFORMED);
}

static void test_command_codec__numbers_are_in_order(void **state)
{
    (void)state;
    static const uint8_t origin_0[] = {0x95, 8, 0, 2, 1, 0xc4, 1, 'n'};
    assert_int_equal(decode_bytes(origin_0, sizeof origin_0), STATUS_MALFORMED);
    static const uint8_t sequence_0[] = {0x95, 8, 1, 0, 0, 0xc4, 1, 'n'};
    assert_int_equal(decode_bytes(sequence_0, sizeof sequence_0), STATUS_MALFORMED);
    static const uint8_t confirmed_self[] = {0x95, 8, 1, 2, 2, 0xc4, 1, 'n'};
    assert_int_equal(decode_bytes(confirmed_self, sizeof confirmed_self), STATUS_MALFORMED);
}

static void test_command_codec__rules_are_applied_after_decoding(void **state)
{
    (void)state;
    static const uint8_t bad_namespace[] = {0x95, 8, 1, 2, 1, 0xc4, 1, 'N'};
    assert_int_equal(decode_bytes(bad_namespace, sizeof bad_namespace), STATUS_INVALID);
    /* claim with no keys at all */
    static const uint8_t no_keys[] = {0x9a, 2, 1, 2, 1, 0xc4, 1, 'n', 0xc4, 1, 'o', 10, 0xc2, 0xc0,
                                      0x90};
    assert_int_equal(decode_bytes(no_keys, sizeof no_keys), STATUS_INVALID);
    /* renew of one key with meta but without reestablish */
    static const uint8_t meta[] = {0x99, 3, 1, 2, 1, 0xc4, 1, 'n', 0xc4, 1, 'o', 10, 0xc2,
                                   0x91, 0x94, 0xc4, 1, 'k', 0xc0, 0xc4, 1, 'm', 0xc0};
    assert_int_equal(decode_bytes(meta, sizeof meta), STATUS_INVALID);
    static const uint8_t ttl_9[] = {0x98, 6, 1, 2, 1, 0xc4, 1, 'n', 0xc4, 1, 'o', 9, 0xc0};
    assert_int_equal(decode_bytes(ttl_9, sizeof ttl_9), STATUS_INVALID);
}

/* I1: five bytes that announce four billion elements cost nothing. */
static void test_command_codec__announced_counts_reserve_nothing_I1(void **state)
{
    (void)state;
    static const uint8_t array[] = {0xdd, 0xff, 0xff, 0xff, 0xff};
    assert_int_equal(decode_bytes(array, sizeof array), STATUS_MALFORMED);
    static const uint8_t map[] = {0xdf, 0xff, 0xff, 0xff, 0xff};
    assert_int_equal(decode_bytes(map, sizeof map), STATUS_MALFORMED);
    static const uint8_t bin[] = {0x91, 0xc6, 0xff, 0xff, 0xff, 0xff};
    assert_int_equal(decode_bytes(bin, sizeof bin), STATUS_MALFORMED);
    static const uint8_t deep[] = {0x91, 0x91, 0x91, 0x91, 0x91, 0x91, 0x91, 0x91, 0xc0};
    assert_int_equal(decode_bytes(deep, sizeof deep), STATUS_MALFORMED);
    static const uint8_t ext[] = {0x91, 0xd4, 1, 1};
    assert_int_equal(decode_bytes(ext, sizeof ext), STATUS_MALFORMED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_command_codec__every_sample_survives_a_round_trip),
        cmocka_unit_test(test_command_codec__the_most_keys_survive_a_round_trip),
        cmocka_unit_test(test_command_codec__an_entry_keeps_all_commands_in_order),
        cmocka_unit_test(test_command_codec__an_empty_entry_only_moves_the_clock),
        cmocka_unit_test(test_command_codec__another_version_is_named),
        cmocka_unit_test(test_command_codec__an_entry_with_a_right_checksum_is_still_checked),
        cmocka_unit_test(test_command_codec__types_and_counts_are_exact),
        cmocka_unit_test(test_command_codec__numbers_are_in_order),
        cmocka_unit_test(test_command_codec__rules_are_applied_after_decoding),
        cmocka_unit_test(test_command_codec__announced_counts_reserve_nothing_I1),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
