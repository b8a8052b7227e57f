"""Agents in processes of their own, started and ended by a test.

In: a namespace, options of an agent. Out: processes that are ready.
Never: leaves one behind.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from tests.rendezvous import agent


class Agent:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.port = 0

    async def line(self) -> str:
        assert self.process.stdout is not None
        return (await self.process.stdout.readline()).decode().strip()

    async def end(self, number: int = signal.SIGKILL) -> None:
        with suppress(ProcessLookupError):
            self.process.send_signal(number)
        if self.process.stdin is not None:
            self.process.stdin.close()
        assert self.process.stdout is not None
        await self.process.stdout.read()  # up to its end: the loop closes the pipe then
        await self.process.wait()


class Agents:
    """Starts agents, ends them all."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self.started: list[Agent] = []

    async def spawn(self, **options: str) -> Agent:
        kind = type(asyncio.get_running_loop()).__module__.partition(".")[0]
        options.setdefault("loop", kind)
        arguments = [f"{name}={value}" for name, value in options.items()]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, agent.__file__, self.namespace, *arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        started = Agent(process)
        self.started.append(started)
        return started

    async def ready(self, **options: str) -> Agent:
        started = await self.spawn(**options)
        word, _, port = (await started.line()).partition(" ")
        assert word == "ready"
        started.port = int(port or 0)
        return started


@pytest.fixture
async def agents(namespace: str) -> AsyncIterator[Agents]:
    house = Agents(namespace)
    yield house
    for one in house.started:
        await one.end()
