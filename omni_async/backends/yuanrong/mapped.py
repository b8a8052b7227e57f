"""Memory of the pool in the client's process.

In: descriptors that came with the pool's addresses. Out: the same bytes at addresses of this process.
Never: unmaps what somebody still uses.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import NamedTuple

from ._native import Refused


class Span(NamedTuple):
    """Bytes of the pool in this process; stay mapped for as long as it is kept."""

    address: int
    data: memoryview


class Memory:
    """Memory of the pool, by the addresses that it has there."""

    def __init__(self) -> None:
        self._mapped: dict[int, Span] = {}

    def map(self, address: int, nbytes: int, fd: int) -> None:
        mapped = mmap.mmap(fd, nbytes)
        os.close(fd)
        here = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        self._mapped[address] = Span(here, memoryview(mapped))

    def unmap(self, address: int) -> None:
        self._mapped.pop(address, None)

    def span(self, address: int, nbytes: int) -> Span:
        for start, (here, data) in self._mapped.items():
            at = address - start
            if at >= 0 and at + nbytes <= len(data):
                return Span(here + at, data[at : at + nbytes])
        raise Refused("fault", f"{nbytes:,} bytes at {address:#x} are not registered")
