"""Zmq sockets on an event loop: nothing is lost, nothing blocks, whatever the callback does."""

from __future__ import annotations

import asyncio
import errno
import gc
import sys
import warnings
from typing import Any

import pytest
import zmq

from omni_async.rendezvous import zmq_context
from omni_async.rendezvous.zmq_context import close_socket, new_socket, shared_context
from omni_async.rendezvous.zmq_sockets import Frames, ReadySocket


class Ends:
    """Two sockets; the messages of one are noted."""

    def __init__(self) -> None:
        self.near = new_socket(zmq.PAIR)
        self.far = new_socket(zmq.PAIR)
        for each in (self.near, self.far):
            each.set(zmq.SNDHWM, 0)
            each.set(zmq.RCVHWM, 0)
        port = self.near.bind_to_random_port("tcp://127.0.0.1")
        self.far.connect(f"tcp://127.0.0.1:{port}")
        self.heard: asyncio.Queue[list[bytes]] = asyncio.Queue()
        self.dry = 0

    def note(self, frames: Frames) -> None:
        self.heard.put_nowait([frame.bytes for frame in frames])

    def when_dry(self) -> None:
        self.dry += 1

    async def next(self) -> list[bytes]:
        return await asyncio.wait_for(self.heard.get(), 10)

    def close(self) -> None:
        close_socket(self.near)
        close_socket(self.far)


@pytest.fixture
def ends() -> Any:
    both = Ends()
    yield both
    both.close()


async def test_what_came_before_it_is_heard_too(ends: Ends) -> None:
    ends.far.send(b"early")
    assert ends.near.poll(5000)  # swallows the telling
    ready = ReadySocket(ends.near, ends.note)
    assert await ends.next() == [b"early"]
    ready.close()


async def test_frames_stay_together(ends: Ends) -> None:
    ready = ReadySocket(ends.near, ends.note)
    ends.far.send_multipart([b"", b"a", b"", b"b" * 100_000])
    assert await ends.next() == [b"", b"a", b"", b"b" * 100_000]
    ready.send([b"x", bytearray(b"y"), memoryview(b"z")])
    assert ends.far.recv_multipart() == [b"x", b"y", b"z"]
    ready.close()


async def test_sending_swallows_nothing(ends: Ends) -> None:
    """Both at once, ten thousand times: the descriptor's telling gets lost in between."""
    other = ReadySocket(ends.far, lambda frames: other.send([frames[0].buffer]))
    ready = ReadySocket(ends.near, ends.note)
    other.send([b"connected"])
    await ends.next()
    for number in range(10_000):
        ready.send([b"%d" % number])
        if number % 7 == 0:
            await asyncio.sleep(0)
    for number in range(10_000):
        assert await ends.next() == [b"%d" % number]
    ready.close()
    other.close()


async def test_a_burst_leaves_turns_to_others(ends: Ends) -> None:
    ready = ReadySocket(ends.near, ends.note, ends.when_dry)
    for number in range(2000):
        ends.far.send(b"%d" % number)
    most = 0
    while ends.heard.qsize() < 2000:
        before = ends.heard.qsize()
        await asyncio.sleep(0)
        most = max(most, ends.heard.qsize() - before)
    assert most <= 2 * 256  # a wake-up and a look in one turn
    await asyncio.sleep(0.01)
    assert ends.dry > 0
    ready.close()


async def test_messages_that_are_worth_several(ends: Ends) -> None:
    seen = 0

    def heavy(frames: Frames) -> None:
        nonlocal seen
        seen += 1
        ready.taken += 99

    ready = ReadySocket(ends.near, heavy)
    for _ in range(100):
        ends.far.send(b"")
    most = before = 0
    while seen < 100:
        before = seen
        await asyncio.sleep(0)
        most = max(most, seen - before)
    assert most <= 2 * 3
    ready.close()


async def test_busy_until_resumed(ends: Ends) -> None:
    def note(frames: Frames) -> None:
        ends.note(frames)
        ready.busy = True

    ready = ReadySocket(ends.near, note, ends.when_dry)
    for number in range(3):
        ends.far.send(b"%d" % number)
    for number in range(3):
        assert await ends.next() == [b"%d" % number]
        await asyncio.sleep(0.02)
        assert ends.heard.empty()
        ready.resume()
    ready.close()


async def test_what_a_callback_raises_stops_nothing(ends: Ends) -> None:
    problems: list[Any] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: problems.append(context["exception"]))

    def fail(frames: Frames) -> None:
        ends.note(frames)
        raise ZeroDivisionError("a mistake of who listens")

    ready = ReadySocket(ends.near, fail)
    for number in range(5):
        ends.far.send(b"%d" % number)
    for number in range(5):
        assert await ends.next() == [b"%d" % number]
    await asyncio.sleep(0.01)
    assert len(problems) == 5
    ready.close()


async def test_looking_again_from_inside_does_nothing(ends: Ends) -> None:
    def note(frames: Frames) -> None:
        ends.note(frames)
        ready.look()

    ready = ReadySocket(ends.near, note)
    ends.far.send(b"1")
    ends.far.send(b"2")
    assert await ends.next() == [b"1"]
    assert await ends.next() == [b"2"]
    ready.close()


async def test_closed_from_inside(ends: Ends) -> None:
    def leave(frames: Frames) -> None:
        ends.note(frames)
        ready.close()

    ready = ReadySocket(ends.near, leave, ends.when_dry)
    ends.far.send(b"1")
    ends.far.send(b"2")
    assert await ends.next() == [b"1"]
    await asyncio.sleep(0.02)
    assert ends.heard.empty()
    assert not ready.open
    ready.close()
    ready.look()
    with pytest.raises(zmq.ZMQError) as caught:
        ready.send([b"x"])
    assert caught.value.errno == errno.ENOTSOCK


async def test_no_room(ends: Ends) -> None:
    lonely = new_socket(zmq.DEALER)
    ready = ReadySocket(lonely, ends.note)
    with pytest.raises(zmq.Again):
        ready.send([b"to nobody"])
    ready.close()


def test_closed_after_its_loop(ends: Ends) -> None:
    async def main() -> ReadySocket:
        return ReadySocket(ends.near, ends.note)

    ready = asyncio.run(main())
    ready.close()
    assert ends.near.closed


def test_one_context_for_the_process() -> None:
    assert shared_context() is shared_context()
    socket = new_socket(zmq.PUSH)
    assert socket.get(zmq.LINGER) == 0
    close_socket(socket, 0.1)
    close_socket(socket)
    assert socket.closed


def test_last_words_are_waited_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr(zmq_context.time, "sleep", waited.append)  # type: ignore[attr-defined]
    close_socket(new_socket(zmq.PUSH), 0.1)
    zmq_context._last_words()
    assert len(waited) == 1
    assert 0 < waited[0] <= 0.05
    monkeypatch.setattr(zmq_context._shared, "closed_at", 0.0)
    zmq_context._last_words()
    assert len(waited) == 1


def test_the_package_does_not_load_zmq() -> None:
    import subprocess

    script = "import omni_async, sys; omni_async.open_transport; print('zmq' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stdout == "False\n"


def test_a_socket_that_is_dropped_is_closed(ends: Ends) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        new_socket(zmq.PUSH)
        gc.collect()
    assert any(issubclass(each.category, ResourceWarning) for each in caught)
