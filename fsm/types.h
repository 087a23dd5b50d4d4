/* The vocabulary that every folder shares: keys, owners, leases, operations, outcomes, limits.
 *
 * Nothing here has behaviour. Meaning: semantics in docs/protocol.md; where a number belongs to the
 * replicated state it is only the default that a cluster is born with. Slices inside these structs
 * borrow from whoever filled them in; a slice whose base is NULL is an absent optional field, one
 * with a base and length 0 is present and empty. */
#ifndef FSM_TYPES_H_
#define FSM_TYPES_H_

#include <stdbool.h>
#include <stdint.h>

#include "fsm/base/slice.h"
#include "fsm/base/status.h"
#include "fsm/base/units.h"

#define NAMESPACE_LEN_MAX 64u /* bytes of [a-z0-9._:-] */
#define NAMESPACE_DEFAULT "default"
#define KEY_LEN_MAX 512u   /* bytes of UTF-8 without control characters, at least 1 */
#define OWNER_LEN_MAX 255u /* the same rules */
#define META_LEN_MAX 1024u
#define IDENTITY_LEN_MAX 32u
#define TTL_MS_MIN 10ull
#define TTL_MS_MAX 86400000ull /* 24 h */
#define KEYS_MAX 10000u        /* keys in one request */
#define LIST_PAGE_MAX 1000u    /* leases in one page of a list */
#define DEADLINE_MS_DEFAULT 5000ull
#define DEADLINE_MS_MIN 10ull
#define DEADLINE_MS_MAX 60000ull

#define ENTRY_LEN_TARGET (32u * 1024u) /* bytes of commands that are put into one entry */
#define ENTRY_LEN_MAX (64u * 1024u)    /* no entry is longer, padding included */
#define MESSAGE_LEN_MAX (8u * 1024u * 1024u) /* a message on the API socket */

/* The rules in the words of an INVALID error, the same on every path (hazard T5). */
#define RULE_NAMESPACE "must be 1..64 bytes of [a-z0-9._:-]"
#define RULE_KEY "must be 1..512 bytes of UTF-8 without control characters"
#define RULE_OWNER "must be 1..255 bytes of UTF-8 without control characters"
#define RULE_META "must be 0..1024 bytes"
#define RULE_IDENTITY "must be 0..32 bytes"
#define RULE_TTL_MS "must be a whole number of milliseconds in 10..86400000"
#define RULE_GRACE_MS "must be a whole number of milliseconds in 0..the retention of tombstones"
#define RULE_KEYS "must be 1..10000 keys"
#define RULE_ONE_KEY "must be exactly one key"
#define RULE_NOT_HERE "is not part of this operation"
#define RULE_IF_TOKEN "goes with claim destroy, renew, heartbeat and release only"
#define RULE_META_WHERE "goes with take, claim and renew reestablish only"
#define RULE_ONLY_ADOPT "goes with adopt only"
#define RULE_AT_LEAST_1 "must be at least 1"
#define RULE_VOTERS "must be 1, 3 or 5"
#define RULE_TOKEN_FLOOR "must be 0..2^62"

/* Defaults of limits that belong to the replicated state. */
#define LEASES_MAX_DEFAULT 1000000ull
#define TOMBSTONES_MAX_DEFAULT 1000000ull
#define TOMBSTONE_RETENTION_MS_DEFAULT 600000ull /* 10 minutes */
#define DEPARTURES_MAX_DEFAULT 1024ull           /* per owner */
#define ORIGINS_MAX_DEFAULT 4096ull
#define ORIGIN_RETENTION_MS_DEFAULT 3600000ull /* 1 h */
#define REMOVAL_SLICE_DEFAULT 1000ull          /* due things removed in one entry */
#define VOTERS_WANTED_DEFAULT 3ull

/* Bounds of what the replicated state may be told. Retention bounds the grace of an adoption;
 * departures bound the largest result (result.c). */
#define TOMBSTONE_RETENTION_MS_MAX 86400000ull /* 24 h */
#define DEPARTURES_MAX_MAX 1024ull
#define CLOCK_MS_MAX (1ull << 53) /* 285,000 years: clock + TTL never overflows */
#define TOKEN_FLOOR_MAX (1ull << 62) /* leaves as many tokens to draw above it */

/* Of one origin. */
#define UNCONFIRMED_MAX 1024u
#define UNCONFIRMED_LEN_MAX (4u * 1024u * 1024u) /* bytes of outcomes */

_Static_assert(KEY_LEN_MAX + OWNER_LEN_MAX + META_LEN_MAX + IDENTITY_LEN_MAX + NAMESPACE_LEN_MAX <
                   ENTRY_LEN_TARGET / 4,
               "a command on one key fits an entry several times");
_Static_assert(ENTRY_LEN_TARGET < ENTRY_LEN_MAX, "one command more never passes the maximum");

/* Why a lease is there. The values are part of log, snapshot and protocol. */
enum lease_state {
    LEASE_STATE_OWN = 1, /* responsible for the sandbox */
    LEASE_STATE_DEL = 2, /* tearing it down */
};

/* Why a lease ended. The values are part of log, snapshot and protocol. */
enum end_reason {
    END_REASON_RELEASED = 1,
    END_REASON_EXPIRED = 2,
    END_REASON_TAKEN = 3,    /* another owner took it; departures only */
    END_REASON_SETTLED = 4,  /* the caller never learned of its grant */
    END_REASON_PURGED = 5,   /* the namespace was purged */
    END_REASON_RESTORED = 6, /* the cluster was restored from a snapshot */
    END_REASON_TEARDOWN = 7, /* its own owner began the teardown; departures only */
    /* 8 had a name once and no lease ever ended so; it stays free. */
};

/* What is asked of the state machine. The values are part of the log and of forwarded frames. */
enum op_kind {
    OP_KIND_TAKE = 1,
    OP_KIND_CLAIM = 2,
    OP_KIND_RENEW = 3,
    OP_KIND_HEARTBEAT = 4,
    OP_KIND_RELEASE = 5,
    OP_KIND_RENEW_ALL = 6,
    OP_KIND_RELEASE_ALL = 7,
    OP_KIND_PURGE = 8,
    /* From here on: what nodes ask, not callers. None of these is numbered. */
    OP_KIND_OPEN_ORIGIN = 9,
    OP_KIND_SETTLE = 10,
    OP_KIND_BIRTH = 11,
    OP_KIND_CONFIGURE = 12,
    OP_KIND_RESTORE = 13,
    OP_KIND_RECOVER = 14,
};

/* One key of an operation. */
struct key_item {
    struct slice key;
    bool has_if_token; /* guard: claim destroy, renew, heartbeat, release */
    uint64_t if_token;
    struct slice meta;     /* absent: keep what the lease has */
    struct slice identity; /* likewise */
};

/* Limits, periods and the cluster's design, which belong to the state. */
struct settings {
    uint64_t leases_max;
    uint64_t leases_per_namespace_max; /* 0: none */
    uint64_t tombstones_max;
    uint64_t tombstone_retention_ms;
    uint64_t departures_max;
    uint64_t origins_max;
    uint64_t origin_retention_ms;
    uint64_t removal_slice;
    uint64_t voters_wanted; /* 1, 3 or 5; nothing that is applied depends on it */
};

#define CLUSTER_ID_LEN 16u

/* Who a cluster is: a random id, and a generation that recovery raises and draws anew. */
struct cluster_identity {
    uint8_t id[CLUSTER_ID_LEN];
    uint64_t generation;        /* 1 at birth */
    uint64_t generation_random; /* drawn with the generation */
};

/* An operation. Which fields count depends on the kind; the others are zero. */
struct op {
    enum op_kind kind;
    struct slice ns;    /* all kinds that callers ask */
    struct slice owner; /* all but purge */
    uint64_t ttl_ms;    /* take, claim, renew, heartbeat, renew_all */
    bool destroy;       /* claim */
    bool adopt;         /* claim: only if unowned for grace_ms */
    uint64_t grace_ms;
    bool reestablish; /* renew */
    /* take, heartbeat: exactly one. claim, renew, release: 1..KEYS_MAX, each named once. */
    const struct key_item *keys;
    uint32_t key_count;
    bool has_set_version; /* renew_all: the set version that the caller saw last */
    uint64_t set_version;

    uint64_t node_id;         /* open_origin: who asks */
    uint64_t nonce;           /* open_origin: drawn anew for each asking */
    uint64_t target_origin;   /* settle */
    uint64_t target_sequence; /* settle */
    struct cluster_identity identity; /* birth, restore, recover */
    uint64_t token_floor;     /* birth, restore, recover: the token counter is raised to this */
    struct settings settings; /* birth, configure */
};

/* What happened to one key. The values are part of log results and protocol. */
enum outcome_kind {
    OUTCOME_KIND_GRANTED = 1,
    OUTCOME_KIND_HELD = 2,
    OUTCOME_KIND_TEARDOWN = 3,
    OUTCOME_KIND_GRACE = 4,
    OUTCOME_KIND_RENEWED = 5,
    OUTCOME_KIND_LAPSED = 6,
    OUTCOME_KIND_LOST = 7,
    OUTCOME_KIND_REESTABLISHED = 8,
    OUTCOME_KIND_RELEASED = 9,
    OUTCOME_KIND_NOT_OWNER = 10,
    OUTCOME_KIND_STALE = 11,
    OUTCOME_KIND_MISMATCH = 12,
    /* Errors in place of an outcome, for one key of many. */
    OUTCOME_KIND_UNAVAILABLE = 13, /* a limit; see `limit` */
    OUTCOME_KIND_UNKNOWN = 14,     /* its part of the request ended so; never made by the fsm */
};

/* Which limit refused. */
enum limit_kind {
    LIMIT_KIND_NONE = 0,
    LIMIT_KIND_LEASES = 1,
    LIMIT_KIND_LEASES_PER_NAMESPACE = 2,
};

/* A place in the log: the entry, and the command's place in it counted from 0. A read's place is
 * POSITION_PLACE_END, the end of the entry. Ordered by index, then place. */
#define POSITION_PLACE_END UINT32_MAX

struct position {
    uint64_t index;
    uint32_t place;
};

/* Who has a key, as a refusal or a transfer names it. */
struct holder {
    struct slice owner; /* absent where there is no holder to name */
    enum lease_state state;
    uint64_t token;
    uint64_t ms_left; /* cluster milliseconds until it is due, at the reply's clock */
};

struct outcome {
    enum outcome_kind kind;
    /* GRANTED, RENEWED, REESTABLISHED: the lease's token and expiry (cluster ms). */
    uint64_t token;
    uint64_t expiry_ms;
    bool held_before; /* GRANTED: the caller had this lease already */
    /* Refusals: the present holder. GRANTED by a takeover: whom it was taken from. */
    struct holder holder;
    uint64_t grace_ms_left; /* GRACE */
    enum limit_kind limit;  /* UNAVAILABLE */
};

/* A lease that left an owner's set of `own` leases. */
struct departure {
    struct slice key;
    uint64_t token; /* that it had in the set */
    enum end_reason reason;
};

/* What a command answers: `status` first, the rest only where it is STATUS_OK. */
struct result {
    /* OK, VOID, FORGOTTEN, ORIGIN_UNKNOWN, INVALID; UNINITIALISED before birth; OVERLOADED where an
     * origin goes beyond what an honest node has unconfirmed (not kept: it may be sent again). */
    enum status status;
    enum op_kind kind;
    struct position position;
    uint64_t clock_ms; /* cluster clock at that position */

    /* take .. release: one per key of the command, in its order. */
    const struct outcome *outcomes;
    uint32_t outcome_count;

    /* renew_all: how many; release_all, purge: how many ended (removed or marked). */
    uint64_t count;
    uint64_t set_version;
    bool list_again; /* renew_all: what left is no longer remembered */
    const struct departure *departures;
    uint32_t departure_count;

    uint64_t origin;      /* open_origin: the number drawn */
    bool settled_applied; /* settle: the number had been applied */
    bool settled_ended;   /* settle: and its grant was taken back */
};

/* A lease as reads show it. */
struct lease_view {
    struct slice ns;
    struct slice key;
    struct slice owner;
    enum lease_state state;
    uint64_t ttl_ms;
    uint64_t expiry_ms; /* cluster time */
    uint64_t token;
    uint64_t since_ms; /* cluster time since which this owner has it without a break */
    struct slice meta;
    struct slice identity;
};

/* The words of the protocol for these values: "GRANTED", "released", "own", "leases", ... */
const char *outcome_kind_name(enum outcome_kind kind);
const char *end_reason_name(enum end_reason reason);
const char *lease_state_name(enum lease_state state);
const char *limit_kind_name(enum limit_kind kind);

/* And back; false: it is none of them. */
NODISCARD bool outcome_kind_of(struct slice word, enum outcome_kind *out_kind);
NODISCARD bool end_reason_of(struct slice word, enum end_reason *out_reason);
NODISCARD bool lease_state_of(struct slice word, enum lease_state *out_state);
NODISCARD bool limit_kind_of(struct slice word, enum limit_kind *out_kind);

#endif
