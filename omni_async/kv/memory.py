"""KV caches in shared memory that can be taken away from peers without being taken from the engine.

In: a layout. Out: cache tensors, a descriptor to pass along, mappings for writers that can be diverted.
Never: frees memory that a tensor or a writer still has.

A transfer engine is told an address, and whoever was told one may write there late: a peer that was
stopped, or data in a dead peer's socket. So writers get a mapping of their own of these pages. When nobody
can say any more whether one of them has ended, that mapping is led to other pages: the caches, which the
engine sees through its own mapping, are out of reach from then on.
"""

from __future__ import annotations

import functools
import math
import os
from typing import TYPE_CHECKING, Any

from ..errors import UsageError
from ..pool.memory import PAGE, MappedBlock, MemfdMemory, map_fd
from .layout import KVLayout

if TYPE_CHECKING:
    import torch


class KVMemory:
    """The caches of one rank, in one block of shared memory of this host.

    Args:
        layout: what they hold.

    Raises:
        MemoryError: the system refused.
        UsageError: torch is missing.

    Bytes are zero at first, and pages come as they are touched. The block goes when neither this object
    nor a tensor is left.
    """

    def __init__(self, layout: KVLayout) -> None:
        self.layout = layout
        sizes = [nbytes for _ in range(layout.layers) for nbytes in layout.tensor_nbytes]
        self.offsets: list[int] = []
        """Of each tensor, all of the first layer first. Each begins on a page."""
        end = 0
        for nbytes in sizes:
            self.offsets.append(end)
            end += -(-nbytes // PAGE) * PAGE
        self.block: MappedBlock = MemfdMemory("omni-async-kv").allocate(end)
        self._torch = _torch()

    @property
    def nbytes(self) -> int:
        """Bytes of the whole block."""
        return self.block.nbytes

    @functools.cached_property
    def caches(self) -> list[torch.Tensor | tuple[torch.Tensor, torch.Tensor]]:
        """One item a layer, as :meth:`KVLayout.of` takes them: a tensor, or one of keys and one of values."""
        layers: list[Any] = []
        offsets = iter(self.offsets)
        for _ in range(self.layout.layers):
            made = tuple(self._tensor(next(offsets), shape) for shape in self.layout.shapes)
            layers.append(made[0] if len(made) == 1 else made)
        return layers

    def mapping(self) -> MappedBlock:
        """One more mapping of the same pages."""
        return map_fd(os.dup(self.block.fd), self.block.nbytes)

    def _tensor(self, offset: int, shape: tuple[int, ...]) -> torch.Tensor:
        dtype = getattr(self._torch, self.layout.dtype)
        nbytes = math.prod(shape) * dtype.itemsize
        flat = self._torch.frombuffer(self.block.view(offset, nbytes), dtype=self._torch.uint8)
        found: torch.Tensor = flat.view(dtype).view(shape)
        return found


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise UsageError(f"KV caches are torch tensors: pip install torch ({error})") from None
    return torch
