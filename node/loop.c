/* One turn, as libuv runs it, and what happens where:
 *
 *   uv timers    libraft's tick; our alarm, which does nothing but end the block
 *   prepare      turn ends, for what those timers started; the alarm is set
 *   poll         blocks; then input
 *   check        our timers that are due, then turn ends
 *
 * libuv runs prepare and check handles in the reverse order of their start, and ours are started
 * before anybody else can have one: so they run last, after libraft has completed its requests in
 * handles of its own (tests/node/test_loop.c pins that).
 *
 * All our timers hang on one uv timer, the alarm. It counts a clock that stands still during
 * suspend, therefore it is never set further than LOOP_TICK_NS away; that also bounds how much of a
 * stall can hide behind a block that was allowed to last. */
#include "node/loop.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <uv.h>

#include "fsm/base/heap.h"
#include "fsm/base/list.h"
#include "fsm/base/units.h"

#define LOOP_TICK_NS (50 * NS_PER_MS)
#define LOOP_LATE_NS (10 * NS_PER_MS) /* a wake-up later than this after its time-out is a stall */
#define LOOP_TURN_ENDS_MAX 16u
#define LOOP_OWN_HANDLES 5u

struct turn_end {
    void (*cb)(void *ctx, uint64_t now_ns);
    void *ctx;
};

/* Behind a pointer, so that asking for the time leaves the loop itself constant. */
struct loop_clock {
    bool valid;
    bool blocked; /* between prepare and the first look at the clock after it */
    uint64_t now_ns;
    uint64_t wake_ns;
    uint64_t block_ns;   /* when the last block began */
    uint64_t timeout_ns; /* how long it was allowed to last */
    uint64_t busy_ns;    /* how long the turn before it took */
    uint64_t stall_ns;   /* the longest since it was last asked for */
};

struct loop {
    uv_loop_t uv;
    uv_prepare_t prepare;
    uv_check_t check;
    uv_timer_t alarm;
    uv_signal_t signals[2];
    bool signals_open;
    bool again;
    struct loop_clock *clock;
    struct heap timers;
    uint64_t round; /* of due timers */
    uint64_t timer_sequence;
    struct turn_end turn_ends[LOOP_TURN_ENDS_MAX];
    unsigned turn_end_count;
    void (*on_signal)(void *ctx, int signal_number);
    void *signal_ctx;
};

struct loop_timer {
    struct heap_node node;
    struct loop *loop;
    uint64_t at_ns;
    uint64_t sequence; /* of setting: equal times keep the order in which they were set */
    uint64_t round;    /* in which it ran last: once a turn at most */
    void (*cb)(void *ctx, uint64_t now_ns);
    void *ctx;
};

static void on_prepare(uv_prepare_t *handle);
static void on_check(uv_check_t *handle);
static void on_alarm(uv_timer_t *handle);
static void on_uv_signal(uv_signal_t *handle, int signal_number);
static void look_at_clock(struct loop_clock *clock);
static void run_due_timers(struct loop *loop, uint64_t now_ns);
static void run_turn_ends(struct loop *loop, uint64_t now_ns);
static void set_alarm(struct loop *loop, uint64_t now_ns);
static bool timer_before(const struct heap_node *a, const struct heap_node *b);
static void check_closing(uv_handle_t *handle, void *arg);
static unsigned own_handles(struct loop *loop, uv_handle_t *out_handles[LOOP_OWN_HANDLES]);
static void block_sigpipe(void);

enum status loop_create(struct loop **out_loop)
{
    struct loop *loop = calloc(1, sizeof *loop);
    struct loop_clock *clock = calloc(1, sizeof *clock);
    CHECK(loop != NULL && clock != NULL);
    loop->clock = clock;
    if (uv_loop_init(&loop->uv) != 0) {
        free(clock);
        free(loop);
        return STATUS_IO;
    }
    heap_init(&loop->timers, timer_before);

    CHECK(uv_prepare_init(&loop->uv, &loop->prepare) == 0);
    CHECK(uv_check_init(&loop->uv, &loop->check) == 0);
    CHECK(uv_timer_init(&loop->uv, &loop->alarm) == 0);
    loop->prepare.data = loop;
    loop->check.data = loop;
    loop->alarm.data = loop;
    CHECK(uv_prepare_start(&loop->prepare, on_prepare) == 0);
    CHECK(uv_check_start(&loop->check, on_check) == 0);
    block_sigpipe();
    *out_loop = loop;
    return STATUS_OK;
}

void loop_destroy(struct loop *loop)
{
    CHECK(heap_min(&loop->timers) == NULL);
    CHECK(uv_loop_close(&loop->uv) == 0);
    heap_deinit(&loop->timers);
    free(loop->clock);
    free(loop);
}

struct uv_loop_s *loop_uv(struct loop *loop)
{
    return &loop->uv;
}

uint64_t loop_now_ns(const struct loop *loop)
{
    look_at_clock(loop->clock);
    return loop->clock->now_ns;
}

uint64_t loop_refresh_ns(struct loop *loop)
{
    struct loop_clock *clock = loop->clock;
    look_at_clock(clock); /* first how long it was away */
    clock->now_ns = loop_clock_ns();
    clock->stall_ns = max_u64(clock->stall_ns, clock->now_ns - clock->wake_ns);
    return clock->now_ns;
}

uint64_t loop_clock_ns(void)
{
    struct timespec now;
    CHECK(clock_gettime(CLOCK_BOOTTIME, &now) == 0);
    return (uint64_t)now.tv_sec * MS_PER_S * NS_PER_MS + (uint64_t)now.tv_nsec;
}

void loop_run(struct loop *loop)
{
    block_sigpipe(); /* the thread may be another one than the creator's */
    *loop->clock = (struct loop_clock){.stall_ns = loop->clock->stall_ns};
    (void)uv_run(&loop->uv, UV_RUN_DEFAULT);
}

void loop_stop(struct loop *loop)
{
    uv_stop(&loop->uv);
}

void loop_add_turn_end(struct loop *loop, void (*cb)(void *ctx, uint64_t now_ns), void *ctx)
{
    CHECK(loop->turn_end_count < LOOP_TURN_ENDS_MAX);
    loop->turn_ends[loop->turn_end_count++] = (struct turn_end){.cb = cb, .ctx = ctx};
}

void loop_turn_again(struct loop *loop)
{
    loop->again = true;
}

uint64_t loop_stall_ns(struct loop *loop)
{
    look_at_clock(loop->clock);
    uint64_t stall_ns = loop->clock->stall_ns;
    loop->clock->stall_ns = 0;
    return stall_ns;
}

struct loop_timer *loop_timer_create(struct loop *loop, void (*cb)(void *ctx, uint64_t now_ns),
                                     void *ctx)
{
    struct loop_timer *timer = calloc(1, sizeof *timer);
    CHECK(timer != NULL);
    heap_node_init(&timer->node);
    timer->loop = loop;
    timer->cb = cb;
    timer->ctx = ctx;
    timer->at_ns = UINT64_MAX;
    return timer;
}

void loop_timer_set(struct loop_timer *timer, uint64_t at_ns)
{
    struct heap *timers = &timer->loop->timers;
    if (heap_contains(&timer->node)) {
        if (timer->at_ns == at_ns) {
            return;
        }
        heap_remove(timers, &timer->node);
    }
    timer->at_ns = at_ns;
    if (at_ns != UINT64_MAX) {
        timer->sequence = ++timer->loop->timer_sequence;
        heap_insert(timers, &timer->node);
    }
}

void loop_timer_destroy(struct loop_timer *timer)
{
    if (timer == NULL) {
        return;
    }
    if (heap_contains(&timer->node)) {
        heap_remove(&timer->loop->timers, &timer->node);
    }
    free(timer);
}

void loop_catch_signals(struct loop *loop, void (*cb)(void *ctx, int signal_number), void *ctx)
{
    static const int numbers[2] = {SIGTERM, SIGINT};
    CHECK(!loop->signals_open);
    loop->signals_open = true;
    loop->on_signal = cb;
    loop->signal_ctx = ctx;
    for (unsigned i = 0; i < 2; i++) {
        CHECK(uv_signal_init(&loop->uv, &loop->signals[i]) == 0);
        loop->signals[i].data = loop;
        CHECK(uv_signal_start(&loop->signals[i], on_uv_signal, numbers[i]) == 0);
    }
}

void loop_close(struct loop *loop)
{
    uv_walk(&loop->uv, check_closing, loop);
    uv_handle_t *own[LOOP_OWN_HANDLES];
    unsigned count = own_handles(loop, own);
    for (unsigned i = 0; i < count; i++) {
        uv_close(own[i], NULL);
    }
    CHECK(uv_run(&loop->uv, UV_RUN_DEFAULT) == 0);
}

static void on_prepare(uv_prepare_t *handle)
{
    struct loop *loop = handle->data;
    struct loop_clock *clock = loop->clock;
    loop->again = false;
    uint64_t now_ns = loop_refresh_ns(loop);
    run_turn_ends(loop, now_ns);
    set_alarm(loop, now_ns);

    int timeout_ms = uv_backend_timeout(&loop->uv);
    clock->timeout_ns = timeout_ms < 0 ? UINT64_MAX / 2 : ms_to_ns((uint64_t)timeout_ms);
    clock->block_ns = loop_clock_ns();
    clock->busy_ns = clock->wake_ns == 0 ? 0 : clock->block_ns - clock->wake_ns;
    clock->blocked = true;
    clock->valid = false;
}

static void on_check(uv_check_t *handle)
{
    struct loop *loop = handle->data;
    uint64_t now_ns = loop_refresh_ns(loop);
    run_due_timers(loop, now_ns);
    run_turn_ends(loop, now_ns);
    loop->clock->valid = false;
}

/* Sets nothing: whatever is due runs in the check phase, after input. */
static void on_alarm(uv_timer_t *handle)
{
    (void)handle;
}

static void on_uv_signal(uv_signal_t *handle, int signal_number)
{
    struct loop *loop = handle->data;
    loop->on_signal(loop->signal_ctx, signal_number);
}

/* Read the clock unless this wake-up has read it already; the first look after a block tells how
 * long the loop was away. */
static void look_at_clock(struct loop_clock *clock)
{
    if (clock->valid) {
        return;
    }
    clock->now_ns = loop_clock_ns();
    clock->valid = true;
    if (!clock->blocked) {
        if (clock->wake_ns == 0) {
            clock->wake_ns = clock->now_ns;
        }
        return;
    }
    clock->blocked = false;
    uint64_t block_ns = clock->now_ns - clock->block_ns;
    uint64_t gap_ns = clock->busy_ns;
    if (block_ns > clock->timeout_ns + LOOP_LATE_NS) {
        gap_ns += block_ns;
    }
    clock->stall_ns = max_u64(clock->stall_ns, gap_ns);
    clock->wake_ns = clock->now_ns;
}

static void run_due_timers(struct loop *loop, uint64_t now_ns)
{
    loop->round++;
    for (;;) {
        struct heap_node *node = heap_min(&loop->timers);
        if (node == NULL) {
            return;
        }
        struct loop_timer *timer = CONTAINER_OF(node, struct loop_timer, node);
        if (timer->at_ns > now_ns || timer->round == loop->round) {
            return;
        }
        heap_remove(&loop->timers, node);
        timer->at_ns = UINT64_MAX;
        timer->round = loop->round;
        timer->cb(timer->ctx, now_ns);
    }
}

static void run_turn_ends(struct loop *loop, uint64_t now_ns)
{
    for (unsigned i = 0; i < loop->turn_end_count; i++) {
        loop->turn_ends[i].cb(loop->turn_ends[i].ctx, now_ns);
    }
}

static void set_alarm(struct loop *loop, uint64_t now_ns)
{
    uint64_t wait_ns = LOOP_TICK_NS;
    struct heap_node *node = heap_min(&loop->timers);
    if (node != NULL) {
        struct loop_timer *timer = CONTAINER_OF(node, struct loop_timer, node);
        wait_ns = min_u64(wait_ns, sub_or_zero_u64(timer->at_ns, now_ns));
    }
    if (loop->again) {
        wait_ns = 0;
    }
    CHECK(uv_timer_start(&loop->alarm, on_alarm, ns_to_ms_ceil(wait_ns), 0) == 0);
}

static bool timer_before(const struct heap_node *a, const struct heap_node *b)
{
    const struct loop_timer *left = (const struct loop_timer *)(const void *)a;
    const struct loop_timer *right = (const struct loop_timer *)(const void *)b;
    if (left->at_ns != right->at_ns) {
        return left->at_ns < right->at_ns;
    }
    return left->sequence < right->sequence;
}

static void check_closing(uv_handle_t *handle, void *arg)
{
    uv_handle_t *own[LOOP_OWN_HANDLES];
    unsigned count = own_handles(arg, own);
    for (unsigned i = 0; i < count; i++) {
        if (handle == own[i]) {
            return;
        }
    }
    CHECK(uv_is_closing(handle));
}

static unsigned own_handles(struct loop *loop, uv_handle_t *out_handles[LOOP_OWN_HANDLES])
{
    unsigned count = 0;
    out_handles[count++] = (uv_handle_t *)&loop->prepare;
    out_handles[count++] = (uv_handle_t *)&loop->check;
    out_handles[count++] = (uv_handle_t *)&loop->alarm;
    for (unsigned i = 0; i < 2 && loop->signals_open; i++) {
        out_handles[count++] = (uv_handle_t *)&loop->signals[i];
    }
    return count;
}

/* libuv writes to sockets without MSG_NOSIGNAL. */
static void block_sigpipe(void)
{
    sigset_t set;
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGPIPE);
    CHECK(pthread_sigmask(SIG_BLOCK, &set, NULL) == 0);
}

_Static_assert(offsetof(struct loop_timer, node) == 0, "timer_before takes the node for the timer");
