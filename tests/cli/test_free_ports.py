"""Ports that are kept for somebody: nobody else gets them, and whoever they are for can listen there."""

from __future__ import annotations

import errno
import socket
import subprocess
import sys

import pytest

from omni_async.cli.free_ports import FreePorts

RUNS = """
from omni_async.cli.free_ports import FreePorts
with FreePorts() as ports:
    print(*(ports.run_of(number, 4) for number in range(100)))
"""

OTHERS = """
from omni_async.cli.free_ports import FreePorts
with FreePorts() as ports:
    print(*(ports.of(number) for number in range(500)))
"""


def listening(port: int) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind(("127.0.0.1", port))
        sock.listen()
    except OSError:
        sock.close()
        raise
    return sock


def test_no_two_names_and_no_two_processes_share_a_port() -> None:
    with FreePorts() as ports:
        mine = {ports.of(number) for number in range(500)}
        assert len(mine) == 500
        assert mine == {ports.of(number) for number in range(500)}
        done = subprocess.run(
            [sys.executable, "-c", OTHERS], capture_output=True, text=True, timeout=30, check=True
        )
        others = set(map(int, done.stdout.split()))
        assert len(others) == 500
        assert not mine & others


def test_who_it_is_for_can_listen_there_again_and_again() -> None:
    with FreePorts() as ports:
        port = ports.of("a")
        for _ in range(3):
            with listening(port):
                socket.create_connection(("127.0.0.1", port)).close()
                with pytest.raises(OSError, match="in use") as caught:
                    listening(port)
                assert caught.value.errno == errno.EADDRINUSE


def test_nobody_listens_where_somebody_was() -> None:
    with FreePorts() as ports:
        first = ports.of("a")
        assert ports.anew("b") != first
        second = ports.anew("a")
        assert second == ports.of("a") != first
        assert first not in {ports.of(number) for number in range(200)}
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", first))


def test_they_are_given_back() -> None:
    ports = FreePorts()
    port = ports.of("a")
    ports.close()
    ports.close()
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", port))


def test_ports_next_to_each_other() -> None:
    with FreePorts() as ports:
        singles = {ports.of(number) for number in range(300)}
        firsts = [ports.run_of(("run", number), 4) for number in range(100)]
        assert firsts == [ports.run_of(("run", number), 4) for number in range(100)]
        mine = {first + number for first in firsts for number in range(4)}
        assert len(mine) == 400
        assert not mine & singles
        done = subprocess.run(
            [sys.executable, "-c", RUNS], capture_output=True, text=True, timeout=30, check=True
        )
        others = {first + n for first in map(int, done.stdout.split()) for n in range(4)}
        assert len(others) == 400
        assert not others & (mine | singles)
        for number in range(4):
            with listening(firsts[0] + number), pytest.raises(OSError, match="in use"):
                listening(firsts[0] + number)
