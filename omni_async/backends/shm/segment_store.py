"""Named shared memory as a store: where stages of vLLM-Omni put their payloads.

In: names, places in the pool's memory. Out: bytes kept, bytes here, or an error.
Never: blocks the event loop; deletes what it has neither put nor read.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence

from ...abc import Gone, Piece
from ...errors import EngineFault, KeyExists, PoolExhausted, UsageError
from ...model import Region, Role
from ..threaded_store import ThreadedStore
from . import segment_files as files

NAME = "SharedMemoryConnector"
THREADS = 2
BUSY_SECONDS = 0.005
"""For so long what somebody had locked counts as absent: the next look does not come at once."""
_SEPARATOR = "\0"


class SegmentStore(ThreadedStore):
    """One end's use of the segments of this host.

    What a sender has put, and nobody has fetched, is deleted when it closes: shared memory has no owner that
    would ever give it back.
    """

    separator = _SEPARATOR
    address = files.FOLDER
    outlives = False

    def __init__(self, role: Role) -> None:
        super().__init__("omni-async-segments", THREADS)
        self._loop = asyncio.get_running_loop()
        self._sends = role == "sender"
        self._ids = itertools.count(1)
        self._known: dict[str, files.Identity] = {}
        """Identities of what a sender has put, or a receiver has read."""
        self._busy: dict[str, float] = {}

    def name(self, text: str) -> str:
        key, _, _ = text.rpartition(_SEPARATOR)
        try:
            length = len(key.encode())
        except UnicodeEncodeError:
            length = 0
        if not 0 < length <= files.NAME_LIMIT or "/" in key or "\0" in key or key in (".", ".."):
            raise UsageError(
                f"the key {key[:80]!r} cannot be the name of shared memory: that is a file's, of at most "
                f"{files.NAME_LIMIT} bytes"
            )
        return key

    plain_name = name

    def register(self, address: int, nbytes: int, *, fd: int = -1) -> Region:
        return Region(next(self._ids), address, nbytes, b"", fd)

    def unregister(self, region: Region) -> None:
        pass

    async def close(self) -> None:
        if self._sends and self._known:
            self._run(self._sweep)
        await super().close()

    def abort(self) -> None:
        self._executor.close()
        if self._sends:
            self._sweep()

    # --- in threads -------------------------------------------------------------------------------

    def _put(self, name: str, pieces: Sequence[Piece]) -> None:
        try:
            self._known[name] = files.write(name, pieces)
        except files.BusySegment:
            raise KeyExists(f"{name} is being read or written just now", backend=NAME) from None
        except files.FullMemory as error:
            nbytes = sum(piece.nbytes for piece in pieces)
            raise PoolExhausted(str(error), nbytes=nbytes, backend=NAME) from error
        except OSError as error:
            raise _fault(f"cannot put {name}", error) from error

    def _get(self, name: str, address: int, room: int) -> int | None:
        try:
            found = files.read(name, address, room)
        except files.BusySegment:
            self._busy[name] = self._loop.time()
            return None
        except OSError as error:
            raise _fault(f"cannot get {name}", error) from error
        self._busy.pop(name, None)
        if found is None:
            self._known.pop(name, None)
            return None
        self._known[name] = found.identity
        return found.nbytes

    def _contains(self, names: Sequence[str]) -> list[bool]:
        recently = self._loop.time() - BUSY_SECONDS
        return [self._busy.get(name, 0) < recently and files.is_there(name) for name in names]

    def _delete(self, names: Sequence[str], own: bool) -> list[Gone]:
        ends = []
        for name in names:
            try:
                end = files.remove(name, self._known.get(name))
            except OSError as error:
                raise _fault(f"cannot delete {name}", error) from error
            if end is not Gone.BUSY:
                self._known.pop(name, None)
            ends.append(end)
        return ends

    def _sweep(self) -> None:
        self._delete(list(self._known), True)


def _fault(what: str, error: OSError) -> EngineFault:
    return EngineFault(f"{what}: {error.strerror}", status=error.errno, backend=NAME)
