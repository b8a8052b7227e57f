"""Containers and bytes: list, tuple, set, dict, slice, bytes, and what becomes of them on the wire.

In: values of exactly these types, or the bodies of their extensions. Out: trees, or the values again.
Never: sees subclasses; those are refused before they come here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import DecodeError
from .frames import bytes_frame
from .limits import DEPTH_LIMIT, INLINE_BYTES
from .wire import BUFFER, Ext, Tag
from .writer import PLAIN, UnsendableError, Write, Writer, short, too_deep

if TYPE_CHECKING:
    from .reader import Read, Reader

_NATIVE_KEYS = PLAIN | {bytes}


def _list(writer: Writer, value: list[Any], depth: int) -> Any:
    return writer.items(value, depth)


def _tuple(writer: Writer, value: tuple[Any, ...], depth: int) -> Any:
    return writer.ext(Tag.TUPLE, writer.items(value, depth))


def _set(writer: Writer, value: set[Any] | frozenset[Any], depth: int) -> Any:
    if depth >= DEPTH_LIMIT:
        raise too_deep()
    trees: list[Any] = []
    for element in value:
        try:
            trees.append(writer.tree(element, depth + 1))
        except UnsendableError as refused:
            refused.at(value, f" element {short(element)}")
            raise
    return writer.ext(Tag.SET if type(value) is set else Tag.FROZENSET, trees)


def _dict(writer: Writer, value: dict[Any, Any], depth: int) -> Any:
    if depth >= DEPTH_LIMIT:
        raise too_deep()
    changed: dict[Any, Any] | None = None
    native = True
    writers = writer.writers
    key: Any = None
    try:
        for key, item in value.items():
            kind = type(key)
            if kind is not str and kind not in _NATIVE_KEYS:
                native = False
            kind = type(item)
            if kind in PLAIN:
                continue
            tree = (writers.get(kind) or writer.find(kind))(writer, item, depth + 1)
            if tree is not item:
                if changed is None:
                    changed = value.copy()
                changed[key] = tree
    except UnsendableError as refused:
        refused.at(value, f"[{short(key)}]")
        raise
    except RecursionError:
        raise
    except RuntimeError as error:  # another thread was at it
        raise UnsendableError(f"changed while it was encoded ({error})") from None
    trees = value if changed is None else changed
    return trees if native else _pairs(writer, value, trees, depth)


def _pairs(writer: Writer, value: dict[Any, Any], trees: dict[Any, Any], depth: int) -> Any:
    """A dict with keys that MessagePack has no word for: keys and values in turn."""
    flat: list[Any] = []
    for key, tree in trees.items():
        try:
            flat.append(writer.tree(key, depth + 1))
        except UnsendableError as refused:
            refused.at(value, f" key {short(key)}")
            raise
        flat.append(tree)
    return writer.ext(Tag.PAIRS, flat)


def _slice(writer: Writer, value: slice[Any, Any, Any], depth: int) -> Any:
    parts = {"start": value.start, "stop": value.stop, "step": value.step}
    return writer.ext(Tag.SLICE, list(writer.fields(value, parts, depth).values()))


def _bytes(writer: Writer, value: bytes, depth: int) -> Any:
    return value if len(value) <= INLINE_BYTES else whole_bytes(writer, value, depth)


def _bytearray(writer: Writer, value: bytearray, depth: int) -> Any:
    if len(value) <= INLINE_BYTES:
        return Ext(Tag.SMALL_BYTEARRAY, value)
    return whole_bytearray(writer, value, depth)


def _memoryview(writer: Writer, value: memoryview, depth: int) -> Any:
    try:
        if value.nbytes <= INLINE_BYTES:
            return value.tobytes()
    except ValueError as error:  # released
        raise UnsendableError(str(error)) from None
    return whole_memoryview(writer, value, depth)


def whole_bytes(writer: Writer, value: bytes, depth: int) -> Any:
    """``bytes`` as a frame, however short."""
    return Ext(Tag.BYTES, BUFFER.pack(writer.add(bytes_frame(value)), len(value)))


def whole_bytearray(writer: Writer, value: bytearray, depth: int) -> Any:
    """A ``bytearray`` as a frame, however short."""
    return Ext(Tag.BYTEARRAY, BUFFER.pack(writer.add(bytes_frame(value)), len(value)))


def whole_memoryview(writer: Writer, value: memoryview, depth: int) -> Any:
    """A ``memoryview`` as a frame; arrives as ``bytes``."""
    try:
        data = value if value.c_contiguous else value.tobytes()
    except ValueError as error:  # released
        raise UnsendableError(str(error)) from None
    return Ext(Tag.BYTES, BUFFER.pack(writer.add(bytes_frame(data)), value.nbytes))


WRITERS: dict[type, Write] = {
    list: _list,
    tuple: _tuple,
    set: _set,
    frozenset: _set,
    dict: _dict,
    slice: _slice,
    bytes: _bytes,
    bytearray: _bytearray,
    memoryview: _memoryview,
}

WHOLE_WRITERS: dict[type, Write] = {
    bytes: whole_bytes,
    bytearray: whole_bytearray,
    memoryview: whole_memoryview,
}


def _read_tuple(reader: Reader, data: memoryview) -> tuple[Any, ...]:
    return tuple(reader.items(data))


def _read_set(reader: Reader, data: memoryview) -> set[Any]:
    items = reader.items(data)
    found = set(items)
    if len(found) != len(items):
        raise DecodeError("a set on the wire has an element twice")
    return found


def _read_frozenset(reader: Reader, data: memoryview) -> frozenset[Any]:
    return frozenset(_read_set(reader, data))


def _read_pairs(reader: Reader, data: memoryview) -> dict[Any, Any]:
    flat = reader.items(data)
    found = dict(zip(flat[::2], flat[1::2], strict=True))
    if 2 * len(found) != len(flat):
        raise DecodeError("a dict on the wire has a key twice")
    return found


def _read_slice(reader: Reader, data: memoryview) -> Any:
    start, stop, step = reader.items(data)
    return slice(start, stop, step)


def _read_bytes(reader: Reader, data: memoryview) -> bytes:
    return reader.take(*BUFFER.unpack(data)).tobytes()


def _read_bytearray(reader: Reader, data: memoryview) -> bytearray:
    return bytearray(reader.take(*BUFFER.unpack(data)))


def _read_text(reader: Reader, data: memoryview) -> str:
    return _read_bytes(reader, data).decode("utf-8", "surrogatepass")


def _read_small_bytearray(reader: Reader, data: memoryview) -> bytearray:
    return bytearray(data)


READERS: dict[int, Read] = {
    Tag.TUPLE: _read_tuple,
    Tag.SET: _read_set,
    Tag.FROZENSET: _read_frozenset,
    Tag.PAIRS: _read_pairs,
    Tag.SLICE: _read_slice,
    Tag.BYTES: _read_bytes,
    Tag.BYTEARRAY: _read_bytearray,
    Tag.TEXT: _read_text,
    Tag.SMALL_BYTEARRAY: _read_small_bytearray,
}
