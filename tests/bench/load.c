/* A closed-loop load generator: each connection sends its next request when the last one is
 * answered. One thread, one epoll. One line of JSON at the end.
 *
 * Usage: bench_load WORKLOAD CONNECTIONS SECONDS SOCKET[,SOCKET...] [PERIOD_MS]
 *   take      every request takes one of 10,000 keys (W1 with one connection)
 *   mixed     70 % renew own, 20 % take, 5 % claim (half against a peer), 5 % release (W2)
 *   owner     linearizable owner reads of own keys (W5)
 *   renew_one every request renews one own key
 *   renew     10,000 leases of one owner renewed by their keys in one request (W4a)
 *   renew_all the same by one request without keys (W4b)
 *
 * Connections are spread over the sockets in turn; each is an owner with its own share of the keys,
 * taken before the clock starts. With a period, for one connection only, requests are at least so
 * far apart. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "client/protocol.h"
#include "fsm/base/rng.h"
#include "tests/bench/histogram.h"

#define KEYS_COUNT 10000u
#define KEY_TEXT_LEN 40u
#define TTL_MS 120000u
#define CONNECTIONS_MAX 1024u
#define BATCH_KEYS 1000u

enum workload {
    WORKLOAD_TAKE,
    WORKLOAD_MIXED,
    WORKLOAD_OWNER,
    WORKLOAD_RENEW_ONE,
    WORKLOAD_RENEW,
    WORKLOAD_RENEW_ALL,
};

static const char *const workload_names[] = {"take",      "mixed", "owner",
                                             "renew_one", "renew", "renew_all"};
#define WORKLOAD_COUNT (sizeof workload_names / sizeof workload_names[0])

struct connection {
    int fd;
    unsigned idx;
    uint32_t id;
    enum proto_method method;
    uint64_t sent_ns;
    struct buf in;
    char owner[64];
};

struct load {
    enum workload workload;
    unsigned connection_count;
    uint64_t period_ns; /* 0: the next request leaves when the last one is answered */
    struct connection *connections;
    struct key_item *all; /* KEYS_COUNT items, of one owner in renew */
    char (*key_text)[KEY_TEXT_LEN + 1];
    bool *held;
    struct proto_decoder *decoder;
    struct buf out;
    struct rng rng;
    struct histogram histogram;
    uint64_t outcomes_bad; /* neither success nor a refusal that the workload expects */
    uint64_t errors;
};

static uint64_t clock_ns(void);
static int connect_to(const char *path);
static void keys_make(struct load *load);
static void connections_open(struct load *load, char *sockets);
static void take_all(struct load *load);
static void pace(const struct load *load, const struct connection *connection);
static void next_request(struct load *load, struct connection *connection);
static void mixed_fill(struct load *load, struct connection *connection,
                       struct proto_request *request, unsigned key);
static unsigned own_key(struct load *load, const struct connection *connection);
static void send_request(struct load *load, struct connection *connection,
                         struct proto_request *request);
static void send_all(struct load *load, struct connection *connection);
static bool receive_reply(struct load *load, struct connection *connection);
static void judge(struct load *load, const struct proto_reply *reply);
static void run(struct load *load, uint64_t seconds);
static void fail(const char *what);

int main(int argc, char **argv)
{
    struct load *load = calloc(1, sizeof *load);
    if (argc < 5 || argc > 6 || load == NULL) {
        (void)fprintf(stderr, "usage: bench_load WORKLOAD CONNECTIONS SECONDS SOCKET[,SOCKET...] "
                              "[PERIOD_MS]\n");
        return 2;
    }
    unsigned workload = 0;
    while (workload < WORKLOAD_COUNT && strcmp(workload_names[workload], argv[1]) != 0) {
        workload++;
    }
    load->workload = (enum workload)workload;
    load->connection_count = (unsigned)strtoul(argv[2], NULL, 10);
    uint64_t seconds = strtoull(argv[3], NULL, 10);
    load->period_ns = argc > 5 ? strtoull(argv[5], NULL, 10) * 1000000u : 0;
    if (workload == WORKLOAD_COUNT || load->connection_count < 1 ||
        load->connection_count > CONNECTIONS_MAX || seconds < 1 || seconds > 600) {
        (void)fprintf(stderr, "bench_load: unknown workload, or 1..1024 connections, 1..600 s\n");
        return 2;
    }
    if (load->workload == WORKLOAD_RENEW || load->workload == WORKLOAD_RENEW_ALL) {
        load->connection_count = 1;
    }
    load->decoder = proto_decoder_create();
    buf_init(&load->out, MESSAGE_LEN_MAX);
    rng_init(&load->rng, clock_ns());
    if (load->period_ns > 0 && load->connection_count > 1) {
        (void)fprintf(stderr, "bench_load: a period is for one connection\n");
        return 2;
    }
    keys_make(load);
    connections_open(load, argv[4]);
    take_all(load);
    uint64_t start_ns = clock_ns();
    run(load, seconds);
    double elapsed = (double)(clock_ns() - start_ns) / 1e9;
    (void)printf("{\"workload\": \"%s\", \"connections\": %u, \"ops\": %" PRIu64
                 ", \"per_s\": %.0f, \"p50_ms\": %.4f, \"p99_ms\": %.4f, \"max_ms\": %.3f, "
                 "\"errors\": %" PRIu64 ", \"unexpected\": %" PRIu64 "}\n",
                 argv[1], load->connection_count, load->histogram.count,
                 (double)load->histogram.count / elapsed,
                 (double)histogram_at(&load->histogram, 500) / 1e6,
                 (double)histogram_at(&load->histogram, 990) / 1e6,
                 (double)load->histogram.max_ns / 1e6, load->errors, load->outcomes_bad);
    return load->errors == 0 && load->outcomes_bad == 0 ? 0 : 1;
}

static uint64_t clock_ns(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void fail(const char *what)
{
    (void)fprintf(stderr, "bench_load: %s: %s\n", what, strerror(errno));
    exit(1);
}

static int connect_to(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path) {
        errno = ENAMETOOLONG;
        fail(path);
    }
    memcpy(address.sun_path, path, strlen(path) + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (const struct sockaddr *)&address, sizeof address) != 0) {
        fail(path);
    }
    return fd;
}

/* Names are drawn anew for each run, so that runs on one cluster do not meet. */
static void keys_make(struct load *load)
{
    load->all = calloc(KEYS_COUNT, sizeof *load->all);
    load->key_text = calloc(KEYS_COUNT, sizeof *load->key_text);
    load->held = calloc(KEYS_COUNT, sizeof *load->held);
    if (load->all == NULL || load->key_text == NULL || load->held == NULL) {
        fail("memory");
    }
    for (unsigned i = 0; i < KEYS_COUNT; i++) {
        (void)snprintf(load->key_text[i], KEY_TEXT_LEN + 1, "sbx-%016" PRIx64 "%016" PRIx64 "%04x",
                       rng_next(&load->rng), rng_next(&load->rng), i & 0xffffu);
        load->all[i].key = slice_text(load->key_text[i]);
    }
}

static void connections_open(struct load *load, char *sockets)
{
    char *paths[64];
    unsigned path_count = 0;
    char *rest = NULL;
    for (char *path = strtok_r(sockets, ",", &rest); path != NULL && path_count < 64;
         path = strtok_r(NULL, ",", &rest)) {
        paths[path_count++] = path;
    }
    load->connections = calloc(load->connection_count, sizeof *load->connections);
    if (load->connections == NULL || path_count == 0) {
        fail("sockets");
    }
    for (unsigned i = 0; i < load->connection_count; i++) {
        struct connection *connection = &load->connections[i];
        connection->idx = i;
        connection->fd = connect_to(paths[i % path_count]);
        buf_init(&connection->in, MESSAGE_LEN_MAX + 65536u);
        (void)snprintf(connection->owner, sizeof connection->owner,
                       "host:%016" PRIx64 "%016" PRIx64, rng_next(&load->rng),
                       rng_next(&load->rng));
    }
}

/* Each connection claims its share, BATCH_KEYS keys a request. */
static void take_all(struct load *load)
{
    struct key_item *items = calloc(BATCH_KEYS, sizeof *items);
    if (items == NULL) {
        fail("memory");
    }
    for (unsigned i = 0; i < load->connection_count; i++) {
        struct connection *connection = &load->connections[i];
        unsigned key = i;
        while (key < KEYS_COUNT) {
            uint32_t count = 0;
            for (; key < KEYS_COUNT && count < BATCH_KEYS; key += load->connection_count) {
                items[count++] = load->all[key];
                load->held[key] = true;
            }
            struct proto_request request = {
                .method = PROTO_METHOD_CLAIM,
                .op = {.kind = OP_KIND_CLAIM, .keys = items, .key_count = count},
            };
            send_request(load, connection, &request);
            while (!receive_reply(load, connection)) {
            }
        }
    }
    free(items);
    memset(&load->histogram, 0, sizeof load->histogram);
}

/* The only connection has nothing under way meanwhile, so nobody else waits. */
static void pace(const struct load *load, const struct connection *connection)
{
    uint64_t at_ns = connection->sent_ns + load->period_ns;
    struct timespec at = {.tv_sec = (time_t)(at_ns / 1000000000u),
                          .tv_nsec = (long)(at_ns % 1000000000u)};
    while (load->period_ns > 0 &&
           clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR) {
    }
}

static void next_request(struct load *load, struct connection *connection)
{
    struct proto_request request = {0};
    unsigned key = own_key(load, connection);
    struct key_item item = load->all[key];
    request.op.keys = &item;
    request.op.key_count = 1;
    switch (load->workload) {
    case WORKLOAD_TAKE:
        request.method = PROTO_METHOD_TAKE;
        request.op.kind = OP_KIND_TAKE;
        break;
    case WORKLOAD_MIXED:
        mixed_fill(load, connection, &request, key);
        item = request.op.keys[0];
        request.op.keys = &item;
        break;
    case WORKLOAD_OWNER:
        request.method = PROTO_METHOD_OWNER;
        break;
    case WORKLOAD_RENEW_ONE:
        request.method = PROTO_METHOD_RENEW;
        request.op.kind = OP_KIND_RENEW;
        break;
    case WORKLOAD_RENEW:
        request.method = PROTO_METHOD_RENEW;
        request.op.kind = OP_KIND_RENEW;
        request.op.keys = load->all;
        request.op.key_count = KEYS_COUNT;
        break;
    case WORKLOAD_RENEW_ALL:
        request.method = PROTO_METHOD_RENEW_ALL;
        request.op.kind = OP_KIND_RENEW_ALL;
        request.op.key_count = 0;
        break;
    }
    send_request(load, connection, &request);
}

static void mixed_fill(struct load *load, struct connection *connection,
                       struct proto_request *request, unsigned key)
{
    uint64_t dice = rng_below(&load->rng, 1000);
    if (dice < 700 && load->held[key]) {
        request->method = PROTO_METHOD_RENEW;
        request->op.kind = OP_KIND_RENEW;
    } else if (dice < 900 || !load->held[key]) {
        request->method = PROTO_METHOD_TAKE;
        request->op.kind = OP_KIND_TAKE;
        load->held[key] = true;
    } else if (dice < 950) {
        request->method = PROTO_METHOD_CLAIM;
        request->op.kind = OP_KIND_CLAIM;
        bool of_peer = dice < 925 && load->connection_count > 1;
        unsigned peer = (key + 1) % KEYS_COUNT;
        request->op.keys = of_peer ? &load->all[peer] : &load->all[key];
    } else {
        request->method = PROTO_METHOD_RELEASE;
        request->op.kind = OP_KIND_RELEASE;
        load->held[key] = false;
    }
    (void)connection;
}

static unsigned own_key(struct load *load, const struct connection *connection)
{
    unsigned share = (KEYS_COUNT - connection->idx + load->connection_count - 1) /
                     load->connection_count;
    return connection->idx + (unsigned)rng_below(&load->rng, share) * load->connection_count;
}

static void send_request(struct load *load, struct connection *connection,
                         struct proto_request *request)
{
    request->id = ++connection->id;
    request->op.ns = slice_text("bench");
    if (request->method != PROTO_METHOD_OWNER) {
        request->op.owner = slice_text(connection->owner);
    }
    if (request->method != PROTO_METHOD_OWNER && request->method != PROTO_METHOD_RELEASE) {
        request->op.ttl_ms = TTL_MS;
    }
    connection->method = request->method;
    buf_clear(&load->out);
    proto_encode_request(request, &load->out);
    connection->sent_ns = clock_ns();
    send_all(load, connection);
}

static void send_all(struct load *load, struct connection *connection)
{
    size_t at = 0;
    while (at < load->out.len) {
        ssize_t len = send(connection->fd, load->out.base + at, load->out.len - at, MSG_NOSIGNAL);
        if (len < 0 && errno != EINTR) {
            fail("send");
        }
        at += len > 0 ? (size_t)len : 0;
    }
}

/* True once the reply is whole and judged. */
static bool receive_reply(struct load *load, struct connection *connection)
{
    uint8_t *into = buf_reserve(&connection->in, 65536);
    if (into == NULL) {
        fail("reply too long");
    }
    ssize_t len = recv(connection->fd, into, 65536, 0);
    if (len <= 0) {
        fail("connection lost");
    }
    buf_commit(&connection->in, (size_t)len);
    size_t whole = 0;
    enum proto_verdict verdict = proto_scan(buf_slice(&connection->in), &whole);
    if (verdict == PROTO_VERDICT_MORE) {
        return false;
    }
    uint64_t now_ns = clock_ns();
    struct proto_reply reply;
    struct slice bytes = slice_from(connection->in.base, whole);
    uint32_t id = 0;
    if (verdict == PROTO_VERDICT_REFUSED || proto_reply_id(bytes, &id) != STATUS_OK ||
        id != connection->id ||
        proto_decode_reply(load->decoder, bytes, connection->method, &reply) != STATUS_OK) {
        fail("malformed reply");
    }
    histogram_add(&load->histogram, now_ns - connection->sent_ns);
    judge(load, &reply);
    buf_consume(&connection->in, whole);
    return true;
}

static void judge(struct load *load, const struct proto_reply *reply)
{
    if (reply->status != STATUS_OK) {
        load->errors++;
        return;
    }
    for (uint32_t i = 0; i < reply->outcome_count; i++) {
        enum outcome_kind kind = reply->outcomes[i].outcome.kind;
        bool expected = kind == OUTCOME_KIND_GRANTED || kind == OUTCOME_KIND_RENEWED ||
                        kind == OUTCOME_KIND_RELEASED ||
                        (load->workload == WORKLOAD_MIXED &&
                         (kind == OUTCOME_KIND_HELD || kind == OUTCOME_KIND_LOST ||
                          kind == OUTCOME_KIND_NOT_OWNER));
        load->outcomes_bad += expected ? 0 : 1;
    }
    if (reply->method == PROTO_METHOD_RENEW_ALL && reply->count != KEYS_COUNT) {
        load->outcomes_bad++;
    }
}

static void run(struct load *load, uint64_t seconds)
{
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    for (unsigned i = 0; i < load->connection_count; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &load->connections[i]};
        if (epoll_ctl(epoll, EPOLL_CTL_ADD, load->connections[i].fd, &event) != 0) {
            fail("epoll");
        }
    }
    uint64_t end_ns = clock_ns() + seconds * 1000000000u;
    unsigned pending = load->connection_count;
    for (unsigned i = 0; i < load->connection_count; i++) {
        next_request(load, &load->connections[i]);
    }
    while (pending > 0) {
        struct epoll_event events[256];
        int count = epoll_wait(epoll, events, 256, 10000);
        if (count <= 0 && errno != EINTR) {
            fail("no reply for 10 s");
        }
        for (int i = 0; i < count; i++) {
            struct connection *connection = events[i].data.ptr;
            if (!receive_reply(load, connection)) {
                continue;
            }
            pace(load, connection);
            if (clock_ns() < end_ns) {
                next_request(load, connection);
            } else {
                pending--;
            }
        }
    }
    (void)close(epoll);
}
