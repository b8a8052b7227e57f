"""A peer process does as it is told, and tells what came of it.

In: orders. Out: results, errors, stderr, its end.
Never: leaves a process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from omni_async.errors import KeyNotFound, UsageError
from omni_async.testing.leaks import no_leaks_blocking
from omni_async.testing.orders import Answer, Order, PeerError, PeerGone, Unpacker, pack
from omni_async.testing.processes import PeerProcess
from omni_async.testing.recipes import literal, pattern
from omni_async.testing.rig import settle


@pytest.fixture(params=["asyncio", "uvloop"])
def peer(request: pytest.FixtureRequest) -> Iterator[PeerProcess]:
    if request.param == "uvloop":
        pytest.importorskip("uvloop")
    with no_leaks_blocking():
        process = PeerProcess(request.param)
        yield process
        assert process.close() in (0, -9)


async def test_a_pair_inside_the_peer(peer: PeerProcess, namespace: str) -> None:
    with peer.attached():
        where = {"namespace": namespace}
        tx = await peer.open("tx", "memory", role="sender", stage="0", **where)
        rx = await peer.open("rx", "memory", role="receiver", stage="1", **where)
        receipt = await tx.put("k", pattern(5000, 3))
        assert receipt.nbytes == 5000
        assert (await rx.get("k", pattern(5000, 3), keep="k")).wrong is None
        assert await rx.look("k", pattern(5000, 4)) is not None
        await rx.write("k", 7)
        assert await rx.look("k", pattern(5000, 3)) is not None
        await rx.forget("k")
        await rx.close()
        await tx.close()
        assert (await tx.health()).status == "closed"


async def test_errors_come_back_as_they_were(peer: PeerProcess, namespace: str) -> None:
    with peer.attached():
        rx = await peer.open("rx", "shm", role="receiver", stage="1", namespace=namespace)
        with pytest.raises(KeyNotFound) as caught:
            await rx.get("k", timeout=0)
        assert (caught.value.key, caught.value.edge) == ("k", ("0", "1"))
        with pytest.raises(UsageError):
            await rx.put("k", literal(1))
        with pytest.raises(PeerError, match="KeyError"):
            await peer.call("health", "nobody")
        with pytest.raises(PeerError, match="no side can"):
            await peer.call("explode", "rx")
        with pytest.raises(PeerError, match="AttributeError"):
            await peer.call("explode")
        await rx.close()


async def test_cancelling_here_cancels_there(peer: PeerProcess, namespace: str) -> None:
    with peer.attached():
        rx = await peer.open("rx", "shm", role="receiver", stage="1", namespace=namespace)
        waiting = asyncio.create_task(rx.get("k", timeout=None))
        await settle(rx, parked=1)
        waiting.cancel()
        await asyncio.wait({waiting})
        assert waiting.cancelled()
        assert (await rx.health()).parked == 0
        await rx.close()


async def test_leaks_are_seen_there(peer: PeerProcess, namespace: str) -> None:
    with peer.attached():
        await peer.call("watch")
        assert await peer.call("leaks", grace=0.0) == []
        tx = await peer.open("tx", "shm", role="sender", stage="0", namespace=namespace)
        leaks = await peer.call("leaks", grace=0.0)
        assert any("descriptor" in leak for leak in leaks)
        await tx.close()
        await peer.call("drop", name="tx")
        assert await peer.call("leaks", grace=2.0) == []


async def test_its_death_is_told(peer: PeerProcess, namespace: str) -> None:
    with peer.attached():
        rx = await peer.open("rx", "shm", role="receiver", stage="1", namespace=namespace)
        waiting = asyncio.create_task(rx.get("k", timeout=None))
        await asyncio.sleep(0.01)
        peer.kill()
        with pytest.raises(PeerGone):
            await waiting
        with pytest.raises(PeerGone):
            await rx.health()
        assert not peer.alive


async def test_a_stopped_peer_goes_on_later(peer: PeerProcess) -> None:
    with peer.attached():
        peer.stop()
        waiting = asyncio.create_task(peer.call("watch"))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        peer.resume()
        await asyncio.wait_for(waiting, 10)


async def test_what_it_writes_to_stderr_is_kept(peer: PeerProcess) -> None:
    with peer.attached():
        await peer.call("use", target="tests.kit.test_processes:complain", text="hm")
        assert "hm" in peer.stderr()


async def complain(text: str) -> None:
    """Used in the peer process."""
    import sys

    print(text, file=sys.stderr, flush=True)  # noqa: T201


def test_words_in_pieces() -> None:
    words = [Order(1, "a"), Order(2, "b", "side", {"x": [1, 2]})]
    data = b"".join(map(pack, words))
    unpacker = Unpacker(Order)
    found = [word for byte in data for word in unpacker.feed(bytes([byte]))]
    assert found == words
    assert Unpacker(Answer).feed(pack(Answer(3, {"ok": None}))) == [Answer(3, {"ok": None})]
