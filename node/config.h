/* The configuration of a node: text -> one validated struct. Pure.
 *
 * One table lists every option; the file (libconfig syntax, names with underscores) and the command
 * line (`--name-with-hyphens VALUE`) go through the same parser and the same validator, and the
 * command line goes over the file. Whatever is not exactly an option with a value in its range is
 * refused with one line that says where, which field, which value and which rule: nothing is
 * guessed, cut or rounded.
 *
 * Durations are whole numbers with a unit (`500ms`, `30s`, `5m`, `1h`), sizes likewise (`64MiB`,
 * `512KiB`, `1GiB`), both as text; counts are plain integers. */
#ifndef NODE_CONFIG_H_
#define NODE_CONFIG_H_

#include <stdbool.h>
#include <stdint.h>

#include "fsm/base/buf.h"
#include "fsm/base/slice.h"
#include "fsm/base/status.h"

#define CONFIG_PATH_LEN_MAX 1023u
#define CONFIG_SOCKET_LEN_MAX 107u /* sun_path less its NUL */
#define CONFIG_ADDRESS_LEN_MAX 63u
#define CONFIG_NAME_LEN_MAX 64u
#define CONFIG_JOIN_MAX 16u
#define CONFIG_TEXT_LEN_MAX (1024u * 1024u) /* of a configuration file */
#define CONFIG_ERROR_LEN 512u

struct config {
    char data[CONFIG_PATH_LEN_MAX + 1];     /* data directory */
    char socket[CONFIG_SOCKET_LEN_MAX + 1]; /* of the local API */
    uint32_t socket_mode;
    char socket_group[CONFIG_NAME_LEN_MAX + 1]; /* name or number; empty: the process' own */
    char listen[CONFIG_ADDRESS_LEN_MAX + 1];    /* host:port of the peer links */
    char advertise[CONFIG_ADDRESS_LEN_MAX + 1]; /* empty: the address listened on */
    char join[CONFIG_JOIN_MAX][CONFIG_ADDRESS_LEN_MAX + 1];
    unsigned join_count;
    char name[CONFIG_NAME_LEN_MAX + 1]; /* for people; empty: the host's name */
    uint64_t voters;                    /* 1, 3 or 5 */
    bool insecure_network;
    uint32_t log_level; /* enum log_level */
    uint64_t tick_ms;
    uint64_t election_ms;
    uint64_t snapshot_entries;
    uint64_t snapshot_bytes; /* 0: the replica's default */
    uint64_t reserve_bytes;
    uint64_t connections_max; /* 0: as many as the process may have less 64 */
};

/* Why not: one line without a newline, printable ASCII. */
struct config_error {
    char text[CONFIG_ERROR_LEN];
};

/* Everything at its default. */
void node_config_init(struct config *config);

/* Take over what the text of a file says; `name` is what error lines call it. STATUS_INVALID. */
NODISCARD enum status node_config_text(struct config *config, const char *name, struct slice text,
                                       struct config_error *out_error);

/* Take over one option of the command line, `option` without its hyphens, e.g. "socket-mode";
 * `value` NULL where none was given (only for switches). STATUS_INVALID. */
NODISCARD enum status node_config_option(struct config *config, const char *option,
                                         const char *value, struct config_error *out_error);

/* True when the option is a switch, which takes no value. */
bool node_config_option_is_switch(const char *option);

/* Whether the whole fits together; after everything was taken over. STATUS_INVALID. */
NODISCARD enum status node_config_validate(const struct config *config,
                                           struct config_error *out_error);

/* One block of text per option: name, default, meaning. For --help. */
void node_config_help(struct buf *out);

/* Every option with the value it has, one a line, as a file would say it. */
void node_config_print(const struct config *config, struct buf *out);

#endif
