"""Store: keeps bytes under a name, for whoever asks for it by that name.

In: names, places in the pool's memory. Out: bytes kept, bytes here, or an error; absent is an answer.
Never: knows edges, values or time limits of payloads; holds up the event loop.
"""

from __future__ import annotations

import abc
import enum
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, NamedTuple

from ..model import Region


class Piece(NamedTuple):
    """Some bytes of an object: they follow those of the piece before."""

    address: int
    nbytes: int


class Gone(enum.Enum):
    """What became of a name that was to be deleted."""

    DELETED = "deleted"
    ABSENT = "absent"
    """There was nothing."""
    BUSY = "busy"
    """It stays: somebody is reading it, or writes it just now. To be tried again."""


class Store(abc.ABC):
    """One client of one store; all calls come from one event loop, any number of them at a time.

    Memory that a call was given is used until the call returns. A caller that does not want to wait for that
    keeps the memory and lets the call go on: calls are never cancelled. Each ends by itself, at the
    latest when the vendor's own limits have passed. What they return is a coroutine, or a future that is
    under way already, which saves a turn of the event loop.

    Failures: :class:`EngineFault` with the vendor's status, in every call. One that comes of a server that is
    not reached says so, and with which option it is told where that is.
    """

    separator: str
    """Stands between a key and its edge: ``{key}@{from}_{to}``."""
    address: str
    """Which server it talks to, for errors and health."""
    guards: bool = False
    """What somebody reads stays: :meth:`put` under its name is :class:`KeyExists`, :meth:`delete` answers
    ``BUSY``. So a reader may delete after it has handed its payload over. Where it is false, a reader deletes
    first: else it might delete what was put under the name since."""
    tells_absent: bool = True
    """:meth:`delete` tells ``ABSENT`` from ``DELETED``. Where it is false, it may call ``DELETED`` what was not there."""
    outlives: bool = True
    """What was put stays when its sender's client is closed."""
    question: int = 1000
    """Names in one :meth:`contains`, where thousands wait: so many that what the question costs is worth it, so
    few that it holds nobody up."""
    pins: bool = False
    """Registered memory is pinned: it is registered in small segments, and keeps its pages."""

    @abc.abstractmethod
    def name(self, text: str) -> str:
        """What ``text`` is called in the store. Two texts may share a name: objects carry their text.

        Raises:
            UsageError: it cannot be called anything.
        """

    @abc.abstractmethod
    def plain_name(self, text: str) -> str:
        """What others call it who know nothing of :meth:`name`.

        Raises:
            UsageError: the store takes no such name.
        """

    @abc.abstractmethod
    def register(self, address: int, nbytes: int, *, fd: int = -1) -> Region:
        """Make memory of the pool usable in :meth:`put` and :meth:`get`.

        Args:
            fd: descriptor that backs the memory, or -1. Stays the caller's.
        """

    @abc.abstractmethod
    def unregister(self, region: Region) -> None:
        """End what :meth:`register` began. Idempotent."""

    @abc.abstractmethod
    def put(
        self, name: str, pieces: Sequence[Piece], *, ttl: float, timeout: float
    ) -> Awaitable[None]:
        """Keep the bytes of all pieces, one after another, as one object; replace what is there.

        Whoever reads meanwhile has the old object or the new one. A mixture is possible only where another reader
        deletes the object (``own``) under a reader; objects carry a number at both ends, which differs then.

        Args:
            pieces: in registered memory; at least one byte together.
            ttl: seconds after which the store may drop the object, where it can do so itself; infinite where
                it never may. At least so long.
            timeout: how long the vendor may be asked to try.

        Raises:
            PoolExhausted: no room now; it is worth trying again.
            PayloadTooLarge: there will never be room: names both sizes and the setting to raise.
            KeyExists: (``guards``) somebody reads what is there, or writes it just now.
            EngineFault: it failed, and nothing new is there.
        """

    @abc.abstractmethod
    def get(self, name: str, address: int, room: int, *, timeout: float) -> Awaitable[int | None]:
        """The object's bytes at ``address``, in registered memory, if there are at most ``room`` of them.

        Returns:
            How many bytes the object has, or ``None``: there is none. Beyond ``room`` nothing usable was
            written: come again with more room.

        Raises:
            EngineFault: it failed; the object is as it was, or was lost with the server that had it.
        """

    @abc.abstractmethod
    def contains(self, names: Sequence[str]) -> Awaitable[list[bool]]:
        """Which of these there are; of many in one question."""

    @abc.abstractmethod
    def delete(self, names: Sequence[str], *, own: bool = False) -> Awaitable[list[Gone]]:
        """Drop objects.

        Args:
            own: the caller has read them, and nobody else is to.
        """

    def health(self) -> Mapping[str, Any]:
        """What the seed documents' ``health()`` tells of such a client beside its counters. Asks nobody."""
        return {}

    @abc.abstractmethod
    async def close(self) -> None:
        """Give back what the client holds, its threads and processes included. Idempotent.

        Returns in at most 2 s: calls that have not ended by then are left to themselves.
        """

    @abc.abstractmethod
    def abort(self) -> None:
        """The same without waiting."""
