/* Bytes -> replies. */
#include "client/protocol.h"

#include <msgpack.h>

#include "client/protocol_internal.h"

#define SLOTS_MAX 12u

/* Names of the maps that are read, in the order in which they are written: the next name is
 * looked for where the last one ended. */
static const char *const reply_names[REPLY_SLOT_NAMES] = {
    "index",      "place",      "clock_ms", "stale", "outcomes", "count",   "set_version",
    "list_again", "departures", "leases",   "more",  "fields",   "members",
};

enum outcome_slot {
    OUTCOME_SLOT_OUTCOME,
    OUTCOME_SLOT_TOKEN,
    OUTCOME_SLOT_MS_LEFT,
    OUTCOME_SLOT_HELD_BEFORE,
    OUTCOME_SLOT_HOLDER,
    OUTCOME_SLOT_GRACE_MS_LEFT,
    OUTCOME_SLOT_LIMIT,
    OUTCOME_SLOT_INDEX,
    OUTCOME_SLOT_PLACE,
    OUTCOME_SLOT_CLOCK_MS,
    OUTCOME_SLOT_NAMES,
};
static const char *const outcome_names[OUTCOME_SLOT_NAMES] = {
    "outcome",       "token", "ms_left", "held_before", "holder",
    "grace_ms_left", "limit", "index",   "place",       "clock_ms",
};

enum holder_slot {
    HOLDER_SLOT_OWNER,
    HOLDER_SLOT_STATE,
    HOLDER_SLOT_TOKEN,
    HOLDER_SLOT_MS_LEFT,
    HOLDER_SLOT_NAMES,
};
static const char *const holder_names[HOLDER_SLOT_NAMES] = {"owner", "state", "token", "ms_left"};

enum departure_slot {
    DEPARTURE_SLOT_KEY,
    DEPARTURE_SLOT_TOKEN,
    DEPARTURE_SLOT_REASON,
    DEPARTURE_SLOT_NAMES,
};
static const char *const departure_names[DEPARTURE_SLOT_NAMES] = {"key", "token", "reason"};

enum lease_slot {
    LEASE_SLOT_NS,
    LEASE_SLOT_KEY,
    LEASE_SLOT_OWNER,
    LEASE_SLOT_STATE,
    LEASE_SLOT_TTL_MS,
    LEASE_SLOT_MS_LEFT,
    LEASE_SLOT_TOKEN,
    LEASE_SLOT_SINCE_MS,
    LEASE_SLOT_META,
    LEASE_SLOT_IDENTITY,
    LEASE_SLOT_NAMES,
};
static const char *const lease_names[LEASE_SLOT_NAMES] = {
    "ns", "key", "owner", "state", "ttl_ms", "ms_left", "token", "since_ms", "meta", "identity",
};

enum error_slot {
    ERROR_SLOT_CODE,
    ERROR_SLOT_STATUS,
    ERROR_SLOT_MESSAGE,
    ERROR_SLOT_DETAIL,
    ERROR_SLOT_FIELD,
    ERROR_SLOT_VALUE,
    ERROR_SLOT_RULE,
    ERROR_SLOT_NAMES,
};
static const char *const error_names[ERROR_SLOT_NAMES] = {
    "code", "status", "message", "detail", "field", "value", "rule",
};

_Static_assert(REPLY_SLOT_NAMES <= SLOTS_MAX + 1, "room for the slots of every map");

/* The values of a map by the names that we know; a wrong type or a missing one sets `failed`. */
struct slots {
    const msgpack_object *values[SLOTS_MAX + 1];
    bool failed;
};

static struct slots slots_of(const msgpack_object *object, const char *const *names, size_t count);
static uint64_t slot_u64(struct slots *slots, size_t slot);
static uint64_t slot_u64_or(struct slots *slots, size_t slot, uint64_t absent);
static bool slot_bool(struct slots *slots, size_t slot);
static struct slice slot_slice(struct slots *slots, size_t slot);
static const msgpack_object_array *slot_array(struct slots *slots, size_t slot);
static enum status error_read(struct proto_decoder *decoder, const msgpack_object *object,
                              struct proto_reply *reply);
static enum status error_status(struct slice code, struct slice name);
static void copy_text(char *to, size_t len_max, struct slice text);
static bool result_read(struct proto_decoder *decoder, const msgpack_object *object,
                        struct proto_reply *reply);
static bool outcomes_read(struct proto_decoder *decoder, const msgpack_object_array *array,
                          struct proto_reply *reply);
static bool outcome_read(const msgpack_object *object, const struct proto_reply *reply,
                         struct keyed_outcome *keyed);
static bool holder_read(const msgpack_object *object, struct holder *holder);
static bool departures_read(struct proto_decoder *decoder, const msgpack_object_array *array,
                            struct proto_reply *reply);
static bool leases_read(struct proto_decoder *decoder, const msgpack_object_array *array,
                        struct proto_reply *reply);
static bool lease_read(const msgpack_object *object, uint64_t clock_ms, struct lease_view *lease);
static bool members_read(struct proto_decoder *decoder, const msgpack_object_array *array,
                         struct proto_reply *reply);
static bool fields_read(const msgpack_object *object, struct proto_field *fields);

enum status proto_decode_reply(struct proto_decoder *decoder, struct slice bytes,
                               enum proto_method method, struct proto_reply *out_reply)
{
    msgpack_object object;
    if (proto_unpack(decoder, bytes, PROTO_REPLY_ITEMS_MAX, &object) == NULL ||
        object.type != MSGPACK_OBJECT_ARRAY || object.via.array.size != 4) {
        return STATUS_MALFORMED;
    }
    const msgpack_object *elements = object.via.array.ptr;
    struct proto_reply reply = {.method = method};
    if (elements[0].type != MSGPACK_OBJECT_POSITIVE_INTEGER ||
        elements[0].via.u64 != PROTO_TYPE_REPLY ||
        elements[1].type != MSGPACK_OBJECT_POSITIVE_INTEGER || elements[1].via.u64 > UINT32_MAX) {
        return STATUS_MALFORMED;
    }
    reply.id = (uint32_t)elements[1].via.u64;
    enum status st = STATUS_OK;
    if (elements[2].type != MSGPACK_OBJECT_NIL) {
        st = error_read(decoder, &elements[2], &reply);
    } else if (!result_read(decoder, &elements[3], &reply)) {
        st = STATUS_MALFORMED;
    }
    if (st == STATUS_OK) {
        *out_reply = reply;
    }
    return st;
}

/* Unknown names are ignored; a known one that stands twice fails. */
static struct slots slots_of(const msgpack_object *object, const char *const *names, size_t count)
{
    struct slots slots = {.failed = object == NULL || object->type != MSGPACK_OBJECT_MAP};
    size_t next = 0;
    for (uint32_t i = 0; !slots.failed && i < object->via.map.size; i++) {
        struct slice name;
        if (!proto_slice_of(&object->via.map.ptr[i].key, &name)) {
            slots.failed = true;
            break;
        }
        for (size_t tried = 0; tried < count; tried++) {
            size_t slot = (next + tried) % count;
            if (!slice_equal(name, slice_text(names[slot]))) {
                continue;
            }
            slots.failed = slots.values[slot] != NULL;
            slots.values[slot] = &object->via.map.ptr[i].val;
            next = slot + 1;
            break;
        }
    }
    return slots;
}

static uint64_t slot_u64(struct slots *slots, size_t slot)
{
    const msgpack_object *object = slots->values[slot];
    if (object == NULL || object->type != MSGPACK_OBJECT_POSITIVE_INTEGER) {
        slots->failed = true;
        return 0;
    }
    return object->via.u64;
}

static uint64_t slot_u64_or(struct slots *slots, size_t slot, uint64_t absent)
{
    return slots->values[slot] == NULL ? absent : slot_u64(slots, slot);
}

/* False where it is not there. */
static bool slot_bool(struct slots *slots, size_t slot)
{
    const msgpack_object *object = slots->values[slot];
    if (object == NULL) {
        return false;
    }
    if (object->type != MSGPACK_OBJECT_BOOLEAN) {
        slots->failed = true;
        return false;
    }
    return object->via.boolean;
}

/* Absent where it is not there. */
static struct slice slot_slice(struct slots *slots, size_t slot)
{
    struct slice slice = {0};
    const msgpack_object *object = slots->values[slot];
    if (object != NULL && !proto_slice_of(object, &slice)) {
        slots->failed = true;
    }
    return slice;
}

/* NULL where it is not there. */
static const msgpack_object_array *slot_array(struct slots *slots, size_t slot)
{
    const msgpack_object *object = slots->values[slot];
    if (object != NULL && object->type != MSGPACK_OBJECT_ARRAY) {
        slots->failed = true;
        return NULL;
    }
    return object == NULL ? NULL : &object->via.array;
}

static enum status error_read(struct proto_decoder *decoder, const msgpack_object *object,
                              struct proto_reply *reply)
{
    struct slots slots = slots_of(object, error_names, ERROR_SLOT_NAMES);
    struct slice code = slot_slice(&slots, ERROR_SLOT_CODE);
    struct slice name = slot_slice(&slots, ERROR_SLOT_STATUS);
    struct slice message = slot_slice(&slots, ERROR_SLOT_MESSAGE);
    struct slice detail = slot_slice(&slots, ERROR_SLOT_DETAIL);
    struct slice field = slot_slice(&slots, ERROR_SLOT_FIELD);
    struct slice value = slot_slice(&slots, ERROR_SLOT_VALUE);
    struct slice rule = slot_slice(&slots, ERROR_SLOT_RULE);
    if (slots.failed || code.base == NULL) {
        return STATUS_MALFORMED;
    }
    reply->status = error_status(code, name);
    /* A status that this client has no words for is explained by the node's own. */
    bool known = slice_equal(name, slice_text(status_name(reply->status)));
    reply->detail = known || detail.base != NULL ? detail : message;
    if (field.base != NULL) {
        copy_text(decoder->field, PROTO_FIELD_LEN_MAX, field);
        copy_text(decoder->rule, PROTO_RULE_LEN_MAX, rule);
        copy_text(reply->violation.value, VIOLATION_VALUE_LEN_MAX - 1, value);
        reply->violation.field = decoder->field;
        reply->violation.rule = decoder->rule;
    }
    return STATUS_OK;
}

/* The status of that name, if it is of that code; else one that has the code. */
static enum status error_status(struct slice code, struct slice name)
{
    for (int i = STATUS_OK + 1; i < STATUS_COUNT; i++) {
        enum status status = (enum status)i;
        if (slice_equal(name, slice_text(status_name(status))) &&
            slice_equal(code, slice_text(api_error_name(status_api_error(status))))) {
            return status;
        }
    }
    const enum status of_code[] = {STATUS_INVALID, STATUS_BUSY,         STATUS_UNKNOWN,
                                   STATUS_DENIED,  STATUS_INCOMPATIBLE, STATUS_INTERNAL};
    for (size_t i = 0; i < sizeof of_code / sizeof of_code[0]; i++) {
        if (slice_equal(code, slice_text(api_error_name(status_api_error(of_code[i]))))) {
            return of_code[i];
        }
    }
    return STATUS_UNKNOWN; /* of a newer node: the only thing that is safe to say */
}

static void copy_text(char *to, size_t len_max, struct slice text)
{
    size_t len = min_u64(text.len, len_max);
    if (len > 0) {
        memcpy(to, text.base, len);
    }
    to[len] = '\0';
}

static bool result_read(struct proto_decoder *decoder, const msgpack_object *object,
                        struct proto_reply *reply)
{
    struct slots slots = slots_of(object, reply_names, REPLY_SLOT_NAMES);
    reply->position.index = slot_u64(&slots, REPLY_SLOT_INDEX);
    uint64_t place = slot_u64(&slots, REPLY_SLOT_PLACE);
    reply->clock_ms = slot_u64(&slots, REPLY_SLOT_CLOCK_MS);
    reply->stale = slot_bool(&slots, REPLY_SLOT_STALE);
    reply->count = slot_u64_or(&slots, REPLY_SLOT_COUNT, 0);
    reply->set_version = slot_u64_or(&slots, REPLY_SLOT_SET_VERSION, 0);
    reply->list_again = slot_bool(&slots, REPLY_SLOT_LIST_AGAIN);
    reply->more = slot_bool(&slots, REPLY_SLOT_MORE);
    const msgpack_object_array *outcomes = slot_array(&slots, REPLY_SLOT_OUTCOMES);
    const msgpack_object_array *departures = slot_array(&slots, REPLY_SLOT_DEPARTURES);
    const msgpack_object_array *leases = slot_array(&slots, REPLY_SLOT_LEASES);
    const msgpack_object_array *members = slot_array(&slots, REPLY_SLOT_MEMBERS);
    for (int i = REPLY_SLOT_OUTCOMES; i < REPLY_SLOT_NAMES; i++) {
        bool needed = proto_method_answers(reply->method, (enum reply_slot)i);
        slots.failed = slots.failed || (needed && slots.values[i] == NULL);
    }
    if (slots.failed || place > UINT32_MAX) {
        return false;
    }
    reply->position.place = (uint32_t)place;
    const msgpack_object *fields = slots.values[REPLY_SLOT_FIELDS];
    if (fields != NULL) {
        if (fields->type != MSGPACK_OBJECT_MAP) {
            return false;
        }
        reply->field_count = fields->via.map.size;
        decoder->fields = proto_room(decoder->fields, &decoder->field_cap, reply->field_count,
                                     sizeof *decoder->fields);
        reply->fields = decoder->fields;
        if (!fields_read(fields, decoder->fields)) {
            return false;
        }
    }
    return (outcomes == NULL || outcomes_read(decoder, outcomes, reply)) &&
           (departures == NULL || departures_read(decoder, departures, reply)) &&
           (leases == NULL || leases_read(decoder, leases, reply)) &&
           (members == NULL || members_read(decoder, members, reply));
}

static bool outcomes_read(struct proto_decoder *decoder, const msgpack_object_array *array,
                          struct proto_reply *reply)
{
    decoder->outcomes = proto_room(decoder->outcomes, &decoder->outcome_cap, array->size,
                                   sizeof *decoder->outcomes);
    for (uint32_t i = 0; i < array->size; i++) {
        if (!outcome_read(&array->ptr[i], reply, &decoder->outcomes[i])) {
            return false;
        }
    }
    reply->outcomes = decoder->outcomes;
    reply->outcome_count = array->size;
    return true;
}

static bool outcome_read(const msgpack_object *object, const struct proto_reply *reply,
                         struct keyed_outcome *keyed)
{
    struct slots slots = slots_of(object, outcome_names, OUTCOME_SLOT_NAMES);
    *keyed = (struct keyed_outcome){0};
    struct outcome *outcome = &keyed->outcome;
    bool known = outcome_kind_of(slot_slice(&slots, OUTCOME_SLOT_OUTCOME), &outcome->kind);
    keyed->position.index = slot_u64_or(&slots, OUTCOME_SLOT_INDEX, reply->position.index);
    uint64_t place = slot_u64_or(&slots, OUTCOME_SLOT_PLACE, reply->position.place);
    keyed->clock_ms = slot_u64_or(&slots, OUTCOME_SLOT_CLOCK_MS, reply->clock_ms);
    outcome->token = slot_u64_or(&slots, OUTCOME_SLOT_TOKEN, 0);
    uint64_t ms_left = slot_u64_or(&slots, OUTCOME_SLOT_MS_LEFT, 0);
    outcome->held_before = slot_bool(&slots, OUTCOME_SLOT_HELD_BEFORE);
    outcome->grace_ms_left = slot_u64_or(&slots, OUTCOME_SLOT_GRACE_MS_LEFT, 0);
    if (slots.values[OUTCOME_SLOT_LIMIT] != NULL) {
        known = limit_kind_of(slot_slice(&slots, OUTCOME_SLOT_LIMIT), &outcome->limit) && known;
    }
    if (!known || slots.failed || place > UINT32_MAX) {
        return false;
    }
    keyed->position.place = (uint32_t)place;
    if (slots.values[OUTCOME_SLOT_MS_LEFT] != NULL &&
        !add_u64(keyed->clock_ms, ms_left, &outcome->expiry_ms)) {
        return false;
    }
    const msgpack_object *holder = slots.values[OUTCOME_SLOT_HOLDER];
    return holder == NULL || holder_read(holder, &outcome->holder);
}

static bool holder_read(const msgpack_object *object, struct holder *holder)
{
    struct slots slots = slots_of(object, holder_names, HOLDER_SLOT_NAMES);
    holder->owner = slot_slice(&slots, HOLDER_SLOT_OWNER);
    bool known = lease_state_of(slot_slice(&slots, HOLDER_SLOT_STATE), &holder->state);
    holder->token = slot_u64(&slots, HOLDER_SLOT_TOKEN);
    holder->ms_left = slot_u64(&slots, HOLDER_SLOT_MS_LEFT);
    return known && !slots.failed && holder->owner.base != NULL;
}

static bool departures_read(struct proto_decoder *decoder, const msgpack_object_array *array,
                            struct proto_reply *reply)
{
    decoder->departures = proto_room(decoder->departures, &decoder->departure_cap, array->size,
                                     sizeof *decoder->departures);
    for (uint32_t i = 0; i < array->size; i++) {
        struct slots slots = slots_of(&array->ptr[i], departure_names, DEPARTURE_SLOT_NAMES);
        struct departure *departure = &decoder->departures[i];
        departure->key = slot_slice(&slots, DEPARTURE_SLOT_KEY);
        departure->token = slot_u64(&slots, DEPARTURE_SLOT_TOKEN);
        bool known = end_reason_of(slot_slice(&slots, DEPARTURE_SLOT_REASON), &departure->reason);
        if (!known || slots.failed || departure->key.base == NULL) {
            return false;
        }
    }
    reply->departures = decoder->departures;
    reply->departure_count = array->size;
    return true;
}

static bool leases_read(struct proto_decoder *decoder, const msgpack_object_array *array,
                        struct proto_reply *reply)
{
    decoder->leases =
        proto_room(decoder->leases, &decoder->lease_cap, array->size, sizeof *decoder->leases);
    for (uint32_t i = 0; i < array->size; i++) {
        decoder->leases[i] = (struct lease_view){0};
        if (array->ptr[i].type != MSGPACK_OBJECT_NIL &&
            !lease_read(&array->ptr[i], reply->clock_ms, &decoder->leases[i])) {
            return false;
        }
    }
    reply->leases = decoder->leases;
    reply->lease_count = array->size;
    return true;
}

static bool lease_read(const msgpack_object *object, uint64_t clock_ms, struct lease_view *lease)
{
    struct slots slots = slots_of(object, lease_names, LEASE_SLOT_NAMES);
    lease->ns = slot_slice(&slots, LEASE_SLOT_NS);
    lease->key = slot_slice(&slots, LEASE_SLOT_KEY);
    lease->owner = slot_slice(&slots, LEASE_SLOT_OWNER);
    bool known = lease_state_of(slot_slice(&slots, LEASE_SLOT_STATE), &lease->state);
    lease->ttl_ms = slot_u64(&slots, LEASE_SLOT_TTL_MS);
    uint64_t ms_left = slot_u64(&slots, LEASE_SLOT_MS_LEFT);
    lease->token = slot_u64(&slots, LEASE_SLOT_TOKEN);
    lease->since_ms = slot_u64(&slots, LEASE_SLOT_SINCE_MS);
    lease->meta = slot_slice(&slots, LEASE_SLOT_META);
    lease->identity = slot_slice(&slots, LEASE_SLOT_IDENTITY);
    return known && !slots.failed && lease->ns.base != NULL && lease->key.base != NULL &&
           lease->owner.base != NULL && add_u64(clock_ms, ms_left, &lease->expiry_ms);
}

/* Rows of equal length, laid out one after the other. */
static bool members_read(struct proto_decoder *decoder, const msgpack_object_array *array,
                         struct proto_reply *reply)
{
    uint32_t row_len = 0;
    for (uint32_t i = 0; i < array->size; i++) {
        const msgpack_object *row = &array->ptr[i];
        if (row->type != MSGPACK_OBJECT_MAP || row->via.map.size == 0 ||
            (i > 0 && row->via.map.size != row_len)) {
            return false;
        }
        row_len = row->via.map.size;
    }
    uint32_t count = array->size * row_len; /* bounded by the items of a message */
    decoder->fields =
        proto_room(decoder->fields, &decoder->field_cap, count, sizeof *decoder->fields);
    for (uint32_t i = 0; i < array->size; i++) {
        if (!fields_read(&array->ptr[i], &decoder->fields[i * row_len])) {
            return false;
        }
    }
    reply->fields = decoder->fields;
    reply->field_count = count;
    reply->row_len = row_len;
    return true;
}

/* One per pair of the map. */
static bool fields_read(const msgpack_object *object, struct proto_field *fields)
{
    for (uint32_t i = 0; i < object->via.map.size; i++) {
        const msgpack_object_kv *pair = &object->via.map.ptr[i];
        struct proto_field *field = &fields[i];
        *field = (struct proto_field){0};
        if (!proto_slice_of(&pair->key, &field->name)) {
            return false;
        }
        if (pair->val.type == MSGPACK_OBJECT_POSITIVE_INTEGER) {
            field->kind = PROTO_VALUE_KIND_U64;
            field->number = pair->val.via.u64;
        } else if (pair->val.type == MSGPACK_OBJECT_BOOLEAN) {
            field->kind = PROTO_VALUE_KIND_BOOL;
            field->number = pair->val.via.boolean ? 1 : 0;
        } else if (proto_slice_of(&pair->val, &field->text)) {
            field->kind = PROTO_VALUE_KIND_TEXT;
        } else {
            return false;
        }
    }
    return true;
}
