/* The check, listing: the names in the directory, by kind, in the order of their indexes. */
#include "raft/disk_check_internal.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct snapshot_file *snapshot_of(struct check *check, uint64_t term, uint64_t index,
                                         uint64_t time)
{
    for (size_t idx = 0; idx < check->snapshot_count; idx++) {
        struct snapshot_file *file = &check->snapshots[idx];
        if (file->term == term && file->index == index && file->time == time) {
            return file;
        }
    }
    check->snapshots =
        check_room(check->snapshots, check->snapshot_count, sizeof(*check->snapshots));
    struct snapshot_file *file = &check->snapshots[check->snapshot_count++];
    *file = (struct snapshot_file){.term = term, .index = index, .time = time};
    (void)snprintf(file->name, sizeof(file->name), "snapshot-%llu-%llu-%llu",
                   (unsigned long long)term, (unsigned long long)index, (unsigned long long)time);
    return file;
}

static struct segment *segment_add(struct check *check, const char *name)
{
    check->segments = check_room(check->segments, check->segment_count, sizeof(*check->segments));
    struct segment *segment = &check->segments[check->segment_count++];
    *segment = (struct segment){0};
    check_copy_name(segment->name, name);
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
        return check_corrupt(check, name, 0, "libraft has set this file aside as damaged");
    }
    if (strncmp(name, "tmp-", 4) == 0) {
        check_plan_unlink(check, name, "a temporary file was left behind");
        return STATUS_OK;
    }
    if (sscanf(name, "%016llu-%016llu%n", &one, &two, &used) == 2 && used == len) {
        struct segment *segment = segment_add(check, name);
        segment->first = one;
        segment->last = two;
        if (one == 0 || two < one) {
            return check_corrupt(check, name, 0, "no such range of entries");
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

enum status check_list_dir(struct check *check, const char *path)
{
    DIR *dir = opendir(path);
    if (dir == NULL) {
        return check_failed(check, "open", path);
    }
    enum status status = STATUS_OK;
    errno = 0;
    for (struct dirent *entry = readdir(dir); entry != NULL && status == STATUS_OK;
         entry = readdir(dir)) {
        status = list_name(check, entry->d_name);
        errno = 0;
    }
    if (status == STATUS_OK && errno != 0) {
        status = check_failed(check, "read", path);
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
