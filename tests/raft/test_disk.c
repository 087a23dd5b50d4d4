/* The data directory on the real file system, with raft_uv on it: lock, identity, watermark,
 * reserve, restarts, and a disk that fails or fills up. */
#include "raft/disk.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <uv.h>

#include "fsm/base/units.h"
#include "raft/guard.h"
#include "tests/raft/one_node.h"

#define TICK_MS 10u

static void dir_make(char out_dir[64])
{
    (void)snprintf(out_dir, 64, "./test-disk-XXXXXX");
    CHECK(mkdtemp(out_dir) != NULL);
}

static void dir_remove(const char *dir)
{
    char command[128];
    (void)snprintf(command, sizeof(command), "rm -rf '%s'", dir);
    CHECK(system(command) == 0);
}

static void path_of(const char *dir, const char *name, char out_path[128])
{
    (void)snprintf(out_path, 128, "%s/%s", dir, name);
}

static size_t file_read(const char *dir, const char *name, uint8_t *out_bytes, size_t cap)
{
    char path[128];
    path_of(dir, name, path);
    int fd = open(path, O_RDONLY);
    CHECK(fd >= 0);
    ssize_t len = read(fd, out_bytes, cap);
    CHECK(len >= 0);
    (void)close(fd);
    return (size_t)len;
}

static void file_write(const char *dir, const char *name, const void *bytes, size_t len)
{
    char path[128];
    path_of(dir, name, path);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    CHECK(fd >= 0 && write(fd, bytes, len) == (ssize_t)len);
    (void)close(fd);
}

static bool file_exists(const char *dir, const char *name)
{
    char path[128];
    path_of(dir, name, path);
    return access(path, F_OK) == 0;
}

static struct disk *open_sound(const char *dir)
{
    struct disk *disk = NULL;
    struct disk_detail detail = {{0}};
    enum status status = disk_open(dir, &disk, &detail);
    if (status != STATUS_OK) {
        print_error("%s\n", detail.text);
    }
    CHECK(status == STATUS_OK);
    return disk;
}

/* --- lock ---------------------------------------------------------------------------------- */

static void test_disk__second_opening_is_refused_and_names_the_pid_K15(void **state)
{
    (void)state;
    char dir[64];
    dir_make(dir);
    struct disk *disk = open_sound(dir);
    struct disk *second = NULL;
    struct disk_detail detail;
    assert_int_equal(disk_open(dir, &second, &detail), STATUS_IN_USE);
    char words[64];
    (void)snprintf(words, sizeof(words), "in use by pid %ld (this process)", (long)getpid());
    assert_non_null(strstr(detail.text, words));
    disk_close(disk, NULL, NULL);
    disk = open_sound(dir);
    disk_close(disk, NULL, NULL);
    dir_remove(dir);
}

static void test_disk__lock_ends_with_the_process_K15(void **state)
{
    (void)state;
    char dir[64];
    dir_make(dir);
    int ready[2];
    assert_int_equal(pipe(ready), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        (void)open_sound(dir);
        (void)!write(ready[1], "x", 1);
        (void)pause();
        _exit(0);
    }
    char byte;
    assert_int_equal(read(ready[0], &byte, 1), 1);
    struct disk *disk = NULL;
    struct disk_detail detail;
    assert_int_equal(disk_open(dir, &disk, &detail), STATUS_IN_USE);
    char words[64];
    (void)snprintf(words, sizeof(words), "in use by pid %ld", (long)pid);
    assert_non_null(strstr(detail.text, words));
    assert_null(strstr(detail.text, "this process"));
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    disk = open_sound(dir); /* at once */
    disk_close(disk, NULL, NULL);
    (void)close(ready[0]);
    (void)close(ready[1]);
    dir_remove(dir);
}

static void test_disk__directory_that_can_not_be_made_is_refused(void **state)
{
    (void)state;
    struct disk *disk = NULL;
    struct disk_detail detail;
    assert_int_equal(disk_open("./no/such/parent", &disk, &detail), STATUS_IO);
    assert_non_null(strstr(detail.text, "no/such/parent"));
    char path[2000];
    memset(path, 'x', sizeof(path) - 1);
    path[sizeof(path) - 1] = '\0';
    assert_int_equal(disk_open(path, &disk, &detail), STATUS_INVALID);
}

/* --- identity ------------------------------------------------------------------------------ */

static const struct disk_identity some_identity = {
    .cluster = {.id = {0xde, 0xad, 0xbe, 0xef, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 0xff},
                .generation = 3,
                .generation_random = 0x0123456789abcdefull},
    .node_id = 18446744073709551615ull,
};

static void test_disk__identity_survives(void **state)
{
    (void)state;
    char dir[64];
    dir_make(dir);
    struct disk *disk = open_sound(dir);
    struct disk_identity identity;
    struct disk_detail detail;
    assert_int_equal(disk_identity_load(disk, &identity, &detail), STATUS_UNINITIALISED);
    assert_int_equal(disk_identity_store(disk, &some_identity, &detail), STATUS_OK);
    disk_close(disk, NULL, NULL);
    disk = open_sound(dir);
    memset(&identity, 0, sizeof(identity));
    assert_int_equal(disk_identity_load(disk, &identity, &detail), STATUS_OK);
    assert_memory_equal(&identity, &some_identity, sizeof(identity));
    assert_false(file_exists(dir, "identity.new"));
    /* A generation is raised in place. */
    identity.cluster.generation++;
    assert_int_equal(disk_identity_store(disk, &identity, &detail), STATUS_OK);
    assert_int_equal(disk_identity_load(disk, &identity, &detail), STATUS_OK);
    assert_int_equal(identity.cluster.generation, 4);
    disk_close(disk, NULL, NULL);
    dir_remove(dir);
}

static void test_disk__identity_can_be_read_by_a_person(void **state)
{
    (void)state;
    char dir[64];
    dir_make(dir);
    struct disk *disk = open_sound(dir);
    struct disk_detail detail;
    assert_int_equal(disk_identity_store(disk, &some_identity, &detail), STATUS_OK);
    uint8_t text[512] = {0};
    (void)file_read(dir, "identity", text, sizeof(text) - 1);
    assert_memory_equal(text,
                        "tenure_identity=1\n"
                        "cluster_id=deadbeef0102030405060708090a0bff\n"
                        "generation=3\n"
                        "generation_random=0123456789abcdef\n"
                        "node_id=18446744073709551615\n"
                        "crc32c=",
                        137);
    disk_close(disk, NULL, NULL);
    dir_remove(dir);
}

static void test_disk__what_a_founder_was_asked_for_survives(void **state)
{
    (void)state;
    char dir[64];
    dir_make(dir);
    struct disk *disk = open_sound(dir);
    struct disk_detail detail;
    struct disk_identity identity = some_identity;
    identity.founding = (struct disk_founding){.voters = 5, .token_floor = UINT64_MAX};
    assert_int_equal(disk_identity_store(disk, &identity, &detail), STATUS_OK);
    uint8_t text[512] = {0};
    (void)file_read(dir, "identity", text, sizeof(text) - 1);
    /* A program that knows version 1 alone says so, instead of calling the file damaged. */
    assert_memory_equal(text, "tenure_identity=2\n", 18);
    assert_non_null(strstr((const char *)text, "node_id=18446744073709551615\n"
                                               "founding_voters=5\n"
                                               "founding_token_floor=18446744073709551615\n"
                                               "crc32c="));
    struct disk_identity again = {0};
    assert_int_equal(disk_identity_load(disk, &again, &detail), STATUS_OK);
    assert_memory_equal(&again, &identity, sizeof(again));
    disk_close(disk, NULL, NULL);
    dir_remove(dir);
}

static void test_disk__damaged_identity_is_refused(void **state)
{
    (void)state;
    char dir[64];
    dir_make(dir);
    struct disk *disk = open_sound(dir);
    struct disk_detail detail;
    struct disk_identity identity = some_identity;
    identity.founding = (struct disk_founding){.voters = 3, .token_floor = 1000};
    assert_int_equal(disk_identity_store(disk, &identity, &detail), STATUS_OK);
    uint8_t good[512];
    size_t len = file_read(dir, "identity", good, sizeof(good));
    for (size_t at = 0; at < len; at++) {
        uint8_t bad[512];
        memcpy(bad, good, len);
        bad[at] ^= 0x01;
        file_write(dir, "identity", bad, len);
        enum status status = disk_identity_load(disk, &identity, &detail);
        assert_true(status == STATUS_CORRUPT || (at == 16 && status == STATUS_INCOMPATIBLE));
        file_write(dir, "identity", good, at); /* and cut there */
        assert_int_equal(disk_identity_load(disk, &identity, &detail), STATUS_CORRUPT);
    }
    memcpy(good + len, "\n", 1);
    file_write(dir, "identity", good, len + 1);
    assert_int_equal(disk_identity_load(disk, &identity, &detail), STATUS_CORRUPT);
    file_write(dir, "identity", "tenure_identity=3\nnode=9\n", 25);
    assert_int_equal(disk_identity_load(disk, &identity, &detail), STATUS_INCOMPATIBLE);
    assert_non_null(strstr(detail.text, "version 3"));
    assert_non_null(strstr(detail.text, "versions 1 and 2"));
    disk_close(disk, NULL, NULL);
    dir_remove(dir);
}

/* --- a node on it -------------------------------------------------------------------------- */

struct disk_node {
    char dir[64];
    uv_loop_t loop;
    uv_timer_t tick;
    uv_check_t turn;
    uv_prepare_t before;
    struct disk_options options;
    struct disk *disk;
    struct guard *guard;
    struct raft raft;
    struct raft_fsm fsm;
    struct disk_state found;
    uint64_t applied;
    unsigned snapshot_threshold;
    unsigned open_handles;
    unsigned failures;
    char failure[DISK_DETAIL_LEN];
    unsigned reports;
    bool closed;
    uint64_t writes_seen; /* the highest number of a write in flight */
};

static void node_on_send(void *ctx, const struct raft_message *message)
{
    (void)ctx;
    (void)message;
}

static void node_on_fatal(void *ctx, enum status status, const char *detail)
{
    struct disk_node *node = ctx;
    (void)status;
    node->failures++;
    (void)snprintf(node->failure, sizeof(node->failure), "%s", detail);
}

static void node_on_disk_failure(void *ctx, enum status status, const char *detail)
{
    struct disk_node *node = ctx;
    guard_fail(node->guard, status, detail);
}

static void node_on_report(void *ctx, const char *line)
{
    struct disk_node *node = ctx;
    (void)line;
    node->reports++;
}

static int node_on_apply(struct raft_fsm *fsm, const struct raft_buffer *buf, void **result)
{
    struct disk_node *node = fsm->data;
    (void)buf;
    node->applied++;
    *result = NULL;
    return 0;
}

static int node_on_snapshot(struct raft_fsm *fsm, struct raft_buffer *bufs[], unsigned *n_bufs)
{
    struct disk_node *node = fsm->data;
    *n_bufs = 1;
    *bufs = raft_malloc(sizeof(**bufs));
    CHECK(*bufs != NULL);
    (*bufs)[0].len = sizeof(node->applied);
    (*bufs)[0].base = raft_malloc(sizeof(node->applied));
    CHECK((*bufs)[0].base != NULL);
    memcpy((*bufs)[0].base, &node->applied, sizeof(node->applied));
    return 0;
}

static int node_on_restore(struct raft_fsm *fsm, struct raft_buffer *buf)
{
    struct disk_node *node = fsm->data;
    CHECK(buf->len == sizeof(node->applied));
    memcpy(&node->applied, buf->base, sizeof(node->applied));
    raft_free(buf->base);
    return 0;
}

static void node_end_turn(struct disk_node *node)
{
    if (!guard_failed(node->guard)) {
        disk_note_durable(node->disk, guard_durable_index(node->guard));
    }
    guard_end_turn(node->guard);
    uint64_t write = disk_oldest_write(node->disk);
    node->writes_seen = write > node->writes_seen ? write : node->writes_seen;
}

static void node_on_check(uv_check_t *check)
{
    node_end_turn(check->data);
}

static void node_on_prepare(uv_prepare_t *prepare)
{
    node_end_turn(prepare->data);
}

static void node_on_tick(uv_timer_t *timer)
{
    struct disk_node *node = timer->data;
    uint64_t now_ns = uv_hrtime();
    disk_tick(node->disk, now_ns, guard_pending_entries(node->guard) > 0);
    guard_watch(node->guard, now_ns, disk_oldest_write(node->disk));
}

/* Everything of a node, from the lock to the leader; with a birth on an empty directory. */
static void node_start(struct disk_node *node)
{
    struct disk_detail detail = {{0}};
    CHECK(uv_loop_init(&node->loop) == 0);
    node->disk = open_sound(node->dir);
    struct disk_check_options check = {.on_report = node_on_report, .ctx = node};
    enum status status = disk_verify(node->disk, &check, &node->found, &detail);
    if (status != STATUS_OK) {
        (void)fprintf(stderr, "%s\n", detail.text);
    }
    CHECK(status == STATUS_OK);
    node->options.on_failure = node_on_disk_failure;
    node->options.on_report = node_on_report;
    node->options.ctx = node;
    struct raft_io *io = NULL;
    CHECK(disk_start(node->disk, &node->loop, &node->options, &io, &detail) == STATUS_OK);
    struct guard_options options;
    guard_options_init(&options);
    options.on_send = node_on_send;
    options.on_fatal = node_on_fatal;
    options.ctx = node;
    node->guard = guard_create(io, &options);
    node->fsm = (struct raft_fsm){.version = 1,
                                  .data = node,
                                  .apply = node_on_apply,
                                  .snapshot = node_on_snapshot,
                                  .restore = node_on_restore};
    memset(&node->raft, 0, sizeof(node->raft));
    CHECK(raft_init(&node->raft, guard_io(node->guard), &node->fsm, 1, "1") == 0);
    node->raft.tracer = NULL;
    raft_set_snapshot_threshold(&node->raft, node->snapshot_threshold);
    raft_set_snapshot_trailing(&node->raft, 4);
    if (node->found.last_index == 0) {
        struct raft_configuration configuration;
        raft_configuration_init(&configuration);
        CHECK(raft_configuration_add(&configuration, 1, "1", RAFT_VOTER) == 0);
        CHECK(raft_bootstrap(&node->raft, &configuration) == 0);
        raft_configuration_close(&configuration);
    }
    CHECK(raft_start(&node->raft) == 0);
    node->tick.data = node;
    node->turn.data = node;
    node->before.data = node;
    CHECK(uv_timer_init(&node->loop, &node->tick) == 0);
    CHECK(uv_timer_start(&node->tick, node_on_tick, TICK_MS, TICK_MS) == 0);
    CHECK(uv_check_init(&node->loop, &node->turn) == 0);
    CHECK(uv_check_start(&node->turn, node_on_check) == 0);
    CHECK(uv_prepare_init(&node->loop, &node->before) == 0);
    CHECK(uv_prepare_start(&node->before, node_on_prepare) == 0);
}

static void node_init(struct disk_node *node)
{
    memset(node, 0, sizeof(*node));
    node->snapshot_threshold = 1u << 30;
    disk_options_init(&node->options);
    node->options.reserve_len = 0;
}

/* A node in an empty folder of its own; not started. */
static struct disk_node *node_create(void)
{
    struct disk_node *node = calloc(1, sizeof(*node));
    CHECK(node != NULL);
    node_init(node);
    dir_make(node->dir);
    return node;
}

static void node_destroy(struct disk_node *node)
{
    dir_remove(node->dir);
    free(node);
}

static void node_on_disk_closed(void *ctx)
{
    struct disk_node *node = ctx;
    node->closed = true;
}

static void node_on_raft_closed(struct raft *raft)
{
    struct disk_node *node = raft->data;
    guard_destroy(node->guard);
    disk_close(node->disk, node_on_disk_closed, node);
}

static void node_stop(struct disk_node *node)
{
    uv_close((uv_handle_t *)&node->tick, NULL);
    uv_close((uv_handle_t *)&node->turn, NULL);
    uv_close((uv_handle_t *)&node->before, NULL);
    node->raft.data = node;
    raft_close(&node->raft, node_on_raft_closed);
    CHECK(uv_run(&node->loop, UV_RUN_DEFAULT) == 0);
    CHECK(node->closed);
    node->closed = false;
    CHECK(uv_loop_close(&node->loop) == 0); /* no live handle */
}

static void node_on_applied(struct raft_apply *request, int status, void *result)
{
    (void)status;
    (void)result;
    free(request);
}

static int node_propose(struct disk_node *node, size_t len)
{
    struct raft_apply *request = calloc(1, sizeof(*request));
    struct raft_buffer buf = {.len = len, .base = raft_calloc(1, len)};
    CHECK(request != NULL && buf.base != NULL);
    int code = raft_apply(&node->raft, request, &buf, 1, node_on_applied);
    if (code != 0) {
        free(request);
        raft_free(buf.base);
    }
    return code;
}

/* Run the loop until so many entries are applied, or for ten seconds. */
static void node_run_until_applied(struct disk_node *node, uint64_t applied)
{
    uint64_t end_ns = uv_hrtime() + ms_to_ns(10000);
    while (node->applied < applied && uv_hrtime() < end_ns && node->failures == 0) {
        (void)uv_run(&node->loop, UV_RUN_ONCE);
    }
    CHECK(node->applied >= applied);
}

static void node_run_ms(struct disk_node *node, uint64_t ms)
{
    uint64_t end_ns = uv_hrtime() + ms_to_ns(ms);
    while (uv_hrtime() < end_ns) {
        (void)uv_run(&node->loop, UV_RUN_ONCE);
    }
}

static void node_write(struct disk_node *node, unsigned count, size_t len)
{
    for (unsigned idx = 0; idx < count; idx++) {
        CHECK(node_propose(node, len) == 0);
        node_run_until_applied(node, node->applied + 1);
    }
}

static void test_disk__node_stops_and_starts_again(void **state)
{
    (void)state;
    struct disk_node *node = node_create();
    node_start(node);
    assert_int_equal(node->found.last_index, 0);
    node_write(node, 20, 104);
    assert_true(node->writes_seen > 0);
    raft_index last = raft_last_index(&node->raft);
    node_stop(node);
    node->applied = 0;
    node_start(node);
    assert_int_equal(node->found.last_index, last);
    assert_int_equal(node->found.first_index, 1);
    assert_int_equal(node->reports, 0);
    node_run_until_applied(node, 20);
    assert_int_equal(node->applied, 20);
    node_stop(node);
    node_destroy(node);
}

static void test_disk__snapshots_are_found_again(void **state)
{
    (void)state;
    struct disk_node *node = node_create();
    node->snapshot_threshold = 8;
    node_start(node);
    node_write(node, 50, 104);
    node_run_ms(node, 50);
    node_stop(node);
    node->applied = 0;
    node_start(node);
    assert_true(node->found.snapshot_index > 30);
    node_run_until_applied(node, 50);
    assert_int_equal(node->applied, 50);
    node_stop(node);
    node_destroy(node);
}

/* The watermark as the next start sees it: a log cut below it is refused, one cut above is not. */
static void test_disk__watermark_follows_the_log(void **state)
{
    (void)state;
    struct disk_node *node = node_create();
    node_start(node);
    node_write(node, 30, 104);
    raft_index last = raft_last_index(&node->raft);
    node_stop(node); /* writes the last one */
    char name[64];
    (void)snprintf(name, sizeof(name), "raft/%016llu-%016llu", 2ull, last);
    assert_true(file_exists(node->dir, name));
    char path[128];
    path_of(node->dir, name, path);
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(truncate(path, info.st_size - 1), 0);
    struct disk *disk = open_sound(node->dir);
    struct disk_check_options options = {0};
    struct disk_state found;
    struct disk_detail detail;
    assert_int_equal(disk_verify(disk, &options, &found, &detail), STATUS_CORRUPT);
    assert_non_null(strstr(detail.text, "were safe on this disk"));
    disk_close(disk, NULL, NULL);
    /* Without the watermark the same is a tail, and libraft starts on what is left. */
    path_of(node->dir, "watermark", path);
    assert_int_equal(truncate(path, 0), 0);
    node->applied = 0;
    node_start(node);
    assert_int_equal(node->found.last_index, last - 1);
    assert_int_equal(node->reports, 1);
    node_write(node, 1, 104);
    node_stop(node);
    node_destroy(node);
}

static void test_disk__watermark_is_at_most_a_second_behind(void **state)
{
    (void)state;
    struct disk_node *node = node_create();
    node_start(node);
    node_write(node, 10, 104);
    uint8_t before[8192];
    size_t before_len = file_read(node->dir, "watermark", before, sizeof(before));
    uint64_t end_ns = uv_hrtime() + ms_to_ns(1000);
    uint8_t after[8192];
    do {
        (void)uv_run(&node->loop, UV_RUN_ONCE);
        assert_int_equal(file_read(node->dir, "watermark", after, sizeof(after)), before_len);
    } while (memcmp(before, after, before_len) == 0 && uv_hrtime() < end_ns);
    assert_memory_not_equal(before, after, before_len);
    node_stop(node);
    node_destroy(node);
}

static void test_disk__damaged_watermark(void **state)
{
    (void)state;
    struct disk_node *node = node_create();
    for (unsigned round = 0; round < 2; round++) { /* both slots get a value */
        node_start(node);
        node_write(node, 3, 104);
        node_stop(node);
    }
    struct disk *disk = NULL;
    struct disk_detail detail;
    uint8_t good[8192];
    size_t len = file_read(node->dir, "watermark", good, sizeof(good));
    assert_int_equal(len, sizeof(good));
    uint8_t bad[8192];
    for (size_t slot = 0; slot < 2; slot++) { /* one torn slot: the other counts */
        memcpy(bad, good, len);
        bad[slot * 4096 + 17] ^= 1;
        file_write(node->dir, "watermark", bad, len);
        disk = open_sound(node->dir);
        disk_close(disk, NULL, NULL);
    }
    bad[17] ^= 1;
    file_write(node->dir, "watermark", bad, len);
    assert_int_equal(disk_open(node->dir, &disk, &detail), STATUS_CORRUPT);
    assert_non_null(strstr(detail.text, "watermark"));
    node_destroy(node);
}

/* --- kill -9 ------------------------------------------------------------------------------- */

/* A child that writes for ever and tells the index of what is committed. */
static void write_for_ever(const char *dir, int tell)
{
    struct disk_node *node = calloc(1, sizeof(*node));
    CHECK(node != NULL);
    node_init(node);
    node->snapshot_threshold = 300;
    (void)snprintf(node->dir, sizeof(node->dir), "%s", dir);
    node_start(node);
    for (;;) {
        for (unsigned idx = 0; idx < 4; idx++) {
            CHECK(node_propose(node, 104 + 8 * (size_t)(idx % 3)) == 0);
        }
        node_run_until_applied(node, node->applied + 4);
        uint64_t index = raft_last_applied(&node->raft);
        CHECK(write(tell, &index, sizeof(index)) == (ssize_t)sizeof(index));
    }
}

static void test_disk__killed_node_has_all_that_it_acknowledged(void **state)
{
    (void)state;
    char dir[64];
    dir_make(dir);
    for (unsigned round = 0; round < 12; round++) {
        int tell[2];
        assert_int_equal(pipe(tell), 0);
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
            (void)close(tell[0]);
            write_for_ever(dir, tell[1]);
        }
        (void)close(tell[1]);
        uint64_t index = 0;
        uint64_t acknowledged = 0;
        /* Some rounds end in the middle of a start, some late. */
        for (unsigned told = 0; told < round * 37; told++) {
            assert_int_equal(read(tell[0], &index, sizeof(index)), sizeof(index));
            acknowledged = index;
        }
        assert_int_equal(kill(pid, SIGKILL), 0);
        assert_int_equal(waitpid(pid, NULL, 0), pid);
        while (read(tell[0], &index, sizeof(index)) == (ssize_t)sizeof(index)) {
            acknowledged = index;
        }
        (void)close(tell[0]);
        struct disk *disk = open_sound(dir);
        struct disk_check_options options = {0};
        struct disk_state found;
        struct disk_detail detail = {{0}};
        enum status status = disk_verify(disk, &options, &found, &detail);
        if (status != STATUS_OK) {
            print_error("round %u: %s\n", round, detail.text);
        }
        assert_int_equal(status, STATUS_OK);
        assert_true(found.last_index >= acknowledged);
        disk_close(disk, NULL, NULL);
    }
    dir_remove(dir);
}

/* --- a disk that fails or fills up --------------------------------------------------------- */

/* What libraft says of a failed write is still said, and ends the node long before its retry. */
static void write_beyond_a_limit(void *arg)
{
    struct disk_node *node = arg;
    node_start(node);
    node_write(node, 1, 104);
    (void)signal(SIGXFSZ, SIG_IGN);
    const struct rlimit limit = {.rlim_cur = 8192, .rlim_max = RLIM_INFINITY};
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    CHECK(node_propose(node, 16384) == 0);
    uint64_t begin_ns = uv_hrtime();
    while (node->failures == 0 && uv_hrtime() - begin_ns < ms_to_ns(10000)) {
        (void)uv_run(&node->loop, UV_RUN_ONCE);
    }
    CHECK(node->failures == 1 && strstr(node->failure, "retry failed write") != NULL);
    CHECK(uv_hrtime() - begin_ns < ms_to_ns(1000));
    node_run_ms(node, 300);
    CHECK(node->failures == 1);
}

static void test_disk__failed_write_is_told_and_ends_the_node(void **state)
{
    (void)state;
    struct disk_node *node = node_create();
    assert_true(one_node_survives(write_beyond_a_limit, node));
    node_destroy(node);
}

static void test_disk__reserve_is_made_when_absent(void **state)
{
    (void)state;
    struct disk_node *node = node_create();
    node->options.reserve_len = MIB;
    node_start(node);
    uint64_t end_ns = uv_hrtime() + ms_to_ns(5000);
    while (!file_exists(node->dir, "reserve") && uv_hrtime() < end_ns) {
        (void)uv_run(&node->loop, UV_RUN_ONCE);
    }
    char path[128];
    path_of(node->dir, "reserve", path);
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_size, MIB);
    assert_true(info.st_blocks * 512 >= (blkcnt_t)MIB); /* really there */
    assert_false(disk_low(node->disk));
    node_stop(node);
    assert_true(file_exists(node->dir, "reserve"));
    node_destroy(node);
}

/* Bytes of a file next to the node's directory that fills the disk but for `leave`. */
static void fill_but(const char *mount_dir, uint64_t leave)
{
    char command[256];
    (void)snprintf(command, sizeof(command),
                   "fallocate -l $(( $(df --output=avail -B1 '%s' | tail -1) - %llu )) "
                   "'%s/ballast'",
                   mount_dir, (unsigned long long)leave, mount_dir);
    CHECK(system(command) == 0);
}

/* Proposes until one is accepted and applied, for at most so long. */
static bool recovers_within_ms(struct disk_node *node, uint64_t ms)
{
    uint64_t end_ns = uv_hrtime() + ms_to_ns(ms);
    uint64_t wanted = node->applied + 1;
    bool proposed = false;
    while (node->applied < wanted && uv_hrtime() < end_ns) {
        if (!proposed) {
            int code = node_propose(node, 104);
            CHECK(code == 0 || code == RAFT_NOSPACE);
            proposed = code == 0;
        }
        (void)uv_run(&node->loop, UV_RUN_ONCE);
    }
    return node->applied >= wanted;
}

/* Waits until the reserve is there and the disk not low, or the other way round: the file changes
 * in the pool, what the disk says of it a little later on the loop. */
static bool reserve_becomes(struct disk_node *node, bool present)
{
    uint64_t end_ns = uv_hrtime() + ms_to_ns(8000);
    while (uv_hrtime() < end_ns) {
        if (file_exists(node->dir, "reserve") == present && disk_low(node->disk) != present) {
            return true;
        }
        (void)uv_run(&node->loop, UV_RUN_ONCE);
    }
    return false;
}

/* On a file system of its own: full, the reserve given back, full again, space, the reserve. */
static void fill_the_disk(void *arg)
{
    struct disk_node *node = arg;
    node->options.reserve_len = 32 * MIB;
    node->options.retry_ms = 300;
    node_start(node);
    uint64_t end_ns = uv_hrtime() + ms_to_ns(5000);
    while (!file_exists(node->dir, "reserve") && uv_hrtime() < end_ns) {
        (void)uv_run(&node->loop, UV_RUN_ONCE);
    }
    CHECK(file_exists(node->dir, "reserve"));
    char mount_dir[64];
    (void)snprintf(mount_dir, sizeof(mount_dir), "%.*s", (int)(strrchr(node->dir, '/') - node->dir),
                   node->dir);
    fill_but(mount_dir, MIB);
    /* Two segments are prepared; then there is no more room, and the reserve makes some. */
    unsigned refused = 0;
    for (unsigned idx = 0; idx < 3 * 8 * 16 && file_exists(node->dir, "reserve"); idx++) {
        int code = node_propose(node, 65536);
        CHECK(code == 0 || code == RAFT_NOSPACE);
        refused += code == RAFT_NOSPACE ? 1 : 0;
        node_run_ms(node, code == 0 ? 2 : 50);
    }
    CHECK(reserve_becomes(node, false));
    CHECK(recovers_within_ms(node, 5000));
    /* It is used up as well. */
    refused = 0;
    for (unsigned idx = 0; idx < 2000 && refused < 20; idx++) {
        int code = node_propose(node, 65536);
        CHECK(code == 0 || code == RAFT_NOSPACE);
        refused += code == RAFT_NOSPACE ? 1 : 0;
        node_run_ms(node, code == 0 ? 2 : 50);
    }
    CHECK(refused == 20 && node->failures == 0);
    node_run_ms(node, 3000); /* longer than the watchdog waits: a full disk is no hang */
    CHECK(node->failures == 0);
    char ballast[96];
    (void)snprintf(ballast, sizeof(ballast), "%s/ballast", mount_dir);
    CHECK(unlink(ballast) == 0);
    CHECK(recovers_within_ms(node, 5000));
    CHECK(reserve_becomes(node, true));
    CHECK(node->failures == 0);
    node_stop(node);
}

/* A file system of 240 MB that nobody else sees; false where that is not allowed. */
static bool mount_private(const char *dir)
{
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0) {
        return false;
    }
    return mount("tmpfs", dir, "tmpfs", 0, "size=240m") == 0;
}

static void try_to_mount(void *arg)
{
    const struct disk_node *node = arg;
    CHECK(mount_private(node->dir));
}

static void fill_in_private(void *arg)
{
    struct disk_node *node = arg;
    char mount_dir[64];
    (void)snprintf(mount_dir, sizeof(mount_dir), "%s", node->dir);
    CHECK(mount_private(mount_dir));
    (void)snprintf(node->dir, sizeof(node->dir), "%.40s/node", mount_dir);
    fill_the_disk(node);
}

static void test_disk__full_disk_and_the_reserve_K4(void **state)
{
    (void)state;
    struct disk_node *node = node_create();
    bool possible = one_node_survives(try_to_mount, node);
    if (possible) {
        assert_true(one_node_survives(fill_in_private, node));
    }
    node_destroy(node);
    if (!possible) {
        skip(); /* only root may mount */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_disk__second_opening_is_refused_and_names_the_pid_K15),
        cmocka_unit_test(test_disk__lock_ends_with_the_process_K15),
        cmocka_unit_test(test_disk__directory_that_can_not_be_made_is_refused),
        cmocka_unit_test(test_disk__identity_survives),
        cmocka_unit_test(test_disk__identity_can_be_read_by_a_person),
        cmocka_unit_test(test_disk__what_a_founder_was_asked_for_survives),
        cmocka_unit_test(test_disk__damaged_identity_is_refused),
        cmocka_unit_test(test_disk__node_stops_and_starts_again),
        cmocka_unit_test(test_disk__snapshots_are_found_again),
        cmocka_unit_test(test_disk__watermark_follows_the_log),
        cmocka_unit_test(test_disk__watermark_is_at_most_a_second_behind),
        cmocka_unit_test(test_disk__damaged_watermark),
        cmocka_unit_test(test_disk__killed_node_has_all_that_it_acknowledged),
        cmocka_unit_test(test_disk__failed_write_is_told_and_ends_the_node),
        cmocka_unit_test(test_disk__reserve_is_made_when_absent),
        cmocka_unit_test(test_disk__full_disk_and_the_reserve_K4),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
