/* What the service asks of the node as a whole, on a real socket: hand-overs of leadership that are
 * answered, refused, late, or asked for by somebody who left. */
#include "node/service.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "client/protocol.h"
#include "tests/node/api_bed.h"

/* The bed gives folder and sockets; the API's owner is a service instead of the bed. */
static struct api_bed bed;
static struct service *service;
static struct proto_decoder *decoder;
static struct buf in;

/* The node: one hand-over at a time, which ends when the test says so. */
static enum status answer;
static uint64_t asked_id;
static void (*transferred)(void *call, enum status status);
static void *transferring;

static enum status on_transfer(void *ctx, uint64_t node_id,
                               void (*cb)(void *call, enum status status), void *call)
{
    (void)ctx;
    asked_id = node_id;
    if (answer == STATUS_OK) {
        transferred = cb;
        transferring = call;
    }
    return answer;
}

static void end_transfer(enum status status)
{
    void *call = transferring;
    transferring = NULL;
    transferred(call, status);
}

static int setup(void **state)
{
    (void)state;
    char why[256];
    bed_open(&bed);
    answer = STATUS_OK;
    transferring = NULL;
    decoder = proto_decoder_create();
    buf_init(&in, 65536);
    service = service_create(&(struct service_config){
        .loop = bed.loop,
        .node = {.transfer = on_transfer},
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
    if (transferring != NULL) {
        end_transfer(STATUS_CLOSING); /* a replica that closes ends what it was asked for */
    }
    service_destroy(service);
    bed_close(&bed);
    proto_decoder_destroy(decoder);
    buf_deinit(&in);
    return 0;
}

static int ask(uint64_t node_id, uint64_t deadline_ns)
{
    struct proto_request request = {
        .id = 1,
        .method = PROTO_METHOD_CLUSTER_TRANSFER,
        .node_id = node_id,
        .deadline_ns = deadline_ns,
    };
    struct buf out;
    buf_init(&out, 1000);
    proto_encode_request(&request, &out);
    int fd = bed_connect(&bed);
    assert_int_equal(bed_write(fd, buf_slice(&out)), out.len);
    buf_deinit(&out);
    return fd;
}

static bool asked(void *ctx)
{
    (void)ctx;
    return transferring != NULL;
}

static struct proto_reply reply_of(int fd)
{
    struct proto_reply reply;
    uint32_t id = 0;
    buf_clear(&in);
    assert_true(bed_read(&bed, fd, 1, &in));
    assert_int_equal(proto_reply_id(buf_slice(&in), &id), STATUS_OK);
    assert_int_equal(id, 1);
    assert_int_equal(
        proto_decode_reply(decoder, buf_slice(&in), PROTO_METHOD_CLUSTER_TRANSFER, &reply),
        STATUS_OK);
    return reply;
}

static void test_service__a_hand_over_is_answered_when_it_ends(void **state)
{
    (void)state;
    static const enum status ends[] = {STATUS_OK, STATUS_NO_LEADER};
    for (unsigned i = 0; i < 2; i++) {
        int fd = ask(7, 0);
        assert_true(drive(bed.loop, asked, NULL));
        assert_int_equal(asked_id, 7);
        end_transfer(ends[i]);
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
    end_transfer(STATUS_OK); /* too late for anybody */
    drive_for(bed.loop, 10);
    (void)close(fd);
}

static void test_service__a_hand_over_past_its_deadline_is_not_begun(void **state)
{
    (void)state;
    int fd = ask(7, 1);
    assert_int_equal(status_api_error(reply_of(fd).status), API_ERROR_UNAVAILABLE);
    assert_null(transferring);
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
    end_transfer(STATUS_OK);

    fd = ask(7, 0);
    assert_true(drive(bed.loop, asked, NULL));
    (void)close(fd); /* the teardown ends it */
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
    };
#undef TEST
    return cmocka_run_group_tests(tests, NULL, NULL);
}
