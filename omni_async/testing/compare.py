"""Strict comparison of what was put with what arrived.

In: two values. Out: where and how they differ, or nothing.
Never: calls two things equal that a user could tell apart (1 and True, NaN payloads, layouts of bytes).
"""

from __future__ import annotations

import dataclasses
import math
import struct
import sys
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import numpy as np


def difference(got: Any, want: Any, path: str = "value") -> str | None:
    """``None`` when ``got`` is what ``want`` was, else a sentence that names the path.

    Tensors that required gradients are expected detached, a ``Parameter`` as a tensor, a
    ``memoryview`` as ``bytes`` or ``bytearray``.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(want, torch.Tensor):
        return _tensors(got, want, path, torch)
    if isinstance(want, memoryview):
        if type(got) not in (bytes, bytearray):
            return f"{path}: a memoryview arrived as {type(got).__name__}"
        return None if bytes(got) == want.tobytes() else f"{path}: other bytes"
    if type(got) is not type(want):
        return f"{path}: {_name(want)} arrived as {_name(got)}: {got!r:.200}"
    compare = _comparison(want)
    return compare(got, want, path)


def _comparison(want: Any) -> Callable[[Any, Any, str], str | None]:
    if isinstance(want, np.ndarray):
        return _arrays
    if isinstance(want, np.generic):
        return lambda got, w, path: _arrays(np.asarray(got), np.asarray(w), path)
    if isinstance(want, float):
        return _floats
    if isinstance(want, complex):
        return lambda got, w, path: (
            _floats(got.real, w.real, path) or _floats(got.imag, w.imag, path)
        )
    if isinstance(want, Mapping):
        return _mappings
    if isinstance(want, Set):
        return _sets
    if isinstance(want, (list, tuple)):
        return _sequences
    if type(want).__module__.startswith("PIL."):
        return _images
    if _fields(want) is not None:
        return _records
    return _plain


def _name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _plain(got: Any, want: Any, path: str) -> str | None:
    return None if got == want else f"{path}: {want!r:.200} arrived as {got!r:.200}"


def _fields(value: Any) -> list[str] | None:
    """Names of the fields of a dataclass, a struct or a model."""
    if dataclasses.is_dataclass(value):
        return [field.name for field in dataclasses.fields(value)]
    for attribute in ("__struct_fields__", "model_fields"):
        names = getattr(type(value), attribute, None)
        if names is not None:
            return list(names)
    return None


def _records(got: Any, want: Any, path: str) -> str | None:
    for name in _fields(want) or []:
        found = difference(getattr(got, name), getattr(want, name), f"{path}.{name}")
        if found:
            return found
    return None


def _floats(got: float, want: float, path: str) -> str | None:
    if math.isnan(want) and math.isnan(got):
        return None
    if struct.pack("d", got) == struct.pack("d", want):
        return None
    return f"{path}: {want!r} arrived as {got!r}"


def _sequences(got: Sequence[Any], want: Sequence[Any], path: str) -> str | None:
    if len(got) != len(want):
        return f"{path}: {len(want)} items arrived as {len(got)}"
    for index, (left, right) in enumerate(zip(got, want, strict=True)):
        found = difference(left, right, f"{path}[{index}]")
        if found:
            return found
    return None


def _sets(got: Set[Any], want: Set[Any], path: str) -> str | None:
    if sorted(map(_typed, got)) == sorted(map(_typed, want)):
        return None
    return f"{path}: {want!r:.200} arrived as {got!r:.200}"


def _mappings(got: Mapping[Any, Any], want: Mapping[Any, Any], path: str) -> str | None:
    left, right = [_typed(key) for key in got], [_typed(key) for key in want]
    if left != right:
        return f"{path}: keys {right} arrived as {left}"
    for key, other in zip(got, want, strict=True):
        found = difference(got[key], want[other], f"{path}[{key!r}]")
        if found:
            return found
    return None


def _typed(key: Any) -> str:
    """A key's text with its type: 1, True and 1.0 are three keys."""
    if isinstance(key, (tuple, frozenset)):
        inner = map(_typed, key)
        return f"{type(key).__name__}({', '.join(sorted(inner) if isinstance(key, frozenset) else inner)})"
    return f"{type(key).__name__}:{key!r}"


def _arrays(got: np.ndarray[Any, Any], want: np.ndarray[Any, Any], path: str) -> str | None:
    if (got.dtype, got.shape) != (want.dtype, want.shape):
        return f"{path}: {want.dtype}{want.shape} arrived as {got.dtype}{got.shape}"
    if got.tobytes() != want.tobytes():
        return f"{path}: an array of {want.dtype}{want.shape} has other bytes"
    return None


def _tensors(got: Any, want: Any, path: str, torch: Any) -> str | None:
    if type(got) is not torch.Tensor:
        return f"{path}: a tensor arrived as {_name(got)}"
    if (got.dtype, got.shape) != (want.dtype, want.shape):
        return f"{path}: {want.dtype}{tuple(want.shape)} arrived as {got.dtype}{tuple(got.shape)}"
    if got.requires_grad:
        return f"{path}: a tensor arrived that requires a gradient"
    if not got.is_contiguous():
        return f"{path}: a tensor arrived with strides {got.stride()}"
    if _tensor_bytes(got, torch) != _tensor_bytes(want, torch):
        return f"{path}: a tensor of {want.dtype}{tuple(want.shape)} has other bytes"
    return None


def _tensor_bytes(tensor: Any, torch: Any) -> bytes:
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().reshape(-1)
    if not plain.numel():
        return b""
    if plain.numel() == 1:  # any stride counts as contiguous, but not for a view as bytes
        plain = plain.as_strided((1,), (1,))
    raw: bytes = plain.contiguous().view(torch.uint8).numpy().tobytes()
    return raw


def _images(got: Any, want: Any, path: str) -> str | None:
    if (got.mode, got.size) != (want.mode, want.size):
        return f"{path}: an image {want.mode} {want.size} arrived as {got.mode} {got.size}"
    return None if got.tobytes() == want.tobytes() else f"{path}: an image has other pixels"
