/* The replicated state machine: the lease table and everything that decides about it.
 *
 * Pure and deterministic: the same entries in the same order give the same state, byte for byte, on
 * every machine (P10). It knows no clock: time is the stamp of the entries. It does no input or
 * output. Running out of memory is fatal (CHECK), since one replica that skips a command differs
 * from the others for ever.
 *
 * Order inside one entry: clock = max(clock, stamp); the commands, in order; then due leases,
 * tombstones and origins are removed, at most one slice of each. */
#ifndef FSM_FSM_H_
#define FSM_FSM_H_

#include "fsm/base/buf.h"
#include "fsm/base/hash.h"
#include "fsm/changes.h"
#include "fsm/command.h"
#include "fsm/result.h"
#include "fsm/types.h"

struct fsm;

/* Before a birth entry is applied: everything is empty, clock 0, default settings. */
struct fsm *fsm_create(void);
void fsm_destroy(struct fsm *fsm);

/* Under which key the keys of leases are hashed: a random one that nobody outside this process
 * knows, or whoever chooses keys could make them fall together. Nothing that can be seen depends on
 * it. Right after fsm_create(); without it the hash key is zero, for tests and simulations. */
void fsm_set_hash_key(struct fsm *fsm, const struct hash_key *hash_key);

/* Called once per command of the entry, in order, with the encoded struct result. The bytes are
 * valid during the call only. */
typedef void (*fsm_result_cb)(void *ctx, uint32_t place, struct slice result);

/* Apply the entry with this log index. Indexes grow; they may skip (other entries of the log are
 * not ours). Every command gets exactly one result. `cb` may be NULL. Never fails. */
void fsm_apply(struct fsm *fsm, uint64_t index, const struct entry *entry, fsm_result_cb cb,
               void *ctx);

/* What the last fsm_apply changed. */
const struct changes *fsm_changes(const struct fsm *fsm);

uint64_t fsm_index(const struct fsm *fsm);    /* of the last applied entry; 0: none */
uint64_t fsm_clock_ms(const struct fsm *fsm); /* cluster clock */
uint64_t fsm_token(const struct fsm *fsm);    /* the last token that was drawn */
const struct settings *fsm_settings(const struct fsm *fsm);

/* The zero identity before birth. */
const struct cluster_identity *fsm_identity(const struct fsm *fsm);
bool fsm_born(const struct fsm *fsm);

/* True while anything depends on the clock: a lease or a tombstone exists, an answered GRACE is
 * still running, or something due waits for removal. Then a leader commits stamps. */
bool fsm_timed(const struct fsm *fsm);

/* When the next lease, tombstone or origin becomes due: the smallest cluster time at which an entry
 * with that stamp would remove something; UINT64_MAX when nothing will. A value <= the clock means
 * that something waits for removal now. */
uint64_t fsm_next_due_ms(const struct fsm *fsm);

/* Digest over the whole state, kept up to date incrementally: O(1). */
uint64_t fsm_digest(const struct fsm *fsm);

/* --- Reads. `now_ms` is the clock that the read is of (the leader's, at least the fsm's own): a
 * lease whose expiry is less than it is absent. Views borrow until the next fsm_apply. */

/* True when the key is there. */
bool fsm_query_owner(const struct fsm *fsm, struct slice ns, struct slice key, uint64_t now_ms,
                     struct lease_view *out_view);

/* True when a read at `now_ms` would show a lease that is due at that clock but still stored:
 * such a read waits. `prefix` for lists; for one key use key == prefix, exact. */
bool fsm_query_shows_due(const struct fsm *fsm, struct slice ns, struct slice key_or_prefix,
                         bool exact, uint64_t now_ms);

/* Why the key has no holder; false when nothing is remembered. Of tombstones only. */
struct tombstone_view {
    struct slice owner;
    enum lease_state state;
    uint64_t token;
    enum end_reason reason;
    uint64_t ended_ms; /* cluster time; of an expired lease: its expiry */
};
bool fsm_query_tombstone(const struct fsm *fsm, struct slice ns, struct slice key,
                         struct tombstone_view *out_view);

/* Cluster time since which the key is unowned (docs/protocol.md 1.3). The key must be absent. */
uint64_t fsm_query_unowned_since(const struct fsm *fsm, struct slice ns, struct slice key);

struct fsm_filter {
    struct slice ns;
    struct slice prefix; /* of keys; absent: all */
    struct slice owner;  /* absent: all */
    enum lease_state state; /* 0: both */
    struct slice after;  /* only keys greater than this; absent: from the first */
};

/* Called for each match in the order of keys; return false to stop. */
typedef bool (*fsm_view_cb)(void *ctx, const struct lease_view *view);
void fsm_query_list(const struct fsm *fsm, const struct fsm_filter *filter, uint64_t now_ms,
                    fsm_view_cb cb, void *ctx);
uint64_t fsm_query_count(const struct fsm *fsm, const struct fsm_filter *filter, uint64_t now_ms);

/* Numbers for status and metrics. */
struct fsm_stats {
    uint64_t leases_own;
    uint64_t leases_del;
    uint64_t tombstones;
    uint64_t owners;
    uint64_t origins;
    uint64_t outcomes; /* unconfirmed, over all origins */
    uint64_t namespaces;
    uint64_t memory_len; /* bytes, estimated */
};
void fsm_stats(const struct fsm *fsm, struct fsm_stats *out_stats);

#endif
