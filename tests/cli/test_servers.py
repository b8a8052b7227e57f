"""Server: it starts, says why it does not, and never stays behind; with a program of Python's own."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from omni_async import BackendUnavailable
from omni_async.cli.servers import Server, ServerFailed
from omni_async.cli.servers.running import LOOPBACK, program
from omni_async.model import Role

LISTENS = """
import socket, sys
sock = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("listening", flush=True)
while True: sock.accept()
"""
FAILS = "print('no such device'); raise SystemExit(3)"
STARTS_ONE = """
import os, sys
from tests.cli.test_servers import Own
own = Own()
own.start()
print(own.pid, flush=True)
os.kill(os.getpid(), 9)
"""


class Own(Server):
    name = "own server"

    def __init__(self, code: str = LISTENS) -> None:
        super().__init__()
        self.code = code

    def command(self) -> Sequence[str]:
        return [sys.executable, "-c", self.code, str(self.port("own"))]

    def answers(self) -> bool:
        try:
            socket.create_connection((LOOPBACK, self.port("own")), timeout=1).close()
        except OSError:
            return False
        return True

    def extra(self, role: Role) -> dict[str, Any]:
        return {"port": self.port("own")}


@pytest.fixture
def own() -> Iterator[Own]:
    server = Own()
    yield server
    server.close()


def test_it_serves_until_it_is_closed(own: Own) -> None:
    with own:
        assert own.alive
        assert own.answers()
        assert "listening" in own.words()
    assert not own.alive
    own.close()


def test_it_comes_back_on_the_same_port(own: Own) -> None:
    own.start()
    before = own.pid, own.extra("sender")
    own.restart()
    assert own.pid != before[0]
    assert own.extra("sender") == before[1]
    own.kill()
    assert not own.answers()
    own.restart()
    assert own.answers()


def test_a_stopped_one_ends_as_well(own: Own) -> None:
    own.start()
    own.stop()
    own.end()
    assert not own.alive


def test_what_it_wrote_is_told_when_it_ends() -> None:
    failing = Own(FAILS)
    with pytest.raises(ServerFailed, match="has ended; it wrote:\nno such device"):
        failing.start()
    failing.close()


def test_one_that_does_not_answer_is_not_left_behind(own: Own) -> None:
    own.code = "import time; time.sleep(60)"
    with pytest.raises(ServerFailed, match=r"does not answer after 0\.2 s"):
        own.start(timeout=0.2)
    assert not own.alive


def test_it_dies_with_its_starter() -> None:
    root = Path(__file__).parents[2]
    told = subprocess.run(
        [sys.executable, "-c", STARTS_ONE], capture_output=True, text=True, cwd=root
    )
    assert told.returncode == -signal.SIGKILL, told.stderr
    state = Path(f"/proc/{int(told.stdout)}/stat")
    limit = time.monotonic() + 10
    while state.exists() and state.read_text().rpartition(")")[2].split()[0] not in "ZX":
        assert time.monotonic() < limit
        time.sleep(0.01)


def test_a_program_that_is_not_there() -> None:
    with pytest.raises(BackendUnavailable, match="no program no_such_master") as caught:
        program("no_such_master", backend="SomeConnector", remedy="pip install some")
    assert caught.value.remedy == "pip install some"
