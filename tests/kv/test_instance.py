"""Instances in one process: what a proxy would send them, and the caches that travel by it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any

import pytest

from omni_async.cli.free_ports import FreePorts
from omni_async.errors import (
    ClosedError,
    EngineFault,
    ProtocolError,
    TransferCancelled,
    UsageError,
)
from omni_async.kv.control import Registered, new_request_id, read_leg, read_on
from tests.engines import need_nixl
from tests.kv.control.test_registration import proxy
from tests.kv.houses import HOST, House, both, computed, whole
from tests.kv.pairs import SOURCE, TARGET, Gate, pair
from tests.mooncake import engine_or_skip


async def test_write(house: House) -> None:
    source, target = pair()
    async with both(house, source, target) as (prefill, decode):
        to_prefill, to_decode, request_id = house.legs(prefill, decode)
        progress = await decode.decode(to_decode, request_id, block_ids=TARGET)
        job = await prefill.prefill(to_prefill, request_id, block_ids=SOURCE, tokens=14)
        assert await computed(job) is None
        await whole(progress)
        assert job is not None
        await job.delivered()
        assert not target.wrong(1, TARGET, source.layout, SOURCE, 14)
        assert not target.touched(TARGET)
        # And once more, the decode instance last, without a second handshake.
        to_prefill, to_decode, request_id = house.legs(prefill, decode)
        job = await prefill.prefill(to_prefill, request_id)
        assert job is not None
        job.assign(SOURCE[:2])
        assert job.mode == "write"
        with pytest.raises(UsageError, match="has its blocks already"):
            job.assign(SOURCE)
        await computed(job)
        await whole(await decode.decode(to_decode, request_id, block_ids=[5, 6]))
        await job.delivered()
        assert prefill.handshake.answered == 1


@pytest.mark.parametrize("mode", ["write", "read"])
async def test_tokens_may_be_told_before_the_blocks(house: House, mode: str) -> None:
    house.mode = mode
    source, target = pair()
    async with both(house, source, target) as (prefill, decode):
        to_prefill, to_decode, request_id = house.legs(prefill, decode)
        if mode == "read":
            to_prefill = read_leg("tx", house.known("D", decode))
        for wrong in ("x", -3, 10**6, True):
            with pytest.raises(UsageError, match="tokens"):
                await prefill.prefill(to_prefill, request_id, tokens=wrong)  # type: ignore[arg-type]
        job = await prefill.prefill(to_prefill, request_id, tokens=14)
        assert job is not None
        with pytest.raises(UsageError, match="14"):
            job.assign(SOURCE, tokens=15)
        with pytest.raises(UsageError, match="14 tokens are 4 blocks"):
            job.assign(SOURCE[:3])
        job.assign(SOURCE)
        answer = await computed(job)
        if answer is not None:
            assert answer["remote_num_tokens"] == 14
            to_decode = read_on(answer, house.known("P", prefill))
        progress = await decode.decode(to_decode, request_id, block_ids=TARGET)
        await whole(progress)
        assert progress is not None
        assert progress.tokens == 14
        assert not target.wrong(1, TARGET, source.layout, SOURCE, 14)


async def test_a_cache_that_is_read_is_not_offered_before_its_events_have_come(
    house: House,
) -> None:
    house.mode = "read"
    source, target = pair()
    async with both(house, source, target) as (prefill, decode):
        assert prefill.producer is not None
        *_, request_id = house.legs(prefill, decode)
        leg = read_leg("tx", house.known("D", decode))
        for end in ("come", "fail", "abort", "close"):
            event = Gate(fails=end == "fail")
            job = await prefill.prefill({**leg, "transfer_id": end}, request_id, block_ids=SOURCE)
            assert job is not None
            job.layer_ready(0)
            await asyncio.to_thread(job.layer_ready, 1, event)
            job.layer_ready(2, event)
            with pytest.raises(UsageError, match="told before"):
                job.layer_ready(1)
            sealing = asyncio.ensure_future(job.seal())
            await asyncio.sleep(0.05)
            assert (sealing.done(), job.session) == (False, None)
            if end == "abort":
                job.abort()
                with pytest.raises(UsageError, match="given up"):
                    await asyncio.wait_for(sealing, 5)
            if end == "close":
                await prefill.producer.aclose()
                with pytest.raises(ClosedError):
                    await asyncio.wait_for(sealing, 5)
            event.come.set()
            if end == "come":
                await asyncio.wait_for(sealing, 5)
                with pytest.raises(UsageError, match="was sealed"):
                    job.layer_ready(2)
            if end == "fail":
                with pytest.raises(EngineFault, match=r"layer 1 .*fell off"):
                    await asyncio.wait_for(sealing, 5)


async def test_read(house: House) -> None:
    house.mode = "read"
    source, target = pair()
    async with both(house, source, target) as (prefill, decode):
        request_id = f"cmpl-{new_request_id(prefill.address, decode.address)}-0-11111111"
        job = await prefill.prefill(read_leg("tx", house.known("D", decode)), request_id)
        assert job is not None
        assert (job.mode, job.session, job.transfer_id) == ("read", None, "tx")
        with pytest.raises(UsageError, match="was not sealed"):
            await job.delivered()
        with pytest.raises(UsageError, match="by assign"):
            await job.seal()
        job.assign(SOURCE, tokens=14)
        answer = await computed(job)
        assert answer is not None
        assert answer["remote_block_ids"] == SOURCE
        assert await job.seal() == answer
        told = read_on(answer, house.known("P", prefill))
        progress = await decode.decode(told, block_ids=TARGET)
        await whole(progress)
        assert progress is not None
        assert progress.tokens == 14
        await job.delivered()
        assert not target.wrong(1, TARGET, source.layout, SOURCE, 14)


@pytest.mark.parametrize("name", ["mooncake", "nixl"])
async def test_over_real_engines(ports: FreePorts, namespace: str, name: str) -> None:
    if name == "mooncake":
        engine_or_skip()
        extra: dict[str, Any] = {"backend_options": {"protocol": "tcp"}}
    else:
        need_nixl()
        extra = {}
    house = House(ports, namespace, name, "write")
    source, target = pair()
    async with both(house, source, target, **extra) as (prefill, decode):
        to_prefill, to_decode, request_id = house.legs(prefill, decode)
        job = await prefill.prefill(to_prefill, request_id, block_ids=SOURCE)
        await computed(job)
        await whole(await decode.decode(to_decode, request_id, block_ids=TARGET))
        assert job is not None
        await job.delivered()
        assert not target.wrong(1, TARGET, source.layout, SOURCE)


@pytest.mark.parametrize(("theirs", "ours"), [(2, 1), (1, 2), (2, 2)])
async def test_ranks(
    ports: FreePorts, namespace: str, backend: str, theirs: int, ours: int
) -> None:
    house = House(ports, namespace, backend, "write")
    sources = [pair({"tp_size": theirs, "tp_rank": rank})[0] for rank in range(theirs)]
    targets = [pair(None, {"tp_size": ours, "tp_rank": rank})[1] for rank in range(ours)]
    async with contextlib.AsyncExitStack() as stack:
        prefills = [await stack.enter_async_context(house.open("P", node)) for node in sources]
        decodes = [await stack.enter_async_context(house.open("D", node)) for node in targets]
        to_prefill, to_decode, request_id = house.legs(prefills[0], decodes[0])
        jobs = [await one.prefill(to_prefill, request_id, block_ids=SOURCE) for one in prefills]
        for job in jobs:
            await computed(job)
        for one in decodes:
            await whole(await one.decode(to_decode, request_id, block_ids=TARGET))
        for job in jobs:
            assert job is not None
            await job.delivered()
        for node in targets:
            for heads in sources:
                if set(node.layout.head_range) <= set(heads.layout.head_range):
                    assert not node.wrong(1, TARGET, heads.layout, SOURCE)


@pytest.mark.parametrize("mode", ["write", "read"])
async def test_ranks_from_which_nobody_hears_are_free_at_once(house: House, mode: str) -> None:
    house.mode = mode
    mla = {"form": "mla", "kv_heads": 1}
    sources = [pair({**mla, "tp_size": 2, "tp_rank": rank})[0] for rank in range(2)]
    _, target = pair(None, mla)
    async with (
        house.open("P", sources[0]) as first,
        house.open("P", sources[1]) as second,
        house.open("D", target) as decode,
    ):
        to_prefill, to_decode, request_id = house.legs(first, decode)
        if mode == "read":
            to_prefill = read_leg(to_prefill["transfer_id"], house.known("D", decode))
        jobs = [
            await one.prefill(to_prefill, request_id, block_ids=SOURCE) for one in (first, second)
        ]
        answers = [await computed(job) for job in jobs]
        told = to_decode if mode == "write" else read_on(answers[0], house.known("P", first))
        await whole(await decode.decode(told, request_id, block_ids=TARGET))
        assert not target.wrong(1, TARGET, sources[0].layout, SOURCE)
        heard, spare = jobs
        assert heard is not None
        assert spare is not None
        await heard.delivered()
        if mode == "write":
            assert (heard.wanted, spare.wanted) == (True, False)
            await spare.delivered()
            spare.abort()
        else:
            with pytest.raises(TransferCancelled, match="other ranks have the same heads"):
                await spare.delivered(timeout=10)


async def test_heads_that_cannot_be_shared_out_are_told_to_both_sides(house: House) -> None:
    source, target = pair()
    async with both(house, source, target) as (prefill, decode):
        to_prefill, to_decode, request_id = house.legs(prefill, decode)
        with pytest.raises(ProtocolError, match=r"tx-1.*3"):
            await prefill.prefill({**to_prefill, "remote_tp_size": 3}, request_id)
        with pytest.raises(ProtocolError, match=r"tx-1.*3"):
            await decode.decode({**to_decode, "remote_tp_size": 3}, request_id, block_ids=[1])


async def test_a_replica_of_several(house: House) -> None:
    source, target = pair()
    async with (
        house.open("P", source, dp_rank=1, dp_size=2) as prefill,
        house.open("D", target) as decode,
    ):
        to_prefill, to_decode, request_id = house.legs(prefill, decode)
        to_decode["remote_dp_rank"] = 1
        job = await prefill.prefill(to_prefill, request_id, block_ids=SOURCE)
        await computed(job)
        await whole(await decode.decode(to_decode, request_id, block_ids=TARGET))
        assert not target.wrong(1, TARGET, source.layout, SOURCE)


async def test_on_ipv6(house: House) -> None:
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            pytest.skip("no IPv6 here")
    source, target = pair()
    async with both(house, source, target, host_ip="::1") as (prefill, decode):
        assert prefill.address.host == "::1"
        to_prefill, to_decode, request_id = house.legs(prefill, decode)
        await computed(await prefill.prefill(to_prefill, request_id, block_ids=SOURCE))
        await whole(await decode.decode(to_decode, request_id, block_ids=TARGET))
        assert not target.wrong(1, TARGET, source.layout, SOURCE)


async def test_the_address_is_found_out(house: House) -> None:
    _, target = pair()
    async with house.open("D", target, extra={"host_ip": "auto", "bind_ip": HOST}) as decode:
        assert decode.address.host not in ("auto", "0.0.0.0", "::")
        assert decode.handshake.where.host == HOST


async def test_one_instance_that_does_both(house: House) -> None:
    source, target = pair()
    async with house.open("PD", source) as one, house.open("PD", target, "other") as other:
        to_prefill, to_decode, request_id = house.legs(one, other)
        await computed(await one.prefill(to_prefill, request_id, block_ids=SOURCE))
        await whole(await other.decode(to_decode, request_id, block_ids=TARGET))
        assert not target.wrong(1, TARGET, source.layout, SOURCE)
        to_prefill, to_decode, request_id = house.legs(other, one)
        await computed(await other.prefill(to_prefill, request_id, block_ids=TARGET))
        await whole(await one.decode(to_decode, request_id, block_ids=[10, 11, 12, 13]))


async def test_requests_of_which_no_other_has_part(house: House) -> None:
    source, target = pair()
    async with both(house, source, target) as (prefill, decode):
        assert await prefill.prefill(None, "cmpl-1") is None
        assert await decode.decode(None, "cmpl-1", block_ids=[1]) is None
        await decode.decline(None, "cmpl-1")


async def test_what_asks_for_something_else(house: House) -> None:
    source, target = pair()
    async with both(house, source, target) as (prefill, decode):
        to_prefill, to_decode, request_id = house.legs(prefill, decode)
        with pytest.raises(ProtocolError, match="asks for decode, and this instance does not"):
            await prefill.prefill(to_decode, request_id, block_ids=SOURCE)
        with pytest.raises(ProtocolError, match="asks for prefill, and this instance does not"):
            await decode.decode(to_prefill, request_id, block_ids=TARGET)
        with pytest.raises(ProtocolError, match="has kept no block"):
            await decode.decode({**to_decode, "remote_block_ids": []}, request_id, block_ids=[1])
        with pytest.raises(ProtocolError, match="no transfer_id"):
            await decode.decode({"remote_dp_size": 1}, request_id, block_ids=[1])


async def test_hosts_that_are_not_trusted_are_not_asked(house: House) -> None:
    source, target = pair()
    extra = {"trusted_remote_hosts": ["10.0.0.0/8"]}
    async with both(house, source, target, **extra) as (prefill, decode):
        to_prefill, to_decode, request_id = house.legs(prefill, decode)
        assert prefill.params(to_prefill, request_id) is not None  # it does not connect anywhere
        with pytest.raises(ProtocolError, match=r"'127\.0\.0\.1', which is none of trusted"):
            await decode.decode(to_decode, request_id, block_ids=TARGET)
        assert prefill.handshake.answered == 0


async def test_an_instance_registers_while_it_is_there(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omni_async.kv.instance.FORGOTTEN", 0.2)
    extra = {
        "proxy_ip": HOST,
        "proxy_ping_port": house.ports.of("ping"),
        "http_port": house.ports.of("http"),
        "ping_interval": 0.05,
    }
    node, _ = pair({"tp_size": 2})
    other, _ = pair({"tp_size": 2, "tp_rank": 1})
    with proxy(house.ports.of("ping")) as there:
        async with (
            house.open("PD", node, extra=extra) as first,
            house.open("PD", other, extra=extra) as second,
        ):
            assert (len(first.registrations), second.registrations) == (2, [])
            for registration in first.registrations:
                await registration.wait(10)
            records = {Registered.parse(frames[1]) for frames in await there.until(8)}
            assert {record.type for record in records} == {"P", "D"}
            for record in records:
                assert record == Registered(
                    type=record.type,
                    http_address=f"{HOST}:{house.ports.of('http')}",
                    zmq_address=str(first.address),
                    tp_size=2,
                    transfer_mode="WRITE",
                )
            await first.withdraw()
            count = len(there.came)
            await asyncio.sleep(0.2)
            assert len(there.came) == count
            await first.withdraw()
