/* A look over the text of a configuration file before its parser sees it. Pure.
 *
 * Refuses what the parser would accept in silence or read further files for: numbers of more than
 * 18 digits (they wrap), @include, brackets inside brackets inside brackets, control characters, a
 * byte order mark, too much text. */
#ifndef NODE_CONFIG_SCAN_H_
#define NODE_CONFIG_SCAN_H_

#include "fsm/base/slice.h"

struct config_scan {
    const char *why; /* NULL: nothing found; else a static sentence */
    unsigned line;   /* 0: the whole text */
};

void config_scan(struct slice text, size_t len_max, struct config_scan *out_scan);

#endif
