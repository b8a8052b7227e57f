"""Blocks: sealed, mapped, given back, and safe to look at whatever was closed."""

from __future__ import annotations

import fcntl
import gc
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable

import pytest

from omni_async.abc import MemorySource
from omni_async.errors import ProtocolError
from omni_async.pool.memory import PAGE, AnonymousMemory, MemfdMemory, map_fd
from tests.descriptors import open_descriptors

F_SEAL_WRITE = 8


def _resident(fd: int) -> int:
    return os.fstat(fd).st_blocks * 512


def _open_descriptors() -> set[str]:
    return set(open_descriptors())


def test_a_block_is_writable_zeros(source: MemorySource) -> None:
    block = source.allocate(3 * PAGE + 100)
    view = block.view()
    assert len(view) == block.nbytes == 3 * PAGE + 100
    assert not view.readonly
    assert view.format == "B"
    assert bytes(view) == bytes(block.nbytes)
    view[-1] = 7
    assert block.view(3 * PAGE + 99)[0] == 7
    assert block.address % PAGE == 0
    block.close()
    assert "closed" in repr(block)


@pytest.mark.parametrize(("offset", "nbytes"), [(-1, 1), (0, -1), (0, 2 * PAGE), (PAGE, 1)])
def test_ranges_are_checked(source: MemorySource, offset: int, nbytes: int) -> None:
    block = source.allocate(PAGE)
    with pytest.raises(ValueError, match="not inside"):
        block.view(offset, nbytes)
    with pytest.raises(ValueError, match="not inside"):
        block.discard(offset, nbytes)


def test_a_closed_block_gives_no_views(source: MemorySource) -> None:
    block = source.allocate(PAGE)
    block.close()
    block.close()
    assert block.fd == -1
    with pytest.raises(ValueError, match="closed"):
        block.view()
    with pytest.raises(ValueError, match="closed"):
        block.discard(0, PAGE)


def test_a_view_outlives_its_block(source: MemorySource) -> None:
    block = source.allocate(1 << 20)
    view = block.view(PAGE, 10)
    view[:] = b"0123456789"
    block.close()
    del block
    gc.collect()
    assert bytes(view) == b"0123456789"
    view[0] = 1


def test_no_descriptor_and_no_mapping_is_left(source: MemorySource) -> None:
    before, maps = _open_descriptors(), _mappings()
    for _ in range(20):
        block = source.allocate(1 << 20)
        block.view()[0] = 1
        block.close()
        del block
    dropped = source.allocate(1 << 20)
    del dropped  # without close
    assert _open_descriptors() == before
    assert _mappings() <= maps + 1


def _mappings() -> int:
    with open("/proc/self/maps") as maps:
        return sum(1 for _ in maps)


def test_only_whole_pages_inside_the_range_are_given_back() -> None:
    block = MemfdMemory().allocate(8 * PAGE)
    view = block.view()
    view[:] = b"\xff" * len(view)
    assert _resident(block.fd) == 8 * PAGE
    block.discard(PAGE + 1, 3 * PAGE)  # covers two whole pages
    assert _resident(block.fd) == 6 * PAGE
    block.discard(10, 100)
    assert _resident(block.fd) == 6 * PAGE
    assert bytes(view) == b"\xff" * 2 * PAGE + bytes(2 * PAGE) + b"\xff" * 4 * PAGE
    block.discard(0, 8 * PAGE)
    assert _resident(block.fd) == 0
    assert os.fstat(block.fd).st_size == 8 * PAGE


def test_the_last_page_of_a_block_is_its_own() -> None:
    block = MemfdMemory().allocate(PAGE + 100)
    block.view()[:] = b"\xff" * (PAGE + 100)
    block.discard(PAGE, 100)
    assert _resident(block.fd) == PAGE


@pytest.mark.parametrize("huge", [False, True])
def test_private_memory_is_given_back(huge: bool) -> None:
    block = AnonymousMemory(huge=huge).allocate(4 << 20)
    assert not any(block.view()[::PAGE])
    block.close()
    block = AnonymousMemory(huge=huge).allocate(8 * PAGE)
    block.view()[:] = b"\xff" * 8 * PAGE
    block.discard(PAGE, 2 * PAGE)
    assert bytes(block.view()) == b"\xff" * PAGE + bytes(2 * PAGE) + b"\xff" * 5 * PAGE


def test_a_refused_discard_is_an_error() -> None:
    block = MemfdMemory().allocate(PAGE)
    block._advice = 9999
    with pytest.raises(OSError, match="cannot give back"):
        block.discard(0, PAGE)


def test_its_size_cannot_be_changed() -> None:
    block = MemfdMemory().allocate(4 * PAGE)
    for size in (0, PAGE, 4 * PAGE - 1, 5 * PAGE):
        with pytest.raises(PermissionError):
            os.ftruncate(block.fd, size)
    with pytest.raises(PermissionError):
        fcntl.fcntl(block.fd, fcntl.F_ADD_SEALS, F_SEAL_WRITE)
    assert not os.get_inheritable(block.fd)
    assert os.fstat(block.fd).st_size == 4 * PAGE


@pytest.mark.parametrize("nbytes", [0, -1])
def test_a_block_has_bytes(source: MemorySource, nbytes: int) -> None:
    with pytest.raises(ValueError, match="at least one byte"):
        source.allocate(nbytes)


@pytest.mark.parametrize("nbytes", [1 << 62, 1 << 64])
def test_what_the_system_refuses_is_a_memory_error(source: MemorySource, nbytes: int) -> None:
    before = _open_descriptors()
    with pytest.raises(MemoryError, match="bytes"):
        source.allocate(nbytes)
    assert _open_descriptors() == before


def test_without_descriptors_it_is_a_memory_error() -> None:
    code = """
import resource
from omni_async.pool.memory import MemfdMemory
resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
try:
    MemfdMemory().allocate(4096)
except MemoryError as error:
    assert "Too many open files" in str(error)
else:
    raise SystemExit("nothing was refused")
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=50)


# --- the other side -----------------------------------------------------------------------------


def test_the_peer_sees_the_same_bytes() -> None:
    before = _open_descriptors()
    block = MemfdMemory().allocate(2 * PAGE)
    peer = map_fd(os.dup(block.fd), 2 * PAGE)
    assert peer.fd == -1
    block.view()[5] = 55
    assert peer.view()[5] == 55
    peer.view()[6] = 66
    assert block.view()[6] == 66
    block.close()
    del block
    assert peer.view()[5] == 55  # the owner is gone, the memory is not
    peer.close()
    assert _open_descriptors() == before


def test_pages_given_back_by_the_owner_read_as_zeros() -> None:
    block = MemfdMemory().allocate(2 * PAGE)
    peer = map_fd(os.dup(block.fd), 2 * PAGE)
    block.view()[:] = b"\xff" * 2 * PAGE
    assert peer.view()[PAGE] == 0xFF
    block.discard(0, 2 * PAGE)
    assert bytes(peer.view()) == bytes(2 * PAGE)


def _memfd(nbytes: int, seals: int = fcntl.F_SEAL_SHRINK) -> int:
    fd = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, nbytes)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def _file(nbytes: int) -> int:
    with tempfile.TemporaryFile() as file:
        file.truncate(nbytes)
        return os.dup(file.fileno())


def _pipe() -> int:
    read, write = os.pipe()
    os.close(write)
    return read


@pytest.mark.parametrize(
    ("make", "nbytes", "text"),
    [
        (lambda: _memfd(PAGE), PAGE + 1, "has 4,096 bytes, it said 4,097"),
        (lambda: _memfd(PAGE), 1 << 70, "it said"),
        (lambda: _memfd(PAGE), 0, "at least one byte"),
        (lambda: _memfd(PAGE), -5, "at least one byte"),
        (lambda: _memfd(PAGE, 0), PAGE, "not sealed against shrinking"),
        (lambda: _memfd(PAGE, fcntl.F_SEAL_GROW), PAGE, "not sealed against shrinking"),
        (lambda: _memfd(PAGE, fcntl.F_SEAL_SHRINK | F_SEAL_WRITE), PAGE, "against writing"),
        (lambda: _file(PAGE), PAGE, "no sealed memory"),
        (_pipe, PAGE, "no sealed memory"),
        (lambda: -1, PAGE, "no sealed memory"),
    ],
)
def test_a_wrong_descriptor_is_refused_and_closed(
    make: Callable[[], int], nbytes: int, text: str
) -> None:
    before = _open_descriptors()
    with pytest.raises(ProtocolError, match=text):
        map_fd(make(), nbytes)
    assert _open_descriptors() == before


def test_a_mapping_that_the_system_refuses() -> None:
    code = """
import fcntl, os, resource
from omni_async.pool.memory import map_fd
fd = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
os.ftruncate(fd, 4 << 40)
fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
resource.setrlimit(resource.RLIMIT_AS, (64 << 30, 64 << 30))
try:
    map_fd(fd, 4 << 40)
except MemoryError as error:
    assert "peer's region" in str(error)
else:
    raise SystemExit("nothing was refused")
try:
    os.fstat(fd)
except OSError:
    pass
else:
    raise SystemExit("the descriptor was left open")
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=50)
