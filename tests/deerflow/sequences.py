"""Random sequences of calls on `RaftOwnershipStore`, each answer compared with model.py.

Three gateways, each with a store of a short and one of a long TTL, at the nodes whose sockets stand
in TENURE_TEST_SOCKETS. Prints the seed, and all steps of the first sequence that differs. A
sequence counts as undecided where a call ran too near to the end of a lease, or ended in an error.
Exit status 0: none differed and at least one was decided.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import threading
import time
import uuid

import deerflow_replacements  # noqa: F401  (first: what follows imports DeerFlow)
from model import Caller, Model, Moment, Undecided

from tenure.deerflow import OwnershipBackendError, RaftOwnershipStore, RenewOutcome

OWNERS = ("gateway:a", "gateway:b", "gateway:c")
SHORT_S, LONG_S = 0.3, 60.0
PAUSE_S = 0.4  # over the short TTL, with a margin for a slow machine
CALLS = {
    "take": (18, lambda store, key: store.take(key)),
    "claim": (16, lambda store, key: store.claim(key)),
    "claim_destroy": (16, lambda store, key: store.claim(key, for_destroy=True)),
    "renew": (20, lambda store, key: store.renew(key)),
    "release": (12, lambda store, key: store.release(key)),
    "owner": (12, lambda store, key: store.owner(key)),
}
PAUSE_WEIGHT = 6


class Run:
    """One sequence in a namespace of its own."""

    def __init__(self, seed: str, ttls_s: tuple[float, ...]) -> None:
        self.random = random.Random(seed)
        self.ttls_s = ttls_s
        self.steps: list[str] = []
        sockets = os.environ["TENURE_TEST_SOCKETS"].split(",")
        namespace = f"sequence-{uuid.uuid4().hex}"
        self.stores = {
            Caller(owner, ttl_s): RaftOwnershipStore(
                owner_id=owner, socket_path=sockets[at % len(sockets)], ttl_seconds=ttl_s,
                namespace=namespace)
            for at, owner in enumerate(OWNERS) for ttl_s in ttls_s
        }

    def play(self, steps: int) -> str:
        """`same`, `undecided` or `different`."""
        model = Model()
        try:
            for _ in range(steps):
                if not self._step(model):
                    return "different"
        except (Undecided, OwnershipBackendError) as reason:
            self.steps.append(f"undecided: {reason}")
            return "undecided"
        finally:
            for store in self.stores.values():
                store.close()
        return "same"

    def _step(self, model: Model) -> bool:
        names = [*CALLS, "pause"]
        weights = [weight for weight, _ in CALLS.values()]
        weights.append(PAUSE_WEIGHT if SHORT_S in self.ttls_s else 0)
        name = self.random.choices(names, weights)[0]
        if name == "pause":
            self.steps.append("pause")
            threading.Event().wait(PAUSE_S)
            return True
        caller, key = self.random.choice(list(self.stores)), self.random.choice(("box-1", "box-2"))
        earliest_s = time.monotonic()
        answer = CALLS[name][1](self.stores[caller], key)
        when = Moment(earliest_s, time.monotonic())
        expected = model.ask(name, key, caller, when)
        if isinstance(answer, RenewOutcome):
            answer = answer.value
        self.steps.append(f"{name} {key} by {caller.owner} ttl {caller.ttl_s}: {answer!r}")
        if type(answer) is type(expected) and answer == expected:
            return True
        self.steps.append(f"expected {expected!r}")
        return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--long-only", action="store_true", help="no lease of under a second")
    options = parser.parse_args()
    ttls_s = (LONG_S / 2, LONG_S) if options.long_only else (SHORT_S, LONG_S)
    tally = {"same": 0, "undecided": 0, "different": 0}
    for number in range(options.count):
        run = Run(f"{options.seed}/{number}", ttls_s)
        verdict = run.play(options.steps)
        tally[verdict] += 1
        if verdict == "different":
            print(f"sequence {number} of seed {options.seed} differs:")
            print("".join(f"    {step}\n" for step in run.steps), end="")
            break
    print("sequences: " + ", ".join(f"{count} {verdict}" for verdict, count in tally.items()))
    return 0 if tally["same"] > 0 and tally["different"] == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
