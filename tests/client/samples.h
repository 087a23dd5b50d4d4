/* One message of each kind, bare and with every optional name: for golden bytes, sweeps and the
 * fuzzer's corpus. */
#ifndef TESTS_CLIENT_SAMPLES_H_
#define TESTS_CLIENT_SAMPLES_H_

#include "client/protocol.h"

struct request_sample {
    const char *name;
    struct proto_request request;
};

struct reply_sample {
    const char *name;
    struct proto_reply reply;
};

const struct request_sample *request_samples(size_t *out_count);
const struct reply_sample *reply_samples(size_t *out_count);

#endif
