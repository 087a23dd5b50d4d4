/* Random runs. One replica lives on, another is written to a snapshot and read back before every
 * entry: state, bytes, digests and results must be the same at every step (P10, hazard R8). And: a
 * replica that removes one due thing per entry answers as one that removes all at once. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "fsm/invariants.h"
#include "fsm/snapshot.h"
#include "tests/fsm/driver.h"
#include "tests/fsm/random_ops.h"

#define SEEDS 12u
#define STEPS 2500u

/* P1, P2 and P5, as seen from outside. */
struct watch {
    uint64_t tokens[2][9];
};

static unsigned key_number(struct slice key)
{
    return key.base[key.len - 1] - (unsigned)'0';
}

static void check_promises(struct watch *watch, const struct command *command,
                           const struct result *result)
{
    if (result->status != STATUS_OK) {
        return;
    }
    unsigned ns = command->op.ns.len == 7 ? 0 : 1;
    for (uint32_t i = 0; i < result->outcome_count; i++) {
        const struct outcome *outcome = &result->outcomes[i];
        bool grant = outcome->kind == OUTCOME_KIND_GRANTED ||
                     outcome->kind == OUTCOME_KIND_REESTABLISHED;
        uint64_t *last = &watch->tokens[ns][key_number(command->op.keys[i].key)];
        if (grant) {
            bool keeps = command->op.destroy && outcome->held_before;
            assert_true(keeps ? outcome->token >= *last : outcome->token > *last);
            *last = outcome->token;
        }
    }
}

static void run_with_snapshots(uint64_t seed)
{
    struct random_ops random;
    random_ops_init(&random, seed);
    struct settings settings = random_settings(2);
    struct driver *stays = driver_create(&settings);
    struct driver *reloads = driver_create(&settings);
    struct watch watch = {0};
    uint64_t applied_once = 0;
    for (unsigned step = 0; step < STEPS; step++) {
        struct fsm *loaded = driver_round_trip(reloads);
        fsm_destroy(reloads->fsm);
        reloads->fsm = loaded;
        struct fsm *before = driver_round_trip(stays);

        random_pass(&random);
        stays->clock_ms = reloads->clock_ms = random.clock_ms;
        struct command command = random_command(&random);
        struct result result = driver_apply(stays, &command);
        (void)driver_apply(reloads, &command);
        assert_true(slice_equal(buf_slice(&stays->bytes), buf_slice(&reloads->bytes)));
        assert_true(fsm_digest(stays->fsm) == fsm_digest(reloads->fsm));
        assert_true(fsm_next_due_ms(stays->fsm) == fsm_next_due_ms(reloads->fsm));
        assert_true(fsm_timed(stays->fsm) == fsm_timed(reloads->fsm));
        const char *broken = invariants_check_step(before, stays->fsm);
        if (broken != NULL) {
            fail_msg("seed %" PRIu64 " step %u: %s", seed, step, broken);
        }
        if (result.position.index == stays->index) {
            check_promises(&watch, &command, &result); /* no repeat of an older one */
            applied_once += result.status == STATUS_OK;
        }
        random_learn(&random, &command, &result);
        fsm_destroy(before);
    }
    assert_true(applied_once > STEPS / 4);
    driver_destroy(stays);
    driver_destroy(reloads);
}

static void test_fsm_random__a_replica_from_a_snapshot_is_the_same_replica(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        run_with_snapshots(seed);
    }
}

/* --- Slices never show. */

static int compare_departures(const void *a, const void *b)
{
    const struct departure *x = a;
    const struct departure *y = b;
    int order = slice_compare(x->key, y->key);
    return order != 0 ? order : x->reason < y->reason ? -1 : x->reason > y->reason ? 1 : 0;
}

static void assert_same_departures(const struct result *a, const struct result *b)
{
    static struct departure left[64];
    static struct departure right[64];
    assert_int_equal(a->departure_count, b->departure_count);
    assert_true(a->departure_count <= 64);
    for (uint32_t i = 0; i < a->departure_count; i++) {
        left[i] = a->departures[i];
        right[i] = b->departures[i];
    }
    qsort(left, a->departure_count, sizeof left[0], compare_departures);
    qsort(right, b->departure_count, sizeof right[0], compare_departures);
    for (uint32_t i = 0; i < a->departure_count; i++) {
        assert_true(slice_equal(left[i].key, right[i].key));
        assert_int_equal(left[i].reason, right[i].reason);
    }
}

/* `exact`: also that what left is still known. "List again" may come without need, depending on the
 * order in which owners were forgotten. */
static void assert_same_answer(const struct result *a, const struct result *b, bool exact)
{
    assert_int_equal(a->status, b->status);
    assert_int_equal(a->outcome_count, b->outcome_count);
    for (uint32_t i = 0; i < a->outcome_count; i++) {
        const struct outcome *x = &a->outcomes[i];
        const struct outcome *y = &b->outcomes[i];
        assert_int_equal(x->kind, y->kind);
        assert_int_equal(x->expiry_ms, y->expiry_ms);
        assert_int_equal(x->held_before, y->held_before);
        assert_int_equal(x->grace_ms_left, y->grace_ms_left);
        assert_int_equal(x->limit, y->limit);
        assert_true(slice_equal(x->holder.owner, y->holder.owner));
        assert_int_equal(x->holder.state, y->holder.state);
        assert_int_equal(x->holder.ms_left, y->holder.ms_left);
    }
    assert_int_equal(a->count, b->count);
    if (exact || (!a->list_again && !b->list_again)) {
        assert_int_equal(a->list_again, b->list_again);
        assert_same_departures(a, b);
    }
    assert_int_equal(a->settled_applied, b->settled_applied);
    assert_int_equal(a->settled_ended, b->settled_ended);
}

/* Tokens differ between the two, since each departure draws one when it is removed; every guard and
 * set version is therefore translated by where it was learned. */
struct twin {
    struct driver *driver;
    uint64_t tokens[2][9];
    uint64_t versions[2][4];
};

static size_t owner_number(struct slice owner)
{
    return owner.len > 1 ? 3 : (size_t)(owner.base[0] - 'A');
}

static struct result twin_run(struct twin *twin, const struct op *shape, uint64_t clock_ms)
{
    struct op op = *shape;
    struct key_item items[RANDOM_KEYS_MAX];
    unsigned ns = op.ns.len == 7 ? 0 : 1;
    for (uint32_t i = 0; i < op.key_count; i++) {
        items[i] = op.keys[i];
        if (items[i].has_if_token) {
            items[i].if_token = twin->tokens[ns][key_number(items[i].key)];
        }
    }
    op.keys = op.key_count > 0 ? items : NULL;
    if (op.has_set_version) {
        op.set_version = twin->versions[ns][owner_number(op.owner)];
    }
    twin->driver->clock_ms = clock_ms;
    twin->driver->confirmed = twin->driver->sequence;
    struct result result = driver_run(twin->driver, &op);
    if (result.status == STATUS_ORIGIN_UNKNOWN) {
        struct op open = {.kind = OP_KIND_OPEN_ORIGIN};
        twin->driver->origin = driver_run(twin->driver, &open).origin;
        twin->driver->sequence = 0;
        twin->driver->confirmed = 0;
        return (struct result){.status = STATUS_ORIGIN_UNKNOWN};
    }
    for (uint32_t i = 0; i < result.outcome_count; i++) {
        if (result.outcomes[i].token != 0) {
            twin->tokens[ns][key_number(op.keys[i].key)] = result.outcomes[i].token;
        }
    }
    if (op.kind == OP_KIND_RENEW_ALL) {
        twin->versions[ns][owner_number(op.owner)] = result.set_version;
    }
    return result;
}

static void assert_same_end(const struct twin *slow, const struct twin *fast, struct slice key)
{
    struct slice ns = slice_text(NAMESPACE_DEFAULT);
    const struct fsm *a = slow->driver->fsm;
    const struct fsm *b = fast->driver->fsm;
    struct lease_view lease;
    if (fsm_query_owner(a, ns, key, fsm_clock_ms(a), &lease)) {
        return;
    }
    struct tombstone_view x = {0};
    struct tombstone_view y = {0};
    assert_int_equal(fsm_query_tombstone(a, ns, key, &x), fsm_query_tombstone(b, ns, key, &y));
    assert_int_equal(x.reason, y.reason);
    assert_int_equal(x.ended_ms, y.ended_ms);
    assert_true(slice_equal(x.owner, y.owner));
    assert_int_equal(fsm_query_unowned_since(a, ns, key), fsm_query_unowned_since(b, ns, key));
}

static void run_twins(uint64_t seed, uint64_t retention_ms, uint64_t origin_retention_ms)
{
    struct random_ops random;
    random_ops_init(&random, seed);
    random.origins[0] = random.origins[1] = random.origins[2] = random.origins[3] = 1;
    struct settings settings = settings_default();
    settings.leases_max = 10;
    settings.leases_per_namespace_max = 7;
    settings.departures_max = 64;
    settings.tombstone_retention_ms = retention_ms;
    settings.origin_retention_ms = origin_retention_ms;
    settings.removal_slice = 1;
    struct twin slow = {.driver = driver_create(&settings)};
    settings.removal_slice = 1000;
    struct twin fast = {.driver = driver_create(&settings)};
    for (unsigned step = 0; step < STEPS; step++) {
        random_pass(&random);
        struct command command = random_command(&random);
        if (!op_kind_numbered(command.op.kind)) {
            continue;
        }
        struct result a = twin_run(&slow, &command.op, random.clock_ms);
        struct result b = twin_run(&fast, &command.op, random.clock_ms);
        assert_same_answer(&a, &b, retention_ms == TOMBSTONE_RETENTION_MS_DEFAULT);
        for (unsigned key = 0; key < 9; key++) {
            char name[] = "key-0";
            name[4] = (char)('0' + key);
            assert_same_end(&slow, &fast, slice_text(name));
        }
    }
    driver_destroy(slow.driver);
    driver_destroy(fast.driver);
}

static void test_fsm_random__slices_of_removal_never_show(void **state)
{
    (void)state;
    for (uint64_t seed = 101; seed <= 100 + SEEDS; seed++) {
        run_twins(seed, TOMBSTONE_RETENTION_MS_DEFAULT, ORIGIN_RETENTION_MS_DEFAULT);
    }
}

/* With periods so short that most of what is asked for waits for removal, or was removed. */
static void test_fsm_random__slices_of_forgetting_never_show(void **state)
{
    (void)state;
    for (uint64_t seed = 301; seed <= 300 + SEEDS; seed++) {
        run_twins(seed, 20 + seed % 7 * 60, 100 + seed % 5 * 400);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fsm_random__a_replica_from_a_snapshot_is_the_same_replica),
        cmocka_unit_test(test_fsm_random__slices_of_removal_never_show),
        cmocka_unit_test(test_fsm_random__slices_of_forgetting_never_show),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
