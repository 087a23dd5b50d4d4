/* Who is believed to lead, and when a node calls itself ready. */
#include "node/leadership.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#define SELF 1u
#define S (1000u * NS_PER_MS)

static struct leadership_replica member(uint64_t term, uint64_t leader_id)
{
    return (struct leadership_replica){
        .node_id = SELF,
        .running = true,
        .has_table = true,
        .leader = leader_id == SELF,
        .serving = leader_id == SELF,
        .term = term,
        .leader_id = leader_id,
    };
}

static void hear(struct leadership *leadership, uint64_t peer, uint64_t term, uint64_t leader,
                 uint64_t now_ns)
{
    struct leadership_news news = {
        .peer_id = peer, .term = term, .leader_id = leader, .serving = true};
    leadership_heard(leadership, &news, now_ns);
}

static void test_leadership__a_member_believes_its_replica(void **state)
{
    (void)state;
    struct leadership leadership;
    leadership_init(&leadership);
    assert_int_equal(leadership_route(&leadership).kind, ROUTE_KIND_NONE);
    struct leadership_replica replica = member(3, 2);
    leadership_set_replica(&leadership, &replica);
    struct route route = leadership_route(&leadership);
    assert_int_equal(route.kind, ROUTE_KIND_PEER);
    assert_true(route.peer_id == 2 && route.term == 3 && route.has_table);
    replica = member(4, SELF);
    leadership_set_replica(&leadership, &replica);
    assert_int_equal(leadership_route(&leadership).kind, ROUTE_KIND_SELF);
    replica.serving = false;
    leadership_set_replica(&leadership, &replica);
    assert_int_equal(leadership_route(&leadership).kind, ROUTE_KIND_NONE);
    replica = member(5, 0);
    leadership_set_replica(&leadership, &replica);
    assert_int_equal(leadership_route(&leadership).kind, ROUTE_KIND_NONE);
}

static void test_leadership__the_higher_term_counts(void **state)
{
    (void)state;
    struct leadership leadership;
    leadership_init(&leadership);
    struct leadership_replica replica = member(3, 2);
    leadership_set_replica(&leadership, &replica);
    hear(&leadership, 3, 2, 3, S);
    assert_int_equal(leadership_route(&leadership).peer_id, 2);
    hear(&leadership, 3, 4, 3, S);
    assert_int_equal(leadership_route(&leadership).peer_id, 3);
    assert_int_equal(leadership_route(&leadership).term, 4);
    replica = member(5, SELF);
    leadership_set_replica(&leadership, &replica);
    assert_int_equal(leadership_route(&leadership).kind, ROUTE_KIND_SELF);
    hear(&leadership, 3, 4, 3, S); /* late */
    assert_int_equal(leadership_route(&leadership).kind, ROUTE_KIND_SELF);
    hear(&leadership, 3, 6, 3, S); /* it leads no more and does not know yet */
    assert_int_equal(leadership_route(&leadership).peer_id, 3);
}

static void test_leadership__a_member_that_lost_its_leader_knows_none(void **state)
{
    (void)state;
    struct leadership leadership;
    leadership_init(&leadership);
    struct leadership_replica replica = member(3, 2);
    leadership_set_replica(&leadership, &replica);
    hear(&leadership, 2, 3, 2, S);
    leadership_reached(&leadership, 3, S);
    replica = member(3, 0); /* its election time-out has passed, and pre-vote keeps the term */
    leadership_set_replica(&leadership, &replica);
    assert_int_equal(leadership_route(&leadership).kind, ROUTE_KIND_NONE);
    uint64_t checked_ns = 0;
    assert_false(leadership_ready(&leadership, S, &checked_ns));
}

static void test_leadership__hearsay_fills_a_gap_only(void **state)
{
    (void)state;
    struct leadership leadership;
    leadership_init(&leadership);
    struct leadership_replica spare = {.node_id = SELF, .running = true};
    leadership_set_replica(&leadership, &spare);
    hear(&leadership, 2, 5, 3, S); /* 2 says that 3 leads */
    assert_int_equal(leadership_route(&leadership).peer_id, 3);
    hear(&leadership, 4, 5, 4, S); /* 4 says that it does itself, in the same term */
    assert_int_equal(leadership_route(&leadership).peer_id, 4);
    hear(&leadership, 2, 5, 3, S);
    assert_int_equal(leadership_route(&leadership).peer_id, 4);
    hear(&leadership, 2, 6, 0, S); /* it knows nobody */
    assert_int_equal(leadership_route(&leadership).peer_id, 4);
    hear(&leadership, 2, 7, SELF, S); /* that would be us, and we do not lead */
    assert_int_equal(leadership_route(&leadership).kind, ROUTE_KIND_NONE);
}

static void test_leadership__a_spare_forgets_a_leader_whose_link_broke(void **state)
{
    (void)state;
    struct leadership leadership;
    leadership_init(&leadership);
    struct leadership_replica spare = {.node_id = SELF, .running = true};
    leadership_set_replica(&leadership, &spare);
    hear(&leadership, 2, 5, 2, S);
    assert_false(leadership_route(&leadership).has_table);
    leadership_peer_down(&leadership, 3);
    assert_int_equal(leadership_route(&leadership).kind, ROUTE_KIND_PEER);
    leadership_peer_down(&leadership, 2);
    assert_int_equal(leadership_route(&leadership).kind, ROUTE_KIND_NONE);
}

static void test_leadership__a_member_is_ready_once_it_reached_the_leaders_point(void **state)
{
    (void)state;
    struct leadership leadership;
    leadership_init(&leadership);
    uint64_t checked_ns = 0;
    struct leadership_replica replica = member(3, 2);
    leadership_set_replica(&leadership, &replica);
    assert_false(leadership_ready(&leadership, S, &checked_ns));
    assert_true(leadership_wants_probe(&leadership));
    leadership_reached(&leadership, 2, S); /* of an earlier leader */
    assert_false(leadership_ready(&leadership, S, &checked_ns));
    leadership_reached(&leadership, 3, 2 * S);
    assert_true(leadership_ready(&leadership, 9 * S, &checked_ns));
    assert_int_equal(checked_ns, 2 * S);
    assert_false(leadership_wants_probe(&leadership));
    replica = member(4, 0);
    leadership_set_replica(&leadership, &replica);
    assert_false(leadership_ready(&leadership, 9 * S, &checked_ns));
    assert_false(leadership_wants_probe(&leadership)); /* there is nobody to ask */
    replica = member(4, 2);
    leadership_set_replica(&leadership, &replica);
    assert_false(leadership_ready(&leadership, 9 * S, &checked_ns));
    assert_true(leadership_wants_probe(&leadership));
    replica = member(5, SELF);
    leadership_set_replica(&leadership, &replica);
    assert_true(leadership_ready(&leadership, 9 * S, &checked_ns));
    replica.running = false;
    leadership_set_replica(&leadership, &replica);
    assert_false(leadership_ready(&leadership, 9 * S, &checked_ns));
}

static void test_leadership__a_spare_is_ready_for_one_second_after_it_heard(void **state)
{
    (void)state;
    struct leadership leadership;
    leadership_init(&leadership);
    uint64_t checked_ns = 0;
    struct leadership_replica spare = {.node_id = SELF, .running = true};
    leadership_set_replica(&leadership, &spare);
    assert_int_equal(leadership_ready_until_ns(&leadership, S), UINT64_MAX);
    hear(&leadership, 2, 5, 2, 10 * S);
    assert_true(leadership_ready(&leadership, 11 * S, &checked_ns));
    assert_false(leadership_ready(&leadership, 11 * S + 1, &checked_ns));
    assert_int_equal(leadership_ready_until_ns(&leadership, 10 * S), 11 * S + 1);
    assert_int_equal(leadership_ready_until_ns(&leadership, 11 * S + 1), UINT64_MAX);
    leadership_reached(&leadership, 5, 12 * S); /* it answered a read */
    assert_true(leadership_ready(&leadership, 13 * S, &checked_ns));
    assert_false(leadership_wants_probe(&leadership));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_leadership__a_member_believes_its_replica),
        cmocka_unit_test(test_leadership__the_higher_term_counts),
        cmocka_unit_test(test_leadership__a_member_that_lost_its_leader_knows_none),
        cmocka_unit_test(test_leadership__hearsay_fills_a_gap_only),
        cmocka_unit_test(test_leadership__a_spare_forgets_a_leader_whose_link_broke),
        cmocka_unit_test(test_leadership__a_member_is_ready_once_it_reached_the_leaders_point),
        cmocka_unit_test(test_leadership__a_spare_is_ready_for_one_second_after_it_heard),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
