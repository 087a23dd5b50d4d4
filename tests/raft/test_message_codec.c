/* Messages between replicas: round trips, damage, and bytes of somebody who means harm. */
#include "raft/message_codec.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>

#include "fsm/base/hash.h"
#include "fsm/base/rng.h"

#define KIND_COUNT 10u

static const enum message_kind KINDS[KIND_COUNT] = {
    MESSAGE_KIND_APPEND_ENTRIES,   MESSAGE_KIND_APPEND_ENTRIES_RESULT,
    MESSAGE_KIND_REQUEST_VOTE,     MESSAGE_KIND_REQUEST_VOTE_RESULT,
    MESSAGE_KIND_SNAPSHOT_BEGIN,   MESSAGE_KIND_TIMEOUT_NOW,
    MESSAGE_KIND_READ_CONFIRM,     MESSAGE_KIND_READ_CONFIRM_RESULT,
    MESSAGE_KIND_SNAPSHOT_CHUNK,   MESSAGE_KIND_SNAPSHOT_ACK,
};

static struct raft_configuration configuration_of(unsigned members)
{
    struct raft_configuration configuration;
    raft_configuration_init(&configuration);
    for (unsigned i = 0; i < members; i++) {
        char address[24];
        uint64_t id = 1000000007ull * (i + 1);
        (void)snprintf(address, sizeof address, "%llu", (unsigned long long)id);
        assert_int_equal(raft_configuration_add(&configuration, id, address, (int)(i % 3)), 0);
    }
    return configuration;
}

static void fill_append(struct raft_append_entries *args)
{
    struct raft_configuration configuration = configuration_of(3);
    struct raft_buffer change;
    assert_int_equal(raft_configuration_encode(&configuration, &change), 0);
    raft_configuration_close(&configuration);
    size_t lens[3] = {16, change.len, 8};
    uint8_t *batch = raft_malloc(lens[0] + lens[1] + lens[2]);
    args->entries = raft_malloc(3 * sizeof *args->entries);
    args->n_entries = 3;
    uint8_t *at = batch;
    for (unsigned i = 0; i < 3; i++) {
        args->entries[i] = (struct raft_entry){
            .term = 3 + i,
            .type = i == 0 ? RAFT_COMMAND : i == 1 ? RAFT_CHANGE : RAFT_BARRIER,
            .buf = {.base = at, .len = lens[i]},
            .batch = batch,
        };
        memset(at, 0xa0 + (int)i, lens[i]);
        at += lens[i];
    }
    memcpy(args->entries[1].buf.base, change.base, change.len);
    raft_free(change.base);
    args->version = 0;
    args->term = 6;
    args->prev_log_index = 40;
    args->prev_log_term = 2;
    args->leader_commit = 39;
}

/* A message of each kind; release it with message_release. */
static struct message sample(enum message_kind kind)
{
    static const uint8_t piece[24] = "a piece of a snapshot";
    struct message message;
    memset(&message, 0, sizeof message);
    message.kind = kind;
    switch (kind) {
    case MESSAGE_KIND_APPEND_ENTRIES:
        message.raft.type = RAFT_APPEND_ENTRIES;
        fill_append(&message.raft.append_entries);
        break;
    case MESSAGE_KIND_APPEND_ENTRIES_RESULT:
        message.raft.type = RAFT_APPEND_ENTRIES_RESULT;
        message.raft.append_entries_result =
            (struct raft_append_entries_result){2, 6, 41, 40, 1, 24576};
        break;
    case MESSAGE_KIND_REQUEST_VOTE:
        message.raft.type = RAFT_REQUEST_VOTE;
        message.raft.request_vote = (struct raft_request_vote){2, 7, 99, 40, 6, false, true};
        break;
    case MESSAGE_KIND_REQUEST_VOTE_RESULT:
        message.raft.type = RAFT_REQUEST_VOTE_RESULT;
        message.raft.request_vote_result =
            (struct raft_request_vote_result){2, 7, true, false, 1, 16384};
        break;
    case MESSAGE_KIND_SNAPSHOT_BEGIN:
        message.raft.type = RAFT_INSTALL_SNAPSHOT;
        message.transfer = 12;
        message.raft.install_snapshot = (struct raft_install_snapshot){
            .term = 6,
            .last_index = 40,
            .last_term = 5,
            .conf = configuration_of(5),
            .conf_index = 9,
            .data = {.len = 123456},
        };
        break;
    case MESSAGE_KIND_TIMEOUT_NOW:
        message.raft.type = RAFT_TIMEOUT_NOW;
        message.raft.timeout_now = (struct raft_timeout_now){0, 6, 40, 6};
        break;
    case MESSAGE_KIND_READ_CONFIRM:
        message.confirm = (struct message_confirm){.term = 6, .nonce = 77};
        break;
    case MESSAGE_KIND_READ_CONFIRM_RESULT:
        message.confirm = (struct message_confirm){.term = 6, .nonce = 77, .ok = true};
        break;
    case MESSAGE_KIND_SNAPSHOT_CHUNK:
        message.chunk = (struct message_chunk){12, 65536, slice_from(piece, sizeof piece)};
        break;
    case MESSAGE_KIND_SNAPSHOT_ACK:
        message.ack = (struct message_ack){12, 65536, false};
        break;
    }
    return message;
}

static void encode(const struct message *message, struct buf *out)
{
    buf_init(out, MESSAGE_PEER_LEN_MAX);
    message_encode(message, out);
    assert_false(buf_overflown(out));
}

static void encode_sample(enum message_kind kind, struct buf *out)
{
    struct message message = sample(kind);
    encode(&message, out);
    message_release(&message);
}

/* Decode a copy of exactly these bytes, so that a sanitizer sees a read behind them. */
static enum status decode(const uint8_t *bytes, size_t len, struct message *out)
{
    uint8_t *copy = malloc(len > 0 ? len : 1);
    memcpy(copy, bytes, len);
    enum status status = message_decode(slice_from(copy, len), out);
    free(copy);
    return status;
}

static void fix_checksum(uint8_t *bytes, size_t len)
{
    uint32_t crc = crc32c(crc32c(0, bytes, 4), bytes + 8, len - 8);
    for (unsigned i = 0; i < 4; i++) {
        bytes[4 + i] = (uint8_t)(crc >> (8 * i));
    }
}

static void put_u64(uint8_t *at, uint64_t value, unsigned len)
{
    for (unsigned i = 0; i < len; i++) {
        at[i] = (uint8_t)(value >> (8 * i));
    }
}

/* The sample with one field overwritten and a right checksum: what a decoder says to that. */
static enum status decode_with(enum message_kind kind, size_t at, uint64_t value, unsigned len)
{
    struct buf bytes;
    encode_sample(kind, &bytes);
    assert_true(at + len <= bytes.len);
    put_u64(bytes.base + at, value, len);
    fix_checksum(bytes.base, bytes.len);
    struct message message;
    enum status status = decode(bytes.base, bytes.len, &message);
    if (status == STATUS_OK) {
        message_release(&message);
    }
    buf_deinit(&bytes);
    return status;
}

static void test_message_codec__every_kind_comes_back_as_it_was(void **state)
{
    (void)state;
    for (unsigned i = 0; i < KIND_COUNT; i++) {
        struct buf bytes;
        encode_sample(KINDS[i], &bytes);
        struct message message;
        assert_int_equal(message_decode(buf_slice(&bytes), &message), STATUS_OK);
        assert_int_equal(message.kind, KINDS[i]);
        struct buf again;
        encode(&message, &again);
        assert_true(slice_equal(buf_slice(&bytes), buf_slice(&again)));
        if (KINDS[i] <= MESSAGE_KIND_TIMEOUT_NOW) {
            assert_int_equal(message_kind_of(&message.raft), KINDS[i]);
        }
        message_release(&message);
        buf_deinit(&again);
        buf_deinit(&bytes);
    }
}

static void test_message_codec__entries_share_one_batch_that_raft_may_free(void **state)
{
    (void)state;
    struct buf bytes;
    encode_sample(MESSAGE_KIND_APPEND_ENTRIES, &bytes);
    struct message message;
    assert_int_equal(message_decode(buf_slice(&bytes), &message), STATUS_OK);
    const struct raft_append_entries *args = &message.raft.append_entries;
    assert_int_equal(args->n_entries, 3);
    for (unsigned i = 0; i < 3; i++) {
        assert_ptr_equal(args->entries[i].batch, args->entries[0].buf.base);
        assert_int_equal(args->entries[i].term, 3 + i);
    }
    assert_int_equal(args->entries[1].type, RAFT_CHANGE);
    raft_free(args->entries[0].batch);
    raft_free(args->entries);
    buf_deinit(&bytes);
}

static void test_message_codec__heartbeat_has_no_memory(void **state)
{
    (void)state;
    struct message message = {
        .kind = MESSAGE_KIND_APPEND_ENTRIES,
        .raft = {.type = RAFT_APPEND_ENTRIES, .append_entries = {.term = 1}},
    };
    struct buf bytes;
    encode(&message, &bytes);
    assert_int_equal(message_decode(buf_slice(&bytes), &message), STATUS_OK);
    assert_null(message.raft.append_entries.entries);
    buf_deinit(&bytes);
}

static void test_message_codec__bytes_are_pinned(void **state)
{
    (void)state;
    static const uint8_t confirm[] = {1, 16, 0, 0, 0x2c, 0xb2, 0x8f, 0x2e, 6, 0, 0, 0,
                                      0, 0,  0, 0, 77,   0,    0,    0,    0, 0, 0, 0};
    static const uint8_t vote[] = {1,  3, 2, 2, 0x96, 0xe1, 0x74, 0x9c, 7, 0, 0, 0, 0, 0,
                                   0,  0, 99, 0, 0,   0,    0,    0,    0, 0, 40, 0, 0, 0,
                                   0,  0, 0, 0, 6,    0,    0,    0,    0, 0, 0, 0};
    struct buf bytes;
    encode_sample(MESSAGE_KIND_READ_CONFIRM, &bytes);
    assert_int_equal(bytes.len, sizeof confirm);
    assert_memory_equal(bytes.base, confirm, sizeof confirm);
    buf_deinit(&bytes);
    encode_sample(MESSAGE_KIND_REQUEST_VOTE, &bytes);
    assert_int_equal(bytes.len, sizeof vote);
    assert_memory_equal(bytes.base, vote, sizeof vote);
    buf_deinit(&bytes);
}

static void test_message_codec__cut_anywhere_is_malformed(void **state)
{
    (void)state;
    for (unsigned i = 0; i < KIND_COUNT; i++) {
        struct buf bytes;
        encode_sample(KINDS[i], &bytes);
        struct message message;
        for (size_t len = 0; len < bytes.len; len++) {
            assert_int_equal(decode(bytes.base, len, &message), STATUS_MALFORMED);
        }
        /* Cut, and the checksum made right again. A chunk may be shorter. */
        for (size_t len = 8; len < bytes.len && KINDS[i] != MESSAGE_KIND_SNAPSHOT_CHUNK; len++) {
            uint8_t *cut = malloc(len);
            memcpy(cut, bytes.base, len);
            fix_checksum(cut, len);
            assert_int_equal(decode(cut, len, &message), STATUS_MALFORMED);
            free(cut);
        }
        buf_deinit(&bytes);
    }
}

static void test_message_codec__one_flipped_bit_is_noticed(void **state)
{
    (void)state;
    for (unsigned i = 0; i < KIND_COUNT; i++) {
        struct buf bytes;
        encode_sample(KINDS[i], &bytes);
        for (size_t bit = 0; bit < bytes.len * 8; bit++) {
            bytes.base[bit / 8] ^= (uint8_t)(1u << (bit % 8));
            struct message message;
            enum status status = decode(bytes.base, bytes.len, &message);
            assert_int_equal(status, bit < 8 ? STATUS_INCOMPATIBLE : STATUS_MALFORMED);
            bytes.base[bit / 8] ^= (uint8_t)(1u << (bit % 8));
        }
        buf_deinit(&bytes);
    }
}

/* Whoever forges can forge the checksum too: any byte may then have any value. */
static void test_message_codec__forged_bytes_do_no_harm(void **state)
{
    (void)state;
    struct rng rng;
    rng_init(&rng, 1);
    for (unsigned round = 0; round < 200000; round++) {
        struct buf bytes;
        encode_sample(KINDS[round % KIND_COUNT], &bytes);
        for (uint64_t changes = 1 + rng_below(&rng, 3); changes > 0; changes--) {
            bytes.base[rng_below(&rng, bytes.len)] =
                rng_chance(&rng, 500) ? 0xff : (uint8_t)rng_next(&rng);
        }
        bytes.base[0] = MESSAGE_FORMAT_VERSION;
        fix_checksum(bytes.base, bytes.len);
        struct message message;
        if (decode(bytes.base, bytes.len, &message) == STATUS_OK) {
            message_release(&message);
        }
        buf_deinit(&bytes);
    }
}

static void test_message_codec__trailing_bytes_are_malformed(void **state)
{
    (void)state;
    for (unsigned i = 0; i < KIND_COUNT; i++) {
        if (KINDS[i] == MESSAGE_KIND_SNAPSHOT_CHUNK) {
            continue;
        }
        struct buf bytes;
        encode_sample(KINDS[i], &bytes);
        buf_append_u8(&bytes, 0);
        fix_checksum(bytes.base, bytes.len);
        struct message message;
        assert_int_equal(decode(bytes.base, bytes.len, &message), STATUS_MALFORMED);
        buf_deinit(&bytes);
    }
}

static void test_message_codec__names_another_format_version(void **state)
{
    (void)state;
    assert_int_equal(decode_with(MESSAGE_KIND_TIMEOUT_NOW, 0, 2, 1), STATUS_INCOMPATIBLE);
    assert_int_equal(decode_with(MESSAGE_KIND_TIMEOUT_NOW, 1, 7, 1), STATUS_MALFORMED);
    assert_int_equal(decode_with(MESSAGE_KIND_TIMEOUT_NOW, 1, 0, 1), STATUS_MALFORMED);
}

static void test_message_codec__refuses_impossible_append_entries(void **state)
{
    (void)state;
    const enum message_kind kind = MESSAGE_KIND_APPEND_ENTRIES;
    assert_int_equal(decode_with(kind, 8, 6, 8), STATUS_OK);
    assert_int_equal(decode_with(kind, 8, 0, 8), STATUS_MALFORMED);  /* term 0 */
    assert_int_equal(decode_with(kind, 8, 4, 8), STATUS_MALFORMED);  /* below its entries' */
    assert_int_equal(decode_with(kind, 16, 0, 8), STATUS_MALFORMED); /* a term without an index */
    assert_int_equal(decode_with(kind, 24, 0, 8), STATUS_MALFORMED); /* an index without a term */
    assert_int_equal(decode_with(kind, 24, 7, 8), STATUS_MALFORMED);
    assert_int_equal(decode_with(kind, 16, UINT64_MAX, 8), STATUS_MALFORMED);
    assert_int_equal(decode_with(kind, 40, 2, 4), STATUS_MALFORMED);
    assert_int_equal(decode_with(kind, 40, MESSAGE_ENTRIES_MAX + 1, 4), STATUS_MALFORMED);
    assert_int_equal(decode_with(kind, 40, UINT32_MAX, 4), STATUS_MALFORMED);
    assert_int_equal(decode_with(kind, 44, 0, 8), STATUS_MALFORMED); /* entry of term 0 */
    assert_int_equal(decode_with(kind, 52, 0, 4), STATUS_MALFORMED); /* entry types */
    assert_int_equal(decode_with(kind, 52, 2, 4), STATUS_OK);
    assert_int_equal(decode_with(kind, 52, 3, 4), STATUS_MALFORMED); /* no configuration */
    assert_int_equal(decode_with(kind, 52, 4, 4), STATUS_MALFORMED);
    assert_int_equal(decode_with(kind, 56, 0, 4), STATUS_MALFORMED); /* entry lengths */
    assert_int_equal(decode_with(kind, 56, 12, 4), STATUS_MALFORMED);
    assert_int_equal(decode_with(kind, 56, ENTRY_LEN_MAX + 8, 4), STATUS_MALFORMED);
    assert_int_equal(decode_with(kind, 56, UINT32_MAX - 7, 4), STATUS_MALFORMED);
}

static void test_message_codec__refuses_impossible_votes(void **state)
{
    (void)state;
    const enum message_kind kind = MESSAGE_KIND_REQUEST_VOTE;
    assert_int_equal(decode_with(kind, 8, 0, 8), STATUS_MALFORMED);
    assert_int_equal(decode_with(kind, 16, 0, 8), STATUS_MALFORMED); /* candidate 0 */
    assert_int_equal(decode_with(kind, 32, 8, 8), STATUS_MALFORMED); /* its log is of the future */
    assert_int_equal(decode_with(kind, 3, 3, 1), STATUS_OK);
    assert_int_equal(decode_with(kind, 3, 8, 1), STATUS_MALFORMED);
    assert_int_equal(decode_with(MESSAGE_KIND_REQUEST_VOTE_RESULT, 3, 1, 1), STATUS_MALFORMED);
}

static void test_message_codec__refuses_impossible_snapshots(void **state)
{
    (void)state;
    const enum message_kind kind = MESSAGE_KIND_SNAPSHOT_BEGIN;
    assert_int_equal(decode_with(kind, 24, 0, 8), STATUS_MALFORMED); /* last index */
    assert_int_equal(decode_with(kind, 32, 0, 8), STATUS_MALFORMED); /* last term */
    assert_int_equal(decode_with(kind, 40, 0, 8), STATUS_MALFORMED); /* configuration's index */
    assert_int_equal(decode_with(kind, 40, 41, 8), STATUS_MALFORMED);
    assert_int_equal(decode_with(kind, 48, 0, 8), STATUS_MALFORMED); /* length */
    assert_int_equal(decode_with(kind, 48, MESSAGE_SNAPSHOT_LEN_MAX, 8), STATUS_OK);
    assert_int_equal(decode_with(kind, 48, MESSAGE_SNAPSHOT_LEN_MAX + 1, 8), STATUS_MALFORMED);
    assert_int_equal(decode_with(kind, 56, 0, 4), STATUS_MALFORMED); /* configuration's length */
    assert_int_equal(decode_with(kind, 56, UINT32_MAX, 4), STATUS_MALFORMED);
    assert_int_equal(decode_with(MESSAGE_KIND_SNAPSHOT_CHUNK, 16, UINT64_MAX, 8),
                     STATUS_MALFORMED);
}

static void test_message_codec__a_chunk_is_bounded_and_never_empty(void **state)
{
    (void)state;
    static uint8_t piece[MESSAGE_CHUNK_LEN_MAX];
    struct message message = {.kind = MESSAGE_KIND_SNAPSHOT_CHUNK};
    message.chunk = (struct message_chunk){1, 0, slice_from(piece, sizeof piece)};
    struct buf bytes;
    encode(&message, &bytes);
    assert_int_equal(message_decode(buf_slice(&bytes), &message), STATUS_OK);
    assert_int_equal(message.chunk.bytes.len, sizeof piece);
    buf_append_u8(&bytes, 0);
    fix_checksum(bytes.base, bytes.len);
    assert_int_equal(message_decode(buf_slice(&bytes), &message), STATUS_MALFORMED);
    fix_checksum(bytes.base, 24);
    assert_int_equal(message_decode(slice_from(bytes.base, 24), &message), STATUS_MALFORMED);
    buf_deinit(&bytes);
}

static void test_message_codec__configurations_are_checked_to_the_end(void **state)
{
    (void)state;
    struct raft_configuration configuration = configuration_of(4);
    struct raft_buffer bytes;
    assert_int_equal(raft_configuration_encode(&configuration, &bytes), 0);
    raft_configuration_close(&configuration);
    uint8_t *base = bytes.base;
    assert_true(message_configuration_valid(slice_from(base, bytes.len)));
    for (size_t len = 0; len < bytes.len; len++) {
        assert_false(message_configuration_valid(slice_from(base, len)));
    }
    base[bytes.len - 1] = 1; /* padding is zeros */
    assert_false(message_configuration_valid(slice_from(base, bytes.len)));
    base[bytes.len - 1] = 0;
    base[1] = 5; /* one server more than there is: libraft would read on */
    assert_false(message_configuration_valid(slice_from(base, bytes.len)));
    base[1] = 0;
    assert_false(message_configuration_valid(slice_from(base, bytes.len)));
    base[1] = 4;
    base[8] = 0xff; /* 2^63 of them */
    assert_false(message_configuration_valid(slice_from(base, bytes.len)));
    base[8] = 0;
    base[0] = 2; /* another encoding */
    assert_false(message_configuration_valid(slice_from(base, bytes.len)));
    base[0] = 1;
    uint8_t *second = base + 9 + 8 + strlen("1000000007") + 1 + 1;
    base[9 + 8 + strlen("1000000007") + 1] = 3; /* no such role */
    assert_false(message_configuration_valid(slice_from(base, bytes.len)));
    base[9 + 8 + strlen("1000000007") + 1] = 0;
    assert_true(message_configuration_valid(slice_from(base, bytes.len)));
    put_u64(second, 1000000007, 8); /* address of another id */
    assert_false(message_configuration_valid(slice_from(base, bytes.len)));
    raft_free(bytes.base);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_message_codec__every_kind_comes_back_as_it_was),
        cmocka_unit_test(test_message_codec__entries_share_one_batch_that_raft_may_free),
        cmocka_unit_test(test_message_codec__heartbeat_has_no_memory),
        cmocka_unit_test(test_message_codec__bytes_are_pinned),
        cmocka_unit_test(test_message_codec__cut_anywhere_is_malformed),
        cmocka_unit_test(test_message_codec__one_flipped_bit_is_noticed),
        cmocka_unit_test(test_message_codec__forged_bytes_do_no_harm),
        cmocka_unit_test(test_message_codec__trailing_bytes_are_malformed),
        cmocka_unit_test(test_message_codec__names_another_format_version),
        cmocka_unit_test(test_message_codec__refuses_impossible_append_entries),
        cmocka_unit_test(test_message_codec__refuses_impossible_votes),
        cmocka_unit_test(test_message_codec__refuses_impossible_snapshots),
        cmocka_unit_test(test_message_codec__a_chunk_is_bounded_and_never_empty),
        cmocka_unit_test(test_message_codec__configurations_are_checked_to_the_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
