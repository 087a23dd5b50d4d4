/* The loop on real libuv: who runs after whom in one turn, timers at both sides of their time,
 * stalls, signals, and that nothing is left open. */
#include "node/loop.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/node/drive.h"

struct trace {
    struct loop *loop;
    char text[256]; /* one letter for each thing that happened */
    uint64_t now_ns;
    struct loop_timer *timer;
    struct loop_timer *other;
    bool done;
};

static void note(struct trace *trace, char letter)
{
    size_t len = strlen(trace->text);
    if (len + 1 < sizeof trace->text) {
        trace->text[len] = letter;
        trace->text[len + 1] = '\0';
    }
}

static int setup(void **state)
{
    static struct trace trace;
    trace = (struct trace){0};
    assert_int_equal(loop_create(&trace.loop), STATUS_OK);
    *state = &trace;
    return 0;
}

static int teardown(void **state)
{
    struct trace *trace = *state;
    loop_close(trace->loop);
    loop_destroy(trace->loop);
    return 0;
}

static void on_turn_end(void *ctx, uint64_t now_ns)
{
    struct trace *trace = ctx;
    trace->now_ns = now_ns;
    note(trace, 'e');
}

static void on_second_turn_end(void *ctx, uint64_t now_ns)
{
    (void)now_ns;
    note(ctx, 'E');
}

static void on_foreign_prepare(uv_prepare_t *handle)
{
    note(handle->data, 'p');
}

static void on_foreign_check(uv_check_t *handle)
{
    note(handle->data, 'c');
}

static void on_foreign_timer(uv_timer_t *handle)
{
    note(handle->data, 't');
}

static void on_foreign_async(uv_async_t *handle)
{
    note(handle->data, 'i');
}

/* The foreign handles of each phase are followed by our turn ends, and nothing else comes
 * between. */
static void assert_turn_ends_are_last(const char *text)
{
    for (const char *at = text; *at != '\0'; at++) {
        if (*at == 'p' || *at == 'c') {
            assert_memory_equal(at + 1, "eE", 2);
        }
    }
    size_t len = strlen(text);
    assert_true(len >= 2);
    assert_string_equal(text + len - 2, "eE");
}

/* libraft completes its requests in prepare and check handles of its own. That the loop's run after
 * all of them rests on libuv's order, which an upgrade may change: then this test tells us. */
static void test_loop__turn_ends_run_after_foreign_handles_timers_and_input(void **state)
{
    struct trace *trace = *state;
    struct uv_loop_s *uv = loop_uv(trace->loop);
    uv_prepare_t prepare = {.data = trace};
    uv_check_t check = {.data = trace};
    uv_timer_t timer = {.data = trace};
    uv_async_t async = {.data = trace};
    uv_prepare_init(uv, &prepare);
    uv_check_init(uv, &check);
    uv_timer_init(uv, &timer);
    uv_async_init(uv, &async, on_foreign_async);
    loop_add_turn_end(trace->loop, on_turn_end, trace);
    loop_add_turn_end(trace->loop, on_second_turn_end, trace);
    uv_prepare_start(&prepare, on_foreign_prepare);
    uv_check_start(&check, on_foreign_check);
    uv_timer_start(&timer, on_foreign_timer, 0, 0);
    uv_async_send(&async);

    /* libuv runs timers at the beginning of a turn, later versions at its end. */
    (void)uv_run(uv, UV_RUN_NOWAIT);
    (void)uv_run(uv, UV_RUN_NOWAIT);
    assert_turn_ends_are_last(trace->text);
    assert_non_null(strchr(trace->text, 't'));
    assert_non_null(strchr(trace->text, 'i'));

    /* Also for handles that were stopped and started again. */
    uv_check_stop(&check);
    uv_check_start(&check, on_foreign_check);
    uv_async_send(&async);
    trace->text[0] = '\0';
    (void)uv_run(uv, UV_RUN_NOWAIT);
    assert_string_equal(trace->text, "peEiceE");

    uv_close((uv_handle_t *)&prepare, NULL);
    uv_close((uv_handle_t *)&check, NULL);
    uv_close((uv_handle_t *)&timer, NULL);
    uv_close((uv_handle_t *)&async, NULL);
    (void)uv_run(uv, UV_RUN_NOWAIT);
}

static void on_timer(void *ctx, uint64_t now_ns)
{
    struct trace *trace = ctx;
    trace->now_ns = now_ns;
    note(trace, 'T');
    trace->done = true;
}

static void test_loop__a_timer_never_fires_early(void **state)
{
    struct trace *trace = *state;
    trace->timer = loop_timer_create(trace->loop, on_timer, trace);
    for (uint64_t ms = 0; ms < 4; ms++) {
        uint64_t at_ns = loop_clock_ns() + ms_to_ns(ms) + 300000; /* not on a millisecond */
        trace->done = false;
        loop_timer_set(trace->timer, at_ns);
        assert_true(drive(trace->loop, drive_flag, &trace->done));
        assert_true(trace->now_ns >= at_ns);
        assert_true(loop_clock_ns() >= at_ns);
    }
    loop_timer_destroy(trace->timer);
}

static void test_loop__a_timer_runs_after_the_input_of_its_turn(void **state)
{
    struct trace *trace = *state;
    struct uv_loop_s *uv = loop_uv(trace->loop);
    uv_async_t async = {.data = trace};
    uv_async_init(uv, &async, on_foreign_async);
    loop_add_turn_end(trace->loop, on_turn_end, trace);
    trace->timer = loop_timer_create(trace->loop, on_timer, trace);
    loop_timer_set(trace->timer, loop_clock_ns());
    uv_async_send(&async);
    (void)uv_run(uv, UV_RUN_NOWAIT);
    assert_string_equal(trace->text, "eiTe");
    loop_timer_destroy(trace->timer);
    uv_close((uv_handle_t *)&async, NULL);
    (void)uv_run(uv, UV_RUN_NOWAIT);
}

static void on_timer_again(void *ctx, uint64_t now_ns)
{
    struct trace *trace = ctx;
    note(trace, 'A');
    loop_timer_set(trace->timer, now_ns); /* due at once, for ever */
}

static void test_loop__a_timer_that_is_always_due_runs_once_a_turn(void **state)
{
    struct trace *trace = *state;
    trace->timer = loop_timer_create(trace->loop, on_timer_again, trace);
    trace->other = loop_timer_create(trace->loop, on_timer, trace);
    uint64_t now_ns = loop_clock_ns();
    loop_timer_set(trace->timer, now_ns);
    loop_timer_set(trace->other, now_ns);
    (void)uv_run(loop_uv(trace->loop), UV_RUN_NOWAIT);
    assert_string_equal(trace->text, "AT");
    (void)uv_run(loop_uv(trace->loop), UV_RUN_NOWAIT);
    assert_string_equal(trace->text, "ATA");
    loop_timer_destroy(trace->timer);
    loop_timer_destroy(trace->other);
}

static void test_loop__a_timer_set_off_does_not_fire(void **state)
{
    struct trace *trace = *state;
    trace->timer = loop_timer_create(trace->loop, on_timer, trace);
    loop_timer_set(trace->timer, loop_clock_ns());
    loop_timer_set(trace->timer, UINT64_MAX);
    drive_for(trace->loop, 5);
    assert_string_equal(trace->text, "");
    loop_timer_destroy(trace->timer);
}

static void on_timer_suicide(void *ctx, uint64_t now_ns)
{
    (void)now_ns;
    struct trace *trace = ctx;
    loop_timer_destroy(trace->timer);
    trace->done = true;
}

static void test_loop__a_timer_may_destroy_itself(void **state)
{
    struct trace *trace = *state;
    trace->timer = loop_timer_create(trace->loop, on_timer_suicide, trace);
    loop_timer_set(trace->timer, loop_clock_ns());
    assert_true(drive(trace->loop, drive_flag, &trace->done));
}

static void on_turn_end_again(void *ctx, uint64_t now_ns)
{
    (void)now_ns;
    struct trace *trace = ctx;
    note(trace, 'e');
    if (strlen(trace->text) < 20) {
        loop_turn_again(trace->loop);
    }
}

static void test_loop__turn_again_keeps_it_from_blocking(void **state)
{
    struct trace *trace = *state;
    loop_add_turn_end(trace->loop, on_turn_end_again, trace);
    uint64_t start_ns = loop_clock_ns();
    while (strlen(trace->text) < 20) {
        (void)uv_run(loop_uv(trace->loop), UV_RUN_ONCE);
    }
    /* Blocking would take 50 ms for each of ten turns. */
    assert_true(loop_clock_ns() - start_ns < ms_to_ns(450));
}

static void busy_for(uint64_t ms)
{
    uint64_t end_ns = loop_clock_ns() + ms_to_ns(ms);
    while (loop_clock_ns() < end_ns) {
    }
}

static void on_timer_busy(void *ctx, uint64_t now_ns)
{
    (void)now_ns;
    struct trace *trace = ctx;
    busy_for(80);
    trace->done = true;
}

/* Two blocks of 50 ms are no stall. On a machine with other work some are: one that is not is
 * enough. */
static bool idles_without_stall(struct trace *trace)
{
    for (unsigned i = 0; i < 50; i++) {
        (void)loop_stall_ns(trace->loop);
        drive_for(trace->loop, 100);
        if (loop_stall_ns(trace->loop) < ms_to_ns(45)) {
            return true;
        }
    }
    return false;
}

static void test_loop__a_long_callback_is_a_stall_and_idleness_is_none(void **state)
{
    struct trace *trace = *state;
    assert_true(idles_without_stall(trace));

    trace->timer = loop_timer_create(trace->loop, on_timer_busy, trace);
    loop_timer_set(trace->timer, loop_clock_ns());
    assert_true(drive(trace->loop, drive_flag, &trace->done));
    drive_for(trace->loop, 1);
    assert_true(loop_stall_ns(trace->loop) >= ms_to_ns(80));
    assert_true(loop_stall_ns(trace->loop) < ms_to_ns(80)); /* told once */
    loop_timer_destroy(trace->timer);
}

struct input {
    struct trace *trace;
    uint64_t before_ns;
    uint64_t after_ns;
    uint64_t stall_ns;
};

static void on_input_busy(uv_async_t *handle)
{
    struct input *input = handle->data;
    struct loop *loop = input->trace->loop;
    (void)loop_now_ns(loop);
    (void)loop_stall_ns(loop);
    busy_for(80);
    input->before_ns = loop_now_ns(loop);
    input->after_ns = loop_refresh_ns(loop);
    input->stall_ns = loop_stall_ns(loop);
    input->trace->done = true;
}

/* What is read later in the same turn is judged by the time that it is then. */
static void test_loop__a_stall_within_a_turn_is_seen_when_the_clock_is_refreshed(void **state)
{
    struct trace *trace = *state;
    struct input input = {.trace = trace};
    uv_async_t async = {.data = &input};
    loop_add_turn_end(trace->loop, on_turn_end, trace);
    uv_async_init(loop_uv(trace->loop), &async, on_input_busy);
    uv_async_send(&async);
    assert_true(drive(trace->loop, drive_flag, &trace->done));
    assert_true(input.after_ns - input.before_ns >= ms_to_ns(80));
    assert_true(input.stall_ns >= ms_to_ns(80));
    assert_true(trace->now_ns >= input.after_ns); /* the turn's end too */
    uv_close((uv_handle_t *)&async, NULL);
    (void)uv_run(loop_uv(trace->loop), UV_RUN_NOWAIT);
}

/* The process is stopped while its loop blocks: nothing of ours runs long, yet what arrived
 * meanwhile is old. */
static void test_loop__a_stopped_process_is_a_stall(void **state)
{
    struct trace *trace = *state;
    drive_for(trace->loop, 1); /* before its first turn nothing can be late */
    pid_t self = getpid();
    pid_t helper = fork();
    assert_true(helper >= 0);
    if (helper == 0) {
        (void)kill(self, SIGSTOP);
        busy_for(300);
        (void)kill(self, SIGCONT);
        _exit(0);
    }
    uint64_t stall_ns = 0;
    uint64_t end_ns = loop_clock_ns() + ms_to_ns(DRIVE_MS);
    while (stall_ns < ms_to_ns(240) && loop_clock_ns() < end_ns) {
        (void)uv_run(loop_uv(trace->loop), UV_RUN_ONCE);
        stall_ns = loop_stall_ns(trace->loop);
    }
    assert_true(stall_ns >= ms_to_ns(240));
    assert_int_equal(waitpid(helper, NULL, 0), helper);
}

static void on_signal(void *ctx, int signal_number)
{
    struct trace *trace = ctx;
    note(trace, signal_number == SIGTERM ? 'T' : 'I');
    trace->done = true;
}

static void test_loop__catches_both_signals_each_time(void **state)
{
    struct trace *trace = *state;
    loop_catch_signals(trace->loop, on_signal, trace);
    static const int numbers[] = {SIGTERM, SIGINT, SIGTERM};
    for (unsigned i = 0; i < 3; i++) {
        trace->done = false;
        assert_int_equal(raise(numbers[i]), 0);
        assert_true(drive(trace->loop, drive_flag, &trace->done));
    }
    assert_string_equal(trace->text, "TIT");
}

static void test_loop__a_broken_pipe_does_not_kill(void **state)
{
    (void)state;
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    (void)close(fds[0]);
    assert_int_equal(write(fds[1], "x", 1), -1);
    (void)close(fds[1]);
}

static void on_stop(void *ctx, uint64_t now_ns)
{
    (void)now_ns;
    struct trace *trace = ctx;
    loop_stop(trace->loop);
}

static void test_loop__runs_until_it_is_stopped(void **state)
{
    struct trace *trace = *state;
    trace->timer = loop_timer_create(trace->loop, on_stop, trace);
    loop_timer_set(trace->timer, loop_clock_ns() + ms_to_ns(1));
    loop_run(trace->loop);
    loop_timer_set(trace->timer, loop_clock_ns() + ms_to_ns(1));
    loop_run(trace->loop); /* and again */
    loop_timer_destroy(trace->timer);
}

/* The signal that ended the child, 0 when it ended by itself. */
static int signal_of_child(void (*body)(void))
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        /* cmocka catches what a CHECK raises; here it has to end the process. */
        (void)signal(SIGILL, SIG_DFL);
        (void)signal(SIGTRAP, SIG_DFL);
        body();
        _exit(0);
    }
    int how = 0;
    assert_int_equal(waitpid(child, &how, 0), child);
    return WIFSIGNALED(how) ? WTERMSIG(how) : 0;
}

static void close_with_open_handle(void)
{
    struct loop *loop;
    uv_timer_t timer;
    if (loop_create(&loop) == STATUS_OK) {
        uv_timer_init(loop_uv(loop), &timer);
        loop_close(loop);
    }
}

static void close_with_closing_handle(void)
{
    struct loop *loop;
    uv_timer_t timer;
    if (loop_create(&loop) == STATUS_OK) {
        uv_timer_init(loop_uv(loop), &timer);
        uv_close((uv_handle_t *)&timer, NULL);
        loop_close(loop);
        loop_destroy(loop);
    }
}

static void test_loop__does_not_close_over_somebody_elses_handle(void **state)
{
    (void)state;
    assert_int_not_equal(signal_of_child(close_with_open_handle), 0);
    assert_int_equal(signal_of_child(close_with_closing_handle), 0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_loop__turn_ends_run_after_foreign_handles_timers_and_input),
        TEST(test_loop__a_timer_never_fires_early),
        TEST(test_loop__a_timer_runs_after_the_input_of_its_turn),
        TEST(test_loop__a_timer_that_is_always_due_runs_once_a_turn),
        TEST(test_loop__a_timer_set_off_does_not_fire),
        TEST(test_loop__a_timer_may_destroy_itself),
        TEST(test_loop__turn_again_keeps_it_from_blocking),
        TEST(test_loop__a_long_callback_is_a_stall_and_idleness_is_none),
        TEST(test_loop__a_stall_within_a_turn_is_seen_when_the_clock_is_refreshed),
        TEST(test_loop__a_stopped_process_is_a_stall),
        TEST(test_loop__catches_both_signals_each_time),
        TEST(test_loop__a_broken_pipe_does_not_kill),
        TEST(test_loop__runs_until_it_is_stopped),
        TEST(test_loop__does_not_close_over_somebody_elses_handle),
    };
#undef TEST
    return cmocka_run_group_tests(tests, NULL, NULL);
}
