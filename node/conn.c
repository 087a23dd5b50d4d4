/* libuv asks for memory and fills it in one breath (uv__read), so one scratch buffer serves all
 * connections of a loop. It does not watch a stream that is not read from, not even for hang-up:
 * the pool looks at those by itself, some of them at a time. */
#include "node/conn.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

#include "fsm/base/units.h"

#define CONN_KEEP_CAP 8192u /* a buffer that is empty keeps at most this much memory */
#define LOOK_COUNT 64u       /* quiet connections looked at in one go */
#define LOOK_NS (40 * NS_PER_MS)

struct conn {
    struct conn_pool *pool;
    struct conn_callbacks callbacks;
    void *ctx;
    union {
        uv_handle_t handle;
        uv_stream_t stream;
        uv_tcp_t tcp;
        uv_pipe_t pipe;
    } uv;
    uv_write_t write;
    struct list quiet;   /* in the pool's list while nobody reads it */
    struct buf input;    /* kept */
    struct buf output;   /* not given to the kernel yet */
    struct buf flying;   /* with the kernel; not to be touched */
    size_t flying_from;  /* how much of `flying` went out at once */
    uint64_t sent;       /* position of the last byte sent */
    uint64_t written;    /* position up to which the kernel has it */
    bool reading;        /* wanted by the owner */
    bool starved;        /* but there is no room */
    bool writing;
    bool closing;
    bool ended;
};

static void on_alloc(uv_handle_t *handle, size_t suggested_len, uv_buf_t *out_buf);
static void on_read(uv_stream_t *stream, ssize_t len, const uv_buf_t *buf);
static void on_write(uv_write_t *write, int st);
static void on_close(uv_handle_t *handle);
static size_t room_of(const struct conn *conn);
static void offer(struct conn *conn, struct slice bytes);
static void starve(struct conn *conn);
static void start_reading(struct conn *conn);
static void stop_reading(struct conn *conn);
static void look_for_hangup(struct conn_pool *pool);
static void end(struct conn *conn, enum status status);
static void written(struct conn *conn, size_t len);
static void shrink(struct buf *buf);

void conn_pool_init(struct conn_pool *pool, struct loop *loop, size_t input_len_max)
{
    *pool = (struct conn_pool){.loop = loop, .input_len_max = input_len_max};
    pool->scratch = malloc(CONN_READ_LEN);
    CHECK(pool->scratch != NULL);
    list_init(&pool->quiet);
}

void conn_pool_deinit(struct conn_pool *pool)
{
    CHECK(list_empty(&pool->quiet));
    CHECK(pool->input_len == 0 && pool->output_len == 0);
    free(pool->scratch);
}

void conn_pool_turn(struct conn_pool *pool)
{
    if (list_empty(&pool->quiet)) {
        return;
    }
    struct list *link;
    struct list *after;
    LIST_FOR_EACH(link, after, &pool->quiet)
    {
        struct conn *conn = CONTAINER_OF(link, struct conn, quiet);
        if (pool->input_len >= pool->input_len_max) {
            break;
        }
        if (conn->starved) {
            start_reading(conn);
        }
    }
    uint64_t now_ns = loop_now_ns(pool->loop);
    if (now_ns - pool->looked_ns >= LOOK_NS) {
        pool->looked_ns = now_ns;
        look_for_hangup(pool);
    }
}

struct conn *conn_create(struct conn_pool *pool, enum conn_kind kind,
                         const struct conn_callbacks *callbacks, void *ctx)
{
    struct conn *conn = calloc(1, sizeof *conn);
    CHECK(conn != NULL);
    conn->pool = pool;
    conn->callbacks = *callbacks;
    conn->ctx = ctx;
    list_init(&conn->quiet);
    buf_init(&conn->input, SIZE_MAX / 2);
    buf_init(&conn->output, SIZE_MAX / 2);
    buf_init(&conn->flying, SIZE_MAX / 2);
    int st = kind == CONN_KIND_TCP ? uv_tcp_init(loop_uv(pool->loop), &conn->uv.tcp)
                                   : uv_pipe_init(loop_uv(pool->loop), &conn->uv.pipe, 0);
    CHECK(st == 0);
    conn->uv.handle.data = conn;
    return conn;
}

struct uv_stream_s *conn_stream(struct conn *conn)
{
    return &conn->uv.stream;
}

void conn_read(struct conn *conn)
{
    if (conn->reading || conn->closing || conn->ended) {
        return;
    }
    conn->reading = true;
    if (!conn->starved) {
        start_reading(conn);
    }
}

void conn_pause(struct conn *conn)
{
    if (!conn->reading || conn->closing || conn->ended) {
        return;
    }
    conn->reading = false;
    conn->starved = false;
    stop_reading(conn);
}

void conn_retry(struct conn *conn)
{
    if (conn->closing || conn->input.len == 0) {
        return;
    }
    size_t before = conn->input.len;
    size_t used = conn->callbacks.on_bytes(conn->ctx, buf_slice(&conn->input));
    CHECK(used <= before);
    if (conn->closing) {
        return;
    }
    buf_consume(&conn->input, used);
    shrink(&conn->input);
    conn->pool->input_len -= used;
}

size_t conn_input_len(const struct conn *conn)
{
    return conn->input.len;
}

void conn_send(struct conn *conn, struct slice bytes)
{
    if (conn->closing || conn->ended) {
        return;
    }
    buf_append(&conn->output, bytes.base, bytes.len);
    conn->sent += bytes.len;
    conn->pool->output_len += bytes.len;
}

uint64_t conn_position(const struct conn *conn)
{
    return conn->sent;
}

size_t conn_output_len(const struct conn *conn)
{
    return (size_t)(conn->sent - conn->written);
}

/* libuv reports a write when all of it is out, but keeps count of what is left. */
uint64_t conn_taken(const struct conn *conn)
{
    if (!conn->writing) {
        return conn->written;
    }
    size_t left = uv_stream_get_write_queue_size(&conn->uv.stream);
    return conn->written + (conn->flying.len - conn->flying_from - left);
}

bool conn_writing(const struct conn *conn)
{
    return conn->writing;
}

void conn_flush(struct conn *conn)
{
    if (conn->writing || conn->closing || conn->ended || conn->output.len == 0) {
        return;
    }
    unsigned len = conn->output.len > INT32_MAX ? INT32_MAX : (unsigned)conn->output.len;
    uv_buf_t buf = uv_buf_init((char *)conn->output.base, len);
    int done = uv_try_write(&conn->uv.stream, &buf, 1);
    if (done < 0 && done != UV_EAGAIN) {
        end(conn, STATUS_IO);
        return;
    }
    size_t out = done > 0 ? (size_t)done : 0;
    if (out < conn->output.len) {
        struct buf empty = conn->flying;
        conn->flying = conn->output;
        conn->output = empty;
        conn->flying_from = out;
        size_t rest = conn->flying.len - out;
        CHECK(rest <= UINT32_MAX);
        uv_buf_t left = uv_buf_init((char *)conn->flying.base + out, (unsigned)rest);
        conn->writing = true;
        conn->write.data = conn;
        if (uv_write(&conn->write, &conn->uv.stream, &left, 1, on_write) != 0) {
            conn->writing = false;
            end(conn, STATUS_IO);
            return;
        }
    } else {
        buf_clear(&conn->output);
        shrink(&conn->output);
    }
    if (out > 0) {
        written(conn, out);
    }
}

void conn_close(struct conn *conn)
{
    if (conn->closing) {
        return;
    }
    conn->closing = true;
    conn->pool->output_len -= conn_output_len(conn);
    buf_deinit(&conn->output); /* what flies stays until libuv has let go of it */
    list_remove(&conn->quiet);
    uv_close(&conn->uv.handle, on_close);
}

bool conn_closing(const struct conn *conn)
{
    return conn->closing;
}

static void on_alloc(uv_handle_t *handle, size_t suggested_len, uv_buf_t *out_buf)
{
    (void)suggested_len;
    struct conn *conn = handle->data;
    *out_buf = uv_buf_init((char *)conn->pool->scratch, (unsigned)room_of(conn));
}

/* How much may be read now; 0: nothing (libuv then reports ENOBUFS). */
static size_t room_of(const struct conn *conn)
{
    if (conn->pool->input_len < conn->pool->input_len_max) {
        return CONN_READ_LEN;
    }
    return conn->input.len < CONN_SMALL_LEN ? CONN_SMALL_LEN : 0;
}

static void on_read(uv_stream_t *stream, ssize_t len, const uv_buf_t *buf)
{
    struct conn *conn = stream->data;
    if (conn->closing || len == 0) {
        return; /* 0 is libuv's EAGAIN */
    }
    if (len == UV_ENOBUFS) {
        starve(conn);
    } else if (len < 0) {
        end(conn, len == UV_EOF ? STATUS_OK : STATUS_IO);
    } else {
        offer(conn, slice_from(buf->base, (size_t)len));
    }
}

/* Bytes go to the owner straight from the scratch buffer unless something is kept already. */
static void offer(struct conn *conn, struct slice bytes)
{
    if (conn->input.len > 0) {
        buf_append(&conn->input, bytes.base, bytes.len);
        conn->pool->input_len += bytes.len;
        conn_retry(conn);
        return;
    }
    size_t used = conn->callbacks.on_bytes(conn->ctx, bytes);
    CHECK(used <= bytes.len);
    if (!conn->closing && used < bytes.len) {
        buf_append(&conn->input, bytes.base + used, bytes.len - used);
        conn->pool->input_len += bytes.len - used;
    }
}

static void starve(struct conn *conn)
{
    conn->starved = true;
    stop_reading(conn);
}

static void start_reading(struct conn *conn)
{
    conn->starved = false;
    list_remove(&conn->quiet);
    /* It fails only for streams that are closing, not connected, or at their end. */
    CHECK(uv_read_start(&conn->uv.stream, on_alloc, on_read) == 0);
}

static void stop_reading(struct conn *conn)
{
    (void)uv_read_stop(&conn->uv.stream);
    if (!list_linked(&conn->quiet)) {
        list_append(&conn->pool->quiet, &conn->quiet);
    }
}

/* The first ones of the list, which then go to its end. */
static void look_for_hangup(struct conn_pool *pool)
{
    struct pollfd polled[LOOK_COUNT];
    struct conn *conns[LOOK_COUNT];
    unsigned count = 0;
    while (count < LOOK_COUNT && !list_empty(&pool->quiet) &&
           (count == 0 || list_first(&pool->quiet) != &conns[0]->quiet)) {
        struct conn *conn = CONTAINER_OF(list_pop(&pool->quiet), struct conn, quiet);
        uv_os_fd_t fd = -1;
        CHECK(uv_fileno(&conn->uv.handle, &fd) == 0);
        list_append(&pool->quiet, &conn->quiet);
        polled[count] = (struct pollfd){.fd = fd, .events = POLLRDHUP};
        conns[count++] = conn;
    }
    if (poll(polled, count, 0) <= 0) {
        return;
    }
    for (unsigned i = 0; i < count; i++) {
        if ((polled[i].revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0) {
            end(conns[i], STATUS_OK);
        }
    }
}

static void on_write(uv_write_t *write, int st)
{
    struct conn *conn = write->data;
    size_t len = conn->flying.len - conn->flying_from;
    conn->writing = false;
    buf_clear(&conn->flying);
    shrink(&conn->flying);
    if (conn->closing) {
        return;
    }
    if (st != 0) {
        end(conn, STATUS_IO);
        return;
    }
    written(conn, len);
}

static void written(struct conn *conn, size_t len)
{
    conn->written += len;
    conn->pool->output_len -= len;
    if (conn->callbacks.on_written != NULL) {
        conn->callbacks.on_written(conn->ctx, conn->written);
    }
}

static void end(struct conn *conn, enum status status)
{
    if (conn->ended || conn->closing) {
        return;
    }
    conn->ended = true;
    (void)uv_read_stop(&conn->uv.stream);
    list_remove(&conn->quiet);
    conn->callbacks.on_end(conn->ctx, status);
}

static void on_close(uv_handle_t *handle)
{
    struct conn *conn = handle->data;
    CHECK(!conn->writing);
    conn->pool->input_len -= conn->input.len;
    void (*on_closed)(void *ctx) = conn->callbacks.on_closed;
    void *ctx = conn->ctx;
    buf_deinit(&conn->input);
    buf_deinit(&conn->output);
    buf_deinit(&conn->flying);
    free(conn);
    on_closed(ctx);
}

static void shrink(struct buf *buf)
{
    if (buf->len == 0 && buf->cap > CONN_KEEP_CAP) {
        buf_deinit(buf);
    }
}
