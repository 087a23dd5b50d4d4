/* Intrusive balanced tree (AVL), ordered by runs of bytes.
 *
 * The links live in the element, and so do the bytes that order it: linking never allocates, and
 * the bytes must not move while the element is in the tree. A copy of the first eight bytes stands
 * in the node, so that most steps of a search touch nothing else of an element. */
#ifndef FSM_BASE_TREE_H_
#define FSM_BASE_TREE_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fsm/base/slice.h"

struct tree_node {
    struct tree_node *parent;
    struct tree_node *left;
    struct tree_node *right;
    const uint8_t *key; /* borrowed from the element */
    uint64_t prefix;    /* the first eight bytes, big-endian, zeros behind */
    uint32_t key_len;
    uint32_t height; /* of the subtree below and with this node; 0: in no tree */
};

struct tree {
    struct tree_node *root;
    size_t count;
};

void tree_init(struct tree *tree);

/* Puts the node under this key, which must not be there yet (CHECK). */
void tree_insert(struct tree *tree, struct tree_node *node, struct slice key);
void tree_remove(struct tree *tree, struct tree_node *node);

/* The node with exactly this key, or NULL. */
struct tree_node *tree_find(const struct tree *tree, struct slice key);

/* The node with the smallest key that is at least `key`, or more than it; or NULL. */
struct tree_node *tree_find_from(const struct tree *tree, struct slice key);
struct tree_node *tree_find_after(const struct tree *tree, struct slice key);

/* In order. NULL after the last. */
struct tree_node *tree_first(const struct tree *tree);
struct tree_node *tree_next(const struct tree_node *node);

static inline struct slice tree_key(const struct tree_node *node)
{
    return slice_from(node->key, node->key_len);
}

/* True when the key of `a` comes before that of `b`. Where the prefixes differ they decide. */
static inline bool tree_node_before(const struct tree_node *a, const struct tree_node *b)
{
    return a->prefix != b->prefix ? a->prefix < b->prefix
                                  : slice_compare(tree_key(a), tree_key(b)) < 0;
}

/* True when order, balance, links and the count are right. For tests and invariants. */
bool tree_sound(const struct tree *tree);

#endif
