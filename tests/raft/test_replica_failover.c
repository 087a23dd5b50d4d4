/* When a leader dies, falls silent, or only loses one of its links; and what callbacks may do. */
#include "tests/raft/replica_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "fsm/base/check.h"
#include "fsm/command_codec.h"

/* The two others hear that the leader's link broke or fell silent. */
static void tell_silent(struct world *world, unsigned leader)
{
    for (unsigned i = 0; i < world->count; i++) {
        if (i != leader) {
            replica_link_silent(world->nodes[i].replica, world->nodes[leader].node_id,
                                world->clock.now_ns);
            replica_turn(world->nodes[i].replica, world->clock.now_ns);
        }
    }
}

static void test_replica_failover__a_silent_leader_is_replaced_at_once(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 30; seed++) {
        struct world world;
        world_init(&world, 3, seed);
        world_form(&world, 3);
        unsigned old = (unsigned)world_leader(&world);
        world_stop(&world, old, true);
        world_run(&world, 300);
        assert_false(world_has_leader(&world));
        uint64_t told_ns = world.clock.now_ns;
        tell_silent(&world, old);
        assert_true(world_run_until(&world, world_has_leader, 5000));
        assert_true(world.clock.now_ns - told_ns < 60 * WORLD_MS);
        /* It goes on, and learns. */
        world_stop(&world, old, false);
        world_run(&world, 500);
        assert_true(world_leader(&world) >= 0 && world_leader(&world) != (int)old);
        assert_false(world.nodes[old].view.leader);
        world_deinit(&world);
    }
}

static void test_replica_failover__a_broken_link_to_a_living_leader_changes_no_term(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 30; seed++) {
        struct world world;
        world_init(&world, 3, seed);
        world_form(&world, 3);
        unsigned leader = (unsigned)world_leader(&world);
        uint64_t term = world.nodes[leader].view.term;
        unsigned follower = (leader + 1 + (unsigned)(seed % 2)) % 3;
        replica_link_down(world.nodes[follower].replica, world.nodes[leader].node_id,
                          world.clock.now_ns);
        replica_link_down(world.nodes[leader].replica, world.nodes[follower].node_id,
                          world.clock.now_ns);
        world_run(&world, 3000);
        assert_int_equal(world_leader(&world), (int)leader);
        assert_int_equal(world.nodes[leader].view.term, term);
        assert_int_equal(world.nodes[follower].view.leader_id, world.nodes[leader].node_id);
        world_deinit(&world);
    }
}

static void test_replica_failover__only_one_campaign_for_each_broken_link(void **state)
{
    (void)state;
    struct world world;
    world_init(&world, 3, 5);
    world_form(&world, 3);
    unsigned leader = (unsigned)world_leader(&world);
    unsigned follower = (leader + 1) % 3;
    world_crash(&world, leader);
    world_crash(&world, (leader + 2) % 3);
    world_run(&world, 100);
    uint64_t term = world.nodes[follower].view.term;
    for (unsigned i = 0; i < 50; i++) {
        replica_link_down(world.nodes[follower].replica, world.nodes[leader].node_id,
                          world.clock.now_ns);
        world_run(&world, 1);
    }
    assert_int_equal(world.nodes[follower].view.term, term); /* pre-votes alone */
    assert_false(world_has_leader(&world));
    world_deinit(&world);
}

static void test_replica_failover__renewals_survive_it_and_the_clock_goes_on(void **state)
{
    (void)state;
    struct world world;
    world_init(&world, 3, 6);
    world_form(&world, 3);
    uint64_t origin = world_open_origin(&world, 7);
    struct world_call call;
    struct command take = world_take(origin, 1, "k", "a", 2000);
    world_call(&world, &take, &call);
    unsigned leader = (unsigned)world_leader(&world);
    uint64_t before_ms = fsm_clock_ms(replica_fsm(world.nodes[leader].replica));
    world_crash(&world, leader);
    assert_true(world_run_until(&world, world_has_leader, 3000));
    unsigned next = (unsigned)world_leader(&world);
    const struct fsm *fsm = replica_fsm(world.nodes[next].replica);
    assert_true(fsm_clock_ms(fsm) >= before_ms); /* never back */
    uint64_t start_ms = fsm_clock_ms(fsm);
    world_run(&world, 1000);
    uint64_t passed_ms = fsm_clock_ms(fsm) - start_ms;
    assert_true(passed_ms >= 740 && passed_ms <= 1001); /* and never faster than real time */
    struct lease_view lease;
    assert_true(fsm_query_owner(fsm, slice_text(NAMESPACE_DEFAULT), slice_text("k"),
                                fsm_clock_ms(fsm), &lease));
    world_run(&world, 1500);
    assert_false(fsm_query_owner(fsm, slice_text(NAMESPACE_DEFAULT), slice_text("k"),
                                 fsm_clock_ms(fsm), &lease));
    world_deinit(&world);
}

static void test_replica_failover__an_outage_of_the_quorum_lapses_nobody(void **state)
{
    (void)state;
    struct world world; /* P12 */
    world_init(&world, 3, 7);
    world_form(&world, 3);
    uint64_t origin = world_open_origin(&world, 7);
    struct world_call call;
    struct command take = world_take(origin, 1, "k", "a", 3000);
    world_call(&world, &take, &call);
    world_run(&world, 1500);
    unsigned leader = (unsigned)world_leader(&world);
    world_crash(&world, (leader + 1) % 3);
    world_crash(&world, (leader + 2) % 3);
    world_run(&world, 60000);
    world_boot(&world, (leader + 1) % 3);
    world_boot(&world, (leader + 2) % 3);
    assert_true(world_run_until(&world, world_has_leader, 5000));
    const struct fsm *fsm = replica_fsm(world.nodes[world_leader(&world)].replica);
    struct lease_view lease;
    assert_true(fsm_query_owner(fsm, slice_text(NAMESPACE_DEFAULT), slice_text("k"),
                                fsm_clock_ms(fsm), &lease));
    assert_true(lease.expiry_ms - fsm_clock_ms(fsm) >= 800);
    world_deinit(&world);
}

/* --- what callbacks may do */

struct chain {
    struct replica_proposal proposal;
    struct world *world;
    unsigned left;
    bool inside;
};

static void chain_propose(struct chain *chain);

static void on_chain(struct replica_proposal *proposal, enum status status, struct slice result)
{
    struct chain *chain = CONTAINER_OF(proposal, struct chain, proposal);
    CHECK(!chain->inside && status == STATUS_OK && result.len > 0);
    if (--chain->left > 0) {
        chain_propose(chain);
    }
}

static void chain_propose(struct chain *chain)
{
    struct command command = {
        .op = {.kind = OP_KIND_OPEN_ORIGIN, .node_id = 1, .nonce = chain->left},
    };
    struct buf bytes;
    buf_init(&bytes, ENTRY_LEN_MAX);
    command_encode(&command, &bytes);
    chain->inside = true;
    CHECK(replica_propose(chain->world->nodes[0].replica, buf_slice(&bytes), &chain->proposal) ==
          STATUS_OK);
    chain->inside = false;
    buf_deinit(&bytes);
}

static void test_replica_failover__a_completion_may_propose_again(void **state)
{
    (void)state;
    struct world world;
    world_init(&world, 1, 8);
    world_form(&world, 1);
    struct chain chain = {
        .proposal = {.cb = on_chain, .deadline_ns = UINT64_MAX},
        .world = &world,
        .left = 100,
    };
    chain_propose(&chain);
    world_run(&world, 1000);
    assert_int_equal(chain.left, 0);
    world_deinit(&world);
}

static void on_closed(void *ctx)
{
    unsigned *closed = ctx;
    (*closed)++;
}

struct closer {
    struct replica_proposal proposal;
    struct replica *replica;
    unsigned completions;
    unsigned *closed;
};

static void on_close_it(struct replica_proposal *proposal, enum status status, struct slice result)
{
    struct closer *closer = CONTAINER_OF(proposal, struct closer, proposal);
    (void)result;
    closer->completions++;
    CHECK(status == STATUS_OK);
    replica_close(closer->replica, on_closed, closer->closed);
    CHECK(*closer->closed == 0); /* not from under a completion's feet */
}

static void test_replica_failover__a_completion_may_close(void **state)
{
    (void)state;
    struct world world;
    world_init(&world, 1, 9);
    world_form(&world, 1);
    unsigned closed = 0;
    struct closer closer = {
        .proposal = {.cb = on_close_it, .deadline_ns = UINT64_MAX},
        .replica = world.nodes[0].replica,
        .closed = &closed,
    };
    struct command command = {.op = {.kind = OP_KIND_OPEN_ORIGIN, .node_id = 1, .nonce = 3}};
    struct buf bytes;
    buf_init(&bytes, ENTRY_LEN_MAX);
    command_encode(&command, &bytes);
    assert_int_equal(replica_propose(closer.replica, buf_slice(&bytes), &closer.proposal),
                     STATUS_OK);
    buf_deinit(&bytes);
    for (unsigned i = 0; i < 1000 && closed == 0; i++) {
        world_run(&world, 1);
    }
    assert_int_equal(closed, 1);
    assert_int_equal(closer.completions, 1);
    struct replica_view view;
    replica_view(closer.replica, &view);
    assert_int_equal(view.state, REPLICA_STATE_CLOSED);
    assert_null(replica_fsm(closer.replica));
    replica_destroy(closer.replica);
    world.nodes[0].replica = NULL;
    world.nodes[0].incarnation++;
    world_deinit(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_replica_failover__a_silent_leader_is_replaced_at_once),
        cmocka_unit_test(test_replica_failover__a_broken_link_to_a_living_leader_changes_no_term),
        cmocka_unit_test(test_replica_failover__only_one_campaign_for_each_broken_link),
        cmocka_unit_test(test_replica_failover__renewals_survive_it_and_the_clock_goes_on),
        cmocka_unit_test(test_replica_failover__an_outage_of_the_quorum_lapses_nobody),
        cmocka_unit_test(test_replica_failover__a_completion_may_propose_again),
        cmocka_unit_test(test_replica_failover__a_completion_may_close),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
