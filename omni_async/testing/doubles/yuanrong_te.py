"""Stands for ``yr.datasystem``'s TransferEngine, with host memory in place of an NPU's; shows nothing of an NPU or its network.

In: the vendor's calls, of one host. Out: bytes really moved between its processes, by ``process_vm_readv``; the
vendor's results, or the fault that was ordered.
Never: serves a range that its owner has not registered, reads in a thread that has not chosen its device.

It cannot show: that the vendor keeps the interpreter's lock while it reads, how it matches what is sent with what is
waited for, HCCL's own limits of time, or speed. Names, signatures, codes and texts are those of
openyuanrong-datasystem 0.8.1.
"""

from __future__ import annotations

import contextlib
import enum
import ipaddress
import os
import re
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any, TypeVar

import msgspec

from ...abc import MemorySource
from ...backends.yuanrong_te.backend import YuanrongTransferEngineBackend
from ...backends.yuanrong_te.config import YuanrongTransferEngineOptions
from ...backends.yuanrong_te.engine import Device
from ...pool.memory import AnonymousMemory
from .carrier import Piece, allow, get
from .ordered import ORDERED, Failed, Life

T = TypeVar("T")

AWAY = 1 << 40
"""By how much an address is wrong that is ordered to be."""

_context = threading.local()
"""``device``: which one the thread has chosen."""
_late: list[threading.Thread] = []
"""What failed reads had begun, and has not ended."""


class ErrorCode(enum.Enum):
    """The vendor's."""

    kOk = 0
    kInvalid = 2
    kNotFound = 3
    kRuntimeError = 5
    kNotReady = 8
    kNotAuthorized = 9
    kNotSupported = 36

    def __int__(self) -> int:
        return int(self.value)


class Result:
    """What every call of the vendor's returns; it raises for nothing but arguments of a wrong type."""

    def __init__(self) -> None:
        self._code = ErrorCode.kOk
        self._text = ""

    def is_ok(self) -> bool:
        return self._code is ErrorCode.kOk

    def is_error(self) -> bool:
        return not self.is_ok()

    def get_code(self) -> ErrorCode:
        return self._code

    def get_msg(self) -> str:
        return self._text

    def to_string(self) -> str:
        return f"code={int(self._code)}, msg={self._text}"

    def __repr__(self) -> str:
        return f"Result({self.to_string()})"


class Ask(msgspec.Struct, array_like=True):
    """What a reader says to the owner of memory: which ranges."""

    ranges: list[tuple[int, int]]


class Answer(msgspec.Struct, array_like=True):
    """What he says to that."""

    code: int
    text: str
    pid: int


class Owner:
    """What an engine serves. Its thread knows this alone, so an engine that nobody has any more ends."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.regions: dict[int, int] = {}

    def serve(self, listener: socket.socket) -> None:
        while True:
            try:
                line, _ = listener.accept()
            except OSError:  # finalize
                return
            with line, contextlib.suppress(OSError, msgspec.DecodeError):
                line.sendall(msgspec.msgpack.encode(self._answer(_received(line, Ask))))

    def _answer(self, ask: Ask) -> Answer:
        with self.lock:
            for address, nbytes in ask.ranges:
                inside = any(
                    a <= address and address + nbytes <= a + n for a, n in self.regions.items()
                )
                if not inside:
                    text = "remote range is not registered"
                    return Answer(int(ErrorCode.kNotAuthorized), text, os.getpid())
        return Answer(0, "accepted", os.getpid())


class TransferEngine:
    """The vendor's engine, as its Python bindings show it."""

    def __init__(self) -> None:
        self._owner = Owner()
        self._lock = self._owner.lock
        self._idle = threading.Condition(self._lock)
        self._reading = 0
        self._regions = self._owner.regions
        self._listener: socket.socket | None = None
        self._server: threading.Thread | None = None
        self._life = Life()

    def initialize(self, local_hostname: str, protocol: str, device_name: str) -> Result:
        host, port, wrong = _parsed(local_hostname)
        if wrong is not None:
            return wrong
        if len(device_name) <= len("npu:"):
            return _result(ErrorCode.kInvalid, "device_name is invalid")
        if re.fullmatch("npu:[0-9]+", device_name) is None:
            return _result(ErrorCode.kInvalid, "device_name should match npu:${device_id}")
        if self._listener is not None:
            return _result(ErrorCode.kInvalid, "transfer engine already initialized")
        try:
            ipaddress.IPv4Address(host)
        except ValueError:
            return _result(ErrorCode.kInvalid, "host should be a valid IPv4 address")
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
            listener.listen(64)
        except OSError:
            listener.close()
            return _result(ErrorCode.kRuntimeError, "bind failed")
        allow()
        self._port = port
        self._life = Life()
        self._listener = listener
        self._server = threading.Thread(
            target=self._owner.serve, args=(listener,), name="yuanrong-te-double", daemon=True
        )
        self._server.start()
        return Result()

    def get_rpc_port(self) -> int:
        return -1 if self._listener is None else self._port

    def register_memory(self, buffer_addr_regisrterch: int, length: int) -> Result:
        return self.batch_register_memory([buffer_addr_regisrterch], [length])

    def batch_register_memory(self, buffer_addrs: list[int], lengths: list[int]) -> Result:
        _counts("batch_register_memory", *buffer_addrs, *lengths)
        if not buffer_addrs:
            return _result(ErrorCode.kInvalid, "bufferAddrs is empty")
        if len(buffer_addrs) != len(lengths):
            return _result(ErrorCode.kInvalid, "bufferAddrs/lengths size mismatch")
        with self._lock:
            if self._listener is None:
                return _not_ready()
            added: dict[int, int] = {}
            for address, nbytes in zip(buffer_addrs, lengths, strict=True):
                if address <= 0:
                    return _result(ErrorCode.kInvalid, "bufferAddr should be positive")
                if nbytes <= 0:
                    return _result(ErrorCode.kInvalid, "length should be positive")
                there = {**self._regions, **added}
                if any(a < address + nbytes and address < a + n for a, n in there.items()):
                    return _result(ErrorCode.kInvalid, "failed to add registered region")
                added[address] = nbytes
            self._regions.update(added)
        return Result()

    def unregister_memory(self, buffer_addr_regisrterch: int) -> Result:
        return self.batch_unregister_memory([buffer_addr_regisrterch])

    def batch_unregister_memory(self, buffer_addrs: list[int]) -> Result:
        _counts("batch_unregister_memory", *buffer_addrs)
        with self._lock:
            if self._listener is None:
                return _not_ready()
            if not buffer_addrs:
                return _result(ErrorCode.kInvalid, "bufferAddrs is empty")
            for address in buffer_addrs:
                if self._regions.pop(address, None) is None:
                    return _result(ErrorCode.kNotFound, "region is not registered")
        return Result()

    def transfer_sync_read(
        self, target_hostname: str, buffer: int, peer_buffer_address: int, length: int
    ) -> Result:
        return self.batch_transfer_sync_read(
            target_hostname, [buffer], [peer_buffer_address], [length]
        )

    def batch_transfer_sync_read(
        self,
        target_hostname: str,
        buffers: list[int],
        peer_buffer_addresses: list[int],
        lengths: list[int],
    ) -> Result:
        _counts("batch_transfer_sync_read", *buffers, *peer_buffer_addresses, *lengths)
        if not buffers:
            return _result(ErrorCode.kInvalid, "buffers is empty")
        if not len(buffers) == len(peer_buffer_addresses) == len(lengths):
            text = "buffers/peerBufferAddresses/lengths size mismatch"
            return _result(ErrorCode.kInvalid, text)
        host, port, wrong = _parsed(target_hostname)
        if wrong is not None:
            return wrong
        for what, numbers in (
            ("buffer", buffers),
            ("peerBufferAddress", peer_buffer_addresses),
            ("length", lengths),
        ):
            if min(numbers) <= 0:
                return _result(ErrorCode.kInvalid, f"{what} should be positive")
        with self._lock:
            if self._listener is None:
                return _not_ready()
            self._reading += 1
        try:
            return self._read(
                (host, port), list(zip(buffers, peer_buffer_addresses, lengths, strict=True))
            )
        finally:
            with self._idle:
                self._reading -= 1
                self._idle.notify_all()

    def finalize(self) -> Result:
        with self._idle:
            listener, self._listener = self._listener, None
            if listener is None:
                return Result()
            self._idle.wait_for(lambda: not self._reading)
            self._regions.clear()
        ORDERED.end(self._life)
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for somebody
        if self._server is not None:
            self._server.join()
        listener.close()
        return Result()

    def __del__(self) -> None:
        self.finalize()

    # the reader

    def _read(self, peer: tuple[str, int], moves: Sequence[tuple[int, int, int]]) -> Result:
        if getattr(_context, "device", None) is None:
            return _result(
                ErrorCode.kNotReady,
                "acl context is null, hint: please call aclInit(nullptr) and aclrtSetDevice(device_id) before "
                "using transfer_engine.",
            )
        answer = _asked(peer, Ask([(there, nbytes) for _, there, nbytes in moves]))
        if isinstance(answer, Result):
            return answer
        if answer.code:
            return _result(ErrorCode(answer.code), answer.text)
        pieces = [Piece(answer.pid, here, there, nbytes) for here, there, nbytes in moves]
        try:
            ORDERED.carry(pieces, get, self._life)
        except Failed as error:
            if error.fault is not None and error.fault.kind == "out_of_bounds":
                far = Ask([(there + AWAY, nbytes) for _, there, nbytes in moves])
                refused = _asked(peer, far)
                assert isinstance(refused, Answer)
                return _result(ErrorCode(refused.code), refused.text)
            _late.extend(self._life.late)
            self._life.late.clear()
            status = error.fault.status if error.fault is not None else -1
            text = f"aclrtSynchronizeEventWithTimeout failed, acl rc={status}"
            return _result(ErrorCode.kRuntimeError, text)
        except OSError as error:  # its owner has gone
            return _result(ErrorCode.kRuntimeError, f"p2p async error={error.errno}")
        return Result()


def _asked(peer: tuple[str, int], ask: Ask) -> Answer | Result:
    """The owner's answer; like the vendor's, the question waits for it without a limit."""
    try:
        line = socket.create_connection(peer)
    except OSError:
        return _result(ErrorCode.kRuntimeError, "connect failed")
    with line:
        try:
            line.sendall(msgspec.msgpack.encode(ask))
            line.shutdown(socket.SHUT_WR)
            return _received(line, Answer)
        except (OSError, msgspec.DecodeError):
            return _result(ErrorCode.kRuntimeError, "read frame header failed")


def _received(line: socket.socket, kind: type[T]) -> T:
    data = b""
    while part := line.recv(1 << 16):
        data += part
    return msgspec.msgpack.decode(data, type=kind)


def _parsed(hostname: str) -> tuple[str, int, Result | None]:
    host, colon, port = hostname.rpartition(":")
    text = ""
    if not hostname:
        text = "targetHostname is empty"
    elif not colon:
        text = "targetHostname missing host:port"
    elif not host:
        text = "targetHostname host is empty"
    elif not port:
        text = "targetHostname port is empty"
    elif not port.isdigit() or int(port) > 65535:
        text = "targetHostname port is invalid"
    elif not int(port):
        text = "targetHostname port should be positive"
    if text:
        return "", 0, _result(ErrorCode.kInvalid, text)
    return host.strip("[]"), int(port), None


def _counts(call: str, *numbers: Any) -> None:
    if any(not isinstance(number, int) or number < 0 for number in numbers):
        raise TypeError(f"{call}(): incompatible function arguments.")


def _not_ready() -> Result:
    return _result(ErrorCode.kNotReady, "transfer engine not initialized")


def _result(code: ErrorCode, text: str) -> Result:
    made = Result()
    made._code, made._text = code, text
    return made


# --- the device, and the backend with both --------------------------------------------------------


class HostNpu:
    """Host memory in place of an NPU's.

    Args:
        device: ``cpu``, as a pool on the host; or ``cpu:0``, which PyTorch takes for a device and the library for
            one that is not the host: then payloads are copied to it and from it as with a real one.
    """

    def __init__(self, device: str = "cpu") -> None:
        self.device = device

    def use(self) -> None:
        _context.device = self.device

    def settle(self) -> None:
        """Blocks until what failed reads had begun has ended."""
        while _late:
            _late[-1].join()
            _late.pop()

    def memory(self) -> MemorySource:
        if self.device == "cpu":
            return AnonymousMemory()
        import torch

        from ...pool.device import DeviceMemory

        return DeviceMemory(self.device, torch, HostRuntime())


class HostRuntime:
    """As much of ``torch.npu`` as copies need: on the host they are done when they return."""

    class Stream:
        def __init__(self, device: object) -> None:
            pass

        def wait_stream(self, stream: object) -> None:
            pass

        def synchronize(self) -> None:
            pass

    def default_stream(self, device: object) -> None:
        return None

    @contextlib.contextmanager
    def stream(self, stream: object) -> Iterator[None]:
        yield


class YuanrongTransferEngineDouble(YuanrongTransferEngineBackend):
    """The connector, all of it, on what stands here for the vendor and the NPU."""

    name = "YuanrongTransferEngineDouble"
    alias = "yuanrong-te-double"
    on = "cpu"

    def vendor(self) -> ModuleType:
        return sys.modules[__name__]

    def device(self, number: int) -> Device:
        return HostNpu(self.on)

    def check(self, options: YuanrongTransferEngineOptions, number: int) -> str:
        return ""


class YuanrongTransferEngineOnDevice(YuanrongTransferEngineDouble):
    """The same with a pool that the host does not see."""

    name = "YuanrongTransferEngineOnDeviceDouble"
    alias = "yuanrong-te-double-device"
    on = "cpu:0"
