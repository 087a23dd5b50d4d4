/* Whole nodes, driven by hand: what a caller of each kind of node sees, also when the leader dies,
 * pauses, or the caller is gone before its reply. The nodes are the simulator's, without its
 * clients. */
#include "node/dispatch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#include "tests/sim/sim.h"

#define SPARE 3u /* the fourth node of four */
#define SHOWN_MAX 8u

struct shown {
    char key[16];
    char owner[16];
};

/* One call, and what of its reply outlives it. */
struct call {
    struct dispatch_call dispatch;
    struct proto_request asked;
    struct key_item item;
    struct sim_node *node;
    bool keep; /* the test delivers it */
    uint64_t cost_ns; /* how long answering takes by the node's own clock */
    unsigned replies;
    uint64_t replied_ns;
    enum status status;
    enum outcome_kind outcome;
    uint32_t outcome_count;
    uint32_t renewed; /* outcomes RENEWED */
    uint64_t token;
    uint64_t count;
    bool stale;
    bool more;
    uint32_t lease_count;
    struct shown shown[SHOWN_MAX];
};

static void copy(char *out, struct slice text)
{
    (void)snprintf(out, 16, "%.*s", (int)text.len, (const char *)text.base);
}

static void on_done(struct dispatch_call *dispatch, const struct proto_reply *reply)
{
    struct call *call = dispatch->ctx;
    call->node->worked_ns += call->cost_ns;
    call->replies++;
    call->replied_ns = call->node->sim->clock.now_ns;
    call->status = reply->status;
    call->count = reply->count;
    call->stale = reply->stale;
    call->more = reply->more;
    call->outcome_count = reply->outcome_count;
    for (uint32_t i = 0; i < reply->outcome_count; i++) {
        call->renewed += reply->outcomes[i].outcome.kind == OUTCOME_KIND_RENEWED ? 1 : 0;
    }
    if (reply->outcome_count > 0) {
        call->outcome = reply->outcomes[0].outcome.kind;
        call->token = reply->outcomes[0].outcome.token;
    }
    call->lease_count = reply->lease_count;
    for (uint32_t i = 0; i < reply->lease_count && i < SHOWN_MAX; i++) {
        copy(call->shown[i].key, reply->leases[i].key);
        copy(call->shown[i].owner, reply->leases[i].owner);
    }
}

static void run(struct sim *sim, uint64_t ms)
{
    uint64_t end_ns = sim->clock.now_ns + ms * SIM_MS;
    while (fake_clock_step(&sim->clock, end_ns)) {
        assert_string_equal(sim->failure, "");
    }
}

static void submit(struct call *call, struct sim_node *node, uint64_t deadline_ms)
{
    call->node = node;
    call->dispatch = (struct dispatch_call){
        .request = &call->asked,
        .deadline_ns = node->sim->clock.now_ns + deadline_ms * SIM_MS,
        .on_done = on_done,
        .ctx = call,
    };
    assert_int_equal(dispatch_submit(node->dispatch, &call->dispatch, node->sim->clock.now_ns),
                     STATUS_OK);
    assert_int_equal(call->replies, 0); /* never inside the call */
    sim_turn_soon(node);
}

static void finish(struct call *call)
{
    struct sim *sim = call->node->sim;
    uint64_t latest_ns = call->dispatch.deadline_ns + 100 * SIM_MS;
    while (call->replies == 0 && fake_clock_step(&sim->clock, latest_ns)) {
    }
    assert_int_equal(call->replies, 1);
    if (!call->keep) {
        dispatch_delivered(call->node->dispatch, &call->dispatch, true, sim->clock.now_ns);
        sim_turn_soon(call->node);
    }
}

static struct call of_key(enum proto_method method, const char *key, const char *owner)
{
    struct call call = {
        .asked = {.method = method, .op = {.ns = slice_text("default")}},
        .item = {.key = slice_text(key)},
    };
    if (owner != NULL) {
        call.asked.op.kind = method == PROTO_METHOD_TAKE      ? OP_KIND_TAKE
                             : method == PROTO_METHOD_RELEASE ? OP_KIND_RELEASE
                                                              : OP_KIND_CLAIM;
        call.asked.op.owner = slice_text(owner);
        call.asked.op.ttl_ms = method == PROTO_METHOD_RELEASE ? 0 : 60000;
    }
    return call;
}

static struct call ask(struct sim_node *node, enum proto_method method, const char *key,
                       const char *owner)
{
    struct call call = of_key(method, key, owner);
    call.asked.op.keys = &call.item;
    call.asked.op.key_count = 1;
    submit(&call, node, 5000);
    finish(&call);
    return call;
}

static struct sim_node *leader_of(struct sim *sim)
{
    struct sim_node *found = NULL;
    for (unsigned i = 0; i < sim->config.nodes; i++) {
        struct sim_node *node = &sim->nodes[i];
        if (node->replica != NULL && !node->paused && node->view.serving &&
            (found == NULL || node->view.term > found->view.term)) {
            found = node;
        }
    }
    return found;
}

static struct sim_node *follower_of(struct sim *sim)
{
    struct sim_node *leader = leader_of(sim);
    return leader == &sim->nodes[0] ? &sim->nodes[1] : &sim->nodes[0];
}

static int set_up(void **state)
{
    struct sim_config config = {.seed = 11, .nodes = 4, .keys = 1};
    struct sim *sim = sim_create(&config);
    assert_string_equal(sim->failure, "");
    run(sim, 1000);
    assert_non_null(leader_of(sim));
    *state = sim;
    return 0;
}

static int tear_down(void **state)
{
    sim_destroy(*state);
    return 0;
}

static void test_dispatch__every_kind_of_node_serves(void **state)
{
    struct sim *sim = *state;
    struct sim_node *nodes[3] = {leader_of(sim), follower_of(sim), &sim->nodes[SPARE]};
    const char *keys[3] = {"a", "b", "c"};
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(ask(nodes[i], PROTO_METHOD_TAKE, keys[i], "me").outcome,
                         OUTCOME_KIND_GRANTED);
        assert_int_equal(ask(nodes[(i + 1) % 3], PROTO_METHOD_CLAIM, keys[i], "you").outcome,
                         OUTCOME_KIND_HELD);
    }
    for (unsigned i = 0; i < 3; i++) {
        struct call owner = ask(nodes[i], PROTO_METHOD_OWNER, "b", NULL);
        assert_int_equal(owner.status, STATUS_OK);
        assert_string_equal(owner.shown[0].owner, "me");
        struct call nobody = ask(nodes[i], PROTO_METHOD_OWNER, "x", NULL);
        assert_string_equal(nobody.shown[0].key, "");

        struct call count = {.asked = {.method = PROTO_METHOD_COUNT,
                                       .op = {.ns = slice_text("default")}}};
        submit(&count, nodes[i], 1000);
        finish(&count);
        assert_int_equal(count.count, 3);
        struct call page = {.asked = {.method = PROTO_METHOD_LIST,
                                      .op = {.ns = slice_text("default")},
                                      .limit = 2}};
        submit(&page, nodes[i], 1000);
        finish(&page);
        assert_int_equal(page.lease_count, 2);
        assert_true(page.more);
        assert_string_equal(page.shown[1].key, "b");
        struct call stale = {.asked = {.method = PROTO_METHOD_COUNT,
                                       .op = {.ns = slice_text("default")},
                                       .stale = true}};
        submit(&stale, nodes[i], 1000);
        finish(&stale);
        assert_true(stale.stale);
    }
}

/* Reads that take 2 ms each: three of them are answered in one turn, then everybody has his. */
static void test_dispatch__long_reads_do_not_hold_up_the_turn(void **state)
{
    enum { READS = 20 };
    struct sim *sim = *state;
    struct sim_node *leader = leader_of(sim);
    (void)ask(leader, PROTO_METHOD_TAKE, "k", "me");
    struct call reads[READS];
    for (unsigned i = 0; i < READS; i++) {
        reads[i] = (struct call){.asked = {.method = PROTO_METHOD_COUNT,
                                           .op = {.ns = slice_text("default")},
                                           .stale = i % 2 == 0},
                                 .cost_ns = 2 * SIM_MS};
        submit(&reads[i], leader, 1000);
    }
    struct call take = of_key(PROTO_METHOD_TAKE, "l", "me");
    take.asked.op.keys = &take.item;
    take.asked.op.key_count = 1;
    submit(&take, leader, 1000);
    unsigned answered = 0;
    unsigned turns = 0;
    uint64_t end_ns = sim->clock.now_ns + 500 * SIM_MS;
    while (answered < READS && fake_clock_step(&sim->clock, end_ns)) {
        unsigned before = answered;
        answered = 0;
        for (unsigned i = 0; i < READS; i++) {
            answered += reads[i].replies;
        }
        assert_true(answered - before <= 3);
        turns += answered > before ? 1 : 0;
    }
    assert_int_equal(answered, READS);
    assert_true(turns >= 7);
    for (unsigned i = 0; i < READS; i++) {
        assert_int_equal(reads[i].status, STATUS_OK);
        dispatch_delivered(leader->dispatch, &reads[i].dispatch, true, sim->clock.now_ns);
    }
    finish(&take);
    assert_int_equal(take.outcome, OUTCOME_KIND_GRANTED);
}

static void test_dispatch__ready_is_said_by_all_and_taken_back(void **state)
{
    struct sim *sim = *state;
    struct dispatch_view view;
    for (unsigned i = 0; i < sim->config.nodes; i++) {
        dispatch_view(sim->nodes[i].dispatch, &view);
        assert_true(view.ready);
        assert_int_equal(view.leader_id, leader_of(sim)->node_id);
    }
    /* Two of three voters are gone: nobody can tell any more. */
    struct sim_node *follower = follower_of(sim);
    for (unsigned i = 0; i < 3; i++) {
        if (&sim->nodes[i] != follower) {
            sim_pause(&sim->nodes[i]);
        }
    }
    run(sim, 3000);
    dispatch_view(follower->dispatch, &view);
    assert_false(view.ready);
    dispatch_view(sim->nodes[SPARE].dispatch, &view);
    assert_false(view.ready);
}

static void test_dispatch__idle_nodes_say_next_to_nothing(void **state)
{
    struct sim *sim = *state;
    struct dispatch_stats before[4];
    uint64_t events = sim->events;
    for (unsigned i = 0; i < 4; i++) {
        dispatch_stats(sim->nodes[i].dispatch, &before[i]);
    }
    run(sim, 10000);
    for (unsigned i = 0; i < 4; i++) {
        struct dispatch_stats after;
        dispatch_stats(sim->nodes[i].dispatch, &after);
        assert_int_equal(after.forwards_sent, before[i].forwards_sent);
        assert_int_equal(after.reads, before[i].reads);
    }
    /* Ticks and heartbeats each 50 ms, and what the spare is told. */
    assert_true(sim->events - events < 10 * 4 * 200);
}

static void test_dispatch__t10_a_newcomer_claims_what_has_ended(void **state)
{
    struct sim *sim = *state;
    struct call take = of_key(PROTO_METHOD_TAKE, "k", "me");
    take.asked.op.keys = &take.item;
    take.asked.op.key_count = 1;
    take.asked.op.ttl_ms = 200;
    submit(&take, leader_of(sim), 1000);
    finish(&take);
    run(sim, 150);
    assert_string_equal(ask(follower_of(sim), PROTO_METHOD_OWNER, "k", NULL).shown[0].owner, "me");
    run(sim, 200);
    assert_string_equal(ask(follower_of(sim), PROTO_METHOD_OWNER, "k", NULL).shown[0].owner, "");
    assert_int_equal(ask(&sim->nodes[SPARE], PROTO_METHOD_CLAIM, "k", "new").outcome,
                     OUTCOME_KIND_GRANTED);
}

static void test_dispatch__10000_keys_in_one_call(void **state)
{
    struct sim *sim = *state;
    struct key_item *items = calloc(KEYS_MAX, sizeof *items);
    char(*names)[16] = calloc(KEYS_MAX, sizeof *names);
    assert_true(items != NULL && names != NULL);
    for (unsigned i = 0; i < KEYS_MAX; i++) {
        (void)snprintf(names[i], sizeof names[i], "sandbox-%06u", i);
        items[i].key = slice_text(names[i]);
    }
    for (unsigned round = 0; round < 4; round++) {
        struct call call = {.asked = {.method = PROTO_METHOD_CLAIM,
                                      .op = {.kind = OP_KIND_CLAIM,
                                             .ns = slice_text("default"),
                                             .owner = slice_text("me"),
                                             .ttl_ms = 60000,
                                             .keys = items,
                                             .key_count = KEYS_MAX}}};
        if (round > 0) {
            call.asked.method = PROTO_METHOD_RENEW;
            call.asked.op.kind = OP_KIND_RENEW;
        }
        struct sim_node *nodes[4] = {leader_of(sim), leader_of(sim), follower_of(sim),
                                     &sim->nodes[SPARE]};
        submit(&call, nodes[round], 5000);
        finish(&call);
        assert_int_equal(call.status, STATUS_OK);
        assert_int_equal(call.outcome_count, KEYS_MAX);
        assert_int_equal(call.renewed, round == 0 ? 0 : KEYS_MAX);
        struct call count = {.asked = {.method = PROTO_METHOD_COUNT,
                                       .op = {.ns = slice_text("default")}}};
        submit(&count, nodes[round], 1000);
        finish(&count);
        assert_int_equal(count.count, KEYS_MAX);
    }
    free(items);
    free(names);
}

/* The call is UNKNOWN while the leader is silent, and nothing of it is left afterwards. */
static void test_dispatch__unknown_is_settled_by_the_next_leader(void **state)
{
    struct sim *sim = *state;
    struct sim_node *old = leader_of(sim);
    struct sim_node *follower = follower_of(sim);
    (void)ask(follower, PROTO_METHOD_TAKE, "warm", "me");
    struct call call = of_key(PROTO_METHOD_TAKE, "k", "me");
    call.asked.op.keys = &call.item;
    call.asked.op.key_count = 1;
    sim_pause(old); /* before it can answer */
    submit(&call, follower, 100);
    finish(&call);
    assert_int_equal(call.status, STATUS_UNKNOWN);
    assert_int_equal(call.replied_ns, call.dispatch.deadline_ns);
    struct dispatch_stats stats;
    dispatch_stats(follower->dispatch, &stats);
    assert_int_equal(stats.settling, 1);
    /* Its owner's next call and a read of the key come after the settle. */
    struct call owner = ask(follower, PROTO_METHOD_OWNER, "k", NULL);
    assert_int_equal(owner.status, STATUS_OK);
    assert_string_equal(owner.shown[0].owner, "");
    assert_ptr_not_equal(leader_of(sim), old);
    assert_int_equal(ask(follower, PROTO_METHOD_CLAIM, "k", "me").outcome, OUTCOME_KIND_GRANTED);
    dispatch_stats(follower->dispatch, &stats);
    assert_int_equal(stats.settling, 0);
}

/* The two other voters of a leader are paused: what it closes stays under way, what comes next
 * waits for that. */
static void hold_up(struct sim *sim, struct sim_node *leader)
{
    for (unsigned i = 0; i < 3; i++) {
        if (&sim->nodes[i] != leader) {
            sim_pause(&sim->nodes[i]);
        }
    }
}

static void let_go(struct sim *sim)
{
    for (unsigned i = 0; i < 3; i++) {
        if (sim->nodes[i].paused) {
            sim_resume(&sim->nodes[i]);
        }
    }
}

/* Nothing remembers the key: no command on it was ever carried out. */
static void assert_never_granted(const struct sim_node *node, const char *key)
{
    struct tombstone_view tombstone;
    struct lease_view lease;
    const struct fsm *fsm = replica_fsm(node->replica);
    assert_false(fsm_query_tombstone(fsm, slice_text("default"), slice_text(key), &tombstone));
    assert_false(fsm_query_owner(fsm, slice_text("default"), slice_text(key), fsm_clock_ms(fsm),
                                 &lease));
}

static void test_dispatch__what_waited_for_its_entry_at_the_deadline_was_not_done(void **state)
{
    struct sim *sim = *state;
    struct sim_node *leader = leader_of(sim);
    (void)ask(leader, PROTO_METHOD_TAKE, "warm", "me");
    hold_up(sim, leader);
    struct call ahead = of_key(PROTO_METHOD_TAKE, "ahead", "a");
    ahead.asked.op.keys = &ahead.item;
    ahead.asked.op.key_count = 1;
    submit(&ahead, leader, 5000);
    run(sim, 10);
    struct call late = of_key(PROTO_METHOD_TAKE, "late", "b");
    late.asked.op.keys = &late.item;
    late.asked.op.key_count = 1;
    submit(&late, leader, 100);
    finish(&late);
    assert_int_equal(status_api_error(late.status), API_ERROR_UNAVAILABLE);
    assert_int_equal(late.replied_ns, late.dispatch.deadline_ns);
    struct dispatch_stats stats;
    dispatch_stats(leader->dispatch, &stats);
    assert_int_equal(stats.settles, 0);
    let_go(sim);
    finish(&ahead);
    assert_int_equal(ahead.outcome, OUTCOME_KIND_GRANTED);
    run(sim, 1000);
    assert_never_granted(leader, "late");
}

/* A forward has the time that was left when it was received, also while it waits here. */
static void test_dispatch__a_forward_past_its_deadline_is_not_submitted(void **state)
{
    struct sim *sim = *state;
    struct sim_node *leader = leader_of(sim);
    struct sim_node *spare = &sim->nodes[SPARE];
    (void)ask(spare, PROTO_METHOD_TAKE, "warm", "me");
    hold_up(sim, leader);
    struct call ahead = of_key(PROTO_METHOD_TAKE, "ahead", "a");
    ahead.asked.op.keys = &ahead.item;
    ahead.asked.op.key_count = 1;
    submit(&ahead, leader, 5000);
    run(sim, 10);
    struct call late = of_key(PROTO_METHOD_TAKE, "late", "b");
    late.asked.op.keys = &late.item;
    late.asked.op.key_count = 1;
    submit(&late, spare, 100);
    struct call patient = of_key(PROTO_METHOD_TAKE, "patient", "c");
    patient.asked.op.keys = &patient.item;
    patient.asked.op.key_count = 1;
    submit(&patient, spare, 5000);
    finish(&late);
    assert_int_equal(late.status, STATUS_UNKNOWN); /* it was sent, and nobody answered */
    run(sim, 100);
    let_go(sim);
    finish(&ahead);
    finish(&patient);
    assert_int_equal(ahead.outcome, OUTCOME_KIND_GRANTED);
    assert_int_equal(patient.outcome, OUTCOME_KIND_GRANTED);
    run(sim, 1000);
    assert_never_granted(leader, "late");
    struct dispatch_stats stats;
    dispatch_stats(spare->dispatch, &stats);
    assert_int_equal(stats.settling, 0);
}

static void test_dispatch__nothing_is_forwarded_behind_what_waits(void **state)
{
    struct sim *sim = *state;
    struct sim_node *node = follower_of(sim);
    (void)ask(node, PROTO_METHOD_TAKE, "warm", "me");
    struct dispatch_stats before;
    struct dispatch_stats after;
    dispatch_stats(node->dispatch, &before);
    node->crowded = true;
    struct call call = of_key(PROTO_METHOD_TAKE, "k", "me");
    call.asked.op.keys = &call.item;
    call.asked.op.key_count = 1;
    submit(&call, node, 100);
    finish(&call);
    assert_int_equal(status_api_error(call.status), API_ERROR_UNAVAILABLE);
    dispatch_stats(node->dispatch, &after);
    assert_int_equal(after.forwards_sent, before.forwards_sent);
    assert_int_equal(after.settles, 0);
    node->crowded = false;
    assert_int_equal(ask(node, PROTO_METHOD_CLAIM, "k", "you").outcome, OUTCOME_KIND_GRANTED);
}

static bool link_up_at_leader(struct sim *sim, const struct sim_node *peer)
{
    struct replica_member members[REPLICA_MEMBERS_MAX];
    unsigned count = replica_members(leader_of(sim)->replica, members);
    for (unsigned i = 0; i < count; i++) {
        if (members[i].id == peer->node_id) {
            return members[i].link_up;
        }
    }
    return false;
}

/* It sends the leader nothing that its replica would see. */
static void test_dispatch__a_spare_that_was_silent_is_there_again(void **state)
{
    struct sim *sim = *state;
    struct sim_node *spare = &sim->nodes[SPARE];
    assert_true(link_up_at_leader(sim, spare));
    sim_pause(spare);
    run(sim, 1000);
    assert_false(link_up_at_leader(sim, spare));
    sim_resume(spare);
    run(sim, 1000);
    assert_true(link_up_at_leader(sim, spare));
}

static void test_dispatch__f9_a_paused_leader_shows_nothing_old(void **state)
{
    struct sim *sim = *state;
    struct sim_node *old = leader_of(sim);
    struct sim_node *follower = follower_of(sim);
    (void)ask(old, PROTO_METHOD_TAKE, "k", "first");
    sim_pause(old);
    run(sim, 1500);
    assert_int_equal(ask(follower, PROTO_METHOD_TAKE, "k", "second").outcome,
                     OUTCOME_KIND_GRANTED);
    sim_resume(old);
    struct call owner = of_key(PROTO_METHOD_OWNER, "k", NULL);
    owner.asked.op.keys = &owner.item;
    owner.asked.op.key_count = 1;
    submit(&owner, old, 2000); /* before anything that waited for it is read */
    finish(&owner);
    assert_true(owner.status == STATUS_OK ||
                status_api_error(owner.status) == API_ERROR_UNAVAILABLE);
    if (owner.status == STATUS_OK) {
        assert_string_equal(owner.shown[0].owner, "second");
    }
}

/* Forwards that waited while the leader was paused are not done: their caller is long gone. */
static void test_dispatch__a_forward_that_waited_in_a_stall_is_not_done(void **state)
{
    struct sim *sim = *state;
    struct sim_node *leader = leader_of(sim);
    struct sim_node *follower = follower_of(sim);
    (void)ask(follower, PROTO_METHOD_TAKE, "warm", "me");
    struct dispatch_stats before;
    dispatch_stats(leader->dispatch, &before);
    /* All are paused but one, so that nobody else is elected meanwhile. */
    for (unsigned i = 0; i < 3; i++) {
        if (&sim->nodes[i] != follower) {
            sim_pause(&sim->nodes[i]);
        }
    }
    struct call call = of_key(PROTO_METHOD_TAKE, "k", "me");
    call.asked.op.keys = &call.item;
    call.asked.op.key_count = 1;
    submit(&call, follower, 600);
    finish(&call);
    assert_int_equal(call.status, STATUS_UNKNOWN);
    for (unsigned i = 0; i < 3; i++) {
        if (sim->nodes[i].paused) {
            sim_resume(&sim->nodes[i]);
        }
    }
    run(sim, 20);
    struct dispatch_stats after;
    dispatch_stats(leader->dispatch, &after);
    assert_true(after.forwards_refused > before.forwards_refused);
    run(sim, 3000);
    assert_string_equal(ask(follower, PROTO_METHOD_OWNER, "k", NULL).shown[0].owner, "");
}

static void test_dispatch__a_grant_that_reached_nobody_is_taken_back(void **state)
{
    struct sim *sim = *state;
    struct sim_node *nodes[3] = {leader_of(sim), follower_of(sim), &sim->nodes[SPARE]};
    for (unsigned i = 0; i < 3; i++) {
        struct call call = of_key(PROTO_METHOD_TAKE, "k", "me");
        call.asked.op.keys = &call.item;
        call.asked.op.key_count = 1;
        call.keep = true;
        submit(&call, nodes[i], 1000);
        finish(&call);
        assert_int_equal(call.outcome, OUTCOME_KIND_GRANTED);
        dispatch_delivered(nodes[i]->dispatch, &call.dispatch, false, sim->clock.now_ns);
        sim_turn_soon(nodes[i]);
        assert_string_equal(ask(nodes[i], PROTO_METHOD_OWNER, "k", NULL).shown[0].owner, "");
    }
}

static void test_dispatch__an_abandoned_call_leaves_no_lease(void **state)
{
    struct sim *sim = *state;
    struct sim_node *node = follower_of(sim);
    (void)ask(node, PROTO_METHOD_TAKE, "warm", "me");
    for (uint64_t after_us = 0; after_us < 3000; after_us += 100) {
        struct call call = of_key(PROTO_METHOD_TAKE, "k", "me");
        call.asked.op.keys = &call.item;
        call.asked.op.key_count = 1;
        call.keep = true;
        submit(&call, node, 1000);
        uint64_t end_ns = sim->clock.now_ns + after_us * 1000;
        while (fake_clock_step(&sim->clock, end_ns)) {
        }
        if (call.replies == 0) {
            dispatch_abandon(node->dispatch, &call.dispatch, sim->clock.now_ns);
        } else {
            dispatch_delivered(node->dispatch, &call.dispatch, false, sim->clock.now_ns);
        }
        sim_turn_soon(node);
        assert_string_equal(ask(node, PROTO_METHOD_OWNER, "k", NULL).shown[0].owner, "");
        assert_int_equal(call.replies <= 1, 1);
    }
}

static void on_drained(void *ctx)
{
    (*(unsigned *)ctx)++;
}

static void test_dispatch__drain_waits_for_what_is_under_way(void **state)
{
    struct sim *sim = *state;
    struct sim_node *node = follower_of(sim);
    struct call call = of_key(PROTO_METHOD_TAKE, "k", "me");
    call.asked.op.keys = &call.item;
    call.asked.op.key_count = 1;
    submit(&call, node, 1000);
    unsigned drained = 0;
    dispatch_drain(node->dispatch, sim->clock.now_ns + 5000 * SIM_MS, on_drained, &drained);
    struct call late = of_key(PROTO_METHOD_OWNER, "k", NULL);
    late.dispatch = (struct dispatch_call){.request = &late.asked, .on_done = on_done};
    assert_int_equal(dispatch_submit(node->dispatch, &late.dispatch, sim->clock.now_ns),
                     STATUS_CLOSING);
    assert_int_equal(drained, 0);
    finish(&call);
    assert_int_equal(call.outcome, OUTCOME_KIND_GRANTED);
    run(sim, 10);
    assert_int_equal(drained, 1);
}

static void test_dispatch__drain_ends_at_its_deadline(void **state)
{
    struct sim *sim = *state;
    struct sim_node *node = follower_of(sim);
    for (unsigned i = 0; i < 3; i++) {
        if (&sim->nodes[i] != node) {
            sim_pause(&sim->nodes[i]);
        }
    }
    struct call call = of_key(PROTO_METHOD_TAKE, "k", "me");
    call.asked.op.keys = &call.item;
    call.asked.op.key_count = 1;
    submit(&call, node, 60000);
    unsigned drained = 0;
    uint64_t deadline_ns = sim->clock.now_ns + 200 * SIM_MS;
    dispatch_drain(node->dispatch, deadline_ns, on_drained, &drained);
    run(sim, 199);
    assert_int_equal(drained, 0);
    run(sim, 2);
    assert_int_equal(drained, 1);
    assert_int_equal(call.replies, 1);
    assert_int_not_equal(status_api_error(call.status), API_ERROR_NONE);
    dispatch_delivered(node->dispatch, &call.dispatch, true, sim->clock.now_ns);
}

/* Frames of every type with noise in them change nothing and answer nobody wrongly (X5). */
static void test_dispatch__hostile_frames_do_no_harm(void **state)
{
    struct sim *sim = *state;
    struct sim_node *leader = leader_of(sim);
    struct sim_node *follower = follower_of(sim);
    struct rng rng;
    rng_init(&rng, 5);
    uint8_t noise[64];
    for (unsigned round = 0; round < 5000; round++) {
        size_t len = rng_below(&rng, sizeof noise);
        for (size_t i = 0; i < len; i++) {
            noise[i] = (uint8_t)(rng_chance(&rng, 500) ? 0 : rng_next(&rng));
        }
        enum frame_type type = (enum frame_type)(FRAME_TYPE_FORWARD + (int)rng_below(&rng, 7));
        if (type == FRAME_TYPE_LEADER) {
            continue; /* an authenticated peer may say anything there, and is believed */
        }
        dispatch_receive(leader->dispatch, follower->node_id, type, slice_from(noise, len),
                         sim->clock.now_ns);
        sim_turn_soon(leader);
        run(sim, rng_below(&rng, 2));
    }
    run(sim, 1000);
    assert_int_equal(ask(leader, PROTO_METHOD_TAKE, "k", "me").outcome, OUTCOME_KIND_GRANTED);
    assert_string_equal(ask(leader, PROTO_METHOD_OWNER, "k", NULL).shown[0].owner, "me");
}

#define DISPATCH_TEST(name) \
    cmocka_unit_test_setup_teardown(test_dispatch__##name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        DISPATCH_TEST(every_kind_of_node_serves),
        DISPATCH_TEST(long_reads_do_not_hold_up_the_turn),
        DISPATCH_TEST(ready_is_said_by_all_and_taken_back),
        DISPATCH_TEST(idle_nodes_say_next_to_nothing),
        DISPATCH_TEST(t10_a_newcomer_claims_what_has_ended),
        DISPATCH_TEST(10000_keys_in_one_call),
        DISPATCH_TEST(unknown_is_settled_by_the_next_leader),
        DISPATCH_TEST(what_waited_for_its_entry_at_the_deadline_was_not_done),
        DISPATCH_TEST(a_forward_past_its_deadline_is_not_submitted),
        DISPATCH_TEST(nothing_is_forwarded_behind_what_waits),
        DISPATCH_TEST(a_spare_that_was_silent_is_there_again),
        DISPATCH_TEST(f9_a_paused_leader_shows_nothing_old),
        DISPATCH_TEST(a_forward_that_waited_in_a_stall_is_not_done),
        DISPATCH_TEST(a_grant_that_reached_nobody_is_taken_back),
        DISPATCH_TEST(an_abandoned_call_leaves_no_lease),
        DISPATCH_TEST(drain_waits_for_what_is_under_way),
        DISPATCH_TEST(drain_ends_at_its_deadline),
        DISPATCH_TEST(hostile_frames_do_no_harm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
