/* The numbers of one origin that are not confirmed yet, and its confirmed mark.
 *
 * A node numbers what it submits from 1. The state machine keeps the outcome of every number above
 * the mark, so the window counts all of them, also those that are confirmed while a lower one is
 * not: at most UNCONFIRMED_MAX numbers and UNCONFIRMED_LEN_MAX bytes of largest outcomes. The mark
 * is the largest number up to which all are confirmed; it only grows. Pure. */
#ifndef NODE_WINDOW_H_
#define NODE_WINDOW_H_

#include "fsm/types.h"

struct window {
    uint64_t mark; /* every number up to this one is confirmed */
    uint64_t last; /* the last number given; mark <= last <= mark + UNCONFIRMED_MAX */
    uint64_t len;  /* bytes of largest outcomes of mark + 1 .. last */
    struct {
        uint32_t len;
        bool confirmed;
    } numbers[UNCONFIRMED_MAX]; /* a ring by number */
};

void window_init(struct window *window);

/* True when `count` more numbers with `len` bytes of outcomes in all fit. */
bool window_fits(const struct window *window, uint64_t count, uint64_t len);

/* The next number, for a command whose result has at most `len` bytes. It must fit (CHECK). */
uint64_t window_take(struct window *window, uint64_t len);

/* The number is confirmed: its reply was wholly written, it is settled, or it was never sent. Each
 * number above the mark once (CHECK). */
void window_confirm(struct window *window, uint64_t number);

#endif
