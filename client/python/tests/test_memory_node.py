"""The node in memory as users meet it: through ``tenure.Client``, with faults on demand."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodes import KINDS, Wire, running

import tenure
from tenure.results import Kind, Reason
from tenure.testing import Limits, ManualClock, MemoryNode, purge_namespace

TTL_MS = 30_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def node(clock: ManualClock) -> Iterator[MemoryNode]:
    with MemoryNode(clock=clock) as node:
        yield node


@pytest.fixture
def client(node: MemoryNode) -> Iterator[tenure.Client]:
    with tenure.Client(node.socket_path, owner="ours") as client:
        yield client


def take(client: tenure.Client, key: str = "k") -> tenure.Outcome:
    return client.take(key, ttl_ms=TTL_MS)


# --- the clock ----------------------------------------------------------------------------------


def test_a_lease_expires_when_the_clock_is_moved_past_its_end(
    client: tenure.Client, clock: ManualClock
) -> None:
    take(client)
    clock.advance(TTL_MS)
    lease = client.owner("k")
    assert lease is not None and lease.ms_left == 0
    clock.advance(1)
    assert client.owner("k") is None
    assert client.renew("k", ttl_ms=TTL_MS).kind is Kind.LAPSED


def test_a_grace_ends_when_the_clock_is_moved(
    client: tenure.Client, clock: ManualClock
) -> None:
    take(client)
    client.release("k")
    refused = client.claim("k", ttl_ms=TTL_MS, grace_ms=5000, owner="theirs")
    assert (refused.kind, refused.grace_ms_left) == (Kind.GRACE, 5000)
    clock.advance(5000)
    assert client.claim("k", ttl_ms=TTL_MS, grace_ms=5000, owner="theirs").ok


def test_renew_all_names_what_expired(client: tenure.Client, clock: ManualClock) -> None:
    token = take(client).token
    before = client.renew_all(ttl_ms=TTL_MS)
    clock.advance(TTL_MS + 1)
    after = client.renew_all(ttl_ms=TTL_MS, set_version=before.set_version)
    assert [(one.key, one.token, one.reason) for one in after.departures] == [
        ("k", token, Reason.EXPIRED)
    ]


@pytest.mark.parametrize("ms", [-1, 1.5, True, "1"])
def test_a_clock_moves_by_whole_milliseconds_and_not_back(ms: object) -> None:
    with pytest.raises(ValueError):
        ManualClock().advance(ms)  # type: ignore[arg-type]


def test_without_a_clock_of_its_own_a_node_goes_by_the_hosts() -> None:
    with MemoryNode() as node, tenure.Client(node.socket_path) as client:
        client.take("k", ttl_ms=10)
        end_s = time.monotonic() + 5
        while client.owner("k") is not None:
            assert time.monotonic() < end_s
            time.sleep(0.002)


# --- stopping and starting ----------------------------------------------------------------------


def test_leases_are_kept_over_a_stop(node: MemoryNode, client: tenure.Client) -> None:
    granted = take(client)
    node.stop()
    with pytest.raises(tenure.UnavailableError):
        client.owner("k", deadline_ms=50)
    node.start()
    lease = client.owner("k")
    assert lease is not None and lease.token == granted.token


def test_the_clock_of_the_leases_stands_still_while_the_node_is_stopped(
    node: MemoryNode, client: tenure.Client, clock: ManualClock
) -> None:
    take(client)
    clock.advance(1000)
    node.stop()
    clock.advance(10 * TTL_MS)
    node.start()
    lease = client.owner("k")
    assert lease is not None and lease.ms_left == TTL_MS - 1000


def test_a_node_that_forgot_has_no_leases_and_larger_tokens(
    node: MemoryNode, client: tenure.Client
) -> None:
    before = take(client)
    cluster = client.hello().values["cluster_id"]
    version = client.renew_all(ttl_ms=TTL_MS).set_version
    client.release("k")
    take(client)
    node.stop()
    node.start(forget=True)
    assert client.owner("k") is None
    assert client.hello().values["cluster_id"] != cluster
    assert client.renew_all(ttl_ms=TTL_MS, set_version=version + 1).list_again
    after = take(client)
    assert after.token is not None and before.token is not None and after.token > before.token


def test_nobody_adopts_from_a_node_that_forgot_before_a_full_grace(
    node: MemoryNode, client: tenure.Client, clock: ManualClock
) -> None:
    clock.advance(100_000)
    node.stop()
    node.start(forget=True)
    assert client.claim("k", ttl_ms=TTL_MS, grace_ms=1000).grace_ms_left == 1000


def test_stop_and_start_may_be_said_twice(node: MemoryNode, client: tenure.Client) -> None:
    node.start()
    take(client)
    node.stop()
    node.stop()
    node.start()
    assert client.owner("k") is not None


def test_a_call_waits_for_a_node_that_comes_back(
    node: MemoryNode, client: tenure.Client
) -> None:
    node.stop()
    starter = threading.Timer(0.1, node.start)
    starter.start()
    try:
        assert take(client).ok
    finally:
        starter.join()


def test_stopping_removes_the_socket_and_leaving_removes_its_folder() -> None:
    with MemoryNode() as node:
        path = Path(node.socket_path)
        assert path.is_socket() and path.stat().st_mode & 0o777 == 0o600
        node.stop()
        assert not path.exists()
        node.start()
    assert not path.parent.exists()


def test_a_socket_file_that_nobody_listens_at_is_replaced(tmp_path: Path) -> None:
    path = str(tmp_path / "api.sock")
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(path)
    with MemoryNode(path), tenure.Client(path) as client:
        assert take(client).ok


def test_a_path_where_somebody_listens_is_refused(node: MemoryNode) -> None:
    with pytest.raises(OSError):
        MemoryNode(node.socket_path).start()


def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("mine")
    with pytest.raises(OSError):
        MemoryNode(str(path)).start()
    assert path.read_text() == "mine"


# --- faults -------------------------------------------------------------------------------------


def test_a_node_without_a_leader_does_nothing_and_says_so(
    node: MemoryNode, client: tenure.Client
) -> None:
    with node.unavailable():
        with pytest.raises(tenure.UnavailableError):
            client.take("k", ttl_ms=TTL_MS, deadline_ms=50)
        wire = Wire(node.socket_path)
        error = wire.refusal("take", owner="ours", key="k", ttl_ms=TTL_MS)
        wire.close()
        assert (error["code"], error["status"]) == ("UNAVAILABLE", "NO_LEADER")
        assert client.status().values["ready"] is False
    assert client.owner("k") is None


def test_what_is_invalid_is_invalid_without_a_leader(
    node: MemoryNode, client: tenure.Client
) -> None:
    with node.unavailable(), pytest.raises(tenure.InvalidError):
        client.claim("k", ttl_ms=TTL_MS, grace_ms=600_001)


def test_no_lease_expires_while_there_is_no_leader(
    node: MemoryNode, client: tenure.Client, clock: ManualClock
) -> None:
    take(client)
    with node.unavailable():
        clock.advance(10 * TTL_MS)
    assert client.renew("k", ttl_ms=TTL_MS).kind is Kind.RENEWED


def test_a_call_that_waits_is_answered_when_there_is_a_leader_again(
    node: MemoryNode, client: tenure.Client
) -> None:
    outcomes: list[tenure.Outcome] = []
    with node.unavailable():
        caller = threading.Thread(target=lambda: outcomes.append(take(client)))
        caller.start()
    caller.join()
    assert outcomes[0].ok


def test_a_silent_node_makes_a_call_unknown_and_does_nothing(
    node: MemoryNode, client: tenure.Client
) -> None:
    with node.silent(), pytest.raises(tenure.UnknownError):
        client.take("k", ttl_ms=TTL_MS, deadline_ms=50)
    assert client.owner("k") is None


def test_a_read_of_a_silent_node_is_unknown_too(
    node: MemoryNode, client: tenure.Client
) -> None:
    with node.silent(), pytest.raises(tenure.UnknownError):
        client.owner("k", deadline_ms=50)


def test_a_new_grant_that_nobody_heard_of_is_settled(
    node: MemoryNode, client: tenure.Client
) -> None:
    version = client.renew_all(ttl_ms=TTL_MS).set_version
    with node.silent(done=True), pytest.raises(tenure.UnknownError):
        client.take("k", ttl_ms=TTL_MS, deadline_ms=50)
    assert client.owner("k") is None
    left = client.renew_all(ttl_ms=TTL_MS, set_version=version).departures
    assert [one.reason for one in left] == [Reason.SETTLED]


def test_what_was_done_to_a_lease_of_ones_own_stays_done_unheard(
    node: MemoryNode, client: tenure.Client
) -> None:
    first, second = take(client, "a"), take(client, "b")
    with node.silent(done=True):
        with pytest.raises(tenure.UnknownError):
            client.take("a", ttl_ms=TTL_MS, deadline_ms=50)
        with pytest.raises(tenure.UnknownError):
            client.release("b", deadline_ms=50)
    lease = client.owner("a")
    assert lease is not None and first.token is not None and lease.token > first.token
    assert second.ok and client.owner("b") is None


def test_the_end_of_silence_ends_calls_that_wait(
    node: MemoryNode, client: tenure.Client
) -> None:
    errors: list[BaseException] = []

    def ask() -> None:
        try:
            client.take("k", ttl_ms=TTL_MS, deadline_ms=60_000)
        except tenure.TenureError as error:
            errors.append(error)

    wire = Wire(node.socket_path)
    with node.silent():
        caller = threading.Thread(target=ask)
        caller.start()
        while node._calls == 0:
            time.sleep(0.001)
    caller.join(10)
    wire.close()
    assert [type(error) for error in errors] == [tenure.UnknownError]


def test_faults_come_one_at_a_time(node: MemoryNode) -> None:
    with node.silent(), pytest.raises(RuntimeError), node.unavailable():
        pass


def test_a_grant_whose_reply_is_not_read_is_settled(
    node: MemoryNode, client: tenure.Client
) -> None:
    """A caller that is gone before the reply: the connection ends, and with it the grant."""
    wire = Wire(node.socket_path)
    wire.socket.shutdown(socket.SHUT_RD)
    wire.write([0, 1, "take", {"owner": "gone", "key": "k", "ttl_ms": TTL_MS}])
    wire.close()
    end_s = time.monotonic() + 5
    while client.status().values["tombstones"] == 0:
        assert time.monotonic() < end_s
        time.sleep(0.002)
    assert client.owner("k") is None


def test_a_caller_that_does_not_read_is_left_and_holds_up_nobody(
    node: MemoryNode, client: tenure.Client
) -> None:
    wire = Wire(node.socket_path)
    items = [tenure.Item(f"{number}", meta=b"m" * 1024) for number in range(100)]
    client.claim_many(items, ttl_ms=TTL_MS)
    wire.socket.setblocking(False)
    with pytest.raises((BlockingIOError, ConnectionError)):
        while True:
            wire.write([0, 1, "list", {}])
    assert client.count().count == 100
    wire.close()


# --- the rest -----------------------------------------------------------------------------------


def test_the_limits_of_the_table_may_be_set() -> None:
    with MemoryNode(limits=Limits(leases_max=1)) as node:
        with tenure.Client(node.socket_path) as client:
            take(client, "a")
            outcomes = client.claim_many(["a", "b"], ttl_ms=TTL_MS)
    assert [(one.kind, one.limit) for one in outcomes] == [
        (Kind.GRANTED, None),
        (Kind.UNAVAILABLE, "leases"),
    ]


def test_many_threads_take_one_key_and_tokens_say_who_was_last(
    node: MemoryNode, client: tenure.Client
) -> None:
    tokens: list[int | None] = []
    threads = [
        threading.Thread(
            target=lambda name=name: tokens.append(
                client.take("k", ttl_ms=TTL_MS, owner=name).token
            )
        )
        for name in (f"gw-{number}" for number in range(20))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lease = client.owner("k")
    assert lease is not None and len(set(tokens)) == 20
    assert lease.token == max(token for token in tokens if token is not None)


@pytest.mark.parametrize("kind", KINDS)
def test_a_namespace_is_purged_on_any_node(kind: str) -> None:
    with running(kind) as path, tenure.Client(path, namespace="mine") as client:
        take(client)
        client.take("k", ttl_ms=TTL_MS, namespace="other")
        purge_namespace(path, "mine")
        assert client.owner("k") is None
        assert client.owner("k", namespace="other") is not None


def test_the_command_line_talks_to_a_node_in_memory(node: MemoryNode) -> None:
    program = Path(os.environ.get("TENURE_BUILD", "")) / "tenure"
    if not program.is_file():
        pytest.skip("TENURE_BUILD names no build directory with a tenure")

    def run(*arguments: str) -> str:
        command = [str(program), *arguments, "--socket", node.socket_path]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
        return done.stdout

    run("claim", "k", "--owner", "ours", "--ttl", "30s")
    assert "ours" in run("owner", "k") and "ours" in run("list")
    assert "leader" in run("status") and "voter" in run("cluster", "members")
    assert "tenure_calls_total" in run("metrics")
    run("release", "k", "--owner", "ours")
    assert '"count": 0' in run("count", "--json")
