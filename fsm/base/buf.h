/* A growing run of bytes with a stated maximum.
 *
 * Owns its memory. Appending past `len_max` marks the buffer as overflown and appends nothing more;
 * the writer checks once at the end with buf_overflown(). Running out of memory is fatal (CHECK):
 * on the apply path there is nothing else to do, elsewhere the maximum keeps it from happening. */
#ifndef FSM_BASE_BUF_H_
#define FSM_BASE_BUF_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "fsm/base/check.h"
#include "fsm/base/slice.h"

struct buf {
    uint8_t *base;
    size_t len;     /* bytes written */
    size_t cap;     /* bytes allocated */
    size_t len_max; /* never longer than this */
    bool overflown;
};

/* An empty buffer; allocates nothing yet. */
void buf_init(struct buf *buf, size_t len_max);
void buf_deinit(struct buf *buf);

/* Back to empty, memory kept for reuse, overflow forgotten. */
void buf_clear(struct buf *buf);

/* True when `len` more bytes can be written without making room. */
static inline bool buf_has_room(const struct buf *buf, size_t len)
{
    return len <= buf->cap - buf->len && len <= buf->len_max - buf->len && !buf->overflown;
}

/* The rest of buf_append: room has to be made, or there is none. */
void buf_append_slow(struct buf *buf, const void *bytes, size_t len);

/* Inline, because encoders call it for every few bytes. */
static inline void buf_append(struct buf *buf, const void *bytes, size_t len)
{
    if (!buf_has_room(buf, len)) {
        buf_append_slow(buf, bytes, len);
    } else if (len > 0) {
        memcpy(buf->base + buf->len, bytes, len);
        buf->len += len;
    }
}

static inline void buf_append_u8(struct buf *buf, uint8_t value)
{
    buf_append(buf, &value, 1);
}

void buf_append_zeros(struct buf *buf, size_t len);

/* Little-endian. */
void buf_append_u16(struct buf *buf, uint16_t value);
void buf_append_u32(struct buf *buf, uint32_t value);
void buf_append_u64(struct buf *buf, uint64_t value);

/* Room for `len` more bytes to be written in place: returns where, or NULL when over the maximum
 * (then overflown is set). Follow with buf_commit of at most that many. */
uint8_t *buf_reserve_slow(struct buf *buf, size_t len);

static inline uint8_t *buf_reserve(struct buf *buf, size_t len)
{
    return buf_has_room(buf, len) ? buf->base + buf->len : buf_reserve_slow(buf, len);
}

static inline void buf_commit(struct buf *buf, size_t len)
{
    CHECK(len <= buf->cap - buf->len);
    buf->len += len;
}

/* Drop the first `len` bytes (what a reader consumed). */
void buf_consume(struct buf *buf, size_t len);

static inline struct slice buf_slice(const struct buf *buf)
{
    return slice_from(buf->base, buf->len);
}

static inline bool buf_overflown(const struct buf *buf)
{
    return buf->overflown;
}

/* Write callback of the shape that msgpack_packer wants; `ctx` is a struct buf. Returns 0. */
int buf_write_cb(void *ctx, const char *bytes, size_t len);

#endif
