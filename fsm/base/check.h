/* CHECK: a condition that only a bug of ours can break.
 *
 * It stays on in release builds: a replica that goes on after a broken invariant hands out leases
 * that nobody can trust, while one that dies is an outage of one node. Never use it on bytes that
 * came from a client, a peer or a disk; those yield an enum status. */
#ifndef FSM_BASE_CHECK_H_
#define FSM_BASE_CHECK_H_

#define CHECK(condition)                           \
    do {                                           \
        if (__builtin_expect(!(condition), 0)) {   \
            __builtin_trap();                      \
        }                                          \
    } while (0)

#define NODISCARD __attribute__((warn_unused_result))

#endif
