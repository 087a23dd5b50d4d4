/* Our raft_io in front of the disk's raft_io: what stands between libraft and the world.
 *
 * libraft 0.22.1 has defects that crash a node, corrupt its heap or make replicas diverge, and its
 * error returns are dropped by its own callbacks. All of libraft's input and output passes through
 * here, so that they can be cured in one place, each by a few lines that a test proves needed:
 *
 *   L1  the commit index may go back                 receive: leader_commit is raised to ours
 *   L2  a configuration that is not the first new
 *       entry of a message is filed at a wrong index receive: the message is cut before each
 *   L3  InstallSnapshot while a snapshot is taken    receive: dropped
 *   L4  InstallSnapshot is sent again and again      receive: dropped while one is installed;
 *                                                    send: one per peer, with pauses
 *   L5  a snapshot newer than announced is sent with
 *       the announced term                           send: the term of what was loaded
 *   L6  the retry of a failed write starts the wrong
 *       timer                                        watchdog; the disk retries later than it
 *   L7  an append or snapshot that failed leaves
 *       libraft misnumbered or stuck                 never told: the guard fails
 *   L8  a refused raft_assign leaves its request
 *       behind                                       guard_assign() takes it back
 *   L10 a late rejection puts a follower's next
 *       index below what it has; libraft then sends
 *       it no entry for ever                         receive: dropped, or its hint raised
 *   stale  what comes from an older term is
 *       answered with bytes of the stack, which may
 *       say that entries are safe that are not       send: nothing is claimed
 *   between  a snapshot taken between two
 *       configurations that one step applies has
 *       the older: whoever installs it believes it  put: refused, libraft takes another at once
 *   votes  a new voter that has not heard of its
 *       promotion refuses to vote, and without its
 *       vote nobody can tell it: no leader for ever  receive: it votes like a voter
 *   results  a late answer to a pre-vote is taken
 *       for a real one, by a flag in a union that
 *       holds something else: a living leader falls  receive: for candidates only
 *
 * Fail-stop. On an error of term, vote, append, truncate or snapshot, and when the disk hangs, the
 * guard *fails*: it calls on_fatal once and from then on neither calls libraft nor lets anything
 * out. Inside the very call it answers libraft "fine", because an error return would make libraft
 * free memory twice (L9); nothing that libraft believes then leaves the node. Whoever owns a failed
 * guard must not call libraft any more, not even raft_close(): an embedded node keeps the memory,
 * a daemon ends.
 *
 * Rules for the owner: one thread; libraft and the guard are entered from outside libraft only
 * (never from fsm callbacks, on_send or on_fatal); raft_init() gets guard_io(); the owner of a
 * simulated backend fires libraft's completed requests after each event, raft_uv does it itself.
 * Time is what the backend's raft_io says, except for guard_watch(). */
#ifndef RAFT_GUARD_H_
#define RAFT_GUARD_H_

#include <raft.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fsm/base/check.h"
#include "fsm/base/status.h"

_Static_assert(RAFT_VERSION_NUMBER == 2201, "the cures were written and tested for libraft 0.22.1");

/* The cures, as bits. All of them, always; tests take one away to show what it is for. */
enum guard_cure {
    GUARD_CURE_L1 = 1 << 0,
    GUARD_CURE_L2 = 1 << 1,
    GUARD_CURE_L3 = 1 << 2,
    GUARD_CURE_L4 = 1 << 3,
    GUARD_CURE_L5 = 1 << 4,
    GUARD_CURE_L6 = 1 << 5,
    GUARD_CURE_L7 = 1 << 6,
    GUARD_CURE_L8 = 1 << 7,
    GUARD_CURE_VOTES = 1 << 8,
    GUARD_CURE_RESULTS = 1 << 9,
    GUARD_CURE_BETWEEN = 1 << 10,
    GUARD_CURE_L10 = 1 << 11,
    GUARD_CURE_STALE = 1 << 12,
    GUARD_CURES_ALL = (1 << 13) - 1,
};

#define GUARD_DISK_STALL_NS_MAX 2000000000ull /* a write that hangs longer ends the node */
#define GUARD_SNAPSHOT_PAUSE_MS 1000u         /* between two snapshots to one peer */
#define GUARD_CAMPAIGN_STEP_NS  20000000ull   /* between two voters that stand for election */

struct guard_options {
    /* Libraft wants `message` sent to the peer message->server_id. Called inside libraft; copy
     * what is needed. What can't be sent is dropped, libraft will ask again. Of an InstallSnapshot
     * the owner must say guard_snapshot_done() when it was sent or given up. */
    void (*on_send)(void *ctx, const struct raft_message *message);
    /* The node must stop: see above. Called once, possibly inside libraft, which must not be
     * called from here or later. `detail` is one line, valid during the call. */
    void (*on_fatal)(void *ctx, enum status status, const char *detail);
    void *ctx;
    uint64_t disk_stall_ns_max;
    unsigned snapshot_pause_ms;
    unsigned cures; /* for tests only; everybody else leaves GUARD_CURES_ALL */
};

/* What passed through, for metrics and tests. */
struct guard_stats {
    uint64_t commits_held;      /* L1 */
    uint64_t messages_split;    /* L2: messages that were cut */
    uint64_t snapshots_refused; /* L3, L4: received and dropped */
    uint64_t snapshots_spared;  /* L4: not sent */
    uint64_t terms_corrected;   /* L5 */
    uint64_t snapshots_delayed; /* taken between two configurations, and again */
    uint64_t snapshots_unread;  /* our own snapshot could not be read for a peer */
    uint64_t answers_cleared;   /* to messages of older terms */
    uint64_t rejections_late;   /* L10 */
    uint64_t results_dropped;   /* answers to a campaign that was over */
    uint64_t votes_opened;      /* requests for a vote that libraft would have refused unread */
    uint64_t commits_notified;  /* turns in which followers were told of a commit at once */
};

struct guard;

/* Everything but the callbacks. */
void guard_options_init(struct guard_options *options);

/* Borrows `backend`, whose functions it calls and whose `data` it sets. CHECKs for memory. */
struct guard *guard_create(struct raft_io *backend, const struct guard_options *options);

/* After raft_close()'s callback, or when raft_init() failed. Never of a failed guard. */
void guard_destroy(struct guard *guard);

/* What raft_init() gets. Valid until guard_destroy(). */
struct raft_io *guard_io(struct guard *guard);

bool guard_failed(const struct guard *guard);
const struct guard_stats *guard_stats(const struct guard *guard);

/* Stop the node for a reason that the owner saw: restore or apply failed, an unexpected error of
 * raft_apply(), the disk said so. on_fatal is called unless the guard failed before. `detail` may
 * be NULL. */
void guard_fail(struct guard *guard, enum status status, const char *detail);

/* A message from the network. Takes its content (entries and their batch, snapshot data and
 * configuration, all from raft_malloc), whatever becomes of it; server_id and server_address are
 * borrowed. False when it was dropped. */
bool guard_receive(struct guard *guard, struct raft_message *message);

/* Free the content of a message that guard_receive() will not get. */
void guard_message_clear(struct raft_message *message);

/* The InstallSnapshot to this peer was sent, or given up. */
void guard_snapshot_done(struct guard *guard, raft_id peer);

/* At the end of each loop turn, after the turn's proposals: completes sends towards libraft and
 * asks the backend for the next snapshot that is wanted. */
void guard_end_turn(struct guard *guard);

/* At the end of a turn, before guard_end_turn(): if this leader's commit index has advanced and
 * no entry carried it to everybody, followers get an empty AppendEntries now instead of at the next
 * tick. True if so. */
bool guard_notify_commit(struct guard *guard);

/* Run libraft's tick now, as its timer would. */
void guard_tick(struct guard *guard);

/* Disk watchdog, at every tick. `oldest_write` tells the oldest write that was handed to the disk
 * and has not come back, by a number that is never used again; 0 for none. The guard fails when one
 * write stays the oldest for disk_stall_ns_max. Only time in which this function was called
 * regularly counts, so a stopped process is no hanging disk. */
void guard_watch(struct guard *guard, uint64_t now_ns, uint64_t oldest_write);

/* Entries that libraft handed over and the disk has not persisted yet. */
size_t guard_pending_entries(const struct guard *guard);
size_t guard_pending_len(const struct guard *guard); /* their bytes */

/* The highest index that is on this node's disk and committed: never goes back and never lies in
 * a part of the log that may be truncated. */
raft_index guard_durable_index(struct guard *guard);

/* raft_assign() with L8's cure: on failure `request` is forgotten and may be freed. */
NODISCARD int guard_assign(struct guard *guard, struct raft_change *request, raft_id id, int role,
                           raft_change_cb cb);

/* The link to `peer` broke or fell silent. If that is the leader this node follows, the hint is
 * forgotten at once, so that others' pre-votes are granted. True if it is a voter: then the owner
 * calls guard_campaign() after *out_delay_ns. False (nothing to do) in every other case, so also
 * for the second link that breaks before a new leader is known. */
bool guard_leader_link_lost(struct guard *guard, raft_id peer, uint64_t *out_delay_ns);

/* Stand for election now (pre-vote first), if still a voting follower without a leader; ask again,
 * if still in the pre-vote, which raises no term. */
void guard_campaign(struct guard *guard);

/* Whether guard_campaign() would do so. */
bool guard_campaign_open(const struct guard *guard);

#endif
