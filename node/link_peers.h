/* Whom the links of a node want to reach: peers by id, seeds by address, and when to dial each.
 * Pure bookkeeping; the connections themselves are node/link.c's. */
#ifndef NODE_LINK_PEERS_H_
#define NODE_LINK_PEERS_H_

#include <stdbool.h>
#include <stdint.h>

#include "fsm/base/rng.h"
#include "node/address.h"

#define LINK_SEEDS_MAX 16u
#define LINK_TARGETS_MAX 1024u

/* A link that can't be had is dialled again after 25..50 ms, doubling up to 200..400 ms; so with a
 * dial's own 500 ms it is there within a second of whatever was in its way. Who was refused waits
 * longer: that takes a person. */
#define LINK_RETRY_MS_FIRST 50u
#define LINK_RETRY_MS_MAX 400u
#define LINK_RETRY_MS_REFUSED 1000u

struct link;

struct link_target {
    uint64_t id; /* 0: a seed, whose id is not known */
    struct address address;
    char text[ADDRESS_TEXT_LEN]; /* of the address */
    uint64_t dial_at_ns;
    unsigned failures; /* since it was last up */
    struct link *dial; /* borrowed; NULL: none in progress */
    struct link *up;   /* borrowed; NULL: not up */
};

struct link_targets {
    struct link_target *peers[LINK_TARGETS_MAX]; /* by rising id */
    unsigned peer_count;
    struct link_target *seeds[LINK_SEEDS_MAX];
    unsigned seed_count;
};

void link_targets_init(struct link_targets *targets);
void link_targets_deinit(struct link_targets *targets);

struct link_target *link_targets_find(const struct link_targets *targets, uint64_t id);

/* The peer of that id, made or corrected; NULL when there is no room. Dialled at once where the
 * address is new. */
struct link_target *link_targets_put(struct link_targets *targets, uint64_t id,
                                     const struct address *address, uint64_t now_ns);

/* Nothing happens to a seed that is known, that is a peer's address, or that finds no room. */
void link_targets_put_seed(struct link_targets *targets, const struct address *address,
                           uint64_t now_ns);

/* Forget it; the caller has seen to its links. */
void link_targets_drop(struct link_targets *targets, struct link_target *target);

/* After a failure: count it and say when to dial again. */
void link_target_failed(struct link_target *target, bool refused, struct rng *rng,
                        uint64_t now_ns);

#endif
