/* Leases and tombstones by (namespace, key).
 *
 * A namespace (`struct space`) holds everything that belongs to it: its leases and tombstones in
 * the order of keys, its leases again in the order of tokens and of expiry and by the hash of their
 * keys, its owners, its marks.
 * Every list in the order of tokens is one because a token that is drawn is the largest yet: what
 * gets one goes to the end.
 *
 * This module keeps its own structures, counters and digests consistent; what the end or the change
 * of a lease means for owners, marks, tombstones and watchers is decided in fsm_lease.c. */
#ifndef FSM_LEASE_TABLE_H_
#define FSM_LEASE_TABLE_H_

#include "fsm/base/list.h"
#include "fsm/base/tree.h"
#include "fsm/expiry.h"
#include "fsm/key_index.h"
#include "fsm/types.h"

struct owner; /* owner_index.h */

struct space {
    struct tree_node node; /* in lease_table.spaces, by name */
    struct tree leases;    /* by key */
    struct key_index keys; /* leases again, for finding one */
    struct tree tombstones;
    struct tree owners; /* struct owner, by name */
    struct expiry due;  /* leases by (expiry, key) */
    struct expiry_node due_node;   /* in lease_table.due while it has leases */
    struct expiry_node floor_node; /* in lease_table.floors while purged_ms > 0 */
    struct list by_token;          /* leases, ascending */
    struct list marks;             /* of this namespace and of its owners, ascending */
    struct list loose;             /* in lease_table.loose while perhaps empty */
    uint64_t own_count;   /* leases in state `own` */
    uint64_t del_count;   /* and in state `del` */
    uint64_t purge_upto;  /* every lease up to this token is under a purge; 0: none */
    uint64_t marked;      /* leases that are under some mark */
    uint64_t purged_ms;   /* cluster time of the last purge while that matters; 0: none */
    uint64_t digest;
    size_t name_len;
    uint8_t name[];
};

/* What a renewal reads and writes stands together, before the key; what the queue compares and what
 * it writes stand side by side. */
struct lease {
    struct list token_link;        /* in space.by_token */
    struct list owner_link;        /* in owner.own or owner.del */
    struct attachment *attachment; /* owned; NULL: neither metadata nor identity */
    uint64_t since_ms;
    struct tree_node node;       /* in space.leases */
    struct expiry_node due_node; /* in space.due */
    struct space *space;         /* borrowed */
    struct owner *owner;         /* borrowed; lives as long as a lease names it */
    uint64_t token;
    uint64_t ttl_ms;
    uint64_t expiry_ms;
    uint64_t written_index; /* position of the last write, for settling */
    uint64_t digest_fixed;  /* of what a renewal leaves as it is */
    uint64_t digest;        /* as it stands in the sum */
    uint32_t written_place; /* see written_index */
    enum lease_state state;
    struct key_index_node key_node; /* in space.keys */
    size_t key_len;
    uint8_t key[];
};

struct tombstone {
    struct tree_node node;       /* in space.tombstones */
    struct expiry_node age_node; /* in lease_table.ages, by (ended_ms, namespace, key) */
    struct space *space;         /* borrowed */
    uint64_t token;
    uint64_t ended_ms;
    enum lease_state state;
    enum end_reason reason;
    uint64_t digest;
    size_t key_len;
    size_t owner_len;
    uint8_t bytes[]; /* key, owner */
};

/* Marks of what is forgotten. */
struct forgotten {
    uint64_t until_ms; /* the latest end */
    uint64_t token;    /* the largest token */
};

static inline void forgotten_add(struct forgotten *forgotten, uint64_t ended_ms, uint64_t token)
{
    forgotten->until_ms = max_u64(forgotten->until_ms, ended_ms);
    forgotten->token = max_u64(forgotten->token, token);
}

struct lease_table {
    struct tree spaces;   /* by name */
    struct expiry due;    /* spaces by (first expiry, name) */
    struct expiry ages;   /* tombstones by (ended_ms, namespace, key) */
    struct expiry floors; /* spaces by (purged_ms, name) */
    struct list loose;    /* spaces that perhaps hold nothing any more */
    uint64_t own_count;
    uint64_t del_count;
    uint64_t tombstone_count;
    uint64_t space_digest;     /* sums */
    uint64_t lease_digest;
    uint64_t tombstone_digest;
    struct forgotten forgotten; /* tombstones and purges that were removed as forgotten */
    uint64_t memory_len;        /* of all records, estimated */
    uint64_t index_len;         /* bytes of all namespaces' indexes of keys */
    struct hash_key hash_key;   /* for the next namespace */
};

void lease_table_init(struct lease_table *table);
/* Under which key the keys of leases are hashed, in namespaces that are made from now on. Nothing
 * that can be seen depends on it. */
void lease_table_set_hash_key(struct lease_table *table, const struct hash_key *hash_key);
void lease_table_deinit(struct lease_table *table);

/* --- Namespaces. */

struct space *space_find(const struct lease_table *table, struct slice name);
/* Made if it is not there. */
struct space *space_get(struct lease_table *table, struct slice name);
/* Sets since when the namespace counts as lost; 0: it does not any more. */
void space_set_purged(struct lease_table *table, struct space *space, uint64_t purged_ms);
/* Remember that the space may be empty; lease_table_tidy frees those that are. */
void space_loosen(struct lease_table *table, struct space *space);
void lease_table_tidy(struct lease_table *table);

static inline struct slice space_name(const struct space *space)
{
    return slice_from(space->name, space->name_len);
}

/* --- Leases. */

/* What a grant writes. An absent `meta` or `identity` keeps what the lease has. */
struct lease_grant {
    enum lease_state state;
    uint64_t token;
    uint64_t ttl_ms;
    uint64_t expiry_ms;
    uint64_t since_ms;
    struct position written;
    struct slice meta;
    struct slice identity;
};

struct lease *lease_find(const struct space *space, struct slice key);

/* A new lease of a key that has none; the caller links it to its owner (owner_index.h). The token
 * is the largest in the namespace. */
struct lease *lease_add(struct lease_table *table, struct space *space, struct slice key,
                        struct owner *owner, const struct lease_grant *grant);
/* Another grant of the same lease, perhaps to another owner; linking is the caller's again. A token
 * other than the present one is the largest in the namespace. */
void lease_regrant(struct lease_table *table, struct lease *lease, struct owner *owner,
                   const struct lease_grant *grant);
void lease_extend(struct lease_table *table, struct lease *lease, uint64_t ttl_ms,
                  uint64_t expiry_ms, struct position written);
/* As lease_extend, but the queue is put in order by lease_extend_end: for many leases of one
 * namespace, between which nothing asks what is due. */
void lease_extend_many(struct lease_table *table, struct lease *lease, uint64_t ttl_ms,
                       uint64_t expiry_ms, struct position written);
void lease_extend_end(struct lease_table *table, struct space *space);
/* Frees it; it must be in no list of an owner. */
void lease_remove(struct lease_table *table, struct lease *lease);

static inline struct slice lease_key(const struct lease *lease)
{
    return slice_from(lease->key, lease->key_len);
}
struct slice lease_meta(const struct lease *lease);     /* absent: none */
struct slice lease_identity(const struct lease *lease); /* absent: none */
uint64_t lease_digest(const struct lease *lease);       /* computed anew */
uint64_t lease_digest_fixed(const struct lease *lease); /* likewise */

static inline uint64_t lease_table_count(const struct lease_table *table)
{
    return table->own_count + table->del_count;
}

/* The lease that is first in the order (expiry, namespace, key), or NULL; its expiry, or
 * EXPIRY_NEVER. */
struct lease *lease_table_first_due(const struct lease_table *table);
struct lease *space_first_due(const struct space *space);
struct lease *lease_of_due_node(struct expiry_node *node);

/* --- Tombstones. */

struct tombstone_end {
    struct slice owner;
    enum lease_state state;
    uint64_t token;
    enum end_reason reason;
    uint64_t ended_ms;
};

struct tombstone *tombstone_find(const struct space *space, struct slice key);
/* Of a key that has none. */
void tombstone_add(struct lease_table *table, struct space *space, struct slice key,
                   const struct tombstone_end *end);
/* Frees it: replaced by a grant. */
void tombstone_remove(struct lease_table *table, struct tombstone *tombstone);
/* Frees it, and moves the marks of what is forgotten. */
void tombstone_forget(struct lease_table *table, struct tombstone *tombstone);
struct tombstone *lease_table_oldest_tombstone(const struct lease_table *table);
struct tombstone *tombstone_of_age_node(struct expiry_node *node);

static inline struct slice tombstone_key(const struct tombstone *tombstone)
{
    return slice_from(tombstone->bytes, tombstone->key_len);
}
static inline struct slice tombstone_owner(const struct tombstone *tombstone)
{
    return slice_from(tombstone->bytes + tombstone->key_len, tombstone->owner_len);
}

uint64_t space_digest(const struct space *space);         /* computed anew */
uint64_t tombstone_digest(const struct tombstone *tombstone);

#endif
