"""The whole backend: what it needs, what it says of itself, opening and closing."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import omni_async
from omni_async import BackendUnavailable, ConfigError
from omni_async.backends.nixl import NixlBackend, NixlOptions, _native, checks
from omni_async.cli.free_ports import FreePorts
from omni_async.cli.on_this_host import check_here
from omni_async.model import Endpoint, Verb
from omni_async.pool.memory import AnonymousMemory
from omni_async.testing.leaks import no_leaks


def told(**extra: Any) -> NixlOptions:
    return NixlOptions.model_validate(extra)


# --- what is missing ------------------------------------------------------------------------------


def module(**names: Any) -> Any:
    return types.SimpleNamespace(nixlAgentConfig=types.SimpleNamespace(**names))


def failing(error: Exception) -> Any:
    def load() -> Any:
        raise error

    return load


@pytest.mark.parametrize(
    ("load", "said", "remedy"),
    [
        (
            failing(ImportError("No module named 'nixl'")),
            "cannot be imported",
            "--no-deps nixl-cu12",
        ),
        (failing(ImportError("libnuma.so.1: cannot open")), "libnuma.so.1 is missing", "libnuma"),
        (
            lambda: module(),
            "nixl 0.9, nixl-cu12 0.9 is too old|nixl-cu12 0.9",
            "--no-deps nixl-cu12",
        ),
    ],
)
def test_what_is_missing_is_told_with_how_to_get_it(load: Any, said: str, remedy: str) -> None:
    machine = checks.Machine(
        load=load, version=lambda name: "0.9" if name in ("nixl-cu12", "nixl") else None
    )
    with pytest.raises(BackendUnavailable, match=said) as caught:
        checks.check(told(), machine)
    assert remedy in str(caught.value.remedy)
    assert caught.value.backend == "NixlConnector"


def test_nothing_is_missing() -> None:
    checks.check(told(), checks.Machine(load=lambda: module(pthrDelay=0)))


def test_a_device_that_is_not_there() -> None:
    machine = checks.Machine(
        load=lambda: module(pthrDelay=0), device_trouble=lambda device: f"no {device}"
    )
    with pytest.raises(BackendUnavailable, match="no pool on cuda:1: no cuda:1"):
        checks.check(told(receive_device="cuda:1"), machine)


@pytest.mark.parametrize(
    ("extra", "device"),
    [
        ({}, "cpu"),
        ({"receive_device": "cpu"}, "cpu"),
        ({"memory_type": "DRAM"}, "cpu"),
        ({"memory_type": "VRAM"}, "cuda"),
        ({"memory_type": "cuda", "receive_device": "cuda:1"}, "cuda:1"),
        ({"receive_device": "cuda:1"}, "cuda:1"),
    ],
)
def test_where_the_pool_lives(extra: dict[str, Any], device: str, tmp_path: Path) -> None:
    assert checks.device_of(told(**extra)) == device
    facts = NixlBackend().capabilities(told(**extra))
    assert facts.device_memory is (device != "cpu")
    assert (facts.verb, facts.cross_host, facts.recall, facts.revoke) == (
        Verb.WRITE,
        True,
        False,
        True,
    )
    assert checks.pins(device, tmp_path) is (device != "cpu")


@pytest.mark.parametrize(
    "extra",
    [
        {"memory_type": "cpu", "receive_device": "cuda"},
        {"memory_type": "VRAM", "receive_device": "cpu"},
    ],
)
def test_two_options_that_contradict_each_other(extra: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="memory_type is"):
        checks.device_of(told(**extra))


def test_a_card_pins_what_is_registered(tmp_path: Path) -> None:
    (tmp_path / "sys/class/infiniband/mlx5_0").mkdir(parents=True)
    assert checks.pins("cpu", tmp_path)


def test_which_package_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """One variant is taken as it is; of several, and of none, the package by the plain name knows."""
    for installed, wanted in (
        (["nixl_cu12"], "nixl_cu12._bindings"),
        (["nixl_cu13"], "nixl_cu13._bindings"),
        (["nixl_cu12", "nixl_cu13"], "nixl._bindings"),
        ([], "nixl._bindings"),
    ):
        there = set(installed)
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name, there=there: name in there or None
        )
        monkeypatch.setattr(importlib, "import_module", lambda name: name)
        assert _native.load() == wanted  # type: ignore[comparison-overlap]
        monkeypatch.undo()


def test_options_alone_load_nothing() -> None:
    code = (
        "import sys, omni_async.backends.nixl.backend\n"
        "print([word for word in ('nixl', 'nixl_cu12', 'zmq', 'torch') if word in sys.modules])"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"


# --- opening --------------------------------------------------------------------------------------


def spec(port: int, **extra: Any) -> dict[str, Any]:
    return {"name": "nixl", "extra": {"host": "127.0.0.1", "zmq_port": port, **extra}}


async def test_a_plug_in_that_is_not_there(library: None, namespace: str) -> None:
    """Nothing of it is left, and what there is is told."""
    async with no_leaks():
        with FreePorts() as ports:
            opening = omni_async.open_transport(
                spec(ports.of("a"), backends=["UCX", "NONE_SUCH"]),
                role="sender",
                stage="0",
                namespace=namespace,
            )
            with pytest.raises(ConfigError, match=r"no backend 'NONE_SUCH'.*UCX"):
                await opening.__aenter__()


async def test_a_way_that_is_not_there(
    library: None, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UCX_TLS", "none_such")
    with FreePorts() as ports:
        opening = omni_async.open_transport(
            spec(ports.of("a")), role="sender", stage="0", namespace=namespace
        )
        with pytest.raises(BackendUnavailable, match="UCX does not start") as caught:
            await opening.__aenter__()
    assert "UCX_TLS" in str(caught.value.remedy)


async def test_opening_does_not_hold_up_the_loop(
    library: None, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omni_async.backends.nixl.backend.check", lambda options: time.sleep(0.3))
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    ticking = asyncio.create_task(tick())
    with FreePorts() as ports:
        async with omni_async.open_transport(
            spec(ports.of("a")), role="sender", stage="0", namespace=namespace, linger=0
        ):
            ticking.cancel()
    assert ticks > 10


async def test_who_only_asks_whether_it_runs_here(library: None) -> None:
    await check_here("nixl")  # the library itself keeps a few descriptors from its first agent on
    async with no_leaks():
        await check_here("nixl")


async def test_stages_that_name_no_host_meet(library: None, namespace: str) -> None:
    with FreePorts() as ports:
        base = ports.of(Endpoint(namespace, "0", 0, 0))
        extra = {"zmq_port": base, "memory_pool_size": 32 << 20, "agent_name": "mine"}
        deploy = omni_async.load_deploy(
            {
                "connectors": {"engine": {"name": "NixlConnector", "extra": extra}},
                "stages": [
                    {"stage_id": 0, "output_connectors": {"to_stage_1": "engine"}},
                    {"stage_id": 1, "input_connectors": {"from_stage_0": "engine"}},
                ],
            }
        )
        async with (
            omni_async.open_stage(deploy, stage_id=0, namespace=namespace) as thinker,
            omni_async.open_stage(deploy, stage_id=1, namespace=namespace) as talker,
        ):
            waiting = asyncio.ensure_future(talker.input("0").get("k", timeout=20))
            value = np.arange(1 << 20, dtype=np.uint8)
            await thinker.output("1").put("k", value)
            delivery = await waiting
            assert np.array_equal(delivery.value, value)
            del delivery, waiting


def test_late_bytes_are_let_in() -> None:
    """A refusal would end the process: the library copies from its sockets by itself."""
    memory = NixlBackend().memory(told(), "receiver")
    assert isinstance(memory, AnonymousMemory)
    block = memory.allocate(1 << 16)
    block.view()[:] = b"\1" * (1 << 16)
    block.withdraw(4096, 8192)
    assert bytes(block.view(4096, 8192)) == bytes(8192)
    block.view(4096, 1)[:] = b"\2"  # somebody comes late
    assert bytes(block.view(0, 4096)) == b"\1" * 4096
