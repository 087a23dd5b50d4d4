/* Replies to reads from a real table: owner, pages, counts, clocks, due leases. */
#include "node/read_answer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

struct bed {
    struct fsm *fsm;
    struct read_answer answer;
    uint64_t index;
    uint64_t sequence;
    uint64_t origin;
    struct key_item keys[3];
    struct proto_request asked;
    struct proto_reply reply;
};

static void on_origin(void *ctx, uint32_t place, struct slice bytes)
{
    (void)place;
    struct result_decoder *decoder = result_decoder_create();
    struct result result;
    assert_int_equal(result_decode(decoder, bytes, &result), STATUS_OK);
    assert_int_equal(result.status, STATUS_OK);
    if (result.kind == OP_KIND_OPEN_ORIGIN) {
        *(uint64_t *)ctx = result.origin;
    }
    result_decoder_destroy(decoder);
}

static void apply(struct bed *bed, uint64_t stamp_ms, const struct command *command)
{
    struct entry entry = {
        .stamp_ms = stamp_ms, .commands = command, .command_count = command == NULL ? 0 : 1};
    fsm_apply(bed->fsm, ++bed->index, &entry, on_origin, &bed->origin);
}

static void take(struct bed *bed, uint64_t stamp_ms, const char *key, const char *owner,
                 uint64_t ttl_ms)
{
    struct key_item item = {.key = slice_text(key)};
    struct command command = {.origin = bed->origin, .sequence = ++bed->sequence};
    command.op = (struct op){.kind = OP_KIND_TAKE,
                             .ns = slice_text("default"),
                             .owner = slice_text(owner),
                             .ttl_ms = ttl_ms,
                             .keys = &item,
                             .key_count = 1};
    apply(bed, stamp_ms, &command);
}

static int set_up(void **state)
{
    struct bed *bed = calloc(1, sizeof *bed);
    assert_non_null(bed);
    bed->fsm = fsm_create();
    read_answer_init(&bed->answer);
    struct command birth = {.op = {.kind = OP_KIND_BIRTH,
                                   .identity = {.id = {1}, .generation = 1},
                                   .settings = settings_default()}};
    apply(bed, 1000, &birth);
    struct command open = {.op = {.kind = OP_KIND_OPEN_ORIGIN, .node_id = 1, .nonce = 1}};
    apply(bed, 1000, &open);
    take(bed, 1000, "b", "one", 1000);
    take(bed, 1000, "a", "one", 5000);
    take(bed, 1000, "c", "two", 5000);
    bed->keys[0].key = slice_text("c");
    bed->keys[1].key = slice_text("none");
    bed->keys[2].key = slice_text("b");
    bed->asked = (struct proto_request){
        .id = 3,
        .method = PROTO_METHOD_OWNER,
        .op = {.ns = slice_text("default"), .keys = bed->keys, .key_count = 3},
    };
    *state = bed;
    return 0;
}

static int tear_down(void **state)
{
    struct bed *bed = *state;
    fsm_destroy(bed->fsm);
    read_answer_deinit(&bed->answer);
    free(bed);
    return 0;
}

static void test_read_answer__owners_come_in_the_order_of_the_request(void **state)
{
    struct bed *bed = *state;
    read_answer_make(&bed->answer, bed->fsm, &bed->asked, 1500, &bed->reply);
    assert_int_equal(bed->reply.status, STATUS_OK);
    assert_int_equal(bed->reply.id, 3);
    assert_int_equal(bed->reply.lease_count, 3);
    assert_true(slice_equal(bed->reply.leases[0].owner, slice_text("two")));
    assert_null(bed->reply.leases[1].key.base);
    assert_true(slice_equal(bed->reply.leases[2].key, slice_text("b")));
    assert_int_equal(bed->reply.clock_ms, 1500); /* what is left counts from the later clock */
    assert_int_equal(bed->reply.position.index, bed->index);
    assert_int_equal(bed->reply.position.place, POSITION_PLACE_END);
    assert_false(bed->reply.stale);

    bed->asked.op.owner = slice_text("one"); /* only what this owner has */
    read_answer_make(&bed->answer, bed->fsm, &bed->asked, 1500, &bed->reply);
    assert_null(bed->reply.leases[0].key.base);
    assert_non_null(bed->reply.leases[2].key.base);
}

static void test_read_answer__the_tables_clock_decides_what_is_there(void **state)
{
    struct bed *bed = *state;
    /* b is due at the leader's 2001, but no entry says so yet. */
    assert_false(read_answer_shows_due(bed->fsm, &bed->asked, 2000));
    assert_true(read_answer_shows_due(bed->fsm, &bed->asked, 2001));
    read_answer_make(&bed->answer, bed->fsm, &bed->asked, 2001, &bed->reply);
    assert_non_null(bed->reply.leases[2].key.base);
    apply(bed, 2001, NULL);
    assert_false(read_answer_shows_due(bed->fsm, &bed->asked, 2001));
    read_answer_make(&bed->answer, bed->fsm, &bed->asked, 1900, &bed->reply);
    assert_null(bed->reply.leases[2].key.base);
    assert_int_equal(bed->reply.clock_ms, 2001);
}

static void test_read_answer__pages_follow_each_other(void **state)
{
    struct bed *bed = *state;
    bed->asked.method = PROTO_METHOD_LIST;
    bed->asked.op.keys = NULL;
    bed->asked.op.key_count = 0;
    bed->asked.limit = 2;
    read_answer_make(&bed->answer, bed->fsm, &bed->asked, 1500, &bed->reply);
    assert_int_equal(bed->reply.lease_count, 2);
    assert_true(bed->reply.more);
    assert_true(slice_equal(bed->reply.leases[0].key, slice_text("a")));
    assert_true(slice_equal(bed->reply.leases[1].key, slice_text("b")));
    bed->asked.after = slice_text("b");
    read_answer_make(&bed->answer, bed->fsm, &bed->asked, 1500, &bed->reply);
    assert_int_equal(bed->reply.lease_count, 1);
    assert_false(bed->reply.more);
    bed->asked.after = (struct slice){0};
    bed->asked.limit = 3; /* exactly all: no more */
    read_answer_make(&bed->answer, bed->fsm, &bed->asked, 1500, &bed->reply);
    assert_int_equal(bed->reply.lease_count, 3);
    assert_false(bed->reply.more);
    bed->asked.op.owner = slice_text("one");
    bed->asked.prefix = slice_text("b");
    read_answer_make(&bed->answer, bed->fsm, &bed->asked, 1500, &bed->reply);
    assert_int_equal(bed->reply.lease_count, 1);
    bed->asked.state = LEASE_STATE_DEL;
    read_answer_make(&bed->answer, bed->fsm, &bed->asked, 1500, &bed->reply);
    assert_int_equal(bed->reply.lease_count, 0);
    assert_true(read_answer_shows_due(bed->fsm, &bed->asked, 2001));
    bed->asked.prefix = slice_text("x");
    assert_false(read_answer_shows_due(bed->fsm, &bed->asked, 2001));
}

static void test_read_answer__a_page_has_at_most_1000(void **state)
{
    struct bed *bed = *state;
    char key[16];
    for (unsigned i = 0; i < LIST_PAGE_MAX; i++) {
        (void)snprintf(key, sizeof key, "k%04u", i);
        take(bed, 1000, key, "three", 5000);
    }
    bed->asked.method = PROTO_METHOD_LIST;
    bed->asked.op.key_count = 0;
    read_answer_make(&bed->answer, bed->fsm, &bed->asked, 1500, &bed->reply);
    assert_int_equal(bed->reply.lease_count, LIST_PAGE_MAX);
    assert_true(bed->reply.more);
    bed->asked.limit = UINT32_MAX;
    read_answer_make(&bed->answer, bed->fsm, &bed->asked, 1500, &bed->reply);
    assert_int_equal(bed->reply.lease_count, LIST_PAGE_MAX);
    bed->asked.method = PROTO_METHOD_COUNT;
    read_answer_make(&bed->answer, bed->fsm, &bed->asked, 1500, &bed->reply);
    assert_int_equal(bed->reply.count, LIST_PAGE_MAX + 3);
}

static void test_read_answer__stale_says_so(void **state)
{
    struct bed *bed = *state;
    bed->asked.stale = true;
    read_answer_make(&bed->answer, bed->fsm, &bed->asked, 0, &bed->reply);
    assert_true(bed->reply.stale);
    assert_int_equal(bed->reply.clock_ms, 1000);
    assert_int_equal(bed->reply.position.index, bed->index);
}

#define READ_TEST(name) \
    cmocka_unit_test_setup_teardown(test_read_answer__##name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        READ_TEST(owners_come_in_the_order_of_the_request),
        READ_TEST(the_tables_clock_decides_what_is_there),
        READ_TEST(pages_follow_each_other),
        READ_TEST(a_page_has_at_most_1000),
        READ_TEST(stale_says_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
