/* Reads: this node's own, by a point of the log reached here or as a whole at the leader, and the
 * points and whole reads that peers ask this leader for. */
#include "node/dispatch_internal.h"

#include <stdlib.h>

#define POINTS_MAX      1024u            /* read points that peers wait for */
#define QUERIES_MAX     1024u            /* whole reads of peers */
#define QUERIES_LEN_MAX (64u * MIB)      /* their bytes together */
#define READS_TURN_NS   (5u * NS_PER_MS) /* reading the table in one turn; the rest waits */

static void ask_peer(struct dispatch *dispatch, const struct read_effect *effect);
static void query_peer(struct dispatch *dispatch, const struct read_effect *effect);
static void answer_read(struct dispatch *dispatch, const struct read_effect *effect);
static void on_own_point(struct replica_read *read, enum status status, struct read_point point);
static void on_remote_point(struct replica_read *read, enum status status, struct read_point point);
static void on_query_done(struct dispatch_call *call, const struct proto_reply *content);
static enum status query_start(struct dispatch *dispatch, uint64_t peer_id,
                               const struct frame_query *frame);
static enum status leads(const struct dispatch *dispatch, uint64_t term);
static void send_point_reply(struct dispatch *dispatch, uint64_t peer_id,
                             const struct frame_read_point_reply *frame);
static void send_query_reply(struct dispatch *dispatch, uint64_t peer_id,
                             const struct frame_query_reply *frame);

void dispatch_read(struct dispatch *dispatch, const struct read_effect *effect)
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

void dispatch_receive_read_point(struct dispatch *dispatch, uint64_t peer_id, struct slice payload)
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

void dispatch_receive_read_point_reply(struct dispatch *dispatch, struct slice payload)
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

void dispatch_receive_query(struct dispatch *dispatch, uint64_t peer_id, struct slice payload)
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

void dispatch_receive_query_reply(struct dispatch *dispatch, struct slice payload)
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
    enum status st =
        frame.status == STATUS_OK
            ? proto_decode_reply(dispatch->decoder, frame.reply, request->asked->method, &content)
            : frame.status;
    if (st == STATUS_OK) {
        leadership_reached(&dispatch->leadership, dispatch->route.term, dispatch->now_ns);
    } else {
        request_error_reply(request, STATUS_INTERNAL, &content);
    }
    dispatch->stats.reads++;
    router_read_done(dispatch->router, request);
    dispatch_reply(dispatch, request, &content);
}

void dispatch_query_free(struct remote_query *query)
{
    query->dispatch->query_count--;
    query->dispatch->queries_len -= query->len;
    list_remove(&query->link);
    free(query->keys);
    free(query->bytes);
    free(query);
}

static void ask_peer(struct dispatch *dispatch, const struct read_effect *effect)
{
    struct frame_read_point frame = {.ticket = effect->ticket, .term = effect->term};
    buf_clear(&dispatch->frame);
    frame_read_point_encode(&frame, &dispatch->frame);
    if (!dispatch_send_frame(dispatch, effect->peer_id, FRAME_TYPE_READ_POINT, false)) {
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
        .left_ms = dispatch_left_ms(effect->request->deadline_ns, dispatch->now_ns),
        .request = buf_slice(&dispatch->message),
    };
    buf_clear(&dispatch->frame);
    frame_query_encode(&frame, &dispatch->frame);
    if (!dispatch_send_frame(dispatch, effect->peer_id, FRAME_TYPE_QUERY, false)) {
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
        read_answer_make(&dispatch->answer, fsm, request->asked, request->read_clock_ms, &content);
    }
    dispatch->stats.reads++;
    router_read_done(dispatch->router, request);
    dispatch_reply(dispatch, request, &content);
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
        dispatch_query_free(query);
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
        dispatch_query_free(query);
    }
    return st;
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

static void send_point_reply(struct dispatch *dispatch, uint64_t peer_id,
                             const struct frame_read_point_reply *frame)
{
    buf_clear(&dispatch->frame);
    frame_read_point_reply_encode(frame, &dispatch->frame);
    (void)dispatch_send_frame(dispatch, peer_id, FRAME_TYPE_READ_POINT_REPLY, false);
}

/* Pages are large and may wait behind everything else. */
static void send_query_reply(struct dispatch *dispatch, uint64_t peer_id,
                             const struct frame_query_reply *frame)
{
    buf_clear(&dispatch->frame);
    frame_query_reply_encode(frame, &dispatch->frame);
    (void)dispatch_send_frame(dispatch, peer_id, FRAME_TYPE_QUERY_REPLY, true);
}
