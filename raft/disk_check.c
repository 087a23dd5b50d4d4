/* The check: how.
 *
 * Three passes. Listing sorts the names by kind, as libraft reads them. Reading goes through
 * metadata, snapshots and segments in the order of their indexes and only decides; what shall be
 * cut or removed goes into a plan. The plan is carried out when everything was found sound.
 *
 * Formats (libraft 0.22.1, uv_metadata.c, uv_segment.c, uv_encoding.c, uv_snapshot.c), all
 * little-endian:
 *
 *   metadata1/2   format 1, version, term, vote: 8 bytes each, no checksum; odd versions in 1
 *   segment       format 1 (8 bytes), then batches: CRC of header (4), CRC of data (4),
 *                 header: count (8), per entry term (8) type (1) zeros (3) length (4); data
 *   FIRST-LAST    a closed segment, exactly as long as its batches
 *   open-N        an open one, zeros to the end; entries follow those of the closed ones
 *   snapshot-TERM-INDEX-TIME       the bytes that the state machine gave
 *   snapshot-TERM-INDEX-TIME.meta  format 1, CRC, configuration index, configuration length; it
 *
 * How a segment can be damaged by a power cut: one write is in flight at a time, on the last
 * segment that has data, of whole blocks from the one after the last full block on. Any of its
 * blocks may have arrived. So behind the last good batch there may be garbage, but not further than
 * one write, and nothing behind the segment.
 *
 * Listing is in disk_check_list.c, segments and the log that they make are in disk_check_log.c. */
#include "raft/disk_check_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fsm/base/units.h"

#define METADATA_LEN             32u
#define SNAPSHOT_META_HEADER_LEN 32u
#define CONFIGURATION_LEN_MAX    (1024u * 1024u)

/* --- small things ----------------------------------------------------------------------------- */

enum status check_corrupt(struct check *check, const char *name, uint64_t offset, const char *why)
{
    disk_say(check->detail, "%s: offset %llu: %s", name, (unsigned long long)offset, why);
    return STATUS_CORRUPT;
}

enum status check_failed(struct check *check, const char *what, const char *name)
{
    return disk_failed(check->detail, what, name);
}

/* libraft's checksum: CRC-32 of polynomial 0x04C11DB7, high bit first, no inversions; eight bytes
 * at a time (Kounavis and Berry 2005). */
static void crc_init(struct check *check)
{
    for (uint32_t idx = 0; idx < 256; idx++) {
        uint32_t value = idx << 24;
        for (int bit = 0; bit < 8; bit++) {
            value = (value & 0x80000000u) != 0 ? (value << 1) ^ 0x04C11DB7u : value << 1;
        }
        check->crc[0][idx] = value;
    }
    for (int slice = 1; slice < 8; slice++) {
        for (uint32_t idx = 0; idx < 256; idx++) {
            uint32_t value = check->crc[slice - 1][idx];
            check->crc[slice][idx] = (value << 8) ^ check->crc[0][value >> 24];
        }
    }
}

uint32_t check_crc(const struct check *check, uint32_t crc, const uint8_t *at, size_t len)
{
    while (len >= 8) {
        uint32_t head = crc ^ ((uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 |
                               (uint32_t)at[2] << 8 | (uint32_t)at[3]);
        crc = check->crc[7][head >> 24] ^ check->crc[6][(head >> 16) & 255] ^
              check->crc[5][(head >> 8) & 255] ^ check->crc[4][head & 255] ^ check->crc[3][at[4]] ^
              check->crc[2][at[5]] ^ check->crc[1][at[6]] ^ check->crc[0][at[7]];
        at += 8;
        len -= 8;
    }
    while (len > 0) {
        crc = (crc << 8) ^ check->crc[0][((crc >> 24) ^ *at) & 255];
        at++;
        len--;
    }
    return crc;
}

/* Room for one more element; `count` elements of `size` are there. */
void *check_room(void *base, size_t count, size_t size)
{
    if ((count & (count - 1)) == 0) { /* full at 0, 1, 2, 4, 8 ... */
        base = realloc(base, (count == 0 ? 1 : count * 2) * size);
        CHECK(base != NULL);
    }
    return base;
}

void check_copy_name(char out_name[NAME_LEN_MAX], const char *name)
{
    (void)snprintf(out_name, NAME_LEN_MAX, "%s", name);
}

struct step *check_plan(struct check *check, enum step_kind kind, const char *name)
{
    check->steps = check_room(check->steps, check->step_count, sizeof(*check->steps));
    struct step *step = &check->steps[check->step_count++];
    *step = (struct step){.kind = kind};
    check_copy_name(step->name, name);
    return step;
}

void check_plan_unlink(struct check *check, const char *name, const char *why)
{
    struct step *step = check_plan(check, STEP_UNLINK, name);
    (void)snprintf(step->why, sizeof(step->why), "%s", why);
}

enum status check_read_file(struct check *check, const char *name, struct content *out_content)
{
    int fd = openat(check->dir, name, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return check_failed(check, "open", name);
    }
    enum status status = STATUS_OK;
    struct stat info;
    uint8_t *base = NULL;
    size_t len = 0;
    if (fstat(fd, &info) != 0) {
        status = check_failed(check, "stat", name);
        goto out;
    }
    base = malloc((size_t)info.st_size + 1);
    if (base == NULL) {
        disk_say(check->detail, "%s: no memory for %lld bytes", name, (long long)info.st_size);
        status = STATUS_NO_MEMORY;
        goto out;
    }
    while (len < (size_t)info.st_size) {
        ssize_t got = read(fd, base + len, (size_t)info.st_size - len);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            status = check_failed(check, "read", name);
            goto out;
        }
        len += (size_t)got;
    }
out:
    (void)close(fd);
    if (status != STATUS_OK) {
        free(base);
        return status;
    }
    *out_content = (struct content){.base = base, .len = len};
    return STATUS_OK;
}

/* --- metadata --------------------------------------------------------------------------------- */

/* One of the two files. A short one was being made when the process died; libraft removes it. */
static enum status read_metadata_file(struct check *check, unsigned number)
{
    char name[NAME_LEN_MAX];
    (void)snprintf(name, sizeof(name), "metadata%u", number);
    struct content content;
    enum status status = check_read_file(check, name, &content);
    if (status != STATUS_OK) {
        return status;
    }
    if (content.len < METADATA_LEN) {
        check->metadata_present[number - 1] = false;
        check_plan_unlink(check, name, "the file was not written to its end");
    } else if (content.len > METADATA_LEN) {
        status = check_corrupt(check, name, METADATA_LEN, "longer than it can be");
    } else if (disk_u64(content.base) != FORMAT) {
        status = check_corrupt(check, name, 0, "unknown format");
    } else {
        uint64_t version = disk_u64(content.base + 8);
        if (version == 0 || version % 2 != number % 2) {
            status = check_corrupt(check, name, 8, "a version that does not belong here");
        }
        check->metadata_version[number - 1] = version;
        if (version > check->metadata_version[2 - number]) {
            check->state.term = disk_u64(content.base + 16);
            check->state.vote = disk_u64(content.base + 24);
        }
    }
    free(content.base);
    return status;
}

/* Versions alternate between the files, so from the second write on both are there and one apart.
 * With one of them gone libraft would take the older and could vote twice in a term. */
static enum status read_metadata(struct check *check)
{
    for (unsigned number = 1; number <= 2; number++) {
        if (check->metadata_present[number - 1]) {
            enum status status = read_metadata_file(check, number);
            if (status != STATUS_OK) {
                return status;
            }
        }
    }
    uint64_t one = check->metadata_version[0];
    uint64_t two = check->metadata_version[1];
    uint64_t newest = max_u64(one, two);
    if (newest >= 2 && (one > two ? one - two : two - one) != 1) {
        return check_corrupt(check, newest == one ? "metadata2" : "metadata1", 0,
                             "missing, or not the one written before or after the other");
    }
    if (newest == 0 && check->segment_count + check->snapshot_count > 0) {
        return check_corrupt(check, "metadata1", 0, "missing, but there is a log");
    }
    return STATUS_OK;
}

/* --- snapshots -------------------------------------------------------------------------------- */

static enum status read_snapshot_meta(struct check *check, const char *name)
{
    struct content content;
    enum status status = check_read_file(check, name, &content);
    if (status != STATUS_OK) {
        return status;
    }
    if (content.len < SNAPSHOT_META_HEADER_LEN) {
        status = check_corrupt(check, name, content.len, "too short");
    } else if (disk_u64(content.base) != FORMAT) {
        status = check_corrupt(check, name, 0, "unknown format");
    } else {
        uint64_t len = disk_u64(content.base + 24);
        if (len == 0 || len > CONFIGURATION_LEN_MAX ||
            len != content.len - SNAPSHOT_META_HEADER_LEN) {
            status = check_corrupt(check, name, 24, "a length that does not fit the file");
        } else if (check_crc(check, 0, content.base + 16, content.len - 16) !=
                   disk_u64(content.base + 8)) {
            status = check_corrupt(check, name, 8, "checksum differs");
        }
    }
    free(content.base);
    return status;
}

enum status check_verified(struct check *check, const char *name, uint64_t offset,
                           enum status status, const struct disk_detail *why)
{
    if (status == STATUS_OK) {
        return STATUS_OK;
    }
    disk_say(check->detail, "%s: offset %llu: %.256s", name, (unsigned long long)offset, why->text);
    return status == STATUS_INCOMPATIBLE ? STATUS_INCOMPATIBLE : STATUS_CORRUPT;
}

static enum status read_snapshot_data(struct check *check, const char *name)
{
    struct content content;
    enum status status = check_read_file(check, name, &content);
    if (status != STATUS_OK) {
        return status;
    }
    if (content.len == 0) {
        status = check_corrupt(check, name, 0, "empty");
    } else if (check->options->verify_snapshot != NULL) {
        struct disk_detail why = {{0}};
        status = check->options->verify_snapshot(check->options->ctx,
                                                 slice_from(content.base, content.len), &why);
        status = check_verified(check, name, 0, status, &why);
    }
    free(content.base);
    return status;
}

/* A half without the other was being written or removed when the process died. */
static enum status read_snapshots(struct check *check)
{
    for (size_t idx = 0; idx < check->snapshot_count; idx++) {
        const struct snapshot_file *file = &check->snapshots[idx];
        char meta[NAME_LEN_MAX + 8];
        (void)snprintf(meta, sizeof(meta), "%s.meta", file->name);
        if (!file->data || !file->meta) {
            check_plan_unlink(check, file->data ? file->name : meta,
                              "the snapshot's other half is missing");
            continue;
        }
        enum status status = read_snapshot_meta(check, meta);
        if (status == STATUS_OK) {
            status = read_snapshot_data(check, file->name);
        }
        if (status != STATUS_OK) {
            return status;
        }
        if (file->term > check->state.term) {
            return check_corrupt(check, file->name, 0, "of a later term than the metadata know");
        }
        check->state.snapshot_index = file->index;
        check->state.snapshot_term = file->term;
    }
    return STATUS_OK;
}

/* --- repairing -------------------------------------------------------------------------------- */

/* The first write of a birth is the term, the second the log. A node that died in between, and one
 * that has merely heard of term 1, have nothing that could be lost: both are new. */
static void forget_unfinished_birth(struct check *check)
{
    if (check->metadata_version[0] == 1 && check->metadata_version[1] == 0 &&
        check->state.term == 1 && check->state.vote == 0 && check->state.last_index == 0) {
        check_plan_unlink(check, "metadata1", "the node had not got beyond its first term");
        check->state.term = 0;
    }
}

static enum status carry_out_cut(struct check *check, const struct step *step)
{
    int fd = openat(check->dir, step->name, O_WRONLY | O_CLOEXEC);
    if (fd < 0) {
        return check_failed(check, "open", step->name);
    }
    enum status status = STATUS_OK;
    if (ftruncate(fd, (off_t)step->cut_len) != 0 || fsync(fd) != 0) {
        status = check_failed(check, "cut", step->name);
    }
    (void)close(fd);
    if (status == STATUS_OK && step->new_name[0] != '\0' &&
        renameat(check->dir, step->name, check->dir, step->new_name) != 0) {
        status = check_failed(check, "rename", step->name);
    }
    return status;
}

static enum status carry_out(struct check *check)
{
    for (size_t idx = 0; idx < check->step_count; idx++) {
        const struct step *step = &check->steps[idx];
        enum status status = STATUS_OK;
        if (step->kind == STEP_CUT) {
            status = carry_out_cut(check, step);
        } else if (unlinkat(check->dir, step->name, 0) != 0 && errno != ENOENT) {
            status = check_failed(check, "remove", step->name);
        }
        if (status != STATUS_OK) {
            return status;
        }
        if (check->options->on_report != NULL) {
            struct disk_detail line;
            disk_say(&line, "%s %s: %s", step->kind == STEP_CUT ? "cut" : "removed", step->name,
                     step->why);
            check->options->on_report(check->options->ctx, line.text);
        }
    }
    if (check->step_count > 0 && fsync(check->dir) != 0) {
        return check_failed(check, "sync", "the directory");
    }
    return STATUS_OK;
}

enum status disk_check(const char *dir, const struct disk_check_options *options,
                       struct disk_state *out_state, struct disk_detail *out_detail)
{
    struct check *check = calloc(1, sizeof(*check));
    CHECK(check != NULL);
    check->options = options;
    check->detail = out_detail;
    check->write_len_max =
        options->write_len_max != 0 ? options->write_len_max : DISK_WRITE_LEN_MAX;
    crc_init(check);
    check->dir = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    enum status status = check->dir >= 0 ? STATUS_OK : check_failed(check, "open", dir);
    if (status == STATUS_OK) {
        status = check_list_dir(check, dir);
    }
    if (status == STATUS_OK) {
        status = read_metadata(check);
    }
    if (status == STATUS_OK) {
        status = read_snapshots(check);
    }
    if (status == STATUS_OK) {
        status = check_read_log(check);
    }
    if (status == STATUS_OK) {
        forget_unfinished_birth(check);
        status = carry_out(check);
    }
    if (status == STATUS_OK) {
        *out_state = check->state;
    }
    if (check->dir >= 0) {
        (void)close(check->dir);
    }
    free(check->segments);
    free(check->snapshots);
    free(check->steps);
    free(check);
    return status;
}
