/* A node's data directory, with raft_uv on it.
 *
 *   <dir>/lock       a kernel lock while the directory is in use; holds the pid for the message
 *   <dir>/identity   who the cluster and the node are; text with a checksum
 *   <dir>/watermark  up to which index the log was certainly on this disk (disk_check.h)
 *   <dir>/reserve    space to give back when the disk is full, so that releases go on
 *   <dir>/raft/      libraft's own files
 *
 * Life: disk_open() locks; identity is loaded or stored; disk_verify() looks the log over;
 * disk_start() gives the raft_io for the guard; after raft_close() disk_close(). The kernel lock
 * goes with the process, whatever ends it, so a killed node starts again at once.
 *
 * While started, small files are written in libuv's pool, one job at a time; the loop never waits.
 * Writes of libraft are counted by its tracer, whose failure texts also end the node: libraft's own
 * error marks are read by nobody. */
#ifndef RAFT_DISK_H_
#define RAFT_DISK_H_

#include <raft.h>
#include <stdbool.h>
#include <stdint.h>

#include "fsm/base/check.h"
#include "fsm/types.h"
#include "raft/disk_check.h"

_Static_assert(RAFT_VERSION_NUMBER == 2201, "files and failure texts are those of libraft 0.22.1");

struct uv_loop_s;

/* Which of the two a file has: whether it says what a cluster was founded for. */
#define DISK_IDENTITY_VERSION         1u
#define DISK_IDENTITY_VERSION_FOUNDER 2u

/* What a cluster was asked to be when it was founded here: kept with the identity until, and after,
 * the birth entry says it, so that whoever finishes an interrupted founding knows. */
struct disk_founding {
    uint64_t voters; /* 0: nothing is kept, as on a node that joined */
    uint64_t token_floor;
};

struct disk_identity {
    struct cluster_identity cluster;
    uint64_t node_id; /* never 0 */
    struct disk_founding founding;
};

struct disk_options {
    /* The disk failed: the owner calls guard_fail(). Called on the loop, once. `detail` is valid
     * during the call. */
    void (*on_failure)(void *ctx, enum status status, const char *detail);
    /* A line for the log. May be NULL. */
    void (*on_report)(void *ctx, const char *line);
    void *ctx;
    uint64_t reserve_len; /* 0: no reserve */
    unsigned retry_ms; /* libraft's pause after a failed write; longer than the watchdog's limit */
};

#define DISK_RESERVE_LEN (64ull * 1024ull * 1024ull)
#define DISK_RETRY_MS    4000u

struct disk;

/* Everything but the callbacks. */
void disk_options_init(struct disk_options *options);

/* Lock the directory, made if absent (mode 0700). STATUS_IN_USE (names the pid), STATUS_IO. */
NODISCARD enum status disk_open(const char *dir, struct disk **out_disk,
                                struct disk_detail *out_detail);

/* STATUS_UNINITIALISED: there is none yet. STATUS_CORRUPT, STATUS_INCOMPATIBLE, STATUS_IO. */
NODISCARD enum status disk_identity_load(struct disk *disk, struct disk_identity *out_identity,
                                         struct disk_detail *out_detail);

/* Atomically and durably, before it returns: for birth, joining and a raised generation. STATUS_IO:
 * certainly not there. STATUS_UNKNOWN: there, but perhaps not after a power cut: whoever stored it
 * must stop, since only the next start can tell. */
NODISCARD enum status disk_identity_store(struct disk *disk, const struct disk_identity *identity,
                                          struct disk_detail *out_detail);

/* disk_check() on the log, with the stored watermark in place of options->watermark. Before
 * disk_start(). */
NODISCARD enum status disk_verify(struct disk *disk, const struct disk_check_options *options,
                                  struct disk_state *out_state, struct disk_detail *out_detail);

/* The raft_io for guard_create(), on `loop` (borrowed until disk_close()'s callback). Also starts
 * to make the reserve. STATUS_IO. */
NODISCARD enum status disk_start(struct disk *disk, struct uv_loop_s *loop,
                                 const struct disk_options *options, struct raft_io **out_io,
                                 struct disk_detail *out_detail);

/* The log is durable and committed up to `index` (guard_durable_index()); cheap, at any time. The
 * file follows at most one second or 256 entries behind. */
void disk_note_durable(struct disk *disk, raft_index index);

/* At every tick. `append_waits`: libraft has entries that are not persisted yet
 * (guard_pending_entries() > 0). If none of them was handed to the disk, because a segment is
 * awaited, a small write of our own tells a full disk from a hanging one. */
void disk_tick(struct disk *disk, uint64_t now_ns, bool append_waits);

/* For guard_watch(): the oldest write in flight, libraft's or our own; 0 for none. */
uint64_t disk_oldest_write(const struct disk *disk);

/* How long libraft's last write to the log took, and its longest one, in microseconds. */
void disk_write_times(const struct disk *disk, uint64_t *out_last_us, uint64_t *out_max_us);

/* The disk is full, or nearly: the reserve was given back and is not there again yet, or libraft
 * has less than 8 MiB of prepared segments and no room for more. */
bool disk_low(const struct disk *disk);

/* After raft_close()'s callback, or when raft_init() failed, or before disk_start(): writes the
 * watermark, ends with the directory unlocked and `disk` freed, then calls back. Never of a disk
 * whose guard failed: that one keeps its lock until the process ends. `cb` may be NULL; it is
 * called from the loop, or at once if the disk was never started. */
typedef void (*disk_close_cb)(void *ctx);
void disk_close(struct disk *disk, disk_close_cb cb, void *ctx);

#endif
