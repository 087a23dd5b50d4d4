"""What the contract says, a second time: the decision table, guards, identities, exactly-once,
settling, set versions, marks, tombstones, grace, limits, restore and recovery.

Written from the contract alone (docs/protocol.md), never from fsm/. Where the contract leaves a
number open, the model takes the state machine's and checks what is promised about it: tokens, set
versions and origins only have to be new and to grow. Everything else must be equal.
"""

OWN, DEL = "own", "del"
END_OF_ENTRY = 4294967295  # the place of what no command did


class Lease:
    """A stored lease. It may have ended already: due, or under a mark, and not removed yet."""

    __slots__ = ("where", "owner", "state", "ttl", "expiry", "token", "since", "meta", "identity",
                 "written", "marked", "cover")

    def __init__(self, where, owner, state):
        self.where = where
        self.owner = owner
        self.state = state
        self.meta = self.identity = None
        self.marked = None  # (reason, time) of the mark that ended it
        self.cover = None  # number of the mark that removes it; it may have been due before


class Tombstone:
    """What is remembered of a key after its lease ended."""

    __slots__ = ("owner", "state", "token", "reason", "ended")

    def __init__(self, owner, state, token, reason, ended):
        self.owner, self.state, self.token = owner, state, token
        self.reason, self.ended = reason, ended


class OwnerSet:
    """The departures from one owner's set of `own` leases, all of them since the beginning, and
    how many of them may be or must be forgotten."""

    __slots__ = ("departures", "numbers", "beyond", "lapsed", "may_change", "idle_at", "version",
                 "seen", "version_at")

    def __init__(self):
        self.departures = []  # (key, token, reason)
        self.numbers = []  # each one's number among those of all owners
        self.beyond = 0  # so many are beyond the limit of departures
        self.lapsed = 0  # so many may be forgotten: nothing was held for too long since
        self.may_change = True  # the version may be another although nothing left
        self.idle_at = -1  # since when nothing is held; None: something is
        self.version = None  # as last reported
        self.version_at = 0  # number of departures then
        self.seen = {0: 0}  # reported version -> number of departures then; 0: the beginning


class Origin:
    """Outcomes of one origin that are not confirmed."""

    __slots__ = ("mark", "outcomes", "last", "spoke")

    def __init__(self, clock, order):
        self.mark = 0
        self.outcomes = {}
        self.last = clock
        self.spoke = order


class Outcome:
    """An outcome that is remembered: the answer's text and what a settle needs."""

    __slots__ = ("text", "at", "fresh", "ended")

    def __init__(self, text, at, fresh):
        self.text, self.at, self.fresh, self.ended = text, at, fresh, False


VOID = Outcome(None, None, ())


class Difference(Exception):
    """The state machine answered otherwise than the model."""


def text_of(value):
    """An optional field as the driver prints it."""
    return "-" if value is None else "=" + value


class Model:
    """One cluster's state. `apply` takes an entry's commands together with the answers to them."""

    def __init__(self, settings):
        self.settings = dict(settings)
        self.clock = self.index = self.place = 0
        self.born_at = self.restored_at = self.recovered_at = 0
        self.purged_at = {}
        self.leases = {}
        self.tombs = {}
        self.forgotten_until = self.forgotten_token = 0  # of what was removed
        self.forgotten_before = self.silent_before = 0  # by age: what is older than this
        self.marks = 0  # how many were set
        self.owners = {}
        self.origins = {}
        self.origin_numbers = set()
        self.last_token = 0
        self.departed = 0  # departures of all owners
        self.dropped = 0  # so many of them may have been forgotten for room
        self.order = 0  # grows with every command that an origin sends
        self.events = []  # what this entry changed, as watchers are told
        self.fresh = []  # keys that the command at hand gave to who did not hold them
        self.actual = ""  # answer to the command at hand
        self.handlers = {
            "take": self.take, "claim": self.claim, "renew": self.renew,
            "heartbeat": self.heartbeat, "release": self.release, "renew_all": self.renew_all,
            "release_all": self.release_all, "purge": self.purge}

    # --- the state ------------------------------------------------------------------------------

    def live(self, lease):
        return lease.marked is None and lease.expiry >= self.clock

    def live_at(self, where):
        lease = self.leases.get(where)
        return lease if lease is not None and self.live(lease) else None

    def touch(self, where):
        """The live lease of a command's key; what has ended is removed before its turn."""
        lease = self.leases.get(where)
        if lease is not None:
            if self.live(lease):
                return lease
            self.bury(lease)
        tomb = self.tombs.get(where)
        if tomb is not None and tomb.ended < self.forgotten_before:
            self.forget(where)
        return None

    @staticmethod
    def end_of(lease):
        """(reason, time) of a stored lease that has ended."""
        return lease.marked or ("expired", lease.expiry)

    def tomb_at(self, where):
        """What is known of an absent key, be its lease removed already or not."""
        lease = self.leases.get(where)
        if lease is not None:
            tomb = Tombstone(lease.owner, lease.state, lease.token, *self.end_of(lease))
        else:
            tomb = self.tombs.get(where)
        return tomb if tomb is not None and tomb.ended >= self.forgotten_before else None

    def forgotten(self):
        """(until, largest token) of everything that is forgotten, be it removed already or not."""
        ends = [(tomb.ended, tomb.token) for tomb in self.tombs.values()]
        ends += [(purged, 0) for purged in self.purged_at.values()]
        ends += [(self.end_of(lease)[1], lease.token) for lease in self.leases.values()
                 if not self.live(lease)]
        ends = [end for end in ends if end[0] < self.forgotten_before]
        ends.append((self.forgotten_until, self.forgotten_token))
        return max(end[0] for end in ends), max(end[1] for end in ends)

    def unowned_since(self, where):
        tomb = self.tomb_at(where)
        return max(tomb.ended if tomb else self.forgotten()[0], self.born_at, self.restored_at,
                   self.recovered_at, self.purged_at.get(where[0], 0))

    def owner_set(self, ns, owner):
        found = self.owners.get((ns, owner))
        if found is None:
            found = self.owners[(ns, owner)] = OwnerSet()
        return found

    def depart(self, lease, reason):
        """The lease leaves its owner's set."""
        if lease.state == OWN:
            owned = self.owner_set(lease.where[0], lease.owner)
            owned.departures.append((lease.where[1], lease.token, reason))
            owned.numbers.append(self.departed)
            self.departed += 1
            self.trim(owned)

    def trim(self, owned):
        """The oldest departures are forgotten beyond a limit: certainly one owner's, perhaps those
        of all owners, as a forgotten owner's count no longer."""
        owned.beyond = max(owned.beyond,
                           len(owned.departures) - self.settings["departures_max"])
        self.dropped = max(self.dropped, self.departed - self.settings["tombstones_max"])

    def may_be_forgotten(self, owned):
        """Whoever holds nothing is forgotten whole after the retention, or when nothing is
        remembered of its departures."""
        if owned.idle_at is None:
            return False
        remembered = [number for number in owned.numbers[max(owned.beyond, owned.lapsed):]
                      if number >= self.dropped]
        return owned.idle_at < self.forgotten_before or not remembered

    def look_at(self, ns, owner):
        """An owner began or ceased to hold anything."""
        owned = self.owner_set(ns, owner)
        if self.may_be_forgotten(owned):
            owned.lapsed = len(owned.departures)
            owned.may_change = True
        if any(lease.owner == owner and lease.where[0] == ns for lease in self.leases.values()):
            owned.idle_at = None
        elif owned.idle_at is None:
            owned.idle_at = self.clock

    def tell(self, kind, lease, previous=None):
        """One change of a lease."""
        ns, key = lease.where
        self.events.append(f"{kind} {ns} {key} {lease.owner} {text_of(previous)} {lease.state} "
                           f"{lease.token} {self.index} {self.place}")

    def bury(self, lease, reason=None, ended=None):
        """Removes the lease, which ended so or by itself, and remembers it."""
        if reason is None:
            reason, ended = self.end_of(lease)
        self.tell(reason, lease)
        self.depart(lease, reason)
        where = lease.where
        del self.leases[where]
        self.look_at(where[0], lease.owner)
        self.tombs[where] = Tombstone(lease.owner, lease.state, lease.token, reason, ended)
        if ended < self.forgotten_before:
            self.forget(where)
        elif len(self.tombs) > self.settings["tombstones_max"]:
            self.forget(min(self.tombs, key=self.tomb_order))

    def tomb_order(self, where):
        return (self.tombs[where].ended, where)

    def forget(self, where):
        tomb = self.tombs.pop(where)
        self.forgotten_until = max(self.forgotten_until, tomb.ended)
        self.forgotten_token = max(self.forgotten_token, tomb.token)

    def age(self):
        """What is older than its retention is forgotten for good, also if that grows later."""
        self.forgotten_before = max(self.forgotten_before,
                                    self.clock - self.settings["tombstone_retention_ms"])
        self.silent_before = max(self.silent_before,
                                 self.clock - self.settings["origin_retention_ms"])

    def draw(self, text):
        """A new token, as the state machine drew it."""
        token = int(text) if text.isdigit() else self.last_token + 1
        if token <= self.last_token:
            raise Difference(f"token {token} is not larger than {self.last_token}")
        self.last_token = token
        return token

    # --- operations -----------------------------------------------------------------------------

    def beyond(self, ns, which):
        """Names of the limits that one more lease is beyond; `which` says what counts as one."""
        leases = [lease for lease in self.leases.values() if which(lease)]
        inside = sum(lease.where[0] == ns for lease in leases)
        return {name for name, count in (("leases", len(leases)),
                                         ("leases_per_namespace", inside))
                if 0 < self.settings[name + "_max"] <= count}

    def write(self, lease, ttl, item):
        lease.ttl = ttl
        lease.expiry = self.clock + ttl
        lease.written = (self.index, self.place)
        if item is not None:
            if item.get("m") is not None:
                lease.meta = item["m"]
            if item.get("i") is not None:
                lease.identity = item["i"]

    def create(self, where, owner, state, ttl, item, token):
        """A lease where there is none."""
        self.tombs.pop(where, None)
        lease = self.leases[where] = Lease(where, owner, state)
        self.look_at(where[0], owner)
        lease.token = token
        lease.since = self.clock
        self.write(lease, ttl, item)
        return lease

    def refused_by_limit(self, ns, got):
        """The outcome if a limit refuses, else None. `got` is the state machine's. Leases that have
        ended make room."""
        while True:
            beyond = self.beyond(ns, lambda lease: True)
            if not beyond:
                return None
            ended = [lease for lease in self.covered() + self.due()
                     if "leases" in beyond or lease.where[0] == ns]
            if not ended:
                return got if got[12:] in beyond else "UNAVAILABLE," + sorted(beyond)[0]
            self.bury(ended[0])

    def grant_absent(self, cmd, item, state, got):
        refusal = self.refused_by_limit(cmd["ns"], got)
        if refusal:
            return refusal
        where = (cmd["ns"], item["k"])
        fields = got.split(",")
        token = self.draw(fields[1] if len(fields) > 1 else "")
        lease = self.create(where, cmd["owner"], state, cmd["ttl"], item, token)
        self.tell("granted" if state == OWN else "teardown", lease)
        self.fresh.append(where)
        return f"GRANTED,{token},{self.clock + cmd['ttl']},0"

    def holder(self, lease):
        return f"{lease.owner},{lease.state},{lease.token},{lease.expiry - self.clock}"

    def differs(self, lease, item):
        identity = item.get("i")
        return (identity is not None and lease.identity is not None and
                identity != lease.identity)

    def grant_held(self, cmd, item, lease, got, state=OWN):
        """The holder's lease again, under a new token."""
        fields = got.split(",")
        token = self.draw(fields[1] if len(fields) > 1 else "")
        if state == DEL and lease.state == OWN:
            self.depart(lease, "teardown")
        lease.token, lease.state = token, state
        self.tell("regranted" if state == OWN else "teardown", lease)
        self.write(lease, cmd["ttl"], item)
        return f"GRANTED,{token},{lease.expiry},1"

    def take(self, cmd, item, got):
        lease = self.touch((cmd["ns"], item["k"]))
        if lease is None:
            return self.grant_absent(cmd, item, OWN, got)
        if lease.state == DEL:
            return "TEARDOWN," + self.holder(lease)
        if self.differs(lease, item):
            return "MISMATCH," + self.holder(lease)
        if lease.owner == cmd["owner"]:
            return self.grant_held(cmd, item, lease, got)
        previous = self.holder(lease)
        self.depart(lease, "taken")
        fields = got.split(",")
        lease.token = token = self.draw(fields[1] if len(fields) > 1 else "")
        previous_owner, lease.owner = lease.owner, cmd["owner"]
        self.look_at(lease.where[0], previous_owner)
        self.look_at(lease.where[0], lease.owner)
        self.tell("transferred", lease, previous_owner)
        lease.since = self.clock
        self.write(lease, cmd["ttl"], item)
        self.fresh.append(lease.where)
        return f"GRANTED,{token},{lease.expiry},0,{previous}"

    def claim(self, cmd, item, got):
        where = (cmd["ns"], item["k"])
        destroy, grace, guard = cmd.get("destroy"), cmd.get("grace"), item.get("t")
        state = DEL if destroy else OWN
        lease = self.touch(where)
        if lease is None:
            if destroy and guard is not None:
                return "LAPSED"
            if grace is not None:
                left = self.unowned_since(where) + grace - self.clock
                if left > 0:
                    return f"GRACE,{left}"
            return self.grant_absent(cmd, item, state, got)
        if lease.owner != cmd["owner"]:
            return "HELD," + self.holder(lease)
        if lease.state == DEL and not destroy:
            return "TEARDOWN," + self.holder(lease)
        if guard is not None and guard != lease.token:
            return "STALE," + self.holder(lease)
        if self.differs(lease, item):
            return "MISMATCH," + self.holder(lease)
        if lease.state == DEL:
            self.write(lease, cmd["ttl"], item)
            return f"GRANTED,{lease.token},{lease.expiry},1"
        return self.grant_held(cmd, item, lease, got, state)

    def let_go(self, where, owner, guard):
        """What forbids to re-establish with a guard."""
        tomb = self.tomb_at(where)
        if tomb is None:
            return self.forgotten()[1] > guard
        if tomb.owner != owner:
            return tomb.token >= guard
        if tomb.reason == "released":
            return tomb.token >= guard
        return tomb.state == DEL and tomb.token > guard

    def renew(self, cmd, item, got):
        where = (cmd["ns"], item["k"])
        guard = item.get("t")
        lease = self.touch(where)
        if lease is None:
            if not cmd.get("reestablish"):
                return "LAPSED"
            if guard is not None and self.let_go(where, cmd["owner"], guard):
                return "LAPSED"
            refusal = self.refused_by_limit(cmd["ns"], got)
            if refusal:
                return refusal
            fields = got.split(",")
            token = self.draw(fields[1] if len(fields) > 1 else "")
            lease = self.create(where, cmd["owner"], OWN, cmd["ttl"], item, token)
            self.tell("reestablished", lease)
            return f"REESTABLISHED,{token},{self.clock + cmd['ttl']}"
        if lease.owner != cmd["owner"]:
            return "LOST," + self.holder(lease)
        if guard is not None and guard != lease.token:
            return "STALE," + self.holder(lease)
        if lease.state == DEL:
            return "LOST," + self.holder(lease)
        self.write(lease, cmd["ttl"], None)
        return f"RENEWED,{lease.token},{lease.expiry}"

    def heartbeat(self, cmd, item, _got):
        guard = item.get("t")
        lease = self.touch((cmd["ns"], item["k"]))
        if lease is None:
            return "LAPSED"
        if lease.owner != cmd["owner"]:
            return "LOST," + self.holder(lease)
        if guard is not None and guard != lease.token:
            return "STALE," + self.holder(lease)
        if lease.state == OWN:
            return "LOST," + self.holder(lease)
        self.write(lease, cmd["ttl"], None)
        return f"RENEWED,{lease.token},{lease.expiry}"

    def release(self, cmd, item, _got):
        guard = item.get("t")
        lease = self.touch((cmd["ns"], item["k"]))
        if lease is None:
            return "NOT_OWNER"
        if lease.owner != cmd["owner"]:
            return "NOT_OWNER," + self.holder(lease)
        if guard is not None and guard != lease.token:
            return "STALE," + self.holder(lease)
        self.bury(lease, "released", self.clock)
        return "RELEASED"

    def renew_all(self, cmd, answer):
        ns, owner = cmd["ns"], cmd["owner"]
        mine = [lease for lease in self.leases.values()
                if lease.where[0] == ns and lease.owner == owner and lease.state == OWN]
        for lease in sorted(mine, key=lambda lease: lease.token):
            if not self.live(lease):
                mine.remove(lease)
                self.bury(lease)
        for lease in mine:
            self.write(lease, cmd["ttl"], None)
        count = len(mine)
        owned = self.owner_set(ns, owner)
        self.trim(owned)
        fields = answer.split(" ")
        if len(fields) < 3:
            return f"{count} VERSION AGAIN"
        version, again, named = int(fields[1]), fields[2], fields[3:]
        self.check_version(owned, version)
        known = cmd.get("version")
        if known is None or known == version:
            return f"{count} {version} 0"
        since = owned.seen[known]
        if since < owned.beyond:
            return f"{count} {version} 1"
        if again == "1" and not named and self.forgettable(owned, since):
            return f"{count} {version} 1"
        left = sorted(f"{key},{token},{reason}" for key, token, reason in owned.departures[since:])
        if sorted(named) == left:
            left = named  # in whatever order
        return " ".join([f"{count} {version} 0"] + left)

    def forgettable(self, owned, since):
        """May the departures from `since` on be forgotten although there are not too many? Those of
        an owner that held nothing for too long, and for room."""
        if since <= owned.lapsed or self.may_be_forgotten(owned):
            return True
        return since < len(owned.numbers) and owned.numbers[since] < self.dropped

    def check_version(self, owned, version):
        """A set version changes if and only if something left, and never repeats. Of an owner that
        held nothing for too long everything is forgotten: then it may change too."""
        total = len(owned.departures)
        if owned.version is not None and version != owned.version:
            if (total == owned.version_at and not owned.may_change and
                    not self.may_be_forgotten(owned)):
                raise Difference(f"set version {owned.version} -> {version}, nothing departed")
            if version in owned.seen and version != 0:
                raise Difference(f"set version {version} again")
        if version == owned.version and total != owned.version_at:
            raise Difference(f"set version {version} still, departures {owned.version_at} -> "
                             f"{total}")
        owned.version, owned.version_at = version, total
        owned.may_change = False
        owned.seen.setdefault(version, total)

    def mark(self, chosen, reason):
        """Ends all of them at once; they are removed later, what was due among them too."""
        chosen = [lease for lease in chosen if lease.cover is None]
        live = [lease for lease in chosen if self.live(lease)]
        if live:
            self.marks += 1
            for lease in chosen:
                lease.cover = self.marks
            for lease in live:
                lease.marked = (reason, self.clock)
        return str(len(live))

    def release_all(self, cmd, _answer):
        ns, owner = cmd["ns"], cmd["owner"]
        return self.mark([lease for lease in self.leases.values() if lease.where[0] == ns and
                          lease.owner == owner and lease.state == OWN], "released")

    def purge(self, cmd, _answer):
        ns = cmd["ns"]
        count = self.mark([lease for lease in self.leases.values() if lease.where[0] == ns],
                          "purged")
        self.forget_purge(ns)
        self.purged_at[ns] = self.clock
        return count

    def forget_purge(self, ns):
        """A purge that is forgotten moves the mark as the ends of its keys do."""
        purged = self.purged_at.get(ns, 0)
        if purged < self.forgotten_before:
            self.purged_at.pop(ns, None)
            self.forgotten_until = max(self.forgotten_until, purged)

    # --- exactly once ---------------------------------------------------------------------------

    def head(self, status, kind):
        return f"{status} {kind} {self.index} {self.place} {self.clock}"

    def numbered(self, cmd):
        kind = cmd["kind"]
        origin = self.meet_origin(cmd["o"])
        if origin is None:
            return self.head("ORIGIN_UNKNOWN", kind)
        self.order += 1
        origin.last, origin.spoke = self.clock, self.order
        self.confirm(origin, cmd["c"])
        sequence = cmd["s"]
        if sequence <= origin.mark:
            return self.head("FORGOTTEN", kind)
        known = origin.outcomes.get(sequence)
        if known is VOID:
            return self.head("VOID", kind)
        if known is not None:
            return known.text
        self.fresh = []
        expected = self.run(cmd, kind)
        origin.outcomes[sequence] = Outcome(self.actual, (self.index, self.place), self.fresh)
        return expected

    def meet_origin(self, number):
        """The origin, unless it was silent for too long, be it removed already or not."""
        origin = self.origins.get(number)
        if origin is not None and origin.last < self.silent_before:
            del self.origins[number]
            return None
        return origin

    def longest_silent(self):
        return min(self.origins, key=lambda number: self.origins[number].spoke)

    @staticmethod
    def confirm(origin, mark):
        if mark > origin.mark:
            origin.mark = mark
            for sequence in [s for s in origin.outcomes if s <= mark]:
                del origin.outcomes[sequence]

    def run(self, cmd, kind):
        """Carries out what has not been carried out yet."""
        head = self.head("OK", kind)
        body = self.actual[len(head) + 1:]
        items = cmd.get("items")
        if items is None:
            return head + " " + self.handlers[kind](cmd, body)
        if cmd.get("grace", 0) > self.settings["tombstone_retention_ms"]:
            return self.head("INVALID", kind)
        handler = self.handlers[kind]
        got = body.split(" ")
        if len(got) != len(items):
            got = [""] * len(items)
        return head + " " + " ".join(
            [handler(cmd, item, text) for item, text in zip(items, got)])

    def settle(self, cmd):
        origin = self.meet_origin(cmd["origin"])
        if origin is None:
            return self.head("ORIGIN_UNKNOWN", "settle")
        self.order += 1
        origin.last, origin.spoke = self.clock, self.order
        sequence = cmd["sequence"]
        if sequence <= origin.mark:
            return self.head("FORGOTTEN", "settle")
        head = self.head("OK", "settle")
        known = origin.outcomes.get(sequence)
        if known is None:
            origin.outcomes[sequence] = known = VOID
        if known is VOID:
            return head + " 0 0"
        for where in known.fresh:
            lease = self.touch(where)
            if lease is not None and lease.written == known.at:
                self.bury(lease, "settled", self.clock)
                known.ended = True
        known.fresh = ()  # settling twice is answered as it was the first time
        return head + f" 1 {int(known.ended)}"

    def open_origin(self, _cmd):
        head = self.head("OK", "open_origin")
        text = self.actual[len(head) + 1:]
        number = int(text) if text.isdigit() else 0
        if number in self.origin_numbers or number == 0:
            raise Difference(f"origin {number} was there before")
        self.origin_numbers.add(number)
        self.order += 1
        self.origins[number] = Origin(self.clock, self.order)
        while len(self.origins) > self.settings["origins_max"]:
            del self.origins[self.longest_silent()]
        return head + f" {number}"

    # --- cluster --------------------------------------------------------------------------------

    def birth(self, cmd):
        self.born_at = self.clock
        self.settings.update(cmd["settings"])
        self.age()
        self.last_token = max(self.last_token, cmd["floor"])
        return self.head("OK", "birth")

    def configure(self, cmd):
        self.settings.update(cmd["settings"])
        self.age()
        return self.head("OK", "configure")

    def restore(self, cmd):
        self.last_token = max(self.last_token, cmd["floor"])
        self.restored_at = self.clock
        self.origins.clear()  # numbers of the cluster that was
        self.bury_all()
        for lease in sorted(self.leases.values(), key=lambda lease: (lease.where[0], lease.token)):
            if lease.state == OWN:
                self.bury(lease, "restored", self.clock)
            else:
                lease.expiry = self.clock + lease.ttl
        return self.head("OK", "restore")

    def recover(self, cmd):
        self.last_token = max(self.last_token, cmd["floor"])
        self.recovered_at = self.clock
        self.bury_all()
        for lease in self.leases.values():
            lease.expiry = self.clock + lease.ttl
        return self.head("OK", "recover")

    # --- entries --------------------------------------------------------------------------------

    def apply(self, index, stamp, commands, answers):
        """Compares every answer; raises Difference at the first that is another."""
        self.index = index
        self.events = []
        if stamp > self.clock:
            self.clock = stamp
        self.age()
        if len(answers) != len(commands):
            raise Difference(f"{len(commands)} commands, {len(answers)} answers")
        for self.place, cmd in enumerate(commands):
            self.actual = answers[self.place]
            if "o" in cmd:
                expected = self.numbered(cmd)
            else:
                expected = getattr(self, cmd["kind"])(cmd)
            if expected != self.actual:
                raise Difference(f"command {self.place}: {cmd}\n  expected {expected}\n"
                                 f"  got      {self.actual}")
        self.place = END_OF_ENTRY
        self.remove_due()

    # Removal only cleans up; but what it comes to decides what goes for lack of room, hence its
    # order: leases under marks as the marks were set and in the order of tokens; due ones in the
    # order (expiry, namespace, key); the oldest tombstones; the longest silent origins. What one
    # command ends goes in the order of tokens.

    def covered(self):
        return sorted((lease for lease in self.leases.values() if lease.cover is not None),
                      key=lambda lease: (lease.cover, lease.token))

    def due(self):
        return sorted((lease for lease in self.leases.values() if lease.expiry < self.clock),
                      key=lambda lease: (lease.expiry, lease.where))

    def bury_all(self):
        for lease in self.covered():
            self.bury(lease)
        for lease in self.due():
            self.bury(lease)

    def remove_due(self):
        most = self.settings["removal_slice"]
        for lease in self.covered()[:most]:
            self.bury(lease)
        for lease in self.due()[:most]:
            self.bury(lease)
        for _ in range(most):
            oldest = min(self.tombs, key=self.tomb_order, default=None)
            if oldest is None or (self.tombs[oldest].ended >= self.forgotten_before and
                                  len(self.tombs) <= self.settings["tombstones_max"]):
                break
            self.forget(oldest)
        self.dropped = max(self.dropped, self.departed - self.settings["tombstones_max"])
        removed = 0
        while removed < most and self.origins:
            number = self.longest_silent()
            origin = self.origins[number]
            if (origin.last >= self.silent_before and
                    len(self.origins) <= self.settings["origins_max"]):
                break
            removed += 1 + len(origin.outcomes)
            del self.origins[number]
        for _, ns in sorted((purged, ns) for ns, purged in self.purged_at.items())[:most]:
            self.forget_purge(ns)

    # --- reads ----------------------------------------------------------------------------------

    @staticmethod
    def view(lease):
        return (f"{lease.where[1]} {lease.owner} {lease.state} {lease.ttl} {lease.expiry} "
                f"{lease.token} {lease.since} {text_of(lease.meta)} {text_of(lease.identity)}")

    def read_owner(self, ns, key, now):
        lease = self.live_at((ns, key))
        return "none" if lease is None or lease.expiry < now else self.view(lease)

    def matching(self, ns, now, wanted):
        """Live leases of the namespace at `now`, filtered, in the order of their keys."""
        return [lease for where, lease in sorted(self.leases.items())
                if where[0] == ns and self.live(lease) and lease.expiry >= now and
                where[1].startswith(wanted.get("prefix", "")) and
                wanted.get("owner", lease.owner) == lease.owner and
                wanted.get("state", lease.state) == lease.state and
                ("after" not in wanted or where[1] > wanted["after"])]

    def read_list(self, ns, now, wanted):
        return "|".join(self.view(lease) for lease in self.matching(ns, now, wanted))

    def read_gone(self, ns, key):
        tomb = self.tomb_at((ns, key))
        since = self.unowned_since((ns, key))
        if tomb is None:
            return f"{since} none"
        return f"{since} {tomb.owner} {tomb.state} {tomb.token} {tomb.reason} {tomb.ended}"
