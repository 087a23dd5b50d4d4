"""Plays the cases of this folder: `cases.py [CASE [ROUNDS]]`; counts stand in tests/rounds.

A case is a function `case_NAME(rounds)` of a test_*.py here. Output is cmocka's, so that
tests/summary counts each case; a case that cannot run here says why and is counted as skipped.
"""
import importlib
import os
import signal
import sys
import time
import traceback

from harness import Skip, TestFailure

HERE = os.path.dirname(os.path.abspath(__file__))
MODULES = ("test_life", "test_failover", "test_time", "test_network", "test_start",
           "test_founding", "test_hostile")
SKIPPED = 77


def all_cases():
    """Every case by its name, in the order of the modules."""
    cases = {}
    for name in MODULES:
        module = importlib.import_module(name)
        for attribute in vars(module):
            if attribute.startswith("case_"):
                cases[attribute.removeprefix("case_")] = getattr(module, attribute)
    return cases


def short_rounds():
    """The short count of each row of this folder."""
    counts = {}
    with open(os.path.join(HERE, "..", "rounds"), encoding="utf-8") as table:
        for line in table:
            if line.startswith("cluster/"):
                name, short = line.split()[:2]
                counts[name.removeprefix("cluster/")] = int(short)
    return counts


def play(name, case, rounds):
    """Runs one case and prints how it went; returns its state."""
    print(f"[ RUN      ] cluster__{name}")
    began_s = time.monotonic()
    try:
        figure = case(rounds)
        print(f"    {figure or 'done'}; {rounds} rounds in {time.monotonic() - began_s:.1f} s")
        state = "      OK"
    except Skip as reason:
        print(f"    skipped: {reason}")
        state = " SKIPPED"
    except TestFailure as failure:
        print(f"    {failure}")
        state = " FAILED "
    except Exception:  # a test must end in a verdict, whatever broke
        traceback.print_exc(file=sys.stdout)
        state = " FAILED "
    print(f"[ {state} ] cluster__{name}")
    return state.strip()


def main():
    # ctest ends a hanging test by SIGTERM first: the nodes must not outlive it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    cases = all_cases()
    chosen = sys.argv[1:2] or list(short_rounds())
    states = []
    for name in chosen:
        if name not in cases:
            sys.exit(f"cases.py: no case {name}; there are {', '.join(cases)}")
        rounds = int(sys.argv[2]) if len(sys.argv) > 2 else short_rounds()[name]
        states.append(play(name, cases[name], rounds))
    passed, failed, skipped = (states.count(state) for state in ("OK", "FAILED", "SKIPPED"))
    if len(chosen) > 1:
        print(f"{passed} passed, {failed} failed, {skipped} skipped")
    sys.exit(1 if failed else SKIPPED if not passed else 0)


if __name__ == "__main__":
    main()
