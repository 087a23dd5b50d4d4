/* The router decides; here its effects become calls of the replica and frames of the transport, and
 * what comes back becomes its events.
 *
 * Replies are handed out only while effects are carried out, at the end of a turn, so that a caller
 * may submit again from inside on_done. The replica's callbacks only write down; whatever they
 * cause happens in the same turn's end. Memory of proposals, remote reads and remote points is
 * pooled: each lives until the replica has completed it, however long ago its request was
 * answered. */
#include "node/dispatch.h"

#include <stdlib.h>

#include "fsm/base/rng.h"
#include "fsm/command_codec.h"
#include "node/forwarder.h"
#include "node/leadership.h"
#include "node/peer_frame.h"
#include "node/read_answer.h"
#include "node/router.h"
#include "raft/replica.h"

#define POINTS_MAX 1024u   /* read points that peers wait for */
#define QUERIES_MAX 1024u  /* whole reads of peers */
#define QUERIES_LEN_MAX (64u * MIB) /* their bytes together */
#define POOL_MAX 4096u     /* free proposals that are kept */
#define PEERS_UP_MAX 1024u
#define TELL_NS (400u * NS_PER_MS) /* a spare hears of its leader; below LEADERSHIP_HEARD_NS / 2 */
#define PROBE_NS (100u * NS_PER_MS)
#define FRAME_OVERHEAD_MAX 64u
#define READS_TURN_NS (5u * NS_PER_MS) /* reading the table in one turn; the rest waits */
#define PASSES_MAX 4u /* effects that cause effects within one turn; the rest waits for the next */

/* One command handed to the replica: of this node's router, or of a peer's. */
struct proposal {
    struct replica_proposal replica;
    struct list link; /* in the pool */
    struct dispatch *dispatch;
    struct router_ticket ticket;
    uint64_t peer_id; /* 0: of this node */
};

/* A read point that a peer waits for. */
struct remote_point {
    struct replica_read read;
    struct list link; /* in the pool, or among those that wait */
    struct dispatch *dispatch;
    uint64_t peer_id;
    uint64_t ticket;
};

/* A round of this node's own reads. */
struct own_point {
    struct replica_read read;
    struct dispatch *dispatch;
    uint32_t round;
};

/* A whole read of a node without a table. */
struct remote_query {
    struct list link;
    struct dispatch_call call;
    struct dispatch *dispatch;
    struct proto_request request;
    struct key_item *keys; /* owned */
    uint8_t *bytes;        /* owned: what the request borrows from */
    size_t len;
    uint64_t peer_id;
    uint64_t ticket;
};

struct dispatch {
    struct replica *replica;
    struct transport transport;
    uint64_t (*clock_ns)(void *ctx);
    void *clock_ctx;
    struct router *router;
    struct forwarder *forwarder;
    struct leadership leadership;
    struct replica_view view;
    struct route route;
    bool view_changed;
    bool applied;
    uint64_t now_ns;
    uint64_t reading_ns; /* what reads of the table took in this turn */

    struct own_point own_points[READS_ROUNDS_MAX];
    struct list free_proposals;
    uint32_t free_proposal_count;
    uint32_t proposals; /* with the replica */
    struct list free_points;
    struct list points;
    uint32_t point_count;
    struct list queries;
    uint32_t query_count;
    size_t queries_len;

    uint64_t peers_up[PEERS_UP_MAX];
    uint32_t peer_count;
    uint64_t forward_number;
    uint64_t told_term;  /* the last term of its own that this node told its peers of */
    uint64_t tell_at_ns; /* spares are told again; UINT64_MAX: there are none */
    uint64_t probe_at_ns;
    bool unfinished; /* the last turn left something to do */

    struct buf command;
    struct buf frame;
    struct buf message;
    struct proto_decoder *decoder;
    struct read_answer answer;

    void (*drain_cb)(void *ctx);
    void *drain_ctx;
    uint64_t drain_deadline_ns;
    struct dispatch_stats stats;
};

static void see_time(struct dispatch *dispatch, uint64_t now_ns);
static void see_view(struct dispatch *dispatch);
static bool carry_out(struct dispatch *dispatch);
static void propose(struct dispatch *dispatch, const struct router_effect *effect);
static enum status propose_bytes(struct dispatch *dispatch, struct slice command,
                                 struct proposal *proposal);
static bool withdraw(void *ctx, void *proposal);
static void forward(struct dispatch *dispatch, const struct router_effect *effect);
static uint32_t left_ms(uint64_t deadline_ns, uint64_t now_ns);
static uint64_t deadline_ns_of(uint32_t left_ms, uint64_t now_ns);
static void reply(struct dispatch *dispatch, struct request *request,
                  const struct proto_reply *content);
static void carry_out_read(struct dispatch *dispatch, const struct read_effect *effect);
static void ask_peer(struct dispatch *dispatch, const struct read_effect *effect);
static void query_peer(struct dispatch *dispatch, const struct read_effect *effect);
static void answer_read(struct dispatch *dispatch, const struct read_effect *effect);
static void on_proposal(struct replica_proposal *replica, enum status status, struct slice result);
static void on_own_point(struct replica_read *read, enum status status, struct read_point point);
static void on_remote_point(struct replica_read *read, enum status status,
                            struct read_point point);
static void on_query_done(struct dispatch_call *call, const struct proto_reply *content);
static void receive_forward(struct dispatch *dispatch, uint64_t peer_id, struct slice payload);
static void receive_forward_reply(struct dispatch *dispatch, struct slice payload);
static void receive_read_point(struct dispatch *dispatch, uint64_t peer_id, struct slice payload);
static void receive_read_point_reply(struct dispatch *dispatch, struct slice payload);
static void receive_query(struct dispatch *dispatch, uint64_t peer_id, struct slice payload);
static void receive_query_reply(struct dispatch *dispatch, struct slice payload);
static void receive_leader(struct dispatch *dispatch, uint64_t peer_id, struct slice payload);
static enum status query_start(struct dispatch *dispatch, uint64_t peer_id,
                               const struct frame_query *frame);
static void query_free(struct remote_query *query);
static enum status leads(const struct dispatch *dispatch, uint64_t term);
static bool send_frame(struct dispatch *dispatch, uint64_t peer_id, enum frame_type type,
                       bool bulk);
static void send_forward_reply(struct dispatch *dispatch, uint64_t peer_id,
                               const struct frame_forward_reply *frame);
static void send_point_reply(struct dispatch *dispatch, uint64_t peer_id,
                             const struct frame_read_point_reply *frame);
static void send_query_reply(struct dispatch *dispatch, uint64_t peer_id,
                             const struct frame_query_reply *frame);
static void tell_leader(struct dispatch *dispatch, uint64_t peer_id);
static void tell_peers(struct dispatch *dispatch);
static bool has_log(const struct replica_member *members, unsigned count, uint64_t id);
static void probe(struct dispatch *dispatch);
static void drain_turn(struct dispatch *dispatch);
static struct proposal *proposal_take(struct dispatch *dispatch);
static void proposal_put(struct dispatch *dispatch, struct proposal *proposal);

struct dispatch *dispatch_create(const struct dispatch_config *config)
{
    struct dispatch *dispatch = calloc(1, sizeof *dispatch);
    CHECK(dispatch != NULL);
    dispatch->replica = config->replica;
    dispatch->transport = config->transport;
    dispatch->clock_ns = config->clock_ns;
    dispatch->clock_ctx = config->clock_ctx;
    struct rng rng;
    rng_init(&rng, config->seed);
    dispatch->router = router_create(rng_next(&rng), withdraw, dispatch);
    /* Half of the range: it only grows, and must not wrap. */
    dispatch->forward_number = rng_next(&rng) / 2;
    dispatch->forwarder = forwarder_create();
    leadership_init(&dispatch->leadership);
    list_init(&dispatch->free_proposals);
    list_init(&dispatch->free_points);
    list_init(&dispatch->points);
    list_init(&dispatch->queries);
    for (uint32_t i = 0; i < READS_ROUNDS_MAX; i++) {
        dispatch->own_points[i].dispatch = dispatch;
        dispatch->own_points[i].round = i;
        list_init(&dispatch->own_points[i].read.link);
    }
    buf_init(&dispatch->command, ENTRY_LEN_MAX);
    buf_init(&dispatch->frame, FRAME_LEN_MAX);
    buf_init(&dispatch->message, FRAME_LEN_MAX - FRAME_OVERHEAD_MAX);
    dispatch->decoder = proto_decoder_create();
    read_answer_init(&dispatch->answer);
    dispatch->view_changed = true;
    dispatch->tell_at_ns = UINT64_MAX;
    dispatch->drain_deadline_ns = UINT64_MAX;
    return dispatch;
}

enum status dispatch_submit(struct dispatch *dispatch, struct dispatch_call *call, uint64_t now_ns)
{
    see_time(dispatch, now_ns);
    if (dispatch->view_changed) {
        see_view(dispatch);
    }
    switch (dispatch->view.state) {
    case REPLICA_STATE_EMPTY:
        return STATUS_UNINITIALISED;
    case REPLICA_STATE_RUNNING:
        break;
    case REPLICA_STATE_FAILED:
    case REPLICA_STATE_CLOSED:
        return STATUS_CLOSING;
    }
    struct request *request = NULL;
    enum status st = router_submit(dispatch->router, call->request, call->deadline_ns, call,
                                   &request);
    if (st == STATUS_OK) {
        call->internal = request;
        dispatch->stats.calls++;
    }
    return st;
}

void dispatch_delivered(struct dispatch *dispatch, struct dispatch_call *call, bool wholly,
                        uint64_t now_ns)
{
    see_time(dispatch, now_ns);
    CHECK(call->internal != NULL);
    struct request *request = call->internal;
    call->internal = NULL;
    router_delivered(dispatch->router, request, wholly, dispatch->now_ns);
}

void dispatch_abandon(struct dispatch *dispatch, struct dispatch_call *call, uint64_t now_ns)
{
    see_time(dispatch, now_ns);
    CHECK(call->internal != NULL);
    struct request *request = call->internal;
    call->internal = NULL;
    router_abandon(dispatch->router, request, dispatch->now_ns);
}

void dispatch_receive(struct dispatch *dispatch, uint64_t peer_id, enum frame_type type,
                      struct slice payload, uint64_t now_ns)
{
    see_time(dispatch, now_ns);
    switch (type) {
    case FRAME_TYPE_REPLICA:
        replica_receive(dispatch->replica, peer_id, payload, dispatch->now_ns);
        return;
    case FRAME_TYPE_FORWARD:
        receive_forward(dispatch, peer_id, payload);
        return;
    case FRAME_TYPE_FORWARD_REPLY:
        receive_forward_reply(dispatch, payload);
        return;
    case FRAME_TYPE_READ_POINT:
        receive_read_point(dispatch, peer_id, payload);
        return;
    case FRAME_TYPE_READ_POINT_REPLY:
        receive_read_point_reply(dispatch, payload);
        return;
    case FRAME_TYPE_QUERY:
        receive_query(dispatch, peer_id, payload);
        return;
    case FRAME_TYPE_QUERY_REPLY:
        receive_query_reply(dispatch, payload);
        return;
    case FRAME_TYPE_LEADER:
        receive_leader(dispatch, peer_id, payload);
        return;
    case FRAME_TYPE_HELLO:
    case FRAME_TYPE_WELCOME:
    case FRAME_TYPE_REFUSED:
    case FRAME_TYPE_PING:
    case FRAME_TYPE_PEERS:
    case FRAME_TYPE_ADMIT:
    case FRAME_TYPE_ADMIT_REPLY:
        return; /* the link's and the node's; not for us */
    }
}

void dispatch_peer_up(struct dispatch *dispatch, uint64_t peer_id, uint64_t now_ns)
{
    see_time(dispatch, now_ns);
    bool known = false;
    for (uint32_t i = 0; i < dispatch->peer_count; i++) {
        known = known || dispatch->peers_up[i] == peer_id;
    }
    if (!known && dispatch->peer_count < PEERS_UP_MAX) {
        dispatch->peers_up[dispatch->peer_count++] = peer_id;
    }
    forwarder_peer_up(dispatch->forwarder, peer_id);
    replica_link_up(dispatch->replica, peer_id);
    if (dispatch->route.kind == ROUTE_KIND_SELF) {
        tell_leader(dispatch, peer_id);
        dispatch->tell_at_ns = min_u64(dispatch->tell_at_ns, dispatch->now_ns + TELL_NS);
    }
}

void dispatch_peer_down(struct dispatch *dispatch, uint64_t peer_id, uint64_t now_ns)
{
    see_time(dispatch, now_ns);
    for (uint32_t i = 0; i < dispatch->peer_count; i++) {
        if (dispatch->peers_up[i] == peer_id) {
            dispatch->peers_up[i] = dispatch->peers_up[--dispatch->peer_count];
            break;
        }
    }
    replica_link_down(dispatch->replica, peer_id, dispatch->now_ns);
    leadership_peer_down(&dispatch->leadership, peer_id);
    see_view(dispatch);
    router_peer_down(dispatch->router, peer_id, dispatch->now_ns);
}

void dispatch_peer_silent(struct dispatch *dispatch, uint64_t peer_id, uint64_t now_ns)
{
    see_time(dispatch, now_ns);
    replica_link_silent(dispatch->replica, peer_id, dispatch->now_ns);
}

/* A spare sends no message of a replica that would say so. */
void dispatch_peer_heard(struct dispatch *dispatch, uint64_t peer_id, uint64_t now_ns)
{
    see_time(dispatch, now_ns);
    replica_link_up(dispatch->replica, peer_id);
}

void dispatch_on_view(struct dispatch *dispatch)
{
    dispatch->view_changed = true;
}

void dispatch_on_applied(struct dispatch *dispatch, uint64_t index, const struct changes *changes)
{
    (void)index;
    (void)changes;
    dispatch->applied = true;
}

void dispatch_turn(struct dispatch *dispatch, uint64_t now_ns)
{
    see_time(dispatch, now_ns);
    dispatch->unfinished = true;
    dispatch->reading_ns = 0;
    reads_rest(router_reads(dispatch->router), false);
    for (unsigned pass = 0; pass < PASSES_MAX && dispatch->unfinished; pass++) {
        if (dispatch->view_changed) {
            see_view(dispatch);
        }
        if (dispatch->applied) {
            dispatch->applied = false;
            reads_applied(router_reads(dispatch->router));
        }
        router_tick(dispatch->router, dispatch->now_ns);
        if (dispatch->now_ns >= dispatch->tell_at_ns) {
            tell_peers(dispatch);
        }
        probe(dispatch);
        bool worked = carry_out(dispatch);
        if (pass > 0 && !worked) {
            dispatch->unfinished = false;
        } else {
            replica_turn(dispatch->replica, dispatch->now_ns);
        }
    }
    dispatch->unfinished = dispatch->unfinished ||
                           reads_kept_waiting(router_reads(dispatch->router));
    drain_turn(dispatch);
}

uint64_t dispatch_next_timer_ns(const struct dispatch *dispatch)
{
    uint64_t next_ns = min_u64(router_next_timer_ns(dispatch->router),
                               replica_next_timer_ns(dispatch->replica));
    next_ns = min_u64(next_ns, dispatch->tell_at_ns);
    next_ns = min_u64(next_ns, dispatch->drain_deadline_ns);
    next_ns = min_u64(next_ns, leadership_ready_until_ns(&dispatch->leadership,
                                                         dispatch->now_ns));
    if (dispatch->unfinished) {
        next_ns = min_u64(next_ns, dispatch->now_ns);
    }
    if (leadership_wants_probe(&dispatch->leadership)) {
        next_ns = min_u64(next_ns, dispatch->probe_at_ns);
    }
    return next_ns;
}

void dispatch_stalled(struct dispatch *dispatch, uint64_t stall_ns, uint64_t now_ns)
{
    see_time(dispatch, now_ns);
    forwarder_stalled(dispatch->forwarder, stall_ns, dispatch->now_ns);
}

void dispatch_view(const struct dispatch *dispatch, struct dispatch_view *out_view)
{
    *out_view = (struct dispatch_view){0};
    out_view->leader_id = leadership_leader(&dispatch->leadership, &out_view->leader_term,
                                            &out_view->leader_serving);
    out_view->ready = leadership_ready(&dispatch->leadership, dispatch->now_ns,
                                       &out_view->ready_checked_ns);
}

void dispatch_stats(const struct dispatch *dispatch, struct dispatch_stats *out_stats)
{
    struct router_stats router;
    router_stats(dispatch->router, &router);
    *out_stats = dispatch->stats;
    out_stats->calls_waiting = router.waiting;
    out_stats->calls_unknown = router.unknown;
    out_stats->calls_unavailable = router.unavailable;
    out_stats->resubmissions = router.resubmissions;
    out_stats->settles = router.settles;
    out_stats->settling = router.settling;
    out_stats->origins = router.origins;
}

void dispatch_drain(struct dispatch *dispatch, uint64_t deadline_ns, void (*cb)(void *ctx),
                    void *ctx)
{
    CHECK(dispatch->drain_cb == NULL && cb != NULL);
    router_close(dispatch->router);
    dispatch->drain_cb = cb;
    dispatch->drain_ctx = ctx;
    dispatch->drain_deadline_ns = deadline_ns;
}

void dispatch_destroy(struct dispatch *dispatch)
{
    if (dispatch == NULL) {
        return;
    }
    /* The replica was closed first: it has completed all that it was given. */
    CHECK(dispatch->proposals == 0);
    struct list *link;
    while ((link = list_pop(&dispatch->free_proposals)) != NULL) {
        free(CONTAINER_OF(link, struct proposal, link));
    }
    while ((link = list_pop(&dispatch->free_points)) != NULL) {
        free(CONTAINER_OF(link, struct remote_point, link));
    }
    CHECK(list_empty(&dispatch->points));
    while ((link = list_first(&dispatch->queries)) != NULL) {
        query_free(CONTAINER_OF(link, struct remote_query, link));
    }
    router_destroy(dispatch->router);
    forwarder_destroy(dispatch->forwarder);
    proto_decoder_destroy(dispatch->decoder);
    read_answer_deinit(&dispatch->answer);
    buf_deinit(&dispatch->command);
    buf_deinit(&dispatch->frame);
    buf_deinit(&dispatch->message);
    free(dispatch);
}

static void see_time(struct dispatch *dispatch, uint64_t now_ns)
{
    dispatch->now_ns = max_u64(dispatch->now_ns, now_ns);
}

/* Ask the replica again what it is, and tell the router where the leader is. */
static void see_view(struct dispatch *dispatch)
{
    dispatch->view_changed = false;
    replica_view(dispatch->replica, &dispatch->view);
    const struct replica_view *view = &dispatch->view;
    struct leadership_replica replica = {
        .node_id = view->node_id,
        .running = view->state == REPLICA_STATE_RUNNING,
        .has_table = view->role == REPLICA_MEMBER_ROLE_VOTER ||
                     view->role == REPLICA_MEMBER_ROLE_STANDBY,
        .leader = view->leader,
        .serving = view->serving && !view->transferring,
        .term = view->term,
        .leader_id = view->leader_id,
    };
    leadership_set_replica(&dispatch->leadership, &replica);
    dispatch->route = leadership_route(&dispatch->leadership);
    router_set_route(dispatch->router, &dispatch->route, dispatch->now_ns);
    if (dispatch->route.kind != ROUTE_KIND_SELF) {
        dispatch->tell_at_ns = UINT64_MAX;
    } else if (dispatch->told_term != dispatch->route.term) {
        dispatch->told_term = dispatch->route.term;
        for (uint32_t i = 0; i < dispatch->peer_count; i++) {
            tell_leader(dispatch, dispatch->peers_up[i]);
        }
        dispatch->tell_at_ns = dispatch->now_ns + TELL_NS;
    }
}

/* True when there was anything to do. */
static bool carry_out(struct dispatch *dispatch)
{
    bool worked = false;
    struct router_effect effect;
    const struct transport *transport = &dispatch->transport;
    router_hold_forwards(dispatch->router,
                         dispatch->route.kind == ROUTE_KIND_PEER &&
                             transport->waits(transport->ctx, dispatch->route.peer_id));
    while (router_next_effect(dispatch->router, dispatch->now_ns, &effect)) {
        worked = true;
        switch (effect.kind) {
        case ROUTER_EFFECT_KIND_PROPOSE:
            propose(dispatch, &effect);
            break;
        case ROUTER_EFFECT_KIND_FORWARD:
            forward(dispatch, &effect);
            break;
        case ROUTER_EFFECT_KIND_REPLY:
            reply(dispatch, effect.request, &effect.reply);
            break;
        case ROUTER_EFFECT_KIND_READ:
            carry_out_read(dispatch, &effect.read);
            break;
        }
    }
    return worked;
}

static void propose(struct dispatch *dispatch, const struct router_effect *effect)
{
    buf_clear(&dispatch->command);
    command_encode(&effect->command, &dispatch->command);
    struct proposal *proposal = proposal_take(dispatch);
    proposal->ticket = effect->ticket;
    proposal->replica.deadline_ns = effect->deadline_ns;
    enum status st = propose_bytes(dispatch, buf_slice(&dispatch->command), proposal);
    if (st == STATUS_OK) {
        router_proposed(dispatch->router, effect->ticket, proposal);
    } else {
        router_answered(dispatch->router, effect->ticket, st, (struct slice){0},
                        dispatch->now_ns);
    }
}

/* The proposal is in the pool again unless the replica took it. */
static enum status propose_bytes(struct dispatch *dispatch, struct slice command,
                                 struct proposal *proposal)
{
    enum status st = replica_propose(dispatch->replica, command, &proposal->replica);
    if (st == STATUS_OK) {
        dispatch->proposals++;
    } else {
        proposal_put(dispatch, proposal);
    }
    return st;
}

static bool withdraw(void *ctx, void *proposal_ctx)
{
    struct dispatch *dispatch = ctx;
    struct proposal *proposal = proposal_ctx;
    bool gone = replica_proposal_cancel(dispatch->replica, &proposal->replica);
    if (gone) {
        proposal_put(dispatch, proposal);
        dispatch->proposals--;
    }
    return gone;
}

static void forward(struct dispatch *dispatch, const struct router_effect *effect)
{
    uint32_t left = left_ms(effect->deadline_ns, dispatch->now_ns);
    enum status st = STATUS_DEADLINE;
    if (left > 0) {
        buf_clear(&dispatch->command);
        command_encode(&effect->command, &dispatch->command);
        struct frame_forward frame = {
            .number = ++dispatch->forward_number,
            .ticket = effect->ticket.id,
            .attempt = effect->ticket.attempt,
            .term = effect->term,
            .left_ms = left,
            .command = buf_slice(&dispatch->command),
        };
        buf_clear(&dispatch->frame);
        frame_forward_encode(&frame, &dispatch->frame);
        dispatch->stats.forwards_sent++;
        st = send_frame(dispatch, effect->peer_id, FRAME_TYPE_FORWARD, false) ? STATUS_OK
                                                                        : STATUS_NOT_CONNECTED;
    }
    if (st != STATUS_OK) {
        router_answered(dispatch->router, effect->ticket, st, (struct slice){0},
                        dispatch->now_ns);
    }
}

/* Fractions are cut, so that nobody has more time than there is. */
static uint32_t left_ms(uint64_t deadline_ns, uint64_t now_ns)
{
    if (deadline_ns == UINT64_MAX) {
        return PEER_FRAME_NO_DEADLINE;
    }
    uint64_t left = ns_to_ms_floor(sub_or_zero_u64(deadline_ns, now_ns));
    return (uint32_t)min_u64(left, PEER_FRAME_NO_DEADLINE - 1);
}

/* Counted from receipt. */
static uint64_t deadline_ns_of(uint32_t left, uint64_t now_ns)
{
    return left == PEER_FRAME_NO_DEADLINE ? UINT64_MAX : now_ns + ms_to_ns(left);
}

/* The request has been handed over to whoever asked; a peer's read is delivered by that. */
static void reply(struct dispatch *dispatch, struct request *request,
                  const struct proto_reply *content)
{
    struct dispatch_call *call = request->owner;
    bool of_peer = request->no_hop;
    call->on_done(call, content);
    if (of_peer) {
        router_delivered(dispatch->router, request, true, dispatch->now_ns);
        query_free(CONTAINER_OF(call, struct remote_query, call));
    }
}

static void carry_out_read(struct dispatch *dispatch, const struct read_effect *effect)
{
    switch (effect->kind) {
    case READ_EFFECT_KIND_ASK_HERE:
    case READ_EFFECT_KIND_WAIT: {
        struct replica_read *read = &dispatch->own_points[effect->round].read;
        read->cb = on_own_point;
        read->point = (struct read_point){.index = effect->index};
        enum status st = effect->kind == READ_EFFECT_KIND_WAIT
                             ? replica_read_wait(dispatch->replica, read)
                             : replica_read_start(dispatch->replica, read);
        if (st != STATUS_OK) {
            (void)reads_reached(router_reads(dispatch->router), effect->round, st, 0,
                                dispatch->now_ns);
        }
        return;
    }
    case READ_EFFECT_KIND_CANCEL:
        replica_read_cancel(dispatch->replica, &dispatch->own_points[effect->round].read);
        return;
    case READ_EFFECT_KIND_ASK_PEER:
        ask_peer(dispatch, effect);
        return;
    case READ_EFFECT_KIND_QUERY:
        query_peer(dispatch, effect);
        return;
    case READ_EFFECT_KIND_ANSWER: {
        uint64_t start_ns = dispatch->clock_ns(dispatch->clock_ctx);
        answer_read(dispatch, effect);
        dispatch->reading_ns += dispatch->clock_ns(dispatch->clock_ctx) - start_ns;
        reads_rest(router_reads(dispatch->router), dispatch->reading_ns >= READS_TURN_NS);
        return;
    }
    case READ_EFFECT_KIND_FAIL:
        CHECK(false); /* the router makes a reply of it */
        return;
    }
}

static void ask_peer(struct dispatch *dispatch, const struct read_effect *effect)
{
    struct frame_read_point frame = {.ticket = effect->ticket, .term = effect->term};
    buf_clear(&dispatch->frame);
    frame_read_point_encode(&frame, &dispatch->frame);
    if (!send_frame(dispatch, effect->peer_id, FRAME_TYPE_READ_POINT, false)) {
        struct reads_point_reply unsent = {
            .ticket = effect->ticket,
            .status = STATUS_NOT_CONNECTED,
        };
        reads_point(router_reads(dispatch->router), &unsent, dispatch->now_ns);
    }
}

static void query_peer(struct dispatch *dispatch, const struct read_effect *effect)
{
    /* The deadline travels as milliseconds left; the clock of another host means nothing there. */
    struct proto_request request = *effect->request->asked;
    request.id = 1; /* 0 would speak of a whole connection */
    request.deadline_ns = 0;
    buf_clear(&dispatch->message);
    proto_encode_request(&request, &dispatch->message);
    struct frame_query frame = {
        .ticket = effect->ticket,
        .term = effect->term,
        .left_ms = left_ms(effect->request->deadline_ns, dispatch->now_ns),
        .request = buf_slice(&dispatch->message),
    };
    buf_clear(&dispatch->frame);
    frame_query_encode(&frame, &dispatch->frame);
    if (!send_frame(dispatch, effect->peer_id, FRAME_TYPE_QUERY, false)) {
        (void)reads_query_answered(router_reads(dispatch->router), effect->ticket,
                                   STATUS_NOT_CONNECTED, dispatch->now_ns);
    }
}

static void answer_read(struct dispatch *dispatch, const struct read_effect *effect)
{
    struct request *request = effect->request;
    const struct fsm *fsm = replica_fsm(dispatch->replica);
    struct proto_reply content;
    if (fsm == NULL) {
        request_error_reply(request, STATUS_CLOSING, &content);
    } else if (!request->asked->stale && !effect->final &&
               read_answer_shows_due(fsm, request->asked, request->read_clock_ms)) {
        dispatch->stats.reads_waited_due += request->due_until_ns == 0 ? 1 : 0;
        reads_due(router_reads(dispatch->router), request, dispatch->now_ns);
        return;
    } else {
        read_answer_make(&dispatch->answer, fsm, request->asked, request->read_clock_ms,
                         &content);
    }
    dispatch->stats.reads++;
    router_read_done(dispatch->router, request);
    reply(dispatch, request, &content);
}

static void on_proposal(struct replica_proposal *replica, enum status status, struct slice result)
{
    struct proposal *proposal = CONTAINER_OF(replica, struct proposal, replica);
    struct dispatch *dispatch = proposal->dispatch;
    struct router_ticket ticket = proposal->ticket;
    uint64_t peer_id = proposal->peer_id;
    proposal_put(dispatch, proposal);
    dispatch->proposals--;
    if (peer_id == 0) {
        router_answered(dispatch->router, ticket, status, result, dispatch->now_ns);
        return;
    }
    forwarder_done(dispatch->forwarder, peer_id);
    struct frame_forward_reply frame = {
        .ticket = ticket.id,
        .attempt = ticket.attempt,
        .status = status,
        .result = result,
    };
    send_forward_reply(dispatch, peer_id, &frame);
}

static void on_own_point(struct replica_read *read, enum status status, struct read_point point)
{
    struct own_point *own = CONTAINER_OF(read, struct own_point, read);
    struct dispatch *dispatch = own->dispatch;
    uint64_t term = reads_reached(router_reads(dispatch->router), own->round, status,
                                  point.clock_ms, dispatch->now_ns);
    if (term != 0) {
        leadership_reached(&dispatch->leadership, term, dispatch->now_ns);
    }
}

static void on_remote_point(struct replica_read *read, enum status status, struct read_point point)
{
    struct remote_point *remote = CONTAINER_OF(read, struct remote_point, read);
    struct dispatch *dispatch = remote->dispatch;
    list_remove(&remote->link);
    list_append(&dispatch->free_points, &remote->link);
    dispatch->point_count--;
    struct frame_read_point_reply frame = {
        .ticket = remote->ticket,
        .status = status,
        .index = point.index,
        .clock_ms = point.clock_ms,
    };
    send_point_reply(dispatch, remote->peer_id, &frame);
}

static void on_query_done(struct dispatch_call *call, const struct proto_reply *content)
{
    struct remote_query *query = CONTAINER_OF(call, struct remote_query, call);
    struct dispatch *dispatch = query->dispatch;
    struct frame_query_reply frame = {.ticket = query->ticket, .status = content->status};
    if (content->status == STATUS_OK) {
        buf_clear(&dispatch->message);
        proto_encode_reply(content, &dispatch->message);
        bool fits = !buf_overflown(&dispatch->message) &&
                    dispatch->message.len <= PEER_FRAME_MESSAGE_LEN_MAX;
        frame.status = fits ? STATUS_OK : STATUS_TOO_LARGE;
        frame.reply = buf_slice(&dispatch->message);
    }
    send_query_reply(dispatch, query->peer_id, &frame);
}

static void receive_forward(struct dispatch *dispatch, uint64_t peer_id, struct slice payload)
{
    struct frame_forward frame;
    if (frame_forward_decode(payload, &frame) != STATUS_OK) {
        dispatch->stats.forwards_refused++;
        return;
    }
    dispatch->stats.forwards_received++;
    if (dispatch->view_changed) {
        see_view(dispatch);
    }
    struct forwarder_self self = {
        .leader = dispatch->view.leader,
        .serving = dispatch->view.serving,
        .term = dispatch->view.term,
    };
    enum status st = STATUS_OK;
    switch (forwarder_judge(dispatch->forwarder, peer_id, &frame, &self, dispatch->now_ns)) {
    case FORWARD_VERDICT_DROP:
        dispatch->stats.forwards_refused++;
        return;
    case FORWARD_VERDICT_REFUSE:
        st = forwarder_why(dispatch->forwarder);
        break;
    case FORWARD_VERDICT_ACCEPT: {
        struct proposal *proposal = proposal_take(dispatch);
        proposal->ticket = (struct router_ticket){.id = frame.ticket, .attempt = frame.attempt};
        proposal->peer_id = peer_id;
        proposal->replica.deadline_ns = deadline_ns_of(frame.left_ms, dispatch->now_ns);
        st = propose_bytes(dispatch, frame.command, proposal);
        if (st == STATUS_OK) {
            return;
        }
        forwarder_done(dispatch->forwarder, peer_id);
        break;
    }
    }
    dispatch->stats.forwards_refused++;
    struct frame_forward_reply refused = {
        .ticket = frame.ticket,
        .attempt = frame.attempt,
        .status = st,
    };
    send_forward_reply(dispatch, peer_id, &refused);
    if (st == STATUS_NOT_LEADER || st == STATUS_WRONG_TERM) {
        tell_leader(dispatch, peer_id);
    }
}

static void receive_forward_reply(struct dispatch *dispatch, struct slice payload)
{
    struct frame_forward_reply frame;
    if (frame_forward_reply_decode(payload, &frame) == STATUS_OK) {
        struct router_ticket ticket = {.id = frame.ticket, .attempt = frame.attempt};
        router_answered(dispatch->router, ticket, frame.status, frame.result, dispatch->now_ns);
    }
}

static void receive_read_point(struct dispatch *dispatch, uint64_t peer_id, struct slice payload)
{
    struct frame_read_point frame;
    if (frame_read_point_decode(payload, &frame) != STATUS_OK) {
        return;
    }
    enum status st = leads(dispatch, frame.term);
    if (st == STATUS_OK && dispatch->point_count >= POINTS_MAX) {
        st = STATUS_OVERLOADED;
    }
    if (st == STATUS_OK) {
        struct list *link = list_pop(&dispatch->free_points);
        struct remote_point *remote = NULL;
        if (link != NULL) {
            remote = CONTAINER_OF(link, struct remote_point, link);
        } else {
            remote = calloc(1, sizeof *remote);
            CHECK(remote != NULL);
            list_init(&remote->link);
            list_init(&remote->read.link);
        }
        remote->dispatch = dispatch;
        remote->peer_id = peer_id;
        remote->ticket = frame.ticket;
        remote->read.cb = on_remote_point;
        st = replica_read_start(dispatch->replica, &remote->read);
        list_append(st == STATUS_OK ? &dispatch->points : &dispatch->free_points, &remote->link);
        dispatch->point_count += st == STATUS_OK ? 1 : 0;
    }
    if (st != STATUS_OK) {
        struct frame_read_point_reply refused = {.ticket = frame.ticket, .status = st};
        send_point_reply(dispatch, peer_id, &refused);
    }
}

static void receive_read_point_reply(struct dispatch *dispatch, struct slice payload)
{
    struct frame_read_point_reply frame;
    if (frame_read_point_reply_decode(payload, &frame) == STATUS_OK) {
        struct reads_point_reply content = {
            .ticket = frame.ticket,
            .status = frame.status,
            .index = frame.index,
            .clock_ms = frame.clock_ms,
        };
        reads_point(router_reads(dispatch->router), &content, dispatch->now_ns);
    }
}

static void receive_query(struct dispatch *dispatch, uint64_t peer_id, struct slice payload)
{
    struct frame_query frame;
    if (frame_query_decode(payload, &frame) != STATUS_OK) {
        return;
    }
    enum status st = query_start(dispatch, peer_id, &frame);
    if (st != STATUS_OK) {
        struct frame_query_reply refused = {.ticket = frame.ticket, .status = st};
        send_query_reply(dispatch, peer_id, &refused);
    }
}

static void receive_query_reply(struct dispatch *dispatch, struct slice payload)
{
    struct frame_query_reply frame;
    if (frame_query_reply_decode(payload, &frame) != STATUS_OK) {
        return;
    }
    struct request *request = reads_query_answered(router_reads(dispatch->router), frame.ticket,
                                                   frame.status, dispatch->now_ns);
    if (request == NULL) {
        return;
    }
    struct proto_reply content;
    enum status st = frame.status == STATUS_OK
                         ? proto_decode_reply(dispatch->decoder, frame.reply,
                                              request->asked->method, &content)
                         : frame.status;
    if (st == STATUS_OK) {
        leadership_reached(&dispatch->leadership, dispatch->route.term, dispatch->now_ns);
    } else {
        request_error_reply(request, STATUS_INTERNAL, &content);
    }
    dispatch->stats.reads++;
    router_read_done(dispatch->router, request);
    reply(dispatch, request, &content);
}

static void receive_leader(struct dispatch *dispatch, uint64_t peer_id, struct slice payload)
{
    struct frame_leader frame;
    if (frame_leader_decode(payload, &frame) == STATUS_OK) {
        struct leadership_news news = {
            .peer_id = peer_id,
            .term = frame.term,
            .leader_id = frame.leader_id,
            .serving = frame.serving,
        };
        leadership_heard(&dispatch->leadership, &news, dispatch->now_ns);
        see_view(dispatch);
    }
}

/* A whole read of a peer becomes a call of our own that may not be passed on. */
static enum status query_start(struct dispatch *dispatch, uint64_t peer_id,
                               const struct frame_query *frame)
{
    enum status st = leads(dispatch, frame->term);
    if (st != STATUS_OK) {
        return st;
    }
    if (frame->left_ms == 0) {
        return STATUS_DEADLINE;
    }
    if (dispatch->query_count >= QUERIES_MAX ||
        frame->request.len > QUERIES_LEN_MAX - dispatch->queries_len) {
        return STATUS_OVERLOADED;
    }
    struct remote_query *query = calloc(1, sizeof *query);
    CHECK(query != NULL);
    list_init(&query->link);
    query->dispatch = dispatch;
    query->peer_id = peer_id;
    query->ticket = frame->ticket;
    query->len = frame->request.len;
    query->bytes = malloc(query->len);
    CHECK(query->bytes != NULL);
    memcpy(query->bytes, frame->request.base, query->len);
    list_append(&dispatch->queries, &query->link);
    dispatch->query_count++;
    dispatch->queries_len += query->len;

    struct violation violation;
    st = proto_decode_request(dispatch->decoder, slice_from(query->bytes, query->len),
                              dispatch->now_ns, &query->request, &violation);
    bool read = query->request.method == PROTO_METHOD_OWNER ||
                query->request.method == PROTO_METHOD_LIST ||
                query->request.method == PROTO_METHOD_COUNT;
    if (st != STATUS_OK || !read) {
        query_free(query);
        return STATUS_INVALID;
    }
    if (query->request.op.key_count > 0) {
        size_t len = query->request.op.key_count * sizeof *query->keys;
        query->keys = malloc(len);
        CHECK(query->keys != NULL);
        memcpy(query->keys, query->request.op.keys, len);
        query->request.op.keys = query->keys;
    }
    uint64_t left_max_ms = min_u64(frame->left_ms, DEADLINE_MS_MAX);
    query->call.on_done = on_query_done;
    struct request *request = NULL;
    st = router_submit_query(dispatch->router, &query->request,
                             dispatch->now_ns + ms_to_ns(left_max_ms), &query->call, &request);
    if (st != STATUS_OK) {
        query_free(query);
    }
    return st;
}

static void query_free(struct remote_query *query)
{
    query->dispatch->query_count--;
    query->dispatch->queries_len -= query->len;
    list_remove(&query->link);
    free(query->keys);
    free(query->bytes);
    free(query);
}

/* Whether a read of a peer, meant for the leader of that term, may be served here and now. */
static enum status leads(const struct dispatch *dispatch, uint64_t term)
{
    const struct replica_view *view = &dispatch->view;
    if (!view->leader) {
        return STATUS_NOT_LEADER;
    }
    if (view->term != term) {
        return STATUS_WRONG_TERM;
    }
    if (!view->serving) {
        return STATUS_NOT_SERVING;
    }
    return forwarder_suspects(dispatch->forwarder, dispatch->now_ns) ? STATUS_OVERLOADED
                                                                     : STATUS_OK;
}

/* What stands in `frame`. */
static bool send_frame(struct dispatch *dispatch, uint64_t peer_id, enum frame_type type,
                       bool bulk)
{
    CHECK(!buf_overflown(&dispatch->frame));
    return dispatch->transport.send(dispatch->transport.ctx, peer_id, type, bulk,
                                    buf_slice(&dispatch->frame));
}

/* A reply that cannot be sent is lost, as if the network had lost it: the asker asks again. */
static void send_forward_reply(struct dispatch *dispatch, uint64_t peer_id,
                               const struct frame_forward_reply *frame)
{
    buf_clear(&dispatch->frame);
    frame_forward_reply_encode(frame, &dispatch->frame);
    (void)send_frame(dispatch, peer_id, FRAME_TYPE_FORWARD_REPLY, false);
}

static void send_point_reply(struct dispatch *dispatch, uint64_t peer_id,
                             const struct frame_read_point_reply *frame)
{
    buf_clear(&dispatch->frame);
    frame_read_point_reply_encode(frame, &dispatch->frame);
    (void)send_frame(dispatch, peer_id, FRAME_TYPE_READ_POINT_REPLY, false);
}

/* Pages are large and may wait behind everything else. */
static void send_query_reply(struct dispatch *dispatch, uint64_t peer_id,
                             const struct frame_query_reply *frame)
{
    buf_clear(&dispatch->frame);
    frame_query_reply_encode(frame, &dispatch->frame);
    (void)send_frame(dispatch, peer_id, FRAME_TYPE_QUERY_REPLY, true);
}

/* What is known here of who leads. */
static void tell_leader(struct dispatch *dispatch, uint64_t peer_id)
{
    struct frame_leader frame = {0};
    frame.leader_id = leadership_leader(&dispatch->leadership, &frame.term, &frame.serving);
    if (frame.leader_id == 0 || frame.leader_id == peer_id) {
        return;
    }
    buf_clear(&dispatch->frame);
    frame_leader_encode(&frame, &dispatch->frame);
    (void)send_frame(dispatch, peer_id, FRAME_TYPE_LEADER, false);
}

/* Peers without a log hear of their leader in no other way; members do by their log. */
static void tell_peers(struct dispatch *dispatch)
{
    struct replica_member members[REPLICA_MEMBERS_MAX];
    unsigned member_count = replica_members(dispatch->replica, members);
    dispatch->tell_at_ns = UINT64_MAX;
    for (uint32_t i = 0; i < dispatch->peer_count; i++) {
        if (!has_log(members, member_count, dispatch->peers_up[i])) {
            tell_leader(dispatch, dispatch->peers_up[i]);
            dispatch->tell_at_ns = dispatch->now_ns + TELL_NS;
        }
    }
}

static bool has_log(const struct replica_member *members, unsigned count, uint64_t id)
{
    for (unsigned i = 0; i < count; i++) {
        if (members[i].id == id) {
            return members[i].role == REPLICA_MEMBER_ROLE_VOTER ||
                   members[i].role == REPLICA_MEMBER_ROLE_STANDBY;
        }
    }
    return false;
}

/* Not ready yet: is the table as far as the leader's? */
static void probe(struct dispatch *dispatch)
{
    if (leadership_wants_probe(&dispatch->leadership) &&
        dispatch->now_ns >= dispatch->probe_at_ns) {
        dispatch->probe_at_ns = dispatch->now_ns + PROBE_NS;
        reads_want_probe(router_reads(dispatch->router));
    }
}

static void drain_turn(struct dispatch *dispatch)
{
    if (dispatch->drain_cb == NULL) {
        return;
    }
    if (dispatch->now_ns >= dispatch->drain_deadline_ns) {
        router_end(dispatch->router, dispatch->now_ns);
        (void)carry_out(dispatch);
    } else if (!router_idle(dispatch->router)) {
        return;
    }
    void (*cb)(void *ctx) = dispatch->drain_cb;
    dispatch->drain_cb = NULL;
    dispatch->drain_deadline_ns = UINT64_MAX;
    cb(dispatch->drain_ctx);
}

static struct proposal *proposal_take(struct dispatch *dispatch)
{
    struct list *link = list_pop(&dispatch->free_proposals);
    struct proposal *proposal = NULL;
    if (link != NULL) {
        proposal = CONTAINER_OF(link, struct proposal, link);
        dispatch->free_proposal_count--;
    } else {
        proposal = calloc(1, sizeof *proposal);
        CHECK(proposal != NULL);
        list_init(&proposal->link);
        proposal->replica.cb = on_proposal;
    }
    proposal->dispatch = dispatch;
    proposal->peer_id = 0;
    return proposal;
}

static void proposal_put(struct dispatch *dispatch, struct proposal *proposal)
{
    if (dispatch->free_proposal_count < POOL_MAX) {
        dispatch->free_proposal_count++;
        list_append(&dispatch->free_proposals, &proposal->link);
    } else {
        free(proposal);
    }
}
