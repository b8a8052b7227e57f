"""The fault tools put their faults where they say.

In: coroutines, channels, processes made for it. Out: exactly one fault at the named place.
Never: depends on chance without a seed.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Sequence

import pytest

from omni_async.abc import Channel
from omni_async.rendezvous.messages import Done, Hello, Message
from omni_async.testing import faults
from omni_async.testing.faults import CancelAt, FaultyChannel, Moment


async def _three_waits(log: list[str]) -> str:
    for name in ("a", "b", "c"):
        try:
            await asyncio.sleep(0.001)
        except asyncio.CancelledError:
            log.append(f"cancelled at {name}")
            raise
        log.append(name)
    return "done"


@pytest.mark.parametrize("moment", list(Moment))
async def test_each_suspension_is_hit_once(moment: Moment) -> None:
    ends = []
    for n in range(4):
        log: list[str] = []
        attempt: CancelAt = CancelAt(n, moment)
        await attempt.run(_three_waits(log))
        ends.append((attempt.reached, attempt.cancelled, log[-1], attempt.result))
    assert ends == [
        (True, True, "cancelled at a", None),
        (True, True, "cancelled at b", None),
        (True, True, "cancelled at c", None),
        (False, False, "c", "done"),
    ]


async def test_ready_means_that_the_result_is_lost() -> None:
    future = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(0.01, future.set_result, "precious")
    got: list[str] = []

    async def wait() -> None:
        got.append(await future)

    attempt: CancelAt = CancelAt(0, Moment.READY)
    await attempt.run(wait())
    assert (attempt.cancelled, future.result(), got) == (True, "precious", [])


async def test_bare_turns_count_and_errors_are_kept() -> None:
    async def turns() -> None:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        raise ValueError("mine")

    attempt: CancelAt = CancelAt(1)
    await attempt.run(turns())
    assert (attempt.reached, attempt.cancelled) == (True, True)
    attempt = CancelAt(2)
    await attempt.run(turns())
    assert (attempt.reached, attempt.cancelled, repr(attempt.error)) == (
        False,
        False,
        "ValueError('mine')",
    )


async def test_a_cancellation_that_is_swallowed_shows() -> None:
    async def deaf() -> None:
        while True:
            try:
                await asyncio.sleep(10)
            except asyncio.CancelledError:
                return

    attempt: CancelAt = CancelAt(0)
    await attempt.run(deaf())
    assert (attempt.reached, attempt.cancelled) == (True, False)


async def test_a_coroutine_that_does_not_end() -> None:
    attempt: CancelAt = CancelAt(5)
    with pytest.raises(TimeoutError, match="suspension 5"):
        await attempt.run(asyncio.Event().wait(), limit=0.05)


class _Recorder(Channel):
    """Stands for a line; keeps what is sent. Shows nothing of sockets."""

    name = "recorder"

    def __init__(self) -> None:
        self.peer = Hello(1, "x", "sender", "n", "0", 0, 0, 1, "b", "map")
        self.sent: list[tuple[Message, int]] = []
        self.calls: list[str] = []

    def send(self, message: Message, fds: Sequence[int] = ()) -> None:
        self.sent.append((message, len(fds)))

    def flush(self) -> None:
        self.calls.append("flush")

    @property
    def queued(self) -> int:
        return 7

    def when_written(self, call: Callable[[], None]) -> None:
        self.calls.append("when_written")

    def close(self) -> None:
        self.calls.append("close")

    def detach(self) -> int:
        return -1


async def test_a_faulty_channel_loses_doubles_and_delays_by_its_seed() -> None:
    words = [Done(number) for number in range(200)]

    async def play(seed: int) -> tuple[list[int], int]:
        inner = _Recorder()
        line = FaultyChannel(inner, seed=seed, lose=0.2, double=0.2, delay=0.3, longest=0.01)
        for word in words:
            line.send(word, [0] if word.op % 50 == 0 else [])
        await asyncio.sleep(0.05)
        line.flush()
        line.when_written(line.flush)
        line.close()
        calls = ["flush", "when_written", "close"]
        assert (inner.calls, line.queued, line.detach()) == (calls, 7, -1)
        return [word.op for word, _ in inner.sent if isinstance(word, Done)], len(line.lost)

    arrived, lost = await play(3)
    assert 20 < lost < 60
    assert len(set(arrived)) == 200 - lost
    assert len(arrived) > len(set(arrived))
    assert arrived != sorted(arrived)
    again, _ = await play(3)
    assert sorted(again) == sorted(arrived)
    assert await play(4) != (arrived, lost)


def test_stopping_resuming_killing() -> None:
    script = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)"
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    faults.stop(process.pid)
    with open(f"/proc/{process.pid}/stat") as stat:
        assert stat.read().rpartition(")")[2].split()[0] == "T"
    faults.resume(process.pid)
    process.stdin.write("alive\n")
    process.stdin.flush()
    assert process.stdout.readline() == "alive\n"
    faults.kill(process.pid)
    assert process.wait() == -9
    process.stdin.close()
    process.stdout.close()
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)
