"""Names, limits and states of transfers: kept apart, the same everywhere, only forward."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

# ruff: noqa: E402 - what follows needs PyTorch
import omni_async
from omni_async.errors import ConfigError, TransferTimeout, UsageError
from omni_async.kv import KVConsumer, KVProducer
from omni_async.kv.given import State
from omni_async.kv.taking import Step
from tests.ends import Ends, ends, led
from tests.kv.nodes import Node, give_here, layout
from tests.kv.stories import KINDS, story_of
from tests.kv.world import CacheWorld
from tests.pairs import open_pair

SOURCE, TARGET = [3, 7, 8, 1], [20, 2, 3, 9]


# --- D11: the clean-up of a put takes the id of a concurrent get ----------------------------------

COUNT = 200


@pytest.mark.parametrize("connector", ["shm", "memory", "mooncake", "nixl"])
async def test_puts_and_gets_of_one_name_at_once(connector: str, namespace: str) -> None:
    """Both stages send under the same names, each to the other."""
    with ends(connector, namespace) as where:
        async with (
            where.open("sender", "0") as here_out,
            where.open("sender", "1") as there_out,
            where.open("receiver", "1", sender="0") as there_in,
            where.open("receiver", "0", sender="1") as here_in,
        ):

            async def one(number: int) -> None:
                key = f"k{number % 20}-{number // 20}"
                go = np.full(4096 + number, number, np.int32)
                back = np.full(4096 - number, -number, np.int32)
                _, _, got, answer = await asyncio.gather(
                    here_out.put("0", "1", key, go),
                    there_out.put("1", "0", key, back),
                    there_in.get("0", "1", key, timeout=20),
                    here_in.get("1", "0", key, timeout=20),
                )
                assert np.array_equal(got.value, go)
                assert np.array_equal(answer.value, back)

            await asyncio.gather(*map(one, range(COUNT)))


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "tensors"])
@pytest.mark.parametrize("connector", ["shm", "mooncake", "nixl"])
async def test_caches_that_are_sent_and_received_at_once(
    connector: str, shared: bool, namespace: str
) -> None:
    """The caches of each stage are registered twice; what ends one registration leaves the other alone."""
    if connector == "shm" and not shared:
        pytest.skip("nobody maps private memory")
    of = {"num_blocks": 800, "block_size": 1, "layers": 2}
    nodes = [Node(layout(**of), shared=shared) for _ in range(2)]
    for seed, node in enumerate(nodes):
        node.spoil()
        node.fill(seed, range(400))
    with ends(connector, namespace) as where:
        async with contextlib.AsyncExitStack() as stack:
            outs, ins = [], []
            for number, node in enumerate(nodes):
                tx = await stack.enter_async_context(where.open("sender", str(number)))
                outs.append(
                    await stack.enter_async_context(KVProducer(tx, node.layout, node.caches))
                )
            for number, node in enumerate(nodes):
                other = str(1 - number)
                rx = await stack.enter_async_context(
                    where.open("receiver", str(number), sender=other)
                )
                ins.append(
                    await stack.enter_async_context(
                        KVConsumer(rx, node.layout, node.caches, from_stage=other)
                    )
                )

            async def one(number: int) -> None:
                to = number % 2
                mine, blocks = [number, 399 - number], [400 + number, 799 - number]
                node = nodes[1 - to]
                progress = await ins[to].receive(f"r{number // 2}", blocks)
                session = await outs[1 - to].write_to(f"r{number // 2}", mine)
                await session.seal()
                await session.delivered(timeout=20)
                await progress.all(timeout=20)
                assert not nodes[to].wrong(1 - to, blocks, node.layout, mine)

            await asyncio.gather(*map(one, range(COUNT)))
            # One end of a stage leaves; the other one goes on.
            await outs[0].aclose()
            progress = await ins[0].receive("last", [400, 401])
            nodes[1].end = outs[1]
            await give_here(nodes[1], "last", [5, 6], "write")
            await progress.all(timeout=20)
            assert not nodes[0].wrong(1, [400, 401], nodes[1].layout, [5, 6])


# --- D13: "put" was taken for delivery ------------------------------------------------------------


async def test_what_was_put_is_stored_and_what_was_fetched_is_delivered(namespace: str) -> None:
    """``put`` returns, the receiver is killed before its get: the payload is there for its successor."""
    with ends("shm", namespace) as where:
        async with where.open("sender", "0") as tx:
            async with led() as peer:
                await where.away(peer, "receiver", "1")
                await tx.put("0", "1", "k", np.arange(50_000))
                assert await tx.drain(0.05) == 1  # not delivered
                peer.kill()
            async with where.open("receiver", "1") as rx:
                delivery = await rx.get("0", "1", "k", timeout=5)
                assert np.array_equal(delivery.value, np.arange(50_000))
            assert await tx.drain(5) == 0


# --- D15: a limit of null meant for ever ----------------------------------------------------------


@pytest.mark.parametrize("option", ["transfer_timeout", "defer_timeout"])
@pytest.mark.parametrize("kind", [KVProducer, KVConsumer])
@pytest.mark.parametrize("value", [0, -1, "30", math.nan, True])
async def test_a_limit_of_an_end_is_a_time(
    kind: Any, option: str, value: Any, namespace: str
) -> None:
    node = Node(layout())
    with ends("shm", namespace) as where:
        role: Any = kind.role
        async with where.open(role, "0") as transport:
            with pytest.raises(UsageError, match=option):
                kind(transport, node.layout, node.caches, **{option: value})
            end = kind(transport, node.layout, node.caches, **{option: None})
            assert getattr(end, option) == math.inf  # said in so many words


@pytest.mark.parametrize("option", ["peer_timeout"])
@pytest.mark.parametrize("value", [None, 0, -1, "30", math.nan])
def test_a_limit_in_a_deploy_file_is_a_time(option: str, value: Any) -> None:
    deploy = {
        "connectors": {"fast": {"name": "SharedMemoryConnector", "extra": {option: value}}},
        "stages": [
            {"stage_id": 0, "output_connectors": {"to_stage_1": "fast"}},
            {"stage_id": 1, "input_connectors": {"from_stage_0": "fast"}},
        ],
    }
    with pytest.raises(ConfigError, match=option):
        omni_async.load_deploy(deploy)


@pytest.mark.parametrize("value", [-1, "30", math.nan, True])
async def test_a_limit_of_a_call_is_a_time(namespace: str, value: Any) -> None:
    async with open_pair("shm", namespace) as (tx, rx):
        calls: list[Awaitable[Any]] = [
            tx.put("0", "1", "k", 1, timeout=value),
            rx.get("0", "1", "k", timeout=value),
            _only(rx.get_many("0", "1", ["k"], timeout=value)),
            _only(tx.put_many("0", "1", {"k": 1}, timeout=value)),
            tx.allocate(10, timeout=value),
            tx.drain(value),
        ]
        for call in calls:
            with pytest.raises(UsageError, match="timeout"):
                await call


# --- D16: the limit held on one path only ---------------------------------------------------------

Ask = Callable[[omni_async.Transport], Awaitable[Any]]
GETS: dict[str, Ask] = {
    "get": lambda rx: rx.get("0", "1", "k", timeout=0.2),
    "edge.get": lambda rx: rx.edge("0", "1").get("k", timeout=0.2),
    "raw": lambda rx: rx.get("0", "1", "k", timeout=0.2, raw=True),
    "get_many": lambda rx: _only(rx.get_many("0", "1", ["k", "l"], timeout=0.2)),
    "edge.get_many": lambda rx: _only(rx.edge("0", "1").get_many(["k", "l"], timeout=0.2)),
}
PUTS: dict[str, Ask] = {
    "put": lambda tx: tx.put("0", "1", "k", bytes(3 << 20), timeout=0.2),
    "edge.put": lambda tx: tx.edge("0", "1").put("k", bytes(3 << 20), timeout=0.2),
    "put_many": lambda tx: _only(tx.put_many("0", "1", {"k": bytes(3 << 20)}, timeout=0.2)),
    "allocate": lambda tx: tx.allocate(3 << 20, timeout=0.2),
    "empty": lambda tx: tx.empty((3 << 20,), torch.uint8, timeout=0.2),
}


async def _only(outcomes: Awaitable[dict[str, Any]]) -> None:
    """Every outcome is the same failure."""
    found = list((await outcomes).values())
    assert len({type(one) for one in found}) == 1
    raise found[0]


@pytest.mark.parametrize("how", GETS)
@pytest.mark.parametrize("sender", [True, False], ids=["sender", "nobody"])
async def test_every_get_ends_at_its_limit(
    backend: str, namespace: str, how: str, sender: bool
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        if sender:
            await stack.enter_async_context(
                omni_async.open_transport(
                    backend, role="sender", stage="0", namespace=namespace, linger=0
                )
            )
        rx = await stack.enter_async_context(
            omni_async.open_transport(backend, role="receiver", stage="1", namespace=namespace)
        )
        began = time.monotonic()
        with pytest.raises(TransferTimeout):
            await GETS[how](rx)
        assert 0.19 < time.monotonic() - began < 0.7


@pytest.mark.parametrize("how", PUTS)
async def test_every_wait_for_room_ends_at_its_limit(
    backend: str, namespace: str, how: str
) -> None:
    async with open_pair(backend, namespace, memory_pool_size=4 << 20) as (tx, _):
        await tx.put("0", "1", "first", bytes(3 << 20))
        began = time.monotonic()
        with pytest.raises((TransferTimeout, omni_async.PoolExhausted)):
            await PUTS[how](tx)
        assert 0.19 < time.monotonic() - began < 0.7


# --- D17: a state was seen going backwards --------------------------------------------------------


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(kind=st.sampled_from(sorted(KINDS)), seed=st.integers(0, 2**32))
def test_sessions_and_shares_only_go_forward(kind: str, seed: int) -> None:
    """Whatever happens: words that are late or lost, ends that die, writes that fail."""
    world = CacheWorld(**KINDS[kind])
    sessions: dict[Any, State] = {}
    shares: dict[Any, Step] = {}
    for step in story_of(seed, 80):
        getattr(world, step.name)(**step.arguments)
        for giver in world.all_givers:
            for sent in giver.sent:
                before, now = sessions.get(sent.core, State.OPEN), sent.core.state
                assert now >= before, f"{step}: from {before.name} back to {now.name}"
                assert not (before is State.DELIVERED and now is not before), step
                sessions[sent.core] = now
        for taker in world.takers.values():
            for got in taker.got:
                last, then = shares.get(got.core, Step.PARKED), got.core.step
                asks_another = last is Step.ASKED and then is Step.PARKED
                assert then >= last or asks_another, f"{step}: from {last.name} back to {then.name}"
                assert not (last is Step.DONE and then is not last), step
                shares[got.core] = then


async def test_what_a_session_says_only_goes_forward(namespace: str) -> None:
    seen: list[str] = []
    with ends("shm", namespace) as where:
        await _watched(where, seen)
    order = ["open", "sealed", "delivered"]
    assert [order.index(state) for state in seen] == sorted(map(order.index, seen))
    assert (seen[0], seen[-1]) == ("open", "delivered")


async def _watched(where: Ends, seen: list[str]) -> None:
    source, target = Node(layout()), Node(layout())
    source.fill(1)
    async with (
        where.open("sender", "0") as tx,
        where.open("receiver", "1") as rx,
        KVProducer(tx, source.layout, source.caches) as producer,
        KVConsumer(rx, target.layout, target.caches, from_stage="0") as consumer,
    ):
        session = await producer.write_to("r", SOURCE, timeout=0)
        landed: list[int] = []

        async def watch() -> None:
            while session.state != "delivered":
                seen.append(session.state)
                landed.append(progress.landed)
                await asyncio.sleep(0)
            seen.append(session.state)

        progress = await consumer.receive("r", TARGET)
        watching = asyncio.ensure_future(watch())
        await asyncio.sleep(0)
        for layer in range(3):
            session.layer_ready(layer)
            await progress.layer(layer, timeout=5)
        await session.seal()
        session.abort("too late")  # what was delivered stays so
        await asyncio.wait_for(watching, 5)
        assert landed == sorted(landed)
