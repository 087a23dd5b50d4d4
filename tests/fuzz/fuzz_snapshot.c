/* Loads what a snapshot may say under a fitting checksum. The input is the body; whatever is loaded
 * must be sound, must be written again and read again as the same state, and must go on living: an
 * empty entry of a later time is applied until nothing is due any more. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "fsm/base/hash.h"
#include "fsm/invariants.h"
#include "fsm/snapshot.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool condition)
{
    if (!condition) {
        abort();
    }
}

static void seal(struct slice body, struct buf *out)
{
    buf_append_u32(out, 0x53524E54u);
    buf_append_u32(out, SNAPSHOT_FORMAT_VERSION);
    buf_append_u64(out, body.len);
    uint32_t crc = crc32c(crc32c(0, body.base, body.len), out->base, out->len);
    buf_append_u32(out, crc);
    buf_append_u32(out, 0);
    buf_append(out, body.base, body.len);
    buf_append_zeros(out, (8 - body.len % 8) % 8);
}

static struct fsm *load(const struct buf *bytes)
{
    struct fsm *fsm = NULL;
    uint32_t version = 0;
    const char *why = NULL;
    static const struct hash_key hash_key = {{0}};
    enum status st = snapshot_decode(buf_slice(bytes), &hash_key, &fsm, &version, &why);
    return st == STATUS_OK ? fsm : NULL;
}

static void live_on(struct fsm *fsm)
{
    for (unsigned i = 0; i < 100 && fsm_index(fsm) < UINT64_MAX; i++) {
        struct entry entry = {.stamp_ms = CLOCK_MS_MAX};
        fsm_apply(fsm, fsm_index(fsm) + 1, &entry, NULL, NULL);
        must(invariants_check(fsm) == NULL);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct buf bytes;
    struct buf again;
    buf_init(&bytes, 64 * MIB);
    buf_init(&again, 64 * MIB);
    seal(slice_from(data, size), &bytes);
    struct fsm *fsm = load(&bytes);
    if (fsm != NULL) {
        must(invariants_check(fsm) == NULL);
        snapshot_encode(fsm, &again);
        struct fsm *copy = load(&again);
        must(copy != NULL && fsm_digest(copy) == fsm_digest(fsm));
        live_on(fsm);
        live_on(copy);
        must(fsm_digest(copy) == fsm_digest(fsm));
        fsm_destroy(fsm);
        fsm_destroy(copy);
    }
    buf_deinit(&bytes);
    buf_deinit(&again);
    return 0;
}
