"""Engine: lets bytes move between registered memory of two processes.

In: addresses and lengths that were checked by the caller. Out: bytes in the right place, or EngineFault.
Never: waits for a peer's words, knows keys, frees memory.
"""

from __future__ import annotations

import abc
import enum
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..model import Move, Region, Verb


class Revoke(enum.Enum):
    """What ends a peer's access to memory here when the peer can no longer be asked to end it."""

    NOTHING = "nothing"
    """Only the end of the operation itself, told by the peer."""
    PAGES = "pages"
    """Bytes arrive through this process's own page tables (a socket, a copy by the kernel). Addresses
    whose pages were taken away are never used again: whoever writes there gets an error, or writes
    where nobody looks."""
    REGION = "region"
    """Bytes arrive behind the kernel's back (RDMA): :meth:`Engine.unregister` is what ends it."""


class RemoteRegion(NamedTuple):
    """A peer's region as this process reaches it."""

    id: int
    nbytes: int
    address: int
    """Where a MAP engine mapped it; 0 for engines that move bytes."""
    handle: Any
    """The vendor's own object."""


class Engine(abc.ABC):
    """One engine of one transport; all calls come from its event loop.

    ``verb`` says which of :meth:`map`, :meth:`write` and :meth:`read` it implements.
    """

    verb: Verb
    recall: bool = False
    """An operation in flight can be called back."""
    revoke: Revoke = Revoke.NOTHING
    """How access of a peer that was lost is ended, so that its landing slots can be used again."""
    pins: bool = True
    """Registered memory is pinned: it is registered in small segments as it is needed, and keeps its
    pages. Without pinning one registration covers all, and pages come and go beneath it."""
    device: str = "cpu"
    session: str = ""
    """``host:port`` by which engines of the vendor find this one, where they do: enough for a peer that
    speaks another wire and has not told its own by a handshake."""
    protocol: str = ""
    """How bytes travel, where a vendor offers several ways: a peer with another one is refused in the
    handshake."""

    @abc.abstractmethod
    def register(self, address: int, nbytes: int, *, fd: int = -1) -> Region:
        """Make memory reachable by peers. The memory may belong to others (a KV cache).

        Args:
            address: first byte, in this process.
            nbytes: length in bytes.
            fd: descriptor that backs the memory, where the engine passes descriptors.
        """

    @abc.abstractmethod
    def unregister(self, region: Region) -> None:
        """End what :meth:`register` began. Idempotent."""

    @abc.abstractmethod
    def attach(self, peer: str, region: Region) -> RemoteRegion:
        """Learn of a peer's region (``region.address`` is the peer's). Owns ``region.fd`` from here on."""

    @abc.abstractmethod
    def detach(self, remote: RemoteRegion) -> None:
        """Forget a peer's region; with living views its mapping stays until they are gone."""

    def describe(self) -> bytes:
        """The engine's own address for the handshake, opaque to everybody else."""
        return b""

    def meet(self, peer: str, descriptor: bytes) -> None:  # noqa: B027 - most have nothing to do
        """A line to a peer has come up, with what its engine told by :meth:`describe`.

        Raises:
            ProtocolError: it told nonsense; the line is ended.
        """

    def part(self, peer: str) -> None:  # noqa: B027 - see above
        """A line to a peer has ended, once for each :meth:`meet`: nothing is begun by it any more.

        A peer that comes back before its end was noticed is met again first.
        """

    async def write(
        self, peer: str, moves: Sequence[Move], regions: dict[int, RemoteRegion]
    ) -> None:
        """Move local bytes into the peer's regions; return when they are placed there.

        Raises:
            EngineFault: the engine refused or failed; bytes may have landed in part.

        Cancellation: never cancelled by the caller; it awaits the end of what it started.
        """
        raise NotImplementedError(f"{type(self).__name__} has no WRITE")

    async def read(
        self, peer: str, moves: Sequence[Move], regions: dict[int, RemoteRegion]
    ) -> None:
        """Move bytes from the peer's regions here; same contract as :meth:`write`."""
        raise NotImplementedError(f"{type(self).__name__} has no READ")

    def health(self) -> Mapping[str, Any]:
        """What the seed documents' ``health()`` tells of such an engine beside its counters. Asks nobody."""
        return {}

    @abc.abstractmethod
    def close(self) -> None:
        """Give back what the engine itself holds. Idempotent."""
