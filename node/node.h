/* A whole node: the composition root that creates, wires, starts and stops everything in order.
 *
 * Start: loop, data directory and replica, links, dispatcher, local API. Ready when a leader is
 * known and everything that it had committed is applied. Stop is the reverse and asynchronous:
 * leadership is handed over, calls that wait are answered, connections close, libraft closes; no
 * handle is live and no byte leaked at the end. A second request to stop skips the hand-over. */
#ifndef NODE_NODE_H_
#define NODE_NODE_H_

#include "node/config.h"

struct node;

/* How a node ends; the values are the exit codes of `tenured`. */
enum node_exit {
    NODE_EXIT_STOPPED = 0,
    NODE_EXIT_CONFIG = 2,  /* bad configuration; nothing was touched */
    NODE_EXIT_REFUSED = 3, /* must not run as it is: directory in use, damaged, another version */
    NODE_EXIT_FAILED = 4,  /* fail-stop: the disk or the state can't be trusted any more */
};

struct node_callbacks {
    void *ctx;

    /* Fail-stop. The node calls nothing of libraft any more and sends nothing; its thread may hang
     * in the pool of libuv for ever, so a process that is only this node ends with _exit(code). */
    void (*on_fatal)(void *ctx, enum node_exit code);
};

/* Open everything. On failure a line has been logged and nothing is left running. */
enum node_exit node_create(const struct config *config, const struct node_callbacks *callbacks,
                           struct node **out_node);

/* Run until stopped. */
enum node_exit node_run(struct node *node);

/* Begin to stop; on the loop's thread. The second call skips the hand-over. */
void node_stop(struct node *node);

/* After node_run. */
void node_destroy(struct node *node);

#endif
