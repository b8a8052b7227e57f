"""torch: every dtype, shape and layout with plain bytes; everything else is refused by name."""

from __future__ import annotations

import gc
import math
import warnings
import weakref
from typing import Any

import numpy as np
import pytest

from omni_async.codec import decode, encode
from omni_async.codec.tensors import DTYPES
from omni_async.errors import EncodeError, UsageError

from .landing import land, same, trip

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")

QUANTISED = {"quint8", "qint8", "qint32", "quint4x2", "quint2x4"}
NAMES = sorted(
    {str(v).removeprefix("torch.") for v in vars(torch).values() if isinstance(v, torch.dtype)}
)
PLAIN = [name for name in NAMES if name not in QUANTISED]
SHAPES: list[tuple[int, ...]] = [
    (),
    (0,),
    (3, 0, 2),
    (5,),
    (3, 4),
    (2, 3, 4, 5),
    (1,) * (40 if np.__version__ >= "2" else 32),
]


def random(name: str, shape: tuple[int, ...]) -> Any:
    dtype = getattr(torch, name)
    width = torch.empty(0, dtype=dtype).element_size()
    raw = torch.randint(0, 2 if name == "bool" else 256, (math.prod(shape) * width,))
    return raw.to(torch.uint8).view(dtype).reshape(shape)


def test_every_dtype_of_this_torch_is_known() -> None:
    assert set(NAMES) <= set(DTYPES)


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_dtype_and_shape(name: str, shape: tuple[int, ...]) -> None:
    tensor = random(name, shape)
    encoded = encode(tensor)
    assert encoded.fast
    assert encoded.nbytes == tensor.numel() * tensor.element_size()
    assert encoded.frames[0].address == tensor.data_ptr()
    assert encoded.frames[0].device == "cpu"
    same(tensor, trip(tensor))
    same({"a": [tensor, (tensor,)], "b": 1}, trip({"a": [tensor, (tensor,)], "b": 1}))


LAYOUTS: dict[str, Any] = {
    "transposed": lambda t: t.t(),
    "expanded": lambda t: t[:1].expand(7, 4),
    "every other row": lambda t: t[::2],
    "every other column": lambda t: t[:, ::2],
    "a column": lambda t: t[:, 1],
    "an item": lambda t: t[1, 2],
    "a slice": lambda t: t[1:2],
    "overlapping": lambda t: t.as_strided((3, 3), (2, 1)),
    "empty": lambda t: t[:0].t(),
    "requires grad": lambda t: (
        t.clone().requires_grad_() if t.is_floating_point() or t.is_complex() else t
    ),
    "channels last": lambda t: t.reshape(1, 3, 2, 2).permute(0, 3, 1, 2),
}


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_dtype_and_layout(name: str, layout: str) -> None:
    base = random(name, (3, 4))
    tensor = LAYOUTS[layout](base)
    encoded = encode(tensor)
    assert encoded.nbytes == tensor.numel() * tensor.element_size()
    same(tensor, trip(tensor))
    same([tensor], trip([tensor]))


@pytest.mark.parametrize("name", ["complex32", "complex64", "complex128"])
def test_conjugated(name: str) -> None:
    base = torch.arange(1, 25).reshape(6, 4).float()
    tensor = torch.complex(base[:3], base[3:]).to(getattr(torch, name)).conj()
    assert tensor.is_conj()
    for given in (tensor, tensor.t(), tensor[::2], tensor[1, 1]):
        assert (torch.view_as_real(trip(given)) != torch.view_as_real(given.conj())).any()
        same(given, trip(given))
    if name != "complex32":
        assert tensor.imag.is_neg()
        same(tensor.imag, trip(tensor.imag))


@pytest.mark.parametrize("name", ["float32", "bfloat16", "int32", "complex64"])
def test_negated(name: str) -> None:
    tensor = torch._neg_view(torch.ones(4, 3).to(getattr(torch, name)))
    assert tensor.is_neg()
    for given in (tensor, tensor.t(), tensor[::2]):
        assert (trip(given) == -1).all()
        if name != "complex64":  # torch itself gives the zeros of the imaginary part either sign
            same(given, trip(given))


def test_nan_payloads_survive_strided_copies() -> None:
    bits = torch.tensor([0x7FC00BAD, 0x7F800001, -0x400000], dtype=torch.int32)
    tensor = bits.repeat_interleave(2).view(torch.float32)[::2]
    assert trip(tensor).view(torch.int32).tolist() == bits.tolist()


def test_gradients_are_detached_and_parameters_arrive_as_tensors() -> None:
    leaf = torch.ones(3, requires_grad=True)
    for given in (leaf, leaf * 2, (leaf * 2)[::2], torch.nn.Parameter(torch.ones(2)), leaf[:2]):
        received = trip([given])[0]
        assert type(received) is torch.Tensor
        assert not received.requires_grad
        assert received.grad_fn is None
        assert torch.equal(received, given.detach())
    assert encode(torch.nn.Parameter(torch.ones(2))).fast


def test_other_ways_to_make_a_tensor() -> None:
    with torch.inference_mode():
        inference = torch.arange(6.0).reshape(2, 3)
        for given in (inference, inference.t()):
            same(given, trip(given))
    buffer = torch.nn.Buffer(torch.ones(2))
    same(torch.ones(2), trip(buffer))
    same(torch.ones(4), trip(torch.ones(4).share_memory_()))


def test_a_slice_is_sent_without_its_base() -> None:
    base = torch.zeros(1 << 20)
    encoded = encode(base[:1])
    assert (encoded.nbytes, len(encoded.header)) == (4, len(encode(torch.zeros(1)).header))
    assert encode([base[5:7]]).frames[0].nbytes == 8
    assert encode(base[:: 1 << 19]).nbytes == 8


class Sub(torch.Tensor):  # type: ignore[misc, name-defined]
    pass


def fake() -> Any:
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        return torch.ones(3)


def freed() -> Any:
    tensor = torch.ones(4)
    tensor.untyped_storage().resize_(0)
    return tensor


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: torch.eye(3).to_sparse(), "torch.Tensor of layout torch.sparse_coo"),
        (lambda: torch.eye(3).to_sparse_csr(), "torch.Tensor of layout torch.sparse_csr"),
        (lambda: torch.eye(3).to_mkldnn(), "torch.Tensor of layout torch._mkldnn"),
        (lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8), "dtype torch.qint8"),
        (lambda: torch.empty(3, device="meta"), "torch.Tensor on the meta device"),
        (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "that is nested"),
        (lambda: torch.ones([1] * 65), "of 65 dimensions"),
        (lambda: torch.ones(2).as_subclass(Sub), "type Sub cannot be sent; register it"),
        (fake, "object of type FakeTensor"),
        (freed, r"dtype torch.float32 \(has no plain memory\)"),
        (lambda: torch._efficientzerotensor(3), "has no plain memory"),
        (lambda: torch.nn.UninitializedParameter(), "type UninitializedParameter"),
        (lambda: torch.nn.Linear(2, 2), "object of type Linear"),
        (lambda: torch.strided, "object of type layout"),
    ],
)  # fmt: skip
def test_what_has_no_plain_bytes_is_refused(make: Any, says: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        value = make()
    with pytest.raises(EncodeError, match=says):
        encode(value)
    with pytest.raises(EncodeError, match=says) as info:
        encode({"x": [1, value]})
    assert info.value.path == "value['x'][1]"


def test_inside_a_transform_there_is_no_memory() -> None:
    def inside(tensor: Any) -> Any:
        with pytest.raises(EncodeError, match=r"dtype torch\.float32"):
            encode(tensor)
        return tensor.sum()

    torch.func.grad(inside)(torch.ones(3))


def test_sizes_dtypes_and_devices() -> None:
    values = [torch.Size([]), torch.Size([2, 3]), torch.Size([1 << 62])]
    values += [getattr(torch, name) for name in NAMES]
    values += [
        torch.device("cpu"),
        torch.device("cuda"),
        torch.device("cuda:3"),
        torch.device("meta"),
    ]
    for value in values:
        received = trip(value)
        assert type(received) is type(value)
        assert received == value
    assert trip(torch.float32) is torch.float32
    assert trip({torch.int8: torch.Size([1])}) == {torch.int8: torch.Size([1])}


def test_a_dtype_of_a_newer_torch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from omni_async.codec import tensors

    monkeypatch.setattr(tensors, "DTYPES", tensors.DTYPES[:3])
    with pytest.raises(EncodeError, match=r"dtype torch\.float32 is not known"):
        encode(torch.float32)


def test_views_keep_the_memory_and_let_it_go() -> None:
    class Owner:
        def __init__(self, array: Any) -> None:
            self.array = array
            self.__array_interface__ = array.__array_interface__

    for value in (torch.arange(6.0), torch.arange(6).to(torch.bfloat16), np.arange(6)):
        encoded = encode({"x": value})
        (source,) = land(encoded)
        owner = Owner(source)
        gone = weakref.ref(owner)
        buffer = np.asarray(owner)
        del owner
        view = decode(encoded.header, [buffer])["x"][1:3]
        del buffer
        gc.collect()
        assert gone() is not None
        source[:] = 0
        assert float(view.sum()) == 0.0
        del view
        gc.collect()
        assert gone() is None


def test_a_copy_shares_nothing() -> None:
    encoded = encode({"x": torch.arange(6), "y": torch.zeros(3, dtype=torch.bfloat16)})
    buffers = land(encoded)
    value = decode(encoded.header, buffers, copy=True)
    for buffer in buffers:
        buffer[:] = 0xFF
    same({"x": torch.arange(6), "y": torch.zeros(3, dtype=torch.bfloat16)}, value)


def test_tensors_over_read_only_memory_come_without_a_warning() -> None:
    tensors = {"x": torch.arange(6.0), "y": torch.arange(6).to(torch.bfloat16)}
    encoded = encode(tensors)
    buffers = land(encoded)
    buffers[0].flags.writeable = buffers[1].flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        value = decode(encoded.header, buffers)
        decode(encoded.header, buffers, writable=False)
    same(tensors, value)
    assert value["x"].data_ptr() == buffers[0].__array_interface__["data"][0]
    gone = weakref.ref(buffers[0])
    del buffers
    gc.collect()
    assert gone() is not None
    del value
    gc.collect()
    assert gone() is None


def test_tensors_are_put_on_the_device_asked_for() -> None:
    value = {"x": torch.arange(3.0), "y": [torch.zeros(2, dtype=torch.bfloat16)], "z": np.arange(3)}
    received = trip(value, device="meta")
    assert received["x"].device.type == received["y"][0].device.type == "meta"
    same(value["z"], received["z"])
    same(value, trip(value, device="cpu"))
    same(value, trip(value, device=torch.device("cpu"), copy=True))
    for device in ("nowhere", object(), "cuda:77"):
        with pytest.raises(UsageError, match="cannot take a tensor"):
            trip(value, device=device)


def test_received_tensors_can_be_written() -> None:
    value = trip({"x": torch.arange(6.0).t()})
    value["x"] += 1
    assert value["x"].tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
