/* A heap of four children per element: as deep as half a binary one, and the children of one lie in
 * one or two cache lines. */
#include "fsm/expiry.h"

#include <stdlib.h>

#include "fsm/base/check.h"

#define CHILDREN 4u
#define EXPIRY_CAP_FIRST 16u

static bool comes_before(const struct expiry *expiry, struct expiry_entry a,
                         struct expiry_entry b);
static void place(struct expiry *expiry, size_t idx, struct expiry_entry entry);
static void sift_up(struct expiry *expiry, size_t idx);
static void sift_down(struct expiry *expiry, size_t idx);

void expiry_init(struct expiry *expiry, expiry_before_cb before)
{
    *expiry = (struct expiry){.before = before};
}

void expiry_deinit(struct expiry *expiry)
{
    free(expiry->entries);
    *expiry = (struct expiry){.before = expiry->before};
}

void expiry_insert(struct expiry *expiry, struct expiry_node *node, uint64_t at_ms)
{
    CHECK(!expiry_contains(node));
    if (expiry->count == expiry->cap) {
        size_t cap = expiry->cap == 0 ? EXPIRY_CAP_FIRST : expiry->cap * 2;
        struct expiry_entry *entries = realloc(expiry->entries, cap * sizeof *entries);
        CHECK(entries != NULL);
        expiry->entries = entries;
        expiry->cap = cap;
    }
    size_t idx = expiry->count++;
    place(expiry, idx, (struct expiry_entry){.at_ms = at_ms, .node = node});
    sift_up(expiry, idx);
}

void expiry_remove(struct expiry *expiry, struct expiry_node *node)
{
    CHECK(node->idx < expiry->count && expiry->entries[node->idx].node == node);
    size_t idx = node->idx;
    struct expiry_entry last = expiry->entries[--expiry->count];
    node->idx = EXPIRY_NOWHERE;
    if (last.node != node) {
        place(expiry, idx, last);
        sift_up(expiry, idx);
        sift_down(expiry, last.node->idx);
    }
}

void expiry_move(struct expiry *expiry, struct expiry_node *node, uint64_t at_ms)
{
    CHECK(node->idx < expiry->count && expiry->entries[node->idx].node == node);
    uint64_t before_ms = expiry->entries[node->idx].at_ms;
    expiry->entries[node->idx].at_ms = at_ms;
    if (at_ms < before_ms) {
        sift_up(expiry, node->idx);
    } else if (at_ms > before_ms) {
        sift_down(expiry, node->idx);
    }
}

void expiry_set(struct expiry *expiry, struct expiry_node *node, uint64_t at_ms)
{
    CHECK(node->idx < expiry->count && expiry->entries[node->idx].node == node);
    expiry->entries[node->idx].at_ms = at_ms;
}

void expiry_reorder(struct expiry *expiry)
{
    if (expiry->count < 2) {
        return;
    }
    for (size_t idx = (expiry->count - 2) / CHILDREN + 1; idx-- > 0;) {
        sift_down(expiry, idx);
    }
}

struct expiry_node *expiry_first(const struct expiry *expiry)
{
    return expiry->count == 0 ? NULL : expiry->entries[0].node;
}

uint64_t expiry_first_ms(const struct expiry *expiry)
{
    return expiry->count == 0 ? EXPIRY_NEVER : expiry->entries[0].at_ms;
}

/* Depth first: whatever hangs below an element that is not due is not due either. */
void expiry_visit_due(const struct expiry *expiry, uint64_t now_ms, expiry_visit_cb cb, void *ctx)
{
    size_t idx = 0;
    for (;;) {
        if (idx < expiry->count && expiry->entries[idx].at_ms < now_ms) {
            if (!cb(ctx, expiry->entries[idx].node)) {
                return;
            }
            idx = CHILDREN * idx + 1;
            continue;
        }
        while (idx != 0 && idx % CHILDREN == 0) {
            idx = (idx - 1) / CHILDREN; /* the last of its parent's children: up */
        }
        if (idx == 0) {
            return;
        }
        idx++;
    }
}

bool expiry_sound(const struct expiry *expiry)
{
    for (size_t idx = 0; idx < expiry->count; idx++) {
        if (expiry->entries[idx].node->idx != idx) {
            return false;
        }
        if (idx > 0 && !comes_before(expiry, expiry->entries[(idx - 1) / CHILDREN],
                                     expiry->entries[idx])) {
            return false;
        }
    }
    return true;
}

static bool comes_before(const struct expiry *expiry, struct expiry_entry a, struct expiry_entry b)
{
    return a.at_ms != b.at_ms ? a.at_ms < b.at_ms : expiry->before(a.node, b.node);
}

static void place(struct expiry *expiry, size_t idx, struct expiry_entry entry)
{
    expiry->entries[idx] = entry;
    entry.node->idx = idx;
}

static void sift_up(struct expiry *expiry, size_t idx)
{
    struct expiry_entry entry = expiry->entries[idx];
    while (idx > 0) {
        size_t parent = (idx - 1) / CHILDREN;
        if (!comes_before(expiry, entry, expiry->entries[parent])) {
            break;
        }
        place(expiry, idx, expiry->entries[parent]);
        idx = parent;
    }
    place(expiry, idx, entry);
}

static void sift_down(struct expiry *expiry, size_t idx)
{
    struct expiry_entry entry = expiry->entries[idx];
    for (;;) {
        size_t first = CHILDREN * idx + 1;
        if (first >= expiry->count) {
            break;
        }
        size_t end = expiry->count - first < CHILDREN ? expiry->count : first + CHILDREN;
        size_t least = first;
        for (size_t child = first + 1; child < end; child++) {
            if (comes_before(expiry, expiry->entries[child], expiry->entries[least])) {
                least = child;
            }
        }
        if (!comes_before(expiry, expiry->entries[least], entry)) {
            break;
        }
        place(expiry, idx, expiry->entries[least]);
        idx = least;
    }
    place(expiry, idx, entry);
}
