/* The ordered tree: random insertions and removals against a sorted array, both sides of a search,
 * and keys that differ where prefixes do not. */
#include "fsm/base/tree.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "fsm/base/list.h"
#include "fsm/base/rng.h"

#define ELEMENTS 600u

struct element {
    struct tree_node node;
    uint8_t key[12];
    size_t len;
    bool in;
};

static struct slice key_of(const struct element *element)
{
    return slice_from(element->key, element->len);
}

static int compare_elements(const void *a, const void *b)
{
    return slice_compare(key_of(a), key_of(b));
}

/* Distinct keys over two letters and zero, many with the same first eight bytes. */
static void make_elements(struct element *elements, struct rng *rng)
{
    for (unsigned i = 0; i < ELEMENTS;) {
        struct element *element = &elements[i];
        *element = (struct element){.len = 1 + rng_below(rng, sizeof element->key)};
        for (size_t at = 0; at < element->len; at++) {
            bool shared = at < 6 && rng_chance(rng, 700);
            element->key[at] = (uint8_t) "ab\0"[shared ? 0 : rng_below(rng, 3)];
        }
        bool fresh = true;
        for (unsigned other = 0; other < i && fresh; other++) {
            fresh = !slice_equal(key_of(element), key_of(&elements[other]));
        }
        i += fresh;
    }
    qsort(elements, ELEMENTS, sizeof elements[0], compare_elements);
}

static const struct element *expected_from(const struct element *elements, struct slice key,
                                           bool after)
{
    for (unsigned i = 0; i < ELEMENTS; i++) {
        int order = slice_compare(key_of(&elements[i]), key);
        if (elements[i].in && (after ? order > 0 : order >= 0)) {
            return &elements[i];
        }
    }
    return NULL;
}

static void check_order(const struct tree *tree, const struct element *elements)
{
    const struct tree_node *node = tree_first(tree);
    for (unsigned i = 0; i < ELEMENTS; i++) {
        if (elements[i].in) {
            assert_ptr_equal(node, &elements[i].node);
            node = tree_next(node);
        }
    }
    assert_null(node);
}

static void test_tree__stays_ordered_and_balanced_under_random_changes(void **state)
{
    (void)state;
    static struct element elements[ELEMENTS];
    for (uint64_t seed = 1; seed <= 6; seed++) {
        struct rng rng;
        rng_init(&rng, seed);
        make_elements(elements, &rng);
        struct tree tree;
        tree_init(&tree);
        size_t count = 0;
        for (unsigned step = 0; step < 6000; step++) {
            struct element *element = &elements[rng_below(&rng, ELEMENTS)];
            bool grow = step < 2000 ? rng_chance(&rng, 700) : rng_chance(&rng, 450);
            if (!element->in && grow) {
                tree_insert(&tree, &element->node, key_of(element));
                count++;
            } else if (element->in && !grow) {
                tree_remove(&tree, &element->node);
                count--;
            } else {
                continue;
            }
            element->in = !element->in;
            assert_int_equal(tree.count, count);
            const struct element *any = &elements[rng_below(&rng, ELEMENTS)];
            assert_ptr_equal(tree_find(&tree, key_of(any)), any->in ? &any->node : NULL);
            const struct element *from = expected_from(elements, key_of(any), false);
            const struct element *after = expected_from(elements, key_of(any), true);
            assert_ptr_equal(tree_find_from(&tree, key_of(any)), from ? &from->node : NULL);
            assert_ptr_equal(tree_find_after(&tree, key_of(any)), after ? &after->node : NULL);
            if (step % 50 == 0) {
                assert_true(tree_sound(&tree));
                check_order(&tree, elements);
            }
        }
    }
}

static void test_tree__ascending_insertions_stay_flat(void **state)
{
    (void)state;
    enum { COUNT = 4096 };
    struct element *elements = calloc(COUNT, sizeof *elements);
    struct tree tree;
    tree_init(&tree);
    for (unsigned i = 0; i < COUNT; i++) {
        elements[i].key[0] = (uint8_t)(i >> 8);
        elements[i].key[1] = (uint8_t)i;
        tree_insert(&tree, &elements[i].node, slice_from(elements[i].key, 2));
    }
    assert_true(tree_sound(&tree));
    assert_true(tree.root->height <= 13);
    for (unsigned i = 0; i < COUNT; i++) {
        tree_remove(&tree, &elements[i].node);
    }
    assert_null(tree.root);
    free(elements);
}

static void test_tree__an_empty_tree_has_nothing(void **state)
{
    (void)state;
    struct tree tree;
    tree_init(&tree);
    assert_null(tree_first(&tree));
    assert_null(tree_find(&tree, slice_text("a")));
    assert_null(tree_find_from(&tree, slice_from(NULL, 0)));
    assert_null(tree_find_after(&tree, slice_text("a")));
    assert_true(tree_sound(&tree));
}

static void test_tree__the_empty_prefix_is_before_everything(void **state)
{
    (void)state;
    struct tree tree;
    struct tree_node node;
    tree_init(&tree);
    tree_insert(&tree, &node, slice_from("\0", 1));
    assert_ptr_equal(tree_find_from(&tree, slice_from(NULL, 0)), &node);
    assert_null(tree_find(&tree, slice_from("\0\0", 2)));
    assert_null(tree_find_from(&tree, slice_from("\0\0", 2)));
}

static void test_tree__disorder_is_noticed(void **state)
{
    (void)state;
    struct tree tree;
    struct tree_node nodes[3];
    uint8_t keys[3] = {'a', 'b', 'c'};
    tree_init(&tree);
    for (size_t i = 0; i < 3; i++) {
        tree_insert(&tree, &nodes[i], slice_from(&keys[i], 1));
    }
    assert_true(tree_sound(&tree));
    keys[0] = 'x';
    assert_false(tree_sound(&tree));
    keys[0] = 'a';
    tree.count = 2;
    assert_false(tree_sound(&tree));
    tree.count = 3;
    nodes[1].height = 3;
    assert_false(tree_sound(&tree));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tree__stays_ordered_and_balanced_under_random_changes),
        cmocka_unit_test(test_tree__ascending_insertions_stay_flat),
        cmocka_unit_test(test_tree__an_empty_tree_has_nothing),
        cmocka_unit_test(test_tree__the_empty_prefix_is_before_everything),
        cmocka_unit_test(test_tree__disorder_is_noticed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
