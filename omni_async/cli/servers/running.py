"""Running: one process that others talk to, on ports of its own; Server: a vendor's, for connectors.

In: a command. Out: a process that answers, and how connectors reach it.
Never: outlives the process that started it, ends anything by name, talks to other hosts.

A server dies with its starter, however that one ends: before it becomes the vendor's program it asks the kernel
to be killed then (``PR_SET_PDEATHSIG``). That takes an interpreter which lives a few hundredths of a second and is
replaced by the program under the same process id; nothing runs between fork and exec of the starter itself. The
kernel goes by the *thread* that started it, so :meth:`Server.begin` belongs on a thread that lives as long
as the server is wanted, such as the main one.
"""

from __future__ import annotations

import abc
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ...errors import BackendUnavailable
from ...model import Role
from ..free_ports import FreePorts

if TYPE_CHECKING:
    from typing_extensions import Self

LOOPBACK = "127.0.0.1"
_LOOKS = 0.02
_WORDS = 4000
_THEN_RUN = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


class ServerFailed(RuntimeError):
    """A server did not start, or ended by itself; with the end of what it wrote."""


class Running(abc.ABC):
    """A program that serves, started at most once at a time. Use as a context manager, or :meth:`close` it.

    Ports stay the same as long as the object lives, also from one start to the next.
    """

    name: str
    """What it is called in messages."""

    def __init__(self) -> None:
        self._ports = FreePorts()
        self._process: subprocess.Popen[bytes] | None = None
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()

    @abc.abstractmethod
    def command(self) -> Sequence[str]:
        """The program with its path, and its arguments.

        Raises:
            BackendUnavailable: the package is not installed; says how to get it.
        """

    @abc.abstractmethod
    def answers(self) -> bool:
        """Whether it serves now; one quick question."""

    def environment(self) -> Mapping[str, str]:
        """Variables for it beside our own."""
        return {}

    def port(self, name: str) -> int:
        """One of its ports; nobody else on this host is given that number meanwhile."""
        return self._ports.of(name)

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} was not started"
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def begin(self) -> None:
        """Start it and do not wait. See the head of this module about threads.

        Raises:
            BackendUnavailable: the package is not installed.
        """
        assert not self.alive, f"{self.name} runs already"
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _THEN_RUN, str(os.getpid()), *self.command()],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            env={**os.environ, **self.environment()},
        )

    def wait(self, timeout: float = 30.0) -> None:
        """(after :meth:`begin`) Until it answers; from any thread.

        Raises:
            ServerFailed: it ended, or does not answer in time.
        """
        limit = time.monotonic() + timeout
        while not self.answers():
            if not self.alive or time.monotonic() > limit:
                what = f"does not answer after {timeout:g} s" if self.alive else "has ended"
                raise ServerFailed(f"{self.name} {what}; it wrote:\n{self.words()}")
            time.sleep(_LOOKS)

    def start(self, timeout: float = 30.0) -> None:
        """:meth:`begin` and :meth:`wait`; ended again where it does not answer."""
        self.begin()
        try:
            self.wait(timeout)
        except BaseException:
            self.kill()
            raise

    def end(self, patience: float = 5.0) -> None:
        """Ask it to end and wait; after ``patience`` seconds it is killed. Idempotent."""
        if self._process is None or not self.alive:
            return
        self.cont()
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(patience)
        self.kill()

    def kill(self) -> None:
        """SIGKILL; returns when it is gone. Idempotent."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def restart(self, timeout: float = 30.0) -> None:
        """Kill it, where it still runs, and start it on the same ports: what it kept is lost."""
        self.kill()
        self.start(timeout)

    def stop(self) -> None:
        """SIGSTOP: it is silent from here on, but not gone."""
        os.kill(self.pid, signal.SIGSTOP)

    def cont(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def words(self) -> str:
        """The end of what it wrote."""
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), _WORDS, max(0, size - _WORDS)).decode(errors="replace")

    def close(self) -> None:
        """:meth:`end`, and give its ports back. Idempotent."""
        self.end()
        self._ports.close()
        self._log.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Server(Running):
    """One that a backend's connectors talk to."""

    @abc.abstractmethod
    def extra(self, role: Role) -> dict[str, Any]:
        """``extra`` of a connector that talks to it."""


def program(name: str, *, backend: str, remedy: str) -> str:
    """Where a program lies that a package brought: beside this interpreter, else where the shell looks.

    Raises:
        BackendUnavailable: nowhere.
    """
    beside = os.path.dirname(sys.executable)
    found = shutil.which(name, path=beside) or shutil.which(name)
    if found is None:
        raise BackendUnavailable(f"there is no program {name}", backend=backend, remedy=remedy)
    return os.path.abspath(found)
