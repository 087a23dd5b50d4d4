/* Fuzz target: messages of the local API (client/protocol).
 *
 * Every input is tried as a request and as the reply to each method. What decodes must encode to a
 * message that decodes to the same again: then nothing was kept that cannot be said. */
#include "client/protocol.h"

#include <stdlib.h>

#define NOW_NS 1000000000ull

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static void try_request(struct proto_decoder *decoder, struct slice bytes)
{
    struct proto_request request;
    struct violation violation = {0};
    enum status st = proto_decode_request(decoder, bytes, NOW_NS, &request, &violation);
    if (st != STATUS_OK) {
        CHECK(st == STATUS_MALFORMED || st == STATUS_INVALID || st == STATUS_INCOMPATIBLE);
        CHECK(st == STATUS_MALFORMED || (violation.field != NULL && violation.rule != NULL));
        return;
    }
    struct buf once;
    struct buf twice;
    buf_init(&once, 2 * MESSAGE_LEN_MAX);
    buf_init(&twice, 2 * MESSAGE_LEN_MAX);
    proto_encode_request(&request, &once);
    CHECK(proto_decode_request(decoder, buf_slice(&once), NOW_NS, &request, &violation) ==
          STATUS_OK);
    proto_encode_request(&request, &twice);
    CHECK(slice_equal(buf_slice(&once), buf_slice(&twice)));
    buf_deinit(&once);
    buf_deinit(&twice);
}

static void try_reply(struct proto_decoder *decoder, struct slice bytes, enum proto_method method)
{
    struct proto_reply reply;
    if (proto_decode_reply(decoder, bytes, method, &reply) != STATUS_OK) {
        return;
    }
    uint32_t id = 0;
    CHECK(proto_reply_id(bytes, &id) != STATUS_OK || id == reply.id);
    struct buf once;
    struct buf twice;
    buf_init(&once, 2 * MESSAGE_LEN_MAX);
    buf_init(&twice, 2 * MESSAGE_LEN_MAX);
    proto_encode_reply(&reply, &once);
    CHECK(proto_decode_reply(decoder, buf_slice(&once), method, &reply) == STATUS_OK);
    proto_encode_reply(&reply, &twice);
    CHECK(slice_equal(buf_slice(&once), buf_slice(&twice)));
    buf_deinit(&once);
    buf_deinit(&twice);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    /* Exactly as long as the input, so that a sanitizer sees a read behind it. */
    uint8_t *copy = malloc(len > 0 ? len : 1);
    CHECK(copy != NULL);
    if (len > 0) {
        memcpy(copy, data, len);
    }
    struct slice bytes = slice_from(copy, len);
    size_t message_len = 0;
    enum proto_verdict verdict = proto_scan(bytes, &message_len);
    CHECK(verdict != PROTO_VERDICT_WHOLE || (message_len > 0 && message_len <= len));
    struct proto_decoder *decoder = proto_decoder_create();
    try_request(decoder, bytes);
    for (int i = PROTO_METHOD_HELLO; i <= PROTO_METHOD_CLUSTER_TRANSFER; i++) {
        try_reply(decoder, bytes, (enum proto_method)i);
    }
    proto_decoder_destroy(decoder);
    free(copy);
    return 0;
}
