/* What the codecs of this folder share: writing and reading MessagePack (its specification,
 * "Formats"), straight into a buffer and straight out of bytes.
 *
 * An entry of 700 keys has some 4,000 objects, and every node reads it: a scan, a tree of objects
 * in a zone and calls through a packer's callback were two thirds of what applying it cost. Here
 * nothing is allocated and nothing is read twice; memory is bounded by what the input really has,
 * since a count is believed only as far as there are bytes for it (hazard I1).
 *
 * Written is the shortest form of each value, as by msgpack-c (tests compare). Read is any form of
 * the right type; a wrong type, a wrong count or an end too early fails the whole object. */
#ifndef FSM_MP_CODEC_H_
#define FSM_MP_CODEC_H_

#include "fsm/base/buf.h"

#define MP_FIXARRAY_COUNT_MAX 15u
#define MP_NUMBER_LEN_MAX 9u /* the longest number or header: a lead byte and 64 bits */

/* Lead bytes. */
enum mp_lead {
    MP_LEAD_FIXINT_LAST = 0x7f,
    MP_LEAD_FIXARRAY = 0x90, /* up to 0x9f */
    MP_LEAD_NIL = 0xc0,
    MP_LEAD_FALSE = 0xc2,
    MP_LEAD_TRUE = 0xc3,
    MP_LEAD_BIN8 = 0xc4,
    MP_LEAD_BIN16 = 0xc5,
    MP_LEAD_BIN32 = 0xc6,
    MP_LEAD_U8 = 0xcc, /* then 16, 32 and 64 bits */
    MP_LEAD_U64 = 0xcf,
    MP_LEAD_I8 = 0xd0, /* likewise */
    MP_LEAD_I64 = 0xd3,
    MP_LEAD_ARRAY16 = 0xdc,
    MP_LEAD_ARRAY32 = 0xdd,
};

/* --- Writing. A buffer that is too small is overflown afterwards, as with every buf_append. */

/* Into memory with room for MP_NUMBER_LEN_MAX bytes, all of which may be written; return the end of
 * what counts. */
uint8_t *mp_put_u64_long(uint8_t *at, uint64_t value);
uint8_t *mp_put_array_long(uint8_t *at, uint32_t count);
uint8_t *mp_put_bin_long(uint8_t *at, size_t len);

static inline uint8_t *mp_put_u64(uint8_t *at, uint64_t value)
{
    if (value > MP_LEAD_FIXINT_LAST) {
        return mp_put_u64_long(at, value);
    }
    *at = (uint8_t)value;
    return at + 1;
}

/* The header of so many bytes. */
static inline uint8_t *mp_put_bin_header(uint8_t *at, size_t len)
{
    if (len > UINT8_MAX) {
        return mp_put_bin_long(at, len);
    }
    at[0] = MP_LEAD_BIN8;
    at[1] = (uint8_t)len;
    return at + 2;
}

static inline uint8_t *mp_put_byte(uint8_t *at, uint8_t byte)
{
    *at = byte;
    return at + 1;
}

/* The header of a short array. */
static inline uint8_t *mp_put_array(uint8_t *at, uint32_t count)
{
    CHECK(count <= MP_FIXARRAY_COUNT_MAX);
    return mp_put_byte(at, (uint8_t)(MP_LEAD_FIXARRAY | count));
}

static inline uint8_t *mp_put_bool(uint8_t *at, bool value)
{
    return mp_put_byte(at, value ? MP_LEAD_TRUE : MP_LEAD_FALSE);
}

static inline void mp_write_u64(struct buf *out, uint64_t value)
{
    uint8_t bytes[MP_NUMBER_LEN_MAX];
    if (buf_has_room(out, sizeof bytes)) {
        out->len = (size_t)(mp_put_u64(out->base + out->len, value) - out->base);
    } else {
        buf_append(out, bytes, (size_t)(mp_put_u64(bytes, value) - bytes));
    }
}

static inline void mp_write_nil(struct buf *out)
{
    buf_append_u8(out, MP_LEAD_NIL);
}

static inline void mp_write_bool(struct buf *out, bool value)
{
    buf_append_u8(out, value ? MP_LEAD_TRUE : MP_LEAD_FALSE);
}

static inline void mp_write_optional_u64(struct buf *out, bool has, uint64_t value)
{
    if (has) {
        mp_write_u64(out, value);
    } else {
        mp_write_nil(out);
    }
}

static inline void mp_write_array(struct buf *out, size_t count)
{
    if (count <= MP_FIXARRAY_COUNT_MAX) {
        buf_append_u8(out, (uint8_t)(MP_LEAD_FIXARRAY | count));
    } else {
        uint8_t bytes[MP_NUMBER_LEN_MAX];
        CHECK(count <= UINT32_MAX);
        buf_append(out, bytes, (size_t)(mp_put_array_long(bytes, (uint32_t)count) - bytes));
    }
}

static inline void mp_write_bin(struct buf *out, struct slice bytes)
{
    uint8_t header[MP_NUMBER_LEN_MAX];
    if (buf_has_room(out, sizeof header)) {
        out->len = (size_t)(mp_put_bin_header(out->base + out->len, bytes.len) - out->base);
    } else {
        buf_append(out, header, (size_t)(mp_put_bin_header(header, bytes.len) - header));
    }
    buf_append(out, bytes.base, bytes.len);
}

/* An absent slice (base NULL) becomes nil. */
static inline void mp_write_optional_bin(struct buf *out, struct slice bytes)
{
    if (bytes.base == NULL) {
        mp_write_nil(out);
    } else {
        mp_write_bin(out, bytes);
    }
}

/* --- Reading. What fails moves the reader to its end, so that everything after it fails too, and
 * whoever reads asks once at the end. What a failed read returns is harmless: 0, false, empty. */

struct mp_reader {
    const uint8_t *at;
    const uint8_t *end;
    bool failed;
};

/* The forms that are not the common ones. */
uint64_t mp_read_u64_long(struct mp_reader *reader);
uint32_t mp_read_array_long(struct mp_reader *reader);
struct slice mp_read_bin_long(struct mp_reader *reader);

static inline struct mp_reader mp_reader_of(struct slice bytes)
{
    const uint8_t *base = bytes.len == 0 ? (const uint8_t *)"" : bytes.base;
    return (struct mp_reader){.at = base, .end = base + bytes.len};
}

static inline size_t mp_left(const struct mp_reader *reader)
{
    return (size_t)(reader->end - reader->at);
}

/* True when nothing failed and nothing is left over. */
static inline bool mp_done(const struct mp_reader *reader)
{
    return !reader->failed && reader->at == reader->end;
}

static inline void mp_fail(struct mp_reader *reader)
{
    reader->failed = true;
    reader->at = reader->end;
}

/* True when the next byte is this one; it is read then. */
static inline bool mp_read_lead(struct mp_reader *reader, uint8_t lead)
{
    if (reader->at == reader->end || *reader->at != lead) {
        return false;
    }
    reader->at++;
    return true;
}

/* How many elements follow; never more than there are bytes left. */
static inline uint32_t mp_read_array(struct mp_reader *reader)
{
    if (mp_left(reader) > MP_FIXARRAY_COUNT_MAX && (*reader->at & 0xf0) == MP_LEAD_FIXARRAY) {
        return *reader->at++ & 0x0fu;
    }
    return mp_read_array_long(reader);
}

/* The header of an array that must have so many elements. */
static inline void mp_read_array_of(struct mp_reader *reader, uint32_t count)
{
    if (mp_read_array(reader) != count) {
        mp_fail(reader);
    }
}

static inline uint64_t mp_read_u64(struct mp_reader *reader)
{
    if (reader->at < reader->end && *reader->at <= MP_LEAD_FIXINT_LAST) {
        return *reader->at++;
    }
    return mp_read_u64_long(reader);
}

/* A whole number in min..max; `min` is returned for any other, so that it is a value of an enum
 * whose first this is. */
static inline uint64_t mp_read_u64_within(struct mp_reader *reader, uint64_t min, uint64_t max)
{
    uint64_t value = mp_read_u64(reader);
    if (value < min || value > max) {
        mp_fail(reader);
        return min;
    }
    return value;
}

static inline bool mp_read_bool(struct mp_reader *reader)
{
    if (mp_read_lead(reader, MP_LEAD_TRUE)) {
        return true;
    }
    if (!mp_read_lead(reader, MP_LEAD_FALSE)) {
        mp_fail(reader);
    }
    return false;
}

/* Never absent: an empty field has a base and length 0. */
static inline struct slice mp_read_bin(struct mp_reader *reader)
{
    const uint8_t *at = reader->at;
    if (mp_left(reader) >= 2 && at[0] == MP_LEAD_BIN8 && mp_left(reader) - 2 >= at[1]) {
        reader->at = at + 2 + at[1];
        return slice_from(at + 2, at[1]);
    }
    return mp_read_bin_long(reader);
}

static inline struct slice mp_read_optional_bin(struct mp_reader *reader)
{
    return mp_read_lead(reader, MP_LEAD_NIL) ? slice_from(NULL, 0) : mp_read_bin(reader);
}

static inline uint64_t mp_read_optional_u64(struct mp_reader *reader, bool *out_has)
{
    *out_has = !mp_read_lead(reader, MP_LEAD_NIL);
    return *out_has ? mp_read_u64(reader) : 0;
}

#endif
