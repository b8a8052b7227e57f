"""Classes of the user: known kinds by default, others by their own functions."""

from __future__ import annotations

import collections
import threading
from typing import Any

import msgspec
import numpy as np
import pytest

from omni_async.codec import encode, register_type
from omni_async.errors import EncodeError

from .classes import (
    Bare,
    Bits,
    Color,
    Eager,
    Foreign,
    Frozen,
    Level,
    Loose,
    Model,
    Number,
    Open,
    Pair,
    Plain,
    Point,
    Root,
    Slotted,
    Struct,
    SubPoint,
    Text,
    Unknown,
    Unregistered,
    Unsent,
    UnsentModel,
    UnsentStruct,
    Word,
    forget,
    loose,
    opened,
)
from .landing import same, trip

VALUES: list[Any] = [
    *Color, *Level, *Word, Bits.A, Bits.A | Bits.B, Bits(0), Plain.X | Plain.Y, Plain(0),
    Point(1), Point(Level.LOW, (Point(2), {Color.RED})),
    Slotted(1, [2]), Pair(1), Pair([1], (2,)), Pair(Pair(1, 2), None), Open(1), opened(),
    Struct(some_field=1), Struct(some_field=2, other=(1,)),
    Model(X=1), loose(x=2, more=(3,), _odd=1), Loose(), Root([1, 2]),
    Foreign((1, {2})), Foreign(None),
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_registered_objects_come_back(value: Any) -> None:
    for wrapped in (value, [value, (value,)], {"k": {"x": value}}):
        same(wrapped, trip(wrapped))


@pytest.mark.parametrize("value", [*Color, *Level, *Word, Pair(1, (2,)), Foreign(3)], ids=str)
def test_registered_objects_as_keys_and_elements(value: Any) -> None:
    for wrapped in ({value: 1}, {value}, {(value, 1): 2}, frozenset([value])):
        same(wrapped, trip(wrapped))


def test_members_of_enums_are_the_very_same() -> None:
    for member in (*Color, *Level, *Word, Bits.B):
        assert trip(member) is member


def test_state_is_restored_and_not_computed_anew() -> None:
    value = Frozen([1], given=8)
    object.__setattr__(value, "computed", 100)
    assert value.expensive
    received = trip(value)
    assert vars(received) == {"x": [1], "computed": 100, "beside": [8]}

    eager = Eager(1)
    vars(eager)["beside"] = 3
    assert eager.x == 2
    received = trip(eager)
    assert (received.x, vars(received)) == (2, {"beside": 3})

    model = Model(X=1, items=[(1,)])
    assert model.expensive
    model._private = {2}
    received = trip(model)
    assert (received.x, received.items, received._private) == (2, [(1,)], {2})
    assert received.model_fields_set == {"x", "items"}
    assert "expensive" not in vars(received)


def test_buffers_inside_of_registered_objects() -> None:
    value = Point(np.arange(3), Pair(b"x" * 10_000, bytearray(10_000)))
    encoded = encode([value])
    assert len(encoded.frames) == 3
    received = trip([value])[0]
    same((value.x, tuple(value.y)), (received.x, tuple(received.y)))


@pytest.mark.parametrize(
    "value",
    [
        Unknown(), Text("x"), Number(1), SubPoint(1), Bare(1), Unregistered.ONE, Unsent(1),
        UnsentStruct(1), UnsentModel(x=1), collections.OrderedDict(a=1),
        collections.defaultdict(list), collections.deque([1]), collections.Counter("a"),
        object(), Unknown, int, len, lambda: 0, iter([]), range(3), ..., NotImplemented,
        ValueError("x"), threading.Lock(), (i for i in [1]), msgspec.Raw(b"\x01"),
        msgspec.msgpack.Ext(5, b"x"),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_what_is_not_registered_is_refused_by_path_and_remedy(value: Any) -> None:
    name = type(value).__name__
    text = (
        f": object of type {name} cannot be sent; "
        f"register it with omni_async.register_type({name}) on both sides"
    )
    cases: list[tuple[Any, str]] = [
        (value, "value"),
        ({"meta": [1, 2, 3, value]}, "value['meta'][3]"),
        ((0, {"a": (value,)}), "value[1]['a'][0]"),
        ({5: {None: {b"k": value}}}, "value[5][None][b'k']"),
        ([Point(1, value)], "value[0].y"),
        ([Pair(value)], "value[0].left"),
        (loose(more=value), "value.more"),
        (Foreign([value]), "value.encode()['parts'][0]"),
        (slice(value), "value.stop"),
    ]
    try:
        hash(value)
    except TypeError:
        pass
    else:
        shown = repr(value) if len(repr(value)) < 60 else ""
        cases.append(({"m": {value: 1}}, f"value['m'] key {shown}"))
        cases.append(({(1, value): 1}, "value key "))
        cases.append(({1: {value}}, f"value[1] element {shown}"))
    for wrapped, path in cases:
        with pytest.raises(EncodeError) as info:
            encode(wrapped)
        if shown_path := info.value.path:
            assert shown_path.startswith(path), (shown_path, path)
        assert str(info.value).endswith(text)
        assert str(info.value).startswith("value")


def test_subclasses_of_containers_can_be_registered() -> None:
    register_type(collections.OrderedDict, encode=lambda d: list(d.items()), decode=collections.OrderedDict)  # fmt: skip
    try:
        value = collections.OrderedDict([("b", 1), ("a", (2,))])
        same([value], trip([value]))
    finally:
        forget(collections.OrderedDict)
