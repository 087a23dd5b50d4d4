/* Configuration and command line: every kind of value at both sides of its edges, everything that
 * is refused and the line that says so (T7, I11), and that what is printed can be read again. */
#include "node/config.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "node/options.h"

#define SAMPLE TENURE_SOURCE_DIR "/docs/tenured.conf"

static struct config_error error;

static enum status parse(const char *text, struct config *out_config)
{
    node_config_init(out_config);
    error.text[0] = '\0';
    enum status st = node_config_text(out_config, "t.conf", slice_text(text), &error);
    return st == STATUS_OK ? node_config_validate(out_config, &error) : st;
}

static void accepts(const char *text)
{
    struct config config;
    if (parse(text, &config) != STATUS_OK) {
        fail_msg("refused: %s: %s", text, error.text);
    }
}

/* Refused, with exactly that line. */
static void refuses(const char *text, const char *line)
{
    struct config config;
    if (parse(text, &config) != STATUS_INVALID) {
        fail_msg("accepted: %s", text);
    }
    assert_string_equal(error.text, line);
}

/* Refused, whatever the parser of the file says; the line number is there. */
static void refuses_at(const char *text, const char *where)
{
    struct config config;
    if (parse(text, &config) != STATUS_INVALID) {
        fail_msg("accepted: %s", text);
    }
    if (strncmp(error.text, where, strlen(where)) != 0 || strchr(error.text, '\n') != NULL) {
        fail_msg("%s: says %s", text, error.text);
    }
}

static void test_config__an_empty_file_gives_the_defaults(void **state)
{
    (void)state;
    struct config defaults;
    struct config config;
    node_config_init(&defaults);
    assert_int_equal(parse("", &config), STATUS_OK);
    assert_memory_equal(&config, &defaults, sizeof config);
    assert_int_equal(parse("# nothing\n", &config), STATUS_OK);
    assert_memory_equal(&config, &defaults, sizeof config);
    assert_string_equal(defaults.data, "/var/lib/tenure");
    assert_string_equal(defaults.socket, "/run/tenure/api.sock");
    assert_int_equal(defaults.socket_mode, 0600);
    assert_string_equal(defaults.listen, "127.0.0.1:7420");
    assert_int_equal(defaults.voters, 3);
    assert_int_equal(defaults.tick_ms, 50);
    assert_int_equal(defaults.election_ms, 500);
}

static void test_config__takes_over_every_option(void **state)
{
    (void)state;
    struct config config;
    assert_int_equal(parse("data = \"/d\"; socket = \"/s\"; socket_mode = \"0660\";\n"
                           "socket_group = \"users\"; listen = \"[::1]:1\";\n"
                           "advertise = \"127.0.0.1:2\"; join = (\"127.0.0.1:3\", \"[::1]:4\");\n"
                           "name = \"gw-1\"; voters = 5; insecure_network = true;\n"
                           "log_level = \"debug\"; tick = \"20ms\"; election = \"2s\";\n"
                           "snapshot_entries = 7; snapshot_bytes = \"3KiB\"; reserve = \"2GiB\";\n"
                           "connections_max = 100;\n",
                           &config),
                     STATUS_OK);
    assert_string_equal(config.data, "/d");
    assert_string_equal(config.socket, "/s");
    assert_int_equal(config.socket_mode, 0660);
    assert_string_equal(config.socket_group, "users");
    assert_string_equal(config.listen, "[::1]:1");
    assert_string_equal(config.advertise, "127.0.0.1:2");
    assert_int_equal(config.join_count, 2);
    assert_string_equal(config.join[0], "127.0.0.1:3");
    assert_string_equal(config.join[1], "[::1]:4");
    assert_string_equal(config.name, "gw-1");
    assert_int_equal(config.voters, 5);
    assert_true(config.insecure_network);
    assert_int_equal(config.log_level, 3);
    assert_int_equal(config.tick_ms, 20);
    assert_int_equal(config.election_ms, 2000);
    assert_int_equal(config.snapshot_entries, 7);
    assert_int_equal(config.snapshot_bytes, 3 * 1024);
    assert_int_equal(config.reserve_bytes, 2ull * 1024 * 1024 * 1024);
    assert_int_equal(config.connections_max, 100);
}

#define TICK_RULE "must be a duration like 50ms or 1s in 10ms..1s"
#define COUNT_RULE "must be an integer in 0..16384"

static void test_config__durations_at_both_sides_of_their_edges(void **state)
{
    (void)state;
    accepts("tick = \"10ms\"");
    accepts("tick = \"1s\"; election = \"4s\"");
    refuses("tick = \"9ms\"", "t.conf:1: tick: \"9ms\": " TICK_RULE);
    refuses("tick = \"1001ms\"", "t.conf:1: tick: \"1001ms\": " TICK_RULE);
    refuses("\n\ntick = \"5m\"", "t.conf:3: tick: \"5m\": " TICK_RULE);
    static const char *const wrong[] = {
        "5 sec", "50", "50 ms", "50MS", "50Ms", "50msec", "ms", "", "-50ms", "+50ms", "050ms",
        "0x32ms", "5e1ms", "50.0ms", "50ms ", " 50ms", "1s50ms", "99999999999999999999ms",
        "999999999999999999h", "inf", "nan", "50us",
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        char text[128];
        char line[256];
        (void)snprintf(text, sizeof text, "tick = \"%s\"", wrong[i]);
        (void)snprintf(line, sizeof line, "t.conf:1: tick: \"%s\": %s", wrong[i], TICK_RULE);
        refuses(text, line);
    }
}

static void test_config__t7_absurd_numbers_are_refused_with_field_value_and_range(void **state)
{
    (void)state;
    refuses("tick = 1e300", "t.conf:1: tick: a floating-point number: " TICK_RULE);
    refuses("tick = -0.0", "t.conf:1: tick: a floating-point number: " TICK_RULE);
    refuses("tick = 50", "t.conf:1: tick: 50: " TICK_RULE);
    refuses("tick = true", "t.conf:1: tick: true: " TICK_RULE);
    refuses("tick = \"30\"", "t.conf:1: tick: \"30\": " TICK_RULE);
    refuses("connections_max = 1e300",
            "t.conf:1: connections_max: a floating-point number: " COUNT_RULE);
    refuses("connections_max = 3.0",
            "t.conf:1: connections_max: a floating-point number: " COUNT_RULE);
    refuses("connections_max = \"30\"", "t.conf:1: connections_max: \"30\": " COUNT_RULE);
    refuses("connections_max = true", "t.conf:1: connections_max: true: " COUNT_RULE);
    refuses("connections_max = -1", "t.conf:1: connections_max: -1: " COUNT_RULE);
    refuses("connections_max = 16385", "t.conf:1: connections_max: 16385: " COUNT_RULE);
    refuses("connections_max = 4294967296",
            "t.conf:1: connections_max: 4294967296: " COUNT_RULE);
    refuses("connections_max = 9223372036854775808",
            "t.conf:1: connections_max: 9223372036854775808: " COUNT_RULE);
    refuses("connections_max = 18446744073709551617",
            "t.conf:1: connections_max: 18446744073709551617: " COUNT_RULE);
    refuses("connections_max = 0x100000005",
            "t.conf:1: connections_max: 0x100000005: " COUNT_RULE);
    refuses("connections_max =\n 4294967301", "t.conf:2: connections_max: 4294967301: " COUNT_RULE);
    refuses("unknown = 4294967301", "t.conf:1: a number of more than 9 digits");
    refuses("connections_max = 999999999",
            "t.conf:1: connections_max: 999999999: " COUNT_RULE);
    refuses("connections_max = 999999999999999999",
            "t.conf:1: connections_max: 999999999999999999: " COUNT_RULE);
    refuses_at("connections_max = inf", "t.conf:1: ");
    refuses_at("connections_max = nan", "t.conf:1: ");
    accepts("connections_max = 16384");
    accepts("connections_max = 16384L");
    accepts("connections_max = 0x4000");
    refuses("connections_max = 0x4001", "t.conf:1: connections_max: 16385: " COUNT_RULE);
    refuses("voters = 2", "t.conf:1: voters: 2: must be 1, 3 or 5");
    refuses("voters = 4", "t.conf:1: voters: 4: must be 1, 3 or 5");
    refuses("voters = 0", "t.conf:1: voters: 0: must be 1, 3 or 5");
    refuses("voters = 7", "t.conf:1: voters: 7: must be 1, 3 or 5");
    accepts("voters = 1");
}

static void test_config__sizes_modes_words_names_and_switches(void **state)
{
    (void)state;
    accepts("reserve = \"1MiB\"");
    accepts("reserve = \"1024KiB\"");
    accepts("snapshot_bytes = \"0B\"");
    refuses("reserve = \"1023KiB\"", "t.conf:1: reserve: \"1023KiB\": must be a size like 512KiB, "
                                     "64MiB or 1GiB in 1MiB..16GiB");
    refuses_at("reserve = \"64MB\"", "t.conf:1: reserve: ");
    refuses_at("reserve = \"64\"", "t.conf:1: reserve: ");
    refuses_at("reserve = \"17179869185GiB\"", "t.conf:1: reserve: ");
    accepts("socket_mode = \"777\"");
    accepts("socket_mode = \"0000\"");
    refuses_at("socket_mode = \"0778\"", "t.conf:1: socket_mode: ");
    refuses_at("socket_mode = \"1777\"", "t.conf:1: socket_mode: ");
    refuses_at("socket_mode = \"77\"", "t.conf:1: socket_mode: ");
    refuses_at("socket_mode = \"00600\"", "t.conf:1: socket_mode: ");
    refuses_at("socket_mode = 0600", "t.conf:1: socket_mode: ");
    refuses_at("log_level = \"loud\"", "t.conf:1: log_level: ");
    refuses_at("log_level = 2", "t.conf:1: log_level: ");
    refuses("insecure_network = 1",
            "t.conf:1: insecure_network: 1: must be true or false");
    refuses_at("insecure_network = \"true\"", "t.conf:1: insecure_network: ");
    refuses_at("name = \"a b\"", "t.conf:1: name: ");
    refuses_at("data = \"\"", "t.conf:1: data: ");
}

static void test_config__texts_at_both_sides_of_their_lengths(void **state)
{
    (void)state;
    struct config config;
    char text[1200];
    char path[1100];
    memset(path, 'p', sizeof path);
    (void)snprintf(text, sizeof text, "socket = \"%.107s\"", path);
    assert_int_equal(parse(text, &config), STATUS_OK);
    assert_int_equal(strlen(config.socket), 107);
    (void)snprintf(text, sizeof text, "socket = \"%.108s\"", path);
    refuses_at(text, "t.conf:1: socket: \"pppp");
    (void)snprintf(text, sizeof text, "data = \"%.1023s\"", path);
    accepts(text);
    (void)snprintf(text, sizeof text, "data = \"%.1024s\"", path);
    refuses_at(text, "t.conf:1: data: \"pppp");
    (void)snprintf(text, sizeof text, "name = \"%.64s\"", path);
    accepts(text);
    (void)snprintf(text, sizeof text, "name = \"%.65s\"", path);
    refuses_at(text, "t.conf:1: name: ");
}

static void test_config__join_is_a_text_or_a_list(void **state)
{
    (void)state;
    struct config config;
    assert_int_equal(parse("join = \"127.0.0.1:1,[::1]:2\"", &config), STATUS_OK);
    assert_int_equal(config.join_count, 2);
    assert_string_equal(config.join[1], "[::1]:2");
    assert_int_equal(parse("join = [\"127.0.0.1:1\"]", &config), STATUS_OK);
    assert_int_equal(config.join_count, 1);
    refuses_at("join = \"\"", "t.conf:1: join: ");
    refuses_at("join = []", "t.conf:1: join: ");
    refuses_at("join = \"127.0.0.1:1,\"", "t.conf:1: join: ");
    refuses_at("join = \",127.0.0.1:1\"", "t.conf:1: join: ");
    refuses_at("join = \"example.org:1\"", "t.conf:1: join: ");
    refuses_at("join = [1]", "t.conf:1: join: ");
    refuses_at("join = (\"\")", "t.conf:1: join: ");
    refuses_at("join = [\"127.0.0.1:1,127.0.0.1:2\"]", "t.conf:1: join: ");

    char text[512] = "join = \"";
    for (unsigned i = 1; i <= 17; i++) {
        size_t len = strlen(text);
        (void)snprintf(text + len, sizeof text - len, "%s127.0.0.1:%u", i > 1 ? "," : "", i);
        if (i == 16) {
            char whole[600];
            (void)snprintf(whole, sizeof whole, "%s\"", text);
            accepts(whole);
        }
    }
    (void)snprintf(text + strlen(text), sizeof text - strlen(text), "\"");
    refuses_at(text, "t.conf:1: join: ");
}

static void test_config__i11_what_is_no_option_is_refused_with_its_line(void **state)
{
    (void)state;
    refuses("\nsockett = \"/s\"", "t.conf:2: sockett: unknown option");
    refuses("socket-mode = \"0600\"", "t.conf:1: socket-mode: unknown option");
    refuses("Socket = \"/s\"", "t.conf:1: Socket: unknown option");
    refuses("node = { data = \"/d\" }", "t.conf:1: node: unknown option");
    refuses_at("data = { a = 1 }", "t.conf:1: data: a group: ");
    refuses("tick = \"20ms\"\n\ntick = \"30ms\"", "t.conf:3: duplicate setting name");
    refuses_at("tick = ", "t.conf:1: ");
    refuses_at("tick", "t.conf:1: ");
    refuses_at("= 3", "t.conf:1: ");
    refuses("\"tick\" = 3", "t.conf:1: a text where there may be none");
    refuses("tick \"50ms\"", "t.conf:1: a text where there may be none");
    refuses("tick = 3 \"50ms\"", "t.conf:1: a text where there may be none");
    accepts("tick = # a\n \"50\" /* b */ \"ms\"");
    accepts("tick : \"50ms\"");
    refuses("tick = \"50ms", "t.conf:1: a text or a comment without an end");
    refuses("tick = \"50ms\\\"", "t.conf:1: a text or a comment without an end");
    refuses("\n/* tick = \"50ms\"", "t.conf:2: a text or a comment without an end");
    refuses("@include \"/etc/passwd\"", "t.conf:1: @include is not supported");
    refuses("# a\n@include \"x\"", "t.conf:2: @include is not supported");
    accepts("# @include \"x\"\n/* @include */ // @\n");
    refuses("join = ((( \"a\" )))", "t.conf:1: brackets inside brackets");
    refuses("data = \"/d\\x00e\"",
            "t.conf:1: \\x in a text: it could hide a byte that ends the text");
    accepts("data = \"/d\\\\x00e\"");
}

static void test_config__i11_odd_texts(void **state)
{
    (void)state;
    struct config config;
    assert_int_equal(parse("tick = \"20ms\"\r\nelection = \"900ms\"\r\n", &config), STATUS_OK);
    assert_int_equal(config.election_ms, 900);
    refuses("\xef\xbb\xbftick = \"20ms\"",
            "t.conf:1: starts with a byte order mark; save it as UTF-8 without one");
    refuses("tick = \"20ms\"\n\x1b[2J", "t.conf:2: a control character");
    refuses("# \x07", "t.conf:1: a control character");
    node_config_init(&config);
    assert_int_equal(node_config_text(&config, "t.conf", slice_from("tick\0", 5), &error),
                     STATUS_INVALID);
    assert_string_equal(error.text, "t.conf:1: a control character");

    char *large = calloc(1, CONFIG_TEXT_LEN_MAX + 1);
    assert_non_null(large);
    memset(large, ' ', CONFIG_TEXT_LEN_MAX + 1);
    assert_int_equal(node_config_text(&config, "t.conf",
                                      slice_from(large, CONFIG_TEXT_LEN_MAX), &error),
                     STATUS_OK);
    assert_int_equal(node_config_text(&config, "t.conf",
                                      slice_from(large, CONFIG_TEXT_LEN_MAX + 1), &error),
                     STATUS_INVALID);
    assert_string_equal(error.text, "t.conf: too long for a configuration file");
    memset(large, '(', CONFIG_TEXT_LEN_MAX);
    assert_int_equal(node_config_text(&config, "t.conf",
                                      slice_from(large, CONFIG_TEXT_LEN_MAX), &error),
                     STATUS_INVALID);
    free(large);
}

static void test_config__a_refusal_is_one_printable_line(void **state)
{
    (void)state;
    struct config config;
    node_config_init(&config);
    refuses_at("name = \"\xc2\x9b\"", "t.conf:1: name: \"\\xc2\\x9b\": ");
    assert_int_equal(node_config_option(&config, "name", "\x1b[2J\n", &error), STATUS_INVALID);
    assert_non_null(strstr(error.text, "--name: \\x1b[2J\\x0a: "));
    assert_int_equal(node_config_text(&config, "\x1b]0;x\n", slice_text("a"), &error),
                     STATUS_INVALID);
    for (const char *at = error.text; *at != '\0'; at++) {
        assert_true(*at >= 0x20 && *at < 0x7f);
    }
}

static void test_config__the_whole_must_fit_together(void **state)
{
    (void)state;
    accepts("tick = \"100ms\"; election = \"400ms\"");
    refuses("tick = \"100ms\"; election = \"399ms\"",
            "election: 399ms: must be at least four ticks (4 x 100ms)");
    refuses_at("listen = \"0.0.0.0:7420\"", "listen: 0.0.0.0:7420: is not a loopback address");
    refuses_at("listen = \"10.0.0.1:7420\"", "listen: 10.0.0.1:7420: is not a loopback address");
    accepts("listen = \"10.0.0.1:7420\"; insecure_network = true");
    refuses_at("listen = \"0.0.0.0:7420\"; insecure_network = true",
               "listen: 0.0.0.0:7420: needs advertise");
    accepts("listen = \"0.0.0.0:7420\"; insecure_network = true; advertise = \"10.0.0.1:7420\"");
    refuses_at("advertise = \"10.0.0.1:1\"", "advertise: 10.0.0.1:1: is not a loopback address");
    refuses_at("advertise = \"127.0.0.1:0\"", "advertise: 127.0.0.1:0: needs a port");
    refuses_at("advertise = \"0.0.0.0:1\"; insecure_network = true",
               "advertise: 0.0.0.0:1: is no address");
    refuses_at("join = \"10.0.0.1:1\"", "join: 10.0.0.1:1: is not a loopback address");
    accepts("join = \"10.0.0.1:1\"; insecure_network = true");
    refuses_at("join = \"127.0.0.1:0\"", "join: 127.0.0.1:0: needs a port");
    accepts("listen = \"127.0.0.1:0\"");
}

static void test_config__what_is_printed_reads_back_the_same(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "",
        "data = \"/a \\\"b\\\" \\\\\"; join = \"127.0.0.1:1,[::1]:2\"; insecure_network = true;"
        "tick = \"21ms\"; election = \"3s\"; reserve = \"1025KiB\"; snapshot_bytes = \"1B\";"
        "log_level = \"error\"; socket_mode = \"007\"; name = \"n\"",
    };
    for (unsigned i = 0; i < 2; i++) {
        struct config config;
        struct config again;
        struct buf out;
        buf_init(&out, 65536);
        assert_int_equal(parse(texts[i], &config), STATUS_OK);
        node_config_print(&config, &out);
        buf_append_u8(&out, 0);
        assert_int_equal(parse((const char *)out.base, &again), STATUS_OK);
        assert_memory_equal(&again, &config, sizeof config);
        buf_deinit(&out);
    }
}

static void test_config__the_sample_is_taken_and_has_the_defaults(void **state)
{
    (void)state;
    char *argv[] = {"tenured", "--config", SAMPLE, "--check-config", NULL};
    struct config config;
    struct config defaults;
    enum options_mode mode;
    if (options_read(4, argv, &config, &mode, &error) != STATUS_OK) {
        fail_msg("%s", error.text);
    }
    assert_int_equal(mode, OPTIONS_MODE_CHECK);
    node_config_init(&defaults);
    assert_int_equal(config.join_count, 2);
    memcpy(defaults.join, config.join, sizeof defaults.join);
    defaults.join_count = config.join_count;
    memcpy(defaults.name, config.name, sizeof defaults.name);
    assert_memory_equal(&config, &defaults, sizeof config);

    /* Every option is named there: each printed line begins like a line of the sample. */
    struct buf printed;
    struct buf sample;
    buf_init(&printed, 65536);
    buf_init(&sample, 65536);
    node_config_print(&config, &printed);
    FILE *file = fopen(SAMPLE, "re");
    assert_non_null(file);
    uint8_t *room = buf_reserve(&sample, 60000);
    buf_commit(&sample, fread(room, 1, 60000, file));
    buf_append_u8(&sample, 0);
    (void)fclose(file);
    buf_append_u8(&printed, 0);
    char *rest = NULL;
    for (char *line = strtok_r((char *)printed.base, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        char start[80];
        (void)snprintf(start, sizeof start, "\n%.*s= ", (int)strcspn(line, "="), line);
        if (strstr((const char *)sample.base, start) == NULL) {
            fail_msg("not in the sample: %s", line);
        }
    }
    buf_deinit(&printed);
    buf_deinit(&sample);
}

/* --- the command line */

static enum status read_line(struct config *config, const char *const *words)
{
    char *argv[80] = {"tenured"};
    int argc = 1;
    char copies[80][160];
    for (; words[argc - 1] != NULL; argc++) {
        (void)snprintf(copies[argc], sizeof copies[argc], "%s", words[argc - 1]);
        argv[argc] = copies[argc];
    }
    enum options_mode mode;
    error.text[0] = '\0';
    return options_read(argc, argv, config, &mode, &error);
}

#define LINE(config, ...) read_line((config), (const char *const[]){__VA_ARGS__, NULL})

static void test_options__go_over_the_file_wherever_they_stand(void **state)
{
    (void)state;
    char path[] = "/tmp/test_config.XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    static const char text[] = "tick = \"20ms\"\nelection = \"700ms\"\njoin = \"127.0.0.1:9\"\n";
    assert_int_equal(write(fd, text, sizeof text - 1), sizeof text - 1);
    (void)close(fd);
    struct config config;
    assert_int_equal(LINE(&config, "--tick", "30ms", "--config", path, "--join=[::1]:1,[::1]:2",
                          "--insecure-network", "--socket-mode=0666", "--connections-max", "5"),
                     STATUS_OK);
    assert_int_equal(config.tick_ms, 30);
    assert_int_equal(config.election_ms, 700);
    assert_int_equal(config.join_count, 2);
    assert_string_equal(config.join[0], "[::1]:1");
    assert_true(config.insecure_network);
    assert_int_equal(config.socket_mode, 0666);
    assert_int_equal(config.connections_max, 5);

    char expected[128];
    assert_int_equal(truncate(path, 8), 0);
    assert_int_equal(LINE(&config, "--config", path), STATUS_INVALID);
    (void)snprintf(expected, sizeof expected, "%s:1: ", path);
    assert_memory_equal(error.text, expected, strlen(expected));
    (void)unlink(path);
    assert_int_equal(LINE(&config, "--config", path), STATUS_INVALID);
    (void)snprintf(expected, sizeof expected, "%s: No such file or directory", path);
    assert_string_equal(error.text, expected);
}

static void test_options__i11_odd_lines_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *words[5];
        const char *line;
    } rows[] = {
        {{"--tock", "5ms"}, "--tock: unknown option"},
        {{"--tic", "50ms"}, "--tic: unknown option"},
        {{"--socket_mode", "0600"}, "--socket_mode: unknown option"},
        {{"tick"}, "tick: is no option; options begin with two hyphens"},
        {{"-h"}, "-h: is no option; options begin with two hyphens"},
        {{"--"}, "--: is no option; options begin with two hyphens"},
        {{"--tick", "5 sec"}, "--tick: 5 sec: " TICK_RULE},
        {{"--tick", "5m"}, "--tick: 5m: " TICK_RULE},
        {{"--tick", ""}, "--tick: : " TICK_RULE},
        {{"--tick"}, "--tick: needs a value"},
        {{"--tick", "--election", "1s"}, "--tick: needs a value"},
        {{"--connections-max", "9223372036854775808"},
         "--connections-max: 9223372036854775808: " COUNT_RULE},
        {{"--connections-max", "1e3"}, "--connections-max: 1e3: " COUNT_RULE},
        {{"--connections-max", "0x10"}, "--connections-max: 0x10: " COUNT_RULE},
        {{"--connections-max", "inf"}, "--connections-max: inf: " COUNT_RULE},
        {{"--connections-max", "-0.0"}, "--connections-max: -0.0: " COUNT_RULE},
        {{"--insecure-network=false"}, "--insecure-network=false: takes no value"},
        {{"--check-config=1"}, "--check-config=1: takes no value"},
        {{"--config"}, "--config: needs a value"},
        {{"--config", "/"}, "/: is a directory"},
        {{"--config", "/dev/zero"}, "/dev/zero: is no regular file"},
        {{"--tick=50ms", "--tick=50ms"}, "--tick=50ms: given twice"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct config config;
        assert_int_equal(read_line(&config, rows[i].words), STATUS_INVALID);
        assert_string_equal(error.text, rows[i].line);
    }
}

/* A sparse file: it costs no room, and may cost no time either. */
static void test_options__i11_a_huge_file_is_not_read(void **state)
{
    (void)state;
    char path[] = "/tmp/test_config.XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, 1 << 30), 0);
    (void)close(fd);
    struct config config;
    assert_int_equal(LINE(&config, "--config", path), STATUS_INVALID);
    assert_non_null(strstr(error.text, ": too long for a configuration file"));
    (void)unlink(path);
}

static void test_options__a_pipe_does_not_hang(void **state)
{
    (void)state;
    char path[64];
    (void)snprintf(path, sizeof path, "/tmp/test_config.fifo.%d", (int)getpid());
    assert_int_equal(mkfifo(path, 0600), 0);
    struct config config;
    assert_int_equal(LINE(&config, "--config", path), STATUS_INVALID);
    (void)unlink(path);
    assert_non_null(strstr(error.text, ": is no regular file"));
}

static void test_options__help_and_version_need_nothing_else(void **state)
{
    (void)state;
    struct config config;
    enum options_mode mode;
    char *help[] = {"tenured", "--help", NULL};
    char *version[] = {"tenured", "--version", NULL};
    assert_int_equal(options_read(2, help, &config, &mode, &error), STATUS_OK);
    assert_int_equal(mode, OPTIONS_MODE_HELP);
    assert_int_equal(options_read(2, version, &config, &mode, &error), STATUS_OK);
    assert_int_equal(mode, OPTIONS_MODE_VERSION);
    assert_int_equal(options_read(1, help, &config, &mode, &error), STATUS_OK);
    assert_int_equal(mode, OPTIONS_MODE_RUN);

    struct buf out;
    buf_init(&out, 65536);
    options_help(&out);
    buf_append_u8(&out, 0);
    assert_non_null(strstr((const char *)out.base, "--snapshot-entries VALUE"));
    assert_non_null(strstr((const char *)out.base, "default \"/run/tenure/api.sock\""));
    buf_deinit(&out);
}

static void test_options__a_group_is_a_name_or_a_number(void **state)
{
    (void)state;
    struct config config;
    int64_t gid = 0;
    node_config_init(&config);
    assert_int_equal(options_group(&config, &gid, &error), STATUS_OK);
    assert_int_equal(gid, -1);
    assert_int_equal(node_config_option(&config, "socket-group", "1234", &error), STATUS_OK);
    assert_int_equal(options_group(&config, &gid, &error), STATUS_OK);
    assert_int_equal(gid, 1234);
    assert_int_equal(node_config_option(&config, "socket-group", "root", &error), STATUS_OK);
    assert_int_equal(options_group(&config, &gid, &error), STATUS_OK);
    assert_int_equal(gid, 0);
    assert_int_equal(node_config_option(&config, "socket-group", "no-such-group", &error),
                     STATUS_OK);
    assert_int_equal(options_group(&config, &gid, &error), STATUS_INVALID);
    assert_string_equal(error.text, "socket_group: no-such-group: there is no such group");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_config__an_empty_file_gives_the_defaults),
        cmocka_unit_test(test_config__takes_over_every_option),
        cmocka_unit_test(test_config__durations_at_both_sides_of_their_edges),
        cmocka_unit_test(test_config__t7_absurd_numbers_are_refused_with_field_value_and_range),
        cmocka_unit_test(test_config__sizes_modes_words_names_and_switches),
        cmocka_unit_test(test_config__texts_at_both_sides_of_their_lengths),
        cmocka_unit_test(test_config__join_is_a_text_or_a_list),
        cmocka_unit_test(test_config__i11_what_is_no_option_is_refused_with_its_line),
        cmocka_unit_test(test_config__i11_odd_texts),
        cmocka_unit_test(test_config__a_refusal_is_one_printable_line),
        cmocka_unit_test(test_config__the_whole_must_fit_together),
        cmocka_unit_test(test_config__what_is_printed_reads_back_the_same),
        cmocka_unit_test(test_config__the_sample_is_taken_and_has_the_defaults),
        cmocka_unit_test(test_options__go_over_the_file_wherever_they_stand),
        cmocka_unit_test(test_options__i11_odd_lines_are_refused),
        cmocka_unit_test(test_options__i11_a_huge_file_is_not_read),
        cmocka_unit_test(test_options__a_pipe_does_not_hang),
        cmocka_unit_test(test_options__help_and_version_need_nothing_else),
        cmocka_unit_test(test_options__a_group_is_a_name_or_a_number),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
