/* libraft's view of the state machine: raft_fsm on top of fsm/.
 *
 * Decodes each committed entry, applies it, hands its results to whoever waits for them, takes and
 * restores snapshots. Two things must never happen here: an entry skipped (this replica would
 * differ from the others for ever), and a failure answered to libraft (it would apply the entry
 * again). So apply always answers 0, and what can't be decoded ends the node by `on_fatal`; after
 * that nothing is applied any more.
 *
 * Driven by libraft inside its steps; nothing here calls libraft. */
#ifndef RAFT_FSM_ADAPTER_H_
#define RAFT_FSM_ADAPTER_H_

#include <raft.h>

#include "fsm/base/buf.h"
#include "fsm/command_codec.h"
#include "fsm/fsm.h"

struct fsm_adapter_hooks {
    void *ctx;
    /* The entry at this index is about to be applied: its results will follow. True when somebody
     * here waits for them. */
    bool (*on_begin)(void *ctx, uint64_t index);
    fsm_result_cb on_result;
    /* It has been applied. */
    void (*on_applied)(void *ctx, uint64_t index, const struct entry *entry);
    /* The whole state was replaced by a snapshot. */
    void (*on_restored)(void *ctx);
    /* Called once. `detail` is valid during the call. */
    void (*on_fatal)(void *ctx, enum status status, const char *detail);
};

struct fsm_adapter {
    struct raft_fsm raft_fsm; /* what raft_init gets */
    struct raft *raft;        /* borrowed; its fields are read, none of its functions called */
    struct fsm *fsm;          /* owned; replaced by a restore */
    struct command_decoder *decoder;
    struct hash_key hash_key;
    struct fsm_adapter_hooks hooks;
    struct buf snapshot; /* bytes that libraft borrows until they are on disk */
    struct raft_buffer snapshot_buffer;
    bool failed;
    /* Since the last snapshot, for the threshold. */
    uint64_t entries_since_snapshot;
    uint64_t bytes_since_snapshot;
    uint64_t snapshots_taken;
};

/* `raft` is the instance that will get raft_fsm; `hash_key` that of the fsm, also of one that is
 * restored. */
void fsm_adapter_init(struct fsm_adapter *adapter, struct raft *raft,
                      const struct hash_key *hash_key, const struct fsm_adapter_hooks *hooks);

/* When libraft is closed, or was never started. */
void fsm_adapter_deinit(struct fsm_adapter *adapter);

#endif
