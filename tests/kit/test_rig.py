"""The runner of conformance tests tells what a test has done wrong.

In: tests that misbehave. Out: failures that say how.
Never: runs against anything but the one-process backend.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from omni_async.testing.leaks import LeakError
from omni_async.testing.recipes import literal, pattern
from omni_async.testing.rig import Crew, Rig, Way
from omni_async.testing.sides import LocalSide

ADDRESSED = "tests.deploy.addressed:AddressedDouble"
KEPT: list[object] = []
"""What misbehaving tests leave."""


@pytest.fixture(autouse=True)
def let_go() -> Iterator[None]:
    yield
    KEPT.clear()


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    made = Crew()
    yield made
    made.close()


@pytest.fixture
def rig(crew: Crew) -> Rig:
    return Rig("memory", {}, way=Way.ONE_LOOP, loop="asyncio", crew=crew)


def test_a_good_test_passes(rig: Rig) -> None:
    seen: list[str] = []

    async def test() -> None:
        tx, rx = await rig.pair()
        await tx.put("k", literal(1))
        await rx.get("k", literal(1))
        seen.append("ran")

    rig.run(test(), 10)
    assert seen == ["ran"]


def test_a_task_that_is_left(rig: Rig) -> None:
    async def test() -> None:
        KEPT.append(asyncio.get_running_loop().create_task(asyncio.sleep(60)))

    with pytest.raises(LeakError, match="task"):
        rig.run(test(), 10)


def test_a_lease_that_is_left(rig: Rig) -> None:
    async def test() -> None:
        tx, rx = await rig.pair()
        assert isinstance(rx, LocalSide)
        await tx.put("k", pattern(100_000))
        KEPT.append((await rx.transport.get("0", "1", "k")).value)

    with pytest.raises(LeakError, match="in_flight is 1"):
        rig.run(test(), 10)


def test_an_error_that_only_the_loop_was_told_of(rig: Rig) -> None:
    async def test() -> None:
        asyncio.get_running_loop().call_soon(lambda: 1 / 0)
        await asyncio.sleep(0.01)

    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        rig.run(test(), 10)


def test_a_test_that_hangs_says_where(rig: Rig) -> None:
    async def waits_for_godot() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(AssertionError, match="waits_for_godot"):
        rig.run(waits_for_godot(), 0.05)


def test_a_failing_test_is_not_hidden_by_what_it_leaves(rig: Rig) -> None:
    async def test() -> None:
        await rig.pair()
        KEPT.append(asyncio.get_running_loop().create_task(asyncio.sleep(60)))
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        rig.run(test(), 10)


def test_ports_where_receivers_are_told_so_and_nowhere_else(crew: Crew, rig: Rig) -> None:
    assert (rig.addressed, rig.at("0")) == (False, None)
    told = Rig("addressed", {}, way=Way.ONE_LOOP, loop="asyncio", crew=crew, target=ADDRESSED)

    async def test() -> None:
        first, second = await told.sender("0"), await told.sender("0", rank=1)
        rx = await told.receiver()
        assert told.port("0") != told.port("0", 1)
        for tx, value in ((first, 1), (second, 2)):
            await tx.put("k", literal(value))
        assert (await rx.get("k", literal(1))).wrong is None
        assert (await rx.get("k", literal(2), metadata=told.at("0", 1))).wrong is None

    told.run(test(), 10)


def test_what_is_left_in_a_folder(crew: Crew, tmp_path: Path) -> None:
    pytest.importorskip("uvloop")
    rig = Rig("memory", {}, way=Way.ONE_LOOP, loop="uvloop", crew=crew, folders=(tmp_path,))

    async def test() -> None:
        (tmp_path / "forgotten").touch()

    with pytest.raises(LeakError, match="forgotten"):
        rig.run(test(), 10)


@pytest.mark.parametrize("way", [Way.SENDER_AWAY, Way.RECEIVER_AWAY])
def test_what_is_left_in_the_other_process(crew: Crew, way: Way) -> None:
    rig = Rig("shm", {}, way=way, loop="asyncio", crew=crew)

    async def test() -> None:
        options = {"role": "receiver", "stage": "7", "namespace": rig.namespace}
        await rig.peer.open("extra", "shm", **options)

    with pytest.raises(AssertionError, match=r"left behind in the other process: .*descriptor"):
        rig.run(test(), 10)
    crew.close()
