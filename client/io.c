/* Non-blocking sockets and poll: every wait ends by its deadline, whatever the other end does. */
#include "client/io.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "fsm/base/units.h"

#define RECEIVE_LEN (64u * 1024u)
#define NS_PER_S    1000000000ull

static enum status system_connect(void *ctx, const char *path, int *out_conn);
static enum status system_send(void *ctx, int conn, struct slice bytes, uint64_t deadline_ns);
static enum status system_receive(void *ctx, int conn, struct buf *in, uint64_t deadline_ns);
static void system_close(void *ctx, int conn, bool ours);
static uint64_t system_now(void *ctx);
static void system_wait(void *ctx, uint64_t until_ns);
static bool poll_until(int conn, short events, uint64_t deadline_ns);
static enum status receive_once(int conn, struct buf *in);
static struct timespec timespec_of(uint64_t ns);

const struct io *io_system(void)
{
    static const struct io io = {
        .connect = system_connect,
        .send = system_send,
        .receive = system_receive,
        .close = system_close,
        .now = system_now,
        .wait = system_wait,
    };
    return &io;
}

static enum status system_connect(void *ctx, const char *path, int *out_conn)
{
    (void)ctx;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t len = strlen(path);
    if (len == 0 || len >= sizeof address.sun_path) {
        return STATUS_TOO_LARGE;
    }
    memcpy(address.sun_path, path, len);
    int conn = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (conn < 0) {
        return STATUS_NO_MEMORY;
    }
    /* A full backlog answers EAGAIN at once, and no poll tells when there is room: tried again. */
    int done = -1;
    do {
        done = connect(conn, (const struct sockaddr *)&address, sizeof address);
    } while (done != 0 && errno == EINTR);
    if (done != 0) {
        bool denied = errno == EACCES || errno == EPERM;
        (void)close(conn);
        return denied ? STATUS_DENIED : STATUS_NOT_CONNECTED;
    }
    *out_conn = conn;
    return STATUS_OK;
}

static enum status system_send(void *ctx, int conn, struct slice bytes, uint64_t deadline_ns)
{
    (void)ctx;
    size_t at = 0;
    while (at < bytes.len) {
        ssize_t sent = send(conn, bytes.base + at, bytes.len - at, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent >= 0) {
            at += (size_t)sent;
        } else if (errno == EAGAIN) {
            if (!poll_until(conn, POLLOUT, deadline_ns)) {
                return STATUS_DEADLINE;
            }
        } else if (errno != EINTR) {
            return STATUS_NOT_CONNECTED;
        }
    }
    return STATUS_OK;
}

static enum status system_receive(void *ctx, int conn, struct buf *in, uint64_t deadline_ns)
{
    (void)ctx;
    if (deadline_ns == 0) {
        return receive_once(conn, in);
    }
    for (;;) {
        if (!poll_until(conn, POLLIN, deadline_ns)) {
            /* From here on the node's writes fail; what it has written before is still here. */
            (void)shutdown(conn, SHUT_RD);
            enum status last = receive_once(conn, in);
            return last == STATUS_OK ? STATUS_OK : STATUS_DEADLINE;
        }
        enum status st = receive_once(conn, in);
        if (st != STATUS_DEADLINE) {
            return st;
        }
    }
}

static void system_close(void *ctx, int conn, bool ours)
{
    (void)ctx;
    if (ours) {
        /* A child may have a copy of the descriptor: without this the node would see no end. */
        (void)shutdown(conn, SHUT_RDWR);
    }
    (void)close(conn);
}

static uint64_t system_now(void *ctx)
{
    (void)ctx;
    struct timespec now;
    CHECK(clock_gettime(CLOCK_BOOTTIME, &now) == 0);
    return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

static void system_wait(void *ctx, uint64_t until_ns)
{
    for (;;) {
        uint64_t now_ns = system_now(ctx);
        if (now_ns >= until_ns) {
            return;
        }
        struct timespec left = timespec_of(until_ns - now_ns);
        (void)ppoll(NULL, 0, &left, NULL);
    }
}

/* False when the deadline passed first. An error or a hang-up counts as ready: what comes next
 * finds it. */
static bool poll_until(int conn, short events, uint64_t deadline_ns)
{
    struct pollfd waiting = {.fd = conn, .events = events};
    for (;;) {
        uint64_t now_ns = system_now(NULL);
        struct timespec left = timespec_of(sub_or_zero_u64(deadline_ns, now_ns));
        int ready = ppoll(&waiting, 1, &left, NULL);
        if (ready > 0) {
            return true;
        }
        if (ready == 0 && system_now(NULL) >= deadline_ns) {
            return false;
        }
    }
}

/* Whatever is there now; DEADLINE when that is nothing. */
static enum status receive_once(int conn, struct buf *in)
{
    size_t len = min_u64(RECEIVE_LEN, in->len_max - in->len);
    uint8_t *room = len == 0 ? NULL : buf_reserve(in, len);
    if (room == NULL) {
        return STATUS_NOT_CONNECTED; /* longer than any message: never a reply of ours */
    }
    ssize_t got = -1;
    do {
        got = recv(conn, room, len, MSG_DONTWAIT);
    } while (got < 0 && errno == EINTR);
    if (got > 0) {
        buf_commit(in, (size_t)got);
        return STATUS_OK;
    }
    return got < 0 && errno == EAGAIN ? STATUS_DEADLINE : STATUS_NOT_CONNECTED;
}

static struct timespec timespec_of(uint64_t ns)
{
    return (struct timespec){.tv_sec = (time_t)(ns / NS_PER_S), .tv_nsec = (long)(ns % NS_PER_S)};
}
