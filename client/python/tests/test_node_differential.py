"""The same random commands at a real node and at the one in memory; every reply must be the same.

Tokens and set versions are compared by the order in which they are seen, times within bounds: TTLs
are long, and where a lease is to expire the test waits for it on both sides. A failure prints the
seed and the commands that led to it; TENURE_SEED sets another one.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Any

import pytest

from nodes import Map, Wire, running

COMMANDS = 2100
SEED = int(os.environ.get("TENURE_SEED", "20260517"))
OWNERS = ("gw-1:a", "gw-2:b", "gw-3:ü")
KEYS = tuple(f"{folder}/{number}" for folder in ("a", "b") for number in range(6))
NAMESPACES = ("default", "other", "third.one")
LONG_MS = (600_000, 3_600_000, 86_400_000)
MS_SLACK = 60_000  # a run is shorter than that, and so is the time between two births
WAITS_MAX = 30

Command = tuple[str, Map]


class Symbols:
    """Numbers of one node as 1, 2, 3 ... in the order in which they were seen."""

    def __init__(self) -> None:
        self.of_number: dict[int, int] = {}
        self.numbers: list[int] = []

    def see(self, number: int) -> int:
        if number not in self.of_number:
            self.numbers.append(number)
            self.of_number[number] = len(self.numbers)
        return self.of_number[number]


class Side:
    """One node and what was seen of it."""

    def __init__(self, path: str) -> None:
        self.wire = Wire(path)
        self.tokens = Symbols()
        self.versions = Symbols()

    def play(self, command: Command) -> tuple[Map, list[int]]:
        """The reply without what may differ, and the times in it."""
        method, parameters = command
        error, result = self.wire.call(method, self.translate(parameters))
        if error is not None:
            return {"error": error}, []
        assert result is not None
        times: list[int] = []
        return self.normal(result, times), times

    def translate(self, value: Any, name: str = "") -> Any:
        """Symbols in place of tokens and versions become this node's numbers."""
        if isinstance(value, dict):
            return {key: self.translate(inner, key) for key, inner in value.items()}
        if isinstance(value, list):
            return [self.translate(inner) for inner in value]
        if name == "if_token" and isinstance(value, int):
            return self.tokens.numbers[value - 1]
        if name == "set_version" and isinstance(value, int):
            return self.versions.numbers[value - 1]
        return value

    def normal(self, value: Any, times: list[int], name: str = "") -> Any:
        if isinstance(value, dict):
            return {
                key: self.normal(inner, times, key)
                for key, inner in value.items()
                if key not in ("index", "place", "clock_ms", "since_ms")
            }
        if isinstance(value, list):
            if name == "departures":  # in no order that is promised
                value = sorted(value, key=lambda one: (one["key"], one["token"]))
            return [self.normal(inner, times) for inner in value]
        if name in ("ms_left", "grace_ms_left"):
            times.append(value)
            return "ms"
        if name == "token":
            return self.tokens.see(value)
        if name == "set_version":
            return self.versions.see(value)
        return value


class Author:
    """Makes up commands."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.tokens_seen = 0
        self.namespace = "default"
        self.versions: dict[tuple[str, str], list[int]] = {}  # that an owner was told, as symbols

    def hear(self, command: Command, reply: Map) -> None:
        """What an owner is told of its set may be asked for later."""
        method, parameters = command
        if method == "renew_all" and "set_version" in reply:
            name = (parameters.get("ns", "default"), parameters["owner"])
            self.versions.setdefault(name, []).append(reply["set_version"])

    def command(self) -> Command:
        weights = {
            self.take: 12,
            self.claim: 22,
            self.renew: 14,
            self.heartbeat: 6,
            self.release: 12,
            self.many: 10,
            self.renew_all: 8,
            self.release_all: 1,
            self.purge: 1,
            self.owner: 6,
            self.list: 6,
            self.count: 3,
            self.nonsense: 6,
        }
        self.namespace = self.rng.choice(NAMESPACES)
        [write] = self.rng.choices(list(weights), list(weights.values()))
        method, parameters = write()
        if self.namespace != "default" or self.rng.random() < 0.5:
            parameters = {"ns": self.namespace, **parameters}
        return method, parameters

    # --- verbs on one key ---

    def take(self) -> Command:
        return "take", {**self.caller(), **self.ttl(), "key": self.key(), **self.attached()}

    def claim(self) -> Command:
        item = {"key": self.key(), **self.attached()}
        flags = self.claim_flags()
        guard = self.guard() if flags.get("destroy") else {}
        return "claim", {**self.caller(), **self.ttl(), **flags, **item, **guard}

    def claim_flags(self) -> Map:
        flags: Map = {}
        if self.rng.random() < 0.4:
            flags["destroy"] = True
        if self.rng.random() < 0.4:
            flags.update(adopt=True, grace_ms=self.rng.choice((0, 500_000, 600_000)))
        return flags

    def renew(self) -> Command:
        reestablish = self.rng.random() < 0.5
        more = {"reestablish": True, **self.attached()} if reestablish else {}
        key = {"key": self.key(), **self.guard()}
        return "renew", {**self.caller(), **self.ttl(), **key, **more}

    def heartbeat(self) -> Command:
        return "heartbeat", {**self.caller(), **self.ttl(), "key": self.key(), **self.guard()}

    def release(self) -> Command:
        return "release", {**self.caller(), "key": self.key(), **self.guard()}

    # --- many, all, reads ---

    def many(self) -> Command:
        method = self.rng.choice(("claim", "renew", "release"))
        parameters: Map = self.caller()
        if method != "release":
            parameters.update(self.ttl())
        if method == "claim":
            parameters.update(self.claim_flags())
        guarded = method != "claim" or parameters.get("destroy", False)
        keys: list[Any] = []
        for _ in range(self.rng.randrange(1, 8)):
            item: Map = {"key": self.key()}
            if guarded:
                item.update(self.guard())
            if method == "claim":
                item.update(self.attached())
            keys.append(item if len(item) > 1 else item["key"])
        return method, {**parameters, "keys": keys}

    def renew_all(self) -> Command:
        caller = self.caller()
        told = self.versions.get((self.namespace, caller["owner"]), [])
        version: Map = {}
        if told and self.rng.random() < 0.8:
            version = {"set_version": self.rng.choice(told[-4:])}
        return "renew_all", {**caller, **self.ttl(), **version}

    def release_all(self) -> Command:
        return "release_all", self.caller()

    def purge(self) -> Command:
        return "purge", {}

    def owner(self) -> Command:
        keys = [self.key() for _ in range(self.rng.randrange(1, 6))]
        return "owner", {"key": keys[0]} if len(keys) == 1 else {"keys": keys}

    def list(self) -> Command:
        wanted = self.filters()
        if self.rng.random() < 0.5:
            wanted["limit"] = self.rng.randint(1, 5)
        if self.rng.random() < 0.5:
            wanted["after"] = self.rng.choice(("", "a", "a/2", "a/9", "b/3", "c", self.key()))
        return "list", wanted

    def count(self) -> Command:
        return "count", self.filters()

    def filters(self) -> Map:
        wanted: Map = {}
        if self.rng.random() < 0.3:
            wanted["owner"] = self.rng.choice((*OWNERS, "nobody"))
        if self.rng.random() < 0.3:
            wanted["state"] = self.rng.choice(("own", "del"))
        if self.rng.random() < 0.4:
            wanted["prefix"] = self.rng.choice(("", "a", "a/", "b/4", "c"))
        return wanted

    def nonsense(self) -> Command:
        """A command of any kind, with something in it that does not belong there."""
        method, parameters = self.rng.choice(
            (self.take, self.claim, self.renew, self.release, self.renew_all, self.list)
        )()
        bad: list[tuple[str, Any]] = [
            ("ttl_ms", self.rng.choice((0, 9, 86_400_001, -1, 1.5, "60", True, None))),
            ("key", self.rng.choice(("", "x" * 513, "a\x7f", b"\xff\xfe", 7, {}))),
            ("owner", self.rng.choice(("", "o" * 256, "a\x85", b"\xc3", 1.0, False))),
            ("ns", self.rng.choice(("", "A", "x" * 65, "a b", 3))),
            ("meta", self.rng.choice((b"m" * 1025, 7, "text"))),
            ("identity", self.rng.choice((b"i" * 33, [], "text"))),
            ("grace_ms", self.rng.choice((5, 600_001, 86_400_001, -5, "5"))),
            ("destroy", self.rng.choice((True, 1))),
            ("adopt", self.rng.choice((True, "yes"))),
            ("reestablish", self.rng.choice((True, None))),
            ("stale", self.rng.choice((True, 0))),
            ("limit", self.rng.choice((0, 1001, 1))),
            ("after", self.rng.choice((b"\xff", "x" * 513))),
            ("state", self.rng.choice(("own", "gone", 1))),
            ("!future", 1),
            ("future", {"a": [1]}),
        ]
        return method, {**parameters, **dict(self.rng.sample(bad, self.rng.randint(1, 2)))}

    # --- their parts ---

    def caller(self) -> Map:
        return {"owner": self.rng.choice(OWNERS)}

    def ttl(self) -> Map:
        return {"ttl_ms": self.rng.choice(LONG_MS)}

    def key(self) -> str:
        return self.rng.choice(KEYS)

    def guard(self) -> Map:
        """Mostly one of the latest tokens, so that some are right."""
        if not self.tokens_seen or self.rng.random() < 0.5:
            return {}
        recent = max(1, self.tokens_seen - 40)
        return {"if_token": self.rng.randint(recent, self.tokens_seen)}

    def attached(self) -> Map:
        attached: Map = {}
        if self.rng.random() < 0.3:
            attached["meta"] = self.rng.choice((b"", b"m1", b"m2" * 512))
        if self.rng.random() < 0.4:
            attached["identity"] = self.rng.choice((b"A", b"B"))
        return attached


class Match:
    """Both sides, and what was said to them."""

    def __init__(self, real: str, memory: str) -> None:
        self.sides = (Side(real), Side(memory))
        self.told: list[Command] = []

    def play(self, command: Command) -> Map:
        """The reply, which both gave."""
        self.told.append(command)
        (real, real_ms), (memory, memory_ms) = (side.play(command) for side in self.sides)
        if real != memory or any(abs(a - b) > MS_SLACK for a, b in zip(real_ms, memory_ms)):
            story = "\n".join(repr(one) for one in self.told[-30:])
            pytest.fail(
                f"seed {SEED}, command {len(self.told)}:\n{story}\n"
                f"real:   {real} {real_ms}\nmemory: {memory} {memory_ms}"
            )
        return real

    def let_expire(self, rng: random.Random) -> None:
        """A lease, or a marker, that is taken where that goes and ends by itself on both sides."""
        namespace, key = rng.choice(NAMESPACES), rng.choice(KEYS)
        asked: Map = {"ns": namespace, "key": key, "owner": rng.choice(OWNERS), "ttl_ms": 10}
        method = rng.choice(("take", "claim", "renew", "heartbeat"))
        if method == "claim":
            asked["destroy"] = True
        [outcome] = self.play((method, asked))["outcomes"]
        if outcome["outcome"] in ("GRANTED", "RENEWED"):
            for side in self.sides:
                side.wire.wait_for_end(key, ns=namespace)


@pytest.fixture
def match() -> Iterator[Match]:
    with running("real") as real, running("memory") as memory:
        yield Match(real, memory)


def test_random_commands_are_answered_alike(match: Match) -> None:
    author = Author(SEED)
    outcomes: dict[str, int] = {}
    waits = 0
    for number in range(COMMANDS):
        author.tokens_seen = len(match.sides[0].tokens.numbers)
        if waits < WAITS_MAX and number % (COMMANDS // WAITS_MAX) == 0:
            waits += 1
            match.let_expire(author.rng)
        command = author.command()
        reply = match.play(command)
        author.hear(command, reply)
        kinds = [one["outcome"] for one in reply.get("outcomes", [])]
        for kind in kinds or [reply["error"]["code"] if "error" in reply else "read"]:
            outcomes[kind] = outcomes.get(kind, 0) + 1
    for namespace in NAMESPACES:
        match.play(("list", {"ns": namespace}))
    missing = {
        *("GRANTED", "HELD", "TEARDOWN", "GRACE", "RENEWED", "LAPSED", "LOST", "REESTABLISHED"),
        *("RELEASED", "NOT_OWNER", "STALE", "MISMATCH", "INVALID", "INCOMPATIBLE"),
    } - set(outcomes)
    assert not missing, f"never seen: {missing}"
