"""Mooncake's store as the hall sees it.

In: names, places in the pool's memory. Out: bytes kept, bytes here, or an error with the store's status.
Never: waits for the vendor on the event loop, decides how long somebody waits.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from ...abc.store import Gone, Piece
from ...errors import EngineFault, KeyExists, PayloadTooLarge, PoolExhausted, UsageError
from ...model import Region
from ..threaded_store import ThreadedStore
from .client import Client
from .codes import ABSENT, BUSY, NAME, NO_ROOM, NOT_THERE, fault

THREADS = 8
"""Calls at a time. They wait more than they work."""
ASKED_AT_ONCE = 1000
"""Names in one question: the master is held up by it, 0.3 ms by so many."""


class MooncakeStore(ThreadedStore):
    """A transport's use of this process's client.

    An object lies in this client's own segment where there is one with room, else in somebody else's. It is never
    evicted, unless the option ``evictable`` is set.
    """

    separator = "@"
    guards = True
    question = 2000

    def __init__(self, client: Client) -> None:
        super().__init__("mooncake-store", THREADS)
        self._client = client
        settings = client.settings
        self.address = settings.master
        self.pins = settings.protocol != "tcp"
        self._segment = settings.segment
        self._largest = 0
        self._regions: dict[int, Region] = {}
        self._ids = itertools.count(1)

    def name(self, text: str) -> str:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UsageError(f"a key is text that UTF-8 can say, not {text!r}") from error
        return text

    plain_name = name

    def register(self, address: int, nbytes: int, *, fd: int = -1) -> Region:
        status = self._client.register(address, nbytes)
        if status and self.pins:
            raise self._fault(status, f"cannot register {nbytes:,} bytes at {address:#x}")
        region = Region(next(self._ids), address, nbytes, b"", fd)
        self._regions[region.id] = region
        return region

    def unregister(self, region: Region) -> None:
        if self._regions.pop(region.id, None) is not None:
            self._client.unregister(region.address)

    def health(self) -> Mapping[str, Any]:
        settings = self._client.settings
        return {
            "host": settings.host,
            "metadata_server": settings.metadata,
            "master": settings.master,
            "protocol": settings.protocol,
        }

    def abort(self) -> None:
        self._executor.close()
        if not self._under_way:
            for region in list(self._regions.values()):
                self.unregister(region)

    # --- in threads -------------------------------------------------------------------------------

    def _put(self, name: str, pieces: Sequence[Piece]) -> None:
        addresses = [piece.address for piece in pieces]
        sizes = [piece.nbytes for piece in pieces]
        status = self._client.put(name, addresses, sizes)
        nbytes = sum(sizes)
        if status == 0:
            self._largest = max(self._largest, nbytes)
        elif status in BUSY:
            raise KeyExists(
                f"{name} is there, and cannot be replaced now: somebody reads it or looked at it in the "
                "last seconds (the master's `--default_kv_lease_ttl`), or writes it just now",
                backend=NAME,
            )
        elif status == NO_ROOM:
            raise self._no_room(name, nbytes)
        else:
            raise self._fault(status, f"cannot put {nbytes:,} bytes as {name}")

    def _get(self, name: str, address: int, room: int) -> int | None:
        found = self._client.get(name, address, room)
        if found in ABSENT:
            return None
        if found < 0:
            raise self._fault(found, f"cannot get {name}")
        return found

    def _contains(self, names: Sequence[str]) -> list[bool]:
        there: list[bool] = []
        for start in range(0, len(names), ASKED_AT_ONCE):
            found = self._client.contains(names[start : start + ASKED_AT_ONCE])
            if not any(found):  # most of the time, and quicker found out this way
                there += [False] * len(found)
                continue
            if min(found) < 0:
                raise self._fault(min(found), f"cannot ask for {len(names)} keys")
            there += [status == 1 for status in found]
        return there

    def _delete(self, names: Sequence[str], own: bool) -> list[Gone]:
        if not names:
            return []
        removed = self._client.remove(names, force=own)
        return [self._gone(*pair) for pair in zip(names, removed, strict=True)]

    def _gone(self, name: str, status: int) -> Gone:
        if status == 0:
            return Gone.DELETED
        if status == NOT_THERE:
            return Gone.ABSENT
        if status in BUSY:
            return Gone.BUSY
        raise self._fault(status, f"cannot delete {name}")

    def _no_room(self, name: str, nbytes: int) -> PoolExhausted | PayloadTooLarge:
        """An object lies in one piece in one segment. How large those of others are, nobody tells."""
        lent = f"this client lends {self._segment:,} bytes (`segment`)"
        if nbytes > max(self._segment, self._largest) and self._segment:
            return PayloadTooLarge(
                f"{name} has {nbytes:,} bytes, and no segment of the store takes so much: {lent}",
                nbytes=nbytes,
                limit=self._segment,
                setting="segment",
                backend=NAME,
            )
        return PoolExhausted(
            f"there is no room for the {nbytes:,} bytes of {name} in any segment of the store: {lent}; unread "
            "payloads hold it, or nobody lends so much",
            nbytes=nbytes,
            limit=self._segment,
            backend=NAME,
        )

    def _fault(self, status: int, what: str) -> EngineFault:
        return fault(status, what, self.address)
