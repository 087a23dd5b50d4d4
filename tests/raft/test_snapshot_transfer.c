/* A snapshot in pieces, over links that lose, double and delay. */
#include "raft/snapshot_transfer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdlib.h>

#include "fsm/base/check.h"
#include "fsm/base/rng.h"

#define T0 1000000000000ull
#define MS 1000000ull
#define LEN (5u * MESSAGE_CHUNK_LEN_MAX + 1000u)

struct pair {
    struct snapshot_sender sender;
    struct snapshot_receiver receiver;
    struct raft_install_snapshot args;
    uint64_t now_ns;
};

static void pair_init(struct pair *pair, size_t len, uint64_t transfer)
{
    *pair = (struct pair){.now_ns = T0};
    raft_configuration_init(&pair->args.conf);
    assert_int_equal(raft_configuration_add(&pair->args.conf, 5, "5", RAFT_VOTER), 0);
    pair->args.term = 3;
    pair->args.last_index = 100;
    pair->args.last_term = 2;
    pair->args.conf_index = 1;
    pair->args.data.len = len;
    pair->args.data.base = malloc(len);
    for (size_t i = 0; i < len; i++) {
        ((uint8_t *)pair->args.data.base)[i] = (uint8_t)(i * 7 + i / 251);
    }
    snapshot_sender_init(&pair->sender);
    snapshot_receiver_init(&pair->receiver);
    snapshot_sender_start(&pair->sender, transfer, &pair->args, T0);
}

static void pair_deinit(struct pair *pair)
{
    snapshot_sender_stop(&pair->sender);
    snapshot_receiver_stop(&pair->receiver);
    raft_configuration_close(&pair->args.conf);
    free(pair->args.data.base);
}

static void give_begin(struct pair *pair, struct message_ack *out_ack)
{
    struct message message;
    assert_int_equal(message_decode(buf_slice(&pair->sender.begin), &message), STATUS_OK);
    snapshot_receiver_begin(&pair->receiver, &message, out_ack);
}

/* True when it made the snapshot whole; then it is compared and freed. */
static bool give_chunk(struct pair *pair, const struct message_chunk *chunk,
                       struct message_ack *out_ack, bool *out_answer)
{
    struct message whole;
    if (!snapshot_receiver_chunk(&pair->receiver, chunk, &whole, out_ack, out_answer)) {
        return false;
    }
    const struct raft_install_snapshot *got = &whole.raft.install_snapshot;
    assert_int_equal(got->last_index, 100);
    assert_int_equal(got->conf.n, 1);
    assert_int_equal(got->data.len, pair->args.data.len);
    assert_memory_equal(got->data.base, pair->args.data.base, got->data.len);
    message_release(&whole);
    return true;
}

static void test_snapshot_transfer__arrives_whole(void **state)
{
    (void)state;
    static const size_t lens[] = {1,
                                  8,
                                  MESSAGE_CHUNK_LEN_MAX - 1,
                                  MESSAGE_CHUNK_LEN_MAX,
                                  MESSAGE_CHUNK_LEN_MAX + 1,
                                  SNAPSHOT_WINDOW_LEN,
                                  LEN};
    for (unsigned i = 0; i < sizeof lens / sizeof lens[0]; i++) {
        struct pair pair;
        pair_init(&pair, lens[i], 9);
        struct message_ack ack;
        give_begin(&pair, &ack);
        assert_int_equal(ack.received, 0);
        snapshot_sender_sent(&pair.sender);
        enum snapshot_progress progress = SNAPSHOT_PROGRESS_GOING;
        bool whole = false;
        struct message message;
        while (snapshot_sender_next(&pair.sender, &message)) {
            bool answer = false;
            whole = give_chunk(&pair, &message.chunk, &ack, &answer);
            assert_true(answer);
            snapshot_sender_sent(&pair.sender);
            progress = snapshot_sender_ack(&pair.sender, &ack, T0);
        }
        assert_true(whole);
        assert_int_equal(progress, SNAPSHOT_PROGRESS_DONE);
        pair_deinit(&pair);
    }
}

static void test_snapshot_transfer__only_a_window_is_under_way(void **state)
{
    (void)state;
    struct pair pair;
    pair_init(&pair, LEN * 4, 9);
    struct message message;
    assert_false(snapshot_sender_next(&pair.sender, &message)); /* BEGIN first */
    snapshot_sender_sent(&pair.sender);
    size_t sent = 0;
    while (snapshot_sender_next(&pair.sender, &message)) {
        assert_int_equal(message.chunk.offset, sent);
        sent += message.chunk.bytes.len;
        snapshot_sender_sent(&pair.sender);
    }
    assert_int_equal(sent, SNAPSHOT_WINDOW_LEN);
    const struct message_ack ack = {.transfer = 9, .received = MESSAGE_CHUNK_LEN_MAX};
    assert_int_equal(snapshot_sender_ack(&pair.sender, &ack, T0), SNAPSHOT_PROGRESS_GOING);
    assert_true(snapshot_sender_next(&pair.sender, &message));
    snapshot_sender_sent(&pair.sender);
    assert_false(snapshot_sender_next(&pair.sender, &message));
    pair_deinit(&pair);
}

static void test_snapshot_transfer__goes_back_when_nothing_comes_and_gives_up(void **state)
{
    (void)state;
    struct pair pair;
    pair_init(&pair, LEN, 9);
    snapshot_sender_sent(&pair.sender);
    struct message message;
    while (snapshot_sender_next(&pair.sender, &message)) {
        snapshot_sender_sent(&pair.sender);
    }
    const struct message_ack ack = {.transfer = 9, .received = MESSAGE_CHUNK_LEN_MAX};
    (void)snapshot_sender_ack(&pair.sender, &ack, T0 + 10 * MS);
    assert_int_equal(snapshot_sender_timer_ns(&pair.sender),
                     T0 + 10 * MS + SNAPSHOT_RETRY_NS);
    (void)snapshot_sender_tick(&pair.sender, T0 + 10 * MS + SNAPSHOT_RETRY_NS - 1);
    assert_false(snapshot_sender_next(&pair.sender, &message) &&
                 message.chunk.offset == MESSAGE_CHUNK_LEN_MAX);
    (void)snapshot_sender_tick(&pair.sender, T0 + 10 * MS + SNAPSHOT_RETRY_NS);
    assert_true(snapshot_sender_next(&pair.sender, &message));
    assert_int_equal(message.chunk.offset, MESSAGE_CHUNK_LEN_MAX);
    assert_true(pair.sender.begun); /* it was received: something came back */
    assert_int_equal(snapshot_sender_tick(&pair.sender, T0 + 10 * MS + SNAPSHOT_GIVE_UP_NS - 1),
                     SNAPSHOT_PROGRESS_GOING);
    assert_int_equal(snapshot_sender_tick(&pair.sender, T0 + 10 * MS + SNAPSHOT_GIVE_UP_NS),
                     SNAPSHOT_PROGRESS_ENDED);
    snapshot_sender_stop(&pair.sender);
    assert_int_equal(snapshot_sender_timer_ns(&pair.sender), UINT64_MAX);
    pair_deinit(&pair);
}

static void test_snapshot_transfer__a_lost_begin_is_sent_again(void **state)
{
    (void)state;
    struct pair pair;
    pair_init(&pair, LEN, 9);
    snapshot_sender_sent(&pair.sender);
    struct message message;
    assert_true(snapshot_sender_next(&pair.sender, &message));
    struct message_ack ack;
    bool answer = true;
    assert_false(give_chunk(&pair, &message.chunk, &ack, &answer));
    assert_false(answer); /* a transfer that nobody has begun */
    (void)snapshot_sender_tick(&pair.sender, T0 + SNAPSHOT_RETRY_NS);
    assert_false(pair.sender.begun);
    pair_deinit(&pair);
}

static void test_snapshot_transfer__refusals_and_strange_answers(void **state)
{
    (void)state;
    struct pair pair;
    pair_init(&pair, LEN, 9);
    snapshot_sender_sent(&pair.sender);
    struct message_ack ack = {.transfer = 8, .received = LEN, .refused = true};
    assert_int_equal(snapshot_sender_ack(&pair.sender, &ack, T0), SNAPSHOT_PROGRESS_GOING);
    ack = (struct message_ack){.transfer = 9, .received = LEN + 1};
    assert_int_equal(snapshot_sender_ack(&pair.sender, &ack, T0), SNAPSHOT_PROGRESS_GOING);
    assert_int_equal(pair.sender.acked, 0);
    ack = (struct message_ack){.transfer = 9, .refused = true};
    assert_int_equal(snapshot_sender_ack(&pair.sender, &ack, T0), SNAPSHOT_PROGRESS_ENDED);
    pair_deinit(&pair);
}

static void test_snapshot_transfer__a_new_number_replaces_the_old(void **state)
{
    (void)state;
    struct pair pair;
    pair_init(&pair, LEN, 9);
    struct message_ack ack;
    give_begin(&pair, &ack);
    snapshot_sender_sent(&pair.sender);
    struct message message;
    bool answer = false;
    assert_true(snapshot_sender_next(&pair.sender, &message));
    assert_false(give_chunk(&pair, &message.chunk, &ack, &answer));
    assert_int_equal(ack.received, MESSAGE_CHUNK_LEN_MAX);
    give_begin(&pair, &ack); /* doubled: nothing is lost */
    assert_int_equal(ack.received, MESSAGE_CHUNK_LEN_MAX);
    snapshot_sender_stop(&pair.sender);
    snapshot_sender_start(&pair.sender, 10, &pair.args, T0);
    give_begin(&pair, &ack);
    assert_int_equal(ack.transfer, 10);
    assert_int_equal(ack.received, 0);
    /* A late chunk of the old one. */
    assert_false(give_chunk(&pair, &message.chunk, &ack, &answer));
    assert_false(answer);
    pair_deinit(&pair);
}

static void test_snapshot_transfer__never_takes_more_than_was_announced(void **state)
{
    (void)state;
    struct pair pair;
    pair_init(&pair, 100, 9);
    struct message_ack ack;
    give_begin(&pair, &ack);
    static uint8_t piece[101];
    bool answer = false;
    const struct message_chunk longer = {9, 0, slice_from(piece, sizeof piece)};
    assert_false(give_chunk(&pair, &longer, &ack, &answer));
    assert_int_equal(ack.received, 0);
    const struct message_chunk later = {9, 50, slice_from(piece, 50)};
    assert_false(give_chunk(&pair, &later, &ack, &answer));
    assert_int_equal(ack.received, 0);
    const struct message_chunk far = {9, UINT64_MAX - 10, slice_from(piece, 50)};
    assert_false(give_chunk(&pair, &far, &ack, &answer));
    assert_int_equal(ack.received, 0);
    pair_deinit(&pair);
}

static void test_snapshot_transfer__survives_a_bad_link(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 200; seed++) {
        struct rng rng;
        rng_init(&rng, seed);
        struct pair pair;
        pair_init(&pair, LEN, 9);
        unsigned wholes = 0;
        bool done = false;
        struct message_ack acks[64];
        unsigned ack_count = 0;
        for (unsigned step = 0; step < 20000 && !done; step++) {
            pair.now_ns += MS;
            enum snapshot_progress progress = snapshot_sender_tick(&pair.sender, pair.now_ns);
            assert_int_equal(progress, SNAPSHOT_PROGRESS_GOING);
            struct message message;
            struct message_ack ack;
            bool answer = false;
            if (!pair.sender.begun) {
                snapshot_sender_sent(&pair.sender);
                if (rng_chance(&rng, 800)) {
                    give_begin(&pair, &ack);
                    answer = true;
                }
            } else if (snapshot_sender_next(&pair.sender, &message)) {
                snapshot_sender_sent(&pair.sender);
                unsigned copies = rng_chance(&rng, 200) ? 0 : rng_chance(&rng, 100) ? 2 : 1;
                while (copies-- > 0) {
                    wholes += give_chunk(&pair, &message.chunk, &ack, &answer) ? 1 : 0;
                }
            }
            if (answer && ack_count < 64 && rng_chance(&rng, 800)) {
                acks[ack_count++] = ack;
            }
            if (ack_count > 0 && rng_chance(&rng, 300)) {
                unsigned idx = (unsigned)rng_below(&rng, ack_count); /* any order */
                done = snapshot_sender_ack(&pair.sender, &acks[idx], pair.now_ns) ==
                       SNAPSHOT_PROGRESS_DONE;
                acks[idx] = acks[--ack_count];
            }
        }
        assert_true(done);
        assert_int_equal(wholes, 1);
        pair_deinit(&pair);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_snapshot_transfer__arrives_whole),
        cmocka_unit_test(test_snapshot_transfer__only_a_window_is_under_way),
        cmocka_unit_test(test_snapshot_transfer__goes_back_when_nothing_comes_and_gives_up),
        cmocka_unit_test(test_snapshot_transfer__a_lost_begin_is_sent_again),
        cmocka_unit_test(test_snapshot_transfer__refusals_and_strange_answers),
        cmocka_unit_test(test_snapshot_transfer__a_new_number_replaces_the_old),
        cmocka_unit_test(test_snapshot_transfer__never_takes_more_than_was_announced),
        cmocka_unit_test(test_snapshot_transfer__survives_a_bad_link),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
