/* Layout of an entry, integers little-endian:
 *
 *   0   4  magic "TnEn"
 *   4   4  CRC-32C of everything from byte 8 to the end of the commands
 *   8   2  format version; magic and version stay where they are in every version
 *   10  2  number of commands
 *   12  4  length of the commands in bytes
 *   16  8  stamp, cluster milliseconds
 *   24     the commands, then zeros up to a multiple of 8
 *
 * A command is a MessagePack array. Its first element is the kind; origin, sequence and confirmed
 * follow where the kind is numbered; then the fields of the kind, always all of them, nil where an
 * optional one is absent:
 *
 *   take         ns owner ttl_ms key meta? identity?
 *   claim        ns owner ttl_ms destroy grace_ms? [[key if_token? meta? identity?] ...]
 *   renew        ns owner ttl_ms reestablish [[key if_token? meta? identity?] ...]
 *   heartbeat    ns owner ttl_ms key if_token?
 *   release      ns owner [[key if_token?] ...]
 *   renew_all    ns owner ttl_ms set_version?
 *   release_all  ns owner
 *   purge        ns
 *   open_origin  node_id nonce
 *   settle       target_origin target_sequence
 *   birth        id generation generation_random token_floor [9 settings]
 *   configure    [9 settings]
 *   restore      id generation generation_random token_floor
 *   recover      the same
 *
 * Texts and identities are bin. grace_ms is nil where the claim does not adopt. */
#include "fsm/command_codec.h"

#include <stdlib.h>

#include "fsm/base/hash.h"
#include "fsm/mp_codec.h"

#define HEADER_LEN 24u
#define CRC_FROM 8u /* what the checksum covers starts here */
#define ZONE_CHUNK_LEN 8192u
#define COMMAND_DEPTH_MAX 3u /* command, list of keys, key */
#define COMMAND_ITEMS_MAX (16u + 5u * KEYS_MAX)
#define SETTINGS_COUNT 9u
#define FIELDS_OF_ITEM 4u
#define FIELDS_OF_RELEASE_ITEM 2u

static const uint8_t magic[4] = {'T', 'n', 'E', 'n'};

struct command_decoder {
    msgpack_zone zone;
    struct key_item *items; /* owned; keys of all commands decoded so far, in order */
    size_t item_count;
    size_t item_cap;
    struct command *commands; /* owned */
    size_t command_cap;
};

static size_t field_count(enum op_kind kind);
static void encode_fields(const struct op *op, msgpack_packer *packer);
static void encode_caller_fields(const struct op *op, msgpack_packer *packer);
static void encode_items(const struct op *op, msgpack_packer *packer);
static void encode_identity(const struct op *op, msgpack_packer *packer);
static void encode_settings(const struct settings *settings, msgpack_packer *packer);
static enum status decode_one(struct command_decoder *decoder, struct slice bytes,
                              struct command *out_command);
static void decode_fields(struct command_decoder *decoder, struct mp_fields *fields,
                          struct op *out_op);
static void decode_caller_fields(struct command_decoder *decoder, struct mp_fields *fields,
                                 struct op *out_op);
static void decode_items(struct command_decoder *decoder, struct mp_fields *fields,
                         struct op *out_op);
static void decode_identity(struct mp_fields *fields, struct op *out_op);
static void decode_settings(struct mp_fields *fields, struct settings *out_settings);
static struct key_item *item_add(struct command_decoder *decoder);
static enum status commands_finish(struct command_decoder *decoder, struct command *commands,
                                   uint32_t count);
static enum status decode_commands(struct command_decoder *decoder, struct slice body,
                                   uint32_t count);
static uint16_t load_u16(const uint8_t *at);
static uint32_t load_u32(const uint8_t *at);
static uint64_t load_u64(const uint8_t *at);
static size_t padded(size_t len);

void command_encode(const struct command *command, struct buf *out)
{
    struct violation violation;
    bool numbered = op_kind_numbered(command->op.kind);
    CHECK(op_validate(&command->op, &violation) == STATUS_OK);
    if (numbered) {
        CHECK(command->origin > 0 && command->sequence > command->confirmed);
    } else {
        CHECK(command->origin == 0 && command->sequence == 0 && command->confirmed == 0);
    }
    msgpack_packer packer;
    mp_packer_init(&packer, out);
    mp_pack_array(&packer, (numbered ? 4u : 1u) + field_count(command->op.kind));
    mp_pack_u64(&packer, (uint64_t)command->op.kind);
    if (numbered) {
        mp_pack_u64(&packer, command->origin);
        mp_pack_u64(&packer, command->sequence);
        mp_pack_u64(&packer, command->confirmed);
    }
    encode_fields(&command->op, &packer);
}

struct command_decoder *command_decoder_create(void)
{
    struct command_decoder *decoder = calloc(1, sizeof *decoder);
    CHECK(decoder != NULL);
    CHECK(msgpack_zone_init(&decoder->zone, ZONE_CHUNK_LEN));
    return decoder;
}

void command_decoder_destroy(struct command_decoder *decoder)
{
    if (decoder == NULL) {
        return;
    }
    msgpack_zone_destroy(&decoder->zone);
    free(decoder->items);
    free(decoder->commands);
    free(decoder);
}

enum status command_decode(struct command_decoder *decoder, struct slice bytes,
                           struct command *out_command)
{
    struct command command;
    decoder->item_count = 0;
    enum status st = decode_one(decoder, bytes, &command);
    if (st == STATUS_OK) {
        st = commands_finish(decoder, &command, 1);
    }
    if (st == STATUS_OK) {
        *out_command = command;
    }
    return st;
}

void entry_encode(uint64_t stamp_ms, struct slice commands, uint32_t command_count,
                  struct buf *out)
{
    CHECK(stamp_ms <= CLOCK_MS_MAX);
    CHECK(command_count <= UINT16_MAX);
    CHECK(commands.len <= ENTRY_LEN_MAX && entry_encoded_len(commands.len) <= ENTRY_LEN_MAX);
    struct buf covered; /* what the checksum covers of the header */
    buf_init(&covered, HEADER_LEN - CRC_FROM);
    buf_append_u16(&covered, ENTRY_FORMAT_VERSION);
    buf_append_u16(&covered, (uint16_t)command_count);
    buf_append_u32(&covered, (uint32_t)commands.len);
    buf_append_u64(&covered, stamp_ms);
    uint32_t crc = crc32c(0, covered.base, covered.len);
    crc = crc32c(crc, commands.base, commands.len);
    buf_append(out, magic, sizeof magic);
    buf_append_u32(out, crc);
    buf_append(out, covered.base, covered.len);
    buf_append(out, commands.base, commands.len);
    buf_append_zeros(out, padded(commands.len) - commands.len);
    buf_deinit(&covered);
}

size_t entry_encoded_len(size_t commands_len)
{
    return HEADER_LEN + padded(commands_len);
}

enum status entry_decode(struct command_decoder *decoder, struct slice bytes,
                         struct entry *out_entry, uint32_t *out_version)
{
    if (bytes.len < HEADER_LEN || bytes.len > ENTRY_LEN_MAX ||
        memcmp(bytes.base, magic, sizeof magic) != 0) {
        return STATUS_CORRUPT;
    }
    uint32_t version = load_u16(bytes.base + CRC_FROM);
    if (version != ENTRY_FORMAT_VERSION) {
        *out_version = version;
        return STATUS_INCOMPATIBLE;
    }
    uint32_t count = load_u16(bytes.base + 10);
    size_t body_len = load_u32(bytes.base + 12);
    uint64_t stamp_ms = load_u64(bytes.base + 16);
    if (body_len > ENTRY_LEN_MAX || entry_encoded_len(body_len) != bytes.len ||
        stamp_ms > CLOCK_MS_MAX) {
        return STATUS_CORRUPT;
    }
    uint32_t crc = crc32c(0, bytes.base + CRC_FROM, HEADER_LEN - CRC_FROM + body_len);
    if (crc != load_u32(bytes.base + sizeof magic)) {
        return STATUS_CORRUPT;
    }
    for (size_t i = HEADER_LEN + body_len; i < bytes.len; i++) {
        if (bytes.base[i] != 0) {
            return STATUS_CORRUPT;
        }
    }
    if (decode_commands(decoder, slice_from(bytes.base + HEADER_LEN, body_len), count) !=
        STATUS_OK) {
        return STATUS_CORRUPT;
    }
    *out_entry = (struct entry){
        .stamp_ms = stamp_ms,
        .commands = decoder->commands,
        .command_count = count,
    };
    return STATUS_OK;
}

/* How many fields follow the number (or the kind, where there is no number). */
static size_t field_count(enum op_kind kind)
{
    static const uint8_t counts[] = {
        [OP_KIND_TAKE] = 6,      [OP_KIND_CLAIM] = 6,       [OP_KIND_RENEW] = 5,
        [OP_KIND_HEARTBEAT] = 5, [OP_KIND_RELEASE] = 3,     [OP_KIND_RENEW_ALL] = 4,
        [OP_KIND_RELEASE_ALL] = 2, [OP_KIND_PURGE] = 1,     [OP_KIND_OPEN_ORIGIN] = 2,
        [OP_KIND_SETTLE] = 2,    [OP_KIND_BIRTH] = 5,       [OP_KIND_CONFIGURE] = 1,
        [OP_KIND_RESTORE] = 4,   [OP_KIND_RECOVER] = 4,
    };
    CHECK((size_t)kind < sizeof counts && counts[kind] > 0);
    return counts[kind];
}

static void encode_fields(const struct op *op, msgpack_packer *packer)
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
        encode_caller_fields(op, packer);
        return;
    case OP_KIND_OPEN_ORIGIN:
        mp_pack_u64(packer, op->node_id);
        mp_pack_u64(packer, op->nonce);
        return;
    case OP_KIND_SETTLE:
        mp_pack_u64(packer, op->target_origin);
        mp_pack_u64(packer, op->target_sequence);
        return;
    case OP_KIND_BIRTH:
        encode_identity(op, packer);
        encode_settings(&op->settings, packer);
        return;
    case OP_KIND_CONFIGURE:
        encode_settings(&op->settings, packer);
        return;
    case OP_KIND_RESTORE:
    case OP_KIND_RECOVER:
        encode_identity(op, packer);
        return;
    }
    CHECK(false);
}

static void encode_caller_fields(const struct op *op, msgpack_packer *packer)
{
    mp_pack_bin(packer, op->ns);
    if (op->kind == OP_KIND_PURGE) {
        return;
    }
    mp_pack_bin(packer, op->owner);
    if (op->kind == OP_KIND_RELEASE_ALL) {
        return;
    }
    if (op->kind != OP_KIND_RELEASE) {
        mp_pack_u64(packer, op->ttl_ms);
    }
    if (op->kind == OP_KIND_TAKE) {
        mp_pack_bin(packer, op->keys[0].key);
        mp_pack_optional_bin(packer, op->keys[0].meta);
        mp_pack_optional_bin(packer, op->keys[0].identity);
    } else if (op->kind == OP_KIND_HEARTBEAT) {
        mp_pack_bin(packer, op->keys[0].key);
        mp_pack_optional_u64(packer, op->keys[0].has_if_token, op->keys[0].if_token);
    } else if (op->kind == OP_KIND_RENEW_ALL) {
        mp_pack_optional_u64(packer, op->has_set_version, op->set_version);
    } else {
        if (op->kind == OP_KIND_CLAIM) {
            mp_pack_bool(packer, op->destroy);
            mp_pack_optional_u64(packer, op->adopt, op->grace_ms);
        } else if (op->kind == OP_KIND_RENEW) {
            mp_pack_bool(packer, op->reestablish);
        }
        encode_items(op, packer);
    }
}

static void encode_items(const struct op *op, msgpack_packer *packer)
{
    bool release = op->kind == OP_KIND_RELEASE;
    mp_pack_array(packer, op->key_count);
    for (uint32_t i = 0; i < op->key_count; i++) {
        const struct key_item *item = &op->keys[i];
        mp_pack_array(packer, release ? FIELDS_OF_RELEASE_ITEM : FIELDS_OF_ITEM);
        mp_pack_bin(packer, item->key);
        mp_pack_optional_u64(packer, item->has_if_token, item->if_token);
        if (!release) {
            mp_pack_optional_bin(packer, item->meta);
            mp_pack_optional_bin(packer, item->identity);
        }
    }
}

static void encode_identity(const struct op *op, msgpack_packer *packer)
{
    mp_pack_bin(packer, slice_from(op->identity.id, CLUSTER_ID_LEN));
    mp_pack_u64(packer, op->identity.generation);
    mp_pack_u64(packer, op->identity.generation_random);
    mp_pack_u64(packer, op->token_floor);
}

static void encode_settings(const struct settings *settings, msgpack_packer *packer)
{
    mp_pack_array(packer, SETTINGS_COUNT);
    mp_pack_u64(packer, settings->leases_max);
    mp_pack_u64(packer, settings->leases_per_namespace_max);
    mp_pack_u64(packer, settings->tombstones_max);
    mp_pack_u64(packer, settings->tombstone_retention_ms);
    mp_pack_u64(packer, settings->departures_max);
    mp_pack_u64(packer, settings->origins_max);
    mp_pack_u64(packer, settings->origin_retention_ms);
    mp_pack_u64(packer, settings->removal_slice);
    mp_pack_u64(packer, settings->voters_wanted);
}

/* One command, without its pointer to the keys and without the rules: commands_finish adds both
 * once the array of keys has stopped moving. */
static enum status decode_one(struct command_decoder *decoder, struct slice bytes,
                              struct command *out_command)
{
    static const struct mp_scan_limits limits = {
        .depth = COMMAND_DEPTH_MAX,
        .items = COMMAND_ITEMS_MAX,
        .len = MESSAGE_LEN_MAX,
    };
    msgpack_object object;
    if (!mp_open(bytes, &limits, &decoder->zone, &object)) {
        return STATUS_MALFORMED;
    }
    *out_command = (struct command){0};
    struct mp_fields fields = mp_fields_of(&object);
    uint64_t kind = mp_read_u64_within(&fields, OP_KIND_TAKE, OP_KIND_RECOVER);
    if (fields.failed) {
        return STATUS_MALFORMED;
    }
    out_command->op.kind = (enum op_kind)kind;
    if (op_kind_numbered(out_command->op.kind)) {
        out_command->origin = mp_read_u64_within(&fields, 1, UINT64_MAX);
        out_command->sequence = mp_read_u64_within(&fields, 1, UINT64_MAX);
        out_command->confirmed = mp_read_u64_within(&fields, 0, out_command->sequence - 1);
    }
    decode_fields(decoder, &fields, &out_command->op);
    return mp_fields_done(&fields) ? STATUS_OK : STATUS_MALFORMED;
}

static void decode_fields(struct command_decoder *decoder, struct mp_fields *fields,
                          struct op *out_op)
{
    switch (out_op->kind) {
    case OP_KIND_TAKE:
    case OP_KIND_CLAIM:
    case OP_KIND_RENEW:
    case OP_KIND_HEARTBEAT:
    case OP_KIND_RELEASE:
    case OP_KIND_RENEW_ALL:
    case OP_KIND_RELEASE_ALL:
    case OP_KIND_PURGE:
        decode_caller_fields(decoder, fields, out_op);
        return;
    case OP_KIND_OPEN_ORIGIN:
        out_op->node_id = mp_read_u64(fields);
        out_op->nonce = mp_read_u64(fields);
        return;
    case OP_KIND_SETTLE:
        out_op->target_origin = mp_read_u64(fields);
        out_op->target_sequence = mp_read_u64(fields);
        return;
    case OP_KIND_BIRTH:
        decode_identity(fields, out_op);
        decode_settings(fields, &out_op->settings);
        return;
    case OP_KIND_CONFIGURE:
        decode_settings(fields, &out_op->settings);
        return;
    case OP_KIND_RESTORE:
    case OP_KIND_RECOVER:
        decode_identity(fields, out_op);
        return;
    }
    CHECK(false);
}

static void decode_caller_fields(struct command_decoder *decoder, struct mp_fields *fields,
                                 struct op *out_op)
{
    out_op->ns = mp_read_bin(fields);
    if (out_op->kind == OP_KIND_PURGE) {
        return;
    }
    out_op->owner = mp_read_bin(fields);
    if (out_op->kind == OP_KIND_RELEASE_ALL) {
        return;
    }
    if (out_op->kind != OP_KIND_RELEASE) {
        out_op->ttl_ms = mp_read_u64(fields);
    }
    if (out_op->kind == OP_KIND_TAKE) {
        struct key_item *item = item_add(decoder);
        item->key = mp_read_bin(fields);
        item->meta = mp_read_optional_bin(fields);
        item->identity = mp_read_optional_bin(fields);
        out_op->key_count = 1;
    } else if (out_op->kind == OP_KIND_HEARTBEAT) {
        struct key_item *item = item_add(decoder);
        item->key = mp_read_bin(fields);
        item->if_token = mp_read_optional_u64(fields, &item->has_if_token);
        out_op->key_count = 1;
    } else if (out_op->kind == OP_KIND_RENEW_ALL) {
        out_op->set_version = mp_read_optional_u64(fields, &out_op->has_set_version);
    } else {
        if (out_op->kind == OP_KIND_CLAIM) {
            out_op->destroy = mp_read_bool(fields);
            out_op->grace_ms = mp_read_optional_u64(fields, &out_op->adopt);
        } else if (out_op->kind == OP_KIND_RENEW) {
            out_op->reestablish = mp_read_bool(fields);
        }
        decode_items(decoder, fields, out_op);
    }
}

static void decode_items(struct command_decoder *decoder, struct mp_fields *fields,
                         struct op *out_op)
{
    struct mp_fields list = mp_fields_of(mp_read_any(fields));
    out_op->key_count = list.left;
    while (!list.failed && list.left > 0) {
        struct mp_fields of_item = mp_fields_of(mp_read_any(&list));
        struct key_item *item = item_add(decoder);
        item->key = mp_read_bin(&of_item);
        item->if_token = mp_read_optional_u64(&of_item, &item->has_if_token);
        if (out_op->kind != OP_KIND_RELEASE) {
            item->meta = mp_read_optional_bin(&of_item);
            item->identity = mp_read_optional_bin(&of_item);
        }
        list.failed = list.failed || !mp_fields_done(&of_item);
    }
    fields->failed = fields->failed || list.failed;
}

static void decode_identity(struct mp_fields *fields, struct op *out_op)
{
    struct slice id = mp_read_bin(fields);
    if (id.len == CLUSTER_ID_LEN) {
        memcpy(out_op->identity.id, id.base, CLUSTER_ID_LEN);
    } else {
        fields->failed = true;
    }
    out_op->identity.generation = mp_read_u64(fields);
    out_op->identity.generation_random = mp_read_u64(fields);
    out_op->token_floor = mp_read_u64(fields);
}

static void decode_settings(struct mp_fields *fields, struct settings *out_settings)
{
    struct mp_fields list = mp_fields_of(mp_read_any(fields));
    out_settings->leases_max = mp_read_u64(&list);
    out_settings->leases_per_namespace_max = mp_read_u64(&list);
    out_settings->tombstones_max = mp_read_u64(&list);
    out_settings->tombstone_retention_ms = mp_read_u64(&list);
    out_settings->departures_max = mp_read_u64(&list);
    out_settings->origins_max = mp_read_u64(&list);
    out_settings->origin_retention_ms = mp_read_u64(&list);
    out_settings->removal_slice = mp_read_u64(&list);
    out_settings->voters_wanted = mp_read_u64(&list);
    fields->failed = fields->failed || !mp_fields_done(&list);
}

/* One more key, zeroed. The scan has bounded how many there can be. */
static struct key_item *item_add(struct command_decoder *decoder)
{
    if (decoder->item_count == decoder->item_cap) {
        size_t cap = decoder->item_cap == 0 ? 64 : decoder->item_cap * 2;
        struct key_item *items = realloc(decoder->items, cap * sizeof *items);
        CHECK(items != NULL);
        decoder->items = items;
        decoder->item_cap = cap;
    }
    struct key_item *item = &decoder->items[decoder->item_count++];
    *item = (struct key_item){0};
    return item;
}

/* Hand out the keys in the order in which they were laid out, and apply the rules. */
static enum status commands_finish(struct command_decoder *decoder, struct command *commands,
                                   uint32_t count)
{
    struct violation violation;
    struct key_item *next = decoder->items;
    for (uint32_t i = 0; i < count; i++) {
        struct op *op = &commands[i].op;
        if (op->key_count > 0) {
            op->keys = next;
            next += op->key_count;
        }
        if (op_validate(op, &violation) != STATUS_OK) {
            return STATUS_INVALID;
        }
    }
    CHECK(count == 0 || next == NULL || next == decoder->items + decoder->item_count);
    return STATUS_OK;
}

/* All commands of an entry; they must fill its body exactly. */
static enum status decode_commands(struct command_decoder *decoder, struct slice body,
                                   uint32_t count)
{
    static const struct mp_scan_limits limits = {
        .depth = COMMAND_DEPTH_MAX,
        .items = COMMAND_ITEMS_MAX,
        .len = ENTRY_LEN_MAX,
    };
    decoder->item_count = 0;
    if (count > body.len) {
        return STATUS_MALFORMED;
    }
    if (count > decoder->command_cap) {
        struct command *commands = realloc(decoder->commands, count * sizeof *commands);
        CHECK(commands != NULL);
        decoder->commands = commands;
        decoder->command_cap = count;
    }
    for (uint32_t i = 0; i < count; i++) {
        size_t len = 0;
        if (mp_scan(body, &limits, &len) != MP_SCAN_WHOLE) {
            return STATUS_MALFORMED;
        }
        enum status st =
            decode_one(decoder, slice_from(body.base, len), &decoder->commands[i]);
        if (st != STATUS_OK) {
            return st;
        }
        body = slice_from(body.base + len, body.len - len);
    }
    return body.len > 0 ? STATUS_MALFORMED
                        : commands_finish(decoder, decoder->commands, count);
}

static uint16_t load_u16(const uint8_t *at)
{
    return (uint16_t)(at[0] | at[1] << 8);
}

static uint32_t load_u32(const uint8_t *at)
{
    return (uint32_t)load_u16(at) | (uint32_t)load_u16(at + 2) << 16;
}

static uint64_t load_u64(const uint8_t *at)
{
    return (uint64_t)load_u32(at) | (uint64_t)load_u32(at + 4) << 32;
}

/* Up to a multiple of 8, as libraft wants its buffers. */
static size_t padded(size_t len)
{
    return (len + 7) / 8 * 8;
}
