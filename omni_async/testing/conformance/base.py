"""How a conformance test is run: one decorator, and one base class with the fixture.

In: coroutine functions that take a rig. Out: pytest tests, one for each way and each kind of loop.
Never: depends on a pytest plugin; the loop is ours, made anew for each test.
"""

from __future__ import annotations

import asyncio
import functools
import importlib.util
from collections.abc import Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest

from ...errors import KeyNotFound
from ...model import Role
from ..rig import Crew, LoopKind, Narrow, Rig, Way
from ..sides import Side, attempt

Test = Callable[..., Coroutine[Any, Any, None]]

HERE = (Way.ONE_LOOP, Way.SENDER_AWAY, Way.RECEIVER_AWAY)
"""Through :class:`~omni_async.testing.sides.Side` alone: works wherever the ends are."""
SENDER_HERE = (Way.ONE_LOOP, Way.RECEIVER_AWAY)
"""Needs the sender's own objects."""
RECEIVER_HERE = (Way.ONE_LOOP, Way.SENDER_AWAY)
"""Needs the receiver's own objects."""
ONE_LOOP = (Way.ONE_LOOP,)
"""Needs both ends' objects, or is about one process."""
APART = (Way.SENDER_AWAY, Way.RECEIVER_AWAY)
"""Needs a process that can be killed."""

_CREW = pytest.StashKey[Crew]()


def runs(*ways: Way, limit: float = 30.0, own_peer: bool = False) -> Callable[[Test], Test]:
    """Run a coroutine test in these ways, each in at most ``limit`` seconds.

    Args:
        ways: those that the backend does not have are left out.
        limit: seconds.
        own_peer: the test kills its peer process, so that nobody else shall have it.
    """

    def decorate(test: Test) -> Test:
        @functools.wraps(test)
        def call(self: Any, rig: Rig, **arguments: Any) -> None:
            rig.run(test(self, rig, **arguments), limit)

        call.ways = ways  # type: ignore[attr-defined]
        call.own_peer = own_peer  # type: ignore[attr-defined]
        return cast("Test", call)

    return decorate


class Conformance:
    """What a backend's test file fills in; see :class:`TransportConformance`."""

    connector: ClassVar[str]
    """Name or alias, as ``open_transport`` takes it."""
    target: ClassVar[str] = ""
    """``"package.module:Class"`` of a backend that no entry point announces."""
    kept: ClassVar[str] = ""
    """``"package.module:function"``, a :data:`~omni_async.testing.leaks.Kept` that tells what a vendor's
    library keeps for the life of a process, such as connections between its engines."""
    ways: ClassVar[tuple[Way, ...]] = tuple(Way)
    """Where sender and receiver may live; ``(Way.ONE_LOOP,)`` for a backend of one process."""
    loops: ClassVar[tuple[LoopKind, ...]] = ("asyncio", "uvloop")
    """Kinds of event loop; one that is not installed is skipped."""

    survives: ClassVar[bool] = True
    """(stores) Whether what was put is there when the process of its sender was killed."""

    lease: ClassVar[float] = 0.0
    """(stores) Seconds for which what was read, or looked at, cannot be deleted or replaced."""

    def extra(self, role: Role) -> Mapping[str, Any]:
        """Options of the connector for one end."""
        return {}

    def folders(self) -> tuple[Path, ...]:
        """Folders in which nothing may be left, such as a ``socket_dir``."""
        return ()

    async def gone(self, rx: Side, key: str) -> None:
        """A payload is not there: now, or once a store no longer takes it for being read."""
        outcome = await attempt(rx.get(key, timeout=0))
        for _ in range(3 if self.lease else 0):
            if isinstance(outcome, KeyNotFound):
                break
            await asyncio.sleep(self.lease + 0.5)
            outcome = await attempt(rx.get(key, timeout=0))
        assert isinstance(outcome, KeyNotFound), outcome

    def narrow(self) -> Narrow:
        """How little room is made; where it is not ``memory_pool_size`` that makes a put wait, otherwise."""
        return Narrow()

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """pytest asks each class: one run for each way and each kind of loop."""
        ways = getattr(metafunc.function, "ways", None)
        if ways is None:
            return
        ways = [way for way in ways if way in self.ways]
        runs = [
            pytest.param((way, loop), id=f"{way.value}-{loop}")
            for loop in self.loops
            for way in ways
        ]
        if not runs:
            skip = pytest.mark.skip(reason="its ends live otherwise than here")
            runs = [pytest.param((Way.ONE_LOOP, "asyncio"), id="no way", marks=skip)]
        metafunc.parametrize("run", runs)

    @pytest.fixture
    def rig(self, run: tuple[Way, LoopKind], request: pytest.FixtureRequest) -> Iterator[Rig]:
        """Transports of this backend, in a loop of their own."""
        way, loop = run
        if importlib.util.find_spec(loop) is None:
            pytest.skip(f"{loop} is not installed")
        extra: Mapping[Role, Mapping[str, Any]] = {
            "sender": self.extra("sender"),
            "receiver": self.extra("receiver"),
        }
        shared = crew_of(request.config)
        own_peer = getattr(request.function, "own_peer", False)
        crew = Crew() if own_peer else shared
        try:
            yield Rig(
                self.connector,
                extra,
                way=way,
                loop=loop,
                crew=crew,
                target=self.target,
                folders=self.folders(),
                kept=self.kept,
                narrow=self.narrow(),
            )
        finally:
            if own_peer:
                crew.close()


def only(rig: Rig, fact: str, why: str) -> None:
    """Skip where a fact of the backend does not hold, such as ``notifies``."""
    if not getattr(rig.facts, fact):
        pytest.skip(why)


def only_stored(rig: Rig) -> None:
    """Skip where the two ends do not meet at a store."""
    if not rig.stored:
        pytest.skip("this is what stores promise in place of something else")


def crew_of(config: pytest.Config) -> Crew:
    """The peer processes of this test run; they end with it."""
    if _CREW not in config.stash:
        config.stash[_CREW] = Crew()
        config.add_cleanup(config.stash[_CREW].close)
    return config.stash[_CREW]
