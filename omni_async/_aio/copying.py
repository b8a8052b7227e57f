"""Copying: bytes from one address to another, without stopping the event loop.

In: addresses and lengths the caller vouches for. Out: the bytes in place.
Never: holds the GIL while it copies much, frees anything, copies between overlapping ranges in pieces.
"""

from __future__ import annotations

import asyncio
import ctypes
from collections import deque
from collections.abc import Callable, Sequence

from .executor import OwnedExecutor
from .finish import finish_all

INLINE_COPY = 1 << 20
"""Bytes up to which a copy on the event loop costs less than handing it to a thread."""

PIECE = 64 << 20
"""Bytes that a thread copies before others get their turn. Not less: between two pieces a thread takes the
GIL, and if it then loses its processor, the event loop waits for both."""

_HELD = 64 << 10

_PARAMETERS = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
# CDLL lets go of the GIL around a call, PyDLL does not: for a few KiB letting go costs more.
_released = ctypes.CDLL(None).memmove
_released.argtypes = _PARAMETERS
_released.restype = None
_held = ctypes.PyDLL(None).memmove
_held.argtypes = _PARAMETERS
_held.restype = None

Piece = tuple[int, int, int]
"""Destination address, source address, bytes."""


def copy(destination: int, source: int, nbytes: int) -> None:
    """Copy ``nbytes`` bytes; above 64 KiB other threads run meanwhile.

    Both ranges must stay mapped until this returns.
    """
    if nbytes > _HELD:
        _released(destination, source, nbytes)
    else:
        _held(destination, source, nbytes)


async def copy_large(executor: OwnedExecutor, pieces: Sequence[Piece]) -> None:
    """Copy ranges that do not overlap: at once when they are small together, else in threads.

    Args:
        executor: its threads share the work; other copies get their turn between pieces.
        pieces: destination, source and length of each range. All stay mapped until this returns.

    Raises:
        ClosedError: the executor is closed.

    Cancellation: ends after the pieces under way have been copied; the rest is left out.
    """
    total = sum(nbytes for _, _, nbytes in pieces)
    if total <= INLINE_COPY:
        for destination, source, nbytes in pieces:
            copy(destination, source, nbytes)
        return
    rest = _split(pieces, _size(total, executor.limit))

    def step() -> bool:
        try:
            piece = rest.popleft()
        except IndexError:
            return False
        _released(*piece)
        return bool(rest)

    workers = min(executor.limit, len(rest))
    futures = [executor.run_steps(step) for _ in range(workers)]
    await finish_all(futures, rest.clear)
    for future in futures:
        future.result()


async def copy_in_order(
    executor: OwnedExecutor, pieces: Sequence[Piece], step: int, reached: Callable[[int], None]
) -> None:
    """Copy ranges in threads from the first to the last, and tell how far everything is there.

    Args:
        pieces: as for :func:`copy_large`, destinations ascending.
        step: bytes after which it is told.
        reached: called on the event loop with the address up to which all ranges have been copied.

    Raises:
        ClosedError: the executor is closed.

    Cancellation: ends after everything has been copied: whoever was told of a beginning may count on
    the rest.
    """
    loop = asyncio.get_running_loop()
    rest = _split(pieces, step)
    ends = [destination + nbytes for destination, _, nbytes in rest]
    copied = [False] * len(ends)
    told = 0

    def tell(number: int) -> None:
        nonlocal told
        copied[number] = True
        if number == told:
            while told < len(copied) and copied[told]:
                told += 1
            reached(ends[told - 1])

    numbers = iter(range(len(ends)))

    def work() -> bool:
        number = next(numbers, None)
        if number is None:
            return False
        _released(*rest[number])
        loop.call_soon_threadsafe(tell, number)
        return number + 1 < len(ends)

    workers = min(executor.limit, len(ends))
    futures = [executor.run_steps(work) for _ in range(workers)]
    await finish_all(futures)
    for future in futures:
        future.result()


def _size(total: int, threads: int) -> int:
    """Bytes of one piece: all threads have work, none comes back for less than is worth it."""
    return max(INLINE_COPY, min(PIECE, -(-total // threads)))


def _split(pieces: Sequence[Piece], size: int) -> deque[Piece]:
    out: deque[Piece] = deque()
    for destination, source, nbytes in pieces:
        for start in range(0, nbytes, size):
            out.append((destination + start, source + start, min(size, nbytes - start)))
    return out
