/* The guard: how.
 *
 * A struct raft_io of our own is what libraft gets; each of its functions does its part and calls
 * the backend's. The backend keeps its own struct raft_io, because raft_uv finds its memory through
 * it and writes its capacity into it. Three things must be carried over between the two:
 *
 *   - `data`: raft_uv calls back with its own raft_io and fires libraft's completed requests
 *     through its `data`. We set it to libraft's object in init() and to NULL when the guard fails,
 *     which also silences raft_uv.
 *   - `capacity`: libraft reads it right after it has asked for the time (legacyHandleEvent), so
 *     time() copies it.
 *   - `errmsg`: copied where an error is passed on.
 *
 * Every request of libraft that the backend completes later has a wrapper of ours in a list. After
 * a failure the backend's completions are parked there and libraft hears nothing of them; only
 * close() cancels them, which happens in a simulation alone.
 *
 * Here are start and end, failure, turns and the watchdog. Term, vote and entries are written in
 * guard_log.c, snapshots written and read in guard_snapshots.c; messages go out in guard_send.c and
 * come in in guard_receive.c; membership and a lost leader are in guard_election.c. */
#include "raft/guard_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fsm/base/units.h"
#include "raft/status_map.h"

#define WATCH_STEP_NS_MAX 200000000u /* a longer pause between two looks was a stall of ours */

void *guard_alloc(size_t len)
{
    void *memory = calloc(1, len);
    CHECK(memory != NULL);
    return memory;
}

/* --- failing ---------------------------------------------------------------------------------- */

void guard_fail(struct guard *guard, enum status status, const char *detail)
{
    CHECK(status != STATUS_OK);
    if (guard->failed) {
        return;
    }
    guard->failed = true;
    guard->backend->data = NULL;
    guard->options.on_fatal(guard->options.ctx, status,
                            detail != NULL ? detail : status_text(status));
}

/* A call or completion of the backend ended with `code`. */
void guard_fail_io(struct guard *guard, int code, const char *what)
{
    char detail[RAFT_ERRMSG_BUF_SIZE + 128];
    (void)snprintf(detail, sizeof(detail), "%s failed: %s (%s)", what, raft_strerror(code),
                   guard->backend->errmsg);
    guard_fail(guard, status_from_raft(code), detail);
}

/* --- start and end ---------------------------------------------------------------------------- */

/* Pass an error of the backend on, with its text. */
static int guard_pass(struct guard *guard, int code)
{
    if (code != 0) {
        _Static_assert(sizeof(guard->io.errmsg) == sizeof(guard->backend->errmsg), "one type");
        memcpy(guard->io.errmsg, guard->backend->errmsg, sizeof(guard->io.errmsg));
        guard->io.errmsg[sizeof(guard->io.errmsg) - 1] = '\0';
    }
    return code;
}

static int guard_io_init(struct raft_io *io, raft_id id, const char *address)
{
    struct guard *guard = guard_of(io);
    guard->backend->data = io->data;
    int code = guard_pass(guard, guard->backend->init(guard->backend, id, address));
    io->capacity = guard->backend->capacity;
    return code;
}

static int guard_io_load(struct raft_io *io, raft_term *term, raft_id *voted_for,
                         struct raft_snapshot **snapshot, raft_index *start_index,
                         struct raft_entry *entries[], size_t *n_entries)
{
    struct guard *guard = guard_of(io);
    int code = guard->backend->load(guard->backend, term, voted_for, snapshot, start_index, entries,
                                    n_entries);
    if (code != 0) {
        return guard_pass(guard, code);
    }
    guard->next_index = *start_index + *n_entries;
    guard->persisted_index = guard->next_index - 1;
    return 0;
}

/* The backend's timer; it knows its own raft_io only, and `data` leads to libraft and to us. */
static void on_backend_tick(struct raft_io *backend)
{
    struct raft *raft = backend->data;
    if (raft != NULL) {
        guard_tick(guard_of(raft->io));
    }
}

/* A backend that receives messages by itself: none of ours does. */
static void on_backend_recv(struct raft_io *backend, struct raft_message *message)
{
    struct raft *raft = backend->data;
    if (raft != NULL) {
        (void)guard_receive(guard_of(raft->io), message);
    } else {
        guard_message_clear(message);
    }
}

static int guard_io_start(struct raft_io *io, unsigned msecs, raft_io_tick_cb tick,
                          raft_io_recv_cb recv)
{
    struct guard *guard = guard_of(io);
    int code = guard->backend->start(guard->backend, msecs, on_backend_tick, on_backend_recv);
    if (code != 0) {
        return guard_pass(guard, code);
    }
    guard->tick = tick;
    guard->recv = recv;
    return 0;
}

static int guard_io_bootstrap(struct raft_io *io, const struct raft_configuration *configuration)
{
    struct guard *guard = guard_of(io);
    return guard_pass(guard, guard->backend->bootstrap(guard->backend, configuration));
}

static int guard_io_recover(struct raft_io *io, const struct raft_configuration *configuration)
{
    struct guard *guard = guard_of(io);
    return guard_pass(guard, guard->backend->recover(guard->backend, configuration));
}

static raft_time guard_io_time(struct raft_io *io)
{
    struct guard *guard = guard_of(io);
    io->capacity = guard->backend->capacity;
    return guard->backend->time(guard->backend);
}

static int guard_io_random(struct raft_io *io, int min, int max)
{
    struct guard *guard = guard_of(io);
    return guard->backend->random(guard->backend, min, max);
}

/* What the backend completed after the failure, and libraft has not heard of. */
static void guard_cancel_parked(struct guard *guard)
{
    struct list *link;
    while ((link = list_pop(&guard->appends)) != NULL) {
        struct guard_append *append = CONTAINER_OF(link, struct guard_append, link);
        struct raft_io_append *outer = append->outer;
        CHECK(append->parked);
        free(append);
        outer->cb(outer, RAFT_CANCELED);
    }
    while ((link = list_pop(&guard->puts)) != NULL) {
        struct guard_put *put = CONTAINER_OF(link, struct guard_put, link);
        struct raft_io_snapshot_put *outer = put->outer;
        CHECK(put->parked);
        free(put);
        outer->cb(outer, RAFT_CANCELED);
    }
}

/* The backend has completed everything of its own; a snapshot that was being read has led to a send
 * that is still with us. */
static void on_backend_closed(struct raft_io *backend)
{
    struct raft *raft = backend->data;
    struct guard *guard = guard_of(raft->io);
    guard_cancel_parked(guard);
    guard_flush_sends(guard, RAFT_CANCELED);
    guard->close_cb(&guard->io);
}

static void guard_io_close(struct raft_io *io, raft_io_close_cb cb)
{
    struct guard *guard = guard_of(io);
    guard->closing = true;
    guard->close_cb = cb;
    guard->backend->data = io->data; /* a failed guard had cut it */
    struct list *link;
    while ((link = list_pop(&guard->gets)) != NULL) {
        guard_get_answer_empty(guard, CONTAINER_OF(link, struct guard_get, link));
    }
    guard->get_count = 0;
    if (guard->get_parked) {
        guard_get_answer_empty(guard, guard->get_running);
        guard->get_running = NULL;
        guard->get_parked = false;
    }
    guard_flush_sends(guard, RAFT_CANCELED);
    guard->backend->close(guard->backend, on_backend_closed);
}

/* --- turns and ticks -------------------------------------------------------------------------- */

void guard_tick(struct guard *guard)
{
    if (guard_runs(guard)) {
        guard->tick(&guard->io);
    }
}

void guard_end_turn(struct guard *guard)
{
    if (guard->failed || guard->closing) {
        return;
    }
    (void)guard_durable_index(guard); /* between steps; inside one it could count too much */
    guard_flush_sends(guard, 0);
    guard_serve_gets(guard);
}

/* Whether somebody who keeps the log has not been told of our commit index. */
static bool guard_somebody_lags(struct guard *guard, const struct raft *raft)
{
    for (unsigned idx = 0; idx < raft->configuration.n; idx++) {
        const struct raft_server *server = &raft->configuration.servers[idx];
        if (server->id != raft->id && server->role != RAFT_SPARE &&
            guard_peer(guard, server->id)->commit_announced < raft->commit_index) {
            return true;
        }
    }
    return false;
}

bool guard_notify_commit(struct guard *guard)
{
    struct raft *raft = guard_raft(guard);
    if (!guard_runs(guard) || raft->state != RAFT_LEADER ||
        raft->commit_index <= guard->commit_notified) {
        return false;
    }
    guard->commit_notified = raft->commit_index;
    if (!guard_somebody_lags(guard, raft)) {
        return false;
    }
    /* With a time-out of 0 every follower is due for a heartbeat at this tick. */
    unsigned heartbeat_ms = raft->heartbeat_timeout;
    raft_set_heartbeat_timeout(raft, 0);
    guard_tick(guard);
    if (guard->failed) {
        return false;
    }
    raft_set_heartbeat_timeout(raft, heartbeat_ms);
    guard->stats.commits_notified++;
    return true;
}

void guard_watch(struct guard *guard, uint64_t now_ns, uint64_t oldest_write)
{
    uint64_t step_ns =
        guard->watch_last_ns == 0 ? 0 : sub_or_zero_u64(now_ns, guard->watch_last_ns);
    guard->watch_last_ns = now_ns;
    if (oldest_write == 0 || oldest_write != guard->watched_write) {
        guard->watched_write = oldest_write;
        guard->watched_ns = 0;
        return;
    }
    guard->watched_ns += min_u64(step_ns, WATCH_STEP_NS_MAX);
    if (guard->watched_ns <= guard->options.disk_stall_ns_max || guard->failed ||
        !guard_cures(guard, GUARD_CURE_L6)) {
        return;
    }
    char detail[96];
    (void)snprintf(detail, sizeof(detail), "disk stalled %llu ms",
                   (unsigned long long)ns_to_ms_floor(guard->watched_ns));
    guard_fail(guard, STATUS_IO, detail);
}

/* --- life ------------------------------------------------------------------------------------- */

void guard_options_init(struct guard_options *options)
{
    *options = (struct guard_options){
        .disk_stall_ns_max = GUARD_DISK_STALL_NS_MAX,
        .snapshot_pause_ms = GUARD_SNAPSHOT_PAUSE_MS,
        .cures = GUARD_CURES_ALL,
    };
}

struct guard *guard_create(struct raft_io *backend, const struct guard_options *options)
{
    CHECK(backend->version == 2 && options->on_send != NULL && options->on_fatal != NULL);
    struct guard *guard = guard_alloc(sizeof(*guard));
    guard->backend = backend;
    guard->options = *options;
    guard->next_index = 1;
    list_init(&guard->appends);
    list_init(&guard->puts);
    list_init(&guard->gets);
    guard->io = (struct raft_io){
        .version = 2,
        .capacity = backend->capacity,
        .impl = guard,
        .init = guard_io_init,
        .close = guard_io_close,
        .load = guard_io_load,
        .start = guard_io_start,
        .bootstrap = guard_io_bootstrap,
        .recover = guard_io_recover,
        .set_term = guard_io_set_term,
        .set_vote = guard_io_set_vote,
        .send = guard_io_send,
        .append = guard_io_append,
        .truncate = guard_io_truncate,
        .snapshot_put = guard_io_snapshot_put,
        .snapshot_get = guard_io_snapshot_get,
        .time = guard_io_time,
        .random = guard_io_random,
    };
    return guard;
}

void guard_destroy(struct guard *guard)
{
    CHECK(list_empty(&guard->appends) && list_empty(&guard->puts) && list_empty(&guard->gets));
    free(guard->sends);
    free(guard);
}

struct raft_io *guard_io(struct guard *guard)
{
    return &guard->io;
}

bool guard_failed(const struct guard *guard)
{
    return guard->failed;
}

const struct guard_stats *guard_stats(const struct guard *guard)
{
    return &guard->stats;
}
