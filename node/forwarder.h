/* The leader's side of forwarding: which frames of other nodes may become proposals here.
 *
 * Refused as certainly not done: what is meant for another term, what comes to a node that does not
 * lead or does not serve yet, what is past its deadline, what waited to be read while this node's
 * loop stalled, what is no command that a node may forward, and more than FORWARDER_IN_FLIGHT_MAX
 * of one peer at once. A frame whose number does not grow is a copy that the network made, and is
 * dropped without a word: the sender believes what was said of the first one.
 *
 * Nothing is ever forwarded again from here. Pure. */
#ifndef NODE_FORWARDER_H_
#define NODE_FORWARDER_H_

#include "fsm/command_codec.h"
#include "node/peer_frame.h"

#define FORWARDER_PEERS_MAX 1024u
#define FORWARDER_IN_FLIGHT_MAX 4096u            /* of one peer: all that its router can have */
#define FORWARDER_STALL_NS (500u * NS_PER_MS)    /* a longer stall makes what waited suspect */
#define FORWARDER_SUSPECT_NS (50u * NS_PER_MS)   /* so long after it, all that waited is read */

struct forwarder;

/* What this node is when a frame comes. */
struct forwarder_self {
    bool leader;
    bool serving;
    uint64_t term;
};

enum forward_verdict {
    FORWARD_VERDICT_ACCEPT, /* propose it, then forwarder_done */
    FORWARD_VERDICT_REFUSE, /* answer with the status */
    FORWARD_VERDICT_DROP,
};

struct forwarder *forwarder_create(void);
void forwarder_destroy(struct forwarder *forwarder);

void forwarder_peer_up(struct forwarder *forwarder, uint64_t peer_id);

/* The loop stalled for so long before the input of this turn was read. */
void forwarder_stalled(struct forwarder *forwarder, uint64_t stall_ns, uint64_t now_ns);

/* True while what other hosts sent may have waited in a stall: refuse it as not done. */
bool forwarder_suspects(const struct forwarder *forwarder, uint64_t now_ns);

enum forward_verdict forwarder_judge(struct forwarder *forwarder, uint64_t peer_id,
                                     const struct frame_forward *frame,
                                     const struct forwarder_self *self, uint64_t now_ns);

/* Why the last one was refused. */
enum status forwarder_why(const struct forwarder *forwarder);

/* An accepted one of this peer has been answered. */
void forwarder_done(struct forwarder *forwarder, uint64_t peer_id);

#endif
