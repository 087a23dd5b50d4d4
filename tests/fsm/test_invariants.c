/* Invariants notice what they must: each planted inconsistency is told, and undone it is gone. A
 * checker that nothing can fail proves nothing. */
#include "fsm/invariants.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "fsm/fsm_state.h"
#include "tests/fsm/driver.h"

static struct driver *full(void)
{
    struct settings settings = settings_default();
    settings.removal_slice = 1;
    struct driver *driver = driver_create(&settings);
    driver_fill(driver, &(struct ask){.owner = "A", .key = "a"}, 4);
    (void)TAKE(driver, .owner = "C", .key = "k");
    (void)CLAIM(driver, .owner = "C", .key = "l", .destroy = true);
    (void)TAKE(driver, .owner = "D", .key = "m");
    (void)RELEASE(driver, .owner = "D", .key = "m");
    (void)TAKE(driver, .owner = "C", .key = "n");
    (void)RELEASE(driver, .owner = "C", .key = "n");
    (void)driver_run(driver, &(struct op){.kind = OP_KIND_OPEN_ORIGIN});
    driver->clock_ms = 10;
    (void)PURGE(driver, .ns = "ghost");
    (void)RELEASE_ALL(driver, .owner = "A");
    return driver;
}

static struct space *space_of(struct fsm *fsm)
{
    struct space *space = space_find(&fsm->table, slice_text(NAMESPACE_DEFAULT));
    assert_non_null(space);
    return space;
}

static void check_noticed(struct fsm *fsm, uint64_t *value, uint64_t wrong)
{
    uint64_t right = *value;
    assert_null(invariants_check(fsm));
    assert_true(right != wrong);
    *value = wrong;
    assert_non_null(invariants_check(fsm));
    *value = right;
    assert_null(invariants_check(fsm));
}

static void test_invariants__notice_scalars_and_sums(void **state)
{
    (void)state;
    struct driver *driver = full();
    struct fsm *fsm = driver->fsm;
    check_noticed(fsm, &fsm->lost_ms, 11);
    check_noticed(fsm, &fsm->token, 1000);
    check_noticed(fsm, &fsm->clock_ms, 0);
    check_noticed(fsm, &fsm->settings.leases_max, 0);
    check_noticed(fsm, &fsm->forgotten_before_ms, 11);
    check_noticed(fsm, &fsm->silent_before_ms, 11);
    check_noticed(fsm, &fsm->settings.tombstone_retention_ms, 1);
    check_noticed(fsm, &fsm->settings.origin_retention_ms, 1);
    check_noticed(fsm, &fsm->table.own_count, 0);
    check_noticed(fsm, &fsm->table.del_count, 0);
    check_noticed(fsm, &fsm->table.tombstone_count, 0);
    check_noticed(fsm, &fsm->table.lease_digest, 0);
    check_noticed(fsm, &fsm->table.tombstone_digest, 0);
    check_noticed(fsm, &fsm->table.space_digest, 0);
    check_noticed(fsm, &fsm->table.forgotten.until_ms, 11);
    check_noticed(fsm, &fsm->table.forgotten.token, UINT64_MAX);
    check_noticed(fsm, &fsm->owners.owner_count, 0);
    check_noticed(fsm, &fsm->owners.owner_digest, 0);
    check_noticed(fsm, &fsm->owners.departure_count, 0);
    check_noticed(fsm, &fsm->owners.departure_digest, 0);
    check_noticed(fsm, &fsm->owners.forgotten_version, UINT64_MAX);
    check_noticed(fsm, &fsm->marks.count, 0);
    check_noticed(fsm, &fsm->marks.digest, 0);
    check_noticed(fsm, &fsm->origins.outcome_count, 0);
    check_noticed(fsm, &fsm->origins.origin_digest, 0);
    check_noticed(fsm, &fsm->origins.outcome_digest, 0);
    driver_destroy(driver);
}

static void test_invariants__notice_broken_records(void **state)
{
    (void)state;
    struct driver *driver = full();
    struct fsm *fsm = driver->fsm;
    struct space *space = space_of(fsm);
    struct lease *lease = lease_find(space, slice_text("k"));
    check_noticed(fsm, &lease->token, 1);
    check_noticed(fsm, &lease->token, UINT64_MAX);
    check_noticed(fsm, &lease->ttl_ms, TTL_MS_MAX + 1);
    check_noticed(fsm, &lease->expiry_ms, lease->expiry_ms + 1);
    check_noticed(fsm, &lease->since_ms, 5);
    check_noticed(fsm, &lease->written_index, UINT64_MAX);
    check_noticed(fsm, &lease->digest_fixed, 0);
    check_noticed(fsm, &lease->key_node.hash, lease->key_node.hash ^ 1);
    check_noticed(fsm, &space->keys.hash_key.words[0], 1);
    check_noticed(fsm, &lease->owner->own_count, 7);
    check_noticed(fsm, &lease->owner->set_version, UINT64_MAX);
    check_noticed(fsm, &lease->owner->forgotten_version, UINT64_MAX);
    check_noticed(fsm, &lease->owner->departure_count, 0);
    struct tombstone *tombstone = tombstone_find(space, slice_text("m"));
    check_noticed(fsm, &tombstone->token, 0);
    check_noticed(fsm, &tombstone->ended_ms, 11);
    check_noticed(fsm, &space->purged_ms, 5);
    check_noticed(fsm, &space->marked, 0);
    struct mark *mark = CONTAINER_OF(list_first(&fsm->marks.all), struct mark, link);
    check_noticed(fsm, &mark->remaining, 1);
    check_noticed(fsm, &mark->set_ms, 11);
    struct origin *origin = origin_find(&fsm->origins, driver->origin);
    check_noticed(fsm, &origin->heard_ms, 11);
    check_noticed(fsm, &origin->heard_index, 1);
    check_noticed(fsm, &origin->confirmed, 3);
    check_noticed(fsm, &origin_outcome_at(origin, 1)->sequence, 1);
    driver_destroy(driver);
}

static void test_invariants__notice_broken_links(void **state)
{
    (void)state;
    struct driver *driver = full();
    struct fsm *fsm = driver->fsm;
    struct space *space = space_of(fsm);
    struct lease *lease = lease_find(space, slice_text("k"));
    list_remove(&lease->token_link);
    assert_non_null(invariants_check(fsm));
    list_prepend(&space->by_token, &lease->token_link);
    assert_non_null(invariants_check(fsm));
    list_remove(&lease->token_link);
    list_append(&space->by_token, &lease->token_link);
    assert_non_null(invariants_check(fsm)); /* the marker is younger */
    struct lease *marker = lease_find(space, slice_text("l"));
    list_remove(&marker->token_link);
    list_append(&space->by_token, &marker->token_link);
    assert_null(invariants_check(fsm));
    space_loosen(&fsm->table, space);
    assert_non_null(invariants_check(fsm));
    list_remove(&space->loose);
    assert_null(invariants_check(fsm));
    (void)space_get(&fsm->table, slice_text("empty"));
    assert_string_equal(invariants_check(fsm), "a namespace is kept without need");
    driver_destroy(driver);
}

static void test_invariants__of_two_states_in_order(void **state)
{
    (void)state;
    struct driver *driver = full();
    struct fsm *before = driver_round_trip(driver);
    assert_null(invariants_check_step(before, driver->fsm));
    (void)TAKE(driver, .owner = "C", .key = "k");
    assert_null(invariants_check_step(before, driver->fsm));
    assert_string_equal(invariants_check_step(driver->fsm, before), "the index went back");
    before->index = driver->fsm->index;
    assert_string_equal(invariants_check_step(driver->fsm, before),
                        "the token counter went back");
    before->token = driver->fsm->token;
    assert_string_equal(invariants_check_step(driver->fsm, before), "a key's token went back");
    before->clock_ms--;
    assert_string_equal(invariants_check_step(driver->fsm, before),
                        "the cluster clock went back");
    before->clock_ms++;
    uint64_t *const grow_only[] = {
        &before->table.forgotten.token,
        &before->table.forgotten.until_ms,
        &before->forgotten_before_ms,
        &before->silent_before_ms,
        &before->owners.forgotten_version,
    };
    for (size_t i = 0; i < sizeof grow_only / sizeof grow_only[0]; i++) {
        uint64_t kept = *grow_only[i];
        *grow_only[i] = 9;
        assert_string_equal(invariants_check_step(before, driver->fsm),
                            "something forgotten came back");
        *grow_only[i] = kept;
    }
    before->born = false;
    assert_string_equal(invariants_check_step(driver->fsm, before), "a birth was undone");
    fsm_destroy(before);
    driver_destroy(driver);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_invariants__notice_scalars_and_sums),
        cmocka_unit_test(test_invariants__notice_broken_records),
        cmocka_unit_test(test_invariants__notice_broken_links),
        cmocka_unit_test(test_invariants__of_two_states_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
