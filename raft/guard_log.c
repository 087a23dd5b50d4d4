/* The guard, term, vote and log: what is written, how far it is on disk, and L7 of entries. */
#include "raft/guard_internal.h"

#include <stdlib.h>

#include "fsm/base/units.h"

int guard_io_set_term(struct raft_io *io, raft_term term)
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

int guard_io_set_vote(struct raft_io *io, raft_id server_id)
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

int guard_io_append(struct raft_io *io, struct raft_io_append *req,
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
void guard_forget_entries(struct guard *guard, raft_index index)
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
int guard_io_truncate(struct raft_io *io, raft_index index)
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
