"""A world around the two cores of KV transfers: producers, consumers, lines, engines, memory.

In: steps, each one small thing that callers, engines, networks or fate may do. Out: an assertion
that names the broken promise.
Never: a clock, a socket, an event loop; chance.

Promises:

* a share that is done has in its blocks what its producer had computed, of all layers: no byte of another
  request, none of a block that was given to others since, and nothing lands there later;
* nothing that is under way can write to blocks that are free, or read from blocks of a session that is over
  and be believed;
* states only grow, but that what was asked of a lost producer may be parked again;
* when all has come to its end, no table has an entry left, and every block is free.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from omni_async.errors import ProtocolError, TransferCancelled, TransferTimeout
from omni_async.kv.giving import GivenShare, Giving, Session, State
from omni_async.kv.taking import Step, TakenShare, Taking
from omni_async.kv.words import AnyWord, Begun, Mode, Reason, Room

LAYERS = 3
BLOCKS = 8
"""Of each process."""
SIZE = 2
"""Blocks of a request."""
ADDRESSES = ("P", "Q")
CONSUMERS = ("A", "B")
REQUESTS = ("r", "s", "t", "u")
GARBAGE = "garbage"

Memory = dict[tuple[int, int], str]
"""What lies in a layer's part of a block."""


class End:
    """The last that is heard of a line."""

    def __init__(self, proven: bool) -> None:
        self.proven = proven


@dataclass(eq=False)
class Line:
    """Words under way in both directions."""

    name: str
    giver: Giver
    taker: Taker
    up: deque[AnyWord | End] = field(default_factory=deque)
    down: deque[AnyWord | End] = field(default_factory=deque)
    broken: bool = False


@dataclass(eq=False)
class Sent:
    """A session as its caller knows it."""

    core: Session
    blocks: list[int]
    values: list[list[str]]
    """Of each layer, of each block."""
    consumers: int = 1
    over: bool = False
    seen: State = State.OPEN


@dataclass(eq=False)
class Got:
    """A share as its caller knows it."""

    core: TakenShare
    blocks: list[int]
    done: bool = False
    freed: bool = False
    torn: bool = False
    """Its memory was taken away from whoever might write."""
    seen: Step = Step.PARKED
    slots: dict[int, int] = field(default_factory=dict)
    """(staged) Landing slots that its producer was told of, and how often."""
    source: Sent | None = None


@dataclass(eq=False)
class Write:
    """One that an engine does, from blocks to blocks or to a landing slot."""

    giver: Giver
    share: GivenShare
    layer: int
    sent: Sent
    taker: Taker
    got: Got
    room: Room | None


@dataclass(eq=False)
class Read:
    taker: Taker
    got: Got
    layers: list[int]
    sent: Sent
    source: Giver


@dataclass(eq=False)
class Copy:
    taker: Taker
    got: Got
    layer: int
    slot: int


class Giver:
    """A producer's process."""

    def __init__(self, world: CacheWorld, address: str, incarnation: str, staging: bool) -> None:
        self.world = world
        self.address = address
        self.incarnation = incarnation
        self.staging = staging
        self.alive = True
        self.closed = False
        self.lines: dict[str, Line] = {}
        self.memory: Memory = {}
        self.free = list(range(BLOCKS))
        self.sent: list[Sent] = []
        self.given: dict[tuple[str, int], Session] = {}
        """What each share was planned for."""
        self.core = Giving(
            LAYERS,
            writes=world.writes,
            plan=self._plan,
            shares_of=lambda _: 1,
            describe=str,
        )

    def _plan(self, share: GivenShare) -> None:
        assert share.session is not None
        assert share.session.blocks is not None, "planned without blocks"
        assert share.session.mode is share.ask.mode, "of another mode than was asked for"
        if len(share.session.blocks) != len(share.ask.blocks):
            raise ProtocolError("the blocks do not fit")
        share.plan = share.ask.blocks
        self.given[share.peer, share.ask.ticket] = share.session
        share.staged = self.world.writes and (share.ask.staged or self.staging)


class Taker:
    """A consumer's process."""

    def __init__(self, world: CacheWorld, name: str, incarnation: str, staged: bool) -> None:
        self.name = name
        self.incarnation = incarnation
        self.staged = staged
        self.alive = True
        self.lines: dict[str, Line] = {}
        self.memory: Memory = {}
        self.free = list(range(BLOCKS))
        self.slots: dict[int, dict[int, str]] = {}
        """What lies in each landing slot that was ever told, by block."""
        self.owners: dict[int, Got] = {}
        self.got: list[Got] = []
        self.doubts: list[Got] = []
        self.core = Taking(LAYERS, written_to=world.writes, plan=_fits, describe=str)


def _fits(share: TakenShare, word: Begun) -> None:
    if len(word.blocks) != len(share.blocks):
        raise ProtocolError("the blocks do not fit")


class CacheWorld:
    """Everything there is, and the steps it can take."""

    def __init__(self, *, writes: bool, staged: bool = False, staging: bool = False) -> None:
        """
        Args:
            writes: producers write; otherwise consumers read.
            staged: consumers want landing slots.
            staging: producers do.
        """
        self.writes = writes
        self.staged = staged
        self.staging = staging
        self._count = 0
        self.givers: dict[str, Giver] = {}
        """Who is found at each address."""
        self.all_givers: list[Giver] = []
        self.takers: dict[str, Taker] = {}
        self.under_way: list[Write] = []
        self.reads: list[Read] = []
        self.copies: list[Copy] = []
        self.done = 0
        """Shares that were whole: a story in which nothing succeeds shows little."""
        for address in ADDRESSES:
            self._make_giver(address)
        for name in CONSUMERS:
            self._make_taker(name)
            for address in ADDRESSES:
                self.connect(name, address)

    def _next(self) -> int:
        self._count += 1
        return self._count

    def _make_giver(self, address: str) -> None:
        giver = Giver(self, address, f"{address}{self._next()}", self.staging)
        self.givers[address] = giver
        self.all_givers.append(giver)

    def _make_taker(self, name: str) -> None:
        self.takers[name] = Taker(self, name, f"{name}{self._next()}", self.staged)

    # -- producers' callers ------------------------------------------------------------------------

    def open(self, address: str, request: str, mode: Mode, consumers: int, assign: bool) -> None:
        giver = self.givers[address]
        if request in giver.core.sessions or len(giver.free) < SIZE or giver.closed:
            return
        core = giver.core.open(request, mode, consumers)
        number = self._next()
        blocks = [giver.free.pop(0) for _ in range(SIZE)]
        values = [
            [f"{request}{number}.{layer}.{at}" for at in range(SIZE)] for layer in range(LAYERS)
        ]
        giver.sent.append(Sent(core, blocks, values, consumers))
        if assign:
            giver.core.assign(core, blocks, -1)
        self._run()

    def assign(self, index: int) -> None:
        found = self._some_sent(index, assigned=False)
        if found is not None:
            giver, sent = found
            giver.core.assign(sent.core, sent.blocks, -1)
            self._run()

    def ready(self, index: int, layer: int) -> None:
        """A layer was computed."""
        found = self._some_sent(index, assigned=True)
        if found is not None:
            giver, sent = found
            self._compute(giver, sent, [layer])
            giver.core.ready(sent.core, [layer])
            self._run()

    def seal(self, index: int) -> None:
        found = self._some_sent(index, assigned=True)
        if found is not None:
            giver, sent = found
            self._compute(giver, sent, range(LAYERS))
            giver.core.seal(sent.core)
            self._run()

    def give_up(self, index: int, reason: Reason) -> None:
        """An abort, or a time limit."""
        living = [(g, s) for g in self.all_givers if g.alive for s in g.sent if not s.over]
        if living:
            giver, sent = living[index % len(living)]
            giver.core.fail(sent.core, reason, "given up")
            self._run()

    def abort(self, address: str, request: str) -> None:
        """Of a request that has no session."""
        core = self.givers[address].core
        if request not in core.sessions:
            core.abort(request, "it was aborted")
            self._run()

    def forget(self, address: str, request: str) -> None:
        self.givers[address].core.forget(request)

    def _compute(self, giver: Giver, sent: Sent, layers: range | list[int]) -> None:
        if sent.over:
            return
        for layer in layers:
            for at, block in enumerate(sent.blocks):
                giver.memory[block, layer] = sent.values[layer][at]

    def _some_sent(self, index: int, *, assigned: bool) -> tuple[Giver, Sent] | None:
        """Also of sessions that are over: their callers may not know it yet."""
        found = [
            (giver, sent)
            for giver in self.all_givers
            if giver.alive
            for sent in giver.sent[-4:]
            if (sent.core.blocks is not None) == assigned
        ]
        return found[index % len(found)] if found else None

    # -- consumers' callers ------------------------------------------------------------------------

    def want(self, name: str, address: str, request: str, mode: Mode, size: int = SIZE) -> None:
        taker = self.takers[name]
        if len(taker.free) < size:
            return
        blocks = [taker.free.pop(0) for _ in range(size)]
        core = taker.core.want(address, request, blocks, mode, staged=self.writes and self.staged)
        got = Got(core, blocks)
        for block in blocks:
            taker.owners[block] = got
        taker.got.append(got)
        self._run()

    def cancel(self, index: int, late: bool) -> None:
        found = [(t, g) for t in self.takers.values() for g in t.got if not g.freed]
        if found:
            taker, got = found[index % len(found)]
            error = TransferTimeout("late") if late else TransferCancelled("not wanted")
            taker.core.cancel(got.core, error)
            self._run()

    def decline(self, name: str, address: str, request: str) -> None:
        from omni_async.kv.words import Decline

        line = self.takers[name].lines.get(address)
        if line is not None and not line.broken:
            line.up.append(Decline(request, "not for me"))

    def tell_room(self, index: int) -> None:
        """(staged) A landing slot was found for one more layer."""
        found = [
            (t, g)
            for t in self.takers.values()
            for g in t.got
            if g.core.staged and g.core.step is Step.BEGUN and len(g.slots) < LAYERS
        ]
        if found:
            self._tell_room(*found[index % len(found)])
            self._run()

    def _tell_room(self, taker: Taker, got: Got) -> None:
        slot = len(got.slots) + 1
        number = self._next()
        got.slots[slot] = number
        taker.slots[number] = {}
        line = taker.lines.get(got.core.address)
        if line is not None and not line.broken:
            line.up.append(Room(got.core.ticket, slot, 0, number, 1))

    def take_away(self, index: int) -> None:
        """Memory is taken away from a producer that was lost."""
        found = [(t, g) for t in self.takers.values() for g in t.doubts]
        if found:
            taker, got = found[index % len(found)]
            taker.doubts.remove(got)
            got.torn = True
            taker.core.free(got.core)
            self._run()

    # -- engines -----------------------------------------------------------------------------------

    def end_write(self, index: int, problem: bool) -> None:
        if self.under_way:
            write = self.under_way[index % len(self.under_way)]
            if not problem or index % 2:
                self._land(write)
            self.under_way.remove(write)
            write.giver.core.written(write.share, write.layer, "it failed" if problem else None)
            self._run()

    def land(self, index: int) -> None:
        """Some bytes of a write move, and it goes on."""
        if self.under_way:
            self._land(self.under_way[index % len(self.under_way)])
            self.check()

    def _land(self, write: Write) -> None:
        taker, got = write.taker, write.got
        values = [
            write.giver.memory.get((block, write.layer), GARBAGE) for block in write.sent.blocks
        ]
        if not taker.alive or got.torn:
            return
        if write.room is not None:
            taker.slots[write.room.offset] = dict(enumerate(values))
            return
        for block, value in zip(got.blocks, values, strict=True):
            assert taker.owners.get(block) is got, f"a write lands in block {block}, which is free"
            taker.memory[block, write.layer] = value

    def end_read(self, index: int, problem: bool) -> None:
        if self.reads:
            read = self.reads.pop(index % len(self.reads))
            if not read.taker.alive:
                return
            for layer in read.layers:
                for at, block in enumerate(read.got.blocks):
                    assert read.taker.owners.get(block) is read.got, "a read lands in a free block"
                    source = read.sent.blocks[at]
                    value = read.source.memory.get((source, layer), GARBAGE)
                    read.taker.memory[block, layer] = value
            read.taker.core.read(read.got.core, read.layers, "it failed" if problem else None)
            self._run()

    def end_copy(self, index: int, problem: bool) -> None:
        if self.copies:
            copy = self.copies.pop(index % len(self.copies))
            if not copy.taker.alive:
                return
            values = copy.taker.slots[copy.got.slots[copy.slot]]
            for at, block in enumerate(copy.got.blocks):
                assert copy.taker.owners.get(block) is copy.got, "a copy lands in a free block"
                copy.taker.memory[block, copy.layer] = values.get(at, GARBAGE)
            copy.taker.core.copied(copy.got.core, [copy.layer], "it failed" if problem else None)
            self._run()

    # -- lines, fate -------------------------------------------------------------------------------

    def connect(self, name: str, address: str) -> None:
        taker, giver = self.takers[name], self.givers[address]
        if address in taker.lines:
            return  # it may be broken, and that was not noticed yet
        known = giver.lines.get(taker.incarnation)
        if known is not None:
            self._lost_above(known)
        line = Line(f"{name}-{address}", giver, taker)
        taker.lines[address] = giver.lines[taker.incarnation] = line
        taker.core.met(address, giver.incarnation)
        self._run()

    def hear(self, index: int, count: int) -> None:
        for _ in range(count):
            ends = self.talking()
            if ends:
                self._arrive(*ends[index % len(ends)])

    def cut(self, name: str, address: str, up: int, down: int, proven: bool = False) -> None:
        """A line breaks; of what was under way, ``up`` and ``down`` words are still heard."""
        line = self.takers[name].lines.get(address)
        if line is not None:
            if proven and not line.broken:  # the producer closes it: it knows first
                self._lost_above(line)
                proven = not any(
                    w.giver is line.giver and w.taker is line.taker for w in self.under_way
                )
            self._cut(line, up, down, proven=proven)
            self._run()

    def _cut(self, line: Line, up: int, down: int, *, proven: bool) -> None:
        if line.broken:
            return
        line.broken = True
        while len(line.up) > up:
            line.up.pop()
        while len(line.down) > down:
            line.down.pop()
        line.up.append(End(proven=True))
        line.down.append(End(proven))

    def kill_consumer(self, name: str, up: int) -> None:
        """With its memory; another one takes its place."""
        taker = self.takers[name]
        taker.alive = False
        for line in list(taker.lines.values()):
            self._cut(line, up, 0, proven=False)
        taker.lines.clear()
        self._make_taker(name)
        self._run()

    def kill_producer(self, address: str, down: int) -> None:
        """With what it wrote: that is proven. Another one takes its place."""
        giver = self.givers[address]
        self._end_giver(giver)
        for line in list(giver.lines.values()):
            self._cut(line, 0, down, proven=True)
        self._make_giver(address)
        self._run()

    def replace_producer(self, address: str, up: int, down: int) -> None:
        """It is cut off, and goes on writing; another one takes its place."""
        giver = self.givers[address]
        for line in list(giver.lines.values()):
            self._cut(line, up, down, proven=False)
        self._make_giver(address)
        self._run()

    def die_at_last(self, index: int) -> None:
        """One that was cut off ends, unseen."""
        ghosts = [g for g in self.all_givers if g.alive and self.givers[g.address] is not g]
        if ghosts:
            self._end_giver(ghosts[index % len(ghosts)])

    def close_producer(self, address: str) -> None:
        giver = self.givers[address]
        giver.core.close("it was closed")
        giver.closed = True
        self._run()

    def _end_giver(self, giver: Giver) -> None:
        giver.alive = False
        self.under_way = [w for w in self.under_way if w.giver is not giver]

    def talking(self) -> list[tuple[Line, bool]]:
        lines = {line for g in self.all_givers for line in g.lines.values()}
        lines |= {line for t in self.takers.values() for line in t.lines.values()}
        ordered = sorted(lines, key=lambda line: (line.giver.incarnation, line.taker.incarnation))
        ups = [(line, True) for line in ordered if line.up and line.giver.alive]
        return ups + [(line, False) for line in ordered if line.down and line.taker.alive]

    def _arrive(self, line: Line, up: bool) -> None:
        if up:
            word = line.up.popleft()
            if isinstance(word, End):
                self._lost_above(line)
            elif line.giver.lines.get(line.taker.incarnation) is line:
                line.giver.core.heard(line.taker.incarnation, word)
        else:
            word = line.down.popleft()
            taker, address = line.taker, line.giver.address
            if taker.lines.get(address) is line:
                if isinstance(word, End):
                    del taker.lines[address]
                    taker.core.lost(address, proven=word.proven)
                else:
                    taker.core.heard(address, word)
        self._run()

    def _lost_above(self, line: Line) -> None:
        giver, who = line.giver, line.taker.incarnation
        line.up.clear()
        if giver.lines.get(who) is line:
            del giver.lines[who]
            if giver.alive:
                giver.core.lost(who, line.name)
                self._run()

    # -- what the cores decide ---------------------------------------------------------------------

    def _run(self) -> None:
        again = True
        while again:
            again = False
            for giver in self.all_givers:
                again = self._run_giver(giver) or again
            for taker in self.takers.values():
                again = self._run_taker(taker) or again
        self.check()

    def _run_giver(self, giver: Giver) -> bool:
        core = giver.core
        busy = bool(core.words or core.writes or core.stirred)
        words, core.words = core.words, []
        for who, word in words:
            line = giver.lines.get(who)
            if line is not None and not line.broken and giver.alive:
                line.down.append(word)
        writes, core.writes = core.writes, []
        for share, layer, room in writes:
            self._begin_write(giver, share, layer, room)
        core.stirred.clear()
        for sent in giver.sent:
            state = sent.core.state
            assert state >= sent.seen, f"from {sent.seen.name} back to {state.name}"
            if state is State.DELIVERED and sent.seen is not state:
                self._delivered(giver, sent)
            sent.seen = state
            if sent.core.over and not sent.over:
                sent.over = True
                for block in sent.blocks:  # the caller gives them to others at once
                    for layer in range(LAYERS):
                        giver.memory[block, layer] = GARBAGE
                    giver.free.append(block)
        return busy

    def _delivered(self, giver: Giver, sent: Sent) -> None:
        """Each consumer that still lives has what it was given, in place or in its landing slots."""
        shares = sent.core.shares
        assert len(shares) == sent.consumers, f"delivered to {len(shares)} of {sent.consumers}"
        for share in shares:
            taker = next((t for t in self.takers.values() if t.incarnation == share.peer), None)
            if taker is None or share.staged:
                continue
            got = next(g for g in taker.got if g.core.ticket == share.ask.ticket)
            held = not got.torn and taker.owners.get(got.blocks[0]) is got
            for layer in range(LAYERS) if held else ():
                found = [taker.memory.get((block, layer)) for block in got.blocks]
                assert found == sent.values[layer], "delivered, and it has not arrived"

    def _begin_write(self, giver: Giver, share: GivenShare, layer: int, room: Room | None) -> None:
        assert self.writes, "a write where consumers read"
        sent = next(s for s in giver.sent if s.core is share.session)
        line = giver.lines.get(share.peer)
        assert line is not None, "a write to somebody who has gone"
        taker = line.taker
        got = next(g for g in taker.got if g.core.ticket == share.ask.ticket)
        assert (room is not None) == share.staged
        assert layer not in {w.layer for w in self.under_way if w.share is share}, "written twice"
        for at, block in enumerate(sent.blocks):
            found = giver.memory.get((block, layer), GARBAGE)
            assert found == sent.values[layer][at], "written before it was computed"
        self.under_way.append(Write(giver, share, layer, sent, taker, got, room))

    def _run_taker(self, taker: Taker) -> bool:
        core = taker.core
        busy = bool(
            core.words or core.begun or core.reads or core.arrived or core.stirred or core.doubtful
        )
        words, core.words = core.words, []
        for address, word in words:
            line = taker.lines.get(address)
            if line is not None and not line.broken:
                line.up.append(word)
        core.begun.clear()
        reads, core.reads = core.reads, []
        for share, layers in reads:
            self._begin_read(taker, share, layers)
        arrived, core.arrived = core.arrived, []
        for share, layers, slots in arrived:
            got = next(g for g in taker.got if g.core is share)
            for layer, slot in zip(layers, slots, strict=True):
                assert slot in got.slots, "it landed in a slot that was not told"
                self.copies.append(Copy(taker, got, layer, slot))
        doubtful, core.doubtful = core.doubtful, []
        for share in doubtful:
            got = next(g for g in taker.got if g.core is share)
            if got not in taker.doubts:
                taker.doubts.append(got)
        core.stirred.clear()
        for got in taker.got:
            self._see(taker, got)
        return busy

    def _begin_read(self, taker: Taker, share: TakenShare, layers: list[int]) -> None:
        assert not self.writes, "a read where producers write"
        got = next(g for g in taker.got if g.core is share)
        line = taker.lines[share.address]
        giver = line.giver
        session = giver.given[taker.incarnation, share.ticket]
        sent = next(s for s in giver.sent if s.core is session)
        self.reads.append(Read(taker, got, layers, sent, giver))

    def _see(self, taker: Taker, got: Got) -> None:
        share = got.core
        parked = got.seen is Step.ASKED and share.step is Step.PARKED
        assert share.step >= got.seen or parked, f"from {got.seen.name} back to {share.step.name}"
        got.seen = share.step
        if share.step is Step.DONE and not got.done:
            got.done = True
            self.done += 1
            self._right(taker, got)
        if share.free and not got.freed:
            got.freed = True
            for block in got.blocks:
                if got.done:
                    continue  # its caller has them for a while
                self._give_back(taker, got, block)

    def use_up(self, index: int) -> None:
        """A request whose cache arrived has ended: its blocks are given to others."""
        found = [
            (t, g)
            for t in self.takers.values()
            for g in t.got
            if g.done and g.freed and t.owners.get(g.blocks[0]) is g
        ]
        if found:
            taker, got = found[index % len(found)]
            for block in got.blocks:
                self._give_back(taker, got, block)
            self._run()

    def _give_back(self, taker: Taker, got: Got, block: int) -> None:
        assert taker.owners.pop(block) is got, f"block {block} is freed twice"
        taker.free.append(block)
        for layer in range(LAYERS):
            taker.memory[block, layer] = GARBAGE

    # -- promises ----------------------------------------------------------------------------------

    def check(self) -> None:
        """What holds at every moment."""
        for write in self.under_way:
            assert not write.sent.over, (
                "the blocks of a session that is over are still written from"
            )
            if write.taker.alive and not write.got.torn:
                free = write.got.freed
                assert not free, f"layer {write.layer} may still land, and its blocks are free"
        for giver in self.all_givers:
            for share in giver.core._shares.values():
                living = share.reason is None or share.under_way
                assert living, f"{share} has failed, nothing of it is under way, and it is kept"
            for session in giver.core.sessions.values():
                assert len(session.shares) <= max(session.expected, 1), "more than it was for"
                failed = any(share.reason is not None for share in session.shares)
                assert not failed or session.state > State.DELIVERED, "it can never be whole"
        for taker in self.takers.values():
            for got in taker.got:
                if got.done and taker.owners.get(got.blocks[0]) is got:
                    self._right(taker, got)

    def _right(self, taker: Taker, got: Got) -> None:
        """What lies in the blocks of a share that is done is one session's, whole and in order."""
        found = [
            [taker.memory.get((b, layer), GARBAGE) for b in got.blocks] for layer in range(LAYERS)
        ]
        if got.source is None:
            got.source = next(
                (
                    sent
                    for giver in self.all_givers
                    for sent in giver.sent
                    if giver.address == got.core.address
                    and sent.core.request_id == got.core.request_id
                    and sent.values == found
                ),
                None,
            )
        assert got.source is not None, f"handed out: {found}"
        assert found == got.source.values, f"overwritten: {found}"

    def settle(self, problem: bool = False) -> None:
        """All words arrive, and all operations end."""
        for _ in range(10_000):
            if self.talking():
                self._arrive(*self.talking()[0])
            elif self.under_way:
                self.end_write(0, problem)
            elif self.reads:
                self.end_read(0, problem)
            elif self.copies:
                self.end_copy(0, problem)
            else:
                rooms = [
                    (t, g)
                    for t in self.takers.values()
                    for g in t.got
                    if g.core.staged and g.core.step is Step.BEGUN and len(g.slots) < LAYERS
                ]
                if not rooms:
                    return
                for taker, got in rooms:
                    while len(got.slots) < LAYERS:
                        self._tell_room(taker, got)
        raise AssertionError("the two sides never stop talking")

    def end(self) -> None:
        """Everything comes to its end, and nothing is left."""
        self.settle()
        self._reconnect()
        for giver in self.all_givers:
            if giver.alive:
                for sent in giver.sent:
                    if sent.core.blocks is None and not sent.over:
                        giver.core.assign(sent.core, sent.blocks, -1)
                        self._run()
                    if not sent.over:
                        self._compute(giver, sent, range(LAYERS))
                        giver.core.seal(sent.core)
                        self._run()
        self.settle()
        self._nobody_waits_in_vain()
        for giver in self.all_givers:
            for sent in giver.sent:
                if giver.alive and not sent.over:
                    giver.core.fail(sent.core, Reason.TIMEOUT, "late")
                    self._run()
        for taker in self.takers.values():
            for got in taker.got:
                taker.core.cancel(got.core, TransferTimeout("late"))
        self._run()
        self.settle()
        while any(taker.doubts for taker in self.takers.values()):
            self.take_away(0)
        self.settle()
        self._all_over()

    def _reconnect(self) -> None:
        for name in CONSUMERS:
            for address in ADDRESSES:
                self.connect(name, address)
        self.settle()

    def _nobody_waits_in_vain(self) -> None:
        """With lines up, and all said: who has asked has a session that wants more, or none is there."""
        for taker in self.takers.values():
            for got in taker.got:
                same = self.givers[got.core.address].incarnation == got.core.incarnation
                assert not (same and got.core.doubtful), "its producer is there, and could tell"
                if got.core.step in (Step.ASKED, Step.BEGUN):
                    core = self.givers[got.core.address].core
                    given = core._shares.get((taker.incarnation, got.core.ticket))
                    assert given is not None, f"{got.core} is known to nobody"
                    waits = given in core._waiting.get(given.ask.request_id, [])
                    session = given.session
                    assert waits or session is not None, f"{given} waits for nothing"
                    assert not self.givers[got.core.address].closed, "of one that was closed"
                    if waits:
                        sessions = core.sessions
                        assert given.ask.request_id not in sessions, (
                            "it is there, and was not joined"
                        )
                    assert session is None or session.state < State.DELIVERED, "of a dead session"
                    assert session is None or got.core.step is Step.BEGUN, "it never began"
                    assert session is None, "sealed, all were heard, and it is not whole"

    def _all_over(self) -> None:
        for giver in self.all_givers:
            if not giver.alive:
                continue
            core = giver.core
            assert not core.sessions, f"sessions are left: {core.sessions}"
            assert not core._shares, f"shares are left: {core._shares}"
            assert not core._waiting, f"consumers wait: {core._waiting}"
            assert core._ends.keys() <= set(REQUESTS), "ends are left"
            assert all(sent.over for sent in giver.sent)
            assert sorted(giver.free) == list(range(BLOCKS)), "blocks were lost"
        for taker in self.takers.values():
            assert not taker.core.shares, f"{taker.name} has shares left: {taker.core.shares}"
            for got in taker.got:
                assert got.freed, f"{got.core} is never free"
                assert got.core.step in (Step.DONE, Step.FAILED)
                assert (got.core.error is None) == got.done
            while len(taker.free) < BLOCKS:
                self.use_up(0)
