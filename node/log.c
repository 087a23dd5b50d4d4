/* Formatting is pure and done into one buffer per line; the rate limit keeps one small slot for
 * each event. Slots are few and found by the event's hash: two events that share one share its
 * limit, which errs on the quiet side, and what is held back is still counted. */
#include "node/log.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "fsm/base/check.h"
#include "fsm/base/hash.h"
#include "fsm/base/units.h"

#define LOG_SLOTS 128u
#define LOG_LINE_END "...\n"

struct slot {
    const char *event; /* that used the slot last; static */
    uint64_t period_ns; /* when the present period began */
    uint64_t lines;     /* written in it */
    uint64_t suppressed; /* since the last line */
};

struct log {
    struct log_config config;
    struct slot slots[LOG_SLOTS];
    struct buf line;
    struct log_stats stats;
};

static void format_time(uint64_t wall_ms, struct buf *out);
static void format_field(const struct log_field *field, struct buf *out);
static void format_text(struct slice text, struct buf *out);
static void append_text(struct buf *out, const char *text);
static bool is_bare(struct slice text);
static void put(struct log *log, enum log_level level, const char *event,
                const struct log_field *fields, unsigned count);
static void emit(struct log *log, struct log_line *line);
static void write_to_stderr(struct log *log, struct slice line);
static uint64_t clock_ns(clockid_t clock);

const char *log_level_name(enum log_level level)
{
    switch (level) {
    case LOG_LEVEL_ERROR:
        return "error";
    case LOG_LEVEL_WARN:
        return "warn";
    case LOG_LEVEL_INFO:
        return "info";
    case LOG_LEVEL_DEBUG:
        return "debug";
    }
    return "unknown";
}

void log_format(const struct log_line *line, struct buf *out)
{
    struct buf text;
    buf_init(&text, LOG_LINE_LEN_MAX - (sizeof LOG_LINE_END - 1));
    char head[96];
    append_text(&text, "time=");
    format_time(line->wall_ms, &text);
    (void)snprintf(head, sizeof head, " boot_ms=%" PRIu64 " level=%s event=", line->boot_ms,
                   log_level_name(line->level));
    append_text(&text, head);
    format_text(slice_text(line->event), &text);
    if (line->suppressed > 0) {
        (void)snprintf(head, sizeof head, " suppressed=%" PRIu64, line->suppressed);
        append_text(&text, head);
    }
    for (unsigned i = 0; i < line->field_count && !buf_overflown(&text); i++) {
        /* A field that does not fit is left out as a whole: half an escape means something else. */
        size_t len = text.len;
        format_field(&line->fields[i], &text);
        if (buf_overflown(&text)) {
            text.len = len;
        }
    }
    buf_append(out, text.base, text.len);
    append_text(out, buf_overflown(&text) ? " " LOG_LINE_END : "\n");
    buf_deinit(&text);
}

struct log *log_create(const struct log_config *config)
{
    struct log *log = calloc(1, sizeof *log);
    CHECK(log != NULL);
    log->config = *config;
    buf_init(&log->line, LOG_LINE_LEN_MAX + 1);
    return log;
}

void log_destroy(struct log *log)
{
    for (unsigned i = 0; i < LOG_SLOTS; i++) {
        if (log->slots[i].suppressed > 0) {
            struct log_line line = {.level = LOG_LEVEL_WARN, .event = log->slots[i].event,
                                    .suppressed = log->slots[i].suppressed};
            emit(log, &line);
        }
    }
    buf_deinit(&log->line);
    free(log);
}

void log_write(struct log *log, enum log_level level, const char *event,
               const struct log_field *fields, unsigned count)
{
    if (level <= log->config.level) {
        put(log, level, event, fields, count);
    }
}

void log_stats(const struct log *log, struct log_stats *out_stats)
{
    *out_stats = log->stats;
}

static void put(struct log *log, enum log_level level, const char *event,
                const struct log_field *fields, unsigned count)
{
    struct slot *slot = &log->slots[hash64(0, event, strlen(event)) % LOG_SLOTS];
    uint64_t now_ns = clock_ns(CLOCK_BOOTTIME);
    if (slot->event == NULL || now_ns - slot->period_ns >= LOG_PERIOD_NS) {
        slot->period_ns = now_ns;
        slot->lines = 0;
    }
    slot->event = event;
    if (slot->lines >= LOG_BURST) {
        slot->suppressed++;
        log->stats.suppressed++;
        return;
    }
    slot->lines++;
    struct log_line line = {.level = level, .event = event, .fields = fields,
                            .field_count = count, .suppressed = slot->suppressed};
    slot->suppressed = 0;
    emit(log, &line);
}

static void emit(struct log *log, struct log_line *line)
{
    line->boot_ms = ns_to_ms_floor(clock_ns(CLOCK_BOOTTIME));
    line->wall_ms = ns_to_ms_floor(clock_ns(CLOCK_REALTIME));
    buf_clear(&log->line);
    log_format(line, &log->line);
    log->stats.lines++;
    if (log->config.sink != NULL) {
        log->config.sink(log->config.ctx, line->level, buf_slice(&log->line));
    } else {
        write_to_stderr(log, buf_slice(&log->line));
    }
}

/* A pipe that says it is writable takes PIPE_BUF bytes without blocking; a line is shorter. */
static void write_to_stderr(struct log *log, struct slice line)
{
    struct pollfd writable = {.fd = STDERR_FILENO, .events = POLLOUT};
    ssize_t len = -1;
    if (poll(&writable, 1, 0) == 1 && (writable.revents & POLLOUT) != 0) {
        len = write(STDERR_FILENO, line.base, line.len);
    }
    if (len < 0 || (size_t)len != line.len) {
        log->stats.dropped++;
    }
}

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec now;
    CHECK(clock_gettime(clock, &now) == 0);
    return (uint64_t)now.tv_sec * MS_PER_S * NS_PER_MS + (uint64_t)now.tv_nsec;
}

static void format_time(uint64_t wall_ms, struct buf *out)
{
    time_t seconds = (time_t)(wall_ms / MS_PER_S);
    struct tm utc;
    char text[64];
    if (gmtime_r(&seconds, &utc) == NULL) {
        append_text(out, "unknown");
        return;
    }
    (void)snprintf(text, sizeof text, "%04d-%02d-%02dT%02d:%02d:%02d.%03uZ", utc.tm_year + 1900,
                   utc.tm_mon + 1, utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec,
                   (unsigned)(wall_ms % MS_PER_S));
    append_text(out, text);
}

static void format_field(const struct log_field *field, struct buf *out)
{
    char number[24];
    append_text(out, " ");
    append_text(out, field->name);
    append_text(out, "=");
    switch (field->kind) {
    case LOG_FIELD_KIND_TEXT:
        format_text(field->text, out);
        return;
    case LOG_FIELD_KIND_U64:
        (void)snprintf(number, sizeof number, "%" PRIu64, field->number);
        break;
    case LOG_FIELD_KIND_I64:
        (void)snprintf(number, sizeof number, "%" PRId64, field->signed_number);
        break;
    case LOG_FIELD_KIND_ID:
        (void)snprintf(number, sizeof number, "%016" PRIx64, field->number);
        break;
    }
    append_text(out, number);
}

/* Bare where nothing in it could be misread, else in quotes with escapes. */
static void format_text(struct slice text, struct buf *out)
{
    static const char digits[] = "0123456789abcdef";
    if (is_bare(text)) {
        buf_append(out, text.base, text.len);
        return;
    }
    size_t len = text.len > LOG_VALUE_LEN_MAX ? LOG_VALUE_LEN_MAX : text.len;
    buf_append_u8(out, '"');
    for (size_t i = 0; i < len; i++) {
        uint8_t byte = text.base[i];
        if (byte == '"' || byte == '\\') {
            buf_append_u8(out, '\\');
            buf_append_u8(out, byte);
        } else if (byte >= 0x20 && byte < 0x7f) {
            buf_append_u8(out, byte);
        } else {
            append_text(out, "\\x");
            buf_append_u8(out, (uint8_t)digits[byte >> 4]);
            buf_append_u8(out, (uint8_t)digits[byte & 15u]);
        }
    }
    if (len < text.len) {
        append_text(out, "...");
    }
    buf_append_u8(out, '"');
}

static bool is_bare(struct slice text)
{
    if (text.len == 0 || text.len > LOG_VALUE_LEN_MAX) {
        return false;
    }
    for (size_t i = 0; i < text.len; i++) {
        uint8_t byte = text.base[i];
        if (byte <= 0x20 || byte >= 0x7f || byte == '"' || byte == '\\' || byte == '=') {
            return false;
        }
    }
    return true;
}

static void append_text(struct buf *out, const char *text)
{
    buf_append(out, text, strlen(text));
}
