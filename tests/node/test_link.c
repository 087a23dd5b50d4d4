/* Links between real sockets in one loop: coming up, one connection per pair, strangers, foreign
 * clusters, silence, large and bulk frames, bounds. */
#include "node/link.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/node/link_bed.h"

static struct link_bed bed;

static int setup(void **state)
{
    (void)state;
    bed_open(&bed);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    bed_close(&bed);
    return 0;
}

static struct link_stats stats_of(const struct bed_node *node)
{
    struct link_stats stats;
    link_stats(node->links, &stats);
    return stats;
}

static void test_link__comes_up_at_both_ends_and_carries_frames(void **state)
{
    (void)state;
    struct bed_node *a = bed_start(&bed, 0, 1, &bed_identity);
    struct bed_node *b = bed_start(&bed, 1, 2, &bed_identity);
    assert_false(bed_send(a, b, false, 1, 8)); /* no link yet */
    assert_int_equal(stats_of(a).dropped, 1);
    bed_introduce(a, b);
    assert_true(bed_linked(a, b));
    assert_string_equal(links_peer_address(b->links, 1), links_address(a->links));
    assert_true(bed_send(a, b, false, 5, 8));
    assert_true(bed_send(b, a, false, 6, 1000));
    drive_for(bed.loop, 20);
    assert_int_equal(b->frames, 1);
    assert_int_equal(b->last_sequence, 5);
    assert_int_equal(b->last_type, FRAME_TYPE_QUERY_REPLY);
    assert_int_equal(a->frames, 1);
    assert_int_equal(a->frame_bytes, 1000);
    uint64_t ids[4];
    assert_int_equal(links_peers(a->links, ids, 4), 1);
    assert_int_equal(ids[0], 2);
    assert_null(links_peer_address(a->links, 9));
}

static void test_link__two_that_dial_each_other_keep_one_connection(void **state)
{
    (void)state;
    for (unsigned round = 0; round < 20; round++) {
        struct bed_node *a = bed_start(&bed, 0, 1, &bed_identity);
        struct bed_node *b = bed_start(&bed, 1, 2, &bed_identity);
        if (round % 2 == 0) {
            bed_introduce(a, b);
            bed_introduce(b, a);
        } else {
            /* By seeds neither knows whom it dials, so nobody yields. */
            links_add_seed(a->links, links_address(b->links));
            links_add_seed(b->links, links_address(a->links));
        }
        assert_true(bed_linked(a, b));
        drive_for(bed.loop, 20);
        assert_true(bed_linked(a, b));
        unsigned ups = a->up[2];
        assert_true(ups <= 2);
        drive_for(bed.loop, round == 19 ? 600 : 10);
        assert_int_equal(a->up[2], ups); /* no flapping */
        assert_int_equal(a->up[2], a->down[2] + 1);
        assert_int_equal(b->up[1], b->down[1] + 1);
        assert_int_equal(stats_of(a).up, 1);
        assert_int_equal(a->refused + b->refused, 0);
        assert_true(bed_send(a, b, false, 1, 8));
        assert_true(bed_send(b, a, false, 1, 8));
        drive_for(bed.loop, 10);
        assert_int_equal(a->frames, 1);
        assert_int_equal(b->frames, 1);
        bed_stop(a);
        bed_stop(b);
    }
}

static void test_link__three_nodes_are_all_linked(void **state)
{
    (void)state;
    struct bed_node *nodes[3];
    for (unsigned i = 0; i < 3; i++) {
        nodes[i] = bed_start(&bed, i, 10 + i, &bed_identity);
    }
    for (unsigned i = 0; i < 3; i++) {
        for (unsigned j = 0; j < 3; j++) {
            if (i != j) {
                bed_introduce(nodes[i], nodes[j]);
            }
        }
    }
    for (unsigned i = 0; i < 3; i++) {
        assert_true(bed_linked(nodes[i], nodes[(i + 1) % 3]));
        assert_int_equal(stats_of(nodes[i]).refused, 0);
    }
}

static bool is_down(void *ctx)
{
    struct bed_node *node = ctx;
    return node->down[2] > 0;
}

static void test_link__a_peer_that_stops_is_down_at_once_and_back_when_it_returns(void **state)
{
    (void)state;
    struct bed_node *a = bed_start(&bed, 0, 1, &bed_identity);
    struct bed_node *b = bed_start(&bed, 1, 2, &bed_identity);
    bed_introduce(a, b);
    assert_true(bed_linked(a, b));
    bed_stop(b);
    uint64_t start_ns = loop_clock_ns();
    assert_true(drive(bed.loop, is_down, a));
    assert_true(loop_clock_ns() - start_ns < ms_to_ns(1000)); /* not by silence */
    assert_false(links_peer_up(a->links, 2));

    b = bed_start(&bed, 1, 2, &bed_identity); /* on another port: it dials us */
    bed_introduce(b, a);
    assert_true(bed_linked(a, b));
    assert_string_equal(links_peer_address(a->links, 2), links_address(b->links));
}

static void test_link__a_restarted_peer_replaces_its_dead_connection(void **state)
{
    (void)state;
    struct bed_node *a = bed_start(&bed, 0, 1, &bed_identity);
    struct bed_node *b = bed_start(&bed, 1, 2, &bed_identity);
    bed_introduce(a, b);
    assert_true(bed_linked(a, b));
    /* A second run of node 2, while the first one's connection, dialled by the lower id, still
     * looks alive: as after a power cut of its machine. */
    struct bed_node *again = bed_start(&bed, 2, 2, &bed_identity);
    bed_introduce(again, a);
    assert_true(bed_linked(again, a));
    assert_true(a->down[2] >= 1);
}

static bool is_refused(void *ctx)
{
    struct bed_node **nodes = ctx;
    return nodes[0]->refused > 0 && nodes[1]->refused > 0;
}

static void test_link__another_cluster_is_refused_with_both_ids_at_both_ends(void **state)
{
    (void)state;
    struct bed_node *a = bed_start(&bed, 0, 1, &bed_identity);
    struct bed_node *b = bed_start(&bed, 1, 2, &bed_foreign);
    links_add_seed(a->links, links_address(b->links));
    struct bed_node *both[2] = {a, b};
    assert_true(drive(bed.loop, is_refused, both));
    static const char expected[] =
        "node 1 belongs to cluster aabb0000000000000000000000000000.1.0000000000000005, "
        "node 2 to cluster ccdd0000000000000000000000000000.1.0000000000000006";
    assert_string_equal(a->why, expected);
    assert_string_equal(b->why, expected);
    assert_string_equal(a->refused_address, links_address(b->links));
    assert_string_equal(b->refused_address, links_address(a->links));
    assert_int_equal(a->up[2] + b->up[1], 0);
    assert_null(links_peer_address(b->links, 1)); /* its address is not remembered */
}

static void test_link__another_generation_is_refused(void **state)
{
    (void)state;
    struct cluster_identity recovered = bed_identity;
    recovered.generation = 2;
    struct bed_node *a = bed_start(&bed, 0, 1, &bed_identity);
    struct bed_node *b = bed_start(&bed, 1, 2, &recovered);
    bed_introduce(a, b);
    struct bed_node *both[2] = {a, b};
    assert_true(drive(bed.loop, is_refused, both));
    assert_non_null(strstr(a->why, ".2.0000000000000005"));
    assert_int_equal(a->up[2] + b->up[1], 0);
}

static bool has_met(void *ctx)
{
    return ((struct bed_node *)ctx)->met > 0;
}

static void test_link__a_node_without_a_cluster_meets_one_and_becomes_a_peer(void **state)
{
    (void)state;
    struct bed_node *a = bed_start(&bed, 0, 1, &bed_identity);
    struct bed_node *joiner = bed_start(&bed, 1, 7, NULL);
    links_add_seed(joiner->links, links_address(a->links));
    assert_true(drive(bed.loop, has_met, joiner));
    assert_int_equal(joiner->met_id, 1);
    assert_memory_equal(joiner->met_identity.id, bed_identity.id, CLUSTER_ID_LEN);
    assert_int_equal(joiner->met_identity.generation_random, 5);
    assert_string_equal(joiner->met_address, links_address(a->links));
    assert_int_equal(a->up[0] + a->up[7], 0);

    joiner->take_over = true; /* it is met again until the owner takes it over */
    assert_true(bed_linked(joiner, a));
    assert_int_equal(a->up[7], 1);
    assert_string_equal(links_peer_address(a->links, 7), links_address(joiner->links));
    drive_for(bed.loop, 100);
    assert_int_equal(a->up[7], 1);
}

static bool was_refused(void *ctx)
{
    return ((struct bed_node *)ctx)->refused > 0;
}

static void test_link__two_nodes_without_a_cluster_make_none(void **state)
{
    (void)state;
    struct bed_node *a = bed_start(&bed, 0, 1, NULL);
    struct bed_node *b = bed_start(&bed, 1, 2, NULL);
    links_add_seed(a->links, links_address(b->links));
    assert_true(drive(bed.loop, was_refused, a));
    assert_string_equal(a->why, "the node there belongs to no cluster yet");
    assert_int_equal(a->met + b->met, 0);
}

static void test_link__does_not_link_with_itself_nor_with_its_own_id(void **state)
{
    (void)state;
    struct bed_node *a = bed_start(&bed, 0, 1, &bed_identity);
    links_add_seed(a->links, links_address(a->links));
    assert_true(drive(bed.loop, was_refused, a));
    assert_string_equal(a->why, "node 1 has reached itself");
    links_clear_seeds(a->links);
    links_add_peer(a->links, 1, "127.0.0.1:1");
    assert_null(links_peer_address(a->links, 1));

    struct bed_node *other = bed_start(&bed, 1, 1, &bed_identity); /* a copied data directory */
    links_add_seed(other->links, links_address(a->links));
    assert_true(drive(bed.loop, was_refused, other));
    assert_string_equal(other->why, "node id 1 is taken by another node");
    assert_int_equal(a->up[1] + other->up[1], 0);
}

static void test_link__an_address_of_another_node_is_told_and_not_believed(void **state)
{
    (void)state;
    struct bed_node *a = bed_start(&bed, 0, 1, &bed_identity);
    struct bed_node *b = bed_start(&bed, 1, 2, &bed_identity);
    links_add_peer(a->links, 9, links_address(b->links));
    assert_true(drive(bed.loop, was_refused, a));
    assert_string_equal(a->why, "node 9 was expected there, found node 2");
    assert_int_equal(a->up[9], 0);
}

static void test_link__addresses_that_may_not_be_used(void **state)
{
    (void)state;
    struct bed_node *a = bed_start(&bed, 0, 1, &bed_identity);
    static const char *const rows[] = {"10.0.0.1:1", "127.0.0.1:0", "0.0.0.0:1", "host:1", ""};
    for (unsigned i = 0; i < 5; i++) {
        a->refused = 0;
        links_add_peer(a->links, 5, rows[i]);
        links_add_seed(a->links, rows[i]);
        assert_int_equal(a->refused, 2);
        assert_null(links_peer_address(a->links, 5));
    }
    struct links *links = NULL;
    char why[256];
    struct link_callbacks callbacks = {0};
    struct link_config config = {.listen = "0.0.0.0:0"};
    assert_int_equal(links_open(bed.loop, &config, &callbacks, why, &links), STATUS_INVALID);
    assert_string_equal(why, "0.0.0.0:0: is not a loopback address: needs insecure_network");
    config = (struct link_config){.listen = links_address(a->links)};
    assert_int_equal(links_open(bed.loop, &config, &callbacks, why, &links), STATUS_IN_USE);
    assert_non_null(strstr(why, "address already in use"));
}

static void test_link__removing_a_peer_and_another_self_close_links(void **state)
{
    (void)state;
    struct bed_node *a = bed_start(&bed, 0, 1, &bed_identity);
    struct bed_node *b = bed_start(&bed, 1, 2, &bed_identity);
    bed_introduce(a, b);
    assert_true(bed_linked(a, b));
    links_remove_peer(a->links, 2);
    assert_int_equal(a->down[2], 1);
    assert_null(links_peer_address(a->links, 2));
    assert_true(bed_linked(a, b)); /* the other end dials again */

    struct link_self self = {.node_id = 1, .identity = bed_foreign};
    links_set_self(a->links, &self);
    assert_int_equal(a->down[2], 2);
    struct bed_node *both[2] = {a, b};
    assert_true(drive(bed.loop, is_refused, both));
}

/* --- time */

/* A raw socket that greets as node 20, then does nothing. */
static int greet_as_20(struct bed_node *node)
{
    int fd = bed_connect(node);
    struct link_greeting greeting = {.version_min = 1, .version_max = 1, .identity = bed_identity,
                                     .node_id = 20, .instance = 4711, .address = "127.0.0.1:1"};
    struct buf out;
    buf_init(&out, 4096);
    link_frame_greet(FRAME_TYPE_HELLO, &greeting, &out);
    assert_int_equal(send(fd, out.base, out.len, MSG_NOSIGNAL), (ssize_t)out.len);
    buf_deinit(&out);
    return fd;
}

static bool is_20_up(void *ctx)
{
    return ((struct bed_node *)ctx)->up[20] > 0;
}

static bool is_20_silent(void *ctx)
{
    const struct bed_node *node = ctx;
    return node->silent[20] > node->heard[20];
}

static bool is_20_heard(void *ctx)
{
    return ((struct bed_node *)ctx)->heard[20] > 0;
}

static bool is_20_down(void *ctx)
{
    return ((struct bed_node *)ctx)->down[20] > 0;
}

static void test_link__n3_silence_is_told_after_300_ms_and_ends_after_2_s(void **state)
{
    (void)state;
    struct bed_node *a = bed_start(&bed, 0, 1, &bed_identity);
    int fd = greet_as_20(a);
    assert_true(drive(bed.loop, is_20_up, a));
    uint64_t start_ns = loop_clock_ns();
    assert_true(drive(bed.loop, is_20_silent, a));
    uint64_t silent_ns = loop_clock_ns() - start_ns;
    assert_true(silent_ns >= ms_to_ns(250)); /* counted from the greeting */
    assert_true(drive(bed.loop, is_20_down, a));
    uint64_t down_ns = loop_clock_ns() - start_ns;
    assert_true(down_ns >= ms_to_ns(1900));
    assert_true(down_ns < ms_to_ns(10000));
    assert_int_equal(a->silent[20], 1);
    (void)close(fd);
}

static void test_link__bytes_end_a_silence_and_the_next_one_is_told_again(void **state)
{
    (void)state;
    struct bed_node *a = bed_start(&bed, 0, 1, &bed_identity);
    int fd = greet_as_20(a);
    assert_true(drive(bed.loop, is_20_silent, a));
    static const uint8_t ping[8] = {0, 0, 0, 0, FRAME_TYPE_PING};
    assert_int_equal(send(fd, ping, sizeof ping, MSG_NOSIGNAL), (ssize_t)sizeof ping);
    assert_int_equal(a->heard[20], 0);
    assert_true(drive(bed.loop, is_20_heard, a));
    assert_true(drive(bed.loop, is_20_silent, a));
    assert_int_equal(a->silent[20], 2);
    assert_int_equal(a->heard[20], 1);
    assert_int_equal(a->down[20], 0);
    (void)close(fd);
}

static void test_link__idle_links_stay_up_and_are_not_silent(void **state)
{
    (void)state;
    struct bed_node *a = bed_start(&bed, 0, 1, &bed_identity);
    struct bed_node *b = bed_start(&bed, 1, 2, &bed_identity);
    bed_introduce(a, b);
    assert_true(bed_linked(a, b));
    drive_for(bed.loop, 2500);
    assert_int_equal(a->down[2] + b->down[1], 0);
    assert_int_equal(a->silent[2] + b->silent[1], 0);
}

/* The whole process stands still for three seconds: neither end was silent. */
static void test_link__a_stall_of_our_own_is_no_silence_of_others(void **state)
{
    (void)state;
    struct bed_node *a = bed_start(&bed, 0, 1, &bed_identity);
    struct bed_node *b = bed_start(&bed, 1, 2, &bed_identity);
    bed_introduce(a, b);
    assert_true(bed_linked(a, b));
    drive_for(bed.loop, 100);
    uint64_t end_ns = loop_clock_ns() + ms_to_ns(2500);
    while (loop_clock_ns() < end_ns) {
    }
    drive_for(bed.loop, 200);
    assert_int_equal(a->down[2] + b->down[1], 0);
    assert_int_equal(a->silent[2] + b->silent[1], 0);
}

/* --- strangers */

static void test_link__strangers_are_closed_for_whatever_is_no_greeting(void **state)
{
    (void)state;
    struct bed_node *a = bed_start(&bed, 0, 1, &bed_identity);
    static const struct {
        const char *bytes;
        size_t len;
    } rows[] = {
        {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", 27},
        {"\0\0\0\0\4\0\0\0", 8},                   /* a ping before the greeting */
        {"\0\0\x90\0\x16\0\0\0", 8},               /* 9 MiB of a query's reply */
        {"\xff\xff\xff\xff\1\0\0\0", 8},           /* a greeting of 4 GiB */
        {"\4\0\0\0\1\0\0\0TNRL", 12},              /* cut short */
        {"\4\0\0\0\2\0\0\0TNRL", 12},              /* a welcome that nobody waits for */
        {"\7\0\0\0\3\0\0\0TNRL\1\0\0", 15},        /* a refusal likewise */
        {"\x95\0\1\2\3\4\5\6", 8},                 /* MessagePack */
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct buf out;
        buf_init(&out, 65536);
        int fd = bed_connect(a);
        assert_true(
            bed_say_until_closed(&bed, fd, slice_from(rows[i].bytes, rows[i].len), &out));
        assert_int_equal(out.len, 0);
        assert_int_equal(stats_of(a).malformed, i + 1);
        buf_deinit(&out);
    }
}

static void test_link__a_stranger_of_another_version_hears_why(void **state)
{
    (void)state;
    struct bed_node *a = bed_start(&bed, 0, 1, &bed_identity);
    struct link_greeting greeting = {.version_min = 2, .version_max = 9, .identity = bed_identity,
                                     .node_id = 20, .instance = 4711, .address = "127.0.0.1:1"};
    struct buf hello;
    struct buf out;
    buf_init(&hello, 4096);
    buf_init(&out, 4096);
    link_frame_greet(FRAME_TYPE_HELLO, &greeting, &hello);
    assert_true(bed_say_until_closed(&bed, bed_connect(a), buf_slice(&hello), &out));
    struct link_frame frame;
    struct link_refused refused;
    size_t len;
    assert_int_equal(link_frame_scan(buf_slice(&out), &frame, &len), LINK_FRAME_VERDICT_WHOLE);
    assert_int_equal(link_frame_read_refused(frame.payload, &refused), STATUS_OK);
    assert_int_equal(refused.code, LINK_REFUSAL_VERSION);
    assert_string_equal(refused.why, "node 20 speaks link protocol 2..9, node 1 1..1");
    assert_int_equal(a->refused, 1);
    buf_deinit(&hello);
    buf_deinit(&out);
}

static void test_link__who_one_is_may_not_change(void **state)
{
    (void)state;
    struct bed_node *a = bed_start(&bed, 0, 1, &bed_identity);
    struct link_greeting greeting = {.version_min = 1, .version_max = 1, .identity = bed_identity,
                                     .node_id = 20, .instance = 4711, .address = "127.0.0.1:1"};
    struct buf hellos;
    struct buf out;
    buf_init(&hellos, 4096);
    buf_init(&out, 4096);
    link_frame_greet(FRAME_TYPE_HELLO, &greeting, &hellos);
    greeting.node_id = 21;
    link_frame_greet(FRAME_TYPE_HELLO, &greeting, &hellos);
    assert_true(bed_say_until_closed(&bed, bed_connect(a), buf_slice(&hellos), &out));
    assert_int_equal(a->up[20], 1);
    assert_int_equal(a->down[20], 1);
    assert_int_equal(a->up[21], 0);
    assert_int_equal(stats_of(a).malformed, 1);
    buf_deinit(&hellos);
    buf_deinit(&out);
}

static void test_link__many_strangers_do_not_keep_a_peer_out(void **state)
{
    (void)state;
    struct bed_node *a = bed_start(&bed, 0, 1, &bed_identity);
    struct bed_node *b = bed_start(&bed, 1, 2, &bed_identity);
    int fds[100];
    for (unsigned i = 0; i < 100; i++) {
        fds[i] = bed_connect(a);
        drive_for(bed.loop, 1);
    }
    assert_int_equal(stats_of(a).accepted, 100);
    assert_int_equal(stats_of(a).refused, 36); /* those that were there longest */
    bed_introduce(b, a);
    assert_true(bed_linked(a, b));
    for (unsigned i = 0; i < 100; i++) {
        (void)close(fds[i]);
    }
}

static void test_link__a_stranger_that_says_nothing_is_closed_after_5_s(void **state)
{
    (void)state;
    struct bed_node *a = bed_start(&bed, 0, 1, &bed_identity);
    struct buf out;
    buf_init(&out, 4096);
    uint64_t start_ns = loop_clock_ns();
    /* Half a header: nothing can be judged yet. */
    assert_true(bed_say_until_closed(&bed, bed_connect(a), slice_from("\x47\0\0\0", 4), &out));
    uint64_t took_ns = loop_clock_ns() - start_ns;
    assert_true(took_ns >= ms_to_ns(4900));
    assert_true(took_ns < ms_to_ns(15000));
    assert_int_equal(out.len, 0);
    buf_deinit(&out);
}

/* --- frames */

struct wish {
    struct bed_node *node;
    unsigned frames;
};

static bool has_frames(void *ctx)
{
    struct wish *wish = ctx;
    return wish->node->frames >= wish->frames;
}

static void test_link__carries_the_largest_frame_and_refuses_a_larger_one(void **state)
{
    (void)state;
    struct bed_node *a = bed_start(&bed, 0, 1, &bed_identity);
    struct bed_node *b = bed_start(&bed, 1, 2, &bed_identity);
    bed_introduce(a, b);
    assert_true(bed_linked(a, b));
    assert_false(bed_send(a, b, false, 1, FRAME_LEN_MAX + 1));
    assert_true(bed_send(a, b, false, 1, FRAME_LEN_MAX));
    assert_true(bed_send(a, b, false, 2, 8));
    struct wish wish = {.node = b, .frames = 2};
    assert_true(drive(bed.loop, has_frames, &wish));
    assert_int_equal(b->frame_bytes, FRAME_LEN_MAX + 8);
    assert_false(b->out_of_order);
    assert_int_equal(b->last_sequence, 2);
}

static void test_link__order_is_kept_over_many_frames(void **state)
{
    (void)state;
    struct bed_node *a = bed_start(&bed, 0, 1, &bed_identity);
    struct bed_node *b = bed_start(&bed, 1, 2, &bed_identity);
    bed_introduce(a, b);
    assert_true(bed_linked(a, b));
    for (unsigned i = 1; i <= 5000; i++) {
        assert_true(bed_send(a, b, false, i, 8 + i % 700));
        if (i % 500 == 0) {
            (void)uv_run(loop_uv(bed.loop), UV_RUN_ONCE);
        }
    }
    struct wish wish = {.node = b, .frames = 5000};
    assert_true(drive(bed.loop, has_frames, &wish));
    assert_false(b->out_of_order);
    assert_int_equal(a->down[2], 0);
}

static void test_link__a_small_frame_overtakes_bulk(void **state)
{
    (void)state;
    struct bed_node *a = bed_start(&bed, 0, 1, &bed_identity);
    struct bed_node *b = bed_start(&bed, 1, 2, &bed_identity);
    bed_introduce(a, b);
    assert_true(bed_linked(a, b));
    for (unsigned i = 1; i <= 400; i++) {
        assert_true(bed_send(a, b, true, i, 64 * 1024));
    }
    /* A turn in which the first slices go out, then something urgent. */
    (void)uv_run(loop_uv(bed.loop), UV_RUN_ONCE);
    assert_true(bed_send(a, b, false, 0, 8));
    struct wish wish = {.node = b, .frames = 401};
    assert_true(drive(bed.loop, has_frames, &wish));
    assert_true(b->query_at > 0);
    assert_true(b->query_at < 200);
}

static void test_link__the_queue_of_a_peer_that_does_not_read_is_bounded(void **state)
{
    (void)state;
    struct bed_node *a = bed_start(&bed, 0, 1, &bed_identity);
    int fd = greet_as_20(a);
    assert_true(drive(bed.loop, is_20_up, a));
    struct bed_node deaf = {.id = 20};
    struct transport transport = links_transport(a->links);
    unsigned sent = 0;
    assert_false(transport.waits(transport.ctx, 20));
    assert_false(transport.waits(transport.ctx, 21)); /* no such peer */
    while (bed_send(a, &deaf, sent % 2 == 0, sent, 1024 * 1024)) {
        sent++;
        (void)uv_run(loop_uv(bed.loop), UV_RUN_NOWAIT);
        assert_true(sent < 200);
    }
    assert_true(sent >= 62); /* 64 MiB, less what headers need */
    assert_true(sent <= 90); /* and what the kernel took */
    assert_int_equal(stats_of(a).dropped, 1);
    assert_int_equal(a->down[20], 0);
    assert_true(transport.waits(transport.ctx, 20));
    (void)close(fd);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_link__comes_up_at_both_ends_and_carries_frames),
        TEST(test_link__two_that_dial_each_other_keep_one_connection),
        TEST(test_link__three_nodes_are_all_linked),
        TEST(test_link__a_peer_that_stops_is_down_at_once_and_back_when_it_returns),
        TEST(test_link__a_restarted_peer_replaces_its_dead_connection),
        TEST(test_link__another_cluster_is_refused_with_both_ids_at_both_ends),
        TEST(test_link__another_generation_is_refused),
        TEST(test_link__a_node_without_a_cluster_meets_one_and_becomes_a_peer),
        TEST(test_link__two_nodes_without_a_cluster_make_none),
        TEST(test_link__does_not_link_with_itself_nor_with_its_own_id),
        TEST(test_link__an_address_of_another_node_is_told_and_not_believed),
        TEST(test_link__addresses_that_may_not_be_used),
        TEST(test_link__removing_a_peer_and_another_self_close_links),
        TEST(test_link__n3_silence_is_told_after_300_ms_and_ends_after_2_s),
        TEST(test_link__bytes_end_a_silence_and_the_next_one_is_told_again),
        TEST(test_link__idle_links_stay_up_and_are_not_silent),
        TEST(test_link__a_stall_of_our_own_is_no_silence_of_others),
        TEST(test_link__strangers_are_closed_for_whatever_is_no_greeting),
        TEST(test_link__a_stranger_of_another_version_hears_why),
        TEST(test_link__who_one_is_may_not_change),
        TEST(test_link__many_strangers_do_not_keep_a_peer_out),
        TEST(test_link__a_stranger_that_says_nothing_is_closed_after_5_s),
        TEST(test_link__carries_the_largest_frame_and_refuses_a_larger_one),
        TEST(test_link__order_is_kept_over_many_frames),
        TEST(test_link__a_small_frame_overtakes_bulk),
        TEST(test_link__the_queue_of_a_peer_that_does_not_read_is_bounded),
    };
#undef TEST
    return cmocka_run_group_tests(tests, NULL, NULL);
}
