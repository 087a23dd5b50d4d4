/* Replicas in virtual time: birth, growth, commands, fail-over, reads, stamps, snapshots. */
#include "tests/raft/replica_world.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "fsm/base/check.h"

static void assert_in_step(struct world *world)
{
    assert_true(world_run_until(world, world_in_step, 5000));
    uint64_t digest = 0;
    for (unsigned i = 0; i < world->count; i++) {
        if (world->nodes[i].replica == NULL) {
            continue;
        }
        struct replica_view view;
        replica_view(world->nodes[i].replica, &view);
        if (view.applied_index == 0) {
            continue; /* a spare */
        }
        uint64_t mine = fsm_digest(replica_fsm(world->nodes[i].replica));
        assert_true(digest == 0 || digest == mine);
        digest = mine;
    }
}

static void test_replica__a_cluster_of_one_is_born_and_serves(void **state)
{
    (void)state;
    struct world world;
    world_init(&world, 1, 1);
    world_boot(&world, 0);
    assert_int_equal(world.nodes[0].view.state, REPLICA_STATE_EMPTY);
    assert_int_equal(world.nodes[0].view.node_id, 0);
    world_init_cluster(&world, 0);
    assert_true(world_run_until(&world, world_has_leader, 100));
    const struct fsm *fsm = replica_fsm(world.nodes[0].replica);
    assert_true(fsm_born(fsm));
    assert_memory_equal(fsm_identity(fsm)->id, world.nodes[0].identity.id, CLUSTER_ID_LEN);
    assert_true(fsm_token(fsm) >= 1000000);
    uint8_t random[40] = {1};
    assert_int_equal(replica_init_cluster(world.nodes[0].replica, 1, 0, random), STATUS_BUSY);
    world_deinit(&world);
}

/* What was asked for at the birth holds on every node, whatever each of them is configured for. */
static void test_replica__the_table_says_how_many_voters_are_wanted(void **state)
{
    (void)state;
    struct world world;
    world_init(&world, 4, 11);
    world.voters_wanted = 1;
    world.voters_born = 3;
    world_form(&world, 3);
    world.voters_wanted = 5; /* of those who start from now on */
    world_crash(&world, 0);
    assert_true(world_run_until(&world, world_has_leader, 5000));
    world_boot(&world, 0);
    world_run(&world, 3000);
    for (unsigned i = 0; i < 3; i++) {
        const struct fsm *fsm = replica_fsm(world.nodes[i].replica);
        assert_int_equal(fsm_settings(fsm)->voters_wanted, 3);
    }
    assert_int_equal(world_voters(&world, (unsigned)world_leader(&world)), 3);
    world_deinit(&world);
}

static void test_replica__a_birth_that_breaks_a_rule_is_refused(void **state)
{
    (void)state;
    struct world world;
    world_init(&world, 1, 12);
    world_boot(&world, 0);
    struct replica *replica = world.nodes[0].replica;
    uint8_t random[40] = {1};
    static const uint64_t wrong[] = {2, 4, 6, 7, UINT64_MAX, ((uint64_t)1 << 32) + 3};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_int_equal(replica_init_cluster(replica, 1, wrong[i], random), STATUS_INVALID);
    }
    assert_int_equal(replica_init_cluster(replica, TOKEN_FLOOR_MAX + 1, 1, random),
                     STATUS_INVALID);
    struct replica_view view;
    replica_view(replica, &view);
    assert_int_equal(view.state, REPLICA_STATE_EMPTY);
    world.voters_born = 5;
    world_init_cluster(&world, 0);
    assert_true(world_run_until(&world, world_has_leader, 100));
    assert_int_equal(fsm_settings(replica_fsm(replica))->voters_wanted, 5);
    world_deinit(&world);
}

static void test_replica__an_idle_cluster_appends_nothing(void **state)
{
    (void)state;
    struct world world;
    world_init(&world, 3, 2);
    world_form(&world, 3);
    world_run(&world, 1000);
    uint64_t before = fake_disk_last_index(world.nodes[0].disk);
    world_run(&world, 60000);
    assert_int_equal(fake_disk_last_index(world.nodes[0].disk), before);
    world_deinit(&world);
}

static void test_replica__one_voter_becomes_three_and_further_nodes_stay_spares(void **state)
{
    (void)state;
    struct world world;
    world_init(&world, 4, 3);
    world_form(&world, 3);
    world_run(&world, 2000);
    struct replica_member members[REPLICA_MEMBERS_MAX];
    int leader = world_leader(&world);
    assert_true(leader >= 0);
    unsigned count = replica_members(world.nodes[leader].replica, members);
    assert_int_equal(count, 4);
    unsigned voters = 0;
    unsigned spares = 0;
    for (unsigned i = 0; i < count; i++) {
        voters += members[i].role == REPLICA_MEMBER_ROLE_VOTER ? 1 : 0;
        spares += members[i].role == REPLICA_MEMBER_ROLE_SPARE ? 1 : 0;
        assert_true(members[i].link_up);
    }
    assert_int_equal(voters, 3);
    assert_int_equal(spares, 1);
    world_deinit(&world);
}

static void test_replica__two_nodes_stay_one_voter_and_a_standby(void **state)
{
    (void)state;
    struct world world;
    world_init(&world, 2, 4);
    world_form(&world, 1);
    world_run(&world, 5000);
    assert_int_equal(world_voters(&world, 0), 1);
    struct replica_member members[REPLICA_MEMBERS_MAX];
    assert_int_equal(replica_members(world.nodes[0].replica, members), 2);
    assert_int_equal(members[1].role, REPLICA_MEMBER_ROLE_STANDBY);
    assert_int_equal(world.nodes[1].view.role, REPLICA_MEMBER_ROLE_STANDBY);
    world_deinit(&world);
}

static void test_replica__commands_are_applied_everywhere_and_answered_once(void **state)
{
    (void)state;
    struct world world;
    world_init(&world, 3, 5);
    world_form(&world, 3);
    uint64_t origin = world_open_origin(&world, 7);
    struct world_call call;
    struct command take = world_take(origin, 1, "k", "a", 60000);
    world_call(&world, &take, &call);
    assert_int_equal(call.status, STATUS_OK);
    assert_int_equal(call.result_status, STATUS_OK);
    assert_int_equal(call.outcome, OUTCOME_KIND_GRANTED);
    uint64_t token = call.token;
    /* The same number again (R1): the same answer, and no second grant. */
    world_call(&world, &take, &call);
    assert_int_equal(call.outcome, OUTCOME_KIND_GRANTED);
    assert_int_equal(call.token, token);
    assert_int_equal(call.completions, 1);
    assert_in_step(&world);
    world_deinit(&world);
}

static void test_replica__a_turns_commands_share_one_entry(void **state)
{
    (void)state;
    struct world world;
    world_init(&world, 1, 6);
    world_form(&world, 1);
    uint64_t origin = world_open_origin(&world, 7);
    struct replica_stats before;
    replica_stats(world.nodes[0].replica, &before);
    static struct world_call calls[200];
    for (unsigned i = 0; i < 200; i++) {
        struct command take = world_take(origin, i + 1, "k", "a", 60000);
        assert_int_equal(world_propose(&world, 0, &take, &calls[i]), STATUS_OK);
        assert_int_equal(calls[i].completions, 0);
    }
    world_run(&world, 20);
    struct replica_stats after;
    replica_stats(world.nodes[0].replica, &after);
    assert_int_equal(after.entries_appended - before.entries_appended, 1);
    assert_int_equal(after.batch_len_max, 200);
    for (unsigned i = 0; i < 200; i++) {
        assert_int_equal(calls[i].completions, 1);
        assert_int_equal(calls[i].status, STATUS_OK);
    }
    world_deinit(&world);
}

static void test_replica__refuses_what_it_can_not_hold(void **state)
{
    (void)state;
    struct world world;
    world_init(&world, 1, 7);
    world_form(&world, 1);
    static struct replica_proposal proposals[64];
    static uint8_t bytes[70000];
    memset(proposals, 0, sizeof proposals);
    struct replica *replica = world.nodes[0].replica;
    assert_int_equal(replica_propose(replica, slice_from(bytes, sizeof bytes), &proposals[0]),
                     STATUS_TOO_LARGE);
    world_deinit(&world);
}

/* --- deadlines */

static void propose_open(struct world *world, uint64_t nonce, uint64_t deadline_ns,
                         struct world_call *call)
{
    struct command command = {.op = {.kind = OP_KIND_OPEN_ORIGIN, .node_id = 1, .nonce = nonce}};
    assert_int_equal(world_propose_until(world, 0, &command, deadline_ns, call), STATUS_OK);
}

static void test_replica__what_waits_past_its_deadline_is_not_submitted(void **state)
{
    (void)state;
    struct world world;
    world_init(&world, 1, 7);
    world_form(&world, 1);
    struct replica *replica = world.nodes[0].replica;
    struct replica_stats before;
    replica_stats(replica, &before);
    struct world_call first;
    struct world_call late;
    struct world_call patient;
    propose_open(&world, 1, UINT64_MAX, &first);
    replica_turn(replica, world.clock.now_ns); /* under way: the others wait for it */
    propose_open(&world, 2, world.clock.now_ns + 1, &late);
    propose_open(&world, 3, world.clock.now_ns + 10000000000ull, &patient);
    assert_int_equal(first.completions + late.completions + patient.completions, 0);
    world_run(&world, 1000);
    assert_int_equal(first.status, STATUS_OK);
    assert_int_equal(late.completions, 1);
    assert_int_equal(late.status, STATUS_DEADLINE);
    assert_int_equal(patient.completions, 1);
    assert_int_equal(patient.status, STATUS_OK);
    struct replica_stats after;
    replica_stats(replica, &after);
    assert_int_equal(after.commands_applied - before.commands_applied, 2);
    world_deinit(&world);
}

static void test_replica__what_waits_can_be_taken_back(void **state)
{
    (void)state;
    struct world world;
    world_init(&world, 1, 7);
    world_form(&world, 1);
    struct replica *replica = world.nodes[0].replica;
    struct world_call under_way;
    struct world_call waiting;
    propose_open(&world, 1, UINT64_MAX, &under_way);
    replica_turn(replica, world.clock.now_ns);
    propose_open(&world, 2, UINT64_MAX, &waiting);
    assert_true(replica_proposal_cancel(replica, &waiting.proposal));
    assert_false(replica_proposal_cancel(replica, &under_way.proposal));
    world_run(&world, 1000);
    assert_int_equal(waiting.completions, 0);
    assert_int_equal(under_way.completions, 1);
    assert_int_equal(under_way.status, STATUS_OK);
    world_deinit(&world);
}

static void test_replica__a_follower_refuses_commands_and_reads(void **state)
{
    (void)state;
    struct world world;
    world_init(&world, 3, 8);
    world_form(&world, 3);
    unsigned follower = (unsigned)(world_leader(&world) + 1) % 3;
    struct world_call call;
    struct command take = world_take(1, 1, "k", "a", 60000);
    assert_int_equal(world_propose(&world, follower, &take, &call), STATUS_NOT_LEADER);
    struct world_read read;
    assert_int_equal(world_read(&world, follower, &read), STATUS_NOT_LEADER);
    world_run(&world, 100);
    assert_int_equal(call.completions, 0);
    assert_int_equal(read.completions, 0);
    world_deinit(&world);
}

static void test_replica__stamps_move_while_leases_live_and_stop_after(void **state)
{
    (void)state;
    struct world world;
    world_init(&world, 3, 9);
    world_form(&world, 3);
    uint64_t origin = world_open_origin(&world, 7);
    struct world_call call;
    struct command take = world_take(origin, 1, "k", "a", 5000);
    world_call(&world, &take, &call);
    const struct fsm *fsm = replica_fsm(world.nodes[world_leader(&world)].replica);
    uint64_t last_ms = fsm_clock_ms(fsm);
    uint64_t last_ns = world.clock.now_ns;
    uint64_t end_ns = last_ns + 4000 * WORLD_MS;
    while (world.clock.now_ns < end_ns) {
        assert_true(fake_clock_step(&world.clock, UINT64_MAX));
        if (fsm_clock_ms(fsm) != last_ms) {
            assert_true(world.clock.now_ns - last_ns <= 250 * WORLD_MS);
            last_ms = fsm_clock_ms(fsm);
            last_ns = world.clock.now_ns;
        }
        assert_true(world.clock.now_ns - last_ns <= 250 * WORLD_MS);
    }
    world_deinit(&world);
}

static void test_replica__a_due_lease_is_removed_at_once(void **state)
{
    (void)state;
    struct world world;
    world_init(&world, 3, 10);
    world_form(&world, 3);
    uint64_t origin = world_open_origin(&world, 7);
    for (unsigned i = 1; i <= 50; i++) {
        struct world_call call;
        struct command take = world_take(origin, i, "k", "a", 200);
        world_call(&world, &take, &call);
        assert_int_equal(call.outcome, OUTCOME_KIND_GRANTED);
        const struct fsm *fsm = replica_fsm(world.nodes[world_leader(&world)].replica);
        struct lease_view lease;
        uint64_t granted_ns = call.done_ns;
        while (fsm_query_owner(fsm, slice_text(NAMESPACE_DEFAULT), slice_text("k"),
                               fsm_clock_ms(fsm), &lease)) {
            assert_true(fake_clock_step(&world.clock, UINT64_MAX));
        }
        /* Never early (P3), and the entry that removes it follows at once (P4). */
        assert_true(world.clock.now_ns >= granted_ns + 190 * WORLD_MS);
        assert_true(world.clock.now_ns <= granted_ns + 215 * WORLD_MS);
    }
    world_deinit(&world);
}

static void test_replica__leader_dies_and_what_was_granted_is_there(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 30; seed++) { /* F10 */
        struct world world;
        world_init(&world, 3, seed);
        world_form(&world, 3);
        uint64_t origin = world_open_origin(&world, 7);
        struct world_call call;
        struct command take = world_take(origin, 1, "k", "a", 60000);
        world_call(&world, &take, &call);
        unsigned leader = (unsigned)world_leader(&world);
        uint64_t died_ns = world.clock.now_ns;
        world_crash(&world, leader);
        assert_true(world_run_until(&world, world_has_leader, 3000));
        /* The broken link, not the timer, starts the election. */
        assert_true(world.clock.now_ns - died_ns < 100 * WORLD_MS);
        struct world_call again;
        world_call(&world, &take, &again);
        assert_int_equal(again.outcome, OUTCOME_KIND_GRANTED);
        assert_int_equal(again.token, call.token);
        world_boot(&world, leader);
        world_run(&world, 1000);
        assert_in_step(&world);
        world_deinit(&world);
    }
}

static void test_replica__lost_leadership_ends_as_unknown_and_once(void **state)
{
    (void)state;
    struct world world;
    world_init(&world, 3, 11);
    world_form(&world, 3);
    uint64_t origin = world_open_origin(&world, 7);
    unsigned old = (unsigned)world_leader(&world);
    world_cut(&world, old, (old + 1) % 3, true);
    world_cut(&world, old, (old + 2) % 3, true);
    struct world_call in_flight;
    struct world_call waiting;
    struct command take = world_take(origin, 1, "k", "a", 60000);
    assert_int_equal(world_propose(&world, old, &take, &in_flight), STATUS_OK);
    world_run(&world, 1);
    struct command later = world_take(origin, 2, "l", "a", 60000);
    assert_int_equal(world_propose(&world, old, &later, &waiting), STATUS_OK);
    struct world_read read;
    assert_int_equal(world_read(&world, old, &read), STATUS_OK);
    world_run(&world, 3000);
    assert_int_equal(in_flight.completions, 1);
    assert_int_equal(in_flight.status, STATUS_LEADERSHIP_LOST);
    /* Never submitted: certainly not done. */
    assert_int_equal(waiting.completions, 1);
    assert_int_equal(waiting.status, STATUS_NOT_LEADER);
    assert_int_equal(read.completions, 1);
    assert_true(read.status == STATUS_NOT_LEADER || read.status == STATUS_NO_QUORUM);
    assert_true(world_has_leader(&world));
    assert_true(world_leader(&world) != (int)old);
    world_cut(&world, old, (old + 1) % 3, false);
    world_cut(&world, old, (old + 2) % 3, false);
    world_run(&world, 2000);
    assert_in_step(&world);
    world_deinit(&world);
}

static void test_replica__reads_share_rounds_and_are_of_a_later_index(void **state)
{
    (void)state;
    struct world world;
    world_init(&world, 3, 12);
    world_form(&world, 3);
    uint64_t origin = world_open_origin(&world, 7);
    unsigned leader = (unsigned)world_leader(&world);
    struct world_call call;
    struct command take = world_take(origin, 1, "k", "a", 60000);
    world_call(&world, &take, &call);
    struct replica_stats before;
    replica_stats(world.nodes[leader].replica, &before);
    struct replica_view view;
    replica_view(world.nodes[leader].replica, &view);
    static struct world_read reads[100];
    for (unsigned i = 0; i < 100; i++) {
        assert_int_equal(world_read(&world, leader, &reads[i]), STATUS_OK);
        assert_int_equal(reads[i].completions, 0);
    }
    world_run(&world, 5);
    for (unsigned i = 0; i < 100; i++) {
        assert_int_equal(reads[i].completions, 1);
        assert_int_equal(reads[i].status, STATUS_OK);
        assert_true(reads[i].point.index >= view.commit_index);
        assert_true(reads[i].point.clock_ms >=
                    fsm_clock_ms(replica_fsm(world.nodes[leader].replica)) - 10);
    }
    struct replica_stats after;
    replica_stats(world.nodes[leader].replica, &after);
    assert_int_equal(after.read_rounds - before.read_rounds, 1);
    assert_int_equal(after.entries_appended, before.entries_appended);
    world_deinit(&world);
}

static void test_replica__a_leader_that_was_stopped_does_not_answer_reads(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct world world;
        world_init(&world, 3, seed);
        world_form(&world, 3);
        uint64_t origin = world_open_origin(&world, 7);
        struct world_call call;
        struct command take = world_take(origin, 1, "k", "a", 60000);
        world_call(&world, &take, &call);
        unsigned old = (unsigned)world_leader(&world);
        /* The others write without it, then it goes on and is asked before it hears anything. */
        world_stop(&world, old, true);
        replica_link_silent(world.nodes[(old + 1) % 3].replica, world.nodes[old].node_id,
                            world.clock.now_ns);
        replica_link_silent(world.nodes[(old + 2) % 3].replica, world.nodes[old].node_id,
                            world.clock.now_ns);
        assert_true(world_run_until(&world, world_has_leader, 5000));
        take = world_take(origin, 2, "k", "b", 60000);
        world_call(&world, &take, &call);
        uint64_t written = fake_disk_last_index(world.nodes[world_leader(&world)].disk);
        struct world_read read;
        enum status status = world_read(&world, old, &read);
        world_stop(&world, old, false);
        world_run(&world, 3000);
        if (status == STATUS_OK) {
            assert_int_equal(read.completions, 1);
            assert_true(read.status != STATUS_OK || read.point.index >= written);
        }
        assert_in_step(&world);
        world_deinit(&world);
    }
}

static void test_replica__a_follower_waits_for_the_leaders_point(void **state)
{
    (void)state;
    struct world world;
    world_init(&world, 3, 13);
    world_form(&world, 3);
    uint64_t origin = world_open_origin(&world, 7);
    unsigned leader = (unsigned)world_leader(&world);
    unsigned follower = (leader + 1) % 3;
    struct world_call call;
    struct command take = world_take(origin, 1, "k", "a", 60000);
    assert_int_equal(world_propose(&world, leader, &take, &call), STATUS_OK);
    while (call.completions == 0) {
        assert_true(fake_clock_step(&world.clock, UINT64_MAX));
    }
    struct replica_view view;
    replica_view(world.nodes[leader].replica, &view);
    struct world_read read;
    (void)world_read(&world, follower, &read);
    read.read.point.index = view.commit_index;
    assert_int_equal(replica_read_wait(world.nodes[follower].replica, &read.read), STATUS_OK);
    struct world_read cancelled;
    (void)world_read(&world, follower, &cancelled);
    cancelled.read.point.index = view.commit_index + 1000;
    assert_int_equal(replica_read_wait(world.nodes[follower].replica, &cancelled.read),
                     STATUS_OK);
    replica_read_cancel(world.nodes[follower].replica, &cancelled.read);
    /* Followers learn of a commit at once, not with the next tick. */
    world_run(&world, 5);
    assert_int_equal(read.completions, 1);
    assert_int_equal(read.status, STATUS_OK);
    struct lease_view lease;
    assert_true(fsm_query_owner(replica_fsm(world.nodes[follower].replica),
                                slice_text(NAMESPACE_DEFAULT), slice_text("k"), 0, &lease));
    assert_int_equal(cancelled.completions, 0);
    world_deinit(&world);
}

static void test_replica__restarts_from_disk_with_the_same_digest(void **state)
{
    (void)state;
    struct world world;
    world_init(&world, 3, 14);
    world.snapshot_entries = 100;
    world_form(&world, 3);
    uint64_t origin = world_open_origin(&world, 7);
    for (unsigned i = 1; i <= 250; i++) {
        char key[16];
        (void)snprintf(key, sizeof key, "k%u", i);
        struct world_call call;
        struct command take = world_take(origin, i, key, "a", 3600000);
        world_call(&world, &take, &call);
        assert_int_equal(call.outcome, OUTCOME_KIND_GRANTED);
    }
    world_run(&world, 100);
    assert_true(fake_disk_snapshot_index(world.nodes[0].disk) > 0);
    assert_in_step(&world);
    uint64_t token = fsm_token(replica_fsm(world.nodes[0].replica));
    for (unsigned i = 0; i < 3; i++) {
        world_crash(&world, i);
    }
    world_run(&world, 10000);
    for (unsigned i = 0; i < 3; i++) {
        world_boot(&world, i);
    }
    assert_true(world_run_until(&world, world_has_leader, 5000));
    world_run(&world, 1000);
    assert_in_step(&world);
    struct fsm_stats stats;
    fsm_stats(replica_fsm(world.nodes[0].replica), &stats);
    assert_int_equal(stats.leases_own, 250);
    assert_true(fsm_token(replica_fsm(world.nodes[0].replica)) >= token);
    world_deinit(&world);
}

static void test_replica__a_far_behind_follower_gets_a_snapshot_in_chunks(void **state)
{
    (void)state;
    struct world world; /* S1 */
    world_init(&world, 3, 15);
    world.snapshot_entries = 100;
    world_form(&world, 3);
    uint64_t origin = world_open_origin(&world, 7);
    unsigned behind = (unsigned)(world_leader(&world) + 1) % 3;
    world_crash(&world, behind);
    uint64_t bulk_before = 0;
    for (unsigned i = 0; i < 3; i++) {
        bulk_before += world.nodes[i].bulk_out;
    }
    static struct world_call calls[10];
    for (unsigned i = 0; i < 900; i++) {
        char key[300];
        memset(key, 'x', sizeof key);
        (void)snprintf(key + 280, 20, "%u", i);
        struct command take = world_take(origin, i + 1, key, "a", 3600000);
        world_call(&world, &take, &calls[0]);
        assert_int_equal(calls[0].outcome, OUTCOME_KIND_GRANTED);
    }
    world_boot(&world, behind);
    world_run(&world, 8000);
    assert_in_step(&world);
    assert_true(world.nodes[behind].installs >= 1);
    uint64_t bulk = 0;
    for (unsigned i = 0; i < 3; i++) {
        bulk += world.nodes[i].bulk_out;
    }
    assert_true(bulk - bulk_before >= 5);
    world_deinit(&world);
}

/* One entry of about 32 KiB: nothing fits beside it. */
static void write_long(struct world *world, uint64_t origin, uint64_t sequence)
{
    enum { KEYS = 64 };
    static char names[KEYS][512];
    static struct key_item keys[KEYS];
    for (unsigned i = 0; i < KEYS; i++) {
        memset(names[i], 'x', 480);
        (void)snprintf(names[i] + 480, sizeof names[i] - 480, "%u", i);
        keys[i] = (struct key_item){.key = slice_text(names[i])};
    }
    struct command claim = world_take(origin, sequence, "", "a", 3600000);
    claim.op.kind = OP_KIND_CLAIM;
    claim.op.keys = keys;
    claim.op.key_count = KEYS;
    struct world_call call;
    world_call(world, &claim, &call);
    assert_int_equal(call.status, STATUS_OK);
    assert_int_equal(call.result_status, STATUS_OK);
}

static void test_replica__entries_leave_in_messages_that_links_carry(void **state)
{
    (void)state;
    struct world world; /* S1 */
    world_init(&world, 3, 15);
    world_form(&world, 3);
    uint64_t origin = world_open_origin(&world, 7);
    unsigned behind = (unsigned)(world_leader(&world) + 1) % 3;
    world_crash(&world, behind);
    for (unsigned i = 0; i < 64; i++) {
        write_long(&world, origin, i + 1);
    }
    world.message_len_max = 0;
    world_boot(&world, behind);
    assert_in_step(&world);
    assert_int_equal(world.nodes[behind].installs, 0); /* all by entries */
    assert_true(world.message_len_max > 128 * 1024); /* several share one */
    assert_true(world.message_len_max < 256 * 1024 + 2048);
    world_deinit(&world);
}

static void test_replica__full_disks_are_not_done_and_the_clock_stands_still(void **state)
{
    (void)state;
    struct world world;
    world_init(&world, 1, 16);
    world_form(&world, 1);
    uint64_t origin = world_open_origin(&world, 7);
    struct world_call call;
    struct command take = world_take(origin, 1, "k", "a", 2000);
    world_call(&world, &take, &call);
    fake_disk_set_capacity(world.nodes[0].disk, 1000);
    world_run(&world, 30000); /* P12 */
    take = world_take(origin, 2, "l", "a", 2000);
    assert_int_equal(world_propose(&world, 0, &take, &call), STATUS_OK);
    world_run(&world, 100);
    assert_int_equal(call.completions, 1);
    assert_int_equal(call.status, STATUS_DISK_FULL);
    assert_true(world.nodes[0].view.disk_full);
    fake_disk_set_capacity(world.nodes[0].disk, 20000);
    take = world_take(origin, 3, "l", "a", 2000);
    world_call(&world, &take, &call);
    assert_int_equal(call.status, STATUS_OK);
    world_run(&world, 100);
    assert_false(world.nodes[0].view.disk_full);
    const struct fsm *fsm = replica_fsm(world.nodes[0].replica);
    struct lease_view lease;
    assert_true(fsm_query_owner(fsm, slice_text(NAMESPACE_DEFAULT), slice_text("k"),
                                fsm_clock_ms(fsm), &lease));
    world_deinit(&world);
}

/* A candidate dies somewhere between two promotions. Whatever was under way, once it is back
 * there is a leader again, three vote, and never did the cluster stay at two voters. */
static void test_replica__who_leads_no_more_calls_no_disk_full(void **state)
{
    (void)state;
    struct world world;
    world_init(&world, 3, 16);
    world_form(&world, 3);
    uint64_t origin = world_open_origin(&world, 7);
    unsigned old = (unsigned)world_leader(&world);
    for (unsigned i = 0; i < 3; i++) {
        fake_disk_set_capacity(world.nodes[i].disk, 1000);
    }
    world_run(&world, 500); /* until followers have told theirs */
    struct command take = world_take(origin, 1, "k", "a", 2000);
    struct world_call call;
    assert_int_equal(world_propose(&world, old, &take, &call), STATUS_OK);
    world_run(&world, 100);
    assert_int_equal(call.status, STATUS_DISK_FULL);
    struct replica_view view;
    replica_view(world.nodes[old].replica, &view);
    assert_true(view.disk_full);
    for (unsigned i = 0; i < 3; i++) {
        fake_disk_set_capacity(world.nodes[i].disk, 20000);
    }
    for (unsigned i = 0; i < 3; i++) {
        if (i != old) {
            world_cut(&world, old, i, true);
        }
    }
    world_run(&world, 3000);
    replica_view(world.nodes[old].replica, &view);
    assert_false(view.leader);
    assert_false(view.disk_full);
    world_deinit(&world);
}

static void test_replica__growth_survives_the_death_of_a_candidate(void **state)
{
    (void)state;
    for (uint64_t seed = 100; seed < 125; seed++) {
        struct world world;
        world_init(&world, 3, seed);
        world_boot(&world, 0);
        world_init_cluster(&world, 0);
        assert_true(world_run_until(&world, world_has_leader, 1000));
        for (unsigned i = 1; i < 3; i++) {
            world_boot(&world, i);
            world_join(&world, i);
        }
        world_run(&world, 20);
        assert_int_equal(world_admit(&world, 1), STATUS_OK);
        assert_int_equal(world_admit(&world, 2), STATUS_OK);
        fake_clock_advance(&world.clock, rng_below(&world.rng, 30 * WORLD_MS));
        unsigned victim = 1 + (unsigned)(seed & 1);
        world_crash(&world, victim);
        world_run(&world, 4000);
        int leader = world_leader(&world);
        assert_true(leader < 0 || world_voters(&world, (unsigned)leader) != 2);
        world_boot(&world, victim);
        world_run(&world, 6000);
        leader = world_leader(&world);
        assert_true(leader >= 0);
        assert_int_equal(world_voters(&world, (unsigned)leader), 3);
        assert_in_step(&world);
        world_deinit(&world);
    }
}

struct done {
    unsigned count;
    enum status status;
};

static void on_done(void *ctx, enum status status)
{
    struct done *done = ctx;
    done->count++;
    done->status = status;
}

static void test_replica__hands_leadership_over(void **state)
{
    (void)state;
    struct world world;
    world_init(&world, 3, 17);
    world_form(&world, 3);
    unsigned old = (unsigned)world_leader(&world);
    struct done done = {0};
    assert_int_equal(replica_transfer(world.nodes[old].replica, 0, on_done, &done), STATUS_OK);
    assert_int_equal(done.count, 0);
    assert_int_equal(replica_transfer(world.nodes[old].replica, 0, on_done, &done), STATUS_BUSY);
    world_run(&world, 200);
    assert_int_equal(done.count, 1);
    assert_int_equal(done.status, STATUS_OK);
    assert_true(world_leader(&world) >= 0 && world_leader(&world) != (int)old);
    world_deinit(&world);
}

static void test_replica__admits_a_member_twice_but_adds_it_once(void **state)
{
    (void)state;
    struct world world;
    world_init(&world, 2, 18);
    world_form(&world, 1);
    assert_int_equal(world_admit(&world, 1), STATUS_OK);
    struct replica_member members[REPLICA_MEMBERS_MAX];
    assert_int_equal(replica_members(world.nodes[0].replica, members), 2);
    struct done done = {0};
    assert_int_equal(replica_admit(world.nodes[0].replica, 0, on_done, &done), STATUS_INVALID);
    assert_int_equal(replica_admit(world.nodes[1].replica, 5, on_done, &done), STATUS_NOT_LEADER);
    assert_int_equal(done.count, 0);
    world_deinit(&world);
}

static void test_replica__hostile_bytes_are_refused_and_counted(void **state)
{
    (void)state;
    struct world world;
    world_init(&world, 1, 19);
    world_form(&world, 1);
    struct replica_stats stats;
    uint8_t bytes[64];
    for (unsigned i = 0; i < 1000; i++) {
        for (unsigned j = 0; j < sizeof bytes; j++) {
            bytes[j] = (uint8_t)rng_next(&world.rng);
        }
        replica_receive(world.nodes[0].replica, 99, slice_from(bytes, i % 64), world.clock.now_ns);
    }
    replica_stats(world.nodes[0].replica, &stats);
    assert_int_equal(stats.messages_refused, 1000);
    assert_true(world.nodes[0].view.serving);
    world_deinit(&world);
}

static void test_replica__a_failed_disk_stops_the_node_and_nobody_else(void **state)
{
    (void)state;
    struct world world;
    world_init(&world, 3, 20);
    world_form(&world, 3);
    uint64_t origin = world_open_origin(&world, 7);
    unsigned old = (unsigned)world_leader(&world);
    fake_disk_fail_next(world.nodes[old].disk, FAKE_DISK_CALL_APPEND, RAFT_IOERR);
    struct world_call call;
    struct command take = world_take(origin, 1, "k", "a", 60000);
    assert_int_equal(world_propose(&world, old, &take, &call), STATUS_OK);
    world_run(&world, 5);
    assert_int_equal(world.nodes[old].fatals, 1);
    assert_int_equal(world.nodes[old].view.state, REPLICA_STATE_FAILED);
    assert_int_equal(call.completions, 1);
    assert_int_equal(call.status, STATUS_LEADERSHIP_LOST);
    assert_int_equal(world_propose(&world, old, &take, &call), STATUS_NOT_LEADER);
    world_run(&world, 4000);
    assert_true(world_leader(&world) >= 0 && world_leader(&world) != (int)old);
    world_deinit(&world);
}

static void test_replica__a_start_that_fails_can_be_closed(void **state)
{
    (void)state;
    struct world world;
    world_init(&world, 1, 19);
    world_form(&world, 1);
    uint64_t origin = world_open_origin(&world, 7);
    world_close(&world, 0);
    fake_disk_fail_next(world.nodes[0].disk, FAKE_DISK_CALL_LOAD, RAFT_IOERR);
    assert_int_equal(world_try_boot(&world, 0), STATUS_IO);
    struct replica_view view;
    replica_view(world.nodes[0].replica, &view);
    assert_int_equal(view.state, REPLICA_STATE_FAILED);
    assert_null(replica_fsm(world.nodes[0].replica));
    assert_int_equal(world.nodes[0].fatals, 0); /* the caller was told */
    world_close(&world, 0);
    world_boot(&world, 0);
    struct command take = world_take(origin, 1, "k", "a", 2000);
    struct world_call call;
    world_call(&world, &take, &call);
    assert_int_equal(call.status, STATUS_OK);
    world_deinit(&world);
}

static void test_replica__closing_ends_everything_that_waits(void **state)
{
    (void)state;
    struct world world;
    world_init(&world, 3, 21);
    world_form(&world, 3);
    uint64_t origin = world_open_origin(&world, 7);
    unsigned leader = (unsigned)world_leader(&world);
    struct world_call in_flight;
    struct world_call waiting;
    struct world_read read;
    struct command take = world_take(origin, 1, "k", "a", 60000);
    assert_int_equal(world_propose(&world, leader, &take, &in_flight), STATUS_OK);
    assert_true(fake_clock_step(&world.clock, world.clock.now_ns));
    struct command later = world_take(origin, 2, "l", "a", 60000);
    assert_int_equal(world_propose(&world, leader, &later, &waiting), STATUS_OK);
    assert_int_equal(world_read(&world, leader, &read), STATUS_OK);
    world_close(&world, leader);
    assert_int_equal(in_flight.completions, 1);
    assert_int_equal(in_flight.status, STATUS_LEADERSHIP_LOST);
    assert_int_equal(waiting.completions, 1);
    assert_int_equal(waiting.status, STATUS_CLOSING);
    assert_int_equal(read.completions, 1);
    assert_int_equal(read.status, STATUS_CLOSING);
    assert_true(world_run_until(&world, world_has_leader, 2000));
    world_deinit(&world);
}

/* A crash, a restart, a stop, a cut or their end, by chance; mostly nothing. */
static void misfortune(struct world *world)
{
    unsigned victim = (unsigned)rng_below(&world->rng, world->count);
    uint64_t dice = rng_below(&world->rng, 100);
    if (dice < 3 && world->nodes[victim].replica != NULL &&
        !world->nodes[victim].stopped) {
        world_crash(world, victim);
    } else if (dice < 10) {
        for (unsigned i = 0; i < world->count; i++) {
            if (world->nodes[i].replica == NULL) {
                world_boot(world, i);
                break;
            }
        }
    } else if (dice < 11 && world->nodes[victim].replica != NULL) {
        world_stop(world, victim, !world->nodes[victim].stopped);
    } else if (dice < 13) {
        world_cut(world, victim, (victim + 1) % world->count, true);
    } else if (dice < 20) {
        for (unsigned i = 0; i < world->count; i++) {
            world_stop(world, i, false);
            if (world->cut[i][(i + 1) % world->count]) {
                world_cut(world, i, (i + 1) % world->count, false);
            }
        }
    }
}

static void heal(struct world *world)
{
    world->loss_per_mille = 0;
    for (unsigned i = 0; i < world->count; i++) {
        world_stop(world, i, false);
        for (unsigned j = 0; j < i; j++) {
            world_cut(world, i, j, false);
        }
        if (world->nodes[i].replica == NULL) {
            world_boot(world, i);
        }
    }
}

/* Everything at once, from seeds: what was answered OK is there at the end, digests agree. */
static void test_replica__survives_crashes_cuts_and_losses(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        struct world world;
        world_init(&world, 5, seed);
        world.voters_wanted = seed % 2 == 0 ? 3 : 5;
        world.snapshot_entries = 60;
        world_form(&world, seed % 2 == 0 ? 3 : 5);
        uint64_t origin = world_open_origin(&world, 7);
        world.loss_per_mille = 5;
        world.double_per_mille = 5;
        world.reorder_per_mille = 10;
        static struct world_call calls[2000];
        static bool acknowledged[2000];
        memset(acknowledged, 0, sizeof acknowledged);
        unsigned count = 0;
        for (unsigned step = 0; step < 300; step++) {
            misfortune(&world);
            int leader = world_leader(&world);
            for (unsigned i = 0; leader >= 0 && i < 3 && count < 900; i++) {
                struct command command = world_take(origin, count + 1, "k", "a", 60000);
                command.confirmed = 0;
                if (world_propose(&world, (unsigned)leader, &command, &calls[count]) ==
                    STATUS_OK) {
                    count++;
                }
            }
            world_run(&world, 10 + rng_below(&world.rng, 60));
        }
        heal(&world);
        assert_true(world_run_until(&world, world_has_leader, 5000));
        world_run(&world, 3000);
        assert_in_step(&world);
        for (unsigned i = 0; i < count; i++) {
            assert_int_equal(calls[i].completions, 1);
        }
        for (unsigned i = 0; i < world.count; i++) {
            assert_int_equal(world.nodes[i].fatals, 0);
        }
        world_deinit(&world);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_replica__a_cluster_of_one_is_born_and_serves),
        cmocka_unit_test(test_replica__the_table_says_how_many_voters_are_wanted),
        cmocka_unit_test(test_replica__a_birth_that_breaks_a_rule_is_refused),
        cmocka_unit_test(test_replica__an_idle_cluster_appends_nothing),
        cmocka_unit_test(test_replica__one_voter_becomes_three_and_further_nodes_stay_spares),
        cmocka_unit_test(test_replica__two_nodes_stay_one_voter_and_a_standby),
        cmocka_unit_test(test_replica__commands_are_applied_everywhere_and_answered_once),
        cmocka_unit_test(test_replica__a_turns_commands_share_one_entry),
        cmocka_unit_test(test_replica__refuses_what_it_can_not_hold),
        cmocka_unit_test(test_replica__what_waits_past_its_deadline_is_not_submitted),
        cmocka_unit_test(test_replica__what_waits_can_be_taken_back),
        cmocka_unit_test(test_replica__a_follower_refuses_commands_and_reads),
        cmocka_unit_test(test_replica__stamps_move_while_leases_live_and_stop_after),
        cmocka_unit_test(test_replica__a_due_lease_is_removed_at_once),
        cmocka_unit_test(test_replica__leader_dies_and_what_was_granted_is_there),
        cmocka_unit_test(test_replica__lost_leadership_ends_as_unknown_and_once),
        cmocka_unit_test(test_replica__reads_share_rounds_and_are_of_a_later_index),
        cmocka_unit_test(test_replica__a_leader_that_was_stopped_does_not_answer_reads),
        cmocka_unit_test(test_replica__a_follower_waits_for_the_leaders_point),
        cmocka_unit_test(test_replica__restarts_from_disk_with_the_same_digest),
        cmocka_unit_test(test_replica__a_far_behind_follower_gets_a_snapshot_in_chunks),
        cmocka_unit_test(test_replica__entries_leave_in_messages_that_links_carry),
        cmocka_unit_test(test_replica__full_disks_are_not_done_and_the_clock_stands_still),
        cmocka_unit_test(test_replica__who_leads_no_more_calls_no_disk_full),
        cmocka_unit_test(test_replica__growth_survives_the_death_of_a_candidate),
        cmocka_unit_test(test_replica__hands_leadership_over),
        cmocka_unit_test(test_replica__admits_a_member_twice_but_adds_it_once),
        cmocka_unit_test(test_replica__hostile_bytes_are_refused_and_counted),
        cmocka_unit_test(test_replica__a_failed_disk_stops_the_node_and_nobody_else),
        cmocka_unit_test(test_replica__a_start_that_fails_can_be_closed),
        cmocka_unit_test(test_replica__closing_ends_everything_that_waits),
        cmocka_unit_test(test_replica__survives_crashes_cuts_and_losses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
