/* The log of a node: one line of key=value pairs per event, on stderr or to a callback.
 *
 *   time=2024-05-01T12:00:00.123Z boot_ms=4711 level=warn event=link_down peer=17 why="no bytes"
 *
 * Both clocks: the wall's for people, CLOCK_BOOTTIME's for counting. Values are escaped so that no
 * terminal and no parser can be driven by them: printable ASCII only, everything else as \xNN. At
 * most LOG_BURST lines of one event in LOG_PERIOD_NS; what was held back is counted, and told with
 * the next line of that event (suppressed=N). A reader that does not keep up costs lines, never
 * time: a line that would block is dropped and counted.
 *
 * Pure code does not log; it returns. error: needs a person. warn: degraded. info: membership and
 * role changes. */
#ifndef NODE_LOG_H_
#define NODE_LOG_H_

#include "fsm/base/buf.h"
#include "fsm/base/slice.h"

#define LOG_VALUE_LEN_MAX 320u /* bytes of a value before escaping; longer ones are cut */
#define LOG_LINE_LEN_MAX 3072u /* below PIPE_BUF, so that lines of several writers never mix */
#define LOG_BURST 20u
#define LOG_PERIOD_NS 10000000000ull

enum log_level {
    LOG_LEVEL_ERROR = 0,
    LOG_LEVEL_WARN = 1,
    LOG_LEVEL_INFO = 2,
    LOG_LEVEL_DEBUG = 3,
};

/* "error", "warn", "info", "debug"; never NULL. */
const char *log_level_name(enum log_level level);

enum log_field_kind {
    LOG_FIELD_KIND_TEXT,
    LOG_FIELD_KIND_U64,
    LOG_FIELD_KIND_I64,
    LOG_FIELD_KIND_ID, /* 16 hexadecimal digits, as ids are shown everywhere */
};

/* A named value. The name is a static word of [a-z0-9_]; the text is borrowed during the call. */
struct log_field {
    const char *name;
    enum log_field_kind kind;
    uint64_t number;
    int64_t signed_number;
    struct slice text;
};

static inline struct log_field log_text(const char *name, const char *text)
{
    return (struct log_field){
        .name = name, .kind = LOG_FIELD_KIND_TEXT, .text = slice_text(text != NULL ? text : "")};
}

static inline struct log_field log_bytes(const char *name, struct slice bytes)
{
    return (struct log_field){.name = name, .kind = LOG_FIELD_KIND_TEXT, .text = bytes};
}

static inline struct log_field log_u64(const char *name, uint64_t number)
{
    return (struct log_field){.name = name, .kind = LOG_FIELD_KIND_U64, .number = number};
}

static inline struct log_field log_id(const char *name, uint64_t id)
{
    return (struct log_field){.name = name, .kind = LOG_FIELD_KIND_ID, .number = id};
}

static inline struct log_field log_i64(const char *name, int64_t number)
{
    return (struct log_field){.name = name, .kind = LOG_FIELD_KIND_I64, .signed_number = number};
}

/* What one line says; for log_format. */
struct log_line {
    uint64_t wall_ms; /* Unix milliseconds */
    uint64_t boot_ms; /* CLOCK_BOOTTIME */
    enum log_level level;
    const char *event;
    const struct log_field *fields;
    unsigned field_count;
    uint64_t suppressed; /* lines of this event held back before it */
};

/* Append the line, newline included, at most LOG_LINE_LEN_MAX bytes. Pure. */
void log_format(const struct log_line *line, struct buf *out);

struct log;

struct log_config {
    enum log_level level; /* this and what is more urgent */

    /* Where lines go, newline included; NULL: stderr. */
    void (*sink)(void *ctx, enum log_level level, struct slice line);
    void *ctx;
};

struct log *log_create(const struct log_config *config);

/* Tells what is still held back first. */
void log_destroy(struct log *log);

void log_write(struct log *log, enum log_level level, const char *event,
               const struct log_field *fields, unsigned count);

/* LOG_EVENT(log, LOG_LEVEL_WARN, "link_down", log_u64("peer", id), log_text("why", why)); at least
 * one field; without any: log_event. */
#define LOG_EVENT(log, level, event, ...)                                          \
    log_write((log), (level), (event), (const struct log_field[]){__VA_ARGS__},    \
              (unsigned)(sizeof((const struct log_field[]){__VA_ARGS__}) /         \
                         sizeof(struct log_field)))

static inline void log_event(struct log *log, enum log_level level, const char *event)
{
    log_write(log, level, event, NULL, 0);
}

struct log_stats {
    uint64_t lines;
    uint64_t suppressed; /* by the rate limit */
    uint64_t dropped;    /* because nobody read them */
};
void log_stats(const struct log *log, struct log_stats *out_stats);

#endif
