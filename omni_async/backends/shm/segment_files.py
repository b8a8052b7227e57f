"""Named shared memory as vLLM-Omni's ``SharedMemoryConnector`` keeps payloads in it.

In: names, memory. Out: segments of exactly a payload's length, each beside a lock file; their bytes.
Never: waits for a lock; reads or replaces what somebody has locked; deletes what was put since it was read.

A payload under the key ``k`` is ``/dev/shm/k``. Whoever writes or reads it has an advisory lock on
``/dev/shm/shm_k_lockfile.lock``, which goes with the segment when that has been read.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import stat
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ...abc import Gone, Piece

FOLDER = "/dev/shm"
NAME_LIMIT = 255 - len("shm__lockfile.lock")
"""Bytes of a key: the longer one of the two names has to be a file's."""
_ATTEMPTS = 16
_AT_ONCE = 1 << 30
"""Bytes that one call to the system moves; it takes no more than two of these."""


class BusySegment(Exception):
    """Somebody else has the lock."""


class FullMemory(Exception):
    """There is no room for it in shared memory."""


class Identity(NamedTuple):
    """Of a segment: what is put under the same name later has another."""

    inode: int
    changed: int
    """When, in nanoseconds: a file system may use the number of a deleted file again."""


class Read(NamedTuple):
    """What there was."""

    nbytes: int
    identity: Identity


def there() -> bool:
    """Whether this host has such memory."""
    return os.path.isdir(FOLDER)


def is_there(name: str) -> bool:
    """Whether there is a segment that could be read."""
    return os.path.exists(_segment(name)) and os.path.exists(_lock_file(name))


def write(name: str, pieces: Sequence[Piece]) -> Identity:
    """Make a segment; what is there under the name is replaced. Blocks for as long as copying takes.

    Returns:
        Its identity.

    Raises:
        BusySegment: somebody reads or writes what is there.
        FullMemory: there is no room.
        OSError: it cannot be made.
    """
    with _locked(name, create=True):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(_segment(name))
        try:
            return _made(_segment(name), pieces)
        except BaseException:
            for path in (_segment(name), _lock_file(name)):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
            raise


def read(name: str, address: int, room: int) -> Read | None:
    """The bytes of a segment at ``address``, if it has no more than ``room``; it stays.

    Returns:
        ``None``: there is none.

    Raises:
        BusySegment: somebody reads or writes it.
        OSError: it cannot be read.
    """
    try:
        with _locked(name), _opened(_segment(name), os.O_RDONLY) as segment:
            known = os.fstat(segment)
            if not stat.S_ISREG(known.st_mode):
                raise OSError(errno.EINVAL, "it is no segment")
            if not known.st_size:
                return None
            if known.st_size <= room:
                at = 0
                for view in _views([Piece(address, known.st_size)]):
                    while view:
                        moved = os.preadv(segment, [view], at)
                        if not moved:
                            return None  # cut short by somebody without manners
                        at += moved
                        view = view[moved:]
            return Read(known.st_size, _identity(known))
    except FileNotFoundError:
        return None


def remove(name: str, identity: Identity | None) -> Gone:
    """Delete a segment, if it is still the one of that identity.

    Raises:
        OSError: it cannot be deleted.
    """
    try:
        with _locked(name):
            there = _identity(os.stat(_segment(name)))
            if identity is not None and there != identity:
                return Gone.ABSENT
            os.unlink(_segment(name))
            os.unlink(_lock_file(name))
    except FileNotFoundError:
        return Gone.ABSENT
    except BusySegment:
        return Gone.BUSY
    return Gone.DELETED


def _made(path: str, pieces: Sequence[Piece]) -> Identity:
    nbytes = sum(piece.nbytes for piece in pieces)
    with _opened(path, os.O_RDWR | os.O_CREAT | os.O_EXCL) as segment:
        try:
            os.posix_fallocate(segment, 0, nbytes)  # else a lack of room would be a signal
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.ENOMEM):
                raise FullMemory(f"{FOLDER} has no room for {nbytes:,} bytes") from error
            raise
        at = 0
        for view in _views(pieces):
            while view:
                moved = os.pwritev(segment, [view], at)
                at += moved
                view = view[moved:]
        return _identity(os.fstat(segment))


def _views(pieces: Sequence[Piece]) -> Iterator[memoryview]:
    for piece in pieces:
        for start in range(0, piece.nbytes, _AT_ONCE):
            nbytes = min(_AT_ONCE, piece.nbytes - start)
            block = (ctypes.c_ubyte * nbytes).from_address(piece.address + start)
            yield memoryview(block).cast("B")


@contextlib.contextmanager
def _opened(path: str, how: int) -> Iterator[int]:
    opened = os.open(path, how | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    try:
        yield opened
    finally:
        os.close(opened)


@contextlib.contextmanager
def _locked(name: str, *, create: bool = False) -> Iterator[None]:
    """Have the lock of a segment.

    Raises:
        BusySegment: somebody else has it.
        FileNotFoundError: there is none.
    """
    path = _lock_file(name)
    for _ in range(_ATTEMPTS):
        with _opened(path, os.O_RDWR | (os.O_CREAT if create else 0)) as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BusySegment(name) from None
            try:
                # Whoever had it may have deleted the file meanwhile: then it locks nothing any more.
                same = os.stat(path).st_ino == os.fstat(lock).st_ino
            except FileNotFoundError:
                same = False
            if same:
                yield
                return
    raise BusySegment(name)


def _identity(known: os.stat_result) -> Identity:
    return Identity(known.st_ino, known.st_ctime_ns)


def _segment(name: str) -> str:
    return f"{FOLDER}/{name}"


def _lock_file(name: str) -> str:
    return f"{FOLDER}/shm_{name}_lockfile.lock"
