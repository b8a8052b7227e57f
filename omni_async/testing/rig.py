"""Where a conformance test runs: a fresh loop, transports in one process or two, checks at the end.

In: a backend's description, a way, a kind of loop. Out: a verdict that counts leaks and stray errors.
Never: hides an error that the event loop was told of; imports pytest.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import io
import itertools
import os
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ..cli.free_ports import FreePorts
from ..model import Capabilities, Endpoint, Health, Role, Verb
from ..registry import backend_for
from ..transport import open_transport
from .leaks import LeakError, Trace, freeze_old_objects, no_leaks, nothing, quiet
from .peer import named, new_loop, register
from .processes import PeerProcess
from .sides import LocalSide, RemoteSide, Side

_serial = itertools.count(1)
_set_up_here: set[str] = set()
"""What was opened in this process."""

HOST = "127.0.0.1"
"""Where senders listen whose receivers are told so."""

CLOSING = 15.0
"""Seconds that closing everything may take."""


class Way(enum.Enum):
    """Where the two ends live."""

    ONE_LOOP = "one loop"
    SENDER_AWAY = "sender in another process"
    RECEIVER_AWAY = "receiver in another process"


POOL = 1 << 20


class Narrow(NamedTuple):
    """How a backend is given so little room that its puts have to wait."""

    nbytes: int = POOL
    """How much is kept at most."""
    extra: Mapping[str, Mapping[str, Any]] = {
        "sender": {"memory_pool_size": POOL},
        "receiver": {"memory_pool_size": POOL},
    }
    """Options by role."""


class Crew:
    """The peer processes of a test run, one for each kind of loop, started when first needed."""

    def __init__(self) -> None:
        self._peers: dict[str, PeerProcess] = {}

    def peer(self, kind: str) -> PeerProcess:
        """A living process whose transports run on that kind of loop."""
        peer = self._peers.get(kind)
        if peer is None or not peer.alive:
            if peer is not None:
                peer.close()
            peer = self._peers[kind] = PeerProcess(kind)
        return peer

    def close(self) -> None:
        for peer in self._peers.values():
            peer.close()
        self._peers.clear()


class Rig:
    """What a conformance test is given."""

    def __init__(
        self,
        connector: str,
        extra: Mapping[Role, Mapping[str, Any]],
        *,
        way: Way,
        loop: str,
        crew: Crew,
        target: str = "",
        folders: tuple[Path, ...] = (),
        kept: str = "",
        narrow: Narrow | None = None,
    ) -> None:
        """Args:
        target: a backend class that is not shipped, as ``"package.module:Class"``.
        kept: likewise a :data:`~omni_async.testing.leaks.Kept`.
        narrow: how this backend is given little room.
        """
        self.connector = connector
        self.way = way
        self.loop_kind = loop
        self.target = target
        self.namespace = f"rig-{os.getpid()}-{next(_serial)}"
        self._extra = extra
        self._crew = crew
        self._ports = FreePorts()
        if target:
            register(target)
        backend = backend_for(connector)
        self.addressed = backend.options.addressed
        """Whether a receiver is told host and port of its sender."""
        self.facts: Capabilities = backend.capabilities(
            backend.options.model_validate(dict(extra.get("sender", {})))
        )
        self.stored = self.facts.verb is Verb.STORE
        """The two ends meet at a store: neither hears of the other."""
        self._narrow = narrow or Narrow()
        self._folders = folders
        self._kept = kept
        self._peer = crew.peer(loop) if way is not Way.ONE_LOOP else None
        self._sides: list[tuple[Side, Role]] = []
        self._stray: list[str] = []

    # --- for tests --------------------------------------------------------------------------------

    async def sender(self, stage: str = "0", **options: Any) -> Side:
        """Open a sender where this way has it. Options of ``open_transport``; the rest is ``extra``."""
        return await self._open("sender", stage, self.way is Way.SENDER_AWAY, options)

    async def receiver(self, stage: str = "1", **options: Any) -> Side:
        """Open a receiver where this way has it.

        Where receivers are told addresses, it is told that of stage ``"0"``, or of ``sender=``, with its
        own rank and replica; other senders are reached by :meth:`at`.
        """
        return await self._open("receiver", stage, self.way is Way.RECEIVER_AWAY, options)

    async def away(self, role: Role, stage: str, **options: Any) -> Side:
        """Open a transport in the other process, whichever end lives there otherwise."""
        return await self._open(role, stage, True, options)

    async def pair(self, **options: Any) -> tuple[Side, Side]:
        """A sender of stage 0 and a receiver of stage 1."""
        return await self.sender(**options), await self.receiver(**options)

    @property
    def room(self) -> int:
        """Bytes that are kept unread at most, between the ends of :meth:`narrow_pair`."""
        return self._narrow.nbytes

    async def narrow_sender(self, **options: Any) -> Side:
        """A sender of stage 0 whose puts have to wait once :attr:`room` is full."""
        return await self.sender(**{**self._narrow.extra.get("sender", {}), **options})

    async def narrow_pair(self, **options: Any) -> tuple[Side, Side]:
        """The same with a receiver of stage 1."""
        return await self.narrow_sender(**options), await self.narrow_receiver(**options)

    async def narrow_receiver(self, **options: Any) -> Side:
        return await self.receiver(**{**self._narrow.extra.get("receiver", {}), **options})

    def opening(self, role: Role, stage: str, **options: Any) -> Any:
        """``open_transport`` here, for tests of the context manager itself."""
        own, extra = self._options(role, stage, options)
        spec = {"name": self.connector, "extra": extra}
        return open_transport(spec, role=role, stage=stage, **own)

    def at(self, stage: str, rank: int = 0, replica: int = 0) -> dict[str, Any] | None:
        """Metadata that lead to that sender; ``None`` where senders are found by name or by key."""
        if not self.addressed:
            return None
        return {"source_host": HOST, "source_port": self.port(stage, rank, replica)}

    def port(self, stage: str, rank: int = 0, replica: int = 0) -> int:
        """Where that sender listens, also before it is there and after it has gone."""
        return self._ports.of(Endpoint(self.namespace, stage, rank, replica))

    def move(self, stage: str, rank: int = 0, replica: int = 0) -> int:
        """Let the next sender of that name listen at another port; returns it."""
        return self._ports.anew(Endpoint(self.namespace, stage, rank, replica))

    @property
    def peer(self) -> PeerProcess:
        """The other process, in ways that have one."""
        assert self._peer is not None
        return self._peer

    async def quiet(self, *sides: Side, **gauges: Any) -> None:
        """Wait until nothing moves and nothing is held at these sides; all open ones by default."""
        for side in sides or [side for side, _ in self._sides]:
            await settle(side, **gauges)

    # --- for the runner ---------------------------------------------------------------------------

    def run(self, test: Coroutine[Any, Any, None], limit: float) -> None:
        """Run a test to its verdict in at most ``limit`` seconds."""
        freeze_old_objects()
        loop = new_loop(self.loop_kind)
        loop.set_exception_handler(self._remember)
        try:
            asyncio.set_event_loop(loop)
            loop.run_until_complete(self._watched(test, limit))
        finally:
            _end_tasks(loop)
            loop.run_until_complete(loop.shutdown_asyncgens())
            asyncio.set_event_loop(None)
            loop.close()
        assert not self._stray, "the event loop was told of: " + "; ".join(self._stray)

    async def _watched(self, test: Coroutine[Any, Any, None], limit: float) -> None:
        with contextlib.ExitStack() as stack:
            if self._peer is not None:
                stack.enter_context(self._peer.attached())
            await self._set_up()
            if self._peer is not None:
                await self._peer.call("watch")
            kept = named(self._kept) if self._kept else nothing
            async with no_leaks(folders=self._folders, mark=self.namespace, kept=kept):
                with self._ports:
                    try:
                        await _limited(test, limit)
                    except BaseException:
                        await asyncio.wait_for(self._close(checked=False), CLOSING)
                        raise
                    await asyncio.wait_for(self._close(checked=True), CLOSING)
            if self._peer is not None and self._peer.alive:
                leaks = await self._peer.call("leaks", grace=2.0, kept=self._kept)
                assert not leaks, f"left behind in the other process: {'; '.join(leaks)}"

    async def _set_up(self) -> None:
        """What a library keeps for the life of a process is there before anything is watched."""
        if self.stored and self._kept:
            for extras in (self._extra, self._narrow.extra):
                for role in ("sender", "receiver"):
                    await self._set_up_with(role, extras.get(role, {}))
        elif self.addressed:
            await self._set_up_with("sender", {})

    async def _set_up_with(self, role: Role, extra: Mapping[str, Any]) -> None:
        """The same with these options, once in each process."""
        known = f"{self.connector} {role} {sorted(extra.items())}"
        with self._ports:
            if known not in _set_up_here:
                _set_up_here.add(known)
                async with self.opening(role, "0", **extra):
                    pass
            if self._peer is not None and known not in self._peer.set_up:
                self._peer.set_up.add(known)
                await self.away(role, "0", **extra)
                await self._close(checked=False)

    async def _open(self, role: Role, stage: str, away: bool, options: dict[str, Any]) -> Side:
        own, extra = self._options(role, stage, options)
        side: Side
        if away:
            name = f"{role}-{stage}-{next(_serial)}"
            side = await self.peer.open(
                name,
                self.connector,
                extra=extra,
                target=self.target,
                role=role,
                stage=stage,
                **own,
            )
        else:
            spec = {"name": self.connector, "extra": extra}
            opening = open_transport(spec, role=role, stage=stage, **own)
            side = LocalSide(await opening.__aenter__())
        self._sides.append((side, role))
        return side

    def _options(
        self, role: Role, stage: str, options: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The options of ``open_transport``, and ``extra``."""
        own = {name: options.pop(name) for name in list(options) if name in _OWN}
        own.setdefault("namespace", self.namespace)
        own.setdefault("linger", 0.0)
        sender = options.pop("sender", "0") if role == "receiver" else str(stage)
        where: dict[str, Any] = {}
        if self.addressed:
            name = Endpoint(own["namespace"], sender, own.get("rank", 0), own.get("replica", 0))
            port = self._ports.of(name)
            where = {"host": HOST, "zmq_port": port}
            if role == "receiver":
                where = {"host": HOST, "sender_host": HOST, "sender_zmq_port": port}
        return own, {**where, **self._extra.get(role, {}), **options}

    async def _close(self, *, checked: bool) -> None:
        """Drop what is kept, see that nothing moves, and close: receivers first."""
        sides = [(side, role) for side, role in self._sides if not self._lost(side)]
        self._sides = []
        try:
            for side, _ in sides:
                await side.keep_nothing()
            for side, _ in sides:
                if checked and (await side.health()).status != "closed":
                    await settle(side, pool_used=None)  # what nobody has fetched may be left
            for side, role in sides if self.stored else ():
                if role == "sender":  # there it would stay beyond its sender
                    await side.sweep()
                    if (await side.health()).status != "closed":
                        await side.drain(2.0)  # what was just being read goes a moment later
        finally:
            for turn in ("receiver", "sender"):
                for side, role in sides:
                    if role == turn:
                        await side.close()
            for side, _ in sides:
                if isinstance(side, RemoteSide):
                    await self.peer.call("drop", name=side.name)

    def _lost(self, side: Side) -> bool:
        return isinstance(side, RemoteSide) and not self.peer.alive

    def _remember(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self._stray.append(f"{context.get('message')} ({error!r})")


_OWN = frozenset({"namespace", "rank", "replica", "linger"})
"""Options of ``open_transport``; all others belong into ``extra``."""


async def settle(side: Side, **gauges: Any) -> Health:
    """:func:`omni_async.testing.leaks.quiet` for a side in either process.

    The sender to a store is told of no delivery. So where nothing is to be held it asks for what it has put.
    """
    loop = asyncio.get_running_loop()
    within = gauges.pop("within", 2.0)
    deadline = loop.time() + within
    facts = await side.capabilities()
    if facts.verb is Verb.STORE and gauges.get("pool_used", 0) == 0:
        health = await side.health()
        if health.status == "healthy" and (left := await side.drain(within)):
            trace = Trace("payload", "payloads", f"{left} that nobody has fetched")
            raise LeakError(f"{facts.backend} keeps {trace.name}", [trace])
    if isinstance(side, LocalSide):
        return await quiet(side.transport, within=within, **gauges)
    while True:
        snapshot = await side.health()
        try:
            return await quiet(_Snapshot(snapshot), within=0.0, **gauges)
        except LeakError:
            if loop.time() > deadline:
                raise
        await asyncio.sleep(0.01)


class _Snapshot:
    def __init__(self, health: Health) -> None:
        self._health = health

    def health(self) -> Health:
        return self._health


async def _limited(test: Coroutine[Any, Any, None], limit: float) -> None:
    task = asyncio.ensure_future(test)
    done, _ = await asyncio.wait({task}, timeout=limit)
    if not done:
        stack = io.StringIO()
        task.print_stack(file=stack)
        task.cancel()
        await asyncio.wait({task}, timeout=2)
        raise AssertionError(
            f"the test did not end within {limit:g} s; it was at\n{stack.getvalue()}"
        )
    task.result()


def _end_tasks(loop: asyncio.AbstractEventLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks, timeout=2))


LoopKind = Literal["asyncio", "uvloop"]
