"""How a process that has clients of the store ends.

In: clients. Out: nothing.
Never: ends a client.

Left to itself the vendor ends its clients when the process exits: one or two seconds for each, twelve where
the master is stopped. Instead the master is told that the segments are gone, which takes a millisecond, and the
process exits without the vendor's handler, with the same status. Handlers that were registered before the first
client go the same way; Python's own, and those of libraries that were loaded later, run as ever.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
from typing import Any

from ..._aio.fork import generation
from .contact import master_trouble

_MOMENT = 0.2


def leave(native: Any, segments: list[str], master: str) -> None:
    """Let this client live until the process has gone, and give its segments back then."""
    # Whatever holds it here, the interpreter's end would destroy it.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(native))
    _skip_handlers()
    if segments:
        atexit.register(_give_back, generation(), native, segments, master)


def _give_back(made: int, native: Any, segments: list[str], master: str) -> None:
    if made == generation() and master_trouble(master, _MOMENT) is None:
        native.unmount_and_free_segment(segments, 0)


@functools.cache
def _skip_handlers() -> None:
    """The last handler that is registered runs first; so the buffers of C's files are written before ``_exit``."""
    libc = ctypes.CDLL(None)
    libc.on_exit(libc._exit, None)
    libc.__cxa_atexit(libc.fflush, None, None)
