"""Host memory: memfd segments that can be passed along, and private ones.

In: lengths, or a peer's descriptor. Out: mapped blocks that outlive their closing while views live.
Never: leaves a name behind, truncates, raises because a view is still alive.
"""

from __future__ import annotations

import ctypes
import fcntl
import itertools
import mmap
import os
from collections.abc import Callable

from ..abc.memory import Block, MemorySource
from ..errors import ProtocolError

__all__ = ["PAGE", "AnonymousMemory", "MappedBlock", "MemfdMemory", "map_fd"]

PAGE = mmap.PAGESIZE
"""Bytes; segments are whole pages."""

_HUGE_PAGE = 2 << 20
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_MADV_DONTNEED = 4
_MADV_REMOVE = 9
_MADV_HUGEPAGE = 14
_PROT_NONE = 0
_MAP_FIXED = 0x10
_MAP_NORESERVE = 0x4000
_MAP_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

_serial = itertools.count(1)


def _last_error(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{what}: {os.strerror(number)}")


class _Mapping:
    """One mapping. It is undone when nobody refers to it: the block or any view of it does."""

    __slots__ = ("_munmap", "address", "nbytes", "withdrawn")

    def __init__(self, nbytes: int, flags: int, fd: int) -> None:
        # mmap.mmap would keep a second descriptor open for as long as the mapping lives.
        self.nbytes = 0
        address = _libc.mmap(None, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, flags, fd, 0)
        if address is None or address == _MAP_FAILED:
            raise _last_error(f"cannot map {nbytes:,} bytes")
        self.address: int = address
        self.nbytes = nbytes
        self.withdrawn: list[tuple[int, int]] = []
        """Ranges, start and end, whose addresses are never to be used again: they stay mapped."""
        # Kept here because module globals may be gone when the last view dies at exit.
        self._munmap: Callable[[int, int], int] = _libc.munmap

    def __del__(self) -> None:
        if self.nbytes:
            start = self.address
            for kept, end in sorted(self.withdrawn):
                if kept > start:
                    self._munmap(start, kept - start)
                start = end
            if start < self.address + self.nbytes:
                self._munmap(start, self.address + self.nbytes - start)

    def memory(self) -> memoryview:
        array = (ctypes.c_ubyte * self.nbytes).from_address(self.address)
        array.mapping = self  # type: ignore[attr-defined]  # the view owns the array, the array us
        return memoryview(array).cast("B")


class MappedBlock(Block):
    """A block over one mapping, which ends when neither the block nor a view is referred to."""

    fd = -1

    def __init__(self, mapping: _Mapping, fd: int, advice: int) -> None:
        self.address = mapping.address
        self.nbytes = mapping.nbytes
        self._withdrawn = mapping.withdrawn
        self._memory = mapping.memory()
        self._closed = False
        self._advice = advice
        self.refuses = True
        """Whether access to withdrawn pages is an error; otherwise it goes to pages nobody looks at."""
        self.fd = fd  # last: until here it is the caller's to close

    def view(self, offset: int = 0, nbytes: int | None = None) -> memoryview:
        """Writable bytes ``[offset, offset + nbytes)``; to the end without ``nbytes``.

        Raises:
            ValueError: the block is closed, or the range is not inside it.
        """
        if nbytes is None:
            nbytes = self.nbytes - offset
        self._check(offset, nbytes)
        return self._memory[offset : offset + nbytes]

    def discard(self, offset: int, nbytes: int) -> None:
        """Give whole pages inside the range back; the rest of the range keeps its bytes."""
        self._check(offset, nbytes)
        start = -(-offset // PAGE) * PAGE
        end = offset + nbytes
        if end < self.nbytes:  # the last page belongs to this block alone
            end = end // PAGE * PAGE
        if end > start and _libc.madvise(self.address + start, end - start, self._advice):
            raise _last_error(f"cannot give back {end - start:,} bytes")

    def withdraw(self, offset: int, nbytes: int) -> None:
        """See :class:`Block`. The process keeps the addresses, and nothing behind them."""
        self._check(offset, nbytes)
        if offset % PAGE or nbytes % PAGE:
            raise ValueError(f"bytes {offset:,} to {offset + nbytes:,} are not whole pages")
        start = self.address + offset
        if self.refuses and _libc.mprotect(start, nbytes, _PROT_NONE):
            raise _last_error(f"cannot withdraw {nbytes:,} bytes")
        self._withdrawn.append((start, start + nbytes))
        _libc.madvise(start, nbytes, self._advice)  # where it fails the pages stay, out of reach

    def divert(self) -> None:
        """Lead this mapping's addresses to private pages that nobody looks at; what was there stays where
        other mappings show it.

        Whoever writes to an address that it was told before, however late, changes nothing any more.
        """
        self._check(0, self.nbytes)
        found = _libc.mmap(
            self.address,
            self.nbytes,
            mmap.PROT_READ | mmap.PROT_WRITE,
            mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED | _MAP_NORESERVE,
            -1,
            0,
        )
        if found != self.address:
            raise _last_error(f"cannot divert {self.nbytes:,} bytes")
        self._withdrawn.append((self.address, self.address + self.nbytes))

    def close(self) -> None:
        """Close the descriptor and give out no more views. Idempotent.

        The mapping is not undone here, for somebody who knows an address may hold on to nothing
        but the block.
        """
        self._closed = True
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            os.close(fd)

    def __del__(self) -> None:
        if self.fd >= 0:
            self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"fd {self.fd}" if self.fd >= 0 else "open"
        return f"<{type(self).__name__} {self.nbytes:,} bytes at {self.address:#x}, {state}>"

    def _check(self, offset: int, nbytes: int) -> None:
        if self._closed:
            raise ValueError("the block is closed")
        if offset < 0 or nbytes < 0 or offset + nbytes > self.nbytes:
            raise ValueError(
                f"bytes {offset:,} to {offset + nbytes:,} are not inside a block of {self.nbytes:,}"
            )


def _check_size(nbytes: int) -> None:
    if nbytes <= 0:
        raise ValueError(f"a block has at least one byte, not {nbytes}")


class MemfdMemory(MemorySource):
    """Shared memory without a name. A peer gets the descriptor and maps it by :func:`map_fd`.

    Neither side can change its size, so no access to a mapping of it can fail.
    """

    def __init__(self, name: str = "omni-async") -> None:
        self._name = name

    def allocate(self, nbytes: int) -> MappedBlock:
        """A new block of zeros; pages come as they are touched.

        Raises:
            MemoryError: the system refused: address space, descriptors or file size.
        """
        _check_size(nbytes)
        fd = -1
        try:
            fd = os.memfd_create(
                f"{self._name}-{next(_serial)}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
            )
            os.ftruncate(fd, nbytes)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
            return MappedBlock(_Mapping(nbytes, mmap.MAP_SHARED, fd), fd, _MADV_REMOVE)
        except (OSError, OverflowError, ctypes.ArgumentError) as error:
            if fd >= 0:
                os.close(fd)
            raise MemoryError(f"no shared memory of {nbytes:,} bytes: {error}") from error


class AnonymousMemory(MemorySource):
    """Private memory of this process.

    Args:
        huge: ask for 2 MiB pages where a block can hold one; first use is then about five
            times faster.
        refuses: what happens to withdrawn pages. An error reaches whoever has the kernel copy; code of
            this process that copies there itself would end the process, and has to be let.
    """

    def __init__(self, *, huge: bool = True, refuses: bool = True) -> None:
        self._huge = huge
        self._refuses = refuses

    def allocate(self, nbytes: int) -> MappedBlock:
        """A new block of zeros; pages come as they are touched.

        Raises:
            MemoryError: the system refused.
        """
        _check_size(nbytes)
        try:
            mapping = _Mapping(nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)
        except (OSError, OverflowError, ctypes.ArgumentError) as error:
            raise MemoryError(f"no memory of {nbytes:,} bytes: {error}") from error
        if self._huge and nbytes >= _HUGE_PAGE:
            # Only a wish: a kernel without huge pages refuses it, and ordinary ones do.
            _libc.madvise(mapping.address, nbytes, _MADV_HUGEPAGE)
        block = MappedBlock(mapping, -1, _MADV_DONTNEED)
        block.refuses = self._refuses
        return block


def map_fd(fd: int, nbytes: int) -> MappedBlock:
    """Map memory that a peer passed along; ``fd`` is owned from here on, whatever happens.

    Args:
        fd: descriptor of the peer's :class:`MemfdMemory` block.
        nbytes: length in bytes the peer told.

    Raises:
        ProtocolError: it is not memory of that length, or its owner could shrink it and so kill
            whoever reads it.
        MemoryError: the system refused the mapping.
    """
    try:
        if nbytes <= 0:
            raise ProtocolError(f"a region has at least one byte, the peer said {nbytes}")
        try:
            size = os.fstat(fd).st_size
            seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        except OSError as error:
            raise ProtocolError(f"the peer's descriptor is no sealed memory: {error}") from error
        if size < nbytes:
            raise ProtocolError(f"the peer's region has {size:,} bytes, it said {nbytes:,}")
        if not seals & fcntl.F_SEAL_SHRINK:
            raise ProtocolError("the peer's region is not sealed against shrinking")
        if seals & (fcntl.F_SEAL_WRITE | getattr(fcntl, "F_SEAL_FUTURE_WRITE", 16)):
            raise ProtocolError("the peer's region is sealed against writing")
        try:
            mapping = _Mapping(nbytes, mmap.MAP_SHARED, fd)
        except OSError as error:
            raise MemoryError(f"cannot map the peer's region: {error}") from error
        return MappedBlock(mapping, -1, _MADV_REMOVE)
    finally:
        if fd >= 0:
            os.close(fd)
