"""Helpers: what a transport does between encode and decode, and a comparison that forgives nothing.

In: values. Out: values that took the way over frames in other memory.
Never: compares with the codec under test.
"""

from __future__ import annotations

import dataclasses
import math
import struct
import zlib
from typing import Any

import numpy as np
import pydantic

from omni_async.codec import Encoded, decode, encode
from omni_async.model import ALIGNMENT, packed

Buffer = np.ndarray[Any, np.dtype[np.uint8]]


def slot(nbytes: int, fill: int = 0xA5) -> Buffer:
    """Aligned memory, full of something else."""
    raw = np.full(nbytes + ALIGNMENT, fill, np.uint8)
    start = -raw.__array_interface__["data"][0] % ALIGNMENT
    return raw[start : start + nbytes]


def land(encoded: Encoded) -> list[Buffer]:
    """All frames in one slot, each on its boundary."""
    offsets, total = packed([frame.nbytes for frame in encoded.frames])
    memory = slot(total)
    buffers = []
    for frame, offset in zip(encoded.frames, offsets, strict=True):
        buffer = memory[offset : offset + frame.nbytes]
        frame.copy_into(buffer.data)
        buffers.append(buffer)
    return buffers


def trip(value: Any, **options: Any) -> Any:
    """The value after a journey."""
    encoded = encode(value)
    assert type(encoded.header) is bytes
    if encoded.fast:
        assert len(encoded.frames) == 1
        assert encoded.nbytes == encoded.frames[0].nbytes
    else:
        assert encoded.nbytes == len(encoded.header) + sum(f.nbytes for f in encoded.frames)
    return decode(encoded.header, land(encoded), **options)


def sealed(body: bytes, version: int = 1) -> bytes:
    """A header around any body, written down here once more."""
    return struct.pack("<2sHI", b"OA", version, zlib.crc32(body)) + body


def body_of(header: bytes) -> bytes:
    return header[8:]


def same(one: Any, other: Any) -> None:
    """Assert equality of types, bits, order and structure."""
    assert type(one) is type(other), (one, other)
    name = f"{type(one).__module__}.{type(one).__qualname__}"
    if name == "torch.Tensor":
        _same_tensor(one, other)
    elif isinstance(one, np.ndarray):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert one.dtype.char == other.dtype.char
        assert one.dtype.isalignedstruct == other.dtype.isalignedstruct
        opaque = f"V{one.itemsize}"  # else numpy leaves padding out when it has to gather
        assert one.view(opaque).tobytes() == other.view(opaque).tobytes()
    elif isinstance(one, (np.str_, np.bytes_)):
        assert one.item() == other.item()
    elif isinstance(one, np.generic):
        assert one.dtype == other.dtype
        assert one.tobytes() == other.tobytes()
    elif isinstance(one, float):
        assert struct.pack("<d", one) == struct.pack("<d", other)
    elif isinstance(one, complex):
        same((one.real, one.imag), (other.real, other.imag))
    elif isinstance(one, dict):
        assert len(one) == len(other)
        for (key, item), (other_key, other_item) in zip(one.items(), other.items(), strict=True):
            same(key, other_key)
            same(item, other_item)
    elif dataclasses.is_dataclass(one):
        for field in dataclasses.fields(one):
            same(getattr(one, field.name), getattr(other, field.name))
    elif isinstance(one, pydantic.BaseModel):
        same(dict(one), dict(other))
        same(one.model_fields_set, other.model_fields_set)
    elif hasattr(one, "parts"):
        same(one.parts, other.parts)
    elif isinstance(one, (list, tuple)):
        same(getattr(one, "__dict__", None), getattr(other, "__dict__", None))
        assert len(one) == len(other)
        for item, other_item in zip(one, other, strict=True):
            same(item, other_item)
    elif type(one) in (set, frozenset):
        same(sorted(one, key=_order), sorted(other, key=_order))
    elif isinstance(one, slice):
        same((one.start, one.stop, one.step), (other.start, other.stop, other.step))
    else:
        assert one == other
        assert repr(one) == repr(other)


def _order(element: Any) -> str:
    """The same text for the same element, whatever the order inside of it."""
    if isinstance(element, (tuple, frozenset)):
        inner = list(map(_order, element))
        if isinstance(element, frozenset):
            inner.sort()
        return f"{type(element).__name__}({', '.join(inner)})"
    return f"{type(element).__name__} {element!r}"


def _same_tensor(one: Any, other: Any) -> None:
    import torch

    assert (one.dtype, one.shape, other.device.type) == (other.dtype, other.shape, "cpu")
    assert not other.requires_grad
    assert other.is_contiguous()
    one = one.detach().resolve_conj().resolve_neg()
    if one.numel():
        width = one.element_size()
        if not one.is_complex():  # narrow integers have no copy of their own
            one = one.view(getattr(torch, f"int{8 * width}"))
        assert not other.is_conj()
        assert not other.is_neg()
        one_bits = one.contiguous().reshape(-1).view(torch.uint8)
        assert torch.equal(one_bits, other.reshape(-1).view(torch.uint8))
        assert other.data_ptr() % ALIGNMENT == 0
        assert other.untyped_storage().nbytes() >= math.prod(one.shape) * width
