/* The folder is opened once and the file is looked at and removed relative to it, so that nobody
 * can swap the folder in between. Mode by umask: the file never exists with another one. */
#include "node/api_socket.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

struct place {
    int folder; /* O_PATH descriptor */
    const char *name;
};

static enum status open_place(const char *path, struct place *out_place, char *out_why);
static enum status clear_place(const char *path, const struct place *place, char *out_why);
static enum status probe(const char *path, char *out_why);
static enum status bind_and_listen(const struct api_config *config, const struct place *place,
                                   struct api_socket *out_socket, char *out_why);
static int bind_with_mode(int fd, const struct api_config *config);
static bool own_group(const struct api_config *config, const struct place *place);
static bool address_of(const char *path, struct sockaddr_un *out_address);
static enum status refuse(char *out_why, enum status status, const char *path, const char *why);

enum status api_socket_bind(const struct api_config *config, struct api_socket *out_socket,
                            char *out_why)
{
    size_t len = strlen(config->path);
    if (len == 0 || len > API_SOCKET_PATH_LEN_MAX) {
        (void)snprintf(out_why, API_SOCKET_WHY_LEN,
                       "%.60s%s: the path of a unix socket must have 1..%u bytes, this has %zu",
                       config->path, len > 60 ? "..." : "", API_SOCKET_PATH_LEN_MAX, len);
        return STATUS_INVALID;
    }
    struct place place;
    enum status st = open_place(config->path, &place, out_why);
    if (st != STATUS_OK) {
        return st;
    }
    struct api_socket socket = {.fd = -1};
    memcpy(socket.path, config->path, len + 1);
    st = clear_place(config->path, &place, out_why);
    if (st == STATUS_OK) {
        st = bind_and_listen(config, &place, &socket, out_why);
    }
    (void)close(place.folder);
    if (st == STATUS_OK) {
        *out_socket = socket;
    }
    return st;
}

void api_socket_unlink(const struct api_socket *socket)
{
    struct place place;
    char why[API_SOCKET_WHY_LEN];
    if (open_place(socket->path, &place, why) != STATUS_OK) {
        return;
    }
    struct stat about;
    if (fstatat(place.folder, place.name, &about, AT_SYMLINK_NOFOLLOW) == 0 &&
        about.st_dev == socket->device && about.st_ino == socket->inode) {
        (void)unlinkat(place.folder, place.name, 0);
    }
    (void)close(place.folder);
}

static enum status open_place(const char *path, struct place *out_place, char *out_why)
{
    char folder[API_SOCKET_PATH_LEN_MAX + 1];
    const char *slash = strrchr(path, '/');
    const char *name = slash != NULL ? slash + 1 : path;
    size_t len = slash == NULL ? 0 : (size_t)(slash - path);
    if (name[0] == '\0' || strcmp(name, ".") == 0 || strcmp(name, "..") == 0) {
        return refuse(out_why, STATUS_INVALID, path, "names no file");
    }
    memcpy(folder, path, len);
    folder[len] = '\0';
    const char *where = slash == NULL ? "." : len == 0 ? "/" : folder;
    int fd = open(where, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        return refuse(out_why, STATUS_IO, where, strerror(errno));
    }
    struct stat about;
    if (fstat(fd, &about) != 0) {
        (void)close(fd);
        return refuse(out_why, STATUS_IO, where, strerror(errno));
    }
    if ((about.st_mode & S_IWOTH) != 0 && (about.st_mode & S_ISVTX) == 0) {
        (void)close(fd);
        return refuse(out_why, STATUS_INVALID, where,
                      "everybody may replace files in this folder; take another one");
    }
    *out_place = (struct place){.folder = fd, .name = name};
    return STATUS_OK;
}

/* Remove a dead socket of ours; refuse whatever else is there. */
static enum status clear_place(const char *path, const struct place *place, char *out_why)
{
    struct stat about;
    if (fstatat(place->folder, place->name, &about, AT_SYMLINK_NOFOLLOW) != 0) {
        return errno == ENOENT ? STATUS_OK : refuse(out_why, STATUS_IO, path, strerror(errno));
    }
    if (S_ISLNK(about.st_mode)) {
        return refuse(out_why, STATUS_INVALID, path, "is a symbolic link; links are not followed");
    }
    if (!S_ISSOCK(about.st_mode)) {
        return refuse(out_why, STATUS_INVALID, path, "exists and is no socket");
    }
    if (about.st_uid != geteuid()) {
        return refuse(out_why, STATUS_INVALID, path, "is the socket of another user");
    }
    enum status st = probe(path, out_why);
    if (st != STATUS_OK) {
        return st;
    }
    struct stat again;
    if (fstatat(place->folder, place->name, &again, AT_SYMLINK_NOFOLLOW) != 0 ||
        again.st_dev != about.st_dev || again.st_ino != about.st_ino) {
        return refuse(out_why, STATUS_IN_USE, path, "changed while it was looked at");
    }
    if (unlinkat(place->folder, place->name, 0) != 0) {
        return refuse(out_why, STATUS_IO, path, strerror(errno));
    }
    return STATUS_OK;
}

/* OK when nobody listens. O_NONBLOCK, since a full backlog would make connect wait. */
static enum status probe(const char *path, char *out_why)
{
    struct sockaddr_un address;
    CHECK(address_of(path, &address));
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        return refuse(out_why, STATUS_IO, path, strerror(errno));
    }
    int st = connect(fd, (const struct sockaddr *)&address, sizeof address);
    int error = st == 0 ? 0 : errno;
    (void)close(fd);
    if (error == ECONNREFUSED) {
        return STATUS_OK;
    }
    if (error == 0 || error == EAGAIN || error == EPROTOTYPE) {
        return refuse(out_why, STATUS_IN_USE, path, "another process listens there");
    }
    return refuse(out_why, STATUS_IO, path, strerror(error));
}

static enum status bind_and_listen(const struct api_config *config, const struct place *place,
                                   struct api_socket *out_socket, char *out_why)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        return refuse(out_why, STATUS_IO, config->path, strerror(errno));
    }
    if (bind_with_mode(fd, config) != 0) {
        enum status st = errno == EADDRINUSE ? STATUS_IN_USE : STATUS_IO;
        (void)refuse(out_why, st, config->path, strerror(errno));
        (void)close(fd);
        return st;
    }
    struct stat about = {0};
    bool known = fstatat(place->folder, place->name, &about, AT_SYMLINK_NOFOLLOW) == 0 &&
                 S_ISSOCK(about.st_mode);
    if (!known || !own_group(config, place) || listen(fd, SOMAXCONN) != 0) {
        (void)refuse(out_why, STATUS_IO, config->path, strerror(errno));
        if (known) {
            (void)unlinkat(place->folder, place->name, 0);
        }
        (void)close(fd);
        return STATUS_IO;
    }
    out_socket->fd = fd;
    out_socket->device = about.st_dev;
    out_socket->inode = about.st_ino;
    return STATUS_OK;
}

/* The umask is the process' own: no other thread makes files while a node starts. */
static int bind_with_mode(int fd, const struct api_config *config)
{
    struct sockaddr_un address;
    CHECK(address_of(config->path, &address));
    mode_t before = umask((mode_t)(0777u & ~config->mode));
    int st = bind(fd, (const struct sockaddr *)&address, sizeof address);
    int error = errno;
    (void)umask(before);
    errno = error;
    return st;
}

/* Before listen: nobody can connect yet. */
static bool own_group(const struct api_config *config, const struct place *place)
{
    return config->gid < 0 || fchownat(place->folder, place->name, (uid_t)-1, (gid_t)config->gid,
                                       AT_SYMLINK_NOFOLLOW) == 0;
}

static bool address_of(const char *path, struct sockaddr_un *out_address)
{
    size_t len = strlen(path);
    *out_address = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (len >= sizeof out_address->sun_path) {
        return false;
    }
    memcpy(out_address->sun_path, path, len + 1);
    return true;
}

static enum status refuse(char *out_why, enum status status, const char *path, const char *why)
{
    (void)snprintf(out_why, API_SOCKET_WHY_LEN, "%s: %s", path, why);
    return status;
}
