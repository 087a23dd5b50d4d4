/* The leader's side of forwarding: each refusal and both sides of its edge. */
#include "node/forwarder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#define NOW (1000u * NS_PER_MS)

static struct buf command_bytes(enum op_kind kind)
{
    static struct key_item key;
    key = (struct key_item){.key = slice_text("k")};
    struct command command = {0};
    if (kind == OP_KIND_TAKE) {
        command = (struct command){.origin = 1, .sequence = 1};
        command.op = (struct op){.kind = kind,
                                 .ns = slice_text("default"),
                                 .owner = slice_text("a"),
                                 .ttl_ms = 1000,
                                 .keys = &key,
                                 .key_count = 1};
    } else if (kind == OP_KIND_CONFIGURE) {
        command.op = (struct op){.kind = kind, .settings = settings_default()};
    } else {
        command.op = (struct op){.kind = kind,
                                 .identity = {.id = {1}, .generation = 1},
                                 .settings = settings_default(),
                                 .target_origin = 1,
                                 .target_sequence = 1};
    }
    struct buf bytes;
    buf_init(&bytes, ENTRY_LEN_MAX);
    command_encode(&command, &bytes);
    return bytes;
}

struct bed {
    struct forwarder *forwarder;
    struct forwarder_self self;
    struct frame_forward frame;
    struct buf bytes;
};

static void bed_init(struct bed *bed)
{
    bed->forwarder = forwarder_create();
    bed->self = (struct forwarder_self){.leader = true, .serving = true, .term = 5};
    bed->bytes = command_bytes(OP_KIND_TAKE);
    bed->frame = (struct frame_forward){
        .number = 100, .ticket = 1, .term = 5, .left_ms = 10, .command = buf_slice(&bed->bytes)};
}

static void bed_deinit(struct bed *bed)
{
    forwarder_destroy(bed->forwarder);
    buf_deinit(&bed->bytes);
}

/* OK when it was accepted. */
static enum status judge(struct bed *bed, uint64_t now_ns)
{
    bed->frame.number++;
    enum forward_verdict verdict =
        forwarder_judge(bed->forwarder, 2, &bed->frame, &bed->self, now_ns);
    assert_int_not_equal(verdict, FORWARD_VERDICT_DROP);
    return verdict == FORWARD_VERDICT_ACCEPT ? STATUS_OK : forwarder_why(bed->forwarder);
}

static void test_forwarder__who_does_not_lead_that_term_refuses(void **state)
{
    (void)state;
    struct bed bed;
    bed_init(&bed);
    assert_int_equal(judge(&bed, NOW), STATUS_OK);
    bed.frame.term = 4;
    assert_int_equal(judge(&bed, NOW), STATUS_WRONG_TERM);
    bed.frame.term = 6;
    assert_int_equal(judge(&bed, NOW), STATUS_WRONG_TERM);
    bed.frame.term = 5;
    bed.self.serving = false;
    assert_int_equal(judge(&bed, NOW), STATUS_NOT_SERVING);
    bed.self.leader = false;
    assert_int_equal(judge(&bed, NOW), STATUS_NOT_LEADER);
    bed_deinit(&bed);
}

static void test_forwarder__late_is_not_done(void **state)
{
    (void)state;
    struct bed bed;
    bed_init(&bed);
    bed.frame.left_ms = 1;
    assert_int_equal(judge(&bed, NOW), STATUS_OK);
    bed.frame.left_ms = 0;
    assert_int_equal(judge(&bed, NOW), STATUS_DEADLINE);
    bed.frame.left_ms = PEER_FRAME_NO_DEADLINE;
    assert_int_equal(judge(&bed, NOW), STATUS_OK);
    bed_deinit(&bed);
}

static void test_forwarder__what_waited_in_a_stall_is_not_done(void **state)
{
    (void)state;
    struct bed bed;
    bed_init(&bed);
    forwarder_stalled(bed.forwarder, FORWARDER_STALL_NS, NOW);
    assert_int_equal(judge(&bed, NOW), STATUS_OK);
    forwarder_stalled(bed.forwarder, FORWARDER_STALL_NS + 1, NOW);
    assert_int_equal(judge(&bed, NOW), STATUS_OVERLOADED);
    assert_int_equal(status_class(STATUS_OVERLOADED), STATUS_CLASS_NOT_DONE);
    assert_int_equal(judge(&bed, NOW + FORWARDER_SUSPECT_NS - 1), STATUS_OVERLOADED);
    assert_int_equal(judge(&bed, NOW + FORWARDER_SUSPECT_NS), STATUS_OK);
    bed_deinit(&bed);
}

static void test_forwarder__a_copy_is_dropped_until_the_link_is_new(void **state)
{
    (void)state;
    struct bed bed;
    bed_init(&bed);
    assert_int_equal(judge(&bed, NOW), STATUS_OK);
    assert_int_equal(forwarder_judge(bed.forwarder, 2, &bed.frame, &bed.self, NOW),
                     FORWARD_VERDICT_DROP);
    assert_int_equal(forwarder_judge(bed.forwarder, 3, &bed.frame, &bed.self, NOW),
                     FORWARD_VERDICT_ACCEPT);
    bed.frame.number = 7; /* the peer has started anew */
    assert_int_equal(forwarder_judge(bed.forwarder, 2, &bed.frame, &bed.self, NOW),
                     FORWARD_VERDICT_DROP);
    forwarder_peer_up(bed.forwarder, 2);
    assert_int_equal(forwarder_judge(bed.forwarder, 2, &bed.frame, &bed.self, NOW),
                     FORWARD_VERDICT_ACCEPT);
    /* One that was refused stays refused: its copy must not be done after all. */
    bed.self.leader = false;
    assert_int_equal(judge(&bed, NOW), STATUS_NOT_LEADER);
    bed.self.leader = true;
    assert_int_equal(forwarder_judge(bed.forwarder, 2, &bed.frame, &bed.self, NOW),
                     FORWARD_VERDICT_DROP);
    bed_deinit(&bed);
}

static void test_forwarder__only_what_routers_make_is_proposed(void **state)
{
    (void)state;
    struct bed bed;
    bed_init(&bed);
    const struct {
        enum op_kind kind;
        enum status status;
    } rows[] = {
        {OP_KIND_SETTLE, STATUS_OK},         {OP_KIND_OPEN_ORIGIN, STATUS_OK},
        {OP_KIND_BIRTH, STATUS_DENIED},      {OP_KIND_CONFIGURE, STATUS_DENIED},
        {OP_KIND_RESTORE, STATUS_DENIED},    {OP_KIND_RECOVER, STATUS_DENIED},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct buf bytes = command_bytes(rows[i].kind);
        bed.frame.command = buf_slice(&bytes);
        assert_int_equal(judge(&bed, NOW), rows[i].status);
        buf_deinit(&bytes);
    }
    bed.frame.command = slice_text("nonsense");
    assert_int_equal(judge(&bed, NOW), STATUS_MALFORMED);
    for (size_t len = 0; len < bed.bytes.len; len++) {
        bed.frame.command = slice_from(bed.bytes.base, len);
        assert_int_equal(judge(&bed, NOW), STATUS_MALFORMED);
    }
    bed_deinit(&bed);
}

static void test_forwarder__one_peer_has_only_so_much_in_flight(void **state)
{
    (void)state;
    struct bed bed;
    bed_init(&bed);
    for (uint32_t i = 0; i < FORWARDER_IN_FLIGHT_MAX; i++) {
        assert_int_equal(judge(&bed, NOW), STATUS_OK);
    }
    assert_int_equal(judge(&bed, NOW), STATUS_OVERLOADED);
    forwarder_done(bed.forwarder, 2);
    assert_int_equal(judge(&bed, NOW), STATUS_OK);
    bed.frame.number++;
    assert_int_equal(forwarder_judge(bed.forwarder, 3, &bed.frame, &bed.self, NOW),
                     FORWARD_VERDICT_ACCEPT);
    bed_deinit(&bed);
}

static void test_forwarder__more_peers_than_there_is_room_for_are_refused(void **state)
{
    (void)state;
    struct bed bed;
    bed_init(&bed);
    for (uint64_t peer = FORWARDER_PEERS_MAX; peer > 0; peer--) {
        assert_int_equal(forwarder_judge(bed.forwarder, peer, &bed.frame, &bed.self, NOW),
                         FORWARD_VERDICT_ACCEPT);
    }
    assert_int_equal(forwarder_judge(bed.forwarder, 5000, &bed.frame, &bed.self, NOW),
                     FORWARD_VERDICT_REFUSE);
    assert_int_equal(forwarder_why(bed.forwarder), STATUS_OVERLOADED);
    for (uint64_t peer = 1; peer <= FORWARDER_PEERS_MAX; peer++) {
        forwarder_done(bed.forwarder, peer);
    }
    bed_deinit(&bed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forwarder__who_does_not_lead_that_term_refuses),
        cmocka_unit_test(test_forwarder__late_is_not_done),
        cmocka_unit_test(test_forwarder__what_waited_in_a_stall_is_not_done),
        cmocka_unit_test(test_forwarder__a_copy_is_dropped_until_the_link_is_new),
        cmocka_unit_test(test_forwarder__only_what_routers_make_is_proposed),
        cmocka_unit_test(test_forwarder__one_peer_has_only_so_much_in_flight),
        cmocka_unit_test(test_forwarder__more_peers_than_there_is_room_for_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
