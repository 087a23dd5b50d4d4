/* A seeded random number generator (xoshiro256**, Blackman and Vigna 2018): the only source of
 * chance in pure code, so that a run can be replayed from its seed. Not for secrets. */
#ifndef FSM_BASE_RNG_H_
#define FSM_BASE_RNG_H_

#include <stdbool.h>
#include <stdint.h>

struct rng {
    uint64_t s[4];
};

void rng_init(struct rng *rng, uint64_t seed);
uint64_t rng_next(struct rng *rng);

/* A number in [0, bound); bound > 0. */
uint64_t rng_below(struct rng *rng, uint64_t bound);

/* True in `per_mille` of a thousand cases. */
bool rng_chance(struct rng *rng, unsigned per_mille);

#endif
