/* Exactly once: what numbered commands answered, per origin, until that is confirmed.
 *
 * An origin is a number that the state machine drew for a node; it numbers its commands from 1. The
 * outcome of every sequence above the origin's confirmed mark is kept as the bytes of its result,
 * so that a repeat is answered with the very same bytes. A sequence that was settled before it was
 * applied is void. Beside the bytes stand the keys that the command gave its caller anew, which is
 * what settling takes back. */
#ifndef FSM_ORIGIN_TABLE_H_
#define FSM_ORIGIN_TABLE_H_

#include "fsm/base/list.h"
#include "fsm/base/tree.h"
#include "fsm/types.h"

#define ORIGIN_KEY_LEN 8u

struct origin_outcome {
    uint64_t sequence;
    uint64_t index; /* position of the command */
    uint32_t place;
    bool is_void;
    bool ended; /* settling it took a lease back */
    uint32_t grant_count;
    size_t result_len;
    size_t ns_len;     /* the namespace of the grants */
    size_t grants_len; /* encoded by origin_grant_encode */
    uint64_t digest;
    uint8_t bytes[]; /* result, namespace, grants */
};

struct origin {
    struct tree_node node; /* in origin_table.origins, by number */
    struct list silence;   /* in origin_table.silence, longest silent first */
    uint64_t number;
    uint64_t confirmed;   /* every sequence up to this one is confirmed */
    uint64_t heard_ms;    /* cluster time of its last command */
    uint64_t heard_index; /* position of its last command: the order of silence */
    uint32_t heard_place;
    uint64_t digest;
    struct origin_outcome **outcomes; /* owned ring, ascending sequences */
    size_t first;
    size_t count;
    size_t cap;
    size_t results_len; /* bytes of results kept */
    uint8_t key[ORIGIN_KEY_LEN];
};

struct origin_table {
    struct tree origins;
    struct list silence;
    uint64_t outcome_count;
    uint64_t origin_digest; /* sums */
    uint64_t outcome_digest;
    uint64_t memory_len;
};

void origin_table_init(struct origin_table *table);
void origin_table_deinit(struct origin_table *table);

struct origin *origin_find(const struct origin_table *table, uint64_t number);
/* A new origin, heard now; the number was never used before. */
struct origin *origin_open(struct origin_table *table, uint64_t number, uint64_t now_ms,
                           struct position position);
/* It has spoken; positions grow. Raises its mark and drops what is confirmed; a lower mark changes
 * nothing. */
void origin_hear(struct origin_table *table, struct origin *origin, uint64_t now_ms,
                 struct position position, uint64_t confirmed);
void origin_forget(struct origin_table *table, struct origin *origin);
void origin_table_forget_all(struct origin_table *table);
/* The longest silent one, or NULL. */
struct origin *origin_table_longest_silent(const struct origin_table *table);

/* True when nothing more may be kept for it: see UNCONFIRMED_MAX and UNCONFIRMED_LEN_MAX. An honest
 * node counts the largest results and never gets there. */
bool origin_full(const struct origin *origin);

struct origin_outcome *origin_outcome_find(const struct origin *origin, uint64_t sequence);

/* What is kept of a command. The slices are copied. */
struct origin_record {
    uint64_t sequence; /* above the confirmed mark, not kept yet */
    struct position position;
    bool is_void;
    bool ended;
    struct slice result;
    struct slice ns;
    struct slice grants;
    uint32_t grant_count;
};
void origin_keep(struct origin_table *table, struct origin *origin,
                 const struct origin_record *record);
/* The outcome was settled: its grants are done with. */
void origin_outcome_settled(struct origin_table *table, struct origin *origin,
                            struct origin_outcome *outcome, bool ended);

static inline struct slice origin_outcome_result(const struct origin_outcome *outcome)
{
    return slice_from(outcome->bytes, outcome->result_len);
}
static inline struct slice origin_outcome_ns(const struct origin_outcome *outcome)
{
    return slice_from(outcome->bytes + outcome->result_len, outcome->ns_len);
}
static inline struct slice origin_outcome_grants(const struct origin_outcome *outcome)
{
    return slice_from(outcome->bytes + outcome->result_len + outcome->ns_len,
                      outcome->grants_len);
}

/* The idx-th outcome kept, 0 being the lowest sequence. */
struct origin_outcome *origin_outcome_at(const struct origin *origin, size_t idx);

/* A key that a command gave its caller, with the token of the grant. */
struct origin_grant {
    uint64_t token;
    struct slice key;
};
struct buf;
void origin_grant_encode(const struct origin_grant *grant, struct buf *out);
/* Takes the first grant off `rest`; false at the end or where the bytes make no sense. */
bool origin_grant_next(struct slice *rest, struct origin_grant *out_grant);

/* Computed anew. */
uint64_t origin_digest(const struct origin *origin);
uint64_t origin_outcome_digest(const struct origin *origin, const struct origin_outcome *outcome);

#endif
