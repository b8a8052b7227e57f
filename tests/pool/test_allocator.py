"""The allocator against a plain map of bytes."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from omni_async.pool.allocator import Allocator, AllocatorError

UNIT = 64
UNITS = 96


class ByteMap(RuleBasedStateMachine):
    """One list entry for each unit of 64 bytes: 0 is free, else the number of the block."""

    def __init__(self) -> None:
        super().__init__()
        self.allocator = Allocator(UNITS * UNIT, UNIT)
        self.map = [0] * UNITS
        self.blocks: dict[int, tuple[int, int]] = {}
        self.number = 0

    def longest_run(self) -> int:
        longest = run = 0
        for owner in self.map:
            run = 0 if owner else run + 1
            longest = max(longest, run)
        return longest

    @rule(units=st.integers(1, UNITS))
    def allocate(self, units: int) -> None:
        offset = self.allocator.allocate(units * UNIT)
        if offset is None:
            assert self.longest_run() < units  # it may only give up when nothing fits
            return
        assert offset % UNIT == 0
        start = offset // UNIT
        assert not any(self.map[start : start + units])
        assert start + units <= UNITS
        self.number += 1
        self.map[start : start + units] = [self.number] * units
        self.blocks[self.number] = (start, units)

    @rule(units=st.integers(1, 4))
    def allocate_little(self, units: int) -> None:
        self.allocate(units)

    @precondition(lambda self: self.blocks)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.blocks)))
        start, units = self.blocks.pop(number)
        self.allocator.free(start * UNIT)
        self.map[start : start + units] = [0] * units

    @precondition(lambda self: self.blocks)
    @rule()
    def free_newest(self) -> None:
        start, units = self.blocks.pop(max(self.blocks))
        self.allocator.free(start * UNIT)
        self.map[start : start + units] = [0] * units

    @rule(offset=st.integers(-2 * UNIT, (UNITS + 2) * UNIT))
    def free_nonsense(self, offset: int) -> None:
        if offset in {start * UNIT for start, _ in self.blocks.values()}:
            return
        with pytest.raises(AllocatorError):
            self.allocator.free(offset)

    @rule()
    def free_everything(self) -> None:
        for start, _ in self.blocks.values():
            self.allocator.free(start * UNIT)
        self.blocks.clear()
        self.map = [0] * UNITS
        assert list(self.allocator.free_ranges()) == [(0, UNITS * UNIT)]
        assert self.allocator.largest == UNITS * UNIT

    @invariant()
    def books_agree(self) -> None:
        self.allocator.check()
        assert self.allocator.live == len(self.blocks)
        assert self.allocator.largest == self.longest_run() * UNIT
        free = [0] * UNITS
        for start, size in self.allocator.free_ranges():
            for unit in range(start // UNIT, (start + size) // UNIT):
                free[unit] += 1
        assert free == [0 if owner else 1 for owner in self.map]


TestByteMap = ByteMap.TestCase
TestByteMap.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_byte_map_for_long() -> None:
    run_state_machine_as_test(
        ByteMap, settings=settings(max_examples=2000, stateful_step_count=150, deadline=None)
    )


def test_a_large_block_comes_back_to_the_same_offset() -> None:
    allocator = Allocator(256 << 20)
    size = 186_000_000 // 64 * 64 + 64
    small = allocator.allocate(4096)
    assert small == 0
    offsets = set()
    for _ in range(100):
        offset = allocator.allocate(size)
        assert offset is not None
        offsets.add(offset)
        allocator.free(offset)
    assert offsets == {4096}


def test_what_was_freed_last_is_handed_out_first() -> None:
    allocator = Allocator(1 << 20)
    offsets = [allocator.allocate(4096) for _ in range(20)]
    for i in (2, 14, 8):  # no neighbours, so they are not joined
        offset = offsets[i]
        assert offset is not None
        allocator.free(offset)
    assert [allocator.allocate(4096) for _ in range(3)] == [offsets[8], offsets[14], offsets[2]]


def test_a_hole_is_used_before_untouched_space() -> None:
    allocator = Allocator(1 << 20)
    first, second = allocator.allocate(8192), allocator.allocate(64)
    assert first is not None
    allocator.free(first)
    assert allocator.allocate(64) == first
    assert second == 8192


def test_wrong_frees_are_named() -> None:
    allocator = Allocator(1 << 20)
    offset = allocator.allocate(4096)
    assert offset is not None
    with pytest.raises(AllocatorError, match=r"inside the block 0\.\.4,096"):
        allocator.free(offset + 64)
    for foreign in (-64, 1 << 20, 13):
        with pytest.raises(AllocatorError, match="foreign offset"):
            allocator.free(foreign)
    allocator.free(offset)
    with pytest.raises(AllocatorError, match="double free of offset 0"):
        allocator.free(offset)


@pytest.mark.parametrize("size", [0, -64, 63, 65])
def test_sizes_are_multiples_of_the_alignment(size: int) -> None:
    with pytest.raises(ValueError, match="multiple"):
        Allocator(1 << 20).allocate(size)


@pytest.mark.parametrize(("nbytes", "alignment"), [(0, 64), (100, 64), (64, 0), (-64, 64)])
def test_a_segment_is_a_multiple_of_the_alignment(nbytes: int, alignment: int) -> None:
    with pytest.raises(ValueError, match="multiple"):
        Allocator(nbytes, alignment)


def _busy() -> Allocator:
    allocator = Allocator(10 * 64)
    for _ in range(8):
        allocator.allocate(64)
    for index in (1, 2, 5):
        allocator.free(index * 64)
    allocator.check()
    return allocator


def test_check_finds_each_kind_of_damage() -> None:
    allocator = _busy()
    allocator._live[0] = 128
    with pytest.raises(
        AllocatorError, match=r"overlap: free range .* begins inside block 0\.\.128"
    ):
        allocator.check()

    allocator = _busy()
    del allocator._live[0]
    with pytest.raises(AllocatorError, match="lost bytes: nothing lies between"):
        allocator.check()

    allocator = _busy()
    allocator._tail += 64
    with pytest.raises(AllocatorError, match="lost bytes"):
        allocator.check()

    allocator = _busy()
    allocator.nbytes = allocator._tail = 8 * 64
    allocator.nbytes += 64
    allocator._tail = allocator.nbytes
    with pytest.raises(AllocatorError, match="lost bytes: nothing lies behind"):
        allocator.check()

    allocator = _busy()
    del allocator._live[3 * 64]
    allocator._file(3 * 64, 64)
    with pytest.raises(AllocatorError, match="were not joined"):
        allocator.check()

    allocator = _busy()
    allocator._starts[5 * 64] = 128
    with pytest.raises(AllocatorError, match="wrong size"):
        allocator.check()

    allocator = _busy()
    allocator._ends[6 * 64] = 64
    with pytest.raises(AllocatorError, match="wrong end"):
        allocator.check()


def _cost(live: int, rounds: int = 4000) -> float:
    """Seconds of one free and one allocate with so many live blocks of random sizes."""
    rng = random.Random(live)
    allocator = Allocator(1 << 30)

    def size() -> int:
        return rng.randrange(1, 120) * 64

    offsets = [allocator.allocate(size()) for _ in range(live)]
    best = float("inf")
    for _ in range(7):
        plan = [(rng.randrange(live), size()) for _ in range(rounds)]
        start = time.perf_counter()
        for index, nbytes in plan:
            offset = offsets[index]
            assert offset is not None
            allocator.free(offset)
            offsets[index] = allocator.allocate(nbytes)
        best = min(best, time.perf_counter() - start)
    allocator.check()
    return best / rounds


@pytest.mark.soak  # a clock decides, so it wants a machine of its own
def test_the_cost_does_not_depend_on_the_number_of_blocks() -> None:
    few, many = _cost(10), _cost(100_000)
    assert many < 5 * few  # measured: 1.05; a list walk would be a thousand


def test_little_is_lost_to_fragmentation() -> None:
    rng = random.Random(7)
    allocator = Allocator(64 << 20)
    live: list[tuple[int, int]] = []
    used = refused = 0
    for _ in range(10_000):
        size = rng.choice((64, 4096, 65536, 1 << 20)) * rng.randrange(1, 4)
        while used + size > 48 << 20:  # three quarters full, random lifetimes
            offset, freed = live.pop(rng.randrange(len(live)))
            allocator.free(offset)
            used -= freed
        got = allocator.allocate(size)
        if got is None:
            refused += 1
        else:
            live.append((got, size))
            used += size
    allocator.check()
    assert refused < 50  # of 10,000; measured: 5 to 10, first fit alike
