/* The router: what happens to each request, decided in one place and carried out elsewhere.
 *
 * Pure: events go in (a request, an answer, another leader, time), effects come out one after the
 * other (router_next_effect). It has no clock, no socket and no table. node/dispatch drives it.
 *
 * It numbers what this node submits, (origin, sequence), and keeps the promises of "exactly once,
 * and nothing late" (docs/protocol.md):
 *
 *   - The origin is drawn by an entry of its own before anything else; nothing is submitted until
 *     its answer is here. When the state machine has forgotten the origin a new one is drawn: a
 *     part that was sent once goes again under it, one that was sent more often is UNKNOWN.
 *   - A request is numbered when all of its parts fit what an origin may have unconfirmed; until
 *     then it waits, unsent, in order of arrival. So no two large requests can block each other.
 *     Small ones pass a large one that does not fit yet, but take nothing of what it will need: it
 *     is numbered as soon as all is confirmed that was numbered when its turn had come.
 *   - Each sending of a part has a fate of its own. "Not done" is said of one sending; as long as
 *     one of them may have been done the part stays so, until the state machine answers for its
 *     number.
 *   - At its deadline a request is answered. What the replica here was given and has not submitted
 *     yet is taken back then, and was certainly not done. A part of which some sending may have
 *     been done is UNKNOWN, and its number is settled: no deadline, sent again until answered.
 *     Meanwhile whatever the owner asks and every read of the keys is held back. A grant whose
 *     reply reached nobody is settled likewise.
 *   - A number is confirmed when its reply was wholly written, when it is settled, or when it is
 *     certain that no sending of it was or will be done.
 *
 * Life of a number (struct job):
 *
 *   READY ──► SENT ──► ANSWERED ──► confirmed
 *     ▲        │ │         └─ a grant nobody heard of ─┐
 *     └ PAUSED ┘ └─ deadline, may have been done ──► settling (READY, SENT, PAUSED) ──► confirmed
 */
#ifndef NODE_ROUTER_H_
#define NODE_ROUTER_H_

#include "fsm/command.h"
#include "node/leadership.h"
#include "node/reads.h"
#include "node/request.h"

#define ROUTER_WAITING_MAX 16384u  /* requests that are not numbered yet, and reads */
#define ROUTER_PARTS_SENDING_MAX 4u /* of one request, so that large ones let others through */

/* Sending again. A refused sending waits from 5 ms up to 100 ms; an unanswered forward is taken for
 * lost after 500 ms, then 1, 2, 4 s. Another leader ends both at once. */
#define ROUTER_PAUSE_NS_MIN (5u * NS_PER_MS)
#define ROUTER_PAUSE_NS_MAX (100u * NS_PER_MS)
#define ROUTER_SILENCE_NS_MIN (500u * NS_PER_MS)
#define ROUTER_SILENCE_NS_MAX (4000u * NS_PER_MS)

struct router;

/* Names one sending: comes back with its answer. */
struct router_ticket {
    uint64_t id;
    uint32_t attempt;
};

enum router_effect_kind {
    ROUTER_EFFECT_KIND_PROPOSE, /* to the replica here */
    ROUTER_EFFECT_KIND_FORWARD, /* to the leader of `term` */
    ROUTER_EFFECT_KIND_REPLY,   /* carry it to the caller, then router_delivered */
    ROUTER_EFFECT_KIND_READ,    /* see struct read_effect; router_read_done gives a reply */
};

struct router_effect {
    enum router_effect_kind kind;

    /* PROPOSE, FORWARD: not after the deadline; UINT64_MAX: none. Borrows until the next call. */
    struct router_ticket ticket;
    struct command command;
    uint64_t peer_id;
    uint64_t term;
    uint64_t deadline_ns;

    /* REPLY: borrows until router_delivered. */
    struct request *request;
    struct proto_reply reply;

    struct read_effect read;
};

/* Take back what PROPOSE gave to the replica here. True: it was not submitted, never will be, and
 * is not answered any more. Called inside the router's own calls; it must not call the router. */
typedef bool (*router_withdraw_cb)(void *ctx, void *proposal);

struct router *router_create(uint64_t seed, router_withdraw_cb withdraw, void *ctx);

/* Whatever is still there is forgotten without a word. */
void router_destroy(struct router *router);

/* Take a request. OVERLOADED, TOO_LARGE, CLOSING: refused, and nothing is kept. `owner` is found
 * again in *out_request. */
NODISCARD enum status router_submit(struct router *router, const struct proto_request *asked,
                                    uint64_t deadline_ns, void *owner,
                                    struct request **out_request);

/* For router_submit of a peer's read: answer it here as the leader or fail it. */
NODISCARD enum status router_submit_query(struct router *router, const struct proto_request *asked,
                                          uint64_t deadline_ns, void *owner,
                                          struct request **out_request);

/* After REPLY: wholly written, or not. The request is gone. */
void router_delivered(struct router *router, struct request *request, bool wholly,
                      uint64_t now_ns);

/* Before REPLY was taken: nobody wants the answer any more. The request is gone. */
void router_abandon(struct router *router, struct request *request, uint64_t now_ns);

void router_set_route(struct router *router, const struct route *route, uint64_t now_ns);

/* The replica here accepted what PROPOSE gave it. `proposal` is what `withdraw` is called with, at
 * most until this sending is answered. */
void router_proposed(struct router *router, struct router_ticket ticket, void *proposal);

/* The fate of one sending: OK with an encoded struct result, or why not. */
void router_answered(struct router *router, struct router_ticket ticket, enum status status,
                     struct slice result, uint64_t now_ns);

/* Nothing that was sent to this peer and not answered will be answered. */
void router_peer_down(struct router *router, uint64_t peer_id, uint64_t now_ns);

/* Reads: events as in reads.h. */
struct reads *router_reads(struct router *router);

/* The reply to a read whose ANSWER or FAIL effect was taken; it becomes a REPLY effect at once, and
 * the caller carries the reply itself: `request` is then waiting for router_delivered. */
void router_read_done(struct router *router, struct request *request);

/* True: no FORWARD, since it would wait on its way out while its time runs. What waits here instead
 * was certainly not done at its deadline. */
void router_hold_forwards(struct router *router, bool hold);

/* Timers that are due. */
void router_tick(struct router *router, uint64_t now_ns);
uint64_t router_next_timer_ns(const struct router *router);

/* False: nothing to do now. */
bool router_next_effect(struct router *router, uint64_t now_ns, struct router_effect *out_effect);

/* No new requests any more (CLOSING). */
void router_close(struct router *router);

/* Answer all that waits: UNKNOWN where it may have been done, else CLOSING. Settling ends. */
void router_end(struct router *router, uint64_t now_ns);

/* True when no request and no settle is left. */
bool router_idle(const struct router *router);

struct router_stats {
    uint64_t requests;
    uint64_t unknown;
    uint64_t unavailable;
    uint64_t resubmissions;
    uint64_t settles;
    uint64_t origins;
    uint64_t waiting;  /* gauge: not numbered yet, and reads */
    uint64_t live;     /* gauge: requests in all */
    uint64_t settling; /* gauge */
    uint64_t unconfirmed; /* gauge: numbers above the mark */
};
void router_stats(const struct router *router, struct router_stats *out_stats);

#endif
