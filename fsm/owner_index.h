/* Leases by owner, the owner's set version, and what left its set.
 *
 * An owner's *set* is its leases in state `own` inside one namespace. Whenever one leaves, a number
 * is drawn from the token counter and becomes the set's version; the departure is remembered under
 * it, so that whoever knows an older version can be told what left. What is forgotten raises the
 * owner's *forgotten version*: who knows an older one than that is told to list again.
 *
 * An owner without leases is kept for as long as a tombstone would be, then forgotten whole. The
 * table keeps the largest version that was forgotten so; an owner that is made anew starts there,
 * which is true: nothing of it left since. */
#ifndef FSM_OWNER_INDEX_H_
#define FSM_OWNER_INDEX_H_

#include "fsm/lease_table.h"

struct owner {
    struct tree_node node;        /* in space.owners */
    struct expiry_node idle_node; /* in owner_index.idle while it has no lease */
    struct space *space;          /* borrowed */
    struct list own;              /* leases in state `own`, ascending tokens */
    struct list del;              /* leases in state `del`, likewise */
    struct list departures;       /* ascending versions */
    struct list marks;            /* of release_all, ascending */
    struct list loose;            /* in owner_index.loose while perhaps to be freed */
    uint64_t own_count;
    uint64_t del_count;
    uint64_t departure_count;
    uint64_t set_version;
    uint64_t forgotten_version; /* departures up to this one are forgotten */
    uint64_t idle_ms;           /* since when it has no lease; while in owner_index.idle */
    uint64_t mark_upto;         /* every own lease up to this token is under a mark; 0: none */
    uint64_t digest_name;
    uint64_t digest;
    size_t name_len;
    uint8_t name[];
};

struct departed {
    struct list owner_link;
    struct list age_link;
    struct owner *owner; /* borrowed */
    uint64_t version;
    uint64_t token;
    enum end_reason reason;
    size_t key_len;
    uint8_t key[];
};

struct owner_index {
    struct expiry idle;     /* owners by (idle_ms, namespace, owner) */
    struct list departures; /* of all owners, ascending versions */
    struct list loose;
    uint64_t owner_count;
    uint64_t departure_count;
    uint64_t forgotten_version; /* the largest set version of an owner that was forgotten whole */
    uint64_t owner_digest;      /* sums */
    uint64_t departure_digest;
    uint64_t memory_len;
};

void owner_index_init(struct owner_index *index);
/* Frees the departures; the owners are freed through their spaces with owner_free_all. */
void owner_index_deinit(struct owner_index *index);
void owner_free_all(struct space *space);

struct owner *owner_find(const struct space *space, struct slice name);
/* Made if it is not there; it is idle from `now_ms` on until a lease is linked. */
struct owner *owner_get(struct owner_index *index, struct space *space, struct slice name,
                        uint64_t now_ms);

static inline struct slice owner_name(const struct owner *owner)
{
    return slice_from(owner->name, owner->name_len);
}

/* Put a lease into its owner's list, or take it out. The token is the largest of the owner's. */
void owner_link(struct owner_index *index, struct lease *lease);
void owner_unlink(struct owner_index *index, struct lease *lease, uint64_t now_ms);

/* A lease left the set: `version` was drawn for it. */
struct departing {
    struct slice key;
    uint64_t token;
    enum end_reason reason;
    uint64_t version;
};
void owner_depart(struct owner_index *index, struct owner *owner,
                  const struct departing *departing);

/* Forget the oldest departure of this owner, or of all. */
void owner_forget_departure(struct owner_index *index, struct owner *owner);
void owner_index_forget_departure(struct owner_index *index);

/* Forget an idle owner and all its departures. */
void owner_forget(struct owner_index *index, struct lease_table *table, struct owner *owner);
struct owner *owner_index_first_idle(const struct owner_index *index);

/* Forget the owners that have neither leases nor departures any more. Nothing may borrow their
 * names any longer. */
void owner_index_tidy(struct owner_index *index, struct lease_table *table);

static inline struct slice departed_key(const struct departed *departed)
{
    return slice_from(departed->key, departed->key_len);
}

/* Loading a snapshot: sets what the owner remembers. */
struct owner_memory {
    uint64_t set_version;
    uint64_t forgotten_version;
    bool idle;
    uint64_t idle_ms;
};
void owner_restore(struct owner_index *index, struct owner *owner,
                   const struct owner_memory *memory);
void owner_restore_departure(struct owner_index *index, struct owner *owner,
                             const struct departing *departing);

/* Computed anew. */
uint64_t owner_digest(const struct owner *owner);
uint64_t departed_digest(const struct departed *departed);

#endif
