/* Clients: gateways that take, claim, tear down, renew, release and look, each on the node of its
 * own host, a few owners fighting for the same keys. One call at a time; the next one follows the
 * reply after a pause. A client whose node died begins again when it is back. */
#include <stdio.h>
#include <stdlib.h>

#include "fsm/base/check.h"
#include "fsm/base/hash.h"
#include "tests/sim/sim.h"
#include "tests/sim/sim_check.h"

#define OWNERS_OF_CLIENT 2u /* one client speaks for several gateways */
#define KEYS_OF_CALL_MAX 4u
#define HELD_MAX 8u
#define SHORT_MS_MIN 50u /* short ones end UNKNOWN in a fail-over, and are settled */
#define LONG_MS 3000u
#define LATE_MS 100u
#define SOCKET_NS 30000u
#define PAUSE_NS_MAX 5000000u
#define LEAVES_PER_MILLE 10u
#define LEAVES_NS_MAX 3000000u

struct sim_client {
    struct sim *sim;
    struct sim_node *node;
    unsigned idx;
    char owners[OWNERS_OF_CLIENT][24];
    unsigned owner; /* of the present call */
    bool asked;     /* dispatch has the call */
    bool answered;  /* and its on_done came */
    bool busy;
    struct dispatch_call call;
    struct proto_request request;
    struct key_item items[KEYS_OF_CALL_MAX];
    char names[KEYS_OF_CALL_MAX][8];
    unsigned keys[KEYS_OF_CALL_MAX];
    uint64_t asked_ns;
    uint64_t deadline_ns;
    uint64_t floor;
    struct {
        unsigned key;
        unsigned owner;
        uint64_t token;
    } held[HELD_MAX]; /* what it believes to hold, some of it */
    unsigned held_count;
    struct sim_report seen;
};

static void next_call(void *arg);
static void leave(void *arg);
static void believe_nothing(struct sim_client *client);
static void choose(struct sim_client *client);
static void add_key(struct sim_client *client, unsigned key);
static void on_done(struct dispatch_call *call, const struct proto_reply *reply);
static void judge(struct sim_client *client, const struct proto_reply *reply);
static void judge_outcome(struct sim_client *client, unsigned i, const struct proto_reply *reply);
static void deliver(void *arg);
static void count_status(struct sim_client *client, enum status status);

void sim_clients_create(struct sim *sim)
{
    sim->client_count = sim->config.clients * sim->config.nodes;
    sim->clients = calloc(sim->client_count, sizeof *sim->clients);
    CHECK(sim->clients != NULL);
    for (unsigned i = 0; i < sim->client_count; i++) {
        struct sim_client *client = &sim->clients[i];
        client->sim = sim;
        client->idx = i;
        client->node = &sim->nodes[i % sim->config.nodes];
        for (unsigned k = 0; k < OWNERS_OF_CLIENT; k++) {
            (void)snprintf(client->owners[k], sizeof client->owners[k], "gateway-%u-%u", i, k);
        }
    }
}

void sim_clients_destroy(struct sim *sim)
{
    free(sim->clients);
}

void sim_clients_begin(struct sim *sim, unsigned node)
{
    for (unsigned i = 0; sim->loaded && i < sim->client_count; i++) {
        struct sim_client *client = &sim->clients[i];
        if (client->node->idx == node && !client->busy) {
            client->busy = true;
            sim_at(client->node, sim->clock.now_ns + rng_below(&sim->rng, PAUSE_NS_MAX), next_call,
                   client);
        }
    }
}

void sim_clients_node_died(struct sim *sim, unsigned node)
{
    for (unsigned i = 0; i < sim->client_count; i++) {
        struct sim_client *client = &sim->clients[i];
        if (client->node->idx == node) {
            if (client->asked) {
                believe_nothing(client);
            }
            client->asked = false;
            client->answered = false;
            client->busy = false;
            client->held_count = 0; /* the gateway looks again before it believes anything */
        }
    }
}

bool sim_clients_idle(const struct sim *sim)
{
    for (unsigned i = 0; i < sim->client_count; i++) {
        if (sim->clients[i].busy) {
            return false;
        }
    }
    return true;
}

void sim_clients_report(const struct sim *sim, struct sim_report *out_report)
{
    for (unsigned i = 0; i < sim->client_count; i++) {
        const struct sim_report *seen = &sim->clients[i].seen;
        out_report->calls += seen->calls;
        out_report->granted += seen->granted;
        out_report->refused += seen->refused;
        out_report->reads += seen->reads;
        out_report->unknown += seen->unknown;
        out_report->unavailable += seen->unavailable;
        if (seen->longest_ms > out_report->longest_ms) {
            out_report->longest_ms = seen->longest_ms;
        }
    }
}

static void next_call(void *arg)
{
    struct sim_client *client = arg;
    struct sim *sim = client->sim;
    if (sim->ending) {
        client->busy = false;
        return;
    }
    choose(client);
    client->asked_ns = sim->clock.now_ns;
    client->floor = sim_check_floor(sim);
    uint64_t deadline_ms = rng_chance(&sim->rng, 300)
                               ? SHORT_MS_MIN + rng_below(&sim->rng, 500)
                               : LONG_MS;
    client->deadline_ns = sim->clock.now_ns + deadline_ms * SIM_MS;
    client->call = (struct dispatch_call){
        .request = &client->request,
        .deadline_ns = client->deadline_ns,
        .on_done = on_done,
        .ctx = client,
    };
    client->answered = false;
    client->seen.calls++;
    enum status st = dispatch_submit(client->node->dispatch, &client->call, sim->clock.now_ns);
    client->asked = st == STATUS_OK;
    if (st != STATUS_OK) {
        count_status(client, st);
        sim_at(client->node, sim->clock.now_ns + PAUSE_NS_MAX, next_call, client);
    }
    if (client->asked && rng_chance(&sim->rng, LEAVES_PER_MILLE)) {
        sim_at(client->node, sim->clock.now_ns + rng_below(&sim->rng, LEAVES_NS_MAX), leave,
               client);
    }
    sim_turn_soon(client->node);
}

/* The caller is gone, mostly before its reply; it may be a later call of the client that is hit,
 * which is as good. */
static void leave(void *arg)
{
    struct sim_client *client = arg;
    if (!client->asked || client->answered) {
        return;
    }
    client->asked = false;
    client->held_count = 0;
    believe_nothing(client);
    dispatch_abandon(client->node->dispatch, &client->call, client->sim->clock.now_ns);
    sim_note(client->sim, "left", client->idx, client->asked_ns);
    sim_at(client->node, client->sim->clock.now_ns + PAUSE_NS_MAX, next_call, client);
}

/* A call whose fate it does not know may have shortened what it had. */
static void believe_nothing(struct sim_client *client)
{
    for (unsigned i = 0; i < client->request.op.key_count; i++) {
        sim_check_belief(client->sim, client->keys[i], 0, 0);
    }
}

static void choose(struct sim_client *client)
{
    struct rng *rng = &client->sim->rng;
    client->owner = (unsigned)rng_below(rng, OWNERS_OF_CLIENT);
    client->request = (struct proto_request){
        .op = {.ns = slice_text(NAMESPACE_DEFAULT), .keys = client->items},
    };
    struct op *op = &client->request.op;
    add_key(client, (unsigned)rng_below(rng, client->sim->config.keys));
    uint64_t dice = rng_below(rng, 100);
    if (dice < 20) {
        client->request.method = PROTO_METHOD_OWNER;
        return;
    }
    op->owner = slice_text(client->owners[client->owner]);
    op->ttl_ms = 50 + rng_below(rng, 1000);
    if (dice < 35) {
        client->request.method = PROTO_METHOD_TAKE;
        op->kind = OP_KIND_TAKE;
    } else if (dice < 55) {
        client->request.method = PROTO_METHOD_CLAIM;
        op->kind = OP_KIND_CLAIM;
        op->destroy = rng_chance(rng, 400);
        for (uint64_t more = rng_below(rng, KEYS_OF_CALL_MAX); more > 0; more--) {
            add_key(client, (unsigned)rng_below(rng, client->sim->config.keys));
        }
    } else if (dice < 80 || client->held_count == 0) {
        client->request.method = PROTO_METHOD_RENEW;
        op->kind = OP_KIND_RENEW;
        op->reestablish = rng_chance(rng, 200);
        for (uint64_t more = rng_below(rng, KEYS_OF_CALL_MAX); more > 0; more--) {
            add_key(client, (unsigned)rng_below(rng, client->sim->config.keys));
        }
    } else {
        unsigned at = (unsigned)rng_below(rng, client->held_count);
        client->request.method = PROTO_METHOD_RELEASE;
        op->kind = OP_KIND_RELEASE;
        op->ttl_ms = 0;
        op->key_count = 0;
        client->owner = client->held[at].owner;
        op->owner = slice_text(client->owners[client->owner]);
        add_key(client, client->held[at].key);
        client->items[0].has_if_token = true;
        client->items[0].if_token = client->held[at].token;
        client->held[at] = client->held[--client->held_count];
    }
}

/* The same key may come twice; it is done once and answered twice. */
static void add_key(struct sim_client *client, unsigned key)
{
    unsigned at = client->request.op.key_count++;
    client->keys[at] = key;
    (void)snprintf(client->names[at], sizeof client->names[at], "k%u", key);
    client->items[at] = (struct key_item){.key = slice_text(client->names[at])};
}

static void on_done(struct dispatch_call *call, const struct proto_reply *reply)
{
    struct sim_client *client = call->ctx;
    struct sim *sim = client->sim;
    CHECK(client->asked && !client->answered);
    client->answered = true;
    uint64_t took_ns = sim->clock.now_ns - client->asked_ns;
    if (took_ns / SIM_MS > client->seen.longest_ms) {
        client->seen.longest_ms = took_ns / SIM_MS;
    }
    /* A node that was paused answers when it is let go on, and not before. */
    uint64_t latest_ns = client->deadline_ns > client->node->resumed_ns ? client->deadline_ns
                                                                        : client->node->resumed_ns;
    if (sim->clock.now_ns > latest_ns + LATE_MS * SIM_MS) {
        sim_fail(sim, "a call of client %u took %llu ms", client->idx,
                 (unsigned long long)(took_ns / SIM_MS));
    }
    sim_note(sim, "reply", (uint64_t)client->idx << 32 | (uint64_t)reply->status,
             hash64(reply->position.index, &reply->clock_ms, sizeof reply->clock_ms));
    count_status(client, reply->status);
    if (reply->status == STATUS_OK) {
        judge(client, reply);
    } else {
        believe_nothing(client);
    }
    sim_at(client->node, sim->clock.now_ns + SOCKET_NS, deliver, client);
}

static void judge(struct sim_client *client, const struct proto_reply *reply)
{
    if (client->request.method == PROTO_METHOD_OWNER) {
        client->seen.reads++;
        sim_check_read(client->sim, client->keys[0], reply, client->floor);
        return;
    }
    if (reply->outcome_count != client->request.op.key_count) {
        sim_fail(client->sim, "%u keys asked for, %u answered", client->request.op.key_count,
                 reply->outcome_count);
        return;
    }
    for (unsigned i = 0; i < reply->outcome_count; i++) {
        judge_outcome(client, i, reply);
    }
}

static void judge_outcome(struct sim_client *client, unsigned i, const struct proto_reply *reply)
{
    const struct keyed_outcome *keyed = &reply->outcomes[i];
    sim_check_outcome(client->sim, client->keys[i], client->owners[client->owner], keyed,
                      client->floor);
    bool granted = keyed->outcome.kind == OUTCOME_KIND_GRANTED ||
                   keyed->outcome.kind == OUTCOME_KIND_REESTABLISHED;
    if (granted || keyed->outcome.kind == OUTCOME_KIND_RENEWED) {
        sim_check_belief(client->sim, client->keys[i], keyed->outcome.token,
                         client->asked_ns + client->request.op.ttl_ms * SIM_MS / 100 * 99);
    } else if (keyed->outcome.kind == OUTCOME_KIND_UNKNOWN) {
        sim_check_belief(client->sim, client->keys[i], 0, 0);
    }
    client->seen.granted += granted ? 1 : 0;
    client->seen.refused += granted ? 0 : 1;
    if (granted && client->held_count < HELD_MAX) {
        client->held[client->held_count].key = client->keys[i];
        client->held[client->held_count].owner = client->owner;
        client->held[client->held_count++].token = keyed->outcome.token;
    }
}

/* The socket has taken the reply, or, now and then, the caller is gone before it has. */
static void deliver(void *arg)
{
    struct sim_client *client = arg;
    struct sim *sim = client->sim;
    bool wholly = !rng_chance(&sim->rng, 10);
    if (!wholly) {
        client->held_count = 0;
    }
    client->asked = false;
    dispatch_delivered(client->node->dispatch, &client->call, wholly, sim->clock.now_ns);
    sim_at(client->node, sim->clock.now_ns + SOCKET_NS + rng_below(&sim->rng, PAUSE_NS_MAX),
           next_call, client);
}

static void count_status(struct sim_client *client, enum status status)
{
    enum api_error error = status_api_error(status);
    client->seen.unknown += error == API_ERROR_UNKNOWN ? 1 : 0;
    client->seen.unavailable += error == API_ERROR_UNAVAILABLE ? 1 : 0;
    if (error == API_ERROR_UNKNOWN) {
        client->held_count = 0; /* it looks before it believes anything */
    }
    if (error != API_ERROR_NONE && error != API_ERROR_UNKNOWN && error != API_ERROR_UNAVAILABLE) {
        sim_fail(client->sim, "a call of client %u ended in %s", client->idx, status_name(status));
    }
}
