"""Where a message of a node ends. No I/O, and nothing is built before a message is whole.

Bytes from a node are trusted no more than those of anybody: what exceeds the limits of length,
depth or number of objects raises ``BrokenReply``, and the connection is of no use any more.
"""

from __future__ import annotations

from typing import Callable

from tenure import rules

MESSAGE_LEN_MAX = 8 * 1024 * 1024
KEPT_LEN_MAX = 2 * MESSAGE_LEN_MAX  # bytes that may come while one call waits
DEPTH_MAX = 8  # containers inside each other
REPLY_ITEMS_MAX = rules.KEYS_MAX * 32 + 65536  # objects in one reply


class BrokenReply(Exception):
    """What came is no reply; says why."""


def _fixed_sizes() -> list[int]:
    """Bytes of an object by its first one; 0 where that does not say it."""
    sizes = [1] * 0xA0 + [0] * 0x60
    sizes[0xA0:0xC0] = range(1, 33)
    sizes[0xE0:0x100] = [1] * 0x20
    for lead, size in ((0xC0, 1), (0xC2, 1), (0xC3, 1), (0xCA, 5), (0xCB, 9)):
        sizes[lead] = size
    for power in range(4):
        sizes[0xCC + power] = sizes[0xD0 + power] = 1 + (1 << power)
    return sizes


_SIZES = _fixed_sizes()
# Objects in a container by its first byte; -1: no container, or one with a header of its own.
_CHILDREN = [-1] * 0x80 + [2 * count for count in range(16)] + [*range(16)] + [-1] * 0x60
# First byte of texts and bytes with a header of their own: how many bytes its length takes.
_LENGTHS = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
# Of containers: bytes of the count, objects per element.
_COUNTS = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}


class Reader:
    """Cuts what comes from a connection into messages.

    Each byte is looked at once, however small the pieces in which it comes. All pieces since the
    last ``clear`` are kept, so that an exception that comes in between, by a signal, anywhere in
    here, loses nothing: after ``rewind`` the same messages are read again.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """As new."""
        self._pieces: list[bytes] = []
        self.rewind()

    def rewind(self) -> None:
        """Begins again with the first message since the last ``clear``."""
        self._buffer = bytearray()
        self._joined = 0  # pieces that are in the buffer
        self._joined_len = 0  # bytes of them
        self._begin()

    def _begin(self) -> None:
        self._at = 0
        self._items = 0
        self._left = [1]  # elements that are missing, per open container; none at the end

    @property
    def is_empty(self) -> bool:
        """Nothing came that is not part of a message that was handed out."""
        is_between = not self._left or self._at == 0
        return is_between and self._at == len(self._buffer) and self._joined == len(self._pieces)

    @property
    def is_ended(self) -> bool:
        """The last piece was empty: there is no more."""
        return bool(self._pieces) and not self._pieces[-1]

    @property
    def last_len(self) -> int:
        """Bytes of the last piece."""
        return len(self._pieces[-1]) if self._pieces else 0

    def feed(self, data: bytes) -> None:
        """Adds what came."""
        self._pieces.append(data)

    def fill(self, receive: Callable[[int], bytes], size: int) -> None:
        """Adds what ``receive(size)`` gives.

        As one step: a signal handler that raises when ``receive`` is done finds the piece kept,
        where it would be lost on its way to ``feed``.
        """
        self._pieces.extend(map(receive, (size,)))

    def next(self) -> bytes | None:
        """The next whole message, None if it is not there yet; raises BrokenReply."""
        if not self._left:
            del self._buffer[: self._at]
            self._begin()
        for piece in self._pieces[self._joined :]:
            self._buffer += piece
            self._joined += 1
            self._joined_len += len(piece)
        if self._joined_len > KEPT_LEN_MAX:
            raise BrokenReply("more than what was asked for")
        if self._buffer and self._buffer[0] not in (0x94, 0xDC, 0xDD):
            raise BrokenReply("not an array of four")
        if not self._scan():
            return None
        return bytes(self._buffer[: self._at])

    def _scan(self) -> bool:
        """Goes on to the end of the message; False where it is not all there.

        One loop on local variables: a reply about 10,000 keys has 100,000 objects and more. Where
        neither a container begins nor one ends, objects read and objects missing have one sum.
        """
        buffer, at, items = self._buffer, self._at, self._items
        length = len(buffer)
        left = self._left[:]
        missing = left.pop() if left else 0
        is_whole = True
        while True:
            while not missing and left:
                missing = left.pop()
                if items + missing > REPLY_ITEMS_MAX:
                    raise BrokenReply("too many objects")
            if not missing:
                break
            is_whole = at < length
            if not is_whole:
                break
            lead = buffer[at]
            size, children = _SIZES[lead], _CHILDREN[lead]
            if not size:
                size, children = self._measure(at, lead)
            end = at + size
            if end > MESSAGE_LEN_MAX:
                raise BrokenReply("longer than a message may be")
            is_whole = end <= length
            if not is_whole:
                break
            at = end
            items += 1
            missing -= 1
            if children >= 0:
                left.append(missing)
                missing = children
                if len(left) > DEPTH_MAX:
                    raise BrokenReply("too many containers inside each other")
                if items + missing > REPLY_ITEMS_MAX:
                    raise BrokenReply("too many objects")
        self._at, self._items = at, items
        self._left = [] if is_whole else [*left, missing]
        return is_whole

    def _measure(self, at: int, lead: int) -> tuple[int, int]:
        """(bytes, objects in it or -1) of an object whose first byte does not say its size."""
        width = _LENGTHS.get(lead, 0)
        each = 0
        if lead in _COUNTS:
            width, each = _COUNTS[lead]
        if width == 0:
            raise BrokenReply("a type that no message has")
        body = at + 1 + width
        if body > len(self._buffer):
            return 1 + width, -1
        length = int.from_bytes(self._buffer[at + 1 : body], "big")
        return (1 + width, each * length) if each else (1 + width + length, -1)
