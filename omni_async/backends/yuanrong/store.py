"""YuanrongStore: a datasystem's worker, by a client in a process of its own.

In: names, places in the pool's memory. Out: bytes kept, bytes here, the vendor's codes as errors.
Never: calls the vendor in this process, whose event loop that would stop.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...abc.store import Gone, Piece, Store
from ...errors import (
    BackendUnavailable,
    ClosedError,
    EngineFault,
    PayloadTooLarge,
    PoolExhausted,
    ServerUnreachable,
    TransferError,
)
from ...model import Region
from .config import YuanrongOptions
from .line import NAME, ClientLine
from .names import name_of, plain_name_of
from .words import (
    Answer,
    Call,
    Connect,
    Contains,
    Delete,
    Done,
    Failed,
    Get,
    Map,
    Put,
    Told,
    Unmap,
)

INSTALL = "pip install 'omni-async[yuanrong]'"
SETTING = "--shared_memory_size_mb"
"""Of the worker."""
_LONGEST_TTL = (1 << 32) - 1
_CLOSING = 1.0
"""Seconds for the client to take leave of the worker."""
_SLACK = 10.0
"""Seconds beyond the vendor's own limit in which the client's process has to have said something."""
_LATE = 0.5
"""Seconds for the client's process to say itself that its time is over."""
_FOREVER = 1e9


class YuanrongStore(Store):
    """One client, connected by :meth:`open`. When its process ends, the next call starts another."""

    separator = ":"
    tells_absent = False
    guards = False
    question = 2000

    def __init__(self, options: YuanrongOptions) -> None:
        self._options = options
        self.address = f"{options.host}:{options.port}"
        self._line: ClientLine | None = None
        self._connected: asyncio.Future[Answer] | None = None
        """While it is not."""
        self._retired: list[ClientLine] = []
        self._registered: dict[int, tuple[Region, int]] = {}
        """By address: regions, and duplicates of their descriptors."""
        self._ids = itertools.count()
        self._closed = False

    async def open(self) -> None:
        """Connect.

        Raises:
            BackendUnavailable: no package, or nobody answers within ``setup_timeout``.

        Cancellation: safe; the process is ended.
        """
        limit = self._options.setup_timeout
        try:
            answer = await asyncio.wait_for(self._begin(limit), limit + _LATE)
        except (asyncio.TimeoutError, TimeoutError):
            answer = Failed(0, "silent", "whoever listens there does not answer as a worker does")
        except (EngineFault, OSError) as error:
            answer = Failed(0, "failed", str(error))
        except BaseException:
            self.abort()
            raise
        if isinstance(answer, Failed):
            self.abort()
            raise self._unavailable(answer)

    # -- names and memory ------------------------------------------------------------------------

    def name(self, text: str) -> str:
        return name_of(text)

    def plain_name(self, text: str) -> str:
        return plain_name_of(text)

    def register(self, address: int, nbytes: int, *, fd: int = -1) -> Region:
        if fd < 0:
            raise ValueError("the client's process can map only memory that has a descriptor")
        region = Region(next(self._ids), address, nbytes, b"", -1)
        self._registered[address] = region, os.dup(fd)
        if self._line is not None:
            self._line.tell(Map(address, nbytes), fd)
        return region

    def unregister(self, region: Region) -> None:
        known = self._registered.get(region.address)
        if known is not None and known[0] is region:
            del self._registered[region.address]
            os.close(known[1])
            if self._line is not None:
                self._line.tell(Unmap(region.address))

    # -- calls -----------------------------------------------------------------------------------

    async def put(self, name: str, pieces: Sequence[Piece], *, ttl: float, timeout: float) -> None:
        seconds = 0 if math.isinf(ttl) else min(max(1, math.ceil(ttl)), _LONGEST_TTL)
        places = [(piece.address, piece.nbytes) for piece in pieces]
        until = _until(timeout)
        await self._call(lambda number: Put(number, name, places, seconds, until))

    async def get(self, name: str, address: int, room: int, *, timeout: float) -> int | None:
        until = _until(timeout)
        answer = await self._call(lambda number: Get(number, name, address, room, until))
        assert isinstance(answer, Done)
        return answer.number if answer.number >= 0 else None

    async def contains(self, names: Sequence[str]) -> list[bool]:
        told = await self._told(names, Contains)
        if told.count(0) == len(told):  # most of the time, and quicker found out this way
            return [False] * len(told)
        return list(map(bool, told))

    async def delete(self, names: Sequence[str], *, own: bool = False) -> list[Gone]:
        stay = await self._told(names, Delete)
        return [Gone.BUSY if one else Gone.DELETED for one in stay]

    async def _told(
        self, names: Sequence[str], word: Callable[[int, list[str]], Contains | Delete]
    ) -> bytes:
        if not names:
            return b""
        answer = await self._call(lambda number: word(number, list(names)))
        assert isinstance(answer, Told)
        return answer.answers

    async def _call(self, word: Callable[[int], Call]) -> Answer:
        line = self._line
        if line is None or not line.open or self._connected is not None:
            line = await self._reconnected()
        number = line.number()
        answer = await line.ask(number, word(number))
        if isinstance(answer, Failed):
            if answer.kind == "silent":
                self._retire(line)
            raise self._error(answer)
        return answer

    def _retire(self, line: ClientLine) -> None:
        """A client that has lost its worker may find the next one late, or not; a new client does."""
        if self._line is line:
            self._line = None
            self._retired = [old for old in self._retired if not old.gone]
            self._retired.append(line)
            line.retire()

    # -- the client's process --------------------------------------------------------------------

    def _begin(self, limit: float) -> asyncio.Future[Answer]:
        """Start it; the future is done once it is connected, or why not."""
        options = self._options
        line = ClientLine(limit + _SLACK)
        self._line = line
        word = Connect(
            options.host, options.port, options.req_timeout_ms, options.evictable, _until(limit)
        )
        connected = self._connected = line.ask(0, word)
        for region, fd in self._registered.values():
            line.tell(Map(region.address, region.nbytes), fd)
        connected.add_done_callback(self._settled)
        return connected

    def _settled(self, connected: asyncio.Future[Answer]) -> None:
        if connected is not self._connected:
            return
        self._connected = None
        line = self._line
        good = not connected.cancelled() and connected.exception() is None
        if line is None:
            return
        if good and isinstance(connected.result(), Done):
            line.be_patient(self._options.req_timeout_ms / 1000 + _SLACK)
        else:
            self._retire(line)

    async def _reconnected(self) -> ClientLine:
        if self._closed:
            raise ClosedError(f"the client of the worker at {self.address} is closed")
        connected = self._connected
        if connected is None:
            try:
                connected = self._begin(self._options.req_timeout_ms / 1000)
            except OSError as error:
                raise EngineFault(
                    f"the client's process does not start: {error}", backend=NAME
                ) from error
        line = self._line
        assert line is not None
        answer = await asyncio.shield(connected)
        if isinstance(answer, Failed):
            raise self._error(answer)
        return line

    def health(self) -> Mapping[str, Any]:
        return {"host": self._options.host, "port": self._options.port}

    async def close(self) -> None:
        self._closed = True
        await asyncio.gather(*(line.close(_CLOSING) for line in self._lines()))
        self._forget()

    def abort(self) -> None:
        self._closed = True
        for line in self._lines():
            line.abort()
        self._forget()

    def _lines(self) -> list[ClientLine]:
        return [*self._retired, *([] if self._line is None else [self._line])]

    def _forget(self) -> None:
        for _, fd in self._registered.values():
            os.close(fd)
        self._registered.clear()

    # -- errors ----------------------------------------------------------------------------------

    def _error(self, failed: Failed) -> TransferError:
        where: dict[str, Any] = {"backend": NAME, "peer": self.address}
        if failed.kind == "large":
            return PayloadTooLarge(
                f"an object of {failed.nbytes:,} bytes does not fit into the {failed.limit:,} bytes of shared "
                f"memory that the datasystem's worker has; raise its {SETTING}",
                nbytes=failed.nbytes,
                limit=failed.limit,
                setting=SETTING,
                **where,
            )
        if failed.kind == "full":
            return PoolExhausted(
                f"the shared memory of the datasystem's worker has no room for {failed.nbytes:,} bytes now",
                nbytes=failed.nbytes,
                limit=failed.limit,
                **where,
            )
        if failed.kind == "silent":
            return ServerUnreachable(
                f"no datasystem worker answers at {self.address}, where the options 'host' and 'port' say one "
                f"is ({failed.text})",
                status=failed.status,
                **where,
            )
        return EngineFault(failed.text, status=failed.status, **where)

    def _unavailable(self, failed: Failed) -> BackendUnavailable:
        if failed.kind == "missing":
            return BackendUnavailable(
                f"openYuanrong's datasystem client is not usable here: {failed.text}",
                backend=NAME,
                remedy=INSTALL,
            )
        if failed.kind == "failed":
            return BackendUnavailable(failed.text, backend=NAME)
        options = self._options
        return BackendUnavailable(
            f"no datasystem worker answers at host {options.host!r}, port {options.port}, within "
            f"{options.setup_timeout:g} s ({failed.text})",
            backend=NAME,
            remedy=how_to_start(options),
        )


def how_to_start(options: YuanrongOptions) -> str:
    """What to do where no worker answers."""
    return (
        f"dscli start -w --worker_address {options.host}:{options.port} --metastore_address "
        f"{options.host}:2379 --start_metastore_service true"
    )


def _until(timeout: float) -> float:
    """That many seconds from now, on a clock that other processes have as well."""
    return time.monotonic() + min(timeout, _FOREVER)
