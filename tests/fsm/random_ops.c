/* See random_ops.h. */
#include "tests/fsm/random_ops.h"

#include <stdio.h>

#include "fsm/result.h"
#include "tests/fsm/driver.h"

static const char *const owners[] = {"A", "B", "C", "host:1|x"};
static const char *const namespaces[] = {"default", "other"};
static const char *const metas[] = {"", "u", "http://sandbox:8080"};

static struct op caller_op(struct random_ops *random);
static void fill_items(struct random_ops *random, struct op *op);
static struct op node_op(struct random_ops *random);

void random_ops_init(struct random_ops *random, uint64_t seed)
{
    *random = (struct random_ops){.generation = 1, .cluster = 1};
    rng_init(&random->rng, seed);
}

struct settings random_settings(uint64_t removal_slice)
{
    return (struct settings){
        .leases_max = 10,
        .leases_per_namespace_max = 7,
        .tombstones_max = 8,
        .tombstone_retention_ms = 500,
        .departures_max = 3,
        .origins_max = 3,
        .origin_retention_ms = 3000,
        .removal_slice = removal_slice,
        .voters_wanted = VOTERS_WANTED_DEFAULT,
    };
}

struct command random_command(struct random_ops *random)
{
    struct command command = {0};
    if (rng_chance(&random->rng, 80)) {
        command.op = node_op(random);
        return command;
    }
    command.op = caller_op(random);
    size_t who = rng_below(&random->rng, RANDOM_ORIGINS_MAX);
    command.origin = random->origins[who] != 0 ? random->origins[who] : 1;
    uint64_t newest = random->sequences[who] + 1;
    command.sequence = newest;
    if (rng_chance(&random->rng, 100) && newest > 1) {
        command.sequence = newest - 1 - rng_below(&random->rng, newest < 6 ? newest - 1 : 6);
        command.sequence = command.sequence == 0 ? 1 : command.sequence;
    } else {
        random->sequences[who] = newest;
    }
    if (command.sequence > 4) {
        command.confirmed = command.sequence - 1 - rng_below(&random->rng, 4);
    }
    return command;
}

void random_pass(struct random_ops *random)
{
    uint64_t ms = rng_below(&random->rng, 20);
    if (rng_chance(&random->rng, 20)) {
        ms += rng_below(&random->rng, 700);
    }
    random->clock_ms += ms;
}

void random_learn(struct random_ops *random, const struct command *command,
                  const struct result *result)
{
    if (result->status != STATUS_OK) {
        if (result->status == STATUS_ORIGIN_UNKNOWN && command->origin > 1) {
            for (size_t i = 0; i < RANDOM_ORIGINS_MAX; i++) {
                if (random->origins[i] == command->origin) {
                    random->origins[i] = 0;
                }
            }
        }
        return;
    }
    for (uint32_t i = 0; i < result->outcome_count; i++) {
        uint64_t token = result->outcomes[i].token;
        if (token != 0) {
            random->tokens[token % 16] = token;
        }
    }
    if (result->kind == OP_KIND_RENEW_ALL && rng_chance(&random->rng, 500)) {
        random->set_version = result->set_version;
    }
    if (result->kind == OP_KIND_OPEN_ORIGIN) {
        size_t who = rng_below(&random->rng, RANDOM_ORIGINS_MAX);
        random->origins[who] = result->origin;
        random->sequences[who] = 0;
    }
}

static struct op caller_op(struct random_ops *random)
{
    struct rng *rng = &random->rng;
    static const enum op_kind kinds[] = {
        OP_KIND_TAKE,      OP_KIND_TAKE,      OP_KIND_CLAIM,   OP_KIND_CLAIM,
        OP_KIND_CLAIM,     OP_KIND_CLAIM,     OP_KIND_RENEW,   OP_KIND_RENEW,
        OP_KIND_RENEW,     OP_KIND_HEARTBEAT, OP_KIND_RELEASE, OP_KIND_RELEASE,
        OP_KIND_RENEW_ALL, OP_KIND_RENEW_ALL, OP_KIND_RELEASE_ALL, OP_KIND_PURGE,
    };
    struct op op = {
        .kind = kinds[rng_below(rng, sizeof kinds / sizeof kinds[0])],
        .ns = slice_text(namespaces[rng_chance(rng, 150)]),
    };
    if (op.kind == OP_KIND_PURGE && rng_chance(rng, 700)) {
        op.kind = OP_KIND_RENEW_ALL;
    }
    if (op.kind != OP_KIND_PURGE) {
        op.owner = slice_text(owners[rng_below(rng, 4)]);
    }
    if (op.kind == OP_KIND_RELEASE_ALL || op.kind == OP_KIND_PURGE) {
        return op;
    }
    if (op.kind != OP_KIND_RELEASE) {
        op.ttl_ms = 10 + rng_below(rng, 200);
    }
    if (op.kind == OP_KIND_RENEW_ALL) {
        op.has_set_version = rng_chance(rng, 800);
        op.set_version = op.has_set_version ? random->set_version : 0;
        return op;
    }
    op.destroy = op.kind == OP_KIND_CLAIM && rng_chance(rng, 300);
    op.adopt = op.kind == OP_KIND_CLAIM && rng_chance(rng, 300);
    op.grace_ms = op.adopt ? rng_below(rng, 300) : 0;
    op.reestablish = op.kind == OP_KIND_RENEW && rng_chance(rng, 400);
    fill_items(random, &op);
    return op;
}

static void fill_items(struct random_ops *random, struct op *op)
{
    struct rng *rng = &random->rng;
    bool one = op->kind == OP_KIND_TAKE || op->kind == OP_KIND_HEARTBEAT;
    bool guardable = op->kind != OP_KIND_TAKE && (op->kind != OP_KIND_CLAIM || op->destroy);
    bool writes = op->kind == OP_KIND_TAKE || op->kind == OP_KIND_CLAIM || op->reestablish;
    uint32_t count = one ? 1 : 1 + (uint32_t)rng_below(rng, RANDOM_KEYS_MAX);
    uint64_t first = rng_below(rng, 9);
    for (uint32_t i = 0; i < count; i++) {
        (void)snprintf(random->keys[i], sizeof random->keys[i], "key-%u",
                       (unsigned)((first + i) % 9));
        struct key_item *item = &random->items[i];
        *item = (struct key_item){.key = slice_text(random->keys[i])};
        item->has_if_token = guardable && rng_chance(rng, 300);
        item->if_token = item->has_if_token ? random->tokens[rng_below(rng, 16)] : 0;
        if (writes && rng_chance(rng, 300)) {
            item->meta = slice_text(metas[rng_below(rng, 3)]);
        }
        if (writes && rng_chance(rng, 200)) {
            item->identity = slice_text(rng_chance(rng, 900) ? "id" : "di");
        }
    }
    op->keys = random->items;
    op->key_count = count;
}

static struct op node_op(struct random_ops *random)
{
    struct rng *rng = &random->rng;
    size_t who = rng_below(rng, RANDOM_ORIGINS_MAX);
    if (random->origins[who] == 0 || rng_chance(rng, 60)) {
        return (struct op){.kind = OP_KIND_OPEN_ORIGIN, .node_id = 1, .nonce = rng_next(rng)};
    }
    if (rng_chance(rng, 900)) {
        uint64_t newest = random->sequences[who] + 1;
        uint64_t back = rng_below(rng, 5);
        return (struct op){
            .kind = OP_KIND_SETTLE,
            .target_origin = random->origins[who],
            .target_sequence = newest > back ? newest - back : 1,
        };
    }
    if (rng_chance(rng, 400)) {
        return (struct op){.kind = OP_KIND_CONFIGURE,
                           .settings = random_settings(1 + rng_below(rng, 4))};
    }
    if (rng_chance(rng, 500)) {
        return (struct op){.kind = OP_KIND_RECOVER,
                           .identity = driver_identity(random->cluster, ++random->generation),
                           .token_floor = 0};
    }
    random->generation = 1;
    return (struct op){.kind = OP_KIND_RESTORE,
                       .identity = driver_identity(++random->cluster, 1),
                       .token_floor = 5000 + random->clock_ms};
}
