/* Parsing by hand: what the C library offers also accepts scopes, and needs a socket's header. */
#include "node/address.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "fsm/base/check.h"

#define GROUPS 8u

static bool parse_port(struct slice text, uint16_t *out_port);
static bool parse_v4(struct slice text, uint8_t *out_ip);
static bool parse_v6(struct slice text, uint8_t *out_ip);
static bool parse_group(struct slice text, size_t *at, uint16_t *out_group);
static void format_v6(const uint8_t *ip, char out_text[ADDRESS_TEXT_LEN]);

static struct slice part(struct slice text, size_t from, size_t to)
{
    return slice_from(text.base + from, to - from);
}

enum status address_parse(struct slice text, struct address *out_address)
{
    struct address address = {0};
    if (text.len == 0 || text.len >= ADDRESS_TEXT_LEN) {
        return STATUS_INVALID;
    }
    size_t colon = text.len;
    while (colon > 0 && text.base[colon - 1] != ':') {
        colon--;
    }
    if (colon < 2 || !parse_port(part(text, colon, text.len), &address.port)) {
        return STATUS_INVALID;
    }
    struct slice host = part(text, 0, colon - 1);
    if (slice_equal(host, slice_text("localhost"))) {
        host = slice_text("127.0.0.1");
    }
    bool parsed;
    if (host.base[0] == '[') {
        address.v6 = true;
        parsed = host.len > 2 && host.base[host.len - 1] == ']' &&
                 parse_v6(part(host, 1, host.len - 1), address.ip);
    } else {
        parsed = parse_v4(host, address.ip);
    }
    if (!parsed) {
        return STATUS_INVALID;
    }
    *out_address = address;
    return STATUS_OK;
}

void address_format(const struct address *address, char out_text[ADDRESS_TEXT_LEN])
{
    if (address->v6) {
        format_v6(address->ip, out_text);
        size_t len = strlen(out_text);
        (void)snprintf(out_text + len, ADDRESS_TEXT_LEN - len, ":%u", (unsigned)address->port);
        return;
    }
    (void)snprintf(out_text, ADDRESS_TEXT_LEN, "%u.%u.%u.%u:%u", (unsigned)address->ip[0],
                   (unsigned)address->ip[1], (unsigned)address->ip[2], (unsigned)address->ip[3],
                   (unsigned)address->port);
}

bool address_is_loopback(const struct address *address)
{
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
    static const uint8_t one[16] = {[15] = 1};
    if (!address->v6) {
        return address->ip[0] == 127;
    }
    if (memcmp(address->ip, mapped, sizeof mapped) == 0) {
        return address->ip[12] == 127;
    }
    return memcmp(address->ip, one, sizeof one) == 0;
}

bool address_is_any(const struct address *address)
{
    for (unsigned i = 0; i < sizeof address->ip; i++) {
        if (address->ip[i] != 0) {
            return false;
        }
    }
    return true;
}

/* Digits only, no sign, no leading zero but "0" itself. */
static bool parse_port(struct slice text, uint16_t *out_port)
{
    uint32_t port = 0;
    if (text.len == 0 || text.len > 5 || (text.len > 1 && text.base[0] == '0')) {
        return false;
    }
    for (size_t i = 0; i < text.len; i++) {
        if (text.base[i] < '0' || text.base[i] > '9') {
            return false;
        }
        port = port * 10 + (uint32_t)(text.base[i] - '0');
    }
    *out_port = (uint16_t)port;
    return port <= UINT16_MAX;
}

/* Four decimal numbers; "010" is refused, since half of the world reads it as eight. */
static bool parse_v4(struct slice text, uint8_t *out_ip)
{
    size_t at = 0;
    for (unsigned i = 0; i < 4; i++) {
        uint32_t number = 0;
        size_t start = at;
        while (at < text.len && text.base[at] >= '0' && text.base[at] <= '9' && at - start < 3) {
            number = number * 10 + (uint32_t)(text.base[at] - '0');
            at++;
        }
        bool padded = at - start > 1 && text.base[start] == '0';
        if (at == start || padded || number > 255) {
            return false;
        }
        out_ip[i] = (uint8_t)number;
        if (i < 3) {
            if (at >= text.len || text.base[at] != '.') {
                return false;
            }
            at++;
        }
    }
    return at == text.len;
}

/* RFC 4291, section 2.2: eight groups, one run of zeros as "::", the last two perhaps as IPv4. */
static bool parse_v6(struct slice text, uint8_t *out_ip)
{
    uint8_t ip[16] = {0};
    size_t count = 0;       /* bytes before and after the gap */
    size_t gap = SIZE_MAX;  /* where the run of zeros goes */
    size_t at = 0;
    if (text.len >= 2 && text.base[0] == ':' && text.base[1] == ':') {
        gap = 0;
        at = 2;
    }
    while (at < text.len) {
        uint16_t group;
        if (count <= 12 && parse_v4(part(text, at, text.len), ip + count)) {
            count += 4;
            at = text.len;
            break;
        }
        if (count > 14 || !parse_group(text, &at, &group)) {
            return false;
        }
        ip[count] = (uint8_t)(group >> 8);
        ip[count + 1] = (uint8_t)group;
        count += 2;
        if (at == text.len) {
            break;
        }
        if (text.base[at++] != ':') {
            return false;
        }
        if (at < text.len && text.base[at] == ':') {
            if (gap != SIZE_MAX) {
                return false;
            }
            gap = count;
            at++;
        } else if (at == text.len) {
            return false; /* a single colon at the end */
        }
    }
    if (gap == SIZE_MAX ? count != sizeof ip : count > sizeof ip - 2) {
        return false;
    }
    size_t head = gap == SIZE_MAX ? count : gap;
    memset(out_ip, 0, sizeof ip);
    memcpy(out_ip, ip, head);
    memcpy(out_ip + sizeof ip - (count - head), ip + head, count - head);
    return true;
}

static bool parse_group(struct slice text, size_t *at, uint16_t *out_group)
{
    uint32_t group = 0;
    size_t start = *at;
    while (*at < text.len && *at - start < 4) {
        uint8_t byte = text.base[*at];
        uint32_t digit;
        if (byte >= '0' && byte <= '9') {
            digit = (uint32_t)(byte - '0');
        } else if (byte >= 'a' && byte <= 'f') {
            digit = (uint32_t)(byte - 'a') + 10;
        } else if (byte >= 'A' && byte <= 'F') {
            digit = (uint32_t)(byte - 'A') + 10;
        } else {
            break;
        }
        group = group << 4 | digit;
        (*at)++;
    }
    *out_group = (uint16_t)group;
    return *at > start;
}

/* The longest run of at least two zero groups, the first of equals, becomes "::". */
static void format_v6(const uint8_t *ip, char out_text[ADDRESS_TEXT_LEN])
{
    unsigned groups[GROUPS];
    unsigned best = 0;
    unsigned best_len = 0;
    unsigned run = 0;
    for (unsigned i = 0; i < GROUPS; i++) {
        groups[i] = (unsigned)ip[2 * i] << 8 | ip[2 * i + 1];
        run = groups[i] == 0 ? run + 1 : 0;
        if (run >= 2 && run > best_len) {
            best_len = run;
            best = i + 1 - run;
        }
    }
    size_t len = 0;
    out_text[len++] = '[';
    for (unsigned i = 0; i < GROUPS; i++) {
        if (best_len > 0 && i >= best && i < best + best_len) {
            if (i == best) {
                out_text[len++] = ':';
                out_text[len++] = ':';
            }
            continue;
        }
        bool first = i == 0 || (best_len > 0 && i == best + best_len);
        int written = snprintf(out_text + len, ADDRESS_TEXT_LEN - len, "%s%x", first ? "" : ":",
                               groups[i]);
        CHECK(written > 0);
        len += (size_t)written;
    }
    out_text[len++] = ']';
    out_text[len] = '\0';
}
