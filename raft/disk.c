/* The data directory: how.
 *
 * Two halves. disk_files.c works on the directory with plain file calls and needs no loop: lock,
 * identity, watermark. This one runs raft_uv and, one at a time in libuv's pool, the jobs that
 * keep watermark and reserve as they should be; disk_tick() decides which job is next.
 *
 * Libraft's tracer is called on the loop and in the pool. What it says of failures is put aside
 * under a mutex and told to the owner from the loop, outside of libraft. */
#include "raft/disk_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "fsm/base/units.h"
#include "raft/message_codec.h"

#define SEGMENT_LEN         (8u * 1024u * 1024u)
#define SPACE_LOW_LEN       (3ull * SEGMENT_LEN) /* two prepared segments and some */
#define RESERVE_ROOM_LEN    (64ull * MIB)        /* must stay free when the reserve is made again */
#define CAPACITY_LOW_KIB    (8u * 1024u)  /* of prepared segments; libraft refuses below 4 MiB */
#define SPACE_PERIOD_NS     1000000000ull /* between two looks at the free space */
#define WATERMARK_PERIOD_NS 500000000ull  /* half of what it may be behind */
#define WATERMARK_ENTRIES   256u

_Static_assert(DISK_WRITE_LEN_MAX >= MESSAGE_ENTRIES_MAX * (ENTRY_LEN_MAX + 32u) + 2u * 4096u,
               "what may be under way to a follower fits the write that a tail may be");

/* --- what libraft's tracer tells -------------------------------------------------------------- */

/* The beginnings of what libraft says of a failure that it then ignores, or answers with a retry
 * that crashes (L6). A test with a failing disk pins that they are still said. */
static bool text_is_fatal(const char *text)
{
    static const char *const beginnings[] = {
        "retry failed write",           /* uv_append.c: a log write failed */
        "prepare segment failed",       /* no segment to write to */
        "prepare segment ready failed", /* no AIO context */
        "prepare segment start failed",
        "can't create segment",
        "truncate segment ", /* uv_finalize.c: closing a segment failed */
        "truncate index ",   /* uv_truncate.c */
        "unlink segment ",
        "sync data directory",
        "write ",          /* uv_segment.c: the shorter copy of a truncation */
        "store snapshot ", /* uv_snapshot.c */
        "snapshot creation failed",
        "snapshot.meta creation failed",
    };
    for (size_t idx = 0; idx < sizeof(beginnings) / sizeof(beginnings[0]); idx++) {
        if (strncmp(text, beginnings[idx], strlen(beginnings[idx])) == 0) {
            return true;
        }
    }
    return false;
}

/* On whatever thread. */
static void disk_meet_failure(struct disk *disk, const char *what, const char *why)
{
    uv_mutex_lock(&disk->failure_mutex);
    bool first = !disk->failure_met;
    if (first) {
        disk->failure_met = true;
        (void)snprintf(disk->failure_text, sizeof(disk->failure_text), "%s%s", what, why);
    }
    uv_mutex_unlock(&disk->failure_mutex);
    if (first) {
        (void)uv_async_send(&disk->failure_async);
    }
}

static void on_failure_async(uv_async_t *async)
{
    struct disk *disk = async->data;
    uv_mutex_lock(&disk->failure_mutex);
    bool tell = disk->failure_met && !disk->failure_told && !disk->closing;
    disk->failure_told = disk->failure_told || tell;
    uv_mutex_unlock(&disk->failure_mutex);
    if (tell) {
        disk->options.on_failure(disk->options.ctx, STATUS_IO, disk->failure_text);
    }
}

/* Writes are submitted and completed on the loop; texts come from anywhere. */
static void on_trace(struct raft_tracer *tracer, int type, const void *info)
{
    struct disk *disk = tracer->impl;
    if (type == RAFT_UV_TRACER_WRITE_SUBMIT) {
        if (disk->log_in_flight++ == 0) {
            disk->log_ticket = ++disk->ticket;
            disk->log_submitted_ns = uv_hrtime();
        }
    } else if (type == RAFT_UV_TRACER_WRITE_COMPLETE) {
        CHECK(disk->log_in_flight > 0);
        disk->log_in_flight--;
        disk->log_last_ns = uv_hrtime() - disk->log_submitted_ns;
        disk->log_max_ns = max_u64(disk->log_max_ns, disk->log_last_ns);
        disk->log_submitted_ns = uv_hrtime();
        disk->log_ticket = disk->log_in_flight > 0 ? ++disk->ticket : 0;
    } else if (type == RAFT_TRACER_DIAGNOSTIC) {
        const struct raft_tracer_info *diagnostic = info;
        if (text_is_fatal(diagnostic->diagnostic.message)) {
            disk_meet_failure(disk, "libraft: ", diagnostic->diagnostic.message);
        }
    }
}

/* --- jobs in the pool ------------------------------------------------------------------------- */

static int job_space(struct disk *disk)
{
    struct statvfs info;
    if (fstatvfs(disk->dir_fd, &info) != 0) {
        return -1;
    }
    disk->job_free_len = (uint64_t)info.f_bavail * (uint64_t)info.f_frsize;
    return 0;
}

/* Under another name until it is whole, so that half a reserve is none. */
static int job_reserve_make(struct disk *disk)
{
    int fd = openat(disk->dir_fd, "reserve.new", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0) {
        return -1;
    }
    int code = posix_fallocate(fd, 0, (off_t)disk->options.reserve_len);
    if (code == 0 && fsync(fd) != 0) {
        code = errno;
    }
    (void)close(fd);
    if (code == 0 && renameat(disk->dir_fd, "reserve.new", disk->dir_fd, "reserve") != 0) {
        code = errno;
    }
    if (code != 0) {
        (void)unlinkat(disk->dir_fd, "reserve.new", 0);
        errno = code;
        return -1;
    }
    return 0;
}

static int job_reserve_free(struct disk *disk)
{
    return unlinkat(disk->dir_fd, "reserve", 0) != 0 && errno != ENOENT ? -1 : 0;
}

static int job_watermark(struct disk *disk)
{
    return disk_watermark_write(disk->watermark_fd, disk->watermark_sequence + 1,
                                disk->job_watermark);
}

static void on_work(uv_work_t *work)
{
    struct disk *disk = work->data;
    int code = 0;
    switch (disk->job) {
    case JOB_NONE:
        break;
    case JOB_WATERMARK:
        code = job_watermark(disk);
        break;
    case JOB_SPACE:
        code = job_space(disk);
        break;
    case JOB_RESERVE_MAKE:
        code = job_reserve_make(disk);
        break;
    case JOB_RESERVE_FREE:
        code = job_reserve_free(disk);
        break;
    }
    disk->job_error = code == 0 ? 0 : errno;
}

static void disk_finish_close(struct disk *disk);

static void disk_report(struct disk *disk, const char *line)
{
    if (disk->options.on_report != NULL) {
        disk->options.on_report(disk->options.ctx, line);
    }
}

static void job_done_watermark(struct disk *disk)
{
    disk->probe_ticket = 0;
    if (disk->job_error != 0) {
        disk_meet_failure(disk, "writing the watermark failed: ", strerror(disk->job_error));
        return;
    }
    disk->watermark_sequence++;
    disk->watermark = disk->job_watermark;
    if (disk->noted == disk->watermark) {
        disk->behind_since_ns = 0;
    }
}

static void on_work_done(uv_work_t *work, int status)
{
    struct disk *disk = work->data;
    (void)status;
    enum job_kind job = disk->job;
    disk->job = JOB_NONE;
    switch (job) {
    case JOB_NONE:
        break;
    case JOB_WATERMARK:
        job_done_watermark(disk);
        break;
    case JOB_SPACE:
        disk->space_known = disk->job_error == 0;
        disk->free_len = disk->job_free_len;
        break;
    case JOB_RESERVE_MAKE:
        disk->reserve_present = disk->job_error == 0;
        if (disk->reserve_present && disk->reserve_given) {
            disk->reserve_given = false;
            disk_report(disk, "the reserve is there again");
        }
        break;
    case JOB_RESERVE_FREE:
        disk->reserve_present = disk->job_error != 0;
        disk->reserve_given = true;
        disk_report(disk, "the disk is full: the reserve was given back");
        break;
    }
    if (disk->closing) {
        disk_finish_close(disk);
    }
}

static void job_start(struct disk *disk, enum job_kind job)
{
    CHECK(disk->job == JOB_NONE);
    disk->job = job;
    if (job == JOB_WATERMARK) {
        disk->job_watermark = disk->noted;
        disk->probe_ticket = ++disk->ticket;
    }
    disk->work.data = disk;
    CHECK(uv_queue_work(disk->loop, &disk->work, on_work, on_work_done) == 0);
}

/* The job that is due, most urgent first. */
static enum job_kind job_choose(struct disk *disk, uint64_t now_ns, bool append_waits)
{
    bool low = disk->io.capacity < CAPACITY_LOW_KIB;
    uint64_t behind = disk->noted - disk->watermark;
    if (behind >= WATERMARK_ENTRIES ||
        (behind > 0 && now_ns - disk->behind_since_ns >= WATERMARK_PERIOD_NS) ||
        (append_waits && disk->log_ticket == 0)) {
        return JOB_WATERMARK;
    }
    if (disk->options.reserve_len > 0 && disk->space_known) {
        disk->space_known = false; /* acted upon once */
        if (low && disk->reserve_present && disk->free_len < SPACE_LOW_LEN) {
            return JOB_RESERVE_FREE;
        }
        if (!disk->reserve_present &&
            disk->free_len >= disk->options.reserve_len + RESERVE_ROOM_LEN) {
            return JOB_RESERVE_MAKE;
        }
    }
    if ((low || !disk->reserve_present) &&
        (disk->space_looked_ns == 0 || now_ns - disk->space_looked_ns >= SPACE_PERIOD_NS)) {
        disk->space_looked_ns = now_ns;
        return JOB_SPACE;
    }
    return JOB_NONE;
}

void disk_tick(struct disk *disk, uint64_t now_ns, bool append_waits)
{
    if (!disk->started || disk->closing) {
        return;
    }
    if (disk->noted > disk->watermark && disk->behind_since_ns == 0) {
        disk->behind_since_ns = now_ns;
    }
    if (disk->job != JOB_NONE) {
        return;
    }
    enum job_kind job = job_choose(disk, now_ns, append_waits);
    if (job != JOB_NONE) {
        job_start(disk, job);
    }
}

void disk_note_durable(struct disk *disk, raft_index index)
{
    if (index > disk->noted) {
        disk->noted = index;
    }
}

uint64_t disk_oldest_write(const struct disk *disk)
{
    if (disk->log_ticket == 0 || disk->probe_ticket == 0) {
        return disk->log_ticket + disk->probe_ticket;
    }
    return min_u64(disk->log_ticket, disk->probe_ticket);
}

void disk_write_times(const struct disk *disk, uint64_t *out_last_us, uint64_t *out_max_us)
{
    *out_last_us = disk->log_last_ns / 1000;
    *out_max_us = disk->log_max_ns / 1000;
}

bool disk_low(const struct disk *disk)
{
    return disk->reserve_given || (disk->io.capacity < CAPACITY_LOW_KIB &&
                                   disk->space_looked_ns != 0 && disk->free_len < SPACE_LOW_LEN);
}

/* --- start and end ---------------------------------------------------------------------------- */

static int transport_init(struct raft_uv_transport *transport, raft_id id, const char *address)
{
    (void)transport;
    (void)id;
    (void)address;
    return 0;
}

static int transport_listen(struct raft_uv_transport *transport, raft_uv_accept_cb cb)
{
    (void)transport;
    (void)cb;
    return 0;
}

/* raft_uv connects when it sends, and the guard sends in its place. */
static int transport_connect(struct raft_uv_transport *transport, struct raft_uv_connect *req,
                             raft_id id, const char *address, raft_uv_connect_cb cb)
{
    (void)transport;
    (void)req;
    (void)id;
    (void)address;
    (void)cb;
    CHECK(false);
    return RAFT_INVALID;
}

static void transport_close(struct raft_uv_transport *transport, raft_uv_transport_close_cb cb)
{
    cb(transport);
}

void disk_options_init(struct disk_options *options)
{
    *options = (struct disk_options){
        .reserve_len = DISK_RESERVE_LEN,
        .retry_ms = DISK_RETRY_MS,
    };
}

/* Without a little space libraft can't even start; the reserve is there for that. */
static void make_room_to_start(struct disk *disk)
{
    disk->reserve_present = faccessat(disk->dir_fd, "reserve", F_OK, 0) == 0;
    (void)unlinkat(disk->dir_fd, "reserve.new", 0);
    if (job_space(disk) == 0) {
        disk->free_len = disk->job_free_len;
        if (disk->reserve_present && disk->free_len < SPACE_LOW_LEN) {
            disk->reserve_present = job_reserve_free(disk) != 0;
            disk->reserve_given = !disk->reserve_present;
        }
    }
}

enum status disk_start(struct disk *disk, struct uv_loop_s *loop,
                       const struct disk_options *options, struct raft_io **out_io,
                       struct disk_detail *out_detail)
{
    CHECK(!disk->started && options->on_failure != NULL);
    char path[PATH_LEN_MAX + 8];
    disk_raft_path(disk, path);
    disk->options = *options;
    disk->loop = loop;
    make_room_to_start(disk);
    disk->transport = (struct raft_uv_transport){
        .version = 1,
        .init = transport_init,
        .listen = transport_listen,
        .connect = transport_connect,
        .close = transport_close,
    };
    int code = raft_uv_init(&disk->io, loop, path, &disk->transport);
    if (code != 0) {
        disk_say(out_detail, "%s: %s", path, disk->io.errmsg);
        return code == RAFT_NAMETOOLONG ? STATUS_INVALID : STATUS_IO;
    }
    CHECK(uv_mutex_init(&disk->failure_mutex) == 0);
    CHECK(uv_async_init(loop, &disk->failure_async, on_failure_async) == 0);
    disk->failure_async.data = disk;
    disk->tracer = (struct raft_tracer){.impl = disk, .version = 2, .emit = on_trace};
    raft_uv_set_tracer(&disk->io, &disk->tracer);
    raft_uv_set_segment_size(&disk->io, SEGMENT_LEN);
    raft_uv_set_disk_retry(&disk->io, options->retry_ms);
    raft_uv_set_auto_recovery(&disk->io, true);
    disk->started = true;
    *out_io = &disk->io;
    return STATUS_OK;
}

static void on_async_closed(uv_handle_t *handle)
{
    struct disk *disk = handle->data;
    disk_close_cb cb = disk->close_cb;
    void *ctx = disk->close_ctx;
    uv_mutex_destroy(&disk->failure_mutex);
    disk_free(disk);
    if (cb != NULL) {
        cb(ctx);
    }
}

/* No job is running: a last watermark, then the handles. */
static void disk_finish_close(struct disk *disk)
{
    if (disk->noted > disk->watermark && !disk->failure_met) {
        job_start(disk, JOB_WATERMARK);
        return;
    }
    raft_uv_close(&disk->io);
    uv_close((uv_handle_t *)&disk->failure_async, on_async_closed);
}

void disk_close(struct disk *disk, disk_close_cb cb, void *ctx)
{
    CHECK(!disk->closing);
    if (!disk->started) {
        disk_free(disk);
        if (cb != NULL) {
            cb(ctx);
        }
        return;
    }
    disk->closing = true;
    disk->close_cb = cb;
    disk->close_ctx = ctx;
    if (disk->job == JOB_NONE) {
        disk_finish_close(disk);
    }
}
