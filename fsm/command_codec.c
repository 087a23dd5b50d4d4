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
#define ITEM_CAP_FIRST 64u
#define SETTINGS_COUNT 9u
#define FIELDS_OF_ITEM 4u
#define FIELDS_OF_RELEASE_ITEM 2u

static const uint8_t magic[4] = {'T', 'n', 'E', 'n'};

struct command_decoder {
    struct key_item *items; /* owned; keys of all commands decoded so far, in order */
    size_t item_count;
    size_t item_cap;
    struct command *commands; /* owned */
    size_t command_cap;
};

static uint32_t fields_in_all(enum op_kind kind);
static void encode_fields(const struct op *op, struct buf *out);
static void encode_caller_fields(const struct op *op, struct buf *out);
static void encode_items(const struct op *op, struct buf *out);
static void encode_identity(const struct op *op, struct buf *out);
static void encode_settings(const struct settings *settings, struct buf *out);
static enum status decode_one(struct command_decoder *decoder, struct mp_reader *reader,
                              struct command *out_command);
static void decode_fields(struct command_decoder *decoder, struct mp_reader *reader,
                          struct op *out_op);
static void decode_caller_fields(struct command_decoder *decoder, struct mp_reader *reader,
                                 struct op *out_op);
static void decode_items(struct command_decoder *decoder, struct mp_reader *reader,
                         struct op *out_op);
static void decode_identity(struct mp_reader *reader, struct op *out_op);
static void decode_settings(struct mp_reader *reader, struct settings *out_settings);
static struct key_item *items_add(struct command_decoder *decoder, size_t count);
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
    mp_write_array(out, fields_in_all(command->op.kind));
    mp_write_u64(out, (uint64_t)command->op.kind);
    if (numbered) {
        mp_write_u64(out, command->origin);
        mp_write_u64(out, command->sequence);
        mp_write_u64(out, command->confirmed);
    }
    encode_fields(&command->op, out);
}

struct command_decoder *command_decoder_create(void)
{
    struct command_decoder *decoder = calloc(1, sizeof *decoder);
    CHECK(decoder != NULL);
    return decoder;
}

void command_decoder_destroy(struct command_decoder *decoder)
{
    if (decoder == NULL) {
        return;
    }
    free(decoder->items);
    free(decoder->commands);
    free(decoder);
}

enum status command_decode(struct command_decoder *decoder, struct slice bytes,
                           struct command *out_command)
{
    struct command command;
    struct mp_reader reader = mp_reader_of(bytes);
    decoder->item_count = 0;
    enum status st = decode_one(decoder, &reader, &command);
    if (st == STATUS_OK) {
        st = mp_done(&reader) ? commands_finish(decoder, &command, 1) : STATUS_MALFORMED;
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

/* Of a whole command: the kind, the number where it has one, and what follows. */
static uint32_t fields_in_all(enum op_kind kind)
{
    static const uint8_t counts[] = {
        [OP_KIND_TAKE] = 6,      [OP_KIND_CLAIM] = 6,       [OP_KIND_RENEW] = 5,
        [OP_KIND_HEARTBEAT] = 5, [OP_KIND_RELEASE] = 3,     [OP_KIND_RENEW_ALL] = 4,
        [OP_KIND_RELEASE_ALL] = 2, [OP_KIND_PURGE] = 1,     [OP_KIND_OPEN_ORIGIN] = 2,
        [OP_KIND_SETTLE] = 2,    [OP_KIND_BIRTH] = 5,       [OP_KIND_CONFIGURE] = 1,
        [OP_KIND_RESTORE] = 4,   [OP_KIND_RECOVER] = 4,
    };
    CHECK((size_t)kind < sizeof counts && counts[kind] > 0);
    return (op_kind_numbered(kind) ? 4u : 1u) + counts[kind];
}

static void encode_fields(const struct op *op, struct buf *out)
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
        encode_caller_fields(op, out);
        return;
    case OP_KIND_OPEN_ORIGIN:
        mp_write_u64(out, op->node_id);
        mp_write_u64(out, op->nonce);
        return;
    case OP_KIND_SETTLE:
        mp_write_u64(out, op->target_origin);
        mp_write_u64(out, op->target_sequence);
        return;
    case OP_KIND_BIRTH:
        encode_identity(op, out);
        encode_settings(&op->settings, out);
        return;
    case OP_KIND_CONFIGURE:
        encode_settings(&op->settings, out);
        return;
    case OP_KIND_RESTORE:
    case OP_KIND_RECOVER:
        encode_identity(op, out);
        return;
    }
    CHECK(false);
}

static void encode_caller_fields(const struct op *op, struct buf *out)
{
    mp_write_bin(out, op->ns);
    if (op->kind == OP_KIND_PURGE) {
        return;
    }
    mp_write_bin(out, op->owner);
    if (op->kind == OP_KIND_RELEASE_ALL) {
        return;
    }
    if (op->kind != OP_KIND_RELEASE) {
        mp_write_u64(out, op->ttl_ms);
    }
    if (op->kind == OP_KIND_TAKE) {
        mp_write_bin(out, op->keys[0].key);
        mp_write_optional_bin(out, op->keys[0].meta);
        mp_write_optional_bin(out, op->keys[0].identity);
    } else if (op->kind == OP_KIND_HEARTBEAT) {
        mp_write_bin(out, op->keys[0].key);
        mp_write_optional_u64(out, op->keys[0].has_if_token, op->keys[0].if_token);
    } else if (op->kind == OP_KIND_RENEW_ALL) {
        mp_write_optional_u64(out, op->has_set_version, op->set_version);
    } else {
        if (op->kind == OP_KIND_CLAIM) {
            mp_write_bool(out, op->destroy);
            mp_write_optional_u64(out, op->adopt, op->grace_ms);
        } else if (op->kind == OP_KIND_RENEW) {
            mp_write_bool(out, op->reestablish);
        }
        encode_items(op, out);
    }
}

static void encode_items(const struct op *op, struct buf *out)
{
    bool release = op->kind == OP_KIND_RELEASE;
    mp_write_array(out, op->key_count);
    for (uint32_t i = 0; i < op->key_count; i++) {
        const struct key_item *item = &op->keys[i];
        mp_write_array(out, release ? FIELDS_OF_RELEASE_ITEM : FIELDS_OF_ITEM);
        mp_write_bin(out, item->key);
        mp_write_optional_u64(out, item->has_if_token, item->if_token);
        if (!release) {
            mp_write_optional_bin(out, item->meta);
            mp_write_optional_bin(out, item->identity);
        }
    }
}

static void encode_identity(const struct op *op, struct buf *out)
{
    mp_write_bin(out, slice_from(op->identity.id, CLUSTER_ID_LEN));
    mp_write_u64(out, op->identity.generation);
    mp_write_u64(out, op->identity.generation_random);
    mp_write_u64(out, op->token_floor);
}

static void encode_settings(const struct settings *settings, struct buf *out)
{
    mp_write_array(out, SETTINGS_COUNT);
    mp_write_u64(out, settings->leases_max);
    mp_write_u64(out, settings->leases_per_namespace_max);
    mp_write_u64(out, settings->tombstones_max);
    mp_write_u64(out, settings->tombstone_retention_ms);
    mp_write_u64(out, settings->departures_max);
    mp_write_u64(out, settings->origins_max);
    mp_write_u64(out, settings->origin_retention_ms);
    mp_write_u64(out, settings->removal_slice);
    mp_write_u64(out, settings->voters_wanted);
}

/* One command, without its pointer to the keys and without the rules: commands_finish adds both
 * once the array of keys has stopped moving. */
static enum status decode_one(struct command_decoder *decoder, struct mp_reader *reader,
                              struct command *out_command)
{
    *out_command = (struct command){0};
    uint32_t count = mp_read_array(reader);
    uint64_t kind = mp_read_u64_within(reader, OP_KIND_TAKE, OP_KIND_RECOVER);
    out_command->op.kind = (enum op_kind)kind;
    if (reader->failed || count != fields_in_all(out_command->op.kind)) {
        return STATUS_MALFORMED;
    }
    if (op_kind_numbered(out_command->op.kind)) {
        out_command->origin = mp_read_u64_within(reader, 1, UINT64_MAX);
        out_command->sequence = mp_read_u64_within(reader, 1, UINT64_MAX);
        out_command->confirmed = mp_read_u64_within(reader, 0, out_command->sequence - 1);
    }
    decode_fields(decoder, reader, &out_command->op);
    return reader->failed ? STATUS_MALFORMED : STATUS_OK;
}

static void decode_fields(struct command_decoder *decoder, struct mp_reader *reader,
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
        decode_caller_fields(decoder, reader, out_op);
        return;
    case OP_KIND_OPEN_ORIGIN:
        out_op->node_id = mp_read_u64(reader);
        out_op->nonce = mp_read_u64(reader);
        return;
    case OP_KIND_SETTLE:
        out_op->target_origin = mp_read_u64(reader);
        out_op->target_sequence = mp_read_u64(reader);
        return;
    case OP_KIND_BIRTH:
        decode_identity(reader, out_op);
        decode_settings(reader, &out_op->settings);
        return;
    case OP_KIND_CONFIGURE:
        decode_settings(reader, &out_op->settings);
        return;
    case OP_KIND_RESTORE:
    case OP_KIND_RECOVER:
        decode_identity(reader, out_op);
        return;
    }
    CHECK(false);
}

static void decode_caller_fields(struct command_decoder *decoder, struct mp_reader *reader,
                                 struct op *out_op)
{
    out_op->ns = mp_read_bin(reader);
    if (out_op->kind == OP_KIND_PURGE) {
        return;
    }
    out_op->owner = mp_read_bin(reader);
    if (out_op->kind == OP_KIND_RELEASE_ALL) {
        return;
    }
    if (out_op->kind != OP_KIND_RELEASE) {
        out_op->ttl_ms = mp_read_u64(reader);
    }
    if (out_op->kind == OP_KIND_TAKE) {
        struct key_item *item = items_add(decoder, 1);
        *item = (struct key_item){.key = mp_read_bin(reader)};
        item->meta = mp_read_optional_bin(reader);
        item->identity = mp_read_optional_bin(reader);
        out_op->key_count = 1;
    } else if (out_op->kind == OP_KIND_HEARTBEAT) {
        struct key_item *item = items_add(decoder, 1);
        *item = (struct key_item){.key = mp_read_bin(reader)};
        item->if_token = mp_read_optional_u64(reader, &item->has_if_token);
        out_op->key_count = 1;
    } else if (out_op->kind == OP_KIND_RENEW_ALL) {
        out_op->set_version = mp_read_optional_u64(reader, &out_op->has_set_version);
    } else {
        if (out_op->kind == OP_KIND_CLAIM) {
            out_op->destroy = mp_read_bool(reader);
            out_op->grace_ms = mp_read_optional_u64(reader, &out_op->adopt);
        } else if (out_op->kind == OP_KIND_RENEW) {
            out_op->reestablish = mp_read_bool(reader);
        }
        decode_items(decoder, reader, out_op);
    }
}

static void decode_items(struct command_decoder *decoder, struct mp_reader *reader,
                         struct op *out_op)
{
    bool release = out_op->kind == OP_KIND_RELEASE;
    uint32_t count = mp_read_array(reader);
    if (count > KEYS_MAX) {
        mp_fail(reader);
        return;
    }
    struct key_item *item = items_add(decoder, count);
    struct key_item *end = item + count;
    for (; item < end; item++) {
        mp_read_array_of(reader, release ? FIELDS_OF_RELEASE_ITEM : FIELDS_OF_ITEM);
        item->key = mp_read_bin(reader);
        item->if_token = mp_read_optional_u64(reader, &item->has_if_token);
        item->meta = release ? slice_from(NULL, 0) : mp_read_optional_bin(reader);
        item->identity = release ? slice_from(NULL, 0) : mp_read_optional_bin(reader);
    }
    out_op->key_count = count;
}

static void decode_identity(struct mp_reader *reader, struct op *out_op)
{
    struct slice id = mp_read_bin(reader);
    if (id.len == CLUSTER_ID_LEN) {
        memcpy(out_op->identity.id, id.base, CLUSTER_ID_LEN);
    } else {
        mp_fail(reader);
    }
    out_op->identity.generation = mp_read_u64(reader);
    out_op->identity.generation_random = mp_read_u64(reader);
    out_op->token_floor = mp_read_u64(reader);
}

static void decode_settings(struct mp_reader *reader, struct settings *out_settings)
{
    mp_read_array_of(reader, SETTINGS_COUNT);
    out_settings->leases_max = mp_read_u64(reader);
    out_settings->leases_per_namespace_max = mp_read_u64(reader);
    out_settings->tombstones_max = mp_read_u64(reader);
    out_settings->tombstone_retention_ms = mp_read_u64(reader);
    out_settings->departures_max = mp_read_u64(reader);
    out_settings->origins_max = mp_read_u64(reader);
    out_settings->origin_retention_ms = mp_read_u64(reader);
    out_settings->removal_slice = mp_read_u64(reader);
    out_settings->voters_wanted = mp_read_u64(reader);
}

/* So many more keys, to be filled in whole. There are bytes for each of them. */
static struct key_item *items_add(struct command_decoder *decoder, size_t count)
{
    size_t needed = decoder->item_count + count;
    if (needed > decoder->item_cap || decoder->items == NULL) {
        size_t cap = max_u64(needed, max_u64(ITEM_CAP_FIRST, decoder->item_cap * 2));
        struct key_item *items = realloc(decoder->items, cap * sizeof *items);
        CHECK(items != NULL);
        decoder->items = items;
        decoder->item_cap = cap;
    }
    struct key_item *first = decoder->items + decoder->item_count;
    decoder->item_count = needed;
    return first;
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
    struct mp_reader reader = mp_reader_of(body);
    for (uint32_t i = 0; i < count; i++) {
        enum status st = decode_one(decoder, &reader, &decoder->commands[i]);
        if (st != STATUS_OK) {
            return st;
        }
    }
    return mp_done(&reader) ? commands_finish(decoder, decoder->commands, count)
                            : STATUS_MALFORMED;
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
