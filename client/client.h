/* What tests of the client need beside its public interface: a client on an io of their own. */
#ifndef CLIENT_CLIENT_H_
#define CLIENT_CLIENT_H_

#include "client/io.h"
#include "client/tenure.h"

/* As tenure_client_create; borrows `io`. */
enum tenure_error client_create_with(const struct io *io, const struct tenure_options *options,
                                     struct tenure_client **out_client,
                                     struct tenure_failure *out_failure);

#endif
