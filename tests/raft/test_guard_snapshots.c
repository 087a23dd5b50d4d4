/* What the guard does for snapshots: libraft defects L3, L4 and L5, and reads that fail. Each cure
 * is shown with it and without; where the defect crashes, in a child process. */
#include "raft/guard.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <string.h>

#include "fsm/base/units.h"
#include "tests/raft/one_node.h"

#define COUNT_OF(array) ((unsigned)(sizeof(array) / sizeof((array)[0])))

/* A follower with entries 2..6 of term 1, committed. */
static struct one_node *follower_new(unsigned cures, unsigned snapshot_threshold)
{
    struct one_node *node = one_node_create(2, cures);
    node->snapshot_threshold = snapshot_threshold;
    one_node_boot(node, 3, 0);
    const struct one_node_entry entries[] = {
        {.term = 1, .value = 2}, {.term = 1, .value = 3}, {.term = 1, .value = 4},
        {.term = 1, .value = 5}, {.term = 1, .value = 6},
    };
    const struct one_node_append append = {.from = 1,
                                           .term = 1,
                                           .prev_index = 1,
                                           .prev_term = 1,
                                           .commit = 6,
                                           .entries = entries,
                                           .count = COUNT_OF(entries)};
    CHECK(one_node_append(node, &append));
    one_node_run_ms(node, 3);
    return node;
}

/* --- L3 ------------------------------------------------------------------------------------ */

struct install_case {
    unsigned cures;
    bool seen; /* by libraft */
};

/* The leader's snapshot arrives while the follower writes one of its own. */
static void install_while_taking(void *arg)
{
    const struct install_case *test = arg;
    struct one_node *node = follower_new(test->cures, 4);
    CHECK(node->raft.legacy.snapshot_taking);
    CHECK(one_node_install(node, 1, 1, 20) == test->seen);
    one_node_run_ms(node, 100);
    CHECK(!node->raft.legacy.snapshot_taking && fake_disk_snapshot_index(node->disk) == 6);
    CHECK(guard_stats(node->guard)->snapshots_refused == 1);
    /* The leader sends it again, and now it is welcome. */
    CHECK(one_node_install(node, 1, 1, 20));
    one_node_run_ms(node, 100);
    CHECK(fake_disk_snapshot_index(node->disk) == 20 && node->state.applied == 20);
    one_node_destroy(node);
}

static void test_guard__snapshot_that_comes_while_one_is_taken_L3(void **state)
{
    (void)state;
    struct install_case with = {.cures = GUARD_CURES_ALL, .seen = false};
    struct install_case without = {.cures = GUARD_CURES_ALL & ~GUARD_CURE_L3, .seen = true};
    assert_true(one_node_survives(install_while_taking, &with));
    assert_false(one_node_survives(install_while_taking, &without));
}

/* --- L4, receiving ------------------------------------------------------------------------- */

/* Ten copies of one snapshot, nine of them while the first is being written. Returns what libraft
 * still has when everything is closed. */
static void install_ten_times(void *arg)
{
    const struct install_case *test = arg;
    one_node_heap_count();
    struct one_node *node = follower_new(test->cures, 1u << 30);
    for (unsigned copy = 0; copy < 10; copy++) {
        (void)one_node_install(node, 1, 1, 20);
    }
    one_node_run_ms(node, 100);
    CHECK(fake_disk_snapshot_index(node->disk) == 20 && node->state.applied == 20);
    CHECK(guard_stats(node->guard)->snapshots_refused == (test->seen ? 0 : 9));
    one_node_destroy(node);
    CHECK(one_node_heap_balance() == 0);
}

static void test_guard__copies_of_a_snapshot_are_freed_L4(void **state)
{
    (void)state;
    struct install_case with = {.cures = GUARD_CURES_ALL, .seen = false};
    struct install_case without = {.cures = GUARD_CURES_ALL & ~GUARD_CURE_L4, .seen = true};
    assert_true(one_node_survives(install_ten_times, &with));
    assert_false(one_node_survives(install_ten_times, &without));
}

/* --- L4 and L5, sending -------------------------------------------------------------------- */

/* A leader of term >= 2 whose log begins behind entry 10, so that node 3 needs a snapshot. */
static struct one_node *leader_new(unsigned cures)
{
    struct one_node *node = one_node_create(1, cures);
    node->snapshot_threshold = 8;
    node->snapshot_trailing = 1;
    one_node_boot(node, 3, 0);
    one_node_elect(node, 2);
    for (uint64_t value = 0; value < 12; value++) {
        CHECK(one_node_propose(node, value) == 0);
        one_node_run_ms(node, 3);
        (void)one_node_ack(node, 2, 0, raft_last_index(&node->raft));
    }
    for (unsigned beat = 0; beat < 5; beat++) {
        one_node_run_ms(node, 20);
        (void)one_node_ack(node, 2, 0, raft_last_index(&node->raft));
    }
    CHECK(raft_state(&node->raft) == RAFT_LEADER);
    CHECK(fake_disk_snapshot_index(node->disk) > 0);
    CHECK(fake_disk_first_index(node->disk) > 2);
    return node;
}

/* Node 3 rejects what it was sent last, since it has nothing; node 2 keeps the leader in office. */
static void lag(struct one_node *node)
{
    for (unsigned idx = node->sent_count; idx > 0; idx--) {
        const struct raft_message *message = &node->sent[idx - 1];
        if (message->type == RAFT_APPEND_ENTRIES && message->server_id == 3) {
            (void)one_node_ack(node, 3, message->append_entries.prev_log_index, 0);
            break;
        }
    }
    (void)one_node_ack(node, 2, 0, raft_last_index(&node->raft));
}

/* Half a second in which node 3 lags all the time; how many snapshots are sent to it. */
static unsigned snapshots_in_a_storm(unsigned cures, bool done_at_once, unsigned *out_reads)
{
    struct one_node *node = leader_new(cures);
    unsigned since = node->sent_count;
    unsigned reads = fake_disk_snapshot_reads(node->disk);
    for (unsigned step = 0; step < 50; step++) {
        lag(node);
        one_node_run_ms(node, 10);
        if (done_at_once) {
            guard_snapshot_done(node->guard, 3);
        }
    }
    unsigned count = one_node_count_sent(node, since, RAFT_INSTALL_SNAPSHOT, NULL);
    *out_reads = fake_disk_snapshot_reads(node->disk) - reads;
    one_node_destroy(node);
    return count;
}

static void test_guard__snapshot_is_sent_once_at_a_time_L4(void **state)
{
    (void)state;
    unsigned reads;
    assert_int_equal(snapshots_in_a_storm(GUARD_CURES_ALL, false, &reads), 1);
    assert_true(reads <= 2);
    /* Sent, and still within the pause. */
    assert_int_equal(snapshots_in_a_storm(GUARD_CURES_ALL, true, &reads), 1);
    assert_true(reads <= 2);
    assert_true(snapshots_in_a_storm(GUARD_CURES_ALL & ~GUARD_CURE_L4, false, &reads) > 5);
}

static void test_guard__snapshot_is_sent_again_after_the_pause_L4(void **state)
{
    (void)state;
    struct one_node *node = leader_new(GUARD_CURES_ALL);
    struct raft_message first;
    unsigned since = node->sent_count;
    for (unsigned step = 0; step < 10; step++) {
        lag(node);
        one_node_run_ms(node, 10);
    }
    assert_int_equal(one_node_count_sent(node, since, RAFT_INSTALL_SNAPSHOT, &first), 1);
    assert_int_equal(first.server_id, 3);
    guard_snapshot_done(node->guard, 3);
    since = node->sent_count;
    for (unsigned step = 0; step < (2 * GUARD_SNAPSHOT_PAUSE_MS + 500) / 10; step++) {
        lag(node);
        one_node_run_ms(node, 10);
    }
    assert_int_equal(one_node_count_sent(node, since, RAFT_INSTALL_SNAPSHOT, NULL), 1);
    /* Its sending is not over, however long that takes. */
    since = node->sent_count;
    for (unsigned step = 0; step < 500; step++) {
        lag(node);
        one_node_run_ms(node, 10);
    }
    assert_int_equal(one_node_count_sent(node, since, RAFT_INSTALL_SNAPSHOT, NULL), 0);
    one_node_destroy(node);
}

/* While the snapshot is read for node 3 another one, of a later term, takes its place. */
static raft_term term_of_newer_snapshot(unsigned cures, uint64_t *out_corrected)
{
    struct one_node *node = leader_new(cures);
    const struct fake_disk_timing slow = {.append_ns_min = NS_PER_MS,
                                          .append_ns_max = NS_PER_MS,
                                          .snapshot_ns_min = 30 * NS_PER_MS,
                                          .snapshot_ns_max = 30 * NS_PER_MS};
    fake_disk_set_timing(node->disk, &slow);
    unsigned since = node->sent_count;
    for (unsigned step = 0; step < 40 && !fake_disk_is_reading_snapshot(node->disk); step++) {
        lag(node);
        one_node_run_ms(node, 5);
    }
    CHECK(fake_disk_is_reading_snapshot(node->disk));
    struct sum_state content = {0};
    struct raft_buffer buf = {.base = &content, .len = sizeof(content)};
    const struct raft_snapshot newer = {
        .index = fake_disk_snapshot_index(node->disk) + 5,
        .term = 9,
        .configuration = node->raft.configuration,
        .configuration_index = 1,
        .bufs = &buf,
        .n_bufs = 1,
    };
    fake_disk_set_snapshot(node->disk, &newer);
    for (unsigned step = 0; step < 60; step++) {
        lag(node);
        one_node_run_ms(node, 5);
    }
    struct raft_message last;
    CHECK(one_node_count_sent(node, since, RAFT_INSTALL_SNAPSHOT, &last) > 0);
    CHECK(last.install_snapshot.last_index == newer.index);
    *out_corrected = guard_stats(node->guard)->terms_corrected;
    one_node_destroy(node);
    return last.install_snapshot.last_term;
}

static void newer_snapshot_has_the_old_term(void *arg)
{
    uint64_t corrected;
    (void)arg;
    CHECK(term_of_newer_snapshot(GUARD_CURES_ALL & ~GUARD_CURE_L5, &corrected) != 9);
    CHECK(corrected == 0);
}

static void test_guard__newer_snapshot_is_sent_with_its_own_term_L5(void **state)
{
    (void)state;
    uint64_t corrected;
    assert_int_equal(term_of_newer_snapshot(GUARD_CURES_ALL, &corrected), 9);
    assert_true(corrected > 0);
    assert_true(one_node_shows(newer_snapshot_has_the_old_term, NULL));
}

/* Two configurations are committed by one message, and a snapshot is due. Whose configuration has
 * it? */
static raft_index configuration_of_snapshot(unsigned cures)
{
    struct one_node *node = one_node_create(2, cures);
    node->snapshot_threshold = 3;
    one_node_boot(node, 3, 0);
    const struct one_node_entry entries[] = {
        {.term = 1, .voters = 2}, {.term = 1, .voters = 3}, {.term = 1, .value = 4}};
    struct one_node_append append = {.from = 1,
                                     .term = 1,
                                     .prev_index = 1,
                                     .prev_term = 1,
                                     .commit = 1,
                                     .entries = entries,
                                     .count = COUNT_OF(entries)};
    CHECK(one_node_append(node, &append));
    one_node_run_ms(node, 20);
    append.prev_index = 4;
    append.prev_term = 1;
    append.commit = 4;
    append.count = 0;
    CHECK(one_node_append(node, &append));
    one_node_run_ms(node, 100);
    CHECK(fake_disk_snapshot_index(node->disk) == 4);
    CHECK(guard_stats(node->guard)->snapshots_delayed ==
          ((cures & GUARD_CURE_BETWEEN) != 0 ? 1 : 0));
    raft_index index = fake_disk_snapshot_configuration_index(node->disk);
    one_node_destroy(node);
    return index;
}

static void snapshot_has_an_older_configuration(void *arg)
{
    (void)arg;
    CHECK(configuration_of_snapshot(GUARD_CURES_ALL & ~GUARD_CURE_BETWEEN) == 1);
}

static void test_guard__snapshot_has_the_configuration_of_its_index(void **state)
{
    (void)state;
    assert_int_equal(configuration_of_snapshot(GUARD_CURES_ALL), 3);
    assert_true(one_node_shows(snapshot_has_an_older_configuration, NULL));
}

/* A read that fails: libraft would free memory that it never set. */
static void fail_to_read(void *arg)
{
    (void)arg;
    struct one_node *node = leader_new(GUARD_CURES_ALL);
    unsigned since = node->sent_count;
    fake_disk_fail_next(node->disk, FAKE_DISK_CALL_SNAPSHOT_GET_DONE, RAFT_IOERR);
    for (unsigned step = 0; step < 50; step++) {
        lag(node);
        one_node_run_ms(node, 10);
    }
    CHECK(guard_stats(node->guard)->snapshots_unread >= 1);
    CHECK(one_node_count_sent(node, since, RAFT_INSTALL_SNAPSHOT, NULL) == 0);
    CHECK(node->fatal_count == 0);
    for (unsigned step = 0; step < 200; step++) {
        lag(node);
        one_node_run_ms(node, 10);
    }
    CHECK(one_node_count_sent(node, since, RAFT_INSTALL_SNAPSHOT, NULL) == 1);
    one_node_destroy(node);
}

static void test_guard__unreadable_snapshot_is_tried_again_L5(void **state)
{
    (void)state;
    assert_true(one_node_survives(fail_to_read, NULL));
}

/* Closing while snapshots are wanted and one is being read: nothing is lost, nothing is sent. */
static void close_while_reading(void *arg)
{
    (void)arg;
    one_node_heap_count();
    for (unsigned steps = 1; steps < 12; steps++) {
        struct one_node *node = leader_new(GUARD_CURES_ALL);
        for (unsigned step = 0; step < steps; step++) {
            lag(node);
            one_node_run_ms(node, 3);
        }
        one_node_destroy(node);
        CHECK(one_node_heap_balance() == 0);
    }
}

static void test_guard__close_while_a_snapshot_is_read(void **state)
{
    (void)state;
    assert_true(one_node_survives(close_while_reading, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_guard__snapshot_that_comes_while_one_is_taken_L3),
        cmocka_unit_test(test_guard__copies_of_a_snapshot_are_freed_L4),
        cmocka_unit_test(test_guard__snapshot_is_sent_once_at_a_time_L4),
        cmocka_unit_test(test_guard__snapshot_is_sent_again_after_the_pause_L4),
        cmocka_unit_test(test_guard__newer_snapshot_is_sent_with_its_own_term_L5),
        cmocka_unit_test(test_guard__snapshot_has_the_configuration_of_its_index),
        cmocka_unit_test(test_guard__unreadable_snapshot_is_tried_again_L5),
        cmocka_unit_test(test_guard__close_while_a_snapshot_is_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
