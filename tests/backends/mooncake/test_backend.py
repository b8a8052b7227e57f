"""The whole backend, its words over Unix sockets: opening and closing."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from omni_async import BackendUnavailable, ConfigError, ProtocolError, Transport, registry
from omni_async.backends.mooncake import _native, checks
from omni_async.backends.mooncake.backend import MooncakeTransferEngineBackend
from omni_async.backends.mooncake.config import MooncakeTransferEngineOptions
from omni_async.backends.mooncake.engine import MooncakeEngine
from omni_async.model import Verb
from omni_async.pool.device import PinnedMemory
from omni_async.pool.memory import AnonymousMemory
from omni_async.testing.leaks import no_leaks
from tests.backends.mooncake.over_unix import MooncakeOverUnix, OverUnixOptions
from tests.pairs import open_pair

NAME = "mooncake-over-unix"


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    registry.register_backend(MooncakeOverUnix())
    yield
    for name in (NAME, "MooncakeOverUnix"):
        del registry._loaded[name]


# --- opening --------------------------------------------------------------------------------------


async def test_values_arrive(native: object, namespace: str) -> None:
    async with open_pair(NAME, namespace) as (tx, rx):
        for nbytes in (0, 100, 1 << 20, 40 << 20):
            value = np.arange(nbytes, dtype=np.uint8)
            await tx.put("0", "1", "key", {"a": value, "n": nbytes})
            got = (await rx.get("0", "1", "key")).value
            assert got["n"] == nbytes
            assert np.array_equal(got["a"], value)


async def test_what_it_is_capable_of(native: object, namespace: str) -> None:
    async with open_pair(NAME, namespace) as (tx, _):
        facts = tx.capabilities
        assert (facts.verb, facts.cross_host, facts.recall) == (Verb.WRITE, True, False)
        assert facts.revoke
        assert not facts.device_memory
        assert tx.health().pool_device == "cpu"


@pytest.mark.parametrize(
    ("extra", "revoke"),
    [
        ({"protocol": "rdma"}, True),
        ({"protocol": "tcp", "memory_pool_device": "cuda"}, False),
        ({"protocol": "nvlink", "memory_pool_device": "cuda"}, False),
    ],
)
def test_facts_follow_from_the_options(extra: dict[str, Any], revoke: bool) -> None:
    options = MooncakeTransferEngineOptions.model_validate(extra)
    facts = MooncakeTransferEngineBackend().capabilities(options)
    assert facts.revoke is revoke
    assert facts.device_memory is ("memory_pool_device" in extra)


def test_where_memory_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pinned where the process uses CUDA; nobody imports torch to find out."""
    backend, options = MooncakeTransferEngineBackend(), MooncakeTransferEngineOptions()

    def with_cuda(used: bool) -> Any:
        cuda = types.SimpleNamespace(is_initialized=lambda: used, cudart=lambda: None)
        return types.SimpleNamespace(cuda=cuda)

    for torch, kind in (
        (None, AnonymousMemory),
        (types.SimpleNamespace(), AnonymousMemory),
        (with_cuda(False), AnonymousMemory),
        (with_cuda(True), PinnedMemory),
    ):
        monkeypatch.setitem(sys.modules, "torch", torch)
        assert type(backend.memory(options, "sender")) is kind
    on_device = MooncakeTransferEngineOptions(memory_pool_device="cuda:1")
    assert backend.memory(on_device, "sender").device == "cuda:1"


async def test_a_pool_on_a_device_is_smaller(
    native: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = MooncakeOverUnix()
    monkeypatch.setattr("omni_async.backends.mooncake.backend.check", lambda options: None)
    for device, size in (("cpu", None), ("cuda:1", 2 << 30)):
        options = OverUnixOptions(memory_pool_device=device)
        prepared = await backend.prepare(options, "sender")
        assert prepared.memory_pool_size == size


async def test_a_host_that_is_no_host(native: object, namespace: str) -> None:
    with pytest.raises(ConfigError, match="host"):
        async with open_pair(NAME, namespace, host="no.such.host.invalid"):
            raise AssertionError("opened")


async def test_something_is_missing(
    native: object, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ends refuse to open, and nothing is left of it."""

    def gone(host: str) -> None:
        raise ImportError("libibverbs.so.1: cannot open shared object file")

    monkeypatch.setattr(checks, "Machine", lambda: Lacking(load=gone))
    async with no_leaks():
        with pytest.raises(BackendUnavailable, match=r"libibverbs\.so\.1 is missing") as caught:
            async with open_pair(NAME, namespace):
                raise AssertionError("opened")
    assert "apt-get install libibverbs1" in str(caught.value.remedy)


Lacking = checks.Machine


async def test_opening_does_not_hold_up_the_loop(
    native: object, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "omni_async.backends.mooncake.backend.check", lambda options: time.sleep(0.3)
    )
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    ticking = asyncio.create_task(tick())
    async with open_pair(NAME, namespace):
        ticking.cancel()
    assert ticks > 10


async def test_the_ends_have_different_protocols(
    native: object, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are told of it in the handshake, and not by the first write."""
    protocols = iter(["tcp", "rdma"])
    made = MooncakeEngine.__init__

    def make(self: MooncakeEngine, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        self.protocol = next(protocols)

    monkeypatch.setattr(MooncakeEngine, "__init__", make)
    async with open_pair(NAME, namespace) as (tx, rx):
        await tx.put("0", "1", "key", 1)
        with pytest.raises(ProtocolError, match=r"protocol differs.*'tcp'.*'rdma'"):
            await rx.get("0", "1", "key", timeout=10)


def test_options_alone_load_nothing() -> None:
    code = (
        "import sys, omni_async.backends.mooncake.backend\n"
        "print([word for word in ('mooncake', 'zmq', 'torch') if word in sys.modules])"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"


# --- memory ---------------------------------------------------------------------------------------


def _wiring(transport: Transport) -> Any:
    return transport._wiring  # type: ignore[attr-defined]


async def test_closing_gives_registered_memory_back(
    native: _native.NativeEngine, namespace: str
) -> None:
    async with open_pair(NAME, namespace) as (tx, rx):
        await tx.put("0", "1", "key", np.ones(1 << 20, np.uint8))
        await rx.get("0", "1", "key")
        [region] = _wiring(rx).pool.regions.values()
    native.register(region.address, region.nbytes)  # nobody has it registered
    native.unregister(region.address)
