/* Intrusive binary min-heap: each element carries its place, so that it can be moved or removed in
 * O(log n) without a search. Ties are broken by the caller's order, which must be total where the
 * result has to be the same on every machine. */
#ifndef FSM_BASE_HEAP_H_
#define FSM_BASE_HEAP_H_

#include <stdbool.h>
#include <stddef.h>

#define HEAP_NOWHERE ((size_t)-1)

struct heap_node {
    size_t idx; /* HEAP_NOWHERE while in no heap */
};

/* True when `a` comes before `b`. */
typedef bool (*heap_before_cb)(const struct heap_node *a, const struct heap_node *b);

struct heap {
    struct heap_node **nodes; /* owned array, borrowed elements */
    size_t count;
    size_t cap;
    heap_before_cb before;
};

void heap_init(struct heap *heap, heap_before_cb before);
void heap_deinit(struct heap *heap);

void heap_node_init(struct heap_node *node);
bool heap_contains(const struct heap_node *node);

/* Smallest element, or NULL. */
struct heap_node *heap_min(const struct heap *heap);
void heap_insert(struct heap *heap, struct heap_node *node);
void heap_remove(struct heap *heap, struct heap_node *node);

/* The element's order has changed; put it where it belongs now. */
void heap_moved(struct heap *heap, struct heap_node *node);

#endif
