/* A whole node without its input and output: router, forwarding, reads and replica, wired.
 *
 * The service (local API) and the simulator's clients hand calls in; frames of peers come in,
 * frames to peers go out through the transport; time is passed in. Decisions about requests live in
 * the pure router; this module carries its effects out on the replica and the transport.
 *
 * The life of a call: dispatch_submit -> `on_done` once with the reply -> dispatch_delivered, which
 * says whether the reply was wholly written. Then the number is confirmed, or, for a grant that
 * nobody learned of and for a call that ended UNKNOWN, settled. A call without an answer at its
 * deadline is answered then: UNAVAILABLE if it was certainly not done, else UNKNOWN. */
#ifndef NODE_DISPATCH_H_
#define NODE_DISPATCH_H_

#include "client/protocol.h"
#include "fsm/base/list.h"
#include "fsm/fsm.h"
#include "node/transport.h"

struct dispatch;
struct replica;

/* One call of a client. Embedded in the caller's own struct, which must live until
 * dispatch_delivered has returned. */
struct dispatch_call {
    /* Set by the caller. `request` (and all it points to) must stay as it is until on_done. Lease
     * verbs and owner, list, count only; op_validate has said OK for it with the repeats joined. */
    const struct proto_request *request;
    uint64_t deadline_ns;

    /* Exactly once, never inside dispatch_submit. The reply and what it points to are valid during
     * the call. */
    void (*on_done)(struct dispatch_call *call, const struct proto_reply *reply);
    void *ctx;

    void *internal; /* the dispatcher's own */
};

struct dispatch_config {
    struct replica *replica;
    struct transport transport;
    uint64_t seed; /* of back-off and numbering nonces */
    /* The clock as it is at this very moment: how long the reads of a turn take. */
    uint64_t (*clock_ns)(void *ctx);
    void *clock_ctx;
};

struct dispatch *dispatch_create(const struct dispatch_config *config);

/* Take a call. Refused at once (no on_done): OVERLOADED, CLOSING, UNINITIALISED. */
NODISCARD enum status dispatch_submit(struct dispatch *dispatch, struct dispatch_call *call,
                                      uint64_t now_ns);

/* After on_done: the reply was wholly written to the caller, or never will be. */
void dispatch_delivered(struct dispatch *dispatch, struct dispatch_call *call, bool wholly,
                        uint64_t now_ns);

/* Before on_done: the caller is gone. No on_done any more; a grant is settled. */
void dispatch_abandon(struct dispatch *dispatch, struct dispatch_call *call, uint64_t now_ns);

/* Peers: frames of the types READ_POINT .. LEADER, FORWARD, REPLICA. */
void dispatch_receive(struct dispatch *dispatch, uint64_t peer_id, enum frame_type type,
                      struct slice payload, uint64_t now_ns);
void dispatch_peer_up(struct dispatch *dispatch, uint64_t peer_id, uint64_t now_ns);
void dispatch_peer_down(struct dispatch *dispatch, uint64_t peer_id, uint64_t now_ns);
void dispatch_peer_silent(struct dispatch *dispatch, uint64_t peer_id, uint64_t now_ns);
void dispatch_peer_heard(struct dispatch *dispatch, uint64_t peer_id, uint64_t now_ns);

/* The replica's callbacks, passed on by the owner. */
void dispatch_on_view(struct dispatch *dispatch);
void dispatch_on_applied(struct dispatch *dispatch, uint64_t index, const struct changes *changes);

/* At the end of every turn: sends what this turn decided, drives replica_turn. */
void dispatch_turn(struct dispatch *dispatch, uint64_t now_ns);
uint64_t dispatch_next_timer_ns(const struct dispatch *dispatch);

/* The loop stalled this long before this turn's input was read: over 500 ms, what other hosts sent
 * and still waits to be read is refused as not done. */
void dispatch_stalled(struct dispatch *dispatch, uint64_t stall_ns, uint64_t now_ns);

/* What this node believes about leadership: for status, readiness and spares. */
struct dispatch_view {
    uint64_t leader_id; /* 0: unknown */
    uint64_t leader_term;
    bool leader_serving;
    bool ready; /* a leader is known and everything it had committed when asked is applied here; a
                 * spare: a leader answered within 1 s */
    uint64_t ready_checked_ns;
};
void dispatch_view(const struct dispatch *dispatch, struct dispatch_view *out_view);

struct dispatch_stats {
    uint64_t calls;
    uint64_t calls_waiting;  /* gauge */
    uint64_t calls_unknown;  /* ended UNKNOWN */
    uint64_t calls_unavailable;
    uint64_t forwards_sent;
    uint64_t forwards_received;
    uint64_t forwards_refused;
    uint64_t resubmissions;
    uint64_t settles;
    uint64_t settling; /* gauge */
    uint64_t origins;  /* opened by this node */
    uint64_t reads;
    uint64_t reads_waited_due;
};
void dispatch_stats(const struct dispatch *dispatch, struct dispatch_stats *out_stats);

/* Refuse new calls; `cb` once nothing waits any more or at `deadline_ns`, when the rest is
 * answered. */
void dispatch_drain(struct dispatch *dispatch, uint64_t deadline_ns, void (*cb)(void *ctx),
                    void *ctx);
void dispatch_destroy(struct dispatch *dispatch);

#endif
