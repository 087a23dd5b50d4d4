/* Random commands for a state machine with few keys, owners and namespaces, so that everything
 * meets everything. The same seed gives the same commands. */
#ifndef TESTS_FSM_RANDOM_OPS_H_
#define TESTS_FSM_RANDOM_OPS_H_

#include "fsm/base/rng.h"
#include "fsm/command.h"

#define RANDOM_KEYS_MAX 4u
#define RANDOM_ORIGINS_MAX 4u

struct random_ops {
    struct rng rng;
    uint64_t clock_ms;
    uint64_t tokens[16]; /* seen in results: guards are drawn from these */
    uint64_t set_version;
    uint64_t origins[RANDOM_ORIGINS_MAX];
    uint64_t sequences[RANDOM_ORIGINS_MAX];
    uint64_t generation;
    uint8_t cluster;
    struct key_item items[RANDOM_KEYS_MAX];
    char keys[RANDOM_KEYS_MAX][16];
};

void random_ops_init(struct random_ops *random, uint64_t seed);

/* Small limits, so that each of them is met. */
struct settings random_settings(uint64_t removal_slice);

/* The next command; borrows from `random` until the next call. */
struct command random_command(struct random_ops *random);

/* Moves the clock: mostly a little, sometimes past everything. */
void random_pass(struct random_ops *random);

/* Learns tokens and versions from a result. */
struct result;
void random_learn(struct random_ops *random, const struct command *command,
                  const struct result *result);

#endif
