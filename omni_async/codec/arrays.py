"""numpy: arrays and scalars of every dtype that has plain bytes.

In: exact ``numpy.ndarray`` and numpy scalars, or the bodies of their extensions. Out: extensions and
frames, or arrays over the frames' memory. Never: takes a dtype that holds Python objects, in or out.

A dtype travels as a string like ``"<f4"``; a structured one as ``[itemsize, aligned, [[name, title,
offset, dtype], ...]]``, one with a shape of its own as ``[dtype, shape]``.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np

from ..errors import DecodeError
from .frames import array_frame
from .wire import Ext, Tag
from .writer import UnsendableError, Write, Writer

if TYPE_CHECKING:
    from .reader import Read, Reader

Size = Annotated[int, msgspec.Meta(ge=0)]

_read_array_body = msgspec.msgpack.Decoder(tuple[Size, Any, list[Size]]).decode
_read_scalar_body = msgspec.msgpack.Decoder(tuple[Any, bytes]).decode

_DTYPE = re.compile(r"[<>|](?:[biufcSUV]\d+|[mM]8(?:\[\d*[A-Za-z]+\])?|[lqLQ])")
"""What numpy may be asked to parse. Its own grammar is far wider and knows objects."""

_USER_DEFINED = 256
"""From this number on a dtype belongs to another package or keeps its items elsewhere."""

_TWINS = frozenset(char for char in "bBhHiIlLqQfdgFDG" if np.dtype(np.dtype(char).str).char != char)
"""Types that are the same on this machine as another one, by their own letters (``long long``)."""


def describe(dtype: np.dtype[Any]) -> Any:
    """A dtype as a tree.

    Raises:
        UnsendableError: it has no plain bytes, or more to it than can be told.
    """
    if dtype.hasobject or dtype.num >= _USER_DEFINED:
        raise UnsendableError(f"a numpy dtype {dtype} has no plain bytes and cannot be sent")
    if dtype.metadata is not None:
        raise UnsendableError(f"a numpy dtype {dtype} with metadata cannot be sent")
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return [describe(base), list(shape)]
    if dtype.fields is None:
        return dtype.str[0] + dtype.char if dtype.char in _TWINS else dtype.str
    fields = []
    layout: Any = dtype.fields
    for name in dtype.names or ():
        field, offset, *title = layout[name]
        if title and type(title[0]) is not str:
            raise UnsendableError(f"a numpy dtype with the title {title[0]!r} cannot be sent")
        fields.append([name, title[0] if title else None, offset, describe(field)])
    return [dtype.itemsize, dtype.isalignedstruct, fields]


def parse(tree: Any) -> np.dtype[Any]:
    """The dtype that :func:`describe` told of."""
    if type(tree) is str:
        if _DTYPE.fullmatch(tree) is None:
            raise DecodeError(f"the payload has an unknown numpy dtype {tree!r}")
        return np.dtype(tree)
    if len(tree) == 2:
        base, shape = tree
        if not all(type(size) is int for size in shape):  # numpy would read them as dtypes
            raise DecodeError(f"the payload has a numpy dtype of shape {shape!r}")
        return np.dtype((parse(base), tuple(shape)))
    itemsize, aligned, fields = tree
    spec = {
        "names": [field[0] for field in fields],
        "titles": [field[1] for field in fields],
        "offsets": [field[2] for field in fields],
        "formats": [parse(field[3]) for field in fields],
        "itemsize": itemsize,
    }
    return np.dtype(spec, align=aligned)  # type: ignore[call-overload, no-any-return]


def _describe(dtype: np.dtype[Any]) -> Any:
    """A whole item's dtype: fields may be empty, items not, or any number of them would be no bytes."""
    if not dtype.itemsize:
        raise UnsendableError(f"a numpy dtype {dtype} with items of zero bytes cannot be sent")
    return describe(dtype)


def _array(writer: Writer, value: np.ndarray[Any, Any], depth: int) -> Any:
    dtype = _describe(value.dtype)
    return writer.ext(Tag.ARRAY, [writer.add(array_frame(value)), dtype, value.shape])


def _scalar(writer: Writer, value: np.generic, depth: int) -> Any:
    return writer.ext(Tag.NUMPY_SCALAR, [_describe(value.dtype), value.tobytes()])


def _text(writer: Writer, value: np.str_, depth: int) -> Any:
    return Ext(Tag.NUMPY_TEXT, str(value).encode("utf-8", "surrogatepass"))


def _bytes(writer: Writer, value: np.bytes_, depth: int) -> Any:
    return Ext(Tag.NUMPY_BYTES, bytes(value))


WRITERS: dict[type, Write] = {
    **dict.fromkeys({*np.sctypeDict.values(), np.longlong, np.ulonglong}, _scalar),
    np.str_: _text,
    np.bytes_: _bytes,
    np.ndarray: _array,
}

ONE_FRAME: frozenset[type] = frozenset({np.ndarray})


def _read_array(reader: Reader, data: memoryview) -> np.ndarray[Any, Any]:
    index, tree, shape = _read_array_body(data)
    dtype = plain(parse(tree))
    buffer = reader.take(index, math.prod(shape) * dtype.itemsize)
    return reader.finish(np.ndarray(shape, dtype, buffer))


def _read_scalar(reader: Reader, data: memoryview) -> Any:
    tree, raw = _read_scalar_body(data)
    dtype = plain(parse(tree))
    if dtype.itemsize != len(raw):
        raise DecodeError(f"a numpy scalar of dtype {dtype} cannot have {len(raw)} bytes")
    return np.ndarray((), dtype, bytearray(raw))[()]


def plain(dtype: np.dtype[Any]) -> np.dtype[Any]:
    if dtype.hasobject or not dtype.itemsize:
        raise DecodeError(f"the payload has a numpy dtype {dtype}")
    return dtype


def _read_text(reader: Reader, data: memoryview) -> np.str_:
    text: np.str_ = np.str_(str(data, "utf-8", "surrogatepass"))
    return text


def _read_bytes(reader: Reader, data: memoryview) -> np.bytes_:
    data_of: np.bytes_ = np.bytes_(bytes(data))
    return data_of


READERS: dict[int, Read] = {
    Tag.ARRAY: _read_array,
    Tag.NUMPY_SCALAR: _read_scalar,
    Tag.NUMPY_TEXT: _read_text,
    Tag.NUMPY_BYTES: _read_bytes,
}
