"""The vendor's store: loaded, and clients of it set up.

In: settings. Out: this process's client with these settings.
Never: ends a client, runs on the event loop.

A client lives as long as its process, and transports share it. To end one takes the vendor up to two
seconds, during which it holds the GIL, so every thread of the process would stand still; and what lies in the
client's own segment would be gone, though readers may still want it.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import re
import threading
from typing import Any

from ..._aio.fork import generation
from ..mooncake._native import environment, load
from . import at_exit
from .client import Client, Settings, plain
from .listening import listening_ports

_OURS = {
    "MC_LOG_LEVEL": "ERROR",
    # Our own loop tries again, and does not hold the GIL meanwhile.
    "MC_STORE_CLIENT_SETUP_RETRIES": "1",
    # A master that is stopped holds up each call that long; 30 s unless set.
    "MC_RPC_TIMEOUT_MS": "5000",
    "MC_RPC_CONNECT_TIMEOUT_MS": "2000",
}


class SetupFailed(Exception):
    """The vendor's ``setup`` did not return 0."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


_clients: dict[tuple[object, ...], Client] = {}
_lock = threading.Lock()


def shared_client(settings: Settings) -> Client:
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
        module = importlib.import_module("mooncake.store")
    if "MC_LOG_LEVEL" not in os.environ:
        _hush()
    return module


def bare_host(host: str) -> str:
    """A host without the port behind it and without brackets."""
    found = re.fullmatch(r"\[(.*)\](?::\d+)?|([^:]*)(?::\d+)?", host)
    return host if found is None else found[1] or found[2]


def _set_up(settings: Settings) -> Client:
    module = load_store(settings.host)
    tcp = settings.protocol == "tcp"
    others = set(listening_ports())
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
    hostname: str = native.get_hostname()
    host = hostname.rpartition(":")[0]
    ports = set(listening_ports()) - others
    endpoints = frozenset(plain(at) for at in (hostname, *(f"{host}:{port}" for port in ports)))
    return Client(native, _pin(module, settings, hostname), settings, endpoints)


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
