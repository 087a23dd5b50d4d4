/* Messages of the local API: golden bytes, what hostile ones lead to (hazards I1, I2, I4, I6, I7),
 * and the words of refusals (T5). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>
#include <msgpack.h>

#include "client/protocol.h"

#include "fsm/command.h"
#include "fsm/result.h"
#include "tests/client/samples.h"
#include "tests/golden/golden.h"

#define NOW_NS 1000000000ull

/* A decoder, a buffer and what came out, for one test. */
struct fixture {
    struct proto_decoder *decoder;
    struct buf bytes;
    struct proto_request request;
    struct violation violation;
    struct proto_reply reply;
};

static int set_up(void **state)
{
    struct fixture *fixture = calloc(1, sizeof *fixture);
    fixture->decoder = proto_decoder_create();
    buf_init(&fixture->bytes, 2 * MESSAGE_LEN_MAX);
    *state = fixture;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *fixture = *state;
    proto_decoder_destroy(fixture->decoder);
    buf_deinit(&fixture->bytes);
    free(fixture);
    return 0;
}

static enum status decode(struct fixture *fixture)
{
    fixture->violation = (struct violation){0};
    return proto_decode_request(fixture->decoder, buf_slice(&fixture->bytes), NOW_NS,
                                &fixture->request, &fixture->violation);
}

static enum status decode_bytes(struct fixture *fixture, const void *bytes, size_t len)
{
    buf_clear(&fixture->bytes);
    buf_append(&fixture->bytes, bytes, len);
    return decode(fixture);
}

/* [0, 7, method, a map of `pairs`], whose pairs the caller packs. */
static msgpack_packer begin(struct fixture *fixture, const char *method, size_t pairs)
{
    msgpack_packer packer;
    buf_clear(&fixture->bytes);
    msgpack_packer_init(&packer, &fixture->bytes, buf_write_cb);
    msgpack_pack_array(&packer, 4);
    msgpack_pack_int(&packer, 0);
    msgpack_pack_int(&packer, 7);
    msgpack_pack_str_with_body(&packer, method, strlen(method));
    msgpack_pack_map(&packer, pairs);
    return packer;
}

static void pack_str(msgpack_packer *packer, const char *text)
{
    msgpack_pack_str_with_body(packer, text, strlen(text));
}

/* --- golden bytes */

static void test_protocol__requests_have_their_golden_bytes(void **state)
{
    struct fixture *fixture = *state;
    struct golden *golden = golden_open("protocol_requests.hex");
    size_t count = 0;
    const struct request_sample *samples = request_samples(&count);
    struct buf again;
    buf_init(&again, MESSAGE_LEN_MAX);
    for (size_t i = 0; i < count; i++) {
        buf_clear(&fixture->bytes);
        proto_encode_request(&samples[i].request, &fixture->bytes);
        assert_true(golden_matches(golden, samples[i].name, buf_slice(&fixture->bytes)));
        assert_int_equal(decode(fixture), STATUS_OK);
        assert_int_equal(fixture->request.id, samples[i].request.id);
        assert_int_equal(fixture->request.method, samples[i].request.method);
        assert_int_equal(fixture->request.op.kind, samples[i].request.op.kind);
        buf_clear(&again);
        proto_encode_request(&fixture->request, &again);
        assert_true(slice_equal(buf_slice(&again), buf_slice(&fixture->bytes)));
    }
    buf_deinit(&again);
    assert_true(golden_close(golden));
}

static void test_protocol__replies_have_their_golden_bytes(void **state)
{
    struct fixture *fixture = *state;
    struct golden *golden = golden_open("protocol_replies.hex");
    size_t count = 0;
    const struct reply_sample *samples = reply_samples(&count);
    struct buf again;
    buf_init(&again, MESSAGE_LEN_MAX);
    for (size_t i = 0; i < count; i++) {
        const struct proto_reply *sample = &samples[i].reply;
        buf_clear(&fixture->bytes);
        proto_encode_reply(sample, &fixture->bytes);
        assert_true(golden_matches(golden, samples[i].name, buf_slice(&fixture->bytes)));
        enum proto_method method = sample->method == 0 ? PROTO_METHOD_TAKE : sample->method;
        uint32_t id = UINT32_MAX;
        assert_int_equal(proto_reply_id(buf_slice(&fixture->bytes), &id), STATUS_OK);
        assert_int_equal(id, sample->id);
        assert_int_equal(proto_decode_reply(fixture->decoder, buf_slice(&fixture->bytes), method,
                                            &fixture->reply),
                         STATUS_OK);
        assert_int_equal(fixture->reply.status, sample->status);
        buf_clear(&again);
        proto_encode_reply(&fixture->reply, &again);
        assert_true(slice_equal(buf_slice(&again), buf_slice(&fixture->bytes)));
    }
    buf_deinit(&again);
    assert_true(golden_close(golden));
}

static void test_protocol__every_field_of_a_request_arrives(void **state)
{
    struct fixture *fixture = *state;
    size_t count = 0;
    const struct request_sample *samples = request_samples(&count);
    proto_encode_request(&samples[2].request, &fixture->bytes);
    assert_int_equal(decode(fixture), STATUS_OK);
    const struct proto_request *got = &fixture->request;
    const struct op *op = &samples[2].request.op;
    assert_int_equal(got->deadline_ns, samples[2].request.deadline_ns);
    assert_true(slice_equal(got->op.ns, op->ns));
    assert_true(slice_equal(got->op.owner, op->owner));
    assert_int_equal(got->op.ttl_ms, op->ttl_ms);
    assert_true(got->op.destroy && got->op.adopt && !got->op.reestablish);
    assert_int_equal(got->op.grace_ms, op->grace_ms);
    assert_int_equal(got->op.key_count, 1);
    assert_true(slice_equal(got->op.keys[0].key, op->keys[0].key));
    assert_true(got->op.keys[0].has_if_token);
    assert_true(got->op.keys[0].if_token == UINT64_MAX);
    assert_true(slice_equal(got->op.keys[0].meta, op->keys[0].meta));
    assert_non_null(got->op.keys[0].identity.base); /* present and empty */
    assert_int_equal(got->op.keys[0].identity.len, 0);
}

static void test_protocol__what_is_left_out_has_its_default(void **state)
{
    struct fixture *fixture = *state;
    (void)begin(fixture, "take", 0);
    assert_int_equal(decode(fixture), STATUS_OK);
    assert_true(slice_equal(fixture->request.op.ns, slice_text("default")));
    assert_null(fixture->request.op.owner.base);
    assert_int_equal(fixture->request.op.ttl_ms, 0);
    assert_int_equal(fixture->request.op.key_count, 0);
    assert_int_equal(fixture->request.deadline_ns, 0);
}

/* --- where a message ends */

static void test_protocol__a_part_of_a_message_asks_for_more(void **state)
{
    struct fixture *fixture = *state;
    size_t count = 0;
    const struct request_sample *samples = request_samples(&count);
    for (size_t i = 0; i < count; i++) {
        buf_clear(&fixture->bytes);
        proto_encode_request(&samples[i].request, &fixture->bytes);
        struct slice whole = buf_slice(&fixture->bytes);
        size_t len = 0;
        struct proto_scanner scanner;
        proto_scanner_init(&scanner);
        for (size_t part = 0; part < whole.len; part++) {
            struct slice cut = slice_from(whole.base, part);
            assert_int_equal(proto_scan(cut, &len), PROTO_VERDICT_MORE);
            assert_int_equal(proto_scanner_look(&scanner, cut, &len), PROTO_VERDICT_MORE);
            assert_int_equal(proto_decode_request(fixture->decoder, cut, NOW_NS, &fixture->request,
                                                  &fixture->violation),
                             STATUS_MALFORMED);
        }
        assert_int_equal(proto_scanner_look(&scanner, whole, &len), PROTO_VERDICT_WHOLE);
        assert_int_equal(len, whole.len);
        assert_int_equal(proto_scan(whole, &len), PROTO_VERDICT_WHOLE);
        assert_int_equal(len, whole.len);
        buf_append(&fixture->bytes, "\x94", 1); /* the next one begins */
        assert_int_equal(proto_scan(buf_slice(&fixture->bytes), &len), PROTO_VERDICT_WHOLE);
        assert_int_equal(len, fixture->bytes.len - 1);
        assert_int_equal(decode(fixture), STATUS_MALFORMED);
    }
}

/* Each byte of each sample takes 256 values; nothing is asserted but that we get through it. */
static void test_protocol__changed_bytes_never_do_harm(void **state)
{
    struct fixture *fixture = *state;
    size_t count = 0;
    const struct request_sample *requests = request_samples(&count);
    size_t len = 0;
    for (size_t i = 0; i < count; i++) {
        buf_clear(&fixture->bytes);
        proto_encode_request(&requests[i].request, &fixture->bytes);
        for (size_t at = 0; at < fixture->bytes.len; at++) {
            uint8_t right = fixture->bytes.base[at];
            for (unsigned value = 0; value < 256; value++) {
                fixture->bytes.base[at] = (uint8_t)value;
                (void)proto_scan(buf_slice(&fixture->bytes), &len);
                enum status st = decode(fixture);
                assert_true(st == STATUS_OK || st == STATUS_INVALID || st == STATUS_INCOMPATIBLE ||
                            st == STATUS_MALFORMED);
                assert_true(st == STATUS_OK || st == STATUS_MALFORMED ||
                            fixture->violation.rule != NULL);
            }
            fixture->bytes.base[at] = right;
        }
    }
    const struct reply_sample *replies = reply_samples(&count);
    for (size_t i = 0; i < count; i++) {
        buf_clear(&fixture->bytes);
        proto_encode_reply(&replies[i].reply, &fixture->bytes);
        enum proto_method method = replies[i].reply.method;
        method = method == 0 ? PROTO_METHOD_TAKE : method;
        for (size_t at = 0; at < fixture->bytes.len; at++) {
            uint8_t right = fixture->bytes.base[at];
            for (unsigned value = 0; value < 256; value++) {
                fixture->bytes.base[at] = (uint8_t)value;
                enum status st = proto_decode_reply(fixture->decoder, buf_slice(&fixture->bytes),
                                                    method, &fixture->reply);
                assert_true(st == STATUS_OK || st == STATUS_MALFORMED);
            }
            fixture->bytes.base[at] = right;
        }
    }
}

/* I1 */
static void test_protocol__a_header_that_claims_billions_costs_nothing(void **state)
{
    struct fixture *fixture = *state;
    static const char *const headers[] = {
        "\xdd\xff\x00\x00\x00", "\xdf\xff\x00\x00\x00", "\xdb\xff\x00\x00\x00",
        "\xc6\xff\x00\x00\x00", "\xc9\xff\x00\x00\x00",
    };
    size_t len = 0;
    for (size_t i = 0; i < sizeof headers / sizeof headers[0]; i++) {
        assert_int_equal(proto_scan(slice_from(headers[i], 5), &len), PROTO_VERDICT_REFUSED);
        assert_int_equal(decode_bytes(fixture, headers[i], 5), STATUS_MALFORMED);
        buf_clear(&fixture->bytes);
        buf_append(&fixture->bytes, "\x94\x00\x07\xa4take\x81\xa3key", 13);
        buf_append(&fixture->bytes, headers[i], 5);
        assert_int_equal(proto_scan(buf_slice(&fixture->bytes), &len), PROTO_VERDICT_REFUSED);
        assert_int_equal(decode(fixture), STATUS_MALFORMED);
    }
}

/* I2 */
static void test_protocol__nesting_is_bounded(void **state)
{
    struct fixture *fixture = *state;
    size_t len = 0;
    uint8_t deep[10000];
    memset(deep, 0x91, sizeof deep);
    assert_int_equal(proto_scan(slice_from(deep, sizeof deep), &len), PROTO_VERDICT_REFUSED);
    deep[0] = 0x94;
    assert_int_equal(proto_scan(slice_from(deep, sizeof deep), &len), PROTO_VERDICT_REFUSED);
    for (unsigned nested = 0; nested < 10; nested++) {
        /* the message and its parameters are two */
        msgpack_packer packer = begin(fixture, "status", 1);
        pack_str(&packer, "later");
        for (unsigned i = 0; i < nested; i++) {
            msgpack_pack_array(&packer, 1);
        }
        msgpack_pack_nil(&packer);
        bool fits = nested + 2 <= PROTOCOL_DEPTH_MAX;
        assert_int_equal(proto_scan(buf_slice(&fixture->bytes), &len),
                         fits ? PROTO_VERDICT_WHOLE : PROTO_VERDICT_REFUSED);
        assert_int_equal(decode(fixture), fits ? STATUS_OK : STATUS_MALFORMED);
    }
}

/* I4: no id is known, so the connection is closed. */
static void test_protocol__what_has_no_id_is_malformed(void **state)
{
    struct fixture *fixture = *state;
    static const struct {
        const char *bytes;
        size_t len;
    } rows[] = {
        {"", 0},
        {"\xc1", 1},
        {"\xc0", 1},
        {"\x90", 1},
        {"\x80", 1},
        {"\x91\x00", 2},
        {"\x93\x02\xa4take\x80", 8},                                      /* a notification */
        {"\x94\x01\x07\xc0\x80", 5},                                      /* a reply */
        {"\x94\x02\x07\xa4take\x80", 9},                                  /* an unknown type */
        {"\x94\xa1\x30\x07\xa4take\x80", 10},                             /* type "0" */
        {"\x94\x00\x00\xa4take\x80", 9},                                  /* id 0 */
        {"\x94\x00\xff\xa4take\x80", 9},                                  /* id -1 */
        {"\x94\x00\xc0\xa4take\x80", 9},                                  /* id nil */
        {"\x94\x00\xc3\xa4take\x80", 9},                                  /* id true */
        {"\x94\x00\xa1\x37\xa4take\x80", 10},                             /* id "7" */
        {"\x94\x00\x90\xa4take\x80", 9},                                  /* id [] */
        {"\x94\x00\xca\x40\xe0\x00\x00\xa4take\x80", 13},                 /* id 7.0 */
        {"\x94\x00\xcf\x00\x00\x00\x01\x00\x00\x00\x00\xa4take\x80", 17}, /* id 2^32 */
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_int_equal(decode_bytes(fixture, rows[i].bytes, rows[i].len), STATUS_MALFORMED);
    }
}

static void test_protocol__what_has_an_id_is_answered(void **state)
{
    struct fixture *fixture = *state;
    static const struct {
        const char *bytes;
        size_t len;
        const char *field;
        enum status status;
    } rows[] = {
        {"\x92\x00\x07", 3, "request", STATUS_INVALID},
        {"\x95\x00\x07\xa4take\x80\x80", 10, "request", STATUS_INVALID},
        {"\x94\x00\x07\x05\x80", 5, "method", STATUS_INVALID},
        {"\x94\x00\x07\xc0\x80", 5, "method", STATUS_INVALID},
        {"\x94\x00\x07\xa4look\x80", 9, "method", STATUS_INCOMPATIBLE},
        {"\x94\x00\x07\xa4take\x90", 9, "parameters", STATUS_INVALID},
        {"\x94\x00\x07\xa4take\xc0", 9, "parameters", STATUS_INVALID},
        {"\x94\x00\x07\xa4take\x81\x05\x05", 11, "parameters", STATUS_INVALID},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_int_equal(decode_bytes(fixture, rows[i].bytes, rows[i].len), rows[i].status);
        assert_int_equal(fixture->request.id, 7);
        assert_string_equal(fixture->violation.field, rows[i].field);
    }
    /* The id has any width. */
    assert_int_equal(decode_bytes(fixture, "\x94\x00\xce\xff\xff\xff\xff\xa6status\x80", 15),
                     STATUS_OK);
    assert_int_equal(fixture->request.id, UINT32_MAX);
}

/* --- values (I6) */

enum value {
    VALUE_MINUS_ONE,
    VALUE_MIN_I64,
    VALUE_FLOAT_3_0,
    VALUE_FLOAT_3_5,
    VALUE_NAN,
    VALUE_TEXT_3,
    VALUE_TRUE,
    VALUE_NIL,
    VALUE_ARRAY,
    VALUE_MAP,
    VALUE_COUNT,
};

static const char *pack_value(msgpack_packer *packer, enum value value)
{
    switch (value) {
    case VALUE_MINUS_ONE:
        msgpack_pack_int(packer, -1);
        return "-1";
    case VALUE_MIN_I64:
        msgpack_pack_int64(packer, INT64_MIN);
        return "-9223372036854775808";
    case VALUE_FLOAT_3_0:
        msgpack_pack_double(packer, 3.0);
        return "a float";
    case VALUE_FLOAT_3_5:
        msgpack_pack_float(packer, 3.5F);
        return "a float";
    case VALUE_NAN:
        msgpack_pack_double(packer, __builtin_nan(""));
        return "a float";
    case VALUE_TEXT_3:
        pack_str(packer, "3");
        return "\"3\"";
    case VALUE_TRUE:
        msgpack_pack_true(packer);
        return "true";
    case VALUE_NIL:
        msgpack_pack_nil(packer);
        return "nil";
    case VALUE_ARRAY:
        msgpack_pack_array(packer, 0);
        return "an array";
    case VALUE_MAP:
        msgpack_pack_map(packer, 0);
        return "a map";
    case VALUE_COUNT:
        break;
    }
    abort();
}

static const struct {
    const char *method;
    const char *name;
    const char *rule;
    uint64_t max; /* that decoding lets through; the rest is judged by op_validate */
    uint64_t min;
} numbers[] = {
    {"take", "ttl_ms", RULE_TTL_MS, UINT64_MAX, 0},
    {"claim", "grace_ms", RULE_GRACE_MS, UINT64_MAX, 0},
    {"renew", "if_token", "must be a whole number in 0..18446744073709551615", UINT64_MAX, 0},
    {"renew_all", "set_version", "must be a whole number in 0..18446744073709551615", UINT64_MAX,
     0},
    {"list", "limit", PROTO_RULE_LIMIT, 1000, 1},
    {"status", "version", "must be a whole number in 0..4294967295", UINT32_MAX, 0},
    {"cluster_init", "token_floor", "must be a whole number in 0..18446744073709551615",
     UINT64_MAX, 0},
    {"cluster_transfer", "node_id", "must be a whole number in 0..18446744073709551615",
     UINT64_MAX, 0},
};

static void test_protocol__only_whole_numbers_are_numbers(void **state)
{
    struct fixture *fixture = *state;
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        for (int value = 0; value < VALUE_COUNT; value++) {
            msgpack_packer packer = begin(fixture, numbers[i].method, 1);
            pack_str(&packer, numbers[i].name);
            const char *words = pack_value(&packer, (enum value)value);
            assert_int_equal(decode(fixture), STATUS_INVALID);
            assert_string_equal(fixture->violation.field, numbers[i].name);
            assert_string_equal(fixture->violation.value, words);
            assert_string_equal(fixture->violation.rule, numbers[i].rule);
        }
    }
}

static void test_protocol__numbers_keep_their_value_or_are_refused(void **state)
{
    struct fixture *fixture = *state;
    static const uint64_t values[] = {0,          1,          1000,       1001,
                                      1ull << 31, 1ull << 32, 1ull << 63, UINT64_MAX};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        for (size_t j = 0; j < sizeof values / sizeof values[0]; j++) {
            bool token = strcmp(numbers[i].name, "if_token") == 0;
            msgpack_packer packer = begin(fixture, numbers[i].method, token ? 2 : 1);
            pack_str(&packer, numbers[i].name);
            msgpack_pack_uint64(&packer, values[j]);
            if (token) {
                pack_str(&packer, "key");
                pack_str(&packer, "k");
            }
            bool fits = values[j] >= numbers[i].min && values[j] <= numbers[i].max;
            assert_int_equal(decode(fixture), fits ? STATUS_OK : STATUS_INVALID);
            if (!fits) {
                assert_string_equal(fixture->violation.rule, numbers[i].rule);
                continue;
            }
            const struct proto_request *request = &fixture->request;
            uint64_t got[] = {request->op.ttl_ms,
                              request->op.grace_ms,
                              token ? request->op.keys[0].if_token : 0,
                              request->op.set_version,
                              request->limit,
                              request->client_version,
                              request->token_floor,
                              request->node_id};
            assert_true(got[i] == values[j]);
        }
    }
}

/* T5: a value that never gets into the struct is refused in the words of one that does. */
static void test_protocol__a_refusal_has_the_words_of_validation(void **state)
{
    struct fixture *fixture = *state;
    struct violation validated;
    const struct key_item item = {.key = slice_text("k")};
    struct op op = {.kind = OP_KIND_TAKE,
                    .ns = slice_text("default"),
                    .owner = slice_text("o"),
                    .ttl_ms = 9,
                    .keys = &item,
                    .key_count = 1};
    assert_int_equal(op_validate(&op, &validated), STATUS_INVALID);
    msgpack_packer packer = begin(fixture, "take", 1);
    pack_str(&packer, "ttl_ms");
    msgpack_pack_double(&packer, 9.0);
    assert_int_equal(decode(fixture), STATUS_INVALID);
    assert_string_equal(fixture->violation.field, validated.field);
    assert_string_equal(fixture->violation.rule, validated.rule);

    static const char *const names[] = {"ns", "owner", "key", "meta", "identity"};
    static const char *const rules[] = {RULE_NAMESPACE, RULE_OWNER, RULE_KEY, RULE_META,
                                        RULE_IDENTITY};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        packer = begin(fixture, "take", 1);
        pack_str(&packer, names[i]);
        msgpack_pack_int(&packer, 5);
        assert_int_equal(decode(fixture), STATUS_INVALID);
        assert_string_equal(fixture->violation.rule, rules[i]);
        assert_string_equal(fixture->violation.value, "5");
    }
}

static void test_protocol__flags_and_states_are_words_of_their_own(void **state)
{
    struct fixture *fixture = *state;
    static const char *const flags[] = {"destroy", "adopt", "reestablish"};
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
        msgpack_packer packer = begin(fixture, "claim", 1);
        pack_str(&packer, flags[i]);
        msgpack_pack_int(&packer, 1);
        assert_int_equal(decode(fixture), STATUS_INVALID);
        assert_string_equal(fixture->violation.rule, "must be true or false");
    }
    static const char *const states[] = {"own", "del", "OWN", "", "any"};
    for (size_t i = 0; i < sizeof states / sizeof states[0]; i++) {
        msgpack_packer packer = begin(fixture, "list", 1);
        pack_str(&packer, "state");
        pack_str(&packer, states[i]);
        assert_int_equal(decode(fixture), i < 2 ? STATUS_OK : STATUS_INVALID);
    }
}

static void test_protocol__a_deadline_is_at_most_a_minute_ahead(void **state)
{
    struct fixture *fixture = *state;
    const uint64_t last_ns = NOW_NS + ms_to_ns(DEADLINE_MS_MAX);
    const struct {
        uint64_t deadline_ns;
        enum status status;
    } rows[] = {
        {0, STATUS_INVALID},           {1, STATUS_OK}, /* has passed: the caller says so */
        {NOW_NS, STATUS_OK},           {last_ns, STATUS_OK},
        {last_ns + 1, STATUS_INVALID}, {UINT64_MAX, STATUS_INVALID},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        msgpack_packer packer = begin(fixture, "status", 1);
        pack_str(&packer, "deadline_ns");
        msgpack_pack_uint64(&packer, rows[i].deadline_ns);
        assert_int_equal(decode(fixture), rows[i].status);
    }
}

/* --- names */

static void test_protocol__a_name_that_stands_twice_is_refused(void **state)
{
    struct fixture *fixture = *state;
    static const char *const names[] = {"owner", "key", "meta", "unheard_of"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        msgpack_packer packer = begin(fixture, "take", 2);
        for (int twice = 0; twice < 2; twice++) {
            pack_str(&packer, names[i]);
            pack_str(&packer, "same");
        }
        assert_int_equal(decode(fixture), STATUS_INVALID);
        assert_string_equal(fixture->violation.rule, "must be named once");
    }
    msgpack_packer packer = begin(fixture, "renew", 1);
    pack_str(&packer, "keys");
    msgpack_pack_array(&packer, 1);
    msgpack_pack_map(&packer, 2);
    for (int twice = 0; twice < 2; twice++) {
        pack_str(&packer, "key");
        pack_str(&packer, "same");
    }
    assert_int_equal(decode(fixture), STATUS_INVALID);
    assert_string_equal(fixture->violation.rule, "must be named once");
}

/* U6 */
static void test_protocol__unknown_names_are_ignored_unless_they_insist(void **state)
{
    struct fixture *fixture = *state;
    msgpack_packer packer = begin(fixture, "take", 2);
    pack_str(&packer, "colour");
    msgpack_pack_map(&packer, 1);
    msgpack_pack_nil(&packer);
    msgpack_pack_double(&packer, 0.5);
    pack_str(&packer, "ttl_ms");
    msgpack_pack_int(&packer, 10);
    assert_int_equal(decode(fixture), STATUS_OK);
    assert_int_equal(fixture->request.op.ttl_ms, 10);

    packer = begin(fixture, "take", 2);
    pack_str(&packer, "version");
    msgpack_pack_int(&packer, 2);
    pack_str(&packer, "!colour");
    msgpack_pack_nil(&packer);
    assert_int_equal(decode(fixture), STATUS_INCOMPATIBLE);
    assert_int_equal(fixture->request.id, 7);
    assert_int_equal(fixture->request.client_version, 2);
    assert_string_equal(fixture->violation.value, "!colour");
    assert_string_equal(fixture->violation.rule,
                        "is required by the caller and unknown to protocol version 1");

    packer = begin(fixture, "renew", 1);
    pack_str(&packer, "keys");
    msgpack_pack_array(&packer, 1);
    msgpack_pack_map(&packer, 1);
    pack_str(&packer, "!colour");
    msgpack_pack_nil(&packer);
    assert_int_equal(decode(fixture), STATUS_INCOMPATIBLE);
}

static void test_protocol__parameters_stand_where_they_mean_something(void **state)
{
    struct fixture *fixture = *state;
    static const struct {
        const char *method;
        const char *name;
        const char *field;
    } rows[] = {
        {"take", "stale", "stale"},
        {"take", "limit", "limit"},
        {"count", "limit", "limit"},
        {"count", "after", "after"},
        {"owner", "if_token", "if_token"},
        {"owner", "owner", "owner"},
        {"list", "ttl_ms", "ttl_ms"},
        {"status", "ns", "namespace"},
        {"cluster_init", "key", "key"},
        {"list", "keys", "keys"},
        {"cluster_init", "node_id", "node_id"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        msgpack_packer packer = begin(fixture, rows[i].method, 1);
        pack_str(&packer, rows[i].name);
        msgpack_pack_int(&packer, 1);
        assert_int_equal(decode(fixture), STATUS_INVALID);
        assert_string_equal(fixture->violation.field, rows[i].field);
        assert_string_equal(fixture->violation.rule, RULE_NOT_HERE);
    }
}

static void test_protocol__at_most_64_parameters(void **state)
{
    struct fixture *fixture = *state;
    for (int count = 64; count <= 65; count++) {
        msgpack_packer packer = begin(fixture, "status", (size_t)count);
        for (int i = 0; i < count; i++) {
            char name[24];
            (void)snprintf(name, sizeof name, "name-%d", i);
            pack_str(&packer, name);
            msgpack_pack_nil(&packer);
        }
        assert_int_equal(decode(fixture), count <= 64 ? STATUS_OK : STATUS_INVALID);
    }
}

/* --- keys (I7) */

static void test_protocol__key_and_keys_exclude_each_other(void **state)
{
    struct fixture *fixture = *state;
    msgpack_packer packer = begin(fixture, "renew", 2);
    pack_str(&packer, "key");
    pack_str(&packer, "a");
    pack_str(&packer, "keys");
    msgpack_pack_array(&packer, 0);
    assert_int_equal(decode(fixture), STATUS_INVALID);
    assert_string_equal(fixture->violation.field, "keys");

    packer = begin(fixture, "renew", 2);
    pack_str(&packer, "keys");
    msgpack_pack_array(&packer, 1);
    pack_str(&packer, "a");
    pack_str(&packer, "if_token");
    msgpack_pack_int(&packer, 1);
    assert_int_equal(decode(fixture), STATUS_INVALID);
    assert_string_equal(fixture->violation.field, "if_token");
}

static void test_protocol__keys_are_0_to_10000(void **state)
{
    struct fixture *fixture = *state;
    static const uint32_t counts[] = {0, 1, 2, 10000, 10001};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        msgpack_packer packer = begin(fixture, "renew", 1);
        pack_str(&packer, "keys");
        msgpack_pack_array(&packer, counts[i]);
        for (uint32_t key = 0; key < counts[i]; key++) {
            msgpack_pack_map(&packer, 2);
            pack_str(&packer, "key");
            pack_str(&packer, "same");
            pack_str(&packer, "if_token");
            msgpack_pack_uint32(&packer, key);
        }
        size_t len = 0;
        assert_int_equal(proto_scan(buf_slice(&fixture->bytes), &len), PROTO_VERDICT_WHOLE);
        bool fits = counts[i] <= KEYS_MAX;
        assert_int_equal(decode(fixture), fits ? STATUS_OK : STATUS_INVALID);
        if (!fits) {
            assert_string_equal(fixture->violation.field, "keys");
            assert_string_equal(fixture->violation.value, "10001");
            assert_string_equal(fixture->violation.rule, RULE_KEYS);
            continue;
        }
        assert_int_equal(fixture->request.op.key_count, counts[i]);
        for (uint32_t key = 0; key < counts[i]; key++) {
            assert_int_equal(fixture->request.op.keys[key].if_token, key);
        }
    }
}

static void test_protocol__one_bad_key_spoils_the_request(void **state)
{
    struct fixture *fixture = *state;
    msgpack_packer packer = begin(fixture, "renew", 1);
    pack_str(&packer, "keys");
    msgpack_pack_array(&packer, 3);
    pack_str(&packer, "a");
    msgpack_pack_int(&packer, 5);
    pack_str(&packer, "b");
    assert_int_equal(decode(fixture), STATUS_INVALID);
    assert_string_equal(fixture->violation.field, "key");
    assert_string_equal(fixture->violation.rule, RULE_KEY);
}

static void test_protocol__texts_come_as_str_or_bin(void **state)
{
    struct fixture *fixture = *state;
    msgpack_packer packer = begin(fixture, "take", 2);
    msgpack_pack_bin_with_body(&packer, "key", 3);
    msgpack_pack_bin_with_body(&packer, "sbx", 3);
    pack_str(&packer, "meta");
    pack_str(&packer, "text");
    assert_int_equal(decode(fixture), STATUS_OK);
    assert_true(slice_equal(fixture->request.op.keys[0].key, slice_text("sbx")));
    assert_true(slice_equal(fixture->request.op.keys[0].meta, slice_text("text")));
}

/* --- replies */

static void test_protocol__an_outcome_has_its_own_position(void **state)
{
    struct fixture *fixture = *state;
    size_t count = 0;
    const struct proto_reply *sample = &reply_samples(&count)[1].reply;
    proto_encode_reply(sample, &fixture->bytes);
    assert_int_equal(proto_decode_reply(fixture->decoder, buf_slice(&fixture->bytes),
                                        PROTO_METHOD_CLAIM, &fixture->reply),
                     STATUS_OK);
    assert_int_equal(fixture->reply.outcome_count, sample->outcome_count);
    for (uint32_t i = 0; i < sample->outcome_count; i++) {
        const struct keyed_outcome *sent = &sample->outcomes[i];
        const struct keyed_outcome *got = &fixture->reply.outcomes[i];
        assert_int_equal(got->outcome.kind, sent->outcome.kind);
        assert_int_equal(got->outcome.token, sent->outcome.token);
        assert_int_equal(got->outcome.expiry_ms, sent->outcome.expiry_ms);
        assert_int_equal(got->outcome.held_before, sent->outcome.held_before);
        assert_true(slice_equal(got->outcome.holder.owner, sent->outcome.holder.owner));
        assert_int_equal(got->outcome.holder.state, sent->outcome.holder.state);
        assert_int_equal(got->outcome.holder.token, sent->outcome.holder.token);
        assert_int_equal(got->outcome.holder.ms_left, sent->outcome.holder.ms_left);
        assert_int_equal(got->outcome.grace_ms_left, sent->outcome.grace_ms_left);
        assert_int_equal(got->outcome.limit, sent->outcome.limit);
        assert_int_equal(got->position.index, sent->position.index);
        assert_int_equal(got->position.place, sent->position.place);
        assert_int_equal(got->clock_ms, sent->clock_ms);
    }
}

static void test_protocol__every_status_travels(void **state)
{
    struct fixture *fixture = *state;
    for (int i = STATUS_OK + 1; i < STATUS_COUNT; i++) {
        struct proto_reply reply = {.id = 1, .method = PROTO_METHOD_TAKE, .status = (enum status)i};
        buf_clear(&fixture->bytes);
        proto_encode_reply(&reply, &fixture->bytes);
        assert_int_equal(proto_decode_reply(fixture->decoder, buf_slice(&fixture->bytes),
                                            PROTO_METHOD_TAKE, &fixture->reply),
                         STATUS_OK);
        assert_int_equal(fixture->reply.status, i);
    }
}

static enum status decode_error(struct fixture *fixture, const char *code, const char *name)
{
    msgpack_packer packer;
    buf_clear(&fixture->bytes);
    msgpack_packer_init(&packer, &fixture->bytes, buf_write_cb);
    msgpack_pack_array(&packer, 4);
    msgpack_pack_int(&packer, 1);
    msgpack_pack_int(&packer, 1);
    msgpack_pack_map(&packer, 3);
    pack_str(&packer, "code");
    pack_str(&packer, code);
    pack_str(&packer, "status");
    pack_str(&packer, name);
    pack_str(&packer, "message");
    pack_str(&packer, "the moon is full");
    msgpack_pack_nil(&packer);
    assert_int_equal(proto_decode_reply(fixture->decoder, buf_slice(&fixture->bytes),
                                        PROTO_METHOD_TAKE, &fixture->reply),
                     STATUS_OK);
    return fixture->reply.status;
}

/* U6: a newer node's words; P8: what is not known is never called "not done". */
static void test_protocol__an_unknown_status_is_judged_by_its_code(void **state)
{
    struct fixture *fixture = *state;
    assert_int_equal(status_class(decode_error(fixture, "UNAVAILABLE", "MOON")),
                     STATUS_CLASS_NOT_DONE);
    assert_true(slice_equal(fixture->reply.detail, slice_text("the moon is full")));
    assert_int_equal(decode_error(fixture, "UNKNOWN", "MOON"), STATUS_UNKNOWN);
    assert_int_equal(decode_error(fixture, "INVALID", "MOON"), STATUS_INVALID);
    assert_int_equal(decode_error(fixture, "DENIED", "MOON"), STATUS_DENIED);
    assert_int_equal(decode_error(fixture, "INCOMPATIBLE", "MOON"), STATUS_INCOMPATIBLE);
    assert_int_equal(decode_error(fixture, "INTERNAL", "MOON"), STATUS_INTERNAL);
    assert_int_equal(decode_error(fixture, "TIDE", "MOON"), STATUS_UNKNOWN);
    /* a name of another code is not believed */
    assert_int_equal(decode_error(fixture, "UNKNOWN", "NO_LEADER"), STATUS_UNKNOWN);
}

static void test_protocol__a_reply_is_never_longer_than_was_promised(void **state)
{
    struct fixture *fixture = *state;
    static uint8_t longest[META_LEN_MAX];
    memset(longest, 'x', sizeof longest);
    struct key_item items[3];
    struct keyed_outcome outcomes[3];
    struct lease_view leases[3];
    for (size_t i = 0; i < 3; i++) {
        items[i] = (struct key_item){.key = slice_from(longest, KEY_LEN_MAX)};
        outcomes[i] = (struct keyed_outcome){
            .outcome = {.kind = OUTCOME_KIND_REESTABLISHED,
                        .token = UINT64_MAX,
                        .expiry_ms = UINT64_MAX,
                        .held_before = true,
                        .holder = {.owner = slice_from(longest, OWNER_LEN_MAX),
                                   .state = LEASE_STATE_OWN,
                                   .token = UINT64_MAX,
                                   .ms_left = UINT64_MAX},
                        .limit = LIMIT_KIND_LEASES_PER_NAMESPACE},
            .position = {.index = UINT64_MAX, .place = UINT32_MAX},
            .clock_ms = 1ull << 40};
        leases[i] = (struct lease_view){.ns = slice_from(longest, NAMESPACE_LEN_MAX),
                                        .key = slice_from(longest, KEY_LEN_MAX),
                                        .owner = slice_from(longest, OWNER_LEN_MAX),
                                        .state = LEASE_STATE_DEL,
                                        .ttl_ms = UINT64_MAX,
                                        .expiry_ms = UINT64_MAX,
                                        .token = UINT64_MAX,
                                        .since_ms = UINT64_MAX,
                                        .meta = slice_from(longest, META_LEN_MAX),
                                        .identity = slice_from(longest, IDENTITY_LEN_MAX)};
    }
    struct proto_reply reply = {.id = UINT32_MAX, .stale = true, .more = true};
    struct proto_request request = {.op = {.keys = items, .key_count = 3}, .limit = 3};
    reply.outcomes = outcomes;
    reply.outcome_count = 3;
    reply.leases = leases;
    reply.lease_count = 3;
    static const enum proto_method methods[] = {PROTO_METHOD_RENEW, PROTO_METHOD_OWNER,
                                                PROTO_METHOD_LIST, PROTO_METHOD_COUNT};
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++) {
        reply.method = methods[i];
        request.method = methods[i];
        buf_clear(&fixture->bytes);
        proto_encode_reply(&reply, &fixture->bytes);
        assert_true(fixture->bytes.len <= proto_reply_len_max(&request));
    }
    struct proto_reply error = {.id = UINT32_MAX, .status = STATUS_INVALID};
    violation_set(&error.violation, "namespace", slice_from(longest, sizeof longest),
                  "must be a duration of some kind that is described at length in this text here");
    buf_clear(&fixture->bytes);
    proto_encode_reply(&error, &fixture->bytes);
    assert_true(fixture->bytes.len <= proto_reply_len_max(&request));
}

/* The largest batch and its reply are within what both ends accept. */
static void test_protocol__the_largest_batch_fits_a_message(void **state)
{
    struct fixture *fixture = *state;
    struct keyed_outcome *outcomes = calloc(KEYS_MAX, sizeof *outcomes);
    assert_non_null(outcomes);
    for (uint32_t i = 0; i < KEYS_MAX; i++) {
        outcomes[i].outcome = (struct outcome){.kind = OUTCOME_KIND_STALE,
                                               .holder = {.owner = slice_text("host:1"),
                                                          .state = LEASE_STATE_OWN,
                                                          .token = UINT64_MAX}};
        outcomes[i].position.index = 1ull << 40;
        outcomes[i].clock_ms = i;
    }
    struct proto_reply reply = {
        .id = 1, .method = PROTO_METHOD_RENEW, .outcomes = outcomes, .outcome_count = KEYS_MAX};
    proto_encode_reply(&reply, &fixture->bytes);
    assert_true(fixture->bytes.len <= MESSAGE_LEN_MAX);
    size_t len = 0;
    assert_int_equal(proto_scan(buf_slice(&fixture->bytes), &len), PROTO_VERDICT_WHOLE);
    assert_int_equal(proto_decode_reply(fixture->decoder, buf_slice(&fixture->bytes),
                                        PROTO_METHOD_RENEW, &fixture->reply),
                     STATUS_OK);
    assert_int_equal(fixture->reply.outcome_count, KEYS_MAX);
    assert_int_equal(fixture->reply.outcomes[KEYS_MAX - 1].clock_ms, KEYS_MAX - 1);
    free(outcomes);
}

static void test_protocol__methods_are_those_of_the_state_machine(void **state)
{
    (void)state;
    for (int i = PROTO_METHOD_TAKE; i <= PROTO_METHOD_PURGE; i++) {
        assert_string_equal(proto_method_name((enum proto_method)i),
                            op_kind_name((enum op_kind)(i - 1)));
    }
}

static void test_protocol__administrators_methods_are_known(void **state)
{
    (void)state;
    for (int i = PROTO_METHOD_HELLO; i <= PROTO_METHOD_CLUSTER_TRANSFER; i++) {
        bool admin = i == PROTO_METHOD_PURGE || i == PROTO_METHOD_CLUSTER_INIT ||
                     i == PROTO_METHOD_CLUSTER_TRANSFER;
        assert_int_equal(proto_method_admin((enum proto_method)i), admin);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(test_protocol__##name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(requests_have_their_golden_bytes),
        TEST(replies_have_their_golden_bytes),
        TEST(every_field_of_a_request_arrives),
        TEST(what_is_left_out_has_its_default),
        TEST(a_part_of_a_message_asks_for_more),
        TEST(changed_bytes_never_do_harm),
        TEST(a_header_that_claims_billions_costs_nothing),
        TEST(nesting_is_bounded),
        TEST(what_has_no_id_is_malformed),
        TEST(what_has_an_id_is_answered),
        TEST(only_whole_numbers_are_numbers),
        TEST(numbers_keep_their_value_or_are_refused),
        TEST(a_refusal_has_the_words_of_validation),
        TEST(flags_and_states_are_words_of_their_own),
        TEST(a_deadline_is_at_most_a_minute_ahead),
        TEST(a_name_that_stands_twice_is_refused),
        TEST(unknown_names_are_ignored_unless_they_insist),
        TEST(parameters_stand_where_they_mean_something),
        TEST(at_most_64_parameters),
        TEST(key_and_keys_exclude_each_other),
        TEST(keys_are_0_to_10000),
        TEST(one_bad_key_spoils_the_request),
        TEST(texts_come_as_str_or_bin),
        TEST(an_outcome_has_its_own_position),
        TEST(every_status_travels),
        TEST(an_unknown_status_is_judged_by_its_code),
        TEST(a_reply_is_never_longer_than_was_promised),
        TEST(the_largest_batch_fits_a_message),
        TEST(methods_are_those_of_the_state_machine),
        TEST(administrators_methods_are_known),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
