"""The real engine, on a machine that has what it needs: ``pytest -m hardware tests/backends/mori``.

In: ``RDMA_TEST_HOST``, this host's address in the RDMA network, and ``RDMA_DEVICE_NAME``, the cards to use (all without
it); GPUs of AMD. Out: payloads in two processes of this host that go through a card or between GPUs.
Never: runs on the double.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import omni_async
from omni_async.cli.free_ports import FreePorts
from omni_async.errors import PeerLost
from omni_async.testing.leaks import quiet
from omni_async.testing.processes import PeerProcess
from omni_async.testing.recipes import pattern, pattern_array
from omni_async.testing.rig import settle
from tests.ends import led

pytestmark = pytest.mark.hardware

SIZES = (1, 4096, 1 << 20, (64 << 20) + 1, 200 << 20)
POOL = 1 << 30


def need_vendor() -> None:
    """Skip where the real library cannot be loaded."""
    assert "omni_async.testing.doubles" not in str(sys.modules.get("mori.io"))
    try:
        importlib.import_module("mori.io")
    except (ImportError, OSError) as error:
        pytest.skip(f"amd-mori cannot be loaded: {error}")


def gpus() -> int:
    torch = pytest.importorskip("torch")
    return torch.cuda.device_count() if torch.version.hip else 0


def over_rdma(device: str) -> dict[str, Any]:
    need_vendor()
    host = os.environ.get("RDMA_TEST_HOST")
    if not host:
        pytest.skip("RDMA_TEST_HOST is not set: this host's address in the RDMA network")
    if device != "cpu" and not gpus():
        pytest.skip("no GPU of AMD is here")
    extra = {"host": host, "backend_type": "rdma", "memory_pool_device": device}
    return {**extra, "device_name": os.environ.get("RDMA_DEVICE_NAME", "")}


def between_gpus() -> list[dict[str, Any]]:
    """Options of the sender and of the receiver."""
    need_vendor()
    if gpus() < 2:
        pytest.skip(f"xgmi needs two GPUs of AMD, {gpus()} are here")
    extra = {"host": "127.0.0.1", "backend_type": "xgmi"}
    return [{**extra, "memory_pool_device": f"cuda:{number}"} for number in (0, 1)]


async def exchange(namespace: str, sender: Mapping[str, Any], receiver: Mapping[str, Any]) -> None:
    """Payloads of many sizes, several times, from a process of its own; then its death."""
    with FreePorts() as ports:
        port = ports.of("0")
        where = {"sender_host": sender["host"], "sender_zmq_port": port}
        spec = {
            "name": "mori",
            "extra": {**receiver, **where, "memory_pool_size": POOL, "peer_timeout": 2.0},
        }
        async with (
            led() as peer,
            omni_async.open_transport(
                spec, role="receiver", stage="1", namespace=namespace, linger=0.0
            ) as rx,
        ):
            tx = await peer.open(
                "tx",
                "mori",
                extra={**sender, "zmq_port": port, "memory_pool_size": POOL},
                role="sender",
                stage="0",
                namespace=namespace,
                linger=0.0,
            )
            for turn in range(3):
                for size in SIZES:
                    await tx.put(f"k{size}", pattern(size, turn))
                got = await asyncio.gather(
                    *(rx.get("0", "1", f"k{size}", timeout=30) for size in SIZES)
                )
                pairs = zip(SIZES, got, strict=True)
                right = [
                    np.array_equal(_on_host(one.value), pattern_array(size, turn))
                    for size, one in pairs
                ]
                assert all(right)
                del pairs, got
                await quiet(rx)
                await settle(tx)
            await _lost(peer, tx, rx)


async def _lost(peer: PeerProcess, tx: Any, rx: omni_async.Transport) -> None:
    """Its slots are free as soon as it counts as lost, where access can be revoked."""
    await tx.put("lost", pattern(200 << 20, 1))
    getting = asyncio.create_task(rx.get("0", "1", "lost", timeout=30))
    await asyncio.sleep(0.002)
    peer.kill()
    try:
        await getting
    except PeerLost:
        if rx.capabilities.revoke:
            await quiet(rx, within=10)


def _on_host(value: Any) -> Any:
    return value.cpu().numpy().view(np.uint8).ravel() if hasattr(value, "cpu") else value


@pytest.mark.timeout(180)
@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
async def test_through_a_card(namespace: str, device: str) -> None:
    extra = over_rdma(device)
    await exchange(namespace, extra, extra)


@pytest.mark.timeout(180)
async def test_through_a_card_by_several_queue_pairs(namespace: str) -> None:
    extra = {**over_rdma("cpu"), "qp_per_transfer": 4, "num_workers": 4}
    await exchange(namespace, extra, extra)


@pytest.mark.timeout(180)
async def test_between_gpus(namespace: str) -> None:
    sender, receiver = between_gpus()
    await exchange(namespace, sender, receiver)


async def test_the_doctor_finds_nothing_wrong(namespace: str) -> None:
    from omni_async.abc import Sight
    from omni_async.backends.mori import MoriTransferEngineBackend, MoriTransferEngineOptions

    options = MoriTransferEngineOptions.model_validate(over_rdma("cpu"))
    found = await MoriTransferEngineBackend().examine(options, "sender", Sight())
    assert [one for one in found if one.status == "fault"] == []
