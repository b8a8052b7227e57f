"""The store through its seam, with a real master: what is put is got, and four outcomes stay apart."""

from __future__ import annotations

import asyncio
import time
import uuid
from pathlib import Path

import pytest

from omni_async import ClosedError, KeyExists, UsageError
from omni_async.abc import Gone
from omni_async.cli.servers.mooncake import MooncakeMaster
from tests.cases.processes import Process

from .conftest import MIB, Open, StartAgent
from .desk import Desk


@pytest.fixture
def name() -> str:
    """One that no other test uses: what a test leaves stays in the shared store."""
    return f"{uuid.uuid4().hex}@0_1"


@pytest.fixture(params=["own segment", "other's segment"])
def desk(owner: Desk, guest: Desk, request: pytest.FixtureRequest) -> Desk:
    return owner if request.param == "own segment" else guest


@pytest.mark.parametrize(
    ("nbytes", "pieces"), [(1, 1), (64, 3), (4096, 1), (300_000, 7), (20 * MIB + 1, 2)]
)
async def test_what_is_put_is_got(desk: Desk, name: str, nbytes: int, pieces: int) -> None:
    data = bytes(range(256)) * (nbytes // 256) + bytes(range(nbytes % 256))
    await desk.put(name, data, pieces)
    assert await desk.there(name)
    assert await desk.get(name) == data
    assert await desk.delete(name, own=True) is Gone.DELETED
    assert not await desk.there(name)
    assert await desk.get(name) is None


async def test_one_client_gets_what_another_has_put(owner: Desk, guest: Desk, name: str) -> None:
    await owner.put(name, b"o" * MIB)
    assert await guest.get(name) == b"o" * MIB
    await owner.delete(name, own=True)
    await guest.put(name, b"g" * 100)
    assert await owner.get(name) == b"g" * 100
    await owner.delete(name, own=True)


async def test_what_is_absent(desk: Desk, name: str) -> None:
    assert await desk.get(name) is None
    assert not await desk.there(name)
    assert await desk.delete(name) is Gone.ABSENT
    assert await desk.delete(name, own=True) is Gone.ABSENT
    assert await desk.store.contains([]) == []
    assert await desk.store.delete([]) == []


async def test_too_little_room_tells_how_much_it_takes(
    desk: Desk, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    await desk.put(name, b"x" * 5000)
    capfd.readouterr()
    assert await desk.size(name, room=4999) == 5000
    assert await desk.size(name, room=1) == 5000
    assert await desk.size(name, room=5000) == 5000
    assert capfd.readouterr().err == ""  # nothing went wrong, so nobody is to be told
    await desk.delete(name, own=True)


async def test_what_nobody_has_read_is_replaced(desk: Desk, name: str) -> None:
    await desk.put(name, b"old" * 1000)
    await desk.put(name, b"of another size")
    assert await desk.get(name) == b"of another size"
    await desk.delete(name, own=True)
    await desk.put(name, b"new")
    assert await desk.get(name) == b"new"
    await desk.delete(name, own=True)


@pytest.mark.parametrize("look", ["get", "there"])
async def test_what_somebody_reads_stays(desk: Desk, guest: Desk, name: str, look: str) -> None:
    await desk.put(name, b"old")
    await getattr(guest, look)(name)
    with pytest.raises(KeyExists, match="somebody reads it or looked at it"):
        await desk.put(name, b"new")
    assert await desk.delete(name) is Gone.BUSY
    assert await desk.get(name) == b"old"
    assert await desk.delete(name, own=True) is Gone.DELETED


async def test_what_is_being_written_is_not_there_yet(
    desk: Desk, name: str, mooncake_master: MooncakeMaster, start_agent: StartAgent
) -> None:
    writer: Process = await start_agent({**mooncake_master.extra("receiver"), "segment": 0})
    assert await writer.do("begin", name=name, nbytes=100) == [0]
    assert await desk.get(name) is None
    assert not await desk.there(name)
    assert await desk.delete(name, own=True) is Gone.BUSY
    with pytest.raises(KeyExists, match="writes it just now"):
        await desk.put(name, b"new")


async def test_two_puts_of_one_key_in_one_process(desk: Desk, guest: Desk, name: str) -> None:
    desk.block.view(0, 4)[:] = guest.block.view(0, 4)[:] = b"same"
    puts = [each.put_here(name, 16 * MIB) for each in (desk, desk, guest)]
    outcomes = await asyncio.gather(*puts, return_exceptions=True)
    assert None in outcomes
    assert all(outcome is None or isinstance(outcome, KeyExists) for outcome in outcomes)
    await desk.delete(name, own=True)


@pytest.mark.parametrize("delay", [0.001, 0.003, 0.006])
async def test_a_reader_is_not_given_what_was_overwritten_under_it(
    owner: Desk, guest: Desk, name: str, delay: float
) -> None:
    """Two read; one has done and deletes, and something else is put into that memory."""
    nbytes = 30 * MIB
    await owner.put(name, b"a" * nbytes)
    owner.block.view(0, nbytes)[:] = b"b" * nbytes
    reading = asyncio.ensure_future(guest.size(name))
    await asyncio.sleep(delay)
    await owner.delete(name, own=True)
    await owner.put_here(f"another {name}", nbytes)
    assert await reading is None or bytes(guest.block.view(0, nbytes)).count(b"a") == nbytes
    await owner.delete(f"another {name}", own=True)


async def test_many_names_in_one_question(desk: Desk, name: str) -> None:
    names = [f"{name}-{at}" for at in range(2500)]
    for at in (0, 999, 1000, 2499):
        await desk.put(names[at], b"x")
    found = await desk.store.contains(names)
    assert [at for at, there in enumerate(found) if there] == [0, 999, 1000, 2499]
    gone = await desk.store.delete(names, own=True)
    assert [at for at, end in enumerate(gone) if end is Gone.DELETED] == [0, 999, 1000, 2499]


@pytest.mark.parametrize("text", ["a/b c", "zwölf", "🙂@:", "line\nbreak\0", "k" * 1200])
async def test_names_are_any_text(desk: Desk, name: str, text: str) -> None:
    called = desk.store.name(text + name)
    assert called == desk.store.plain_name(text + name)
    await desk.put(called, b"x")
    assert await desk.get(called) == b"x"
    assert not await desk.there(name)
    await desk.delete(called, own=True)


def test_a_name_that_is_no_text(owner: Desk) -> None:
    with pytest.raises(UsageError, match="UTF-8"):
        owner.store.name("\ud800")


async def test_the_local_buffer_is_no_limit(
    mooncake_master: MooncakeMaster, open_desk: Open, owner: Desk, name: str
) -> None:
    small = await open_desk({**mooncake_master.extra("receiver"), "segment": 0, "localbuf": MIB})
    await small.put(name, b"x" * 8 * MIB)
    assert await small.get(name) == b"x" * 8 * MIB
    await small.delete(name, own=True)


async def test_memory_that_could_not_be_registered(owner: Desk, guest: Desk, name: str) -> None:
    """With TCP nothing depends on it."""
    guest.store.unregister(guest.region)
    await guest.put(name, b"x" * 20 * MIB)
    assert await guest.get(name) == b"x" * 20 * MIB
    assert await owner.delete(name, own=True) is Gone.DELETED


async def test_the_loop_is_free_while_bytes_move(guest: Desk, name: str) -> None:
    longest = 0.0

    async def tick() -> None:
        nonlocal longest
        while True:
            begun = time.perf_counter()
            await asyncio.sleep(0.001)
            longest = max(longest, time.perf_counter() - begun)

    ticking = asyncio.ensure_future(tick())
    begun = time.perf_counter()
    for _ in range(5):
        await guest.put_here(name, 30 * MIB)
        await guest.size(name)
        await guest.delete(name, own=True)
    taken = time.perf_counter() - begun
    ticking.cancel()
    assert longest < max(0.05, taken / 5)


async def test_health(owner: Desk, mooncake_master: MooncakeMaster) -> None:
    assert owner.store.health() == {
        "host": "127.0.0.1",
        "metadata_server": "P2PHANDSHAKE",
        "master": mooncake_master.address,
        "protocol": "tcp",
    }
    assert owner.store.address == mooncake_master.address
    assert (owner.store.separator, owner.store.guards, owner.store.pins) == ("@", True, False)


async def test_after_closing(mooncake_master: MooncakeMaster, open_desk: Open, name: str) -> None:
    desk = await open_desk(mooncake_master.extra("sender"))
    await desk.put(name, b"still there")
    begun = time.perf_counter()
    await desk.store.close()
    await desk.store.close()
    assert time.perf_counter() - begun < 2
    for call in (desk.get(name), desk.there(name), desk.delete(name), desk.put(name, b"x")):
        with pytest.raises(ClosedError):
            await call
    again = await open_desk(mooncake_master.extra("sender"))
    assert await again.get(name) == b"still there"
    await again.delete(name, own=True)


async def test_opening_again_and_again_leaves_nothing(
    mooncake_master: MooncakeMaster, open_desk: Open
) -> None:
    def left() -> list[int]:
        return [len(list(Path(f"/proc/self/{what}").iterdir())) for what in ("task", "fd")]

    extra = mooncake_master.extra("sender")
    await (await open_desk(extra)).store.close()
    before = left()
    for _ in range(20):
        await (await open_desk(extra)).store.close()
    limit = time.monotonic() + 5
    while left() > before and time.monotonic() < limit:
        time.sleep(0.01)  # noqa: ASYNC251 - threads end a moment after they were told to
    assert left() <= before


async def test_where_the_own_segment_is(owner: Desk, guest: Desk, name: str) -> None:
    await owner.put_here(name, MIB)
    assert owner.store._client._size_elsewhere(name) == 0  # type: ignore[attr-defined]
    assert guest.store._client._size_elsewhere(name) == MIB  # type: ignore[attr-defined]
    await owner.delete(name, own=True)
