"""The vendor's store client, wrapped so that it cannot be misused.

In: names, and places in memory. Out: statuses, 0 or more for success.
Never: calls a client that was not set up, ends one, runs on the event loop.

A client lives as long as its process, and transports share it. To end one takes the vendor up to two
seconds, during which it holds the GIL, so every thread of the process would stand still; and what lies in the
client's own segment would be gone, though readers may still want it.

Calls wait for the master or another client, at the latest as long as the vendor's own limits: 5 s for the
master, 30 s for bytes.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import re
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

from ..._aio.fork import generation
from ..mooncake._native import environment, load
from . import at_exit
from .codes import EXISTS, INVALID, LEASE_EXPIRED, NOT_THERE

_ATTEMPTS = 5
_OURS = {
    "MC_LOG_LEVEL": "ERROR",
    # Our own loop tries again, and does not hold the GIL meanwhile.
    "MC_STORE_CLIENT_SETUP_RETRIES": "1",
    # A master that is stopped holds up each call that long; 30 s unless set.
    "MC_RPC_TIMEOUT_MS": "5000",
    "MC_RPC_CONNECT_TIMEOUT_MS": "2000",
}


class Settings(NamedTuple):
    """What a client is made of; transports with the same ones share it."""

    host: str
    """Where other clients reach it; a port behind it is its own."""
    metadata: str
    master: str
    segment: int
    localbuf: int
    protocol: str
    devices: str
    evictable: bool


class SetupFailed(Exception):
    """The vendor's ``setup`` did not return 0."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class NativeClient:
    """One client that is set up. Calls may come from any threads."""

    def __init__(self, module: Any, native: Any, settings: Settings) -> None:
        self._native = native
        self.settings = settings
        self.hostname: str = native.get_hostname()
        self._pin = _pin(module, settings, self.hostname)
        self._copies = settings.segment > 0 and settings.protocol == "tcp"
        self._lock = threading.Lock()
        self._putting: set[str] = set()
        self._left: set[str] = set()
        """Puts that could be neither ended nor called back: the master was gone."""

    def put(self, name: str, addresses: Sequence[int], sizes: Sequence[int]) -> int:
        """Keep these pieces as one object, in place of one of that name.

        Returns one of :data:`BUSY` where that one has to stay.
        """
        with self._lock:
            if name in self._putting:
                return -703
            self._putting.add(name)
        try:
            if name in self._left:
                self._call_back(name)
            if self._copies:
                return self._put_by_copy(name, addresses, sizes)
            return self._put_in_steps(name, addresses, sizes)
        finally:
            with self._lock:
                self._putting.discard(name)

    def _put_in_steps(self, name: str, addresses: Sequence[int], sizes: Sequence[int]) -> int:
        """The way on which the master says whether there is an object already."""
        total = sum(sizes)
        for _ in range(_ATTEMPTS):
            status: int = self._native.batch_put_session_start([name], [total], self._pin)[0]
            if status != EXISTS:
                break
            status = self._native.remove(name, False)
            if status not in (0, NOT_THERE):
                return status
        else:
            return -703  # others put it again and again
        if status:
            return status
        ends, offset = [], 0
        for size in sizes:
            ends.append(offset)
            offset += size
        written = self._native.batch_put_from_multi_buffer_ranges(
            [name], [list(addresses)], [list(sizes)], [ends]
        )[0]
        status = written if written < 0 else self._native.batch_put_session_end([name])[0]
        if status:
            self._call_back(name)
        return status

    def _put_by_copy(self, name: str, addresses: Sequence[int], sizes: Sequence[int]) -> int:
        """The way on which bytes for the own segment are copied; on the other they take the loopback device.

        Here an object that somebody puts between the two calls stays, and 0 is returned: as if it had been
        put a moment later, and had replaced this one.
        """
        status: int = self._native.remove(name, False)
        if status not in (0, NOT_THERE):
            return status
        put: int = self._native.batch_put_from_multi_buffers(
            [name], [list(addresses)], [list(sizes)], self._pin
        )[0]
        return put

    def _call_back(self, name: str) -> None:
        status = self._native.batch_put_session_revoke([name])[0]
        with self._lock:
            if status in (0, INVALID):  # invalid: the client knows of no such put
                self._left.discard(name)
            else:
                self._left.add(name)

    def get(self, name: str, address: int, room: int) -> int:
        """The object's size; beyond ``room`` nothing usable was written."""
        status = INVALID
        for _ in range(_ATTEMPTS):
            status = self._native.get_into(name, address, room)
            if status == INVALID:
                size: int = self._native.get_size(name)
                if size < 0 or size > room:
                    return size
            elif status != LEASE_EXPIRED:
                break
        return status

    def contains(self, names: Sequence[str]) -> list[int]:
        """1 for each that there is, 0, or a status."""
        found: list[int] = self._native.batch_is_exist(list(names))
        return found

    def remove(self, names: Sequence[str], *, force: bool) -> list[int]:
        """A status for each. With ``force`` also of what is being read."""
        if len(names) == 1:
            return [self._native.remove(names[0], force)]
        removed: list[int] = self._native.batch_remove(list(names), force)
        return removed

    def register(self, address: int, nbytes: int) -> int:
        status: int = self._native.register_buffer(address, nbytes)
        return status

    def unregister(self, address: int) -> int:
        status: int = self._native.unregister_buffer(address)
        return status


_clients: dict[tuple[object, ...], NativeClient] = {}
_lock = threading.Lock()


def shared_client(settings: Settings) -> NativeClient:
    """This process's client with these settings; blocks while it is set up, and holds the GIL then.

    Raises:
        ImportError: the package is not installed, or a library that it needs is missing.
        ConfigError: the vendor was loaded for the other IP version.
        SetupFailed: the vendor refused.
    """
    key = (generation(), *settings)
    with _lock:
        if key not in _clients:
            _clients[key] = _set_up(settings)
        return _clients[key]


def load_store(host: str) -> Any:
    """The vendor's module.

    Raises:
        ImportError: as :func:`shared_client`.
        ConfigError: as :func:`shared_client`.
    """
    load(bare_host(host))
    with environment(_OURS):
        return importlib.import_module("mooncake.store")


def bare_host(host: str) -> str:
    """A host without the port behind it and without brackets."""
    found = re.fullmatch(r"\[(.*)\](?::\d+)?|([^:]*)(?::\d+)?", host)
    return host if found is None else found[1] or found[2]


def _set_up(settings: Settings) -> NativeClient:
    module = load_store(settings.host)
    tcp = settings.protocol == "tcp"
    with environment(_OURS | ({"MC_FORCE_TCP": "1"} if tcp else {})):
        native = module.MooncakeDistributedStore()
        status = native.setup(
            settings.host,
            settings.metadata,
            # What setup lends is taken back only by ending the client; but with RDMA it knows how to spread it.
            0 if tcp else settings.segment,
            settings.localbuf,
            settings.protocol,
            "" if tcp else settings.devices,
            settings.master,
        )
    if status:
        raise SetupFailed(status)
    segments: list[str] = []
    if tcp and settings.segment:
        lent = native.allocate_and_mount_segment(settings.segment, settings.protocol)
        if lent["ret"]:
            raise SetupFailed(lent["ret"])
        segments = lent["segment_ids"]
    at_exit.leave(native, segments, settings.master)
    if "MC_LOG_LEVEL" not in os.environ:
        _hush()
    return NativeClient(module, native, settings)


def _pin(module: Any, settings: Settings, hostname: str) -> Any:
    pin = module.ReplicateConfig()
    if not settings.evictable:
        pin.with_hard_pin = True
    elif hasattr(pin, "soft_pin_action"):  # since 0.3.13
        pin.soft_pin_action = module.SoftPinAction.ENABLE
    else:
        pin.with_soft_pin = True
    if settings.segment:
        pin.preferred_segment = hostname
    return pin


def _hush() -> None:
    """The vendor writes to stderr what it also returns, and a line each second while the master is down.

    What it writes is decided by a variable of its logging library; no setting of the vendor's reaches
    "nothing but the last words before an abort".
    """
    with open("/proc/self/maps") as file:
        found = re.search(r"/\S*libglog\S*\.so\S*", file.read())
    if found is not None:
        with contextlib.suppress(ValueError):  # another logging library: it goes on writing
            level = ctypes.c_int.in_dll(ctypes.CDLL(found[0]), "_ZN3fLI17FLAGS_minloglevelE")
            level.value = 3
