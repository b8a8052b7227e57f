"""torch: tensors of every dtype and layout that has plain bytes, sizes, dtypes, devices.

In: exact ``torch.Tensor`` and ``torch.nn.Parameter``, or the bodies of their extensions. Out: extensions
and frames, or tensors over the frames' memory. Never: imports torch to encode; a value that needs it brings it.
"""

from __future__ import annotations

import functools
import math
import struct
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from ..errors import DecodeError, UsageError
from .frames import DeviceFrame, Frame, RawBuffer, TensorFrame, array_frame
from .limits import DIMENSION_LIMIT
from .wire import BUFFER, Ext, Tag
from .writer import UnsendableError, Write, Writer

if TYPE_CHECKING:
    from .reader import Buffer, DeviceBuffer, Read, Reader

DTYPES = [
    "bool",
    "uint8",
    "int8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex32",
    "complex64",
    "complex128",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "float4_e2m1fn_x2",
    "bits8",
    "bits16",
    "bits1x8",
    "bits2x4",
    "bits4x2",
    "uint1",
    "uint2",
    "uint3",
    "uint4",
    "uint5",
    "uint6",
    "uint7",
    "int1",
    "int2",
    "int3",
    "int4",
    "int5",
    "int6",
    "int7",
    "quint8",
    "qint8",
    "qint32",
    "quint4x2",
    "quint2x4",
]
"""torch's dtypes by name; the position is the code on the wire, so new ones go to the end."""

QUANTISED = frozenset({"quint8", "qint8", "qint32", "quint4x2", "quint2x4"})
"""Tensors of these need a scale and a zero point as well; only the dtypes themselves can be sent."""

_HEADS = [struct.Struct(f"<IB{dimensions}Q") for dimensions in range(DIMENSION_LIMIT + 1)]
_PACK = [head.pack for head in _HEADS]
_UNPACK = {head.size: head.unpack for head in _HEADS}
"""Frame, dtype and shape; the length of the body tells the number of dimensions."""


def writers(torch: Any) -> dict[type, Write]:
    """What writes torch's types. ``torch`` is the imported module."""
    codes: dict[Any, int] = {
        getattr(torch, name): code
        for code, name in enumerate(DTYPES)
        if name not in QUANTISED and hasattr(torch, name)
    }
    strided = torch.strided
    pack = _PACK

    def tensor(writer: Writer, value: Any, depth: int) -> Any:
        try:
            code = codes.get(value.dtype)
            shape = value.shape
            if code is None or value.layout is not strided or len(shape) > DIMENSION_LIMIT:
                raise refusal(value)
            frames = writer.frames
            index = len(frames)
            frames.append(frame_of(torch, value))
        except RuntimeError as error:  # torch says so of what has no plain memory
            raise refusal(value, str(error)) from None
        return Ext(Tag.TENSOR, pack[len(shape)](index, code, *shape))

    def size(writer: Writer, value: Any, depth: int) -> Any:
        return writer.ext(Tag.TORCH_SIZE, tuple(value))

    def dtype(writer: Writer, value: Any, depth: int) -> Any:
        name = str(value).removeprefix("torch.")
        if name not in DTYPES:
            raise UnsendableError(f"the dtype {value} is not known to this version")
        return Ext(Tag.TORCH_DTYPE, bytes([DTYPES.index(name)]))

    def device(writer: Writer, value: Any, depth: int) -> Any:
        return writer.ext(Tag.TORCH_DEVICE, [value.type, value.index])

    return {
        torch.Tensor: tensor,
        torch.nn.Parameter: tensor,
        torch.Size: size,
        torch.dtype: dtype,
        torch.device: device,
    }


def write_raw(writer: Writer, value: RawBuffer, depth: int) -> Any:
    """A buffer object as a frame; arrives as a uint8 tensor."""
    array = value.array
    return Ext(Tag.RAW, BUFFER.pack(writer.add(array_frame(array)), array.nbytes))


def frame_of(torch: Any, value: Any) -> Frame:
    """The frame of a tensor's elements in C order; ``RuntimeError`` where it has no plain memory."""
    nbytes = value.nbytes
    if not value.is_cpu:
        return _device_frame(torch, value, nbytes)
    if value.is_contiguous() and not (value.is_neg() or value.is_conj()):
        address = value.data_ptr()
        if address == 0 and nbytes:
            raise refusal(value)
        return Frame(nbytes, address, value)
    return TensorFrame(nbytes, 0, value)


def _device_frame(torch: Any, value: Any, nbytes: int) -> Frame:
    device = value.device
    if device.type == "meta":
        raise refusal(value)
    runtime: Any = getattr(torch, device.type, None)
    if not hasattr(runtime, "current_stream"):  # one queue per device: a copy waits by itself
        return DeviceFrame(nbytes, 0, value, str(device))
    return DeviceFrame(
        nbytes, 0, value, str(device), runtime, runtime.current_stream(device).record_event()
    )


def refusal(value: Any, why: str = "has no plain memory") -> UnsendableError:
    """Why a tensor cannot be sent."""
    if value.is_nested:
        what, remedy = "that is nested", "its unbind() or padded form"
    elif str(value.layout) != "torch.strided":
        what, remedy = f"of layout {value.layout}", "its to_dense() form or its parts"
    elif value.is_quantized:
        what, remedy = f"of dtype {value.dtype}", "its int_repr(), scale and zero point"
    elif value.device.type == "meta":
        what, remedy = "on the meta device", "its shape and dtype"
    elif value.dim() > DIMENSION_LIMIT:
        what, remedy = f"of {value.dim()} dimensions", f"at most {DIMENSION_LIMIT} of them"
    else:
        what, remedy = f"of dtype {value.dtype} ({why})", "a plain copy"
    return UnsendableError(f"a torch.Tensor {what} cannot be sent; send {remedy}")


_UINT8 = np.dtype(np.uint8)

_NATIVE = frozenset(
    [
        "bool",
        "uint8",
        "int8",
        "int16",
        "int32",
        "int64",
        "float16",
        "float32",
        "float64",
        "complex64",
        "complex128",
    ]
)
"""Names that mean the same to numpy, and that every torch takes from it."""


class Form(NamedTuple):
    """How a tensor of one dtype is made from bytes: through an array of ``carrier``."""

    itemsize: int
    carrier: np.dtype[Any]
    dtype: Any
    """What to see it as afterwards; ``None`` where numpy's dtype says it already."""


class Torch(NamedTuple):
    """torch, as the reading side needs it."""

    module: Any
    from_numpy: Any
    dtypes: list[Any]
    """By code; ``None`` where this torch is older than the dtype."""
    forms: list[Form | None]
    """By code; ``None`` also where tensors of the dtype cannot be sent."""


def _form(name: str, dtype: Any) -> Form | None:
    if dtype is None or name in QUANTISED:
        return None
    if name in _NATIVE:
        return Form(dtype.itemsize, np.dtype(name), None)
    return Form(dtype.itemsize, np.dtype(f"i{dtype.itemsize}"), dtype)


@functools.cache
def load_torch() -> Torch:
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: its libraries do not load
        raise DecodeError(
            f"the payload holds torch objects, and torch cannot be imported here ({error}); "
            "install it, or omni_async[torch]",
            missing="torch",
        ) from error
    dtypes = [getattr(torch, name, None) for name in DTYPES]
    forms = list(map(_form, DTYPES, dtypes))
    return Torch(torch, torch.from_numpy, dtypes, forms)


class _Writable:
    """The same memory without the read-only mark, of which torch would only warn."""

    def __init__(self, buffer: Buffer) -> None:
        self.keep = buffer
        interface = dict(buffer.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface


def _read_tensor(reader: Reader, data: memoryview) -> Any:
    torch = load_torch()
    index, code, *shape = _UNPACK[len(data)](data)
    form = torch.forms[code]
    if form is None:
        raise DecodeError(
            f"the payload has a tensor of dtype {DTYPES[code]}, not known to torch here",
            missing=DTYPES[code],
        )
    itemsize, carrier, dtype = form
    buffer = reader.take_anywhere(index, math.prod(shape) * itemsize)
    return tensor_over(torch, reader, buffer, shape, carrier, dtype)


class Wishes(Protocol):
    """How whoever reads wants its tensors."""

    copy: bool
    """In memory of their own."""
    device: Any
    """On this torch device, unless it is ``None``."""


def tensor_over(
    torch: Torch,
    wishes: Wishes,
    buffer: Buffer | DeviceBuffer,
    shape: Any,
    carrier: Any,
    dtype: Any,
) -> Any:
    """The tensor whose bytes ``buffer`` has: see :class:`Form` for ``carrier`` and ``dtype``."""
    if isinstance(buffer, np.ndarray):
        if not buffer.flags.writeable:
            buffer = np.asarray(_Writable(buffer))
        tensor = torch.from_numpy(np.ndarray(shape, carrier, buffer))
        if dtype is not None:
            tensor = tensor.view(dtype)
    else:
        tensor = _on_device(torch, buffer.tensor, shape, carrier, dtype)
    if wishes.device is not None:
        return _moved(tensor, wishes)
    return tensor.clone() if wishes.copy else tensor


def _on_device(torch: Torch, data: Any, shape: Any, carrier: Any, dtype: Any) -> Any:
    dtype = dtype or getattr(torch.module, carrier.name)
    if not data.nbytes:  # torch cannot view no bytes as another type
        return data.new_empty(tuple(shape), dtype=dtype)
    return data.view(dtype).view(tuple(shape))


def _moved(tensor: Any, wishes: Wishes) -> Any:
    try:
        return tensor.to(wishes.device, copy=wishes.copy)
    except (AssertionError, RuntimeError, TypeError) as error:  # torch says it in all three ways
        raise UsageError(f"device {wishes.device!r} cannot take a tensor: {error}") from error


def _read_raw(reader: Reader, data: memoryview) -> Any:
    """The bytes of a buffer object: a uint8 tensor, or an array where torch is not there."""
    buffer = reader.take_anywhere(*BUFFER.unpack(data))
    try:
        torch = load_torch()
    except DecodeError:
        host = buffer if isinstance(buffer, np.ndarray) else buffer.fetch()
        return reader.finish(np.ndarray(host.shape, host.dtype, host))
    return tensor_over(torch, reader, buffer, (buffer.nbytes,), _UINT8, None)


def _read_size(reader: Reader, data: memoryview) -> Any:
    return load_torch().module.Size(reader.items(data))


def _read_dtype(reader: Reader, data: memoryview) -> Any:
    (code,) = data
    dtype = load_torch().dtypes[code]
    if dtype is None:
        raise DecodeError(
            f"the payload has the dtype {DTYPES[code]}, not known to torch here",
            missing=DTYPES[code],
        )
    return dtype


def _read_device(reader: Reader, data: memoryview) -> Any:
    kind, index = reader.items(data)
    device = load_torch().module.device(*((kind,) if index is None else (kind, index)))
    if (device.type, device.index) != (kind, index):
        raise DecodeError(f"the payload has an impossible device {kind!r}, {index!r}")
    return device


READERS: dict[int, Read] = {
    Tag.TENSOR: _read_tensor,
    Tag.RAW: _read_raw,
    Tag.TORCH_SIZE: _read_size,
    Tag.TORCH_DTYPE: _read_dtype,
    Tag.TORCH_DEVICE: _read_device,
}
