/* Reads: one key, lists with every filter, counts, what is due, what is shown of the dead. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "tests/fsm/driver.h"

/* Keys of a listing, joined. */
struct listing {
    char keys[256];
    unsigned left; /* stops after so many */
};

static bool on_view(void *ctx, const struct lease_view *view)
{
    struct listing *listing = ctx;
    size_t len = strlen(listing->keys);
    (void)snprintf(listing->keys + len, sizeof listing->keys - len, "%.*s ", (int)view->key.len,
                   (const char *)view->key.base);
    return --listing->left > 0;
}

static void check_list(const struct driver *driver, const struct fsm_filter *filter,
                       const char *keys)
{
    struct listing listing = {.left = 1000};
    fsm_query_list(driver->fsm, filter, driver->clock_ms, on_view, &listing);
    assert_string_equal(listing.keys, keys);
    unsigned count = 0;
    for (const char *at = keys; *at != 0; at++) {
        count += *at == ' ';
    }
    assert_int_equal(fsm_query_count(driver->fsm, filter, driver->clock_ms), count);
}

static int setup(void **state)
{
    struct driver *driver = driver_create(NULL);
    (void)TAKE(driver, .owner = "B", .key = "b/2");
    (void)TAKE(driver, .owner = "A", .key = "a");
    (void)CLAIM(driver, .owner = "A", .key = "b/1", .destroy = true);
    (void)TAKE(driver, .owner = "A", .key = "b/3");
    (void)TAKE(driver, .owner = "A", .key = "b", .meta = slice_text("url"),
               .identity = slice_text("id"));
    (void)TAKE(driver, .owner = "A", .key = "\xc3\xa4");
    (void)TAKE(driver, .owner = "A", .key = "other", .ns = "other");
    (void)TAKE(driver, .owner = "A", .key = "c", .ttl_ms = 10);
    *state = driver;
    return 0;
}

static int teardown(void **state)
{
    driver_destroy(*state);
    return 0;
}

static struct fsm_filter all(void)
{
    return (struct fsm_filter){.ns = slice_text(NAMESPACE_DEFAULT)};
}

static void test_query__owner_shows_the_whole_lease(void **state)
{
    struct driver *driver = *state;
    struct lease_view view;
    assert_true(driver_owner(driver, "b", &view));
    assert_true(slice_equal(view.ns, slice_text(NAMESPACE_DEFAULT)));
    assert_true(slice_equal(view.key, slice_text("b")));
    assert_true(slice_equal(view.owner, slice_text("A")));
    assert_true(slice_equal(view.meta, slice_text("url")));
    assert_true(slice_equal(view.identity, slice_text("id")));
    assert_int_equal(view.state, LEASE_STATE_OWN);
    assert_int_equal(view.ttl_ms, DRIVER_TTL_MS);
    assert_int_equal(view.expiry_ms, DRIVER_TTL_MS);
    assert_int_equal(view.since_ms, 0);
    assert_true(view.token > 0);
    assert_false(driver_owner(driver, "nobody", &view));
    assert_false(fsm_query_owner(driver->fsm, slice_text("ghost"), slice_text("b"), 0, &view));
}

static void test_query__a_read_ahead_of_the_table_hides_what_is_due_and_says_so(void **state)
{
    struct driver *driver = *state;
    struct lease_view view;
    struct slice ns = slice_text(NAMESPACE_DEFAULT);
    struct slice key = slice_text("c");
    assert_true(fsm_query_owner(driver->fsm, ns, key, 10, &view));
    assert_false(fsm_query_owner(driver->fsm, ns, key, 11, &view));
    assert_false(fsm_query_shows_due(driver->fsm, ns, key, true, 10));
    assert_true(fsm_query_shows_due(driver->fsm, ns, key, true, 11));
    assert_false(fsm_query_shows_due(driver->fsm, ns, slice_text("a"), true, 11));
    assert_true(fsm_query_shows_due(driver->fsm, ns, slice_from(NULL, 0), false, 11));
    assert_false(fsm_query_shows_due(driver->fsm, ns, slice_from(NULL, 0), false, 10));
    assert_false(fsm_query_shows_due(driver->fsm, ns, slice_text("b"), false, 11));
    assert_false(fsm_query_shows_due(driver->fsm, slice_text("other"), key, false, 11));
    assert_false(fsm_query_shows_due(driver->fsm, slice_text("ghost"), key, false, 11));
    driver_pass(driver, 11);
    assert_false(fsm_query_shows_due(driver->fsm, ns, key, true, 11));
}

static void test_query__lists_in_the_order_of_bytes(void **state)
{
    struct driver *driver = *state;
    struct fsm_filter filter = all();
    check_list(driver, &filter, "a b b/1 b/2 b/3 c \xc3\xa4 ");
    filter.ns = slice_text("other");
    check_list(driver, &filter, "other ");
    filter.ns = slice_text("ghost");
    check_list(driver, &filter, "");
}

static void test_query__lists_by_prefix_owner_and_state(void **state)
{
    struct driver *driver = *state;
    struct fsm_filter filter = all();
    filter.prefix = slice_text("b/");
    check_list(driver, &filter, "b/1 b/2 b/3 ");
    filter.owner = slice_text("A");
    check_list(driver, &filter, "b/1 b/3 ");
    filter.state = LEASE_STATE_DEL;
    check_list(driver, &filter, "b/1 ");
    filter.prefix = slice_from(NULL, 0);
    filter.state = LEASE_STATE_OWN;
    check_list(driver, &filter, "a b b/3 c \xc3\xa4 ");
    filter.owner = slice_from(NULL, 0);
    check_list(driver, &filter, "a b b/2 b/3 c \xc3\xa4 ");
    filter.state = LEASE_STATE_DEL;
    check_list(driver, &filter, "b/1 ");
    filter = all();
    filter.owner = slice_text("nobody");
    check_list(driver, &filter, "");
    filter = all();
    filter.prefix = slice_text("x");
    check_list(driver, &filter, "");
}

static void test_query__pages_go_on_after_a_key_that_may_be_gone(void **state)
{
    struct driver *driver = *state;
    struct fsm_filter filter = all();
    filter.after = slice_text("b/1");
    check_list(driver, &filter, "b/2 b/3 c \xc3\xa4 ");
    filter.after = slice_text("b/15");
    check_list(driver, &filter, "b/2 b/3 c \xc3\xa4 ");
    filter.prefix = slice_text("b/");
    check_list(driver, &filter, "b/2 b/3 ");
    filter.after = slice_text("a");
    check_list(driver, &filter, "b/1 b/2 b/3 ");
    filter.after = slice_text("c");
    check_list(driver, &filter, "");
    filter = all();
    filter.after = slice_text("b");
    filter.owner = slice_text("A");
    check_list(driver, &filter, "b/1 b/3 c \xc3\xa4 ");
    filter.after = slice_text("\xc3\xa4");
    check_list(driver, &filter, "");
}

static void test_query__a_listing_stops_when_told(void **state)
{
    struct driver *driver = *state;
    struct fsm_filter filter = all();
    struct listing listing = {.left = 2};
    fsm_query_list(driver->fsm, &filter, 0, on_view, &listing);
    assert_string_equal(listing.keys, "a b ");
    listing = (struct listing){.left = 2};
    filter.owner = slice_text("A");
    fsm_query_list(driver->fsm, &filter, 0, on_view, &listing);
    assert_string_equal(listing.keys, "a b ");
}

static void test_query__hides_what_is_due_or_under_a_mark(void **state)
{
    (void)state;
    struct settings settings = settings_default();
    settings.removal_slice = 1;
    struct driver *driver = driver_create(&settings);
    (void)TAKE(driver, .owner = "A", .key = "1", .ttl_ms = 10);
    (void)TAKE(driver, .owner = "A", .key = "2", .ttl_ms = 10);
    (void)TAKE(driver, .owner = "B", .key = "3");
    (void)TAKE(driver, .owner = "B", .key = "4");
    (void)TAKE(driver, .owner = "A", .key = "5");
    driver->clock_ms = 11;
    assert_int_equal(RELEASE_ALL(driver, .owner = "B").count, 2);
    struct fsm_stats stats;
    fsm_stats(driver->fsm, &stats);
    assert_int_equal(stats.leases_own, 3); /* one of each was removed */
    struct fsm_filter filter = all();
    check_list(driver, &filter, "5 ");
    filter.owner = slice_text("B");
    check_list(driver, &filter, "");
    /* What is under a mark is gone for good: nobody waits for it. */
    assert_false(fsm_query_shows_due(driver->fsm, slice_text(NAMESPACE_DEFAULT), slice_text("4"),
                                     true, 2000));
    assert_true(fsm_query_unowned_since(driver->fsm, slice_text(NAMESPACE_DEFAULT),
                                        slice_text("4")) == 11);
    assert_true(fsm_query_unowned_since(driver->fsm, slice_text(NAMESPACE_DEFAULT),
                                        slice_text("2")) == 10);
    driver_destroy(driver);
}

static void test_query__tombstones_of_live_and_unknown_keys_are_none(void **state)
{
    struct driver *driver = *state;
    struct tombstone_view view;
    struct slice ns = slice_text(NAMESPACE_DEFAULT);
    assert_false(fsm_query_tombstone(driver->fsm, ns, slice_text("a"), &view));
    assert_false(fsm_query_tombstone(driver->fsm, ns, slice_text("nobody"), &view));
    assert_false(fsm_query_tombstone(driver->fsm, slice_text("ghost"), slice_text("a"), &view));
    uint64_t token = TAKE(driver, .owner = "A", .key = "a").token;
    driver->clock_ms = 5;
    (void)RELEASE(driver, .owner = "A", .key = "a");
    assert_true(fsm_query_tombstone(driver->fsm, ns, slice_text("a"), &view));
    assert_true(slice_equal(view.owner, slice_text("A")));
    assert_int_equal(view.state, LEASE_STATE_OWN);
    assert_int_equal(view.reason, END_REASON_RELEASED);
    assert_int_equal(view.ended_ms, 5);
    assert_true(view.token == token);
    (void)TAKE(driver, .owner = "B", .key = "a"); /* a new grant replaces it */
    assert_false(fsm_query_tombstone(driver->fsm, ns, slice_text("a"), &view));
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        CASE(test_query__owner_shows_the_whole_lease),
        CASE(test_query__a_read_ahead_of_the_table_hides_what_is_due_and_says_so),
        CASE(test_query__lists_in_the_order_of_bytes),
        CASE(test_query__lists_by_prefix_owner_and_state),
        CASE(test_query__pages_go_on_after_a_key_that_may_be_gone),
        CASE(test_query__a_listing_stops_when_told),
        cmocka_unit_test(test_query__hides_what_is_due_or_under_a_mark),
        CASE(test_query__tombstones_of_live_and_unknown_keys_are_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
