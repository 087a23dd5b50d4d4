/* See the header. The checksum is the bit by bit definition, slow and hard to get wrong. */
#include "tests/raft/raft_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <raft.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fsm/base/check.h"
#include "fsm/base/hash.h"

static void path_of(const struct raft_files *files, const char *name, char out_path[256])
{
    (void)snprintf(out_path, 256, "%s/%s", files->dir, name);
}

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

static uint32_t crc(const uint8_t *at, size_t len, uint32_t value)
{
    for (size_t idx = 0; idx < len; idx++) {
        value ^= (uint32_t)at[idx] << 24;
        for (int bit = 0; bit < 8; bit++) {
            value = (value >> 31) != 0 ? (value << 1) ^ 0x04C11DB7u : value << 1;
        }
    }
    return value;
}

/* --- the directory ------------------------------------------------------------------------- */

void raft_files_init(struct raft_files *files)
{
    (void)snprintf(files->dir, sizeof(files->dir), "./raft-files-XXXXXX");
    CHECK(mkdtemp(files->dir) != NULL);
}

void raft_files_deinit(struct raft_files *files)
{
    DIR *dir = opendir(files->dir);
    CHECK(dir != NULL);
    for (struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir)) {
        (void)unlinkat(dirfd(dir), entry->d_name, 0);
    }
    (void)closedir(dir);
    CHECK(rmdir(files->dir) == 0);
}

void raft_files_write(const struct raft_files *files, const char *name, const void *bytes,
                      size_t len)
{
    char path[256];
    path_of(files, name, path);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    CHECK(fd >= 0 && (len == 0 || write(fd, bytes, len) == (ssize_t)len));
    (void)close(fd);
}

void raft_files_cut(const struct raft_files *files, const char *name, size_t len)
{
    char path[256];
    path_of(files, name, path);
    CHECK(truncate(path, (off_t)len) == 0);
}

void raft_files_poke(const struct raft_files *files, const char *name, size_t offset,
                     const void *bytes, size_t len)
{
    char path[256];
    path_of(files, name, path);
    int fd = open(path, O_WRONLY);
    CHECK(fd >= 0 && pwrite(fd, bytes, len, (off_t)offset) == (ssize_t)len);
    (void)close(fd);
}

void raft_files_flip(const struct raft_files *files, const char *name, size_t offset)
{
    char path[256];
    path_of(files, name, path);
    int fd = open(path, O_RDWR);
    uint8_t byte;
    CHECK(fd >= 0 && pread(fd, &byte, 1, (off_t)offset) == 1);
    byte ^= 0x10;
    CHECK(pwrite(fd, &byte, 1, (off_t)offset) == 1);
    (void)close(fd);
}

void raft_files_remove(const struct raft_files *files, const char *name)
{
    char path[256];
    path_of(files, name, path);
    CHECK(unlink(path) == 0);
}

bool raft_files_exist(const struct raft_files *files, const char *name)
{
    char path[256];
    path_of(files, name, path);
    return access(path, F_OK) == 0;
}

size_t raft_files_len(const struct raft_files *files, const char *name)
{
    char path[256];
    path_of(files, name, path);
    struct stat info;
    CHECK(stat(path, &info) == 0);
    return (size_t)info.st_size;
}

uint64_t raft_files_fingerprint(const struct raft_files *files)
{
    DIR *dir = opendir(files->dir);
    CHECK(dir != NULL);
    uint64_t sum = 0;
    for (struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir)) {
        if (entry->d_type != DT_REG) {
            continue;
        }
        size_t len = raft_files_len(files, entry->d_name);
        uint8_t *bytes = malloc(len + 1);
        int fd = openat(dirfd(dir), entry->d_name, O_RDONLY);
        CHECK(bytes != NULL && fd >= 0 && read(fd, bytes, len) == (ssize_t)len);
        (void)close(fd);
        uint64_t name_hash = hash64(len, entry->d_name, strlen(entry->d_name));
        sum += hash64(name_hash, bytes, len); /* in whatever order they are listed */
        free(bytes);
    }
    (void)closedir(dir);
    return sum;
}

/* --- libraft's files ----------------------------------------------------------------------- */

void raft_files_metadata(const struct raft_files *files, uint64_t version, uint64_t term)
{
    for (uint64_t number = version > 1 ? version - 1 : version; number <= version; number++) {
        uint8_t bytes[32];
        put_u64(bytes, 1);
        put_u64(bytes + 8, number);
        put_u64(bytes + 16, term);
        put_u64(bytes + 24, number == version ? 7 : 0);
        raft_files_write(files, number % 2 == 1 ? "metadata1" : "metadata2", bytes, sizeof(bytes));
    }
}

static uint8_t *segment_room(struct raft_segment *segment, size_t len)
{
    if (segment->len + len > segment->cap) {
        segment->cap = 2 * (segment->len + len);
        segment->base = realloc(segment->base, segment->cap);
        CHECK(segment->base != NULL);
    }
    uint8_t *at = segment->base + segment->len;
    memset(at, 0, len);
    segment->len += len;
    return at;
}

void raft_segment_init(struct raft_segment *segment)
{
    *segment = (struct raft_segment){0};
    put_u64(segment_room(segment, 8), 1);
}

void raft_segment_deinit(struct raft_segment *segment)
{
    free(segment->base);
}

void raft_segment_add(struct raft_segment *segment, uint64_t index, unsigned count, uint64_t term,
                      size_t entry_len)
{
    size_t header_len = 8 + 16 * (size_t)count;
    uint8_t *batch = segment_room(segment, 8 + header_len + count * entry_len);
    uint8_t *header = batch + 8;
    uint8_t *data = header + header_len;
    put_u64(header, count);
    for (unsigned idx = 0; idx < count; idx++) {
        uint8_t *at = header + 8 + 16 * (size_t)idx;
        put_u64(at, term);
        at[8] = RAFT_COMMAND;
        put_u32(at + 12, (uint32_t)entry_len);
        uint8_t *entry = data + idx * entry_len;
        memset(entry, 0xA5, entry_len);
        put_u64(entry, index + idx);
    }
    put_u32(batch, crc(header, header_len, 0));
    put_u32(batch + 4, crc(data, count * entry_len, 0));
}

void raft_files_closed(const struct raft_files *files, const struct raft_segment *segment,
                       uint64_t first, uint64_t last)
{
    char name[64];
    (void)snprintf(name, sizeof(name), "%016llu-%016llu", (unsigned long long)first,
                   (unsigned long long)last);
    raft_files_write(files, name, segment->base, segment->len);
}

void raft_files_open(const struct raft_files *files, const struct raft_segment *segment,
                     uint64_t counter)
{
    char name[64];
    (void)snprintf(name, sizeof(name), "open-%llu", (unsigned long long)counter);
    raft_files_write(files, name, segment != NULL ? segment->base : NULL,
                     segment != NULL ? segment->len : 0);
    raft_files_cut(files, name, RAFT_FILES_SEGMENT_LEN);
}

void raft_files_snapshot(const struct raft_files *files, uint64_t term, uint64_t index, bool data,
                         bool meta)
{
    char name[96];
    (void)snprintf(name, sizeof(name), "snapshot-%llu-%llu-1234", (unsigned long long)term,
                   (unsigned long long)index);
    if (data) {
        raft_files_write(files, name, "SNAPSHOT", 8);
    }
    if (meta) {
        struct raft_configuration configuration;
        struct raft_buffer buf;
        raft_configuration_init(&configuration);
        CHECK(raft_configuration_add(&configuration, 1, "1", RAFT_VOTER) == 0);
        CHECK(raft_configuration_encode(&configuration, &buf) == 0);
        raft_configuration_close(&configuration);
        uint8_t *bytes = malloc(32 + buf.len);
        CHECK(bytes != NULL);
        put_u64(bytes, 1);
        put_u64(bytes + 16, 1);
        put_u64(bytes + 24, buf.len);
        memcpy(bytes + 32, buf.base, buf.len);
        put_u64(bytes + 8, crc(bytes + 16, 16 + buf.len, 0));
        (void)snprintf(name, sizeof(name), "snapshot-%llu-%llu-1234.meta", (unsigned long long)term,
                       (unsigned long long)index);
        raft_files_write(files, name, bytes, 32 + buf.len);
        free(bytes);
        raft_free(buf.base);
    }
}
