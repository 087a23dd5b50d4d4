/* What the service asks of the node as a whole, on a real socket: hand-overs of leadership and
 * foundings that are answered, refused, late, or asked for by somebody who left. */
#include "node/service.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cmocka.h>

#include "client/protocol.h"
#include "tests/node/api_bed.h"

/* The bed gives folder and sockets; the API's owner is a service instead of the bed. */
static struct api_bed bed;
static struct service *service;
static struct proto_decoder *decoder;
static struct buf in;

/* The node: one task at a time, which ends when the test says so. */
static enum status answer;
static uint64_t asked_id;
static service_later_cb task_done;
static void *task;

static enum status begin_task(service_later_cb cb, void *call)
{
    if (answer == STATUS_OK) {
        task_done = cb;
        task = call;
    }
    return answer;
}

static enum status on_transfer(void *ctx, uint64_t node_id, service_later_cb cb, void *call)
{
    (void)ctx;
    asked_id = node_id;
    return begin_task(cb, call);
}

static enum status on_cluster_init(void *ctx, const struct proto_request *request,
                                   const char **out_detail, service_later_cb cb, void *call)
{
    (void)ctx;
    asked_id = request->token_floor;
    *out_detail = "this node has other plans";
    return begin_task(cb, call);
}

static void on_hello(void *ctx, struct fields *out_fields)
{
    (void)ctx;
    fields_add_text(out_fields, "cluster_id", "c1");
}

static void end_task(enum status status)
{
    void *call = task;
    task = NULL;
    task_done(call, status);
}

static int setup(void **state)
{
    (void)state;
    char why[256];
    bed_open(&bed);
    answer = STATUS_OK;
    task = NULL;
    decoder = proto_decoder_create();
    buf_init(&in, 65536);
    service = service_create(&(struct service_config){
        .loop = bed.loop,
        .node = {.transfer = on_transfer, .cluster_init = on_cluster_init, .hello = on_hello},
        .admin_uid = (uint32_t)geteuid(),
    });
    struct api_callbacks callbacks = service_api_callbacks(service);
    struct api_config config = {.path = bed.path, .mode = 0600, .gid = -1};
    assert_int_equal(api_open(bed.loop, &config, &callbacks, why, &bed.api), STATUS_OK);
    service_set_api(service, bed.api);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    bed_close_api(&bed);
    if (task != NULL) {
        end_task(STATUS_CLOSING); /* a replica that closes ends what it was asked for */
    }
    service_destroy(service);
    bed_close(&bed);
    proto_decoder_destroy(decoder);
    buf_deinit(&in);
    return 0;
}

static int send_request(const struct proto_request *request)
{
    struct buf out;
    buf_init(&out, 1000);
    proto_encode_request(request, &out);
    int fd = bed_connect(&bed);
    assert_int_equal(bed_write(fd, buf_slice(&out)), out.len);
    buf_deinit(&out);
    return fd;
}

static int ask(uint64_t node_id, uint64_t deadline_ns)
{
    return send_request(&(struct proto_request){
        .id = 1,
        .method = PROTO_METHOD_CLUSTER_TRANSFER,
        .node_id = node_id,
        .deadline_ns = deadline_ns,
    });
}

static int ask_init(uint64_t deadline_ns)
{
    return send_request(&(struct proto_request){
        .id = 1,
        .method = PROTO_METHOD_CLUSTER_INIT,
        .has_token_floor = true,
        .token_floor = 4711,
        .deadline_ns = deadline_ns,
    });
}

static bool asked(void *ctx)
{
    (void)ctx;
    return task != NULL;
}

static struct proto_reply reply_to(int fd, enum proto_method method)
{
    struct proto_reply reply;
    uint32_t id = 0;
    buf_clear(&in);
    assert_true(bed_read(&bed, fd, 1, &in));
    assert_int_equal(proto_reply_id(buf_slice(&in), &id), STATUS_OK);
    assert_int_equal(id, 1);
    assert_int_equal(proto_decode_reply(decoder, buf_slice(&in), method, &reply), STATUS_OK);
    return reply;
}

static struct proto_reply reply_of(int fd)
{
    return reply_to(fd, PROTO_METHOD_CLUSTER_TRANSFER);
}

static void test_service__a_hand_over_is_answered_when_it_ends(void **state)
{
    (void)state;
    static const enum status ends[] = {STATUS_OK, STATUS_NO_LEADER};
    for (unsigned i = 0; i < 2; i++) {
        int fd = ask(7, 0);
        assert_true(drive(bed.loop, asked, NULL));
        assert_int_equal(asked_id, 7);
        end_task(ends[i]);
        assert_int_equal(status_api_error(reply_of(fd).status), status_api_error(ends[i]));
        (void)close(fd);
    }
}

static void test_service__a_hand_over_to_a_stranger_names_the_rule(void **state)
{
    (void)state;
    answer = STATUS_INVALID;
    int fd = ask(0xabcd, 0);
    struct proto_reply reply = reply_of(fd);
    assert_int_equal(status_api_error(reply.status), API_ERROR_INVALID);
    assert_string_equal(reply.violation.field, "node_id");
    assert_string_equal(reply.violation.value, "43981");
    assert_non_null(strstr(reply.violation.rule, "must be a voter of this cluster"));
    (void)close(fd);
}

static void test_service__a_hand_over_without_end_is_unknown_at_the_deadline(void **state)
{
    (void)state;
    uint64_t deadline_ns = loop_clock_ns() + ms_to_ns(200);
    int fd = ask(7, deadline_ns);
    assert_int_equal(status_api_error(reply_of(fd).status), API_ERROR_UNKNOWN);
    assert_true(loop_clock_ns() >= deadline_ns);
    end_task(STATUS_OK); /* too late for anybody */
    drive_for(bed.loop, 10);
    (void)close(fd);
}

static void test_service__a_hand_over_past_its_deadline_is_not_begun(void **state)
{
    (void)state;
    int fd = ask(7, 1);
    assert_int_equal(status_api_error(reply_of(fd).status), API_ERROR_UNAVAILABLE);
    assert_null(task);
    (void)close(fd);
}

static bool no_calls(void *ctx)
{
    (void)ctx;
    struct service_stats stats;
    service_stats(service, &stats);
    return stats.in_flight == 0;
}

static void test_service__a_hand_over_outlives_its_caller(void **state)
{
    (void)state;
    int fd = ask(7, 0);
    assert_true(drive(bed.loop, asked, NULL));
    (void)close(fd);
    assert_true(drive(bed.loop, no_calls, NULL));
    end_task(STATUS_OK);

    fd = ask(7, 0);
    assert_true(drive(bed.loop, asked, NULL));
    (void)close(fd); /* the teardown ends it */
}

static void test_service__a_founding_is_answered_when_the_cluster_is_born(void **state)
{
    (void)state;
    int fd = ask_init(0);
    assert_true(drive(bed.loop, asked, NULL));
    assert_int_equal(asked_id, 4711);
    drive_for(bed.loop, 20);
    char byte;
    assert_int_equal(recv(fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK), -1); /* not before */
    end_task(STATUS_OK);
    struct proto_reply reply = reply_to(fd, PROTO_METHOD_CLUSTER_INIT);
    assert_int_equal(reply.status, STATUS_OK);
    assert_int_equal(reply.field_count, 1); /* the greeting: which cluster that is */
    (void)close(fd);
}

static void test_service__a_refused_founding_says_why(void **state)
{
    (void)state;
    answer = STATUS_INCOMPATIBLE;
    int fd = ask_init(0);
    struct proto_reply reply = reply_to(fd, PROTO_METHOD_CLUSTER_INIT);
    assert_int_equal(status_api_error(reply.status), API_ERROR_INCOMPATIBLE);
    assert_true(slice_equal(reply.detail, slice_text("this node has other plans")));
    (void)close(fd);
}

static void test_service__a_founding_without_end_is_unknown_at_the_deadline(void **state)
{
    (void)state;
    uint64_t deadline_ns = loop_clock_ns() + ms_to_ns(200);
    int fd = ask_init(deadline_ns);
    struct proto_reply reply = reply_to(fd, PROTO_METHOD_CLUSTER_INIT);
    assert_int_equal(status_api_error(reply.status), API_ERROR_UNKNOWN);
    assert_true(reply.detail.len > 0); /* that it goes on */
    assert_true(loop_clock_ns() >= deadline_ns);
    end_task(STATUS_OK); /* too late for anybody */
    drive_for(bed.loop, 10);
    (void)close(fd);
}

static void test_service__a_founding_past_its_deadline_is_not_begun(void **state)
{
    (void)state;
    int fd = ask_init(1);
    assert_int_equal(status_api_error(reply_to(fd, PROTO_METHOD_CLUSTER_INIT).status),
                     API_ERROR_UNAVAILABLE);
    assert_null(task);
    (void)close(fd);
}

static void test_service__a_founding_outlives_its_caller(void **state)
{
    (void)state;
    int fd = ask_init(0);
    assert_true(drive(bed.loop, asked, NULL));
    (void)close(fd);
    assert_true(drive(bed.loop, no_calls, NULL));
    end_task(STATUS_OK);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_service__a_hand_over_is_answered_when_it_ends),
        TEST(test_service__a_hand_over_to_a_stranger_names_the_rule),
        TEST(test_service__a_hand_over_without_end_is_unknown_at_the_deadline),
        TEST(test_service__a_hand_over_past_its_deadline_is_not_begun),
        TEST(test_service__a_hand_over_outlives_its_caller),
        TEST(test_service__a_founding_is_answered_when_the_cluster_is_born),
        TEST(test_service__a_refused_founding_says_why),
        TEST(test_service__a_founding_without_end_is_unknown_at_the_deadline),
        TEST(test_service__a_founding_past_its_deadline_is_not_begun),
        TEST(test_service__a_founding_outlives_its_caller),
    };
#undef TEST
    return cmocka_run_group_tests(tests, NULL, NULL);
}
