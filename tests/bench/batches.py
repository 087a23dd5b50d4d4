"""What batches cost others: p99 of single renewals while another connection renews 10,000 keys.

Usage: tests/bench/run batches [ROUNDS]

Each round plays four phases: single renewals alone; beside one batch a second on another connection
to the same node; beside batches back to back there; and beside batches back to back on another
cluster of the same machine. That last one says what the machine's cores and disk are short of; what
the third costs beyond it is the batches' way through the node. Hazard I7 wants the third below
twice the first. That is judged by the median of JUDGED_ROUNDS rounds or more, on a machine that has
nothing else to do; fewer rounds print the figures and fail for nothing.
"""
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from bed import Cluster, READY_DEADLINE_S, build, run_json

SECONDS = 4
KEYS = 10000
RATIO_MAX = 2.0
JUDGED_ROUNDS = 3


class Batches:
    """A process that renews 10,000 keys of its own on one node, from the claim to `end`."""

    def __init__(self, load, cluster, path, period_ms):
        # It outlasts what is measured beside it: the keys of that are claimed in between.
        self.process = subprocess.Popen(
            [load, "renew", "1", str(2 * SECONDS + 4), path, str(period_ms)],
            stdout=subprocess.DEVNULL)
        end_s = time.monotonic() + READY_DEADLINE_S
        while cluster.status(path)["leases_own"] < KEYS:
            if time.monotonic() > end_s:
                raise SystemExit("batches: the keys are not claimed")
            time.sleep(0.05)

    def end(self):
        if self.process.poll() is not None:
            raise SystemExit("batches: they ended before what was measured beside them")
        self.process.terminate()
        self.process.wait()


def singles(load, path):
    """The figures of single renewals, one after the other."""
    played = run_json(load, "renew_one", "1", str(SECONDS), path)
    if played["errors"] + played["unexpected"]:
        raise SystemExit(f"batches: not every single renewal was RENEWED: {played}")
    return played


def beside(load, path, batched, period_ms=0):
    """Single renewals at that node while batches run on the leader of the cluster `batched`."""
    batches = Batches(load, batched, batched.leader_socket(), period_ms)
    try:
        return singles(load, path)
    finally:
        batches.end()


def play_round(load, cluster, other):
    """The four phases; {phase: figures}."""
    def clean():
        cluster.clean()
        other.clean()
        return cluster.leader_socket()
    return {
        "alone": singles(load, clean()),
        "a batch a second": beside(load, clean(), cluster, 1000),
        "batches back to back": beside(load, clean(), cluster),
        "batches elsewhere": beside(load, clean(), other),
    }


def show(played):
    """Prints medians and spread of every phase; returns its median ratio to `alone`."""
    print(f"{'single renewals beside':24} {'p50 ms':>8} {'p99 ms':>8} {'min..max of p99':>20} "
          f"{'p99 ratio':>10}")
    ratios = {}
    for phase in played[0]:
        p99_ms = [figures[phase]["p99_ms"] for figures in played]
        ratios[phase] = statistics.median(
            figures[phase]["p99_ms"] / figures["alone"]["p99_ms"] for figures in played)
        print(f"{phase:24} {statistics.median(f[phase]['p50_ms'] for f in played):8.3f} "
              f"{statistics.median(p99_ms):8.3f} {min(p99_ms):9.3f}..{max(p99_ms):9.3f} "
              f"{ratios[phase]:10.2f}")
    return ratios


def verdict(ratio, rounds):
    """(false when judged and missed, what to say)."""
    text = f"p99 of others beside 10,000-key batches < {RATIO_MAX:g} x ({ratio:.2f} x)"
    if rounds < JUDGED_ROUNDS:
        return True, f"not judged by {rounds} rounds: {text}"
    return ratio < RATIO_MAX, f"{'holds ' if ratio < RATIO_MAX else 'MISSED'} {text}"


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else JUDGED_ROUNDS
    programs = build()
    load = os.path.join(programs, "bench_load")
    folder = tempfile.mkdtemp(prefix="batches-", dir=programs)
    clusters = []
    try:
        for name in ("cluster", "other"):
            clusters.append(Cluster(os.path.join(folder, name), programs, 3))
        played = [play_round(load, *clusters) for _ in range(rounds)]
    finally:
        for cluster in clusters:
            cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)
    passed, text = verdict(show(played)["batches back to back"], rounds)
    print(text)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
