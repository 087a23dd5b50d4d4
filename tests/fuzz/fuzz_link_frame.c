/* Fuzz target: the bytes of a peer link (node/link_frame).
 *
 * The input is a stream that a peer sent: it is cut into frames as node/link_io.c does, and each
 * greeting and refusal is read. What is read must be written to the same bytes again, less what a
 * later version may have put behind them. */
#include "node/link_frame.h"

#include <stdlib.h>

#include "fsm/base/check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static void compare(const struct buf *again, struct slice payload)
{
    struct slice body = slice_from(again->base + LINK_FRAME_HEADER_LEN,
                                   again->len - LINK_FRAME_HEADER_LEN);
    CHECK(!buf_overflown(again));
    CHECK(slice_starts_with(payload, body));
}

static void try_frame(const struct link_frame *frame)
{
    struct buf again;
    struct link_greeting greeting;
    struct link_refused refused;
    buf_init(&again, 4096);
    CHECK(frame->payload.len <= link_frame_len_max(frame->type));
    if (frame->type == FRAME_TYPE_HELLO || frame->type == FRAME_TYPE_WELCOME) {
        if (link_frame_read_greeting(frame->payload, &greeting) == STATUS_OK) {
            link_frame_greet(frame->type, &greeting, &again);
            compare(&again, frame->payload);
        }
    } else if (frame->type == FRAME_TYPE_REFUSED &&
               link_frame_read_refused(frame->payload, &refused) == STATUS_OK) {
        link_frame_refuse(refused.code, refused.why, &again);
        compare(&again, frame->payload);
    }
    buf_deinit(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    /* Exactly as long as the input, so that a sanitizer sees a read behind it. */
    uint8_t *bytes = malloc(len > 0 ? len : 1);
    CHECK(bytes != NULL);
    if (len > 0) {
        memcpy(bytes, data, len);
    }
    struct slice rest = slice_from(bytes, len);
    struct link_frame frame;
    size_t used = 0;
    while (link_frame_scan(rest, &frame, &used) == LINK_FRAME_VERDICT_WHOLE) {
        CHECK(used >= LINK_FRAME_HEADER_LEN && used <= rest.len);
        try_frame(&frame);
        rest = slice_from(rest.base + used, rest.len - used);
    }
    free(bytes);
    return 0;
}
