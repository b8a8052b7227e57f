"""What both halves do with a peer's regions, and with its end.

In: Regions words with their descriptors, the descriptor of a line that was given up. Out: attached regions.
Never: decides what a region is used for.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable

from ..abc import Channel, Engine, RemoteRegion
from ..errors import ProtocolError
from ..model import Region
from ..rendezvous.messages import Regions


def learn_regions(
    engine: Engine,
    channel: Channel,
    word: Regions,
    fds: list[int],
    known: dict[int, RemoteRegion],
) -> None:
    """Attach what appeared, detach what is gone.

    Raises:
        ProtocolError: descriptors and regions do not match, or a number is used twice.
    """
    rest = list(fds)
    try:
        for item in word.added:
            fd = -1
            if item.has_fd:
                if not rest:
                    raise ProtocolError(
                        f"{channel.name} announced region {item.id} without its descriptor",
                        peer=channel.name,
                    )
                fd = rest.pop(0)
            if item.id in known:
                if fd >= 0:
                    os.close(fd)
                raise ProtocolError(
                    f"{channel.name} announced region {item.id} twice", peer=channel.name
                )
            region = Region(item.id, item.address, item.nbytes, item.descriptor, fd)
            known[item.id] = engine.attach(channel.peer.incarnation, region)
    finally:
        for fd in rest:
            os.close(fd)
    for number in word.removed:
        remote = known.pop(number, None)
        if remote is not None:
            engine.detach(remote)


class EndWatch:
    """Gives up a line and calls ``ended`` when the other side has closed it too; owns ``fd``.

    The kernel closes it with the peer's process, or the peer with its last view: either way nobody
    reads this side's memory any more.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, fd: int, ended: Callable[[], None]) -> None:
        self._loop = loop
        self._ended = ended
        self._line = socket.socket(fileno=fd)
        self._line.setblocking(False)
        with contextlib.suppress(OSError):  # the peer may be gone already
            self._line.shutdown(socket.SHUT_WR)
        loop.add_reader(fd, self._readable)

    def _readable(self) -> None:
        try:
            data = self._line.recv(65536)
        except (BlockingIOError, InterruptedError):
            return
        except ConnectionError:
            data = b""
        if not data:
            self.close()
            self._ended()

    def close(self) -> None:
        """Stop watching. Idempotent."""
        if self._line.fileno() >= 0:
            self._loop.remove_reader(self._line.fileno())
            self._line.close()
