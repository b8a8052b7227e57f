"""Heartbeat: when to say that we live, and how long the peer has not said so.

In: ticks of one timer. Out: say something now; the peer has been silent for so long.
Never: reads the clock, counts time in which this process itself stood still.
"""

from __future__ import annotations

_LONGEST_PERIOD = 0.5


class Heartbeat:
    """One peer's signs of life, looked at once per tick instead of once per word.

    ``heard`` and ``said`` are set by whoever reads and writes the line. A tick adds at most one
    :attr:`period` to the silence: a loop that was blocked for ten seconds accuses nobody.
    """

    __slots__ = ("_last", "_reported", "_thresholds", "heard", "period", "quiet", "said")

    def __init__(self, silent_after: float, peer_timeout: float) -> None:
        self._thresholds = sorted({silent_after, peer_timeout})
        self.period = min(_LONGEST_PERIOD, self._thresholds[0] / 4)
        """Seconds between two ticks. The peer hears from us every two ticks."""
        self.heard = True
        self.said = True
        self.quiet = 0.0
        """Seconds since the last sign of life, never more than really passed."""
        self._reported = 0
        self._last: float | None = None

    def tick(self, now: float) -> tuple[bool, float | None]:
        """Once per period. Returns: say something; seconds of silence, if they must be told now."""
        gap = self.period if self._last is None else min(now - self._last, self.period)
        self._last = now
        speak = not self.said
        self.said = False
        if self.heard:
            self.heard = False
            self.quiet = 0.0
            self._reported = 0
            return speak, None
        self.quiet += gap
        passed = sum(1 for threshold in self._thresholds if self.quiet >= threshold)
        if passed <= self._reported:
            return speak, None
        self._reported = passed
        return speak, self.quiet
