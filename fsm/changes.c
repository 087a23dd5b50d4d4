/* Records with offsets into one run of bytes: neither is freed between entries, so that a steady
 * load allocates nothing. Offsets become slices when a change is read, since the run may move while
 * it grows. */
#include "fsm/changes.h"

#include <stdlib.h>

#include "fsm/base/buf.h"

#define RECORD_CAP_FIRST 64u
#define NOWHERE ((size_t)-1) /* offset of an absent slice */

/* An entry of ENTRY_LEN_MAX bytes names fewer keys than it has bytes, and what it removes of due
 * leases and marked ones is a few slices: far below this. */
#define BYTES_LEN_MAX ((size_t)256 * 1024 * 1024)

struct place_of {
    size_t at;
    size_t len;
};

struct record {
    struct change change; /* its slices are not set */
    struct place_of ns;
    struct place_of key;
    struct place_of owner;
    struct place_of previous_owner;
};

struct changes {
    struct record *records; /* owned */
    uint32_t count;
    uint32_t cap;
    struct buf bytes;
};

static struct place_of copy(struct changes *changes, struct slice slice);
static struct slice resolve(const struct changes *changes, struct place_of place);

struct changes *changes_create(void)
{
    struct changes *changes = calloc(1, sizeof *changes);
    CHECK(changes != NULL);
    buf_init(&changes->bytes, BYTES_LEN_MAX);
    return changes;
}

void changes_destroy(struct changes *changes)
{
    if (changes == NULL) {
        return;
    }
    buf_deinit(&changes->bytes);
    free(changes->records);
    free(changes);
}

void changes_clear(struct changes *changes)
{
    changes->count = 0;
    buf_clear(&changes->bytes);
}

void changes_add(struct changes *changes, const struct change *change)
{
    if (changes->count == changes->cap) {
        CHECK(changes->cap <= UINT32_MAX / 2);
        uint32_t cap = changes->cap == 0 ? RECORD_CAP_FIRST : changes->cap * 2;
        struct record *records = realloc(changes->records, cap * sizeof *records);
        CHECK(records != NULL);
        changes->records = records;
        changes->cap = cap;
    }
    struct record *record = &changes->records[changes->count++];
    record->change = *change;
    record->ns = copy(changes, change->ns);
    record->key = copy(changes, change->key);
    record->owner = copy(changes, change->owner);
    record->previous_owner = copy(changes, change->previous_owner);
}

uint32_t changes_count(const struct changes *changes)
{
    return changes->count;
}

struct change changes_get(const struct changes *changes, uint32_t idx)
{
    CHECK(idx < changes->count);
    const struct record *record = &changes->records[idx];
    struct change change = record->change;
    change.ns = resolve(changes, record->ns);
    change.key = resolve(changes, record->key);
    change.owner = resolve(changes, record->owner);
    change.previous_owner = resolve(changes, record->previous_owner);
    return change;
}

static struct place_of copy(struct changes *changes, struct slice slice)
{
    if (slice.base == NULL) {
        return (struct place_of){.at = NOWHERE};
    }
    struct place_of place = {.at = changes->bytes.len, .len = slice.len};
    buf_append(&changes->bytes, slice.base, slice.len);
    CHECK(!buf_overflown(&changes->bytes));
    return place;
}

static struct slice resolve(const struct changes *changes, struct place_of place)
{
    if (place.at == NOWHERE) {
        return slice_from(NULL, 0);
    }
    if (place.len == 0) {
        return slice_from("", 0);
    }
    return slice_from(changes->bytes.base + place.at, place.len);
}
