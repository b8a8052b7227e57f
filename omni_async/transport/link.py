"""A receiver's line to one sender endpoint, across all of the sender's incarnations.

In: operations of the receiver, words of the sender. Out: answers to operations, words to the sender.
Never: lets the sender believe that its memory is free while a view of it lives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from .._aio.tasks import spawn
from ..abc import Channel, RemoteRegion, Revoke
from ..errors import EngineFault, OmniAsyncError, ProtocolError
from ..model import Move, Verb
from ..observe.log import get_logger
from ..pool import Lease
from ..rendezvous.completions import CompletionRegistry
from ..rendezvous.messages import Aside, Bye, Message, Regions
from ..rendezvous.receiver import Phase, Receiver
from .guests import OpenLine, end_for_guests, hand_over, open_for_guests, refuse_for_guests
from .holding import Lifeline
from .moving import PeerMoves
from .peers import EndWatch, learn_regions
from .room import Room
from .wiring import Wiring

_log = get_logger("omni_async.transport")
_LANDED = object()

ACK_SECONDS = 0.0005
"""How long words that nobody waits for are held back, to travel together or with others."""


class Link:
    """A :class:`ChannelHandler` that feeds one :class:`Receiver`."""

    def __init__(self, wiring: Wiring, address: str, completions: CompletionRegistry) -> None:
        self.wiring = wiring
        self._completions = completions
        self.address = address
        self.core = Receiver()
        self.room = Room()
        self.known: dict[int, RemoteRegion] = {}
        self.lifeline = Lifeline()
        self._channel: Channel | None = None
        self._landing: dict[int, Lease] = {}
        self._reading: dict[int, bool] = {}
        """Reads under way, and whether their callers still want them."""
        self.reads: set[asyncio.Task[None]] = set()
        self._watch: EndWatch | None = None
        self.incarnation = ""
        self.same_clock = False
        """Whether the sender reads the monotonic clock that is read here."""
        self._timer: asyncio.TimerHandle | None = None
        self._silent_since: float | None = None
        self._loss: Exception | None = None
        self._losses = 0
        self._landed: asyncio.Event | None = None
        self.asking = 0
        """Gets that wait for an attempt to connect before they begin."""
        self.kept = 0
        """Guests who want this line whatever becomes of it."""
        self.guest_line: OpenLine | None = None
        self.on_idle: Callable[[Link], None] | None = None
        """Hears that there is no line, and nobody who needs one."""
        self.dialer = wiring.channels.dial(address, wiring.hello, self)
        self.dialer.on_refused = self._refused

    # --- for people -------------------------------------------------------------------------------

    @property
    def peer(self) -> str:
        return self._channel.name if self._channel is not None else self.address

    def describe(self) -> str:
        """What is known of the sender, for errors."""
        if self._channel is None:
            lost = f", lost {self._losses} time(s)" if self._losses else ""
            return f"no line to a sender at {self.address}{lost}{self.trouble()}"
        text = f"the sender is {self._channel.name}"
        if self._silent_since is not None:
            seconds = self.wiring.loop.time() - self._silent_since
            text += f", silent for {seconds:.1f} s (stopped, or in a long synchronous step?)"
        return text

    def phase(self, op: int) -> Phase | None:
        """What an operation waits for."""
        return self.core.phase(op)

    def trouble(self) -> str:
        error = self.dialer.refused() or self._loss
        return f" ({error})" if error is not None else ""

    def _refused(self, error: Exception) -> None:
        """Somebody is there who will never answer: of another wire version, say."""
        for operation in self.core.operations():
            if operation.phase is Phase.PARKED:
                refusal = ProtocolError(str(error), peer=self.address)
                self._completions.resolve(operation.id, refusal)
        self.core.streams.refused(str(error))
        if self.kept:
            refuse_for_guests(self.wiring, self.address, error)
        self.pump()

    # --- channel handler --------------------------------------------------------------------------

    def opened(self, channel: Channel) -> None:
        self._channel = channel
        self._silent_since = None
        wiring = self.wiring
        self.incarnation = channel.peer.incarnation
        self.same_clock = channel.peer.clock == wiring.hello.clock != 0
        wiring.engine.meet(channel.peer.incarnation, channel.peer.engine)
        if wiring.engine.verb is Verb.WRITE:
            word, fds = wiring.regions()
            if word.added:
                channel.send(word, fds)
        self.core.connected()
        reads = PeerMoves(wiring.engine.read, self.incarnation, self.known, self.rest)
        self.guest_line = OpenLine(channel, reads.plan, self.known, self.address)
        open_for_guests(wiring, self.guest_line)
        self.pump()

    def announce(self, word: Regions, fds: list[int]) -> None:
        """Regions of this side have come or gone."""
        if self._channel is not None:
            self._channel.send(word, fds)

    def received(self, channel: Channel, message: Message, fds: list[int]) -> None:
        if channel is not self._channel:
            return
        self._silent_since = None
        if type(message) is Regions:
            learn_regions(self.wiring.engine, channel, message, fds, self.known)
            return
        if type(message) is Aside:
            assert self.guest_line is not None
            hand_over(self.wiring, self.guest_line, message)
            return
        if type(message) is Bye:
            self._loss = ConnectionError(f"the sender said: {message.reason}")
        self.core.receive(message)
        self.pump()

    def silent(self, channel: Channel, seconds: float) -> None:
        if self._silent_since is None:
            self._silent_since = self.wiring.loop.time() - seconds
        _log.warning("sender is silent", peer=channel.name, seconds=round(seconds, 1))
        if seconds >= self.wiring.options.peer_timeout:
            self.ended(channel, ProtocolError("silent for too long", peer=channel.name))

    def ended(self, channel: Channel, error: Exception | None) -> None:
        if channel is not self._channel:
            if error is not None:
                self._loss = error
            return
        self._losses += 1
        self._loss = error
        proven = channel.end_proves and not isinstance(error, ProtocolError)
        fd = self._part(channel, watch=self._written_to and not proven and not self._revokes)
        self.core.lost()
        self._end_for_guests(error, proven=proven)
        if proven:
            self.core.writes_ended()
        elif self._revokes:
            self._revoke_cancelled()
        elif fd >= 0:
            self._watch = EndWatch(self.wiring.loop, fd, self._writes_ended)
        self.pump()

    def _writes_ended(self) -> None:
        self.core.writes_ended()
        self.pump()

    @property
    def _written_to(self) -> bool:
        return self.wiring.engine.verb is Verb.WRITE

    @property
    def _revokes(self) -> bool:
        return self.wiring.engine.revoke is not Revoke.NOTHING

    def _revoke_cancelled(self) -> None:
        """A sender that was lost writes here no more, for it can not."""
        for op in self.core.cancelled_writes():
            self._revoke(op)
        self.core.writes_ended()

    def _revoke(self, op: int) -> bool:
        lease = self._landing.get(op)
        if lease is not None:
            if not self.wiring.pool.revoke(lease):
                return False
            del self._landing[op]
            lease.drop()
        return True

    def _part(self, channel: Channel, *, watch: bool = False) -> int:
        """End the line; while views of the sender's memory live, its descriptor stays open."""
        self._channel = None
        fd = -1
        if watch:
            fd = channel.detach()
        elif self.core.held or self._reading:
            self.lifeline.fd = channel.detach()
        channel.close()
        self.lifeline = Lifeline()
        for remote in self.known.values():
            self.wiring.engine.detach(remote)
        self.known = {}
        self.wiring.engine.part(self.incarnation)
        return fd

    def _end_for_guests(self, error: Exception | None, *, proven: bool) -> None:
        line, self.guest_line = self.guest_line, None
        if line is not None:
            end_for_guests(self.wiring, line, error, proven=proven)

    # --- operations -------------------------------------------------------------------------------

    def pump(self) -> None:
        """Pass on what the core has learnt, and send what somebody waits for."""
        core = self.core
        if core.events:
            for op, word in core.events:
                self._completions.resolve(op, word)
            core.events.clear()
        streams = core.streams
        if streams.stirred:
            stirred, streams.stirred = streams.stirred, []
            for inlet in stirred:
                inlet.stir()
        if core.landed_late:
            for op in core.landed_late:
                self._free_landing(op)
            core.landed_late.clear()
        if core.torn:
            for op in core.torn:
                if not self._revoke(op):
                    self._free_landing(op)  # with an engine whose failures are certain ends
            core.torn.clear()
        if self._landed is not None and not core.cancelled_writes():
            self._landed.set()
        if core.urgent:
            self._send()
        elif self._timer is None and core.pending:
            self._timer = self.wiring.loop.call_later(ACK_SECONDS, self._time_to_send)
        if self._channel is None:
            self.rest()

    def rest(self) -> None:
        """Tell its keeper if there is no line, and nobody who needs one."""
        busy = self._channel or len(self.core) or len(self.core.streams) or self.asking or self.kept
        if self.on_idle is not None and not (busy or self._landing or self.reads or self._watch):
            self.on_idle(self)

    def poll(self) -> None:
        """Hear what the sender has said already: it may be the payload."""
        if self._channel is not None:
            self._channel.poll()

    def _time_to_send(self) -> None:
        self._timer = None
        self._send()

    def _send(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        words = self.core.words()
        if self._channel is not None and words:
            if len(words) == 1:
                self._channel.send(words[0])
            else:
                self._channel.send_many(words)

    def give_up(self, op: int) -> None:
        """The caller does not want it any more, or could not take it."""
        if op in self._reading:  # the read goes on, and its end comes back here
            self._reading[op] = False
            self._quarantine(op)
        elif self.core.cancel(op):
            self._quarantine(op)
        else:
            self._free_landing(op)
        self.pump()

    def expect(self, op: int) -> asyncio.Future[Any]:
        """The next answer to this operation."""
        return self._completions.create(op)

    def land(self, op: int, lease: Lease) -> None:
        """This slot belongs to the operation's engine until it has ended."""
        lease.pin()
        self._landing[op] = lease

    def landed(self, op: int) -> None:
        """The engine's operation has ended well: the slot is the caller's."""
        self._landing.pop(op).unpin()

    def read(self, op: int, moves: list[Move]) -> asyncio.Future[Any]:
        """Begin to read from the sender's slots. The read itself is never cancelled."""
        answer = self.expect(op)
        self._reading[op] = True
        spawn(self._read(op, moves, self.lifeline), self.reads)
        return answer

    def confirm(self, op: int) -> asyncio.Future[Any] | None:
        """Ask whether what was read was the sender's to give all the time.

        ``None`` over a line whose end the sender takes for the end of all reads, and no other: there he
        frees nothing before it.
        """
        if self._channel is not None and self._channel.end_proves:
            return None
        answer = self.expect(op)
        if not self.core.confirm(op):  # lost meanwhile
            self._completions.resolve(op, None)
        self.pump()
        return answer

    async def _read(self, op: int, moves: list[Move], lifeline: Lifeline) -> None:
        outcome: object = _LANDED
        try:
            await self.wiring.engine.read(self.incarnation, moves, dict(self.known))
        except OmniAsyncError as error:
            outcome = error
        except Exception as error:  # noqa: BLE001 - whatever it is, the get's caller is told of it
            outcome = EngineFault(f"the engine broke its contract: {error!r}")
        del lifeline  # until here the sender must not believe that nobody reads
        if outcome is not _LANDED and self.guest_line is not None:
            heard_out = self.guest_line.hearing.out()
            if heard_out is not None:
                await heard_out
        wanted = self._reading.pop(op)
        if wanted:
            self._completions.resolve(op, outcome)
        else:
            self.give_up(op)

    def _quarantine(self, op: int) -> None:
        lease = self._landing.get(op)
        if lease is not None:
            lease.quarantine()

    def _free_landing(self, op: int) -> None:
        lease = self._landing.pop(op, None)
        if lease is not None:
            lease.unpin()
            lease.drop()

    async def writes_ended(self) -> None:
        """Wait until no write lands here any more for an operation that was given up.

        Cancellation: safe.
        """
        if self.core.cancelled_writes():
            self._landed = asyncio.Event()
            await self._landed.wait()

    def close(self, reason: str) -> None:
        """Say good-bye; memory with living views stays, and the sender is told of it."""
        self.on_idle = None
        channel = self._channel
        if channel is not None:
            self._send()  # the last Release may be said in this very turn
            channel.send(Bye(reason, self.core.held))
            channel.flush()
            self._part(channel)
            self._end_for_guests(None, proven=False)
        if self._written_to and self._revokes:
            self.core.lost()
            self._revoke_cancelled()
        if self._timer is not None:
            self._timer.cancel()
        if self._watch is not None:
            self._watch.close()
        self.dialer.close()
