"""Contact: one peer's agent, and what ours knows of it.

In: what the peer told of its agent and of its memory. Out: writes to it, begun in the engine's thread.
Never: is called from another thread, after :meth:`Contact.close`, or for memory that was not told.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from ...errors import EngineFault, ProtocolError
from ...model import Region
from ..addressed import check_region
from ._native import NAME, Agent, Place, Places, Transfer

MEMORIES = ("DRAM", "VRAM")


class AgentWord(msgspec.Struct, frozen=True):
    """What an agent tells of itself in the handshake."""

    name: str
    connection: bytes


class MemoryWord(msgspec.Struct, frozen=True):
    """What it tells of a region."""

    memory: str
    device: int
    metadata: bytes


_agent_decoder = msgspec.msgpack.Decoder(AgentWord)
_memory_decoder = msgspec.msgpack.Decoder(MemoryWord)


def read_agent(descriptor: bytes) -> AgentWord:
    """What a peer told of its agent.

    Raises:
        ProtocolError: nonsense.
    """
    try:
        word = _agent_decoder.decode(descriptor)
    except (msgspec.DecodeError, UnicodeDecodeError):
        word = AgentWord("", b"")
    if not word.name or not word.connection:
        raise ProtocolError(f"the peer's agent is told as {descriptor[:80]!r}")
    return word


class Target(msgspec.Struct, frozen=True):
    """A peer's region."""

    peer: str
    id: int
    address: int
    word: MemoryWord


def read_target(peer: str, region: Region) -> Target:
    """A region that a peer told.

    Raises:
        ProtocolError: there can be no such region.
    """
    check_region(peer, region)
    try:
        word = _memory_decoder.decode(region.descriptor)
    except (msgspec.DecodeError, UnicodeDecodeError):
        word = MemoryWord("", 0, b"")
    if word.memory not in MEMORIES or word.device < 0 or not word.metadata:
        raise ProtocolError(f"a region is told as {region.descriptor[:80]!r}", peer=peer)
    return Target(peer, region.id, region.address, word)


class Contact:
    """One peer of one transport.

    A failed write leaves the connection useless, and what the agent knows of a region cannot be taken back one
    by one: then all is forgotten and told again, as soon as no write is under way.
    """

    def __init__(self, agent: Agent, memory: str, word: AgentWord) -> None:
        self._agent = agent
        self._memory = memory
        self.word = word
        self._connected = False
        self._learnt: dict[int, Target] = {}
        self._under_way = 0
        self._stale = False
        self._closed = False

    @property
    def name(self) -> str:
        return self.word.name

    def connect(self) -> None:
        """Get to know the peer, unless that is done; it need not answer for it.

        Raises:
            EngineFault: what it told cannot be used.
        """
        if self._closed:
            raise EngineFault("the line to the peer has ended", status="closed", backend=NAME)
        if self._stale and not self._under_way:
            self._agent.forget(self.name)
            self._learnt.clear()
            self._connected = self._stale = False
        if not self._connected:
            self._agent.learn(self.name, self.word.connection)
            self._agent.dial(self.name)
            self._connected = True

    def begin(self, here: list[Place], targets: Collection[Target], there: list[Place]) -> Transfer:
        """Begin one transfer with all these pieces.

        Args:
            here: where they are.
            targets: the regions they go to.
            there: where they go.

        Raises:
            EngineFault: it could not begin.
        """
        kinds = {target.word.memory for target in targets}
        if len(kinds) > 1:
            raise EngineFault("one write for two kinds of memory", status="mixed", backend=NAME)
        try:
            self.connect()
            for target in targets:
                if self._learnt.get(target.id) != target:
                    self._agent.learn(self.name, target.word.metadata)
                    self._learnt[target.id] = target
            transfer = self._agent.write(
                self.name, Places(self._memory, here), Places(kinds.pop(), there)
            )
        except EngineFault:
            self._stale = True
            raise
        self._under_way += 1
        return transfer

    def ended(self, *, well: bool) -> None:
        """A transfer that was begun has ended."""
        self._under_way -= 1
        self._stale = self._stale or not well

    def withdraw(self, target: Target) -> None:
        """The peer has taken a region back."""
        if self._learnt.pop(target.id, None) is not None:
            self._stale = True

    def close(self) -> None:
        """Disconnect; writes under way end with an error."""
        self._closed = True
        self._agent.forget(self.name)
