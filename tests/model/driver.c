/* The state machine as a program that speaks lines, so that a model in another language can be
 * compared with it. Reads requests from stdin, answers each with one line on stdout, see README.md.
 *
 * Every entry goes through entry_encode and entry_decode on its way, and every result through
 * result_decode, so that what is compared is what a cluster would store and send. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "fsm/command_codec.h"
#include "fsm/fsm.h"
#include "fsm/invariants.h"
#include "fsm/result.h"
#include "fsm/snapshot.h"

#define COMMANDS_MAX 4096u
#define SNAPSHOT_LEN_MAX ((size_t)1 << 30)

struct driver {
    struct fsm *fsm;
    struct command_decoder *command_decoder;
    struct result_decoder *result_decoder;
    struct buf body;  /* commands of the entry being made */
    struct buf entry; /* its bytes */
    struct key_item items[KEYS_MAX + 1];
    bool first; /* nothing has been printed on this line yet */
};

static void serve(struct driver *driver, char *line);
static void fatal(const char *what, const char *detail);

/* --- reading --------------------------------------------------------------------------------- */

/* Cut the next word at `separator` off *rest; NULL at the end. */
static char *next_word(char **rest, char separator)
{
    char *word = *rest;
    if (word == NULL || *word == '\0') {
        return NULL;
    }
    char *end = strchr(word, separator);
    if (end == NULL) {
        *rest = NULL;
    } else {
        *end = '\0';
        *rest = end + 1;
    }
    return word;
}

static unsigned hex_digit(char digit)
{
    if (digit >= '0' && digit <= '9') {
        return (unsigned)(digit - '0');
    }
    if (digit < 'a' || digit > 'f') {
        fatal("bad escape", "%");
    }
    return (unsigned)(digit - 'a') + 10;
}

/* Undo percent escapes in place. */
static struct slice unescape(char *text)
{
    size_t len = 0;
    for (const char *at = text; *at != '\0'; at++) {
        if (*at == '%') {
            text[len++] = (char)(hex_digit(at[1]) << 4 | hex_digit(at[2]));
            at += 2;
        } else {
            text[len++] = *at;
        }
    }
    return slice_from(text, len);
}

static uint64_t number(const char *text)
{
    char *end = NULL;
    uint64_t value = text == NULL ? 0 : strtoull(text, &end, 10);
    if (text == NULL || end == text || *end != '\0') {
        fatal("not a number", text == NULL ? "(missing)" : text);
    }
    return value;
}

static enum op_kind kind_of(const char *name)
{
    for (int kind = OP_KIND_TAKE; kind <= OP_KIND_RECOVER; kind++) {
        if (strcmp(op_kind_name((enum op_kind)kind), name) == 0) {
            return (enum op_kind)kind;
        }
    }
    fatal("no such operation", name);
    return OP_KIND_TAKE;
}

/* A field of settings by its name. */
static uint64_t *setting(struct settings *settings, const char *name)
{
    const struct {
        const char *name;
        uint64_t *field;
    } rows[] = {
        {"leases_max", &settings->leases_max},
        {"leases_per_namespace_max", &settings->leases_per_namespace_max},
        {"tombstones_max", &settings->tombstones_max},
        {"tombstone_retention_ms", &settings->tombstone_retention_ms},
        {"departures_max", &settings->departures_max},
        {"origins_max", &settings->origins_max},
        {"origin_retention_ms", &settings->origin_retention_ms},
        {"removal_slice", &settings->removal_slice},
        {"voters_wanted", &settings->voters_wanted},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (strcmp(rows[i].name, name) == 0) {
            return rows[i].field;
        }
    }
    return NULL;
}

static bool read_item_field(struct driver *driver, struct command *command, const char *name,
                            char *value)
{
    struct op *op = &command->op;
    if (strcmp(name, "k") == 0) {
        if (op->key_count > KEYS_MAX) {
            fatal("too many keys", "");
        }
        driver->items[op->key_count++] = (struct key_item){.key = unescape(value)};
        op->keys = driver->items;
        return true;
    }
    if (op->key_count == 0) {
        return false;
    }
    struct key_item *item = &driver->items[op->key_count - 1];
    if (strcmp(name, "t") == 0) {
        item->has_if_token = true;
        item->if_token = number(value);
    } else if (strcmp(name, "m") == 0) {
        item->meta = unescape(value);
    } else if (strcmp(name, "i") == 0) {
        item->identity = unescape(value);
    } else {
        return false;
    }
    return true;
}

static void read_cluster_id(struct op *op, char *value)
{
    struct slice id = unescape(value);
    if (id.len > CLUSTER_ID_LEN) {
        fatal("cluster id", "too long");
    }
    memcpy(op->identity.id, id.base, id.len);
}

static void read_field(struct driver *driver, struct command *command, const char *name,
                       char *value)
{
    struct op *op = &command->op;
    const struct {
        const char *name;
        uint64_t *field;
    } numbers[] = {
        {"o", &command->origin},
        {"s", &command->sequence},
        {"c", &command->confirmed},
        {"ttl", &op->ttl_ms},
        {"grace", &op->grace_ms},
        {"grace_ms", &op->grace_ms},
        {"version", &op->set_version},
        {"node", &op->node_id},
        {"nonce", &op->nonce},
        {"origin", &op->target_origin},
        {"sequence", &op->target_sequence},
        {"floor", &op->token_floor},
        {"generation", &op->identity.generation},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        if (strcmp(name, numbers[i].name) == 0) {
            *numbers[i].field = number(value);
            op->adopt = op->adopt || strcmp(name, "grace") == 0;
            op->has_set_version = op->has_set_version || strcmp(name, "version") == 0;
            return;
        }
    }
    uint64_t *field = setting(&op->settings, name);
    if (field != NULL) {
        *field = number(value);
    } else if (strcmp(name, "ns") == 0) {
        op->ns = unescape(value);
    } else if (strcmp(name, "owner") == 0) {
        op->owner = unescape(value);
    } else if (strcmp(name, "adopt") == 0) {
        op->adopt = number(value) != 0;
    } else if (strcmp(name, "destroy") == 0) {
        op->destroy = number(value) != 0;
    } else if (strcmp(name, "reestablish") == 0) {
        op->reestablish = number(value) != 0;
    } else if (strcmp(name, "id") == 0) {
        read_cluster_id(op, value);
    } else if (!read_item_field(driver, command, name, value)) {
        fatal("no such field", name);
    }
}

/* "take o=1 s=2 c=1 ns=default owner=a ttl=100 k=x m=..." */
static struct command read_command(struct driver *driver, char *text)
{
    char *rest = text;
    const char *name = next_word(&rest, ' ');
    if (name == NULL) {
        fatal("empty command", "");
    }
    struct command command = {.op = {.kind = kind_of(name)}};
    if (command.op.kind == OP_KIND_BIRTH || command.op.kind == OP_KIND_CONFIGURE) {
        command.op.settings = settings_default();
    }
    for (char *word = next_word(&rest, ' '); word != NULL; word = next_word(&rest, ' ')) {
        char *value = strchr(word, '=');
        if (value == NULL) {
            fatal("field without a value", word);
        }
        *value++ = '\0';
        read_field(driver, &command, word, value);
    }
    return command;
}

/* --- writing --------------------------------------------------------------------------------- */

static void put_escaped(struct slice text)
{
    for (size_t i = 0; i < text.len; i++) {
        uint8_t byte = text.base[i];
        bool plain = (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') ||
                     (byte >= '0' && byte <= '9') || byte == '-' || byte == '/' || byte == '.';
        if (plain) {
            (void)putchar(byte);
        } else {
            printf("%%%02x", byte);
        }
    }
}

/* Absent as "-", present as "=bytes". */
static void put_optional(struct slice text)
{
    (void)putchar(text.base == NULL ? '-' : '=');
    put_escaped(text);
}

static void put_holder(const struct holder *holder)
{
    if (holder->owner.base == NULL) {
        return;
    }
    (void)putchar(',');
    put_escaped(holder->owner);
    printf(",%s,%" PRIu64 ",%" PRIu64, lease_state_name(holder->state), holder->token,
           holder->ms_left);
}

static void put_outcome(const struct outcome *outcome)
{
    printf(" %s", outcome_kind_name(outcome->kind));
    switch (outcome->kind) {
    case OUTCOME_KIND_GRANTED:
        printf(",%" PRIu64 ",%" PRIu64 ",%d", outcome->token, outcome->expiry_ms,
               outcome->held_before);
        put_holder(&outcome->holder);
        return;
    case OUTCOME_KIND_RENEWED:
    case OUTCOME_KIND_REESTABLISHED:
        printf(",%" PRIu64 ",%" PRIu64, outcome->token, outcome->expiry_ms);
        return;
    case OUTCOME_KIND_HELD:
    case OUTCOME_KIND_TEARDOWN:
    case OUTCOME_KIND_LOST:
    case OUTCOME_KIND_NOT_OWNER:
    case OUTCOME_KIND_STALE:
    case OUTCOME_KIND_MISMATCH:
        put_holder(&outcome->holder);
        return;
    case OUTCOME_KIND_GRACE:
        printf(",%" PRIu64, outcome->grace_ms_left);
        return;
    case OUTCOME_KIND_UNAVAILABLE:
        printf(",%s", limit_kind_name(outcome->limit));
        return;
    case OUTCOME_KIND_LAPSED:
    case OUTCOME_KIND_RELEASED:
    case OUTCOME_KIND_UNKNOWN:
        return;
    }
}

static void put_result_body(const struct result *result)
{
    switch (result->kind) {
    case OP_KIND_TAKE:
    case OP_KIND_CLAIM:
    case OP_KIND_RENEW:
    case OP_KIND_HEARTBEAT:
    case OP_KIND_RELEASE:
        for (uint32_t i = 0; i < result->outcome_count; i++) {
            put_outcome(&result->outcomes[i]);
        }
        return;
    case OP_KIND_RENEW_ALL:
        printf(" %" PRIu64 " %" PRIu64 " %d", result->count, result->set_version,
               result->list_again);
        for (uint32_t i = 0; i < result->departure_count; i++) {
            (void)putchar(' ');
            put_escaped(result->departures[i].key);
            printf(",%" PRIu64 ",%s", result->departures[i].token,
                   end_reason_name(result->departures[i].reason));
        }
        return;
    case OP_KIND_RELEASE_ALL:
    case OP_KIND_PURGE:
        printf(" %" PRIu64, result->count);
        return;
    case OP_KIND_OPEN_ORIGIN:
        printf(" %" PRIu64, result->origin);
        return;
    case OP_KIND_SETTLE:
        printf(" %d %d", result->settled_applied, result->settled_ended);
        return;
    case OP_KIND_BIRTH:
    case OP_KIND_CONFIGURE:
    case OP_KIND_RESTORE:
    case OP_KIND_RECOVER:
        return;
    }
}

static void on_result(void *ctx, uint32_t place, struct slice bytes)
{
    struct driver *driver = ctx;
    struct result result;
    (void)place;
    if (result_decode(driver->result_decoder, bytes, &result) != STATUS_OK) {
        fatal("result", "malformed");
    }
    if (!driver->first) {
        (void)putchar('|');
    }
    driver->first = false;
    printf("%s %s %" PRIu64 " %" PRIu32 " %" PRIu64, status_name(result.status),
           op_kind_name(result.kind), result.position.index, result.position.place,
           result.clock_ms);
    if (result.status == STATUS_OK) {
        put_result_body(&result);
    }
}

static bool on_view(void *ctx, const struct lease_view *view)
{
    struct driver *driver = ctx;
    if (!driver->first) {
        (void)putchar('|');
    }
    driver->first = false;
    put_escaped(view->key);
    (void)putchar(' ');
    put_escaped(view->owner);
    printf(" %s %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " ", lease_state_name(view->state),
           view->ttl_ms, view->expiry_ms, view->token, view->since_ms);
    put_optional(view->meta);
    (void)putchar(' ');
    put_optional(view->identity);
    return true;
}

/* --- requests -------------------------------------------------------------------------------- */

/* apply INDEX STAMP COMMAND|COMMAND... : results joined by '|'; or "INVALID field value rule" of
 * the first command that breaks a rule, and then nothing is applied. */
static void serve_apply(struct driver *driver, char *rest)
{
    uint64_t index = number(next_word(&rest, ' '));
    uint64_t stamp_ms = number(next_word(&rest, ' '));
    uint32_t count = 0;
    buf_clear(&driver->body);
    buf_clear(&driver->entry);
    for (char *text = next_word(&rest, '|'); text != NULL; text = next_word(&rest, '|')) {
        struct command command = read_command(driver, text);
        struct violation violation;
        if (op_validate(&command.op, &violation) != STATUS_OK) {
            printf("INVALID %s\t%s\t%s", violation.field, violation.value, violation.rule);
            return;
        }
        command_encode(&command, &driver->body);
        count++;
    }
    if (count > COMMANDS_MAX || buf_overflown(&driver->body)) {
        fatal("apply", "too much for one entry");
    }
    entry_encode(stamp_ms, buf_slice(&driver->body), count, &driver->entry);
    struct entry entry;
    uint32_t version = 0;
    if (entry_decode(driver->command_decoder, buf_slice(&driver->entry), &entry, &version) !=
        STATUS_OK) {
        fatal("apply", "its own entry was refused");
    }
    fsm_apply(driver->fsm, index, &entry, on_result, driver);
}

/* owner NS KEY NOW: the lease, or "none". */
static void serve_owner(struct driver *driver, char *rest)
{
    struct slice ns = unescape(next_word(&rest, ' '));
    struct slice key = unescape(next_word(&rest, ' '));
    struct lease_view view;
    if (fsm_query_owner(driver->fsm, ns, key, number(next_word(&rest, ' ')), &view)) {
        (void)on_view(driver, &view);
    } else {
        printf("none");
    }
}

/* FIELD=VALUE words of list and count. */
static struct fsm_filter read_filter(char **rest)
{
    struct fsm_filter filter = {0};
    for (char *word = next_word(rest, ' '); word != NULL; word = next_word(rest, ' ')) {
        char *value = strchr(word, '=');
        if (value == NULL) {
            fatal("field without a value", word);
        }
        *value++ = '\0';
        if (strcmp(word, "state") == 0) {
            filter.state = strcmp(value, "own") == 0 ? LEASE_STATE_OWN : LEASE_STATE_DEL;
        } else if (strcmp(word, "prefix") == 0) {
            filter.prefix = unescape(value);
        } else if (strcmp(word, "owner") == 0) {
            filter.owner = unescape(value);
        } else if (strcmp(word, "after") == 0) {
            filter.after = unescape(value);
        } else {
            fatal("no such field", word);
        }
    }
    return filter;
}

/* list|count NS NOW [prefix=] [owner=] [state=] [after=] */
static void serve_list(struct driver *driver, char *rest, bool count)
{
    struct slice ns = unescape(next_word(&rest, ' '));
    uint64_t now_ms = number(next_word(&rest, ' '));
    struct fsm_filter filter = read_filter(&rest);
    filter.ns = ns;
    if (count) {
        printf("%" PRIu64, fsm_query_count(driver->fsm, &filter, now_ms));
    } else {
        fsm_query_list(driver->fsm, &filter, now_ms, on_view, driver);
    }
}

/* gone NS KEY: "SINCE none" or "SINCE owner state token reason ended" of an absent key. */
static void serve_gone(struct driver *driver, char *rest)
{
    struct slice ns = unescape(next_word(&rest, ' '));
    struct slice key = unescape(next_word(&rest, ' '));
    struct tombstone_view view;
    printf("%" PRIu64, fsm_query_unowned_since(driver->fsm, ns, key));
    if (fsm_query_tombstone(driver->fsm, ns, key, &view)) {
        (void)putchar(' ');
        put_escaped(view.owner);
        printf(" %s %" PRIu64 " %s %" PRIu64, lease_state_name(view.state), view.token,
               end_reason_name(view.reason), view.ended_ms);
    } else {
        printf(" none");
    }
}

/* due NS TEXT EXACT NOW: 1 when a read would show a lease that is due but stored. */
static void serve_due(struct driver *driver, char *rest)
{
    struct slice ns = unescape(next_word(&rest, ' '));
    char *text = next_word(&rest, ' ');
    struct slice key = strcmp(text, "*") == 0 ? slice_from("", 0) : unescape(text);
    bool exact = number(next_word(&rest, ' ')) != 0;
    printf("%d", fsm_query_shows_due(driver->fsm, ns, key, exact, number(next_word(&rest, ' '))));
}

/* info: index clock token next_due timed born leases_own leases_del tombstones origins outcomes */
static void serve_info(const struct driver *driver)
{
    struct fsm_stats stats;
    fsm_stats(driver->fsm, &stats);
    printf("%" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %d %d %" PRIu64 " %" PRIu64
           " %" PRIu64 " %" PRIu64 " %" PRIu64,
           fsm_index(driver->fsm), fsm_clock_ms(driver->fsm), fsm_token(driver->fsm),
           fsm_next_due_ms(driver->fsm), fsm_timed(driver->fsm), fsm_born(driver->fsm),
           stats.leases_own, stats.leases_del, stats.tombstones, stats.origins, stats.outcomes);
}

/* settings: "name=value" of each, as the table has them. */
static void serve_settings(const struct driver *driver)
{
    static const char *const names[] = {
        "leases_max",          "leases_per_namespace_max", "tombstones_max",
        "tombstone_retention_ms", "departures_max",        "origins_max",
        "origin_retention_ms", "removal_slice",            "voters_wanted",
    };
    _Static_assert(sizeof names / sizeof names[0] == sizeof(struct settings) / sizeof(uint64_t),
                   "every setting has its name here");
    struct settings settings = *fsm_settings(driver->fsm);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        printf("%s%s=%" PRIu64, i == 0 ? "" : " ", names[i], *setting(&settings, names[i]));
    }
}

/* changes: what the last entry changed, joined by '|'. */
static void serve_changes(const struct driver *driver)
{
    static const char *const names[] = {
        [CHANGE_KIND_GRANTED] = "granted",   [CHANGE_KIND_TRANSFERRED] = "transferred",
        [CHANGE_KIND_REGRANTED] = "regranted", [CHANGE_KIND_REESTABLISHED] = "reestablished",
        [CHANGE_KIND_TEARDOWN] = "teardown", [CHANGE_KIND_RELEASED] = "released",
        [CHANGE_KIND_EXPIRED] = "expired",   [CHANGE_KIND_SETTLED] = "settled",
        [CHANGE_KIND_PURGED] = "purged",     [CHANGE_KIND_RESTORED] = "restored",
    };
    const struct changes *changes = fsm_changes(driver->fsm);
    for (uint32_t i = 0; i < changes_count(changes); i++) {
        struct change change = changes_get(changes, i);
        printf("%s%s ", i == 0 ? "" : "|", names[change.kind]);
        put_escaped(change.ns);
        (void)putchar(' ');
        put_escaped(change.key);
        (void)putchar(' ');
        put_escaped(change.owner);
        (void)putchar(' ');
        put_optional(change.previous_owner);
        printf(" %s %" PRIu64 " %" PRIu64 " %" PRIu32, lease_state_name(change.state),
               change.token, change.position.index, change.position.place);
    }
}

/* snap: through bytes and back; digests and bytes must be equal and every invariant must hold. The
 * driver goes on with the copy. */
static void serve_snap(struct driver *driver)
{
    struct buf bytes;
    struct buf again;
    buf_init(&bytes, SNAPSHOT_LEN_MAX);
    buf_init(&again, SNAPSHOT_LEN_MAX);
    snapshot_encode(driver->fsm, &bytes);
    struct fsm *copy = NULL;
    uint32_t version = 0;
    const char *why = "";
    static const struct hash_key hash_key = {{0}};
    enum status st = snapshot_decode(buf_slice(&bytes), &hash_key, &copy, &version, &why);
    if (st != STATUS_OK) {
        fatal("snapshot", why);
    }
    snapshot_encode(copy, &again);
    const char *broken = invariants_check(copy);
    if (broken != NULL) {
        fatal("invariant", broken);
    }
    if (!slice_equal(buf_slice(&bytes), buf_slice(&again))) {
        fatal("snapshot", "its copy has other bytes");
    }
    if (fsm_digest(copy) != fsm_digest(driver->fsm)) {
        fatal("snapshot", "its copy has another digest");
    }
    printf("%zu %016" PRIx64, bytes.len, fsm_digest(copy));
    fsm_destroy(driver->fsm);
    driver->fsm = copy;
    buf_deinit(&bytes);
    buf_deinit(&again);
}

static void serve_reset(struct driver *driver)
{
    fsm_destroy(driver->fsm);
    driver->fsm = fsm_create();
    printf("ok");
}

static void serve(struct driver *driver, char *line)
{
    char *rest = line;
    const char *word = next_word(&rest, ' ');
    driver->first = true;
    if (word == NULL) {
        fatal("empty line", "");
    } else if (strcmp(word, "apply") == 0) {
        serve_apply(driver, rest);
    } else if (strcmp(word, "owner") == 0) {
        serve_owner(driver, rest);
    } else if (strcmp(word, "list") == 0 || strcmp(word, "count") == 0) {
        serve_list(driver, rest, word[0] == 'c');
    } else if (strcmp(word, "gone") == 0) {
        serve_gone(driver, rest);
    } else if (strcmp(word, "due") == 0) {
        serve_due(driver, rest);
    } else if (strcmp(word, "info") == 0) {
        serve_info(driver);
    } else if (strcmp(word, "settings") == 0) {
        serve_settings(driver);
    } else if (strcmp(word, "changes") == 0) {
        serve_changes(driver);
    } else if (strcmp(word, "digest") == 0) {
        printf("%016" PRIx64, fsm_digest(driver->fsm));
    } else if (strcmp(word, "snap") == 0) {
        serve_snap(driver);
    } else if (strcmp(word, "reset") == 0) {
        serve_reset(driver);
    } else {
        fatal("no such request", word);
    }
    (void)putchar('\n');
}

static void fatal(const char *what, const char *detail)
{
    (void)fflush(stdout);
    fprintf(stderr, "fsm_driver: %s: %s\n", what, detail);
    exit(1);
}

int main(void)
{
    struct driver *driver = calloc(1, sizeof *driver);
    CHECK(driver != NULL);
    driver->fsm = fsm_create();
    driver->command_decoder = command_decoder_create();
    driver->result_decoder = result_decoder_create();
    buf_init(&driver->body, ENTRY_LEN_MAX);
    buf_init(&driver->entry, ENTRY_LEN_MAX);
    char *line = NULL;
    size_t cap = 0;
    ssize_t len;
    while ((len = getline(&line, &cap, stdin)) > 0) {
        if (line[len - 1] == '\n') {
            line[len - 1] = '\0';
        }
        serve(driver, line);
        (void)fflush(stdout);
    }
    free(line);
    buf_deinit(&driver->body);
    buf_deinit(&driver->entry);
    result_decoder_destroy(driver->result_decoder);
    command_decoder_destroy(driver->command_decoder);
    fsm_destroy(driver->fsm);
    free(driver);
    return 0;
}
