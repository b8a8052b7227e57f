"""What a client of the store needs of its machine, looked at before it is set up.

In: options, and the machine. Out: nothing, or one error that says what is missing and how to get it.
Never: changes anything.
"""

from __future__ import annotations

import os
import socket

from ...errors import ConfigError
from ..mooncake.checks import Machine, check
from ..mooncake.config import MooncakeTransferEngineOptions
from ._native import bare_host, load_store
from .codes import NAME
from .config import MooncakeStoreOptions

_NAMES = {"device_name": "rdma", "protocol": "proto"}
"""What the transfer engine's options are called here: both are one package, with one engine inside."""


def check_here(options: MooncakeStoreOptions, machine: Machine | None = None) -> None:
    """Raise what is wrong; blocks while a name is looked up.

    Raises:
        BackendUnavailable: something is missing here.
        ConfigError: nothing is missing, but settings contradict the machine.
    """
    check_host(options.host)
    check_memory(options.segment + options.localbuf)
    check(
        engine_options(options),
        machine or Machine(load=load_store),
        backend=NAME,
        names=_NAMES,
    )


def engine_options(options: MooncakeStoreOptions) -> MooncakeTransferEngineOptions:
    """What the engine inside is told."""
    engine = MooncakeTransferEngineOptions(protocol=options.proto, device_name=options.rdma)
    return engine.model_copy(update={"host": bare_host(options.host)})


def check_host(host: str) -> None:
    """Whether others can be told that name.

    Raises:
        ConfigError: nobody knows it.
    """
    try:
        socket.getaddrinfo(bare_host(host), None)
    except OSError as error:
        raise ConfigError(
            f"{NAME}: host is {host}, and other clients are told so, but nobody knows such a host ({error})",
            path="host",
        ) from error


def check_memory(wanted: int) -> None:
    """The vendor's client aborts, or says nothing, where it gets no memory.

    Raises:
        ConfigError: this host has less.
    """
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if wanted > there:
        raise ConfigError(
            f"{NAME}: segment and localbuf are {wanted:,} bytes together, this host has {there:,}; lower segment",
            path="segment",
        )
