/* The guard, messages that go out: L4, L5 and "stale". */
#include "raft/guard_internal.h"

#include <stdlib.h>
#include <string.h>

struct guard_peer *guard_peer(struct guard *guard, raft_id id)
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

int guard_io_send(struct raft_io *io, struct raft_io_send *req, const struct raft_message *message,
                  raft_io_send_cb cb)
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

void guard_flush_sends(struct guard *guard, int status)
{
    for (size_t idx = 0; idx < guard->send_count; idx++) {
        struct raft_io_send *request = guard->sends[idx];
        request->cb(request, status);
    }
    guard->send_count = 0;
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
