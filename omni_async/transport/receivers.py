"""The sender's lines to its receivers, and the engine's writes to them.

In: channels and their words, writes to begin. Out: the core's words on their way, word of ends.
Never: lets a receiver believe that no write can land any more while one is under way.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator
from functools import partial

from ..abc import Channel, RemoteRegion
from ..errors import ProtocolError
from ..model import Move, Region, Verb
from ..observe.log import get_logger
from ..rendezvous.messages import Aside, Bye, Message, Regions
from ..rendezvous.sender import Sender, Write
from .guests import OpenLine, end_for_guests, hand_over, open_for_guests
from .moving import Ended, Make, PeerMoves
from .peers import EndWatch, learn_regions
from .wiring import Wiring

_log = get_logger("omni_async.transport")


class Receivers:
    """A :class:`ChannelHandler`: one number for each line, by which the core knows its receiver.

    Args:
        pump: called when the core may have something to say.
    """

    def __init__(self, wiring: Wiring, core: Sender, pump: Callable[[], None]) -> None:
        self._wiring = wiring
        self._core = core
        self._pump = pump
        self._last = 0
        self._numbers: dict[Channel, int] = {}
        self.channels: dict[int, Channel] = {}
        self._remote: dict[int, dict[int, RemoteRegion]] = {}
        self._met: dict[int, str] = {}
        """Incarnations that the engine knows."""
        self._silent: dict[int, float] = {}
        """Since when receivers are silent."""
        self._writes: dict[int, PeerMoves] = {}
        """Receivers that are being written to."""
        self._lines: dict[int, OpenLine] = {}
        """The same, as guests have them."""
        self._all_idle: asyncio.Event | None = None
        self._watches: dict[int, EndWatch] = {}
        self._held_back: dict[int, int] = {}
        """Descriptors of lines that were given up while a write to their receivers was under way."""
        self._closed = False
        wiring.pool.on_grow = self.announce
        wiring.pool.on_shrink = self.withdraw

    # --- channel handler --------------------------------------------------------------------------

    def opened(self, channel: Channel) -> None:
        self._last += 1
        self._numbers[channel] = self._last
        self.channels[self._last] = channel
        self._core.peer_opened(self._last, channel.peer.stage)
        self._wiring.engine.meet(channel.peer.incarnation, channel.peer.engine)
        self._met[self._last] = channel.peer.incarnation
        if self._wiring.engine.verb is not Verb.WRITE:
            word, fds = self._wiring.regions()
            if word.added:
                channel.send(word, fds)
        line = self._lines[self._last] = OpenLine(
            channel,
            partial(self._guest_move, self._last),
            self._remote.setdefault(self._last, {}),
        )
        open_for_guests(self._wiring, line)

    def received(self, channel: Channel, message: Message, fds: list[int]) -> None:
        number = self._numbers.get(channel)
        if number is None:
            return
        if self._silent:
            self._silent.pop(number, None)
        if isinstance(message, Regions):
            known = self._remote.setdefault(number, {})
            learn_regions(self._wiring.engine, channel, message, fds, known)
        elif isinstance(message, Aside):
            hand_over(self._wiring, self._lines[number], message)
        else:
            self._core.receive(number, message)
            if isinstance(message, Bye) and message.held != []:
                self.ended(channel, ProtocolError(message.reason, peer=channel.name))
            self._pump()

    def silent(self, channel: Channel, seconds: float) -> None:
        self._silent[self._numbers[channel]] = self._wiring.loop.time() - seconds
        _log.warning("receiver is silent", peer=channel.name, seconds=round(seconds, 1))
        if seconds >= self._wiring.options.peer_timeout:
            self.ended(channel, ProtocolError("silent for too long", peer=channel.name))

    def ended(self, channel: Channel, error: Exception | None) -> None:
        number = self._numbers.pop(channel, None)
        if number is None:
            return
        del self.channels[number]
        self._silent.pop(number, None)
        # A line that the peer closed proves that it reads no more; one that we give up does not.
        proven = channel.end_proves and not isinstance(error, ProtocolError)
        if not proven:
            self._give_up(number, channel)
        channel.close()
        # It never reads here; or it believes nothing that it has read before we say so, over this line.
        verb = self._wiring.engine.verb
        harmless = verb is Verb.WRITE or (verb is Verb.READ and not channel.end_proves)
        if number in self._met:
            # Now, not with the end of the last write: one that waits for the way need not wait on.
            self._wiring.engine.part(self._met.pop(number))
        self._core.peer_ended(number, proven=proven or harmless)
        line = self._lines.pop(number, None)
        if line is not None:
            end_for_guests(self._wiring, line, error, proven=proven)
        self._retire(number)
        self._pump()

    # --- ends -------------------------------------------------------------------------------------

    def _give_up(self, number: int, channel: Channel) -> None:
        fd = channel.detach()
        if fd >= 0:
            self._held_back[number] = fd
            self._watch(number)

    def _watch(self, number: int) -> None:
        """Tell a receiver that was given up of the end, and wait for its own.

        Not before the last write into its memory has ended: it takes this end for the proof of that.
        """
        if number in self._held_back and number not in self._writes:
            fd = self._held_back.pop(number)
            if self._closed:
                os.close(fd)
                return
            self._watches[number] = EndWatch(self._wiring.loop, fd, lambda: self._proven(number))

    def _proven(self, number: int) -> None:
        del self._watches[number]
        self._core.peer_proven(number)
        self._pump()

    def _retire(self, number: int) -> None:
        """Forget a vanished receiver's regions, once no write to them is under way."""
        if number not in self.channels and number not in self._writes:
            for remote in self._remote.pop(number, {}).values():
                self._wiring.engine.detach(remote)

    def poll(self) -> None:
        """Hear what has arrived already: the last word of a delivery, before it counts as unclaimed."""
        for channel in list(self.channels.values()):
            channel.poll()

    def close(self, reason: str) -> None:
        """Say good-bye. A line to a receiver that is being written to ends with the write."""
        for number, channel in list(self.channels.items()):
            channel.send(Bye(reason))
            if number in self._writes:
                self._give_up(number, channel)
            channel.close()
            line = self._lines.pop(number, None)  # receivers of another wire have none
            if line is not None:
                end_for_guests(self._wiring, line, None, proven=False)
        self.channels.clear()
        self._numbers.clear()

    async def settle(self, timeout: float) -> None:
        """Wait for the engine's writes to end: their slots are theirs until then.

        Where one does not end, its receiver's line stays open with this process.
        """
        if self._writes:
            self._all_idle = asyncio.Event()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._all_idle.wait(), timeout)
        self.abandon()

    def abandon(self) -> None:
        """Wait for nothing more."""
        self._closed = True
        for watch in self._watches.values():
            watch.close()

    # --- pool and engine --------------------------------------------------------------------------

    def announce(self, region: Region) -> None:
        """There is a new region here."""
        if self._wiring.engine.verb is not Verb.WRITE:
            word, fds = self._wiring.regions([region.id])
            for channel in self.channels.values():
                channel.send(word, fds)

    def withdraw(self, region: Region) -> None:
        """A region is no more."""
        if self._wiring.engine.verb is not Verb.WRITE:
            for channel in self.channels.values():
                channel.send(Regions([], [region.id]))

    def begin(self, write: Write) -> None:
        """Let the engine write; the core is told of the end."""
        queue = self._queue(write.ref[0])
        if queue is None:
            self._written(write, "the receiver has gone")
            return
        regions = self._wiring.pool.regions
        moves = [
            Move(regions[s.region].address + s.offset, t.region, t.offset, s.nbytes)
            for s, t in zip(write.payload.places, write.places, strict=True)
        ]
        queue.add(moves, write.payload.filling, partial(self._written, write))

    def _queue(self, number: int) -> PeerMoves | None:
        """What is to be written to a receiver; ``None`` where it has gone."""
        queue = self._writes.get(number)
        if queue is None:
            channel = self.channels.get(number)
            if channel is None:
                return None
            known = self._remote.setdefault(number, {})
            queue = self._writes[number] = PeerMoves(
                self._wiring.engine.write,
                channel.peer.incarnation,
                known,
                partial(self._idle, number),
            )
        return queue

    def _guest_move(self, number: int, nbytes: int, make: Make, ended: Ended) -> None:
        queue = self._queue(number)
        if queue is None:
            self._wiring.loop.call_soon(ended, "the receiver has gone")
        else:
            queue.plan(nbytes, make, ended)

    def guest_lines(self) -> Iterator[OpenLine]:
        return iter(self._lines.values())

    def _written(self, write: Write, problem: str | None = None) -> None:
        self._core.written(write.ref, problem)
        self._pump()

    def _idle(self, number: int) -> None:
        if self._writes.pop(number, None) is None:
            return
        self._watch(number)
        self._retire(number)
        if not self._writes and self._all_idle is not None:
            self._all_idle.set()

    # --- for people -------------------------------------------------------------------------------

    def holders(self) -> str:
        """Which receivers hold memory, for a put that found none."""
        now, parts = self._wiring.loop.time(), []
        for number, count in self._core.directory.holders().items():
            channel = self.channels.get(number)
            name = channel.name if channel is not None else "a receiver that has gone"
            since = self._silent.get(number)
            silent = "" if since is None else f", silent for {now - since:.1f} s"
            parts.append(f"{count} payload(s) held by {name}{silent}")
        return "".join(f"; {part}" for part in parts)
