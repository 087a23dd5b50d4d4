"""64 threads on one client while leaders are killed: no reply is lost or is another call's.

Each thread has keys of its own and knows what the node must say of them: the token of its last
grant, and a mark in the metadata that was written with it. Where a call ended UNKNOWN the thread
knows nothing of that key until its next grant. Tokens of all threads are compared at the end: two
calls that got one reply would show the same.
"""
import gc
import os
import random
import threading
import time

from harness import Cluster, check, wait_until
from tenure import Client, Kind, UnavailableError, UnknownError, now_ns

THREADS = 64
KEYS = 5  # of each thread
TTL_MS = 600_000
DEADLINE_MS = 5000
END_MS_MAX = DEADLINE_MS + 100
ABSENT = (None, None)


class Worker(threading.Thread):
    """Calls with random verbs on keys of its own; ``failure`` says what a reply had wrong."""

    def __init__(self, client, name, seed):
        super().__init__()
        self.client = client
        self.random = random.Random(seed)
        self.keys = {f"t{name}-{number}": ABSENT for number in range(KEYS)}
        self.asked = self.answered = self.unavailable = self.unknown = 0
        self.tokens = []
        self.worst_ms = 0.0
        self.failure = None
        self.should_stop = False

    def run(self):
        try:
            while not self.should_stop:
                self.ask(self.random.choice(list(self.keys)))
        except Exception as error:  # told by the main thread
            self.failure = f"{type(error).__name__}: {error}"
            self.should_stop = True

    def ask(self, key):
        verbs = [self.take] if self.keys[key] is None else \
            [self.take, self.renew, self.look, self.release]
        verb = self.random.choice(verbs)
        self.asked += 1
        began_ns = now_ns()
        try:
            verb(key)
            self.answered += 1
        except UnavailableError:
            self.unavailable += 1
        except UnknownError:
            self.unknown += 1
            if verb != self.look:
                self.keys[key] = None
        finally:
            self.worst_ms = max(self.worst_ms, (now_ns() - began_ns) / 1e6)

    def take(self, key):
        mark = os.urandom(8)
        outcome = self.client.take(key, ttl_ms=TTL_MS, meta=mark)
        check(outcome.kind is Kind.GRANTED and outcome.key == key, f"take {key}: {outcome}")
        self.keys[key] = (outcome.token, mark)
        self.tokens.append(outcome.token)

    def renew(self, key):
        token = self.keys[key][0]
        outcome = self.client.renew(key, ttl_ms=TTL_MS)
        right = (Kind.LAPSED, None) if token is None else (Kind.RENEWED, token)
        check((outcome.kind, outcome.token) == right, f"renew {key} with {token}: {outcome}")

    def look(self, key):
        token, mark = self.keys[key]
        lease = self.client.owner(key)
        found = ABSENT if lease is None else (lease.token, lease.meta)
        check(found == (token, mark), f"owner {key}: {lease}, not {token}")
        check(lease is None or lease.key == key, f"owner {key}: {lease}")

    def release(self, key):
        token = self.keys[key][0]
        outcome = self.client.release(key, if_token=token)
        right = Kind.NOT_OWNER if token is None else Kind.RELEASED
        check(outcome.kind is right, f"release {key} with {token}: {outcome}")
        self.keys[key] = ABSENT


def resources():
    """(descriptors, threads) of this process."""
    gc.collect()
    return len(os.listdir("/proc/self/fd")), threading.active_count()


def kill_leaders(cluster, workers, seconds):
    """Kills whoever leads, the client's own node too, until the time is over; returns how often."""
    kills = 0
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s and not any(worker.failure for worker in workers):
        time.sleep(random.uniform(0.3, 1.5))
        leader = cluster.leader()
        leader.kill()
        kills += 1
        time.sleep(random.uniform(0.0, 0.5))
        cluster.restart(leader)
    return kills


def play(seconds):
    """Fails with a TestFailure; returns what was seen."""
    seed = random.randrange(2**32)
    print(f"    seed {seed}")
    with Cluster(3) as cluster:
        before = resources()
        client = Client(cluster.nodes[0].socket_path, owner="me", deadline_ms=DEADLINE_MS)
        workers = [Worker(client, name, seed + name) for name in range(THREADS)]
        for worker in workers:
            worker.start()
        try:
            kills = kill_leaders(cluster, workers, seconds)
        finally:
            for worker in workers:
                worker.should_stop = True
            for worker in workers:
                worker.join(60)
        failures = [worker.failure for worker in workers if worker.failure]
        check(not failures, f"{len(failures)} threads failed, the first: {failures[:1]}")
        for worker in workers:  # what is known at the end is what the cluster has
            for key, known in worker.keys.items():
                if known is not None:
                    worker.look(key)
        client.close()
        wait_until(lambda: resources() == before, f"{resources()} become {before} again", 5)
        return summary(workers, kills)


def summary(workers, kills):
    asked, answered, unavailable, unknown = (
        sum(getattr(worker, name) for worker in workers)
        for name in ("asked", "answered", "unavailable", "unknown"))
    tokens = [token for worker in workers for token in worker.tokens]
    worst_ms = max(worker.worst_ms for worker in workers)
    check(asked == answered + unavailable + unknown, "every call ends in a reply or an error")
    check(len(set(tokens)) == len(tokens), "two calls got one token")
    check(all(worker.tokens == sorted(worker.tokens) for worker in workers), "tokens fell")
    check(answered > asked / 2, f"only {answered} of {asked} were answered")
    check(worst_ms <= END_MS_MAX, f"a call took {worst_ms:.0f} ms of {DEADLINE_MS}")
    return (f"{asked} calls, {answered} answered, {unavailable} unavailable, {unknown} unknown, "
            f"{kills} leaders killed, slowest {worst_ms:.0f} ms")
