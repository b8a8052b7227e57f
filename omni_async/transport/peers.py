"""What both halves do with a peer's regions, and with its end.

In: Regions words with their descriptors, the descriptor of a line that was given up. Out: attached regions.
Never: decides what a region is used for.
"""

from __future__ import annotations

import asyncio
import os
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


def watch_end(loop: asyncio.AbstractEventLoop, fd: int, ended: Callable[[], None]) -> None:
    """Call ``ended`` when the other side of a given-up line is closed; owns ``fd``.

    The kernel closes it with the peer's process, or the peer with its last view: either way nobody
    reads this side's memory any more.
    """

    def readable() -> None:
        try:
            data = os.read(fd, 65536)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        if not data:
            loop.remove_reader(fd)
            os.close(fd)
            ended()

    os.set_blocking(fd, False)
    loop.add_reader(fd, readable)
