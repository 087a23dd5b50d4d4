/* Reads: one key, lists with every filter, counts, what is due, what is shown of the dead. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "fsm/base/hash.h"
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

/* --- every filter against a plain walk */

struct walk {
    const struct fsm_filter *filter;
    struct fsm_filter *pages; /* `after` goes on with each view */
    char key[KEY_LEN_MAX];
    uint64_t count;
    uint64_t hash;
};

static void walk_add(struct walk *walk, const struct lease_view *view)
{
    walk->count++;
    walk->hash = hash64(walk->hash, view->key.base, view->key.len);
}

static bool on_any(void *ctx, const struct lease_view *view)
{
    struct walk *walk = ctx;
    const struct fsm_filter *filter = walk->filter;
    bool passes = (filter->owner.base == NULL || slice_equal(filter->owner, view->owner)) &&
                  (filter->state == 0 || filter->state == view->state) &&
                  slice_starts_with(view->key, filter->prefix) &&
                  (filter->after.base == NULL || slice_compare(view->key, filter->after) > 0);
    if (passes) {
        walk_add(walk, view);
    }
    return true;
}

static bool on_match(void *ctx, const struct lease_view *view)
{
    walk_add(ctx, view);
    return true;
}

/* Pages of one. */
static bool on_page(void *ctx, const struct lease_view *view)
{
    struct walk *walk = ctx;
    walk_add(walk, view);
    memcpy(walk->key, view->key.base, view->key.len);
    walk->pages->after = slice_from(walk->key, view->key.len);
    return false;
}

static void check_filter(const struct driver *driver, const struct fsm_filter *filter,
                         uint64_t now_ms)
{
    struct fsm_filter whole = {.ns = filter->ns};
    struct walk plain = {.filter = filter};
    struct walk listed = {0};
    fsm_query_list(driver->fsm, &whole, now_ms, on_any, &plain);
    fsm_query_list(driver->fsm, filter, now_ms, on_match, &listed);
    assert_int_equal(listed.count, plain.count);
    assert_true(listed.hash == plain.hash);
    assert_int_equal(fsm_query_count(driver->fsm, filter, now_ms), plain.count);

    struct fsm_filter pages = *filter;
    struct walk paged = {.pages = &pages};
    for (uint64_t i = 0; i < plain.count; i++) {
        fsm_query_list(driver->fsm, &pages, now_ms, on_page, &paged);
    }
    assert_int_equal(paged.count, plain.count);
    assert_true(paged.hash == plain.hash);
}

static void check_filters(const struct driver *driver, uint64_t now_ms)
{
    static const char *const owners[] = {NULL, "A", "B", "nobody"};
    static const char *const prefixes[] = {NULL, "", "m000", "x"};
    static const char *const afters[] = {NULL, "f00010", "m00011", "z"};
    for (unsigned i = 0; i < 4 * 4 * 4 * 3; i++) {
        const char *owner = owners[i % 4];
        const char *prefix = prefixes[i / 4 % 4];
        const char *after = afters[i / 16 % 4];
        struct fsm_filter filter = {.ns = slice_text(NAMESPACE_DEFAULT),
                                    .state = (enum lease_state)(i / 64)};
        filter.owner = owner == NULL ? filter.owner : slice_text(owner);
        filter.prefix = prefix == NULL ? filter.prefix : slice_text(prefix);
        filter.after = after == NULL ? filter.after : slice_text(after);
        check_filter(driver, &filter, now_ms);
    }
}

/* A has many leases, B few, C some of which are torn down: every way to find them is taken, while
 * nothing is dead, some are due and waiting for removal, and some are under marks. */
static void test_query__every_filter_finds_what_a_plain_walk_finds(void **state)
{
    (void)state;
    struct settings settings = settings_default();
    settings.removal_slice = 1;
    struct driver *driver = driver_create(&settings);
    driver_fill(driver, &(struct ask){.owner = "A", .key = "f", .ttl_ms = 60000}, 300);
    driver_fill(driver, &(struct ask){.owner = "C", .key = "m", .ttl_ms = 60000}, 40);
    (void)TAKE(driver, .owner = "B", .key = "f1", .ttl_ms = 60000);
    (void)TAKE(driver, .owner = "B", .key = "m1", .ttl_ms = 500);
    (void)TAKE(driver, .owner = "A", .key = "m2", .ttl_ms = 500);
    (void)CLAIM(driver, .owner = "B", .key = "m00012x", .destroy = true, .ttl_ms = 500);
    (void)CLAIM(driver, .owner = "C", .key = "m00012", .destroy = true, .ttl_ms = 60000);
    (void)CLAIM(driver, .owner = "C", .key = "m00013", .destroy = true, .ttl_ms = 500);
    check_filters(driver, 0);
    check_filters(driver, 501); /* four are due at the clock of the read */
    driver_pass(driver, 501);
    check_filters(driver, 501); /* and still here, but one */
    (void)RELEASE_ALL(driver, .owner = "C");
    check_filters(driver, 501);
    (void)RELEASE_ALL(driver, .owner = "A");
    (void)TAKE(driver, .owner = "A", .key = "f00009", .ttl_ms = 60000);
    (void)TAKE(driver, .owner = "B", .key = "m00009", .ttl_ms = 60000);
    check_filters(driver, 501);
    for (unsigned i = 0; i < 100; i++) {
        driver_pass(driver, 0);
    }
    check_filters(driver, 501);
    (void)PURGE(driver, .ns = NAMESPACE_DEFAULT);
    (void)CLAIM(driver, .owner = "B", .key = "m00009", .destroy = true, .ttl_ms = 60000);
    check_filters(driver, 501);
    (void)RELEASE(driver, .owner = "B", .key = "m00009");
    for (unsigned i = 0; i < 400; i++) {
        driver_pass(driver, 0);
    }
    struct fsm_stats stats;
    fsm_stats(driver->fsm, &stats);
    assert_int_equal(stats.leases_own + stats.leases_del, 0);
    check_filters(driver, 501); /* owners are remembered, and nothing else */
    driver_destroy(driver);
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
        cmocka_unit_test(test_query__every_filter_finds_what_a_plain_walk_finds),
        CASE(test_query__tombstones_of_live_and_unknown_keys_are_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
