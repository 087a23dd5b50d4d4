/* A sorted array of pointers: a node has few peers, and the pointers stay good while others come
 * and go. */
#include "node/link_peers.h"

#include <stdlib.h>
#include <string.h>

#include "fsm/base/check.h"
#include "fsm/base/units.h"

static unsigned place_of(const struct link_targets *targets, uint64_t id);
static void set_address(struct link_target *target, const struct address *address);
static bool same_address(const struct address *a, const struct address *b);
static struct link_target *create(uint64_t id, const struct address *address, uint64_t now_ns);

void link_targets_init(struct link_targets *targets)
{
    *targets = (struct link_targets){0};
}

void link_targets_deinit(struct link_targets *targets)
{
    for (unsigned i = 0; i < targets->peer_count; i++) {
        free(targets->peers[i]);
    }
    for (unsigned i = 0; i < targets->seed_count; i++) {
        free(targets->seeds[i]);
    }
}

struct link_target *link_targets_find(const struct link_targets *targets, uint64_t id)
{
    unsigned idx = place_of(targets, id);
    bool found = idx < targets->peer_count && targets->peers[idx]->id == id;
    return found ? targets->peers[idx] : NULL;
}

struct link_target *link_targets_put(struct link_targets *targets, uint64_t id,
                                     const struct address *address, uint64_t now_ns)
{
    CHECK(id != 0);
    unsigned idx = place_of(targets, id);
    if (idx < targets->peer_count && targets->peers[idx]->id == id) {
        struct link_target *known = targets->peers[idx];
        if (!same_address(&known->address, address)) {
            set_address(known, address);
            known->failures = 0;
            known->dial_at_ns = now_ns;
        }
        return known;
    }
    if (targets->peer_count == LINK_TARGETS_MAX) {
        return NULL;
    }
    memmove(&targets->peers[idx + 1], &targets->peers[idx],
            (targets->peer_count - idx) * sizeof targets->peers[0]);
    targets->peers[idx] = create(id, address, now_ns);
    targets->peer_count++;
    return targets->peers[idx];
}

void link_targets_put_seed(struct link_targets *targets, const struct address *address,
                           uint64_t now_ns)
{
    for (unsigned i = 0; i < targets->seed_count; i++) {
        if (same_address(&targets->seeds[i]->address, address)) {
            return;
        }
    }
    for (unsigned i = 0; i < targets->peer_count; i++) {
        if (same_address(&targets->peers[i]->address, address)) {
            return;
        }
    }
    if (targets->seed_count < LINK_SEEDS_MAX) {
        targets->seeds[targets->seed_count++] = create(0, address, now_ns);
    }
}

void link_targets_drop(struct link_targets *targets, struct link_target *target)
{
    struct link_target **all = target->id != 0 ? targets->peers : targets->seeds;
    unsigned *count = target->id != 0 ? &targets->peer_count : &targets->seed_count;
    unsigned idx = 0;
    while (idx < *count && all[idx] != target) {
        idx++;
    }
    CHECK(idx < *count);
    (*count)--;
    memmove(&all[idx], &all[idx + 1], (*count - idx) * sizeof all[0]);
    free(target);
}

void link_target_failed(struct link_target *target, bool refused, struct rng *rng,
                        uint64_t now_ns)
{
    uint64_t wait_ms = LINK_RETRY_MS_FIRST;
    for (unsigned i = 0; i < target->failures && wait_ms < LINK_RETRY_MS_MAX; i++) {
        wait_ms *= 2;
    }
    wait_ms = refused ? LINK_RETRY_MS_REFUSED : min_u64(wait_ms, LINK_RETRY_MS_MAX);
    uint64_t half_ns = ms_to_ns(wait_ms) / 2;
    target->dial_at_ns = now_ns + half_ns + rng_below(rng, half_ns + 1);
    target->failures++;
}

/* Where the id is, or would be. */
static unsigned place_of(const struct link_targets *targets, uint64_t id)
{
    unsigned low = 0;
    unsigned high = targets->peer_count;
    while (low < high) {
        unsigned middle = low + (high - low) / 2;
        if (targets->peers[middle]->id < id) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static struct link_target *create(uint64_t id, const struct address *address, uint64_t now_ns)
{
    struct link_target *target = calloc(1, sizeof *target);
    CHECK(target != NULL);
    target->id = id;
    target->dial_at_ns = now_ns;
    set_address(target, address);
    return target;
}

static void set_address(struct link_target *target, const struct address *address)
{
    target->address = *address;
    address_format(address, target->text);
}

static bool same_address(const struct address *a, const struct address *b)
{
    return a->v6 == b->v6 && a->port == b->port && memcmp(a->ip, b->ip, sizeof a->ip) == 0;
}
