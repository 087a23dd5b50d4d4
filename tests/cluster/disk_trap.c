/* Stands between a node and its disk, for tests: loaded by LD_PRELOAD.
 *
 * It sleeps until the node writes its identity. From then on each call that opens, changes or syncs
 * a file, or writes anywhere, is a point, counted from 1, in all threads. What happens is said by
 * the environment:
 *
 *   TRAP_KILL_AT=N   the process gets SIGKILL instead of point N
 *   TRAP_LOSE_LOG=1  writes to the log are taken and never done nor ended, as by a disk that hangs
 *
 * Libraft writes its log by the system call io_submit, with vectors; its probe of the file system
 * does without them. */
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TRAP __attribute__((visibility("default")))

/* The function of that name that would have been called, of the type of ours. */
#define NEXT(name) (__extension__(__typeof__(&(name))) dlsym(RTLD_NEXT, #name))

static atomic_bool awake;
static atomic_ulong points;

static unsigned long setting(const char *name)
{
    const char *text = getenv(name);
    return text == NULL ? 0 : strtoul(text, NULL, 10);
}

static void point(void)
{
    if (atomic_load(&awake) && atomic_fetch_add(&points, 1) + 1 == setting("TRAP_KILL_AT")) {
        (void)kill(getpid(), SIGKILL);
    }
}

static void opening(const char *path)
{
    if (strcmp(path, "identity.new") == 0) {
        atomic_store(&awake, true);
    }
    point();
}

static mode_t mode_of(int flags, va_list arguments)
{
    return (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0;
}

#define TRAP_OPEN(name)                                                                            \
    TRAP int name(const char *path, int flags, ...)                                                \
    {                                                                                              \
        va_list arguments;                                                                         \
        va_start(arguments, flags);                                                                \
        mode_t mode = mode_of(flags, arguments);                                                   \
        va_end(arguments);                                                                         \
        opening(path);                                                                             \
        return NEXT(name)(path, flags, mode);                                                      \
    }

#define TRAP_OPENAT(name)                                                                          \
    TRAP int name(int folder, const char *path, int flags, ...)                                    \
    {                                                                                              \
        va_list arguments;                                                                         \
        va_start(arguments, flags);                                                                \
        mode_t mode = mode_of(flags, arguments);                                                   \
        va_end(arguments);                                                                         \
        opening(path);                                                                             \
        return NEXT(name)(folder, path, flags, mode);                                              \
    }

#define TRAP_CALL(type, name, parameters, arguments)                                               \
    TRAP type name parameters                                                                      \
    {                                                                                              \
        point();                                                                                   \
        return NEXT(name) arguments;                                                               \
    }

TRAP_OPEN(open)
TRAP_OPEN(open64)
TRAP_OPENAT(openat)
TRAP_OPENAT(openat64)
TRAP_CALL(ssize_t, write, (int fd, const void *bytes, size_t len), (fd, bytes, len))
TRAP_CALL(ssize_t, pwrite, (int fd, const void *bytes, size_t len, off_t at), (fd, bytes, len, at))
TRAP_CALL(ssize_t, pwrite64, (int fd, const void *bytes, size_t len, off64_t at),
          (fd, bytes, len, at))
TRAP_CALL(int, fsync, (int fd), (fd))
TRAP_CALL(int, fdatasync, (int fd), (fd))
TRAP_CALL(int, ftruncate, (int fd, off_t len), (fd, len))
TRAP_CALL(int, ftruncate64, (int fd, off64_t len), (fd, len))
TRAP_CALL(int, posix_fallocate, (int fd, off_t at, off_t len), (fd, at, len))
TRAP_CALL(int, posix_fallocate64, (int fd, off64_t at, off64_t len), (fd, at, len))
TRAP_CALL(int, rename, (const char *from, const char *to), (from, to))
TRAP_CALL(int, renameat, (int from_folder, const char *from, int to_folder, const char *to),
          (from_folder, from, to_folder, to))
TRAP_CALL(int, unlink, (const char *path), (path))
TRAP_CALL(int, unlinkat, (int folder, const char *path, int flags), (folder, path, flags))

/* Any system call may have six arguments; those that were not given are not looked at. */
TRAP long syscall(long number, ...)
{
    long given[6];
    va_list arguments;
    va_start(arguments, number);
    for (size_t i = 0; i < 6; i++) {
        given[i] = va_arg(arguments, long);
    }
    va_end(arguments);
    if (number == SYS_io_submit) {
        point();
        struct iocb *const *writes = (struct iocb *const *)given[2];
        if (atomic_load(&awake) && setting("TRAP_LOSE_LOG") != 0 &&
            writes[0]->aio_lio_opcode == IOCB_CMD_PWRITEV) {
            return given[1];
        }
    }
    return NEXT(syscall)(number, given[0], given[1], given[2], given[3], given[4], given[5]);
}
