/* A disk in memory and in virtual time under one libraft node: a raft_io (version 2) that takes its
 * time, loses what was not synced when the node crashes, stalls, starves and fails on request.
 *
 *   create -> boot -> (raft_init .. raft_start, events) -> crash, raft_close -> boot -> ... ->
 * destroy
 *
 * What is stable (term, vote, log, snapshot) lives in the disk and survives; what a process would
 * lose lives in the raft_io and goes with crash or close. Writes complete in the order of their
 * submission, after random times from the environment. It sends and receives nothing: a guard in
 * front of it does. Any number of them may run on one clock. */
#ifndef TESTS_RAFT_FAKE_DISK_H_
#define TESTS_RAFT_FAKE_DISK_H_

#include <raft.h>
#include <stdbool.h>
#include <stdint.h>

#include "fsm/base/slice.h"

struct fake_disk;

/* Time and chance come from outside. */
struct fake_disk_env {
    void *ctx;
    uint64_t (*now_ns)(void *ctx);
    /* Run `run(arg)` at `at_ns`; never inside this call. */
    void (*schedule)(void *ctx, uint64_t at_ns, void (*run)(void *arg), void *arg);
    uint64_t (*random)(void *ctx);
};

struct fake_disk_timing {
    uint64_t append_ns_min;
    uint64_t append_ns_max;
    uint64_t snapshot_ns_min; /* writing and reading one */
    uint64_t snapshot_ns_max;
};

/* What can be made to fail. */
enum fake_disk_call {
    FAKE_DISK_CALL_NONE,
    FAKE_DISK_CALL_LOAD,
    FAKE_DISK_CALL_SET_TERM,
    FAKE_DISK_CALL_SET_VOTE,
    FAKE_DISK_CALL_APPEND,      /* the call itself */
    FAKE_DISK_CALL_APPEND_DONE, /* its completion; the entries are not written and the next
                                 * append takes their place, as in raft_uv */
    FAKE_DISK_CALL_TRUNCATE,
    FAKE_DISK_CALL_SNAPSHOT_PUT_DONE,
    FAKE_DISK_CALL_SNAPSHOT_GET_DONE,
};

/* Borrows nothing; `env` is copied. Appends take 0.2..2 ms, snapshots 5..20 ms. */
struct fake_disk *fake_disk_create(const struct fake_disk_env *env);

/* After close or crash and close. Events of this disk that were scheduled and have not run must
 * never run afterwards. */
void fake_disk_destroy(struct fake_disk *disk);

void fake_disk_set_timing(struct fake_disk *disk, const struct fake_disk_timing *timing);

/* A process starts on this disk: the raft_io for its guard, until that one is closed. */
struct raft_io *fake_disk_boot(struct fake_disk *disk);

/* The process dies. Of the writes in flight a random prefix has reached the disk. Afterwards
 * raft_close() gives libraft's memory back without writing anything. */
void fake_disk_crash(struct fake_disk *disk);

/* Fires the requests that libraft has completed: after each event that the owner itself gave to
 * libraft (a message, a proposal). The disk does so after its own events. */
void fake_disk_fire(struct fake_disk *disk);

/* Nothing comes back any more, until it is called with false. */
void fake_disk_stall(struct fake_disk *disk, bool stalled);

/* Like a stall, but appends count as waiting for space and not as handed to the disk. */
void fake_disk_starve(struct fake_disk *disk, bool starved);

/* The next such call or completion ends with `code`. */
void fake_disk_fail_next(struct fake_disk *disk, enum fake_disk_call call, int code);

/* What libraft sees as room for entries; below 4096 KiB it refuses proposals. */
void fake_disk_set_capacity(struct fake_disk *disk, unsigned short capacity_kib);

/* For guard_watch(). */
uint64_t fake_disk_oldest_write(const struct fake_disk *disk);

/* The stable state. */
raft_term fake_disk_term(const struct fake_disk *disk);
raft_id fake_disk_vote(const struct fake_disk *disk);
raft_index fake_disk_first_index(const struct fake_disk *disk);
raft_index fake_disk_last_index(const struct fake_disk *disk); /* first - 1: no entries */
/* Term of a stable entry, 0: none; its bytes in *out_bytes, unless NULL. */
raft_term fake_disk_entry(const struct fake_disk *disk, raft_index index, struct slice *out_bytes);
raft_index fake_disk_snapshot_index(const struct fake_disk *disk); /* 0: none */
raft_index fake_disk_snapshot_configuration_index(const struct fake_disk *disk);
unsigned fake_disk_snapshot_reads(const struct fake_disk *disk);
bool fake_disk_is_reading_snapshot(const struct fake_disk *disk);

/* A snapshot that somebody else finished this moment. Copies everything. */
void fake_disk_set_snapshot(struct fake_disk *disk, const struct raft_snapshot *snapshot);

/* The snapshot's bytes as they would be read. */
struct slice fake_disk_snapshot(const struct fake_disk *disk);

#endif
