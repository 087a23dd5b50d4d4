/* Payloads of peer frames: every kind both ways, every cut and every flipped bit of every kind, and
 * the edges of each bound (hazards I1, X5). */
#include "node/peer_frame.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <cmocka.h>

#include "fsm/base/rng.h"
#include "node/transport.h"

#define PEERS 3u

static const struct frame_peer peers[PEERS] = {
    {.id = 1, .role = FRAME_ROLE_VOTER, .address = {(const uint8_t *)"127.0.0.1:7420", 14}},
    {.id = UINT64_MAX, .address = {(const uint8_t *)"[::1]:1", 7}},
    {.id = 7, .role = 0xff, .address = {(const uint8_t *)"x", 1}}, /* a role of tomorrow */
};

/* One payload of each kind. */
static void encode(enum frame_type type, struct buf *out)
{
    struct slice bytes = slice_text("some bytes");
    switch (type) {
    case FRAME_TYPE_FORWARD:
        frame_forward_encode(&(struct frame_forward){.number = 1ull << 40,
                                                     .ticket = UINT64_MAX,
                                                     .attempt = 3,
                                                     .term = 9,
                                                     .left_ms = 4999,
                                                     .command = bytes},
                             out);
        return;
    case FRAME_TYPE_FORWARD_REPLY:
        frame_forward_reply_encode(
            &(struct frame_forward_reply){
                .ticket = 5, .attempt = 6, .status = STATUS_OK, .result = bytes},
            out);
        return;
    case FRAME_TYPE_READ_POINT:
        frame_read_point_encode(&(struct frame_read_point){.ticket = 1, .term = 2}, out);
        return;
    case FRAME_TYPE_READ_POINT_REPLY:
        frame_read_point_reply_encode(
            &(struct frame_read_point_reply){
                .ticket = 1, .status = STATUS_OK, .index = 77, .clock_ms = 88},
            out);
        return;
    case FRAME_TYPE_QUERY:
        frame_query_encode(
            &(struct frame_query){.ticket = 1, .term = 2, .left_ms = 3, .request = bytes}, out);
        return;
    case FRAME_TYPE_QUERY_REPLY:
        frame_query_reply_encode(
            &(struct frame_query_reply){.ticket = 1, .status = STATUS_OK, .reply = bytes}, out);
        return;
    case FRAME_TYPE_LEADER:
        frame_leader_encode(
            &(struct frame_leader){.term = 3, .leader_id = 4, .serving = true}, out);
        return;
    case FRAME_TYPE_PEERS:
        frame_peers_encode(peers, PEERS, out);
        return;
    case FRAME_TYPE_ADMIT:
        frame_admit_encode(
            &(struct frame_admit){.node_id = 3, .address = slice_text("127.0.0.1:1")}, out);
        return;
    case FRAME_TYPE_ADMIT_REPLY:
        frame_admit_reply_encode(
            &(struct frame_admit_reply){.status = STATUS_BUSY, .leader_id = 4}, out);
        return;
    case FRAME_TYPE_HELLO:
    case FRAME_TYPE_WELCOME:
    case FRAME_TYPE_REFUSED:
    case FRAME_TYPE_PING:
    case FRAME_TYPE_REPLICA:
        break;
    }
    fail();
}

/* Decode and, where it is well formed, encode again: *out_same says whether that is the same. */
static enum status decode(enum frame_type type, struct slice payload, bool *out_same)
{
    struct buf again = {.len_max = 1 << 24};
    enum status st = STATUS_MALFORMED;
    struct frame_forward forward;
    struct frame_forward_reply forward_reply;
    struct frame_read_point point;
    struct frame_read_point_reply point_reply;
    struct frame_query query;
    struct frame_query_reply answer;
    struct frame_leader leader;
    struct frame_admit admit;
    struct frame_admit_reply admit_reply;
    if (type == FRAME_TYPE_FORWARD) {
        st = frame_forward_decode(payload, &forward);
        if (st == STATUS_OK) {
            frame_forward_encode(&forward, &again);
        }
    } else if (type == FRAME_TYPE_FORWARD_REPLY) {
        st = frame_forward_reply_decode(payload, &forward_reply);
        if (st == STATUS_OK) {
            frame_forward_reply_encode(&forward_reply, &again);
        }
    } else if (type == FRAME_TYPE_READ_POINT) {
        st = frame_read_point_decode(payload, &point);
        if (st == STATUS_OK) {
            frame_read_point_encode(&point, &again);
        }
    } else if (type == FRAME_TYPE_READ_POINT_REPLY) {
        st = frame_read_point_reply_decode(payload, &point_reply);
        if (st == STATUS_OK) {
            frame_read_point_reply_encode(&point_reply, &again);
        }
    } else if (type == FRAME_TYPE_QUERY) {
        st = frame_query_decode(payload, &query);
        if (st == STATUS_OK) {
            frame_query_encode(&query, &again);
        }
    } else if (type == FRAME_TYPE_QUERY_REPLY) {
        st = frame_query_reply_decode(payload, &answer);
        if (st == STATUS_OK) {
            frame_query_reply_encode(&answer, &again);
        }
    } else if (type == FRAME_TYPE_LEADER) {
        st = frame_leader_decode(payload, &leader);
        if (st == STATUS_OK) {
            frame_leader_encode(&leader, &again);
        }
    } else if (type == FRAME_TYPE_PEERS) {
        uint32_t count = 0;
        struct frame_peer them[PEERS + 1];
        st = frame_peers_decode(payload, PEERS + 1, them, &count);
        if (st == STATUS_OK) {
            frame_peers_encode(them, count, &again);
        }
    } else if (type == FRAME_TYPE_ADMIT) {
        st = frame_admit_decode(payload, &admit);
        if (st == STATUS_OK) {
            frame_admit_encode(&admit, &again);
        }
    } else {
        st = frame_admit_reply_decode(payload, &admit_reply);
        if (st == STATUS_OK) {
            frame_admit_reply_encode(&admit_reply, &again);
        }
    }
    *out_same = slice_equal(payload, buf_slice(&again));
    buf_deinit(&again);
    return st;
}

static void test_peer_frame__every_kind_comes_back_as_it_was(void **state)
{
    (void)state;
    for (int type = FRAME_TYPE_FORWARD; type <= FRAME_TYPE_ADMIT_REPLY; type++) {
        struct buf bytes;
        buf_init(&bytes, 4096);
        encode((enum frame_type)type, &bytes);
        bool same = false;
        assert_int_equal(decode((enum frame_type)type, buf_slice(&bytes), &same), STATUS_OK);
        assert_true(same);
        buf_deinit(&bytes);
    }
}

static void test_peer_frame__fields_arrive_where_they_belong(void **state)
{
    (void)state;
    struct buf bytes;
    buf_init(&bytes, 4096);
    encode(FRAME_TYPE_FORWARD, &bytes);
    struct frame_forward forward;
    assert_int_equal(frame_forward_decode(buf_slice(&bytes), &forward), STATUS_OK);
    assert_true(forward.number == 1ull << 40 && forward.ticket == UINT64_MAX);
    assert_true(forward.attempt == 3 && forward.term == 9 && forward.left_ms == 4999);
    assert_true(slice_equal(forward.command, slice_text("some bytes")));
    buf_clear(&bytes);
    encode(FRAME_TYPE_PEERS, &bytes);
    struct frame_peer them[PEERS];
    uint32_t count = 0;
    assert_int_equal(frame_peers_decode(buf_slice(&bytes), PEERS, them, &count), STATUS_OK);
    assert_int_equal(count, PEERS);
    for (uint32_t i = 0; i < PEERS; i++) {
        assert_true(them[i].id == peers[i].id && them[i].role == peers[i].role);
        assert_true(slice_equal(them[i].address, peers[i].address));
    }
    assert_int_equal(frame_peers_decode(buf_slice(&bytes), PEERS - 1, them, &count),
                     STATUS_MALFORMED);
    buf_deinit(&bytes);
}

/* Cut short, a payload is malformed, or, where it ends in free bytes, shorter and still exact. */
static void test_peer_frame__every_cut_is_refused_or_exact(void **state)
{
    (void)state;
    for (int type = FRAME_TYPE_FORWARD; type <= FRAME_TYPE_ADMIT_REPLY; type++) {
        struct buf bytes;
        buf_init(&bytes, 4096);
        encode((enum frame_type)type, &bytes);
        for (size_t len = 0; len < bytes.len; len++) {
            uint8_t *cut = malloc(len + 1); /* of its own, so that a sanitizer sees its end */
            assert_non_null(cut);
            memcpy(cut, bytes.base, len);
            uint8_t *exact = realloc(cut, len > 0 ? len : 1);
            assert_non_null(exact);
            bool same = false;
            enum status st = decode((enum frame_type)type, slice_from(exact, len), &same);
            assert_true(st == STATUS_MALFORMED || same);
            free(exact);
        }
        buf_append_u8(&bytes, 0); /* one byte more */
        bool same = false;
        enum status st = decode((enum frame_type)type, buf_slice(&bytes), &same);
        assert_true(st == STATUS_MALFORMED || same);
        buf_deinit(&bytes);
    }
}

static void test_peer_frame__every_flipped_bit_is_refused_or_exact(void **state)
{
    (void)state;
    for (int type = FRAME_TYPE_FORWARD; type <= FRAME_TYPE_ADMIT_REPLY; type++) {
        struct buf bytes;
        buf_init(&bytes, 4096);
        encode((enum frame_type)type, &bytes);
        for (size_t bit = 0; bit < bytes.len * 8; bit++) {
            bytes.base[bit / 8] = (uint8_t)(bytes.base[bit / 8] ^ (1u << (bit % 8)));
            bool same = false;
            (void)decode((enum frame_type)type, buf_slice(&bytes), &same);
            bytes.base[bit / 8] = (uint8_t)(bytes.base[bit / 8] ^ (1u << (bit % 8)));
        }
        buf_deinit(&bytes);
    }
}

static void test_peer_frame__noise_does_no_harm(void **state)
{
    (void)state;
    struct rng rng;
    rng_init(&rng, 20);
    uint8_t noise[96];
    for (unsigned round = 0; round < 20000; round++) {
        size_t len = rng_below(&rng, sizeof noise + 1);
        for (size_t i = 0; i < len; i++) {
            noise[i] = (uint8_t)rng_next(&rng);
        }
        int type = FRAME_TYPE_FORWARD +
                   (int)rng_below(&rng, FRAME_TYPE_ADMIT_REPLY - FRAME_TYPE_FORWARD + 1);
        bool same = false;
        (void)decode((enum frame_type)type, slice_from(noise, len), &same);
    }
}

/* Every status comes back as one of the same class; one of no known number may have been done. */
static void test_peer_frame__statuses_keep_their_class(void **state)
{
    (void)state;
    for (int st = STATUS_OK + 1; st < STATUS_COUNT; st++) {
        struct buf bytes;
        buf_init(&bytes, 64);
        frame_forward_reply_encode(
            &(struct frame_forward_reply){.ticket = 1, .status = (enum status)st}, &bytes);
        struct frame_forward_reply reply;
        assert_int_equal(frame_forward_reply_decode(buf_slice(&bytes), &reply), STATUS_OK);
        assert_true(reply.status == (enum status)st || reply.status == STATUS_UNKNOWN);
        buf_deinit(&bytes);
    }
    uint8_t unheard_of[14] = {[12] = 0xff, [13] = 0x7f};
    struct frame_forward_reply reply;
    assert_int_equal(frame_forward_reply_decode(slice_from(unheard_of, sizeof unheard_of), &reply),
                     STATUS_OK);
    assert_int_equal(reply.status, STATUS_UNKNOWN);
    assert_int_equal(status_class(reply.status), STATUS_CLASS_MAYBE);
}

static void test_peer_frame__bounds(void **state)
{
    (void)state;
    struct buf bytes;
    buf_init(&bytes, 1 << 24);
    uint8_t *large = calloc(1, PEER_FRAME_MESSAGE_LEN_MAX + 1);
    assert_non_null(large);
    struct frame_forward forward = {
        .term = 1, .command = {large, PEER_FRAME_COMMAND_LEN_MAX}};
    frame_forward_encode(&forward, &bytes);
    assert_int_equal(frame_forward_decode(buf_slice(&bytes), &forward), STATUS_OK);
    buf_append_u8(&bytes, 0);
    assert_int_equal(frame_forward_decode(buf_slice(&bytes), &forward), STATUS_MALFORMED);

    buf_clear(&bytes);
    struct frame_query query = {.request = {large, PEER_FRAME_MESSAGE_LEN_MAX}};
    frame_query_encode(&query, &bytes);
    assert_int_equal(frame_query_decode(buf_slice(&bytes), &query), STATUS_OK);
    buf_append_u8(&bytes, 0);
    assert_int_equal(frame_query_decode(buf_slice(&bytes), &query), STATUS_MALFORMED);
    free(large);

    /* An answer without a result, one with it refused, a term 0, a peer 0, a long address. */
    uint8_t ok_alone[14] = {0};
    struct frame_forward_reply reply;
    assert_int_equal(frame_forward_reply_decode(slice_from(ok_alone, sizeof ok_alone), &reply),
                     STATUS_MALFORMED);
    uint8_t refused_with_result[15] = {[12] = 2};
    assert_int_equal(frame_forward_reply_decode(
                         slice_from(refused_with_result, sizeof refused_with_result), &reply),
                     STATUS_MALFORMED);
    uint8_t term_zero[33] = {0};
    assert_int_equal(frame_forward_decode(slice_from(term_zero, sizeof term_zero), &forward),
                     STATUS_MALFORMED);
    struct frame_admit admit;
    uint8_t node_zero[10] = {[8] = 1, [9] = 'a'};
    assert_int_equal(frame_admit_decode(slice_from(node_zero, sizeof node_zero), &admit),
                     STATUS_MALFORMED);
    uint8_t blank_in_address[11] = {1, [8] = 2, [9] = 'a', [10] = ' '};
    assert_int_equal(
        frame_admit_decode(slice_from(blank_in_address, sizeof blank_in_address), &admit),
        STATUS_MALFORMED);
    uint8_t long_address[9 + 128];
    memset(long_address, 'a', sizeof long_address);
    long_address[8] = 128;
    assert_int_equal(frame_admit_decode(slice_from(long_address, sizeof long_address), &admit),
                     STATUS_MALFORMED);
    long_address[8] = 127;
    assert_int_equal(frame_admit_decode(slice_from(long_address, sizeof long_address - 1), &admit),
                     STATUS_OK);
    uint8_t serving_two[17] = {[16] = 2};
    struct frame_leader leader;
    assert_int_equal(frame_leader_decode(slice_from(serving_two, sizeof serving_two), &leader),
                     STATUS_MALFORMED);
    buf_deinit(&bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_peer_frame__every_kind_comes_back_as_it_was),
        cmocka_unit_test(test_peer_frame__fields_arrive_where_they_belong),
        cmocka_unit_test(test_peer_frame__every_cut_is_refused_or_exact),
        cmocka_unit_test(test_peer_frame__every_flipped_bit_is_refused_or_exact),
        cmocka_unit_test(test_peer_frame__noise_does_no_harm),
        cmocka_unit_test(test_peer_frame__statuses_keep_their_class),
        cmocka_unit_test(test_peer_frame__bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
