"""Hostile bytes on both sockets of a real node: it serves on, keeps nothing, rests (I1, I9)."""
import contextlib
import os
import random
import select
import socket
import struct
import time

import msgpack

from api import Api
from harness import Cluster, check, wait_until
from peer import frame, hello, link_to

BAD = 200
GROWTH_KIB = 64  # for each bad connection
SEED = 20


def rss_kib(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))


def judge_memory(node, kib, kib_max, what):
    """A sanitizer keeps what is freed for a while; with one, only that the node lives is judged."""
    with open(f"/proc/{node.process.pid}/maps", encoding="ascii") as maps:
        sanitized = "libasan" in maps.read()
    check(sanitized or kib < kib_max, f"{kib} KiB for {what}, at most {kib_max}")


def cpu_s(pid):
    """Processor time that the process has used."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
        columns = stat.read().rsplit(")", 1)[1].split()
    return (int(columns[11]) + int(columns[12])) / os.sysconf("SC_CLK_TCK")


class Target:
    """One of the node's two sockets."""

    def __init__(self, family, address):
        self.family = family
        self.address = address

    def connect(self):
        connection = socket.socket(self.family, socket.SOCK_STREAM)
        connection.settimeout(5.0)
        connection.connect(self.address)
        return connection

    def say(self, data):
        """Connects and says that; the connection stays open as far as the node lets it."""
        connection = self.connect()
        with contextlib.suppress(OSError):
            connection.sendall(data)
        return connection


def noise(rng, length):
    return bytes(rng.getrandbits(8) for _ in range(length))


def peer_port_phrases(rng):
    """What no peer says; every one of them ends the connection, or is too short to."""
    foreign = hello(noise(rng, 16), 99)
    return [
        noise(rng, 1), noise(rng, 300), noise(rng, 3000), b"GET / HTTP/1.1\r\n\r\n",
        struct.pack("<IBBH", 0xFFFFFFFF, 1, 0, 0), struct.pack("<IBBH", 0xFFFFFFFF, 16, 0, 0),
        struct.pack("<IBBH", 1 << 20, 16, 0, 0) + noise(rng, 5000),  # before any greeting
        struct.pack("<IBBH", 1023, 1, 0, 0) + noise(rng, 1000),
        foreign, foreign[:len(foreign) // 2], foreign[:9], foreign + foreign,
        hello(bytes(16), 0)[:-1], frame(1, b""), frame(4, b""), frame(0, b"x"), frame(255, b"x"),
    ]


def api_phrases(rng):
    head = b"\x94\x00\x01\xa1m"
    return [
        noise(rng, 1), noise(rng, 300), noise(rng, 3000), b"GET / HTTP/1.1\r\n\r\n",
        b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff",
        head + b"\x81\xa1p\xc6\x00\x7f\xff\x00", head + b"\xdf\xff\xff\xff\xff",
        head + b"\x91" * 10000, head, b"\x94", b"\xc1",
        msgpack.packb([0, 1, "take", {"key": "k", "owner": "o", "ttl_ms": 10}])[:-3],
        msgpack.packb([1, 1, None, None]), msgpack.packb([0, 1, "nonsense", {}]),
    ]


def serves(node):
    with node.api() as api:
        reply = api.take("box", owner="a", ttl_ms=60000)
    check(reply["outcome"] == "GRANTED", f"take: {reply}")


def is_ended(connection):
    """The other end has closed it."""
    with contextlib.suppress(BlockingIOError):
        try:
            while True:
                if not connection.recv(65536, socket.MSG_DONTWAIT):
                    return True
        except ConnectionError:
            return True
    return False


def rests(node):
    """Under a twentieth of a core over a second."""
    def rested():
        before = cpu_s(node.process.pid)
        time.sleep(1.0)
        return cpu_s(node.process.pid) - before < 0.05
    wait_until(rested, f"node {node.number} comes to rest")


def bombard(node, target, phrases):
    """Says all of it, some in one go and some byte by byte; returns KiB of growth for each."""
    rng = random.Random(SEED)
    for phrase in phrases(rng):  # what the first ones cost once is no matter
        target.say(phrase).close()
    serves(node)
    before_kib = rss_kib(node.process.pid)
    said = [target.say(phrase) for phrase in
            (phrases(rng) * (BAD // len(phrases(rng)) + 1))[:BAD]]
    drips = [(target.connect(), phrase) for phrase in phrases(rng)]
    for at in range(20):
        for connection, phrase in drips:
            with contextlib.suppress(OSError):
                connection.sendall(phrase[at:at + 1])
    serves(node)
    growth_kib = rss_kib(node.process.pid) - before_kib
    count = len(said) + len(drips)
    judge_memory(node, growth_kib, GROWTH_KIB * count, f"{count} bad connections")
    check(any(is_ended(connection) for connection in said), "bad connections are closed")
    for connection in said + [connection for connection, _ in drips]:
        connection.close()
    serves(node)
    rests(node)
    return growth_kib / count


def bad_member(node):
    """Has a link, as a node of this very cluster, and says nonsense in frames of every type."""
    for kind in range(256):
        with link_to(node, 1000 + kind % 8) as connection:  # few: the node will look for them
            for length in (0, 1, 40):
                with contextlib.suppress(OSError):
                    connection.sendall(frame(kind, b"\xff" * length))
    serves(node)
    rests(node)


def unread_replies(node):
    """I9: a caller that reads nothing holds up the writes of others for seconds, not for good."""
    api = Api(node.socket_path)
    # Small enough for none to be refused, many enough to fill the socket and every number there is.
    api.socket.settimeout(0.2)
    request = msgpack.packb([0, 1, "take", {"key": "k" * 512, "owner": "o" * 200,
                                            "ttl_ms": 60000, "namespace": "unread"}])
    sent = 0
    with contextlib.suppress(OSError):
        while sent < 40000:
            api.socket.sendall(request)
            sent += 1
    began_s = time.monotonic()
    with node.api(20.0) as other:
        other.retry(lambda: other.take("box", owner="a", ttl_ms=60000))
    held_s = time.monotonic() - began_s
    check(held_s < 12.0, f"held up for {held_s:.1f} s")

    def is_gone():
        with node.api() as other:
            return other.result("metrics")["fields"]["tenure_api_connections_unread_total"] == 1
    wait_until(is_gone, "the one that reads nothing is closed")
    api.close()
    serves(node)
    return held_s


def hoarded_requests(node):
    """What waits to be answered is bounded: 80 requests of 4.5 MB each at once."""
    before_kib = rss_kib(node.process.pid)
    keys = [f"{number:05d}" + "k" * 440 for number in range(10000)]
    request = msgpack.packb([0, 1, "renew", {"keys": keys, "owner": "o", "ttl_ms": 60000}])
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(node.socket_path)
    connection.setblocking(False)
    left = memoryview(request * 80)
    most_kib = 0
    end_s = time.monotonic() + 20.0
    while left and time.monotonic() < end_s:
        readable, writable, _ = select.select([connection], [connection], [], 0.1)
        if readable:
            connection.recv(1 << 20)
        if writable:
            left = left[connection.send(left[:1 << 18]):]
        most_kib = max(most_kib, rss_kib(node.process.pid) - before_kib)
    connection.close()
    # Input and calls: 64 MiB each, and what is being carried out.
    judge_memory(node, most_kib, 250 * 1024, "requests that wait")
    serves(node)
    return most_kib / 1024


def case_hostile(_rounds):
    """Random bytes, huge lengths, half a HELLO, a foreign cluster, drips, unread replies."""
    with Cluster(1) as cluster:
        node = cluster.nodes[0]
        peer = Target(socket.AF_INET, ("127.0.0.1", node.port))
        local = Target(socket.AF_UNIX, node.socket_path)
        peer_kib = bombard(node, peer, peer_port_phrases)
        api_kib = bombard(node, local, api_phrases)
        bad_member(node)
        held_s = unread_replies(node)
        most_mib = hoarded_requests(node)
        rests(node)
        check(node.stop() == 0, "stops in order")
    return (f"{peer_kib:.1f} KiB for a bad peer, {api_kib:.1f} for a bad caller; an unread caller "
            f"holds for {held_s:.1f} s; requests keep {most_mib:.0f} MiB")
