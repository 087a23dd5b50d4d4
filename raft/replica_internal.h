/* What the files of the replica share: one struct and who does what with it.
 *
 *   replica.c          life cycle
 *   replica_turn.c     the turn, view and numbers
 *   replica_entries.c  leadership: own-term barrier, entries, stamps, completions
 *   replica_reads.c    confirmation rounds and waiting for an index
 *   replica_members.c  members, the next change, transfer of leadership
 *   replica_links.c    messages to and from peers, snapshots, fail-over
 *
 * Two borders run through all of them. Callbacks from inside libraft (`on_send`, the adapter's
 * hooks, step_cb) only write down; whatever calls libraft happens in the turn. And callbacks of the
 * owner are called with nothing half done: unlink, release, then call. */
#ifndef RAFT_REPLICA_INTERNAL_H_
#define RAFT_REPLICA_INTERNAL_H_

#include <raft.h>

#include "raft/batch.h"
#include "raft/change_plan.h"
#include "raft/cluster_clock.h"
#include "raft/disk.h"
#include "raft/fsm_adapter.h"
#include "raft/guard.h"
#include "raft/message_codec.h"
#include "raft/read_index.h"
#include "raft/replica.h"
#include "raft/snapshot_transfer.h"
#include "raft/status_map.h"

_Static_assert(MESSAGE_PEER_LEN_MAX <= REPLICA_MESSAGE_LEN_MAX, "the transport can carry it");
_Static_assert(REPLICA_MEMBERS_MAX <= MESSAGE_MEMBERS_MAX, "a configuration can be sent");
_Static_assert(REPLICA_MEMBERS_MAX <= READ_INDEX_VOTERS_MAX, "every voter can be asked");

/* libraft's own settings that are not the user's: messages follow at once instead of
 * at the next tick, and a promotion that stalls is given up before the leader would step down. */
#define REPLICA_HEARTBEAT_MS 5u
#define REPLICA_CATCH_UP_MS 300u

/* Members and strangers whose links are up: a joining node talks before it is a member. */
#define REPLICA_PEERS_MAX (REPLICA_MEMBERS_MAX + 16u)

/* An entry on its way through the log. */
struct replica_flight {
    struct list link;
    struct replica *replica;
    struct raft_apply apply;
    struct batch_entry *entry;
    uint64_t term;
    uint64_t index;
    uint64_t stamp_ms;
    bool barrier; /* the first of its term */
    bool applied;
    struct buf results; /* per command: length (u32), encoded result */
    uint32_t result_count;
};

struct replica_peer {
    uint64_t id; /* 0: free */
    bool link_up;
    bool snapshot_dropped; /* libraft gave us one that could not be started */
    struct snapshot_sender sender;
    struct snapshot_receiver receiver;
};

/* What exists only while this node leads. */
struct replica_lead {
    uint64_t term; /* 0: does not lead, as far as the last turn noticed */
    bool barrier_sent;
    bool serving;
    uint64_t retry_ns;  /* no stamp or barrier before: the last one was refused */
    uint64_t closed_ns; /* when the last entry was closed */
    struct cluster_clock clock; /* runs while serving */
};

enum replica_change_kind {
    REPLICA_CHANGE_KIND_NONE,
    REPLICA_CHANGE_KIND_ADMIT, /* asked by the owner, who is told */
    REPLICA_CHANGE_KIND_PLAN,  /* the plan's */
};

struct replica_change {
    enum replica_change_kind kind;
    struct raft_change request;
    bool done; /* `status` is how it ended; told in the next turn */
    enum status status;
    replica_change_cb cb;
    void *ctx;
    uint64_t node_id;
    enum replica_member_role role;
};

struct replica_transfer {
    bool running;
    bool done;
    struct raft_transfer request;
    replica_change_cb cb;
    void *ctx;
};

struct replica {
    struct replica_config config;
    struct replica_callbacks callbacks;
    enum replica_state state;
    struct disk_identity identity; /* node_id 0: none */
    char address[24];              /* the node id in decimal */

    struct disk *disk; /* NULL with a backend of the simulator */
    struct guard *guard;
    struct raft raft;
    struct fsm_adapter adapter;
    bool disk_started;
    bool birth_due; /* the log of this founder has no birth yet, or is a simulator's */
    bool opening; /* inside start(), or that failed: nothing is reported */
    enum status opening_status; /* what the guard said meanwhile */
    char opening_detail[256];

    unsigned depth; /* callbacks of the owner under way, and turns */
    bool closing;
    bool close_begun; /* raft_close was called */
    replica_close_cb close_cb;
    void *close_ctx;

    uint64_t now_ns; /* the largest time seen */
    uint64_t watched_ns;

    struct replica_lead lead;
    struct batch batch;
    struct list flights; /* in the order of their indexes */
    struct list spare_flights;
    struct replica_flight *applying; /* whose results are coming */
    struct buf scratch_entry;
    struct replica_proposal birth;
    bool disk_full;

    struct read_index reads;
    struct list applied_waits; /* reads whose index is not applied yet, smallest first */

    struct replica_change change;
    struct change_plan plan;
    struct replica_transfer transfer;

    struct replica_peer *peers[REPLICA_PEERS_MAX];
    unsigned peer_count;
    uint64_t transfer_number; /* of the last snapshot that was sent */
    uint64_t campaign_ns;     /* when to stand for election; 0: not */
    uint64_t campaign_end_ns; /* no campaign is begun later */
    unsigned campaign_asked;  /* how often, in this one */
    struct buf scratch_message;

    struct replica_view told; /* what on_view was last called for */
    uint64_t told_configuration;
    struct replica_stats stats;
};

/* --- replica.c */

/* Everything that waits ends before libraft closes; what is in flight ends inside raft_close. */
void replica_close_begin(struct replica *replica);

/* After a fail-stop: complete what is pending, for which nobody will answer. */
void replica_abandon(struct replica *replica);

/* How many entries stay in the log after a snapshot, for this mean length. */
unsigned replica_trailing_entries(const struct replica_config *config, uint64_t entry_len);

/* --- replica_turn.c */

/* The clock, never going back. */
uint64_t replica_now(struct replica *replica);

/* True while libraft may be called. */
bool replica_running(const struct replica *replica);

/* Around every call of the owner's code, and the turn: a close that is asked meanwhile begins when
 * the outermost one is left. */
void replica_enter(struct replica *replica);
void replica_leave(struct replica *replica);

void replica_log(struct replica *replica, int level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* --- replica_entries.c */

void replica_entries_init(struct replica *replica);
void replica_entries_deinit(struct replica *replica);
void replica_entries_hooks(struct replica *replica, struct fsm_adapter_hooks *out_hooks);

/* What the birth of the cluster that this identity founds says. */
struct op replica_birth_op(const struct disk_identity *identity);

/* Notice that leadership came or went. */
void replica_entries_role(struct replica *replica, uint64_t now_ns);
void replica_entries_turn(struct replica *replica, uint64_t now_ns);
uint64_t replica_entries_timer_ns(const struct replica *replica);

/* Complete what waits to be submitted, and, when libraft can't do it any more, what is in
 * flight. */
void replica_entries_drop_waiting(struct replica *replica, enum status status);
void replica_entries_abandon(struct replica *replica);

/* --- replica_reads.c */

void replica_reads_turn(struct replica *replica, uint64_t now_ns);
uint64_t replica_reads_timer_ns(const struct replica *replica);
void replica_reads_drop_rounds(struct replica *replica, enum status status);
void replica_reads_drop_waits(struct replica *replica, enum status status);

/* --- replica_members.c */

enum replica_member_role replica_role_from_raft(int role);
void replica_members_turn(struct replica *replica, uint64_t now_ns);
uint64_t replica_members_timer_ns(const struct replica *replica);
void replica_members_abandon(struct replica *replica);

/* --- replica_links.c */

void replica_links_deinit(struct replica *replica);
void replica_links_on_send(void *ctx, const struct raft_message *message);
void replica_links_send(struct replica *replica, uint64_t peer_id, const struct message *message);
void replica_links_turn(struct replica *replica, uint64_t now_ns);
uint64_t replica_links_timer_ns(const struct replica *replica);
bool replica_links_up(const struct replica *replica, uint64_t peer_id);
void replica_links_drop_transfers(struct replica *replica);

#endif
