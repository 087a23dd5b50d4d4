/* What the client asks of the world: six functions, so that tests and simulations can stand in for
 * sockets and clocks. */
#ifndef CLIENT_IO_H_
#define CLIENT_IO_H_

#include "fsm/base/buf.h"
#include "fsm/base/status.h"

struct io {
    void *ctx;

    /* OK; NOT_CONNECTED when nobody listens there (yet); DENIED; TOO_LARGE when no socket can have
     * such a path; NO_MEMORY when this process has no descriptor left. */
    enum status (*connect)(void *ctx, const char *path, int *out_conn);

    /* OK when the last byte was handed over; else NOT_CONNECTED or DEADLINE, and it was not. */
    enum status (*send)(void *ctx, int conn, struct slice bytes, uint64_t deadline_ns);

    /* Append what has come, or wait for it. OK: something was appended. NOT_CONNECTED: there is no
     * more. DEADLINE: nothing came until then, and nothing can come any more: the receiving side is
     * shut, so that the node learns that its answer was not taken. A deadline of 0 only looks:
     * DEADLINE then says that the connection is idle and healthy. */
    enum status (*receive)(void *ctx, int conn, struct buf *in, uint64_t deadline_ns);

    /* `ours` is false in a child of the process that opened it: then the connection itself lives
     * on. */
    void (*close)(void *ctx, int conn, bool ours);

    uint64_t (*now)(void *ctx); /* CLOCK_BOOTTIME, ns */
    void (*wait)(void *ctx, uint64_t until_ns);
};

/* Unix sockets and the kernel's clock; has no state. */
const struct io *io_system(void);

#endif
