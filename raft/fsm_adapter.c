/* A snapshot is encoded into memory of ours that libraft borrows, and given back in
 * snapshot_finalize: copying it into libraft's heap would cost as much again as encoding it. */
#include "raft/fsm_adapter.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "fsm/base/check.h"
#include "fsm/snapshot.h"
#include "raft/message_codec.h"

#define DETAIL_LEN 256u

static int on_apply(struct raft_fsm *raft_fsm, const struct raft_buffer *bytes, void **result);
static int on_snapshot(struct raft_fsm *raft_fsm, struct raft_buffer *buffers[], unsigned *count);
static int on_snapshot_finalize(struct raft_fsm *raft_fsm, struct raft_buffer *buffers[],
                                unsigned *count);
static int on_restore(struct raft_fsm *raft_fsm, struct raft_buffer *bytes);
static void fail(struct fsm_adapter *adapter, enum status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static struct fsm_adapter *adapter_of(struct raft_fsm *raft_fsm);

void fsm_adapter_init(struct fsm_adapter *adapter, struct raft *raft,
                      const struct hash_key *hash_key, const struct fsm_adapter_hooks *hooks)
{
    *adapter = (struct fsm_adapter){
        .raft_fsm =
            {
                .version = 3,
                .apply = on_apply,
                .snapshot = on_snapshot,
                .restore = on_restore,
                .snapshot_finalize = on_snapshot_finalize,
            },
        .raft = raft,
        .fsm = fsm_create(),
        .decoder = command_decoder_create(),
        .hash_key = *hash_key,
        .hooks = *hooks,
    };
    fsm_set_hash_key(adapter->fsm, hash_key);
    adapter->raft_fsm.data = adapter;
    buf_init(&adapter->snapshot, MESSAGE_SNAPSHOT_LEN_MAX);
}

void fsm_adapter_deinit(struct fsm_adapter *adapter)
{
    buf_deinit(&adapter->snapshot);
    command_decoder_destroy(adapter->decoder);
    fsm_destroy(adapter->fsm);
    adapter->decoder = NULL;
    adapter->fsm = NULL;
}

static int on_apply(struct raft_fsm *raft_fsm, const struct raft_buffer *bytes, void **result)
{
    struct fsm_adapter *adapter = adapter_of(raft_fsm);
    *result = NULL;
    if (adapter->failed) {
        return 0;
    }
    uint64_t index = adapter->raft->last_applied + 1;
    struct entry entry;
    uint32_t version = 0;
    enum status status =
        entry_decode(adapter->decoder, slice_from(bytes->base, bytes->len), &entry, &version);
    if (status == STATUS_INCOMPATIBLE) {
        fail(adapter, status,
             "entry %" PRIu64 " has format version %" PRIu32 ", this node knows version %u", index,
             version, ENTRY_FORMAT_VERSION);
        return 0;
    }
    if (status != STATUS_OK) {
        fail(adapter, STATUS_CORRUPT, "entry %" PRIu64 " can't be decoded: %s", index,
             status_text(status));
        return 0;
    }
    bool wanted = adapter->hooks.on_begin(adapter->hooks.ctx, index);
    fsm_apply(adapter->fsm, index, &entry, wanted ? adapter->hooks.on_result : NULL,
              adapter->hooks.ctx);
    adapter->entries_since_snapshot++;
    adapter->bytes_since_snapshot += bytes->len;
    adapter->hooks.on_applied(adapter->hooks.ctx, index, &entry);
    return 0;
}

/* libraft labels the snapshot with its commit index, which may lag behind what is applied (L1):
 * then the entries between would be applied twice after a restore. */
static int on_snapshot(struct raft_fsm *raft_fsm, struct raft_buffer *buffers[], unsigned *count)
{
    struct fsm_adapter *adapter = adapter_of(raft_fsm);
    if (adapter->failed || adapter->raft->commit_index != adapter->raft->last_applied ||
        adapter->snapshot.base != NULL) {
        return RAFT_BUSY;
    }
    /* One allocation of the right size, instead of doubling through it. */
    size_t estimate = snapshot_len_estimate(adapter->fsm);
    if (estimate > 0 && estimate <= MESSAGE_SNAPSHOT_LEN_MAX) {
        (void)buf_reserve(&adapter->snapshot, estimate);
    }
    snapshot_encode(adapter->fsm, &adapter->snapshot);
    if (buf_overflown(&adapter->snapshot)) {
        buf_deinit(&adapter->snapshot);
        return RAFT_TOOBIG;
    }
    CHECK(adapter->snapshot.len > 0);
    adapter->snapshot_buffer = (struct raft_buffer){
        .base = adapter->snapshot.base,
        .len = adapter->snapshot.len,
    };
    *buffers = &adapter->snapshot_buffer;
    *count = 1;
    adapter->entries_since_snapshot = 0;
    adapter->bytes_since_snapshot = 0;
    adapter->snapshots_taken++;
    return 0;
}

static int on_snapshot_finalize(struct raft_fsm *raft_fsm, struct raft_buffer *buffers[],
                                unsigned *count)
{
    struct fsm_adapter *adapter = adapter_of(raft_fsm);
    buf_deinit(&adapter->snapshot);
    *buffers = NULL;
    *count = 0;
    return 0;
}

/* On success the bytes are ours to free, on failure they stay libraft's. */
static int on_restore(struct raft_fsm *raft_fsm, struct raft_buffer *bytes)
{
    struct fsm_adapter *adapter = adapter_of(raft_fsm);
    if (adapter->failed) {
        return RAFT_SHUTDOWN;
    }
    struct fsm *fsm = NULL;
    uint32_t version = 0;
    const char *why = "";
    enum status status = snapshot_decode(slice_from(bytes->base, bytes->len), &adapter->hash_key,
                                         &fsm, &version, &why);
    if (status == STATUS_INCOMPATIBLE) {
        fail(adapter, status,
             "the snapshot has format version %" PRIu32 ", this node knows version %u", version,
             SNAPSHOT_FORMAT_VERSION);
        return RAFT_CORRUPT;
    }
    if (status != STATUS_OK) {
        fail(adapter, STATUS_CORRUPT, "the snapshot can't be loaded: %s", why);
        return RAFT_CORRUPT;
    }
    raft_free(bytes->base);
    fsm_destroy(adapter->fsm);
    adapter->fsm = fsm;
    adapter->entries_since_snapshot = 0;
    adapter->bytes_since_snapshot = 0;
    adapter->hooks.on_restored(adapter->hooks.ctx);
    return 0;
}

static void fail(struct fsm_adapter *adapter, enum status status, const char *format, ...)
{
    char detail[DETAIL_LEN];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(detail, sizeof detail, format, args);
    va_end(args);
    adapter->failed = true;
    adapter->hooks.on_fatal(adapter->hooks.ctx, status, detail);
}

static struct fsm_adapter *adapter_of(struct raft_fsm *raft_fsm)
{
    return raft_fsm->data;
}
