"""numpy: every dtype, shape and layout with plain bytes; everything else is refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from omni_async.codec import decode, encode
from omni_async.errors import EncodeError

from .landing import land, same, trip

RNG = np.random.default_rng(7)

DTYPES: list[Any] = [
    *"?bBhHiIlLqQefdgFDG",
    *(">i2", ">u4", ">i8", ">f2", ">f4", ">f8", ">c8", ">c16"),
    *("S5", "U5", ">U5", "V7", "S1", "U1", "V1"),
    *("M8[ns]", "M8[s]", "M8[25s]", "M8[D]", "M8[as]", "m8[us]", "m8[Y]", "M8", "m8", ">M8[ms]"),
    [("a", "i1"), ("b", ">f8"), ("c", "S3"), ("d", "M8[s]")],
    np.dtype([("a", "i1"), ("b", "f8")], align=True),
    [("nested", [("x", "f4", (2, 3)), ("y", "?")]), ("matrix", "i2", (2,))],
    {"names": ["a", "b"], "formats": ["i4", "f8"], "offsets": [4, 16], "itemsize": 40},
    {"names": ["a", "b"], "formats": ["i4", "f4"], "offsets": [0, 0]},
    {"names": ["a", "b"], "formats": ["i4", "f4"], "titles": ["first", None]},
    [("ü", "q"), ("", "Q")],
    [("nothing", "f4", (0,)), ("empty", "S0"), ("a", "i2")],
]

SHAPES: list[tuple[int, ...]] = [(), (0,), (3, 0, 2), (5,), (3, 4), (2, 1, 3), (1,) * 32]


def random(dtype: Any, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    kind = np.dtype(dtype)
    count = int(np.prod(shape))
    raw = RNG.integers(0, 100, count * kind.itemsize, np.uint8)
    if kind.kind in "b":
        raw &= 1
    if kind.kind == "U":
        raw = np.frombuffer(np.array(["abcde"] * count, kind).tobytes(), np.uint8)
    return np.frombuffer(raw.tobytes(), kind, count).reshape(shape)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_shape_and_layout(dtype: Any) -> None:
    for shape in SHAPES:
        array = random(dtype, shape)
        encoded = encode(array)
        assert encoded.fast
        assert encoded.nbytes == array.nbytes
        layouts = [
            array,
            array.T,
            array[::2] if shape else array,
            array[..., ::-1] if shape else array,
        ]
        layouts.append(np.asfortranarray(array))
        layouts.append(np.broadcast_to(array, (2, *shape)) if len(shape) < 32 else array)
        for layout in layouts:
            same(layout, trip(layout))
            same({"x": [layout, 1]}, trip({"x": [layout, 1]}))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_scalar(dtype: Any) -> None:
    value = random(dtype, (2,))[1]
    same(value, trip(value))
    same([{"x": (value,)}], trip([{"x": (value,)}]))
    if not isinstance(value, np.void) or value.dtype.names is None:
        assert not encode(value).frames


@pytest.mark.parametrize(
    "value",
    [
        np.float64(1.5), np.float32("nan"), np.float16(-0.0), np.longdouble("1e4000"),
        np.int64(-5), np.uint64(2**64 - 1), np.longlong(3), np.bool_(True), np.complex64(1j),
        np.str_(""), np.str_("é\ud800"), np.bytes_(b""), np.bytes_(b"a\0\0"), np.str_("a\0"),
        np.datetime64("NaT", "s"), np.datetime64("2024-01-01T00", "h"), np.timedelta64(5, "D"),
        np.void(b"ab\0"),
    ],
    ids=repr,
)  # fmt: skip
def test_special_scalars(value: Any) -> None:
    same(value, trip(value))
    if not isinstance(value, np.void):
        same({value: 1}, trip({value: 1}))


def test_float64_is_not_taken_for_a_float() -> None:
    assert type(trip([np.float64(1.0)] * 3)[2]) is np.float64
    assert type(trip({"a": np.str_("x")})["a"]) is np.str_


def test_long_long_is_told_from_long() -> None:
    array = np.zeros(3, np.longlong)
    assert trip(array).dtype.char == array.dtype.char
    assert type(trip(np.longlong(1))) is np.longlong


class Matrix(np.ndarray[Any, Any]):
    pass


class Number(np.float64):
    pass


def dtype_with_metadata() -> np.dtype[Any]:
    return np.dtype("f4", metadata={"unit": "m"})


def variable_width() -> np.ndarray[Any, Any]:
    if not hasattr(np.dtypes, "StringDType"):
        pytest.skip("numpy 1 has no such dtype")
    return np.array(["a"], np.dtypes.StringDType())


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: np.array([1, "a", None], object), "dtype object has no plain bytes"),
        (lambda: np.array([(1, None)], [("a", "i4"), ("b", "O")]), "no plain bytes"),
        (variable_width, "StringDType.* has no plain bytes"),
        (lambda: np.zeros(3, dtype_with_metadata()), "with metadata cannot be sent"),
        (lambda: np.zeros(3, [("a", dtype_with_metadata())]), "with metadata cannot be sent"),
        (lambda: np.zeros(3, np.dtype([])), "items of zero bytes"),
        (lambda: np.zeros(3).view(Matrix), "object of type Matrix cannot be sent; register it"),
        (lambda: np.ma.masked_array([1, 2], [True, False]), "type MaskedArray cannot be sent"),
        (lambda: np.rec.array([(1,)], dtype=[("a", int)]), "object of type recarray"),
        (lambda: Number(1), "object of type Number"),
        (lambda: np.float64, "object of type type"),
    ],
)  # fmt: skip
def test_what_has_no_plain_bytes_is_refused(make: Any, says: str) -> None:
    with pytest.raises(EncodeError, match=says) as info:
        encode({"x": [make()]})
    assert info.value.path == "value['x'][0]"
    with pytest.raises(EncodeError, match=says):
        encode(make())


def test_a_title_that_is_no_text_is_refused() -> None:
    dtype = np.dtype({"names": ["a"], "formats": ["i4"], "titles": [(1, 2)]})
    with pytest.raises(EncodeError, match="title"):
        encode(np.zeros(1, dtype))


def test_padding_of_a_strided_structured_array_is_copied_too() -> None:
    dtype = np.dtype({"names": ["a"], "formats": ["i1"], "itemsize": 8})
    array = np.arange(64, dtype=np.uint8).view(dtype)
    (buffer,) = land(encode(array[::2]))
    assert buffer.tobytes() == b"".join(array.tobytes()[i : i + 8] for i in range(0, 64, 16))


def test_views_are_of_the_buffers_and_writable_as_asked() -> None:
    encoded = encode({"x": np.arange(10)})
    (buffer,) = buffers = land(encoded)
    view = decode(encoded.header, buffers)["x"]
    assert np.shares_memory(view, buffer)
    view[0] = 77
    assert decode(encoded.header, buffers)["x"][0] == 77

    frozen = decode(encoded.header, buffers, writable=False)["x"]
    assert not frozen.flags.writeable
    assert np.shares_memory(frozen, buffer)
    assert buffer.flags.writeable

    copied = decode(encoded.header, buffers, copy=True, writable=False)["x"]
    assert copied.flags.writeable
    assert not np.shares_memory(copied, buffer)

    buffer.flags.writeable = False
    assert not decode(encoded.header, buffers)["x"].flags.writeable
