/* The library against a node that does what a script says: retries, lost and late replies,
 * deadlines, forks (hazards C6, C7, C9, C10, C12). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/client.h"
#include "client/tenure_admin.h"
#include "tests/client/fake_node.h"

#define SLACK_NS (100 * NS_PER_MS) /* that a call may outlive its deadline */
#define TEXT(literal)                                                                              \
    {                                                                                              \
        .base = (const uint8_t *)(literal), .len = sizeof(literal) - 1                             \
    }

static const struct keyed_outcome granted[] = {
    {.outcome = {.kind = OUTCOME_KIND_GRANTED, .token = 77, .expiry_ms = 31000},
     .position = {.index = 9, .place = 1},
     .clock_ms = 1000}};
static const struct keyed_outcome held[] = {{.outcome = {.kind = OUTCOME_KIND_HELD,
                                                         .holder = {.owner = TEXT("gateway-a"),
                                                                    .state = LEASE_STATE_OWN,
                                                                    .token = 5,
                                                                    .ms_left = 1200}},
                                             .position = {.index = 9, .place = 1},
                                             .clock_ms = 1000}};

#define REPLY_WITH(array)                                                                          \
    {                                                                                              \
        .position = {.index = 9, .place = 1}, .clock_ms = 1000, .outcomes = (array),               \
        .outcome_count = sizeof(array) / sizeof(array)[0]                                          \
    }
#define STEP(what)                                                                                 \
    {                                                                                              \
        .kind = FAKE_STEP_##what, .reply = REPLY_WITH(granted)                                     \
    }
#define STEP_ERROR(name)                                                                           \
    {                                                                                              \
        .kind = FAKE_STEP_ANSWER, .reply = {.status = STATUS_##name }                              \
    }

static const struct tenure_item item = {.key = "sbx-1"};
static const struct tenure_call call = {.ttl_ms = 30000, .items = &item, .item_count = 1};

/* A client at the node, with this deadline. */
static struct tenure_client *client_of(const char *path, uint64_t deadline_ms)
{
    struct tenure_options options = {.socket = path, .owner = "me", .deadline_ms = deadline_ms};
    struct tenure_client *client = NULL;
    assert_int_equal(tenure_client_create(&options, &client, NULL), TENURE_ERROR_NONE);
    return client;
}

/* The take of a client that is expected to end so; returns how long it took. */
static uint64_t take_expecting(struct tenure_client *client, enum tenure_error expected)
{
    struct tenure_reply *reply = NULL;
    struct tenure_failure failure;
    uint64_t began_ns = tenure_now_ns();
    enum tenure_error error = tenure_take(client, &call, &reply, &failure);
    uint64_t took_ns = tenure_now_ns() - began_ns;
    assert_int_equal(error, expected);
    assert_int_equal(failure.error, expected);
    assert_int_equal(reply != NULL, expected == TENURE_ERROR_NONE);
    tenure_reply_free(reply);
    return took_ns;
}

static void test_client__a_grant_arrives_with_everything(void **state)
{
    (void)state;
    const struct fake_step steps[] = {STEP(ANSWER)};
    struct fake_node *node = fake_node_start(steps, 1);
    struct tenure_client *client = client_of(fake_node_path(node), 0);
    struct tenure_reply *reply = NULL;
    uint64_t before_ns = tenure_now_ns();
    assert_int_equal(tenure_claim(client, &call, &reply, NULL), TENURE_ERROR_NONE);
    uint64_t after_ns = tenure_now_ns();
    assert_int_equal(reply->outcome_count, 1);
    const struct tenure_outcome *outcome = &reply->outcomes[0];
    assert_int_equal(outcome->kind, TENURE_OUTCOME_GRANTED);
    assert_string_equal(outcome->key, "sbx-1");
    assert_int_equal(outcome->token, 77);
    assert_int_equal(outcome->ms_left, 30000);
    assert_int_equal(outcome->index, 9);
    assert_int_equal(outcome->place, 1);
    assert_int_equal(outcome->clock_ms, 1000);
    assert_null(outcome->holder.owner);
    /* t_sent + TTL - 1 % */
    assert_true(outcome->deadline_ns >= before_ns + 29700 * NS_PER_MS);
    assert_true(outcome->deadline_ns <= after_ns + 29700 * NS_PER_MS);
    struct fake_seen seen = fake_node_seen(node);
    assert_string_equal(seen.owner, "me");
    assert_string_equal(seen.key, "sbx-1");
    assert_int_equal(seen.op.ttl_ms, 30000);
    assert_true(seen.deadline_ns >= before_ns + 5000 * NS_PER_MS);
    assert_true(seen.deadline_ns <= after_ns + 5000 * NS_PER_MS);
    tenure_reply_free(reply);
    tenure_client_destroy(client);
    fake_node_stop(node, false);
}

static void test_client__a_refusal_names_the_holder(void **state)
{
    (void)state;
    const struct fake_step steps[] = {{.kind = FAKE_STEP_ANSWER, .reply = REPLY_WITH(held)}};
    struct fake_node *node = fake_node_start(steps, 1);
    struct tenure_client *client = client_of(fake_node_path(node), 0);
    struct tenure_reply *reply = NULL;
    assert_int_equal(tenure_claim(client, &call, &reply, NULL), TENURE_ERROR_NONE);
    const struct tenure_outcome *outcome = &reply->outcomes[0];
    assert_int_equal(outcome->kind, TENURE_OUTCOME_HELD);
    assert_string_equal(outcome->holder.owner, "gateway-a");
    assert_int_equal(outcome->holder.state, TENURE_STATE_OWN);
    assert_int_equal(outcome->holder.token, 5);
    assert_int_equal(outcome->holder.ms_left, 1200);
    assert_int_equal(outcome->deadline_ns, 0);
    tenure_reply_free(reply);
    tenure_client_destroy(client);
    fake_node_stop(node, false);
}

static void test_client__construction_never_connects(void **state)
{
    (void)state;
    struct tenure_client *client = client_of("/nowhere/at/all", 0);
    tenure_client_destroy(client);
    const struct fake_step steps[] = {STEP(ANSWER)};
    struct fake_node *node = fake_node_start(steps, 1);
    client = client_of(fake_node_path(node), 0);
    assert_int_equal(fake_node_seen(node).connections, 0);
    tenure_client_destroy(client);
    fake_node_stop(node, false);
}

static void test_client__one_connection_serves_one_call_after_the_other(void **state)
{
    (void)state;
    const struct fake_step steps[] = {STEP(ANSWER)};
    struct fake_node *node = fake_node_start(steps, 1);
    struct tenure_client *client = client_of(fake_node_path(node), 0);
    for (int i = 0; i < 20; i++) {
        (void)take_expecting(client, TENURE_ERROR_NONE);
    }
    assert_int_equal(fake_node_seen(node).connections, 1);
    assert_int_equal(fake_node_seen(node).requests, 20);
    tenure_client_destroy(client);
    fake_node_stop(node, false);
}

/* P8: after the last byte nothing is sent again. */
static void test_client__a_lost_reply_is_unknown_and_not_sent_again(void **state)
{
    (void)state;
    const struct fake_step steps[] = {STEP(HANG_UP), STEP(ANSWER)};
    struct fake_node *node = fake_node_start(steps, 2);
    struct tenure_client *client = client_of(fake_node_path(node), 0);
    (void)take_expecting(client, TENURE_ERROR_UNKNOWN);
    assert_int_equal(fake_node_seen(node).requests, 1);
    (void)take_expecting(client, TENURE_ERROR_NONE);
    tenure_client_destroy(client);
    fake_node_stop(node, false);
}

static void test_client__a_read_is_asked_again(void **state)
{
    (void)state;
    const struct fake_step steps[] = {
        {.kind = FAKE_STEP_HANG_UP},
        {.kind = FAKE_STEP_ANSWER, .reply = {.count = 12, .clock_ms = 5}}};
    struct fake_node *node = fake_node_start(steps, 2);
    struct tenure_client *client = client_of(fake_node_path(node), 0);
    struct tenure_reply *reply = NULL;
    assert_int_equal(tenure_count(client, NULL, &reply, NULL), TENURE_ERROR_NONE);
    assert_int_equal(reply->count, 12);
    assert_int_equal(fake_node_seen(node).requests, 2);
    tenure_reply_free(reply);
    tenure_client_destroy(client);
    fake_node_stop(node, false);
}

static void test_client__what_is_not_done_is_tried_again_inside_the_deadline(void **state)
{
    (void)state;
    const struct fake_step steps[] = {STEP_ERROR(NO_LEADER), STEP(REFUSE_ALL),
                                      STEP_ERROR(OVERLOADED), STEP(ANSWER)};
    struct fake_node *node = fake_node_start(steps, 4);
    struct tenure_client *client = client_of(fake_node_path(node), 0);
    (void)take_expecting(client, TENURE_ERROR_NONE);
    assert_int_equal(fake_node_seen(node).requests, 4);
    assert_int_equal(fake_node_seen(node).connections, 2);
    tenure_client_destroy(client);
    fake_node_stop(node, false);
}

static void test_client__unavailable_to_the_end_is_unavailable(void **state)
{
    (void)state;
    const struct fake_step steps[] = {STEP_ERROR(NO_QUORUM)};
    struct fake_node *node = fake_node_start(steps, 1);
    struct tenure_client *client = client_of(fake_node_path(node), 200);
    struct tenure_failure failure;
    struct tenure_reply *reply = NULL;
    uint64_t began_ns = tenure_now_ns();
    assert_int_equal(tenure_take(client, &call, &reply, &failure), TENURE_ERROR_UNAVAILABLE);
    assert_true(tenure_now_ns() - began_ns <= 200 * NS_PER_MS + SLACK_NS);
    assert_string_equal(failure.status, "NO_QUORUM");
    assert_string_equal(failure.message, "no majority of the voters answers");
    tenure_client_destroy(client);
    fake_node_stop(node, false);
}

/* C6 */
static void test_client__replies_are_matched_by_id(void **state)
{
    (void)state;
    const struct fake_step steps[] = {STEP(STRAY_FIRST)};
    struct fake_node *node = fake_node_start(steps, 1);
    struct tenure_client *client = client_of(fake_node_path(node), 0);
    for (int i = 0; i < 3; i++) {
        struct tenure_reply *reply = NULL;
        assert_int_equal(tenure_take(client, &call, &reply, NULL), TENURE_ERROR_NONE);
        assert_int_equal(reply->clock_ms, 1000);
        tenure_reply_free(reply);
    }
    assert_int_equal(fake_node_seen(node).connections, 1);
    tenure_client_destroy(client);
    fake_node_stop(node, false);
}

/* A late reply never reaches the next call; its node learns that nobody took it and settles. */
static void test_client__a_late_reply_is_dropped(void **state)
{
    (void)state;
    struct fake_step steps[] = {STEP(LATE), STEP(ANSWER)};
    steps[0].delay_ms = 400;
    steps[0].reply.clock_ms = 666;
    struct fake_node *node = fake_node_start(steps, 2);
    struct tenure_client *client = client_of(fake_node_path(node), 100);
    assert_true(take_expecting(client, TENURE_ERROR_UNKNOWN) <= 100 * NS_PER_MS + SLACK_NS);
    struct tenure_call patient = call;
    patient.deadline_ms = 5000;
    struct tenure_reply *reply = NULL;
    assert_int_equal(tenure_take(client, &patient, &reply, NULL), TENURE_ERROR_NONE);
    assert_int_equal(reply->clock_ms, 1000);
    tenure_reply_free(reply);
    assert_int_equal(fake_node_seen(node).write_failures, 1);
    tenure_client_destroy(client);
    fake_node_stop(node, false);
}

static void test_client__half_a_reply_is_no_reply(void **state)
{
    (void)state;
    const struct fake_step steps[] = {STEP(HALF), STEP(GARBAGE), STEP(ANSWER_CLOSE)};
    struct fake_node *node = fake_node_start(steps, 3);
    struct tenure_client *client = client_of(fake_node_path(node), 100);
    assert_true(take_expecting(client, TENURE_ERROR_UNKNOWN) <= 100 * NS_PER_MS + SLACK_NS);
    (void)take_expecting(client, TENURE_ERROR_UNKNOWN); /* garbage */
    (void)take_expecting(client, TENURE_ERROR_NONE);    /* closed after it was wholly there */
    tenure_client_destroy(client);
    fake_node_stop(node, false);
}

/* An idle connection is looked at before it is used. */
static void test_client__a_restarted_node_costs_no_error(void **state)
{
    (void)state;
    const struct fake_step steps[] = {STEP(ANSWER)};
    struct fake_node *node = fake_node_start(steps, 1);
    char path[160];
    (void)snprintf(path, sizeof path, "%s", fake_node_path(node));
    struct tenure_client *client = client_of(path, 0);
    for (int i = 0; i < 5; i++) {
        (void)take_expecting(client, TENURE_ERROR_NONE);
        fake_node_stop(node, true);
        node = fake_node_start_at(path, steps, 1);
    }
    (void)take_expecting(client, TENURE_ERROR_NONE);
    tenure_client_destroy(client);
    fake_node_stop(node, false);
}

struct late_start {
    char path[160];
    struct fake_node *node;
};

static void *start_late(void *ctx)
{
    struct late_start *late = ctx;
    const struct fake_step steps[] = {STEP(ANSWER)};
    io_system()->wait(NULL, tenure_now_ns() + 150 * NS_PER_MS);
    late->node = fake_node_start_at(late->path, steps, 1);
    return NULL;
}

static void test_client__a_node_that_comes_back_in_time_is_used(void **state)
{
    (void)state;
    struct late_start late = {0};
    char folder[128];
    fake_folder_make(folder, sizeof folder);
    (void)snprintf(late.path, sizeof late.path, "%s/api.sock", folder);
    struct tenure_client *client = client_of(late.path, 3000);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, start_late, &late), 0);
    (void)take_expecting(client, TENURE_ERROR_NONE);
    assert_int_equal(pthread_join(thread, NULL), 0);
    tenure_client_destroy(client);
    fake_node_stop(late.node, false);
}

static uint64_t cpu_ns(void)
{
    struct rusage usage;
    assert_int_equal(getrusage(RUSAGE_THREAD, &usage), 0);
    uint64_t us = (uint64_t)usage.ru_utime.tv_sec * 1000000 + (uint64_t)usage.ru_utime.tv_usec +
                  (uint64_t)usage.ru_stime.tv_sec * 1000000 + (uint64_t)usage.ru_stime.tv_usec;
    return us * 1000;
}

/* C9: no socket; a socket without a listener; a listener that never accepts; one that never
 * answers. */
static void test_client__an_absent_node_costs_the_deadline_and_no_more(void **state)
{
    (void)state;
    char folder[64];
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    fake_folder_make(folder, sizeof folder);
    (void)snprintf(address.sun_path, sizeof address.sun_path, "%s/api.sock", folder);
    const char *path = address.sun_path;
    struct tenure_client *client = client_of(path, 300);
    uint64_t cpu_before_ns = cpu_ns();
    uint64_t took_ns = take_expecting(client, TENURE_ERROR_UNAVAILABLE);
    assert_in_range(took_ns, 200 * NS_PER_MS, 300 * NS_PER_MS + SLACK_NS);

    int listener = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&address, sizeof address), 0);
    took_ns = take_expecting(client, TENURE_ERROR_UNAVAILABLE);
    assert_in_range(took_ns, 200 * NS_PER_MS, 300 * NS_PER_MS + SLACK_NS);

    assert_int_equal(listen(listener, 0), 0); /* room for one that is never accepted */
    took_ns = take_expecting(client, TENURE_ERROR_UNKNOWN);
    assert_in_range(took_ns, 200 * NS_PER_MS, 300 * NS_PER_MS + SLACK_NS);
    took_ns = take_expecting(client, TENURE_ERROR_UNAVAILABLE);
    assert_in_range(took_ns, 200 * NS_PER_MS, 300 * NS_PER_MS + SLACK_NS);
    assert_true(cpu_ns() - cpu_before_ns < 30 * NS_PER_MS);
    (void)close(listener);
    tenure_client_destroy(client);

    const struct fake_step steps[] = {STEP(SILENCE)};
    struct fake_node *node = fake_node_start_at(path, steps, 1);
    client = client_of(path, 300);
    took_ns = take_expecting(client, TENURE_ERROR_UNKNOWN);
    assert_in_range(took_ns, 300 * NS_PER_MS, 300 * NS_PER_MS + SLACK_NS);
    tenure_client_destroy(client);
    fake_node_stop(node, false);
}

static void test_client__what_it_is_made_of_is_checked(void **state)
{
    (void)state;
    char path[200];
    memset(path, 'x', sizeof path);
    path[0] = '/';
    path[108] = '\0';
    struct tenure_options options = {.socket = path};
    struct tenure_client *client = NULL;
    struct tenure_failure failure;
    assert_int_equal(tenure_client_create(&options, &client, &failure), TENURE_ERROR_INVALID);
    assert_string_equal(failure.field, "socket");
    path[107] = '\0'; /* X5: 107 bytes fit, 108 do not */
    assert_int_equal(tenure_client_create(&options, &client, &failure), TENURE_ERROR_NONE);
    tenure_client_destroy(client);
    const struct {
        uint64_t deadline_ms;
        enum tenure_error error;
    } rows[] = {{9, TENURE_ERROR_INVALID},
                {10, TENURE_ERROR_NONE},
                {60000, TENURE_ERROR_NONE},
                {60001, TENURE_ERROR_INVALID}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        options = (struct tenure_options){.deadline_ms = rows[i].deadline_ms};
        client = NULL;
        assert_int_equal(tenure_client_create(&options, &client, &failure), rows[i].error);
        tenure_client_destroy(client);
    }
    client = client_of("/nowhere", 0);
    struct tenure_call short_call = {.deadline_ms = 9};
    struct tenure_reply *reply = NULL;
    assert_int_equal(tenure_status(client, &short_call, &reply, &failure), TENURE_ERROR_INVALID);
    assert_string_equal(failure.rule, "must be a whole number of milliseconds in 10..60000");
    struct tenure_call many = {.item_count = 10001};
    assert_int_equal(tenure_renew(client, &many, &reply, &failure), TENURE_ERROR_INVALID);
    assert_string_equal(failure.rule, RULE_KEYS);
    tenure_client_destroy(client);
}

/* T5: the node's words reach the caller as they are. */
static void test_client__a_violation_arrives_in_its_words(void **state)
{
    (void)state;
    const struct fake_step steps[] = {
        {.kind = FAKE_STEP_ANSWER,
         .reply = {.status = STATUS_INVALID,
                   .violation = {.field = "ttl_ms", .value = "9", .rule = RULE_TTL_MS}}}};
    struct fake_node *node = fake_node_start(steps, 1);
    struct tenure_client *client = client_of(fake_node_path(node), 0);
    struct tenure_failure failure;
    struct tenure_reply *reply = NULL;
    assert_int_equal(tenure_take(client, &call, &reply, &failure), TENURE_ERROR_INVALID);
    assert_string_equal(failure.field, "ttl_ms");
    assert_string_equal(failure.value, "9");
    assert_string_equal(failure.rule, RULE_TTL_MS);
    assert_string_equal(failure.message, "ttl_ms " RULE_TTL_MS ", got: 9");
    assert_int_equal(fake_node_seen(node).requests, 1);
    tenure_client_destroy(client);
    fake_node_stop(node, false);
}

/* U6: both versions are named. */
static void test_client__incompatible_names_both_versions(void **state)
{
    (void)state;
    const struct fake_step steps[] = {
        {.kind = FAKE_STEP_ANSWER,
         .reply = {.status = STATUS_INCOMPATIBLE, .detail = TEXT("protocol version 2")}}};
    struct fake_node *node = fake_node_start(steps, 1);
    struct tenure_client *client = client_of(fake_node_path(node), 0);
    struct tenure_failure failure;
    struct tenure_reply *reply = NULL;
    assert_int_equal(tenure_take(client, &call, &reply, &failure), TENURE_ERROR_INCOMPATIBLE);
    assert_non_null(strstr(failure.message, "protocol version 2"));
    assert_non_null(strstr(failure.message, "this client speaks protocol version 1"));
    tenure_client_destroy(client);
    fake_node_stop(node, false);
}

static void *call_many(void *ctx)
{
    struct tenure_client *client = ctx;
    for (int i = 0; i < 50; i++) {
        struct tenure_reply *reply = NULL;
        if (tenure_take(client, &call, &reply, NULL) != TENURE_ERROR_NONE) {
            return ctx;
        }
        tenure_reply_free(reply);
    }
    return NULL;
}

static void test_client__threads_share_a_client(void **state)
{
    (void)state;
    const struct fake_step steps[] = {STEP(ANSWER)};
    struct fake_node *node = fake_node_start(steps, 1);
    struct tenure_client *client = client_of(fake_node_path(node), 20000);
    pthread_t threads[8];
    for (size_t i = 0; i < 8; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, call_many, client), 0);
    }
    for (size_t i = 0; i < 8; i++) {
        void *failed = NULL;
        assert_int_equal(pthread_join(threads[i], &failed), 0);
        assert_null(failed);
    }
    assert_int_equal(fake_node_seen(node).requests, 400);
    assert_in_range(fake_node_seen(node).connections, 1, 8);
    tenure_client_destroy(client);
    fake_node_stop(node, false);
}

/* C7: children open their own connections; the parent's lives on and is not closed by them. */
static void test_client__a_child_has_its_own_connection_and_owner(void **state)
{
    (void)state;
    const struct fake_step steps[] = {STEP(ANSWER)};
    struct fake_node *node = fake_node_start(steps, 1);
    struct tenure_options options = {.socket = fake_node_path(node), .deadline_ms = 20000};
    struct tenure_client *client = NULL;
    assert_int_equal(tenure_client_create(&options, &client, NULL), TENURE_ERROR_NONE);
    (void)take_expecting(client, TENURE_ERROR_NONE);
    char owner[256];
    (void)snprintf(owner, sizeof owner, "%s", tenure_client_owner(client));
    pid_t children[8];
    for (size_t i = 0; i < 8; i++) {
        children[i] = fork();
        if (children[i] == 0) {
            bool own = strcmp(tenure_client_owner(client), owner) != 0;
            bool done = call_many(client) == NULL;
            tenure_client_destroy(client);
            _exit(own && done ? 0 : 1);
        }
    }
    for (size_t i = 0; i < 8; i++) {
        int status = 0;
        assert_int_equal(waitpid(children[i], &status, 0), children[i]);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    (void)take_expecting(client, TENURE_ERROR_NONE);
    assert_string_equal(tenure_client_owner(client), owner);
    struct fake_seen seen = fake_node_seen(node);
    assert_int_equal(seen.connections, 9);
    assert_string_equal(seen.owner, owner);
    tenure_client_destroy(client);
    fake_node_stop(node, false);
}

static void test_client__sigpipe_is_never_raised(void **state)
{
    (void)state;
    const struct fake_step steps[] = {STEP(ANSWER_CLOSE)};
    struct fake_node *node = fake_node_start(steps, 1);
    struct tenure_client *client = client_of(fake_node_path(node), 0);
    (void)signal(SIGPIPE, SIG_DFL);
    for (int i = 0; i < 10; i++) {
        (void)take_expecting(client, TENURE_ERROR_NONE);
        (void)fake_node_seen(node); /* it has closed the connection */
    }
    tenure_client_destroy(client);
    fake_node_stop(node, false);
}

static unsigned open_descriptors(void)
{
    unsigned count = 0;
    DIR *folder = opendir("/proc/self/fd");
    assert_non_null(folder);
    while (readdir(folder) != NULL) {
        count++;
    }
    (void)closedir(folder);
    return count;
}

/* C10 */
static void test_client__clients_leave_nothing_behind(void **state)
{
    (void)state;
    const struct fake_step steps[] = {STEP(ANSWER), STEP(HANG_UP), STEP_ERROR(INVALID),
                                      STEP(ANSWER)};
    struct fake_node *node = fake_node_start(steps, 1);
    unsigned before = open_descriptors();
    for (int i = 0; i < 300; i++) {
        struct tenure_client *client = client_of(fake_node_path(node), 5000);
        (void)take_expecting(client, TENURE_ERROR_NONE);
        tenure_client_destroy(client);
    }
    /* The node's end of the last ones may still be open. */
    assert_true(open_descriptors() <= before + 32);
    fake_node_stop(node, false);
}

static void test_client__many_keys_have_outcomes_in_order(void **state)
{
    (void)state;
    enum { COUNT = 10000 };
    struct keyed_outcome *outcomes = calloc(COUNT, sizeof *outcomes);
    struct tenure_item *items = calloc(COUNT, sizeof *items);
    char(*keys)[16] = calloc(COUNT, sizeof *keys);
    assert_true(outcomes != NULL && items != NULL && keys != NULL);
    for (unsigned i = 0; i < COUNT; i++) {
        (void)snprintf(keys[i], sizeof keys[i], "key-%u", i);
        items[i].key = keys[i];
        outcomes[i] = granted[0];
        outcomes[i].outcome.token = i;
    }
    const struct fake_step steps[] = {
        {.kind = FAKE_STEP_ANSWER, .reply = {.outcomes = outcomes, .outcome_count = COUNT}}};
    struct fake_node *node = fake_node_start(steps, 1);
    struct tenure_client *client = client_of(fake_node_path(node), 20000);
    struct tenure_call many = {.ttl_ms = 1000, .items = items, .item_count = COUNT};
    struct tenure_reply *reply = NULL;
    assert_int_equal(tenure_renew(client, &many, &reply, NULL), TENURE_ERROR_NONE);
    assert_int_equal(reply->outcome_count, COUNT);
    for (unsigned i = 0; i < COUNT; i++) {
        assert_string_equal(reply->outcomes[i].key, keys[i]);
        assert_int_equal(reply->outcomes[i].token, i);
    }
    tenure_reply_free(reply);
    tenure_client_destroy(client);
    fake_node_stop(node, false);
    free(outcomes);
    free(items);
    free(keys);
}

static void test_client__administration_asks_what_it_says(void **state)
{
    (void)state;
    const struct fake_step steps[] = {{.kind = FAKE_STEP_ANSWER}};
    struct fake_node *node = fake_node_start(steps, 1);
    struct tenure_client *client = client_of(fake_node_path(node), 0);
    struct tenure_reply *reply = NULL;
    struct tenure_cluster_call cluster = {.node_id = 5};
    assert_int_equal(tenure_cluster_init(client, NULL, &reply, NULL), TENURE_ERROR_NONE);
    tenure_reply_free(reply);
    assert_int_equal(fake_node_seen(node).method, PROTO_METHOD_CLUSTER_INIT);
    assert_int_equal(tenure_cluster_transfer(client, &cluster, &reply, NULL), TENURE_ERROR_NONE);
    tenure_reply_free(reply);
    assert_int_equal(fake_node_seen(node).method, PROTO_METHOD_CLUSTER_TRANSFER);
    assert_int_equal(tenure_members(client, NULL, &reply, NULL), TENURE_ERROR_NONE);
    tenure_reply_free(reply);
    assert_int_equal(tenure_purge(client, NULL, &reply, NULL), TENURE_ERROR_NONE);
    tenure_reply_free(reply);
    assert_int_equal(fake_node_seen(node).method, PROTO_METHOD_PURGE);
    assert_string_equal(fake_node_seen(node).owner, "");
    tenure_client_destroy(client);
    fake_node_stop(node, false);
}

#define TEST(name) cmocka_unit_test(test_client__##name)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_grant_arrives_with_everything),
        TEST(a_refusal_names_the_holder),
        TEST(construction_never_connects),
        TEST(one_connection_serves_one_call_after_the_other),
        TEST(a_lost_reply_is_unknown_and_not_sent_again),
        TEST(a_read_is_asked_again),
        TEST(what_is_not_done_is_tried_again_inside_the_deadline),
        TEST(unavailable_to_the_end_is_unavailable),
        TEST(replies_are_matched_by_id),
        TEST(a_late_reply_is_dropped),
        TEST(half_a_reply_is_no_reply),
        TEST(a_restarted_node_costs_no_error),
        TEST(a_node_that_comes_back_in_time_is_used),
        TEST(an_absent_node_costs_the_deadline_and_no_more),
        TEST(what_it_is_made_of_is_checked),
        TEST(a_violation_arrives_in_its_words),
        TEST(incompatible_names_both_versions),
        TEST(threads_share_a_client),
        TEST(a_child_has_its_own_connection_and_owner),
        TEST(sigpipe_is_never_raised),
        TEST(clients_leave_nothing_behind),
        TEST(many_keys_have_outcomes_in_order),
        TEST(administration_asks_what_it_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
