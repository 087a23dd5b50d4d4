/* Small files of a node: read at start, written behind the loop's back.
 *
 * Writing goes through libuv's pool, one file at a time: temporary file, sync, rename, sync of the
 * folder. No client waits for it. A write that is asked for while one runs replaces what waits. */
#ifndef NODE_SMALL_FILE_H_
#define NODE_SMALL_FILE_H_

#include "fsm/base/buf.h"
#include "fsm/base/status.h"
#include "node/loop.h"

/* Read a whole file of at most out->len_max bytes; blocks, so only at start. STATUS_IO; *out_absent
 * tells a missing file apart. */
NODISCARD enum status small_file_read(const char *path, struct buf *out, bool *out_absent);

struct small_file;

/* `on_error` hears of a failed write, with the errno value. */
struct small_file *small_file_create(struct loop *loop, const char *path,
                                     void (*on_error)(void *ctx, int error), void *ctx);
void small_file_write(struct small_file *file, struct slice bytes);

/* Waits for what runs, then cb. Frees the file. */
void small_file_close(struct small_file *file, void (*cb)(void *ctx), void *ctx);

#endif
