/* What the files of the check share. */
#ifndef RAFT_DISK_CHECK_INTERNAL_H_
#define RAFT_DISK_CHECK_INTERNAL_H_

#include <raft.h>

#include "raft/disk_check.h"
#include "raft/disk_shared.h"

_Static_assert(RAFT_VERSION_NUMBER == 2201, "these are the formats of libraft 0.22.1");

#define FORMAT       1u
#define NAME_LEN_MAX 96u

struct segment {
    char name[NAME_LEN_MAX];
    bool open;
    bool dropped;     /* planned to be removed, or of no use any more */
    uint64_t counter; /* open */
    uint64_t first;   /* closed: by its name */
    uint64_t last;
};

struct snapshot_file {
    char name[NAME_LEN_MAX]; /* of the data */
    uint64_t term;
    uint64_t index;
    uint64_t time;
    bool data;
    bool meta;
};

enum step_kind {
    STEP_UNLINK,
    STEP_CUT, /* to cut_len, then renamed if new_name is set */
};

struct step {
    enum step_kind kind;
    char name[NAME_LEN_MAX];
    char new_name[NAME_LEN_MAX];
    uint64_t cut_len;
    char why[DISK_DETAIL_LEN / 2];
};

/* A file as it was read. */
struct content {
    uint8_t *base;
    size_t len;
};

struct check {
    const struct disk_check_options *options;
    struct disk_detail *detail;
    int dir;
    size_t write_len_max;
    struct segment *segments;
    size_t segment_count;
    struct snapshot_file *snapshots;
    size_t snapshot_count;
    struct step *steps;
    size_t step_count;
    bool metadata_present[2];
    uint64_t metadata_version[2];
    struct disk_state state;
    uint64_t last_term; /* of the entry read last */
    bool contradicted;  /* the log has another entry where the snapshot ends */
    uint32_t crc[8][256];
};

/* --- disk_check.c */

/* Say it; STATUS_CORRUPT. */
enum status check_corrupt(struct check *check, const char *name, uint64_t offset, const char *why);

/* Say it, with errno; STATUS_IO. */
enum status check_failed(struct check *check, const char *what, const char *name);

/* What a verifier of the owner's said of the bytes at `offset`. */
enum status check_verified(struct check *check, const char *name, uint64_t offset,
                           enum status status, const struct disk_detail *why);

/* libraft's checksum. */
uint32_t check_crc(const struct check *check, uint32_t crc, const uint8_t *at, size_t len);

/* Room for one more element; `count` elements of `size` are there. */
void *check_room(void *base, size_t count, size_t size);

void check_copy_name(char out_name[NAME_LEN_MAX], const char *name);

/* One more step of the repair. */
struct step *check_plan(struct check *check, enum step_kind kind, const char *name);
void check_plan_unlink(struct check *check, const char *name, const char *why);

/* The whole file; the caller frees its base. */
enum status check_read_file(struct check *check, const char *name, struct content *out_content);

/* --- disk_check_list.c */

/* All names of the directory. */
enum status check_list_dir(struct check *check, const char *path);

/* --- disk_check_log.c */

/* Read all segments and say which entries there are. */
enum status check_read_log(struct check *check);

#endif
