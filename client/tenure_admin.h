/* Tenure: calls of administrators, on the cluster and on whole namespaces. Root and the node's own
 * user may make them; everybody else is DENIED, except for members. */
#ifndef CLIENT_TENURE_ADMIN_H_
#define CLIENT_TENURE_ADMIN_H_

#include "tenure.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Zero is "not given" for every member. */
struct tenure_cluster_call {
    uint64_t deadline_ms; /* the client's */
    uint64_t voters;      /* init: voters wanted, 1, 3 or 5 */
    bool has_token_floor; /* init: tokens start at least here */
    uint64_t token_floor;
    uint64_t node_id; /* transfer: who shall lead; 0: whoever is best */
};

/* Make a cluster of this node alone. Succeeds when it is on the node's disk, and again on a node
 * that is in a cluster. UNKNOWN: it has begun and goes on as it was asked for first; ask again. */
TENURE_API enum tenure_error tenure_cluster_init(struct tenure_client *client,
                                                 const struct tenure_cluster_call *call,
                                                 struct tenure_reply **out_reply,
                                                 struct tenure_failure *out_failure);

/* Hand leadership over. */
TENURE_API enum tenure_error tenure_cluster_transfer(struct tenure_client *client,
                                                     const struct tenure_cluster_call *call,
                                                     struct tenure_reply **out_reply,
                                                     struct tenure_failure *out_failure);

TENURE_CALL(members);

/* End every lease of a namespace, markers too. */
TENURE_CALL(purge);

#ifdef __cplusplus
}
#endif

#endif
