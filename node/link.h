/* Peer links: one connection per pair of nodes, typed frames, bounded queues.
 *
 * A link is up once both ends have said who they are (HELLO, WELCOME) and agree on protocol version
 * and cluster; a node of another cluster is refused with both ids, one that is not initialised may
 * come only as a joiner. Either end may dial; of two connections between one pair the one dialled
 * by the lower id stays. TCP_NODELAY, keepalive, TCP_USER_TIMEOUT. Pings each 50 ms: silence of
 * 300 ms is told (on_silent), silence of 2 s breaks the link; it is dialled anew within 1 s, with
 * back-off up to 1 s. TLS comes behind the same seam.
 *
 * Implements node/transport.h. Everything a stranger can send before HELLO is checked is bounded to
 * a few KiB, and counted. */
#ifndef NODE_LINK_H_
#define NODE_LINK_H_

#include "fsm/types.h"
#include "node/loop.h"
#include "node/transport.h"

#define LINK_ADDRESS_LEN_MAX 128u
#define LINK_QUEUE_LEN_MAX (64u * 1024u * 1024u) /* bytes per peer; beyond: send says false */
#define LINK_PEERS_MAX 1024u

struct links;

/* Who this node says it is. */
struct link_self {
    uint64_t node_id;                 /* 0: none yet (a joiner that does not know itself) */
    struct cluster_identity identity; /* all zero: none yet */
    char address[LINK_ADDRESS_LEN_MAX]; /* host:port where others reach it */
};

struct link_callbacks {
    void *ctx;
    void (*on_up)(void *ctx, uint64_t peer_id);
    void (*on_down)(void *ctx, uint64_t peer_id);
    void (*on_silent)(void *ctx, uint64_t peer_id); /* 300 ms; once per silence */
    void (*on_heard)(void *ctx, uint64_t peer_id);  /* speaks again after on_silent */
    void (*on_frame)(void *ctx, uint64_t peer_id, enum frame_type type, struct slice payload);

    /* A node that belongs to no cluster meets one (it dialled a seed): the seed's identity, id and
     * address. The owner takes the identity over (links_set_self) and the link is dialled anew. */
    void (*on_cluster_met)(void *ctx, const struct cluster_identity *identity, uint64_t peer_id,
                           const char *address);

    /* A peer (or a seed at that address) refused us, or was refused by us: a sentence. */
    void (*on_refused)(void *ctx, const char *address, const char *why);
};

struct link_config {
    const char *listen;    /* host:port; port 0: any, see links_address */
    const char *advertise; /* NULL: the address listened on */
    bool insecure_network; /* allow addresses that are not loopback without TLS */
};

/* Bind, listen. STATUS_INVALID for an address that may not be used, STATUS_IO. */
NODISCARD enum status links_open(struct loop *loop, const struct link_config *config,
                                 const struct link_callbacks *callbacks, char *out_why,
                                 struct links **out_links);

/* Who we are from now on; existing links that spoke for another identity are closed. */
void links_set_self(struct links *links, const struct link_self *self);

/* Where we are reached (host:port, the port filled in). */
const char *links_address(const struct links *links);

/* Know (or correct) a peer's address and keep a link to it. */
void links_add_peer(struct links *links, uint64_t peer_id, const char *address);
void links_remove_peer(struct links *links, uint64_t peer_id);

/* Dial an address whose node id is not known yet (a seed), until its id is. */
void links_add_seed(struct links *links, const char *address);
void links_clear_seeds(struct links *links);

/* NULL when unknown. */
const char *links_peer_address(const struct links *links, uint64_t peer_id);
bool links_peer_up(const struct links *links, uint64_t peer_id);

/* All peers whose address is known; returns how many were written. */
unsigned links_peers(const struct links *links, uint64_t *out_ids, unsigned count_max);

struct transport links_transport(struct links *links);

/* Write what this turn has queued, once at the end of every loop turn. */
void links_flush(struct links *links);

struct link_stats {
    uint64_t up;
    uint64_t accepted;
    uint64_t dialled;
    uint64_t refused;
    uint64_t malformed;
    uint64_t dropped; /* frames, for a full queue or no link */
    uint64_t bytes_sent;
    uint64_t bytes_received;
};
void link_stats(const struct links *links, struct link_stats *out_stats);

void links_close(struct links *links, void (*cb)(void *ctx), void *ctx);

#endif
