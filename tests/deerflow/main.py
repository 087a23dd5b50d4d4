"""Runs DeerFlow's ownership suites, unchanged, with Tenure in the place of Redis: see README.md."""

from __future__ import annotations

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import threading
import time
import xml.etree.ElementTree
from dataclasses import dataclass, field

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CLIENT = ROOT / "client" / "python"
LEAVE_OUT = HERE / "leases_under_a_second.txt"
sys.path.append(str(ROOT / "tests" / "cluster"))

import harness  # noqa: E402

NEEDED_FOLDERS = ("backend", "docker", "scripts")
NEEDED_MODULES = ("pytest", "pydantic", "httpx", "anyio", "requests", "yaml", "dotenv",
                  "packaging", "msgpack")
SUITES = ("store", "provider", "extra", "sequences")
SUITES_UNDER_KILLS = ("store", "provider", "sequences")


class Unusable(Exception):
    """What was given cannot be used, and why."""


@dataclass
class Counts:
    """Of one suite. `notes`: what else is to be said of it."""

    name: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        text = f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"
        return "; ".join([f"{self.name:<10} {text}", *self.notes])


# --- What is given --------------------------------------------------------------------------------


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tests/deerflow/run", description=__doc__,
        epilog="Arguments after -- go to pytest for DeerFlow's suites.")
    parser.add_argument("checkout", nargs="?", metavar="CHECKOUT",
                        help="a DeerFlow work tree, or its bare git directory")
    parser.add_argument("--ref", default="HEAD", help="commit of a bare git directory (HEAD)")
    parser.add_argument("--suite", action="append", choices=SUITES, help="only these; repeatable")
    parser.add_argument("--kill-leader", type=float, metavar="SECONDS",
                        help="kill -9 and restart the leader that often; leaves out, by name, the "
                        f"tests in {LEAVE_OUT.name}, and the suite `extra`")
    parser.add_argument("--at-any-node", action="store_true",
                        help="with --kill-leader: gateways beside the leader as well, of whom some "
                        "get the error of a call in flight when their own node dies")
    parser.add_argument("--repeat", type=int, default=1, help="run the suites that often (1)")
    parser.add_argument("--sequences", type=int, default=40, help="how many random sequences (40)")
    parser.add_argument("--seed", type=int, default=1, help="of the random sequences (1)")
    parser.add_argument("--python", help="a Python >= 3.12; default: one that is found")
    parser.add_argument("--packages", choices=("installed", "debian"),
                        help="use what that Python has, or Debian's packages, unpacked; default: "
                        "installed, if all is there that is needed")
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / "build" / "deerflow",
                        help="scratch folder (build/deerflow)")
    arguments = sys.argv[1:]
    for_pytest = []
    if "--" in arguments:
        at = arguments.index("--")
        arguments, for_pytest = arguments[:at], arguments[at + 1:]
    options = parser.parse_args(arguments)
    options.for_pytest = for_pytest
    if options.checkout is None:
        raise Unusable("needs a DeerFlow checkout as argument: a work tree, or its bare git "
                       "directory; nothing of DeerFlow is kept here")
    return options


def work_tree(given: str, ref: str, work: pathlib.Path) -> tuple[pathlib.Path, str]:
    """(folder, commit) of DeerFlow's source; of a bare git directory it is unpacked once."""
    checkout = pathlib.Path(given).resolve()
    if not checkout.is_dir():
        raise Unusable(f"{given} is no folder")

    def git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(["git", "-c", "safe.directory=*", "-C", str(checkout), *arguments],
                              capture_output=True, check=False)

    named = git("rev-parse", "--verify", f"{ref}^{{commit}}")
    commit = named.stdout.decode().strip()
    if (checkout / "backend" / "tests").is_dir():
        return checkout, commit or "not in git"
    if named.returncode != 0:
        raise Unusable(f"{given} is neither a DeerFlow work tree nor a git directory with {ref}: "
                       f"{named.stderr.decode().strip()}")
    tree = work / f"deerflow-{commit}"
    if not tree.is_dir():
        unpack(git("archive", commit, *NEEDED_FOLDERS), tree)
    return tree, commit


def unpack(archive: subprocess.CompletedProcess[bytes], tree: pathlib.Path) -> None:
    if archive.returncode != 0:
        raise Unusable(f"git archive: {archive.stderr.decode().strip()}")
    part = tree.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    packed = part / "archive.tar"
    packed.write_bytes(archive.stdout)
    with tarfile.open(packed) as tar:
        tar.extractall(part)
    packed.unlink()
    part.rename(tree)


# --- The Python that DeerFlow runs on -------------------------------------------------------------


def is_new_enough(python: str) -> bool:
    try:
        return subprocess.run(
            [python, "-c", "import sys; sys.exit(sys.version_info < (3, 12))"],
            capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def find_python(given: str | None) -> str:
    versions = pathlib.Path(os.environ.get("PYENV_ROOT", pathlib.Path.home() / ".pyenv"))
    candidates = [given] if given else [
        "python3.12", "python3.13", "python3",
        *map(str, sorted(versions.glob("versions/3.1[23]*/bin/python")))]
    for candidate in candidates:
        if is_new_enough(candidate):
            return candidate
    raise Unusable(f"no Python >= 3.12 among {', '.join(candidates)}; name one with --python")


def missing_modules(python: str) -> list[str]:
    """What that Python cannot import of what is needed; a pydantic 1 counts as missing."""
    program = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    try:\n"
        "        module = importlib.import_module(name)\n"
        "        if name == 'pydantic' and not module.VERSION.startswith('2.'): print(name)\n"
        "    except ImportError: print(name)\n")
    done = subprocess.run([python, "-c", program, *NEEDED_MODULES], capture_output=True, text=True,
                          check=True)
    return done.stdout.split()


def debian_packages(work: pathlib.Path) -> pathlib.Path:
    """The folder with Debian's packages, unpacked once; nothing is installed."""
    folder = work / "debian"
    if not (folder / "ready").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        lines = (HERE / "debian_packages.txt").read_text(encoding="utf-8").splitlines()
        names = [line for line in lines if line and not line.startswith("#")]
        done = subprocess.run(["apt-get", "download", "-qq", *names], cwd=folder,
                              capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Unusable(f"apt-get download: {done.stderr.strip()}")
        for package in folder.glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", str(package), str(folder / "root")], check=True)
        (folder / "ready").touch()
    return folder / "root" / "usr" / "lib" / "python3" / "dist-packages"


def packages_path(options: argparse.Namespace, python: str) -> list[str]:
    """What goes on the path beside DeerFlow and ourselves."""
    missing = missing_modules(python)
    if options.packages == "installed" and missing:
        raise Unusable(f"{python} lacks {', '.join(missing)}; try --packages debian")
    if options.packages == "installed" or not missing:
        return []
    return [str(debian_packages(options.work))]


# --- Running --------------------------------------------------------------------------------------


class LeaderKiller(threading.Thread):
    """kill -9 for whoever leads, and a new start at once, every so many seconds."""

    def __init__(self, cluster: harness.Cluster, period_s: float) -> None:
        super().__init__(daemon=True)
        self.cluster = cluster
        self.period_s = period_s
        self.kills = 0
        self.failure: Exception | None = None
        self._end = threading.Event()

    def run(self) -> None:
        next_s = time.monotonic() + self.period_s
        while not self._end.wait(max(0.0, next_s - time.monotonic())):
            next_s += self.period_s
            try:
                leader = self.cluster.leader()
                leader.kill()
                self.kills += 1
                self.cluster.restart(leader)
            except Exception as failure:
                self.failure = failure
                return

    def end(self) -> None:
        self._end.set()
        self.join()


class Runner:
    """Starts suites in a Python of DeerFlow's kind, with everything on its path."""

    def __init__(self, options: argparse.Namespace, tree: pathlib.Path, python: str,
                 cluster: harness.Cluster) -> None:
        self.options = options
        self.tree = tree
        self.python = python
        self.tests = tree / "backend" / "tests"
        path = [HERE / "plugin", HERE / "replacements", CLIENT,
                tree / "backend" / "packages" / "harness",
                tree / "backend" / "packages" / "extension-api", tree / "backend",
                *packages_path(options, python)]
        self.environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, path)),
            "PYTHONDONTWRITEBYTECODE": "1",
            "TENURE_TEST_SOCKETS": ",".join(node.socket_path for node in cluster.nodes),
            # Nobody listens there: whether a Redis runs on this machine makes no difference.
            "DEER_FLOW_TEST_REDIS_URL": "redis://127.0.0.1:1/15",
        }
        if options.kill_leader:
            self.environment["TENURE_TEST_LEAVE_OUT"] = str(LEAVE_OUT)
            if not options.at_any_node:
                self.environment["TENURE_TEST_AVOID_LEADER"] = "yes"

    def run(self, suite: str) -> Counts:
        print(f"== {suite}")
        if suite == "sequences":
            return self._sequences()
        if suite == "extra":
            return self._pytest(suite, HERE, "-c", os.devnull, "--rootdir", str(ROOT),
                                str(HERE / "test_injection.py"),
                                str(CLIENT / "tests" / "test_store_contract.py"),
                                str(CLIENT / "tests" / "test_deerflow.py"))
        names = ["test_sandbox_ownership_store"] if suite == "store" else [
            "test_sandbox_orphan_reconciliation", "test_aio_sandbox_provider",
            "test_warm_pool_lifecycle"]
        files = [str(self.tests / f"{name}.py") for name in names]
        return self._pytest(suite, self.tree / "backend", "-p", "tenure_for_deerflow", *files,
                            *self.options.for_pytest)

    def _start(self, folder: pathlib.Path, *arguments: str) -> tuple[int, str]:
        """Runs it, shows what it prints, and returns (exit status, that)."""
        with subprocess.Popen([self.python, "-W", "ignore", *arguments], cwd=folder, text=True,
                              env=self.environment, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, errors="replace") as process:
            lines = []
            for line in process.stdout or ():
                print(line, end="")
                lines.append(line)
        return process.returncode, "".join(lines)

    def _pytest(self, suite: str, folder: pathlib.Path, *arguments: str) -> Counts:
        report = self.options.work / f"{suite}.xml"
        report.unlink(missing_ok=True)
        status, said = self._start(
            folder, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "deerflow_replacements",
            f"--junitxml={report}", *arguments)
        counts = Counts(suite)
        if not report.exists():
            counts.failed = 1
            counts.notes.append(f"pytest ended with {status} and no report")
            return counts
        for case in xml.etree.ElementTree.parse(report).getroot().iter("testcase"):
            kinds = {child.tag for child in case}
            counts.failed += bool(kinds & {"failure", "error"})
            counts.skipped += "skipped" in kinds
            counts.passed += not kinds & {"failure", "error", "skipped"}
        left_out = re.search(r"(\d+) deselected", said)
        if left_out:
            counts.notes.append(f"{left_out[1]} left out by name")
        if status not in (0, 1):
            counts.failed += 1
            counts.notes.append(f"pytest ended with {status}")
        return counts

    def _sequences(self) -> Counts:
        options = self.options
        arguments = ["--count", str(options.sequences), "--seed", str(options.seed)]
        if options.kill_leader:
            arguments.append("--long-only")
        status, said = self._start(HERE, str(HERE / "sequences.py"), *arguments)
        found = re.search(r"sequences: (\d+) same, (\d+) undecided, (\d+) different", said)
        if not found:
            return Counts("sequences", failed=1, notes=[f"ended with {status} and no verdict"])
        same, undecided, different = map(int, found.groups())
        return Counts("sequences", same, different or int(status != 0), undecided,
                      [f"random: {found[0].partition(': ')[2]}"])


def run_suites(options: argparse.Namespace, runner: Runner,
               killer: LeaderKiller | None) -> list[Counts]:
    suites = options.suite or (SUITES_UNDER_KILLS if killer else SUITES)
    results = []
    for _ in range(options.repeat):
        for suite in suites:
            before = killer.kills if killer else 0
            counts = runner.run(suite)
            if killer:
                counts.notes.append(f"leader killed {killer.kills - before} times")
            results.append(counts)
    return results


def print_summary(results: list[Counts], commit: str, killer: LeaderKiller | None) -> bool:
    """Prints what came of it; True if nothing failed."""
    print(f"== DeerFlow {commit}, three nodes of {os.environ['TENURE_BUILD']}")
    for counts in results:
        print(counts)
    if killer and killer.failure:
        print(f"the leader could not be killed and restarted any more: {killer.failure}")
    failed = sum(counts.failed for counts in results)
    print(f"{sum(counts.passed for counts in results)} passed, {failed} failed, "
          f"{sum(counts.skipped for counts in results)} skipped")
    return failed == 0 and not (killer and killer.failure)


def main() -> int:
    options = parse_arguments()
    options.work.mkdir(parents=True, exist_ok=True)
    tree, commit = work_tree(options.checkout, options.ref, options.work)
    python = find_python(options.python)
    os.environ["TENURE_BUILD"] = subprocess.run(
        [str(ROOT / "tests" / "ensure-built")], stdout=subprocess.PIPE, text=True,
        check=True).stdout.strip()
    with harness.Cluster(3) as cluster:
        runner = Runner(options, tree, python, cluster)
        killer = LeaderKiller(cluster, options.kill_leader) if options.kill_leader else None
        if killer:
            killer.start()
        try:
            results = run_suites(options, runner, killer)
        finally:
            if killer:
                killer.end()
    return 0 if print_summary(results, commit, killer) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Unusable as reason:
        print(f"tests/deerflow/run: {reason}", file=sys.stderr)
        sys.exit(2)
