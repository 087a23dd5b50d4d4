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

static enum mp_scan_verdict step(struct mp_scanner *scanner, struct slice bytes);
static struct lead lead_of(uint8_t byte);
static struct lead lead_of_long(uint8_t byte);

enum mp_scan_verdict mp_scan(struct slice bytes, const struct mp_scan_limits *limits,
                             size_t *out_len)
{
    struct mp_scanner scanner;
    mp_scanner_init(&scanner, limits);
    return mp_scanner_look(&scanner, bytes, out_len);
}

void mp_scanner_init(struct mp_scanner *scanner, const struct mp_scan_limits *limits)
{
    CHECK(limits->depth > 0 && limits->depth <= MP_SCAN_DEPTH_MAX);
    scanner->limits = *limits;
    scanner->left[0] = 1;
    scanner->top = 0;
    scanner->items = 0;
    scanner->at = 0;
}

enum mp_scan_verdict mp_scanner_look(struct mp_scanner *scanner, struct slice bytes,
                                     size_t *out_len)
{
    for (;;) {
        while (scanner->left[scanner->top] == 0) {
            if (scanner->top == 0) {
                *out_len = scanner->at;
                return scanner->at <= scanner->limits.len ? MP_SCAN_WHOLE : MP_SCAN_REFUSED;
            }
            scanner->top--;
        }
        if (scanner->at >= scanner->limits.len || scanner->items >= scanner->limits.items) {
            return MP_SCAN_REFUSED;
        }
        enum mp_scan_verdict verdict = step(scanner, bytes);
        if (verdict != MP_SCAN_WHOLE) {
            return verdict;
        }
    }
}

/* One object: its lead byte, what belongs to it, and for a container that it is open now. WHOLE
 * when it was taken; MORE leaves the scanner before it. */
static enum mp_scan_verdict step(struct mp_scanner *scanner, struct slice bytes)
{
    size_t at = scanner->at;
    if (at >= bytes.len) {
        return MP_SCAN_MORE;
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
    uint64_t elements = 0;
    if (lead.container) {
        elements = lead.map ? 2 * lead.count : lead.count;
        if (elements > scanner->limits.items - scanner->items - 1 ||
            scanner->top >= scanner->limits.depth) {
            return MP_SCAN_REFUSED;
        }
    } else {
        if (lead.count > scanner->limits.len || at + lead.count > scanner->limits.len) {
            return MP_SCAN_REFUSED;
        }
        if (lead.count > bytes.len - at) {
            return MP_SCAN_MORE;
        }
        at += (size_t)lead.count;
    }
    scanner->at = at;
    scanner->items++;
    scanner->left[scanner->top]--;
    if (lead.container) {
        scanner->left[++scanner->top] = elements;
    }
    return MP_SCAN_WHOLE;
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
