/* A handful at most: lists, searched from the front. */
#include "fsm/marks.h"

#include <stdlib.h>

#include "fsm/digest.h"

static struct lease *first_lease(const struct mark *mark);
static struct mark *first_reaching(const struct list *head, bool of_owner, uint64_t token);
static struct mark *last_of_space(const struct space *space);
static void mark_free(struct marks *marks, struct mark *mark);

void marks_init(struct marks *marks)
{
    *marks = (struct marks){0};
    list_init(&marks->all);
}

void marks_deinit(struct marks *marks)
{
    struct list *link;
    while ((link = list_first(&marks->all)) != NULL) {
        mark_free(marks, CONTAINER_OF(link, struct mark, link));
    }
}

void marks_set(struct marks *marks, const struct mark_scope *scope)
{
    CHECK(scope->remaining > 0);
    struct mark *mark = calloc(1, sizeof *mark);
    CHECK(mark != NULL);
    mark->space = scope->space;
    mark->owner = scope->owner;
    mark->upto = scope->upto;
    mark->set_ms = scope->set_ms;
    mark->remaining = scope->remaining;
    list_init(&mark->link);
    list_init(&mark->space_link);
    list_init(&mark->owner_link);
    list_append(&marks->all, &mark->link);
    list_append(&mark->space->marks, &mark->space_link);
    if (mark->owner != NULL) {
        list_append(&mark->owner->marks, &mark->owner_link);
        mark->owner->mark_upto = mark->upto;
    } else {
        mark->space->purge_upto = mark->upto;
    }
    mark->space->marked += mark->remaining;
    marks->count++;
    marks->digest += mark_digest(mark);
}

/* Marks were set in the order of their tokens, so of the two that reach the lease the one with the
 * smaller token ended it. */
struct mark *mark_of(const struct lease *lease)
{
    struct mark *purge = NULL;
    struct mark *release = NULL;
    if (lease->token <= lease->space->purge_upto) {
        purge = first_reaching(&lease->space->marks, false, lease->token);
    }
    if (lease->state == LEASE_STATE_OWN && lease->token <= lease->owner->mark_upto) {
        release = first_reaching(&lease->owner->marks, true, lease->token);
    }
    if (purge == NULL || release == NULL) {
        return purge != NULL ? purge : release;
    }
    return purge->upto < release->upto ? purge : release;
}

void mark_lease_gone(struct marks *marks, struct mark *mark)
{
    CHECK(mark->remaining > 0 && mark->space->marked > 0);
    mark->remaining--;
    mark->space->marked--;
    if (mark->remaining == 0) {
        mark_free(marks, mark);
    }
}

const struct mark *marks_first(const struct marks *marks)
{
    struct list *link = list_first(&marks->all);
    return link == NULL ? NULL : CONTAINER_OF(link, struct mark, link);
}

struct lease *marks_first_lease(const struct marks *marks)
{
    const struct mark *mark = marks_first(marks);
    return mark == NULL ? NULL : first_lease(mark);
}

struct lease *space_first_marked(const struct space *space)
{
    struct list *link = list_first(&space->marks);
    return link == NULL ? NULL : first_lease(CONTAINER_OF(link, struct mark, space_link));
}

/* What remains under it follows from the leases. */
uint64_t mark_digest(const struct mark *mark)
{
    uint64_t digest = digest_slice(DIGEST_SEED_MARK, space_name(mark->space));
    digest = digest_slice(digest,
                          mark->owner == NULL ? slice_from(NULL, 0) : owner_name(mark->owner));
    uint64_t numbers[] = {mark->upto, mark->set_ms};
    return digest_numbers(digest, numbers, sizeof numbers / sizeof numbers[0]);
}

/* What was granted before a mark stands before what was granted later. */
static struct lease *first_lease(const struct mark *mark)
{
    bool purge = mark->owner == NULL;
    struct list *link = list_first(purge ? &mark->space->by_token : &mark->owner->own);
    CHECK(link != NULL);
    return purge ? CONTAINER_OF(link, struct lease, token_link)
                 : CONTAINER_OF(link, struct lease, owner_link);
}

static struct mark *first_reaching(const struct list *head, bool of_owner, uint64_t token)
{
    for (struct list *link = head->next; link != head; link = link->next) {
        struct mark *mark = of_owner ? CONTAINER_OF(link, struct mark, owner_link)
                                     : CONTAINER_OF(link, struct mark, space_link);
        if (mark->upto >= token && (of_owner || mark->owner == NULL)) {
            return mark;
        }
    }
    return NULL;
}

/* The last purge of the namespace whose leases are not all removed, or NULL. */
static struct mark *last_of_space(const struct space *space)
{
    for (struct list *link = space->marks.prev; link != &space->marks; link = link->prev) {
        struct mark *mark = CONTAINER_OF(link, struct mark, space_link);
        if (mark->owner == NULL) {
            return mark;
        }
    }
    return NULL;
}

/* The tokens up to which leases are under a mark follow from the marks that are left: a replica
 * that loads a snapshot must compute the same. */
static void mark_free(struct marks *marks, struct mark *mark)
{
    struct space *space = mark->space;
    struct owner *owner = mark->owner;
    marks->count--;
    marks->digest -= mark_digest(mark);
    list_remove(&mark->link);
    list_remove(&mark->space_link);
    list_remove(&mark->owner_link);
    free(mark);
    if (owner == NULL) {
        struct mark *last = last_of_space(space);
        space->purge_upto = last == NULL ? 0 : last->upto;
    } else {
        owner->mark_upto = list_empty(&owner->marks)
                               ? 0
                               : CONTAINER_OF(owner->marks.prev, struct mark, owner_link)->upto;
    }
}
