"""Servers and clients that go, come back or stop: every call ends in a value or a typed error, and then traffic flows."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest

from omni_async import EngineFault, PoolExhausted
from omni_async.abc import Gone
from omni_async.cli.servers.mooncake import MooncakeMaster
from omni_async.errors import ServerUnreachable

from .conftest import MIB, Open, StartAgent
from .desk import Desk

BACK_WITHIN = 5.0
"""Seconds after a master's return in which puts work again; 1 is usual."""


@pytest.fixture
def master(own_master: MooncakeMaster) -> MooncakeMaster:
    own_master.start()
    return own_master


@pytest.fixture
async def guest(master: MooncakeMaster, open_desk: Open) -> Desk:
    return await open_desk({**master.extra("receiver"), "segment": 0})


async def put_again(desk: Desk, name: str, data: bytes) -> float:
    """Put until it works; the seconds it took."""
    begun = time.monotonic()
    while True:
        try:
            await desk.put(name, data)
        except (ServerUnreachable, PoolExhausted):
            if time.monotonic() > begun + BACK_WITHIN:
                raise
            await asyncio.sleep(0.02)
        else:
            return time.monotonic() - begun


@pytest.mark.parametrize("restarts", [1, pytest.param(20, marks=pytest.mark.soak)])
async def test_a_master_that_was_restarted(
    master: MooncakeMaster, open_desk: Open, guest: Desk, restarts: int
) -> None:
    owner = await open_desk(master.extra("sender"))
    for _ in range(restarts):
        await put_again(owner, "before", b"b" * MIB)
        assert await guest.get("before") == b"b" * MIB
        master.restart()
        await put_again(owner, "after", b"a" * MIB)
        assert await guest.get("after") == b"a" * MIB
        assert await guest.get("before") is None
        assert await guest.delete("after", own=True) is Gone.DELETED
        await put_again(guest, "from the other", b"g" * MIB)
        assert await owner.get("from the other") == b"g" * MIB
        assert await owner.delete("from the other", own=True) is Gone.DELETED


async def test_a_master_that_is_gone(master: MooncakeMaster, open_desk: Open, guest: Desk) -> None:
    owner = await open_desk(master.extra("sender"))
    await owner.put("k", b"x")
    master.kill()
    calls = [
        call
        for desk in (owner, guest)
        for call in (desk.get("k"), desk.there("k"), desk.delete("k"), desk.put("n", b"n"))
    ]
    begun = time.monotonic()
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert time.monotonic() - begun < 15
    for outcome in outcomes:
        assert isinstance(outcome, ServerUnreachable)
        assert f"the master at {master.address} does not answer (option `master`)" in str(outcome)
        assert outcome.status == -900
    master.restart()
    await put_again(guest, "n", b"n")
    assert await owner.get("n") == b"n"


async def test_a_master_that_is_stopped_for_a_while(
    master: MooncakeMaster, open_desk: Open
) -> None:
    desk = await open_desk(master.extra("sender"))
    await desk.put("k", b"x")
    master.stop()
    begun = time.monotonic()
    with pytest.raises(ServerUnreachable, match="stopped or overloaded") as caught:
        await desk.there("k")
    assert 4 < time.monotonic() - begun < 8
    assert caught.value.status == -901
    waiting = asyncio.ensure_future(desk.get("k"))
    await asyncio.sleep(0.1)
    begun = time.monotonic()
    await desk.store.close()  # leaves the call to itself
    assert time.monotonic() - begun < 2
    master.cont()
    assert await waiting == b"x"


async def test_a_client_that_was_killed_with_what_it_held(
    master: MooncakeMaster, guest: Desk, start_agent: StartAgent
) -> None:
    owner = await start_agent(master.extra("sender"))
    await owner.do("put", name="k", fill=1, nbytes=MIB)
    assert await guest.get("k") == b"\1" * MIB
    await owner.kill()
    begun = time.monotonic()
    with pytest.raises(EngineFault, match="its process has ended or is stopped") as caught:
        await guest.get("k")
    assert caught.value.status == -800
    with pytest.raises(EngineFault):
        await guest.put("n", b"n" * MIB)
    while await guest.there("k"):  # until the master believes it
        assert time.monotonic() < begun + 10
        await asyncio.sleep(0.1)
    assert await guest.get("k") is None
    with pytest.raises(PoolExhausted):
        await guest.put("n", b"n")
    await start_agent(master.extra("sender"))
    await put_again(guest, "n", b"n")
    assert await guest.get("n") == b"n"


async def test_a_put_finds_room_beside_a_client_that_was_killed(
    master: MooncakeMaster, guest: Desk, start_agent: StartAgent
) -> None:
    await start_agent(master.extra("sender"))
    killed = await start_agent(master.extra("sender"))
    await killed.do("put", name="gone", fill=1, nbytes=4096)
    await killed.kill()
    with pytest.raises(EngineFault) as caught:
        await guest.get("gone")
    assert caught.value.status == -800
    for at in range(12):  # the master chooses by chance
        await guest.put(f"k{at}", bytes([at]) * 4096)
        assert await guest.get(f"k{at}") == bytes([at]) * 4096


async def test_a_client_that_is_stopped(master: MooncakeMaster, start_agent: StartAgent) -> None:
    owner = await start_agent(master.extra("sender"))
    hurried = {"MC_TCP_PROGRESS_TIMEOUT_SEC": "2", "MC_TCP_STATUS_TIMEOUT_SEC": "2"}
    reader = await start_agent({**master.extra("receiver"), "segment": 0}, environment=hurried)
    await owner.do("put", name="k", fill=1, nbytes=4 * MIB)
    assert await reader.do("get", name="k") == [1, 4 * MIB, True]
    owner.signal(signal.SIGSTOP)
    assert await reader.attempt("get", name="k") == "EngineFault"
    owner.signal(signal.SIGCONT)


async def test_a_client_that_leaves_in_peace(
    master: MooncakeMaster, guest: Desk, start_agent: StartAgent
) -> None:
    owner = await start_agent(master.extra("sender"))
    await owner.do("put", name="k", fill=1, nbytes=MIB)
    await owner.do("close")
    assert await guest.get("k") == b"\1" * MIB  # it lends its memory as long as it lives
    assert await owner.leave() == 0
    assert not await guest.there("k")
    assert master.figures()["master_total_capacity_bytes"] == 0


@pytest.mark.parametrize("state", ["there", "gone", "stopped"])
async def test_leaving_is_quick_and_quiet(
    master: MooncakeMaster, start_agent: StartAgent, state: str
) -> None:
    agent = await start_agent(master.extra("sender"))
    before = agent.words()
    if state == "gone":
        master.kill()
    elif state == "stopped":
        os.kill(master.pid, signal.SIGSTOP)
    begun = time.monotonic()
    assert await agent.leave() == 0
    assert (
        time.monotonic() - begun < 8
    )  # the vendor's own way takes 12 s where the master is stopped
    assert agent.words() == before
