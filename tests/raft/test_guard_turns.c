/* What the guard does at the end of a turn, for membership (libraft defect L8), when a leader is
 * lost, and when the node closes. */
#include "raft/guard.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <string.h>

#include "fsm/base/units.h"
#include "tests/raft/one_node.h"

#define COUNT_OF(array) ((unsigned)(sizeof(array) / sizeof((array)[0])))

static struct one_node *node_new(raft_id id, unsigned cures, unsigned voters, unsigned spares)
{
    struct one_node *node = one_node_create(id, cures);
    one_node_boot(node, voters, spares);
    return node;
}

/* --- L8 ------------------------------------------------------------------------------------ */

struct change {
    struct raft_change request;
    unsigned called;
    int status;
};

static void on_change(struct raft_change *request, int status)
{
    struct change *change = request->data;
    change->called++;
    change->status = status;
}

struct refusal {
    unsigned cures;
    unsigned calls; /* of the request, wanted */
};

/* A change that was refused for want of space: is its request called back when the node closes? In
 * a child, for libraft leaks the configuration of a change that it refuses. */
static void close_after_refusal(void *arg)
{
    const struct refusal *refusal = arg;
    struct one_node *node = node_new(1, refusal->cures, 1, 1);
    one_node_run_ms(node, 100);
    CHECK(raft_state(&node->raft) == RAFT_LEADER);
    fake_disk_set_capacity(node->disk, 100);
    one_node_run_ms(node, 100);
    struct change change = {.request = {.data = &change}};
    CHECK(guard_assign(node->guard, &change.request, 2, RAFT_STANDBY, on_change) == RAFT_NOSPACE);
    one_node_close(node);
    CHECK(change.called == refusal->calls);
    one_node_destroy(node);
}

static void test_guard__refused_change_is_forgotten_L8(void **state)
{
    (void)state;
    struct refusal with = {.cures = GUARD_CURES_ALL, .calls = 0};
    struct refusal without = {.cures = GUARD_CURES_ALL & ~GUARD_CURE_L8, .calls = 1};
    assert_true(one_node_survives(close_after_refusal, &with));
    assert_true(one_node_survives(close_after_refusal, &without));
}

static void test_guard__refused_change_leaves_another_alone_L8(void **state)
{
    (void)state;
    struct one_node *node = node_new(1, GUARD_CURES_ALL, 1, 2);
    one_node_run_ms(node, 100);
    struct change first = {.request = {.data = &first}};
    assert_int_equal(guard_assign(node->guard, &first.request, 2, RAFT_STANDBY, on_change), 0);
    struct change second = {.request = {.data = &second}};
    assert_int_equal(guard_assign(node->guard, &second.request, 3, RAFT_STANDBY, on_change),
                     RAFT_CANTCHANGE);
    one_node_run_ms(node, 20);
    assert_int_equal(first.called, 1);
    assert_int_equal(first.status, 0);
    assert_int_equal(second.called, 0);
    one_node_destroy(node);
}

static void test_guard__change_of_one_who_does_not_lead_is_refused(void **state)
{
    (void)state;
    struct one_node *node = node_new(2, GUARD_CURES_ALL, 3, 1);
    struct change change = {.request = {.data = &change}};
    assert_int_equal(guard_assign(node->guard, &change.request, 4, RAFT_STANDBY, on_change),
                     RAFT_NOTLEADER);
    guard_fail(node->guard, STATUS_IO, NULL);
    assert_int_equal(guard_assign(node->guard, &change.request, 4, RAFT_STANDBY, on_change),
                     RAFT_NOTLEADER);
    one_node_destroy(node);
    assert_int_equal(change.called, 0);
}

/* --- sending ------------------------------------------------------------------------------- */

struct sending {
    struct raft_io_send request;
    unsigned called;
    int status;
};

static void on_sent(struct raft_io_send *request, int status)
{
    struct sending *sending = request->data;
    sending->called++;
    sending->status = status;
}

static void send_timeout_now(struct one_node *node, struct sending *sending)
{
    *sending = (struct sending){.request = {.data = sending}};
    const struct raft_message message = {.type = RAFT_TIMEOUT_NOW, .server_id = 2};
    struct raft_io *io = guard_io(node->guard);
    assert_int_equal(io->send(io, &sending->request, &message, on_sent), 0);
    assert_int_equal(sending->called, 0);
}

static void test_guard__send_completes_once_at_the_end_of_the_turn(void **state)
{
    (void)state;
    struct one_node *node = node_new(1, GUARD_CURES_ALL, 3, 0);
    unsigned since = node->sent_count;
    struct sending sendings[200]; /* more than the list's first room */
    for (unsigned idx = 0; idx < COUNT_OF(sendings); idx++) {
        send_timeout_now(node, &sendings[idx]);
    }
    assert_int_equal(one_node_count_sent(node, since, RAFT_TIMEOUT_NOW, NULL), COUNT_OF(sendings));
    guard_end_turn(node->guard);
    guard_end_turn(node->guard);
    for (unsigned idx = 0; idx < COUNT_OF(sendings); idx++) {
        assert_int_equal(sendings[idx].called, 1);
        assert_int_equal(sendings[idx].status, 0);
    }
    one_node_destroy(node);
}

static void test_guard__close_cancels_what_was_sent(void **state)
{
    (void)state;
    struct one_node *node = node_new(1, GUARD_CURES_ALL, 3, 0);
    struct sending sending;
    send_timeout_now(node, &sending);
    one_node_close(node);
    assert_int_equal(sending.called, 1);
    assert_int_equal(sending.status, RAFT_CANCELED);
    one_node_destroy(node);
}

static void test_guard__message_before_start_or_after_failure_is_freed(void **state)
{
    (void)state;
    struct one_node *node = node_new(2, GUARD_CURES_ALL, 3, 0);
    guard_fail(node->guard, STATUS_IO, NULL);
    const struct one_node_entry entries[] = {{.term = 1, .value = 2}};
    const struct one_node_append append = {.from = 1,
                                           .term = 1,
                                           .prev_index = 1,
                                           .prev_term = 1,
                                           .entries = entries,
                                           .count = COUNT_OF(entries)};
    assert_false(one_node_append(node, &append)); /* leak checkers see the rest */
    assert_false(one_node_install(node, 1, 1, 20));
    one_node_destroy(node);
}

/* --- commit notification ------------------------------------------------------------------- */

static struct one_node *leader_new(void)
{
    struct one_node *node = node_new(1, GUARD_CURES_ALL, 3, 0);
    one_node_elect(node, 2);
    for (unsigned beat = 0; beat < 4; beat++) {
        for (raft_id peer = 2; peer <= 3; peer++) {
            (void)one_node_ack(node, peer, 0, raft_last_index(&node->raft));
        }
        one_node_run_ms(node, 10);
    }
    (void)guard_notify_commit(node->guard);
    return node;
}

static void test_guard__followers_learn_of_a_commit_in_the_same_turn(void **state)
{
    (void)state;
    struct one_node *node = leader_new();
    assert_int_equal(one_node_propose(node, 5), 0);
    one_node_run_ms(node, 3);
    unsigned since = node->sent_count;
    unsigned heartbeat_ms = node->raft.heartbeat_timeout;
    assert_false(guard_notify_commit(node->guard)); /* not committed yet */
    (void)one_node_ack(node, 2, 0, raft_last_index(&node->raft));
    assert_int_equal(raft_commit_index(&node->raft), raft_last_index(&node->raft));
    assert_int_equal(one_node_count_sent(node, since, RAFT_APPEND_ENTRIES, NULL), 0);
    assert_true(guard_notify_commit(node->guard));
    struct raft_message last;
    assert_int_equal(one_node_count_sent(node, since, RAFT_APPEND_ENTRIES, &last), 2);
    assert_int_equal(last.append_entries.n_entries, 0);
    assert_int_equal(last.append_entries.leader_commit, raft_commit_index(&node->raft));
    assert_int_equal(node->raft.heartbeat_timeout, heartbeat_ms);
    assert_false(guard_notify_commit(node->guard)); /* told already */
    assert_int_equal(guard_stats(node->guard)->commits_notified, 1);
    one_node_destroy(node);
}

static void test_guard__entry_that_follows_carries_the_commit(void **state)
{
    (void)state;
    struct one_node *node = leader_new();
    assert_int_equal(one_node_propose(node, 5), 0);
    one_node_run_ms(node, 3);
    for (raft_id peer = 2; peer <= 3; peer++) {
        (void)one_node_ack(node, peer, 0, raft_last_index(&node->raft));
    }
    unsigned since = node->sent_count;
    assert_int_equal(one_node_propose(node, 6), 0);
    assert_int_equal(one_node_count_sent(node, since, RAFT_APPEND_ENTRIES, NULL), 2);
    assert_false(guard_notify_commit(node->guard));
    one_node_destroy(node);
}

static void test_guard__follower_has_nobody_to_notify(void **state)
{
    (void)state;
    struct one_node *node = node_new(2, GUARD_CURES_ALL, 3, 0);
    const struct one_node_append append = {
        .from = 1, .term = 1, .prev_index = 1, .prev_term = 1, .commit = 1};
    assert_true(one_node_append(node, &append));
    assert_false(guard_notify_commit(node->guard));
    one_node_destroy(node);
}

/* --- late rejections ----------------------------------------------------------------------- */

/* A rejection by node 3 that its own acknowledgement has overtaken; then a new entry. How many are
 * sent to node 3 within a second in which it answers every heartbeat as it must? */
static unsigned entries_after_late_rejection(unsigned cures, raft_index back)
{
    struct one_node *node = node_new(1, cures, 3, 0);
    one_node_elect(node, 2);
    for (uint64_t value = 0; value < 5; value++) {
        CHECK(one_node_propose(node, value) == 0);
        one_node_run_ms(node, 3);
    }
    raft_index last = raft_last_index(&node->raft);
    (void)one_node_ack(node, 2, 0, last);
    (void)one_node_ack(node, 3, 0, last);
    /* Two ticks without a word of node 3, and it is probed. */
    for (unsigned tick = 0; tick < 3; tick++) {
        one_node_run_ms(node, ONE_NODE_TICK_MS);
        (void)one_node_ack(node, 2, 0, last);
    }
    (void)one_node_ack(node, 3, last, last - 1 - back);
    CHECK(one_node_propose(node, 9) == 0);
    unsigned count = 0;
    for (unsigned tick = 0; tick < 20; tick++) {
        unsigned since = node->sent_count;
        one_node_run_ms(node, ONE_NODE_TICK_MS);
        (void)one_node_ack(node, 2, 0, raft_last_index(&node->raft));
        for (unsigned idx = since; idx < node->sent_count; idx++) {
            const struct raft_message *message = &node->sent[idx];
            if (message->type == RAFT_APPEND_ENTRIES && message->server_id == 3) {
                const struct raft_append_entries *append = &message->append_entries;
                count += append->n_entries;
                (void)one_node_ack(node, 3, 0, append->prev_log_index + append->n_entries);
            }
        }
    }
    one_node_destroy(node);
    return count;
}

static void nothing_is_sent_any_more(void *arg)
{
    (void)arg;
    CHECK(entries_after_late_rejection(GUARD_CURES_ALL & ~(unsigned)GUARD_CURE_L10, 0) == 0);
}

static void test_guard__late_rejection_stops_no_follower_L10(void **state)
{
    (void)state;
    assert_true(entries_after_late_rejection(GUARD_CURES_ALL, 0) >= 1);
    assert_true(entries_after_late_rejection(GUARD_CURES_ALL, 2) >= 1);
    assert_true(one_node_shows(nothing_is_sent_any_more, NULL));
}

/* --- older terms --------------------------------------------------------------------------- */

/* Bytes that are no sensible index where libraft's locals will be. */
__attribute__((noinline)) static void soil_the_stack(void)
{
    volatile uint8_t bytes[16384];
    for (size_t idx = 0; idx < sizeof(bytes); idx++) {
        bytes[idx] = 0x5A;
    }
}

/* Node 2 is in term 5; a leader of term 3 sends it something. What does the answer claim? */
static raft_index claimed_to_older_term(unsigned cures, bool snapshot)
{
    struct one_node *node = node_new(2, cures, 3, 0);
    const struct one_node_append newer = {
        .from = 3, .term = 5, .prev_index = 1, .prev_term = 1, .commit = 1};
    CHECK(one_node_append(node, &newer));
    unsigned since = node->sent_count;
    const struct one_node_append older = {.from = 1, .term = 3};
    soil_the_stack();
    CHECK(snapshot ? one_node_install(node, 1, 3, 20) : one_node_append(node, &older));
    struct raft_message answer;
    CHECK(one_node_count_sent(node, since, RAFT_APPEND_ENTRIES_RESULT, &answer) == 1);
    CHECK(answer.append_entries_result.term == 5);
    CHECK(answer.append_entries_result.rejected == 0);
    raft_index claimed = answer.append_entries_result.last_log_index;
    one_node_destroy(node);
    return claimed;
}

static void stack_is_claimed_to_be_safe(void *arg)
{
    (void)arg;
    CHECK(claimed_to_older_term(GUARD_CURES_ALL & ~(unsigned)GUARD_CURE_STALE, true) != 0);
}

static void test_guard__answer_to_an_older_term_claims_nothing(void **state)
{
    (void)state;
    assert_int_equal(claimed_to_older_term(GUARD_CURES_ALL, true), 0);
    assert_int_equal(claimed_to_older_term(GUARD_CURES_ALL, false), 0);
    assert_true(one_node_shows(stack_is_claimed_to_be_safe, NULL));
}

/* --- a lost leader ------------------------------------------------------------------------- */

static struct one_node *follower_new(raft_id id, unsigned voters, unsigned spares)
{
    struct one_node *node = node_new(id, GUARD_CURES_ALL, voters, spares);
    const struct one_node_append append = {
        .from = 1, .term = 1, .prev_index = 1, .prev_term = 1, .commit = 1};
    CHECK(one_node_append(node, &append));
    CHECK(node->raft.follower_state.current_leader.id == 1);
    return node;
}

static bool grants_pre_vote(struct one_node *node)
{
    unsigned since = node->sent_count;
    struct raft_message message = {
        .type = RAFT_REQUEST_VOTE,
        .server_id = 3,
        .request_vote = {.version = 2,
                         .term = 2,
                         .candidate_id = 3,
                         .last_log_index = 1,
                         .last_log_term = 1,
                         .pre_vote = true},
    };
    CHECK(one_node_receive(node, &message));
    struct raft_message reply;
    CHECK(one_node_count_sent(node, since, RAFT_REQUEST_VOTE_RESULT, &reply) == 1);
    return reply.request_vote_result.vote_granted;
}

static void test_guard__voter_whose_leader_is_lost_grants_at_once(void **state)
{
    (void)state;
    struct one_node *node = follower_new(2, 3, 0);
    assert_false(grants_pre_vote(node));
    uint64_t delay_ns = 1;
    assert_false(guard_leader_link_lost(node->guard, 3, &delay_ns)); /* another's link */
    assert_false(grants_pre_vote(node));
    assert_true(guard_leader_link_lost(node->guard, 1, &delay_ns));
    assert_int_equal(delay_ns, 0);
    assert_true(grants_pre_vote(node));
    assert_false(guard_leader_link_lost(node->guard, 1, &delay_ns)); /* once per leader */
    one_node_destroy(node);
}

static void test_guard__voters_stand_one_after_the_other(void **state)
{
    (void)state;
    for (raft_id id = 2; id <= 5; id++) {
        struct one_node *node = follower_new(id, 5, 0);
        uint64_t delay_ns;
        assert_true(guard_leader_link_lost(node->guard, 1, &delay_ns));
        assert_int_equal(delay_ns, (id - 2) * 20 * NS_PER_MS);
        one_node_destroy(node);
    }
}

static void test_guard__campaign_starts_with_a_pre_vote_in_the_same_term(void **state)
{
    (void)state;
    struct one_node *node = follower_new(2, 3, 0);
    unsigned since = node->sent_count;
    guard_campaign(node->guard); /* the leader is known: nothing */
    assert_int_equal(one_node_count_sent(node, since, RAFT_REQUEST_VOTE, NULL), 0);
    uint64_t delay_ns;
    assert_true(guard_leader_link_lost(node->guard, 1, &delay_ns));
    guard_campaign(node->guard);
    struct raft_message request;
    assert_int_equal(one_node_count_sent(node, since, RAFT_REQUEST_VOTE, &request), 2);
    assert_true(request.request_vote.pre_vote);
    assert_int_equal(raft_current_term(&node->raft), 1);
    assert_int_equal(fake_disk_term(node->disk), 1);
    /* The leader lives after all: its next message brings the candidate back. */
    const struct one_node_append append = {
        .from = 1, .term = 1, .prev_index = 1, .prev_term = 1, .commit = 1};
    assert_true(one_node_append(node, &append));
    assert_int_equal(raft_state(&node->raft), RAFT_FOLLOWER);
    assert_int_equal(raft_current_term(&node->raft), 1);
    one_node_destroy(node);
}

static void test_guard__one_who_does_not_vote_never_stands(void **state)
{
    (void)state;
    struct one_node *node = follower_new(4, 3, 1);
    uint64_t delay_ns;
    assert_false(guard_leader_link_lost(node->guard, 1, &delay_ns));
    unsigned since = node->sent_count;
    guard_campaign(node->guard);
    assert_int_equal(one_node_count_sent(node, since, RAFT_REQUEST_VOTE, NULL), 0);
    one_node_destroy(node);
}

/* --- restarts ------------------------------------------------------------------------------ */

/* Crashes with writes in flight, a hundred times: what was committed is there again, and libraft
 * gets all its memory back. */
static void crash_and_restart(void *arg)
{
    (void)arg;
    one_node_heap_count();
    struct one_node *node = one_node_create(1, GUARD_CURES_ALL);
    node->snapshot_threshold = 10;
    one_node_boot(node, 1, 0);
    uint64_t applied = 0;
    for (unsigned round = 0; round < 100; round++) {
        one_node_run_ms(node, 100 + round % 7);
        CHECK(raft_state(&node->raft) == RAFT_LEADER && node->state.applied >= applied);
        for (uint64_t value = 0; value < 6; value++) {
            CHECK(one_node_propose(node, value) == 0);
            one_node_run_ms(node, round % 3);
        }
        applied = node->state.applied;
        one_node_crash(node);
        one_node_boot(node, 0, 0);
    }
    CHECK(applied > 300 && fake_disk_snapshot_index(node->disk) > 0);
    one_node_destroy(node);
    CHECK(one_node_heap_balance() == 0);
}

static void test_guard__crashes_lose_nothing_committed_and_no_memory(void **state)
{
    (void)state;
    assert_true(one_node_survives(crash_and_restart, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_guard__refused_change_is_forgotten_L8),
        cmocka_unit_test(test_guard__refused_change_leaves_another_alone_L8),
        cmocka_unit_test(test_guard__change_of_one_who_does_not_lead_is_refused),
        cmocka_unit_test(test_guard__send_completes_once_at_the_end_of_the_turn),
        cmocka_unit_test(test_guard__close_cancels_what_was_sent),
        cmocka_unit_test(test_guard__message_before_start_or_after_failure_is_freed),
        cmocka_unit_test(test_guard__followers_learn_of_a_commit_in_the_same_turn),
        cmocka_unit_test(test_guard__entry_that_follows_carries_the_commit),
        cmocka_unit_test(test_guard__follower_has_nobody_to_notify),
        cmocka_unit_test(test_guard__late_rejection_stops_no_follower_L10),
        cmocka_unit_test(test_guard__answer_to_an_older_term_claims_nothing),
        cmocka_unit_test(test_guard__voter_whose_leader_is_lost_grants_at_once),
        cmocka_unit_test(test_guard__voters_stand_one_after_the_other),
        cmocka_unit_test(test_guard__campaign_starts_with_a_pre_vote_in_the_same_term),
        cmocka_unit_test(test_guard__one_who_does_not_vote_never_stands),
        cmocka_unit_test(test_guard__crashes_lose_nothing_committed_and_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
