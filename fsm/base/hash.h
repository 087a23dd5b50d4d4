/* Three functions that turn bytes into a number.
 *
 * crc32c (Castagnoli polynomial 0x1EDC6F41, reflected, as in RFC 3720 appendix B.4): detects damage
 * of what was stored or sent. hash64 (FNV-1a with a final avalanche): chains digests; the same on
 * every machine, and no defence against somebody who chooses keys. hash64_keyed (SipHash-1-3,
 * Aumasson and Bernstein 2012): spreads keys over buckets; who does not know the hash key cannot
 * make keys that fall together. */
#ifndef FSM_BASE_HASH_H_
#define FSM_BASE_HASH_H_

#include <stddef.h>
#include <stdint.h>

/* Checksum of `len` bytes continued from `crc`; start with 0. */
uint32_t crc32c(uint32_t crc, const void *bytes, size_t len);

/* Hash of `len` bytes continued from `seed`; any seed will do. */
uint64_t hash64(uint64_t seed, const void *bytes, size_t len);

struct hash_key {
    uint64_t words[2];
};

/* Hash of `len` bytes under a key. */
uint64_t hash64_keyed(const struct hash_key *key, const void *bytes, size_t len);

#endif
