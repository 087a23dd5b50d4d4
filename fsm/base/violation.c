/* Escaping is done by hand: no formatting functions here, so that the state machine needs none. */
#include "fsm/base/violation.h"

#define ELLIPSIS "..."

void violation_set(struct violation *violation, const char *field, struct slice value,
                   const char *rule)
{
    static const char digits[] = "0123456789abcdef";
    size_t room = VIOLATION_VALUE_LEN_MAX - sizeof ELLIPSIS; /* room for the ellipsis is kept */
    size_t at = 0;
    size_t i = 0;
    for (; i < value.len; i++) {
        uint8_t byte = value.base[i];
        bool plain = byte >= 0x20 && byte < 0x7f && byte != '\\';
        size_t need = plain ? 1 : 4;
        if (at + need > room) {
            break;
        }
        if (plain) {
            violation->value[at++] = (char)byte;
        } else {
            violation->value[at++] = '\\';
            violation->value[at++] = 'x';
            violation->value[at++] = digits[byte >> 4];
            violation->value[at++] = digits[byte & 15u];
        }
    }
    if (i < value.len) {
        memcpy(violation->value + at, ELLIPSIS, sizeof ELLIPSIS - 1);
        at += sizeof ELLIPSIS - 1;
    }
    violation->value[at] = '\0';
    violation->field = field;
    violation->rule = rule;
}

void violation_set_u64(struct violation *violation, const char *field, uint64_t value,
                       const char *rule)
{
    char text[20]; /* 2^64 - 1 has 20 digits */
    size_t at = sizeof text;
    do {
        text[--at] = (char)('0' + value % 10);
        value /= 10;
    } while (value > 0);
    violation_set(violation, field, slice_from(text + at, sizeof text - at), rule);
}

void violation_set_text(struct violation *violation, const char *field, const char *what,
                        const char *rule)
{
    violation_set(violation, field, slice_text(what), rule);
}
