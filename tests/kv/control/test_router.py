"""The real vllm-router between two instances: what it makes of registrations, and what it sends."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest

from omni_async.cli.free_ports import FreePorts
from omni_async.cli.servers.vllm_router import VllmRouter
from omni_async.kv.control import (
    Peer,
    RequestId,
    ZmqAddress,
    parse_params,
    prefilled_params,
    read_leg,
    read_on,
    write_legs,
)
from tests.kv.control.routers import Message, a_router, completed, instance

P = ZmqAddress("10.0.0.1", 6301, 6105)
D = ZmqAddress("2001:db8::7", 7301, 7501)


@pytest.fixture
def ports() -> Iterator[FreePorts]:
    with FreePorts() as kept:
        yield kept


@pytest.fixture
def router() -> Iterator[VllmRouter]:
    with a_router() as one:
        yield one


def told(message: Message) -> RequestId:
    return RequestId.parse(message.headers["x-request-id"])


async def test_write(router: VllmRouter, ports: FreePorts) -> None:
    async with (
        instance("P", "WRITE", ports.of("p"), P, router, tp_size=2) as prefill,
        instance("D", "WRITE", ports.of("d"), D, router, dp_size=2) as decode,
    ):
        answers = [await completed(router) for _ in range(2)]
        assert [answer.body["choices"][0]["text"] for answer in answers] == ["token"] * 2
        ranks = set()
        for one, other in zip(prefill.requests, decode.requests, strict=True):
            assert told(one) == told(other)
            assert (told(one).prefill_address, told(one).decode_address) == (P, D)
            assert (one.body["max_tokens"], other.body["max_tokens"]) == (1, 5)
            rank = int(other.headers["x-data-parallel-rank"])
            ranks.add(rank)
            here, there = (message.body["kv_transfer_params"] for message in (one, other))
            # What this library's own legs would be, to the key.
            assert (here, there) == write_legs(
                here["transfer_id"], prefill.record, decode.record, decode_dp_rank=rank
            )
            to_prefill = parse_params(here, one.headers["x-request-id"])
            to_decode = parse_params(there, other.headers["x-request-id"])
            assert to_prefill is not None
            assert to_decode is not None
            assert to_prefill.transfer_id == to_decode.transfer_id
            assert (to_prefill.peer, to_decode.peer) == (Peer(D, rank, 2, 1), Peer(P, 0, 1, 2))
        assert ranks == {0, 1}
        assert (
            len({message.body["kv_transfer_params"]["transfer_id"] for message in prefill.requests})
            == 2
        )


async def test_read(router: VllmRouter, ports: FreePorts) -> None:
    async def reply(request: Message) -> dict[str, object]:
        params = parse_params(
            request.body["kv_transfer_params"], request.headers["x-request-id"], own_tp_size=4
        )
        assert params is not None
        assert params.peer == Peer(D, 0, 1, 4)
        rank = int(request.headers["x-data-parallel-rank"])
        answer = prefilled_params(
            params.transfer_id, [3, 4, 500], P, dp_rank=rank, dp_size=2, tp_size=4, num_tokens=40
        )
        return {"choices": [{"text": "x", "index": 0}], "kv_transfer_params": answer}

    async with (
        instance("P", "READ", ports.of("p"), P, router, reply, dp_size=2, tp_size=4) as prefill,
        instance("D", "READ", ports.of("d"), D, router) as decode,
    ):
        for _ in range(2):
            assert (await completed(router)).body["choices"][0]["text"] == "token"
        ranks = set()
        for one, other in zip(prefill.requests, decode.requests, strict=True):
            here, there = (message.body["kv_transfer_params"] for message in (one, other))
            assert here == read_leg(here["transfer_id"], decode.record)
            assert there == read_on({**there, "remote_dp_size": None}, prefill.record)
            params = parse_params(there)  # without a request id: all of it is in the answer
            assert params is not None
            assert (params.transfer_id, params.mode) == (here["transfer_id"], "read")
            assert (params.block_ids, params.num_tokens) == ((3, 4, 500), 40)
            assert (params.peer.address, params.peer.dp_size, params.peer.tp_size) == (P, 2, 4)
            ranks.add(params.peer.dp_rank)
            assert params.peer.dp_rank == int(one.headers["x-data-parallel-rank"])
        assert ranks == {0, 1}


async def test_the_router_is_restarted_and_an_instance_is(
    router: VllmRouter, ports: FreePorts
) -> None:
    async with instance("D", "WRITE", ports.of("d"), D, router) as decode:
        async with instance("P", "WRITE", ports.of("p"), P, router) as prefill:
            assert (await completed(router)).status == 200
            router.kill()
            while prefill.registration.reached or decode.registration.reached:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            router.start()
            assert (await completed(router)).status == 200
            assert len(prefill.requests) == len(decode.requests) == 2
        # The instance comes again at the same address, with other ports for its ranks.
        moved = ZmqAddress("10.0.0.1", 9301, 9501)
        async with instance("P", "WRITE", ports.of("p"), moved, router) as prefill:
            await prefill.registration.wait(10)
            for _ in range(100):
                assert (await completed(router)).status == 200
                if told(prefill.requests[-1]).prefill_address == moved:
                    break
            assert told(decode.requests[-1]).prefill_address == moved


async def test_an_instance_on_ipv6(router: VllmRouter, ports: FreePorts) -> None:
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            pytest.skip("no IPv6 here")
    async with (
        instance("P", "WRITE", ports.of("p"), ZmqAddress("::1", 1, 2), router, host="::1"),
        instance("D", "WRITE", ports.of("d"), D, router) as decode,
    ):
        assert (await completed(router)).status == 200
        assert told(decode.requests[0]).prefill_address == ZmqAddress("::1", 1, 2)
