"""Depth, cycles, counts and sizes: refused where they are put, and where they arrive."""

from __future__ import annotations

import datetime as dt
import sys
import threading
from typing import Any

import numpy as np
import pytest

from omni_async.codec import decode, encode, limits
from omni_async.codec.wire import Ext, Tag, encode_tree
from omni_async.errors import DecodeError, EncodeError, OmniAsyncError

from .classes import Foreign, Point
from .landing import same, sealed, trip


def nested(levels: int, wrap: Any, core: Any = None) -> Any:
    value = core
    for _ in range(levels):
        value = wrap(value)
    return value


WRAPS: dict[str, Any] = {
    "list": lambda value: [value],
    "tuple": lambda value: (value,),
    "dict": lambda value: {"k": value},
    "pairs": lambda value: {(1,): value},
    "set": lambda value: frozenset([value]),
    "slice": lambda value: slice(value),
    "registered": lambda value: Point(1, value),
}


@pytest.mark.parametrize("kind", WRAPS)
def test_the_deepest_value_passes_and_a_deeper_one_does_not(kind: str) -> None:
    core = dt.datetime(2024, 1, 1, tzinfo=dt.timezone(dt.timedelta(0, 60)))
    deepest = nested(limits.DEPTH_LIMIT - 1, WRAPS[kind], core)
    assert repr(trip(deepest)) == repr(deepest)
    for levels in (limits.DEPTH_LIMIT + 1, 300):
        with pytest.raises(
            EncodeError, match=r"^value.*: is nested deeper than 100 levels$"
        ) as info:
            encode(nested(levels, WRAPS[kind], (1,)))
        assert info.value.path is not None
        assert info.value.path.startswith("value")
        assert len(str(info.value)) < 400


@pytest.mark.parametrize("tag", [Tag.TUPLE, Tag.FROZENSET, Tag.PAIRS, Tag.SLICE])
def test_a_forged_depth_is_one_decode_error(tag: int) -> None:
    for levels in (105, 3000):
        body = b"\xc0"
        for _ in range(levels):
            inside = [1, 2, body] if tag == Tag.SLICE else [1, body] if tag == Tag.PAIRS else [body]
            packed = b"".join(encode_tree(part) if part is not body else body for part in inside)
            body = encode_tree(Ext(tag, bytes([0x90 + len(inside)]) + packed))
        with pytest.raises(DecodeError, match="nested deeper than 100 levels"):
            decode(sealed(body), [])


@pytest.mark.parametrize("prefix", [b"\x91", b"\x81\xa1k", b"\x81\xc0", b"\x92\xc0"])
def test_a_forged_depth_of_plain_containers_is_one_decode_error(prefix: bytes) -> None:
    for levels in (10_000, 1_000_000):
        with pytest.raises(DecodeError, match="nested too deeply"):
            decode(sealed(prefix * levels + b"\xc0"), [])


def test_a_cycle_is_named_where_it_closes() -> None:
    loop: dict[str, Any] = {"meta": [1, {}]}
    loop["meta"][1]["back"] = loop
    with pytest.raises(
        EncodeError, match=r"^value\['meta'\]\[1\]\['back'\]: contains itself"
    ) as info:
        encode(loop)
    assert info.value.path == "value['meta'][1]['back']"

    items: list[Any] = [0]
    items.append((items,))
    with pytest.raises(EncodeError, match=r"^value\['x'\]\[1\]\[0\]: contains itself"):
        encode({"x": items})

    point = Point(1)
    point.y = {"p": point}
    with pytest.raises(EncodeError, match=r"^value\.y\['p'\]: contains itself"):
        encode(point)

    foreign = Foreign(1)
    foreign.parts = [foreign]
    with pytest.raises(EncodeError, match=r"^value\.encode\(\)\['parts'\]\[0\]: contains itself"):
        encode(foreign)


def test_long_paths_are_shown_short_and_kept_whole() -> None:
    value = nested(40, lambda inner: {"some longer key of a dictionary": inner}, object())
    with pytest.raises(EncodeError) as info:
        encode(value)
    assert info.value.path == "value" + "['some longer key of a dictionary']" * 40
    assert len(str(info.value)) < 400

    class Odd:
        def __repr__(self) -> str:
            raise RuntimeError("no repr")

    with pytest.raises(EncodeError, match="key <Odd instance at"):
        encode({Odd(): 1})
    with pytest.raises(EncodeError) as info:
        encode({"x" * 100_000: object()})
    assert len(str(info.value)) < 400


def at_depth(levels: int, call: Any) -> Any:
    return call() if levels == 0 else at_depth(levels - 1, call)


def in_thread(call: Any) -> list[Any]:
    """Run with a stack of its own; return what it raised or returned."""
    outcome: list[Any] = []

    def work() -> None:
        try:
            outcome.append(call())
        except OmniAsyncError as error:
            outcome.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return outcome


def test_near_the_recursion_limit_the_error_still_is_ours() -> None:
    room = sys.getrecursionlimit() - 60
    for kind in ("tuple", "dict", "registered"):
        value = nested(90, WRAPS[kind], (1,))
        encoded = encode(value)
        (outcome,) = in_thread(lambda value=value: at_depth(room, lambda: encode(value)))
        assert isinstance(outcome, EncodeError)
        if kind != "dict":
            header = encoded.header
            (outcome,) = in_thread(lambda header=header: at_depth(room, lambda: decode(header, [])))
            assert isinstance(outcome, DecodeError)


def test_a_dict_changed_under_the_walk_is_an_encode_error() -> None:
    victim: dict[str, Any] = {"a": 1}
    victim["b"] = Foreign(1)

    def grow(foreign: Foreign) -> int:
        victim["c"] = 2
        return 1

    from omni_async.codec import register_type

    register_type(Foreign, name="tests.foreign", encode=grow, decode=Foreign)
    try:
        with pytest.raises(EncodeError, match="value: changed while it was encoded"):
            encode(victim)
    finally:
        register_type(Foreign, name="tests.foreign", encode=lambda f: {"parts": f.parts}, decode=lambda s: Foreign(s["parts"]))  # fmt: skip


def test_too_many_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    from omni_async.codec import encode as module

    array = np.zeros(1)
    many = [array] * 300
    assert len(encode(many).frames) == 300
    monkeypatch.setattr(sys.modules[module.__module__], "FRAME_LIMIT", 299)
    with pytest.raises(
        EncodeError, match="holds 300 tensors, arrays and long bytes, the limit is 299"
    ):
        encode(many)


def test_a_header_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    from omni_async.codec import wire

    encode_module = sys.modules[encode.__module__]
    numbers = [1 << 40] * 1000
    header = encode(numbers).header
    monkeypatch.setattr(encode_module, "HEADER_LIMIT", len(header))
    monkeypatch.setattr(wire, "HEADER_LIMIT", len(header))
    same(numbers, trip(numbers))
    monkeypatch.setattr(encode_module, "HEADER_LIMIT", len(header) - 1)
    monkeypatch.setattr(wire, "HEADER_LIMIT", len(header) - 1)
    with pytest.raises(EncodeError, match=f"takes {len(header)} bytes, the limit is"):
        encode(numbers)
    with pytest.raises(DecodeError, match=f"header of {len(header)} bytes exceeds the limit"):
        decode(header, [])


def test_ten_thousand_and_one_keys() -> None:
    value = {f"key-{i}": i for i in range(10_001)}
    same(value, trip(value))
