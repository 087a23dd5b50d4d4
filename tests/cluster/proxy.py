"""A TCP relay in front of one node's peer port, to cut links without privileges.

It asks which node each connection comes from and holds back the bytes of the pairs that are cut:
the connection stays open and silent, as behind a black hole, and new ones are accepted and stay
silent, too. `heal` lets what was held back pass; `drop` closes what is cut instead. One thread
per relay.
"""
import contextlib
import select
import socket
import threading

CHUNK = 1 << 16


class _Pair:
    """One relayed connection: the socket of the node that came and that of the node behind us."""

    def __init__(self, near, far, port, source):
        self.near = near
        self.far = far
        self.port = port
        self.source = source  # a number of a node, or None while it could not be found out

    def close(self):
        for end in (self.near, self.far):
            with contextlib.suppress(OSError):
                end.close()


class Proxy:
    """Relays its own port of loopback to `target_port`; `source_of(port)` names who connects."""

    def __init__(self, target_port, source_of):
        self.target_port = target_port
        self.source_of = source_of
        self.pairs = []
        self.cut = set()
        self.lock = threading.Lock()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.wake_in, self.wake_out = socket.socketpair()
        self.is_closing = False
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def cut_from(self, sources):
        """Holds back everything between the node behind this relay and those nodes."""
        with self.lock:
            self.cut |= set(sources)
        self._wake()

    def heal(self):
        with self.lock:
            self.cut.clear()
        self._wake()

    def drop(self):
        """Closes the connections that are cut: what a firewall with resets would do."""
        with self.lock:
            for pair in [pair for pair in self.pairs if self._is_cut(pair)]:
                self._forget(pair)

    def close(self):
        self.is_closing = True
        self._wake()
        self.thread.join()
        self.listener.close()
        for pair in self.pairs:
            pair.close()
        self.wake_in.close()
        self.wake_out.close()

    def _wake(self):
        with contextlib.suppress(OSError):
            self.wake_out.send(b"x")

    def _is_cut(self, pair):
        """The kernel's table of sockets is not read as a whole and may lack one that is there, so
        who connects is asked again; of somebody unknown nothing passes a cut."""
        if not self.cut:
            return False
        if pair.source is None:
            pair.source = self.source_of(pair.port)
        return pair.source is None or pair.source in self.cut

    def _forget(self, pair):
        pair.close()
        if pair in self.pairs:
            self.pairs.remove(pair)

    def _run(self):
        while not self.is_closing:
            with self.lock:
                moving = [pair for pair in self.pairs if not self._is_cut(pair)]
                ends = {}
                for pair in moving:
                    ends[pair.near] = (pair, pair.far)
                    ends[pair.far] = (pair, pair.near)
            try:
                readable = select.select([self.listener, self.wake_in, *ends], [], [], 1.0)[0]
            except (OSError, ValueError):
                continue  # a connection was closed between the two lines
            for ready in readable:
                if ready is self.wake_in:
                    self.wake_in.recv(CHUNK)
                elif ready is self.listener:
                    self._accept()
                else:
                    self._relay(ready, *ends[ready])

    def _accept(self):
        near, address = self.listener.accept()
        source = self.source_of(address[1])
        far = socket.socket()
        try:
            far.connect(("127.0.0.1", self.target_port))
        except OSError:
            near.close()
            far.close()
            return
        for end in (near, far):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self.lock:
            self.pairs.append(_Pair(near, far, address[1], source))

    def _relay(self, ready, pair, other):
        with self.lock:
            if pair not in self.pairs or self._is_cut(pair):
                return
        try:
            data = ready.recv(CHUNK)
            if data:
                other.sendall(data)
                return
        except OSError:
            pass
        with self.lock:
            self._forget(pair)
