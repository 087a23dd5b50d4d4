/* Whom to dial and when: order, corrections, seeds, room, and the back-off at both sides of its
 * bounds. */
#include "node/link_peers.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#include "fsm/base/units.h"

#define NOW 5000000000ull

static struct link_targets *targets;

static int setup(void **state)
{
    (void)state;
    targets = malloc(sizeof *targets);
    assert_non_null(targets);
    link_targets_init(targets);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    link_targets_deinit(targets);
    free(targets);
    return 0;
}

static struct address at(unsigned port)
{
    struct address address;
    char text[32];
    (void)snprintf(text, sizeof text, "127.0.0.1:%u", port);
    assert_int_equal(address_parse(slice_text(text), &address), STATUS_OK);
    return address;
}

static struct link_target *put(uint64_t id, unsigned port, uint64_t now_ns)
{
    struct address address = at(port);
    return link_targets_put(targets, id, &address, now_ns);
}

static void put_seed(unsigned port)
{
    struct address address = at(port);
    link_targets_put_seed(targets, &address, NOW);
}

static void test_link_peers__are_found_in_the_order_of_their_ids(void **state)
{
    (void)state;
    static const uint64_t ids[] = {5, 1, UINT64_MAX, 3, 2};
    for (unsigned i = 0; i < 5; i++) {
        assert_int_equal(put(ids[i], 10 + i, NOW)->id, ids[i]);
    }
    for (unsigned i = 0; i + 1 < targets->peer_count; i++) {
        assert_true(targets->peers[i]->id < targets->peers[i + 1]->id);
    }
    assert_string_equal(link_targets_find(targets, 3)->text, "127.0.0.1:13");
    assert_null(link_targets_find(targets, 4));
    assert_null(link_targets_find(targets, 0));
    link_targets_drop(targets, link_targets_find(targets, 3));
    assert_null(link_targets_find(targets, 3));
    assert_int_equal(targets->peer_count, 4);
}

static void test_link_peers__a_new_address_is_dialled_at_once_and_the_same_is_not(void **state)
{
    (void)state;
    struct rng rng;
    rng_init(&rng, 1);
    struct link_target *target = put(1, 10, NOW);
    link_target_failed(target, false, &rng, NOW);
    uint64_t due_ns = target->dial_at_ns;
    assert_true(due_ns > NOW);
    assert_ptr_equal(put(1, 10, NOW + 1), target);
    assert_int_equal(target->dial_at_ns, due_ns);
    assert_ptr_equal(put(1, 11, NOW + 1), target);
    assert_int_equal(target->dial_at_ns, NOW + 1);
    assert_int_equal(target->failures, 0);
    assert_string_equal(target->text, "127.0.0.1:11");
}

static void test_link_peers__seeds_are_kept_once_and_never_beside_their_peer(void **state)
{
    (void)state;
    put_seed(1);
    put_seed(1);
    assert_int_equal(targets->seed_count, 1);
    (void)put(7, 2, NOW);
    put_seed(2);
    assert_int_equal(targets->seed_count, 1);
    for (unsigned port = 3; port < 40; port++) {
        put_seed(port);
    }
    assert_int_equal(targets->seed_count, LINK_SEEDS_MAX);
    link_targets_drop(targets, targets->seeds[0]);
    assert_int_equal(targets->seed_count, LINK_SEEDS_MAX - 1);
    assert_string_equal(targets->seeds[0]->text, "127.0.0.1:3");
}

static void test_link_peers__have_a_bound(void **state)
{
    (void)state;
    for (unsigned i = 1; i <= LINK_TARGETS_MAX; i++) {
        assert_non_null(put(i, i, NOW));
    }
    assert_null(put(LINK_TARGETS_MAX + 1, 1, NOW));
    assert_non_null(put(5, 6, NOW)); /* who is known may still be corrected */
}

/* Bounds that docs and tests of fail-over rest on: within a second after a heal, dial included. */
static void test_link_peers__back_off_doubles_up_to_its_maximum(void **state)
{
    (void)state;
    struct rng rng;
    rng_init(&rng, 42);
    for (unsigned round = 0; round < 200; round++) {
        struct link_target *target = put(1, 1, NOW);
        target->failures = 0;
        uint64_t most_ms = LINK_RETRY_MS_FIRST;
        for (unsigned i = 0; i < 10; i++) {
            link_target_failed(target, false, &rng, NOW);
            uint64_t wait_ns = target->dial_at_ns - NOW;
            assert_true(wait_ns >= ms_to_ns(most_ms) / 2);
            assert_true(wait_ns <= ms_to_ns(most_ms));
            most_ms = min_u64(most_ms * 2, LINK_RETRY_MS_MAX);
        }
        link_target_failed(target, true, &rng, NOW);
        assert_true(target->dial_at_ns - NOW >= ms_to_ns(LINK_RETRY_MS_REFUSED) / 2);
        assert_true(target->dial_at_ns - NOW <= ms_to_ns(LINK_RETRY_MS_REFUSED));
    }
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_link_peers__are_found_in_the_order_of_their_ids),
        TEST(test_link_peers__a_new_address_is_dialled_at_once_and_the_same_is_not),
        TEST(test_link_peers__seeds_are_kept_once_and_never_beside_their_peer),
        TEST(test_link_peers__have_a_bound),
        TEST(test_link_peers__back_off_doubles_up_to_its_maximum),
    };
#undef TEST
    return cmocka_run_group_tests(tests, NULL, NULL);
}
