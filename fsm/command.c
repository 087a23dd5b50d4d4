/* The rules, field by field, and their words.
 *
 * What a kind does not use must be zero: a `destroy` on a take is a caller that believes something
 * else happened than did, and is told so instead of being ignored. Grace is bounded here by what
 * the retention of tombstones can be at most; the state machine, which knows the retention that is
 * set, refuses a longer one with STATUS_INVALID under the same field and rule. */
#include "fsm/command.h"

#include "fsm/base/utf8.h"

#define ENTRIES_MAX_MAX 100000000ull /* what a table may be told to hold: memory ends long before */

/* Which fields an operation of callers may carry. */
struct op_shape {
    const char *name;
    bool numbered;
    bool owner;
    bool ttl;
    bool keys;
    bool one_key;
};

/* Which fields its keys may carry. */
struct item_shape {
    bool guard;
    bool attachments; /* metadata and identity */
};

static const struct op_shape *shape_of(enum op_kind kind);
static enum status caller_op_validate(const struct op *op, const struct op_shape *shape,
                                      struct violation *out_violation);
static enum status flags_validate(const struct op *op, struct violation *out_violation);
static enum status keys_validate(const struct op *op, const struct op_shape *shape,
                                 struct violation *out_violation);
static enum status item_validate(const struct item_shape *shape, const struct key_item *item,
                                 struct violation *out_violation);
static enum status identity_validate(const struct op *op, struct violation *out_violation);
static enum status text_validate(const char *field, struct slice text, size_t len_max,
                                 const char *rule, struct violation *out_violation);
static enum status refuse(const char *field, struct slice value, const char *rule,
                          struct violation *out_violation);
static enum status refuse_u64(const char *field, uint64_t value, const char *rule,
                              struct violation *out_violation);

enum status op_validate(const struct op *op, struct violation *out_violation)
{
    switch (op->kind) {
    case OP_KIND_TAKE:
    case OP_KIND_CLAIM:
    case OP_KIND_RENEW:
    case OP_KIND_HEARTBEAT:
    case OP_KIND_RELEASE:
    case OP_KIND_RENEW_ALL:
    case OP_KIND_RELEASE_ALL:
    case OP_KIND_PURGE:
        return caller_op_validate(op, shape_of(op->kind), out_violation);
    case OP_KIND_OPEN_ORIGIN:
        return STATUS_OK;
    case OP_KIND_SETTLE:
        if (op->target_origin == 0) {
            return refuse_u64("origin", 0, RULE_AT_LEAST_1, out_violation);
        }
        if (op->target_sequence == 0) {
            return refuse_u64("sequence", 0, RULE_AT_LEAST_1, out_violation);
        }
        return STATUS_OK;
    case OP_KIND_BIRTH: {
        enum status st = identity_validate(op, out_violation);
        return st != STATUS_OK ? st : settings_validate(&op->settings, out_violation);
    }
    case OP_KIND_CONFIGURE:
        return settings_validate(&op->settings, out_violation);
    case OP_KIND_RESTORE:
    case OP_KIND_RECOVER:
        return identity_validate(op, out_violation);
    }
    return refuse_u64("operation", (uint64_t)op->kind, "must be one of the known operations",
                      out_violation);
}

enum status namespace_validate(struct slice ns, struct violation *out_violation)
{
    bool fine = ns.len >= 1 && ns.len <= NAMESPACE_LEN_MAX;
    for (size_t i = 0; fine && i < ns.len; i++) {
        uint8_t byte = ns.base[i];
        fine = (byte >= 'a' && byte <= 'z') || (byte >= '0' && byte <= '9') || byte == '.' ||
               byte == '_' || byte == ':' || byte == '-';
    }
    return fine ? STATUS_OK : refuse("namespace", ns, RULE_NAMESPACE, out_violation);
}

enum status key_validate(struct slice key, struct violation *out_violation)
{
    return text_validate("key", key, KEY_LEN_MAX, RULE_KEY, out_violation);
}

enum status owner_validate(struct slice owner, struct violation *out_violation)
{
    return text_validate("owner", owner, OWNER_LEN_MAX, RULE_OWNER, out_violation);
}

enum status settings_validate(const struct settings *settings, struct violation *out_violation)
{
    const struct {
        const char *field;
        const char *rule;
        uint64_t value;
        uint64_t min;
        uint64_t max;
    } rows[] = {
        {"leases_max", "must be 1..100000000", settings->leases_max, 1, ENTRIES_MAX_MAX},
        {"leases_per_namespace_max", "must be 0..100000000, 0 for none",
         settings->leases_per_namespace_max, 0, ENTRIES_MAX_MAX},
        {"tombstones_max", "must be 1..100000000", settings->tombstones_max, 1, ENTRIES_MAX_MAX},
        {"tombstone_retention_ms", "must be a whole number of milliseconds in 1..86400000",
         settings->tombstone_retention_ms, 1, TOMBSTONE_RETENTION_MS_MAX},
        {"departures_max", "must be 1..1024", settings->departures_max, 1, DEPARTURES_MAX_MAX},
        {"origins_max", "must be 1..1000000", settings->origins_max, 1, 1000000},
        {"origin_retention_ms", "must be a whole number of milliseconds in 1..86400000",
         settings->origin_retention_ms, 1, 86400000},
        {"removal_slice", "must be 1..1000", settings->removal_slice, 1, REMOVAL_SLICE_DEFAULT},
        {"voters_wanted", RULE_VOTERS, settings->voters_wanted, 1, 5},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (rows[i].value < rows[i].min || rows[i].value > rows[i].max) {
            return refuse_u64(rows[i].field, rows[i].value, rows[i].rule, out_violation);
        }
    }
    if (settings->voters_wanted % 2 == 0) {
        return refuse_u64("voters_wanted", settings->voters_wanted, RULE_VOTERS, out_violation);
    }
    return STATUS_OK;
}

struct settings settings_default(void)
{
    return (struct settings){
        .leases_max = LEASES_MAX_DEFAULT,
        .leases_per_namespace_max = 0,
        .tombstones_max = TOMBSTONES_MAX_DEFAULT,
        .tombstone_retention_ms = TOMBSTONE_RETENTION_MS_DEFAULT,
        .departures_max = DEPARTURES_MAX_DEFAULT,
        .origins_max = ORIGINS_MAX_DEFAULT,
        .origin_retention_ms = ORIGIN_RETENTION_MS_DEFAULT,
        .removal_slice = REMOVAL_SLICE_DEFAULT,
        .voters_wanted = VOTERS_WANTED_DEFAULT,
    };
}

bool op_kind_numbered(enum op_kind kind)
{
    return shape_of(kind)->numbered;
}

const char *op_kind_name(enum op_kind kind)
{
    return shape_of(kind)->name;
}

static const struct op_shape *shape_of(enum op_kind kind)
{
    static const struct op_shape shapes[] = {
        [OP_KIND_TAKE] = {"take", true, true, true, true, true},
        [OP_KIND_CLAIM] = {"claim", true, true, true, true, false},
        [OP_KIND_RENEW] = {"renew", true, true, true, true, false},
        [OP_KIND_HEARTBEAT] = {"heartbeat", true, true, true, true, true},
        [OP_KIND_RELEASE] = {"release", true, true, false, true, false},
        [OP_KIND_RENEW_ALL] = {"renew_all", true, true, true, false, false},
        [OP_KIND_RELEASE_ALL] = {"release_all", true, true, false, false, false},
        [OP_KIND_PURGE] = {"purge", true, false, false, false, false},
        [OP_KIND_OPEN_ORIGIN] = {.name = "open_origin"},
        [OP_KIND_SETTLE] = {.name = "settle"},
        [OP_KIND_BIRTH] = {.name = "birth"},
        [OP_KIND_CONFIGURE] = {.name = "configure"},
        [OP_KIND_RESTORE] = {.name = "restore"},
        [OP_KIND_RECOVER] = {.name = "recover"},
    };
    CHECK((size_t)kind < sizeof shapes / sizeof shapes[0] && shapes[kind].name != NULL);
    return &shapes[kind];
}

/* Operations that callers ask for. */
static enum status caller_op_validate(const struct op *op, const struct op_shape *shape,
                                      struct violation *out_violation)
{
    enum status st = namespace_validate(op->ns, out_violation);
    if (st != STATUS_OK) {
        return st;
    }
    if (shape->owner) {
        st = owner_validate(op->owner, out_violation);
        if (st != STATUS_OK) {
            return st;
        }
    } else if (op->owner.base != NULL) {
        return refuse("owner", op->owner, RULE_NOT_HERE, out_violation);
    }
    if (shape->ttl) {
        if (op->ttl_ms < TTL_MS_MIN || op->ttl_ms > TTL_MS_MAX) {
            return refuse_u64("ttl_ms", op->ttl_ms, RULE_TTL_MS, out_violation);
        }
    } else if (op->ttl_ms != 0) {
        return refuse_u64("ttl_ms", op->ttl_ms, RULE_NOT_HERE, out_violation);
    }
    st = flags_validate(op, out_violation);
    return st != STATUS_OK ? st : keys_validate(op, shape, out_violation);
}

static enum status flags_validate(const struct op *op, struct violation *out_violation)
{
    bool claim = op->kind == OP_KIND_CLAIM;
    if (op->destroy && !claim) {
        return refuse("destroy", slice_text("true"), RULE_NOT_HERE, out_violation);
    }
    if (op->adopt && !claim) {
        return refuse("adopt", slice_text("true"), RULE_NOT_HERE, out_violation);
    }
    if (!op->adopt && op->grace_ms != 0) {
        return refuse_u64("grace_ms", op->grace_ms, RULE_ONLY_ADOPT, out_violation);
    }
    if (op->grace_ms > TOMBSTONE_RETENTION_MS_MAX) {
        return refuse_u64("grace_ms", op->grace_ms, RULE_GRACE_MS, out_violation);
    }
    if (op->reestablish && op->kind != OP_KIND_RENEW) {
        return refuse("reestablish", slice_text("true"), RULE_NOT_HERE, out_violation);
    }
    if (op->has_set_version && op->kind != OP_KIND_RENEW_ALL) {
        return refuse_u64("set_version", op->set_version, RULE_NOT_HERE, out_violation);
    }
    return STATUS_OK;
}

static enum status keys_validate(const struct op *op, const struct op_shape *shape,
                                 struct violation *out_violation)
{
    if (!shape->keys) {
        return op->key_count == 0
                   ? STATUS_OK
                   : refuse_u64("keys", op->key_count, RULE_NOT_HERE, out_violation);
    }
    if (shape->one_key && op->key_count != 1) {
        return refuse_u64("keys", op->key_count, RULE_ONE_KEY, out_violation);
    }
    if (op->key_count < 1 || op->key_count > KEYS_MAX) {
        return refuse_u64("keys", op->key_count, RULE_KEYS, out_violation);
    }
    const struct item_shape items = {
        .guard = op->kind == OP_KIND_RENEW || op->kind == OP_KIND_HEARTBEAT ||
                 op->kind == OP_KIND_RELEASE || (op->kind == OP_KIND_CLAIM && op->destroy),
        .attachments = op->kind == OP_KIND_TAKE || op->kind == OP_KIND_CLAIM ||
                       (op->kind == OP_KIND_RENEW && op->reestablish),
    };
    for (uint32_t i = 0; i < op->key_count; i++) {
        enum status st = item_validate(&items, &op->keys[i], out_violation);
        if (st != STATUS_OK) {
            return st;
        }
    }
    return STATUS_OK;
}

static enum status item_validate(const struct item_shape *shape, const struct key_item *item,
                                 struct violation *out_violation)
{
    enum status st = key_validate(item->key, out_violation);
    if (st != STATUS_OK) {
        return st;
    }
    if (item->has_if_token && !shape->guard) {
        return refuse_u64("if_token", item->if_token, RULE_IF_TOKEN, out_violation);
    }
    if (item->meta.base != NULL && !shape->attachments) {
        return refuse("meta", item->meta, RULE_META_WHERE, out_violation);
    }
    if (item->meta.len > META_LEN_MAX) {
        return refuse("meta", item->meta, RULE_META, out_violation);
    }
    if (item->identity.base != NULL && !shape->attachments) {
        return refuse("identity", item->identity, RULE_META_WHERE, out_violation);
    }
    if (item->identity.len > IDENTITY_LEN_MAX) {
        return refuse("identity", item->identity, RULE_IDENTITY, out_violation);
    }
    return STATUS_OK;
}

/* The identity and the token floor of birth, restore and recovery. */
static enum status identity_validate(const struct op *op, struct violation *out_violation)
{
    static const uint8_t zero[CLUSTER_ID_LEN];
    if (memcmp(op->identity.id, zero, sizeof zero) == 0) {
        return refuse("cluster_id", slice_from(op->identity.id, CLUSTER_ID_LEN),
                      "must not be all zero", out_violation);
    }
    if (op->identity.generation == 0) {
        return refuse_u64("generation", 0, RULE_AT_LEAST_1, out_violation);
    }
    if (op->token_floor > TOKEN_FLOOR_MAX) {
        return refuse_u64("token_floor", op->token_floor, RULE_TOKEN_FLOOR, out_violation);
    }
    return STATUS_OK;
}

static enum status text_validate(const char *field, struct slice text, size_t len_max,
                                 const char *rule, struct violation *out_violation)
{
    if (text.len < 1 || text.len > len_max || utf8_check(text) != UTF8_OK) {
        return refuse(field, text, rule, out_violation);
    }
    return STATUS_OK;
}

static enum status refuse(const char *field, struct slice value, const char *rule,
                          struct violation *out_violation)
{
    violation_set(out_violation, field, value, rule);
    return STATUS_INVALID;
}

static enum status refuse_u64(const char *field, uint64_t value, const char *rule,
                              struct violation *out_violation)
{
    violation_set_u64(out_violation, field, value, rule);
    return STATUS_INVALID;
}
