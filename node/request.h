/* One request of a client on its way through the router.
 *
 *              ┌──────► HELD ◄──────┐ while its owner or keys are being settled
 *              ▼                    ▼
 *   submit ─► QUEUED ─► NUMBERED ─► ANSWERED ─► DELIVERING ─► gone
 *              │ a read               ▲
 *              └──► READING ──────────┘
 *
 * A write is cut into parts of at most ENTRY_LEN_TARGET bytes, each a command with a number of its
 * own. A key named twice is done once and answered twice; where the two differ in guard or metadata
 * the first one counts. Results come back in any order and are merged in the order of the request.
 * A part that failed shows as UNKNOWN or UNAVAILABLE in place of its keys' outcomes, unless all
 * parts failed alike or only one key was asked for: then the whole reply is that error.
 *
 * This file knows nothing of numbers, leaders or time; the router moves requests from state to
 * state. Pure. */
#ifndef NODE_REQUEST_H_
#define NODE_REQUEST_H_

#include "client/protocol.h"
#include "fsm/base/heap.h"
#include "fsm/base/list.h"
#include "fsm/result.h"
#include "fsm/types.h"

#define REQUEST_BYTES_INLINE 448u /* a result of one key with the longest owner fits */

enum request_state {
    REQUEST_STATE_QUEUED,
    REQUEST_STATE_HELD,
    REQUEST_STATE_NUMBERED,
    REQUEST_STATE_READING,
    REQUEST_STATE_ANSWERED,
    REQUEST_STATE_DELIVERING,
};

struct job; /* the router's: the number of a part */

struct request_part {
    uint32_t first; /* in the joined keys */
    uint32_t count;
    struct job *job; /* borrowed; NULL while unnumbered and after its number is done with */
    bool done;
    bool granted; /* some key was granted that its owner did not hold before */
    enum status status; /* of a part that is done */
    uint8_t *bytes;     /* owned, or inline: the result that outcomes point into */
};

struct request {
    struct list link;  /* in the router's list of its state, or of a read round */
    struct heap_node timer; /* its deadline */
    uint64_t timer_order;
    uint64_t deadline_ns;
    enum request_state state;
    const struct proto_request *asked; /* borrowed; NULL once answered or abandoned */
    void *owner; /* whoever handed it in: the router does not look at it */
    bool read;
    bool no_hop; /* came from a peer: answer it here or not at all */

    /* Keys as submitted to the state machine: the request's own where none repeats. */
    const struct key_item *keys;
    uint32_t key_count;
    struct key_item *joined; /* owned, or NULL */
    uint32_t *joined_of;     /* owned, or NULL: for each asked key its place in `joined` */

    struct request_part *parts; /* owned, or inline */
    uint32_t part_count;
    uint32_t parts_done;
    uint32_t parts_sending; /* parts that are with a leader or waiting for one */
    uint32_t part_next;     /* the first one that was never made ready */
    uint64_t result_len_max; /* of all parts together */

    struct keyed_outcome *outcomes; /* owned, or inline: one per joined key */
    struct keyed_outcome *expanded; /* owned, or NULL: one per asked key, for the reply */
    struct departure *departures;   /* owned, or NULL */
    struct proto_reply merged;      /* what the parts said beside outcomes */
    struct violation violation;

    struct request_part part_one;
    struct keyed_outcome outcome_one;
    uint8_t bytes_one[REQUEST_BYTES_INLINE];
    bool bytes_one_used;

    /* Reads. */
    uint64_t read_clock_ms; /* of its read point */
    uint64_t due_until_ns;  /* it waits for a due lease until then; 0: not yet */
    uint64_t query_ticket;  /* a node without a log asks the leader for the whole read */
    uint64_t query_at_ns;   /* when to ask again */
    enum status last_status; /* why it is not answered yet; OK: nothing refused it */
};

void request_init(struct request *request);

/* Frees what it owns and forgets everything; may be begun anew. */
void request_clear(struct request *request);

/* Take a request over: join repeats, cut parts. TOO_LARGE when its outcomes can't fit what an
 * origin may have unconfirmed; then the request is clear again. */
NODISCARD enum status request_begin(struct request *request, const struct proto_request *asked,
                                    uint64_t deadline_ns);

/* The operation of one part; borrows from what was asked. */
struct op request_part_op(const struct request *request, uint32_t idx);

/* The state machine's answer for a part. Copies the bytes. OK: the part is done, also where the
 * result says INVALID. Else the part is as it was: VOID, FORGOTTEN, ORIGIN_UNKNOWN as the result
 * says, MALFORMED for bytes that are no result of this part. */
NODISCARD enum status request_part_answer(struct request *request, uint32_t idx,
                                          struct result_decoder *decoder, struct slice bytes);

/* The part ended without an answer. */
void request_part_fail(struct request *request, uint32_t idx, enum status status);

static inline bool request_complete(const struct request *request)
{
    return request->parts_done == request->part_count;
}

/* Merge what the parts said. Valid until request_clear. */
void request_reply(struct request *request, struct proto_reply *out_reply);

/* A reply that is this error and nothing else. */
void request_error_reply(const struct request *request, enum status status,
                         struct proto_reply *out_reply);

#endif
