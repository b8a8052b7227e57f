"""Ports at which this process listens, by /proc."""

from __future__ import annotations

import socket

from omni_async.backends.mooncake_store.listening import listening_ports


def test_own_listeners_only() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as four,
        socket.create_server(("::1", 0), family=socket.AF_INET6) as six,
        socket.socket() as bound,
    ):
        bound.bind(("127.0.0.1", 0))
        ports = listening_ports()
        assert four.getsockname()[1] in ports
        assert six.getsockname()[1] in ports
        assert bound.getsockname()[1] not in ports
