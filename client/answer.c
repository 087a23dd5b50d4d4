/* A reply is one allocation: the struct, its arrays, then its texts with a NUL each. A text takes
 * at least one byte of header in its message, so that the texts of a message with their NULs are
 * never longer than the message. */
#include "client/answer.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

_Static_assert((int)TENURE_OUTCOME_GRANTED == (int)OUTCOME_KIND_GRANTED &&
                   (int)TENURE_OUTCOME_GRACE == (int)OUTCOME_KIND_GRACE &&
                   (int)TENURE_OUTCOME_LOST == (int)OUTCOME_KIND_LOST &&
                   (int)TENURE_OUTCOME_MISMATCH == (int)OUTCOME_KIND_MISMATCH &&
                   (int)TENURE_OUTCOME_UNKNOWN == (int)OUTCOME_KIND_UNKNOWN,
               "outcomes have the same numbers inside and outside");
_Static_assert((int)TENURE_STATE_OWN == (int)LEASE_STATE_OWN &&
                   (int)TENURE_STATE_DEL == (int)LEASE_STATE_DEL,
               "states, too");
_Static_assert((int)TENURE_REASON_RELEASED == (int)END_REASON_RELEASED &&
                   (int)TENURE_REASON_TEARDOWN == (int)END_REASON_TEARDOWN,
               "reasons, too");
_Static_assert((int)TENURE_ERROR_INVALID == (int)API_ERROR_INVALID &&
                   (int)TENURE_ERROR_INTERNAL == (int)API_ERROR_INTERNAL,
               "errors, too");
_Static_assert(TENURE_PROTOCOL_VERSION == PROTOCOL_VERSION, "one protocol");

/* The part of the block that texts are copied to. */
struct arena {
    char *at;
    char *end;
};

static void *place_array(char **at, size_t count, size_t size);
static const char *copy_text(struct arena *arena, struct slice text);
static const void *copy_bytes(struct arena *arena, struct slice bytes, size_t *out_len);
static void fill_outcome(struct arena *arena, const struct answer_source *source, uint32_t idx,
                         struct tenure_outcome *to);
static void fill_lease(struct arena *arena, const struct lease_view *from, uint64_t clock_ms,
                       struct tenure_lease *to);
static void fill_field(struct arena *arena, const struct proto_field *from,
                       struct tenure_field *to);
static void put(char *to, size_t size, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

const char *tenure_error_name(enum tenure_error error)
{
    return (unsigned)error <= API_ERROR_INTERNAL ? api_error_name((enum api_error)error) : "?";
}

const char *tenure_outcome_name(enum tenure_outcome_kind kind)
{
    bool known = kind >= TENURE_OUTCOME_GRANTED && kind <= TENURE_OUTCOME_UNKNOWN;
    return known ? outcome_kind_name((enum outcome_kind)kind) : "?";
}

const char *tenure_state_name(enum tenure_state state)
{
    switch (state) {
    case TENURE_STATE_ANY:
        return "any";
    case TENURE_STATE_OWN:
        return "own";
    case TENURE_STATE_DEL:
        return "del";
    }
    return "?";
}

const char *tenure_reason_name(enum tenure_reason reason)
{
    bool known = reason >= TENURE_REASON_RELEASED && reason <= TENURE_REASON_TEARDOWN;
    return known ? end_reason_name((enum end_reason)reason) : "?";
}

struct tenure_reply *answer_create(const struct answer_source *source)
{
    const struct proto_reply *from = source->reply;
    size_t keys_len = 0;
    for (uint32_t i = 0; i < source->request->op.key_count; i++) {
        keys_len += source->request->op.keys[i].key.len + 1;
    }
    size_t arrays_len = from->outcome_count * sizeof(struct tenure_outcome) +
                        from->departure_count * sizeof(struct tenure_departure) +
                        from->lease_count * sizeof(struct tenure_lease) +
                        from->field_count * sizeof(struct tenure_field);
    size_t len = sizeof(struct tenure_reply) + arrays_len + source->message_len + keys_len;
    struct tenure_reply *reply = calloc(1, len);
    if (reply == NULL) {
        return NULL;
    }
    char *at = (char *)(reply + 1);
    struct tenure_outcome *outcomes = place_array(&at, from->outcome_count, sizeof *outcomes);
    struct tenure_departure *departures =
        place_array(&at, from->departure_count, sizeof *departures);
    struct tenure_lease *leases = place_array(&at, from->lease_count, sizeof *leases);
    struct tenure_field *fields = place_array(&at, from->field_count, sizeof *fields);
    struct arena arena = {.at = at, .end = (char *)reply + len};
    for (uint32_t i = 0; i < from->outcome_count; i++) {
        fill_outcome(&arena, source, i, &outcomes[i]);
    }
    for (uint32_t i = 0; i < from->departure_count; i++) {
        departures[i].key = copy_text(&arena, from->departures[i].key);
        departures[i].token = from->departures[i].token;
        departures[i].reason = (enum tenure_reason)from->departures[i].reason;
    }
    for (uint32_t i = 0; i < from->lease_count; i++) {
        fill_lease(&arena, &from->leases[i], from->clock_ms, &leases[i]);
    }
    for (uint32_t i = 0; i < from->field_count; i++) {
        fill_field(&arena, &from->fields[i], &fields[i]);
    }
    *reply = (struct tenure_reply){
        .index = from->position.index,
        .place = from->position.place,
        .clock_ms = from->clock_ms,
        .stale = from->stale,
        .outcomes = outcomes,
        .outcome_count = from->outcome_count,
        .count = from->count,
        .set_version = from->set_version,
        .list_again = from->list_again,
        .departures = departures,
        .departure_count = from->departure_count,
        .leases = leases,
        .lease_count = from->lease_count,
        .more = from->more,
        .fields = fields,
        .field_count = from->field_count,
        .row_len = from->row_len,
    };
    return reply;
}

enum tenure_error failure_set(struct tenure_failure *out_failure, enum status status,
                              struct slice detail, const struct violation *violation)
{
    enum tenure_error error = (enum tenure_error)status_api_error(status);
    if (out_failure == NULL) {
        return error;
    }
    *out_failure = (struct tenure_failure){.error = error};
    put(out_failure->status, sizeof out_failure->status, "%s", status_name(status));
    int detail_len = detail.base == NULL ? 0 : (int)min_u64(detail.len, 256);
    const char *detail_text = detail_len == 0 ? "" : (const char *)detail.base;
    if (violation != NULL && violation->field != NULL) {
        const char *rule = violation->rule == NULL ? "" : violation->rule;
        put(out_failure->field, sizeof out_failure->field, "%s", violation->field);
        put(out_failure->value, sizeof out_failure->value, "%s", violation->value);
        put(out_failure->rule, sizeof out_failure->rule, "%s", rule);
        put(out_failure->message, sizeof out_failure->message, "%s %s, got: %s%s%.*s%s",
            violation->field, rule, violation->value, detail_len == 0 ? "" : " (", detail_len,
            detail_text, detail_len == 0 ? "" : ")");
    } else {
        put(out_failure->message, sizeof out_failure->message, "%s%s%.*s", status_text(status),
            detail_len == 0 ? "" : ": ", detail_len, detail_text);
    }
    if (status == STATUS_INCOMPATIBLE) {
        size_t len = strlen(out_failure->message);
        put(out_failure->message + len, sizeof out_failure->message - len,
            "; this client speaks protocol version %u", PROTOCOL_VERSION);
    }
    return error;
}

/* Every struct has a size that is a multiple of its alignment, which is the same for all. */
static void *place_array(char **at, size_t count, size_t size)
{
    void *array = *at;
    *at += count * size;
    return array;
}

/* An absent text becomes NULL. */
static const char *copy_text(struct arena *arena, struct slice text)
{
    if (text.base == NULL) {
        return NULL;
    }
    CHECK(text.len < (size_t)(arena->end - arena->at));
    char *copy = arena->at;
    if (text.len > 0) {
        memcpy(copy, text.base, text.len);
    }
    copy[text.len] = '\0';
    arena->at += text.len + 1;
    return copy;
}

static const void *copy_bytes(struct arena *arena, struct slice bytes, size_t *out_len)
{
    *out_len = bytes.base == NULL ? 0 : bytes.len;
    return copy_text(arena, bytes);
}

static void fill_outcome(struct arena *arena, const struct answer_source *source, uint32_t idx,
                         struct tenure_outcome *to)
{
    const struct keyed_outcome *keyed = &source->reply->outcomes[idx];
    const struct outcome *from = &keyed->outcome;
    const struct op *op = &source->request->op;
    to->kind = (enum tenure_outcome_kind)from->kind;
    to->key = idx < op->key_count ? copy_text(arena, op->keys[idx].key) : "";
    to->index = keyed->position.index;
    to->place = keyed->position.place;
    to->clock_ms = keyed->clock_ms;
    if (from->kind == OUTCOME_KIND_GRANTED || from->kind == OUTCOME_KIND_RENEWED ||
        from->kind == OUTCOME_KIND_REESTABLISHED) {
        to->token = from->token;
        to->ms_left = sub_or_zero_u64(from->expiry_ms, keyed->clock_ms);
        uint64_t ttl_ns = ms_to_ns(min_u64(op->ttl_ms, TTL_MS_MAX));
        to->deadline_ns = source->sent_ns + ttl_ns - ttl_ns / 100;
        to->held_before = from->held_before;
    }
    if (from->holder.owner.base != NULL) {
        to->holder.owner = copy_text(arena, from->holder.owner);
        to->holder.state = (enum tenure_state)from->holder.state;
        to->holder.token = from->holder.token;
        to->holder.ms_left = from->holder.ms_left;
    }
    to->grace_ms_left = from->grace_ms_left;
    to->limit = from->limit == LIMIT_KIND_NONE ? NULL : limit_kind_name(from->limit);
}

static void fill_lease(struct arena *arena, const struct lease_view *from, uint64_t clock_ms,
                       struct tenure_lease *to)
{
    if (from->key.base == NULL) {
        return;
    }
    to->ns = copy_text(arena, from->ns);
    to->key = copy_text(arena, from->key);
    to->owner = copy_text(arena, from->owner);
    to->state = (enum tenure_state)from->state;
    to->ttl_ms = from->ttl_ms;
    to->ms_left = sub_or_zero_u64(from->expiry_ms, clock_ms);
    to->token = from->token;
    to->since_ms = from->since_ms;
    to->meta = copy_bytes(arena, from->meta, &to->meta_len);
    to->identity = copy_bytes(arena, from->identity, &to->identity_len);
}

static void fill_field(struct arena *arena, const struct proto_field *from, struct tenure_field *to)
{
    to->name = copy_text(arena, from->name);
    to->is_flag = from->kind == PROTO_VALUE_KIND_BOOL;
    to->number = from->number;
    to->text = from->kind == PROTO_VALUE_KIND_TEXT ? copy_text(arena, from->text) : NULL;
}

/* Cut at the end of `to`. */
static void put(char *to, size_t size, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(to, size, format, arguments);
    va_end(arguments);
}
