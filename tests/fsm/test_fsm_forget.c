/* What is forgotten by age is forgotten by comparison: how far removal came never shows. Here it
 * comes one step per entry, and questions are asked in between. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "tests/fsm/driver.h"

#define RETENTION_MS 100u
#define ORIGIN_RETENTION_MS 1000u

static int setup(void **state)
{
    struct settings settings = settings_default();
    settings.removal_slice = 1;
    settings.tombstone_retention_ms = RETENTION_MS;
    settings.origin_retention_ms = ORIGIN_RETENTION_MS;
    *state = driver_create(&settings);
    return 0;
}

static int teardown(void **state)
{
    driver_destroy(*state);
    return 0;
}

static void configure(struct driver *driver, const struct settings *settings)
{
    struct op op = {.kind = OP_KIND_CONFIGURE, .settings = *settings};
    assert_int_equal(driver_run(driver, &op).status, STATUS_OK);
}

static bool remembered(const struct driver *driver, const char *key)
{
    struct tombstone_view view;
    return fsm_query_tombstone(driver->fsm, slice_text(NAMESPACE_DEFAULT), slice_text(key), &view);
}

static uint64_t unowned_since(const struct driver *driver, const char *key)
{
    return fsm_query_unowned_since(driver->fsm, slice_text(NAMESPACE_DEFAULT), slice_text(key));
}

/* Keys "a", "b", "c" that expired at 10, 12 and 14, their tombstones stored; the clock is at 50.
 * Returns the token that "a" had. */
static uint64_t three_ends(struct driver *driver)
{
    uint64_t token = TAKE(driver, .owner = "A", .key = "a", .ttl_ms = 10).token;
    (void)TAKE(driver, .owner = "B", .key = "b", .ttl_ms = 12);
    (void)TAKE(driver, .owner = "B", .key = "c", .ttl_ms = 14);
    driver->clock_ms = 50;
    for (unsigned i = 0; i < 4; i++) {
        driver_pass(driver, 0);
    }
    assert_true(remembered(driver, "a") && remembered(driver, "b") && remembered(driver, "c"));
    return token;
}

/* The tombstone of "a" is removed, those of leases with larger tokens wait for it: they are
 * forgotten all the same, so that nobody can tell whether "a" had another owner since. */
static void test_forget__a_guard_meets_what_waits_for_removal(void **state)
{
    struct driver *driver = *state;
    uint64_t token = three_ends(driver);
    driver->clock_ms = 10 + RETENTION_MS;
    driver_pass(driver, 0);
    assert_true(remembered(driver, "a"));
    driver->clock_ms = 14 + RETENTION_MS + 1;
    driver_pass(driver, 0);
    struct fsm_stats stats;
    fsm_stats(driver->fsm, &stats);
    assert_int_equal(stats.tombstones, 2);
    assert_false(remembered(driver, "b") || remembered(driver, "c"));
    assert_int_equal(RENEW(driver, .owner = "A", .key = "a", .reestablish = true, .guarded = true,
                           .if_token = token)
                         .kind,
                     OUTCOME_KIND_LAPSED);
}

/* So it is in the very entry that moves the clock, before anything is removed. */
static void test_forget__commands_come_before_removal_and_notice_nothing(void **state)
{
    struct driver *driver = *state;
    uint64_t token = three_ends(driver);
    driver->clock_ms = 14 + RETENTION_MS + 1;
    assert_int_equal(RENEW(driver, .owner = "A", .key = "a", .reestablish = true, .guarded = true,
                           .if_token = token)
                         .kind,
                     OUTCOME_KIND_LAPSED);
}

static void test_forget__unowned_since_meets_what_waits_for_removal(void **state)
{
    struct driver *driver = *state;
    (void)three_ends(driver);
    assert_int_equal(unowned_since(driver, "never"), 0);
    driver->clock_ms = 14 + RETENTION_MS;
    driver_pass(driver, 0); /* "a" and "b" are due, "c" is not yet */
    assert_int_equal(unowned_since(driver, "never"), 12);
    assert_int_equal(unowned_since(driver, "c"), 14);
    driver_pass(driver, 1);
    assert_int_equal(unowned_since(driver, "never"), 14);
}

/* A longer retention brings nothing back. */
static void test_forget__what_was_due_once_stays_forgotten(void **state)
{
    struct driver *driver = *state;
    uint64_t token = three_ends(driver);
    driver->clock_ms = 12 + RETENTION_MS + 1;
    struct settings settings = *fsm_settings(driver->fsm);
    settings.tombstone_retention_ms = 10 * RETENTION_MS;
    configure(driver, &settings);
    assert_false(remembered(driver, "a") || remembered(driver, "b"));
    assert_true(remembered(driver, "c"));
    assert_true(fsm_next_due_ms(driver->fsm) <= driver->clock_ms);
    assert_int_equal(unowned_since(driver, "b"), 12);
    assert_int_equal(CLAIM(driver, .owner = "C", .key = "b", .adopt = true, .grace_ms = 200)
                         .grace_ms_left,
                     12 + 200 - driver->clock_ms);
    assert_int_equal(RENEW(driver, .owner = "A", .key = "a", .reestablish = true, .guarded = true,
                           .if_token = token)
                         .kind,
                     OUTCOME_KIND_LAPSED);
    driver_pass(driver, 0);
    struct fsm_stats stats;
    fsm_stats(driver->fsm, &stats);
    assert_int_equal(stats.tombstones, 1);
    assert_true(fsm_next_due_ms(driver->fsm) > driver->clock_ms);
}

static void test_forget__a_shorter_retention_forgets_at_once(void **state)
{
    struct driver *driver = *state;
    (void)three_ends(driver);
    struct settings settings = *fsm_settings(driver->fsm);
    settings.tombstone_retention_ms = 37; /* 12 + 37 is over at 50, 14 + 37 is not */
    configure(driver, &settings);
    assert_false(remembered(driver, "a") || remembered(driver, "b"));
    assert_true(remembered(driver, "c"));
}

/* A lease that ended longer ago than tombstones are kept, and is stored still. */
static void test_forget__a_late_end_is_forgotten_when_it_is_made(void **state)
{
    struct driver *driver = *state;
    (void)TAKE(driver, .owner = "A", .key = "a", .ttl_ms = 10);
    (void)TAKE(driver, .owner = "A", .key = "b", .ttl_ms = 10);
    (void)TAKE(driver, .owner = "A", .key = "c", .ttl_ms = 150);
    driver_pass(driver, 200);
    struct fsm_stats stats;
    fsm_stats(driver->fsm, &stats);
    assert_int_equal(stats.leases_own, 2);
    assert_false(remembered(driver, "b"));
    assert_true(remembered(driver, "c"));
    assert_int_equal(unowned_since(driver, "b"), 10);
    assert_int_equal(unowned_since(driver, "never"), 10);
    assert_int_equal(unowned_since(driver, "c"), 150);
    driver_pass(driver, 0);
    fsm_stats(driver->fsm, &stats);
    assert_int_equal(stats.leases_own, 1);
    assert_int_equal(stats.tombstones, 0);
}

/* A purge that is due moves the mark as its removal would, also where a second one comes first. */
static void test_forget__an_old_purge_is_not_lost_by_a_new_one(void **state)
{
    struct driver *driver = *state;
    driver->clock_ms = 10;
    (void)PURGE(driver, .ns = "other");
    driver->clock_ms = 10 + RETENTION_MS;
    driver_pass(driver, 0);
    assert_int_equal(unowned_since(driver, "never"), 0);
    driver->clock_ms++;
    (void)PURGE(driver, .ns = "other");
    assert_int_equal(unowned_since(driver, "never"), 10);
}

static void test_forget__purges_that_wait_for_removal_count(void **state)
{
    struct driver *driver = *state;
    driver->clock_ms = 10;
    (void)PURGE(driver, .ns = "other");
    driver->clock_ms = 11;
    (void)PURGE(driver, .ns = "third");
    driver_pass(driver, RETENTION_MS + 1); /* both are due, one is removed */
    assert_int_equal(unowned_since(driver, "never"), 11);
}

/* Leases under a mark that was set longer ago than tombstones are kept. */
static void test_forget__leases_under_an_old_mark_count(void **state)
{
    struct driver *driver = *state;
    (void)TAKE(driver, .owner = "A", .key = "x", .ttl_ms = 5000);
    (void)TAKE(driver, .owner = "A", .key = "y", .ttl_ms = 5000);
    uint64_t token = TAKE(driver, .owner = "B", .key = "k", .ttl_ms = 10).token;
    (void)TAKE(driver, .owner = "A", .key = "z", .ttl_ms = 5000);
    driver->clock_ms = 5;
    (void)RELEASE_ALL(driver, .owner = "A");
    driver->clock_ms = 200;
    assert_int_equal(RENEW(driver, .owner = "B", .key = "k", .reestablish = true, .guarded = true,
                           .if_token = token)
                         .kind,
                     OUTCOME_KIND_LAPSED);
}

/* What was found at one clock is not what is true at the next. */
static void test_forget__waiting_is_looked_at_again_when_the_clock_moves(void **state)
{
    struct driver *driver = *state;
    uint64_t token = three_ends(driver); /* of "b" and "c": one and two more */
    for (unsigned i = 0; i < 2; i++) {
        driver->clock_ms = 12 + 2 * i + RETENTION_MS + 1;
        assert_int_equal(RENEW(driver, .owner = "A", .key = "never", .reestablish = true,
                               .guarded = true, .if_token = token + i)
                             .kind,
                         OUTCOME_KIND_LAPSED);
    }
    assert_int_equal(RENEW(driver, .owner = "A", .key = "never", .reestablish = true,
                           .guarded = true, .if_token = token + 2)
                         .kind,
                     OUTCOME_KIND_REESTABLISHED);
}

static struct command from_origin(uint64_t origin, uint64_t sequence, const struct op *op)
{
    return (struct command){.origin = origin, .sequence = sequence, .op = *op};
}

static void test_forget__silent_origins_are_unknown_before_they_are_removed(void **state)
{
    struct driver *driver = *state;
    uint64_t origins[3];
    for (unsigned i = 0; i < 3; i++) {
        origins[i] = driver_run(driver, &(struct op){.kind = OP_KIND_OPEN_ORIGIN}).origin;
    }
    struct key_item item;
    struct op take = driver_op(OP_KIND_TAKE, &(struct ask){.owner = "A", .key = "k"}, &item);
    driver->clock_ms = ORIGIN_RETENTION_MS;
    struct command command = from_origin(origins[0], 1, &take);
    assert_int_equal(driver_apply(driver, &command).status, STATUS_OK);
    driver->clock_ms++; /* now all but the first are silent for too long */
    command = from_origin(origins[1], 1, &take);
    assert_int_equal(driver_apply(driver, &command).status, STATUS_ORIGIN_UNKNOWN);
    struct op settle = {.kind = OP_KIND_SETTLE, .target_origin = origins[2], .target_sequence = 1};
    assert_int_equal(driver_run(driver, &settle).status, STATUS_ORIGIN_UNKNOWN);
    command = from_origin(origins[0], 2, &take);
    assert_int_equal(driver_apply(driver, &command).status, STATUS_OK);
}

/* A longer retention does not bring a silent origin back either. */
static void test_forget__a_silent_origin_stays_unknown(void **state)
{
    struct driver *driver = *state;
    driver->clock_ms = ORIGIN_RETENTION_MS + 1;
    struct settings settings = *fsm_settings(driver->fsm);
    settings.origin_retention_ms = 10 * ORIGIN_RETENTION_MS;
    configure(driver, &settings);
    uint64_t other = driver_run(driver, &(struct op){.kind = OP_KIND_OPEN_ORIGIN}).origin;
    struct key_item item;
    struct op take = driver_op(OP_KIND_TAKE, &(struct ask){.owner = "A", .key = "k"}, &item);
    struct command command = from_origin(driver->origin, 1, &take);
    assert_int_equal(driver_apply(driver, &command).status, STATUS_ORIGIN_UNKNOWN);
    command = from_origin(other, 1, &take);
    assert_int_equal(driver_apply(driver, &command).status, STATUS_OK);
}

/* A lower limit of departures holds for the next answer, not only for the next departure. */
static void test_forget__fewer_departures_are_named_at_once(void **state)
{
    struct driver *driver = *state;
    (void)TAKE(driver, .owner = "A", .key = "stays");
    uint64_t version = RENEW_ALL(driver, .owner = "A").set_version;
    (void)TAKE(driver, .owner = "A", .key = "a");
    (void)TAKE(driver, .owner = "A", .key = "b");
    (void)RELEASE(driver, .owner = "A", .key = "a");
    (void)RELEASE(driver, .owner = "A", .key = "b");
    struct result result =
        RENEW_ALL(driver, .owner = "A", .has_set_version = true, .set_version = version);
    assert_int_equal(result.departure_count, 2);
    assert_false(result.list_again);
    struct settings settings = *fsm_settings(driver->fsm);
    settings.departures_max = 1;
    configure(driver, &settings);
    result = RENEW_ALL(driver, .owner = "A", .has_set_version = true, .set_version = version);
    assert_true(result.list_again);
    assert_int_equal(result.departure_count, 0);
}

#define CASE(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(test_forget__a_guard_meets_what_waits_for_removal),
        CASE(test_forget__commands_come_before_removal_and_notice_nothing),
        CASE(test_forget__unowned_since_meets_what_waits_for_removal),
        CASE(test_forget__what_was_due_once_stays_forgotten),
        CASE(test_forget__a_shorter_retention_forgets_at_once),
        CASE(test_forget__a_late_end_is_forgotten_when_it_is_made),
        CASE(test_forget__an_old_purge_is_not_lost_by_a_new_one),
        CASE(test_forget__purges_that_wait_for_removal_count),
        CASE(test_forget__leases_under_an_old_mark_count),
        CASE(test_forget__waiting_is_looked_at_again_when_the_clock_moves),
        CASE(test_forget__silent_origins_are_unknown_before_they_are_removed),
        CASE(test_forget__a_silent_origin_stays_unknown),
        CASE(test_forget__fewer_departures_are_named_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
