"""A deploy file that names no host: both ends find each other on this one."""

from __future__ import annotations

import asyncio

import omni_async
from omni_async.cli.free_ports import FreePorts
from omni_async.model import Endpoint
from tests.engines import need_mooncake


async def test_stages_that_name_no_host_meet(namespace: str) -> None:
    need_mooncake()
    with FreePorts() as ports:
        base = ports.of(Endpoint(namespace, "0", 0, 0))
        deploy = omni_async.load_deploy(
            {
                "connectors": {
                    "engine": {
                        "name": "MooncakeTransferEngineConnector",
                        "extra": {
                            "protocol": "tcp",
                            "zmq_port": base,
                            "memory_pool_size": 32 << 20,
                        },
                    }
                },
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
            waiting = asyncio.ensure_future(talker.input("0").get("k", timeout=5))
            await thinker.output("1").put("k", bytes(1 << 20))
            delivery = await waiting
            assert delivery.value == bytes(1 << 20)
            del delivery, waiting
