/* Results: what commands answer, and their bytes.
 *
 * The state machine keeps the encoded result of each number that is not confirmed yet, a leader
 * sends it back for a forwarded command, and the node decodes it once to answer its caller. */
#ifndef FSM_RESULT_H_
#define FSM_RESULT_H_

#include "fsm/base/buf.h"
#include "fsm/command.h"
#include "fsm/types.h"

void result_encode(const struct result *result, struct buf *out);

struct result_decoder;
struct result_decoder *result_decoder_create(void);
void result_decoder_destroy(struct result_decoder *decoder);

/* STATUS_OK or STATUS_MALFORMED. Arrays live in the decoder until its next use, slices in
 * `bytes`. */
NODISCARD enum status result_decode(struct result_decoder *decoder, struct slice bytes,
                                    struct result *out_result);

/* An upper bound, in bytes, of the encoded result of this operation: the node counts the largest
 * outcome that each request can have. */
size_t result_len_max(const struct op *op);

#endif
