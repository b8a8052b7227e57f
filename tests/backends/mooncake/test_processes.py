"""Two processes with the real engine over TCP: bytes, and what becomes of them when one end is not well."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from tests.backends.engine_pair import MIB, Pair, descriptors_come_down
from tests.backends.engine_processes import Bytes
from tests.backends.mooncake.conftest import AGENT
from tests.cases.processes import AgentError, Processes


class TestBytes(Bytes):
    pass


@pytest.mark.parametrize("host", ["::1", "localhost"])
async def test_other_addresses(processes: Processes, host: str) -> None:
    pair = Pair(processes, AGENT, host=host, nbytes=4 * MIB)
    await pair.meet()
    await pair.arrives(4)


@pytest.mark.parametrize("variable", [None, "3"], ids=["eight", "as the user says"])
async def test_as_many_connections_as_were_wanted(
    processes: Processes, monkeypatch: pytest.MonkeyPatch, variable: str | None
) -> None:
    """The vendor reads the variable while its engine starts, and no later."""
    if variable is not None:
        monkeypatch.setenv("MC_TCP_LANES_PER_PEER", variable)
    pair = Pair(processes, AGENT, nbytes=16 * MIB)
    await pair.meet()
    await pair.arrives(1)
    piece = MIB // 16
    await pair.write(*[(0, at * piece, piece) for at in range(200)])
    assert await pair.receiver.do("cut") == int(variable or 8)


# --- the receiver is not well ---------------------------------------------------------------------


async def test_a_receiver_that_was_killed(processes: Processes) -> None:
    pair = Pair(processes, AGENT)
    _, _, before = await pair.sender.do("state")
    await pair.meet()
    await pair.arrives(1)
    pair.begin((0, 0, 128 * MIB))
    pair.receiver.signal(signal.SIGKILL)
    with pytest.raises(AgentError, match=r"EngineFault.*could not write"):
        await pair.sender.answer(5)
    with pytest.raises(AgentError, match="takes no writes"):
        await pair.write((0, 0, MIB))
    await pair.part()
    await descriptors_come_down(pair.sender, before + 1)  # the timer stays


async def test_a_receiver_that_comes_back_elsewhere(processes: Processes) -> None:
    pair = Pair(processes, AGENT, nbytes=16 * MIB)
    _, threads, before = await pair.sender.do("state")
    for fill in range(1, 6):
        await pair.meet()
        await pair.arrives(fill)
        await pair.receiver.kill()
        await pair.part()
        await descriptors_come_down(pair.sender, before + 1)
        pair.receiver = pair.another()
    assert (await pair.sender.do("state"))[1] <= threads + 2


async def test_a_stopped_receiver_holds_up_nobody(processes: Processes) -> None:
    """A sender gets to know a receiver that is stopped; another one is met and written to meanwhile."""
    pair = Pair(processes, AGENT, nbytes=4 * MIB)
    told = await pair.receiver.do("tell")
    other = pair.another()
    told_other = await other.do("tell")
    pair.receiver.signal(signal.SIGSTOP)
    await pair.sender.do("meet", peer=pair.peer, told=told)
    await asyncio.sleep(0.2)  # it hangs in its first contact by now
    await pair.sender.do("meet", peer="another", told=told_other)
    taken = await pair.sender.do("write", peer="another", moves=[(0, 0, MIB)])
    assert taken < 2
    pair.receiver.signal(signal.SIGCONT)
    await pair.arrives(5)


async def test_a_receiver_that_is_stopped_for_a_while(one_pair: Pair) -> None:
    pair = one_pair
    await pair.sender.do("fill", offset=0, nbytes=64 * MIB, fill=6)
    pair.receiver.signal(signal.SIGSTOP)
    pair.begin((0, 0, 64 * MIB))
    await asyncio.sleep(1)
    pair.receiver.signal(signal.SIGCONT)
    assert await pair.sender.answer() > 1
    assert await pair.receiver.do("count", offset=0, nbytes=64 * MIB, fill=6) == 64 * MIB


# --- the receiver takes its memory away -----------------------------------------------------------


async def test_withdrawn_pages_take_no_late_byte(one_pair: Pair) -> None:
    """The proof on which freed landing slots rest, five times over: see the page on memory."""
    pair = one_pair
    await pair.arrives(1)
    size = 32 * MIB
    for number in range(1, 6):
        offset = number * size
        await pair.sender.do("fill", offset=0, nbytes=size, fill=7)
        pair.receiver.tell(
            "stop_when",
            offset=offset + size // 4,
            fill=7,
            pid=pair.sender.pid,
            number=signal.SIGSTOP,
        )
        pair.begin((0, offset, size))
        await pair.receiver.answer()
        await pair.receiver.do("withdraw", offset=offset, nbytes=size)
        before, *counts = await pair.receiver.do("state")
        pair.sender.signal(signal.SIGCONT)
        with pytest.raises(AgentError, match="EngineFault"):
            await pair.sender.answer(5)
        # Elsewhere in the same memory it goes on, though each of these has cost a connection.
        await pair.arrives(number, nbytes=4 * MIB)
        await asyncio.sleep(0.2)
        after, *counts_after = await pair.receiver.do("state")
        assert after - before < 0.1  # nothing spins
        assert counts_after[0] == counts[0]


@pytest.mark.soak
async def test_a_failed_write_proves_nothing(processes: Processes) -> None:
    """What a sender has sent before it gave a stopped receiver up still lands afterwards."""
    os.environ["MC_TCP_PROGRESS_TIMEOUT_SEC"] = "5"
    try:
        pair = Pair(processes, AGENT)
        await pair.meet()
        await pair.arrives(1)
    finally:
        del os.environ["MC_TCP_PROGRESS_TIMEOUT_SEC"]
    await pair.sender.do("fill", offset=0, nbytes=64 * MIB, fill=8)
    pair.receiver.signal(signal.SIGSTOP)
    with pytest.raises(AgentError, match="EngineFault"):
        await pair.write((0, 64 * MIB, 64 * MIB), patience=40)
    pair.receiver.signal(signal.SIGCONT)
    await asyncio.sleep(0.5)
    landed = await pair.receiver.do("count", offset=64 * MIB, nbytes=64 * MIB, fill=8)
    assert 0 < landed < 64 * MIB


# --- pauses ---------------------------------------------------------------------------------------


async def test_connections_that_were_lost_in_a_pause(one_pair: Pair) -> None:
    """A router that forgets idle connections, or a peer that ended them: the next write arrives."""
    pair = one_pair
    await pair.arrives(1)
    for fill in (2, 3):
        assert await pair.receiver.do("cut") > 0
        await pair.sender.do("age", peer=pair.peer, seconds=6)
        await pair.arrives(fill)
