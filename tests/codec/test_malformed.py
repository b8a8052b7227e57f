"""Bytes that are not a payload: one DecodeError, never a value, never a large allocation."""

from __future__ import annotations

import contextlib
import datetime as dt
import pickle
import random
import struct
import tracemalloc
from typing import Any

import msgspec
import numpy as np
import pytest

from omni_async.codec import VERSION, decode, encode
from omni_async.codec.tensors import DTYPES
from omni_async.codec.wire import BUFFER, Ext, Tag, encode_tree
from omni_async.errors import DecodeError

from .classes import Color, Point
from .landing import body_of, land, sealed, slot

VALUE: Any = {
    "request_id": "r-1",
    "codec": [1, 500, 70000, -3],
    "meta": {"t": (1, 2.5), "s": {1}, "f": frozenset(["a"]), (1, "k"): None, "z": 1j},
    "when": dt.datetime(2024, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=2))),
    "big": 1 << 90,
    "raw": [b"abc", bytearray(b"abc"), b"x" * 5000],
    "array": np.arange(6, dtype=">f4").reshape(2, 3),
    "structured": np.zeros(2, [("a", "i1"), ("b", "f8", (2,))]),
    "scalar": np.float32(1.5),
    "mine": [Point(1, Color.RED), slice(1, 2)],
}
ENCODED = encode(VALUE)
BUFFERS = land(ENCODED)
HEADER = ENCODED.header


def refused(header: Any, buffers: Any = BUFFERS, match: str | None = None) -> None:
    with pytest.raises(DecodeError, match=match):
        decode(header, buffers)


def forged(tree: Any, buffers: Any = (), match: str | None = None) -> None:
    refused(sealed(encode_tree(tree)), list(buffers), match)


def ext(tag: int, *parts: Any) -> Any:
    return Ext(tag, encode_tree(list(parts)))


# --- the header as a whole ------------------------------------------------------------------------


def test_every_truncation() -> None:
    for end in range(len(HEADER)):
        refused(HEADER[:end])


def test_every_truncation_of_the_body_with_a_right_checksum() -> None:
    body = body_of(HEADER)
    for end in range(len(body)):
        refused(sealed(body[:end]))


def test_trailing_bytes() -> None:
    for tail in (b"\0", b"\xc0", HEADER):
        refused(HEADER + tail)
        refused(sealed(body_of(HEADER) + tail), match="trailing")


def test_every_flipped_bit() -> None:
    for position in range(len(HEADER)):
        for bit in range(8):
            damaged = bytearray(HEADER)
            damaged[position] ^= 1 << bit
            refused(damaged)


def test_two_exchanged_bytes() -> None:
    for position in range(len(HEADER) - 1):
        damaged = bytearray(HEADER)
        damaged[position : position + 2] = reversed(damaged[position : position + 2])
        if damaged != HEADER:
            refused(damaged)


def test_other_versions_are_named() -> None:
    for version in (0, VERSION + 1, 0xFFFF):
        refused(
            sealed(b"\xc0", version), [], f"format version {version}, this side reads {VERSION}"
        )


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_headers_of_every_kind(kind: Any) -> None:
    assert decode(kind(sealed(b"\xc0")), []) is None
    assert decode(kind(HEADER), BUFFERS)["codec"] == VALUE["codec"]


def test_random_bytes_and_foreign_formats() -> None:
    noise = random.Random(1)
    for nbytes in range(200):
        refused(noise.randbytes(nbytes), [])
        body = noise.randbytes(nbytes)
        with contextlib.suppress(DecodeError):
            decode(sealed(body), [])
    for foreign in (
        pickle.dumps(VALUE["codec"]),
        msgspec.json.encode([1]),
        encode_tree([1]),
        b"OA",
    ):
        refused(foreign, [])


class Bomb:
    def __reduce__(self) -> Any:
        return (Point.__init__, (Point(0), 1, "exploded"))


def test_a_pickle_is_refused_and_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        data = pickle.dumps(Bomb(), protocol)
        monkeypatch.setattr(Point, "__init__", lambda *_: pytest.fail("unpickled"))
        refused(data, [])
        refused(sealed(data), [])
        for tag in range(128):
            try:
                received = decode(sealed(encode_tree(Ext(tag, data))), [])
            except DecodeError:
                continue
            assert isinstance(received, (bytearray, int, str, bytes))
        monkeypatch.undo()


# --- frames ---------------------------------------------------------------------------------------


def test_missing_surplus_and_exchanged_buffers() -> None:
    refused(HEADER, BUFFERS[:-1], "needs frame 2, 2 came")
    refused(HEADER, [], "needs frame 0, 0 came")
    refused(HEADER, [*BUFFERS, slot(4)], "1 of 4 frames belong to nothing")
    refused(HEADER, BUFFERS[::-1], "frame . has .* bytes, its value takes")
    refused(sealed(b"\xc0"), [slot(0)], "1 of 1 frames belong to nothing")


def test_buffers_of_other_lengths() -> None:
    for number, buffer in enumerate(BUFFERS):
        for other in (slot(0), slot(buffer.nbytes - 1), slot(buffer.nbytes + 1)):
            refused(HEADER, [*BUFFERS[:number], other, *BUFFERS[number + 1 :]], "its value takes")


def test_a_frame_is_used_once() -> None:
    twice = [Ext(Tag.BYTES, BUFFER.pack(0, 4))] * 2
    forged(twice, [slot(4)], "uses frame 0 twice")
    forged(twice, [slot(4), slot(4)], "uses frame 0 twice")


def test_huge_indexes_and_lengths() -> None:
    for index, nbytes in ((1 << 31, 4), (0, 1 << 63), ((1 << 32) - 1, (1 << 64) - 1), (1, 4)):
        for tag in (Tag.BYTES, Tag.BYTEARRAY, Tag.TEXT, Tag.RAW):
            forged(Ext(tag, BUFFER.pack(index, nbytes)), [slot(4)])


# --- bodies ---------------------------------------------------------------------------------------


def test_unknown_tags() -> None:
    known = {code for name, code in vars(Tag).items() if name.isupper()}
    for tag in sorted(set(range(-128, 128)) - known - {-1}):
        forged(Ext(tag, b""), [], f"unknown tag {tag}")
        forged({"x": [Ext(tag, b"\xc0")]}, [], "unknown tag")


TREES: list[Any] = [[], [None], [1, 2, 3], {}, {"a": 1}, [[]] * 9, 5.5]


def test_known_tags_with_any_other_body() -> None:
    bodies = [b"", b"\0", b"\xc1", b"\xff" * 5, b"\0" * 13, b"\0" * 100, encode_tree("os.system")]
    bodies += [encode_tree(tree) for tree in TREES]
    bodies += [encode_tree([0] * count) for count in range(12)]
    for name, tag in vars(Tag).items():
        if not name.isupper():
            continue
        for body in bodies:
            for buffers in ([], [slot(0)], [slot(13)]):
                with contextlib.suppress(DecodeError):
                    decode(sealed(encode_tree(Ext(tag, body))), buffers)


@pytest.mark.parametrize(
    ("tree", "says"),
    [
        (ext(Tag.SET, 1, 1), "twice"),
        (ext(Tag.FROZENSET, 1, True), "twice"),
        (ext(Tag.SET, []), "TypeError"),
        (Ext(Tag.SET, encode_tree({"a": 1})), "a dict where a list belongs"),
        (Ext(Tag.TUPLE, encode_tree("ab")), "a str where a list belongs"),
        (ext(Tag.PAIRS, 1, 2, 1, 3), "key twice"),
        (ext(Tag.PAIRS, 1, 2, 3), "ValueError"),
        (ext(Tag.PAIRS, {}, 2), "TypeError"),
        (ext(Tag.SLICE, 1, 2), "ValueError"),
        ({ext(Tag.TUPLE, []) if False else 1: Ext(Tag.TUPLE, b"\x91")}, "truncated"),
        (Ext(Tag.COMPLEX, b"\0" * 15), "error"),
        (Ext(Tag.SURROGATES, b"\xff"), "UnicodeDecodeError"),
        (ext(Tag.DATETIME, 2024, 13, 1, 0, 0, 0, 0, 0, None), "month"),
        (ext(Tag.DATETIME, 2024, 1, 1, 0, 0, 0, 0, 0, "UTC"), "TypeError"),
        (ext(Tag.DATETIME, b"\x07\xe8\x01\x01\xc8\xc8\xc8\0\0\0"), "not enough values"),
        (ext(Tag.DATETIME, b"\x07\xe8\x01\x01\xc8\xc8\xc8\0\0\0", 0, None), "not enough values"),
        (ext(Tag.DATE, b"\x07\xe8\x01\x01"), "not enough values"),
        (ext(Tag.DATE, 2024, "1", 1), "TypeError"),
        (ext(Tag.TIME, b"\xc8\xc8\xc8\0\0\0", 0, None), "not enough values"),
        (ext(Tag.TIME, 25, 0, 0, 0, 0, None), "hour"),
        (ext(Tag.TIMEDELTA, 1 << 62, 0, 0), "OverflowError"),
        (ext(Tag.TIMEDELTA, "1", 0, 0), "TypeError"),
        (ext(Tag.TIMEZONE, 86_400_000_000, None), "ValueError"),
        (ext(Tag.TIMEZONE, 0, 5), "TypeError"),
        (Ext(Tag.ZONE, encode_tree("../../etc/passwd")), "not known here"),
        (Ext(Tag.ZONE, encode_tree("os")), "not known here"),
        (Ext(Tag.ZONE, encode_tree([])), "TypeError"),
        (Ext(Tag.NUMPY_TEXT, b"\xff"), "UnicodeDecodeError"),
        (Ext(Tag.NUMPY_SCALAR, encode_tree(["<f4", b"123"])), "cannot have 3 bytes"),
        (Ext(Tag.NUMPY_SCALAR, encode_tree(["|O8", b"12345678"])), "unknown numpy dtype"),
        (Ext(Tag.NUMPY_SCALAR, encode_tree(["|V0", b""])), "numpy dtype"),
        (b"\xc1", None),
    ],
)  # fmt: skip
def test_contents_that_do_not_fit(tree: Any, says: str | None) -> None:
    if tree == b"\xc1":
        refused(sealed(tree), [], "malformed")
    else:
        forged(tree, [], says)
        forged({"x": [tree]}, [], says)


@pytest.mark.parametrize(
    "dtype",
    [
        "O", "|O", "|O8", "<O8", "object", "i4,O", "i4", "<i3", "<f4,<f4", "(2,)<f4", "f", "float64",
        "<M8[xx]", "<M8[ns", "<V99999999999999", "|V0", "|S0", "", "\0", "<U4\0", "<f4 ", 5, None, [],
        ["<f4"], ["<f4", [-1]], ["<f4", [1 << 62]], ["<f4", ["<i4", "<i4"]], ["<f4", "a"], [["|O8", [1]], [1]],
        {"a": 1}, {"a": 1, "b": 2},
        [8, False, [["a", None, 0, "|O8"]]], [8, False, [["a", None, 8, "<f4"]]],
        [8, False, [["a", None, -4, "<f4"]]], [-8, False, [["a", None, 0, "<f4"]]],
        [1 << 62, False, [["a", None, 0, "<f4"]]], [8, False, [["a", None, 0, "<f4"]] * 2],
        [8, False, [[5, None, 0, "<f4"]]], [8, False, [["a", [], 0, "<f4"]]], [8, False, [[]]],
        [8, False, [["a", None, 0]]], [8, True, [["a", None, 1, "<f4"]]], [0, False, []], [8, False, 5],
        [8, False, [["a", "a", 0, "<f4"]]],
    ],
    ids=repr,
)  # fmt: skip
def test_forged_numpy_dtypes(dtype: Any) -> None:
    forged(ext(Tag.ARRAY, 0, dtype, [2]), [slot(8)])
    forged(Ext(Tag.NUMPY_SCALAR, encode_tree([dtype, b"\0" * 7])))
    nested = dtype
    for _ in range(3000):
        nested = [nested, [1]]
    body = b"\x93\x00" + b"\x92" * 3000 + encode_tree(dtype) + b"\x91\x01" * 3000 + b"\x91\x02"
    refused(sealed(encode_tree(Ext(Tag.ARRAY, body))), [slot(8)])


@pytest.mark.parametrize(
    "shape",
    [[3], [-2], [-1, -2], [1 << 62, 1 << 62], [0, 1 << 62], [2.0], ["2"], [True], 2, None, [1] * 65,
     [2, 0]],
    ids=repr,
)  # fmt: skip
def test_forged_array_shapes(shape: Any) -> None:
    forged(ext(Tag.ARRAY, 0, "<f4", shape), [slot(8)])
    if shape != [2, 0]:
        forged(ext(Tag.ARRAY, 0, "<f4", shape), [slot(0)])
    for index in (-1, 1, "0", 0.0, True, None):
        forged(ext(Tag.ARRAY, index, "<f4", [2]), [slot(8)])


def test_forged_tensors() -> None:
    pytest.importorskip("torch")
    float32, quint8 = 11, DTYPES.index("quint8")
    assert DTYPES[float32] == "float32"
    for code, shape in (
        (float32, [3]), (float32, [1 << 63, 2]), (float32, [1 << 63, 1 << 63]), (float32, [0]),
        (200, [2]), (250, [8]), (quint8, [8]), (float32, [1 << 32, 1 << 32, 0, 5]), (0, [9]),
    ):  # fmt: skip
        body = struct.pack(f"<IB{len(shape)}Q", 0, code, *shape)
        forged(Ext(Tag.TENSOR, body), [slot(8)])
    forged(Ext(Tag.TENSOR, struct.pack("<IB65Q", 0, float32, *[1] * 65)), [slot(4)])
    forged(Ext(Tag.TENSOR, struct.pack("<IB2Q", 0, float32, 0, 1 << 63)), [slot(0)])
    for body in (b"", b"\xff", b"\xc8", b"\0\0"):
        forged(Ext(Tag.TORCH_DTYPE, body))
    for parts in (
        ("cuda", -1),
        ("cuda", 300),
        ("cuda", 1 << 40),
        ("os", None),
        ("cuda:1", 2),
        (5, None),
    ):
        forged(ext(Tag.TORCH_DEVICE, *parts))
    for items in (["a"], [1.5], [None]):
        forged(ext(Tag.TORCH_SIZE, *items))


def test_a_tensor_of_a_dtype_unknown_to_this_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from omni_async.codec import tensors

    encoded = [encode(value) for value in (torch.zeros(2), torch.float32)]
    buffers = [land(one) for one in encoded]
    old = tensors.load_torch()
    code = tensors.DTYPES.index("float32")
    dtypes, forms = list(old.dtypes), list(old.forms)
    dtypes[code] = forms[code] = None
    monkeypatch.setattr(tensors, "load_torch", lambda: old._replace(dtypes=dtypes, forms=forms))
    for one, landed in zip(encoded, buffers, strict=True):
        refused(one.header, landed, "dtype float32, not known to torch here")


# --- memory ---------------------------------------------------------------------------------------

LENGTHS = [
    b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff",
    b"\xc9\xff\xff\xff\xff\x14", b"\xdc\xff\xff", b"\xde\xff\xff",
    b"\xdd\xff\xff\xff\xff" * 100, b"\xdd\x00\xff\xff\xff" + b"\xc0" * 50,
]  # fmt: skip


def test_forged_lengths_allocate_nothing() -> None:
    bodies = [*LENGTHS]
    for tag in (Tag.TUPLE, Tag.SET, Tag.PAIRS, Tag.ARRAY, Tag.IMAGE, Tag.REGISTERED, Tag.DATETIME):
        bodies += [encode_tree(Ext(tag, length)) for length in LENGTHS]
    bodies.append(encode_tree(ext(Tag.ARRAY, 0, "<f4", [1 << 40])))
    bodies.append(encode_tree(ext(Tag.ARRAY, 0, "|V1000000000", [1])))
    bodies.append(encode_tree(ext(Tag.ARRAY, 0, "<f4", [1 << 40, 0])))
    bodies.append(encode_tree(ext(Tag.IMAGE, 0, "L", 1 << 30, 1 << 30, None, {})))
    bodies.append(encode_tree(ext(Tag.IMAGE, 0, "P", 1, 1, ["RGB", 1 << 40], {})))
    bodies.append(encode_tree(Ext(Tag.TENSOR, struct.pack("<IB2Q", 0, 11, 1 << 40, 1))))
    for body in bodies:
        header = sealed(body)
        refused(header, [slot(1)])  # imports what it needs
        buffers = [slot(1)]
        tracemalloc.start()
        try:
            refused(header, buffers)
            assert tracemalloc.get_traced_memory()[1] < 200_000, body[:20]
        finally:
            tracemalloc.stop()


def test_many_small_nodes_stay_in_proportion() -> None:
    header = sealed(b"\xdd" + struct.pack(">I", 100_000) + b"\x90" * 100_000)
    tracemalloc.start()
    try:
        assert len(decode(header, [])) == 100_000
        assert tracemalloc.get_traced_memory()[1] < 80 * len(header)
    finally:
        tracemalloc.stop()
