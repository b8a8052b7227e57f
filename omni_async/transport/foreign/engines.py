"""Engines of receivers of another wire: met when they first ask, forgotten when they have not asked for long.

In: sessions ``host:port``, addresses that a receiver told. Out: writes by our engine, in turn for each of them.
Never: believes that an address is what it was told to be: what the peer has not registered, its engine refuses.
"""

from __future__ import annotations

import asyncio
import itertools

from ...abc import RemoteRegion
from ...model import Move, Region
from ..filling import Filling
from ..moving import Ended, PeerMoves
from ..wiring import Wiring

IDLE_SECONDS = 60.0
"""How long an engine is remembered whose receiver asks for nothing."""


class ForeignEngine:
    """One receiver's engine.

    Raises:
        ProtocolError: no engine can be called so.
    """

    def __init__(self, wiring: Wiring, session: str) -> None:
        self._wiring = wiring
        self.session = session
        self._regions: dict[int, RemoteRegion] = {}
        self._numbers = itertools.count(1)
        self.used = wiring.loop.time()
        wiring.engine.meet(session, session.encode())
        self._writes = PeerMoves(wiring.engine.write, session, self._regions, self._idle)

    @property
    def busy(self) -> bool:
        return bool(self._regions)

    def _idle(self) -> None:
        self.used = self._wiring.loop.time()

    def attach(self, address: int, nbytes: int) -> int:
        """A range of the receiver's memory as a region, until :meth:`detach`.

        Raises:
            ProtocolError: there can be no such range.
        """
        number = next(self._numbers)
        region = Region(number, address, nbytes, b"", -1)
        self._regions[number] = self._wiring.engine.attach(self.session, region)
        return number

    def detach(self, region: int) -> None:
        """Nothing is written there any more."""
        self._wiring.engine.detach(self._regions.pop(region))

    def write(self, move: Move, filling: Filling | None, ended: Ended) -> None:
        """Write in turn; ``ended`` is called when no byte of it can be under way any more."""
        self._writes.add([move], filling, ended)


class ForeignEngines:
    """All of one sender, by their sessions."""

    def __init__(self, wiring: Wiring) -> None:
        self._wiring = wiring
        self._known: dict[str, ForeignEngine] = {}
        self._timer: asyncio.TimerHandle | None = None

    def of(self, session: str) -> ForeignEngine:
        """Raises: ProtocolError: no engine can be called so."""
        known = self._known.get(session)
        if known is None:
            known = self._known[session] = ForeignEngine(self._wiring, session)
            if self._timer is None:
                self._timer = self._wiring.loop.call_later(IDLE_SECONDS, self._sweep)
        return known

    def _sweep(self) -> None:
        old = self._wiring.loop.time() - IDLE_SECONDS
        for session, engine in list(self._known.items()):
            if not engine.busy and engine.used <= old:
                del self._known[session]
                self._wiring.engine.part(session)
        self._timer = None
        if self._known:
            self._timer = self._wiring.loop.call_later(IDLE_SECONDS, self._sweep)

    def close(self) -> None:
        """Forget all. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
        for session in self._known:
            self._wiring.engine.part(session)
        self._known.clear()
