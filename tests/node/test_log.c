/* Lines of the log: their shape, what escaping does to hostile values, limits of length and of
 * rate. */
#include "node/log.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#define WALL_MS 1714564800123ull /* 2024-05-01T12:00:00.123Z */

struct lines {
    unsigned count;
    enum log_level level;
    char last[LOG_LINE_LEN_MAX + 1];
};

static void on_line(void *ctx, enum log_level level, struct slice line)
{
    struct lines *lines = ctx;
    assert_true(line.len <= LOG_LINE_LEN_MAX);
    lines->count++;
    lines->level = level;
    memcpy(lines->last, line.base, line.len);
    lines->last[line.len] = '\0';
}

static const char *formatted(const struct log_line *line)
{
    static char text[LOG_LINE_LEN_MAX + 1];
    struct buf out;
    buf_init(&out, sizeof text);
    log_format(line, &out);
    assert_false(buf_overflown(&out));
    assert_true(out.len < sizeof text);
    memcpy(text, out.base, out.len);
    text[out.len] = '\0';
    buf_deinit(&out);
    return text;
}

static const char *formatted_value(struct slice value)
{
    static char expected_head[] = "time=2024-05-01T12:00:00.123Z boot_ms=7 level=warn event=x v=";
    struct log_field field = log_bytes("v", value);
    struct log_line line = {.wall_ms = WALL_MS, .boot_ms = 7, .level = LOG_LEVEL_WARN,
                            .event = "x", .fields = &field, .field_count = 1};
    const char *text = formatted(&line);
    assert_memory_equal(text, expected_head, sizeof expected_head - 1);
    return text + sizeof expected_head - 1;
}

static void test_log__a_line_has_both_clocks_level_event_and_fields(void **state)
{
    (void)state;
    const struct log_field fields[] = {log_u64("peer", 18446744073709551615ull),
                                       log_i64("by", -5), log_text("why", "no bytes")};
    struct log_line line = {.wall_ms = WALL_MS, .boot_ms = 4711, .level = LOG_LEVEL_WARN,
                            .event = "link_down", .fields = fields, .field_count = 3};
    assert_string_equal(formatted(&line),
                        "time=2024-05-01T12:00:00.123Z boot_ms=4711 level=warn event=link_down "
                        "peer=18446744073709551615 by=-5 why=\"no bytes\"\n");
}

static void test_log__values_are_bare_only_where_nothing_can_be_misread(void **state)
{
    (void)state;
    assert_string_equal(formatted_value(slice_text("127.0.0.1:7420")), "127.0.0.1:7420\n");
    assert_string_equal(formatted_value(slice_text("")), "\"\"\n");
    assert_string_equal(formatted_value(slice_text("a b")), "\"a b\"\n");
    assert_string_equal(formatted_value(slice_text("a=b")), "\"a=b\"\n");
    assert_string_equal(formatted_value(slice_text("say \"hi\" \\")),
                        "\"say \\\"hi\\\" \\\\\"\n");
}

static void test_log__no_value_drives_a_terminal_or_makes_a_line(void **state)
{
    (void)state;
    assert_string_equal(formatted_value(slice_text("a\nlevel=error")),
                        "\"a\\x0alevel=error\"\n");
    assert_string_equal(formatted_value(slice_text("\x1b[2J\x7f")), "\"\\x1b[2J\\x7f\"\n");
    assert_string_equal(formatted_value(slice_text("\xc2\x9b" "31m")), "\"\\xc2\\x9b31m\"\n");
    assert_string_equal(formatted_value(slice_from("a\0b", 3)), "\"a\\x00b\"\n");
    for (unsigned byte = 0; byte < 256; byte++) {
        uint8_t value = (uint8_t)byte;
        const char *text = formatted_value(slice_from(&value, 1));
        size_t len = strlen(text);
        assert_int_equal(text[len - 1], '\n');
        for (size_t i = 0; i + 1 < len; i++) {
            assert_true(text[i] >= 0x20 && text[i] < 0x7f);
        }
    }
}

static void test_log__long_values_and_long_lines_are_cut(void **state)
{
    (void)state;
    char value[LOG_VALUE_LEN_MAX + 1];
    memset(value, 'a', sizeof value);
    assert_null(strstr(formatted_value(slice_from(value, LOG_VALUE_LEN_MAX)), "..."));
    const char *text = formatted_value(slice_from(value, LOG_VALUE_LEN_MAX + 1));
    assert_string_equal(text + strlen(text) - 5, "...\"\n");

    memset(value, '\x01', sizeof value);
    struct log_field fields[8];
    for (unsigned i = 0; i < 8; i++) {
        fields[i] = log_bytes("v", slice_from(value, LOG_VALUE_LEN_MAX));
    }
    struct log_line line = {.event = "x", .fields = fields, .field_count = 8};
    text = formatted(&line);
    assert_true(strlen(text) <= LOG_LINE_LEN_MAX);
    assert_string_equal(text + strlen(text) - 6, "\" ...\n");
}

static void test_log__writes_its_level_and_what_is_more_urgent(void **state)
{
    (void)state;
    struct lines lines = {0};
    struct log *log = log_create(
        &(struct log_config){.level = LOG_LEVEL_WARN, .sink = on_line, .ctx = &lines});
    log_event(log, LOG_LEVEL_INFO, "quiet");
    log_event(log, LOG_LEVEL_DEBUG, "quieter");
    assert_int_equal(lines.count, 0);
    log_event(log, LOG_LEVEL_WARN, "loud");
    LOG_EVENT(log, LOG_LEVEL_ERROR, "louder", log_u64("n", 3));
    assert_int_equal(lines.count, 2);
    assert_int_equal(lines.level, LOG_LEVEL_ERROR);
    assert_non_null(strstr(lines.last, " level=error event=louder n=3\n"));
    assert_memory_equal(lines.last, "time=2", 6);
    log_destroy(log);
}

static void test_log__holds_back_a_flood_of_one_event_and_counts_it(void **state)
{
    (void)state;
    struct lines lines = {0};
    struct log *log = log_create(
        &(struct log_config){.level = LOG_LEVEL_INFO, .sink = on_line, .ctx = &lines});
    for (unsigned i = 0; i < LOG_BURST; i++) {
        log_event(log, LOG_LEVEL_WARN, "flood");
    }
    assert_int_equal(lines.count, LOG_BURST);
    for (unsigned i = 0; i < 7; i++) {
        log_event(log, LOG_LEVEL_WARN, "flood");
    }
    assert_int_equal(lines.count, LOG_BURST);
    log_event(log, LOG_LEVEL_WARN, "other");
    assert_int_equal(lines.count, LOG_BURST + 1);
    struct log_stats stats;
    log_stats(log, &stats);
    assert_int_equal(stats.lines, LOG_BURST + 1);
    assert_int_equal(stats.suppressed, 7);
    log_destroy(log);
    assert_int_equal(lines.count, LOG_BURST + 2);
    assert_non_null(strstr(lines.last, "event=flood suppressed=7\n"));
}

/* Runs with stderr replaced by a pipe that nobody reads. */
static void test_log__a_reader_that_does_not_keep_up_costs_lines_not_time(void **state)
{
    (void)state;
    int fds[2];
    int before = dup(STDERR_FILENO);
    assert_int_equal(pipe(fds), 0);
    assert_true(fcntl(fds[1], F_SETPIPE_SZ, 4096) >= 4096);
    assert_int_equal(dup2(fds[1], STDERR_FILENO), STDERR_FILENO);
    struct log *log = log_create(&(struct log_config){.level = LOG_LEVEL_INFO});
    char value[LOG_VALUE_LEN_MAX];
    memset(value, 'a', sizeof value);
    struct log_field field = log_bytes("v", slice_from(value, sizeof value));
    static const char *const events[] = {"a", "b", "c", "d"};
    for (unsigned i = 0; i < 4 * LOG_BURST; i++) {
        log_write(log, LOG_LEVEL_WARN, events[i % 4], &field, 1);
    }
    struct log_stats stats;
    log_stats(log, &stats);
    log_destroy(log);
    assert_int_equal(dup2(before, STDERR_FILENO), STDERR_FILENO);
    (void)close(before);
    (void)close(fds[0]);
    (void)close(fds[1]);
    assert_true(stats.dropped > 0);
    assert_true(stats.dropped < stats.lines);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_log__a_line_has_both_clocks_level_event_and_fields),
        cmocka_unit_test(test_log__values_are_bare_only_where_nothing_can_be_misread),
        cmocka_unit_test(test_log__no_value_drives_a_terminal_or_makes_a_line),
        cmocka_unit_test(test_log__long_values_and_long_lines_are_cut),
        cmocka_unit_test(test_log__writes_its_level_and_what_is_more_urgent),
        cmocka_unit_test(test_log__holds_back_a_flood_of_one_event_and_counts_it),
        cmocka_unit_test(test_log__a_reader_that_does_not_keep_up_costs_lines_not_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
