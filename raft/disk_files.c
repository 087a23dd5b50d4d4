/* The data directory: lock, identity and watermark, with plain file calls and without a loop.
 *
 * The watermark file has two slots that are written in turn, each with a sequence number and a
 * checksum. A torn write damages the slot with the older of the two values, and a full disk is no
 * obstacle, since the file never grows. */
#include "raft/disk_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fsm/base/hash.h"

#define WATERMARK_MAGIC       0x4B4D5754u /* "TWMK" */
#define WATERMARK_VERSION     1u
#define WATERMARK_SLOT_LEN    32u
#define WATERMARK_SLOT_STEP   4096u /* each slot in a block of its own */
#define IDENTITY_TEXT_LEN_MAX 512u

void disk_say(struct disk_detail *detail, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    (void)vsnprintf(detail->text, sizeof(detail->text), format, args);
    va_end(args);
}

enum status disk_failed(struct disk_detail *detail, const char *what, const char *name)
{
    disk_say(detail, "%s %s: %s", what, name, strerror(errno));
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
        return disk_failed(detail, "open", "lock");
    }
    char text[32] = {0};
    if (flock(disk->lock_fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK) {
            return disk_failed(detail, "lock", disk->dir);
        }
        if (read_start(disk->lock_fd, text, sizeof(text) - 1) < 0) {
            return disk_failed(detail, "read", "lock");
        }
        long pid = strtol(text, NULL, 10);
        disk_say(detail, "%s: in use by pid %ld%s", disk->dir, pid,
                 pid == (long)getpid() ? " (this process)" : "");
        return STATUS_IN_USE;
    }
    int len = snprintf(text, sizeof(text), "%ld\n", (long)getpid());
    if (ftruncate(disk->lock_fd, 0) != 0 ||
        pwrite(disk->lock_fd, text, (size_t)len, 0) != (ssize_t)len) {
        return disk_failed(detail, "write", "lock");
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
                       identity->founding.voters != 0 ? DISK_IDENTITY_VERSION_FOUNDER
                                                      : DISK_IDENTITY_VERSION,
                       id, (unsigned long long)identity->cluster.generation,
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

/* Only the very bytes that identity_encode() makes are accepted, so that a version comes with its
 * own fields alone. */
static enum status identity_decode(const char *text, size_t len, struct disk_identity *out_identity,
                                   struct disk_detail *detail)
{
    unsigned version;
    if (sscanf(text, "tenure_identity=%u\n", &version) != 1) {
        disk_say(detail, "identity: offset 0: not an identity file");
        return STATUS_CORRUPT;
    }
    if (version != DISK_IDENTITY_VERSION && version != DISK_IDENTITY_VERSION_FOUNDER) {
        disk_say(detail, "identity: format version %u, this program knows versions %u and %u",
                 version, DISK_IDENTITY_VERSION, DISK_IDENTITY_VERSION_FOUNDER);
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
        identity.founding = (struct disk_founding){.voters = voters, .token_floor = token_floor};
        char again[IDENTITY_TEXT_LEN_MAX];
        if (node_id != 0 && identity_encode(&identity, again) == len &&
            memcmp(again, text, len) == 0) {
            *out_identity = identity;
            return STATUS_OK;
        }
    }
    disk_say(detail, "identity: offset 0: damaged, or changed by hand");
    return STATUS_CORRUPT;
}

enum status disk_identity_load(struct disk *disk, struct disk_identity *out_identity,
                               struct disk_detail *out_detail)
{
    int fd = openat(disk->dir_fd, "identity", O_RDONLY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT) {
        disk_say(out_detail, "%s: this node belongs to no cluster yet", disk->dir);
        return STATUS_UNINITIALISED;
    }
    if (fd < 0) {
        return disk_failed(out_detail, "open", "identity");
    }
    char text[IDENTITY_TEXT_LEN_MAX] = {0};
    ssize_t len = read_start(fd, text, sizeof(text) - 1);
    enum status status = len < 0 ? disk_failed(out_detail, "read", "identity") : STATUS_OK;
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
        return disk_failed(out_detail, "open", "identity.new");
    }
    enum status status = STATUS_OK;
    if (write_synced(fd, text, len, 0) != 0 || fsync(fd) != 0) {
        status = disk_failed(out_detail, "write", "identity.new");
    }
    (void)close(fd);
    if (status != STATUS_OK) {
        return status;
    }
    if (renameat(disk->dir_fd, "identity.new", disk->dir_fd, "identity") != 0) {
        return disk_failed(out_detail, "rename", "identity");
    }
    if (fsync(disk->dir_fd) != 0) {
        (void)disk_failed(out_detail, "sync", disk->dir);
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

int disk_watermark_write(int fd, uint64_t sequence, uint64_t index)
{
    uint8_t slot[WATERMARK_SLOT_LEN];
    watermark_encode(sequence, index, slot);
    return write_synced(fd, slot, sizeof(slot), (off_t)(sequence % 2 * WATERMARK_SLOT_STEP));
}

/* Whether slot and checksum agree; an empty slot does not, and is not damaged. */
static bool watermark_valid(const uint8_t *slot)
{
    return disk_u32(slot) == WATERMARK_MAGIC && disk_u32(slot + 24) == crc32c(0, slot, 24);
}

static enum status watermark_load(struct disk *disk, struct disk_detail *detail)
{
    uint8_t bytes[2 * WATERMARK_SLOT_STEP] = {0};
    if (read_start(disk->watermark_fd, bytes, sizeof(bytes)) < 0) {
        return disk_failed(detail, "read", "watermark");
    }
    unsigned damaged = 0;
    for (size_t idx = 0; idx < 2; idx++) {
        const uint8_t *slot = bytes + idx * WATERMARK_SLOT_STEP;
        if (!watermark_valid(slot)) {
            const uint8_t zeros[WATERMARK_SLOT_LEN] = {0};
            damaged += memcmp(slot, zeros, sizeof(zeros)) != 0 ? 1 : 0;
            continue;
        }
        if (disk_u32(slot + 4) != WATERMARK_VERSION) {
            disk_say(detail, "watermark: format version %u, this program knows version %u",
                     disk_u32(slot + 4), WATERMARK_VERSION);
            return STATUS_INCOMPATIBLE;
        }
        if (disk_u64(slot + 8) > disk->watermark_sequence) {
            disk->watermark_sequence = disk_u64(slot + 8);
            disk->watermark = disk_u64(slot + 16);
        }
    }
    if (damaged == 2) {
        disk_say(detail, "watermark: offset 0: both slots are damaged");
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
        return disk_failed(detail, "open", "watermark");
    }
    struct stat info;
    if (fstat(disk->watermark_fd, &info) != 0) {
        return disk_failed(detail, "stat", "watermark");
    }
    if (info.st_size < (off_t)(2 * WATERMARK_SLOT_STEP)) {
        errno = posix_fallocate(disk->watermark_fd, 0, 2 * WATERMARK_SLOT_STEP);
        if (errno != 0 || fsync(disk->watermark_fd) != 0 || fsync(disk->dir_fd) != 0) {
            return disk_failed(detail, "allocate", "watermark");
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

void disk_free(struct disk *disk)
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
        return disk_failed(detail, "make", disk->dir);
    }
    disk->dir_fd = open(disk->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (disk->dir_fd < 0) {
        return disk_failed(detail, "open", disk->dir);
    }
    enum status status = lock_take(disk, detail);
    if (status != STATUS_OK) {
        return status;
    }
    if (mkdirat(disk->dir_fd, "raft", 0700) == 0) {
        if (fsync(disk->dir_fd) != 0) {
            return disk_failed(detail, "sync", disk->dir);
        }
    } else if (errno != EEXIST) {
        return disk_failed(detail, "make", "raft");
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
        disk_say(out_detail, "the path of the data directory is longer than %u bytes",
                 PATH_LEN_MAX);
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

void disk_raft_path(const struct disk *disk, char out_path[PATH_LEN_MAX + 8])
{
    (void)snprintf(out_path, PATH_LEN_MAX + 8, "%s/raft", disk->dir);
}

enum status disk_verify(struct disk *disk, const struct disk_check_options *options,
                        struct disk_state *out_state, struct disk_detail *out_detail)
{
    CHECK(!disk->started);
    char path[PATH_LEN_MAX + 8];
    disk_raft_path(disk, path);
    struct disk_check_options own = *options;
    own.watermark = disk->watermark;
    return disk_check(path, &own, out_state, out_detail);
}
