/* Marks: many leases ended at once, removed in slices.
 *
 * release_all and purge draw a token; every lease of their scope whose token was drawn before is
 * absent from then on, and its tombstone will carry the mark's time and reason. Scope is one
 * owner's `own` leases, or a whole namespace. Since lists in the order of tokens exist for both,
 * what is under a mark is the beginning of a list. A mark is gone when nothing is left under it, so
 * there are never more marks than leases.
 *
 * A lease under two marks belongs to the one that was set first, the one with the smaller token.
 * One that was due already when the mark was set has expired, mark or not. */
#ifndef FSM_MARKS_H_
#define FSM_MARKS_H_

#include "fsm/lease_table.h"
#include "fsm/owner_index.h"

struct mark {
    struct list link;       /* in marks.all */
    struct list space_link; /* in space.marks */
    struct list owner_link; /* in owner.marks */
    struct space *space;    /* borrowed */
    struct owner *owner;    /* borrowed; NULL: the whole namespace */
    uint64_t upto;          /* the token that it drew */
    uint64_t set_ms;
    uint64_t remaining; /* leases that belong to it */
};

struct marks {
    struct list all; /* ascending */
    uint64_t count;
    uint64_t digest; /* sum */
};

void marks_init(struct marks *marks);
void marks_deinit(struct marks *marks);

/* A mark over an owner's set, or over a namespace (owner NULL). `upto` is a token larger than any
 * before; `remaining` leases belong to the mark, at least one. */
struct mark_scope {
    struct space *space;
    struct owner *owner;
    uint64_t upto;
    uint64_t set_ms;
    uint64_t remaining;
};
void marks_set(struct marks *marks, const struct mark_scope *scope);

/* True when the lease is under a mark: it is absent. */
static inline bool lease_marked(const struct lease *lease)
{
    return lease->token <= lease->space->purge_upto ||
           (lease->state == LEASE_STATE_OWN && lease->token <= lease->owner->mark_upto);
}

/* The mark that the lease belongs to, or NULL. */
struct mark *mark_of(const struct lease *lease);

/* A lease that belonged to it is about to be removed; frees the mark when it was the last. */
void mark_lease_gone(struct marks *marks, struct mark *mark);

/* The oldest mark, or NULL. */
const struct mark *marks_first(const struct marks *marks);

/* The first lease under the oldest mark, or under any mark of the namespace; or NULL. */
struct lease *marks_first_lease(const struct marks *marks);
struct lease *space_first_marked(const struct space *space);

uint64_t mark_digest(const struct mark *mark);

#endif
