"""open_stage: one call opens all edges of a stage, over real transports."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from omni_async import BackendUnavailable, ConfigError, UsageError, open_transport, registry
from omni_async.backends.shm import SharedMemoryBackend, SharedMemoryOptions
from omni_async.deploy import Stage, load_deploy, open_stage
from omni_async.deploy import stage as stage_module

CHAIN = {
    "stages": [{"stage_id": 0}, {"stage_id": 1}, {"stage_id": 2}],
    "edges": [{"from": 0, "to": 1}, {"from": 1, "to": 2}, {"from": 2, "to": 0}],
}


async def test_a_value_goes_round_all_stages(namespace: str) -> None:
    deploy = load_deploy(CHAIN)
    async with (
        open_stage(deploy, 2, namespace=namespace) as last,
        open_stage(deploy, "0", namespace=namespace) as first,
        open_stage(deploy, stage_id=1, rank=0, replica=0, namespace=namespace) as middle,
    ):
        await first.output(1).put("req-1", [1])
        item = await middle.input("0").get("req-1", timeout=10)
        await middle.output("2").put("req-1", [*item.value, 2])
        item = await last.input(1).get("req-1", timeout=10)
        await last.output("0").put("req-1", [*item.value, 3])
        assert (await first.input(2).get("req-1", timeout=10)).value == [1, 2, 3]

        health = middle.health()
        assert set(health) == {"sender SharedMemoryConnector", "receiver SharedMemoryConnector"}
        assert health["sender SharedMemoryConnector"].puts == 1
        assert health["receiver SharedMemoryConnector"].gets == 1
        assert middle.id == "1"
        assert repr(middle) == "<Stage 1: from ['0'], to ['2']>"


async def test_one_sender_serves_all_outgoing_edges(namespace: str) -> None:
    deploy = load_deploy(
        {**CHAIN, "edges": [{"from": 0, "to": 1}, {"from": 0, "to": 2}, {"from": 1, "to": 2}]}
    )
    async with (
        open_stage(deploy, 0, namespace=namespace) as first,
        open_stage(deploy, 1, namespace=namespace) as middle,
        open_stage(deploy, 2, namespace=namespace) as last,
    ):
        assert list(first.transports) == ["sender SharedMemoryConnector"]
        assert list(last.transports) == ["receiver SharedMemoryConnector"]
        await first.output(1).put("k", "left")
        await first.output(2).put("k", "right")
        await middle.output(2).put("k", "below")
        assert (await middle.input(0).get("k", timeout=10)).value == "left"
        assert (await last.input(0).get("k", timeout=10)).value == "right"
        assert (await last.input(1).get("k", timeout=10)).value == "below"


async def test_inputs_with_other_options_get_a_receiver_of_their_own(namespace: str) -> None:
    def shm(ttl: float) -> dict[str, Any]:
        return {"name": "SharedMemoryConnector", "extra": {"buffer_ttl_seconds": ttl}}

    deploy = load_deploy(
        {
            "stages": [
                {"stage_id": 0},
                {"stage_id": 1},
                {
                    "stage_id": 2,
                    "input_connectors": {"from_stage_0": shm(1.0), "from_stage_1": shm(2.0)},
                },
            ]
        }
    )
    async with open_stage(deploy, 2, namespace=namespace) as last:
        assert list(last.transports) == [
            "receiver SharedMemoryConnector",
            "receiver SharedMemoryConnector 2",
        ]
        assert last.input(0).transport is not last.input(1).transport


async def test_an_edge_that_is_not_there_is_named(namespace: str) -> None:
    async with open_stage(load_deploy(CHAIN), 1, namespace=namespace) as middle:
        with pytest.raises(UsageError, match="no edge leads from stage 2 to 1; known: 0"):
            middle.input(2)
        with pytest.raises(UsageError, match="no edge leads from stage 1 to 0; known: 2"):
            middle.output("0")


async def test_a_stage_that_is_not_there_is_named() -> None:
    with pytest.raises(UsageError, match="has no stage '7'"):
        async with open_stage(load_deploy(CHAIN), 7):
            pass


async def test_opening_is_all_or_nothing(namespace: str) -> None:
    deploy = load_deploy(
        {
            "stages": [
                {"stage_id": 0},
                {
                    "stage_id": 1,
                    "input_connectors": {"from_stage_0": {"name": "YuanrongConnector"}},
                    "output_connectors": {"to_stage_0": {"name": "shm"}},
                },
            ]
        }
    )
    for _ in range(2):  # the second time would meet what the first one left open
        with pytest.raises((ConfigError, BackendUnavailable)):
            async with open_stage(deploy, 1, namespace=namespace):
                pass
    async with open_transport("shm", role="sender", stage=1, namespace=namespace):
        pass


async def test_closing_closes_all_even_after_an_error(namespace: str) -> None:
    opened: list[Stage] = []

    async def live() -> None:
        async with open_stage(load_deploy(CHAIN), 1, namespace=namespace) as middle:
            opened.append(middle)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await live()
    assert all(transport.closed for transport in opened[0].transports.values())


async def test_cancellation_while_open_closes_all(namespace: str) -> None:
    opened: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def live() -> None:
        async with open_stage(load_deploy(CHAIN), 1, namespace=namespace) as middle:
            opened.set_result(middle)
            await asyncio.Event().wait()

    task = asyncio.create_task(live())
    middle = await opened
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert all(transport.closed for transport in middle.transports.values())


class AddressedOptions(SharedMemoryOptions):
    sender_host: str | None = None
    sender_zmq_port: int | None = None


class AddressedBackend(SharedMemoryBackend):
    name = "AddressedConnector"
    alias = "addressed"
    options = AddressedOptions


@pytest.fixture
def addressed() -> Iterator[None]:
    registry.register_backend(AddressedBackend())
    yield
    for name in ("addressed", "AddressedConnector"):
        registry._loaded.pop(name)


@pytest.mark.usefixtures("addressed")
async def test_resolve_tells_where_each_sender_is(
    namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs: list[Any] = []

    def noting(spec: Any, **where: Any) -> Any:
        specs.append((spec, where["role"], where["rank"], where["replica"]))
        return open_transport("shm", **where)

    monkeypatch.setattr(stage_module, "open_transport", noting)
    deploy = load_deploy(
        {
            **CHAIN,
            "edges": [{"from": 0, "to": 2}, {"from": 1, "to": 2}, {"from": 2, "to": 0}],
            "connectors": {"a": {"name": "addressed", "extra": {"buffer_ttl_seconds": 9.0}}},
            "stages": [
                {"stage_id": 0},
                {"stage_id": 1},
                {
                    "stage_id": 2,
                    "input_connectors": {"from_stage_0": "a", "from_stage_1": "a"},
                },
            ],
        }
    )

    def resolve(stage: str, rank: int, replica: int) -> tuple[str, int]:
        return f"host-{stage}", 5000 + 10 * rank + replica

    async with open_stage(
        deploy, 2, rank=1, replica=2, namespace=namespace, resolve=resolve
    ) as last:
        assert set(last.inputs) == {"0", "1"}
    own = {"buffer_ttl_seconds": 9.0, "sender_zmq_port": 5012}
    assert specs == [
        ({"name": "SharedMemoryConnector", "extra": {}}, "sender", 1, 2),
        (
            {"name": "AddressedConnector", "extra": {**own, "sender_host": "host-0"}},
            "receiver",
            1,
            2,
        ),
        (
            {"name": "AddressedConnector", "extra": {**own, "sender_host": "host-1"}},
            "receiver",
            1,
            2,
        ),
    ]
