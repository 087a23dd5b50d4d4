/* What a key or an owner may contain: valid UTF-8 (RFC 3629: no overlong forms, no surrogates,
 * nothing beyond U+10FFFF) without control characters (C0, DEL, C1). Bytes are compared as they
 * are; there is no normalisation. */
#ifndef FSM_BASE_UTF8_H_
#define FSM_BASE_UTF8_H_

#include "fsm/base/slice.h"

enum utf8_verdict {
    UTF8_OK,
    UTF8_INVALID, /* not UTF-8 */
    UTF8_CONTROL, /* UTF-8, but with a control character */
};

enum utf8_verdict utf8_check(struct slice text);

/* Decode the code point that starts at `at` (at < text.len): its length in bytes, 1..4, and the
 * code point in *out_code; or 0 when the bytes are not UTF-8. */
unsigned utf8_decode(struct slice text, size_t at, uint32_t *out_code);

#endif
