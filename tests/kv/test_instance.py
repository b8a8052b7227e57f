"""Instances in one process: what a proxy would send them, and the caches that travel by it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from omni_async.cli.free_ports import FreePorts
from omni_async.errors import (
    ConfigError,
    ProtocolError,
    TransferCancelled,
    TransferTimeout,
    UsageError,
)
from omni_async.kv.control import (
    AgentMetadata,
    Registered,
    ask_handshake,
    new_request_id,
    open_handshake_port,
    read_leg,
    read_on,
    write_legs,
)
from omni_async.kv.control.options import EXTRA
from omni_async.kv.instance import KVInstance
from omni_async.kv.prefill import Prefill
from omni_async.kv.progress import KVProgress
from omni_async.registry import register_backend
from omni_async.testing.doubles.addressed import LoopbackZmq
from tests.engines import need_nixl
from tests.kv.control.test_registration import proxy
from tests.kv.nodes import Node, layout
from tests.mooncake import engine_or_skip

HOST = "127.0.0.1"
SOURCE, TARGET = [3, 7, 8, 1], [20, 2, 3, 9]
RANKS = 2
ROLES = {"P": "kv_producer", "D": "kv_consumer", "PD": "kv_both"}


@pytest.fixture(autouse=True)
def doubles() -> None:
    register_backend(LoopbackZmq())


@pytest.fixture
def ports() -> Iterator[FreePorts]:
    with FreePorts() as kept:
        yield kept


class House:
    """Instances of one test, and what a proxy knows of them."""

    def __init__(self, ports: FreePorts, namespace: str, backend: str, mode: str) -> None:
        self.ports = ports
        self.namespace = namespace
        self.backend = backend
        self.mode = mode
        self._count = 0

    def config(self, role: str, name: str, **extra: Any) -> dict[str, Any]:
        base = {
            "host_ip": HOST,
            "handshake_port": self.ports.run_of((name, "handshake"), RANKS),
            "notify_port": self.ports.run_of((name, "notify"), RANKS),
            "read_mode": self.mode == "read",
            "backend": self.backend,
            "defer_timeout": 20,
            "handshake_timeout": 10,
        }
        return {"kv_role": ROLES[role], EXTRA: {**base, **extra}}

    def open(self, role: str, node: Node, name: str | None = None, **options: Any) -> KVInstance:
        extra = options.pop("extra", {})
        config = self.config(role, name or role, **extra)
        return KVInstance(config, node.layout, node.caches, namespace=self.namespace, **options)

    def legs(self, prefill: KVInstance, decode: KVInstance) -> tuple[Any, Any, str]:
        """Params of both requests of a write, and an id."""
        self._count += 1
        made = write_legs(f"tx-{self._count}", self.known("P", prefill), self.known("D", decode))
        return (*made, f"cmpl-{new_request_id(prefill.address, decode.address)}-0")

    def known(self, role: Any, instance: KVInstance) -> Registered:
        return Registered(
            type=role,
            http_address=f"{HOST}:1",
            zmq_address=str(instance.address),
            transfer_mode="WRITE",
            tp_size=instance.layout.tp_size,
            dp_size=instance.dp_size,
        )


@pytest.fixture(params=["shm", "loopback-zmq"])
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def house(ports: FreePorts, namespace: str, backend: str) -> House:
    return House(ports, namespace, backend, "write")


def nodes(source: Any = None, target: Any = None) -> tuple[Node, Node]:
    here, there = Node(layout(**(source or {}))), Node(layout(**(target or {})))
    here.fill(1)
    there.spoil()
    return here, there


async def computed(job: Prefill | None, layers: int = 3) -> dict[str, Any] | None:
    assert job is not None
    for layer in range(layers):
        job.layer_ready(layer)
    answer = await job.seal()
    return None if answer is None else json.loads(json.dumps(answer))


async def whole(progress: KVProgress | None) -> None:
    assert progress is not None
    await progress.all()


@contextlib.asynccontextmanager
async def both(
    house: House, source: Node, target: Node, **extra: Any
) -> AsyncIterator[tuple[KVInstance, KVInstance]]:
    async with (
        house.open("P", source, extra=extra) as prefill,
        house.open("D", target, extra=extra) as decode,
    ):
        yield prefill, decode


async def test_write(house: House) -> None:
    source, target = nodes()
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


async def test_read(house: House) -> None:
    house.mode = "read"
    source, target = nodes()
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
    source, target = nodes()
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
    sources = [nodes({"tp_size": theirs, "tp_rank": rank})[0] for rank in range(theirs)]
    targets = [nodes(None, {"tp_size": ours, "tp_rank": rank})[1] for rank in range(ours)]
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
    sources = [nodes({**mla, "tp_size": 2, "tp_rank": rank})[0] for rank in range(2)]
    _, target = nodes(None, mla)
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
    source, target = nodes()
    async with both(house, source, target) as (prefill, decode):
        to_prefill, to_decode, request_id = house.legs(prefill, decode)
        with pytest.raises(ProtocolError, match=r"tx-1.*3"):
            await prefill.prefill({**to_prefill, "remote_tp_size": 3}, request_id)
        with pytest.raises(ProtocolError, match=r"tx-1.*3"):
            await decode.decode({**to_decode, "remote_tp_size": 3}, request_id, block_ids=[1])


async def test_a_replica_of_several(house: House) -> None:
    source, target = nodes()
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
    source, target = nodes()
    async with both(house, source, target, host_ip="::1") as (prefill, decode):
        assert prefill.address.host == "::1"
        to_prefill, to_decode, request_id = house.legs(prefill, decode)
        await computed(await prefill.prefill(to_prefill, request_id, block_ids=SOURCE))
        await whole(await decode.decode(to_decode, request_id, block_ids=TARGET))
        assert not target.wrong(1, TARGET, source.layout, SOURCE)


async def test_the_address_is_found_out(house: House) -> None:
    _, target = nodes()
    async with house.open("D", target, extra={"host_ip": "auto", "bind_ip": HOST}) as decode:
        assert decode.address.host not in ("auto", "0.0.0.0", "::")
        assert decode.handshake.where.host == HOST


async def test_one_instance_that_does_both(house: House) -> None:
    source, target = nodes()
    async with house.open("PD", source) as one, house.open("PD", target, "other") as other:
        to_prefill, to_decode, request_id = house.legs(one, other)
        await computed(await one.prefill(to_prefill, request_id, block_ids=SOURCE))
        await whole(await other.decode(to_decode, request_id, block_ids=TARGET))
        assert not target.wrong(1, TARGET, source.layout, SOURCE)
        to_prefill, to_decode, request_id = house.legs(other, one)
        await computed(await other.prefill(to_prefill, request_id, block_ids=TARGET))
        await whole(await one.decode(to_decode, request_id, block_ids=[10, 11, 12, 13]))


async def test_requests_of_which_no_other_has_part(house: House) -> None:
    source, target = nodes()
    async with both(house, source, target) as (prefill, decode):
        assert await prefill.prefill(None, "cmpl-1") is None
        assert await decode.decode(None, "cmpl-1", block_ids=[1]) is None
        await decode.decline(None, "cmpl-1")


async def test_what_asks_for_something_else(house: House) -> None:
    source, target = nodes()
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
    source, target = nodes()
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
    node, _ = nodes({"tp_size": 2})
    other, _ = nodes({"tp_size": 2, "tp_rank": 1})
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


async def test_caches_that_do_not_fit_are_told_to_both_sides(house: House) -> None:
    source, target = nodes(None, {"kv_heads": 8})
    async with both(house, source, target) as (prefill, decode):
        to_prefill, to_decode, request_id = house.legs(prefill, decode)
        job = await prefill.prefill(to_prefill, request_id, block_ids=SOURCE)
        assert job is not None
        with pytest.raises(ProtocolError, match="kv_heads is 4 at the source and 8 at the target"):
            await decode.decode(to_decode, request_id, block_ids=TARGET)
        with pytest.raises((TransferCancelled, ProtocolError), match="kv_heads is 4 at the source"):
            await job.delivered(timeout=5)


async def test_a_mode_that_prefill_does_not_do(house: House) -> None:
    source, target = nodes()
    async with both(house, source, target) as (prefill, decode):
        _, to_decode, request_id = house.legs(prefill, decode)
        with pytest.raises(
            ProtocolError, match="gives caches in mode write, and read was asked for"
        ):
            await decode.decode({**to_decode, "remote_block_ids": [1]}, request_id, block_ids=[1])


async def test_other_sizes_than_were_told(house: House) -> None:
    source, target = nodes()
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
    _, target = nodes()
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
    _, target = nodes()
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
    source, target = nodes()
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
    source, target = nodes()
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
    source, target = nodes()
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
    source, target = nodes()
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
    node, _ = nodes()
    with pytest.raises(ConfigError, match="has a mistake") as caught:
        house.open("P", node, extra={"handshake_port": 6301, "notify_port": 6302}, dp_size=2)
    assert caught.value.path == f"{EXTRA}.notify_port"
    with pytest.raises(UsageError, match="there is no dp_rank 2"):
        house.open("P", node, dp_rank=2, dp_size=2)
    with pytest.raises(ConfigError, match="zmq_port: follows from host_ip"):
        house.open("P", node, extra={"backend_options": {"zmq_port": 5}})


async def test_a_port_that_is_taken_leaves_nothing_open(house: House) -> None:
    source, target = nodes()
    async with house.open("D", target) as decode:
        with pytest.raises(UsageError, match="the handshake cannot be bound"):
            async with house.open("P", source, extra={"handshake_port": decode.address.handshake}):
                raise AssertionError
        async with house.open("P", source):
            pass
