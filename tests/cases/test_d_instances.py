"""D, of prefill and decode instances: whose requests belong together, and time limits that are none."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from omni_async.cli.free_ports import FreePorts
from omni_async.errors import ConfigError, ProtocolError
from omni_async.kv.control import Registered, Role, load_kv_config, new_request_id, write_legs
from omni_async.kv.control.options import EXTRA
from omni_async.kv.instance import KVInstance
from tests.kv.nodes import Node, layout

HOST = "127.0.0.1"
AT_ONCE = 2.0
"""Seconds."""


@pytest.fixture
def ports() -> Iterator[FreePorts]:
    with FreePorts() as kept:
        yield kept


def opened(role: str, node: Node, ports: FreePorts, namespace: str) -> KVInstance:
    extra = {
        "host_ip": HOST,
        "handshake_port": ports.of((role, "handshake")),
        "notify_port": ports.of((role, "notify")),
        "backend": "shm",
    }
    config = {"kv_role": role, EXTRA: extra}
    return KVInstance(config, node.layout, node.caches, namespace=namespace)


def legs(prefill: KVInstance, decode: KVInstance) -> tuple[dict[str, Any], dict[str, Any]]:
    return write_legs("tx-1", known("P", prefill), known("D", decode))


def known(role: Role, instance: KVInstance) -> Registered:
    address = str(instance.address)
    return Registered(type=role, http_address="", zmq_address=address, transfer_mode="WRITE")


# --- D7: each side adds its own random suffix to the request id -----------------------------------


async def test_ids_that_differ_on_both_sides(ports: FreePorts, namespace: str) -> None:
    source, target = Node(layout()), Node(layout())
    source.fill(1)
    async with (
        opened("kv_producer", source, ports, namespace) as prefill,
        opened("kv_consumer", target, ports, namespace) as decode,
    ):
        to_prefill, to_decode = legs(prefill, decode)
        from_proxy = new_request_id(prefill.address, decode.address)
        job = await prefill.prefill(to_prefill, f"cmpl-{from_proxy}-0-11111111", block_ids=[1, 2])
        progress = await decode.decode(to_decode, f"cmpl-{from_proxy}-0-22222222", block_ids=[7, 5])
        assert job is not None
        assert progress is not None
        await job.seal()
        await progress.all(timeout=10)
        assert not target.wrong(1, [7, 5], source.layout, [1, 2])


async def test_without_a_shared_id_both_refuse_at_once(ports: FreePorts, namespace: str) -> None:
    async with (
        opened("kv_producer", Node(layout()), ports, namespace) as prefill,
        opened("kv_consumer", Node(layout()), ports, namespace) as decode,
    ):
        to_prefill, to_decode = legs(prefill, decode)
        del to_prefill["transfer_id"]
        to_decode["transfer_id"] = None
        from_proxy = new_request_id(prefill.address, decode.address)
        for call in (
            prefill.prefill(to_prefill, from_proxy, block_ids=[1]),
            decode.decode(to_decode, from_proxy, block_ids=[1]),
        ):
            with pytest.raises(ProtocolError, match="no transfer_id, without which no two"):
                await asyncio.wait_for(call, AT_ONCE)


# --- D15: a time limit of null means to wait for ever ---------------------------------------------


@pytest.mark.parametrize("option", ["transfer_timeout", "defer_timeout", "handshake_timeout"])
@pytest.mark.parametrize("value", [None, 0, -1, "0", "-1", "nan", float("nan"), float("inf"), ""])
def test_time_limits_that_are_none_are_refused(option: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        load_kv_config({"kv_role": "kv_both", EXTRA: {option: value}})
    assert caught.value.path == f"{EXTRA}.{option}"
    assert "has to be a number above 0, not" in str(caught.value)


@pytest.mark.parametrize("option", ["transfer_timeout", "defer_timeout", "handshake_timeout"])
def test_time_limits_as_text_are_seconds(option: str) -> None:
    config = load_kv_config({"kv_role": "kv_both", EXTRA: {option: "30"}})
    assert getattr(config.options, option) == 30.0
