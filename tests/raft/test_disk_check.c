/* The check of libraft's directory: what is a tail, what is a leftover, and what stops a node, at
 * both sides of each edge. A refused directory must be the same, byte for byte. */
#include "raft/disk_check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/raft/raft_files.h"

#define ENTRY_LEN 200u

/* A directory and what the check said of it. */
struct bench {
    struct raft_files files;
    struct disk_check_options options;
    struct disk_state state;
    struct disk_detail detail;
    char report[2048]; /* all lines */
    unsigned reports;
    uint64_t unknown_from; /* entries from this index on are of another version; 0: none */
    uint64_t broken_at;    /* this entry is not one; 0: none */
    unsigned entries_seen;
    unsigned snapshots_seen;
};

static enum status on_entry(void *ctx, struct slice bytes, struct disk_detail *out_why)
{
    struct bench *bench = ctx;
    uint64_t index = 0;
    for (size_t idx = 8; idx > 0; idx--) {
        index = index << 8 | bytes.base[idx - 1];
    }
    bench->entries_seen++;
    if (bench->unknown_from != 0 && index >= bench->unknown_from) {
        (void)snprintf(out_why->text, sizeof(out_why->text), "version 2, known is 1");
        return STATUS_INCOMPATIBLE;
    }
    if (index == bench->broken_at) {
        (void)snprintf(out_why->text, sizeof(out_why->text), "not an entry");
        return STATUS_CORRUPT;
    }
    return STATUS_OK;
}

static enum status on_snapshot(void *ctx, struct slice bytes, struct disk_detail *out_why)
{
    struct bench *bench = ctx;
    bench->snapshots_seen++;
    if (!slice_equal(bytes, slice_text("SNAPSHOT"))) {
        (void)snprintf(out_why->text, sizeof(out_why->text), "not a snapshot");
        return STATUS_CORRUPT;
    }
    if (bench->unknown_from == 1) {
        (void)snprintf(out_why->text, sizeof(out_why->text), "version 2, known is 1");
        return STATUS_INCOMPATIBLE;
    }
    return STATUS_OK;
}

static void on_report(void *ctx, const char *line)
{
    struct bench *bench = ctx;
    bench->reports++;
    size_t len = strlen(bench->report);
    (void)snprintf(bench->report + len, sizeof(bench->report) - len, "%s\n", line);
}

static void bench_init(struct bench *bench)
{
    memset(bench, 0, sizeof(*bench));
    raft_files_init(&bench->files);
    bench->options = (struct disk_check_options){
        .verify_entry = on_entry,
        .verify_snapshot = on_snapshot,
        .on_report = on_report,
        .ctx = bench,
        .write_len_max = 4096,
    };
}

static void bench_deinit(struct bench *bench)
{
    raft_files_deinit(&bench->files);
}

static enum status check(struct bench *bench)
{
    memset(&bench->state, 0, sizeof(bench->state));
    memset(&bench->detail, 0, sizeof(bench->detail));
    bench->report[0] = '\0';
    bench->reports = 0;
    bench->entries_seen = 0;
    return disk_check(bench->files.dir, &bench->options, &bench->state, &bench->detail);
}

static void check_sound(struct bench *bench, uint64_t first, uint64_t last)
{
    enum status status = check(bench);
    if (status != STATUS_OK) {
        print_error("%s\n", bench->detail.text);
    }
    assert_int_equal(status, STATUS_OK);
    assert_int_equal(bench->state.first_index, first);
    assert_int_equal(bench->state.last_index, last);
}

/* Refused with this status and these words, and nothing was touched. */
static void check_refused(struct bench *bench, enum status status, const char *words)
{
    uint64_t before = raft_files_fingerprint(&bench->files);
    assert_int_equal(check(bench), status);
    if (strstr(bench->detail.text, words) == NULL) {
        print_error("\"%s\" does not say \"%s\"\n", bench->detail.text, words);
        fail();
    }
    assert_int_equal(bench->reports, 0);
    assert_true(raft_files_fingerprint(&bench->files) == before);
}

/* After a repair the directory is sound, and there is nothing left to repair. */
static void check_stays_sound(struct bench *bench, uint64_t first, uint64_t last)
{
    check_sound(bench, first, last);
    assert_int_equal(bench->reports, 0);
}

/* Closed segment of the entries first..last, batches of one. */
static void put_closed(const struct raft_files *files, uint64_t first, uint64_t last, uint64_t term)
{
    struct raft_segment segment;
    raft_segment_init(&segment);
    for (uint64_t index = first; index <= last; index++) {
        raft_segment_add(&segment, index, 1, term, ENTRY_LEN);
    }
    raft_files_closed(files, &segment, first, last);
    raft_segment_deinit(&segment);
}

/* The open segment `counter` of the entries first..last; returns the length of its batches. */
static size_t put_open(const struct raft_files *files, uint64_t counter, uint64_t first,
                       uint64_t last, uint64_t term)
{
    struct raft_segment segment;
    raft_segment_init(&segment);
    for (uint64_t index = first; index <= last; index++) {
        raft_segment_add(&segment, index, 1, term, ENTRY_LEN);
    }
    size_t len = segment.len;
    raft_files_open(files, &segment, counter);
    raft_segment_deinit(&segment);
    return len;
}

#define BATCH_LEN (8u + 8u + 16u + ENTRY_LEN)

/* What a running node has: two closed segments, one being written, one prepared. */
static size_t put_running(struct bench *bench)
{
    raft_files_metadata(&bench->files, 5, 3);
    put_closed(&bench->files, 1, 10, 1);
    put_closed(&bench->files, 11, 30, 2);
    size_t len = put_open(&bench->files, 4, 31, 60, 3);
    raft_files_open(&bench->files, NULL, 5);
    return len;
}

/* --- sound --------------------------------------------------------------------------------- */

static void test_disk_check__empty_directory_is_a_new_node(void **state)
{
    (void)state;
    struct bench bench;
    bench_init(&bench);
    check_sound(&bench, 0, 0);
    assert_int_equal(bench.state.term, 0);
    assert_int_equal(bench.state.vote, 0);
    bench_deinit(&bench);
}

static void test_disk_check__running_node_that_was_killed_is_sound(void **state)
{
    (void)state;
    struct bench bench;
    bench_init(&bench);
    (void)put_running(&bench);
    uint64_t before = raft_files_fingerprint(&bench.files);
    bench.options.watermark = 60;
    check_sound(&bench, 1, 60);
    assert_int_equal(bench.state.term, 3);
    assert_int_equal(bench.state.vote, 7);
    assert_int_equal(bench.entries_seen, 60);
    assert_int_equal(bench.reports, 0);
    assert_true(raft_files_fingerprint(&bench.files) == before);
    bench_deinit(&bench);
}

static void test_disk_check__snapshot_and_the_log_behind_it_are_sound(void **state)
{
    (void)state;
    struct bench bench;
    bench_init(&bench);
    raft_files_metadata(&bench.files, 2, 3);
    raft_files_snapshot(&bench.files, 1, 15, true, true);
    raft_files_snapshot(&bench.files, 2, 25, true, true);
    put_closed(&bench.files, 11, 30, 2);
    (void)put_open(&bench.files, 9, 31, 33, 3);
    bench.options.watermark = 33;
    check_sound(&bench, 11, 33);
    assert_int_equal(bench.state.snapshot_index, 25);
    assert_int_equal(bench.state.snapshot_term, 2);
    assert_int_equal(bench.snapshots_seen, 2);
    bench_deinit(&bench);
}

static void test_disk_check__snapshot_without_a_log_is_sound(void **state)
{
    (void)state;
    struct bench bench;
    bench_init(&bench);
    raft_files_metadata(&bench.files, 2, 3);
    raft_files_snapshot(&bench.files, 2, 25, true, true);
    (void)put_open(&bench.files, 1, 26, 28, 3);
    bench.options.watermark = 25;
    check_sound(&bench, 26, 28);
    raft_files_remove(&bench.files, "open-1");
    check_sound(&bench, 0, 25);
    bench.options.watermark = 26;
    check_refused(&bench, STATUS_CORRUPT, "the log ends at 25, but entries up to 26 were safe");
    bench_deinit(&bench);
}

static void test_disk_check__large_batches_are_read(void **state)
{
    (void)state;
    struct bench bench;
    bench_init(&bench);
    raft_files_metadata(&bench.files, 2, 1);
    struct raft_segment segment;
    raft_segment_init(&segment);
    raft_segment_add(&segment, 1, 64, 1, 4096);
    raft_segment_add(&segment, 65, 1, 1, 65536);
    raft_files_closed(&bench.files, &segment, 1, 65);
    check_sound(&bench, 1, 65);
    assert_int_equal(bench.entries_seen, 65);
    raft_segment_deinit(&segment);
    bench_deinit(&bench);
}

/* --- metadata ------------------------------------------------------------------------------ */

static void test_disk_check__metadata_that_could_forget_a_vote_stop_the_node(void **state)
{
    (void)state;
    struct bench bench;
    bench_init(&bench);
    (void)put_running(&bench);
    raft_files_remove(&bench.files, "metadata2"); /* version 4; 5 is there */
    check_refused(&bench, STATUS_CORRUPT, "metadata2: offset 0: missing");
    raft_files_metadata(&bench.files, 5, 3);
    raft_files_remove(&bench.files, "metadata1"); /* version 5, the newest */
    check_refused(&bench, STATUS_CORRUPT, "metadata1: offset 0: missing");
    raft_files_metadata(&bench.files, 5, 3);
    raft_files_cut(&bench.files, "metadata1", 31);
    check_refused(&bench, STATUS_CORRUPT, "metadata1: offset 0: missing");
    bench_deinit(&bench);
}

static void test_disk_check__metadata_that_are_none_stop_the_node(void **state)
{
    (void)state;
    struct bench bench;
    bench_init(&bench);
    (void)put_running(&bench);
    raft_files_flip(&bench.files, "metadata1", 0);
    check_refused(&bench, STATUS_CORRUPT, "metadata1: offset 0: unknown format");
    raft_files_metadata(&bench.files, 5, 3);
    raft_files_cut(&bench.files, "metadata2", 33);
    check_refused(&bench, STATUS_CORRUPT, "metadata2: offset 32: longer");
    raft_files_metadata(&bench.files, 5, 3);
    raft_files_poke(&bench.files, "metadata1", 8, "\x04", 1);
    check_refused(&bench, STATUS_CORRUPT, "metadata1: offset 8");
    raft_files_remove(&bench.files, "metadata1");
    raft_files_remove(&bench.files, "metadata2");
    check_refused(&bench, STATUS_CORRUPT, "there is a log");
    bench_deinit(&bench);
}

static void test_disk_check__second_metadata_file_that_was_never_finished_is_removed(void **state)
{
    (void)state;
    struct bench bench;
    bench_init(&bench);
    raft_files_metadata(&bench.files, 1, 1);
    put_closed(&bench.files, 1, 3, 1);
    raft_files_write(&bench.files, "metadata2", "\1\0\0", 3);
    check_sound(&bench, 1, 3);
    assert_int_equal(bench.reports, 1);
    assert_false(raft_files_exist(&bench.files, "metadata2"));
    check_stays_sound(&bench, 1, 3);
    bench_deinit(&bench);
}

static void test_disk_check__unfinished_birth_is_forgotten(void **state)
{
    (void)state;
    struct bench bench;
    bench_init(&bench);
    uint8_t metadata[32] = {1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1};
    raft_files_write(&bench.files, "metadata1", metadata, sizeof(metadata));
    check_sound(&bench, 0, 0);
    assert_int_equal(bench.state.term, 0);
    assert_false(raft_files_exist(&bench.files, "metadata1"));
    /* But a vote is a promise. */
    metadata[24] = 3;
    raft_files_write(&bench.files, "metadata1", metadata, sizeof(metadata));
    check_stays_sound(&bench, 0, 0);
    assert_int_equal(bench.state.term, 1);
    bench_deinit(&bench);
}

/* --- tails --------------------------------------------------------------------------------- */

/* K5: the segment being written is cut at every byte of its last 4 KiB. */
static void test_disk_check__open_segment_cut_at_every_byte_K5(void **state)
{
    (void)state;
    struct bench bench;
    bench_init(&bench);
    size_t full = put_running(&bench);
    bench.options.watermark = 50;
    for (size_t len = full - 4096; len <= full; len++) {
        (void)put_open(&bench.files, 4, 31, 60, 3);
        raft_files_cut(&bench.files, "open-4", len);
        uint64_t last = 30 + (len - 8) / BATCH_LEN;
        bool whole = (len - 8) % BATCH_LEN == 0;
        if (last < 50) {
            check_refused(&bench, STATUS_CORRUPT, "up to 50 were safe on this disk");
            continue;
        }
        check_sound(&bench, 1, last);
        assert_int_equal(bench.reports, whole ? 0 : 1);
        assert_int_equal(raft_files_len(&bench.files, "open-4"), 8 + (last - 30) * BATCH_LEN);
    }
    bench_deinit(&bench);
}

/* K5 on a closed segment, the last one. */
static void test_disk_check__last_closed_segment_cut_at_every_byte_K5(void **state)
{
    (void)state;
    struct bench bench;
    bench_init(&bench);
    raft_files_metadata(&bench.files, 5, 3);
    put_closed(&bench.files, 1, 10, 1);
    bench.options.watermark = 20;
    size_t full = 8 + 20 * BATCH_LEN;
    for (size_t len = full - 4096; len <= full; len += len + 600 < full ? 7 : 1) {
        put_closed(&bench.files, 11, 30, 2);
        raft_files_cut(&bench.files, "0000000000000011-0000000000000030", len);
        uint64_t last = 10 + (len - 8) / BATCH_LEN;
        if (last < 20) {
            check_refused(&bench, STATUS_CORRUPT, "up to 20 were safe on this disk");
            continue;
        }
        check_sound(&bench, 1, last);
        assert_int_equal(bench.reports, len == full ? 0 : 1);
        char name[64];
        (void)snprintf(name, sizeof(name), "0000000000000011-%016llu", (unsigned long long)last);
        assert_true(raft_files_exist(&bench.files, name));
        check_stays_sound(&bench, 1, last);
        raft_files_remove(&bench.files, name);
    }
    bench_deinit(&bench);
}

static void test_disk_check__flipped_bit_below_the_watermark_stops_the_node(void **state)
{
    (void)state;
    struct bench bench;
    bench_init(&bench);
    size_t full = put_running(&bench);
    bench.options.watermark = 60;
    for (size_t offset = 0; offset < full; offset += 37) {
        raft_files_flip(&bench.files, "open-4", offset);
        check_refused(&bench, STATUS_CORRUPT, "open-4: offset");
        raft_files_flip(&bench.files, "open-4", offset);
    }
    const char *closed = "0000000000000011-0000000000000030";
    for (size_t offset = 0; offset < 8 + 20 * BATCH_LEN; offset += 41) {
        raft_files_flip(&bench.files, closed, offset);
        check_refused(&bench, STATUS_CORRUPT, closed);
        raft_files_flip(&bench.files, closed, offset);
    }
    check_stays_sound(&bench, 1, 60);
    bench_deinit(&bench);
}

static void test_disk_check__flipped_bit_above_the_watermark_is_a_tail(void **state)
{
    (void)state;
    struct bench bench;
    bench_init(&bench);
    (void)put_running(&bench);
    bench.options.watermark = 45;
    /* In entry 50: sound batches follow, inside one write. */
    raft_files_flip(&bench.files, "open-4", 8 + 19 * BATCH_LEN + 40);
    check_sound(&bench, 1, 49);
    assert_int_equal(bench.reports, 1);
    assert_non_null(strstr(bench.report, "cut open-4: a tail of"));
    assert_non_null(strstr(bench.report, "the log ends at 49"));
    check_stays_sound(&bench, 1, 49);
    bench_deinit(&bench);
}

static void test_disk_check__damage_longer_than_one_write_stops_the_node(void **state)
{
    (void)state;
    struct bench bench;
    bench_init(&bench);
    size_t full = put_running(&bench);
    bench.options.watermark = 60;
    const uint8_t one = 1;
    raft_files_poke(&bench.files, "open-4", full + 4096, &one, 1);
    check_refused(&bench, STATUS_CORRUPT, "4097 bytes are more than one write");
    (void)put_open(&bench.files, 4, 31, 60, 3);
    raft_files_poke(&bench.files, "open-4", full + 4095, &one, 1);
    check_sound(&bench, 1, 60);
    assert_int_equal(bench.reports, 1);
    assert_int_equal(raft_files_len(&bench.files, "open-4"), full);
    bench_deinit(&bench);
}

static void test_disk_check__torn_first_block_of_an_open_segment_is_a_tail(void **state)
{
    (void)state;
    struct bench bench;
    bench_init(&bench);
    (void)put_running(&bench);
    bench.options.watermark = 60;
    const uint8_t garbage[] = {0, 0, 0, 0, 0, 0, 0, 0, 7, 7, 7};
    raft_files_poke(&bench.files, "open-5", 0, garbage, sizeof(garbage));
    check_sound(&bench, 1, 60);
    assert_int_equal(bench.reports, 1);
    assert_false(raft_files_exist(&bench.files, "open-5"));
    check_stays_sound(&bench, 1, 60);
    bench_deinit(&bench);
}

static void test_disk_check__short_open_segments_are_removed(void **state)
{
    (void)state;
    struct bench bench;
    bench_init(&bench);
    (void)put_running(&bench);
    bench.options.watermark = 60;
    for (size_t len = 1; len < 8; len++) {
        raft_files_cut(&bench.files, "open-5", len);
        check_sound(&bench, 1, 60);
        assert_false(raft_files_exist(&bench.files, "open-5"));
        raft_files_open(&bench.files, NULL, 5);
    }
    raft_files_cut(&bench.files, "open-5", 0); /* libraft removes that by itself */
    check_sound(&bench, 1, 60);
    bench_deinit(&bench);
}

static void test_disk_check__damage_before_more_data_stops_the_node(void **state)
{
    (void)state;
    struct bench bench;
    bench_init(&bench);
    (void)put_running(&bench);
    (void)put_open(&bench.files, 5, 61, 62, 3);
    check_sound(&bench, 1, 62);
    bench.options.watermark = 40; /* and the damage is above it */
    raft_files_flip(&bench.files, "open-4", 8 + 29 * BATCH_LEN + 20);
    check_refused(&bench, STATUS_CORRUPT, "and other segments follow");
    bench_deinit(&bench);
}

static void test_disk_check__segment_with_an_entry_too_few_K11(void **state)
{
    (void)state;
    struct bench bench;
    bench_init(&bench);
    raft_files_metadata(&bench.files, 5, 3);
    put_closed(&bench.files, 1, 185, 1);
    struct raft_segment segment;
    raft_segment_init(&segment);
    for (uint64_t index = 1; index <= 185; index++) {
        raft_segment_add(&segment, index, 1, 1, ENTRY_LEN);
    }
    raft_files_remove(&bench.files, "0000000000000001-0000000000000185");
    raft_files_closed(&bench.files, &segment, 1, 186);
    bench.options.watermark = 186;
    check_refused(&bench, STATUS_CORRUPT, "fewer entries than the name says");
    bench.options.watermark = 185;
    check_sound(&bench, 1, 185);
    assert_int_equal(bench.reports, 1);
    assert_true(raft_files_exist(&bench.files, "0000000000000001-0000000000000185"));
    check_stays_sound(&bench, 1, 185);
    /* One too many is nobody's tail. */
    raft_files_remove(&bench.files, "0000000000000001-0000000000000185");
    raft_files_closed(&bench.files, &segment, 1, 184);
    bench.options.watermark = 10;
    check_refused(&bench, STATUS_CORRUPT, "more entries than the name says");
    raft_segment_deinit(&segment);
    bench_deinit(&bench);
}

/* --- missing and strange ------------------------------------------------------------------- */

static void test_disk_check__missing_segment_stops_the_node(void **state)
{
    (void)state;
    struct bench bench;
    bench_init(&bench);
    (void)put_running(&bench);
    bench.options.watermark = 60;
    raft_files_remove(&bench.files, "0000000000000001-0000000000000010");
    check_refused(&bench, STATUS_CORRUPT, "the entries from 1 to 10 are missing");
    put_closed(&bench.files, 1, 10, 1);
    raft_files_remove(&bench.files, "open-4");
    check_refused(&bench, STATUS_CORRUPT, "the log ends at 30, but entries up to 60 were safe");
    /* Nothing known of what was safe: then least of all. */
    bench.options.watermark = 0;
    (void)put_open(&bench.files, 4, 31, 60, 3);
    raft_files_remove(&bench.files, "0000000000000001-0000000000000010");
    check_refused(&bench, STATUS_CORRUPT, "the entries from 1 to 10 are missing");
    bench_deinit(&bench);
}

static void test_disk_check__missing_snapshot_stops_the_node(void **state)
{
    (void)state;
    struct bench bench;
    bench_init(&bench);
    raft_files_metadata(&bench.files, 2, 3);
    raft_files_snapshot(&bench.files, 2, 25, true, true);
    put_closed(&bench.files, 20, 30, 2);
    bench.options.watermark = 30;
    check_sound(&bench, 20, 30);
    raft_files_remove(&bench.files, "snapshot-2-25-1234.meta");
    check_refused(&bench, STATUS_CORRUPT, "the entries from 1 to 19 are missing");
    bench_deinit(&bench);
}

static void test_disk_check__damaged_snapshot_stops_the_node(void **state)
{
    (void)state;
    struct bench bench;
    bench_init(&bench);
    raft_files_metadata(&bench.files, 2, 3);
    raft_files_snapshot(&bench.files, 2, 25, true, true);
    size_t meta_len = raft_files_len(&bench.files, "snapshot-2-25-1234.meta");
    for (size_t offset = 0; offset < meta_len; offset++) {
        raft_files_flip(&bench.files, "snapshot-2-25-1234.meta", offset);
        check_refused(&bench, STATUS_CORRUPT, "snapshot-2-25-1234.meta: offset");
        raft_files_flip(&bench.files, "snapshot-2-25-1234.meta", offset);
    }
    for (size_t len = 0; len < meta_len; len++) {
        raft_files_cut(&bench.files, "snapshot-2-25-1234.meta", len);
        check_refused(&bench, STATUS_CORRUPT, "snapshot-2-25-1234.meta: offset");
        raft_files_snapshot(&bench.files, 2, 25, true, true);
    }
    raft_files_flip(&bench.files, "snapshot-2-25-1234", 3);
    check_refused(&bench, STATUS_CORRUPT, "snapshot-2-25-1234: offset 0: not a snapshot");
    raft_files_cut(&bench.files, "snapshot-2-25-1234", 0);
    check_refused(&bench, STATUS_CORRUPT, "snapshot-2-25-1234: offset 0: empty");
    bench_deinit(&bench);
}

static void test_disk_check__file_that_libraft_set_aside_stops_the_node(void **state)
{
    (void)state;
    struct bench bench;
    bench_init(&bench);
    (void)put_running(&bench);
    raft_files_write(&bench.files, "corrupt-123-open-4", "x", 1);
    check_refused(&bench, STATUS_CORRUPT, "corrupt-123-open-4");
    bench_deinit(&bench);
}

static void test_disk_check__strangers_are_left_alone(void **state)
{
    (void)state;
    struct bench bench;
    bench_init(&bench);
    (void)put_running(&bench);
    raft_files_write(&bench.files, "notes.txt", "x", 1);
    raft_files_write(&bench.files, "open-4.bak", "x", 1);
    raft_files_write(&bench.files, "0000000000000011-0000000000000030~", "x", 1);
    check_stays_sound(&bench, 1, 60);
    assert_true(raft_files_exist(&bench.files, "notes.txt"));
    bench_deinit(&bench);
}

static void test_disk_check__impossible_terms_stop_the_node(void **state)
{
    (void)state;
    struct bench bench;
    bench_init(&bench);
    (void)put_running(&bench);
    raft_files_metadata(&bench.files, 5, 2); /* the log has term 3 */
    check_refused(&bench, STATUS_CORRUPT, "an entry of an impossible term");
    raft_files_metadata(&bench.files, 5, 3);
    put_closed(&bench.files, 1, 10, 3); /* and goes back to 2 */
    check_refused(&bench, STATUS_CORRUPT, "an entry of an impossible term");
    bench_deinit(&bench);
}

static void test_disk_check__entry_that_is_none_stops_the_node(void **state)
{
    (void)state;
    struct bench bench;
    bench_init(&bench);
    (void)put_running(&bench);
    bench.broken_at = 60; /* above the watermark: its checksum is right, so it was written so */
    check_refused(&bench, STATUS_CORRUPT, "open-4: offset");
    assert_non_null(strstr(bench.detail.text, "not an entry"));
    bench_deinit(&bench);
}

static void test_disk_check__other_version_stops_the_node_and_touches_nothing_U3(void **state)
{
    (void)state;
    struct bench bench;
    bench_init(&bench);
    (void)put_running(&bench);
    raft_files_write(&bench.files, "tmp-left", "x", 1); /* even what could be removed stays */
    bench.unknown_from = 42;
    check_refused(&bench, STATUS_INCOMPATIBLE, "version 2, known is 1");
    assert_true(raft_files_exist(&bench.files, "tmp-left"));
    raft_files_snapshot(&bench.files, 1, 5, true, true);
    bench.unknown_from = 1;
    check_refused(&bench, STATUS_INCOMPATIBLE, "snapshot-1-5-1234: offset 0: version 2");
    bench_deinit(&bench);
}

static void test_disk_check__directory_that_is_not_there(void **state)
{
    (void)state;
    struct disk_check_options options = {0};
    struct disk_state found;
    struct disk_detail detail;
    assert_int_equal(disk_check("./no-such-directory", &options, &found, &detail), STATUS_IO);
    assert_non_null(strstr(detail.text, "no-such-directory"));
}

/* --- leftovers ----------------------------------------------------------------------------- */

static void test_disk_check__leftovers_of_a_snapshot_are_removed_K9(void **state)
{
    (void)state;
    struct bench bench;
    bench_init(&bench);
    (void)put_running(&bench);
    raft_files_write(&bench.files, "tmp-0000000000000001-0000000000000005", "x", 1);
    raft_files_snapshot(&bench.files, 1, 8, true, false);
    raft_files_snapshot(&bench.files, 2, 20, false, true);
    bench.options.watermark = 60;
    check_sound(&bench, 1, 60);
    assert_int_equal(bench.reports, 3);
    assert_int_equal(bench.state.snapshot_index, 0);
    assert_false(raft_files_exist(&bench.files, "tmp-0000000000000001-0000000000000005"));
    assert_false(raft_files_exist(&bench.files, "snapshot-1-8-1234"));
    assert_false(raft_files_exist(&bench.files, "snapshot-2-20-1234.meta"));
    check_stays_sound(&bench, 1, 60);
    bench_deinit(&bench);
}

/* A truncation at entry 18 was killed: after the shorter copy, after the first removal. */
static void test_disk_check__killed_truncation_is_undone_or_finished(void **state)
{
    (void)state;
    struct bench bench;
    bench_init(&bench);
    raft_files_metadata(&bench.files, 5, 3);
    put_closed(&bench.files, 1, 10, 1);
    put_closed(&bench.files, 11, 30, 2);
    put_closed(&bench.files, 31, 40, 2);
    put_closed(&bench.files, 11, 17, 2); /* the shorter copy */
    bench.options.watermark = 15;
    check_sound(&bench, 1, 40);
    assert_int_equal(bench.reports, 1);
    assert_false(raft_files_exist(&bench.files, "0000000000000011-0000000000000017"));
    check_stays_sound(&bench, 1, 40);

    put_closed(&bench.files, 11, 17, 2);
    raft_files_remove(&bench.files, "0000000000000011-0000000000000030");
    check_sound(&bench, 1, 17);
    assert_int_equal(bench.reports, 1);
    assert_false(raft_files_exist(&bench.files, "0000000000000031-0000000000000040"));
    check_stays_sound(&bench, 1, 17);
    bench_deinit(&bench);
}

static void test_disk_check__gap_below_the_watermark_is_no_truncation(void **state)
{
    (void)state;
    struct bench bench;
    bench_init(&bench);
    raft_files_metadata(&bench.files, 5, 3);
    put_closed(&bench.files, 1, 17, 1);
    put_closed(&bench.files, 31, 40, 2);
    bench.options.watermark = 18;
    check_refused(&bench, STATUS_CORRUPT, "the entries from 18 to 30 are missing");
    bench.options.watermark = 17;
    check_sound(&bench, 1, 17);
    bench_deinit(&bench);
}

static void test_disk_check__overlapping_segments_stop_the_node(void **state)
{
    (void)state;
    struct bench bench;
    bench_init(&bench);
    raft_files_metadata(&bench.files, 5, 3);
    put_closed(&bench.files, 1, 20, 1);
    put_closed(&bench.files, 15, 30, 1);
    check_refused(&bench, STATUS_CORRUPT, "overlaps");
    bench_deinit(&bench);
}

/* A snapshot from the leader was in place, and the old log, shorter or other, not removed yet. */
static void test_disk_check__killed_installation_is_finished(void **state)
{
    (void)state;
    struct bench bench;
    bench_init(&bench);
    raft_files_metadata(&bench.files, 5, 4);
    raft_files_snapshot(&bench.files, 4, 100, true, true);
    put_closed(&bench.files, 1, 10, 1);
    put_closed(&bench.files, 11, 30, 2);
    raft_files_open(&bench.files, NULL, 3);
    bench.options.watermark = 30;
    check_sound(&bench, 0, 100);
    assert_int_equal(bench.reports, 2);
    assert_false(raft_files_exist(&bench.files, "0000000000000011-0000000000000030"));
    check_stays_sound(&bench, 0, 100);

    put_closed(&bench.files, 1, 120, 2); /* its entry 100 is of term 2, the snapshot's of term 4 */
    check_sound(&bench, 0, 100);
    assert_int_equal(bench.reports, 1);
    check_stays_sound(&bench, 0, 100);
    bench_deinit(&bench);
}

static void test_disk_check__entries_that_do_not_reach_the_snapshot_stop_the_node(void **state)
{
    (void)state;
    struct bench bench;
    bench_init(&bench);
    raft_files_metadata(&bench.files, 5, 4);
    raft_files_snapshot(&bench.files, 4, 100, true, true);
    put_closed(&bench.files, 1, 10, 1);
    (void)put_open(&bench.files, 3, 11, 12, 2); /* of which nobody knows the indexes */
    check_refused(&bench, STATUS_CORRUPT, "open-3");
    bench_deinit(&bench);
}

static void test_disk_check__old_segments_below_the_snapshot_do_not_matter(void **state)
{
    (void)state;
    struct bench bench;
    bench_init(&bench);
    raft_files_metadata(&bench.files, 5, 4);
    raft_files_snapshot(&bench.files, 2, 50, true, true);
    put_closed(&bench.files, 1, 10, 1);
    put_closed(&bench.files, 51, 60, 3);
    bench.options.watermark = 60;
    check_stays_sound(&bench, 51, 60);
    bench_deinit(&bench);
}

/* Random bytes in every file: an answer, never a crash, and no file changed when refused. */
static void test_disk_check__random_damage_is_answered(void **state)
{
    (void)state;
    struct bench bench;
    bench_init(&bench);
    bench.options.watermark = 55;
    uint64_t seed = 0x9E3779B97F4A7C15ull;
    unsigned refused = 0;
    for (unsigned round = 0; round < 150; round++) {
        (void)put_running(&bench);
        raft_files_snapshot(&bench.files, 2, 20, true, true);
        static const char *const names[] = {"open-4", "0000000000000011-0000000000000030",
                                            "snapshot-2-20-1234", "snapshot-2-20-1234.meta",
                                            "metadata1"};
        const char *name = names[round % 5];
        seed = seed * 6364136223846793005ull + 1442695040888963407ull;
        size_t len = raft_files_len(&bench.files, name);
        size_t offset = (size_t)(seed >> 33) % (len < 7000 ? len : 7000);
        uint8_t bytes[8];
        memcpy(bytes, &seed, sizeof(bytes));
        size_t poke = len - offset < sizeof(bytes) ? len - offset : sizeof(bytes);
        raft_files_poke(&bench.files, name, offset, bytes, poke);
        uint64_t before = raft_files_fingerprint(&bench.files);
        if (check(&bench) != STATUS_OK) {
            refused++;
            assert_true(raft_files_fingerprint(&bench.files) == before);
        }
    }
    assert_true(refused > 100);
    bench_deinit(&bench);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_disk_check__empty_directory_is_a_new_node),
        cmocka_unit_test(test_disk_check__running_node_that_was_killed_is_sound),
        cmocka_unit_test(test_disk_check__snapshot_and_the_log_behind_it_are_sound),
        cmocka_unit_test(test_disk_check__snapshot_without_a_log_is_sound),
        cmocka_unit_test(test_disk_check__large_batches_are_read),
        cmocka_unit_test(test_disk_check__metadata_that_could_forget_a_vote_stop_the_node),
        cmocka_unit_test(test_disk_check__metadata_that_are_none_stop_the_node),
        cmocka_unit_test(test_disk_check__second_metadata_file_that_was_never_finished_is_removed),
        cmocka_unit_test(test_disk_check__unfinished_birth_is_forgotten),
        cmocka_unit_test(test_disk_check__open_segment_cut_at_every_byte_K5),
        cmocka_unit_test(test_disk_check__last_closed_segment_cut_at_every_byte_K5),
        cmocka_unit_test(test_disk_check__flipped_bit_below_the_watermark_stops_the_node),
        cmocka_unit_test(test_disk_check__flipped_bit_above_the_watermark_is_a_tail),
        cmocka_unit_test(test_disk_check__damage_longer_than_one_write_stops_the_node),
        cmocka_unit_test(test_disk_check__torn_first_block_of_an_open_segment_is_a_tail),
        cmocka_unit_test(test_disk_check__short_open_segments_are_removed),
        cmocka_unit_test(test_disk_check__damage_before_more_data_stops_the_node),
        cmocka_unit_test(test_disk_check__segment_with_an_entry_too_few_K11),
        cmocka_unit_test(test_disk_check__missing_segment_stops_the_node),
        cmocka_unit_test(test_disk_check__missing_snapshot_stops_the_node),
        cmocka_unit_test(test_disk_check__damaged_snapshot_stops_the_node),
        cmocka_unit_test(test_disk_check__file_that_libraft_set_aside_stops_the_node),
        cmocka_unit_test(test_disk_check__strangers_are_left_alone),
        cmocka_unit_test(test_disk_check__impossible_terms_stop_the_node),
        cmocka_unit_test(test_disk_check__entry_that_is_none_stops_the_node),
        cmocka_unit_test(test_disk_check__other_version_stops_the_node_and_touches_nothing_U3),
        cmocka_unit_test(test_disk_check__directory_that_is_not_there),
        cmocka_unit_test(test_disk_check__leftovers_of_a_snapshot_are_removed_K9),
        cmocka_unit_test(test_disk_check__killed_truncation_is_undone_or_finished),
        cmocka_unit_test(test_disk_check__gap_below_the_watermark_is_no_truncation),
        cmocka_unit_test(test_disk_check__overlapping_segments_stop_the_node),
        cmocka_unit_test(test_disk_check__killed_installation_is_finished),
        cmocka_unit_test(test_disk_check__entries_that_do_not_reach_the_snapshot_stop_the_node),
        cmocka_unit_test(test_disk_check__old_segments_below_the_snapshot_do_not_matter),
        cmocka_unit_test(test_disk_check__random_damage_is_answered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
