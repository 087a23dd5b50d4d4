/* Options off one table. Strict: an unknown option, one that means nothing for this command, one
 * that stands twice and a number that is not exactly one are refused before anything is sent. */
#include "client/cli/cli.h"

#include <stdlib.h>
#include <string.h>

#define MS_PER_SECOND 1000u
#define MS_PER_MINUTE 60000u

enum option_kind {
    OPTION_KIND_FLAG,
    OPTION_KIND_TEXT,
    OPTION_KIND_NUMBER,
    OPTION_KIND_DURATION,
};

struct option {
    const char *name;
    enum option_kind kind;
    unsigned groups;  /* 0: all commands */
    size_t offset;    /* of the value */
    size_t flag;      /* of the bool that says it was given; of a flag: 0 */
    const char *rule; /* of a number or duration */
};

#define AT(member) offsetof(struct options, member)
static const struct option table[] = {
    {"--socket", OPTION_KIND_TEXT, 0, AT(socket), 0, NULL},
    {"--namespace", OPTION_KIND_TEXT, OPTION_GROUP_NAMESPACE, AT(ns), 0, NULL},
    {"--deadline", OPTION_KIND_DURATION, 0, AT(deadline_ms), AT(has_deadline),
     "must be a duration such as 500ms, 30s or 1m, in 10ms..60s"},
    {"--json", OPTION_KIND_FLAG, 0, AT(json), 0, NULL},
    {"--help", OPTION_KIND_FLAG, 0, AT(help), 0, NULL},
    {"--owner", OPTION_KIND_TEXT, OPTION_GROUP_WRITE | OPTION_GROUP_FILTER, AT(owner), 0, NULL},
    {"--ttl", OPTION_KIND_DURATION, OPTION_GROUP_TTL, AT(ttl_ms), AT(has_ttl),
     "must be a duration such as 500ms, 30s or 5m, in 10ms..1440m"},
    {"--meta", OPTION_KIND_TEXT, OPTION_GROUP_META, AT(meta), 0, NULL},
    {"--identity", OPTION_KIND_TEXT, OPTION_GROUP_META, AT(identity), 0, NULL},
    {"--if-token", OPTION_KIND_NUMBER, OPTION_GROUP_GUARD, AT(if_token), AT(has_if_token),
     "must be a whole number in 0..18446744073709551615"},
    {"--destroy", OPTION_KIND_FLAG, OPTION_GROUP_CLAIM, AT(destroy), 0, NULL},
    {"--adopt", OPTION_KIND_FLAG, OPTION_GROUP_CLAIM, AT(adopt), 0, NULL},
    {"--grace", OPTION_KIND_DURATION, OPTION_GROUP_CLAIM, AT(grace_ms), AT(has_grace),
     "must be a duration such as 500ms, 30s or 5m, in 0ms..the retention of tombstones"},
    {"--reestablish", OPTION_KIND_FLAG, OPTION_GROUP_RENEW, AT(reestablish), 0, NULL},
    {"--set-version", OPTION_KIND_NUMBER, OPTION_GROUP_SET, AT(set_version), AT(has_set_version),
     "must be a whole number in 0..18446744073709551615"},
    {"--stale", OPTION_KIND_FLAG, OPTION_GROUP_READ, AT(stale), 0, NULL},
    {"--prefix", OPTION_KIND_TEXT, OPTION_GROUP_FILTER, AT(prefix), 0, NULL},
    {"--state", OPTION_KIND_TEXT, OPTION_GROUP_FILTER, AT(state), 0, NULL},
    {"--after", OPTION_KIND_TEXT, OPTION_GROUP_PAGE, AT(after), 0, NULL},
    {"--limit", OPTION_KIND_NUMBER, OPTION_GROUP_PAGE, AT(limit), AT(has_limit),
     "must be a whole number in 1..1000"},
    {"--ready", OPTION_KIND_FLAG, OPTION_GROUP_READY, AT(ready), 0, NULL},
    {"--voter", OPTION_KIND_FLAG, OPTION_GROUP_READY, AT(voter), 0, NULL},
    {"--voters", OPTION_KIND_NUMBER, OPTION_GROUP_INIT, AT(voters), AT(has_voters),
     "must be 1, 3 or 5"},
    {"--token-floor", OPTION_KIND_NUMBER, OPTION_GROUP_INIT, AT(token_floor), AT(has_token_floor),
     "must be a whole number in 0..18446744073709551615"},
    {"--dir", OPTION_KIND_TEXT, OPTION_GROUP_DEV, AT(dir), 0, NULL},
    {"--stop", OPTION_KIND_FLAG, OPTION_GROUP_DEV, AT(stop), 0, NULL},
};
#undef AT

#define OPTION_COUNT (sizeof table / sizeof table[0])
_Static_assert(OPTION_COUNT <= 32, "one bit each");

/* argv while it is read. */
struct reader {
    struct cli *cli;
    unsigned groups;
    char **argv;
    int argc;
    int at;
    uint32_t seen; /* bits of table */
};

static bool read_option(struct reader *reader);
static const struct option *find(const char *text, const char **out_value);
static bool store(struct cli *cli, const struct option *option, const char *value);
static bool refuse(const struct cli *cli, const char *what, const char *value);
static void defaults(struct options *options);
static bool ranges(const struct cli *cli);
static bool wants_json(int argc, char **argv);

bool options_parse(struct cli *cli, unsigned groups, int argc, char **argv)
{
    struct options *options = &cli->options;
    *options = (struct options){.json = wants_json(argc, argv)};
    options->args = calloc((size_t)argc + 1, sizeof *options->args);
    if (options->args == NULL) {
        complain("out of memory", NULL);
        return false;
    }
    struct reader reader = {.cli = cli, .groups = groups, .argv = argv, .argc = argc};
    bool only_args = false;
    for (; reader.at < argc; reader.at++) {
        const char *text = argv[reader.at];
        if (!only_args && strcmp(text, "--") == 0) {
            only_args = true;
        } else if (only_args || text[0] != '-' || text[1] == '\0') {
            options->args[options->arg_count++] = text;
        } else if (!read_option(&reader)) {
            return false;
        }
    }
    defaults(options);
    return ranges(cli);
}

int options_leading(int argc, char **argv)
{
    int at = 0;
    while (at < argc && argv[at][0] == '-' && argv[at][1] == '-') {
        const char *value = NULL;
        const struct option *option = find(argv[at], &value);
        bool separate = option != NULL && option->kind != OPTION_KIND_FLAG && value == NULL;
        at += separate && at + 1 < argc ? 2 : 1;
    }
    return at;
}

bool no_args(const struct cli *cli)
{
    if (cli->options.arg_count > 0) {
        (void)usage_error(cli, "takes no argument", cli->options.args[0]);
        return false;
    }
    return true;
}

bool parse_u64(const char *text, uint64_t *out_value)
{
    uint64_t value = 0;
    if (text[0] == '\0') {
        return false;
    }
    for (const char *at = text; *at != '\0'; at++) {
        if (*at < '0' || *at > '9' || __builtin_mul_overflow(value, 10u, &value) ||
            __builtin_add_overflow(value, (uint64_t)(*at - '0'), &value)) {
            return false;
        }
    }
    *out_value = value;
    return true;
}

bool parse_duration_ms(const char *text, uint64_t *out_ms)
{
    static const struct {
        const char *name;
        uint64_t ms;
    } units[] = {{"ms", 1}, {"s", MS_PER_SECOND}, {"m", MS_PER_MINUTE}};
    size_t digits = strspn(text, "0123456789");
    char number[24];
    if (digits == 0 || digits >= sizeof number) {
        return false;
    }
    memcpy(number, text, digits);
    number[digits] = '\0';
    uint64_t value = 0;
    if (!parse_u64(number, &value)) {
        return false;
    }
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        if (strcmp(text + digits, units[i].name) == 0) {
            return !__builtin_mul_overflow(value, units[i].ms, out_ms);
        }
    }
    return false;
}

static bool read_option(struct reader *reader)
{
    const char *text = reader->argv[reader->at];
    const char *value = NULL;
    const struct option *option = find(text, &value);
    if (option == NULL) {
        return refuse(reader->cli, "unknown option", text);
    }
    if (option->groups != 0 && (option->groups & reader->groups) == 0) {
        return refuse(reader->cli, "not an option of this command", option->name);
    }
    uint32_t bit = 1u << (unsigned)(option - table);
    if ((reader->seen & bit) != 0) {
        return refuse(reader->cli, "option given twice", option->name);
    }
    reader->seen |= bit;
    if (option->kind == OPTION_KIND_FLAG) {
        if (value != NULL) {
            return refuse(reader->cli, "option takes no value", text);
        }
    } else if (value == NULL) {
        if (reader->at + 1 >= reader->argc) {
            return refuse(reader->cli, "option needs a value", option->name);
        }
        value = reader->argv[++reader->at];
    }
    return store(reader->cli, option, value);
}

/* The option of "--name" or "--name=value". */
static const struct option *find(const char *text, const char **out_value)
{
    size_t len = strcspn(text, "=");
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        if (strlen(table[i].name) == len && strncmp(table[i].name, text, len) == 0) {
            *out_value = text[len] == '=' ? text + len + 1 : NULL;
            return &table[i];
        }
    }
    return NULL;
}

static bool store(struct cli *cli, const struct option *option, const char *value)
{
    char *place = (char *)&cli->options + option->offset;
    uint64_t number = 0;
    bool given = true;
    bool valid = true;
    switch (option->kind) {
    case OPTION_KIND_FLAG:
        memcpy(place, &given, sizeof given);
        return true;
    case OPTION_KIND_TEXT:
        memcpy(place, &value, sizeof value);
        return true;
    case OPTION_KIND_NUMBER:
        valid = parse_u64(value, &number);
        break;
    case OPTION_KIND_DURATION:
        valid = parse_duration_ms(value, &number);
        break;
    }
    if (!valid) {
        char what[128];
        (void)snprintf(what, sizeof what, "%s %s, got", option->name, option->rule);
        return refuse(cli, what, value);
    }
    memcpy(place, &number, sizeof number);
    memcpy((char *)&cli->options + option->flag, &given, sizeof given);
    return true;
}

/* False, always: what the caller returns. */
static bool refuse(const struct cli *cli, const char *what, const char *value)
{
    (void)usage_error(cli, what, value);
    return false;
}

/* Asked first, so that a usage error before --json is told in JSON, too. */
static bool wants_json(int argc, char **argv)
{
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strcmp(argv[i], "--json") == 0) {
            return true;
        }
    }
    return false;
}

/* From the environment, as far as no option says it. Not the owner: in reads it is a filter. */
static void defaults(struct options *options)
{
    const struct {
        const char **place;
        const char *variable;
    } variables[] = {
        {&options->socket, "TENURE_SOCKET"},
        {&options->ns, "TENURE_NAMESPACE"},
    };
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++) {
        const char *value = getenv(variables[i].variable);
        if (*variables[i].place == NULL && value != NULL && value[0] != '\0') {
            *variables[i].place = value;
        }
    }
}

/* What zero stands for "not given" in the interface below, so that the node never sees it. */
static bool ranges(const struct cli *cli)
{
    const struct options *options = &cli->options;
    if (options->has_deadline && options->deadline_ms == 0) {
        return refuse(
            cli, "deadline_ms must be a whole number of milliseconds in 10..60000, got: 0", NULL);
    }
    if (options->has_limit && options->limit == 0) {
        return refuse(cli, "limit must be a whole number in 1..1000, got: 0", NULL);
    }
    if (options->has_voters && options->voters != 1 && options->voters != 3 &&
        options->voters != 5) {
        return refuse(cli, "voters must be 1, 3 or 5", NULL);
    }
    return true;
}
