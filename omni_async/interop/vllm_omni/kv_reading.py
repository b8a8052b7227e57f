"""A packed KV cache of vLLM-Omni, from the bytes as they have landed.

In: packed bytes, on the host or on a device; or the same as an object. Out: tensors by layer, or one ``DecodeError``.
Never: allocates by a length it was sent; hands out a tensor that is not aligned for its dtype.

vLLM-Omni packs without gaps, behind a header of any length. Tensors that are aligned nevertheless are views, the
others are copied.
"""

from __future__ import annotations

import itertools
import math
import re
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from ...codec.limits import DIMENSION_LIMIT
from ...codec.tensors import Torch, load_torch, tensor_over
from ...errors import DecodeError
from .kv_payload import DTYPES, HEADER_LIMIT, KEYS, LAYER_LIMIT, LENGTH, VALUES, KVPayload
from .markers import TENSOR_CODES
from .reading import read

if TYPE_CHECKING:
    from ...codec.reader import Buffer

_OFFSET_LIMIT = 1 << 62
_BIN_HEADS = {0xC4: 1, 0xC5: 2, 0xC6: 4}
"""How MessagePack begins bytes, and in how many it tells their length. A packed payload begins with its header's
length, of which the first byte is nearly nothing."""


class _Told(msgspec.Struct):
    """What a header tells of one tensor."""

    n: str
    i: int | None = None
    d: str = ""
    s: list[int] = []
    o: int = -1
    b: int = -1
    x: bool = False


class _Header(msgspec.Struct):
    rid: str
    bids: list[int]
    meta: dict[str, Any]
    td: list[_Told]
    nl: int


class _Whole(msgspec.Struct):
    """A payload as an object."""

    request_id: str
    layer_blocks: dict[str, list[Any]]
    block_ids: list[int]
    metadata: dict[str, Any]


_header = msgspec.json.Decoder(_Header).decode
_BROKEN = (msgspec.MsgspecError, ValueError, RecursionError, OverflowError)
_NAME = re.compile(r"(key_cache|value_cache)_(.*)", re.DOTALL)


class _Wishes:
    """Nothing but views."""

    copy: bool = False
    device: Any = None


_VIEWS = _Wishes()


def unpack(data: Any) -> KVPayload:
    """Read a packed payload.

    Args:
        data: a uint8 tensor of one dimension, on any device, or ``bytes`` or another buffer. Tensors
            that are aligned in it are views that keep it alive; of ``bytes`` they must not be written to.

    Raises:
        DecodeError: it is no such payload; says what is wrong with it.
    """
    torch = load_torch()
    if isinstance(data, torch.module.Tensor):
        if data.dtype is not torch.module.uint8 or data.dim() != 1 or not data.is_contiguous():
            raise DecodeError(f"a packed KV cache is flat bytes, not {data.dtype} of {data.shape}")
        if not data.is_cpu:
            return _unpack(torch, data, _bytes_there)
        data = data.detach().numpy()
    try:
        raw = np.frombuffer(data, np.uint8)
    except (TypeError, ValueError) as error:
        raise DecodeError(f"a packed KV cache is flat bytes: {error}") from None
    return _unpack(torch, raw, np.ndarray.tobytes)


def unpack_landed(landed: Buffer) -> KVPayload:
    """Read a payload from all the bytes that have landed: packed, or an object that holds it, packed or not.

    Args:
        landed: as for :func:`.reading.read`.

    Raises:
        DecodeError: it is no such payload.
    """
    first = int(landed[0]) if len(landed) else 0
    if first in _BIN_HEADS:  # bytes, which are not to be copied as a whole
        start = 1 + _BIN_HEADS[first]
        if int.from_bytes(landed[1:start].tobytes(), "big") != len(landed) - start:
            raise DecodeError(f"an object of {len(landed):,} bytes says that it has others")
        return unpack(landed[start:])
    if first <= HEADER_LIMIT >> 24:
        return unpack(landed)
    value = read(landed, len(landed))
    return unpack(value) if isinstance(value, load_torch().module.Tensor) else from_object(value)


def from_object(value: Any) -> KVPayload:
    """A payload that vLLM-Omni has sent as an object, which it does with what it could not pack.

    Raises:
        DecodeError: it is no such object.
    """
    torch = load_torch()
    try:
        header = msgspec.convert(value, _Whole)
    except _BROKEN as error:
        raise DecodeError(f"what was sent is no KV cache: {error}") from None
    caches = header.layer_blocks
    keys, values = caches.get(KEYS, []), caches.get(VALUES, [])
    if len(keys) != len(values) or len(keys) > LAYER_LIMIT:
        raise DecodeError(f"the KV cache has {len(keys)} layers of keys, {len(values)} of values")
    for cache, tensors in ((KEYS, keys), (VALUES, values)):
        for layer, tensor in enumerate(tensors):
            if tensor is None:
                continue
            if not isinstance(tensor, torch.module.Tensor) or _dtype(tensor) not in DTYPES:
                raise DecodeError(f"the KV cache has a {type(tensor).__name__} at {cache}_{layer}")
    return KVPayload(header.request_id, keys, values, header.block_ids, header.metadata)


def _bytes_there(data: Any) -> bytes:
    raw: bytes = data.cpu().numpy().tobytes()
    return raw


def _unpack(torch: Torch, data: Any, bytes_of: Any) -> KVPayload:
    total = len(data)
    if total < LENGTH.size:
        raise DecodeError(f"a packed KV cache of {total} bytes has no header")
    (length,) = LENGTH.unpack(bytes_of(data[: LENGTH.size]))
    start = LENGTH.size + length
    if length > HEADER_LIMIT or start > total:
        raise DecodeError(f"the KV cache of {total:,} bytes tells of a header of {length:,}")
    try:
        header = _header(bytes_of(data[LENGTH.size : start]))
    except _BROKEN as error:
        raise DecodeError(f"the KV cache has a malformed header: {error}") from None
    if not 0 <= header.nl <= LAYER_LIMIT:
        raise DecodeError(f"the KV cache tells of {header.nl} layers, {LAYER_LIMIT} is the limit")
    caches: dict[str, list[Any]] = {KEYS: [None] * header.nl, VALUES: [None] * header.nl}
    seen: set[tuple[str, int]] = set()
    spans: list[tuple[int, int, str]] = []
    for told in header.td:
        cache, layer = _place(told, header.nl)
        if (cache, layer) in seen:
            raise DecodeError(f"the KV cache has {cache}_{layer} twice")
        seen.add((cache, layer))
        if told.x:
            continue
        end = _checked(torch, told, total - start)
        spans.append((told.o, end, told.n))
        caches[cache][layer] = _tensor(torch, data[start + told.o : start + end], told)
    spans.sort()
    for (_, end, one), (begin, _, other) in itertools.pairwise(spans):
        if begin < end:
            raise DecodeError(f"the KV cache has the same bytes for {one} and {other}")
    return KVPayload(header.rid, caches[KEYS], caches[VALUES], header.bids, header.meta)


def _place(told: _Told, layers: int) -> tuple[str, int]:
    """Cache and layer of a tensor: its number is told, or else at the end of its name."""
    name = _NAME.fullmatch(told.n)
    if name is None:
        raise DecodeError(f"the KV cache has a tensor called {told.n[:80]!r}")
    cache, tail = name.groups()
    layer = told.i
    if layer is None:
        if not (tail.isascii() and tail.isdecimal() and len(tail) < 10):
            raise DecodeError(f"the KV cache has a tensor called {told.n[:80]!r}, of no layer")
        layer = int(tail)
    if not 0 <= layer < layers:
        raise DecodeError(f"the KV cache has layer {layer} of {layers}")
    return cache, layer


def _checked(torch: Torch, told: _Told, room: int) -> int:
    """The end of a tensor's bytes, if there can be such a tensor."""
    if told.d not in DTYPES:
        raise DecodeError(f"the KV cache has {told.n[:80]!r} of the unknown dtype {told.d[:40]!r}")
    form = torch.forms[TENSOR_CODES[told.d]]
    if form is None:
        raise DecodeError(
            f"the KV cache has tensors of dtype {told.d}, not known to torch here", missing=told.d
        )
    if len(told.s) > DIMENSION_LIMIT or any(not 0 <= size < _OFFSET_LIMIT for size in told.s):
        raise DecodeError(f"the KV cache has {told.n[:80]!r} of shape {told.s[:8]}")
    if not 0 <= told.o < _OFFSET_LIMIT or not 0 <= told.b < _OFFSET_LIMIT:
        raise DecodeError(f"the KV cache has {told.n[:80]!r}: {told.b} bytes at {told.o}")
    end = told.o + told.b
    if end > room:
        raise DecodeError(f"the KV cache has {told.n[:80]!r} up to byte {end:,} of {room:,}")
    wanted = math.prod(told.s) * form.itemsize
    if wanted != told.b:
        raise DecodeError(f"the KV cache has {told.b} bytes for {told.d} of shape {told.s[:8]}")
    return end


def _tensor(torch: Torch, data: Any, told: _Told) -> Any:
    form = torch.forms[TENSOR_CODES[told.d]]
    assert form is not None
    if not told.b:
        return torch.module.empty(told.s, dtype=getattr(torch.module, told.d))
    if isinstance(data, np.ndarray):
        if data.__array_interface__["data"][0] % form.itemsize:
            data = data.copy()
        return tensor_over(torch, _VIEWS, data, told.s, form.carrier, form.dtype)
    if data.data_ptr() % form.itemsize or data.storage_offset() % form.itemsize:
        data = data.clone()
    return data.view(getattr(torch.module, told.d)).view(told.s)


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")
