/* Votes: of a node that libraft believes to have none, and answers that come late; the cures
 * "votes" and "results" of the guard. */
#include "raft/guard.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>


#include "tests/raft/one_node.h"

/* Node 2 is no voter of the configuration {1: voter, 2: spare} that it knows, and follows node
 * 1. */
static struct one_node *follower(unsigned cures)
{
    struct one_node *node = one_node_create(2, cures);
    one_node_boot(node, 1, 1);
    const struct one_node_append heartbeat = {
        .from = 1, .term = 2, .prev_index = 1, .prev_term = 1, .commit = 1};
    assert_true(one_node_append(node, &heartbeat));
    assert_int_equal(node->raft.follower_state.current_leader.id, 1);
    return node;
}

/* Ask for a vote as `candidate`; true when it was granted. */
static bool granted(struct one_node *node, raft_id candidate, raft_term term, raft_term last_term,
                    bool pre_vote)
{
    struct raft_message message = {
        .type = RAFT_REQUEST_VOTE,
        .server_id = candidate,
        .server_address = "candidate",
        .request_vote =
            {
                .version = 2,
                .term = term,
                .candidate_id = candidate,
                .last_log_index = 1,
                .last_log_term = last_term,
                .pre_vote = pre_vote,
            },
    };
    unsigned since = node->sent_count;
    (void)one_node_receive(node, &message);
    struct raft_message answer;
    assert_int_equal(one_node_count_sent(node, since, RAFT_REQUEST_VOTE_RESULT, &answer), 1);
    return answer.request_vote_result.vote_granted;
}

static void test_guard_votes__the_former_leader_gets_the_vote_it_needs(void **state)
{
    (void)state;
    struct one_node *node = follower(GUARD_CURES_ALL);
    assert_true(granted(node, 1, 3, 1, true));
    assert_int_equal(fake_disk_term(node->disk), 2); /* a pre-vote writes nothing */
    assert_true(granted(node, 1, 3, 1, false));
    assert_int_equal(fake_disk_term(node->disk), 3);
    assert_int_equal(fake_disk_vote(node->disk), 1);
    /* It still knows itself as what it was. */
    assert_int_equal(raft_role(&node->raft), RAFT_SPARE);
    assert_int_equal(guard_stats(node->guard)->votes_opened, 2);
    one_node_destroy(node);
}

static void test_guard_votes__without_the_cure_there_is_no_leader_for_ever(void **state)
{
    (void)state;
    struct one_node *node = follower(GUARD_CURES_ALL & ~(unsigned)GUARD_CURE_VOTES);
    assert_false(granted(node, 1, 3, 1, false));
    one_node_run_ms(node, 60000);
    assert_false(granted(node, 1, 4, 1, false));
    one_node_destroy(node);
}

static void test_guard_votes__one_vote_a_term_and_only_for_a_log_as_good(void **state)
{
    (void)state;
    struct one_node *node = follower(GUARD_CURES_ALL);
    assert_true(granted(node, 1, 3, 1, false));
    assert_false(granted(node, 3, 3, 1, false));
    assert_false(granted(node, 3, 4, 0, false)); /* its log is older */
    one_node_destroy(node);
}

static void test_guard_votes__a_leader_that_is_followed_is_not_disturbed(void **state)
{
    (void)state;
    struct one_node *node = follower(GUARD_CURES_ALL);
    assert_false(granted(node, 3, 3, 1, false));
    assert_false(granted(node, 1, 2, 1, false)); /* a late copy of its campaign for this term */
    assert_int_equal(node->raft.follower_state.current_leader.id, 1);
    /* Its link breaks: forgotten, though this node does not stand for election itself. */
    uint64_t delay_ns = 0;
    assert_false(guard_leader_link_lost(node->guard, 1, &delay_ns));
    assert_true(granted(node, 3, 3, 1, false));
    one_node_destroy(node);
}

/* Node 2 follows nobody; an answer to a pre-vote of its own, for term 3, comes late. */
static raft_term term_after_late_answer(unsigned cures)
{
    struct one_node *node = one_node_create(2, cures);
    one_node_boot(node, 3, 0);
    struct raft_message message = {
        .type = RAFT_REQUEST_VOTE_RESULT,
        .server_id = 1,
        .server_address = "1",
        .request_vote_result =
            {.version = 2, .term = 3, .vote_granted = true, .pre_vote = true, .features = 1},
    };
    (void)one_node_receive(node, &message);
    raft_term term = raft_current_term(&node->raft);
    one_node_destroy(node);
    return term;
}

static void test_guard_votes__a_late_answer_to_a_pre_vote_raises_no_term(void **state)
{
    (void)state;
    assert_int_equal(term_after_late_answer(GUARD_CURES_ALL), 1);
    assert_int_equal(term_after_late_answer(GUARD_CURES_ALL & ~(unsigned)GUARD_CURE_RESULTS), 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_guard_votes__the_former_leader_gets_the_vote_it_needs),
        cmocka_unit_test(test_guard_votes__without_the_cure_there_is_no_leader_for_ever),
        cmocka_unit_test(test_guard_votes__one_vote_a_term_and_only_for_a_log_as_good),
        cmocka_unit_test(test_guard_votes__a_leader_that_is_followed_is_not_disturbed),
        cmocka_unit_test(test_guard_votes__a_late_answer_to_a_pre_vote_raises_no_term),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
