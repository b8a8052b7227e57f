"""What an engine's faults may do to memory: nothing.

In: WRITE and READ operations that are slow, stuck, failing or out of bounds. Out: typed errors, slots
that stay quarantined for as long as bytes may still move, and whole payloads before and after.
Never: lets a late write land in the next request's buffer.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import omni_async
from omni_async.errors import EngineFault, KeyNotFound, PeerLost, TransferTimeout
from omni_async.registry import register_backend
from omni_async.testing.doubles.loopback import (
    FAULTS,
    LoopbackMap,
    LoopbackRead,
    LoopbackWrite,
    until_stuck,
)
from omni_async.testing.doubles.ordered import Fault
from omni_async.testing.leaks import no_leaks, quiet
from omni_async.testing.processes import PeerProcess
from omni_async.testing.recipes import pattern, pattern_array

NBYTES = 1_000_000
POOL = 4 << 20
CONNECTORS = {"write": "loopback-write", "read": "loopback-read", "map": "loopback-map"}
TARGETS = {
    "write": "omni_async.testing.doubles.loopback:LoopbackWrite",
    "read": "omni_async.testing.doubles.loopback:LoopbackRead",
}
DOUBLE = "omni_async.testing.doubles.loopback"


@pytest.fixture(autouse=True)
def faults() -> Iterator[None]:
    register_backend(LoopbackWrite())
    register_backend(LoopbackRead())
    register_backend(LoopbackMap())
    yield
    FAULTS.clear()


@pytest.fixture(params=["write", "read"])
def verb(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@contextlib.asynccontextmanager
async def _pair(verb: str, namespace: str) -> AsyncIterator[tuple[Any, Any]]:
    async with no_leaks(mark=namespace):
        spec = {"name": CONNECTORS[verb], "extra": {"memory_pool_size": POOL}}
        options: dict[str, Any] = {"namespace": namespace, "linger": 0.0}
        async with (
            omni_async.open_transport(spec, role="sender", stage="0", **options) as tx,
            omni_async.open_transport(spec, role="receiver", stage="1", **options) as rx,
        ):
            yield tx, rx


async def _check(tx: Any, rx: Any, seed: int = 50) -> None:
    """The next payload is whole."""
    await tx.put("0", "1", "next", pattern_array(NBYTES, seed))
    delivery = await rx.get("0", "1", "next", timeout=10)
    assert (delivery.value == pattern_array(NBYTES, seed)).all()


@pytest.mark.parametrize("verb", ["map", "write", "read"])
async def test_bytes_move_and_nothing_is_left(verb: str, namespace: str) -> None:
    async with _pair(verb, namespace) as (tx, rx):
        for seed in range(5):
            await _check(tx, rx, seed)
            await quiet(tx)
            await quiet(rx)


@pytest.mark.parametrize("landed", [0.0, 0.5, 1.0])
async def test_a_failing_operation_is_an_error_and_the_payload_stays(
    verb: str, namespace: str, landed: float
) -> None:
    async with _pair(verb, namespace) as (tx, rx):
        await tx.put("0", "1", "k", pattern_array(NBYTES, 1))
        FAULTS.order(Fault("failing", landed=landed, status=-7))
        with pytest.raises(EngineFault, match="a failure was ordered"):
            await rx.get("0", "1", "k", timeout=10)
        await quiet(rx)
        delivery = await rx.get("0", "1", "k", timeout=10)
        assert (delivery.value == pattern_array(NBYTES, 1)).all()
        del delivery
        await quiet(tx)
        assert rx.health().errors == 1


async def test_leaving_the_region_is_refused_before_a_byte_moves(verb: str, namespace: str) -> None:
    async with _pair(verb, namespace) as (tx, rx):
        await tx.put("0", "1", "k", pattern_array(NBYTES, 1))
        FAULTS.order(Fault("out_of_bounds"))
        with pytest.raises(EngineFault, match="leaves the peer's region"):
            await rx.get("0", "1", "k", timeout=10)
        delivery = await rx.get("0", "1", "k", timeout=10)
        assert (delivery.value == pattern_array(NBYTES, 1)).all()


async def test_a_slow_operation_is_waited_for(verb: str, namespace: str) -> None:
    async with _pair(verb, namespace) as (tx, rx):
        await tx.put("0", "1", "k", pattern_array(NBYTES, 1))
        FAULTS.order(Fault("slow", seconds=0.2))
        delivery = await rx.get("0", "1", "k", timeout=10)
        assert (delivery.value == pattern_array(NBYTES, 1)).all()


@pytest.mark.parametrize("how", ["timeout", "cancel"])
@pytest.mark.parametrize("landed", [0.0, 0.5])
async def test_a_late_operation_lands_in_nobodys_buffer(
    verb: str, namespace: str, landed: float, how: str
) -> None:
    """The caller has given up; its slot is kept until the engine has ended with it."""
    async with _pair(verb, namespace) as (tx, rx):
        await tx.put("0", "1", "late", pattern_array(NBYTES, 1))
        FAULTS.order(Fault("stuck", landed=landed))
        getting = asyncio.create_task(
            rx.get("0", "1", "late", timeout=0.3 if how == "timeout" else 10)
        )
        await until_stuck()
        if how == "cancel":
            getting.cancel()
        await asyncio.wait({getting})
        if how == "timeout":
            assert isinstance(getting.exception(), TransferTimeout)
        else:
            assert getting.cancelled()
        assert rx.health().quarantined == 1

        held = []
        for seed in range(2, 4):  # what comes meanwhile gets other slots
            await tx.put("0", "1", f"k{seed}", pattern_array(NBYTES, seed))
            held.append(await rx.get("0", "1", f"k{seed}", timeout=10))
        FAULTS.release()
        await quiet(rx, pool_used=None, in_flight=None)
        for seed, delivery in enumerate(held, 2):
            assert (delivery.value == pattern_array(NBYTES, seed)).all()
            del delivery
        held.clear()
        late = await rx.get("0", "1", "late", timeout=10)  # it stayed on offer
        assert (late.value == pattern_array(NBYTES, 1)).all()
        del late
        await quiet(tx)
        await quiet(rx)


async def test_the_source_is_kept_for_as_long_as_it_is_read(verb: str, namespace: str) -> None:
    """Cleaned up under the operation: the slot is not handed out before it has ended."""
    async with _pair(verb, namespace) as (tx, rx):
        await tx.put("0", "1", "k", pattern_array(NBYTES, 1))
        FAULTS.order(Fault("stuck", landed=0.5))
        getting = asyncio.create_task(rx.get("0", "1", "k", timeout=10))
        await until_stuck()
        await tx.cleanup("k")
        for seed in range(2, 4):
            await tx.put("0", "1", f"other{seed}", pattern_array(NBYTES, seed), timeout=1)
        FAULTS.release()
        delivery = await getting
        assert (delivery.value == pattern_array(NBYTES, 1)).all()
        del delivery, getting
        await tx.cleanup("other2")
        await tx.cleanup("other3")
        await quiet(tx)
        await quiet(rx)


async def test_closing_says_what_it_leaves_behind(verb: str, namespace: str) -> None:
    """An operation that cannot be recalled outlives its transport, and so does its memory."""
    spec = {"name": CONNECTORS[verb], "extra": {"memory_pool_size": POOL}}
    options: dict[str, Any] = {"namespace": namespace, "linger": 0.0}
    async with no_leaks(mark=namespace):
        tx = await omni_async.open_transport(spec, role="sender", stage="0", **options).__aenter__()
        rx = await omni_async.open_transport(
            spec, role="receiver", stage="1", **options
        ).__aenter__()
        await tx.put("0", "1", "k", pattern_array(NBYTES, 1))
        FAULTS.order(Fault("stuck", landed=0.5))
        getting = asyncio.create_task(rx.get("0", "1", "k", timeout=0.2))
        await until_stuck()
        await asyncio.wait({getting})
        owner = tx if verb == "write" else rx
        with pytest.warns(ResourceWarning, match="cannot be recalled"):
            owner.abort()
        FAULTS.release()
        await asyncio.sleep(0.05)
        await rx.aclose()
        await tx.aclose()


@pytest.mark.parametrize("killed", ["sender", "receiver"])
async def test_a_peer_is_killed_during_an_operation(verb: str, namespace: str, killed: str) -> None:
    """Its end is the proof: what was stuck between the two is free again, on the survivor's side."""
    spec = {"name": CONNECTORS[verb], "extra": {"memory_pool_size": POOL}}
    options: dict[str, Any] = {"namespace": namespace, "linger": 0.0}
    active = "sender" if verb == "write" else "receiver"
    peer = PeerProcess()
    try:
        with peer.attached():
            away = await peer.open(
                "away",
                CONNECTORS[verb],
                extra=spec["extra"],
                target=TARGETS[verb],
                role=killed,
                stage="0" if killed == "sender" else "1",
                **options,
            )
            here_role: Any = "receiver" if killed == "sender" else "sender"
            here_stage = "1" if killed == "sender" else "0"
            async with omni_async.open_transport(
                spec, role=here_role, stage=here_stage, **options
            ) as here:
                if active == killed:
                    await peer.call("use", target=f"{DOUBLE}:order", kind="stuck", landed=0.5)
                else:
                    FAULTS.order(Fault("stuck", landed=0.5))
                if killed == "sender":
                    await away.put("k", pattern(NBYTES, 1))
                    getting: asyncio.Task[Any] = asyncio.create_task(
                        here.get("0", "1", "k", timeout=10)
                    )
                else:
                    await here.put("0", "1", "k", pattern_array(NBYTES, 1))
                    getting = asyncio.create_task(_away_get(away))
                if active == killed:
                    await peer.call("use", target=f"{DOUBLE}:until_stuck")
                else:
                    await until_stuck()
                peer.kill()
                FAULTS.release()
                await asyncio.wait({getting})
                if killed == "sender":
                    assert isinstance(getting.exception(), (PeerLost, EngineFault))
                await quiet(here, pool_used=None)
                if killed == "receiver":
                    await _fetch_again(spec, options)
                await quiet(here)
    finally:
        peer.close()


async def _away_get(away: Any) -> None:
    with contextlib.suppress(Exception):
        await away.get("k", timeout=10)


async def _fetch_again(spec: Any, options: dict[str, Any]) -> None:
    """What a dead receiver did not take is on offer for the next one."""
    async with omni_async.open_transport(spec, role="receiver", stage="1", **options) as rx:
        with contextlib.suppress(KeyNotFound):
            delivery = await rx.get("0", "1", "k", timeout=5)
            assert (delivery.value == pattern_array(NBYTES, 1)).all()
            del delivery
            await quiet(rx)
