"""Registration: an instance is known to a proxy as long as it beats.

In: what the instance says of itself, where the proxy is. Out: beats, and whether they are taken.
Never: waits for the proxy, which never answers; gives up.

A proxy forgets who has not beaten for some seconds, and there is nothing else by which an instance could leave it.
"""

from __future__ import annotations

import asyncio

from ..._aio.deadline import seconds
from ...errors import ClosedError, TransferTimeout, UsageError
from ...observe.log import get_logger
from ...rendezvous.zmq_address import HostPort
from ...rendezvous.zmq_beats import Beats
from .registered import Registered

INTERVAL = 1.0
"""Seconds between two beats."""
FORGOTTEN = 5.1
"""Seconds after the last beat from which on vllm-router sends nothing any more."""

_log = get_logger("omni_async.kv")


class Registration:
    """Beats from when it is made until :meth:`aclose`, in a thread of its own.

    Args:
        record: what is said.
        proxy_ip: the proxy's host. vllm-router listens on IPv4 only.
        proxy_ping_port: where it takes beats.
    """

    def __init__(
        self, record: Registered, proxy_ip: str, proxy_ping_port: int, interval: float = INTERVAL
    ) -> None:
        if not 0 < interval < FORGOTTEN - 1:
            raise UsageError(f"a proxy forgets an instance that beats every {interval!r} s")
        self.record = record
        self._where = HostPort(proxy_ip, proxy_ping_port)
        self._change: asyncio.Future[None] | None = None
        self._known = False
        self._closed = False
        self._beats = Beats(self._where, record.packed(), interval, self._changed)

    @property
    def reached(self) -> bool:
        """Whether the proxy takes beats now. What it makes of them it does not tell."""
        return self._beats.taken

    @property
    def beats(self) -> int:
        """How many were sent."""
        return self._beats.sent

    async def wait(self, timeout: float | None = None) -> None:
        """Until a proxy takes beats.

        Raises:
            TransferTimeout: none did; beats go on.
            ClosedError: there are no more beats.

        Cancellation: safe.
        """
        limit = seconds(timeout)
        try:
            await asyncio.wait_for(self._until_reached(), limit)
        except (asyncio.TimeoutError, TimeoutError):
            raise TransferTimeout(
                f"no proxy takes beats at {self._where} within {limit} s; they go on",
                phase="registration",
                timeout=limit,
                peer=str(self._where),
            ) from None

    async def _until_reached(self) -> None:
        while not self.reached:
            if self._closed:
                raise ClosedError(f"no more beats are sent to {self._where}")
            if self._change is None or self._change.done():
                self._change = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._change)

    def _changed(self, taken: bool) -> None:
        if taken:
            _log.info(
                "proxy reached", proxy=str(self._where), role=self.record.type, again=self._known
            )
        else:
            _log.warning("no proxy there, trying on", proxy=str(self._where), role=self.record.type)
        self._known = self._known or taken
        self._told()

    def _told(self) -> None:
        if self._change is not None and not self._change.done():
            self._change.set_result(None)

    async def aclose(self) -> None:
        """Beat no more. Requests may come for :data:`FORGOTTEN` seconds from now on. Idempotent.

        Cancellation: safe; beats are over.
        """
        self._closed = True
        await self._beats.aclose()
        self._told()
