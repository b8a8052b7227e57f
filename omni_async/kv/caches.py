"""The cache tensors of an engine: where each is in this process, and where peers find it.

In: tensors, or a KVMemory. Out: addresses, regions, spots to tell peers.
Never: copies a byte, frees a tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ..errors import UsageError
from ..model import Verb
from .layout import KVLayout
from .memory import KVMemory


class Span(NamedTuple):
    """Memory that is registered in one piece."""

    address: int
    nbytes: int
    fd: int = -1


class Caches:
    """All tensors of one rank.

    Args:
        layout: what they hold.
        caches: one item a layer (a tensor, or a pair of keys and values), or a :class:`KVMemory`.

    Raises:
        UsageError: they do not lie as the layout says; tells both.
    """

    def __init__(self, layout: KVLayout, caches: KVMemory | Sequence[Any]) -> None:
        self.layout = layout
        self._per_layer = len(layout.tensor_nbytes)
        self.memory = caches if isinstance(caches, KVMemory) else None
        if isinstance(caches, KVMemory):
            if caches.layout != layout:
                raise UsageError(f"the memory is for {caches.layout}, not for {layout}")
            base = caches.block.address
            self.addresses = [base + offset for offset in caches.offsets]
            self._keep: Any = caches
            self.device = "cpu"
            return
        _compare(layout, caches)
        tensors = [
            tensor
            for layer in caches
            for tensor in (layer if isinstance(layer, (tuple, list)) else (layer,))
        ]
        self.addresses = [_address(tensor) for tensor in tensors]
        self._keep = tensors
        self.device = str(getattr(tensors[0], "device", "cpu"))

    def bases(self, layer: int) -> list[int]:
        """Addresses of one layer's tensors."""
        start = layer * self._per_layer
        return self.addresses[start : start + self._per_layer]

    def spans(self, verb: Verb) -> list[Span]:
        """What has to be registered: as few pieces as there are blocks of memory.

        Raises:
            UsageError: peers map this backend's memory, which private memory does not bear.
        """
        if self.memory is not None:
            block = self.memory.block
            return [Span(block.address, block.nbytes, block.fd)]
        if verb is Verb.MAP:
            raise UsageError(
                "this backend's consumers map a producer's caches, so they have to lie in shared memory: make "
                "them by KVMemory(layout) and give that instead of tensors"
            )
        sizes = list(self.layout.tensor_nbytes) * self.layout.layers
        spans: list[Span] = []
        for address, nbytes in sorted(zip(self.addresses, sizes, strict=True)):
            if spans and spans[-1].address + spans[-1].nbytes >= address:
                last = spans.pop()
                end = max(last.address + last.nbytes, address + nbytes)
                spans.append(Span(last.address, end - last.address))
            else:
                spans.append(Span(address, nbytes))
        return spans


def _compare(layout: KVLayout, caches: Sequence[Any]) -> None:
    found = KVLayout.of(
        caches,
        kv_heads=layout.kv_heads,
        block_size=layout.block_size,
        form=layout.form,
        order=layout.order,
        tp_size=layout.tp_size,
        tp_rank=layout.tp_rank,
    )
    if found != layout:
        raise UsageError(f"the caches are {found}, not {layout}")


def _address(tensor: Any) -> int:
    if hasattr(tensor, "data_ptr"):
        return int(tensor.data_ptr())
    return int(tensor.__array_interface__["data"][0])
