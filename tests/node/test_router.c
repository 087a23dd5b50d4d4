/* The router with a real state machine behind a network that the tests play: what was sent, what of
 * it was applied and which answers came back is decided line by line. */
#include "node/router.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#include "fsm/base/rng.h"
#include "tests/node/router_bed.h"

static int set_up(void **state)
{
    struct bed *bed = calloc(1, sizeof *bed);
    assert_non_null(bed);
    bed_init(bed, 42);
    *state = bed;
    return 0;
}

static int tear_down(void **state)
{
    struct bed *bed = *state;
    bed_deinit(bed);
    free(bed);
    return 0;
}

static struct router_stats stats_of(const struct bed *bed)
{
    struct router_stats stats;
    router_stats(bed->router, &stats);
    return stats;
}

/* --- the origin */

static void test_router__nothing_is_sent_before_the_origin_is_known(void **state)
{
    struct bed *bed = *state;
    uint32_t call = bed_take(bed, "k", "a", 5000);
    assert_int_equal(bed->sending_count, 1);
    assert_int_equal(bed->sendings[0].kind, OP_KIND_OPEN_ORIGIN);
    bed_run(bed, 100);
    assert_int_equal(bed->sending_count, 1);
    bed_apply(bed, 0);
    bed_reply(bed, 0);
    assert_int_equal(bed->sending_count, 2);
    assert_int_equal(bed->sendings[1].kind, OP_KIND_TAKE);
    assert_int_equal(bed->sendings[1].sequence, 1);
    assert_int_equal(bed->sendings[1].confirmed, 0);
    bed_apply(bed, 1);
    bed_reply(bed, 1);
    assert_int_equal(bed->calls[call].outcome, OUTCOME_KIND_GRANTED);
    assert_true(router_idle(bed->router));
}

static void test_router__a_refused_opening_is_tried_again_with_another_nonce(void **state)
{
    struct bed *bed = *state;
    bed_take(bed, "k", "a", 5000);
    bed_refuse(bed, 0, STATUS_NOT_SERVING);
    bed_run(bed, 10);
    assert_int_equal(bed->sending_count, 2);
    assert_int_equal(bed->sendings[1].kind, OP_KIND_OPEN_ORIGIN);
    assert_false(slice_equal(buf_slice(&bed->sendings[0].command),
                             buf_slice(&bed->sendings[1].command)));
}

static void test_router__a_late_opening_makes_an_origin_that_nobody_uses(void **state)
{
    struct bed *bed = *state;
    bed_follow(bed, 2, 1);
    bed_take(bed, "k", "a", 5000);
    bed_run(bed, 600); /* unanswered: asked again */
    assert_int_equal(bed->sending_count, 2);
    bed_apply(bed, 1);
    bed_reply(bed, 1);
    uint64_t origin = bed->sendings[2].origin;
    bed_apply(bed, 0); /* the lost copy arrives after all */
    bed_reply(bed, 0);
    bed_take(bed, "l", "a", 5000);
    assert_int_equal(bed->sendings[3].origin, origin);
}

/* --- exactly once */

static void test_router__r1_a_retried_take_steals_nothing(void **state)
{
    struct bed *bed = *state;
    bed_open(bed);
    bed_follow(bed, 2, 1);
    uint32_t a = bed_take(bed, "k", "a", 5000);
    bed_apply(bed, 0);                           /* its reply is lost with the link */
    router_peer_down(bed->router, 2, bed->now_ns);
    uint32_t b = bed_take(bed, "k", "b", 5000);
    bed_follow(bed, 3, 2);
    assert_int_equal(bed->sending_count, 4); /* b, then to the new leader both again */
    for (uint32_t i = 1; i < 4; i++) {
        if (bed->sendings[i].sequence != bed->sendings[0].sequence &&
            !slice_equal(bed_holder(bed, "k"), slice_text("b"))) {
            bed_apply(bed, i);
            bed_reply(bed, i);
        }
    }
    assert_int_equal(bed->calls[b].outcome, OUTCOME_KIND_GRANTED);
    for (uint32_t i = 1; i < 4; i++) {
        if (bed->sendings[i].sequence == bed->sendings[0].sequence) {
            assert_int_equal(bed->sendings[i].term, 2);
            bed_apply(bed, i);
            bed_reply(bed, i);
        }
    }
    assert_int_equal(bed->calls[a].outcome, OUTCOME_KIND_GRANTED);
    assert_true(bed->calls[a].token < bed->calls[b].token);
    assert_true(slice_equal(bed_holder(bed, "k"), slice_text("b")));
    uint32_t renewal = bed_renew(bed, "k", "a", 5000);
    bed_settle_all(bed);
    assert_int_equal(bed->calls[renewal].outcome, OUTCOME_KIND_LOST);
}

static void test_router__r5_no_reply_before_the_answer(void **state)
{
    struct bed *bed = *state;
    bed_open(bed);
    uint32_t call = bed_take(bed, "k", "a", 5000);
    bed_run(bed, 2000);
    assert_int_equal(bed->calls[call].replies, 0);
    bed_apply(bed, 0);
    assert_int_equal(bed->calls[call].replies, 0);
    bed_reply(bed, 0);
    assert_int_equal(bed->calls[call].replies, 1);
}

static void test_router__another_leader_gets_the_same_number_at_once(void **state)
{
    struct bed *bed = *state;
    bed_open(bed);
    bed_follow(bed, 2, 1);
    bed_take(bed, "k", "a", 5000);
    bed_follow(bed, 3, 2);
    assert_int_equal(bed->sending_count, 2);
    assert_int_equal(bed->sendings[1].peer_id, 3);
    assert_int_equal(bed->sendings[1].term, 2);
    assert_int_equal(bed->sendings[1].sequence, bed->sendings[0].sequence);
    assert_int_equal(bed->sendings[1].at_ns, bed->now_ns);
}

static void test_router__the_same_leader_in_a_new_term_gets_it_again(void **state)
{
    struct bed *bed = *state;
    bed_open(bed);
    bed_follow(bed, 2, 1);
    bed_take(bed, "k", "a", 5000);
    bed_follow(bed, 2, 3);
    assert_int_equal(bed->sending_count, 2);
    assert_int_equal(bed->sendings[1].term, 3);
}

static void test_router__what_the_replica_here_has_waits_for_its_completion(void **state)
{
    struct bed *bed = *state;
    bed_open(bed);
    bed_take(bed, "k", "a", 5000);
    bed_follow(bed, 2, 2);
    bed_run(bed, 1000);
    assert_int_equal(bed->sending_count, 1);
    bed_refuse(bed, 0, STATUS_LEADERSHIP_LOST);
    assert_int_equal(bed->sending_count, 2);
    assert_int_equal(bed->sendings[1].peer_id, 2);
}

static void test_router__an_unanswered_forward_is_sent_again(void **state)
{
    struct bed *bed = *state;
    bed_open(bed);
    bed_follow(bed, 2, 1);
    uint32_t call = bed_take(bed, "k", "a", 5000);
    bed_run(bed, 499);
    assert_int_equal(bed->sending_count, 1);
    bed_run(bed, 1);
    assert_int_equal(bed->sending_count, 2);
    bed_run(bed, 1000);
    assert_int_equal(bed->sending_count, 3);
    bed_run(bed, 1999);
    assert_int_equal(bed->sending_count, 3);
    bed_run(bed, 1);
    assert_int_equal(bed->sending_count, 4);
    /* The first copy's answer counts as well as any other's. */
    bed_apply(bed, 0);
    bed_reply(bed, 0);
    assert_int_equal(bed->calls[call].outcome, OUTCOME_KIND_GRANTED);
}

static void test_router__a_refused_sending_pauses_longer_each_time(void **state)
{
    struct bed *bed = *state;
    bed_open(bed);
    bed_take(bed, "k", "a", 5000);
    for (uint32_t i = 0; i < 20; i++) {
        uint64_t before_ns = bed->now_ns;
        bed_refuse(bed, bed->sending_count - 1, STATUS_DISK_FULL);
        uint32_t sent = bed->sending_count;
        while (bed->sending_count == sent) {
            bed_run(bed, 1);
        }
        uint64_t pause_ns = bed->now_ns - before_ns;
        assert_true(pause_ns >= 2 * BED_MS && pause_ns <= 101 * BED_MS);
        assert_true(i < 6 || pause_ns >= 50 * BED_MS);
    }
}

/* --- deadlines */

static void test_router__deadline_without_a_leader_is_unavailable(void **state)
{
    struct bed *bed = *state;
    bed_orphan(bed);
    uint32_t call = bed_take(bed, "k", "a", 100);
    bed_run(bed, 99);
    assert_int_equal(bed->calls[call].replies, 0);
    bed_run(bed, 1);
    assert_int_equal(bed->calls[call].replies, 1);
    assert_int_equal(bed->calls[call].status, STATUS_NO_LEADER);
    assert_int_equal(bed->sending_count, 0);
    assert_int_equal(stats_of(bed).settles, 0);
    assert_int_equal(stats_of(bed).unavailable, 1);
}

static void test_router__deadline_after_refusals_only_is_unavailable(void **state)
{
    struct bed *bed = *state;
    bed_open(bed);
    bed_follow(bed, 2, 1);
    uint32_t call = bed_take(bed, "k", "a", 100);
    while (bed->calls[call].replies == 0) {
        bed_refuse(bed, bed->sending_count - 1, STATUS_WRONG_TERM);
        bed_run(bed, 1);
    }
    assert_int_equal(bed->calls[call].replied_ns, bed->calls[call].deadline_ns);
    assert_int_equal(bed->calls[call].status, STATUS_WRONG_TERM);
    assert_true(router_idle(bed->router));
    assert_int_equal(stats_of(bed).unconfirmed, 0);
}

static void test_router__not_done_after_maybe_stays_maybe(void **state)
{
    struct bed *bed = *state;
    bed_open(bed);
    bed_follow(bed, 2, 1);
    uint32_t call = bed_take(bed, "k", "a", 1000);
    bed_follow(bed, 3, 2); /* the first sending is lost */
    bed_refuse(bed, 1, STATUS_NOT_SERVING);
    bed_run(bed, 1000);
    assert_int_equal(bed->calls[call].status, STATUS_UNKNOWN);
    assert_int_equal(stats_of(bed).settling, 1);
}

static void test_router__a_late_refusal_of_every_copy_makes_it_not_done(void **state)
{
    struct bed *bed = *state;
    bed_open(bed);
    bed_follow(bed, 2, 1);
    uint32_t call = bed_take(bed, "k", "a", 1000);
    bed_follow(bed, 3, 2);
    bed_refuse(bed, 0, STATUS_NOT_LEADER);
    bed_orphan(bed);
    bed_refuse(bed, 1, STATUS_NOT_SERVING);
    bed_run(bed, 1000);
    assert_int_equal(status_api_error(bed->calls[call].status), API_ERROR_UNAVAILABLE);
    assert_int_equal(stats_of(bed).settling, 0);
}

/* While the way to the leader is full nothing is sent; the time that is left is counted from when
 * it is. */
static void test_router__a_forward_waits_here_and_not_on_its_way(void **state)
{
    struct bed *bed = *state;
    bed_open(bed);
    bed_follow(bed, 2, 1);
    router_hold_forwards(bed->router, true);
    uint32_t late = bed_take(bed, "k", "a", 100);
    uint32_t call = bed_take(bed, "l", "a", 5000);
    bed_run(bed, 100);
    assert_int_equal(bed->sending_count, 0);
    assert_int_equal(status_api_error(bed->calls[late].status), API_ERROR_UNAVAILABLE);
    assert_int_equal(stats_of(bed).settles, 0);
    router_hold_forwards(bed->router, false);
    bed_turn(bed);
    assert_int_equal(bed->sending_count, 1);
    bed_settle_all(bed);
    assert_int_equal(bed->calls[call].outcome, OUTCOME_KIND_GRANTED);
    /* Whoever leads proposes at once. */
    router_hold_forwards(bed->router, true);
    bed_lead(bed, 2);
    bed_take(bed, "m", "a", 5000);
    assert_int_equal(bed->sending_count, 2);
}

static void test_router__nothing_is_sent_at_or_after_the_deadline(void **state)
{
    struct bed *bed = *state;
    bed_open(bed);
    bed_follow(bed, 2, 1);
    uint32_t call = bed_take(bed, "k", "a", 500); /* the same moment as sending again */
    bed_run(bed, 500);
    assert_int_equal(bed->sendings[bed->sending_count - 1].kind, OP_KIND_SETTLE);
    assert_int_equal(bed->sending_count, 2);
    assert_int_equal(bed->calls[call].status, STATUS_UNKNOWN);
    assert_int_equal(bed->calls[call].replied_ns, bed->calls[call].deadline_ns);
}

/* A certain refusal stays one however often it was repeated until the deadline. */
static void test_router__any_number_of_refusals_is_not_done(void **state)
{
    struct bed *bed = *state;
    bed_open(bed);
    bed_follow(bed, 2, 1);
    uint32_t call = bed_take(bed, "k", "a", 60000);
    for (unsigned i = 0; i < 200; i++) {
        uint32_t last = bed->sending_count - 1;
        bed_refuse(bed, last, STATUS_NOT_SERVING);
        while (bed->sending_count == last + 1) {
            bed_run(bed, 1);
        }
    }
    bed_refuse(bed, bed->sending_count - 1, STATUS_DISK_FULL);
    bed_orphan(bed);
    bed_run(bed, 60000);
    assert_int_equal(bed->sending_count, 201);
    assert_int_equal(bed->calls[call].status, STATUS_DISK_FULL);
    assert_int_equal(stats_of(bed).settles, 0);
    assert_int_equal(stats_of(bed).unconfirmed, 0);
}

/* `refused` further sendings are refused while the first one is open; then it is refused too. */
static enum status first_refused_last(struct bed *bed, unsigned refused)
{
    bed_open(bed);
    bed_follow(bed, 2, 1);
    uint32_t call = bed_take(bed, "k", "a", 60000);
    bed_follow(bed, 3, 2);
    for (unsigned i = 0; i < refused; i++) {
        uint32_t last = bed->sending_count - 1;
        bed_refuse(bed, last, STATUS_NOT_SERVING);
        bed_refuse(bed, last, STATUS_NOT_SERVING); /* a copy that the network made */
        while (bed->sending_count == last + 1) {
            bed_run(bed, 1);
        }
    }
    bed_orphan(bed);
    bed_refuse(bed, bed->sending_count - 1, STATUS_NOT_SERVING);
    bed_refuse(bed, 0, STATUS_NOT_LEADER);
    bed_run(bed, 60000);
    return bed->calls[call].status;
}

static void test_router__a_refusal_counts_for_the_63_that_came_after_it(void **state)
{
    struct bed *bed = *state;
    enum status st = first_refused_last(bed, 62);
    assert_int_equal(status_api_error(st), API_ERROR_UNAVAILABLE);
    assert_int_equal(stats_of(bed).settles, 0);
}

static void test_router__what_is_open_for_longer_stays_unknown(void **state)
{
    struct bed *bed = *state;
    assert_int_equal(first_refused_last(bed, 63), STATUS_UNKNOWN);
    assert_int_equal(stats_of(bed).settling, 1);
}

/* --- what the replica here has not submitted */

static void test_router__what_still_waits_at_the_deadline_was_not_done(void **state)
{
    struct bed *bed = *state;
    bed_open(bed);
    bed->withdrawable = true;
    uint32_t call = bed_take(bed, "k", "a", 100);
    bed_run(bed, 99);
    assert_int_equal(bed->withdrawn, 0);
    bed_run(bed, 1);
    assert_true(bed->sendings[0].withdrawn);
    assert_int_equal(bed->calls[call].status, STATUS_DEADLINE);
    assert_int_equal(stats_of(bed).settles, 0);
    assert_int_equal(stats_of(bed).unconfirmed, 0);
    assert_true(router_idle(bed->router));
}

static void test_router__what_is_under_way_at_the_deadline_is_unknown(void **state)
{
    struct bed *bed = *state;
    bed_open(bed);
    uint32_t call = bed_take(bed, "k", "a", 100);
    bed_run(bed, 100);
    assert_int_equal(bed->withdrawn, 0);
    assert_int_equal(bed->calls[call].status, STATUS_UNKNOWN);
    assert_int_equal(stats_of(bed).settling, 1);
    bed_refuse(bed, 0, STATUS_DEADLINE); /* its completion finds nobody */
    assert_int_equal(stats_of(bed).settling, 1);
}

/* Taking the last sending back says nothing of an earlier one. */
static void test_router__what_is_taken_back_leaves_earlier_sendings_open(void **state)
{
    struct bed *bed = *state;
    bed_open(bed);
    bed_follow(bed, 2, 1);
    uint32_t call = bed_take(bed, "k", "a", 100);
    bed_lead(bed, 2);
    bed->withdrawable = true;
    bed_run(bed, 100);
    assert_true(bed->sendings[1].withdrawn);
    assert_int_equal(bed->calls[call].status, STATUS_UNKNOWN);
    assert_int_equal(stats_of(bed).settling, 1);
}

static void test_router__what_was_answered_is_not_taken_back(void **state)
{
    struct bed *bed = *state;
    bed_open(bed);
    bed->withdrawable = true;
    uint32_t call = bed_take(bed, "k", "a", 100);
    bed_refuse(bed, 0, STATUS_DEADLINE); /* the replica was first */
    bed_run(bed, 100);
    while (bed->sending_count > 1 && bed->calls[call].replies == 0) {
        bed_refuse(bed, bed->sending_count - 1, STATUS_DEADLINE);
    }
    assert_false(bed->sendings[0].withdrawn);
    assert_int_equal(bed->calls[call].status, STATUS_DEADLINE);
    assert_int_equal(stats_of(bed).settles, 0);
}

static void test_router__a_caller_that_leaves_takes_back_what_waits(void **state)
{
    struct bed *bed = *state;
    bed_open(bed);
    bed->withdrawable = true;
    uint32_t call = bed_take(bed, "k", "a", 5000);
    bed_abandon(bed, call);
    assert_true(bed->sendings[0].withdrawn);
    assert_true(router_idle(bed->router));
    assert_int_equal(stats_of(bed).settles, 0);
}

static void test_router__settles_are_never_taken_back(void **state)
{
    struct bed *bed = *state;
    bed_open(bed);
    bed_take(bed, "k", "a", 100);
    bed_run(bed, 100);
    bed->withdrawable = true;
    assert_int_equal(bed->sendings[1].kind, OP_KIND_SETTLE);
    bed_run(bed, 60000);
    router_end(bed->router, bed->now_ns);
    assert_int_equal(bed->withdrawn, 0);
    assert_true(router_idle(bed->router));
}

/* --- settling */

/* A take by "a" that ended UNKNOWN; the settle is the last sending. */
static uint32_t unknown_take(struct bed *bed)
{
    bed_follow(bed, 2, 1);
    uint32_t call = bed_take(bed, "k", "a", 400);
    bed_run(bed, 400);
    assert_int_equal(bed->calls[call].status, STATUS_UNKNOWN);
    assert_int_equal(bed->sendings[bed->sending_count - 1].kind, OP_KIND_SETTLE);
    assert_int_equal(bed->sendings[bed->sending_count - 1].deadline_ns, UINT64_MAX);
    return call;
}

static void test_router__settled_before_it_was_applied_is_void(void **state)
{
    struct bed *bed = *state;
    bed_open(bed);
    unknown_take(bed);
    bed_apply(bed, 1);
    bed_reply(bed, 1);
    assert_true(router_idle(bed->router));
    bed_apply(bed, 0); /* the late forward */
    assert_int_equal(bed->sendings[0].result_status, STATUS_VOID);
    bed_reply(bed, 0);
    assert_null(bed_holder(bed, "k").base);
    assert_int_equal(stats_of(bed).unconfirmed, 0);
    /* Also after the mark has moved over it. */
    bed_take(bed, "l", "a", 5000);
    bed_settle_all(bed);
    bed_apply(bed, 0);
    assert_null(bed_holder(bed, "k").base);
}

static void test_router__settled_after_it_was_applied_ends_the_lease(void **state)
{
    struct bed *bed = *state;
    bed_open(bed);
    unknown_take(bed);
    bed_apply(bed, 0);
    assert_non_null(bed_holder(bed, "k").base);
    bed_apply(bed, 1);
    bed_reply(bed, 1);
    assert_null(bed_holder(bed, "k").base);
    assert_true(router_idle(bed->router));
}

static void test_router__a_lease_that_was_held_before_is_kept_when_settled(void **state)
{
    struct bed *bed = *state;
    bed_open(bed);
    bed_take(bed, "k", "a", 5000);
    bed_settle_all(bed);
    bed_follow(bed, 2, 1);
    uint32_t again = bed_take(bed, "k", "a", 400);
    bed_run(bed, 400);
    bed_apply(bed, 1);
    bed_apply(bed, 2);
    bed_reply(bed, 2);
    assert_int_equal(bed->calls[again].status, STATUS_UNKNOWN);
    assert_true(slice_equal(bed_holder(bed, "k"), slice_text("a")));
}

static void test_router__a_settle_is_sent_until_it_is_answered(void **state)
{
    struct bed *bed = *state;
    bed_open(bed);
    unknown_take(bed);
    bed_run(bed, 120000);
    uint32_t sent = bed->sending_count;
    assert_true(sent > 20);
    bed_refuse(bed, sent - 1, STATUS_NOT_LEADER);
    bed_orphan(bed);
    bed_run(bed, 10000);
    assert_int_equal(bed->sending_count, sent);
    bed_lead(bed, 7);
    assert_int_equal(bed->sending_count, sent + 1);
    bed_refuse(bed, sent, STATUS_LEADERSHIP_LOST);
    bed_run(bed, 100);
    assert_int_equal(bed->sending_count, sent + 2);
    bed_apply(bed, sent + 1);
    bed_reply(bed, sent + 1);
    assert_true(router_idle(bed->router));
    bed_run(bed, 10000);
    assert_int_equal(bed->sending_count, sent + 2);
}

/* What the state machine could not keep is not void yet: only then may the number be confirmed. */
static void test_router__a_settle_that_was_not_kept_is_sent_again(void **state)
{
    struct bed *bed = *state;
    bed_open(bed);
    unknown_take(bed);
    static const enum status refusals[] = {STATUS_OVERLOADED, STATUS_UNINITIALISED};
    for (uint32_t i = 0; i < 2; i++) {
        bed_answer(bed, 1 + i, OP_KIND_SETTLE, refusals[i]);
        bed_run(bed, 100);
        assert_int_equal(bed->sending_count, 3 + i);
        assert_int_equal(stats_of(bed).settling, 1);
        assert_int_equal(stats_of(bed).unconfirmed, 1);
    }
    bed_apply(bed, 3);
    bed_reply(bed, 3);
    assert_true(router_idle(bed->router));
    assert_int_equal(stats_of(bed).unconfirmed, 0);
}

/* Not executed and not kept: the number may be sent again, and still be executed once. */
static void test_router__a_number_that_was_not_kept_is_sent_again(void **state)
{
    struct bed *bed = *state;
    bed_open(bed);
    uint32_t call = bed_take(bed, "k", "a", 5000);
    bed_answer(bed, 0, OP_KIND_TAKE, STATUS_OVERLOADED);
    assert_int_equal(bed->calls[call].replies, 0);
    bed_run(bed, 100);
    assert_int_equal(bed->sending_count, 2);
    assert_int_equal(bed->sendings[1].sequence, bed->sendings[0].sequence);
    bed_apply(bed, 1);
    bed_reply(bed, 1);
    assert_int_equal(bed->calls[call].outcome, OUTCOME_KIND_GRANTED);
    uint32_t other = bed_take(bed, "l", "a", 100);
    while (bed->calls[other].replies == 0) {
        bed_answer(bed, bed->sending_count - 1, OP_KIND_TAKE, STATUS_OVERLOADED);
        bed_run(bed, 1);
    }
    assert_int_equal(bed->calls[other].status, STATUS_OVERLOADED);
    assert_int_equal(stats_of(bed).settles, 0);
}

static void test_router__while_settling_the_owner_and_the_key_wait(void **state)
{
    struct bed *bed = *state;
    bed_open(bed);
    unknown_take(bed);
    uint32_t settle = bed->sending_count - 1;
    uint32_t of_owner = bed_take(bed, "other", "a", 5000);
    uint32_t of_key = bed_owner(bed, "k", 5000);
    assert_int_equal(bed->sending_count, settle + 1);
    assert_int_equal(bed->reads_asked_peer, 0);
    assert_int_equal(stats_of(bed).waiting, 2);

    bed_take(bed, "k", "b", 5000);   /* another owner's write goes on */
    bed_owner(bed, "other", 5000);   /* and the read of another key */
    assert_int_equal(bed->sending_count, settle + 2);
    assert_int_equal(bed->reads_asked_peer, 1);

    bed_apply(bed, settle);
    bed_reply(bed, settle);
    assert_int_equal(bed->sending_count, settle + 3);
    bed_settle_all(bed);
    assert_int_equal(bed->calls[of_owner].outcome, OUTCOME_KIND_GRANTED);
    uint32_t round = bed->read_last.round;
    struct reads_point_reply point = {
        .ticket = bed->read_last.ticket, .status = STATUS_OK, .index = bed->index};
    reads_point(router_reads(bed->router), &point, bed->now_ns);
    bed_turn(bed);
    (void)reads_reached(router_reads(bed->router), round, STATUS_OK, 0, bed->now_ns);
    bed_turn(bed);
    assert_int_equal(bed->calls[of_key].replies, 0); /* it asks for a point of its own now */
    assert_int_equal(bed->reads_asked_peer, 2);
}

static void test_router__what_is_held_back_ends_at_its_deadline(void **state)
{
    struct bed *bed = *state;
    bed_open(bed);
    unknown_take(bed);
    uint32_t write = bed_take(bed, "other", "a", 300);
    uint32_t read = bed_owner(bed, "k", 300);
    bed_run(bed, 299);
    assert_int_equal(bed->calls[write].replies + bed->calls[read].replies, 0);
    bed_run(bed, 1);
    assert_int_equal(status_api_error(bed->calls[write].status), API_ERROR_UNAVAILABLE);
    assert_int_equal(status_api_error(bed->calls[read].status), API_ERROR_UNAVAILABLE);
}

static void test_router__a_stale_read_is_not_held_back(void **state)
{
    struct bed *bed = *state;
    bed_open(bed);
    unknown_take(bed);
    struct key_item key = {.key = slice_text("k")};
    struct proto_request asked = {
        .method = PROTO_METHOD_OWNER,
        .op = {.ns = slice_text(NAMESPACE_DEFAULT), .keys = &key, .key_count = 1},
        .stale = true,
    };
    uint32_t call = 0;
    assert_int_equal(bed_submit(bed, &asked, 100, &call), STATUS_OK);
    assert_int_equal(bed->calls[call].replies, 1);
    assert_int_equal(bed->calls[call].status, STATUS_OK);
}

static void test_router__a_grant_that_was_not_written_is_settled(void **state)
{
    struct bed *bed = *state;
    bed_open(bed);
    bed->keep_replies = true;
    uint32_t call = bed_take(bed, "k", "a", 5000);
    bed_settle_all(bed);
    assert_int_equal(bed->calls[call].outcome, OUTCOME_KIND_GRANTED);
    assert_int_equal(stats_of(bed).unconfirmed, 1);
    bed_deliver(bed, call, false);
    assert_int_equal(bed->sendings[1].kind, OP_KIND_SETTLE);
    uint32_t next = bed_take(bed, "l", "a", 5000);
    assert_int_equal(bed->sending_count, 2); /* its owner waits */
    bed_apply(bed, 1);
    assert_null(bed_holder(bed, "k").base);
    bed_reply(bed, 1);
    bed_settle_all(bed);
    bed_deliver(bed, next, true);
    assert_int_equal(stats_of(bed).unconfirmed, 0);
}

static void test_router__other_outcomes_that_were_not_written_are_confirmed(void **state)
{
    struct bed *bed = *state;
    bed_open(bed);
    bed_take(bed, "k", "a", 5000);
    bed_settle_all(bed);
    bed->keep_replies = true;
    uint32_t held = bed_claim(bed, "k", "b", 5000);
    uint32_t again = bed_take(bed, "k", "a", 5000); /* held before: nothing to take back */
    uint32_t renewed = bed_renew(bed, "k", "a", 5000);
    bed_settle_all(bed);
    assert_int_equal(bed->calls[held].outcome, OUTCOME_KIND_HELD);
    assert_true(bed->calls[again].held_before);
    assert_int_equal(bed->calls[renewed].outcome, OUTCOME_KIND_RENEWED);
    bed_deliver(bed, held, false);
    bed_deliver(bed, again, false);
    bed_deliver(bed, renewed, false);
    assert_int_equal(stats_of(bed).settles, 0);
    assert_true(router_idle(bed->router));
    assert_int_equal(stats_of(bed).unconfirmed, 0);
}

static void test_router__abandoned_before_it_was_sent_leaves_nothing(void **state)
{
    struct bed *bed = *state;
    bed_orphan(bed);
    uint32_t call = bed_take(bed, "k", "a", 5000);
    bed_abandon(bed, call);
    assert_true(router_idle(bed->router));
    bed_lead(bed, 1);
    bed_open(bed);
    bed_orphan(bed);
    call = bed_take(bed, "k", "a", 5000); /* numbered, unsent */
    bed_abandon(bed, call);
    assert_true(router_idle(bed->router));
    assert_int_equal(stats_of(bed).unconfirmed, 0);
}

static void test_router__abandoned_after_it_was_sent_is_settled(void **state)
{
    struct bed *bed = *state;
    bed_open(bed);
    uint32_t call = bed_take(bed, "k", "a", 5000);
    bed_abandon(bed, call);
    assert_int_equal(bed->sendings[1].kind, OP_KIND_SETTLE);
    bed_apply(bed, 0);
    bed_reply(bed, 0); /* nobody is there to hear it */
    bed_apply(bed, 1);
    bed_reply(bed, 1);
    assert_null(bed_holder(bed, "k").base);
    assert_true(router_idle(bed->router));
    assert_int_equal(bed->calls[call].replies, 0);
}

/* --- the window */

static void test_router__1024_are_under_way_and_the_next_waits(void **state)
{
    struct bed *bed = *state;
    bed_open(bed);
    bed->keep_replies = true;
    char key[16];
    uint32_t first = bed->call_count;
    for (unsigned i = 0; i < UNCONFIRMED_MAX + 3; i++) {
        (void)snprintf(key, sizeof key, "k%u", i);
        bed_take(bed, key, "a", 60000);
    }
    assert_int_equal(bed->sending_count, UNCONFIRMED_MAX);
    assert_int_equal(stats_of(bed).waiting, 3);
    assert_int_equal(stats_of(bed).unconfirmed, UNCONFIRMED_MAX);
    bed_settle_all(bed);
    assert_int_equal(bed->sending_count, UNCONFIRMED_MAX); /* answered, not confirmed */
    bed_deliver(bed, first + 1, true); /* out of order: the mark cannot move */
    assert_int_equal(bed->sending_count, UNCONFIRMED_MAX);
    bed_deliver(bed, first, true);
    assert_int_equal(bed->sending_count, UNCONFIRMED_MAX + 2);
    assert_int_equal(bed->sendings[UNCONFIRMED_MAX].confirmed,
                     bed->sendings[0].sequence + 1);
}

/* One reply is not read; what others ask is answered until the numbers that the state machine keeps
 * for it are used up. Returns the call that is not read. */
static uint32_t one_does_not_read(struct bed *bed, bool grant)
{
    if (!grant) {
        bed_take(bed, "deaf", "other", 5000);
        bed_settle_all(bed);
    }
    uint32_t before = bed->sending_count;
    bed->keep_replies = true;
    uint32_t deaf = bed_claim(bed, "deaf", "deaf", 5000);
    bed_settle_all(bed);
    assert_int_equal(bed->calls[deaf].outcome,
                     grant ? OUTCOME_KIND_GRANTED : OUTCOME_KIND_HELD);
    bed->keep_replies = false;
    char key[16];
    for (unsigned i = 0; i < UNCONFIRMED_MAX + 3; i++) {
        (void)snprintf(key, sizeof key, "k%u", i);
        bed_take(bed, key, "a", 60000);
        bed_settle_all(bed);
    }
    assert_int_equal(bed->sending_count, before + UNCONFIRMED_MAX);
    assert_int_equal(stats_of(bed).waiting, 4);
    assert_int_equal(stats_of(bed).unconfirmed, UNCONFIRMED_MAX);
    return deaf;
}

static void test_router__a_reply_that_is_given_up_lets_others_go_on_at_once(void **state)
{
    struct bed *bed = *state;
    bed_open(bed);
    uint32_t deaf = one_does_not_read(bed, false);
    uint64_t now_ns = bed->now_ns;
    uint32_t sent = bed->sending_count;
    bed_deliver(bed, deaf, false);
    assert_int_equal(stats_of(bed).settles, 0); /* a refusal: nothing to take back */
    assert_int_equal(bed->sending_count, sent + 4);
    assert_int_equal(bed->now_ns, now_ns);
    bed_settle_all(bed);
    assert_true(router_idle(bed->router));
}

static void test_router__a_grant_that_is_given_up_is_settled_before_others_go_on(void **state)
{
    struct bed *bed = *state;
    bed_open(bed);
    uint32_t deaf = one_does_not_read(bed, true);
    uint64_t now_ns = bed->now_ns;
    uint32_t sent = bed->sending_count;
    bed_deliver(bed, deaf, false);
    assert_int_equal(bed->sending_count, sent + 1);
    assert_int_equal(bed->sendings[sent].kind, OP_KIND_SETTLE);
    bed_apply(bed, sent);
    bed_reply(bed, sent);
    assert_int_equal(bed->sending_count, sent + 5);
    assert_int_equal(bed->now_ns, now_ns);
    assert_null(bed_holder(bed, "deaf").base);
    bed_settle_all(bed);
    assert_true(router_idle(bed->router));
    assert_int_equal(stats_of(bed).unconfirmed, 0);
}

static void test_router__outcomes_of_4_mib_are_under_way_and_no_more(void **state)
{
    struct bed *bed = *state;
    bed_open(bed);
    struct proto_request asked = {
        .method = PROTO_METHOD_RENEW_ALL,
        .op = {.kind = OP_KIND_RENEW_ALL,
               .ns = slice_text(NAMESPACE_DEFAULT),
               .owner = slice_text("a"),
               .ttl_ms = 1000},
    };
    size_t fits = UNCONFIRMED_LEN_MAX / result_len_max(&asked.op);
    uint32_t call = 0;
    for (size_t i = 0; i < fits + 2; i++) {
        assert_int_equal(bed_submit(bed, &asked, 60000, &call), STATUS_OK);
    }
    assert_int_equal(bed->sending_count, fits);
    bed_settle_all(bed);
    assert_int_equal(bed->sending_count, fits + 2);
    assert_int_equal(bed->calls[call].replies, 1);
}

/* A claim of as many keys as a request may have; its outcomes take most of an origin's bytes. */
static uint32_t claim_batch(struct bed *bed, struct key_item *keys, const char *owner,
                            uint64_t deadline_ms)
{
    static char names[KEYS_MAX][8];
    for (unsigned i = 0; i < KEYS_MAX; i++) {
        (void)snprintf(names[i], sizeof names[i], "b%04u", i);
        keys[i] = (struct key_item){.key = slice_text(names[i])};
    }
    struct proto_request asked = {
        .method = PROTO_METHOD_CLAIM,
        .op = {.kind = OP_KIND_CLAIM,
               .ns = slice_text(NAMESPACE_DEFAULT),
               .owner = slice_text(owner),
               .ttl_ms = 60000,
               .keys = keys,
               .key_count = KEYS_MAX},
    };
    uint32_t call = 0;
    assert_int_equal(bed_submit(bed, &asked, deadline_ms, &call), STATUS_OK);
    return call;
}

/* As many small ones as find room; the last one waits. Returns how many went. */
static uint32_t fill_with_small(struct bed *bed)
{
    char key[16];
    uint32_t went = 0;
    for (;;) {
        uint32_t sent = bed->sending_count;
        (void)snprintf(key, sizeof key, "s%u", bed->call_count);
        bed_take(bed, key, "small", 60000);
        if (bed->sending_count == sent) {
            return went;
        }
        went++;
    }
}

/* I7: two batches at once do not fit; what others ask goes on meanwhile, and the second batch goes
 * when the first one is done with, however much others ask. */
static void test_router__small_ones_pass_a_batch_that_waits(void **state)
{
    struct bed *bed = *state;
    bed_open(bed);
    struct key_item *keys = calloc(3 * KEYS_MAX, sizeof *keys);
    assert_non_null(keys);
    uint32_t batches[3];
    for (unsigned i = 0; i < 3; i++) {
        batches[i] = claim_batch(bed, &keys[i * KEYS_MAX], i == 0 ? "a" : "b", 60000);
    }
    assert_int_equal(bed->sending_count, ROUTER_PARTS_SENDING_MAX);
    assert_int_equal(stats_of(bed).waiting, 2);
    uint32_t small = bed_take(bed, "k", "small", 5000);
    assert_int_equal(bed->sending_count, ROUTER_PARTS_SENDING_MAX + 1);
    bed_apply(bed, ROUTER_PARTS_SENDING_MAX);
    bed_reply(bed, ROUTER_PARTS_SENDING_MAX);
    assert_int_equal(bed->calls[small].outcome, OUTCOME_KIND_GRANTED);

    assert_true(fill_with_small(bed) > 500);
    uint32_t waiting = bed->call_count - 1;
    /* The first batch is answered, of the small ones none. */
    for (uint32_t i = 0; bed->calls[batches[0]].replies == 0; i++) {
        if (bed->sendings[i].kind == OP_KIND_CLAIM) {
            bed_apply(bed, i);
            bed_reply(bed, i);
        }
    }
    uint32_t claims = 0;
    for (uint32_t i = 0; i < bed->sending_count; i++) {
        claims += bed->sendings[i].kind == OP_KIND_CLAIM && !bed->sendings[i].applied;
    }
    assert_int_equal(claims, ROUTER_PARTS_SENDING_MAX); /* the second one's */
    bed_settle_all(bed);
    assert_int_equal(bed->calls[batches[1]].outcome, OUTCOME_KIND_HELD);
    assert_int_equal(bed->calls[batches[2]].outcome, OUTCOME_KIND_HELD);
    assert_int_equal(bed->calls[waiting].outcome, OUTCOME_KIND_GRANTED);
    assert_true(router_idle(bed->router));
    assert_int_equal(stats_of(bed).unconfirmed, 0);
    free(keys);
}

/* A batch that gives up waiting, or is held back, takes its claim to room with it. */
static void test_router__a_batch_that_ends_makes_room_for_small_ones(void **state)
{
    struct bed *bed = *state;
    bed_open(bed);
    struct key_item *keys = calloc(2 * KEYS_MAX, sizeof *keys);
    assert_non_null(keys);
    claim_batch(bed, keys, "a", 60000);
    uint32_t second = claim_batch(bed, &keys[KEYS_MAX], "b", 500);
    (void)fill_with_small(bed);
    uint32_t sent = bed->sending_count;
    bed_run(bed, 500);
    assert_int_equal(status_api_error(bed->calls[second].status), API_ERROR_UNAVAILABLE);
    assert_true(bed->sending_count >= sent);
    bed_settle_all(bed);
    assert_true(router_idle(bed->router));
    /* Small ones and batches are numbered in the order of their arrival where both fit. */
    bed_orphan(bed);
    sent = bed->sending_count;
    bed_take(bed, "first", "c", 5000);
    claim_batch(bed, keys, "a", 5000);
    bed_take(bed, "last", "d", 5000);
    bed_lead(bed, 2);
    assert_int_equal(bed->sendings[sent].kind, OP_KIND_TAKE);
    assert_int_equal(bed->sendings[sent + 1].kind, OP_KIND_CLAIM);
    assert_int_equal(bed->sendings[sent + 1].sequence, bed->sendings[sent].sequence + 1);
    assert_int_equal(bed->sendings[sent + 1 + ROUTER_PARTS_SENDING_MAX].kind, OP_KIND_TAKE);
    bed_settle_all(bed);
    assert_true(router_idle(bed->router));
    free(keys);
}

static void test_router__16384_wait_and_the_next_is_refused(void **state)
{
    struct bed *bed = *state;
    bed_orphan(bed);
    uint32_t call = 0;
    struct key_item key = {.key = slice_text("k")};
    struct proto_request asked = {
        .method = PROTO_METHOD_TAKE,
        .op = {.kind = OP_KIND_TAKE,
               .ns = slice_text(NAMESPACE_DEFAULT),
               .owner = slice_text("a"),
               .ttl_ms = 1000,
               .keys = &key,
               .key_count = 1},
    };
    for (unsigned i = 0; i < ROUTER_WAITING_MAX; i++) {
        assert_int_equal(bed_submit(bed, &asked, 1000, &call), STATUS_OK);
    }
    assert_int_equal(bed_submit(bed, &asked, 1000, &call), STATUS_OVERLOADED);
    bed_run(bed, 1000);
    assert_int_equal(bed_submit(bed, &asked, 1000, &call), STATUS_OK);
}

/* --- a forgotten origin */

static void forget_origins(struct bed *bed)
{
    bed->clock_ms += ORIGIN_RETENTION_MS_DEFAULT + 1;
    struct entry entry = {.stamp_ms = bed->clock_ms};
    fsm_apply(bed->fsm, ++bed->index, &entry, NULL, NULL);
    fsm_apply(bed->fsm, ++bed->index, &entry, NULL, NULL);
}

static void test_router__sent_once_goes_again_under_a_new_origin(void **state)
{
    struct bed *bed = *state;
    bed_open(bed);
    forget_origins(bed);
    uint32_t calls[3];
    calls[0] = bed_take(bed, "k", "a", 5000);
    calls[1] = bed_take(bed, "l", "a", 5000);
    bed_apply(bed, 0);
    assert_int_equal(bed->sendings[0].result_status, STATUS_ORIGIN_UNKNOWN);
    bed_reply(bed, 0);
    assert_int_equal(bed->sendings[2].kind, OP_KIND_OPEN_ORIGIN);
    calls[2] = bed_take(bed, "m", "a", 5000);
    assert_int_equal(bed->sending_count, 3);
    bed_apply(bed, 2);
    bed_reply(bed, 2);
    assert_int_equal(bed->sending_count, 5); /* k again and m; l waits for its own answer */
    assert_int_not_equal(bed->sendings[3].origin, bed->sendings[0].origin);
    bed_settle_all(bed);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(bed->calls[calls[i]].replies, 1);
        assert_int_equal(bed->calls[calls[i]].outcome, OUTCOME_KIND_GRANTED);
    }
    assert_true(router_idle(bed->router));
    assert_int_equal(stats_of(bed).origins, 2);
    assert_int_equal(stats_of(bed).unconfirmed, 0);
}

static void test_router__sent_twice_to_a_forgotten_origin_is_unknown(void **state)
{
    struct bed *bed = *state;
    bed_open(bed);
    bed_follow(bed, 2, 1);
    uint32_t call = bed_take(bed, "k", "a", 5000);
    bed_apply(bed, 0); /* executed; its answer is lost */
    bed_follow(bed, 3, 2);
    forget_origins(bed);
    bed_apply(bed, 1);
    assert_int_equal(bed->sendings[1].result_status, STATUS_ORIGIN_UNKNOWN);
    bed_reply(bed, 1);
    assert_int_equal(bed->calls[call].status, STATUS_UNKNOWN);
    assert_int_equal(stats_of(bed).settling, 0);
    assert_true(router_idle(bed->router));
}

static void test_router__settles_of_a_forgotten_origin_are_done(void **state)
{
    struct bed *bed = *state;
    bed_open(bed);
    unknown_take(bed);
    forget_origins(bed);
    uint32_t other = bed_take(bed, "x", "z", 5000);
    uint32_t waiting = bed_take(bed, "y", "a", 5000);
    bed_apply(bed, 2);
    bed_reply(bed, 2);
    assert_int_equal(stats_of(bed).settling, 0);
    bed_settle_all(bed);
    assert_int_equal(bed->calls[other].outcome, OUTCOME_KIND_GRANTED);
    assert_int_equal(bed->calls[waiting].outcome, OUTCOME_KIND_GRANTED);
}

static void test_router__an_answer_before_the_origin_was_forgotten_still_counts(void **state)
{
    struct bed *bed = *state;
    bed_open(bed);
    uint32_t first = bed_take(bed, "k", "a", 5000);
    uint32_t second = bed_take(bed, "l", "a", 5000);
    bed_apply(bed, 0);
    forget_origins(bed);
    bed_apply(bed, 1);
    bed_reply(bed, 1);
    bed_reply(bed, 0);
    assert_int_equal(bed->calls[first].outcome, OUTCOME_KIND_GRANTED);
    bed_settle_all(bed);
    assert_int_equal(bed->calls[second].outcome, OUTCOME_KIND_GRANTED);
    assert_true(router_idle(bed->router));
}

/* --- hostile and strange answers */

static void test_router__strange_answers_change_nothing(void **state)
{
    struct bed *bed = *state;
    bed_open(bed);
    uint32_t call = bed_take(bed, "k", "a", 1000);
    struct router_ticket ticket = bed->sendings[0].ticket;
    struct router_ticket others[] = {
        {.id = ticket.id + 1, .attempt = 0},
        {.id = ticket.id ^ (1ull << 40), .attempt = 0},
        {.id = ticket.id, .attempt = 1},
        {.id = 0, .attempt = 0},
        {.id = UINT64_MAX, .attempt = UINT32_MAX},
    };
    bed_apply(bed, 0);
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        router_answered(bed->router, others[i], STATUS_OK, buf_slice(&bed->sendings[0].result),
                        bed->now_ns);
        router_answered(bed->router, others[i], STATUS_INVALID, (struct slice){0}, bed->now_ns);
    }
    bed_turn(bed);
    assert_int_equal(bed->calls[call].replies, 0);
    /* Bytes that are no result count as a lost answer: the number is sent again. */
    router_answered(bed->router, ticket, STATUS_OK, slice_text("nonsense"), bed->now_ns);
    bed_run(bed, 10);
    assert_int_equal(bed->sending_count, 2);
    assert_int_equal(bed->sendings[1].sequence, bed->sendings[0].sequence);
    bed_apply(bed, 1);
    bed_reply(bed, 1);
    assert_int_equal(bed->calls[call].outcome, OUTCOME_KIND_GRANTED);
    bed_reply(bed, 0);
    assert_int_equal(bed->calls[call].replies, 1);
}

static void test_router__refused_for_good_is_an_internal_error(void **state)
{
    struct bed *bed = *state;
    bed_open(bed);
    uint32_t call = bed_take(bed, "k", "a", 1000);
    bed_refuse(bed, 0, STATUS_MALFORMED);
    assert_int_equal(bed->calls[call].status, STATUS_INTERNAL);
    assert_true(router_idle(bed->router));
}

/* --- the end */

static void test_router__the_end_answers_everything_once(void **state)
{
    struct bed *bed = *state;
    bed_open(bed);
    uint32_t sent = bed_take(bed, "k", "a", 5000);
    uint32_t read = bed_owner(bed, "k", 5000);
    bed_orphan(bed);
    uint32_t unsent = bed_take(bed, "l", "b", 5000);
    router_close(bed->router);
    struct request *request = NULL;
    struct proto_request asked = {.method = PROTO_METHOD_COUNT};
    assert_int_equal(router_submit(bed->router, &asked, UINT64_MAX, NULL, &request),
                     STATUS_CLOSING);
    bed_turn(bed);
    assert_int_equal(bed->calls[sent].replies, 0);
    router_end(bed->router, bed->now_ns);
    bed_turn(bed);
    assert_int_equal(bed->calls[sent].status, STATUS_UNKNOWN);
    assert_int_equal(bed->calls[unsent].status, STATUS_CLOSING);
    assert_int_equal(bed->calls[read].status, STATUS_CLOSING);
    assert_true(router_idle(bed->router));
}

/* --- chance */

/* Each call has a key of its own, so that the state machine shows at the end what became of it:
 * granted, the lease is there; refused as not done, it never was; unknown and settled, it is
 * gone. */
static void soak_leaders(struct bed *bed, struct rng *rng)
{
    uint64_t dice = rng_below(rng, 1000);
    if (dice < 200) {
        bed_follow(bed, 2 + rng_below(rng, 3), bed->route.term + 1);
    } else if (dice < 300) {
        bed_lead(bed, bed->route.term + 1);
    } else if (dice < 350) {
        router_peer_down(bed->router, 2 + rng_below(rng, 3), bed->now_ns);
    }
}

/* A late copy of anything that was ever sent, or its late answer. */
static void soak_late(struct bed *bed, struct rng *rng)
{
    if (bed->sending_count == 0 || !rng_chance(rng, 300)) {
        return;
    }
    uint32_t late = (uint32_t)rng_below(rng, bed->sending_count);
    if (!bed->sendings[late].applied || bed->sendings[late].result.len == 0) {
        return;
    }
    if (rng_chance(rng, 500)) {
        router_answered(bed->router, bed->sendings[late].ticket, STATUS_OK,
                        buf_slice(&bed->sendings[late].result), bed->now_ns);
    } else {
        bed_apply(bed, late);
    }
}

static void soak_abandon(struct bed *bed, struct rng *rng)
{
    if (bed->call_count == 0 || !rng_chance(rng, 30)) {
        return;
    }
    uint32_t call = (uint32_t)rng_below(rng, bed->call_count);
    if (bed->calls[call].request != NULL && bed->calls[call].replies == 0) {
        bed_abandon(bed, call);
    }
}

static void soak_sending(struct bed *bed, struct rng *rng, uint32_t it)
{
    uint64_t fate = rng_below(rng, 10);
    if (fate < 6) {
        bed_apply(bed, it);
        bed_reply(bed, it);
    } else if (fate < 7) {
        bed_apply(bed, it); /* and its answer is lost */
    } else if (fate < 8) {
        bed_refuse(bed, it, STATUS_NOT_LEADER);
        bed->sendings[it].applied = true; /* it never will be: certainly not done */
        bed->sendings[it].result_status = STATUS_NOT_LEADER;
    } else if (fate < 9) {
        bed_refuse(bed, it, STATUS_LEADERSHIP_LOST); /* may yet be applied, late */
    }
}

static void soak(struct bed *bed, uint64_t seed)
{
    struct rng rng;
    rng_init(&rng, seed);
    uint32_t handled = 0;
    char key[16];
    char owner[16];
    for (unsigned step = 0; step < 6000; step++) {
        uint64_t dice = rng_below(&rng, 12);
        if (dice < 3) {
            (void)snprintf(key, sizeof key, "k%u", bed->call_count);
            (void)snprintf(owner, sizeof owner, "o%u", (unsigned)rng_below(&rng, 20));
            bed_take(bed, key, owner, 10 + rng_below(&rng, 2000));
        } else if (dice < 4) {
            soak_leaders(bed, &rng);
        } else if (dice < 5) {
            bed_run(bed, rng_below(&rng, 30));
        } else if (dice < 6) {
            soak_late(bed, &rng);
        } else if (dice < 7) {
            soak_abandon(bed, &rng);
        } else if (handled < bed->sending_count) {
            soak_sending(bed, &rng, handled++);
        }
    }
}

static void finish_soak(struct bed *bed)
{
    bed_lead(bed, bed->route.term + 1);
    for (unsigned i = 0; i < 400 && !router_idle(bed->router); i++) {
        for (uint32_t k = 0; k < bed->sending_count; k++) {
            if (!bed->sendings[k].applied) {
                bed_apply(bed, k);
                bed_reply(bed, k);
            } else if (bed->sendings[k].result.len > 0) {
                router_answered(bed->router, bed->sendings[k].ticket, STATUS_OK,
                                buf_slice(&bed->sendings[k].result), bed->now_ns);
            } else {
                /* A leader that stepped down completes what it had. */
                router_answered(bed->router, bed->sendings[k].ticket, STATUS_LEADERSHIP_LOST,
                                (struct slice){0}, bed->now_ns);
            }
        }
        bed_run(bed, 10);
    }
    assert_true(router_idle(bed->router));
    assert_int_equal(stats_of(bed).unconfirmed, 0);
    /* Every copy that was not refused arrives once more, long after. */
    for (uint32_t k = 0; k < bed->sending_count; k++) {
        if (bed->sendings[k].result.len > 0) {
            bed_apply(bed, k);
        }
    }
}

static void test_router__chance_finds_no_lie(void **state)
{
    (void)state;
    unsigned granted = 0;
    unsigned unknown = 0;
    unsigned unavailable = 0;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        struct bed *bed = calloc(1, sizeof *bed);
        assert_non_null(bed);
        bed_init(bed, seed);
        soak(bed, seed * 7919);
        finish_soak(bed);
        for (uint32_t i = 0; i < bed->call_count; i++) {
            struct bed_call *call = &bed->calls[i];
            char key[16];
            (void)snprintf(key, sizeof key, "k%u", i);
            bool there = bed_holder(bed, key).base != NULL;
            if (call->replies == 0) { /* abandoned */
                assert_false(there);
                continue;
            }
            assert_int_equal(call->replies, 1);
            assert_true(call->replied_ns <= call->deadline_ns);
            if (call->status == STATUS_OK) {
                assert_int_equal(call->outcome, OUTCOME_KIND_GRANTED);
                assert_true(there);
                granted++;
            } else {
                assert_false(there);
                bool maybe = status_api_error(call->status) == API_ERROR_UNKNOWN;
                unknown += maybe ? 1 : 0;
                unavailable += maybe ? 0 : 1;
            }
        }
        bed_deinit(bed);
        free(bed);
    }
    /* Each kind of end was seen, or the test proves nothing. */
    assert_true(granted > 5000 && unknown > 2000 && unavailable > 5000);
}

#define ROUTER_TEST(name) cmocka_unit_test_setup_teardown(test_router__##name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        ROUTER_TEST(nothing_is_sent_before_the_origin_is_known),
        ROUTER_TEST(a_refused_opening_is_tried_again_with_another_nonce),
        ROUTER_TEST(a_late_opening_makes_an_origin_that_nobody_uses),
        ROUTER_TEST(r1_a_retried_take_steals_nothing),
        ROUTER_TEST(r5_no_reply_before_the_answer),
        ROUTER_TEST(another_leader_gets_the_same_number_at_once),
        ROUTER_TEST(the_same_leader_in_a_new_term_gets_it_again),
        ROUTER_TEST(what_the_replica_here_has_waits_for_its_completion),
        ROUTER_TEST(an_unanswered_forward_is_sent_again),
        ROUTER_TEST(a_refused_sending_pauses_longer_each_time),
        ROUTER_TEST(deadline_without_a_leader_is_unavailable),
        ROUTER_TEST(deadline_after_refusals_only_is_unavailable),
        ROUTER_TEST(not_done_after_maybe_stays_maybe),
        ROUTER_TEST(a_late_refusal_of_every_copy_makes_it_not_done),
        ROUTER_TEST(a_forward_waits_here_and_not_on_its_way),
        ROUTER_TEST(nothing_is_sent_at_or_after_the_deadline),
        ROUTER_TEST(any_number_of_refusals_is_not_done),
        ROUTER_TEST(a_refusal_counts_for_the_63_that_came_after_it),
        ROUTER_TEST(what_is_open_for_longer_stays_unknown),
        ROUTER_TEST(what_still_waits_at_the_deadline_was_not_done),
        ROUTER_TEST(what_is_under_way_at_the_deadline_is_unknown),
        ROUTER_TEST(what_is_taken_back_leaves_earlier_sendings_open),
        ROUTER_TEST(what_was_answered_is_not_taken_back),
        ROUTER_TEST(a_caller_that_leaves_takes_back_what_waits),
        ROUTER_TEST(settles_are_never_taken_back),
        ROUTER_TEST(settled_before_it_was_applied_is_void),
        ROUTER_TEST(settled_after_it_was_applied_ends_the_lease),
        ROUTER_TEST(a_lease_that_was_held_before_is_kept_when_settled),
        ROUTER_TEST(a_settle_is_sent_until_it_is_answered),
        ROUTER_TEST(a_settle_that_was_not_kept_is_sent_again),
        ROUTER_TEST(a_number_that_was_not_kept_is_sent_again),
        ROUTER_TEST(while_settling_the_owner_and_the_key_wait),
        ROUTER_TEST(what_is_held_back_ends_at_its_deadline),
        ROUTER_TEST(a_stale_read_is_not_held_back),
        ROUTER_TEST(a_grant_that_was_not_written_is_settled),
        ROUTER_TEST(other_outcomes_that_were_not_written_are_confirmed),
        ROUTER_TEST(abandoned_before_it_was_sent_leaves_nothing),
        ROUTER_TEST(abandoned_after_it_was_sent_is_settled),
        ROUTER_TEST(1024_are_under_way_and_the_next_waits),
        ROUTER_TEST(a_reply_that_is_given_up_lets_others_go_on_at_once),
        ROUTER_TEST(a_grant_that_is_given_up_is_settled_before_others_go_on),
        ROUTER_TEST(outcomes_of_4_mib_are_under_way_and_no_more),
        ROUTER_TEST(small_ones_pass_a_batch_that_waits),
        ROUTER_TEST(a_batch_that_ends_makes_room_for_small_ones),
        ROUTER_TEST(16384_wait_and_the_next_is_refused),
        ROUTER_TEST(sent_once_goes_again_under_a_new_origin),
        ROUTER_TEST(sent_twice_to_a_forgotten_origin_is_unknown),
        ROUTER_TEST(settles_of_a_forgotten_origin_are_done),
        ROUTER_TEST(an_answer_before_the_origin_was_forgotten_still_counts),
        ROUTER_TEST(strange_answers_change_nothing),
        ROUTER_TEST(refused_for_good_is_an_internal_error),
        ROUTER_TEST(the_end_answers_everything_once),
        cmocka_unit_test(test_router__chance_finds_no_lie),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
