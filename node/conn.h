/* A byte stream over a TCP or unix socket, bounded both ways.
 *
 * Input. All connections of a pool read into one scratch buffer; a connection keeps memory of its
 * own only for what its owner left over (an incomplete message), grown as bytes arrive and given
 * back when they are gone. An idle connection owns no buffer. Once the pool holds `input_len_max`
 * bytes, connections that keep more than CONN_SMALL_LEN stop reading until there is room; the
 * others read CONN_SMALL_LEN at a time. So the pool never holds more than its maximum and
 * CONN_SMALL_LEN twice for each connection.
 *
 * Output. conn_send copies; conn_flush writes what there is with one system call, and the kernel's
 * leftover goes out behind the loop's back, in order. Each byte sent has a position in the stream,
 * counted from 1; on_written tells up to where the kernel has taken it.
 *
 * No callback is called from within conn_send or conn_close. After conn_close nothing but on_closed
 * is called, and after that the connection is gone. */
#ifndef NODE_CONN_H_
#define NODE_CONN_H_

#include "fsm/base/buf.h"
#include "fsm/base/list.h"
#include "fsm/base/slice.h"
#include "fsm/base/status.h"
#include "node/loop.h"

#define CONN_READ_LEN 65536u
#define CONN_SMALL_LEN 4096u

struct uv_stream_s;
struct conn;

/* What the connections of one owner share. */
struct conn_pool {
    struct loop *loop;
    uint8_t *scratch; /* CONN_READ_LEN bytes */
    size_t input_len_max;
    size_t input_len;  /* kept by all connections */
    size_t output_len; /* waiting to be written by all connections that are not closing */
    struct list quiet;  /* connections that are not read from */
    uint64_t looked_ns; /* when quiet ones were looked at for hang-up */
};

void conn_pool_init(struct conn_pool *pool, struct loop *loop, size_t input_len_max);
void conn_pool_deinit(struct conn_pool *pool);

/* Let connections that wait for room read again, and look for hang-up where nobody reads. Call it
 * at the end of each turn. */
void conn_pool_turn(struct conn_pool *pool);

enum conn_kind {
    CONN_KIND_TCP,
    CONN_KIND_UNIX,
};

struct conn_callbacks {
    /* Bytes arrived. Returns how many of them are dealt with; the rest is kept, and comes again in
     * front of the next ones. */
    size_t (*on_bytes)(void *ctx, struct slice bytes);

    /* The kernel has taken everything up to this position. May come from within conn_flush. */
    void (*on_written)(void *ctx, uint64_t position);

    /* The other end is gone: STATUS_OK closed, STATUS_IO broken. Once; may come from within
     * conn_flush. The owner closes now or later. */
    void (*on_end)(void *ctx, enum status status);

    void (*on_closed)(void *ctx);
};

struct conn *conn_create(struct conn_pool *pool, enum conn_kind kind,
                         const struct conn_callbacks *callbacks, void *ctx);

/* For uv_accept, uv_tcp_connect and options of the socket. */
struct uv_stream_s *conn_stream(struct conn *conn);

/* Begin or go on to read; stop. What is kept already is not given anew by this: see conn_retry. */
void conn_read(struct conn *conn);
void conn_pause(struct conn *conn);

/* Give what is kept to on_bytes again, for an owner that had no room for it. */
void conn_retry(struct conn *conn);

/* Bytes kept. */
size_t conn_input_len(const struct conn *conn);

/* Copy `bytes` behind what is to be written. Never refuses: the owner bounds conn_output_len. */
void conn_send(struct conn *conn, struct slice bytes);

/* Position of the last byte sent so far. */
uint64_t conn_position(const struct conn *conn);

/* Bytes that the kernel has not taken. */
size_t conn_output_len(const struct conn *conn);

/* Position up to which the kernel has everything; moves before on_written tells. */
uint64_t conn_taken(const struct conn *conn);

/* True while a leftover is being written; conn_flush does nothing until it is out. */
bool conn_writing(const struct conn *conn);

void conn_flush(struct conn *conn);

/* Any number of times. */
void conn_close(struct conn *conn);
bool conn_closing(const struct conn *conn);

#endif
