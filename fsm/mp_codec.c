/* The forms that are too long to be written or read in line. Numbers stand big-endian. */
#include "fsm/mp_codec.h"

static uint8_t *put_number(uint8_t *at, uint64_t number, unsigned width);
static uint64_t take_number(struct mp_reader *reader, unsigned width);
static uint64_t swapped(uint64_t number);

uint8_t *mp_put_u64_long(uint8_t *at, uint64_t value)
{
    /* The width doubles with the lead byte: 8, 16, 32, 64 bits. */
    unsigned power = value > UINT8_MAX;
    power += value > UINT16_MAX;
    power += value > UINT32_MAX;
    *at = (uint8_t)(MP_LEAD_U8 + power);
    return put_number(at + 1, value, 1u << power);
}

uint8_t *mp_put_array_long(uint8_t *at, uint32_t count)
{
    bool short_form = count <= UINT16_MAX;
    *at = short_form ? MP_LEAD_ARRAY16 : MP_LEAD_ARRAY32;
    return put_number(at + 1, count, short_form ? 2 : 4);
}

uint8_t *mp_put_bin_long(uint8_t *at, size_t len)
{
    CHECK(len <= UINT32_MAX);
    unsigned power = len > UINT8_MAX;
    power += len > UINT16_MAX;
    *at = (uint8_t)(MP_LEAD_BIN8 + power);
    return put_number(at + 1, len, 1u << power);
}

/* Unsigned forms, and signed ones of a number that is not negative: not canonical, but clear. */
uint64_t mp_read_u64_long(struct mp_reader *reader)
{
    uint8_t lead = reader->at < reader->end ? *reader->at++ : MP_LEAD_NIL;
    if (lead <= MP_LEAD_FIXINT_LAST) {
        return lead;
    }
    if (lead >= MP_LEAD_U8 && lead <= MP_LEAD_U64) {
        return take_number(reader, 1u << (lead - MP_LEAD_U8));
    }
    if (lead >= MP_LEAD_I8 && lead <= MP_LEAD_I64) {
        unsigned width = 1u << (lead - MP_LEAD_I8);
        uint64_t number = take_number(reader, width);
        if (number >> (8 * width - 1) == 0) {
            return number;
        }
    }
    mp_fail(reader);
    return 0;
}

uint32_t mp_read_array_long(struct mp_reader *reader)
{
    uint8_t lead = reader->at < reader->end ? *reader->at++ : MP_LEAD_NIL;
    uint64_t count = 0;
    if ((lead & 0xf0) == MP_LEAD_FIXARRAY) {
        count = lead & 0x0fu;
    } else if (lead == MP_LEAD_ARRAY16 || lead == MP_LEAD_ARRAY32) {
        count = take_number(reader, lead == MP_LEAD_ARRAY16 ? 2 : 4);
    } else {
        mp_fail(reader);
    }
    if (count > mp_left(reader)) {
        mp_fail(reader); /* each element has at least a byte */
        return 0;
    }
    return (uint32_t)count;
}

struct slice mp_read_bin_long(struct mp_reader *reader)
{
    uint8_t lead = reader->at < reader->end ? *reader->at++ : MP_LEAD_NIL;
    uint64_t len = 0;
    if (lead >= MP_LEAD_BIN8 && lead <= MP_LEAD_BIN32) {
        len = take_number(reader, 1u << (lead - MP_LEAD_BIN8));
    } else {
        mp_fail(reader);
    }
    if (len > mp_left(reader)) {
        mp_fail(reader);
    }
    if (reader->failed) {
        return slice_from("", 0);
    }
    const uint8_t *bytes = reader->at;
    reader->at += len;
    return slice_from(bytes, (size_t)len);
}

/* All eight bytes are written, those that count first. */
static uint8_t *put_number(uint8_t *at, uint64_t number, unsigned width)
{
    uint64_t big = swapped(number << (64 - 8 * width));
    memcpy(at, &big, sizeof big);
    return at + width;
}

static uint64_t take_number(struct mp_reader *reader, unsigned width)
{
    if (mp_left(reader) < width) {
        mp_fail(reader);
        return 0;
    }
    uint64_t number = 0;
    if (mp_left(reader) >= sizeof number) {
        memcpy(&number, reader->at, sizeof number);
        number = swapped(number) >> (64 - 8 * width);
    } else {
        for (unsigned i = 0; i < width; i++) {
            number = number << 8 | reader->at[i];
        }
    }
    reader->at += width;
    return number;
}

/* To big-endian, or from it. */
static uint64_t swapped(uint64_t number)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    return __builtin_bswap64(number);
#else
    return number;
#endif
}
