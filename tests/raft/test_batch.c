/* What a log entry holds, and when it leaves. */
#include "raft/batch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdlib.h>

#include "fsm/command_codec.h"

struct waiter {
    struct list link;
};

static uint8_t zeros[ENTRY_LEN_MAX];
static struct waiter waiters[512];
static unsigned waiter_next;

static enum status add(struct batch *batch, size_t len)
{
    struct waiter *waiter = &waiters[waiter_next++ % 512];
    list_init(&waiter->link);
    return batch_add(batch, slice_from(zeros, len), &waiter->link);
}

static void done(struct batch *batch, struct batch_entry *entry)
{
    while (list_pop(&entry->proposals) != NULL) {
    }
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
    struct waiter waiter;
    list_init(&waiter.link);
    static uint8_t longer[ENTRY_LEN_MAX];
    assert_int_equal(batch_add(&batch, slice_from(longer, len + 1), &waiter.link),
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
    struct waiter three[3];
    for (unsigned i = 0; i < 3; i++) {
        list_init(&three[i].link);
        assert_int_equal(batch_add(&batch, slice_from(zeros, 8), &three[i].link), STATUS_OK);
    }
    struct batch_entry *entry = batch_close(&batch);
    for (unsigned i = 0; i < 3; i++) {
        assert_ptr_equal(list_pop(&entry->proposals), &three[i].link);
    }
    batch_done(&batch, entry);
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
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
