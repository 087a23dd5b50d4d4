/* A ring over the numbers above the mark; confirming the lowest one moves the mark over all that
 * follow it confirmed. */
#include "node/window.h"

#include "fsm/base/check.h"

_Static_assert((UNCONFIRMED_MAX & (UNCONFIRMED_MAX - 1)) == 0, "the ring's index is a mask");
_Static_assert(UNCONFIRMED_LEN_MAX <= UINT32_MAX, "a length fits its field");

void window_init(struct window *window)
{
    *window = (struct window){0};
}

bool window_fits(const struct window *window, uint64_t count, uint64_t len)
{
    return count <= UNCONFIRMED_MAX - (window->last - window->mark) && len <= UNCONFIRMED_LEN_MAX &&
           window->len <= UNCONFIRMED_LEN_MAX - len;
}

uint64_t window_take(struct window *window, uint64_t len)
{
    CHECK(window_fits(window, 1, len));
    window->last++;
    window->len += len;
    window->numbers[window->last % UNCONFIRMED_MAX].len = (uint32_t)len;
    window->numbers[window->last % UNCONFIRMED_MAX].confirmed = false;
    return window->last;
}

void window_confirm(struct window *window, uint64_t number)
{
    CHECK(number > window->mark && number <= window->last);
    CHECK(!window->numbers[number % UNCONFIRMED_MAX].confirmed);
    window->numbers[number % UNCONFIRMED_MAX].confirmed = true;
    while (window->mark < window->last &&
           window->numbers[(window->mark + 1) % UNCONFIRMED_MAX].confirmed) {
        window->mark++;
        window->len -= window->numbers[window->mark % UNCONFIRMED_MAX].len;
    }
    CHECK(window->mark < window->last || window->len == 0);
}
