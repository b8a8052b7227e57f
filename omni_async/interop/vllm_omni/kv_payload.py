"""A KV cache as vLLM-Omni packs it: one request's keys and values by layer, in one piece of bytes.

In: tensors by layer, or what they will be. Out: packed bytes, or where in them each tensor goes; ``EncodeError``.
Never: packs what vLLM-Omni's reader cannot read.

The format is four bytes of length (big-endian), a header in JSON, and the tensors' bytes. The header
names the request (``rid``), its blocks (``bids``), metadata (``meta``), the number of layers (``nl``)
and each tensor (``td``): name, layer, dtype, shape, offset behind the header, length. All keys come first,
then all values; a layer without a tensor is said to be absent.

vLLM-Omni itself packs without gaps, so its tensors begin anywhere. Its reader takes offsets as they are
told and blanks behind the header: here each tensor begins on a boundary. :mod:`.kv_reading` reads both.
"""

from __future__ import annotations

import json
import math
import operator
import struct
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from ...codec.tensors import load_torch
from ...errors import EncodeError, ProtocolError
from ...model import ALIGNMENT
from .markers import TENSOR_CODES

if TYPE_CHECKING:
    from torch import Tensor

KEYS: Final = "key_cache"
VALUES: Final = "value_cache"

DTYPES: Final = (
    "bool",
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "float32",
    "float64",
    "bfloat16",
    "complex64",
    "complex128",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
)
"""What tensors may be made of, by the names that the format uses."""

HEADER_LIMIT: Final = 16 << 20
"""Bytes of a header. A million tokens in blocks of 16 take half a megabyte."""
LAYER_LIMIT: Final = 4096

LENGTH = struct.Struct(">I")


class KVPayload(NamedTuple):
    """One request's KV cache, or one rank's share of it."""

    request_id: str
    keys: list[Tensor | None]
    """By layer, each ``[tokens, heads, head size]``; ``None`` where the layer has none."""
    values: list[Tensor | None]
    block_ids: list[int]
    """The blocks that it lay in, at its sender."""
    metadata: dict[str, Any]
    """At least ``block_size``, ``num_layers``, ``dtype`` and ``seq_len``, where vLLM-Omni's manager sent it."""

    @property
    def layer_blocks(self) -> dict[str, list[Tensor | None]]:
        """As vLLM-Omni's pipelines take it: ``SimpleNamespace(**payload.layer_blocks)``."""
        return {KEYS: self.keys, VALUES: self.values}


class TensorSpec(NamedTuple):
    """A tensor before there is one."""

    dtype: str
    """One of :data:`DTYPES`."""
    shape: tuple[int, ...]


class Part(NamedTuple):
    """Where one tensor's bytes go."""

    cache: str
    """:data:`KEYS` or :data:`VALUES`."""
    layer: int
    spec: TensorSpec
    offset: int
    """From the payload's first byte."""
    nbytes: int


class Packing(NamedTuple):
    """A payload before its tensors are in it."""

    head: bytes
    """Its first bytes: length, header, blanks."""
    parts: list[Part]
    nbytes: int


def plan_packing(
    request_id: str,
    keys: Sequence[TensorSpec | None],
    values: Sequence[TensorSpec | None],
    block_ids: Sequence[int],
    metadata: Mapping[str, Any],
    *,
    alignment: int = ALIGNMENT,
) -> Packing:
    """Where everything of a payload goes, so that tensors can be written straight to their place.

    Args:
        keys, values: one for each layer; ``None`` for a layer that has none.
        metadata: must be JSON.
        alignment: a power of two on which each tensor begins, counted from the payload's first byte;
            1 packs as vLLM-Omni does.

    Raises:
        EncodeError: it cannot be packed; names what.
    """
    if len(keys) != len(values):
        raise EncodeError(f"{len(keys)} layers of keys and {len(values)} of values", path="keys")
    if len(keys) > LAYER_LIMIT:
        raise EncodeError(f"{len(keys)} layers, {LAYER_LIMIT} is the limit", path="keys")
    told: list[dict[str, Any]] = []
    parts: list[Part] = []
    at = 0
    for cache, specs in ((KEYS, keys), (VALUES, values)):
        for layer, spec in enumerate(specs):
            name = f"{cache}_{layer}"
            if spec is None:
                told.append({"n": name, "x": True})
                continue
            nbytes = _nbytes(name, spec)
            at += -at % alignment
            told.append(
                {
                    "n": name,
                    "i": layer,
                    "d": spec.dtype,
                    "s": list(spec.shape),
                    "o": at,
                    "b": nbytes,
                }
            )
            parts.append(Part(cache, layer, spec, at, nbytes))
            at += nbytes
    head = _head(
        {
            "rid": request_id,
            "bids": [operator.index(block) for block in block_ids],
            "meta": dict(metadata),
            "td": told,
            "nl": len(keys),
        },
        alignment,
    )
    start = len(head)
    return Packing(head, [p._replace(offset=p.offset + start) for p in parts], at + start)


def pack(payload: KVPayload, *, alignment: int = ALIGNMENT) -> bytearray:
    """The bytes of a payload; tensors are copied from wherever they are.

    Raises:
        EncodeError: it cannot be packed; names what.
    """
    packing = plan_packing(
        payload.request_id,
        [spec_of(tensor) for tensor in payload.keys],
        [spec_of(tensor) for tensor in payload.values],
        payload.block_ids,
        payload.metadata,
        alignment=alignment,
    )
    packed = bytearray(packing.nbytes)
    packed[: len(packing.head)] = packing.head
    bytes_of = np.frombuffer(packed, np.uint8)
    torch = load_torch().module
    caches = payload.layer_blocks
    for part in packing.parts:
        tensor = caches[part.cache][part.layer]
        assert tensor is not None
        raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        bytes_of[part.offset : part.offset + part.nbytes] = raw
    return packed


def spec_of(tensor: Tensor | None) -> TensorSpec | None:
    """What a tensor is, as the format tells it."""
    if tensor is None:
        return None
    return TensorSpec(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))


def check_whole(payload: KVPayload, *, absent_layers: Collection[int] = ()) -> None:
    """Whether a cache is all that its metadata says, so that none is used that was filled in part.

    vLLM-Omni's manager leaves out blocks and layers that it does not find, and sends the rest.

    Args:
        absent_layers: layers that may have neither keys nor values.

    Raises:
        ProtocolError: it is not; names both values.
    """
    who = f"the KV cache of {payload.request_id!r}"
    layers = len(payload.keys)
    told = payload.metadata
    if not layers:
        raise ProtocolError(f"{who} has no layers")
    if told.get("num_layers", layers) != layers:
        raise ProtocolError(f"{who} has {layers} layers, its metadata say {told['num_layers']!r}")
    tokens = told.get("seq_len")
    for layer, pair in enumerate(zip(payload.keys, payload.values, strict=True)):
        for cache, tensor in zip((KEYS, VALUES), pair, strict=True):
            if tensor is None:
                if layer in absent_layers and pair[0] is pair[1]:
                    continue
                raise ProtocolError(f"{who} has no {cache}_{layer}")
            if tensor.dim() < 2:
                raise ProtocolError(f"{who} has {cache}_{layer} of shape {tuple(tensor.shape)}")
            if tokens is None:
                tokens = tensor.shape[0]
            if tensor.shape[0] != tokens:
                raise ProtocolError(
                    f"{who} has {tensor.shape[0]} tokens in {cache}_{layer}, not {tokens!r}"
                )
    block_size = told.get("block_size")
    if type(tokens) is int and type(block_size) is int and payload.block_ids:
        room = len(payload.block_ids) * block_size
        if room < tokens:
            raise ProtocolError(f"{who} has {tokens} tokens in blocks for {room}")


def _nbytes(name: str, spec: TensorSpec) -> int:
    if spec.dtype not in DTYPES:
        raise EncodeError(
            f"{name} has dtype {spec.dtype}, which vLLM-Omni does not take", path=name
        )
    form = load_torch().forms[TENSOR_CODES[spec.dtype]]
    if form is None:
        raise EncodeError(f"{name} has dtype {spec.dtype}, which is not known here", path=name)
    nbytes = math.prod(spec.shape) * form.itemsize
    if not nbytes:  # vLLM-Omni's reader cannot make a tensor of nothing
        raise EncodeError(f"{name} of shape {spec.shape} has not a single byte", path=name)
    return nbytes


def _head(header: dict[str, Any], alignment: int) -> bytes:
    try:
        text = json.dumps(header, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise EncodeError(f"the metadata are not JSON: {error}", path="metadata") from None
    text += b" " * (-(LENGTH.size + len(text)) % alignment)
    if len(text) > HEADER_LIMIT:
        raise EncodeError(
            f"a header of {len(text):,} bytes, {HEADER_LIMIT:,} are the limit", path="metadata"
        )
    return LENGTH.pack(len(text)) + text
