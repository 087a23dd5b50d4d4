/* What is added comes back in order, as a copy, until it is cleared. */
#include "fsm/changes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

static void test_changes__starts_empty_and_clears(void **state)
{
    (void)state;
    struct changes *changes = changes_create();
    assert_int_equal(changes_count(changes), 0);
    struct change change = {.kind = CHANGE_KIND_GRANTED, .ns = slice_text("n"),
                            .key = slice_text("k"), .owner = slice_text("o")};
    changes_add(changes, &change);
    assert_int_equal(changes_count(changes), 1);
    changes_clear(changes);
    assert_int_equal(changes_count(changes), 0);
    changes_destroy(changes);
}

static void test_changes__keeps_order_and_every_field(void **state)
{
    (void)state;
    struct changes *changes = changes_create();
    struct change granted = {.kind = CHANGE_KIND_GRANTED, .position = {.index = 9, .place = 1},
                             .ns = slice_text("n"), .key = slice_text("k1"),
                             .owner = slice_text("a"), .state = LEASE_STATE_OWN, .token = 5};
    struct change moved = {.kind = CHANGE_KIND_TRANSFERRED,
                           .position = {.index = 9, .place = POSITION_PLACE_END},
                           .ns = slice_text("m"), .key = slice_text("k2"),
                           .owner = slice_text("b"), .previous_owner = slice_text("a"),
                           .state = LEASE_STATE_DEL, .token = 6};
    changes_add(changes, &granted);
    changes_add(changes, &moved);
    struct change first = changes_get(changes, 0);
    assert_int_equal(first.kind, CHANGE_KIND_GRANTED);
    assert_int_equal(first.position.place, 1);
    assert_null(first.previous_owner.base);
    struct change second = changes_get(changes, 1);
    assert_int_equal(second.kind, CHANGE_KIND_TRANSFERRED);
    assert_int_equal(second.position.index, 9);
    assert_int_equal(second.position.place, POSITION_PLACE_END);
    assert_true(slice_equal(second.ns, slice_text("m")));
    assert_true(slice_equal(second.key, slice_text("k2")));
    assert_true(slice_equal(second.owner, slice_text("b")));
    assert_true(slice_equal(second.previous_owner, slice_text("a")));
    assert_int_equal(second.state, LEASE_STATE_DEL);
    assert_int_equal(second.token, 6);
    changes_destroy(changes);
}

static void test_changes__copies_what_it_is_given(void **state)
{
    (void)state;
    struct changes *changes = changes_create();
    char key[] = "before";
    for (uint64_t i = 0; i < 1000; i++) { /* enough to move the memory several times */
        key[0] = (char)('a' + i % 26);
        struct change change = {.kind = CHANGE_KIND_EXPIRED, .ns = slice_text("n"),
                                .key = slice_text(key), .owner = slice_text("o"), .token = i};
        changes_add(changes, &change);
    }
    memset(key, 'X', sizeof key - 1);
    for (uint32_t i = 0; i < 1000; i++) {
        struct change change = changes_get(changes, i);
        assert_int_equal(change.token, i);
        assert_int_equal(change.key.len, 6);
        assert_int_equal(change.key.base[0], 'a' + (int)(i % 26));
        assert_int_equal(change.key.base[1], 'e');
    }
    changes_destroy(changes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_changes__starts_empty_and_clears),
        cmocka_unit_test(test_changes__keeps_order_and_every_field),
        cmocka_unit_test(test_changes__copies_what_it_is_given),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
