"""The whole pool against a model: leases, pins, quarantine, waiting, cancelling, trimming, closing."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from omni_async.errors import ClosedError, PoolExhausted
from omni_async.pool import Lease, MemfdMemory, Pool
from omni_async.pool.memory import PAGE

from .conftest import Registrar

LIMIT = 24 * PAGE


@dataclass
class Slot:
    lease: Lease
    mark: int
    holds: int = 1
    pins: int = 0
    given_up: bool = False


@dataclass
class Waiting:
    task: asyncio.Task[Lease]
    nbytes: int
    owner: str


def _aligned(nbytes: int) -> int:
    return max(64, -(-nbytes // 64) * 64)


class Pools(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.registrar = Registrar()
        self.slots: list[Slot] = []
        self.waiting: list[Waiting] = []
        self.number = 0
        self.newest = 0

    @initialize(segment=st.sampled_from([PAGE, 4 * PAGE, LIMIT]), discard=st.booleans())
    def open(self, segment: int, discard: bool) -> None:
        self.pool = Pool(
            limit=LIMIT,
            segment_nbytes=segment,
            source=MemfdMemory(),
            register=self.registrar.register,
            unregister=self.registrar.unregister,
            discard=discard,
        )
        self.pool.on_grow = self.registrar.grown.append
        self.pool.on_shrink = self.registrar.shrunk.append

    def turn(self) -> None:
        """Let the loop run until nothing happens any more, then take what was granted."""
        for _ in range(4):
            self.loop.call_soon(self.loop.stop)
            self.loop.run_forever()
        still = []
        for waiting in self.waiting:
            if not waiting.task.done():
                still.append(waiting)
                continue
            assert not still, "somebody passed the head of the line"
            self.take(waiting.task.result(), waiting.nbytes)
        self.waiting = still

    def take(self, lease: Lease, nbytes: int) -> None:
        assert lease.nbytes == nbytes
        assert lease.generation > self.newest  # never one that a late message could mean
        self.newest = lease.generation
        self.number = self.number % 250 + 1
        lease.view()[:] = bytes([self.number]) * nbytes
        self.slots.append(Slot(lease, self.number))

    sizes = st.one_of(
        st.integers(0, 300),
        st.integers(1, LIMIT),
        st.sampled_from([PAGE, 3 * PAGE, 7 * PAGE, LIMIT]),
    )

    @rule(nbytes=sizes)
    def lease_nowait(self, nbytes: int) -> None:
        try:
            lease = self.pool.lease_nowait(nbytes)
        except PoolExhausted:
            assert self.waiting or self.pool.live
            return
        assert not self.waiting
        self.take(lease, nbytes)

    @rule(nbytes=sizes, owner=st.sampled_from("ab"))
    def lease(self, nbytes: int, owner: str) -> None:
        task = self.loop.create_task(self.pool.lease(nbytes, owner=owner))
        self.waiting.append(Waiting(task, nbytes, owner))
        self.turn()

    @rule(nbytes=sizes)
    def lease_with_a_deadline_that_has_passed(self, nbytes: int) -> None:
        task = self.loop.create_task(self.pool.lease(nbytes, deadline=self.loop.time() - 1))
        self.turn()
        assert task.done()
        if task.exception() is None:
            assert not self.waiting
            self.take(task.result(), nbytes)
        else:
            assert isinstance(task.exception(), PoolExhausted)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, len(self.waiting) - 1))
        task = self.waiting.pop(at).task
        task.cancel()
        self.turn()
        assert task.cancelled()

    @precondition(lambda self: self.waiting and any(s.holds and not s.pins for s in self.slots))
    @rule(data=st.data())
    def cancel_in_the_moment_of_granting(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from([s for s in self.slots if s.holds and not s.pins]))
        while slot in self.slots:
            self.drop_one(slot)
        task = self.waiting.pop(0).task
        task.cancel()
        self.turn()
        assert task.cancelled()

    @rule(owner=st.sampled_from(["a", "b", None]))
    def cancel_waiters(self, owner: str | None) -> None:
        leaving = [w for w in self.waiting if owner in (None, w.owner)]
        assert self.pool.cancel_waiters(owner, ClosedError("gone")) == len(leaving)
        self.waiting = [w for w in self.waiting if w not in leaving]
        self.turn()
        for waiting in leaving:
            assert isinstance(waiting.task.exception(), ClosedError)

    def drop_one(self, slot: Slot) -> None:
        self.check_bytes(slot)
        slot.holds -= 1
        if not slot.holds and not slot.pins:
            self.slots.remove(slot)
        slot.lease.drop()

    @precondition(lambda self: any(s.holds for s in self.slots))
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        self.drop_one(data.draw(st.sampled_from([s for s in self.slots if s.holds])))
        self.turn()

    @precondition(lambda self: self.slots)
    @rule(data=st.data())
    def hold_or_pin(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(self.slots))
        if data.draw(st.booleans()):
            slot.lease.hold()
            slot.holds += 1
        else:
            slot.lease.pin()
            slot.pins += 1

    @precondition(lambda self: any(s.pins for s in self.slots))
    @rule(data=st.data())
    def unpin_or_quarantine(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from([s for s in self.slots if s.pins]))
        if data.draw(st.booleans()):
            slot.given_up = True
            slot.lease.quarantine()
        else:
            self.check_bytes(slot)
            slot.pins -= 1
            if not slot.pins:
                slot.given_up = False
                if not slot.holds:
                    self.slots.remove(slot)
            slot.lease.unpin()
            self.turn()

    @rule(keep=st.sampled_from([0, PAGE, LIMIT]), at_most=st.sampled_from([None, PAGE, 5 * PAGE]))
    def trim(self, keep: int, at_most: int | None) -> None:
        given = self.pool.trim(keep, at_most=at_most)
        assert 0 <= given <= LIMIT

    def check_bytes(self, slot: Slot) -> None:
        assert bytes(slot.lease.view()) == bytes([slot.mark]) * slot.lease.nbytes

    @invariant()
    def gauges_agree(self) -> None:
        pool = self.pool
        assert pool.used == sum(_aligned(s.lease.nbytes) for s in self.slots) <= LIMIT
        assert pool.live == len(self.slots)
        assert pool.waiting == len(self.waiting)
        assert pool.quarantined == sum(s.given_up for s in self.slots)
        assert pool.committed == sum(r.nbytes for r in pool.regions.values()) <= LIMIT
        assert set(self.registrar.grown) - set(self.registrar.shrunk) == set(pool.regions.values())

    @invariant()
    def nobody_waits_for_room_that_is_there(self) -> None:
        if self.waiting:
            size = _aligned(self.waiting[0].nbytes)
            segments = list(self.pool._segments)
            largest = max((segment.allocator.largest for segment in segments), default=0)
            busy = sum(segment.nbytes for segment in segments if segment.leases)
            assert size > LIMIT - self.pool.used or size > max(largest, LIMIT - busy)

    @invariant()
    def every_lease_is_found(self) -> None:
        for slot in self.slots:
            lease = slot.lease
            self.check_bytes(slot)
            if lease.nbytes:
                assert self.pool.find(lease.address, lease.nbytes) is lease
                assert self.pool.find(lease.address + lease.nbytes - 1, 1) is lease
            assert self.pool.find(lease.address, lease.nbytes + 1) is None
        for segment in self.pool._segments:
            segment.allocator.check()

    def teardown(self) -> None:
        if not hasattr(self, "pool"):
            self.loop.close()
            return
        pinned = [s for s in self.slots if s.pins]
        assert self.pool.close() == len(pinned)
        for _ in range(4):
            self.loop.call_soon(self.loop.stop)
            self.loop.run_forever()
        for waiting in self.waiting:
            assert isinstance(waiting.task.exception(), ClosedError)
        for slot in self.slots:
            self.check_bytes(slot)
            for _ in range(slot.pins):
                slot.lease.unpin()
            for _ in range(slot.holds):
                slot.lease.drop()
        assert (self.pool.live, self.pool.used, self.pool.quarantined) == (0, 0, 0)
        assert self.pool.committed == 0
        assert set(self.registrar.unregistered) == set(self.registrar.registered)
        self.loop.close()


TestPools = Pools.TestCase
TestPools.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_pools_for_long() -> None:
    run_state_machine_as_test(
        Pools, settings=settings(max_examples=3000, stateful_step_count=100, deadline=None)
    )
