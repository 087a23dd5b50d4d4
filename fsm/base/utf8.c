/* One decoder, strict by the table of well-formed sequences (Unicode 15, table 3-7). */
#include "fsm/base/utf8.h"

#define HIGH_BITS 0x8080808080808080ull
#define LOW_BITS 0x0101010101010101ull

static bool is_plain(struct slice text);
static uint64_t odd_bytes(const uint8_t *at);
static unsigned sequence_len(uint8_t lead);

enum utf8_verdict utf8_check(struct slice text)
{
    bool control = false;
    if (is_plain(text)) {
        return UTF8_OK;
    }
    for (size_t at = 0; at < text.len;) {
        uint32_t code = 0;
        unsigned len = utf8_decode(text, at, &code);
        if (len == 0) {
            return UTF8_INVALID;
        }
        control = control || code < 0x20 || (code >= 0x7f && code <= 0x9f);
        at += len;
    }
    return control ? UTF8_CONTROL : UTF8_OK;
}

unsigned utf8_decode(struct slice text, size_t at, uint32_t *out_code)
{
    static const uint32_t code_min[5] = {0, 0, 0x80, 0x800, 0x10000};
    uint8_t lead = text.base[at];
    unsigned len = sequence_len(lead);
    if (len == 0 || len > text.len - at) {
        return 0;
    }
    uint32_t code = len == 1 ? lead : lead & (0xffu >> (len + 1));
    for (unsigned i = 1; i < len; i++) {
        uint8_t next = text.base[at + i];
        if ((next & 0xc0) != 0x80) {
            return 0;
        }
        code = (code << 6) | (next & 0x3fu);
    }
    if (code < code_min[len] || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) {
        return 0;
    }
    *out_code = code;
    return len;
}

/* True when the text is surely printable ASCII, as most keys and owners are: eight bytes at a time,
 * those that are left over together with some before them. */
static bool is_plain(struct slice text)
{
    if (text.len < sizeof(uint64_t)) {
        return false;
    }
    uint64_t odd = odd_bytes(text.base + text.len - sizeof(uint64_t));
    for (size_t at = 0; at + sizeof(uint64_t) <= text.len; at += sizeof(uint64_t)) {
        odd |= odd_bytes(text.base + at);
    }
    return (odd & HIGH_BITS) == 0;
}

/* Where a byte of the word is not printable ASCII its high bit is set (the others mean nothing):
 * that of `word` for what is not ASCII, that of `word + 1` for 0x7f too, and that of `word - 0x20`,
 * with the high bit lent so that no borrow leaves the byte, is clear for control characters. A
 * carry out of 0xff only reaches a word that is not plain anyway. */
static uint64_t odd_bytes(const uint8_t *at)
{
    uint64_t word;
    memcpy(&word, at, sizeof word);
    return word | (word + LOW_BITS) | ~((word | HIGH_BITS) - 0x20 * LOW_BITS);
}

static unsigned sequence_len(uint8_t lead)
{
    if (lead < 0x80) {
        return 1;
    }
    if (lead >= 0xc2 && lead <= 0xdf) {
        return 2;
    }
    if (lead >= 0xe0 && lead <= 0xef) {
        return 3;
    }
    return lead >= 0xf0 && lead <= 0xf4 ? 4 : 0;
}
