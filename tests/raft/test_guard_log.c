/* What the guard does for the log: libraft defects L1, L2 and L9, and what counts as durable. Each
 * cure is shown twice, once with it and once without, where the defect must still be there. */
#include "raft/guard.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdlib.h>

#include "tests/raft/one_node.h"

#define COUNT_OF(array) ((unsigned)(sizeof(array) / sizeof((array)[0])))

static struct one_node *follower_with(unsigned cures)
{
    struct one_node *node = one_node_create(2, cures);
    one_node_boot(node, 3, 0);
    return node;
}

/* Entries 2..6 from the leader 1 of term 1 (1 is the configuration of birth), committed. */
static void fill(struct one_node *node, raft_index commit)
{
    const struct one_node_entry entries[] = {
        {.term = 1, .value = 2}, {.term = 1, .value = 3}, {.term = 1, .value = 4},
        {.term = 1, .value = 5}, {.term = 1, .value = 6},
    };
    const struct one_node_append append = {.from = 1,
                                           .term = 1,
                                           .prev_index = 1,
                                           .prev_term = 1,
                                           .commit = commit,
                                           .entries = entries,
                                           .count = COUNT_OF(entries)};
    assert_true(one_node_append(node, &append));
    one_node_run_ms(node, 10);
}

/* --- L1 ------------------------------------------------------------------------------------ */

/* A heartbeat anchored below what is committed, with a commit index above it. */
static raft_index commit_after_low_heartbeat(unsigned cures)
{
    struct one_node *node = follower_with(cures);
    fill(node, 5);
    assert_int_equal(raft_commit_index(&node->raft), 5);
    const struct one_node_append append = {
        .from = 1, .term = 1, .prev_index = 2, .prev_term = 1, .commit = 6};
    assert_true(one_node_append(node, &append));
    raft_index commit = raft_commit_index(&node->raft);
    assert_int_equal(guard_stats(node->guard)->commits_held, cures & GUARD_CURE_L1 ? 1 : 0);
    one_node_destroy(node);
    return commit;
}

static void commit_index_goes_back(void *arg)
{
    (void)arg;
    CHECK(commit_after_low_heartbeat(GUARD_CURES_ALL & ~GUARD_CURE_L1) == 2);
}

static void test_guard__commit_index_never_goes_back_L1(void **state)
{
    (void)state;
    assert_int_equal(commit_after_low_heartbeat(GUARD_CURES_ALL), 5);
    assert_true(one_node_shows(commit_index_goes_back, NULL));
}

static void test_guard__commit_index_still_advances_L1(void **state)
{
    (void)state;
    struct one_node *node = follower_with(GUARD_CURES_ALL);
    fill(node, 3);
    /* Ends exactly at our commit index, and just above it: nothing to cure. */
    struct one_node_append append = {
        .from = 1, .term = 1, .prev_index = 3, .prev_term = 1, .commit = 6};
    assert_true(one_node_append(node, &append));
    assert_int_equal(raft_commit_index(&node->raft), 3);
    append.prev_index = 4;
    assert_true(one_node_append(node, &append));
    assert_int_equal(raft_commit_index(&node->raft), 4);
    assert_int_equal(guard_stats(node->guard)->commits_held, 0);
    one_node_destroy(node);
}

/* The harm of L1: the label of a snapshot comes from the commit index. */
static raft_index snapshot_label(unsigned cures, uint64_t *out_applied)
{
    struct one_node *node = one_node_create(2, cures);
    node->snapshot_threshold = 1u << 30;
    one_node_boot(node, 3, 0);
    fill(node, 5);
    raft_set_snapshot_threshold(&node->raft, 2);
    const struct one_node_append append = {
        .from = 1, .term = 1, .prev_index = 3, .prev_term = 1, .commit = 6};
    assert_true(one_node_append(node, &append));
    one_node_run_ms(node, 100);
    raft_index index = fake_disk_snapshot_index(node->disk);
    struct sum_state saved;
    struct slice bytes = fake_disk_snapshot(node->disk);
    assert_int_equal(bytes.len, sizeof(saved));
    memcpy(&saved, bytes.base, sizeof(saved));
    *out_applied = saved.applied;
    one_node_destroy(node);
    return index;
}

/* A restart would apply 4 and 5 again. */
static void snapshot_is_labelled_lower(void *arg)
{
    uint64_t applied;
    (void)arg;
    CHECK(snapshot_label(GUARD_CURES_ALL & ~GUARD_CURE_L1, &applied) == 3 && applied == 4);
}

static void test_guard__snapshot_is_labelled_with_what_it_holds_L1(void **state)
{
    (void)state;
    uint64_t applied;
    assert_int_equal(snapshot_label(GUARD_CURES_ALL, &applied), 5);
    assert_int_equal(applied, 4); /* entries 2..5 */
    assert_true(one_node_shows(snapshot_is_labelled_lower, NULL));
}

/* --- L2 ------------------------------------------------------------------------------------ */

/* A command before a configuration in one message. */
static raft_index filed_index(unsigned cures, uint64_t *out_split)
{
    struct one_node *node = follower_with(cures);
    const struct one_node_entry entries[] = {
        {.term = 1, .value = 2},
        {.term = 1, .value = 3},
        {.term = 1, .voters = 2},
        {.term = 1, .value = 5},
    };
    const struct one_node_append append = {.from = 1,
                                           .term = 1,
                                           .prev_index = 1,
                                           .prev_term = 1,
                                           .commit = 1,
                                           .entries = entries,
                                           .count = COUNT_OF(entries)};
    assert_true(one_node_append(node, &append));
    raft_index index = node->raft.configuration_uncommitted_index;
    one_node_run_ms(node, 20);
    assert_int_equal(fake_disk_last_index(node->disk), 5);
    assert_int_equal(node->raft.configuration.n, 2);
    *out_split = guard_stats(node->guard)->messages_split;
    one_node_destroy(node);
    return index;
}

static void configuration_is_filed_elsewhere(void *arg)
{
    uint64_t split;
    (void)arg;
    CHECK(filed_index(GUARD_CURES_ALL & ~GUARD_CURE_L2, &split) == 2 && split == 0);
}

static void test_guard__configuration_is_filed_at_its_own_index_L2(void **state)
{
    (void)state;
    uint64_t split;
    assert_int_equal(filed_index(GUARD_CURES_ALL, &split), 4);
    assert_int_equal(split, 1);
    assert_true(one_node_shows(configuration_is_filed_elsewhere, NULL));
}

/* The harm of L2: once all is committed the follower still believes in the old configuration. */
static unsigned believed_voters(unsigned cures)
{
    struct one_node *node = follower_with(cures);
    const struct one_node_entry entries[] = {{.term = 1, .value = 2}, {.term = 1, .voters = 2}};
    const struct one_node_append append = {.from = 1,
                                           .term = 1,
                                           .prev_index = 1,
                                           .prev_term = 1,
                                           .commit = 3,
                                           .entries = entries,
                                           .count = COUNT_OF(entries)};
    assert_true(one_node_append(node, &append));
    one_node_run_ms(node, 20);
    const struct one_node_append beat = {
        .from = 1, .term = 1, .prev_index = 3, .prev_term = 1, .commit = 3};
    assert_true(one_node_append(node, &beat));
    assert_int_equal(raft_last_applied(&node->raft), 3);
    unsigned voters = node->raft.configuration_committed.n;
    one_node_destroy(node);
    return voters;
}

static void old_configuration_is_kept(void *arg)
{
    (void)arg;
    CHECK(believed_voters(GUARD_CURES_ALL & ~GUARD_CURE_L2) == 3);
}

static void test_guard__committed_configuration_is_taken_over_L2(void **state)
{
    (void)state;
    assert_int_equal(believed_voters(GUARD_CURES_ALL), 2);
    assert_true(one_node_shows(old_configuration_is_kept, NULL));
}

static void test_guard__message_is_cut_before_every_configuration_L2(void **state)
{
    (void)state;
    struct one_node *node = follower_with(GUARD_CURES_ALL);
    /* Configuration first: nothing to cut. Two in one message can't both be uncommitted on a sound
     * leader, but the cut must not lose an entry. */
    const struct one_node_entry one[] = {{.term = 1, .voters = 2}, {.term = 1, .value = 3}};
    struct one_node_append append = {.from = 1,
                                     .term = 1,
                                     .prev_index = 1,
                                     .prev_term = 1,
                                     .commit = 1,
                                     .entries = one,
                                     .count = COUNT_OF(one)};
    assert_true(one_node_append(node, &append));
    assert_int_equal(guard_stats(node->guard)->messages_split, 0);
    const struct one_node_entry two[] = {{.term = 1, .value = 4},
                                         {.term = 1, .voters = 3},
                                         {.term = 1, .value = 6},
                                         {.term = 1, .voters = 2},
                                         {.term = 1, .value = 8}};
    append.prev_index = 3;
    append.commit = 3;
    append.entries = two;
    append.count = COUNT_OF(two);
    assert_true(one_node_append(node, &append));
    one_node_run_ms(node, 20);
    assert_int_equal(guard_stats(node->guard)->messages_split, 1);
    assert_int_equal(fake_disk_last_index(node->disk), 8);
    struct slice bytes;
    assert_int_equal(fake_disk_entry(node->disk, 8, &bytes), 1);
    assert_int_equal(bytes.base[0], 8);
    one_node_destroy(node);
}

/* --- L9 ------------------------------------------------------------------------------------ */

/* A leader whose log contradicts what is committed here: libraft frees the entries twice. */
static void contradict(void *arg)
{
    struct one_node *node = follower_with(GUARD_CURES_ALL);
    (void)arg;
    fill(node, 5);
    const struct one_node_entry entries[] = {{.term = 2, .value = 40}};
    const struct one_node_append append = {.from = 3,
                                           .term = 2,
                                           .prev_index = 3,
                                           .prev_term = 1,
                                           .commit = 4,
                                           .entries = entries,
                                           .count = COUNT_OF(entries)};
    if (one_node_append(node, &append) || node->fatal_count != 1 ||
        node->fatal_status != STATUS_CORRUPT) {
        abort();
    }
    one_node_destroy(node);
}

static void test_guard__contradicted_committed_entry_ends_the_node_L9(void **state)
{
    (void)state;
    assert_true(one_node_survives(contradict, NULL));
}

static void test_guard__contradicted_uncommitted_entry_is_replaced(void **state)
{
    (void)state;
    struct one_node *node = follower_with(GUARD_CURES_ALL);
    fill(node, 4);
    const struct one_node_entry entries[] = {{.term = 2, .value = 50}};
    const struct one_node_append append = {.from = 3,
                                           .term = 2,
                                           .prev_index = 4,
                                           .prev_term = 1,
                                           .commit = 4,
                                           .entries = entries,
                                           .count = COUNT_OF(entries)};
    assert_true(one_node_append(node, &append));
    one_node_run_ms(node, 20);
    assert_int_equal(node->fatal_count, 0);
    assert_int_equal(fake_disk_last_index(node->disk), 5);
    assert_int_equal(fake_disk_entry(node->disk, 5, NULL), 2);
    one_node_destroy(node);
}

/* --- durable ------------------------------------------------------------------------------- */

static void test_guard__durable_is_persisted_and_committed(void **state)
{
    (void)state;
    struct one_node *node = follower_with(GUARD_CURES_ALL);
    fake_disk_stall(node->disk, true);
    fill(node, 5);
    assert_int_equal(raft_commit_index(&node->raft), 5);
    assert_int_equal(guard_pending_entries(node->guard), 5);
    assert_int_equal(guard_pending_len(node->guard), 40);
    assert_int_equal(guard_durable_index(node->guard), 1); /* known, not on this disk */
    fake_disk_stall(node->disk, false);
    one_node_run_ms(node, 10);
    assert_int_equal(guard_pending_entries(node->guard), 0);
    assert_int_equal(guard_pending_len(node->guard), 0);
    assert_int_equal(guard_durable_index(node->guard), 5); /* 6 is on disk, not committed */
    one_node_destroy(node);
}

static void test_guard__truncated_entries_do_not_count_as_durable(void **state)
{
    (void)state;
    struct one_node *node = follower_with(GUARD_CURES_ALL);
    fake_disk_stall(node->disk, true);
    fill(node, 2); /* entries 2..6 are on their way */
    const struct one_node_entry entries[] = {{.term = 2, .value = 30}, {.term = 2, .value = 40}};
    const struct one_node_append append = {.from = 3,
                                           .term = 2,
                                           .prev_index = 2,
                                           .prev_term = 1,
                                           .commit = 4,
                                           .entries = entries,
                                           .count = COUNT_OF(entries)};
    assert_true(one_node_append(node, &append)); /* replaces 3.., commits 4 */
    assert_int_equal(raft_commit_index(&node->raft), 4);
    assert_int_equal(guard_durable_index(node->guard), 1);
    fake_disk_stall(node->disk, false);
    one_node_run_ms(node, 10);
    assert_int_equal(guard_durable_index(node->guard), 4);
    assert_int_equal(fake_disk_last_index(node->disk), 4);
    one_node_destroy(node);
}

static void test_guard__durable_index_is_known_again_after_a_restart(void **state)
{
    (void)state;
    struct one_node *node = follower_with(GUARD_CURES_ALL);
    fill(node, 6);
    assert_int_equal(guard_durable_index(node->guard), 6);
    one_node_crash(node);
    one_node_boot(node, 0, 0);
    assert_int_equal(guard_durable_index(node->guard), 1); /* committed: not known yet */
    const struct one_node_append append = {
        .from = 1, .term = 1, .prev_index = 6, .prev_term = 1, .commit = 6};
    assert_true(one_node_append(node, &append));
    assert_int_equal(guard_durable_index(node->guard), 6);
    one_node_destroy(node);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_guard__commit_index_never_goes_back_L1),
        cmocka_unit_test(test_guard__commit_index_still_advances_L1),
        cmocka_unit_test(test_guard__snapshot_is_labelled_with_what_it_holds_L1),
        cmocka_unit_test(test_guard__configuration_is_filed_at_its_own_index_L2),
        cmocka_unit_test(test_guard__committed_configuration_is_taken_over_L2),
        cmocka_unit_test(test_guard__message_is_cut_before_every_configuration_L2),
        cmocka_unit_test(test_guard__contradicted_committed_entry_ends_the_node_L9),
        cmocka_unit_test(test_guard__contradicted_uncommitted_entry_is_replaced),
        cmocka_unit_test(test_guard__durable_is_persisted_and_committed),
        cmocka_unit_test(test_guard__truncated_entries_do_not_count_as_durable),
        cmocka_unit_test(test_guard__durable_index_is_known_again_after_a_restart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
