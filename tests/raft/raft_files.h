/* Files as libraft writes them, made by hand: an encoder of its own, so that the check in
 * raft/disk_check.c is not tested against itself. Everything lives in one temporary directory. */
#ifndef TESTS_RAFT_RAFT_FILES_H_
#define TESTS_RAFT_RAFT_FILES_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RAFT_FILES_SEGMENT_LEN (64u * 1024u) /* libraft makes 8 MiB of it; that only takes time */

struct raft_files {
    char dir[64];
};

/* A new directory below the present one, and its end. */
void raft_files_init(struct raft_files *files);
void raft_files_deinit(struct raft_files *files);

/* Bytes of a segment in the making. */
struct raft_segment {
    uint8_t *base;
    size_t len;
    size_t cap;
};

void raft_segment_init(struct raft_segment *segment);
void raft_segment_deinit(struct raft_segment *segment);
/* One batch of `count` commands of `entry_len` bytes each, the first of index `index`. */
void raft_segment_add(struct raft_segment *segment, uint64_t index, unsigned count, uint64_t term,
                      size_t entry_len);

/* metadata1 and metadata2 as they are after `version` writes, the last with this term. */
void raft_files_metadata(const struct raft_files *files, uint64_t version, uint64_t term);

/* The segment as "first-last" or as "open-N", there with zeros up to the size of a segment. */
void raft_files_closed(const struct raft_files *files, const struct raft_segment *segment,
                       uint64_t first, uint64_t last);
void raft_files_open(const struct raft_files *files, const struct raft_segment *segment,
                     uint64_t counter);

/* A snapshot and its .meta; either may be left out. */
void raft_files_snapshot(const struct raft_files *files, uint64_t term, uint64_t index, bool data,
                         bool meta);

/* Plain file work, relative to the directory. */
void raft_files_write(const struct raft_files *files, const char *name, const void *bytes,
                      size_t len);
void raft_files_cut(const struct raft_files *files, const char *name, size_t len);
void raft_files_poke(const struct raft_files *files, const char *name, size_t offset,
                     const void *bytes, size_t len);
void raft_files_flip(const struct raft_files *files, const char *name, size_t offset);
void raft_files_remove(const struct raft_files *files, const char *name);
bool raft_files_exist(const struct raft_files *files, const char *name);
size_t raft_files_len(const struct raft_files *files, const char *name);

/* A number that changes with every name and every byte in the directory. */
uint64_t raft_files_fingerprint(const struct raft_files *files);

#endif
