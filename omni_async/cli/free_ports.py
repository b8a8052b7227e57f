"""Free ports of this machine, each kept for whoever asked until it is given back.

In: names. Out: port numbers that nobody else is given meanwhile, in this process or another one.
Never: listens.

A port is kept by a socket that is bound to it and does not listen. While it lasts, the kernel gives the number
to nobody who asks for any port, neither to listen nor to connect. Who listens at it by number has to allow
that the address is shared (``SO_REUSEADDR``), as ZMQ and asyncio do.
"""

from __future__ import annotations

import socket
from collections.abc import Hashable
from types import TracebackType


class FreePorts:
    """Ports by name. Use as a context manager, or :meth:`close` it."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, socket.socket] = {}

    def of(self, name: Hashable) -> int:
        """The port of that name; the same whenever it is asked for."""
        if name not in self._kept:
            self._kept[name] = _bound()
        port: int = self._kept[name].getsockname()[1]
        return port

    def anew(self, name: Hashable) -> int:
        """Another port for that name; the one it had is kept, too, so that nobody listens there."""
        former = self._kept.pop(name, None)
        if former is not None:
            self._kept[name, former.fileno()] = former
        return self.of(name)

    def run_of(self, name: Hashable, count: int) -> int:
        """The first of so many ports next to each other; the same whenever it is asked for."""
        if (name, 0) not in self._kept:
            while not self._keep_run(name, count):
                pass
        port: int = self._kept[name, 0].getsockname()[1]
        return port

    def _keep_run(self, name: Hashable, count: int) -> bool:
        run = [_bound()]
        first = run[0].getsockname()[1]
        try:
            for number in range(1, count):
                run.append(_bound(first + number))
        except (OSError, OverflowError):  # somebody has it, or there is none
            for sock in run:
                sock.close()
            return False
        self._kept.update(((name, number), sock) for number, sock in enumerate(run))
        return True

    def __len__(self) -> int:
        """Ports that are kept, each by a descriptor."""
        return len(self._kept)

    def close(self) -> None:
        """Give all back. Idempotent."""
        for sock in self._kept.values():
            sock.close()
        self._kept.clear()

    def __enter__(self) -> FreePorts:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _bound(port: int = 0) -> socket.socket:
    """Raises: OSError: somebody has it, as one who listens or as one who keeps it."""
    sock = socket.socket()
    try:
        sock.bind(("", port))
    except BaseException:
        sock.close()
        raise
    # Only now: a port by number would be shared with others who keep it.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return sock
