"""Turned line: what lines over sockets do alike in each turn of the event loop, however their words travel.

In: the turn's end, who waits for little to be queued. Out: what was queued leaves, who waited is called.
Never: sends the first word of a turn itself; a subclass does, by its shortest way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from ..abc import Channel
from .framing import MAX_MESSAGE

LITTLE = 256 << 10
"""Bytes that are worth no waiting any more."""
WORDS_PER_TURN = 256
"""Words taken before others on the loop get their turn."""


class LineOptions(NamedTuple):
    """Limits of a line; times are seconds."""

    silent_after: float = 2.0
    peer_timeout: float = 30.0
    max_message: int = MAX_MESSAGE
    handshake_timeout: float = 5.0


class TurnedLine(Channel):
    """A channel whose words of one turn leave together, but for the first."""

    __slots__ = ("_in_turn", "_loop", "_mute", "_open", "_when_written")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._open = True
        self._mute = False  # the peer takes no more words
        self._in_turn = False  # something was sent in this turn of the loop
        self._when_written: list[Callable[[], None]] = []

    def when_written(self, call: Callable[[], None]) -> None:
        """See :class:`Channel`."""
        self._when_written.append(call)
        self._tell_written()

    def _tell_written(self) -> None:
        if not self._open or self.queued <= LITTLE:
            for call in self._when_written:
                self._loop.call_soon(call)
            self._when_written.clear()

    def _turn_over(self) -> None:
        self._in_turn = False
        self.flush()
