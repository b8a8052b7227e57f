"""What tests of the datasystem need: workers, stores over them, the vendor's client beside them.

In: a machine. Out: stores with memory beside them; a skip where the vendor's package cannot be loaded.
Never: leaves a server or a process behind.
"""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from omni_async.cli.servers.yuanrong import YuanrongWorker
from tests.backends.mooncake_store.desk import ROOM
from tests.cases.processes import Process, Processes
from tests.stores import loaded_or_skip, served

from .desk import YuanrongDesk, opened

AGENT = "tests.backends.yuanrong.agent"
MIB = 1 << 20
MEMORY = 256 * MIB
"""Of a worker."""
PATIENT = 10_000
"""Milliseconds that a worker may take where nothing is wrong with it, on a machine that many share."""

Open = Callable[..., Awaitable[YuanrongDesk]]


@pytest.fixture(scope="session")
def yuanrong_worker() -> Iterator[YuanrongWorker]:
    """A worker that nobody may stop."""
    loaded_or_skip("yr.datasystem.kv_client")
    yield from served(YuanrongWorker("--client_dead_timeout_s=3", memory=MEMORY))


@pytest.fixture(scope="session")
def other_worker(yuanrong_worker: YuanrongWorker) -> Iterator[YuanrongWorker]:
    """Another one beside it."""
    yield from served(
        YuanrongWorker("--client_dead_timeout_s=3", memory=MEMORY, beside=yuanrong_worker)
    )


@pytest.fixture
def own_worker() -> Iterator[YuanrongWorker]:
    """A worker of this test alone, not started yet."""
    loaded_or_skip("yr.datasystem.kv_client")
    worker = YuanrongWorker(memory=MEMORY)
    yield worker
    worker.kill()  # it needs seconds to end in peace
    worker.close()


@pytest.fixture
def name() -> str:
    """One that no other test uses: what a test leaves stays in the shared worker."""
    return f"{uuid.uuid4().hex}:0_1"


@pytest.fixture
async def open_desk() -> AsyncIterator[Open]:
    """Opens stores, and closes them in the end."""
    desks: list[YuanrongDesk] = []

    async def open_one(worker: YuanrongWorker, room: int = ROOM, **extra: Any) -> YuanrongDesk:
        told = {"req_timeout_ms": PATIENT, **worker.extra("sender"), **extra}
        desks.append(YuanrongDesk(await opened(told), room))
        return desks[-1]

    yield open_one
    for desk in desks:
        desk.store.abort()  # what a close does is for a test of its own


@pytest.fixture
async def desk(yuanrong_worker: YuanrongWorker, open_desk: Open) -> YuanrongDesk:
    return await open_desk(yuanrong_worker)


@pytest.fixture
def processes(namespace: str) -> Iterator[Processes]:
    with Processes(namespace) as started:
        yield started


StartAgent = Callable[..., Awaitable[Process]]


@pytest.fixture
def start_agent(processes: Processes) -> StartAgent:
    """Starts a process with a store that is open."""

    async def start_one(worker: YuanrongWorker, **extra: Any) -> Process:
        agent = processes.start(AGENT, extra={**worker.extra("sender"), **extra})
        await agent.do("open")
        return agent

    return start_one


THEIRS = """
import base64, json, re, sys
from yr.datasystem import KVClient, WriteMode

client = KVClient("127.0.0.1", int(sys.argv[1]), connect_timeout_ms=500, req_timeout_ms=1000)
client.init()
out = sys.stdout
for line in sys.stdin:
    word, *rest = json.loads(line)
    answer = None
    if word == "set":
        client.set(rest[0], base64.b64decode(rest[1]), WriteMode.NONE_L2_CACHE_EVICT)
    elif word == "get":
        answer = base64.b64encode(client.get(rest)[0]).decode()
    else:
        try:
            client.mcreate(["all"], [1 << 50])
        except RuntimeError as error:
            answer = str(error)
    print("answer", json.dumps(answer), file=out, flush=True)
"""


class Vendor:
    """The vendor's client in a process of its own, for what only others do, and to look at the worker.

    Not in this one: Mooncake's library crashes a process that has loaded Yuanrong's, and the other way round.
    """

    def __init__(self, worker: YuanrongWorker, logs: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", THEIRS, str(worker.port("worker"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "DATASYSTEM_CLIENT_LOG_DIR": str(logs)},
        )

    def _ask(self, *words: str) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("answer "):  # the vendor may say something, too
                return json.loads(line.removeprefix("answer "))
        raise AssertionError(f"the vendor's client has ended with {self._process.wait()}")

    def set(self, name: str, data: bytes) -> None:
        """As vLLM-Omni does."""
        self._ask("set", name, base64.b64encode(data).decode())

    def get(self, name: str) -> bytes:
        return base64.b64decode(self._ask("get", name))

    def allocated(self) -> int:
        """Bytes of the worker's memory that are in use: it tells who asks for more than there is."""
        for _ in range(10):  # a worker that is very busy may not answer in time
            found = re.search(r"Total allocated (\d+)", self._ask("allocated") or "")
            if found is not None:
                return int(found[1])
        raise AssertionError("the worker does not tell")

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def vendor(yuanrong_worker: YuanrongWorker, tmp_path: Path) -> Iterator[Vendor]:
    theirs = Vendor(yuanrong_worker, tmp_path)
    yield theirs
    theirs.close()


def alive(pid: int) -> bool:
    """Whether there is such a process, and it is no corpse."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def resident(pid: int) -> int:
    """Bytes of a process in memory."""
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
