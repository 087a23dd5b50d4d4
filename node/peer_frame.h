/* Payloads of the frames that nodes send each other beside the replica's own: forwarded commands,
 * read points, whole reads, who leads, who is where, and the wish to be admitted.
 *
 * Fixed little-endian fields, then at most one run of bytes; the layouts are in the .c file.
 * Pure. Decoding trusts nothing: a payload that is too short, too long or has a field out of its
 * range is STATUS_MALFORMED, and whoever sent it is not worth an answer. Decoded slices borrow from
 * the payload. Encoding appends to `out`, which the caller has cleared. */
#ifndef NODE_PEER_FRAME_H_
#define NODE_PEER_FRAME_H_

#include "fsm/base/buf.h"
#include "fsm/base/slice.h"
#include "fsm/base/status.h"
#include "fsm/types.h"

/* A forwarded command is one part of a request and fits an entry. */
#define PEER_FRAME_COMMAND_LEN_MAX ENTRY_LEN_MAX
#define PEER_FRAME_MESSAGE_LEN_MAX MESSAGE_LEN_MAX /* a query's request, a reply, a result */
#define PEER_FRAME_ADDRESS_LEN_MAX 127u            /* host:port */
#define PEER_FRAME_PEERS_MAX 1024u

/* What stands for "no deadline" where milliseconds left are sent (settle has none). */
#define PEER_FRAME_NO_DEADLINE UINT32_MAX

/* FORWARD: one command for the leader of one term. */
struct frame_forward {
    uint64_t number;  /* grows with every frame of the sender; what does not grow is a copy */
    uint64_t ticket;  /* the sender's: comes back in the reply */
    uint32_t attempt; /* which sending of that ticket; comes back too */
    uint64_t term;    /* of the leader it is meant for */
    uint32_t left_ms; /* until its deadline, from receipt; PEER_FRAME_NO_DEADLINE: none */
    struct slice command;
};

struct frame_forward_reply {
    uint64_t ticket;
    uint32_t attempt;
    enum status status;
    struct slice result; /* OK: the encoded struct result */
};

struct frame_read_point {
    uint64_t ticket;
    uint64_t term;
};

struct frame_read_point_reply {
    uint64_t ticket;
    enum status status;
    uint64_t index; /* OK only */
    uint64_t clock_ms;
};

/* QUERY: a whole read in the bytes of the local API, without a deadline of its own. */
struct frame_query {
    uint64_t ticket;
    uint64_t term;
    uint32_t left_ms;
    struct slice request;
};

struct frame_query_reply {
    uint64_t ticket;
    enum status status;
    struct slice reply; /* OK: in the bytes of the local API */
};

/* LEADER: what the sender knows about leadership; a leader says it of itself. */
struct frame_leader {
    uint64_t term;
    uint64_t leader_id; /* 0: unknown */
    bool serving;       /* it has applied an entry of its own term */
};

/* PEERS: where nodes are, and, from a leader, what each is to the cluster. Whoever does not lead
 * says nothing of roles. */
enum frame_role {
    FRAME_ROLE_UNKNOWN = 0, /* not a member, or said by somebody who does not lead */
    FRAME_ROLE_SPARE = 1,
    FRAME_ROLE_STANDBY = 2,
    FRAME_ROLE_VOTER = 3,
};

struct frame_peer {
    uint64_t id;
    uint8_t role; /* enum frame_role; any other number is a newer node's and as good as unknown */
    struct slice address; /* 1..PEER_FRAME_ADDRESS_LEN_MAX bytes */
};

/* ADMIT: a node asks the leader to be added; the reply of one that does not lead names who does. */
struct frame_admit {
    uint64_t node_id;
    struct slice address;
};

struct frame_admit_reply {
    enum status status;
    uint64_t leader_id;   /* 0: unknown */
    struct slice address; /* of the leader; empty: unknown */
};

void frame_forward_encode(const struct frame_forward *frame, struct buf *out);
void frame_forward_reply_encode(const struct frame_forward_reply *frame, struct buf *out);
void frame_read_point_encode(const struct frame_read_point *frame, struct buf *out);
void frame_read_point_reply_encode(const struct frame_read_point_reply *frame, struct buf *out);
void frame_query_encode(const struct frame_query *frame, struct buf *out);
void frame_query_reply_encode(const struct frame_query_reply *frame, struct buf *out);
void frame_leader_encode(const struct frame_leader *frame, struct buf *out);
void frame_peers_encode(const struct frame_peer *peers, uint32_t count, struct buf *out);
void frame_admit_encode(const struct frame_admit *frame, struct buf *out);
void frame_admit_reply_encode(const struct frame_admit_reply *frame, struct buf *out);

/* STATUS_OK or STATUS_MALFORMED. */
NODISCARD enum status frame_forward_decode(struct slice payload, struct frame_forward *out_frame);
NODISCARD enum status frame_forward_reply_decode(struct slice payload,
                                                 struct frame_forward_reply *out_frame);
NODISCARD enum status frame_read_point_decode(struct slice payload,
                                              struct frame_read_point *out_frame);
NODISCARD enum status frame_read_point_reply_decode(struct slice payload,
                                                    struct frame_read_point_reply *out_frame);
NODISCARD enum status frame_query_decode(struct slice payload, struct frame_query *out_frame);
NODISCARD enum status frame_query_reply_decode(struct slice payload,
                                               struct frame_query_reply *out_frame);
NODISCARD enum status frame_leader_decode(struct slice payload, struct frame_leader *out_frame);

/* Writes at most `count_max` peers, which is at least what the payload announces or it is
 * MALFORMED. */
NODISCARD enum status frame_peers_decode(struct slice payload, uint32_t count_max,
                                         struct frame_peer *out_peers, uint32_t *out_count);
NODISCARD enum status frame_admit_decode(struct slice payload, struct frame_admit *out_frame);
NODISCARD enum status frame_admit_reply_decode(struct slice payload,
                                               struct frame_admit_reply *out_frame);

#endif
