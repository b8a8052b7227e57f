"""WRITE: the sender's engine puts bytes into the receiver's registered memory.

In: moves whose ranges the transport has checked. Out: bytes in place, or EngineFault after the last byte's end.
Never: lets the vendor see a range that is not registered, here or at the peer; blocks the event loop for bytes.

A failed write ends the vendor's whole engine, and another one takes its place. Nothing less does: the vendor's
connection to that peer stays dead, and while it tells of a failure, pieces of the same write may still be on
their way. With the engine its connections and registrations end, so that nothing can land after the failure is told.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from ..._aio.executor import OwnedExecutor
from ...abc import Engine, RemoteRegion, Revoke
from ...errors import BackendUnavailable, ClosedError, EngineFault
from ...model import Move, Region, Role, Verb
from ..addressed import Contacts, check_moves
from ._native import NAME, Batch, Native, Place, cut
from .contact import Contact, Target, read_target

PATIENCE = 2.0
"""Seconds that a failed write waits for others of the same engine, before its end ends them too."""


class _Life:
    """One engine of the vendor, from its making to its end."""

    def __init__(self, native: Native) -> None:
        self.native = native
        self.memories: dict[int, Any] = {}
        """What is registered, by our own number."""
        self.under_way = 0
        self.idle = asyncio.Event()
        self.ending: asyncio.Task[None] | None = None

    def left(self) -> None:
        """A write has ended."""
        self.under_way -= 1
        if not self.under_way:
            self.idle.set()

    def end(self) -> asyncio.Task[None]:
        """End it, once for all who ask; done when nothing of it moves any more."""
        if self.ending is None:
            self.ending = asyncio.get_running_loop().create_task(self._end())
        return self.ending

    async def _end(self) -> None:
        if self.under_way:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.idle.wait(), PATIENCE)
        await destroyed([self.native])


async def destroyed(natives: Iterable[Native]) -> None:
    """End engines of the vendor, in a thread that is left to itself where the vendor does not come back.

    Cancellation: the end goes on.
    """
    executor = OwnedExecutor("mori-end", 1)
    try:
        for native in natives:
            await executor.run(native.destroy)
    finally:
        executor.close()


class MoriEngine(Engine):
    """One engine of one transport.

    Args:
        native: owned from here on.
        another: makes another one, when that has failed; blocks.
        role: a sender writes.
        device: where the pool lives.
    """

    verb = Verb.WRITE
    pins = True

    def __init__(
        self, native: Native, another: Callable[[], Native], role: Role, device: str
    ) -> None:
        self.device = device
        self.protocol = "xgmi" if native.xgmi else "rdma"
        # Over RDMA a card looks every byte up in what is registered. A GPU that has mapped another's memory has it
        # until it lets go of it by itself: there what comes late has to land where nobody looks.
        self.revoke = Revoke.PAGES if native.xgmi else Revoke.REGION
        self._role = role
        self._another = another
        kind, _, number = device.partition(":")
        self._number = -1 if kind == "cpu" else int(number or 0)
        self._life = _Life(native)
        self._renewing = asyncio.Lock()
        self._ids = itertools.count(1)
        self._own: dict[int, Region] = {}
        self._contacts: Contacts[Contact] = Contacts()
        self._closed = False

    def register(self, address: int, nbytes: int, *, fd: int = -1) -> Region:
        if self._life.ending is not None:  # the next one registers it, before it writes from it
            region = Region(next(self._ids), address, nbytes, b"", -1)
        else:
            memory = self._life.native.register(address, nbytes, self._number)
            region = Region(next(self._ids), address, nbytes, memory.pack(), -1)
            self._life.memories[region.id] = memory
        self._own[region.id] = region
        return region

    def unregister(self, region: Region) -> None:
        self._own.pop(region.id, None)
        memory = self._life.memories.pop(region.id, None)
        if memory is not None:
            self._life.native.unregister(memory)

    def attach(self, peer: str, region: Region) -> RemoteRegion:
        target = read_target(peer, region, on_device=self.protocol == "xgmi")
        return RemoteRegion(region.id, region.nbytes, 0, target)

    def detach(self, remote: RemoteRegion) -> None:
        """Nothing: what is not in ``regions`` any more is not written to."""

    def describe(self) -> bytes:
        return self._life.native.descriptor()

    def meet(self, peer: str, descriptor: bytes) -> None:
        self._contacts.meet(peer, partial(Contact, descriptor))

    def part(self, peer: str) -> None:
        contact = self._contacts.part(peer)
        if contact is not None:
            contact.close()
            self._life.native.forget(contact.word)

    def health(self) -> Mapping[str, Any]:
        return {"engine_key": self._life.native.key}

    async def write(
        self, peer: str, moves: Sequence[Move], regions: dict[int, RemoteRegion]
    ) -> None:
        wanted = [move for move in moves if move.nbytes]
        check_moves(wanted, regions, self._own.values(), NAME)
        contact = self._contacts.get(peer)
        life = await self._living()
        if contact is None:
            raise EngineFault("the peer's engine is not known", status="unknown", backend=NAME)
        if not wanted:
            return
        life.under_way += 1
        life.idle.clear()
        failed: EngineFault | None = None
        try:
            await contact.write(life.native, self._batches(life, wanted, regions))
        except EngineFault as error:
            failed = error
        except ClosedError:
            raise EngineFault("the peer has gone", status="gone", backend=NAME) from None
        finally:
            life.left()
        if failed is not None:
            await asyncio.wait([life.end()])
            raise EngineFault(
                f"the engine could not write {sum(move.nbytes for move in wanted):,} bytes to "
                f"{contact.name}: {failed}; MORI_IO_LOG_LEVEL=INFO shows its own words",
                status=failed.status,
                backend=NAME,
                peer=contact.name,
            )

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for contact in self._contacts:
            contact.close()
        self._contacts.clear()
        for region in list(self._own.values()):
            self.unregister(region)
        executor = OwnedExecutor("mori-end", 1)
        executor.run(_finish, self._life.native, executor)

    async def _living(self) -> _Life:
        """The engine that writes; another one, where that has failed."""
        if self._life.ending is None and not self._closed:
            return self._life
        async with self._renewing:
            if self._closed:
                raise EngineFault("the engine was closed", status="closed", backend=NAME)
            if self._life.ending is not None:
                self._life = await self._renewed()
            return self._life

    async def _renewed(self) -> _Life:
        executor = OwnedExecutor("mori-another", 1)
        try:
            life = _Life(await executor.run(self._another))
        except BackendUnavailable as error:
            raise EngineFault(str(error), status="unavailable", backend=NAME) from None
        finally:
            executor.close()
        for region in self._own.values():
            life.memories[region.id] = life.native.register(
                region.address, region.nbytes, self._number
            )
        return life

    def _batches(
        self, life: _Life, moves: Sequence[Move], regions: dict[int, RemoteRegion]
    ) -> list[Batch]:
        """Moves by pairs of regions, which is how the vendor takes them."""
        by_pair: dict[tuple[int, int], list[Place]] = defaultdict(list)
        for move in moves:
            own = next(
                one
                for one in self._own.values()
                if one.address <= move.local <= one.address + one.nbytes - move.nbytes
            )
            by_pair[own.id, move.region] += cut(move.local - own.address, move.offset, move.nbytes)
        return [
            Batch(life.memories[own], _memory(regions[region]), places)
            for (own, region), places in by_pair.items()
        ]


def _memory(remote: RemoteRegion) -> Any:
    target: Target = remote.handle
    return target.memory


def _finish(native: Native, executor: OwnedExecutor) -> None:
    try:
        native.destroy()
    finally:
        executor.close()
