"""A sender in a process of its own: ``python -m tests.rendezvous.agent NAMESPACE [OPTION=VALUE]``.

In: words of receivers, whose keys are orders. Out: lines on stdout: "ready", or why not.
Never: ends before it is killed or its stdin closes.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Any

from omni_async.abc import Channel, Channels
from omni_async.errors import OmniAsyncError
from omni_async.model import Endpoint
from omni_async.rendezvous.messages import Bye, Done, Message, Want
from omni_async.rendezvous.unix_channel import UnixChannels
from tests.rendezvous.lines import hello, regions


class Obedient:
    def opened(self, channel: Channel) -> None:
        pass

    def received(self, channel: Channel, message: Message, fds: list[int]) -> None:
        if not isinstance(message, Want):
            return
        order, _, value = message.key.partition(":")
        if order == "fds":
            files = [os.memfd_create("region") for _ in range(int(value))]
            for number, fd in enumerate(files):
                os.write(fd, b"region %d" % number)
            channel.send(regions(len(files)), files)
            for fd in files:
                os.close(fd)
        elif order == "block":
            time.sleep(float(value))
        elif order == "fork" and not os.fork():
            os.closerange(0, 3)
            time.sleep(3)
            os._exit(0)
        elif order == "leave":
            channel.send(Bye("leaving", []))
            raise SystemExit(0)  # with everything open
        channel.send(Done(message.op))

    def silent(self, channel: Channel, seconds: float) -> None:
        pass

    def ended(self, channel: Channel, error: Exception | None) -> None:
        pass


def say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


async def serve(namespace: str, options: dict[str, str]) -> None:
    changes: dict[str, Any] = {"wire": int(options["wire"])} if "wire" in options else {}
    channels: Channels
    if "port" in options:
        from omni_async.rendezvous.zmq_channel import ZmqChannels

        channels = ZmqChannels("127.0.0.1", int(options["port"]), silent_after=0.4)
    else:
        channels = UnixChannels(options.get("socket_dir"), silent_after=0.4)
    mine = hello("sender", namespace, **changes)
    try:
        listener = await channels.listen(Endpoint(namespace, "0", 0, 0), mine, Obedient())
    except OmniAsyncError as error:
        say(type(error).__name__)
        return
    say(f"ready {listener.port}" if listener.port else "ready")
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    loop.add_reader(0, over.set)
    await over.wait()
    listener.close()


def main() -> None:
    options = dict(argument.split("=", 1) for argument in sys.argv[2:])
    if options.get("loop") == "uvloop":
        import uvloop

        uvloop.run(serve(sys.argv[1], options))
    else:
        asyncio.run(serve(sys.argv[1], options))


if __name__ == "__main__":
    main()
