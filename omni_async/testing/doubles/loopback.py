"""Stands for an RDMA engine between two processes of one host; shows nothing of a network or a NIC.

In: addresses and lengths. Out: bytes really moved, by ``process_vm_writev`` and ``process_vm_readv``; or
the fault that was ordered.
Never: touches memory outside a region that was registered, here or at the peer.

It cannot show: completion order of a real queue, memory that a device writes behind the kernel's
back, or speed.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from ...abc import Channels, DirectBackend, Engine, MemorySource, Options, RemoteRegion, Revoke
from ...errors import EngineFault, ProtocolError
from ...model import Capabilities, Move, Region, Role, Verb
from ...pool.memory import AnonymousMemory, MemfdMemory, map_fd
from ...rendezvous.unix_channel import UnixChannels
from .carrier import Carry, Piece, allow, cut, get, put
from .ordered import Fault, Orders


class Faults(Orders):
    """Orders for the operations of this process, which run on its event loop."""

    def __init__(self) -> None:
        super().__init__()
        self._released: list[asyncio.Event] = []
        self._watching: list[asyncio.Event] = []

    def release(self) -> None:
        for event in self._released:
            event.set()
        self._released.clear()

    async def wait(self) -> None:
        """Be stuck until released."""
        event = asyncio.Event()
        self._released.append(event)
        self.stuck += 1
        for watcher in self._watching:
            watcher.set()
        self._watching.clear()
        try:
            await event.wait()
        finally:
            self.stuck -= 1

    async def until_stuck(self) -> None:
        """Wait until an operation is stuck."""
        if not self.stuck:
            watcher = asyncio.Event()
            self._watching.append(watcher)
            await watcher.wait()


FAULTS = Faults()
"""Those of this process."""


async def order(**fault: Any) -> None:
    """:meth:`Faults.order`, to be used in a peer process."""
    FAULTS.order(Fault(**fault))


async def release() -> None:
    """:meth:`Faults.clear`, to be used in a peer process."""
    FAULTS.clear()


async def until_stuck() -> None:
    """:meth:`Faults.until_stuck`, to be used in a peer process."""
    await FAULTS.until_stuck()


class Peer(msgspec.Struct, frozen=True):
    """A region's descriptor: whose memory it is."""

    pid: int
    engine: int


class LoopbackEngine(Engine):
    """One engine of one transport."""

    recall = False
    _numbers: ClassVar[itertools.count[int]] = itertools.count(1)
    _here: ClassVar[dict[tuple[int, int], Region]] = {}
    """Regions of this process by engine and id: what may be touched."""

    def __init__(self, verb: Verb, revoke: Revoke = Revoke.NOTHING) -> None:
        self.verb = verb
        self.revoke = revoke
        self.pins = verb is not Verb.MAP
        self._number = next(self._numbers)
        self._ids = itertools.count(1)
        self._own: dict[int, Region] = {}
        allow()

    def register(self, address: int, nbytes: int, *, fd: int = -1) -> Region:
        descriptor = msgspec.msgpack.encode(Peer(os.getpid(), self._number))
        shown = fd if self.verb is Verb.MAP else -1
        region = Region(next(self._ids), address, nbytes, descriptor, shown)
        self._own[region.id] = region
        self._here[self._number, region.id] = region
        return region

    def unregister(self, region: Region) -> None:
        self._own.pop(region.id, None)
        self._here.pop((self._number, region.id), None)

    def attach(self, peer: str, region: Region) -> RemoteRegion:
        if self.verb is Verb.MAP:
            block = map_fd(region.fd, region.nbytes)
            return RemoteRegion(region.id, region.nbytes, block.address, block)
        if region.fd >= 0:
            os.close(region.fd)
        try:
            whose = msgspec.msgpack.decode(region.descriptor, type=Peer)
        except msgspec.MsgspecError as error:
            raise ProtocolError(f"a region without a descriptor: {error}", peer=peer) from None
        return RemoteRegion(region.id, region.nbytes, 0, (whose, region))

    def detach(self, remote: RemoteRegion) -> None:
        if self.verb is Verb.MAP:
            remote.handle.close()

    async def write(
        self, peer: str, moves: Sequence[Move], regions: dict[int, RemoteRegion]
    ) -> None:
        await self._move(moves, regions, put)

    async def read(
        self, peer: str, moves: Sequence[Move], regions: dict[int, RemoteRegion]
    ) -> None:
        await self._move(moves, regions, get)

    def close(self) -> None:
        for region in list(self._own.values()):
            self.unregister(region)

    async def _move(
        self,
        moves: Sequence[Move],
        regions: dict[int, RemoteRegion],
        carry: Carry,
    ) -> None:
        fault = FAULTS.next()
        if fault is not None and fault.kind == "out_of_bounds":
            moves = [move._replace(offset=move.offset + (1 << 40)) for move in moves]
        for move in moves:
            self._check(move, regions)
        pieces = [
            (piece, regions[move.region].handle)
            for move in moves
            for piece in cut([_piece(move, regions[move.region])])
        ]
        FAULTS.under_way += 1
        try:
            at = _place_of(fault, len(pieces))
            for number, (piece, whose) in enumerate(pieces):
                if number == at and fault is not None:
                    await _happen(fault)
                self._carry(piece, whose, carry)
                await asyncio.sleep(0)
            if fault is not None and at >= len(pieces):
                await _happen(fault)
        finally:
            FAULTS.under_way -= 1

    def _check(self, move: Move, regions: dict[int, RemoteRegion]) -> None:
        remote = regions.get(move.region)
        if remote is None:
            raise EngineFault(f"region {move.region} is unknown", status="unknown region")
        if move.offset < 0 or move.nbytes < 0 or move.offset + move.nbytes > remote.nbytes:
            raise EngineFault(f"{move} leaves the peer's region", status="out of bounds")
        inside = any(
            own.address <= move.local and move.local + move.nbytes <= own.address + own.nbytes
            for own in self._own.values()
        )
        if not inside:
            raise EngineFault(f"{move} leaves the memory registered here", status="not registered")

    def _carry(self, piece: Piece, handle: tuple[Peer, Region], carry: Carry) -> None:
        whose, region = handle
        if whose.pid == os.getpid() and (whose.engine, region.id) not in self._here:
            raise EngineFault("the peer has unregistered its region", status="revoked")
        try:
            carry(piece)
        except OSError as error:
            raise EngineFault(error.strerror or str(error), status=error.errno) from None


def _place_of(fault: Fault | None, pieces: int) -> int:
    """Before which piece the fault happens."""
    if fault is None or fault.kind == "out_of_bounds":
        return -1
    return int(fault.landed * pieces)


async def _happen(fault: Fault) -> None:
    if fault.kind == "slow":
        await asyncio.sleep(fault.seconds)
    elif fault.kind == "stuck":
        await FAULTS.wait()
    elif fault.kind == "failing":
        raise EngineFault("a failure was ordered", status=fault.status)


def _piece(move: Move, remote: RemoteRegion) -> Piece:
    whose, region = remote.handle
    return Piece(whose.pid, move.local, region.address + move.offset, move.nbytes)


class LoopbackOptions(Options):
    """Small payloads go through the engine too, by default."""

    inline_limit: int = 256


class LoopbackBackend(DirectBackend):
    """A backend over the loopback engine; subclasses say which verb it speaks."""

    verb: Verb
    revoke = Revoke.NOTHING
    options: type[Options] = LoopbackOptions

    def capabilities(self, options: Options) -> Capabilities:
        moves = self.verb is not Verb.MAP
        return Capabilities(backend=self.name, verb=self.verb, recall=not moves)

    def engine(self, options: Options, role: Role) -> Engine:
        return LoopbackEngine(self.verb, self.revoke)

    def memory(self, options: Options, role: Role) -> MemorySource:
        return MemfdMemory() if self.verb is Verb.MAP else AnonymousMemory()

    def channels(self, options: Options) -> Channels:
        return UnixChannels(peer_timeout=options.peer_timeout)


class LoopbackMap(LoopbackBackend):
    """The receiver maps the sender's memory."""

    name = "LoopbackMapDouble"
    alias = "loopback-map"
    verb = Verb.MAP


class LoopbackWrite(LoopbackBackend):
    """The sender writes into the receiver's memory, as over a socket: pages can be taken away from it."""

    name = "LoopbackWriteDouble"
    alias = "loopback-write"
    verb = Verb.WRITE
    revoke = Revoke.PAGES


class LoopbackWriteByRegion(LoopbackWrite):
    """The same, as by RDMA: unregistering a region ends it. Within one process only, for the double
    checks no registration of another one."""

    name = "LoopbackWriteByRegionDouble"
    alias = "loopback-write-region"
    revoke = Revoke.REGION


class LoopbackRead(LoopbackBackend):
    """The receiver reads from the sender's memory."""

    name = "LoopbackReadDouble"
    alias = "loopback-read"
    verb = Verb.READ
