/* Tenure: who answers for a sandbox. The client library's public interface.
 *
 * Blocking calls, from any thread, to the node of this host over its unix socket. Creating a client
 * never connects; the first call does. Each call takes a connection for its length and holds no
 * lock while it waits. Every call ends by its deadline (5 s unless said otherwise), whatever the
 * node does. After a fork the child may go on using the client: it opens connections of its own
 * and, if the client makes its owner itself, has another owner. Signals are not touched, SIGPIPE is
 * never raised. What is promised and what outcomes mean: docs/protocol.md.
 *
 *     struct tenure_client *client;
 *     struct tenure_reply *reply;
 *     struct tenure_failure failure;
 *     struct tenure_item item = {.key = "sandbox-1"};
 *     struct tenure_call call = {.ttl_ms = 30000, .items = &item, .item_count = 1};
 *
 *     if (tenure_client_create(NULL, &client, &failure) != TENURE_ERROR_NONE) ...
 *     if (tenure_claim(client, &call, &reply, &failure) != TENURE_ERROR_NONE) ...
 *     if (reply->outcomes[0].kind == TENURE_OUTCOME_GRANTED) ...
 *     tenure_reply_free(reply);
 *     tenure_client_destroy(client); */
#ifndef CLIENT_TENURE_H_
#define CLIENT_TENURE_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TENURE_API __attribute__((visibility("default")))

#define TENURE_VERSION             "0.1.0"
#define TENURE_SOCKET_DEFAULT      "/run/tenure/api.sock"
#define TENURE_NAMESPACE_DEFAULT   "default"
#define TENURE_DEADLINE_MS_DEFAULT 5000u
#define TENURE_PROTOCOL_VERSION    1u

/* Errors never mean "not yours". Only UNAVAILABLE, DENIED, INVALID, INCOMPATIBLE and INTERNAL are
 * certainly not done; UNKNOWN may have been: look, through the same node, before trying again. */
enum tenure_error {
    TENURE_ERROR_NONE = 0,
    TENURE_ERROR_INVALID = 1,
    TENURE_ERROR_UNAVAILABLE = 2,
    TENURE_ERROR_UNKNOWN = 3,
    TENURE_ERROR_DENIED = 4,
    TENURE_ERROR_INCOMPATIBLE = 5,
    TENURE_ERROR_INTERNAL = 6,
};

/* "INVALID", "UNAVAILABLE", ...; "NONE". Never NULL. */
TENURE_API const char *tenure_error_name(enum tenure_error error);

/* Why a call failed, in words. */
struct tenure_failure {
    enum tenure_error error;
    char status[32];   /* the exact reason, e.g. "NO_LEADER" */
    char message[512]; /* one line for people */
    char field[72];    /* INVALID: what broke which rule; else empty */
    char value[104];
    char rule[200];
};

enum tenure_outcome_kind {
    TENURE_OUTCOME_GRANTED = 1,
    TENURE_OUTCOME_HELD = 2,
    TENURE_OUTCOME_TEARDOWN = 3,
    TENURE_OUTCOME_GRACE = 4,
    TENURE_OUTCOME_RENEWED = 5,
    TENURE_OUTCOME_LAPSED = 6,
    TENURE_OUTCOME_LOST = 7,
    TENURE_OUTCOME_REESTABLISHED = 8,
    TENURE_OUTCOME_RELEASED = 9,
    TENURE_OUTCOME_NOT_OWNER = 10,
    TENURE_OUTCOME_STALE = 11,
    TENURE_OUTCOME_MISMATCH = 12,
    TENURE_OUTCOME_UNAVAILABLE = 13, /* in place of an outcome, for one key of many: a limit */
    TENURE_OUTCOME_UNKNOWN = 14,     /* likewise: that key's part may have been done */
};

/* "GRANTED", "HELD", ... Never NULL. */
TENURE_API const char *tenure_outcome_name(enum tenure_outcome_kind kind);

enum tenure_state {
    TENURE_STATE_ANY = 0, /* in filters only */
    TENURE_STATE_OWN = 1, /* responsible for the sandbox */
    TENURE_STATE_DEL = 2, /* tearing it down */
};

/* "own", "del", "any". */
TENURE_API const char *tenure_state_name(enum tenure_state state);

enum tenure_reason {
    TENURE_REASON_RELEASED = 1,
    TENURE_REASON_EXPIRED = 2,
    TENURE_REASON_TAKEN = 3,
    TENURE_REASON_SETTLED = 4,
    TENURE_REASON_PURGED = 5,
    TENURE_REASON_RESTORED = 6,
    TENURE_REASON_TEARDOWN = 7,
};

/* "released", "expired", ... Never NULL. */
TENURE_API const char *tenure_reason_name(enum tenure_reason reason);

/* --- The client. All members may be 0 or NULL for the default; texts are copied. */
struct tenure_options {
    const char *socket;   /* TENURE_SOCKET_DEFAULT */
    const char *ns;       /* TENURE_NAMESPACE_DEFAULT */
    const char *owner;    /* HOST:UUID, made by each process that uses the client */
    uint64_t deadline_ms; /* 10..60000; of every call that names none */
};

struct tenure_client;

/* `options` and `out_failure` may be NULL. */
TENURE_API enum tenure_error tenure_client_create(const struct tenure_options *options,
                                                  struct tenure_client **out_client,
                                                  struct tenure_failure *out_failure);

/* No call may be running. Releases no lease. NULL is harmless. */
TENURE_API void tenure_client_destroy(struct tenure_client *client);

/* The owner that calls of this process have unless they name one. Lives as long as the client. */
TENURE_API const char *tenure_client_owner(struct tenure_client *client);

/* CLOCK_BOOTTIME in nanoseconds: the clock of `deadline_ns` below. */
TENURE_API uint64_t tenure_now_ns(void);

/* --- What is asked. Zero is "not given" for every member. */
struct tenure_item {
    const char *key;
    bool has_if_token; /* claim destroy, renew, heartbeat, release */
    uint64_t if_token;
    const void *meta; /* take, claim, renew reestablish; NULL: keep what the lease has */
    size_t meta_len;
    const void *identity; /* likewise */
    size_t identity_len;
};

struct tenure_call {
    const char *ns;       /* the client's */
    const char *owner;    /* the client's; list and count: everybody's */
    uint64_t deadline_ms; /* the client's */
    uint64_t ttl_ms;      /* take, claim, renew, heartbeat, renew_all: 10..86400000 */
    bool destroy;         /* claim */
    bool adopt;           /* claim: only if unowned for grace_ms */
    bool reestablish;     /* renew */
    bool stale;           /* owner, list, count: what this node knows, without asking the leader */
    uint64_t grace_ms;
    bool has_set_version; /* renew_all */
    uint64_t set_version;
    const struct tenure_item
        *items; /* take, heartbeat: one; claim, renew, release, owner: 1..10000 */
    size_t item_count;
    const char *prefix;      /* list, count */
    const char *after;       /* list: only keys greater than this */
    enum tenure_state state; /* list, count */
    uint64_t limit;          /* list: 1..1000 */
};

/* --- What is answered. One block of memory; tenure_reply_free frees all of it. */
struct tenure_holder {
    const char *owner; /* NULL: there is none to name */
    enum tenure_state state;
    uint64_t token;
    uint64_t ms_left;
};

struct tenure_outcome {
    const char *key; /* as it was asked */
    enum tenure_outcome_kind kind;

    /* GRANTED, RENEWED, REESTABLISHED. The holder counts until deadline_ns on its own clock and
     * must not act as owner after it: t_sent + TTL - 1 % (tenure_now_ns). */
    uint64_t token;
    uint64_t ms_left;
    uint64_t deadline_ns;
    bool held_before; /* GRANTED: this owner had the lease already */

    struct tenure_holder holder; /* of refusals; of GRANTED by a takeover: from whom */
    uint64_t grace_ms_left;      /* GRACE */
    const char *limit;           /* UNAVAILABLE; else NULL */

    /* What it is true of; of two answers about one key the higher (index, place) is the later. */
    uint64_t index;
    uint32_t place;
    uint64_t clock_ms;
};

struct tenure_lease {
    const char *ns;
    const char *key; /* NULL (owner only): nobody has it */
    const char *owner;
    enum tenure_state state;
    uint64_t ttl_ms;
    uint64_t ms_left;
    uint64_t token;
    uint64_t since_ms; /* cluster clock since which this owner has it without a break */
    const void *meta;  /* NULL: none; bytes, not a text */
    size_t meta_len;
    const void *identity;
    size_t identity_len;
};

struct tenure_departure {
    const char *key;
    uint64_t token;
    enum tenure_reason reason;
};

/* A named value of status, members or metrics. */
struct tenure_field {
    const char *name;
    const char *text; /* NULL: it is a number or a flag */
    bool is_flag;
    uint64_t number; /* a flag: 0 or 1 */
};

struct tenure_reply {
    uint64_t index; /* log position and cluster clock that the whole is true of */
    uint32_t place;
    uint64_t clock_ms;
    bool stale;

    const struct tenure_outcome *outcomes; /* take .. release: one per item, in order */
    size_t outcome_count;

    uint64_t count;       /* renew_all, release_all, purge, count */
    uint64_t set_version; /* renew_all: pass it the next time */
    bool list_again;      /* renew_all: what left is not remembered */
    const struct tenure_departure *departures;
    size_t departure_count;

    const struct tenure_lease *leases; /* owner: one per item, in order; list: the page */
    size_t lease_count;
    bool more; /* list: ask again with `after` = the last key */

    const struct tenure_field *fields; /* status, metrics; members: row_len of them per node */
    size_t field_count;
    size_t row_len;
};

/* NULL is harmless. */
TENURE_API void tenure_reply_free(struct tenure_reply *reply);

/* --- The calls. *out_reply is set only when TENURE_ERROR_NONE is returned; out_failure may be
 * NULL. A refusal (HELD, LOST, ...) is an outcome, not an error. */
#define TENURE_CALL(name)                                                                          \
    TENURE_API enum tenure_error tenure_##name(                                                    \
        struct tenure_client *client, const struct tenure_call *call,                              \
        struct tenure_reply **out_reply, struct tenure_failure *out_failure)

TENURE_CALL(take);
TENURE_CALL(claim);
TENURE_CALL(renew);
TENURE_CALL(heartbeat); /* keeps a teardown marker alive */
TENURE_CALL(release);
TENURE_CALL(renew_all);
TENURE_CALL(release_all);
TENURE_CALL(owner);
TENURE_CALL(list);
TENURE_CALL(count);
TENURE_CALL(status);
TENURE_CALL(metrics);

#ifdef __cplusplus
}
#endif

#endif
