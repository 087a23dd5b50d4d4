/* From decoded messages to what users get: replies in one block of memory, failures in words. */
#ifndef CLIENT_ANSWER_H_
#define CLIENT_ANSWER_H_

#include "client/protocol.h"
#include "client/tenure.h"

/* What a reply is built from. Borrows everything; the result owns copies. */
struct answer_source {
    const struct proto_reply *reply; /* with status OK */
    size_t message_len;              /* of the reply in bytes: bounds its texts */
    const struct proto_request *request;
    uint64_t sent_ns; /* CLOCK_BOOTTIME before the request was written */
};

/* NULL when memory ends. Freed with free(). */
struct tenure_reply *answer_create(const struct answer_source *source);

/* `out_failure` may be NULL. `detail` and `violation` may be NULL, too. Returns the error. */
enum tenure_error failure_set(struct tenure_failure *out_failure, enum status status,
                              struct slice detail, const struct violation *violation);

#endif
