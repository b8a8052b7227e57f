"""Classes that tests send: registered ones of every kind, and some that are not."""

from __future__ import annotations

import dataclasses
import enum
import functools
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
import pydantic

from omni_async.codec import register_type

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


def forget(cls: type) -> None:
    from omni_async.codec import registered, table

    del table.WRITERS[cls]
    del registered._by_name[registered._by_class.pop(cls).name]
