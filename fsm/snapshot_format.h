/* What writing and loading a snapshot share. */
#ifndef FSM_SNAPSHOT_FORMAT_H_
#define FSM_SNAPSHOT_FORMAT_H_

#include "fsm/base/hash.h"
#include "fsm/fsm_state.h"

/* "TNRS", read as a little-endian number. LZ4 frames begin with 0x184D2204. */
#define SNAPSHOT_MAGIC 0x53524E54u

#define SNAPSHOT_HEADER_LEN 24u
#define SNAPSHOT_CRC_AT 16u /* magic 4, version 4, length of the body 8 */

enum snapshot_section {
    SNAPSHOT_SECTION_SPACES,
    SNAPSHOT_SECTION_OWNERS,
    SNAPSHOT_SECTION_DEPARTURES,
    SNAPSHOT_SECTION_LEASES,
    SNAPSHOT_SECTION_TOMBSTONES,
    SNAPSHOT_SECTION_MARKS,
    SNAPSHOT_SECTION_ORIGINS,
    SNAPSHOT_SECTION_OUTCOMES,
    SNAPSHOT_SECTION_COUNT,
};

#define SNAPSHOT_SETTINGS_COUNT 9u

/* Of body and header; the header is given as it stands before the checksum. */
static inline uint32_t snapshot_crc(const uint8_t *header, struct slice body)
{
    return crc32c(crc32c(0, body.base, body.len), header, SNAPSHOT_CRC_AT);
}

#endif
