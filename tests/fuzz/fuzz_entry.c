/* Decodes what an entry may hold under a fitting checksum, and what a result may. The input is the
 * number of commands (one byte) and the body. What is taken is encoded again, never longer than it
 * was; an entry is applied to a table with a lease, which must stay sound, and each of its results
 * is read. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "fsm/base/hash.h"
#include "fsm/command_codec.h"
#include "fsm/invariants.h"
#include "fsm/result.h"

#define ORIGIN_TOKEN_FLOOR 7u /* the origin is 8, the lease's token 9 */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool condition)
{
    if (!condition) {
        abort();
    }
}

static void seal(uint8_t count, struct slice body, struct buf *out)
{
    struct buf covered;
    buf_init(&covered, ENTRY_LEN_MAX);
    buf_append_u16(&covered, ENTRY_FORMAT_VERSION);
    buf_append_u16(&covered, count);
    buf_append_u32(&covered, (uint32_t)body.len);
    buf_append_u64(&covered, 1000);
    buf_append(&covered, body.base, body.len);
    buf_append(out, "TnEn", 4);
    buf_append_u32(out, crc32c(0, covered.base, covered.len));
    buf_append(out, covered.base, covered.len);
    buf_append_zeros(out, (8 - body.len % 8) % 8);
    buf_deinit(&covered);
}

static void on_result(void *ctx, uint32_t place, struct slice bytes)
{
    (void)place;
    struct result result;
    must(result_decode(ctx, bytes, &result) == STATUS_OK);
}

static struct fsm *born(struct result_decoder *results)
{
    static const struct key_item key = {.key = {(const uint8_t *)"k", 1}};
    const struct command commands[] = {
        {.op = {.kind = OP_KIND_BIRTH, .identity = {.id = {1}, .generation = 1},
                .token_floor = ORIGIN_TOKEN_FLOOR, .settings = settings_default()}},
        {.op = {.kind = OP_KIND_OPEN_ORIGIN, .node_id = 1, .nonce = 1}},
        {.origin = ORIGIN_TOKEN_FLOOR + 1, .sequence = 1,
         .op = {.kind = OP_KIND_TAKE, .ns = slice_text("default"), .owner = slice_text("o"),
                .ttl_ms = TTL_MS_MAX, .keys = &key, .key_count = 1}},
    };
    const struct entry entry = {.commands = commands, .command_count = 3};
    struct fsm *fsm = fsm_create();
    fsm_apply(fsm, 1, &entry, on_result, results);
    must(invariants_check(fsm) == NULL);
    return fsm;
}

static void try_entry(const uint8_t *data, size_t size)
{
    struct command_decoder *commands = command_decoder_create();
    struct result_decoder *results = result_decoder_create();
    struct buf bytes;
    struct buf again;
    buf_init(&bytes, 2 * ENTRY_LEN_MAX);
    buf_init(&again, 2 * ENTRY_LEN_MAX);
    seal(data[0], slice_from(data + 1, size - 1), &bytes);
    struct entry entry;
    uint32_t version = 0;
    if (entry_decode(commands, buf_slice(&bytes), &entry, &version) == STATUS_OK) {
        for (uint32_t i = 0; i < entry.command_count; i++) {
            command_encode(&entry.commands[i], &again);
        }
        must(again.len <= size - 1); /* the shortest form */
        struct fsm *fsm = born(results);
        fsm_apply(fsm, 2, &entry, on_result, results);
        must(invariants_check(fsm) == NULL);
        fsm_destroy(fsm);
    }
    buf_deinit(&bytes);
    buf_deinit(&again);
    result_decoder_destroy(results);
    command_decoder_destroy(commands);
}

static void try_result(struct slice bytes)
{
    struct result_decoder *decoder = result_decoder_create();
    struct buf once;
    struct buf twice;
    buf_init(&once, MESSAGE_LEN_MAX);
    buf_init(&twice, MESSAGE_LEN_MAX);
    struct result result;
    if (result_decode(decoder, bytes, &result) == STATUS_OK) {
        result_encode(&result, &once);
        must(result_decode(decoder, buf_slice(&once), &result) == STATUS_OK);
        result_encode(&result, &twice);
        must(once.len <= bytes.len && slice_equal(buf_slice(&once), buf_slice(&twice)));
    }
    buf_deinit(&once);
    buf_deinit(&twice);
    result_decoder_destroy(decoder);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size >= 1 && size < ENTRY_LEN_MAX - 64) {
        try_entry(data, size);
        try_result(slice_from(data + 1, size - 1));
    }
    return 0;
}
