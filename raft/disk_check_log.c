/* The check, segments: what one holds, which of them make the log, and which damage is a tail that
 * may be cut. */
#include "raft/disk_check_internal.h"

#include <raft.h>
#include <stdio.h>
#include <stdlib.h>

#include "fsm/base/units.h"

#define SEGMENT_HEADER_LEN 8u
#define BATCH_PREAMBLE_LEN 16u                        /* two checksums and the count */
#define BATCH_ENTRIES_MAX  (8u * 1024u * 1024u / 32u) /* libraft's own limit */

/* What reading a segment found. */
struct segment_scan {
    uint64_t count;    /* entries in whole batches */
    size_t valid_len;  /* up to the end of the last whole batch */
    size_t damage_len; /* from there to the last byte that is not zero; or to the end of a file
                          that is shorter than it should be */
    bool damaged;
    const char *why;
};

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
    uint64_t count = disk_u64(batch + 8);
    if (count == 0 || count > BATCH_ENTRIES_MAX) {
        *out_why = "a batch without entries, or with too many";
        return 0;
    }
    size_t header_len = 8 + 16 * (size_t)count;
    if (left - 8 < header_len) {
        return 0;
    }
    if (check_crc(check, 0, batch + 8, header_len) != disk_u32(batch)) {
        *out_why = "the checksum of a batch's header differs";
        return 0;
    }
    size_t data_len = 0;
    for (size_t idx = 0; idx < count; idx++) {
        data_len += disk_u32(batch + BATCH_PREAMBLE_LEN + 16 * idx + 12);
    }
    if (left - 8 - header_len < data_len) {
        return 0;
    }
    if (check_crc(check, 0, batch + 8 + header_len, data_len) != disk_u32(batch + 4)) {
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
    size_t count = (size_t)disk_u64(content->base + offset + 8);
    size_t at = offset + BATCH_PREAMBLE_LEN + 16 * count;
    for (size_t idx = 0; idx < count; idx++, index++, header += 16) {
        uint64_t term = disk_u64(header);
        uint8_t type = header[8];
        size_t len = disk_u32(header + 12);
        if (term == 0 || term < check->last_term || term > check->state.term) {
            return check_corrupt(check, name, at, "an entry of an impossible term");
        }
        if (type != RAFT_COMMAND && type != RAFT_BARRIER && type != RAFT_CHANGE) {
            return check_corrupt(check, name, at, "an entry of an unknown type");
        }
        check->last_term = term;
        if (index == check->state.snapshot_index && term != check->state.snapshot_term) {
            check->contradicted = true;
        }
        if (type == RAFT_COMMAND && check->options->verify_entry != NULL) {
            struct disk_detail why = {{0}};
            enum status status = check->options->verify_entry(
                check->options->ctx, slice_from(content->base + at, len), &why);
            status = check_verified(check, name, at, status, &why);
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
    while (end >= from + 8 && disk_u64(content->base + end - 8) == 0) {
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
    if (content->len < SEGMENT_HEADER_LEN || disk_u64(content->base) != FORMAT) {
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
        scan->count += disk_u64(content->base + scan->valid_len + 8);
        scan->valid_len += len;
    }
    return STATUS_OK;
}

static enum status scan_segment(struct check *check, const struct segment *segment, uint64_t index,
                                struct segment_scan *out_scan)
{
    struct content content;
    enum status status = check_read_file(check, segment->name, &content);
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
    check_plan_unlink(check, segment->name, why);
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
            return check_corrupt(check, segment->name, 0, "overlaps the segment before it");
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
            disk_say(check->detail, "%s: offset 0: the entries from %llu to %llu are missing",
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
        enum status status = check_read_file(check, check->segments[next].name, &content);
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
        disk_say(check->detail, "%s: offset %zu: %s; entries up to %llu were safe on this disk",
                 segment->name, scan->valid_len, why,
                 (unsigned long long)check->options->watermark);
        return STATUS_CORRUPT;
    }
    if (follows) {
        disk_say(check->detail, "%s: offset %zu: %s, and other segments follow", segment->name,
                 scan->valid_len, why);
        return STATUS_CORRUPT;
    }
    if (scan->damage_len > check->write_len_max) {
        disk_say(check->detail, "%s: offset %zu: %s, and %zu bytes are more than one write",
                 segment->name, scan->valid_len, why, scan->damage_len);
        return STATUS_CORRUPT;
    }
    struct step *step = check_plan(check, scan->count > 0 ? STEP_CUT : STEP_UNLINK, segment->name);
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
        status = check_corrupt(check, check->segments[check->segment_count - 1].name, 0,
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
        return check_corrupt(check, segment->name, scan.valid_len,
                             "more entries than the name says");
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

enum status check_read_log(struct check *check)
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
        disk_say(check->detail,
                 "the log ends at %llu, but entries up to %llu were safe on this disk",
                 (unsigned long long)check->state.last_index,
                 (unsigned long long)check->options->watermark);
        return STATUS_CORRUPT;
    }
    return STATUS_OK;
}
