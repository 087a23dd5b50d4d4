/* Digests of records, and sums of them.
 *
 * Each table keeps the sum (mod 2^64) of one hash per record; a change subtracts the old and adds
 * the new. The sum does not depend on the order of records, which makes it O(1) to keep up to date,
 * and the hash ends in an avalanche, so that a difference anywhere shows (docs/design.md). No
 * defence against somebody who chooses records: a replica is not an adversary of its peers here. */
#ifndef FSM_DIGEST_H_
#define FSM_DIGEST_H_

#include <stddef.h>
#include <stdint.h>

#include "fsm/base/hash.h"
#include "fsm/base/slice.h"

/* Distinct starts, so that equal bytes in different tables count differently. */
enum digest_seed {
    DIGEST_SEED_SCALARS = 1,
    DIGEST_SEED_SPACE = 2,
    DIGEST_SEED_LEASE = 3,
    DIGEST_SEED_TOMBSTONE = 4,
    DIGEST_SEED_OWNER = 5,
    DIGEST_SEED_DEPARTURE = 6,
    DIGEST_SEED_MARK = 7,
    DIGEST_SEED_ORIGIN = 8,
    DIGEST_SEED_OUTCOME = 9,
};

/* Of numbers, word by word as hash64 does with bytes; the machine's byte order plays no part. */
#define DIGEST_PRIME 0x9E3779B97F4A7C15ull /* odd, 2^64 over the golden ratio */

static inline uint64_t digest_numbers(uint64_t seed, const uint64_t *numbers, size_t count)
{
    uint64_t digest = seed;
    for (size_t i = 0; i < count; i++) {
        digest = (digest ^ numbers[i]) * DIGEST_PRIME;
        digest ^= digest >> 32;
    }
    digest *= DIGEST_PRIME;
    return digest ^ digest >> 29;
}

/* The length goes in as well: "a" + "bc" is not "ab" + "c". An absent slice is not an empty one. */
static inline uint64_t digest_slice(uint64_t seed, struct slice slice)
{
    return hash64(seed ^ (slice.base == NULL ? UINT64_MAX : (uint64_t)slice.len << 32), slice.base,
                  slice.len);
}

#endif
