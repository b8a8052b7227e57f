"""A value in vLLM-Omni's object format, as its own sender would write it.

In: any tree that the format can hold. Out: its bytes, in pieces; long ones still are the caller's memory.
Never: joins pieces, or writes what a receiver there would take for something else.

What the format has no word for, and vLLM-Omni writes as something else, is written likewise: tuples,
sets and slices as arrays, dataclasses and ``msgspec.Struct`` as maps, enums as their values, naive
times as text. What it cannot hold is an ``EncodeError``.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import sys
import uuid
from collections.abc import Iterator, Sequence
from operator import countOf
from typing import Any

import msgspec
import numpy as np

from ...codec.frames import Frame, ImageFrame, array_frame, bytes_frame
from ...codec.limits import DEPTH_LIMIT, DIMENSION_LIMIT, FRAME_LIMIT, INLINE_BYTES
from ...codec.tensors import frame_of, refusal
from ...codec.writer import PLAIN, UnsendableError, short, too_deep
from ...errors import EncodeError
from .markers import ARRAY, IMAGE, IMAGE_BANDS, MARKERS, PALETTES, TENSOR, TENSOR_CODES

BIN_LIMIT = (1 << 32) - 1
"""Bytes that MessagePack can hold in one piece."""

_encode = msgspec.msgpack.Encoder().encode

_AS_THEY_DO = (
    datetime.datetime,
    datetime.date,
    datetime.time,
    datetime.timedelta,
    decimal.Decimal,
    uuid.UUID,
)
"""What MessagePack encoders of Python know how to write, most of it as text."""


class Pieces(Frame):
    """The bytes of one object, a buffer like any other: it is put together where it is to lie."""

    def copy_into(self, target: memoryview) -> None:
        at = 0
        for part in self.keep:
            if isinstance(part, Frame):
                end = at + part.nbytes
                part.copy_into(target[at:end])
            else:
                end = at + len(part)
                target[at:end] = part
            at = end


def write(value: Any) -> Pieces:
    """The bytes of an object.

    Raises:
        EncodeError: something inside cannot be told; ``path`` says where, the text what to do.
    """
    writing = _Writing()
    try:
        writing.tree(value, 0)
    except UnsendableError as refused:
        raise refused.error() from refused.__cause__
    except RecursionError:
        raise EncodeError(
            "value: is nested deeper than this thread's recursion limit allows", path="value"
        ) from None
    return writing.end()


class _Writing:
    """What has been written so far."""

    def __init__(self) -> None:
        self._parts: list[bytearray | Frame] = []
        self._text = bytearray()
        self._nbytes = 0
        self._device = "cpu"

    def end(self) -> Pieces:
        self._flush()
        return Pieces(self._nbytes, 0, self._parts, self._device)

    def tree(self, value: Any, depth: int) -> None:
        """Write any value."""
        kind = type(value)
        if kind in PLAIN:
            self._plain(value)
        elif kind is dict:
            self._map(value, value, depth)
        elif kind is list or kind is tuple:
            self._array(value, value, depth)
        else:
            self._other(value, depth)

    def _other(self, value: Any, depth: int) -> None:
        torch: Any = sys.modules.get("torch")
        image: Any = sys.modules.get("PIL.Image")
        if hasattr(torch, "Tensor") and isinstance(value, torch.Tensor):
            self._tensor(torch, value)
        elif isinstance(value, np.ndarray):
            self._ndarray(value)
        elif image is not None and isinstance(value, image.Image):
            self._image(value)
        elif type(value) in (bytes, bytearray, memoryview):
            self._bytes(value)
        elif isinstance(value, dict):
            self._map(value, value, depth)
        elif isinstance(value, (list, tuple)):
            self._array(value, value, depth)
        elif isinstance(value, (set, frozenset)):
            self._array(value, list(value), depth)
        elif isinstance(value, slice):
            self._array(value, (value.start, value.stop, value.step), depth)
        elif isinstance(value, msgspec.Struct):
            self._struct(value, depth)
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = ((f.name, getattr(value, f.name)) for f in dataclasses.fields(value))
            parts = {name: part for name, part in fields if part is not msgspec.UNSET}
            self._map(value, parts, depth, dotted=True)
        elif isinstance(value, (enum.Enum, *_AS_THEY_DO)):
            self._plain(value)
        else:
            raise _unknown(value)

    # --- what MessagePack knows -------------------------------------------------------------------

    def _plain(self, value: Any) -> None:
        try:
            self._text += _encode(value)
        except (OverflowError, TypeError, ValueError) as error:
            raise UnsendableError(f"{short(value)} cannot be sent to vLLM-Omni: {error}") from None

    def _bytes(self, value: bytes | bytearray | memoryview) -> None:
        try:
            if memoryview(value).nbytes <= INLINE_BYTES:
                self._text += _encode(value)
            else:
                self._raw(bytes_frame(value))
        except (BufferError, TypeError, ValueError) as error:
            raise UnsendableError(f"bytes that do not lie one after another ({error})") from None

    def _map(self, owner: Any, parts: dict[Any, Any], depth: int, *, dotted: bool = False) -> None:
        if depth >= DEPTH_LIMIT:
            raise too_deep()
        for marker in MARKERS:
            if parts.get(marker):
                raise UnsendableError(
                    f"a dictionary with the key {marker!r} would be taken for something else by "
                    "vLLM-Omni; rename the key"
                )
        if PLAIN.issuperset(map(type, parts.values())) and self._at_once(parts):
            return
        self._text += _head(len(parts), 0x80, 0xDE)
        for key, item in parts.items():
            try:
                self._key(key)
                self.tree(item, depth + 1)
            except UnsendableError as refused:
                refused.at(owner, f".{key}" if dotted else f"[{short(key)}]")
                raise

    def _array(self, owner: Any, items: Sequence[Any], depth: int) -> None:
        if depth >= DEPTH_LIMIT:
            raise too_deep()
        if items:
            kind = type(items[0])
            same = kind in PLAIN and countOf(map(type, items), kind) == len(items)
            if (same or PLAIN.issuperset(map(type, items))) and self._at_once(items):
                return
        self._text += _head(len(items), 0x90, 0xDC)
        for number, item in enumerate(items):
            try:
                self.tree(item, depth + 1)
            except UnsendableError as refused:
                refused.at(owner, f"[{number}]")
                raise

    def _at_once(self, plain: Any) -> bool:
        """Write a container of plain items; ``False`` when one of them cannot be written."""
        try:
            self._text += _encode(plain)
        except (OverflowError, TypeError, ValueError):
            return False
        return True

    def _key(self, key: Any) -> None:
        try:
            self._text += _encode(key)
        except (OverflowError, TypeError, ValueError) as error:
            raise UnsendableError(f"a key that cannot be sent to vLLM-Omni: {error}") from None

    def _struct(self, value: msgspec.Struct, depth: int) -> None:
        tag, config = value.__struct_config__.tag, value.__struct_config__
        if config.array_like:
            parts = [getattr(value, name) for name in value.__struct_fields__]
            self._array(value, parts if tag is None else [tag, *parts], depth)
        else:
            fields = dict(_told(value))
            if tag is not None:
                fields = {str(config.tag_field): tag, **fields}
            self._map(value, fields, depth, dotted=True)

    # --- what it does not know --------------------------------------------------------------------

    def _tensor(self, torch: Any, value: Any) -> None:
        name = str(value.dtype).removeprefix("torch.")
        try:
            plain = name in TENSOR_CODES and value.layout is torch.strided
            if not plain or value.dim() > DIMENSION_LIMIT:
                raise refusal(value)
            frame = frame_of(torch, value)
        except RuntimeError as error:  # torch says so of what has no plain memory
            raise refusal(value, str(error)) from None
        self._marked(TENSOR, {"dtype": name, "shape": list(value.shape)}, frame)

    def _ndarray(self, value: np.ndarray[Any, Any]) -> None:
        dtype = value.dtype
        if dtype.kind in "OV" or dtype.hasobject or dtype.num >= _USER_DEFINED:
            raise UnsendableError(
                f"a numpy array of dtype {dtype} cannot be sent to vLLM-Omni; send its fields as "
                "arrays, or its items as a list"
            )
        marks = {"dtype": dtype.str, "shape": list(value.shape)}
        self._marked(ARRAY, marks, array_frame(value))

    def _image(self, value: Any) -> None:
        try:
            value.load()
        except Exception as error:  # whatever a file format's plug-in raises
            raise UnsendableError(
                f"an image of which the pixels cannot be read ({error})"
            ) from error
        mode, (width, height) = value.mode, value.size
        bands = IMAGE_BANDS.get(mode)
        if bands is None or mode in PALETTES:
            raise UnsendableError(
                f"a PIL image of mode {mode!r} cannot be sent to vLLM-Omni, which knows bytes of "
                "colour only; send image.convert('RGB'), or numpy.asarray(image)"
            )
        shape = [height, width] if bands == 1 else [height, width, bands]
        frame = ImageFrame(width * height * bands, 0, value)
        self._marked(IMAGE, {"mode": mode, "shape": shape}, frame)

    def _marked(self, marker: str, marks: dict[str, Any], frame: Frame) -> None:
        self._text += _head(len(marks) + 2, 0x80, 0xDE)
        for key, mark in ((marker, True), *marks.items()):
            self._text += _encode(key)
            self._text += _encode(mark)
        self._text += _encode("data")
        self._raw(frame)

    def _raw(self, frame: Frame) -> None:
        nbytes = frame.nbytes
        if nbytes > BIN_LIMIT:
            raise UnsendableError(
                f"{nbytes:,} bytes in one piece cannot be sent to vLLM-Omni, whose objects hold at "
                f"most {BIN_LIMIT:,}; split it"
            )
        self._text += _bin_head(nbytes)
        if nbytes:
            self._flush()
            self._parts.append(frame)
            self._nbytes += nbytes
            if frame.device != "cpu":
                self._device = frame.device
            if len(self._parts) > 2 * FRAME_LIMIT:
                raise UnsendableError(f"more than {FRAME_LIMIT} tensors, arrays and long bytes")

    def _flush(self) -> None:
        if self._text:
            self._parts.append(self._text)
            self._nbytes += len(self._text)
            self._text = bytearray()


_NO_DEFAULT = object()
_USER_DEFINED = 256
"""From this number on a numpy dtype belongs to another package or keeps its items elsewhere."""


def _told(value: msgspec.Struct) -> Iterator[tuple[str, Any]]:
    """A struct's fields by the names they are encoded under, without those that are left out."""
    omits = value.__struct_config__.omit_defaults
    fields, told, defaults = (
        value.__struct_fields__,
        value.__struct_encode_fields__,
        value.__struct_defaults__,
    )
    first = len(fields) - len(defaults)
    for number, field in enumerate(fields):
        part = getattr(value, field)
        default = defaults[number - first] if omits and number >= first else _NO_DEFAULT
        if part is not default and part is not msgspec.UNSET and not _is_empty(part, default):
            yield told[number], part


def _is_empty(part: Any, default: Any) -> bool:
    """Whether a default that is made anew each time would be just as empty."""
    kind: Any = getattr(default, "factory", None)
    return kind in (list, dict, set) and type(part) is kind and not part


def _unknown(value: Any) -> UnsendableError:
    name = type(value).__name__
    if isinstance(value, np.generic):
        remedy = "send its item()"
    elif isinstance(value, (str, bytes, int, float)):
        remedy = f"send a plain {type(value).__mro__[-2].__name__}"
    elif isinstance(value, complex):
        remedy = "send its real and imag, or a tensor"
    else:
        remedy = "send its content as a dictionary of plain values, tensors and arrays"
    return UnsendableError(f"object of type {name} cannot be sent to vLLM-Omni; {remedy}")


def _head(count: int, short_mark: int, long_mark: int) -> bytes:
    """The beginning of a map or an array."""
    if count < 16:
        return bytes([short_mark | count])
    if count < 1 << 16:
        return bytes([long_mark]) + count.to_bytes(2, "big")
    return bytes([long_mark + 1]) + count.to_bytes(4, "big")


def _bin_head(nbytes: int) -> bytes:
    if nbytes < 1 << 8:
        return bytes([0xC4, nbytes])
    if nbytes < 1 << 16:
        return b"\xc5" + nbytes.to_bytes(2, "big")
    return b"\xc6" + nbytes.to_bytes(4, "big")
