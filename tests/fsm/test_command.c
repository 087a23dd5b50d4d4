/* Every rule at both sides of its edge, on every kind of operation, in the same words (T5). */
#include "fsm/command.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "tests/fsm/samples.h"

static const char text_of_a[KEY_LEN_MAX + META_LEN_MAX] = {0}; /* NULs: fine as meta */
static char text_of_x[META_LEN_MAX + 1];

static struct slice x_times(size_t len)
{
    assert_true(len <= sizeof text_of_x);
    memset(text_of_x, 'x', sizeof text_of_x);
    return slice_from(text_of_x, len);
}

/* A valid operation of this kind on one key; `item` must outlive it. */
static struct op valid_op(enum op_kind kind, struct key_item *item)
{
    *item = (struct key_item){.key = slice_text("k")};
    struct op op = {.kind = kind, .ns = slice_text("default"), .owner = slice_text("gw")};
    if (kind != OP_KIND_RELEASE && kind != OP_KIND_RELEASE_ALL && kind != OP_KIND_PURGE) {
        op.ttl_ms = 1000;
    }
    if (kind <= OP_KIND_RELEASE) {
        op.keys = item;
        op.key_count = 1;
    }
    if (kind == OP_KIND_PURGE) {
        op.owner = slice_from(NULL, 0);
    }
    return op;
}

static void assert_ok(const struct op *op)
{
    struct violation violation;
    assert_int_equal(op_validate(op, &violation), STATUS_OK);
}

static void assert_refused(const struct op *op, const char *field, const char *value,
                           const char *rule)
{
    struct violation violation;
    assert_int_equal(op_validate(op, &violation), STATUS_INVALID);
    assert_string_equal(violation.field, field);
    assert_string_equal(violation.value, value);
    assert_string_equal(violation.rule, rule);
}

static void test_command__samples_of_every_kind_are_valid(void **state)
{
    (void)state;
    size_t count = 0;
    const struct sample_command *samples = sample_commands(&count);
    bool seen[OP_KIND_RECOVER + 1] = {false};
    for (size_t i = 0; i < count; i++) {
        assert_ok(&samples[i].command.op);
        seen[samples[i].command.op.kind] = true;
    }
    for (int kind = OP_KIND_TAKE; kind <= OP_KIND_RECOVER; kind++) {
        assert_true(seen[kind]);
    }
}

/* T5: the same range and the same words on every operation that has a TTL. */
static void test_command__ttl_has_one_range_everywhere_T5(void **state)
{
    (void)state;
    static const enum op_kind kinds[] = {OP_KIND_TAKE, OP_KIND_CLAIM, OP_KIND_RENEW,
                                         OP_KIND_HEARTBEAT, OP_KIND_RENEW_ALL};
    struct key_item item;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        struct op op = valid_op(kinds[i], &item);
        op.ttl_ms = 10;
        assert_ok(&op);
        op.ttl_ms = 86400000;
        assert_ok(&op);
        op.ttl_ms = 9;
        assert_refused(&op, "ttl_ms", "9",
                       "must be a whole number of milliseconds in 10..86400000");
        op.ttl_ms = 86400001;
        assert_refused(&op, "ttl_ms", "86400001", RULE_TTL_MS);
        op.ttl_ms = 0;
        assert_refused(&op, "ttl_ms", "0", RULE_TTL_MS);
        op.ttl_ms = UINT64_MAX;
        assert_refused(&op, "ttl_ms", "18446744073709551615", RULE_TTL_MS);
    }
    struct op op = valid_op(OP_KIND_RELEASE, &item);
    op.ttl_ms = 1000;
    assert_refused(&op, "ttl_ms", "1000", RULE_NOT_HERE);
}

static void test_command__namespace_is_1_to_64_of_its_alphabet(void **state)
{
    (void)state;
    struct violation violation;
    assert_int_equal(namespace_validate(slice_text("a"), &violation), STATUS_OK);
    assert_int_equal(namespace_validate(slice_text("az09._:-"), &violation), STATUS_OK);
    assert_int_equal(namespace_validate(x_times(64), &violation), STATUS_OK);
    assert_int_equal(namespace_validate(x_times(65), &violation), STATUS_INVALID);
    assert_int_equal(namespace_validate(slice_text(""), &violation), STATUS_INVALID);
    static const char *const refused[] = {"A", "a b", "a/b", "\xc3\xa4", "a\n", "{", "`", "@", ";",
                                          "a,b"};
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        assert_int_equal(namespace_validate(slice_text(refused[i]), &violation), STATUS_INVALID);
        assert_string_equal(violation.field, "namespace");
        assert_string_equal(violation.rule, "must be 1..64 bytes of [a-z0-9._:-]");
    }
}

static void test_command__key_is_1_to_512_bytes_of_text(void **state)
{
    (void)state;
    struct key_item item;
    struct op op = valid_op(OP_KIND_TAKE, &item);
    item.key = x_times(1);
    assert_ok(&op);
    item.key = x_times(512);
    assert_ok(&op);
    item.key = slice_text("a/b:c|d%2F {\xc3\xa4\xf0\x9f\x98\x80}\\");
    assert_ok(&op);
    item.key = slice_text("");
    assert_refused(&op, "key", "", RULE_KEY);
    item.key = slice_text("a\x7f");
    assert_refused(&op, "key", "a\\x7f", RULE_KEY);
    item.key = slice_text("\xc2\x9b");
    assert_refused(&op, "key", "\\xc2\\x9b", RULE_KEY);
    item.key = slice_text("\xff");
    assert_refused(&op, "key", "\\xff", RULE_KEY);
    item.key = slice_from("a\0b", 3);
    assert_refused(&op, "key", "a\\x00b", RULE_KEY);
    struct violation violation;
    item.key = x_times(513);
    assert_int_equal(op_validate(&op, &violation), STATUS_INVALID);
    assert_string_equal(violation.field, "key");
}

static void test_command__owner_is_1_to_255_bytes_of_text(void **state)
{
    (void)state;
    struct violation violation;
    assert_int_equal(owner_validate(x_times(255), &violation), STATUS_OK);
    assert_int_equal(owner_validate(x_times(256), &violation), STATUS_INVALID);
    assert_int_equal(owner_validate(slice_text(""), &violation), STATUS_INVALID);
    assert_int_equal(owner_validate(slice_text("host|a:b/c\\d,e\"f"), &violation), STATUS_OK);
    assert_int_equal(owner_validate(slice_text("a\tb"), &violation), STATUS_INVALID);
    assert_string_equal(violation.field, "owner");
    assert_string_equal(violation.value, "a\\x09b");
    struct key_item item;
    struct op op = valid_op(OP_KIND_PURGE, &item);
    assert_ok(&op);
    op.owner = slice_text("gw");
    assert_refused(&op, "owner", "gw", RULE_NOT_HERE);
}

static void test_command__meta_and_identity_have_their_lengths(void **state)
{
    (void)state;
    struct key_item item;
    struct violation violation;
    struct op op = valid_op(OP_KIND_CLAIM, &item);
    item.meta = slice_from(text_of_a, 1024);
    item.identity = slice_from(text_of_a, 32);
    assert_ok(&op);
    item.meta = slice_from(text_of_a, 0);
    item.identity = slice_from(text_of_a, 0);
    assert_ok(&op);
    item.meta = slice_from(text_of_a, 1025);
    assert_int_equal(op_validate(&op, &violation), STATUS_INVALID);
    assert_string_equal(violation.field, "meta");
    assert_string_equal(violation.rule, RULE_META);
    item.meta = slice_from(NULL, 0);
    item.identity = slice_from(text_of_a, 33);
    assert_int_equal(op_validate(&op, &violation), STATUS_INVALID);
    assert_string_equal(violation.field, "identity");
    assert_string_equal(violation.rule, RULE_IDENTITY);
}

static void test_command__meta_goes_only_where_something_is_written(void **state)
{
    (void)state;
    for (int kind = OP_KIND_TAKE; kind <= OP_KIND_RELEASE; kind++) {
        struct key_item item;
        struct op op = valid_op((enum op_kind)kind, &item);
        bool writes = kind == OP_KIND_TAKE || kind == OP_KIND_CLAIM;
        item.meta = slice_text("m");
        if (writes) {
            assert_ok(&op);
        } else {
            assert_refused(&op, "meta", "m", RULE_META_WHERE);
        }
        item.meta = slice_from(NULL, 0);
        item.identity = slice_text("i");
        if (writes) {
            assert_ok(&op);
        } else {
            assert_refused(&op, "identity", "i", RULE_META_WHERE);
        }
    }
    struct key_item item;
    struct op op = valid_op(OP_KIND_RENEW, &item);
    op.reestablish = true;
    item.meta = slice_text("m");
    item.identity = slice_text("i");
    assert_ok(&op);
}

static void test_command__if_token_goes_only_with_guarded_operations(void **state)
{
    (void)state;
    for (int kind = OP_KIND_TAKE; kind <= OP_KIND_RELEASE; kind++) {
        struct key_item item;
        struct op op = valid_op((enum op_kind)kind, &item);
        item.has_if_token = true;
        item.if_token = 42;
        if (kind == OP_KIND_TAKE || kind == OP_KIND_CLAIM) {
            assert_refused(&op, "if_token", "42", RULE_IF_TOKEN);
        } else {
            assert_ok(&op);
        }
    }
    struct key_item item;
    struct op op = valid_op(OP_KIND_CLAIM, &item);
    item.has_if_token = true;
    op.destroy = true;
    assert_ok(&op);
    op.adopt = true;
    assert_ok(&op);
    op.destroy = false;
    assert_refused(&op, "if_token", "0", RULE_IF_TOKEN);
}

static void test_command__flags_go_only_with_their_operation(void **state)
{
    (void)state;
    for (int kind = OP_KIND_TAKE; kind <= OP_KIND_PURGE; kind++) {
        struct key_item item;
        struct op op = valid_op((enum op_kind)kind, &item);
        assert_ok(&op);
        if (kind != OP_KIND_CLAIM) {
            op.destroy = true;
            assert_refused(&op, "destroy", "true", RULE_NOT_HERE);
            op.destroy = false;
            op.adopt = true;
            assert_refused(&op, "adopt", "true", RULE_NOT_HERE);
            op.adopt = false;
        }
        op.grace_ms = 1;
        assert_refused(&op, "grace_ms", "1", RULE_ONLY_ADOPT);
        op.grace_ms = 0;
        if (kind != OP_KIND_RENEW) {
            op.reestablish = true;
            assert_refused(&op, "reestablish", "true", RULE_NOT_HERE);
            op.reestablish = false;
        }
        if (kind != OP_KIND_RENEW_ALL) {
            op.has_set_version = true;
            assert_refused(&op, "set_version", "0", RULE_NOT_HERE);
        }
    }
}

static void test_command__grace_is_at_most_the_longest_retention(void **state)
{
    (void)state;
    struct key_item item;
    struct op op = valid_op(OP_KIND_CLAIM, &item);
    op.adopt = true;
    assert_ok(&op);
    op.grace_ms = 86400000;
    assert_ok(&op);
    op.grace_ms = 86400001;
    assert_refused(&op, "grace_ms", "86400001", RULE_GRACE_MS);
}

static void test_command__key_counts(void **state)
{
    (void)state;
    static struct key_item items[KEYS_MAX + 1];
    for (size_t i = 0; i < sizeof items / sizeof items[0]; i++) {
        items[i].key = slice_text("k");
    }
    struct key_item item;
    for (int kind = OP_KIND_TAKE; kind <= OP_KIND_RELEASE; kind++) {
        struct op op = valid_op((enum op_kind)kind, &item);
        bool one = kind == OP_KIND_TAKE || kind == OP_KIND_HEARTBEAT;
        op.keys = items;
        op.key_count = 0;
        assert_refused(&op, "keys", "0", one ? RULE_ONE_KEY : RULE_KEYS);
        op.key_count = 2;
        if (one) {
            assert_refused(&op, "keys", "2", RULE_ONE_KEY);
            continue;
        }
        assert_ok(&op);
        op.key_count = 10000;
        assert_ok(&op);
        op.key_count = 10001;
        assert_refused(&op, "keys", "10001", RULE_KEYS);
    }
    struct op op = valid_op(OP_KIND_RENEW_ALL, &item);
    op.keys = items;
    op.key_count = 1;
    assert_refused(&op, "keys", "1", RULE_NOT_HERE);
}

static void test_command__the_last_of_many_keys_is_checked_too(void **state)
{
    (void)state;
    struct key_item items[3] = {
        {.key = slice_text("a")}, {.key = slice_text("b")}, {.key = slice_text("c\n")}};
    struct op op = {.kind = OP_KIND_RELEASE, .ns = slice_text("n"), .owner = slice_text("o"),
                    .keys = items, .key_count = 3};
    assert_refused(&op, "key", "c\\x0a", RULE_KEY);
}

static void test_command__settings_have_ranges(void **state)
{
    (void)state;
    struct violation violation;
    struct settings fine = settings_default();
    assert_int_equal(settings_validate(&fine, &violation), STATUS_OK);
    assert_int_equal(fine.leases_max, 1000000);
    assert_int_equal(fine.leases_per_namespace_max, 0);
    assert_int_equal(fine.tombstones_max, 1000000);
    assert_int_equal(fine.tombstone_retention_ms, 600000);
    assert_int_equal(fine.departures_max, 1024);
    assert_int_equal(fine.origins_max, 4096);
    assert_int_equal(fine.origin_retention_ms, 3600000);
    assert_int_equal(fine.removal_slice, 1000);
    assert_int_equal(fine.voters_wanted, 3);
    const struct {
        const char *field;
        size_t offset;
        uint64_t min;
        uint64_t max;
    } rows[] = {
        {"leases_max", offsetof(struct settings, leases_max), 1, 100000000},
        {"leases_per_namespace_max", offsetof(struct settings, leases_per_namespace_max), 0,
         100000000},
        {"tombstones_max", offsetof(struct settings, tombstones_max), 1, 100000000},
        {"tombstone_retention_ms", offsetof(struct settings, tombstone_retention_ms), 1, 86400000},
        {"departures_max", offsetof(struct settings, departures_max), 1, 1024},
        {"origins_max", offsetof(struct settings, origins_max), 1, 1000000},
        {"origin_retention_ms", offsetof(struct settings, origin_retention_ms), 1, 86400000},
        {"removal_slice", offsetof(struct settings, removal_slice), 1, 1000},
        {"voters_wanted", offsetof(struct settings, voters_wanted), 1, 5},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct settings settings = fine;
        uint64_t *field = (uint64_t *)(void *)((char *)&settings + rows[i].offset);
        *field = rows[i].min;
        assert_int_equal(settings_validate(&settings, &violation), STATUS_OK);
        *field = rows[i].max;
        assert_int_equal(settings_validate(&settings, &violation), STATUS_OK);
        *field = rows[i].max + 1;
        assert_int_equal(settings_validate(&settings, &violation), STATUS_INVALID);
        assert_string_equal(violation.field, rows[i].field);
        if (rows[i].min > 0) {
            *field = 0;
            assert_int_equal(settings_validate(&settings, &violation), STATUS_INVALID);
        }
    }
}

static void test_command__voters_wanted_are_one_three_or_five(void **state)
{
    (void)state;
    struct violation violation;
    struct settings settings = settings_default();
    for (uint64_t voters = 0; voters <= 8; voters++) {
        bool fine = voters == 1 || voters == 3 || voters == 5;
        settings.voters_wanted = voters;
        violation = (struct violation){0};
        assert_int_equal(settings_validate(&settings, &violation),
                         fine ? STATUS_OK : STATUS_INVALID);
        if (!fine) {
            assert_string_equal(violation.field, "voters_wanted");
            assert_string_equal(violation.rule, "must be 1, 3 or 5");
        }
    }
}

static void test_command__cluster_operations_need_an_identity(void **state)
{
    (void)state;
    static const enum op_kind kinds[] = {OP_KIND_BIRTH, OP_KIND_RESTORE, OP_KIND_RECOVER};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        struct op op = {.kind = kinds[i], .settings = settings_default(),
                        .identity = {.id = {[15] = 1}, .generation = 1},
                        .token_floor = TOKEN_FLOOR_MAX};
        assert_ok(&op);
        op.token_floor = TOKEN_FLOOR_MAX + 1;
        assert_refused(&op, "token_floor", "4611686018427387905", "must be 0..2^62");
        op.token_floor = 0;
        op.identity.generation = 0;
        assert_refused(&op, "generation", "0", RULE_AT_LEAST_1);
        op.identity = (struct cluster_identity){.generation = 1};
        struct violation violation;
        assert_int_equal(op_validate(&op, &violation), STATUS_INVALID);
        assert_string_equal(violation.field, "cluster_id");
    }
    struct op settle = {.kind = OP_KIND_SETTLE, .target_origin = 1, .target_sequence = 1};
    assert_ok(&settle);
    settle.target_sequence = 0;
    assert_refused(&settle, "sequence", "0", RULE_AT_LEAST_1);
    settle.target_origin = 0;
    assert_refused(&settle, "origin", "0", RULE_AT_LEAST_1);
}

static void test_command__an_unknown_kind_is_refused(void **state)
{
    (void)state;
    struct op op = {.kind = (enum op_kind)(OP_KIND_RECOVER + 1)};
    assert_refused(&op, "operation", "15", "must be one of the known operations");
    op.kind = (enum op_kind)0;
    assert_refused(&op, "operation", "0", "must be one of the known operations");
}

static void test_command__kinds_have_names_and_know_who_is_numbered(void **state)
{
    (void)state;
    assert_string_equal(op_kind_name(OP_KIND_TAKE), "take");
    assert_string_equal(op_kind_name(OP_KIND_RELEASE_ALL), "release_all");
    assert_string_equal(op_kind_name(OP_KIND_RECOVER), "recover");
    for (int kind = OP_KIND_TAKE; kind <= OP_KIND_RECOVER; kind++) {
        assert_true(op_kind_numbered((enum op_kind)kind) == (kind <= OP_KIND_PURGE));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_command__samples_of_every_kind_are_valid),
        cmocka_unit_test(test_command__ttl_has_one_range_everywhere_T5),
        cmocka_unit_test(test_command__namespace_is_1_to_64_of_its_alphabet),
        cmocka_unit_test(test_command__key_is_1_to_512_bytes_of_text),
        cmocka_unit_test(test_command__owner_is_1_to_255_bytes_of_text),
        cmocka_unit_test(test_command__meta_and_identity_have_their_lengths),
        cmocka_unit_test(test_command__meta_goes_only_where_something_is_written),
        cmocka_unit_test(test_command__if_token_goes_only_with_guarded_operations),
        cmocka_unit_test(test_command__flags_go_only_with_their_operation),
        cmocka_unit_test(test_command__grace_is_at_most_the_longest_retention),
        cmocka_unit_test(test_command__key_counts),
        cmocka_unit_test(test_command__the_last_of_many_keys_is_checked_too),
        cmocka_unit_test(test_command__settings_have_ranges),
        cmocka_unit_test(test_command__voters_wanted_are_one_three_or_five),
        cmocka_unit_test(test_command__cluster_operations_need_an_identity),
        cmocka_unit_test(test_command__an_unknown_kind_is_refused),
        cmocka_unit_test(test_command__kinds_have_names_and_know_who_is_numbered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
