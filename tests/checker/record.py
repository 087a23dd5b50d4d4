"""Records a history of a real cluster under load and faults: `record.py SECONDS HISTORY [SEED]`.

Three nodes as processes on loopback. Eight clients, each with owners of its own and a connection
to one node, fight for few keys with every operation that a key has; a nemesis kills and pauses
nodes, mostly the leader. Each key is used for some hundred operations, then another takes its
place, so that the search for an order stays short. README.md of this folder says what a line
means; what is decided by chance comes from the seed, which is printed, but real processes are
never the same twice.
"""
import json
import os
import random
import signal
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cluster"))
from api import Api, ApiError, boot_ns  # noqa: E402
from harness import Cluster, TestFailure, check  # noqa: E402

CLIENTS = 8
SLOTS = 6  # keys in use at one time
OPERATIONS_PER_KEY = 600
TTLS_MS = (100, 300, 1000, 3000)
END_OF_ENTRY = 4294967295
MS = 1_000_000


class Keys:
    """The keys in use; one that has seen enough operations is followed by a new one."""

    def __init__(self):
        self.counts = [0] * SLOTS

    def pick(self, rng, slot):
        """The key of that slot now."""
        self.counts[slot] += 1
        return f"k{slot}-{self.counts[slot] // OPERATIONS_PER_KEY}"

    def some(self, rng, most):
        return [self.pick(rng, slot) for slot in rng.sample(range(SLOTS), rng.randint(1, most))]


class Belief:
    """What one owner believes about one key: its token, since when and until when."""

    def __init__(self, token, from_ns, until_ns):
        self.token = token
        self.from_ns = from_ns
        self.until_ns = until_ns


def believed_until(sent_ns, ttl_ms):
    """A holder gives its lease up 1 % early, counted from before it sent."""
    return sent_ns + (ttl_ms * MS) - (ttl_ms * MS) // 100


class Client(threading.Thread):
    """One gateway process: a connection at a time, one call at a time, two owners."""

    def __init__(self, cluster, number, keys, rng):
        super().__init__(daemon=True)
        self.node = cluster.nodes[number % len(cluster.nodes)]
        self.number = number
        self.keys = keys
        self.rng = rng
        self.owners = [f"gw-{number}-{i}" for i in range(2)]
        self.lines = []
        self.beliefs = {}  # (owner, key) -> Belief
        self.tokens = {}  # key -> the last token seen of it
        self.api = None
        self.process_name = ""
        self.should_stop = False
        self.failure = None

    def run(self):
        try:
            while not self.should_stop:
                if self.api is None and not self.connect():
                    time.sleep(0.01)
                    continue
                self.one_call()
                time.sleep(self.rng.uniform(0, 0.004))
            for owner, key in list(self.beliefs):
                self.stop_believing(owner, key, boot_ns())
        except Exception as error:  # a dead client would make the run look quiet
            self.failure = error
            raise

    def connect(self):
        try:
            self.api = Api(self.node.socket_path, 70.0)
            self.process_name = f"{self.node.number}.{self.api.peer_pid()}"
        except (ApiError, OSError):
            self.api = None
        return self.api is not None

    def disconnect(self):
        self.api.close()
        self.api = None

    # --- one call ---

    def one_call(self):
        owner = self.rng.choice(self.owners)
        method = self.rng.choices(
            ("take", "claim", "renew", "heartbeat", "release", "owner", "list", "renew_all",
             "release_all"),
            (12, 22, 20, 6, 12, 20, 3, 3, 1))[0]
        if method in ("renew_all", "release_all"):
            keys = ["*"]
        else:
            keys = self.keys.some(self.rng, 3 if method in ("claim", "renew", "release", "owner")
                                  and self.rng.random() < 0.2 else 1)
        lines = [self.asked(method, owner, key) for key in keys]
        parameters = self.parameters(method, owner, lines)
        self.ask(method, lines, parameters)

    def asked(self, method, owner, key):
        """The line of an operation as far as it is known before it is sent."""
        line = {"kind": "op", "client": self.number, "node": self.process_name, "key": key,
                "owner": owner, "op": "owner" if method == "list" else method}
        rng = self.rng
        if method in ("take", "claim", "renew", "heartbeat", "renew_all"):
            line["ttl_ms"] = rng.choice(TTLS_MS)
        if method == "claim":
            line["destroy"] = rng.random() < 0.3
            if rng.random() < 0.3:
                line["adopt"] = True
                line["grace_ms"] = rng.choice((0, 50, 500, 2000))
        if method == "renew":
            line["reestablish"] = rng.random() < 0.4
        if method in ("take", "claim") and rng.random() < 0.1:
            line["identity"] = rng.choice("AB")
        if method in ("renew", "heartbeat", "release") or line.get("destroy"):
            believed = self.beliefs.get((owner, key))
            token = believed.token if believed else self.tokens.get(key)
            if token and rng.random() < 0.4:
                line["if_token"] = token
        if method == "owner" and rng.random() < 0.1:
            line["stale"] = True
        return line

    def parameters(self, method, owner, lines):
        """What is sent; what all keys of a call share is taken from the first line."""
        first = lines[0]
        shared = ("ttl_ms", "destroy", "adopt", "grace_ms", "reestablish", "stale")
        for line in lines[1:]:
            for name in shared:
                line.pop(name, None)
            line.update({name: first[name] for name in shared if name in first})
            if not line.get("destroy") and method == "claim":
                line.pop("if_token", None)
            elif first.get("destroy") and method == "claim":
                line.pop("if_token", None)
        sent = {name: first[name] for name in shared if first.get(name)}
        if first.get("adopt"):
            sent["grace_ms"] = first["grace_ms"]
        if method == "list":
            sent["prefix"] = first["key"]
            return sent
        if not first.get("stale") and method != "owner":
            sent["owner"] = owner
        if first["key"] == "*":
            return sent
        elements = []
        for line in lines:
            element = {"key": line["key"]}
            if "if_token" in line:
                element["if_token"] = line["if_token"]
            if "identity" in line:
                element["identity"] = line["identity"].encode()
            elements.append(element)
        if len(elements) == 1:
            sent.update(elements[0])
        elif method == "owner":
            sent["keys"] = [element["key"] for element in elements]
        else:
            sent["keys"] = elements
        return sent

    def ask(self, method, lines, parameters):
        """Sends, waits, and writes down what happened."""
        # Short ones end UNKNOWN, some with what they did settled afterwards.
        deadline_ms = self.rng.choice((10, 12, 15, 100, 400, 3000, 3000, 3000, 3000, 3000))
        sent_ns = boot_ns()
        for line in lines:
            line["call_ns"] = sent_ns
            self.before_sending(line)
        result, error = None, None
        try:
            wanted = self.api.send(method, deadline_ms=deadline_ms, **parameters)
            if self.rng.random() < 0.005:
                raise ApiError("CONNECTION", "the client leaves")
            number, reply = self.api.receive()
            check(number == wanted, f"answer {number} to request {wanted}")
            result, error = reply.result, reply.error
        except ApiError as broken:
            error = broken
        returned_ns = boot_ns()
        for number, line in enumerate(lines):
            line["return_ns"] = returned_ns
            if error is None:
                self.answered(method, line, result, number)
            elif error.code in ("CONNECTION", "TIMEOUT"):
                line["error"] = "UNKNOWN"
            else:
                check(error.code in ("UNKNOWN", "UNAVAILABLE"), f"{line}: {error}")
                line["error"] = error.code
                line["by_node"] = True
            self.after_answer(line)
            self.lines.append(line)
        if error is not None and error.code in ("CONNECTION", "TIMEOUT"):
            self.disconnect()

    def answered(self, method, line, result, number):
        """Copies the outcome of one key into its line."""
        position = {name: result[name] for name in ("index", "place", "clock_ms")}
        if method in ("renew_all", "release_all"):
            outcome = {"outcome": "DONE"}
        elif method in ("owner", "list"):
            leases = result["leases"]
            if method == "list":
                leases = [lease for lease in leases if lease["key"] == line["key"]] or [None]
                number = 0
            lease = leases[number]
            outcome = {"outcome": "LEASE" if lease else "NONE"}
            if lease:
                outcome["holder"] = {name: lease[name]
                                     for name in ("owner", "state", "token", "ms_left")}
        else:
            outcome = dict(result["outcomes"][number])
            if outcome["outcome"] in ("UNAVAILABLE", "UNKNOWN"):
                line["error"] = outcome.pop("outcome")
                line["by_node"] = True
        line.update(position)
        line.update(outcome)
        seen = line.get("holder", line).get("token")
        if seen:
            self.tokens[line["key"]] = seen

    # --- belief ---

    def targets(self, line):
        """The beliefs that the call is about."""
        if line["key"] == "*":
            return [pair for pair in self.beliefs if pair[0] == line["owner"]]
        return [(line["owner"], line["key"])]

    def before_sending(self, line):
        """What is let go, or may end earlier by this call, is not believed any longer than that."""
        for pair in self.targets(line):
            belief = self.beliefs.get(pair)
            if belief is None:
                continue
            if line["op"] in ("release", "release_all"):
                self.stop_believing(*pair, line["call_ns"])
            elif "ttl_ms" in line:
                belief.until_ns = min(belief.until_ns,
                                      believed_until(line["call_ns"], line["ttl_ms"]))

    def after_answer(self, line):
        outcome = line.get("outcome")
        owner, key = line["owner"], line["key"]
        if line["op"] == "owner" or outcome is None or key == "*":
            return
        now_ns = line["return_ns"]
        if outcome in ("GRANTED", "RENEWED", "REESTABLISHED"):
            until_ns = believed_until(line["call_ns"], line["ttl_ms"])
            belief = self.beliefs.get((owner, key))
            if belief and belief.token == line["token"] and belief.until_ns >= now_ns:
                belief.until_ns = until_ns
                return
            self.stop_believing(owner, key, now_ns)
            if until_ns > now_ns:
                self.beliefs[owner, key] = Belief(line["token"], now_ns, until_ns)
        elif line.get("holder", {}).get("owner") != owner and outcome != "GRACE":
            self.stop_believing(owner, key, now_ns, told=True)

    def stop_believing(self, owner, key, now_ns, told=False):
        belief = self.beliefs.pop((owner, key), None)
        if belief is None:
            return
        self.lines.append({"kind": "belief", "client": self.number, "owner": owner, "key": key,
                           "token": belief.token, "from_ns": belief.from_ns,
                           "until_ns": max(belief.from_ns, min(belief.until_ns, now_ns))})
        if told:
            self.lines.append({"kind": "told", "owner": owner, "key": key, "token": belief.token,
                               "at_ns": now_ns})


class Nemesis:
    """Kills and pauses nodes, one fault at a time, and heals each."""

    def __init__(self, cluster, rng):
        self.cluster = cluster
        self.rng = rng
        self.lines = []

    def play(self, until_s):
        while time.monotonic() < until_s - 1.5:
            time.sleep(self.rng.uniform(0.3, 2.0))
            node = self.cluster.leader()
            if self.rng.random() < 0.3:
                node = self.rng.choice(self.cluster.followers())
            began_ns = boot_ns()
            lasts_s = self.rng.uniform(0.1, 1.5)
            if self.rng.random() < 0.6:
                text = f"kill node {node.number}"
                node.kill()
                time.sleep(lasts_s)
                self.cluster.restart(node)
            else:
                text = f"pause node {node.number}"
                node.pause()
                time.sleep(lasts_s)
                node.resume()
            self.lines.append({"kind": "fault", "at_ns": began_ns, "until_ns": boot_ns(),
                               "text": text})
        time.sleep(max(0.0, until_s - time.monotonic()))


def record(seconds, path, seed):
    """Runs the load for so long and writes the history; returns a line of figures."""
    keys = Keys()
    with Cluster(3) as cluster:
        clients = [Client(cluster, number, keys, random.Random(f"{seed} {number}"))
                   for number in range(CLIENTS)]
        nemesis = Nemesis(cluster, random.Random(f"{seed} nemesis"))
        for client in clients:
            client.start()
        nemesis.play(time.monotonic() + seconds)
        for client in clients:
            client.should_stop = True
        for client in clients:
            client.join(80)
            check(not client.is_alive(), f"client {client.number} ends")
            check(client.failure is None, f"client {client.number}: {client.failure!r}")
        cluster.digests()
    lines = [line for client in clients for line in client.lines] + nemesis.lines
    with open(path, "w", encoding="utf-8") as out:
        for line in [{"kind": "history", "fresh": True}] + lines:
            out.write(json.dumps(line) + "\n")
    operations = [line for line in lines if line["kind"] == "op"]
    unknown = sum(1 for line in operations if line.get("error") == "UNKNOWN")
    check(operations, "nothing was asked")
    return f"{len(operations)} operations, {unknown} unknown, {len(nemesis.lines)} faults"


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    seconds, path = float(sys.argv[1]), sys.argv[2]
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else random.SystemRandom().randrange(1 << 32)
    print(f"    seed {seed}")
    try:
        print(f"    {record(seconds, path, seed)}")
    except TestFailure as failure:
        print(f"    {failure}")
        sys.exit(1)


if __name__ == "__main__":
    main()
