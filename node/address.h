/* Where a node listens or is reached: an IP address and a port. Pure.
 *
 * Text is `127.0.0.1:7420`, `[::1]:7420` or `localhost:7420` (which means 127.0.0.1). Other names
 * are refused: looking one up would block, or take a thread of the pool that the disk needs. */
#ifndef NODE_ADDRESS_H_
#define NODE_ADDRESS_H_

#include <stdbool.h>
#include <stdint.h>

#include "fsm/base/check.h"
#include "fsm/base/slice.h"
#include "fsm/base/status.h"

#define ADDRESS_TEXT_LEN 64u /* of any address as text, with its NUL */

#define ADDRESS_RULE "must be IPv4:PORT, [IPv6]:PORT or localhost:PORT"

struct address {
    bool v6;
    uint8_t ip[16]; /* network order; IPv4: the first four bytes, the rest zero */
    uint16_t port;
};

/* STATUS_INVALID for anything else than ADDRESS_RULE. Port 0 is accepted: the caller judges. */
NODISCARD enum status address_parse(struct slice text, struct address *out_address);

/* Canonical text (RFC 5952), NUL-terminated. */
void address_format(const struct address *address, char out_text[ADDRESS_TEXT_LEN]);

/* 127.0.0.0/8, ::1, and the former mapped into IPv6. */
bool address_is_loopback(const struct address *address);

/* 0.0.0.0 or ::: good for listening, no place to dial. */
bool address_is_any(const struct address *address);

#endif
