/* Blocking calls over a pool of connections.
 *
 * A call takes a *seat*: a connection (or none yet) with the memory to encode, receive and decode.
 * Seats lie in an array of atomic pointers, so that there is no lock that a fork could leave locked
 * in the child. A seat remembers the process that opened its connection; another process closes its
 * copy and opens its own (hazard C7). The session decides what happens next, io does it. */
#include "client/client.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <unistd.h>

#include "client/answer.h"
#include "client/protocol.h"
#include "client/session.h"
#include "client/tenure_admin.h"

#define IDLE_MAX     64u            /* connections that are kept while no call uses them */
#define SEAT_LEN_MAX (256u * 1024u) /* a seat that grew beyond gives its memory back */
#define ANSWER_GRACE_NS                                                                            \
    (50 * NS_PER_MS)          /* a node that gives up at the deadline says so just after it */
#define HOST_LEN_MAX     200u /* of a host's name in an owner */
#define UUID_LEN         36u
#define RULE_DEADLINE_MS "must be a whole number of milliseconds in 10..60000"
#define RULE_SOCKET      "must be a path of 1..107 bytes"
#define SOCKET_LEN_MAX   107u

struct seat {
    pid_t pid; /* that opened the connection */
    int conn;  /* -1: none */
    struct buf out;
    struct buf in;
    struct proto_decoder *decoder;
};

/* An owner that the client made for one process; older ones stay, somebody may be using them. */
struct made_owner {
    struct made_owner *older;
    pid_t pid;
    char text[HOST_LEN_MAX + 1 + UUID_LEN + 1];
};

struct tenure_client {
    const struct io *io;
    char *socket;
    char *ns;
    char *owner; /* NULL: made for each process */
    uint64_t deadline_ms;
    _Atomic(struct made_owner *) made;
    _Atomic uint32_t last_id;
    _Atomic(struct seat *) idle[IDLE_MAX];
};

/* One call while it runs. */
struct exchange {
    struct tenure_client *client;
    struct proto_request *request;
    struct seat *seat;
    struct session session;
    uint64_t sent_ns; /* before the last sending */
    struct proto_reply reply;
    size_t reply_len;
    bool replied; /* reply has what the node said last */
};

static enum tenure_error lease_call(struct tenure_client *client, enum proto_method method,
                                    const struct tenure_call *call, struct tenure_reply **out_reply,
                                    struct tenure_failure *out_failure);
static enum tenure_error cluster_call(struct tenure_client *client, enum proto_method method,
                                      const struct tenure_cluster_call *call,
                                      struct tenure_reply **out_reply,
                                      struct tenure_failure *out_failure);
static struct proto_request request_of(struct tenure_client *client, enum proto_method method,
                                       const struct tenure_call *call);
static struct key_item item_of(const struct tenure_item *item);
static struct slice optional_text(const char *text);
static enum tenure_error run(struct tenure_client *client, struct proto_request *request,
                             uint64_t deadline_ms, struct tenure_reply **out_reply,
                             struct tenure_failure *out_failure);
static enum tenure_error conclude(struct exchange *exchange, struct tenure_reply **out_reply,
                                  struct tenure_failure *out_failure);
static enum session_event perform(struct exchange *exchange, enum session_action action,
                                  enum status *out_status);
static enum session_event perform_connect(struct exchange *exchange, enum status *out_status);
static enum session_event perform_send(struct exchange *exchange, enum status *out_status);
static enum session_event perform_receive(struct exchange *exchange, enum status *out_status);
static bool read_message(struct exchange *exchange, struct slice message,
                         enum session_event *out_event, enum status *out_status);
static void seat_disconnect(const struct io *io, struct seat *seat);
static struct seat *seat_take(struct tenure_client *client);
static void seat_return(struct tenure_client *client, struct seat *seat);
static void seat_destroy(const struct io *io, struct seat *seat);
static const char *owner_of_process(struct tenure_client *client);
static struct made_owner *owner_make(void);
static bool read_only(enum proto_method method);
static enum tenure_error refuse(struct tenure_failure *out_failure, const char *field,
                                struct slice value, const char *rule);

enum tenure_error tenure_client_create(const struct tenure_options *options,
                                       struct tenure_client **out_client,
                                       struct tenure_failure *out_failure)
{
    return client_create_with(io_system(), options, out_client, out_failure);
}

enum tenure_error client_create_with(const struct io *io, const struct tenure_options *options,
                                     struct tenure_client **out_client,
                                     struct tenure_failure *out_failure)
{
    static const struct tenure_options defaults;
    const struct tenure_options *given = options == NULL ? &defaults : options;
    const char *path = given->socket == NULL ? TENURE_SOCKET_DEFAULT : given->socket;
    uint64_t deadline_ms = given->deadline_ms == 0 ? DEADLINE_MS_DEFAULT : given->deadline_ms;
    if (path[0] == '\0' || strlen(path) > SOCKET_LEN_MAX) {
        return refuse(out_failure, "socket", slice_text(path), RULE_SOCKET);
    }
    if (deadline_ms < DEADLINE_MS_MIN || deadline_ms > DEADLINE_MS_MAX) {
        struct violation violation;
        violation_set_u64(&violation, "deadline_ms", deadline_ms, RULE_DEADLINE_MS);
        return failure_set(out_failure, STATUS_INVALID, (struct slice){0}, &violation);
    }
    struct tenure_client *client = calloc(1, sizeof *client);
    if (client == NULL) {
        return failure_set(out_failure, STATUS_NO_MEMORY, (struct slice){0}, NULL);
    }
    client->io = io;
    client->deadline_ms = deadline_ms;
    client->socket = strdup(path);
    client->ns = strdup(given->ns == NULL ? NAMESPACE_DEFAULT : given->ns);
    client->owner = given->owner == NULL ? NULL : strdup(given->owner);
    if (client->socket == NULL || client->ns == NULL ||
        (given->owner != NULL && client->owner == NULL)) {
        tenure_client_destroy(client);
        return failure_set(out_failure, STATUS_NO_MEMORY, (struct slice){0}, NULL);
    }
    *out_client = client;
    return TENURE_ERROR_NONE;
}

void tenure_client_destroy(struct tenure_client *client)
{
    if (client == NULL) {
        return;
    }
    for (size_t i = 0; i < IDLE_MAX; i++) {
        struct seat *seat = atomic_exchange(&client->idle[i], NULL);
        if (seat != NULL) {
            seat_destroy(client->io, seat);
        }
    }
    struct made_owner *made = atomic_load(&client->made);
    while (made != NULL) {
        struct made_owner *older = made->older;
        free(made);
        made = older;
    }
    free(client->socket);
    free(client->ns);
    free(client->owner);
    free(client);
}

const char *tenure_client_owner(struct tenure_client *client)
{
    return client->owner != NULL ? client->owner : owner_of_process(client);
}

uint64_t tenure_now_ns(void)
{
    return io_system()->now(NULL);
}

void tenure_reply_free(struct tenure_reply *reply)
{
    free(reply);
}

#define LEASE_CALL(name, METHOD)                                                                   \
    enum tenure_error tenure_##name(struct tenure_client *client, const struct tenure_call *call,  \
                                    struct tenure_reply **out_reply,                               \
                                    struct tenure_failure *out_failure)                            \
    {                                                                                              \
        return lease_call(client, PROTO_METHOD_##METHOD, call, out_reply, out_failure);            \
    }

LEASE_CALL(take, TAKE)
LEASE_CALL(claim, CLAIM)
LEASE_CALL(renew, RENEW)
LEASE_CALL(heartbeat, HEARTBEAT)
LEASE_CALL(release, RELEASE)
LEASE_CALL(renew_all, RENEW_ALL)
LEASE_CALL(release_all, RELEASE_ALL)
LEASE_CALL(purge, PURGE)
LEASE_CALL(owner, OWNER)
LEASE_CALL(list, LIST)
LEASE_CALL(count, COUNT)
LEASE_CALL(status, STATUS)
LEASE_CALL(members, MEMBERS)
LEASE_CALL(metrics, METRICS)

enum tenure_error tenure_cluster_init(struct tenure_client *client,
                                      const struct tenure_cluster_call *call,
                                      struct tenure_reply **out_reply,
                                      struct tenure_failure *out_failure)
{
    return cluster_call(client, PROTO_METHOD_CLUSTER_INIT, call, out_reply, out_failure);
}

enum tenure_error tenure_cluster_transfer(struct tenure_client *client,
                                          const struct tenure_cluster_call *call,
                                          struct tenure_reply **out_reply,
                                          struct tenure_failure *out_failure)
{
    return cluster_call(client, PROTO_METHOD_CLUSTER_TRANSFER, call, out_reply, out_failure);
}

static enum tenure_error lease_call(struct tenure_client *client, enum proto_method method,
                                    const struct tenure_call *call, struct tenure_reply **out_reply,
                                    struct tenure_failure *out_failure)
{
    static const struct tenure_call nothing;
    const struct tenure_call *given = call == NULL ? &nothing : call;
    struct violation violation;
    if (given->item_count > KEYS_MAX) {
        violation_set_u64(&violation, "keys", given->item_count, RULE_KEYS);
        return failure_set(out_failure, STATUS_INVALID, (struct slice){0}, &violation);
    }
    if (given->limit > UINT32_MAX) {
        violation_set_u64(&violation, "limit", given->limit, PROTO_RULE_LIMIT);
        return failure_set(out_failure, STATUS_INVALID, (struct slice){0}, &violation);
    }
    struct proto_request request = request_of(client, method, given);
    struct key_item single;
    struct key_item *items = &single;
    if (given->item_count > 1) {
        items = calloc(given->item_count, sizeof *items);
        if (items == NULL) {
            return failure_set(out_failure, STATUS_NO_MEMORY, (struct slice){0}, NULL);
        }
    }
    for (size_t i = 0; i < given->item_count; i++) {
        items[i] = item_of(&given->items[i]);
    }
    request.op.keys = items;
    request.op.key_count = (uint32_t)given->item_count;
    enum tenure_error error = run(client, &request, given->deadline_ms, out_reply, out_failure);
    if (items != &single) {
        free(items);
    }
    return error;
}

static enum tenure_error cluster_call(struct tenure_client *client, enum proto_method method,
                                      const struct tenure_cluster_call *call,
                                      struct tenure_reply **out_reply,
                                      struct tenure_failure *out_failure)
{
    static const struct tenure_cluster_call nothing;
    const struct tenure_cluster_call *given = call == NULL ? &nothing : call;
    struct proto_request request = {
        .method = method,
        .has_token_floor = given->has_token_floor,
        .token_floor = given->token_floor,
        .voters_wanted = given->voters,
        .node_id = given->node_id,
    };
    return run(client, &request, given->deadline_ms, out_reply, out_failure);
}

/* All but the keys. What a method does not know is passed on, so that the node says so. */
static struct proto_request request_of(struct tenure_client *client, enum proto_method method,
                                       const struct tenure_call *call)
{
    struct proto_request request = {
        .method = method,
        .stale = call->stale,
        .prefix = optional_text(call->prefix),
        .after = optional_text(call->after),
        .state = (enum lease_state)call->state,
        .limit = (uint32_t)call->limit,
    };
    bool writes = method >= PROTO_METHOD_TAKE && method <= PROTO_METHOD_PURGE;
    bool owned = writes && method != PROTO_METHOD_PURGE;
    bool spaced = writes || read_only(method);
    spaced = spaced && method != PROTO_METHOD_STATUS && method != PROTO_METHOD_MEMBERS &&
             method != PROTO_METHOD_METRICS;
    request.op = (struct op){
        .ttl_ms = call->ttl_ms,
        .destroy = call->destroy,
        .adopt = call->adopt,
        .grace_ms = call->grace_ms,
        .reestablish = call->reestablish,
        .has_set_version = call->has_set_version,
        .set_version = call->set_version,
    };
    if (spaced) {
        request.op.ns = slice_text(call->ns != NULL ? call->ns : client->ns);
    }
    request.op.owner = optional_text(call->owner);
    if (owned && call->owner == NULL) {
        request.op.owner = slice_text(tenure_client_owner(client));
    }
    return request;
}

static struct key_item item_of(const struct tenure_item *item)
{
    struct key_item key = {
        .key = slice_text(item->key == NULL ? "" : item->key),
        .has_if_token = item->has_if_token,
        .if_token = item->if_token,
    };
    if (item->meta != NULL) {
        key.meta = slice_from(item->meta, item->meta_len);
    }
    if (item->identity != NULL) {
        key.identity = slice_from(item->identity, item->identity_len);
    }
    return key;
}

static struct slice optional_text(const char *text)
{
    return text == NULL ? (struct slice){0} : slice_text(text);
}

/* Does the request, whatever it is. */
static enum tenure_error run(struct tenure_client *client, struct proto_request *request,
                             uint64_t deadline_ms, struct tenure_reply **out_reply,
                             struct tenure_failure *out_failure)
{
    uint64_t length_ms = deadline_ms == 0 ? client->deadline_ms : deadline_ms;
    if (length_ms < DEADLINE_MS_MIN || length_ms > DEADLINE_MS_MAX) {
        struct violation violation;
        violation_set_u64(&violation, "deadline_ms", length_ms, RULE_DEADLINE_MS);
        return failure_set(out_failure, STATUS_INVALID, (struct slice){0}, &violation);
    }
    uint64_t now_ns = client->io->now(client->io->ctx);
    request->deadline_ns = now_ns + ms_to_ns(length_ms);
    do {
        request->id = atomic_fetch_add(&client->last_id, 1) + 1;
    } while (request->id == 0);
    struct exchange exchange = {.client = client, .request = request};
    exchange.seat = seat_take(client);
    buf_clear(&exchange.seat->out);
    proto_encode_request(request, &exchange.seat->out);
    if (buf_overflown(&exchange.seat->out)) {
        seat_return(client, exchange.seat);
        return failure_set(out_failure, STATUS_TOO_LARGE, (struct slice){0}, NULL);
    }
    enum session_action action = session_start(&exchange.session, request->deadline_ns,
                                               read_only(request->method), now_ns ^ request->id);
    while (action != SESSION_ACTION_FINISH) {
        enum status status = STATUS_OK;
        enum session_event event = perform(&exchange, action, &status);
        action = session_step(&exchange.session, event, status, client->io->now(client->io->ctx));
    }
    enum tenure_error error = conclude(&exchange, out_reply, out_failure);
    seat_return(client, exchange.seat);
    return error;
}

static enum tenure_error conclude(struct exchange *exchange, struct tenure_reply **out_reply,
                                  struct tenure_failure *out_failure)
{
    enum status status = exchange->session.status;
    if (status != STATUS_OK) {
        bool said = exchange->replied && exchange->reply.status == status;
        struct slice detail = said ? exchange->reply.detail : (struct slice){0};
        if (status == STATUS_NOT_CONNECTED || (status == STATUS_DENIED && !said)) {
            detail = slice_text(exchange->client->socket);
        }
        return failure_set(out_failure, status, detail, said ? &exchange->reply.violation : NULL);
    }
    struct answer_source source = {
        .reply = &exchange->reply,
        .message_len = exchange->reply_len,
        .request = exchange->request,
        .sent_ns = exchange->sent_ns,
    };
    struct tenure_reply *reply = answer_create(&source);
    CHECK(reply != NULL); /* it is done and cannot be undone: there is no status to say that in */
    *out_reply = reply;
    if (out_failure != NULL) {
        *out_failure = (struct tenure_failure){.error = TENURE_ERROR_NONE};
    }
    return TENURE_ERROR_NONE;
}

static enum session_event perform(struct exchange *exchange, enum session_action action,
                                  enum status *out_status)
{
    const struct io *io = exchange->client->io;
    switch (action) {
    case SESSION_ACTION_CONNECT:
        return perform_connect(exchange, out_status);
    case SESSION_ACTION_SEND:
        return perform_send(exchange, out_status);
    case SESSION_ACTION_RECEIVE:
        return perform_receive(exchange, out_status);
    case SESSION_ACTION_WAIT:
        io->wait(io->ctx, exchange->session.wait_until_ns);
        return SESSION_EVENT_WAITED;
    case SESSION_ACTION_FINISH:
        break;
    }
    CHECK(false);
    return SESSION_EVENT_LOST;
}

static enum session_event perform_connect(struct exchange *exchange, enum status *out_status)
{
    const struct io *io = exchange->client->io;
    struct seat *seat = exchange->seat;
    if (seat->conn >= 0) {
        /* Idle and healthy is one that has nothing to say: neither an end nor bytes that nobody
         * asked for. */
        buf_clear(&seat->in);
        if (!exchange->session.fresh &&
            io->receive(io->ctx, seat->conn, &seat->in, 0) == STATUS_DEADLINE) {
            return SESSION_EVENT_REUSED;
        }
        seat_disconnect(io, seat);
    }
    enum status st = io->connect(io->ctx, exchange->client->socket, &seat->conn);
    if (st != STATUS_OK) {
        seat->conn = -1;
        *out_status = st;
        exchange->replied = false;
        return SESSION_EVENT_CONNECT_FAILED;
    }
    seat->pid = getpid();
    return SESSION_EVENT_CONNECTED;
}

static enum session_event perform_send(struct exchange *exchange, enum status *out_status)
{
    const struct io *io = exchange->client->io;
    struct seat *seat = exchange->seat;
    buf_clear(&seat->in);
    exchange->replied = false;
    exchange->sent_ns = io->now(io->ctx);
    enum status st =
        io->send(io->ctx, seat->conn, buf_slice(&seat->out), exchange->session.deadline_ns);
    if (st == STATUS_OK) {
        return SESSION_EVENT_SENT;
    }
    seat_disconnect(io, seat);
    *out_status = st;
    return SESSION_EVENT_SEND_FAILED;
}

/* Until the reply with our id is there; others are dropped. */
static enum session_event perform_receive(struct exchange *exchange, enum status *out_status)
{
    const struct io *io = exchange->client->io;
    struct seat *seat = exchange->seat;
    struct proto_scanner scanner;
    proto_scanner_init(&scanner);
    for (;;) {
        size_t len = 0;
        enum session_event event = SESSION_EVENT_LOST;
        enum proto_verdict verdict = proto_scanner_look(&scanner, buf_slice(&seat->in), &len);
        if (verdict == PROTO_VERDICT_WHOLE) {
            struct slice message = slice_from(seat->in.base, len);
            if (read_message(exchange, message, &event, out_status)) {
                if (event != SESSION_EVENT_ANSWERED) {
                    seat_disconnect(io, seat);
                }
                return event;
            }
            buf_consume(&seat->in, len);
            continue;
        }
        enum status st = STATUS_NOT_CONNECTED;
        if (verdict == PROTO_VERDICT_MORE) {
            st = io->receive(io->ctx, seat->conn, &seat->in,
                             exchange->session.deadline_ns + ANSWER_GRACE_NS);
        }
        if (st != STATUS_OK) {
            seat_disconnect(io, seat);
            return st == STATUS_DEADLINE ? SESSION_EVENT_TIMED_OUT : SESSION_EVENT_LOST;
        }
    }
}

/* True when this message ends the waiting: it is our reply, speaks of the connection, or is none.
 */
static bool read_message(struct exchange *exchange, struct slice message,
                         enum session_event *out_event, enum status *out_status)
{
    uint32_t id = 0;
    *out_event = SESSION_EVENT_LOST;
    if (proto_reply_id(message, &id) != STATUS_OK) {
        return true;
    }
    if (id != exchange->request->id && id != 0) {
        return false;
    }
    if (proto_decode_reply(exchange->seat->decoder, message, exchange->request->method,
                           &exchange->reply) != STATUS_OK) {
        return true;
    }
    bool whole_connection = id == 0;
    if (whole_connection && status_class(exchange->reply.status) == STATUS_CLASS_DONE) {
        return true;
    }
    exchange->replied = true;
    exchange->reply_len = message.len;
    *out_status = exchange->reply.status;
    *out_event = whole_connection ? SESSION_EVENT_REFUSED : SESSION_EVENT_ANSWERED;
    return true;
}

static void seat_disconnect(const struct io *io, struct seat *seat)
{
    if (seat->conn >= 0) {
        io->close(io->ctx, seat->conn, seat->pid == getpid());
        seat->conn = -1;
    }
}

/* An idle seat, or a new one without a connection. */
static struct seat *seat_take(struct tenure_client *client)
{
    for (size_t i = 0; i < IDLE_MAX; i++) {
        struct seat *seat = atomic_exchange(&client->idle[i], NULL);
        if (seat == NULL) {
            continue;
        }
        if (seat->pid != getpid()) {
            seat_disconnect(client->io, seat);
        }
        return seat;
    }
    struct seat *seat = calloc(1, sizeof *seat);
    CHECK(seat != NULL);
    seat->conn = -1;
    buf_init(&seat->out, MESSAGE_LEN_MAX);
    buf_init(&seat->in, MESSAGE_LEN_MAX);
    seat->decoder = proto_decoder_create();
    return seat;
}

static void seat_return(struct tenure_client *client, struct seat *seat)
{
    if (seat->in.cap > SEAT_LEN_MAX || seat->out.cap > SEAT_LEN_MAX) {
        buf_deinit(&seat->in);
        buf_deinit(&seat->out);
        proto_decoder_destroy(seat->decoder);
        seat->decoder = proto_decoder_create();
    }
    for (size_t i = 0; i < IDLE_MAX && seat->conn >= 0; i++) {
        struct seat *nobody = NULL;
        if (atomic_compare_exchange_strong(&client->idle[i], &nobody, seat)) {
            return;
        }
    }
    seat_destroy(client->io, seat);
}

static void seat_destroy(const struct io *io, struct seat *seat)
{
    seat_disconnect(io, seat);
    buf_deinit(&seat->in);
    buf_deinit(&seat->out);
    proto_decoder_destroy(seat->decoder);
    free(seat);
}

/* The owner that was made for this process; made now if there is none. */
static const char *owner_of_process(struct tenure_client *client)
{
    pid_t pid = getpid();
    struct made_owner *newest = atomic_load(&client->made);
    if (newest != NULL && newest->pid == pid) {
        return newest->text;
    }
    struct made_owner *owner = owner_make();
    owner->pid = pid;
    owner->older = newest;
    while (!atomic_compare_exchange_strong(&client->made, &newest, owner)) {
        if (newest->pid == pid) { /* another thread was faster */
            free(owner);
            return newest->text;
        }
        owner->older = newest;
    }
    return owner->text;
}

/* HOST:UUID, the UUID random (RFC 9562, version 4). */
static struct made_owner *owner_make(void)
{
    struct made_owner *owner = calloc(1, sizeof *owner);
    CHECK(owner != NULL);
    char host[HOST_LEN_MAX + 1] = "host";
    if (gethostname(host, sizeof host - 1) != 0 || host[0] == '\0') {
        memcpy(host, "host", sizeof "host");
    }
    for (char *at = host; *at != '\0'; at++) {
        bool plain = *at > ' ' && *at <= '~';
        *at = plain ? *at : '-'; /* an owner is UTF-8 without control characters */
    }
    uint8_t bytes[16];
    CHECK(getrandom(bytes, sizeof bytes, 0) == (ssize_t)sizeof bytes);
    bytes[6] = (uint8_t)((bytes[6] & 0x0fu) | 0x40u);
    bytes[8] = (uint8_t)((bytes[8] & 0x3fu) | 0x80u);
    int at = snprintf(owner->text, sizeof owner->text, "%s:", host);
    for (size_t i = 0; i < sizeof bytes; i++) {
        const char *dash = i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "";
        at += snprintf(owner->text + at, sizeof owner->text - (size_t)at, "%s%02x", dash, bytes[i]);
    }
    return owner;
}

/* True for methods that change nothing and may be asked again. */
static bool read_only(enum proto_method method)
{
    switch (method) {
    case PROTO_METHOD_HELLO:
    case PROTO_METHOD_OWNER:
    case PROTO_METHOD_LIST:
    case PROTO_METHOD_COUNT:
    case PROTO_METHOD_STATUS:
    case PROTO_METHOD_MEMBERS:
    case PROTO_METHOD_METRICS:
        return true;
    case PROTO_METHOD_TAKE:
    case PROTO_METHOD_CLAIM:
    case PROTO_METHOD_RENEW:
    case PROTO_METHOD_HEARTBEAT:
    case PROTO_METHOD_RELEASE:
    case PROTO_METHOD_RENEW_ALL:
    case PROTO_METHOD_RELEASE_ALL:
    case PROTO_METHOD_PURGE:
    case PROTO_METHOD_CLUSTER_INIT:
    case PROTO_METHOD_CLUSTER_TRANSFER:
        return false;
    }
    CHECK(false);
    return false;
}

static enum tenure_error refuse(struct tenure_failure *out_failure, const char *field,
                                struct slice value, const char *rule)
{
    struct violation violation;
    violation_set(&violation, field, value, rule);
    return failure_set(out_failure, STATUS_INVALID, (struct slice){0}, &violation);
}
