"""Faults put where a test wants them: cancellation, bad lines, stopped and killed processes.

In: a coroutine, a channel, a process id. Out: the same with one fault at one known place.
Never: picks the place by chance on its own; a seed or a number comes from the caller.
"""

from __future__ import annotations

import asyncio
import enum
import os
import random
import signal
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from typing import TYPE_CHECKING, Any

from ..abc import Channel, ChannelHandler, Channels, Dialer, Listener
from ..model import Endpoint

if TYPE_CHECKING:
    from ..rendezvous.messages import Hello, Message


class Moment(enum.Enum):
    """When, at a suspension, the cancellation arrives."""

    WAITING = "waiting"
    """What the coroutine waits for has not happened."""
    READY = "ready"
    """It has happened, but the coroutine has not run again: its result would be lost."""


class CancelAt:
    """Runs a coroutine as a task and cancels that task at its ``n``-th suspension, from 0.

    Step ``n`` upwards until :attr:`reached` is false: then every await point was hit once::

        for n in itertools.count():
            attempt = CancelAt(n)
            await attempt.run(transport.put("0", "1", "key", value))
            ...                                   # look for leaks, use the transport again
            if not attempt.reached:
                break
    """

    def __init__(self, n: int, moment: Moment = Moment.WAITING) -> None:
        self.n = n
        self.moment = moment
        self.reached = False
        """The coroutine was suspended that often, and the cancellation was delivered."""
        self.cancelled = False
        """The coroutine ended by ``CancelledError``."""
        self.result: Any = None
        self.error: BaseException | None = None

    async def run(self, coroutine: Coroutine[Any, Any, Any], *, limit: float = 20.0) -> None:
        """Run to the end, whatever the end is; nothing of the coroutine is raised here.

        Raises:
            TimeoutError: the coroutine did not end within ``limit`` seconds: it swallowed the
                cancellation, or waits for something that will not happen.

        Cancellation: ends the coroutine too.
        """
        task = asyncio.ensure_future(_Stepped(coroutine, self))
        try:
            done, _ = await asyncio.wait({task}, timeout=limit)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if not done:
            task.cancel()
            raise TimeoutError(f"not ended {limit} s after suspension {self.n}: {coroutine!r}")
        self.cancelled = task.cancelled()
        if not self.cancelled:
            self.error = task.exception()
            self.result = None if self.error else task.result()

    def suspended(self, waited: Any) -> None:
        """The coroutine is about to wait for ``waited`` (a future, or ``None``: one turn)."""
        task = asyncio.current_task()
        assert task is not None
        self.reached = True
        if waited is not None and self.moment is Moment.READY:
            # added before the task's own callback, so the task is cancelled with its result at hand
            waited.add_done_callback(lambda _: task.cancel())
        else:
            asyncio.get_running_loop().call_soon(task.cancel)


class _Stepped(Awaitable[Any]):
    """Awaits a coroutine and counts its suspensions."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], driver: CancelAt) -> None:
        self._coroutine = coroutine
        self._driver = driver

    def __await__(self) -> Generator[Any, Any, Any]:
        count = 0
        step: Callable[[], Any] = lambda: self._coroutine.send(None)  # noqa: E731
        while True:
            try:
                waited = step()
            except StopIteration as end:
                return end.value
            if count == self._driver.n:
                self._driver.suspended(waited)
            count += 1
            try:
                value = yield waited
            except BaseException as error:  # noqa: BLE001 - it goes into the coroutine
                step = _thrower(self._coroutine, error)
            else:
                step = _sender(self._coroutine, value)


def _thrower(coroutine: Coroutine[Any, Any, Any], error: BaseException) -> Callable[[], Any]:
    return lambda: coroutine.throw(error)


def _sender(coroutine: Coroutine[Any, Any, Any], value: Any) -> Callable[[], Any]:
    return lambda: coroutine.send(value)


class FaultyChannel(Channel):
    """A channel that loses, doubles, delays and reorders what is sent on it.

    Descriptors travel with their message; a doubled message travels without them the second time,
    as a socket would deliver them once only.
    """

    def __init__(
        self,
        channel: Channel,
        *,
        seed: int,
        lose: float = 0.0,
        double: float = 0.0,
        delay: float = 0.0,
        longest: float = 0.05,
    ) -> None:
        """Chances are 0 to 1 for each message; ``longest`` is the largest delay in seconds."""
        self._channel = channel
        self._chance = random.Random(seed)
        self._lose = lose
        self._double = double
        self._delay = delay
        self._longest = longest
        self.lost: list[Message] = []
        self.peer = channel.peer
        self.name = f"faulty {channel.name}"

    def send(self, message: Message, fds: Sequence[int] = ()) -> None:
        if self._chance.random() < self._lose:
            self.lost.append(message)
            return
        if self._chance.random() < self._delay:
            kept = [os.dup(fd) for fd in fds]
            asyncio.get_running_loop().call_later(
                self._chance.random() * self._longest, self._send_late, message, kept
            )
        else:
            self._channel.send(message, fds)
        if self._chance.random() < self._double:
            self._channel.send(message)

    def _send_late(self, message: Message, fds: list[int]) -> None:
        self._channel.send(message, fds)
        for fd in fds:
            os.close(fd)

    def flush(self) -> None:
        self._channel.flush()

    @property
    def queued(self) -> int:
        return self._channel.queued

    def when_written(self, call: Callable[[], None]) -> None:
        self._channel.when_written(call)

    def close(self) -> None:
        self._channel.close()

    def detach(self) -> int:
        return self._channel.detach()


class FaultyChannels(Channels):
    """Channels of another kind, each made faulty in both directions; same chances for all.

    Set :attr:`calm` and from then on everything arrives.
    """

    def __init__(self, channels: Channels, *, seed: int, **chances: float) -> None:
        """``chances`` are those of :class:`FaultyChannel`."""
        self._channels = channels
        self._seeds = random.Random(seed)
        self._chances = chances
        self.calm = False
        self._made: list[FaultyChannel] = []

    def address_of(self, endpoint: Endpoint) -> str | None:
        return self._channels.address_of(endpoint)

    async def listen(self, endpoint: Endpoint, hello: Hello, handler: ChannelHandler) -> Listener:
        return await self._channels.listen(endpoint, hello, _FaultyHandler(self, handler))

    def dial(self, address: str, hello: Hello, handler: ChannelHandler) -> Dialer:
        return self._channels.dial(address, hello, _FaultyHandler(self, handler))

    def faulty(self, channel: Channel) -> FaultyChannel:
        chances = {} if self.calm else self._chances
        made = FaultyChannel(channel, seed=self._seeds.randrange(1 << 30), **chances)
        self._made.append(made)
        return made

    @property
    def lost(self) -> int:
        """Words that were lost so far."""
        return sum(len(channel.lost) for channel in self._made)


class _FaultyHandler:
    """Hands the faulty channel to who hears of the true one."""

    def __init__(self, channels: FaultyChannels, handler: ChannelHandler) -> None:
        self._channels = channels
        self._handler = handler
        self._faulty: dict[Channel, FaultyChannel] = {}

    def opened(self, channel: Channel) -> None:
        self._faulty[channel] = self._channels.faulty(channel)
        self._handler.opened(self._faulty[channel])

    def received(self, channel: Channel, message: Message, fds: list[int]) -> None:
        self._handler.received(self._faulty[channel], message, fds)

    def silent(self, channel: Channel, seconds: float) -> None:
        self._handler.silent(self._faulty[channel], seconds)

    def ended(self, channel: Channel, error: Exception | None) -> None:
        self._handler.ended(self._faulty.pop(channel, channel), error)


def stop(pid: int) -> None:
    """Stop a process and wait until it has stopped: it is silent from here on, but not dead."""
    os.kill(pid, signal.SIGSTOP)
    while not _state(pid).startswith(("T", "t")):
        os.sched_yield()


def resume(pid: int) -> None:
    """Let a stopped process go on."""
    os.kill(pid, signal.SIGCONT)


def kill(pid: int) -> None:
    """SIGKILL: nothing of the process runs any more."""
    os.kill(pid, signal.SIGKILL)


def _state(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]
