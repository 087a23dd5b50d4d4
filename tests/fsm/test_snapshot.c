/* Snapshots: round trips with everything in them, every byte damaged, every length cut, other
 * versions, and contents that a correct checksum does not excuse. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#include "fsm/base/hash.h"
#include "fsm/base/rng.h"
#include "fsm/fsm_state.h"
#include "fsm/invariants.h"
#include "fsm/snapshot.h"
#include "tests/fsm/driver.h"
#include "tests/golden/golden.h"

#define HEADER_LEN 24u

static const struct hash_key no_hash_key = {{0}};

/* Something of every section, a mark of each scope among it. */
static struct driver *full(void)
{
    struct settings settings = settings_default();
    settings.removal_slice = 1;
    settings.voters_wanted = 5;
    struct driver *driver = driver_create(&settings);
    driver->clock_ms = 3;
    driver_fill(driver, &(struct ask){.owner = "A", .key = "a"}, 4);
    driver_fill(driver, &(struct ask){.owner = "B", .key = "b", .ns = "other"}, 3);
    (void)TAKE(driver, .owner = "C", .key = "k", .meta = slice_text("meta"),
               .identity = slice_text("identity"));
    (void)CLAIM(driver, .owner = "C", .key = "l", .destroy = true, .meta = slice_from("", 0));
    (void)TAKE(driver, .owner = "C", .key = "m");
    (void)RELEASE(driver, .owner = "C", .key = "m");
    (void)CLAIM(driver, .owner = "D", .key = "n", .adopt = true, .grace_ms = 500);
    (void)driver_settle(driver, driver->sequence + 7);
    (void)driver_run(driver, &(struct op){.kind = OP_KIND_OPEN_ORIGIN});
    driver->clock_ms = 10;
    (void)RELEASE_ALL(driver, .owner = "A");
    (void)PURGE(driver, .ns = "other");
    return driver;
}

static void encode(const struct driver *driver, struct buf *out)
{
    buf_init(out, 64 * MIB);
    snapshot_encode(driver->fsm, out);
}

static enum status decode(struct slice bytes, const char **out_why)
{
    struct fsm *fsm = NULL;
    uint32_t version = 0;
    enum status st = snapshot_decode(bytes, &no_hash_key, &fsm, &version, out_why);
    if (st == STATUS_OK) {
        fsm_destroy(fsm);
    }
    return st;
}

static void test_snapshot__of_an_empty_machine_round_trips(void **state)
{
    (void)state;
    struct driver *driver = driver_create(NULL);
    fsm_destroy(driver_round_trip(driver));
    driver_destroy(driver);
}

static void test_snapshot__carries_everything(void **state)
{
    (void)state;
    struct driver *driver = full();
    struct fsm *loaded = driver_round_trip(driver);
    struct fsm_stats before;
    struct fsm_stats after;
    fsm_stats(driver->fsm, &before);
    fsm_stats(loaded, &after);
    assert_true(before.leases_own > 2 && before.leases_del == 1 && before.tombstones > 1 &&
                before.outcomes > 2 && before.origins == 2 && before.namespaces == 2);
    assert_memory_equal(&before, &after, sizeof before);
    assert_null(invariants_check(loaded));
    assert_true(fsm_timed(loaded));
    /* And both go on the same way. */
    struct fsm *original = driver->fsm;
    uint64_t index = driver->index;
    for (unsigned i = 0; i < 10; i++) {
        driver->fsm = original;
        driver->index = index + i;
        driver_pass(driver, 100);
        driver->fsm = loaded;
        driver->index = index + i;
        driver_pass(driver, 0);
        assert_true(fsm_digest(original) == fsm_digest(loaded));
    }
    driver->fsm = original;
    fsm_destroy(loaded);
    driver_destroy(driver);
}

static void test_snapshot__damage_to_any_byte_is_detected(void **state)
{
    (void)state;
    struct driver *driver = full();
    struct buf bytes;
    encode(driver, &bytes);
    for (size_t i = 0; i < bytes.len; i++) {
        for (unsigned bit = 0; bit < 8; bit++) {
            bytes.base[i] ^= (uint8_t)(1u << bit);
            const char *why = NULL;
            enum status st = decode(buf_slice(&bytes), &why);
            bool of_version = i >= 4 && i < 8;
            assert_int_equal(st, of_version ? STATUS_INCOMPATIBLE : STATUS_CORRUPT);
            assert_true(of_version || why != NULL);
            bytes.base[i] ^= (uint8_t)(1u << bit);
        }
    }
    const char *why = NULL;
    assert_int_equal(decode(buf_slice(&bytes), &why), STATUS_OK);
    buf_deinit(&bytes);
    driver_destroy(driver);
}

static void test_snapshot__any_other_length_is_detected(void **state)
{
    (void)state;
    struct driver *driver = full();
    struct buf bytes;
    encode(driver, &bytes);
    const char *why = NULL;
    for (size_t len = 0; len < bytes.len; len++) {
        assert_int_equal(decode(slice_from(bytes.base, len), &why), STATUS_CORRUPT);
    }
    buf_append_zeros(&bytes, 8);
    assert_int_equal(decode(buf_slice(&bytes), &why), STATUS_CORRUPT);
    buf_deinit(&bytes);
    driver_destroy(driver);
}

static void test_snapshot__another_version_is_named(void **state)
{
    (void)state;
    struct driver *driver = full();
    struct buf bytes;
    encode(driver, &bytes);
    bytes.base[4] = 9;
    struct fsm *fsm = NULL;
    uint32_t version = 0;
    const char *why = NULL;
    assert_int_equal(snapshot_decode(buf_slice(&bytes), &no_hash_key, &fsm, &version, &why),
                     STATUS_INCOMPATIBLE);
    assert_int_equal(version, 9);
    buf_deinit(&bytes);
    driver_destroy(driver);
}

/* A checksum that fits whatever the body says. */
static void reseal(struct buf *bytes)
{
    uint64_t body_len = 0;
    for (unsigned i = 0; i < 8; i++) {
        body_len |= (uint64_t)bytes->base[8 + i] << (8 * i);
    }
    uint32_t crc = crc32c(crc32c(0, bytes->base + HEADER_LEN, body_len), bytes->base, 16);
    for (unsigned i = 0; i < 4; i++) {
        bytes->base[16 + i] = (uint8_t)(crc >> (8 * i));
    }
}

/* What is loaded in spite of damage is sound: nothing crashes, nothing breaks an invariant. */
static void test_snapshot__nothing_is_trusted_even_with_a_fitting_checksum(void **state)
{
    (void)state;
    struct driver *driver = full();
    struct buf bytes;
    encode(driver, &bytes);
    unsigned refused = 0;
    unsigned tries = 0;
    for (size_t i = HEADER_LEN; i < bytes.len; i++) {
        uint8_t right = bytes.base[i];
        const uint8_t wrong[] = {(uint8_t)(right + 1), (uint8_t)(right - 1),
                                 (uint8_t)(right ^ 0x80u), 0x00, 0x7f, 0xc0, 0xcf, 0xdd, 0xff};
        for (size_t w = 0; w < sizeof wrong; w++) {
            bytes.base[i] = wrong[w];
            reseal(&bytes);
            const char *why = NULL;
            struct fsm *fsm = NULL;
            uint32_t version = 0;
            enum status st = snapshot_decode(buf_slice(&bytes), &no_hash_key, &fsm, &version, &why);
            tries++;
            refused += st == STATUS_CORRUPT;
            if (st == STATUS_OK) {
                assert_null(invariants_check(fsm));
                fsm_destroy(fsm);
            }
        }
        bytes.base[i] = right;
    }
    assert_true(refused > tries / 3);
    buf_deinit(&bytes);
    driver_destroy(driver);
}

/* Replaces the first occurrence of some bytes behind the header. */
static void swap_bytes(struct buf *bytes, const char *from, const char *to, size_t len)
{
    for (size_t i = HEADER_LEN; i + len <= bytes->len; i++) {
        if (memcmp(bytes->base + i, from, len) == 0) {
            memcpy(bytes->base + i, to, len);
            reseal(bytes);
            return;
        }
    }
    fail_msg("%s is not in the snapshot", from);
}

static void check_refused(const char *from, const char *to, const char *why_expected)
{
    struct driver *driver = driver_create(NULL);
    (void)TAKE(driver, .owner = "owner-1", .key = "key-a1");
    (void)TAKE(driver, .owner = "owner-2", .key = "key-a2");
    driver->confirmed = driver->sequence;
    (void)RENEW(driver, .owner = "A", .key = "x");
    struct buf bytes;
    encode(driver, &bytes);
    swap_bytes(&bytes, from, to, strlen(from));
    const char *why = NULL;
    assert_int_equal(decode(buf_slice(&bytes), &why), STATUS_CORRUPT);
    assert_string_equal(why, why_expected);
    buf_deinit(&bytes);
    driver_destroy(driver);
}

static void test_snapshot__validates_what_it_loads(void **state)
{
    (void)state;
    /* P1: a key twice in a namespace. */
    check_refused("key-a2", "key-a1", "the leases are not in order");
    check_refused("key-a1", "key-\x01" "1", "a lease is malformed");
    check_refused("key-a1", "key-\xff" "1", "a lease is malformed");
    check_refused("owner-2", "owner-1", "the owners are not in order");
    check_refused("owner-2", "owner\n2", "an owner is malformed");
    check_refused("default", "defAult", "a namespace is malformed");
}

/* A counter at its end would stop the node at its next grant. */
static void test_snapshot__counters_near_their_end_are_refused(void **state)
{
    (void)state;
    struct driver *driver = full();
    struct buf bytes;
    const char *why = NULL;
    driver->fsm->token = 1ull << 63;
    encode(driver, &bytes);
    assert_int_equal(decode(buf_slice(&bytes), &why), STATUS_OK);
    buf_deinit(&bytes);
    driver->fsm->token++;
    encode(driver, &bytes);
    assert_int_equal(decode(buf_slice(&bytes), &why), STATUS_CORRUPT);
    assert_string_equal(why, "the head is malformed");
    buf_deinit(&bytes);
    driver_destroy(driver);
}

static void test_snapshot__garbage_is_refused(void **state)
{
    (void)state;
    struct rng rng;
    rng_init(&rng, 42);
    uint8_t bytes[256];
    for (unsigned round = 0; round < 2000; round++) {
        size_t len = rng_below(&rng, sizeof bytes);
        for (size_t i = 0; i < len; i++) {
            bytes[i] = (uint8_t)rng_next(&rng);
        }
        const char *why = NULL;
        assert_int_equal(decode(slice_from(bytes, len), &why), STATUS_CORRUPT);
    }
}

static void test_snapshot__is_appended(void **state)
{
    (void)state;
    struct driver *driver = full();
    struct buf bytes;
    buf_init(&bytes, MIB);
    buf_append_u64(&bytes, 7);
    snapshot_encode(driver->fsm, &bytes);
    const char *why = NULL;
    assert_int_equal(decode(slice_from(bytes.base + 8, bytes.len - 8), &why), STATUS_OK);
    buf_deinit(&bytes);
    driver_destroy(driver);
}

/* Bytes and digests are compared between nodes of different releases: they change only together
 * with the format version. */
static void test_snapshot__has_its_bytes_and_its_digest(void **state)
{
    (void)state;
    struct golden *golden = golden_open("snapshots.hex");
    struct driver *drivers[] = {driver_create(NULL), full()};
    static const char *const names[][2] = {{"born", "born_digest"}, {"full", "full_digest"}};
    bool fine = true;
    for (size_t i = 0; i < 2; i++) {
        struct buf bytes;
        encode(drivers[i], &bytes);
        fine = golden_matches(golden, names[i][0], buf_slice(&bytes)) && fine;
        buf_clear(&bytes);
        buf_append_u64(&bytes, fsm_digest(drivers[i]->fsm));
        fine = golden_matches(golden, names[i][1], buf_slice(&bytes)) && fine;
        buf_deinit(&bytes);
        driver_destroy(drivers[i]);
    }
    assert_true(golden_close(golden));
    assert_true(fine);
}

static void expect_hash_key(const struct fsm *fsm, const struct hash_key *hash_key)
{
    assert_true(fsm->table.spaces.count > 1);
    for (struct tree_node *node = tree_first(&fsm->table.spaces); node != NULL;
         node = tree_next(node)) {
        const struct space *space = CONTAINER_OF(node, struct space, node);
        assert_memory_equal(&space->keys.hash_key, hash_key, sizeof *hash_key);
    }
}

/* And not under one that follows from the identity, which peers know. */
static void test_snapshot__is_loaded_under_the_hash_key_of_the_process(void **state)
{
    (void)state;
    static const struct hash_key hash_keys[] = {{{0, 0}}, {{5, 6}}};
    struct driver *driver = full();
    expect_hash_key(driver->fsm, &no_hash_key);
    struct buf bytes;
    encode(driver, &bytes);
    for (unsigned i = 0; i < 2; i++) {
        struct fsm *fsm = NULL;
        uint32_t version = 0;
        const char *why = "";
        assert_int_equal(
            snapshot_decode(buf_slice(&bytes), &hash_keys[i], &fsm, &version, &why), STATUS_OK);
        expect_hash_key(fsm, &hash_keys[i]);
        struct buf again;
        buf_init(&again, 64 * MIB);
        snapshot_encode(fsm, &again);
        assert_int_equal(again.len, bytes.len);
        assert_memory_equal(again.base, bytes.base, bytes.len);
        assert_int_equal(fsm_digest(fsm), fsm_digest(driver->fsm));
        buf_deinit(&again);
        fsm_destroy(fsm);
    }
    buf_deinit(&bytes);
    driver_destroy(driver);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_snapshot__of_an_empty_machine_round_trips),
        cmocka_unit_test(test_snapshot__carries_everything),
        cmocka_unit_test(test_snapshot__is_loaded_under_the_hash_key_of_the_process),
        cmocka_unit_test(test_snapshot__damage_to_any_byte_is_detected),
        cmocka_unit_test(test_snapshot__any_other_length_is_detected),
        cmocka_unit_test(test_snapshot__another_version_is_named),
        cmocka_unit_test(test_snapshot__nothing_is_trusted_even_with_a_fitting_checksum),
        cmocka_unit_test(test_snapshot__validates_what_it_loads),
        cmocka_unit_test(test_snapshot__counters_near_their_end_are_refused),
        cmocka_unit_test(test_snapshot__garbage_is_refused),
        cmocka_unit_test(test_snapshot__is_appended),
        cmocka_unit_test(test_snapshot__has_its_bytes_and_its_digest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
