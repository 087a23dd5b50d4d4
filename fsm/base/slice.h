/* A run of bytes that somebody else owns. A slice with len 0 may have any base, also NULL. */
#ifndef FSM_BASE_SLICE_H_
#define FSM_BASE_SLICE_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct slice {
    const uint8_t *base; /* borrowed */
    size_t len;          /* bytes */
};

static inline struct slice slice_from(const void *base, size_t len)
{
    return (struct slice){.base = (const uint8_t *)base, .len = len};
}

/* A slice of a C string, without its NUL. */
static inline struct slice slice_text(const char *text)
{
    return slice_from(text, strlen(text));
}

static inline bool slice_equal(struct slice a, struct slice b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.base, b.base, a.len) == 0);
}

/* Order of bytes, shorter first where one is a prefix of the other: <0, 0, >0. */
static inline int slice_compare(struct slice a, struct slice b)
{
    size_t shared = a.len < b.len ? a.len : b.len;
    int order = shared == 0 ? 0 : memcmp(a.base, b.base, shared);
    if (order != 0) {
        return order;
    }
    return a.len < b.len ? -1 : a.len > b.len ? 1 : 0;
}

static inline bool slice_starts_with(struct slice a, struct slice prefix)
{
    return a.len >= prefix.len && (prefix.len == 0 || memcmp(a.base, prefix.base, prefix.len) == 0);
}

#endif
