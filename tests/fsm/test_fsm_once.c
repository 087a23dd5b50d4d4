/* Exactly once: repeats, confirmation, unknown origins, void numbers, settling, and the bounds of
 * what is kept (hazards R1, R2, R8, D12). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#include "tests/fsm/driver.h"

static int setup(void **state)
{
    *state = driver_create(NULL);
    return 0;
}

static int teardown(void **state)
{
    driver_destroy(*state);
    return 0;
}

static struct op take_op(const char *owner, const char *key, struct key_item *item)
{
    return driver_op(OP_KIND_TAKE, &(struct ask){.owner = owner, .key = key}, item);
}

static uint64_t open_origin(struct driver *driver)
{
    struct result result = driver_run(driver, &(struct op){.kind = OP_KIND_OPEN_ORIGIN});
    assert_int_equal(result.status, STATUS_OK);
    return result.origin;
}

static uint64_t outcomes(const struct driver *driver)
{
    struct fsm_stats stats;
    fsm_stats(driver->fsm, &stats);
    return stats.outcomes;
}

/* R1: A takes, the reply is lost, B takes, A's node sends the same number again. */
static void test_once__a_repeated_take_steals_nothing_back(void **state)
{
    struct driver *driver = *state;
    struct key_item item;
    struct op op = take_op("A", "k", &item);
    struct result first = driver_run(driver, &op);
    struct outcome granted = first.outcomes[0];
    uint64_t sequence = driver->sequence;
    struct position position = first.position;
    (void)TAKE(driver, .owner = "B", .key = "k");
    driver->clock_ms += 5;
    struct result again = driver_repeat(driver, &op, sequence);
    assert_int_equal(again.status, STATUS_OK);
    assert_int_equal(again.position.index, position.index);
    assert_int_equal(again.clock_ms, 0);
    assert_true(again.outcomes[0].token == granted.token);
    struct lease_view view;
    assert_true(driver_owner(driver, "k", &view));
    assert_true(slice_equal(view.owner, slice_text("B")));
    assert_int_equal(RENEW(driver, .owner = "A", .key = "k").kind, OUTCOME_KIND_LOST);
}

static void test_once__a_repeat_is_answered_with_the_same_bytes_also_from_a_snapshot(void **state)
{
    struct driver *driver = *state;
    struct key_item item;
    struct op op = take_op("A", "k", &item);
    (void)driver_run(driver, &op);
    uint8_t bytes[256];
    size_t len = driver->bytes.len;
    assert_true(len <= sizeof bytes);
    memcpy(bytes, driver->bytes.base, len);
    struct fsm *loaded = driver_round_trip(driver);
    fsm_destroy(driver->fsm);
    driver->fsm = loaded;
    (void)driver_repeat(driver, &op, driver->sequence);
    assert_true(slice_equal(slice_from(bytes, len), buf_slice(&driver->bytes)));
}

static void test_once__a_confirmed_number_is_never_carried_out(void **state)
{
    struct driver *driver = *state;
    struct key_item item;
    struct op op = take_op("A", "k", &item);
    (void)driver_run(driver, &op);
    uint64_t sequence = driver->sequence;
    (void)RELEASE(driver, .owner = "A", .key = "k");
    assert_int_equal(outcomes(driver), 2);
    driver->confirmed = sequence + 1;
    (void)RENEW(driver, .owner = "A", .key = "x");
    assert_int_equal(outcomes(driver), 1);
    assert_int_equal(driver_repeat(driver, &op, sequence).status, STATUS_FORGOTTEN);
    assert_int_equal(driver_repeat(driver, &op, sequence + 1).status, STATUS_FORGOTTEN);
    struct lease_view view;
    assert_false(driver_owner(driver, "k", &view));
}

static void test_once__numbers_may_arrive_in_any_order(void **state)
{
    struct driver *driver = *state;
    struct key_item item;
    const uint64_t order[] = {50, 10, 40, 20, 30, 5, 60};
    char key[8];
    for (size_t i = 0; i < 7; i++) {
        (void)snprintf(key, sizeof key, "k%u", (unsigned)order[i]);
        struct op op = take_op("A", key, &item);
        assert_int_equal(driver_repeat(driver, &op, order[i]).status, STATUS_OK);
    }
    uint64_t index = driver->index;
    for (size_t i = 0; i < 7; i++) {
        struct op op = take_op("A", "other", &item);
        assert_true(driver_repeat(driver, &op, order[i]).position.index <= index);
    }
    driver->sequence = 60;
    driver->confirmed = 30;
    (void)RENEW(driver, .owner = "A", .key = "k5");
    assert_int_equal(outcomes(driver), 4);
}

static void test_once__an_unknown_origin_is_refused(void **state)
{
    struct driver *driver = *state;
    struct key_item item;
    struct op op = take_op("A", "k", &item);
    driver->origin++;
    assert_int_equal(driver_run(driver, &op).status, STATUS_ORIGIN_UNKNOWN);
    struct lease_view view;
    assert_false(driver_owner(driver, "k", &view));
    assert_int_equal(driver_settle(driver, 1).status, STATUS_ORIGIN_UNKNOWN);
}

static void test_once__every_asking_makes_another_origin(void **state)
{
    struct driver *driver = *state;
    uint64_t first = open_origin(driver);
    uint64_t second = open_origin(driver);
    assert_true(second > first && first > driver->origin);
}

/* R8: silent for longer than the retention, both sides of the edge. */
static void test_once__a_silent_origin_is_forgotten(void **state)
{
    struct driver *driver = *state;
    struct key_item item;
    struct op op = take_op("A", "k", &item);
    (void)driver_run(driver, &op);
    driver_pass(driver, ORIGIN_RETENTION_MS_DEFAULT);
    assert_int_equal(driver_repeat(driver, &op, 1).status, STATUS_OK); /* it has spoken */
    driver_pass(driver, ORIGIN_RETENTION_MS_DEFAULT);
    assert_int_equal(driver_repeat(driver, &op, 1).status, STATUS_OK);
    driver_pass(driver, ORIGIN_RETENTION_MS_DEFAULT + 1);
    assert_int_equal(driver_repeat(driver, &op, 1).status, STATUS_ORIGIN_UNKNOWN);
    assert_int_equal(outcomes(driver), 0);
}

static void test_once__the_longest_silent_origin_makes_room(void **state)
{
    (void)state;
    struct settings settings = settings_default();
    settings.origins_max = 2;
    struct driver *driver = driver_create(&settings);
    uint64_t first = driver->origin;
    uint64_t second = open_origin(driver);
    (void)TAKE(driver, .owner = "A", .key = "k"); /* the first speaks */
    uint64_t third = open_origin(driver);
    struct key_item item;
    struct op op = take_op("A", "k", &item);
    driver->origin = second;
    assert_int_equal(driver_repeat(driver, &op, 1).status, STATUS_ORIGIN_UNKNOWN);
    driver->origin = first;
    assert_int_equal(driver_repeat(driver, &op, 1).status, STATUS_OK);
    driver->origin = third;
    assert_int_equal(driver_repeat(driver, &op, 1).status, STATUS_OK);
    driver_destroy(driver);
}

static void test_once__an_origin_keeps_no_more_outcomes_than_it_may(void **state)
{
    struct driver *driver = *state;
    struct key_item item;
    struct op op = take_op("A", "k", &item);
    driver->unchecked = true;
    for (unsigned i = 0; i < UNCONFIRMED_MAX; i++) {
        assert_int_equal(driver_run(driver, &op).status, STATUS_OK);
    }
    struct lease_view before;
    struct lease_view after;
    assert_true(driver_owner(driver, "k", &before));
    assert_int_equal(driver_run(driver, &op).status, STATUS_OVERLOADED);
    assert_true(driver_owner(driver, "k", &after));
    assert_true(before.token == after.token);
    assert_int_equal(driver_settle(driver, driver->sequence).status, STATUS_OVERLOADED);
    assert_int_equal(driver_repeat(driver, &op, 1).status, STATUS_OK); /* kept ones answer */
    /* Not kept: the same number is carried out once there is room. */
    driver->confirmed = 1;
    driver->sequence--;
    assert_int_equal(driver_run(driver, &op).status, STATUS_OK);
    assert_int_equal(outcomes(driver), UNCONFIRMED_MAX);
}

static void test_once__an_origin_keeps_no_more_bytes_than_it_may(void **state)
{
    struct driver *driver = *state;
    driver->unchecked = true;
    static struct key_item items[2000];
    static char keys[2000][8];
    for (unsigned i = 0; i < 2000; i++) {
        (void)snprintf(keys[i], sizeof keys[i], "%u", i);
        items[i] = (struct key_item){.key = slice_text(keys[i])};
    }
    static char owner[OWNER_LEN_MAX + 1];
    memset(owner, 'o', OWNER_LEN_MAX);
    struct op op = {
        .kind = OP_KIND_CLAIM,
        .ns = slice_text(NAMESPACE_DEFAULT),
        .owner = slice_text(owner),
        .ttl_ms = 1000,
        .keys = items,
        .key_count = 2000,
    };
    (void)driver_run(driver, &op);
    op.owner = slice_text("A"); /* refusals name the holder: the longest answers */
    size_t len = driver->bytes.len;
    struct result result;
    do {
        result = driver_run(driver, &op);
        len += result.status == STATUS_OK ? driver->bytes.len : 0;
    } while (result.status == STATUS_OK);
    assert_int_equal(result.status, STATUS_OVERLOADED);
    assert_true(len >= UNCONFIRMED_LEN_MAX && len < UNCONFIRMED_LEN_MAX + MIB);
}

/* --- Settling. */

static void test_settle__a_number_not_applied_is_void_for_ever(void **state)
{
    struct driver *driver = *state;
    struct key_item item;
    struct op op = take_op("A", "k", &item);
    for (unsigned i = 0; i < 2; i++) {
        struct result result = driver_settle(driver, 7);
        assert_int_equal(result.status, STATUS_OK);
        assert_false(result.settled_applied || result.settled_ended);
    }
    assert_int_equal(driver_repeat(driver, &op, 7).status, STATUS_VOID);
    assert_int_equal(driver_repeat(driver, &op, 7).status, STATUS_VOID);
    struct lease_view view;
    assert_false(driver_owner(driver, "k", &view));
    driver->sequence = 7;
    driver->confirmed = 7;
    (void)RENEW(driver, .owner = "A", .key = "k");
    assert_int_equal(driver_repeat(driver, &op, 7).status, STATUS_FORGOTTEN);
    assert_int_equal(driver_settle(driver, 7).status, STATUS_FORGOTTEN);
}

static void check_settle(enum op_kind kind, const struct ask *ask, bool held, bool ended)
{
    struct driver *driver = driver_create(NULL);
    if (held) {
        (void)TAKE(driver, .owner = "A", .key = "k");
    }
    struct key_item item;
    struct op op = driver_op(kind, ask, &item);
    assert_int_equal(driver_run(driver, &op).status, STATUS_OK);
    uint64_t sequence = driver->sequence;
    driver->clock_ms = 9;
    for (unsigned i = 0; i < 2; i++) { /* asked twice, answered twice the same */
        struct result result = driver_settle(driver, sequence);
        assert_true(result.settled_applied);
        assert_int_equal(result.settled_ended, ended);
    }
    struct lease_view view;
    assert_int_equal(driver_owner(driver, "k", &view), !ended);
    struct tombstone_view end;
    if (ended) {
        assert_true(fsm_query_tombstone(driver->fsm, slice_text(NAMESPACE_DEFAULT),
                                        slice_text("k"), &end));
        assert_int_equal(end.reason, END_REASON_SETTLED);
        assert_int_equal(end.ended_ms, 9);
    }
    assert_int_equal(driver_repeat(driver, &op, sequence).status, STATUS_OK);
    driver_destroy(driver);
}

static void test_settle__takes_back_only_what_was_given_anew(void **state)
{
    (void)state;
    struct ask ask = {.owner = "A", .key = "k"};
    struct ask destroy = {.owner = "A", .key = "k", .destroy = true};
    struct ask reestablish = {.owner = "A", .key = "k", .reestablish = true};
    check_settle(OP_KIND_TAKE, &ask, false, true);
    check_settle(OP_KIND_TAKE, &ask, true, false);
    check_settle(OP_KIND_CLAIM, &ask, false, true);
    check_settle(OP_KIND_CLAIM, &ask, true, false);
    check_settle(OP_KIND_CLAIM, &destroy, false, true);
    check_settle(OP_KIND_CLAIM, &destroy, true, false);
    check_settle(OP_KIND_RENEW, &reestablish, false, false);
    check_settle(OP_KIND_RENEW, &ask, true, false);
}

static void test_settle__a_takeover_is_taken_back_and_given_to_nobody(void **state)
{
    struct driver *driver = *state;
    (void)TAKE(driver, .owner = "B", .key = "k");
    (void)TAKE(driver, .owner = "A", .key = "k");
    assert_true(driver_settle(driver, driver->sequence).settled_ended);
    struct lease_view view;
    assert_false(driver_owner(driver, "k", &view));
}

static void test_settle__a_lease_written_since_is_kept(void **state)
{
    struct driver *driver = *state;
    struct lease_view view;
    (void)TAKE(driver, .owner = "A", .key = "k");
    uint64_t sequence = driver->sequence;
    (void)RENEW(driver, .owner = "A", .key = "k");
    struct result result = driver_settle(driver, sequence);
    assert_true(result.settled_applied);
    assert_false(result.settled_ended);
    (void)TAKE(driver, .owner = "A", .key = "all");
    sequence = driver->sequence;
    (void)RENEW_ALL(driver, .owner = "A");
    assert_false(driver_settle(driver, sequence).settled_ended);
    (void)TAKE(driver, .owner = "A", .key = "taken");
    sequence = driver->sequence;
    (void)TAKE(driver, .owner = "B", .key = "taken");
    assert_false(driver_settle(driver, sequence).settled_ended);
    assert_true(driver_owner(driver, "k", &view) && driver_owner(driver, "all", &view) &&
                driver_owner(driver, "taken", &view));
}

static void test_settle__a_lease_that_ended_by_itself_is_not_ended_again(void **state)
{
    struct driver *driver = *state;
    (void)TAKE(driver, .owner = "A", .key = "k", .ttl_ms = 10);
    uint64_t sequence = driver->sequence;
    driver->clock_ms = 11;
    assert_false(driver_settle(driver, sequence).settled_ended);
    struct tombstone_view end;
    assert_true(fsm_query_tombstone(driver->fsm, slice_text(NAMESPACE_DEFAULT), slice_text("k"),
                                    &end));
    assert_int_equal(end.reason, END_REASON_EXPIRED);
}

static void test_settle__each_key_of_many_by_itself_also_from_a_snapshot(void **state)
{
    struct driver *driver = *state;
    (void)TAKE(driver, .owner = "A", .key = "held");
    const struct key_item items[] = {
        {.key = slice_text("held")}, {.key = slice_text("new")}, {.key = slice_text("renewed")}};
    struct op op = {
        .kind = OP_KIND_CLAIM,
        .ns = slice_text(NAMESPACE_DEFAULT),
        .owner = slice_text("A"),
        .ttl_ms = 1000,
        .keys = items,
        .key_count = 3,
    };
    (void)driver_run(driver, &op);
    uint64_t sequence = driver->sequence;
    (void)RENEW(driver, .owner = "A", .key = "renewed");
    struct fsm *loaded = driver_round_trip(driver);
    fsm_destroy(driver->fsm);
    driver->fsm = loaded;
    assert_true(driver_settle(driver, sequence).settled_ended);
    struct lease_view view;
    assert_true(driver_owner(driver, "held", &view) && driver_owner(driver, "renewed", &view));
    assert_false(driver_owner(driver, "new", &view));
}

/* Positions are ordered by place inside an entry. */
static void test_settle__the_place_in_the_entry_counts(void **state)
{
    struct driver *driver = *state;
    struct key_item first;
    struct key_item second;
    struct ask ask = {.owner = "A", .key = "renewed"};
    struct ask other = {.owner = "A", .key = "only taken"};
    const struct command commands[] = {
        {.origin = driver->origin, .sequence = 1, .op = driver_op(OP_KIND_TAKE, &ask, &first)},
        {.origin = driver->origin, .sequence = 2, .op = driver_op(OP_KIND_TAKE, &other, &second)},
        {.origin = driver->origin, .sequence = 3, .op = driver_op(OP_KIND_RENEW, &ask, &first)},
    };
    struct result result = driver_apply_all(driver, commands, 3);
    assert_int_equal(result.position.place, 2);
    assert_int_equal(result.outcomes[0].kind, OUTCOME_KIND_RENEWED);
    const struct changes *changes = fsm_changes(driver->fsm);
    assert_int_equal(changes_count(changes), 2);
    assert_int_equal(changes_get(changes, 1).position.place, 1);
    struct fsm *loaded = driver_round_trip(driver);
    fsm_destroy(driver->fsm);
    driver->fsm = loaded;
    assert_false(driver_settle(driver, 1).settled_ended);
    assert_true(driver_settle(driver, 2).settled_ended);
}

/* A settle in the very entry of the command, before it and behind it. */
static void test_settle__in_the_entry_of_the_command(void **state)
{
    struct driver *driver = *state;
    struct key_item item;
    struct op take = take_op("A", "k", &item);
    struct op settle = {
        .kind = OP_KIND_SETTLE, .target_origin = driver->origin, .target_sequence = 1};
    const struct command behind[] = {
        {.origin = driver->origin, .sequence = 1, .op = take},
        {.op = settle},
    };
    struct result result = driver_apply_all(driver, behind, 2);
    assert_true(result.settled_applied && result.settled_ended);
    settle.target_sequence = 2;
    const struct command before[] = {
        {.op = settle},
        {.origin = driver->origin, .sequence = 2, .op = take},
    };
    assert_int_equal(driver_apply_all(driver, before, 2).status, STATUS_VOID);
    struct lease_view view;
    assert_false(driver_owner(driver, "k", &view));
}

/* A recovery gives every lease a full TTL, which is no write of its holder. */
static void test_settle__a_recovery_is_no_write(void **state)
{
    struct driver *driver = *state;
    (void)TAKE(driver, .owner = "A", .key = "k");
    struct op recover = {.kind = OP_KIND_RECOVER, .identity = driver_identity(1, 2)};
    assert_int_equal(driver_run(driver, &recover).status, STATUS_OK);
    assert_true(driver_settle(driver, driver->sequence).settled_ended);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        CASE(test_once__a_repeated_take_steals_nothing_back),
        CASE(test_once__a_repeat_is_answered_with_the_same_bytes_also_from_a_snapshot),
        CASE(test_once__a_confirmed_number_is_never_carried_out),
        CASE(test_once__numbers_may_arrive_in_any_order),
        CASE(test_once__an_unknown_origin_is_refused),
        CASE(test_once__every_asking_makes_another_origin),
        CASE(test_once__a_silent_origin_is_forgotten),
        cmocka_unit_test(test_once__the_longest_silent_origin_makes_room),
        CASE(test_once__an_origin_keeps_no_more_outcomes_than_it_may),
        CASE(test_once__an_origin_keeps_no_more_bytes_than_it_may),
        CASE(test_settle__a_number_not_applied_is_void_for_ever),
        cmocka_unit_test(test_settle__takes_back_only_what_was_given_anew),
        CASE(test_settle__a_takeover_is_taken_back_and_given_to_nobody),
        CASE(test_settle__a_lease_written_since_is_kept),
        CASE(test_settle__a_lease_that_ended_by_itself_is_not_ended_again),
        CASE(test_settle__each_key_of_many_by_itself_also_from_a_snapshot),
        CASE(test_settle__the_place_in_the_entry_counts),
        CASE(test_settle__in_the_entry_of_the_command),
        CASE(test_settle__a_recovery_is_no_write),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
