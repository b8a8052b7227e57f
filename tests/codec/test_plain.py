"""Values without buffers: exact types and values come back."""

from __future__ import annotations

import datetime as dt
import math
import struct
import zoneinfo
from typing import Any

import msgspec
import pytest

from omni_async.codec import encode
from omni_async.errors import EncodeError

from .landing import same, trip

UTC = dt.timezone.utc
PLUS = dt.timezone(dt.timedelta(hours=5, minutes=45))
NAMED = dt.timezone(dt.timedelta(hours=-3), "BRT")

SCALARS = [
    None,
    True,
    False,
    *(0, 1, -1, 127, 128, -32, -33, 255, 256, 65535, 65536, -(1 << 31), (1 << 32)),
    *((1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 64, -(1 << 63), -(1 << 63) - 1),
    *(10**400, -(10**400), 1 << 1000, -(1 << 1000), (1 << 127) - 1, -(1 << 127)),
    *(0.0, -0.0, 1.5, math.pi, math.inf, -math.inf, math.nan, 5e-324, 1.7976931348623157e308),
    struct.unpack("<d", struct.pack("<Q", 0xFFF8_0000_0000_0BAD))[0],
    *(0j, complex(-0.0, math.nan), 1 - 2.5j, complex(math.inf, -0.0)),
    *(
        "",
        "x",
        "é漢🎧",
        "a\0b",
        "x" * 70_000,
        "\ud800 lone",
        "\udcff" * 10,
        "\N{REPLACEMENT CHARACTER}",
    ),
    *(b"", b"abc", bytes(range(256)), bytearray(), bytearray(b"abc")),
    dt.datetime(2024, 2, 29, 23, 59, 59, 999_999),
    dt.datetime(1, 1, 1),
    dt.datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC),
    dt.datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=PLUS),
    dt.datetime(2024, 10, 27, 2, 30, tzinfo=NAMED),
    dt.date(2024, 2, 29),
    dt.time(),
    dt.time(1, 2, 3, 4, fold=1),
    dt.time(1, 2, 3, 4, tzinfo=PLUS),
    *(dt.timedelta(), dt.timedelta(-1, 1, 1), dt.timedelta.max, dt.timedelta.min),
    *(UTC, PLUS, NAMED, dt.timezone(dt.timedelta(0), "GMT"), dt.timezone(-dt.timedelta(0, 1, 1))),
    *(slice(None), slice(1, 2, 3), slice("a", (1, 2), None)),
    msgspec.UNSET,
]


@pytest.mark.parametrize("value", SCALARS, ids=lambda value: repr(value)[:40])
def test_every_scalar_everywhere(value: Any) -> None:
    for wrapped in (value, [value], (value,), {"k": value}, [[value, "x"], {"y": (value,)}]):
        same(wrapped, trip(wrapped))


@pytest.mark.parametrize(
    "value", [value for value in SCALARS if not isinstance(value, (bytearray, slice))], ids=repr
)
def test_every_hashable_scalar_as_key_and_element(value: Any) -> None:
    for wrapped in ({value: 1}, {(value, 2): [value]}, {value}, frozenset([(value,)])):
        same(wrapped, trip(wrapped))


CONTAINERS: list[Any] = [
    [],
    (),
    {},
    set(),
    frozenset(),
    [[]],
    ((),),
    [()],
    {"": {}},
    [1, 2.0, True, None, "x"],
    [1, [2, (3, [4])]],
    {1: "a", 2.5: "b", None: "c", False: "d", b"x": "e", "s": "f", (): "g", (1, (2,)): "h"},
    {1 << 70: 1, "x": {-(1 << 70): 2}, "\ud800": 3},
    {frozenset([1, "a"]): {2, 3}, 1j: dt.date(2024, 1, 1)},
    {(1, 2), "a", None, 2.5, b"b", frozenset([1])},
    {1, True and 2, 3.0},
    {math.nan: 1, -0.0: 2},
    {"order": 1, "of": 2, "keys": 3, "stays": 4, "a": 5},
    {"a": (1, 2), "b": [(1,), (2,)], "c": {"d": (3,)}},
    [True, 1, 1.0],
    [{"id": 1, "tags": {"x"}, "at": slice(0, 1)}] * 3,
    list(range(1000)),
    [1.0] * 100 + [1],
    ["x"] * 100 + [("x",)],
    {i: i * i for i in range(100)},
    {"big": b"x" * 100_000, "small": b"y", "array": bytearray(100_000)},
    ("text", "y" * 100),
]


@pytest.mark.parametrize("value", CONTAINERS, ids=lambda value: type(value).__name__)
def test_containers_keep_type_order_and_content(value: Any) -> None:
    same(value, trip(value))


def test_falsy_values_are_told_apart() -> None:
    falsy: list[Any] = [None, False, 0, 0.0, "", b"", [], (), {}, set(), bytearray()]
    for value in falsy:
        same(value, trip(value))


def test_shared_references_arrive_separate() -> None:
    inner = [1]
    first, second = trip([inner, inner])
    assert first == second
    assert first is not second


def test_the_value_is_not_touched() -> None:
    value = {"t": (1, 2), "l": [{1}, (2,)], 5: b"x" * 10_000}
    kept = {"t": (1, 2), "l": [{1}, (2,)], 5: b"x" * 10_000}
    encode(value)
    same(kept, value)


@pytest.mark.parametrize("view", ["plain", "strided", "cast", "matrix", "fortran", "empty"])
@pytest.mark.parametrize("size", [64, 65536])
def test_memoryviews_arrive_as_bytes(view: str, size: int) -> None:
    import numpy as np

    data = bytes(i % 251 for i in range(size))
    given = {
        "plain": memoryview(data),
        "strided": memoryview(data)[::3],
        "cast": memoryview(data).cast("I"),
        "matrix": memoryview(data).cast("B", (size // 8, 8)),
        "fortran": memoryview(np.frombuffer(data, ">u2").reshape(-1, 4).T),
        "empty": memoryview(b""),
    }[view]
    expected = given.tobytes()
    same(expected, trip(given))
    same([expected, {"x": expected}], trip([given, {"x": given}]))


def test_a_released_memoryview_is_refused() -> None:
    view = memoryview(b"abc")
    view.release()
    for value in (view, [view]):
        with pytest.raises(EncodeError, match="released"):
            encode(value)


def test_bytes_are_independent_of_the_buffers() -> None:
    from omni_async.codec import decode

    from .landing import land

    encoded = encode([b"x" * 9000, bytearray(b"y" * 9000)])
    assert len(encoded.frames) == 2
    buffers = land(encoded)
    value = decode(encoded.header, buffers)
    for buffer in buffers:
        buffer[:] = 0
    same([b"x" * 9000, bytearray(b"y" * 9000)], value)


def test_short_bytes_ride_in_the_header_and_long_ones_do_not() -> None:
    assert not encode([b"x" * 100, bytearray(100), memoryview(b"x" * 100)]).frames
    for long in (b"x" * 100_000, bytearray(100_000), memoryview(b"x" * 100_000)):
        encoded = encode({"a": long})
        assert [frame.nbytes for frame in encoded.frames] == [100_000]
        assert len(encoded.header) < 100


@pytest.mark.parametrize("value", [b"", b"abc", bytearray(b"abc"), memoryview(b"abc"), b"x" * 9000])
def test_bytes_as_the_whole_value_are_one_frame(value: Any) -> None:
    encoded = encode(value)
    assert encoded.fast
    assert encoded.nbytes == len(value)
    assert [frame.nbytes for frame in encoded.frames] == [len(value)]
    assert trip(value) == bytes(value)


def test_long_texts_become_frames_once_the_header_would_be_bulky() -> None:
    text = "ü" * 3_000_000
    for value in (text, {"t": text}, ("a", text), [{"x": (text, text)}], {1 << 80: text}):
        encoded = encode(value)
        assert len(encoded.header) < 1 << 20
        assert not encoded.fast
        same(value, trip(value))
    for many in (["x" * 1000] * 3000, list(range(1_000_000)), {"a": [(1, "x")] * 200_000}):
        assert not encode(many).frames
        assert trip(many) == many
    surrogate = "\ud800" * 2_000_000
    same([surrogate], trip([surrogate]))


def test_zone_info_and_its_refusal() -> None:
    try:
        zone = zoneinfo.ZoneInfo("Europe/Berlin")
    except zoneinfo.ZoneInfoNotFoundError:
        pytest.skip("no time zone data on this machine")
    value = dt.datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=zone)
    same([value, zone, value.timetz()], trip([value, zone, value.timetz()]))
    assert trip(value).utcoffset() == value.utcoffset()


def test_a_zone_without_a_name_is_refused() -> None:
    import io

    eastern = b"TZif" + b"\0" * 16 + struct.pack(">6l", 0, 0, 0, 0, 1, 4)
    zone = zoneinfo.ZoneInfo.from_file(
        io.BytesIO(eastern + struct.pack(">lBB", 0, 0, 0) + b"UTC\0")
    )
    with pytest.raises(
        EncodeError, match=r"value\['at'\]\.tzinfo: a ZoneInfo without a key"
    ) as info:
        encode({"at": dt.datetime(2024, 1, 1, tzinfo=zone)})
    assert info.value.path == "value['at'].tzinfo"
