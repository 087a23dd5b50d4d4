/* Layouts, integers little-endian:
 *
 *   FORWARD           number 8, ticket 8, attempt 4, term 8, left_ms 4, command
 *   FORWARD_REPLY     ticket 8, attempt 4, status 2, result (of status 0 only)
 *   READ_POINT        ticket 8, term 8
 *   READ_POINT_REPLY  ticket 8, status 2, index 8, clock_ms 8
 *   QUERY             ticket 8, term 8, left_ms 4, request
 *   QUERY_REPLY       ticket 8, status 2, reply (of status 0 only)
 *   LEADER            term 8, leader 8, serving 1
 *   PEERS             count 2, then of each: id 8, role 1, address
 *   ADMIT             id 8, address
 *   ADMIT_REPLY       status 2, leader 8, address
 *
 * An address is one byte of length and so many bytes.
 *
 * One reader that remembers whether anything failed, so that each decoder is a list of fields and
 * one question at its end.
 *
 * Statuses have numbers of their own on the wire, since those of enum status move when its table
 * grows. A number that this version does not know becomes STATUS_UNKNOWN: whatever a newer node
 * meant, "may have been done" is the answer that is never wrong. */
#include "node/peer_frame.h"

struct reader {
    struct slice rest;
    bool failed;
};

struct wire_status {
    uint16_t number;
    enum status status;
};

#define WIRE_UNKNOWN 15u

/* Numbers are never reused. What is not listed travels as UNKNOWN. */
static const struct wire_status wire_statuses[] = {
    {0, STATUS_OK},           {1, STATUS_NO_LEADER},    {2, STATUS_NOT_LEADER},
    {3, STATUS_WRONG_TERM},   {4, STATUS_NOT_SERVING},  {5, STATUS_NO_QUORUM},
    {6, STATUS_OVERLOADED},   {7, STATUS_DISK_FULL},    {8, STATUS_LIMIT},
    {9, STATUS_DEADLINE},     {10, STATUS_CLOSING},     {11, STATUS_BUSY},
    {12, STATUS_UNINITIALISED}, {13, STATUS_QUARANTINED}, {14, STATUS_LEADERSHIP_LOST},
    {WIRE_UNKNOWN, STATUS_UNKNOWN},     {16, STATUS_INVALID},     {17, STATUS_TOO_LARGE},
    {18, STATUS_DENIED},      {19, STATUS_INCOMPATIBLE}, {20, STATUS_MALFORMED},
    {21, STATUS_INTERNAL},    {22, STATUS_NO_MEMORY},
};
#define WIRE_STATUS_COUNT (sizeof wire_statuses / sizeof wire_statuses[0])

static void append_status(struct buf *out, enum status status);
static void append_address(struct buf *out, struct slice address);
static uint64_t read_number(struct reader *reader, size_t len);
static uint16_t read_u16(struct reader *reader);
static uint32_t read_u32(struct reader *reader);
static uint64_t read_u64(struct reader *reader);
static bool read_bool(struct reader *reader);
static enum status read_status(struct reader *reader);
static struct slice read_bytes(struct reader *reader, size_t len);
static struct slice read_rest(struct reader *reader, size_t len_max);
static struct slice read_address(struct reader *reader);
static enum status verdict(const struct reader *reader);

void frame_forward_encode(const struct frame_forward *frame, struct buf *out)
{
    CHECK(frame->command.len > 0 && frame->command.len <= PEER_FRAME_COMMAND_LEN_MAX);
    buf_append_u64(out, frame->number);
    buf_append_u64(out, frame->ticket);
    buf_append_u32(out, frame->attempt);
    buf_append_u64(out, frame->term);
    buf_append_u32(out, frame->left_ms);
    buf_append(out, frame->command.base, frame->command.len);
}

enum status frame_forward_decode(struct slice payload, struct frame_forward *out_frame)
{
    struct reader reader = {.rest = payload};
    struct frame_forward frame = {.number = read_u64(&reader)};
    frame.ticket = read_u64(&reader);
    frame.attempt = read_u32(&reader);
    frame.term = read_u64(&reader);
    frame.left_ms = read_u32(&reader);
    frame.command = read_rest(&reader, PEER_FRAME_COMMAND_LEN_MAX);
    if (frame.command.len == 0 || frame.term == 0) {
        reader.failed = true;
    }
    if (!reader.failed) {
        *out_frame = frame;
    }
    return verdict(&reader);
}

void frame_forward_reply_encode(const struct frame_forward_reply *frame, struct buf *out)
{
    buf_append_u64(out, frame->ticket);
    buf_append_u32(out, frame->attempt);
    append_status(out, frame->status);
    if (frame->status == STATUS_OK) {
        CHECK(frame->result.len > 0);
        buf_append(out, frame->result.base, frame->result.len);
    }
}

enum status frame_forward_reply_decode(struct slice payload, struct frame_forward_reply *out_frame)
{
    struct reader reader = {.rest = payload};
    struct frame_forward_reply frame = {.ticket = read_u64(&reader)};
    frame.attempt = read_u32(&reader);
    frame.status = read_status(&reader);
    frame.result = read_rest(&reader, PEER_FRAME_MESSAGE_LEN_MAX);
    if ((frame.status == STATUS_OK) != (frame.result.len > 0)) {
        reader.failed = true;
    }
    if (!reader.failed) {
        *out_frame = frame;
    }
    return verdict(&reader);
}

void frame_read_point_encode(const struct frame_read_point *frame, struct buf *out)
{
    buf_append_u64(out, frame->ticket);
    buf_append_u64(out, frame->term);
}

enum status frame_read_point_decode(struct slice payload, struct frame_read_point *out_frame)
{
    struct reader reader = {.rest = payload};
    struct frame_read_point frame = {.ticket = read_u64(&reader)};
    frame.term = read_u64(&reader);
    if (!reader.failed) {
        *out_frame = frame;
    }
    return verdict(&reader);
}

void frame_read_point_reply_encode(const struct frame_read_point_reply *frame, struct buf *out)
{
    buf_append_u64(out, frame->ticket);
    append_status(out, frame->status);
    buf_append_u64(out, frame->index);
    buf_append_u64(out, frame->clock_ms);
}

enum status frame_read_point_reply_decode(struct slice payload,
                                          struct frame_read_point_reply *out_frame)
{
    struct reader reader = {.rest = payload};
    struct frame_read_point_reply frame = {.ticket = read_u64(&reader)};
    frame.status = read_status(&reader);
    frame.index = read_u64(&reader);
    frame.clock_ms = read_u64(&reader);
    if (frame.clock_ms > CLOCK_MS_MAX) {
        reader.failed = true;
    }
    if (!reader.failed) {
        *out_frame = frame;
    }
    return verdict(&reader);
}

void frame_query_encode(const struct frame_query *frame, struct buf *out)
{
    CHECK(frame->request.len > 0 && frame->request.len <= PEER_FRAME_MESSAGE_LEN_MAX);
    buf_append_u64(out, frame->ticket);
    buf_append_u64(out, frame->term);
    buf_append_u32(out, frame->left_ms);
    buf_append(out, frame->request.base, frame->request.len);
}

enum status frame_query_decode(struct slice payload, struct frame_query *out_frame)
{
    struct reader reader = {.rest = payload};
    struct frame_query frame = {.ticket = read_u64(&reader)};
    frame.term = read_u64(&reader);
    frame.left_ms = read_u32(&reader);
    frame.request = read_rest(&reader, PEER_FRAME_MESSAGE_LEN_MAX);
    if (frame.request.len == 0) {
        reader.failed = true;
    }
    if (!reader.failed) {
        *out_frame = frame;
    }
    return verdict(&reader);
}

void frame_query_reply_encode(const struct frame_query_reply *frame, struct buf *out)
{
    buf_append_u64(out, frame->ticket);
    append_status(out, frame->status);
    if (frame->status == STATUS_OK) {
        CHECK(frame->reply.len > 0);
        buf_append(out, frame->reply.base, frame->reply.len);
    }
}

enum status frame_query_reply_decode(struct slice payload, struct frame_query_reply *out_frame)
{
    struct reader reader = {.rest = payload};
    struct frame_query_reply frame = {.ticket = read_u64(&reader)};
    frame.status = read_status(&reader);
    frame.reply = read_rest(&reader, PEER_FRAME_MESSAGE_LEN_MAX);
    if ((frame.status == STATUS_OK) != (frame.reply.len > 0)) {
        reader.failed = true;
    }
    if (!reader.failed) {
        *out_frame = frame;
    }
    return verdict(&reader);
}

void frame_leader_encode(const struct frame_leader *frame, struct buf *out)
{
    buf_append_u64(out, frame->term);
    buf_append_u64(out, frame->leader_id);
    buf_append_u8(out, frame->serving ? 1 : 0);
}

enum status frame_leader_decode(struct slice payload, struct frame_leader *out_frame)
{
    struct reader reader = {.rest = payload};
    struct frame_leader frame = {.term = read_u64(&reader)};
    frame.leader_id = read_u64(&reader);
    frame.serving = read_bool(&reader);
    if (!reader.failed) {
        *out_frame = frame;
    }
    return verdict(&reader);
}

void frame_peers_encode(const struct frame_peer *peers, uint32_t count, struct buf *out)
{
    CHECK(count <= PEER_FRAME_PEERS_MAX);
    buf_append_u16(out, (uint16_t)count);
    for (uint32_t i = 0; i < count; i++) {
        CHECK(peers[i].id != 0 && peers[i].address.len > 0);
        buf_append_u64(out, peers[i].id);
        buf_append_u8(out, peers[i].role);
        append_address(out, peers[i].address);
    }
}

enum status frame_peers_decode(struct slice payload, uint32_t count_max,
                               struct frame_peer *out_peers, uint32_t *out_count)
{
    struct reader reader = {.rest = payload};
    uint32_t count = read_u16(&reader);
    if (count > count_max || count > PEER_FRAME_PEERS_MAX) {
        reader.failed = true;
    }
    for (uint32_t i = 0; i < count && !reader.failed; i++) {
        out_peers[i].id = read_u64(&reader);
        out_peers[i].role = (uint8_t)read_number(&reader, 1);
        out_peers[i].address = read_address(&reader);
        if (out_peers[i].id == 0 || out_peers[i].address.len == 0) {
            reader.failed = true;
        }
    }
    enum status st = verdict(&reader);
    if (st == STATUS_OK) {
        *out_count = count;
    }
    return st;
}

void frame_admit_encode(const struct frame_admit *frame, struct buf *out)
{
    CHECK(frame->node_id != 0 && frame->address.len > 0);
    buf_append_u64(out, frame->node_id);
    append_address(out, frame->address);
}

enum status frame_admit_decode(struct slice payload, struct frame_admit *out_frame)
{
    struct reader reader = {.rest = payload};
    struct frame_admit frame = {.node_id = read_u64(&reader)};
    frame.address = read_address(&reader);
    if (frame.node_id == 0 || frame.address.len == 0) {
        reader.failed = true;
    }
    enum status st = verdict(&reader);
    if (st == STATUS_OK) {
        *out_frame = frame;
    }
    return st;
}

void frame_admit_reply_encode(const struct frame_admit_reply *frame, struct buf *out)
{
    append_status(out, frame->status);
    buf_append_u64(out, frame->leader_id);
    append_address(out, frame->address);
}

enum status frame_admit_reply_decode(struct slice payload, struct frame_admit_reply *out_frame)
{
    struct reader reader = {.rest = payload};
    struct frame_admit_reply frame = {.status = read_status(&reader)};
    frame.leader_id = read_u64(&reader);
    frame.address = read_address(&reader);
    enum status st = verdict(&reader);
    if (st == STATUS_OK) {
        *out_frame = frame;
    }
    return st;
}

static void append_status(struct buf *out, enum status status)
{
    uint16_t number = WIRE_UNKNOWN;
    for (size_t i = 0; i < WIRE_STATUS_COUNT; i++) {
        if (wire_statuses[i].status == status) {
            number = wire_statuses[i].number;
        }
    }
    buf_append_u16(out, number);
}

/* One byte of length, then the bytes. */
static void append_address(struct buf *out, struct slice address)
{
    CHECK(address.len <= PEER_FRAME_ADDRESS_LEN_MAX);
    buf_append_u8(out, (uint8_t)address.len);
    buf_append(out, address.base, address.len);
}

static uint64_t read_number(struct reader *reader, size_t len)
{
    struct slice bytes = read_bytes(reader, len);
    uint64_t value = 0;
    for (size_t i = 0; i < bytes.len; i++) {
        value |= (uint64_t)bytes.base[i] << (8 * i);
    }
    return value;
}

static uint16_t read_u16(struct reader *reader)
{
    return (uint16_t)read_number(reader, 2);
}

static uint32_t read_u32(struct reader *reader)
{
    return (uint32_t)read_number(reader, 4);
}

static uint64_t read_u64(struct reader *reader)
{
    return read_number(reader, 8);
}

static bool read_bool(struct reader *reader)
{
    uint64_t value = read_number(reader, 1);
    if (value > 1) {
        reader->failed = true;
    }
    return value == 1;
}

static enum status read_status(struct reader *reader)
{
    uint16_t number = read_u16(reader);
    for (size_t i = 0; i < WIRE_STATUS_COUNT; i++) {
        if (wire_statuses[i].number == number) {
            return wire_statuses[i].status;
        }
    }
    return STATUS_UNKNOWN;
}

/* The next `len` bytes; none and failed when there are not as many. */
static struct slice read_bytes(struct reader *reader, size_t len)
{
    if (reader->failed || reader->rest.len < len) {
        reader->failed = true;
        return slice_from("", 0);
    }
    struct slice bytes = slice_from(reader->rest.base, len);
    if (len > 0) {
        reader->rest = slice_from(reader->rest.base + len, reader->rest.len - len);
    }
    return bytes;
}

static struct slice read_rest(struct reader *reader, size_t len_max)
{
    if (reader->rest.len > len_max) {
        reader->failed = true;
    }
    return read_bytes(reader, reader->rest.len);
}

/* Printable ASCII without blanks, so that it can go into a line of a file or a log as it is. */
static struct slice read_address(struct reader *reader)
{
    size_t len = (size_t)read_number(reader, 1);
    if (len > PEER_FRAME_ADDRESS_LEN_MAX) {
        reader->failed = true;
    }
    struct slice address = read_bytes(reader, len);
    for (size_t i = 0; i < address.len; i++) {
        if (address.base[i] <= 0x20 || address.base[i] >= 0x7f) {
            reader->failed = true;
        }
    }
    return address;
}

static enum status verdict(const struct reader *reader)
{
    return reader->failed || reader->rest.len > 0 ? STATUS_MALFORMED : STATUS_OK;
}
