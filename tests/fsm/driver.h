/* Drives one state machine in a test: short verbs for commands, a clock that only the test moves.
 *
 * Every command travels as bytes of an entry, every result as bytes of a result, and the invariants
 * are checked after each entry. */
#ifndef TESTS_FSM_DRIVER_H_
#define TESTS_FSM_DRIVER_H_

#include "fsm/command_codec.h"
#include "fsm/fsm.h"
#include "fsm/result.h"

#define DRIVER_TTL_MS 1000u /* where a verb names none */

struct driver {
    struct fsm *fsm; /* owned */
    uint64_t index;  /* of the last entry */
    uint64_t clock_ms;
    uint64_t origin;
    uint64_t sequence;  /* the last one used */
    uint64_t confirmed; /* sent along with each command */
    uint32_t place;     /* of the next result of an entry */
    bool unchecked;     /* invariants are not checked: for large tables */
    struct command_decoder *commands;
    struct result_decoder *results;
    struct buf bytes; /* of the last result */
};

/* A cluster born at time 0 with these settings (NULL: the defaults), with one origin. */
struct driver *driver_create(const struct settings *settings);
void driver_destroy(struct driver *driver);

/* One entry with this command at the driver's clock. The result lives until the next command. */
struct result driver_apply(struct driver *driver, const struct command *command);

/* One entry with several commands; the result is that of the last one. */
struct result driver_apply_all(struct driver *driver, const struct command *commands,
                               uint32_t count);

/* As driver_apply for an operation, with the next number if its kind has one. */
struct result driver_run(struct driver *driver, const struct op *op);

/* Sends the same number again. */
struct result driver_repeat(struct driver *driver, const struct op *op, uint64_t sequence);

/* An empty entry: only time passes. */
void driver_pass(struct driver *driver, uint64_t ms);

/* What a verb may name. Namespace "default" and DRIVER_TTL_MS where it does not. */
struct ask {
    const char *ns;
    const char *owner;
    const char *key;
    uint64_t ttl_ms;
    bool destroy;
    bool adopt;
    uint64_t grace_ms;
    bool reestablish;
    bool guarded;
    uint64_t if_token;
    struct slice meta;
    struct slice identity;
    bool has_set_version;
    uint64_t set_version;
};
struct op driver_op(enum op_kind kind, const struct ask *ask, struct key_item *out_item);
struct outcome driver_ask(struct driver *driver, enum op_kind kind, const struct ask *ask);
struct result driver_ask_set(struct driver *driver, enum op_kind kind, const struct ask *ask);

#define TAKE(driver, ...) driver_ask((driver), OP_KIND_TAKE, &(struct ask){__VA_ARGS__})
#define CLAIM(driver, ...) driver_ask((driver), OP_KIND_CLAIM, &(struct ask){__VA_ARGS__})
#define RENEW(driver, ...) driver_ask((driver), OP_KIND_RENEW, &(struct ask){__VA_ARGS__})
#define HEARTBEAT(driver, ...) driver_ask((driver), OP_KIND_HEARTBEAT, &(struct ask){__VA_ARGS__})
#define RELEASE(driver, ...) driver_ask((driver), OP_KIND_RELEASE, &(struct ask){__VA_ARGS__})
#define RENEW_ALL(driver, ...) \
    driver_ask_set((driver), OP_KIND_RENEW_ALL, &(struct ask){__VA_ARGS__})
#define RELEASE_ALL(driver, ...) \
    driver_ask_set((driver), OP_KIND_RELEASE_ALL, &(struct ask){__VA_ARGS__})
#define PURGE(driver, ...) driver_ask_set((driver), OP_KIND_PURGE, &(struct ask){__VA_ARGS__})

/* Many keys "PREFIX00000".. at once in state `own`, in entries that fit. */
void driver_fill(struct driver *driver, const struct ask *ask, uint32_t count);

/* The lease of a key in "default"; false when there is none. */
bool driver_owner(const struct driver *driver, const char *key, struct lease_view *out_view);

/* Settles a number of the driver's origin. */
struct result driver_settle(struct driver *driver, uint64_t sequence);

/* The identity that `driver_create` uses, with another first byte of the id, and generation. */
struct cluster_identity driver_identity(uint8_t first, uint64_t generation);

/* Snapshot and back; checks that both have the same digest and the same bytes. Owned by the
 * caller. */
struct fsm *driver_round_trip(const struct driver *driver);

#endif
