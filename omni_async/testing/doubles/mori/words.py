"""What the double of ``amd-mori`` says: enumerations, settings, descriptors, the status of a transfer.

In: values. Out: the vendor's names for them, in both interfaces.
Never: moves a byte.
"""

from __future__ import annotations

import enum
import struct
import threading
from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

MISUSE: list[str] = []
"""What would have ended a process with the real library, or damaged its memory."""

_HANDLE = struct.Struct("<IQ52x")


class BackendType(enum.Enum):
    Unknown = 0
    XGMI = 1
    RDMA = 2
    TCP = 3


class MemoryLocationType(enum.Enum):
    Unknown = 0
    CPU = 1
    GPU = 2


class StatusCode(enum.Enum):
    SUCCESS = 0
    INIT = 1
    IN_PROGRESS = 2
    ERR_INVALID_ARGS = 11
    ERR_NOT_FOUND = 12
    ERR_RDMA_OP = 13
    ERR_BAD_STATE = 14
    ERR_GPU_OP = 15


class PollCqMode(enum.Enum):
    POLLING = 0
    EVENT = 1


class IOEngineConfig:
    def __init__(self, host: str = "", port: int = 0) -> None:
        self.host = host
        self.port = port


class RdmaBackendConfig:
    def __init__(
        self,
        qp_per_transfer: int = 1,
        post_batch_size: int = -1,
        num_worker_threads: int = -1,
        poll_cq_mode: PollCqMode = PollCqMode.POLLING,
        enable_notification: bool = True,
    ) -> None:
        self.qp_per_transfer = qp_per_transfer
        self.post_batch_size = post_batch_size
        self.num_worker_threads = num_worker_threads
        self.poll_cq_mode = poll_cq_mode
        self.enable_notification = enable_notification


class XgmiBackendConfig:
    def __init__(self, num_streams: int = 64, num_events: int = 64) -> None:
        self.num_streams = num_streams
        self.num_events = num_events


def _unpacked(data: bytes, kinds: Sequence[type]) -> list[Any]:
    """An array of these kinds; ``RuntimeError`` for anything else, as the vendor's exceptions become."""
    try:
        found = msgspec.msgpack.decode(data, type=list[Any])
    except (msgspec.DecodeError, TypeError):
        raise RuntimeError("insufficient bytes") from None
    if len(found) < len(kinds):
        raise RuntimeError("std::bad_cast")
    for value, kind in zip(found, kinds, strict=False):
        if not isinstance(value, kind) or isinstance(value, bool):
            raise RuntimeError("std::bad_cast")
    return found


class EngineDesc:
    """How an engine is found."""

    def __init__(self, key: str, node_id: str, host: str, port: int, pid: int = 0) -> None:
        self.key = key
        self.node_id = node_id
        self.hostname = node_id
        self.host = host
        self.port = port

    def pack(self) -> bytes:
        return msgspec.msgpack.encode((self.key, self.node_id, self.hostname, self.host, self.port))

    @classmethod
    def unpack(cls, data: bytes) -> EngineDesc:
        key, node, _, host, port, *rest = _unpacked(data, (str, str, str, str, int))
        return cls(key, node, host, port, *rest)


class EngineDescWithPid(EngineDesc):
    """The same, from 1.2 on."""

    def __init__(self, key: str, node_id: str, host: str, port: int, pid: int = 0) -> None:
        super().__init__(key, node_id, host, port)
        self.pid = pid

    def pack(self) -> bytes:
        return msgspec.msgpack.encode(
            (self.key, self.node_id, self.hostname, self.host, self.port, self.pid)
        )


class MemoryDesc:
    """A region that was registered.

    The handle by which the other processes of a host map a GPU's memory names the process and the address here.
    """

    def __init__(
        self,
        engine_key: str = "",
        id: int = 0,
        device_id: int = -1,
        data: int = 0,
        size: int = 0,
        loc: MemoryLocationType = MemoryLocationType.Unknown,
        ipc_handle: bytes = b"",
    ) -> None:
        self.engine_key = engine_key
        self.id = id
        self.device_id = device_id
        self.data = data
        self.size = size
        self.loc = loc
        self.ipc_handle = ipc_handle

    @staticmethod
    def _handle_of(pid: int, address: int) -> bytes:
        return _HANDLE.pack(pid, address)

    def _mapped(self) -> tuple[int, int]:
        """Process and address."""
        pid, address = _HANDLE.unpack(self.ipc_handle)
        return pid, address

    def pack(self) -> bytes:
        values = (self.engine_key, self.id, self.device_id, self.data, self.size)
        return msgspec.msgpack.encode((*values, self.loc.value, self.ipc_handle))

    @classmethod
    def unpack(cls, data: bytes) -> MemoryDesc:
        kinds = (str, int, int, int, int, int, bytes)
        key, number, device, address, size, loc, handle = _unpacked(data, kinds)[:7]
        return cls(key, number, device, address, size, MemoryLocationType(loc), handle)


class MemoryDescWithBus(MemoryDesc):
    """The same, from 1.2 on."""

    device_bus_id = ""
    numa_node = 0

    def pack(self) -> bytes:
        values = (self.engine_key, self.id, self.device_id, self.device_bus_id, self.data)
        rest = (self.size, self.loc.value, self.ipc_handle, self.numa_node)
        return msgspec.msgpack.encode((*values, *rest))

    @classmethod
    def unpack(cls, data: bytes) -> MemoryDesc:
        kinds = (str, int, int, str, int, int, int, bytes, int)
        key, number, device, _, address, size, loc, handle, _ = _unpacked(data, kinds)[:9]
        return cls(key, number, device, address, size, MemoryLocationType(loc), handle)


class TransferStatus:
    """How far a transfer is. The library writes into it until the transfer has ended."""

    _ENDS: ClassVar[str] = "a status was let go while its transfer was under way"

    def __init__(self) -> None:
        self._code = StatusCode.INIT
        self._message = ""
        self._changed = threading.Condition()
        self._only_when_waited_for = False
        self._outcome: tuple[StatusCode, str] | None = None

    def Code(self) -> StatusCode:
        return self._code

    def Message(self) -> str:
        return self._message

    def Init(self) -> bool:
        return self._code is StatusCode.INIT

    def InProgress(self) -> bool:
        return self._code is StatusCode.IN_PROGRESS

    def Succeeded(self) -> bool:
        return self._code is StatusCode.SUCCESS

    def Failed(self) -> bool:
        return self._code.value > 10

    def Update(self, code: StatusCode, message: str) -> None:
        """A failure stays."""
        with self._changed:
            if not self.Failed():
                self._code, self._message = code, message
            self._changed.notify_all()

    def SetCode(self, code: StatusCode) -> None:
        with self._changed:
            self._code = code
            self._changed.notify_all()

    def SetMessage(self, message: str) -> None:
        self._message = message

    def Wait(self) -> None:
        """Over RDMA it spins with the interpreter's lock held, until 1.2."""
        if not self._only_when_waited_for and self.InProgress():
            MISUSE.append("Wait() stops the interpreter until the transfer has ended")
        self._waited(None)

    def _ended(self, code: StatusCode, message: str) -> None:
        """(not the vendor's) The transfer has ended."""
        with self._changed:
            if self._only_when_waited_for:
                self._outcome = code, message
                self._changed.notify_all()
                return
        self.Update(code, message)

    def _waited(self, seconds: float | None) -> StatusCode:
        with self._changed:
            self._changed.wait_for(
                lambda: not self.InProgress() or self._outcome is not None, seconds
            )
            outcome = self._outcome
        if outcome is not None and self.InProgress():
            self.Update(*outcome)
        return self._code

    def __del__(self) -> None:
        if self.InProgress() and self._outcome is None:
            MISUSE.append(self._ENDS)


class WakingStatus(TransferStatus):
    """The same, from 1.2 on: it wakes whoever waits."""

    def Wait(self) -> None:
        self._waited(None)

    def WaitFor(self, timeout_ms: int = -1) -> StatusCode:
        return self._waited(None if timeout_ms < 0 else timeout_ms / 1000)

    def Code(self) -> StatusCode:
        self._waited(0)
        return self._code
