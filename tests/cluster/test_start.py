"""What keeps a node from starting, and what a start, a stop and a join say: X5, U3, exit codes."""
import contextlib
import hashlib
import os
import shutil
import signal
import socket
import struct
import subprocess
import time

from harness import Cluster, check, wait_until
from peer import link_to, peers

NOBODY = 65534
SMALL = ["--reserve", "1MiB", "--snapshot-entries", "64"]


def run_node(cluster, options, **keywords):
    """(exit code, lines) of a `tenured` that is expected to end by itself."""
    done = subprocess.run([cluster.program("tenured"), *options], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=20, check=False, **keywords)
    return done.returncode, done.stdout.splitlines()


def expect_refusal(cluster, options, code, words, **keywords):
    """It ends with that code and exactly one line, which has all the words."""
    ended, lines = run_node(cluster, options, **keywords)
    what = f"{' '.join(options)[:300]}: exit {ended}: {lines}"
    check(ended == code, f"exit {code} expected of {what}")
    check(len(lines) == 1, f"one line expected of {what}")
    for word in words:
        check(word in lines[0], f"{word!r} expected of {what}")


class Place:
    """A folder for nodes that shall not start, and the options that would start one."""

    def __init__(self, cluster):
        self.folder = os.path.join(cluster.folder, "refused")
        os.mkdir(self.folder)

    def path(self, name):
        return os.path.join(self.folder, name)

    def options(self, **changed):
        values = {"data": self.path("data"), "socket": self.path("api.sock"),
                  "listen": "127.0.0.1:0", "reserve": "1MiB", **changed}
        return [word for name, value in values.items() for word in (f"--{name}", value)]


def refused_directories(cluster, place):
    running = cluster.nodes[0]
    missing = place.path("nowhere/data")
    expect_refusal(cluster, place.options(data=missing), 3, [missing, "No such file or directory"])
    expect_refusal(cluster, place.options(data=running.data), 3,
                   [f"in use by pid {running.process.pid}", running.data])
    plain = place.path("plain")
    with open(plain, "wb"):
        pass
    expect_refusal(cluster, place.options(data=plain), 3, [plain])
    closed = place.path("closed")
    os.mkdir(closed, 0o500)
    who = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
    for folder in (cluster.folder, place.folder):
        os.chmod(folder, 0o755)
    with contextlib.suppress(PermissionError):  # the build may be in a folder closed to nobody
        for data in (closed, os.path.join(closed, "data")):
            expect_refusal(cluster, place.options(data=data), 3, [data, "Permission denied"], **who)
    os.rmdir(closed)


def refused_sockets(cluster, place):
    """X5: whatever is at the socket's path stays as it was."""
    running = cluster.nodes[0]
    long = place.path("x" * 108)
    expect_refusal(cluster, place.options(socket=long), 2, ["socket", "1..107 bytes"])
    victim = place.path("victim")
    with open(victim, "w", encoding="ascii") as file:
        file.write("precious")
    link = place.path("link")
    for target in (victim, running.socket_path, place.path("absent")):
        os.symlink(target, link)
        expect_refusal(cluster, place.options(socket=link), 2, [link, "symbolic link"])
        check(os.readlink(link) == target, "the link stays")
        os.unlink(link)
    expect_refusal(cluster, place.options(socket=victim), 2, [victim, "no socket"])
    with open(victim, encoding="ascii") as file:
        check(file.read() == "precious", "the file stays")
    check(not os.path.exists(place.path("absent")), "nothing is made behind a link")
    expect_refusal(cluster, place.options(socket=running.socket_path), 2,
                   [running.socket_path, "another process listens there"])
    missing = place.path("nowhere/api.sock")
    expect_refusal(cluster, place.options(socket=missing), 2, [place.path("nowhere")])
    open_to_all = place.path("open")
    os.mkdir(open_to_all)
    os.chmod(open_to_all, 0o777)
    expect_refusal(cluster, place.options(socket=os.path.join(open_to_all, "api.sock")), 2,
                   [open_to_all, "everybody"])
    expect_refusal(cluster, place.options(**{"socket-group": "no-such-group"}), 2,
                   ["no-such-group"])
    check(running.is_ready(), "the one that runs serves on")


def refused_addresses(cluster, place):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        expect_refusal(cluster, place.options(listen=address), 2,
                       [address, "address already in use"])
    for name in ("listen", "advertise", "join"):
        expect_refusal(cluster, place.options(**{name: "192.0.2.1:7420"}), 2,
                       ["192.0.2.1", "insecure"])
    expect_refusal(cluster, place.options(listen="nonsense"), 2, ["nonsense"])


def checked_configuration(cluster, place):
    """--check-config prints what would hold, in the form of a file, and touches nothing."""
    path = place.path("tenured.conf")
    with open(path, "w", encoding="ascii") as file:
        file.write('voters = 5\ntick = "100ms"\nlog_level = "warn"\n')
    options = ["--config", path, *place.options(tick="60ms", data=place.path("untouched"))]
    code, lines = run_node(cluster, [*options, "--check-config"])
    check(code == 0, f"--check-config: exit {code}: {lines}")
    for line in ("voters = 5", 'tick = "60ms"', 'log_level = "warn"',
                 f'data = "{place.path("untouched")}"', 'election = "500ms"'):
        check(line in lines, f"{line} in {lines}")
    check(not os.path.exists(place.path("untouched")), "nothing is made")
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(lines))
    check(run_node(cluster, ["--config", path, "--check-config"]) == (0, lines), "the same again")
    with open(path, "a", encoding="ascii") as file:
        file.write("\nvoters = 4\n")
    code, lines = run_node(cluster, ["--config", path, "--check-config"])
    check(code == 2 and len(lines) == 1, f"--check-config: exit {code}: {lines}")


# --- U3


def crc(data):
    """libraft's checksum: polynomial 0x04C11DB7, high bit first, no inversions."""
    value = 0
    for byte in data:
        value ^= byte << 24
        for _ in range(8):
            value = ((value << 1) ^ (0x04C11DB7 if value & 0x80000000 else 0)) & 0xFFFFFFFF
    return value


def patch_identity(data):
    path = os.path.join(data, "identity")
    with open(path, "r+b") as file:
        check(file.read(18) == b"tenure_identity=2\n", "an identity of version 2")
        file.seek(16)
        file.write(b"3")


def patch_entry(data):
    """The last batch of the last segment that has one of ours, its checksum made anew."""
    folder = os.path.join(data, "raft")
    for name in sorted((name for name in os.listdir(folder) if name[0] in "0123456789"),
                       reverse=True):
        path = os.path.join(folder, name)
        with open(path, "rb") as file:
            segment = bytearray(file.read())
        at, last = 8, None
        while at < len(segment):
            count = struct.unpack_from("<Q", segment, at + 8)[0]
            sizes = [struct.unpack_from("<I", segment, at + 16 + 16 * i + 12)[0]
                     for i in range(count)]
            start = at + 16 + 16 * count
            at_next = start + sum(sizes)
            if segment[start:start + 4] == b"TnEn":
                last = (at, start, at_next)
            at = at_next
        if last:
            at, start, end = last
            check(crc(segment[start:end]) == struct.unpack_from("<I", segment, at + 4)[0],
                  "the layout that this test knows")
            struct.pack_into("<H", segment, start + 8, 7)
            struct.pack_into("<I", segment, at + 4, crc(segment[start:end]))
            with open(path, "wb") as file:
                file.write(segment)
            return
    check(False, f"no entry in {os.listdir(folder)}")


def patch_snapshot(data):
    folder = os.path.join(data, "raft")
    names = sorted(name for name in os.listdir(folder)
                   if name.startswith("snapshot-") and not name.endswith(".meta"))
    check(names, f"a snapshot in {os.listdir(folder)}")
    for name in names:
        with open(os.path.join(folder, name), "r+b") as file:
            file.seek(4)
            check(file.read(4) == b"\x01\0\0\0", "a snapshot of version 1")
            file.seek(4)
            file.write(b"\x07")


def fingerprint(folder):
    """Every file and what is in it, but for the lock: that names the process that looked last."""
    seen = {}
    for at, _, names in os.walk(folder):
        for name in set(names) - {"lock"}:
            path = os.path.join(at, name)
            with open(path, "rb") as file:
                seen[os.path.relpath(path, folder)] = hashlib.sha256(file.read()).hexdigest()
    return seen


def other_versions(cluster, place):
    """U3: exit 3, both versions named, every file byte for byte as it was."""
    node = cluster.nodes[0]
    with node.api() as api:
        for number in range(300):
            api.take(f"k{number}", owner="a", ttl_ms=60000)
    check(node.stop() == 0, "stops")
    for patch, words in ((patch_identity, ["identity", "version 3", "versions 1 and 2"]),
                         (patch_entry, ["version 7", "version 1"]),
                         (patch_snapshot, ["snapshot", "version 7", "version 1"])):
        data = place.path("data")
        shutil.copytree(node.data, data)
        patch(data)
        before = fingerprint(data)
        expect_refusal(cluster, place.options(data=data), 3, words)
        check(fingerprint(data) == before, f"{patch.__name__}: a file was changed")
        shutil.rmtree(data)
    shutil.copytree(node.data, place.path("data"))
    node.start()
    cluster.wait_ready()


def case_start(_rounds):
    """Whatever must not start says why in one line, exits 2 or 3 and leaves files as they were."""
    with Cluster(1, options=SMALL) as cluster:
        place = Place(cluster)
        refused_directories(cluster, place)
        refused_sockets(cluster, place)
        refused_addresses(cluster, place)
        checked_configuration(cluster, place)
        shutil.rmtree(place.path("data"), ignore_errors=True)
        other_versions(cluster, place)
    return "refused with one line each"


# --- what is said


def events(node):
    with open(node.log_path, encoding="utf-8") as log:
        return [line.split("event=", 1)[1].split()[0] for line in log if "event=" in line]


def case_quiet(_rounds):
    """One line for each thing that happened, and none while nothing does."""
    with Cluster(3) as cluster:
        with cluster.leader().api() as api:
            api.take("box", owner="a", ttl_ms=600000)
        time.sleep(0.5)
        before = {node.number: len(events(node)) for node in cluster.nodes}
        time.sleep(3.0)
        for node in cluster.nodes:
            said = events(node)
            check(len(said) == before[node.number], f"idle, node {node.number}: {node.tail(5)}")
            with open(node.log_path, encoding="utf-8") as log:
                bodies = [line.split("level=", 1)[1] for line in log if "level=" in line]
            twice = {body for body in bodies if bodies.count(body) > 1}
            check(not twice, f"node {node.number} said twice: {twice}")
            check(said[0] == "started" and len(said) < 40, f"node {node.number}: {said}")
    return "nothing said while idle"


def case_spare(_rounds):
    """A spare lists all members with the roles that the leader told last, across a fail-over."""
    with Cluster(4, ready=False) as cluster:
        first, *others = cluster.nodes
        first.start()
        wait_until(first.status, "node 1 answers")
        code, out, err = cluster.cli(first, "cluster", "init")
        check(code == 0, f"cluster init: exit {code}: {out}{err}")
        for node in others[:2]:
            node.start(join=first.address)
        wait_until(lambda: cluster.count_voters() == 3, "three voters")
        spare = others[2]
        spare.start(join=others[0].address)
        cluster.wait_ready()

        def listed():
            with spare.api() as api:
                return api.members()

        def complete():
            members = listed()
            roles = sorted(member["role"] for member in members)
            leaders = [member for member in members if member["leader"]]
            return roles == ["spare", "voter", "voter", "voter"] and len(leaders) == 1 and members
        members = wait_until(complete, "the spare lists everybody")
        check([member["role"] for member in members if member["self"]] == ["spare"], f"{members}")
        check(all(member["address"] and member["state"] == "up" for member in members),
              f"{members}")

        old = cluster.leader()
        old_id = old.status()["node_id"]
        old.kill()

        def followed():
            members = complete()
            return members and all(member["id"] != old_id for member in members
                                   if member["leader"]) and members
        wait_until(followed, "the spare sees the new leader")
        spare.stop()
        spare.start()  # kept in memory only: told anew
        wait_until(spare.is_ready, "the spare is ready")
        wait_until(complete, "the spare lists everybody after its restart")
    return "four members with roles"


def stop_at_once(node):
    """Two signals: no hand-over; returns the exit code."""
    node.process.send_signal(signal.SIGTERM)
    wait_until(lambda: "stopping" in events(node), "the first signal is heard", pause_s=0.001)
    return node.stop()


def case_stop_admitting(_rounds):
    """A leader that stops while it admits somebody ends in order."""
    with Cluster(3, options=["--election", "2s"]) as cluster:
        leader, followers = cluster.leader(), cluster.followers()
        for node in followers:
            node.pause()  # nothing can be committed any more, the admission neither
        joiner = Cluster(1, ready=False)
        with joiner:
            newcomer = joiner.nodes[0]
            newcomer.start(join=leader.address)
            wait_until(lambda: "joining" in events(newcomer), "it joins")
            time.sleep(0.6)  # it asks five times a second
            code = stop_at_once(leader)
            check(code == 0, f"exit {code}: {leader.tail()}")
            check("admitted" in events(leader), f"an admission ended: {leader.tail()}")
        for node in followers:
            node.resume()
    return "ends in order"


def case_stop_handing_over(_rounds):
    """A leader that hears of new peers while it hands over waits for its successor all the same."""
    with Cluster(3, options=["--election", "2s"]) as cluster:
        leader, followers = cluster.leader(), cluster.followers()
        with link_to(leader, 77) as link:
            for node in followers:
                node.pause()  # nobody can take over
            began_s = time.monotonic()
            leader.process.send_signal(signal.SIGTERM)
            wait_until(lambda: "stopping" in events(leader), "the signal is heard", pause_s=0.001)
            link.sendall(peers([78, 79]))
            code = leader.process.wait(10.0)
            took_s = time.monotonic() - began_s
        leader.process = None
        check(code == 0, f"exit {code}: {leader.tail()}")
        check(1.0 < took_s < 6.0, f"{took_s:.2f} s to hand over and to stop: {leader.tail()}")
        for node in followers:
            node.resume()
    return f"waited {took_s:.1f} s"
