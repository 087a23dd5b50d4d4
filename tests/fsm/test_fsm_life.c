/* Birth, configuration, restore and recovery; the clock, what is due and when; the changes of an
 * entry; the digest (hazards D13, T1). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#include "fsm/invariants.h"
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

static struct fsm_stats stats_of(const struct driver *driver)
{
    struct fsm_stats stats;
    fsm_stats(driver->fsm, &stats);
    return stats;
}

static uint64_t grace_left(struct driver *driver, const char *key)
{
    return CLAIM(driver, .owner = "Z", .key = key, .adopt = true, .grace_ms = 1000).grace_ms_left;
}

/* --- Birth and configuration. */

static void test_life__before_birth_everything_is_refused(void **state)
{
    (void)state;
    struct driver *born = driver_create(NULL);
    struct driver driver = *born;
    driver.fsm = fsm_create();
    driver.index = 0;
    driver.sequence = 0;
    assert_false(fsm_born(driver.fsm));
    assert_false(fsm_timed(driver.fsm));
    assert_true(fsm_next_due_ms(driver.fsm) == UINT64_MAX);
    struct key_item item;
    struct op take = driver_op(OP_KIND_TAKE, &(struct ask){.owner = "A", .key = "k"}, &item);
    const struct op ops[] = {
        take,
        {.kind = OP_KIND_OPEN_ORIGIN},
        {.kind = OP_KIND_SETTLE, .target_origin = 1, .target_sequence = 1},
        {.kind = OP_KIND_CONFIGURE, .settings = settings_default()},
        {.kind = OP_KIND_RESTORE, .identity = driver_identity(2, 1)},
        {.kind = OP_KIND_RECOVER, .identity = driver_identity(2, 1)},
    };
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
        assert_int_equal(driver_run(&driver, &ops[i]).status, STATUS_UNINITIALISED);
    }
    fsm_destroy(driver_round_trip(&driver));
    fsm_destroy(driver.fsm);
    driver_destroy(born);
}

static void test_life__birth_sets_identity_settings_and_token_floor(void **state)
{
    (void)state;
    struct settings settings = settings_default();
    settings.leases_max = 77;
    settings.voters_wanted = 5;
    struct driver *driver = driver_create(&settings);
    assert_true(fsm_born(driver->fsm));
    assert_int_equal(fsm_identity(driver->fsm)->id[0], 1);
    assert_int_equal(fsm_identity(driver->fsm)->generation, 1);
    assert_int_equal(fsm_settings(driver->fsm)->leases_max, 77);
    assert_int_equal(fsm_settings(driver->fsm)->voters_wanted, 5);
    assert_int_equal(fsm_token(driver->fsm), 1001); /* 1000 and an origin */
    assert_int_equal(fsm_index(driver->fsm), 2);
    assert_int_equal(fsm_clock_ms(driver->fsm), 0);
    driver_destroy(driver);
}

static void test_life__a_second_birth_is_refused_and_changes_nothing(void **state)
{
    struct driver *driver = *state;
    (void)TAKE(driver, .owner = "A", .key = "k");
    struct op birth = {.kind = OP_KIND_BIRTH,
                       .identity = driver_identity(9, 1),
                       .token_floor = 1u << 30,
                       .settings = settings_default()};
    birth.settings.leases_max = 1;
    assert_int_equal(driver_run(driver, &birth).status, STATUS_INVALID);
    assert_int_equal(fsm_identity(driver->fsm)->id[0], 1);
    assert_true(fsm_token(driver->fsm) < 2000);
    assert_int_equal(fsm_settings(driver->fsm)->leases_max, LEASES_MAX_DEFAULT);
}

/* Of a cluster that was configured so. */
static uint64_t digest_with(const struct settings *settings)
{
    struct driver *driver = driver_create(NULL);
    (void)driver_run(driver, &(struct op){.kind = OP_KIND_CONFIGURE, .settings = *settings});
    struct fsm *copy = driver_round_trip(driver);
    assert_memory_equal(fsm_settings(copy), settings, sizeof *settings);
    uint64_t digest = fsm_digest(copy);
    fsm_destroy(copy);
    driver_destroy(driver);
    return digest;
}

static void test_life__digest_and_snapshot_cover_every_setting(void **state)
{
    (void)state;
    const struct settings fine = settings_default();
    const size_t count = sizeof fine / sizeof(uint64_t);
    for (size_t i = 0; i < count; i++) {
        struct settings changed = fine;
        uint64_t *fields = (uint64_t *)(void *)&changed;
        fields[i] = i + 1 == count ? 5 : 7; /* the last: voters_wanted */
        assert_true(digest_with(&changed) != digest_with(&fine));
    }
}

static void test_life__lower_limits_are_reached_in_slices(void **state)
{
    struct driver *driver = *state;
    for (unsigned i = 0; i < 6; i++) {
        char key[8];
        (void)snprintf(key, sizeof key, "k%u", i);
        (void)TAKE(driver, .owner = "A", .key = key);
        (void)RELEASE(driver, .owner = "A", .key = key);
        (void)driver_run(driver, &(struct op){.kind = OP_KIND_OPEN_ORIGIN});
        driver->clock_ms++;
    }
    assert_int_equal(stats_of(driver).tombstones, 6);
    assert_int_equal(stats_of(driver).origins, 7);
    struct op configure = {.kind = OP_KIND_CONFIGURE, .settings = settings_default()};
    configure.settings.tombstones_max = 1;
    configure.settings.origins_max = 2;
    configure.settings.removal_slice = 2;
    (void)driver_run(driver, &configure);
    assert_int_equal(stats_of(driver).tombstones, 4);
    assert_int_equal(stats_of(driver).origins, 5);
    assert_true(fsm_next_due_ms(driver->fsm) <= driver->clock_ms);
    driver_pass(driver, 0);
    driver_pass(driver, 0);
    assert_int_equal(stats_of(driver).tombstones, 1);
    assert_int_equal(stats_of(driver).origins, 2);
    assert_true(fsm_next_due_ms(driver->fsm) > driver->clock_ms);
    struct tombstone_view end; /* the youngest stays */
    assert_true(fsm_query_tombstone(driver->fsm, slice_text(NAMESPACE_DEFAULT), slice_text("k5"),
                                    &end));
}

/* --- Restore and recovery. */

static void test_life__restore_ends_own_leases_and_gives_markers_a_full_ttl(void **state)
{
    struct driver *driver = *state;
    uint64_t token = TAKE(driver, .owner = "A", .key = "own", .ttl_ms = 500).token;
    (void)CLAIM(driver, .owner = "A", .key = "del", .destroy = true, .ttl_ms = 500);
    (void)TAKE(driver, .owner = "A", .key = "due", .ttl_ms = 100);
    driver->clock_ms = 200;
    struct op restore = {.kind = OP_KIND_RESTORE,
                         .identity = driver_identity(2, 1),
                         .token_floor = 1000000};
    assert_int_equal(driver_run(driver, &restore).status, STATUS_OK);
    struct lease_view view;
    struct tombstone_view end;
    struct slice ns = slice_text(NAMESPACE_DEFAULT);
    assert_false(driver_owner(driver, "own", &view));
    assert_true(driver_owner(driver, "del", &view) && view.expiry_ms == 700);
    assert_true(fsm_query_tombstone(driver->fsm, ns, slice_text("own"), &end));
    assert_int_equal(end.reason, END_REASON_RESTORED);
    assert_int_equal(end.ended_ms, 200);
    assert_true(end.token == token);
    assert_true(fsm_query_tombstone(driver->fsm, ns, slice_text("due"), &end));
    assert_int_equal(end.reason, END_REASON_EXPIRED);
    assert_int_equal(fsm_identity(driver->fsm)->id[0], 2);
    assert_true(fsm_token(driver->fsm) > 1000000);
}

/* D13: nobody adopts before a whole grace has passed; the owner comes back at once. */
static void test_life__restore_forgets_origins_and_counts_as_a_loss_of_state(void **state)
{
    struct driver *driver = *state;
    struct key_item item;
    struct op take = driver_op(OP_KIND_TAKE, &(struct ask){.owner = "A", .key = "k"}, &item);
    uint64_t token = driver_run(driver, &take).outcomes[0].token;
    uint64_t version = RENEW_ALL(driver, .owner = "A").set_version;
    driver->clock_ms = 200;
    struct op restore = {.kind = OP_KIND_RESTORE,
                         .identity = driver_identity(2, 1),
                         .token_floor = 1000000};
    (void)driver_run(driver, &restore);
    assert_int_equal(driver_repeat(driver, &take, 1).status, STATUS_ORIGIN_UNKNOWN);
    driver->origin = driver_run(driver, &(struct op){.kind = OP_KIND_OPEN_ORIGIN}).origin;
    assert_true(driver->origin > 1000000);
    driver->sequence = 0;
    assert_int_equal(grace_left(driver, "k"), 1000);
    assert_int_equal(grace_left(driver, "never seen"), 1000);
    struct result result =
        RENEW_ALL(driver, .owner = "A", .has_set_version = true, .set_version = version);
    assert_int_equal(result.departure_count, 1);
    assert_int_equal(result.departures[0].reason, END_REASON_RESTORED);
    struct outcome back = RENEW(driver, .owner = "A", .key = "k", .reestablish = true,
                                .guarded = true, .if_token = token);
    assert_int_equal(back.kind, OUTCOME_KIND_REESTABLISHED);
    assert_true(back.token > 1000000);
    /* The same restore again is none. */
    assert_int_equal(driver_run(driver, &restore).status, STATUS_INVALID);
    struct lease_view view;
    assert_true(driver_owner(driver, "k", &view));
}

static void test_life__recovery_keeps_leases_and_gives_each_a_full_ttl(void **state)
{
    struct driver *driver = *state;
    uint64_t token = TAKE(driver, .owner = "A", .key = "own", .ttl_ms = 500).token;
    (void)CLAIM(driver, .owner = "A", .key = "del", .destroy = true, .ttl_ms = 400);
    (void)TAKE(driver, .owner = "A", .key = "due", .ttl_ms = 100);
    driver->clock_ms = 200;
    struct op recover = {.kind = OP_KIND_RECOVER,
                         .identity = driver_identity(1, 2),
                         .token_floor = 1000000};
    assert_int_equal(driver_run(driver, &recover).status, STATUS_OK);
    struct lease_view view;
    assert_true(driver_owner(driver, "own", &view));
    assert_true(view.token == token && view.expiry_ms == 700);
    assert_true(driver_owner(driver, "del", &view) && view.expiry_ms == 600);
    assert_false(driver_owner(driver, "due", &view));
    assert_int_equal(fsm_identity(driver->fsm)->generation, 2);
    assert_true(TAKE(driver, .owner = "A", .key = "new").token > 1000000);
    assert_int_equal(grace_left(driver, "due"), 1000);
    /* An equal generation, or another cluster's, is none. */
    assert_int_equal(driver_run(driver, &recover).status, STATUS_INVALID);
    recover.identity = driver_identity(3, 9);
    assert_int_equal(driver_run(driver, &recover).status, STATUS_INVALID);
    assert_int_equal(fsm_identity(driver->fsm)->generation, 2);
}

/* --- Time. */

static void test_time__the_clock_never_goes_back(void **state)
{
    struct driver *driver = *state;
    driver_pass(driver, 100);
    driver->clock_ms = 40;
    driver_pass(driver, 0);
    assert_int_equal(fsm_clock_ms(driver->fsm), 100);
}

static void test_time__an_idle_machine_depends_on_no_clock(void **state)
{
    struct driver *driver = *state;
    assert_false(fsm_timed(driver->fsm));
    (void)TAKE(driver, .owner = "A", .key = "k", .ttl_ms = 100);
    assert_true(fsm_timed(driver->fsm));
    assert_int_equal(fsm_next_due_ms(driver->fsm), 101);
    driver_pass(driver, 101);
    assert_true(fsm_timed(driver->fsm)); /* a tombstone, that of time 100 */
    assert_int_equal(fsm_next_due_ms(driver->fsm), 100 + TOMBSTONE_RETENTION_MS_DEFAULT + 1);
    driver_pass(driver, TOMBSTONE_RETENTION_MS_DEFAULT - 1);
    assert_int_equal(stats_of(driver).tombstones, 1);
    driver_pass(driver, 1);
    assert_int_equal(stats_of(driver).tombstones, 0);
    driver_pass(driver, 1); /* the owner was idle from 101 on */
    assert_int_equal(stats_of(driver).owners, 0);
    assert_false(fsm_timed(driver->fsm));
    /* What is left is the origin. */
    assert_int_equal(fsm_next_due_ms(driver->fsm), ORIGIN_RETENTION_MS_DEFAULT + 1);
    driver_pass(driver, ORIGIN_RETENTION_MS_DEFAULT);
    assert_true(fsm_next_due_ms(driver->fsm) == UINT64_MAX);
}

static void test_time__due_leases_go_in_order_and_in_slices(void **state)
{
    (void)state;
    struct settings settings = settings_default();
    settings.removal_slice = 2;
    struct driver *driver = driver_create(&settings);
    (void)TAKE(driver, .owner = "A", .key = "c", .ttl_ms = 100);
    (void)TAKE(driver, .owner = "A", .key = "z", .ttl_ms = 100, .ns = "a");
    (void)TAKE(driver, .owner = "A", .key = "b", .ttl_ms = 100);
    (void)TAKE(driver, .owner = "A", .key = "d", .ttl_ms = 50);
    (void)TAKE(driver, .owner = "A", .key = "a", .ttl_ms = 101);
    driver_pass(driver, 101);
    static const char *const order[] = {"d", "z", "b", "c"};
    for (unsigned slice = 0; slice < 2; slice++) {
        const struct changes *changes = fsm_changes(driver->fsm);
        assert_int_equal(changes_count(changes), 2);
        for (uint32_t i = 0; i < 2; i++) {
            struct change change = changes_get(changes, i);
            assert_int_equal(change.kind, CHANGE_KIND_EXPIRED);
            assert_true(slice_equal(change.key, slice_text(order[2 * slice + i])));
            assert_true(change.position.index == driver->index &&
                        change.position.place == POSITION_PLACE_END);
        }
        driver_pass(driver, 0);
    }
    assert_int_equal(changes_count(fsm_changes(driver->fsm)), 0);
    assert_int_equal(stats_of(driver).leases_own, 1);
    driver_destroy(driver);
}

static void test_time__the_largest_stamp_is_a_time_like_any_other(void **state)
{
    struct driver *driver = *state;
    driver->clock_ms = CLOCK_MS_MAX;
    driver->origin = driver_run(driver, &(struct op){.kind = OP_KIND_OPEN_ORIGIN}).origin;
    (void)TAKE(driver, .owner = "A", .key = "k", .ttl_ms = TTL_MS_MAX);
    struct lease_view view;
    assert_true(driver_owner(driver, "k", &view));
    assert_true(view.expiry_ms == CLOCK_MS_MAX + TTL_MS_MAX);
    (void)RELEASE(driver, .owner = "A", .key = "k");
    fsm_destroy(driver_round_trip(driver));
}

/* --- Changes. */

static void expect_change(const struct driver *driver, enum change_kind kind,
                          const char *previous_owner, enum lease_state state)
{
    const struct changes *changes = fsm_changes(driver->fsm);
    assert_int_equal(changes_count(changes), 1);
    struct change change = changes_get(changes, 0);
    assert_int_equal(change.kind, kind);
    assert_true(slice_equal(change.key, slice_text("k")));
    assert_true(slice_equal(change.ns, slice_text(NAMESPACE_DEFAULT)));
    assert_int_equal(change.state, state);
    assert_int_equal(change.position.place, 0);
    if (previous_owner == NULL) {
        assert_null(change.previous_owner.base);
    } else {
        assert_true(slice_equal(change.previous_owner, slice_text(previous_owner)));
    }
}

static void test_changes__tell_each_step_of_a_lease(void **state)
{
    struct driver *driver = *state;
    (void)TAKE(driver, .owner = "A", .key = "k");
    expect_change(driver, CHANGE_KIND_GRANTED, NULL, LEASE_STATE_OWN);
    (void)RENEW(driver, .owner = "A", .key = "k");
    assert_int_equal(changes_count(fsm_changes(driver->fsm)), 0);
    (void)CLAIM(driver, .owner = "A", .key = "k");
    expect_change(driver, CHANGE_KIND_REGRANTED, NULL, LEASE_STATE_OWN);
    (void)TAKE(driver, .owner = "B", .key = "k");
    expect_change(driver, CHANGE_KIND_TRANSFERRED, "A", LEASE_STATE_OWN);
    (void)CLAIM(driver, .owner = "B", .key = "k", .destroy = true);
    expect_change(driver, CHANGE_KIND_TEARDOWN, NULL, LEASE_STATE_DEL);
    (void)CLAIM(driver, .owner = "B", .key = "k", .destroy = true);
    assert_int_equal(changes_count(fsm_changes(driver->fsm)), 0);
    (void)HEARTBEAT(driver, .owner = "B", .key = "k");
    assert_int_equal(changes_count(fsm_changes(driver->fsm)), 0);
    (void)RELEASE(driver, .owner = "B", .key = "k");
    expect_change(driver, CHANGE_KIND_RELEASED, NULL, LEASE_STATE_DEL);
    (void)RENEW(driver, .owner = "B", .key = "k", .reestablish = true);
    expect_change(driver, CHANGE_KIND_REESTABLISHED, NULL, LEASE_STATE_OWN);
    (void)PURGE(driver, .key = NULL);
    const struct changes *changes = fsm_changes(driver->fsm);
    assert_int_equal(changes_count(changes), 1);
    assert_int_equal(changes_get(changes, 0).kind, CHANGE_KIND_PURGED);
    (void)CLAIM(driver, .owner = "B", .key = "k", .destroy = true);
    expect_change(driver, CHANGE_KIND_TEARDOWN, NULL, LEASE_STATE_DEL);
    (void)driver_settle(driver, driver->sequence);
    expect_change(driver, CHANGE_KIND_SETTLED, NULL, LEASE_STATE_DEL);
}

/* --- Digest. */

static void test_digest__every_write_changes_it(void **state)
{
    struct driver *driver = *state;
    struct driver *other = driver_create(NULL);
    assert_true(fsm_digest(driver->fsm) == fsm_digest(other->fsm));
    uint64_t before = fsm_digest(driver->fsm);
    (void)TAKE(driver, .owner = "A", .key = "k");
    (void)TAKE(other, .owner = "A", .key = "l");
    assert_true(fsm_digest(driver->fsm) != before);
    assert_true(fsm_digest(driver->fsm) != fsm_digest(other->fsm));
    before = fsm_digest(driver->fsm);
    driver_pass(driver, 0);
    assert_true(fsm_digest(driver->fsm) != before); /* the index */
    driver_destroy(other);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_life__before_birth_everything_is_refused),
        cmocka_unit_test(test_life__birth_sets_identity_settings_and_token_floor),
        cmocka_unit_test(test_life__digest_and_snapshot_cover_every_setting),
        CASE(test_life__a_second_birth_is_refused_and_changes_nothing),
        CASE(test_life__lower_limits_are_reached_in_slices),
        CASE(test_life__restore_ends_own_leases_and_gives_markers_a_full_ttl),
        CASE(test_life__restore_forgets_origins_and_counts_as_a_loss_of_state),
        CASE(test_life__recovery_keeps_leases_and_gives_each_a_full_ttl),
        CASE(test_time__the_clock_never_goes_back),
        CASE(test_time__an_idle_machine_depends_on_no_clock),
        CASE(test_time__due_leases_go_in_order_and_in_slices),
        CASE(test_time__the_largest_stamp_is_a_time_like_any_other),
        CASE(test_changes__tell_each_step_of_a_lease),
        CASE(test_digest__every_write_changes_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
