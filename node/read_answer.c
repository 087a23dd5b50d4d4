/* Views are collected into one array; a list asks for one lease more than its page holds, which
 * tells whether there are more. */
#include "node/read_answer.h"

#include <stdlib.h>

struct page {
    struct read_answer *answer;
    uint32_t count;
    uint32_t limit;
    bool more;
};

static void make_owner(struct read_answer *answer, const struct fsm *fsm,
                       const struct proto_request *asked, struct proto_reply *out_reply);
static void make_list(struct read_answer *answer, const struct fsm *fsm,
                      const struct proto_request *asked, struct proto_reply *out_reply);
static bool on_lease(void *ctx, const struct lease_view *view);
static struct fsm_filter filter_of(const struct proto_request *asked);
static void make_room(struct read_answer *answer, uint32_t count);

void read_answer_init(struct read_answer *answer)
{
    *answer = (struct read_answer){0};
}

void read_answer_deinit(struct read_answer *answer)
{
    free(answer->leases);
    *answer = (struct read_answer){0};
}

bool read_answer_shows_due(const struct fsm *fsm, const struct proto_request *asked,
                           uint64_t clock_ms)
{
    if (asked->method != PROTO_METHOD_OWNER) {
        return fsm_query_shows_due(fsm, asked->op.ns, asked->prefix, false, clock_ms);
    }
    for (uint32_t i = 0; i < asked->op.key_count; i++) {
        if (fsm_query_shows_due(fsm, asked->op.ns, asked->op.keys[i].key, true, clock_ms)) {
            return true;
        }
    }
    return false;
}

void read_answer_make(struct read_answer *answer, const struct fsm *fsm,
                      const struct proto_request *asked, uint64_t clock_ms,
                      struct proto_reply *out_reply)
{
    *out_reply = (struct proto_reply){
        .id = asked->id,
        .method = asked->method,
        .status = STATUS_OK,
        .position = {.index = fsm_index(fsm), .place = POSITION_PLACE_END},
        .clock_ms = max_u64(clock_ms, fsm_clock_ms(fsm)),
        .stale = asked->stale,
    };
    if (asked->method == PROTO_METHOD_OWNER) {
        make_owner(answer, fsm, asked, out_reply);
    } else if (asked->method == PROTO_METHOD_LIST) {
        make_list(answer, fsm, asked, out_reply);
    } else {
        CHECK(asked->method == PROTO_METHOD_COUNT);
        struct fsm_filter filter = filter_of(asked);
        out_reply->count = fsm_query_count(fsm, &filter, fsm_clock_ms(fsm));
    }
}

static void make_owner(struct read_answer *answer, const struct fsm *fsm,
                       const struct proto_request *asked, struct proto_reply *out_reply)
{
    make_room(answer, asked->op.key_count);
    for (uint32_t i = 0; i < asked->op.key_count; i++) {
        struct lease_view *view = &answer->leases[i];
        bool there = fsm_query_owner(fsm, asked->op.ns, asked->op.keys[i].key,
                                     fsm_clock_ms(fsm), view);
        if (!there || (asked->op.owner.base != NULL &&
                       !slice_equal(asked->op.owner, view->owner))) {
            *view = (struct lease_view){0};
        }
    }
    out_reply->leases = answer->leases;
    out_reply->lease_count = asked->op.key_count;
}

static void make_list(struct read_answer *answer, const struct fsm *fsm,
                      const struct proto_request *asked, struct proto_reply *out_reply)
{
    uint32_t limit = asked->limit == 0 || asked->limit > LIST_PAGE_MAX ? LIST_PAGE_MAX
                                                                       : asked->limit;
    make_room(answer, limit);
    struct page page = {.answer = answer, .limit = limit};
    struct fsm_filter filter = filter_of(asked);
    fsm_query_list(fsm, &filter, fsm_clock_ms(fsm), on_lease, &page);
    out_reply->leases = answer->leases;
    out_reply->lease_count = page.count;
    out_reply->more = page.more;
}

static bool on_lease(void *ctx, const struct lease_view *view)
{
    struct page *page = ctx;
    if (page->count == page->limit) {
        page->more = true;
        return false;
    }
    page->answer->leases[page->count++] = *view;
    return true;
}

static struct fsm_filter filter_of(const struct proto_request *asked)
{
    return (struct fsm_filter){
        .ns = asked->op.ns,
        .prefix = asked->prefix,
        .owner = asked->op.owner,
        .state = asked->state,
        .after = asked->after,
    };
}

static void make_room(struct read_answer *answer, uint32_t count)
{
    if (count > answer->cap) {
        struct lease_view *leases = realloc(answer->leases, count * sizeof *leases);
        CHECK(leases != NULL);
        answer->leases = leases;
        answer->cap = count;
    }
}
