"""Opening: servers that are not there, come later, or are something else; each within its time limit."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pydantic
import pytest

from omni_async import BackendUnavailable, ConfigError
from omni_async.backends.mooncake.checks import Machine
from omni_async.backends.mooncake_store import MooncakeStoreBackend, MooncakeStoreOptions
from omni_async.backends.mooncake_store._native import bare_host
from omni_async.backends.mooncake_store.checks import check_here
from omni_async.cli.free_ports import FreePorts
from omni_async.cli.servers.mooncake import MooncakeMaster
from tests.stores import mooncake_store_or_skip

from .agent import opened
from .conftest import Open, StartAgent

LIMIT = 0.5


async def refused(extra: dict[str, Any]) -> BackendUnavailable:
    """Why it did not open; in time, and with the loop free meanwhile."""
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    ticking = asyncio.ensure_future(tick())
    begun = time.monotonic()
    with pytest.raises(BackendUnavailable) as caught:
        await opened({**extra, "setup_timeout": LIMIT})
    taken = time.monotonic() - begun
    ticking.cancel()
    assert LIMIT <= taken < LIMIT + 2
    assert ticks > 10 * LIMIT
    return caught.value


@pytest.fixture
def installed() -> None:
    mooncake_store_or_skip()


async def test_no_master(own_master: MooncakeMaster) -> None:
    error = await refused(own_master.extra("sender"))
    assert f"nobody answers at {own_master.address}" in str(error)
    assert "option `master`, setup_timeout" in str(error)
    assert f"mooncake_master --rpc_port={own_master.port('rpc')}" in str(error.remedy)
    assert error.backend == "MooncakeStoreConnector"


async def test_a_master_that_comes_later(own_master: MooncakeMaster, open_desk: Open) -> None:
    opening = asyncio.ensure_future(open_desk({**own_master.extra("sender"), "setup_timeout": 20}))
    await asyncio.sleep(0.5)
    assert not opening.done()
    own_master.begin()
    desk = await opening
    await desk.put("k", b"x")
    assert await desk.get("k") == b"x"


async def test_a_master_that_is_stopped(own_master: MooncakeMaster) -> None:
    own_master.start()
    own_master.stop()
    error = await refused(own_master.extra("sender"))
    assert "does not speak as a Mooncake master: it is stopped" in str(error)


async def test_something_else_at_the_address(mooncake_master: MooncakeMaster) -> None:
    other = f"127.0.0.1:{mooncake_master.port('metrics')}"
    error = await refused({**mooncake_master.extra("sender"), "master": other})
    assert other in str(error)
    assert "does not speak as a Mooncake master" in str(error)


async def test_a_service_that_hangs_up(mooncake_master: MooncakeMaster) -> None:
    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    async with server:
        other = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        error = await refused({**mooncake_master.extra("sender"), "master": other})
    assert f"who answers at {other} is no Mooncake master" in str(error)


@pytest.mark.parametrize("form", ["http://127.0.0.1:{}/metadata", "etcd://127.0.0.1:{}"])
async def test_no_metadata_service(mooncake_master: MooncakeMaster, form: str) -> None:
    with FreePorts() as ports:
        address = form.format(ports.of("none"))
        error = await refused({**mooncake_master.extra("sender"), "metadata_server": address})
    assert "nobody answers at" in str(error)
    assert "option `metadata_server`" in str(error)
    assert "P2PHANDSHAKE" in str(error.remedy)


async def test_no_elector_of_masters(mooncake_master: MooncakeMaster) -> None:
    with FreePorts() as ports:
        address = f"etcd://127.0.0.1:{ports.of('none')};127.0.0.1:{ports.of('neither')}"
        error = await refused({**mooncake_master.extra("sender"), "master": address})
    assert "option `master`" in str(error)


@pytest.mark.usefixtures("installed")
async def test_a_wrong_path_of_the_metadata_service() -> None:
    with MooncakeMaster(metadata=True) as master:
        assert isinstance(master, MooncakeMaster)
        wrong = f"{master.metadata_server}/wrong"
        error = await refused({**master.extra("sender"), "metadata_server": wrong})
    assert wrong in str(error)
    assert "not at that path" in str(error)
    assert "MC_LOG_LEVEL" in str(error.remedy)


@pytest.mark.usefixtures("installed")
async def test_with_a_metadata_service(open_desk: Open) -> None:
    with MooncakeMaster(metadata=True) as master:
        owner = await open_desk(master.extra("sender"))
        guest = await open_desk(master.extra("receiver"))
        await owner.put("k", b"x" * 100_000)
        assert await guest.get("k") == b"x" * 100_000


async def test_it_can_be_cancelled(own_master: MooncakeMaster) -> None:
    opening = asyncio.ensure_future(opened(own_master.extra("sender")))
    await asyncio.sleep(0.1)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening


async def test_no_package() -> None:
    def load(_: str) -> object:
        raise ImportError("No module named 'mooncake'")

    with pytest.raises(BackendUnavailable, match="cannot be imported") as caught:
        check_here(MooncakeStoreOptions(), Machine(load=load))
    assert "pip install 'omni-async[mooncake]'" in str(caught.value.remedy)
    assert caught.value.backend == "MooncakeStoreConnector"


def test_a_host_that_nobody_knows() -> None:
    with pytest.raises(ConfigError, match=r"no-such-host\.invalid") as caught:
        check_here(MooncakeStoreOptions(host="no-such-host.invalid"))
    assert caught.value.path == "host"


@pytest.mark.parametrize("option", ["segment", "localbuf"])
def test_more_memory_than_there_is(option: str) -> None:
    with pytest.raises(ConfigError, match="this host has") as caught:
        check_here(MooncakeStoreOptions.model_validate({option: 1 << 50}))
    assert caught.value.path == "segment"


def test_rdma_without_a_card(tmp_path: Any) -> None:
    machine = Machine(root=tmp_path, load=lambda _: None)
    with pytest.raises(BackendUnavailable, match="rdma needs /dev/infiniband"):
        check_here(MooncakeStoreOptions(proto="rdma"), machine)


def test_a_card_that_is_not_there(tmp_path: Any) -> None:
    (tmp_path / "dev/infiniband").mkdir(parents=True)
    (tmp_path / "dev/infiniband/uverbs0").touch()
    port = tmp_path / "sys/class/infiniband/mlx5_0/ports/1"
    port.mkdir(parents=True)
    (port / "state").write_text("4: ACTIVE")
    machine = Machine(
        root=tmp_path, environ={}, load=lambda _: None, rdma_devices=lambda: ["mlx5_0"]
    )
    check_here(MooncakeStoreOptions(proto="rdma", rdma="mlx5_0"), machine)
    with pytest.raises(ConfigError, match="no RDMA device 'mlx5_7'") as caught:
        check_here(MooncakeStoreOptions(proto="rdma", rdma="mlx5_0,mlx5_7"), machine)
    assert caught.value.path == "rdma"


@pytest.mark.parametrize(
    ("option", "wrong"),
    [
        ("master", "127.0.0.1"),
        ("master", "somewhere"),
        # For each of these the vendor's client would end the process.
        ("metadata_server", "redis://127.0.0.1:6379"),
        ("metadata_server", "nonsense"),
        ("metadata_server", "p2p"),
    ],
)
def test_addresses_that_are_none(option: str, wrong: str) -> None:
    with pytest.raises(pydantic.ValidationError):
        MooncakeStoreOptions.model_validate({option: wrong})


@pytest.mark.parametrize(
    ("host", "bare"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("10.0.0.1:1234", "10.0.0.1"),
        ("node-3", "node-3"),
        ("fe80::1", "fe80::1"),
        ("[fe80::1]", "fe80::1"),
        ("[fe80::1]:1234", "fe80::1"),
    ],
)
def test_a_port_behind_the_host(host: str, bare: str) -> None:
    assert bare_host(host) == bare


async def test_the_host_is_found_out(mooncake_master: MooncakeMaster) -> None:
    backend = MooncakeStoreBackend()
    options = backend.options.model_validate({**mooncake_master.extra("sender"), "host": "auto"})
    prepared = await backend.prepare(options, "sender")
    assert isinstance(prepared, MooncakeStoreOptions)
    assert prepared.host != "auto"


def test_what_it_says_of_itself() -> None:
    backend = MooncakeStoreBackend()
    can = backend.capabilities(MooncakeStoreOptions())
    assert (can.verb.value, can.cross_host, can.writable) == ("store", True, True)
    assert not any((can.notifies, can.credit, can.exclusive, can.recall))


@pytest.mark.usefixtures("installed")
async def test_over_ipv6(start_agent: StartAgent) -> None:
    """In processes of their own: one uses one version."""
    with MooncakeMaster("--rpc_address=::1") as master:
        extra = {"host": "::1", "master": f"[::1]:{master.port('rpc')}"}
        owner = await start_agent({**master.extra("sender"), **extra})
        guest = await start_agent({**master.extra("receiver"), **extra})
        await owner.do("put", name="k", fill=6, nbytes=20 << 20)
        assert await guest.do("get", name="k") == [6, 20 << 20, True]
        assert await owner.do("elsewhere", name="k") == 0
        assert await guest.do("elsewhere", name="k") == 20 << 20
        for agent in (owner, guest):
            assert await agent.leave() == 0
