/* The router decides; here its effects become calls of the replica and frames of the transport, and
 * what comes back becomes its events.
 *
 * Replies are handed out only while effects are carried out, at the end of a turn, so that a caller
 * may submit again from inside on_done. The replica's callbacks only write down; whatever they
 * cause happens in the same turn's end. Memory of proposals, remote reads and remote points is
 * pooled: each lives until the replica has completed it, however long ago its request was
 * answered.
 *
 * Here are its life, its turns and what is known of peers and leader; what becomes of commands is
 * in dispatch_writes.c, of reads in dispatch_reads.c. */
#include "node/dispatch_internal.h"

#include <stdlib.h>

#include "fsm/base/rng.h"

/* A spare hears of its leader this often; below LEADERSHIP_HEARD_NS / 2. */
#define TELL_NS (400u * NS_PER_MS)

#define PROBE_NS           (100u * NS_PER_MS)
#define FRAME_OVERHEAD_MAX 64u

/* Effects that cause effects within one turn; the rest waits for the next. */
#define PASSES_MAX 4u

static void see_time(struct dispatch *dispatch, uint64_t now_ns);
static bool carry_out(struct dispatch *dispatch);
static void receive_leader(struct dispatch *dispatch, uint64_t peer_id, struct slice payload);
static void tell_peers(struct dispatch *dispatch);
static bool has_log(const struct replica_member *members, unsigned count, uint64_t id);
static void probe(struct dispatch *dispatch);
static void drain_turn(struct dispatch *dispatch);

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
    dispatch->router = router_create(rng_next(&rng), dispatch_withdraw, dispatch);
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
        dispatch_see_view(dispatch);
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
    enum status st =
        router_submit(dispatch->router, call->request, call->deadline_ns, call, &request);
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
        dispatch_receive_forward(dispatch, peer_id, payload);
        return;
    case FRAME_TYPE_FORWARD_REPLY:
        dispatch_receive_forward_reply(dispatch, payload);
        return;
    case FRAME_TYPE_READ_POINT:
        dispatch_receive_read_point(dispatch, peer_id, payload);
        return;
    case FRAME_TYPE_READ_POINT_REPLY:
        dispatch_receive_read_point_reply(dispatch, payload);
        return;
    case FRAME_TYPE_QUERY:
        dispatch_receive_query(dispatch, peer_id, payload);
        return;
    case FRAME_TYPE_QUERY_REPLY:
        dispatch_receive_query_reply(dispatch, payload);
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
        dispatch_tell_leader(dispatch, peer_id);
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
    dispatch_see_view(dispatch);
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
            dispatch_see_view(dispatch);
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
    dispatch->unfinished =
        dispatch->unfinished || reads_kept_waiting(router_reads(dispatch->router));
    drain_turn(dispatch);
}

uint64_t dispatch_next_timer_ns(const struct dispatch *dispatch)
{
    uint64_t next_ns =
        min_u64(router_next_timer_ns(dispatch->router), replica_next_timer_ns(dispatch->replica));
    next_ns = min_u64(next_ns, dispatch->tell_at_ns);
    next_ns = min_u64(next_ns, dispatch->drain_deadline_ns);
    next_ns = min_u64(next_ns, leadership_ready_until_ns(&dispatch->leadership, dispatch->now_ns));
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
    out_view->leader_id =
        leadership_leader(&dispatch->leadership, &out_view->leader_term, &out_view->leader_serving);
    out_view->ready =
        leadership_ready(&dispatch->leadership, dispatch->now_ns, &out_view->ready_checked_ns);
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
        dispatch_query_free(CONTAINER_OF(link, struct remote_query, link));
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
void dispatch_see_view(struct dispatch *dispatch)
{
    dispatch->view_changed = false;
    replica_view(dispatch->replica, &dispatch->view);
    const struct replica_view *view = &dispatch->view;
    struct leadership_replica replica = {
        .node_id = view->node_id,
        .running = view->state == REPLICA_STATE_RUNNING,
        .has_table =
            view->role == REPLICA_MEMBER_ROLE_VOTER || view->role == REPLICA_MEMBER_ROLE_STANDBY,
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
            dispatch_tell_leader(dispatch, dispatch->peers_up[i]);
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
            dispatch_propose(dispatch, &effect);
            break;
        case ROUTER_EFFECT_KIND_FORWARD:
            dispatch_forward(dispatch, &effect);
            break;
        case ROUTER_EFFECT_KIND_REPLY:
            dispatch_reply(dispatch, effect.request, &effect.reply);
            break;
        case ROUTER_EFFECT_KIND_READ:
            dispatch_read(dispatch, &effect.read);
            break;
        }
    }
    return worked;
}

/* The request has been handed over to whoever asked; a peer's read is delivered by that. */
void dispatch_reply(struct dispatch *dispatch, struct request *request,
                    const struct proto_reply *content)
{
    struct dispatch_call *call = request->owner;
    bool of_peer = request->no_hop;
    call->on_done(call, content);
    if (of_peer) {
        router_delivered(dispatch->router, request, true, dispatch->now_ns);
        dispatch_query_free(CONTAINER_OF(call, struct remote_query, call));
    }
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
        dispatch_see_view(dispatch);
    }
}

/* What stands in `frame`. */
bool dispatch_send_frame(struct dispatch *dispatch, uint64_t peer_id, enum frame_type type,
                         bool bulk)
{
    CHECK(!buf_overflown(&dispatch->frame));
    return dispatch->transport.send(dispatch->transport.ctx, peer_id, type, bulk,
                                    buf_slice(&dispatch->frame));
}

/* What is known here of who leads. */
void dispatch_tell_leader(struct dispatch *dispatch, uint64_t peer_id)
{
    struct frame_leader frame = {0};
    frame.leader_id = leadership_leader(&dispatch->leadership, &frame.term, &frame.serving);
    if (frame.leader_id == 0 || frame.leader_id == peer_id) {
        return;
    }
    buf_clear(&dispatch->frame);
    frame_leader_encode(&frame, &dispatch->frame);
    (void)dispatch_send_frame(dispatch, peer_id, FRAME_TYPE_LEADER, false);
}

/* Peers without a log hear of their leader in no other way; members do by their log. */
static void tell_peers(struct dispatch *dispatch)
{
    struct replica_member members[REPLICA_MEMBERS_MAX];
    unsigned member_count = replica_members(dispatch->replica, members);
    dispatch->tell_at_ns = UINT64_MAX;
    for (uint32_t i = 0; i < dispatch->peer_count; i++) {
        if (!has_log(members, member_count, dispatch->peers_up[i])) {
            dispatch_tell_leader(dispatch, dispatch->peers_up[i]);
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
