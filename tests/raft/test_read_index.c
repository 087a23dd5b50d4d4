/* Which answers confirm a round, and which reads a round may serve. */
#include "raft/read_index.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define T0 1000000000ull

static const uint64_t OTHERS[4] = {11, 12, 13, 14};

static unsigned length(const struct list *head)
{
    unsigned count = 0;
    for (const struct list *link = head->next; link != head; link = link->next) {
        count++;
    }
    return count;
}

/* A round in term 5 among `others` + 1 voters, with one read. */
static void begin(struct read_index *reads, struct list *read, unsigned others)
{
    read_index_init(reads);
    list_init(read);
    read_index_add(reads, read);
    assert_true(read_index_wants_round(reads));
    const struct read_round round = {.term = 5, .index = 70, .clock_ms = 9, .began_ns = T0};
    read_index_begin(reads, &round, OTHERS, others);
    assert_false(read_index_wants_round(reads));
}

static void test_read_index__needs_a_majority_of_voters(void **state)
{
    (void)state;
    static const unsigned needed[5] = {0, 1, 1, 2, 2}; /* by the number of others */
    for (unsigned others = 0; others <= 4; others++) {
        struct read_index reads;
        struct list read;
        begin(&reads, &read, others);
        for (unsigned i = 0; i < needed[others]; i++) {
            assert_false(read_index_confirmed(&reads));
            read_index_answer(&reads, OTHERS[i], 5, reads.nonce);
        }
        assert_true(read_index_confirmed(&reads));
        struct list served;
        list_init(&served);
        read_index_end(&reads, &served);
        assert_int_equal(length(&served), 1);
        assert_false(read_index_confirmed(&reads));
    }
}

static void test_read_index__counts_each_voter_once_and_no_stranger(void **state)
{
    (void)state;
    struct read_index reads;
    struct list read;
    begin(&reads, &read, 4);
    read_index_answer(&reads, 11, 5, reads.nonce);
    read_index_answer(&reads, 11, 5, reads.nonce);
    read_index_answer(&reads, 99, 5, reads.nonce);
    assert_false(read_index_confirmed(&reads));
    read_index_answer(&reads, 13, 5, reads.nonce);
    assert_true(read_index_confirmed(&reads));
}

static void test_read_index__ignores_answers_to_other_rounds_and_terms(void **state)
{
    (void)state;
    struct read_index reads;
    struct list read;
    begin(&reads, &read, 2);
    read_index_answer(&reads, 11, 5, reads.nonce - 1);
    read_index_answer(&reads, 11, 5, reads.nonce + 1);
    read_index_answer(&reads, 11, 4, reads.nonce);
    read_index_answer(&reads, 11, 6, reads.nonce);
    assert_false(read_index_confirmed(&reads));
    read_index_answer(&reads, 11, 5, reads.nonce);
    assert_true(read_index_confirmed(&reads));
}

static void test_read_index__a_later_read_waits_for_the_next_round(void **state)
{
    (void)state;
    struct read_index reads;
    struct list first;
    struct list second;
    struct list third;
    begin(&reads, &first, 2);
    uint64_t nonce = reads.nonce;
    list_init(&second);
    list_init(&third);
    read_index_add(&reads, &second);
    read_index_add(&reads, &third);
    assert_false(read_index_wants_round(&reads)); /* one at a time */
    read_index_answer(&reads, 12, 5, nonce);
    struct list served;
    list_init(&served);
    read_index_end(&reads, &served);
    assert_int_equal(length(&served), 1);
    assert_ptr_equal(list_first(&served), &first);
    assert_true(read_index_wants_round(&reads));
    const struct read_round round = {.term = 5, .index = 71, .began_ns = T0 + 1};
    read_index_begin(&reads, &round, OTHERS, 2);
    /* The answer to the first round comes late. */
    read_index_answer(&reads, 11, 5, nonce);
    assert_false(read_index_confirmed(&reads));
    read_index_answer(&reads, 11, 5, reads.nonce);
    list_init(&served);
    read_index_end(&reads, &served);
    assert_int_equal(length(&served), 2);
}

static void test_read_index__asks_at_once_and_again_only_the_silent(void **state)
{
    (void)state;
    struct read_index reads;
    struct list read;
    begin(&reads, &read, 4);
    uint64_t ids[READ_INDEX_VOTERS_MAX];
    assert_true(read_index_should_ask(&reads, T0));
    assert_int_equal(read_index_ask(&reads, T0, ids), 4);
    assert_false(read_index_should_ask(&reads, T0 + READ_INDEX_RETRY_NS - 1));
    read_index_answer(&reads, 12, 5, reads.nonce);
    assert_true(read_index_should_ask(&reads, T0 + READ_INDEX_RETRY_NS));
    assert_int_equal(read_index_ask(&reads, T0 + READ_INDEX_RETRY_NS, ids), 3);
    assert_int_equal(ids[0], 11);
    assert_int_equal(ids[1], 13);
    read_index_answer(&reads, 13, 5, reads.nonce);
    assert_false(read_index_should_ask(&reads, T0 + 10 * READ_INDEX_RETRY_NS));
}

static void test_read_index__lost_leadership_drops_everything(void **state)
{
    (void)state;
    struct read_index reads;
    struct list first;
    struct list second;
    begin(&reads, &first, 2);
    list_init(&second);
    read_index_add(&reads, &second);
    struct list dropped;
    list_init(&dropped);
    read_index_drop(&reads, &dropped);
    assert_int_equal(length(&dropped), 2);
    assert_false(read_index_wants_round(&reads));
    read_index_answer(&reads, 11, 5, reads.nonce);
    assert_false(read_index_confirmed(&reads));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_read_index__needs_a_majority_of_voters),
        cmocka_unit_test(test_read_index__counts_each_voter_once_and_no_stranger),
        cmocka_unit_test(test_read_index__ignores_answers_to_other_rounds_and_terms),
        cmocka_unit_test(test_read_index__a_later_read_waits_for_the_next_round),
        cmocka_unit_test(test_read_index__asks_at_once_and_again_only_the_silent),
        cmocka_unit_test(test_read_index__lost_leadership_drops_everything),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
