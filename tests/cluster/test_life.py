"""How nodes are born, stopped and kept apart: M12, K15, start, stop, exit codes."""
import os
import re
import signal
import subprocess
import tempfile
import time

from harness import Cluster, check, wait_until

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")


def case_ready(_rounds):
    """Three nodes become three voters; SIGTERM keeps membership, hands over, exits 0 (M12)."""
    began_s = time.monotonic()
    with Cluster(3) as cluster:
        ready_s = time.monotonic() - began_s
        check(cluster.count_voters() == 3, "three voters")
        leader = cluster.leader()
        with leader.api() as api:
            granted = api.take("box", owner="a", ttl_ms=60000)
        check(granted["outcome"] == "GRANTED", f"take: {granted}")
        stop_s = time.monotonic()
        code = leader.stop()
        stop_s = time.monotonic() - stop_s
        check(code == 0, f"SIGTERM: exit {code}")
        check(stop_s < 5.0, f"SIGTERM took {stop_s:.1f} s")
        check(not os.path.exists(leader.socket_path), "the socket is gone after an orderly stop")
        with cluster.leader().api() as api:
            lease = api.owner_of("box")
        check(lease and lease["token"] == granted["token"], f"after the hand-over: {lease}")
        check(cluster.count_voters() == 3, "SIGTERM is not leave")
        cluster.restart(leader)
        for node in cluster.nodes:
            check(node.stop() == 0, f"node {node.number} stops with 0")
    return f"ready after {ready_s:.1f} s, stopped in {stop_s * 1000:.0f} ms"


def case_voters(_rounds):
    """A cluster made for one voter stays so, whatever its nodes are configured for."""
    with Cluster(3, ready=False) as cluster:
        first, *others = cluster.nodes
        first.start()
        wait_until(first.status, "node 1 answers")
        check(first.status()["voters_designed"] == 3, "before the birth: the configuration")
        with first.api() as api:
            for name, value in (("voters", 2), ("token_floor", 2 ** 62 + 1)):
                error = api.call("cluster_init", **{name: value}).error
                check(error and error.code == "INVALID" and error.names.get("field") == name,
                      f"{name} {value}: {error}")
        code, out, err = cluster.cli(first, "cluster", "init", "--voters", "1")
        check(code == 0, f"cluster init: exit {code}: {out}{err}")
        for node in others:
            node.start(join=first.address)
        cluster.wait_ready()
        time.sleep(2.0)  # long enough for the growth that must not come
        status = first.status()
        check((status["voters_designed"], status["voters"]) == (1, 1), f"status: {status}")
        check(not status["degraded"], f"status: {status}")
        first.kill()
        cluster.restart(first)
        check(first.status()["voters_designed"] == 1, "after a restart too")
    return "one voter of three nodes"


def case_one_process(_rounds):
    """K15: a second process on a data directory exits 3 and names the first; kill -9 frees it."""
    with Cluster(1) as cluster:
        node = cluster.nodes[0]
        pid = node.process.pid
        command = node.command(None)
        command[command.index(node.socket_path)] = node.socket_path + "2"
        second = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        said = second.stdout + second.stderr
        check(second.returncode == 3, f"the second exits {second.returncode}: {said}")
        check(f"in use by pid {pid}" in said, f"the second names pid {pid}: {said}")
        check(node.is_ready(), "the first serves on")
        node.process.send_signal(signal.SIGKILL)
        node.process.wait()
        node.process = None
        began_s = time.monotonic()
        node.start()
        wait_until(node.is_ready, "ready again after kill -9")
    return f"ready {(time.monotonic() - began_s) * 1000:.0f} ms after kill -9 and start"


def case_readme(_rounds):
    """The tour of the README, as it stands there, in an empty folder."""
    with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as readme:
        block = re.search(r"^```console\n(.*?)^```", readme.read(), re.M | re.S)[1]
    commands = [line[2:] for line in block.splitlines() if line.startswith("$ ")]
    script = "".join(f"{command}; echo exit $?\n" for command in commands)
    environment = {**os.environ, "PATH": f"{os.environ['TENURE_BUILD']}:{os.environ['PATH']}"}
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", "/var/tmp")) as folder:
        try:
            done = subprocess.run(["bash", "-c", script], cwd=folder, env=environment, text=True,
                                  capture_output=True, timeout=60, check=False)
        finally:
            subprocess.run(["bash", "-c", commands[-1]], cwd=folder, env=environment,
                           capture_output=True, timeout=60, check=False)
    codes = re.findall(r"^exit (\d+)$", done.stdout, re.M)
    # Only B's claim of what A has is refused.
    expected = ["1" if " claim " in command else "0" for command in commands]
    check(codes == expected, f"exit codes {codes}: {done.stdout}{done.stderr}")
    return f"{len(commands)} commands"
