"""Plays the cases of this folder: `play.py [CASE [ROUNDS]]`; counts stand in tests/rounds.

Output is cmocka's, so that tests/summary counts each test; a case that cannot run here says why and
is counted as skipped.
"""
import importlib.util
import os
import signal
import subprocess
import sys
import time
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = os.path.join(HERE, "..", "..", "client", "python")
sys.path[:0] = [PACKAGE, os.path.join(HERE, "..", "cluster")]

SKIPPED = 77


class Report:
    """Tells of each test of pytest in the form of cmocka."""

    @staticmethod
    def pytest_runtest_logreport(report):
        name = "python__" + "_".join(report.nodeid.split("/")[-1].split())
        if report.when == "setup":
            print(f"[ RUN      ] {name}")
        state = {"failed": " FAILED ", "skipped": " SKIPPED"}.get(report.outcome)
        if state is None and report.when == "call":
            state = "      OK"
        if state is not None:
            print(f"[ {state} ] {name}")

    @staticmethod
    def pytest_report_teststatus(report):
        """No letter a test: it would stand before the lines of this class."""
        counts = report.when == "call" or report.outcome != "passed"
        return (report.outcome if counts else ""), "", report.outcome.upper()


def missing(*modules):
    """Says which of them is not installed; true if one is."""
    for module in modules:
        if importlib.util.find_spec(module) is None:
            print(f"skipped: the Python module {module} is not installed")
            return True
    return False


def case_client(rounds):
    """Every test of client/python/tests."""
    if missing("pytest", "msgpack"):
        return SKIPPED
    import pytest
    options = ["-q", "-p", "no:cacheprovider", "--tb=short", os.path.join(PACKAGE, "tests")]
    for _ in range(rounds):
        if pytest.main(options, plugins=[Report()]) != 0:
            return 1
    return 0


def case_types(rounds):
    """mypy --strict over the package."""
    if missing("mypy"):
        return SKIPPED
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", os.devnull, "-p", "tenure"]
    code = 0
    for _ in range(rounds):
        print("[ RUN      ] python__types")
        failed = subprocess.run(command, cwd=PACKAGE, check=False).returncode != 0
        print(f"[ {' FAILED ' if failed else '      OK'} ] python__types")
        code = 1 if failed else code
    return code


def case_threads(rounds):
    """64 threads on one client while leaders are killed, for so many seconds."""
    if missing("msgpack"):
        return SKIPPED
    from threads import play
    print("[ RUN      ] python__threads")
    try:
        print(f"    {play(rounds)}")
    except Exception:  # a test must end in a verdict, whatever broke
        traceback.print_exc(file=sys.stdout)
        print("[  FAILED  ] python__threads")
        return 1
    print("[       OK ] python__threads")
    return 0


def case_versions(rounds):
    """Every test under Python 3.10 to 3.13."""
    from versions import play
    code = 0
    for _ in range(rounds):
        for version, (passed, text) in play(os.path.abspath(PACKAGE)).items():
            name = f"python__{version.replace('.', '_')}"
            print(f"[ RUN      ] {name}\n    Python {version}: {text}")
            state = {None: " SKIPPED", True: "      OK", False: " FAILED "}[passed]
            print(f"[ {state} ] {name}")
            code = 1 if passed is False else code
    return code


def short_rounds():
    """The short count of each row of this folder."""
    counts = {}
    with open(os.path.join(HERE, "..", "rounds"), encoding="utf-8") as table:
        for line in table:
            name, short = (line.split() + ["", ""])[:2]
            if name.startswith("python/") and short != "-":
                counts[name.removeprefix("python/")] = int(short)
    return counts


def main():
    # ctest ends a hanging test by SIGTERM first: the nodes must not outlive it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    cases = {name.removeprefix("case_"): function for name, function in globals().items()
             if name.startswith("case_")}
    counts = short_rounds()
    chosen = sys.argv[1:2] or list(counts)
    codes = []
    for name in chosen:
        if name not in cases:
            sys.exit(f"play.py: no case {name}; there are {', '.join(cases)}")
        rounds = int(sys.argv[2]) if len(sys.argv) > 2 else counts.get(name, 1)
        began_s = time.monotonic()
        codes.append(cases[name](rounds))
        print(f"{name}: {rounds} rounds in {time.monotonic() - began_s:.1f} s")
    if any(code not in (0, SKIPPED) for code in codes):
        sys.exit(1)
    sys.exit(SKIPPED if SKIPPED in codes and 0 not in codes else 0)


if __name__ == "__main__":
    main()
