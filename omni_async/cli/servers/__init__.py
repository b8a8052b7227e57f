"""Real servers of stores, for the demo, the benchmark and the tests.

In: a machine with the vendor's package. Out: servers on free ports of this host, by the loopback address.
Never: runs one for production, leaves one behind.
"""

from __future__ import annotations

from .running import Server, ServerFailed

__all__ = ["Server", "ServerFailed"]
