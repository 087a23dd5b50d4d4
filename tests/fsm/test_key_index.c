/* The index of keys: what is in is found and nothing else is, at every size on the way up and down;
 * growth and shrinking go in steps of a bucket or two; equal hashes do no harm. */
#include "fsm/key_index.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "fsm/base/list.h"
#include "fsm/base/rng.h"

#define ELEMENTS 10000u /* beyond two segments of buckets */

struct element {
    struct key_index_node node;
    uint64_t number; /* the key */
    bool in;
};

static const struct hash_key hash_key = {{1, 2}};

static struct slice key_of(const struct element *element)
{
    return slice_from(&element->number, sizeof element->number);
}

static struct element *find(const struct key_index *index, const struct element *wanted)
{
    struct key_index_node *node = key_index_first(index, key_index_hash(index, key_of(wanted)));
    while (node != NULL && CONTAINER_OF(node, struct element, node)->number != wanted->number) {
        node = key_index_next(node);
    }
    return node == NULL ? NULL : CONTAINER_OF(node, struct element, node);
}

static void put(struct key_index *index, struct element *element)
{
    key_index_insert(index, &element->node, key_index_hash(index, key_of(element)));
    element->in = true;
}

static void drop(struct key_index *index, struct element *element)
{
    key_index_remove(index, &element->node);
    element->in = false;
}

static struct element *make_elements(void)
{
    struct element *elements = calloc(ELEMENTS, sizeof *elements);
    assert_non_null(elements);
    for (unsigned i = 0; i < ELEMENTS; i++) {
        elements[i].number = i;
    }
    return elements;
}

static void check_all(const struct key_index *index, struct element *elements)
{
    assert_true(key_index_sound(index));
    for (unsigned i = 0; i < ELEMENTS; i++) {
        assert_ptr_equal(find(index, &elements[i]), elements[i].in ? &elements[i] : NULL);
    }
}

static void test_key_index__nothing_is_in_an_empty_one(void **state)
{
    (void)state;
    struct key_index index;
    key_index_init(&index, &hash_key);
    struct element element = {.number = 1};
    assert_null(find(&index, &element));
    assert_true(key_index_sound(&index));
    put(&index, &element);
    assert_ptr_equal(find(&index, &element), &element);
    drop(&index, &element);
    assert_null(find(&index, &element));
    assert_true(key_index_sound(&index));
    key_index_deinit(&index);
    assert_null(index.segments);
}

static void test_key_index__an_insertion_adds_one_bucket_at_most(void **state)
{
    (void)state;
    struct element *elements = make_elements();
    struct key_index index;
    key_index_init(&index, &hash_key);
    put(&index, &elements[0]);
    assert_int_equal(index.bucket_count, 8);
    for (unsigned i = 1; i < ELEMENTS; i++) {
        size_t before = index.bucket_count;
        put(&index, &elements[i]);
        assert_in_range(index.bucket_count, before, before + 1);
        assert_in_range(index.bucket_count, index.count, index.count + 8);
        if (i < 300 || i % 1024 < 2 || i % 97 == 0) {
            assert_true(key_index_sound(&index));
        }
    }
    check_all(&index, elements);
    key_index_deinit(&index);
    free(elements);
}

static void test_key_index__counts_the_memory_that_it_has(void **state)
{
    (void)state;
    struct element *elements = make_elements();
    struct key_index index;
    key_index_init(&index, &hash_key);
    assert_int_equal(key_index_memory(&index), 0);
    const struct {
        unsigned elements;
        unsigned segments; /* that there is room for */
        unsigned buckets;
    } steps[] = {{1, 4, 8}, {8, 4, 8}, {9, 4, 16}, {17, 4, 32}, {4096, 4, 4096}, {4097, 4, 8192}};
    unsigned at = 0;
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        while (at < steps[i].elements) {
            put(&index, &elements[at++]);
        }
        assert_int_equal(key_index_memory(&index), (steps[i].segments + steps[i].buckets) * 8);
    }
    while (at > 0) {
        drop(&index, &elements[--at]);
    }
    assert_int_equal(key_index_memory(&index), (4 + 8) * 8);
    key_index_deinit(&index);
    assert_int_equal(key_index_memory(&index), 0);
    free(elements);
}

static void test_key_index__a_removal_takes_two_buckets_away_at_most(void **state)
{
    (void)state;
    struct element *elements = make_elements();
    struct key_index index;
    key_index_init(&index, &hash_key);
    for (unsigned i = 0; i < ELEMENTS; i++) {
        put(&index, &elements[i]);
    }
    for (unsigned i = 0; i < ELEMENTS; i++) {
        size_t before = index.bucket_count;
        drop(&index, &elements[i]);
        assert_in_range(index.bucket_count, before - 2, before);
        assert_true(index.bucket_count <= 8 || index.bucket_count <= 2 * index.count);
        if (ELEMENTS - i < 300 || i % 1024 < 2 || i % 97 == 0) {
            assert_true(key_index_sound(&index));
        }
    }
    assert_int_equal(index.bucket_count, 8);
    check_all(&index, elements);
    key_index_deinit(&index);
    free(elements);
}

static void test_key_index__what_comes_and_goes_moves_nothing(void **state)
{
    (void)state;
    struct element *elements = make_elements();
    struct key_index index;
    key_index_init(&index, &hash_key);
    for (unsigned i = 0; i < 5000; i++) {
        put(&index, &elements[i]);
        size_t buckets = index.bucket_count;
        for (unsigned again = 0; again < 3; again++) {
            drop(&index, &elements[i]);
            assert_int_equal(index.bucket_count, buckets);
            put(&index, &elements[i]);
            assert_int_equal(index.bucket_count, buckets);
        }
    }
    key_index_deinit(&index);
    free(elements);
}

/* Up and down over powers of two and the edges of segments, removals in the midst of growth. */
static void test_key_index__random_changes_match_a_plain_array(void **state)
{
    (void)state;
    struct element *elements = make_elements();
    struct rng rng;
    rng_init(&rng, 5);
    struct key_index index;
    key_index_init(&index, &hash_key);
    for (unsigned phase = 0; phase < 12; phase++) {
        unsigned grow = phase % 2 == 0 ? 800 : 200;
        for (unsigned i = 0; i < 12000; i++) {
            struct element *element = &elements[rng_below(&rng, ELEMENTS)];
            assert_ptr_equal(find(&index, element), element->in ? element : NULL);
            bool want = rng_chance(&rng, grow);
            if (want && !element->in) {
                put(&index, element);
            } else if (!want && element->in) {
                drop(&index, element);
            }
        }
        check_all(&index, elements);
    }
    key_index_deinit(&index);
    free(elements);
}

/* Neither splitting nor joining can part them. */
static void test_key_index__equal_hashes_are_told_apart_by_the_caller(void **state)
{
    (void)state;
    struct element elements[100];
    struct key_index index;
    key_index_init(&index, &hash_key);
    for (unsigned i = 0; i < 100; i++) {
        elements[i] = (struct element){.number = i};
        key_index_insert(&index, &elements[i].node, i % 2 == 0 ? 7 : UINT64_MAX);
    }
    assert_true(key_index_sound(&index));
    for (unsigned i = 0; i < 100; i += 4) {
        key_index_remove(&index, &elements[i].node);
    }
    assert_true(key_index_sound(&index));
    unsigned seen = 0;
    for (struct key_index_node *node = key_index_first(&index, 7); node != NULL;
         node = key_index_next(node)) {
        assert_int_equal(CONTAINER_OF(node, struct element, node)->number % 4, 2);
        seen++;
    }
    assert_int_equal(seen, 25);
    assert_null(key_index_first(&index, 15));
    key_index_deinit(&index);
}

/* The longest chain of what is stored under one key stays short under another. */
static void test_key_index__keys_made_for_one_hash_key_are_scattered_by_another(void **state)
{
    (void)state;
    struct element *elements = make_elements();
    static const struct hash_key other = {{1, 3}};
    struct key_index index;
    key_index_init(&index, &other);
    unsigned chosen = 0;
    for (unsigned i = 0; chosen < 64; i++) {
        elements[chosen].number = i;
        chosen += (hash64_keyed(&hash_key, &elements[chosen].number, 8) & 127) == 0;
    }
    for (unsigned i = 0; i < chosen; i++) {
        put(&index, &elements[i]);
    }
    assert_int_equal(index.bucket_count, 64);
    unsigned longest = 0;
    for (size_t number = 0; number < index.bucket_count; number++) {
        unsigned len = 0;
        for (const struct key_index_node *node = index.segments[0][number].first; node != NULL;
             node = node->next) {
            len++;
        }
        longest = len > longest ? len : longest;
    }
    assert_in_range(longest, 1, 8);
    key_index_deinit(&index);
    free(elements);
}

static void test_key_index__a_misplaced_element_or_a_wrong_count_is_not_sound(void **state)
{
    (void)state;
    struct element elements[20];
    struct key_index index;
    key_index_init(&index, &hash_key);
    for (unsigned i = 0; i < 20; i++) {
        elements[i] = (struct element){.number = i};
        put(&index, &elements[i]);
    }
    elements[3].node.hash ^= 1; /* another bucket's */
    assert_false(key_index_sound(&index));
    elements[3].node.hash ^= 1;
    index.count++;
    assert_false(key_index_sound(&index));
    index.count--;
    assert_true(key_index_sound(&index));
    key_index_deinit(&index);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_key_index__nothing_is_in_an_empty_one),
        cmocka_unit_test(test_key_index__an_insertion_adds_one_bucket_at_most),
        cmocka_unit_test(test_key_index__counts_the_memory_that_it_has),
        cmocka_unit_test(test_key_index__a_removal_takes_two_buckets_away_at_most),
        cmocka_unit_test(test_key_index__what_comes_and_goes_moves_nothing),
        cmocka_unit_test(test_key_index__random_changes_match_a_plain_array),
        cmocka_unit_test(test_key_index__equal_hashes_are_told_apart_by_the_caller),
        cmocka_unit_test(test_key_index__keys_made_for_one_hash_key_are_scattered_by_another),
        cmocka_unit_test(test_key_index__a_misplaced_element_or_a_wrong_count_is_not_sound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
