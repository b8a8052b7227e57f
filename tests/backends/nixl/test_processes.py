"""Two processes with the real engine: bytes, and what becomes of them when one end is not well."""

from __future__ import annotations

import asyncio
import signal
import time

import pytest

from tests.backends.engine_pair import MIB, Pair, descriptors_come_down
from tests.backends.engine_processes import Bytes
from tests.backends.nixl.conftest import AGENT
from tests.cases.processes import AgentError, Process, Processes


class TestBytes(Bytes):
    pass


async def test_nobody_who_does_nothing_takes_time(pair: Pair) -> None:
    await pair.arrives(1)
    before = [(await one.do("state"))[0] for one in (pair.sender, pair.receiver)]
    await asyncio.sleep(1)
    after = [(await one.do("state"))[0] for one in (pair.sender, pair.receiver)]
    assert max(b - a for a, b in zip(before, after, strict=True)) < 0.1


# --- the receiver is not well ---------------------------------------------------------------------


async def test_a_write_ends_when_its_bytes_are_there(over_tcp: Pair) -> None:
    """Not when they have left: a receiver that stands still takes not even one."""
    pair = over_tcp
    await pair.arrives(1)
    pair.receiver.signal(signal.SIGSTOP)
    pair.begin((0, 0, 1))
    await asyncio.sleep(0.5)
    before, *_ = _cpu(pair.sender)
    pair.receiver.signal(signal.SIGCONT)
    assert await pair.sender.answer() > 0.4
    assert before < 5


async def test_a_receiver_that_is_stopped_for_a_while(over_tcp: Pair) -> None:
    pair = over_tcp
    await pair.sender.do("fill", offset=0, nbytes=64 * MIB, fill=6)
    await pair.write((0, 0, 1))
    pair.receiver.signal(signal.SIGSTOP)
    pair.begin((0, 0, 64 * MIB))
    await asyncio.sleep(0.5)  # it asks without a pause no more
    before = _cpu(pair.sender)[0]
    await asyncio.sleep(1)
    assert _cpu(pair.sender)[0] - before < 0.3
    pair.receiver.signal(signal.SIGCONT)
    assert await pair.sender.answer() > 1
    assert await pair.receiver.do("count", offset=0, nbytes=64 * MIB, fill=6) == 64 * MIB


async def test_the_kernel_writes_to_a_stopped_receiver(processes: Processes) -> None:
    """Within one host it needs nothing of it."""
    pair = Pair(processes, AGENT)
    await pair.meet()
    await pair.arrives(1)
    pair.receiver.signal(signal.SIGSTOP)
    await pair.sender.do("fill", offset=0, nbytes=MIB, fill=2)
    await pair.write((0, 0, MIB))
    pair.receiver.signal(signal.SIGCONT)
    assert await pair.receiver.do("count", offset=0, nbytes=MIB, fill=2) == MIB


@pytest.mark.parametrize("tls", ["", "tcp"], ids=["default", "tcp"])
async def test_a_receiver_that_was_killed(processes: Processes, tls: str) -> None:
    pair = Pair(processes, AGENT, tls=tls)
    await pair.meet()
    await pair.arrives(1)
    await pair.receiver.kill()
    begun = time.monotonic()
    with pytest.raises(AgentError, match=r"EngineFault.*could not write"):
        await pair.write((0, 0, 64 * MIB))
    assert time.monotonic() - begun < 5
    with pytest.raises(AgentError, match="EngineFault"):
        await pair.write((0, 0, MIB))


async def test_a_receiver_that_is_killed_under_a_write(over_tcp: Pair) -> None:
    pair = over_tcp
    await pair.arrives(1)
    pair.receiver.signal(signal.SIGSTOP)
    pair.begin((0, 0, 128 * MIB))
    await asyncio.sleep(0.2)
    pair.receiver.signal(signal.SIGKILL)
    begun = time.monotonic()
    with pytest.raises(AgentError, match="EngineFault"):
        await pair.sender.answer(10)
    assert time.monotonic() - begun < 5


async def test_a_receiver_that_comes_back(pair: Pair) -> None:
    await pair.arrives(1)
    _, threads, descriptors = await pair.sender.do("state")
    for fill in range(2, 5):
        await pair.receiver.kill()
        await pair.part()
        await descriptors_come_down(pair.sender, descriptors)
        pair.receiver, pair.peer = pair.another(), f"comes-back-{fill}"
        await pair.meet()
        await pair.arrives(fill)
    assert (await pair.sender.do("state"))[1] <= threads


async def test_a_stopped_receiver_holds_up_nobody(over_tcp: Pair) -> None:
    pair = over_tcp
    other = pair.another()
    told = await other.do("tell")
    await pair.arrives(1)
    pair.receiver.signal(signal.SIGSTOP)
    await pair.sender.do("meet", peer="other", told=told)
    await pair.sender.do("write", peer="other", moves=[(0, 0, MIB)])
    assert await other.do("count", offset=0, nbytes=MIB, fill=1) == MIB
    pair.receiver.signal(signal.SIGCONT)


# --- late bytes -----------------------------------------------------------------------------------


async def test_withdrawn_places_take_late_bytes_where_nobody_looks(over_tcp: Pair) -> None:
    """The proof on which freed landing slots rest: the receiver lives, and nothing else changes."""
    pair = over_tcp
    await pair.arrives(1, offset=0)
    size = 32 * MIB
    for number in range(1, 4):
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
        pair.sender.signal(signal.SIGCONT)
        await pair.sender.answer()
        assert await pair.receiver.do("count", offset=0, nbytes=MIB, fill=1) == MIB
        rest = (number + 1) * size
        after = await pair.receiver.do("count", offset=rest, nbytes=MIB, fill=0)
        assert after == MIB
        await pair.arrives(1, offset=0)


def _cpu(process: Process) -> tuple[float]:
    """CPU seconds of a process, seen from outside."""
    with open(f"/proc/{process.pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return ((int(fields[11]) + int(fields[12])) / 100,)
