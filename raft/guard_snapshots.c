/* The guard, snapshots to the disk and from it: L7 of snapshots, "between", and the reading half of
 * L4 and L5. */
#include "raft/guard_internal.h"

#include <stdlib.h>

#define GUARD_GETS_MAX 8u /* snapshots wanted by libraft at once; more go unread */

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

int guard_io_snapshot_put(struct raft_io *io, unsigned trailing, struct raft_io_snapshot_put *req,
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
void guard_get_answer_empty(struct guard *guard, struct guard_get *get)
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
int guard_io_snapshot_get(struct raft_io *io, struct raft_io_snapshot_get *req,
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

void guard_serve_gets(struct guard *guard)
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
