"""Reader: one walk back, from a header's body and its buffers to the value.

In: MessagePack bytes and one array per frame. Out: the value, its tensors being views of those arrays.
Never: trusts a length, an index or a tag.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np

from ..errors import DecodeError
from .limits import DEPTH_LIMIT

Buffer = np.ndarray[Any, np.dtype[np.uint8]]


class DeviceBuffer(Protocol):
    """The bytes of a frame where they are on a device."""

    tensor: Any
    """As a torch tensor of uint8 with one dimension, which nobody else uses."""

    @property
    def nbytes(self) -> int: ...

    def fetch(self) -> Buffer:
        """On the host; blocks."""
        ...


Read = Callable[["Reader", memoryview], Any]
"""(reader, body of the extension) -> value. Anything it raises but ``DecodeError`` means malformed."""

MALFORMED = (
    ArithmeticError,
    AttributeError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    struct.error,
)
"""What parts of wrong types, lengths or ranges run into on their way; msgspec's own is a ValueError."""

_BODIES = DEPTH_LIMIT + 3
"""Bodies inside one another: the value's own, one per level, a time's and its zone's."""

_load = msgspec.msgpack.decode


class Reader:
    """The buffers not yet used, and how views of them are to be made."""

    __slots__ = ("_buffers", "_depth", "_readers", "copy", "device", "left", "writable")

    def __init__(
        self,
        readers: dict[int, Read],
        buffers: Sequence[Buffer | DeviceBuffer],
        copy: bool,
        writable: bool,
        device: Any = None,
    ) -> None:
        self._readers = readers
        self._buffers: list[Buffer | DeviceBuffer | None] = list(buffers)
        self._depth = 0
        self.left = len(self._buffers)
        self.copy = copy
        self.writable = writable
        self.device = device

    def value(self, data: memoryview) -> Any:
        """The value of one body."""
        self._depth += 1
        if self._depth > _BODIES:
            raise DecodeError(f"the payload is nested deeper than {DEPTH_LIMIT} levels")
        value = _load(data, ext_hook=self._extension)
        self._depth -= 1
        return value

    def items(self, data: memoryview) -> list[Any]:
        """The value of a body that has to be a list."""
        items = self.value(data)
        if type(items) is not list:
            raise DecodeError(f"the payload has a {type(items).__name__} where a list belongs")
        return items

    def take(self, index: int, nbytes: int) -> Buffer:
        """The buffer of a frame, once, on the host."""
        buffer = self.take_anywhere(index, nbytes)
        return buffer if isinstance(buffer, np.ndarray) else buffer.fetch()

    def take_anywhere(self, index: int, nbytes: int) -> Buffer | DeviceBuffer:
        """The same where it is."""
        if not 0 <= index < len(self._buffers):
            raise DecodeError(f"the payload needs frame {index}, {len(self._buffers)} came")
        buffer = self._buffers[index]
        if buffer is None:
            raise DecodeError(f"the payload uses frame {index} twice")
        if buffer.nbytes != nbytes:
            raise DecodeError(f"frame {index} has {buffer.nbytes} bytes, its value takes {nbytes}")
        self._buffers[index] = None
        self.left -= 1
        return buffer

    def finish(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """A view of a buffer as the caller wants it: copied, read-only or as it is."""
        if self.copy:
            return np.array(array)
        if not self.writable:
            array.flags.writeable = False
        return array

    def _extension(self, tag: int, data: memoryview) -> Any:
        read = self._readers.get(tag)
        if read is None:
            raise DecodeError(f"the payload has an unknown tag {tag}")
        return read(self, data)
