"""The vendor's client, as the client's process uses it.

In: names, memory of this process. Out: what the worker did, the vendor's texts as four kinds of failure.
Never: runs in a process with an event loop: the vendor's client keeps the GIL while it waits.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import re
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .buffer import Buffer

PACKAGES = ("yr.datasystem", "datasystem")
"""Where the client is, in releases since 0.8 and before."""
RUNGS = (250, 1000)
"""Milliseconds. The vendor goes on asking a full worker until its time limit has passed, so what takes memory is
asked for with a limit as short as the size allows. One client has one limit."""
_LEAST_MS = 200
"""What a worker that is well answers in, on a busy machine."""
_SECOND_A_BYTE = 2e-9
"""What the worker may take to find fresh memory and the client to fill it: 0.6 ns here, on a quiet machine."""
_PROBE_MS = 100
_MORE_THAN_ANY = 1 << 50
"""Bytes that no worker has."""
_LOOK = 0.05
"""Seconds between two looks for a worker that is not there yet."""
_CONNECT_MS = 500
"""The least that the vendor takes. It waits for 3 s all the same."""
_BATCH = 5000
"""Names in one of the vendor's questions; it takes 10,000."""
_LOG_DIR = "DATASYSTEM_CLIENT_LOG_DIR"
_QUIET = {"DATASYSTEM_MIN_LOG_LEVEL": "3", "DATASYSTEM_LOG_MONITOR_ENABLE": "false"}


class Refused(Exception):
    """A call failed; ``kind`` is that of :class:`words.Failed`."""

    def __init__(
        self, kind: str, text: str, status: str = "", nbytes: int = 0, limit: int = 0
    ) -> None:
        super().__init__(text)
        self.kind = kind
        self.text = text
        self.status = status
        self.nbytes = nbytes
        self.limit = limit


class Client:
    """Clients of one worker, which differ in their time limits.

    Every call may take as long as its limit, with the GIL held; calls raise :class:`Refused`.
    """

    def __init__(self, host: str, port: int, limit_ms: int, evictable: bool) -> None:
        self._vendor, modes = load()
        self._mode = modes.NONE_L2_CACHE_EVICT if evictable else modes.NONE_L2_CACHE
        self._host = host
        self._port = port
        self._limit_ms = limit_ms
        self._exclusive = True
        """Connections of one's own, of which a worker has 128. They are about three times as fast."""
        self._clients: dict[int, Any] = {}
        self._memory = 0
        """Bytes of the worker's shared memory, once a full one has told."""

    def connect(self, deadline: float) -> None:
        """Wait for the worker, which may start later."""
        while True:
            left = deadline - time.monotonic()
            try:
                socket.create_connection((self._host, self._port), max(left, _LOOK)).close()
                # It may take clients, and not be ready for their questions yet.
                self.contains(["ready"])
            except (OSError, Refused) as error:
                if isinstance(error, Refused) and error.kind == "missing":
                    raise
                if left <= _LOOK:
                    raise Refused("silent", str(error)) from None
                time.sleep(_LOOK)
            else:
                return

    def put(self, name: str, data: memoryview, ttl: int, deadline: float) -> None:
        """Keep bytes; readers see what was there before until all are there."""
        self._storing(
            name,
            data.nbytes,
            deadline,
            lambda client: client.set(name, data, self._mode, ttl),
        )

    def create(self, name: str, nbytes: int, ttl: int, deadline: float) -> tuple[Any, Buffer]:
        """Memory for an object, and what :meth:`publish` takes once it is filled."""
        created = self._storing(
            name,
            nbytes,
            deadline,
            lambda client: client.mcreate([name], [nbytes], self._mode, ttl),
        )
        return created, Buffer(created, memoryview(created[0].MutableData()))

    def publish(self, name: str, created: Any) -> None:
        """Keep what was created and filled.

        An object that is replaced in this way stays what it was for those who have read it by another worker,
        and one that was put by :meth:`put` cannot be replaced so. What was there goes first.
        """
        self.delete([name])
        self._ask(lambda client: client.mset_buffer(created))

    def get(self, name: str) -> Buffer | None:
        """An object's bytes, in the worker's memory."""
        try:
            found = self._ask(lambda client: client.get_read_only_buffers([name], 0))[0]
        except Refused as error:
            if error.status == "Key not found":
                return None
            raise
        return None if found is None else Buffer(found, found.immutable_data())

    def contains(self, names: Sequence[str]) -> bytes:
        """A byte for each."""
        told = bytearray()
        for start in range(0, len(names), _BATCH):
            some = list(names[start : start + _BATCH])
            told += bytes(self._ask(functools.partial(_exist, some)))
        return bytes(told)

    def delete(self, names: Sequence[str]) -> list[str]:
        """Those that could not be."""
        stay: list[str] = []
        for start in range(0, len(names), _BATCH):
            some = list(names[start : start + _BATCH])
            stay += self._ask(functools.partial(_delete, some))
        return stay

    def _ask(self, call: Callable[[Any], Any], limit_ms: int = 0) -> Any:
        limit_ms = limit_ms or self._limit_ms
        try:
            return _asked(call, self._client(limit_ms))
        except Refused as error:
            if not (self._exclusive and _CROWDED.search(error.text)):
                raise
        # Others have taken all connections of that kind. The usual kind is slower.
        self._exclusive = False
        self._clients.clear()
        return _asked(call, self._client(limit_ms))

    def _client(self, limit_ms: int) -> Any:
        client = self._clients.get(limit_ms)
        if client is None:
            try:
                client = self._vendor(
                    address_of(self._host, self._port),
                    self._port,
                    connect_timeout_ms=_CONNECT_MS,
                    req_timeout_ms=limit_ms,
                    enable_exclusive_connection=self._exclusive,
                )
            except TypeError as error:
                raise Refused("missing", f"another release is needed: {error}") from None
            with _logs():
                _asked(lambda made: made.init(), client)
            self._clients[limit_ms] = client
        return client

    def _storing(self, name: str, nbytes: int, deadline: float, call: Callable[[Any], Any]) -> Any:
        """A call that takes memory: with no more time than it needs, and in place of what it cannot replace."""
        if self._memory and _taken(nbytes) >= self._memory:
            # It may have been started again with more.
            self._probe()
            if _taken(nbytes) >= self._memory:
                raise Refused("large", "", "Out of memory", nbytes, self._memory)
        needs = _LEAST_MS + nbytes * _SECOND_A_BYTE * 1000
        limit_ms = next((rung for rung in RUNGS if needs <= rung < self._limit_ms), self._limit_ms)
        try:
            try:
                return self._ask(call, limit_ms)
            except Refused as error:
                if _OTHER_KIND.search(error.text):
                    # It was put with other settings, by somebody else or in pieces.
                    self.delete([name])
                elif (
                    error.kind != "silent"
                    or limit_ms == self._limit_ms
                    or deadline <= time.monotonic()
                ):
                    raise
                return self._ask(call)
        except Refused as error:
            raise self._too_large(error, nbytes) from None

    def _too_large(self, error: Refused, nbytes: int) -> Refused:
        """Whether an object that found no room would find some in an empty worker."""
        if error.kind != "full":
            return error
        found = _THRESHOLD.search(error.text)
        if found is not None:
            self._memory = int(found[1])
        elif not self._memory:
            self._probe()
        large = bool(self._memory) and _taken(nbytes) >= self._memory
        kind = "large" if large else "full"
        return Refused(kind, error.text, error.status, nbytes, self._memory)

    def _probe(self) -> None:
        """Find out how much memory the worker has: it tells who asks for more than there can be."""
        try:
            self._ask(lambda client: client.mcreate(["probe"], [_MORE_THAN_ANY]), _PROBE_MS)
        except Refused as told:
            found = _THRESHOLD.search(told.text)
            if found is not None:
                self._memory = int(found[1])


_CODE = re.compile(r"code: \[([^\]]*)\](?:, msg: \[)?(?:Thread ID \d+ )?(.*)")
_MARKS = re.compile(r"(, traceId|\. RPC Retry detail|\]$).*")
"""What follows a text."""
_THRESHOLD = re.compile(r"threshold size: (\d+)")
_CROWDED = re.compile("too many exclusive connections")
_OTHER_KIND = re.compile(r"cannot be modified|please delete the old cache")
_KINDS = {
    "Out of memory": "full",
    "RPC unavailable": "silent",
    "RPC deadline exceeded": "silent",
    "Client and Worker disconnect": "silent",
    "Not ready": "silent",
}


def _exist(names: list[str], client: Any) -> Any:
    return client.exist(names)


def _delete(names: list[str], client: Any) -> Any:
    return client.delete(names)


def _asked(call: Callable[[Any], Any], client: Any) -> Any:
    try:
        return call(client)
    except RuntimeError as error:
        found = _CODE.search(str(error))
        status, text = (found[1], found[2]) if found else ("", str(error))
        text = _MARKS.sub("", text)
        raise Refused(_KINDS.get(status, "fault"), text, status) from None


def _taken(nbytes: int) -> int:
    """What an object takes of the worker's memory: its allocator knows four sizes between two powers of two."""
    nbytes += 64
    step = max(64, 1 << (nbytes - 1).bit_length() >> 3)
    return -(-nbytes // step) * step


def address_of(host: str, port: int) -> str:
    """The vendor takes addresses only."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise Refused("silent", f"{host}: {error}") from None
    return str(min(found, key=lambda one: one[0] != socket.AF_INET)[4][0])


def load() -> tuple[Any, Any]:
    """The vendor's ``KVClient`` and ``WriteMode``."""
    reasons = []
    for package in PACKAGES:
        try:
            module = importlib.import_module(package)
            return module.KVClient, module.WriteMode
        except ImportError as error:
            reasons.append(str(error))
        except AttributeError as error:
            reasons.append(f"{package} is something else, or another release: {error}")
    raise Refused("missing", "; ".join(reasons))


@contextlib.contextmanager
def _logs() -> Iterator[None]:
    """Where the vendor's logs go, who opens them when the first client starts: into files that are gone
    with this process, unless the environment says otherwise."""
    if _LOG_DIR in os.environ:
        yield
        return
    folder = tempfile.mkdtemp(prefix="omni-async-")
    try:
        os.environ[_LOG_DIR] = folder
        for name, value in _QUIET.items():
            os.environ.setdefault(name, value)
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)
