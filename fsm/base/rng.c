/* xoshiro256**, seeded through splitmix64 as its authors advise. */
#include "fsm/base/rng.h"

#include "fsm/base/check.h"

__extension__ typedef unsigned __int128 u128; /* no ISO C name for it */

static uint64_t rotate_left(uint64_t x, unsigned by);

void rng_init(struct rng *rng, uint64_t seed)
{
    for (unsigned i = 0; i < 4; i++) {
        seed += 0x9e3779b97f4a7c15ull;
        uint64_t z = seed;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
        rng->s[i] = z ^ (z >> 31);
    }
}

uint64_t rng_next(struct rng *rng)
{
    uint64_t *s = rng->s;
    uint64_t result = rotate_left(s[1] * 5, 7) * 9;
    uint64_t t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotate_left(s[3], 45);
    return result;
}

uint64_t rng_below(struct rng *rng, uint64_t bound)
{
    CHECK(bound > 0);
    /* Multiply-shift (Lemire 2019) without the rejection step: the bias is below 2^-32 for the
     * small bounds that simulations use. */
    return (uint64_t)(((u128)rng_next(rng) * bound) >> 64);
}

bool rng_chance(struct rng *rng, unsigned per_mille)
{
    return rng_below(rng, 1000) < per_mille;
}

static uint64_t rotate_left(uint64_t x, unsigned by)
{
    return (x << by) | (x >> (64 - by));
}
