/* What the data directory and its check share: what is said of a file, and numbers as files have
 * them. Defined in disk_files.c. */
#ifndef RAFT_DISK_SHARED_H_
#define RAFT_DISK_SHARED_H_

#include <stdint.h>

#include "raft/disk_check.h"

__attribute__((format(printf, 2, 3))) void disk_say(struct disk_detail *detail, const char *format,
                                                    ...);

/* Say what could not be done to which file, with errno; STATUS_IO. */
enum status disk_failed(struct disk_detail *detail, const char *what, const char *name);

/* Little-endian numbers. */
static inline uint32_t disk_u32(const uint8_t *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static inline uint64_t disk_u64(const uint8_t *at)
{
    return (uint64_t)disk_u32(at) | (uint64_t)disk_u32(at + 4) << 32;
}

#endif
