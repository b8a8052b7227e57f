"""The comparison tells apart what a user could tell apart.

In: pairs of values. Out: the path of the difference, or nothing for equals.
Never: takes 1 for True.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from omni_async.testing.compare import difference
from omni_async.testing.samples import FAMILIES, NEEDS, Frame, Point, Setting


@pytest.mark.parametrize("family", list(FAMILIES))
def test_a_value_is_like_itself_made_again(family: str) -> None:
    if family in NEEDS:
        pytest.importorskip(NEEDS[family])
    for name, value in FAMILIES[family]().items():
        if type(value).__name__ not in ("Parameter",) and not getattr(value, "requires_grad", 0):
            again = FAMILIES[family]()[name]
            again = bytes(again) if isinstance(again, memoryview) else again
            assert _same_or_layout(again, value) is None, name


def _same_or_layout(got: Any, want: Any) -> str | None:
    """Tensors arrive contiguous, and are compared as they arrive."""
    contiguous = getattr(got, "contiguous", None)
    return difference(got if contiguous is None else contiguous(), want)


@pytest.mark.parametrize(
    ("got", "want", "path"),
    [
        (True, 1, "value"),
        (1.0, 1, "value"),
        (0.0, -0.0, "value"),
        (float("nan"), 1.0, "value"),
        (complex(1, 0.0), complex(1, -0.0), "value"),
        (b"x", bytearray(b"x"), "value"),
        ("x", b"x", "value"),
        (b"y", memoryview(b"x"), "value"),
        ("x", memoryview(b"x"), "value"),
        ((1, 2), [1, 2], "value"),
        ([1], [1, 2], "value"),
        ([1, [2, 3]], [1, [2, 4]], "value[1][1]"),
        ({"a": 1}, {"a": 2}, "value['a']"),
        ({1: "x"}, {True: "x"}, "value"),
        ({"b": 1, "a": 2}, {"a": 2, "b": 1}, "value"),
        ({(1, 2): 0}, {(1, True): 0}, "value"),
        ({1, 2}, {1, 2.5}, "value"),
        (frozenset({1}), {1}, "value"),
        (slice(1), slice(2), "value"),
        (np.arange(3), np.arange(3, dtype=np.int32), "value"),
        (np.arange(3), np.arange(4), "value"),
        (np.arange(3), np.array([0, 1, 3]), "value"),
        (np.float32(1), np.float64(1), "value"),
        (np.float32(1), np.float32(2), "value"),
        (Point(1, data=np.arange(2)), Point(1, data=np.arange(3)), "value.data"),
        (Frame(1), Frame(2), "value.number"),
        (Setting(name="a"), Setting(name="b"), "value.name"),
    ],
    ids=lambda value: re.sub(r" at 0x\w+", "", repr(value)),
)
def test_differences_are_found(got: Any, want: Any, path: str) -> None:
    found = difference(got, want)
    assert found is not None
    assert found.startswith(f"{path}:")


def test_tensors_are_told_apart() -> None:
    torch = pytest.importorskip("torch")
    ones = torch.ones(2, 3)
    for other in (
        torch.ones(3, 2),
        torch.ones(2, 3, dtype=torch.float64),
        torch.zeros(2, 3),
        torch.ones(3, 2).t(),
        torch.ones(2, 3, requires_grad=True),
        torch.nn.Parameter(ones),
        np.ones((2, 3), np.float32),
    ):
        assert difference(other, ones) is not None, other
    assert difference(ones, torch.ones(3, 2).t()) is None
    assert difference(torch.ones(2, 3), torch.nn.Parameter(ones)) is None


def test_images_are_told_apart() -> None:
    image = pytest.importorskip("PIL.Image")
    red = image.new("RGB", (4, 4), (255, 0, 0))
    assert difference(image.new("RGB", (4, 4), (255, 0, 0)), red) is None
    assert difference(image.new("RGB", (4, 5), (255, 0, 0)), red) is not None
    assert difference(image.new("RGB", (4, 4), (254, 0, 0)), red) is not None
