"""The vendor's transfer engine, wrapped so that it cannot be misused.

In: addresses and lengths that were checked, peers' sessions. Out: writes and their ends, the vendor's codes as errors.
Never: asks about a write that failed to start or has ended (the vendor then kills the process); ends an engine.

An engine lives as long as its process, and transports share it. To destroy one takes the vendor a second,
during which it holds the GIL, so every thread of the process would stand still. Two threads and a few sockets
are kept instead, however often transports are opened.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import socket
import sys
import threading
from typing import Any

from ..._aio.fork import generation
from ...errors import BackendUnavailable, ConfigError, EngineFault
from ..environment import environment as environment  # others of Mooncake's take it from here

NAME = "MooncakeTransferEngineConnector"

_NO_DEVICE = "none"
_LANES_VARIABLE = "MC_TCP_LANES_PER_PEER"
_LANES = 8
"""Connections to one peer over TCP, each of which carries one write at a time and then waits for the peer's word.
With the vendor's 4 a cache of 186 MB in 1,536 pieces takes 75 ms on two cores, with 8 it takes 67, with 16 no less."""
_VENDORS_LANES = 4
"""As many it takes where the variable makes no sense."""
_REFUSED = (0, (1 << 64) - 1)
"""Handles of writes that did not start."""


class Write:
    """A write under way."""

    __slots__ = ("_handle", "_native", "status")

    def __init__(self, native: Any, handle: int) -> None:
        self._native = native
        self._handle = handle
        self.status: int | str | None = None
        """``None`` while it is under way, 1 when the bytes are in place, else what went wrong."""
        if handle in _REFUSED:
            self.status = "not started"

    def ended(self) -> bool:
        """Whether it has ended, well or badly; asks the engine until it has."""
        if self.status is None:
            status = self._native.transfer_check_status(self._handle)
            if status == 0:
                return False
            self.status = status  # the engine has forgotten the handle
        return True

    @property
    def failed(self) -> bool:
        return self.status != 1


class NativeEngine:
    """One engine of this process.

    Calls that say so wait for a peer or for another call: not on an event loop.
    """

    def __init__(self, native: Any, host: str, protocol: str, lanes: int) -> None:
        self._native = native
        self.protocol = protocol
        self.session = _session(host, native.get_rpc_port())
        """By which peers find it."""
        self.lanes = lanes
        """Connections that it has to one peer."""
        self._lock = threading.Lock()
        self._openings = 0
        self._known: set[str] = set()
        self._registering = threading.Lock()
        self._registered: dict[int, tuple[int, int]] = {}
        """Address → bytes, and by how many it was registered: one instance's caches are sent from by one
        transport and received into by another."""
        page = ctypes.create_string_buffer(2 * _PAGE)
        self._page = page
        self.page = -(-ctypes.addressof(page) // _PAGE) * _PAGE
        """Registered memory of which nobody keeps anything: a peer that writes here tries the way."""
        self.register(self.page, _PAGE)

    def register(self, address: int, nbytes: int) -> None:
        """Make memory reachable, until it was unregistered as often. Pinning protocols take about 0.2 s a GiB.

        Raises:
            EngineFault: it overlaps what is registered without being the same, or the system refused to pin it.
        """
        with self._registering:
            known, count = self._registered.get(address, (nbytes, 0))
            if not count or known != nbytes:  # of two lengths the vendor refuses the second
                _check(
                    self._native.register_memory(address, nbytes),
                    f"cannot register {nbytes:,} bytes at {address:#x}",
                )
            self._registered[address] = nbytes, count + 1

    def unregister(self, address: int) -> None:
        """End what :meth:`register` began.

        Raises:
            EngineFault: nothing was registered there.
        """
        with self._registering:
            nbytes, count = self._registered.pop(address, (0, 1))
            if count > 1:
                self._registered[address] = nbytes, count - 1
                return
            _check(self._native.unregister_memory(address), f"cannot unregister {address:#x}")

    def knows(self, session: str) -> bool:
        """Whether :meth:`open` has succeeded."""
        return session in self._known

    @property
    def waits(self) -> bool:
        """Whether a write may have to wait before it starts, because a peer is being opened."""
        return self._openings > 0

    def reach(self, session: str) -> None:
        """Wait until the peer's engine answers; blocks for up to a minute where it does not.

        Raises:
            EngineFault: it does not answer.
        """
        _check(self._native.send_probe(session), f"no answer from the peer's engine at {session}")

    def open(self, session: str, page: int) -> Write:
        """Get to know a peer, by a first write of one byte; blocks.

        All other writes wait meanwhile, so :meth:`reach` comes first: then the peer answers at once. Should
        it be stopped in between, :meth:`cut` ends the wait.

        Args:
            session: the peer's.
            page: the peer's :attr:`page`; 0 where it has none, then nothing is written.
        """
        with self._lock:
            self._openings += 1
        try:
            # A write of nothing ends well without a word to the peer, but opens it as others do.
            write = self._submit(session, self.page, page, 1 if page else 0)
        finally:
            with self._lock:
                self._openings -= 1
        if write.status is None:
            self._known.add(session)
        return write

    def cut(self, session: str) -> None:
        """End conversations with the peer's engine about itself, for which the vendor would wait a minute.

        Writes travel on other connections, to another port.
        """
        for number in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(number))) as sock:
                tcp = sock.family in (socket.AF_INET, socket.AF_INET6)
                if tcp and _session(*sock.getpeername()[:2]) == session:
                    sock.shutdown(socket.SHUT_RDWR)

    def submit(self, session: str, local: int, remote: int, nbytes: int) -> Write:
        """Begin to write to a peer that is known; takes microseconds unless the engine :attr:`waits`.

        A failure to start is told by the write.
        """
        if session not in self._known:
            raise RuntimeError(f"{session} was not opened")
        return self._submit(session, local, remote, nbytes)

    def _submit(self, session: str, local: int, remote: int, nbytes: int) -> Write:
        handle = self._native.transfer_submit_write(session, local, remote, nbytes)
        return Write(self._native, handle)


def _session(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


_PAGE = 4096
_engines: dict[tuple[object, ...], NativeEngine] = {}
_lock = threading.Lock()
_ipv6: bool | None = None
"""Which IP version the vendor uses; ``None`` before it was imported."""


def shared_engine(host: str, protocol: str, devices: str) -> NativeEngine:
    """The engine of this process for these words; blocks while it starts.

    Raises:
        BackendUnavailable: it does not start.
        ConfigError: an engine of this process uses the other IP version.
    """
    key = (generation(), host, protocol, devices)
    with _lock:
        if key not in _engines:
            _engines[key] = _start(host, protocol, devices)
        return _engines[key]


def load(host: str) -> Any:
    """The vendor's module, for engines that listen on ``host``.

    When it is imported it reads how much it is to say, and whether all engines of the process are to
    use IPv6.

    Raises:
        ImportError: it is not installed, or a library that it needs is missing.
        ConfigError: it was imported for the other IP version.
    """
    global _ipv6
    ours = {"MC_LOG_LEVEL": "ERROR"}
    if ":" in host:
        ours["MC_USE_IPV6"] = "1"
    with environment(ours):
        imported = "mooncake.engine" in sys.modules
        module = importlib.import_module("mooncake.engine")
        if _ipv6 is None:
            _ipv6 = "MC_USE_IPV6" in os.environ and not (imported and ":" in host)
    if _ipv6 != (":" in host):
        raise ConfigError(
            f"host is {host}, and the engines of this process use {'IPv6' if _ipv6 else 'IPv4'}: all "
            "have to use the same; another connector, the variable MC_USE_IPV6, or an earlier import "
            "of mooncake has decided it",
            path="host",
        )
    return module


def rdma_devices() -> list[str]:
    """Names of the devices that the RDMA library can drive; blocks a little."""
    ibverbs = ctypes.CDLL("libibverbs.so.1")
    ibverbs.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)
    ibverbs.ibv_free_device_list.argtypes = [ctypes.c_void_p]
    ibverbs.ibv_get_device_name.restype = ctypes.c_char_p
    ibverbs.ibv_get_device_name.argtypes = [ctypes.c_void_p]
    count = ctypes.c_int()
    devices = ibverbs.ibv_get_device_list(ctypes.byref(count))
    if not devices:
        return []
    try:
        return [ibverbs.ibv_get_device_name(devices[at]).decode() for at in range(count.value)]
    finally:
        ibverbs.ibv_free_device_list(devices)


def _start(host: str, protocol: str, devices: str) -> NativeEngine:
    tcp = protocol == "tcp"
    module = load(host)
    # The engine takes RDMA wherever it finds a device, whatever protocol it is told.
    ours = {"MC_FORCE_TCP": "1", _LANES_VARIABLE: str(_LANES)} if tcp else {}
    with environment(ours):
        lanes = os.environ.get(_LANES_VARIABLE, "")
        native = module.TransferEngine()
        status = native.initialize(host, "P2PHANDSHAKE", protocol, _NO_DEVICE if tcp else devices)
    if status:
        raise BackendUnavailable(
            f"the Mooncake engine did not start on {host} with protocol {protocol} and devices "
            f"{devices or 'as found'} (status {status}); its own words are on stderr",
            backend=NAME,
            remedy="set MC_LOG_LEVEL=INFO to hear more",
        )
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(native))  # for ever: see the head of this module
    count = int(lanes) if lanes.isdigit() else 0
    return NativeEngine(native, host, protocol, count or _VENDORS_LANES)


def _check(status: int, what: str) -> None:
    if status:
        raise EngineFault(f"{what} (status {status})", status=status, backend=NAME)
