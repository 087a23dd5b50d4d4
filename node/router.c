/* Requests: queue, holds, numbering, deadlines, replies. Numbers are in router_jobs.c, reads in
 * reads.c.
 *
 * Effects are not stored: each list whose elements want something done is one kind of effect, and
 * router_next_effect takes the next element out of the first list that has one. */
#include "node/router.h"

#include <stdlib.h>

#include "node/router_internal.h"

static enum status submit(struct router *router, const struct proto_request *asked,
                          struct request **out_request);
static struct request *request_take(struct router *router);
static void request_put(struct router *router, struct request *request);
static void start(struct router *router, struct request *request);
static bool is_held(const struct router *router, const struct request *request);
static void release_held(struct router *router);
static struct list *queue_of(struct router *router, const struct request *request);
static void number_queue(struct router *router);
static struct request *next_to_number(struct router *router);
static struct request *first_free(struct router *router, struct list *queue);
static bool fits(const struct router *router, const struct request *request);
static bool may_pass(struct router *router, const struct request *small,
                     const struct request *large);
static void feed(struct router *router, struct request *request);
static void answered(struct router *router, struct request *request);
static void forget_deadline(struct router *router, struct request *request);
static bool next_reply(struct router *router, struct router_effect *out_effect);
static void make_holds(struct request *request);
static bool next_read(struct router *router, uint64_t now_ns, struct router_effect *out_effect);
static bool deadline_before(const struct heap_node *a, const struct heap_node *b);
static struct request *first_deadline(const struct router *router);
static bool unsent(const struct request *request);

struct router *router_create(uint64_t seed, router_withdraw_cb withdraw, void *ctx)
{
    struct router *router = calloc(1, sizeof *router);
    CHECK(router != NULL);
    router->withdraw = withdraw;
    router->withdraw_ctx = ctx;
    list_init(&router->queue);
    list_init(&router->queue_large);
    list_init(&router->held);
    list_init(&router->numbered);
    list_init(&router->answered);
    list_init(&router->delivering);
    list_init(&router->pool);
    heap_init(&router->deadlines, deadline_before);
    rng_init(&router->rng, seed);
    reads_init(&router->reads, rng_next(&router->rng));
    holds_init(&router->holds);
    router->decoder = result_decoder_create();
    jobs_init(router);
    return router;
}

void router_destroy(struct router *router)
{
    if (router == NULL) {
        return;
    }
    router->ended = true;
    struct request *request;
    while ((request = first_deadline(router)) != NULL) {
        router_expire(router, request, true);
    }
    struct list *link;
    while ((link = list_first(&router->answered)) != NULL ||
           (link = list_first(&router->delivering)) != NULL) {
        request = CONTAINER_OF(link, struct request, link);
        request->state = REQUEST_STATE_DELIVERING;
        router_delivered(router, request, true, 0);
    }
    jobs_deinit(router);
    while ((link = list_pop(&router->pool)) != NULL) {
        free(CONTAINER_OF(link, struct request, link));
    }
    heap_deinit(&router->deadlines);
    holds_deinit(&router->holds);
    result_decoder_destroy(router->decoder);
    free(router);
}

enum status router_submit(struct router *router, const struct proto_request *asked,
                          uint64_t deadline_ns, void *owner, struct request **out_request)
{
    struct request *request = NULL;
    enum status st = submit(router, asked, &request);
    if (st != STATUS_OK) {
        return st;
    }
    st = request_begin(request, asked, deadline_ns);
    if (st != STATUS_OK) {
        request_put(router, request);
        return st;
    }
    request->owner = owner;
    start(router, request);
    *out_request = request;
    return STATUS_OK;
}

enum status router_submit_query(struct router *router, const struct proto_request *asked,
                                uint64_t deadline_ns, void *owner, struct request **out_request)
{
    struct request *request = NULL;
    enum status st = submit(router, asked, &request);
    if (st != STATUS_OK) {
        return st;
    }
    st = request_begin(request, asked, deadline_ns);
    if (st != STATUS_OK || !request->read) {
        request_clear(request);
        request_put(router, request);
        return st == STATUS_OK ? STATUS_INVALID : st;
    }
    request->owner = owner;
    request->no_hop = true;
    start(router, request);
    *out_request = request;
    return STATUS_OK;
}

void router_delivered(struct router *router, struct request *request, bool wholly, uint64_t now_ns)
{
    (void)now_ns;
    CHECK(request->state == REQUEST_STATE_DELIVERING);
    for (uint32_t i = 0; i < request->part_count; i++) {
        struct job *job = request->parts[i].job;
        request->parts[i].job = NULL;
        if (job != NULL) {
            job_delivered(router, job, !wholly && request->parts[i].granted);
        }
    }
    list_remove(&request->link);
    request_put(router, request);
}

void router_abandon(struct router *router, struct request *request, uint64_t now_ns)
{
    if (request->state != REQUEST_STATE_ANSWERED) {
        router_expire(router, request, false);
    }
    CHECK(request->state == REQUEST_STATE_ANSWERED);
    make_holds(request);
    request->state = REQUEST_STATE_DELIVERING;
    router_delivered(router, request, false, now_ns);
}

void router_set_route(struct router *router, const struct route *route, uint64_t now_ns)
{
    (void)now_ns;
    bool same = router->route.kind == route->kind && router->route.peer_id == route->peer_id &&
                router->route.term == route->term;
    router->route = *route;
    reads_set_route(&router->reads, route);
    if (!same && route->kind != ROUTE_KIND_NONE) {
        jobs_set_route(router);
    }
}

struct reads *router_reads(struct router *router)
{
    return &router->reads;
}

void router_read_done(struct router *router, struct request *request)
{
    CHECK(request->state == REQUEST_STATE_READING && !list_linked(&request->link));
    answered(router, request);
    request->state = REQUEST_STATE_DELIVERING;
    list_remove(&request->link);
    list_append(&router->delivering, &request->link);
}

void router_hold_forwards(struct router *router, bool hold)
{
    router->forwards_held = hold;
}

void router_tick(struct router *router, uint64_t now_ns)
{
    struct request *request;
    while ((request = first_deadline(router)) != NULL && request->deadline_ns <= now_ns) {
        router_expire(router, request, false);
    }
    jobs_tick(router, now_ns);
    reads_tick(&router->reads, now_ns);
}

uint64_t router_next_timer_ns(const struct router *router)
{
    uint64_t next_ns = reads_next_timer_ns(&router->reads);
    const struct request *request = first_deadline(router);
    if (request != NULL) {
        next_ns = min_u64(next_ns, request->deadline_ns);
    }
    struct heap_node *node = heap_min(&router->retries);
    if (node != NULL) {
        next_ns = min_u64(next_ns, CONTAINER_OF(node, struct job, timer)->timer_ns);
    }
    return next_ns;
}

bool router_next_effect(struct router *router, uint64_t now_ns, struct router_effect *out_effect)
{
    *out_effect = (struct router_effect){0};
    if (router->holds_shrunk) {
        release_held(router);
    }
    jobs_pump(router, !list_empty(&router->queue) || !list_empty(&router->queue_large));
    number_queue(router);
    return jobs_next_effect(router, now_ns, out_effect) || next_reply(router, out_effect) ||
           next_read(router, now_ns, out_effect);
}

void router_close(struct router *router)
{
    router->closing = true;
}

void router_end(struct router *router, uint64_t now_ns)
{
    (void)now_ns;
    router->closing = true;
    router->ended = true;
    struct request *request;
    while ((request = first_deadline(router)) != NULL) {
        router_expire(router, request, true);
    }
    jobs_end(router);
}

bool router_idle(const struct router *router)
{
    return router->stats.live == 0 && router->stats.settling == 0;
}

void router_stats(const struct router *router, struct router_stats *out_stats)
{
    *out_stats = router->stats;
    out_stats->unconfirmed = router->window.last - router->window.mark;
}

void router_part_done(struct router *router, struct request *request)
{
    feed(router, request);
    if (request_complete(request)) {
        list_remove(&request->link);
        answered(router, request);
    }
}

void router_expire(struct router *router, struct request *request, bool closing)
{
    enum status unsent_status = closing ? STATUS_CLOSING
                                : router->route.kind == ROUTE_KIND_NONE ? STATUS_NO_LEADER
                                                                        : STATUS_DEADLINE;
    if (request->read) {
        if (request->state == REQUEST_STATE_READING) {
            reads_remove(&router->reads, request);
        } else {
            list_remove(&request->link);
        }
        if (closing || request->last_status == STATUS_OK) {
            bool asked = request->state == REQUEST_STATE_READING &&
                         unsent_status == STATUS_DEADLINE;
            request->last_status = asked ? STATUS_NO_QUORUM : unsent_status;
        }
        answered(router, request);
        return;
    }
    for (uint32_t i = 0; i < request->part_count; i++) {
        struct request_part *part = &request->parts[i];
        if (part->done) {
            continue;
        }
        enum status st = STATUS_OK;
        if (part->job != NULL) {
            st = job_give_up(router, part->job);
            part->job = NULL;
        }
        if (st == STATUS_OK || (closing && status_class(st) == STATUS_CLASS_NOT_DONE)) {
            st = unsent_status;
        }
        request_part_fail(request, i, st);
    }
    list_remove(&request->link);
    answered(router, request);
}

/* What is common to both kinds of submission. */
static enum status submit(struct router *router, const struct proto_request *asked,
                          struct request **out_request)
{
    CHECK(asked->method >= PROTO_METHOD_TAKE && asked->method <= PROTO_METHOD_COUNT);
    if (router->closing) {
        return STATUS_CLOSING;
    }
    if (router->stats.waiting >= ROUTER_WAITING_MAX) {
        return STATUS_OVERLOADED;
    }
    *out_request = request_take(router);
    return STATUS_OK;
}

static struct request *request_take(struct router *router)
{
    struct list *link = list_pop(&router->pool);
    if (link != NULL) {
        router->pool_count--;
        return CONTAINER_OF(link, struct request, link);
    }
    struct request *request = calloc(1, sizeof *request);
    CHECK(request != NULL);
    request_init(request);
    return request;
}

/* Back into the pool; the request may have been live. */
static void request_put(struct router *router, struct request *request)
{
    if (request->state == REQUEST_STATE_DELIVERING) {
        router->stats.live--;
    }
    request_clear(request);
    if (router->pool_count < ROUTER_POOL_MAX) {
        list_append(&router->pool, &request->link);
        router->pool_count++;
    } else {
        free(request);
    }
}

static void start(struct router *router, struct request *request)
{
    request->timer_order = ++router->order_last;
    heap_insert(&router->deadlines, &request->timer);
    router->stats.requests++;
    router->stats.live++;
    router->stats.waiting++;
    request->state = REQUEST_STATE_QUEUED;
    if (!request->read) {
        list_append(queue_of(router, request), &request->link);
    } else if (is_held(router, request)) {
        request->state = REQUEST_STATE_HELD;
        list_append(&router->held, &request->link);
    } else {
        reads_add(&router->reads, request);
    }
}

/* A stale read says itself that it may be old; everything else waits for what is being settled. */
static bool is_held(const struct router *router, const struct request *request)
{
    const struct op *op = &request->asked->op;
    if (!request->read) {
        return holds_block_owner(&router->holds, op->ns, op->owner);
    }
    return !request->asked->stale &&
           holds_block_read(&router->holds, op->ns, op->keys, op->key_count);
}

/* Some number was settled: whatever does not wait for another one goes on, in its old order and
 * before what came later. */
static void release_held(struct router *router)
{
    router->holds_shrunk = false;
    struct list free_now;
    list_init(&free_now);
    struct list *link;
    struct list *after;
    LIST_FOR_EACH(link, after, &router->held) {
        struct request *request = CONTAINER_OF(link, struct request, link);
        if (is_held(router, request)) {
            continue;
        }
        list_remove(link);
        request->state = REQUEST_STATE_QUEUED;
        if (request->read) {
            reads_add(&router->reads, request);
        } else {
            list_append(&free_now, link);
        }
    }
    while (!list_empty(&free_now)) {
        link = free_now.prev;
        list_remove(link);
        list_prepend(queue_of(router, CONTAINER_OF(link, struct request, link)), link);
    }
}

static struct list *queue_of(struct router *router, const struct request *request)
{
    bool large = request->part_count > 1 || request->result_len_max > ROUTER_LARGE_LEN;
    return large ? &router->queue_large : &router->queue;
}

/* Give numbers to whoever is next, as long as all of its parts fit. */
static void number_queue(struct router *router)
{
    struct request *request;
    while ((request = next_to_number(router)) != NULL) {
        list_remove(&request->link);
        request->state = REQUEST_STATE_NUMBERED;
        list_append(&router->numbered, &request->link);
        router->stats.waiting--;
        for (uint32_t i = 0; i < request->part_count; i++) {
            job_number(router, request, i);
        }
        feed(router, request);
    }
}

/* Whoever came first. While that is a large one that does not fit, a small one that may pass it. */
static struct request *next_to_number(struct router *router)
{
    struct request *small = first_free(router, &router->queue);
    struct request *large = first_free(router, &router->queue_large);
    if (router->origin == 0 || !list_empty(&router->renumber)) {
        return NULL;
    }
    bool large_first =
        large != NULL && (small == NULL || large->timer_order < small->timer_order);
    if (large_first && fits(router, large)) {
        return large;
    }
    if (small == NULL || !fits(router, small)) {
        return NULL;
    }
    return !large_first || may_pass(router, small, large) ? small : NULL;
}

/* The first one whose owner is not held back; those before it are put aside. */
static struct request *first_free(struct router *router, struct list *queue)
{
    struct list *link;
    while ((link = list_first(queue)) != NULL) {
        struct request *request = CONTAINER_OF(link, struct request, link);
        if (!is_held(router, request)) {
            return request;
        }
        list_remove(link);
        request->state = REQUEST_STATE_HELD;
        list_append(&router->held, link);
    }
    return NULL;
}

static bool fits(const struct router *router, const struct request *request)
{
    return request->part_count <= jobs_free(router) &&
           window_fits(&router->window, request->part_count, request->result_len_max);
}

/* Whoever passes takes from what the large one leaves free, not from what it waits for. */
static bool may_pass(struct router *router, const struct request *small,
                     const struct request *large)
{
    if (router->passed_order != large->timer_order) {
        router->passed_order = large->timer_order;
        router->passed_count = 0;
        router->passed_len = 0;
    }
    uint64_t count = router->passed_count + small->part_count;
    uint64_t len = router->passed_len + small->result_len_max;
    if (count + large->part_count > UNCONFIRMED_MAX ||
        len + large->result_len_max > UNCONFIRMED_LEN_MAX) {
        return false;
    }
    router->passed_count = count;
    router->passed_len = len;
    return true;
}

static void feed(struct router *router, struct request *request)
{
    while (request->part_next < request->part_count &&
           request->parts_sending < ROUTER_PARTS_SENDING_MAX) {
        struct request_part *part = &request->parts[request->part_next++];
        if (!part->done) {
            job_feed(router, part->job);
        }
    }
}

/* The reply can be made. The request is in no list. */
static void answered(struct router *router, struct request *request)
{
    forget_deadline(router, request);
    if (unsent(request)) {
        router->stats.waiting--;
    }
    request->state = REQUEST_STATE_ANSWERED;
    list_append(&router->answered, &request->link);
}

static void forget_deadline(struct router *router, struct request *request)
{
    if (heap_contains(&request->timer)) {
        heap_remove(&router->deadlines, &request->timer);
    }
}

static bool next_reply(struct router *router, struct router_effect *out_effect)
{
    struct list *link = list_pop(&router->answered);
    if (link == NULL) {
        return false;
    }
    struct request *request = CONTAINER_OF(link, struct request, link);
    out_effect->kind = ROUTER_EFFECT_KIND_REPLY;
    out_effect->request = request;
    if (request->read) {
        request_error_reply(request, request->last_status, &out_effect->reply);
    } else {
        make_holds(request);
        request_reply(request, &out_effect->reply);
    }
    enum api_error error = status_api_error(out_effect->reply.status);
    router->stats.unknown += error == API_ERROR_UNKNOWN ? 1 : 0;
    router->stats.unavailable += error == API_ERROR_UNAVAILABLE ? 1 : 0;
    request->state = REQUEST_STATE_DELIVERING;
    list_append(&router->delivering, link);
    return true;
}

/* What was asked is gone when a reply turns out not to be written, so its names are kept now where
 * a grant would have to be settled then. */
static void make_holds(struct request *request)
{
    for (uint32_t i = 0; i < request->part_count; i++) {
        struct job *job = request->parts[i].job;
        if (job != NULL && request->parts[i].granted && !job->hold.made) {
            struct op op = request_part_op(request, i);
            hold_make(&job->hold, &op);
        }
    }
}

static bool next_read(struct router *router, uint64_t now_ns, struct router_effect *out_effect)
{
    if (!reads_next_effect(&router->reads, now_ns, &out_effect->read)) {
        return false;
    }
    if (out_effect->read.kind == READ_EFFECT_KIND_FAIL) {
        answered(router, out_effect->read.request);
        return next_reply(router, out_effect);
    }
    out_effect->kind = ROUTER_EFFECT_KIND_READ;
    return true;
}

static bool deadline_before(const struct heap_node *a, const struct heap_node *b)
{
    const struct request *left = CONTAINER_OF_CONST(a, struct request, timer);
    const struct request *right = CONTAINER_OF_CONST(b, struct request, timer);
    return left->deadline_ns != right->deadline_ns ? left->deadline_ns < right->deadline_ns
                                                   : left->timer_order < right->timer_order;
}

static struct request *first_deadline(const struct router *router)
{
    struct heap_node *node = heap_min(&router->deadlines);
    return node == NULL ? NULL : CONTAINER_OF(node, struct request, timer);
}

/* True while it counts as waiting. */
static bool unsent(const struct request *request)
{
    switch (request->state) {
    case REQUEST_STATE_QUEUED:
    case REQUEST_STATE_HELD:
    case REQUEST_STATE_READING:
        return true;
    case REQUEST_STATE_NUMBERED:
    case REQUEST_STATE_ANSWERED:
    case REQUEST_STATE_DELIVERING:
        return false;
    }
    return false;
}
