"""The hazards that concern this client, one test or more for each, named for it."""

from __future__ import annotations

import contextlib
import gc
import json
import math
import os
import socket
import subprocess
import sys
import threading
import time
import unicodedata
from typing import Any, Callable, Iterator

import pytest

from api import Api
from conftest import ROOT
from fake_node import BASE, GRANTED, FakeNode, Peer
from harness import Node, wait_until
from tenure import (
    Client,
    IncompatibleError,
    InvalidError,
    Kind,
    State,
    TenureError,
    UnavailableError,
    UnknownError,
    now_ns,
)

NS_PER_MS = 1_000_000
SLACK_MS = 100
TTL_RANGE = "10..86400000"


def refusal(ask: Callable[[], object]) -> tuple[str | None, str | None, str | None]:
    """(field, value, rule) of an INVALID, or three times None."""
    try:
        ask()
    except InvalidError as error:
        return error.field, error.value, error.rule
    return None, None, None


def refusal_of_node(node: Node, method: str, **names: object) -> tuple[Any, Any, Any]:
    """The same from the node itself, past the checks of the client."""
    with node.api() as api:
        reply = api.call(method, **names)
    found = reply.error.names if reply.error else {}
    return found.get("field"), found.get("value"), found.get("rule")


# --- T5: one place validates TTL ---


@pytest.mark.parametrize("ttl_ms, fine", [(9, False), (10, True), (86_400_000, True),
                                          (86_400_001, False)])
@pytest.mark.parametrize("method", ["take", "claim", "renew", "heartbeat", "renew_all"])
def test_t5_ttl_has_one_range_and_the_words_of_the_node(
    client: Client, node: Node, space: str, method: str, ttl_ms: int, fine: bool
) -> None:
    key = () if method == "renew_all" else ("a",)
    ours = refusal(lambda: getattr(client, method)(*key, ttl_ms=ttl_ms))
    named = {"key": "a"} if key else {}
    assert ours == refusal_of_node(node, method, ns=space, owner="me", ttl_ms=ttl_ms, **named)
    assert ours[0] == (None if fine else "ttl_ms")
    assert fine or TTL_RANGE in str(ours[2])


# --- T7: absurd numbers in the configuration of the client ---


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 1e300, -0.0, 5000.0, "30", True,
                                   2**63, -1, None, b"30", [5]], ids=repr)
@pytest.mark.parametrize("field, limits", [("deadline_ms", "10..60000"),
                                           ("connections_idle_max", "0..1024")])
def test_t7_a_client_with_absurd_numbers_is_not_made(
    tmp_path: os.PathLike[str], field: str, limits: str, value: Any
) -> None:
    with pytest.raises(InvalidError) as caught:
        Client(os.path.join(tmp_path, "api.sock"), **{field: value})
    assert caught.value.field == field and caught.value.value
    assert limits in str(caught.value) and "\n" not in str(caught.value)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("value", [math.inf, math.nan, 1e300, -0.0, "30", True, 2**63], ids=repr)
def test_t7_absurd_numbers_of_a_call_are_not_sent(fake: FakeNode, value: Any) -> None:
    with Client(fake.path) as client:
        asked: list[Callable[[], object]] = [
            lambda: client.take("a", ttl_ms=value),
            lambda: client.take("a", ttl_ms=1000, deadline_ms=value),
            lambda: client.claim("a", ttl_ms=1000, grace_ms=value),
            lambda: client.list(limit=value),
        ]
        for ask in asked:
            assert refusal(ask)[0] is not None
    assert fake.connections == 0


# --- D5, D8: one's own teardown ---


def test_d5_renewing_ones_own_marker_is_lost_to_oneself_and_extends_nothing(
    client: Client,
) -> None:
    marker = client.claim("a", ttl_ms=60_000, destroy=True)
    outcome = client.renew("a", ttl_ms=86_400_000)
    assert outcome.kind is Kind.LOST and outcome.holder is not None
    assert (outcome.holder.owner, outcome.holder.state) == ("me", State.DEL)
    assert outcome.holder.token == marker.token
    lease = client.owner("a")
    assert lease is not None and lease.ttl_ms == 60_000 and lease.ms_left <= 60_000


def test_d8_ones_own_teardown_is_not_unwound(client: Client) -> None:
    client.claim("a", ttl_ms=60_000, destroy=True)
    before = client.owner("a")
    kinds = [
        client.take("a", ttl_ms=60_000).kind,
        client.claim("a", ttl_ms=60_000).kind,
        client.renew("a", ttl_ms=60_000, reestablish=True).kind,
    ]
    assert kinds == [Kind.TEARDOWN, Kind.TEARDOWN, Kind.LOST]
    after = client.owner("a")
    assert before is not None and after is not None
    assert (after.state, after.token, after.since_ms) == (State.DEL, before.token, before.since_ms)


# --- I5: keys ---


@pytest.mark.parametrize(
    "key",
    ["", "a" * 513, "a\0b", "a\n", "\x7f", "a\u0085", "\ud800", "a\udfffb", "\x1b[2J",
     "\u00e4" * 257, "\U0001f600" * 512],
    ids=ascii,
)
def test_i5_keys_that_are_none_are_refused_with_their_rule(
    client: Client, node: Node, space: str, key: str
) -> None:
    ours = refusal(lambda: client.take(key, ttl_ms=1000))
    raw = key.encode("utf-8", "surrogatepass")
    assert ours == refusal_of_node(node, "take", ns=space, owner="me", key=raw, ttl_ms=1000)
    assert ours[0] == "key" and "1..512 bytes" in str(ours[2]) and str(ours[1]).isascii()


def test_i5_every_other_key_is_a_key_of_its_own(client: Client) -> None:
    word = "\u00e9t\u00e9"
    keys = [
        "a", "a" * 512, "\ufeffa", "\u202ea", "\u200f", "../x", "own:x", "del:x", " ",
        unicodedata.normalize("NFC", word), unicodedata.normalize("NFD", word),
        "\U0001f600" * 128, "\u00e4" * 256, "\u2028", "\\x00", "a" * 511 + "b",
    ]
    assert all(one.kind is Kind.GRANTED and not one.held_before
               for one in client.claim_many(keys, ttl_ms=60_000))
    assert [lease.key for lease in client.leases()] == sorted(keys, key=str.encode)
    assert all(client.release(key).kind is Kind.RELEASED for key in keys)


# --- I6: numbers ---

NUMBERS = [-1, 0, 2**31, 2**32, 2**63, 2**64 - 1, 3.0, 3.5, math.nan, math.inf, "3", True, False,
           b"3", [3], {}]


@pytest.mark.parametrize("value", [*NUMBERS, None], ids=repr)
def test_i6_ttl_is_an_exact_number_in_its_range(
    client: Client, node: Node, space: str, value: Any
) -> None:
    ours = refusal(lambda: client.take("a", ttl_ms=value))
    assert ours == refusal_of_node(node, "take", ns=space, owner="me", key="a", ttl_ms=value)
    assert ours[0] == "ttl_ms" and TTL_RANGE in str(ours[2])


@pytest.mark.parametrize("value", NUMBERS, ids=repr)
def test_i6_token_is_an_exact_number(
    client: Client, node: Node, space: str, value: Any
) -> None:
    ours = refusal(lambda: client.release("a", if_token=value))
    assert ours == refusal_of_node(node, "release", ns=space, owner="me", key="a", if_token=value)
    whole = type(value) is int and 0 <= value < 2**64
    assert ours[0] == (None if whole else "if_token")


@pytest.mark.parametrize("value", NUMBERS, ids=repr)
def test_i6_grace_is_an_exact_number(
    client: Client, node: Node, space: str, value: Any
) -> None:
    ours = refusal(lambda: client.claim("a", ttl_ms=1000, grace_ms=value))
    assert ours == refusal_of_node(
        node, "claim", ns=space, owner="me", key="a", ttl_ms=1000, adopt=True, grace_ms=value
    )
    assert ours[0] == (None if type(value) is int and value == 0 else "grace_ms")


@pytest.mark.parametrize("value", [-1, 2**64, 10**100, 10**5000], ids=lambda value: hex(value)[:9])
def test_i6_no_number_wraps(fake: FakeNode, value: int) -> None:
    with Client(fake.path) as client:
        assert refusal(lambda: client.take("a", ttl_ms=value))[0] == "ttl_ms"
        assert refusal(lambda: client.renew("a", ttl_ms=10, if_token=value))[0] == "if_token"
        assert refusal(lambda: client.renew_all(ttl_ms=10, set_version=value))[0] == "set_version"
        assert refusal(lambda: client.cluster_init(token_floor=value))[0] == "token_floor"
    assert fake.connections == 0


def test_i6_the_largest_token_comes_back_exactly(fake: FakeNode) -> None:
    fake.on_request = lambda peer, number, *_: peer.grant(number, token=2**64 - 1)
    with Client(fake.path) as client:
        token = client.take("a", ttl_ms=10).token
        assert token == 2**64 - 1
        client.claim("a", ttl_ms=10, destroy=True, if_token=token)
    assert fake.requests[1][2]["if_token"] == 2**64 - 1


# --- C7: fork ---

FORK = """
import json, os, sys, threading
from tenure import Client, Kind

path, space, mode = sys.argv[1:]
client = Client(path, namespace=space)
mine = client.owner_id
for key in ("parents", "warm-1", "warm-2", "warm-3"):
    assert client.take(key, ttl_ms=60_000).ok
alive, parent = os.pipe()  # ends when the parent has ended
going = True

def load():
    while going:
        assert client.owner("parents").owner == mine

threads = [threading.Thread(target=load) for _ in range(4)]
for thread in threads:
    thread.start()

def say(**words):
    os.write(1, (json.dumps(words) + chr(10)).encode())

def child(number):
    os.close(parent)
    if mode == "orphans":
        os.read(alive, 1)
    owner = client.owner_id
    outcomes = [client.take(f"child-{number}-{n}", ttl_ms=60_000) for n in range(20)]
    say(owner=owner, stays=owner == client.owner_id,
        granted=all(one.ok and not one.held_before for one in outcomes),
        parents=client.claim("parents", ttl_ms=60_000).kind.value)

say(owner=mine)
for number in range(8):
    if os.fork() == 0:
        child(number)
        sys.exit(0)

if mode == "children":
    for _ in range(8):
        assert os.wait()[1] == 0
    assert client.renew("parents", ttl_ms=60_000).kind is Kind.RENEWED
going = False
for thread in threads:
    thread.join()
"""


@pytest.mark.parametrize("mode", ["children", "orphans"])
def test_c7_after_a_fork_each_process_is_on_its_own(node: Node, space: str, mode: str) -> None:
    paths = [os.path.join(ROOT, "client", "python"), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK, node.socket_path, space, mode],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True, text=True, timeout=60,
    )
    parent, *children = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0 and done.stderr == "" and len(children) == 8
    assert len({parent["owner"], *(one["owner"] for one in children)}) == 9
    for one in children:
        assert one["stays"] and one["granted"] and one["parents"] == "HELD"
    with Client(node.socket_path, namespace=space) as client:
        lease = client.owner("parents")
        assert lease is not None and lease.owner == parent["owner"], "a child's exit released it"
        assert client.count().count == 4 + 8 * 20


def test_c7_a_child_closes_its_copy_and_not_the_connection(fake: FakeNode) -> None:
    with Client(fake.path, owner="me") as client:
        client.take("a", ttl_ms=10)
        pid = os.fork()
        if pid == 0:
            client.take("a", ttl_ms=10)
            client.close()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        assert fake.ended.get(timeout=10) == 1, "the child's own connection ends with it"
        client.take("a", ttl_ms=10)
    assert [peer for peer, _, _ in fake.requests] == [0, 1, 0]


# --- C9: no server (watching is not part of this client yet) ---


@contextlib.contextmanager
def nobody(path: str) -> Iterator[None]:
    yield


@contextlib.contextmanager
def no_listener(path: str) -> Iterator[None]:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(path)
    yield


@contextlib.contextmanager
def silent_listener(path: str) -> Iterator[None]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(16)
        yield


@pytest.mark.parametrize(
    "server, error",
    [(nobody, UnavailableError), (no_listener, UnavailableError), (silent_listener, UnknownError)],
)
@pytest.mark.parametrize("deadline_ms", [10, 3000])
def test_c9_a_call_without_a_server_ends_by_its_deadline(
    tmp_path: os.PathLike[str], server: Any, error: type[TenureError], deadline_ms: int
) -> None:
    path = os.path.join(tmp_path, "api.sock")
    with server(path), Client(path, deadline_ms=deadline_ms) as client:
        for ask in (lambda: client.take("a", ttl_ms=10), lambda: client.owner("a")):
            began_ns, cpu_ns = now_ns(), time.thread_time_ns()
            with pytest.raises(error):
                ask()
            took_ms = (now_ns() - began_ns) / NS_PER_MS
            cpu_ms = (time.thread_time_ns() - cpu_ns) / NS_PER_MS
            assert took_ms <= deadline_ms + SLACK_MS
            assert deadline_ms < 1000 or cpu_ms < took_ms / 100


def test_c9_a_call_waits_for_a_node_that_comes_back(tmp_path: os.PathLike[str]) -> None:
    path = os.path.join(tmp_path, "api.sock")
    found: list[Kind] = []
    with Client(path) as client:
        caller = threading.Thread(target=lambda: found.append(client.take("a", ttl_ms=10).kind))
        caller.start()
        with FakeNode(path):
            caller.join(10)
    assert found == [Kind.GRANTED]


# --- C10: leaks ---


def resources() -> tuple[int, int, int]:
    """(descriptors, threads, resident bytes) of this process."""
    gc.collect()
    with open("/proc/self/statm", encoding="ascii") as statm:
        pages = int(statm.read().split()[1])
    return len(os.listdir("/proc/self/fd")), threading.active_count(), pages * 4096


def assert_flat(before: tuple[int, int, int], after: tuple[int, int, int]) -> None:
    assert after[:2] == before[:2]
    assert after[2] <= before[2] * 1.05, f"{before[2]} to {after[2]} bytes"


def test_c10_ten_thousand_clients_leave_nothing(node: Node) -> None:
    def some(count: int) -> None:
        for _ in range(count):
            with Client(node.socket_path) as client:
                client.hello()

    some(1000)
    before, before_of_node = resources(), len(os.listdir(f"/proc/{node.process.pid}/fd"))
    some(10_000)
    assert_flat(before, resources())
    wait_until(lambda: len(os.listdir(f"/proc/{node.process.pid}/fd")) <= before_of_node,
               "the node has closed its ends")


def test_c10_ten_thousand_leases_leave_nothing(client: Client) -> None:
    def some(count: int) -> None:
        def work(name: int) -> None:
            for number in range(count // 20):
                outcome = client.take(f"{name}-{number}", ttl_ms=60_000)
                assert client.release(outcome.key, if_token=outcome.token).ok

        threads = [threading.Thread(target=work, args=(name,)) for name in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    some(1000)
    before = resources()
    some(10_000)
    assert_flat(before, resources())
    assert client.count().count == 0


# --- C12: taken again after a loss ---


def test_c12_a_lease_that_lapsed_is_taken_again_by_the_same_client(client: Client) -> None:
    first = client.take("a", ttl_ms=10)
    wait_until(lambda: client.owner("a") is None, "it expires")
    again = client.take("a", ttl_ms=60_000)
    assert again.kind is Kind.GRANTED and not again.held_before
    assert again.token is not None and first.token is not None and again.token > first.token


# --- U6: client and node of different versions ---


def test_u6_an_older_node_is_incompatible_in_words(fake: FakeNode) -> None:
    def older(peer: Peer, number: int, method: str, names: dict[str, Any]) -> None:
        peer.write(1, number, {
            "code": "INCOMPATIBLE", "status": "INCOMPATIBLE", "field": "method", "value": method,
            "message": "versions or clusters that cannot work together",
            "rule": "is no method of protocol version 0"}, None)

    fake.on_request = older
    with Client(fake.path) as client, pytest.raises(IncompatibleError) as caught:
        client.renew_all(ttl_ms=10)
    assert "renew_all" in str(caught.value)
    assert "version 0" in str(caught.value) and "protocol version 1" in str(caught.value)


def test_u6_what_a_newer_node_says_more_is_ignored(fake: FakeNode) -> None:
    outcome = {**GRANTED, "mood": "good", "nested": {"a": [1, None, 2.5]}}
    fake.on_request = lambda peer, number, *_: peer.answer(
        number, outcomes=[outcome], weather="fine", more_numbers=[1, 2]
    )
    with Client(fake.path) as client:
        assert client.take("a", ttl_ms=10).token == GRANTED["token"]
    assert BASE.keys() == {"index", "place", "clock_ms"}


def test_u6_an_error_that_only_a_newer_node_knows_is_unknown(fake: FakeNode) -> None:
    fake.on_request = lambda peer, number, *_: peer.refuse(number, "POSTPONED", "TOMORROW")
    with Client(fake.path) as client, pytest.raises(UnknownError) as caught:
        client.take("a", ttl_ms=10)
    assert "POSTPONED" in str(caught.value) and caught.value.status == "TOMORROW"


def test_u6_a_status_that_only_a_newer_node_knows_counts_by_its_code(fake: FakeNode) -> None:
    fake.on_request = lambda peer, number, *_: peer.refuse(number, "DENIED", "NO_LEADER")
    with Client(fake.path) as client, pytest.raises(TenureError) as caught:
        client.take("a", ttl_ms=10)
    assert caught.value.code == "DENIED" and len(fake.requests) == 1


def test_u6_a_node_ignores_what_it_need_not_know_and_refuses_what_it_must(
    node: Node, space: str
) -> None:
    with Api(node.socket_path) as newer:
        asked: dict[str, object] = {"ns": space, "key": "a", "owner": "o", "ttl_ms": 10}
        assert newer.call("take", **asked, mood="good", version=2).error is None
        refused = newer.call("take", **asked, **{"!mood": "good", "version": 2}).error
        assert refused.code == "INCOMPATIBLE" and "protocol version 1" in refused.text
        assert newer.call("befriend", **asked).error.code == "INCOMPATIBLE"
