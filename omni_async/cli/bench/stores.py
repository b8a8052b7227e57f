"""``bench mooncake-store``, ``bench yuanrong``: this library and the peer's connector over servers started here.

In: a contest, parts, sizes, rounds, the peer's wheel. Out: one-way times, gaps of the loop, the cost of waiting; goals.
Never: measures, leaves a server running.

Each pair of processes has a master of Mooncake's store for itself: a common one would place the peer's objects in the
segment of another pair's producer as often as in its own's. Yuanrong's worker is one for all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from ...model import Role
from ..on_this_host import check_here
from ..servers import Server
from ..servers.mooncake import MooncakeMaster
from ..servers.yuanrong import YuanrongWorker
from . import compare, ticker, waiting
from .contest import MOONCAKE_STORE, Contest, Side
from .payload import SIZES

ONE_WAY, LOOP, WAITING = PARTS = ("one-way", "loop", "waiting")
SEGMENT = 1 << 30
"""Bytes that a producer lends: more than any two payloads."""
SHARED = 2 << 30
"""Bytes that Yuanrong's worker keeps, in pieces that a large payload has to fit into."""
THEIRS = 512 << 20
"""The peer's buffer, through which its largest payload has to fit."""
WAITERS = 10_000
SECONDS = 3.0
ROUNDS = 4


class Servers:
    """Those of one run. Use as a context manager."""

    def __init__(self, contest: Contest) -> None:
        self._contest = contest
        self._stack = ExitStack()
        self._of: dict[object, Server] = {}

    def of(self, pair: object) -> Server:
        """The one that a pair of processes meets at."""
        if self._contest is not MOONCAKE_STORE:
            pair = None
        if pair not in self._of:
            self._of[pair] = self._stack.enter_context(_server(self._contest))
        return self._of[pair]

    def where(self, side: Side) -> Mapping[Role, Mapping[str, Any]]:
        """What the two processes of a side are told."""
        server = self.of(side.pair)
        theirs = {"localbuf": THEIRS} if side.program == "sides.peer" else {}
        roles: tuple[Role, ...] = ("sender", "receiver")
        return {role: {**server.extra(role), **theirs} for role in roles}

    def __enter__(self) -> Servers:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def _server(contest: Contest) -> Server:
    if contest is MOONCAKE_STORE:
        return MooncakeMaster(segment=SEGMENT)
    return YuanrongWorker(memory=SHARED)


def run(
    contest: Contest,
    sizes: Sequence[int],
    parts: Sequence[str] = PARTS,
    *,
    rounds: int = 5,
    scale: float = 1.0,
    peer: str | None = None,
    pin: bool = False,
    loops: Sequence[str] = ("asyncio", "uvloop"),
) -> dict[str, Any]:
    """Measure; see :func:`report`.

    Raises:
        BackendUnavailable: the connector or its server cannot run here.
        PeerUnavailable: ``peer`` was given and is no usable wheel.
        WorkerFailed: a process ended, hung, or found wrong bytes.
    """
    asyncio.run(check_here(contest.connector))
    found: dict[str, Any] = {
        "benchmark": contest.benchmark,
        "connector": contest.connector,
        "peer": None,
    }
    if ONE_WAY in parts:
        with Servers(contest) as servers:
            found |= compare.run(
                contest,
                sizes,
                rounds=rounds,
                scale=scale,
                peer=peer,
                pin=pin,
                loops=loops,
                where=servers.where,
            )
    found["goals"] = list(found.get("goals", ()))
    for part, measure in ((LOOP, _loop), (WAITING, _waiting)):
        found[part] = None
        if part in parts:
            with Servers(contest) as servers:
                found[part] = measure(contest, servers, scale, loops)
            found["goals"] += found[part]["goals"]
    return found


def _loop(contest: Contest, servers: Servers, scale: float, loops: Sequence[str]) -> dict[str, Any]:
    return ticker.run(
        nbytes=SIZES["186M"] if scale >= 1 else SIZES["1M"],
        seconds=SECONDS * min(1.0, scale),
        rounds=ROUNDS if scale >= 1 else 1,
        loops=tuple(loops),
        connector=contest.connector,
        extra=servers.of(None).extra,
        in_flight=1,
        waiting=max(10, round(WAITERS * min(1.0, scale))),
    )


def _waiting(
    contest: Contest, servers: Servers, scale: float, loops: Sequence[str]
) -> dict[str, Any]:
    return waiting.run(
        contest.connector,
        servers.of(None).extra,
        count=max(10, round(WAITERS * min(1.0, scale))),
        seconds=10 * min(1.0, scale),
        deliveries=max(3, round(200 * min(1.0, scale))),
        loop=loops[0],
    )


def report(result: dict[str, Any]) -> str:
    """The result for people."""
    parts = [compare.report(result)] if "rows" in result else []
    for part, module in ((LOOP, ticker), (WAITING, waiting)):
        if result[part]:
            parts += [module.first_line(result[part]), module.report(result[part])]
    return "\n\n".join(parts)


def first_line(result: dict[str, Any]) -> str:
    """Who is compared, where anybody is."""
    if "rows" in result:
        return compare.first_line(result)
    return f"omni_async over {result['connector']}, servers of this run"
