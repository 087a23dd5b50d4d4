/* One libraft node between a guard on a fake disk below and the hands of a test above: the test
 * writes the messages of all other nodes and sees every message of this one. Term, timers, disk and
 * log are libraft's own. Also what tests of defects need: a child process to crash in, and a heap
 * that counts. */
#ifndef TESTS_RAFT_ONE_NODE_H_
#define TESTS_RAFT_ONE_NODE_H_

#include <raft.h>
#include <stdbool.h>
#include <stdint.h>

#include "fsm/base/rng.h"
#include "raft/guard.h"
#include "tests/raft/fake_clock.h"
#include "tests/raft/fake_disk.h"
#include "tests/raft/sum_state.h"

#define ONE_NODE_SENT_MAX    4096u
#define ONE_NODE_TICK_MS     50u
#define ONE_NODE_ELECTION_MS 500u

struct one_node {
    raft_id id;
    unsigned cures;
    unsigned snapshot_threshold; /* entries */
    unsigned snapshot_trailing;
    uint64_t disk_stall_ns_max;
    struct fake_clock clock;
    struct rng rng;
    struct fake_disk *disk;
    struct guard *guard;
    struct raft raft;
    struct raft_fsm fsm;
    struct sum_state state;
    bool up;

    struct raft_message sent[ONE_NODE_SENT_MAX]; /* without what it pointed to */
    unsigned sent_count;
    unsigned fatal_count;
    enum status fatal_status;
    char fatal_detail[256];
};

/* An entry as another leader would send it: a command of 8 bytes, or a configuration of the voters
 * 1..voters. */
struct one_node_entry {
    raft_term term;
    uint64_t value;
    unsigned voters; /* not 0: a configuration */
};

struct one_node_append {
    raft_id from;
    raft_term term;
    raft_index prev_index;
    raft_term prev_term;
    raft_index commit;
    const struct one_node_entry *entries;
    unsigned count;
};

/* A node with all cures on an empty disk; not started. */
void one_node_init(struct one_node *node, raft_id id);
void one_node_deinit(struct one_node *node);

/* The same on the heap, with these cures. */
struct one_node *one_node_create(raft_id id, unsigned cures);
void one_node_destroy(struct one_node *node);

/* Start the process. With `voters` > 0 the disk is first given a configuration of the voters
 * 1..voters and the spares voters+1..voters+spares. */
void one_node_boot(struct one_node *node, unsigned voters, unsigned spares);
/* In an orderly way, or by a power cut; both free what libraft has. */
void one_node_close(struct one_node *node);
void one_node_crash(struct one_node *node);

/* Let `ms` pass, with an end of turn after each event. */
void one_node_run_ms(struct one_node *node, uint64_t ms);

/* Messages from others. True when libraft saw it. */
bool one_node_receive(struct one_node *node, struct raft_message *message);
bool one_node_append(struct one_node *node, const struct one_node_append *append);
bool one_node_ack(struct one_node *node, raft_id from, raft_index rejected, raft_index last_index);
bool one_node_install(struct one_node *node, raft_id from, raft_term term, raft_index last_index);

/* Win an election: campaign, and have the other voter `voter` grant everything. */
void one_node_elect(struct one_node *node, raft_id voter);

/* Propose a command of 8 bytes. Libraft's code. */
int one_node_propose(struct one_node *node, uint64_t value);

/* Messages of this type that were sent since sent_count was `since`; the last one in *out_last. */
unsigned one_node_count_sent(const struct one_node *node, unsigned since,
                             enum raft_message_type type, struct raft_message *out_last);

/* Run `body(arg)` in a child process; true when it came to its end. False: a signal, a sanitizer or
 * a failed CHECK ended it. */
bool one_node_survives(void (*body)(void *arg), void *arg);

/* For a defect of libraft: as above, `body` checking what the defect does. Where libraft was built
 * with its asserts on, one of those may end the child first, and then the defect has shown too. */
bool one_node_shows(void (*body)(void *arg), void *arg);

/* From now on libraft's allocations are counted; the balance so far. */
void one_node_heap_count(void);
long one_node_heap_balance(void);

#endif
