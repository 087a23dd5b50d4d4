/* Replies <-> bytes.
 *
 * A reply is a map of names, so that a newer node can say more than an older client knows. What one
 * key of many has in common with the whole reply (position, clock) is not repeated. Durations are
 * sent as what is left of them at the clock of the reply, since a reader has no cluster clock. */
#include "client/protocol.h"

#include <msgpack.h>

#include "client/protocol_internal.h"

#define WORD_COUNT(words) (sizeof(words) / sizeof(words)[0])
#define SLOTS_MAX         12u

static const char *const outcome_words[] = {
    [OUTCOME_KIND_GRANTED] = "GRANTED",
    [OUTCOME_KIND_HELD] = "HELD",
    [OUTCOME_KIND_TEARDOWN] = "TEARDOWN",
    [OUTCOME_KIND_GRACE] = "GRACE",
    [OUTCOME_KIND_RENEWED] = "RENEWED",
    [OUTCOME_KIND_LAPSED] = "LAPSED",
    [OUTCOME_KIND_LOST] = "LOST",
    [OUTCOME_KIND_REESTABLISHED] = "REESTABLISHED",
    [OUTCOME_KIND_RELEASED] = "RELEASED",
    [OUTCOME_KIND_NOT_OWNER] = "NOT_OWNER",
    [OUTCOME_KIND_STALE] = "STALE",
    [OUTCOME_KIND_MISMATCH] = "MISMATCH",
    [OUTCOME_KIND_UNAVAILABLE] = "UNAVAILABLE",
    [OUTCOME_KIND_UNKNOWN] = "UNKNOWN",
};

static const char *const reason_words[] = {
    [END_REASON_RELEASED] = "released", [END_REASON_EXPIRED] = "expired",
    [END_REASON_TAKEN] = "taken",       [END_REASON_SETTLED] = "settled",
    [END_REASON_PURGED] = "purged",     [END_REASON_RESTORED] = "restored",
    [END_REASON_TEARDOWN] = "teardown", [END_REASON_REGRANTED] = "regranted",
};

static const char *const limit_words[] = {
    [LIMIT_KIND_NONE] = "none",
    [LIMIT_KIND_LEASES] = "leases",
    [LIMIT_KIND_LEASES_PER_NAMESPACE] = "leases_per_namespace",
};

/* Names of the maps that are read, in the order in which they are written: the next name is
 * looked for where the last one ended. */
enum reply_slot {
    REPLY_SLOT_INDEX,
    REPLY_SLOT_PLACE,
    REPLY_SLOT_CLOCK_MS,
    REPLY_SLOT_STALE,
    REPLY_SLOT_OUTCOMES,
    REPLY_SLOT_COUNT,
    REPLY_SLOT_SET_VERSION,
    REPLY_SLOT_LIST_AGAIN,
    REPLY_SLOT_DEPARTURES,
    REPLY_SLOT_LEASES,
    REPLY_SLOT_MORE,
    REPLY_SLOT_FIELDS,
    REPLY_SLOT_MEMBERS,
    REPLY_SLOT_NAMES,
};
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

static void pack_error(struct proto_map *error, const struct proto_reply *reply);
static void pack_result(struct proto_map *map, const struct proto_reply *reply);
static void pack_outcome(struct buf *out, msgpack_packer *packer, const struct proto_reply *reply,
                         const struct keyed_outcome *keyed);
static void pack_holder(struct proto_map *outcome, const struct holder *holder);
static void pack_sets(struct proto_map *map, const struct proto_reply *reply);
static void pack_lease(struct buf *out, msgpack_packer *packer, const struct lease_view *lease,
                       uint64_t clock_ms);
static void pack_fields(msgpack_packer *packer, const struct proto_field *fields, uint32_t count);
static struct slots slots_of(const msgpack_object *object, const char *const *names, size_t count);
static uint64_t slot_u64(struct slots *slots, size_t slot);
static uint64_t slot_u64_or(struct slots *slots, size_t slot, uint64_t absent);
static bool slot_bool(struct slots *slots, size_t slot);
static struct slice slot_slice(struct slots *slots, size_t slot);
static uint32_t slot_word(struct slots *slots, size_t slot, const char *const *words, size_t count);
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
static bool method_answers(enum proto_method method, enum reply_slot slot);

const char *proto_outcome_word(enum outcome_kind kind)
{
    CHECK((size_t)kind < WORD_COUNT(outcome_words) && outcome_words[kind] != NULL);
    return outcome_words[kind];
}

const char *proto_reason_word(enum end_reason reason)
{
    CHECK((size_t)reason < WORD_COUNT(reason_words) && reason_words[reason] != NULL);
    return reason_words[reason];
}

const char *proto_limit_word(enum limit_kind limit)
{
    CHECK((size_t)limit < WORD_COUNT(limit_words));
    return limit_words[limit];
}

void proto_encode_reply(const struct proto_reply *reply, struct buf *out)
{
    msgpack_packer packer;
    msgpack_packer_init(&packer, out, buf_write_cb);
    (void)msgpack_pack_array(&packer, 4);
    (void)msgpack_pack_uint64(&packer, PROTO_TYPE_REPLY);
    (void)msgpack_pack_uint64(&packer, reply->id);
    if (reply->status != STATUS_OK) {
        struct proto_map error = proto_map_begin(out, &packer);
        pack_error(&error, reply);
        proto_map_end(&error);
        (void)msgpack_pack_nil(&packer);
        return;
    }
    (void)msgpack_pack_nil(&packer);
    struct proto_map map = proto_map_begin(out, &packer);
    pack_result(&map, reply);
    proto_map_end(&map);
}

size_t proto_reply_len_max(const struct proto_request *request)
{
    /* Names, headers and numbers of one map of each kind, counted from the tables above; an error
     * with its value is smaller than the base. */
    const size_t base = 512;
    const size_t outcome = 256 + OWNER_LEN_MAX;
    const size_t departure = 64 + KEY_LEN_MAX;
    const size_t lease = 192 + NAMESPACE_LEN_MAX + OWNER_LEN_MAX + META_LEN_MAX + IDENTITY_LEN_MAX;
    size_t len = base;
    switch (request->method) {
    case PROTO_METHOD_TAKE:
    case PROTO_METHOD_CLAIM:
    case PROTO_METHOD_RENEW:
    case PROTO_METHOD_HEARTBEAT:
    case PROTO_METHOD_RELEASE:
        return base + request->op.key_count * outcome;
    case PROTO_METHOD_RENEW_ALL:
        return base + DEPARTURES_MAX_MAX * departure;
    case PROTO_METHOD_OWNER:
        for (uint32_t i = 0; i < request->op.key_count; i++) {
            len += lease + request->op.keys[i].key.len;
        }
        return len;
    case PROTO_METHOD_LIST:
        return base +
               (request->limit == 0 ? LIST_PAGE_MAX : request->limit) * (lease + KEY_LEN_MAX);
    case PROTO_METHOD_STATUS:
    case PROTO_METHOD_MEMBERS:
    case PROTO_METHOD_METRICS:
        return MESSAGE_LEN_MAX;
    case PROTO_METHOD_HELLO:
    case PROTO_METHOD_CLUSTER_INIT:
    case PROTO_METHOD_CLUSTER_TRANSFER:
        return base + 4096;
    case PROTO_METHOD_RELEASE_ALL:
    case PROTO_METHOD_PURGE:
    case PROTO_METHOD_COUNT:
        return base;
    }
    CHECK(false);
    return 0;
}

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

static void pack_error(struct proto_map *error, const struct proto_reply *reply)
{
    enum api_error code = status_api_error(reply->status);
    proto_map_text(error, "code", slice_text(api_error_name(code)));
    proto_map_text(error, "status", slice_text(status_name(reply->status)));
    proto_map_text(error, "message", slice_text(status_text(reply->status)));
    proto_map_optional_text(error, "detail", reply->detail);
    if (reply->violation.field != NULL) {
        proto_map_text(error, "field", slice_text(reply->violation.field));
        proto_map_text(error, "value", slice_text(reply->violation.value));
        proto_map_text(error, "rule",
                       slice_text(reply->violation.rule == NULL ? "" : reply->violation.rule));
    }
}

static void pack_result(struct proto_map *map, const struct proto_reply *reply)
{
    msgpack_packer *packer = map->packer;
    proto_map_u64(map, "index", reply->position.index);
    proto_map_u64(map, "place", reply->position.place);
    proto_map_u64(map, "clock_ms", reply->clock_ms);
    if (reply->stale) {
        proto_map_bool(map, "stale", true);
    }
    if (method_answers(reply->method, REPLY_SLOT_OUTCOMES)) {
        proto_map_name(map, "outcomes");
        (void)msgpack_pack_array(packer, reply->outcome_count);
        for (uint32_t i = 0; i < reply->outcome_count; i++) {
            pack_outcome(map->out, packer, reply, &reply->outcomes[i]);
        }
    }
    pack_sets(map, reply);
    if (method_answers(reply->method, REPLY_SLOT_LEASES)) {
        proto_map_name(map, "leases");
        (void)msgpack_pack_array(packer, reply->lease_count);
        for (uint32_t i = 0; i < reply->lease_count; i++) {
            pack_lease(map->out, packer, &reply->leases[i], reply->clock_ms);
        }
    }
    if (reply->more) {
        proto_map_bool(map, "more", true);
    }
    if (method_answers(reply->method, REPLY_SLOT_FIELDS)) {
        proto_map_name(map, "fields");
        pack_fields(packer, reply->fields, reply->field_count);
    }
    if (method_answers(reply->method, REPLY_SLOT_MEMBERS)) {
        CHECK(reply->row_len > 0 ? reply->field_count % reply->row_len == 0
                                 : reply->field_count == 0);
        uint32_t rows = reply->row_len == 0 ? 0 : reply->field_count / reply->row_len;
        proto_map_name(map, "members");
        (void)msgpack_pack_array(packer, rows);
        for (uint32_t i = 0; i < rows; i++) {
            pack_fields(packer, &reply->fields[i * reply->row_len], reply->row_len);
        }
    }
}

static void pack_outcome(struct buf *out, msgpack_packer *packer, const struct proto_reply *reply,
                         const struct keyed_outcome *keyed)
{
    const struct outcome *outcome = &keyed->outcome;
    struct proto_map map = proto_map_begin(out, packer);
    proto_map_text(&map, "outcome", slice_text(proto_outcome_word(outcome->kind)));
    bool lease = outcome->kind == OUTCOME_KIND_GRANTED || outcome->kind == OUTCOME_KIND_RENEWED ||
                 outcome->kind == OUTCOME_KIND_REESTABLISHED;
    if (lease) {
        proto_map_u64(&map, "token", outcome->token);
        proto_map_u64(&map, "ms_left", sub_or_zero_u64(outcome->expiry_ms, keyed->clock_ms));
    }
    if (outcome->held_before) {
        proto_map_bool(&map, "held_before", true);
    }
    pack_holder(&map, &outcome->holder);
    if (outcome->kind == OUTCOME_KIND_GRACE) {
        proto_map_u64(&map, "grace_ms_left", outcome->grace_ms_left);
    }
    if (outcome->limit != LIMIT_KIND_NONE) {
        proto_map_text(&map, "limit", slice_text(proto_limit_word(outcome->limit)));
    }
    if (keyed->position.index != reply->position.index) {
        proto_map_u64(&map, "index", keyed->position.index);
    }
    if (keyed->position.place != reply->position.place) {
        proto_map_u64(&map, "place", keyed->position.place);
    }
    if (keyed->clock_ms != reply->clock_ms) {
        proto_map_u64(&map, "clock_ms", keyed->clock_ms);
    }
    proto_map_end(&map);
}

static void pack_holder(struct proto_map *outcome, const struct holder *holder)
{
    if (holder->owner.base == NULL) {
        return;
    }
    proto_map_name(outcome, "holder");
    struct proto_map map = proto_map_begin(outcome->out, outcome->packer);
    proto_map_text(&map, "owner", holder->owner);
    proto_map_text(&map, "state", slice_text(proto_state_word(holder->state)));
    proto_map_u64(&map, "token", holder->token);
    proto_map_u64(&map, "ms_left", holder->ms_left);
    proto_map_end(&map);
}

/* What the methods on whole sets answer. */
static void pack_sets(struct proto_map *map, const struct proto_reply *reply)
{
    if (method_answers(reply->method, REPLY_SLOT_COUNT)) {
        proto_map_u64(map, "count", reply->count);
    }
    if (!method_answers(reply->method, REPLY_SLOT_SET_VERSION)) {
        return;
    }
    proto_map_u64(map, "set_version", reply->set_version);
    if (reply->list_again) {
        proto_map_bool(map, "list_again", true);
    }
    proto_map_name(map, "departures");
    (void)msgpack_pack_array(map->packer, reply->departure_count);
    for (uint32_t i = 0; i < reply->departure_count; i++) {
        const struct departure *departure = &reply->departures[i];
        struct proto_map one = proto_map_begin(map->out, map->packer);
        proto_map_text(&one, "key", departure->key);
        proto_map_u64(&one, "token", departure->token);
        proto_map_text(&one, "reason", slice_text(proto_reason_word(departure->reason)));
        proto_map_end(&one);
    }
}

static void pack_lease(struct buf *out, msgpack_packer *packer, const struct lease_view *lease,
                       uint64_t clock_ms)
{
    if (lease->key.base == NULL) {
        (void)msgpack_pack_nil(packer);
        return;
    }
    struct proto_map map = proto_map_begin(out, packer);
    proto_map_text(&map, "ns", lease->ns);
    proto_map_text(&map, "key", lease->key);
    proto_map_text(&map, "owner", lease->owner);
    proto_map_text(&map, "state", slice_text(proto_state_word(lease->state)));
    proto_map_u64(&map, "ttl_ms", lease->ttl_ms);
    proto_map_u64(&map, "ms_left", sub_or_zero_u64(lease->expiry_ms, clock_ms));
    proto_map_u64(&map, "token", lease->token);
    proto_map_u64(&map, "since_ms", lease->since_ms);
    proto_map_optional_bytes(&map, "meta", lease->meta);
    proto_map_optional_bytes(&map, "identity", lease->identity);
    proto_map_end(&map);
}

static void pack_fields(msgpack_packer *packer, const struct proto_field *fields, uint32_t count)
{
    (void)msgpack_pack_map(packer, count);
    for (uint32_t i = 0; i < count; i++) {
        proto_pack_text(packer, fields[i].name);
        switch (fields[i].kind) {
        case PROTO_VALUE_KIND_U64:
            (void)msgpack_pack_uint64(packer, fields[i].number);
            break;
        case PROTO_VALUE_KIND_TEXT:
            proto_pack_text(packer, fields[i].text);
            break;
        case PROTO_VALUE_KIND_BOOL:
            (void)(fields[i].number != 0 ? msgpack_pack_true(packer) : msgpack_pack_false(packer));
            break;
        }
    }
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

/* The number of the word; 0 and failed when it is none of them. */
static uint32_t slot_word(struct slots *slots, size_t slot, const char *const *words, size_t count)
{
    struct slice word = slot_slice(slots, slot);
    for (uint32_t i = 0; i < count; i++) {
        if (words[i] != NULL && word.base != NULL && slice_equal(word, slice_text(words[i]))) {
            return i;
        }
    }
    slots->failed = true;
    return 0;
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
        bool needed = method_answers(reply->method, (enum reply_slot)i);
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
    outcome->kind = (enum outcome_kind)slot_word(&slots, OUTCOME_SLOT_OUTCOME, outcome_words,
                                                 WORD_COUNT(outcome_words));
    keyed->position.index = slot_u64_or(&slots, OUTCOME_SLOT_INDEX, reply->position.index);
    uint64_t place = slot_u64_or(&slots, OUTCOME_SLOT_PLACE, reply->position.place);
    keyed->clock_ms = slot_u64_or(&slots, OUTCOME_SLOT_CLOCK_MS, reply->clock_ms);
    outcome->token = slot_u64_or(&slots, OUTCOME_SLOT_TOKEN, 0);
    uint64_t ms_left = slot_u64_or(&slots, OUTCOME_SLOT_MS_LEFT, 0);
    outcome->held_before = slot_bool(&slots, OUTCOME_SLOT_HELD_BEFORE);
    outcome->grace_ms_left = slot_u64_or(&slots, OUTCOME_SLOT_GRACE_MS_LEFT, 0);
    if (slots.values[OUTCOME_SLOT_LIMIT] != NULL) {
        outcome->limit = (enum limit_kind)slot_word(&slots, OUTCOME_SLOT_LIMIT, limit_words,
                                                    WORD_COUNT(limit_words));
    }
    if (slots.failed || place > UINT32_MAX) {
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
    holder->state = proto_state_of(slot_slice(&slots, HOLDER_SLOT_STATE));
    holder->token = slot_u64(&slots, HOLDER_SLOT_TOKEN);
    holder->ms_left = slot_u64(&slots, HOLDER_SLOT_MS_LEFT);
    return !slots.failed && holder->owner.base != NULL && holder->state != (enum lease_state)0;
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
        departure->reason = (enum end_reason)slot_word(&slots, DEPARTURE_SLOT_REASON, reason_words,
                                                       WORD_COUNT(reason_words));
        if (slots.failed || departure->key.base == NULL) {
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
    lease->state = proto_state_of(slot_slice(&slots, LEASE_SLOT_STATE));
    lease->ttl_ms = slot_u64(&slots, LEASE_SLOT_TTL_MS);
    uint64_t ms_left = slot_u64(&slots, LEASE_SLOT_MS_LEFT);
    lease->token = slot_u64(&slots, LEASE_SLOT_TOKEN);
    lease->since_ms = slot_u64(&slots, LEASE_SLOT_SINCE_MS);
    lease->meta = slot_slice(&slots, LEASE_SLOT_META);
    lease->identity = slot_slice(&slots, LEASE_SLOT_IDENTITY);
    return !slots.failed && lease->ns.base != NULL && lease->key.base != NULL &&
           lease->owner.base != NULL && lease->state != (enum lease_state)0 &&
           add_u64(clock_ms, ms_left, &lease->expiry_ms);
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

/* True where a reply to this method has that name. */
static bool method_answers(enum proto_method method, enum reply_slot slot)
{
    switch (method) {
    case PROTO_METHOD_TAKE:
    case PROTO_METHOD_CLAIM:
    case PROTO_METHOD_RENEW:
    case PROTO_METHOD_HEARTBEAT:
    case PROTO_METHOD_RELEASE:
        return slot == REPLY_SLOT_OUTCOMES;
    case PROTO_METHOD_RENEW_ALL:
        return slot == REPLY_SLOT_COUNT || slot == REPLY_SLOT_SET_VERSION ||
               slot == REPLY_SLOT_DEPARTURES;
    case PROTO_METHOD_RELEASE_ALL:
    case PROTO_METHOD_PURGE:
    case PROTO_METHOD_COUNT:
        return slot == REPLY_SLOT_COUNT;
    case PROTO_METHOD_OWNER:
    case PROTO_METHOD_LIST:
        return slot == REPLY_SLOT_LEASES;
    case PROTO_METHOD_HELLO:
    case PROTO_METHOD_STATUS:
    case PROTO_METHOD_METRICS:
    case PROTO_METHOD_CLUSTER_INIT:
    case PROTO_METHOD_CLUSTER_TRANSFER:
        return slot == REPLY_SLOT_FIELDS;
    case PROTO_METHOD_MEMBERS:
        return slot == REPLY_SLOT_MEMBERS;
    }
    CHECK(false);
    return false;
}
