/* The whole state <-> bytes, in canonical order: equal states give equal bytes.
 *
 * Layout: magic (never LZ4's), format version, length, CRC-32C, then MessagePack: clock, counters,
 * settings, identity, leases in the order (namespace, key), tombstones likewise, owners with set
 * versions and departures, marks, origins in the order of their numbers. Loading validates P1 and
 * P5 and the invariants of invariants.h; nothing is trusted. */
#ifndef FSM_SNAPSHOT_H_
#define FSM_SNAPSHOT_H_

#include "fsm/fsm.h"

#define SNAPSHOT_FORMAT_VERSION 1u

/* Append the snapshot; its length is a multiple of 8 and never 0. */
void snapshot_encode(const struct fsm *fsm, struct buf *out);

/* An upper estimate of the snapshot's length, to map memory beforehand. */
size_t snapshot_len_estimate(const struct fsm *fsm);

/* STATUS_OK with a new fsm (destroy it), STATUS_INCOMPATIBLE (*out_version), STATUS_CORRUPT with a
 * static sentence in *out_why. */
NODISCARD enum status snapshot_decode(struct slice bytes, struct fsm **out_fsm,
                                      uint32_t *out_version, const char **out_why);

#endif
