/* What is due at a cluster time: elements in the order of a time, ties in an order of the caller's.
 *
 * A heap whose array carries the times, so that a renewal in a large table touches few cache lines.
 * Where the result must be the same on every machine the order of ties is total: for leases and
 * tombstones it is (time, namespace, key). */
#ifndef FSM_EXPIRY_H_
#define FSM_EXPIRY_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EXPIRY_NOWHERE ((size_t)-1)
#define EXPIRY_NEVER UINT64_MAX

struct expiry_node {
    size_t idx; /* EXPIRY_NOWHERE while in no queue */
};

/* Of two elements with the same time: true when `a` comes before `b`. */
typedef bool (*expiry_before_cb)(const struct expiry_node *a, const struct expiry_node *b);

struct expiry_entry {
    uint64_t at_ms;
    struct expiry_node *node; /* borrowed */
};

struct expiry {
    struct expiry_entry *entries; /* owned */
    size_t count;
    size_t cap;
    expiry_before_cb before;
};

void expiry_init(struct expiry *expiry, expiry_before_cb before);
void expiry_deinit(struct expiry *expiry);

static inline void expiry_node_init(struct expiry_node *node)
{
    node->idx = EXPIRY_NOWHERE;
}

static inline bool expiry_contains(const struct expiry_node *node)
{
    return node->idx != EXPIRY_NOWHERE;
}

void expiry_insert(struct expiry *expiry, struct expiry_node *node, uint64_t at_ms);
void expiry_remove(struct expiry *expiry, struct expiry_node *node);
void expiry_move(struct expiry *expiry, struct expiry_node *node, uint64_t at_ms);

/* Many moves at once: expiry_set each, in any number, then expiry_reorder once, in O(count).
 * Between the two nothing else may be asked of the queue. */
void expiry_set(struct expiry *expiry, struct expiry_node *node, uint64_t at_ms);
void expiry_reorder(struct expiry *expiry);

/* The first element, or NULL; its time, or EXPIRY_NEVER. */
struct expiry_node *expiry_first(const struct expiry *expiry);
uint64_t expiry_first_ms(const struct expiry *expiry);

/* Called for every element whose time is less than `now_ms`, in no particular order; return false
 * to stop. Costs as much as there are such elements, whatever the size of the queue. */
typedef bool (*expiry_visit_cb)(void *ctx, struct expiry_node *node);
void expiry_visit_due(const struct expiry *expiry, uint64_t now_ms, expiry_visit_cb cb, void *ctx);

/* True when every element is where it belongs. For tests and invariants. */
bool expiry_sound(const struct expiry *expiry);

#endif
