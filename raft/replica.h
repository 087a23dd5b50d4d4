/* The replica: one node's copy of the replicated state, kept by libraft, behind one façade.
 *
 * Everything above sees commands, results, reads and members; nothing above sees libraft. The
 * replica decides when an entry is closed and stamped, when a read is linearizable, which
 * membership change is safe next, and when it must stop for good. It never reads a clock by itself,
 * opens no socket and has no thread: the owner
 *
 *   - passes received bytes in (replica_receive) and carries sent ones away (callback `send`)
 *   - calls replica_turn at the end of every loop turn: after polling and again before it, since
 *     libraft's timers run between the two; a turn with nothing to do costs next to nothing
 *   - arms one timer for replica_next_timer_ns
 *
 * An accepted operation completes exactly once, never inside the accepting call. After `on_fatal`
 * the replica calls nothing of libraft any more, accepts nothing and completes what was pending
 * with STATUS_LEADERSHIP_LOST. */
#ifndef RAFT_REPLICA_H_
#define RAFT_REPLICA_H_

#include "fsm/base/list.h"
#include "fsm/fsm.h"

struct uv_loop_s;
struct batch_entry;
struct raft_io;
struct replica;

#define REPLICA_MEMBERS_MAX 64u

/* No message that `send` is given is longer. */
#define REPLICA_MESSAGE_LEN_MAX (5u * 1024u * 1024u)

enum replica_member_role {
    REPLICA_MEMBER_ROLE_NONE = 0, /* not in the configuration */
    REPLICA_MEMBER_ROLE_SPARE = 1,
    REPLICA_MEMBER_ROLE_STANDBY = 2,
    REPLICA_MEMBER_ROLE_VOTER = 3,
};

struct replica_member {
    uint64_t id;
    enum replica_member_role role;
    uint64_t match_index; /* leader only: what the member has on disk; else 0 */
    bool link_up;
};

enum replica_state {
    REPLICA_STATE_EMPTY,   /* the data directory belongs to no cluster yet */
    REPLICA_STATE_RUNNING,
    REPLICA_STATE_FAILED,  /* fail-stop; see on_fatal */
    REPLICA_STATE_CLOSED,  /* or closing */
};

/* What others need to know of it, cheap to ask at any time. */
struct replica_view {
    enum replica_state state;
    uint64_t node_id; /* 0 while empty */
    struct cluster_identity identity;
    enum replica_member_role role; /* as far as this node knows */
    bool leader;      /* leads in `term` */
    bool serving;     /* leads, and an entry of its own term is applied: may propose and read */
    bool transferring;
    bool founding; /* a cluster was founded here, and its birth is not applied yet */
    uint64_t term;
    uint64_t leader_id; /* a hint; 0: unknown */
    uint64_t commit_index;
    uint64_t applied_index;
    uint64_t last_index;
    bool disk_full;
    uint64_t clock_lost_ms; /* cluster time given away to stalls in this term */
};

struct replica_stats {
    uint64_t entries_appended; /* by this leader since start */
    uint64_t entries_applied;
    uint64_t commands_applied;
    uint64_t stamps;           /* entries that carried no command */
    uint64_t read_rounds;
    uint64_t reads;
    uint64_t snapshots_taken;
    uint64_t snapshots_sent;
    uint64_t snapshots_installed;
    uint64_t elections;        /* terms in which this node became leader */
    uint64_t messages_sent;
    uint64_t messages_received;
    uint64_t messages_refused; /* malformed or from a stranger */
    uint64_t guard_cures;      /* times that a cure of the guard changed something */
    uint64_t batch_len_max;    /* commands in the largest entry */
    uint64_t disk_write_last_us; /* duration of the last log write */
    uint64_t disk_write_max_us;
};

struct replica_callbacks {
    void *ctx;

    /* Monotonic clock that counts suspend, in nanoseconds; read when an entry is closed. */
    uint64_t (*now_ns)(void *ctx);

    /* Carry these bytes to the peer's replica_receive; copy them before returning. False when the
     * peer is not reachable or its queue is full: then they are dropped, which is always allowed.
     * `bulk` bytes (snapshot chunks) may wait behind everything else. */
    bool (*send)(void *ctx, uint64_t peer_id, bool bulk, struct slice bytes);

    /* Role, term, leader hint, serving, membership or state changed. Ask replica_view. Called from
     * replica_turn only. */
    void (*on_view)(void *ctx);

    /* An entry of ours was applied (or, with `changes` NULL, a snapshot was installed and anything
     * may have changed). Do not call back into the replica from here but for views and reads of
     * the table. Not called for what is applied inside replica_open. */
    void (*on_applied)(void *ctx, uint64_t index, const struct changes *changes);

    /* Fail-stop: this node can't be sure of its disk or its state any more. Called once, possibly
     * from inside libraft: end the process or write it down, but don't call the replica. */
    void (*on_fatal)(void *ctx, enum status status, const char *detail);

    /* One line worth a person's eye; `level` 0 error, 1 warning, 2 info. */
    void (*on_log)(void *ctx, int level, const char *text);
};

struct replica_config {
    /* Production: a directory and the uv loop. Simulation: `backend` (borrowed) instead. */
    const char *dir;
    struct uv_loop_s *loop;
    struct raft_io *backend;
    /* Simulation only, with `backend`: the identity that the directory would hold. */
    uint64_t backend_node_id;
    struct cluster_identity backend_identity;

    uint64_t seed; /* of election timeouts */
    struct hash_key hash_key; /* fsm_set_hash_key(): random; simulations can do with zero */
    unsigned tick_ms;     /* 50 */
    unsigned election_ms; /* 500 */
    /* 1, 3 or 5; 0: the default. What a cluster that is born here is designed for; afterwards the
     * table says how many (fsm_settings), also where another node was told something else. */
    unsigned voters_wanted;
    /* The least token floor, by the wall clock of now, of a birth that an earlier start left
     * undone; 0: the clock is of no use, and the floor that was kept must do. */
    uint64_t token_floor;
    uint64_t snapshot_entries; /* a snapshot every so many entries; 0: the default */
    uint64_t snapshot_bytes;   /* or bytes, whichever is first; 0: the default */
    uint64_t reserve_len; /* bytes kept free by a reserve file; 0: the default, 64 MiB */
};

/* Open the data directory: lock it, read the identity, check every file before libraft sees it,
 * and, when the node belongs to a cluster, start. On failure a sentence in out_why (len >= 256):
 * STATUS_IN_USE ("in use by pid N"), STATUS_CORRUPT (file and offset), STATUS_INCOMPATIBLE (both
 * versions), STATUS_IO. Files are as they were after each of these. What failed behind all checks,
 * as on a disk without any space, has handles in the loop already: then *out_replica is a FAILED
 * replica that can only be closed and destroyed, else NULL. */
NODISCARD enum status replica_open(const struct replica_config *config,
                                   const struct replica_callbacks *callbacks, char *out_why,
                                   struct replica **out_replica);

/* Close in order: pending operations end, libraft closes, handles close, then `cb` once, possibly
 * before this returns. Allowed in a completion; it then begins when that has returned. Free with
 * replica_destroy afterwards. Of a replica that FAILED while it ran only its own memory could be
 * freed and is not: libraft's handles point there, and the directory stays locked until the process
 * ends. */
typedef void (*replica_close_cb)(void *ctx);
void replica_close(struct replica *replica, replica_close_cb cb, void *ctx);
void replica_destroy(struct replica *replica);

/* A cluster of one: draw the ids, write them, bootstrap, start, and propose the birth. Only while
 * EMPTY (else BUSY). `token_floor` is what the token counter is raised to, `voters_wanted` how many
 * voters the cluster is designed for, 0: as the configuration says; where one of the two breaks its
 * rule the answer is INVALID and nothing is written. `random` are 40 random bytes.
 *
 * OK: both are on disk with the identity, so that the cluster will be what was asked for whenever
 * this process ends, with a token floor of at least that; it is there once the view says `founding`
 * no more. IO: nothing was founded. UNKNOWN: the identity is there, and perhaps not after a power
 * cut; the next start founds the cluster if it finds it. That is a fail-stop, of which on_fatal
 * tells within this call. So it is when the identity is written and the start fails; the next start
 * then founds the cluster. */
NODISCARD enum status replica_init_cluster(struct replica *replica, uint64_t token_floor,
                                           uint64_t voters_wanted, const uint8_t random[40]);

/* Become a node of that cluster: write the identity with this new node id, start without a log.
 * Only while EMPTY. The leader then adds the node (replica_admit). UNKNOWN and a failing start
 * as above. */
NODISCARD enum status replica_join_cluster(struct replica *replica,
                                           const struct cluster_identity *identity,
                                           uint64_t node_id);

void replica_view(const struct replica *replica, struct replica_view *out_view);
void replica_stats(const struct replica *replica, struct replica_stats *out_stats);

/* Members of the current configuration, at most REPLICA_MEMBERS_MAX; returns how many. */
unsigned replica_members(const struct replica *replica, struct replica_member *out_members);

/* The table, for reads after a read point; NULL unless RUNNING. */
const struct fsm *replica_fsm(const struct replica *replica);

/* --- Time and transport */

/* At the end of every loop turn: closes the entry that collects this turn's commands when one may
 * go out, tells followers of commits, starts a read round when reads wait. */
void replica_turn(struct replica *replica, uint64_t now_ns);

/* When replica_turn wants to be called at the latest; UINT64_MAX: no wish. */
uint64_t replica_next_timer_ns(const struct replica *replica);

/* Bytes that the peer's `send` gave; the peer's id has been authenticated by the transport. */
void replica_receive(struct replica *replica, uint64_t peer_id, struct slice bytes,
                     uint64_t now_ns);

/* The link to the peer came up or speaks again, broke, or has been silent for 300 ms (fail over at
 * once when it was the leader's). */
void replica_link_up(struct replica *replica, uint64_t peer_id);
void replica_link_down(struct replica *replica, uint64_t peer_id, uint64_t now_ns);
void replica_link_silent(struct replica *replica, uint64_t peer_id, uint64_t now_ns);

/* --- Commands */

struct replica_proposal;

/* OK with the encoded struct result (valid during the call), or why not: the status' class tells
 * whether it may have been done. */
typedef void (*replica_proposal_cb)(struct replica_proposal *proposal, enum status status,
                                    struct slice result);

/* Embedded by the caller, who keeps it alive until the completion. */
struct replica_proposal {
    struct list link;          /* the replica's, as the next two */
    struct batch_entry *entry; /* that it is in; NULL: in none */
    size_t command_len;
    replica_proposal_cb cb;
    void *ctx;
    /* By the clock of `now_ns`; UINT64_MAX: none. A command that still waits for its entry to be
     * closed at this time is never submitted. */
    uint64_t deadline_ns;
};

/* Propose one encoded command (command_encode; already validated), copied. Refused, without a
 * completion: NOT_LEADER, NOT_SERVING, OVERLOADED, TOO_LARGE (no entry can hold it), CLOSING. It
 * completes with OK; DEADLINE, DISK_FULL, NOT_LEADER or CLOSING if it was never submitted; or
 * LEADERSHIP_LOST. */
NODISCARD enum status replica_propose(struct replica *replica, struct slice command,
                                      struct replica_proposal *proposal);

/* Take back an accepted proposal that has not completed yet. True when it was not submitted: it is
 * gone and never completes. False when it is under way: it completes as if nothing was asked. */
bool replica_proposal_cancel(struct replica *replica, struct replica_proposal *proposal);

/* --- Reads */

/* What a linearizable read is true of: the table once `index` is applied, at this clock. */
struct read_point {
    uint64_t index;
    uint64_t clock_ms;
};

struct replica_read;
typedef void (*replica_read_cb)(struct replica_read *read, enum status status,
                                struct read_point point);

struct replica_read {
    struct list link;
    replica_read_cb cb;
    void *ctx;
    struct read_point point;
};

/* A read point of a confirmation round that starts after this call (leader only; refused with
 * NOT_LEADER, NOT_SERVING, CLOSING, QUARANTINED). Completes once this node has applied the
 * index: OK, or NOT_LEADER / NO_QUORUM (reads change nothing, so none of these is MAYBE). */
NODISCARD enum status replica_read_start(struct replica *replica, struct replica_read *read);

/* Complete once this node has applied `point.index` (set by the caller in the read): the follower's
 * half of a read whose point the leader gave. */
NODISCARD enum status replica_read_wait(struct replica *replica, struct replica_read *read);

/* Forget a pending read: no completion any more. */
void replica_read_cancel(struct replica *replica, struct replica_read *read);

/* --- Membership; leader only. One change at a time, on quiet ground (change_plan.h). */

typedef void (*replica_change_cb)(void *ctx, enum status status);

/* Add a node as spare; OK at once for one that is a member already. What it becomes is the plan's
 * business: from one voter to three when two have caught up. BUSY while a change runs. */
NODISCARD enum status replica_admit(struct replica *replica, uint64_t node_id,
                                    replica_change_cb cb, void *ctx);

/* Hand leadership to a voter that is up to date (to any when `node_id` is 0). The completion says
 * OK when another leader is known. */
NODISCARD enum status replica_transfer(struct replica *replica, uint64_t node_id,
                                       replica_change_cb cb, void *ctx);

#endif
