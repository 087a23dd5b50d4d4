/* What is held back while numbers are being settled: whatever an owner asks whose request may still
 * take effect, and every read of the keys that it named.
 *
 * Names are remembered by hash and counted, so that a check costs the same however much is being
 * settled, and nothing when nothing is. Two names with one hash only hold back more than they must,
 * until the settle is answered. Pure. */
#ifndef NODE_HOLDS_H_
#define NODE_HOLDS_H_

#include "fsm/types.h"

/* A counted set of hashes. */
struct hold_set {
    struct hold_slot *slots; /* owned, open addressing; NULL while never used */
    uint32_t cap;            /* a power of two */
    uint32_t used;           /* slots that hold a hash, also those counted down to 0 */
};

struct holds {
    struct hold_set set;
    uint32_t active; /* holds that are in force */
};

/* One number's hold. Embedded by whoever owns the number; it stays valid when the request that it
 * was made from is gone. */
struct hold {
    uint64_t owner;    /* hash of namespace and owner */
    uint64_t ns;       /* hash of the namespace: pages and counts */
    uint64_t ns_whole; /* the same where all keys are meant, else 0 */
    uint64_t key;      /* the first key; 0 where there is none */
    uint64_t *more;    /* owned; the keys after the first, or NULL */
    uint32_t more_count;
    bool made;
};

void holds_init(struct holds *holds);
void holds_deinit(struct holds *holds);

/* Remember the names of an operation; nothing is held back yet. */
void hold_make(struct hold *hold, const struct op *op);

/* Forget them; it must not be in force. Harmless for one that was not made. */
void hold_clear(struct hold *hold);

/* In force from now on, until holds_remove. */
void holds_add(struct holds *holds, const struct hold *hold);
void holds_remove(struct holds *holds, const struct hold *hold);

/* True when an operation of this namespace and owner has to wait. */
bool holds_block_owner(const struct holds *holds, struct slice ns, struct slice owner);

/* True when a read of these keys has to wait; without keys: pages and counts of the namespace. */
bool holds_block_read(const struct holds *holds, struct slice ns, const struct key_item *keys,
                      uint32_t key_count);

#endif
