"""Gate: who may connect to a sender with CURVE keys.

In: public keys that are allowed. Out: a zmq context in which no other key gets past the handshake.
Never: blocks, needs a thread, decides for a socket of somebody else.

libzmq asks one socket of the *context* about each key (its protocol is called ZAP), so a sender with
keys has a context of its own, and answers on its own event loop.
"""

from __future__ import annotations

import threading
from contextlib import suppress

import zmq

from .zmq_context import new_context, new_socket
from .zmq_curve import SenderKeys
from .zmq_sockets import Frames, ReadySocket

_ASKED_AT = "inproc://zeromq.zap.01"
_VERSION = b"1.0"
_PARTS = 9


class Gate:
    """Answers until closed."""

    def __init__(self, keys: SenderKeys) -> None:
        self._keys = keys
        self.context = new_context()
        socket = new_socket(zmq.ROUTER, self.context)
        socket.bind(_ASKED_AT)
        self._ready = ReadySocket(socket, self._asked)

    def guard(self, router: zmq.Socket[bytes]) -> None:
        """Let only those in through this socket who have a key."""
        self._keys.guard(router)
        router.set(zmq.ZAP_DOMAIN, b"omni-async")

    def _asked(self, frames: Frames) -> None:
        parts = [frame.bytes for frame in frames]
        if len(parts) != _PARTS:  # libzmq itself asks; it asks about CURVE with one key
            return
        asker, empty, version, request, *_, mechanism, key = parts
        allowed = version == _VERSION and mechanism == b"CURVE" and key in self._keys.allowed
        status = (b"200", b"OK") if allowed else (b"400", b"key not allowed")
        with suppress(zmq.ZMQError):
            self._ready.send((asker, empty, _VERSION, request, *status, b"", b""))

    def close(self) -> None:
        """Stop answering, and end the context when its sockets have said their last words. Idempotent."""
        if self._ready.open:
            self._ready.close()
            # The end of a context waits for that; sockets that are closed linger for a limited time.
            with suppress(RuntimeError):  # the interpreter is about to end, and the context with it
                threading.Thread(
                    target=self.context.term, name="omni-async-zmq-end", daemon=True
                ).start()
