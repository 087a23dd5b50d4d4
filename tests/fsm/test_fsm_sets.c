/* renew_all with set versions and departures, release_all and purge with their marks: what has
 * left, what is absent though still stored, and how it is removed in slices. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
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

static uint64_t stored(const struct driver *driver)
{
    struct fsm_stats stats;
    fsm_stats(driver->fsm, &stats);
    return stats.leases_own + stats.leases_del;
}

static struct result renew_all_since(struct driver *driver, uint64_t version)
{
    return RENEW_ALL(driver, .owner = "A", .has_set_version = true, .set_version = version);
}

static void assert_departure(const struct result *result, uint32_t idx, const char *key,
                             uint64_t token, enum end_reason reason)
{
    assert_true(idx < result->departure_count);
    assert_true(slice_equal(result->departures[idx].key, slice_text(key)));
    assert_true(result->departures[idx].token == token);
    assert_int_equal(result->departures[idx].reason, reason);
}

/* --- renew_all. */

static void test_renew_all__renews_own_leases_only(void **state)
{
    struct driver *driver = *state;
    struct lease_view view;
    (void)TAKE(driver, .owner = "A", .key = "1", .ttl_ms = 100);
    (void)TAKE(driver, .owner = "A", .key = "2", .ttl_ms = 100);
    (void)CLAIM(driver, .owner = "A", .key = "3", .ttl_ms = 100, .destroy = true);
    (void)TAKE(driver, .owner = "B", .key = "4", .ttl_ms = 100);
    (void)TAKE(driver, .owner = "A", .key = "5", .ttl_ms = 100, .ns = "other");
    driver_pass(driver, 50);
    assert_int_equal(RENEW_ALL(driver, .owner = "A", .ttl_ms = 500).count, 2);
    assert_true(driver_owner(driver, "1", &view) && view.expiry_ms == 550 && view.ttl_ms == 500);
    assert_true(driver_owner(driver, "2", &view) && view.expiry_ms == 550);
    assert_true(driver_owner(driver, "3", &view) && view.expiry_ms == 100);
    assert_true(driver_owner(driver, "4", &view) && view.expiry_ms == 100);
}

static void test_renew_all__of_few_leases_among_many_keeps_the_queue_in_order(void **state)
{
    struct driver *driver = *state;
    driver_fill(driver, &(struct ask){.owner = "B", .key = "b", .ttl_ms = 200}, 100);
    (void)TAKE(driver, .owner = "A", .key = "1", .ttl_ms = 100);
    (void)TAKE(driver, .owner = "A", .key = "2", .ttl_ms = 100);
    assert_int_equal(RENEW_ALL(driver, .owner = "A", .ttl_ms = 300).count, 2);
    assert_int_equal(fsm_next_due_ms(driver->fsm), 201);
    driver_pass(driver, 201);
    assert_int_equal(stored(driver), 2);
}

static void test_renew_all__an_unchanged_set_keeps_its_version(void **state)
{
    struct driver *driver = *state;
    (void)TAKE(driver, .owner = "A", .key = "1");
    uint64_t version = RENEW_ALL(driver, .owner = "A").set_version;
    (void)TAKE(driver, .owner = "A", .key = "2");
    (void)TAKE(driver, .owner = "A", .key = "1"); /* a new token, and it never left */
    struct result result = renew_all_since(driver, version);
    assert_int_equal(result.count, 2);
    assert_true(result.set_version == version);
    assert_int_equal(result.departure_count, 0);
    assert_false(result.list_again);
}

static void test_renew_all__names_every_way_to_leave(void **state)
{
    struct driver *driver = *state;
    uint64_t tokens[6];
    const char *const keys[] = {"1", "2", "3", "4", "5", "6"};
    for (size_t i = 0; i < 5; i++) {
        tokens[i] = TAKE(driver, .owner = "A", .key = keys[i]).token;
    }
    tokens[5] = TAKE(driver, .owner = "A", .key = "6", .ttl_ms = 10).token;
    uint64_t version = RENEW_ALL(driver, .owner = "A", .ttl_ms = 2000).set_version;
    (void)RENEW(driver, .owner = "A", .key = "6", .ttl_ms = 10);
    (void)RELEASE(driver, .owner = "A", .key = "1");
    (void)TAKE(driver, .owner = "B", .key = "2");
    (void)CLAIM(driver, .owner = "A", .key = "3", .destroy = true);
    uint64_t last = TAKE(driver, .owner = "A", .key = "7").token;
    (void)driver_settle(driver, driver->sequence);
    driver->clock_ms += 11; /* 6 is due and still stored */
    struct result result = renew_all_since(driver, version);
    assert_int_equal(result.count, 2);
    assert_int_equal(result.departure_count, 5);
    assert_departure(&result, 0, "1", tokens[0], END_REASON_RELEASED);
    assert_departure(&result, 1, "2", tokens[1], END_REASON_TAKEN);
    assert_departure(&result, 2, "3", tokens[2], END_REASON_TEARDOWN);
    assert_departure(&result, 3, "7", last, END_REASON_SETTLED);
    assert_departure(&result, 4, "6", tokens[5], END_REASON_EXPIRED);
    assert_true(result.set_version > version);
    version = result.set_version;
    (void)PURGE(driver, .key = NULL);
    result = renew_all_since(driver, version);
    assert_int_equal(result.count, 0);
    assert_int_equal(result.departure_count, 2);
    assert_departure(&result, 0, "4", tokens[3], END_REASON_PURGED);
}

static void test_renew_all__only_what_left_since_the_version_is_named(void **state)
{
    struct driver *driver = *state;
    (void)TAKE(driver, .owner = "A", .key = "1");
    (void)TAKE(driver, .owner = "A", .key = "2");
    (void)TAKE(driver, .owner = "A", .key = "3");
    (void)RELEASE(driver, .owner = "A", .key = "1");
    uint64_t version = RENEW_ALL(driver, .owner = "A").set_version;
    (void)RELEASE(driver, .owner = "A", .key = "2");
    struct result result = renew_all_since(driver, version);
    assert_int_equal(result.departure_count, 1);
    assert_true(slice_equal(result.departures[0].key, slice_text("2")));
    /* Whoever passes no version is told nothing. */
    result = RENEW_ALL(driver, .owner = "A");
    assert_int_equal(result.departure_count, 0);
    assert_false(result.list_again);
}

/* A due lease that its owner takes again has left, removed or not. */
static void test_renew_all__a_due_lease_taken_again_is_a_departure(void **state)
{
    struct driver *driver = *state;
    uint64_t first = TAKE(driver, .owner = "A", .key = "1", .ttl_ms = 10).token;
    uint64_t version = RENEW_ALL(driver, .owner = "A", .ttl_ms = 10).set_version;
    driver->clock_ms = 11;
    uint64_t second = TAKE(driver, .owner = "A", .key = "1").token;
    struct result result = renew_all_since(driver, version);
    assert_int_equal(result.count, 1);
    assert_departure(&result, 0, "1", first, END_REASON_EXPIRED);
    assert_true(second > first && result.set_version > version);
}

static void test_renew_all__of_due_leases_renews_none(void **state)
{
    struct driver *driver = *state;
    (void)TAKE(driver, .owner = "A", .key = "1", .ttl_ms = 10);
    driver->clock_ms = 10;
    assert_int_equal(RENEW_ALL(driver, .owner = "A", .ttl_ms = 10).count, 1);
    driver->clock_ms = 21;
    struct result result = RENEW_ALL(driver, .owner = "A", .ttl_ms = 10);
    assert_int_equal(result.count, 0);
    assert_int_equal(stored(driver), 0);
}

static void test_renew_all__says_list_again_when_it_no_longer_remembers(void **state)
{
    (void)state;
    struct settings settings = settings_default();
    settings.departures_max = 2;
    struct driver *driver = driver_create(&settings);
    uint64_t version = RENEW_ALL(driver, .owner = "A").set_version;
    for (unsigned i = 0; i < 3; i++) {
        (void)TAKE(driver, .owner = "A", .key = "k");
        (void)RELEASE(driver, .owner = "A", .key = "k");
        if (i == 0) {
            version = RENEW_ALL(driver, .owner = "A").set_version;
        }
    }
    struct result result = renew_all_since(driver, version);
    assert_false(result.list_again); /* the first is forgotten, and was known */
    assert_int_equal(result.departure_count, 2);
    assert_true(renew_all_since(driver, version - 1).list_again);
    driver_destroy(driver);
}

static void test_renew_all__a_version_of_the_future_says_list_again(void **state)
{
    struct driver *driver = *state;
    (void)TAKE(driver, .owner = "A", .key = "k");
    uint64_t version = RENEW_ALL(driver, .owner = "A").set_version;
    assert_true(renew_all_since(driver, version + 1).list_again);
}

static void test_renew_all__an_owner_that_was_forgotten_says_list_again(void **state)
{
    (void)state;
    struct settings settings = settings_default();
    settings.tombstone_retention_ms = 100;
    struct driver *driver = driver_create(&settings);
    (void)TAKE(driver, .owner = "A", .key = "k");
    uint64_t version = RENEW_ALL(driver, .owner = "A").set_version;
    (void)RELEASE(driver, .owner = "A", .key = "k");
    driver_pass(driver, 100);
    assert_int_equal(renew_all_since(driver, version).departure_count, 1);
    driver_pass(driver, 1);
    struct fsm_stats stats;
    fsm_stats(driver->fsm, &stats);
    assert_int_equal(stats.owners, 0);
    assert_int_equal(stats.namespaces, 0);
    struct result result = renew_all_since(driver, version);
    assert_true(result.list_again);
    /* From there it goes on: what an owner made anew says follows from that. */
    version = result.set_version;
    assert_false(renew_all_since(driver, version).list_again);
    (void)TAKE(driver, .owner = "A", .key = "k");
    assert_false(renew_all_since(driver, version).list_again);
    (void)RELEASE(driver, .owner = "A", .key = "k");
    assert_int_equal(renew_all_since(driver, version).departure_count, 1);
    driver_destroy(driver);
}

/* --- release_all. */

static void test_release_all__ends_own_leases_at_once_and_removes_them_in_slices(void **state)
{
    (void)state;
    struct settings settings = settings_default();
    settings.removal_slice = 2;
    struct driver *driver = driver_create(&settings);
    driver_fill(driver, &(struct ask){.owner = "A", .key = "k"}, 7);
    (void)CLAIM(driver, .owner = "A", .key = "marker", .destroy = true);
    (void)TAKE(driver, .owner = "B", .key = "peer");
    driver_pass(driver, 10);
    assert_int_equal(RELEASE_ALL(driver, .owner = "A").count, 7);
    assert_int_equal(stored(driver), 7); /* two of nine are removed */
    assert_true(fsm_next_due_ms(driver->fsm) <= driver->clock_ms);
    assert_true(fsm_timed(driver->fsm));
    struct lease_view view;
    struct tombstone_view end;
    assert_false(driver_owner(driver, "k00006", &view));
    assert_true(fsm_query_tombstone(driver->fsm, slice_text(NAMESPACE_DEFAULT),
                                    slice_text("k00006"), &end));
    assert_int_equal(end.reason, END_REASON_RELEASED);
    assert_int_equal(end.ended_ms, 10);
    assert_true(driver_owner(driver, "marker", &view) && driver_owner(driver, "peer", &view));
    /* Later, and the tombstone still says when it ended. */
    driver->clock_ms = 500;
    assert_int_equal(CLAIM(driver, .owner = "B", .key = "k00006", .adopt = true, .grace_ms = 491)
                         .grace_ms_left,
                     1);
    assert_int_equal(CLAIM(driver, .owner = "A", .key = "k00005").kind, OUTCOME_KIND_GRANTED);
    driver_pass(driver, 0);
    driver_pass(driver, 0);
    assert_int_equal(stored(driver), 3);
    assert_true(driver_owner(driver, "k00005", &view));
    driver_destroy(driver);
}

static void test_release_all__what_was_due_before_has_expired(void **state)
{
    (void)state;
    struct settings settings = settings_default();
    settings.removal_slice = 1;
    struct driver *driver = driver_create(&settings);
    (void)TAKE(driver, .owner = "A", .key = "1", .ttl_ms = 500);
    (void)TAKE(driver, .owner = "A", .key = "2", .ttl_ms = 40);
    (void)TAKE(driver, .owner = "A", .key = "3", .ttl_ms = 500);
    driver->clock_ms = 100;
    assert_int_equal(RELEASE_ALL(driver, .owner = "A").count, 2);
    struct tombstone_view end;
    assert_true(fsm_query_tombstone(driver->fsm, slice_text(NAMESPACE_DEFAULT), slice_text("2"),
                                    &end));
    assert_int_equal(end.reason, END_REASON_EXPIRED);
    assert_int_equal(end.ended_ms, 40);
    driver_destroy(driver);
}

static void test_release_all__of_nothing_sets_no_mark(void **state)
{
    struct driver *driver = *state;
    uint64_t token = fsm_token(driver->fsm);
    assert_int_equal(RELEASE_ALL(driver, .owner = "A").count, 0);
    (void)CLAIM(driver, .owner = "A", .key = "marker", .destroy = true);
    assert_int_equal(RELEASE_ALL(driver, .owner = "A").count, 0);
    assert_true(fsm_token(driver->fsm) == token + 1);
    assert_true(fsm_next_due_ms(driver->fsm) > driver->clock_ms);
}

static void test_release_all__twice_counts_each_lease_once(void **state)
{
    (void)state;
    struct settings settings = settings_default();
    settings.removal_slice = 1;
    struct driver *driver = driver_create(&settings);
    driver_fill(driver, &(struct ask){.owner = "A", .key = "a"}, 5);
    assert_int_equal(RELEASE_ALL(driver, .owner = "A").count, 5);
    assert_int_equal(RELEASE_ALL(driver, .owner = "A").count, 0);
    driver_pass(driver, 7);
    (void)TAKE(driver, .owner = "A", .key = "new");
    assert_int_equal(RELEASE_ALL(driver, .owner = "A").count, 1);
    struct tombstone_view end;
    struct slice ns = slice_text(NAMESPACE_DEFAULT);
    assert_true(fsm_query_tombstone(driver->fsm, ns, slice_text("new"), &end));
    assert_int_equal(end.ended_ms, 7);
    while (stored(driver) > 0) {
        driver_pass(driver, 0);
    }
    assert_true(fsm_query_tombstone(driver->fsm, ns, slice_text("a00004"), &end));
    assert_int_equal(end.ended_ms, 0);
    driver_destroy(driver);
}

/* --- purge. */

static void test_purge__ends_every_lease_of_the_namespace_markers_too(void **state)
{
    (void)state;
    struct settings settings = settings_default();
    settings.removal_slice = 1;
    struct driver *driver = driver_create(&settings);
    driver_fill(driver, &(struct ask){.owner = "A", .key = "a"}, 3);
    (void)CLAIM(driver, .owner = "B", .key = "marker", .destroy = true);
    (void)TAKE(driver, .owner = "A", .key = "elsewhere", .ns = "other");
    (void)TAKE(driver, .owner = "A", .key = "due", .ttl_ms = 10);
    driver->clock_ms = 20;
    struct result result = PURGE(driver, .key = NULL);
    assert_int_equal(result.count, 4);
    struct lease_view view;
    assert_false(driver_owner(driver, "marker", &view));
    assert_int_equal(TAKE(driver, .owner = "C", .key = "marker").kind, OUTCOME_KIND_GRANTED);
    assert_int_equal(RENEW(driver, .owner = "A", .key = "elsewhere", .ns = "other").kind,
                     OUTCOME_KIND_RENEWED);
    assert_int_equal(PURGE(driver, .key = NULL).count, 1); /* what C was granted */
    struct tombstone_view end;
    assert_true(fsm_query_tombstone(driver->fsm, slice_text(NAMESPACE_DEFAULT), slice_text("due"),
                                    &end));
    assert_int_equal(end.reason, END_REASON_EXPIRED);
    driver_destroy(driver);
}

static void test_purge__is_a_loss_of_state_for_the_namespace(void **state)
{
    struct driver *driver = *state;
    (void)TAKE(driver, .owner = "A", .key = "old");
    (void)RELEASE(driver, .owner = "A", .key = "old");
    driver_pass(driver, 100);
    (void)PURGE(driver, .key = NULL);
    driver_pass(driver, 30);
    const char *const keys[] = {"old", "never seen"};
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(
            CLAIM(driver, .owner = "B", .key = keys[i], .adopt = true, .grace_ms = 50)
                .grace_ms_left,
            20);
    }
    assert_int_equal(
        CLAIM(driver, .owner = "B", .key = "k", .ns = "other", .adopt = true, .grace_ms = 50).kind,
        OUTCOME_KIND_GRANTED);
}

static void test_purge__of_an_unknown_namespace_counts_until_a_grace_has_passed(void **state)
{
    (void)state;
    struct settings settings = settings_default();
    settings.tombstone_retention_ms = 100;
    struct driver *driver = driver_create(&settings);
    driver_pass(driver, 1000);
    assert_int_equal(PURGE(driver, .ns = "ghost").count, 0);
    driver_pass(driver, 99);
    assert_int_equal(
        CLAIM(driver, .ns = "ghost", .owner = "B", .key = "k", .adopt = true, .grace_ms = 100)
            .grace_ms_left,
        1);
    struct fsm_stats stats;
    fsm_stats(driver->fsm, &stats);
    assert_int_equal(stats.namespaces, 1);
    driver_pass(driver, 1);
    fsm_stats(driver->fsm, &stats);
    assert_int_equal(stats.namespaces, 1);
    driver_pass(driver, 1);
    fsm_stats(driver->fsm, &stats);
    assert_int_equal(stats.namespaces, 0);
    assert_true(fsm_query_unowned_since(driver->fsm, slice_text("ghost"), slice_text("k")) ==
                1000);
    driver_destroy(driver);
}

static void test_purge__after_release_all_keeps_what_ended_first(void **state)
{
    (void)state;
    struct settings settings = settings_default();
    settings.removal_slice = 1;
    struct driver *driver = driver_create(&settings);
    driver_fill(driver, &(struct ask){.owner = "A", .key = "a"}, 4);
    driver_fill(driver, &(struct ask){.owner = "B", .key = "b"}, 4);
    driver->clock_ms = 10;
    assert_int_equal(RELEASE_ALL(driver, .owner = "A").count, 4);
    driver->clock_ms = 20;
    assert_int_equal(PURGE(driver, .key = NULL).count, 4);
    struct tombstone_view end;
    struct slice ns = slice_text(NAMESPACE_DEFAULT);
    assert_true(fsm_query_tombstone(driver->fsm, ns, slice_text("a00003"), &end));
    assert_int_equal(end.reason, END_REASON_RELEASED);
    assert_int_equal(end.ended_ms, 10);
    assert_true(fsm_query_tombstone(driver->fsm, ns, slice_text("b00003"), &end));
    assert_int_equal(end.reason, END_REASON_PURGED);
    assert_int_equal(end.ended_ms, 20);
    struct fsm *loaded = driver_round_trip(driver);
    fsm_destroy(loaded);
    while (stored(driver) > 0) {
        driver_pass(driver, 0);
    }
    assert_true(fsm_query_tombstone(driver->fsm, ns, slice_text("a00003"), &end));
    assert_int_equal(end.reason, END_REASON_RELEASED);
    driver_destroy(driver);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        CASE(test_renew_all__renews_own_leases_only),
        CASE(test_renew_all__of_few_leases_among_many_keeps_the_queue_in_order),
        CASE(test_renew_all__an_unchanged_set_keeps_its_version),
        CASE(test_renew_all__names_every_way_to_leave),
        CASE(test_renew_all__only_what_left_since_the_version_is_named),
        CASE(test_renew_all__a_due_lease_taken_again_is_a_departure),
        CASE(test_renew_all__of_due_leases_renews_none),
        CASE(test_renew_all__a_version_of_the_future_says_list_again),
        cmocka_unit_test(test_renew_all__says_list_again_when_it_no_longer_remembers),
        cmocka_unit_test(test_renew_all__an_owner_that_was_forgotten_says_list_again),
        cmocka_unit_test(test_release_all__ends_own_leases_at_once_and_removes_them_in_slices),
        cmocka_unit_test(test_release_all__what_was_due_before_has_expired),
        CASE(test_release_all__of_nothing_sets_no_mark),
        cmocka_unit_test(test_release_all__twice_counts_each_lease_once),
        cmocka_unit_test(test_purge__ends_every_lease_of_the_namespace_markers_too),
        CASE(test_purge__is_a_loss_of_state_for_the_namespace),
        cmocka_unit_test(test_purge__of_an_unknown_namespace_counts_until_a_grace_has_passed),
        cmocka_unit_test(test_purge__after_release_all_keeps_what_ended_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
