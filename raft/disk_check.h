/* Looks over libraft's directory before libraft opens it.
 *
 * Libraft cuts a log where it can't read it and goes on with what is left; a flipped bit costs
 * committed entries in silence. So everything is read and checked here first: names, checksums of
 * every batch, formats of every entry and snapshot, gaps. Three verdicts:
 *
 *   - a *tail*: damage above the durable watermark that reaches no further than one write can. The
 *     power went away in the middle of it and nobody was told that it was there. It is cut.
 *   - a *leftover* of something that a kill interrupted (temporary files, a snapshot without its
 *     other half, a truncation or installation that was under way). It is finished or removed.
 *   - anything else is corruption, or the work of another version: the start is refused, and not a
 *     byte of the directory is changed.
 *
 * Nothing is written before everything has been read. Plain file calls, no loop: it runs before
 * there is one. */
#ifndef RAFT_DISK_CHECK_H_
#define RAFT_DISK_CHECK_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fsm/base/check.h"
#include "fsm/base/slice.h"
#include "fsm/base/status.h"

#define DISK_DETAIL_LEN 512u

/* One line for a person: which file, which offset, what was expected. */
struct disk_detail {
    char text[DISK_DETAIL_LEN];
};

/* The largest write that libraft makes at once: what a follower may be sent in one go (64 entries
 * of 64 KiB) with headers, rounded up to blocks. */
#define DISK_WRITE_LEN_MAX (4u * 1024u * 1024u + 64u * 1024u)

struct disk_check_options {
    /* The content of a command entry, or a whole snapshot. STATUS_OK; STATUS_INCOMPATIBLE when its
     * format version is not ours; anything else is corruption. The callee writes a sentence to
     * out_why on failure. NULL: not checked. */
    enum status (*verify_entry)(void *ctx, struct slice bytes, struct disk_detail *out_why);
    enum status (*verify_snapshot)(void *ctx, struct slice bytes, struct disk_detail *out_why);
    /* A line for the log about what was cut or removed. May be NULL. */
    void (*on_report)(void *ctx, const char *line);
    void *ctx;
    uint64_t watermark;   /* durable and committed up to here; 0: nothing known */
    size_t write_len_max; /* 0: DISK_WRITE_LEN_MAX */
};

/* What is in the directory. */
struct disk_state {
    uint64_t term; /* 0: never written */
    uint64_t vote;
    uint64_t snapshot_index; /* 0: none */
    uint64_t snapshot_term;
    uint64_t first_index; /* of the entries that are kept; 0: none */
    uint64_t last_index;  /* of entries or snapshot; 0: a node without a log */
};

/* Check and repair `dir`, which must exist and be nobody's at the moment. STATUS_OK;
 * STATUS_CORRUPT; STATUS_INCOMPATIBLE; STATUS_IO (could not be read or written), each with
 * *out_detail. Except for STATUS_OK and an error while repairing the directory is as it was. */
NODISCARD enum status disk_check(const char *dir, const struct disk_check_options *options,
                                 struct disk_state *out_state, struct disk_detail *out_detail);

#endif
