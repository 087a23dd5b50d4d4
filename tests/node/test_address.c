/* Addresses: every accepted form and its canonical text, every refusal, and what counts as
 * local. */
#include "node/address.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

static void expect(const char *text, const char *canonical)
{
    struct address address;
    char out[ADDRESS_TEXT_LEN];
    if (address_parse(slice_text(text), &address) != STATUS_OK) {
        fail_msg("refused: %s", text);
    }
    address_format(&address, out);
    assert_string_equal(out, canonical);
    struct address again;
    assert_int_equal(address_parse(slice_text(out), &again), STATUS_OK);
    assert_memory_equal(&again, &address, sizeof address);
}

static void test_address__accepts_and_normalises(void **state)
{
    (void)state;
    static const char *const rows[][2] = {
        {"127.0.0.1:7420", "127.0.0.1:7420"},
        {"0.0.0.0:0", "0.0.0.0:0"},
        {"255.255.255.255:65535", "255.255.255.255:65535"},
        {"localhost:1", "127.0.0.1:1"},
        {"[::]:1", "[::]:1"},
        {"[::1]:7420", "[::1]:7420"},
        {"[1::]:1", "[1::]:1"},
        {"[2001:DB8:0:0:1:0:0:1]:80", "[2001:db8::1:0:0:1]:80"},
        {"[2001:db8:0:1:1:1:1:1]:80", "[2001:db8:0:1:1:1:1:1]:80"},
        {"[1:2:3:4:5:6:7::]:1", "[1:2:3:4:5:6:7:0]:1"},
        {"[::2:3:4:5:6:7:8]:1", "[0:2:3:4:5:6:7:8]:1"},
        {"[::ffff:127.0.0.1]:1", "[::ffff:7f00:1]:1"},
        {"[1:2:3:4:5:6:1.2.3.4]:1", "[1:2:3:4:5:6:102:304]:1"},
        {"[fe80::0001]:1", "[fe80::1]:1"},
        {"[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535",
         "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        expect(rows[i][0], rows[i][1]);
    }
}

static void test_address__refuses_everything_else(void **state)
{
    (void)state;
    static const char *const rows[] = {
        "", ":", ":1", "1", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:99999",
        "127.0.0.1:-1", "127.0.0.1:+1", "127.0.0.1: 1", "127.0.0.1:01", "127.0.0.1:1x",
        "127.0.0.1:123456", "256.0.0.1:1", "127.0.0.01:1", "127.0.1:1", "127.0.0.1.1:1",
        "127.0.0.:1", ".127.0.0.1:1", " 127.0.0.1:1", "1e3.0.0.1:1", "0x7f.0.0.1:1",
        "localhost", "LOCALHOST:1", "example.org:1", "::1:1", "[]:1", "[:]:1", "[:::]:1",
        "[1::2::3]:1", "[1:2:3:4:5:6:7]:1", "[1:2:3:4:5:6:7:8:9]:1", "[1:2:3:4:5:6:7:8::]:1",
        "[::1:2:3:4:5:6:7:8]:1", "[12345::]:1", "[g::]:1", "[1:]:1", "[:1]:1", "[::1", "::1]:1",
        "[::1]", "[::1]1", "[fe80::1%eth0]:1", "[::1.2.3]:1", "[::1.2.3.4:5]:1",
        "[1:2:3:4:5:6:7:1.2.3.4]:1",
        "[1111:2222:3333:4444:5555:6666:7777:8888:9999:aaaa:bbbb:cccc]:1",
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct address address;
        if (address_parse(slice_text(rows[i]), &address) != STATUS_INVALID) {
            fail_msg("accepted: %s", rows[i]);
        }
    }
    struct address address;
    assert_int_equal(address_parse(slice_from("127.0.0.1:1\0", 12), &address), STATUS_INVALID);
}

static void test_address__knows_loopback_and_any(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool loopback;
        bool any;
    } rows[] = {
        {"127.0.0.1:1", true, false},           {"127.255.255.255:1", true, false},
        {"126.255.255.255:1", false, false},    {"128.0.0.0:1", false, false},
        {"0.0.0.0:1", false, true},             {"[::1]:1", true, false},
        {"[::2]:1", false, false},              {"[::]:1", false, true},
        {"[::ffff:127.0.0.1]:1", true, false},  {"[::ffff:126.0.0.1]:1", false, false},
        {"[::127.0.0.1]:1", false, false},      {"[1::1]:1", false, false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct address address;
        assert_int_equal(address_parse(slice_text(rows[i].text), &address), STATUS_OK);
        if (address_is_loopback(&address) != rows[i].loopback ||
            address_is_any(&address) != rows[i].any) {
            fail_msg("misjudged: %s", rows[i].text);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_address__accepts_and_normalises),
        cmocka_unit_test(test_address__refuses_everything_else),
        cmocka_unit_test(test_address__knows_loopback_and_any),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
