"""An object of vLLM-Omni, from the bytes as they have landed.

In: MessagePack with markers, in memory that may be written to. Out: the value, or one ``DecodeError``.
Never: evaluates or imports what it was sent, allocates by a length it was sent, makes classes of maps.

Inside such an object nothing is aligned. Tensors and arrays of some size become views nevertheless:
what was in front of their bytes has been read by then, so they are moved down to the nearest boundary,
in place. That is one pass over the bytes and takes no memory.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any

import msgspec
import numpy as np

from ...codec.arrays import parse, plain
from ...codec.images import load_pil, pixel_bytes
from ...codec.limits import DEPTH_LIMIT, DIMENSION_LIMIT
from ...codec.reader import MALFORMED, Buffer
from ...codec.tensors import load_torch, tensor_over
from ...codec.writer import PLAIN
from ...errors import DecodeError, UsageError
from ...model import ALIGNMENT
from .markers import ARRAY, IMAGE_BANDS, MARKERS, TENSOR, TENSOR_CODES

PREFIX = 1
"""Bytes that a transport may have put in front of an object."""

SPLIT = 4096
"""Bytes of a part from which on the bytes inside it are looked at where they are, not copied."""
_SPARSE = 64
"""Bytes of an item, on average: containers of less are read as a whole."""

_NATURAL = 16
"""Alignment that serves every dtype."""

_FLAT = PLAIN | {bytes}


def _no_extension(code: int, data: memoryview) -> Any:
    raise DecodeError(f"the object has an unknown extension {code}")


_load = msgspec.msgpack.Decoder(ext_hook=_no_extension).decode
_skip = msgspec.msgpack.Decoder(msgspec.Raw).decode
_map_of = msgspec.msgpack.Decoder(dict[Any, msgspec.Raw], ext_hook=_no_extension).decode
_list_of = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_view_of = msgspec.msgpack.Decoder(memoryview).decode


class Moves:
    """What was moved inside of a buffer, so that it can be undone while nobody has seen the value."""

    def __init__(self) -> None:
        self._done: list[tuple[int, int, int, bytes]] = []

    def move(self, target: int, address: int, nbytes: int) -> None:
        """Move bytes down; what they cover now is kept."""
        self._done.append((target, address, nbytes, ctypes.string_at(target, address - target)))
        ctypes.memmove(target, address, nbytes)

    def undo(self) -> None:
        """Put everything back where it was. Blocks as long as moving did."""
        while self._done:
            target, address, nbytes, covered = self._done.pop()
            ctypes.memmove(address, target, nbytes)
            ctypes.memmove(target, covered, len(covered))


def read(
    landed: Buffer,
    nbytes: int,
    *,
    copy: bool = False,
    device: Any = None,
    moves: Moves | None = None,
) -> Any:
    """Decode one object.

    Args:
        landed: uint8, one dimension, writable; the object is at its begin, or :data:`PREFIX` bytes
            behind it. Tensors and arrays may be views that keep this array alive, aligned to 64 bytes
            wherever there is room. Its bytes are worth nothing afterwards.
        nbytes: length of the object.
        copy: give tensors and arrays memory of their own instead.
        device: a torch device to put tensors on; blocks until they are there.
        moves: by which ``landed`` can be made what it was.

    Raises:
        DecodeError: the bytes are no object, or hold something that is not known here.
        UsageError: ``device`` cannot take a tensor.
    """
    try:
        start = begin(landed, nbytes)
        reading = _Reading(landed, copy, device, moves or Moves())
        return reading.value(landed.data[start : start + nbytes], 0)
    except UsageError:  # a ValueError, but not the object's fault
        raise
    except RecursionError:
        raise DecodeError("the object is nested too deeply") from None
    except MALFORMED as error:
        raise DecodeError(f"the object is malformed ({type(error).__name__}: {error})") from error


def begin(landed: Buffer, nbytes: int) -> int:
    """Where in ``landed`` there is something that is one MessagePack value."""
    try:
        _skip(landed.data[:nbytes])
    except msgspec.DecodeError:
        if len(landed) < nbytes + PREFIX:
            raise
        try:
            _skip(landed.data[PREFIX : PREFIX + nbytes])
        except msgspec.DecodeError:
            pass
        else:
            return PREFIX
        raise
    return 0


class _Reading:
    """One walk from the object's first byte to its last."""

    def __init__(self, landed: Buffer, copy: bool, device: Any, moves: Moves) -> None:
        self._landed = landed
        self._moves = moves
        self._base: int = landed.__array_interface__["data"][0]
        self._floor = self._base
        """Up to here tensors and arrays lie; whatever else was there has been read."""
        self._own = copy
        self.copy = False  # once is enough: see _buffer
        self.device = device

    def value(self, data: memoryview, depth: int) -> Any:
        """The value of one part."""
        nbytes = len(data)
        if nbytes <= SPLIT:
            return self._restored(_load(data), depth)
        count, is_map = _count(data)
        if not count or nbytes < count * _SPARSE:
            return self._restored(_load(data), depth)
        _check(depth)
        if not is_map:
            return [self.value(memoryview(item), depth + 1) for item in _list_of(data)]
        parts = _map_of(data)
        if len(parts) != count:  # then they would not be read in the order in which they lie
            raise DecodeError("the object has a map with the same key twice")
        marker = next((m for m in MARKERS if m in parts and _load(parts[m])), None)
        if marker is None:
            return {key: self.value(memoryview(part), depth + 1) for key, part in parts.items()}
        raw = parts.pop("data")
        marks = {name: _load(part) for name, part in parts.items() if name in _MARKS}
        return self._marked(marker, marks, _view_of(raw))

    def _restored(self, part: Any, depth: int) -> Any:
        """What was read as a whole, with the marked maps inside it made into what they stand for."""
        kind = type(part)
        if kind is list:
            if not _FLAT.issuperset(map(type, part)):
                _check(depth)
                part[:] = [self._restored(item, depth + 1) for item in part]
        elif kind is dict:
            marker = next((m for m in MARKERS if part.get(m)), None)
            if marker is not None:
                data = part["data"]
                if type(data) is not bytes:
                    raise DecodeError(f"the object has a {marker} whose data are no bytes")
                return self._marked(marker, part, memoryview(data))
            if not _FLAT.issuperset(map(type, part.values())):
                _check(depth)
                for key, item in part.items():
                    part[key] = self._restored(item, depth + 1)
        return part

    def _marked(self, marker: str, marks: dict[str, Any], data: memoryview) -> Any:
        if marker == TENSOR:
            return self._tensor(marks, data)
        if marker == ARRAY:
            return self._array(marks, data)
        return _image(marks, data)

    def _tensor(self, marks: dict[str, Any], data: memoryview) -> Any:
        torch = load_torch()
        name, shape = marks["dtype"], _shape(marks["shape"])
        code = TENSOR_CODES.get(name) if type(name) is str else None
        if code is None:
            raise DecodeError(f"the object has a tensor of the unknown dtype {name!r}")
        form = torch.forms[code]
        if form is None:
            raise DecodeError(
                f"the object has a tensor of dtype {name}, not known to torch here", missing=name
            )
        buffer = self._buffer(data, math.prod(shape) * form.itemsize, form.itemsize)
        if not len(buffer):
            return torch.module.empty(shape, dtype=torch.dtypes[code], device=self.device)
        return tensor_over(torch, self, buffer, shape, form.carrier, form.dtype)

    def _array(self, marks: dict[str, Any], data: memoryview) -> Any:
        name, shape = marks["dtype"], _shape(marks["shape"])
        if type(name) is not str:
            raise DecodeError(f"the object has an array of the unknown dtype {name!r}")
        dtype = plain(parse(name))
        if dtype.kind == "V":
            raise DecodeError(f"the object has an array of dtype {name}")
        buffer = self._buffer(data, math.prod(shape) * dtype.itemsize, dtype.alignment)
        return np.ndarray(shape, dtype, buffer)

    def _buffer(self, data: memoryview, nbytes: int, alignment: int) -> Buffer:
        """The bytes of a tensor or an array, where they can stay."""
        if len(data) != nbytes:
            raise DecodeError(f"the object has {len(data)} bytes for what takes {nbytes}")
        if not nbytes:
            return self._landed[:0]
        source = np.frombuffer(data, np.uint8)
        address: int = source.__array_interface__["data"][0]
        if self._own or not self._base <= address < self._base + len(self._landed):
            return _copied(source)
        target = self._room(address, alignment)
        if target < 0:
            return _copied(source)
        if target != address:
            self._moves.move(target, address, nbytes)
        self._floor = target + nbytes
        at = target - self._base
        return self._landed[at : at + nbytes]

    def _room(self, address: int, alignment: int) -> int:
        """The best place for what lies at ``address``, at or below it; -1 where there is none."""
        for step in (ALIGNMENT, _NATURAL, alignment):
            lower = address - address % step
            if lower >= self._floor:
                return lower
        return -1


_MARKS = frozenset({"dtype", "shape", "mode"})


def _count(data: memoryview) -> tuple[int, bool]:
    """How many items a container has, and whether it is a map; 0 for everything else."""
    first = data[0]
    if first >> 4 in (0x8, 0x9):
        return first & 0xF, first >> 4 == 0x8
    if first in (0xDC, 0xDD, 0xDE, 0xDF):
        width = 4 if first & 1 else 2
        return int.from_bytes(data[1 : 1 + width], "big"), first >= 0xDE
    return 0, False


def _check(depth: int) -> None:
    if depth >= DEPTH_LIMIT:
        raise DecodeError(f"the object is nested deeper than {DEPTH_LIMIT} levels")


def _shape(given: Any) -> tuple[int, ...]:
    if type(given) is not list or len(given) > DIMENSION_LIMIT:
        raise DecodeError("the object has a shape that is no list of a few sizes")
    if any(type(size) is not int or size < 0 for size in given):
        raise DecodeError(f"the object has a shape of {given}")
    return tuple(given)


def _copied(source: Buffer) -> Buffer:
    """The same bytes in aligned memory of their own."""
    nbytes = len(source)
    spare = np.empty(nbytes + ALIGNMENT, np.uint8)
    skip = -int(spare.__array_interface__["data"][0]) % ALIGNMENT
    own = spare[skip : skip + nbytes]
    own[:] = source
    return own


def _image(marks: dict[str, Any], data: memoryview) -> Any:
    mode, shape = marks["mode"], _shape(marks["shape"])
    bands = IMAGE_BANDS.get(mode) if type(mode) is str else None
    if bands is None:
        raise DecodeError(f"the object has an image of the unknown mode {mode!r}")
    if len(shape) < 2 or (*shape, 1)[2] != bands or len(shape) > 3:
        raise DecodeError(f"the object has an image of mode {mode} and shape {list(shape)}")
    height, width = shape[:2]
    if pixel_bytes(mode, width, height) != len(data):
        raise DecodeError(f"the object has {len(data)} bytes for an image of {width} x {height}")
    return load_pil().frombytes(mode, (width, height), data)
