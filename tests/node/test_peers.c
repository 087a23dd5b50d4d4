/* Known peers: who may say where a node is, the file's text both ways, and damaged files. */
#include "node/peers.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

static bool learn(struct peers *peers, uint64_t id, const char *address, bool itself)
{
    return peers_learn(peers, id, slice_text(address), itself);
}

static void test_peers__others_only_fill_a_gap(void **state)
{
    (void)state;
    struct peers peers;
    peers_init(&peers);
    assert_true(learn(&peers, 7, "127.0.0.1:1", false));
    assert_false(learn(&peers, 7, "127.0.0.1:2", false));
    assert_string_equal(peers_find(&peers, 7)->address, "127.0.0.1:1");
    assert_null(peers_find(&peers, 8));
    peers_deinit(&peers);
}

static void test_peers__a_node_corrects_its_own_address(void **state)
{
    (void)state;
    struct peers peers;
    peers_init(&peers);
    assert_true(learn(&peers, 7, "127.0.0.1:1", false));
    assert_true(learn(&peers, 7, "127.0.0.1:2", true));
    assert_false(learn(&peers, 7, "127.0.0.1:3", false));
    assert_string_equal(peers_find(&peers, 7)->address, "127.0.0.1:2");
    peers_deinit(&peers);
}

static void test_peers__refuses_what_would_break_a_line(void **state)
{
    (void)state;
    struct peers peers;
    peers_init(&peers);
    char address[PEER_ADDRESS_LEN_MAX + 1];
    memset(address, '1', sizeof address);
    address[PEER_ADDRESS_LEN_MAX] = '\0';
    assert_false(learn(&peers, 1, address, true));
    address[PEER_ADDRESS_LEN_MAX - 1] = '\0';
    assert_true(learn(&peers, 1, address, true));
    assert_false(learn(&peers, 0, "127.0.0.1:1", true));
    assert_false(learn(&peers, 2, "", true));
    assert_false(learn(&peers, 2, "127.0.0.1 :1", true));
    assert_false(learn(&peers, 2, "127.0.0.1\n:1", true));
    peers_deinit(&peers);
}

static void test_peers__takes_in_only_so_many(void **state)
{
    (void)state;
    struct peers peers;
    peers_init(&peers);
    for (uint64_t id = PEERS_MAX; id > 0; id--) {
        assert_true(learn(&peers, id, "127.0.0.1:1", false));
    }
    assert_false(learn(&peers, PEERS_MAX + 1, "127.0.0.1:1", true));
    assert_true(learn(&peers, PEERS_MAX, "127.0.0.1:2", true));
    assert_int_equal(peers.items[0].id, 1);
    peers_deinit(&peers);
}

static void test_peers__text_goes_both_ways(void **state)
{
    (void)state;
    struct peers peers;
    peers_init(&peers);
    (void)learn(&peers, 0xfedcba9876543210ull, "[::1]:7420", true);
    (void)learn(&peers, 3, "127.0.0.1:7421", false);
    memcpy(peers.self_address, "127.0.0.1:9", sizeof "127.0.0.1:9");
    struct buf text;
    buf_init(&text, PEERS_FILE_LEN_MAX);
    peers_encode(&peers, &text);
    assert_true(slice_equal(buf_slice(&text), slice_text("tenure-peers 1\n"
                                                         "self 127.0.0.1:9\n"
                                                         "peer 0000000000000003 127.0.0.1:7421\n"
                                                         "peer fedcba9876543210 [::1]:7420\n")));
    struct peers back;
    peers_init(&back);
    assert_int_equal(peers_decode(&back, buf_slice(&text)), STATUS_OK);
    assert_int_equal(back.count, 2);
    assert_string_equal(back.self_address, "127.0.0.1:9");
    assert_string_equal(peers_find(&back, 0xfedcba9876543210ull)->address, "[::1]:7420");
    buf_deinit(&text);
    peers_deinit(&peers);
    peers_deinit(&back);
}

static void test_peers__damaged_text_changes_nothing(void **state)
{
    (void)state;
    static const char *const damaged[] = {
        "",
        "tenure-peers 2\n",
        "tenure-peers 1\npeer 0000000000000000 127.0.0.1:1\n",
        "tenure-peers 1\npeer 000000000000000g 127.0.0.1:1\n",
        "tenure-peers 1\npeer 0000000000000001\n",
        "tenure-peers 1\npeer 0000000000000001 \n",
        "tenure-peers 1\npeer 0000000000000001 a\npeer 0000000000000001 a\n",
        "tenure-peers 1\nself a b\n",
        "tenure-peers 1\n\n",
    };
    struct peers peers;
    peers_init(&peers);
    (void)learn(&peers, 5, "127.0.0.1:5", true);
    for (size_t i = 0; i < sizeof damaged / sizeof damaged[0]; i++) {
        assert_int_equal(peers_decode(&peers, slice_text(damaged[i])), STATUS_MALFORMED);
        assert_int_equal(peers.count, 1);
        assert_string_equal(peers_find(&peers, 5)->address, "127.0.0.1:5");
    }
    peers_deinit(&peers);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_peers__others_only_fill_a_gap),
        cmocka_unit_test(test_peers__a_node_corrects_its_own_address),
        cmocka_unit_test(test_peers__refuses_what_would_break_a_line),
        cmocka_unit_test(test_peers__takes_in_only_so_many),
        cmocka_unit_test(test_peers__text_goes_both_ways),
        cmocka_unit_test(test_peers__damaged_text_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
