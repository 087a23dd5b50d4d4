/* What an entry costs a node, to be counted in instructions: tests/bench/instructions runs this
 * under callgrind, where the load of the machine plays no part.
 *
 * 10,000 leases of one namespace are renewed round after round, in one of two forms:
 *
 *   one    entries of 64 commands of one key each, of 16 owners, in random order of keys
 *   many   entries of one command of 700 keys of one owner
 *
 * Each step is a function of its own, so that callgrind can tell them apart: making the command is
 * the work of the node that was asked, closing the entry the leader's, decoding and applying that
 * of every node, reading the result again that of the node that answers. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fsm/base/check.h"
#include "fsm/base/rng.h"
#include "fsm/command_codec.h"
#include "fsm/fsm.h"
#include "fsm/result.h"

#define LEASES 10000u
#define OWNERS 16u
#define KEY_LEN 40u
#define TTL_MS 120000u
#define KEYS_OF_MANY 700u
#define COMMANDS_OF_ONE 64u
#define ENTRY_MS 5u /* cluster time between two entries */

#define STEP __attribute__((noinline))

struct bench {
    struct fsm *fsm;
    struct command_decoder *commands;
    struct result_decoder *results;
    struct buf body;
    struct buf entry;
    struct buf result;
    struct rng rng;
    uint64_t index;
    uint64_t clock_ms;
    uint64_t origin;
    uint64_t sequence;
    uint64_t keys_done;
    char owners[OWNERS][64];
    char keys[LEASES][KEY_LEN + 1];
    uint32_t order[LEASES];
    struct key_item items[KEYS_OF_MANY];
};

static STEP void step_make(struct bench *bench, const struct command *commands, uint32_t count)
{
    buf_clear(&bench->body);
    for (uint32_t i = 0; i < count; i++) {
        command_encode(&commands[i], &bench->body);
    }
}

static STEP void step_close(struct bench *bench, uint32_t count)
{
    buf_clear(&bench->entry);
    entry_encode(bench->clock_ms, buf_slice(&bench->body), count, &bench->entry);
}

static STEP void step_decode(struct bench *bench, struct entry *out_entry)
{
    uint32_t version = 0;
    CHECK(entry_decode(bench->commands, buf_slice(&bench->entry), out_entry, &version) ==
          STATUS_OK);
}

static void on_result(void *ctx, uint32_t place, struct slice result)
{
    struct bench *bench = ctx;
    (void)place;
    buf_clear(&bench->result);
    buf_append(&bench->result, result.base, result.len);
}

static STEP void step_apply(struct bench *bench, const struct entry *entry)
{
    fsm_apply(bench->fsm, ++bench->index, entry, on_result, bench);
}

static STEP void step_answer(struct bench *bench, struct result *out_result)
{
    CHECK(result_decode(bench->results, buf_slice(&bench->result), out_result) == STATUS_OK);
}

/* One entry, from the commands to the last result; what every command's keys became is checked. */
static void play(struct bench *bench, const struct command *commands, uint32_t count,
                 enum outcome_kind expected)
{
    struct entry entry;
    struct result result;
    bench->clock_ms += ENTRY_MS;
    step_make(bench, commands, count);
    step_close(bench, count);
    step_decode(bench, &entry);
    step_apply(bench, &entry);
    step_answer(bench, &result);
    CHECK(result.status == STATUS_OK);
    for (uint32_t i = 0; i < result.outcome_count; i++) {
        CHECK(result.outcomes[i].kind == expected);
    }
    for (uint32_t i = 0; i < count; i++) {
        bench->keys_done += commands[i].op.key_count;
    }
}

static struct command command_of(struct bench *bench, enum op_kind kind, uint32_t owner)
{
    uint64_t sequence = ++bench->sequence;
    return (struct command){
        .origin = bench->origin,
        .sequence = sequence,
        /* What was asked some entries ago is confirmed. */
        .confirmed = sequence > 4 * COMMANDS_OF_ONE ? sequence - 4 * COMMANDS_OF_ONE : 0,
        .op = {.kind = kind,
               .ns = slice_text("default"),
               .owner = slice_text(bench->owners[owner]),
               .ttl_ms = TTL_MS},
    };
}

static void many(struct bench *bench, enum op_kind kind, uint32_t first, uint32_t owner,
                 enum outcome_kind expected)
{
    uint32_t count = LEASES - first < KEYS_OF_MANY ? LEASES - first : KEYS_OF_MANY;
    for (uint32_t i = 0; i < count; i++) {
        bench->items[i] = (struct key_item){.key = slice_from(bench->keys[first + i], KEY_LEN)};
    }
    struct command command = command_of(bench, kind, owner);
    command.op.keys = bench->items;
    command.op.key_count = count;
    play(bench, &command, 1, expected);
}

static void play_many(struct bench *bench)
{
    for (uint32_t first = 0; first < LEASES; first += KEYS_OF_MANY) {
        many(bench, OP_KIND_RENEW, first, 0, OUTCOME_KIND_RENEWED);
    }
}

static void play_one(struct bench *bench, enum op_kind kind, enum outcome_kind expected)
{
    struct command commands[COMMANDS_OF_ONE];
    struct key_item items[COMMANDS_OF_ONE];
    uint32_t count = 0;
    for (uint32_t i = 0; i < LEASES; i++) {
        uint32_t key = bench->order[i];
        items[count] = (struct key_item){.key = slice_from(bench->keys[key], KEY_LEN)};
        commands[count] = command_of(bench, kind, key % OWNERS);
        commands[count].op.keys = &items[count];
        commands[count].op.key_count = 1;
        if (++count == COMMANDS_OF_ONE || i + 1 == LEASES) {
            play(bench, commands, count, expected);
            count = 0;
        }
    }
}

static void name_everything(struct bench *bench)
{
    for (uint32_t i = 0; i < OWNERS; i++) {
        (void)snprintf(bench->owners[i], sizeof bench->owners[i],
                       "host-%02" PRIu32 ":%016" PRIx64 "%016" PRIx64, i, rng_next(&bench->rng),
                       rng_next(&bench->rng));
    }
    for (uint32_t i = 0; i < LEASES; i++) {
        (void)snprintf(bench->keys[i], sizeof bench->keys[i],
                       "sbx-%016" PRIx64 "%016" PRIx64 "%04x", rng_next(&bench->rng),
                       rng_next(&bench->rng), (unsigned)i & 0xffffu);
        uint32_t other = (uint32_t)rng_below(&bench->rng, i + 1);
        bench->order[i] = bench->order[other];
        bench->order[other] = i;
    }
}

static void begin(struct bench *bench)
{
    struct command birth = {.op = {.kind = OP_KIND_BIRTH,
                                   .identity = {.id = {1}, .generation = 1},
                                   .token_floor = 1700000000000ull * 1024,
                                   .settings = settings_default()}};
    struct entry entry = {.commands = &birth, .command_count = 1};
    fsm_apply(bench->fsm, ++bench->index, &entry, NULL, NULL);
    struct command open = {.op = {.kind = OP_KIND_OPEN_ORIGIN, .node_id = 1, .nonce = 1}};
    entry.commands = &open;
    fsm_apply(bench->fsm, ++bench->index, &entry, on_result, bench);
    struct result result;
    step_answer(bench, &result);
    bench->origin = result.origin;
}

int main(int argc, char **argv)
{
    bool one = argc == 3 && strcmp(argv[1], "one") == 0;
    if (argc != 3 || (!one && strcmp(argv[1], "many") != 0)) {
        fprintf(stderr, "usage: bench_fsm one|many ROUNDS\n");
        return 2;
    }
    unsigned long rounds = strtoul(argv[2], NULL, 10);
    struct bench *bench = calloc(1, sizeof *bench);
    CHECK(bench != NULL);
    bench->fsm = fsm_create();
    bench->commands = command_decoder_create();
    bench->results = result_decoder_create();
    buf_init(&bench->body, ENTRY_LEN_MAX);
    buf_init(&bench->entry, ENTRY_LEN_MAX);
    buf_init(&bench->result, ENTRY_LEN_MAX);
    rng_init(&bench->rng, 1);
    name_everything(bench);
    begin(bench);
    if (one) {
        play_one(bench, OP_KIND_TAKE, OUTCOME_KIND_GRANTED);
    } else {
        for (uint32_t first = 0; first < LEASES; first += KEYS_OF_MANY) {
            many(bench, OP_KIND_CLAIM, first, 0, OUTCOME_KIND_GRANTED);
        }
    }
    bench->keys_done = 0;
    for (unsigned long i = 0; i < rounds; i++) {
        if (one) {
            play_one(bench, OP_KIND_RENEW, OUTCOME_KIND_RENEWED);
        } else {
            play_many(bench);
        }
    }
    printf("%" PRIu64 " keys renewed, digest %016" PRIx64 "\n", bench->keys_done,
           fsm_digest(bench->fsm));
    buf_deinit(&bench->body);
    buf_deinit(&bench->entry);
    buf_deinit(&bench->result);
    command_decoder_destroy(bench->commands);
    result_decoder_destroy(bench->results);
    fsm_destroy(bench->fsm);
    free(bench);
    return 0;
}
