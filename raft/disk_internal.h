/* What the files of the data directory share. */
#ifndef RAFT_DISK_INTERNAL_H_
#define RAFT_DISK_INTERNAL_H_

#include <raft/uv.h>
#include <uv.h>

#include "raft/disk.h"
#include "raft/disk_shared.h"

#define PATH_LEN_MAX 1024u

enum job_kind {
    JOB_NONE,
    JOB_WATERMARK,    /* write the watermark; also the probe of a disk that may hang */
    JOB_SPACE,        /* how much is free? */
    JOB_RESERVE_MAKE, /* allocate the reserve */
    JOB_RESERVE_FREE, /* give it back */
};

struct disk {
    char dir[PATH_LEN_MAX];
    int dir_fd;
    int lock_fd;
    int watermark_fd;

    uint64_t watermark;          /* as stored */
    uint64_t watermark_sequence; /* of the slot written last */
    uint64_t noted;              /* what the next write will store */
    uint64_t behind_since_ns;    /* 0: not behind */

    bool started;
    bool closing;
    struct disk_options options;
    struct uv_loop_s *loop;
    struct raft_io io;
    struct raft_uv_transport transport;
    struct raft_tracer tracer;

    uv_mutex_t failure_mutex;
    uv_async_t failure_async;
    bool failure_met; /* under the mutex, like the text */
    char failure_text[DISK_DETAIL_LEN];
    bool failure_told;

    uv_work_t work;
    enum job_kind job; /* running; JOB_NONE: the pool has nothing of ours */
    int job_error;     /* errno of it; 0: done */
    uint64_t job_watermark;
    uint64_t job_free_len;
    disk_close_cb close_cb;
    void *close_ctx;

    uint64_t ticket;     /* drawn last */
    uint64_t log_ticket; /* libraft's write in flight, or 0 */
    unsigned log_in_flight;
    uint64_t log_submitted_ns; /* of the one in flight; these three are for metrics alone */
    uint64_t log_last_ns;
    uint64_t log_max_ns;
    uint64_t probe_ticket; /* our write in flight, or 0 */
    bool reserve_present;
    bool reserve_given; /* back to the file system, for want of space */
    uint64_t free_len;  /* when we looked last */
    bool space_known;
    uint64_t space_looked_ns;
};

/* --- disk_files.c */

/* Write a value into the slot that the sequence number chooses, durably; 0, or -1 with errno. */
int disk_watermark_write(int fd, uint64_t sequence, uint64_t index);

/* Where libraft's own files are. */
void disk_raft_path(const struct disk *disk, char out_path[PATH_LEN_MAX + 8]);

/* Close what disk_open() has opened; the lock goes with it. */
void disk_free(struct disk *disk);

#endif
