/* Round trips of results, their upper bound, malformed ones, and the words of the protocol. */
#include "fsm/result.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <cmocka.h>

#include "tests/fsm/samples.h"

static void assert_outcome_equal(const struct outcome *a, const struct outcome *b)
{
    assert_int_equal(a->kind, b->kind);
    assert_int_equal(a->token, b->token);
    assert_int_equal(a->expiry_ms, b->expiry_ms);
    assert_int_equal(a->held_before, b->held_before);
    assert_true((a->holder.owner.base == NULL) == (b->holder.owner.base == NULL));
    assert_true(slice_equal(a->holder.owner, b->holder.owner));
    assert_int_equal(a->holder.state, b->holder.state);
    assert_int_equal(a->holder.token, b->holder.token);
    assert_int_equal(a->holder.ms_left, b->holder.ms_left);
    assert_int_equal(a->grace_ms_left, b->grace_ms_left);
    assert_int_equal(a->limit, b->limit);
}

static void assert_result_equal(const struct result *a, const struct result *b)
{
    assert_int_equal(a->status, b->status);
    assert_int_equal(a->kind, b->kind);
    assert_int_equal(a->position.index, b->position.index);
    assert_int_equal(a->position.place, b->position.place);
    assert_int_equal(a->clock_ms, b->clock_ms);
    assert_int_equal(a->count, b->count);
    assert_int_equal(a->set_version, b->set_version);
    assert_int_equal(a->list_again, b->list_again);
    assert_int_equal(a->origin, b->origin);
    assert_int_equal(a->settled_applied, b->settled_applied);
    assert_int_equal(a->settled_ended, b->settled_ended);
    assert_int_equal(a->outcome_count, b->outcome_count);
    for (uint32_t i = 0; i < a->outcome_count; i++) {
        assert_outcome_equal(&a->outcomes[i], &b->outcomes[i]);
    }
    assert_int_equal(a->departure_count, b->departure_count);
    for (uint32_t i = 0; i < a->departure_count; i++) {
        assert_true(slice_equal(a->departures[i].key, b->departures[i].key));
        assert_int_equal(a->departures[i].token, b->departures[i].token);
        assert_int_equal(a->departures[i].reason, b->departures[i].reason);
    }
}

static void test_result__every_sample_survives_a_round_trip(void **state)
{
    (void)state;
    struct result_decoder *decoder = result_decoder_create();
    struct buf bytes;
    buf_init(&bytes, MESSAGE_LEN_MAX);
    size_t count = 0;
    const struct sample_result *samples = sample_results(&count);
    for (size_t i = 0; i < count; i++) {
        buf_clear(&bytes);
        result_encode(&samples[i].result, &bytes);
        struct result result;
        assert_int_equal(result_decode(decoder, buf_slice(&bytes), &result), STATUS_OK);
        assert_result_equal(&result, &samples[i].result);
    }
    buf_deinit(&bytes);
    result_decoder_destroy(decoder);
}

static void test_result__no_result_is_longer_than_its_bound(void **state)
{
    (void)state;
    static char owner[OWNER_LEN_MAX];
    static struct outcome outcomes[KEYS_MAX];
    memset(owner, 'o', sizeof owner);
    for (size_t i = 0; i < KEYS_MAX; i++) {
        outcomes[i] = (struct outcome){
            .kind = OUTCOME_KIND_GRANTED,
            .token = UINT64_MAX,
            .expiry_ms = UINT64_MAX,
            .held_before = true,
            .holder = {.owner = slice_from(owner, sizeof owner), .state = LEASE_STATE_DEL,
                       .token = UINT64_MAX, .ms_left = UINT64_MAX}};
    }
    static const uint32_t counts[] = {1, 15, 16, 300, KEYS_MAX};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        struct op op = {.kind = OP_KIND_CLAIM, .key_count = counts[i]};
        struct result result = {.kind = OP_KIND_CLAIM,
                                .position = {UINT64_MAX, POSITION_PLACE_END},
                                .clock_ms = UINT64_MAX, .outcomes = outcomes,
                                .outcome_count = counts[i]};
        struct buf bytes;
        buf_init(&bytes, MESSAGE_LEN_MAX);
        result_encode(&result, &bytes);
        assert_false(buf_overflown(&bytes));
        assert_true(bytes.len <= result_len_max(&op));
        buf_deinit(&bytes);
    }
}

static void test_result__the_most_departures_stay_below_the_bound(void **state)
{
    (void)state;
    static char key[KEY_LEN_MAX];
    static struct departure departures[DEPARTURES_MAX_MAX];
    memset(key, 'k', sizeof key);
    for (size_t i = 0; i < DEPARTURES_MAX_MAX; i++) {
        departures[i] = (struct departure){.key = slice_from(key, sizeof key),
                                           .token = UINT64_MAX, .reason = END_REASON_TEARDOWN};
    }
    struct op op = {.kind = OP_KIND_RENEW_ALL};
    struct result result = {.kind = OP_KIND_RENEW_ALL, .count = UINT64_MAX,
                            .set_version = UINT64_MAX, .departures = departures,
                            .departure_count = DEPARTURES_MAX_MAX};
    struct buf bytes;
    buf_init(&bytes, MESSAGE_LEN_MAX);
    result_encode(&result, &bytes);
    assert_false(buf_overflown(&bytes));
    assert_true(bytes.len <= result_len_max(&op));
    assert_true(result_len_max(&op) < UNCONFIRMED_LEN_MAX);
    struct result_decoder *decoder = result_decoder_create();
    struct result decoded;
    assert_int_equal(result_decode(decoder, buf_slice(&bytes), &decoded), STATUS_OK);
    assert_result_equal(&decoded, &result);
    result_decoder_destroy(decoder);
    buf_deinit(&bytes);
}

static void test_result__short_results_have_short_bounds(void **state)
{
    (void)state;
    struct buf bytes;
    buf_init(&bytes, MESSAGE_LEN_MAX);
    size_t count = 0;
    const struct sample_result *samples = sample_results(&count);
    for (size_t i = 0; i < count; i++) {
        struct op op = {.kind = samples[i].result.kind,
                        .key_count = samples[i].result.outcome_count};
        buf_clear(&bytes);
        result_encode(&samples[i].result, &bytes);
        assert_true(bytes.len <= result_len_max(&op));
    }
    buf_deinit(&bytes);
    struct op op = {.kind = OP_KIND_TAKE, .key_count = 1};
    assert_true(result_len_max(&op) < 512);
}

static enum status decode_bytes(const void *bytes, size_t len)
{
    struct result_decoder *decoder = result_decoder_create();
    struct result result;
    enum status st = result_decode(decoder, slice_from(bytes, len), &result);
    result_decoder_destroy(decoder);
    return st;
}

static void test_result__malformed_bytes_are_refused(void **state)
{
    (void)state;
    static const uint8_t fine[] = {0x96, 0, 5, 1, 0, 1, 0x91, 0x91, 9}; /* release: RELEASED */
    assert_int_equal(decode_bytes(fine, sizeof fine), STATUS_OK);
    static const uint8_t status_6[] = {0x95, 6, 5, 1, 0, 1};
    assert_int_equal(decode_bytes(status_6, sizeof status_6), STATUS_OK);
    static const uint8_t status_7[] = {0x95, 7, 5, 1, 0, 1};
    assert_int_equal(decode_bytes(status_7, sizeof status_7), STATUS_MALFORMED);
    static const uint8_t kind_15[] = {0x95, 1, 15, 1, 0, 1};
    assert_int_equal(decode_bytes(kind_15, sizeof kind_15), STATUS_MALFORMED);
    static const uint8_t outcome_15[] = {0x96, 0, 5, 1, 0, 1, 0x91, 0x91, 15};
    assert_int_equal(decode_bytes(outcome_15, sizeof outcome_15), STATUS_MALFORMED);
    static const uint8_t outcome_long[] = {0x96, 0, 5, 1, 0, 1, 0x91, 0x92, 9, 0};
    assert_int_equal(decode_bytes(outcome_long, sizeof outcome_long), STATUS_MALFORMED);
    static const uint8_t body_with_error[] = {0x96, 1, 5, 1, 0, 1, 0x90};
    assert_int_equal(decode_bytes(body_with_error, sizeof body_with_error), STATUS_MALFORMED);
    static const uint8_t state_3[] = {0x96, 0, 1, 1, 0, 1, 0x91, 0x92, 2,
                                      0x94, 0xc4, 1, 'o', 3, 1, 1};
    assert_int_equal(decode_bytes(state_3, sizeof state_3), STATUS_MALFORMED);
    static const uint8_t owner_empty[] = {0x96, 0, 1, 1, 0, 1, 0x91, 0x92, 2,
                                          0x94, 0xc4, 0, 1, 1, 1};
    assert_int_equal(decode_bytes(owner_empty, sizeof owner_empty), STATUS_MALFORMED);
    static const uint8_t limit_3[] = {0x96, 0, 1, 1, 0, 1, 0x91, 0x92, 13, 3};
    assert_int_equal(decode_bytes(limit_3, sizeof limit_3), STATUS_MALFORMED);
    static const uint8_t reason_9[] = {0x99, 0, 6, 1, 0, 1, 0, 0, 0xc2, 0x91,
                                       0x93, 0xc4, 1, 'k', 1, 9};
    assert_int_equal(decode_bytes(reason_9, sizeof reason_9), STATUS_MALFORMED);
    static const uint8_t place_wide[] = {0x95, 1, 5, 1, 0xcf, 0, 0, 0, 1, 0, 0, 0, 0, 1};
    assert_int_equal(decode_bytes(place_wide, sizeof place_wide), STATUS_MALFORMED);
    static const uint8_t huge[] = {0x96, 0, 5, 1, 0, 1, 0xdd, 0xff, 0xff, 0xff, 0xff};
    assert_int_equal(decode_bytes(huge, sizeof huge), STATUS_MALFORMED);
}

static void test_result__words_of_the_protocol(void **state)
{
    (void)state;
    static const char *const outcomes[] = {
        "GRANTED", "HELD", "TEARDOWN", "GRACE", "RENEWED", "LAPSED", "LOST", "REESTABLISHED",
        "RELEASED", "NOT_OWNER", "STALE", "MISMATCH", "UNAVAILABLE", "UNKNOWN"};
    for (size_t i = 0; i < sizeof outcomes / sizeof outcomes[0]; i++) {
        enum outcome_kind kind;
        assert_string_equal(outcome_kind_name((enum outcome_kind)(i + 1)), outcomes[i]);
        assert_true(outcome_kind_of(slice_text(outcomes[i]), &kind));
        assert_int_equal(kind, i + 1);
    }
    static const char *const reasons[] = {"released", "expired", "taken", "settled",
                                          "purged", "restored", "teardown"};
    for (size_t i = 0; i < sizeof reasons / sizeof reasons[0]; i++) {
        enum end_reason reason;
        assert_string_equal(end_reason_name((enum end_reason)(i + 1)), reasons[i]);
        assert_true(end_reason_of(slice_text(reasons[i]), &reason));
        assert_int_equal(reason, i + 1);
    }
    assert_string_equal(lease_state_name(LEASE_STATE_OWN), "own");
    assert_string_equal(lease_state_name(LEASE_STATE_DEL), "del");
    assert_string_equal(limit_kind_name(LIMIT_KIND_NONE), "none");
    assert_string_equal(limit_kind_name(LIMIT_KIND_LEASES), "leases");
    assert_string_equal(limit_kind_name(LIMIT_KIND_LEASES_PER_NAMESPACE), "leases_per_namespace");
}

static void test_result__other_words_mean_nothing(void **state)
{
    (void)state;
    static const char *const words[] = {"", "granted", "GRANTE", "RELEASED ", "regranted"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        enum outcome_kind kind = OUTCOME_KIND_HELD;
        enum end_reason reason;
        enum lease_state lease;
        enum limit_kind limit;
        assert_false(outcome_kind_of(slice_text(words[i]), &kind));
        assert_int_equal(kind, OUTCOME_KIND_HELD);
        assert_false(end_reason_of(slice_text(words[i]), &reason));
        assert_false(lease_state_of(slice_text(words[i]), &lease));
        assert_false(limit_kind_of(slice_text(words[i]), &limit));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_result__every_sample_survives_a_round_trip),
        cmocka_unit_test(test_result__no_result_is_longer_than_its_bound),
        cmocka_unit_test(test_result__the_most_departures_stay_below_the_bound),
        cmocka_unit_test(test_result__short_results_have_short_bounds),
        cmocka_unit_test(test_result__malformed_bytes_are_refused),
        cmocka_unit_test(test_result__words_of_the_protocol),
        cmocka_unit_test(test_result__other_words_mean_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
