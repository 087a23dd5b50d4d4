/* The queue of what is due: order with ties, moves, removals, rebuilding, and visiting what is
 * due. */
#include "fsm/expiry.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "fsm/base/list.h"
#include "fsm/base/rng.h"

#define ELEMENTS 300u

struct element {
    struct expiry_node node;
    uint64_t at_ms;
    unsigned number; /* decides ties */
};

static bool before(const struct expiry_node *a, const struct expiry_node *b)
{
    return CONTAINER_OF_CONST(a, struct element, node)->number <
           CONTAINER_OF_CONST(b, struct element, node)->number;
}

static bool first_of(const struct element *a, const struct element *b)
{
    return a->at_ms != b->at_ms ? a->at_ms < b->at_ms : a->number < b->number;
}

static void make_elements(struct element *elements)
{
    for (unsigned i = 0; i < ELEMENTS; i++) {
        elements[i] = (struct element){.number = i};
        expiry_node_init(&elements[i].node);
    }
}

static void check_first(const struct expiry *expiry, const struct element *elements)
{
    const struct element *first = NULL;
    for (unsigned i = 0; i < ELEMENTS; i++) {
        if (expiry_contains(&elements[i].node) &&
            (first == NULL || first_of(&elements[i], first))) {
            first = &elements[i];
        }
    }
    assert_ptr_equal(expiry_first(expiry), first == NULL ? NULL : &first->node);
    assert_true(expiry_first_ms(expiry) == (first == NULL ? EXPIRY_NEVER : first->at_ms));
}

static bool on_due(void *ctx, struct expiry_node *node)
{
    unsigned *count = ctx;
    assert_true(CONTAINER_OF(node, struct element, node)->at_ms < 50);
    (*count)++;
    return true;
}

static bool on_due_stop(void *ctx, struct expiry_node *node)
{
    (void)node;
    unsigned *count = ctx;
    return ++*count < 2;
}

static unsigned count_due(const struct element *elements)
{
    unsigned count = 0;
    for (unsigned i = 0; i < ELEMENTS; i++) {
        count += expiry_contains(&elements[i].node) && elements[i].at_ms < 50;
    }
    return count;
}

static void test_expiry__first_is_first_under_random_changes(void **state)
{
    (void)state;
    static struct element elements[ELEMENTS];
    for (uint64_t seed = 1; seed <= 4; seed++) {
        struct rng rng;
        struct expiry expiry;
        rng_init(&rng, seed);
        expiry_init(&expiry, before);
        make_elements(elements);
        for (unsigned step = 0; step < 4000; step++) {
            struct element *element = &elements[rng_below(&rng, ELEMENTS)];
            uint64_t at_ms = rng_below(&rng, 100); /* few values: many ties */
            if (!expiry_contains(&element->node)) {
                element->at_ms = at_ms;
                expiry_insert(&expiry, &element->node, at_ms);
            } else if (rng_chance(&rng, 300)) {
                expiry_remove(&expiry, &element->node);
            } else {
                element->at_ms = at_ms;
                expiry_move(&expiry, &element->node, at_ms);
            }
            check_first(&expiry, elements);
            unsigned due = 0;
            expiry_visit_due(&expiry, 50, on_due, &due);
            assert_int_equal(due, count_due(elements));
        }
        assert_true(expiry_sound(&expiry));
        expiry_deinit(&expiry);
    }
}

static void test_expiry__many_moves_at_once(void **state)
{
    (void)state;
    static struct element elements[ELEMENTS];
    struct rng rng;
    struct expiry expiry;
    rng_init(&rng, 9);
    expiry_init(&expiry, before);
    make_elements(elements);
    expiry_reorder(&expiry);
    for (unsigned i = 0; i < ELEMENTS; i++) {
        expiry_insert(&expiry, &elements[i].node, i);
    }
    for (unsigned i = 0; i < ELEMENTS; i++) {
        elements[i].at_ms = rng_below(&rng, 1000);
        expiry_set(&expiry, &elements[i].node, elements[i].at_ms);
    }
    assert_false(expiry_sound(&expiry));
    expiry_reorder(&expiry);
    assert_true(expiry_sound(&expiry));
    const struct element *last = NULL;
    struct expiry_node *node;
    while ((node = expiry_first(&expiry)) != NULL) {
        const struct element *element = CONTAINER_OF(node, struct element, node);
        assert_true(last == NULL || first_of(last, element));
        last = element;
        expiry_remove(&expiry, node);
    }
    assert_false(expiry_contains(&elements[0].node));
    expiry_deinit(&expiry);
}

static void test_expiry__visiting_stops_when_told_and_at_the_edge(void **state)
{
    (void)state;
    static struct element elements[ELEMENTS];
    struct expiry expiry;
    expiry_init(&expiry, before);
    make_elements(elements);
    unsigned count = 0;
    expiry_visit_due(&expiry, EXPIRY_NEVER, on_due_stop, &count);
    assert_int_equal(count, 0);
    for (unsigned i = 0; i < 10; i++) {
        expiry_insert(&expiry, &elements[i].node, 49);
    }
    expiry_visit_due(&expiry, 49, on_due_stop, &count);
    assert_int_equal(count, 0); /* due is what is less */
    expiry_visit_due(&expiry, 50, on_due_stop, &count);
    assert_int_equal(count, 2);
    expiry_deinit(&expiry);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_expiry__first_is_first_under_random_changes),
        cmocka_unit_test(test_expiry__many_moves_at_once),
        cmocka_unit_test(test_expiry__visiting_stops_when_told_and_at_the_edge),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
