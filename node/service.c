/* A call lives from its message to the moment when its reply is written or its connection is gone;
 * what was asked is kept until it is answered. Whoever is asked (dispatcher, node) may still hold
 * it in between; `state` says who does:
 *
 *   message ──► ASKED ──reply──► REPLYING ──written──► freed
 *                 │ connection gone
 *                 └── the dispatcher or a task forgets it, freed
 *
 * A task, which is a transfer of leadership or the founding of a cluster, outlives the call that
 * asked for it: that is answered at its deadline. */
#include "node/service.h"

#include <stdlib.h>
#include <string.h>

#include "fsm/base/check.h"
#include "fsm/command.h"

/* Bytes of a message kept inside the call; a single-key request with metadata fits. */
#define MESSAGE_INLINE_LEN 2048u
#define POOL_MAX 1024u /* free calls kept; more than ever wait on one busy connection */
#define REPLY_LEN_MAX (MESSAGE_LEN_MAX + 64u * 1024u)

/* Nobody takes it back: whatever ends the node, its next start goes on with what was asked for. */
#define DETAIL_FOUNDING "the founding of the cluster has begun, and its end is not known; ask again"

enum call_state {
    CALL_STATE_ASKED,
    CALL_STATE_REPLYING,
};

/* The node has it until it calls on_task_done. */
struct task {
    struct service *service;
    struct service_call *call; /* NULL once that is answered or gone */
    struct loop_timer *timer;  /* at the call's deadline */
};

struct service_call {
    struct api_call api;
    struct dispatch_call dispatch;
    struct service *service;
    struct list free_link;
    struct proto_request request;
    enum call_state state;
    bool dispatched; /* the dispatcher wants to hear whether the reply was written */
    struct task *task; /* borrowed; NULL unless it waits for one */
    uint8_t *message_long; /* owned; NULL where the inline bytes suffice */
    struct key_item *keys; /* owned; NULL where the one inline suffices */
    struct key_item key;
    uint8_t message[MESSAGE_INLINE_LEN];
};

struct service {
    struct service_config config;
    struct api *api;
    struct proto_decoder *decoder;
    struct buf reply;
    struct list pool;
    uint32_t pool_count;
    uint32_t tasks; /* that the node has not ended yet */
    struct service_stats stats;
};

static void on_message(void *ctx, struct api_conn *conn, const struct api_peer *peer,
                       struct slice message);
static void on_call_lost(void *ctx, struct api_call *api_call);
static void on_written(void *ctx, struct api_call *api_call, bool wholly);
static void on_done(struct dispatch_call *dispatch_call, const struct proto_reply *reply);
static void ask_task(struct service_call *call);
static enum status task_begin(struct task *task, struct service_call *call);
static void on_task_done(void *ctx, enum status status);
static void on_task_deadline(void *ctx, uint64_t now_ns);
static void task_answer(struct task *task, enum status status);
static void answer_founded(struct service_call *call);
static struct service_call *call_take(struct service *service);
static void call_put(struct service_call *call);
static struct slice message_keep(struct service_call *call, struct slice message);
static size_t keys_keep(struct service_call *call);
static void request_forget(struct service_call *call);
static void handle(struct service_call *call, const struct api_peer *peer);
static enum status validate(const struct proto_request *request, struct violation *out_violation);
static enum status validate_read(const struct proto_request *request,
                                 struct violation *out_violation);
static enum status validate_init(const struct proto_request *request,
                                 struct violation *out_violation);
static void submit(struct service_call *call);
static uint64_t deadline_of(const struct service_call *call, uint64_t now_ns);
static void ask_node(struct service_call *call);
static void answer(struct service_call *call, const struct proto_reply *reply);
static void answer_error(struct service_call *call, enum status status, const char *detail,
                         const struct violation *violation);
static bool is_lease_verb(enum proto_method method);
static bool is_read(enum proto_method method);

struct service *service_create(const struct service_config *config)
{
    struct service *service = calloc(1, sizeof *service);
    CHECK(service != NULL);
    service->config = *config;
    service->decoder = proto_decoder_create();
    buf_init(&service->reply, REPLY_LEN_MAX);
    list_init(&service->pool);
    return service;
}

struct api_callbacks service_api_callbacks(struct service *service)
{
    return (struct api_callbacks){
        .ctx = service,
        .on_message = on_message,
        .on_call_lost = on_call_lost,
        .on_written = on_written,
    };
}

void service_set_api(struct service *service, struct api *api)
{
    service->api = api;
}

void service_destroy(struct service *service)
{
    CHECK(service->stats.in_flight == 0 && service->tasks == 0);
    struct list *link;
    while ((link = list_pop(&service->pool)) != NULL) {
        free(CONTAINER_OF(link, struct service_call, free_link));
    }
    proto_decoder_destroy(service->decoder);
    buf_deinit(&service->reply);
    free(service);
}

void service_stats(const struct service *service, struct service_stats *out_stats)
{
    *out_stats = service->stats;
}

static void on_message(void *ctx, struct api_conn *conn, const struct api_peer *peer,
                       struct slice message)
{
    struct service *service = ctx;
    struct service_call *call = call_take(service);
    struct slice kept = message_keep(call, message);
    struct violation violation = {0};
    enum status st = proto_decode_request(service->decoder, kept, loop_now_ns(service->config.loop),
                                          &call->request, &violation);
    if (st == STATUS_MALFORMED) {
        call_put(call);
        api_conn_refuse(conn);
        return;
    }
    api_call_begin(conn, &call->api);
    if (st != STATUS_OK) {
        answer_error(call, st, NULL, &violation);
        return;
    }
    size_t long_len = call->message_long != NULL ? message.len : 0;
    api_call_keep(service->api, &call->api, sizeof *call + long_len + keys_keep(call));
    handle(call, peer);
}

/* The connection is gone before the reply: nobody will hear it. */
static void on_call_lost(void *ctx, struct api_call *api_call)
{
    (void)ctx;
    struct service_call *call = CONTAINER_OF(api_call, struct service_call, api);
    CHECK(call->state == CALL_STATE_ASKED);
    if (call->dispatched) {
        struct service *service = call->service;
        dispatch_abandon(service->config.dispatch, &call->dispatch,
                         loop_now_ns(service->config.loop));
    } else {
        CHECK(call->task != NULL);
        call->task->call = NULL;
    }
    call_put(call);
}

static void on_written(void *ctx, struct api_call *api_call, bool wholly)
{
    (void)ctx;
    struct service_call *call = CONTAINER_OF(api_call, struct service_call, api);
    CHECK(call->state == CALL_STATE_REPLYING);
    if (call->dispatched) {
        struct service *service = call->service;
        dispatch_delivered(service->config.dispatch, &call->dispatch, wholly,
                           loop_now_ns(service->config.loop));
    }
    call_put(call);
}

static void handle(struct service_call *call, const struct api_peer *peer)
{
    struct service *service = call->service;
    bool admin = peer->uid == 0 || peer->uid == service->config.admin_uid;
    if (proto_method_admin(call->request.method) && !admin) {
        service->stats.denied++;
        answer_error(call, STATUS_DENIED, "only for root and the node's own user", NULL);
        return;
    }
    struct violation violation = {0};
    enum status st = validate(&call->request, &violation);
    if (st != STATUS_OK) {
        answer_error(call, st, NULL, &violation);
        return;
    }
    if (is_lease_verb(call->request.method) || is_read(call->request.method)) {
        submit(call);
    } else if (call->request.method == PROTO_METHOD_CLUSTER_INIT ||
               call->request.method == PROTO_METHOD_CLUSTER_TRANSFER) {
        ask_task(call);
    } else {
        ask_node(call);
    }
}

static enum status validate(const struct proto_request *request, struct violation *out_violation)
{
    enum status st = STATUS_OK;
    if (is_lease_verb(request->method)) {
        st = op_validate(&request->op, out_violation);
    } else if (is_read(request->method)) {
        st = validate_read(request, out_violation);
    } else if (request->method == PROTO_METHOD_CLUSTER_INIT) {
        st = validate_init(request, out_violation);
    }
    if (st == STATUS_OK && proto_reply_len_max(request) > MESSAGE_LEN_MAX) {
        violation_set_u64(out_violation, "keys", request->op.key_count,
                          "the largest reply must fit one message of 8 MiB");
        st = STATUS_INVALID;
    }
    return st;
}

static enum status validate_read(const struct proto_request *request,
                                 struct violation *out_violation)
{
    enum status st = namespace_validate(request->op.ns, out_violation);
    if (st == STATUS_OK && request->op.owner.base != NULL) {
        st = owner_validate(request->op.owner, out_violation);
    }
    if (request->method == PROTO_METHOD_OWNER && st == STATUS_OK &&
        (request->op.key_count < 1 || request->op.key_count > KEYS_MAX)) {
        violation_set_u64(out_violation, "keys", request->op.key_count,
                          "must be 1..10000 keys");
        st = STATUS_INVALID;
    }
    for (uint32_t i = 0; i < request->op.key_count && st == STATUS_OK; i++) {
        st = key_validate(request->op.keys[i].key, out_violation);
    }
    if (st == STATUS_OK && request->prefix.len > 0) {
        st = key_validate(request->prefix, out_violation);
        if (st != STATUS_OK) {
            out_violation->field = "prefix";
        }
    }
    return st;
}

/* What the birth will say of the cluster. */
static enum status validate_init(const struct proto_request *request,
                                 struct violation *out_violation)
{
    struct settings settings = settings_default();
    if (request->voters_wanted != 0) {
        settings.voters_wanted = request->voters_wanted;
    }
    enum status st = settings_validate(&settings, out_violation);
    if (st != STATUS_OK) {
        out_violation->field = "voters";
    } else if (request->has_token_floor && request->token_floor > TOKEN_FLOOR_MAX) {
        violation_set_u64(out_violation, "token_floor", request->token_floor, RULE_TOKEN_FLOOR);
        st = STATUS_INVALID;
    }
    return st;
}

static void submit(struct service_call *call)
{
    struct service *service = call->service;
    uint64_t now_ns = loop_now_ns(service->config.loop);
    uint64_t deadline_ns = deadline_of(call, now_ns);
    call->dispatch = (struct dispatch_call){
        .request = &call->request,
        .deadline_ns = deadline_ns,
        .on_done = on_done,
        .ctx = call,
    };
    enum status st = deadline_ns <= now_ns
                         ? STATUS_DEADLINE
                         : dispatch_submit(service->config.dispatch, &call->dispatch, now_ns);
    if (st != STATUS_OK) {
        answer_error(call, st, NULL, NULL);
        return;
    }
    call->dispatched = true;
}

static uint64_t deadline_of(const struct service_call *call, uint64_t now_ns)
{
    uint64_t deadline_ns = call->request.deadline_ns;
    return deadline_ns == 0 ? now_ns + ms_to_ns(DEADLINE_MS_DEFAULT) : deadline_ns;
}

static void on_done(struct dispatch_call *dispatch_call, const struct proto_reply *reply)
{
    struct service_call *call = dispatch_call->ctx;
    struct proto_reply full = *reply;
    full.id = call->request.id;
    full.method = call->request.method;
    answer(call, &full);
}

static void ask_node(struct service_call *call)
{
    const struct service_node *node = &call->service->config.node;
    struct fields fields;
    fields_init(&fields);
    struct proto_reply reply = {.id = call->request.id, .method = call->request.method};
    if (call->request.method == PROTO_METHOD_STATUS) {
        node->status(node->ctx, &fields);
    } else if (call->request.method == PROTO_METHOD_METRICS) {
        node->metrics(node->ctx, &fields);
    } else if (call->request.method == PROTO_METHOD_MEMBERS) {
        node->members(node->ctx, &fields, &reply.row_len);
    } else {
        CHECK(call->request.method == PROTO_METHOD_HELLO);
        node->hello(node->ctx, &fields);
    }
    reply.fields = fields.items;
    reply.field_count = fields.count;
    answer(call, &reply);
    fields_deinit(&fields);
}

static void ask_task(struct service_call *call)
{
    struct service *service = call->service;
    uint64_t now_ns = loop_now_ns(service->config.loop);
    uint64_t deadline_ns = deadline_of(call, now_ns);
    if (deadline_ns <= now_ns) {
        answer_error(call, STATUS_DEADLINE, NULL, NULL);
        return;
    }
    struct task *task = calloc(1, sizeof *task);
    CHECK(task != NULL);
    *task = (struct task){
        .service = service,
        .call = call,
        .timer = loop_timer_create(service->config.loop, on_task_deadline, task),
    };
    if (task_begin(task, call) != STATUS_OK) {
        loop_timer_destroy(task->timer);
        free(task);
        return;
    }
    loop_timer_set(task->timer, deadline_ns);
    call->task = task;
    service->tasks++;
}

/* Where the node refuses, the call has been answered. */
static enum status task_begin(struct task *task, struct service_call *call)
{
    const struct service_node *node = &call->service->config.node;
    const char *detail = NULL;
    struct violation violation = {0};
    enum status st;
    if (call->request.method == PROTO_METHOD_CLUSTER_INIT) {
        st = node->cluster_init(node->ctx, &call->request, &detail, on_task_done, task);
    } else {
        st = node->transfer(node->ctx, call->request.node_id, on_task_done, task);
        if (st == STATUS_INVALID) {
            violation_set_u64(&violation, "node_id", call->request.node_id,
                              "must be a voter of this cluster, and not the one that leads");
        }
    }
    if (st != STATUS_OK) {
        answer_error(call, st, detail, &violation);
    }
    return st;
}

static void on_task_done(void *ctx, enum status status)
{
    struct task *task = ctx;
    task_answer(task, status);
    loop_timer_destroy(task->timer);
    task->service->tasks--;
    free(task);
}

static void on_task_deadline(void *ctx, uint64_t now_ns)
{
    (void)now_ns;
    task_answer(ctx, STATUS_UNKNOWN);
}

static void task_answer(struct task *task, enum status status)
{
    struct service_call *call = task->call;
    if (call == NULL) {
        return;
    }
    task->call = NULL;
    call->task = NULL;
    bool init = call->request.method == PROTO_METHOD_CLUSTER_INIT;
    if (init && status == STATUS_OK) {
        answer_founded(call);
    } else {
        bool begun = init && status_class(status) == STATUS_CLASS_MAYBE;
        answer_error(call, status, begun ? DETAIL_FOUNDING : NULL, NULL);
    }
}

/* Which cluster that is. */
static void answer_founded(struct service_call *call)
{
    const struct service_node *node = &call->service->config.node;
    struct fields fields;
    fields_init(&fields);
    node->hello(node->ctx, &fields);
    struct proto_reply reply = {
        .id = call->request.id,
        .method = call->request.method,
        .fields = fields.items,
        .field_count = fields.count,
    };
    answer(call, &reply);
    fields_deinit(&fields);
}

static void answer_error(struct service_call *call, enum status status, const char *detail,
                         const struct violation *violation)
{
    struct proto_reply reply = {
        .id = call->request.id,
        .method = call->request.method,
        .status = status,
        .detail = detail == NULL ? (struct slice){0} : slice_text(detail),
    };
    if (violation != NULL) {
        reply.violation = *violation;
    }
    if (status_api_error(status) == API_ERROR_INVALID) {
        call->service->stats.invalid++;
    }
    answer(call, &reply);
}

static void answer(struct service_call *call, const struct proto_reply *reply)
{
    struct service *service = call->service;
    CHECK(call->state == CALL_STATE_ASKED);
    call->state = CALL_STATE_REPLYING;
    buf_clear(&service->reply);
    proto_encode_reply(reply, &service->reply);
    CHECK(!buf_overflown(&service->reply));
    request_forget(call); /* a reply may have to wait for a slow reader */
    api_call_keep(service->api, &call->api, sizeof *call);
    api_call_reply(service->api, &call->api, buf_slice(&service->reply));
}

static struct service_call *call_take(struct service *service)
{
    struct list *link = list_pop(&service->pool);
    struct service_call *call;
    if (link != NULL) {
        service->pool_count--;
        call = CONTAINER_OF(link, struct service_call, free_link);
    } else {
        call = malloc(sizeof *call);
        CHECK(call != NULL);
    }
    /* Not the inline message: clearing 2 KiB for each call would cost more than decoding it. */
    memset(call, 0, offsetof(struct service_call, message));
    call->service = service;
    list_init(&call->free_link);
    list_init(&call->api.link);
    service->stats.calls++;
    service->stats.in_flight++;
    return call;
}

static void call_put(struct service_call *call)
{
    struct service *service = call->service;
    request_forget(call);
    service->stats.in_flight--;
    if (service->pool_count >= POOL_MAX) {
        free(call);
        return;
    }
    service->pool_count++;
    list_append(&service->pool, &call->free_link);
}

/* The message's bytes, in memory that lives as long as the call. */
static struct slice message_keep(struct service_call *call, struct slice message)
{
    uint8_t *into = call->message;
    if (message.len > MESSAGE_INLINE_LEN) {
        call->message_long = malloc(message.len);
        CHECK(call->message_long != NULL);
        into = call->message_long;
    }
    memcpy(into, message.base, message.len);
    return slice_from(into, message.len);
}

/* Nobody looks at what was asked any more; what is inline goes with the call. */
static void request_forget(struct service_call *call)
{
    free(call->message_long);
    free(call->keys);
    call->message_long = NULL;
    call->keys = NULL;
}

/* The decoder's arrays live until it is used again; the call needs its keys for longer. Returns how
 * many bytes that takes beside the call itself. */
static size_t keys_keep(struct service_call *call)
{
    struct op *op = &call->request.op;
    size_t len = 0;
    if (op->key_count == 0) {
        op->keys = NULL;
    } else if (op->key_count == 1) {
        call->key = op->keys[0];
        op->keys = &call->key;
    } else {
        len = op->key_count * sizeof *call->keys;
        call->keys = malloc(len);
        CHECK(call->keys != NULL);
        memcpy(call->keys, op->keys, len);
        op->keys = call->keys;
    }
    return len;
}

static bool is_lease_verb(enum proto_method method)
{
    return method >= PROTO_METHOD_TAKE && method <= PROTO_METHOD_PURGE;
}

static bool is_read(enum proto_method method)
{
    return method == PROTO_METHOD_OWNER || method == PROTO_METHOD_LIST ||
           method == PROTO_METHOD_COUNT;
}
