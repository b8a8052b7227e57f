"""Whose turn it is to be written: small before large, pieces in between, an end for each."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from omni_async.abc import RemoteRegion
from omni_async.errors import EngineFault
from omni_async.model import Move, Region
from omni_async.pool import PAGE, AnonymousMemory, Lease, Pool
from omni_async.transport.filling import Filling
from omni_async.transport.moving import ABREAST, PIECE, SMALL, TOGETHER, PeerMoves

GIB = 1 << 30


class Engine:
    """Notes each call, and ends it when it is told to."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[Move], asyncio.Future[None]]] = []

    async def write(self, peer: str, moves: Sequence[Move], regions: object) -> None:
        future = asyncio.get_running_loop().create_future()
        self.calls.append((list(moves), future))
        await future

    async def end(self, number: int, error: Exception | None = None) -> None:
        future = self.calls[number][1]
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
        await _turns()


class Desk:
    """A queue over that engine."""

    def __init__(self) -> None:
        self.engine = Engine()
        self.ends: dict[str, str | None] = {}
        self.made: list[str] = []
        self.idle = 0
        self.regions = {1: RemoteRegion(1, 4 * GIB, 0, None)}
        self.queue = PeerMoves(self.engine.write, "peer", self.regions, self._idle)

    def _idle(self) -> None:
        self.idle += 1

    def add(self, name: str, *sizes: int, filling: Filling | None = None, offset: int = 0) -> None:
        moves = [Move(1000, 1, offset, size) for size in sizes]
        self.queue.add(moves, filling, lambda problem: self.ends.__setitem__(name, problem))

    def plan(self, name: str, *sizes: int) -> None:
        """Its moves are worked out later, which is noted."""

        def make() -> list[Move]:
            self.made.append(name)
            return [Move(1000, 1, 0, size) for size in sizes]

        self.queue.plan(sum(sizes), make, lambda problem: self.ends.__setitem__(name, problem))

    @property
    def written(self) -> list[list[int]]:
        return [[move.nbytes for move in moves] for moves, _ in self.engine.calls]


async def _turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.fixture
async def desk() -> Desk:
    return Desk()


async def test_small_ones_go_together(desk: Desk) -> None:
    for number in range(4):
        desk.add(str(number), 100 + number)
    await _turns()
    assert desk.written == [[100, 101, 102, 103]]
    for number in range(4, 6):
        desk.add(str(number), 100 + number)
        await _turns()
    assert len(desk.written) == 1
    await desk.engine.end(0)
    assert desk.written[1:] == [[104, 105]]
    await desk.engine.end(1)
    assert desk.ends == dict.fromkeys("012345")
    assert not desk.queue.busy
    assert desk.idle == 1


async def test_not_too_many_together(desk: Desk) -> None:
    for number in range(TOGETHER + 2):
        desk.add(str(number), 1)
    await _turns()
    await desk.engine.end(0)
    assert [len(call) for call in desk.written] == [TOGETHER, 2]


async def test_a_large_one_goes_in_pieces_and_holds_nobody_up(desk: Desk) -> None:
    desk.add("large", 4 * PIECE + 5)
    await _turns()
    assert desk.written == [[PIECE]] * ABREAST
    desk.add("small", 10)
    await _turns()
    assert desk.written[-1] == [10]
    await desk.engine.end(2)
    assert desk.ends == {"small": None}
    for number in (0, 1, 3, 4, 5):
        await desk.engine.end(number)
    assert desk.ends == {"small": None, "large": None}
    assert sorted(size for call in desk.written for size in call) == [5, 10, *[PIECE] * 4]
    offsets = sorted(
        move.offset for moves, _ in desk.engine.calls for move in moves if move.nbytes > 10
    )
    assert offsets == [0, PIECE, 2 * PIECE, 3 * PIECE]


async def test_large_ones_take_turns(desk: Desk) -> None:
    desk.add("one", 8 * PIECE)
    desk.add("two", 2 * PIECE, offset=GIB)
    await _turns()
    number = 0
    while desk.queue.busy:
        await desk.engine.end(number)
        number += 1
        if "two" in desk.ends:
            assert number <= 6  # not behind all of the first
            assert "one" not in desk.ends
            break
    assert desk.ends == {"two": None}


async def test_those_that_wait_go_together_up_to_a_piece(desk: Desk) -> None:
    """The first goes at once; then what one turn of the loop brings, and what comes while the engine is busy."""
    half = PIECE // 8
    for number in range(1 + 4 + 5):
        desk.add(str(number), half, half)
    await _turns()
    assert desk.written == [[half] * 2, [half] * 8]
    await desk.engine.end(0)
    assert desk.ends == {"0": None}
    assert desk.written[2:] == [[half] * 8]
    await desk.engine.end(1, EngineFault("no"))
    assert desk.written[3:] == [[half] * 2]
    for number in (2, 3):
        await desk.engine.end(number)
    failed = {name for name, problem in desk.ends.items() if problem == "no"}
    assert failed == {"1", "2", "3", "4"}
    assert len(desk.ends) == 10
    assert not desk.queue.busy


async def test_where_there_is_room_for_both_one_does_not_wait_for_the_other(desk: Desk) -> None:
    desk.add("one", PIECE // 2)
    await _turns()
    desk.add("two", PIECE // 2, offset=GIB)
    await _turns()
    assert desk.written == [[PIECE // 2]] * 2
    await desk.engine.end(1)
    assert desk.ends == {"two": None}


async def test_what_waits_behind_a_large_one_does_not_make_its_pieces_larger(desk: Desk) -> None:
    desk.add("large", 3 * PIECE)
    desk.add("layer", PIECE // 4, offset=GIB)
    await _turns()
    number = 0
    while desk.queue.busy:
        await desk.engine.end(number)
        number += 1
    assert desk.ends == {"large": None, "layer": None}
    assert max(sum(call) for call in desk.written) == PIECE
    assert sorted(size for call in desk.written for size in call) == [PIECE // 4, *[PIECE] * 3]


async def test_a_failed_piece_ends_the_operation_when_the_others_have_ended(desk: Desk) -> None:
    desk.add("large", 6 * PIECE)
    await _turns()
    await desk.engine.end(0, EngineFault("no"))
    assert desk.ends == {}  # the other piece is still under way
    await desk.engine.end(1)
    assert desk.ends == {"large": "no"}
    assert len(desk.written) == 2
    assert not desk.queue.busy


async def test_a_failed_batch_fails_each_of_it(desk: Desk) -> None:
    desk.add("one", 1)
    await _turns()
    desk.add("two", 1)
    desk.add("three", 1)
    await desk.engine.end(0)
    await desk.engine.end(1, RuntimeError("odd"))
    assert desk.ends["one"] is None
    assert (
        desk.ends["two"]
        == desk.ends["three"]
        == "the engine broke its contract: RuntimeError('odd')"
    )


@pytest.mark.parametrize("size", [10, SMALL + 1])
@pytest.mark.parametrize("offset", [-1, 4 * GIB - 9])
async def test_nothing_is_written_outside_of_a_region(desk: Desk, size: int, offset: int) -> None:
    desk.add("outside", size, offset=offset)
    desk.add("inside", 10)
    await _turns()
    if desk.engine.calls:
        await desk.engine.end(0)
    assert "lie outside" in (desk.ends["outside"] or "")
    assert desk.ends["inside"] is None
    assert desk.written == [[10]]


async def test_a_region_that_went_while_its_operation_waited(desk: Desk) -> None:
    desk.add("first", 1)
    await _turns()
    desk.regions[2] = RemoteRegion(2, 100, 0, None)
    desk.queue.add([Move(0, 2, 0, 1)], None, lambda problem: desk.ends.__setitem__("gone", problem))
    desk.add("there", 1)
    del desk.regions[2]
    await desk.engine.end(0)
    await desk.engine.end(1)
    assert "lie outside" in (desk.ends["gone"] or "")
    assert desk.ends["there"] is None


async def test_planned_ones_are_worked_out_when_their_turn_comes(desk: Desk) -> None:
    quarter = PIECE // 4
    names = [str(number) for number in range(1 + 8 + 3)]
    for name in names:
        desk.plan(name, quarter)
    assert desk.made == []
    await asyncio.sleep(0)
    assert desk.made == names[:1]  # with which the engine begins
    assert desk.written == [[quarter]]
    await _turns()
    assert desk.made == names[:9]
    assert desk.written == [[quarter], [quarter] * 8]
    await desk.engine.end(0)
    assert desk.made == names
    assert desk.written[2:] == [[quarter] * 3]
    for number in (1, 2):
        await desk.engine.end(number)
    assert desk.ends == dict.fromkeys(names)
    assert (desk.queue.busy, desk.idle) == (False, 1)


async def test_small_planned_ones_go_together(desk: Desk) -> None:
    desk.add("first", 1)
    desk.plan("second", 2, 3)
    desk.plan("third", 4)
    assert desk.made == []
    await _turns()
    assert desk.written == [[1, 2, 3, 4]]
    await desk.engine.end(0)
    assert desk.ends == dict.fromkeys(["first", "second", "third"])


async def test_a_large_planned_one_goes_in_pieces_abreast(desk: Desk) -> None:
    desk.plan("large", PIECE, PIECE, 5)
    await _turns()
    assert desk.written == [[PIECE]] * ABREAST
    assert desk.made == ["large"]
    for number in range(3):
        await desk.engine.end(number)
    assert desk.written[2:] == [[5]]
    assert desk.ends == {"large": None}


@pytest.mark.parametrize("nbytes", [1, SMALL + 1, 2 * PIECE])
async def test_what_is_not_wanted_any_more_is_told_and_not_moved(desk: Desk, nbytes: int) -> None:
    told: list[str | None] = []
    desk.queue.plan(nbytes, list, told.append)
    desk.add("other", nbytes)
    await _turns()
    number = 0
    while desk.queue.busy:
        await desk.engine.end(number)
        number += 1
    assert told == [None]
    assert sum(size for call in desk.written for size in call) == nbytes
    assert desk.idle == 1


@pytest.fixture
def lease() -> Lease:
    def register(block: Any) -> Region:
        return Region(1, block.address, block.nbytes, b"", -1)

    pool = Pool(
        limit=8 * PIECE,
        segment_nbytes=8 * PIECE,
        source=AnonymousMemory(),
        register=register,
        unregister=lambda region: None,
        alignment=PAGE,
    )
    return pool.lease_nowait(4 * PIECE)


def _filling(lease: Lease) -> Filling:
    return Filling(lease, lease.nbytes, [(lease.address, 0, lease.nbytes)])


async def test_what_is_copied_is_written_and_no_more(desk: Desk, lease: Lease) -> None:
    filling = _filling(lease)
    moves = [Move(lease.address, 1, 0, lease.nbytes)]
    desk.queue.add(moves, filling, lambda problem: desk.ends.__setitem__("it", problem))
    await _turns()
    assert desk.written == []
    filling.reached(lease.address + PIECE - 1)
    await _turns()
    assert desk.written == []
    filling.reached(lease.address + PIECE)
    await _turns()
    assert desk.written == [[PIECE]]
    filling.reached(lease.address + lease.nbytes)
    await _turns()
    assert len(desk.written) == ABREAST
    for number in range(4):
        await desk.engine.end(number)
    assert desk.ends == {"it": None}


async def test_others_go_on_while_one_is_copied(desk: Desk, lease: Lease) -> None:
    filling = _filling(lease)
    desk.queue.add([Move(lease.address, 1, 0, lease.nbytes)], filling, lambda problem: None)
    desk.add("other", 2 * PIECE)
    await _turns()
    assert desk.written == [[PIECE], [PIECE]]


async def test_a_copy_ends_nothing_that_is_planned(desk: Desk, lease: Lease) -> None:
    desk.add("busy", *[PIECE] * ABREAST)
    await _turns()
    desk.plan("planned", PIECE)
    filling = _filling(lease)
    desk.queue.add([Move(lease.address, 1, 0, lease.nbytes)], filling, lambda problem: None)
    filling.reached(lease.address + PIECE)
    filling.fail("no copy")
    assert desk.ends == {}
    for number in range(ABREAST + 1):
        await desk.engine.end(number)
    assert desk.ends == dict.fromkeys(["busy", "planned"])
    assert not desk.queue.busy


async def test_a_copy_that_fails_ends_what_waits_for_it(desk: Desk, lease: Lease) -> None:
    filling = _filling(lease)
    moves = [Move(lease.address, 1, 0, lease.nbytes)]
    desk.queue.add(moves, filling, lambda problem: desk.ends.__setitem__("it", problem))
    filling.reached(lease.address + PIECE)
    await _turns()
    filling.fail("no copy")
    await _turns()
    assert desk.ends == {}
    await desk.engine.end(0)
    assert desk.ends == {"it": "no copy"}
    assert (desk.queue.busy, desk.idle) == (False, 1)
    late: list[str | None] = []
    desk.queue.add(moves, filling, late.append)
    assert late == ["no copy"]
