/* Which rule an input broke: the field's name, its value as printable text, and the rule in words.
 * The three together are the text of an INVALID error, the same on every path. */
#ifndef FSM_BASE_VIOLATION_H_
#define FSM_BASE_VIOLATION_H_

#include "fsm/base/slice.h"

#define VIOLATION_VALUE_LEN_MAX 96u

struct violation {
    const char *field; /* static, e.g. "ttl_ms" */
    char value[VIOLATION_VALUE_LEN_MAX]; /* NUL-terminated ASCII, escaped, cut with "..." */
    const char *rule; /* static, e.g. "must be a whole number of milliseconds in 10..86400000" */
};

/* The value as it came, in bytes: printable ASCII stays, everything else becomes \xNN. */
void violation_set(struct violation *violation, const char *field, struct slice value,
                   const char *rule);

/* The value as a number. */
void violation_set_u64(struct violation *violation, const char *field, uint64_t value,
                       const char *rule);

/* The value in words of ours, e.g. "a float", "missing"; `what` must be printable ASCII. */
void violation_set_text(struct violation *violation, const char *field, const char *what,
                        const char *rule);

#endif
