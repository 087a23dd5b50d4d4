/* What must hold in one state, and between an earlier and a later one. Used after a snapshot is
 * loaded and by every test. */
#ifndef FSM_INVARIANTS_H_
#define FSM_INVARIANTS_H_

#include "fsm/fsm.h"

/* NULL, or a static sentence that says what is broken. O(state). */
const char *invariants_check(const struct fsm *fsm);

/* NULL, or what is broken between the two: tokens and clock must not go back (P5). */
const char *invariants_check_step(const struct fsm *before, const struct fsm *after);

#endif
