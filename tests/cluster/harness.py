"""Real nodes as processes on loopback: start, kill, pause, cut, restart, ask.

A `Cluster` owns one folder with a data directory, a socket and a log per node, and every process
that it started; leaving its `with` block ends them by their ids. When a test fails the folder
stays and its name is printed, otherwise it is removed. No port is fixed: the kernel picks free
ones.

Deadlines in here are for hangs only; what a test measures it asserts itself.
"""
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

from api import Api, ApiError
from proxy import Proxy

READY_DEADLINE_S = 20.0


class TestFailure(Exception):
    """An expectation that did not hold."""


class Skip(Exception):
    """The case cannot run here, and why."""


def check(condition, text):
    """Fails the test with that text unless the condition holds."""
    if not condition:
        raise TestFailure(text)


def wait_until(condition, what, deadline_s=READY_DEADLINE_S, pause_s=0.01):
    """Polls until the condition gives something true and returns it; a hang fails the test."""
    end_s = time.monotonic() + deadline_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end_s:
            raise TestFailure(f"not within {deadline_s:.0f} s: {what}")
        time.sleep(pause_s)


def free_port():
    """A free TCP port of loopback below those that the kernel gives to outgoing connections.

    One of the kernel's own choice could be taken by a connection before the node listens, or
    while it is down.
    """
    with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as limits:
        first_of_kernel = int(limits.read().split()[0])
    while True:
        port = random.randrange(10000, max(first_of_kernel, 10001))
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port


class Node:
    """One `tenured`: its folder, its process, its command line."""

    def __init__(self, cluster, number):
        self.cluster = cluster
        self.number = number
        self.folder = os.path.join(cluster.folder, str(number))
        self.data = os.path.join(self.folder, "data")
        self.socket_path = os.path.join(self.folder, "api.sock")
        self.log_path = os.path.join(self.folder, "log")
        self.port = free_port()
        self.proxy = Proxy(self.port, cluster.source_of) if cluster.with_proxies else None
        self.process = None
        self.is_paused = False
        os.makedirs(self.data)

    @property
    def address(self):
        """Where the other nodes are told to find it."""
        return f"127.0.0.1:{self.proxy.port if self.proxy else self.port}"

    def command(self, join):
        arguments = [self.cluster.program("tenured"), "--data", self.data,
                     "--socket", self.socket_path, "--listen", f"127.0.0.1:{self.port}",
                     "--advertise", self.address]
        if join:
            arguments += ["--join", join]
        return arguments + self.cluster.options

    def start(self, join=None):
        check(self.process is None, f"node {self.number} runs already")
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(self.command(join), stdout=log, stderr=log,
                                            stdin=subprocess.DEVNULL)

    def kill(self):
        """kill -9; the kernel has closed its sockets when this returns."""
        self.process.send_signal(signal.SIGKILL)
        self._reap()

    def pause(self):
        self.process.send_signal(signal.SIGSTOP)
        self.is_paused = True

    def resume(self):
        self.process.send_signal(signal.SIGCONT)
        self.is_paused = False

    def stop(self, deadline_s=10.0):
        """SIGTERM; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(deadline_s)
        except subprocess.TimeoutExpired as error:
            raise TestFailure(f"node {self.number} ignores SIGTERM") from error
        self.process = None
        return code

    def _reap(self):
        self.process.wait()
        self.process = None
        self.is_paused = False

    def end(self):
        if self.process:
            self.process.kill()
            self._reap()
        if self.proxy:
            self.proxy.close()

    def is_up(self):
        return self.process is not None and not self.is_paused

    def api(self, timeout_s=10.0):
        return Api(self.socket_path, timeout_s)

    def status(self):
        """The status map, or None while nobody answers."""
        try:
            with self.api(2.0) as api:
                return api.status()
        except ApiError:
            return None

    def is_ready(self):
        status = self.status()
        return bool(status and status.get("ready"))

    def tail(self, lines=15):
        """The end of its log, or the beginning of what a sanitizer has found."""
        with contextlib.suppress(OSError), open(self.log_path, encoding="utf-8",
                                                errors="replace") as log:
            said = log.readlines()
            for number, line in enumerate(said):
                if "runtime error:" in line or "Sanitizer:" in line:
                    return "".join(said[number:number + 4 * lines])
            return "".join(said[-lines:])
        return ""


class Cluster:
    """`count` nodes that are ready when the `with` block is entered."""

    def __init__(self, count=3, options=(), with_proxies=False, ready=True):
        self.build = os.environ["TENURE_BUILD"]
        self.options = list(options)
        self.with_proxies = with_proxies
        self.wants_ready = ready
        self.folder = tempfile.mkdtemp(prefix="tenure-", dir=os.environ.get("TMPDIR", "/var/tmp"))
        self.nodes = [Node(self, number) for number in range(1, count + 1)]

    def __enter__(self):
        try:
            if self.wants_ready:
                self.start()
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise
        return self

    def __exit__(self, kind, *_):
        for node in self.nodes:
            with contextlib.suppress(OSError):
                node.end()
        if kind is None or issubclass(kind, Skip):
            shutil.rmtree(self.folder, ignore_errors=True)
            return
        print(f"    everything is kept in {self.folder}")
        for node in self.nodes:
            print(f"    --- last lines of node {node.number}\n{node.tail()}", end="")

    def program(self, name):
        return os.path.join(self.build, name)

    def source_of(self, port):
        """The number of the node whose process holds that local port, or None; for proxies."""
        inode = _inode_of_port(port)
        for node in self.nodes:
            if node.process and inode in _socket_inodes(node.process.pid):
                return node.number
        return None

    def cli(self, node, *arguments, deadline_s=30.0, text=None):
        """Runs `tenure` on that node's socket; returns (exit code, standard output, error)."""
        done = subprocess.run(
            [self.program("tenure"), *arguments, "--socket", node.socket_path],
            capture_output=True, text=True, timeout=deadline_s, input=text, check=False)
        return done.returncode, done.stdout, done.stderr

    def cli_json(self, node, *arguments, **keywords):
        """(exit code, parsed standard output) of a command with --json."""
        code, out, err = self.cli(node, *arguments, "--json", **keywords)
        try:
            return code, json.loads(out)
        except ValueError as error:
            raise TestFailure(f"tenure {' '.join(arguments)[:200]}: exit {code}, no JSON: "
                              f"{out[:300]!r} {err[:300]!r}") from error

    def start(self, nodes=None):
        """First start: the first one makes the cluster, the others join, all become voters."""
        first, *others = nodes or self.nodes
        first.start()
        wait_until(first.status, f"node {first.number} answers")
        code, out, err = self.cli(first, "cluster", "init")
        check(code == 0, f"cluster init: exit {code}: {out}{err}")
        for node in others:
            node.start(join=first.address)
        self.wait_ready([first, *others])
        voters = min(1 + len(others), 3)
        wait_until(lambda: self.count_voters() == voters, f"{voters} voters")

    def wait_ready(self, nodes=None, deadline_s=READY_DEADLINE_S):
        for node in nodes or self.nodes:
            wait_until(node.is_ready, f"node {node.number} is ready", deadline_s)

    def restart(self, node):
        """Starts a node that was there before, and waits until it serves."""
        node.start()
        self.wait_ready([node])

    def up(self):
        return [node for node in self.nodes if node.is_up()]

    def count_voters(self):
        status = self.up()[0].status()
        return status["voters"] if status else 0

    def _who_leads(self):
        """The node that says that it leads, if exactly one says so in the highest term."""
        leading = {}
        for node in self.up():
            status = node.status()
            if status and status["state"] == "leader":
                leading[status["term"]] = node
        return leading[max(leading)] if leading else None

    def leader(self, deadline_s=READY_DEADLINE_S):
        return wait_until(self._who_leads, "a leader", deadline_s)

    def followers(self):
        leader = self.leader()
        return [node for node in self.up() if node is not leader]

    def digests(self):
        """(index, digest) of every node that is up, at one index; they must be equal (P10)."""
        def same():
            seen = [node.status() for node in self.up()]
            if not all(seen) or len({status["digest_index"] for status in seen}) != 1:
                return None
            return [(status["digest_index"], status["digest"]) for status in seen]
        digests = wait_until(same, "all nodes at one index")
        check(len({digest for _, digest in digests}) == 1, f"digests differ: {digests}")
        return digests


def _inode_of_port(port):
    """The inode of the TCP socket with that local port of loopback."""
    wanted = f"0100007F:{port:04X}"
    with open("/proc/net/tcp", encoding="ascii") as table:
        for line in table:
            columns = line.split()
            if columns[1] == wanted and columns[3] == "01":
                return columns[9]
    return None


def _socket_inodes(pid):
    """The inodes of all sockets that a process holds."""
    inodes = set()
    folder = f"/proc/{pid}/fd"
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):
                target = os.readlink(f"{folder}/{name}")
                if target.startswith("socket:["):
                    inodes.add(target[8:-1])
    return inodes
