/* Golden bytes: what an encoder produced once and must produce for ever, as hex text files that a
 * person can read and diff. See README.md here for the format and for how they are rewritten. */
#ifndef TESTS_GOLDEN_GOLDEN_H_
#define TESTS_GOLDEN_GOLDEN_H_

#include "fsm/base/slice.h"

struct golden;

/* Read `file` (a name inside tests/golden). With TENURE_GOLDEN_WRITE set in the environment it
 * starts empty instead and is written by golden_close. */
struct golden *golden_open(const char *file);

/* True when the file has exactly these bytes under this name. Otherwise both are printed. */
bool golden_matches(struct golden *golden, const char *name, struct slice bytes);

/* True when every line of the file was asked for; frees or writes. */
bool golden_close(struct golden *golden);

#endif
