"""Parts of vLLM-Omni, unmodified, in processes of their own.

In: calls. Out: what they returned or raised.
Never: lets the stand-ins that they need into the tests' process.

Calls and answers are pickled: both sides are ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch


class _Pickler(pickle.Pickler):
    """torch's own pickles do not know every dtype, numpy's not every byte order."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is np.ndarray:
            return array_from, (value.dtype.str, value.shape, value.tobytes())
        if type(value) is not torch.Tensor:
            return NotImplemented
        whole = value.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
        raw = whole.view(torch.uint8).numpy().tobytes() if value.numel() else b""
        return tensor_from, (str(value.dtype).removeprefix("torch."), tuple(value.shape), raw)


def array_from(dtype: str, shape: tuple[int, ...], raw: bytes) -> Any:
    return np.ndarray(shape, dtype, bytearray(raw))


def tensor_from(dtype: str, shape: tuple[int, ...], raw: bytes) -> Any:
    kind = getattr(torch, dtype)
    if not raw:
        return torch.empty(shape, dtype=kind)
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(kind).reshape(shape)


class Child:
    """A process with one object, made by the function ``make`` of this module."""

    def __init__(self, make: str, *arguments: Any) -> None:
        run = f"from {__name__} import serve, {make}; serve({make}(*{arguments!r}))"
        self.process = subprocess.Popen(
            [sys.executable, "-c", run], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._lock = threading.Lock()

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the object."""
        line = self.process
        assert line.stdin is not None
        assert line.stdout is not None
        with self._lock:
            _Pickler(line.stdin, 5).dump((method, arguments))
            line.stdin.flush()
            fine, outcome = pickle.load(line.stdout)
        if not fine:
            raise outcome
        return outcome

    async def ask(self, method: str, *arguments: Any) -> Any:
        """The same, beside an event loop."""
        return await asyncio.to_thread(self.call, method, *arguments)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.communicate()
        else:
            assert self.process.stdin is not None
            assert self.process.stdout is not None
            self.process.stdout.close()
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()


def serve(served: Any) -> None:
    """In the child: do as one is told, until the tests have gone."""
    warnings.simplefilter("ignore")
    while True:
        try:
            method, arguments = pickle.load(sys.stdin.buffer)
        except EOFError:
            break
        try:
            answer: tuple[bool, Any] = True, getattr(served, method)(*arguments)
        except Exception as error:  # noqa: BLE001 - it is what the test asked about
            answer = False, error
        _Pickler(sys.stdout.buffer, 5).dump(answer)
        sys.stdout.flush()
    os._exit(0)  # the vendor's engine takes long to end


def serializer(wheel: str) -> Any:
    """Their object format."""
    from omni_async.cli.bench import peer

    return peer.serializer(peer.find(wheel))


class Connector:
    """Their connector over Mooncake's engine, with results that can be sent to the tests."""

    def __init__(self, wheel: str, role: Any, port: int, pool: int) -> None:
        from omni_async.cli.bench import peer
        from omni_async.cli.bench.peer_vendors import MOONCAKE

        cls = peer.connector(peer.find(wheel), MOONCAKE)
        extra = peer.extra_of(MOONCAKE, role, port, pool)
        self._connector = cls(extra)
        self._threads = ThreadPoolExecutor(8)

    def put(self, key: str, value: Any, edge: tuple[str, str] = ("0", "1")) -> Any:
        return self._connector.put(*edge, key, value)

    def get(self, key: str, metadata: Any = None, edge: tuple[str, str] = ("0", "1")) -> Any:
        """``None``, or bytes that were not decoded, or what was decoded, and the size."""
        found = self._connector.get(*edge, key, metadata)
        if found is None:
            return None
        value, nbytes = found
        if hasattr(value, "release"):
            try:
                return value.to_bytes(), nbytes
            finally:
                value.release()
        return value, nbytes

    def poll(self, key: str, metadata: Any = None, edge: tuple[str, str] = ("0", "1")) -> Any:
        """Get as its callers do: again and again."""
        while (found := self.get(key, metadata, edge)) is None:
            time.sleep(0.001)
        return found

    def poll_many(self, keys: list[str], metadata: Any = None) -> list[Any]:
        """From several threads."""
        return list(self._threads.map(lambda key: self.poll(key, metadata), keys))

    def free(self) -> int:
        """Bytes of its pool that are free."""
        return sum(length for _, length in self._connector.allocator.free_blocks)

    def waiting(self) -> int:
        """Payloads that nobody has fetched."""
        return len(self._connector._local_buffers)

    def health(self) -> Any:
        return self._connector.health()


def connector(wheel: str, role: str, port: int, pool: int) -> Connector:
    return Connector(wheel, role, port, pool)


class StoreConnector:
    """Their connector to a store."""

    def __init__(self, wheel: str, name: str, extra: dict[str, Any]) -> None:
        from omni_async.cli.bench import peer

        self._connector = peer.connector(peer.find(wheel), name)(extra)

    def put(self, key: str, value: Any, edge: tuple[str, str] = ("0", "1")) -> Any:
        """Whether it was put, and its size."""
        done, nbytes, metadata = self._connector.put(*edge, key, value)
        assert metadata is None
        return done, nbytes

    def get(self, key: str, edge: tuple[str, str] = ("0", "1")) -> Any:
        """``None`` after a second, or the value and its size."""
        return self._connector.get(*edge, key)

    def health(self) -> Any:
        return self._connector.health()


def store_connector(wheel: str, name: str, extra: dict[str, Any]) -> StoreConnector:
    return StoreConnector(wheel, name, extra)


def managers(wheel: str) -> Any:
    """Their KV manager, as many ranks of it as are wanted."""
    from .kv_manager import Managers

    return Managers(wheel)
