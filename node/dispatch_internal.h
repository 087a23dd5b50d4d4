/* What the files of the dispatcher share: dispatch.c keeps its life, its turns and what is known of
 * the leader, dispatch_writes.c carries commands, dispatch_reads.c reads. */
#ifndef NODE_DISPATCH_INTERNAL_H_
#define NODE_DISPATCH_INTERNAL_H_

#include "node/dispatch.h"
#include "node/forwarder.h"
#include "node/leadership.h"
#include "node/peer_frame.h"
#include "node/read_answer.h"
#include "node/router.h"
#include "raft/replica.h"

#define PEERS_UP_MAX 1024u

/* One command handed to the replica: of this node's router, or of a peer's. */
struct proposal {
    struct replica_proposal replica;
    struct list link; /* in the pool */
    struct dispatch *dispatch;
    struct router_ticket ticket;
    uint64_t peer_id; /* 0: of this node */
};

/* A read point that a peer waits for. */
struct remote_point {
    struct replica_read read;
    struct list link; /* in the pool, or among those that wait */
    struct dispatch *dispatch;
    uint64_t peer_id;
    uint64_t ticket;
};

/* A round of this node's own reads. */
struct own_point {
    struct replica_read read;
    struct dispatch *dispatch;
    uint32_t round;
};

/* A whole read of a node without a table. */
struct remote_query {
    struct list link;
    struct dispatch_call call;
    struct dispatch *dispatch;
    struct proto_request request;
    struct key_item *keys; /* owned */
    uint8_t *bytes;        /* owned: what the request borrows from */
    size_t len;
    uint64_t peer_id;
    uint64_t ticket;
};

struct dispatch {
    struct replica *replica;
    struct transport transport;
    uint64_t (*clock_ns)(void *ctx);
    void *clock_ctx;
    struct router *router;
    struct forwarder *forwarder;
    struct leadership leadership;
    struct replica_view view;
    struct route route;
    bool view_changed;
    bool applied;
    uint64_t now_ns;
    uint64_t reading_ns; /* what reads of the table took in this turn */

    struct own_point own_points[READS_ROUNDS_MAX];
    struct list free_proposals;
    uint32_t free_proposal_count;
    uint32_t proposals; /* with the replica */
    struct list free_points;
    struct list points;
    uint32_t point_count;
    struct list queries;
    uint32_t query_count;
    size_t queries_len;

    uint64_t peers_up[PEERS_UP_MAX];
    uint32_t peer_count;
    uint64_t forward_number;
    uint64_t told_term;  /* the last term of its own that this node told its peers of */
    uint64_t tell_at_ns; /* spares are told again; UINT64_MAX: there are none */
    uint64_t probe_at_ns;
    bool unfinished; /* the last turn left something to do */

    struct buf command;
    struct buf frame;
    struct buf message;
    struct proto_decoder *decoder;
    struct read_answer answer;

    void (*drain_cb)(void *ctx);
    void *drain_ctx;
    uint64_t drain_deadline_ns;
    struct dispatch_stats stats;
};

/* --- dispatch.c */

/* Ask the replica again what it is, and tell the router where the leader is. */
void dispatch_see_view(struct dispatch *dispatch);

/* Answer a call; a peer's read has been delivered by that. */
void dispatch_reply(struct dispatch *dispatch, struct request *request,
                    const struct proto_reply *content);

/* What stands in `frame`; false: the peer is out of reach or its queue is full. */
bool dispatch_send_frame(struct dispatch *dispatch, uint64_t peer_id, enum frame_type type,
                         bool bulk);

/* What is known here of who leads. */
void dispatch_tell_leader(struct dispatch *dispatch, uint64_t peer_id);

/* --- dispatch_writes.c */

/* Effects of the router: a command for the replica here, or for the leader. */
void dispatch_propose(struct dispatch *dispatch, const struct router_effect *effect);
void dispatch_forward(struct dispatch *dispatch, const struct router_effect *effect);

/* A router_withdraw_cb: true when the replica has not taken the proposal into its log. */
bool dispatch_withdraw(void *ctx, void *proposal);

/* A deadline as frames have it. Fractions are cut, so that nobody has more time than there is. */
uint32_t dispatch_left_ms(uint64_t deadline_ns, uint64_t now_ns);

/* Frames. */
void dispatch_receive_forward(struct dispatch *dispatch, uint64_t peer_id, struct slice payload);
void dispatch_receive_forward_reply(struct dispatch *dispatch, struct slice payload);

/* --- dispatch_reads.c */

/* An effect of the router. */
void dispatch_read(struct dispatch *dispatch, const struct read_effect *effect);

/* Frames. */
void dispatch_receive_read_point(struct dispatch *dispatch, uint64_t peer_id, struct slice payload);
void dispatch_receive_read_point_reply(struct dispatch *dispatch, struct slice payload);
void dispatch_receive_query(struct dispatch *dispatch, uint64_t peer_id, struct slice payload);
void dispatch_receive_query_reply(struct dispatch *dispatch, struct slice payload);

void dispatch_query_free(struct remote_query *query);

#endif
