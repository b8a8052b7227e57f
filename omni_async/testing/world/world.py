"""A world around the rendezvous cores: one sender, two receivers, a network, engines.

In: steps, each one small thing that callers, engines, networks or fate may do. Out: an assertion
that names the broken promise.
Never: a clock, a socket, an event loop; chance, but where :func:`walk` is given a seed.

The world keeps its own books of who may touch which memory at every moment, and compares them with
what the cores free. Promises:

* a payload's slot is freed exactly once, and never while a receiver may read it or an engine writes
  from it; a landing slot never while an engine may write into it;
* a payload is not delivered more often than it was put for, unless the line broke before the sender
  could learn of a delivery;
* nobody waits for a payload that is there;
* when all is quiet, no table has an entry left.
"""

from __future__ import annotations

from ...model import TransferKey
from ...rendezvous.directory import KeyClaimed
from ...rendezvous.messages import PlaceWord
from ...rendezvous.payload import Payload
from .books import GOING, TAKING, WAITING, Get, Stage, Stored
from .nature import NBYTES, Nature, Network


class World(Nature):
    """Everything there is, and the steps it can take."""

    # -- what callers do -----------------------------------------------------------------------

    def put(
        self, stage: str, key: str, consumers: int, inline: bool, owner: str, heard: int
    ) -> None:
        where = TransferKey("0", stage, key)
        stored = Stored(len(self.payloads), where, consumers, inline)
        payload = Payload(
            NBYTES,
            [8, NBYTES],
            places=[] if inline else [PlaceWord(stored.number, 0, NBYTES, 1)],
            apart=[],
            leases=[stored.slot],
            inline=str(stored.number).encode() if inline else None,
        )
        entry = self.sender.directory.get(where)
        try:
            self.sender.put(where, payload, owner, consumers, self.now)
        except KeyClaimed:
            assert entry is not None, "refused although nothing is there"
            assert entry.touched, "refused without a claim"
            return
        assert entry is None or not entry.listed, "two payloads under one key"
        self.payloads.append(stored)
        self._run_sender()
        self._hear(heard)

    def want(self, name: str, key: str, park: bool, heard: int) -> None:
        process = self.processes[name]
        if process.leaving or (not park and process.line is None):
            return
        where = TransferKey("0", process.stage, key)
        op = process.core.want(where, park=park)
        process.gets[op] = Get(op, where, park)
        self._run_receiver(process)
        self._hear(heard)

    def go_on(self, index: int, cancels: bool, heard: int) -> None:
        """One get goes one step further, or its caller gives up."""
        found = self.some(index, *(WAITING if cancels else GOING))
        if found is None:
            return
        process, get = found
        if cancels:
            if not get.reading:  # a READ under way is awaited first
                self._cancel(process, get)
        elif get.stage is Stage.OFFERED:
            self._take(process, get, holding=index % 2 == 0)
        elif get.stage is Stage.LANDED:
            self._deliver(process, get, holding=False)
        else:
            self._let_go(process, get)
        self._hear(heard)

    def tidy(self, owner: str, seconds: float) -> None:
        """Time passes, or an owner is cleaned up."""
        self.now += seconds
        if seconds:
            self.sender.expire(self.now)
        else:
            self.sender.cleanup(owner)
        self._run_sender()

    # -- what the engine and the network do -----------------------------------------------------

    def end_write(self, index: int, fails: bool, heard: int) -> None:
        if not self.writing:
            return
        ref = sorted(self.writing)[index % len(self.writing)]
        self._end_write(ref, "the engine says no" if fails else None)
        self._hear(heard)

    def hear(self, index: int, count: int) -> None:
        """Words of one direction arrive, in order."""
        if not self.talking():
            return
        line, up = self._direction(index)
        for _ in range(min(count, len(line.up if up else line.down))):
            if line.peer in self.lines:
                self._arrive(line, up, 0)

    def disturb(self, index: int, which: int, how: int) -> None:
        """One word is doubled (the second may come much later), lost, or overtakes others."""
        if not self.talking():
            return
        line, up = self._direction(index)
        words = line.up if up else line.down
        if how == 0 and Network.DOUBLES in self.network:
            words.append(words[which % len(words)])
        elif how == 1 and Network.LOSES in self.network:
            self._hear_of(line, up, words.pop(which % len(words)), lost=True)
        elif Network.SHUFFLES in self.network:
            self._arrive(line, up, which % len(words))

    def disrupt(self, name: str, how: str) -> None:
        process = self.processes[name]
        if how == "cut":
            self._cut(process)
        elif how == "kill":
            self._end_process(process)
            self._prove()
        elif how == "leave":
            self._leave(process)
        else:
            self._restart_sender()

    def settle(self) -> None:
        """Everything that was said arrives; then nobody waits for what is there."""
        self._settle()
        if Network.LOSES in self.network:
            return
        for process in self.processes.values():
            if process.line is None or process.leaving:
                continue
            for get in process.gets.values():
                asked = get.stage is Stage.ASKED and not self._being_taken(get.key)
                assert not asked or not self._there(get.key), (
                    f"{process.name} waits for {get.key.key!r}, which is there"
                )
                assert not asked or get.park, f"{process.name} asked once and has no answer"

        waiting = sum(
            get.stage is Stage.ASKED
            for process in self.processes.values()
            for get in process.gets.values()
        )
        assert self.sender.parked <= waiting, "the sender keeps gets that nobody waits for"

    def _there(self, key: TransferKey) -> bool:
        """Whether a payload could be claimed by whoever asks."""
        entry = self.sender.directory.get(key)
        return (
            entry is not None
            and entry.listed
            and entry.delivered + len(entry.claims) < entry.consumers
        )

    def _being_taken(self, key: TransferKey) -> bool:
        """Whether some get has the payload, of which the sender may not know yet."""
        return any(
            get.key == key and get.stage in TAKING
            for process in self.processes.values()
            for get in process.gets.values()
        )

    # -- promises -----------------------------------------------------------------------------

    def check(self) -> None:
        """What holds after every step."""
        for stored in self.payloads:
            known = stored.deliveries - stored.unheard
            assert known <= stored.consumers, (
                f"payload {stored.number} was put for {stored.consumers}, delivered {known} times"
            )
            user = stored.in_use()
            assert user is None or not stored.slot.freed or stored.slot.pins >= 1 << 30, (
                f"payload {stored.number} is free while {user}"
            )
        for ref, (_, _, process, get) in self.writing.items():
            assert not get.landing_freed, f"{process.name} freed the slot that {ref} writes into"

    def end(self) -> None:
        """Everything comes to its end, and nothing is left."""
        if Network.LOSES in self.network:  # a word that was lost is made good only by a new line
            for process in self.processes.values():
                if process.line is not None and not process.leaving:
                    self._cut(process)
        self._settle()
        for process in self.processes.values():
            for get in list(process.gets.values()):
                if get.stage in (Stage.HELD, Stage.READING_ON):
                    self._let_go(process, get)
                elif get.stage is not Stage.ENDED:
                    self._cancel(process, get)
        self._prove()
        self._settle()
        for process in self.processes.values():
            process.core.writes_ended()  # by now it is certain
            self._run_receiver(process)
            assert not len(process.core), f"{process.name} still has operations"
            for get in process.gets.values():
                assert get.landing_freed or not get.landing, "a landing slot was never freed"
            self._end_process(process)
        self._settle()
        self.sender.close()
        directory = self.sender.directory
        assert not self.sender.parked, "parked operations are left"
        assert not directory.claimed, "claims are left"
        assert not len(directory), "entries are left"
        for stored in self.payloads:
            assert stored.slot.freed, f"payload {stored.number} was never freed"
