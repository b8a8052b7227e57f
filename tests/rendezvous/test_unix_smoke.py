from __future__ import annotations

import os

from omni_async.rendezvous.local_channel import LocalChannels
from omni_async.rendezvous.unix_channel import UnixChannels
from tests.rendezvous.lines import pair, regions, want


async def test_unix(namespace: str) -> None:
    async with pair(UnixChannels(), namespace) as ends:
        for op in range(100):
            ends.rx.send(want(op))
        for op in range(100):
            assert (await ends.sender.next("received")) == want(op)
        r, w = os.pipe()
        ends.tx.send(regions(1), [r])
        os.close(r)
        await ends.receiver.next("received")
        (fd,) = ends.receiver.fds[-1]
        os.write(w, b"x")
        assert os.read(fd, 1) == b"x"
        os.close(fd)
        os.close(w)
        ends.tx.close()
        assert await ends.receiver.next("ended") is None
        await ends.receiver.next("opened")
        assert ends.sender.queue("ended").empty()


async def test_local(namespace: str) -> None:
    async with pair(LocalChannels(), namespace) as ends:
        for op in range(100):
            ends.rx.send(want(op))
        for op in range(100):
            assert (await ends.sender.next("received")) == want(op)
        ends.tx.close()
        assert await ends.receiver.next("ended") is None
        await ends.receiver.next("opened")
