"""WRITE: the sender's agent puts bytes into the receiver's registered memory.

In: moves whose ranges the transport has checked. Out: bytes in place, or EngineFault after the last byte's end.
Never: lets the vendor see an address that is not registered, here or at the peer; blocks the event loop for bytes.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from ..._aio.thread_watch import ThreadWatch
from ...abc import Engine, RemoteRegion, Revoke
from ...errors import EngineFault
from ...model import Move, Region, Role, Verb, batches
from ..addressed import Contacts, check_moves
from ._native import NAME, Agent
from .contact import AgentWord, Contact, MemoryWord, Target, read_agent, read_target
from .writing import Writing

POST = 8 << 20
"""Bytes that the vendor is handed at a time: where the kernel copies, it takes a millisecond or two, in which no
other write can begin."""


class NixlEngine(Engine):
    """One engine of one transport, with an agent of its own.

    Args:
        agent: owned from here on.
        role: a sender gets to know its peers as soon as they are there; a receiver needs not.
        device: where the pool lives.
        pins: whether the pool's memory is pinned.
    """

    verb = Verb.WRITE
    revoke = Revoke.PAGES

    def __init__(
        self, agent: Agent, role: Role, device: str, plugins: Sequence[str], *, pins: bool
    ) -> None:
        self._agent = agent
        self._role = role
        self.device = device
        self.pins = pins
        self.protocol = ",".join(plugins)
        kind, _, number = device.partition(":")
        self._memory = "DRAM" if kind == "cpu" else "VRAM"
        self._number = int(number or 0)
        self._watch = ThreadWatch("nixl")
        self._ids = itertools.count(1)
        self._own: dict[int, tuple[Region, Any]] = {}
        self._contacts: Contacts[Contact] = Contacts()
        self._closed = False

    def register(self, address: int, nbytes: int, *, fd: int = -1) -> Region:
        registered = self._agent.register(self._memory, (address, nbytes, self._number))
        word = MemoryWord(self._memory, self._number, self._agent.metadata(registered))
        region = Region(next(self._ids), address, nbytes, msgspec.msgpack.encode(word), -1)
        self._own[region.id] = region, registered
        return region

    def unregister(self, region: Region) -> None:
        found = self._own.pop(region.id, None)
        if found is not None:
            self._agent.unregister(found[1])

    def attach(self, peer: str, region: Region) -> RemoteRegion:
        return RemoteRegion(region.id, region.nbytes, 0, read_target(peer, region))

    def detach(self, remote: RemoteRegion) -> None:
        target: Target = remote.handle
        contact = self._contacts.get(target.peer)
        if contact is not None and not self._closed:
            self._in_thread(partial(contact.withdraw, target))

    def describe(self) -> bytes:
        return msgspec.msgpack.encode(AgentWord(self._agent.name, self._agent.connection()))

    def meet(self, peer: str, descriptor: bytes) -> None:
        word = read_agent(descriptor)

        def make() -> Contact:
            contact = Contact(self._agent, self._memory, word)
            if self._role == "sender":
                self._in_thread(contact.connect)
            return contact

        self._contacts.meet(peer, make)

    def part(self, peer: str) -> None:
        contact = self._contacts.part(peer)
        if contact is not None and self._role == "sender" and not self._closed:
            self._in_thread(contact.close)

    async def write(
        self, peer: str, moves: Sequence[Move], regions: dict[int, RemoteRegion]
    ) -> None:
        contact = self._contacts.get(peer)
        if contact is None or self._closed:
            raise EngineFault("the peer's agent is not known", status="unknown", backend=NAME)
        wanted = [move for move in moves if move.nbytes]
        check_moves(wanted, regions, (region for region, _ in self._own.values()), NAME)
        if not wanted:
            return
        posts = [self._post(contact, batch, regions) for batch in batches(wanted, POST)]
        try:
            await self._watch.begin(*posts)
        except EngineFault as error:
            raise EngineFault(
                f"the engine could not write {sum(post.length for post in posts):,} bytes to {contact.name}: "
                f"{error}; NIXL_LOG_LEVEL=WARNING shows its own words",
                status=error.status,
                backend=NAME,
                peer=contact.name,
            ) from None

    def _post(
        self, contact: Contact, moves: Sequence[Move], regions: dict[int, RemoteRegion]
    ) -> Writing:
        targets: dict[int, Target] = {move.region: regions[move.region].handle for move in moves}
        starts = {number: (to.address, to.word.device) for number, to in targets.items()}
        here = [(local, nbytes, self._number) for local, _, _, nbytes in moves]
        there = [
            (starts[region][0] + offset, nbytes, starts[region][1])
            for _, region, offset, nbytes in moves
        ]
        return Writing(contact, here, targets.values(), there)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for region, _ in list(self._own.values()):
            self.unregister(region)
        contacts = list(self._contacts)
        self._contacts.clear()
        self._watch.close(partial(_close_all, contacts), self._agent.destroy)

    def _in_thread(self, call: Callable[[], None]) -> None:
        self._watch.run(call).add_done_callback(_heard)


def _close_all(contacts: Sequence[Contact]) -> None:
    for contact in contacts:
        contact.close()


def _heard(future: asyncio.Future[None]) -> None:
    """The next write is told of it."""
    if not future.cancelled():
        future.exception()
