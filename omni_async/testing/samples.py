"""One of everything that can be sent, and of what cannot.

In: the name of a family. Out: named values, made anew at every call.
Never: needs torch or PIL before their families are asked for.
"""

from __future__ import annotations

import datetime as dt
import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pydantic

Values = dict[str, Any]


class Color(enum.Enum):
    RED = "red"
    BLUE = 2


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclass
class Point:
    x: int
    label: str = ""
    data: Any = None
    tags: list[str] = field(default_factory=list)


class Pair(NamedTuple):
    left: Any
    right: Any


class Frame(msgspec.Struct):
    number: int
    samples: Any = None


class Setting(pydantic.BaseModel):
    name: str
    value: float = 0.5


class Celsius:
    """A class that knows nothing of the library."""

    def __init__(self, degrees: float) -> None:
        self.degrees = degrees

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Celsius) and other.degrees == self.degrees

    __hash__ = None  # type: ignore[assignment]


_registered = False


def register_samples() -> None:
    """Make the sample classes known in this process, as an application does with its own."""
    global _registered
    if _registered:
        return
    _registered = True
    import omni_async

    for kind in (Color, Level, Point, Pair, Frame, Setting):
        omni_async.register_type(kind)
    omni_async.register_type(Celsius, encode=lambda t: t.degrees, decode=Celsius)


def scalars() -> Values:
    return {
        "None": None,
        "True": True,
        "False": False,
        "0": 0,
        "1": 1,
        "-1": -1,
        "2**63-1": 2**63 - 1,
        "2**63": 2**63,
        "2**64-1": 2**64 - 1,
        "2**64": 2**64,
        "-2**63": -(2**63),
        "-2**63-1": -(2**63) - 1,
        "10**400": 10**400,
        "-10**400": -(10**400),
        "0.1": 0.1,
        "-0.0": -0.0,
        "inf": float("inf"),
        "nan": float("nan"),
        "complex": complex(-0.0, 2.5),
        "empty str": "",
        "str": "réq \U0001f3b5 \x00 /:",
        "long str": "ä" * 5000,
        "empty bytes": b"",
        "bytes": bytes(range(256)),
        "bytearray": bytearray(b"\x00\xff" * 40),
        "memoryview": memoryview(b"view"),
        "slice": slice(1, None, -2),
    }


def times() -> Values:
    zone = dt.timezone(dt.timedelta(hours=5, minutes=30))
    return {
        "datetime": dt.datetime(2024, 2, 29, 23, 59, 59, 999999),
        "datetime utc": dt.datetime(1969, 1, 1, tzinfo=dt.timezone.utc),
        "datetime zone": dt.datetime(2030, 1, 1, 1, 2, 3, tzinfo=zone),
        "date": dt.date(1, 1, 1),
        "time": dt.time(1, 2, 3, 4),
        "time utc": dt.time(1, 2, 3, tzinfo=dt.timezone.utc),
        "timedelta": dt.timedelta(days=-3, microseconds=7),
    }


def containers() -> Values:
    return {
        "empty list": [],
        "empty tuple": (),
        "empty dict": {},
        "empty set": set(),
        "empty frozenset": frozenset(),
        "list": [1, 2.5, "x", None, True, b"y", [], {}],
        "ints": list(range(-200, 200)),
        "big ints in a list": [1, 2**64, -(2**80)],
        "tuple": (1, (2, (3, ()))),
        "tuples in a list": [(1, 2), (3, 4)],
        "bool and int": [True, 1, False, 0],
        "set": {1, "a", (2, 3), None},
        "set of big ints": {2**64, 2**65},
        "frozenset": frozenset({b"x", 1.5}),
        "dict": {"a": 1, "b": {"c": [1, {"d": None}]}},
        "keys": {None: 1, True: 2, 5: 3, 2.5: 4, "s": 5, b"b": 6, (1, ("x", None)): 7, 2**70: 8},
        "order": {"z": 1, "a": 2, "m": 3},
        "deep": _deep(60),
        "shared": _shared(),
        "wide": {f"key {number}": [number] * 3 for number in range(500)},
    }


def _deep(levels: int) -> Any:
    value: Any = "bottom"
    for level in range(levels):
        value = [value] if level % 2 else {"in": value}
    return value


def _shared() -> Any:
    inner = [1, 2]
    return {"a": inner, "b": inner}


def arrays() -> Values:
    found: Values = {}
    for name in (
        *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    ):
        found[name] = (np.arange(35) % 7).astype(name).reshape(5, 7)
    base = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    return found | {
        "0-dim": np.array(3.5),
        "empty": np.zeros((3, 0, 2), np.int16),
        "fortran": np.asfortranarray(base),
        "strided": base[:, ::2, ::-1],
        "broadcast": np.broadcast_to(np.arange(4), (3, 4)),
        "big endian": np.arange(6, dtype=">i4"),
        "read-only": _readonly(),
        "datetime64": np.array(["2024-01-01", "NaT"], "datetime64[D]"),
        "timedelta64": np.array([1, -2], "timedelta64[ns]"),
        "text": np.array(["a", "bcd"]),
        "bytes": np.array([b"a", b"bcd"]),
        "large": np.arange(200_000, dtype=np.int32),
        "scalar float32": np.float32(0.1),
        "scalar int8": np.int8(-5),
        "scalar bool": np.bool_(True),
        "scalar complex64": np.complex64(1 + 2j),
        "in a tree": {"x": [np.arange(3), {"y": np.ones((2, 2), np.float16)}], "n": 1},
        "many": [np.full(100, number, np.int64) for number in range(50)],
    }


def _readonly() -> Any:
    array = np.arange(5)
    array.flags.writeable = False
    return array


def tensors() -> Values:
    import torch

    found: Values = {}
    for name in TENSOR_DTYPES:
        dtype = getattr(torch, name, None)
        if dtype is not None:
            raw = torch.arange(48 * dtype.itemsize, dtype=torch.int64).to(torch.uint8)
            if dtype is torch.bool:
                raw %= 2
            found[name] = raw.view(dtype).view(6, 8)
    return found


TENSOR_DTYPES = (
    *("bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "complex32", "complex64", "complex128"),
    *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
)


def layouts() -> Values:
    import torch

    base = torch.arange(24, dtype=torch.float32).view(2, 3, 4)
    return {
        "0-dim": torch.tensor(2.5, dtype=torch.bfloat16),
        "empty": torch.zeros(0),
        "empty inside": torch.zeros(3, 0, 2, dtype=torch.int32),
        "transposed": torch.arange(12).view(3, 4).t(),
        "expanded": torch.arange(3).view(3, 1).expand(3, 5),
        "strided": base[:, ::2, 1::2],
        "offset": base[1],
        "channels last": torch.arange(120.0).view(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "conj": torch.tensor([1 + 2j, 3 - 4j]).conj(),
        "negative bit": torch.tensor([1 + 2j]).conj().imag,
        "gradient": torch.ones(3, requires_grad=True),
        "parameter": torch.nn.Parameter(torch.ones(2, 2)),
        "large": torch.arange(300_000, dtype=torch.int64),
        "large strided": torch.arange(600_000, dtype=torch.int32)[::2],
        "Size": torch.Size([1, 2, 3]),
        "dtype": torch.bfloat16,
        "in a tree": {"h": base.to(torch.bfloat16), "t": (torch.ones(1), [torch.zeros(2)]), "n": 1},
        "twice": _twice(torch.ones(4)),
    }


def _twice(tensor: Any) -> Any:
    return [tensor, tensor, {"again": tensor}]


def images() -> Values:
    from PIL import Image

    pixels = np.arange(6 * 5 * 4, dtype=np.uint8).reshape(6, 5, 4)
    return {
        "RGB": Image.fromarray(np.ascontiguousarray(pixels[:, :, :3]), "RGB"),
        "RGBA": Image.fromarray(pixels, "RGBA"),
        "L": Image.fromarray(np.ascontiguousarray(pixels[:, :, 0]), "L"),
        "in a tree": {"image": Image.new("RGB", (64, 48), (1, 2, 3))},
    }


def registered() -> Values:
    register_samples()
    return {
        "enum": Color.BLUE,
        "int enum": Level.HIGH,
        "dataclass": Point(1, "p", np.arange(3), ["a"]),
        "named tuple": Pair(1, [2]),
        "struct": Frame(7, np.ones(4, np.float32)),
        "pydantic": Setting(name="gain", value=2.0),
        "own encoding": Celsius(36.6),
        "in a tree": [
            Point(2, data=Color.RED),
            {"s": Setting(name="x"), "p": Pair(None, Frame(0))},
        ],
    }


FAMILIES: dict[str, Callable[[], Values]] = {
    "scalars": scalars,
    "times": times,
    "containers": containers,
    "arrays": arrays,
    "tensors": tensors,
    "layouts": layouts,
    "images": images,
    "registered": registered,
}
"""Families by name; each call makes new values."""

NEEDS = {"tensors": "torch", "layouts": "torch", "images": "PIL"}
"""The package a family cannot do without."""


def refused() -> Values:
    """Values that cannot be sent: each is an ``EncodeError`` at ``put``."""
    loop: list[Any] = []
    loop.append(loop)

    class Unknown:
        def __reduce__(self) -> Any:
            raise AssertionError("somebody tried to pickle it")

    class OwnInt(int):
        pass

    found: Values = {
        "object": object(),
        "function": refused,
        "class": Unknown,
        "reducible": Unknown(),
        "object array": np.array([object(), None], dtype=object),
        "cycle": loop,
        "subclass of int": OwnInt(3),
        "generator": (number for number in range(3)),
        "error": ValueError("no"),
        "file": np,
    }
    return found


def refused_tensors() -> Values:
    """Tensors without plain bytes."""
    import torch

    return {
        "sparse": torch.eye(3).to_sparse(),
        "meta": torch.empty(3, device="meta"),
    }
