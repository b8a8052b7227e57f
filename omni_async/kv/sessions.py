"""All sessions of one producer, and when each of them is given up.

In: sessions that the core has begun, word that something of one has changed. Out: word to who waits for it.
Never: decides an end but that of a time limit; forgets a session that is not over.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from .given import Session, State
from .remembered import End
from .session import KVSession
from .stillness import Stillness
from .words import Mode, Reason

if TYPE_CHECKING:
    from .producer import KVProducer


class Sessions:
    """Those of one producer."""

    def __init__(self, producer: KVProducer) -> None:
        self._producer = producer
        self._loop = asyncio.get_running_loop()
        self._open: dict[Session, KVSession] = {}
        self.still = Stillness(self._loop, producer.deadlines, self._due, self._late)

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, request_id: str, mode: Mode, consumers: int) -> KVSession:
        """One more.

        Raises:
            UsageError: the request has one.
        """
        core = self._producer.core.open(request_id, mode, consumers)
        session = self._open[core] = KVSession(self._producer, core)
        self.still.moved(core)
        return session

    def moved(self, core: Session) -> None:
        """Another limit holds for it from now on; none where it is over."""
        if core in self._open:
            self.still.moved(core)

    def stir(self, core: Session) -> None:
        """Something of it has changed."""
        session = self._open.get(core)
        if session is None:
            return
        session.stir()
        if core.over:
            del self._open[core]
            self.still.forget(core)
        else:
            self.still.moved(core)

    def stir_all(self) -> None:
        """Something of the producer has."""
        for session in self._open.values():
            session.stir()

    def forget_later(self, ends: Mapping[str, End]) -> None:
        """They are told to consumers which ask within ``defer_timeout``."""
        limit = min(self._producer.defer_timeout, 3600.0)
        for request_id, end in ends.items():
            forget = partial(self._producer.core.forget, request_id, end)
            self._producer.deadlines.add(self._loop.time() + limit, forget)

    def _due(self, core: Session, moved: float) -> float:
        """When it is given up, if nothing moves until then."""
        session = self._open.get(core)
        if core.state >= State.DELIVERED or session is None:
            return math.inf
        if not core.shares:
            return session.since + session.patience
        if not core.audience.complete:
            return moved + self._producer.defer_timeout
        if core.state is State.SEALED:
            return moved + self._producer.transfer_timeout
        return math.inf  # the model computes

    def _late(self, core: Session) -> None:
        asked = len(core.shares)
        landed = sum(len(share.landed) for share in core.shares)
        if core.audience.complete:
            limit = self._producer.transfer_timeout
            text = f"nothing has moved for {limit:g} s, {landed} layers have landed"
        elif asked:
            limit = self._producer.defer_timeout
            text = f"{asked} of {core.audience.expected} consumers have asked for it within {limit:g} s"
        else:
            text = f"0 consumers have asked for it within {self._open[core].patience:g} s"
        self._producer.core.fail(core, Reason.TIMEOUT, text)
        self._producer.flush()
