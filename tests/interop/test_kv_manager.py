"""The unmodified KV manager of vLLM-Omni 0.30 in another process, both ways: over Mooncake's engine and TCP, and over
shared memory."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")

# ruff: noqa: E402 - what follows needs PyTorch
import omni_async
from omni_async.cli.bench.peer_vendors import MOONCAKE, MOONCAKE_STORE, SHM
from omni_async.cli.free_ports import FreePorts
from omni_async.cli.servers.mooncake import MooncakeMaster
from omni_async.errors import ProtocolError, TransferTimeout
from omni_async.interop.vllm_omni.kv_topology import KVTopology
from omni_async.kv.omni import drop_kv, receive_family, receive_kv, send_kv
from tests.engines import need_mooncake
from tests.kv.paged_samples import FORMS, paged, same, tokens_of
from tests.stores import loaded_or_skip

from .test_connector import until

if TYPE_CHECKING:
    from .child import Child

TCP = {"protocol": "tcp", "host": "127.0.0.1"}
PAIRS = [(1, 1), (2, 2), (2, 1), (1, 2)]
HEADS = 4
TOKENS, BLOCK = 40, 16
TABLE = [7, 2, 9]

pytestmark = pytest.mark.timeout(120)


class Place:
    """Managers of theirs over one kind of connector, and where senders of both kinds are."""

    def __init__(
        self, theirs: Child, wire: str, ports: FreePorts, server: dict[str, Any] | None = None
    ) -> None:
        self.theirs = theirs
        self.wire = wire
        self._server = server or {}
        self._on = {"peer": "vllm-omni", **(TCP if wire == MOONCAKE else self._server)}
        self._ports = ports
        self._receivers: dict[Any, int] = {}
        self._senders: dict[Any, tuple[int, list[int]]] = {}
        self._tries = 0

    def port(self) -> int:
        """Of rank 0; rank 1 has one, too."""
        while True:
            self._tries += 1
            port = self._ports.of(self._tries)
            with contextlib.suppress(OSError), socket.socket() as probe:
                probe.bind(("127.0.0.1", port + 16))
                return port

    async def open(
        self, role: str, port: int, rank: int, ranks: tuple[int, int], pool: int = 64 << 20
    ) -> int:
        number: int = await self.theirs.ask(
            "open", role, port, rank, ranks, pool, self.wire, self._server
        )
        return number

    async def receiver(self, rank: int, ranks: tuple[int, int]) -> int:
        if (rank, ranks) not in self._receivers:
            self._receivers[rank, ranks] = await self.open("receiver", 1, rank, ranks)
        return self._receivers[rank, ranks]

    async def senders(self, ranks: tuple[int, int]) -> tuple[int, list[int]]:
        """The port of the first, and their numbers."""
        if ranks not in self._senders:
            port = self.port()
            numbers = [
                await self.open("sender", port - 100, rank, ranks) for rank in range(ranks[0])
            ]
            self._senders[ranks] = port, numbers
        return self._senders[ranks]

    @contextlib.asynccontextmanager
    async def our_senders(
        self, namespace: str, port: int, ranks: int = 1
    ) -> AsyncIterator[list[Any]]:
        """Edges from stage 0 to stage 1, one for each rank."""
        async with contextlib.AsyncExitStack() as stack:
            edges = []
            for rank in range(ranks):
                extra: dict[str, Any] = {**self._on}
                if self.wire == MOONCAKE:
                    extra["zmq_port"] = port + 16 * rank
                tx = await stack.enter_async_context(
                    omni_async.open_transport(
                        {"name": self.wire, "extra": extra},
                        role="sender",
                        stage="0",
                        rank=rank,
                        namespace=namespace,
                        linger=0,
                    )
                )
                edges.append(tx.edge("0", "1"))
            yield edges

    @contextlib.asynccontextmanager
    async def our_receiver(self, namespace: str) -> AsyncIterator[Any]:
        async with omni_async.open_transport(
            {"name": self.wire, "extra": self._on},
            role="receiver",
            stage="1",
            namespace=namespace,
        ) as rx:
            yield rx.edge("0", "1")


@pytest.fixture(
    scope="module", params=[MOONCAKE, SHM, pytest.param(MOONCAKE_STORE, marks=pytest.mark.soak)]
)
def place(request: pytest.FixtureRequest, their_kv: Child) -> Iterator[Place]:
    wire = request.param
    if wire == MOONCAKE:
        need_mooncake()
    with FreePorts() as ports, contextlib.ExitStack() as stack:
        server = None
        if wire == MOONCAKE_STORE:
            loaded_or_skip("mooncake.store")
            master = MooncakeMaster("--default_kv_lease_ttl=500", segment=256 << 20)
            server = {**stack.enter_context(master).extra("sender"), "localbuf": 128 << 20}
        yield Place(their_kv, wire, ports, server)


def heads_of(tensors: list[Any], rank: int, ranks: int) -> list[Any]:
    """A rank's heads of the whole model's."""
    each = HEADS // ranks
    return [tensor[:, each * rank : each * (rank + 1)] for tensor in tensors]


def caches_of(form: str, whole: list[Any], rank: int, ranks: int) -> list[Any]:
    """A rank's caches of the whole model's."""
    each = HEADS // ranks
    mine = slice(each * rank, each * (rank + 1))
    if form == "packed":
        return [cache[:, mine].contiguous() for cache in whole]
    if form == "pair":
        return [tuple(part[..., mine, :].contiguous() for part in pair) for pair in whole]
    return [cache[..., mine, :].contiguous() for cache in whole]


@pytest.mark.parametrize("ranks", PAIRS, ids=lambda pair: f"{pair[0]}to{pair[1]}")
async def test_our_cache_arrives_there(
    place: Place, namespace: str, ranks: tuple[int, int]
) -> None:
    port = place.port()
    async with place.our_senders(namespace, port, ranks[0]) as edges:
        for number, form in enumerate(FORMS):
            request = f"{namespace}-{form.replace(' ', '-')}"
            whole = paged(form, heads=HEADS, seed=number)
            keys, values = tokens_of(form, whole, TABLE, TOKENS)
            for rank, edge in enumerate(edges):
                receipts = await send_kv(
                    edge,
                    request,
                    caches_of(form, whole, rank, ranks[0]),
                    TABLE,
                    tokens=TOKENS,
                    block_size=BLOCK,
                    topology=KVTopology(*ranks, rank),
                    metadata={"image_shape": [64, 64]},
                )
                assert len(receipts) == max(1, ranks[1] // ranks[0])
            for rank in range(ranks[1]):
                receiver = await place.receiver(rank, ranks)
                got = await place.theirs.ask("receive", receiver, request, port)
                assert got is not None
                assert same(got[0], heads_of(keys, rank, ranks[1]))
                assert same(got[1], heads_of(values, rank, ranks[1]))
                told = {"block_size": BLOCK, "num_layers": 3, "dtype": "auto", "seq_len": TOKENS}
                assert got[2].items() >= {**told, "image_shape": [64, 64]}.items()


@pytest.mark.parametrize("ranks", PAIRS, ids=lambda pair: f"{pair[0]}to{pair[1]}")
async def test_their_cache_arrives_here(
    place: Place, namespace: str, ranks: tuple[int, int]
) -> None:
    port, senders = await place.senders(ranks)
    async with place.our_receiver(namespace) as edge:
        for number, form in enumerate(FORMS):
            request = f"{namespace}-{form.replace(' ', '-')}"
            whole = paged(form, heads=HEADS, seed=number)
            keys, values = tokens_of(form, whole, TABLE, TOKENS)
            waiting = [
                asyncio.ensure_future(
                    receive_kv(
                        edge,
                        request,
                        topology=KVTopology(*ranks, rank),
                        sender=("127.0.0.1", port),
                        timeout=20,
                    )
                )
                for rank in range(ranks[1])
            ]
            for rank, sender in enumerate(senders):
                caches = caches_of(form, whole, rank, ranks[0])
                assert await place.theirs.ask(
                    "send", sender, request, caches, TABLE, TOKENS, BLOCK
                ) == [request]
            for rank, found in enumerate(await asyncio.gather(*waiting)):
                assert found is not None
                assert same(found.keys, heads_of(keys, rank, ranks[1]))
                assert same(found.values, heads_of(values, rank, ranks[1]))
                assert found.request_id == request
                assert found.block_ids == TABLE
                assert found.metadata["seq_len"] == TOKENS
                for tensor in found.keys:
                    assert tensor is not None
                    assert tensor.data_ptr() % tensor.element_size() == 0
        for sender in senders:
            assert await place.theirs.ask("waiting", sender) == 0


async def test_heads_that_the_sender_did_not_cut(place: Place, namespace: str) -> None:
    """As workers of AR stages send: each receiver cuts what it needs, theirs and ours."""
    ranks = (1, 2)
    caches = paged("stacked", heads=HEADS)
    keys, _ = tokens_of("stacked", caches, TABLE, TOKENS)
    port = place.port()
    sender = await place.open("sender", port - 100, 0, ranks)
    await place.theirs.ask("hook", sender)
    await place.theirs.ask("send", sender, f"{namespace}-t", caches, TABLE, TOKENS, BLOCK)
    async with place.our_receiver(namespace) as edge:
        for rank in range(2):
            topology = KVTopology(*ranks, rank)
            found = await receive_kv(
                edge, f"{namespace}-t", topology=topology, sender=("127.0.0.1", port), timeout=10
            )
            assert found is not None
            assert same(found.keys, heads_of(keys, rank, 2))
            assert found.metadata["tp_head_slice"]["side"] == "receiver"
    port = place.port()
    how: dict[str, Any] = {"tokens": TOKENS, "block_size": BLOCK, "topology": KVTopology(*ranks)}
    async with place.our_senders(namespace, port) as (edge,):
        await send_kv(edge, f"{namespace}-o", caches, TABLE, cuts=False, **how)
        for rank in range(2):
            receiver = await place.receiver(rank, ranks)
            got = await place.theirs.ask("receive", receiver, f"{namespace}-o", port)
            assert same(got[0], heads_of(keys, rank, 2))
            assert got[2]["tp_head_slice"]["side"] == "receiver"


async def test_large_caches_do_not_hold_up_the_loop(place: Place, namespace: str) -> None:
    """24 MB each way, in threads of its own."""
    shape: dict[str, Any] = {"layers": 6, "heads": 8, "size": 128, "blocks": 64}
    table = list(range(63, -1, -1))
    caches = paged("stacked", **shape)
    keys, _ = tokens_of("stacked", caches, table, 1000)
    port = place.port()
    async with place.our_senders(namespace, port) as (edge,):
        receipts = await send_kv(edge, namespace, caches, table, tokens=1000, block_size=16)
        nbytes = sum(receipt.nbytes for receipt in receipts.values())
        assert nbytes > 24e6
        assert edge.transport.health().pool_used < 1.2 * nbytes  # nothing is there twice
        got = await place.theirs.ask("receive", await place.receiver(0, (1, 1)), namespace, port)
        assert same(got[0], keys)
    port, (sender,) = await place.senders((1, 1))
    async with place.our_receiver(namespace) as edge:
        await place.theirs.ask("send", sender, namespace, caches, table, 1000, 16)
        found = await receive_kv(edge, namespace, sender=("127.0.0.1", port))
        assert found is not None
        assert same(found.keys, keys)


async def test_a_request_with_companions(place: Place, namespace: str) -> None:
    companions = {"cfg_text": f"{namespace}__cfg_text", "cfg_img": f"{namespace}__cfg_img"}
    caches = {
        request: paged("packed", heads=HEADS, seed=number)
        for number, request in enumerate([namespace, *companions.values()])
    }
    wanted = {
        request: tokens_of("packed", cache, TABLE, TOKENS)[0] for request, cache in caches.items()
    }
    port = place.port()
    async with place.our_senders(namespace, port) as (edge,):
        for request, cache in caches.items():
            await send_kv(edge, request, cache, TABLE, tokens=TOKENS, block_size=BLOCK)
        receiver = await place.receiver(0, (1, 1))
        parent, others = await place.theirs.ask(
            "receive_family", receiver, namespace, companions, port
        )
        assert same(parent, wanted[namespace])
        for role, request in companions.items():
            assert same(others[role]["key_cache"], wanted[request])
    port, (sender,) = await place.senders((1, 1))
    async with place.our_receiver(namespace) as edge:
        for request, cache in caches.items():
            await place.theirs.ask("send", sender, request, cache, TABLE, TOKENS, BLOCK)
        family = await receive_family(
            edge, namespace, companions, sender=("127.0.0.1", port), timeout=10
        )
        assert family is not None
        assert same(family.parent.keys, wanted[namespace])
        assert list(family.companions) == list(companions)
        for role, request in companions.items():
            assert same(family.companions[role].keys, wanted[request])


async def test_what_they_send_in_part_is_refused(place: Place, namespace: str) -> None:
    """Their manager leaves out blocks and layers that it does not find, and acknowledges the request."""
    port, (sender,) = await place.senders((1, 1))
    at: dict[str, Any] = {"sender": ("127.0.0.1", port), "timeout": 10}
    caches = paged("stacked", heads=HEADS)
    async with place.our_receiver(namespace) as edge:
        await place.theirs.ask("send", sender, f"{namespace}-b", caches, [7, 99, 2], TOKENS, BLOCK)
        with pytest.raises(ProtocolError, match="has 32 tokens in key_cache_0, not 40"):
            await receive_kv(edge, f"{namespace}-b", **at)
        flat = [caches[0], torch.zeros(5), caches[2]]
        for request in (f"{namespace}-l", f"{namespace}-m"):
            await place.theirs.ask("send", sender, request, flat, TABLE, TOKENS, BLOCK)
        with pytest.raises(ProtocolError, match="has no key_cache_1"):
            await receive_kv(edge, f"{namespace}-l", **at)
        found = await receive_kv(edge, f"{namespace}-m", absent_layers=[1], **at)
        assert found is not None
        assert found.keys[1] is None
        assert found.keys[2] is not None


async def test_what_they_could_not_send_is_waited_for_no_longer_than_said(
    place: Place, namespace: str
) -> None:
    """Their manager acknowledges what does not fit into its pool."""
    port = place.port()
    if place.wire != MOONCAKE:
        pytest.skip("its limit is the host's, or the server's")
    small = await place.open("sender", port - 100, 0, (1, 1), 4096)
    caches = paged("stacked", heads=HEADS)
    acknowledged = await place.theirs.ask("send", small, namespace, caches, TABLE, TOKENS, BLOCK)
    assert acknowledged == [namespace]
    async with place.our_receiver(namespace) as edge:
        with pytest.raises(TransferTimeout):
            await receive_kv(edge, namespace, sender=("127.0.0.1", port), timeout=0.5)


async def test_what_was_dropped_is_not_there(place: Place, namespace: str) -> None:
    port = place.port()
    caches = paged("stacked", heads=HEADS)
    async with place.our_senders(namespace, port) as (edge,):
        await send_kv(edge, namespace, caches, TABLE, tokens=TOKENS, block_size=BLOCK)
        assert edge.transport.health().pool_used or place.wire != MOONCAKE
        assert await drop_kv(edge, namespace) == 1
        await until(lambda: not edge.transport.health().pool_used)
    left = [name for name in os.listdir("/dev/shm") if namespace in name]
    assert not left


async def test_their_warm_up_asks_nobody(place: Place) -> None:
    receiver = await place.receiver(0, (1, 1))
    assert await place.theirs.ask("receive", receiver, "dummy_req_id/0", 1) is None
