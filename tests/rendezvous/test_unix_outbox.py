"""The outbox against a socket that takes little: order, descriptors, ownership."""

from __future__ import annotations

import os
import resource
import socket
import struct
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_async.errors import UsageError
from omni_async.rendezvous.framing import MAX_MESSAGE, FrameReader, close_fds
from omni_async.rendezvous.messages import AnyMessage, Bye, Offer, Regions
from omni_async.rendezvous.outbox import Outbox
from omni_async.rendezvous.unix_line import descriptors
from tests.descriptors import open_descriptors
from tests.rendezvous.lines import regions, want

Ends = tuple[socket.socket, socket.socket]


def socketpair() -> Ends:
    a, b = socket.socketpair()
    a.setblocking(False)
    b.setblocking(False)
    a.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    return a, b


@pytest.fixture
def ends() -> Iterator[Ends]:
    a, b = socketpair()
    yield a, b
    a.close()
    b.close()


def receive(sock: socket.socket, reader: FrameReader) -> list[tuple[AnyMessage, list[int]]]:
    """Everything that lies in the socket."""
    got: list[tuple[AnyMessage, list[int]]] = []
    while True:
        try:
            nbytes, beside, _, _ = sock.recvmsg_into([reader.space()], 4096)
        except BlockingIOError:
            return got
        if not nbytes:
            return got
        reader.took(nbytes, descriptors(beside))
        while (word := reader.next()) is not None:
            got.append((word, reader.fds))
        reader.settle()


def same_file(a: int, b: int) -> bool:
    return os.path.sameopenfile(a, b)


class TestOutbox:
    def test_at_once(self, ends: Ends) -> None:
        a, b = ends
        box = Outbox(a, MAX_MESSAGE)
        assert box.now(want(1))
        assert box.now(want(2, "x" * 300))
        assert len(box) == 0
        assert receive(b, FrameReader()) == [(want(1), []), (want(2, "x" * 300), [])]

    def test_what_the_socket_does_not_take_is_queued_in_order(self, ends: Ends) -> None:
        a, b = ends
        box = Outbox(a, MAX_MESSAGE)
        big = Offer(1, 1, [1], [], [], bytes(300_000))
        assert not box.now(big)
        box.queue(want(1))
        assert not box.write()
        assert len(box) > 0
        reader, got = FrameReader(), []
        while len(box):
            got += receive(b, reader)
            box.write()
        got += receive(b, reader)
        assert [word for word, _ in got] == [big, want(1)]
        assert box.now(want(2))
        assert receive(b, reader) == [(want(2), [])]

    def test_full_socket(self, ends: Ends) -> None:
        a, b = ends
        box = Outbox(a, MAX_MESSAGE)
        count = 1
        while box.now(want(count)):
            count += 1
        assert not box.write()
        got = []
        reader = FrameReader()
        while len(box):
            got += receive(b, reader)
            box.write()
        got += receive(b, reader)
        assert [word for word, _ in got] == [want(n) for n in range(1, count + 1)]

    def test_descriptors_are_duplicated_until_sent(self, ends: Ends) -> None:
        a, b = ends
        box = Outbox(a, MAX_MESSAGE)
        while box.now(want(1)):
            pass
        r, w = os.pipe()
        kept = os.dup(r)
        before = len(open_descriptors())
        box.queue(regions(1), [r])
        os.close(r)  # ours to close as soon as queue() has returned
        assert len(open_descriptors()) == before
        reader, got = FrameReader(), []
        while len(box):
            got += receive(b, reader)
            box.write()
        got += receive(b, reader)
        word, (fd,) = got[-1]
        assert word == regions(1)
        assert same_file(fd, kept)
        close_fds([fd, kept, w])

    def test_clear_closes_the_duplicates(self, ends: Ends) -> None:
        a, _ = ends
        box = Outbox(a, MAX_MESSAGE)
        r, w = os.pipe()
        before = len(open_descriptors())
        box.queue(regions(2), [r, w])
        assert len(open_descriptors()) == before + 2
        box.clear()
        box.clear()
        assert len(open_descriptors()) == before
        assert len(box) == 0
        close_fds([r, w])

    def test_large_word_with_descriptors_in_pieces(self, ends: Ends) -> None:
        """The descriptors leave with the first piece, the rest of the word follows without them."""
        a, b = ends
        box = Outbox(a, MAX_MESSAGE)
        r, w = os.pipe()
        word = regions(1, descriptor=bytes(200_000))
        box.queue(word, [r])
        box.queue(regions(1), [w])
        assert not box.write()
        reader, got = FrameReader(), []
        while len(box):
            got += receive(b, reader)
            box.write()
        got += receive(b, reader)
        assert [word for word, _ in got] == [word, regions(1)]
        assert same_file(got[0][1][0], r)
        assert same_file(got[1][1][0], w)
        assert reader.stray == 0
        close_fds([r, w, *got[0][1], *got[1][1]])

    def test_wrong_number_of_descriptors(self, ends: Ends) -> None:
        box = Outbox(ends[0], MAX_MESSAGE)
        with pytest.raises(UsageError, match="names 1 descriptors, 0 were given"):
            box.queue(regions(1))
        with pytest.raises(UsageError, match="names 0 descriptors, 1 were given"):
            box.queue(want(1), [0])
        assert len(box) == 0

    def test_too_many_descriptors_for_one_word(self, ends: Ends) -> None:
        box = Outbox(ends[0], MAX_MESSAGE)
        with pytest.raises(UsageError, match="at most 253 descriptors, this one 254"):
            box.queue(regions(254), [0] * 254)
        assert len(box) == 0

    def test_bad_descriptor_queues_nothing(self, ends: Ends) -> None:
        a, b = ends
        box = Outbox(a, MAX_MESSAGE)
        box.queue(want(1))
        with pytest.raises(OSError, match="Bad file descriptor"):
            box.queue(regions(2), [0, 10**6])
        assert box.write()
        assert receive(b, FrameReader()) == [(want(1), [])]

    def test_no_descriptor_left_to_duplicate_with(self, ends: Ends) -> None:
        box = Outbox(ends[0], MAX_MESSAGE)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (ends[1].fileno() + 1, hard))
        try:
            with pytest.raises(OSError, match="Too many open files"):
                box.queue(regions(40), [0] * 40)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert len(box) == 0

    def test_too_long_a_word(self, ends: Ends) -> None:
        a, b = ends
        box = Outbox(a, 100)
        with pytest.raises(UsageError, match=r"Bye has \d+ bytes, one word at most 100"):
            box.now(Bye("x" * 200))
        box.queue(want(1))
        with pytest.raises(UsageError, match="at most 100"):
            box.queue(Bye("x" * 200))
        assert box.write()
        assert receive(b, FrameReader()) == [(want(1), [])]

    def test_unencodable_leaves_nothing(self, ends: Ends) -> None:
        a, b = ends
        box = Outbox(a, MAX_MESSAGE)
        box.queue(want(1))
        with pytest.raises(TypeError):
            box.queue(Bye(object()))  # type: ignore[arg-type]
        with pytest.raises(OverflowError):
            box.queue(want(2**70))
        assert box.write()
        assert receive(b, FrameReader()) == [(want(1), [])]

    def test_broken_line(self, ends: Ends) -> None:
        a, b = ends
        b.close()
        box = Outbox(a, MAX_MESSAGE)
        with pytest.raises(BrokenPipeError):
            box.now(want(1))
        box.queue(want(1))
        with pytest.raises(BrokenPipeError):
            box.write()

    def test_scratch_of_a_large_word_is_given_back(self, ends: Ends) -> None:
        a, b = ends
        box = Outbox(a, MAX_MESSAGE)
        reader = FrameReader()
        box.now(Offer(1, 1, [1], [], [], bytes(300_000)))
        while len(box):
            receive(b, reader)
            box.write()
        receive(b, reader)
        box.rest()
        assert box.now(want(1))
        box.rest()
        assert receive(b, reader) == [(want(1), [])]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 30_000), st.booleans(), st.booleans()),
        max_size=12,
    )
)
def test_descriptors_always_arrive_with_their_word(
    plan: list[tuple[int, int, bool, bool]],
) -> None:
    """Words with 0 to 3 descriptors and any size, written and read in any interleaving."""
    a, b = socketpair()
    box, reader = Outbox(a, MAX_MESSAGE), FrameReader()
    files: list[list[int]] = []
    sent: list[Regions] = []
    got: list[tuple[AnyMessage, list[int]]] = []
    for count, size, write, read in plan:
        fds = [os.memfd_create(f"{len(sent)}-{n}") for n in range(count)]
        for n, fd in enumerate(fds):
            os.write(fd, struct.pack("<II", len(sent), n))
        word = regions(count, descriptor=bytes(size))
        box.queue(word, fds)
        close_fds(fds)
        files.append(fds)
        sent.append(word)
        if write:
            box.write()
        if read:
            got += receive(b, reader)
    while len(box):
        box.write()
        got += receive(b, reader)
    got += receive(b, reader)
    assert [word for word, _ in got] == sent
    for number, (_, fds) in enumerate(got):
        marks = [struct.unpack("<II", os.pread(fd, 8, 0)) for fd in fds]
        assert marks == [(number, n) for n in range(len(files[number]))]
        close_fds(fds)
    assert reader.stray == 0
    a.close()
    b.close()
