/* The table `specs` is everything there is to know of an option; file, command line, --help and the
 * printed configuration all walk over it.
 *
 * libconfig reads the file, after a scan of ours: it would wrap long numbers,
 * read further files for @include, and nest as deep as its stack goes. */
#include "node/config.h"

#include <inttypes.h>
#include <libconfig.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fsm/base/check.h"
#include "fsm/base/units.h"
#include "fsm/base/violation.h"
#include "node/address.h"
#include "node/config_scan.h"

#define DIGITS_MAX 18u /* any such number fits 63 bits */
#define FILE_NAME_SHOWN 256u
#define FIELD_SHOWN 64u

#define DATA_DEFAULT "/var/lib/tenure"
#define SOCKET_DEFAULT "/run/tenure/api.sock"
#define LISTEN_DEFAULT "127.0.0.1:7420"

enum kind {
    KIND_PATH,      /* bytes without control characters, at least one */
    KIND_NAME,      /* [A-Za-z0-9._-], may be empty */
    KIND_MODE,      /* three or four octal digits, as text */
    KIND_ADDRESS,   /* may be empty where `min` is 0 */
    KIND_ADDRESSES, /* separated by commas, or a list */
    KIND_SWITCH,
    KIND_WORD,      /* one of `words`; its index is kept */
    KIND_DURATION,  /* text with a unit; milliseconds are kept */
    KIND_SIZE,      /* text with a unit; bytes are kept */
    KIND_COUNT,
};

struct spec {
    const char *name;
    enum kind kind;
    size_t offset;
    uint64_t min; /* numbers: smallest value; texts: smallest length */
    uint64_t max; /* numbers: largest value; texts: largest length */
    const char *rule;
    const char *help;
};

/* A value before it is judged; from the command line always text. */
enum value_kind {
    VALUE_KIND_TEXT,
    VALUE_KIND_INTEGER,
    VALUE_KIND_BOOL,
    VALUE_KIND_OTHER,
};

struct value {
    enum value_kind kind;
    bool from_line; /* the command line, where numbers and switches are text as well */
    struct slice text;
    int64_t number;
    bool truth;
    const char *what; /* OTHER: in words */
};

struct unit {
    const char *name;
    uint64_t factor;
};

static const char *const level_words[] = {"error", "warn", "info", "debug", NULL};

/* Smallest first: printing takes the largest that divides. */
static const struct unit duration_units[] = {
    {"ms", 1}, {"s", MS_PER_S}, {"m", 60 * MS_PER_S}, {"h", 3600 * MS_PER_S}, {NULL, 0}};
static const struct unit size_units[] = {
    {"B", 1}, {"KiB", KIB}, {"MiB", MIB}, {"GiB", 1024 * MIB}, {NULL, 0}};

#define AT(member) offsetof(struct config, member)

static const struct spec specs[] = {
    {"data", KIND_PATH, AT(data), 1, CONFIG_PATH_LEN_MAX,
     "must be a path of 1..1023 bytes without control characters", "the data directory"},
    {"socket", KIND_PATH, AT(socket), 1, CONFIG_SOCKET_LEN_MAX,
     "must be a path of 1..107 bytes without control characters",
     "the unix socket of the local API"},
    {"socket_mode", KIND_MODE, AT(socket_mode), 0, 0777,
     "must be three or four octal digits as text, \"0000\"..\"0777\"",
     "who may connect to the socket"},
    {"socket_group", KIND_NAME, AT(socket_group), 0, CONFIG_NAME_LEN_MAX,
     "must be a group's name or number, at most 64 of [A-Za-z0-9._-]",
     "group of the socket; empty: the process' own"},
    {"listen", KIND_ADDRESS, AT(listen), 1, CONFIG_ADDRESS_LEN_MAX, ADDRESS_RULE,
     "where other nodes connect to this one; port 0: any free one"},
    {"advertise", KIND_ADDRESS, AT(advertise), 0, CONFIG_ADDRESS_LEN_MAX, ADDRESS_RULE,
     "where other nodes reach this one; empty: the address listened on"},
    {"join", KIND_ADDRESSES, AT(join), 0, CONFIG_JOIN_MAX,
     "must be 1..16 addresses, each IPv4:PORT, [IPv6]:PORT or localhost:PORT",
     "members of the cluster to join; only asked while this node has no cluster"},
    {"name", KIND_NAME, AT(name), 0, CONFIG_NAME_LEN_MAX, "must be at most 64 of [A-Za-z0-9._-]",
     "the node's name for people; empty: the host's"},
    {"voters", KIND_COUNT, AT(voters), 1, 5, "must be 1, 3 or 5",
     "designed number of voters of a cluster that is born here"},
    {"insecure_network", KIND_SWITCH, AT(insecure_network), 0, 1, "must be true or false",
     "allow addresses that are not loopback, without encryption: for tests and closed networks"},
    {"log_level", KIND_WORD, AT(log_level), 0, 3, "must be error, warn, info or debug",
     "this and what is more urgent is logged"},
    {"tick", KIND_DURATION, AT(tick_ms), 10, 1000,
     "must be a duration like 50ms or 1s in 10ms..1s", "how often a leader tells its followers"},
    {"election", KIND_DURATION, AT(election_ms), 100, 10000,
     "must be a duration like 500ms or 2s in 100ms..10s",
     "how long a follower waits for a silent leader; at least four ticks"},
    {"snapshot_entries", KIND_COUNT, AT(snapshot_entries), 0, 100000000,
     "must be an integer in 0..100000000", "a snapshot each so many entries; 0: the default"},
    {"snapshot_bytes", KIND_SIZE, AT(snapshot_bytes), 0, 64 * 1024 * MIB,
     "must be a size like 512KiB, 64MiB or 1GiB in 0B..64GiB",
     "or each so many bytes of log, whichever is first; 0B: the default"},
    {"reserve", KIND_SIZE, AT(reserve_bytes), MIB, 16 * 1024 * MIB,
     "must be a size like 512KiB, 64MiB or 1GiB in 1MiB..16GiB",
     "disk space kept back, to be able to stop in order on a full disk"},
    {"connections_max", KIND_COUNT, AT(connections_max), 0, 16384, "must be an integer in 0..16384",
     "connections of the local API; 0: as many as the process may have, less 64"},
};

#define SPEC_COUNT (sizeof specs / sizeof specs[0])

static const struct spec *find_spec(const char *name, char separator);
static enum status set_value(struct config *config, const struct spec *spec,
                             const struct value *value, struct violation *out_violation);
static bool set_text(void *field, const struct spec *spec, struct slice text);
static bool set_number(void *field, const struct spec *spec, const struct value *value);
static bool set_addresses(struct config *config, struct slice text);
static bool parse_number(struct slice text, uint64_t *out_number);
static bool parse_quantity(struct slice text, const struct unit *units, uint64_t *out_number);
static bool parse_mode(struct slice text, uint32_t *out_mode);
static bool is_name(struct slice text);
static bool is_path(struct slice text);
static bool is_address(struct slice text);
static void violate(const struct spec *spec, const struct value *value, struct violation *out);
static enum status read_settings(struct config *config, const char *name, const config_t *parsed,
                                 struct config_error *out_error);
static struct value value_of(const config_setting_t *setting, struct buf *scratch);
static void print_value(const struct config *config, const struct spec *spec, struct buf *out);
static void print_quantity(uint64_t number, const struct unit *units, struct buf *out);
static void append(struct buf *out, const char *text);
static enum status refuse_address(const char *field, const char *address, const char *rule,
                                  struct config_error *out_error);
static enum status validate_listen(const struct config *config, struct config_error *out_error);
static enum status validate_reachable(const struct config *config, const char *field,
                                      const char *text, struct config_error *out_error);

/* `file` as far as a terminal may see it. */
static void say(struct config_error *out_error, const char *file, unsigned line, const char *text)
{
    char shown[FILE_NAME_SHOWN];
    size_t len = strnlen(file, sizeof shown - 1);
    for (size_t i = 0; i < len; i++) {
        shown[i] = file[i] >= 0x20 && file[i] < 0x7f ? file[i] : '?';
    }
    shown[len] = '\0';
    if (line > 0) {
        (void)snprintf(out_error->text, sizeof out_error->text, "%s:%u: %s", shown, line, text);
    } else {
        (void)snprintf(out_error->text, sizeof out_error->text, "%s: %s", shown, text);
    }
}

/* A number that is too long is named with its field and the field's rule, like any other value. */
static void say_scan(struct config_error *out_error, const char *file,
                     const struct config_scan *scan)
{
    char field[FIELD_SHOWN];
    char text[CONFIG_ERROR_LEN];
    size_t len = min_u64(scan->name.len, sizeof field - 1);
    if (len > 0) {
        memcpy(field, scan->name.base, len);
    }
    field[len] = '\0';
    const struct spec *spec = scan->number.len > 0 ? find_spec(field, '_') : NULL;
    if (spec == NULL) {
        say(out_error, file, scan->line, scan->why);
        return;
    }
    struct violation violation;
    violation_set(&violation, spec->name, scan->number, spec->rule);
    (void)snprintf(text, sizeof text, "%s: %s: %s", spec->name, violation.value, violation.rule);
    say(out_error, file, scan->line, text);
}

void node_config_init(struct config *config)
{
    /* Padding too: two configurations that say the same are the same bytes. */
    memset(config, 0, sizeof *config);
    memcpy(config->data, DATA_DEFAULT, sizeof DATA_DEFAULT);
    memcpy(config->socket, SOCKET_DEFAULT, sizeof SOCKET_DEFAULT);
    memcpy(config->listen, LISTEN_DEFAULT, sizeof LISTEN_DEFAULT);
    config->socket_mode = 0600;
    config->voters = 3;
    config->log_level = 2;
    config->tick_ms = 50;
    config->election_ms = 500;
    config->reserve_bytes = 64 * MIB;
}

enum status node_config_text(struct config *config, const char *name, struct slice text,
                             struct config_error *out_error)
{
    struct config_scan scan;
    config_scan(text, CONFIG_TEXT_LEN_MAX, &scan);
    if (scan.why != NULL) {
        say_scan(out_error, name, &scan);
        return STATUS_INVALID;
    }
    char *copy = malloc(text.len + 1);
    CHECK(copy != NULL);
    if (text.len > 0) {
        memcpy(copy, text.base, text.len);
    }
    copy[text.len] = '\0';

    config_t parsed;
    config_init(&parsed);
    enum status st;
    if (config_read_string(&parsed, copy) != CONFIG_TRUE) {
        int line = config_error_line(&parsed);
        say(out_error, name, line > 0 ? (unsigned)line : 0, config_error_text(&parsed));
        st = STATUS_INVALID;
    } else {
        st = read_settings(config, name, &parsed, out_error);
    }
    config_destroy(&parsed);
    free(copy);
    return st;
}

enum status node_config_option(struct config *config, const char *option, const char *value,
                               struct config_error *out_error)
{
    char where[FILE_NAME_SHOWN];
    (void)snprintf(where, sizeof where, "--%s", option);
    const struct spec *spec = find_spec(option, '-');
    if (spec == NULL) {
        say(out_error, where, 0, "unknown option");
        return STATUS_INVALID;
    }
    if (value == NULL && spec->kind != KIND_SWITCH) {
        say(out_error, where, 0, "needs a value");
        return STATUS_INVALID;
    }
    struct value given = {.kind = VALUE_KIND_TEXT, .from_line = true,
                          .text = slice_text(value != NULL ? value : "true")};
    struct violation violation;
    if (set_value(config, spec, &given, &violation) == STATUS_OK) {
        return STATUS_OK;
    }
    char text[CONFIG_ERROR_LEN];
    (void)snprintf(text, sizeof text, "%s: %s", violation.value, violation.rule);
    say(out_error, where, 0, text);
    return STATUS_INVALID;
}

bool node_config_option_is_switch(const char *option)
{
    const struct spec *spec = find_spec(option, '-');
    return spec != NULL && spec->kind == KIND_SWITCH;
}

enum status node_config_validate(const struct config *config, struct config_error *out_error)
{
    if (config->election_ms < 4 * config->tick_ms) {
        char text[CONFIG_ERROR_LEN];
        (void)snprintf(text, sizeof text, "%" PRIu64 "ms: must be at least four ticks (4 x %" PRIu64
                       "ms)", config->election_ms, config->tick_ms);
        say(out_error, "election", 0, text);
        return STATUS_INVALID;
    }
    enum status st = validate_listen(config, out_error);
    if (st == STATUS_OK && config->advertise[0] != '\0') {
        st = validate_reachable(config, "advertise", config->advertise, out_error);
    }
    for (unsigned i = 0; i < config->join_count && st == STATUS_OK; i++) {
        st = validate_reachable(config, "join", config->join[i], out_error);
    }
    return st;
}

void node_config_help(struct buf *out)
{
    struct config defaults;
    node_config_init(&defaults);
    for (size_t i = 0; i < SPEC_COUNT; i++) {
        const struct spec *spec = &specs[i];
        append(out, "  --");
        for (const char *at = spec->name; *at != '\0'; at++) {
            buf_append_u8(out, (uint8_t)(*at == '_' ? '-' : *at));
        }
        append(out, spec->kind == KIND_SWITCH ? "\n      " : " VALUE\n      ");
        append(out, spec->help);
        append(out, "\n      ");
        append(out, spec->rule);
        append(out, "; default ");
        print_value(&defaults, spec, out);
        append(out, "\n");
    }
}

void node_config_print(const struct config *config, struct buf *out)
{
    for (size_t i = 0; i < SPEC_COUNT; i++) {
        if (specs[i].kind == KIND_ADDRESSES && config->join_count == 0) {
            continue; /* an empty list is no value; absent is */
        }
        append(out, specs[i].name);
        append(out, " = ");
        print_value(config, &specs[i], out);
        append(out, "\n");
    }
}

/* The option of that name, in which `separator` stands for each underscore. */
static const struct spec *find_spec(const char *name, char separator)
{
    for (size_t i = 0; i < SPEC_COUNT; i++) {
        const char *own = specs[i].name;
        size_t at = 0;
        while (own[at] != '\0' && name[at] == (own[at] == '_' ? separator : own[at])) {
            at++;
        }
        if (own[at] == '\0' && name[at] == '\0') {
            return &specs[i];
        }
    }
    return NULL;
}

static enum status set_value(struct config *config, const struct spec *spec,
                             const struct value *value, struct violation *out_violation)
{
    void *field = (char *)config + spec->offset;
    bool text = value->kind == VALUE_KIND_TEXT;
    bool done = false;
    switch (spec->kind) {
    case KIND_PATH:
    case KIND_NAME:
    case KIND_ADDRESS:
        done = text && set_text(field, spec, value->text);
        break;
    case KIND_ADDRESSES:
        done = text && set_addresses(config, value->text);
        break;
    case KIND_MODE:
        done = text && parse_mode(value->text, field);
        break;
    case KIND_SWITCH:
        done = value->kind == VALUE_KIND_BOOL ||
               (value->from_line && slice_equal(value->text, slice_text("true")));
        if (done) {
            *(bool *)field = value->kind == VALUE_KIND_BOOL ? value->truth : true;
        }
        break;
    case KIND_WORD:
        for (uint32_t i = 0; text && level_words[i] != NULL; i++) {
            if (slice_equal(value->text, slice_text(level_words[i]))) {
                *(uint32_t *)field = i;
                done = true;
            }
        }
        break;
    case KIND_DURATION:
    case KIND_SIZE:
    case KIND_COUNT:
        done = set_number(field, spec, value);
        break;
    }
    if (!done) {
        violate(spec, value, out_violation);
        return STATUS_INVALID;
    }
    return STATUS_OK;
}

static bool set_text(void *field, const struct spec *spec, struct slice text)
{
    if (text.len < spec->min || text.len > spec->max) {
        return false;
    }
    bool fine = spec->kind == KIND_PATH   ? is_path(text)
                : spec->kind == KIND_NAME ? is_name(text)
                                          : text.len == 0 || is_address(text);
    if (fine) {
        char *to = field;
        if (text.len > 0) {
            memcpy(to, text.base, text.len);
        }
        to[text.len] = '\0';
    }
    return fine;
}

static bool set_number(void *field, const struct spec *spec, const struct value *value)
{
    uint64_t number = 0;
    bool known = false;
    if (spec->kind != KIND_COUNT) {
        known = value->kind == VALUE_KIND_TEXT &&
                parse_quantity(value->text,
                               spec->kind == KIND_SIZE ? size_units : duration_units, &number);
    } else if (value->kind == VALUE_KIND_INTEGER) {
        known = value->number >= 0;
        number = (uint64_t)value->number;
    } else if (value->kind == VALUE_KIND_TEXT && value->from_line) {
        known = parse_number(value->text, &number);
    }
    if (!known || number < spec->min || number > spec->max) {
        return false;
    }
    if (spec->offset == AT(voters) && number % 2 == 0) {
        return false;
    }
    *(uint64_t *)field = number;
    return true;
}

/* A list replaces the one before: the command line goes over the file. */
static bool set_addresses(struct config *config, struct slice text)
{
    char join[CONFIG_JOIN_MAX][CONFIG_ADDRESS_LEN_MAX + 1] = {{0}};
    unsigned count = 0;
    size_t from = 0;
    if (text.len == 0) {
        return false;
    }
    while (from <= text.len) {
        size_t to = from;
        while (to < text.len && text.base[to] != ',') {
            to++;
        }
        struct slice one = slice_from(text.base + from, to - from);
        if (count == CONFIG_JOIN_MAX || one.len > CONFIG_ADDRESS_LEN_MAX || !is_address(one)) {
            return false;
        }
        memcpy(join[count++], one.base, one.len);
        from = to + 1;
    }
    memcpy(config->join, join, sizeof join);
    config->join_count = count;
    return true;
}

/* Digits only, no leading zero but "0" itself. */
static bool parse_number(struct slice text, uint64_t *out_number)
{
    uint64_t number = 0;
    if (text.len == 0 || text.len > DIGITS_MAX || (text.len > 1 && text.base[0] == '0')) {
        return false;
    }
    for (size_t i = 0; i < text.len; i++) {
        if (text.base[i] < '0' || text.base[i] > '9') {
            return false;
        }
        number = number * 10 + (uint64_t)(text.base[i] - '0');
    }
    *out_number = number;
    return true;
}

static bool parse_quantity(struct slice text, const struct unit *units, uint64_t *out_number)
{
    size_t digits = 0;
    while (digits < text.len && text.base[digits] >= '0' && text.base[digits] <= '9') {
        digits++;
    }
    uint64_t number;
    if (!parse_number(slice_from(text.base, digits), &number)) {
        return false;
    }
    struct slice name = slice_from(text.base + digits, text.len - digits);
    for (unsigned i = 0; units[i].name != NULL; i++) {
        if (slice_equal(name, slice_text(units[i].name))) {
            return !__builtin_mul_overflow(number, units[i].factor, out_number);
        }
    }
    return false;
}

static bool parse_mode(struct slice text, uint32_t *out_mode)
{
    uint32_t mode = 0;
    for (size_t i = 0; i < text.len; i++) {
        if (text.base[i] < '0' || text.base[i] > '7') {
            return false;
        }
        mode = mode << 3 | (uint32_t)(text.base[i] - '0');
        if (mode > 0777) {
            return false;
        }
    }
    if (text.len < 3 || text.len > 4) {
        return false;
    }
    *out_mode = mode;
    return true;
}

static bool is_name(struct slice text)
{
    for (size_t i = 0; i < text.len; i++) {
        uint8_t byte = text.base[i];
        bool letter = (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z');
        bool other = (byte >= '0' && byte <= '9') || byte == '.' || byte == '_' || byte == '-';
        if (!letter && !other) {
            return false;
        }
    }
    return true;
}

static bool is_path(struct slice text)
{
    for (size_t i = 0; i < text.len; i++) {
        if (text.base[i] < 0x20 || text.base[i] == 0x7f) {
            return false;
        }
    }
    return true;
}

static bool is_address(struct slice text)
{
    struct address address;
    return address_parse(text, &address) == STATUS_OK;
}

static void violate(const struct spec *spec, const struct value *value, struct violation *out)
{
    switch (value->kind) {
    case VALUE_KIND_TEXT:
        if (value->from_line) {
            violation_set(out, spec->name, value->text, spec->rule);
        } else {
            char quoted[VIOLATION_VALUE_LEN_MAX];
            int len = snprintf(quoted, sizeof quoted, "\"%.*s\"",
                               (int)min_u64(value->text.len, sizeof quoted),
                               value->text.len > 0 ? (const char *)value->text.base : "");
            size_t shown = min_u64((uint64_t)len, sizeof quoted - 1);
            violation_set(out, spec->name, slice_from(quoted, shown), spec->rule);
        }
        return;
    case VALUE_KIND_INTEGER: {
        char number[24];
        (void)snprintf(number, sizeof number, "%" PRId64, value->number);
        violation_set_text(out, spec->name, number, spec->rule);
        return;
    }
    case VALUE_KIND_BOOL:
        violation_set_text(out, spec->name, value->truth ? "true" : "false", spec->rule);
        return;
    case VALUE_KIND_OTHER:
        violation_set_text(out, spec->name, value->what, spec->rule);
        return;
    }
}

static enum status read_settings(struct config *config, const char *name, const config_t *parsed,
                                 struct config_error *out_error)
{
    struct buf scratch;
    buf_init(&scratch, CONFIG_TEXT_LEN_MAX * 2);
    const config_setting_t *root = config_root_setting(parsed);
    enum status st = STATUS_OK;
    for (unsigned i = 0; st == STATUS_OK && i < (unsigned)config_setting_length(root); i++) {
        const config_setting_t *setting = config_setting_get_elem(root, i);
        const char *field = config_setting_name(setting);
        const struct spec *spec = find_spec(field, '_');
        char text[CONFIG_ERROR_LEN];
        struct violation violation;
        struct value value = value_of(setting, &scratch);
        if (spec == NULL) {
            (void)snprintf(text, sizeof text, "%.64s: unknown option", field);
            st = STATUS_INVALID;
        } else if (set_value(config, spec, &value, &violation) != STATUS_OK) {
            (void)snprintf(text, sizeof text, "%s: %s: %s", spec->name, violation.value,
                           violation.rule);
            st = STATUS_INVALID;
        }
        if (st != STATUS_OK) {
            say(out_error, name, config_setting_source_line(setting), text);
        }
    }
    buf_deinit(&scratch);
    return st;
}

/* An array of texts becomes one text with commas in `scratch`. */
static struct value value_of(const config_setting_t *setting, struct buf *scratch)
{
    struct value value = {.kind = VALUE_KIND_OTHER, .what = "a group"};
    int type = config_setting_type(setting);
    if (type == CONFIG_TYPE_STRING) {
        value.kind = VALUE_KIND_TEXT;
        value.text = slice_text(config_setting_get_string(setting));
    } else if (type == CONFIG_TYPE_INT || type == CONFIG_TYPE_INT64) {
        value.kind = VALUE_KIND_INTEGER;
        value.number = config_setting_get_int64(setting);
    } else if (type == CONFIG_TYPE_BOOL) {
        value.kind = VALUE_KIND_BOOL;
        value.truth = config_setting_get_bool(setting) != 0;
    } else if (type == CONFIG_TYPE_FLOAT) {
        value.what = "a floating-point number";
    } else if (type == CONFIG_TYPE_ARRAY || type == CONFIG_TYPE_LIST) {
        value.what = "a list of something else than text";
        buf_clear(scratch);
        int count = config_setting_length(setting);
        for (int i = 0; i < count; i++) {
            const char *element = config_setting_get_string_elem(setting, i);
            if (element == NULL || strchr(element, ',') != NULL) {
                return value;
            }
            append(scratch, i > 0 ? "," : "");
            append(scratch, element);
        }
        value.kind = VALUE_KIND_TEXT;
        value.text = buf_slice(scratch);
    }
    return value;
}

static void print_value(const struct config *config, const struct spec *spec, struct buf *out)
{
    const void *field = (const char *)config + spec->offset;
    char text[64];
    switch (spec->kind) {
    case KIND_PATH:
    case KIND_NAME:
    case KIND_ADDRESS:
        append(out, "\"");
        for (const char *at = field; *at != '\0'; at++) {
            append(out, *at == '"' || *at == '\\' ? "\\" : "");
            buf_append_u8(out, (uint8_t)*at);
        }
        append(out, "\"");
        return;
    case KIND_ADDRESSES:
        append(out, "\"");
        for (unsigned i = 0; i < config->join_count; i++) {
            append(out, i > 0 ? "," : "");
            append(out, config->join[i]);
        }
        append(out, "\"");
        return;
    case KIND_MODE:
        (void)snprintf(text, sizeof text, "\"%04o\"", *(const uint32_t *)field);
        break;
    case KIND_SWITCH:
        (void)snprintf(text, sizeof text, "%s", *(const bool *)field ? "true" : "false");
        break;
    case KIND_WORD:
        (void)snprintf(text, sizeof text, "\"%s\"", level_words[*(const uint32_t *)field]);
        break;
    case KIND_DURATION:
        print_quantity(*(const uint64_t *)field, duration_units, out);
        return;
    case KIND_SIZE:
        print_quantity(*(const uint64_t *)field, size_units, out);
        return;
    case KIND_COUNT:
        (void)snprintf(text, sizeof text, "%" PRIu64, *(const uint64_t *)field);
        break;
    }
    append(out, text);
}

/* In the largest unit that loses nothing. */
static void print_quantity(uint64_t number, const struct unit *units, struct buf *out)
{
    unsigned best = 0;
    for (unsigned i = 1; number > 0 && units[i].name != NULL; i++) {
        if (number % units[i].factor == 0) {
            best = i;
        }
    }
    char text[64];
    (void)snprintf(text, sizeof text, "\"%" PRIu64 "%s\"", number / units[best].factor,
                   units[best].name);
    append(out, text);
}

static void append(struct buf *out, const char *text)
{
    buf_append(out, text, strlen(text));
}

static enum status refuse_address(const char *field, const char *address, const char *rule,
                                  struct config_error *out_error)
{
    char text[CONFIG_ERROR_LEN];
    (void)snprintf(text, sizeof text, "%s: %s", address, rule);
    say(out_error, field, 0, text);
    return STATUS_INVALID;
}

#define NEEDS_INSECURE \
    "is not a loopback address: needs insecure_network, since links are not encrypted"

static enum status validate_listen(const struct config *config, struct config_error *out_error)
{
    struct address address;
    CHECK(address_parse(slice_text(config->listen), &address) == STATUS_OK);
    if (!address_is_loopback(&address) && !config->insecure_network) {
        return refuse_address("listen", config->listen, NEEDS_INSECURE, out_error);
    }
    if (address_is_any(&address) && config->advertise[0] == '\0') {
        return refuse_address("listen", config->listen,
                              "needs advertise: others can't reach this node at every address",
                              out_error);
    }
    return STATUS_OK;
}

static enum status validate_reachable(const struct config *config, const char *field,
                                      const char *text, struct config_error *out_error)
{
    struct address address;
    CHECK(address_parse(slice_text(text), &address) == STATUS_OK);
    if (address_is_any(&address)) {
        return refuse_address(field, text, "is no address that can be reached", out_error);
    }
    if (address.port == 0) {
        return refuse_address(field, text, "needs a port in 1..65535", out_error);
    }
    if (!address_is_loopback(&address) && !config->insecure_network) {
        return refuse_address(field, text, NEEDS_INSECURE, out_error);
    }
    return STATUS_OK;
}
