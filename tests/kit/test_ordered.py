"""Ordered faults of operations that run in threads, on bytes that really move."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator

import pytest

from omni_async.testing.doubles import carrier
from omni_async.testing.doubles.carrier import PIECE, Piece
from omni_async.testing.doubles.ordered import Failed, Fault, Life, ThreadOrders

NBYTES = 4 * PIECE


@pytest.fixture
def orders() -> Iterator[ThreadOrders]:
    made = ThreadOrders()
    yield made
    made.clear()


class Copy:
    """A copy within this process, and the thread that makes it."""

    def __init__(self, orders: ThreadOrders) -> None:
        self.source = (ctypes.c_char * NBYTES).from_buffer(bytearray(b"x" * NBYTES))
        self.target = (ctypes.c_char * NBYTES)()
        self.life = Life()
        self.orders = orders
        self.error: Exception | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)

    def piece(self) -> Piece:
        return Piece(
            os.getpid(), ctypes.addressof(self.source), ctypes.addressof(self.target), NBYTES
        )

    def carry(self) -> None:
        self.orders.carry([self.piece()], carrier.put, self.life)

    def _run(self) -> None:
        try:
            self.carry()
        except Failed as error:
            self.error = error

    @property
    def moved(self) -> int:
        return self.target.raw.count(b"x")


@pytest.fixture
def copy(orders: ThreadOrders) -> Copy:
    return Copy(orders)


def test_bytes_move_both_ways(copy: Copy, orders: ThreadOrders) -> None:
    copy.carry()
    assert copy.moved == NBYTES
    ctypes.memset(copy.target, 0, NBYTES)
    here = copy.piece()
    orders.carry([here._replace(near=here.far, far=here.near)], carrier.get, copy.life)
    assert copy.moved == NBYTES
    assert orders.begun == 2


def test_what_the_kernel_refuses_is_an_error(copy: Copy, orders: ThreadOrders) -> None:
    with pytest.raises(OSError, match="Bad address"):
        orders.carry([copy.piece()._replace(far=4096)], carrier.put, copy.life)
    assert orders.under_way == 0


@pytest.mark.parametrize("kind", ["failing", "out_of_bounds"])
def test_a_failure_after_a_part(copy: Copy, orders: ThreadOrders, kind: str) -> None:
    orders.order(Fault(kind, landed=0.5, status=-7))
    with pytest.raises(Failed) as caught:
        copy.carry()
    assert caught.value.fault == Fault(kind, landed=0.5, status=-7)
    assert copy.moved == NBYTES // 2
    copy.carry()
    assert copy.moved == NBYTES


def test_slow_is_no_failure(copy: Copy, orders: ThreadOrders) -> None:
    orders.order(Fault("slow", seconds=0.01))
    copy.carry()
    assert copy.moved == NBYTES


async def test_stuck_until_released(copy: Copy, orders: ThreadOrders) -> None:
    orders.order(Fault("stuck", landed=0.25))
    copy.thread.start()
    await orders.until_stuck()
    assert (copy.moved, orders.under_way) == (NBYTES // 4, 1)
    orders.release()
    copy.thread.join(5)
    assert (copy.moved, orders.under_way) == (NBYTES, 0)


async def test_late_bytes_move_after_the_failure(copy: Copy, orders: ThreadOrders) -> None:
    orders.order(Fault("late", landed=0.25))
    with pytest.raises(Failed):
        copy.carry()
    await orders.until_stuck()
    assert copy.moved == NBYTES // 4
    late = next(one for one in threading.enumerate() if one.name == "late")
    orders.release()
    late.join(5)
    assert copy.moved == NBYTES


async def test_an_engine_ends_what_is_its_own(copy: Copy, orders: ThreadOrders) -> None:
    orders.order(Fault("stuck"))
    copy.thread.start()
    await orders.until_stuck()
    orders.end(Life())
    assert orders.stuck == 1
    orders.end(copy.life)
    copy.thread.join(5)
    assert copy.moved == 0
    assert isinstance(copy.error, Failed)
    assert copy.error.fault is None
