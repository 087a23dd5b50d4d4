/* The service behind the local API: messages of clients -> calls of the dispatcher or questions to
 * the node, and their replies back.
 *
 * It checks what a caller may do (administrators are root and the node's own user, by the socket's
 * peer credentials), what a request may contain, and keeps each call's bytes until it is
 * answered or its connection is gone. One reply per call. */
#ifndef NODE_SERVICE_H_
#define NODE_SERVICE_H_

#include "node/api.h"
#include "node/dispatch.h"
#include "node/fields.h"
#include "node/loop.h"

struct service;

/* The end of what a node was asked to do. */
typedef void (*service_later_cb)(void *call, enum status status);

/* What the service asks of the node as a whole. */
struct service_node {
    void *ctx;
    void (*status)(void *ctx, struct fields *out_fields);
    void (*metrics)(void *ctx, struct fields *out_fields);

    /* Rows of equal length; the length of one in *out_row_len. */
    void (*members)(void *ctx, struct fields *out_fields, uint32_t *out_row_len);
    void (*hello)(void *ctx, struct fields *out_fields);

    /* Make a cluster of one: OK once its birth is applied, also for a node that is in a cluster
     * already; UNKNOWN: begun, and the end is not known. `cb` once and later, unless the status is
     * not OK: then why, in *out_detail (static or living as long as the node). */
    enum status (*cluster_init)(void *ctx, const struct proto_request *request,
                                const char **out_detail, service_later_cb cb, void *call);

    /* Hand leadership over; `cb` once and later, unless the status is not OK. INVALID: that node
     * can't lead. */
    enum status (*transfer)(void *ctx, uint64_t node_id, service_later_cb cb, void *call);
};

struct service_config {
    struct loop *loop;
    struct dispatch *dispatch;
    struct service_node node;
    uint32_t admin_uid; /* beside root */
};

struct service *service_create(const struct service_config *config);

/* The callbacks to open the API with. */
struct api_callbacks service_api_callbacks(struct service *service);
void service_set_api(struct service *service, struct api *api);

/* Only after the API is closed and the dispatcher is drained. */
void service_destroy(struct service *service);

struct service_stats {
    uint64_t calls;
    uint64_t invalid;
    uint64_t denied;
    uint64_t in_flight; /* gauge */
};
void service_stats(const struct service *service, struct service_stats *out_stats);

#endif
