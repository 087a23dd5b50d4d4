/* Fuzz target: messages between replicas (raft/message_codec).
 *
 * Format version and checksum are made right, since a fuzzer would spend its life on them. What
 * decodes must encode to the same bytes again: then nothing in them went unread. */
#include "raft/message_codec.h"

#include <stdlib.h>

#include "fsm/base/check.h"
#include "fsm/base/hash.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static void try_message(uint8_t *bytes, size_t len)
{
    struct message message;
    if (message_decode(slice_from(bytes, len), &message) != STATUS_OK) {
        return;
    }
    struct buf again;
    buf_init(&again, MESSAGE_PEER_LEN_MAX);
    message_encode(&message, &again);
    CHECK(slice_equal(buf_slice(&again), slice_from(bytes, len)));
    buf_deinit(&again);
    message_release(&message);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    /* Exactly as long as the input, so that a sanitizer sees a read behind it. */
    uint8_t *bytes = malloc(len > 0 ? len : 1);
    CHECK(bytes != NULL);
    if (len > 0) {
        memcpy(bytes, data, len);
    }
    try_message(bytes, len);
    if (len >= 8) {
        bytes[0] = MESSAGE_FORMAT_VERSION;
        uint32_t crc = crc32c(crc32c(0, bytes, 4), bytes + 8, len - 8);
        for (unsigned i = 0; i < 4; i++) {
            bytes[4 + i] = (uint8_t)(crc >> (8 * i));
        }
        try_message(bytes, len);
    }
    free(bytes);
    return 0;
}
