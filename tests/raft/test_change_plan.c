/* One safe membership change at a time: what is done, and above all what is not. */
#include "raft/change_plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define T0 1000000000000ull

#define VOTER REPLICA_MEMBER_ROLE_VOTER
#define STANDBY REPLICA_MEMBER_ROLE_STANDBY
#define SPARE REPLICA_MEMBER_ROLE_SPARE

/* The leader is member 1; its log ends at 1000, the last change is entry 900. */
static struct change_view view_of(const struct replica_member *members, unsigned count)
{
    return (struct change_view){
        .self_id = 1,
        .members = members,
        .count = count,
        .voters_wanted = 3,
        .last_index = 1000,
        .change_index = 900,
        .serving = true,
        .now_ns = T0,
    };
}

static void expect(const struct change_view *view, uint64_t id, enum replica_member_role role)
{
    struct change_plan plan;
    change_plan_init(&plan);
    struct change_step step = change_plan_next(&plan, view);
    assert_int_equal(step.id, id);
    if (id != 0) {
        assert_int_equal(step.role, role);
    }
}

static void test_change_plan__spares_become_standbys_first(void **state)
{
    (void)state;
    const struct replica_member members[] = {
        {1, VOTER, 1000, true}, {7, SPARE, 0, true}, {5, SPARE, 0, true}};
    struct change_view view = view_of(members, 3);
    expect(&view, 5, STANDBY);
    view.count = 2;
    expect(&view, 7, STANDBY);
    view.count = 1;
    expect(&view, 0, SPARE);
}

static void test_change_plan__a_spare_that_is_away_is_left_alone(void **state)
{
    (void)state;
    const struct replica_member members[] = {{1, VOTER, 1000, true}, {7, SPARE, 0, false}};
    const struct change_view view = view_of(members, 2);
    expect(&view, 0, SPARE);
}

static void test_change_plan__one_candidate_is_not_enough(void **state)
{
    (void)state;
    const struct replica_member members[] = {{1, VOTER, 1000, true}, {2, STANDBY, 1000, true}};
    const struct change_view view = view_of(members, 2);
    expect(&view, 0, SPARE);
}

static void test_change_plan__both_candidates_must_have_caught_up(void **state)
{
    (void)state;
    struct replica_member members[] = {
        {1, VOTER, 1000, true}, {2, STANDBY, 1000, true},
        {3, STANDBY, 1000 - CHANGE_PLAN_LAG_MAX - 1, true}};
    const struct change_view view = view_of(members, 3);
    expect(&view, 0, SPARE);
    members[2].match_index++;
    expect(&view, 2, VOTER);
    members[2].link_up = false;
    expect(&view, 0, SPARE);
    members[2].link_up = true;
    members[1].match_index = 899; /* does not know that it is a standby */
    expect(&view, 0, SPARE);
}

static void test_change_plan__only_on_quiet_ground(void **state)
{
    (void)state;
    const struct replica_member members[] = {
        {1, VOTER, 1000, true}, {2, STANDBY, 1000, true}, {3, STANDBY, 1000, true}};
    struct change_view view = view_of(members, 3);
    expect(&view, 2, VOTER);
    view.running = true;
    expect(&view, 0, SPARE);
    assert_false(change_plan_may_admit(&view));
    view.running = false;
    view.serving = false;
    expect(&view, 0, SPARE);
    assert_false(change_plan_may_admit(&view));
    view.serving = true;
    assert_true(change_plan_may_admit(&view));
}

static void test_change_plan__every_voter_must_know_the_last_change(void **state)
{
    (void)state;
    struct replica_member members[] = {
        {1, VOTER, 1000, true},   {2, VOTER, 1000, true},   {3, VOTER, 899, true},
        {4, STANDBY, 1000, true}, {5, STANDBY, 1000, true},
    };
    struct change_view view = view_of(members, 5);
    view.voters_wanted = 5;
    expect(&view, 0, SPARE);
    members[2].match_index = 900;
    expect(&view, 4, VOTER);
}

static void test_change_plan__the_second_of_a_pair_follows_at_once(void **state)
{
    (void)state;
    const struct replica_member members[] = {
        {1, VOTER, 1000, true}, {2, VOTER, 900, true}, {3, STANDBY, 1000, true}};
    struct change_view view = view_of(members, 3);
    expect(&view, 3, VOTER);
}

static void test_change_plan__a_pair_is_undone_when_a_link_breaks(void **state)
{
    (void)state;
    struct replica_member members[] = {
        {1, VOTER, 1000, true}, {2, VOTER, 900, true}, {3, STANDBY, 1000, true}};
    struct change_view view = view_of(members, 3);
    members[1].link_up = false; /* either one's death would stop the cluster now */
    expect(&view, 2, STANDBY);
    members[1].link_up = true;
    members[2].link_up = false; /* nobody left to promote */
    expect(&view, 2, STANDBY);
}

static void test_change_plan__a_pair_is_undone_when_it_takes_too_long(void **state)
{
    (void)state;
    const struct replica_member members[] = {
        {1, VOTER, 1000, true}, {2, VOTER, 900, true}, {3, STANDBY, 100, true}};
    struct change_view view = view_of(members, 3);
    struct change_plan plan;
    change_plan_init(&plan);
    assert_int_equal(change_plan_timer_ns(&plan), UINT64_MAX);
    assert_int_equal(change_plan_next(&plan, &view).id, 0);
    assert_int_equal(change_plan_timer_ns(&plan), T0 + CHANGE_PLAN_PAIR_NS_MAX);
    view.now_ns = T0 + CHANGE_PLAN_PAIR_NS_MAX - 1;
    assert_int_equal(change_plan_next(&plan, &view).id, 0);
    view.now_ns++;
    struct change_step step = change_plan_next(&plan, &view);
    assert_int_equal(step.id, 2);
    assert_int_equal(step.role, STANDBY);

    /* And not tried again at once. */
    const struct replica_member after[] = {
        {1, VOTER, 1000, true}, {2, STANDBY, 1000, true}, {3, STANDBY, 1000, true}};
    view.members = after;
    view.now_ns += CHANGE_PLAN_PAUSE_NS - 1;
    assert_int_equal(change_plan_next(&plan, &view).id, 0);
    assert_int_equal(change_plan_timer_ns(&plan), UINT64_MAX);
    view.now_ns++;
    assert_int_equal(change_plan_next(&plan, &view).id, 2);
}

static void test_change_plan__never_more_voters_than_wanted(void **state)
{
    (void)state;
    const struct replica_member members[] = {
        {1, VOTER, 1000, true},   {2, VOTER, 1000, true},   {3, VOTER, 1000, true},
        {4, STANDBY, 1000, true}, {5, STANDBY, 1000, true}, {6, SPARE, 0, true},
    };
    struct change_view view = view_of(members, 6);
    expect(&view, 0, SPARE);
    view.voters_wanted = 5;
    expect(&view, 4, VOTER);
    view.voters_wanted = 1;
    view.count = 1;
    expect(&view, 0, SPARE);
}

static void test_change_plan__a_dead_voter_of_three_is_not_replaced_yet(void **state)
{
    (void)state;
    const struct replica_member members[] = {
        {1, VOTER, 1000, true},
        {2, VOTER, 1000, true},
        {3, VOTER, 950, false},
        {4, SPARE, 0, true},
    };
    struct change_view view = view_of(members, 4);
    expect(&view, 0, SPARE);
    assert_true(change_plan_may_admit(&view));
}

static void test_change_plan__demotes_only_when_the_rest_can_go_on(void **state)
{
    (void)state;
    /* Four voters on the way to five, and no fifth. */
    struct replica_member members[] = {
        {1, VOTER, 1000, true},
        {2, VOTER, 1000, true},
        {3, VOTER, 1000, true},
        {4, VOTER, 950, false},
    };
    struct change_view view = view_of(members, 4);
    view.voters_wanted = 5;
    expect(&view, 4, STANDBY);
    members[1].link_up = false;
    members[2].link_up = false; /* one of three would be there */
    expect(&view, 0, SPARE);
    members[2].link_up = true;
    members[1].match_index = 899; /* would remain, and does not know of the last change */
    members[1].link_up = true;
    expect(&view, 0, SPARE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_change_plan__spares_become_standbys_first),
        cmocka_unit_test(test_change_plan__a_spare_that_is_away_is_left_alone),
        cmocka_unit_test(test_change_plan__one_candidate_is_not_enough),
        cmocka_unit_test(test_change_plan__both_candidates_must_have_caught_up),
        cmocka_unit_test(test_change_plan__only_on_quiet_ground),
        cmocka_unit_test(test_change_plan__every_voter_must_know_the_last_change),
        cmocka_unit_test(test_change_plan__the_second_of_a_pair_follows_at_once),
        cmocka_unit_test(test_change_plan__a_pair_is_undone_when_a_link_breaks),
        cmocka_unit_test(test_change_plan__a_pair_is_undone_when_it_takes_too_long),
        cmocka_unit_test(test_change_plan__never_more_voters_than_wanted),
        cmocka_unit_test(test_change_plan__a_dead_voter_of_three_is_not_replaced_yet),
        cmocka_unit_test(test_change_plan__demotes_only_when_the_rest_can_go_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
