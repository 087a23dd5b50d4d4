/* Two buffers: one is being written by the pool, one waits. */
#include "node/small_file.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <uv.h>

#include "fsm/base/check.h"

#define SMALL_FILE_LEN_MAX (1024u * 1024u)
#define PATH_LEN_MAX 4096u

struct small_file {
    struct loop *loop;
    uv_work_t work;
    struct buf running;
    struct buf waiting;
    bool busy;
    bool again; /* `waiting` holds something to be written */
    int error;  /* of the running write; written by the pool, read after it */
    void (*on_error)(void *ctx, int error);
    void (*on_closed)(void *ctx);
    void *error_ctx;
    void *closed_ctx;
    char path[PATH_LEN_MAX];
};

static void start(struct small_file *file);
static void write_in_pool(uv_work_t *work);
static void on_written(uv_work_t *work, int st);
static int write_durably(const char *path, struct slice bytes);
static int write_all(int fd, struct slice bytes);
static int sync_folder(const char *path);
static void free_all(struct small_file *file);

enum status small_file_read(const char *path, struct buf *out, bool *out_absent)
{
    *out_absent = false;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) {
        *out_absent = errno == ENOENT;
        return STATUS_IO;
    }
    enum status st = STATUS_OK;
    for (;;) {
        uint8_t chunk[4096];
        ssize_t len = read(fd, chunk, sizeof chunk);
        if (len < 0 && errno == EINTR) {
            continue;
        }
        if (len <= 0) {
            st = len == 0 ? STATUS_OK : STATUS_IO;
            break;
        }
        buf_append(out, chunk, (size_t)len);
        if (buf_overflown(out)) {
            st = STATUS_IO;
            break;
        }
    }
    (void)close(fd);
    return st;
}

struct small_file *small_file_create(struct loop *loop, const char *path,
                                     void (*on_error)(void *ctx, int error), void *ctx)
{
    CHECK(strlen(path) + sizeof ".tmp" <= PATH_LEN_MAX);
    struct small_file *file = calloc(1, sizeof *file);
    CHECK(file != NULL);
    file->loop = loop;
    file->on_error = on_error;
    file->error_ctx = ctx;
    file->work.data = file;
    buf_init(&file->running, SMALL_FILE_LEN_MAX);
    buf_init(&file->waiting, SMALL_FILE_LEN_MAX);
    memcpy(file->path, path, strlen(path) + 1);
    return file;
}

void small_file_write(struct small_file *file, struct slice bytes)
{
    CHECK(file->on_closed == NULL);
    buf_clear(&file->waiting);
    buf_append(&file->waiting, bytes.base, bytes.len);
    CHECK(!buf_overflown(&file->waiting));
    file->again = true;
    if (!file->busy) {
        start(file);
    }
}

void small_file_close(struct small_file *file, void (*cb)(void *ctx), void *ctx)
{
    file->on_closed = cb;
    file->closed_ctx = ctx;
    if (!file->busy) {
        free_all(file);
    }
}

static void start(struct small_file *file)
{
    struct buf swap = file->running;
    file->running = file->waiting;
    file->waiting = swap;
    file->again = false;
    file->busy = true;
    int st = uv_queue_work(loop_uv(file->loop), &file->work, write_in_pool, on_written);
    CHECK(st == 0);
}

static void write_in_pool(uv_work_t *work)
{
    struct small_file *file = work->data;
    file->error = write_durably(file->path, buf_slice(&file->running));
}

static void on_written(uv_work_t *work, int st)
{
    (void)st; /* never cancelled: nothing here calls uv_cancel */
    struct small_file *file = work->data;
    file->busy = false;
    if (file->error != 0) {
        file->on_error(file->error_ctx, file->error);
    }
    if (file->again) {
        start(file);
    } else if (file->on_closed != NULL) {
        free_all(file);
    }
}

/* 0, or errno. */
static int write_durably(const char *path, struct slice bytes)
{
    char temporary[PATH_LEN_MAX];
    (void)snprintf(temporary, sizeof temporary, "%s.tmp", path);
    int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) {
        return errno;
    }
    int error = write_all(fd, bytes);
    if (error == 0 && fsync(fd) != 0) {
        error = errno;
    }
    (void)close(fd);
    if (error == 0 && rename(temporary, path) != 0) {
        error = errno;
    }
    return error != 0 ? error : sync_folder(path);
}

static int write_all(int fd, struct slice bytes)
{
    while (bytes.len > 0) {
        ssize_t len = write(fd, bytes.base, bytes.len);
        if (len < 0) {
            if (errno == EINTR) {
                continue;
            }
            return errno;
        }
        bytes = slice_from(bytes.base + len, bytes.len - (size_t)len);
    }
    return 0;
}

static int sync_folder(const char *path)
{
    char copy[PATH_LEN_MAX];
    (void)snprintf(copy, sizeof copy, "%s", path);
    int fd = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        return errno;
    }
    int error = fsync(fd) == 0 ? 0 : errno;
    (void)close(fd);
    return error;
}

static void free_all(struct small_file *file)
{
    void (*cb)(void *ctx) = file->on_closed;
    void *ctx = file->closed_ctx;
    buf_deinit(&file->running);
    buf_deinit(&file->waiting);
    free(file);
    cb(ctx);
}
