"""Addresses and ports: who listens where follows from a rule, and who finds it taken is told."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

import omni_async
from tests.deploy.addressed import registered

BASE = 50051


@pytest.fixture(autouse=True)
def connector() -> Iterator[None]:
    """A connector with ports is known, as ``addressed``."""
    with registered():
        yield


def deployment(stages: int, ranks: int = 1, replicas: int = 1, **extra: Any) -> dict[str, Any]:
    """So many stages send to one more, over one connector with one base port."""
    size = {"tensor_parallel_size": ranks, "num_replicas": replicas, "host": "node"}
    out = {"output_connectors": {f"to_stage_{stages}": "wire"}}
    return {
        "connectors": {"wire": {"name": "addressed", "extra": {"zmq_port": BASE, **extra}}},
        "stages": [
            *({"stage_id": number, **size, **out} for number in range(stages)),
            {"stage_id": stages, **size},
        ],
    }


# --- E7: address already in use -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stages", "ranks", "replicas", "extra", "ports"),
    [
        (4, 1, 1, {}, {0, 1, 2, 3}),
        (1, 4, 1, {}, {0, 1, 2, 3}),
        (1, 1, 4, {}, {0, 1, 2, 3}),
        (1, 2, 2, {}, {0, 1, 2, 3}),
        (2, 2, 1, {"port_scheme": "strided"}, {0, 1, 16, 17}),
        (2, 1, 2, {"port_scheme": "strided"}, {0, 1, 1024, 1025}),
    ],
)
async def test_four_at_once_with_one_base_port_listen_apart(
    stages: int, ranks: int, replicas: int, extra: Any, ports: set[int], namespace: str
) -> None:
    deploy = omni_async.load_deploy(deployment(stages, ranks, replicas, **extra))
    everyone = [
        (stage, rank, replica)
        for stage in range(stages)
        for rank in range(ranks)
        for replica in range(replicas)
    ]
    async with contextlib.AsyncExitStack() as stack:

        async def start(stage: int, rank: int, replica: int) -> str | None:
            opened = await stack.enter_async_context(
                omni_async.open_stage(
                    deploy, stage, rank=rank, replica=replica, namespace=namespace
                )
            )
            await opened.output(stages).put("k", (stage, rank, replica), timeout=5)
            return opened.health()["sender AddressedDouble"].host

        hosts = await asyncio.gather(*(start(*who) for who in everyone))
        assert {int(str(host).rpartition("/")[2]) - BASE for host in hosts} == ports

        for rank in range(ranks):
            for replica in range(replicas):
                last = await stack.enter_async_context(
                    omni_async.open_stage(
                        deploy, stages, rank=rank, replica=replica, namespace=namespace
                    )
                )
                for stage in range(stages):
                    delivery = await last.input(stage).get("k", timeout=5)
                    assert delivery.value == (stage, rank, replica)


async def test_a_file_in_which_two_get_one_port_is_refused() -> None:
    with pytest.raises(omni_async.ConfigError) as refused:
        omni_async.load_deploy(deployment(2, ranks=2))
    [mistake] = refused.value.mistakes
    assert mistake.path.startswith("stages[1]")
    for part in ("stage 0 rank 1", "stage 1 rank 0", str(BASE + 1), "port_scheme: strided"):
        assert part in mistake.text


async def test_a_busy_port_is_an_error_at_once_and_nothing_half_started(namespace: str) -> None:
    deploy = omni_async.load_deploy(deployment(1))
    async with omni_async.open_stage(deploy, 0, namespace=namespace) as first:
        for _ in range(2):
            with pytest.raises(omni_async.UsageError, match=str(BASE)):
                async with omni_async.open_stage(deploy, 0, namespace=namespace):
                    pass
        await first.output(1).put("k", "still here")
        async with omni_async.open_stage(deploy, 1, namespace=namespace) as last:
            assert (await last.input(0).get("k", timeout=5)).value == "still here"
    async with omni_async.open_stage(deploy, 0, namespace=namespace):
        pass
