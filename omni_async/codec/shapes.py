"""Shapes: how enums, dataclasses, structs, models and named tuples are taken apart and put together.

In: a class. Out: a :class:`Shape`, or a word on why this class needs functions of its own.
Never: keeps a table of classes.

All but enums travel as their fields by name, and a receiver whose class has other fields refuses them.
Putting together restores the fields as they were, even where a constructor would compute them anew.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
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


def _fields_of(cls: type, names: tuple[str, ...]) -> Callable[[Any], dict[str, Any]]:
    return lambda value: {name: getattr(value, name) for name in names}


def _checked(cls: type, names: frozenset[str], parts: Any) -> dict[str, Any]:
    if _exact(parts, dict).keys() != names:
        came, has = sorted(map(str, parts)), sorted(names)
        raise ValueError(f"fields {came} came, {cls.__qualname__} has {has} here")
    found: dict[str, Any] = parts
    return found


def _exact(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError(f"a {type(value).__name__} came where {kind.__name__} belongs")
    return value


def _dataclass(cls: type) -> Shape:
    fields = dataclasses.fields(cls)
    names = frozenset(field.name for field in fields)
    given = [field.name for field in fields if field.init]
    for parameter in inspect.signature(cls).parameters.values():
        needed = parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        )
        if needed and parameter.name not in given:
            raise UsageError(
                f"the constructor of {cls.__qualname__} takes {parameter.name!r}, which is no "
                "field; register_type needs encode= and decode= for it"
            )

    def together(parts: Any) -> Any:
        parts = _checked(cls, names, parts)
        value = cls(**{name: parts[name] for name in given})
        for name, part in parts.items():  # what __post_init__ made of them is undone
            object.__setattr__(value, name, part)
        return value

    return Shape(_fields_of(cls, tuple(field.name for field in fields)), together, True)


def _struct(cls: type[msgspec.Struct]) -> Shape:
    names = cls.__struct_fields__
    known = frozenset(names)

    def together(parts: Any) -> Any:
        parts = _checked(cls, known, parts)
        value = cls(**parts)
        for name, part in parts.items():
            msgspec.structs.force_setattr(value, name, part)
        return value

    return Shape(_fields_of(cls, names), together, True)


def _named_tuple(cls: Any) -> Shape:
    names: tuple[str, ...] = cls._fields
    known = frozenset(names)

    def apart(value: Any) -> dict[str, Any]:
        return dict(zip(names, value, strict=True))

    def together(parts: Any) -> Any:
        parts = _checked(cls, known, parts)
        return cls._make([parts[name] for name in names])

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
