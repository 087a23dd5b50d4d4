/* Reads that wait: shared rounds, other leaders, lost frames, due leases, nodes without a table. */
#include "node/reads.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <cmocka.h>

#define S (1000u * NS_PER_MS)
#define MS NS_PER_MS
#define COUNT 8u

struct bed {
    struct reads reads;
    struct request requests[COUNT];
    struct proto_request asked;
    struct read_effect effect;
};

static void bed_init(struct bed *bed, enum route_kind kind, bool has_table)
{
    reads_init(&bed->reads, 7);
    bed->asked = (struct proto_request){.method = PROTO_METHOD_COUNT};
    for (unsigned i = 0; i < COUNT; i++) {
        request_init(&bed->requests[i]);
        assert_int_equal(request_begin(&bed->requests[i], &bed->asked, 100 * S), STATUS_OK);
    }
    struct route route = {.kind = kind, .peer_id = 2, .term = 1, .has_table = has_table};
    reads_set_route(&bed->reads, &route);
}

static void lead_elsewhere(struct bed *bed, uint64_t peer, uint64_t term)
{
    struct route route = {.kind = ROUTE_KIND_PEER,
                          .peer_id = peer,
                          .term = term,
                          .has_table = bed->reads.route.has_table};
    reads_set_route(&bed->reads, &route);
}

static bool next(struct bed *bed, uint64_t now_ns)
{
    struct read_effect effect;
    bool there = reads_next_effect(&bed->reads, now_ns, &effect);
    if (there) {
        bed->effect = effect;
    }
    return there;
}

/* The next effect is of this kind. */
#define ASSERT_NEXT(bed, now_ns, expected)                \
    do {                                                  \
        assert_true(next((bed), (now_ns)));               \
        assert_int_equal((bed)->effect.kind, (expected)); \
    } while (0)

static void point(struct bed *bed, enum status status, uint64_t index, uint64_t now_ns)
{
    struct reads_point_reply reply = {
        .ticket = bed->effect.ticket, .status = status, .index = index, .clock_ms = 50};
    reads_point(&bed->reads, &reply, now_ns);
}

static void test_reads__one_round_serves_all_that_were_there(void **state)
{
    (void)state;
    static struct bed bed;
    bed_init(&bed, ROUTE_KIND_SELF, true);
    for (unsigned i = 0; i < 3; i++) {
        reads_add(&bed.reads, &bed.requests[i]);
    }
    ASSERT_NEXT(&bed, S, READ_EFFECT_KIND_ASK_HERE);
    uint32_t round = bed.effect.round;
    assert_false(next(&bed, S));
    reads_add(&bed.reads, &bed.requests[3]); /* later: a round of its own */
    ASSERT_NEXT(&bed, S, READ_EFFECT_KIND_ASK_HERE);
    assert_int_not_equal(bed.effect.round, round);
    assert_int_equal(reads_reached(&bed.reads, round, STATUS_OK, 77, S), 1);
    for (unsigned i = 0; i < 3; i++) {
        ASSERT_NEXT(&bed, S, READ_EFFECT_KIND_ANSWER);
        assert_ptr_equal(bed.effect.request, &bed.requests[i]);
        assert_int_equal(bed.requests[i].read_clock_ms, 77);
        assert_false(bed.effect.final);
    }
    assert_false(next(&bed, S));
}

/* While the table rests, rounds and failures go on; nothing is lost and the order stays. */
static void test_reads__resting_keeps_answers_and_nothing_else(void **state)
{
    (void)state;
    static struct bed bed;
    bed_init(&bed, ROUTE_KIND_SELF, true);
    reads_add(&bed.reads, &bed.requests[0]);
    reads_add(&bed.reads, &bed.requests[1]);
    ASSERT_NEXT(&bed, S, READ_EFFECT_KIND_ASK_HERE);
    (void)reads_reached(&bed.reads, bed.effect.round, STATUS_OK, 77, S);
    assert_false(reads_kept_waiting(&bed.reads)); /* they wait for nothing */
    reads_rest(&bed.reads, true);
    assert_true(reads_kept_waiting(&bed.reads));
    assert_int_equal(bed.requests[0].last_status, STATUS_OVERLOADED);
    reads_add(&bed.reads, &bed.requests[2]);
    ASSERT_NEXT(&bed, S, READ_EFFECT_KIND_ASK_HERE);
    uint32_t round = bed.effect.round;
    assert_false(next(&bed, S));
    reads_rest(&bed.reads, false);
    ASSERT_NEXT(&bed, S, READ_EFFECT_KIND_ANSWER);
    assert_ptr_equal(bed.effect.request, &bed.requests[0]);
    reads_due(&bed.reads, &bed.requests[0], S);
    assert_int_equal(bed.requests[0].last_status, STATUS_OK);
    ASSERT_NEXT(&bed, S, READ_EFFECT_KIND_ANSWER);
    assert_ptr_equal(bed.effect.request, &bed.requests[1]);
    reads_rest(&bed.reads, true);
    assert_false(reads_kept_waiting(&bed.reads)); /* one is due, one asks for its point */
    (void)reads_reached(&bed.reads, round, STATUS_OK, 78, S);
    assert_true(reads_kept_waiting(&bed.reads));
    reads_remove(&bed.reads, &bed.requests[2]);
    assert_false(reads_kept_waiting(&bed.reads));
}

static void test_reads__a_follower_asks_its_leader_for_one_point_at_a_time(void **state)
{
    (void)state;
    static struct bed bed;
    bed_init(&bed, ROUTE_KIND_PEER, true);
    reads_add(&bed.reads, &bed.requests[0]);
    ASSERT_NEXT(&bed, S, READ_EFFECT_KIND_ASK_PEER);
    assert_true(bed.effect.peer_id == 2 && bed.effect.term == 1);
    reads_add(&bed.reads, &bed.requests[1]);
    assert_false(next(&bed, S));
    point(&bed, STATUS_OK, 99, S);
    ASSERT_NEXT(&bed, S, READ_EFFECT_KIND_WAIT);
    assert_int_equal(bed.effect.index, 99);
    uint32_t round = bed.effect.round;
    ASSERT_NEXT(&bed, S, READ_EFFECT_KIND_ASK_PEER); /* the second one's */
    assert_int_equal(reads_reached(&bed.reads, round, STATUS_OK, 0, S), 1);
    ASSERT_NEXT(&bed, S, READ_EFFECT_KIND_ANSWER);
    assert_ptr_equal(bed.effect.request, &bed.requests[0]);
    assert_int_equal(bed.requests[0].read_clock_ms, 50); /* the leader's, not ours */
}

static void test_reads__another_leader_is_asked_at_once(void **state)
{
    (void)state;
    static struct bed bed;
    bed_init(&bed, ROUTE_KIND_PEER, true);
    reads_add(&bed.reads, &bed.requests[0]);
    ASSERT_NEXT(&bed, S, READ_EFFECT_KIND_ASK_PEER);
    struct read_effect old = bed.effect;
    lead_elsewhere(&bed, 3, 2);
    ASSERT_NEXT(&bed, S, READ_EFFECT_KIND_ASK_PEER);
    assert_true(bed.effect.peer_id == 3 && bed.effect.term == 2);
    uint64_t ticket = bed.effect.ticket;
    bed.effect.ticket = old.ticket;
    point(&bed, STATUS_OK, 1, S); /* the old leader's point is worth nothing */
    assert_false(next(&bed, S));
    bed.effect.ticket = ticket;
    point(&bed, STATUS_OK, 2, S);
    ASSERT_NEXT(&bed, S, READ_EFFECT_KIND_WAIT);
}

static void test_reads__refused_and_lost_points_are_asked_for_again(void **state)
{
    (void)state;
    static struct bed bed;
    bed_init(&bed, ROUTE_KIND_PEER, true);
    reads_add(&bed.reads, &bed.requests[0]);
    ASSERT_NEXT(&bed, S, READ_EFFECT_KIND_ASK_PEER);
    point(&bed, STATUS_NOT_SERVING, 0, S);
    assert_int_equal(bed.requests[0].last_status, STATUS_NOT_SERVING);
    assert_false(next(&bed, S));
    uint64_t again_ns = reads_next_timer_ns(&bed.reads);
    assert_in_range(again_ns, S + MS, S + 100 * MS);
    assert_false(next(&bed, again_ns - 1));
    ASSERT_NEXT(&bed, again_ns, READ_EFFECT_KIND_ASK_PEER);
    assert_int_equal(reads_next_timer_ns(&bed.reads), again_ns + READS_ASK_AGAIN_NS);
    reads_tick(&bed.reads, again_ns + READS_ASK_AGAIN_NS - 1);
    assert_false(next(&bed, again_ns + READS_ASK_AGAIN_NS - 1));
    reads_tick(&bed.reads, again_ns + READS_ASK_AGAIN_NS);
    ASSERT_NEXT(&bed, again_ns + READS_ASK_AGAIN_NS, READ_EFFECT_KIND_ASK_PEER);
    reads_peer_down(&bed.reads, 2);
    ASSERT_NEXT(&bed, 3 * S, READ_EFFECT_KIND_ASK_PEER);
}

static void test_reads__nobody_waits_any_more(void **state)
{
    (void)state;
    static struct bed bed;
    bed_init(&bed, ROUTE_KIND_SELF, true);
    reads_add(&bed.reads, &bed.requests[0]);
    ASSERT_NEXT(&bed, S, READ_EFFECT_KIND_ASK_HERE);
    reads_remove(&bed.reads, &bed.requests[0]);
    ASSERT_NEXT(&bed, S, READ_EFFECT_KIND_CANCEL);
    assert_false(next(&bed, S));
    reads_add(&bed.reads, &bed.requests[1]); /* still wanting */
    reads_remove(&bed.reads, &bed.requests[1]);
    assert_false(next(&bed, S));
}

/* A round whose readers left, and which completes before it was cancelled. */
static void test_reads__a_completion_that_nobody_wants_is_dropped(void **state)
{
    (void)state;
    static struct bed bed;
    bed_init(&bed, ROUTE_KIND_SELF, true);
    reads_add(&bed.reads, &bed.requests[0]);
    ASSERT_NEXT(&bed, S, READ_EFFECT_KIND_ASK_HERE);
    uint32_t round = bed.effect.round;
    reads_remove(&bed.reads, &bed.requests[0]);
    assert_int_equal(reads_reached(&bed.reads, round, STATUS_OK, 5, S), 0);
    assert_false(next(&bed, S));
}

static void test_reads__sixteen_rounds_and_no_more(void **state)
{
    (void)state;
    static struct bed bed;
    static struct request many[READS_ROUNDS_MAX + 1];
    bed_init(&bed, ROUTE_KIND_SELF, true);
    for (unsigned i = 0; i <= READS_ROUNDS_MAX; i++) {
        request_init(&many[i]);
        assert_int_equal(request_begin(&many[i], &bed.asked, 100 * S), STATUS_OK);
        reads_add(&bed.reads, &many[i]);
        assert_int_equal(next(&bed, S), i < READS_ROUNDS_MAX);
    }
    assert_int_equal(reads_next_timer_ns(&bed.reads), UINT64_MAX);
    assert_int_equal(reads_reached(&bed.reads, 3, STATUS_OK, 5, S), 1);
    ASSERT_NEXT(&bed, S, READ_EFFECT_KIND_ANSWER);
    ASSERT_NEXT(&bed, S, READ_EFFECT_KIND_ASK_HERE);
    assert_int_equal(bed.effect.round, 3);
}

static void test_reads__a_due_lease_is_waited_for_500_ms(void **state)
{
    (void)state;
    static struct bed bed;
    bed_init(&bed, ROUTE_KIND_SELF, true);
    reads_add(&bed.reads, &bed.requests[0]);
    ASSERT_NEXT(&bed, S, READ_EFFECT_KIND_ASK_HERE);
    (void)reads_reached(&bed.reads, bed.effect.round, STATUS_OK, 5, S);
    ASSERT_NEXT(&bed, S, READ_EFFECT_KIND_ANSWER);
    reads_due(&bed.reads, bed.effect.request, S);
    assert_false(next(&bed, S));
    assert_int_equal(reads_next_timer_ns(&bed.reads), S + READS_DUE_NS);
    reads_applied(&bed.reads); /* something happened: look again */
    ASSERT_NEXT(&bed, S + 100 * MS, READ_EFFECT_KIND_ANSWER);
    assert_false(bed.effect.final);
    reads_due(&bed.reads, bed.effect.request, S + 100 * MS);
    assert_int_equal(reads_next_timer_ns(&bed.reads), S + READS_DUE_NS); /* not from anew */
    reads_tick(&bed.reads, S + READS_DUE_NS - 1);
    assert_false(next(&bed, S + READS_DUE_NS - 1));
    reads_tick(&bed.reads, S + READS_DUE_NS);
    ASSERT_NEXT(&bed, S + READS_DUE_NS, READ_EFFECT_KIND_ANSWER);
    assert_true(bed.effect.final);
}

static void test_reads__a_node_without_a_table_asks_for_each_read(void **state)
{
    (void)state;
    static struct bed bed;
    bed_init(&bed, ROUTE_KIND_PEER, false);
    reads_add(&bed.reads, &bed.requests[0]);
    bed.asked.stale = true;
    reads_add(&bed.reads, &bed.requests[1]); /* stale: there is no table here either */
    ASSERT_NEXT(&bed, S, READ_EFFECT_KIND_QUERY);
    uint64_t first = bed.effect.ticket;
    ASSERT_NEXT(&bed, S, READ_EFFECT_KIND_QUERY);
    uint64_t second = bed.effect.ticket;
    assert_false(next(&bed, S));
    assert_null(reads_query_answered(&bed.reads, second + 9, STATUS_OK, S));
    assert_ptr_equal(reads_query_answered(&bed.reads, second, STATUS_OK, S), &bed.requests[1]);
    assert_null(reads_query_answered(&bed.reads, second, STATUS_OK, S)); /* a copy */
    assert_null(reads_query_answered(&bed.reads, first, STATUS_WRONG_TERM, S));
    ASSERT_NEXT(&bed, 2 * S, READ_EFFECT_KIND_QUERY); /* the first one again */
    assert_ptr_equal(bed.effect.request, &bed.requests[0]);
    lead_elsewhere(&bed, 4, 9);
    ASSERT_NEXT(&bed, 2 * S, READ_EFFECT_KIND_QUERY);
    assert_int_equal(bed.effect.peer_id, 4);
    assert_ptr_equal(
        reads_query_answered(&bed.reads, bed.effect.ticket, STATUS_INVALID, 2 * S),
        &bed.requests[0]); /* an error for good goes to the caller */
}

static void test_reads__a_peers_read_is_answered_here_or_refused(void **state)
{
    (void)state;
    static struct bed bed;
    bed_init(&bed, ROUTE_KIND_PEER, true);
    bed.requests[0].no_hop = true;
    reads_add(&bed.reads, &bed.requests[0]);
    ASSERT_NEXT(&bed, S, READ_EFFECT_KIND_FAIL);
    assert_int_equal(bed.requests[0].last_status, STATUS_NOT_LEADER);

    struct route route = {.kind = ROUTE_KIND_SELF, .term = 2, .has_table = true};
    reads_set_route(&bed.reads, &route);
    bed.requests[1].no_hop = true;
    bed.requests[2].no_hop = true;
    reads_add(&bed.reads, &bed.requests[1]);
    ASSERT_NEXT(&bed, S, READ_EFFECT_KIND_ASK_HERE);
    uint32_t round = bed.effect.round;
    reads_add(&bed.reads, &bed.requests[2]);
    lead_elsewhere(&bed, 2, 3); /* before the second one got its round */
    ASSERT_NEXT(&bed, S, READ_EFFECT_KIND_FAIL);
    assert_ptr_equal(bed.effect.request, &bed.requests[2]);
    (void)reads_reached(&bed.reads, round, STATUS_NOT_LEADER, 0, S);
    ASSERT_NEXT(&bed, S, READ_EFFECT_KIND_FAIL);
    assert_ptr_equal(bed.effect.request, &bed.requests[1]);
    assert_false(next(&bed, 9 * S));
}

static void test_reads__a_probe_is_a_round_without_readers(void **state)
{
    (void)state;
    static struct bed bed;
    bed_init(&bed, ROUTE_KIND_PEER, true);
    reads_want_probe(&bed.reads);
    ASSERT_NEXT(&bed, S, READ_EFFECT_KIND_ASK_PEER);
    reads_want_probe(&bed.reads); /* one is under way */
    assert_false(next(&bed, S));
    point(&bed, STATUS_OK, 4, S);
    ASSERT_NEXT(&bed, S, READ_EFFECT_KIND_WAIT);
    assert_int_equal(reads_reached(&bed.reads, bed.effect.round, STATUS_OK, 0, S), 1);
    assert_false(next(&bed, S));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads__one_round_serves_all_that_were_there),
        cmocka_unit_test(test_reads__resting_keeps_answers_and_nothing_else),
        cmocka_unit_test(test_reads__a_follower_asks_its_leader_for_one_point_at_a_time),
        cmocka_unit_test(test_reads__another_leader_is_asked_at_once),
        cmocka_unit_test(test_reads__refused_and_lost_points_are_asked_for_again),
        cmocka_unit_test(test_reads__nobody_waits_any_more),
        cmocka_unit_test(test_reads__a_completion_that_nobody_wants_is_dropped),
        cmocka_unit_test(test_reads__sixteen_rounds_and_no_more),
        cmocka_unit_test(test_reads__a_due_lease_is_waited_for_500_ms),
        cmocka_unit_test(test_reads__a_node_without_a_table_asks_for_each_read),
        cmocka_unit_test(test_reads__a_peers_read_is_answered_here_or_refused),
        cmocka_unit_test(test_reads__a_probe_is_a_round_without_readers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
