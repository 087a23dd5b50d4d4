"""The peer port as a stranger sees it: frames, a greeting, and a link that came up.

Written from the layouts in node/link_frame.h and node/peer_frame.c.
"""
import os
import socket
import struct

from harness import check

HELLO, WELCOME, PEERS = 1, 2, 24
ADDRESS = b"127.0.0.1:1"  # where nobody listens


def frame(kind, payload):
    """The header, and what follows."""
    return struct.pack("<IBBH", len(payload), kind, 0, 0) + payload


def hello(cluster_id, node_id, generation=1, generation_random=0):
    return frame(HELLO, b"TNRL" + struct.pack("<HH", 1, 1) + cluster_id +
                 struct.pack("<QQQQB", generation, generation_random, node_id, 7, len(ADDRESS)) +
                 ADDRESS)


def peers(ids):
    """PEERS: that these are where nobody listens; roles unknown."""
    one = b"".join(struct.pack("<QBB", node_id, 0, len(ADDRESS)) + ADDRESS for node_id in ids)
    return frame(PEERS, struct.pack("<H", len(ids)) + one)


def connect(node):
    return socket.create_connection(("127.0.0.1", node.port), timeout=5.0)


def link_to(node, node_id):
    """A link that is up: this node's own cluster, read from its disk, and an id that nobody has."""
    with open(os.path.join(node.data, "identity"), encoding="ascii") as file:
        names = dict(line.strip().split("=") for line in file)
    connection = connect(node)
    connection.sendall(hello(bytes.fromhex(names["cluster_id"]), node_id,
                             int(names["generation"]), int(names["generation_random"], 16)))
    header = connection.recv(8, socket.MSG_WAITALL)
    check(len(header) == 8 and header[4] == WELCOME, f"WELCOME expected: {header!r}")
    return connection
