"""ManagedBuffer."""

from __future__ import annotations

import gc
import pickle
import weakref
from typing import Any

import numpy as np
import pytest

from omni_async.errors import UsageError
from omni_async.pool.buffer import ManagedBuffer


class Memory(np.ndarray[Any, np.dtype[np.uint8]]):
    """An array that can be watched dying."""


def _array(nbytes: int) -> Memory:
    return np.arange(nbytes, dtype=np.uint8).view(Memory)


def test_bytes_in_every_shape() -> None:
    torch = pytest.importorskip("torch")
    buffer = ManagedBuffer(np.arange(24, dtype=np.uint8))
    assert buffer.nbytes == len(buffer) == 24
    assert buffer.to_bytes() == bytes(range(24))
    assert buffer.tensor.dtype is torch.uint8
    assert buffer.tensor.shape == (24,)
    tensor = buffer.as_tensor(torch.int16, [3, 4])
    assert tensor.shape == (3, 4)
    tensor[0, 0] = -1
    assert buffer.array[:2].tolist() == [255, 255]  # one memory
    assert buffer.as_tensor(torch.bfloat16, (12,)).dtype is torch.bfloat16
    assert buffer.as_tensor(torch.float64, (3, 1)).shape == (3, 1)
    assert "24 bytes>" in repr(buffer)


def test_empty_and_scalar() -> None:
    torch = pytest.importorskip("torch")
    empty = ManagedBuffer(np.empty(0, np.uint8))
    assert empty.tensor.shape == (0,)
    assert empty.as_tensor(torch.float32, (0, 5)).shape == (0, 5)
    assert empty.to_bytes() == b""
    assert len(empty) == 0
    assert ManagedBuffer(np.zeros(4, np.uint8)).as_tensor(torch.float32, ()).item() == 0.0


@pytest.mark.parametrize("shape", [(3,), (24,), (-1, 4), (-2, -6), (0,)])
def test_a_shape_that_does_not_fit(shape: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(UsageError):
        ManagedBuffer(_array(24)).as_tensor(torch.int16, shape)


@pytest.mark.parametrize(
    "array",
    [np.zeros((2, 2), np.uint8), np.zeros(4, np.int8), np.zeros(8, np.uint8)[::2]],
    ids=["2-D", "int8", "strided"],
)
def test_only_flat_bytes(array: Any) -> None:
    with pytest.raises(UsageError, match="contiguous 1-D uint8"):
        ManagedBuffer(array)


def test_after_release_every_use_is_named() -> None:
    torch = pytest.importorskip("torch")
    buffer = ManagedBuffer(_array(8))
    buffer.release()
    buffer.release()
    for use in (
        lambda: buffer.array,
        lambda: buffer.tensor,
        lambda: buffer.as_tensor(torch.uint8, (8,)),
        buffer.to_bytes,
        buffer.__enter__,
    ):
        with pytest.raises(UsageError, match="released"):
            use()
    assert buffer.nbytes == len(buffer) == 8
    assert "released" in repr(buffer)


def test_release_lets_go_and_views_hold_on() -> None:
    torch = pytest.importorskip("torch")
    array = _array(8)
    died = weakref.ref(array)
    buffer = ManagedBuffer(array)
    del array
    tensor = buffer.as_tensor(torch.int32, (2,))
    buffer.release()
    gc.collect()
    assert died() is not None
    assert tensor.tolist() == [0x03020100, 0x07060504]
    del tensor
    assert died() is None


def test_the_end_of_with_releases() -> None:
    with ManagedBuffer(_array(8)) as buffer:
        assert buffer.nbytes == 8
    with pytest.raises(UsageError):
        buffer.to_bytes()
    with pytest.raises(ZeroDivisionError):
        with ManagedBuffer(_array(8)) as buffer:
            raise ZeroDivisionError
    with pytest.raises(UsageError):
        buffer.to_bytes()


def test_it_stays_in_its_process() -> None:
    with pytest.raises(UsageError, match="its process"):
        pickle.dumps(ManagedBuffer(_array(8)))
