/* The tables by themselves: namespaces come and go, leases in three orders, attachments, tombstones
 * and the marks of what is forgotten, owners and departures, marks over owners and namespaces; and
 * all sums and estimates are back at zero when everything is gone. */
#include "fsm/lease_table.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "fsm/marks.h"
#include "fsm/owner_index.h"

struct tables {
    struct lease_table table;
    struct owner_index owners;
    struct marks marks;
    uint64_t token;
};

static int setup(void **state)
{
    struct tables *tables = calloc(1, sizeof *tables);
    assert_non_null(tables);
    lease_table_init(&tables->table);
    owner_index_init(&tables->owners);
    marks_init(&tables->marks);
    *state = tables;
    return 0;
}

static int teardown(void **state)
{
    struct tables *tables = *state;
    marks_deinit(&tables->marks);
    owner_index_deinit(&tables->owners);
    for (struct tree_node *node = tree_first(&tables->table.spaces); node != NULL;
         node = tree_next(node)) {
        owner_free_all(CONTAINER_OF(node, struct space, node));
    }
    lease_table_deinit(&tables->table);
    assert_true(tables->table.lease_digest == 0 && tables->table.tombstone_digest == 0 &&
                tables->table.space_digest == 0 && tables->table.memory_len == 0 &&
                tables->table.index_len == 0);
    free(tables);
    return 0;
}

static struct lease *add(struct tables *tables, const char *ns, const char *owner,
                         const char *key, uint64_t expiry_ms)
{
    struct space *space = space_get(&tables->table, slice_text(ns));
    struct lease_grant grant = {
        .state = LEASE_STATE_OWN,
        .token = ++tables->token,
        .ttl_ms = 100,
        .expiry_ms = expiry_ms,
    };
    struct lease *lease =
        lease_add(&tables->table, space, slice_text(key),
                  owner_get(&tables->owners, space, slice_text(owner), 0), &grant);
    owner_link(&tables->owners, lease);
    return lease;
}

static void drop(struct tables *tables, struct lease *lease)
{
    struct mark *mark = mark_of(lease);
    owner_unlink(&tables->owners, lease, 0);
    lease_remove(&tables->table, lease);
    if (mark != NULL) {
        mark_lease_gone(&tables->marks, mark);
    }
}

static void tidy(struct tables *tables)
{
    owner_index_tidy(&tables->owners, &tables->table);
    lease_table_tidy(&tables->table);
}

static void test_lease_table__a_namespace_lives_as_long_as_something_is_in_it(void **state)
{
    struct tables *tables = *state;
    struct lease *lease = add(tables, "ns", "A", "k", 10);
    struct space *space = lease->space;
    tidy(tables);
    assert_ptr_equal(space_find(&tables->table, slice_text("ns")), space);
    space_set_purged(&tables->table, space, 5);
    drop(tables, lease);
    tidy(tables);
    assert_ptr_equal(space_find(&tables->table, slice_text("ns")), space);
    struct tombstone_end end = {.owner = slice_text("A"), .state = LEASE_STATE_OWN, .token = 1};
    tombstone_add(&tables->table, space, slice_text("k"), &end);
    space_set_purged(&tables->table, space, 0);
    tidy(tables);
    assert_ptr_equal(space_find(&tables->table, slice_text("ns")), space);
    tombstone_remove(&tables->table, tombstone_find(space, slice_text("k")));
    tidy(tables);
    assert_null(space_find(&tables->table, slice_text("ns")));
    assert_int_equal(tables->owners.owner_count, 0);
    assert_true(tables->owners.owner_digest == 0 && tables->owners.memory_len == 0);
}

static void test_lease_table__first_due_is_by_expiry_then_namespace_then_key(void **state)
{
    struct tables *tables = *state;
    struct lease *order[] = {
        NULL,
        add(tables, "a", "A", "z", 20),
        add(tables, "b", "A", "k", 20),
        add(tables, "b", "A", "l", 20),
        add(tables, "a", "A", "a", 30),
    };
    order[0] = add(tables, "b", "A", "y", 30);
    lease_extend(&tables->table, order[0], 100, 10, (struct position){0});
    for (size_t i = 0; i < 5; i++) {
        assert_ptr_equal(lease_table_first_due(&tables->table), order[i]);
        drop(tables, order[i]);
    }
    assert_null(lease_table_first_due(&tables->table));
}

/* More than one size of the index, and neither digest nor order depends on how it is keyed. */
static void test_lease_table__leases_are_found_whatever_the_hash_key(void **state)
{
    struct tables *tables = *state;
    static const struct hash_key hash_keys[] = {{{0, 0}}, {{7, 9}}};
    uint64_t digests[2] = {0};
    for (unsigned i = 0; i < 2; i++) {
        lease_table_set_hash_key(&tables->table, &hash_keys[i]);
        tables->token = 0;
        char key[] = "k00";
        for (unsigned k = 0; k < 100; k++) {
            key[1] = (char)('0' + k / 10);
            key[2] = (char)('0' + k % 10);
            struct lease *lease = add(tables, "ns", "A", key, 100 - k);
            assert_ptr_equal(lease_find(lease->space, slice_text(key)), lease);
        }
        digests[i] = tables->table.lease_digest;
        struct space *space = space_find(&tables->table, slice_text("ns"));
        assert_int_equal(tables->table.index_len, key_index_memory(&space->keys));
        assert_null(lease_find(space, slice_text("k")));
        for (unsigned k = 100; k-- > 0;) {
            struct lease *lease = lease_table_first_due(&tables->table);
            assert_int_equal(lease->token, k + 1);
            drop(tables, lease);
        }
        tidy(tables);
        assert_null(space_find(&tables->table, slice_text("ns")));
    }
    assert_true(digests[0] == digests[1]);
}

static void test_lease_table__a_regrant_moves_to_the_end_of_the_tokens(void **state)
{
    struct tables *tables = *state;
    struct lease *first = add(tables, "ns", "A", "1", 10);
    struct lease *second = add(tables, "ns", "A", "2", 10);
    struct list *tokens = &first->space->by_token;
    assert_ptr_equal(list_first(tokens), &first->token_link);
    struct lease_grant grant = {
        .state = LEASE_STATE_DEL, .token = ++tables->token, .ttl_ms = 100, .expiry_ms = 50};
    owner_unlink(&tables->owners, first, 0);
    lease_regrant(&tables->table, first, first->owner, &grant);
    owner_link(&tables->owners, first);
    assert_ptr_equal(list_first(tokens), &second->token_link);
    assert_int_equal(tables->table.own_count, 1);
    assert_int_equal(tables->table.del_count, 1);
    assert_int_equal(first->owner->own_count, 1);
    assert_int_equal(first->owner->del_count, 1);
    /* The same token again leaves it where it is. */
    struct lease *third = add(tables, "ns", "A", "3", 10);
    lease_regrant(&tables->table, first, first->owner, &grant);
    assert_ptr_equal(tokens->prev, &third->token_link);
}

static void test_lease_table__attachments_are_replaced_one_by_one(void **state)
{
    struct tables *tables = *state;
    struct lease *lease = add(tables, "ns", "A", "k", 10);
    assert_null(lease_meta(lease).base);
    assert_null(lease_identity(lease).base);
    struct lease_grant grant = {.state = LEASE_STATE_OWN,
                                .token = lease->token,
                                .meta = slice_text("meta"),
                                .identity = slice_from(NULL, 0)};
    lease_regrant(&tables->table, lease, lease->owner, &grant);
    assert_true(slice_equal(lease_meta(lease), slice_text("meta")));
    assert_null(lease_identity(lease).base);
    uint64_t digest = tables->table.lease_digest;
    grant.meta = slice_from(NULL, 0);
    grant.identity = slice_from("", 0);
    lease_regrant(&tables->table, lease, lease->owner, &grant);
    assert_true(slice_equal(lease_meta(lease), slice_text("meta")));
    assert_non_null(lease_identity(lease).base);
    assert_int_equal(lease_identity(lease).len, 0);
    assert_true(digest != tables->table.lease_digest); /* empty is not absent */
    grant.identity = slice_from(NULL, 0);
    lease_regrant(&tables->table, lease, lease->owner, &grant);
    assert_non_null(lease_identity(lease).base);
}

static void test_lease_table__the_oldest_tombstone_is_forgotten_first(void **state)
{
    struct tables *tables = *state;
    struct space *space = space_get(&tables->table, slice_text("ns"));
    const char *const keys[] = {"b", "a", "c"};
    const uint64_t ended_ms[] = {7, 7, 3};
    for (size_t i = 0; i < 3; i++) {
        struct tombstone_end end = {.owner = slice_text("A"),
                                    .state = LEASE_STATE_OWN,
                                    .token = 10 - i,
                                    .ended_ms = ended_ms[i]};
        tombstone_add(&tables->table, space, slice_text(keys[i]), &end);
    }
    static const char *const order[] = {"c", "a", "b"};
    const uint64_t tokens[] = {8, 9, 10};
    const uint64_t until_ms[] = {3, 7, 7};
    for (size_t i = 0; i < 3; i++) {
        struct tombstone *oldest = lease_table_oldest_tombstone(&tables->table);
        assert_true(slice_equal(tombstone_key(oldest), slice_text(order[i])));
        tombstone_forget(&tables->table, oldest);
        assert_int_equal(tables->table.forgotten.token, tokens[i]);
        assert_int_equal(tables->table.forgotten.until_ms, until_ms[i]);
    }
    assert_null(lease_table_oldest_tombstone(&tables->table));
}

/* --- Owners. */

static void test_owner_index__an_owner_made_anew_starts_at_what_was_forgotten(void **state)
{
    struct tables *tables = *state;
    struct lease *lease = add(tables, "ns", "A", "k", 10);
    struct owner *owner = lease->owner;
    assert_int_equal(owner->set_version, 0);
    struct departing departing = {
        .key = slice_text("k"), .token = 1, .reason = END_REASON_RELEASED, .version = 5};
    owner_depart(&tables->owners, owner, &departing);
    drop(tables, lease);
    tidy(tables);
    assert_ptr_equal(owner_index_first_idle(&tables->owners), owner); /* it remembers something */
    owner_forget(&tables->owners, &tables->table, owner);
    assert_int_equal(tables->owners.forgotten_version, 5);
    assert_int_equal(tables->owners.departure_count, 0);
    tables->token = 9;
    lease = add(tables, "ns", "B", "k", 10);
    assert_int_equal(lease->owner->set_version, 5);
    assert_int_equal(lease->owner->forgotten_version, 5);
}

static void test_owner_index__departures_are_forgotten_oldest_first(void **state)
{
    struct tables *tables = *state;
    struct lease *a = add(tables, "ns", "A", "k", 10);
    struct lease *b = add(tables, "ns", "B", "l", 10);
    for (uint64_t version = 10; version < 14; version++) {
        struct departing departing = {.key = slice_text("x"),
                                      .token = 1,
                                      .reason = END_REASON_EXPIRED,
                                      .version = version};
        owner_depart(&tables->owners, version % 2 == 0 ? a->owner : b->owner, &departing);
    }
    owner_index_forget_departure(&tables->owners);
    assert_int_equal(a->owner->forgotten_version, 10);
    assert_int_equal(a->owner->departure_count, 1);
    owner_forget_departure(&tables->owners, b->owner);
    assert_int_equal(b->owner->forgotten_version, 11);
    owner_index_forget_departure(&tables->owners);
    assert_int_equal(a->owner->forgotten_version, 12);
    assert_int_equal(a->owner->set_version, 12);
    assert_int_equal(tables->owners.departure_count, 1);
}

/* --- Marks. */

static void set_mark(struct tables *tables, struct space *space, struct owner *owner,
                     uint64_t remaining)
{
    struct mark_scope scope = {
        .space = space,
        .owner = owner,
        .upto = ++tables->token,
        .set_ms = tables->token,
        .remaining = remaining,
    };
    marks_set(&tables->marks, &scope);
}

static void test_marks__a_lease_belongs_to_the_mark_that_was_set_first(void **state)
{
    struct tables *tables = *state;
    struct lease *a1 = add(tables, "ns", "A", "1", 10);
    struct lease *b1 = add(tables, "ns", "B", "2", 10);
    struct space *space = a1->space;
    set_mark(tables, space, a1->owner, 1);
    struct lease *a2 = add(tables, "ns", "A", "3", 10);
    assert_true(lease_marked(a1) && !lease_marked(b1) && !lease_marked(a2));
    set_mark(tables, space, NULL, 2);
    struct lease *b2 = add(tables, "ns", "B", "4", 10);
    set_mark(tables, space, b1->owner, 1);
    struct lease *a3 = add(tables, "ns", "A", "5", 10);
    assert_true(lease_marked(b1) && lease_marked(a2) && lease_marked(b2) && !lease_marked(a3));
    assert_null(mark_of(a3));
    assert_ptr_equal(mark_of(a1)->owner, a1->owner);
    assert_null(mark_of(b1)->owner);
    assert_null(mark_of(a2)->owner);
    assert_ptr_equal(mark_of(b2)->owner, b1->owner);
    assert_int_equal(space->marked, 4);
    /* Removed oldest mark first, each in the order of tokens. */
    struct lease *order[] = {a1, b1, a2, b2};
    for (size_t i = 0; i < 4; i++) {
        assert_ptr_equal(marks_first_lease(&tables->marks), order[i]);
        assert_ptr_equal(space_first_marked(space), order[i]);
        drop(tables, order[i]);
    }
    assert_null(marks_first_lease(&tables->marks));
    assert_null(space_first_marked(space));
    assert_int_equal(tables->marks.count, 0);
    assert_true(tables->marks.digest == 0);
    assert_int_equal(space->marked, 0);
    assert_int_equal(space->purge_upto, 0);
    assert_int_equal(a3->owner->mark_upto, 0);
    assert_false(lease_marked(a3));
}

static void test_marks__a_mark_goes_with_its_last_lease_whatever_the_order(void **state)
{
    struct tables *tables = *state;
    struct lease *one = add(tables, "ns", "A", "1", 10);
    set_mark(tables, one->space, one->owner, 1);
    uint64_t first_upto = tables->token;
    struct lease *two = add(tables, "ns", "A", "2", 10);
    set_mark(tables, one->space, one->owner, 1);
    drop(tables, two);
    assert_int_equal(tables->marks.count, 1);
    assert_true(one->owner->mark_upto == first_upto);
    drop(tables, one);
    assert_int_equal(tables->marks.count, 0);
}

static void test_marks__of_release_all_spare_markers(void **state)
{
    struct tables *tables = *state;
    struct lease *own = add(tables, "ns", "A", "1", 10);
    struct lease *del = add(tables, "ns", "A", "2", 10);
    struct lease_grant grant = {.state = LEASE_STATE_DEL, .token = ++tables->token};
    owner_unlink(&tables->owners, del, 0);
    lease_regrant(&tables->table, del, del->owner, &grant);
    owner_link(&tables->owners, del);
    set_mark(tables, own->space, own->owner, 1);
    assert_true(lease_marked(own));
    assert_false(lease_marked(del));
    assert_null(mark_of(del));
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        CASE(test_lease_table__a_namespace_lives_as_long_as_something_is_in_it),
        CASE(test_lease_table__first_due_is_by_expiry_then_namespace_then_key),
        CASE(test_lease_table__leases_are_found_whatever_the_hash_key),
        CASE(test_lease_table__a_regrant_moves_to_the_end_of_the_tokens),
        CASE(test_lease_table__attachments_are_replaced_one_by_one),
        CASE(test_lease_table__the_oldest_tombstone_is_forgotten_first),
        CASE(test_owner_index__an_owner_made_anew_starts_at_what_was_forgotten),
        CASE(test_owner_index__departures_are_forgotten_oldest_first),
        CASE(test_marks__a_lease_belongs_to_the_mark_that_was_set_first),
        CASE(test_marks__a_mark_goes_with_its_last_lease_whatever_the_order),
        CASE(test_marks__of_release_all_spare_markers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
