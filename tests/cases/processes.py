"""Agents (:mod:`.agent`) and how a test leads them.

In: orders. Out: answers.
Never: leaves a process or a descriptor behind.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from omni_async.cli.bench.line import Line

ROOT = Path(__file__).parents[2]
PATIENCE = 20.0
"""Seconds an answer may take on a machine that many share."""


class AgentError(Exception):
    """An agent's order ended in an error of the library: ``kind`` and ``text``."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind
        self.text = text


class Process:
    """An interpreter of its own, in its own process group."""

    def __init__(
        self,
        module: str,
        job: dict[str, Any],
        *,
        wrapper: Sequence[str] = (),
        options: Sequence[str] = (),
    ) -> None:
        ours, theirs = socket.socketpair()
        self.line = Line(ours)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by end()
        with theirs:
            self.process = subprocess.Popen(
                [*wrapper, sys.executable, *options, "-m", module, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._errors,
                stderr=self._errors,
                cwd=ROOT,
                start_new_session=True,
            )
        self.line.send(job)

    @property
    def pid(self) -> int:
        return self.process.pid

    def tell(self, order: str, **arguments: Any) -> None:
        self.line.send({"do": order, **arguments})

    async def answer(self, timeout: float = PATIENCE) -> Any:
        try:
            answer = await asyncio.wait_for(self.line.receive_async(), timeout)
        except (OSError, asyncio.TimeoutError) as error:
            raise AssertionError(f"no answer ({error!r}); it said:\n{self.words()}") from error
        if isinstance(answer, dict) and "error" in answer:
            raise AgentError(answer["error"], answer["text"])
        return answer

    async def do(self, order: str, *, patience: float = PATIENCE, **arguments: Any) -> Any:
        """Carry out an order and wait for what comes of it.

        Raises:
            AgentError: the library raised there.
        """
        self.tell(order, **arguments)
        return await self.answer(patience)

    async def attempt(self, order: str, **arguments: Any) -> Any:
        """The same, where an error of the library is as good an outcome: its kind."""
        try:
            return await self.do(order, **arguments)
        except AgentError as error:
            return error.kind

    def signal(self, number: int) -> None:
        """To the whole process group."""
        os.killpg(self.process.pid, number)

    async def kill(self) -> None:
        self.signal(signal.SIGKILL)
        await self.ended()

    async def ended(self, timeout: float = PATIENCE) -> int:
        """The exit code, once it is gone."""
        limit = time.monotonic() + timeout
        while self.process.poll() is None:
            assert time.monotonic() < limit, f"still there after {timeout} s:\n{self.words()}"
            await asyncio.sleep(0.01)
        return self.process.returncode

    async def leave(self) -> int:
        """Hang up, so that it ends by itself; the exit code."""
        self.line.close()
        return await self.ended()

    def words(self) -> str:
        """Everything it wrote."""
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")

    def end(self) -> None:
        self.line.close()
        if self.process.poll() is None:
            self.signal(signal.SIGKILL)
        self.process.wait()
        self._errors.close()


class Processes:
    """Starts them and ends them all."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self._all: list[Process] = []

    def start(
        self,
        module: str = "tests.cases.agent",
        *,
        wrapper: Sequence[str] = (),
        options: Sequence[str] = (),
        **job: Any,
    ) -> Process:
        job.setdefault("namespace", self.namespace)
        process = Process(module, job, wrapper=wrapper, options=options)
        self._all.append(process)
        return process

    async def agent(self, role: str, **job: Any) -> Process:
        """An agent whose transport is open."""
        agent = self.start(role=role, **job)
        await agent.do("open")
        return agent

    async def both(self, **job: Any) -> tuple[Process, Process]:
        """A sender and a receiver."""
        sender, receiver = self.start(role="sender", **job), self.start(role="receiver", **job)
        await asyncio.gather(sender.do("open"), receiver.do("open"))
        return sender, receiver

    def __enter__(self) -> Processes:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self._all:
            process.end()
