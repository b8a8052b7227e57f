"""F, engines: stages in a row, where the one in the middle has to receive and to send."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import omni_async
from omni_async.cli.free_ports import FreePorts
from omni_async.cli.on_this_host import LOOPBACK, anywhere
from omni_async.registry import options_for
from tests.deploy.addressed import registered
from tests.engines import need_mooncake


@pytest.fixture(params=["addressed", "mooncake"])
def chain(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """A deploy file of A -> B -> C over a connector whose receivers are told ports."""
    name = str(request.param)
    if name == "mooncake":
        need_mooncake()
    with registered(), FreePorts() as ports:
        connectors = {}
        for number in (0, 1):
            base = ports.of(number) - number
            extra = {**anywhere(options_for(name)), "host": LOOPBACK, "zmq_port": base}
            connectors[f"from_{number}"] = {"name": name, "extra": extra}
        yield {
            "connectors": connectors,
            "stages": [
                {"stage_id": 0, "output_connectors": {"to_stage_1": "from_0"}},
                {"stage_id": 1, "output_connectors": {"to_stage_2": "from_1"}},
                {"stage_id": 2},
            ],
        }


# --- F23: the middle stage got only the receiver's role, so nobody could fetch its output ---------


async def test_payloads_and_streams_go_all_the_way(chain: dict[str, Any], namespace: str) -> None:
    deploy = omni_async.load_deploy(chain)
    async with (
        omni_async.open_stage(deploy, 2, namespace=namespace) as last,
        omni_async.open_stage(deploy, 1, namespace=namespace) as middle,
        omni_async.open_stage(deploy, 0, namespace=namespace) as first,
    ):
        assert (set(middle.inputs), set(middle.outputs)) == ({"0"}, {"2"})
        passing = asyncio.create_task(_pass_on(middle))
        for nbytes in (0, 100, 300_000):
            value = {"n": nbytes, "data": np.full(nbytes, nbytes % 251, np.uint8)}
            await first.output(1).put(f"k{nbytes}", value)
            delivery = await last.input(1).get(f"k{nbytes}", timeout=10)
            assert delivery.value["n"] == nbytes
            assert (delivery.value["data"] == value["data"]).all()
            del delivery
        async with last.input(1).stream("s") as reader:
            async with first.output(1).stream("s") as writer:
                for number in range(5):
                    await writer.send(np.full(40_000 * number, number, np.uint8))
            got = [(len(chunk), set(chunk.tolist())) async for chunk in reader]
        assert got == [(40_000 * number, {number} if number else set()) for number in range(5)]
        await passing


async def _pass_on(stage: omni_async.Stage) -> None:
    """What the stage in the middle does."""
    for nbytes in (0, 100, 300_000):
        delivery = await stage.input(0).get(f"k{nbytes}", timeout=10)
        await stage.output(2).put(f"k{nbytes}", delivery.value)
        delivery.release()
        del delivery
    async with stage.input(0).stream("s") as reader, stage.output(2).stream("s") as writer:
        async for chunk in reader:
            await writer.send(chunk)
