"""A world around the two halves of streams: one sender, two receivers, a network.

In: steps, each one small thing that writers, readers, networks or fate may do. Out: an assertion
that names the broken promise.
Never: a clock, a socket, an event loop, chance.

Promises:

* what a reader gets is the begin of one stream, in order, each item once; at the end all of it, and how
  its writer ended it;
* a reader never has more chunks than it gave credit for; a stream never has two readers;
* a larger chunk is there for as long as its reader may fetch it, and not longer than somebody may;
* nobody waits for what will not come: when all was heard, who waits has somebody who can still end it;
* when all has come to its end, no table has an entry left.
"""

from __future__ import annotations

import random
from collections import deque

from ...model import TransferKey
from ...rendezvous.messages import Chunk, End, Message, Segment
from ...rendezvous.outlet import Outlet
from ...rendezvous.receiver import Receiver
from ...rendezvous.sender import Sender
from ...rendezvous.stream_readers import Arrived, Inlet
from .nature import KEYS, RECEIVERS, TTL, Network

Item = str
"""A chunk by the name of its stream and its number, a boundary, or an end."""
BOUNDARY = "|"
CLOSED = "closed"


class Written:
    """A stream as its writer knows it."""

    def __init__(self, name: str, outlet: Outlet) -> None:
        self.name = name
        self.outlet = outlet
        self.items: list[Item] = []
        self.chunks = 0
        self.end: str | None = None
        """``.`` for finished, else the reason."""
        self.readers: set[tuple[str, int]] = set()
        self.filing = False
        """Its next chunk is being put: it had room when that began."""

    @property
    def living(self) -> bool:
        return self.end is None and self.outlet.broken is None


class Reading:
    """A stream as its reader knows it."""

    def __init__(self, process: Process, inlet: Inlet) -> None:
        self.process = process
        self.inlet = inlet
        self.queue: deque[tuple[Item, bool]] = deque()
        """Items that have arrived, and whether they are here already."""
        self.got: list[Item] = []
        self.end: str | None = None
        """``.`` for finished, ``!`` for broken, else the reason of an abort."""
        self.left = False


class Process:
    """A receiver process, and its line."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.core = Receiver()
        self.peer = 0
        """Number of its line; 0 when there is none."""
        self.lossy = False
        """A word of this line was lost."""
        self.up: list[Message] = []
        self.down: list[Message] = []


class StreamWorld:
    """Everything there is, and the steps it can take."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.now = 0.0
        self.closing = False
        self.peers = 0
        self.sender = Sender(TTL)
        self.written: list[Written] = []
        self.readings: list[Reading] = []
        self.filed: set[str] = set()
        """Larger chunks that could be fetched."""
        self.processes = {name: Process(name) for name in RECEIVERS}
        for name in RECEIVERS:
            self.connect(name)

    # -- what writers do -------------------------------------------------------------------------

    def open_writer(self, key: str, window: int, heard: int) -> None:
        outlet = self.sender.streams.open(TransferKey("0", "1", key), window)
        busy = any(w.living and w.outlet.key.key == key for w in self.written)
        assert (outlet is None) == busy, "a second writer, or none at all"
        if outlet is not None:
            self.written.append(Written(f"s{len(self.written)}", outlet))
        self._run(heard)

    def send(self, index: int, filed: bool, heard: int) -> None:
        """The next chunk, if there is room for it; a larger one takes two steps."""
        stream = self._some_written(index)
        if stream is None or not (stream.filing or stream.outlet.room):
            return
        if filed and not stream.filing:
            stream.filing = True
            return
        item = f"{stream.name}.{stream.chunks}"
        stream.items.append(item)
        stream.chunks += 1
        if stream.filing:
            stream.filing = False
            self.filed.add(item)
            where = TransferKey("", "1", item)
            self.sender.streams.filed_chunk(stream.outlet, 1, where)
        else:
            self.sender.streams.chunk(stream.outlet, [len(item)], item.encode())
        self._run(heard)

    def segment(self, index: int, heard: int) -> None:
        stream = self._some_written(index)
        if stream is not None and not stream.filing:
            stream.items.append(BOUNDARY)
            self.sender.streams.segment(stream.outlet)
            self._run(heard)

    def end_writer(self, index: int, reason: str | None, heard: int) -> None:
        """It finishes, or gives up."""
        stream = self._some_written(index)
        if stream is not None:
            stream.end = "." if reason is None else reason
            self.sender.streams.end(stream.outlet, reason, self.now)
            self.sender.streams.end(stream.outlet, "again", self.now)
            self._run(heard)

    def _some_written(self, index: int) -> Written | None:
        found = [stream for stream in self.written if stream.living]
        return found[index % len(found)] if found else None

    # -- what readers do -------------------------------------------------------------------------

    def open_reader(self, name: str, key: str, window: int, heard: int) -> None:
        process = self.processes[name]
        inlet = process.core.streams.open(TransferKey("0", "1", key), window)
        self.readings.append(Reading(process, inlet))
        self._run(heard)

    def read(self, index: int, heard: int) -> None:
        """The next item is fetched, if it is a larger chunk; if it is here, it is taken."""
        found = [r for r in self.readings if r.queue and not r.left]
        if not found:
            return
        reading = found[index % len(found)]
        streams = reading.process.core.streams
        item, here = reading.queue[0]
        if not here:
            self._fetch(reading, 0)
        else:
            reading.queue.popleft()
            reading.got.append(item)
            if item != BOUNDARY:
                streams.took(reading.inlet)
        self._run(heard)

    def fetch_ahead(self, index: int, heard: int) -> None:
        """A larger chunk that is not the next one is here first."""
        found = [(r, n) for r in self.readings for n, (_, here) in enumerate(r.queue) if not here]
        if found:
            self._fetch(*found[index % len(found)])
            self._run(heard)

    def _fetch(self, reading: Reading, number: int) -> None:
        item, _ = reading.queue[number]
        if item in self.filed:  # else it is about to be told that it will not come
            self.filed.discard(item)
            reading.queue[number] = (item, True)
            reading.process.core.streams.fetched(reading.inlet)

    def widen(self, index: int, more: int, heard: int) -> None:
        found = [r for r in self.readings if not r.left]
        if found:
            reading = found[index % len(found)]
            reading.inlet.window += more
            reading.process.core.streams.took(reading.inlet, 0)
            self._run(heard)

    def leave(self, index: int, heard: int) -> None:
        found = [r for r in self.readings if not r.left]
        if found:
            self._leave(found[index % len(found)])
            self._run(heard)

    def _leave(self, reading: Reading) -> None:
        reading.left = True
        reading.queue.clear()
        for _ in range(2):
            reading.process.core.streams.leave(reading.inlet)

    # -- time, the network, fate -----------------------------------------------------------------

    def tidy(self, key: str, seconds: float, heard: int) -> None:
        """Time passes, or a request is cleaned up by its sender."""
        self.now += seconds
        if seconds:
            self.sender.expire(self.now)
        else:
            self.sender.cleanup(key)
        self._run(heard)

    def connect(self, name: str) -> None:
        process = self.processes[name]
        if not process.peer:
            self.peers += 1
            process.peer, process.lossy = self.peers, False
            self.sender.peer_opened(process.peer, "1")
            process.core.connected()
            self._run(0)

    def hear(self, index: int, count: int) -> None:
        for _ in range(count):
            ends = self.talking()
            if ends:
                self._arrive(*ends[index % len(ends)], 0)

    def disturb(self, index: int, which: int, how: int) -> None:
        """One word is doubled (the second may come much later), lost, or overtakes others."""
        ends = self.talking()
        if not ends:
            return
        process, up = ends[index % len(ends)]
        words = process.up if up else process.down
        number = which % len(words)
        if how == 0 and Network.DOUBLES in self.network:
            words.append(words[number])
        elif how == 1 and Network.LOSES in self.network:
            process.lossy = True
            words.pop(number)
        elif how == 2 and Network.SHUFFLES in self.network:
            self._arrive(process, up, number)

    def disrupt(self, name: str, how: str) -> None:
        """A line breaks, a receiver dies, or the sender does, and another takes its place."""
        process = self.processes[name]
        if how == "cut":
            self._cut(process)
        elif how == "kill":
            self._cut(process)
            for reading in self.readings:
                if reading.process is process:
                    reading.left = True
                    reading.queue.clear()
            self.processes[name] = Process(name)
        elif how == "close":
            self.closing = Network.LOSES not in self.network
            self.sender.streams.close(CLOSED)
            self._run(0)
            self._restart()
            self.closing = False
        else:
            self._restart()
        self._run(0)

    def _restart(self) -> None:
        for process in self.processes.values():
            self._cut(process)
        self.sender = Sender(TTL)
        self.filed.clear()
        for stream in self.written:
            if stream.living:
                stream.end = CLOSED

    def _cut(self, process: Process) -> None:
        if process.peer:
            if Network.LOSES not in self.network:
                while process.down:  # what was said before the end of the line is heard
                    self._arrive(process, False, 0)
            peer, process.peer = process.peer, 0
            process.up, process.down = [], []
            process.core.lost()
            self.sender.peer_ended(peer, proven=True)
            self._run(0)

    def talking(self) -> list[tuple[Process, bool]]:
        everybody = self.processes.values()
        return [(p, True) for p in everybody if p.up] + [(p, False) for p in everybody if p.down]

    def _arrive(self, process: Process, up: bool, which: int) -> None:
        word = (process.up if up else process.down).pop(which)
        if up:
            self.sender.receive(process.peer, word)
        else:
            process.core.receive(word)
        self._run(0)

    def _run(self, heard: int) -> None:
        """Words go on their way, readers see what has arrived, and some of it is heard."""
        sender = self.sender
        self.filed.difference_update(key.key for key in sender.streams.obsolete)
        sender.streams.obsolete.clear()
        sender.streams.stirred.clear()
        words, sender.outbox = sender.outbox, []
        lines = {p.peer: p for p in self.processes.values() if p.peer}
        for peer, word in words:
            if peer in lines:
                lines[peer].down.append(word)
        for process in self.processes.values():
            said = process.core.words()
            if process.peer:
                process.up += said
            process.core.streams.stirred.clear()
        for reading in self.readings:
            arrived = reading.inlet.arrived
            while arrived and not reading.left:
                self._take(reading, arrived.popleft())
        self.hear(0, heard)

    def _take(self, reading: Reading, item: Arrived) -> None:
        if isinstance(item, Chunk):
            here = item.inline is not None
            name = item.inline.decode() if item.inline is not None else item.key
            reading.queue.append((name, here))
        elif isinstance(item, Segment):
            reading.queue.append((BOUNDARY, True))
        elif isinstance(item, End):
            assert reading.end is None, "two ends"
            reading.end = "." if item.reason is None else item.reason
        else:
            missing = next((n for n, (_, here) in enumerate(reading.queue) if not here), None)
            if missing is not None:
                while len(reading.queue) > missing:
                    reading.queue.pop()
            if missing is not None or reading.end is None:
                if missing is None and item is None:
                    assert not self.closing, "closed, and its reader was not told why"
                reading.end = "!"

    # -- promises --------------------------------------------------------------------------------

    def check(self) -> None:
        """What holds after every step."""
        for stream in self.written:
            assert stream.outlet.told <= stream.outlet.granted, f"{stream.name} exceeds its credit"
        for reading in self.readings:
            inlet = reading.inlet
            assert inlet.chunks - inlet.taken <= inlet.window, "more chunks than credit"
            assert all(seq > inlet.items for seq in inlet.early), "items of the past are kept"
            self._check_items(reading)

    def _check_items(self, reading: Reading) -> None:
        items = reading.got + [item for item, _ in reading.queue]
        chunks = [item for item in items if item != BOUNDARY]
        if not chunks:
            return
        stream = next(s for s in self.written if s.name == chunks[0].split(".")[0])
        stream.readers.add((reading.process.name, reading.inlet.op))
        assert len(stream.readers) == 1, f"{stream.name} is read twice: {stream.readers}"
        assert items == stream.items[: len(items)], f"{items} is no begin of {stream.items}"
        if not reading.left and reading.end not in (None, "!", CLOSED):
            assert items == stream.items, f"the end came before {stream.items[len(items) :]}"
            assert reading.end == stream.end, f"{reading.end} is not {stream.end}"

    def settle(self) -> None:
        """Everything that was said arrives, what can be fetched is; then nobody waits in vain."""
        chance = random.Random(0)
        for _ in range(100_000):
            ends = self.talking()
            fetches = [
                (r, n)
                for r in self.readings
                for n, (item, here) in enumerate(r.queue)
                if not here and item in self.filed
            ]
            if ends:
                self._arrive(*chance.choice(ends), 0)
            elif fetches:
                self._fetch(*fetches[0])
                self._run(0)
            else:
                break
        else:
            raise AssertionError("the two sides never stop talking")
        self.check()
        for process in self.processes.values():
            if process.peer and not process.lossy:
                for reading in self.readings:
                    if reading.process is process and not reading.left:
                        self._check_waiting(reading)

    def _check_waiting(self, reading: Reading) -> None:
        """Whoever waits has somebody who can still end it."""
        assert all(here for _, here in reading.queue), "waits for a larger chunk that is not there"
        ref = (reading.process.peer, reading.inlet.op)
        mine = next((s for s in self.sender.streams.every() if s.ref == ref), None)
        if not reading.inlet.begun and reading.end is None:
            key = reading.inlet.key
            waits = [s for s in self.sender.streams.every() if s.key == key and s.ref is None]
            assert not waits, "waits for a stream that is there"
        elif reading.end is None and mine is None:
            raise AssertionError("waits for a stream that is gone")
        if mine is not None and not reading.queue and mine.backlog:
            raise AssertionError("both ends wait")
        if mine is not None and reading.end is None:
            assert mine.room or reading.queue or mine.ended, "the writer waits, the reader has all"

    def end(self) -> None:
        """Everything comes to its end, and nothing is left."""
        for process in self.processes.values():
            if process.lossy:  # a word that was lost is made good only by a new line
                self._cut(process)
        for name in RECEIVERS:
            self.connect(name)
        self.settle()
        for stream in self.written:
            if stream.living:
                stream.end = "."
                self.sender.streams.end(stream.outlet, None, self.now)
        self._run(0)
        self.settle()
        for reading in self.readings:
            while reading.queue and not reading.left:
                index = [r for r in self.readings if r.queue and not r.left].index(reading)
                self.read(index, 0)
                self.settle()
        for reading in self.readings:
            if not reading.left and reading.inlet.begun:
                assert reading.end is not None, "a stream that was begun never ended"
            self._leave(reading)
        self._run(0)
        self.settle()
        self.sender.expire(self.now + TTL)
        self._run(0)
        streams = self.sender.streams
        assert not len(streams), "streams are left"
        assert (streams.unread, streams.waiting) == (0, 0), "readers or unread streams are left"
        assert not self.filed, f"larger chunks are left: {self.filed}"
        for process in self.processes.values():
            assert not len(process.core.streams), f"{process.name} still reads"


__all__ = ["KEYS", "StreamWorld"]
