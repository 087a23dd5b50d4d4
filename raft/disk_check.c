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
 * one write, and nothing behind the segment. */
#include "raft/disk_check.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <raft.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fsm/base/units.h"

_Static_assert(RAFT_VERSION_NUMBER == 2201, "these are the formats of libraft 0.22.1");

#define FORMAT                   1u
#define NAME_LEN_MAX             96u
#define METADATA_LEN             32u
#define SNAPSHOT_META_HEADER_LEN 32u
#define CONFIGURATION_LEN_MAX    (1024u * 1024u)
#define SEGMENT_HEADER_LEN       8u
#define BATCH_PREAMBLE_LEN       16u                        /* two checksums and the count */
#define BATCH_ENTRIES_MAX        (8u * 1024u * 1024u / 32u) /* libraft's own limit */

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

/* What reading a segment found. */
struct segment_scan {
    uint64_t count;    /* entries in whole batches */
    size_t valid_len;  /* up to the end of the last whole batch */
    size_t damage_len; /* from there to the last byte that is not zero; or to the end of a file
                          that is shorter than it should be */
    bool damaged;
    const char *why;
};

/* --- small things ----------------------------------------------------------------------------- */

__attribute__((format(printf, 2, 3))) static void say(struct disk_detail *detail,
                                                      const char *format, ...)
{
    va_list args;
    va_start(args, format);
    (void)vsnprintf(detail->text, sizeof(detail->text), format, args);
    va_end(args);
}

static enum status corrupt(struct check *check, const char *name, uint64_t offset, const char *why)
{
    say(check->detail, "%s: offset %llu: %s", name, (unsigned long long)offset, why);
    return STATUS_CORRUPT;
}

static enum status failed(struct check *check, const char *what, const char *name)
{
    say(check->detail, "%s %s: %s", what, name, strerror(errno));
    return STATUS_IO;
}

static uint32_t get_u32(const uint8_t *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static uint64_t get_u64(const uint8_t *at)
{
    return (uint64_t)get_u32(at) | (uint64_t)get_u32(at + 4) << 32;
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

static uint32_t crc_of(const struct check *check, uint32_t crc, const uint8_t *at, size_t len)
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
static void *grow(void *base, size_t count, size_t size)
{
    if ((count & (count - 1)) == 0) { /* full at 0, 1, 2, 4, 8 ... */
        base = realloc(base, (count == 0 ? 1 : count * 2) * size);
        CHECK(base != NULL);
    }
    return base;
}

static void copy_name(char out_name[NAME_LEN_MAX], const char *name)
{
    (void)snprintf(out_name, NAME_LEN_MAX, "%s", name);
}

static struct step *plan(struct check *check, enum step_kind kind, const char *name)
{
    check->steps = grow(check->steps, check->step_count, sizeof(*check->steps));
    struct step *step = &check->steps[check->step_count++];
    *step = (struct step){.kind = kind};
    copy_name(step->name, name);
    return step;
}

static void plan_unlink(struct check *check, const char *name, const char *why)
{
    struct step *step = plan(check, STEP_UNLINK, name);
    (void)snprintf(step->why, sizeof(step->why), "%s", why);
}

static enum status read_file(struct check *check, const char *name, struct content *out_content)
{
    int fd = openat(check->dir, name, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return failed(check, "open", name);
    }
    enum status status = STATUS_OK;
    struct stat info;
    uint8_t *base = NULL;
    size_t len = 0;
    if (fstat(fd, &info) != 0) {
        status = failed(check, "stat", name);
        goto out;
    }
    base = malloc((size_t)info.st_size + 1);
    if (base == NULL) {
        say(check->detail, "%s: no memory for %lld bytes", name, (long long)info.st_size);
        status = STATUS_NO_MEMORY;
        goto out;
    }
    while (len < (size_t)info.st_size) {
        ssize_t got = read(fd, base + len, (size_t)info.st_size - len);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            status = failed(check, "read", name);
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

/* --- listing ---------------------------------------------------------------------------------- */

static struct snapshot_file *snapshot_of(struct check *check, uint64_t term, uint64_t index,
                                         uint64_t time)
{
    for (size_t idx = 0; idx < check->snapshot_count; idx++) {
        struct snapshot_file *file = &check->snapshots[idx];
        if (file->term == term && file->index == index && file->time == time) {
            return file;
        }
    }
    check->snapshots = grow(check->snapshots, check->snapshot_count, sizeof(*check->snapshots));
    struct snapshot_file *file = &check->snapshots[check->snapshot_count++];
    *file = (struct snapshot_file){.term = term, .index = index, .time = time};
    (void)snprintf(file->name, sizeof(file->name), "snapshot-%llu-%llu-%llu",
                   (unsigned long long)term, (unsigned long long)index, (unsigned long long)time);
    return file;
}

static struct segment *segment_add(struct check *check, const char *name)
{
    check->segments = grow(check->segments, check->segment_count, sizeof(*check->segments));
    struct segment *segment = &check->segments[check->segment_count++];
    *segment = (struct segment){0};
    copy_name(segment->name, name);
    return segment;
}

/* Takes the name as libraft's scanf would. */
static enum status list_name(struct check *check, const char *name)
{
    unsigned long long one;
    unsigned long long two;
    unsigned long long three;
    int used = 0;
    int len = (int)strlen(name);
    if (len >= (int)NAME_LEN_MAX) {
        return STATUS_OK; /* nobody's */
    }
    if (strncmp(name, "corrupt-", 8) == 0) {
        return corrupt(check, name, 0, "libraft has set this file aside as damaged");
    }
    if (strncmp(name, "tmp-", 4) == 0) {
        plan_unlink(check, name, "a temporary file was left behind");
        return STATUS_OK;
    }
    if (sscanf(name, "%016llu-%016llu%n", &one, &two, &used) == 2 && used == len) {
        struct segment *segment = segment_add(check, name);
        segment->first = one;
        segment->last = two;
        if (one == 0 || two < one) {
            return corrupt(check, name, 0, "no such range of entries");
        }
        return STATUS_OK;
    }
    if (sscanf(name, "open-%llu%n", &one, &used) == 1 && used == len) {
        struct segment *segment = segment_add(check, name);
        segment->open = true;
        segment->counter = one;
        return STATUS_OK;
    }
    if (sscanf(name, "snapshot-%llu-%llu-%llu.meta%n", &one, &two, &three, &used) == 3 &&
        used == len) {
        snapshot_of(check, one, two, three)->meta = true;
        return STATUS_OK;
    }
    if (sscanf(name, "snapshot-%llu-%llu-%llu%n", &one, &two, &three, &used) == 3 && used == len) {
        snapshot_of(check, one, two, three)->data = true;
        return STATUS_OK;
    }
    if (strcmp(name, "metadata1") == 0 || strcmp(name, "metadata2") == 0) {
        check->metadata_present[name[8] - '1'] = true;
    }
    return STATUS_OK;
}

static int segment_order(const void *a, const void *b)
{
    const struct segment *one = a;
    const struct segment *two = b;
    if (one->open != two->open) {
        return one->open ? 1 : -1;
    }
    if (one->open) {
        return one->counter < two->counter ? -1 : one->counter > two->counter ? 1 : 0;
    }
    if (one->first != two->first) {
        return one->first < two->first ? -1 : 1;
    }
    return one->last < two->last ? -1 : one->last > two->last ? 1 : 0;
}

static int snapshot_order(const void *a, const void *b)
{
    const struct snapshot_file *one = a;
    const struct snapshot_file *two = b;
    if (one->term != two->term) {
        return one->term < two->term ? -1 : 1;
    }
    if (one->index != two->index) {
        return one->index < two->index ? -1 : 1;
    }
    return one->time < two->time ? -1 : one->time > two->time ? 1 : 0;
}

static enum status list_dir(struct check *check, const char *path)
{
    DIR *dir = opendir(path);
    if (dir == NULL) {
        return failed(check, "open", path);
    }
    enum status status = STATUS_OK;
    errno = 0;
    for (struct dirent *entry = readdir(dir); entry != NULL && status == STATUS_OK;
         entry = readdir(dir)) {
        status = list_name(check, entry->d_name);
        errno = 0;
    }
    if (status == STATUS_OK && errno != 0) {
        status = failed(check, "read", path);
    }
    (void)closedir(dir);
    if (check->segment_count > 0) {
        qsort(check->segments, check->segment_count, sizeof(*check->segments), segment_order);
    }
    if (check->snapshot_count > 0) {
        qsort(check->snapshots, check->snapshot_count, sizeof(*check->snapshots), snapshot_order);
    }
    return status;
}

/* --- metadata --------------------------------------------------------------------------------- */

/* One of the two files. A short one was being made when the process died; libraft removes it. */
static enum status read_metadata_file(struct check *check, unsigned number)
{
    char name[NAME_LEN_MAX];
    (void)snprintf(name, sizeof(name), "metadata%u", number);
    struct content content;
    enum status status = read_file(check, name, &content);
    if (status != STATUS_OK) {
        return status;
    }
    if (content.len < METADATA_LEN) {
        check->metadata_present[number - 1] = false;
        plan_unlink(check, name, "the file was not written to its end");
    } else if (content.len > METADATA_LEN) {
        status = corrupt(check, name, METADATA_LEN, "longer than it can be");
    } else if (get_u64(content.base) != FORMAT) {
        status = corrupt(check, name, 0, "unknown format");
    } else {
        uint64_t version = get_u64(content.base + 8);
        if (version == 0 || version % 2 != number % 2) {
            status = corrupt(check, name, 8, "a version that does not belong here");
        }
        check->metadata_version[number - 1] = version;
        if (version > check->metadata_version[2 - number]) {
            check->state.term = get_u64(content.base + 16);
            check->state.vote = get_u64(content.base + 24);
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
        return corrupt(check, newest == one ? "metadata2" : "metadata1", 0,
                       "missing, or not the one written before or after the other");
    }
    if (newest == 0 && check->segment_count + check->snapshot_count > 0) {
        return corrupt(check, "metadata1", 0, "missing, but there is a log");
    }
    return STATUS_OK;
}

/* --- snapshots -------------------------------------------------------------------------------- */

static enum status read_snapshot_meta(struct check *check, const char *name)
{
    struct content content;
    enum status status = read_file(check, name, &content);
    if (status != STATUS_OK) {
        return status;
    }
    if (content.len < SNAPSHOT_META_HEADER_LEN) {
        status = corrupt(check, name, content.len, "too short");
    } else if (get_u64(content.base) != FORMAT) {
        status = corrupt(check, name, 0, "unknown format");
    } else {
        uint64_t len = get_u64(content.base + 24);
        if (len == 0 || len > CONFIGURATION_LEN_MAX ||
            len != content.len - SNAPSHOT_META_HEADER_LEN) {
            status = corrupt(check, name, 24, "a length that does not fit the file");
        } else if (crc_of(check, 0, content.base + 16, content.len - 16) !=
                   get_u64(content.base + 8)) {
            status = corrupt(check, name, 8, "checksum differs");
        }
    }
    free(content.base);
    return status;
}

static enum status verified(struct check *check, const char *name, uint64_t offset,
                            enum status status, const struct disk_detail *why)
{
    if (status == STATUS_OK) {
        return STATUS_OK;
    }
    say(check->detail, "%s: offset %llu: %.256s", name, (unsigned long long)offset, why->text);
    return status == STATUS_INCOMPATIBLE ? STATUS_INCOMPATIBLE : STATUS_CORRUPT;
}

static enum status read_snapshot_data(struct check *check, const char *name)
{
    struct content content;
    enum status status = read_file(check, name, &content);
    if (status != STATUS_OK) {
        return status;
    }
    if (content.len == 0) {
        status = corrupt(check, name, 0, "empty");
    } else if (check->options->verify_snapshot != NULL) {
        struct disk_detail why = {{0}};
        status = check->options->verify_snapshot(check->options->ctx,
                                                 slice_from(content.base, content.len), &why);
        status = verified(check, name, 0, status, &why);
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
            plan_unlink(check, file->data ? file->name : meta,
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
            return corrupt(check, file->name, 0, "of a later term than the metadata know");
        }
        check->state.snapshot_index = file->index;
        check->state.snapshot_term = file->term;
    }
    return STATUS_OK;
}

/* --- one segment ------------------------------------------------------------------------------ */

/* Length of a whole, sound batch at `offset`; 0 with a reason if there is none. */
static size_t batch_len(const struct check *check, const struct content *content, size_t offset,
                        const char **out_why)
{
    const uint8_t *batch = content->base + offset;
    size_t left = content->len - offset;
    *out_why = "the file ends in a batch";
    if (left < BATCH_PREAMBLE_LEN) {
        return 0;
    }
    uint64_t count = get_u64(batch + 8);
    if (count == 0 || count > BATCH_ENTRIES_MAX) {
        *out_why = "a batch without entries, or with too many";
        return 0;
    }
    size_t header_len = 8 + 16 * (size_t)count;
    if (left - 8 < header_len) {
        return 0;
    }
    if (crc_of(check, 0, batch + 8, header_len) != get_u32(batch)) {
        *out_why = "the checksum of a batch's header differs";
        return 0;
    }
    size_t data_len = 0;
    for (size_t idx = 0; idx < count; idx++) {
        data_len += get_u32(batch + BATCH_PREAMBLE_LEN + 16 * idx + 12);
    }
    if (left - 8 - header_len < data_len) {
        return 0;
    }
    if (crc_of(check, 0, batch + 8 + header_len, data_len) != get_u32(batch + 4)) {
        *out_why = "the checksum of a batch's data differs";
        return 0;
    }
    return 8 + header_len + data_len;
}

/* The entries of a sound batch, `index` being the first: types, terms, and what the state machine
 * says. */
static enum status read_entries(struct check *check, const char *name,
                                const struct content *content, size_t offset, uint64_t index)
{
    const uint8_t *header = content->base + offset + BATCH_PREAMBLE_LEN;
    size_t count = (size_t)get_u64(content->base + offset + 8);
    size_t at = offset + BATCH_PREAMBLE_LEN + 16 * count;
    for (size_t idx = 0; idx < count; idx++, index++, header += 16) {
        uint64_t term = get_u64(header);
        uint8_t type = header[8];
        size_t len = get_u32(header + 12);
        if (term == 0 || term < check->last_term || term > check->state.term) {
            return corrupt(check, name, at, "an entry of an impossible term");
        }
        if (type != RAFT_COMMAND && type != RAFT_BARRIER && type != RAFT_CHANGE) {
            return corrupt(check, name, at, "an entry of an unknown type");
        }
        check->last_term = term;
        if (index == check->state.snapshot_index && term != check->state.snapshot_term) {
            check->contradicted = true;
        }
        if (type == RAFT_COMMAND && check->options->verify_entry != NULL) {
            struct disk_detail why = {{0}};
            enum status status = check->options->verify_entry(
                check->options->ctx, slice_from(content->base + at, len), &why);
            status = verified(check, name, at, status, &why);
            if (status != STATUS_OK) {
                return status;
            }
        }
        at += len;
    }
    return STATUS_OK;
}

/* End of the last byte that is not zero, at or behind `from`. */
static size_t nonzero_end(const struct content *content, size_t from)
{
    size_t end = content->len;
    while (end >= from + 8 && get_u64(content->base + end - 8) == 0) {
        end -= 8;
    }
    while (end > from && content->base[end - 1] == 0) {
        end--;
    }
    return end;
}

/* Batch after batch, `index` being the first entry, as far as they are whole. */
static enum status scan_batches(struct check *check, const char *name,
                                const struct content *content, uint64_t index,
                                struct segment_scan *scan)
{
    if (content->len < SEGMENT_HEADER_LEN || get_u64(content->base) != FORMAT) {
        scan->why = "unknown format";
        return STATUS_OK;
    }
    scan->valid_len = SEGMENT_HEADER_LEN;
    while (scan->valid_len < content->len) {
        const char *why;
        size_t len = batch_len(check, content, scan->valid_len, &why);
        if (len == 0) {
            scan->why = why;
            return STATUS_OK;
        }
        enum status status =
            read_entries(check, name, content, scan->valid_len, index + scan->count);
        if (status != STATUS_OK) {
            return status;
        }
        scan->count += get_u64(content->base + scan->valid_len + 8);
        scan->valid_len += len;
    }
    return STATUS_OK;
}

static enum status scan_segment(struct check *check, const struct segment *segment, uint64_t index,
                                struct segment_scan *out_scan)
{
    struct content content;
    enum status status = read_file(check, segment->name, &content);
    if (status != STATUS_OK) {
        return status;
    }
    struct segment_scan scan = {0};
    status = scan_batches(check, segment->name, &content, index, &scan);
    size_t end = segment->open ? nonzero_end(&content, scan.valid_len) : content.len;
    scan.damage_len = end - scan.valid_len;
    if (segment->open && scan.damage_len == 0 &&
        content.len - scan.valid_len < BATCH_PREAMBLE_LEN) {
        /* A few zeros at most: libraft would take them for a read error. */
        scan.damage_len = content.len - scan.valid_len;
        scan.why = "the file ends behind a batch";
    }
    scan.damaged = scan.damage_len > 0;
    free(content.base);
    *out_scan = scan;
    return status;
}

/* --- the log ---------------------------------------------------------------------------------- */

static void segment_drop(struct check *check, struct segment *segment, const char *why)
{
    plan_unlink(check, segment->name, why);
    segment->dropped = true;
}

/* A truncation writes the shorter a-c, then removes a-b and what follows. While a-b is there the
 * truncation has not begun to show, and the log is as it was. */
static void drop_truncated_copies(struct check *check)
{
    for (size_t idx = 0; idx + 1 < check->segment_count; idx++) {
        struct segment *shorter = &check->segments[idx];
        const struct segment *longer = &check->segments[idx + 1];
        if (!shorter->open && !longer->open && shorter->first == longer->first) {
            segment_drop(check, shorter, "a truncation of the log had not got further");
        }
    }
}

/* Closed segments that libraft will use: one run without a gap that reaches back to the snapshot
 * (or to entry 1). Returns the index of the last entry before the open segments. */
static enum status choose_closed(struct check *check, uint64_t *out_end)
{
    uint64_t reach = check->state.snapshot_index; /* everything up to here is there */
    uint64_t run_first = 0;
    uint64_t run_end = 0; /* 0: no run */
    size_t run_start = 0;
    for (size_t idx = 0; idx < check->segment_count && !check->segments[idx].open; idx++) {
        struct segment *segment = &check->segments[idx];
        if (segment->dropped) {
            continue;
        }
        if (run_end != 0 && segment->first <= run_end) {
            return corrupt(check, segment->name, 0, "overlaps the segment before it");
        }
        if (run_end != 0 && segment->first == run_end + 1) {
            run_end = segment->last;
        } else if (segment->first <= reach + 1) {
            /* What came before ends below the snapshot; libraft skips it, and so do we. */
            for (size_t old = run_start; old < idx; old++) {
                check->segments[old].dropped = true;
            }
            run_first = segment->first;
            run_end = segment->last;
            run_start = idx;
        } else if (reach > 0 && check->options->watermark > 0 &&
                   reach >= check->options->watermark) {
            /* The removals of a truncation, in the order of their indexes, were cut short: all
             * that is missing was not committed. */
            segment_drop(check, segment, "a truncation of the log had not got further");
        } else {
            say(check->detail, "%s: offset 0: the entries from %llu to %llu are missing",
                segment->name, (unsigned long long)(reach + 1),
                (unsigned long long)(segment->first - 1));
            return STATUS_CORRUPT;
        }
        reach = max_u64(reach, run_end);
    }
    check->state.first_index = run_first;
    *out_end = run_end;
    return STATUS_OK;
}

/* Whether some segment from number `from` on, and not dropped, holds anything. */
static enum status data_follows(struct check *check, size_t from, bool *out_follows)
{
    *out_follows = false;
    for (size_t next = from; next < check->segment_count && !*out_follows; next++) {
        if (check->segments[next].dropped) {
            continue;
        }
        struct content content;
        enum status status = read_file(check, check->segments[next].name, &content);
        if (status != STATUS_OK) {
            return status;
        }
        *out_follows = !check->segments[next].open || nonzero_end(&content, 0) > 0;
        free(content.base);
    }
    return STATUS_OK;
}

/* Segment number `idx` is damaged behind entry `end`: is it a tail? Then plan to cut it. */
static enum status judge_damage(struct check *check, size_t idx, const struct segment_scan *scan,
                                uint64_t end)
{
    struct segment *segment = &check->segments[idx];
    const char *why = scan->why != NULL ? scan->why : "fewer entries than the name says";
    bool follows = false;
    enum status status = data_follows(check, idx + 1, &follows);
    if (status != STATUS_OK) {
        return status;
    }
    if (end < check->options->watermark) {
        say(check->detail, "%s: offset %zu: %s; entries up to %llu were safe on this disk",
            segment->name, scan->valid_len, why, (unsigned long long)check->options->watermark);
        return STATUS_CORRUPT;
    }
    if (follows) {
        say(check->detail, "%s: offset %zu: %s, and other segments follow", segment->name,
            scan->valid_len, why);
        return STATUS_CORRUPT;
    }
    if (scan->damage_len > check->write_len_max) {
        say(check->detail, "%s: offset %zu: %s, and %zu bytes are more than one write",
            segment->name, scan->valid_len, why, scan->damage_len);
        return STATUS_CORRUPT;
    }
    struct step *step = plan(check, scan->count > 0 ? STEP_CUT : STEP_UNLINK, segment->name);
    step->cut_len = scan->valid_len;
    (void)snprintf(step->why, sizeof(step->why),
                   "a tail of %zu bytes at offset %zu was cut: %s; the log ends at %llu",
                   scan->damage_len, scan->valid_len, why, (unsigned long long)end);
    if (!segment->open && scan->count > 0) {
        (void)snprintf(step->new_name, sizeof(step->new_name), "%016llu-%016llu",
                       (unsigned long long)segment->first, (unsigned long long)end);
    }
    return STATUS_OK;
}

/* The snapshot came from the leader and replaces the whole log; all of it was to be removed. The
 * open segments were closed before it was put in place, so they have no entries. */
static enum status finish_installation(struct check *check, const char *why)
{
    for (size_t idx = 0; idx < check->segment_count; idx++) {
        if (!check->segments[idx].open && !check->segments[idx].dropped) {
            segment_drop(check, &check->segments[idx], why);
        }
    }
    check->state.first_index = 0;
    bool follows = false;
    enum status status = data_follows(check, 0, &follows);
    if (status == STATUS_OK && follows) {
        status = corrupt(check, check->segments[check->segment_count - 1].name, 0,
                         "its entries do not follow the snapshot");
    }
    return status;
}

/* Read segment number `idx`, whose first entry has the index *next, and move *next behind it. */
static enum status read_segment(struct check *check, size_t idx, uint64_t *next)
{
    const struct segment *segment = &check->segments[idx];
    struct segment_scan scan;
    enum status status = scan_segment(check, segment, *next, &scan);
    if (status != STATUS_OK) {
        return status;
    }
    uint64_t wanted = segment->open ? scan.count : segment->last - segment->first + 1;
    uint64_t end = *next + scan.count - 1;
    if (scan.count > wanted) {
        return corrupt(check, segment->name, scan.valid_len, "more entries than the name says");
    }
    if (scan.damaged || scan.count < wanted) {
        status = judge_damage(check, idx, &scan, end);
        if (status != STATUS_OK) {
            return status;
        }
    }
    if (scan.count > 0 && check->state.first_index == 0) {
        check->state.first_index = *next;
    }
    *next += scan.count;
    return STATUS_OK;
}

static enum status read_log(struct check *check)
{
    drop_truncated_copies(check);
    uint64_t closed_end = 0;
    enum status status = choose_closed(check, &closed_end);
    if (status != STATUS_OK) {
        return status;
    }
    uint64_t snapshot_index = check->state.snapshot_index;
    if (closed_end != 0 && closed_end < snapshot_index) {
        status = finish_installation(check, "the log ends before the snapshot");
        if (status != STATUS_OK) {
            return status;
        }
    }
    uint64_t next = check->state.first_index != 0 ? check->state.first_index : snapshot_index + 1;
    for (size_t idx = 0; idx < check->segment_count; idx++) {
        if (!check->segments[idx].dropped) {
            status = read_segment(check, idx, &next);
            if (status != STATUS_OK) {
                return status;
            }
        }
    }
    check->state.last_index = max_u64(next - 1, snapshot_index);
    if (check->contradicted) {
        status = finish_installation(check, "an installed snapshot has replaced the log");
        if (status != STATUS_OK) {
            return status;
        }
        check->state.last_index = snapshot_index;
    }
    if (check->state.last_index < check->options->watermark) {
        say(check->detail, "the log ends at %llu, but entries up to %llu were safe on this disk",
            (unsigned long long)check->state.last_index,
            (unsigned long long)check->options->watermark);
        return STATUS_CORRUPT;
    }
    return STATUS_OK;
}

/* The first write of a birth is the term, the second the log. A node that died in between, and one
 * that has merely heard of term 1, have nothing that could be lost: both are new. */
static void forget_unfinished_birth(struct check *check)
{
    if (check->metadata_version[0] == 1 && check->metadata_version[1] == 0 &&
        check->state.term == 1 && check->state.vote == 0 && check->state.last_index == 0) {
        plan_unlink(check, "metadata1", "the node had not got beyond its first term");
        check->state.term = 0;
    }
}

/* --- repairing -------------------------------------------------------------------------------- */

static enum status carry_out_cut(struct check *check, const struct step *step)
{
    int fd = openat(check->dir, step->name, O_WRONLY | O_CLOEXEC);
    if (fd < 0) {
        return failed(check, "open", step->name);
    }
    enum status status = STATUS_OK;
    if (ftruncate(fd, (off_t)step->cut_len) != 0 || fsync(fd) != 0) {
        status = failed(check, "cut", step->name);
    }
    (void)close(fd);
    if (status == STATUS_OK && step->new_name[0] != '\0' &&
        renameat(check->dir, step->name, check->dir, step->new_name) != 0) {
        status = failed(check, "rename", step->name);
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
            status = failed(check, "remove", step->name);
        }
        if (status != STATUS_OK) {
            return status;
        }
        if (check->options->on_report != NULL) {
            struct disk_detail line;
            say(&line, "%s %s: %s", step->kind == STEP_CUT ? "cut" : "removed", step->name,
                step->why);
            check->options->on_report(check->options->ctx, line.text);
        }
    }
    if (check->step_count > 0 && fsync(check->dir) != 0) {
        return failed(check, "sync", "the directory");
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
    enum status status = check->dir >= 0 ? STATUS_OK : failed(check, "open", dir);
    if (status == STATUS_OK) {
        status = list_dir(check, dir);
    }
    if (status == STATUS_OK) {
        status = read_metadata(check);
    }
    if (status == STATUS_OK) {
        status = read_snapshots(check);
    }
    if (status == STATUS_OK) {
        status = read_log(check);
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
