"""The processes of a benchmark: own interpreters, started, spoken to and ended here.

In: jobs. Out: what the workers answer, or a WorkerFailed with the worker's own words.
Never: leaves a process behind, measures.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from types import TracebackType
from typing import IO, Any

from .line import Line, LineClosed

ANSWER_TIMEOUT = 300.0
"""Seconds; a worker that says nothing for so long has hung."""


QUIET = {"MC_LOG_LEVEL": "ERROR", "GLOG_minloglevel": "3", "NIXL_LOG_LEVEL": "FATAL"}
"""An engine's own words are not to slow anybody down."""


class WorkerFailed(RuntimeError):
    """A worker process ended or hung; the text holds the end of its stderr."""


class Worker:
    """One process that runs one program of :mod:`.worker`."""

    def __init__(self, job: dict[str, Any], friends: Sequence[socket.socket] = ()) -> None:
        self.name = f"{job['program']} {job.get('role', '')}".strip()
        ours, theirs = socket.socketpair()
        self.line = Line(ours)
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by end()
        job = {**job, "friends": [friend.fileno() for friend in friends]}
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "omni_async.cli.bench.worker", str(theirs.fileno())],
                pass_fds=[theirs.fileno(), *job["friends"]],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                env={**QUIET, **os.environ},
            )
        self.line.send(job)

    def ask(self, value: Any) -> None:
        self.line.send(value)

    def answer(self, timeout: float = ANSWER_TIMEOUT) -> Any:
        """The worker's next answer.

        Raises:
            WorkerFailed: it ended, hung or reported a failure.
        """
        try:
            value = self.line.receive(timeout)
        except TimeoutError:
            raise WorkerFailed(
                f"{self.name}: no answer for {timeout:.0f} s{self._words()}"
            ) from None
        except (LineClosed, ConnectionResetError):
            raise WorkerFailed(f"{self.name} ended{self._words()}") from None
        return value

    def end(self) -> None:
        self.line.close()  # the worker leaves when its line is gone
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        self._errors.close()

    def _words(self) -> str:
        self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, self._errors.tell() - 3000))
        text = self._errors.read().decode(errors="replace").strip()
        return f":\n{text}" if text else " without a word"


class Workers:
    """Several workers, ended together. Use as a context manager."""

    def __init__(self) -> None:
        self._all: list[Worker] = []

    def start(self, job: dict[str, Any], friends: Sequence[socket.socket] = ()) -> Worker:
        worker = Worker(job, friends)
        self._all.append(worker)
        return worker

    def pair(self, job: dict[str, Any], *, pin: bool = False) -> tuple[Worker, Worker]:
        """A producer and a consumer that share one socket pair; ``pin``: on a core each."""
        cores = sorted(os.sched_getaffinity(0))
        first, last = ({"core": cores[0]}, {"core": cores[-1]}) if pin else ({}, {})
        left, right = socket.socketpair()
        with left, right:
            return (
                self.start({**job, **first, "role": "producer"}, [left]),
                self.start({**job, **last, "role": "consumer"}, [right]),
            )

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for worker in self._all:
            if kind is not None and worker.process.poll() is None:
                worker.process.terminate()
        for worker in self._all:
            worker.end()
