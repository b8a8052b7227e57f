"""The nature of the world: words on their way, engines that move bytes, processes that end.

In: what the cores want sent and written. Out: the same at some later step, and books of who touches what.
Never: chooses when; a step of :class:`~omni_async.testing.world.world.World` does.
"""

from __future__ import annotations

import enum
import random

from ...model import Verb
from ...rendezvous.messages import Bye, Done, Fail, Message, Offer, PlaceWord, Release
from ...rendezvous.sender import Sender, Write
from .books import Get, Line, Process, Ref, Stage, Stored

TTL = 300.0
NBYTES = 64
KEYS = ("a", "b")
RECEIVERS = ("A", "B")
STAGES = ("1", "2")


class Network(enum.Flag):
    """What the network does besides delaying words, cutting lines and losing processes."""

    ORDERED = 0
    """Nothing: what every channel promises."""
    DOUBLES = enum.auto()
    LOSES = enum.auto()
    SHUFFLES = enum.auto()
    """Words of one line overtake each other."""


class Nature:
    """Everything there is, and what follows from a step."""

    def __init__(self, network: Network, verb: Verb, *, alone: bool) -> None:
        """``alone``: each receiver is the only one of its stage, so that offers are made ahead."""
        self.network = network
        self.verb = verb
        self.now = 0.0
        self.sender = Sender(TTL)
        self.payloads: list[Stored] = []
        stages = STAGES if alone else (STAGES[0], STAGES[0])
        self.processes = {
            name: Process(name, stage) for name, stage in zip(RECEIVERS, stages, strict=True)
        }
        self.lines: dict[int, Line] = {}
        self.ghosts: dict[int, Process] = {}
        """Broken lines whose receiver may still touch the sender's memory, by peer number."""
        self.writing: dict[Ref, tuple[Write, Stored, Process, Get]] = {}
        self.peers = 0
        for name in RECEIVERS:
            self.connect(name)

    def connect(self, name: str) -> None:
        process = self.processes[name]
        if process.line is None and not process.leaving:
            self.peers += 1
            process.line = self.lines[self.peers] = Line(self.peers, name)
            self.sender.peer_opened(self.peers, process.stage)
            process.core.connected()
            self._run_receiver(process)

    def some(self, index: int, *stages: Stage) -> tuple[Process, Get] | None:
        found = [
            (process, get)
            for process in self.processes.values()
            for get in process.gets.values()
            if get.stage in stages
        ]
        return found[index % len(found)] if found else None

    def talking(self) -> list[tuple[Line, bool]]:
        ends = [(line, True) for line in self.lines.values() if line.up]
        return ends + [(line, False) for line in self.lines.values() if line.down]

    def _take(self, process: Process, get: Get, *, holding: bool) -> None:
        """An offer is acted on: mapped or read, or a landing slot is found and pulled into."""
        assert get.stored is not None
        if get.stored.inline or self.verb is Verb.MAP:
            self._deliver(process, get, holding=holding and not get.stored.inline)
        elif self.verb is Verb.READ:
            if get.reading:  # the engine's read ends, and the get returns
                get.reading = False
                self._deliver(process, get, holding=False)
            else:
                get.reading = True
        else:
            get.stage = Stage.PULLED
            get.landing = True
            process.core.pull(get.op, [PlaceWord(0, 0, NBYTES, get.op)])
            self._run_receiver(process)

    def _direction(self, index: int) -> tuple[Line, bool]:
        ends = self.talking()
        return ends[index % len(ends)]

    def _hear(self, count: int) -> None:
        """Up to ``count`` words arrive, of any line."""
        for _ in range(count):
            ends = self.talking()
            if ends:
                self._arrive(*ends[0], 0)

    def _deliver(self, process: Process, get: Get, *, holding: bool) -> None:
        assert get.stored is not None
        delivered = process.core.consume(get.op, holding=holding)
        assert delivered or process.line is None, "a payload was lost without a loss"
        if not delivered:
            self._stop_reading(process, get)
            get.stage = Stage.ENDED
            return
        get.stored.deliveries += 1
        assert process.line is not None
        process.line.unheard[get.ref[1]] = get.stored
        if holding:
            get.stage = Stage.HELD
        else:
            get.stage = Stage.ENDED
            self._stop_reading(process, get)
            get.landing_freed = get.landing
        self._run_receiver(process)

    def _let_go(self, process: Process, get: Get) -> None:
        """The last view has died, or the engine's read has ended."""
        held = get.stage is Stage.HELD
        get.stage = Stage.ENDED
        self._stop_reading(process, get)
        if held:
            process.core.release(get.op)
            self._run_receiver(process)

    def _cancel(self, process: Process, get: Get) -> None:
        get.stage = Stage.ENDED
        self._stop_reading(process, get)
        kept = process.core.cancel(get.op)
        if not kept:
            get.landing_freed = get.landing
        self._run_receiver(process)

    def _stop_reading(self, process: Process, get: Get) -> None:
        get.reading = False
        if get.stored is not None:
            get.stored.readers.discard((process.name, get.op))
        self._prove()
        self._leave_at_last(process)

    def _end_write(self, ref: Ref, error: str | None) -> None:
        _, stored, _, _ = self.writing.pop(ref)
        stored.writes.discard(ref)
        self.sender.written(ref, error)
        self._run_sender()

    def _run_sender(self) -> None:
        core = self.sender
        while core.outbox or core.writes:
            words, core.outbox = core.outbox, []
            for peer, word in words:
                if peer in self.lines:
                    self.lines[peer].down.append(word)
            begun, core.writes = core.writes, []
            for write in begun:
                self._begin_write(write)

    def _begin_write(self, write: Write) -> None:
        line = self.lines[write.ref[0]]
        process = self.processes[line.name]
        get = next(get for get in process.gets.values() if get.ref == write.ref)
        stored = self.payloads[write.payload.places[0].region]
        assert not stored.slot.freed, f"{write.ref} begins to write from freed memory"
        assert not get.landing_freed, f"{write.ref} begins to write into freed memory"
        assert write.ref not in self.writing, f"{write.ref} is written twice at once"
        self.writing[write.ref] = (write, stored, process, get)
        stored.writes.add(write.ref)

    def _run_receiver(self, process: Process) -> None:
        core = process.core
        words = core.words()
        if process.line is not None and not process.leaving:
            process.line.up += words
        events, core.events = core.events, []
        for op, word in events:
            self._event(process, process.gets[op], word)
        late, core.landed_late = core.landed_late, []
        for op in late:
            process.gets[op].landing_freed = True
        torn, core.torn = core.torn, []
        for op in torn:  # taken away: what comes late lands nowhere
            process.gets[op].landing_freed = True

    def _event(self, process: Process, get: Get, word: Offer | Done | Fail | None) -> None:
        assert get.stage is not Stage.ENDED, "word for an operation that has ended"
        if isinstance(word, Offer):
            number = int(word.inline) if word.inline is not None else word.places[0].region
            get.stored = self.payloads[number]
            assert get.stored.key == get.key, "another key's payload"
            get.stage = Stage.OFFERED
            assert process.line is not None
            get.ref = (process.line.peer, word.op)
            if word.inline is None and self.verb is not Verb.WRITE:
                get.stored.readers.add((process.name, get.op))
        elif isinstance(word, Done):
            get.stage = Stage.LANDED
        else:
            if get.reading:
                get.stage = Stage.READING_ON
            else:
                get.stage = Stage.ENDED
                self._stop_reading(process, get)
            if process.core.phase(get.op) is None:
                get.landing_freed = get.landing

    def _arrive(self, line: Line, up: bool, which: int) -> None:
        word = (line.up if up else line.down).pop(which)
        self._hear_of(line, up, word, lost=False)
        if up:
            self.sender.receive(line.peer, word)
            self._run_sender()
            return
        process = self.processes[line.name]
        if process.line is line and not process.leaving:
            process.core.receive(word)
            self._run_receiver(process)

    def _hear_of(self, line: Line, up: bool, word: Message, *, lost: bool) -> None:
        """The sender learns of a delivery with this word, or never will."""
        told: list[int] = []
        if isinstance(word, Bye):
            told = word.held or []
        elif up and (isinstance(word, Done) or (isinstance(word, Release) and word.consumed)):
            told = [word.op]
        for op in told:
            stored = line.unheard.pop(op, None)
            if stored is not None and lost:
                stored.unheard += 1

    def _close(self, line: Line) -> None:
        del self.lines[line.peer]
        for stored in line.unheard.values():
            stored.unheard += 1

    def _prove(self) -> None:
        """Tell the sender of broken lines whose receiver has stopped to touch its memory."""
        for peer, process in list(self.ghosts.items()):
            if not any(
                (process.name, op) in s.readers for s in self.payloads for op in process.gets
            ):
                del self.ghosts[peer]
                self.sender.peer_proven(peer)
                self._run_sender()

    def _leave_at_last(self, process: Process) -> None:
        """The line of one that has said Bye ends with the last view."""
        line = process.line
        held = any(get.stage is Stage.HELD for get in process.gets.values())
        if process.leaving and line is not None and not held:
            self._end_process(process)

    def _cut(self, process: Process) -> None:
        """The line breaks under two living processes: what was under way is lost."""
        line = process.line
        if line is None or process.leaving:
            return
        self._close(line)
        process.line = None
        self.ghosts[line.peer] = process
        self.sender.peer_ended(line.peer, proven=False)
        process.core.lost()
        self._run_sender()
        self._run_receiver(process)
        self._prove()

    def _leave(self, process: Process) -> None:
        """A receiver closes orderly: gives up what waits, keeps what its caller still reads."""
        if process.leaving or process.line is None:
            return
        for get in list(process.gets.values()):
            if get.reading:
                return
            if get.stage not in (Stage.HELD, Stage.ENDED):
                self._cancel(process, get)
        line = process.line
        line.up.append(Bye("closing", process.core.held))
        process.leaving = True
        self._leave_at_last(process)

    def _restart_sender(self) -> None:
        """The sender dies and a new one takes its place; mapped memory outlives it."""
        for line in list(self.lines.values()):
            process = self.processes[line.name]
            while line.down and Network.LOSES not in self.network:
                self._arrive(line, False, 0)
            self._close(line)
            if process.line is line:
                process.line = None
        self.sender = Sender(TTL)
        self.ghosts.clear()
        self.writing.clear()
        for stored in self.payloads:
            stored.slot.freed = stored.slot.dropped = True  # its memory is no business of the new
            stored.slot.pins = 1 << 30
        for process in self.processes.values():
            if process.leaving:
                self._renew(process)
            else:
                process.core.lost()
                self._run_receiver(process)
                process.core.writes_ended()
                self._run_receiver(process)

    def _end_process(self, process: Process) -> None:
        """The sender hears what the process had said, then the end of its line."""
        line = process.line
        for get in process.gets.values():
            get.reading = False
            if get.stored is not None:
                get.stored.readers.discard((process.name, get.op))
        if line is not None:
            process.line = None
            while line.up:
                self._arrive(line, True, 0)
            self._close(line)
            self.sender.peer_ended(line.peer, proven=True)
            self._run_sender()
        self._renew(process)

    def _renew(self, process: Process) -> None:
        """The process ends; engines that write into its memory write into nothing."""
        for ref, (_, stored, owner, _) in list(self.writing.items()):
            if owner is process:
                self.writing[ref] = (
                    self.writing[ref][0],
                    stored,
                    Process("gone", ""),
                    Get(0, stored.key, True),
                )
        self.processes[process.name] = Process(process.name, process.stage)
        for peer, ghost in list(self.ghosts.items()):
            if ghost is process:
                del self.ghosts[peer]
                self.sender.peer_proven(peer)
                self._run_sender()

    def _settle(self) -> None:
        chance = random.Random(0)
        for _ in range(100_000):
            ends = self.talking()
            if ends:
                self._arrive(*chance.choice(ends), 0)
            elif self.writing:
                self._end_write(min(self.writing), None)
            else:
                return
        raise AssertionError("the two sides never stop talking")
