"""The loopback engine, found by ``host:port`` as Mooncake's is, with words over ZMQ.

In: sessions of engines of this process, addresses in their registered memory. Out: bytes really moved.
Never: leaves this process.
"""

from __future__ import annotations

import itertools
from typing import ClassVar

import msgspec

from omni_async.abc import DirectBackend, Engine, Options, RemoteRegion, Revoke
from omni_async.model import Region, Role, Verb
from omni_async.testing.doubles.addressed import LoopbackZmq
from omni_async.testing.doubles.loopback import LoopbackEngine, Peer


class SessionEngine(LoopbackEngine):
    """An engine with a name."""

    _ports: ClassVar[itertools.count[int]] = itertools.count(10_000)
    _named: ClassVar[dict[str, SessionEngine]] = {}

    def __init__(self, verb: Verb, revoke: Revoke = Revoke.NOTHING) -> None:
        super().__init__(verb, revoke)
        self.pins = False
        self.session = f"127.0.0.1:{next(self._ports)}"
        self._named[self.session] = self
        self.met: list[str] = []
        self.parted: list[str] = []

    def meet(self, peer: str, descriptor: bytes) -> None:
        self.met.append(peer)

    def part(self, peer: str) -> None:
        self.parted.append(peer)

    def attach(self, peer: str, region: Region) -> RemoteRegion:
        if region.descriptor:
            return super().attach(peer, region)
        whose = self._named.get(peer)
        end = region.address + region.nbytes
        for own in whose._own.values() if whose is not None else ():
            if own.address <= region.address and end <= own.address + own.nbytes:
                there = Region(own.id, region.address, region.nbytes, own.descriptor, -1)
                return RemoteRegion(region.id, region.nbytes, 0, (_peer(own), there))
        nobody = Region(-1, region.address, region.nbytes, b"", -1)
        return RemoteRegion(region.id, region.nbytes, 0, (Peer(0, -1), nobody))

    def close(self) -> None:
        super().close()
        self._named.pop(self.session, None)


def _peer(region: Region) -> Peer:
    return msgspec.msgpack.decode(region.descriptor, type=Peer)


class SessionDouble(LoopbackZmq):
    """A connector over it."""

    name = "SessionDouble"
    alias = "session"

    def engine(self, options: Options, role: Role) -> Engine:
        return SessionEngine(self.verb, self.revoke)


def backend() -> DirectBackend:
    return SessionDouble()
