/* Messages to and from peers, snapshots in pieces, and fail-over when the leader's link breaks.
 *
 * Bytes come from peers that the transport has authenticated; what they claim beyond that is
 * checked here: a vote is asked by the one who asks for it. */
#include "raft/replica_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "fsm/base/check.h"

/* Bytes of entries in one message. libraft knows no such limit, and MESSAGE_ENTRIES_MAX of the
 * longest entries are more than a link should be kept busy with while heartbeats wait. */
#define ENTRIES_LEN_MAX (256u * 1024u)

_Static_assert(ENTRIES_LEN_MAX >= ENTRY_LEN_MAX, "one entry always fits");

/* A voter that still writes entries to its disk does not stand for election and loses its turn; it
 * is asked again after this, at most for as long as an election takes by itself. */
#define CAMPAIGN_RETRY_NS 2000000ull

/* The others may notice the loss a little later than this node, and refuse until then. If they have
 * the shorter logs they can't win themselves, and the next question would come with the timer. */
#define CAMPAIGN_AGAIN_NS 30000000ull
#define CAMPAIGN_ASKED_MAX 4u

static struct replica_peer *peer_find(const struct replica *replica, uint64_t peer_id);
static struct replica_peer *peer_get(struct replica *replica, uint64_t peer_id);
static void peer_drop_transfers(struct replica *replica, struct replica_peer *peer);
static void receive(struct replica *replica, struct replica_peer *peer, struct message *message,
                    uint64_t now_ns);
static void receive_raft(struct replica *replica, uint64_t peer_id, struct message *message);
static void receive_chunk(struct replica *replica, struct replica_peer *peer,
                          const struct message_chunk *chunk);
static void receive_ack(struct replica *replica, struct replica_peer *peer,
                        const struct message_ack *ack, uint64_t now_ns);
static void answer_confirm(struct replica *replica, uint64_t peer_id,
                           const struct message_confirm *confirm);
static void send_ack(struct replica *replica, uint64_t peer_id, const struct message_ack *ack);
static void send_entries(struct replica *replica, const struct raft_message *whole);
static bool send_bytes(struct replica *replica, uint64_t peer_id, bool bulk, struct slice bytes);
static bool send_message(struct replica *replica, uint64_t peer_id, bool bulk,
                         const struct message *message);
static void start_snapshot(struct replica *replica, const struct raft_message *message);
static void pump_snapshot(struct replica *replica, struct replica_peer *peer, uint64_t now_ns);
static void end_snapshot(struct replica *replica, struct replica_peer *peer);
static void leader_link_lost(struct replica *replica, uint64_t peer_id, uint64_t now_ns);
static void campaign_turn(struct replica *replica, uint64_t now_ns);

/* --- links */

void replica_link_up(struct replica *replica, uint64_t peer_id)
{
    struct replica_peer *peer = peer_get(replica, peer_id);
    if (peer != NULL) {
        peer->link_up = true;
    }
}

void replica_link_down(struct replica *replica, uint64_t peer_id, uint64_t now_ns)
{
    struct replica_peer *peer = peer_find(replica, peer_id);
    if (peer != NULL) {
        peer->link_up = false;
        peer_drop_transfers(replica, peer);
    }
    leader_link_lost(replica, peer_id, now_ns);
}

void replica_link_silent(struct replica *replica, uint64_t peer_id, uint64_t now_ns)
{
    struct replica_peer *peer = peer_find(replica, peer_id);
    if (peer != NULL) {
        peer->link_up = false;
    }
    leader_link_lost(replica, peer_id, now_ns);
}

bool replica_links_up(const struct replica *replica, uint64_t peer_id)
{
    const struct replica_peer *peer = peer_find(replica, peer_id);
    return peer != NULL && peer->link_up;
}

void replica_links_deinit(struct replica *replica)
{
    for (unsigned i = 0; i < replica->peer_count; i++) {
        struct replica_peer *peer = replica->peers[i];
        snapshot_sender_stop(&peer->sender);
        snapshot_receiver_stop(&peer->receiver);
        free(peer);
    }
    replica->peer_count = 0;
}

void replica_links_drop_transfers(struct replica *replica)
{
    for (unsigned i = 0; i < replica->peer_count; i++) {
        struct replica_peer *peer = replica->peers[i];
        if (peer->sender.active) {
            end_snapshot(replica, peer);
        }
    }
}

void replica_links_turn(struct replica *replica, uint64_t now_ns)
{
    for (unsigned i = 0; i < replica->peer_count && replica_running(replica); i++) {
        struct replica_peer *peer = replica->peers[i];
        if (peer->snapshot_dropped) {
            peer->snapshot_dropped = false;
            guard_snapshot_done(replica->guard, peer->id);
        }
        if (peer->sender.active) {
            pump_snapshot(replica, peer, now_ns);
        }
    }
    campaign_turn(replica, now_ns);
}

uint64_t replica_links_timer_ns(const struct replica *replica)
{
    uint64_t next = replica->campaign_ns != 0 ? replica->campaign_ns : UINT64_MAX;
    for (unsigned i = 0; i < replica->peer_count; i++) {
        next = min_u64(next, snapshot_sender_timer_ns(&replica->peers[i]->sender));
    }
    return next;
}

static struct replica_peer *peer_find(const struct replica *replica, uint64_t peer_id)
{
    for (unsigned i = 0; i < replica->peer_count; i++) {
        if (replica->peers[i]->id == peer_id) {
            return replica->peers[i];
        }
    }
    return NULL;
}

/* The peer's place, made when it has none yet; NULL when all places are taken by peers that are
 * there. */
static struct replica_peer *peer_get(struct replica *replica, uint64_t peer_id)
{
    struct replica_peer *peer = peer_find(replica, peer_id);
    if (peer != NULL || peer_id == 0) {
        return peer;
    }
    for (unsigned i = 0; i < replica->peer_count && peer == NULL; i++) {
        struct replica_peer *old = replica->peers[i];
        if (!old->link_up && !old->sender.active && replica->peer_count == REPLICA_PEERS_MAX) {
            peer = old;
            snapshot_sender_stop(&peer->sender);
            snapshot_receiver_stop(&peer->receiver);
        }
    }
    if (peer == NULL && replica->peer_count < REPLICA_PEERS_MAX) {
        peer = malloc(sizeof *peer);
        CHECK(peer != NULL);
        replica->peers[replica->peer_count++] = peer;
    }
    if (peer != NULL) {
        *peer = (struct replica_peer){.id = peer_id};
        snapshot_sender_init(&peer->sender);
        snapshot_receiver_init(&peer->receiver);
    }
    return peer;
}

static void peer_drop_transfers(struct replica *replica, struct replica_peer *peer)
{
    if (peer->sender.active) {
        end_snapshot(replica, peer);
    }
    snapshot_receiver_stop(&peer->receiver);
    snapshot_receiver_init(&peer->receiver);
}

/* --- receiving */

void replica_receive(struct replica *replica, uint64_t peer_id, struct slice bytes,
                     uint64_t now_ns)
{
    if (!replica_running(replica) || replica->closing) {
        return;
    }
    replica->now_ns = max_u64(replica->now_ns, now_ns);
    struct replica_peer *peer = peer_get(replica, peer_id);
    struct message message;
    enum status status = peer != NULL ? message_decode(bytes, &message) : STATUS_OVERLOADED;
    if (status != STATUS_OK) {
        replica->stats.messages_refused++;
        return;
    }
    peer->link_up = true; /* a silent one speaks again */
    replica->stats.messages_received++;
    receive(replica, peer, &message, replica->now_ns);
}

static void receive(struct replica *replica, struct replica_peer *peer, struct message *message,
                    uint64_t now_ns)
{
    struct message_ack ack;
    switch (message->kind) {
    case MESSAGE_KIND_APPEND_ENTRIES:
    case MESSAGE_KIND_APPEND_ENTRIES_RESULT:
    case MESSAGE_KIND_REQUEST_VOTE:
    case MESSAGE_KIND_REQUEST_VOTE_RESULT:
    case MESSAGE_KIND_TIMEOUT_NOW:
        receive_raft(replica, peer->id, message);
        break;
    case MESSAGE_KIND_SNAPSHOT_BEGIN:
        snapshot_receiver_begin(&peer->receiver, message, &ack);
        send_ack(replica, peer->id, &ack);
        break;
    case MESSAGE_KIND_SNAPSHOT_CHUNK:
        receive_chunk(replica, peer, &message->chunk);
        break;
    case MESSAGE_KIND_SNAPSHOT_ACK:
        receive_ack(replica, peer, &message->ack, now_ns);
        break;
    case MESSAGE_KIND_READ_CONFIRM:
        answer_confirm(replica, peer->id, &message->confirm);
        break;
    case MESSAGE_KIND_READ_CONFIRM_RESULT:
        if (message->confirm.ok) {
            read_index_answer(&replica->reads, peer->id, message->confirm.term,
                              message->confirm.nonce);
        }
        break;
    }
}

static void receive_raft(struct replica *replica, uint64_t peer_id, struct message *message)
{
    if (message->kind == MESSAGE_KIND_REQUEST_VOTE &&
        message->raft.request_vote.candidate_id != peer_id) {
        replica->stats.messages_refused++;
        return;
    }
    char address[24];
    (void)snprintf(address, sizeof address, "%" PRIu64, peer_id);
    message->raft.server_id = peer_id;
    message->raft.server_address = address;
    (void)guard_receive(replica->guard, &message->raft);
}

static void receive_chunk(struct replica *replica, struct replica_peer *peer,
                          const struct message_chunk *chunk)
{
    struct message whole;
    struct message_ack ack;
    bool answer = false;
    bool complete = snapshot_receiver_chunk(&peer->receiver, chunk, &whole, &ack, &answer);
    if (answer) {
        send_ack(replica, peer->id, &ack);
    }
    if (complete) {
        receive_raft(replica, peer->id, &whole);
    }
}

static void receive_ack(struct replica *replica, struct replica_peer *peer,
                        const struct message_ack *ack, uint64_t now_ns)
{
    enum snapshot_progress progress = snapshot_sender_ack(&peer->sender, ack, now_ns);
    if (progress == SNAPSHOT_PROGRESS_DONE) {
        replica->stats.snapshots_sent++;
    }
    if (progress != SNAPSHOT_PROGRESS_GOING) {
        end_snapshot(replica, peer);
    }
}

/* Between two steps of libraft, so that the term is the one on disk. */
static void answer_confirm(struct replica *replica, uint64_t peer_id,
                           const struct message_confirm *confirm)
{
    struct message answer = {
        .kind = MESSAGE_KIND_READ_CONFIRM_RESULT,
        .confirm =
            {
                .term = confirm->term,
                .nonce = confirm->nonce,
                .ok = replica->raft.current_term == confirm->term,
            },
    };
    replica_links_send(replica, peer_id, &answer);
}

/* --- sending */

/* Inside libraft. */
void replica_links_on_send(void *ctx, const struct raft_message *message)
{
    struct replica *replica = ctx;
    if (message->type == RAFT_INSTALL_SNAPSHOT) {
        start_snapshot(replica, message);
        return;
    }
    if (message->type == RAFT_APPEND_ENTRIES) {
        send_entries(replica, message);
        return;
    }
    struct message out = {.kind = message_kind_of(message), .raft = *message};
    replica_links_send(replica, message->server_id, &out);
}

/* Cut into messages that follow each other. The rest may not be left for later: of a follower that
 * keeps up libraft believes that it has been sent everything (sendAppendEntries in its
 * replication.c), and the gap would be refused. Nor may a message leave when the one before it
 * could not. */
static void send_entries(struct replica *replica, const struct raft_message *whole)
{
    const struct raft_append_entries *all = &whole->append_entries;
    struct message out = {.kind = MESSAGE_KIND_APPEND_ENTRIES, .raft = *whole};
    struct raft_append_entries *part = &out.raft.append_entries;
    unsigned from = 0;
    bool sent = true;
    do {
        unsigned to = from;
        size_t len = 0;
        while (to < all->n_entries && len + all->entries[to].buf.len <= ENTRIES_LEN_MAX) {
            len += all->entries[to].buf.len;
            to++;
        }
        CHECK(to > from || all->n_entries == 0);
        part->prev_log_index = all->prev_log_index + from;
        part->prev_log_term = from == 0 ? all->prev_log_term : all->entries[from - 1].term;
        part->entries = all->n_entries > 0 ? &all->entries[from] : NULL;
        part->n_entries = to - from;
        sent = send_message(replica, whole->server_id, false, &out);
        from = to;
    } while (sent && from < all->n_entries);
}

void replica_links_send(struct replica *replica, uint64_t peer_id, const struct message *message)
{
    (void)send_message(replica, peer_id, false, message);
}

static void send_ack(struct replica *replica, uint64_t peer_id, const struct message_ack *ack)
{
    struct message message = {.kind = MESSAGE_KIND_SNAPSHOT_ACK, .ack = *ack};
    replica_links_send(replica, peer_id, &message);
}

static bool send_message(struct replica *replica, uint64_t peer_id, bool bulk,
                         const struct message *message)
{
    struct buf *bytes = &replica->scratch_message;
    buf_clear(bytes);
    message_encode(message, bytes);
    CHECK(!buf_overflown(bytes));
    return send_bytes(replica, peer_id, bulk, buf_slice(bytes));
}

static bool send_bytes(struct replica *replica, uint64_t peer_id, bool bulk, struct slice bytes)
{
    bool sent = replica->callbacks.send(replica->callbacks.ctx, peer_id, bulk, bytes);
    replica->stats.messages_sent += sent ? 1 : 0;
    return sent;
}

/* --- snapshots */

/* Inside libraft: copied, sent from the turn. */
static void start_snapshot(struct replica *replica, const struct raft_message *message)
{
    struct replica_peer *peer = peer_get(replica, message->server_id);
    if (peer == NULL) {
        return; /* no place for it: the guard asks for no other snapshot to it, nor is it there */
    }
    if (!peer->link_up || peer->sender.active ||
        message->install_snapshot.data.len > MESSAGE_SNAPSHOT_LEN_MAX) {
        peer->snapshot_dropped = !peer->sender.active;
        return;
    }
    replica->transfer_number++;
    snapshot_sender_start(&peer->sender, replica->transfer_number, &message->install_snapshot,
                          replica->now_ns);
}

static void pump_snapshot(struct replica *replica, struct replica_peer *peer, uint64_t now_ns)
{
    struct snapshot_sender *sender = &peer->sender;
    if (snapshot_sender_tick(sender, now_ns) != SNAPSHOT_PROGRESS_GOING) {
        end_snapshot(replica, peer);
        return;
    }
    if (!sender->begun) {
        if (!send_bytes(replica, peer->id, true, buf_slice(&sender->begin))) {
            return;
        }
        snapshot_sender_sent(sender);
    }
    struct message message;
    while (snapshot_sender_next(sender, &message)) {
        if (!send_message(replica, peer->id, true, &message)) {
            return;
        }
        snapshot_sender_sent(sender);
    }
}

static void end_snapshot(struct replica *replica, struct replica_peer *peer)
{
    snapshot_sender_stop(&peer->sender);
    if (replica->guard != NULL && !guard_failed(replica->guard)) {
        guard_snapshot_done(replica->guard, peer->id);
    }
}

/* --- fail-over */

static void leader_link_lost(struct replica *replica, uint64_t peer_id, uint64_t now_ns)
{
    uint64_t delay_ns = 0;
    if (replica_running(replica) && guard_leader_link_lost(replica->guard, peer_id, &delay_ns)) {
        replica->now_ns = max_u64(replica->now_ns, now_ns);
        replica->campaign_ns = replica->now_ns + delay_ns;
        replica->campaign_end_ns = replica->now_ns + ms_to_ns(replica->config.election_ms);
        replica->campaign_asked = 0;
    }
}

static void campaign_turn(struct replica *replica, uint64_t now_ns)
{
    if (replica->campaign_ns == 0 || now_ns < replica->campaign_ns || !replica_running(replica)) {
        return;
    }
    struct raft *raft = &replica->raft;
    if (!guard_campaign_open(replica->guard)) {
        replica->campaign_ns = 0;
        return;
    }
    bool writing = raft->last_stored < raft_last_index(raft) || raft->snapshot.installing;
    if (writing && raft->state == RAFT_FOLLOWER && now_ns < replica->campaign_end_ns) {
        replica->campaign_ns = now_ns + CAMPAIGN_RETRY_NS;
        return;
    }
    replica->campaign_asked++;
    replica->campaign_ns =
        replica->campaign_asked < CAMPAIGN_ASKED_MAX ? now_ns + CAMPAIGN_AGAIN_NS : 0;
    guard_campaign(replica->guard);
}
