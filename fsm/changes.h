/* What one applied entry changed: the raw material of watch streams and of waiting.
 *
 * The state machine fills one of these anew for every entry; whoever wants to keep a change copies
 * it before the next apply. Order is the order in which things happened inside the entry. */
#ifndef FSM_CHANGES_H_
#define FSM_CHANGES_H_

#include "fsm/types.h"

enum change_kind {
    CHANGE_KIND_GRANTED = 1,       /* the key had no holder */
    CHANGE_KIND_TRANSFERRED = 2,   /* taken from `previous_owner` */
    CHANGE_KIND_REGRANTED = 3,     /* the same owner, a new token */
    CHANGE_KIND_REESTABLISHED = 4,
    CHANGE_KIND_TEARDOWN = 5,      /* a marker was written (own -> del, or absent -> del) */
    CHANGE_KIND_RELEASED = 6,
    CHANGE_KIND_EXPIRED = 7,
    CHANGE_KIND_SETTLED = 8,
    CHANGE_KIND_PURGED = 9,
    CHANGE_KIND_RESTORED = 10,
};

struct change {
    enum change_kind kind;
    struct position position;
    struct slice ns;
    struct slice key;
    struct slice owner;          /* who has it now, or had it last */
    struct slice previous_owner; /* transferred: from whom; else absent */
    enum lease_state state;
    uint64_t token;
};

struct changes; /* opaque; owned by the fsm */

struct changes *changes_create(void);
void changes_destroy(struct changes *changes);
void changes_clear(struct changes *changes);

/* Copies the slices. */
void changes_add(struct changes *changes, const struct change *change);

uint32_t changes_count(const struct changes *changes);

/* Valid until the next changes_clear or changes_add. */
struct change changes_get(const struct changes *changes, uint32_t idx);

#endif
