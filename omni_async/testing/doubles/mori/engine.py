"""The engine of the double, in the vendor's words.

In: calls as the vendor takes them. Out: statuses that end by themselves; faults as ordered.
Never: raises where the vendor does not, checks a range that the vendor does not check.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

from .. import carrier
from ..carrier import Carry, Piece
from ..ordered import ORDERED, Failed, Life
from .card import GET, PUT, Card, Connection, RemoteAccess
from .words import (
    MISUSE,
    BackendType,
    EngineDesc,
    EngineDescWithPid,
    IOEngineConfig,
    MemoryDesc,
    MemoryDescWithBus,
    MemoryLocationType,
    RdmaBackendConfig,
    StatusCode,
    TransferStatus,
    WakingStatus,
    XgmiBackendConfig,
)

CARDS = ("double_0", "double_1")
"""RDMA devices of the machine that the double pretends to be."""
DEVICES = "MORI_RDMA_DEVICES"

_UINT32 = (1 << 32) - 1
_NO_BACKEND = "No available backend found, create backend first"


def cards(environ: Any = os.environ) -> list[str]:
    """Those that a backend may use, by the variable that the vendor reads."""
    named = environ.get(DEVICES, "")
    if not named:
        return list(CARDS)
    listed = named.lstrip("^").split(",")
    return [card for card in CARDS if (card in listed) != named.startswith("^")]


class _Rdma:
    """What an RDMA backend holds."""

    def __init__(self, config: IOEngineConfig, settings: RdmaBackendConfig) -> None:
        if not cards():
            raise RuntimeError(
                "no active RDMA device on this host; "
                "set MORI_DISABLE_AUTO_XGMI=0 to enable XGMI-only fallback"
            )
        self.settings = settings
        self.card = Card(config.host or "127.0.0.1")
        self.connections: dict[str, Connection] = {}
        self.known: set[tuple[str, int]] = set()
        """Regions of peers whose size was asked for."""
        self._building: dict[str, threading.Lock] = {}

    def session(self, remote: EngineDesc, memory: MemoryDesc) -> Connection:
        """Connect, unless that was done; blocks for as long as the peer takes to answer."""
        with self._building.setdefault(remote.key, threading.Lock()):
            connection = self.connections.get(remote.key)
            try:
                if connection is None:
                    connection = Connection(remote.host, remote.port)
                    self.connections[remote.key] = connection
                if not connection.dead and (remote.key, memory.id) not in self.known:
                    size = connection.size_of(memory.id)
                    if size != memory.size:
                        raise RuntimeError(
                            "RdmaBackend::CreateSession: remote MR size mismatch for engine "
                            f"{remote.key} expected={memory.size} got={size}"
                        )
                    self.known.add((remote.key, memory.id))
            except OSError as error:
                raise RuntimeError(f"connect to {remote.host}:{remote.port}: {error}") from None
        return connection

    def close(self) -> None:
        self.card.close()
        for connection in self.connections.values():
            connection.close()


class IOEngineSession:
    """Two regions that are to be used again and again."""

    def __init__(self, mori_sess: Callable[..., Any]) -> None:
        self._transfer = mori_sess

    def allocate_transfer_uid(self) -> int:
        return 0

    def read(self, *args: Any) -> Any:
        local_offset, remote_offset, size, _ = args
        return self._transfer(GET, [local_offset], [remote_offset], [size])

    def write(self, *args: Any) -> Any:
        local_offset, remote_offset, size, _ = args
        return self._transfer(PUT, [local_offset], [remote_offset], [size])

    def batch_read(self, *args: Any) -> Any:
        return self._transfer(GET, *args[:3])

    def batch_write(self, *args: Any) -> Any:
        return self._transfer(PUT, *args[:3])

    def alive(self) -> bool:
        return True


class IOEngine:
    """The 1.0 interface."""

    _engine_desc: ClassVar[type[EngineDesc]] = EngineDesc
    _memory_desc: ClassVar[type[MemoryDesc]] = MemoryDesc
    _status: ClassVar[type[TransferStatus]] = TransferStatus

    def __init__(self, key: str, config: IOEngineConfig) -> None:
        self._key = key
        self._config = config
        self._port = config.port
        self._life = Life()
        self._rdma: _Rdma | None = None
        self._xgmi: XgmiBackendConfig | None = None
        self._remote: dict[str, EngineDesc] = {}
        self._ids = 0
        self._uids = 0
        self._registering = threading.Lock()
        self._submitting = 0
        carrier.allow()

    # --- what is told -----------------------------------------------------------------------------

    def get_engine_desc(self) -> EngineDesc:
        return self._engine_desc(
            self._key, socket.gethostname(), self._config.host, self._port, os.getpid()
        )

    def create_backend(self, type: BackendType, config: Any = None) -> None:
        if type is BackendType.RDMA:
            self._rdma = _Rdma(self._config, config or RdmaBackendConfig())
            self._port = self._rdma.card.port
        elif type is BackendType.XGMI:
            self._xgmi = config or XgmiBackendConfig()
        else:
            raise NotImplementedError("backend not implemented yet")

    def remove_backend(self, type: BackendType) -> None:
        if self._submitting:
            MISUSE.append("an engine was ended while a transfer was handed to it")
        ORDERED.end(self._life)
        if type is BackendType.RDMA and self._rdma is not None:
            self._rdma.close()
            self._rdma = None
        elif type is BackendType.XGMI:
            self._xgmi = None

    def __del__(self) -> None:
        if self._rdma is not None:
            self.remove_backend(BackendType.RDMA)

    def register_remote_engine(self, engine_desc: EngineDesc) -> None:
        self._remote[engine_desc.key] = engine_desc

    def deregister_remote_engine(self, engine_desc: EngineDesc) -> None:
        self._remote.pop(engine_desc.key, None)

    def register_memory(
        self,
        ptr: int,
        size: int,
        device_id: int,
        mem_loc: MemoryLocationType,
    ) -> MemoryDesc:
        if not self._registering.acquire(blocking=False):
            MISUSE.append("memory was registered by two threads at once")
            self._registering.acquire()
        try:
            number = self._ids
            self._ids += 1
            if self._rdma is not None:  # those that exist; a later one does not know it
                self._rdma.card.register(number, ptr, size)
            handle = MemoryDesc._handle_of(os.getpid(), ptr)
            return self._memory_desc(self._key, number, device_id, ptr, size, mem_loc, handle)
        finally:
            self._registering.release()

    def register_torch_tensor(self, tensor: Any) -> MemoryDesc:
        if not tensor.is_contiguous():
            raise RuntimeError("input tensor must be contiguous")
        device = -1 if tensor.device.index is None else tensor.device.index
        on_host = tensor.device.type == "cpu"
        kind = MemoryLocationType.CPU if on_host else MemoryLocationType.GPU
        return self.register_memory(tensor.data_ptr(), tensor.nbytes, device, kind)

    def deregister_memory(self, mem_desc: MemoryDesc) -> None:
        if self._submitting:
            MISUSE.append("memory was unregistered while a transfer was handed over")
        if self._rdma is not None:
            self._rdma.card.deregister(mem_desc.id)

    # --- transfers --------------------------------------------------------------------------------

    def allocate_transfer_uid(self) -> int:
        self._uids += 1
        return self._uids

    def read(self, *args: Any) -> TransferStatus:
        local, here, remote, there, size, _ = args
        return self._transfer(GET, local, remote, [here], [there], [size])

    def write(self, *args: Any) -> TransferStatus:
        local, here, remote, there, size, _ = args
        return self._transfer(PUT, local, remote, [here], [there], [size])

    def batch_read(self, *args: Any) -> list[TransferStatus]:
        return self._batch(GET, *args)

    def batch_write(self, *args: Any) -> list[TransferStatus]:
        return self._batch(PUT, *args)

    def create_session(self, local_mem: MemoryDesc, remote_mem: MemoryDesc) -> Any:
        if self._way(local_mem, remote_mem) is None:
            return None
        return IOEngineSession(
            lambda want, *where: self._transfer(want, local_mem, remote_mem, *where)
        )

    def pop_inbound_transfer_status(self, remote_key: str, transfer_uid: int) -> None:
        return None

    def _batch(
        self,
        want: int,
        locals_: Sequence[MemoryDesc],
        here: Sequence[Sequence[int]],
        remotes: Sequence[MemoryDesc],
        there: Sequence[Sequence[int]],
        sizes: Sequence[Sequence[int]],
        uids: Sequence[int],
    ) -> list[TransferStatus]:
        lists = (locals_, here, remotes, there, sizes, uids)
        if len({len(one) for one in lists}) != 1:
            MISUSE.append("lists of different lengths end the process")
        return [
            self._transfer(want, local, remote, *where)
            for local, remote, *where in zip(locals_, remotes, here, there, sizes, strict=True)
        ]

    def _way(self, local: MemoryDesc, remote: MemoryDesc) -> BackendType | None:
        peer = self._remote.get(remote.engine_key)
        if peer is None:
            return None
        on_gpus = local.loc is remote.loc is MemoryLocationType.GPU
        if self._xgmi is not None and on_gpus and peer.node_id == socket.gethostname():
            return BackendType.XGMI
        return None if self._rdma is None else BackendType.RDMA

    def _transfer(
        self,
        want: int,
        local: MemoryDesc,
        remote: MemoryDesc,
        here: Sequence[int],
        there: Sequence[int],
        sizes: Sequence[int],
    ) -> TransferStatus:
        self._submitting += 1
        try:
            status = self._status()
            way = self._way(local, remote)
            if way is None:
                status.Update(StatusCode.ERR_BAD_STATE, _NO_BACKEND)
            elif max(sizes, default=0) > _UINT32:
                status.Update(
                    StatusCode.ERR_INVALID_ARGS,
                    "single request size exceeds UINT32_MAX; split it before submitting",
                )
            elif not sizes:
                status.SetCode(StatusCode.SUCCESS)
            elif way is BackendType.XGMI:
                self._over_xgmi(
                    want, local, remote, list(zip(here, there, sizes, strict=True)), status
                )
            else:
                self._over_rdma(
                    want, local, remote, list(zip(here, there, sizes, strict=True)), status
                )
            return status
        finally:
            self._submitting -= 1

    def _over_xgmi(
        self,
        want: int,
        local: MemoryDesc,
        remote: MemoryDesc,
        moves: Sequence[tuple[int, int, int]],
        status: TransferStatus,
    ) -> None:
        """Copies between two mapped ranges: nobody checks where they end."""
        pid, address = remote._mapped()
        pieces = [
            Piece(pid, local.data + here, address + there, size) for here, there, size in moves
        ]
        how = carrier.put if want == PUT else carrier.get
        status._only_when_waited_for = self._status is TransferStatus
        self._begin(pieces, how, status, StatusCode.ERR_GPU_OP, "XGMI: hipEventSynchronize failed")

    def _over_rdma(
        self,
        want: int,
        local: MemoryDesc,
        remote: MemoryDesc,
        moves: Sequence[tuple[int, int, int]],
        status: TransferStatus,
    ) -> None:
        assert self._rdma is not None
        connection = self._rdma.session(self._remote[remote.engine_key], remote)
        if connection.dead:
            status.Update(StatusCode.ERR_RDMA_OP, "Work Request Flushed Error")
            return
        if any(here + size > local.size for here, _, size in moves):
            connection.dead = True
            status.Update(StatusCode.ERR_RDMA_OP, "local protection error")
            return
        pieces = [Piece(0, local.data + here, there, size) for here, there, size in moves]

        def how(piece: Piece) -> None:
            connection.move(want, remote.id, piece.far, piece)

        failed = partial(setattr, connection, "dead", True)
        self._begin(pieces, how, status, StatusCode.ERR_RDMA_OP, "retry exceeded", failed)

    def _begin(
        self,
        pieces: Sequence[Piece],
        how: Carry,
        status: TransferStatus,
        code: StatusCode,
        message: str,
        failed: Callable[[], None] = lambda: None,
    ) -> None:
        status.SetCode(StatusCode.IN_PROGRESS)
        threading.Thread(
            target=_carried,
            args=(pieces, how, self._life, status, code, message, failed),
            name="mori-transfer",
            daemon=True,
        ).start()

    # Not held by a transfer: an engine that nobody refers to ends.


def _carried(
    pieces: Sequence[Piece],
    how: Carry,
    life: Life,
    status: TransferStatus,
    code: StatusCode,
    message: str,
    failed: Callable[[], None],
) -> None:
    try:
        ORDERED.carry(pieces, how, life)
    except Failed as error:
        if error.fault is None:
            return  # the engine has ended: nobody tells
        failed()
        bounds = error.fault.kind == "out_of_bounds" and code is StatusCode.ERR_RDMA_OP
        status._ended(code, "remote access error" if bounds else message)
    except RemoteAccess:
        failed()
        status._ended(code, "remote access error")
    except OSError as error:
        if life.over:
            return
        failed()
        status._ended(code, f"{message}: {error}")
    else:
        status._ended(StatusCode.SUCCESS, "success")


class WakingIOEngine(IOEngine):
    """The 1.2 interface."""

    _engine_desc = EngineDescWithPid
    _memory_desc = MemoryDescWithBus
    _status = WakingStatus

    def pop_peer_failure(self) -> None:
        """Take the oldest pending peer failure."""
        return

    def wait_all(self, statuses: Sequence[WakingStatus], timeout_ms: int = -1) -> StatusCode:
        codes = [status.WaitFor(timeout_ms) for status in statuses]
        return next((code for code in codes if code is not StatusCode.SUCCESS), StatusCode.SUCCESS)
