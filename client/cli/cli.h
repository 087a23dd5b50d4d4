/* The command line: what its files share.
 *
 * Everything goes through the installed interface (tenure.h, tenure_admin.h): the command line is
 * its first user. Exit codes and output: docs/cli.md. Texts that came from elsewhere are printed so
 * that no terminal can be driven by them. */
#ifndef CLIENT_CLI_CLI_H_
#define CLIENT_CLI_CLI_H_

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "client/tenure.h"
#include "client/tenure_admin.h"

enum exit_code {
    EXIT_CODE_DONE = 0,
    EXIT_CODE_REFUSED = 1,
    EXIT_CODE_USAGE = 2, /* and INVALID */
    EXIT_CODE_UNAVAILABLE = 3,
    EXIT_CODE_UNKNOWN = 4,
    EXIT_CODE_DENIED = 6,
    EXIT_CODE_INCOMPATIBLE = 7,
    EXIT_CODE_INTERNAL = 8,
};

/* The options, as they were given. */
struct options {
    const char *socket;
    const char *ns;
    const char *owner; /* of writes; in list and count a filter */
    const char *meta;
    const char *identity;
    const char *prefix;
    const char *after;
    const char *state;
    const char *dir;
    uint64_t ttl_ms;
    uint64_t deadline_ms;
    uint64_t grace_ms;
    uint64_t if_token;
    uint64_t set_version;
    uint64_t limit;
    uint64_t voters;
    uint64_t token_floor;
    bool has_ttl;
    bool has_deadline;
    bool has_grace;
    bool has_if_token;
    bool has_set_version;
    bool has_limit;
    bool has_voters;
    bool has_token_floor;
    bool destroy;
    bool adopt;
    bool reestablish;
    bool stale;
    bool json;
    bool ready;
    bool voter;
    bool stop;
    bool help;
    const char **args; /* what is no option, after the words of the command */
    size_t arg_count;
};

/* One run of the command line. */
struct cli {
    struct options options;
    struct tenure_client *client;
    const char *command; /* its words */
};

/* Which options a command takes, beside those that all take. */
enum option_group {
    OPTION_GROUP_WRITE = 1 << 0, /* --owner */
    OPTION_GROUP_TTL = 1 << 1,
    OPTION_GROUP_META = 1 << 2,
    OPTION_GROUP_GUARD = 1 << 3, /* --if-token */
    OPTION_GROUP_CLAIM = 1 << 4,
    OPTION_GROUP_RENEW = 1 << 5,
    OPTION_GROUP_READ = 1 << 6,
    OPTION_GROUP_FILTER = 1 << 7,
    OPTION_GROUP_PAGE = 1 << 8,
    OPTION_GROUP_READY = 1 << 9,
    OPTION_GROUP_INIT = 1 << 10,
    OPTION_GROUP_DEV = 1 << 11,
    OPTION_GROUP_SET = 1 << 12,
    OPTION_GROUP_NAMESPACE = 1 << 13,
};

/* Read options and arguments off argv (without the words of the command) into cli->options. False:
 * usage, and why was said. */
bool options_parse(struct cli *cli, unsigned groups, int argc, char **argv);

/* How many of the first arguments are options and their values: what may stand before the command.
 */
int options_leading(int argc, char **argv);

/* False: usage, and why was said. */
bool no_args(const struct cli *cli);

/* A whole number in decimal digits and nothing else. */
bool parse_u64(const char *text, uint64_t *out_value);

/* "500ms", "30s", "5m" and nothing else. */
bool parse_duration_ms(const char *text, uint64_t *out_ms);

/* --- Output. */

/* `text` with everything escaped that could drive a terminal or reorder what it shows. */
void print_text(FILE *out, const char *text);
void print_bytes(FILE *out, const void *bytes, size_t len);

/* One line on stderr: "tenure: ...". The pieces are printed as print_text does, but
 * for backslashes. */
void complain(const char *what, const char *value);

/* EXIT_CODE_USAGE; says why as complain does and, with --json, on stdout. */
enum exit_code usage_error(const struct cli *cli, const char *what, const char *value);

/* Exit code of an error; says why on stderr and, with --json, on stdout. */
enum exit_code report_failure(const struct cli *cli, const struct tenure_failure *failure);
enum exit_code exit_code_of(enum tenure_error error);

json_t *json_text(const char *text);  /* also when it is not UTF-8; NULL: null */
json_t *json_number(uint64_t number); /* beyond 2^63 - 1 as text */
void json_set(json_t *object, const char *name, json_t *value);
json_t *json_of_field(const struct tenure_field *field);
void json_set_bytes(json_t *object, const char *name, const void *bytes, size_t len);
void json_set_position(json_t *object, const struct tenure_reply *reply);

/* Print the value in plain ASCII without controls. */
void json_write(const json_t *value);

/* The same on a line of its own, and free it. */
void json_print(json_t *object);

/* The named values of a reply, a line each, or as one object. */
void show_fields(const struct cli *cli, const struct tenure_reply *reply);
void print_field_value(FILE *out, const struct tenure_field *field);

/* --- The commands. */
enum exit_code command_take(struct cli *cli);
enum exit_code command_claim(struct cli *cli);
enum exit_code command_renew(struct cli *cli);
enum exit_code command_heartbeat(struct cli *cli);
enum exit_code command_release(struct cli *cli);
enum exit_code command_renew_all(struct cli *cli);
enum exit_code command_release_all(struct cli *cli);
enum exit_code command_purge(struct cli *cli);
enum exit_code command_owner(struct cli *cli);
enum exit_code command_list(struct cli *cli);
enum exit_code command_count(struct cli *cli);
enum exit_code command_status(struct cli *cli);
enum exit_code command_metrics(struct cli *cli);
enum exit_code command_cluster_init(struct cli *cli);
enum exit_code command_cluster_members(struct cli *cli);
enum exit_code command_cluster_transfer(struct cli *cli);
enum exit_code command_cluster_dev(struct cli *cli);

#endif
