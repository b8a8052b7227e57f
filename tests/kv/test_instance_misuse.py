"""What an instance refuses at once: before a model computes, before anybody is dialed, and after its end."""

from __future__ import annotations

import asyncio
import gc
import socket
from typing import Any

import pytest

from omni_async.errors import ClosedError, TransferCancelled, UsageError
from omni_async.kv.control import read_leg, read_on
from omni_async.kv.instance import KVInstance
from tests.kv.houses import HOST, House, both, computed, whole
from tests.kv.pairs import SOURCE, TARGET, pair

MODES = pytest.mark.parametrize("mode", ["write", "read"])
WRONG: list[Any] = [[1.7], ["3"], [True], [99], [1, 1], [-1], "12", 5, {1: 2}, {1, 2}]


def _legs(house: House, mode: str, transfer_id: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Params of a request to prefill, and of one to decode that nobody is asked for."""
    house.mode = mode
    decode = {
        "do_remote_prefill": True,
        "transfer_id": transfer_id,
        "remote_host": HOST,
        "remote_handshake_port": house.ports.of("silent"),
        "remote_notify_port": 1,
    }
    return {**decode, "do_remote_prefill": False, "do_remote_decode": True}, decode


@MODES
async def test_a_transfer_that_is_under_way_is_refused_and_goes_on(house: House, mode: str) -> None:
    source, target = pair()
    house.mode = mode
    async with both(house, source, target) as (prefill, decode):
        to_prefill, to_decode, request_id = house.legs(prefill, decode)
        if mode == "read":
            to_prefill = read_leg(to_prefill["transfer_id"], house.known("D", decode))
        job = await prefill.prefill(to_prefill, request_id)
        with pytest.raises(UsageError, match="already"):
            await prefill.prefill(to_prefill, request_id, block_ids=[1])
        assert job is not None
        job.assign(SOURCE)
        answer = await computed(job)
        with pytest.raises(UsageError, match="already"):
            await prefill.prefill(to_prefill, request_id, block_ids=[1])
        told = to_decode if answer is None else read_on(answer, house.known("P", prefill))
        await whole(await decode.decode(told, request_id, block_ids=TARGET))
        await job.delivered()
        assert not target.wrong(1, TARGET, source.layout, SOURCE)
        # The name is free again.
        again = await prefill.prefill(to_prefill, request_id, block_ids=SOURCE)
        assert again is not None
        await computed(again)
        job.abort("the first one's client has gone")
        assert again.session is not None
        assert again.session.state == "sealed"
        again.abort()


async def test_an_abort_touches_its_own_session_alone(house: House) -> None:
    source, _ = pair()
    to_prefill, _ = _legs(house, "read", "tx")
    async with house.open("P", source) as prefill:
        # A job whose name another session has taken meanwhile.
        job = await prefill.prefill(to_prefill, block_ids=SOURCE)
        assert job is not None
        assert prefill.producer is not None
        other = await prefill.producer.offer("tx", [1])
        with pytest.raises(UsageError, match="already"):
            await job.seal()
        job.abort("refused")
        assert other.state == "sealed"
        other.abort()
        # One that was given up, and is once more when its successor is there.
        first = await prefill.prefill(to_prefill, block_ids=SOURCE)
        assert first is not None
        first.abort()
        second = await prefill.prefill(to_prefill, block_ids=SOURCE)
        assert second is not None
        first.abort()
        await second.seal()
        first.abort()
        assert second.session is not None
        assert second.session.state == "sealed"
        second.abort("over")
        with pytest.raises(TransferCancelled, match="over"):
            await second.delivered()
        # One that nobody has any more holds no name.
        job = await prefill.prefill(to_prefill, block_ids=SOURCE)
        del job
        gc.collect()
        assert await prefill.prefill(to_prefill, block_ids=SOURCE) is not None


@MODES
@pytest.mark.parametrize("spare", [False, True])
async def test_blocks_are_refused_before_the_model_computes(
    house: House, mode: str, spare: bool
) -> None:
    mla = {"form": "mla", "kv_heads": 1, "tp_size": 2, "tp_rank": 1} if spare else None
    source, _ = pair(mla)
    to_prefill, _ = _legs(house, mode, "tx")
    async with house.open("P", source) as prefill:
        to_prefill["remote_tp_size"] = 1
        for blocks in WRONG:
            with pytest.raises(UsageError, match="blocks"):
                await prefill.prefill(to_prefill, block_ids=blocks)
        with pytest.raises(UsageError, match="17 tokens"):
            await prefill.prefill(to_prefill, block_ids=SOURCE, tokens=17)
        job = await prefill.prefill(to_prefill, tokens=14)
        assert job is not None
        assert job.wanted is not spare
        for blocks in [*WRONG, SOURCE[:3]]:
            with pytest.raises(UsageError, match="blocks"):
                job.assign(blocks)
        if mode == "read":
            with pytest.raises(UsageError, match="at least one block"):
                await prefill.prefill({**to_prefill, "transfer_id": "none"}, block_ids=[])
        job.assign(SOURCE)
        answer = await job.seal()
        assert answer is None or answer["remote_num_tokens"] == 14
        job.abort()


async def test_blocks_are_refused_before_anybody_is_dialed(house: House) -> None:
    _, target = pair()
    _, to_decode = _legs(house, "write", "tx")
    async with house.open("D", target) as decode:
        for blocks in WRONG:
            with pytest.raises(UsageError, match="blocks"):
                await asyncio.wait_for(decode.decode(to_decode, block_ids=blocks), 1)


def _calls(house: House, prefill: KVInstance, decode: KVInstance, mode: str) -> list[Any]:
    to_prefill, to_decode = _legs(house, mode, "tx")
    return [
        prefill.prefill(to_prefill, block_ids=SOURCE),
        decode.decode(to_decode, block_ids=TARGET),
        decode.decline(to_decode),
    ]


@MODES
async def test_before_and_after_its_life_an_instance_says_so_at_once(
    house: House, mode: str
) -> None:
    source, target = pair()
    house.mode = mode
    prefill, decode = house.open("P", source), house.open("D", target)
    for call in _calls(house, prefill, decode, mode):
        with pytest.raises(UsageError, match="enter the KVInstance first"):
            await asyncio.wait_for(call, 1)
    async with prefill, decode:
        with pytest.raises(UsageError, match="was entered before"):
            await prefill.__aenter__()
    for call in _calls(house, prefill, decode, mode):
        with pytest.raises(ClosedError, match="closed"):
            await asyncio.wait_for(call, 1)
    with pytest.raises(UsageError, match="was entered before"):
        await decode.__aenter__()


async def test_who_shakes_hands_when_the_instance_is_closed_is_told(house: House) -> None:
    _, target = pair()
    _, to_decode = _legs(house, "write", "tx")
    with socket.create_server((HOST, 0)) as silent:
        to_decode["remote_handshake_port"] = silent.getsockname()[1]
        async with house.open("D", target) as decode:
            waiting = [
                asyncio.ensure_future(decode.decode(to_decode, block_ids=[1])),
                asyncio.ensure_future(decode.decode(to_decode, block_ids=[2])),
                asyncio.ensure_future(decode.decline(to_decode)),
            ]
            given_up = asyncio.ensure_future(decode.decode(to_decode, block_ids=[3]))
            await asyncio.sleep(0.05)
            given_up.cancel()
            at_once = asyncio.ensure_future(decode.decode(to_decode, block_ids=[4]))
            await asyncio.sleep(0)
        for one in [*waiting, at_once]:
            with pytest.raises(ClosedError, match="closed"):
                await asyncio.wait_for(one, 1)
        with pytest.raises(asyncio.CancelledError):
            await given_up
