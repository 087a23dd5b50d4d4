"""What measurements share: the release build, clusters of processes, programs that print JSON."""
import json
import os
import subprocess
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
READY_DEADLINE_S = 30.0


def build():
    """The release build's folder."""
    if "TENURE_BENCH_BUILD" in os.environ:
        return os.environ["TENURE_BENCH_BUILD"]
    subprocess.run([os.path.join(ROOT, "scripts", "setup")], check=True, stdout=subprocess.DEVNULL)
    for command in (["cmake", "--preset", "release"],
                    ["cmake", "--build", "--preset", "release"]):
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return os.path.join(ROOT, "build", "release")


def run_json(*command):
    """What a program prints as one JSON object."""
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False, timeout=120, text=True)
    if not done.stdout.strip():
        raise SystemExit(f"bench: {' '.join(command)} said nothing (exit {done.returncode})")
    return json.loads(done.stdout.strip().splitlines()[-1])


class Cluster:
    """`count` nodes by `tenure cluster dev`."""

    def __init__(self, folder, programs, count):
        self.folder, self.tenure, self.count = folder, os.path.join(programs, "tenure"), count
        subprocess.run([self.tenure, "cluster", "dev", str(count), "--dir", folder], check=True,
                       stdout=subprocess.DEVNULL, timeout=60)

    def stop(self):
        subprocess.run([self.tenure, "cluster", "dev", "--stop", "--dir", self.folder], check=False,
                       stdout=subprocess.DEVNULL, timeout=60)

    def sockets(self):
        return [os.path.join(self.folder, str(i + 1), "api.sock") for i in range(self.count)]

    def status(self, path):
        return run_json(self.tenure, "--socket", path, "status", "--json")

    def clean(self):
        """Ends every lease, so that no workload meets what another one left."""
        path = self.leader_socket()
        run_json(self.tenure, "--socket", path, "--namespace", "bench", "purge", "--json")
        end_s = time.monotonic() + READY_DEADLINE_S
        while any(self.status(each)["leases_own"] for each in self.sockets()):
            if time.monotonic() > end_s:
                raise SystemExit("bench: the table does not become empty")
            time.sleep(0.05)

    def leader_socket(self):
        end_s = time.monotonic() + READY_DEADLINE_S
        while time.monotonic() < end_s:
            for path in self.sockets():
                if self.status(path).get("state") == "leader":
                    return path
        raise SystemExit("bench: no leader")
