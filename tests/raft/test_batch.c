/* What a log entry holds, and when it leaves. */
#include "raft/batch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "fsm/command_codec.h"

static uint8_t zeros[ENTRY_LEN_MAX];
static struct replica_proposal waiters[512];
static unsigned waiter_next;

static enum status add(struct batch *batch, size_t len)
{
    struct replica_proposal *waiter = &waiters[waiter_next++ % 512];
    list_init(&waiter->link);
    waiter->deadline_ns = UINT64_MAX;
    return batch_add(batch, slice_from(zeros, len), waiter);
}

static void done(struct batch *batch, struct batch_entry *entry)
{
    struct list links;
    list_init(&links);
    batch_take(entry, &links);
    batch_done(batch, entry);
}

static void test_batch__nothing_in_flight_leaves_at_once(void **state)
{
    (void)state;
    struct batch batch;
    batch_init(&batch);
    assert_false(batch_ready(&batch));
    assert_int_equal(add(&batch, 100), STATUS_OK);
    assert_int_equal(add(&batch, 50), STATUS_OK);
    assert_true(batch_ready(&batch));
    struct batch_entry *entry = batch_close(&batch);
    assert_int_equal(entry->command_count, 2);
    assert_int_equal(entry->commands.len, 150);
    assert_false(batch_ready(&batch));
    done(&batch, entry);
    assert_int_equal(batch.outstanding_len, 0);
    batch_deinit(&batch);
}

static void test_batch__collects_while_an_entry_is_under_way(void **state)
{
    (void)state;
    struct batch batch;
    batch_init(&batch);
    assert_int_equal(add(&batch, 100), STATUS_OK);
    struct batch_entry *first = batch_close(&batch);
    assert_int_equal(add(&batch, 100), STATUS_OK);
    assert_false(batch_ready(&batch));
    assert_true(batch_waiting(&batch));
    done(&batch, first);
    assert_true(batch_ready(&batch));
    done(&batch, batch_close(&batch));
    batch_deinit(&batch);
}

static void test_batch__a_full_entry_leaves_beside_others_up_to_four(void **state)
{
    (void)state;
    struct batch batch;
    batch_init(&batch);
    struct batch_entry *flying[BATCH_IN_FLIGHT_MAX];
    for (unsigned i = 0; i < BATCH_IN_FLIGHT_MAX; i++) {
        assert_int_equal(add(&batch, ENTRY_LEN_TARGET - 1), STATUS_OK);
        assert_true(batch_ready(&batch) == (i == 0)); /* one byte short of full */
        assert_int_equal(add(&batch, 1), STATUS_OK);
        assert_true(batch_ready(&batch));
        flying[i] = batch_close(&batch);
        assert_int_equal(flying[i]->commands.len, ENTRY_LEN_TARGET);
    }
    assert_int_equal(add(&batch, ENTRY_LEN_TARGET), STATUS_OK);
    assert_false(batch_ready(&batch));
    done(&batch, flying[0]);
    assert_true(batch_ready(&batch));
    flying[0] = batch_close(&batch);
    for (unsigned i = 0; i < BATCH_IN_FLIGHT_MAX; i++) {
        done(&batch, flying[i]);
    }
    batch_deinit(&batch);
}

static void test_batch__what_does_not_fit_opens_the_next_entry(void **state)
{
    (void)state;
    struct batch batch;
    batch_init(&batch);
    assert_int_equal(add(&batch, ENTRY_LEN_TARGET - 10), STATUS_OK);
    assert_int_equal(add(&batch, 11), STATUS_OK);
    assert_int_equal(add(&batch, 5), STATUS_OK); /* behind it, not before */
    struct batch_entry *first = batch_close(&batch);
    struct batch_entry *second = batch_close(&batch);
    assert_int_equal(first->command_count, 1);
    assert_int_equal(second->command_count, 2);
    done(&batch, second);
    done(&batch, first);
    batch_deinit(&batch);
}

static void test_batch__a_long_command_travels_alone(void **state)
{
    (void)state;
    struct batch batch;
    batch_init(&batch);
    assert_int_equal(add(&batch, 10), STATUS_OK);
    assert_int_equal(add(&batch, ENTRY_LEN_TARGET + 1), STATUS_OK);
    assert_int_equal(add(&batch, 10), STATUS_OK);
    for (unsigned i = 0; i < 3; i++) {
        struct batch_entry *entry = batch_close(&batch);
        assert_int_equal(entry->command_count, 1);
        done(&batch, entry);
    }
    batch_deinit(&batch);
}

static void test_batch__refuses_what_no_entry_can_hold(void **state)
{
    (void)state;
    struct batch batch;
    batch_init(&batch);
    size_t len = ENTRY_LEN_MAX;
    while (entry_encoded_len(len) > ENTRY_LEN_MAX) {
        len--;
    }
    struct replica_proposal waiter;
    list_init(&waiter.link);
    static uint8_t longer[ENTRY_LEN_MAX];
    assert_int_equal(batch_add(&batch, slice_from(longer, len + 1), &waiter),
                     STATUS_TOO_LARGE);
    assert_false(list_linked(&waiter.link));
    assert_int_equal(add(&batch, len), STATUS_OK);
    done(&batch, batch_close(&batch));
    batch_deinit(&batch);
}

static void test_batch__bytes_outstanding_are_bounded(void **state)
{
    (void)state;
    struct batch batch;
    batch_init(&batch);
    struct batch_entry *flying = NULL;
    for (size_t sum = 0; sum < BATCH_OUTSTANDING_LEN_MAX; sum += ENTRY_LEN_TARGET) {
        assert_int_equal(add(&batch, ENTRY_LEN_TARGET), STATUS_OK);
        if (flying == NULL) {
            flying = batch_close(&batch); /* in flight counts too */
        }
    }
    assert_int_equal(batch.outstanding_len, BATCH_OUTSTANDING_LEN_MAX);
    assert_int_equal(add(&batch, 1), STATUS_OVERLOADED);
    done(&batch, flying);
    assert_int_equal(add(&batch, ENTRY_LEN_TARGET), STATUS_OK);
    assert_int_equal(add(&batch, 1), STATUS_OVERLOADED);
    struct list dropped;
    list_init(&dropped);
    batch_drop_waiting(&batch, &dropped);
    unsigned count = 0;
    while (list_pop(&dropped) != NULL) {
        count++;
    }
    assert_int_equal(count, BATCH_OUTSTANDING_LEN_MAX / ENTRY_LEN_TARGET);
    assert_int_equal(batch.outstanding_len, 0);
    batch_deinit(&batch);
}

static void test_batch__a_stamp_alone_is_an_empty_entry(void **state)
{
    (void)state;
    struct batch batch;
    batch_init(&batch);
    struct batch_entry *entry = batch_close(&batch);
    assert_int_equal(entry->command_count, 0);
    assert_int_equal(entry->commands.len, 0);
    assert_int_equal(batch.in_flight, 1);
    done(&batch, entry);
    batch_deinit(&batch);
}

static void test_batch__proposals_keep_their_order(void **state)
{
    (void)state;
    struct batch batch;
    batch_init(&batch);
    struct replica_proposal three[3];
    for (unsigned i = 0; i < 3; i++) {
        list_init(&three[i].link);
        assert_int_equal(batch_add(&batch, slice_from(zeros, 8), &three[i]),
                         STATUS_OK);
    }
    struct batch_entry *entry = batch_close(&batch);
    struct list links;
    list_init(&links);
    batch_take(entry, &links);
    for (unsigned i = 0; i < 3; i++) {
        assert_ptr_equal(list_pop(&links), &three[i].link);
    }
    batch_done(&batch, entry);
    batch_deinit(&batch);
}

/* --- deadlines and cancelling */

static void add_byte(struct batch *batch, uint8_t byte, size_t len, uint64_t deadline_ns,
                     struct replica_proposal *item)
{
    uint8_t bytes[64];
    memset(bytes, byte, sizeof bytes);
    list_init(&item->link);
    item->deadline_ns = deadline_ns;
    assert_int_equal(batch_add(batch, slice_from(bytes, len), item), STATUS_OK);
}

static void test_batch__what_is_past_its_deadline_is_left_out(void **state)
{
    (void)state;
    struct batch batch;
    batch_init(&batch);
    struct replica_proposal items[5];
    add_byte(&batch, 'a', 3, 1000, &items[0]);
    add_byte(&batch, 'b', 5, UINT64_MAX, &items[1]);
    add_byte(&batch, 'c', 7, 1000, &items[2]);
    add_byte(&batch, 'd', 2, 1001, &items[3]);
    add_byte(&batch, 'e', 4, 1, &items[4]);
    struct list expired;
    list_init(&expired);
    assert_true(batch_expire(&batch, 1000, &expired)); /* at its deadline one is past it */
    assert_ptr_equal(list_pop(&expired), &items[0].link);
    assert_ptr_equal(list_pop(&expired), &items[2].link);
    assert_ptr_equal(list_pop(&expired), &items[4].link);
    assert_true(list_empty(&expired));
    assert_int_equal(batch.outstanding_len, 7);
    struct batch_entry *entry = batch_close(&batch);
    assert_int_equal(entry->command_count, 2);
    assert_int_equal(entry->commands.len, 7);
    assert_memory_equal(entry->commands.base, "bbbbbdd", 7);
    done(&batch, entry);
    batch_deinit(&batch);
}

static void test_batch__an_entry_without_a_living_command_is_gone(void **state)
{
    (void)state;
    struct batch batch;
    batch_init(&batch);
    struct replica_proposal items[2];
    add_byte(&batch, 'a', 3, 999, &items[0]);
    struct list expired;
    list_init(&expired);
    assert_true(batch_expire(&batch, 998, &expired));
    assert_false(batch_expire(&batch, 999, &expired));
    assert_ptr_equal(list_pop(&expired), &items[0].link);
    assert_false(batch_ready(&batch));
    assert_false(batch_waiting(&batch));
    assert_int_equal(batch.outstanding_len, 0);
    add_byte(&batch, 'b', 3, UINT64_MAX, &items[1]);
    done(&batch, batch_close(&batch));
    batch_deinit(&batch);
}

static void test_batch__what_waits_can_be_cancelled(void **state)
{
    (void)state;
    struct batch batch;
    batch_init(&batch);
    struct replica_proposal items[3];
    add_byte(&batch, 'a', 3, UINT64_MAX, &items[0]);
    add_byte(&batch, 'b', 5, UINT64_MAX, &items[1]);
    add_byte(&batch, 'c', 7, UINT64_MAX, &items[2]);
    assert_true(batch_cancel(&batch, &items[1]));
    assert_false(list_linked(&items[1].link));
    assert_false(batch_cancel(&batch, &items[1]));
    assert_int_equal(batch.outstanding_len, 10);
    assert_true(batch_cancel(&batch, &items[0]));
    struct batch_entry *entry = batch_close(&batch);
    assert_int_equal(entry->command_count, 1);
    assert_memory_equal(entry->commands.base, "ccccccc", 7);
    assert_false(batch_cancel(&batch, &items[2])); /* under way */
    assert_true(list_linked(&items[2].link));
    struct list links;
    list_init(&links);
    batch_take(entry, &links);
    batch_done(&batch, entry);
    /* Its completion is being told, and its entry collects for others already. */
    add_byte(&batch, 'd', 3, UINT64_MAX, &items[0]);
    assert_false(batch_cancel(&batch, &items[2]));
    assert_true(batch_cancel(&batch, &items[0]));
    assert_false(batch_waiting(&batch));
    batch_deinit(&batch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_batch__nothing_in_flight_leaves_at_once),
        cmocka_unit_test(test_batch__collects_while_an_entry_is_under_way),
        cmocka_unit_test(test_batch__a_full_entry_leaves_beside_others_up_to_four),
        cmocka_unit_test(test_batch__what_does_not_fit_opens_the_next_entry),
        cmocka_unit_test(test_batch__a_long_command_travels_alone),
        cmocka_unit_test(test_batch__refuses_what_no_entry_can_hold),
        cmocka_unit_test(test_batch__bytes_outstanding_are_bounded),
        cmocka_unit_test(test_batch__a_stamp_alone_is_an_empty_entry),
        cmocka_unit_test(test_batch__proposals_keep_their_order),
        cmocka_unit_test(test_batch__what_is_past_its_deadline_is_left_out),
        cmocka_unit_test(test_batch__an_entry_without_a_living_command_is_gone),
        cmocka_unit_test(test_batch__what_waits_can_be_cancelled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
