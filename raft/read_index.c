/* Two lists and a set of voters; the number of a round makes late answers harmless. */
#include "raft/read_index.h"

#include <string.h>

#include "fsm/base/check.h"

static void move_all(struct list *from, struct list *to);

void read_index_init(struct read_index *reads)
{
    memset(reads, 0, sizeof *reads);
    list_init(&reads->waiting);
    list_init(&reads->confirming);
}

void read_index_add(struct read_index *reads, struct list *read)
{
    list_append(&reads->waiting, read);
}

bool read_index_wants_round(const struct read_index *reads)
{
    return !reads->running && !list_empty(&reads->waiting);
}

void read_index_begin(struct read_index *reads, const struct read_round *round,
                      const uint64_t *voters, unsigned voter_count)
{
    CHECK(!reads->running && list_empty(&reads->confirming));
    CHECK(voter_count < READ_INDEX_VOTERS_MAX);

    reads->running = true;
    reads->round = *round;
    reads->nonce++;
    reads->asked_ns = 0;
    reads->voter_count = voter_count;
    for (unsigned i = 0; i < voter_count; i++) {
        reads->voters[i] = voters[i];
        reads->answered[i] = false;
    }
    /* A majority of voter_count + 1, less the leader's own. */
    reads->missing = (voter_count + 1) / 2;
    move_all(&reads->waiting, &reads->confirming);
}

bool read_index_should_ask(const struct read_index *reads, uint64_t now_ns)
{
    return reads->running && reads->missing > 0 &&
           (reads->asked_ns == 0 || now_ns >= reads->asked_ns + READ_INDEX_RETRY_NS);
}

unsigned read_index_ask(struct read_index *reads, uint64_t now_ns, uint64_t *out_ids)
{
    CHECK(reads->running);
    reads->asked_ns = now_ns;
    unsigned count = 0;
    for (unsigned i = 0; i < reads->voter_count; i++) {
        if (!reads->answered[i]) {
            out_ids[count++] = reads->voters[i];
        }
    }
    return count;
}

void read_index_answer(struct read_index *reads, uint64_t voter, uint64_t term, uint64_t nonce)
{
    if (!reads->running || term != reads->round.term || nonce != reads->nonce) {
        return;
    }
    for (unsigned i = 0; i < reads->voter_count; i++) {
        if (reads->voters[i] == voter && !reads->answered[i]) {
            reads->answered[i] = true;
            if (reads->missing > 0) {
                reads->missing--;
            }
        }
    }
}

bool read_index_confirmed(const struct read_index *reads)
{
    return reads->running && reads->missing == 0;
}

void read_index_end(struct read_index *reads, struct list *out_reads)
{
    reads->running = false;
    move_all(&reads->confirming, out_reads);
}

void read_index_drop(struct read_index *reads, struct list *out_reads)
{
    read_index_end(reads, out_reads);
    move_all(&reads->waiting, out_reads);
}

static void move_all(struct list *from, struct list *to)
{
    struct list *link;
    while ((link = list_pop(from)) != NULL) {
        list_append(to, link);
    }
}
