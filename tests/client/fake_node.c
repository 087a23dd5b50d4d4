/* One thread, poll over the listener, a pipe that ends it, and the connections. */
#include "tests/client/fake_node.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define CONNS_MAX 32u

struct fake_conn {
    int fd; /* -1: free */
    struct buf in;
};

struct fake_node {
    pthread_t thread;
    pthread_mutex_t mutex; /* over steps, step_count, at, seen, busy */
    pthread_cond_t idle;
    bool busy; /* a step is being done */
    char folder[128];
    char path[160];
    int listener;
    int ends[2]; /* a byte in here ends the thread */
    struct fake_step steps[FAKE_NODE_STEPS_MAX];
    size_t step_count;
    size_t at;
    struct fake_seen seen;
    struct fake_conn conns[CONNS_MAX];
    struct proto_decoder *decoder;
};

static void *run(void *ctx);
static void accept_one(struct fake_node *node);
static void read_conn(struct fake_node *node, struct fake_conn *conn);
static void take_step(struct fake_node *node, struct fake_conn *conn,
                      const struct proto_request *request);
static void send_reply(struct fake_node *node, struct fake_conn *conn, struct proto_reply reply,
                       bool half);
static void close_conn(struct fake_conn *conn);
static void note(struct fake_node *node, const struct proto_request *request);
static void wait_ms(uint64_t ms);

struct fake_node *fake_node_start(const struct fake_step *steps, size_t count)
{
    char folder[128];
    char path[160];
    fake_folder_make(folder, sizeof folder);
    (void)snprintf(path, sizeof path, "%s/api.sock", folder);
    return fake_node_start_at(path, steps, count);
}

struct fake_node *fake_node_start_at(const char *path, const struct fake_step *steps, size_t count)
{
    struct fake_node *node = calloc(1, sizeof *node);
    CHECK(node != NULL);
    (void)snprintf(node->path, sizeof node->path, "%s", path);
    (void)snprintf(node->folder, sizeof node->folder, "%.*s", (int)(strrchr(path, '/') - path),
                   path);
    node->decoder = proto_decoder_create();
    CHECK(pthread_mutex_init(&node->mutex, NULL) == 0);
    CHECK(pthread_cond_init(&node->idle, NULL) == 0);
    fake_node_script(node, steps, count);
    for (size_t i = 0; i < CONNS_MAX; i++) {
        node->conns[i].fd = -1;
        buf_init(&node->conns[i].in, MESSAGE_LEN_MAX);
    }
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    (void)snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    (void)unlink(path);
    node->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(bind(node->listener, (struct sockaddr *)&address, sizeof address) == 0);
    CHECK(listen(node->listener, 64) == 0);
    CHECK(pipe(node->ends) == 0);
    CHECK(pthread_create(&node->thread, NULL, run, node) == 0);
    return node;
}

void fake_node_stop(struct fake_node *node, bool keep_folder)
{
    CHECK(write(node->ends[1], "x", 1) == 1);
    CHECK(pthread_join(node->thread, NULL) == 0);
    for (size_t i = 0; i < CONNS_MAX; i++) {
        close_conn(&node->conns[i]);
        buf_deinit(&node->conns[i].in);
    }
    (void)close(node->listener);
    (void)close(node->ends[0]);
    (void)close(node->ends[1]);
    (void)unlink(node->path);
    if (!keep_folder) {
        fake_folder_remove(node->folder);
    }
    (void)pthread_cond_destroy(&node->idle);
    (void)pthread_mutex_destroy(&node->mutex);
    proto_decoder_destroy(node->decoder);
    free(node);
}

const char *fake_node_path(const struct fake_node *node)
{
    return node->path;
}

struct fake_seen fake_node_seen(struct fake_node *node)
{
    (void)pthread_mutex_lock(&node->mutex);
    while (node->busy) {
        (void)pthread_cond_wait(&node->idle, &node->mutex);
    }
    struct fake_seen seen = node->seen;
    (void)pthread_mutex_unlock(&node->mutex);
    return seen;
}

void fake_node_script(struct fake_node *node, const struct fake_step *steps, size_t count)
{
    CHECK(count > 0 && count <= FAKE_NODE_STEPS_MAX);
    (void)pthread_mutex_lock(&node->mutex);
    memcpy(node->steps, steps, count * sizeof *steps);
    node->step_count = count;
    node->at = 0;
    (void)pthread_mutex_unlock(&node->mutex);
}

void fake_folder_make(char *out_path, size_t size)
{
    const char *base = getenv("TMPDIR");
    int len = snprintf(out_path, size, "%s/tenure-test-XXXXXX", base == NULL ? "/tmp" : base);
    CHECK(len > 0 && (size_t)len < size && mkdtemp(out_path) != NULL);
}

/* The folder and the files in it. */
void fake_folder_remove(const char *path)
{
    DIR *folder = opendir(path);
    if (folder == NULL) {
        return;
    }
    for (struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
        char name[512];
        (void)snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
        (void)unlink(name);
    }
    (void)closedir(folder);
    (void)rmdir(path);
}

static void *run(void *ctx)
{
    struct fake_node *node = ctx;
    for (;;) {
        struct pollfd polled[CONNS_MAX + 2];
        polled[0] = (struct pollfd){.fd = node->ends[0], .events = POLLIN};
        polled[1] = (struct pollfd){.fd = node->listener, .events = POLLIN};
        for (size_t i = 0; i < CONNS_MAX; i++) {
            polled[i + 2] = (struct pollfd){.fd = node->conns[i].fd, .events = POLLIN};
        }
        (void)poll(polled, CONNS_MAX + 2, -1);
        if (polled[0].revents != 0) {
            return NULL;
        }
        for (size_t i = 0; i < CONNS_MAX; i++) {
            if (polled[i + 2].revents != 0) {
                read_conn(node, &node->conns[i]);
            }
        }
        if (polled[1].revents != 0) {
            accept_one(node);
        }
    }
}

static void accept_one(struct fake_node *node)
{
    int fd = accept(node->listener, NULL, NULL);
    for (size_t i = 0; i < CONNS_MAX && fd >= 0; i++) {
        if (node->conns[i].fd < 0) {
            node->conns[i].fd = fd;
            buf_clear(&node->conns[i].in);
            (void)pthread_mutex_lock(&node->mutex);
            node->seen.connections++;
            (void)pthread_mutex_unlock(&node->mutex);
            return;
        }
    }
    (void)close(fd);
}

static void read_conn(struct fake_node *node, struct fake_conn *conn)
{
    uint8_t *room = buf_reserve(&conn->in, 65536);
    CHECK(room != NULL);
    ssize_t got = recv(conn->fd, room, 65536, MSG_DONTWAIT);
    if (got <= 0) {
        (void)pthread_mutex_lock(&node->mutex);
        node->seen.hang_ups++;
        (void)pthread_mutex_unlock(&node->mutex);
        close_conn(conn);
        return;
    }
    buf_commit(&conn->in, (size_t)got);
    size_t len = 0;
    while (conn->fd >= 0 && proto_scan(buf_slice(&conn->in), &len) == PROTO_VERDICT_WHOLE) {
        struct proto_request request;
        struct violation violation;
        /* The deadline is not judged here: now is long ago. */
        enum status st =
            proto_decode_request(node->decoder, slice_from(conn->in.base, len),
                                 UINT64_MAX - ms_to_ns(DEADLINE_MS_MAX), &request, &violation);
        CHECK(st == STATUS_OK);
        note(node, &request);
        take_step(node, conn, &request);
        (void)pthread_mutex_lock(&node->mutex);
        node->busy = false;
        (void)pthread_cond_broadcast(&node->idle);
        (void)pthread_mutex_unlock(&node->mutex);
        buf_consume(&conn->in, len < conn->in.len ? len : conn->in.len);
    }
}

static void take_step(struct fake_node *node, struct fake_conn *conn,
                      const struct proto_request *request)
{
    (void)pthread_mutex_lock(&node->mutex);
    struct fake_step step = node->steps[node->at];
    node->at += node->at + 1 < node->step_count ? 1 : 0;
    (void)pthread_mutex_unlock(&node->mutex);
    step.reply.method = request->method;
    step.reply.id = request->id;
    struct proto_reply other = step.reply;
    switch (step.kind) {
    case FAKE_STEP_ANSWER:
        send_reply(node, conn, step.reply, false);
        return;
    case FAKE_STEP_SILENCE:
        return;
    case FAKE_STEP_HANG_UP:
        close_conn(conn);
        return;
    case FAKE_STEP_STRAY_FIRST:
        other.clock_ms = 666;
        other.id = request->id + 1;
        send_reply(node, conn, other, false);
        other.id = request->id + 2;
        other.status = STATUS_INTERNAL;
        send_reply(node, conn, other, false);
        send_reply(node, conn, step.reply, false);
        return;
    case FAKE_STEP_LATE:
        wait_ms(step.delay_ms);
        send_reply(node, conn, step.reply, false);
        return;
    case FAKE_STEP_HALF:
        send_reply(node, conn, step.reply, true);
        return;
    case FAKE_STEP_REFUSE_ALL:
        other = (struct proto_reply){.method = request->method, .status = STATUS_BUSY};
        send_reply(node, conn, other, false);
        close_conn(conn);
        return;
    case FAKE_STEP_GARBAGE:
        (void)send(conn->fd, "\xc1\xc1\xc1", 3, MSG_NOSIGNAL);
        return;
    case FAKE_STEP_ANSWER_CLOSE:
        send_reply(node, conn, step.reply, false);
        close_conn(conn);
        return;
    }
}

static void send_reply(struct fake_node *node, struct fake_conn *conn, struct proto_reply reply,
                       bool half)
{
    struct buf out;
    buf_init(&out, MESSAGE_LEN_MAX);
    proto_encode_reply(&reply, &out);
    size_t len = half ? out.len / 2 : out.len;
    size_t at = 0;
    while (at < len) {
        ssize_t sent = send(conn->fd, out.base + at, len - at, MSG_NOSIGNAL);
        if (sent < 0 && errno != EINTR) {
            (void)pthread_mutex_lock(&node->mutex);
            node->seen.write_failures++;
            (void)pthread_mutex_unlock(&node->mutex);
            break;
        }
        at += sent > 0 ? (size_t)sent : 0;
    }
    buf_deinit(&out);
}

static void close_conn(struct fake_conn *conn)
{
    if (conn->fd >= 0) {
        (void)close(conn->fd);
        conn->fd = -1;
    }
}

static void note(struct fake_node *node, const struct proto_request *request)
{
    (void)pthread_mutex_lock(&node->mutex);
    struct fake_seen *seen = &node->seen;
    node->busy = true;
    seen->requests++;
    seen->method = request->method;
    seen->deadline_ns = request->deadline_ns;
    seen->id = request->id;
    seen->op = request->op;
    (void)snprintf(seen->owner, sizeof seen->owner, "%.*s", (int)request->op.owner.len,
                   request->op.owner.len == 0 ? "" : (const char *)request->op.owner.base);
    bool key = request->op.key_count > 0;
    (void)snprintf(seen->key, sizeof seen->key, "%.*s", key ? (int)request->op.keys[0].key.len : 0,
                   key ? (const char *)request->op.keys[0].key.base : "");
    (void)pthread_mutex_unlock(&node->mutex);
}

static void wait_ms(uint64_t ms)
{
    (void)poll(NULL, 0, (int)ms);
}
