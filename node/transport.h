/* The seam between a node and its peers: typed frames to a node id, best effort.
 *
 * node/link implements it with connections, the simulator with a network that delays, drops,
 * doubles and cuts. Order is kept per peer while a link lives; nothing else is promised. */
#ifndef NODE_TRANSPORT_H_
#define NODE_TRANSPORT_H_

#include <stdbool.h>
#include <stdint.h>

#include "fsm/base/slice.h"

/* The values are part of the peer protocol. 1..15 belong to the link itself. */
enum frame_type {
    FRAME_TYPE_HELLO = 1,   /* versions, cluster, node id, address where it listens */
    FRAME_TYPE_WELCOME = 2, /* the same of the other end; the link is up */
    FRAME_TYPE_REFUSED = 3, /* why not, and both sides' versions or cluster ids */
    FRAME_TYPE_PING = 4,    /* each 50 ms; a link silent for 300 ms is suspect, for 2 s dead */
    FRAME_TYPE_REPLICA = 16,
    FRAME_TYPE_FORWARD = 17,       /* a command for the leader of a term */
    FRAME_TYPE_FORWARD_REPLY = 18,
    FRAME_TYPE_READ_POINT = 19,    /* asks the leader for a read point */
    FRAME_TYPE_READ_POINT_REPLY = 20,
    FRAME_TYPE_QUERY = 21,         /* a whole read of a node without a log */
    FRAME_TYPE_QUERY_REPLY = 22,
    FRAME_TYPE_LEADER = 23,        /* who leads in which term, and whether it serves */
    FRAME_TYPE_PEERS = 24,         /* ids and addresses of the members */
    FRAME_TYPE_ADMIT = 25,         /* a new node asks to be added */
    FRAME_TYPE_ADMIT_REPLY = 26,
};

#define FRAME_REPLICA_LEN_MAX (5u * 1024u * 1024u) /* what a replica may give to be sent */
#define FRAME_LEN_MAX (9u * 1024u * 1024u) /* payload; a query's reply is the largest */

struct transport {
    void *ctx;

    /* Copy and carry the payload. False: no link, or its queue is full; the frame is dropped.
     * `bulk` frames go behind all others that wait. */
    bool (*send)(void *ctx, uint64_t peer_id, enum frame_type type, bool bulk,
                 struct slice payload);

    /* True while bytes of an earlier turn wait here to be written to this peer: whatever is sent
     * now waits behind them. It becomes false in a later turn, or the link breaks. */
    bool (*waits)(void *ctx, uint64_t peer_id);
};

#endif
