/* The local API: messages on the unix socket <-> structs. Pure; used by both ends.
 *
 * Frames are MessagePack-RPC without an outer length: a request is [0, id, method, {parameters}], a
 * reply [1, id, error, result]; notifications are refused. docs/protocol.md is the specification,
 * golden files pin the bytes. Decoding trusts nothing: mp_scan() first, exact types, ranges, names;
 * whatever breaks a rule of a field yields STATUS_INVALID with field, value and rule, in the same
 * words on every path; unknown parameters are ignored unless their name begins with '!' (then
 * STATUS_INCOMPATIBLE).
 *
 * Names and keys travel as str or bin; numbers only as integers (3.0, "3", true and nil are
 * INVALID); a parameter named twice is INVALID. */
#ifndef CLIENT_PROTOCOL_H_
#define CLIENT_PROTOCOL_H_

#include "fsm/base/buf.h"
#include "fsm/base/mp_scan.h"
#include "fsm/base/violation.h"
#include "fsm/types.h"

#define PROTOCOL_VERSION   1u
#define PROTOCOL_DEPTH_MAX 8u
#define PROTO_RULE_LIMIT   "must be a whole number in 1..1000"

enum proto_method {
    PROTO_METHOD_HELLO = 1, /* versions and identity; optional, may come first */
    PROTO_METHOD_TAKE,
    PROTO_METHOD_CLAIM,
    PROTO_METHOD_RENEW,
    PROTO_METHOD_HEARTBEAT,
    PROTO_METHOD_RELEASE,
    PROTO_METHOD_RENEW_ALL,
    PROTO_METHOD_RELEASE_ALL,
    PROTO_METHOD_PURGE, /* administrator */
    PROTO_METHOD_OWNER,
    PROTO_METHOD_LIST,
    PROTO_METHOD_COUNT,
    PROTO_METHOD_STATUS,
    PROTO_METHOD_MEMBERS,
    PROTO_METHOD_METRICS,
    PROTO_METHOD_CLUSTER_INIT,     /* administrator */
    PROTO_METHOD_CLUSTER_TRANSFER, /* administrator */
};

/* "take", ..., "cluster_init"; never NULL. */
const char *proto_method_name(enum proto_method method);

/* True for methods that only the node's own user or root may call. */
bool proto_method_admin(enum proto_method method);

struct proto_request {
    uint32_t id; /* not 0: a reply with id 0 speaks of the whole connection */
    enum proto_method method;
    uint64_t deadline_ns; /* CLOCK_BOOTTIME; 0: DEADLINE_MS_DEFAULT from receipt */

    /* take .. purge: kind, ns (default filled in), owner, ttl, flags, keys, set version.
     * owner, list, count: only ns, owner (filter; absent: all), keys (owner: 1..KEYS_MAX). Keys are
     * in request order and may repeat here. */
    struct op op;
    bool stale;             /* owner, list, count */
    struct slice prefix;    /* list, count */
    struct slice after;     /* list: keys greater than this */
    enum lease_state state; /* list, count; 0: both */
    uint32_t limit;         /* list: page size, 1..LIST_PAGE_MAX; 0: the maximum */

    bool has_token_floor; /* cluster_init */
    uint64_t token_floor;
    uint64_t voters_wanted;  /* cluster_init; 0: default */
    uint64_t node_id;        /* cluster_transfer; 0: any */
    uint32_t client_version; /* any method: 0 if not said */
};

/* A named value of status, members, metrics: the name is text, the value one of three. */
enum proto_value_kind {
    PROTO_VALUE_KIND_U64,
    PROTO_VALUE_KIND_TEXT,
    PROTO_VALUE_KIND_BOOL,
};

struct proto_field {
    struct slice name;
    enum proto_value_kind kind;
    uint64_t number; /* U64; BOOL: 0 or 1 */
    struct slice text;
};

/* What happened to one key, and the log position and clock that it is true of. */
struct keyed_outcome {
    struct outcome outcome;
    struct position position;
    uint64_t clock_ms;
};

struct proto_reply {
    uint32_t id;
    enum proto_method method;

    /* Not OK: an error, and nothing below it counts. */
    enum status status;
    struct slice detail;        /* which node, limit or version; absent: none */
    struct violation violation; /* INVALID: field NULL where no field is to blame */

    struct position position; /* that the reply is true of; of several parts the highest */
    uint64_t clock_ms;
    bool stale; /* a stale read; position and clock are the local table's */

    /* take .. release: one per key, in the order of the request, repeats included. */
    const struct keyed_outcome *outcomes;
    uint32_t outcome_count;

    /* renew_all, release_all, purge, count. */
    uint64_t count;
    uint64_t set_version; /* renew_all */
    bool list_again;
    const struct departure *departures;
    uint32_t departure_count;

    /* owner: one per key in request order, key absent (base NULL) where nobody has it.
     * list: the page. */
    const struct lease_view *leases;
    uint32_t lease_count;
    bool more; /* list: there may be more after the last key */

    /* status, metrics, hello, cluster_init: named values. members: `row_len` values a row. */
    const struct proto_field *fields;
    uint32_t field_count;
    uint32_t row_len; /* members: fields per member; else 0 */
};

/* --- Both ends: is one whole message there? MORE: read on. REFUSED: close the connection.
 * *out_len is its length where WHOLE. */
enum proto_verdict {
    PROTO_VERDICT_WHOLE,
    PROTO_VERDICT_MORE,
    PROTO_VERDICT_REFUSED,
};
enum proto_verdict proto_scan(struct slice bytes, size_t *out_len);

/* The same for a message that arrives in pieces; each call goes on where the last one ended.
 * `bytes` is all that is there from the message's beginning. After WHOLE it is ready for the next
 * one. */
struct proto_scanner {
    struct mp_scanner object;
    bool begun;
};
void proto_scanner_init(struct proto_scanner *scanner);
enum proto_verdict proto_scanner_look(struct proto_scanner *scanner, struct slice bytes,
                                      size_t *out_len);

/* Scratch for decoded arrays; one per thread. Decoded slices borrow from the input. */
struct proto_decoder;
struct proto_decoder *proto_decoder_create(void);
void proto_decoder_destroy(struct proto_decoder *decoder);

/* --- The node's end. `bytes` is one whole message. OK; INVALID or INCOMPATIBLE with
 * out_request->id set (answer with an error); MALFORMED when not even an id is known (close).
 * `now_ns` judges the deadline (DEADLINE_MS_MIN..DEADLINE_MS_MAX from now; one that has passed is
 * left to the caller). */
NODISCARD enum status proto_decode_request(struct proto_decoder *decoder, struct slice bytes,
                                           uint64_t now_ns, struct proto_request *out_request,
                                           struct violation *out_violation);
void proto_encode_reply(const struct proto_reply *reply, struct buf *out);

/* An upper bound of the encoded reply to this request, in bytes. */
size_t proto_reply_len_max(const struct proto_request *request);

/* --- The client's end. */
void proto_encode_request(const struct proto_request *request, struct buf *out);

/* `method` is what was asked under that id: out_reply->id is read first by proto_reply_id. */
NODISCARD enum status proto_reply_id(struct slice bytes, uint32_t *out_id);
NODISCARD enum status proto_decode_reply(struct proto_decoder *decoder, struct slice bytes,
                                         enum proto_method method, struct proto_reply *out_reply);

#endif
