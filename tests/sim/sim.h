/* Whole nodes and their clients in one process, in virtual time, from one seed.
 *
 * The nodes are the product: router, forwarding, reads, replica, guard, libraft, state machine.
 * Only what stands at the seams is played: the disk (tests/raft/fake_disk), the network between
 * nodes (delays, order kept per direction while a link lives), the clock, and the local API's
 * socket, whose place the clients take with dispatch_submit and dispatch_delivered.
 *
 * One seed is one run, bit for bit: every event goes into a hash (sim_hash). After each step the
 * checks of sim_check.h run; a broken promise is a sentence in `failure`, and the run ends. */
#ifndef TESTS_SIM_SIM_H_
#define TESTS_SIM_SIM_H_

#include "fsm/base/rng.h"
#include "node/dispatch.h"
#include "raft/replica.h"
#include "tests/raft/fake_clock.h"
#include "tests/raft/fake_disk.h"

#define SIM_NODES_MAX 8u
#define SIM_MS 1000000ull
#define SIM_START_NS (1000 * SIM_MS) /* of virtual time; 0 means "never" in places */
#define SIM_FAILURE_LEN 512u

struct sim;
struct sim_client;
struct sim_check;

struct sim_config {
    uint64_t seed;
    unsigned nodes;      /* 3 vote, the others stay spares */
    unsigned clients;    /* of each node */
    unsigned keys;       /* that all of them fight for */
    unsigned stop_every_s; /* the leader is killed or paused so often; 0: never */
    bool trace;          /* print each event */
};

struct sim_node {
    struct sim *sim;
    unsigned idx;
    unsigned incarnation;
    struct fake_disk *disk;
    struct replica *replica; /* NULL: not running */
    struct dispatch *dispatch;
    uint64_t node_id;
    struct cluster_identity identity;
    struct replica_view view;
    bool link_up[SIM_NODES_MAX]; /* as this end sees it */
    bool paused;                 /* SIGSTOP */
    uint64_t paused_ns;
    uint64_t resumed_ns;
    struct list held; /* events of a paused node */
    bool turn_scheduled;
    uint64_t timer_ns;
    bool crowded;       /* what it sends waits behind something, as its transport tells */
    uint64_t worked_ns; /* the time that its own work took, which the others' clock leaves out */
};

struct sim {
    struct sim_config config;
    struct fake_clock clock;
    struct rng rng;
    struct sim_node nodes[SIM_NODES_MAX];
    uint64_t arrival_ns[SIM_NODES_MAX][SIM_NODES_MAX];
    struct sim_client *clients; /* owned */
    unsigned client_count;
    struct sim_check *check; /* owned */
    bool loaded;             /* clients are at work */
    bool ending;             /* they begin nothing new */
    uint64_t hash;
    uint64_t events;
    uint64_t stops;
    char failure[SIM_FAILURE_LEN]; /* "" while every promise is kept */
};

/* What a run has done, for the line that is printed. */
struct sim_report {
    uint64_t events;
    uint64_t hash;
    uint64_t entries;
    uint64_t calls;
    uint64_t granted;
    uint64_t refused; /* HELD, TEARDOWN, LOST, LAPSED, NOT_OWNER, ... */
    uint64_t reads;
    uint64_t unknown;
    uint64_t unavailable;
    uint64_t stops;
    uint64_t longest_ms; /* from asking to the reply */
    uint64_t reads_waited_due;
    uint64_t forwards;
    uint64_t settles;
};

/* Boots the nodes and forms the cluster. */
struct sim *sim_create(const struct sim_config *config);

/* Load for so long, then the clients stop and the nodes come to rest: no call is left, and all are
 * as far as each other. */
void sim_run(struct sim *sim, uint64_t seconds);
void sim_report(const struct sim *sim, struct sim_report *out_report);
void sim_destroy(struct sim *sim);

/* --- between the files of the simulator */

/* Record the first broken promise. */
void sim_fail(struct sim *sim, const char *format, ...) __attribute__((format(printf, 2, 3)));
void sim_note(struct sim *sim, const char *what, uint64_t a, uint64_t b);

/* Run on the node at that time, unless it has died by then; later while it is paused. */
void sim_at(struct sim_node *node, uint64_t at_ns, void (*run)(void *arg), void *arg);

/* SIGSTOP: its peers hear nothing of it any more. */
void sim_pause(struct sim_node *node);

/* SIGCONT: everything that came meanwhile is read at once. */
void sim_resume(struct sim_node *node);

/* The end of a turn of the node, soon. */
void sim_turn_soon(struct sim_node *node);

void sim_clients_create(struct sim *sim);
void sim_clients_destroy(struct sim *sim);
void sim_clients_begin(struct sim *sim, unsigned node);
void sim_clients_node_died(struct sim *sim, unsigned node);
bool sim_clients_idle(const struct sim *sim);
void sim_clients_report(const struct sim *sim, struct sim_report *out_report);

#endif
