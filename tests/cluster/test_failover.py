"""What survives kill -9: F10, K9, K11, M11, P10, P11."""
import random
import threading
import time

from api import ApiError
from harness import Cluster, check, wait_until

TTL_MS = 600000


def case_failover(rounds):
    """F10: GRANTED received, leader killed at once, the new leader has it with the same token."""
    outages_ms = []
    with Cluster(3) as cluster:
        for number in range(rounds):
            leader = cluster.leader()
            through = random.choice(cluster.up())
            key = f"box-{number}"
            with through.api() as api:
                granted = api.take(key, owner="a", ttl_ms=TTL_MS)
            leader.kill()
            killed_s = time.monotonic()
            check(granted["outcome"] == "GRANTED", f"round {number}: {granted}")
            with cluster.up()[0].api() as api:
                lease = api.retry(lambda: api.owner_of(key))
            outages_ms.append((time.monotonic() - killed_s) * 1000)
            check(lease and lease["token"] == granted["token"] and lease["owner"] == "a",
                  f"round {number}: granted {granted}, the new leader says {lease}")
            cluster.restart(leader)
        cluster.digests()
    outages_ms.sort()
    return (f"{rounds} of {rounds} grants present with their token; outage p50 "
            f"{outages_ms[len(outages_ms) // 2]:.0f} ms, worst {outages_ms[-1]:.0f} ms")


class Load(threading.Thread):
    """Takes and renews on one node until told to stop; remembers what was acknowledged."""

    def __init__(self, node, name):
        super().__init__(daemon=True)
        self.node = node
        self.owner = name
        self.granted = {}
        self.should_stop = False

    def run(self):
        number = 0
        while not self.should_stop:
            try:
                with self.node.api(5.0) as api:
                    while not self.should_stop:
                        key = f"{self.owner}-{number % 500}"
                        number += 1
                        # What is in flight is not acknowledged: forget it first.
                        self.granted.pop(key, None)
                        outcome = api.take(key, owner=self.owner, ttl_ms=TTL_MS)
                        if outcome["outcome"] == "GRANTED":
                            self.granted[key] = outcome["token"]
            except ApiError:
                time.sleep(0.02)

    def end(self):
        self.should_stop = True
        self.join(20)
        check(not self.is_alive(), "the load ends")


def case_all_killed(rounds):
    """K9, K11: kill -9 of all three under load; they start every time with equal digests."""
    acknowledged = 0
    restart_s = []
    with Cluster(3) as cluster:
        for number in range(rounds):
            loads = [Load(node, f"r{number}n{node.number}") for node in cluster.nodes]
            for load in loads:
                load.start()
            time.sleep(random.uniform(0.3, 1.5))
            for node in cluster.nodes:
                node.kill()
            for load in loads:
                load.end()
            began_s = time.monotonic()
            for node in cluster.nodes:
                node.start()
            cluster.wait_ready()
            restart_s.append(time.monotonic() - began_s)
            cluster.digests()
            for load in loads:
                check_present(load, number)
                acknowledged += len(load.granted)
    return (f"{acknowledged} acknowledged grants, none missing, digests equal {rounds} of "
            f"{rounds}; slowest start {max(restart_s):.1f} s")


def check_present(load, number):
    """Every acknowledged grant is there with its token, asked through the same node."""
    keys = list(load.granted)
    with load.node.api() as api:
        leases = api.owners_of(keys)
    for key, lease in zip(keys, leases):
        check(lease and lease["token"] == load.granted[key],
              f"round {number}: {key} was granted {load.granted[key]}, now {lease}")


def case_killed_voter(rounds):
    """M11: a voter that is killed in the middle of elections always comes back as a voter."""
    with Cluster(3) as cluster:
        for number in range(rounds):
            leader = cluster.leader()
            victim = random.choice(cluster.followers())
            leader.kill()
            time.sleep(random.uniform(0.0, 0.5))
            victim.kill()
            leader.start()
            victim.start()
            cluster.wait_ready()
            wait_until(lambda: cluster.count_voters() == 3, f"three voters, round {number}")
            for node in cluster.nodes:
                status = node.status()
                check(status["role"] == "voter",
                      f"round {number}: node {node.number} is {status['role']}")
        cluster.digests()
    return f"a voter again {rounds} of {rounds}"


def case_old_term(rounds):
    """F14: after all were killed a read finds what exists or is refused; it never finds nothing."""
    found = refused = 0
    with Cluster(3) as cluster:
        with cluster.nodes[0].api() as api:
            token = api.take("box", owner="a", ttl_ms=TTL_MS)["token"]
        for number in range(rounds):
            for node in cluster.nodes:
                node.kill()
            for node in cluster.nodes:
                node.start()
            time.sleep(random.uniform(0.0, 0.8))
            for node in random.sample(cluster.nodes, 2):
                node.kill()
                node.start()
            for node in cluster.nodes:
                one, other = read_until_found(node, token, number)
                found += one
                refused += other
            cluster.wait_ready()
        cluster.digests()
    return f"{found} reads found it, {refused} were refused, none found nothing"


def read_until_found(node, token, number):
    """(1, how many reads were refused before); a read that finds nothing fails the test."""
    refused, end_s = 0, time.monotonic() + 20
    while time.monotonic() < end_s:
        try:
            with node.api(5.0) as api:
                lease = api.owner_of("box", deadline_ms=200)
        except ApiError:
            refused += 1
            time.sleep(0.01)
            continue
        check(lease and lease["token"] == token, f"round {number}: a read found {lease}")
        return 1, refused
    check(False, f"round {number}: node {node.number} answers no read")
    return 0, refused
