"""Every cell of the decision table with every guard and identity, sequences, many keys at once,
what is INVALID, and the edges, played through every path. Expectations are the literals in
cells.txt, stories.txt, invalid.txt and edges.txt.

Usage: tests/contract/run [state_machine|api|cli|all] [ROUNDS]
"""
import os
import random
import sys
import time

import paths

HERE = os.path.dirname(os.path.abspath(__file__))
STATES = ("absent", "own/self", "own/peer", "del/self", "del/peer")
SELF, PEER = b"gw-1:self", b"gw-2:peer"
TTL_BEFORE_MS, TTL_MS = 60000, 90000
EXPIRY_DEADLINE_S = 10
ABSENT = object()  # a parameter that is left out
EXIT_CODES = {"GRANTED": 0, "RENEWED": 0, "REESTABLISHED": 0, "RELEASED": 0, "HELD": 1,
              "TEARDOWN": 1, "LOST": 1, "LAPSED": 1, "STALE": 1, "GRACE": 1, "MISMATCH": 1,
              "NOT_OWNER": 1, "INVALID": 2}
GRACES = {"claim-adopt": 0, "claim-adopt-destroy": 0,
          "claim-grace": 500000, "claim-grace-destroy": 500000}


def rows(name):
    """The words of each line of a table; the last `words` may hold spaces."""
    with open(os.path.join(HERE, name), encoding="ascii") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip() and not line.startswith("#"):
                yield f"{name}:{number}", line.split()


class Wrong(Exception):
    """The path answered otherwise than the table says."""


def expect(condition, text):
    if not condition:
        raise Wrong(text)


class Player:
    """Plays the tables through one path."""

    def __init__(self, path):
        self.path = path
        self.checks = self.wrong = 0
        self.cells = set()
        self.run_id = f"{random.getrandbits(40):x}"
        self.number = 0

    def key(self):
        """A key that was never used."""
        self.number += 1
        return f"{self.run_id}/{self.number}".encode()

    def check(self, where, what, play, *arguments):
        self.checks += 1
        self.cells.add(where)
        try:
            play(*arguments)
        except Wrong as wrong:
            self.wrong += 1
            print(f"{self.path.name}: {where}: {what}: {wrong}")

    def ask(self, op, ns, owner, key, **parameters):
        """One operation; of the command line the exit code must fit what it says."""
        reply = self.path.do(op, ns, owner, key, **parameters)
        if "exit" in reply:
            code = EXIT_CODES.get(reply.get("outcome") or reply["error"])
            expect(reply["exit"] == code, f"expected exit code {code}, got {reply}")
        return reply

    # --- cells ----------------------------------------------------------------------------------

    def prepare(self, state, key, expired):
        """Brings a key into a state; returns the reply that did, or None."""
        if state == "absent":
            if not expired:
                return None
            reply = self.ask("take", b"default", SELF, key, ttl_ms=10)
            expect(reply.get("outcome") == "GRANTED", f"preparing: {reply}")
            self.wait_for_end(key)
            return reply
        kind, who = state.split("/")
        op = "take" if kind == "own" else "claim-destroy"
        reply = self.ask(op, b"default", SELF if who == "self" else PEER, key,
                             ttl_ms=TTL_BEFORE_MS, meta=b"m", identity=b"A")
        expect(reply.get("outcome") == "GRANTED", f"preparing: {reply}")
        return reply

    def cell(self, op, guard, identity, state, expected):
        key = self.key()
        # The last lease of an absent key matters to a guard only; grace is asked of a fresh one.
        before = self.prepare(state, key, guard == "right")
        held = self.path.owner(b"default", key)
        if op == "owner":
            self.expect_owner(held, state, before, expected)
            return
        parameters = {}
        if op != "release":
            parameters["ttl_ms"] = TTL_MS
        if op in GRACES:
            parameters["grace_ms"] = GRACES[op]
        if identity in ("same", "different"):
            parameters["identity"] = b"A" if identity == "same" else b"B"
        if guard == "right":
            parameters["if_token"] = before["token"]
        elif guard == "wrong":
            parameters["if_token"] = 1
        reply = self.ask(op, b"default", SELF, key, **parameters)
        after = self.path.owner(b"default", key)
        self.expect_reply(reply, expected.split("/"), before, held, after)
        self.expect_lease(reply, expected.split("/"), before, held, after, parameters)

    @staticmethod
    def expect_owner(held, state, before, expected):
        if expected == "none":
            expect(held is None, f"expected none, got {held}")
            return
        expect(expected == state, "the table contradicts itself")
        kind, who = state.split("/")
        wanted = {"owner": SELF if who == "self" else PEER, "state": kind,
                  "ttl_ms": TTL_BEFORE_MS, "token": before["token"], "meta": b"m",
                  "identity": b"A"}
        expect(held == wanted, f"expected {wanted}, got {held}")

    @staticmethod
    def expect_reply(reply, words, before, held, after):
        """What the caller is told."""
        outcome = words[0]
        expect(reply.get("outcome") == outcome, f"expected {outcome}, got {reply}")
        expect(reply["held_before"] == ("before" in words), f"held_before in {reply}")
        if outcome in ("GRANTED", "RENEWED", "REESTABLISHED"):
            expect(TTL_MS - 5000 < reply["ms_left"] <= TTL_MS, f"ms_left in {reply}")
            last = before["token"] if before else 0
            expect(reply["token"] > last if "new" in words else reply["token"] == last,
                   f"token of {reply}, before it was {last}")
            expect(after is not None and after["token"] == reply["token"],
                   f"{reply}, but the table says {after}")
            if "from" not in words:
                expect(reply["holder"] is None, f"nobody to name in {reply}")
                return
        if outcome == "GRACE":
            left = reply["grace_ms_left"]
            expect(400000 < left <= 500000, f"grace left in {reply}")
        # A refusal names who has it, a takeover whom it was taken from.
        if outcome in ("GRACE", "LAPSED", "RELEASED") or held is None:
            expect(reply["holder"] is None, f"nobody to name in {reply}")
            return
        holder = reply["holder"]
        expect(holder is not None and
               (holder["owner"], holder["state"], holder["token"]) ==
               (held["owner"], held["state"], held["token"]),
               f"holder in {reply}, it is {held}")
        expect(TTL_BEFORE_MS - 5000 < holder["ms_left"] <= TTL_BEFORE_MS,
               f"ms_left of the holder in {reply}")

    @staticmethod
    def expect_lease(reply, words, before, held, after, parameters):
        """What the table says afterwards."""
        outcome = words[0]
        if outcome == "RELEASED":
            expect(after is None, f"released, but the table says {after}")
            return
        if outcome not in ("GRANTED", "RENEWED", "REESTABLISHED"):
            expect(after == held, f"a refusal changed {held} into {after}")
            return
        identity = parameters.get("identity")
        if held is not None and (identity is None or outcome == "RENEWED"):
            identity = b"A"
        wanted = {"owner": SELF, "state": words[1], "ttl_ms": TTL_MS, "token": reply["token"],
                  "meta": b"m" if held is not None else None, "identity": identity}
        expect(after == wanted, f"expected {wanted}, the table says {after}")
        expect(before is not None or "new" in words, "the table contradicts itself")

    def play_cells(self):
        for where, words in rows("cells.txt"):
            op, guard, identity, *expected = words
            expect(len(expected) == len(STATES), f"{where}: {len(expected)} states")
            for state, literal in zip(STATES, expected):
                what = f"{op} guard={guard} identity={identity} {state}"
                self.check(f"{where}/{state}", what, self.cell, op, guard, identity, state,
                           literal)

    # --- many keys at once (I7) -----------------------------------------------------------------

    def many(self, keys, expected, method="claim", **parameters):
        """One request with `keys`; `expected` is an outcome for all of them or (field, rule)."""
        if method != "release":
            parameters["ttl_ms"] = TTL_MS
        reply = self.path.many(method, SELF, keys, **parameters)
        if isinstance(expected, tuple):
            expect(reply == {"error": "INVALID", "field": expected[0], "rule": expected[1]},
                   f"expected INVALID {expected}, got {str(reply)[:200]}")
            return []
        expect("outcomes" in reply, f"expected outcomes, got {str(reply)[:200]}")
        outcomes = reply["outcomes"]
        expect(len(outcomes) == len(keys), f"{len(outcomes)} outcomes of {len(keys)} keys")
        seen = {outcome["outcome"] for outcome in outcomes}
        expect(seen == {expected}, f"expected {expected} only, got {seen}")
        return outcomes

    def most_keys(self):
        keys = [self.key() for _ in range(10000)]
        outcomes = self.many(keys, "GRANTED")
        tokens = [outcome["token"] for outcome in outcomes]
        expect(tokens == sorted(set(tokens)), "tokens do not grow in the order of the keys")
        for name, expected in (("renew", "RENEWED"), ("release", "RELEASED"),
                               ("release", "NOT_OWNER"), ("renew", "LAPSED")):
            self.many(keys, expected, name)

    def order_of_keys(self):
        mine, free, theirs = self.key(), self.key(), self.key()
        self.many([mine], "GRANTED")
        reply = self.path.many("claim", PEER, [theirs], ttl_ms=TTL_MS)
        expect(reply["outcomes"][0]["outcome"] == "GRANTED", f"preparing: {reply}")
        reply = self.path.many("renew", SELF, [theirs, mine, free, mine, theirs], ttl_ms=TTL_MS)
        got = [outcome["outcome"] for outcome in reply["outcomes"]]
        expect(got == ["LOST", "RENEWED", "LAPSED", "RENEWED", "LOST"], f"got {got}")

    def key_named_twice(self):
        key, other = self.key(), self.key()
        outcomes = self.many([key, other, key], "GRANTED")
        expect(outcomes[0] == outcomes[2], f"done twice: {outcomes}")
        expect(outcomes[0]["token"] < outcomes[1]["token"], f"out of order: {outcomes}")

    def one_bad_key(self):
        keys = [self.key() for _ in range(9999)]
        keys[5000] = b"a\nb"
        self.many(keys, ("key", "must be 1..512 bytes of UTF-8 without control characters"))
        expect(self.path.owner(b"default", keys[0]) is None, "a part of it was done")

    def play_many(self):
        if not hasattr(self.path, "many"):
            return
        rule = "must be 1..10000 keys"
        for what, play in (
                ("no key", lambda: self.many([], ("keys", rule))),
                ("10000 keys", self.most_keys),
                ("10001 keys", lambda: self.many([self.key() for _ in range(10001)],
                                                 ("keys", rule))),
                ("one bad key among 9999", self.one_bad_key),
                ("a key named twice", self.key_named_twice),
                ("the order of the keys", self.order_of_keys)):
            self.check(f"many: {what}", what, play)

    # --- what is refused as INVALID, and what is just inside ------------------------------------

    def call(self, op, name, value):
        """One call whose parameter `name` is something else than usual."""
        parameters = {"ns": b"default", "owner": SELF, "key": self.key()}
        if op != "release":
            parameters["ttl_ms"] = TTL_MS
        if op in GRACES:
            parameters["grace_ms"] = GRACES[op]
        if value is ABSENT:
            del parameters[name]
        else:
            parameters[name] = value
        names = [parameters.pop(name) for name in ("ns", "owner", "key")]
        reply = self.ask(op, *names, **parameters)
        return reply, names[0], names[2]

    def invalid(self, op, name, value, field, rule):
        reply, ns, key = self.call(op, name, value)
        expect(reply.get("error") == "INVALID", f"expected INVALID, got {reply}")
        expect(reply["field"] == field, f"expected the field {field}, got {reply}")
        expect(reply["rule"] == rule, f"expected the rule {rule!r}, got {reply}")
        if field not in ("namespace", "key"):
            held = self.path.owner(ns, key)
            expect(held is None, f"refused, but the table says {held}")

    def edge(self, op, name, value, outcome):
        reply, _, _ = self.call(op, name, value)
        expect(reply.get("outcome") == outcome, f"expected {outcome}, got {reply}")

    def play_edges(self):
        for where, words in rows("invalid.txt"):
            op, name, value, field, kind = words[:5]
            if kind in self.path.kinds:
                self.check(where, f"{op} {name}={value}", self.invalid, op, name, parse(value),
                           field, " ".join(words[5:]))
        for where, words in rows("edges.txt"):
            op, name, value, outcome = words
            self.check(where, f"{op} {name}={value}", self.edge, op, name, parse(value), outcome)

    # --- stories --------------------------------------------------------------------------------

    def wait_for_end(self, key):
        """Until the lease has ended by itself."""
        deadline = time.monotonic() + EXPIRY_DEADLINE_S
        while self.path.owner(b"default", key) is not None:
            expect(time.monotonic() < deadline, "the lease does not end")
            self.path.wait(20)

    def step(self, key, words, tokens):
        """One line of a story."""
        at = words.index(":")
        names = dict(word.split("=") for word in words[:at] + words[at + 2:] if "=" in word[1:])
        names = {name: tokens[value[1:]] if value.startswith("$") else
                 int(value) if value.isdigit() else value.encode()
                 for name, value in names.items()}
        if words[0] == "lease":
            held = self.path.owner(b"default", key)
            if words[at + 1] == "none":
                expect(held is None, f"expected none, got {held}")
                return
            wanted = {"owner": SELF if words[at + 1] == "self" else PEER, "state": words[at + 2],
                      "meta": None, "identity": None, **names}
            got = {name: held[name] for name in wanted} if held else None
            expect(got == wanted, f"expected {wanted}, got {held}")
            return
        if not words[1].startswith("release"):
            names.setdefault("ttl_ms", TTL_BEFORE_MS)
        reply = self.ask(words[1], b"default", SELF if words[0] == "self" else PEER, key,
                         **names)
        expect(reply.get("outcome") == words[at + 1], f"expected {words[at + 1]}, got {reply}")
        if reply["outcome"] in ("GRANTED", "REESTABLISHED"):
            kept = words[1] == "claim-destroy" and reply["token"] == tokens.get("")
            expect(kept or reply["token"] > tokens.get("", 0), f"the token of {reply} is not new")
            tokens[""] = reply["token"]
        for word in words[at + 2:]:
            if word.startswith("="):
                tokens[word[1:]] = reply["token"]

    def story(self, steps):
        key, tokens = self.key(), {}
        for where, words in steps:
            try:
                if words == ["ended"]:
                    self.wait_for_end(key)
                else:
                    self.step(key, words, tokens)
            except Wrong as wrong:
                raise Wrong(f"{where}: {' '.join(words)}: {wrong}") from wrong

    def play_stories(self):
        stories = []
        for where, words in rows("stories.txt"):
            if words[0] == "story":
                stories.append((where, " ".join(words[1:]), []))
            else:
                stories[-1][2].append((where, words))
        for where, name, steps in stories:
            self.check(where, name, self.story, steps)

    def play(self):
        self.play_cells()
        self.play_stories()
        self.play_many()
        self.play_edges()


def parse(value):
    """A value of the tables."""
    special = {"true": True, "nil": None, "-": ABSENT}
    if value in special:
        return special[value]
    if value.startswith("text*"):
        return b"x" * int(value[5:])
    if value.startswith("hex:"):
        return bytes.fromhex(value[4:])
    if value.startswith("float:"):
        return float(value[6:])
    if value.startswith("text:"):
        return value[5:]
    return int(value)


def cluster_paths(cluster, wanted):
    """The API of the leader, of a follower and of a node that has no vote; the command line of the
    same."""
    leader = cluster.leader()
    others = [(node, node.status()["role"]) for node in cluster.followers()]
    followers = [node for node, role in others if role == "voter"]
    spares = [node for node, role in others if role in ("none", "spare")]
    expect(len(followers) == 2 and len(spares) == 1, f"roles of the others: {others}")
    for role, node in (("leader", leader), ("follower", followers[0]), ("spare", spares[0])):
        if wanted in ("api", "all"):
            yield paths.Socket(f"API of the {role}", node.api())
        if wanted in ("cli", "all") and role != "follower":
            yield paths.CommandLine(f"CLI at the {role}", cluster.program("tenure"),
                                    node.socket_path)


def play(path, totals):
    player = Player(path)
    started = time.monotonic()
    try:
        player.play()
    finally:
        path.close()
    print(f"{path.name}: {player.checks} checks, {player.wrong} wrong "
          f"({time.monotonic() - started:.1f} s)")
    totals["cells"] |= player.cells
    totals["paths"] += 1
    totals["checks"] += player.checks
    totals["wrong"] += player.wrong


def main():
    wanted = sys.argv[1] if len(sys.argv) > 1 else "all"
    if wanted not in ("state_machine", "api", "cli", "all"):
        sys.exit(__doc__)
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    totals = {"cells": set(), "paths": 0, "checks": 0, "wrong": 0}
    for _ in range(rounds):
        if wanted in ("state_machine", "all"):
            play(paths.StateMachine(paths.driver_path()), totals)
        if wanted != "state_machine":
            sys.path.insert(0, os.path.join(HERE, "../cluster"))
            from harness import Cluster  # pylint: disable=import-outside-toplevel
            with Cluster(4) as cluster:
                for path in cluster_paths(cluster, wanted):
                    play(path, totals)
    lines = {where.rsplit("/", 1)[0] for where in totals["cells"]}
    print(f"cells x guards x paths = {totals['checks']} checks, {totals['wrong']} wrong "
          f"({len(lines)} rows, {len(totals['cells'])} cells, {totals['paths']} paths)")
    return 1 if totals["wrong"] or not totals["checks"] else 0


if __name__ == "__main__":
    sys.exit(main())
