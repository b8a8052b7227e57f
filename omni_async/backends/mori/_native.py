"""The vendor's engine, wrapped so that it cannot be misused.

In: addresses and lengths that were checked, peers' descriptors. Out: bytes in place, the vendor's errors as ours.
Never: asks the vendor to wait with the interpreter's lock held for a peer, lets a status go before its transfer
has ended, leaves a variable behind in the environment, imports the vendor before it is asked to.

Speaks both the 1.0 and the 1.2 interface of ``amd-mori``: 1.0 tells of an end only when it is asked, 1.2 wakes
whoever waits for it.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any, NamedTuple

from ..._aio.asking import pause
from ...errors import BackendUnavailable, EngineFault
from ..environment import environment
from .config import MoriTransferEngineOptions

NAME = "MoriTransferEngineConnector"
PACKAGE = "amd-mori"
DEVICES = "MORI_RDMA_DEVICES"
LOGGING = ("MORI_IO_LOG_LEVEL", "MORI_GLOBAL_LOG_LEVEL")
LARGEST = 1 << 30
"""Bytes of one request; the vendor counts them with 32 bits."""

LONGEST = 2e-3
"""(1.0) Seconds between two questions about a transfer, at most."""

_RAISED = (RuntimeError, ValueError, IndexError, TypeError, MemoryError)
"""What the vendor's exceptions become in Python."""


def load() -> ModuleType:
    """The vendor's module.

    Raises:
        ImportError: it is not installed, is another package of that name, or a library that it needs is missing.
    """
    return importlib.import_module("mori.io")


class Place(NamedTuple):
    """A piece of a transfer: offsets in two registered regions."""

    local: int
    remote: int
    nbytes: int


class Batch(NamedTuple):
    """All pieces between one region here and one of the peer."""

    local: Any
    remote: Any
    """The vendor's descriptors."""
    places: Sequence[Place]


class Native:
    """One engine of the vendor with its one way to move bytes. Making one blocks; the rest does so where it says.

    A transfer that failed leaves the vendor's connection to that peer dead for good, and may leave others of its
    pieces under way. What ends all that is the end of the whole engine: see :meth:`destroy`.

    Args:
        host: where peers reach its control port.
        settle: waits until a device has done what it was told to (`xgmi`).

    Raises:
        BackendUnavailable: there is no device that it could use.
    """

    def __init__(
        self, options: MoriTransferEngineOptions, host: str, settle: Callable[[], None]
    ) -> None:
        self._module = module = load()
        self.xgmi = options.backend_type == "xgmi"
        self._type = module.BackendType.XGMI if self.xgmi else module.BackendType.RDMA
        self._settle = settle
        self.key = f"omni-async-{uuid.uuid4().hex}"
        self._engine: Any
        self._lock = threading.Lock()
        """The vendor keeps what is registered in a map that it does not lock."""
        self._changed = threading.Condition()
        self._inside = 0
        """Threads that are handing a transfer to the vendor."""
        self._leaving: list[Any] = []
        """Memory that is to be unregistered as soon as they are out again."""
        self._waited_for: set[Any] = set()
        """Statuses of transfers that have not ended; the vendor writes into them."""
        self._over = False
        self._known: set[bytes] = set()
        with _variables(options):
            try:
                self._create(options, host)
            except _RAISED as error:
                raise BackendUnavailable(
                    f"{NAME}: the engine does not start ({error})",
                    backend=NAME,
                    remedy=_remedy(options),
                ) from None

    def _create(self, options: MoriTransferEngineOptions, host: str) -> None:
        module = self._module
        self._engine = module.IOEngine(self.key, module.IOEngineConfig(host=host, port=0))
        if self.xgmi:
            config = module.XgmiBackendConfig(
                num_streams=options.xgmi_num_streams, num_events=options.xgmi_num_events
            )
        else:
            config = module.RdmaBackendConfig(
                qp_per_transfer=options.qp_per_transfer,
                post_batch_size=options.post_batch_size,
                num_worker_threads=options.num_worker_threads,
                # Nobody reads them, and a receiver that takes none in time makes writes fail.
                enable_notification=False,
            )
        self._engine.create_backend(self._type, config)

    # what peers are told

    def descriptor(self) -> bytes:
        """How peers find this engine."""
        told: bytes = self._engine.get_engine_desc().pack()
        return told

    def register(self, address: int, nbytes: int, device: int) -> Any:
        """Make memory reachable, or fit to be written from; the vendor's descriptor. A card learns of it with the
        first transfer.

        Args:
            device: number of the GPU; -1 for memory of the host.

        Raises:
            EngineFault: the engine has ended, or the memory cannot be shared.
        """
        kind = self._module.MemoryLocationType
        with self._lock, _told("cannot register memory"):
            memory = self._alive().register_memory(
                address, nbytes, device, kind.CPU if device < 0 else kind.GPU
            )
        if self.xgmi and not any(memory.ipc_handle):  # the vendor only mentions it in its log
            raise EngineFault(
                f"the GPU's memory at {address:#x} cannot be shared with other processes; are PyTorch's expandable "
                "segments on (PYTORCH_HIP_ALLOC_CONF)?",
                status="not shared",
                backend=NAME,
            )
        return memory

    def unregister(self, memory: Any) -> None:
        """End what :meth:`register` began: over RDMA no peer reaches it any more.

        While a transfer is being handed over it is done after that: the vendor drops what it knows of pairs of
        regions, and of others whose number is the same, without a look at who uses it just now. That is never so at
        an engine that only receives.
        """
        with self._changed:
            if self._inside:
                self._leaving.append(memory)
            else:
                self._deregister(memory)

    def _deregister(self, memory: Any) -> None:
        with self._lock:
            if self._engine is not None:
                self._engine.deregister_memory(memory)

    # peers

    def forget(self, word: bytes) -> None:
        """The peer with this descriptor has gone."""
        with self._lock:
            if word in self._known and self._engine is not None:
                self._known.discard(word)
                self._engine.deregister_remote_engine(self._module.EngineDesc.unpack(word))

    def write(self, word: bytes, batches: Sequence[Batch]) -> None:
        """Put the bytes of all batches into a peer's memory; blocks until all have ended, well or not.

        Args:
            word: the peer's descriptor.

        Raises:
            EngineFault: some did not end well. Others of its bytes may be under way until :meth:`destroy` has
                returned.
        """
        failed: EngineFault | None = None
        statuses: list[Any] = []
        with self._entered():
            self._know(word)
            try:
                for batch in batches:
                    statuses.append(self._submit(batch))
            except EngineFault as error:
                failed = error
        for status in statuses:
            self._wait(status)
        with self._changed:
            self._waited_for.difference_update(statuses)
            self._changed.notify_all()
        for status in statuses:
            if failed is None and not status.Succeeded():
                code = status.Code().name
                failed = EngineFault(
                    f"the write failed ({code}: {status.Message()})", status=code, backend=NAME
                )
        if failed is not None:
            raise failed

    def destroy(self) -> None:
        """End the engine with its connections, threads and registrations: after that no byte of it moves any more.

        Blocks while a transfer is being handed over; what is under way ends with an error. Idempotent.
        """
        with self._changed:
            self._over = True
            self._changed.wait_for(lambda: not self._inside)
        if self.xgmi:
            # The vendor takes no care of copies that a device still makes, nor of who waits for them.
            self._settle()
            with self._changed:
                self._changed.wait_for(lambda: not self._waited_for)
        with self._lock:
            engine, self._engine = self._engine, None
            if engine is not None:
                # Not by its last reference: a traceback may have one.
                engine.remove_backend(self._type)
        closed = self._module.StatusCode.ERR_BAD_STATE
        with self._changed:
            for status in self._waited_for:
                status.Update(closed, "the engine was ended")

    @contextlib.contextmanager
    def _entered(self) -> Iterator[None]:
        with self._changed:
            if self._over:
                raise EngineFault("the engine has ended", status="ended", backend=NAME)
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                while self._leaving and not self._inside:
                    self._deregister(self._leaving.pop())
                self._changed.notify_all()

    def _know(self, word: bytes) -> None:
        with self._lock, _told("the peer's engine cannot be used"):
            if word not in self._known:
                self._engine.register_remote_engine(self._module.EngineDesc.unpack(word))
                self._known.add(word)

    def _submit(self, batch: Batch) -> Any:
        """Hand over one batch; its status. One at a time: of several, an exception would lose the statuses."""
        locals_, remotes, sizes = zip(*batch.places, strict=True)
        with _told("the write did not begin"):
            engine = self._engine
            [status] = engine.batch_write(
                [batch.local],
                [list(locals_)],
                [batch.remote],
                [list(remotes)],
                [list(sizes)],
                [engine.allocate_transfer_uid()],
            )
        with self._changed:
            self._waited_for.add(status)
        return status

    def _wait(self, status: Any) -> None:
        if hasattr(status, "WaitFor"):
            status.WaitFor(-1)
        elif self.xgmi:
            status.Wait()  # nothing else tells of the end; it holds the interpreter's lock for one copy
        else:
            began = time.monotonic()
            while status.InProgress():  # Wait() would do so without a pause, and hold that lock
                time.sleep(pause(time.monotonic() - began, LONGEST))

    def _alive(self) -> Any:
        if self._engine is None:
            raise EngineFault("the engine has ended", status="ended", backend=NAME)
        return self._engine


def read_memory(descriptor: bytes) -> Any:
    """A peer's memory as it told; ``None`` for nonsense."""
    try:
        return load().MemoryDesc.unpack(descriptor)
    except _RAISED:
        return None


def read_engine(descriptor: bytes) -> Any:
    """A peer's engine as it told; ``None`` for nonsense."""
    try:
        return load().EngineDesc.unpack(descriptor)
    except _RAISED:
        return None


def cut(local: int, remote: int, nbytes: int) -> Iterator[Place]:
    """A move in pieces that the vendor can count."""
    for offset in range(0, nbytes, LARGEST):
        yield Place(local + offset, remote + offset, min(LARGEST, nbytes - offset))


@contextlib.contextmanager
def _variables(options: MoriTransferEngineOptions) -> Iterator[None]:
    """What the vendor reads while an engine is made, the first one of a process how much it says."""
    ours: dict[str, str] = {}
    if options.backend_type == "rdma":
        # With that switch open it would choose xgmi by itself, where unregistering ends nobody's access.
        ours["MORI_DISABLE_AUTO_XGMI"] = "1"
        if options.device_name:
            ours[DEVICES] = options.device_name
    # It says it to stdout, which is the caller's; every failure becomes an error here.
    said = any(name in os.environ for name in LOGGING)
    with environment({} if said else {LOGGING[0]: "critical"}), environment(ours, overrule=True):
        yield


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    try:
        yield
    except _RAISED as error:
        raise EngineFault(f"{what} ({error})", status="raised", backend=NAME) from None


def _remedy(options: MoriTransferEngineOptions) -> str:
    if options.backend_type == "xgmi":
        return "see rocm-smi --showtopo: GPUs that are joined by XGMI, and visible to this process"
    return (
        f"see ibstat and ibv_devices, device_name and the variable {DEVICES}; a user-space driver of another "
        "version than the kernel's shows no device"
    )
