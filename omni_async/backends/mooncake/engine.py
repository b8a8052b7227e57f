"""WRITE: the sender's engine puts bytes into the receiver's registered memory.

In: moves whose ranges the transport has checked. Out: bytes in place, or EngineFault after the last byte's end.
Never: lets the vendor see an address that is not registered, here or at the peer; blocks the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from ..._aio.completion_watch import CompletionWatch
from ..._aio.executor import OwnedExecutor
from ...abc import RemoteRegion, Revoke
from ...errors import EngineFault
from ...model import Move, Role, Verb
from ..addressed import Contacts, check_moves
from ..by_address import EngineByAddress
from ._native import NAME, NativeEngine
from .contact import Contact, EngineWord, read_word

_BY_REGION = frozenset({"rdma", "barex", "efa"})
"""Protocols whose remote keys end with the registration."""


def revoke_of(protocol: str, device: str) -> Revoke:
    """What ends a lost peer's access to a pool."""
    if protocol in _BY_REGION:
        return Revoke.REGION
    if protocol == "tcp" and device == "cpu":
        return Revoke.PAGES
    # A device's memory has no pages here; of the other protocols nobody says what ends access.
    return Revoke.NOTHING


class MooncakeEngine(EngineByAddress):
    """A transport's share of this process's engine.

    Args:
        role: a sender gets to know its peers as soon as they are there; a receiver needs not.
        device: where the pool lives.
        pins: whether the pool's memory is pinned.
    """

    verb = Verb.WRITE

    def __init__(self, native: NativeEngine, role: Role, device: str, *, pins: bool) -> None:
        super().__init__(native)
        self._native = native
        self._role = role
        self.device = device
        self.pins = pins
        self.protocol = native.protocol
        self.session = native.session
        self.revoke = revoke_of(native.protocol, device)
        self._watch = CompletionWatch(asyncio.get_running_loop())
        self._executor = OwnedExecutor("mooncake-submit", 1)
        self._contacts: Contacts[Contact] = Contacts()

    def describe(self) -> bytes:
        return msgspec.json.encode(EngineWord(self._native.session, self._native.page))

    def meet(self, peer: str, descriptor: bytes) -> None:
        word = read_word(descriptor)
        self._contacts.meet(peer, lambda: Contact(self._native, self._watch, self._executor, word))
        if self._role == "sender":
            self._contacts[peer].prepare()

    def part(self, peer: str) -> None:
        contact = self._contacts.part(peer)
        if contact is not None:
            contact.close()

    async def write(
        self, peer: str, moves: Sequence[Move], regions: dict[int, RemoteRegion]
    ) -> None:
        contact = self._contacts.get(peer)
        if contact is None:
            raise EngineFault("the peer's engine is not known", status="unknown", backend=NAME)
        if not contact.ready:
            await contact.wait_ready()
        wanted = [move for move in moves if move.nbytes]
        check_moves(wanted, regions, self._own.values(), NAME)
        if wanted:
            await contact.write(
                [
                    (local, regions[region].handle + offset, nbytes)
                    for local, region, offset, nbytes in wanted
                ]
            )

    def close(self) -> None:
        for contact in self._contacts:
            contact.close()
        self._contacts.clear()
        for region in list(self._own.values()):
            self.unregister(region)
        self._watch.close()
        self._executor.close()
