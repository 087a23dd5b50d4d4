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
                 "written", "marked", "departed")

    def __init__(self, where, owner, state):
        self.where = where
        self.owner = owner
        self.state = state
        self.meta = self.identity = None
        self.marked = None  # (reason, time) of a mark
        self.departed = False  # its departure from the owner's set is recorded


class Tombstone:
    """What is remembered of a key after its lease ended."""

    __slots__ = ("owner", "state", "token", "reason", "ended")

    def __init__(self, owner, state, token, reason, ended):
        self.owner, self.state, self.token = owner, state, token
        self.reason, self.ended = reason, ended


class OwnerSet:
    """The departures from one owner's set of `own` leases, all of them since the beginning."""

    __slots__ = ("departures", "version", "seen", "version_at", "emptied_at", "times")

    def __init__(self):
        self.departures = []  # (key, token, reasons that may be named)
        self.times = []  # when each of them was
        self.emptied_at = 0  # up to here they may be forgotten: the set was empty then
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
        self.forgotten_until = self.forgotten_token = 0
        self.owners = {}
        self.origins = {}
        self.origin_numbers = set()
        self.last_token = 0
        self.departed = 0  # departures of all owners
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
            self.bury(lease, *self.end_of(lease))
        tomb = self.tombs.get(where)
        if tomb is not None and tomb.ended < self.retained_since():
            self.forget(where)
        return None

    def end_of(self, lease):
        """(reason, time) of a stored lease that has ended."""
        return lease.marked or ("expired", lease.expiry)

    def tomb_at(self, where):
        """What is known of an absent key, be its lease removed already or not."""
        lease = self.leases.get(where)
        if lease is not None:
            return Tombstone(lease.owner, lease.state, lease.token, *self.end_of(lease))
        tomb = self.tombs.get(where)
        return tomb if tomb is not None and tomb.ended >= self.retained_since() else None

    def unowned_since(self, where):
        tomb = self.tomb_at(where) or self.tombs.get(where)  # too old, but not removed yet
        return max(tomb.ended if tomb else self.forgotten_until, self.born_at, self.restored_at,
                   self.recovered_at, self.purged_at.get(where[0], 0))

    def owner_set(self, ns, owner):
        found = self.owners.get((ns, owner))
        if found is None:
            found = self.owners[(ns, owner)] = OwnerSet()
        return found

    def depart(self, lease, *reasons):
        """The lease leaves its owner's set; once."""
        if lease.state == OWN and not lease.departed:
            lease.departed = True
            ns = lease.where[0]
            owned = self.owner_set(ns, lease.owner)
            owned.departures.append((lease.where[1], lease.token, reasons))
            owned.times.append((self.clock, self.departed))
            self.departed += 1
            if not any(other.owner == lease.owner and other.where[0] == ns and
                       other.state == OWN and not other.departed
                       for other in self.leases.values()):
                owned.emptied_at = len(owned.departures)

    def tell(self, kind, lease, previous=None):
        """One change of a lease."""
        ns, key = lease.where
        self.events.append(f"{kind} {ns} {key} {lease.owner} {text_of(previous)} {lease.state} "
                           f"{lease.token} {self.index} {self.place}")

    def bury(self, lease, reason, ended):
        """Removes the lease and remembers it."""
        self.tell(reason, lease)
        self.depart(lease, reason)
        del self.leases[lease.where]
        self.tombs[lease.where] = Tombstone(lease.owner, lease.state, lease.token, reason, ended)
        if len(self.tombs) > self.settings["tombstones_max"]:
            self.forget(min(self.tombs, key=self.tomb_order))

    def tomb_order(self, where):
        return (self.tombs[where].ended, where)

    def forget(self, where):
        tomb = self.tombs.pop(where)
        self.forgotten_until = max(self.forgotten_until, tomb.ended)
        self.forgotten_token = max(self.forgotten_token, tomb.token)

    def retained_since(self):
        """A tombstone of an earlier end is remembered no longer."""
        return self.clock - self.settings["tombstone_retention_ms"]

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
        old = self.leases.get(where)
        if old is not None:  # ended but stored
            reason = self.end_of(old)[0]
            if old.owner == owner:
                self.depart(old, reason, "regranted")
            else:
                self.depart(old, reason)
        self.tombs.pop(where, None)
        lease = self.leases[where] = Lease(where, owner, state)
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
            ended = [lease for lease in self.ended_leases()
                     if "leases" in beyond or lease.where[0] == ns]
            if not ended:
                return got if got[12:] in beyond else "UNAVAILABLE," + sorted(beyond)[0]
            self.bury(ended[0], *self.end_of(ended[0]))

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
        lease.departed = False
        fields = got.split(",")
        lease.token = token = self.draw(fields[1] if len(fields) > 1 else "")
        previous_owner, lease.owner = lease.owner, cmd["owner"]
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
            return self.forgotten_token > guard
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
        for lease in self.ended_leases():
            if lease in mine:
                mine.remove(lease)
                self.bury(lease, *self.end_of(lease))
        for lease in mine:
            self.write(lease, cmd["ttl"], None)
        count = len(mine)
        owned = self.owner_set(ns, owner)
        fields = answer.split(" ")
        if len(fields) < 3:
            return f"{count} VERSION AGAIN"
        version, again, named = int(fields[1]), fields[2], fields[3:]
        self.check_version(owned, version)
        known = cmd.get("version")
        if known is None or known == version:
            return f"{count} {version} 0"
        since = owned.seen[known]
        left = owned.departures[since:]
        if len(left) > self.settings["departures_max"]:
            return f"{count} {version} 1"
        if again == "1" and not named and self.forgettable(owned, since):
            return answer
        expected = sorted((key, str(token), reasons) for key, token, reasons in left)
        got = sorted(tuple(name.split(",")) for name in named)
        same = len(expected) == len(got) and all(
            mine[:2] == theirs[:2] and theirs[2] in mine[2]
            for mine, theirs in zip(expected, got))
        if same and again == "0":
            return answer
        return f"{count} {version} 0 " + " ".join(f"{k},{t},{'/'.join(r)}" for k, t, r in left)

    def forgettable(self, owned, since):
        """May the departures from `since` on be forgotten although the owner has few? Of an owner
        whose set was empty, after the retention, and for room."""
        if since <= owned.emptied_at:
            return True
        ended, number = owned.times[since]
        return (ended < self.retained_since() or
                self.departed - number >= self.settings["tombstones_max"])

    @staticmethod
    def check_version(owned, version):
        """A set version changes if and only if something left, and never repeats. Of an owner whose
        set was empty since, everything may have been forgotten: then it may change too."""
        total = len(owned.departures)
        if owned.version is not None and version != owned.version:
            if total == owned.version_at and owned.emptied_at < total:
                raise Difference(f"set version {owned.version} -> {version}, nothing departed")
            if version in owned.seen and version != 0:
                raise Difference(f"set version {version} again")
        if version == owned.version and total != owned.version_at:
            raise Difference(f"set version {version} still, departures {owned.version_at} -> "
                             f"{total}")
        owned.version, owned.version_at = version, total
        owned.seen.setdefault(version, total)

    def mark(self, chosen, reason):
        count = 0
        for lease in chosen:
            if self.live(lease):
                self.depart(lease, reason)
                lease.marked = (reason, self.clock)
                count += 1
        return str(count)

    def release_all(self, cmd, _answer):
        ns, owner = cmd["ns"], cmd["owner"]
        return self.mark([lease for lease in self.leases.values() if lease.where[0] == ns and
                          lease.owner == owner and lease.state == OWN], "released")

    def purge(self, cmd, _answer):
        ns = cmd["ns"]
        self.purged_at[ns] = self.clock
        return self.mark([lease for lease in self.leases.values() if lease.where[0] == ns],
                         "purged")

    # --- exactly once ---------------------------------------------------------------------------

    def head(self, status, kind):
        return f"{status} {kind} {self.index} {self.place} {self.clock}"

    def numbered(self, cmd):
        kind = cmd["kind"]
        origin = self.origins.get(cmd["o"])
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
        origin = self.origins.get(cmd["origin"])
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
        ended = False
        for where in known.fresh:
            lease = self.touch(where)
            if lease is not None and lease.written == known.at:
                self.bury(lease, "settled", self.clock)
                ended = True
        if known.ended and self.actual == head + " 1 1":
            return self.actual  # a settle that is sent again may be told the same again
        known.ended = known.ended or ended
        return head + f" 1 {int(ended)}"

    def open_origin(self, _cmd):
        head = self.head("OK", "open_origin")
        text = self.actual[len(head) + 1:]
        number = int(text) if text.isdigit() else 0
        if number in self.origin_numbers or number == 0:
            raise Difference(f"origin {number} was there before")
        self.origin_numbers.add(number)
        self.order += 1
        self.origins[number] = Origin(self.clock, self.order)
        if len(self.origins) > self.settings["origins_max"]:
            self.origins.pop(min(self.origins, key=lambda n: (self.origins[n].last,
                                                              self.origins[n].spoke)))
        return head + f" {number}"

    # --- cluster --------------------------------------------------------------------------------

    def birth(self, cmd):
        self.born_at = self.clock
        self.settings.update(cmd["settings"])
        self.last_token = max(self.last_token, cmd["floor"])
        return self.head("OK", "birth")

    def configure(self, cmd):
        self.settings.update(cmd["settings"])
        return self.head("OK", "configure")

    def restore(self, cmd):
        self.last_token = max(self.last_token, cmd["floor"])
        self.restored_at = self.clock
        self.origins.clear()  # numbers of the cluster that was
        for lease in self.ended_leases():
            self.bury(lease, *self.end_of(lease))
        for lease in sorted(self.leases.values(), key=lambda lease: lease.where):
            if lease.state == OWN:
                self.bury(lease, "restored", self.clock)
            else:
                lease.expiry = self.clock + lease.ttl
        return self.head("OK", "restore")

    def recover(self, cmd):
        self.last_token = max(self.last_token, cmd["floor"])
        self.recovered_at = self.clock
        for lease in self.leases.values():
            if self.live(lease):
                lease.expiry = self.clock + lease.ttl
        return self.head("OK", "recover")

    # --- entries --------------------------------------------------------------------------------

    def apply(self, index, stamp, commands, answers):
        """Compares every answer; raises Difference at the first that is another."""
        self.index = index
        self.events = []
        if stamp > self.clock:
            self.clock = stamp
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

    def ended_leases(self):
        """Stored leases that are none any more, in the order in which they are removed."""
        ended = [lease for lease in self.leases.values() if not self.live(lease)]
        ended.sort(key=lambda lease: (self.end_of(lease)[1], lease.where))
        return ended

    def remove_due(self):
        most = self.settings["removal_slice"]
        clock = self.clock
        ended = self.ended_leases()
        for some in ([lease for lease in ended if lease.expiry < clock],
                     [lease for lease in ended if lease.marked]):
            for lease in some[:most]:
                if lease.where in self.leases:
                    self.bury(lease, *self.end_of(lease))
        limit = self.retained_since()
        old = [(tomb.ended, where) for where, tomb in self.tombs.items() if tomb.ended < limit]
        old += [(purged, (ns,)) for ns, purged in self.purged_at.items() if purged < limit]
        for ended, where in sorted(old)[:most]:
            if len(where) == 2:
                self.forget(where)
            else:  # a purge that is forgotten moves the mark as the ends of its keys do
                del self.purged_at[where[0]]
                self.forgotten_until = max(self.forgotten_until, ended)
        limit = clock - self.settings["origin_retention_ms"]
        silent = [number for number, origin in self.origins.items() if origin.last < limit]
        if silent:
            silent.sort(key=lambda number: (self.origins[number].last, number))
            for number in silent[:most]:
                del self.origins[number]

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
