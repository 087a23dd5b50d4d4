/* Libraft's codes as our statuses: the one place that knows both. */
#ifndef RAFT_STATUS_MAP_H_
#define RAFT_STATUS_MAP_H_

#include <stdbool.h>

#include "fsm/base/status.h"

/* 0 is STATUS_OK. What libraft never answers where we look is STATUS_INTERNAL. The class of the
 * result is true of raft_apply(), raft_barrier() and their callbacks: LEADERSHIPLOST and CANCELED
 * are MAYBE, NOTLEADER and NOSPACE are NOT_DONE. */
enum status status_from_raft(int code);

/* Whether raft_apply() may answer so without anything being broken; every other error of it means
 * that libraft and its log have parted ways, and the node must stop. */
bool status_raft_apply_refused(int code);

#endif
