/* crc32c by the SSE 4.2 instruction where the processor has it, chosen when called, else bit by
 * bit: slow and right, for machines we do not measure on. */
#include "fsm/base/hash.h"

#include <string.h>

#define CRC32C_POLYNOMIAL 0x82F63B78u /* reflected */
#define FNV_OFFSET 0xcbf29ce484222325ull
#define FNV_PRIME 0x100000001b3ull

static uint32_t crc32c_portable(uint32_t crc, const uint8_t *bytes, size_t len);
static uint64_t avalanche(uint64_t x);
static inline void sip_round(uint64_t *v);

/* Little-endian, in one instruction where the machine is. */
static inline uint64_t load_word(const uint8_t *at)
{
    uint64_t word;
    memcpy(&word, at, sizeof word);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) static uint32_t crc32c_sse42(uint32_t crc, const uint8_t *bytes,
                                                                size_t len)
{
    uint64_t wide = crc;
    for (; len >= 8; bytes += 8, len -= 8) {
        uint64_t word;
        memcpy(&word, bytes, sizeof word);
        wide = __builtin_ia32_crc32di(wide, word);
    }
    crc = (uint32_t)wide;
    for (; len > 0; bytes++, len--) {
        crc = __builtin_ia32_crc32qi(crc, *bytes);
    }
    return crc;
}
#endif

uint32_t crc32c(uint32_t crc, const void *bytes, size_t len)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("sse4.2")) {
        return ~crc32c_sse42(~crc, bytes, len);
    }
#endif
    return ~crc32c_portable(~crc, bytes, len);
}

uint64_t hash64(uint64_t seed, const void *bytes, size_t len)
{
    const uint8_t *at = bytes;
    uint64_t h = FNV_OFFSET ^ avalanche(seed);
    for (; len >= 8; at += 8, len -= 8) {
        h = (h ^ load_word(at)) * FNV_PRIME;
        h ^= h >> 32;
    }
    for (; len > 0; at++, len--) {
        h = (h ^ *at) * FNV_PRIME;
    }
    return avalanche(h);
}

/* One round per word and three at the end: the variant for hash tables, where single hashes are
 * never seen. Byte by byte behind the last whole word. */
uint64_t hash64_keyed(const struct hash_key *key, const void *bytes, size_t len)
{
    const uint8_t *at = bytes;
    uint64_t last = (uint64_t)len << 56;
    uint64_t v[4] = {
        key->words[0] ^ 0x736f6d6570736575ull,
        key->words[1] ^ 0x646f72616e646f6dull,
        key->words[0] ^ 0x6c7967656e657261ull,
        key->words[1] ^ 0x7465646279746573ull,
    };
    for (; len >= 8; at += 8, len -= 8) {
        uint64_t word = load_word(at);
        v[3] ^= word;
        sip_round(v);
        v[0] ^= word;
    }
    for (size_t i = 0; i < len; i++) {
        last |= (uint64_t)at[i] << (8 * i);
    }
    v[3] ^= last;
    sip_round(v);
    v[0] ^= last;
    v[2] ^= 0xff;
    for (unsigned i = 0; i < 3; i++) {
        sip_round(v);
    }
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

static uint32_t crc32c_portable(uint32_t crc, const uint8_t *bytes, size_t len)
{
    for (; len > 0; bytes++, len--) {
        crc ^= *bytes;
        for (unsigned bit = 0; bit < 8; bit++) {
            crc = (crc >> 1) ^ (CRC32C_POLYNOMIAL & (0u - (crc & 1u)));
        }
    }
    return crc;
}

/* The finaliser of MurmurHash3: every input bit reaches every output bit. */
static uint64_t avalanche(uint64_t x)
{
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdull;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53ull;
    x ^= x >> 33;
    return x;
}

static inline uint64_t rotate_left(uint64_t x, unsigned bits)
{
    return x << bits | x >> (64 - bits);
}

static inline void sip_round(uint64_t *v)
{
    v[0] += v[1];
    v[1] = rotate_left(v[1], 13) ^ v[0];
    v[0] = rotate_left(v[0], 32);
    v[2] += v[3];
    v[3] = rotate_left(v[3], 16) ^ v[2];
    v[0] += v[3];
    v[3] = rotate_left(v[3], 21) ^ v[0];
    v[2] += v[1];
    v[1] = rotate_left(v[1], 17) ^ v[2];
    v[2] = rotate_left(v[2], 32);
}
