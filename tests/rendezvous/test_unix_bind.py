"""Addresses and binding: one sender per name, none taken from the living, nothing left behind."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_async.errors import ConfigError, UsageError
from omni_async.model import Endpoint
from omni_async.rendezvous.unix_address import NAME_LIMIT, address_of, is_path, socket_name
from omni_async.rendezvous.unix_bind import bind, probe
from omni_async.rendezvous.unix_channel import UnixChannels, UnixListener
from tests.rendezvous.lines import Recorder, hello

_stages = st.text(max_size=6, alphabet="ab/%,#.\0é") | st.text(max_size=200)
_endpoints = st.builds(Endpoint, _stages, _stages, st.integers(0, 20), st.integers(0, 20))


class TestAddress:
    def test_plain(self) -> None:
        endpoint = Endpoint("demo", "0", 1, 2)
        assert address_of(endpoint, None) == f"unix:@omni-async/{os.geteuid()}/demo/0/1/2"
        assert address_of(endpoint, "/run/x/") == "unix:/run/x/demo,0,1,2.sock"

    @pytest.mark.parametrize("folder", [None, "/run"])
    def test_separators_inside_names(self, folder: str | None) -> None:
        one = address_of(Endpoint("a/b", "c", 0, 0), folder)
        assert one != address_of(Endpoint("a", "b/c", 0, 0), folder)
        assert address_of(Endpoint("a,b", "c", 0, 0), folder) != address_of(
            Endpoint("a", "b,c", 0, 0), folder
        )

    @settings(max_examples=300, deadline=None)
    @given(_endpoints, _endpoints, st.sampled_from([None, "/run/omni"]))
    def test_distinct_endpoints_never_share_a_name(
        self, one: Endpoint, other: Endpoint, folder: str | None
    ) -> None:
        a, b = address_of(one, folder), address_of(other, folder)
        assert (a == b) == (one == other)
        for address in (a, b):
            name = socket_name(address)
            assert len(os.fsencode(name)) <= NAME_LIMIT + (folder is None)
            assert is_path(address) == (folder is not None)

    def test_long_names_are_hashed(self) -> None:
        address = address_of(Endpoint("n" * 500, "0", 0, 0), None)
        assert "/#" in address
        assert len(address) < 100

    def test_folder_that_is_too_long(self) -> None:
        with pytest.raises(ConfigError, match=r"too long.*107 bytes"):
            address_of(Endpoint("n", "0", 0, 0), "/" + "d" * 100)

    @pytest.mark.parametrize(
        "address",
        ["", "unix:", "unix:@", "unix:relative", "tcp://host:1", "@x", "unix:/a\0b", "unix:/"],
    )
    def test_what_is_no_address(self, address: str) -> None:
        with pytest.raises(UsageError, match="not a Unix socket"):
            socket_name(address)

    def test_address_that_is_too_long(self) -> None:
        with pytest.raises(UsageError, match="longer than"):
            socket_name("unix:@" + "x" * 108)
        with pytest.raises(UsageError, match="longer than"):
            socket_name("unix:/" + "x" * 107)


async def listen(channels: UnixChannels, namespace: str, replica: int = 0) -> UnixListener:
    endpoint = Endpoint(namespace, "0", 0, replica)
    return await channels.listen(endpoint, hello("sender", namespace), Recorder())


@pytest.fixture
def folder() -> Iterator[Path]:
    """A path for a folder; ``tmp_path`` is too long for a socket's path."""
    with tempfile.TemporaryDirectory(prefix="omni-") as parent:
        yield Path(parent) / "s"


class TestInUse:
    @pytest.mark.parametrize("with_folder", [False, True])
    async def test_by_this_process(self, namespace: str, folder: Path, with_folder: bool) -> None:
        channels = UnixChannels(str(folder) if with_folder else None)
        first = await listen(channels, namespace)
        with pytest.raises(UsageError, match="by this process already") as caught:
            await listen(channels, namespace)
        assert f"{namespace}/stage 0/rank 0/replica 0" in str(caught.value)
        assert "another namespace, rank or replica" in str(caught.value)
        other = await listen(channels, namespace, replica=1)
        other.close()
        first.close()
        again = await listen(channels, namespace)
        again.close()

    @pytest.mark.parametrize("with_folder", [False, True])
    async def test_by_another_process(
        self, namespace: str, folder: Path, with_folder: bool
    ) -> None:
        channels = UnixChannels(str(folder) if with_folder else None)
        address = channels.address_of(Endpoint(namespace, "0", 0, 0))
        if with_folder:
            folder.mkdir(mode=0o700)
        process = await holder(address)
        with pytest.raises(UsageError, match=f"by process {process.pid} already"):
            await listen(channels, namespace)
        process.kill()
        await process.wait()
        (await listen(channels, namespace)).close()  # the dead hold nothing
        if with_folder:
            assert list(folder.iterdir()) == []

    async def test_by_who_does_not_listen(self, namespace: str) -> None:
        channels = UnixChannels()
        sock = socket.socket(socket.AF_UNIX)
        sock.bind(socket_name(channels.address_of(Endpoint(namespace, "0", 0, 0))))
        with pytest.raises(UsageError, match="does not listen"):
            await listen(channels, namespace)
        sock.close()

    async def test_by_who_has_just_ended(self, namespace: str) -> None:
        channels = UnixChannels()
        sock = socket.socket(socket.AF_UNIX)
        sock.bind(socket_name(channels.address_of(Endpoint(namespace, "0", 0, 0))))
        asyncio.get_running_loop().call_later(0.01, sock.close)
        (await listen(channels, namespace)).close()

    async def test_by_who_accepts_nobody_for_now(self, namespace: str) -> None:
        address = UnixChannels().address_of(Endpoint(namespace, "0", 0, 0))
        sock = socket.socket(socket.AF_UNIX)
        sock.bind(socket_name(address))
        sock.listen(0)
        waiting = socket.socket(socket.AF_UNIX)
        waiting.connect(socket_name(address))
        with pytest.raises(UsageError, match="already"):
            await bind(address, Endpoint(namespace, "0", 0, 0))
        waiting.close()
        sock.close()

    async def test_name_the_system_refuses(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(self: socket.socket, address: object) -> None:
            raise PermissionError(1, "Operation not permitted")

        monkeypatch.setattr(socket.socket, "bind", refuse)
        with pytest.raises(PermissionError):
            await bind("unix:@x", Endpoint("n", "0", 0, 0))

    def test_probe_of_nobody(self, namespace: str, tmp_path: Path) -> None:
        assert probe(f"unix:@{namespace}") is None
        assert probe(f"unix:{tmp_path}/none") is None


_HOLDER = """
import socket, sys
name = sys.argv[1]
sock = socket.socket(socket.AF_UNIX)
sock.bind("\\0" + name[1:] if name[0] == "@" else name)
sock.listen()
print("ready", flush=True)
sys.stdin.read()
"""


async def holder(address: str) -> asyncio.subprocess.Process:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _HOLDER, address.removeprefix("unix:")),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    return process


class TestFolder:
    async def test_is_made_and_left_empty(self, namespace: str, folder: Path) -> None:
        channels = UnixChannels(str(folder))
        listener = await listen(channels, namespace)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        (file,) = folder.iterdir()
        assert listener.address == f"unix:{file}"
        assert stat.S_ISSOCK(file.stat().st_mode)
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        listener.close()
        assert list(folder.iterdir()) == []

    async def test_stale_socket_is_reclaimed(self, namespace: str, folder: Path) -> None:
        folder.mkdir(mode=0o700)
        channels = UnixChannels(str(folder))
        sock = socket.socket(socket.AF_UNIX)
        sock.bind(channels.address_of(Endpoint(namespace, "0", 0, 0)).removeprefix("unix:"))
        sock.close()
        (await listen(channels, namespace)).close()
        assert list(folder.iterdir()) == []

    async def test_starters_at_once(self, namespace: str, folder: Path) -> None:
        """Over a stale socket too, exactly one of many gets the name."""
        folder.mkdir(mode=0o700)
        channels = UnixChannels(str(folder))
        sock = socket.socket(socket.AF_UNIX)
        sock.bind(channels.address_of(Endpoint(namespace, "0", 0, 0)).removeprefix("unix:"))
        sock.close()
        outcomes = await asyncio.gather(
            *(listen(channels, namespace) for _ in range(20)), return_exceptions=True
        )
        winners = [one for one in outcomes if isinstance(one, UnixListener)]
        assert len(winners) == 1
        assert {type(one) for one in outcomes} == {UnixListener, UsageError}
        assert probe(winners[0].address) is not None
        winners[0].close()
        assert list(folder.iterdir()) == []

    async def test_what_is_no_socket_is_not_removed(self, namespace: str, folder: Path) -> None:
        folder.mkdir(mode=0o700)
        channels = UnixChannels(str(folder))
        path = channels.address_of(Endpoint(namespace, "0", 0, 0)).removeprefix("unix:")
        Path(path).write_text("precious")
        with pytest.raises(UsageError, match="not a socket"):
            await listen(channels, namespace)
        assert Path(path).read_text() == "precious"

    async def test_others_may_write_to_it(self, namespace: str, folder: Path) -> None:
        folder.mkdir()
        folder.chmod(0o777)
        with pytest.raises(ConfigError, match=r"mode 777.*omni-async-\d+' \(made when missing\)"):
            await listen(UnixChannels(str(folder)), namespace)
        (await listen(UnixChannels(str(folder / f"omni-async-{os.geteuid()}")), namespace)).close()

    @pytest.mark.skipif(os.geteuid() != 0, reason="giving a folder away needs root")
    async def test_is_another_users(self, namespace: str, folder: Path) -> None:
        folder.mkdir(mode=0o700)
        os.chown(folder, 65534, 65534)
        with pytest.raises(ConfigError, match="belongs to user 65534, this process to user"):
            await listen(UnixChannels(str(folder)), namespace)

    async def test_is_missing_with_its_parent(self, namespace: str, folder: Path) -> None:
        with pytest.raises(ConfigError, match="No such file"):
            await listen(UnixChannels(str(folder / "deep")), namespace)

    async def test_is_a_file(self, namespace: str, folder: Path) -> None:
        folder.write_text("")
        with pytest.raises(ConfigError, match="Not a directory"):
            await listen(UnixChannels(str(folder)), namespace)

    async def test_stays_locked(
        self, namespace: str, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import fcntl

        monkeypatch.setattr("omni_async.rendezvous.unix_bind._LOCK_WAITS", (0.001, 0.001))
        folder.mkdir(mode=0o700)
        fd = os.open(folder, os.O_RDONLY)
        fcntl.flock(fd, fcntl.LOCK_EX)
        with pytest.raises(UsageError, match="stays locked"):
            await listen(UnixChannels(str(folder)), namespace)
        os.close(fd)
        assert list(folder.iterdir()) == []

    async def test_cannot_be_locked(
        self, namespace: str, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(fd: int, operation: int) -> None:
            raise OSError(37, "No locks available")

        monkeypatch.setattr("fcntl.flock", refuse)
        with pytest.raises(ConfigError, match="No locks available"):
            await listen(UnixChannels(str(folder)), namespace)

    async def test_takes_no_socket(
        self, namespace: str, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(self: socket.socket, address: object) -> None:
            raise OSError(95, "Operation not supported")

        monkeypatch.setattr(socket.socket, "bind", refuse)
        with pytest.raises(ConfigError, match="no socket can be made"):
            await listen(UnixChannels(str(folder)), namespace)

    async def test_file_of_a_successor_is_not_removed(self, namespace: str, folder: Path) -> None:
        """Somebody cleaned the folder, and the next sender has bound the name."""
        channels = UnixChannels(str(folder))
        first = await listen(channels, namespace)
        (file,) = folder.iterdir()
        file.unlink()
        second = await listen(channels, namespace)
        first.close()
        assert list(folder.iterdir()) == [file]
        second.close()
        assert list(folder.iterdir()) == []

    async def test_file_is_gone_at_closing(self, namespace: str, folder: Path) -> None:
        listener = await listen(UnixChannels(str(folder)), namespace)
        (file,) = folder.iterdir()
        file.unlink()
        listener.close()
