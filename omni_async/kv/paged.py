"""One request's tokens out of a serving engine's paged caches, as flat tensors by layer.

In: caches in any of the forms that engines use, block ids, how many tokens. Out: bytes at their place.
Never: leaves out a block or a layer that was asked for; takes a form for another where that can be seen.

=====================================  ==================================================
form of a layer                        shape
=====================================  ==================================================
keys and values apart                  a pair of ``[blocks, block size, heads, head size]``
stacked                                ``[2, blocks, block size, heads, head size]``
stacked by block                       ``[blocks, 2, block size, heads, head size]``
packed                                 ``[blocks, heads, block size, 2 × head size]``
=====================================  ==================================================
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from ..codec.tensors import load_torch
from ..errors import UsageError
from ..interop.vllm_omni.kv_payload import TensorSpec, spec_of
from ..interop.vllm_omni.kv_topology import HeadSlice, heads_of
from ..interop.vllm_omni.kv_triggers import blocks_to_send


class Blocks(NamedTuple):
    """Keys and values of a layer, each ``[blocks, block size, heads, head size]``; views."""

    keys: Any
    values: Any


def blocks_of(layer: Any, block_size: int, name: str = "the layer") -> Blocks:
    """A layer's keys and values, whatever form they are in.

    Raises:
        UsageError: no such form; its blocks have another size; keys and values have not as many.
    """
    torch = load_torch().module
    if isinstance(layer, (tuple, list)):
        if len(layer) != 2 or not all(isinstance(tensor, torch.Tensor) for tensor in layer):
            raise UsageError(f"{name} is a {type(layer).__name__} that is no pair of tensors")
        keys, values = layer
    elif not isinstance(layer, torch.Tensor):
        raise UsageError(f"{name} is a {type(layer).__name__}, not a tensor or a pair of them")
    elif layer.dim() == 4 and layer.shape[2] == block_size and layer.shape[3] % 2 == 0:
        # Looked for first: with two heads it would look stacked.
        keys, values = layer.transpose(1, 2).split(layer.shape[3] // 2, dim=-1)
    elif layer.dim() >= 4 and layer.shape[0] == 2:
        keys, values = layer[0], layer[1]
    elif layer.dim() >= 4 and layer.shape[1] == 2:
        keys, values = layer[:, 0], layer[:, 1]
    else:
        raise UsageError(
            f"{name} of shape {tuple(layer.shape)} is no cache in blocks of {block_size}"
        )
    for tensor in (keys, values):
        if tensor.dim() < 3 or tensor.shape[1] != block_size:
            raise UsageError(
                f"{name} has blocks of shape {tuple(tensor.shape[1:])}, not of {block_size} tokens"
            )
    if len(keys) != len(values) or keys.device != values.device:
        raise UsageError(
            f"{name} has {len(keys)} blocks of keys on {keys.device}, "
            f"{len(values)} of values on {values.device}"
        )
    return Blocks(keys, values)


class Extraction:
    """What one request's tokens are in some caches; checked before a byte moves.

    Args:
        caches: one for each layer; ``None`` for one that has no cache and is in ``absent_layers``.
        block_ids: the request's; those behind ``tokens`` are not looked at.
        tokens: how many are taken.
        share: which of the heads; all by default.

    Raises:
        UsageError: a layer that is none, or is not there; blocks that do not exist, or are too few.
        ConfigError: heads that do not divide.
    """

    def __init__(
        self,
        caches: Sequence[Any],
        block_ids: Sequence[int],
        tokens: int,
        block_size: int,
        *,
        absent_layers: Collection[int] = (),
        share: HeadSlice | None = None,
    ) -> None:
        self.tokens = tokens
        self.block_ids = blocks_to_send([operator.index(b) for b in block_ids], tokens, block_size)
        self._layers: list[Blocks | None] = []
        lowest, highest = min(self.block_ids), max(self.block_ids)
        for number, layer in enumerate(caches):
            if layer is None and number in absent_layers:
                self._layers.append(None)
                continue
            blocks = blocks_of(layer, block_size, f"layer {number}")
            if lowest < 0 or highest >= len(blocks.keys):
                raise UsageError(
                    f"block {lowest if lowest < 0 else highest} of layer {number}, "
                    f"which has {len(blocks.keys)}"
                )
            self._layers.append(blocks if share is None else _of_heads(blocks, share, number))
        devices = {layer.keys.device for layer in self._layers if layer is not None}
        if not devices:
            raise UsageError("a KV cache without a single layer")
        self.on_host = all(device.type == "cpu" for device in devices)
        self._written = _events(devices)

    @property
    def keys(self) -> list[TensorSpec | None]:
        """What :meth:`into` makes of keys, by layer."""
        return [None if layer is None else self._spec(layer.keys) for layer in self._layers]

    @property
    def values(self) -> list[TensorSpec | None]:
        """What it makes of values."""
        return [None if layer is None else self._spec(layer.values) for layer in self._layers]

    def _spec(self, blocks: Any) -> TensorSpec:
        spec = spec_of(blocks)
        assert spec is not None
        return TensorSpec(spec.dtype, (self.tokens, *spec.shape[2:]))

    def into(self, place: Callable[[bool, int], Any]) -> None:
        """Copy everything to where it goes; blocks until it is there.

        What streams of a device had been given to do when this was made comes first.

        Args:
            place: where keys (``True``) or values of a layer go: flat bytes on the host.
        """
        torch = load_torch().module
        for event in self._written:
            event.synchronize()
        numbers: dict[Any, Any] = {}
        for number, layer in enumerate(self._layers):
            if layer is None:
                continue
            device = layer.keys.device
            if device not in numbers:
                numbers[device] = torch.tensor(self.block_ids, device=device)
            self._gather(torch, layer.keys, numbers[device], place(True, number))
            self._gather(torch, layer.values, numbers[device], place(False, number))

    def _gather(self, torch: Any, blocks: Any, numbers: Any, target: Any) -> None:
        carrier = _carrier(torch, blocks.dtype)
        source, flat = blocks.detach().view(carrier), target.view(carrier)
        size = source.shape[1]
        whole, rest = divmod(self.tokens, size)
        tail = source.shape[2:]
        each = size * tail.numel()
        if whole:
            there = flat[: whole * each].view(whole, size, *tail)
            if source.is_cpu:
                torch.index_select(source, 0, numbers[:whole], out=there)
            else:
                there.copy_(torch.index_select(source, 0, numbers[:whole]))
        if rest:
            flat[whole * each :].view(rest, *tail).copy_(source[self.block_ids[whole], :rest])


def _of_heads(blocks: Blocks, share: HeadSlice, number: int) -> Blocks:
    parts = []
    for tensor in blocks:
        if tensor.dim() < 4:
            raise UsageError(f"layer {number} of shape {tuple(tensor.shape)} has no heads to share")
        first, last = heads_of(tensor.shape[2], share)
        parts.append(tensor[:, :, first:last])
    return Blocks(*parts)


def _events(devices: Collection[Any]) -> list[Any]:
    """The ends of what has been queued for the caches, on the streams of whoever asks."""
    torch = load_torch().module
    events = []
    for device in devices:
        runtime: Any = getattr(torch, device.type, None)
        if device.type != "cpu" and hasattr(runtime, "current_stream"):
            events.append(runtime.current_stream(device).record_event())
    return events


def _carrier(torch: Any, dtype: Any) -> Any:
    """A dtype of that size for which every copy is made."""
    sizes = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return sizes.get(dtype.itemsize, dtype)
