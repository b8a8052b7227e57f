"""KV caches between stages: keys that match, nothing in part, no waiting for what nobody sends."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

# ruff: noqa: E402 - what follows needs PyTorch
import omni_async
from omni_async.errors import (
    ConfigError,
    DecodeError,
    KeyNotFound,
    ProtocolError,
    TransferTimeout,
    UsageError,
)
from omni_async.interop.vllm_omni.kv_payload import KVPayload, pack
from omni_async.interop.vllm_omni.kv_topology import KVTopology, topology_of
from omni_async.kv.omni import drop_kv, receive_family, receive_kv, send_kv
from tests.kv.paged_samples import paged, same, tokens_of
from tests.pairs import open_pair

HOW: dict[str, Any] = {"tokens": 40, "block_size": 16}
TABLE = [7, 2, 9]
HEADS = 4


@pytest.fixture
async def edges(backend: str, namespace: str) -> AsyncIterator[tuple[Any, Any]]:
    async with open_pair(backend, namespace) as (tx, rx):
        yield tx.edge("0", "1"), rx.edge("0", "1")


# --- D1: with one rank, the sender used a key with ranks and the receiver one without -------------


@pytest.mark.parametrize(
    ("ranks", "explicit"),
    [(ranks, True) for ranks in itertools.product([1, 2, 4], [1, 2, 4])]
    + [((1, 1), False), ((2, 2), False), ((4, 4), False)],
)
async def test_both_ends_have_the_same_keys(
    namespace: str, ranks: tuple[int, int], explicit: bool
) -> None:
    source, target = ranks

    def topology(rank: int) -> KVTopology:
        mapping = {"from_tp": source, "to_tp": target} if explicit else None
        return topology_of(mapping, world_size=source, rank=rank, kv_heads=HEADS)

    caches = paged("stacked", heads=HEADS)
    keys, values = tokens_of("stacked", caches, TABLE, 40)
    told: dict[str, Any] = {}
    async with contextlib.AsyncExitStack() as stack:

        async def edge(role: Any, stage: str, rank: int) -> Any:
            opened = await stack.enter_async_context(
                omni_async.open_transport(
                    "memory", role=role, stage=stage, rank=rank, namespace=namespace, linger=0
                )
            )
            return opened.edge("0", "1")

        for rank in range(source):
            mine = [part(cache, rank, source) for cache in caches]
            tx = await edge("sender", "0", rank)
            told |= await send_kv(tx, "r", mine, TABLE, topology=topology(rank), **HOW)
        asked = [topology(rank).receive_keys("r", "0", "1") for rank in range(target)]
        assert sorted(told) == sorted(key for keys in asked for key in keys)
        for rank in range(target):
            rx = await edge("receiver", "1", rank)
            found = await receive_kv(
                rx,
                "r",
                topology=topology(rank),
                sender={whose: told[key].metadata for key, whose in asked[rank].items()},
                timeout=10,
            )
            assert found is not None
            assert same(found.keys, [part(tensor, rank, target) for tensor in keys])
            assert same(found.values, [part(tensor, rank, target) for tensor in values])


def part(tensor: Any, rank: int, ranks: int) -> Any:
    """A rank's heads: the last dimension but one."""
    each = HEADS // ranks
    return tensor[..., each * rank : each * (rank + 1), :]


@pytest.mark.parametrize("ranks", [(2, 3), (3, 2), (4, 6), (0, 1), (8, 8)])
def test_stages_that_do_not_fit_are_refused_at_start(ranks: tuple[int, int]) -> None:
    mapping = {"from_tp": ranks[0], "to_tp": ranks[1]}
    with pytest.raises(ConfigError, match=r"ranks|rank or more"):
        topology_of(mapping, world_size=1, rank=0, kv_heads=HEADS)


# --- D2: the transfer failed, and the request was answered with garbage ---------------------------


async def test_what_was_never_sent_is_an_error(edges: tuple[Any, Any]) -> None:
    _, rx = edges
    with pytest.raises(TransferTimeout):
        await receive_kv(rx, "r", timeout=0.1)
    with pytest.raises(KeyNotFound):
        await receive_kv(rx, "r", timeout=0)
    assert rx.transport.health().parked == 0


async def test_half_of_the_ranks_are_an_error(namespace: str) -> None:
    caches = paged("stacked", heads=2)
    async with contextlib.AsyncExitStack() as stack:
        edges = [
            (
                await stack.enter_async_context(
                    omni_async.open_transport(
                        "memory", role="sender", stage="0", rank=rank, namespace=namespace, linger=0
                    )
                )
            ).edge("0", "1")
            for rank in range(2)
        ]
        rx = await stack.enter_async_context(
            omni_async.open_transport("memory", role="receiver", stage="1", namespace=namespace)
        )
        topology = KVTopology(2, 1, 0)
        (receipt,) = (
            await send_kv(edges[0], "r", caches, TABLE, topology=topology, **HOW)
        ).values()
        # Where rank 1 is can be told by anything that it has put.
        other = await edges[1].put("something", 1)
        assert receipt.metadata is not None
        assert other.metadata is not None
        where = {
            rank: {name: metadata[name] for name in ("source_host", "source_port")}
            for rank, metadata in enumerate((receipt.metadata, other.metadata))
        }
        with pytest.raises(TransferTimeout) as raised:
            await receive_kv(rx.edge("0", "1"), "r", topology=topology, sender=where, timeout=0.2)
        assert raised.value.key == "r_0_0_1_0"
        assert rx.health().parked == 0


async def test_half_of_a_family_is_an_error(edges: tuple[Any, Any]) -> None:
    tx, rx = edges
    await send_kv(tx, "r", paged("stacked"), TABLE, **HOW)
    with pytest.raises(TransferTimeout) as raised:
        await receive_family(rx, "r", {"cfg_text": "r__text"}, timeout=0.2)
    assert raised.value.key is not None
    assert raised.value.key.endswith("r__text")


@pytest.mark.parametrize(
    ("table", "tokens"), [([7, 99, 9], 40), ([7, -1, 9], 40), ([7, 2], 40), ([], 1), ([7], 0)]
)
async def test_blocks_that_are_not_there_are_not_left_out(
    edges: tuple[Any, Any], table: list[int], tokens: int
) -> None:
    tx, _ = edges
    with pytest.raises(UsageError):
        await send_kv(tx, "r", paged("stacked"), table, tokens=tokens, block_size=16)
    assert await drop_kv(tx, "r") == 0


async def test_layers_that_are_no_cache_are_not_left_out(edges: tuple[Any, Any]) -> None:
    tx, _ = edges
    with pytest.raises(UsageError, match="layer 1"):
        await send_kv(tx, "r", [*paged("stacked")[:1], torch.zeros(7)], TABLE, **HOW)
    assert await drop_kv(tx, "r") == 0


def whole(tokens: int = 5, **parts: Any) -> KVPayload:
    made = [torch.ones(tokens, 2, 4), torch.ones(tokens, 2, 4)]
    meta = {"block_size": 4, "num_layers": 2, "dtype": "auto", "seq_len": 5}
    return KVPayload("r", made, list(made), [3, 4], meta)._replace(**parts)


@pytest.mark.parametrize(
    ("cache", "wrong"),
    [
        (b"\0\0\0\x02{}", DecodeError),
        (bytes(pack(whole()))[:-1], DecodeError),
        (bytes(pack(whole())).replace(b"[5,2,4]", b"[5,2,5]"), DecodeError),
        (bytes(pack(whole(tokens=4))), ProtocolError),
        (bytes(pack(whole(keys=[None, torch.ones(5, 2, 4)]))), ProtocolError),
        (bytes(pack(whole(request_id="unknown"))), ProtocolError),
        ({"request_id": "r"}, DecodeError),
        (None, DecodeError),
    ],
    ids=["no cache", "cut", "shape", "fewer tokens", "no layer", "another request", "object", "None"],
)  # fmt: skip
async def test_a_cache_in_part_is_never_handed_out(
    edges: tuple[Any, Any], cache: Any, wrong: type[Exception]
) -> None:
    tx, rx = edges
    await tx.put("omni_0_to_1_kv_cache_r", cache)
    with pytest.raises(wrong):
        await receive_kv(rx, "r", timeout=5)
    for _ in range(1000):
        if not tx.transport.health().pool_used:
            return
        await asyncio.sleep(0.001)
    raise TimeoutError("what was refused still has its memory")


# --- D3: a warm-up waited 30 s for a cache that nobody sends --------------------------------------


@pytest.mark.parametrize("request_id", ["dummy_req_id", "dummy_req_id/3"])
async def test_a_warm_up_does_not_wait(edges: tuple[Any, Any], request_id: str) -> None:
    tx, rx = edges
    begun = time.monotonic()
    assert await receive_kv(rx, request_id) is None
    assert await receive_family(rx, request_id, {"cfg_text": "dummy_req_id/text"}) is None
    assert await receive_kv(rx, request_id, topology=KVTopology(4, 2, 1)) is None
    assert time.monotonic() - begun < 1
    assert rx.transport.health().gets == 0
    with pytest.raises(UsageError, match="warm-up"):
        await send_kv(tx, request_id, paged("stacked"), TABLE, **HOW)
