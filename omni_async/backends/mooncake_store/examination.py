"""What the doctor is told of this store.

In: options, where to look. Out: findings.
Never: sets a client up, waits longer than a few seconds for a server.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...abc import Finding, Sight
from ...abc.findings import fault, of_error, ok
from ...errors import ConfigError
from ..mooncake.checks import Machine
from ..mooncake.examination import findings as of_engine
from ._native import load_store
from .checks import check_host, check_memory, engine_options
from .config import MooncakeStoreOptions
from .contact import P2P, master_trouble, metadata_trouble
from .opening import how_to_start

PATIENCE = 2.0
"""Seconds for one server."""


def findings(options: MooncakeStoreOptions, sight: Sight) -> Iterator[Finding]:
    """Package, cards, memory, and whether the servers answer; blocks."""
    machine = Machine(root=sight.root, environ=sight.environ, load=load_store)
    yield from of_engine(engine_options(options), machine)
    try:
        check_host(options.host)
        check_memory(options.segment + options.localbuf)
    except ConfigError as error:
        yield of_error(error)
    else:
        both = options.segment + options.localbuf
        yield ok("segment", f"{both:,} bytes for segment and localbuf are there")
    yield _server("master", options.master, master_trouble(options.master, PATIENCE))
    server = options.metadata_server
    if server == P2P:
        yield ok("metadata_server", "none is wanted: clients find each other by themselves")
    else:
        yield _server("metadata_server", server, metadata_trouble(server, PATIENCE))


def _server(option: str, address: str, trouble: str | None) -> Finding:
    if trouble is None:
        return ok(option, f"{address} answers")
    return fault(option, trouble, how_to_start(option, address), absent=True)
