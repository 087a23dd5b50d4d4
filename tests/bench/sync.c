/* The disk's baseline: so many processes write and sync 4 KiB each, one after the other, into
 * prewritten files, with the flags that libraft uses. One line of JSON: p50 and p99 in ms.
 *
 * Usage: bench_sync DIR PROCESSES SECONDS */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/bench/histogram.h"

#define BLOCK_LEN 4096u
#define FILE_BLOCKS 2048u
#define PROCESSES_MAX 16u

static uint64_t clock_ns(void);
static int measure(const char *dir, unsigned number, uint64_t seconds, struct histogram *out);
static int prewrite(int fd, const void *block);

int main(int argc, char **argv)
{
    if (argc != 4) {
        (void)fprintf(stderr, "usage: bench_sync DIR PROCESSES SECONDS\n");
        return 2;
    }
    unsigned processes = (unsigned)strtoul(argv[2], NULL, 10);
    uint64_t seconds = strtoull(argv[3], NULL, 10);
    if (processes < 1 || processes > PROCESSES_MAX || seconds < 1 || seconds > 60) {
        (void)fprintf(stderr, "bench_sync: 1..16 processes, 1..60 seconds\n");
        return 2;
    }
    size_t len = sizeof(struct histogram) * processes;
    struct histogram *histograms =
        mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (histograms == MAP_FAILED) {
        return 1;
    }
    for (unsigned i = 0; i < processes; i++) {
        if (fork() == 0) {
            _exit(measure(argv[1], i, seconds, &histograms[i]));
        }
    }
    int failed = 0;
    for (unsigned i = 0; i < processes; i++) {
        int st = 0;
        failed += wait(&st) < 0 || st != 0;
    }
    struct histogram *all = &histograms[0];
    for (unsigned i = 1; i < processes; i++) {
        all->count += histograms[i].count;
        all->max_ns = histograms[i].max_ns > all->max_ns ? histograms[i].max_ns : all->max_ns;
        for (unsigned k = 0; k < HISTOGRAM_BUCKETS; k++) {
            all->buckets[k] += histograms[i].buckets[k];
        }
    }
    (void)printf("{\"syncs\": %" PRIu64 ", \"p50_ms\": %.4f, \"p99_ms\": %.4f}\n", all->count,
                 (double)histogram_at(all, 500) / 1e6, (double)histogram_at(all, 990) / 1e6);
    return failed == 0 ? 0 : 1;
}

static uint64_t clock_ns(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int measure(const char *dir, unsigned number, uint64_t seconds, struct histogram *out)
{
    char path[4096];
    (void)snprintf(path, sizeof path, "%s/sync-%d-%u", dir, getpid(), number);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_DIRECT | O_DSYNC | O_CLOEXEC, 0600);
    if (fd < 0) {
        fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_DSYNC | O_CLOEXEC, 0600);
    }
    void *block = aligned_alloc(BLOCK_LEN, BLOCK_LEN);
    if (fd < 0 || block == NULL) {
        return 1;
    }
    memset(block, 'x', BLOCK_LEN);
    int failed = prewrite(fd, block);
    uint64_t end_ns = clock_ns() + seconds * 1000000000u;
    uint64_t start_ns;
    for (unsigned at = 0; failed == 0 && (start_ns = clock_ns()) < end_ns; at++) {
        off_t offset = (off_t)(at % FILE_BLOCKS) * BLOCK_LEN;
        failed = pwrite(fd, block, BLOCK_LEN, offset) != BLOCK_LEN;
        histogram_add(out, clock_ns() - start_ns);
    }
    (void)unlink(path);
    (void)close(fd);
    free(block);
    return failed;
}

static int prewrite(int fd, const void *block)
{
    for (unsigned at = 0; at < FILE_BLOCKS; at++) {
        if (pwrite(fd, block, BLOCK_LEN, (off_t)at * BLOCK_LEN) != BLOCK_LEN) {
            return 1;
        }
    }
    return 0;
}
