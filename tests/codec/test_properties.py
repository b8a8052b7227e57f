"""Any value comes back; any bytes give a value or one DecodeError."""

from __future__ import annotations

import contextlib
import datetime as dt
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from omni_async.codec import decode, encode
from omni_async.codec.wire import BUFFER, Ext, Tag, encode_tree
from omni_async.errors import DecodeError, EncodeError

from .classes import Bits, Color, Foreign, Level, Pair, Point, Slotted, loose
from .landing import body_of, land, same, sealed, slot, trip

SHORT = settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.filter_too_much,
    ],
)
LONG = settings(
    max_examples=20_000,
    deadline=None,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.filter_too_much,
    ],
)

zones = st.none() | st.timedeltas(
    min_value=dt.timedelta(hours=-23), max_value=dt.timedelta(hours=23)
).map(dt.timezone)

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=-(1 << 70), max_value=1 << 70),
    st.floats(),
    st.complex_numbers(),
    st.text(st.characters(), max_size=20),
    st.binary(max_size=20),
    st.datetimes(timezones=zones, allow_imaginary=True),
    st.dates(),
    st.times(timezones=zones),
    st.timedeltas(),
    st.sampled_from([*Color, *Level, *Bits]),
    st.builds(np.float32, st.floats(width=32)),
    st.builds(np.int16, st.integers(-(1 << 15), (1 << 15) - 1)),
)
dtypes = st.one_of(
    hnp.scalar_dtypes(),
    hnp.unicode_string_dtypes(),
    hnp.byte_string_dtypes(),
    hnp.array_dtypes(hnp.scalar_dtypes(), allow_subarrays=True),
    hnp.nested_dtypes(max_itemsize=200),
).filter(lambda dtype: dtype.itemsize > 0)
arrays = hnp.arrays(dtypes, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))


@st.composite
def views(draw: st.DrawFn) -> Any:
    array = draw(arrays)
    index = draw(hnp.basic_indices(array.shape, allow_newaxis=False))
    view = array[index] if isinstance(array[index], np.ndarray) else array
    return view.transpose(draw(st.permutations(range(view.ndim))))


def tensors() -> st.SearchStrategy[Any]:
    try:
        import torch
    except ImportError:
        return st.nothing()
    kinds = [torch.bool, torch.uint8, torch.int64, torch.bfloat16, torch.float32, torch.complex64]
    sizes = st.lists(st.integers(0, 4), max_size=4)

    def build(kind: Any, shape: list[int], order: int, conj: bool) -> Any:
        tensor = torch.arange(int(np.prod(shape))).reshape(shape).to(kind)
        first = order % max(1, len(shape))
        tensor = tensor.permute([*range(first, len(shape)), *range(first)])
        return tensor.conj() if conj and kind.is_complex else tensor

    return st.builds(build, st.sampled_from(kinds), sizes, st.integers(0, 3), st.booleans())


hashable = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(tuple),
        st.frozensets(inner, max_size=3),
        st.builds(Pair, inner, inner),
        st.builds(Foreign, st.integers()),  # numpy answers == with an array
    ),
    max_leaves=5,
)
big = st.integers(4090, 9000).flatmap(lambda n: st.sampled_from([b"x" * n, bytearray(n), "é" * n]))
values = st.recursive(
    st.one_of(scalars, views(), tensors(), big, st.builds(bytearray, st.binary(max_size=9))),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(st.text(max_size=5) | hashable, inner, max_size=4),
        st.sets(hashable, max_size=4),
        st.builds(slice, inner, inner, inner),
        st.builds(Point, st.integers(), inner),
        st.builds(Slotted, inner, inner),
        st.builds(loose, x=st.integers(), y=inner),
    ),
    max_leaves=12,
)


def round_trip(value: Any) -> None:
    same(value, trip(value))
    same(value, trip(value, copy=True))


@SHORT
@given(values)
@example({"a": (1,), "b": [(1,)] * 3})
def test_any_value_comes_back(value: Any) -> None:
    round_trip(value)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@LONG
@given(values)
def test_any_value_comes_back_long(value: Any) -> None:
    round_trip(value)


# --- fuzzing --------------------------------------------------------------------------------------

TAGS = [code for name, code in vars(Tag).items() if name.isupper()]
plain_trees = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats()
    | st.text(max_size=8) | st.binary(max_size=24)
    | st.sampled_from(["<f4", "|O8", "L", "P", "RGB", "cuda", "UTC", "Europe/Berlin", "__dict__"]),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


def exts(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    frames = st.builds(BUFFER.pack, st.integers(0, 3), st.integers(0, 20))
    body = st.one_of(inner.map(encode_tree), frames, st.binary(max_size=60))
    return st.builds(Ext, st.sampled_from(TAGS) | st.integers(-128, 127), body)


trees = st.recursive(
    plain_trees | exts(plain_trees),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        | exts(inner)
    ),
    max_leaves=10,
)
buffers = st.lists(st.integers(0, 20).map(slot), max_size=4)


def value_or_error(body: bytes, landed: list[Any]) -> None:
    """A value, or one DecodeError, within bounded memory."""
    tracemalloc.start()
    try:
        value = decode(sealed(body), landed)
    except DecodeError:
        return
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2_000_000 + 100 * len(body), peak
    with contextlib.suppress(EncodeError):  # whatever it was: it can be looked at
        encode(value)


@SHORT
@given(trees.map(encode_tree), buffers)
def test_forged_trees(body: bytes, landed: list[Any]) -> None:
    value_or_error(body, landed)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@LONG
@given(trees.map(encode_tree), buffers)
def test_forged_trees_long(body: bytes, landed: list[Any]) -> None:
    value_or_error(body, landed)


def mutate(value: Any, data: st.DataObject) -> None:
    encoded = encode(value)
    landed = land(encoded)
    body = bytearray(body_of(encoded.header))
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(body)))
        end = min(len(body), start + data.draw(st.integers(0, 4)))
        body[start:end] = data.draw(st.binary(max_size=4))
    value_or_error(bytes(body), landed)


@SHORT
@given(values, st.data())
def test_mutated_payloads(value: Any, data: st.DataObject) -> None:
    mutate(value, data)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@LONG
@given(values, st.data())
def test_mutated_payloads_long(value: Any, data: st.DataObject) -> None:
    mutate(value, data)


@SHORT
@given(st.binary(max_size=200))
def test_any_bytes_as_body(body: bytes) -> None:
    value_or_error(body, [])
