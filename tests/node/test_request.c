/* One request: how keys become parts, repeats are joined, and what the parts say becomes one reply
 * (hazard I7). */
#include "node/request.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#include "fsm/command_codec.h"

struct keys {
    struct key_item items[KEYS_MAX];
    char names[KEYS_MAX][40];
};

static struct keys *keys_create(void)
{
    struct keys *keys = calloc(1, sizeof *keys);
    assert_non_null(keys);
    for (unsigned i = 0; i < KEYS_MAX; i++) {
        (void)snprintf(keys->names[i], sizeof keys->names[i], "sandbox-%08u", i);
        keys->items[i].key = slice_text(keys->names[i]);
    }
    return keys;
}

static struct proto_request asked_of(const struct keys *keys, enum op_kind kind, uint32_t count)
{
    return (struct proto_request){
        .id = 9,
        .method = kind == OP_KIND_RENEW ? PROTO_METHOD_RENEW : PROTO_METHOD_CLAIM,
        .op = {.kind = kind,
               .ns = slice_text("default"),
               .owner = slice_text("owner"),
               .ttl_ms = 1000,
               .keys = keys->items,
               .key_count = count},
    };
}

static struct request *request_new(const struct proto_request *asked)
{
    struct request *request = calloc(1, sizeof *request);
    assert_non_null(request);
    request_init(request);
    assert_int_equal(request_begin(request, asked, 1000), STATUS_OK);
    return request;
}

static void request_free(struct request *request)
{
    request_clear(request);
    free(request);
}

/* Answer a part: each key RENEWED, or GRANTED, with a token that is the key's place in the part. */
static enum status answer(struct request *request, uint32_t part, enum outcome_kind kind,
                          uint64_t index)
{
    uint32_t count = request->parts[part].count;
    struct outcome *outcomes = calloc(count + 1, sizeof *outcomes);
    assert_non_null(outcomes);
    for (uint32_t i = 0; i < count; i++) {
        outcomes[i] = (struct outcome){
            .kind = kind,
            .token = request->parts[part].first + i + 1,
            .limit = kind == OUTCOME_KIND_UNAVAILABLE ? LIMIT_KIND_LEASES : LIMIT_KIND_NONE,
        };
    }
    struct result result = {
        .status = STATUS_OK,
        .kind = request->asked->op.kind,
        .position = {.index = index, .place = 2},
        .clock_ms = index * 10,
        .outcomes = outcomes,
        .outcome_count = count,
    };
    struct buf bytes;
    buf_init(&bytes, MESSAGE_LEN_MAX);
    result_encode(&result, &bytes);
    struct result_decoder *decoder = result_decoder_create();
    enum status st = request_part_answer(request, part, decoder, buf_slice(&bytes));
    result_decoder_destroy(decoder);
    buf_deinit(&bytes);
    free(outcomes);
    return st;
}

static void test_request__one_key_is_one_part(void **state)
{
    (void)state;
    struct keys *keys = keys_create();
    struct proto_request asked = asked_of(keys, OP_KIND_RENEW, 1);
    struct request *request = request_new(&asked);
    assert_int_equal(request->part_count, 1);
    assert_ptr_equal(request->parts, &request->part_one);
    assert_int_equal(answer(request, 0, OUTCOME_KIND_RENEWED, 5), STATUS_OK);
    assert_true(request_complete(request));
    struct proto_reply reply;
    request_reply(request, &reply);
    assert_int_equal(reply.status, STATUS_OK);
    assert_int_equal(reply.id, 9);
    assert_int_equal(reply.outcome_count, 1);
    assert_int_equal(reply.outcomes[0].outcome.kind, OUTCOME_KIND_RENEWED);
    assert_int_equal(reply.outcomes[0].position.index, 5);
    assert_int_equal(reply.clock_ms, 50);
    request_free(request);
    free(keys);
}

/* Every part is a command that fits, and together they are the keys, each once and in order. */
static void test_request__10000_keys_are_cut_into_parts_that_fit(void **state)
{
    (void)state;
    struct keys *keys = keys_create();
    struct proto_request asked = asked_of(keys, OP_KIND_RENEW, KEYS_MAX);
    struct request *request = request_new(&asked);
    assert_true(request->result_len_max <= UNCONFIRMED_LEN_MAX);
    uint32_t next = 0;
    size_t shortest = SIZE_MAX;
    struct buf bytes;
    buf_init(&bytes, ENTRY_LEN_MAX);
    for (uint32_t i = 0; i < request->part_count; i++) {
        struct command command = {
            .origin = UINT64_MAX,
            .sequence = UINT64_MAX,
            .confirmed = UINT64_MAX - 1,
            .op = request_part_op(request, i),
        };
        buf_clear(&bytes);
        command_encode(&command, &bytes);
        assert_true(bytes.len <= ENTRY_LEN_TARGET);
        shortest = i + 1 < request->part_count && bytes.len < shortest ? bytes.len : shortest;
        for (uint32_t k = 0; k < command.op.key_count; k++) {
            assert_true(slice_equal(command.op.keys[k].key, keys->items[next++].key));
        }
    }
    assert_int_equal(next, KEYS_MAX);
    assert_true(shortest > ENTRY_LEN_TARGET * 15 / 16); /* and no part is needlessly small */
    buf_deinit(&bytes);

    /* Answers in any order, the reply in the order of the request. */
    for (uint32_t i = request->part_count; i > 0; i--) {
        assert_int_equal(answer(request, i - 1, OUTCOME_KIND_RENEWED, 100 + i), STATUS_OK);
    }
    struct proto_reply reply;
    request_reply(request, &reply);
    assert_int_equal(reply.outcome_count, KEYS_MAX);
    assert_int_equal(reply.position.index, 100 + request->part_count);
    for (uint32_t i = 0; i < KEYS_MAX; i++) {
        assert_int_equal(reply.outcomes[i].outcome.token, i + 1);
    }
    request_free(request);
    free(keys);
}

static void test_request__the_longest_keys_and_metadata_fit(void **state)
{
    (void)state;
    struct keys *keys = keys_create();
    static uint8_t text[META_LEN_MAX];
    memset(text, 'm', sizeof text);
    static char names[200][KEY_LEN_MAX];
    for (unsigned i = 0; i < 200; i++) {
        memset(names[i], 'k', KEY_LEN_MAX);
        names[i][0] = (char)('a' + i % 26);
        names[i][1] = (char)('a' + i / 26);
        keys->items[i] = (struct key_item){
            .key = slice_from(names[i], KEY_LEN_MAX),
            .meta = slice_from(text, META_LEN_MAX),
            .identity = slice_from(text, IDENTITY_LEN_MAX),
        };
    }
    struct proto_request asked = asked_of(keys, OP_KIND_CLAIM, 200);
    static char owner[OWNER_LEN_MAX];
    static char ns[NAMESPACE_LEN_MAX];
    memset(owner, 'o', sizeof owner);
    memset(ns, 'n', sizeof ns);
    asked.op.owner = slice_from(owner, sizeof owner);
    asked.op.ns = slice_from(ns, sizeof ns);
    asked.op.adopt = true;
    asked.op.grace_ms = TOMBSTONE_RETENTION_MS_MAX;
    struct request *request = request_new(&asked);
    struct buf bytes;
    buf_init(&bytes, ENTRY_LEN_MAX);
    for (uint32_t i = 0; i < request->part_count; i++) {
        struct command command = {.origin = UINT64_MAX,
                                  .sequence = UINT64_MAX,
                                  .op = request_part_op(request, i)};
        buf_clear(&bytes);
        command_encode(&command, &bytes);
        assert_true(bytes.len <= ENTRY_LEN_TARGET);
    }
    buf_deinit(&bytes);
    request_free(request);
    free(keys);
}

static void join(uint32_t count, uint32_t distinct)
{
    struct keys *keys = keys_create();
    for (uint32_t i = 0; i < count; i++) {
        keys->items[i].key = slice_text(keys->names[i % distinct]);
    }
    struct proto_request asked = asked_of(keys, OP_KIND_RENEW, count);
    struct request *request = request_new(&asked);
    assert_int_equal(request->key_count, distinct < count ? distinct : count);
    struct op first = request_part_op(request, 0);
    struct violation violation;
    assert_int_equal(op_validate(&first, &violation), STATUS_OK);
    for (uint32_t i = 0; i < request->part_count; i++) {
        assert_int_equal(answer(request, i, OUTCOME_KIND_RENEWED, 3), STATUS_OK);
    }
    struct proto_reply reply;
    request_reply(request, &reply);
    assert_int_equal(reply.outcome_count, count);
    for (uint32_t i = 0; i < count; i++) {
        assert_int_equal(reply.outcomes[i].outcome.token, i % distinct + 1);
    }
    request_free(request);
    free(keys);
}

static void test_request__i7_a_repeated_key_is_done_once_and_answered_twice(void **state)
{
    (void)state;
    join(2, 1);
    join(2, 2);
    join(7, 3);
    join(8, 5);
    join(9, 8);
    join(KEYS_MAX, 1);
    join(KEYS_MAX, KEYS_MAX - 1);
    join(KEYS_MAX, 77);
}

static void test_request__a_failed_part_shows_in_place_of_its_keys(void **state)
{
    (void)state;
    struct keys *keys = keys_create();
    struct proto_request asked = asked_of(keys, OP_KIND_RENEW, 3000);
    struct request *request = request_new(&asked);
    assert_true(request->part_count >= 3);
    request_part_fail(request, 0, STATUS_UNKNOWN);
    request_part_fail(request, 1, STATUS_NO_LEADER);
    for (uint32_t i = 2; i < request->part_count; i++) {
        assert_int_equal(answer(request, i, OUTCOME_KIND_RENEWED, 3), STATUS_OK);
    }
    struct proto_reply reply;
    request_reply(request, &reply);
    assert_int_equal(reply.status, STATUS_OK);
    uint32_t second = request->parts[1].first;
    uint32_t third = request->parts[2].first;
    assert_int_equal(reply.outcomes[0].outcome.kind, OUTCOME_KIND_UNKNOWN);
    assert_int_equal(reply.outcomes[second - 1].outcome.kind, OUTCOME_KIND_UNKNOWN);
    assert_int_equal(reply.outcomes[second].outcome.kind, OUTCOME_KIND_UNAVAILABLE);
    assert_int_equal(reply.outcomes[third - 1].outcome.kind, OUTCOME_KIND_UNAVAILABLE);
    assert_int_equal(reply.outcomes[third].outcome.kind, OUTCOME_KIND_RENEWED);
    assert_int_equal(reply.outcomes[2999].outcome.kind, OUTCOME_KIND_RENEWED);
    request_free(request);
    free(keys);
}

static void test_request__parts_that_fail_alike_are_one_error(void **state)
{
    (void)state;
    struct keys *keys = keys_create();
    struct proto_request asked = asked_of(keys, OP_KIND_RENEW, 3000);
    struct request *request = request_new(&asked);
    for (uint32_t i = 0; i < request->part_count; i++) {
        request_part_fail(request, i, i % 2 == 0 ? STATUS_NO_LEADER : STATUS_NOT_SERVING);
    }
    struct proto_reply reply;
    request_reply(request, &reply);
    assert_int_equal(reply.status, STATUS_NO_LEADER);
    assert_int_equal(reply.outcome_count, 0);
    request_free(request);
    free(keys);
}

static void test_request__one_key_at_a_limit_is_an_error_that_names_it(void **state)
{
    (void)state;
    struct keys *keys = keys_create();
    struct proto_request asked = asked_of(keys, OP_KIND_CLAIM, 1);
    struct request *request = request_new(&asked);
    assert_int_equal(answer(request, 0, OUTCOME_KIND_UNAVAILABLE, 3), STATUS_OK);
    struct proto_reply reply;
    request_reply(request, &reply);
    assert_int_equal(reply.status, STATUS_LIMIT);
    assert_true(slice_equal(reply.detail, slice_text("leases")));
    request_free(request);

    asked.op.key_count = 2;
    request = request_new(&asked);
    assert_int_equal(answer(request, 0, OUTCOME_KIND_UNAVAILABLE, 3), STATUS_OK);
    request_reply(request, &reply);
    assert_int_equal(reply.status, STATUS_OK);
    assert_int_equal(reply.outcomes[1].outcome.kind, OUTCOME_KIND_UNAVAILABLE);
    assert_int_equal(reply.outcomes[1].outcome.limit, LIMIT_KIND_LEASES);
    request_free(request);
    free(keys);
}

static void test_request__a_grace_beyond_the_retention_is_invalid(void **state)
{
    (void)state;
    struct keys *keys = keys_create();
    struct proto_request asked = asked_of(keys, OP_KIND_CLAIM, 1);
    asked.op.adopt = true;
    asked.op.grace_ms = 700000;
    struct request *request = request_new(&asked);
    struct result result = {.status = STATUS_INVALID, .kind = OP_KIND_CLAIM};
    struct buf bytes;
    buf_init(&bytes, 256);
    result_encode(&result, &bytes);
    struct result_decoder *decoder = result_decoder_create();
    assert_int_equal(request_part_answer(request, 0, decoder, buf_slice(&bytes)), STATUS_OK);
    struct proto_reply reply;
    request_reply(request, &reply);
    assert_int_equal(reply.status, STATUS_INVALID);
    assert_string_equal(reply.violation.field, "grace_ms");
    assert_string_equal(reply.violation.value, "700000");
    assert_string_equal(reply.violation.rule, RULE_GRACE_MS);
    result_decoder_destroy(decoder);
    buf_deinit(&bytes);
    request_free(request);
    free(keys);
}

/* A result of another operation, of fewer keys, or with an outcome that no state machine makes. */
static void test_request__results_that_do_not_fit_are_malformed(void **state)
{
    (void)state;
    struct keys *keys = keys_create();
    struct proto_request asked = asked_of(keys, OP_KIND_RENEW, 2);
    struct request *request = request_new(&asked);
    struct outcome outcomes[3] = {{.kind = OUTCOME_KIND_LAPSED},
                                  {.kind = OUTCOME_KIND_LAPSED},
                                  {.kind = OUTCOME_KIND_LAPSED}};
    struct result results[] = {
        {.kind = OP_KIND_CLAIM, .outcomes = outcomes, .outcome_count = 2},
        {.kind = OP_KIND_RENEW, .outcomes = outcomes, .outcome_count = 1},
        {.kind = OP_KIND_RENEW, .outcomes = outcomes, .outcome_count = 3},
        {.kind = OP_KIND_PURGE},
    };
    struct result_decoder *decoder = result_decoder_create();
    struct buf bytes;
    buf_init(&bytes, 1024);
    for (size_t i = 0; i < sizeof results / sizeof results[0]; i++) {
        buf_clear(&bytes);
        result_encode(&results[i], &bytes);
        assert_int_equal(request_part_answer(request, 0, decoder, buf_slice(&bytes)),
                         STATUS_MALFORMED);
    }
    assert_int_equal(request_part_answer(request, 0, decoder, slice_text("x")), STATUS_MALFORMED);
    assert_int_equal(request_part_answer(request, 0, decoder, (struct slice){0}),
                     STATUS_MALFORMED);
    outcomes[1].kind = OUTCOME_KIND_UNKNOWN;
    results[0].kind = OP_KIND_RENEW;
    buf_clear(&bytes);
    result_encode(&results[0], &bytes);
    assert_int_equal(request_part_answer(request, 0, decoder, buf_slice(&bytes)),
                     STATUS_MALFORMED);
    /* Every cut of a good one. */
    outcomes[1].kind = OUTCOME_KIND_LAPSED;
    buf_clear(&bytes);
    result_encode(&results[0], &bytes);
    for (size_t len = 0; len < bytes.len; len++) {
        assert_int_equal(
            request_part_answer(request, 0, decoder, slice_from(bytes.base, len)),
            STATUS_MALFORMED);
    }
    assert_false(request_complete(request));
    assert_int_equal(request_part_answer(request, 0, decoder, buf_slice(&bytes)), STATUS_OK);
    result_decoder_destroy(decoder);
    buf_deinit(&bytes);
    request_free(request);
    free(keys);
}

static void test_request__departures_reach_the_reply(void **state)
{
    (void)state;
    struct proto_request asked = {
        .method = PROTO_METHOD_RENEW_ALL,
        .op = {.kind = OP_KIND_RENEW_ALL,
               .ns = slice_text("default"),
               .owner = slice_text("owner"),
               .ttl_ms = 1000},
    };
    struct request *request = request_new(&asked);
    struct departure departures[2] = {
        {.key = slice_text("gone"), .token = 7, .reason = END_REASON_TAKEN},
        {.key = slice_text("over"), .token = 8, .reason = END_REASON_EXPIRED},
    };
    struct result result = {
        .kind = OP_KIND_RENEW_ALL,
        .count = 12,
        .set_version = 99,
        .departures = departures,
        .departure_count = 2,
    };
    struct buf bytes;
    buf_init(&bytes, 1024);
    result_encode(&result, &bytes);
    struct result_decoder *decoder = result_decoder_create();
    assert_int_equal(request_part_answer(request, 0, decoder, buf_slice(&bytes)), STATUS_OK);
    memset(bytes.base, 0, bytes.len); /* it was copied */
    struct proto_reply reply;
    request_reply(request, &reply);
    assert_int_equal(reply.count, 12);
    assert_int_equal(reply.set_version, 99);
    assert_int_equal(reply.departure_count, 2);
    assert_true(slice_equal(reply.departures[1].key, slice_text("over")));
    result_decoder_destroy(decoder);
    buf_deinit(&bytes);
    request_free(request);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_request__one_key_is_one_part),
        cmocka_unit_test(test_request__10000_keys_are_cut_into_parts_that_fit),
        cmocka_unit_test(test_request__the_longest_keys_and_metadata_fit),
        cmocka_unit_test(test_request__i7_a_repeated_key_is_done_once_and_answered_twice),
        cmocka_unit_test(test_request__a_failed_part_shows_in_place_of_its_keys),
        cmocka_unit_test(test_request__parts_that_fail_alike_are_one_error),
        cmocka_unit_test(test_request__one_key_at_a_limit_is_an_error_that_names_it),
        cmocka_unit_test(test_request__a_grace_beyond_the_retention_is_invalid),
        cmocka_unit_test(test_request__results_that_do_not_fit_are_malformed),
        cmocka_unit_test(test_request__departures_reach_the_reply),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
