/* Commands: numbered operations as they stand in a log entry, and the one place where what an
 * operation may contain is decided.
 *
 * A command is an operation plus who numbered it: (origin, sequence), and the origin's mark below
 * which everything is confirmed. Every path (API, forwarded frame, log entry) ends in
 * op_validate(), so that a rule and its words exist once (hazard T5). */
#ifndef FSM_COMMAND_H_
#define FSM_COMMAND_H_

#include "fsm/base/violation.h"
#include "fsm/types.h"

/* A numbered operation. open_origin, settle, birth, configure, restore, recover have no number:
 * origin, sequence and confirmed are 0. */
struct command {
    uint64_t origin;
    uint64_t sequence;  /* >= 1 */
    uint64_t confirmed; /* every sequence of the origin up to this one is confirmed; < sequence */
    struct op op;
};

/* A log entry of ours. `command_count` may be 0: then it only moves the clock. */
struct entry {
    uint64_t stamp_ms; /* the leader's cluster clock when the entry was closed */
    const struct command *commands;
    uint32_t command_count;
};

/* STATUS_OK, or STATUS_INVALID with *out_violation filled in. Does not look for a key named twice;
 * who cuts a request into commands has joined those. */
NODISCARD enum status op_validate(const struct op *op, struct violation *out_violation);

/* The single rules, for reads and for whoever has only one field to check. */
NODISCARD enum status namespace_validate(struct slice ns, struct violation *out_violation);
NODISCARD enum status key_validate(struct slice key, struct violation *out_violation);
NODISCARD enum status owner_validate(struct slice owner, struct violation *out_violation);
NODISCARD enum status settings_validate(const struct settings *settings,
                                        struct violation *out_violation);

/* The settings that a cluster is born with. */
struct settings settings_default(void);

/* True for kinds that carry (origin, sequence). */
bool op_kind_numbered(enum op_kind kind);

/* "take", "claim", ...; never NULL. */
const char *op_kind_name(enum op_kind kind);

#endif
