/* Heights instead of balance factors: rebalancing after an insertion and after a removal is then
 * the same walk towards the root, which ends where a subtree's height stayed as it was (Knuth, The
 * Art of Computer Programming 3, 6.2.3). Parent links make walking possible without a stack. */
#include "fsm/base/tree.h"

#include "fsm/base/check.h"

static uint64_t prefix_of(struct slice key);
static int compare(uint64_t prefix, struct slice key, const struct tree_node *node);
static uint32_t height_of(const struct tree_node *node);
static void update_height(struct tree_node *node);
static void replace_child(struct tree *tree, struct tree_node *old, struct tree_node *new);
static struct tree_node *rotate_left(struct tree *tree, struct tree_node *node);
static struct tree_node *rotate_right(struct tree *tree, struct tree_node *node);
static void rebalance(struct tree *tree, struct tree_node *node);

void tree_init(struct tree *tree)
{
    *tree = (struct tree){0};
}

void tree_insert(struct tree *tree, struct tree_node *node, struct slice key)
{
    CHECK(key.len <= UINT32_MAX);
    *node = (struct tree_node){
        .key = key.base,
        .prefix = prefix_of(key),
        .key_len = (uint32_t)key.len,
        .height = 1,
    };
    struct tree_node **link = &tree->root;
    while (*link != NULL) {
        node->parent = *link;
        int order = compare(node->prefix, key, *link);
        CHECK(order != 0);
        link = order < 0 ? &(*link)->left : &(*link)->right;
    }
    *link = node;
    tree->count++;
    rebalance(tree, node->parent);
}

void tree_remove(struct tree *tree, struct tree_node *node)
{
    CHECK(node->height > 0 && tree->count > 0);
    struct tree_node *start; /* the lowest node whose subtree changed */
    if (node->left == NULL || node->right == NULL) {
        struct tree_node *child = node->left != NULL ? node->left : node->right;
        start = node->parent;
        replace_child(tree, node, child);
    } else {
        struct tree_node *heir = node->right;
        while (heir->left != NULL) {
            heir = heir->left;
        }
        start = heir->parent == node ? heir : heir->parent;
        if (heir->parent != node) {
            replace_child(tree, heir, heir->right);
            heir->right = node->right;
            heir->right->parent = heir;
        }
        replace_child(tree, node, heir);
        heir->left = node->left;
        heir->left->parent = heir;
        heir->height = node->height;
    }
    tree->count--;
    node->height = 0;
    rebalance(tree, start);
}

struct tree_node *tree_find(const struct tree *tree, struct slice key)
{
    uint64_t prefix = prefix_of(key);
    struct tree_node *node = tree->root;
    while (node != NULL) {
        int order = compare(prefix, key, node);
        if (order == 0) {
            return node;
        }
        node = order < 0 ? node->left : node->right;
    }
    return NULL;
}

struct tree_node *tree_find_from(const struct tree *tree, struct slice key)
{
    uint64_t prefix = prefix_of(key);
    struct tree_node *best = NULL;
    struct tree_node *node = tree->root;
    while (node != NULL) {
        if (compare(prefix, key, node) <= 0) {
            best = node;
            node = node->left;
        } else {
            node = node->right;
        }
    }
    return best;
}

struct tree_node *tree_find_after(const struct tree *tree, struct slice key)
{
    struct tree_node *node = tree_find_from(tree, key);
    if (node != NULL && slice_equal(tree_key(node), key)) {
        node = tree_next(node);
    }
    return node;
}

struct tree_node *tree_first(const struct tree *tree)
{
    struct tree_node *node = tree->root;
    while (node != NULL && node->left != NULL) {
        node = node->left;
    }
    return node;
}

struct tree_node *tree_next(const struct tree_node *node)
{
    CHECK(node->height > 0);
    if (node->right != NULL) {
        struct tree_node *next = node->right;
        while (next->left != NULL) {
            next = next->left;
        }
        return next;
    }
    while (node->parent != NULL && node->parent->right == node) {
        node = node->parent;
    }
    return node->parent;
}

bool tree_sound(const struct tree *tree)
{
    size_t count = 0;
    const struct tree_node *before = NULL;
    if (tree->root != NULL && tree->root->parent != NULL) {
        return false;
    }
    for (const struct tree_node *node = tree_first(tree); node != NULL; node = tree_next(node)) {
        uint32_t left = height_of(node->left);
        uint32_t right = height_of(node->right);
        uint32_t taller = left > right ? left : right;
        uint32_t lower = left > right ? right : left;
        if (node->height != taller + 1 || taller - lower > 1) {
            return false;
        }
        if ((node->left != NULL && node->left->parent != node) ||
            (node->right != NULL && node->right->parent != node)) {
            return false;
        }
        if (before != NULL && slice_compare(tree_key(before), tree_key(node)) >= 0) {
            return false;
        }
        if (node->prefix != prefix_of(tree_key(node)) || ++count > tree->count) {
            return false;
        }
        before = node;
    }
    return count == tree->count;
}

static uint64_t prefix_of(struct slice key)
{
    uint64_t prefix = 0;
    if (key.len >= 8) {
        memcpy(&prefix, key.base, 8);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
        prefix = __builtin_bswap64(prefix);
#endif
        return prefix;
    }
    for (size_t i = 0; i < key.len; i++) {
        prefix |= (uint64_t)key.base[i] << (56 - 8 * i);
    }
    return prefix;
}

/* Order of a key against a node's. Where two prefixes differ they decide: a shorter key has zeros
 * in the place of the other's bytes, and comes first as it should. */
static int compare(uint64_t prefix, struct slice key, const struct tree_node *node)
{
    if (prefix != node->prefix) {
        return prefix < node->prefix ? -1 : 1;
    }
    return slice_compare(key, tree_key(node));
}

static uint32_t height_of(const struct tree_node *node)
{
    return node == NULL ? 0 : node->height;
}

static void update_height(struct tree_node *node)
{
    uint32_t left = height_of(node->left);
    uint32_t right = height_of(node->right);
    node->height = (left > right ? left : right) + 1;
}

/* Put `new` (or nothing) where `old` hangs; the links below `old` stay as they are. */
static void replace_child(struct tree *tree, struct tree_node *old, struct tree_node *new)
{
    struct tree_node *parent = old->parent;
    if (parent == NULL) {
        tree->root = new;
    } else if (parent->left == old) {
        parent->left = new;
    } else {
        parent->right = new;
    }
    if (new != NULL) {
        new->parent = parent;
    }
}

/* The right child goes up; returns it. */
static struct tree_node *rotate_left(struct tree *tree, struct tree_node *node)
{
    struct tree_node *up = node->right;
    replace_child(tree, node, up);
    node->right = up->left;
    if (node->right != NULL) {
        node->right->parent = node;
    }
    up->left = node;
    node->parent = up;
    update_height(node);
    update_height(up);
    return up;
}

static struct tree_node *rotate_right(struct tree *tree, struct tree_node *node)
{
    struct tree_node *up = node->left;
    replace_child(tree, node, up);
    node->left = up->right;
    if (node->left != NULL) {
        node->left->parent = node;
    }
    up->right = node;
    node->parent = up;
    update_height(node);
    update_height(up);
    return up;
}

static void rebalance(struct tree *tree, struct tree_node *node)
{
    while (node != NULL) {
        uint32_t before = node->height;
        uint32_t left = height_of(node->left);
        uint32_t right = height_of(node->right);
        if (left > right + 1) {
            if (height_of(node->left->left) < height_of(node->left->right)) {
                (void)rotate_left(tree, node->left);
            }
            node = rotate_right(tree, node);
        } else if (right > left + 1) {
            if (height_of(node->right->right) < height_of(node->right->left)) {
                (void)rotate_right(tree, node->right);
            }
            node = rotate_left(tree, node);
        } else {
            update_height(node);
        }
        if (node->height == before) {
            return;
        }
        node = node->parent;
    }
}
