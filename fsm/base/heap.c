/* Array heap with sift-up and sift-down; the array doubles. */
#include "fsm/base/heap.h"

#include <stdlib.h>

#include "fsm/base/check.h"

#define HEAP_CAP_FIRST 64u

static void place(struct heap *heap, size_t idx, struct heap_node *node);
static void sift_up(struct heap *heap, size_t idx);
static void sift_down(struct heap *heap, size_t idx);

void heap_init(struct heap *heap, heap_before_cb before)
{
    *heap = (struct heap){.before = before};
}

void heap_deinit(struct heap *heap)
{
    free(heap->nodes);
    *heap = (struct heap){.before = heap->before};
}

void heap_node_init(struct heap_node *node)
{
    node->idx = HEAP_NOWHERE;
}

bool heap_contains(const struct heap_node *node)
{
    return node->idx != HEAP_NOWHERE;
}

struct heap_node *heap_min(const struct heap *heap)
{
    return heap->count == 0 ? NULL : heap->nodes[0];
}

void heap_insert(struct heap *heap, struct heap_node *node)
{
    CHECK(!heap_contains(node));
    if (heap->count == heap->cap) {
        size_t cap = heap->cap == 0 ? HEAP_CAP_FIRST : heap->cap * 2;
        struct heap_node **nodes = realloc(heap->nodes, cap * sizeof *nodes);
        CHECK(nodes != NULL);
        heap->nodes = nodes;
        heap->cap = cap;
    }
    place(heap, heap->count++, node);
    sift_up(heap, node->idx);
}

void heap_remove(struct heap *heap, struct heap_node *node)
{
    CHECK(node->idx < heap->count && heap->nodes[node->idx] == node);
    size_t idx = node->idx;
    struct heap_node *last = heap->nodes[--heap->count];
    node->idx = HEAP_NOWHERE;
    if (last != node) {
        place(heap, idx, last);
        heap_moved(heap, last);
    }
}

void heap_moved(struct heap *heap, struct heap_node *node)
{
    CHECK(node->idx < heap->count && heap->nodes[node->idx] == node);
    sift_up(heap, node->idx);
    sift_down(heap, node->idx);
}

static void place(struct heap *heap, size_t idx, struct heap_node *node)
{
    heap->nodes[idx] = node;
    node->idx = idx;
}

static void sift_up(struct heap *heap, size_t idx)
{
    struct heap_node *node = heap->nodes[idx];
    while (idx > 0) {
        size_t parent = (idx - 1) / 2;
        if (!heap->before(node, heap->nodes[parent])) {
            break;
        }
        place(heap, idx, heap->nodes[parent]);
        idx = parent;
    }
    place(heap, idx, node);
}

static void sift_down(struct heap *heap, size_t idx)
{
    struct heap_node *node = heap->nodes[idx];
    for (;;) {
        size_t child = 2 * idx + 1;
        if (child >= heap->count) {
            break;
        }
        if (child + 1 < heap->count && heap->before(heap->nodes[child + 1], heap->nodes[child])) {
            child++;
        }
        if (!heap->before(heap->nodes[child], node)) {
            break;
        }
        place(heap, idx, heap->nodes[child]);
        idx = child;
    }
    place(heap, idx, node);
}
