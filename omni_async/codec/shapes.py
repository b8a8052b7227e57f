"""Shapes: how enums, dataclasses, structs, models and named tuples are taken apart and put together.

In: a class. Out: a :class:`Shape`, or a word on why this class needs functions of its own.
Never: keeps a table of classes.

All but enums travel as their fields by name, and a receiver whose class has other fields refuses them.
Putting together restores what was there and computes nothing anew.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from ..errors import UsageError


class Shape(NamedTuple):
    """Two functions, and whether what lies between them is a dict of named parts."""

    apart: Callable[[Any], Any]
    together: Callable[[Any], Any]
    named: bool


def shape_of(cls: type) -> Shape:
    """The shape of a class of a known kind.

    Raises:
        UsageError: the class needs ``encode`` and ``decode``.
    """
    if issubclass(cls, enum.Enum):
        return _enum(cls)
    if issubclass(cls, msgspec.Struct):
        return _struct(cls)
    pydantic = sys.modules.get("pydantic")
    if pydantic is not None and issubclass(cls, pydantic.BaseModel):
        return _model(cls)
    if dataclasses.is_dataclass(cls) and "__dataclass_fields__" in vars(cls):
        return _dataclass(cls)
    if issubclass(cls, tuple) and hasattr(cls, "_fields") and hasattr(cls, "_make"):
        return _named_tuple(cls)
    raise UsageError(
        f"{cls.__qualname__} is no dataclass, enum, msgspec.Struct, pydantic model or NamedTuple; "
        "register_type needs encode= and decode= for it"
    )


def _enum(cls: type[enum.Enum]) -> Shape:
    if issubclass(cls, enum.Flag):  # a combination of flags has no name of its own
        return Shape(lambda member: member.value, lambda value: cls(_exact(value, int)), False)
    members = cls.__members__
    return Shape(lambda member: member.name, lambda name: members[name], False)


def _dataclass(cls: type) -> Shape:
    names = [field.name for field in dataclasses.fields(cls)]
    _check_layout(cls, names)
    known = frozenset(names)

    def apart(value: Any) -> dict[str, Any]:
        return {name: getattr(value, name) for name in names} | _others(value, known)

    def together(parts: Any) -> Any:
        parts, others = _checked(cls, known, parts)
        value: Any = object.__new__(cls)
        for name, part in parts.items():  # not by setattr: the class may be frozen
            object.__setattr__(value, name, part)
        if others:
            vars(value).update(others)
        return value

    return Shape(apart, together, True)


def _struct(cls: type[msgspec.Struct]) -> Shape:
    names = cls.__struct_fields__
    known = frozenset(names)

    def apart(value: Any) -> dict[str, Any]:
        return {name: getattr(value, name) for name in names} | _others(value, known)

    def together(parts: Any) -> Any:
        parts, others = _checked(cls, known, parts)
        value = cls(**parts)
        for name, part in parts.items():  # what __post_init__ made of them is undone
            msgspec.structs.force_setattr(value, name, part)
        if others:
            vars(value).update(others)
        return value

    return Shape(apart, together, True)


def _named_tuple(cls: Any) -> Shape:
    names: tuple[str, ...] = cls._fields
    known = frozenset(names)

    def apart(value: Any) -> dict[str, Any]:
        return dict(zip(names, value, strict=True)) | _others(value, known)

    def together(parts: Any) -> Any:
        parts, others = _checked(cls, known, parts)
        value = cls._make([parts[name] for name in names])
        if others:
            vars(value).update(others)
        return value

    return Shape(apart, together, True)


def _model(cls: Any) -> Shape:
    """pydantic: fields, extras and private attributes, and under "" the names of the fields set."""
    fields = tuple(cls.model_fields)
    private = frozenset(cls.__private_attributes__)
    open_ended = cls.model_config.get("extra") == "allow"

    def apart(value: Any) -> dict[str, Any]:
        extra = value.model_extra or {}
        if "" in extra:
            raise ValueError("an extra field has an empty name")
        parts = {name: value.__dict__[name] for name in fields}
        return parts | extra | (value.__pydantic_private__ or {}) | {"": value.model_fields_set}

    def together(parts: Any) -> Any:
        parts = dict(_exact(parts, dict))
        were_set = _exact(parts.pop(""), set)
        state = {name: parts.pop(name) for name in fields}
        hidden = {name: parts.pop(name) for name in private & parts.keys()}
        if parts and not open_ended:
            raise ValueError(f"fields {sorted(parts)} came, which {cls.__qualname__} has not here")
        value = cls.__new__(cls)
        object.__setattr__(value, "__dict__", state)
        object.__setattr__(value, "__pydantic_fields_set__", were_set)
        object.__setattr__(value, "__pydantic_private__", hidden if private else None)
        if not cls.__pydantic_root_model__:
            object.__setattr__(value, "__pydantic_extra__", parts if open_ended else None)
        return value

    return Shape(apart, together, True)


_OTHERS = "__dict__"
"""Under this name travel instance attributes that are no fields."""

_HEAP_TYPE = 1 << 9
"""Flag of classes made by a ``class`` statement; others may keep state where no field shows it."""


def _check_layout(cls: type, names: list[str]) -> None:
    """Refuse a class that keeps something outside of its fields and its ``__dict__``."""
    for base in cls.__mro__[:-1]:
        slots = base.__dict__.get("__slots__", ())
        extra = {slots} if isinstance(slots, str) else set(slots)
        if extra - {*names, "__dict__", "__weakref__"} or not base.__flags__ & _HEAP_TYPE:
            raise UsageError(
                f"{cls.__qualname__} keeps more than its fields, from {base.__qualname__}; "
                "register_type needs encode= and decode= for it"
            )


def _others(value: Any, known: frozenset[str]) -> dict[str, Any]:
    """Instance attributes that are no fields, but for what a ``cached_property`` can compute again."""
    others = {
        name: part
        for name, part in getattr(value, "__dict__", {}).items()
        if name not in known
        and not isinstance(getattr(type(value), name, None), functools.cached_property)
    }
    return {_OTHERS: others} if others else {}


def _checked(cls: type, names: frozenset[str], parts: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields, which are exactly ``names``, and the other attributes."""
    fields = dict(_exact(parts, dict))
    others = _exact(fields.pop(_OTHERS, {}), dict)
    for name in others:
        _exact(name, str)
    if fields.keys() != names:
        came, has = sorted(map(str, fields)), sorted(names)
        raise ValueError(f"fields {came} came, {cls.__qualname__} has {has} here")
    return fields, others


def _exact(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError(f"a {type(value).__name__} came where {kind.__name__} belongs")
    return value
