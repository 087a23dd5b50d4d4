/* The data directory: how.
 *
 * Two halves. The first works on the directory with plain file calls and needs no loop: lock,
 * identity, watermark. The second runs raft_uv and, one at a time in libuv's pool, the jobs that
 * keep watermark and reserve as they should be; disk_tick() decides which job is next.
 *
 * The watermark file has two slots that are written in turn, each with a sequence number and a
 * checksum. A torn write damages the slot with the older of the two values, and a full disk is no
 * obstacle, since the file never grows.
 *
 * Libraft's tracer is called on the loop and in the pool. What it says of failures is put aside
 * under a mutex and told to the owner from the loop, outside of libraft. */
#include "raft/disk.h"

#include <errno.h>
#include <fcntl.h>
#include <raft/uv.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <uv.h>

#include "fsm/base/hash.h"
#include "fsm/base/units.h"
#include "raft/message_codec.h"

#define SEGMENT_LEN           (8u * 1024u * 1024u)
#define SPACE_LOW_LEN         (3ull * SEGMENT_LEN) /* two prepared segments and some */
#define RESERVE_ROOM_LEN      (64ull * MIB) /* must stay free when the reserve is made again */
#define CAPACITY_LOW_KIB      (8u * 1024u)  /* of prepared segments; libraft refuses below 4 MiB */
#define SPACE_PERIOD_NS       1000000000ull /* between two looks at the free space */
#define WATERMARK_PERIOD_NS   500000000ull  /* half of what it may be behind */
#define WATERMARK_ENTRIES     256u
#define WATERMARK_MAGIC       0x4B4D5754u /* "TWMK" */
#define WATERMARK_VERSION     1u
#define WATERMARK_SLOT_LEN    32u
#define WATERMARK_SLOT_STEP   4096u /* each slot in a block of its own */
#define IDENTITY_TEXT_LEN_MAX 512u
#define PATH_LEN_MAX          1024u

_Static_assert(DISK_WRITE_LEN_MAX >= MESSAGE_ENTRIES_MAX * (ENTRY_LEN_MAX + 32u) + 2u * 4096u,
               "what may be under way to a follower fits the write that a tail may be");

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

__attribute__((format(printf, 2, 3))) static void say(struct disk_detail *detail,
                                                      const char *format, ...)
{
    va_list args;
    va_start(args, format);
    (void)vsnprintf(detail->text, sizeof(detail->text), format, args);
    va_end(args);
}

static enum status failed(struct disk_detail *detail, const char *what, const char *name)
{
    say(detail, "%s %s: %s", what, name, strerror(errno));
    return STATUS_IO;
}

/* Write all, durably. */
static int write_synced(int fd, const void *bytes, size_t len, off_t offset)
{
    const uint8_t *at = bytes;
    while (len > 0) {
        ssize_t put = pwrite(fd, at, len, offset);
        if (put < 0 && errno == EINTR) {
            continue;
        }
        if (put <= 0) {
            return -1;
        }
        at += put;
        offset += put;
        len -= (size_t)put;
    }
    return fdatasync(fd);
}

/* Up to `len` bytes from the start; the number read, or -1. */
static ssize_t read_start(int fd, void *bytes, size_t len)
{
    size_t got = 0;
    while (got < len) {
        ssize_t more = pread(fd, (uint8_t *)bytes + got, len - got, (off_t)got);
        if (more < 0 && errno == EINTR) {
            continue;
        }
        if (more < 0) {
            return -1;
        }
        if (more == 0) {
            break;
        }
        got += (size_t)more;
    }
    return (ssize_t)got;
}

/* --- lock ------------------------------------------------------------------------------------- */

static enum status lock_take(struct disk *disk, struct disk_detail *detail)
{
    disk->lock_fd = openat(disk->dir_fd, "lock", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (disk->lock_fd < 0) {
        return failed(detail, "open", "lock");
    }
    char text[32] = {0};
    if (flock(disk->lock_fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK) {
            return failed(detail, "lock", disk->dir);
        }
        if (read_start(disk->lock_fd, text, sizeof(text) - 1) < 0) {
            return failed(detail, "read", "lock");
        }
        long pid = strtol(text, NULL, 10);
        say(detail, "%s: in use by pid %ld%s", disk->dir, pid,
            pid == (long)getpid() ? " (this process)" : "");
        return STATUS_IN_USE;
    }
    int len = snprintf(text, sizeof(text), "%ld\n", (long)getpid());
    if (ftruncate(disk->lock_fd, 0) != 0 ||
        pwrite(disk->lock_fd, text, (size_t)len, 0) != (ssize_t)len) {
        return failed(detail, "write", "lock");
    }
    return STATUS_OK;
}

/* --- identity --------------------------------------------------------------------------------- */

static size_t identity_encode(const struct disk_identity *identity,
                              char out_text[IDENTITY_TEXT_LEN_MAX])
{
    char id[2 * CLUSTER_ID_LEN + 1];
    for (size_t idx = 0; idx < CLUSTER_ID_LEN; idx++) {
        (void)snprintf(id + 2 * idx, 3, "%02x", identity->cluster.id[idx]);
    }
    int len = snprintf(out_text, IDENTITY_TEXT_LEN_MAX,
                       "tenure_identity=%u\ncluster_id=%s\ngeneration=%llu\n"
                       "generation_random=%016llx\nnode_id=%llu\n",
                       DISK_IDENTITY_VERSION, id, (unsigned long long)identity->cluster.generation,
                       (unsigned long long)identity->cluster.generation_random,
                       (unsigned long long)identity->node_id);
    CHECK(len > 0 && len < (int)IDENTITY_TEXT_LEN_MAX - 32);
    if (identity->founding.voters != 0) {
        len += snprintf(out_text + len, IDENTITY_TEXT_LEN_MAX - (size_t)len,
                        "founding_voters=%llu\nfounding_token_floor=%llu\n",
                        (unsigned long long)identity->founding.voters,
                        (unsigned long long)identity->founding.token_floor);
        CHECK(len < (int)IDENTITY_TEXT_LEN_MAX - 32);
    }
    uint32_t crc = crc32c(0, out_text, (size_t)len);
    return (size_t)len + (size_t)snprintf(out_text + len, IDENTITY_TEXT_LEN_MAX - (size_t)len,
                                          "crc32c=%08x\n", crc);
}

static bool hex_decode(const char *text, uint8_t *out_bytes, size_t len)
{
    for (size_t idx = 0; idx < len; idx++) {
        unsigned value;
        if (sscanf(text + 2 * idx, "%2x", &value) != 1) {
            return false;
        }
        out_bytes[idx] = (uint8_t)value;
    }
    return true;
}

/* Only the very bytes that identity_encode() makes are accepted. */
static enum status identity_decode(const char *text, size_t len, struct disk_identity *out_identity,
                                   struct disk_detail *detail)
{
    unsigned version;
    if (sscanf(text, "tenure_identity=%u\n", &version) != 1) {
        say(detail, "identity: offset 0: not an identity file");
        return STATUS_CORRUPT;
    }
    if (version != DISK_IDENTITY_VERSION) {
        say(detail, "identity: format version %u, this program knows version %u", version,
            DISK_IDENTITY_VERSION);
        return STATUS_INCOMPATIBLE;
    }
    char id[2 * CLUSTER_ID_LEN + 1];
    unsigned long long generation;
    unsigned long long random;
    unsigned long long node_id;
    unsigned long long voters = 0;
    unsigned long long token_floor = 0;
    struct disk_identity identity = {0};
    /* The last two are a founder's. */
    if (sscanf(text,
               "tenure_identity=%*u cluster_id=%32[0-9a-f] generation=%llu "
               "generation_random=%llx node_id=%llu founding_voters=%llu "
               "founding_token_floor=%llu",
               id, &generation, &random, &node_id, &voters, &token_floor) >= 4 &&
        strlen(id) == 2 * CLUSTER_ID_LEN && hex_decode(id, identity.cluster.id, CLUSTER_ID_LEN)) {
        identity.cluster.generation = generation;
        identity.cluster.generation_random = random;
        identity.node_id = node_id;
        identity.founding =
            (struct disk_founding){.voters = voters, .token_floor = token_floor};
        char again[IDENTITY_TEXT_LEN_MAX];
        if (node_id != 0 && identity_encode(&identity, again) == len &&
            memcmp(again, text, len) == 0) {
            *out_identity = identity;
            return STATUS_OK;
        }
    }
    say(detail, "identity: offset 0: damaged, or changed by hand");
    return STATUS_CORRUPT;
}

enum status disk_identity_load(struct disk *disk, struct disk_identity *out_identity,
                               struct disk_detail *out_detail)
{
    int fd = openat(disk->dir_fd, "identity", O_RDONLY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT) {
        say(out_detail, "%s: this node belongs to no cluster yet", disk->dir);
        return STATUS_UNINITIALISED;
    }
    if (fd < 0) {
        return failed(out_detail, "open", "identity");
    }
    char text[IDENTITY_TEXT_LEN_MAX] = {0};
    ssize_t len = read_start(fd, text, sizeof(text) - 1);
    enum status status = len < 0 ? failed(out_detail, "read", "identity") : STATUS_OK;
    (void)close(fd);
    return status != STATUS_OK ? status
                               : identity_decode(text, (size_t)len, out_identity, out_detail);
}

enum status disk_identity_store(struct disk *disk, const struct disk_identity *identity,
                                struct disk_detail *out_detail)
{
    CHECK(identity->node_id != 0);
    char text[IDENTITY_TEXT_LEN_MAX];
    size_t len = identity_encode(identity, text);
    int fd = openat(disk->dir_fd, "identity.new", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0) {
        return failed(out_detail, "open", "identity.new");
    }
    enum status status = STATUS_OK;
    if (write_synced(fd, text, len, 0) != 0 || fsync(fd) != 0) {
        status = failed(out_detail, "write", "identity.new");
    }
    (void)close(fd);
    if (status != STATUS_OK) {
        return status;
    }
    if (renameat(disk->dir_fd, "identity.new", disk->dir_fd, "identity") != 0) {
        return failed(out_detail, "rename", "identity");
    }
    if (fsync(disk->dir_fd) != 0) {
        (void)failed(out_detail, "sync", disk->dir);
        return STATUS_UNKNOWN;
    }
    return STATUS_OK;
}

/* --- watermark -------------------------------------------------------------------------------- */

static void put_u32(uint8_t *at, uint32_t value)
{
    for (int idx = 0; idx < 4; idx++) {
        at[idx] = (uint8_t)(value >> (8 * idx));
    }
}

static void put_u64(uint8_t *at, uint64_t value)
{
    put_u32(at, (uint32_t)value);
    put_u32(at + 4, (uint32_t)(value >> 32));
}

static uint32_t get_u32(const uint8_t *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static uint64_t get_u64(const uint8_t *at)
{
    return (uint64_t)get_u32(at) | (uint64_t)get_u32(at + 4) << 32;
}

/* Magic, version, sequence, index, checksum of these. */
static void watermark_encode(uint64_t sequence, uint64_t index,
                             uint8_t out_slot[WATERMARK_SLOT_LEN])
{
    memset(out_slot, 0, WATERMARK_SLOT_LEN);
    put_u32(out_slot, WATERMARK_MAGIC);
    put_u32(out_slot + 4, WATERMARK_VERSION);
    put_u64(out_slot + 8, sequence);
    put_u64(out_slot + 16, index);
    put_u32(out_slot + 24, crc32c(0, out_slot, 24));
}

static int watermark_write(int fd, uint64_t sequence, uint64_t index)
{
    uint8_t slot[WATERMARK_SLOT_LEN];
    watermark_encode(sequence, index, slot);
    return write_synced(fd, slot, sizeof(slot), (off_t)(sequence % 2 * WATERMARK_SLOT_STEP));
}

/* Whether slot and checksum agree; an empty slot does not, and is not damaged. */
static bool watermark_valid(const uint8_t *slot)
{
    return get_u32(slot) == WATERMARK_MAGIC && get_u32(slot + 24) == crc32c(0, slot, 24);
}

static enum status watermark_load(struct disk *disk, struct disk_detail *detail)
{
    uint8_t bytes[2 * WATERMARK_SLOT_STEP] = {0};
    if (read_start(disk->watermark_fd, bytes, sizeof(bytes)) < 0) {
        return failed(detail, "read", "watermark");
    }
    unsigned damaged = 0;
    for (size_t idx = 0; idx < 2; idx++) {
        const uint8_t *slot = bytes + idx * WATERMARK_SLOT_STEP;
        if (!watermark_valid(slot)) {
            const uint8_t zeros[WATERMARK_SLOT_LEN] = {0};
            damaged += memcmp(slot, zeros, sizeof(zeros)) != 0 ? 1 : 0;
            continue;
        }
        if (get_u32(slot + 4) != WATERMARK_VERSION) {
            say(detail, "watermark: format version %u, this program knows version %u",
                get_u32(slot + 4), WATERMARK_VERSION);
            return STATUS_INCOMPATIBLE;
        }
        if (get_u64(slot + 8) > disk->watermark_sequence) {
            disk->watermark_sequence = get_u64(slot + 8);
            disk->watermark = get_u64(slot + 16);
        }
    }
    if (damaged == 2) {
        say(detail, "watermark: offset 0: both slots are damaged");
        return STATUS_CORRUPT;
    }
    disk->noted = disk->watermark;
    return STATUS_OK;
}

/* The file is made at its full length, so that writing it never needs space. */
static enum status watermark_open(struct disk *disk, struct disk_detail *detail)
{
    disk->watermark_fd = openat(disk->dir_fd, "watermark", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (disk->watermark_fd < 0) {
        return failed(detail, "open", "watermark");
    }
    struct stat info;
    if (fstat(disk->watermark_fd, &info) != 0) {
        return failed(detail, "stat", "watermark");
    }
    if (info.st_size < (off_t)(2 * WATERMARK_SLOT_STEP)) {
        errno = posix_fallocate(disk->watermark_fd, 0, 2 * WATERMARK_SLOT_STEP);
        if (errno != 0 || fsync(disk->watermark_fd) != 0 || fsync(disk->dir_fd) != 0) {
            return failed(detail, "allocate", "watermark");
        }
    }
    return watermark_load(disk, detail);
}

/* --- opening ---------------------------------------------------------------------------------- */

/* A new directory's name is data of the one above it. */
static int make_dir(const char *dir)
{
    if (mkdir(dir, 0700) != 0) {
        return errno == EEXIST ? 0 : -1;
    }
    char parent[PATH_LEN_MAX + 4];
    (void)snprintf(parent, sizeof(parent), "%s/..", dir);
    int fd = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int code = fd < 0 ? -1 : fsync(fd);
    if (fd >= 0) {
        (void)close(fd);
    }
    return code;
}

static void disk_free(struct disk *disk)
{
    const int fds[] = {disk->watermark_fd, disk->lock_fd, disk->dir_fd};
    for (size_t idx = 0; idx < sizeof(fds) / sizeof(fds[0]); idx++) {
        if (fds[idx] >= 0) {
            (void)close(fds[idx]);
        }
    }
    free(disk);
}

static enum status disk_open_dir(struct disk *disk, struct disk_detail *detail)
{
    if (make_dir(disk->dir) != 0) {
        return failed(detail, "make", disk->dir);
    }
    disk->dir_fd = open(disk->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (disk->dir_fd < 0) {
        return failed(detail, "open", disk->dir);
    }
    enum status status = lock_take(disk, detail);
    if (status != STATUS_OK) {
        return status;
    }
    if (mkdirat(disk->dir_fd, "raft", 0700) == 0) {
        if (fsync(disk->dir_fd) != 0) {
            return failed(detail, "sync", disk->dir);
        }
    } else if (errno != EEXIST) {
        return failed(detail, "make", "raft");
    }
    return watermark_open(disk, detail);
}

enum status disk_open(const char *dir, struct disk **out_disk, struct disk_detail *out_detail)
{
    struct disk *disk = calloc(1, sizeof(*disk));
    CHECK(disk != NULL);
    disk->dir_fd = -1;
    disk->lock_fd = -1;
    disk->watermark_fd = -1;
    enum status status;
    if (strlen(dir) >= sizeof(disk->dir)) {
        say(out_detail, "the path of the data directory is longer than %u bytes", PATH_LEN_MAX);
        status = STATUS_INVALID;
    } else {
        (void)snprintf(disk->dir, sizeof(disk->dir), "%s", dir);
        status = disk_open_dir(disk, out_detail);
    }
    if (status != STATUS_OK) {
        disk_free(disk);
        return status;
    }
    *out_disk = disk;
    return STATUS_OK;
}

static void raft_path(const struct disk *disk, char out_path[PATH_LEN_MAX + 8])
{
    (void)snprintf(out_path, PATH_LEN_MAX + 8, "%s/raft", disk->dir);
}

enum status disk_verify(struct disk *disk, const struct disk_check_options *options,
                        struct disk_state *out_state, struct disk_detail *out_detail)
{
    CHECK(!disk->started);
    char path[PATH_LEN_MAX + 8];
    raft_path(disk, path);
    struct disk_check_options own = *options;
    own.watermark = disk->watermark;
    return disk_check(path, &own, out_state, out_detail);
}

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
    return watermark_write(disk->watermark_fd, disk->watermark_sequence + 1, disk->job_watermark);
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
    raft_path(disk, path);
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
        say(out_detail, "%s: %s", path, disk->io.errmsg);
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
