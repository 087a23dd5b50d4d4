/* Games with the socket's path (X5): what is replaced, what is refused, modes, and what is
 * removed. */
#include "node/api_socket.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/node/api_bed.h"

static struct api_bed bed;
static char why[256];

static int setup(void **state)
{
    (void)state;
    bed_open(&bed);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    bed_close(&bed);
    return 0;
}

static enum status listen_at(const char *path)
{
    return bed_listen(&bed, (struct api_config){.path = path, .mode = 0600, .gid = -1}, why);
}

static void refuses_at(const char *path, enum status status, const char *sentence)
{
    assert_int_equal(listen_at(path), status);
    if (strstr(why, sentence) == NULL) {
        fail_msg("says: %s", why);
    }
}

static mode_t mode_of(const char *path)
{
    struct stat about;
    assert_int_equal(lstat(path, &about), 0);
    return about.st_mode & 07777;
}

/* A socket that listens, or one that nobody listens at any more. */
static int foreign_socket(bool dead)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, bed.path, strlen(bed.path) + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(fd, 1), 0);
    if (dead) {
        (void)close(fd);
    }
    return dead ? -1 : fd;
}

static void test_api_socket__x5_has_its_mode_whatever_the_umask(void **state)
{
    (void)state;
    static const uint32_t modes[] = {0600, 0660, 0666, 0777, 0};
    static const mode_t umasks[] = {0, 022, 0777};
    for (unsigned i = 0; i < 5; i++) {
        for (unsigned j = 0; j < 3; j++) {
            mode_t before = umask(umasks[j]);
            assert_int_equal(
                bed_listen(&bed, (struct api_config){.mode = modes[i], .gid = -1}, why),
                STATUS_OK);
            assert_int_equal(umask(before), umasks[j]);
            assert_int_equal(mode_of(bed.path), modes[i]);
            bed_close_api(&bed);
            assert_int_equal(access(bed.path, F_OK), -1); /* removed */
        }
    }
}

static void test_api_socket__x5_replaces_a_dead_socket_only(void **state)
{
    (void)state;
    (void)foreign_socket(true);
    assert_int_equal(listen_at(NULL), STATUS_OK);
    int fd = bed_connect(&bed);
    assert_true(fd >= 0);
    (void)close(fd);
    bed_close_api(&bed);

    fd = foreign_socket(false);
    refuses_at(NULL, STATUS_IN_USE, "/api.sock: another process listens there");
    assert_int_equal(access(bed.path, F_OK), 0);
    (void)close(fd);
    assert_int_equal(listen_at(NULL), STATUS_OK);
}

static void test_api_socket__x5_two_nodes_do_not_share_a_path(void **state)
{
    (void)state;
    assert_int_equal(listen_at(NULL), STATUS_OK);
    struct api *first = bed.api;
    refuses_at(NULL, STATUS_IN_USE, "another process listens there");
    assert_ptr_equal(bed.api, first);
}

static void test_api_socket__x5_never_follows_a_link(void **state)
{
    (void)state;
    char target[128];
    (void)snprintf(target, sizeof target, "%s/target", bed.folder);
    int fd = open(target, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    (void)close(fd);
    assert_int_equal(symlink(target, bed.path), 0);
    refuses_at(NULL, STATUS_INVALID, "/api.sock: is a symbolic link; links are not followed");
    assert_int_equal(access(target, F_OK), 0);
    (void)unlink(target);
    refuses_at(NULL, STATUS_INVALID, "is a symbolic link"); /* dangling */
    assert_int_equal(access(target, F_OK), -1);
    assert_int_equal(unlink(bed.path), 0);
}

static void test_api_socket__x5_leaves_other_files_alone(void **state)
{
    (void)state;
    int fd = open(bed.path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "mine", 4), 4);
    (void)close(fd);
    refuses_at(NULL, STATUS_INVALID, "/api.sock: exists and is no socket");
    struct stat about;
    assert_int_equal(stat(bed.path, &about), 0);
    assert_int_equal(about.st_size, 4);
    assert_int_equal(unlink(bed.path), 0);

    assert_int_equal(mkdir(bed.path, 0700), 0);
    refuses_at(NULL, STATUS_INVALID, "exists and is no socket");
    assert_int_equal(rmdir(bed.path), 0);
}

static void test_api_socket__x5_leaves_the_socket_of_another_user_alone(void **state)
{
    (void)state;
    if (geteuid() != 0) {
        print_message("skipped: only root can give a file to another user\n");
        return;
    }
    (void)foreign_socket(true);
    assert_int_equal(lchown(bed.path, 12345, 12345), 0);
    refuses_at(NULL, STATUS_INVALID, "/api.sock: is the socket of another user");
    assert_int_equal(unlink(bed.path), 0);

    assert_int_equal(bed_listen(&bed, (struct api_config){.mode = 0660, .gid = 12345}, why),
                     STATUS_OK);
    struct stat about;
    assert_int_equal(lstat(bed.path, &about), 0);
    assert_int_equal(about.st_gid, 12345);
    assert_int_equal(about.st_uid, 0);
}

static void test_api_socket__x5_a_folder_where_everybody_may_write_is_refused(void **state)
{
    (void)state;
    assert_int_equal(chmod(bed.folder, 0777), 0);
    refuses_at(NULL, STATUS_INVALID, "everybody may replace files in this folder");
    assert_int_equal(access(bed.path, F_OK), -1);
    assert_int_equal(chmod(bed.folder, 01777), 0);
    assert_int_equal(listen_at(NULL), STATUS_OK);
}

static void test_api_socket__x5_long_and_odd_paths(void **state)
{
    (void)state;
    char path[300];
    memset(path, 'p', sizeof path);
    int len = snprintf(path, sizeof path, "%s/", bed.folder);
    path[len] = 'p';
    path[107] = '\0';
    assert_int_equal(listen_at(path), STATUS_OK);
    assert_int_equal(access(path, F_OK), 0);
    bed_close_api(&bed);
    assert_int_equal(access(path, F_OK), -1);

    path[107] = 'p';
    path[108] = '\0';
    refuses_at(path, STATUS_INVALID,
               "...: the path of a unix socket must have 1..107 bytes, this has 108");
    path[108] = 'p';
    path[299] = '\0';
    refuses_at(path, STATUS_INVALID, "must have 1..107 bytes, this has 299");
    refuses_at("", STATUS_INVALID, "must have 1..107 bytes, this has 0");
    refuses_at("/tmp/", STATUS_INVALID, "names no file");
    refuses_at("/tmp/..", STATUS_INVALID, "names no file");
    refuses_at("/nowhere/at/all/api.sock", STATUS_IO, "/nowhere/at/all: No such file");
}

static void test_api_socket__x5_removes_only_what_it_made(void **state)
{
    (void)state;
    assert_int_equal(listen_at(NULL), STATUS_OK);
    assert_int_equal(unlink(bed.path), 0);
    int fd = foreign_socket(false); /* somebody else's by now */
    bed_close_api(&bed);
    assert_int_equal(access(bed.path, F_OK), 0);
    (void)close(fd);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_api_socket__x5_has_its_mode_whatever_the_umask),
        TEST(test_api_socket__x5_replaces_a_dead_socket_only),
        TEST(test_api_socket__x5_two_nodes_do_not_share_a_path),
        TEST(test_api_socket__x5_never_follows_a_link),
        TEST(test_api_socket__x5_leaves_other_files_alone),
        TEST(test_api_socket__x5_leaves_the_socket_of_another_user_alone),
        TEST(test_api_socket__x5_a_folder_where_everybody_may_write_is_refused),
        TEST(test_api_socket__x5_long_and_odd_paths),
        TEST(test_api_socket__x5_removes_only_what_it_made),
    };
#undef TEST
    return cmocka_run_group_tests(tests, NULL, NULL);
}
