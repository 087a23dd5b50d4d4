/* See the header. The log is a state machine that applies one command per entry. */
#include "tests/node/router_bed.h"

#include <stdio.h>
#include <stdlib.h>

#include "fsm/command_codec.h"

static void born(struct bed *bed);
static bool withdraw(void *ctx, void *proposal);
static void keep_sending(struct bed *bed, const struct router_effect *effect);
static void keep_reply(struct bed *bed, struct request *request, const struct proto_reply *reply);
static void keep_read(struct bed *bed, const struct read_effect *effect);
static void on_result(void *ctx, uint32_t place, struct slice result);
static uint32_t submit_one(struct bed *bed, enum proto_method method, const char *key,
                           const char *owner, uint64_t deadline_ms);

void bed_init(struct bed *bed, uint64_t seed)
{
    *bed = (struct bed){.now_ns = 1000 * BED_MS, .clock_ms = 1000};
    bed->router = router_create(seed, withdraw, bed);
    bed->fsm = fsm_create();
    bed->sendings = calloc(BED_SENDINGS_MAX, sizeof *bed->sendings);
    bed->calls = calloc(BED_CALLS_MAX, sizeof *bed->calls);
    CHECK(bed->sendings != NULL && bed->calls != NULL);
    born(bed);
    bed_lead(bed, 1);
}

void bed_deinit(struct bed *bed)
{
    router_destroy(bed->router);
    fsm_destroy(bed->fsm);
    for (uint32_t i = 0; i < bed->sending_count; i++) {
        buf_deinit(&bed->sendings[i].command);
        buf_deinit(&bed->sendings[i].result);
    }
    for (uint32_t i = 0; i < bed->call_count; i++) {
        free(bed->calls[i].outcomes);
    }
    free(bed->sendings);
    free(bed->calls);
}

void bed_lead(struct bed *bed, uint64_t term)
{
    bed->route = (struct route){
        .kind = ROUTE_KIND_SELF, .term = term, .has_table = true, .node_id = 1};
    router_set_route(bed->router, &bed->route, bed->now_ns);
    bed_turn(bed);
}

void bed_follow(struct bed *bed, uint64_t peer_id, uint64_t term)
{
    bed->route = (struct route){.kind = ROUTE_KIND_PEER,
                                .peer_id = peer_id,
                                .term = term,
                                .has_table = true,
                                .node_id = 1};
    router_set_route(bed->router, &bed->route, bed->now_ns);
    bed_turn(bed);
}

void bed_orphan(struct bed *bed)
{
    bed->route = (struct route){.kind = ROUTE_KIND_NONE, .has_table = true, .node_id = 1};
    router_set_route(bed->router, &bed->route, bed->now_ns);
    bed_turn(bed);
}

void bed_run(struct bed *bed, uint64_t ms)
{
    uint64_t end_ns = bed->now_ns + ms * BED_MS;
    for (;;) {
        uint64_t next_ns = router_next_timer_ns(bed->router);
        if (next_ns > end_ns) {
            break;
        }
        bed->now_ns = next_ns > bed->now_ns ? next_ns : bed->now_ns;
        bed_turn(bed);
    }
    bed->now_ns = end_ns;
    bed_turn(bed);
}

void bed_turn(struct bed *bed)
{
    router_tick(bed->router, bed->now_ns);
    struct router_effect effect;
    while (router_next_effect(bed->router, bed->now_ns, &effect)) {
        switch (effect.kind) {
        case ROUTER_EFFECT_KIND_PROPOSE:
        case ROUTER_EFFECT_KIND_FORWARD:
            keep_sending(bed, &effect);
            break;
        case ROUTER_EFFECT_KIND_REPLY:
            keep_reply(bed, effect.request, &effect.reply);
            break;
        case ROUTER_EFFECT_KIND_READ:
            keep_read(bed, &effect.read);
            break;
        }
    }
}

uint32_t bed_take(struct bed *bed, const char *key, const char *owner, uint64_t deadline_ms)
{
    return submit_one(bed, PROTO_METHOD_TAKE, key, owner, deadline_ms);
}

uint32_t bed_claim(struct bed *bed, const char *key, const char *owner, uint64_t deadline_ms)
{
    return submit_one(bed, PROTO_METHOD_CLAIM, key, owner, deadline_ms);
}

uint32_t bed_renew(struct bed *bed, const char *key, const char *owner, uint64_t deadline_ms)
{
    return submit_one(bed, PROTO_METHOD_RENEW, key, owner, deadline_ms);
}

uint32_t bed_owner(struct bed *bed, const char *key, uint64_t deadline_ms)
{
    return submit_one(bed, PROTO_METHOD_OWNER, key, NULL, deadline_ms);
}

enum status bed_submit(struct bed *bed, const struct proto_request *asked, uint64_t deadline_ms,
                       uint32_t *out_call)
{
    CHECK(bed->call_count < BED_CALLS_MAX);
    struct bed_call *call = &bed->calls[bed->call_count];
    call->asked = *asked;
    if (asked->op.keys == &call->key) {
        call->asked.op.keys = &call->key;
    }
    call->deadline_ns = bed->now_ns + deadline_ms * BED_MS;
    enum status st = router_submit(bed->router, &call->asked, call->deadline_ns, call,
                                   &call->request);
    if (st == STATUS_OK) {
        *out_call = bed->call_count++;
        bed_turn(bed);
    }
    return st;
}

void bed_deliver(struct bed *bed, uint32_t call, bool wholly)
{
    CHECK(bed->calls[call].request != NULL && bed->calls[call].replies == 1);
    router_delivered(bed->router, bed->calls[call].request, wholly, bed->now_ns);
    bed->calls[call].request = NULL;
    bed_turn(bed);
}

void bed_abandon(struct bed *bed, uint32_t call)
{
    CHECK(bed->calls[call].request != NULL && bed->calls[call].replies == 0);
    router_abandon(bed->router, bed->calls[call].request, bed->now_ns);
    bed->calls[call].request = NULL;
    /* What was asked may be gone from now on. */
    memset(&bed->calls[call].asked, 0xa5, sizeof bed->calls[call].asked);
    bed_turn(bed);
}

void bed_apply(struct bed *bed, uint32_t sending)
{
    CHECK(sending < bed->sending_count);
    struct bed_sending *it = &bed->sendings[sending];
    CHECK(!it->withdrawn);
    struct command_decoder *decoder = command_decoder_create();
    struct command command;
    CHECK(command_decode(decoder, buf_slice(&it->command), &command) == STATUS_OK);
    struct entry entry = {.stamp_ms = bed->clock_ms, .commands = &command, .command_count = 1};
    it->applied = true;
    fsm_apply(bed->fsm, ++bed->index, &entry, on_result, it);
    command_decoder_destroy(decoder);
}

void bed_reply(struct bed *bed, uint32_t sending)
{
    struct bed_sending *it = &bed->sendings[sending];
    CHECK(it->applied);
    router_answered(bed->router, it->ticket, STATUS_OK, buf_slice(&it->result), bed->now_ns);
    bed_turn(bed);
}

void bed_refuse(struct bed *bed, uint32_t sending, enum status status)
{
    router_answered(bed->router, bed->sendings[sending].ticket, status, (struct slice){0},
                    bed->now_ns);
    bed_turn(bed);
}

void bed_answer(struct bed *bed, uint32_t sending, enum op_kind kind, enum status status)
{
    struct result result = {.status = status, .kind = kind, .position = {.index = bed->index}};
    struct buf bytes;
    buf_init(&bytes, MESSAGE_LEN_MAX);
    result_encode(&result, &bytes);
    router_answered(bed->router, bed->sendings[sending].ticket, STATUS_OK, buf_slice(&bytes),
                    bed->now_ns);
    buf_deinit(&bytes);
    bed_turn(bed);
}

void bed_settle_all(struct bed *bed)
{
    for (uint32_t i = 0; i < bed->sending_count; i++) {
        if (!bed->sendings[i].applied) {
            bed_apply(bed, i);
            bed_reply(bed, i);
        }
    }
}

void bed_open(struct bed *bed)
{
    uint32_t call = bed_take(bed, "opening", "nobody", 60000);
    bed_settle_all(bed);
    CHECK(bed->calls[call].replies == 1);
    for (uint32_t i = 0; i < bed->sending_count; i++) {
        buf_deinit(&bed->sendings[i].command);
        buf_deinit(&bed->sendings[i].result);
    }
    memset(bed->sendings, 0, bed->sending_count * sizeof *bed->sendings);
    bed->sending_count = 0;
}

struct slice bed_holder(const struct bed *bed, const char *key)
{
    struct lease_view view;
    bool there = fsm_query_owner(bed->fsm, slice_text(NAMESPACE_DEFAULT), slice_text(key),
                                 fsm_clock_ms(bed->fsm), &view);
    return there ? view.owner : (struct slice){0};
}

static void born(struct bed *bed)
{
    struct command command = {.op = {.kind = OP_KIND_BIRTH,
                                     .identity = {.id = {1}, .generation = 1},
                                     .token_floor = 1000,
                                     .settings = settings_default()}};
    struct entry entry = {.stamp_ms = bed->clock_ms, .commands = &command, .command_count = 1};
    fsm_apply(bed->fsm, ++bed->index, &entry, NULL, NULL);
}

static bool withdraw(void *ctx, void *proposal)
{
    struct bed *bed = ctx;
    struct bed_sending *it = proposal;
    CHECK(it->here && !it->withdrawn);
    it->withdrawn = bed->withdrawable;
    bed->withdrawn += bed->withdrawable ? 1 : 0;
    return bed->withdrawable;
}

static void keep_sending(struct bed *bed, const struct router_effect *effect)
{
    CHECK(bed->sending_count < BED_SENDINGS_MAX);
    struct bed_sending *it = &bed->sendings[bed->sending_count++];
    *it = (struct bed_sending){
        .ticket = effect->ticket,
        .here = effect->kind == ROUTER_EFFECT_KIND_PROPOSE,
        .peer_id = effect->peer_id,
        .term = effect->term,
        .at_ns = bed->now_ns,
        .deadline_ns = effect->deadline_ns,
        .kind = effect->command.op.kind,
        .origin = effect->command.origin,
        .sequence = effect->command.sequence,
        .confirmed = effect->command.confirmed,
    };
    buf_init(&it->command, ENTRY_LEN_MAX);
    buf_init(&it->result, MESSAGE_LEN_MAX);
    command_encode(&effect->command, &it->command);
    CHECK(!buf_overflown(&it->command) && it->command.len <= ENTRY_LEN_TARGET);
    CHECK(bed->now_ns < effect->deadline_ns);
    CHECK(it->here == (bed->route.kind == ROUTE_KIND_SELF));
    if (it->here) {
        router_proposed(bed->router, it->ticket, it);
    }
}

static void keep_reply(struct bed *bed, struct request *request, const struct proto_reply *reply)
{
    struct bed_call *call = request->owner;
    CHECK(call->request == request);
    call->replies++;
    call->replied_ns = bed->now_ns;
    call->status = reply->status;
    call->count = reply->count;
    call->outcome_count = reply->outcome_count;
    if (reply->outcome_count > 0) {
        call->outcome = reply->outcomes[0].outcome.kind;
        call->token = reply->outcomes[0].outcome.token;
        call->held_before = reply->outcomes[0].outcome.held_before;
        call->outcomes = calloc(reply->outcome_count, sizeof *call->outcomes);
        CHECK(call->outcomes != NULL);
        for (uint32_t i = 0; i < reply->outcome_count; i++) {
            call->outcomes[i] = reply->outcomes[i].outcome.kind;
        }
    }
    if (!bed->keep_replies) {
        router_delivered(bed->router, request, true, bed->now_ns);
        call->request = NULL;
    }
    /* What was asked may be gone after its reply. */
    memset(&call->asked, 0xa5, sizeof call->asked);
}

static void keep_read(struct bed *bed, const struct read_effect *effect)
{
    bed->read_last = *effect;
    switch (effect->kind) {
    case READ_EFFECT_KIND_ASK_HERE:
        bed->reads_asked_here++;
        return;
    case READ_EFFECT_KIND_ASK_PEER:
        bed->reads_asked_peer++;
        return;
    case READ_EFFECT_KIND_WAIT:
        bed->reads_waited++;
        return;
    case READ_EFFECT_KIND_CANCEL:
        bed->reads_cancelled++;
        return;
    case READ_EFFECT_KIND_QUERY:
        bed->queries++;
        return;
    case READ_EFFECT_KIND_ANSWER:
        if (bed->answers_due && !effect->final) {
            reads_due(router_reads(bed->router), effect->request, bed->now_ns);
            return;
        }
        bed->answers++;
        router_read_done(bed->router, effect->request);
        keep_reply(bed, effect->request, &(struct proto_reply){.status = STATUS_OK});
        return;
    case READ_EFFECT_KIND_FAIL:
        CHECK(false);
        return;
    }
}

static void on_result(void *ctx, uint32_t place, struct slice bytes)
{
    struct bed_sending *it = ctx;
    CHECK(place == 0);
    buf_clear(&it->result);
    buf_append(&it->result, bytes.base, bytes.len);
    struct result_decoder *decoder = result_decoder_create();
    struct result result;
    CHECK(result_decode(decoder, bytes, &result) == STATUS_OK);
    it->result_status = result.status;
    result_decoder_destroy(decoder);
}

static uint32_t submit_one(struct bed *bed, enum proto_method method, const char *key,
                           const char *owner, uint64_t deadline_ms)
{
    CHECK(bed->call_count < BED_CALLS_MAX);
    struct bed_call *call = &bed->calls[bed->call_count];
    (void)snprintf(call->key_text, sizeof call->key_text, "%s", key);
    call->key = (struct key_item){.key = slice_text(call->key_text)};
    struct proto_request asked = {
        .method = method,
        .op = {.ns = slice_text(NAMESPACE_DEFAULT), .keys = &call->key, .key_count = 1},
    };
    if (owner != NULL) {
        (void)snprintf(call->owner_text, sizeof call->owner_text, "%s", owner);
        asked.op.owner = slice_text(call->owner_text);
        asked.op.ttl_ms = 60000;
        asked.op.kind = method == PROTO_METHOD_TAKE    ? OP_KIND_TAKE
                        : method == PROTO_METHOD_CLAIM ? OP_KIND_CLAIM
                                                       : OP_KIND_RENEW;
    }
    uint32_t idx = 0;
    CHECK(bed_submit(bed, &asked, deadline_ms, &idx) == STATUS_OK);
    return idx;
}
