"""A store inside one process, which can be made to fail.

In: bytes of pools. Out: the same bytes, or the failure that a test has asked for.
Never: crosses a process boundary; stands for a vendor's speed or durability.

It stands for a server at the moments that a real one cannot be brought to at will: full, not reachable, in the
middle of a call, with a reader that still has its lease.
"""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Sequence
from typing import ClassVar

from ...abc import Gone, MemorySource, Options, Piece, Store, StoreBackend, StoreOptions, option
from ...errors import ClosedError, KeyExists, PayloadTooLarge, PoolExhausted, ServerUnreachable
from ...model import Capabilities, Region, Role, Verb
from ...pool.memory import AnonymousMemory

LEASE = 0.2
"""Seconds for which a name that was read, or asked for, cannot be replaced."""


class KeptOptions(StoreOptions):
    server: str = option("one", "Which of the servers of this process.")
    capacity: int | None = option(None, "How much it keeps, from now on.", unit="bytes")
    tells: bool = option(True, "Whether it tells what was not there when it was to be deleted.")
    guards: bool = option(True, "Whether it keeps what somebody reads.")


class Server:
    """What clients of one name share, and what tests turn."""

    all: ClassVar[dict[str, Server]] = {}

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.leases: dict[str, float] = {}
        self.capacity = 1 << 40
        self.down = False
        self.gate = asyncio.Event()
        """Calls wait while it is not set."""
        self.gate.set()
        self.questions: list[list[str]] = []
        self.ttls: dict[str, float] = {}

    @classmethod
    def named(cls, name: str) -> Server:
        return cls.all.setdefault(name, cls())

    def restart(self) -> None:
        """It has lost everything."""
        self.objects.clear()
        self.leases.clear()
        self.down = False

    @property
    def used(self) -> int:
        return sum(map(len, self.objects.values()))


class KeptStore(Store):
    separator = "@"

    def __init__(self, server: Server, options: KeptOptions) -> None:
        self.server = server
        self.address = f"the server {options.server!r} of this process"
        self.guards = options.guards
        self.tells_absent = options.tells
        self.closed = False
        self._regions = 0

    def name(self, text: str) -> str:
        return text

    def plain_name(self, text: str) -> str:
        return text

    def register(self, address: int, nbytes: int, *, fd: int = -1) -> Region:
        self._regions += 1
        return Region(self._regions, address, nbytes, b"", -1)

    def unregister(self, region: Region) -> None:
        pass

    async def put(self, name: str, pieces: Sequence[Piece], *, ttl: float, timeout: float) -> None:
        await self._reach()
        server = self.server
        data = b"".join(ctypes.string_at(*piece) for piece in pieces)
        if len(data) > server.capacity:
            raise PayloadTooLarge(
                f"{len(data)} bytes never fit", nbytes=len(data), limit=server.capacity
            )
        if self.guards and self._leased(name):
            raise KeyExists("somebody reads it")
        if server.used - len(server.objects.get(name, b"")) + len(data) > server.capacity:
            raise PoolExhausted("full", nbytes=len(data), limit=server.capacity)
        server.objects[name] = data
        server.ttls[name] = ttl

    async def get(self, name: str, address: int, room: int, *, timeout: float) -> int | None:
        await self._reach()
        data = self.server.objects.get(name)
        if data is None:
            return None
        self._lease(name)
        if len(data) <= room:
            ctypes.memmove(address, data, len(data))
        return len(data)

    async def contains(self, names: Sequence[str]) -> list[bool]:
        self.server.questions.append(list(names))
        await self._reach()
        for name in names:
            if name in self.server.objects:
                self._lease(name)
        return [name in self.server.objects for name in names]

    async def delete(self, names: Sequence[str], *, own: bool = False) -> list[Gone]:
        await self._reach()
        ends = []
        for name in names:
            if name not in self.server.objects:
                ends.append(Gone.ABSENT if self.tells_absent else Gone.DELETED)
            elif self.guards and not own and self._leased(name):
                ends.append(Gone.BUSY)
            else:
                del self.server.objects[name]
                self.server.leases.pop(name, None)
                ends.append(Gone.DELETED)
        return ends

    async def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    async def _reach(self) -> None:
        if self.closed:
            raise ClosedError("the client was closed")
        await asyncio.sleep(0)
        await self.server.gate.wait()
        if self.server.down:
            raise ServerUnreachable("nobody is there", status="down")

    def _lease(self, name: str) -> None:
        self.server.leases[name] = asyncio.get_running_loop().time() + LEASE

    def _leased(self, name: str) -> bool:
        return self.server.leases.get(name, 0.0) > asyncio.get_running_loop().time()


class KeptBackend(StoreBackend):
    """``kept``."""

    name = "KeptConnector"
    alias = "kept"
    options = KeptOptions

    def capabilities(self, options: Options) -> Capabilities:
        return Capabilities(
            backend=self.name, verb=Verb.STORE, notifies=False, exclusive=False, credit=False
        )

    async def store(self, options: Options, role: Role) -> Store:
        assert isinstance(options, KeptOptions)
        server = Server.named(options.server)
        if options.capacity is not None:
            server.capacity = options.capacity
        return KeptStore(server, options)

    def memory(self, options: Options, role: Role) -> MemorySource:
        return AnonymousMemory()
