"""Carries bytes between two processes of one host, for doubles of engines that would do it by hardware.

In: a process, an address there and one here. Out: bytes really moved, by ``process_vm_writev`` and ``process_vm_readv``.
Never: knows what was registered, or whose memory it is.

It cannot show: memory that a device writes behind the kernel's back, or speed.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

PIECE = 256 << 10
"""Bytes moved at a time: what is stuck, or fails, does so between two pieces."""

_PR_SET_PTRACER = 0x59616D61
_ANY = ctypes.c_ulong(-1)

_libc = ctypes.CDLL(None, use_errno=True)
for _call in (_libc.process_vm_readv, _libc.process_vm_writev):
    _call.restype = ctypes.c_ssize_t


class _IoVec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("nbytes", ctypes.c_size_t))


class Piece(NamedTuple):
    """Some bytes here, and their place in another process (or this one)."""

    pid: int
    near: int
    far: int
    nbytes: int


Carry = Callable[[Piece], None]
"""Moves one piece; ``OSError`` where the kernel refuses, or an end of it is not there."""


def allow() -> None:
    """Let other processes of this user reach this one: a kernel with Yama lets only its ancestors do so."""
    _libc.prctl(_PR_SET_PTRACER, _ANY, 0, 0, 0)


def put(piece: Piece) -> None:
    """From here to there."""
    _move(_libc.process_vm_writev, piece)


def get(piece: Piece) -> None:
    """From there to here."""
    _move(_libc.process_vm_readv, piece)


def cut(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """The same in small pieces."""
    for piece in pieces:
        for offset in range(0, piece.nbytes, PIECE):
            nbytes = min(PIECE, piece.nbytes - offset)
            yield Piece(piece.pid, piece.near + offset, piece.far + offset, nbytes)


def _move(call: Callable[..., int], piece: Piece) -> None:
    near, far = _IoVec(piece.near, piece.nbytes), _IoVec(piece.far, piece.nbytes)
    moved = call(piece.pid, ctypes.byref(near), 1, ctypes.byref(far), 1, 0)
    if moved < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"process {piece.pid}: {os.strerror(number)}")
    if moved != piece.nbytes:
        raise OSError(0, f"process {piece.pid}: moved in part")
