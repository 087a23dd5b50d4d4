/* Replies -> bytes; the way back is in protocol_reply_read.c.
 *
 * A reply is a map of names, so that a newer node can say more than an older client knows. What one
 * key of many has in common with the whole reply (position, clock) is not repeated. Durations are
 * sent as what is left of them at the clock of the reply, since a reader has no cluster clock. */
#include "client/protocol.h"

#include <msgpack.h>

#include "client/protocol_internal.h"

static void pack_error(struct proto_map *error, const struct proto_reply *reply);
static void pack_result(struct proto_map *map, const struct proto_reply *reply);
static void pack_outcome(struct buf *out, msgpack_packer *packer, const struct proto_reply *reply,
                         const struct keyed_outcome *keyed);
static void pack_holder(struct proto_map *outcome, const struct holder *holder);
static void pack_sets(struct proto_map *map, const struct proto_reply *reply);
static void pack_lease(struct buf *out, msgpack_packer *packer, const struct lease_view *lease,
                       uint64_t clock_ms);
static void pack_fields(msgpack_packer *packer, const struct proto_field *fields, uint32_t count);

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

/* True where a reply to this method has that name. */
bool proto_method_answers(enum proto_method method, enum reply_slot slot)
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
    if (proto_method_answers(reply->method, REPLY_SLOT_OUTCOMES)) {
        proto_map_name(map, "outcomes");
        (void)msgpack_pack_array(packer, reply->outcome_count);
        for (uint32_t i = 0; i < reply->outcome_count; i++) {
            pack_outcome(map->out, packer, reply, &reply->outcomes[i]);
        }
    }
    pack_sets(map, reply);
    if (proto_method_answers(reply->method, REPLY_SLOT_LEASES)) {
        proto_map_name(map, "leases");
        (void)msgpack_pack_array(packer, reply->lease_count);
        for (uint32_t i = 0; i < reply->lease_count; i++) {
            pack_lease(map->out, packer, &reply->leases[i], reply->clock_ms);
        }
    }
    if (reply->more) {
        proto_map_bool(map, "more", true);
    }
    if (proto_method_answers(reply->method, REPLY_SLOT_FIELDS)) {
        proto_map_name(map, "fields");
        pack_fields(packer, reply->fields, reply->field_count);
    }
    if (proto_method_answers(reply->method, REPLY_SLOT_MEMBERS)) {
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
    proto_map_text(&map, "outcome", slice_text(outcome_kind_name(outcome->kind)));
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
        proto_map_text(&map, "limit", slice_text(limit_kind_name(outcome->limit)));
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
    proto_map_text(&map, "state", slice_text(lease_state_name(holder->state)));
    proto_map_u64(&map, "token", holder->token);
    proto_map_u64(&map, "ms_left", holder->ms_left);
    proto_map_end(&map);
}

/* What the methods on whole sets answer. */
static void pack_sets(struct proto_map *map, const struct proto_reply *reply)
{
    if (proto_method_answers(reply->method, REPLY_SLOT_COUNT)) {
        proto_map_u64(map, "count", reply->count);
    }
    if (!proto_method_answers(reply->method, REPLY_SLOT_SET_VERSION)) {
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
        proto_map_text(&one, "reason", slice_text(end_reason_name(departure->reason)));
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
    proto_map_text(&map, "state", slice_text(lease_state_name(lease->state)));
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
