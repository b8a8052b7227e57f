"""A day of serving over pools of 1 GiB: mixed sizes, aborts, restarts.

In: seconds for the day. Out: no wrong byte, no leak, free memory in one piece; figures on stdout.
Never: lets a request's failure pass that nobody has caused.

One process of this test keeps its two transports all day, a sender and a receiver; the processes of their peers
are killed and started anew every two hours.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from omni_async.errors import OmniAsyncError, PeerLost, TransferCancelled
from omni_async.model import Role
from omni_async.testing.chunks import reader, writer
from omni_async.testing.leaks import freeze_old_objects, quiet
from omni_async.testing.orders import PeerGone
from omni_async.testing.processes import PeerProcess
from omni_async.testing.recipes import pattern
from omni_async.testing.sides import LocalSide, Side
from tests.ends import HOST, Ends, ends
from tests.soak.day import Books, Day, Request, Tally, resident

POOL = 1 << 30
TTL = 8.0
"""Seconds after which a forgotten payload expires: twenty minutes of the day."""
AT_ONCE = 64
"""Requests of a lane under way."""
GROWTH = 64 << 20
"""Private bytes beyond the pools' own that the day may leave; what allocators keep for themselves."""
ONE_PIECE = 0.25
"""Of a pool's free memory, at any time."""


@pytest.mark.parametrize(
    ("seconds", "restarts"),
    [
        pytest.param(8.0, 2, id="short"),
        pytest.param(600.0, 12, id="long", marks=[pytest.mark.soak, pytest.mark.timeout(1200)]),
    ],
)
async def test_a_day_of_serving(namespace: str, seconds: float, restarts: int) -> None:
    freeze_old_objects()
    with ends(
        "mooncake", namespace, memory_pool_size=POOL, buffer_ttl_seconds=TTL, peer_timeout=5.0
    ) as here:
        async with here.open("sender", "0") as tx, here.open("receiver", "3", sender="2") as rx:
            lanes = [
                Lane(here, "sent", LocalSide(tx), ("0", "1")),
                Lane(here, "received", LocalSide(rx), ("2", "3")),
            ]
            try:
                for lane in lanes:
                    await lane.start()
                warm = await _live(lanes, seconds, restarts)
                for lane in lanes:
                    await lane.end()
                    await quiet(lane.near.transport, within=3 * TTL)
                grown = _beyond_pools(lanes) - warm
            finally:
                for lane in lanes:
                    lane.close()
    print()  # noqa: T201
    for lane in lanes:
        print(f"{lane.name}: {lane.tally}\n  {lane.books}")  # noqa: T201
    print(f"grown {grown:,} bytes since a third of the day, without the pools")  # noqa: T201
    for lane in lanes:
        assert not lane.wrong, lane.wrong[:3]
        assert lane.tally["served"] > 0
        assert lane.books.worst > ONE_PIECE
    assert grown < GROWTH


def _beyond_pools(lanes: list[Lane]) -> int:
    """Private bytes of this process that are no pool's."""
    for lane in lanes:
        lane.books.pool.trim()
    return resident() - sum(lane.books.pool.used for lane in lanes)


async def _live(lanes: list[Lane], seconds: float, restarts: int) -> int:
    """All of a day; what this process had in memory beyond its pools at a third of it."""
    days = [
        asyncio.create_task(lane.live(Day(seconds, number))) for number, lane in enumerate(lanes)
    ]
    clock, done, warm = Day(seconds, 0), 0, 0
    while not all(day.done() for day in days):
        await asyncio.sleep(seconds / 240)
        for lane in lanes:
            lane.books.look()
        if not warm and clock.hour > 8:
            warm = _beyond_pools(lanes)
        if done < restarts and clock.hour > (done + 1) * 24 / (restarts + 1):
            await lanes[done % 2].restart()
            done += 1
    await asyncio.gather(*days)
    return warm


class Lane:
    """Requests from a sender to a receiver, one of them here and one in a process that dies now and then."""

    def __init__(self, here: Ends, name: str, near: LocalSide, edge: tuple[str, str]) -> None:
        self.name = name
        self.near = near
        self.books = Books(name, near.transport._wiring.pool)  # type: ignore[attr-defined]
        self.tally = Tally()
        self.wrong: list[str] = []
        self._here = here
        self._edge = edge
        self._requests: set[asyncio.Task[None]] = set()
        self._room = asyncio.Semaphore(AT_ONCE)
        self._stack = contextlib.ExitStack()
        self._peer: PeerProcess | None = None
        self._far: Side = near
        self._generation = 0
        """Of the process at the other end."""

    # --- the process at the other end -----------------------------------------------------------

    async def start(self) -> None:
        """The other end, in a new process."""
        self._peer = PeerProcess()
        self._stack.callback(self._peer.close)
        self._stack.enter_context(self._peer.attached())
        role: Role = "receiver" if self.near.transport.role == "sender" else "sender"
        stage = self._edge[1] if role == "receiver" else self._edge[0]
        far = await self._here.away(self._peer, role, stage, sender=self._edge[0])
        tx, rx = (self.near, far) if role == "receiver" else (far, self.near)
        key = f"warm-{self._generation}"  # it imports what makes payloads, which takes seconds
        await tx.put(key, pattern(10), edge=self._edge)
        assert (await rx.get(key, pattern(10), edge=self._edge)).wrong is None
        self._far = far

    async def restart(self) -> None:
        """It is killed, and comes back: a sender at another port."""
        assert self._peer is not None
        self._generation += 1
        self._peer.kill()
        await self._peer.told()
        self._stack.close()
        if self.near.transport.role == "receiver":
            self._here.move(self._edge[0])
            self.near.transport.update_sender_info(HOST, self._here.port(self._edge[0]))
        await self.start()
        self.tally["restarts"] += 1

    async def end(self) -> None:
        await self._far.close()

    def close(self) -> None:
        self._stack.close()

    @property
    def _sides(self) -> tuple[Side, Side]:
        """The sender and the receiver."""
        sends = self.near.transport.role == "sender"
        return (self.near, self._far) if sends else (self._far, self.near)

    # --- requests -------------------------------------------------------------------------------

    async def live(self, day: Day) -> None:
        async for request in day.requests():
            await self._room.acquire()
            task = asyncio.create_task(self._serve(request))
            self._requests.add(task)
            task.add_done_callback(self._served)
        if self._requests:
            await asyncio.wait(self._requests)

    def _served(self, task: asyncio.Task[None]) -> None:
        self._requests.discard(task)
        self._room.release()
        task.result()

    async def _serve(self, request: Request) -> None:
        tx, rx = self._sides
        generation = self._generation
        try:
            if request.chunks:
                await self._stream(request, tx, rx)
            else:
                await self._payload(request, tx, rx)
            self.tally[request.fate] += 1
        except (PeerLost, PeerGone):
            self.tally["lost"] += 1
        except OmniAsyncError as error:
            if generation == self._generation and not isinstance(error, TransferCancelled):
                self.wrong.append(f"{request}: {error!r}")
            self.tally["lost"] += 1

    async def _payload(self, request: Request, tx: Side, rx: Side) -> None:
        key, recipe = request.key, pattern(request.nbytes, hash(request.key) % 1000)
        await tx.put(key, recipe, edge=self._edge, timeout=60)
        if request.fate == "forgotten":
            return
        get = asyncio.ensure_future(rx.get(key, recipe, edge=self._edge, timeout=20, keep=key))
        if request.fate == "aborted":
            await tx.cleanup(key)
        if request.fate != "served":
            await asyncio.wait({get}, timeout=request.after / 50)
            await self._give_up(get)
            await tx.cleanup(key)
            if get.cancelled() or get.exception() is not None:
                return
        got = await get
        if got.wrong is not None:
            self.wrong.append(f"{request}: {got.wrong}")
        await asyncio.sleep(request.after)
        changed = await rx.look(key, recipe)
        if changed is not None:
            self.wrong.append(f"{request}: {changed}, after it was delivered")
        await rx.forget(key)

    async def _stream(self, request: Request, tx: Side, rx: Side) -> None:
        recipes = [pattern(request.nbytes, number) for number in range(request.chunks)]
        sink = await reader(rx, request.key, edge=self._edge)
        reading = asyncio.ensure_future(sink.read_all(recipes))
        try:
            source = await writer(tx, request.key, edge=self._edge)
            sending = asyncio.ensure_future(source.send_all(recipes, pause=request.after / 200))
            if request.fate != "served":
                await asyncio.sleep(request.after / 20)
                await (tx if request.fate == "aborted" else rx).cleanup(request.key)
            await asyncio.wait({sending})
            if request.fate == "served":
                sending.result()
                story = await reading
                self.wrong += [f"{request}: {wrong}" for wrong in story.wrong]
                if story.error is not None:
                    raise story.error.error()
            elif isinstance(sending.exception(), PeerGone):
                sending.result()
        finally:
            with contextlib.suppress(PeerGone, OmniAsyncError):
                await sink.leave()
            await asyncio.wait({reading})
            reading.exception()

    async def _give_up(self, get: asyncio.Future[Any]) -> None:
        get.cancel()
        await asyncio.wait({get})
