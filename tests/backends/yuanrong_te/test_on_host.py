"""The vendor's own engine, with a library that stands for CANN: two processes, real bytes, no NPU.

It shows the vendor's control plane, the order of its calls, its threads and what it returns; nothing of HCCL or of an NPU.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from omni_async.errors import EngineFault, PeerLost
from omni_async.testing.processes import PeerProcess
from omni_async.testing.recipes import pattern
from omni_async.testing.rig import settle
from omni_async.testing.sides import RemoteSide
from tests.backends.yuanrong_te.on_host import LIBRARY, YuanrongTransferEngineOnHost
from tests.ends import Ends, ends, led

CONNECTOR = YuanrongTransferEngineOnHost.alias
TARGET = "tests.backends.yuanrong_te.on_host:YuanrongTransferEngineOnHost"
SIZES = (1, 300, 1 << 20, (40 << 20) + 1)
"""The last one takes three reads."""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What stands for CANN, made here."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no g++ to make a stand-in for CANN")
    loading = "from omni_async.backends.yuanrong_te._native import load; load()"
    tried = subprocess.run([sys.executable, "-c", loading], capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"the vendor's module cannot be loaded: {tried.stderr.splitlines()[-1]}")
    made = tmp_path_factory.mktemp("cann") / "libascendcl.so"
    source = Path(__file__).with_name("cann.cpp")
    flags = ["-std=c++17", "-O1", "-shared", "-fPIC", "-pthread", "-Wl,-soname,libascendcl.so"]
    subprocess.run([compiler, *flags, "-o", str(made), str(source)], check=True, timeout=50)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(LIBRARY, str(made))
        yield made


@pytest.fixture
def pipeline(namespace: str, library: Path) -> Iterator[Ends]:
    with ends("yuanrong-te", namespace) as made:
        yield made


async def away(pipeline: Ends, peer: PeerProcess, role: str, stage: str) -> RemoteSide:
    words = pipeline.options(role, stage)  # type: ignore[arg-type]
    words["extra"] = {**words["extra"], "inline_limit": 256, "memory_pool_size": 256 << 20}
    return await peer.open(role, CONNECTOR, target=TARGET, **words)


async def test_payloads_are_whole(pipeline: Ends) -> None:
    async with led() as one, led() as other:
        tx = await away(pipeline, one, "sender", "0")
        rx = await away(pipeline, other, "receiver", "1")
        for turn in range(2):
            for size in SIZES:
                await tx.put(f"k{size}", pattern(size, turn))
            for size in SIZES:
                got = await rx.get(f"k{size}", pattern(size, turn), timeout=20)
                assert got.wrong is None, size
            await settle(rx)
            await settle(tx)
        await rx.close()
        await tx.close()


@pytest.mark.soak
async def test_a_sender_that_is_killed_and_comes_back(pipeline: Ends) -> None:
    async with led() as other:
        rx = await away(pipeline, other, "receiver", "1")
        for turn in range(2):
            async with led() as one:
                tx = await away(pipeline, one, "sender", "0")
                await tx.put("k", pattern(1 << 20, turn))
                got = await rx.get("k", pattern(1 << 20, turn), timeout=20)
                assert got.wrong is None
                one.kill()
        with pytest.raises((EngineFault, PeerLost, TimeoutError)):
            await rx.get("k", timeout=1)
        await rx.close()


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_it_keeps_all_promises(library: Path) -> None:
    """In a run of its own: no process may have this library and Mooncake's."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["--timeout=100", "tests/backends/yuanrong_te/on_host_conformance.py"]
    root = Path(__file__).parents[3]
    ended = subprocess.run(
        command, cwd=root, capture_output=True, text=True, env=dict(os.environ), check=False
    )
    assert ended.returncode == 0, ended.stdout[-5000:]
