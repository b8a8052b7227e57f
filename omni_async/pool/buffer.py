"""ManagedBuffer: the bytes of a payload, or room for one, as whoever uses them likes it.

In: a 1-D uint8 array that keeps its memory alive. Out: the same bytes as array, tensor or bytes.
Never: copies unless asked to, frees memory that a view still shows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ..errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    import torch

    Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]

__all__ = ["ManagedBuffer"]


class ManagedBuffer:
    """Bytes in memory of a transport.

    :meth:`release` gives up the buffer's own reference. Arrays and tensors made before stay valid,
    and the memory is used again only when the last of them is gone.
    """

    __slots__ = ("_array", "_nbytes")

    def __init__(self, array: Bytes) -> None:
        if array.ndim != 1 or array.dtype.str != "|u1" or not array.flags.c_contiguous:
            raise UsageError(
                f"a buffer is a contiguous 1-D uint8 array, not {array.dtype} of {array.shape}"
            )
        self._array: Bytes | None = array
        self._nbytes = int(array.size)

    @property
    def nbytes(self) -> int:
        """Length in bytes; known after :meth:`release` too."""
        return self._nbytes

    @property
    def array(self) -> Bytes:
        """The bytes as a numpy array, uint8, 1-D."""
        if self._array is None:
            raise UsageError(f"this buffer of {self._nbytes:,} bytes was released")
        return self._array

    @property
    def tensor(self) -> torch.Tensor:
        """The bytes as a torch tensor, uint8, 1-D."""
        import torch

        return torch.from_numpy(self.array)

    def as_tensor(self, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
        """The bytes as a tensor of ``dtype`` and ``shape``, which must fill them exactly.

        Raises:
            UsageError: another number of bytes, a negative size, or the buffer was released.
        """
        shape = tuple(shape)
        if any(size < 0 for size in shape):
            raise UsageError(f"a size in {shape} is negative")
        wanted = math.prod(shape) * dtype.itemsize
        if wanted != self._nbytes:
            raise UsageError(
                f"{dtype} of {shape} needs {wanted:,} bytes, this buffer has {self._nbytes:,}"
            )
        tensor = self.tensor
        if not wanted:  # torch cannot view no bytes as another type
            return tensor.new_empty(shape, dtype=dtype)
        return tensor.view(dtype).view(shape)

    def to_bytes(self) -> bytes:
        """A copy."""
        return self.array.tobytes()

    def release(self) -> None:
        """Give up the buffer's own reference; from any thread, more than once."""
        self._array = None

    def __len__(self) -> int:
        return self._nbytes

    def __enter__(self) -> ManagedBuffer:
        self.array  # noqa: B018  # a released buffer is refused here already
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def __reduce__(self) -> Any:
        raise UsageError("a buffer belongs to its process; send its bytes")

    def __repr__(self) -> str:
        state = ", released" if self._array is None else ""
        return f"<ManagedBuffer {self._nbytes:,} bytes{state}>"
