/* Numbers: sending, sending again, settling, and the origin that they belong to. router.h draws the
 * life of one.
 *
 * `open` is the heart of it: one bit for each sending whose fate is not known to be "not done",
 * counted from the oldest such sending. A refusal clears the bit of its own sending and no other.
 * Zero means that no copy can ever take effect; anything else means that only the state machine can
 * tell. A sending that is still open after 63 further ones is told apart from them no more: the
 * number stays `untold`, which is "may have been done" for good. */
#include <stdlib.h>

#include "node/router_internal.h"

static void sending_failed(struct router *router, struct job *job, uint32_t attempt,
                           enum status status, uint64_t now_ns);
static struct job *job_take(struct router *router, enum job_kind kind);
static void job_put(struct router *router, struct job *job);
static void job_withdraw(struct router *router, struct job *job);
static struct job *job_find(struct router *router, uint64_t id);
static void job_renew_id(struct router *router, struct job *job);
static struct list *list_of(struct router *router, enum job_state state);
static void job_move(struct router *router, struct job *job, enum job_state state);
static void job_timer(struct router *router, struct job *job, uint64_t at_ns);
static void job_confirm(struct router *router, struct job *job);
static void job_settle(struct router *router, struct job *job);
static void settle_done(struct router *router, struct job *job);
static void part_fail(struct router *router, struct job *job, enum status status);
static void part_answered(struct router *router, struct job *job, struct router_ticket ticket,
                          struct slice result, uint64_t now_ns);
static void part_not_done(struct router *router, struct job *job, enum status status);
static void open_answered(struct router *router, struct job *job, struct slice bytes,
                          uint64_t now_ns);
static void settle_answered(struct router *router, struct job *job, struct slice bytes,
                            uint64_t now_ns);
static void origin_lost(struct router *router, uint64_t origin);
static void job_again(struct router *router, struct job *job, uint64_t now_ns);
static bool sent_elsewhere(const struct router *router, const struct job *job);
static struct job *next_sending(struct router *router, uint64_t now_ns);
static void job_send(struct router *router, struct job *job, uint64_t now_ns,
                     struct router_effect *out_effect);
static struct command command_of(const struct router *router, const struct job *job);
static bool may_be_done(const struct job *job);
static void sending_begins(struct job *job);
static void sending_not_done(struct job *job, uint32_t attempt);
static void forget_sendings(struct job *job);
static bool retry_before(const struct heap_node *a, const struct heap_node *b);

void jobs_init(struct router *router)
{
    list_init(&router->free_jobs);
    list_init(&router->waiting);
    list_init(&router->ready);
    list_init(&router->ready_settles);
    list_init(&router->sent);
    list_init(&router->paused);
    list_init(&router->renumber);
    list_init(&router->answered_jobs);
    heap_init(&router->retries, retry_before);
    window_init(&router->window);
    /* Tickets of an earlier life of this node must not fit: their replies may be under way. */
    router->generation = rng_next(&router->rng) / (2 * ROUTER_JOBS_MAX);
}

void jobs_deinit(struct router *router)
{
    for (uint32_t i = 0; i < router->slot_count; i++) {
        hold_clear(&router->slots[i]->hold);
        free(router->slots[i]);
    }
    heap_deinit(&router->retries);
}

void job_number(struct router *router, struct request *request, uint32_t part)
{
    struct job *job = job_take(router, JOB_KIND_PART);
    struct op op = request_part_op(request, part);
    job->origin = router->origin;
    job->sequence = window_take(&router->window, result_len_max(&op));
    job->request = request;
    job->part = part;
    request->parts[part].job = job;
    job_move(router, job, JOB_STATE_WAITING);
}

void job_feed(struct router *router, struct job *job)
{
    CHECK(!job->fed);
    job->fed = true;
    job->request->parts_sending++;
    if (job->state == JOB_STATE_WAITING) {
        job_move(router, job, JOB_STATE_READY);
    }
}

enum status job_give_up(struct router *router, struct job *job)
{
    CHECK(job->kind == JOB_KIND_PART && job->state != JOB_STATE_ANSWERED);
    job_withdraw(router, job);
    if (!may_be_done(job)) {
        enum status st = job->last_status;
        job_confirm(router, job);
        return st;
    }
    if (job->origin != router->origin || router->ended) {
        /* A number of a forgotten origin is never executed from now on. */
        job_put(router, job);
        return STATUS_UNKNOWN;
    }
    if (!job->hold.made) {
        struct op op = request_part_op(job->request, job->part);
        hold_make(&job->hold, &op);
    }
    job_settle(router, job);
    return STATUS_UNKNOWN;
}

void job_delivered(struct router *router, struct job *job, bool settle)
{
    CHECK(job->state == JOB_STATE_ANSWERED);
    if (settle && job->origin == router->origin && !router->ended) {
        job_settle(router, job);
    } else {
        job_confirm(router, job);
    }
}

void jobs_pump(struct router *router, bool origin_wanted)
{
    struct list *link;
    while (router->origin != 0 && (link = list_first(&router->renumber)) != NULL) {
        struct job *job = CONTAINER_OF(link, struct job, link);
        struct op op = request_part_op(job->request, job->part);
        if (!window_fits(&router->window, 1, result_len_max(&op))) {
            return;
        }
        job->origin = router->origin;
        job->sequence = window_take(&router->window, result_len_max(&op));
        forget_sendings(job);
        job_renew_id(router, job);
        job_move(router, job, job->fed ? JOB_STATE_READY : JOB_STATE_WAITING);
    }
    bool wanted = origin_wanted || !list_empty(&router->renumber);
    if (router->origin == 0 && router->opening == NULL && wanted && !router->ended) {
        struct job *job = job_take(router, JOB_KIND_OPEN);
        router->opening = job;
        job_move(router, job, JOB_STATE_READY);
    }
}

bool jobs_next_effect(struct router *router, uint64_t now_ns, struct router_effect *out_effect)
{
    if (router->route.kind == ROUTE_KIND_NONE ||
        (router->route.kind == ROUTE_KIND_PEER && router->forwards_held)) {
        return false;
    }
    struct job *job = next_sending(router, now_ns);
    if (job == NULL) {
        return false;
    }
    job_send(router, job, now_ns, out_effect);
    return true;
}

void jobs_set_route(struct router *router)
{
    struct list *link;
    struct list *after;
    LIST_FOR_EACH(link, after, &router->paused) {
        struct job *job = CONTAINER_OF(link, struct job, link);
        job->pause_ns = 0;
        job_move(router, job, JOB_STATE_READY);
    }
    LIST_FOR_EACH(link, after, &router->sent) {
        struct job *job = CONTAINER_OF(link, struct job, link);
        /* What the replica here was given it will complete, whatever happens. */
        if (job->sent_peer != 0 && sent_elsewhere(router, job)) {
            job->silence_ns = 0;
            job_again(router, job, 0);
        }
    }
}

void jobs_tick(struct router *router, uint64_t now_ns)
{
    struct heap_node *node;
    while ((node = heap_min(&router->retries)) != NULL) {
        struct job *job = CONTAINER_OF(node, struct job, timer);
        if (job->timer_ns > now_ns) {
            return;
        }
        if (job->state == JOB_STATE_SENT) {
            /* Nobody answers: taken for lost, and it may have been done. */
            job->silence_ns = min_u64(2 * job->silence_ns, ROUTER_SILENCE_NS_MAX);
        }
        if (job->kind == JOB_KIND_PART && job->origin != router->origin) {
            part_fail(router, job, STATUS_UNKNOWN);
        } else {
            job_move(router, job, JOB_STATE_READY);
        }
    }
}

void jobs_end(struct router *router)
{
    for (uint32_t i = 0; i < router->slot_count; i++) {
        struct job *job = router->slots[i];
        if (job->state == JOB_STATE_FREE) {
            continue;
        }
        if (job->kind == JOB_KIND_SETTLE) {
            settle_done(router, job);
        } else if (job->kind == JOB_KIND_OPEN) {
            router->opening = NULL;
            job_put(router, job);
        }
    }
}

void router_proposed(struct router *router, struct router_ticket ticket, void *proposal)
{
    struct job *job = job_find(router, ticket.id);
    CHECK(job != NULL && job->state == JOB_STATE_SENT && job->sent_peer == 0 &&
          ticket.attempt + 1 == job->attempts && job->proposal == NULL);
    job->proposal = proposal;
}

void router_answered(struct router *router, struct router_ticket ticket, enum status status,
                     struct slice result, uint64_t now_ns)
{
    struct job *job = job_find(router, ticket.id);
    if (job == NULL || job->state == JOB_STATE_ANSWERED || ticket.attempt >= job->attempts) {
        return;
    }
    if (ticket.attempt + 1 == job->attempts) {
        job->proposal = NULL;
    }
    if (status == STATUS_OK) {
        switch (job->kind) {
        case JOB_KIND_PART:
            part_answered(router, job, ticket, result, now_ns);
            return;
        case JOB_KIND_SETTLE:
            settle_answered(router, job, result, now_ns);
            return;
        case JOB_KIND_OPEN:
            open_answered(router, job, result, now_ns);
            return;
        }
    }
    sending_failed(router, job, ticket.attempt, status, now_ns);
}

void router_peer_down(struct router *router, uint64_t peer_id, uint64_t now_ns)
{
    struct list *link;
    struct list *after;
    LIST_FOR_EACH(link, after, &router->sent) {
        struct job *job = CONTAINER_OF(link, struct job, link);
        if (job->sent_peer == peer_id) {
            sending_failed(router, job, job->attempts - 1, STATUS_LINK_LOST, now_ns);
        }
    }
    reads_peer_down(&router->reads, peer_id);
}

/* One sending ended without the state machine's answer. */
static void sending_failed(struct router *router, struct job *job, uint32_t attempt,
                           enum status status, uint64_t now_ns)
{
    bool maybe = status_class(status) == STATUS_CLASS_MAYBE;
    bool last = attempt + 1 == job->attempts && job->state == JOB_STATE_SENT;
    if (!maybe) {
        job->last_status = status;
        sending_not_done(job, attempt);
    }
    if (job->kind == JOB_KIND_PART && !may_be_done(job) &&
        status_class(status) == STATUS_CLASS_NEVER) {
        /* Valid when it left: whoever refuses it for good is broken or of another version. */
        part_fail(router, job, STATUS_INTERNAL);
        return;
    }
    if (job->kind == JOB_KIND_PART && job->origin != router->origin) {
        if (!may_be_done(job)) {
            job_move(router, job, JOB_STATE_RENUMBER);
        } else if (maybe) {
            part_fail(router, job, STATUS_UNKNOWN);
        }
        return;
    }
    if (last) {
        job_again(router, job, now_ns);
    }
}

static struct job *job_take(struct router *router, enum job_kind kind)
{
    struct list *link = list_pop(&router->free_jobs);
    struct job *job = NULL;
    if (link != NULL) {
        job = CONTAINER_OF(link, struct job, link);
    } else {
        CHECK(router->slot_count < ROUTER_JOBS_MAX);
        job = calloc(1, sizeof *job);
        CHECK(job != NULL);
        list_init(&job->link);
        heap_node_init(&job->timer);
        job->id = router->slot_count;
        router->slots[router->slot_count++] = job;
    }
    CHECK(job->state == JOB_STATE_FREE);
    job->kind = kind;
    job_renew_id(router, job);
    router->job_count++;
    return job;
}

static void job_put(struct router *router, struct job *job)
{
    CHECK(job->state != JOB_STATE_FREE);
    job_timer(router, job, UINT64_MAX);
    hold_clear(&job->hold);
    list_remove(&job->link);
    uint64_t id = job->id;
    *job = (struct job){.id = id};
    list_init(&job->link);
    heap_node_init(&job->timer);
    list_append(&router->free_jobs, &job->link);
    router->job_count--;
}

static struct job *job_find(struct router *router, uint64_t id)
{
    uint64_t slot = id & (ROUTER_JOBS_MAX - 1);
    if (slot >= router->slot_count) {
        return NULL;
    }
    struct job *job = router->slots[slot];
    return job->state != JOB_STATE_FREE && job->id == id ? job : NULL;
}

/* Its last sending is of no use any more. What the replica here has not submitted it never will. */
static void job_withdraw(struct router *router, struct job *job)
{
    void *proposal = job->proposal;
    job->proposal = NULL;
    if (proposal != NULL && router->withdraw(router->withdraw_ctx, proposal)) {
        sending_not_done(job, job->attempts - 1);
    }
}

/* Answers to whatever was sent under the old ticket find nobody any more. */
static void job_renew_id(struct router *router, struct job *job)
{
    job->proposal = NULL;
    uint64_t slot = job->id & (ROUTER_JOBS_MAX - 1);
    job->id = ++router->generation * ROUTER_JOBS_MAX + slot;
}

static struct list *list_of(struct router *router, enum job_state state)
{
    switch (state) {
    case JOB_STATE_FREE:
        return &router->free_jobs;
    case JOB_STATE_WAITING:
        return &router->waiting;
    case JOB_STATE_READY:
        return &router->ready;
    case JOB_STATE_SENT:
        return &router->sent;
    case JOB_STATE_PAUSED:
        return &router->paused;
    case JOB_STATE_RENUMBER:
        return &router->renumber;
    case JOB_STATE_ANSWERED:
        return &router->answered_jobs;
    }
    CHECK(false);
    return NULL;
}

/* Into another state, without a timer. */
static void job_move(struct router *router, struct job *job, enum job_state state)
{
    job_timer(router, job, UINT64_MAX);
    list_remove(&job->link);
    job->state = state;
    bool first = state == JOB_STATE_READY && job->kind != JOB_KIND_PART;
    list_append(first ? &router->ready_settles : list_of(router, state), &job->link);
}

static void job_timer(struct router *router, struct job *job, uint64_t at_ns)
{
    if (heap_contains(&job->timer)) {
        heap_remove(&router->retries, &job->timer);
    }
    job->timer_ns = at_ns;
    if (at_ns != UINT64_MAX) {
        heap_insert(&router->retries, &job->timer);
    }
}

/* Nothing can happen under this number any more. */
static void job_confirm(struct router *router, struct job *job)
{
    if (job->origin == router->origin && job->state != JOB_STATE_RENUMBER) {
        window_confirm(&router->window, job->sequence);
    }
    job_put(router, job);
}

static void job_settle(struct router *router, struct job *job)
{
    CHECK(job->hold.made && job->origin == router->origin);
    job->kind = JOB_KIND_SETTLE;
    job->request = NULL;
    job->fed = false;
    forget_sendings(job);
    job_renew_id(router, job);
    job_move(router, job, JOB_STATE_READY);
    holds_add(&router->holds, &job->hold);
    router->stats.settles++;
    router->stats.settling++;
}

static void settle_done(struct router *router, struct job *job)
{
    CHECK(job->kind == JOB_KIND_SETTLE);
    holds_remove(&router->holds, &job->hold);
    router->holds_shrunk = true;
    router->stats.settling--;
    job_confirm(router, job);
}

/* The part ends without the state machine's answer; its number is done with. */
static void part_fail(struct router *router, struct job *job, enum status status)
{
    struct request *request = job->request;
    uint32_t part = job->part;
    request->parts[part].job = NULL;
    request->parts_sending -= job->fed ? 1 : 0;
    job_confirm(router, job);
    request_part_fail(request, part, status);
    router_part_done(router, request);
}

static void part_answered(struct router *router, struct job *job, struct router_ticket ticket,
                          struct slice result, uint64_t now_ns)
{
    struct request *request = job->request;
    enum status st = request_part_answer(request, job->part, router->decoder, result);
    if (st == STATUS_OK) {
        CHECK(job->fed);
        request->parts_sending--;
        job_move(router, job, JOB_STATE_ANSWERED);
        router_part_done(router, request);
    } else if (st == STATUS_ORIGIN_UNKNOWN) {
        sending_not_done(job, ticket.attempt);
        origin_lost(router, job->origin);
        part_not_done(router, job, STATUS_UNKNOWN);
    } else if (st == STATUS_MALFORMED) {
        /* No answer of ours: as if it had been lost. */
        sending_failed(router, job, ticket.attempt, STATUS_UNKNOWN, now_ns);
    } else if (st == STATUS_OVERLOADED || st == STATUS_UNINITIALISED) {
        /* Neither carried out nor kept: the number may still be. */
        sending_failed(router, job, ticket.attempt, st, now_ns);
    } else {
        /* VOID: settled before it was applied. FORGOTTEN: at or below the mark. Neither is executed
         * from now on. */
        part_fail(router, job, st);
    }
}

/* One sending met a forgotten origin. Alone it was not executed, and the part starts afresh; of
 * several, one may have been executed before the origin was forgotten. origin_lost may have seen to
 * it already. */
static void part_not_done(struct router *router, struct job *job, enum status status)
{
    if (job->state == JOB_STATE_RENUMBER) {
        return;
    }
    if (job->state == JOB_STATE_SENT || job->state == JOB_STATE_READY ||
        job->state == JOB_STATE_PAUSED) {
        if (!may_be_done(job)) {
            job_move(router, job, JOB_STATE_RENUMBER);
        } else {
            part_fail(router, job, status);
        }
    }
}

static void open_answered(struct router *router, struct job *job, struct slice bytes,
                          uint64_t now_ns)
{
    struct result result;
    enum status st = result_decode(router->decoder, bytes, &result);
    bool fine = st == STATUS_OK && result.status == STATUS_OK &&
                result.kind == OP_KIND_OPEN_ORIGIN && result.origin != 0;
    if (!fine) {
        job_again(router, job, now_ns);
        return;
    }
    CHECK(router->origin == 0 && router->opening == job);
    router->origin = result.origin;
    router->opening = NULL;
    router->stats.origins++;
    window_init(&router->window);
    job_put(router, job);
}

/* Done when the number cannot take effect afterwards: it is settled, confirmed, or of an origin
 * that is forgotten. What could not be kept is asked again. */
static void settle_answered(struct router *router, struct job *job, struct slice bytes,
                            uint64_t now_ns)
{
    struct result result;
    enum status st = result_decode(router->decoder, bytes, &result);
    bool done = st == STATUS_OK && result.kind == OP_KIND_SETTLE &&
                (result.status == STATUS_OK || result.status == STATUS_FORGOTTEN ||
                 result.status == STATUS_ORIGIN_UNKNOWN);
    if (done) {
        settle_done(router, job);
    } else {
        job_again(router, job, now_ns);
    }
}

/* No number of this origin is executed any more. A part none of whose sendings can have been done
 * starts afresh; what is under way waits for its own answer; what is being settled is settled. */
static void origin_lost(struct router *router, uint64_t origin)
{
    if (router->origin != origin) {
        return;
    }
    router->origin = 0;
    for (uint32_t i = 0; i < router->slot_count; i++) {
        struct job *job = router->slots[i];
        if (job->state == JOB_STATE_FREE || job->origin != origin) {
            continue;
        }
        if (job->kind == JOB_KIND_SETTLE) {
            settle_done(router, job);
        } else if (job->state == JOB_STATE_WAITING || job->state == JOB_STATE_READY ||
                   job->state == JOB_STATE_PAUSED) {
            if (!may_be_done(job)) {
                job_move(router, job, JOB_STATE_RENUMBER);
            }
        }
    }
}

/* The last sending came to nothing: at once where there is another leader, else after a pause. */
static void job_again(struct router *router, struct job *job, uint64_t now_ns)
{
    if (router->route.kind != ROUTE_KIND_NONE && sent_elsewhere(router, job)) {
        job->pause_ns = 0;
        job_move(router, job, JOB_STATE_READY);
        return;
    }
    job->pause_ns = job->pause_ns == 0 ? ROUTER_PAUSE_NS_MIN
                                       : min_u64(2 * job->pause_ns, ROUTER_PAUSE_NS_MAX);
    job_move(router, job, JOB_STATE_PAUSED);
    /* Apart by chance, so that what was refused together does not come back together. */
    uint64_t jitter_ns = rng_below(&router->rng, job->pause_ns / 2 + 1);
    job_timer(router, job, now_ns + job->pause_ns - jitter_ns);
}

/* True when its last sending went to another leader than the present one. */
static bool sent_elsewhere(const struct router *router, const struct job *job)
{
    uint64_t peer = router->route.kind == ROUTE_KIND_PEER ? router->route.peer_id : 0;
    return job->sent_peer != peer || job->sent_term != router->route.term;
}

/* The next one that may go out. A part whose deadline has passed is not sent any more. */
static struct job *next_sending(struct router *router, uint64_t now_ns)
{
    struct list *link = list_first(&router->ready_settles);
    if (link != NULL) {
        return CONTAINER_OF(link, struct job, link);
    }
    while ((link = list_first(&router->ready)) != NULL) {
        struct job *job = CONTAINER_OF(link, struct job, link);
        if (job->origin != router->origin) {
            part_fail(router, job, STATUS_UNKNOWN);
        } else if (job->request->deadline_ns <= now_ns) {
            router_expire(router, job->request, false);
        } else {
            return job;
        }
    }
    return NULL;
}

static void job_send(struct router *router, struct job *job, uint64_t now_ns,
                     struct router_effect *out_effect)
{
    bool here = router->route.kind == ROUTE_KIND_SELF;
    if (job->kind == JOB_KIND_OPEN) {
        job->nonce = rng_next(&router->rng);
    }
    *out_effect = (struct router_effect){
        .kind = here ? ROUTER_EFFECT_KIND_PROPOSE : ROUTER_EFFECT_KIND_FORWARD,
        .ticket = {.id = job->id, .attempt = job->attempts},
        .command = command_of(router, job),
        .peer_id = router->route.peer_id,
        .term = router->route.term,
        .deadline_ns = job->kind == JOB_KIND_PART ? job->request->deadline_ns : UINT64_MAX,
    };
    router->stats.resubmissions += job->attempts > 0 ? 1 : 0;
    sending_begins(job);
    job->sent_peer = here ? 0 : router->route.peer_id;
    job->sent_term = router->route.term;
    job_move(router, job, JOB_STATE_SENT);
    if (!here) {
        job->silence_ns = job->silence_ns == 0 ? ROUTER_SILENCE_NS_MIN : job->silence_ns;
        job_timer(router, job, now_ns + job->silence_ns);
    }
}

static struct command command_of(const struct router *router, const struct job *job)
{
    switch (job->kind) {
    case JOB_KIND_PART:
        return (struct command){
            .origin = job->origin,
            .sequence = job->sequence,
            .confirmed = router->window.mark,
            .op = request_part_op(job->request, job->part),
        };
    case JOB_KIND_SETTLE:
        return (struct command){.op = {
                                    .kind = OP_KIND_SETTLE,
                                    .target_origin = job->origin,
                                    .target_sequence = job->sequence,
                                }};
    case JOB_KIND_OPEN:
        return (struct command){.op = {
                                    .kind = OP_KIND_OPEN_ORIGIN,
                                    .node_id = router->route.node_id,
                                    .nonce = job->nonce,
                                }};
    }
    CHECK(false);
    return (struct command){0};
}

/* True when a sending of this number may have been done, or may yet be. */
static bool may_be_done(const struct job *job)
{
    return job->open != 0 || job->untold;
}

static void sending_begins(struct job *job)
{
    while (job->open_first < job->attempts && (job->open & 1) == 0) {
        job->open >>= 1;
        job->open_first++;
    }
    if (job->attempts - job->open_first == ROUTER_SENDINGS_TOLD_APART) {
        job->untold = true;
        job->open >>= 1;
        job->open_first++;
    }
    job->open |= UINT64_C(1) << (job->attempts - job->open_first);
    job->attempts++;
}

/* It is certain that this one was not and will not be done. */
static void sending_not_done(struct job *job, uint32_t attempt)
{
    if (attempt >= job->open_first) {
        job->open &= ~(UINT64_C(1) << (attempt - job->open_first));
    }
}

/* Of the number that it had, or for another purpose. */
static void forget_sendings(struct job *job)
{
    job->attempts = 0;
    job->open = 0;
    job->open_first = 0;
    job->untold = false;
    job->pause_ns = 0;
    job->silence_ns = 0;
}

static bool retry_before(const struct heap_node *a, const struct heap_node *b)
{
    const struct job *left = CONTAINER_OF_CONST(a, struct job, timer);
    const struct job *right = CONTAINER_OF_CONST(b, struct job, timer);
    return left->timer_ns != right->timer_ns ? left->timer_ns < right->timer_ns
                                             : left->id < right->id;
}
