/* Requests <-> bytes.
 *
 * Parameters are read off one table: where each goes, what it may be, in which methods it may
 * stand. Only what cannot be put into the struct is refused here, in the words that the validation
 * of operations has for the same field (hazard T5); what a field may contain is decided there.
 * A known parameter where it means nothing is refused and not ignored: a `stale` on a take is a
 * caller that believes something else happened than did. */
#include "client/protocol.h"

#include <stddef.h>

#include <msgpack.h>

#include "client/protocol_internal.h"

#define RULE_BOOL           "must be true or false"
#define RULE_U64            "must be a whole number in 0..18446744073709551615"
#define RULE_STATE          "must be own or del"
#define RULE_PREFIX         "must be 0..512 bytes"
#define RULE_DEADLINE       "must be an instant of CLOCK_BOOTTIME in ns, at most 60000 ms ahead"
#define RULE_VERSION        "must be a whole number in 0..4294967295"
#define RULE_ONCE           "must be named once"
#define RULE_UNKNOWN        "is required by the caller and unknown to protocol version 1"
#define RULE_METHOD_UNKNOWN "is no method of protocol version 1"
#define RULE_METHOD_TEXT    "must be the name of a method"
#define RULE_SHAPE          "must be [0, id, method, parameters]"
#define RULE_PARAMS         "must be a map of at most 64 names"
#define RULE_NAME           "must have names of text"
#define RULE_KEY_OR_KEYS    "excludes key"
#define RULE_WITH_KEY       "goes with key; each of keys names its own"

enum param_kind {
    PARAM_KIND_SLICE, /* text or bytes */
    PARAM_KIND_U64,
    PARAM_KIND_U32,
    PARAM_KIND_COUNT, /* as U32, and not 0, which stands for "absent" */
    PARAM_KIND_BOOL,
    PARAM_KIND_STATE,
    PARAM_KIND_KEYS,
};

#define METHOD_BIT(name) (1u << PROTO_METHOD_##name)
#define WRITES                                                                                     \
    (METHOD_BIT(TAKE) | METHOD_BIT(CLAIM) | METHOD_BIT(RENEW) | METHOD_BIT(HEARTBEAT) |            \
     METHOD_BIT(RELEASE) | METHOD_BIT(RENEW_ALL) | METHOD_BIT(RELEASE_ALL) | METHOD_BIT(PURGE))
#define LISTS      (METHOD_BIT(LIST) | METHOD_BIT(COUNT))
#define READS      (METHOD_BIT(OWNER) | LISTS)
#define EVERYWHERE UINT32_MAX
#define NO_FLAG    SIZE_MAX

struct param {
    const char *name;
    size_t name_len;
    const char *field; /* as errors call it */
    const char *rule;
    enum param_kind kind;
    uint32_t methods; /* bits */
    size_t offset;    /* of the value in its struct */
    size_t flag;      /* of the bool that says it was there, or NO_FLAG */
    uint64_t max;     /* of a number; of a slice its length, 0: judged elsewhere */
};

/* The two that are asked for by place. */
enum {
    PARAM_KEYS = 0,
    PARAM_DEADLINE = 1,
};

#define NAME(name) (name), sizeof(name) - 1
#define AT(member) offsetof(struct proto_request, member)
static const struct param request_params[] = {
    [PARAM_KEYS] = {NAME("keys"), "keys", RULE_KEYS, PARAM_KIND_KEYS, WRITES | METHOD_BIT(OWNER), 0,
                    NO_FLAG, 0},
    [PARAM_DEADLINE] = {NAME("deadline_ns"), "deadline_ns", RULE_DEADLINE, PARAM_KIND_U64,
                        EVERYWHERE, AT(deadline_ns), NO_FLAG, UINT64_MAX},
    {NAME("ns"), "namespace", RULE_NAMESPACE, PARAM_KIND_SLICE, WRITES | READS, AT(op.ns), NO_FLAG,
     0},
    {NAME("owner"), "owner", RULE_OWNER, PARAM_KIND_SLICE, WRITES | LISTS, AT(op.owner), NO_FLAG,
     0},
    {NAME("ttl_ms"), "ttl_ms", RULE_TTL_MS, PARAM_KIND_U64, WRITES, AT(op.ttl_ms), NO_FLAG,
     UINT64_MAX},
    {NAME("destroy"), "destroy", RULE_BOOL, PARAM_KIND_BOOL, WRITES, AT(op.destroy), NO_FLAG, 0},
    {NAME("adopt"), "adopt", RULE_BOOL, PARAM_KIND_BOOL, WRITES, AT(op.adopt), NO_FLAG, 0},
    {NAME("grace_ms"), "grace_ms", RULE_GRACE_MS, PARAM_KIND_U64, WRITES, AT(op.grace_ms), NO_FLAG,
     UINT64_MAX},
    {NAME("reestablish"), "reestablish", RULE_BOOL, PARAM_KIND_BOOL, WRITES, AT(op.reestablish),
     NO_FLAG, 0},
    {NAME("set_version"), "set_version", RULE_U64, PARAM_KIND_U64, WRITES, AT(op.set_version),
     AT(op.has_set_version), UINT64_MAX},
    {NAME("stale"), "stale", RULE_BOOL, PARAM_KIND_BOOL, READS, AT(stale), NO_FLAG, 0},
    {NAME("prefix"), "prefix", RULE_PREFIX, PARAM_KIND_SLICE, LISTS, AT(prefix), NO_FLAG,
     KEY_LEN_MAX},
    {NAME("after"), "after", RULE_PREFIX, PARAM_KIND_SLICE, METHOD_BIT(LIST), AT(after), NO_FLAG,
     KEY_LEN_MAX},
    {NAME("state"), "state", RULE_STATE, PARAM_KIND_STATE, LISTS, AT(state), NO_FLAG, 0},
    {NAME("limit"), "limit", PROTO_RULE_LIMIT, PARAM_KIND_COUNT, METHOD_BIT(LIST), AT(limit),
     NO_FLAG, LIST_PAGE_MAX},
    {NAME("token_floor"), "token_floor", RULE_U64, PARAM_KIND_U64, METHOD_BIT(CLUSTER_INIT),
     AT(token_floor), AT(has_token_floor), UINT64_MAX},
    {NAME("voters"), "voters", RULE_U64, PARAM_KIND_U64, METHOD_BIT(CLUSTER_INIT),
     AT(voters_wanted), NO_FLAG, UINT64_MAX},
    {NAME("node_id"), "node_id", RULE_U64, PARAM_KIND_U64, METHOD_BIT(CLUSTER_TRANSFER),
     AT(node_id), NO_FLAG, UINT64_MAX},
    {NAME("version"), "version", RULE_VERSION, PARAM_KIND_U32, EVERYWHERE, AT(client_version),
     NO_FLAG, UINT32_MAX},
};
#undef AT

#define AT(member) offsetof(struct key_item, member)
static const struct param item_params[] = {
    {NAME("key"), "key", RULE_KEY, PARAM_KIND_SLICE, WRITES | METHOD_BIT(OWNER), AT(key), NO_FLAG,
     0},
    {NAME("if_token"), "if_token", RULE_U64, PARAM_KIND_U64, WRITES, AT(if_token), AT(has_if_token),
     UINT64_MAX},
    {NAME("meta"), "meta", RULE_META, PARAM_KIND_SLICE, WRITES, AT(meta), NO_FLAG, 0},
    {NAME("identity"), "identity", RULE_IDENTITY, PARAM_KIND_SLICE, WRITES, AT(identity), NO_FLAG,
     0},
};
#undef AT

#define REQUEST_PARAM_COUNT (sizeof request_params / sizeof request_params[0])
#define ITEM_PARAM_COUNT    (sizeof item_params / sizeof item_params[0])
#define ITEM_BIT(idx)       (1u << (REQUEST_PARAM_COUNT + (size_t)(idx)))
_Static_assert(REQUEST_PARAM_COUNT + ITEM_PARAM_COUNT <= 32, "one bit each in a set of 32");
_Static_assert(PROTO_METHOD_TAKE - 1 == (int)OP_KIND_TAKE &&
                   PROTO_METHOD_PURGE - 1 == (int)OP_KIND_PURGE,
               "methods that write stand in the order of the operations");

/* One request while it is read. */
struct reading {
    struct proto_decoder *decoder;
    struct proto_request *request;
    struct key_item single; /* what stands beside `keys` */
    uint32_t seen;          /* bits: request_params, then item_params */
    struct violation *violation;
};

static enum status method_read(struct reading *reading, const msgpack_object *object);
static enum status params_read(struct reading *reading, const msgpack_object *object);
static enum status param_read(struct reading *reading, const msgpack_object_map *map, uint32_t idx);
static enum status keys_read(struct reading *reading, const msgpack_object *object);
static enum status key_read(struct reading *reading, const msgpack_object *object,
                            struct key_item *item);
static enum status item_read(struct reading *reading, const msgpack_object_map *map,
                             struct key_item *item);
static enum status value_read(const struct param *param, const msgpack_object *object, void *target,
                              struct violation *violation);
static enum status unknown_read(const msgpack_object_map *map, uint32_t idx, struct slice name,
                                struct violation *violation);
static enum status keys_join(struct reading *reading);
static enum status deadline_check(const struct reading *reading, uint64_t now_ns);
static const struct param *param_find(const struct param *params, size_t count, struct slice name);
static enum status refuse_object(const struct param *param, const msgpack_object *object,
                                 struct violation *violation);
static enum status refuse(struct violation *violation, const char *field, const char *what,
                          const char *rule);
static void pack_op(struct proto_map *map, const struct proto_request *request);
static void pack_keys(struct proto_map *map, const struct op *op);
static void pack_item_rest(struct proto_map *map, const struct key_item *item);

enum status proto_decode_request(struct proto_decoder *decoder, struct slice bytes, uint64_t now_ns,
                                 struct proto_request *out_request, struct violation *out_violation)
{
    msgpack_object object;
    if (proto_unpack(decoder, bytes, PROTO_REQUEST_ITEMS_MAX, &object) == NULL ||
        object.type != MSGPACK_OBJECT_ARRAY || object.via.array.size < 2) {
        return STATUS_MALFORMED;
    }
    const msgpack_object *elements = object.via.array.ptr;
    if (elements[0].type != MSGPACK_OBJECT_POSITIVE_INTEGER ||
        elements[0].via.u64 != PROTO_TYPE_REQUEST ||
        elements[1].type != MSGPACK_OBJECT_POSITIVE_INTEGER || elements[1].via.u64 == 0 ||
        elements[1].via.u64 > UINT32_MAX) {
        return STATUS_MALFORMED; /* an answer to id 0 would speak of the connection */
    }
    *out_request = (struct proto_request){.id = (uint32_t)elements[1].via.u64};
    struct reading reading = {
        .decoder = decoder, .request = out_request, .violation = out_violation};
    if (object.via.array.size != 4) {
        return refuse(out_violation, "request", "another array", RULE_SHAPE);
    }
    enum status st = method_read(&reading, &elements[2]);
    if (st == STATUS_OK) {
        st = params_read(&reading, &elements[3]);
    }
    if (st == STATUS_OK) {
        st = keys_join(&reading);
    }
    return st == STATUS_OK ? deadline_check(&reading, now_ns) : st;
}

void proto_encode_request(const struct proto_request *request, struct buf *out)
{
    msgpack_packer packer;
    msgpack_packer_init(&packer, out, buf_write_cb);
    (void)msgpack_pack_array(&packer, 4);
    (void)msgpack_pack_uint64(&packer, PROTO_TYPE_REQUEST);
    (void)msgpack_pack_uint64(&packer, request->id);
    proto_pack_text(&packer, slice_text(proto_method_name(request->method)));
    struct proto_map map = proto_map_begin(out, &packer);
    pack_op(&map, request);
    if (request->stale) {
        proto_map_bool(&map, "stale", true);
    }
    proto_map_optional_text(&map, "prefix", request->prefix);
    proto_map_optional_text(&map, "after", request->after);
    if (request->state != (enum lease_state)0) {
        proto_map_text(&map, "state", slice_text(lease_state_name(request->state)));
    }
    const struct {
        const char *name;
        uint64_t value;
        bool there;
    } numbers[] = {
        {"limit", request->limit, request->limit != 0},
        {"token_floor", request->token_floor, request->has_token_floor},
        {"voters", request->voters_wanted, request->voters_wanted != 0},
        {"node_id", request->node_id, request->node_id != 0},
        {"version", request->client_version, request->client_version != 0},
        {"deadline_ns", request->deadline_ns, request->deadline_ns != 0},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        if (numbers[i].there) {
            proto_map_u64(&map, numbers[i].name, numbers[i].value);
        }
    }
    proto_map_end(&map);
}

static enum status method_read(struct reading *reading, const msgpack_object *object)
{
    struct slice name;
    if (!proto_slice_of(object, &name)) {
        const struct param method = {.field = "method", .rule = RULE_METHOD_TEXT};
        return refuse_object(&method, object, reading->violation);
    }
    for (int i = PROTO_METHOD_HELLO; i <= PROTO_METHOD_CLUSTER_TRANSFER; i++) {
        if (slice_equal(name, slice_text(proto_method_name((enum proto_method)i)))) {
            reading->request->method = (enum proto_method)i;
            bool writes = i >= PROTO_METHOD_TAKE && i <= PROTO_METHOD_PURGE;
            reading->request->op.kind = writes ? (enum op_kind)(i - 1) : (enum op_kind)0;
            return STATUS_OK;
        }
    }
    violation_set(reading->violation, "method", name, RULE_METHOD_UNKNOWN);
    return STATUS_INCOMPATIBLE;
}

static enum status params_read(struct reading *reading, const msgpack_object *object)
{
    if (object->type != MSGPACK_OBJECT_MAP || object->via.map.size > PROTO_PARAMS_MAX) {
        return refuse(reading->violation, "parameters", "something else", RULE_PARAMS);
    }
    for (uint32_t i = 0; i < object->via.map.size; i++) {
        enum status st = param_read(reading, &object->via.map, i);
        if (st != STATUS_OK) {
            return st;
        }
    }
    if (reading->request->op.ns.base == NULL) {
        reading->request->op.ns = slice_text(NAMESPACE_DEFAULT);
    }
    return STATUS_OK;
}

/* One pair of the parameters. */
static enum status param_read(struct reading *reading, const msgpack_object_map *map, uint32_t idx)
{
    struct slice name;
    if (!proto_slice_of(&map->ptr[idx].key, &name)) {
        return refuse(reading->violation, "parameters", "another name", RULE_NAME);
    }
    const struct param *param = param_find(request_params, REQUEST_PARAM_COUNT, name);
    void *target = reading->request;
    uint32_t bit = 0;
    if (param != NULL) {
        bit = 1u << (param - request_params);
    } else {
        param = param_find(item_params, ITEM_PARAM_COUNT, name);
        if (param == NULL) {
            return unknown_read(map, idx, name, reading->violation);
        }
        bit = ITEM_BIT(param - item_params);
        target = &reading->single;
    }
    if ((reading->seen & bit) != 0) {
        return refuse(reading->violation, param->field, "twice", RULE_ONCE);
    }
    reading->seen |= bit;
    if ((param->methods & (1u << reading->request->method)) == 0) {
        const struct param here = {.field = param->field, .rule = RULE_NOT_HERE};
        return refuse_object(&here, &map->ptr[idx].val, reading->violation);
    }
    if (param->kind == PARAM_KIND_KEYS) {
        return keys_read(reading, &map->ptr[idx].val);
    }
    return value_read(param, &map->ptr[idx].val, target, reading->violation);
}

static enum status keys_read(struct reading *reading, const msgpack_object *object)
{
    struct violation *violation = reading->violation;
    if (object->type != MSGPACK_OBJECT_ARRAY) {
        const struct param keys = {.field = "keys", .rule = RULE_KEYS};
        return refuse_object(&keys, object, violation);
    }
    uint32_t count = object->via.array.size;
    if (count > KEYS_MAX) {
        violation_set_u64(violation, "keys", count, RULE_KEYS);
        return STATUS_INVALID;
    }
    struct proto_decoder *decoder = reading->decoder;
    decoder->items = proto_room(decoder->items, &decoder->item_cap, count, sizeof *decoder->items);
    for (uint32_t i = 0; i < count; i++) {
        enum status st = key_read(reading, &object->via.array.ptr[i], &decoder->items[i]);
        if (st != STATUS_OK) {
            return st;
        }
    }
    reading->request->op.keys = decoder->items;
    reading->request->op.key_count = count;
    return STATUS_OK;
}

/* One of many keys: text, or a map that says more about it. */
static enum status key_read(struct reading *reading, const msgpack_object *object,
                            struct key_item *item)
{
    *item = (struct key_item){0};
    if (proto_slice_of(object, &item->key)) {
        return STATUS_OK;
    }
    if (object->type != MSGPACK_OBJECT_MAP) {
        return refuse_object(&item_params[0], object, reading->violation);
    }
    if (object->via.map.size > PROTO_PARAMS_MAX) {
        return refuse(reading->violation, "keys", "a larger map", RULE_PARAMS);
    }
    return item_read(reading, &object->via.map, item);
}

static enum status item_read(struct reading *reading, const msgpack_object_map *map,
                             struct key_item *item)
{
    uint32_t seen = 0;
    for (uint32_t i = 0; i < map->size; i++) {
        struct slice name;
        if (!proto_slice_of(&map->ptr[i].key, &name)) {
            return refuse(reading->violation, "keys", "another name", RULE_NAME);
        }
        const struct param *param = param_find(item_params, ITEM_PARAM_COUNT, name);
        enum status st = STATUS_OK;
        if (param == NULL) {
            st = unknown_read(map, i, name, reading->violation);
        } else if ((seen & ITEM_BIT(param - item_params)) != 0) {
            st = refuse(reading->violation, param->field, "twice", RULE_ONCE);
        } else if ((param->methods & (1u << reading->request->method)) == 0) {
            const struct param here = {.field = param->field, .rule = RULE_NOT_HERE};
            st = refuse_object(&here, &map->ptr[i].val, reading->violation);
        } else {
            seen |= ITEM_BIT(param - item_params);
            st = value_read(param, &map->ptr[i].val, item, reading->violation);
        }
        if (st != STATUS_OK) {
            return st;
        }
    }
    return STATUS_OK;
}

static enum status value_read(const struct param *param, const msgpack_object *object, void *target,
                              struct violation *violation)
{
    uint8_t *place = (uint8_t *)target + param->offset;
    struct slice slice;
    bool fits = false;
    switch (param->kind) {
    case PARAM_KIND_SLICE:
        fits = proto_slice_of(object, &slice) && (param->max == 0 || slice.len <= param->max);
        if (fits) {
            memcpy(place, &slice, sizeof slice);
        }
        break;
    case PARAM_KIND_U64:
        fits = object->type == MSGPACK_OBJECT_POSITIVE_INTEGER;
        if (fits) {
            memcpy(place, &object->via.u64, sizeof object->via.u64);
        }
        break;
    case PARAM_KIND_U32:
    case PARAM_KIND_COUNT: {
        uint64_t min = param->kind == PARAM_KIND_COUNT ? 1 : 0;
        fits = object->type == MSGPACK_OBJECT_POSITIVE_INTEGER && object->via.u64 >= min &&
               object->via.u64 <= param->max;
        uint32_t number = fits ? (uint32_t)object->via.u64 : 0;
        memcpy(place, &number, sizeof number);
        break;
    }
    case PARAM_KIND_BOOL:
        fits = object->type == MSGPACK_OBJECT_BOOLEAN;
        if (fits) {
            memcpy(place, &object->via.boolean, sizeof object->via.boolean);
        }
        break;
    case PARAM_KIND_STATE: {
        enum lease_state state;
        fits = proto_slice_of(object, &slice) && lease_state_of(slice, &state);
        if (fits) {
            memcpy(place, &state, sizeof state);
        }
        break;
    }
    case PARAM_KIND_KEYS:
        break;
    }
    if (!fits) {
        return refuse_object(param, object, violation);
    }
    if (param->flag != NO_FLAG) {
        bool there = true;
        memcpy((uint8_t *)target + param->flag, &there, sizeof there);
    }
    return STATUS_OK;
}

/* A name that this version does not know: ignored, unless the caller says that it must be known. */
static enum status unknown_read(const msgpack_object_map *map, uint32_t idx, struct slice name,
                                struct violation *violation)
{
    if (name.len > 0 && name.base[0] == '!') {
        violation_set(violation, "parameters", name, RULE_UNKNOWN);
        return STATUS_INCOMPATIBLE;
    }
    for (uint32_t i = 0; i < idx; i++) {
        struct slice earlier;
        if (proto_slice_of(&map->ptr[i].key, &earlier) && slice_equal(earlier, name)) {
            violation_set(violation, "parameters", name, RULE_ONCE);
            return STATUS_INVALID;
        }
    }
    return STATUS_OK;
}

/* `key` and what stands beside it becomes the only one of the keys. */
static enum status keys_join(struct reading *reading)
{
    bool key = (reading->seen & ITEM_BIT(0)) != 0;
    bool keys = (reading->seen & (1u << PARAM_KEYS)) != 0;
    if (key && keys) {
        return refuse(reading->violation, "keys", "both", RULE_KEY_OR_KEYS);
    }
    if (!key) {
        for (size_t i = 1; i < ITEM_PARAM_COUNT; i++) {
            if ((reading->seen & ITEM_BIT(i)) != 0) {
                return refuse(reading->violation, item_params[i].field, "without key",
                              RULE_WITH_KEY);
            }
        }
        return STATUS_OK;
    }
    struct proto_decoder *decoder = reading->decoder;
    decoder->items = proto_room(decoder->items, &decoder->item_cap, 1, sizeof *decoder->items);
    decoder->items[0] = reading->single;
    reading->request->op.keys = decoder->items;
    reading->request->op.key_count = 1;
    return STATUS_OK;
}

static enum status deadline_check(const struct reading *reading, uint64_t now_ns)
{
    uint64_t deadline_ns = reading->request->deadline_ns;
    bool named = (reading->seen & (1u << PARAM_DEADLINE)) != 0;
    uint64_t last_ns = 0;
    bool far = add_u64(now_ns, ms_to_ns(DEADLINE_MS_MAX), &last_ns) && deadline_ns > last_ns;
    if (named && (deadline_ns == 0 || far)) {
        violation_set_u64(reading->violation, "deadline_ns", deadline_ns, RULE_DEADLINE);
        return STATUS_INVALID;
    }
    return STATUS_OK;
}

static const struct param *param_find(const struct param *params, size_t count, struct slice name)
{
    for (size_t i = 0; i < count; i++) {
        if (params[i].name_len == name.len &&
            memcmp(params[i].name, name.base, name.len) == 0) {
            return &params[i];
        }
    }
    return NULL;
}

/* The value in words: a text is quoted, so that "3" is told from 3. */
static enum status refuse_object(const struct param *param, const msgpack_object *object,
                                 struct violation *violation)
{
    struct slice slice;
    if (proto_slice_of(object, &slice)) {
        char quoted[VIOLATION_VALUE_LEN_MAX];
        size_t len = min_u64(slice.len, sizeof quoted - 2);
        quoted[0] = '"';
        memcpy(quoted + 1, slice.base, len);
        quoted[len + 1] = '"';
        violation_set(violation, param->field, slice_from(quoted, len + 2), param->rule);
        return STATUS_INVALID;
    }
    switch (object->type) {
    case MSGPACK_OBJECT_POSITIVE_INTEGER:
        violation_set_u64(violation, param->field, object->via.u64, param->rule);
        return STATUS_INVALID;
    case MSGPACK_OBJECT_NEGATIVE_INTEGER: {
        violation_set_u64(violation, param->field, 0 - (uint64_t)object->via.i64, param->rule);
        size_t room = sizeof violation->value - 2; /* 20 digits at most: it fits */
        memmove(violation->value + 1, violation->value, room);
        violation->value[0] = '-';
        return STATUS_INVALID;
    }
    case MSGPACK_OBJECT_NIL:
        return refuse(violation, param->field, "nil", param->rule);
    case MSGPACK_OBJECT_BOOLEAN:
        return refuse(violation, param->field, object->via.boolean ? "true" : "false", param->rule);
    case MSGPACK_OBJECT_FLOAT32:
    case MSGPACK_OBJECT_FLOAT64:
        return refuse(violation, param->field, "a float", param->rule);
    case MSGPACK_OBJECT_ARRAY:
        return refuse(violation, param->field, "an array", param->rule);
    case MSGPACK_OBJECT_MAP:
        return refuse(violation, param->field, "a map", param->rule);
    case MSGPACK_OBJECT_STR:
    case MSGPACK_OBJECT_BIN:
    case MSGPACK_OBJECT_EXT:
        break;
    }
    return refuse(violation, param->field, "an extension", param->rule);
}

static enum status refuse(struct violation *violation, const char *field, const char *what,
                          const char *rule)
{
    violation_set_text(violation, field, what, rule);
    return STATUS_INVALID;
}

static void pack_op(struct proto_map *map, const struct proto_request *request)
{
    const struct op *op = &request->op;
    if (op->ns.base != NULL && !slice_equal(op->ns, slice_text(NAMESPACE_DEFAULT))) {
        proto_map_text(map, "ns", op->ns);
    }
    proto_map_optional_text(map, "owner", op->owner);
    pack_keys(map, op);
    if (op->ttl_ms != 0) {
        proto_map_u64(map, "ttl_ms", op->ttl_ms);
    }
    if (op->destroy) {
        proto_map_bool(map, "destroy", true);
    }
    if (op->adopt) {
        proto_map_bool(map, "adopt", true);
    }
    if (op->adopt || op->grace_ms != 0) {
        proto_map_u64(map, "grace_ms", op->grace_ms);
    }
    if (op->reestablish) {
        proto_map_bool(map, "reestablish", true);
    }
    if (op->has_set_version) {
        proto_map_u64(map, "set_version", op->set_version);
    }
}

static void pack_keys(struct proto_map *map, const struct op *op)
{
    if (op->key_count == 1) {
        proto_map_text(map, "key", op->keys[0].key);
        pack_item_rest(map, &op->keys[0]);
        return;
    }
    if (op->key_count == 0) {
        return;
    }
    proto_map_name(map, "keys");
    (void)msgpack_pack_array(map->packer, op->key_count);
    for (uint32_t i = 0; i < op->key_count; i++) {
        const struct key_item *item = &op->keys[i];
        if (!item->has_if_token && item->meta.base == NULL && item->identity.base == NULL) {
            proto_pack_text(map->packer, item->key);
            continue;
        }
        struct proto_map own = proto_map_begin(map->out, map->packer);
        proto_map_text(&own, "key", item->key);
        pack_item_rest(&own, item);
        proto_map_end(&own);
    }
}

static void pack_item_rest(struct proto_map *map, const struct key_item *item)
{
    if (item->has_if_token) {
        proto_map_u64(map, "if_token", item->if_token);
    }
    proto_map_optional_bytes(map, "meta", item->meta);
    proto_map_optional_bytes(map, "identity", item->identity);
}
