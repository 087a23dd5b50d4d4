/* The file of the API's unix socket: made without a moment in which others could connect, never by
 * following a symbolic link, replacing only a dead socket of the same user, removed only while it
 * is still ours. Blocks, so only at start and stop. */
#ifndef NODE_API_SOCKET_H_
#define NODE_API_SOCKET_H_

#include "node/api.h"

#define API_SOCKET_PATH_LEN_MAX 107u /* sun_path less its NUL */
#define API_SOCKET_WHY_LEN 256u

struct api_socket {
    int fd; /* bound and listening */
    char path[API_SOCKET_PATH_LEN_MAX + 1];
    uint64_t device; /* of the file that we made */
    uint64_t inode;
};

/* STATUS_INVALID for a path that can't be used, STATUS_IN_USE when somebody answers there,
 * STATUS_IO; a sentence in out_why. Nothing is left behind on failure. */
NODISCARD enum status api_socket_bind(const struct api_config *config,
                                      struct api_socket *out_socket, char *out_why);

/* Remove the file if it is the one we made; the descriptor is the caller's. */
void api_socket_unlink(const struct api_socket *socket);

#endif
