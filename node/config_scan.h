/* A look over the text of a configuration file before its parser sees it. Pure.
 *
 * Refuses what the parser would accept in silence or read further files for: integers of more than
 * 9 digits (some versions wrap at 32 bits, all at 64; no option is that large), @include, brackets
 * inside brackets inside brackets, control characters, \x in texts, a byte order mark, too much
 * text. */
#ifndef NODE_CONFIG_SCAN_H_
#define NODE_CONFIG_SCAN_H_

#include "fsm/base/slice.h"

struct config_scan {
    const char *why; /* NULL: nothing found; else a static sentence */
    unsigned line;   /* 0: the whole text */

    /* Where a number was refused: its digits, and the name that came last before it. They borrow
     * from the text. */
    struct slice name;
    struct slice number;
};

void config_scan(struct slice text, size_t len_max, struct config_scan *out_scan);

#endif
