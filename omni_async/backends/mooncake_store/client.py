"""One of the vendor's clients, wrapped so that it cannot be misused.

In: names, and places in memory. Out: statuses, 0 or more for success.
Never: runs on the event loop, is made around a client that was not set up: the vendor would end the process.

Calls wait for the master or another client, at the latest as long as the vendor's own limits: 5 s for the
master, 30 s for bytes.
"""

from __future__ import annotations

import ctypes
import mmap
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .codes import (
    BEING_WRITTEN,
    INVALID,
    LEASE_EXPIRED,
    NOT_THERE,
    RPC_FAILED,
    TRANSFER_FAILED,
)

_SEEN = 4096
_SLOTS = 16
IN_PARTS = 16 << 20
"""Bytes from which on reading in parts gains more than it costs. While it reads in one piece the vendor keeps a core
busy by asking whether it has done; in parts it waits."""
PARTS = 4
_ATTEMPTS = 5
_AT_ONCE = 0.5
_ELSEWHERE = 3.0
_PAUSE = 0.02


class Settings(NamedTuple):
    """What a client is made of; transports with the same ones share it."""

    host: str
    """Where other clients reach it; a port behind it is its own."""
    metadata: str
    master: str
    segment: int
    localbuf: int
    protocol: str
    devices: str
    evictable: bool


def plain(endpoint: str) -> str:
    """An address and a port, without the brackets that the vendor does not put everywhere."""
    return endpoint.translate({ord("["): None, ord("]"): None})


class Client:
    """One client that is set up. Calls may come from any threads."""

    def __init__(
        self, native: Any, pin: Any, settings: Settings, endpoints: frozenset[str] = frozenset()
    ) -> None:
        """``endpoints``: what the master may say of where objects in the own segment are."""
        self._native = native
        self._pin = pin
        self.settings = settings
        self._endpoints = endpoints
        self._tcp = settings.protocol == "tcp"
        self._glances: queue.SimpleQueue[int] = queue.SimpleQueue()
        """Where to read an object's first bytes again; registered."""
        self._memory = mmap.mmap(-1, _SEEN * _SLOTS, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self.register(start, len(self._memory))
        for at in range(_SLOTS):
            self._glances.put(start + at * _SEEN)
        self._lock = threading.Lock()
        self._putting: set[str] = set()

    def put(self, name: str, addresses: Sequence[int], sizes: Sequence[int]) -> int:
        """Keep these pieces as one object, in place of one of that name.

        Returns one of :data:`BUSY` where that one has to stay.
        """
        with self._lock:
            if name in self._putting:
                return BEING_WRITTEN
            self._putting.add(name)
        try:
            limit = time.monotonic() + _ELSEWHERE
            while True:
                status = self._put(name, addresses, sizes)
                # Until the master believes that a client is dead, it gives away that one's memory, too.
                if status != TRANSFER_FAILED or time.monotonic() > limit:
                    return status
                time.sleep(_PAUSE)
        finally:
            with self._lock:
                self._putting.discard(name)

    def _put(self, name: str, addresses: Sequence[int], sizes: Sequence[int]) -> int:
        """The vendor's put keeps what is there, and says 0. So that goes first.

        An object that somebody else puts between the two calls stays: as if it had been put a moment later,
        and had replaced this one.
        """
        status = self._asked(lambda: self._native.remove(name, False))
        if status not in (0, NOT_THERE):
            return status
        # This one, since it copies into the own segment, and writes a file where the master wants files.
        status = int(
            self._native.batch_put_from_multi_buffers(
                [name], [list(addresses)], [list(sizes)], self._pin
            )[0]
        )
        return TRANSFER_FAILED if status == INVALID else status  # invalid: nobody answers there

    def get(self, name: str, address: int, room: int) -> int:
        """The object's size; beyond ``room`` nothing usable was written.

        A reader that has done removes by force, and then the memory may be written anew under another
        reader, to whom the vendor says that all is well. The objects of transports tell that by themselves, since
        their numbers at both ends differ then. But in parts it is not read from one end to the other: so who reads
        that way looks before and after whether the first bytes are those that were read.
        """
        status = INVALID
        first = self._glance(name) if room >= IN_PARTS else b""
        if isinstance(first, int):
            if first != INVALID:
                return first
            first = b""  # the object is shorter
        for _ in range(_ATTEMPTS):
            size: int = self._size_elsewhere(name) if room >= IN_PARTS and self._tcp else 0
            if size > room:
                return size
            status = self._get_in_parts(name, address, size) if size >= IN_PARTS else INVALID
            if status == INVALID:
                status = self._asked(lambda: self._native.get_into(name, address, room))
            if status == INVALID:
                size = self._native.get_size(name)
                if size < 0 or size > room:
                    return size
            elif status != LEASE_EXPIRED:
                break
        if status == INVALID:  # there is room, so nobody answers where it is said to be
            return TRANSFER_FAILED
        return status if status < IN_PARTS else self._same(name, address, status, first)

    def _same(self, name: str, address: int, size: int, first: bytes) -> int:
        """``size`` where what was read is what there was before, and still is."""
        last = self._glance(name)
        if isinstance(last, int):
            return NOT_THERE if last in (INVALID, BEING_WRITTEN) else last  # invalid: it is shorter
        return size if first == last == ctypes.string_at(address, _SEEN) else NOT_THERE

    def _glance(self, name: str) -> bytes | int:
        """The first bytes of an object that has so many, or a status."""
        slot = self._glances.get()

        def ask() -> int:
            # By buffer, by key in it, by part: where in the buffer, where in the object, how much.
            [[[read]]] = self._native.get_into_ranges(
                [slot], [[name]], [[[0]]], [[[0]]], [[[_SEEN]]]
            )
            return int(read)

        try:
            read = self._asked(ask)
            return ctypes.string_at(slot, _SEEN) if read == _SEEN else read
        finally:
            self._glances.put(slot)

    def _get_in_parts(self, name: str, address: int, size: int) -> int:
        starts = [size * at // PARTS for at in range(PARTS)]
        sizes = [end - start for start, end in zip(starts, [*starts[1:], size], strict=True)]
        [[read]] = self._native.get_into_ranges(
            [address], [[name]], [[starts]], [[starts]], [[sizes]]
        )
        failed: int = min(0, *read)
        return failed or size

    def _size_elsewhere(self, name: str) -> int:
        """The size of an object that lies in another client's memory, else 0."""
        for copy in self._native.get_replica_desc(name):
            if copy.is_memory_replica():
                place = copy.get_memory_descriptor().buffer_descriptor
                return 0 if plain(place.transport_endpoint) in self._endpoints else int(place.size)
        return 0

    def contains(self, names: Sequence[str]) -> list[int]:
        """1 for each that there is, 0, or a status."""
        found: list[int] = []

        def ask() -> int:
            found[:] = self._native.batch_is_exist(names)
            return min(found) if any(found) else 0  # nothing there, most of the time

        self._asked(ask)
        return found

    def remove(self, names: Sequence[str], *, force: bool) -> list[int]:
        """A status for each. With ``force`` also of what is being read."""
        if len(names) == 1:
            return [self._asked(lambda: self._native.remove(names[0], force))]
        removed: list[int] = []

        def ask() -> int:
            removed[:] = self._native.batch_remove(names, force)
            return min(removed)

        self._asked(ask)
        return removed

    def _asked(self, ask: Callable[[], int]) -> int:
        """Ask the master; once more where the connection was one to a master that has been restarted.

        That shows at once. A master that is gone takes the vendor some seconds.
        """
        limit = time.monotonic() + _AT_ONCE
        for _ in range(_ATTEMPTS - 1):
            status = ask()
            if status != RPC_FAILED or time.monotonic() > limit:
                return status
        return ask()

    def register(self, address: int, nbytes: int) -> int:
        status: int = self._native.register_buffer(address, nbytes)
        return status

    def unregister(self, address: int) -> int:
        status: int = self._native.unregister_buffer(address)
        return status
