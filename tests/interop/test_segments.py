"""The unmodified ``SharedMemoryConnector`` of vLLM-Omni 0.30 in another process, and ours, both ways."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

# ruff: noqa: E402 - what follows needs PyTorch
import omni_async
from omni_async.cli.bench.peer_vendors import SHM

from .test_connector import equal, payload, tensor

if TYPE_CHECKING:
    from .child import Child

WIRE = {"name": SHM, "extra": {"peer": "vllm-omni"}}
KB, MB = 1 << 10, 1 << 20


@pytest.fixture(scope="module")
def number(their_kv: Child) -> int:
    """Of a connector that puts and gets."""
    made: int = their_kv.call("open", "sender", 1, 0, (1, 1), 0, SHM)
    return made


@pytest.fixture
async def ends(namespace: str) -> AsyncIterator[tuple[Any, Any]]:
    async with (
        omni_async.open_transport(
            WIRE, role="sender", stage="0", namespace=namespace, linger=0
        ) as tx,
        omni_async.open_transport(WIRE, role="receiver", stage="1", namespace=namespace) as rx,
    ):
        yield tx, rx
    assert not [name for name in os.listdir("/dev/shm") if namespace in name]


VALUES: list[Any] = [
    None,
    "text",
    b"\0" * 300_000,
    {},
    {"list": [1, [2.5, None], "x"], "nested": {"a": {"b": True}}},
    torch.arange(12, dtype=torch.bfloat16).reshape(3, 4),
    {"bf16": tensor(8192), "empty": torch.empty(0, 7), "f32": np.linspace(0, 1, 9, dtype=np.float32)},
    payload(16 * MB),
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
async def test_values_both_ways(
    their_kv: Child, number: int, ends: tuple[Any, Any], namespace: str, value: Any
) -> None:
    tx, rx = ends
    receipt = await tx.put("0", "1", f"{namespace}-ours", value)
    found, nbytes = await their_kv.ask("get", number, f"{namespace}-ours")
    assert equal(found, value)
    assert nbytes == receipt.nbytes
    getting = asyncio.ensure_future(rx.get("0", "1", f"{namespace}-theirs", timeout=20))
    assert await their_kv.ask("put", number, f"{namespace}-theirs", value) == (True, nbytes)
    with await getting as delivery:
        assert equal(delivery.value, value)
        assert delivery.nbytes == nbytes
    assert await their_kv.ask("waiting", number) == 0


async def test_many_both_ways(
    their_kv: Child, number: int, ends: tuple[Any, Any], namespace: str
) -> None:
    tx, rx = ends
    keys = [f"{namespace}-{i}_0_0" for i in range(40)]
    await tx.put_many("0", "1", {key: {"n": key} for key in keys})
    for key in keys:
        assert (await their_kv.ask("get", number, key))[0] == {"n": key}
    getting = asyncio.ensure_future(rx.get_many("0", "1", keys, timeout=20))
    for key in keys:
        await their_kv.ask("put", number, key, {"back": key})
    for key, delivery in (await getting).items():
        assert delivery.value == {"back": key}


async def test_what_they_replace_is_delivered_once(
    their_kv: Child, number: int, ends: tuple[Any, Any], namespace: str
) -> None:
    _, rx = ends
    for value in ("old", "new"):
        await their_kv.ask("put", number, f"{namespace}-k", value)
    assert (await rx.get("0", "1", f"{namespace}-k", timeout=5)).value == "new"
    with pytest.raises(omni_async.errors.KeyNotFound):
        await rx.get("0", "1", f"{namespace}-k", timeout=0)


async def test_a_deployment_is_moved_stage_by_stage(
    their_kv: Child, number: int, namespace: str
) -> None:
    """theirs → ours → theirs, over the connector that most of its deploy files have."""
    deploy = omni_async.load_deploy(
        {
            "connectors": {"wire": WIRE},
            "stages": [
                {"stage_id": 0, "output_connectors": {"to_stage_1": "wire"}},
                {
                    "stage_id": 1,
                    "input_connectors": {"from_stage_0": "wire"},
                    "output_connectors": {"to_stage_2": "wire"},
                },
                {"stage_id": 2, "input_connectors": {"from_stage_1": "wire"}},
            ],
        }
    )
    async with omni_async.open_stage(deploy, 1, namespace=namespace) as stage:
        for i in range(5):
            value = payload(64 * KB)
            await their_kv.ask("put", number, f"{namespace}-{i}_0_0", value)
            with await stage.input("0").get(f"{namespace}-{i}_0_0", timeout=10) as item:
                await stage.output("2").put(f"{namespace}-{i}_1_0", item.value)
            found, _ = await their_kv.ask("get", number, f"{namespace}-{i}_1_0")
            assert equal(found, value)
    assert not [name for name in os.listdir("/dev/shm") if namespace in name]
