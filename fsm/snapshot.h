/* The whole state <-> bytes, in canonical order: equal states give equal bytes.
 *
 * Layout, integers little-endian: magic "TNRS" (never LZ4's), format version, length of the body (8
 * bytes), CRC-32C of the body and then of what stands before the checksum, four zero bytes; the
 * body; zeros up to a multiple of 8. The body is a sequence of MessagePack arrays, one per record,
 * so that neither side ever holds a second copy of the state:
 *
 *   head         index clock token born id generation random [settings] lost_ms grace_end_ms
 *                forgotten_before silent_before forgotten_until forgotten_token
 *                forgotten_version [count of each section below]
 *   namespaces   name purged_ms                                         in the order of names
 *   owners       namespace# name set_version forgotten_version idle_ms? (namespace, name)
 *   departures   owner# version token reason key                        by version
 *   leases       owner# key state token ttl_ms expiry_ms since_ms index place meta? identity?
 *                                                                       (namespace, key)
 *   tombstones   namespace# key owner state token reason ended_ms       (namespace, key)
 *   marks        namespace# owner#? upto set_ms                         by token
 *   origins      number confirmed heard_ms heard_index heard_place      by number
 *   outcomes     origin# sequence index place void ended result namespace grant_count grants
 *                                                                       (origin, sequence)
 *
 * "#" counts the records of the named section from 0, "?" may be nil. Lists in the order of tokens,
 * queues and sums follow from the records. Loading validates every field, P1 and P5, and the
 * invariants of invariants.h; nothing is trusted. */
#ifndef FSM_SNAPSHOT_H_
#define FSM_SNAPSHOT_H_

#include "fsm/fsm.h"

#define SNAPSHOT_FORMAT_VERSION 1u

/* Append the snapshot; its length is a multiple of 8 and never 0. `out` must have room for it
 * (CHECK): its maximum is at least snapshot_len_estimate more than what it holds. */
void snapshot_encode(const struct fsm *fsm, struct buf *out);

/* An upper estimate of the snapshot's length, to map memory beforehand. */
size_t snapshot_len_estimate(const struct fsm *fsm);

/* The new fsm has this hash key (fsm_set_hash_key): loading is as exposed to chosen keys as living.
 * STATUS_OK with the fsm (destroy it), STATUS_INCOMPATIBLE (*out_version), STATUS_CORRUPT with a
 * static sentence in *out_why. */
NODISCARD enum status snapshot_decode(struct slice bytes, const struct hash_key *hash_key,
                                      struct fsm **out_fsm, uint32_t *out_version,
                                      const char **out_why);

#endif
