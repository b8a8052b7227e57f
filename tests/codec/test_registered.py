"""Classes of the user: known kinds by default, others by their own functions."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import threading
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
import numpy as np
import pydantic
import pytest

from omni_async.codec import decode, encode, register_type
from omni_async.codec.wire import Ext, Tag, encode_tree
from omni_async.errors import DecodeError, EncodeError, UsageError

from .landing import land, same, sealed, trip

T = TypeVar("T")


@register_type
class Color(enum.Enum):
    RED = (1, "odd value")
    GREEN = object()
    CRIMSON = RED


@register_type
class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@register_type
class Word(str, enum.Enum):
    YES = "yes"


@register_type
class Bits(enum.IntFlag):
    A = 1
    B = 2


@register_type
class Plain(enum.Flag):
    X = enum.auto()
    Y = enum.auto()


@register_type
@dataclasses.dataclass
class Point:
    x: Any
    y: Any = None


@register_type
@dataclasses.dataclass(frozen=True)
class Frozen(Generic[T]):
    x: T
    computed: int = dataclasses.field(init=False, default=0)
    given: dataclasses.InitVar[int] = 5

    def __post_init__(self, given: int) -> None:
        object.__setattr__(self, "computed", given + 1)
        object.__setattr__(self, "beside", [given])

    @functools.cached_property
    def expensive(self) -> object:
        return object()


@register_type
@dataclasses.dataclass(frozen=True)
class Slotted:
    __slots__ = ("a", "b")
    a: int
    b: Any


@register_type
class Pair(NamedTuple):
    left: Any
    right: Any = 0


class _Base(NamedTuple):
    left: Any


@register_type
class Open(_Base):
    """A named tuple with a ``__dict__``."""


@register_type
class Struct(msgspec.Struct, tag=True, rename="camel", kw_only=True):
    some_field: int
    other: Any = msgspec.UNSET


@register_type
class Eager(msgspec.Struct, frozen=True, dict=True):
    x: int

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "x", self.x + 1)


@register_type
class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)
    x: int = pydantic.Field(alias="X")
    items: list[Any] = []
    _private: Any = pydantic.PrivateAttr(default=1)

    @pydantic.field_validator("x")
    @classmethod
    def add(cls, value: int) -> int:
        return value + 1

    @functools.cached_property
    def expensive(self) -> object:
        return object()


@register_type
class Loose(pydantic.BaseModel, extra="allow"):
    x: int = 0


def loose(**fields: Any) -> Loose:
    return Loose(**fields)


@register_type
class Root(pydantic.RootModel[list[int]]):
    pass


class Foreign:
    def __init__(self, parts: Any) -> None:
        self.parts = parts

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Foreign) and self.parts == other.parts

    def __hash__(self) -> int:
        return 7

    def __repr__(self) -> str:
        return f"Foreign({self.parts!r})"


register_type(Foreign, name="tests.foreign", encode=lambda f: {"parts": f.parts}, decode=lambda s: Foreign(s["parts"]))  # fmt: skip


def opened() -> Open:
    value = Open(1)
    value.extra = (2,)  # type: ignore[attr-defined]
    return value


VALUES: list[Any] = [
    *Color, *Level, *Word, Bits.A, Bits.A | Bits.B, Bits(0), Plain.X | Plain.Y, Plain(0),
    Point(1), Point(Level.LOW, (Point(2), {Color.RED})),
    Slotted(1, [2]), Pair(1), Pair([1], (2,)), Pair(Pair(1, 2), None), Open(1), opened(),
    Struct(some_field=1), Struct(some_field=2, other=(1,)),
    Model(X=1), loose(x=2, more=(3,), _odd=1), Loose(), Root([1, 2]),
    Foreign((1, {2})), Foreign(None),
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_registered_objects_come_back(value: Any) -> None:
    for wrapped in (value, [value, (value,)], {"k": {"x": value}}):
        same(wrapped, trip(wrapped))


@pytest.mark.parametrize("value", [*Color, *Level, *Word, Pair(1, (2,)), Foreign(3)], ids=repr)
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


class Unknown:
    pass


class Text(str):
    __slots__ = ()


class Number(int):
    pass


class SubPoint(Point):
    pass


class Bare(NamedTuple):
    x: int


class Unregistered(enum.IntEnum):
    ONE = 1


@dataclasses.dataclass
class Unsent:
    x: int


class UnsentStruct(msgspec.Struct):
    x: int


class UnsentModel(pydantic.BaseModel):
    x: int


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
        _forget(collections.OrderedDict)


def _forget(cls: type) -> None:
    from omni_async.codec import registered, table

    del table.WRITERS[cls]
    del registered._by_name[registered._by_class.pop(cls).name]


# --- registering ----------------------------------------------------------------------------------


def test_a_class_of_no_known_kind_needs_both_functions() -> None:
    for options in ({}, {"encode": vars}, {"decode": Unknown}):
        with pytest.raises(UsageError, match="needs encode= and decode="):
            register_type(Unknown, **options)
    with pytest.raises(UsageError, match="takes a class, not 5"):
        register_type(5)  # type: ignore[type-var]
    with pytest.raises(EncodeError):
        encode(Unknown())


@pytest.mark.parametrize("cls", [int, str, dict, list, bytes, np.ndarray, np.float32, complex])
def test_what_can_be_sent_already_is_not_registered(cls: type) -> None:
    with pytest.raises(UsageError, match="can be sent without"):
        register_type(cls, encode=str, decode=str)


def test_torch_types_are_not_registered() -> None:
    torch = pytest.importorskip("torch")
    for cls in (torch.Tensor, torch.nn.Parameter, torch.Size):
        with pytest.raises(UsageError, match="can be sent without"):
            register_type(cls, encode=str, decode=str)


def test_names_are_unique_and_bounded() -> None:
    with pytest.raises(UsageError, match=r"'tests\.foreign' is the registered name of .*Foreign"):
        register_type(Unsent, name="tests.foreign")
    for name in ("", "x" * 201):
        with pytest.raises(UsageError, match="1 to 200 characters"):
            register_type(Unsent, name=name)


def test_the_same_statement_may_run_again() -> None:
    def define() -> Any:
        @register_type
        @dataclasses.dataclass
        class Cell:
            x: int

        return Cell

    old, new = define(), define()
    same(new(1), trip(new(1)))
    assert type(trip(old(1))) is new


def test_registering_again_replaces_name_and_functions() -> None:
    register_type(Unsent, name="tests.first")
    register_type(Unsent, name="tests.second", encode=lambda u: u.x, decode=lambda x: Unsent(-x))
    assert trip(Unsent(5)) == Unsent(-5)
    register_type(Unsent, name="tests.first")
    assert trip(Unsent(5)) == Unsent(5)
    _forget(Unsent)
    with pytest.raises(EncodeError):
        encode(Unsent(1))


def test_classes_with_hidden_state_need_functions() -> None:
    @dataclasses.dataclass
    class Listed(list):  # type: ignore[type-arg]
        x: int = 0

    class Hidden:
        __slots__ = "_hidden"

    @dataclasses.dataclass
    class Child(Hidden):
        x: int = 0

    for cls in (Listed, Child):
        with pytest.raises(UsageError, match="keeps more than its fields"):
            register_type(cls)


def test_pydantic_dataclasses() -> None:
    @pydantic.dataclasses.dataclass
    class Checked:
        x: int

    register_type(Checked)
    same(Checked(1), trip(Checked(1)))


# --- faults ---------------------------------------------------------------------------------------


def test_functions_that_fail_are_coding_errors() -> None:
    class Bad:
        pass

    def fail(_: Any) -> Any:
        raise KeyError("inner")

    register_type(Bad, encode=fail, decode=fail)
    with pytest.raises(
        EncodeError, match=r"value\[0\]: object of type Bad .*KeyError\('inner'\)"
    ) as info:
        encode([Bad()])
    assert isinstance(info.value.__cause__, KeyError)
    register_type(Bad, encode=lambda _: 1, decode=fail)
    encoded = encode([Bad()])
    with pytest.raises(DecodeError, match=r"Bad' could not be restored: KeyError\('inner'\)"):
        decode(encoded.header, [])


def test_an_attribute_that_is_gone_is_an_encode_error() -> None:
    point = Point(1, 2)
    del point.x
    slotted = Slotted.__new__(Slotted)
    partial = Model.model_construct(items=[])
    unnamed = Loose(**{"": 1})
    for value in (point, slotted, partial, unnamed):
        with pytest.raises(EncodeError, match="could not be taken apart"):
            encode(value)


def registered_body(name: Any, state: Any) -> bytes:
    return sealed(encode_tree(Ext(Tag.REGISTERED, encode_tree([name, state]))))


def wire_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def test_a_name_unknown_here_is_refused_and_not_imported() -> None:
    for name in ("os.system", "builtins.eval", "antigravity.x", "", 5, None, ["a"]):
        with pytest.raises(DecodeError):
            decode(registered_body(name, {}), [])
    assert "antigravity" not in __import__("sys").modules
    with pytest.raises(
        DecodeError, match=r"'os\.system', unknown here; call omni_async\.register_type"
    ):
        decode(registered_body("os.system", {}), [])


@pytest.mark.parametrize(
    ("cls", "state"),
    [
        (Point, {"x": 1}), (Point, {"x": 1, "y": 2, "z": 3}), (Point, [1, 2]), (Point, None),
        (Point, {"x": 1, "y": 2, "__class__": 3}), (Point, {"x": 1, "y": 2, "__dict__": 3}),
        (Point, {"x": 1, "y": 2, "__dict__": {5: 6}}),
        (Slotted, {"a": 1, "b": 2, "__dict__": {"c": 1}}),
        (Pair, {"left": 1}), (Pair, {"left": 1, "right": 2, "__dict__": {"x": 1}}),
        (Struct, {"some_field": 1}), (Struct, {"someField": 1, "other": 1}),
        (Model, {"x": 1, "items": [], "_private": 1}), (Model, {"x": 1, "": 5}), (Model, 5),
        (Color, "BLUE"), (Color, 1), (Color, []), (Color, "__class__"), (Bits, "A"), (Bits, True),
        (Level, 1),
    ],
)  # fmt: skip
def test_states_that_do_not_fit_are_refused(cls: type, state: Any) -> None:
    with pytest.raises(DecodeError):
        decode(registered_body(wire_name(cls), state), [])


def test_fields_the_other_side_has_not_are_named() -> None:
    with pytest.raises(DecodeError, match=r"fields \['x', 'z'\] came, Point has \['x', 'y'\] here"):
        decode(registered_body(wire_name(Point), {"x": 1, "z": 2}), [])
    body = Ext(Tag.SET, encode_tree([]))
    with pytest.raises(DecodeError, match=r"fields \['y'\] came, which Model has not"):
        decode(registered_body(wire_name(Model), {"x": 1, "items": [], "y": 1, "": body}), [])


def test_an_object_with_reduce_is_never_pickled() -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            raise AssertionError("pickled")

        __reduce_ex__ = __reduce__  # type: ignore[assignment]
        __getstate__ = __reduce__

    for value in (Bomb(), [Bomb()], {"a": Bomb()}, {Bomb()}, Point(1, Bomb())):
        with pytest.raises(EncodeError, match="type Bomb"):
            encode(value)


def test_several_threads_encode_at_once() -> None:
    values = [[Point(i, (i, np.arange(i)))] * 20 for i in range(8)]
    wrong: list[Any] = []

    def work(value: Any) -> None:
        for _ in range(50):
            encoded = encode(value)
            received = decode(encoded.header, land(encoded))
            if [p.x for p in received] != [p.x for p in value]:
                wrong.append(received)

    threads = [threading.Thread(target=work, args=(value,)) for value in values]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
