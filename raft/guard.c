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
 * close() cancels them, which happens in a simulation alone. */
#include "raft/guard.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fsm/base/list.h"
#include "fsm/base/units.h"
#include "raft/status_map.h"

#define GUARD_PEERS_MAX   128u       /* twice the members that a cluster may have */
#define GUARD_GETS_MAX    8u         /* snapshots wanted by libraft at once; more go unread */
#define WATCH_STEP_NS_MAX 200000000u /* a longer pause between two looks was a stall of ours */

/* An append on its way to the disk. */
struct guard_append {
    struct list link;
    struct raft_io_append inner; /* what the backend sees */
    struct raft_io_append *outer;
    struct guard *guard;
    raft_index last_index; /* of its entries; lowered when they are truncated meanwhile */
    unsigned count;
    size_t len;
    bool parked; /* came back after the guard failed */
};

/* A snapshot on its way to the disk. */
struct guard_put {
    struct list link;
    struct raft_io_snapshot_put inner;
    struct raft_io_snapshot_put *outer;
    struct guard *guard;
    raft_index install_index; /* of a snapshot that replaces the log; 0: one of our own state */
    bool parked;
};

/* A snapshot on its way from the disk to a peer. */
struct guard_get {
    struct list link;
    struct raft_io_snapshot_get inner;
    struct raft_io_snapshot_get *outer;
    struct guard *guard;
};

struct guard_peer {
    raft_id id; /* 0: free */
    bool snapshot_in_flight;
    raft_time snapshot_not_before;
    raft_index commit_announced; /* in the last AppendEntries sent to it */
};

struct guard {
    struct raft_io io;
    struct raft_io *backend;
    struct guard_options options;
    struct guard_stats stats;
    bool failed;
    bool closing;
    raft_io_tick_cb tick; /* NULL until libraft has started */
    raft_io_recv_cb recv;
    raft_io_close_cb close_cb;

    struct raft_io_send **sends; /* done, libraft to be told at the end of the turn */
    size_t send_count;
    size_t send_cap;

    struct list appends; /* in order of submission */
    size_t pending_entries;
    size_t pending_len;
    raft_index next_index;      /* of the next entry to be appended */
    raft_index persisted_index; /* on disk without a gap */
    raft_index durable_index;

    struct list puts;
    struct list gets; /* not handed to the backend yet */
    size_t get_count;
    struct guard_get *get_running;
    bool get_parked; /* get_running came back after the guard failed */
    raft_time get_not_before;

    /* While libraft handles a message of an older term. */
    bool stale;

    /* While libraft turns a loaded snapshot into a message. */
    bool loaded;
    bool loaded_nothing;
    raft_index loaded_index;
    raft_term loaded_term;

    raft_index commit_notified;
    uint64_t watched_write;
    uint64_t watched_ns;
    uint64_t watch_last_ns;

    struct guard_peer peers[GUARD_PEERS_MAX];
    size_t peer_next; /* slot to give away when all are taken */
};

static struct guard *guard_of(const struct raft_io *io)
{
    return io->impl;
}

static struct raft *guard_raft(const struct guard *guard)
{
    return guard->io.data;
}

static bool guard_cures(const struct guard *guard, enum guard_cure cure)
{
    return (guard->options.cures & (unsigned)cure) != 0;
}

/* Libraft may be entered: it has started, is not closing, and the guard has not failed. */
static bool guard_runs(const struct guard *guard)
{
    return guard->tick != NULL && !guard->failed && !guard->closing;
}

static void *guard_alloc(size_t len)
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
static void guard_fail_io(struct guard *guard, int code, const char *what)
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

static void guard_flush_sends(struct guard *guard, int status)
{
    for (size_t idx = 0; idx < guard->send_count; idx++) {
        struct raft_io_send *request = guard->sends[idx];
        request->cb(request, status);
    }
    guard->send_count = 0;
}

static void guard_get_answer_empty(struct guard *guard, struct guard_get *get);

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

/* --- term, vote, log -------------------------------------------------------------------------- */

static int guard_io_set_term(struct raft_io *io, raft_term term)
{
    struct guard *guard = guard_of(io);
    if (guard->failed) {
        return 0;
    }
    int code = guard->backend->set_term(guard->backend, term);
    if (code != 0) {
        guard_fail_io(guard, code, "writing the term");
    }
    return 0;
}

static int guard_io_set_vote(struct raft_io *io, raft_id server_id)
{
    struct guard *guard = guard_of(io);
    if (guard->failed) {
        return 0;
    }
    int code = guard->backend->set_vote(guard->backend, server_id);
    if (code != 0) {
        guard_fail_io(guard, code, "writing the vote");
    }
    return 0;
}

static void on_append_done(struct raft_io_append *inner, int status)
{
    struct guard_append *append = inner->data;
    struct guard *guard = append->guard;
    if (guard->failed && !guard->closing) {
        append->parked = true;
        return;
    }
    if (status != 0 && !guard->closing && guard_cures(guard, GUARD_CURE_L7)) {
        append->parked = true;
        guard_fail_io(guard, status, "writing entries");
        return;
    }
    struct raft_io_append *outer = append->outer;
    CHECK(guard->pending_entries >= append->count && guard->pending_len >= append->len);
    guard->pending_entries -= append->count;
    guard->pending_len -= append->len;
    if (status == 0 && append->last_index > guard->persisted_index) {
        guard->persisted_index = append->last_index;
    }
    list_remove(&append->link);
    free(append);
    outer->cb(outer, status);
}

static int guard_io_append(struct raft_io *io, struct raft_io_append *req,
                           const struct raft_entry entries[], unsigned n, raft_io_append_cb cb)
{
    struct guard *guard = guard_of(io);
    struct guard_append *append = guard_alloc(sizeof(*append));
    req->cb = cb;
    append->outer = req;
    append->inner.data = append;
    append->guard = guard;
    append->count = n;
    for (unsigned idx = 0; idx < n; idx++) {
        append->len += entries[idx].buf.len;
    }
    guard->next_index += n;
    append->last_index = guard->next_index - 1;
    guard->pending_entries += n;
    guard->pending_len += append->len;
    list_init(&append->link);
    list_append(&guard->appends, &append->link);
    if (guard->failed) {
        append->parked = true;
        return 0;
    }
    int code = guard->backend->append(guard->backend, &append->inner, entries, n, on_append_done);
    if (code != 0) {
        append->parked = true;
        guard_fail_io(guard, code, "appending entries");
    }
    return 0;
}

/* Entries from `index` on are dropped, also those on their way to the disk. */
static void guard_forget_entries(struct guard *guard, raft_index index)
{
    struct list *link;
    struct list *after;
    LIST_FOR_EACH(link, after, &guard->appends)
    {
        struct guard_append *append = CONTAINER_OF(link, struct guard_append, link);
        if (append->last_index >= index) {
            append->last_index = index - 1;
        }
    }
    if (guard->persisted_index >= index) {
        guard->persisted_index = index - 1;
    }
    guard->next_index = index;
}

/* Libraft calls this before every append, mostly for nothing. */
static int guard_io_truncate(struct raft_io *io, raft_index index)
{
    struct guard *guard = guard_of(io);
    if (index < guard->next_index) {
        /* As known before this step: its commit index may already count the entries that are about
         * to replace what is persisted. */
        if (index <= guard->durable_index) {
            guard_fail(guard, STATUS_CORRUPT, "libraft wants to truncate committed entries");
        }
        guard_forget_entries(guard, index);
    }
    if (guard->failed) {
        return 0;
    }
    int code = guard->backend->truncate(guard->backend, index);
    if (code != 0) {
        guard_fail_io(guard, code, "truncating the log");
    }
    return 0;
}

/* --- snapshots -------------------------------------------------------------------------------- */

static void on_put_done(struct raft_io_snapshot_put *inner, int status)
{
    struct guard_put *put = inner->data;
    struct guard *guard = put->guard;
    if (guard->failed && !guard->closing) {
        put->parked = true;
        return;
    }
    if (status != 0 && !guard->closing && guard_cures(guard, GUARD_CURE_L7)) {
        put->parked = true;
        guard_fail_io(guard, status, "writing a snapshot");
        return;
    }
    struct raft_io_snapshot_put *outer = put->outer;
    if (status == 0 && put->install_index > guard->persisted_index) {
        guard->persisted_index = put->install_index;
    }
    list_remove(&put->link);
    free(put);
    outer->cb(outer, status);
}

/* Applying a configuration is one more event for libraft, handled behind the step that applied the
 * entry, and after each event it may take a snapshot. When one step applies two configurations, as
 * after a restart, the snapshot behind the first event covers both entries and still has the
 * configuration from before. Whoever installs it believes in that one, until there is another. */
static bool guard_snapshot_is_between(const struct guard *guard,
                                      const struct raft_snapshot *snapshot)
{
    const struct raft *raft = guard_raft(guard);
    return guard_cures(guard, GUARD_CURE_BETWEEN) && raft->configuration_uncommitted_index != 0 &&
           raft->configuration_uncommitted_index <= snapshot->index;
}

static int guard_io_snapshot_put(struct raft_io *io, unsigned trailing,
                                 struct raft_io_snapshot_put *req,
                                 const struct raft_snapshot *snapshot, raft_io_snapshot_put_cb cb)
{
    struct guard *guard = guard_of(io);
    if (trailing > 0 && guard_snapshot_is_between(guard, snapshot)) {
        guard->stats.snapshots_delayed++;
        return RAFT_BUSY; /* libraft drops it, and takes another behind its next event */
    }
    struct guard_put *put = guard_alloc(sizeof(*put));
    req->cb = cb;
    put->outer = req;
    put->inner.data = put;
    put->guard = guard;
    if (trailing == 0) {
        /* An installation: the log is replaced. What was on its way no longer counts. */
        put->install_index = snapshot->index;
        guard_forget_entries(guard, 1);
        guard->next_index = snapshot->index + 1;
    }
    list_init(&put->link);
    list_append(&guard->puts, &put->link);
    if (guard->failed) {
        put->parked = true;
        return 0;
    }
    int code =
        guard->backend->snapshot_put(guard->backend, trailing, &put->inner, snapshot, on_put_done);
    if (code != 0) {
        put->parked = true;
        guard_fail_io(guard, code, "writing a snapshot");
    }
    return 0;
}

/* Hand libraft a snapshot; it makes a message of it and calls our send at once. */
static void guard_get_answer(struct guard *guard, struct guard_get *get,
                             struct raft_snapshot *snapshot, bool nothing)
{
    struct raft_io_snapshot_get *outer = get->outer;
    free(get);
    guard->loaded = true;
    guard->loaded_nothing = nothing;
    guard->loaded_index = snapshot->index;
    guard->loaded_term = snapshot->term;
    outer->cb(outer, snapshot, 0);
    guard->loaded = false;
}

/* An error would make libraft free memory that it never set (L5's second half). So it gets a
 * snapshot of nothing, and the message that it makes of that is dropped. */
static void guard_get_answer_empty(struct guard *guard, struct guard_get *get)
{
    struct raft_snapshot *snapshot = raft_calloc(1, sizeof(*snapshot));
    CHECK(snapshot != NULL);
    snapshot->index = UINT64_MAX; /* never older than announced */
    raft_configuration_init(&snapshot->configuration);
    snapshot->n_bufs = 1;
    snapshot->bufs = raft_malloc(sizeof(*snapshot->bufs));
    CHECK(snapshot->bufs != NULL);
    snapshot->bufs[0].len = 8;
    snapshot->bufs[0].base = raft_calloc(1, snapshot->bufs[0].len);
    CHECK(snapshot->bufs[0].base != NULL);
    guard->stats.snapshots_unread++;
    guard_get_answer(guard, get, snapshot, true);
}

static void guard_snapshot_free(struct raft_snapshot *snapshot)
{
    raft_configuration_close(&snapshot->configuration);
    raft_free(snapshot->bufs[0].base);
    raft_free(snapshot->bufs);
    raft_free(snapshot);
}

static void on_get_done(struct raft_io_snapshot_get *inner, struct raft_snapshot *snapshot,
                        int status)
{
    struct guard_get *get = inner->data;
    struct guard *guard = get->guard;
    if (guard->failed && !guard->closing) {
        if (status == 0) {
            guard_snapshot_free(snapshot);
        }
        guard->get_parked = true;
        return;
    }
    guard->get_running = NULL;
    if (status != 0) {
        raft_free(snapshot); /* the struct alone: what it holds was never set */
        guard->get_not_before =
            guard->backend->time(guard->backend) + guard->options.snapshot_pause_ms;
        guard_get_answer_empty(guard, get);
        return;
    }
    guard_get_answer(guard, get, snapshot, false);
}

/* Not here but at the end of the turn is the backend asked: libraft asks again and again (L4), and
 * each time the whole snapshot would be read. */
static int guard_io_snapshot_get(struct raft_io *io, struct raft_io_snapshot_get *req,
                                 raft_io_snapshot_get_cb cb)
{
    struct guard *guard = guard_of(io);
    struct guard_get *get = guard_alloc(sizeof(*get));
    req->cb = cb;
    get->outer = req;
    get->inner.data = get;
    get->guard = guard;
    list_init(&get->link);
    list_append(&guard->gets, &get->link);
    guard->get_count++;
    return 0;
}

static struct guard_get *guard_get_pop(struct guard *guard)
{
    struct list *link = list_pop(&guard->gets);
    if (link == NULL) {
        return NULL;
    }
    guard->get_count--;
    return CONTAINER_OF(link, struct guard_get, link);
}

static void guard_serve_gets(struct guard *guard)
{
    while (guard->get_count > GUARD_GETS_MAX) {
        guard_get_answer_empty(guard, guard_get_pop(guard));
    }
    if (guard->get_running != NULL || guard->get_count == 0 ||
        guard->backend->time(guard->backend) < guard->get_not_before) {
        return;
    }
    struct guard_get *get = guard_get_pop(guard);
    guard->get_running = get;
    int code = guard->backend->snapshot_get(guard->backend, &get->inner, on_get_done);
    if (code != 0) {
        on_get_done(&get->inner, NULL, code);
    }
}

/* --- sending ---------------------------------------------------------------------------------- */

static struct guard_peer *guard_peer(struct guard *guard, raft_id id)
{
    struct guard_peer *unused = NULL;
    for (size_t idx = 0; idx < GUARD_PEERS_MAX; idx++) {
        if (guard->peers[idx].id == id) {
            return &guard->peers[idx];
        }
        if (guard->peers[idx].id == 0 && unused == NULL) {
            unused = &guard->peers[idx];
        }
    }
    if (unused == NULL) {
        unused = &guard->peers[guard->peer_next];
        guard->peer_next = (guard->peer_next + 1) % GUARD_PEERS_MAX;
    }
    memset(unused, 0, sizeof(*unused));
    unused->id = id;
    return unused;
}

/* L4 and L5; false: not to be sent. */
static bool guard_admit_snapshot(struct guard *guard, struct raft_message *message)
{
    struct raft_install_snapshot *install = &message->install_snapshot;
    if (guard->loaded && guard->loaded_nothing) {
        return false;
    }
    if (guard_cures(guard, GUARD_CURE_L4)) {
        struct guard_peer *peer = guard_peer(guard, message->server_id);
        raft_time now = guard->backend->time(guard->backend);
        if (peer->snapshot_in_flight || now < peer->snapshot_not_before) {
            guard->stats.snapshots_spared++;
            guard->get_not_before = now + guard->options.snapshot_pause_ms;
            return false;
        }
        peer->snapshot_in_flight = true;
    }
    if (guard_cures(guard, GUARD_CURE_L5) && guard->loaded &&
        install->last_index == guard->loaded_index && install->last_term != guard->loaded_term) {
        install->last_term = guard->loaded_term;
        guard->stats.terms_corrected++;
    }
    return true;
}

static void guard_queue_send(struct guard *guard, struct raft_io_send *req)
{
    if (guard->send_count == guard->send_cap) {
        size_t cap = guard->send_cap == 0 ? 64 : guard->send_cap * 2;
        struct raft_io_send **grown = realloc(guard->sends, cap * sizeof(*grown));
        CHECK(grown != NULL);
        guard->sends = grown;
        guard->send_cap = cap;
    }
    guard->sends[guard->send_count++] = req;
}

static int guard_io_send(struct raft_io *io, struct raft_io_send *req,
                         const struct raft_message *message, raft_io_send_cb cb)
{
    struct guard *guard = guard_of(io);
    req->cb = cb;
    guard_queue_send(guard, req);
    if (guard->failed || guard->closing) {
        return 0;
    }
    if (message->type == RAFT_INSTALL_SNAPSHOT) {
        struct raft_message corrected = *message;
        if (guard_admit_snapshot(guard, &corrected)) {
            guard->options.on_send(guard->options.ctx, &corrected);
        }
        return 0;
    }
    if (message->type == RAFT_APPEND_ENTRIES) {
        guard_peer(guard, message->server_id)->commit_announced =
            message->append_entries.leader_commit;
    }
    if (message->type == RAFT_APPEND_ENTRIES_RESULT && guard->stale &&
        guard_cures(guard, GUARD_CURE_STALE)) {
        /* It is about the term alone. What libraft never set may read as a success up to some
         * index, and if the receiver leads again, in the answer's term, it would believe that. */
        struct raft_message cleared = *message;
        cleared.append_entries_result.rejected = 0;
        cleared.append_entries_result.last_log_index = 0;
        guard->stats.answers_cleared++;
        guard->options.on_send(guard->options.ctx, &cleared);
        return 0;
    }
    guard->options.on_send(guard->options.ctx, message);
    return 0;
}

void guard_snapshot_done(struct guard *guard, raft_id peer_id)
{
    struct guard_peer *peer = guard_peer(guard, peer_id);
    if (peer->snapshot_in_flight) {
        peer->snapshot_in_flight = false;
        peer->snapshot_not_before =
            guard->backend->time(guard->backend) + guard->options.snapshot_pause_ms;
    }
}

/* --- receiving -------------------------------------------------------------------------------- */

void guard_message_clear(struct raft_message *message)
{
    if (message->type == RAFT_APPEND_ENTRIES) {
        struct raft_append_entries *append = &message->append_entries;
        if (append->n_entries > 0) {
            raft_free(append->entries[0].batch);
            raft_free(append->entries);
        }
        append->entries = NULL;
        append->n_entries = 0;
    } else if (message->type == RAFT_INSTALL_SNAPSHOT) {
        raft_configuration_close(&message->install_snapshot.conf);
        raft_configuration_init(&message->install_snapshot.conf);
        raft_free(message->install_snapshot.data.base);
        message->install_snapshot.data.base = NULL;
        message->install_snapshot.data.len = 0;
    }
}

/* Term of our entry at `index` as libraft's trail has it; 0: none. A record stands for a run of
 * entries of one term and carries the index of the last one. */
static raft_term guard_term_at(const struct raft_trail *trail, raft_index index)
{
    if (index > trail->offset) {
        for (unsigned at = trail->front; at != trail->back; at = (at + 1) % trail->size) {
            if (index <= trail->records[at].index) {
                return trail->records[at].term;
            }
        }
    }
    return index == trail->snapshot.index ? trail->snapshot.term : 0;
}

/* Whether a committed entry of ours is denied: the work of broken disks or hands, never of Raft.
 * Libraft notices too, but its error return frees the entries twice (L9). */
static bool guard_denies_committed(const struct raft *raft,
                                   const struct raft_append_entries *append)
{
    if (append->term < raft->current_term || raft->snapshot.installing) {
        return false;
    }
    for (unsigned idx = 0; idx <= append->n_entries; idx++) {
        raft_index index = append->prev_log_index + idx;
        raft_term term = idx == 0 ? append->prev_log_term : append->entries[idx - 1].term;
        if (index > raft->commit_index) {
            return false;
        }
        raft_term ours = index == 0 ? 0 : guard_term_at(&raft->trail, index);
        if (ours != 0 && ours != term) {
            return true;
        }
    }
    return false;
}

/* Hand libraft one AppendEntries, with L1's cure. */
static bool guard_deliver_append(struct guard *guard, struct raft_message *message)
{
    struct raft *raft = guard_raft(guard);
    struct raft_append_entries *append = &message->append_entries;
    if (guard_denies_committed(raft, append)) {
        guard_message_clear(message);
        guard_fail(guard, STATUS_CORRUPT, "the leader's log contradicts committed entries");
        return false;
    }
    if (guard_cures(guard, GUARD_CURE_L1) && append->leader_commit > raft->commit_index &&
        append->prev_log_index + append->n_entries < raft->commit_index) {
        append->leader_commit = raft->commit_index;
        guard->stats.commits_held++;
    }
    guard->stale = append->term < raft->current_term;
    guard->recv(&guard->io, message);
    guard->stale = false;
    return true;
}

/* L3, L4, and the answer to an older term. */
static bool guard_receive_snapshot(struct guard *guard, struct raft_message *message)
{
    const struct raft *raft = guard_raft(guard);
    if ((guard_cures(guard, GUARD_CURE_L3) && raft->legacy.snapshot_taking) ||
        (guard_cures(guard, GUARD_CURE_L4) && raft->snapshot.installing)) {
        guard->stats.snapshots_refused++;
        guard_message_clear(message);
        return false;
    }
    guard->stale = message->install_snapshot.term < raft->current_term;
    guard->recv(&guard->io, message);
    guard->stale = false;
    return true;
}

/* The entries [from, to) of a message as one of their own, in memory of their own. False: no
 * memory. */
static bool guard_cut(const struct raft_message *message, unsigned from, unsigned to,
                      struct raft_message *out_part)
{
    const struct raft_append_entries *whole = &message->append_entries;
    size_t len = 0;
    for (unsigned idx = from; idx < to; idx++) {
        len += whole->entries[idx].buf.len;
    }
    struct raft_entry *entries = raft_malloc((to - from) * sizeof(*entries));
    uint8_t *batch = raft_malloc(len > 0 ? len : 1);
    if (entries == NULL || batch == NULL) {
        raft_free(entries);
        raft_free(batch);
        return false;
    }
    uint8_t *at = batch;
    for (unsigned idx = from; idx < to; idx++) {
        struct raft_entry *entry = &entries[idx - from];
        *entry = whole->entries[idx];
        entry->batch = batch;
        entry->buf.base = at;
        if (entry->buf.len > 0) {
            memcpy(at, whole->entries[idx].buf.base, entry->buf.len);
        }
        at += entry->buf.len;
    }
    *out_part = *message;
    struct raft_append_entries *part = &out_part->append_entries;
    part->entries = entries;
    part->n_entries = to - from;
    part->prev_log_index = whole->prev_log_index + from;
    part->prev_log_term = from == 0 ? whole->prev_log_term : whole->entries[from - 1].term;
    return true;
}

/* End of the run of entries that starts at `from`: the next configuration, or the end. */
static unsigned guard_run_end(const struct raft_append_entries *append, unsigned from)
{
    unsigned to = from + 1;
    while (to < append->n_entries && append->entries[to].type != RAFT_CHANGE) {
        to++;
    }
    return to;
}

/* L2: each configuration starts a message. Parts that can't be delivered are lost as on a network
 * that loses messages; the leader sends again. */
static bool guard_receive_append(struct guard *guard, struct raft_message *message)
{
    struct raft_append_entries *append = &message->append_entries;
    if (append->n_entries == 0 || !guard_cures(guard, GUARD_CURE_L2) ||
        guard_run_end(append, 0) == append->n_entries) {
        return guard_deliver_append(guard, message);
    }
    guard->stats.messages_split++;
    bool delivered = false;
    unsigned from = 0;
    while (from < append->n_entries && guard_runs(guard)) {
        unsigned to = guard_run_end(append, from);
        struct raft_message part;
        if (!guard_cut(message, from, to, &part)) {
            break;
        }
        delivered = guard_deliver_append(guard, &part) || delivered;
        from = to;
    }
    guard_message_clear(message);
    return delivered;
}

/* L10; true: drop it. A follower never loses what it has acknowledged in a term, so a rejection at
 * or below that was overtaken by the acknowledgement. Libraft believes it while it probes, and puts
 * the next index at or below the match index. The number of entries under way, their difference
 * less one, wraps, counts as too many, and no entry is sent until the log is compacted. */
static bool guard_rejection_is_late(struct guard *guard, raft_id peer,
                                    struct raft_append_entries_result *result)
{
    struct raft *raft = guard_raft(guard);
    raft_index match;
    if (result->rejected == 0 || raft->state != RAFT_LEADER || result->term != raft->current_term ||
        !guard_cures(guard, GUARD_CURE_L10) || raft_match_index(raft, peer, &match) != 0) {
        return false;
    }
    if (result->rejected <= match) {
        guard->stats.rejections_late++;
        return true;
    }
    if (result->last_log_index < match) {
        guard->stats.rejections_late++;
        result->last_log_index = match;
    }
    return false;
}

/* This node's place in the configuration that it knows; NULL: it is not in there. */
static struct raft_server *guard_self(const struct raft *raft)
{
    for (unsigned idx = 0; idx < raft->configuration.n; idx++) {
        if (raft->configuration.servers[idx].id == raft->id) {
            return &raft->configuration.servers[idx];
        }
    }
    return NULL;
}

/* A vote is counted by the candidate's configuration alone, so that giving one is always safe for
 * who keeps to one vote a term and compares the logs; what this node believes of its own role has
 * no part in it (Ongaro's dissertation, 4.1: servers use requests without consulting their own
 * configuration). Libraft refuses if it does not know itself as a voter. Where the entry of the
 * promotion got no further than the leader, and the leader lost its office, that refusal is final:
 * the candidate needs this vote, and this node can learn that it has one only from a leader. */
static void guard_receive_vote(struct guard *guard, struct raft_message *message)
{
    struct raft *raft = guard_raft(guard);
    struct raft_server *self = guard_self(raft);
    if (self == NULL || self->role == RAFT_VOTER || !guard_cures(guard, GUARD_CURE_VOTES)) {
        guard->recv(&guard->io, message);
        return;
    }
    /* Only a voter's timer clears the hint, and a leader that asks for votes leads no more. */
    if (raft->state == RAFT_FOLLOWER && message->request_vote.term > raft->current_term &&
        raft->follower_state.current_leader.id == message->server_id) {
        raft->follower_state.current_leader.id = 0;
    }
    int role = self->role;
    self->role = RAFT_VOTER;
    guard->recv(&guard->io, message);
    self = guard_self(raft);
    CHECK(self != NULL && self->role == RAFT_VOTER); /* votes change no configuration */
    self->role = role;
    guard->stats.votes_opened++;
}

bool guard_receive(struct guard *guard, struct raft_message *message)
{
    if (!guard_runs(guard)) {
        guard_message_clear(message);
        return false;
    }
    if (message->type == RAFT_APPEND_ENTRIES) {
        return guard_receive_append(guard, message);
    }
    if (message->type == RAFT_INSTALL_SNAPSHOT) {
        return guard_receive_snapshot(guard, message);
    }
    if (message->type == RAFT_APPEND_ENTRIES_RESULT &&
        guard_rejection_is_late(guard, message->server_id, &message->append_entries_result)) {
        return false;
    }
    if (message->type == RAFT_REQUEST_VOTE) {
        guard_receive_vote(guard, message);
        return true;
    }
    /* Before it looks whether it is a candidate, libraft reads the candidate's flag "in pre-vote",
     * where a follower has the address of its leader. Taken for false, the answer to a pre-vote,
     * which carries the next term, raises the term: the leader is deposed by a node that had found
     * it. Nothing else comes of an answer that is late. */
    if (message->type == RAFT_REQUEST_VOTE_RESULT && guard_cures(guard, GUARD_CURE_RESULTS) &&
        guard_raft(guard)->state != RAFT_CANDIDATE) {
        guard->stats.results_dropped++;
        return false;
    }
    guard->recv(&guard->io, message);
    return true;
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

size_t guard_pending_entries(const struct guard *guard)
{
    return guard->pending_entries;
}

size_t guard_pending_len(const struct guard *guard)
{
    return guard->pending_len;
}

/* Not inside a step of libraft: there the commit index may already count entries that are about to
 * replace what is persisted. */
raft_index guard_durable_index(struct guard *guard)
{
    const struct raft *raft = guard_raft(guard);
    if (raft != NULL && !guard->failed) {
        raft_index index = min_u64(raft->commit_index, guard->persisted_index);
        guard->durable_index = max_u64(guard->durable_index, index);
    }
    return guard->durable_index;
}

/* --- membership and fail-over ----------------------------------------------------------------- */

int guard_assign(struct guard *guard, struct raft_change *request, raft_id id, int role,
                 raft_change_cb cb)
{
    struct raft *raft = guard_raft(guard);
    if (!guard_runs(guard)) {
        return RAFT_NOTLEADER;
    }
    int code = raft_assign(raft, request, id, role, cb);
    if (code != 0 && !guard->failed && guard_cures(guard, GUARD_CURE_L8) &&
        raft->legacy.change == request) {
        raft->legacy.change = NULL;
    }
    return code;
}

/* This node as it knows itself in its configuration: a voter? */
static bool guard_votes(const struct raft *raft)
{
    const struct raft_server *self = guard_self(raft);
    return self != NULL && self->role == RAFT_VOTER;
}

bool guard_leader_link_lost(struct guard *guard, raft_id peer, uint64_t *out_delay_ns)
{
    struct raft *raft = guard_raft(guard);
    if (!guard_runs(guard) || peer == 0 || raft->state != RAFT_FOLLOWER ||
        raft->follower_state.current_leader.id != peer) {
        return false;
    }
    raft->follower_state.current_leader.id = 0;
    if (!guard_votes(raft)) {
        return false; /* it forgets too: its vote may be asked for all the same */
    }
    uint64_t rank = 0;
    for (unsigned idx = 0; idx < raft->configuration.n; idx++) {
        const struct raft_server *server = &raft->configuration.servers[idx];
        if (server->role == RAFT_VOTER && server->id != peer && server->id < raft->id) {
            rank++;
        }
    }
    *out_delay_ns = rank * GUARD_CAMPAIGN_STEP_NS;
    return true;
}

bool guard_campaign_open(const struct guard *guard)
{
    const struct raft *raft = guard_raft(guard);
    if (raft->state == RAFT_CANDIDATE) {
        return raft->candidate_state.in_pre_vote;
    }
    return raft->state == RAFT_FOLLOWER && raft->follower_state.current_leader.id == 0 &&
           guard_votes(raft);
}

void guard_campaign(struct guard *guard)
{
    struct raft *raft = guard_raft(guard);
    if (!guard_runs(guard) || !guard_campaign_open(guard)) {
        return;
    }
    /* The timer runs out now; the subtraction may wrap and the addition in libraft wraps back. */
    unsigned timeout_ms = raft->state == RAFT_FOLLOWER
                              ? raft->follower_state.randomized_election_timeout
                              : raft->candidate_state.randomized_election_timeout;
    raft->election_timer_start = raft->now - timeout_ms;
    guard_tick(guard);
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
