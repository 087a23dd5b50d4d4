/* What goes into the next log entry, and how many entries are under way.
 *
 * A commit costs a sync on a majority of disks whether it carries one command or a thousand. So
 * commands are collected while an entry is under way and leave together when it comes back; with
 * nothing under way the commands of this loop turn leave at once. There is no timer: at light load
 * nobody waits, at heavy load entries fill up by themselves.
 *
 *   - an entry is closed when nothing is in flight, or when it is full and fewer than
 *     BATCH_IN_FLIGHT_MAX entries are in flight
 *   - an entry takes commands up to ENTRY_LEN_TARGET bytes; a longer one travels alone
 *   - at most BATCH_OUTSTANDING_LEN_MAX bytes wait or are in flight; beyond that: OVERLOADED
 *   - a command whose deadline has passed when its entry is closed is left out: it would be done
 *     for nobody
 *
 * Pure. Driven by raft/replica, which asks batch_ready() at the end of each loop turn. */
#ifndef RAFT_BATCH_H_
#define RAFT_BATCH_H_

#include "fsm/base/buf.h"
#include "fsm/base/list.h"
#include "fsm/types.h"
#include "raft/replica.h"

#define BATCH_IN_FLIGHT_MAX 4u
#define BATCH_OUTSTANDING_LEN_MAX (2u * 1024u * 1024u)

/* The commands of one entry, and those who wait for their results, in order. */
struct batch_entry {
    struct list link;
    struct list proposals;
    struct buf commands;
    uint32_t command_count;
};

struct batch {
    struct list waiting; /* entries not closed yet; the last one takes the next command */
    struct list spare;   /* emptied entries, kept with their memory */
    unsigned spare_count;
    unsigned in_flight;
    size_t outstanding_len; /* bytes of commands that wait or are in flight */
};

void batch_init(struct batch *batch);

/* Nothing may wait or be in flight (CHECK). */
void batch_deinit(struct batch *batch);

/* Collect one encoded command, copied; `proposal`, of which link, entry and command_len are used
 * here, is linked until batch_take. STATUS_OVERLOADED; STATUS_TOO_LARGE when no entry could hold
 * it. */
NODISCARD enum status batch_add(struct batch *batch, struct slice command,
                                struct replica_proposal *proposal);

/* Take the proposal and its command out when its entry is not closed yet; else false. */
bool batch_cancel(struct batch *batch, struct replica_proposal *proposal);

/* True when an entry should be closed now. */
bool batch_ready(const struct batch *batch);
bool batch_waiting(const struct batch *batch);

/* Leave out of the first waiting entry what is past its deadline at `now_ns`: the links of its
 * proposals go to the end of `out_proposals`. To be called before batch_close(), with the time that
 * the entry is closed at. False when nothing is left of that entry, which is then gone. */
bool batch_expire(struct batch *batch, uint64_t now_ns, struct list *out_proposals);

/* Take the first entry; from now on it counts as in flight. With nothing waiting it is an empty
 * one, for an entry that carries a stamp only. */
struct batch_entry *batch_close(struct batch *batch);

/* Take the proposals out of an entry that is closed: their links go to the end of `out_proposals`,
 * in order. */
void batch_take(struct batch_entry *entry, struct list *out_proposals);

/* The entry has been applied, or has failed. Its proposals must have been taken (CHECK). */
void batch_done(struct batch *batch, struct batch_entry *entry);

/* Give up everything that waits: its proposals go to the end of `out_proposals`, in order. */
void batch_drop_waiting(struct batch *batch, struct list *out_proposals);

#endif
