"""The unmodified connectors to stores of vLLM-Omni 0.30 in another process, and ours, at the same servers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

# ruff: noqa: E402 - what follows needs PyTorch
import omni_async
from omni_async.cli.bench.peer_vendors import MOONCAKE_STORE, YUANRONG
from omni_async.errors import EncodeError, KeyNotFound, UsageError
from tests.stores import loaded_or_skip

from .store_edges import Edge, edge_over
from .test_connector import equal, payload, tensor

KB, MB = 1 << 10, 1 << 20
SIZES = [4 * KB, 64 * KB, MB, 16 * MB, 64 * MB]
MODULES = {MOONCAKE_STORE: "mooncake.store", YUANRONG: "yr.datasystem.kv_client"}

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module", params=list(MODULES))
def both(request: pytest.FixtureRequest, omni_wheel: Path) -> Iterator[Edge]:
    """A server, and their connector in a process of its own."""
    loaded_or_skip(MODULES[request.param])
    with edge_over(request.param, omni_wheel) as made:
        yield made


VALUES: list[Any] = [
    None,
    "text",
    b"some bytes",
    b"\0" * 300_000,
    [],
    {},
    {"list": [1, [2.5, None], "x"], "nested": {"a": {"b": {"c": True}}}},
    torch.arange(12, dtype=torch.bfloat16).reshape(3, 4),
    {"bf16": tensor(8192), "f16": torch.ones(3, dtype=torch.float16), "empty": torch.empty(0, 7)},
    {"f32": np.linspace(0, 1, 50_000, dtype=np.float32), 7: "a number for a key"},
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
async def test_values_both_ways(both: Edge, namespace: str, value: Any) -> None:
    key = f"{namespace}-value"
    async with both.sender(namespace) as tx, both.receiver(namespace) as rx:
        receipt = await tx.put("0", "1", f"{key}-ours", value)
        found, nbytes = await both.theirs.ask("get", f"{key}-ours")
        assert equal(found, value)
        assert nbytes == receipt.nbytes
        assert await both.theirs.ask("put", f"{key}-theirs", value) == (True, nbytes)
        with await rx.get("0", "1", f"{key}-theirs", timeout=10) as delivery:
            assert equal(delivery.value, value)
            assert delivery.nbytes == nbytes
        await tx.cleanup(f"{key}-ours")


@pytest.mark.parametrize("nbytes", SIZES)
async def test_sizes_both_ways(both: Edge, namespace: str, nbytes: int) -> None:
    value = payload(nbytes)
    key = f"{namespace}-{nbytes}"
    async with both.sender(namespace) as tx, both.receiver(namespace) as rx:
        await tx.put("0", "1", f"{key}-ours", value)
        found, _ = await both.theirs.ask("get", f"{key}-ours")
        assert equal(found, value)
        del found
        await tx.cleanup(f"{key}-ours")
        assert (await both.theirs.ask("put", f"{key}-theirs", value))[0]
        with await rx.get("0", "1", f"{key}-theirs", timeout=10) as delivery:
            assert equal(delivery.value, value)


async def test_each_waits_for_the_other(both: Edge, namespace: str) -> None:
    key = f"{namespace}-wait"
    async with both.sender(namespace) as tx, both.receiver(namespace) as rx:
        ours = [asyncio.create_task(rx.get("0", "1", f"{key}-t{n}", timeout=10)) for n in range(8)]
        asked = asyncio.create_task(both.theirs.ask("get", f"{key}-o"))
        await asyncio.sleep(0.1)
        await tx.put("0", "1", f"{key}-o", {"n": 1})
        assert (await asked)[0] == {"n": 1}
        for n in reversed(range(8)):
            await both.theirs.ask("put", f"{key}-t{n}", {"n": n})
        for n, getting in enumerate(ours):
            with await getting as delivery:
                assert delivery.value == {"n": n}
        await tx.cleanup(f"{key}-o")


async def test_what_ours_has_delivered_is_gone(both: Edge, namespace: str) -> None:
    """They never delete anything."""
    key = f"{namespace}-once"
    async with both.receiver(namespace) as rx:
        await both.theirs.ask("put", key, {"t": tensor(MB)})
        (await rx.get("0", "1", key, timeout=10)).release()
        with pytest.raises(KeyNotFound):
            await rx.get("0", "1", key, timeout=0)
        assert await both.theirs.ask("get", key) is None
        # And a name can be used again at once.
        await both.theirs.ask("put", key, {"again": 1})
        with await rx.get("0", "1", key, timeout=10) as delivery:
            assert delivery.value == {"again": 1}


async def test_what_ours_has_put_stays_until_it_expires(both: Edge, namespace: str) -> None:
    key = f"{namespace}-stays"
    async with both.sender(namespace, buffer_ttl_seconds=2.0) as tx:
        await tx.put("0", "1", key, {"n": 1})
        began = time.monotonic()
        for _ in range(3):
            assert (await both.theirs.ask("get", key))[0] == {"n": 1}
        assert time.monotonic() - began < 2, "too slow to tell"
        assert len(tx._keeping.backlog) == 1
        while len(tx._keeping.backlog):
            assert time.monotonic() < began + 30
            await asyncio.sleep(0.05)
        assert time.monotonic() - began > 1.9
        assert await both.theirs.ask("get", key) is None


async def test_cleanup_takes_back_what_was_put_for_them(both: Edge, namespace: str) -> None:
    key = f"{namespace}-back"
    async with both.sender(namespace) as tx:
        await tx.put("0", "1", key, b"x", request_id="r")
        assert await tx.cleanup("r") == 1
        assert await both.theirs.ask("get", key) is None


async def test_a_second_put_replaces_the_first(both: Edge, namespace: str) -> None:
    key = f"{namespace}-twice"
    async with both.sender(namespace) as tx:
        await tx.put("0", "1", key, {"n": 1, "t": tensor(4096)})
        await tx.put("0", "1", key, {"n": 2})
        assert (await both.theirs.ask("get", key))[0] == {"n": 2}
        await tx.cleanup(key)


async def test_edges_and_keys_are_what_they_expect(both: Edge, namespace: str) -> None:
    """Whatever the namespace, the rank and the replica."""
    odd = ["k@0_1", "k:0_1", "a_b_c", "#(%)*", "k" * 150, *both.odd_keys]
    async with both.sender(namespace, rank=3) as tx, both.receiver(namespace, rank=3) as rx:
        for number, text in enumerate(odd):
            key = f"{namespace}{text}"
            value = {"n": number, "t": tensor(1024)}
            for edge in (("0", "1"), ("0", "12")):
                await tx.put(*edge, key, value, request_id=f"{number} to {edge[1]}")
                assert equal((await both.theirs.ask("get", key, edge))[0], value)
                assert await tx.cleanup(f"{number} to {edge[1]}") == 1
            for edge in (("10", "1"), ("9", "1")):
                assert (await both.theirs.ask("put", key, value, edge))[0]
                with await rx.get(*edge, key, timeout=10) as delivery:
                    assert equal(delivery.value, value)


async def test_keys_that_their_store_refuses(both: Edge, namespace: str) -> None:
    async with both.sender(namespace) as tx, both.receiver(namespace) as rx:
        for text in both.refused_keys:
            key = f"{namespace}{text}"
            with pytest.raises(UsageError):
                await tx.put("0", "1", key, b"x")
            with pytest.raises(UsageError):
                await rx.get("0", "1", key, timeout=1)
            assert not (await both.theirs.ask("put", key, b"x"))[0]


@pytest.mark.parametrize(
    "value",
    [
        {"a": 1j},
        {"a": {"__tensor__": 1}},
        {"a": 1 << 64},
        {"deep": [object()]},
        torch.ones(2).to_sparse(),
    ],
    ids=["complex", "marker", "large", "object", "sparse"],
)
async def test_what_their_wire_cannot_carry_is_refused(
    both: Edge, namespace: str, value: Any
) -> None:
    async with both.sender(namespace) as tx:
        with pytest.raises(EncodeError) as caught:
            await tx.put("0", "1", f"{namespace}-refused", value)
        assert caught.value.path is not None
        assert tx.health().pool_used == 0


async def test_what_is_not_their_format_is_told(both: Edge, namespace: str) -> None:
    """Each end without ``peer: vllm-omni`` says what is missing."""
    key = f"{namespace}-forgotten"
    async with both.receiver("default", peer="omni-async") as rx:
        await both.theirs.ask("put", key, {"n": 1})
        with pytest.raises(omni_async.DecodeError, match="peer: vllm-omni"):
            await rx.get("0", "1", key, timeout=10)
