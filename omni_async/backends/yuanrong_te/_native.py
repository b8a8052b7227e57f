"""The vendor's engine, wrapped so that it cannot be misused.

In: addresses and lengths that were checked, peers' sessions. Out: bytes in place, the vendor's errors as ours.
Never: reads from two threads at once, lets a port be taken by somebody else and go unused, imports the vendor
before it is asked to.

The vendor keeps the interpreter's lock in all its calls (its bindings, as of 0.8.1, never release it): while it
reads, nothing else of this process runs. So a read is short: the engine above cuts what is long.
Two reads at once of one peer would take each other's bytes: what is sent is matched with what is waited for by order alone.
"""

from __future__ import annotations

import contextlib
import importlib
import socket
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from ...errors import BackendUnavailable, ConfigError, EngineFault
from ..environment import environment

NAME = "YuanrongTransferEngineConnector"
PACKAGE = "openyuanrong-datasystem"
PROTOCOL = "ascend"
"""What all spellings of the option mean; releases after 0.8.1 know no other."""
ATTEMPTS = 20
"""Free ports that are tried: between finding one and binding it somebody else may be faster."""

_QUIET = {"GLOG_minloglevel": "3"}
"""Every failure of the library becomes an error here, so it need not be told twice."""


def load() -> ModuleType:
    """The vendor's module.

    Raises:
        ImportError: it is not installed, or a library that its engine needs is missing.
    """
    with environment(_QUIET):
        module = importlib.import_module("yr.datasystem")
        try:
            _ = module.TransferEngine, module.Result, module.ErrorCode
        except AttributeError as error:  # the package is there, its engine is not
            raise ImportError(str(error)) from None
    return module


class NativeEngine:
    """One engine of the vendor, listening for its peers. Making one blocks for milliseconds.

    Args:
        module: what :func:`load` gives.
        host: an IPv4 address of this host; the vendor knows no other.
        port: where it listens; ``None`` for one that is free.
        device: of the vendor's kind, such as ``npu:0``.

    Raises:
        BackendUnavailable: it does not start.
        ConfigError: somebody else has the port.
    """

    def __init__(self, module: ModuleType, host: str, port: int | None, device: str) -> None:
        for attempt in range(ATTEMPTS):
            asked = port if port is not None else _free_port(host)
            with environment(_QUIET):
                self._native: Any = module.TransferEngine()
                result = self._native.initialize(f"{host}:{asked}", PROTOCOL, device)
            if result.is_ok():
                break
            taken = "bind failed" in result.get_msg()
            if taken and port is not None:
                raise ConfigError(
                    f"{NAME}: port {port} of {host} cannot be had; use 'auto', or another one",
                    path="rpc_port",
                )
            if not taken or attempt == ATTEMPTS - 1:
                raise BackendUnavailable(
                    f"{NAME}: the engine does not start at {host} on {device} ({told(result)})",
                    backend=NAME,
                    remedy="see device_name and host; GLOG_minloglevel=0 shows the engine's own words",
                )
        self.device = device
        self.port = int(self._native.get_rpc_port())
        self.session = f"{host}:{self.port}"

    def register(self, address: int, nbytes: int) -> None:
        """Let peers read there.

        Raises:
            EngineFault: the vendor refused.
        """
        result = self._native.register_memory(address, nbytes)
        if result.is_error():
            raise fault(f"cannot register {nbytes:,} bytes at {address:#x}", result)

    def unregister(self, address: int) -> None:
        """Refuse peers from now on; a read that it has begun to serve goes on."""
        self._native.unregister_memory(address)  # nothing can be done about a failure

    def read(
        self, session: str, here: Sequence[int], there: Sequence[int], lengths: Sequence[int]
    ) -> None:
        """Read from a peer; blocks, with the interpreter's lock, until the bytes are in place.

        Raises:
            EngineFault: it failed; bytes may still come until the device has nothing left to do.
        """
        result = self._native.batch_transfer_sync_read(
            session, list(here), list(there), list(lengths)
        )
        if result.is_error():
            raise fault(f"could not read {sum(lengths):,} bytes from {session}", result)

    def close(self) -> None:
        """Stop listening, and end the vendor's threads. No read is under way."""
        self._native.finalize()
        del self._native


def told(result: Any) -> str:
    """The vendor's words for a failure, as far as people can use them."""
    text = str(result.get_msg())
    return text if len(text) <= 300 else f"{text[:300]}…"


def fault(what: str, result: Any) -> EngineFault:
    """The vendor's failure as ours; ``status`` is its name, such as ``kNotReady``."""
    status = result.get_code().name
    return EngineFault(f"{what}: {told(result)} ({status})", status=status, backend=NAME)


def _free_port(host: str) -> int:
    with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
    return port
