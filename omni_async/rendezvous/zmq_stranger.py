"""Strangers: requests in another wire that came to a sender's port.

In: a request and where its answer goes to. Out: the answer.
Never: knows what is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import zmq

from .zmq_sockets import ReadySocket


class ZmqStranger:
    """One request; see :class:`~omni_async.abc.channel.Stranger`."""

    __slots__ = ("_ready", "_route", "body", "name")

    def __init__(self, ready: ReadySocket, route: Sequence[bytes], body: bytes, name: str) -> None:
        self.body = body
        self.name = name
        self._ready = ready
        self._route: Sequence[bytes] | None = route

    def answer(self, body: bytes) -> None:
        """Reply, once. Where the other side has gone, or takes no answers, it does nothing."""
        route, self._route = self._route, None
        if route is None or not self._ready.open:
            return
        with suppress(zmq.ZMQError):
            self._ready.send((*route, body))
