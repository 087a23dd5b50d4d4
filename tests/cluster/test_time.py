"""Leases and the clock: P3, P4, P12, T4, T10, and what an idle cluster writes."""
import os
import subprocess
import time

from api import ApiError
from harness import Cluster, Skip, check, wait_until

# A debug or sanitizer build on a busy machine answers late; what may never be is "early".
LATE_MS = 150.0


def case_expiry(rounds):
    """A silent lease of 200 ms is gone after 200..350 ms, never early (P3, P4, T4, T10)."""
    latest_ms = 0.0
    with Cluster(3) as cluster:
        holder = cluster.nodes[0]
        peer = cluster.nodes[1]
        with holder.api() as mine, peer.api() as theirs:
            for number in range(rounds):
                key = f"box-{number}"
                sent_s = time.monotonic()
                check(mine.take(key, owner="a", ttl_ms=200)["outcome"] == "GRANTED", "take")
                asked_s, answered_s = claim_until_granted(theirs, key)
                check((answered_s - sent_s) * 1000 >= 200.0,
                      f"round {number}: granted {(answered_s - sent_s) * 1000:.1f} ms after the "
                      "holder sent its request")
                gone_ms = (asked_s - sent_s) * 1000
                latest_ms = max(latest_ms, gone_ms)
                check(gone_ms <= 200 + LATE_MS, f"round {number}: held {gone_ms:.1f} ms")
    return f"{rounds} of {rounds} gone after 200..{latest_ms:.0f} ms, none early"


def claim_until_granted(api, key):
    """(when the granted claim was asked, when it was answered)."""
    end_s = time.monotonic() + 10
    while time.monotonic() < end_s:
        asked_s = time.monotonic()
        outcome = api.claim(key, owner="b", ttl_ms=10000)
        if outcome["outcome"] == "GRANTED":
            return asked_s, time.monotonic()
        check(outcome["outcome"] == "HELD", f"claim: {outcome}")
        check(outcome["holder"]["owner"] == "a", f"claim: {outcome}")
        time.sleep(0.005)
    check(False, f"{key} never ended")
    return 0.0, 0.0


NEWCOMER_TTL_MS = 500
CLOCK_MS = 1.0  # the resolution of the cluster's clock
GRACE_LEFT_MS = 2000  # what shall be left of the grace when the newcomer asks first


def case_newcomer(rounds):
    """T10: a node that joins long after an expiry knows its age: no wait, and the exact grace.

    The long form joins 15 s after the expiry in its first round.
    """
    rests_s, took_ms, late_ms = [], [], []
    for number in range(rounds):
        rests_s.append(15 if rounds > 1 and number == 0 else 2)
        with Cluster(4, ready=False) as cluster:
            *old, fresh = cluster.nodes
            cluster.start(old)
            # Not the leader: its end would stop the clock for a moment, and blur the measure.
            ends = claim_and_crash(cluster.followers()[0], ("plain", "graced"))
            lag = ClockLag(cluster)
            # No event ends the rest: it is the age that the lease shall have.
            time.sleep(NEWCOMER_TTL_MS / 1000 + rests_s[-1])
            fresh.start(join=cluster.leader().address)
            cluster.wait_ready([fresh])
            with fresh.api() as api:
                took_ms.append(claim_at_once(api))
                late_ms.append(adopt_after_grace(api, *ends["graced"], lag))
    return (f"{' + '.join(map(str, rests_s))} s after the expiry: claimed in {max(took_ms):.1f} "
            f"ms; every GRACE exact, adopted {max(late_ms):.0f} ms after its end at most")


class ClockLag:
    """How far the cluster's clock may be behind the wall: it stands while nothing commits (P4)."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.began = cluster.leader().status()

    def most_ms(self):
        """Since this was made, by the leader's own account, and for each election in between."""
        now = self.cluster.leader().status()
        elections = now["term"] - self.began["term"]
        lost_ms = now["clock_lost_ms"] - (0 if elections else self.began["clock_lost_ms"])
        return LATE_MS + lost_ms + elections * (250 + OUTAGE_MS)


def claim_and_crash(node, keys):
    """A claims on a node that dies with it; {key: (due on the cluster's clock, sent at)}."""
    ends = {}
    with node.api() as api:
        for key in keys:
            sent_s = time.monotonic()
            clock_ms, granted = answer(api, key, owner="a", ttl_ms=NEWCOMER_TTL_MS)
            check(granted["outcome"] == "GRANTED", f"{key}: {granted}")
            ends[key] = (clock_ms + granted["ms_left"], sent_s)
        node.kill()
    return ends


def answer(api, key, **parameters):
    """(cluster clock of the outcome, the outcome) of one claim."""
    result = api.result("claim", key=key, **parameters)
    outcome = result["outcomes"][0]
    return outcome.get("clock_ms", result["clock_ms"]), outcome


def claim_at_once(api):
    """One request, one answer: GRANTED; how many ms that took."""
    began_s = time.monotonic()
    granted = api.claim("plain", owner="c", ttl_ms=60000)
    took_ms = (time.monotonic() - began_s) * 1000
    check(granted["outcome"] == "GRANTED", f"the newcomer's first claim: {granted}")
    return took_ms


def adopt_after_grace(api, due_ms, sent_s, lag):
    """GRACE with what is left since the lease was due, then GRANTED; how many ms after the end."""
    due_s = sent_s + NEWCOMER_TTL_MS / 1000
    asked_s = time.monotonic()
    grace_ms = int((asked_s - due_s) * 1000) + GRACE_LEFT_MS
    end_s = due_s + grace_ms / 1000
    ask = {"owner": "c", "ttl_ms": 60000, "adopt": True, "grace_ms": grace_ms}
    clock_ms, outcome = answer(api, "graced", **ask)
    check(outcome["outcome"] == "GRACE", f"the first with a grace of {grace_ms} ms: {outcome}")
    left_ms, least_ms = outcome["grace_ms_left"], (end_s - time.monotonic()) * 1000
    most_ms = (end_s - asked_s) * 1000 + lag.most_ms()
    check(least_ms - CLOCK_MS <= left_ms <= most_ms,
          f"{left_ms} ms of grace left, by the wall {least_ms:.0f}..{most_ms:.0f}")
    while outcome["outcome"] == "GRACE":
        check(outcome["grace_ms_left"] == due_ms + grace_ms - clock_ms,
              f"due at {due_ms}, grace {grace_ms}, clock {clock_ms}: {outcome}")
        time.sleep(0.005)
        asked_s = time.monotonic()
        clock_ms, outcome = answer(api, "graced", **ask)
    check(outcome["outcome"] == "GRANTED", f"after the grace: {outcome}")
    check(clock_ms >= due_ms + grace_ms, f"adopted at {clock_ms}, {due_ms} + {grace_ms} is the end")
    early_ms = (end_s - time.monotonic()) * 1000
    check(early_ms <= CLOCK_MS, f"adopted {early_ms:.1f} ms before the end of the grace")
    late_ms, most_ms = (asked_s - end_s) * 1000, lag.most_ms()
    check(late_ms <= most_ms, f"adopted {late_ms:.0f} ms after the end, of {most_ms:.0f} allowed")
    return max(late_ms, 0.0)  # asked before the end, and done after it


def case_elections(rounds):
    """T1: leaders die every second; a silent lease of 4 s ends all the same, and never early."""
    ttl_ms, elections, ends_ms = 4000, 0, []
    with Cluster(3) as cluster:
        for number in range(rounds):
            elections = 0
            with cluster.followers()[0].api() as api:
                sent_s = time.monotonic()
                api.take(f"box-{number}", owner="a", ttl_ms=ttl_ms)
            while time.monotonic() < sent_s + ttl_ms / 1000 - 0.5:
                time.sleep(0.5)
                killed = cluster.leader()
                killed.kill()
                elections += 1
                time.sleep(0.5)
                killed.start()
                cluster.wait_ready()
            answered_s = claim_anywhere(cluster, f"box-{number}", sent_s)
            ends_ms.append((answered_s - sent_s) * 1000)
            check(ends_ms[-1] >= ttl_ms, f"granted after {ends_ms[-1]:.0f} ms of {ttl_ms}")
            # P4: 100 ms, and 250 ms and a commit for each election; an outage stops the clock.
            limit_ms = ttl_ms + 100 + elections * (250 + OUTAGE_MS)
            check(ends_ms[-1] <= limit_ms,
                  f"round {number}: held {ends_ms[-1]:.0f} ms over {elections} elections")
    return f"{ttl_ms} ms over {elections} elections: gone after {max(ends_ms):.0f} ms at most"


OUTAGE_MS = 1500.0  # without a leader that commits, election and restart of the killed one included


def claim_anywhere(cluster, key, sent_s):
    """Claims through any node until it is granted; when the answer came."""
    while time.monotonic() < sent_s + 60:
        for node in cluster.up():
            try:
                with node.api(2.0) as api:
                    outcome = api.claim(key, owner="b", ttl_ms=10000, deadline_ms=500)
            except ApiError:
                continue
            if outcome["outcome"] == "GRANTED":
                return time.monotonic()
        time.sleep(0.02)
    check(False, f"{key} never ended")
    return 0.0


def case_idle(_rounds):
    """A cluster without leases appends nothing; with one alive the clock moves each 250 ms."""
    with Cluster(3) as cluster:
        leader = cluster.leader()
        # Starting up writes: membership, the barrier of the term, numbers of origins.
        wait_until(lambda: is_still(leader, 1.5), "the cluster comes to rest", 30)
        before = leader.status()
        time.sleep(5.0)
        after = leader.status()
        check(after["last_index"] == before["last_index"],
              f"idle for 5 s: index {before['last_index']} became {after['last_index']}")
        with leader.api() as api:
            api.take("box", owner="a", ttl_ms=60000)
            clocks = []
            for _ in range(40):
                clocks.append((time.monotonic(), api.status()["clock_ms"]))
                time.sleep(0.05)
        gap_ms = longest_rest(clocks)
        check(gap_ms <= 400, f"the clock rested {gap_ms:.0f} ms with a lease alive")
    return f"idle for 5 s: nothing appended; alive: clock moves each {gap_ms:.0f} ms"


def is_still(node, seconds):
    before = node.status()
    time.sleep(seconds)
    after = node.status()
    return before and after and before["last_index"] == after["last_index"]


def longest_rest(clocks):
    """The longest real time, in ms, in which the clock showed one value."""
    longest_s, since_s, value = 0.0, clocks[0][0], clocks[0][1]
    for now_s, clock_ms in clocks:
        if clock_ms != value:
            since_s, value = now_s, clock_ms
        longest_s = max(longest_s, now_s - since_s)
    return longest_s * 1000


LEASES = 1000
LEFT_MS = 2000


class Holders:
    """A thousand leases of one owner, renewed again and again; counts what is not RENEWED."""

    def __init__(self, nodes):
        self.nodes = nodes
        self.keys = [f"box-{number}" for number in range(LEASES)]
        self.lapsed = 0

    def claim_all(self):
        with self.nodes[0].api() as api:
            outcomes = api.many("claim", self.keys, owner="a", ttl_ms=LEFT_MS)
        check(all(outcome["outcome"] == "GRANTED" for outcome in outcomes), "the claim of all")

    def renew_for(self, seconds, pause_s=0.2):
        """Renews all every `pause_s`, through whichever node answers; returns the successes."""
        successes, end_s = 0, time.monotonic() + seconds
        while time.monotonic() < end_s:
            successes += self.renew()
            time.sleep(pause_s)
        return successes

    def renew(self):
        for node in self.nodes:
            if node.is_up():
                try:
                    with node.api(1.0) as api:
                        outcomes = api.many("renew", self.keys, owner="a", ttl_ms=LEFT_MS,
                                            deadline_ms=300)
                except ApiError:
                    continue
                words = [outcome["outcome"] for outcome in outcomes]
                self.lapsed += sum(word in ("LAPSED", "LOST", "STALE") for word in words)
                if all(word == "RENEWED" for word in words):
                    return 1
        return 0


def case_outage(rounds):
    """P12: a stopped leader, killed leaders and a full disk on a majority lapse nobody."""
    with Cluster(3) as cluster:
        holders = Holders(cluster.nodes)
        holders.claim_all()
        for _ in range(rounds):
            holders.renew_for(1.0)
            stopped = cluster.leader()
            stopped.pause()
            holders.renew_for(10.0)
            stopped.resume()
            holders.renew_for(2.0)
            killed = cluster.leader()
            killed.kill()
            holders.renew_for(3.0)
            cluster.restart(killed)
        lost_quorum(cluster, holders)
        check(holders.renew_for(2.0) > 0, "renewals go through at the end")
        check(holders.lapsed == 0, f"{holders.lapsed} leases did not survive an outage")
    return f"{LEASES} leases with {LEFT_MS} ms: 0 lapsed"


def lost_quorum(cluster, holders):
    """Two of three stand still for longer than every lease has left."""
    victims = cluster.followers()
    for node in victims:
        node.pause()
    holders.renew_for(6.0)
    for node in victims:
        node.resume()


def case_full_disk(_rounds):
    """P12: 30 s of full disk on a majority; nobody lapses, and service comes back by itself."""
    if os.geteuid() != 0:
        raise Skip("needs root, to mount small file systems")
    with Cluster(3, ready=False) as cluster:
        small = cluster.nodes[:2]
        mounted = []
        try:
            for node in small:
                # Room for the segments that libraft prepares ahead, and a little more.
                subprocess.run(["mount", "-t", "tmpfs", "-o", "size=96m", "tmpfs", node.data],
                               check=True)
                mounted.append(node.data)
            cluster.start()
            return play_full_disk(cluster, small)
        finally:
            for node in cluster.nodes:
                node.end()
            for data in mounted:
                subprocess.run(["umount", data], check=False)


def play_full_disk(cluster, small):
    """Fills two disks while a thousand leases are renewed, waits 30 s, makes room."""
    holders = Holders(cluster.nodes)
    holders.claim_all()
    check(holders.renew_for(1.0) > 0, "renewals go through before")
    ballast = [os.path.join(node.data, "ballast") for node in small]
    for path in ballast:
        fill(path)
    # What libraft has prepared is used up first: renew without a pause until it fails.
    end_s = time.monotonic() + 60
    while holders.renew():
        check(time.monotonic() < end_s, "the disks never became full")
    through = holders.renew_for(30.0)
    check(through == 0, f"{through} renewals went through while a majority's disks were full")
    for path in ballast:
        os.unlink(path)
    for node in small:
        if node.process.poll() is not None:  # a node may fail-stop on a full disk; it restarts
            node.process = None
            node.start()
    began_s = time.monotonic()
    wait_until(holders.renew, "renewals go through again", 30, pause_s=0.05)
    back_ms = (time.monotonic() - began_s) * 1000
    check(holders.lapsed == 0, f"{holders.lapsed} leases lapsed by the full disk")
    return f"30 s full: 0 of {LEASES} lapsed; served again {back_ms:.0f} ms after there was room"


def fill(path):
    """Writes zeroes until the file system is full."""
    with open(path, "wb", buffering=0) as file:
        block = bytes(1 << 20)
        try:
            while True:
                file.write(block)
        except OSError:
            block = bytes(4096)
        try:
            while True:
                file.write(block)
        except OSError:
            return
