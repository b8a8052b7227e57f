"""READ: the receiver's engine takes bytes out of the sender's registered memory.

In: moves whose ranges the transport has checked. Out: bytes in place, or EngineFault after the last byte's end.
Never: lets the vendor see an address that is not registered, here or at the peer; reads on the event loop's
thread, or in two threads; ends a read before its landing slot is safe.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from ..._aio.executor import OwnedExecutor
from ...abc import MemorySource, RemoteRegion, Revoke
from ...errors import EngineFault
from ...model import Move, Verb, batches
from ..addressed import Contacts, check_moves
from ..by_address import EngineByAddress
from ._native import NAME, PROTOCOL, NativeEngine
from .contact import EngineWord, read_word

PIECE = 16 << 20
"""Bytes read at a time: for so long this process does nothing else (below a millisecond at 20 GB/s)."""
MOST = 64
"""Pieces read at a time: each waits in a queue of the device."""


class Device(Protocol):
    """Where the pool lives: :class:`~.npu.Npu`, or what stands for one."""

    device: str

    def use(self) -> None:
        """For the calling thread, once."""

    def settle(self) -> None:
        """Wait until nothing that was begun on it can change memory; blocks."""

    def memory(self) -> MemorySource: ...


class Piece(NamedTuple):
    """Of one read of the vendor's."""

    here: int
    there: int
    nbytes: int


class YuanrongTransferEngine(EngineByAddress):
    """One engine of one transport.

    Args:
        native: owned from here on.
        device: where the pool lives.
        address: of the NPU in the network of NPUs, as peers are told for their errors.
    """

    verb = Verb.READ
    revoke = Revoke.NOTHING
    protocol = PROTOCOL
    pins = True

    def __init__(self, native: NativeEngine, device: Device, address: str = "") -> None:
        super().__init__(native)
        self._native = native
        self._device = device
        self.device = device.device
        self._word = EngineWord(native.session, address)
        self._executor = OwnedExecutor("yuanrong-te", 1)
        self._used = False
        self._contacts: Contacts[EngineWord] = Contacts()
        self._closed = False

    def describe(self) -> bytes:
        return msgspec.msgpack.encode(self._word)

    def meet(self, peer: str, descriptor: bytes) -> None:
        word = read_word(descriptor)
        self._contacts.meet(peer, lambda: word)

    def part(self, peer: str) -> None:
        self._contacts.part(peer)

    def health(self) -> Mapping[str, Any]:
        return {"rpc_port": self._native.port, "device_name": self._native.device}

    async def read(
        self, peer: str, moves: Sequence[Move], regions: dict[int, RemoteRegion]
    ) -> None:
        wanted = [move for move in moves if move.nbytes]
        check_moves(wanted, regions, self._own.values(), NAME)
        for pieces in reads(wanted, regions):
            # Between two batches the line may have ended: who has gone is not asked again.
            word = self._contacts.get(peer)
            if word is None or self._closed:
                raise EngineFault("the peer's engine is not known", status="unknown", backend=NAME)
            try:
                await self._executor.finish(self._read, word.session, pieces)
            except EngineFault as error:
                raise EngineFault(
                    f"{error}{_hint(word)}", status=error.status, backend=NAME, peer=word.session
                ) from None

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for region in list(self._own.values()):
            self.unregister(region)
        self._contacts.clear()
        self._executor.run(self._end)

    # in the thread

    def _read(self, session: str, pieces: Sequence[Piece]) -> None:
        if not self._used:
            self._device.use()
            self._used = True
        here, there, lengths = zip(*pieces, strict=True)
        try:
            self._native.read(session, here, there, lengths)
        except EngineFault:
            # The vendor gives up after 10 s, or as soon as the peer refuses a part of it. What it had
            # begun may still land.
            self._device.settle()
            raise

    def _end(self) -> None:
        try:
            self._native.close()
        finally:
            self._executor.close()


def reads(moves: Sequence[Move], regions: dict[int, RemoteRegion]) -> Iterator[list[Piece]]:
    """The moves in order, as reads that do not take long."""
    for batch in batches(moves, PIECE, MOST):
        yield [
            Piece(local, regions[region].handle + offset, nbytes)
            for local, region, offset, nbytes in batch
        ]


def _hint(word: EngineWord) -> str:
    """How people see whether the network of the NPUs is the reason."""
    where = word.npu or "its NPU's address"
    return f"; see whether the NPUs reach each other: hccn_tool -i N -ping -g address {where}"
