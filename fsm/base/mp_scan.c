/* An explicit stack of "elements left" per open container stands in for recursion. */
#include "fsm/base/mp_scan.h"

#include "fsm/base/check.h"

/* What follows a lead byte. */
struct lead {
    uint8_t len_width; /* bytes of length or count that follow; 0: none */
    bool refused;
    bool container;
    bool map;
    uint64_t count; /* elements of a short container, or payload bytes of anything else */
};

static struct lead lead_of(uint8_t byte);
static struct lead lead_of_long(uint8_t byte);

enum mp_scan_verdict mp_scan(struct slice bytes, const struct mp_scan_limits *limits,
                             size_t *out_len)
{
    CHECK(limits->depth > 0 && limits->depth <= MP_SCAN_DEPTH_MAX);
    uint64_t left[MP_SCAN_DEPTH_MAX + 1] = {1};
    uint32_t top = 0;
    uint64_t items = 0;
    size_t at = 0;
    for (;;) {
        while (left[top] == 0) {
            if (top == 0) {
                *out_len = at;
                return at <= limits->len ? MP_SCAN_WHOLE : MP_SCAN_REFUSED;
            }
            top--;
        }
        left[top]--;
        if (at > limits->len || ++items > limits->items) {
            return MP_SCAN_REFUSED;
        }
        if (at >= bytes.len) {
            return at >= limits->len ? MP_SCAN_REFUSED : MP_SCAN_MORE;
        }
        struct lead lead = lead_of(bytes.base[at++]);
        if (lead.refused) {
            return MP_SCAN_REFUSED;
        }
        if (lead.len_width > 0) {
            if (bytes.len - at < lead.len_width) {
                return MP_SCAN_MORE;
            }
            lead.count = 0;
            for (unsigned i = 0; i < lead.len_width; i++) {
                lead.count = lead.count << 8 | bytes.base[at++];
            }
        }
        if (lead.container) {
            uint64_t elements = lead.map ? 2 * lead.count : lead.count;
            if (elements > limits->items - items || top >= limits->depth) {
                return MP_SCAN_REFUSED;
            }
            left[++top] = elements;
            continue;
        }
        if (lead.count > limits->len || at + lead.count > limits->len) {
            return MP_SCAN_REFUSED;
        }
        if (lead.count > bytes.len - at) {
            return MP_SCAN_MORE;
        }
        at += (size_t)lead.count;
    }
}

static struct lead lead_of(uint8_t byte)
{
    if (byte <= 0x7f || byte >= 0xe0) { /* positive and negative fixint */
        return (struct lead){0};
    }
    if (byte <= 0x8f) {
        return (struct lead){.container = true, .map = true, .count = byte & 0x0fu};
    }
    if (byte <= 0x9f) {
        return (struct lead){.container = true, .count = byte & 0x0fu};
    }
    if (byte <= 0xbf) { /* fixstr */
        return (struct lead){.count = byte & 0x1fu};
    }
    return lead_of_long(byte);
}

static struct lead lead_of_long(uint8_t byte)
{
    switch (byte) {
    case 0xc0: /* nil, false, true */
    case 0xc2:
    case 0xc3:
        return (struct lead){0};
    case 0xc4: /* bin 8, str 8 */
    case 0xd9:
        return (struct lead){.len_width = 1};
    case 0xc5: /* bin 16, str 16 */
    case 0xda:
        return (struct lead){.len_width = 2};
    case 0xc6: /* bin 32, str 32 */
    case 0xdb:
        return (struct lead){.len_width = 4};
    case 0xcc: /* integers and floats by their width */
    case 0xd0:
        return (struct lead){.count = 1};
    case 0xcd:
    case 0xd1:
        return (struct lead){.count = 2};
    case 0xca:
    case 0xce:
    case 0xd2:
        return (struct lead){.count = 4};
    case 0xcb:
    case 0xcf:
    case 0xd3:
        return (struct lead){.count = 8};
    case 0xdc:
        return (struct lead){.container = true, .len_width = 2};
    case 0xdd:
        return (struct lead){.container = true, .len_width = 4};
    case 0xde:
        return (struct lead){.container = true, .map = true, .len_width = 2};
    case 0xdf:
        return (struct lead){.container = true, .map = true, .len_width = 4};
    default: /* 0xc1 is never used; the rest are extension types */
        return (struct lead){.refused = true};
    }
}
