"""The ways to the state machine: itself, the API of a node, the command line.

Each path does one operation on one key and says what came, in the same form:

    do(op, ns, owner, key, **parameters) -> {"outcome": ..., "token": ..., "held_before": ...,
        "ms_left": ..., "holder": {"owner", "state", "token", "ms_left"} or None, "grace_ms_left"}
        or {"error": code, "field": ..., "value": ..., "rule": ...}; the command line adds "exit"
    owner(ns, key) -> None or {"owner", "state", "token", "ttl_ms", "meta", "identity"}

op is the name of an operation with its flags, e.g. "claim-adopt-destroy". Texts are bytes.
"""
import json
import os
import subprocess
import time

RETENTION_MS = 600000

# Operation -> (method, flags)
OPERATIONS = {
    "take": ("take", ()),
    "claim": ("claim", ()),
    "claim-destroy": ("claim", ("destroy",)),
    "claim-adopt": ("claim", ("adopt",)),
    "claim-grace": ("claim", ("adopt",)),
    "claim-adopt-destroy": ("claim", ("adopt", "destroy")),
    "claim-grace-destroy": ("claim", ("adopt", "destroy")),
    "renew": ("renew", ()),
    "renew-reestablish": ("renew", ("reestablish",)),
    "heartbeat": ("heartbeat", ()),
    "release": ("release", ()),
    "renew_all": ("renew_all", ()),
}


class Broken(Exception):
    """The path itself does not work."""


def escape(text):
    return "".join(chr(byte) if chr(byte).isalnum() and byte < 128 else f"%{byte:02x}"
                   for byte in text)


def unescape(text):
    out = bytearray()
    at = 0
    while at < len(text):
        if text[at] == "%":
            out.append(int(text[at + 1:at + 3], 16))
            at += 3
        else:
            out.append(ord(text[at]))
            at += 1
    return bytes(out)


class StateMachine:
    """fsm_driver: entries applied to one state machine; waiting is a later stamp."""

    name = "state machine"
    kinds = ("all", "lines")

    def __init__(self, driver):
        self.process = subprocess.Popen([driver], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.index = 0
        self.stamp = 1000000
        self.sequence = 0
        self.ask("reset")
        self.apply("birth id=%01 generation=1 floor=1000")
        self.origin = int(self.apply("open_origin node=1 nonce=1").split(" ")[5])
        # The grace of 500 seconds must not have passed since the birth, one of 600 neither.
        self.stamp += 1000

    def ask(self, line):
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise Broken(f"the driver died at {line}")
        return answer[:-1].decode()

    def apply(self, command):
        self.index += 1
        return self.ask(f"apply {self.index} {self.stamp} {command}")

    def wait(self, wait_ms):
        self.stamp += wait_ms
        self.apply("open_origin node=1 nonce=2")

    def do(self, op, ns, owner, key, **parameters):
        method, flags = OPERATIONS[op]
        self.sequence += 1
        words = [f"{method} o={self.origin} s={self.sequence} c={self.sequence - 1}",
                 f"ns={escape(ns)} owner={escape(owner)}"]
        if "ttl_ms" in parameters:
            words.append(f"ttl={parameters['ttl_ms']}")
        if "grace_ms" in parameters:
            words.append(f"grace_ms={parameters['grace_ms']}")
        words += [f"{flag}=1" for flag in flags]
        if method != "renew_all":
            words.append(f"k={escape(key)}")
        for name, letter in (("meta", "m"), ("identity", "i")):
            if name in parameters:
                words.append(f"{letter}={escape(parameters[name])}")
        if "if_token" in parameters:
            words.append(f"t={parameters['if_token']}")
        return self.parse(self.apply(" ".join(words)))

    def parse(self, answer):
        if answer.startswith("INVALID ") and "\t" in answer:
            field, value, rule = answer[8:].split("\t")
            return {"error": "INVALID", "field": field, "value": value, "rule": rule}
        words = answer.split(" ")
        if words[0] == "INVALID":  # beyond the retention that is set: the state machine itself
            return {"error": "INVALID", "field": "grace_ms", "value": None,
                    "rule": "must be a whole number of milliseconds in 0..the retention of "
                            "tombstones"}
        if words[0] != "OK":
            return {"error": words[0], "field": None, "value": None, "rule": None}
        clock, fields = int(words[4]), words[5].split(",")
        reply = {"outcome": fields[0], "token": None, "held_before": False, "ms_left": None,
                 "holder": None, "grace_ms_left": None}
        holder = fields[1:]
        if fields[0] in ("GRANTED", "RENEWED", "REESTABLISHED"):
            reply["token"] = int(fields[1])
            reply["ms_left"] = int(fields[2]) - clock
            reply["held_before"] = fields[0] == "GRANTED" and fields[3] == "1"
            holder = fields[4:]
        elif fields[0] == "GRACE":
            reply["grace_ms_left"] = int(fields[1])
            holder = []
        if holder:
            reply["holder"] = {"owner": unescape(holder[0]), "state": holder[1],
                               "token": int(holder[2]), "ms_left": int(holder[3])}
        return reply

    def owner(self, ns, key):
        answer = self.ask(f"owner {escape(ns)} {escape(key)} {self.stamp}")
        if answer == "none":
            return None
        words = answer.split(" ")
        return {"owner": unescape(words[1]), "state": words[2], "ttl_ms": int(words[3]),
                "token": int(words[5]),
                "meta": None if words[7] == "-" else unescape(words[7][1:]),
                "identity": None if words[8] == "-" else unescape(words[8][1:])}

    def close(self):
        self.process.stdin.close()
        if self.process.wait() != 0:
            raise Broken("the driver ended with an error")


class Socket:
    """The API of one node: msgpack on its unix socket."""

    kinds = ("all", "lines", "api")

    def __init__(self, name, api):
        self.name = name
        self.api = api

    def wait(self, wait_ms):
        time.sleep(wait_ms / 1000)

    def do(self, op, ns, owner, key, **parameters):
        method, flags = OPERATIONS[op]
        names = {"ns": ns, "owner": owner, **parameters, **{flag: True for flag in flags}}
        if method != "renew_all":
            names["key"] = key
        reply = self.api.call(method, **names)
        if reply.error:
            return self.parse_error(reply.error)
        if method == "renew_all":
            return {"outcome": "OK"}
        outcome = reply.result["outcomes"][0]
        holder = outcome.get("holder")
        if holder:
            holder = {"owner": as_bytes(holder["owner"]), "state": holder["state"],
                      "token": holder["token"], "ms_left": holder["ms_left"]}
        return {"outcome": outcome["outcome"], "token": outcome.get("token"),
                "held_before": bool(outcome.get("held_before")),
                "ms_left": outcome.get("ms_left"), "holder": holder,
                "grace_ms_left": outcome.get("grace_ms_left")}

    def many(self, method, owner, keys, **parameters):
        """The reply to one request with several keys, as it came, or what was INVALID."""
        reply = self.api.call(method, ns=b"default", owner=owner, keys=keys, **parameters)
        if reply.error:
            error = self.parse_error(reply.error)
            return {name: error[name] for name in ("error", "field", "rule")}
        return reply.result

    @staticmethod
    def parse_error(error):
        names = error.names
        return {"error": error.code, "field": names.get("field"), "value": names.get("value"),
                "rule": names.get("rule"), "text": error.text}

    def owner(self, ns, key):
        lease = self.api.result("owner", ns=ns, key=key)["leases"][0]
        if lease is None:
            return None
        return {"owner": as_bytes(lease["owner"]), "state": lease["state"],
                "ttl_ms": lease["ttl_ms"], "token": lease["token"],
                "meta": as_bytes(lease.get("meta")), "identity": as_bytes(lease.get("identity"))}

    def close(self):
        self.api.close()


def as_bytes(text):
    return text.encode() if isinstance(text, str) else text


class CommandLine:
    """`tenure` with --json; it takes no NUL and prints keys so that no terminal can be driven."""

    kinds = ("all",)

    def __init__(self, name, program, socket_path):
        self.name = name
        self.program = program
        self.socket_path = socket_path

    def wait(self, wait_ms):
        time.sleep(wait_ms / 1000)

    def run(self, method, key, *options):
        done = subprocess.run([self.program.encode(), method, b"--json", b"--socket",
                               self.socket_path.encode(), *options, b"--", key],
                              capture_output=True, timeout=30, check=False)
        return done.returncode, done.stdout, done.stderr

    def do(self, op, ns, owner, key, **parameters):
        method, flags = OPERATIONS[op]
        arguments = [b"--namespace", ns, b"--owner", owner]
        options = {"ttl_ms": (b"--ttl", b"ms"), "grace_ms": (b"--grace", b"ms"),
                   "if_token": (b"--if-token", b"")}
        for name, value in parameters.items():
            if name in options:
                arguments += [options[name][0], str(value).encode() + options[name][1]]
            else:
                arguments += [b"--" + name.encode(), value]
        arguments += [b"--" + flag.encode() for flag in flags]
        code, out, err = self.run(method.encode(), key, *arguments)
        return self.parse(code, out, err)

    @staticmethod
    def parse(code, out, err):
        try:
            reply = json.loads(out or err)
        except ValueError as error:
            raise Broken(f"exit {code}, no JSON: {out[:200]!r} {err[:200]!r}") from error
        if "error" in reply or "code" in reply:
            names = reply.get("error", reply)
            return {"error": names["code"], "field": names.get("field"),
                    "value": names.get("value"), "rule": names.get("rule"), "exit": code}
        outcome = reply.get("outcomes", [reply])[0]
        holder = outcome.get("holder")
        if holder:
            holder = {"owner": as_bytes(holder["owner"]), "state": holder["state"],
                      "token": int(holder["token"]), "ms_left": holder["ms_left"]}
        return {"outcome": outcome["outcome"], "token": outcome.get("token"),
                "held_before": bool(outcome.get("held_before")),
                "ms_left": outcome.get("ms_left"), "holder": holder,
                "grace_ms_left": outcome.get("grace_ms_left"), "exit": code}

    def owner(self, ns, key):
        _, out, err = self.run(b"owner", key, b"--namespace", ns)
        try:
            reply = json.loads(out)
        except ValueError as error:
            raise Broken(f"owner: no JSON: {out[:200]!r} {err[:200]!r}") from error
        lease = reply.get("leases", [reply.get("lease")])[0]
        if not lease:
            return None
        return {"owner": as_bytes(lease["owner"]), "state": lease["state"],
                "ttl_ms": lease["ttl_ms"], "token": int(lease["token"]),
                "meta": as_bytes(lease.get("meta")), "identity": as_bytes(lease.get("identity"))}

    def close(self):
        pass


def driver_path():
    return os.path.join(os.environ.get("TENURE_BUILD", "."), "tests/model/fsm_driver")
