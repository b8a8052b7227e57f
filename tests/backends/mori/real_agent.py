"""Two engines on the real ``amd-mori``, a process each: ``python -m tests.backends.mori.real_agent``.

In: a library that it can load, with ``fake_hip.c`` for HIP. Out: one JSON object of what was seen.
Never: needs PyTorch or a test runner, so that it runs in the interpreter for which there is a wheel.
"""

from __future__ import annotations

import asyncio
import base64
import ctypes
import json
import subprocess
import sys
import threading
from typing import Any

from omni_async.backends.mori._native import Native
from omni_async.backends.mori.config import MoriTransferEngineOptions
from omni_async.backends.mori.engine import MoriEngine
from omni_async.errors import EngineFault, ProtocolError
from omni_async.model import Move, Region

SIZE = 256 << 20
OPTIONS = MoriTransferEngineOptions.model_validate(
    {"backend_type": "xgmi", "memory_pool_device": "cuda", "xgmi_num_streams": 4}
)


def native() -> Native:
    return Native(OPTIONS, "127.0.0.1", lambda: None)


def memory() -> int:
    """Of the "GPU"."""
    hip, address = ctypes.CDLL("libamdhip64.so.7"), ctypes.c_void_p()
    assert hip.hipMalloc(ctypes.byref(address), ctypes.c_size_t(SIZE)) == 0
    assert address.value is not None
    return address.value


def told(data: bytes) -> str:
    return base64.b64encode(data).decode()


async def receive() -> None:
    """Tell of an engine and its memory, then how many bytes are an x in a range."""
    engine = MoriEngine(native(), native, "receiver", "cuda:0")
    address = memory()
    region = engine.register(address, SIZE)
    print(json.dumps([told(engine.describe()), address, told(region.descriptor)]), flush=True)  # noqa: T201
    for line in sys.stdin:
        offset, nbytes = map(int, line.split())
        print(ctypes.string_at(address + offset, nbytes).count(b"x"), flush=True)  # noqa: T201
    engine.unregister(region)
    engine.close()


class Sender:
    """An engine that writes to the other process."""

    def __init__(self, other: subprocess.Popen[str]) -> None:
        assert other.stdin is not None
        assert other.stdout is not None
        self._ask, self._answers = other.stdin, other.stdout
        word, address, descriptor = json.loads(self._answers.readline())
        self.word = base64.b64decode(word)
        self.engine = MoriEngine(native(), native, "sender", "cuda:0")
        self.source = memory()
        ctypes.memset(self.source, ord("x"), SIZE)
        self.engine.register(self.source, SIZE)
        self.engine.meet("r", self.word)
        region = Region(1, address, SIZE, base64.b64decode(descriptor), -1)
        self.regions = {1: self.engine.attach("r", region)}
        self.region = region

    async def write(self, *moves: tuple[int, int, int]) -> None:
        listed = [Move(self.source + here, 1, there, nbytes) for here, there, nbytes in moves]
        await self.engine.write("r", listed, self.regions)

    def arrived(self, offset: int = 0, nbytes: int = SIZE) -> int:
        self._ask.write(f"{offset} {nbytes}\n")
        self._ask.flush()
        return int(self._answers.readline())


async def send(seen: dict[str, Any], sender: Sender) -> None:
    seen["arrived"] = []
    for nbytes in (1, 4096, (64 << 20) + 1, 186 << 20):
        await sender.write((0, 0, nbytes))
        seen["arrived"].append(sender.arrived())
    last = 200 << 20
    many = [sender.write(*((n * 64, last + n * 8192, 64) for n in range(64))) for _ in range(50)]
    await asyncio.gather(*many)
    seen["in pieces"] = sender.arrived(last, 64 * 8192)
    for name, move in (("overrun", (0, SIZE - 5, 6)), ("underrun", (0, -1, 6))):
        seen[name] = await failure(sender.write(move))
    seen["nonsense"] = [refused(sender, word) for word in (b"", b"\xff", b"\x93\x01\x02\x03")]
    key = sender.engine.health()["engine_key"]
    # The vendor forgets the peer behind our back: all its ways to fail come as a status.
    vendor = sender.engine._life.native
    vendor._engine.deregister_remote_engine(vendor._module.EngineDesc.unpack(sender.word))
    seen["failed"] = await failure(sender.write((0, 0, 10)))
    await sender.write((0, 0, 10))
    seen["another engine"] = sender.engine.health()["engine_key"] != key
    sender.engine.part("r")
    sender.engine.close()
    for thread in threading.enumerate():
        if thread is not threading.main_thread():
            thread.join(5)
    seen["threads"] = threading.active_count()


async def failure(write: Any) -> str:
    try:
        await write
    except EngineFault as error:
        return str(error.status)
    return "went well"


def refused(sender: Sender, word: bytes) -> bool:
    try:
        sender.engine.attach("r", sender.region._replace(descriptor=word))
    except ProtocolError:
        pass
    else:
        return False
    try:
        sender.engine.meet("nobody", word)
    except ProtocolError:
        return True
    return False


async def main() -> None:
    if sys.argv[1:] == ["receive"]:
        await receive()
        return
    command = [sys.executable, "-m", "tests.backends.mori.real_agent", "receive"]
    seen: dict[str, Any] = {}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as other:  # noqa: ASYNC220
        await send(seen, Sender(other))
    seen["receiver"] = other.returncode
    print(json.dumps(seen))  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main())
