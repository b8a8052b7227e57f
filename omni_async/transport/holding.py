"""A sender's memory that is still read here: who holds it, and how its sender learns that nobody does.

In: views of delivered payloads, and their deaths. Out: word to the line they came by, or the end of a descriptor.
Never: lets the sender believe that its memory is free while a view of it lives.
"""

from __future__ import annotations

import os
from typing import Protocol

from ..rendezvous.receiver import Receiver

URGENT_RELEASE = 256 << 10
"""Bytes of a sender's memory that are worth a word of their own."""


class Lifeline:
    """Kept by every view of a sender's memory; when it dies, a line that was given up is closed.

    That end of file is the sender's proof that nobody here reads its memory any more. Closing a
    descriptor takes no lock, so it may happen in any thread and inside the garbage collector.
    """

    __slots__ = ("fd",)

    def __init__(self) -> None:
        self.fd = -1

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


class Holder(Protocol):
    """The line that a payload came by."""

    core: Receiver

    def pump(self) -> None:
        """Say what is to be said."""
        ...


class Held:
    """A delivered payload whose memory is still read: counts the places that have views."""

    __slots__ = ("count", "link", "nbytes", "op")

    def __init__(self, link: Holder, op: int, count: int, nbytes: int) -> None:
        self.link = link
        self.op = op
        self.count = count
        self.nbytes = nbytes

    def let_go(self) -> None:
        """The last view of one place is gone."""
        self.count -= 1
        if not self.count:
            core = self.link.core
            core.release(self.op)
            if self.nbytes > URGENT_RELEASE:
                core.urgent = True
            self.link.pump()
