/* What is held back while numbers are settled: owners, keys, pages, and nothing afterwards. */
#include "node/holds.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

static struct op op_of(const char *ns, const char *owner, const struct key_item *keys,
                       uint32_t count)
{
    return (struct op){
        .ns = slice_text(ns), .owner = slice_text(owner), .keys = keys, .key_count = count};
}

static bool reads(const struct holds *holds, const char *ns, const char *key)
{
    struct key_item item = {.key = slice_text(key)};
    return holds_block_read(holds, slice_text(ns), &item, 1);
}

static bool owns(const struct holds *holds, const char *ns, const char *owner)
{
    return holds_block_owner(holds, slice_text(ns), slice_text(owner));
}

static void test_holds__owner_keys_and_pages_of_one_namespace(void **state)
{
    (void)state;
    struct holds holds;
    holds_init(&holds);
    struct key_item keys[2] = {{.key = slice_text("a")}, {.key = slice_text("b")}};
    struct op op = op_of("ns", "me", keys, 2);
    struct hold hold = {0};
    hold_make(&hold, &op);
    assert_false(owns(&holds, "ns", "me")); /* not in force yet */
    holds_add(&holds, &hold);
    assert_true(owns(&holds, "ns", "me"));
    assert_false(owns(&holds, "ns", "you"));
    assert_false(owns(&holds, "other", "me"));
    assert_true(reads(&holds, "ns", "a") && reads(&holds, "ns", "b"));
    assert_false(reads(&holds, "ns", "c"));
    assert_false(reads(&holds, "other", "a"));
    assert_true(holds_block_read(&holds, slice_text("ns"), NULL, 0));
    assert_false(holds_block_read(&holds, slice_text("other"), NULL, 0));
    holds_remove(&holds, &hold);
    hold_clear(&hold);
    assert_false(owns(&holds, "ns", "me") || reads(&holds, "ns", "a"));
    holds_deinit(&holds);
}

static void test_holds__without_keys_every_read_of_the_namespace_waits(void **state)
{
    (void)state;
    struct holds holds;
    holds_init(&holds);
    struct op op = op_of("ns", "me", NULL, 0);
    struct hold hold = {0};
    hold_make(&hold, &op);
    holds_add(&holds, &hold);
    assert_true(reads(&holds, "ns", "anything"));
    assert_false(reads(&holds, "other", "anything"));
    holds_remove(&holds, &hold);
    hold_clear(&hold);
    holds_deinit(&holds);
}

static void test_holds__two_holds_of_one_name_end_with_the_second(void **state)
{
    (void)state;
    struct holds holds;
    holds_init(&holds);
    struct key_item key = {.key = slice_text("a")};
    struct op op = op_of("ns", "me", &key, 1);
    struct hold first = {0};
    struct hold second = {0};
    hold_make(&first, &op);
    hold_make(&second, &op);
    holds_add(&holds, &first);
    holds_add(&holds, &second);
    holds_remove(&holds, &first);
    assert_true(owns(&holds, "ns", "me") && reads(&holds, "ns", "a"));
    holds_remove(&holds, &second);
    assert_false(owns(&holds, "ns", "me") || reads(&holds, "ns", "a"));
    hold_clear(&first);
    hold_clear(&second);
    holds_deinit(&holds);
}

static void test_holds__thousands_come_and_go(void **state)
{
    (void)state;
    enum { COUNT = 5000 };
    struct holds holds;
    holds_init(&holds);
    struct hold *all = calloc(COUNT, sizeof *all);
    assert_non_null(all);
    char name[16];
    for (unsigned round = 0; round < 3; round++) {
        for (unsigned i = 0; i < COUNT; i++) {
            (void)snprintf(name, sizeof name, "n%u", i);
            struct key_item key = {.key = slice_text(name)};
            struct op op = op_of("ns", name, &key, 1);
            hold_make(&all[i], &op);
            holds_add(&holds, &all[i]);
        }
        for (unsigned i = 0; i < COUNT; i++) {
            (void)snprintf(name, sizeof name, "n%u", i);
            assert_true(owns(&holds, "ns", name) && reads(&holds, "ns", name));
            holds_remove(&holds, &all[i]);
            hold_clear(&all[i]);
            assert_false(owns(&holds, "ns", name));
        }
    }
    free(all);
    holds_deinit(&holds);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_holds__owner_keys_and_pages_of_one_namespace),
        cmocka_unit_test(test_holds__without_keys_every_read_of_the_namespace_waits),
        cmocka_unit_test(test_holds__two_holds_of_one_name_end_with_the_second),
        cmocka_unit_test(test_holds__thousands_come_and_go),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
