/* Replicas on fake disks with a network between them, all in one virtual time: the test bed of
 * raft/replica.
 *
 * Every event of a node (a message, a disk completion, a timer) is followed by its replica_turn, as
 * the loop of a node does it. Messages take 0.1 to 0.5 ms and keep their order per direction; links
 * come up 1 ms after both ends are there and break 1 ms after one is gone. A stopped node (SIGSTOP)
 * sees nothing until it goes on, and then everything at once. */
#ifndef TESTS_RAFT_REPLICA_WORLD_H_
#define TESTS_RAFT_REPLICA_WORLD_H_

#include "fsm/base/rng.h"
#include "fsm/result.h"
#include "raft/replica.h"
#include "tests/raft/fake_clock.h"
#include "tests/raft/fake_disk.h"

#define WORLD_NODES_MAX 6u
#define WORLD_MS 1000000ull

struct world;

struct world_node {
    struct world *world;
    unsigned idx;
    unsigned incarnation;
    struct fake_disk *disk;
    struct replica *replica; /* NULL: not running */
    uint64_t node_id;        /* what its disk would hold */
    struct cluster_identity identity;
    bool stopped;
    bool turn_scheduled;
    uint64_t timer_ns;   /* for which a timer event is scheduled; UINT64_MAX: none */
    struct list held;    /* events that came while it was stopped */
    struct replica_view view;
    unsigned fatals;
    enum status fatal_status;
    unsigned closes;
    uint64_t applied; /* entries that on_applied told of */
    uint64_t installs;
    uint64_t messages_out; /* libraft's and ours */
    uint64_t bulk_out;
};

struct world {
    struct fake_clock clock;
    struct rng rng;
    unsigned count;
    struct world_node nodes[WORLD_NODES_MAX];
    bool cut[WORLD_NODES_MAX][WORLD_NODES_MAX]; /* frames from a to b are lost */
    uint64_t arrival_ns[WORLD_NODES_MAX][WORLD_NODES_MAX];
    unsigned loss_per_mille; /* of frames; and so many come twice, or out of order */
    unsigned double_per_mille;
    unsigned reorder_per_mille;
    /* Settings of the replicas that are booted from now on. */
    unsigned voters_wanted;
    unsigned voters_born; /* what world_init_cluster asks for; 0: the setting of the replica */
    uint64_t snapshot_entries;
    uint64_t message_len_max; /* of what was sent */
    uint64_t events;
};

void world_init(struct world *world, unsigned count, uint64_t seed);
/* Closes what runs. */
void world_deinit(struct world *world);

/* Start node `idx` on its disk. */
void world_boot(struct world *world, unsigned idx);
/* The same where it may fail; then only world_close is left. */
enum status world_try_boot(struct world *world, unsigned idx);
/* Kill it: a random part of what was under way is on its disk. */
void world_crash(struct world *world, unsigned idx);
/* Close it in order. */
void world_close(struct world *world, unsigned idx);
void world_stop(struct world *world, unsigned idx, bool stopped);
/* Frames are lost in both directions, and the links break. */
void world_cut(struct world *world, unsigned a, unsigned b, bool cut);

void world_run(struct world *world, uint64_t ms);
typedef bool (*world_cond)(const struct world *world);
/* Until the condition holds; false when it doesn't within `ms`. */
bool world_run_until(struct world *world, world_cond cond, uint64_t ms);

/* Node 0 makes a cluster, the others join and are admitted; runs until `voters` vote and a leader
 * serves. */
void world_form(struct world *world, unsigned voters);
void world_init_cluster(struct world *world, unsigned idx);
void world_join(struct world *world, unsigned idx);
/* Through the present leader; runs until it is done. */
enum status world_admit(struct world *world, unsigned idx);

/* Index of the node that serves; -1: none. */
int world_leader(const struct world *world);
unsigned world_voters(const struct world *world, unsigned idx);
bool world_has_leader(const struct world *world);
bool world_in_step(const struct world *world); /* all that run have applied the same index */

/* One command on its way, and what became of it. */
struct world_call {
    struct replica_proposal proposal;
    struct world *world;
    unsigned completions;
    enum status status;
    enum status result_status;
    enum outcome_kind outcome; /* of its first key */
    uint64_t token;
    uint64_t origin; /* open_origin */
    uint64_t done_ns;
};

/* Propose; STATUS_OK means that the call will complete. */
enum status world_propose(struct world *world, unsigned idx, const struct command *command,
                          struct world_call *call);
enum status world_propose_until(struct world *world, unsigned idx, const struct command *command,
                                uint64_t deadline_ns, struct world_call *call);
/* The same on the leader, and run until it has completed. CHECKs that it was accepted. */
void world_call(struct world *world, const struct command *command, struct world_call *call);

uint64_t world_open_origin(struct world *world, uint64_t nonce);
/* take `key` for `owner`; ttl in ms. */
struct command world_take(uint64_t origin, uint64_t sequence, const char *key, const char *owner,
                          uint64_t ttl_ms);

struct world_read {
    struct replica_read read;
    unsigned completions;
    enum status status;
    struct read_point point;
};
enum status world_read(struct world *world, unsigned idx, struct world_read *read);

#endif
