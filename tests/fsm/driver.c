/* See driver.h. */
#include "tests/fsm/driver.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "fsm/invariants.h"
#include "fsm/snapshot.h"

#define FILL_PER_COMMAND 400u

static void on_result(void *ctx, uint32_t place, struct slice result);
static void apply_entry(struct driver *driver, const struct command *commands, uint32_t count);

struct driver *driver_create(const struct settings *settings)
{
    struct driver *driver = calloc(1, sizeof *driver);
    assert_non_null(driver);
    driver->fsm = fsm_create();
    driver->commands = command_decoder_create();
    driver->results = result_decoder_create();
    buf_init(&driver->bytes, MESSAGE_LEN_MAX);
    struct op birth = {
        .kind = OP_KIND_BIRTH,
        .identity = driver_identity(1, 1),
        .token_floor = 1000,
        .settings = settings != NULL ? *settings : settings_default(),
    };
    assert_int_equal(driver_run(driver, &birth).status, STATUS_OK);
    driver->origin = driver_run(driver, &(struct op){.kind = OP_KIND_OPEN_ORIGIN}).origin;
    assert_true(driver->origin > 1000);
    return driver;
}

void driver_destroy(struct driver *driver)
{
    fsm_destroy(driver->fsm);
    command_decoder_destroy(driver->commands);
    result_decoder_destroy(driver->results);
    buf_deinit(&driver->bytes);
    free(driver);
}

struct result driver_apply(struct driver *driver, const struct command *command)
{
    return driver_apply_all(driver, command, 1);
}

struct result driver_apply_all(struct driver *driver, const struct command *commands,
                               uint32_t count)
{
    apply_entry(driver, commands, count);
    struct result result;
    assert_int_equal(result_decode(driver->results, buf_slice(&driver->bytes), &result),
                     STATUS_OK);
    return result;
}

struct result driver_run(struct driver *driver, const struct op *op)
{
    struct command command = {.op = *op};
    if (op_kind_numbered(op->kind)) {
        command.origin = driver->origin;
        command.sequence = ++driver->sequence;
        command.confirmed = driver->confirmed;
    }
    struct result result = driver_apply(driver, &command);
    assert_int_equal(result.kind, op->kind);
    assert_true(driver->bytes.len <= result_len_max(op));
    return result;
}

struct result driver_repeat(struct driver *driver, const struct op *op, uint64_t sequence)
{
    struct command command = {
        .origin = driver->origin,
        .sequence = sequence,
        .op = *op,
    };
    return driver_apply(driver, &command);
}

void driver_pass(struct driver *driver, uint64_t ms)
{
    driver->clock_ms += ms;
    apply_entry(driver, NULL, 0);
}

struct op driver_op(enum op_kind kind, const struct ask *ask, struct key_item *out_item)
{
    bool timed = kind == OP_KIND_TAKE || kind == OP_KIND_CLAIM || kind == OP_KIND_RENEW ||
                 kind == OP_KIND_HEARTBEAT || kind == OP_KIND_RENEW_ALL;
    struct op op = {
        .kind = kind,
        .ns = slice_text(ask->ns != NULL ? ask->ns : NAMESPACE_DEFAULT),
        .destroy = ask->destroy,
        .adopt = ask->adopt,
        .grace_ms = ask->grace_ms,
        .reestablish = ask->reestablish,
        .has_set_version = ask->has_set_version,
        .set_version = ask->set_version,
    };
    if (ask->owner != NULL) {
        op.owner = slice_text(ask->owner);
    }
    if (timed) {
        op.ttl_ms = ask->ttl_ms != 0 ? ask->ttl_ms : DRIVER_TTL_MS;
    }
    if (ask->key != NULL) {
        *out_item = (struct key_item){
            .key = slice_text(ask->key),
            .has_if_token = ask->guarded,
            .if_token = ask->if_token,
            .meta = ask->meta,
            .identity = ask->identity,
        };
        op.keys = out_item;
        op.key_count = 1;
    }
    return op;
}

struct outcome driver_ask(struct driver *driver, enum op_kind kind, const struct ask *ask)
{
    struct key_item item;
    struct op op = driver_op(kind, ask, &item);
    struct result result = driver_run(driver, &op);
    assert_int_equal(result.status, STATUS_OK);
    assert_int_equal(result.outcome_count, 1);
    return result.outcomes[0];
}

struct result driver_ask_set(struct driver *driver, enum op_kind kind, const struct ask *ask)
{
    struct key_item item;
    struct op op = driver_op(kind, ask, &item);
    struct result result = driver_run(driver, &op);
    assert_int_equal(result.status, STATUS_OK);
    return result;
}

void driver_fill(struct driver *driver, const struct ask *ask, uint32_t count)
{
    static struct key_item items[FILL_PER_COMMAND];
    static char keys[FILL_PER_COMMAND][64];
    for (uint32_t done = 0; done < count;) {
        uint32_t some = count - done < FILL_PER_COMMAND ? count - done : FILL_PER_COMMAND;
        struct op op = driver_op(OP_KIND_CLAIM, ask, &items[0]);
        for (uint32_t i = 0; i < some; i++) {
            (void)snprintf(keys[i], sizeof keys[i], "%s%05" PRIu32, ask->key, done + i);
            items[i] = (struct key_item){.key = slice_text(keys[i]), .meta = ask->meta};
        }
        op.keys = items;
        op.key_count = some;
        driver->confirmed = driver->sequence;
        struct result result = driver_run(driver, &op);
        for (uint32_t i = 0; i < some; i++) {
            assert_int_equal(result.outcomes[i].kind, OUTCOME_KIND_GRANTED);
        }
        done += some;
    }
}

bool driver_owner(const struct driver *driver, const char *key, struct lease_view *out_view)
{
    return fsm_query_owner(driver->fsm, slice_text(NAMESPACE_DEFAULT), slice_text(key),
                           driver->clock_ms, out_view);
}

struct result driver_settle(struct driver *driver, uint64_t sequence)
{
    struct op op = {
        .kind = OP_KIND_SETTLE,
        .target_origin = driver->origin,
        .target_sequence = sequence,
    };
    return driver_run(driver, &op);
}

struct cluster_identity driver_identity(uint8_t first, uint64_t generation)
{
    return (struct cluster_identity){
        .id = {first, 2, 3},
        .generation = generation,
        .generation_random = 77 + generation,
    };
}

struct fsm *driver_round_trip(const struct driver *driver)
{
    struct buf bytes;
    struct buf again;
    buf_init(&bytes, 512 * MIB);
    buf_init(&again, 512 * MIB);
    snapshot_encode(driver->fsm, &bytes);
    assert_int_equal(bytes.len % 8, 0);
    assert_true(bytes.len <= snapshot_len_estimate(driver->fsm));
    struct fsm *fsm = NULL;
    uint32_t version = 0;
    const char *why = "";
    static const struct hash_key hash_key = {{0}};
    enum status st = snapshot_decode(buf_slice(&bytes), &hash_key, &fsm, &version, &why);
    if (st != STATUS_OK) {
        fail_msg("the snapshot was refused: %s", why);
    }
    snapshot_encode(fsm, &again);
    assert_true(slice_equal(buf_slice(&bytes), buf_slice(&again)));
    assert_true(fsm_digest(fsm) == fsm_digest(driver->fsm));
    buf_deinit(&bytes);
    buf_deinit(&again);
    return fsm;
}

static void on_result(void *ctx, uint32_t place, struct slice result)
{
    struct driver *driver = ctx;
    assert_int_equal(place, driver->place++);
    buf_clear(&driver->bytes);
    buf_append(&driver->bytes, result.base, result.len);
}

static void apply_entry(struct driver *driver, const struct command *commands, uint32_t count)
{
    struct buf body;
    struct buf bytes;
    buf_init(&body, ENTRY_LEN_MAX);
    buf_init(&bytes, ENTRY_LEN_MAX);
    for (uint32_t i = 0; i < count; i++) {
        command_encode(&commands[i], &body);
    }
    entry_encode(driver->clock_ms, buf_slice(&body), count, &bytes);
    struct entry entry;
    uint32_t version = 0;
    assert_int_equal(entry_decode(driver->commands, buf_slice(&bytes), &entry, &version),
                     STATUS_OK);
    buf_clear(&driver->bytes);
    driver->place = 0;
    fsm_apply(driver->fsm, ++driver->index, &entry, on_result, driver);
    assert_int_equal(driver->place, count);
    buf_deinit(&body);
    buf_deinit(&bytes);
    const char *broken = driver->unchecked ? NULL : invariants_check(driver->fsm);
    if (broken != NULL) {
        fail_msg("after entry %" PRIu64 ": %s", driver->index, broken);
    }
}
