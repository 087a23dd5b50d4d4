"""Random commands through the state machine and through the model; every answer is compared.

Usage: tests/model/run [--commands N] [--seed S] [--driver FILE] [--keep-going]
       tests/model/run random N        (a row of tests/rounds)

Episodes of some thousand commands, each with limits and periods of its own, on few keys and many
owners, so that everything meets everything: leases that end while they are written, repeats of old
numbers, settles, purges, clock jumps, a full table, forgotten tombstones, snapshots in the middle.
A difference prints the seed of its episode and the entries that led to it.
"""
import argparse
import os
import random
import subprocess
import sys
import time

from model import DEL, OWN, Difference, Model

EPISODE_COMMANDS = 5000
TRACE_ENTRIES = 12
WRITES = {"granted", "transferred", "regranted", "reestablished", "teardown"}  # kinds of changes


class Driver:
    """fsm_driver as a subprocess: one line there, one line back."""

    def __init__(self, path):
        self.process = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, line):
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise Difference(f"the driver died at: {line[:2000]}")
        return answer[:-1].decode()

    def close(self):
        self.process.stdin.close()
        if self.process.wait() != 0:
            raise Difference("the driver ended with an error")


class Sender:
    """A node: an origin, its numbers, and what it sent under them."""

    def __init__(self):
        self.origin = 0
        self.next = 1
        self.confirmed = 0
        self.sent = []  # commands


def settings_for(rng):
    """Limits of an episode, or new ones in the middle of it. Removal keeps up with what is due, or
    it is slow and most of what has ended or is forgotten waits for it."""
    return {
        "leases_max": rng.choice([3, 8, 100, 100]),
        "leases_per_namespace_max": rng.choice([0, 0, 2, 6]),
        "tombstones_max": rng.choice([1, 2, 5, 1000, 1000]),
        "tombstone_retention_ms": rng.choice([1, 50, 400, 3000, 60000, 86399999]),
        "departures_max": rng.choice([1, 3, 10, 1024]),
        "origins_max": rng.choice([2, 3, 5]),
        "origin_retention_ms": rng.choice([1000, 5000, 3600000]),
        "removal_slice": rng.choice([1, 1, 2, 5, 1000, 1000, 1000]),
        "voters_wanted": rng.choice([1, 3, 5]),
    }


class Episode:
    """One cluster from its birth on."""

    def __init__(self, driver, seed):
        self.driver = driver
        self.rng = rng = random.Random(seed)
        self.settings = settings_for(rng)
        self.model = Model(self.settings)
        self.namespaces = ["default", "b", "c", "d"][:rng.choice([1, 2, 2, 4])]
        self.keys = [f"k{i}" for i in range(rng.choice([2, 5, 12, 40]))]
        self.owners = [f"o{i}" for i in range(rng.choice([2, 3, 6]))]
        self.ttls = rng.choice([[10, 30, 100], [100, 400, 1500], [10, 200, 5000, 86400000]])
        self.steps = rng.choice([[0, 0, 1, 3], [0, 5, 20, 60], [0, 1, 10, 11, 300]])
        self.senders = [Sender() for _ in range(rng.choice([1, 2, 3]))]
        self.tokens = [1]  # some that were handed out
        self.stamp = rng.choice([0, 1000, 10 ** 12])
        self.marking = rng.choice([1, 1, 10])  # weight of what ends many leases at once
        self.rarity = rng.choice([0.0005, 0.004, 0.03])  # of what only administrators do
        self.index = 0
        self.commands = 0
        self.generation = self.cluster = 1
        self.trace = []

    # --- making commands ------------------------------------------------------------------------

    def guard(self, ns, key):
        """A token to guard with: often the right one."""
        rng = self.rng
        lease = self.model.leases.get((ns, key)) or self.model.tombs.get((ns, key))
        if lease is not None and rng.random() < 0.6:
            return lease.token
        return rng.choice(self.tokens)

    def item(self, ns, key, guardable, writes):
        rng = self.rng
        item = {"k": key}
        if guardable and rng.random() < 0.45:
            item["t"] = self.guard(ns, key)
        if writes:
            if rng.random() < 0.3:
                item["m"] = rng.choice(["", "m1", "m2"])
            if rng.random() < 0.4:
                item["i"] = rng.choice(["x", "x", "y"])
        return item

    def caller_command(self):
        rng = self.rng
        ns = rng.choice(self.namespaces)
        kind = rng.choices(
            ["take", "claim", "renew", "heartbeat", "release", "renew_all", "release_all",
             "purge"],
            [22, 30, 22, 8, 14, 8, 0.7 * self.marking, 0.3 * self.marking])[0]
        cmd = {"kind": kind, "ns": ns}
        if kind == "purge":
            return cmd
        cmd["owner"] = rng.choice(self.owners)
        if kind not in ("release", "release_all"):
            cmd["ttl"] = rng.choice(self.ttls)
        if kind == "renew_all":
            if rng.random() < 0.85:
                owned = self.model.owners.get((ns, cmd["owner"]))
                seen = list(owned.seen)[-4:] if owned else []
                cmd["version"] = rng.choice(seen) if seen else 0
            return cmd
        if kind == "release_all":
            return cmd
        guardable = kind in ("renew", "heartbeat", "release")
        writes = kind in ("take", "claim")
        if kind == "claim":
            if rng.random() < 0.45:
                cmd["destroy"] = guardable = True
            if rng.random() < 0.4:
                cmd["grace"] = rng.choice(
                    [0, 1, 40, 400, self.model.settings["tombstone_retention_ms"],
                     self.model.settings["tombstone_retention_ms"] + (rng.random() < 0.05)])
        if kind == "renew" and rng.random() < 0.5:
            cmd["reestablish"] = writes = True
        count = 1
        if kind in ("claim", "renew", "release") and rng.random() < 0.25:
            count = rng.randint(1, len(self.keys))
        cmd["items"] = [self.item(ns, key, guardable, writes)
                        for key in rng.sample(self.keys, count)]
        return cmd

    def number(self, sender, cmd):
        """Gives the command a number: the next, one left out, one used already, a forgotten one."""
        rng = self.rng
        roll = rng.random()
        if roll < 0.05:
            sender.next += rng.randint(1, 3)
        sequence = sender.next
        if roll > 0.93:
            sequence = max(1, sender.next - rng.randint(1, 12))
        else:
            sender.next += 1
        cmd["o"], cmd["s"] = sender.origin, sequence
        if rng.random() < 0.2:
            sender.confirmed = max(sender.confirmed, sender.next - rng.randint(2, 30))
        cmd["c"] = min(sender.confirmed if rng.random() < 0.9 else 0, sequence - 1)
        if rng.random() < 0.002:
            cmd["o"] = rng.choice([1 << 40, max(1, sender.origin - 1)])
        sender.sent.append(cmd)
        del sender.sent[:-40]
        return cmd

    def command(self):
        rng = self.rng
        sender = rng.choice(self.senders)
        roll = rng.random()
        if roll < 0.04:
            return {"kind": "settle", "origin": sender.origin,
                    "sequence": max(1, sender.next - rng.randint(-2, 12))}
        if roll < 0.10 and sender.sent:
            cmd = dict(rng.choice(sender.sent))  # a late copy
            cmd["c"] = min(rng.choice([cmd["c"], sender.confirmed]), cmd["s"] - 1)
            return cmd
        if roll < 0.1 + self.rarity:
            return self.rare_command()
        return self.number(sender, self.caller_command())

    def rare_command(self):
        rng = self.rng
        kind = rng.choices(["configure", "restore", "recover"], [4, 1, 2])[0]
        if kind == "configure":
            fresh = settings_for(rng)
            changed = dict(self.model.settings)
            for name in rng.sample(sorted(fresh), rng.choice([1, 1, 2, len(fresh)])):
                changed[name] = fresh[name]
            return {"kind": kind, "settings": changed}
        if kind == "recover":
            self.generation += 1
        else:
            self.cluster += 1
            self.generation = 1
        return {"kind": kind, "floor": self.model.last_token + rng.choice([5, 1000]),
                "id": f"%{self.cluster % 256:02x}%01", "generation": self.generation}

    @staticmethod
    def line(cmd):
        """A command in the driver's words."""
        words = [cmd["kind"]]
        for name in ("o", "s", "c", "ns", "owner", "ttl", "grace", "version", "origin", "sequence",
                     "node", "nonce", "floor", "id", "generation"):
            if name in cmd:
                words.append(f"{name}={cmd[name]}")
        for name in ("destroy", "reestablish"):
            if cmd.get(name):
                words.append(f"{name}=1")
        for name, value in cmd.get("settings", {}).items():
            words.append(f"{name}={value}")
        for item in cmd.get("items", ()):
            words.extend(f"{name}={value}" for name, value in item.items())
        return " ".join(words)

    # --- playing --------------------------------------------------------------------------------

    def ask(self, line):
        answer = self.driver.ask(line)
        self.trace.append((line, answer))
        if len(self.trace) > 4 * TRACE_ENTRIES:
            del self.trace[:-TRACE_ENTRIES]
        return answer

    def apply(self, commands):
        self.index += self.rng.choice([1, 1, 1, 2])
        line = f"apply {self.index} {self.stamp} " + "|".join(map(self.line, commands))
        answer = self.ask(line)
        answers = answer.split("|") if answer else []
        self.model.apply(self.index, self.stamp, commands, answers)
        self.commands += len(commands)
        if self.rng.random() < 0.3:
            self.compare_changes()
        return answers

    def compare_changes(self):
        """Writes in their order; ends in any, as long as each is at its place in the entry."""
        answer = self.ask("changes")
        sides = []
        for lines in (self.model.events, answer.split("|") if answer else []):
            writes = [line for line in lines if line.split(" ")[0] in WRITES]
            ends = sorted(line for line in lines if line.split(" ")[0] not in WRITES)
            sides.append(writes + ends)
        self.same("changes", sides[0], sides[1])

    def open_origin(self, sender):
        answers = self.apply([{"kind": "open_origin", "node": self.senders.index(sender) + 1,
                               "nonce": self.rng.getrandbits(32)}])
        sender.origin = int(answers[0].split(" ")[5])
        sender.next, sender.confirmed, sender.sent = 1, 0, []

    def start(self):
        self.driver.ask("reset")
        self.apply([{"kind": "birth", "settings": self.settings, "floor": 1000, "id": "%01%01",
                     "generation": 1}])
        for sender in self.senders:
            self.open_origin(sender)

    def edge(self):
        """A time at which something is about to end or to be forgotten, not too far away."""
        model = self.model
        retention = model.settings["tombstone_retention_ms"]
        edges = [lease.expiry for lease in model.leases.values()]
        edges += [tomb.ended + retention for tomb in model.tombs.values()]
        edges += [purged + retention for purged in model.purged_at.values()]
        edges += [origin.last + model.settings["origin_retention_ms"]
                  for origin in model.origins.values()]
        edges = [edge for edge in edges if self.stamp <= edge < self.stamp + 70000]
        return self.rng.choice(edges) if edges else self.stamp

    def advance(self):
        rng = self.rng
        roll = rng.random()
        if roll < 0.06:
            self.stamp = self.edge() + rng.choice([0, 1])
        elif roll < 0.07:
            self.stamp += rng.choice([500, 3000, 5000, 70000])
        elif roll < 0.08:
            self.stamp = max(0, self.stamp - rng.choice([1, 50]))  # a leader behind the last stamp
            return
        else:
            self.stamp += rng.choice(self.steps)
        self.stamp = max(self.stamp, self.model.clock)

    def play(self, most):
        """Plays until `most` commands are done."""
        self.start()
        rng = self.rng
        entry = 0
        while self.commands < most:
            entry += 1
            self.advance()
            self.apply([self.command() for _ in range(rng.choice([0, 1, 1, 1, 2, 3, 6]))])
            for sender in self.senders:
                known = sender.origin in self.model.origins
                if rng.random() < (0.0005 if known else 0.6):
                    self.open_origin(sender)
            if rng.random() < 0.2:
                self.read()
            if rng.random() < 0.2:
                self.ask_of_absent(rng.choice(self.namespaces), rng.choice(self.keys + ["never"]))
            if entry % 50 == 0:
                self.tokens = (self.tokens + [lease.token for lease in
                                              self.model.leases.values()])[-30:]
                self.dump()
            if rng.random() < 0.004:
                self.ask("snap")
        self.ask("snap")
        self.dump()

    def same(self, what, expected, got):
        if expected != got:
            raise Difference(f"{what}\n  expected {expected}\n  got      {got}")

    def read(self):
        rng, model = self.rng, self.model
        ns, key = rng.choice(self.namespaces), rng.choice(self.keys)
        now = model.clock + rng.choice([0, 0, 5, 100])
        self.same(f"owner {ns} {key} {now}", model.read_owner(ns, key, now),
                  self.ask(f"owner {ns} {key} {now}"))
        wanted = {}
        if rng.random() < 0.3:
            wanted["owner"] = rng.choice(self.owners)
        if rng.random() < 0.3:
            wanted["state"] = rng.choice([OWN, DEL])
        if rng.random() < 0.3:
            wanted["after"] = rng.choice(self.keys)
        if rng.random() < 0.3:
            wanted["prefix"] = rng.choice(["k", "k1", "x"])
        words = " ".join(f"{name}={value}" for name, value in wanted.items())
        self.same(f"list {ns} {now} {words}", model.read_list(ns, now, wanted),
                  self.ask(f"list {ns} {now} {words}"))
        self.same(f"count {ns} {now} {words}", str(len(model.matching(ns, now, wanted))),
                  self.ask(f"count {ns} {now} {words}"))
        stored = any(where[0] == ns and lease.cover is None and lease.expiry < now
                     for where, lease in model.leases.items())
        self.same(f"due {ns} * 0 {now}", str(int(stored)), self.ask(f"due {ns} * 0 {now}"))

    def ask_of_absent(self, ns, key):
        if self.model.live_at((ns, key)) is None:
            self.same(f"gone {ns} {key}", self.model.read_gone(ns, key),
                      self.ask(f"gone {ns} {key}"))

    def dump(self):
        model = self.model
        for ns in self.namespaces:
            self.same(f"list {ns}", model.read_list(ns, model.clock, {}),
                      self.ask(f"list {ns} {model.clock}"))
            for key in self.keys + ["never"]:
                self.ask_of_absent(ns, key)
        self.same("settings", sorted(f"{name}={value}" for name, value in model.settings.items()),
                  sorted(self.ask("settings").split(" ")))
        info = self.ask("info").split(" ")
        self.same("index", str(self.index), info[0])
        self.same("clock", str(model.clock), info[1])
        if int(info[2]) < model.last_token:
            raise Difference(f"token counter {info[2]} is below {model.last_token}")
        self.same("born", "1", info[5])
        if (model.leases or model.tombs) and info[4] != "1":
            raise Difference("not timed although a lease or a tombstone exists")
        for name, place, count in (
                ("leases own", 6, sum(lease.state == OWN for lease in model.leases.values())),
                ("leases del", 7, sum(lease.state == DEL for lease in model.leases.values())),
                ("tombstones", 8, len(model.tombs))):
            self.same(name, str(count), info[place])
        self.same("origins", str(len(model.origins)), info[9])
        self.same("outcomes", str(sum(len(origin.outcomes)
                                      for origin in model.origins.values())), info[10])

    def show(self):
        """The entries that led here, in a form that the driver reads."""
        for line, answer in self.trace[-TRACE_ENTRIES:]:
            print("   ", line)
            print("      ->", answer)


def main():
    parser = argparse.ArgumentParser(description="state machine against model")
    parser.add_argument("case", nargs="?", default="random")
    parser.add_argument("rounds", nargs="?", type=int)
    parser.add_argument("--commands", type=int, default=200000)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--driver", default=os.path.join(os.environ.get("TENURE_BUILD", "."),
                                                         "tests/model/fsm_driver"))
    parser.add_argument("--keep-going", action="store_true")
    arguments = parser.parse_args()
    wanted = arguments.rounds or arguments.commands
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    done = differences = episode_number = 0
    started = time.monotonic()
    while done < wanted:
        driver = Driver(arguments.driver)
        episode = Episode(driver, f"{seed}/{episode_number}")
        try:
            episode.play(min(EPISODE_COMMANDS, wanted - done))
            driver.close()
        except Difference as difference:
            differences += 1
            driver.process.kill()
            print(f"seed {seed}, episode {episode_number}, after {episode.commands} commands, "
                  f"settings {episode.settings}")
            episode.show()
            print(f"  {difference}")
            if not arguments.keep_going:
                done += episode.commands
                break
        done += episode.commands
        episode_number += 1
    print(f"{done} commands, {differences} differences ({time.monotonic() - started:.0f} s)")
    return 1 if differences or done < wanted else 0


if __name__ == "__main__":
    sys.exit(main())
