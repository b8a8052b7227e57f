"""Serialisation, end to end: what is put comes back as it was, or is refused at put by name."""

from __future__ import annotations

import itertools
import os
import pickle
import struct
from collections import OrderedDict, defaultdict, namedtuple
from enum import Enum, IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import omni_async
from tests.cases.memory_of import header_of
from tests.cases.processes import Processes

Pair = tuple[omni_async.Transport, omni_async.Transport]


_numbers = itertools.count()


async def trip(pair: Pair, value: Any) -> Any:
    tx, rx = pair
    key = f"k{next(_numbers)}"
    await tx.put("0", "1", key, value)
    return (await rx.get("0", "1", key, timeout=5)).value


# --- G1: dtypes, shapes and layouts ---------------------------------------------------------------


def torch_dtypes() -> list[str]:
    try:
        import torch
    except ImportError:
        return []
    found = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    return sorted(str(dtype).removeprefix("torch.") for dtype in found)


SHAPES: list[tuple[int, ...]] = [(), (0,), (3, 0, 2), (5,), (2, 3, 4)]


@pytest.mark.filterwarnings("ignore:ComplexHalf", "ignore:torch.quantize")
@pytest.mark.parametrize("name", torch_dtypes())
async def test_every_dtype_and_shape(pair: Pair, name: str) -> None:
    torch = pytest.importorskip("torch")
    dtype = getattr(torch, name)
    tx, _ = pair
    tried = 0
    for shape in SHAPES:
        count = int(np.prod(shape)) if shape else 1
        try:
            item = torch.empty(0, dtype=dtype).element_size()
            raw = torch.arange(count * item, dtype=torch.int64).remainder(2).to(torch.uint8)
            tensor = raw.view(dtype).reshape(shape) if count else torch.empty(shape, dtype=dtype)
        except (RuntimeError, TypeError):  # torch itself makes no such tensor
            continue
        key = f"k{next(_numbers)}"
        receipt = await put_or_refusal(tx, key, tensor)
        if isinstance(receipt, omni_async.EncodeError):
            assert not plain_name(name), f"{name}: {receipt}"
            assert name in str(receipt)
            continue
        tried += 1
        received = (await pair[1].get("0", "1", key, timeout=5)).value
        assert receipt.nbytes == count * item
        assert (received.dtype, received.shape) == (tensor.dtype, tensor.shape)
        assert received.is_contiguous()
        if count:
            assert torch.equal(
                received.reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8)
            )
        in_tree = await trip(pair, {"t": tensor, "more": [tensor]})
        assert in_tree["more"][0].shape == tensor.shape
        assert in_tree["t"].dtype == dtype
    if plain_name(name):
        assert tried == len(SHAPES)


def plain_name(name: str) -> bool:
    return name.startswith(("float", "bfloat", "int", "uint", "bool", "complex")) and not (
        name.removeprefix("u").removeprefix("int") in map(str, range(1, 8))  # int1 to int7
        or name == "float4_e2m1fn_x2"
    )


async def put_or_refusal(tx: omni_async.Transport, key: str, value: Any) -> Any:
    try:
        return await tx.put("0", "1", key, value)
    except omni_async.EncodeError as error:
        return error


def layouts() -> dict[str, Any]:
    import torch

    base = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    return {
        "transposed": base.t(),
        "expanded": torch.arange(3.0).reshape(3, 1).expand(3, 5),
        "every other": base[:, ::2],
        "offset": base[1:],
        "reversed": base.flip(0),
        "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "bfloat16 transposed": base.to(torch.bfloat16).t(),
        "requires grad": base.clone().requires_grad_(),
        "with history": base.clone().requires_grad_() * 2,
        "parameter": torch.nn.Parameter(base.clone()),
        "conjugated": torch.randn(4, dtype=torch.complex64).conj(),
        "negative bit": torch.randn(4, dtype=torch.complex64).conj().imag,
        "scalar of a matrix": base[1, 2],
        "large transposed": torch.arange(600 * 700, dtype=torch.int32).reshape(600, 700).t(),
    }


@pytest.mark.parametrize("name", ["transposed", "expanded", "every other", "offset", "reversed",
                                  "channels last", "bfloat16 transposed", "requires grad",
                                  "with history", "parameter", "conjugated", "negative bit",
                                  "scalar of a matrix", "large transposed"])  # fmt: skip
async def test_every_layout(pair: Pair, name: str) -> None:
    torch = pytest.importorskip("torch")
    tensor = layouts()[name]
    for received in (await trip(pair, tensor), (await trip(pair, [tensor]))[0]):
        assert type(received) is torch.Tensor
        assert not received.requires_grad
        assert received.is_contiguous()
        assert received.dtype == tensor.dtype
        assert received.shape == tensor.shape
        assert torch.equal(received, tensor.detach())


async def test_a_slice_is_sent_without_its_base(pair: Pair) -> None:
    """TransferQueue PR#96: one element dragged four megabytes along."""
    torch = pytest.importorskip("torch")
    tx, _ = pair
    receipt = await tx.put("0", "1", "k", torch.zeros(1 << 20)[:1])
    assert receipt.nbytes == 4
    receipt = await tx.put("0", "1", "k2", {"x": torch.zeros(1 << 20)[:1]})
    assert receipt.nbytes < 1000


@pytest.mark.filterwarnings(
    "ignore:.*deprecated.*", "ignore:Sparse", "ignore:.*quantiz.*", "ignore:.*nested.*"
)
@pytest.mark.parametrize("kind", ["sparse", "csr", "quantised", "meta", "nested"])
async def test_what_has_no_plain_bytes_is_refused_by_name(pair: Pair, kind: str) -> None:
    torch = pytest.importorskip("torch")
    try:
        tensor = {
            "sparse": lambda: torch.eye(3).to_sparse(),
            "csr": lambda: torch.eye(3).to_sparse_csr(),
            "quantised": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8),
            "meta": lambda: torch.empty(3, device="meta"),
            "nested": lambda: torch.nested.nested_tensor(
                [torch.ones(2), torch.ones(3)], layout=torch.jagged
            ),
        }[kind]()
    except (RuntimeError, UserWarning) as error:
        pytest.skip(f"this torch makes no {kind} tensor: {error}")
    tx, _ = pair
    with pytest.raises(omni_async.EncodeError) as caught:
        await tx.put("0", "1", "k", {"a": [1, tensor]})
    assert caught.value.path == "value['a'][1]"
    assert tx.health().pool_used == 0


# --- G3: integers outside 64 bits -----------------------------------------------------------------

INTEGERS = [2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**400, -(10**400)]


@pytest.mark.parametrize("number", INTEGERS, ids=lambda number: f"{number.bit_length()} bits")
async def test_integers_of_any_size(pair: Pair, number: int) -> None:
    value = {"value": number, number: "key", "meta": {"list": [1, number], "tuple": (number,)}}
    assert await trip(pair, value) == value
    assert await trip(pair, number) == number
    assert await trip(pair, [1, 2, number]) == [1, 2, number]


# --- G5, G6: bytes that are no payload ------------------------------------------------------------


class Trap:
    """Writes a file when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.path,)


MARK = "needle-in-the-header"
PAYLOAD = {MARK: [1, "text", [2.5, None]], "more": {"deep": [True, -5, 2**40]}}


async def test_damaged_headers_are_decode_errors(processes: Processes, namespace: str) -> None:
    sender = await processes.agent("sender")
    async with omni_async.open_transport(
        "shm", role="receiver", stage="1", namespace=namespace
    ) as rx:
        for number, damage in enumerate(damages()):
            mark = f"{MARK}-{number:04}"
            await sender.do("put", key=f"k{number}", value={**PAYLOAD, "mark": mark}, nbytes=20_000)
            with header_of(sender.pid, mark.encode()) as (segment, place):
                start = segment.rfind(MARK.encode(), 0, place)
                damage(segment, start)
            try:
                received = (await rx.get("0", "1", f"k{number}", timeout=5)).value
            except omni_async.DecodeError:
                continue
            # some bytes are content: changing those changes the content, not the shape
            assert isinstance(received, dict), damage
        await sender.do("put", key="after", value={"fine": True})
        assert (await rx.get("0", "1", "after", timeout=5)).value == {"fine": True}


def damages() -> list[Any]:
    """What is written over a header, around a text at ``start``."""

    def flip(place: int, mask: int) -> Any:
        def damage(segment: Any, start: int) -> None:
            segment[start + place] ^= mask

        return damage

    def write(place: int, data: bytes) -> Any:
        def damage(segment: Any, start: int) -> None:
            segment[start + place : start + place + len(data)] = data

        return damage

    flips = [flip(place, mask) for place in range(-16, 48) for mask in (0x01, 0x80, 0xFF)]
    lengths = [
        write(-2, bytes([code]) + struct.pack(">I", 0x7FFFFFFF)) for code in range(0xC4, 0xE0)
    ]
    return flips + lengths


async def test_a_pickle_is_refused_at_put(pair: Pair, tmp_path: Path) -> None:
    tx, _ = pair
    trap = Trap(str(tmp_path / "touched"))
    with pytest.raises(omni_async.EncodeError, match=r"value\[0\].*Trap"):
        await tx.put("0", "1", "k", [trap])
    data = pickle.dumps(trap)
    assert await trip(pair, data) == data  # bytes are bytes
    assert not os.listdir(tmp_path)


async def test_a_pickle_on_the_wire_is_refused_at_get(
    processes: Processes, namespace: str, tmp_path: Path
) -> None:
    trap = pickle.dumps(Trap(str(tmp_path / "touched")))
    sender = await processes.agent("sender")
    async with omni_async.open_transport(
        "shm", role="receiver", stage="1", namespace=namespace
    ) as rx:
        await sender.do("put", key="k", value={MARK: "x"}, nbytes=20_000)
        with header_of(sender.pid, MARK.encode()) as (segment, place):
            start = place // 64 * 64  # a payload begins on such a boundary
            segment[start : start + len(trap)] = trap
        with pytest.raises(omni_async.DecodeError):
            await rx.get("0", "1", "k", timeout=5)
    assert not os.listdir(tmp_path)


# --- other reports of this family -----------------------------------------------------------------

Point = namedtuple("Point", "x y")


class Colour(Enum):
    RED = 1


class Level(IntEnum):
    HIGH = 3


class Text(str):
    pass


class Mapping(dict):  # type: ignore[type-arg]
    pass


async def test_containers_come_back_as_they_were(pair: Pair) -> None:
    """sglang PR#29656: tuples and torch.Size came back as lists, and then were no dictionary keys."""
    value = {
        "tuple": (1, [2, (3,)], {}),
        "set": {1, 2},
        "frozen": frozenset({(1, 2), "a"}),
        (1, ("a", None)): "tuple key",
        None: 1,
        True: 2,
        1.5: 3,
        b"bytes": 4,
        "array": bytearray(b"xy"),
        "slice": slice(1, None, 2),
        "complex": 1 + 2j,
        "numpy": np.float32(1.5),
    }
    received = await trip(pair, value)
    assert received == value
    for name in ("tuple", "set", "frozen", "array", "slice", "numpy"):
        assert type(received[name]) is type(value[name])
    assert type(received["tuple"][1]) is list
    assert type(received["tuple"][1][1]) is tuple


async def test_torch_words_come_back_as_they_were(pair: Pair) -> None:
    torch = pytest.importorskip("torch")
    value = {"size": torch.Size([1, 2]), "dtype": torch.float8_e4m3fn}
    received = await trip(pair, value)
    assert received == value
    assert type(received["size"]) is torch.Size


@pytest.mark.parametrize(
    "value",
    [
        Point(1, 2),
        Colour.RED,
        Level.HIGH,
        Text("x"),
        Mapping(a=1),
        OrderedDict(a=1),
        defaultdict(list),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_a_type_is_never_flattened_in_silence(pair: Pair, value: Any) -> None:
    """msgspec writes these as their plain relatives; the receiver then holds something else."""
    tx, rx = pair
    outcome = await put_or_refusal(tx, "k", {"a": value})
    if isinstance(outcome, omni_async.EncodeError):
        assert "value['a']" in str(outcome)
        assert type(value).__name__ in str(outcome)
        return
    received = (await rx.get("0", "1", "k", timeout=5)).value["a"]
    assert type(received) is type(value)
    assert received == value


async def test_two_loops_in_two_threads_encode_at_once(namespace: str) -> None:
    """msgspec#401: encoders are not thread-safe; two engines in one process must not share one."""
    import asyncio
    import threading

    wrong: list[str] = []

    async def work(name: str) -> None:
        async with (
            omni_async.open_transport("shm", role="sender", stage="0", namespace=name) as tx,
            omni_async.open_transport("shm", role="receiver", stage="1", namespace=name) as rx,
        ):
            for index in range(400):
                value = {"name": name, "index": index, "a": np.full(300, index), "s": (name,) * 50}
                await tx.put("0", "1", f"k{index}", value)
                with await rx.get("0", "1", f"k{index}", timeout=10) as delivery:
                    received = delivery.value
                    if not (
                        received["name"] == name
                        and received["index"] == index
                        and received["s"] == (name,) * 50
                        and (received["a"] == index).all()
                    ):
                        wrong.append(f"{name} {index}")

    threads = [
        threading.Thread(target=asyncio.run, args=(work(f"{namespace}-{number}"),))
        for number in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        await asyncio.to_thread(thread.join, 30)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []
