/* Bucket numbers are the low bits of the hash, as many as the largest number needs; where that
 * names a bucket which is not there yet, one bit less. Adding bucket n therefore splits the chain
 * of the bucket that differs from n in the highest bit alone, and taking it away joins the two.
 *
 * Buckets stand in segments of equal size, so that growing never copies more than one of them: the
 * first segment grows by doubling, for namespaces with few leases, all others come whole. Between
 * one and two buckets per element nothing is added or taken away: an element that comes and goes
 * moves nothing.
 *
 * The directory of segments is copied when it doubles; it has one pointer for 4,096 buckets. */
#include "fsm/key_index.h"

#include <stdlib.h>

#include "fsm/base/check.h"

#define BUCKETS_MIN 8u        /* a cache line; from the first insertion on */
#define SEGMENT_BUCKETS 4096u /* a power of two; 32 KiB */
#define SEGMENTS_FIRST 4u

static size_t mask_of(size_t bucket_count);
static struct key_index_bucket *bucket_at(const struct key_index *index, size_t number);
static struct key_index_bucket *bucket_of(const struct key_index *index, uint64_t hash);
static void begin(struct key_index *index);
static void split(struct key_index *index);
static void join(struct key_index *index);
static void make_room(struct key_index *index);
static void give_back(struct key_index *index);
static void resize_first(struct key_index *index, size_t from, size_t to);

void key_index_init(struct key_index *index, const struct hash_key *hash_key)
{
    *index = (struct key_index){.hash_key = *hash_key};
}

void key_index_deinit(struct key_index *index)
{
    for (size_t i = 0; i * SEGMENT_BUCKETS < index->bucket_count; i++) {
        free(index->segments[i]);
    }
    free(index->segments);
    *index = (struct key_index){.hash_key = index->hash_key};
}

void key_index_insert(struct key_index *index, struct key_index_node *node, uint64_t hash)
{
    if (index->bucket_count == 0) {
        begin(index);
    } else if (index->count >= index->bucket_count) {
        split(index);
    }
    struct key_index_bucket *bucket = bucket_of(index, hash);
    *node = (struct key_index_node){.next = bucket->first, .hash = hash};
    bucket->first = node;
    index->count++;
}

void key_index_remove(struct key_index *index, struct key_index_node *node)
{
    CHECK(index->count > 0);
    struct key_index_node **link = &bucket_of(index, node->hash)->first;
    while (*link != node) {
        CHECK(*link != NULL);
        link = &(*link)->next;
    }
    *link = node->next;
    index->count--;
    for (unsigned i = 0; i < 2; i++) {
        if (index->bucket_count > BUCKETS_MIN && index->bucket_count > 2 * index->count) {
            join(index);
        }
    }
}

struct key_index_node *key_index_first(const struct key_index *index, uint64_t hash)
{
    if (index->count == 0) {
        return NULL;
    }
    struct key_index_node *node = bucket_of(index, hash)->first;
    while (node != NULL && node->hash != hash) {
        node = node->next;
    }
    return node;
}

struct key_index_node *key_index_next(const struct key_index_node *node)
{
    struct key_index_node *next = node->next;
    while (next != NULL && next->hash != node->hash) {
        next = next->next;
    }
    return next;
}

size_t key_index_memory(const struct key_index *index)
{
    size_t count = index->bucket_count;
    size_t buckets = (count + SEGMENT_BUCKETS - 1) / SEGMENT_BUCKETS * SEGMENT_BUCKETS;
    if (count < SEGMENT_BUCKETS && count > 0) {
        buckets = mask_of(count) + 1;
    }
    return index->segment_cap * sizeof *index->segments +
           buckets * sizeof(struct key_index_bucket);
}

bool key_index_sound(const struct key_index *index)
{
    size_t count = 0;
    for (size_t number = 0; number < index->bucket_count; number++) {
        const struct key_index_bucket *bucket = bucket_at(index, number);
        for (const struct key_index_node *node = bucket->first; node != NULL; node = node->next) {
            if (bucket_of(index, node->hash) != bucket || ++count > index->count) {
                return false;
            }
        }
    }
    return count == index->count;
}

/* Ones in as many bits as the largest bucket number has. */
static size_t mask_of(size_t bucket_count)
{
    size_t largest = bucket_count - 1;
    return (size_t)(UINT64_MAX >> __builtin_clzll(largest));
}

static struct key_index_bucket *bucket_at(const struct key_index *index, size_t number)
{
    return &index->segments[number / SEGMENT_BUCKETS][number % SEGMENT_BUCKETS];
}

static struct key_index_bucket *bucket_of(const struct key_index *index, uint64_t hash)
{
    size_t mask = mask_of(index->bucket_count);
    size_t number = (size_t)hash & mask;
    return bucket_at(index, number < index->bucket_count ? number : number & mask >> 1);
}

static void begin(struct key_index *index)
{
    index->segments = calloc(SEGMENTS_FIRST, sizeof *index->segments);
    CHECK(index->segments != NULL);
    index->segment_cap = SEGMENTS_FIRST;
    resize_first(index, 0, BUCKETS_MIN);
    index->bucket_count = BUCKETS_MIN;
}

/* One bucket more: it takes what is its own from the bucket that stood in for it. */
static void split(struct key_index *index)
{
    make_room(index);
    size_t number = index->bucket_count++;
    size_t mask = mask_of(index->bucket_count);
    struct key_index_bucket *bucket = bucket_at(index, number);
    struct key_index_node **link = &bucket_at(index, number & mask >> 1)->first;
    bucket->first = NULL;
    while (*link != NULL) {
        struct key_index_node *node = *link;
        if (((size_t)node->hash & mask) == number) {
            *link = node->next;
            node->next = bucket->first;
            bucket->first = node;
        } else {
            link = &node->next;
        }
    }
}

/* One bucket less: its chain goes to the bucket that stands in for it. */
static void join(struct key_index *index)
{
    size_t number = index->bucket_count - 1;
    struct key_index_bucket *bucket = bucket_at(index, number);
    struct key_index_bucket *heir = bucket_at(index, number & mask_of(index->bucket_count) >> 1);
    struct key_index_node **link = &bucket->first;
    while (*link != NULL) {
        link = &(*link)->next;
    }
    *link = heir->first;
    heir->first = bucket->first;
    index->bucket_count--;
    give_back(index);
}

/* Memory for the bucket behind the last one. */
static void make_room(struct key_index *index)
{
    size_t count = index->bucket_count;
    if (count < SEGMENT_BUCKETS) {
        if ((count & (count - 1)) == 0) {
            resize_first(index, count, 2 * count);
        }
        return;
    }
    size_t segment = count / SEGMENT_BUCKETS;
    if (count % SEGMENT_BUCKETS != 0) {
        return;
    }
    if (segment == index->segment_cap) {
        size_t cap = 2 * index->segment_cap;
        struct key_index_bucket **segments = realloc(index->segments, cap * sizeof *segments);
        CHECK(segments != NULL);
        index->segments = segments;
        index->segment_cap = cap;
    }
    index->segments[segment] = malloc(SEGMENT_BUCKETS * sizeof **index->segments);
    CHECK(index->segments[segment] != NULL);
}

/* The memory that a bucket which was taken away leaves unused. */
static void give_back(struct key_index *index)
{
    size_t count = index->bucket_count;
    if (count >= SEGMENT_BUCKETS) {
        if (count % SEGMENT_BUCKETS == 0) {
            free(index->segments[count / SEGMENT_BUCKETS]);
        }
    } else if ((count & (count - 1)) == 0) {
        resize_first(index, 2 * count, count);
    }
}

static void resize_first(struct key_index *index, size_t from, size_t to)
{
    struct key_index_bucket *buckets = realloc(index->segments[0], to * sizeof *buckets);
    CHECK(buckets != NULL);
    for (size_t i = from; i < to; i++) {
        buckets[i].first = NULL;
    }
    index->segments[0] = buckets;
}
