/* What is kept per origin: order, confirmation, the order of silence, grants, sums. */
#include "fsm/origin_table.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "fsm/base/buf.h"
#include "fsm/base/rng.h"

static struct position at(uint64_t index)
{
    return (struct position){.index = index};
}

static void keep(struct origin_table *table, struct origin *origin, uint64_t sequence,
                 const char *result)
{
    struct origin_record record = {
        .sequence = sequence,
        .position = at(sequence),
        .result = slice_text(result),
    };
    origin_keep(table, origin, &record);
}

static void test_origin_table__finds_what_is_kept_whatever_the_order(void **state)
{
    (void)state;
    struct origin_table table;
    struct rng rng;
    rng_init(&rng, 3);
    origin_table_init(&table);
    struct origin *origin = origin_open(&table, 7, 1, at(1));
    bool kept[201] = {false};
    size_t count = 0;
    uint64_t confirmed = 0;
    for (unsigned step = 0; step < 3000; step++) {
        uint64_t sequence = confirmed + 1 + rng_below(&rng, 40);
        if (sequence <= 200 && !kept[sequence]) {
            keep(&table, origin, sequence, "result");
            kept[sequence] = true;
            count++;
        }
        if (rng_chance(&rng, 60) && confirmed < 190) {
            uint64_t upto = confirmed + rng_below(&rng, 8);
            origin_hear(&table, origin, 1, at(2), upto);
            for (; confirmed < upto; confirmed++) {
                count -= kept[confirmed + 1];
            }
        }
        assert_int_equal(origin->count, count);
        assert_int_equal(table.outcome_count, count);
        assert_int_equal(origin->results_len, count * 6);
        for (uint64_t probe = 1; probe <= 200; probe++) {
            bool there = origin_outcome_find(origin, probe) != NULL;
            assert_int_equal(there, kept[probe] && probe > confirmed);
        }
    }
    assert_int_equal(confirmed, origin->confirmed);
    origin_hear(&table, origin, 1, at(2), 5); /* a lower mark changes nothing */
    assert_int_equal(confirmed, origin->confirmed);
    origin_hear(&table, origin, 1, at(2), 1000);
    assert_int_equal(table.outcome_count, 0);
    assert_true(table.outcome_digest == 0);
    origin_table_deinit(&table);
    assert_true(table.origin_digest == 0 && table.memory_len == 0);
}

static void test_origin_table__the_longest_silent_comes_first(void **state)
{
    (void)state;
    struct origin_table table;
    origin_table_init(&table);
    assert_null(origin_table_longest_silent(&table));
    struct origin *first = origin_open(&table, 1, 0, at(1));
    struct origin *second = origin_open(&table, 2, 0, at(2));
    assert_ptr_equal(origin_table_longest_silent(&table), first);
    origin_hear(&table, first, 0, at(3), 0); /* the same time: the position decides */
    assert_ptr_equal(origin_table_longest_silent(&table), second);
    origin_forget(&table, second);
    assert_null(origin_find(&table, 2));
    assert_ptr_equal(origin_table_longest_silent(&table), first);
    origin_table_deinit(&table);
}

static void test_origin_table__numbers_are_in_their_order(void **state)
{
    (void)state;
    struct origin_table table;
    origin_table_init(&table);
    const uint64_t numbers[] = {UINT64_MAX, 1, 256, 255, 1ull << 40};
    for (size_t i = 0; i < 5; i++) {
        (void)origin_open(&table, numbers[i], 0, at(i + 1));
    }
    uint64_t before = 0;
    for (struct tree_node *node = tree_first(&table.origins); node != NULL;
         node = tree_next(node)) {
        struct origin *origin = CONTAINER_OF(node, struct origin, node);
        assert_true(origin->number > before);
        assert_ptr_equal(origin_find(&table, origin->number), origin);
        before = origin->number;
    }
    assert_null(origin_find(&table, 2));
    origin_table_deinit(&table);
}

static void test_origin_table__is_full_by_count_and_by_bytes(void **state)
{
    (void)state;
    struct origin_table table;
    origin_table_init(&table);
    struct origin *origin = origin_open(&table, 1, 0, at(1));
    for (uint64_t sequence = 1; sequence <= UNCONFIRMED_MAX; sequence++) {
        assert_false(origin_full(origin));
        keep(&table, origin, sequence, "");
    }
    assert_true(origin_full(origin));
    origin_hear(&table, origin, 1, at(2), 1);
    assert_false(origin_full(origin));
    static uint8_t bytes[UNCONFIRMED_LEN_MAX];
    struct origin_record record = {
        .sequence = 5000,
        .result = slice_from(bytes, sizeof bytes - 1),
    };
    origin_keep(&table, origin, &record);
    origin_hear(&table, origin, 1, at(2), 1024);
    assert_false(origin_full(origin));
    keep(&table, origin, 5001, "x");
    assert_true(origin_full(origin));
    origin_table_deinit(&table);
}

static void test_origin_table__grants_survive_their_encoding(void **state)
{
    (void)state;
    struct buf bytes;
    buf_init(&bytes, KIB);
    const struct origin_grant grants[] = {{.token = 0x0102030405060708, .key = slice_text("k")},
                                          {.token = UINT64_MAX, .key = slice_text("longer")}};
    for (size_t i = 0; i < 2; i++) {
        origin_grant_encode(&grants[i], &bytes);
    }
    struct slice rest = buf_slice(&bytes);
    struct origin_grant grant;
    for (size_t i = 0; i < 2; i++) {
        assert_true(origin_grant_next(&rest, &grant));
        assert_true(grant.token == grants[i].token);
        assert_true(slice_equal(grant.key, grants[i].key));
    }
    assert_false(origin_grant_next(&rest, &grant));
    /* Cut anywhere, it is no grant. */
    for (size_t len = 0; len < 11; len++) {
        rest = slice_from(bytes.base, len);
        assert_false(origin_grant_next(&rest, &grant));
    }
    bytes.base[8] = 0; /* a key without bytes */
    rest = buf_slice(&bytes);
    assert_false(origin_grant_next(&rest, &grant));
    buf_deinit(&bytes);
}

static void test_origin_table__settling_ends_the_grants_and_keeps_the_result(void **state)
{
    (void)state;
    struct origin_table table;
    struct buf grants;
    origin_table_init(&table);
    buf_init(&grants, KIB);
    origin_grant_encode(&(struct origin_grant){.token = 9, .key = slice_text("k")}, &grants);
    struct origin *origin = origin_open(&table, 1, 0, at(1));
    struct origin_record record = {
        .sequence = 1,
        .position = at(2),
        .result = slice_text("result"),
        .ns = slice_text("default"),
        .grants = buf_slice(&grants),
        .grant_count = 1,
    };
    origin_keep(&table, origin, &record);
    struct origin_outcome *outcome = origin_outcome_find(origin, 1);
    assert_true(slice_equal(origin_outcome_ns(outcome), record.ns));
    assert_true(slice_equal(origin_outcome_grants(outcome), record.grants));
    uint64_t digest = table.outcome_digest;
    origin_outcome_settled(&table, origin, outcome, true);
    assert_true(table.outcome_digest != digest);
    assert_true(outcome->ended);
    assert_int_equal(outcome->grant_count, 0);
    assert_int_equal(origin_outcome_grants(outcome).len, 0);
    assert_true(slice_equal(origin_outcome_result(outcome), record.result));
    origin_outcome_settled(&table, origin, outcome, false);
    assert_true(outcome->ended);
    origin_table_deinit(&table);
    assert_true(table.outcome_digest == 0 && table.memory_len == 0);
    buf_deinit(&grants);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_origin_table__finds_what_is_kept_whatever_the_order),
        cmocka_unit_test(test_origin_table__the_longest_silent_comes_first),
        cmocka_unit_test(test_origin_table__numbers_are_in_their_order),
        cmocka_unit_test(test_origin_table__is_full_by_count_and_by_bytes),
        cmocka_unit_test(test_origin_table__grants_survive_their_encoding),
        cmocka_unit_test(test_origin_table__settling_ends_the_grants_and_keeps_the_result),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
