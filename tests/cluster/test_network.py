"""Pauses and cuts: F8, F9, N3, S1, P6."""
import time

from api import ApiError
from harness import Cluster, check, wait_until


def case_paused_leader(rounds):
    """F9: the old leader wakes up after an election and never tells what is no longer true."""
    told = 0
    with Cluster(3) as cluster:
        for number in range(rounds):
            key = f"box-{number}"
            old = cluster.leader()
            with old.api() as api:
                api.take(key, owner="a", ttl_ms=60000)
                # The question is in the old leader's socket before it wakes.
                old.pause()
                moved = take_over(cluster, key)
                api.send("owner", key=key)
                old.resume()
                told += check_answer(api, key, moved, number)
            cluster.wait_ready()
    return f"{rounds} of {rounds}: {told} answers with the new owner, the rest UNAVAILABLE"


def take_over(cluster, key):
    """B takes the key from A at the new leader; returns the outcome."""
    new = cluster.leader()
    with new.api() as api:
        moved = api.retry(lambda: api.take(key, owner="b", ttl_ms=60000))
    check(moved["outcome"] == "GRANTED", f"take-over: {moved}")
    return moved


def check_answer(api, key, moved, number):
    """1 if the old leader named B, 0 if it said UNAVAILABLE; anything else is a stale read."""
    _, reply = api.receive()
    if reply.error:
        check(reply.error.code == "UNAVAILABLE", f"round {number}: {reply.error}")
        return 0
    lease = reply.result["leases"][0]
    check(lease and lease["owner"] == "b" and lease["token"] == moved["token"],
          f"round {number}: {key} was moved to b with {moved['token']}, old leader says {lease}")
    return 1


def case_rejoin(rounds):
    """F8: a follower that was cut off comes back without an election; N3: and within a second.

    The long form cuts it off for a minute in its first round.
    """
    healed_ms, cuts_s = [], []
    with Cluster(3, with_proxies=True) as cluster:
        for number in range(rounds):
            cuts_s.append(60 if rounds > 1 and number == 0 else 8)
            leader = cluster.leader()
            term = leader.status()["term"]
            lonely = cluster.followers()[0]
            cut_off(cluster, lonely)
            failed = drive(leader, cuts_s[-1])
            check(failed == 0, f"round {number}: {failed} requests failed during the cut")
            check(not lonely.is_ready(), f"round {number}: a node that is cut off is not ready")
            for node in cluster.nodes:
                node.proxy.heal()
            began_s = time.monotonic()
            wait_until(lonely.is_ready, "ready after the heal", pause_s=0.02)
            healed_ms.append((time.monotonic() - began_s) * 1000)
            failed = drive(leader, 2)
            check(failed == 0, f"round {number}: {failed} requests failed after the heal")
            check(cluster.leader() is leader and leader.status()["term"] == term,
                  f"round {number}: the node that came back forced an election")
        cluster.digests()
    return (f"cut off for {' + '.join(map(str, cuts_s))} s: no election, no failed request; ready "
            f"{max(healed_ms):.0f} ms after the heal")


def cut_off(cluster, lonely):
    """Black-holes every link of that node, in both directions."""
    others = [node.number for node in cluster.nodes if node is not lonely]
    lonely.proxy.cut_from(others)
    for node in cluster.nodes:
        if node is not lonely:
            node.proxy.cut_from([lonely.number])


def drive(node, seconds):
    """Takes on that node for so long; how many failed."""
    failed, end_s = 0, time.monotonic() + seconds
    with node.api() as api:
        while time.monotonic() < end_s:
            try:
                api.take("driven", owner="a", ttl_ms=60000)
            except ApiError:
                failed += 1
            time.sleep(0.01)
    return failed


def case_black_hole(rounds):
    """N3: a silent link is declared down within 2 s; what waits behind it ends by its deadline."""
    with Cluster(3, with_proxies=True) as cluster:
        for number in range(rounds):
            lonely = cluster.followers()[0]
            with lonely.api() as api:
                api.take("box", owner="a", ttl_ms=60000)
                cut_off(cluster, lonely)
                began_s = time.monotonic()
                try:
                    outcome = api.take("box", owner="a", ttl_ms=60000, deadline_ms=3000)
                    check(False, f"round {number}: behind a cut came {outcome}")
                except ApiError as error:
                    waited_s = time.monotonic() - began_s
                    check(error.code in ("UNAVAILABLE", "UNKNOWN"), f"round {number}: {error}")
                    check(waited_s < 3.2, f"round {number}: a deadline of 3 s took {waited_s:.1f}")
            check(not lonely.is_ready(), "a node that reaches nobody is not ready")
            for node in cluster.nodes:
                node.proxy.heal()
            wait_until(lonely.is_ready, "a link within a second of the heal", 5)
    return f"{rounds} of {rounds}"


def case_far_behind(rounds):
    """S1: a follower that was away for longer than the log is kept comes back by a snapshot."""
    writes, kept = 6000, 500
    with Cluster(3, options=["--snapshot-entries", str(kept)]) as cluster:
        for _ in range(rounds):
            away = cluster.followers()[0]
            away.kill()
            write_many(cluster.leader(), writes)
            began_s = time.monotonic()
            cluster.restart(away)
            caught_up_s = time.monotonic() - began_s
            check(caught_up_s < 5.0, f"caught up after {caught_up_s:.1f} s")
            cluster.digests()
    return f"{writes} entries behind: caught up in {caught_up_s:.1f} s"


def case_lagging(rounds):
    """S1: a follower that is megabytes behind, all of them in the log, gets them as entries."""
    renewals = 6
    keys = [f"lagging-{number:05}-{'x' * 180}" for number in range(10000)]
    with Cluster(3) as cluster:
        for number in range(rounds):
            away = cluster.followers()[0]
            away.kill()
            with cluster.leader().api(60.0) as api:
                for _ in range(renewals):
                    outcomes = api.many("claim", keys, owner="a", ttl_ms=600000)
                    held = sum(outcome["outcome"] == "GRANTED" for outcome in outcomes)
                    check(held == len(keys), f"round {number}: {held} of {len(keys)} held")
            began_s = time.monotonic()
            cluster.restart(away)
            caught_up_s = time.monotonic() - began_s
            check(caught_up_s < 5.0, f"caught up after {caught_up_s:.1f} s")
            cluster.digests()
    return f"{renewals} x {len(keys)} keys behind: caught up in {caught_up_s:.1f} s"


def write_many(node, count):
    """That many takes, one entry each: one at a time would take minutes, so eight in flight."""
    with node.api(60.0) as api:
        api.pipelined("take", [f"box-{number % 100}" for number in range(count)], in_flight=8,
                      owner="a", ttl_ms=600000)
