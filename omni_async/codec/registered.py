"""Registered classes: which of the user's classes are sent, under which name and how.

In: classes and functions, from ``register_type``. Out: what writes and reads their instances.
Never: looks up a name from the wire anywhere but in its own table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ..errors import DecodeError, UsageError
from .shapes import Shape, shape_of
from .table import WHOLE, WRITERS, find
from .wire import Tag
from .writer import PLAIN, UnsendableError, Writer

if TYPE_CHECKING:
    from .reader import Read, Reader

C = TypeVar("C", bound=type)

NAME_LIMIT = 200
"""Characters of a registered name; it travels with every instance."""


class _Entry(NamedTuple):
    cls: type
    name: str
    shape: Shape


_by_name: dict[str, _Entry] = {}
_by_class: dict[type, _Entry] = {}


def register_type(
    cls: C,
    *,
    name: str | None = None,
    encode: Callable[[Any], Any] | None = None,
    decode: Callable[[Any], Any] | None = None,
) -> C:
    """Let instances of ``cls`` be sent. Call it on both sides; it also serves as a decorator.

    Enums, dataclasses, ``msgspec.Struct``, pydantic models and named tuples need nothing else. They
    arrive with the fields and attributes they had, by name; neither ``__init__`` nor validation runs
    again (for a struct ``__post_init__`` does, and what it changed is set back). Any other class needs
    both functions.

    Args:
        cls: the class itself; its subclasses are to be registered on their own.
        name: what it is called on the wire, by default ``module.qualname``. Give one when the module
            differs between the two sides, as it does for a class of a script.
        encode: makes something that can be sent of an instance.
        decode: makes an instance of that again.

    Raises:
        UsageError: the class can be sent already, the name is taken by another class, or the class is
            of none of the kinds above and a function is missing.
    """
    if not isinstance(cls, type):
        raise UsageError(f"register_type takes a class, not {cls!r}")
    wire_name = f"{cls.__module__}.{cls.__qualname__}" if name is None else name
    if not 0 < len(wire_name) <= NAME_LIMIT:
        raise UsageError(f"a registered name has 1 to {NAME_LIMIT} characters: {wire_name!r}")
    if cls not in _by_class and _is_built_in(cls):
        raise UsageError(f"{cls.__qualname__} can be sent without being registered")
    other = _by_name.get(wire_name)
    if other is not None and not _same_definition(other.cls, cls):
        raise UsageError(f"{wire_name!r} is the registered name of {other.cls!r}; give name=")
    if encode is not None and decode is not None:
        shape = Shape(encode, decode, False)
    elif encode is None and decode is None:
        shape = shape_of(cls)
    else:
        raise UsageError("register_type needs encode= and decode= together")
    previous = _by_class.get(cls)
    if previous is not None:
        del _by_name[previous.name]
    _by_name[wire_name] = _by_class[cls] = _Entry(cls, wire_name, shape)
    WRITERS[cls] = _write
    return cls


def _is_built_in(cls: type) -> bool:
    if cls in WHOLE or cls in PLAIN:
        return True
    try:
        find(cls)
    except UnsendableError:
        return False
    return True


def _same_definition(one: type, other: type) -> bool:
    """The same class, or the same statement run again, as notebooks and reloads do."""
    return (one.__module__, one.__qualname__) == (other.__module__, other.__qualname__)


def _write(writer: Writer, value: Any, depth: int) -> Any:
    cls, name, shape = _by_class[type(value)]
    try:
        state = shape.apart(value)
    except Exception as error:  # the user's code: whatever it raises, this value cannot be sent
        raise UnsendableError(
            f"object of type {cls.__name__} could not be taken apart: {error!r}"
        ) from error
    if shape.named:
        tree: Any = writer.fields(value, state, depth)
    else:
        tree = writer.fields(value, {"encode()": state}, depth)["encode()"]
    return writer.ext(Tag.REGISTERED, [name, tree])


def _read(reader: Reader, data: memoryview) -> Any:
    name, state = reader.items(data)
    entry = _by_name.get(name)
    if entry is None:
        raise DecodeError(
            f"the payload has an object of the registered type {name!r}, unknown here; "
            "call omni_async.register_type for it on this side too",
            missing=name,
        )
    try:
        return entry.shape.together(state)
    except Exception as error:  # the user's code: whatever it raises, this is no such object
        raise DecodeError(f"an object of type {name!r} could not be restored: {error!r}") from error


READERS: dict[int, Read] = {Tag.REGISTERED: _read}
