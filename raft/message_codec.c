/* A reader that remembers whether it ever ran short, and one function per kind and direction. */
#include "raft/message_codec.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "fsm/base/check.h"
#include "fsm/base/hash.h"

#define HEADER_LEN 8u /* format, kind, version, flags, checksum */
#define CHECKSUM_AT 4u
#define ENTRY_HEADER_LEN 16u
#define CONFIGURATION_FORMAT 1u /* libraft's ENCODING_FORMAT */
#define CONFIGURATION_LEN_MAX (64u * 1024u)

/* No log gets there; a larger number is a mistake, and adding counts to it can't overflow. */
#define INDEX_MAX (UINT64_MAX / 4)

#define FLAG_DISRUPT_LEADER 1u /* request vote */
#define FLAG_PRE_VOTE 2u       /* request vote and its result */
#define FLAG_GRANTED 4u        /* request vote result */
#define FLAG_OK 1u             /* read confirm result */
#define FLAG_REFUSED 1u        /* snapshot ack */

struct reader {
    const uint8_t *at;
    size_t left;
    bool short_of; /* something was not there */
};

struct header {
    uint8_t format;
    uint8_t kind;
    uint8_t version;
    uint8_t flags;
};

static uint64_t read_number(struct reader *reader, unsigned len);
static const uint8_t *read_bytes(struct reader *reader, size_t len);
static bool read_whole(const struct reader *reader);

static uint32_t checksum(const uint8_t *bytes, size_t len);
static void put_header(struct buf *out, enum message_kind kind, uint8_t version, unsigned flags);
static void encode_body(const struct message *message, struct buf *out);
static void encode_append_entries(const struct raft_append_entries *args, struct buf *out);
static void encode_request_vote(const struct raft_request_vote *args, struct buf *out);
static void encode_request_vote_result(const struct raft_request_vote_result *args,
                                       struct buf *out);
static void encode_append_entries_result(const struct raft_append_entries_result *args,
                                         struct buf *out);
static void encode_snapshot_begin(const struct message *message, struct buf *out);
static void encode_timeout_now(const struct raft_timeout_now *args, struct buf *out);
static void encode_ours(const struct message *message, struct buf *out);

static enum status decode_body(const struct header *header, struct reader *reader,
                               struct message *out);
static enum status decode_append_entries(const struct header *header, struct reader *reader,
                                         struct raft_append_entries *out);
static enum status decode_entries(struct reader *reader, struct raft_append_entries *args);
static bool entry_valid(const struct raft_entry *entry, raft_term term);
static enum status decode_append_entries_result(const struct header *header,
                                                struct reader *reader,
                                                struct raft_append_entries_result *out);
static enum status decode_request_vote(const struct header *header, struct reader *reader,
                                       struct raft_request_vote *out);
static enum status decode_request_vote_result(const struct header *header, struct reader *reader,
                                              struct raft_request_vote_result *out);
static enum status decode_snapshot_begin(const struct header *header, struct reader *reader,
                                         struct message *out);
static enum status decode_timeout_now(const struct header *header, struct reader *reader,
                                      struct raft_timeout_now *out);
static enum status decode_confirm(const struct header *header, struct reader *reader,
                                  struct message_confirm *out);
static enum status decode_chunk(const struct header *header, struct reader *reader,
                                struct message_chunk *out);
static enum status decode_ack(const struct header *header, struct reader *reader,
                              struct message_ack *out);
static bool position_valid(raft_index index, raft_term index_term, raft_term term);

enum message_kind message_kind_of(const struct raft_message *message)
{
    switch (message->type) {
    case RAFT_APPEND_ENTRIES:
        return MESSAGE_KIND_APPEND_ENTRIES;
    case RAFT_APPEND_ENTRIES_RESULT:
        return MESSAGE_KIND_APPEND_ENTRIES_RESULT;
    case RAFT_REQUEST_VOTE:
        return MESSAGE_KIND_REQUEST_VOTE;
    case RAFT_REQUEST_VOTE_RESULT:
        return MESSAGE_KIND_REQUEST_VOTE_RESULT;
    case RAFT_INSTALL_SNAPSHOT:
        return MESSAGE_KIND_SNAPSHOT_BEGIN;
    case RAFT_TIMEOUT_NOW:
        return MESSAGE_KIND_TIMEOUT_NOW;
    }
    CHECK(false);
    return MESSAGE_KIND_TIMEOUT_NOW;
}

void message_encode(const struct message *message, struct buf *out)
{
    size_t start = out->len;
    encode_body(message, out);
    if (buf_overflown(out)) {
        return;
    }
    uint8_t *bytes = out->base + start;
    uint32_t crc = checksum(bytes, out->len - start);
    for (unsigned i = 0; i < 4; i++) {
        bytes[CHECKSUM_AT + i] = (uint8_t)(crc >> (8 * i));
    }
}

static void encode_body(const struct message *message, struct buf *out)
{
    switch (message->kind) {
    case MESSAGE_KIND_APPEND_ENTRIES:
        encode_append_entries(&message->raft.append_entries, out);
        break;
    case MESSAGE_KIND_APPEND_ENTRIES_RESULT:
        encode_append_entries_result(&message->raft.append_entries_result, out);
        break;
    case MESSAGE_KIND_REQUEST_VOTE:
        encode_request_vote(&message->raft.request_vote, out);
        break;
    case MESSAGE_KIND_REQUEST_VOTE_RESULT:
        encode_request_vote_result(&message->raft.request_vote_result, out);
        break;
    case MESSAGE_KIND_SNAPSHOT_BEGIN:
        encode_snapshot_begin(message, out);
        break;
    case MESSAGE_KIND_TIMEOUT_NOW:
        encode_timeout_now(&message->raft.timeout_now, out);
        break;
    case MESSAGE_KIND_READ_CONFIRM:
    case MESSAGE_KIND_READ_CONFIRM_RESULT:
    case MESSAGE_KIND_SNAPSHOT_CHUNK:
    case MESSAGE_KIND_SNAPSHOT_ACK:
        encode_ours(message, out);
        break;
    }
}

enum status message_decode(struct slice bytes, struct message *out_message)
{
    struct reader reader = {.at = bytes.base, .left = bytes.len};
    struct header header = {0};
    header.format = (uint8_t)read_number(&reader, 1);
    header.kind = (uint8_t)read_number(&reader, 1);
    header.version = (uint8_t)read_number(&reader, 1);
    header.flags = (uint8_t)read_number(&reader, 1);
    uint64_t crc = read_number(&reader, 4);
    if (reader.short_of || bytes.len > MESSAGE_PEER_LEN_MAX) {
        return STATUS_MALFORMED;
    }
    if (header.format != MESSAGE_FORMAT_VERSION) {
        return STATUS_INCOMPATIBLE;
    }
    if (crc != checksum(bytes.base, bytes.len)) {
        return STATUS_MALFORMED;
    }

    struct message message;
    memset(&message, 0, sizeof message);
    message.kind = (enum message_kind)header.kind;
    enum status status = decode_body(&header, &reader, &message);
    if (status == STATUS_OK) {
        *out_message = message;
    }
    return status;
}

void message_release(struct message *message)
{
    if (message->kind == MESSAGE_KIND_APPEND_ENTRIES) {
        struct raft_append_entries *args = &message->raft.append_entries;
        if (args->n_entries > 0) {
            raft_free(args->entries[0].batch);
            raft_free(args->entries);
        }
        args->entries = NULL;
        args->n_entries = 0;
    } else if (message->kind == MESSAGE_KIND_SNAPSHOT_BEGIN) {
        raft_configuration_close(&message->raft.install_snapshot.conf);
        raft_free(message->raft.install_snapshot.data.base);
        message->raft.install_snapshot.data.base = NULL;
    }
}

bool message_configuration_valid(struct slice bytes)
{
    struct reader reader = {.at = bytes.base, .left = bytes.len};
    uint64_t format = read_number(&reader, 1);
    uint64_t count = read_number(&reader, 8);
    if (reader.short_of || format != CONFIGURATION_FORMAT || count == 0 ||
        count > MESSAGE_MEMBERS_MAX || bytes.len % 8 != 0) {
        return false;
    }
    uint64_t ids[MESSAGE_MEMBERS_MAX];
    for (uint64_t i = 0; i < count; i++) {
        ids[i] = read_number(&reader, 8);
        char address[24];
        int len = snprintf(address, sizeof address, "%" PRIu64, ids[i]);
        CHECK(len > 0 && (size_t)len < sizeof address);
        const uint8_t *text = read_bytes(&reader, (size_t)len + 1);
        uint64_t role = read_number(&reader, 1);
        if (reader.short_of || ids[i] == 0 || memcmp(text, address, (size_t)len + 1) != 0 ||
            (role != RAFT_STANDBY && role != RAFT_VOTER && role != RAFT_SPARE)) {
            return false;
        }
        for (uint64_t j = 0; j < i; j++) {
            if (ids[j] == ids[i]) {
                return false;
            }
        }
    }
    /* Padded with zeros to a multiple of 8, and not further. */
    for (size_t i = 0; i < reader.left; i++) {
        if (reader.at[i] != 0) {
            return false;
        }
    }
    return reader.left < 8;
}

/* --- reading */

static uint64_t read_number(struct reader *reader, unsigned len)
{
    const uint8_t *bytes = read_bytes(reader, len);
    uint64_t value = 0;
    for (unsigned i = len; bytes != NULL && i > 0; i--) {
        value = value << 8 | bytes[i - 1];
    }
    return value;
}

static const uint8_t *read_bytes(struct reader *reader, size_t len)
{
    if (reader->short_of || len > reader->left) {
        reader->short_of = true;
        return NULL;
    }
    const uint8_t *bytes = reader->at;
    reader->at += len;
    reader->left -= len;
    return bytes;
}

/* Everything was there, and nothing is left over. */
static bool read_whole(const struct reader *reader)
{
    return !reader->short_of && reader->left == 0;
}

/* --- encoding */

static void put_header(struct buf *out, enum message_kind kind, uint8_t version, unsigned flags)
{
    buf_append_u8(out, MESSAGE_FORMAT_VERSION);
    buf_append_u8(out, (uint8_t)kind);
    buf_append_u8(out, version);
    buf_append_u8(out, (uint8_t)flags);
    buf_append_u32(out, 0); /* the checksum, filled in at the end */
}

/* Of everything but itself: what arrives damaged would be stored on a majority of disks. */
static uint32_t checksum(const uint8_t *bytes, size_t len)
{
    CHECK(len >= HEADER_LEN);
    uint32_t crc = crc32c(0, bytes, CHECKSUM_AT);
    return crc32c(crc, bytes + HEADER_LEN, len - HEADER_LEN);
}

static void encode_append_entries(const struct raft_append_entries *args, struct buf *out)
{
    CHECK(args->n_entries <= MESSAGE_ENTRIES_MAX);

    put_header(out, MESSAGE_KIND_APPEND_ENTRIES, args->version, 0);
    buf_append_u64(out, args->term);
    buf_append_u64(out, args->prev_log_index);
    buf_append_u64(out, args->prev_log_term);
    buf_append_u64(out, args->leader_commit);
    buf_append_u32(out, args->n_entries);
    for (unsigned i = 0; i < args->n_entries; i++) {
        const struct raft_entry *entry = &args->entries[i];
        buf_append_u64(out, entry->term);
        buf_append_u32(out, (uint32_t)entry->type);
        buf_append_u32(out, (uint32_t)entry->buf.len);
    }
    for (unsigned i = 0; i < args->n_entries; i++) {
        buf_append(out, args->entries[i].buf.base, args->entries[i].buf.len);
    }
}

static void encode_append_entries_result(const struct raft_append_entries_result *args,
                                         struct buf *out)
{
    put_header(out, MESSAGE_KIND_APPEND_ENTRIES_RESULT, args->version, 0);
    buf_append_u64(out, args->term);
    buf_append_u64(out, args->rejected);
    buf_append_u64(out, args->last_log_index);
    buf_append_u16(out, args->features);
    buf_append_u16(out, args->capacity);
}

static void encode_request_vote(const struct raft_request_vote *args, struct buf *out)
{
    unsigned flags = (args->disrupt_leader ? FLAG_DISRUPT_LEADER : 0) |
                     (args->pre_vote ? FLAG_PRE_VOTE : 0);
    put_header(out, MESSAGE_KIND_REQUEST_VOTE, args->version, flags);
    buf_append_u64(out, args->term);
    buf_append_u64(out, args->candidate_id);
    buf_append_u64(out, args->last_log_index);
    buf_append_u64(out, args->last_log_term);
}

static void encode_request_vote_result(const struct raft_request_vote_result *args,
                                       struct buf *out)
{
    unsigned flags = (args->pre_vote ? FLAG_PRE_VOTE : 0) |
                     (args->vote_granted ? FLAG_GRANTED : 0);
    put_header(out, MESSAGE_KIND_REQUEST_VOTE_RESULT, args->version, flags);
    buf_append_u64(out, args->term);
    buf_append_u16(out, args->features);
    buf_append_u16(out, args->capacity);
}

static void encode_snapshot_begin(const struct message *message, struct buf *out)
{
    const struct raft_install_snapshot *args = &message->raft.install_snapshot;
    struct raft_buffer conf;
    CHECK(raft_configuration_encode(&args->conf, &conf) == 0);

    put_header(out, MESSAGE_KIND_SNAPSHOT_BEGIN, args->version, 0);
    buf_append_u64(out, message->transfer);
    buf_append_u64(out, args->term);
    buf_append_u64(out, args->last_index);
    buf_append_u64(out, args->last_term);
    buf_append_u64(out, args->conf_index);
    buf_append_u64(out, args->data.len);
    buf_append_u32(out, (uint32_t)conf.len);
    buf_append(out, conf.base, conf.len);
    raft_free(conf.base);
}

static void encode_timeout_now(const struct raft_timeout_now *args, struct buf *out)
{
    put_header(out, MESSAGE_KIND_TIMEOUT_NOW, args->version, 0);
    buf_append_u64(out, args->term);
    buf_append_u64(out, args->last_log_index);
    buf_append_u64(out, args->last_log_term);
}

static void encode_ours(const struct message *message, struct buf *out)
{
    if (message->kind == MESSAGE_KIND_SNAPSHOT_CHUNK) {
        CHECK(message->chunk.bytes.len > 0 && message->chunk.bytes.len <= MESSAGE_CHUNK_LEN_MAX);
        put_header(out, message->kind, 0, 0);
        buf_append_u64(out, message->chunk.transfer);
        buf_append_u64(out, message->chunk.offset);
        buf_append(out, message->chunk.bytes.base, message->chunk.bytes.len);
    } else if (message->kind == MESSAGE_KIND_SNAPSHOT_ACK) {
        put_header(out, message->kind, 0, message->ack.refused ? FLAG_REFUSED : 0);
        buf_append_u64(out, message->ack.transfer);
        buf_append_u64(out, message->ack.received);
    } else {
        put_header(out, message->kind, 0, message->confirm.ok ? FLAG_OK : 0);
        buf_append_u64(out, message->confirm.term);
        buf_append_u64(out, message->confirm.nonce);
    }
}

/* --- decoding */

static enum status decode_body(const struct header *header, struct reader *reader,
                               struct message *out)
{
    switch (out->kind) {
    case MESSAGE_KIND_APPEND_ENTRIES:
        out->raft.type = RAFT_APPEND_ENTRIES;
        return decode_append_entries(header, reader, &out->raft.append_entries);
    case MESSAGE_KIND_APPEND_ENTRIES_RESULT:
        out->raft.type = RAFT_APPEND_ENTRIES_RESULT;
        return decode_append_entries_result(header, reader, &out->raft.append_entries_result);
    case MESSAGE_KIND_REQUEST_VOTE:
        out->raft.type = RAFT_REQUEST_VOTE;
        return decode_request_vote(header, reader, &out->raft.request_vote);
    case MESSAGE_KIND_REQUEST_VOTE_RESULT:
        out->raft.type = RAFT_REQUEST_VOTE_RESULT;
        return decode_request_vote_result(header, reader, &out->raft.request_vote_result);
    case MESSAGE_KIND_SNAPSHOT_BEGIN:
        out->raft.type = RAFT_INSTALL_SNAPSHOT;
        return decode_snapshot_begin(header, reader, out);
    case MESSAGE_KIND_TIMEOUT_NOW:
        out->raft.type = RAFT_TIMEOUT_NOW;
        return decode_timeout_now(header, reader, &out->raft.timeout_now);
    case MESSAGE_KIND_READ_CONFIRM:
    case MESSAGE_KIND_READ_CONFIRM_RESULT:
        return decode_confirm(header, reader, &out->confirm);
    case MESSAGE_KIND_SNAPSHOT_CHUNK:
        return decode_chunk(header, reader, &out->chunk);
    case MESSAGE_KIND_SNAPSHOT_ACK:
        return decode_ack(header, reader, &out->ack);
    }
    return STATUS_MALFORMED;
}

static enum status decode_append_entries(const struct header *header, struct reader *reader,
                                         struct raft_append_entries *out)
{
    out->version = header->version;
    out->term = read_number(reader, 8);
    out->prev_log_index = read_number(reader, 8);
    out->prev_log_term = read_number(reader, 8);
    out->leader_commit = read_number(reader, 8);
    uint64_t count = read_number(reader, 4);
    if (reader->short_of || header->flags != 0 || count > MESSAGE_ENTRIES_MAX ||
        out->leader_commit > INDEX_MAX ||
        !position_valid(out->prev_log_index, out->prev_log_term, out->term) ||
        count * ENTRY_HEADER_LEN > reader->left) {
        return STATUS_MALFORMED;
    }
    out->n_entries = (unsigned)count;
    if (count == 0) {
        return read_whole(reader) ? STATUS_OK : STATUS_MALFORMED;
    }
    return decode_entries(reader, out);
}

/* The headers of all entries come first, so that the length of the batch is known, and compared
 * with what is there, before memory is asked for it. */
static enum status decode_entries(struct reader *reader, struct raft_append_entries *args)
{
    unsigned count = args->n_entries;
    struct raft_entry entries[MESSAGE_ENTRIES_MAX];
    memset(entries, 0, sizeof entries);
    size_t batch_len = 0;
    for (unsigned i = 0; i < count; i++) {
        entries[i].term = read_number(reader, 8);
        uint64_t type = read_number(reader, 4);
        uint64_t len = read_number(reader, 4);
        if (type < RAFT_COMMAND || type > RAFT_CHANGE || len == 0 || len % 8 != 0 ||
            len > ENTRY_LEN_MAX) {
            return STATUS_MALFORMED;
        }
        entries[i].type = (enum raft_entry_type)type;
        entries[i].buf.len = (size_t)len;
        batch_len += (size_t)len;
    }
    const uint8_t *bytes = read_bytes(reader, batch_len);
    if (bytes == NULL || !read_whole(reader)) {
        return STATUS_MALFORMED;
    }

    uint8_t *batch = raft_malloc(batch_len);
    args->entries = raft_malloc(count * sizeof *args->entries);
    if (batch == NULL || args->entries == NULL) {
        raft_free(batch);
        raft_free(args->entries);
        return STATUS_NO_MEMORY;
    }
    memcpy(batch, bytes, batch_len);
    uint8_t *at = batch;
    for (unsigned i = 0; i < count; i++) {
        entries[i].batch = batch;
        entries[i].buf.base = at;
        at += entries[i].buf.len;
        if (!entry_valid(&entries[i], args->term)) {
            raft_free(batch);
            raft_free(args->entries);
            return STATUS_MALFORMED;
        }
    }
    memcpy(args->entries, entries, count * sizeof *entries);
    return STATUS_OK;
}

static bool entry_valid(const struct raft_entry *entry, raft_term term)
{
    if (entry->term == 0 || entry->term > term) {
        return false;
    }
    return entry->type != RAFT_CHANGE ||
           message_configuration_valid(slice_from(entry->buf.base, entry->buf.len));
}

static enum status decode_append_entries_result(const struct header *header,
                                                struct reader *reader,
                                                struct raft_append_entries_result *out)
{
    out->version = header->version;
    out->term = read_number(reader, 8);
    out->rejected = read_number(reader, 8);
    out->last_log_index = read_number(reader, 8);
    out->features = (unsigned short)read_number(reader, 2);
    out->capacity = (unsigned short)read_number(reader, 2);
    bool valid = read_whole(reader) && header->flags == 0 && out->term <= INDEX_MAX &&
                 out->rejected <= INDEX_MAX;
    return valid ? STATUS_OK : STATUS_MALFORMED;
}

static enum status decode_request_vote(const struct header *header, struct reader *reader,
                                       struct raft_request_vote *out)
{
    out->version = header->version;
    out->term = read_number(reader, 8);
    out->candidate_id = read_number(reader, 8);
    out->last_log_index = read_number(reader, 8);
    out->last_log_term = read_number(reader, 8);
    out->disrupt_leader = (header->flags & FLAG_DISRUPT_LEADER) != 0;
    out->pre_vote = (header->flags & FLAG_PRE_VOTE) != 0;
    bool valid = read_whole(reader) &&
                 (header->flags & ~(FLAG_DISRUPT_LEADER | FLAG_PRE_VOTE)) == 0 &&
                 out->candidate_id != 0 &&
                 position_valid(out->last_log_index, out->last_log_term, out->term);
    return valid ? STATUS_OK : STATUS_MALFORMED;
}

static enum status decode_request_vote_result(const struct header *header, struct reader *reader,
                                              struct raft_request_vote_result *out)
{
    out->version = header->version;
    out->term = read_number(reader, 8);
    out->features = (unsigned short)read_number(reader, 2);
    out->capacity = (unsigned short)read_number(reader, 2);
    out->vote_granted = (header->flags & FLAG_GRANTED) != 0;
    out->pre_vote = (header->flags & FLAG_PRE_VOTE) != 0;
    bool valid = read_whole(reader) && (header->flags & ~(FLAG_GRANTED | FLAG_PRE_VOTE)) == 0 &&
                 out->term <= INDEX_MAX;
    return valid ? STATUS_OK : STATUS_MALFORMED;
}

static enum status decode_snapshot_begin(const struct header *header, struct reader *reader,
                                         struct message *out)
{
    struct raft_install_snapshot *args = &out->raft.install_snapshot;
    args->version = header->version;
    out->transfer = read_number(reader, 8);
    args->term = read_number(reader, 8);
    args->last_index = read_number(reader, 8);
    args->last_term = read_number(reader, 8);
    args->conf_index = read_number(reader, 8);
    uint64_t data_len = read_number(reader, 8);
    uint64_t conf_len = read_number(reader, 4);
    if (reader->short_of || header->flags != 0 || args->last_index == 0 ||
        !position_valid(args->last_index, args->last_term, args->term) || args->conf_index == 0 ||
        args->conf_index > args->last_index || data_len == 0 ||
        data_len > MESSAGE_SNAPSHOT_LEN_MAX || conf_len > CONFIGURATION_LEN_MAX) {
        return STATUS_MALFORMED;
    }
    const uint8_t *conf = read_bytes(reader, (size_t)conf_len);
    if (conf == NULL || !read_whole(reader) ||
        !message_configuration_valid(slice_from(conf, (size_t)conf_len))) {
        return STATUS_MALFORMED;
    }
    args->data.len = (size_t)data_len;

    /* libraft's buffer is not const, though it only reads. */
    uint8_t *copy = raft_malloc((size_t)conf_len);
    if (copy == NULL) {
        return STATUS_NO_MEMORY;
    }
    memcpy(copy, conf, (size_t)conf_len);
    struct raft_buffer buffer = {.base = copy, .len = (size_t)conf_len};
    int rv = raft_configuration_decode(&buffer, &args->conf);
    raft_free(copy);
    if (rv != 0) {
        return rv == RAFT_NOMEM ? STATUS_NO_MEMORY : STATUS_MALFORMED;
    }
    return STATUS_OK;
}

static enum status decode_timeout_now(const struct header *header, struct reader *reader,
                                      struct raft_timeout_now *out)
{
    out->version = header->version;
    out->term = read_number(reader, 8);
    out->last_log_index = read_number(reader, 8);
    out->last_log_term = read_number(reader, 8);
    bool valid = read_whole(reader) && header->flags == 0 &&
                 position_valid(out->last_log_index, out->last_log_term, out->term);
    return valid ? STATUS_OK : STATUS_MALFORMED;
}

static enum status decode_confirm(const struct header *header, struct reader *reader,
                                  struct message_confirm *out)
{
    out->term = read_number(reader, 8);
    out->nonce = read_number(reader, 8);
    out->ok = (header->flags & FLAG_OK) != 0;
    unsigned allowed = header->kind == MESSAGE_KIND_READ_CONFIRM_RESULT ? FLAG_OK : 0;
    bool valid = read_whole(reader) && header->version == 0 && (header->flags & ~allowed) == 0;
    return valid ? STATUS_OK : STATUS_MALFORMED;
}

static enum status decode_chunk(const struct header *header, struct reader *reader,
                                struct message_chunk *out)
{
    out->transfer = read_number(reader, 8);
    out->offset = read_number(reader, 8);
    if (reader->short_of || header->version != 0 || header->flags != 0 || reader->left == 0 ||
        reader->left > MESSAGE_CHUNK_LEN_MAX ||
        out->offset > MESSAGE_SNAPSHOT_LEN_MAX) {
        return STATUS_MALFORMED;
    }
    out->bytes = slice_from(reader->at, reader->left);
    return STATUS_OK;
}

static enum status decode_ack(const struct header *header, struct reader *reader,
                              struct message_ack *out)
{
    out->transfer = read_number(reader, 8);
    out->received = read_number(reader, 8);
    out->refused = (header->flags & FLAG_REFUSED) != 0;
    bool valid = read_whole(reader) && header->version == 0 &&
                 (header->flags & ~FLAG_REFUSED) == 0;
    return valid ? STATUS_OK : STATUS_MALFORMED;
}

/* A place in a log as libraft takes it for granted: a term where there is an index, no term where
 * there is none, and no term later than the sender's. */
static bool position_valid(raft_index index, raft_term index_term, raft_term term)
{
    return term != 0 && term <= INDEX_MAX && index <= INDEX_MAX && index_term <= term &&
           (index == 0) == (index_term == 0);
}
