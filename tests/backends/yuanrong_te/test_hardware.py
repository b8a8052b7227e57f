"""The real engine on real NPUs, on a machine with two: ``pytest -m hardware tests/backends/yuanrong_te``.

In: two NPUs that reach each other; ``RDMA_TEST_HOST``, this host's IPv4 address, else the one that is detected. Out:
payloads read from one NPU into the other, in two processes.
Never: runs on a double.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

import pytest

from omni_async.abc import Sight
from omni_async.backends.yuanrong_te import (
    YuanrongTransferEngineBackend,
    YuanrongTransferEngineOptions,
    checks,
)
from omni_async.cli.free_ports import FreePorts
from omni_async.errors import OmniAsyncError
from omni_async.testing.processes import PeerProcess
from omni_async.testing.recipes import pattern
from omni_async.testing.rig import settle
from omni_async.testing.sides import RemoteSide
from tests.ends import led

pytestmark = [pytest.mark.hardware, pytest.mark.timeout(300)]

SIZES = (1, 4096, 1 << 20, (64 << 20) + 1, 200 << 20)
POOL = 1 << 30


@pytest.fixture(scope="module")
def npus() -> int:
    """How many there are; without the vendor's library in this process, which others may have Mooncake's in."""
    found = len(checks.npus(checks.Machine()))
    if found < 2:
        pytest.skip(f"two NPUs of Ascend are needed, {found} are here (/dev/davinci*)")
    try:
        importlib.import_module("torch_npu")
    except ImportError as error:
        pytest.skip(f"torch_npu cannot be imported: {error}")
    return found


def extra(npu: int, **more: Any) -> dict[str, Any]:
    host = os.environ.get("RDMA_TEST_HOST", "auto")
    return {"host": host, "device_name": f"npu:{npu}", "memory_pool_size": POOL, **more}


async def sender(peer: PeerProcess, namespace: str, port: int) -> RemoteSide:
    words: dict[str, Any] = {"namespace": namespace, "linger": 0.0}
    told = extra(0, zmq_port=port)
    return await peer.open("tx", "yuanrong-te", extra=told, role="sender", stage="0", **words)


async def receiver(peer: PeerProcess, namespace: str, port: int) -> RemoteSide:
    words: dict[str, Any] = {"namespace": namespace, "linger": 0.0}
    host = os.environ.get("RDMA_TEST_HOST", "127.0.0.1")
    told = extra(1, sender_host=host, sender_zmq_port=port, peer_timeout=2.0)
    return await peer.open("rx", "yuanrong-te", extra=told, role="receiver", stage="1", **words)


async def test_payloads_are_whole(npus: int, namespace: str) -> None:
    with FreePorts() as ports:
        port = ports.of("0")
        async with led() as one, led() as other:
            tx = await sender(one, namespace, port)
            rx = await receiver(other, namespace, port)
            for turn in range(3):
                for size in SIZES:
                    await tx.put(f"k{size}", pattern(size, turn))
                for size in SIZES:
                    got = await rx.get(f"k{size}", pattern(size, turn), raw=True, timeout=60)
                    assert got.wrong is None, size
                await settle(rx)
                await settle(tx)
            await rx.close()
            await tx.close()


async def test_a_sender_that_is_killed_under_a_read(npus: int, namespace: str) -> None:
    """The receiver goes on, and has its memory back."""
    with FreePorts() as ports:
        port = ports.of("0")
        async with led() as other:
            rx = await receiver(other, namespace, port)
            async with led() as one:
                tx = await sender(one, namespace, port)
                await tx.put("k", pattern(200 << 20, 1))
                one.kill()
            with pytest.raises((OmniAsyncError, TimeoutError)):
                await rx.get("k", timeout=5)
            await settle(rx, within=30)
            await rx.close()


async def test_the_doctor_finds_nothing_wrong(npus: int) -> None:
    """Every pair of NPUs of this host reaches each other."""
    sight = Sight()
    options = YuanrongTransferEngineOptions.model_validate(extra(0))
    backend = YuanrongTransferEngineBackend()
    found = list(checks.all_here(backend.machine(sight)))
    assert checks.device_of(options, {}) == 0
    assert [one for one in found if one.status == "fault"] == []
