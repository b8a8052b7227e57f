"""LoopBound: what belongs to one event loop is used there only.

In: calls from anywhere. Out: nothing, or ``UsageError``.
Never: costs as much as a microsecond.
"""

from __future__ import annotations

import asyncio
from threading import get_ident

from ..errors import UsageError
from .fork import generation


class LoopBound:
    """Remembers the running loop; :meth:`check` accepts calls from that loop alone.

    Args:
        name: what is bound, for the error.

    Raises:
        UsageError: no event loop is running.
    """

    __slots__ = ("_generation", "_loop", "_name", "_thread")

    def __init__(self, name: str) -> None:
        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError:
            raise UsageError(f"{name} must be made inside a running event loop") from None
        self._name = name
        self._thread = get_ident()
        self._generation = generation()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop it belongs to."""
        return self._loop

    def check(self) -> None:
        """Raises: UsageError: called outside of the loop it belongs to, or in a forked child."""
        # Asking for the running loop asks the kernel for the process id; this comes to the same.
        if (
            get_ident() != self._thread
            or not self._loop.is_running()
            or self._generation != generation()
        ):
            raise self._wrong()

    def _wrong(self) -> UsageError:
        if self._generation != generation():
            how = "in a forked child of the process that opened it"
        elif get_ident() != self._thread:
            how = "from another thread"
        else:
            how = "while that loop does not run"
        return UsageError(
            f"{self._name} belongs to the event loop that opened it and was used {how}"
        )
