"""The founding of a cluster on a node that is killed, or whose disk hangs, in the middle of it.

What was asked for is what the cluster has, from whichever point the next start goes on, although
that start is configured for something else; or nothing was founded, and asking again does it.
"""
import os
import signal
import time

from api import ApiError
from harness import Cluster, check, wait_until

OPTIONS = ["--reserve", "1MiB", "--log-level", "info"]
VOTERS = 5  # the configuration says 3
TOKEN_FLOOR = 1 << 60  # far above the wall clock's, which counts at a later start where it is more
TOKEN_FLOOR_LOW = 123_456_789  # far below it
FOUNDERS_MAX = 64  # that wait at once
POINTS_MAX = 400  # more than a founding has


def start_trapped(cluster, node, **traps):
    """Starts the node with something between it and its disk; see disk_trap.c."""
    before = dict(os.environ)
    os.environ.update(
        LD_PRELOAD=cluster.program("disk_trap.so"),
        ASAN_OPTIONS=f"{before.get('ASAN_OPTIONS', '')}:verify_asan_link_order=0",
        **{name: str(value) for name, value in traps.items()})
    try:
        node.start()
    finally:
        os.environ.clear()
        os.environ.update(before)
    wait_until(node.status, "the node answers")


def found(node, deadline_ms=5000):
    """The reply to a founding: its named values; raises ApiError."""
    with node.api() as api:
        return api.result("cluster_init", voters=VOTERS, token_floor=TOKEN_FLOOR,
                          deadline_ms=deadline_ms)["fields"]


def expect_as_asked(node, cluster_id=None):
    """The cluster is there, and as it was asked for; asking again changes nothing."""
    wait_until(node.is_ready, "the node is ready")
    status = node.status()
    has = status["voters_designed"], status["token"]
    check(has == (VOTERS, TOKEN_FLOOR), f"voters and token {has}: {node.tail()}")
    again = found(node)
    check(again["cluster_id"] == status["cluster_id"] == (cluster_id or status["cluster_id"]),
          f"{again} after {cluster_id}: {status}")


def lines_of(node, event):
    with open(node.log_path, encoding="utf-8") as log:
        return sum(f"event={event} " in line for line in log)


def killed_at(point):
    """One founding that is killed there. True when the node outlived its answer instead."""
    with Cluster(1, options=OPTIONS, ready=False) as cluster:
        node = cluster.nodes[0]
        start_trapped(cluster, node, TRAP_KILL_AT=point)
        cluster_id = None
        try:
            cluster_id = found(node)["cluster_id"]
        except ApiError as error:
            check(error.code == "CONNECTION", f"point {point}: {error}: {node.tail()}")
        lived = cluster_id is not None and node.status() is not None
        node.kill()
        begun = lines_of(node, "cluster_founding")
        node.start()
        wait_until(node.status, "the node answers again")
        if node.status()["cluster_id"] == "":
            check(cluster_id is None, f"point {point}: a founding that was answered is lost")
            found(node)
        elif cluster_id is not None:
            check(lines_of(node, "cluster_founding") == begun,
                  f"point {point}: the answer came before the birth was on disk: {node.tail()}")
        expect_as_asked(node, cluster_id)
        check(node.stop() == 0, "stops")
    return lived


def hanging_disk():
    """The answer waits for the disk, and says at the deadline that nobody knows."""
    with Cluster(1, options=OPTIONS, ready=False) as cluster:
        node = cluster.nodes[0]
        start_trapped(cluster, node, TRAP_LOSE_LOG=1)
        try:
            reply = found(node, deadline_ms=500)
        except ApiError as error:
            check(error.code == "UNKNOWN" and "founding" in str(error), f"{error.names}")
        else:
            check(False, f"answered although nothing is on disk: {reply}")
        with node.api() as api:
            for _ in range(FOUNDERS_MAX + 1):  # one is waited for already
                api.send("cluster_init", voters=VOTERS, token_floor=TOKEN_FLOOR)
            for _ in range(2):
                _, reply = api.receive()
                check(reply.error and reply.error.code == "UNAVAILABLE" and
                      str(FOUNDERS_MAX) in str(reply.error), f"{reply.error}: {node.tail()}")
        check(lines_of(node, "cluster_born") == 0, f"not born yet: {node.tail()}")
        code = node.process.wait(20.0)  # the watchdog of the disk
        node.process = None
        check(code == 4, f"exit {code}: {node.tail()}")
        node.start()
        expect_as_asked(node)
        check(lines_of(node, "cluster_born") == 1, f"born once: {node.tail()}")


def stopped_meanwhile():
    """A node that is told to stop says so to whoever waits, and its next start goes on."""
    with Cluster(1, options=OPTIONS, ready=False) as cluster:
        node = cluster.nodes[0]
        start_trapped(cluster, node, TRAP_LOSE_LOG=1)
        with node.api() as api, node.api() as other, node.api() as late:
            api.send("cluster_init", voters=VOTERS, token_floor=TOKEN_FLOOR_LOW)
            wait_until(lambda: lines_of(node, "cluster_founding"), "it begins", pause_s=0.001)
            # Something that waits for the leader, so that the node drains for a while.
            other.send("take", namespace="n", owner="o", key="k", ttl_ms=10_000, deadline_ms=20_000)
            other.send("status")
            other.receive()
            node.process.send_signal(signal.SIGTERM)
            wait_until(lambda: lines_of(node, "signal"), "it stops", pause_s=0.001)
            late.send("cluster_init", voters=VOTERS, token_floor=TOKEN_FLOOR)
            for name, asked in (("who asked first", api), ("who asked while it stops", late)):
                _, reply = asked.receive()
                check(reply.error and reply.error.code == "UNKNOWN",
                      f"{name}: {reply.error}: {node.tail()}")
        node.kill()  # libraft waits for its write, which has no end here
        by_wall_clock = time.time_ns() // 1_000_000 * 1024
        node.start()
        wait_until(node.is_ready, "the node is ready")
        status = node.status()
        check(status["voters_designed"] == VOTERS and status["token"] >= by_wall_clock,
              f"{status}: {node.tail()}")


def case_founding(rounds):
    """A founding that is killed at each of its writes, or hangs, ends as it was asked for."""
    hanging_disk()
    stopped_meanwhile()
    points = 0
    for _ in range(rounds):
        points = next((point for point in range(1, POINTS_MAX) if killed_at(point)), POINTS_MAX)
        check(10 < points < POINTS_MAX, f"{points} points: the trap does not see the disk")
    return f"killed at each of {points - 1} points"
