"""Instances in one process that do not fit, do not answer, give up, or come again."""

from __future__ import annotations

import asyncio

import pytest

from omni_async.errors import (
    ConfigError,
    ProtocolError,
    TransferCancelled,
    TransferTimeout,
    UsageError,
)
from omni_async.kv.control import (
    AgentMetadata,
    ask_handshake,
    new_request_id,
    open_handshake_port,
    read_leg,
)
from omni_async.kv.control.options import EXTRA
from tests.kv.houses import HOST, House, both, computed, whole
from tests.kv.pairs import SOURCE, TARGET, pair


async def test_caches_that_do_not_fit_are_told_to_both_sides(house: House) -> None:
    source, target = pair(None, {"kv_heads": 8})
    async with both(house, source, target) as (prefill, decode):
        to_prefill, to_decode, request_id = house.legs(prefill, decode)
        job = await prefill.prefill(to_prefill, request_id, block_ids=SOURCE)
        assert job is not None
        with pytest.raises(ProtocolError, match="kv_heads is 4 at the source and 8 at the target"):
            await decode.decode(to_decode, request_id, block_ids=TARGET)
        with pytest.raises((TransferCancelled, ProtocolError), match="kv_heads is 4 at the source"):
            await job.delivered(timeout=5)


async def test_a_mode_that_prefill_does_not_do(house: House) -> None:
    source, target = pair()
    async with both(house, source, target) as (prefill, decode):
        _, to_decode, request_id = house.legs(prefill, decode)
        with pytest.raises(
            ProtocolError, match="gives caches in mode write, and read was asked for"
        ):
            await decode.decode({**to_decode, "remote_block_ids": [1]}, request_id, block_ids=[1])


async def test_other_sizes_than_were_told(house: House) -> None:
    source, target = pair()
    async with both(house, source, target) as (prefill, decode):
        _, to_decode, request_id = house.legs(prefill, decode)
        metadata, layers = await ask_handshake(HOST, prefill.address.handshake)
        # The second rank that is told of answers as the first does.
        second = await open_handshake_port(HOST, prefill.address.handshake + 1, metadata, layers)
        try:
            params = {**to_decode, "remote_tp_size": 2}
            with pytest.raises(ProtocolError, match=r"tp_size of rank 0 of .* is 1, not 2"):
                await decode.decode(params, request_id, block_ids=[1])
        finally:
            second.close()


async def test_somebody_else_answers(house: House) -> None:
    _, target = pair()
    port = await open_handshake_port(
        HOST, 0, AgentMetadata(engine_id="vllm", agent_metadata=b"12345")
    )
    try:
        async with house.open("D", target) as decode:
            params = {
                "do_remote_prefill": True,
                "transfer_id": "tx",
                "remote_host": HOST,
                "remote_handshake_port": port.where.port,
                "remote_notify_port": 1,
            }
            for _ in range(2):
                with pytest.raises(
                    ProtocolError, match=r"is no instance of this library.*\(5 bytes\)"
                ):
                    await decode.decode(params, block_ids=[1])
            assert port.answered == 2
            port.tell((await ask_handshake(HOST, decode.address.handshake)).metadata, {})
            with pytest.raises(ProtocolError, match="is no prefill instance"):
                await decode.decode(params, block_ids=[1])
    finally:
        port.close()


async def test_nobody_answers(house: House) -> None:
    _, target = pair()
    async with house.open("D", target, extra={"handshake_timeout": "0.2"}) as decode:
        params = {
            "do_remote_prefill": True,
            "transfer_id": "tx",
            "remote_host": HOST,
            "remote_handshake_port": house.ports.of("nobody"),
            "remote_notify_port": 1,
        }
        waiting = [decode.decode(params, block_ids=[n]) for n in range(5)]
        for result in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(result, TransferTimeout)
            assert result.phase == "handshake"


async def test_a_prefill_instance_is_restarted(house: House) -> None:
    source, target = pair()
    async with house.open("D", target) as decode:
        for round in range(2):
            async with house.open("P", source) as prefill:
                to_prefill, to_decode, request_id = house.legs(prefill, decode)
                job = await prefill.prefill(to_prefill, request_id, block_ids=SOURCE)
                await computed(job)
                blocks = [block + round for block in (10, 12, 14, 16)]
                await whole(await decode.decode(to_decode, request_id, block_ids=blocks))
                assert not target.wrong(1, blocks, source.layout, SOURCE)
                assert job is not None
                await job.delivered()


async def test_aborts_and_refusals_are_told_at_once(house: House) -> None:
    source, target = pair()
    async with both(house, source, target) as (prefill, decode):
        to_prefill, to_decode, request_id = house.legs(prefill, decode)
        job = await prefill.prefill(to_prefill, request_id, block_ids=SOURCE)
        progress = await decode.decode(to_decode, request_id, block_ids=TARGET)
        assert job is not None
        assert progress is not None
        job.abort("the client has gone")
        with pytest.raises(TransferCancelled, match="the client has gone"):
            await progress.all(timeout=5)
        await progress.released(timeout=5)
        to_prefill, to_decode, request_id = house.legs(prefill, decode)
        job = await prefill.prefill(to_prefill, request_id, block_ids=SOURCE)
        assert job is not None
        await decode.decline(to_decode, request_id, reason="no room")
        with pytest.raises(TransferCancelled, match="no room"):
            await job.delivered(timeout=5)


async def test_an_abort_before_there_is_anything_to_read(house: House) -> None:
    house.mode = "read"
    source, target = pair()
    async with both(house, source, target) as (prefill, decode):
        leg = read_leg("tx", house.known("D", decode))
        request_id = new_request_id(prefill.address, decode.address)
        job = await prefill.prefill(leg, request_id, block_ids=SOURCE)
        assert job is not None
        job.abort("out of memory")
        with pytest.raises(UsageError, match="was given up"):
            await job.seal()


async def test_lines_to_who_was_of_no_use_for_long_end(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omni_async.kv.known_peers.IDLE", 0.0)
    source, target = pair()
    async with house.open("D", target) as decode:
        for round, name in enumerate(("one", "other")):
            async with house.open("P", source, name) as prefill:
                to_prefill, to_decode, request_id = house.legs(prefill, decode)
                await computed(await prefill.prefill(to_prefill, request_id, block_ids=SOURCE))
                blocks = [block + round for block in (10, 12, 14, 16)]
                await whole(await decode.decode(to_decode, request_id, block_ids=blocks))
        assert decode.consumer is not None
        assert len(decode.consumer._sources._kept) == 1


def test_ports_that_clash_are_a_mistake(house: House) -> None:
    node, _ = pair()
    with pytest.raises(ConfigError, match="has a mistake") as caught:
        house.open("P", node, extra={"handshake_port": 6301, "notify_port": 6302}, dp_size=2)
    assert caught.value.path == f"{EXTRA}.notify_port"
    with pytest.raises(UsageError, match="there is no dp_rank 2"):
        house.open("P", node, dp_rank=2, dp_size=2)
    with pytest.raises(ConfigError, match="zmq_port: follows from host_ip"):
        house.open("P", node, extra={"backend_options": {"zmq_port": 5}})


async def test_a_port_that_is_taken_leaves_nothing_open(house: House) -> None:
    source, target = pair()
    async with house.open("D", target) as decode:
        with pytest.raises(UsageError, match="the handshake cannot be bound"):
            async with house.open("P", source, extra={"handshake_port": decode.address.handshake}):
                raise AssertionError
        async with house.open("P", source):
            pass
