"""A client of the local API for tests: one unix socket, requests in flight, no retries, no threads.

Written from docs/protocol.md. Tests use it where the command line, a process per call, would be
too slow or would hide when an answer came: every reply carries the time at which its request was
written and the time at which the answer was read.
"""
import select
import socket
import struct
import time

import msgpack


def boot_ns():
    """Now on the clock that deadlines travel in."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class ApiError(Exception):
    """The node answered with an error, or not at all (code CONNECTION or TIMEOUT)."""

    def __init__(self, code, text, names=None):
        super().__init__(f"{code}: {text}")
        self.code = code
        self.text = text
        self.names = names or {}  # the error as the node sent it


class Reply:
    """One answer: the result map, or the error of it, and when it was asked and answered."""

    def __init__(self, result, error, sent_s, received_s):
        self.result = result
        self.error = error
        self.sent_s = sent_s
        self.received_s = received_s


class Api:
    """A connection. `call` asks and waits; `send` and `receive` keep many in flight."""

    def __init__(self, path, timeout_s=10.0):
        self.timeout_s = timeout_s
        self.next_id = 1
        self.sent_s = {}
        self.unpacker = msgpack.Unpacker(raw=False, strict_map_key=False,
                                         max_buffer_size=64 * 1024 * 1024)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(timeout_s)
        try:
            self.socket.connect(path)
        except OSError as error:
            self.socket.close()
            raise ApiError("CONNECTION", f"{path}: {error}") from error

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.socket.close()

    def peer_pid(self):
        """The process at the other end, as the kernel knows it."""
        raw = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        return struct.unpack("3i", raw)[0]

    def send(self, method, **parameters):
        """Writes one request and returns its number."""
        number = self.next_id
        self.next_id += 1
        deadline_ms = parameters.pop("deadline_ms", None)
        if deadline_ms is not None:
            parameters["deadline_ns"] = boot_ns() + deadline_ms * 1_000_000
        self.sent_s[number] = time.monotonic()
        try:
            self.socket.sendall(msgpack.packb([0, number, method, parameters]))
        except OSError as error:
            raise ApiError("CONNECTION", str(error)) from error
        return number

    def receive(self, deadline_s=None):
        """(number, Reply) of the next answer, in whatever order they come."""
        deadline_s = deadline_s or time.monotonic() + self.timeout_s
        while True:
            for message in self.unpacker:
                return self._reply(message)
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not select.select([self.socket], [], [], left_s)[0]:
                raise ApiError("TIMEOUT", "no answer")
            try:
                data = self.socket.recv(1 << 18)
            except OSError as error:
                raise ApiError("CONNECTION", str(error)) from error
            if not data:
                raise ApiError("CONNECTION", "closed by the node")
            self.unpacker.feed(data)

    def _reply(self, message):
        _, number, error, result = message
        known = ApiError(error["code"], str(error), error) if error else None
        return number, Reply(result, known, self.sent_s.pop(number, 0.0), time.monotonic())

    def call(self, method, **parameters):
        """Asks and returns the Reply, whatever it is."""
        wanted = self.send(method, **parameters)
        while True:
            number, reply = self.receive()
            if number == wanted:
                return reply

    def result(self, method, **parameters):
        """Asks and returns the result map; raises ApiError."""
        reply = self.call(method, **parameters)
        if reply.error:
            raise reply.error
        return reply.result

    # --- the verbs ---

    def status(self):
        """The node's named values."""
        return self.result("status")["fields"]

    def members(self):
        return self.result("members")["members"]

    def one(self, method, key, **parameters):
        """The outcome of a verb on one key."""
        return self.result(method, key=key, **parameters)["outcomes"][0]

    def many(self, method, keys, **parameters):
        """The outcomes of a verb on many keys, in their order."""
        return self.result(method, keys=keys, **parameters)["outcomes"]

    def take(self, key, **parameters):
        return self.one("take", key, **parameters)

    def claim(self, key, **parameters):
        return self.one("claim", key, **parameters)

    def renew(self, key, **parameters):
        return self.one("renew", key, **parameters)

    def owner_of(self, key, **parameters):
        """The lease of the key, or None."""
        return self.result("owner", key=key, **parameters)["leases"][0]

    def owners_of(self, keys):
        """The lease of each key, or None, in their order; asks in pages of 1,000."""
        leases = []
        for start in range(0, len(keys), 1000):
            leases += self.result("owner", keys=keys[start:start + 1000])["leases"]
        return leases

    def retry(self, ask, deadline_s=20.0):
        """Asks until the answer is neither UNAVAILABLE nor UNKNOWN; for what may be repeated."""
        end_s = time.monotonic() + deadline_s
        while True:
            try:
                return ask()
            except ApiError as error:
                if error.code not in ("UNAVAILABLE", "UNKNOWN") or time.monotonic() > end_s:
                    raise
                time.sleep(0.005)

    def pipelined(self, method, keys, in_flight, **parameters):
        """One request per key, so many unanswered at once; every answer must be an outcome."""
        asked = answered = 0
        while answered < len(keys):
            while asked < len(keys) and asked - answered < in_flight:
                self.send(method, key=keys[asked], **parameters)
                asked += 1
            _, reply = self.receive()
            if reply.error:
                raise reply.error
            answered += 1
