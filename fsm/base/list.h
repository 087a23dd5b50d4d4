/* Intrusive doubly linked list: the links live in the element, so linking never allocates.
 *
 * A head is a link whose two ends point at itself. An element that is in no list has been
 * initialised with list_init or taken out with list_remove. */
#ifndef FSM_BASE_LIST_H_
#define FSM_BASE_LIST_H_

#include <stdbool.h>
#include <stddef.h>

#include "fsm/base/check.h"

struct list {
    struct list *prev;
    struct list *next;
};

/* The element that contains `link` as its member. */
#define CONTAINER_OF(link, type, member) \
    ((type *)(void *)((char *)(link) - offsetof(type, member)))

/* The same where link and element are only looked at. */
#define CONTAINER_OF_CONST(link, type, member) \
    ((const type *)(const void *)((const char *)(link) - offsetof(type, member)))

static inline void list_init(struct list *link)
{
    link->prev = link;
    link->next = link;
}

static inline bool list_empty(const struct list *head)
{
    return head->next == head;
}

/* True when the element is in some list. */
static inline bool list_linked(const struct list *link)
{
    return link->next != link;
}

static inline void list_append(struct list *head, struct list *link)
{
    CHECK(!list_linked(link));
    link->prev = head->prev;
    link->next = head;
    head->prev->next = link;
    head->prev = link;
}

static inline void list_prepend(struct list *head, struct list *link)
{
    list_append(head->next, link);
}

/* Out of whatever list it is in; harmless for an element that is in none. */
static inline void list_remove(struct list *link)
{
    link->prev->next = link->next;
    link->next->prev = link->prev;
    list_init(link);
}

/* First link, or NULL. */
static inline struct list *list_first(const struct list *head)
{
    return list_empty(head) ? NULL : head->next;
}

/* Take the first link out and return it, or NULL. */
static inline struct list *list_pop(struct list *head)
{
    struct list *link = list_first(head);
    if (link != NULL) {
        list_remove(link);
    }
    return link;
}

/* `link` and `after` are struct list pointers; the body may remove `link`. */
#define LIST_FOR_EACH(link, after, head)                                     \
    for ((link) = (head)->next, (after) = (link)->next; (link) != (head); \
         (link) = (after), (after) = (link)->next)

#endif
