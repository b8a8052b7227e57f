"""Caches from stage to stage when both ends are ours."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

# ruff: noqa: E402 - what follows needs PyTorch
import omni_async
from omni_async.errors import PayloadTooLarge, PoolExhausted, ProtocolError, UsageError
from omni_async.interop.vllm_omni.kv_topology import SLICE_MARK, KVTopology
from omni_async.kv.omni import drop_kv, receive_family, receive_kv, send_kv
from tests.pairs import open_pair

from .paged_samples import paged, same, tokens_of

HOW: dict[str, Any] = {"tokens": 40, "block_size": 16}
TABLE = [7, 2, 9]


@pytest.fixture(params=["memory", "shm"])
async def edges(request: pytest.FixtureRequest, namespace: str) -> AsyncIterator[tuple[Any, Any]]:
    async with open_pair(request.param, namespace) as (tx, rx):
        yield tx.edge("0", "1"), rx.edge("0", "1")


async def until_empty(edge: Any) -> None:
    for _ in range(2000):
        if not edge.transport.health().pool_used:
            return
        await asyncio.sleep(0.001)
    raise TimeoutError(f"{edge.transport.health().pool_used} bytes are in use")


async def test_a_cache_arrives(edges: tuple[Any, Any]) -> None:
    tx, rx = edges
    caches = paged("packed")
    keys, values = tokens_of("packed", caches, TABLE, 40)
    waiting = asyncio.ensure_future(receive_kv(rx, "r", timeout=10))
    await send_kv(tx, "r", caches, TABLE, cache_dtype="bfloat16", **HOW)
    for cache in caches:
        cache.view(torch.uint8).zero_()  # the blocks are others' now
    found = await waiting
    assert found is not None
    assert same(found.keys, keys)
    assert same(found.values, values)
    assert found.metadata == {
        "block_size": 16,
        "num_layers": 3,
        "dtype": "bfloat16",
        "seq_len": 40,
    }
    assert all(tensor is not None and tensor.data_ptr() % 64 == 0 for tensor in found.keys)
    del found, waiting
    await until_empty(tx)


async def test_a_large_cache_arrives(edges: tuple[Any, Any]) -> None:
    tx, rx = edges
    caches = paged("stacked", heads=8, size=64, blocks=64)
    table = list(range(64))
    keys, _ = tokens_of("stacked", caches, table, 1000)
    sending = asyncio.ensure_future(send_kv(tx, "r", caches, table, tokens=1000, block_size=16))
    found = await receive_kv(rx, "r", device="cpu", timeout=10)
    await sending
    assert found is not None
    assert same(found.keys, keys)


@pytest.mark.parametrize("ranks", [(1, 2), (2, 1), (2, 2), (4, 2)])
async def test_ranks_by_their_receipts(namespace: str, ranks: tuple[int, int]) -> None:
    caches = paged("stacked", heads=4)
    keys, _ = tokens_of("stacked", caches, TABLE, 40)
    told: dict[str, Any] = {}
    async with contextlib.AsyncExitStack() as stack:
        for rank in range(ranks[0]):
            tx = await stack.enter_async_context(
                omni_async.open_transport(
                    "memory", role="sender", stage="0", rank=rank, namespace=namespace, linger=0
                )
            )
            each = 4 // ranks[0]
            mine = [cache[..., each * rank : each * (rank + 1), :] for cache in caches]
            topology = KVTopology(*ranks, rank, kv_heads=4)
            told |= await send_kv(tx.edge(0, 1), "r", mine, TABLE, topology=topology, **HOW)
        for rank in range(ranks[1]):
            rx = await stack.enter_async_context(
                omni_async.open_transport(
                    "memory", role="receiver", stage="1", rank=rank, namespace=namespace
                )
            )
            topology = KVTopology(*ranks, rank)
            asked = topology.receive_keys("r", "0", "1")
            sender = {source: told[key].metadata for key, source in asked.items()}
            found = await receive_kv(rx.edge(0, 1), "r", topology=topology, sender=sender)
            assert found is not None
            each = 4 // ranks[1]
            assert same(found.keys, [key[:, each * rank : each * (rank + 1)] for key in keys])
            assert (SLICE_MARK in found.metadata) == (ranks[1] > ranks[0])


async def test_several_senders_have_to_be_told(edges: tuple[Any, Any]) -> None:
    _, rx = edges
    with pytest.raises(UsageError, match="2 ranks send this cache"):
        await receive_kv(rx, "r", topology=KVTopology(2, 1, 0))
    with pytest.raises(UsageError, match="where rank 1 is"):
        await receive_kv(rx, "r", topology=KVTopology(2, 1, 0), sender={0: {}})


async def test_what_does_not_fit_leaves_nothing_on_offer(namespace: str) -> None:
    caches = paged("stacked", heads=4)
    one = 3 * 2 * 40 * 2 * 8 * 2  # bytes of a receiver's share
    async with open_pair("memory", namespace, memory_pool_size=2 * one) as (tx, _):
        edge = tx.edge("0", "1")
        with pytest.raises(PayloadTooLarge):
            await send_kv(edge, "r", caches, [*TABLE] * 4, tokens=180, block_size=16)
        topology = KVTopology(1, 4)
        with pytest.raises(PoolExhausted):
            await send_kv(edge, "r", caches * 2, TABLE, topology=topology, timeout=0.05, **HOW)
        await until_empty(edge)
        assert await drop_kv(edge, "r", topology) == 0


async def test_a_put_that_fails_takes_back_those_before(
    edges: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    tx, _ = edges
    put = type(tx.transport).put

    async def fails(self: Any, *args: Any, **options: Any) -> Any:
        if args[2].endswith("_1"):
            raise PoolExhausted("no room")
        return await put(self, *args, **options)

    monkeypatch.setattr(type(tx.transport), "put", fails)
    topology = KVTopology(1, 2)
    with pytest.raises(PoolExhausted):
        await send_kv(tx, "r", paged("stacked"), TABLE, topology=topology, **HOW)
    assert await drop_kv(tx, "r", topology) == 0
    await until_empty(tx)


async def test_cancelled_at_any_step_nothing_is_left(edges: tuple[Any, Any]) -> None:
    tx, rx = edges
    caches = paged("stacked")
    topology = KVTopology(1, 2)
    for steps in range(12):
        sending = asyncio.ensure_future(
            send_kv(tx, "r", caches, TABLE, topology=topology, timeout=5, **HOW)
        )
        for _ in range(steps):
            await asyncio.sleep(0)
        if sending.cancel():
            with pytest.raises(asyncio.CancelledError):
                await sending
        else:
            await sending
            assert await drop_kv(tx, "r", topology) == 2
        await until_empty(tx)
    for steps in range(6):
        getting = asyncio.ensure_future(receive_kv(rx, "s", timeout=5))
        for _ in range(steps):
            await asyncio.sleep(0)
        getting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await getting
    assert rx.transport.health().parked == 0


async def test_metadata_have_names_of_their_own(edges: tuple[Any, Any]) -> None:
    tx, _ = edges
    for name in ("seq_len", SLICE_MARK):
        with pytest.raises(UsageError, match=name):
            await send_kv(tx, "r", paged("stacked"), TABLE, metadata={name: 1}, **HOW)


async def test_another_payload_under_the_key_is_refused(edges: tuple[Any, Any]) -> None:
    tx, rx = edges
    await send_kv(tx, "r", paged("stacked"), TABLE, **HOW)
    kept = await rx.get("omni_0_to_1_kv_cache_r", timeout=5)
    await tx.put("omni_0_to_1_kv_cache_s", kept.value)
    with pytest.raises(ProtocolError, match="'r' has come under the key of 's'"):
        await receive_kv(rx, "s", timeout=5)


async def test_a_family_comes_whole_or_not_at_all(edges: tuple[Any, Any]) -> None:
    tx, rx = edges
    companions = {"cfg_text": "r__text", "cfg_img": "r__img"}
    for request in ("r", "r__text"):
        await send_kv(tx, request, paged("stacked"), TABLE, **HOW)
    getting = asyncio.ensure_future(receive_family(rx, "r", companions, timeout=10))
    await asyncio.sleep(0.05)
    assert not getting.done()
    await send_kv(tx, "r__img", paged("stacked", seed=1), TABLE, **HOW)
    family = await getting
    assert family is not None
    assert set(family.companions) == set(companions)
    assert family.companions["cfg_img"].request_id == "r__img"
    for wrong in ({"a": "r"}, {"a": "x", "b": "x"}, {"a": "dummy_req_id"}):
        with pytest.raises(UsageError):
            await receive_family(rx, "r", wrong)
