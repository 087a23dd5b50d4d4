/* A table of peers in the order of their ids; a peer stays in it, since what it has in flight
 * outlives its link. */
#include "node/forwarder.h"

#include <stdlib.h>

#include "fsm/base/check.h"

struct forwarder_peer {
    uint64_t id;
    uint64_t number; /* of its last frame since its link came up */
    uint32_t in_flight;
};

struct forwarder {
    struct forwarder_peer peers[FORWARDER_PEERS_MAX];
    uint32_t peer_count;
    uint64_t suspect_until_ns;
    enum status why;
    struct command_decoder *decoder;
};

static struct forwarder_peer *find(struct forwarder *forwarder, uint64_t peer_id);
static struct forwarder_peer *find_or_add(struct forwarder *forwarder, uint64_t peer_id);
static uint32_t place_of(const struct forwarder *forwarder, uint64_t peer_id);
static enum status judge_command(struct forwarder *forwarder, struct slice bytes);

struct forwarder *forwarder_create(void)
{
    struct forwarder *forwarder = calloc(1, sizeof *forwarder);
    CHECK(forwarder != NULL);
    forwarder->decoder = command_decoder_create();
    return forwarder;
}

void forwarder_destroy(struct forwarder *forwarder)
{
    if (forwarder != NULL) {
        command_decoder_destroy(forwarder->decoder);
        free(forwarder);
    }
}

void forwarder_peer_up(struct forwarder *forwarder, uint64_t peer_id)
{
    struct forwarder_peer *peer = find_or_add(forwarder, peer_id);
    if (peer != NULL) {
        peer->number = 0;
    }
}

void forwarder_stalled(struct forwarder *forwarder, uint64_t stall_ns, uint64_t now_ns)
{
    if (stall_ns > FORWARDER_STALL_NS) {
        forwarder->suspect_until_ns = now_ns + FORWARDER_SUSPECT_NS;
    }
}

bool forwarder_suspects(const struct forwarder *forwarder, uint64_t now_ns)
{
    return now_ns < forwarder->suspect_until_ns;
}

enum forward_verdict forwarder_judge(struct forwarder *forwarder, uint64_t peer_id,
                                     const struct frame_forward *frame,
                                     const struct forwarder_self *self, uint64_t now_ns)
{
    struct forwarder_peer *peer = find_or_add(forwarder, peer_id);
    if (peer != NULL && frame->number <= peer->number) {
        return FORWARD_VERDICT_DROP;
    }
    if (peer != NULL) {
        peer->number = frame->number;
    }
    if (!self->leader) {
        forwarder->why = STATUS_NOT_LEADER;
    } else if (frame->term != self->term) {
        forwarder->why = STATUS_WRONG_TERM;
    } else if (!self->serving) {
        forwarder->why = STATUS_NOT_SERVING;
    } else if (frame->left_ms == 0) {
        forwarder->why = STATUS_DEADLINE;
    } else if (forwarder_suspects(forwarder, now_ns)) {
        forwarder->why = STATUS_OVERLOADED;
    } else if (peer == NULL || peer->in_flight >= FORWARDER_IN_FLIGHT_MAX) {
        forwarder->why = STATUS_OVERLOADED;
    } else {
        forwarder->why = judge_command(forwarder, frame->command);
    }
    if (forwarder->why != STATUS_OK) {
        return FORWARD_VERDICT_REFUSE;
    }
    peer->in_flight++;
    return FORWARD_VERDICT_ACCEPT;
}

enum status forwarder_why(const struct forwarder *forwarder)
{
    return forwarder->why;
}

void forwarder_done(struct forwarder *forwarder, uint64_t peer_id)
{
    struct forwarder_peer *peer = find(forwarder, peer_id);
    CHECK(peer != NULL && peer->in_flight > 0);
    peer->in_flight--;
}

static struct forwarder_peer *find(struct forwarder *forwarder, uint64_t peer_id)
{
    uint32_t at = place_of(forwarder, peer_id);
    bool found = at < forwarder->peer_count && forwarder->peers[at].id == peer_id;
    return found ? &forwarder->peers[at] : NULL;
}

/* NULL when there is no room for another one. */
static struct forwarder_peer *find_or_add(struct forwarder *forwarder, uint64_t peer_id)
{
    uint32_t at = place_of(forwarder, peer_id);
    struct forwarder_peer *peer = &forwarder->peers[at];
    if (at < forwarder->peer_count && peer->id == peer_id) {
        return peer;
    }
    if (forwarder->peer_count == FORWARDER_PEERS_MAX) {
        return NULL;
    }
    memmove(peer + 1, peer, (forwarder->peer_count - at) * sizeof *peer);
    *peer = (struct forwarder_peer){.id = peer_id};
    forwarder->peer_count++;
    return peer;
}

/* Where the peer is, or would be: at most FORWARDER_PEERS_MAX. */
static uint32_t place_of(const struct forwarder *forwarder, uint64_t peer_id)
{
    uint32_t low = 0;
    uint32_t high = forwarder->peer_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (forwarder->peers[middle].id < peer_id) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Only what a router makes: numbered operations, the opening of an origin, settles. The cluster's
 * own commands (birth and the like) are never forwarded. */
static enum status judge_command(struct forwarder *forwarder, struct slice bytes)
{
    struct command command;
    enum status st = command_decode(forwarder->decoder, bytes, &command);
    if (st != STATUS_OK) {
        return st;
    }
    switch (command.op.kind) {
    case OP_KIND_TAKE:
    case OP_KIND_CLAIM:
    case OP_KIND_RENEW:
    case OP_KIND_HEARTBEAT:
    case OP_KIND_RELEASE:
    case OP_KIND_RENEW_ALL:
    case OP_KIND_RELEASE_ALL:
    case OP_KIND_PURGE:
    case OP_KIND_OPEN_ORIGIN:
    case OP_KIND_SETTLE:
        return STATUS_OK;
    case OP_KIND_BIRTH:
    case OP_KIND_CONFIGURE:
    case OP_KIND_RESTORE:
    case OP_KIND_RECOVER:
        return STATUS_DENIED;
    }
    return STATUS_MALFORMED;
}
