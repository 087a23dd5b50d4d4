/* A request is in exactly one list: wanting, due, querying, answering, failing, or that of a round.
 * Whatever goes wrong brings it back to the front of `wanting`, in its old order. */
#include "node/reads.h"

#include "fsm/base/check.h"

#define PAUSE_NS_MIN (5u * NS_PER_MS)
#define PAUSE_NS_MAX (100u * NS_PER_MS)

static bool next_round_effect(struct reads *reads, struct read_effect *out_effect);
static bool ask(struct reads *reads, uint64_t now_ns, struct read_effect *out_effect);
static bool query(struct reads *reads, uint64_t now_ns, struct read_effect *out_effect);
static struct read_round *round_free(struct reads *reads);
static struct read_round *round_asked_peer(struct reads *reads);
static void round_begin(struct reads *reads, struct read_round *round);
static void round_answer(struct reads *reads, struct read_round *round);
static void round_fail(struct reads *reads, struct read_round *round, enum status status);
static void round_end(struct read_round *round);
static void query_end(struct reads *reads, struct request *request);
static void give_back(struct reads *reads, struct list *list, enum status status);
static void pause_before_retry(struct reads *reads, uint64_t now_ns);
static void answer(struct reads *reads, struct request *request);

void reads_init(struct reads *reads, uint64_t seed)
{
    *reads = (struct reads){.ticket_last = seed};
    list_init(&reads->wanting);
    list_init(&reads->due);
    list_init(&reads->querying);
    list_init(&reads->answering);
    list_init(&reads->failing);
    for (uint32_t i = 0; i < READS_ROUNDS_MAX; i++) {
        list_init(&reads->rounds[i].requests);
    }
}

void reads_set_route(struct reads *reads, const struct route *route)
{
    bool same = reads->route.kind == route->kind && reads->route.peer_id == route->peer_id &&
                reads->route.term == route->term && reads->route.has_table == route->has_table;
    reads->route = *route;
    if (same) {
        return;
    }
    reads->retry_at_ns = 0;
    reads->pause_ns = 0;
    struct read_round *asked = round_asked_peer(reads);
    if (asked != NULL) {
        round_fail(reads, asked, STATUS_WRONG_TERM);
    }
    while (!list_empty(&reads->querying)) {
        query_end(reads, CONTAINER_OF(reads->querying.prev, struct request, link));
    }
    if (route->kind == ROUTE_KIND_SELF) {
        return;
    }
    struct list *link;
    struct list *after;
    LIST_FOR_EACH(link, after, &reads->wanting) {
        struct request *request = CONTAINER_OF(link, struct request, link);
        if (request->no_hop) {
            request->last_status = STATUS_NOT_LEADER;
            list_remove(link);
            list_append(&reads->failing, link);
        }
    }
}

void reads_add(struct reads *reads, struct request *request)
{
    request->state = REQUEST_STATE_READING;
    request->query_ticket = 0;
    request->due_until_ns = 0;
    if (request->asked->stale && (reads->route.has_table || request->no_hop)) {
        request->read_clock_ms = 0;
        answer(reads, request);
    } else if (request->no_hop && reads->route.kind != ROUTE_KIND_SELF) {
        request->last_status = STATUS_NOT_LEADER;
        list_append(&reads->failing, &request->link);
    } else {
        list_append(&reads->wanting, &request->link);
    }
}

void reads_remove(struct reads *reads, struct request *request)
{
    CHECK(request->state == REQUEST_STATE_READING);
    if (request->query_ticket != 0) {
        request->query_ticket = 0;
        reads->query_count--;
    }
    list_remove(&request->link);
    for (uint32_t i = 0; i < READS_ROUNDS_MAX; i++) {
        struct read_round *round = &reads->rounds[i];
        if (round->state == READ_ROUND_STATE_FREE || !list_empty(&round->requests) ||
            round->probe) {
            continue;
        }
        bool replica_knows = round->state == READ_ROUND_STATE_ASKED_HERE ||
                             round->state == READ_ROUND_STATE_WAITING ||
                             round->state == READ_ROUND_STATE_UNWANTED;
        if (replica_knows) {
            round->state = READ_ROUND_STATE_UNWANTED;
        } else {
            round_end(round);
        }
    }
}

void reads_want_probe(struct reads *reads)
{
    for (uint32_t i = 0; i < READS_ROUNDS_MAX; i++) {
        if (reads->rounds[i].probe) {
            return;
        }
    }
    reads->probe = true;
}

void reads_rest(struct reads *reads, bool resting)
{
    reads->resting = resting;
}

bool reads_kept_waiting(const struct reads *reads)
{
    return reads->resting && !list_empty(&reads->answering);
}

bool reads_next_effect(struct reads *reads, uint64_t now_ns, struct read_effect *out_effect)
{
    *out_effect = (struct read_effect){0};
    struct list *link = reads->resting ? NULL : list_pop(&reads->answering);
    if (link != NULL) {
        struct request *request = CONTAINER_OF(link, struct request, link);
        out_effect->kind = READ_EFFECT_KIND_ANSWER;
        out_effect->request = request;
        out_effect->final = request->due_until_ns != 0 && now_ns >= request->due_until_ns;
        return true;
    }
    link = list_pop(&reads->failing);
    if (link != NULL) {
        out_effect->kind = READ_EFFECT_KIND_FAIL;
        out_effect->request = CONTAINER_OF(link, struct request, link);
        return true;
    }
    if (next_round_effect(reads, out_effect)) {
        return true;
    }
    if (now_ns < reads->retry_at_ns || (list_empty(&reads->wanting) && !reads->probe)) {
        return false;
    }
    reads->retry_at_ns = 0;
    switch (reads->route.kind) {
    case ROUTE_KIND_NONE:
        return false;
    case ROUTE_KIND_SELF:
        return ask(reads, now_ns, out_effect);
    case ROUTE_KIND_PEER:
        return reads->route.has_table ? ask(reads, now_ns, out_effect)
                                      : query(reads, now_ns, out_effect);
    }
    return false;
}

uint64_t reads_reached(struct reads *reads, uint32_t round_idx, enum status status,
                       uint64_t clock_ms, uint64_t now_ns)
{
    CHECK(round_idx < READS_ROUNDS_MAX);
    struct read_round *round = &reads->rounds[round_idx];
    CHECK(round->state == READ_ROUND_STATE_ASKED_HERE || round->state == READ_ROUND_STATE_WAITING ||
          round->state == READ_ROUND_STATE_UNWANTED);
    if (round->state == READ_ROUND_STATE_UNWANTED) {
        round_end(round);
        return 0;
    }
    if (status != STATUS_OK) {
        round_fail(reads, round, status);
        pause_before_retry(reads, now_ns);
        return 0;
    }
    if (round->state == READ_ROUND_STATE_ASKED_HERE) {
        round->clock_ms = clock_ms;
    }
    reads->pause_ns = 0;
    round_answer(reads, round);
    return round->term;
}

void reads_point(struct reads *reads, const struct reads_point_reply *reply, uint64_t now_ns)
{
    struct read_round *round = round_asked_peer(reads);
    if (round == NULL || round->ticket != reply->ticket) {
        return;
    }
    if (reply->status != STATUS_OK) {
        round_fail(reads, round, reply->status);
        pause_before_retry(reads, now_ns);
        return;
    }
    round->index = reply->index;
    round->clock_ms = reply->clock_ms;
    round->state = READ_ROUND_STATE_POINT_KNOWN;
}

struct request *reads_query_answered(struct reads *reads, uint64_t ticket, enum status status,
                                     uint64_t now_ns)
{
    struct list *link;
    struct list *after;
    LIST_FOR_EACH(link, after, &reads->querying) {
        struct request *request = CONTAINER_OF(link, struct request, link);
        if (request->query_ticket != ticket) {
            continue;
        }
        if (status_class(status) == STATUS_CLASS_NOT_DONE ||
            status_class(status) == STATUS_CLASS_MAYBE) {
            request->last_status = status;
            query_end(reads, request);
            pause_before_retry(reads, now_ns);
            return NULL;
        }
        request->query_ticket = 0;
        reads->query_count--;
        list_remove(link);
        reads->pause_ns = 0;
        return request;
    }
    return NULL;
}

void reads_due(struct reads *reads, struct request *request, uint64_t now_ns)
{
    if (request->due_until_ns == 0) {
        request->due_until_ns = now_ns + READS_DUE_NS;
    }
    request->last_status = STATUS_OK;
    list_append(&reads->due, &request->link);
}

void reads_applied(struct reads *reads)
{
    struct list *link;
    while ((link = list_pop(&reads->due)) != NULL) {
        list_append(&reads->answering, link);
    }
}

void reads_peer_down(struct reads *reads, uint64_t peer_id)
{
    struct read_round *asked = round_asked_peer(reads);
    if (asked != NULL && asked->peer_id == peer_id) {
        round_fail(reads, asked, STATUS_NOT_CONNECTED);
    }
    while (reads->route.peer_id == peer_id && !list_empty(&reads->querying)) {
        query_end(reads, CONTAINER_OF(reads->querying.prev, struct request, link));
    }
}

void reads_tick(struct reads *reads, uint64_t now_ns)
{
    struct list *link;
    struct list *after;
    LIST_FOR_EACH(link, after, &reads->due) {
        struct request *request = CONTAINER_OF(link, struct request, link);
        if (now_ns >= request->due_until_ns) {
            list_remove(link);
            list_append(&reads->answering, link);
        }
    }
    LIST_FOR_EACH(link, after, &reads->querying) {
        struct request *request = CONTAINER_OF(link, struct request, link);
        if (now_ns >= request->query_at_ns) {
            query_end(reads, request);
        }
    }
    struct read_round *asked = round_asked_peer(reads);
    if (asked != NULL && now_ns >= asked->again_at_ns) {
        round_fail(reads, asked, STATUS_NO_LEADER);
    }
}

uint64_t reads_next_timer_ns(const struct reads *reads)
{
    uint64_t next_ns = UINT64_MAX;
    for (struct list *link = reads->due.next; link != &reads->due; link = link->next) {
        next_ns = min_u64(next_ns, CONTAINER_OF(link, struct request, link)->due_until_ns);
    }
    struct list *first = list_first(&reads->querying);
    if (first != NULL) {
        /* In the order of asking, so the first is the earliest. */
        next_ns = min_u64(next_ns, CONTAINER_OF(first, struct request, link)->query_at_ns);
    }
    for (uint32_t i = 0; i < READS_ROUNDS_MAX; i++) {
        if (reads->rounds[i].state == READ_ROUND_STATE_ASKED_PEER) {
            next_ns = min_u64(next_ns, reads->rounds[i].again_at_ns);
        }
    }
    if (reads->retry_at_ns != 0 && reads->route.kind != ROUTE_KIND_NONE &&
        (reads->probe || !list_empty(&reads->wanting))) {
        next_ns = min_u64(next_ns, reads->retry_at_ns);
    }
    return next_ns;
}

/* What the replica here has to be told of a round. */
static bool next_round_effect(struct reads *reads, struct read_effect *out_effect)
{
    for (uint32_t i = 0; i < READS_ROUNDS_MAX; i++) {
        struct read_round *round = &reads->rounds[i];
        if (round->state == READ_ROUND_STATE_UNWANTED) {
            round_end(round);
            out_effect->kind = READ_EFFECT_KIND_CANCEL;
            out_effect->round = i;
            return true;
        }
        if (round->state == READ_ROUND_STATE_POINT_KNOWN) {
            round->state = READ_ROUND_STATE_WAITING;
            out_effect->kind = READ_EFFECT_KIND_WAIT;
            out_effect->round = i;
            out_effect->index = round->index;
            return true;
        }
    }
    return false;
}

/* Begin a round for all that want one. */
static bool ask(struct reads *reads, uint64_t now_ns, struct read_effect *out_effect)
{
    bool here = reads->route.kind == ROUTE_KIND_SELF;
    struct read_round *round = round_free(reads);
    if (round == NULL || (!here && round_asked_peer(reads) != NULL)) {
        return false;
    }
    round_begin(reads, round);
    round->state = here ? READ_ROUND_STATE_ASKED_HERE : READ_ROUND_STATE_ASKED_PEER;
    round->again_at_ns = now_ns + READS_ASK_AGAIN_NS;
    *out_effect = (struct read_effect){
        .kind = here ? READ_EFFECT_KIND_ASK_HERE : READ_EFFECT_KIND_ASK_PEER,
        .round = (uint32_t)(round - reads->rounds),
        .peer_id = round->peer_id,
        .ticket = round->ticket,
        .term = round->term,
    };
    return true;
}

/* Ask the leader for one whole read. */
static bool query(struct reads *reads, uint64_t now_ns, struct read_effect *out_effect)
{
    reads->probe = false;
    if (list_empty(&reads->wanting) || reads->query_count == READS_QUERIES_MAX) {
        return false;
    }
    struct request *request = CONTAINER_OF(list_pop(&reads->wanting), struct request, link);
    request->query_ticket = ++reads->ticket_last;
    request->query_at_ns = now_ns + READS_ASK_AGAIN_NS + READS_DUE_NS; /* the leader may wait too */
    list_append(&reads->querying, &request->link);
    reads->query_count++;
    *out_effect = (struct read_effect){
        .kind = READ_EFFECT_KIND_QUERY,
        .peer_id = reads->route.peer_id,
        .ticket = request->query_ticket,
        .term = reads->route.term,
        .request = request,
    };
    return true;
}

static struct read_round *round_free(struct reads *reads)
{
    for (uint32_t i = 0; i < READS_ROUNDS_MAX; i++) {
        if (reads->rounds[i].state == READ_ROUND_STATE_FREE) {
            return &reads->rounds[i];
        }
    }
    return NULL;
}

static struct read_round *round_asked_peer(struct reads *reads)
{
    for (uint32_t i = 0; i < READS_ROUNDS_MAX; i++) {
        if (reads->rounds[i].state == READ_ROUND_STATE_ASKED_PEER) {
            return &reads->rounds[i];
        }
    }
    return NULL;
}

static void round_begin(struct reads *reads, struct read_round *round)
{
    CHECK(list_empty(&round->requests));
    struct list *link;
    while ((link = list_pop(&reads->wanting)) != NULL) {
        list_append(&round->requests, link);
    }
    round->ticket = ++reads->ticket_last;
    round->term = reads->route.term;
    round->peer_id = reads->route.peer_id;
    round->probe = reads->probe;
    reads->probe = false;
}

static void round_answer(struct reads *reads, struct read_round *round)
{
    struct list *link;
    while ((link = list_pop(&round->requests)) != NULL) {
        struct request *request = CONTAINER_OF(link, struct request, link);
        request->read_clock_ms = round->clock_ms;
        answer(reads, request);
    }
    round_end(round);
}

static void round_fail(struct reads *reads, struct read_round *round, enum status status)
{
    give_back(reads, &round->requests, status);
    round_end(round);
}

static void round_end(struct read_round *round)
{
    CHECK(list_empty(&round->requests));
    round->state = READ_ROUND_STATE_FREE;
    round->probe = false;
}

static void query_end(struct reads *reads, struct request *request)
{
    request->query_ticket = 0;
    reads->query_count--;
    list_remove(&request->link);
    list_prepend(&reads->wanting, &request->link);
}

/* Back to where they began, before those that came later. */
static void give_back(struct reads *reads, struct list *list, enum status status)
{
    while (!list_empty(list)) {
        struct request *request = CONTAINER_OF(list->prev, struct request, link);
        request->last_status = status;
        list_remove(&request->link);
        if (request->no_hop) {
            list_append(&reads->failing, &request->link);
        } else {
            list_prepend(&reads->wanting, &request->link);
        }
    }
}

static void pause_before_retry(struct reads *reads, uint64_t now_ns)
{
    reads->pause_ns = reads->pause_ns == 0 ? PAUSE_NS_MIN
                                           : min_u64(2 * reads->pause_ns, PAUSE_NS_MAX);
    reads->retry_at_ns = now_ns + reads->pause_ns;
}

/* If its deadline comes first, then because too many others are answered before it. */
static void answer(struct reads *reads, struct request *request)
{
    request->last_status = STATUS_OVERLOADED;
    list_append(&reads->answering, &request->link);
}
