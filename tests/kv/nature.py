"""The nature of the world of KV transfers: lines that carry words, engines that move values, what holds always.

In: what the cores want said, written and read. Out: the same at some later step; an assertion where a promise
is broken.
Never: chooses when; a step of :class:`~tests.kv.world.CacheWorld` does.
"""

from __future__ import annotations

from omni_async.kv.given import GivenShare, State
from omni_async.kv.taking import Step, TakenShare
from omni_async.kv.words import Room

from .books import (
    ADDRESSES,
    CONSUMERS,
    GARBAGE,
    LAYERS,
    Copy,
    End,
    Giver,
    Got,
    Line,
    Read,
    Sent,
    Taker,
    Write,
)


class Nature:
    """Everything there is, and what follows from a step."""

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
        number = self._next()
        giver = Giver(address, f"{address}{number}", writes=self.writes, staging=self.staging)
        self.givers[address] = giver
        self.all_givers.append(giver)

    def _make_taker(self, name: str) -> None:
        self.takers[name] = Taker(
            name, f"{name}{self._next()}", writes=self.writes, staged=self.staged
        )

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

    def _end_giver(self, giver: Giver) -> None:
        giver.alive = False
        self.under_way = [w for w in self.under_way if w.giver is not giver]

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

    def _give_back(self, taker: Taker, got: Got, block: int) -> None:
        assert taker.owners.pop(block) is got, f"block {block} is freed twice"
        taker.free.append(block)
        for layer in range(LAYERS):
            taker.memory[block, layer] = GARBAGE

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
                assert len(session.shares) <= max(session.audience.expected, 1), (
                    "more than it was for"
                )
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
