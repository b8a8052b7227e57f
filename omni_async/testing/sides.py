"""One end of an edge as a test drives it, in this process or in another one.

In: keys, recipes, options. Out: plain results, and the errors a user would see.
Never: compares by the library's own codec; lets a test see in which process a side lives.
"""

from __future__ import annotations

import abc
import gc
import sys
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np

from ..errors import OmniAsyncError
from ..model import Capabilities, Health, Receipt
from ..pool import ManagedBuffer
from .compare import difference
from .orders import ErrorWord, error_word
from .recipes import Recipe

if TYPE_CHECKING:
    from ..transport import Delivery, Transport
    from ..transport.streams import ChunkReader, ChunkWriter
    from .processes import PeerProcess

Place = Literal["", "allocate", "empty"]
Limit = float | None | Literal["default"]
EDGE = ("0", "1")


class Got(msgspec.Struct):
    """What a ``get`` brought."""

    nbytes: int
    wrong: str | None
    """How the value differs from what was expected; ``None`` when it does not."""
    kind: str
    """Name of the value's type."""


class Outcome(msgspec.Struct):
    """One key of ``put_many`` or ``get_many``."""

    receipt: Receipt | None = None
    got: Got | None = None
    error: ErrorWord | None = None


class Side(abc.ABC):
    """A transport with recipes in the place of values. Deliveries are kept under names."""

    @abc.abstractmethod
    async def put(
        self,
        key: str,
        recipe: Recipe,
        *,
        edge: tuple[str, str] = EDGE,
        request_id: str | None = None,
        consumers: int = 1,
        timeout: Limit = "default",
        place: Place = "",
    ) -> Receipt:
        """``Transport.put`` of the recipe's value, built in pool memory when ``place`` says so."""

    @abc.abstractmethod
    async def get(
        self,
        key: str,
        want: Recipe | None = None,
        *,
        edge: tuple[str, str] = EDGE,
        metadata: dict[str, Any] | None = None,
        timeout: Limit = "default",
        raw: bool = False,
        copy: bool | None = None,
        keep: str = "",
    ) -> Got:
        """``Transport.get``, compared with the recipe's value and kept under ``keep``."""

    @abc.abstractmethod
    async def put_many(
        self, values: dict[str, Recipe], *, edge: tuple[str, str] = EDGE, timeout: Limit = "default"
    ) -> dict[str, Outcome]:
        """``Transport.put_many``."""

    @abc.abstractmethod
    async def get_many(
        self, want: dict[str, Recipe], *, edge: tuple[str, str] = EDGE, timeout: Limit = "default"
    ) -> dict[str, Outcome]:
        """``Transport.get_many`` of the keys of ``want``, compared with its recipes."""

    @abc.abstractmethod
    async def look(self, keep: str, want: Recipe) -> str | None:
        """How a kept value differs from the recipe's now."""

    @abc.abstractmethod
    async def write(self, keep: str, byte: int) -> None:
        """Write into a kept array."""

    @abc.abstractmethod
    async def release(self, keep: str) -> None:
        """``Delivery.release`` of a kept delivery; its value stays."""

    @abc.abstractmethod
    async def forget(self, keep: str) -> None:
        """Drop a kept delivery with every view of it."""

    @abc.abstractmethod
    async def keep_nothing(self) -> None:
        """:meth:`forget` all."""

    @abc.abstractmethod
    async def sweep(self) -> None:
        """Clean up whatever was put through this side."""

    @abc.abstractmethod
    async def cleanup(self, request_id: str) -> int:
        """``Transport.cleanup``."""

    @abc.abstractmethod
    async def drain(self, timeout: float | None = None) -> int:
        """``Transport.drain``."""

    @abc.abstractmethod
    async def update_sender_info(self, host: str, port: int, rank: int | None = None) -> None:
        """``Transport.update_sender_info``."""

    @abc.abstractmethod
    async def health(self) -> Health:
        """``Transport.health``."""

    @abc.abstractmethod
    async def capabilities(self) -> Capabilities:
        """``Transport.capabilities``."""

    @abc.abstractmethod
    async def leave(self) -> None:
        """Leave the ``async with`` normally: lingers."""

    @abc.abstractmethod
    async def close(self) -> None:
        """``Transport.aclose``."""

    @abc.abstractmethod
    async def abort(self) -> None:
        """``Transport.abort``."""


class LocalSide(Side):
    """A transport of this process."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self._kept: dict[str, tuple[Delivery, Any]] = {}
        self.streams: dict[str, ChunkWriter | ChunkReader] = {}
        """For :mod:`omni_async.testing.chunks`."""
        self.owners: set[str] = set()
        """Of what was put here."""

    async def put(
        self,
        key: str,
        recipe: Recipe,
        *,
        edge: tuple[str, str] = EDGE,
        request_id: str | None = None,
        consumers: int = 1,
        timeout: Limit = "default",
        place: Place = "",
    ) -> Receipt:
        value = recipe.make()
        if place == "allocate":
            buffer = await self.transport.allocate(value.nbytes)
            np.frombuffer(buffer.array, np.uint8)[:] = value
            value = buffer
        elif place == "empty":
            import torch

            tensor = await self.transport.empty(value.shape, torch.uint8)
            tensor.numpy()[:] = value
            value = tensor
        options = _with(timeout, request_id=request_id, consumers=consumers)
        self.owners.add(request_id or key)
        return await self.transport.put(*edge, key, value, **options)

    async def get(
        self,
        key: str,
        want: Recipe | None = None,
        *,
        edge: tuple[str, str] = EDGE,
        metadata: dict[str, Any] | None = None,
        timeout: Limit = "default",
        raw: bool = False,
        copy: bool | None = None,
        keep: str = "",
    ) -> Got:
        options = _with(timeout, raw=raw, copy=copy)
        delivery = await self.transport.get(*edge, key, metadata, **options)
        return self._got(delivery, want, keep)

    async def put_many(
        self, values: dict[str, Recipe], *, edge: tuple[str, str] = EDGE, timeout: Limit = "default"
    ) -> dict[str, Outcome]:
        made = {key: recipe.make() for key, recipe in values.items()}
        self.owners.update(values)
        outcomes = await self.transport.put_many(*edge, made, **_with(timeout))
        return {
            key: Outcome(receipt=outcome)
            if isinstance(outcome, Receipt)
            else Outcome(error=error_word(outcome))
            for key, outcome in outcomes.items()
        }

    async def get_many(
        self, want: dict[str, Recipe], *, edge: tuple[str, str] = EDGE, timeout: Limit = "default"
    ) -> dict[str, Outcome]:
        outcomes = await self.transport.get_many(*edge, list(want), **_with(timeout))
        return {
            key: Outcome(error=error_word(outcome))
            if isinstance(outcome, BaseException)
            else Outcome(got=self._got(outcome, want[key], ""))
            for key, outcome in outcomes.items()
        }

    def _got(self, delivery: Delivery, want: Recipe | None, keep: str) -> Got:
        value = delivery.value
        wrong = None if want is None else differs(value, want)
        if keep:
            self._kept[keep] = (delivery, value)
        return Got(delivery.nbytes, wrong, type(value).__name__)

    def delivery(self, keep: str) -> Delivery:
        """A kept delivery itself."""
        return self._kept[keep][0]

    async def look(self, keep: str, want: Recipe) -> str | None:
        return differs(self._kept[keep][1], want)

    async def write(self, keep: str, byte: int) -> None:
        value = self._kept[keep][1]
        value[...] = byte

    async def release(self, keep: str) -> None:
        self._kept[keep][0].release()

    async def forget(self, keep: str) -> None:
        del self._kept[keep]
        gc.collect()

    async def keep_nothing(self) -> None:
        self._kept.clear()
        self.streams.clear()

    async def sweep(self) -> None:
        for owner in self.owners:
            if owner and not self.transport.closed:
                await self.transport.cleanup(owner)
        self.owners.clear()

    async def cleanup(self, request_id: str) -> int:
        return await self.transport.cleanup(request_id)

    async def drain(self, timeout: float | None = None) -> int:
        return await self.transport.drain(timeout)

    async def update_sender_info(self, host: str, port: int, rank: int | None = None) -> None:
        self.transport.update_sender_info(host, port, rank)

    async def health(self) -> Health:
        return self.transport.health()

    async def capabilities(self) -> Capabilities:
        return self.transport.capabilities

    async def leave(self) -> None:
        await self.transport.__aexit__(None, None, None)

    async def close(self) -> None:
        await self.transport.aclose()

    async def abort(self) -> None:
        self.transport.abort()


class RemoteSide(Side):
    """A transport of a peer process."""

    def __init__(self, peer: PeerProcess, name: str) -> None:
        self._peer = peer
        self.name = name

    async def use(self, target: str, **arguments: Any) -> Any:
        """Await ``"package.module:name"`` there, with that side as its first argument."""
        return await self._peer.call("use", target=target, side=self.name, **arguments)

    async def _call(self, do: str, kind: Any, /, **arguments: Any) -> Any:
        result = await self._peer.call(do, self.name, **arguments)
        return msgspec.convert(result, kind)

    async def put(self, key: str, recipe: Recipe, **options: Any) -> Receipt:
        receipt: Receipt = await self._call("put", Receipt, key=key, recipe=recipe, **options)
        return receipt

    async def get(self, key: str, want: Recipe | None = None, **options: Any) -> Got:
        got: Got = await self._call("get", Got, key=key, want=want, **options)
        return got

    async def put_many(self, values: dict[str, Recipe], **options: Any) -> dict[str, Outcome]:
        kind = dict[str, Outcome]
        found: dict[str, Outcome] = await self._call("put_many", kind, values=values, **options)
        return found

    async def get_many(self, want: dict[str, Recipe], **options: Any) -> dict[str, Outcome]:
        kind = dict[str, Outcome]
        found: dict[str, Outcome] = await self._call("get_many", kind, want=want, **options)
        return found

    async def look(self, keep: str, want: Recipe) -> str | None:
        found: str | None = await self._call("look", str | None, keep=keep, want=want)
        return found

    async def write(self, keep: str, byte: int) -> None:
        await self._call("write", None, keep=keep, byte=byte)

    async def release(self, keep: str) -> None:
        await self._call("release", None, keep=keep)

    async def forget(self, keep: str) -> None:
        await self._call("forget", None, keep=keep)

    async def keep_nothing(self) -> None:
        await self._call("keep_nothing", None)

    async def sweep(self) -> None:
        await self._call("sweep", None)

    async def cleanup(self, request_id: str) -> int:
        count: int = await self._call("cleanup", int, request_id=request_id)
        return count

    async def drain(self, timeout: float | None = None) -> int:
        count: int = await self._call("drain", int, timeout=timeout)
        return count

    async def update_sender_info(self, host: str, port: int, rank: int | None = None) -> None:
        await self._call("update_sender_info", None, host=host, port=port, rank=rank)

    async def health(self) -> Health:
        health: Health = await self._call("health", Health)
        return health

    async def capabilities(self) -> Capabilities:
        facts: Capabilities = await self._call("capabilities", Capabilities)
        return facts

    async def leave(self) -> None:
        await self._call("leave", None)

    async def close(self) -> None:
        await self._call("close", None)

    async def abort(self) -> None:
        await self._call("abort", None)


METHODS = frozenset(
    name for name, method in vars(Side).items() if getattr(method, "__isabstractmethod__", False)
)
"""What a peer process may be asked to do with a side."""


async def attempt(call: Any) -> Any:
    """The result of an awaitable, or the library's error it raised."""
    try:
        return await call
    except OmniAsyncError as error:
        return error


def _with(timeout: Limit, **options: Any) -> dict[str, Any]:
    return options if timeout == "default" else {**options, "timeout": timeout}


def differs(value: Any, want: Recipe) -> str | None:
    """How a value differs from what the recipe makes; ``None`` when it does not."""
    expected = want.make()
    if isinstance(value, ManagedBuffer):
        same = value.to_bytes() == expected.tobytes()
        return None if same else "value: a buffer has other bytes"
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor) and isinstance(expected, np.ndarray):
        value = value.numpy()  # put as a buffer, or built by empty()
    return difference(value, expected)
