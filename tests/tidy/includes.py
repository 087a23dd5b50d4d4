"""Who may include whom: the table of the architecture, as code.

A file belongs to the first row of OURS whose pattern it matches; it says which of our headers its
files may include. LIBRARIES says which files may include which third-party headers. The C
library is open to all but the pure files, which see no clock, no thread and no socket.
"""
import re

# Third-party headers and the only files that may include them.
LIBRARIES = [
    (r"msgpack(/.*)?\.h", r"fsm/\w*codec\.[ch]|fsm/(result|snapshot)\.c|client/protocol\w*\.c"
                          r"|node/gossip/packet\.c"),
    (r"raft(/.*)?\.h", r"raft/(?!replica\.h)\w+\.[ch]"),
    (r"uv\.h", r"raft/(disk|guard)\w*\.[ch]|node/.*"),
    (r"libconfig\.h", r"node/config\w*\.c"),
    (r"openssl/.*", r"node/tls\.c"),
    (r"sodium\.h", r"node/gossip/seal\.c"),
    (r"microhttpd\.h", r"node/http\.c"),
    (r"jansson\.h", r"client/cli/.*"),
]

# Files of node/ that decide and do nothing else.
NODE_PURE = (r"node/(config|request|router|waiters|watchers|roles|members|metrics|address)\w*\.[ch]"
             r"|node/(reads|holds|window|leadership|peer_frame)\.[ch]"
             r"|node/link_(frame|peers)\.[ch]"
             r"|node/gossip/(swim|suspicion|awareness|packet|seal)\.[ch]")
CLIENT_PURE = r"client/(session|holding|protocol)\w*\.[ch]"
RAFT_PURE = r"raft/(batch|cluster_clock|read_index|change_plan|message_codec)\.[ch]"

FREESTANDING = {"stdbool.h", "stddef.h", "stdint.h", "limits.h", "stdarg.h", "stdalign.h",
                "stdnoreturn.h", "float.h", "iso646.h", "string.h", "stdlib.h", "inttypes.h"}
# Headers that a pure file has no business with: clocks, threads, sockets, files.
IMPURE = re.compile(r"time\.h|sys/.*|netinet/.*|arpa/.*|pthread\.h|threads\.h|unistd\.h|poll\.h"
                    r"|fcntl\.h|signal\.h|netdb\.h")

PURE_NODE_SEES = r"fsm/base/\w+\.h|fsm/(types|command|result|changes)\.h|client/protocol\w*\.h"

# (files, our headers that they may include)
OURS = [
    (r"fsm/base/.*", r"fsm/base/.*"),
    (r"fsm/.*", r"fsm/.*"),
    (r"raft/replica\.h", r"fsm/.*"),
    (r"raft/.*", r"(raft|fsm)/.*"),
    (NODE_PURE, PURE_NODE_SEES + r"|node/transport\.h|" + NODE_PURE),
    # As pure; they read the table and the bytes of commands.
    (r"node/(read_answer|forwarder)\.[ch]",
     r"fsm/.*|client/protocol\w*\.h|node/(peer_frame|read_answer|forwarder)\.h"),
    (r"node/(dispatch\w*|node\w*)\.c", r"fsm/.*|node/.*|client/protocol\w*\.h|raft/replica\.h"),
    (r"node/(dispatch|node)_internal\.h", r"fsm/.*|node/.*|client/protocol\w*\.h|raft/replica\.h"),
    (r"node/(dispatch|node)\.h", r"fsm/.*|node/.*|client/protocol\w*\.h"),
    (r"node/.*", PURE_NODE_SEES + r"|node/.*"),
    (r"client/tenure(_admin)?\.h", r"tenure\.h"),  # beside it, where both are installed
    (r"client/cli/.*", r"client/tenure(_admin)?\.h|client/cli/.*"),
    (CLIENT_PURE, r"fsm/base/.*|fsm/types\.h|" + CLIENT_PURE),
    (r"client/.*", r"fsm/base/.*|fsm/types\.h|client/(?!cli/).*"),
    (r"tests/.*", r".*\.h"),
]


def _matches(pattern, path):
    return re.fullmatch(pattern, path) is not None


def _library_error(path, header):
    for library, users in LIBRARIES:
        if not _matches(library, header):
            continue
        if path.startswith("tests/"):
            return None
        if library == r"uv\.h" and _matches(NODE_PURE, path):
            return "a pure file may not include <uv.h>"
        if not _matches(users, path):
            return f"<{header}> belongs to other files"
    return None


def _system_error(path, header):
    if path.startswith("fsm/base/") and header not in FREESTANDING:
        return f"fsm/base may not include <{header}>"
    if path.startswith("fsm/") and header not in FREESTANDING and not header.startswith("msgpack"):
        return f"fsm may not include <{header}>"
    pure = "|".join((NODE_PURE, CLIENT_PURE, RAFT_PURE))
    if _matches(pure, path) and _matches(IMPURE.pattern, header):
        return f"a pure file may not include <{header}>"
    return None


def error_of(path, is_ours, header):
    """Why that file may not include that header, or None."""
    if not is_ours:
        return _library_error(path, header) or _system_error(path, header)
    for files, headers in OURS:
        if _matches(files, path):
            return None if _matches(headers, header) else f'may not include "{header}"'
    return None
