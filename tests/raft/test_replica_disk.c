/* One replica on a real directory, with raft_uv and a real loop: birth, restart, lock, refusals. */
#include "raft/replica.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <errno.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <uv.h>

#include "fsm/base/check.h"
#include "fsm/command_codec.h"
#include "raft/disk.h"

#define RESERVE_LEN 1048576u /* less than the default: the test is not about it */

struct node {
    uv_loop_t loop;
    uv_check_t after_poll;
    uv_prepare_t before_poll;
    uv_timer_t timer;
    struct replica *replica;
    char why[256];
    bool closed;
    unsigned fatals;
};

static uint64_t now_ns(void *ctx)
{
    (void)ctx;
    struct timespec now;
    (void)clock_gettime(CLOCK_BOOTTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

static bool no_send(void *ctx, uint64_t peer_id, bool bulk, struct slice bytes)
{
    (void)ctx;
    (void)peer_id;
    (void)bulk;
    (void)bytes;
    return false;
}

static void no_view(void *ctx)
{
    (void)ctx;
}

static void no_applied(void *ctx, uint64_t index, const struct changes *changes)
{
    (void)ctx;
    (void)index;
    (void)changes;
}

static void on_fatal(void *ctx, enum status status, const char *detail)
{
    struct node *node = ctx;
    (void)fprintf(stderr, "fatal: %s: %s\n", status_name(status), detail);
    node->fatals++;
}

static void no_log(void *ctx, int level, const char *text)
{
    (void)ctx;
    (void)level;
    (void)text;
}

static void on_timer(uv_timer_t *timer)
{
    (void)timer; /* the turn follows before the next poll */
}

static void turn(struct node *node)
{
    replica_turn(node->replica, now_ns(NULL));
    uint64_t next = replica_next_timer_ns(node->replica);
    if (next == UINT64_MAX) {
        (void)uv_timer_stop(&node->timer);
        return;
    }
    uint64_t now = now_ns(NULL);
    uint64_t ms = next > now ? (next - now) / 1000000 + 1 : 0;
    CHECK(uv_timer_start(&node->timer, on_timer, ms, 0) == 0);
}

static void on_check(uv_check_t *handle)
{
    turn(handle->data);
}

static void on_prepare(uv_prepare_t *handle)
{
    turn(handle->data);
}

static void on_closed(void *ctx);
static enum status node_open_at(struct node *node, const char *dir, uint64_t token_floor);

static enum status node_open(struct node *node, const char *dir)
{
    return node_open_at(node, dir, 0);
}

/* How often syncing a directory is to fail from now on. */
static unsigned sync_failures;

int fsync(int fd)
{
    struct stat info;
    if (sync_failures > 0 && fstat(fd, &info) == 0 && S_ISDIR(info.st_mode)) {
        sync_failures--;
        errno = EIO;
        return -1;
    }
    return (int)syscall(SYS_fsync, fd);
}

/* With the token floor that the wall clock gives. */
static enum status node_open_at(struct node *node, const char *dir, uint64_t token_floor)
{
    *node = (struct node){.fatals = 0};
    CHECK(uv_loop_init(&node->loop) == 0);
    struct replica_config config = {
        .dir = dir,
        .loop = &node->loop,
        .token_floor = token_floor,
        .reserve_len = RESERVE_LEN,
    };
    struct replica_callbacks callbacks = {
        .ctx = node,
        .now_ns = now_ns,
        .send = no_send,
        .on_view = no_view,
        .on_applied = no_applied,
        .on_fatal = on_fatal,
        .on_log = no_log,
    };
    enum status status = replica_open(&config, &callbacks, node->why, &node->replica);
    if (status != STATUS_OK) {
        if (node->replica != NULL) {
            replica_close(node->replica, on_closed, node);
            (void)uv_run(&node->loop, UV_RUN_DEFAULT);
            CHECK(node->closed);
            replica_destroy(node->replica);
        }
        CHECK(uv_loop_close(&node->loop) == 0);
        return status;
    }
    CHECK(uv_check_init(&node->loop, &node->after_poll) == 0);
    CHECK(uv_prepare_init(&node->loop, &node->before_poll) == 0);
    CHECK(uv_timer_init(&node->loop, &node->timer) == 0);
    node->after_poll.data = node;
    node->before_poll.data = node;
    CHECK(uv_check_start(&node->after_poll, on_check) == 0);
    CHECK(uv_prepare_start(&node->before_poll, on_prepare) == 0);
    return STATUS_OK;
}

static void on_closed(void *ctx)
{
    struct node *node = ctx;
    node->closed = true;
}

/* In order, and nothing may be left: no handle, no memory. */
static void node_close(struct node *node)
{
    replica_close(node->replica, on_closed, node);
    while (!node->closed) {
        (void)uv_run(&node->loop, UV_RUN_ONCE);
    }
    uv_close((uv_handle_t *)&node->after_poll, NULL);
    uv_close((uv_handle_t *)&node->before_poll, NULL);
    uv_close((uv_handle_t *)&node->timer, NULL);
    (void)uv_run(&node->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&node->loop), 0);
    replica_destroy(node->replica);
    assert_int_equal(node->fatals, 0);
}

static void node_wait_serving(struct node *node)
{
    struct replica_view view;
    do {
        (void)uv_run(&node->loop, UV_RUN_ONCE);
        replica_view(node->replica, &view);
    } while (!view.serving);
}

struct call {
    struct replica_proposal proposal;
    unsigned completions;
    enum status status;
};

static void on_result(struct replica_proposal *proposal, enum status status, struct slice result)
{
    struct call *call = CONTAINER_OF(proposal, struct call, proposal);
    call->completions++;
    call->status = status;
    CHECK(status != STATUS_OK || result.len > 0);
}

static void node_open_origin(struct node *node, uint64_t nonce)
{
    struct command command = {
        .op = {.kind = OP_KIND_OPEN_ORIGIN, .node_id = 1, .nonce = nonce},
    };
    struct buf bytes;
    buf_init(&bytes, ENTRY_LEN_MAX);
    command_encode(&command, &bytes);
    struct call call = {.proposal = {.cb = on_result, .deadline_ns = UINT64_MAX}};
    assert_int_equal(replica_propose(node->replica, buf_slice(&bytes), &call.proposal), STATUS_OK);
    buf_deinit(&bytes);
    assert_int_equal(call.completions, 0);
    while (call.completions == 0) {
        (void)uv_run(&node->loop, UV_RUN_ONCE);
    }
    assert_int_equal(call.status, STATUS_OK);
}

static const uint8_t RANDOM[40] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17};

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *place)
{
    (void)info;
    (void)kind;
    (void)place;
    return remove(path);
}

static int make_dir(void **state)
{
    char *dir = strdup("/tmp/tenure-test-replica-XXXXXX");
    *state = mkdtemp(dir);
    return *state == NULL ? -1 : 0;
}

static int remove_dir(void **state)
{
    (void)nftw(*state, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    free(*state);
    return 0;
}

static void test_replica_disk__a_cluster_of_one_restarts_where_it_stopped(void **state)
{
    const char *dir = *state;
    struct node node;
    assert_int_equal(node_open(&node, dir), STATUS_OK);
    struct replica_view view;
    replica_view(node.replica, &view);
    assert_int_equal(view.state, REPLICA_STATE_EMPTY);
    assert_int_equal(replica_init_cluster(node.replica, 123456789, 5, RANDOM), STATUS_OK);
    node_wait_serving(&node);
    for (unsigned i = 0; i < 20; i++) {
        node_open_origin(&node, i + 1);
    }
    replica_view(node.replica, &view);
    uint64_t digest = fsm_digest(replica_fsm(node.replica));
    uint64_t token = fsm_token(replica_fsm(node.replica));
    assert_true(token >= 123456789);
    assert_int_equal(fsm_settings(replica_fsm(node.replica))->voters_wanted, 5);
    uint64_t node_id = view.node_id;
    uint64_t index = fsm_index(replica_fsm(node.replica));
    node_close(&node);

    for (unsigned round = 0; round < 3; round++) {
        assert_int_equal(node_open(&node, dir), STATUS_OK);
        replica_view(node.replica, &view);
        assert_int_equal(view.state, REPLICA_STATE_RUNNING);
        assert_int_equal(view.node_id, node_id);
        assert_int_equal(fsm_digest(replica_fsm(node.replica)), digest);
        node_wait_serving(&node);
        /* The barrier of each start moves the index and nothing else. */
        assert_int_equal(fsm_index(replica_fsm(node.replica)), index + round + 1);
        assert_int_equal(fsm_token(replica_fsm(node.replica)), token);
        assert_int_equal(fsm_settings(replica_fsm(node.replica))->voters_wanted, 5);
        struct fsm_stats stats;
        fsm_stats(replica_fsm(node.replica), &stats);
        assert_int_equal(stats.origins, 20);
        digest = fsm_digest(replica_fsm(node.replica));
        node_close(&node);
    }
}

static void test_replica_disk__one_process_per_directory(void **state)
{
    const char *dir = *state;
    struct node node;
    assert_int_equal(node_open(&node, dir), STATUS_OK);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct node other;
        _exit(node_open(&other, dir) == STATUS_IN_USE ? 0 : 1);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    node_close(&node);
}

static bool founding(const struct node *node)
{
    struct replica_view view;
    replica_view(node->replica, &view);
    return view.founding;
}

/* Found a cluster of five voters and end before its birth is in the log, which is then as libraft
 * has made it: its configuration is entry 1. */
static void found_and_end(const char *dir, uint64_t token_floor)
{
    struct node node;
    assert_int_equal(node_open(&node, dir), STATUS_OK);
    assert_false(founding(&node));
    assert_int_equal(replica_init_cluster(node.replica, token_floor, 5, RANDOM), STATUS_OK);
    assert_true(founding(&node));
    node_close(&node);
}

static void remove_log(const char *dir)
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s/raft", dir);
    assert_int_equal(nftw(path, remove_one, 8, FTW_DEPTH | FTW_PHYS), 0);
    (void)snprintf(path, sizeof path, "%s/watermark", dir);
    (void)remove(path);
}

/* As what was asked for says, not as this process is configured: for three voters. */
static void expect_born(const char *dir, uint64_t token_floor)
{
    struct node node;
    assert_int_equal(node_open(&node, dir), STATUS_OK);
    assert_true(founding(&node));
    node_wait_serving(&node);
    assert_false(founding(&node));
    const struct fsm *fsm = replica_fsm(node.replica);
    assert_true(fsm_born(fsm));
    assert_int_equal(fsm_settings(fsm)->voters_wanted, 5);
    assert_int_equal(fsm_token(fsm), token_floor);
    node_close(&node);
    assert_int_equal(node_open(&node, dir), STATUS_OK);
    assert_false(founding(&node));
    node_close(&node);
}

/* A founder that died between writing its identity and libraft's first entry: the next start founds
 * the cluster; a node that joined waits in the same situation. */
static void test_replica_disk__an_interrupted_birth_is_finished(void **state)
{
    const char *dir = *state;
    found_and_end(dir, 1000);
    remove_log(dir);
    expect_born(dir, 1000);
}

static void test_replica_disk__a_birth_that_was_not_proposed_is_proposed(void **state)
{
    const char *dir = *state;
    found_and_end(dir, 0);
    expect_born(dir, 0);
}

/* Finish a founding at the wall clock that gives the one floor, with the other one kept. */
static void expect_floor(const char *dir, uint64_t now, uint64_t expected)
{
    struct node node;
    assert_int_equal(node_open_at(&node, dir, now), STATUS_OK);
    assert_true(founding(&node));
    node_wait_serving(&node);
    assert_int_equal(fsm_token(replica_fsm(node.replica)), expected);
    node_close(&node);
}

static void test_replica_disk__a_birth_is_finished_at_the_floor_of_now(void **state)
{
    const char *dir = *state;
    found_and_end(dir, 1000);
    expect_floor(dir, 5000, 5000);
    remove_log(dir); /* it is founded again, above the tokens that were drawn since */
    expect_floor(dir, 7000, 7000);
    remove_log(dir);
    expect_floor(dir, 0, 1000); /* no clock */
    remove_log(dir);
    expect_floor(dir, 999, 1000); /* a slow one */
}

/* What is asked for by hand is not raised at once. */
static void test_replica_disk__a_floor_given_by_hand_is_taken_as_it_is(void **state)
{
    struct node node;
    assert_int_equal(node_open_at(&node, *state, 5000), STATUS_OK);
    assert_int_equal(replica_init_cluster(node.replica, 1000, 1, RANDOM), STATUS_OK);
    node_wait_serving(&node);
    assert_int_equal(fsm_token(replica_fsm(node.replica)), 1000);
    node_close(&node);
}

/* Rewrite the identity without what was asked for, as builds before this one left it. */
static void forget_founding(const char *dir)
{
    struct disk *disk = NULL;
    struct disk_detail detail;
    struct disk_identity identity;
    assert_int_equal(disk_open(dir, &disk, &detail), STATUS_OK);
    assert_int_equal(disk_identity_load(disk, &identity, &detail), STATUS_OK);
    identity.founding.voters = 0;
    assert_int_equal(disk_identity_store(disk, &identity, &detail), STATUS_OK);
    disk_close(disk, NULL, NULL);
}

static void test_replica_disk__nothing_is_founded_by_guessing(void **state)
{
    const char *dir = *state;
    struct node node;
    found_and_end(dir, 1000);
    forget_founding(dir);
    for (unsigned round = 0; round < 2; round++) { /* with libraft's entry, and without */
        assert_int_equal(node_open(&node, dir), STATUS_CORRUPT);
        assert_non_null(strstr(node.why, "began to found a cluster"));
        assert_null(node.replica);
        remove_log(dir);
    }
}

static void test_replica_disk__a_born_cluster_needs_no_founding(void **state)
{
    const char *dir = *state;
    struct node node;
    found_and_end(dir, 1000);
    expect_born(dir, 1000);
    forget_founding(dir);
    assert_int_equal(node_open(&node, dir), STATUS_OK);
    node_wait_serving(&node);
    assert_int_equal(fsm_settings(replica_fsm(node.replica))->voters_wanted, 5);
    node_close(&node);
}

static void test_replica_disk__a_joined_node_waits_to_be_admitted(void **state)
{
    const char *dir = *state;
    struct node node;
    assert_int_equal(node_open(&node, dir), STATUS_OK);
    struct cluster_identity cluster = {.id = {9, 9, 9}, .generation = 1};
    uint64_t founder = 0;
    memcpy(&founder, cluster.id, sizeof founder);
    assert_int_equal(replica_join_cluster(node.replica, &cluster, founder), STATUS_INVALID);
    assert_int_equal(replica_join_cluster(node.replica, &cluster, 77), STATUS_OK);
    assert_int_equal(replica_join_cluster(node.replica, &cluster, 77), STATUS_BUSY);
    node_close(&node);
    assert_int_equal(node_open(&node, dir), STATUS_OK);
    struct replica_view view;
    replica_view(node.replica, &view);
    assert_int_equal(view.state, REPLICA_STATE_RUNNING);
    assert_int_equal(view.node_id, 77);
    assert_int_equal(view.role, REPLICA_MEMBER_ROLE_NONE);
    for (unsigned i = 0; i < 20; i++) {
        (void)uv_run(&node.loop, UV_RUN_ONCE);
    }
    replica_view(node.replica, &view);
    assert_false(view.leader);
    node_close(&node);
}

static void test_replica_disk__survives_a_kill_in_the_middle(void **state)
{
    const char *dir = *state;
    struct node node;
    assert_int_equal(node_open(&node, dir), STATUS_OK);
    assert_int_equal(replica_init_cluster(node.replica, 1000, 0, RANDOM), STATUS_OK);
    node_wait_serving(&node);
    node_close(&node);
    uint64_t expected = 0;
    for (unsigned round = 0; round < 5; round++) { /* K9 */
        int pipe_ends[2];
        assert_int_equal(pipe(pipe_ends), 0);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            CHECK(node_open(&node, dir) == STATUS_OK);
            node_wait_serving(&node);
            for (unsigned i = 0; i < 20 + round; i++) {
                node_open_origin(&node, round * 100 + i + 1);
                CHECK(write(pipe_ends[1], "x", 1) == 1);
            }
            _exit(0); /* like a kill: nothing is closed */
        }
        (void)close(pipe_ends[1]);
        char byte;
        while (read(pipe_ends[0], &byte, 1) == 1) {
            expected++;
        }
        (void)close(pipe_ends[0]);
        int status = 0;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        assert_int_equal(node_open(&node, dir), STATUS_OK);
        node_wait_serving(&node);
        struct fsm_stats stats;
        fsm_stats(replica_fsm(node.replica), &stats);
        assert_int_equal(stats.origins, expected);
        node_close(&node);
    }
}

/* No file may grow beyond so many bytes: what a disk without space does, for this process alone. */
static void limit_files(rlim_t len)
{
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = len;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static void test_replica_disk__a_start_that_fails_leaves_nothing_open(void **state)
{
    const char *dir = *state;
    (void)signal(SIGXFSZ, SIG_IGN);
    struct node node;
    assert_int_equal(node_open(&node, dir), STATUS_OK);
    assert_int_equal(replica_init_cluster(node.replica, 1000, 0, RANDOM), STATUS_OK);
    node_wait_serving(&node);
    node_close(&node);
    limit_files(4000); /* libraft tries what the file system can do, with a file of a block */
    for (unsigned round = 0; round < 2; round++) {
        assert_int_not_equal(node_open(&node, dir), STATUS_OK);
        assert_non_null(node.replica); /* it got that far */
        assert_true(node.why[0] != '\0');
        assert_int_equal(node.fatals, 0);
    }
    limit_files(RLIM_INFINITY);
    assert_int_equal(node_open(&node, dir), STATUS_OK);
    node_wait_serving(&node);
    node_close(&node);
}

/* The identity is there, the log is not: the process ends, and its next one finishes the birth. */
static void test_replica_disk__a_birth_that_fails_stops_the_node(void **state)
{
    const char *dir = *state;
    (void)signal(SIGXFSZ, SIG_IGN);
    struct node node;
    assert_int_equal(node_open(&node, dir), STATUS_OK);
    limit_files(4000);
    assert_int_not_equal(replica_init_cluster(node.replica, 1000, 0, RANDOM), STATUS_OK);
    limit_files(RLIM_INFINITY);
    assert_int_equal(node.fatals, 1);
    struct replica_view view;
    replica_view(node.replica, &view);
    assert_int_equal(view.state, REPLICA_STATE_FAILED);
    assert_int_equal(replica_init_cluster(node.replica, 1000, 0, RANDOM), STATUS_BUSY);
    node.fatals = 0;
    node_close(&node);
    assert_int_equal(node_open(&node, dir), STATUS_OK);
    node_wait_serving(&node);
    node_close(&node);
}

static void expect_stopped(struct node *node)
{
    assert_int_equal(sync_failures, 0);
    assert_int_equal(node->fatals, 1);
    struct replica_view view;
    replica_view(node->replica, &view);
    assert_int_equal(view.state, REPLICA_STATE_FAILED);
    assert_int_equal(replica_init_cluster(node->replica, 1000, 0, RANDOM), STATUS_BUSY);
    node->fatals = 0;
    node_close(node);
}

/* The identity is there, and perhaps not after a power cut: nobody may be asked for another one. */
static void test_replica_disk__an_identity_that_may_be_lost_stops_the_node(void **state)
{
    const char *dir = *state;
    struct node node;
    assert_int_equal(node_open(&node, dir), STATUS_OK);
    sync_failures = 1;
    assert_int_equal(replica_init_cluster(node.replica, 1000, 0, RANDOM), STATUS_UNKNOWN);
    expect_stopped(&node);
    assert_int_equal(node_open(&node, dir), STATUS_OK);
    node_wait_serving(&node);
    node_close(&node);
}

static void test_replica_disk__joining_with_an_identity_that_may_be_lost_too(void **state)
{
    const char *dir = *state;
    struct node node;
    assert_int_equal(node_open(&node, dir), STATUS_OK);
    struct cluster_identity cluster = {.id = {9, 9, 9}, .generation = 1};
    sync_failures = 1;
    assert_int_equal(replica_join_cluster(node.replica, &cluster, 77), STATUS_UNKNOWN);
    expect_stopped(&node);
    assert_int_equal(node_open(&node, dir), STATUS_OK);
    struct replica_view view;
    replica_view(node.replica, &view);
    assert_int_equal(view.node_id, 77);
    node_close(&node);
}

int main(void)
{
#define ON_DIR(test) cmocka_unit_test_setup_teardown(test, make_dir, remove_dir)
    const struct CMUnitTest tests[] = {
        ON_DIR(test_replica_disk__a_cluster_of_one_restarts_where_it_stopped),
        ON_DIR(test_replica_disk__one_process_per_directory),
        ON_DIR(test_replica_disk__an_interrupted_birth_is_finished),
        ON_DIR(test_replica_disk__a_birth_is_finished_at_the_floor_of_now),
        ON_DIR(test_replica_disk__a_floor_given_by_hand_is_taken_as_it_is),
        ON_DIR(test_replica_disk__a_birth_that_was_not_proposed_is_proposed),
        ON_DIR(test_replica_disk__nothing_is_founded_by_guessing),
        ON_DIR(test_replica_disk__a_born_cluster_needs_no_founding),
        ON_DIR(test_replica_disk__a_joined_node_waits_to_be_admitted),
        ON_DIR(test_replica_disk__survives_a_kill_in_the_middle),
        ON_DIR(test_replica_disk__a_start_that_fails_leaves_nothing_open),
        ON_DIR(test_replica_disk__a_birth_that_fails_stops_the_node),
        ON_DIR(test_replica_disk__an_identity_that_may_be_lost_stops_the_node),
        ON_DIR(test_replica_disk__joining_with_an_identity_that_may_be_lost_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
