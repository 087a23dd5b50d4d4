/* Fail-stop, the disk watchdog, and libraft defects L6 and L7: after a failure of the disk the node
 * says nothing and does nothing any more. */
#include "raft/guard.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <raft/uv.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "fsm/base/units.h"
#include "raft/status_map.h"
#include "tests/raft/one_node.h"

#define COUNT_OF(array) ((unsigned)(sizeof(array) / sizeof((array)[0])))

/* Nothing leaves a failed node, whatever happens to it. */
static void assert_silent(struct one_node *node)
{
    unsigned sent = node->sent_count;
    raft_term term = fake_disk_term(node->disk);
    raft_id vote = fake_disk_vote(node->disk);
    one_node_run_ms(node, 3000);
    struct raft_message message = {
        .type = RAFT_REQUEST_VOTE,
        .server_id = 3,
        .request_vote = {.version = 2,
                         .term = term + 7,
                         .candidate_id = 3,
                         .last_log_index = 99,
                         .last_log_term = term + 6},
    };
    assert_false(one_node_receive(node, &message));
    uint64_t delay_ns;
    assert_false(guard_leader_link_lost(node->guard, 1, &delay_ns));
    guard_campaign(node->guard);
    assert_false(guard_notify_commit(node->guard));
    assert_int_equal(node->sent_count, sent);
    assert_int_equal(fake_disk_term(node->disk), term);
    assert_int_equal(fake_disk_vote(node->disk), vote);
    assert_int_equal(node->fatal_count, 1);
}

/* --- fail-stop ----------------------------------------------------------------------------- */

static void test_guard__failed_term_or_vote_ends_the_node(void **state)
{
    (void)state;
    const enum fake_disk_call calls[] = {FAKE_DISK_CALL_SET_TERM, FAKE_DISK_CALL_SET_VOTE};
    for (unsigned idx = 0; idx < COUNT_OF(calls); idx++) {
        struct one_node *node = one_node_create(2, GUARD_CURES_ALL);
        one_node_boot(node, 3, 0);
        unsigned sent = node->sent_count;
        fake_disk_fail_next(node->disk, calls[idx], RAFT_IOERR);
        struct raft_message message = {
            .type = RAFT_REQUEST_VOTE,
            .server_id = 3,
            .request_vote = {.version = 2,
                             .term = 5,
                             .candidate_id = 3,
                             .last_log_index = 9,
                             .last_log_term = 4},
        };
        (void)one_node_receive(node, &message);
        assert_true(guard_failed(node->guard));
        assert_int_equal(node->fatal_status, STATUS_IO);
        assert_non_null(strstr(node->fatal_detail, idx == 0 ? "term" : "vote"));
        assert_int_equal(node->sent_count, sent); /* above all: no vote */
        assert_silent(node);
        one_node_destroy(node);
    }
}

static void test_guard__failed_truncation_ends_the_node(void **state)
{
    (void)state;
    struct one_node *node = one_node_create(2, GUARD_CURES_ALL);
    one_node_boot(node, 3, 0);
    fake_disk_fail_next(node->disk, FAKE_DISK_CALL_TRUNCATE, RAFT_IOERR);
    const struct one_node_entry entries[] = {{.term = 1, .value = 2}};
    const struct one_node_append append = {.from = 1,
                                           .term = 1,
                                           .prev_index = 1,
                                           .prev_term = 1,
                                           .entries = entries,
                                           .count = COUNT_OF(entries)};
    (void)one_node_append(node, &append);
    assert_true(guard_failed(node->guard));
    assert_silent(node);
    one_node_destroy(node);
}

/* In a child that counts: an error return would have freed the entries twice. */
static void fail_an_append_call(void *arg)
{
    (void)arg;
    one_node_heap_count();
    struct one_node *node = one_node_create(2, GUARD_CURES_ALL);
    one_node_boot(node, 3, 0);
    fake_disk_fail_next(node->disk, FAKE_DISK_CALL_APPEND, RAFT_IOERR);
    const struct one_node_entry entries[] = {{.term = 1, .value = 2}, {.term = 1, .value = 3}};
    const struct one_node_append append = {.from = 1,
                                           .term = 1,
                                           .prev_index = 1,
                                           .prev_term = 1,
                                           .entries = entries,
                                           .count = COUNT_OF(entries)};
    (void)one_node_append(node, &append);
    CHECK(guard_failed(node->guard) && node->fatal_count == 1);
    one_node_run_ms(node, 1000);
    one_node_destroy(node);
    CHECK(one_node_heap_balance() == 0);
}

static void test_guard__failed_append_call_leaves_memory_sound_L9(void **state)
{
    (void)state;
    assert_true(one_node_survives(fail_an_append_call, NULL));
}

static void test_guard__owner_may_fail_it_once(void **state)
{
    (void)state;
    struct one_node *node = one_node_create(2, GUARD_CURES_ALL);
    one_node_boot(node, 3, 0);
    guard_fail(node->guard, STATUS_CORRUPT, NULL);
    guard_fail(node->guard, STATUS_IO, "again");
    assert_int_equal(node->fatal_count, 1);
    assert_int_equal(node->fatal_status, STATUS_CORRUPT);
    assert_string_equal(node->fatal_detail, status_text(STATUS_CORRUPT));
    assert_silent(node);
    one_node_destroy(node);
}

static void test_guard__completions_after_a_failure_are_parked(void **state)
{
    (void)state;
    struct one_node *node = one_node_create(1, GUARD_CURES_ALL);
    one_node_boot(node, 1, 0);
    one_node_run_ms(node, 20);
    assert_int_equal(raft_state(&node->raft), RAFT_LEADER);
    assert_int_equal(one_node_propose(node, 7), 0);
    raft_index commit = raft_commit_index(&node->raft);
    guard_fail(node->guard, STATUS_IO, "now");
    one_node_run_ms(node, 100);
    assert_int_equal(raft_commit_index(&node->raft), commit);
    assert_int_equal(node->state.applied, 0);
    one_node_destroy(node); /* cancels it */
}

/* --- L7 ------------------------------------------------------------------------------------ */

/* The second of three writes fails. What libraft believes to be entry 3 against what is on disk. */
static void write_three(unsigned cures, struct one_node *node)
{
    node->cures = cures;
    one_node_boot(node, 1, 0);
    one_node_run_ms(node, 20);
    assert_int_equal(one_node_propose(node, 102), 0);
    one_node_run_ms(node, 5);
    fake_disk_fail_next(node->disk, FAKE_DISK_CALL_APPEND_DONE, RAFT_IOERR);
    assert_int_equal(one_node_propose(node, 103), 0);
    one_node_run_ms(node, 5);
}

static void test_guard__failed_write_ends_the_node_L7(void **state)
{
    (void)state;
    struct one_node *node = one_node_create(1, GUARD_CURES_ALL);
    write_three(GUARD_CURES_ALL, node);
    assert_int_equal(node->fatal_count, 1);
    assert_int_equal(node->fatal_status, STATUS_IO);
    raft_index durable = guard_durable_index(node->guard);
    assert_int_equal(durable, fake_disk_last_index(node->disk));
    assert_silent(node);
    one_node_destroy(node);
}

static void misnumber(void *arg)
{
    struct one_node *node = one_node_create(1, GUARD_CURES_ALL);
    (void)arg;
    write_three(GUARD_CURES_ALL & ~GUARD_CURE_L7, node);
    CHECK(node->fatal_count == 0);
    CHECK(one_node_propose(node, 104) == 0);
    one_node_run_ms(node, 5);
    /* The disk has one entry less than libraft, and 104 where libraft has 103. */
    raft_index last = fake_disk_last_index(node->disk);
    CHECK(raft_last_index(&node->raft) == last + 1);
    struct slice bytes;
    CHECK(fake_disk_entry(node->disk, last, &bytes) != 0 && bytes.base[0] == 104);
    one_node_destroy(node);
}

static void test_guard__failed_write_misnumbers_the_log_without_L7(void **state)
{
    (void)state;
    assert_true(one_node_shows(misnumber, NULL));
}

static void test_guard__failed_snapshot_ends_the_node_L7(void **state)
{
    (void)state;
    struct one_node *node = one_node_create(2, GUARD_CURES_ALL);
    one_node_boot(node, 3, 0);
    fake_disk_fail_next(node->disk, FAKE_DISK_CALL_SNAPSHOT_PUT_DONE, RAFT_IOERR);
    assert_true(one_node_install(node, 1, 1, 20));
    one_node_run_ms(node, 100);
    assert_int_equal(node->fatal_count, 1);
    assert_non_null(strstr(node->fatal_detail, "snapshot"));
    assert_silent(node);
    one_node_destroy(node);
}

static void get_stuck(void *arg)
{
    (void)arg;
    struct one_node *node = one_node_create(2, GUARD_CURES_ALL & ~GUARD_CURE_L7);
    one_node_boot(node, 3, 0);
    fake_disk_fail_next(node->disk, FAKE_DISK_CALL_SNAPSHOT_PUT_DONE, RAFT_IOERR);
    CHECK(one_node_install(node, 1, 1, 20));
    one_node_run_ms(node, 2000);
    CHECK(node->fatal_count == 0 && node->raft.snapshot.installing); /* for ever */
    one_node_destroy(node);
}

static void test_guard__failed_snapshot_leaves_the_node_stuck_without_L7(void **state)
{
    (void)state;
    assert_true(one_node_shows(get_stuck, NULL));
}

/* --- watchdog ------------------------------------------------------------------------------ */

/* A guard alone, to be watched. */
struct watch {
    struct one_node *node;
    uint64_t now_ns;
};

static void watch_for(struct watch *watch, uint64_t duration_ms, uint64_t oldest_write)
{
    for (uint64_t ms = 0; ms < duration_ms; ms += 50) {
        watch->now_ns += 50 * NS_PER_MS;
        guard_watch(watch->node->guard, watch->now_ns, oldest_write);
    }
}

static struct watch watch_new(unsigned cures)
{
    struct watch watch = {.node = one_node_create(2, cures), .now_ns = 77 * NS_PER_MS};
    one_node_boot(watch.node, 3, 0);
    guard_watch(watch.node->guard, watch.now_ns, 0);
    return watch;
}

static void test_guard__write_that_hangs_two_seconds_ends_the_node_F3(void **state)
{
    (void)state;
    struct watch watch = watch_new(GUARD_CURES_ALL);
    watch_for(&watch, 50, 9); /* first seen */
    watch_for(&watch, 2000, 9);
    assert_int_equal(watch.node->fatal_count, 0);
    watch_for(&watch, 50, 9);
    assert_int_equal(watch.node->fatal_count, 1);
    assert_int_equal(watch.node->fatal_status, STATUS_IO);
    assert_non_null(strstr(watch.node->fatal_detail, "disk stalled 2050 ms"));
    assert_silent(watch.node);
    one_node_destroy(watch.node);
}

static void test_guard__slow_writes_one_after_the_other_are_no_hang(void **state)
{
    (void)state;
    struct watch watch = watch_new(GUARD_CURES_ALL);
    for (uint64_t write = 1; write < 20; write++) {
        watch_for(&watch, 1950, write);
    }
    watch_for(&watch, 60000, 0); /* nothing handed to the disk */
    assert_int_equal(watch.node->fatal_count, 0);
    one_node_destroy(watch.node);
}

static void test_guard__stopped_process_is_no_hanging_disk(void **state)
{
    (void)state;
    struct watch watch = watch_new(GUARD_CURES_ALL);
    watch_for(&watch, 1000, 5);
    watch.now_ns += 10000 * NS_PER_MS; /* SIGSTOP, SIGCONT: the write has long been done */
    watch_for(&watch, 50, 5);
    assert_int_equal(watch.node->fatal_count, 0);
    watch_for(&watch, 50, 6);
    assert_int_equal(watch.node->fatal_count, 0);
    one_node_destroy(watch.node);
}

static void test_guard__stalled_fake_disk_is_seen_and_a_full_one_is_not_K4(void **state)
{
    (void)state;
    for (int full = 0; full <= 1; full++) {
        struct watch watch = watch_new(GUARD_CURES_ALL);
        if (full == 1) {
            fake_disk_starve(watch.node->disk, true);
        } else {
            fake_disk_stall(watch.node->disk, true);
        }
        const struct one_node_entry entries[] = {{.term = 1, .value = 2}};
        const struct one_node_append append = {.from = 1,
                                               .term = 1,
                                               .prev_index = 1,
                                               .prev_term = 1,
                                               .entries = entries,
                                               .count = COUNT_OF(entries)};
        assert_true(one_node_append(watch.node, &append));
        assert_int_equal(guard_pending_entries(watch.node->guard), 1);
        watch_for(&watch, 5000, fake_disk_oldest_write(watch.node->disk));
        assert_int_equal(watch.node->fatal_count, full == 1 ? 0 : 1);
        one_node_destroy(watch.node);
    }
}

/* --- L6, on the real thing ----------------------------------------------------------------- */

struct uv_case {
    unsigned cures;
    char dir[64];
    uv_loop_t loop;
    struct raft_io io;
    struct raft_uv_transport transport;
    struct guard *guard;
    struct raft raft;
    struct raft_fsm fsm;
    uv_timer_t timer;
    uv_timer_t end;
    struct raft_apply apply;
    bool fatal;
};

static int uv_transport_init(struct raft_uv_transport *transport, raft_id id, const char *address)
{
    (void)transport;
    (void)id;
    (void)address;
    return 0;
}

static int uv_transport_listen(struct raft_uv_transport *transport, raft_uv_accept_cb cb)
{
    (void)transport;
    (void)cb;
    return 0;
}

static void uv_on_send(void *ctx, const struct raft_message *message)
{
    (void)ctx;
    (void)message;
}

static void uv_on_fatal(void *ctx, enum status status, const char *detail)
{
    struct uv_case *test = ctx;
    (void)detail;
    test->fatal = status == STATUS_IO;
    uv_stop(&test->loop);
}

static int uv_on_apply(struct raft_fsm *fsm, const struct raft_buffer *buf, void **result)
{
    (void)fsm;
    (void)buf;
    *result = NULL;
    return 0;
}

static void uv_on_applied(struct raft_apply *request, int status, void *result)
{
    (void)request;
    (void)status;
    (void)result;
}

static void uv_on_tick(uv_timer_t *timer)
{
    struct uv_case *test = timer->data;
    guard_watch(test->guard, uv_hrtime(), guard_pending_entries(test->guard) > 0 ? 1 : 0);
}

static void uv_on_end(uv_timer_t *timer)
{
    struct uv_case *test = timer->data;
    uv_stop(&test->loop);
}

static void uv_start(struct uv_case *test)
{
    CHECK(uv_loop_init(&test->loop) == 0);
    test->transport = (struct raft_uv_transport){
        .version = 1, .init = uv_transport_init, .listen = uv_transport_listen};
    CHECK(raft_uv_init(&test->io, &test->loop, test->dir, &test->transport) == 0);
    raft_uv_set_tracer(&test->io, NULL);
    raft_uv_set_disk_retry(&test->io, 1000);
    struct guard_options options;
    guard_options_init(&options);
    options.on_send = uv_on_send;
    options.on_fatal = uv_on_fatal;
    options.ctx = test;
    options.cures = test->cures;
    options.disk_stall_ns_max = 200 * NS_PER_MS;
    test->guard = guard_create(&test->io, &options);
    test->fsm = (struct raft_fsm){.version = 1, .data = test, .apply = uv_on_apply};
    CHECK(raft_init(&test->raft, guard_io(test->guard), &test->fsm, 1, "1") == 0);
    test->raft.tracer = NULL;
    struct raft_configuration configuration;
    raft_configuration_init(&configuration);
    CHECK(raft_configuration_add(&configuration, 1, "1", RAFT_VOTER) == 0);
    CHECK(raft_bootstrap(&test->raft, &configuration) == 0);
    raft_configuration_close(&configuration);
    CHECK(raft_start(&test->raft) == 0);
}

/* Writes beyond 4 KiB of a file fail with EFBIG. */
static void write_to_a_failing_disk(void *arg)
{
    struct uv_case *test = arg;
    (void)snprintf(test->dir, sizeof(test->dir), "./test-guard-XXXXXX");
    CHECK(mkdtemp(test->dir) != NULL);
    uv_start(test);
    (void)signal(SIGXFSZ, SIG_IGN);
    const struct rlimit limit = {.rlim_cur = 4096, .rlim_max = RLIM_INFINITY};
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    struct raft_buffer buf = {.len = 16384, .base = raft_calloc(1, 16384)};
    CHECK(buf.base != NULL && raft_apply(&test->raft, &test->apply, &buf, 1, uv_on_applied) == 0);
    test->timer.data = test;
    test->end.data = test;
    CHECK(uv_timer_init(&test->loop, &test->timer) == 0);
    CHECK(uv_timer_start(&test->timer, uv_on_tick, 20, 20) == 0);
    CHECK(uv_timer_init(&test->loop, &test->end) == 0);
    CHECK(uv_timer_start(&test->end, uv_on_end, 5000, 0) == 0);
    (void)uv_run(&test->loop, UV_RUN_DEFAULT);
    CHECK(test->fatal);
}

static void remove_leftovers(void)
{
    /* The child may have died in it. */
    CHECK(system("rm -rf ./test-guard-??????") == 0);
}

static void test_guard__failed_write_of_raft_uv_ends_the_node_before_it_crashes_L6(void **state)
{
    (void)state;
    struct uv_case *test = calloc(1, sizeof(*test));
    assert_non_null(test);
    test->cures = GUARD_CURES_ALL;
    assert_true(one_node_survives(write_to_a_failing_disk, test));
    test->cures = GUARD_CURES_ALL & ~GUARD_CURE_L6;
    assert_false(one_node_survives(write_to_a_failing_disk, test));
    free(test);
    remove_leftovers();
}

/* --- codes --------------------------------------------------------------------------------- */

static void test_status_map__codes_have_the_class_that_retries_rely_on(void **state)
{
    (void)state;
    assert_int_equal(status_from_raft(0), STATUS_OK);
    assert_int_equal(status_class(status_from_raft(RAFT_NOTLEADER)), STATUS_CLASS_NOT_DONE);
    assert_int_equal(status_class(status_from_raft(RAFT_NOSPACE)), STATUS_CLASS_NOT_DONE);
    assert_int_equal(status_class(status_from_raft(RAFT_LEADERSHIPLOST)), STATUS_CLASS_MAYBE);
    assert_int_equal(status_class(status_from_raft(RAFT_CANCELED)), STATUS_CLASS_MAYBE);
    assert_int_equal(status_from_raft(RAFT_SHUTDOWN), STATUS_INTERNAL);
    assert_int_equal(status_from_raft(12345), STATUS_INTERNAL);
    for (int code = RAFT_NOMEM; code <= RAFT_TOOMANY; code++) {
        assert_int_not_equal(status_from_raft(code), STATUS_OK);
        /* What refuses a proposal can't have been done. */
        if (status_raft_apply_refused(code)) {
            assert_int_equal(status_class(status_from_raft(code)), STATUS_CLASS_NOT_DONE);
        }
    }
    assert_false(status_raft_apply_refused(RAFT_INVALID));
    assert_false(status_raft_apply_refused(RAFT_IOERR));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_guard__failed_term_or_vote_ends_the_node),
        cmocka_unit_test(test_guard__failed_truncation_ends_the_node),
        cmocka_unit_test(test_guard__failed_append_call_leaves_memory_sound_L9),
        cmocka_unit_test(test_guard__owner_may_fail_it_once),
        cmocka_unit_test(test_guard__completions_after_a_failure_are_parked),
        cmocka_unit_test(test_guard__failed_write_ends_the_node_L7),
        cmocka_unit_test(test_guard__failed_write_misnumbers_the_log_without_L7),
        cmocka_unit_test(test_guard__failed_snapshot_ends_the_node_L7),
        cmocka_unit_test(test_guard__failed_snapshot_leaves_the_node_stuck_without_L7),
        cmocka_unit_test(test_guard__write_that_hangs_two_seconds_ends_the_node_F3),
        cmocka_unit_test(test_guard__slow_writes_one_after_the_other_are_no_hang),
        cmocka_unit_test(test_guard__stopped_process_is_no_hanging_disk),
        cmocka_unit_test(test_guard__stalled_fake_disk_is_seen_and_a_full_one_is_not_K4),
        cmocka_unit_test(test_guard__failed_write_of_raft_uv_ends_the_node_before_it_crashes_L6),
        cmocka_unit_test(test_status_map__codes_have_the_class_that_retries_rely_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
