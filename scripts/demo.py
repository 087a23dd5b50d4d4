#!/usr/bin/python3
"""Plays the story of a lease on three real nodes and compares each answer with what was expected.

Usage: scripts/demo.py BUILD_DIRECTORY

Everything is asked through the command line, as a person would: `tenure cluster dev` starts the
nodes, the verbs are run with --json and their exit codes are part of what is expected. Only to kill
nodes are their process ids needed; the kernel names them for each socket.
"""
import contextlib
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

NODES = 3
MANY = 10000
LONG_TTL = "10m"  # of what must still be there at the end
DEADLINE_S = 30.0


class Difference(Exception):
    """Something did not come as expected."""


class Nodes:
    """Three nodes of `tenure cluster dev` in a folder of their own, and the command line."""

    def __init__(self, build):
        self.tenure_path = os.path.abspath(os.path.join(build, "tenure"))
        self.folder = tempfile.mkdtemp(prefix="tenure-demo-",
                                       dir=os.environ.get("TMPDIR", "/var/tmp"))
        self.pids = {}

    def socket_of(self, node):
        return os.path.join(self.folder, str(node), "api.sock")

    def run(self, *arguments, node=1):
        """Runs one command; returns (exit code, what it printed)."""
        environment = {**os.environ, "TENURE_SOCKET": self.socket_of(node),
                       "PATH": f"{os.path.dirname(self.tenure_path)}:{os.environ['PATH']}"}
        done = subprocess.run([self.tenure_path, *arguments], capture_output=True, text=True,
                              timeout=DEADLINE_S, env=environment, check=False)
        return done.returncode, (done.stdout or done.stderr).strip()

    def ask(self, *arguments, node=1):
        """Runs one command with --json; returns (exit code, parsed answer)."""
        code, text = self.run(*arguments, "--json", node=node)
        try:
            return code, json.loads(text)
        except ValueError:
            return code, {"text": text}

    def up(self):
        code, text = self.run("cluster", "dev", str(NODES), "--dir", self.folder)
        if code != 0:
            raise Difference(f"`tenure cluster dev`: exit {code}: {text}")

    def learn_pids(self):
        """Which process is behind each socket."""
        for node in range(1, NODES + 1):
            with contextlib.suppress(OSError), \
                    socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                probe.connect(self.socket_of(node))
                raw = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
                self.pids[node] = struct.unpack("3i", raw)[0]

    def kill(self, nodes):
        """kill -9, and waits until the kernel has ended them."""
        for node in nodes:
            os.kill(self.pids[node], signal.SIGKILL)
        for node in nodes:
            while os.path.exists(f"/proc/{self.pids[node]}") and not is_zombie(self.pids[node]):
                time.sleep(0.001)
            del self.pids[node]

    def wait_ready(self, nodes):
        end_s = time.monotonic() + DEADLINE_S
        for node in nodes:
            while self.run("status", "--ready", node=node)[0] != 0:
                if time.monotonic() > end_s:
                    raise Difference(f"node {node} is not ready after {DEADLINE_S:.0f} s")
                time.sleep(0.02)

    def leader(self):
        """The number of the node that leads."""
        end_s = time.monotonic() + DEADLINE_S
        while time.monotonic() < end_s:
            for node in self.pids:
                code, status = self.ask("status", node=node)
                if code == 0 and status.get("state") == "leader":
                    return node
            time.sleep(0.05)
        raise Difference("no node leads")

    def end(self):
        """Ends what was started, by process id, and removes the folder."""
        self.run("cluster", "dev", "--stop", "--dir", self.folder)
        for pid in self.pids.values():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)


def is_zombie(pid):
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", encoding="ascii") as stat:
        return stat.read().rsplit(")", 1)[1].split()[0] == "Z"
    return True


class Story:
    """Numbered steps; each expectation is printed beside what came."""

    def __init__(self):
        self.steps = 0
        self.differences = 0

    def step(self, text):
        self.steps += 1
        print(f"\n{self.steps:2}. {text}")

    def expect(self, expected, came, is_right):
        print(f"      expected  {expected}")
        print(f"      came      {came}" + ("" if is_right else "      <-- DIFFERS"))
        self.differences += not is_right


def words(code, answer):
    """An answer of one key in a few words: outcome, token, holder, exit code."""
    one = outcome_of(answer)
    parts = [str(one.get("outcome") or answer.get("text") or answer)]
    if "token" in one:
        parts.append(f"token {one['token']}")
    holder = one.get("holder")
    if holder:
        parts.append(f"held by {holder['owner']}, {holder['state']}, token {holder['token']}, "
                     f"{holder['ms_left']} ms left")
    return ", ".join(parts) + f" (exit {code})"


def outcome_of(answer):
    """The outcome map of the only key."""
    outcomes = answer.get("outcomes") or [answer]
    return outcomes[0]


def leases_of(answer):
    return answer.get("leases") or []


def table(nodes, node):
    """Every lease with owner, state and token, as that node answers it."""
    leases, after = [], []
    while True:
        _, answer = nodes.ask("list", *after, node=node)
        page = leases_of(answer)
        leases += page
        if not page or not answer.get("more"):
            break
        after = ["--after", page[-1]["key"]]
    return {lease["key"]: (lease["owner"], lease["state"], lease["token"]) for lease in leases}


def play_owners(story, nodes):
    """Take, claim, renew, take over: two gateways and one sandbox."""
    story.step("gateway A takes sandbox box-1 through node 1")
    code, answer = nodes.ask("take", "box-1", "--owner", "gateway-a", "--ttl", "30s", node=1)
    first = outcome_of(answer).get("token", 0)
    story.expect("GRANTED with a token", words(code, answer),
                 code == 0 and outcome_of(answer).get("outcome") == "GRANTED" and first > 0)

    story.step("gateway B claims it through node 2")
    code, answer = nodes.ask("claim", "box-1", "--owner", "gateway-b", node=2)
    holder = outcome_of(answer).get("holder") or {}
    story.expect(f"HELD by gateway-a, own, token {first}, at most 30000 ms left (exit 1)",
                 words(code, answer),
                 code == 1 and outcome_of(answer).get("outcome") == "HELD"
                 and holder.get("owner") == "gateway-a" and holder.get("state") == "own"
                 and holder.get("token") == first and 0 < holder.get("ms_left", 0) <= 30000)

    story.step("gateway A renews")
    code, answer = nodes.ask("renew", "box-1", "--owner", "gateway-a", "--ttl", "30s", node=1)
    story.expect(f"RENEWED, token {first} kept (exit 0)", words(code, answer),
                 code == 0 and outcome_of(answer).get("outcome") == "RENEWED"
                 and outcome_of(answer).get("token") == first)

    story.step("a turn for box-1 arrives at gateway B, which takes it")
    code, answer = nodes.ask("take", "box-1", "--owner", "gateway-b", "--ttl", LONG_TTL,
                             node=2)
    second = outcome_of(answer).get("token", 0)
    previous = outcome_of(answer).get("holder") or {}
    story.expect("GRANTED with a larger token, naming the previous owner gateway-a (exit 0)",
                 words(code, answer),
                 code == 0 and outcome_of(answer).get("outcome") == "GRANTED" and second > first
                 and previous.get("owner") == "gateway-a")

    story.step("gateway A renews what it no longer has")
    code, answer = nodes.ask("renew", "box-1", "--owner", "gateway-a", node=1)
    holder = outcome_of(answer).get("holder") or {}
    story.expect("LOST, held by gateway-b (exit 1)", words(code, answer),
                 code == 1 and outcome_of(answer).get("outcome") == "LOST"
                 and holder.get("owner") == "gateway-b")


def claim_until_granted(nodes, key):
    """Claims again and again; returns when the granted claim was asked and when answered."""
    end_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < end_s:
        asked_s = time.monotonic()
        code, answer = nodes.ask("claim", key, "--owner", "gateway-b", "--ttl", LONG_TTL, node=2)
        if code == 0:
            return asked_s, time.monotonic()
        time.sleep(0.01)
    raise Difference(f"{key} never became free")


def expect_gone(story, sent_s, asked_s, answered_s):
    """A lease of one second that was sent at `sent_s` has ended on time: never early."""
    late_ms, early_ms = (asked_s - sent_s) * 1000, (answered_s - sent_s) * 1000
    story.expect("B is granted it 1000 ms after A asked, not earlier, at most 500 ms later",
                 f"granted to a claim that was asked after {late_ms:.0f} ms and answered after "
                 f"{early_ms:.0f} ms", early_ms >= 1000 and late_ms <= 1500)


def play_ends(story, nodes):
    """Silence, teardown, a crashed destroyer."""
    story.step("gateway A takes box-2 for one second and falls silent; B claims until it is free")
    sent_s = time.monotonic()
    nodes.ask("take", "box-2", "--owner", "gateway-a", "--ttl", "1s", node=1)
    expect_gone(story, sent_s, *claim_until_granted(nodes, "box-2"))

    story.step("gateway B claims box-3 for destroy")
    code, answer = nodes.ask("claim", "box-3", "--destroy", "--owner", "gateway-b", node=2)
    token = outcome_of(answer).get("token", 0)
    story.expect("GRANTED (exit 0)", words(code, answer),
                 code == 0 and outcome_of(answer).get("outcome") == "GRANTED")

    story.step("a turn takes box-3 while it is being torn down")
    code, answer = nodes.ask("take", "box-3", "--owner", "gateway-a", node=1)
    holder = outcome_of(answer).get("holder") or {}
    story.expect(f"TEARDOWN, by gateway-b, del, token {token} (exit 1)", words(code, answer),
                 code == 1 and outcome_of(answer).get("outcome") == "TEARDOWN"
                 and holder.get("state") == "del" and holder.get("token") == token)

    story.step("gateway B has stopped it and releases; the turn takes again")
    code, answer = nodes.ask("release", "box-3", "--owner", "gateway-b", "--if-token",
                             str(token), node=2)
    story.expect("RELEASED (exit 0)", words(code, answer),
                 code == 0 and outcome_of(answer).get("outcome") == "RELEASED")
    code, answer = nodes.ask("take", "box-3", "--owner", "gateway-a", "--ttl", LONG_TTL, node=1)
    story.expect("GRANTED with a larger token (exit 0)", words(code, answer),
                 code == 0 and outcome_of(answer).get("token", 0) > token)

    story.step("gateway A claims box-4 for destroy, one second, and crashes")
    sent_s = time.monotonic()
    nodes.ask("claim", "box-4", "--destroy", "--owner", "gateway-a", "--ttl", "1s", node=1)
    code, answer = nodes.ask("take", "box-4", "--owner", "gateway-b", node=2)
    story.expect("TEARDOWN until the marker ends by itself (exit 1)", words(code, answer),
                 code == 1 and outcome_of(answer).get("outcome") == "TEARDOWN")
    expect_gone(story, sent_s, *claim_until_granted(nodes, "box-4"))


def play_many(story, nodes):
    """Ten thousand leases of one owner, renewed in one call."""
    story.step(f"gateway C claims {MANY} sandboxes and renews them all in one call")
    keys = [f"many-{number:05}" for number in range(MANY)]
    granted = 0
    for start in range(0, MANY, 2500):
        _, answer = nodes.ask("claim", *keys[start:start + 2500], "--owner", "gateway-c", "--ttl",
                              LONG_TTL, node=3)
        granted += sum(one["outcome"] == "GRANTED" for one in answer.get("outcomes", []))
    story.expect(f"{MANY} GRANTED", f"{granted} GRANTED", granted == MANY)
    began_s = time.monotonic()
    code, answer = nodes.ask("renew-all", "--owner", "gateway-c", "--ttl", LONG_TTL, node=3)
    took_ms = (time.monotonic() - began_s) * 1000
    story.expect(f"{MANY} renewed (exit 0)",
                 f"{answer.get('count')} renewed in {took_ms:.0f} ms, start of the process "
                 f"included (exit {code})", code == 0 and answer.get("count") == MANY)


def play_leader_killed(story, nodes):
    """kill -9 of the leader: nothing is lost, and how long nobody answered."""
    leader = nodes.leader()
    others = [node for node in nodes.pids if node != leader]
    before = table(nodes, others[0])
    story.step(f"kill -9 of the leader, node {leader}; a write is tried on node {others[0]} "
               "until it succeeds")
    killed_s = time.monotonic()
    nodes.kill([leader])
    while nodes.run("renew", "box-1", "--owner", "gateway-b", "--ttl", LONG_TTL,
                    node=others[0])[0] != 0:
        if time.monotonic() - killed_s > DEADLINE_S:
            raise Difference("no write succeeds after the leader was killed")
    outage_ms = (time.monotonic() - killed_s) * 1000
    story.expect("a new leader within 5 s", f"node {nodes.leader()}, first write done after "
                 f"{outage_ms:.0f} ms", outage_ms < 5000)
    after = table(nodes, others[0])
    story.expect(f"the same {len(before)} leases, owners, states and tokens",
                 f"{len(after)} leases, {differing(before, after)} differ", before == after)
    nodes.up()
    nodes.wait_ready([leader])
    nodes.learn_pids()


def differing(before, after):
    return sum(before.get(key) != after.get(key) for key in before.keys() | after.keys())


def play_all_killed(story, nodes):
    """kill -9 of all three: everything is on disk, and the outage costs nobody a lease."""
    story.step("gateway A takes box-5 for two seconds; kill -9 of all three; three seconds pass")
    everybody = list(nodes.pids)
    before = table(nodes, 1)
    _, answer = nodes.ask("take", "box-5", "--owner", "gateway-a", "--ttl", "2s", node=1)
    token = outcome_of(answer).get("token")
    nodes.kill(everybody)
    time.sleep(3)
    nodes.up()
    nodes.wait_ready(everybody)
    nodes.learn_pids()
    code, answer = nodes.ask("renew", "box-5", "--owner", "gateway-a", "--ttl", LONG_TTL, node=1)
    story.expect(f"RENEWED, token {token}: the outage lapsed nobody (exit 0)", words(code, answer),
                 code == 0 and outcome_of(answer).get("token") == token)
    after = table(nodes, 1)
    after.pop("box-5", None)
    story.expect(f"the same {len(before)} leases, owners, states and tokens",
                 f"{len(after)} leases, {differing(before, after)} differ", before == after)
    digests = equal_digests(nodes, everybody)
    story.expect("one digest on all three nodes", ", ".join(sorted(digests)), len(digests) == 1)


def equal_digests(nodes, everybody):
    """The digests of all nodes, at a moment at which all have applied the same index."""
    end_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < end_s:
        seen = [nodes.ask("status", node=node)[1] for node in everybody]
        if len({status.get("digest_index") for status in seen}) == 1:
            return {f"{status['digest']} at index {status['digest_index']}" for status in seen}
    raise Difference("the nodes never show a digest of one index")


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    story, nodes = Story(), Nodes(sys.argv[1])
    began_s = time.monotonic()
    try:
        story.step(f"three nodes start on this machine, data below {nodes.folder}")
        nodes.up()
        nodes.wait_ready(range(1, NODES + 1))
        nodes.learn_pids()
        story.expect("three nodes ready", f"{len(nodes.pids)} nodes ready after "
                     f"{time.monotonic() - began_s:.1f} s", len(nodes.pids) == NODES)
        play_owners(story, nodes)
        play_ends(story, nodes)
        play_many(story, nodes)
        play_leader_killed(story, nodes)
        play_all_killed(story, nodes)
    except (Difference, subprocess.TimeoutExpired, OSError) as reason:
        story.differences += 1
        print(f"      came      {reason}      <-- DIFFERS")
    finally:
        nodes.end()
    print(f"\ndemo: {story.steps} steps in {time.monotonic() - began_s:.0f} s, "
          f"{story.differences} differences")
    sys.exit(1 if story.differences else 0)


if __name__ == "__main__":
    main()
