/* The command line against a node that does what a script says: exit codes (O8), options (I11, T7),
 * printing (I5), JSON. Its program is named by the first argument. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/client/fake_node.h"

#define ARGS_MAX         16u
#define OUTPUT_LEN_MAX   65536u
#define PROGRAM_VARIABLE "TENURE_TEST_PROGRAM"
#define TEXT(literal)                                                                              \
    {                                                                                              \
        .base = (const uint8_t *)(literal), .len = sizeof(literal) - 1                             \
    }

/* Where standard output goes. */
enum sink {
    SINK_FILE,
    SINK_CLOSED,
    SINK_FULL,
    SINK_BROKEN_PIPE,
};

struct ran {
    int code;
    char out[OUTPUT_LEN_MAX];
    char err[OUTPUT_LEN_MAX];
};

struct fixture {
    struct fake_node *node;
    struct ran ran;
};

#define HOLDER                                                                                     \
    {                                                                                              \
        .owner = TEXT("gateway-a"), .state = LEASE_STATE_DEL, .token = 5, .ms_left = 1200          \
    }
#define ANSWER(array)                                                                              \
    {                                                                                              \
        .kind = FAKE_STEP_ANSWER, .reply = {                                                       \
            .position = {.index = 9, .place = 1},                                                  \
            .clock_ms = 1000,                                                                      \
            .outcomes = (array),                                                                   \
            .outcome_count = sizeof(array) / sizeof(array)[0]                                      \
        }                                                                                          \
    }

static int set_up(void **state)
{
    static const struct keyed_outcome granted[] = {
        {.outcome = {.kind = OUTCOME_KIND_GRANTED, .token = 77, .expiry_ms = 31000},
         .position = {.index = 9, .place = 1},
         .clock_ms = 1000}};
    const struct fake_step step = ANSWER(granted);
    struct fixture *fixture = calloc(1, sizeof *fixture);
    CHECK(fixture != NULL);
    fixture->node = fake_node_start(&step, 1);
    CHECK(setenv("TENURE_SOCKET", fake_node_path(fixture->node), 1) == 0);
    *state = fixture;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *fixture = *state;
    fake_node_stop(fixture->node, false);
    (void)unsetenv("TENURE_NAMESPACE");
    (void)unsetenv("TENURE_OWNER");
    free(fixture);
    return 0;
}

/* In the child. */
__attribute__((noreturn)) static void become(const char *const *args, enum sink sink, int out,
                                             int err)
{
    const char *argv[ARGS_MAX + 2] = {getenv(PROGRAM_VARIABLE)};
    for (size_t i = 0; i < ARGS_MAX && args[i] != NULL; i++) {
        argv[i + 1] = args[i];
    }
    int ends[2];
    int sunk = out;
    switch (sink) {
    case SINK_FILE:
        break;
    case SINK_CLOSED:
        sunk = -1;
        break;
    case SINK_FULL:
        sunk = open("/dev/full", O_WRONLY);
        break;
    case SINK_BROKEN_PIPE:
        CHECK(pipe(ends) == 0);
        (void)close(ends[0]);
        sunk = ends[1];
        break;
    }
    CHECK(dup2(err, STDERR_FILENO) >= 0);
    if (sunk >= 0) {
        CHECK(dup2(sunk, STDOUT_FILENO) >= 0);
    } else {
        (void)close(STDOUT_FILENO);
    }
    for (int fd = 3; fd < 64; fd++) {
        (void)close(fd);
    }
    char *copied[ARGS_MAX + 2] = {NULL};
    for (size_t i = 0; argv[i] != NULL; i++) {
        copied[i] = strdup(argv[i]);
    }
    execv(copied[0], copied);
    _exit(127);
}

static void read_back(int fd, char *out)
{
    ssize_t len = pread(fd, out, OUTPUT_LEN_MAX - 1, 0);
    CHECK(len >= 0);
    out[len] = '\0';
    (void)close(fd);
}

/* Runs the program with these arguments (ended by NULL) and waits for it. */
static struct ran *run_into(struct fixture *fixture, enum sink sink, const char *const *args)
{
    char name[2][64] = {"/tmp/tenure-test-out-XXXXXX", "/tmp/tenure-test-err-XXXXXX"};
    int out = mkstemp(name[0]);
    int err = mkstemp(name[1]);
    CHECK(out >= 0 && err >= 0);
    (void)unlink(name[0]);
    (void)unlink(name[1]);
    pid_t child = fork();
    if (child == 0) {
        become(args, sink, out, err);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    (void)fake_node_seen(fixture->node); /* its replies may be changed from here on */
    fixture->ran.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    read_back(out, fixture->ran.out);
    read_back(err, fixture->ran.err);
    return &fixture->ran;
}

#define RUN(fixture, ...) run_into(fixture, SINK_FILE, (const char *const[]){__VA_ARGS__, NULL})

/* --- exit codes */

static void test_cli__each_outcome_has_its_exit_code(void **state)
{
    struct fixture *fixture = *state;
    static const struct {
        enum outcome_kind kind;
        int code;
    } rows[] = {
        {OUTCOME_KIND_GRANTED, 0},   {OUTCOME_KIND_HELD, 1},          {OUTCOME_KIND_TEARDOWN, 1},
        {OUTCOME_KIND_GRACE, 1},     {OUTCOME_KIND_RENEWED, 0},       {OUTCOME_KIND_LAPSED, 1},
        {OUTCOME_KIND_LOST, 1},      {OUTCOME_KIND_REESTABLISHED, 0}, {OUTCOME_KIND_RELEASED, 0},
        {OUTCOME_KIND_NOT_OWNER, 1}, {OUTCOME_KIND_STALE, 1},         {OUTCOME_KIND_MISMATCH, 1},
        {OUTCOME_KIND_UNKNOWN, 4},   {OUTCOME_KIND_UNAVAILABLE, 3},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct keyed_outcome outcome[] = {{.outcome = {.kind = rows[i].kind}, .clock_ms = 1000}};
        const struct fake_step step = ANSWER(outcome);
        fake_node_script(fixture->node, &step, 1);
        struct ran *ran = RUN(fixture, "claim", "k");
        assert_int_equal(ran->code, rows[i].code);
        assert_non_null(strstr(ran->out, outcome_kind_name(rows[i].kind)));
    }
}

static void test_cli__each_error_has_its_exit_code(void **state)
{
    struct fixture *fixture = *state;
    static const int codes[] = {
        [API_ERROR_INVALID] = 2, [API_ERROR_UNAVAILABLE] = 3,  [API_ERROR_UNKNOWN] = 4,
        [API_ERROR_DENIED] = 6,  [API_ERROR_INCOMPATIBLE] = 7, [API_ERROR_INTERNAL] = 8};
    for (int i = STATUS_OK + 1; i < STATUS_COUNT; i++) {
        enum status status = (enum status)i;
        const struct fake_step step = {.kind = FAKE_STEP_ANSWER, .reply = {.status = status}};
        fake_node_script(fixture->node, &step, 1);
        struct ran *ran = RUN(fixture, "take", "k", "--deadline", "30ms", "--json");
        enum api_error error = status_api_error(status);
        assert_int_equal(ran->code, codes[error]);
        assert_non_null(strstr(ran->err, api_error_name(error)));
        json_t *object = json_loads(ran->out, 0, NULL);
        const char *code =
            json_string_value(json_object_get(json_object_get(object, "error"), "code"));
        assert_string_equal(code, api_error_name(error));
        json_decref(object);
    }
}

static void test_cli__of_several_keys_the_worst_decides(void **state)
{
    struct fixture *fixture = *state;
    static const struct {
        enum outcome_kind kinds[3];
        int code;
    } rows[] = {
        {{OUTCOME_KIND_RENEWED, OUTCOME_KIND_RENEWED, OUTCOME_KIND_RENEWED}, 0},
        {{OUTCOME_KIND_RENEWED, OUTCOME_KIND_LOST, OUTCOME_KIND_RENEWED}, 1},
        {{OUTCOME_KIND_UNAVAILABLE, OUTCOME_KIND_LOST, OUTCOME_KIND_RENEWED}, 3},
        {{OUTCOME_KIND_LOST, OUTCOME_KIND_UNKNOWN, OUTCOME_KIND_UNAVAILABLE}, 4},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct keyed_outcome outcomes[3] = {0};
        for (size_t j = 0; j < 3; j++) {
            outcomes[j].outcome.kind = rows[i].kinds[j];
        }
        const struct fake_step step = ANSWER(outcomes);
        fake_node_script(fixture->node, &step, 1);
        assert_int_equal(RUN(fixture, "renew", "a", "b", "c")->code, rows[i].code);
    }
}

/* O8: what cannot be told has not succeeded. */
static void test_cli__an_output_that_takes_nothing_is_an_error(void **state)
{
    struct fixture *fixture = *state;
    static const enum sink sinks[] = {SINK_FULL, SINK_BROKEN_PIPE, SINK_CLOSED};
    static const char *const words[] = {"take", "status", "count", "list", "metrics"};
    for (size_t i = 0; i < sizeof sinks / sizeof sinks[0]; i++) {
        struct ran *ran = run_into(fixture, sinks[i], (const char *const[]){"take", "k", NULL});
        assert_int_equal(ran->code, 8);
        assert_non_null(strstr(ran->err, "standard output"));
    }
    assert_int_equal(fake_node_seen(fixture->node).requests, 2); /* a closed one ends it before */
    const struct fake_step step = {.kind = FAKE_STEP_ANSWER, .reply = {.count = 3}};
    fake_node_script(fixture->node, &step, 1);
    for (size_t i = 1; i < sizeof words / sizeof words[0]; i++) {
        const char *const args[] = {words[i], "--json", NULL};
        assert_int_equal(run_into(fixture, SINK_FULL, args)->code, 8);
    }
    assert_int_equal(run_into(fixture, SINK_FULL, (const char *const[]){"--help", NULL})->code, 8);
}

static void test_cli__no_node_is_unavailable(void **state)
{
    struct fixture *fixture = *state;
    struct ran *ran = RUN(fixture, "take", "k", "--socket", "/nowhere", "--deadline", "50ms");
    assert_int_equal(ran->code, 3);
    assert_string_equal(ran->out, "");
    assert_string_equal(ran->err, "tenure: UNAVAILABLE: not connected: /nowhere\n");
}

/* --- options */

static void test_cli__usage_is_refused_before_anything_is_asked(void **state)
{
    struct fixture *fixture = *state;
    static const char *const rows[][6] = {
        {"take"},
        {"frobnicate"},
        {"cluster"},
        {"cluster", "frobnicate"},
        {"take", "k", "--frobnicate"},
        {"take", "k", "--destroy"}, /* not an option of take */
        {"take", "k", "--ttl"},
        {"take", "k", "--ttl", "5"},
        {"take", "k", "--ttl", "5 sec"},
        {"take", "k", "--ttl", "5M"},
        {"take", "k", "--ttl", "5h"},
        {"take", "k", "--ttl", "0.5s"},
        {"take", "k", "--ttl", "-5s"},
        {"take", "k", "--ttl", "+5s"},
        {"take", "k", "--ttl", " 5s"},
        {"take", "k", "--ttl", ""},
        {"take", "k", "--ttl", "inf"},
        {"take", "k", "--ttl", "nan"},
        {"take", "k", "--ttl", "1e300"},
        {"take", "k", "--ttl", "-0.0"},
        {"take", "k", "--ttl", "true"},
        {"take", "k", "--ttl", "9223372036854775808s"},
        {"take", "k", "--ttl", "18446744073709551616ms"},
        {"take", "k", "--deadline", "0ms"},
        {"take", "k", "--deadline", "9ms"},
        {"take", "k", "--deadline", "61s"},
        {"release", "k", "--if-token", "0x5"},
        {"release", "k", "--if-token", "18446744073709551616"},
        {"release", "k", "--if-token", "1", "--if-token=2"},
        {"claim", "k", "--grace", "5s"}, /* without --adopt */
        {"claim", "k", "--destroy=yes"},
        {"list", "--limit", "0"},
        {"list", "--state", "any"},
        {"list", "k"},
        {"status", "--voter"},
        {"cluster", "init", "--voters", "2"},
        {"cluster", "transfer", "5"},
        {"cluster", "dev"},
        {"cluster", "dev", "0"},
        {"cluster", "dev", "16"},
        {"cluster", "dev", "three"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct ran *ran = run_into(fixture, SINK_FILE, rows[i]);
        assert_int_equal(ran->code, 2);
        assert_string_equal(ran->out, "");
        assert_memory_equal(ran->err, "tenure: ", 8);
    }
    assert_int_equal(fake_node_seen(fixture->node).connections, 0);
}

/* T7: field, value and rule in one line. */
static void test_cli__a_bad_number_is_told_in_one_line(void **state)
{
    struct fixture *fixture = *state;
    struct ran *ran = RUN(fixture, "take", "k", "--ttl", "1e300");
    assert_string_equal(ran->err, "tenure: --ttl must be a duration such as 500ms, 30s or 5m, in "
                                  "10ms..1440m, got: 1e300\n");
    ran = RUN(fixture, "take", "k", "--ttl", "\x1b[2J");
    assert_null(strchr(ran->err, '\x1b'));
    /* what the node has escaped is not escaped once more */
    const struct fake_step step = {
        .kind = FAKE_STEP_ANSWER,
        .reply = {.status = STATUS_INVALID,
                  .violation = {.field = "key", .value = "a\\x01", .rule = RULE_KEY}}};
    fake_node_script(fixture->node, &step, 1);
    ran = RUN(fixture, "take", "a\x01");
    assert_string_equal(ran->err, "tenure: INVALID: key " RULE_KEY ", got: a\\x01\n");
}

static void test_cli__options_reach_the_node(void **state)
{
    struct fixture *fixture = *state;
    assert_int_equal(RUN(fixture, "claim", "--ttl", "500ms", "--destroy", "--adopt", "--grace=2m",
                         "--owner", "gateway-b", "--", "-k-")
                         ->code,
                     0);
    struct fake_seen seen = fake_node_seen(fixture->node);
    assert_int_equal(seen.method, PROTO_METHOD_CLAIM);
    assert_int_equal(seen.op.ttl_ms, 500);
    assert_true(seen.op.destroy && seen.op.adopt);
    assert_int_equal(seen.op.grace_ms, 120000);
    assert_string_equal(seen.owner, "gateway-b");
    assert_string_equal(seen.key, "-k-");
    assert_int_equal(RUN(fixture, "take", "k", "--ttl", "3s")->code, 0);
    assert_int_equal(fake_node_seen(fixture->node).op.ttl_ms, 3000);
    assert_int_equal(RUN(fixture, "take", "k")->code, 0);
    assert_int_equal(fake_node_seen(fixture->node).op.ttl_ms, 30000);
    /* the TTL, but at most the retention */
    assert_int_equal(RUN(fixture, "claim", "k", "--adopt", "--ttl", "7s")->code, 0);
    assert_int_equal(fake_node_seen(fixture->node).op.grace_ms, 7000);
    assert_int_equal(RUN(fixture, "claim", "k", "--adopt", "--ttl", "60m")->code, 0);
    assert_int_equal(fake_node_seen(fixture->node).op.grace_ms, 600000);
    /* a TTL that only the node can judge is not judged here (T5) */
    assert_int_equal(RUN(fixture, "take", "k", "--ttl", "9ms")->code, 0);
    assert_int_equal(fake_node_seen(fixture->node).op.ttl_ms, 9);
}

static void test_cli__the_environment_stands_in_for_options(void **state)
{
    struct fixture *fixture = *state;
    assert_int_equal(setenv("TENURE_OWNER", "from-environment", 1), 0);
    assert_int_equal(RUN(fixture, "take", "k")->code, 0);
    assert_string_equal(fake_node_seen(fixture->node).owner, "from-environment");
    assert_int_equal(RUN(fixture, "take", "k", "--owner", "from-option")->code, 0);
    assert_string_equal(fake_node_seen(fixture->node).owner, "from-option");
    const struct fake_step step = {.kind = FAKE_STEP_ANSWER, .reply = {.count = 3}};
    fake_node_script(fixture->node, &step, 1);
    assert_int_equal(RUN(fixture, "count")->code, 0); /* everybody's */
    assert_string_equal(fake_node_seen(fixture->node).owner, "");
    assert_string_equal(fixture->ran.out, "3\n");
}

static void test_cli__each_call_makes_its_own_owner(void **state)
{
    struct fixture *fixture = *state;
    char owners[2][256];
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(RUN(fixture, "take", "k")->code, 0);
        (void)snprintf(owners[i], sizeof owners[i], "%s", fake_node_seen(fixture->node).owner);
        assert_non_null(strchr(owners[i], ':'));
        assert_true(strlen(owners[i]) > 37);
        assert_non_null(strstr(fixture->ran.out, owners[i]));
    }
    assert_string_not_equal(owners[0], owners[1]);
}

/* --- output */

static void test_cli__a_refusal_names_the_holder(void **state)
{
    struct fixture *fixture = *state;
    struct keyed_outcome outcome[] = {{.outcome = {.kind = OUTCOME_KIND_LOST, .holder = HOLDER},
                                       .position = {.index = 9, .place = 1},
                                       .clock_ms = 1000}};
    const struct fake_step step = ANSWER(outcome);
    fake_node_script(fixture->node, &step, 1);
    struct ran *ran = RUN(fixture, "renew", "sbx-1", "--owner", "gateway-a");
    assert_int_equal(ran->code, 1);
    /* D5: the holder is the caller itself, in state del */
    assert_string_equal(ran->out, "sbx-1 LOST holder=gateway-a state=del holder_token=5 "
                                  "holder_ms_left=1200\n");
    ran = RUN(fixture, "renew", "sbx-1", "--owner", "gateway-a", "--json");
    json_t *object = json_loads(ran->out, 0, NULL);
    json_t *only = json_array_get(json_object_get(object, "outcomes"), 0);
    json_t *holder = json_object_get(only, "holder");
    assert_string_equal(json_string_value(json_object_get(only, "key")), "sbx-1");
    assert_string_equal(json_string_value(json_object_get(only, "outcome")), "LOST");
    assert_string_equal(json_string_value(json_object_get(holder, "owner")), "gateway-a");
    assert_string_equal(json_string_value(json_object_get(holder, "state")), "del");
    assert_int_equal(json_integer_value(json_object_get(holder, "token")), 5);
    assert_int_equal(json_integer_value(json_object_get(holder, "ms_left")), 1200);
    assert_int_equal(json_integer_value(json_object_get(only, "index")), 9);
    json_decref(object);
}

/* I5 */
static void test_cli__no_key_can_drive_a_terminal(void **state)
{
    struct fixture *fixture = *state;
    static const struct {
        struct slice key;
        const char *printed;
    } rows[] = {
        {TEXT("plain key"), "plain key"},
        {TEXT("\x1b[2J\x07"), "\\x1b[2J\\x07"},
        {TEXT("a\nb\tc\r\x7f"), "a\\x0ab\\x09c\\x0d\\x7f"},
        {TEXT("a\\x41"), "a\\\\x41"},
        {TEXT("\xc2\x85"), "\\u{0085}"},
        {TEXT("\xe2\x80\xae"
              "abc\xe2\x80\xac"),
         "\\u{202e}abc\\u{202c}"},
        {TEXT("\xe2\x81\xa6\xe2\x81\xa9\xe2\x80\x8e\xe2\x80\x8f"),
         "\\u{2066}\\u{2069}\\u{200e}\\u{200f}"},
        {TEXT("\xed\xa0\x80"), "\\xed\\xa0\\x80"}, /* a surrogate */
        {TEXT("\xc0\xaf"), "\\xc0\\xaf"},          /* an overlong slash */
        {TEXT("\xff"
              "a\xe2\x82"),
         "\\xffa\\xe2\\x82"},
        {TEXT("\xef\xbb\xbf"
              "bom"),
         "\\u{feff}bom"},
        {TEXT("../x"), "../x"},
        {TEXT("own:x"), "own:x"},
        {TEXT("e\xcc\x81"), "e\xcc\x81"}, /* not normalised */
        {TEXT("\xf0\x9f\x98\x80"), "\xf0\x9f\x98\x80"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct lease_view lease = {.ns = TEXT("default"),
                                   .key = rows[i].key,
                                   .owner = rows[i].key,
                                   .state = LEASE_STATE_OWN,
                                   .ttl_ms = 1000,
                                   .expiry_ms = 500,
                                   .token = 3,
                                   .meta = rows[i].key};
        const struct fake_step step = {.kind = FAKE_STEP_ANSWER,
                                       .reply = {.leases = &lease, .lease_count = 1}};
        fake_node_script(fixture->node, &step, 1);
        char expected[512];
        (void)snprintf(expected, sizeof expected,
                       "%s own token=3 ms_left=500 ttl_ms=1000 owner=%s meta=%s\n", rows[i].printed,
                       rows[i].printed, rows[i].printed);
        assert_int_equal(RUN(fixture, "list")->code, 0);
        assert_string_equal(fixture->ran.out, expected);
        assert_int_equal(RUN(fixture, "list", "--json")->code, 0);
        for (const char *at = fixture->ran.out; *at != '\0'; at++) {
            assert_true((*at >= 0x20 && *at < 0x7f) || (*at == '\n' && at[1] == '\0'));
        }
        json_t *object = json_loads(fixture->ran.out, 0, NULL);
        assert_non_null(object);
        json_decref(object);
    }
}

static void test_cli__a_list_goes_through_its_pages(void **state)
{
    struct fixture *fixture = *state;
    static const struct lease_view leases[] = {
        {.ns = TEXT("default"), .key = TEXT("a"), .owner = TEXT("o"), .state = LEASE_STATE_OWN},
        {.ns = TEXT("default"), .key = TEXT("b"), .owner = TEXT("o"), .state = LEASE_STATE_DEL}};
    const struct fake_step pages[] = {
        {.kind = FAKE_STEP_ANSWER, .reply = {.leases = &leases[0], .lease_count = 1, .more = true}},
        {.kind = FAKE_STEP_ANSWER, .reply = {.leases = &leases[1], .lease_count = 1}}};
    fake_node_script(fixture->node, pages, 2);
    struct ran *ran = RUN(fixture, "list", "--json");
    json_t *object = json_loads(ran->out, 0, NULL);
    assert_int_equal(json_array_size(json_object_get(object, "leases")), 2);
    assert_true(json_is_false(json_object_get(object, "more")));
    json_decref(object);
    fake_node_script(fixture->node, pages, 2);
    ran = RUN(fixture, "list", "--json", "--limit", "1");
    object = json_loads(ran->out, 0, NULL);
    assert_int_equal(json_array_size(json_object_get(object, "leases")), 1);
    assert_true(json_is_true(json_object_get(object, "more")));
    json_decref(object);
    const struct fake_step empty = {.kind = FAKE_STEP_ANSWER};
    fake_node_script(fixture->node, &empty, 1);
    ran = RUN(fixture, "list", "--json");
    object = json_loads(ran->out, 0, NULL);
    assert_int_equal(json_array_size(json_object_get(object, "leases")), 0);
    json_decref(object);
}

static void test_cli__nobody_is_null(void **state)
{
    struct fixture *fixture = *state;
    static const struct lease_view nobody = {.ns = {0}};
    const struct fake_step step = {.kind = FAKE_STEP_ANSWER,
                                   .reply = {.leases = &nobody, .lease_count = 1}};
    fake_node_script(fixture->node, &step, 1);
    assert_int_equal(RUN(fixture, "owner", "k")->code, 0);
    assert_string_equal(fixture->ran.out, "k none\n");
    struct ran *ran = RUN(fixture, "owner", "k", "--json");
    json_t *object = json_loads(ran->out, 0, NULL);
    assert_true(json_is_null(json_array_get(json_object_get(object, "leases"), 0)));
    json_decref(object);
}

static void test_cli__ready_is_an_exit_code(void **state)
{
    struct fixture *fixture = *state;
    static const struct {
        bool ready;
        const char *role;
        int ready_code;
        int voter_code;
    } rows[] = {{true, "voter", 0, 0}, {true, "spare", 0, 1}, {false, "voter", 1, 1}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct proto_field fields[] = {
            {.name = TEXT("ready"), .kind = PROTO_VALUE_KIND_BOOL, .number = rows[i].ready ? 1 : 0},
            {.name = TEXT("role"), .kind = PROTO_VALUE_KIND_TEXT, .text = slice_text(rows[i].role)},
            {.name = TEXT("token"), .kind = PROTO_VALUE_KIND_U64, .number = UINT64_MAX},
        };
        const struct fake_step step = {.kind = FAKE_STEP_ANSWER,
                                       .reply = {.fields = fields, .field_count = 3}};
        fake_node_script(fixture->node, &step, 1);
        assert_int_equal(RUN(fixture, "status")->code, 0);
        assert_int_equal(RUN(fixture, "status", "--ready")->code, rows[i].ready_code);
        assert_int_equal(RUN(fixture, "status", "--ready", "--voter")->code, rows[i].voter_code);
        assert_non_null(strstr(fixture->ran.out, rows[i].ready ? "ready: yes\n" : "ready: no\n"));
        struct ran *ran = RUN(fixture, "status", "--json");
        json_t *object = json_loads(ran->out, 0, NULL);
        assert_int_equal(json_is_true(json_object_get(object, "ready")), rows[i].ready);
        /* beyond what JSON's readers can hold */
        assert_string_equal(json_string_value(json_object_get(object, "token")),
                            "18446744073709551615");
        json_decref(object);
    }
    const struct fake_step none = {.kind = FAKE_STEP_ANSWER};
    fake_node_script(fixture->node, &none, 1);
    assert_int_equal(RUN(fixture, "status", "--ready")->code, 1); /* not said is not ready */
}

static void test_cli__members_are_rows(void **state)
{
    struct fixture *fixture = *state;
    static const struct proto_field fields[] = {
        {.name = TEXT("id"), .kind = PROTO_VALUE_KIND_TEXT, .text = TEXT("00000000000000aa")},
        {.name = TEXT("lag"), .kind = PROTO_VALUE_KIND_U64, .number = 1234567},
        {.name = TEXT("id"), .kind = PROTO_VALUE_KIND_TEXT, .text = TEXT("00000000000000bb")},
        {.name = TEXT("lag"), .kind = PROTO_VALUE_KIND_U64, .number = 0},
    };
    const struct fake_step step = {.kind = FAKE_STEP_ANSWER,
                                   .reply = {.fields = fields, .field_count = 4, .row_len = 2}};
    fake_node_script(fixture->node, &step, 1);
    assert_int_equal(RUN(fixture, "cluster", "members")->code, 0);
    assert_string_equal(fixture->ran.out, "id                lag\n"
                                          "00000000000000aa  1234567\n"
                                          "00000000000000bb  0\n");
    assert_int_equal(RUN(fixture, "cluster", "members", "--json")->code, 0);
    assert_string_equal(fixture->ran.out,
                        "{\"members\": [{\"id\": \"00000000000000aa\", \"lag\": 1234567}, "
                        "{\"id\": \"00000000000000bb\", \"lag\": 0}]}\n");
}

static void test_cli__whole_sets_are_counted(void **state)
{
    struct fixture *fixture = *state;
    static const struct departure left = {TEXT("gone"), 5, END_REASON_TAKEN};
    const struct fake_step step = {
        .kind = FAKE_STEP_ANSWER,
        .reply = {.count = 7, .set_version = 99, .departures = &left, .departure_count = 1}};
    fake_node_script(fixture->node, &step, 1);
    assert_int_equal(RUN(fixture, "renew-all", "--owner", "o", "--set-version", "98")->code, 0);
    assert_string_equal(fixture->ran.out,
                        "renewed=7 set_version=99\nleft gone token=5 reason=taken\n");
    assert_true(fake_node_seen(fixture->node).op.has_set_version);
    assert_int_equal(RUN(fixture, "release-all", "--owner", "o")->code, 0);
    assert_string_equal(fixture->ran.out, "ended=7\n");
    assert_int_equal(RUN(fixture, "purge", "--namespace", "team-1")->code, 0);
    assert_int_equal(fake_node_seen(fixture->node).method, PROTO_METHOD_PURGE);
}

#define TEST(name) cmocka_unit_test_setup_teardown(test_cli__##name, set_up, tear_down)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        TEST(each_outcome_has_its_exit_code),
        TEST(each_error_has_its_exit_code),
        TEST(of_several_keys_the_worst_decides),
        TEST(an_output_that_takes_nothing_is_an_error),
        TEST(no_node_is_unavailable),
        TEST(usage_is_refused_before_anything_is_asked),
        TEST(a_bad_number_is_told_in_one_line),
        TEST(options_reach_the_node),
        TEST(the_environment_stands_in_for_options),
        TEST(each_call_makes_its_own_owner),
        TEST(a_refusal_names_the_holder),
        TEST(no_key_can_drive_a_terminal),
        TEST(a_list_goes_through_its_pages),
        TEST(nobody_is_null),
        TEST(ready_is_an_exit_code),
        TEST(members_are_rows),
        TEST(whole_sets_are_counted),
    };
    if (argc != 2 || setenv(PROGRAM_VARIABLE, argv[1], 1) != 0) {
        fprintf(stderr, "usage: test_cli PROGRAM\n");
        return 2;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
