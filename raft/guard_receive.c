/* The guard, messages that come in: L1 to L4, L9, L10, "votes" and "results". */
#include "raft/guard_internal.h"

#include <string.h>

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
struct raft_server *guard_self(const struct raft *raft)
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
