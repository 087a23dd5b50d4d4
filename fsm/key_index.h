/* Elements by the hash of their key: finding one costs two or three cache misses, however many
 * there are. It stands beside an ordered tree, which it relieves of exact searches only.
 *
 * A bucket is one pointer to a chain; the links live in the elements, each with its whole hash
 * beside it, so that a step past another element reads sixteen bytes of it and no key. Growth is
 * by linear hashing (Litwin, 1980): one insertion adds at most one bucket and moves the chain of
 * one other, one removal takes at most two away. No operation moves a share of the table, and
 * memory follows the count in both directions: 8 to 16 bytes per element, once there are some.
 *
 * The hash is keyed, so that nobody who chooses keys can choose chains. The key of the hash is the
 * caller's; nothing that can be seen depends on it: there is no iteration, and a search for a key
 * has one answer. */
#ifndef FSM_KEY_INDEX_H_
#define FSM_KEY_INDEX_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fsm/base/hash.h"
#include "fsm/base/slice.h"

struct key_index_node {
    struct key_index_node *next; /* in its bucket's chain */
    uint64_t hash;
};

struct key_index_bucket {
    struct key_index_node *first; /* borrowed */
};

struct key_index {
    struct key_index_bucket **segments; /* owned, each owned */
    size_t segment_cap;
    size_t bucket_count;
    size_t count;
    struct hash_key hash_key;
};

/* Nothing is allocated before the first insertion. */
void key_index_init(struct key_index *index, const struct hash_key *hash_key);
void key_index_deinit(struct key_index *index);

static inline uint64_t key_index_hash(const struct key_index *index, struct slice key)
{
    return hash64_keyed(&index->hash_key, key.base, key.len);
}

/* `hash` is that of the element's key, which must not be there yet. */
void key_index_insert(struct key_index *index, struct key_index_node *node, uint64_t hash);
/* It must be there (CHECK). */
void key_index_remove(struct key_index *index, struct key_index_node *node);

/* The first element with this hash, the one after it, or NULL. Two keys with one hash are all but
 * impossible and still no error: the caller compares keys. */
struct key_index_node *key_index_first(const struct key_index *index, uint64_t hash);
struct key_index_node *key_index_next(const struct key_index_node *node);

/* Bytes that are allocated. */
size_t key_index_memory(const struct key_index *index);

/* True when every element stands where it is searched for and the count is right. For tests and
 * invariants. */
bool key_index_sound(const struct key_index *index);

#endif
