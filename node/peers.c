/* A sorted array: there are few peers and they are looked up rarely. The text has one line a peer,
 * after a first line with the format's version, so that a person can read and mend it. */
#include "node/peers.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fsm/base/check.h"

#define FIRST_LINE "tenure-peers 1"
#define ID_DIGITS 16u

static uint32_t place_of(const struct peers *peers, uint64_t id, bool *out_found);
static struct slice line_take(struct slice *text);
static bool line_decode(struct peers *peers, struct slice line);
static bool id_decode(struct slice digits, uint64_t *out_id);
static bool address_plain(struct slice address);

void peers_init(struct peers *peers)
{
    *peers = (struct peers){0};
    peers->items = calloc(PEERS_MAX, sizeof *peers->items);
    CHECK(peers->items != NULL);
}

void peers_deinit(struct peers *peers)
{
    free(peers->items);
    *peers = (struct peers){0};
}

bool peers_learn(struct peers *peers, uint64_t id, struct slice address, bool told_by_itself)
{
    if (id == 0 || address.len == 0 || address.len >= PEER_ADDRESS_LEN_MAX ||
        !address_plain(address)) {
        return false;
    }
    bool found = false;
    uint32_t at = place_of(peers, id, &found);
    struct peer *peer = &peers->items[at];
    if (found) {
        bool same = slice_equal(slice_text(peer->address), address);
        if (same) {
            peer->told_by_itself = peer->told_by_itself || told_by_itself;
            return false;
        }
        if (!told_by_itself) {
            return false;
        }
    } else {
        if (peers->count == PEERS_MAX) {
            return false;
        }
        memmove(peer + 1, peer, (peers->count - at) * sizeof *peer);
        peers->count++;
    }
    *peer = (struct peer){.id = id, .told_by_itself = told_by_itself};
    memcpy(peer->address, address.base, address.len);
    return true;
}

const struct peer *peers_find(const struct peers *peers, uint64_t id)
{
    bool found = false;
    uint32_t at = place_of(peers, id, &found);
    return found ? &peers->items[at] : NULL;
}

void peers_encode(const struct peers *peers, struct buf *out)
{
    char line[PEER_ADDRESS_LEN_MAX + 32];
    int len = snprintf(line, sizeof line, FIRST_LINE "\n");
    buf_append(out, line, (size_t)len);
    if (peers->self_address[0] != '\0') {
        len = snprintf(line, sizeof line, "self %s\n", peers->self_address);
        buf_append(out, line, (size_t)len);
    }
    for (uint32_t i = 0; i < peers->count; i++) {
        len = snprintf(line, sizeof line, "peer %016" PRIx64 " %s\n", peers->items[i].id,
                       peers->items[i].address);
        buf_append(out, line, (size_t)len);
    }
    CHECK(!buf_overflown(out));
}

enum status peers_decode(struct peers *peers, struct slice text)
{
    struct peers fresh;
    peers_init(&fresh);
    bool well = slice_equal(line_take(&text), slice_text(FIRST_LINE));
    while (well && text.len > 0) {
        well = line_decode(&fresh, line_take(&text));
    }
    if (!well) {
        peers_deinit(&fresh);
        return STATUS_MALFORMED;
    }
    peers_deinit(peers);
    *peers = fresh;
    return STATUS_OK;
}

/* Where the id is, or would be. */
static uint32_t place_of(const struct peers *peers, uint64_t id, bool *out_found)
{
    uint32_t low = 0;
    uint32_t high = peers->count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (peers->items[middle].id < id) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    *out_found = low < peers->count && peers->items[low].id == id;
    return low;
}

static struct slice line_take(struct slice *text)
{
    const uint8_t *end = text->len == 0 ? NULL : memchr(text->base, '\n', text->len);
    size_t len = end == NULL ? text->len : (size_t)(end - text->base);
    struct slice line = slice_from(text->base, len);
    size_t taken = end == NULL ? len : len + 1;
    *text = slice_from(text->base + taken, text->len - taken);
    return line;
}

static bool line_decode(struct peers *peers, struct slice line)
{
    struct slice self = slice_text("self ");
    struct slice peer = slice_text("peer ");
    if (slice_starts_with(line, self)) {
        struct slice address = slice_from(line.base + self.len, line.len - self.len);
        if (address.len >= PEER_ADDRESS_LEN_MAX || !address_plain(address)) {
            return false;
        }
        memcpy(peers->self_address, address.base, address.len);
        peers->self_address[address.len] = '\0';
        return true;
    }
    size_t fixed = peer.len + ID_DIGITS + 1;
    uint64_t id = 0;
    if (!slice_starts_with(line, peer) || line.len <= fixed ||
        !id_decode(slice_from(line.base + peer.len, ID_DIGITS), &id)) {
        return false;
    }
    return peers_learn(peers, id, slice_from(line.base + fixed, line.len - fixed), false);
}

static bool id_decode(struct slice digits, uint64_t *out_id)
{
    uint64_t id = 0;
    for (size_t i = 0; i < digits.len; i++) {
        uint8_t c = digits.base[i];
        unsigned digit;
        if (c >= '0' && c <= '9') {
            digit = c - (unsigned)'0';
        } else if (c >= 'a' && c <= 'f') {
            digit = c - (unsigned)'a' + 10;
        } else {
            return false;
        }
        id = id << 4 | digit;
    }
    *out_id = id;
    return true;
}

/* Printable ASCII without blanks, so that it stays one word of one line. */
static bool address_plain(struct slice address)
{
    for (size_t i = 0; i < address.len; i++) {
        if (address.base[i] <= 0x20 || address.base[i] >= 0x7f) {
            return false;
        }
    }
    return true;
}
