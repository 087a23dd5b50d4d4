/* Accepting, cutting into messages, and the order in which replies become known as written.
 *
 * A connection is read while it has fewer than API_IN_FLIGHT_MAX calls whose replies are not wholly
 * written, less than OUTPUT_SOFT_LEN of them waits for a slow reader, and no message of it waits
 * for room to be kept; beyond that its input stays in the socket. What is still sent to somebody
 * who does not read ends the connection at OUTPUT_HARD_LEN. The age of incomplete messages is kept
 * in one list in the order of their beginning, so one timer serves all connections. Those that
 * something waits to be written to are looked at by another, UNREAD_LOOK_NS apart: libuv does not
 * tell of a reply that went out in part.
 *
 * All that ends with a connection (calls lost, replies not written) is told in its close callback,
 * hence never from within a call of the owner. */
#include "node/api.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
#include <uv.h>

#include "client/protocol.h"
#include "fsm/base/units.h"
#include "node/api_socket.h"
#include "node/conn.h"

#define OUTPUT_SOFT_LEN (1024u * 1024u)
#define OUTPUT_HARD_LEN (32u * 1024u * 1024u)
#define OUTPUT_ALL_LEN (256u * 1024u * 1024u)
#define UNREAD_LOOK_NS (250 * NS_PER_MS)
#define SPARE_FILES 64u /* for disk, links and libuv itself */

struct api {
    struct loop *loop;
    struct api_callbacks callbacks;
    struct api_socket socket;
    uv_pipe_t server;
    struct conn_pool pool;
    struct list conns;
    struct list dirty;      /* have something to be flushed */
    struct list held;       /* stopped reading, see has_room */
    struct list incomplete; /* keep the beginning of a message, oldest first */
    struct list unread;     /* have something that the kernel did not take at once */
    struct loop_timer *timer;
    struct loop_timer *unread_timer; /* set while `unread` has somebody */
    struct buf busy;      /* what a connection over the limit is told */
    struct buf malformed; /* what is told before closing for malformed bytes */
    struct api_stats stats;
    size_t kept_len; /* by the owner, for calls */
    uint32_t connections_max;
    bool accept_waits; /* a connection is there that was not accepted yet */
    bool turned_away;  /* one is being told "busy"; the next one waits */
    bool server_open;
    bool closing;
    void (*on_closed)(void *ctx);
    void *closed_ctx;
};

struct api_conn {
    struct api *api;
    struct conn *conn;
    struct api_peer peer;
    struct proto_scanner scanner; /* of the message that is not whole yet */
    struct list link;       /* in api->conns */
    struct list dirty;      /* in api->dirty */
    struct list held;       /* in api->held */
    struct list incomplete; /* in api->incomplete */
    struct list unread;     /* in api->unread */
    struct list calls;      /* unanswered */
    struct list replied;    /* not wholly written, in the order of the stream */
    uint32_t in_flight;     /* both lists */
    size_t waiting_len;     /* of a whole message that there is no room to keep; 0: none */
    uint64_t since_ns;      /* beginning of the incomplete message */
    uint64_t taken;         /* position up to which the kernel had it when last looked at */
    uint64_t taken_ns;      /* when that was seen to move */
    bool counted;           /* not one that is only told "busy" */
};

_Static_assert(MESSAGE_LEN_MAX < API_KEPT_LEN_MAX, "every message fits when nothing is kept");

static void on_connection(uv_stream_t *server, int st);
static void accept_one(struct api *api);
static void turn_away(struct api *api);
static struct api_conn *create_conn(struct api *api, bool counted);
static bool read_peer(struct conn *conn, struct api_peer *out_peer);
static size_t on_bytes(void *ctx, struct slice bytes);
static void on_written(void *ctx, uint64_t position);
static void on_end(void *ctx, enum status status);
static void on_conn_closed(void *ctx);
static void on_timer(void *ctx, uint64_t now_ns);
static void on_unread_timer(void *ctx, uint64_t now_ns);
static void on_server_closed(uv_handle_t *handle);
static bool has_room(const struct api_conn *conn);
static bool may_keep(const struct api *api, size_t len);
static void forget_call(struct api *api, struct api_call *call);
static void hold(struct api_conn *conn);
static void note_age(struct api_conn *conn, bool progress, bool rest);
static void refuse_bytes(struct api_conn *conn);
static void retry_held(struct api *api);
static void mark_dirty(struct api_conn *conn);
static void note_taken(struct api_conn *conn);
static void make_room(struct api *api, size_t len);
static void end_unread(struct api_conn *conn);
static void prepare_errors(struct api *api);
static uint32_t connections_allowed(uint32_t configured);
static void finish_close(struct api *api);

enum status api_open(struct loop *loop, const struct api_config *config,
                     const struct api_callbacks *callbacks, char *out_why, struct api **out_api)
{
    struct api_socket socket;
    enum status st = api_socket_bind(config, &socket, out_why);
    if (st != STATUS_OK) {
        return st;
    }
    struct api *api = calloc(1, sizeof *api);
    CHECK(api != NULL);
    api->loop = loop;
    api->callbacks = *callbacks;
    api->socket = socket;
    api->connections_max = connections_allowed(config->connections_max);
    list_init(&api->conns);
    list_init(&api->dirty);
    list_init(&api->held);
    list_init(&api->incomplete);
    list_init(&api->unread);
    conn_pool_init(&api->pool, loop, API_INPUT_LEN_MAX);
    api->timer = loop_timer_create(loop, on_timer, api);
    api->unread_timer = loop_timer_create(loop, on_unread_timer, api);
    prepare_errors(api);

    CHECK(uv_pipe_init(loop_uv(loop), &api->server, 0) == 0);
    api->server.data = api;
    api->server_open = true;
    CHECK(uv_pipe_open(&api->server, socket.fd) == 0);
    int error = uv_listen((uv_stream_t *)&api->server, 1024, on_connection);
    CHECK(error == 0); /* the socket is bound, and listens already */
    *out_api = api;
    return STATUS_OK;
}

void api_call_begin(struct api_conn *conn, struct api_call *call)
{
    call->conn = conn;
    call->end = 0;
    call->kept_len = 0;
    list_init(&call->link);
    list_append(&conn->calls, &call->link);
    conn->in_flight++;
}

void api_call_keep(struct api *api, struct api_call *call, size_t len)
{
    CHECK(call->conn != NULL && call->conn->api == api);
    api->kept_len = api->kept_len - call->kept_len + len;
    call->kept_len = len;
}

void api_call_reply(struct api *api, struct api_call *call, struct slice reply)
{
    struct api_conn *conn = call->conn;
    CHECK(conn != NULL && conn->api == api && call->end == 0);
    list_remove(&call->link);
    list_append(&conn->replied, &call->link);
    make_room(api, reply.len);
    if (conn_output_len(conn->conn) + reply.len > OUTPUT_HARD_LEN) {
        end_unread(conn);
    }
    if (conn_closing(conn->conn)) {
        call->end = UINT64_MAX; /* never written; told when the connection is closed */
        return;
    }
    conn_send(conn->conn, reply);
    call->end = conn_position(conn->conn);
    mark_dirty(conn);
}

void api_conn_refuse(struct api_conn *conn)
{
    if (!conn_closing(conn->conn)) {
        conn->api->stats.refused++;
        conn_close(conn->conn);
    }
}

void api_flush(struct api *api)
{
    struct list *link;
    while ((link = list_pop(&api->dirty)) != NULL) {
        struct api_conn *conn = CONTAINER_OF(link, struct api_conn, dirty);
        conn_flush(conn->conn);
        note_taken(conn);
    }
    retry_held(api);
    conn_pool_turn(&api->pool);
}

void api_stats(const struct api *api, struct api_stats *out_stats)
{
    *out_stats = api->stats;
    out_stats->input_len = api->pool.input_len;
    out_stats->kept_len = api->kept_len;
}

void api_close(struct api *api, void (*cb)(void *ctx), void *ctx)
{
    CHECK(!api->closing);
    api->closing = true;
    api->on_closed = cb;
    api->closed_ctx = ctx;
    api_socket_unlink(&api->socket);
    loop_timer_destroy(api->timer);
    loop_timer_destroy(api->unread_timer);
    api->timer = NULL;
    api->unread_timer = NULL;
    uv_close((uv_handle_t *)&api->server, on_server_closed);
    struct list *link;
    struct list *after;
    LIST_FOR_EACH(link, after, &api->conns)
    {
        conn_close(CONTAINER_OF(link, struct api_conn, link)->conn);
    }
}

/* A connection over the limit is accepted only to be told so, and one at a time: libuv stops to
 * poll the listening socket while a connection is not taken from it. */
static void on_connection(uv_stream_t *server, int st)
{
    struct api *api = server->data;
    if (st != 0 || api->closing) {
        return;
    }
    if (api->stats.connections < api->connections_max) {
        accept_one(api);
    } else if (!api->turned_away) {
        turn_away(api);
    } else {
        api->accept_waits = true;
    }
}

static void accept_one(struct api *api)
{
    struct api_conn *conn = create_conn(api, true);
    if (uv_accept((uv_stream_t *)&api->server, conn_stream(conn->conn)) != 0 ||
        !read_peer(conn->conn, &conn->peer)) {
        conn_close(conn->conn);
        return;
    }
    api->stats.connections_accepted++;
    conn_read(conn->conn);
}

static void turn_away(struct api *api)
{
    struct api_conn *conn = create_conn(api, false);
    api->turned_away = true;
    api->stats.connections_refused++;
    if (uv_accept((uv_stream_t *)&api->server, conn_stream(conn->conn)) == 0) {
        conn_send(conn->conn, buf_slice(&api->busy));
        conn_flush(conn->conn);
    }
    conn_close(conn->conn);
}

static struct api_conn *create_conn(struct api *api, bool counted)
{
    static const struct conn_callbacks callbacks = {
        .on_bytes = on_bytes,
        .on_written = on_written,
        .on_end = on_end,
        .on_closed = on_conn_closed,
    };
    struct api_conn *conn = calloc(1, sizeof *conn);
    CHECK(conn != NULL);
    conn->api = api;
    conn->counted = counted;
    proto_scanner_init(&conn->scanner);
    list_init(&conn->link);
    list_init(&conn->dirty);
    list_init(&conn->held);
    list_init(&conn->incomplete);
    list_init(&conn->unread);
    list_init(&conn->calls);
    list_init(&conn->replied);
    list_append(&api->conns, &conn->link);
    conn->conn = conn_create(&api->pool, CONN_KIND_UNIX, &callbacks, conn);
    api->stats.connections += counted ? 1 : 0;
    return conn;
}

static bool read_peer(struct conn *conn, struct api_peer *out_peer)
{
    uv_os_fd_t fd;
    struct ucred cred;
    socklen_t len = sizeof cred;
    if (uv_fileno((const uv_handle_t *)conn_stream(conn), &fd) != 0 ||
        getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) != 0) {
        return false;
    }
    *out_peer = (struct api_peer){.uid = cred.uid, .gid = cred.gid, .pid = cred.pid};
    return true;
}

static size_t on_bytes(void *ctx, struct slice bytes)
{
    struct api_conn *conn = ctx;
    struct api *api = conn->api;
    size_t used = 0;
    bool incomplete = false;
    while (used < bytes.len && !conn_closing(conn->conn) && has_room(conn)) {
        struct slice rest = slice_from(bytes.base + used, bytes.len - used);
        size_t len = 0;
        enum proto_verdict verdict = proto_scanner_look(&conn->scanner, rest, &len);
        if (verdict == PROTO_VERDICT_REFUSED) {
            refuse_bytes(conn);
            return bytes.len;
        }
        if (verdict == PROTO_VERDICT_MORE) {
            incomplete = true;
            break;
        }
        if (!may_keep(api, len)) {
            conn->waiting_len = len;
            break;
        }
        conn->waiting_len = 0;
        used += len;
        api->stats.messages++;
        api->callbacks.on_message(api->callbacks.ctx, conn, &conn->peer,
                                  slice_from(rest.base, len));
    }
    if (!conn_closing(conn->conn)) {
        note_age(conn, used > 0, incomplete);
        if (!has_room(conn)) {
            hold(conn);
        }
    }
    return used;
}

/* From within conn_flush too: whoever is called here may leave something to be done in a turn end
 * that has run already. */
static void on_written(void *ctx, uint64_t position)
{
    struct api_conn *conn = ctx;
    struct api *api = conn->api;
    struct list *link;
    while ((link = list_first(&conn->replied)) != NULL) {
        struct api_call *call = CONTAINER_OF(link, struct api_call, link);
        if (call->end > position) {
            break;
        }
        list_remove(link);
        conn->in_flight--;
        forget_call(api, call);
        loop_turn_again(api->loop);
        api->callbacks.on_written(api->callbacks.ctx, call, true);
    }
    if (conn_output_len(conn->conn) > 0 && !conn_writing(conn->conn)) {
        mark_dirty(conn);
    }
    note_taken(conn);
}

static void on_end(void *ctx, enum status status)
{
    (void)status;
    struct api_conn *conn = ctx;
    conn_close(conn->conn);
}

static void on_conn_closed(void *ctx)
{
    struct api_conn *conn = ctx;
    struct api *api = conn->api;
    list_remove(&conn->link);
    list_remove(&conn->dirty);
    list_remove(&conn->held);
    list_remove(&conn->incomplete);
    list_remove(&conn->unread);
    struct list *link;
    while ((link = list_pop(&conn->replied)) != NULL) {
        struct api_call *call = CONTAINER_OF(link, struct api_call, link);
        forget_call(api, call);
        api->callbacks.on_written(api->callbacks.ctx, call, false);
    }
    while ((link = list_pop(&conn->calls)) != NULL) {
        struct api_call *call = CONTAINER_OF(link, struct api_call, link);
        forget_call(api, call);
        api->callbacks.on_call_lost(api->callbacks.ctx, call);
    }
    api->stats.connections -= conn->counted ? 1 : 0;
    api->turned_away = api->turned_away && conn->counted;
    free(conn);
    if (api->closing) {
        finish_close(api);
    } else if (api->accept_waits) {
        api->accept_waits = false;
        on_connection((uv_stream_t *)&api->server, 0);
    }
}

/* The oldest incomplete message is first in the list. */
static void on_timer(void *ctx, uint64_t now_ns)
{
    struct api *api = ctx;
    struct list *link;
    while ((link = list_first(&api->incomplete)) != NULL) {
        struct api_conn *conn = CONTAINER_OF(link, struct api_conn, incomplete);
        uint64_t end_ns = conn->since_ns + ms_to_ns(API_MESSAGE_AGE_MS_MAX);
        if (end_ns > now_ns) {
            loop_timer_set(api->timer, end_ns);
            return;
        }
        list_remove(link);
        api_conn_refuse(conn);
    }
}

static void on_unread_timer(void *ctx, uint64_t now_ns)
{
    struct api *api = ctx;
    struct list *link;
    struct list *after;
    LIST_FOR_EACH(link, after, &api->unread)
    {
        struct api_conn *conn = CONTAINER_OF(link, struct api_conn, unread);
        note_taken(conn);
        if (list_linked(link) && now_ns - conn->taken_ns >= ms_to_ns(API_UNREAD_MS_MAX)) {
            end_unread(conn);
        }
    }
    if (!list_empty(&api->unread)) {
        loop_timer_set(api->unread_timer, now_ns + UNREAD_LOOK_NS);
    }
}

static void on_server_closed(uv_handle_t *handle)
{
    struct api *api = handle->data;
    api->server_open = false;
    finish_close(api);
}

static bool has_room(const struct api_conn *conn)
{
    return conn->in_flight < API_IN_FLIGHT_MAX &&
           conn_output_len(conn->conn) < OUTPUT_SOFT_LEN &&
           (conn->waiting_len == 0 || may_keep(conn->api, conn->waiting_len));
}

/* How much the owner makes of a message is known only when it has it. */
static bool may_keep(const struct api *api, size_t len)
{
    size_t len_max = len <= API_SMALL_LEN ? 2 * API_KEPT_LEN_MAX : API_KEPT_LEN_MAX;
    return api->kept_len + len <= len_max;
}

static void forget_call(struct api *api, struct api_call *call)
{
    api->kept_len -= call->kept_len;
    call->kept_len = 0;
    call->conn = NULL;
}

static void hold(struct api_conn *conn)
{
    conn_pause(conn->conn);
    if (!list_linked(&conn->held)) {
        list_append(&conn->api->held, &conn->held);
    }
}

/* `progress`: a message was completed, so what is left over began just now. */
static void note_age(struct api_conn *conn, bool progress, bool rest)
{
    struct api *api = conn->api;
    if (progress || !rest) {
        list_remove(&conn->incomplete);
    }
    if (!rest || list_linked(&conn->incomplete)) {
        return;
    }
    conn->since_ns = loop_now_ns(api->loop);
    if (list_empty(&api->incomplete)) {
        loop_timer_set(api->timer, conn->since_ns + ms_to_ns(API_MESSAGE_AGE_MS_MAX));
    }
    list_append(&api->incomplete, &conn->incomplete);
}

/* Tell why as far as the socket takes it at once, then close. */
static void refuse_bytes(struct api_conn *conn)
{
    conn_send(conn->conn, buf_slice(&conn->api->malformed));
    conn_flush(conn->conn);
    api_conn_refuse(conn);
}

/* Connections whose replies went out go on where they stopped. */
static void retry_held(struct api *api)
{
    struct list held;
    list_init(&held);
    struct list *link;
    while ((link = list_pop(&api->held)) != NULL) {
        list_append(&held, link);
    }
    while ((link = list_pop(&held)) != NULL) {
        struct api_conn *conn = CONTAINER_OF(link, struct api_conn, held);
        if (conn_closing(conn->conn)) {
            continue;
        }
        if (!has_room(conn)) {
            list_append(&api->held, link);
            continue;
        }
        loop_turn_again(api->loop);
        conn_retry(conn->conn);
        if (!conn_closing(conn->conn) && !list_linked(&conn->held)) {
            conn_read(conn->conn);
        }
    }
}

static void mark_dirty(struct api_conn *conn)
{
    if (!list_linked(&conn->dirty)) {
        list_append(&conn->api->dirty, &conn->dirty);
    }
}

/* See whether the kernel has taken anything since the last look. */
static void note_taken(struct api_conn *conn)
{
    struct api *api = conn->api;
    if (conn_closing(conn->conn) || conn_output_len(conn->conn) == 0) {
        list_remove(&conn->unread);
        return;
    }
    uint64_t taken = conn_taken(conn->conn);
    if (list_linked(&conn->unread) && taken == conn->taken) {
        return;
    }
    conn->taken = taken;
    conn->taken_ns = loop_now_ns(api->loop);
    if (list_linked(&conn->unread) || api->closing) {
        return;
    }
    if (list_empty(&api->unread)) {
        loop_timer_set(api->unread_timer, conn->taken_ns + UNREAD_LOOK_NS);
    }
    list_append(&api->unread, &conn->unread);
}

/* End those that have left most unread until so many bytes more are allowed. */
static void make_room(struct api *api, size_t len)
{
    while (api->pool.output_len + len > OUTPUT_ALL_LEN) {
        struct api_conn *most = NULL;
        struct list *link;
        struct list *after;
        LIST_FOR_EACH(link, after, &api->conns)
        {
            struct api_conn *conn = CONTAINER_OF(link, struct api_conn, link);
            if (!conn_closing(conn->conn) &&
                (most == NULL || conn_output_len(conn->conn) > conn_output_len(most->conn))) {
                most = conn;
            }
        }
        CHECK(most != NULL && conn_output_len(most->conn) > 0);
        end_unread(most);
    }
}

static void end_unread(struct api_conn *conn)
{
    if (!conn_closing(conn->conn)) {
        conn->api->stats.unread++;
        list_remove(&conn->unread);
        conn_close(conn->conn);
    }
}

/* Errors that answer no request carry the id 0. */
static void prepare_errors(struct api *api)
{
    buf_init(&api->busy, MESSAGE_LEN_MAX);
    buf_init(&api->malformed, MESSAGE_LEN_MAX);
    struct proto_reply reply = {
        .method = PROTO_METHOD_HELLO,
        .status = STATUS_OVERLOADED,
        .detail = slice_text("busy: too many connections"),
    };
    proto_encode_reply(&reply, &api->busy);
    reply.status = STATUS_MALFORMED;
    reply.detail = slice_text("no message of this protocol, or too large");
    proto_encode_reply(&reply, &api->malformed);
}

static uint32_t connections_allowed(uint32_t configured)
{
    uint64_t allowed = configured > 0 ? configured : API_CONNECTIONS_MAX;
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        uint64_t room = sub_or_zero_u64((uint64_t)files.rlim_cur, SPARE_FILES);
        allowed = min_u64(allowed, max_u64(room, 1));
    }
    return (uint32_t)allowed;
}

static void finish_close(struct api *api)
{
    if (api->server_open || !list_empty(&api->conns)) {
        return;
    }
    void (*cb)(void *ctx) = api->on_closed;
    void *ctx = api->closed_ctx;
    conn_pool_deinit(&api->pool);
    buf_deinit(&api->busy);
    buf_deinit(&api->malformed);
    free(api);
    cb(ctx);
}
