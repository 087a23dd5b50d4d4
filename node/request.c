/* Most requests have one key: one part, one outcome, a result of a few hundred bytes, all of which
 * have their place inside the struct. Only requests of many keys allocate.
 *
 * A result is decoded once, when it arrives, from a copy that does not move: its outcomes point
 * into the copy until the reply is carried away. */
#include "node/request.h"

#include <stdlib.h>

#include "fsm/base/check.h"
#include "fsm/base/hash.h"
#include "fsm/command.h"

/* Upper bounds of encoded lengths (command_codec.c): numbers take at most 9 bytes, headers of bytes
 * and arrays at most 5. */
#define NUMBER_LEN_MAX 9u
#define HEAD_LEN_MAX (5u + 8u * NUMBER_LEN_MAX + 3u * 5u + NAMESPACE_LEN_MAX + OWNER_LEN_MAX)
#define ITEM_HEAD_LEN 1u
#define BYTES_HEAD_LEN_MAX 3u /* keys, metadata and identities are shorter than 64 KiB */
#define ABSENT_LEN 1u

#define JOIN_BY_HASH_FROM 8u /* fewer keys are compared one by one */
#define NOWHERE UINT32_MAX

/* Keys by hash while repeats are joined. */
struct joiner {
    uint32_t *slots; /* owned; place in `joined` or NOWHERE */
    uint32_t mask;
};

static size_t item_len_max(const struct key_item *item);
static bool keys_repeat(const struct key_item *keys, uint32_t count, struct joiner *joiner);
static void join_keys(struct request *request, const struct op *op, struct joiner *joiner);
static uint32_t joiner_find_or_add(struct joiner *joiner, const struct key_item *keys,
                                   struct slice key, uint32_t place);
static void cut_parts(struct request *request, const struct op *op);
static uint32_t count_parts(const struct key_item *keys, uint32_t count);
static uint32_t part_end(const struct key_item *keys, uint32_t count, uint32_t first);
static struct slice keep_bytes(struct request *request, uint32_t idx, struct slice bytes);
static void take_result(struct request *request, uint32_t idx, const struct result *result);
static void take_departures(struct request *request, const struct result *result);
static bool result_fits(const struct request *request, uint32_t idx, const struct result *result);
static void part_done(struct request *request, uint32_t idx, enum status status);
static bool all_failed_alike(const struct request *request, enum status *out_status);
static void fill_failed(struct request *request);
static const struct keyed_outcome *outcomes_as_asked(struct request *request);

void request_init(struct request *request)
{
    *request = (struct request){0};
    list_init(&request->link);
    heap_node_init(&request->timer);
}

void request_clear(struct request *request)
{
    CHECK(!list_linked(&request->link) && !heap_contains(&request->timer));
    for (uint32_t i = 0; i < request->part_count; i++) {
        CHECK(request->parts[i].job == NULL);
        if (request->parts[i].bytes != request->bytes_one) {
            free(request->parts[i].bytes);
        }
    }
    if (request->parts != &request->part_one) {
        free(request->parts);
    }
    if (request->outcomes != &request->outcome_one) {
        free(request->outcomes);
    }
    free(request->joined);
    free(request->joined_of);
    free(request->expanded);
    free(request->departures);
    request_init(request);
}

enum status request_begin(struct request *request, const struct proto_request *asked,
                          uint64_t deadline_ns)
{
    const struct op *op = &asked->op;
    request->asked = asked;
    request->deadline_ns = deadline_ns;
    request->state = REQUEST_STATE_QUEUED;
    request->keys = op->keys;
    request->key_count = op->key_count;
    request->read = asked->method == PROTO_METHOD_OWNER || asked->method == PROTO_METHOD_LIST ||
                    asked->method == PROTO_METHOD_COUNT;
    if (request->read) {
        return STATUS_OK;
    }
    struct joiner joiner = {0};
    if (op->key_count > 1 && keys_repeat(op->keys, op->key_count, &joiner)) {
        join_keys(request, op, &joiner);
    }
    free(joiner.slots);
    cut_parts(request, op);
    if (request->result_len_max > UNCONFIRMED_LEN_MAX || request->part_count > UNCONFIRMED_MAX) {
        request_clear(request);
        return STATUS_TOO_LARGE;
    }
    return STATUS_OK;
}

struct op request_part_op(const struct request *request, uint32_t idx)
{
    CHECK(request->asked != NULL && idx < request->part_count);
    struct op op = request->asked->op;
    op.keys = request->keys == NULL ? NULL : &request->keys[request->parts[idx].first];
    op.key_count = request->parts[idx].count;
    return op;
}

enum status request_part_answer(struct request *request, uint32_t idx,
                                struct result_decoder *decoder, struct slice bytes)
{
    CHECK(idx < request->part_count && !request->parts[idx].done);
    struct slice kept = keep_bytes(request, idx, bytes);
    struct result result;
    enum status st = result_decode(decoder, kept, &result);
    if (st != STATUS_OK) {
        return st;
    }
    if (result.status != STATUS_OK && result.status != STATUS_INVALID) {
        return result.status;
    }
    if (result.status == STATUS_OK) {
        if (!result_fits(request, idx, &result)) {
            return STATUS_MALFORMED;
        }
        take_result(request, idx, &result);
    }
    if (request->merged.position.index < result.position.index ||
        (request->merged.position.index == result.position.index &&
         request->merged.position.place <= result.position.place)) {
        request->merged.position = result.position;
        request->merged.clock_ms = result.clock_ms;
    }
    part_done(request, idx, result.status);
    return STATUS_OK;
}

void request_part_fail(struct request *request, uint32_t idx, enum status status)
{
    CHECK(idx < request->part_count && !request->parts[idx].done && status != STATUS_OK);
    part_done(request, idx, status);
}

void request_reply(struct request *request, struct proto_reply *out_reply)
{
    CHECK(request_complete(request) && request->asked != NULL);
    enum status st = STATUS_OK;
    if (all_failed_alike(request, &st)) {
        request_error_reply(request, st, out_reply);
        if (st == STATUS_INVALID && request->asked->op.adopt) {
            violation_set_u64(&out_reply->violation, "grace_ms", request->asked->op.grace_ms,
                              RULE_GRACE_MS);
        }
        return;
    }
    *out_reply = request->merged;
    out_reply->id = request->asked->id;
    out_reply->method = request->asked->method;
    if (request->asked->op.key_count == 0) {
        return;
    }
    fill_failed(request);
    const struct keyed_outcome *outcomes = outcomes_as_asked(request);
    if (request->asked->op.key_count == 1 &&
        outcomes[0].outcome.kind == OUTCOME_KIND_UNAVAILABLE) {
        struct proto_reply refused;
        request_error_reply(request, STATUS_LIMIT, &refused);
        refused.detail = slice_text(limit_kind_name(outcomes[0].outcome.limit));
        refused.position = out_reply->position;
        refused.clock_ms = out_reply->clock_ms;
        *out_reply = refused;
        return;
    }
    out_reply->outcomes = outcomes;
    out_reply->outcome_count = request->asked->op.key_count;
}

void request_error_reply(const struct request *request, enum status status,
                         struct proto_reply *out_reply)
{
    *out_reply = (struct proto_reply){
        .id = request->asked->id,
        .method = request->asked->method,
        .status = status,
    };
}

/* True when a key is named twice; then `joiner` is as large as joining needs. */
static bool keys_repeat(const struct key_item *keys, uint32_t count, struct joiner *joiner)
{
    if (count < JOIN_BY_HASH_FROM) {
        joiner->mask = 2 * JOIN_BY_HASH_FROM - 1;
    } else {
        joiner->mask = 1;
        while (joiner->mask < 2 * count) {
            joiner->mask = joiner->mask * 2 + 1;
        }
    }
    joiner->slots = malloc(((size_t)joiner->mask + 1) * sizeof *joiner->slots);
    CHECK(joiner->slots != NULL);
    memset(joiner->slots, 0xff, ((size_t)joiner->mask + 1) * sizeof *joiner->slots);
    for (uint32_t i = 0; i < count; i++) {
        if (joiner_find_or_add(joiner, keys, keys[i].key, i) != i) {
            return true;
        }
    }
    return false;
}

static void join_keys(struct request *request, const struct op *op, struct joiner *joiner)
{
    request->joined = calloc(op->key_count, sizeof *request->joined);
    request->joined_of = calloc(op->key_count, sizeof *request->joined_of);
    CHECK(request->joined != NULL && request->joined_of != NULL);
    memset(joiner->slots, 0xff, ((size_t)joiner->mask + 1) * sizeof *joiner->slots);
    uint32_t count = 0;
    for (uint32_t i = 0; i < op->key_count; i++) {
        request->joined[count] = op->keys[i];
        uint32_t place = joiner_find_or_add(joiner, request->joined, op->keys[i].key, count);
        request->joined_of[i] = place;
        count += place == count ? 1 : 0;
    }
    request->keys = request->joined;
    request->key_count = count;
}

/* Where the key is among `keys` (all those added), or `place` after adding it there. */
static uint32_t joiner_find_or_add(struct joiner *joiner, const struct key_item *keys,
                                   struct slice key, uint32_t place)
{
    uint32_t at = (uint32_t)hash64(0, key.base, key.len) & joiner->mask;
    while (joiner->slots[at] != NOWHERE) {
        if (slice_equal(keys[joiner->slots[at]].key, key)) {
            return joiner->slots[at];
        }
        at = (at + 1) & joiner->mask;
    }
    joiner->slots[at] = place;
    return place;
}

static void cut_parts(struct request *request, const struct op *op)
{
    request->part_count = count_parts(request->keys, request->key_count);
    request->parts = &request->part_one;
    request->outcomes = &request->outcome_one;
    if (request->part_count > 1) {
        request->parts = calloc(request->part_count, sizeof *request->parts);
        CHECK(request->parts != NULL);
    }
    if (request->key_count > 1) {
        request->outcomes = calloc(request->key_count, sizeof *request->outcomes);
        CHECK(request->outcomes != NULL);
    }
    uint32_t first = 0;
    struct op of_part = *op;
    for (uint32_t i = 0; i < request->part_count; i++) {
        uint32_t end = part_end(request->keys, request->key_count, first);
        request->parts[i] = (struct request_part){.first = first, .count = end - first};
        of_part.key_count = end - first;
        request->result_len_max += result_len_max(&of_part);
        first = end;
    }
    CHECK(first == request->key_count);
}

static uint32_t count_parts(const struct key_item *keys, uint32_t count)
{
    uint32_t parts = 0;
    uint32_t first = 0;
    do {
        first = part_end(keys, count, first);
        parts++;
    } while (first < count);
    return parts;
}

/* The end of the part that begins with this key: as many as fit, at least one. */
static uint32_t part_end(const struct key_item *keys, uint32_t count, uint32_t first)
{
    size_t len = HEAD_LEN_MAX;
    uint32_t end = first;
    while (end < count && (end == first || len + item_len_max(&keys[end]) <= ENTRY_LEN_TARGET)) {
        len += item_len_max(&keys[end]);
        end++;
    }
    return end;
}

static size_t item_len_max(const struct key_item *item)
{
    size_t len = ITEM_HEAD_LEN + BYTES_HEAD_LEN_MAX + item->key.len;
    len += item->has_if_token ? NUMBER_LEN_MAX : ABSENT_LEN;
    len += item->meta.base != NULL ? BYTES_HEAD_LEN_MAX + item->meta.len : ABSENT_LEN;
    len += item->identity.base != NULL ? BYTES_HEAD_LEN_MAX + item->identity.len : ABSENT_LEN;
    return len;
}

/* A copy that stays where it is; the part keeps it. */
static struct slice keep_bytes(struct request *request, uint32_t idx, struct slice bytes)
{
    struct request_part *part = &request->parts[idx];
    if (part->bytes != NULL && part->bytes != request->bytes_one) {
        free(part->bytes);
    }
    if (part->bytes == request->bytes_one) {
        request->bytes_one_used = false;
    }
    if (bytes.len <= sizeof request->bytes_one && !request->bytes_one_used) {
        part->bytes = request->bytes_one;
        request->bytes_one_used = true;
    } else {
        part->bytes = malloc(bytes.len + 1);
        CHECK(part->bytes != NULL);
    }
    if (bytes.len > 0) {
        memcpy(part->bytes, bytes.base, bytes.len);
    }
    return slice_from(part->bytes, bytes.len);
}

static void take_result(struct request *request, uint32_t idx, const struct result *result)
{
    struct request_part *part = &request->parts[idx];
    for (uint32_t i = 0; i < result->outcome_count; i++) {
        request->outcomes[part->first + i] = (struct keyed_outcome){
            .outcome = result->outcomes[i],
            .position = result->position,
            .clock_ms = result->clock_ms,
        };
        const struct outcome *outcome = &result->outcomes[i];
        if (outcome->kind == OUTCOME_KIND_GRANTED && !outcome->held_before) {
            part->granted = true;
        }
    }
    request->merged.count = result->count;
    request->merged.set_version = result->set_version;
    request->merged.list_again = result->list_again;
    if (result->departure_count > 0) {
        take_departures(request, result);
    }
}

static void take_departures(struct request *request, const struct result *result)
{
    CHECK(request->departures == NULL);
    request->departures = calloc(result->departure_count, sizeof *request->departures);
    CHECK(request->departures != NULL);
    memcpy(request->departures, result->departures,
           result->departure_count * sizeof *request->departures);
    request->merged.departures = request->departures;
    request->merged.departure_count = result->departure_count;
}

/* A result of this very operation: its kind, an outcome for each key, and only kinds that a state
 * machine makes. */
static bool result_fits(const struct request *request, uint32_t idx, const struct result *result)
{
    if (result->kind != request->asked->op.kind ||
        result->outcome_count != request->parts[idx].count) {
        return false;
    }
    for (uint32_t i = 0; i < result->outcome_count; i++) {
        if (result->outcomes[i].kind == OUTCOME_KIND_UNKNOWN) {
            return false;
        }
    }
    return true;
}

static void part_done(struct request *request, uint32_t idx, enum status status)
{
    request->parts[idx].done = true;
    request->parts[idx].status = status;
    request->parts_done++;
}

/* True when no part has an answer and all say the same of it, or there is only one key. */
static bool all_failed_alike(const struct request *request, enum status *out_status)
{
    enum api_error error = status_api_error(request->parts[0].status);
    if (error == API_ERROR_NONE) {
        return false;
    }
    for (uint32_t i = 1; i < request->part_count; i++) {
        if (status_api_error(request->parts[i].status) != error) {
            return false;
        }
    }
    *out_status = request->parts[0].status;
    return true;
}

/* Outcomes of the keys whose part failed. */
static void fill_failed(struct request *request)
{
    for (uint32_t i = 0; i < request->part_count; i++) {
        const struct request_part *part = &request->parts[i];
        if (part->status == STATUS_OK) {
            continue;
        }
        bool maybe = status_class(part->status) == STATUS_CLASS_MAYBE;
        for (uint32_t k = part->first; k < part->first + part->count; k++) {
            request->outcomes[k] = (struct keyed_outcome){
                .outcome.kind = maybe ? OUTCOME_KIND_UNKNOWN : OUTCOME_KIND_UNAVAILABLE,
            };
        }
    }
}

static const struct keyed_outcome *outcomes_as_asked(struct request *request)
{
    if (request->joined_of == NULL) {
        return request->outcomes;
    }
    uint32_t count = request->asked->op.key_count;
    request->expanded = calloc(count, sizeof *request->expanded);
    CHECK(request->expanded != NULL);
    for (uint32_t i = 0; i < count; i++) {
        request->expanded[i] = request->outcomes[request->joined_of[i]];
    }
    return request->expanded;
}
