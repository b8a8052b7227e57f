"""Objects in vLLM-Omni's format: byte for byte as its own serializer writes them, and back."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import decimal
import enum
import tracemalloc
import uuid
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import omni_async.transport  # noqa: F401 - makes buffers known to the codec
from omni_async.codec import decode as decode_ours
from omni_async.errors import DecodeError, EncodeError
from omni_async.interop.vllm_omni import objects
from omni_async.interop.vllm_omni.reading import Moves, read
from omni_async.interop.vllm_omni.writing import write
from omni_async.pool import ManagedBuffer
from tests.codec.landing import same, slot

torch = pytest.importorskip("torch")

if TYPE_CHECKING:
    from .child import Child

SHORT = settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)

TENSOR_DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16,
    torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.float8_e4m3fn,
    torch.float8_e5m2,
]  # fmt: skip


def written(value: Any) -> bytes:
    """The bytes of an object, put together."""
    pieces = write(value)
    joined = bytearray(pieces.nbytes)
    pieces.copy_into(memoryview(joined))
    return bytes(joined)


def landed(data: bytes, *, prefix: bytes = b"", shift: int = 0) -> Any:
    """The bytes where an engine has written them, with room behind them as its receivers leave it."""
    memory = slot(shift + len(data) + 4)[shift:]
    memory[: len(prefix) + len(data)] = np.frombuffer(prefix + data, np.uint8)
    return memory


def back(data: bytes, **options: Any) -> Any:
    return read(landed(data), len(data), **options)


def as_there(value: Any) -> Any:
    """What their format makes of a value."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: as_there(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, dict):
        return {key: as_there(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_there(item) for item in value]
    if isinstance(value, slice):
        return [value.start, value.stop, value.step]
    if isinstance(value, np.ndarray):
        return np.ascontiguousarray(value) if value.ndim else value
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    return value


class Color(enum.Enum):
    RED = "red"
    ONE = 1


class Level(enum.IntEnum):
    LOW = 3


@dataclasses.dataclass
class Point:
    x: int = 1
    _hidden: Any = None
    tensor: Any = None


class Pair(NamedTuple):
    left: Any
    right: Any


class Payload(msgspec.Struct, omit_defaults=True, kw_only=True):
    hidden: Any = None
    count: int = 0
    names: list[str] = []
    table: dict[str, Any] = msgspec.field(default_factory=dict)
    unset: Any = msgspec.UNSET


class Renamed(msgspec.Struct, rename="camel", tag="renamed"):
    my_field: int = 1
    tensor: Any = None


class Row(msgspec.Struct, array_like=True, tag=True):
    a: int = 1
    b: Any = None


def tensor_of(dtype: Any, shape: tuple[int, ...], seed: int) -> Any:
    generator = torch.Generator().manual_seed(seed)
    nbytes = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    raw = torch.randint(0, 2 if dtype is torch.bool else 120, (nbytes,), generator=generator)
    raw = raw.to(torch.uint8)
    return raw.view(dtype).reshape(shape) if nbytes else torch.empty(shape, dtype=dtype)


tensors = st.builds(
    tensor_of,
    st.sampled_from(TENSOR_DTYPES),
    hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=9),
    st.integers(0, 1 << 30),
)
large_tensors = st.builds(
    tensor_of,
    st.sampled_from(TENSOR_DTYPES),
    st.tuples(st.integers(300, 3000), st.integers(1, 7)),
    st.integers(0, 1 << 30),
)
views = st.one_of(
    tensors,
    large_tensors,
    large_tensors.map(lambda tensor: tensor.t()),
    large_tensors.map(lambda tensor: tensor[::2]),
)
arrays = hnp.arrays(
    st.one_of(hnp.scalar_dtypes(), hnp.unicode_string_dtypes(), hnp.byte_string_dtypes()).filter(
        lambda dtype: dtype.itemsize > 0
    ),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5),
)
plain = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 64) - 1),
    st.floats(allow_nan=False),
    st.text(max_size=40),
    st.binary(max_size=40),
)
leaves = st.one_of(
    plain,
    views,
    arrays,
    st.sampled_from([Color.RED, Level.LOW, slice(1, None, 2), Point(), Payload(), b"x" * 9000]),
    st.datetimes(timezones=st.sampled_from([None, dt.timezone.utc])),
    st.dates(),
    st.decimals(allow_nan=False),
    st.uuids(),
)
keys = st.one_of(st.text(max_size=9), st.integers(-9, 9), st.booleans(), st.none())
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(keys, inner, max_size=5),
        st.builds(Point, st.integers(0, 9), inner, inner),
        st.builds(Pair, inner, inner),
        st.builds(Payload, hidden=inner, count=st.integers(0, 1)),
        st.builds(Renamed, st.integers(0, 9), inner),
        st.builds(Row, st.integers(0, 9), inner),
    ),
    max_leaves=12,
)


@SHORT
@given(value=values)
def test_the_bytes_are_those_of_their_serializer(theirs: Child, value: Any) -> None:
    assert written(value) == theirs.call("serialize", value)


@SHORT
@given(value=values, shift=st.integers(0, 64), copy=st.booleans())
def test_what_they_write_is_read(theirs: Child, value: Any, shift: int, copy: bool) -> None:
    data = theirs.call("serialize", value)
    read_there = theirs.call("deserialize", data)
    read_here = read(landed(data, shift=shift), len(data), copy=copy)
    compare(read_here, read_there)


def compare(here: Any, there: Any) -> None:
    """The same types and bits, whatever the alignment."""
    if isinstance(there, dict):
        assert type(here) is dict
        same(list(here), list(there))
        compare(list(here.values()), list(there.values()))
    elif isinstance(there, list):
        assert type(here) is list
        assert len(here) == len(there)
        for mine, other in zip(here, there, strict=True):
            compare(mine, other)
    elif isinstance(there, torch.Tensor):
        assert (here.dtype, here.shape) == (there.dtype, there.shape)
        assert here.is_contiguous()
        assert written(here) == written(there)
    else:
        same(here, there)


REAL: dict[str, Any] = {
    "request_id": "r-1",
    "hidden_states": {
        "output": tensor_of(torch.bfloat16, (400, 2048), 1),
        "layers": {
            0: tensor_of(torch.bfloat16, (30, 2048), 2),
            24: tensor_of(torch.bfloat16, (30, 2048), 3),
        },
    },
    "codes": {"audio": list(range(400)), "ref": tensor_of(torch.int64, (3, 5), 4)},
    "meta": {"finished": torch.tensor(True), "left_context_size": 25, "speaker": None},
    "wave": np.linspace(-1, 1, 48000, dtype=np.float32),
    "raw": b"\0\1" * 5000,
}


def test_a_stages_payload_both_ways(theirs: Child) -> None:
    data = written(REAL)
    assert data == theirs.call("serialize", REAL)
    compare(back(data), as_there(REAL))
    compare(theirs.call("deserialize", data), as_there(REAL))


def test_large_tensors_and_arrays_are_aligned_views() -> None:
    data = written(REAL)
    for shift in range(65):
        memory = landed(data, shift=shift)
        value = read(memory, len(data))
        compare(value, as_there(REAL))
        start = memory.__array_interface__["data"][0]
        views_of = [value["hidden_states"]["output"], *value["hidden_states"]["layers"].values()]
        for tensor in views_of:
            assert tensor.data_ptr() % 64 == 0
            assert start - 64 <= tensor.data_ptr() < start + len(memory)
        assert value["wave"].__array_interface__["data"][0] % 64 == 0
        assert np.shares_memory(value["wave"], memory)
        assert value["wave"].flags.writeable
        assert value["codes"]["ref"].data_ptr() % 64 == 0


def test_a_view_keeps_its_memory() -> None:
    data = written({"t": tensor_of(torch.uint8, (50_000,), 1)})
    tensor = back(data)["t"]
    assert torch.equal(tensor, tensor_of(torch.uint8, (50_000,), 1))


def test_what_was_moved_can_be_undone() -> None:
    data = written(REAL)
    for shift in range(65):
        memory = landed(data, shift=shift)
        before = memory.tobytes()
        for _ in range(2):
            moves = Moves()
            value = read(memory, len(data), moves=moves)
            compare(value, as_there(REAL))
            assert (memory.tobytes() != before) == bool(moves._done)
            del value
            moves.undo()
            assert memory.tobytes() == before


@SHORT
@given(value=values, shift=st.integers(0, 64))
def test_undone_it_can_be_read_again(value: Any, shift: int) -> None:
    data = written(value)
    memory = landed(data, shift=shift)
    before = memory.tobytes()
    moves = Moves()
    first = written(read(memory, len(data), moves=moves))
    moves.undo()
    assert memory.tobytes() == before
    assert written(read(memory, len(data))) == first


def test_copies_are_independent() -> None:
    data = written(REAL)
    memory = landed(data)
    value = read(memory, len(data), copy=True)
    memory[:] = 0
    compare(value, as_there(REAL))
    assert value["hidden_states"]["output"].data_ptr() % 64 == 0


def test_a_byte_in_front(theirs: Child) -> None:
    values_of: list[Any] = [REAL, {"a": 1}, [], "text", 5, None, torch.arange(2000)]
    for value in values_of:
        data = written(value)
        for prefix in (b"\0", b"\x01", b"\xc1", b"\x93", b"\xff"):
            memory = landed(data, prefix=prefix)
            if len(data) == 1:  # then the byte in front is a value of its own
                continue
            compare(read(memory, len(data)), as_there(value))


def test_without_room_behind_it_a_byte_in_front_is_malformed() -> None:
    data = written({"a": [1, 2]})
    memory = np.frombuffer(bytearray(b"\xc1" + data[:-1]), np.uint8)
    with pytest.raises(DecodeError):
        read(memory, len(data))


LOOKALIKES: list[dict[str, Any]] = [
    {"request_id": "r", "prompt": "p", "prompt_token_ids": [1], "outputs": [], "finished": True},
    {"index": 0, "text": "t", "token_ids": [1], "finish_reason": None},
    {"finished": False, "final_output_type": "audio", "images": []},
    {"finished": True, "images": [torch.ones(3000)]},
]


@pytest.mark.parametrize("value", LOOKALIKES)
def test_what_looks_like_their_results_stays_a_dictionary(value: dict[str, Any]) -> None:
    compare(back(written(value)), value)
    compare(back(written({"nested": [value]})), {"nested": [value]})


def test_false_markers_are_ordinary_keys(theirs: Child) -> None:
    for marker in ("__tensor__", "__ndarray__", "__pil_image__"):
        nothings: list[Any] = [False, 0, None, "", []]
        for nothing in nothings:
            value = {marker: nothing, "data": 1}
            assert written(value) == theirs.call("serialize", value)
            compare(back(written(value)), value)


# --- images ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["L", "LA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "LAB", "HSV"])
def test_images(theirs: Child, mode: str) -> None:
    image_module = pytest.importorskip("PIL.Image")
    bands = {"L": 1, "LA": 2, "RGB": 3, "YCbCr": 3, "LAB": 3, "HSV": 3}.get(mode, 4)
    for size in ((5, 3), (61, 47)):
        pixels = bytes(i % 251 for i in range(size[0] * size[1] * bands))
        image = image_module.frombytes(mode, size, pixels)
        for value in (image, {"a": [image, 1]}):
            data = written(value)
            assert data == theirs.call("serialize", value)
            received = back(data)
            if value is not image:
                received = received["a"][0]
            assert (received.mode, received.size) == (mode, size)
            assert received.tobytes() == pixels


@pytest.mark.parametrize("mode", ["1", "I", "F", "I;16", "P", "PA"])
def test_images_that_would_arrive_as_others(mode: str) -> None:
    image_module = pytest.importorskip("PIL.Image")
    with pytest.raises(EncodeError, match=r"value\['im'\]\[0\].*convert"):
        write({"im": [image_module.new(mode, (4, 4))]})


# --- what cannot be said --------------------------------------------------------------------------


class Foreign:
    pass


NESTED: list[Any] = []
NESTED.append(NESTED)
DEEP: Any = 1
for _ in range(101):
    DEEP = [DEEP]

UNSENDABLE: list[tuple[Any, str]] = [
    ({"a": [Foreign()]}, r"value\['a'\]\[0\]: object of type Foreign .*dictionary"),
    ({"a": 1 << 64}, r"value\['a'\]"),
    ([-(1 << 63) - 1], r"value\[0\]"),
    ({"a": 1j}, r"value\['a'\].*real and imag"),
    ({"a": "\ud800"}, r"value\['a'\]"),
    ({"\ud800": 1}, r"value\[.*a key"),
    ({"a": np.float32(1)}, r"value\['a'\].*item\(\)"),
    ({np.int64(1): 1}, r"value\[.*a key"),
    ({1 << 70: 1}, r"value\[.*a key"),
    ({"a": {"__tensor__": True}}, r"value\['a'\]: .*'__tensor__'.*rename"),
    ({"a": {"__ndarray__": 1, "x": torch.ones(2)}}, r"value\['a'\]: .*rename"),
    (np.array([object()]), "value: a numpy array of dtype object"),
    (np.zeros(2, [("a", "i4")]), "value: a numpy array of dtype"),
    ({"a": torch.ones(2).to_sparse()}, r"value\['a'\].*to_dense"),
    ({"a": torch.empty(2, device="meta")}, r"value\['a'\].*meta"),
    (NESTED, r"value\[0\]: contains itself|contains itself"),
    (DEEP, "nested deeper than 100"),
    ({"a": Point(tensor=Foreign())}, r"value\['a'\]\.tensor: object of type Foreign"),
    ({"a": Payload(hidden=[Foreign()])}, r"value\['a'\]\.hidden\[0\]: object of type Foreign"),
    ({"a": memoryview(b"abcdef")[::2]}, r"value\['a'\]: bytes that do not lie"),
    ({"a": len}, r"value\['a'\]: object of type builtin"),
    ({"a": type("Name", (str,), {})("x")}, r"value\['a'\].*plain str"),
]


@pytest.mark.parametrize(("value", "text"), UNSENDABLE)
def test_what_their_format_cannot_hold(value: Any, text: str) -> None:
    with pytest.raises(EncodeError, match=text) as caught:
        write(value)
    assert caught.value.path is not None
    assert caught.value.path.startswith("value")


def test_tensors_that_need_work_first(theirs: Child) -> None:
    base = torch.arange(6000, dtype=torch.float32)
    parameter = torch.nn.Parameter(base.clone())
    assert written({"p": parameter}) == theirs.call("serialize", {"p": base})
    conjugated = torch.complex(base, base).conj()
    assert written({"c": conjugated}) == theirs.call("serialize", {"c": conjugated.resolve_conj()})
    assert written({"n": conjugated.imag}) == theirs.call(
        "serialize", {"n": conjugated.imag.resolve_neg()}
    )
    assert written({"e": torch.ones(1).expand(9000)}) == theirs.call(
        "serialize", {"e": torch.ones(9000)}
    )


# --- payloads: raw or an object -------------------------------------------------------------------


@pytest.mark.parametrize(
    "value", [b"bytes", torch.ones(3), ManagedBuffer(np.ones(5, np.uint8)), torch.ones(9, 9).t()]
)
def test_raw_payloads_stay_readable_to_ours(value: Any) -> None:
    encoded = objects.encode(value)
    assert encoded.fast
    assert encoded.nbytes == encoded.frames[0].nbytes
    assert objects.is_raw(encoded.header)


@pytest.mark.parametrize(
    "value", [{}, None, 5, [], "t", bytearray(b"x"), np.ones(3), {"t": torch.ones(3)}]
)
def test_the_rest_is_an_object(value: Any) -> None:
    encoded = objects.encode(value)
    assert not encoded.fast
    assert encoded.nbytes == len(written(value))
    with pytest.raises(DecodeError, match="peer: vllm-omni at this end") as caught:
        decode_ours(encoded.header, [slot(encoded.nbytes)])
    assert caught.value.missing  # it stays on offer


@pytest.mark.parametrize(
    "value", [b"", torch.empty(0), torch.empty(3, 0), ManagedBuffer(np.empty(0, np.uint8))]
)
def test_nothing_at_all_is_refused(value: Any) -> None:
    with pytest.raises(EncodeError, match="inside a dictionary") as caught:
        objects.encode(value)
    assert caught.value.path == "value"


def test_arrays_and_bytearrays_of_our_wire_are_objects_there() -> None:
    from omni_async.codec import encode as encode_ours

    for value in (np.ones(3), bytearray(b"x" * 9), np.ones((3, 3)).T):
        encoded = encode_ours(value)
        assert encoded.fast
        assert not objects.is_raw(encoded.header)


# --- malformed bytes ------------------------------------------------------------------------------

SMALL: dict[str, Any] = {
    "t": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3),
    "n": np.arange(3),
    "l": [1, "a", None, {"x": 2.5}],
}
LARGE: dict[str, Any] = {
    "t": tensor_of(torch.float32, (3000,), 1),
    "n": np.arange(2000),
    "l": [b"x" * 5000, {"i": 1}],
}


def refused(data: bytes, match: str | None = None) -> None:
    with pytest.raises(DecodeError, match=match):
        back(data)


def test_every_truncation() -> None:
    for value in (SMALL, LARGE):
        data = written(value)
        step = 1 if value is SMALL else 97
        for end in range(0, len(data), step):
            with pytest.raises(DecodeError):
                read(landed(data[:end], prefix=b""), end)


def test_every_flipped_bit_is_a_value_or_refused() -> None:
    data = written(SMALL)
    for at in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[at] ^= 1 << bit
            with contextlib.suppress(DecodeError):
                back(bytes(damaged))


@SHORT
@given(data=st.binary(max_size=300))
def test_noise_is_a_value_or_refused(data: bytes) -> None:
    with contextlib.suppress(DecodeError):
        back(data)


def marked(marker: str, **parts: Any) -> bytes:
    return msgspec.msgpack.encode({marker: True, **parts})


FORGED: list[tuple[bytes, str]] = [
    (marked("__tensor__"), "malformed"),
    (marked("__tensor__", dtype="float32", shape=[2]), "malformed"),
    (marked("__tensor__", dtype="float32", shape=[2], data=b"1234"), "4 bytes for what takes 8"),
    (marked("__tensor__", dtype="float32", shape=[1 << 40], data=b""), "0 bytes for what takes"),
    (marked("__tensor__", dtype="float32", shape=[-1], data=b"1234"), "shape"),
    (marked("__tensor__", dtype="float32", shape=[True], data=b"1234"), "shape"),
    (marked("__tensor__", dtype="float32", shape=[1.0], data=b"1234"), "shape"),
    (marked("__tensor__", dtype="float32", shape=4, data=b"1234"), "shape"),
    (marked("__tensor__", dtype="float32", shape=[1] * 65, data=b"1234"), "shape"),
    (marked("__tensor__", dtype="float32", shape=[1], data="1234"), "no bytes|malformed"),
    (marked("__tensor__", dtype="float32", shape=[1], data=[1]), "no bytes|malformed"),
    (marked("__tensor__", dtype="Tensor", shape=[1], data=b"1234"), "unknown dtype"),
    (marked("__tensor__", dtype="__doc__", shape=[1], data=b"1234"), "unknown dtype"),
    (marked("__tensor__", dtype="load", shape=[1], data=b"1234"), "unknown dtype"),
    (marked("__tensor__", dtype="quint8", shape=[1], data=b"1"), "unknown dtype"),
    (marked("__tensor__", dtype=["float32"], shape=[1], data=b"1234"), "unknown dtype"),
    (marked("__tensor__", dtype=None, shape=[1], data=b"1234"), "unknown dtype"),
    (marked("__ndarray__", dtype="O", shape=[1], data=b"12345678"), "dtype"),
    (marked("__ndarray__", dtype="|O", shape=[1], data=b"12345678"), "dtype"),
    (marked("__ndarray__", dtype="V4", shape=[1], data=b"1234"), "dtype"),
    (marked("__ndarray__", dtype="|V4", shape=[1], data=b"1234"), "dtype"),
    (marked("__ndarray__", dtype="i4,O", shape=[1], data=b"123456789012"), "dtype"),
    (marked("__ndarray__", dtype="<U0", shape=[9], data=b""), "dtype"),
    (marked("__ndarray__", dtype=["<i4", [2]], shape=[1], data=b"12345678"), "dtype"),
    (marked("__ndarray__", dtype="<i4", shape=[2], data=b"1234"), "4 bytes for what takes 8"),
    (marked("__ndarray__", dtype="<i4", shape=[1 << 62], data=b""), "0 bytes"),
    (marked("__pil_image__", mode="RGB", shape=[2, 2, 4], data=b"x" * 16), "image"),
    (marked("__pil_image__", mode="RGB", shape=[2, 2], data=b"x" * 4), "image"),
    (marked("__pil_image__", mode="RGB", shape=[2, 2, 3], data=b"x" * 11), "image"),
    (marked("__pil_image__", mode="RGB", shape=[1 << 30, 0, 3], data=b""), "image"),
    (marked("__pil_image__", mode="1", shape=[2, 2], data=b"1234"), "unknown mode"),
    (marked("__pil_image__", mode=3, shape=[2, 2], data=b"1234"), "unknown mode"),
    (b"\xdd\xff\xff\xff\xff", "malformed"),
    (b"\xdf\xff\xff\xff\xff", "malformed"),
    (b"\xc6\xff\xff\xff\xff", "malformed"),
    (b"\x91" * 200 + b"\xc0", "nested deeper"),
    (b"\x91" * 100_000 + b"\xc0", "nested"),
    (b"\x81\xa1a" * 200 + b"\xc0", "nested deeper"),
    (b"\xc0\xc0", "trailing"),
    (b"\x81\xa1\xff\xc0", "malformed"),
    (b"\xc1", "malformed"),
    (b"", "malformed"),
    (b"\xd4\x05a", "unknown extension"),
    (b"\x81\x81\x01\x02\x03", "malformed"),
]


@pytest.mark.parametrize(("data", "text"), FORGED)
@pytest.mark.parametrize("large", [False, True])
def test_forged(data: bytes, text: str, large: bool) -> None:
    pytest.importorskip("PIL")
    refused(data, text)
    if large and len(data) > 5 and data[0] >> 4 == 8:  # so that it is read where it lies
        pad = msgspec.msgpack.encode("pad") + msgspec.msgpack.encode("x" * 9000)
        refused(bytes([data[0] + 1]) + pad + data[1:])


def test_a_key_twice_in_a_large_map() -> None:
    part = msgspec.msgpack.encode("a") + msgspec.msgpack.encode(b"x" * 5000)
    refused(b"\x82" + part + part, "same key twice")


def test_markers_in_any_order() -> None:
    raw = bytes(range(200)) * 40
    for order in (
        ["data", "shape", "dtype", "__tensor__"],
        ["dtype", "data", "__tensor__", "shape"],
    ):
        parts = {"__tensor__": True, "dtype": "int16", "shape": [4000], "data": raw}
        data = msgspec.msgpack.encode(
            {"first": b"y" * 5000, "t": {k: parts[k] for k in order}, "z": "end"}
        )
        value = back(data)
        assert value["t"].numpy().tobytes() == raw
        assert value["first"] == b"y" * 5000
        assert value["z"] == "end"


def test_tensors_back_to_back_are_never_mixed_up() -> None:
    tensors_of = [tensor_of(torch.uint8, (5000 + i,), i) for i in range(40)]
    for value in (tensors_of, dict(enumerate(tensors_of))):
        received = back(written(value))
        received = received.values() if isinstance(received, dict) else received
        for sent, got in zip(tensors_of, received, strict=True):
            assert torch.equal(sent, got)


def test_a_forged_length_costs_no_memory() -> None:
    tracemalloc.start()
    try:
        for data, _ in FORGED:
            with contextlib.suppress(DecodeError):
                back(data)
        assert tracemalloc.get_traced_memory()[1] < 40 << 20
    finally:
        tracemalloc.stop()


def test_their_bytes_of_odd_things(theirs: Child) -> None:
    odd: list[Any] = [
        {"when": dt.datetime(2024, 5, 6, 7, 8, 9, 10, tzinfo=dt.timezone.utc)},
        decimal.Decimal("1.50"),
        uuid.UUID(int=7),
        dt.timedelta(days=1, seconds=5),
        {Level.LOW: Color.ONE},
        {(1, (2, "x")): 3},
        {"s": {1}, "f": frozenset(["a"])},
        Row(),
        Renamed(),
        Payload(table={"a": 1}, names=["x"]),
        Pair(1, torch.ones(2)),
        torch.Size([1, 2]),
        list(range(70_000)),
        dict.fromkeys(range(70000)),
        [[]] * 20,
        b"x" * 70_000,
    ]
    for value in odd:
        data = written(value)
        assert data == theirs.call("serialize", value)
        compare(back(data), theirs.call("deserialize", data))
