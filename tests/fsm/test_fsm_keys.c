/* The decision table cell by cell, with expectations as literals of docs/protocol.md; guards,
 * identities, metadata, grace and limits (hazards D1, D5, D7, D8, T4, T10). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/fsm/driver.h"

/* Where a key stands before a cell is tried. */
enum before {
    BEFORE_ABSENT,
    BEFORE_OWN_SELF,
    BEFORE_OWN_PEER,
    BEFORE_DEL_SELF,
    BEFORE_DEL_PEER,
    BEFORE_COUNT,
};

struct row {
    const char *name;
    enum op_kind kind;
    bool destroy;
    bool adopt;
    bool reestablish;
    enum outcome_kind outcomes[BEFORE_COUNT];
    bool draws[BEFORE_COUNT]; /* a new token */
};

#define GRANTED OUTCOME_KIND_GRANTED
#define HELD OUTCOME_KIND_HELD
#define TEARDOWN OUTCOME_KIND_TEARDOWN
#define RENEWED OUTCOME_KIND_RENEWED
#define LAPSED OUTCOME_KIND_LAPSED
#define LOST OUTCOME_KIND_LOST
#define REESTABLISHED OUTCOME_KIND_REESTABLISHED
#define RELEASED OUTCOME_KIND_RELEASED
#define NOT_OWNER OUTCOME_KIND_NOT_OWNER
#define STALE OUTCOME_KIND_STALE
#define MISMATCH OUTCOME_KIND_MISMATCH
#define GRACE OUTCOME_KIND_GRACE
#define UNAVAILABLE OUTCOME_KIND_UNAVAILABLE

static const struct row rows[] = {
    {"take", OP_KIND_TAKE, false, false, false,
     {GRANTED, GRANTED, GRANTED, TEARDOWN, TEARDOWN}, {true, true, true, false, false}},
    {"claim", OP_KIND_CLAIM, false, false, false,
     {GRANTED, GRANTED, HELD, TEARDOWN, HELD}, {true, true, false, false, false}},
    {"claim destroy", OP_KIND_CLAIM, true, false, false,
     {GRANTED, GRANTED, HELD, GRANTED, HELD}, {true, true, false, false, false}},
    {"claim adopt", OP_KIND_CLAIM, false, true, false,
     {GRANTED, GRANTED, HELD, TEARDOWN, HELD}, {true, true, false, false, false}},
    {"claim destroy adopt", OP_KIND_CLAIM, true, true, false,
     {GRANTED, GRANTED, HELD, GRANTED, HELD}, {true, true, false, false, false}},
    {"renew", OP_KIND_RENEW, false, false, false,
     {LAPSED, RENEWED, LOST, LOST, LOST}, {false}},
    {"renew reestablish", OP_KIND_RENEW, false, false, true,
     {REESTABLISHED, RENEWED, LOST, LOST, LOST}, {true, false, false, false, false}},
    {"heartbeat", OP_KIND_HEARTBEAT, false, false, false,
     {LAPSED, LOST, LOST, RENEWED, LOST}, {false}},
    {"release", OP_KIND_RELEASE, false, false, false,
     {NOT_OWNER, RELEASED, NOT_OWNER, RELEASED, NOT_OWNER}, {false}},
};

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

/* "self" is A throughout, "peer" B. Returns the token that the key has. */
static uint64_t arrange(struct driver *driver, enum before before)
{
    if (before == BEFORE_ABSENT) {
        return 0;
    }
    bool self = before == BEFORE_OWN_SELF || before == BEFORE_DEL_SELF;
    bool del = before == BEFORE_DEL_SELF || before == BEFORE_DEL_PEER;
    struct outcome outcome =
        CLAIM(driver, .owner = self ? "A" : "B", .key = "k", .ttl_ms = 600, .destroy = del);
    assert_int_equal(outcome.kind, GRANTED);
    return outcome.token;
}

static bool is_refusal(enum outcome_kind kind)
{
    return kind == HELD || kind == TEARDOWN || kind == LOST || kind == LAPSED ||
           kind == NOT_OWNER || kind == STALE || kind == MISMATCH;
}

static void check_refusal(const struct driver *driver, const struct outcome *outcome,
                          enum before before, uint64_t token)
{
    struct lease_view view;
    bool there = driver_owner(driver, "k", &view);
    assert_int_equal(there, before != BEFORE_ABSENT);
    if (!there) {
        assert_null(outcome->holder.owner.base);
        return;
    }
    /* The holder is named, and nothing has changed, not even its TTL. */
    assert_true(slice_equal(outcome->holder.owner, view.owner));
    assert_int_equal(outcome->holder.state, view.state);
    assert_true(outcome->holder.token == token && view.token == token);
    assert_int_equal(outcome->holder.ms_left, 500);
    assert_int_equal(view.expiry_ms, driver->clock_ms + 500);
}

static void check_written(const struct driver *driver, const struct row *row,
                          const struct outcome *outcome, uint64_t token_before)
{
    struct lease_view view;
    if (row->kind == OP_KIND_RELEASE) {
        assert_false(driver_owner(driver, "k", &view));
        return;
    }
    assert_true(driver_owner(driver, "k", &view));
    assert_true(slice_equal(view.owner, slice_text("A")));
    bool del = row->destroy || row->kind == OP_KIND_HEARTBEAT;
    assert_int_equal(view.state, del ? LEASE_STATE_DEL : LEASE_STATE_OWN);
    assert_int_equal(view.expiry_ms, driver->clock_ms + DRIVER_TTL_MS);
    assert_int_equal(view.ttl_ms, DRIVER_TTL_MS);
    assert_true(view.token == outcome->token && view.expiry_ms == outcome->expiry_ms);
    assert_true(outcome->token >= token_before);
}

static void test_fsm__every_cell_of_the_decision_table(void **state)
{
    (void)state;
    unsigned checks = 0;
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        for (enum before before = BEFORE_ABSENT; before < BEFORE_COUNT; before++) {
            const struct row *row = &rows[r];
            struct driver *driver = driver_create(NULL);
            uint64_t token = arrange(driver, before);
            driver_pass(driver, 100);
            struct outcome outcome =
                driver_ask(driver, row->kind,
                           &(struct ask){.owner = "A",
                                         .key = "k",
                                         .destroy = row->destroy,
                                         .adopt = row->adopt,
                                         .reestablish = row->reestablish});
            if (outcome.kind != row->outcomes[before]) {
                fail_msg("%s, column %d: %s", row->name, (int)before,
                         outcome_kind_name(outcome.kind));
            }
            if (is_refusal(outcome.kind)) {
                check_refusal(driver, &outcome, before, token);
            } else {
                check_written(driver, row, &outcome, token);
                assert_int_equal(outcome.token > token, row->draws[before]);
            }
            if (outcome.kind == GRANTED) {
                assert_int_equal(outcome.held_before,
                                 before == BEFORE_OWN_SELF || before == BEFORE_DEL_SELF);
            }
            checks++;
            driver_destroy(driver);
        }
    }
    assert_int_equal(checks, 45);
}

static void test_fsm__a_takeover_names_whom_it_was_taken_from(void **state)
{
    struct driver *driver = *state;
    uint64_t token = TAKE(driver, .owner = "B", .key = "k", .ttl_ms = 600).token;
    driver_pass(driver, 100);
    struct outcome outcome = TAKE(driver, .owner = "A", .key = "k");
    assert_true(slice_equal(outcome.holder.owner, slice_text("B")));
    assert_int_equal(outcome.holder.state, LEASE_STATE_OWN);
    assert_true(outcome.holder.token == token && outcome.token > token);
    assert_int_equal(outcome.holder.ms_left, 500);
    assert_false(outcome.held_before);
}

/* Both sides of the edge: there at its expiry, gone one millisecond later (P3, P4). */
static void test_fsm__a_lease_lives_up_to_its_expiry_and_not_longer(void **state)
{
    struct driver *driver = *state;
    (void)TAKE(driver, .owner = "A", .key = "k", .ttl_ms = 100);
    driver->clock_ms = 100;
    assert_int_equal(CLAIM(driver, .owner = "B", .key = "k").kind, HELD);
    driver->clock_ms = 101;
    assert_int_equal(RENEW(driver, .owner = "A", .key = "k").kind, LAPSED);
    assert_int_equal(CLAIM(driver, .owner = "B", .key = "k").kind, GRANTED);
}

static void test_fsm__a_writer_sets_its_own_ttl_shorter_or_longer(void **state)
{
    struct driver *driver = *state;
    (void)TAKE(driver, .owner = "A", .key = "k", .ttl_ms = 1000);
    assert_int_equal(RENEW(driver, .owner = "A", .key = "k", .ttl_ms = 50).expiry_ms, 50);
    assert_int_equal(RENEW(driver, .owner = "A", .key = "k", .ttl_ms = 5000).expiry_ms, 5000);
    assert_int_equal(CLAIM(driver, .owner = "A", .key = "k", .ttl_ms = 20).expiry_ms, 20);
}

static void test_fsm__since_is_kept_by_the_same_owner_only(void **state)
{
    struct driver *driver = *state;
    struct lease_view view;
    driver_pass(driver, 10);
    (void)TAKE(driver, .owner = "A", .key = "k");
    driver_pass(driver, 10);
    (void)TAKE(driver, .owner = "A", .key = "k");
    (void)CLAIM(driver, .owner = "A", .key = "k", .destroy = true);
    assert_true(driver_owner(driver, "k", &view));
    assert_int_equal(view.since_ms, 10);
    (void)RELEASE(driver, .owner = "A", .key = "k");
    (void)TAKE(driver, .owner = "A", .key = "k");
    assert_true(driver_owner(driver, "k", &view));
    assert_int_equal(view.since_ms, 20);
    driver_pass(driver, 10);
    (void)TAKE(driver, .owner = "B", .key = "k");
    assert_true(driver_owner(driver, "k", &view));
    assert_int_equal(view.since_ms, 30);
}

/* --- Guards. */

static void test_fsm__a_guard_with_another_token_is_stale_and_changes_nothing(void **state)
{
    struct driver *driver = *state;
    uint64_t token = TAKE(driver, .owner = "A", .key = "k").token;
    const enum op_kind kinds[] = {OP_KIND_CLAIM, OP_KIND_RENEW, OP_KIND_RENEW, OP_KIND_HEARTBEAT,
                                  OP_KIND_RELEASE};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        struct ask ask = {
            .owner = "A",
            .key = "k",
            .destroy = kinds[i] == OP_KIND_CLAIM,
            .reestablish = i == 2,
            .guarded = true,
            .if_token = token - 1,
        };
        struct outcome outcome = driver_ask(driver, kinds[i], &ask);
        assert_int_equal(outcome.kind, STALE);
        assert_true(outcome.holder.token == token);
    }
    struct lease_view view;
    assert_true(driver_owner(driver, "k", &view));
    assert_true(view.token == token && view.state == LEASE_STATE_OWN);
}

static void test_fsm__a_guard_with_the_right_token_passes(void **state)
{
    struct driver *driver = *state;
    uint64_t token = TAKE(driver, .owner = "A", .key = "k").token;
    assert_int_equal(
        RENEW(driver, .owner = "A", .key = "k", .guarded = true, .if_token = token).kind, RENEWED);
    struct outcome destroy = CLAIM(driver, .owner = "A", .key = "k", .destroy = true,
                                   .guarded = true, .if_token = token);
    assert_int_equal(destroy.kind, GRANTED);
    assert_true(destroy.token > token);
    assert_int_equal(HEARTBEAT(driver, .owner = "A", .key = "k", .guarded = true,
                               .if_token = destroy.token)
                         .kind,
                     RENEWED);
    assert_int_equal(CLAIM(driver, .owner = "A", .key = "k", .destroy = true, .guarded = true,
                           .if_token = destroy.token)
                         .token,
                     destroy.token);
    assert_int_equal(RELEASE(driver, .owner = "A", .key = "k", .guarded = true,
                             .if_token = destroy.token)
                         .kind,
                     RELEASED);
}

static void test_fsm__a_guard_speaks_on_the_callers_marker_too(void **state)
{
    struct driver *driver = *state;
    uint64_t own = TAKE(driver, .owner = "A", .key = "k").token;
    uint64_t del = CLAIM(driver, .owner = "A", .key = "k", .destroy = true).token;
    assert_int_equal(
        HEARTBEAT(driver, .owner = "A", .key = "k", .guarded = true, .if_token = own).kind, STALE);
    assert_int_equal(
        RELEASE(driver, .owner = "A", .key = "k", .guarded = true, .if_token = own).kind, STALE);
    struct outcome renew =
        RENEW(driver, .owner = "A", .key = "k", .guarded = true, .if_token = own);
    assert_int_equal(renew.kind, STALE);
    assert_int_equal(renew.holder.state, LEASE_STATE_DEL);
    assert_true(renew.holder.token == del);
}

static void test_fsm__a_guard_says_nothing_about_a_peers_lease(void **state)
{
    struct driver *driver = *state;
    uint64_t token = TAKE(driver, .owner = "B", .key = "k").token;
    struct ask ask = {.owner = "A", .key = "k", .guarded = true, .if_token = token};
    assert_int_equal(driver_ask(driver, OP_KIND_RENEW, &ask).kind, LOST);
    assert_int_equal(driver_ask(driver, OP_KIND_HEARTBEAT, &ask).kind, LOST);
    assert_int_equal(driver_ask(driver, OP_KIND_RELEASE, &ask).kind, NOT_OWNER);
    ask.destroy = true;
    assert_int_equal(driver_ask(driver, OP_KIND_CLAIM, &ask).kind, HELD);
}

static void test_fsm__destroy_with_a_guard_needs_a_lease(void **state)
{
    struct driver *driver = *state;
    assert_int_equal(
        CLAIM(driver, .owner = "A", .key = "k", .destroy = true, .guarded = true, .if_token = 7)
            .kind,
        LAPSED);
    assert_int_equal(RELEASE(driver, .owner = "A", .key = "k", .guarded = true, .if_token = 7).kind,
                     NOT_OWNER);
    assert_int_equal(
        HEARTBEAT(driver, .owner = "A", .key = "k", .guarded = true, .if_token = 7).kind, LAPSED);
}

static enum outcome_kind reestablish(struct driver *driver, uint64_t if_token)
{
    return RENEW(driver, .owner = "A", .key = "k", .reestablish = true, .guarded = true,
                 .if_token = if_token)
        .kind;
}

static void test_fsm__reestablish_does_not_revive_what_was_released(void **state)
{
    struct driver *driver = *state;
    uint64_t first = TAKE(driver, .owner = "A", .key = "k").token;
    uint64_t second = TAKE(driver, .owner = "A", .key = "k").token;
    (void)RELEASE(driver, .owner = "A", .key = "k");
    assert_int_equal(reestablish(driver, second), LAPSED);
    assert_int_equal(reestablish(driver, first), LAPSED);
    /* Without a guard it is the caller's word. */
    assert_int_equal(RENEW(driver, .owner = "A", .key = "k", .reestablish = true).kind,
                     REESTABLISHED);
}

static void test_fsm__reestablish_revives_what_expired(void **state)
{
    struct driver *driver = *state;
    uint64_t token = TAKE(driver, .owner = "A", .key = "k", .ttl_ms = 100).token;
    driver_pass(driver, 101);
    assert_int_equal(reestablish(driver, token), REESTABLISHED);
}

static void test_fsm__reestablish_yields_to_another_owner_since(void **state)
{
    struct driver *driver = *state;
    uint64_t token = TAKE(driver, .owner = "A", .key = "k").token;
    (void)TAKE(driver, .owner = "B", .key = "k", .ttl_ms = 100);
    driver_pass(driver, 101);
    assert_int_equal(reestablish(driver, token), LAPSED);
}

static void test_fsm__reestablish_yields_to_the_callers_own_later_teardown(void **state)
{
    struct driver *driver = *state;
    uint64_t token = TAKE(driver, .owner = "A", .key = "k").token;
    (void)CLAIM(driver, .owner = "A", .key = "k", .destroy = true, .ttl_ms = 100);
    driver_pass(driver, 101);
    assert_int_equal(reestablish(driver, token), LAPSED);
}

static void test_fsm__reestablish_ignores_the_tombstone_of_an_older_lease(void **state)
{
    struct driver *driver = *state;
    uint64_t token = TAKE(driver, .owner = "B", .key = "k").token;
    (void)RELEASE(driver, .owner = "B", .key = "k");
    assert_int_equal(reestablish(driver, token + 1), REESTABLISHED);
}

static void test_fsm__reestablish_yields_where_a_larger_token_was_forgotten(void **state)
{
    (void)state;
    struct settings settings = settings_default();
    settings.tombstones_max = 1;
    struct driver *driver = driver_create(&settings);
    uint64_t token = TAKE(driver, .owner = "A", .key = "x").token;
    (void)RELEASE(driver, .owner = "A", .key = "x");
    (void)TAKE(driver, .owner = "A", .key = "y");
    driver_pass(driver, 1);
    (void)RELEASE(driver, .owner = "A", .key = "y"); /* forgets the tombstone of x */
    assert_int_equal(reestablish(driver, token - 1), LAPSED);
    assert_int_equal(reestablish(driver, token), REESTABLISHED);
    driver_destroy(driver);
}

/* Past its retention a tombstone says nothing any more, removed or not. */
static void test_fsm__a_tombstone_past_its_retention_forbids_nothing(void **state)
{
    (void)state;
    struct settings settings = settings_default();
    settings.tombstone_retention_ms = 100;
    settings.removal_slice = 1;
    struct driver *driver = driver_create(&settings);
    (void)TAKE(driver, .owner = "A", .key = "a");
    uint64_t token = TAKE(driver, .owner = "A", .key = "k").token;
    (void)RELEASE(driver, .owner = "A", .key = "a");
    (void)RELEASE(driver, .owner = "A", .key = "k");
    driver->clock_ms = 100;
    assert_int_equal(reestablish(driver, token), LAPSED);
    driver->clock_ms = 101;
    struct tombstone_view end;
    assert_int_equal(reestablish(driver, token), REESTABLISHED);
    assert_false(fsm_query_tombstone(driver->fsm, slice_text(NAMESPACE_DEFAULT), slice_text("k"),
                                     &end));
    driver_destroy(driver);
}

/* --- Identity and metadata. */

static void test_fsm__another_identity_is_a_mismatch(void **state)
{
    struct driver *driver = *state;
    struct slice one = slice_text("one");
    struct slice two = slice_text("two");
    (void)TAKE(driver, .owner = "A", .key = "k", .identity = one);
    assert_int_equal(TAKE(driver, .owner = "A", .key = "k", .identity = two).kind, MISMATCH);
    assert_int_equal(TAKE(driver, .owner = "B", .key = "k", .identity = two).kind, MISMATCH);
    assert_int_equal(CLAIM(driver, .owner = "A", .key = "k", .identity = two).kind, MISMATCH);
    assert_int_equal(
        CLAIM(driver, .owner = "A", .key = "k", .destroy = true, .identity = two).kind, MISMATCH);
    /* HELD goes before MISMATCH; an empty identity is one too. */
    assert_int_equal(CLAIM(driver, .owner = "B", .key = "k", .identity = two).kind, HELD);
    assert_int_equal(
        TAKE(driver, .owner = "A", .key = "k", .identity = slice_from("", 0)).kind, MISMATCH);
    assert_int_equal(TAKE(driver, .owner = "B", .key = "k", .identity = one).kind, GRANTED);
    assert_int_equal(TAKE(driver, .owner = "A", .key = "k").kind, GRANTED);
}

static void test_fsm__stale_goes_before_mismatch(void **state)
{
    struct driver *driver = *state;
    uint64_t token = TAKE(driver, .owner = "A", .key = "k", .identity = slice_text("one")).token;
    struct ask ask = {.owner = "A",
                      .key = "k",
                      .destroy = true,
                      .guarded = true,
                      .if_token = token + 1,
                      .identity = slice_text("two")};
    assert_int_equal(driver_ask(driver, OP_KIND_CLAIM, &ask).kind, STALE);
    ask.if_token = token;
    assert_int_equal(driver_ask(driver, OP_KIND_CLAIM, &ask).kind, MISMATCH);
}

static void test_fsm__metadata_and_identity_stay_with_the_lease_and_end_with_it(void **state)
{
    struct driver *driver = *state;
    struct lease_view view;
    (void)TAKE(driver, .owner = "A", .key = "k", .meta = slice_text("url"),
               .identity = slice_text("id"));
    (void)TAKE(driver, .owner = "B", .key = "k");
    (void)RENEW(driver, .owner = "B", .key = "k");
    assert_true(driver_owner(driver, "k", &view));
    assert_true(slice_equal(view.meta, slice_text("url")));
    assert_true(slice_equal(view.identity, slice_text("id")));
    (void)CLAIM(driver, .owner = "B", .key = "k", .meta = slice_from("", 0));
    assert_true(driver_owner(driver, "k", &view));
    assert_non_null(view.meta.base);
    assert_int_equal(view.meta.len, 0);
    assert_true(slice_equal(view.identity, slice_text("id")));
    (void)RELEASE(driver, .owner = "B", .key = "k");
    (void)RENEW(driver, .owner = "B", .key = "k", .reestablish = true,
                .meta = slice_text("other"));
    assert_true(driver_owner(driver, "k", &view));
    assert_true(slice_equal(view.meta, slice_text("other")));
    assert_null(view.identity.base);
}

static void test_fsm__a_renewal_that_reestablishes_nothing_writes_no_metadata(void **state)
{
    struct driver *driver = *state;
    struct lease_view view;
    (void)TAKE(driver, .owner = "A", .key = "k", .meta = slice_text("url"));
    (void)RENEW(driver, .owner = "A", .key = "k", .reestablish = true,
                .meta = slice_text("other"));
    assert_true(driver_owner(driver, "k", &view));
    assert_true(slice_equal(view.meta, slice_text("url")));
}

/* --- Adoption. */

static void test_fsm__adoption_counts_from_the_end_of_the_lease(void **state)
{
    struct driver *driver = *state;
    (void)TAKE(driver, .owner = "A", .key = "k", .ttl_ms = 100);
    driver->clock_ms = 5000; /* removed late, but it ended at 100 (T10) */
    struct outcome outcome =
        CLAIM(driver, .owner = "B", .key = "k", .adopt = true, .grace_ms = 4901);
    assert_int_equal(outcome.kind, GRACE);
    assert_int_equal(outcome.grace_ms_left, 1);
    assert_int_equal(CLAIM(driver, .owner = "B", .key = "k", .adopt = true, .grace_ms = 4900).kind,
                     GRANTED);
}

static void test_fsm__adoption_of_an_unknown_key_counts_from_birth(void **state)
{
    struct driver *driver = *state;
    driver->clock_ms = 70;
    struct outcome outcome =
        CLAIM(driver, .owner = "B", .key = "k", .adopt = true, .grace_ms = 100);
    assert_int_equal(outcome.kind, GRACE);
    assert_int_equal(outcome.grace_ms_left, 30);
    assert_true(fsm_timed(driver->fsm));
    driver_pass(driver, 29);
    assert_true(fsm_timed(driver->fsm));
    driver_pass(driver, 1);
    assert_false(fsm_timed(driver->fsm));
    struct outcome granted = CLAIM(driver, .owner = "B", .key = "k", .adopt = true,
                                   .grace_ms = 100, .destroy = true);
    assert_int_equal(granted.kind, GRANTED);
    struct lease_view view;
    assert_true(driver_owner(driver, "k", &view));
    assert_int_equal(view.state, LEASE_STATE_DEL);
}

static void test_fsm__adoption_counts_from_what_was_forgotten(void **state)
{
    (void)state;
    struct settings settings = settings_default();
    settings.tombstones_max = 1;
    struct driver *driver = driver_create(&settings);
    driver_pass(driver, 40);
    (void)TAKE(driver, .owner = "A", .key = "x");
    (void)RELEASE(driver, .owner = "A", .key = "x");
    driver_pass(driver, 20);
    (void)TAKE(driver, .owner = "A", .key = "y");
    (void)RELEASE(driver, .owner = "A", .key = "y");
    /* x ended at 40 and is forgotten; whatever has no tombstone may have ended then. */
    assert_int_equal(
        CLAIM(driver, .owner = "B", .key = "z", .adopt = true, .grace_ms = 100).grace_ms_left, 80);
    assert_int_equal(
        CLAIM(driver, .owner = "B", .key = "y", .adopt = true, .grace_ms = 100).grace_ms_left,
        100);
    driver_destroy(driver);
}

static void test_fsm__a_grace_beyond_the_retention_is_invalid(void **state)
{
    struct driver *driver = *state;
    struct key_item item;
    struct ask ask = {.owner = "A",
                      .key = "k",
                      .adopt = true,
                      .grace_ms = TOMBSTONE_RETENTION_MS_DEFAULT};
    struct op op = driver_op(OP_KIND_CLAIM, &ask, &item);
    assert_int_equal(driver_run(driver, &op).status, STATUS_OK);
    op.grace_ms++;
    assert_int_equal(driver_run(driver, &op).status, STATUS_INVALID);
}

/* --- Limits. */

static void test_fsm__the_table_takes_no_more_leases_than_it_may(void **state)
{
    (void)state;
    struct settings settings = settings_default();
    settings.leases_max = 2;
    struct driver *driver = driver_create(&settings);
    (void)TAKE(driver, .owner = "A", .key = "x", .ttl_ms = 100);
    (void)TAKE(driver, .owner = "A", .key = "y", .ns = "other");
    struct outcome outcome = TAKE(driver, .owner = "A", .key = "z");
    assert_int_equal(outcome.kind, UNAVAILABLE);
    assert_int_equal(outcome.limit, LIMIT_KIND_LEASES);
    outcome = RENEW(driver, .owner = "A", .key = "z", .reestablish = true);
    assert_int_equal(outcome.kind, UNAVAILABLE);
    /* What is there may be written; what is due makes room, removed or not. */
    assert_int_equal(TAKE(driver, .owner = "B", .key = "x", .ttl_ms = 100).kind, GRANTED);
    driver->clock_ms = 101;
    assert_int_equal(TAKE(driver, .owner = "A", .key = "z").kind, GRANTED);
    driver_destroy(driver);
}

static void test_fsm__a_namespace_takes_no_more_leases_than_it_may(void **state)
{
    (void)state;
    struct settings settings = settings_default();
    settings.leases_per_namespace_max = 1;
    struct driver *driver = driver_create(&settings);
    (void)TAKE(driver, .owner = "A", .key = "x", .ttl_ms = 100);
    struct outcome outcome = TAKE(driver, .owner = "A", .key = "y");
    assert_int_equal(outcome.kind, UNAVAILABLE);
    assert_int_equal(outcome.limit, LIMIT_KIND_LEASES_PER_NAMESPACE);
    assert_int_equal(TAKE(driver, .owner = "A", .key = "y", .ns = "other").kind, GRANTED);
    driver->clock_ms = 101;
    assert_int_equal(TAKE(driver, .owner = "A", .key = "y").kind, GRANTED);
    driver_destroy(driver);
}

static void test_fsm__leases_under_a_mark_count_against_no_limit(void **state)
{
    (void)state;
    struct settings settings = settings_default();
    settings.leases_max = 3;
    settings.leases_per_namespace_max = 3;
    settings.removal_slice = 1;
    struct driver *driver = driver_create(&settings);
    (void)TAKE(driver, .owner = "A", .key = "x");
    (void)TAKE(driver, .owner = "A", .key = "y");
    (void)TAKE(driver, .owner = "A", .key = "z");
    assert_int_equal(RELEASE_ALL(driver, .owner = "A").count, 3); /* one of them is removed */
    assert_int_equal(TAKE(driver, .owner = "B", .key = "1").kind, GRANTED);
    assert_int_equal(TAKE(driver, .owner = "B", .key = "2").kind, GRANTED);
    assert_int_equal(TAKE(driver, .owner = "B", .key = "3").kind, GRANTED);
    assert_int_equal(TAKE(driver, .owner = "B", .key = "4").kind, UNAVAILABLE);
    driver_destroy(driver);
}

/* --- Many keys. */

static void test_fsm__each_key_of_a_command_is_decided_by_itself(void **state)
{
    struct driver *driver = *state;
    (void)TAKE(driver, .owner = "B", .key = "2");
    const struct key_item items[] = {
        {.key = slice_text("1")}, {.key = slice_text("2")}, {.key = slice_text("3")}};
    struct op op = {
        .kind = OP_KIND_CLAIM,
        .ns = slice_text(NAMESPACE_DEFAULT),
        .owner = slice_text("A"),
        .ttl_ms = 1000,
        .keys = items,
        .key_count = 3,
    };
    struct result result = driver_run(driver, &op);
    assert_int_equal(result.outcome_count, 3);
    assert_int_equal(result.outcomes[0].kind, GRANTED);
    assert_int_equal(result.outcomes[1].kind, HELD);
    assert_true(slice_equal(result.outcomes[1].holder.owner, slice_text("B")));
    assert_int_equal(result.outcomes[2].kind, GRANTED);
    assert_true(result.outcomes[2].token > result.outcomes[0].token);
}

static void test_fsm__keys_of_different_namespaces_never_meet(void **state)
{
    struct driver *driver = *state;
    (void)TAKE(driver, .owner = "A", .key = "k", .ns = "one");
    assert_int_equal(CLAIM(driver, .owner = "B", .key = "k", .ns = "two").kind, GRANTED);
    assert_int_equal(RENEW(driver, .owner = "A", .key = "k", .ns = "two").kind, LOST);
    assert_int_equal(RENEW(driver, .owner = "A", .key = "k", .ns = "one").kind, RENEWED);
}

/* D7: a destroyer that crashed. */
static void test_fsm__a_markers_tombstone_says_what_it_was(void **state)
{
    struct driver *driver = *state;
    (void)CLAIM(driver, .owner = "A", .key = "k", .destroy = true, .ttl_ms = 100);
    driver_pass(driver, 101);
    struct tombstone_view view;
    assert_true(fsm_query_tombstone(driver->fsm, slice_text(NAMESPACE_DEFAULT), slice_text("k"),
                                    &view));
    assert_int_equal(view.reason, END_REASON_EXPIRED);
    assert_int_equal(view.state, LEASE_STATE_DEL);
    assert_int_equal(view.ended_ms, 100);
    assert_true(slice_equal(view.owner, slice_text("A")));
    assert_int_equal(
        CLAIM(driver, .owner = "B", .key = "k", .adopt = true, .grace_ms = 10).grace_ms_left, 9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fsm__every_cell_of_the_decision_table),
        cmocka_unit_test_setup_teardown(test_fsm__a_takeover_names_whom_it_was_taken_from, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_fsm__a_lease_lives_up_to_its_expiry_and_not_longer,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(test_fsm__a_writer_sets_its_own_ttl_shorter_or_longer,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(test_fsm__since_is_kept_by_the_same_owner_only, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(
            test_fsm__a_guard_with_another_token_is_stale_and_changes_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(test_fsm__a_guard_with_the_right_token_passes, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_fsm__a_guard_speaks_on_the_callers_marker_too, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_fsm__a_guard_says_nothing_about_a_peers_lease, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_fsm__destroy_with_a_guard_needs_a_lease, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_fsm__reestablish_does_not_revive_what_was_released,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(test_fsm__reestablish_revives_what_expired, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_fsm__reestablish_yields_to_another_owner_since, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(
            test_fsm__reestablish_yields_to_the_callers_own_later_teardown, setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_fsm__reestablish_ignores_the_tombstone_of_an_older_lease, setup, teardown),
        cmocka_unit_test(test_fsm__reestablish_yields_where_a_larger_token_was_forgotten),
        cmocka_unit_test(test_fsm__a_tombstone_past_its_retention_forbids_nothing),
        cmocka_unit_test_setup_teardown(test_fsm__another_identity_is_a_mismatch, setup, teardown),
        cmocka_unit_test_setup_teardown(test_fsm__stale_goes_before_mismatch, setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_fsm__metadata_and_identity_stay_with_the_lease_and_end_with_it, setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_fsm__a_renewal_that_reestablishes_nothing_writes_no_metadata, setup, teardown),
        cmocka_unit_test_setup_teardown(test_fsm__adoption_counts_from_the_end_of_the_lease, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_fsm__adoption_of_an_unknown_key_counts_from_birth,
                                        setup, teardown),
        cmocka_unit_test(test_fsm__adoption_counts_from_what_was_forgotten),
        cmocka_unit_test_setup_teardown(test_fsm__a_grace_beyond_the_retention_is_invalid, setup,
                                        teardown),
        cmocka_unit_test(test_fsm__the_table_takes_no_more_leases_than_it_may),
        cmocka_unit_test(test_fsm__a_namespace_takes_no_more_leases_than_it_may),
        cmocka_unit_test(test_fsm__leases_under_a_mark_count_against_no_limit),
        cmocka_unit_test_setup_teardown(test_fsm__each_key_of_a_command_is_decided_by_itself,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(test_fsm__keys_of_different_namespaces_never_meet, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_fsm__a_markers_tombstone_says_what_it_was, setup,
                                        teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
