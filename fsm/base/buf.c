/* Doubling growth: amortised constant cost per byte, at most twice the memory in use. */
#include "fsm/base/buf.h"

#include <stdlib.h>
#include <string.h>

#define BUF_CAP_FIRST 256u

static bool make_room(struct buf *buf, size_t len);

void buf_init(struct buf *buf, size_t len_max)
{
    CHECK(len_max > 0);
    *buf = (struct buf){.len_max = len_max};
}

void buf_deinit(struct buf *buf)
{
    free(buf->base);
    *buf = (struct buf){.len_max = buf->len_max};
}

void buf_clear(struct buf *buf)
{
    buf->len = 0;
    buf->overflown = false;
}

void buf_append_slow(struct buf *buf, const void *bytes, size_t len)
{
    if (len == 0 || !make_room(buf, len)) {
        return;
    }
    memcpy(buf->base + buf->len, bytes, len);
    buf->len += len;
}

void buf_append_zeros(struct buf *buf, size_t len)
{
    if (len == 0 || !make_room(buf, len)) {
        return;
    }
    memset(buf->base + buf->len, 0, len);
    buf->len += len;
}

void buf_append_u16(struct buf *buf, uint16_t value)
{
    uint8_t bytes[2] = {(uint8_t)value, (uint8_t)(value >> 8)};
    buf_append(buf, bytes, sizeof bytes);
}

void buf_append_u32(struct buf *buf, uint32_t value)
{
    uint8_t bytes[4];
    for (unsigned i = 0; i < 4; i++) {
        bytes[i] = (uint8_t)(value >> (8 * i));
    }
    buf_append(buf, bytes, sizeof bytes);
}

void buf_append_u64(struct buf *buf, uint64_t value)
{
    uint8_t bytes[8];
    for (unsigned i = 0; i < 8; i++) {
        bytes[i] = (uint8_t)(value >> (8 * i));
    }
    buf_append(buf, bytes, sizeof bytes);
}

uint8_t *buf_reserve_slow(struct buf *buf, size_t len)
{
    if (!make_room(buf, len)) {
        return NULL;
    }
    return buf->base + buf->len;
}

void buf_consume(struct buf *buf, size_t len)
{
    CHECK(len <= buf->len);
    buf->len -= len;
    if (len > 0 && buf->len > 0) {
        memmove(buf->base, buf->base + len, buf->len);
    }
}

int buf_write_cb(void *ctx, const char *bytes, size_t len)
{
    buf_append(ctx, bytes, len);
    return 0;
}

/* True when `len` more bytes fit; grows the memory where needed. */
static bool make_room(struct buf *buf, size_t len)
{
    if (buf->overflown || len > buf->len_max - buf->len) {
        buf->overflown = true;
        return false;
    }
    size_t needed = buf->len + len;
    if (needed > buf->cap) {
        size_t cap = buf->cap == 0 ? BUF_CAP_FIRST : buf->cap;
        while (cap < needed) {
            cap *= 2;
        }
        uint8_t *base = realloc(buf->base, cap);
        CHECK(base != NULL);
        buf->base = base;
        buf->cap = cap;
    }
    return true;
}
