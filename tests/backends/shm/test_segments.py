"""Named segments: made, read and deleted under their locks, and only what is the caller's."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import omni_async
from omni_async.abc import Gone, Piece
from omni_async.backends.shm import segment_files as files
from omni_async.backends.shm.segment_store import SegmentStore
from omni_async.errors import (
    BackendUnavailable,
    EngineFault,
    KeyExists,
    KeyNotFound,
    PoolExhausted,
    UsageError,
)


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """One of the test's own, in memory as well."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as made:
        monkeypatch.setattr(files, "FOLDER", made)
        yield Path(made)


class Memory:
    def __init__(self, data: bytes) -> None:
        self.block = ctypes.create_string_buffer(data, len(data))
        self.address = ctypes.addressof(self.block)

    def piece(self) -> Piece:
        return Piece(self.address, len(self.block))

    def bytes(self, nbytes: int) -> bytes:
        return self.block.raw[:nbytes]


def put(name: str, *parts: bytes) -> files.Identity:
    kept = [Memory(part) for part in parts]
    return files.write(name, [memory.piece() for memory in kept])


def got(name: str, room: int = 100) -> bytes | None:
    memory = Memory(bytes(room))
    found = files.read(name, memory.address, room)
    return None if found is None else memory.bytes(found.nbytes)


class Holder:
    """Has the lock of a segment."""

    def __init__(self, folder: Path, name: str) -> None:
        self._file = (folder / f"shm_{name}_lockfile.lock").open("wb+")
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def __enter__(self) -> Holder:
        return self

    def __exit__(self, *raised: object) -> None:
        self._file.close()


# --- files ----------------------------------------------------------------------------------------


def test_a_segment_has_the_bytes_and_nothing_more(folder: Path) -> None:
    put("k", b"abc", b"defg")
    assert (folder / "k").read_bytes() == b"abcdefg"
    assert (folder / "shm_k_lockfile.lock").exists()
    assert files.is_there("k")
    assert got("k") == b"abcdefg"
    assert got("k") == b"abcdefg"  # it stays


def test_what_there_is_no_room_for_is_only_measured(folder: Path) -> None:
    put("k", b"abcdefg")
    memory = Memory(b"....")
    found = files.read("k", memory.address, 4)
    assert found is not None
    assert found.nbytes == 7
    assert memory.bytes(4) == b"...."


def test_what_is_there_is_replaced(folder: Path) -> None:
    first = put("k", b"a" * 50)
    second = put("k", b"b")
    assert first != second
    assert got("k") == b"b"
    assert files.remove("k", first) is Gone.ABSENT  # that one has gone
    assert got("k") == b"b"
    assert files.remove("k", second) is Gone.DELETED
    assert os.listdir(folder) == []
    assert files.remove("k", None) is Gone.ABSENT


def test_a_lock_is_respected(folder: Path) -> None:
    identity = put("k", b"abc")
    with Holder(folder, "k"):
        with pytest.raises(files.BusySegment):
            got("k")
        with pytest.raises(files.BusySegment):
            put("k", b"new")
        assert files.remove("k", identity) is Gone.BUSY
    assert got("k") == b"abc"


def test_what_has_no_lock_file_or_no_bytes_is_not_there(folder: Path) -> None:
    (folder / "k").write_bytes(b"abc")
    assert not files.is_there("k")
    assert got("k") is None
    assert got("nothing") is None
    put("k", b"abc")
    (folder / "k").write_bytes(b"")  # made, but not yet sized
    assert got("k") is None


def test_a_lock_file_that_was_deleted_locks_nothing(folder: Path) -> None:
    """Whoever reads a segment deletes its lock file; a writer may have opened that one before."""
    put("k", b"abc")
    real = fcntl.flock
    opened: list[int] = []

    def flock(lock: int, how: int) -> None:
        real(lock, how)
        if not opened:
            opened.append(lock)
            os.unlink(folder / "shm_k_lockfile.lock")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fcntl, "flock", flock)
        put("k", b"new")
    assert files.is_there("k")
    with Holder(folder, "k"), pytest.raises(files.BusySegment):
        got("k")


def test_without_room_nothing_is_left(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(files.FullMemory, match="no room for 3 bytes"):
        put("k", b"abc")
    assert os.listdir(folder) == []


def test_a_link_is_not_followed(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other") / "file"
    other.write_bytes(b"precious")
    (folder / "shm_k_lockfile.lock").symlink_to(other)
    with pytest.raises(OSError, match="symbolic links"):
        put("k", b"abc")
    assert other.read_bytes() == b"precious"


def test_readers_and_writers_at_once_never_see_a_mixture(folder: Path) -> None:
    values = [bytes([65 + n]) * (1 << 16) for n in range(4)]
    wrong: list[Any] = []
    over = threading.Event()

    def reads() -> None:
        while not over.is_set():
            try:
                found = got("k", 1 << 16)
            except files.BusySegment:
                continue
            if found is not None and found not in values:
                wrong.append(found)

    readers = [threading.Thread(target=reads) for _ in range(2)]
    for reader in readers:
        reader.start()
    done = 0
    while done < 200:
        try:
            put("k", values[done % 4])
            done += 1
        except files.BusySegment:
            pass
    over.set()
    for reader in readers:
        reader.join()
    assert not wrong


# --- the store ------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["a/b", ".", "..", "a\0b", "k" * 238, "\ud800", ""])
async def test_keys_that_cannot_be_names(key: str) -> None:
    with pytest.raises(UsageError, match="cannot be the name of shared memory"):
        SegmentStore("sender").plain_name(f"{key}\x000_1")


async def test_errors_are_typed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SegmentStore("sender")
    memory = Memory(b"abc")
    with Holder(folder, "k"):
        with pytest.raises(KeyExists):
            await store.put("k", [memory.piece()], ttl=1, timeout=1)
        assert await store.get("k", memory.address, 3, timeout=1) is None
    (folder / "d").mkdir()
    (folder / "shm_d_lockfile.lock").touch()
    with pytest.raises(EngineFault, match="cannot put d"):
        await store.put("d", [memory.piece()], ttl=1, timeout=1)
    (folder / "shm_d_lockfile.lock").touch()
    with pytest.raises(EngineFault, match="cannot get d"):
        await store.get("d", memory.address, 3, timeout=1)
    with pytest.raises(EngineFault, match="cannot delete d"):
        await store.delete(["d"])

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(PoolExhausted):
        await store.put("k", [memory.piece()], ttl=1, timeout=1)
    await store.close()


async def test_what_was_locked_just_now_is_looked_for_later(folder: Path) -> None:
    store = SegmentStore("receiver")
    put("k", b"abc")
    memory = Memory(bytes(3))
    with Holder(folder, "k"):
        assert await store.get("k", memory.address, 3, timeout=1) is None
    assert await store.contains(["k", "none"]) == [False, False]
    store._busy["k"] -= 1
    assert await store.contains(["k", "none"]) == [True, False]
    assert await store.get("k", memory.address, 3, timeout=1) == 3
    await store.close()
    assert files.is_there("k")  # a receiver leaves what it has not claimed


@pytest.mark.parametrize("how", ["close", "abort"])
async def test_a_sender_takes_what_nobody_fetched_along(folder: Path, how: str) -> None:
    store = SegmentStore("sender")
    for name in ("mine", "replaced"):
        await store.put(name, [Memory(b"abc").piece()], ttl=1, timeout=1)
    put("replaced", b"by another")
    put("another's", b"abc")
    if how == "close":
        await store.close()
    else:
        store.abort()
    assert [name for name in sorted(os.listdir(folder)) if "lock" not in name] == [
        "another's",
        "replaced",
    ]


# --- both ends ------------------------------------------------------------------------------------


@pytest.fixture
def clean(namespace: str) -> Iterator[None]:
    yield
    assert not [name for name in os.listdir("/dev/shm") if namespace in name]


@pytest.fixture
async def ends(clean: None, namespace: str) -> AsyncIterator[tuple[Any, Any]]:
    spec = {"name": "shm", "extra": {"peer": "vllm-omni"}}
    async with (
        omni_async.open_transport(
            spec, role="sender", stage="0", namespace=namespace, linger=0
        ) as tx,
        omni_async.open_transport(spec, role="receiver", stage="1", namespace=namespace) as rx,
    ):
        yield tx, rx


async def test_payloads_between_ends_of_ours(ends: tuple[Any, Any], namespace: str) -> None:
    pytest.importorskip("torch")
    tx, rx = ends
    assert not tx.capabilities.cross_host
    assert tx.capabilities.exclusive
    for value in ({"a": [1, 2.5, None]}, b"bytes", None, "x" * 3_000_000):
        await tx.put("0", "1", f"{namespace}-k", value)
        assert (await rx.get("0", "1", f"{namespace}-k", timeout=5)).value == value
    with pytest.raises(KeyNotFound):
        await rx.get("0", "1", f"{namespace}-k", timeout=0)
    await tx.put("0", "1", f"{namespace}-dropped", 1)
    assert await tx.cleanup(f"{namespace}-dropped") == 1
    await tx.put("0", "1", f"{namespace}-left", 1)  # and closed over


async def test_by_default_nothing_has_a_name(namespace: str) -> None:
    async with omni_async.open_transport(
        "shm", role="sender", stage="0", namespace=namespace, linger=0
    ) as tx:
        await tx.put("0", "1", f"{namespace}-k", b"x" * 100_000)
        assert not [name for name in os.listdir("/dev/shm") if namespace in name]


async def test_a_host_without_such_memory(monkeypatch: pytest.MonkeyPatch, namespace: str) -> None:
    monkeypatch.setattr(files, "FOLDER", "/nowhere")
    spec = {"name": "shm", "extra": {"peer": "vllm-omni"}}
    with pytest.raises(BackendUnavailable, match="named shared memory needs"):
        async with omni_async.open_transport(spec, role="sender", stage="0", namespace=namespace):
            pass


def test_what_is_no_file_holds_nobody_up(folder: Path) -> None:
    os.mkfifo(folder / "k")
    (folder / "shm_k_lockfile.lock").touch()
    with pytest.raises(OSError, match="no segment"):
        got("k")
