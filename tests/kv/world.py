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

from omni_async.errors import TransferCancelled, TransferTimeout
from omni_async.kv.given import State
from omni_async.kv.taking import Step
from omni_async.kv.words import Decline, Mode, Reason, Room

from .books import (
    ADDRESSES,
    BLOCKS,
    CONSUMERS,
    GARBAGE,
    LAYERS,
    REQUESTS,
    SIZE,
    Giver,
    Got,
    Sent,
    Taker,
)
from .nature import Nature


class CacheWorld(Nature):
    """Everything there is, and the steps it can take."""

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

    def end_read(self, index: int, problem: bool) -> None:
        if self.reads:
            read = self.reads.pop(index % len(self.reads))
            if not read.taker.alive:
                return
            moved = not problem or index % 2
            for layer in read.layers if moved else ():
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
            moved = not problem or index % 2
            for at, block in enumerate(copy.got.blocks if moved else ()):
                assert copy.taker.owners.get(block) is copy.got, "a copy lands in a free block"
                copy.taker.memory[block, copy.layer] = values.get(at, GARBAGE)
            copy.taker.core.copied(copy.got.core, [copy.layer], "it failed" if problem else None)
            self._run()

    # -- lines, fate -------------------------------------------------------------------------------

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

    # -- the end -----------------------------------------------------------------------------------

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
            assert set(core._ends) <= set(REQUESTS), "ends are left"
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
