/* Numbers of an origin: both bounds, and the mark when confirmations come out of order. */
#include "node/window.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <cmocka.h>

#include "fsm/base/rng.h"

static struct window *window_new(void)
{
    struct window *window = malloc(sizeof *window);
    assert_non_null(window);
    window_init(window);
    return window;
}

static void test_window__1024_numbers_fit_and_not_one_more(void **state)
{
    (void)state;
    struct window *window = window_new();
    for (uint64_t i = 1; i <= UNCONFIRMED_MAX; i++) {
        assert_true(window_fits(window, 1, 1));
        assert_int_equal(window_take(window, 1), i);
    }
    assert_false(window_fits(window, 1, 1));
    assert_false(window_fits(window, 1, 0));
    window_confirm(window, 2); /* the mark cannot pass 1 */
    assert_false(window_fits(window, 1, 1));
    window_confirm(window, 1);
    assert_int_equal(window->mark, 2);
    assert_true(window_fits(window, 2, 1));
    assert_false(window_fits(window, 3, 1));
    free(window);
}

static void test_window__4_mib_fit_and_not_a_byte_more(void **state)
{
    (void)state;
    struct window *window = window_new();
    assert_true(window_fits(window, 1, UNCONFIRMED_LEN_MAX));
    assert_false(window_fits(window, 1, UNCONFIRMED_LEN_MAX + 1));
    (void)window_take(window, UNCONFIRMED_LEN_MAX - 10);
    assert_true(window_fits(window, 1, 10));
    assert_false(window_fits(window, 1, 11));
    assert_false(window_fits(window, 1, UINT64_MAX));
    window_confirm(window, 1);
    assert_int_equal(window->len, 0);
    assert_true(window_fits(window, UNCONFIRMED_MAX, UNCONFIRMED_LEN_MAX));
    assert_false(window_fits(window, UNCONFIRMED_MAX + 1, 0));
    free(window);
}

/* Against a model that keeps every number. */
static void test_window__the_mark_is_the_end_of_the_confirmed_prefix(void **state)
{
    (void)state;
    enum { NUMBERS = 20000 };
    struct window *window = window_new();
    bool *confirmed = calloc(NUMBERS + 1, sizeof *confirmed);
    assert_non_null(confirmed);
    struct rng rng;
    rng_init(&rng, 3);
    uint64_t mark = 0;
    while (mark < NUMBERS) {
        if (window->last < NUMBERS && window_fits(window, 1, 100) && rng_chance(&rng, 600)) {
            (void)window_take(window, 100);
        }
        uint64_t span = window->last - mark;
        uint64_t number = span == 0 ? 0 : mark + 1 + rng_below(&rng, span);
        if (number != 0 && !confirmed[number]) {
            confirmed[number] = true;
            window_confirm(window, number);
            while (mark < window->last && confirmed[mark + 1]) {
                mark++;
            }
        }
        assert_int_equal(window->mark, mark);
        assert_int_equal(window->len, (window->last - mark) * 100);
    }
    free(confirmed);
    free(window);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_window__1024_numbers_fit_and_not_one_more),
        cmocka_unit_test(test_window__4_mib_fit_and_not_a_byte_more),
        cmocka_unit_test(test_window__the_mark_is_the_end_of_the_confirmed_prefix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
