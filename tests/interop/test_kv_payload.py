"""vLLM-Omni's packed KV caches: as its own code packs and reads them, and what is refused."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")

# ruff: noqa: E402 - what follows needs PyTorch
import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from omni_async.codec.tensors import load_torch
from omni_async.errors import DecodeError, EncodeError, ProtocolError
from omni_async.interop.vllm_omni.kv_payload import (
    DTYPES,
    HEADER_LIMIT,
    LAYER_LIMIT,
    KVPayload,
    TensorSpec,
    check_whole,
    pack,
    plan_packing,
)
from omni_async.interop.vllm_omni.kv_reading import (
    _bytes_there,
    _unpack,
    from_object,
    unpack,
    unpack_landed,
)
from omni_async.interop.vllm_omni.writing import write
from tests.kv.paged_samples import same

if TYPE_CHECKING:
    from .child import Child

FAST = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


def tensor(dtype: str, shape: tuple[int, ...], seed: int = 0) -> Any:
    kind = getattr(torch, dtype)
    generator = torch.Generator().manual_seed(seed)
    top = 2 if dtype == "bool" else 256
    raw = torch.randint(
        0, top, (*shape[:-1], shape[-1] * kind.itemsize), dtype=torch.uint8, generator=generator
    )
    return raw.view(kind)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


@st.composite
def payloads(draw: st.DrawFn) -> KVPayload:
    layers = draw(st.integers(1, 4))
    tokens = draw(st.integers(1, 9))
    names = st.sampled_from(DTYPES)

    def caches(seed: int) -> list[Any]:
        return [
            None
            if draw(st.integers(0, 5)) == 0
            else tensor(
                draw(names), (tokens, draw(st.integers(1, 3)), draw(st.integers(1, 9))), seed + i
            )
            for i in range(layers)
        ]

    text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
    return KVPayload(
        draw(text),
        caches(0),
        caches(100),
        draw(st.lists(st.integers(0, 1 << 31), max_size=5)),
        draw(st.dictionaries(text, JSON, max_size=4)),
    )


def equal(one: KVPayload, other: Any) -> bool:
    rid, keys, values, bids, meta = other
    return (
        (one.request_id, one.block_ids, one.metadata) == (rid, bids, meta)
        and same(one.keys, keys)
        and same(one.values, values)
    )


# --- with their own code --------------------------------------------------------------------------


@FAST
@given(payload=payloads())
def test_packed_without_gaps_it_is_theirs_byte_for_byte(
    their_kv: Child, payload: KVPayload
) -> None:
    assert pack(payload, alignment=1) == their_kv.call("to_bytes", *payload)


@FAST
@given(payload=payloads())
def test_packed_with_gaps_it_is_read_there(their_kv: Child, payload: KVPayload) -> None:
    packed = bytes(pack(payload))
    assert equal(payload, their_kv.call("from_bytes", packed))
    assert equal(payload, their_kv.call("from_tensor", packed))


@pytest.mark.parametrize("heads", [1, 2, 4])
def test_where_nothing_needs_a_gap_both_are_the_same(their_kv: Child, heads: int) -> None:
    """Sizes that are multiples of the alignment, behind a header that ends on it."""
    keys, values = ([tensor("bfloat16", (16, heads, 64), seed)] * 3 for seed in (0, 1))
    for spare in range(64):
        payload = KVPayload("r" * (1 + spare), keys, values, [1], {})
        by_them = their_kv.call("to_bytes", *payload)
        if (len(by_them) - 6 * keys[0].nbytes) % 64 == 0:
            assert pack(payload) == by_them
            return
    pytest.fail("no header ended on 64 bytes")


@FAST
@given(payload=payloads(), shift=st.integers(0, 17))
def test_what_they_packed_is_read_here_wherever_it_lies(
    their_kv: Child, payload: KVPayload, shift: int
) -> None:
    raw = their_kv.call("to_bytes", *payload)
    landed = torch.zeros(shift + len(raw), dtype=torch.uint8)
    landed[shift:] = torch.frombuffer(bytearray(raw), dtype=torch.uint8)
    found = unpack(landed[shift:])
    assert equal(payload, found)
    for read in (*found.keys, *found.values):
        if read is not None:
            assert read.data_ptr() % read.element_size() == 0
    assert equal(payload, unpack(raw))
    assert equal(payload, unpack(memoryview(bytearray(raw))))


def test_the_object_that_they_send_where_packing_fails(their_kv: Child) -> None:
    payload = KVPayload("r", [tensor("float32", (3, 1, 4)), None], [None, None], [5], {"a": [1]})
    assert equal(payload, from_object(their_kv.call("to_dict", *payload)))


@FAST
@given(payload=payloads())
def test_objects_that_hold_it(payload: KVPayload) -> None:
    """As it lands at a store, and in named shared memory: bytes, a tensor, or a tree."""
    packed = pack(payload, alignment=1)
    tree = {"request_id": payload.request_id, "layer_blocks": payload.layer_blocks,
            "block_ids": payload.block_ids, "metadata": payload.metadata}  # fmt: skip
    flat = torch.frombuffer(packed, dtype=torch.uint8)
    for value in (bytes(packed), bytes(packed) + b" " * 70_000, flat, tree):
        pieces = write(value)
        landed = np.zeros(pieces.nbytes, np.uint8)
        pieces.copy_into(landed.data)
        assert equal(payload, unpack_landed(landed))
    assert equal(payload, unpack_landed(np.frombuffer(packed, np.uint8)))


@pytest.mark.parametrize("data", [b"", b"\xc4\x05abc", b"\xc4", b"\xc0", b"\x93\1\2\3", b"\xde"])
def test_objects_that_hold_none(data: bytes) -> None:
    with pytest.raises(DecodeError):
        unpack_landed(np.frombuffer(bytearray(data), np.uint8))


@FAST
@given(payload=payloads(), alignment=st.sampled_from([1, 64]))
def test_on_a_device_it_is_read_by_its_header_alone(payload: KVPayload, alignment: int) -> None:
    """With memory of the host in the device's place."""
    packed = torch.frombuffer(pack(payload, alignment=alignment), dtype=torch.uint8)
    found = _unpack(load_torch(), packed, _bytes_there)
    assert equal(payload, found)


# --- what is aligned is not copied ----------------------------------------------------------------


@FAST
@given(payload=payloads())
def test_each_tensor_begins_on_a_boundary_and_is_a_view(payload: KVPayload) -> None:
    packed = pack(payload)
    spare = torch.zeros(len(packed) + 64, dtype=torch.uint8)
    skip = -spare.data_ptr() % 64
    landed = spare[skip : skip + len(packed)]
    landed[:] = torch.frombuffer(packed, dtype=torch.uint8)
    first, end = landed.data_ptr(), landed.data_ptr() + len(packed)
    found = unpack(landed)
    for read in (*found.keys, *found.values):
        if read is not None:
            assert read.data_ptr() % 64 == 0
            assert first <= read.data_ptr() < end


def test_the_plan_is_what_is_packed() -> None:
    keys = [tensor("float16", (5, 2, 3)), None]
    values = [tensor("float16", (5, 2, 7), 1), None]
    specs: list[list[Any]] = [[TensorSpec("float16", (5, 2, size)), None] for size in (3, 7)]
    plan = plan_packing("r", specs[0], specs[1], [1], {"a": 1})
    packed = pack(KVPayload("r", keys, values, [1], {"a": 1}))
    assert (bytes(packed[: len(plan.head)]), len(packed)) == (plan.head, plan.nbytes)
    assert [(part.cache, part.layer) for part in plan.parts] == [
        ("key_cache", 0),
        ("value_cache", 0),
    ]
    for part, wanted in zip(plan.parts, (keys[0], values[0]), strict=True):
        there = packed[part.offset : part.offset + part.nbytes]
        assert bytes(there) == wanted.view(torch.uint8).numpy().tobytes()


# --- what cannot be packed ------------------------------------------------------------------------

ONE = [TensorSpec("float16", (1, 1, 1))]


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        (lambda: plan_packing("r", ONE, [], [], {}), "1 layers of keys and 0 of values"),
        (lambda: plan_packing("r", ONE * 4097, ONE * 4097, [], {}), "4097 layers"),
        (lambda: plan_packing("r", [TensorSpec("uint16", (1,))], ONE, [], {}), "dtype uint16"),
        (lambda: plan_packing("r", [TensorSpec("float16", (0, 2))], ONE, [], {}), "not a single"),
        (lambda: plan_packing("r", ONE, ONE, [], {"a": object()}), "not JSON"),
        (lambda: plan_packing("r", ONE, ONE, [], {"a": float("nan")}), "not JSON"),
        (lambda: plan_packing("r", ONE, ONE, [], {"a": "x" * HEADER_LIMIT}), "the limit"),
    ],
)
def test_what_cannot_be_packed(plan: Callable[[], Any], why: str) -> None:
    with pytest.raises(EncodeError, match=why):
        plan()


# --- what cannot be read --------------------------------------------------------------------------


def header(**parts: Any) -> dict[str, Any]:
    good = {"n": "key_cache_0", "i": 0, "d": "float32", "s": [2, 1, 4], "o": 0, "b": 32}
    return {"rid": "r", "bids": [], "meta": {}, "td": [good], "nl": 1, **parts}


def told(**parts: Any) -> dict[str, Any]:
    first = header()["td"][0]
    return header(td=[{**first, **parts}])


def raw(head: Any, data: bytes = bytes(64), length: int | None = None) -> bytes:
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    return struct.pack(">I", len(text) if length is None else length) + text + data


LONG = {"n": "value_cache_0", "d": "float32", "s": [1, 1, 4], "o": 32, "b": 16}

BROKEN: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "no header"),
    "three bytes": (b"\0\0\0", "no header"),
    "a header longer than all": (raw(header(), length=10_000), "of a header of 10,000"),
    "a header of four GB": (raw(header(), length=(1 << 32) - 1), "of a header of 4,294,967,295"),
    "no JSON": (raw(b"{"), "malformed header"),
    "another JSON": (raw(b"[]"), "malformed header"),
    "deep JSON": (raw(b'{"meta":' + b"[" * 100_000), "malformed header"),
    "something behind the header": (raw(json.dumps(header()).encode() + b" x"), "malformed header"),
    "no UTF-8": (raw(b'{"rid":"\xff"}'), "malformed header"),
    "no layers told": (raw({"rid": "r", "bids": [], "meta": {}, "td": []}), "`nl`"),
    "metadata that are none": (raw(header(meta=[])), "meta"),
    "layers below zero": (raw(header(nl=-1)), "-1 layers"),
    "layers without end": (raw(header(nl=1 << 60)), "layers"),
    "more layers than there may be": (raw(header(nl=LAYER_LIMIT + 1)), "layers"),
    "a layer that is not there": (raw(told(i=1)), "layer 1 of 1"),
    "a layer below zero": (raw(told(i=-1)), "layer -1"),
    "a layer that is no number": (raw(told(i="0")), "malformed header"),
    "a layer that is true": (raw(told(i=True)), "malformed header"),
    "a name of no cache": (raw(told(n="other_0")), "called 'other_0'"),
    "a name of no layer": (raw(told(n="key_cache_x", i=None)), "of no layer"),
    "a name with a sign": (raw(told(n="key_cache_-1", i=None)), "of no layer"),
    "a dtype that is none": (raw(told(d="object")), "unknown dtype"),
    "a dtype out of torch": (raw(told(d="Tensor")), "unknown dtype"),
    "an offset below zero": (raw(told(o=-32)), "32 bytes at -32"),
    "a length below zero": (raw(told(b=-1)), "-1 bytes at 0"),
    "an offset beyond": (raw(told(o=64)), "up to byte 96 of 64"),
    "an offset beyond all": (raw(told(o=1 << 62)), "bytes at"),
    "a length beyond": (raw(told(b=65)), "up to byte 65 of 64"),
    "an offset that is no number": (raw(told(o=0.5)), "malformed header"),
    "a shape of more bytes": (raw(told(s=[3, 1, 4])), "32 bytes for float32"),
    "a shape of fewer bytes": (raw(told(s=[1, 1, 4])), "32 bytes for float32"),
    "a shape below zero": (raw(told(s=[-2, -1, 4])), "of shape"),
    "a shape without end": (raw(told(s=[1 << 62, 4])), "of shape"),
    "a shape of many sizes": (raw(told(s=[1] * 65)), "of shape"),
    "a shape that is none": (raw(told(s=4)), "malformed header"),
    "a layer twice": (raw(header(td=header()["td"] * 2)), "key_cache_0 twice"),
    "bytes that are two tensors'": (raw(header(td=[*header()["td"], {**LONG, "o": 31}])), "same bytes"),
    "a tensor of which nothing is told": (raw(header(td=[{"n": "key_cache_0"}])), "unknown dtype"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_what_cannot_be_read(name: str) -> None:
    data, why = BROKEN[name]
    with pytest.raises(DecodeError, match=why):
        unpack(data)


def test_a_good_one_is_read() -> None:
    """So that the broken ones are broken in one place only."""
    found = unpack(raw(header(td=[*header()["td"], LONG])))
    assert found.keys[0] is not None
    assert found.values[0] is not None
    assert (tuple(found.keys[0].shape), tuple(found.values[0].shape)) == ((2, 1, 4), (1, 1, 4))
    assert unpack(raw(told(n="key_cache_", i=0))).keys[0] is not None  # the number is told


@pytest.mark.parametrize(
    "data", [torch.zeros(8), torch.zeros(2, 8, dtype=torch.uint8), 5, None, ["a"]]
)
def test_what_are_no_bytes(data: Any) -> None:
    with pytest.raises(DecodeError, match="flat bytes"):
        unpack(data)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_spoilt_bytes_are_refused_or_read(data: st.DataObject) -> None:
    good = bytearray(
        pack(
            KVPayload(
                "r",
                [tensor("float16", (3, 2, 4)), None],
                [tensor("bool", (3, 2, 4)), None],
                [1],
                {},
            ),
            alignment=data.draw(st.sampled_from([1, 64])),
        )
    )
    for _ in range(data.draw(st.integers(1, 4))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    cut = good[: data.draw(st.integers(0, len(good)))] if data.draw(st.booleans()) else good
    try:
        found = unpack(cut)
    except DecodeError:
        return
    for read in (*found.keys, *found.values):
        if read is not None:
            read.sum()


@pytest.mark.parametrize(
    "value",
    [
        None,
        {},
        {"request_id": "r", "layer_blocks": {}, "block_ids": [], "metadata": None},
        {"request_id": "r", "layer_blocks": {"key_cache": [1], "value_cache": [None]},
         "block_ids": [], "metadata": {}},
        {"request_id": "r", "layer_blocks": {"key_cache": [None], "value_cache": []},
         "block_ids": [], "metadata": {}},
    ],
)  # fmt: skip
def test_objects_that_are_no_cache(value: Any) -> None:
    with pytest.raises(DecodeError):
        from_object(value)


# --- whether a cache is whole ---------------------------------------------------------------------


def whole(**parts: Any) -> KVPayload:
    meta = {"block_size": 4, "num_layers": 2, "dtype": "auto", "seq_len": 6}
    pair = [tensor("float16", (6, 2, 4)) for _ in range(2)]
    return KVPayload("r", pair, pair, [3, 4], meta)._replace(**parts)


def test_a_whole_cache_is_whole() -> None:
    check_whole(whole())
    check_whole(whole(metadata={}))  # as an older sender's
    check_whole(
        whole(keys=[None, whole().keys[1]], values=[None, whole().keys[1]]), absent_layers={0}
    )


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ({"keys": [], "values": [], "metadata": {}}, "no layers"),
        ({"metadata": {"num_layers": 3}}, "2 layers, its metadata say 3"),
        ({"metadata": {"seq_len": 7}}, "6 tokens in key_cache_0, not 7"),
        ({"metadata": {"seq_len": "6"}}, "6 tokens in key_cache_0, not '6'"),
        ({"metadata": {"seq_len": 6, "block_size": 2}}, "6 tokens in blocks for 4"),
        ({"keys": [None, tensor("float16", (6, 2, 4))]}, "no key_cache_0"),
        ({"values": [tensor("float16", (6, 2, 4)), None]}, "no value_cache_1"),
        ({"values": [tensor("float16", (6, 2, 4)), tensor("float16", (5, 2, 4))]}, "5 tokens in value_cache_1"),
        ({"keys": [torch.zeros(6)] * 2}, "of shape"),
    ],
)  # fmt: skip
def test_a_cache_in_part_is_refused(parts: Any, why: str) -> None:
    with pytest.raises(ProtocolError, match=why):
        check_whole(whole(**parts))


def test_a_layer_that_may_be_absent_is_so_altogether() -> None:
    with pytest.raises(ProtocolError, match="no key_cache_0"):
        check_whole(whole(keys=[None, whole().keys[1]]), absent_layers={0})
