/* Reads that wait: for a read point, for the table to reach it, for a due lease to go, or for the
 * leader's answer.
 *
 *                         ┌─ leader here: ASKED_HERE ──────────────┐
 *   wanting ─► a round ───┤                                        ├─► answering ─► answered
 *      ▲       for all    └─ leader elsewhere: ASKED_PEER ─► WAITING      ▲ │
 *      │       that want one                                              └─┘ due, <= 500 ms
 *      ├─ a node without a table: QUERY ─► the leader's reply
 *      └─ refused, lost, another leader: after a short pause
 *
 * One round serves every read that was there when it began; a node asks its leader for one point at
 * a time. A read that came from a peer is answered here or refused: nothing is passed on twice.
 * Reads change nothing, so that each step may be repeated at will. Pure: the caller carries out the
 * effects and knows the table. */
#ifndef NODE_READS_H_
#define NODE_READS_H_

#include "node/leadership.h"
#include "node/request.h"

#define READS_ROUNDS_MAX 16u
#define READS_QUERIES_MAX 256u          /* of a node without a table, at its leader */
#define READS_DUE_NS (500u * NS_PER_MS) /* a read waits so long for a due lease to go */
#define READS_ASK_AGAIN_NS (250u * NS_PER_MS) /* an unanswered frame is taken for lost */

enum read_round_state {
    READ_ROUND_STATE_FREE,
    READ_ROUND_STATE_ASKED_HERE, /* the replica here finds a point and applies up to it */
    READ_ROUND_STATE_ASKED_PEER,
    READ_ROUND_STATE_POINT_KNOWN, /* the leader gave one; the replica here is to be told */
    READ_ROUND_STATE_WAITING,
    READ_ROUND_STATE_UNWANTED, /* nobody waits any more; the replica here is to be told */
};

struct read_round {
    enum read_round_state state;
    uint64_t ticket;
    uint64_t term;
    uint64_t peer_id;
    uint64_t again_at_ns; /* ASKED_PEER */
    uint64_t index;
    uint64_t clock_ms;
    struct list requests;
    bool probe; /* also asked for to learn whether this node is up to date */
};

enum read_effect_kind {
    READ_EFFECT_KIND_ASK_HERE,  /* replica_read_start for the round */
    READ_EFFECT_KIND_ASK_PEER,  /* READ_POINT to the peer */
    READ_EFFECT_KIND_WAIT,      /* replica_read_wait for the round's index */
    READ_EFFECT_KIND_CANCEL,    /* replica_read_cancel */
    READ_EFFECT_KIND_QUERY,     /* QUERY to the peer */
    READ_EFFECT_KIND_ANSWER,    /* read the table, or call reads_due */
    READ_EFFECT_KIND_FAIL,      /* answer the request with its last_status */
};

struct read_effect {
    enum read_effect_kind kind;
    uint32_t round; /* 0..READS_ROUNDS_MAX - 1 */
    uint64_t peer_id;
    uint64_t ticket;
    uint64_t term;
    uint64_t index;
    struct request *request; /* QUERY, ANSWER, FAIL; ANSWER and FAIL give it back */
    bool final;              /* ANSWER: also where a due lease would show */
};

struct reads {
    struct route route;
    struct list wanting;
    struct list due;
    struct list querying;
    struct list answering;
    struct list failing;
    struct read_round rounds[READS_ROUNDS_MAX];
    uint32_t query_count;
    uint64_t ticket_last;
    uint64_t retry_at_ns;
    uint64_t pause_ns;
    bool probe;
    bool resting; /* reads that may be answered wait for reads_rest to be taken back */
};

void reads_init(struct reads *reads, uint64_t seed);
void reads_set_route(struct reads *reads, const struct route *route);

/* The request must be in no list; its state is READING from now on. */
void reads_add(struct reads *reads, struct request *request);

/* Forget it, wherever it is (READING only). */
void reads_remove(struct reads *reads, struct request *request);

/* A point is wanted even if nobody reads: is this node up to date? */
void reads_want_probe(struct reads *reads);

/* No ANSWER while true: the table was read for long enough in this turn. All else goes on. */
void reads_rest(struct reads *reads, bool resting);

/* True when a read only waits for that. */
bool reads_kept_waiting(const struct reads *reads);

bool reads_next_effect(struct reads *reads, uint64_t now_ns, struct read_effect *out_effect);

/* The replica's completion for a round: OK once its point is applied here. Returns the term of the
 * leader that gave the point; 0 when none was reached. */
uint64_t reads_reached(struct reads *reads, uint32_t round, enum status status, uint64_t clock_ms,
                       uint64_t now_ns);

/* A READ_POINT_REPLY, or why the frame was not sent. */
struct reads_point_reply {
    uint64_t ticket;
    enum status status;
    uint64_t index; /* OK only */
    uint64_t clock_ms;
};
void reads_point(struct reads *reads, const struct reads_point_reply *reply, uint64_t now_ns);

/* A QUERY_REPLY came: the request that it is for, which is given back; NULL when nobody waits for
 * it. With a status that is not OK the request stays here to ask again, and the result is NULL. */
struct request *reads_query_answered(struct reads *reads, uint64_t ticket, enum status status,
                                     uint64_t now_ns);

/* The answer would show a lease that is due: look again when something was applied. */
void reads_due(struct reads *reads, struct request *request, uint64_t now_ns);
void reads_applied(struct reads *reads);

void reads_peer_down(struct reads *reads, uint64_t peer_id);
void reads_tick(struct reads *reads, uint64_t now_ns);
uint64_t reads_next_timer_ns(const struct reads *reads);

#endif
