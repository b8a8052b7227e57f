"""Thousands of rounds of put, get and delete: the server's used memory and ours end where they began."""

from __future__ import annotations

from pathlib import Path

import pytest

from omni_async.abc import Gone
from omni_async.cli.servers.mooncake import MooncakeMaster

from .conftest import MIB, Open
from .desk import Desk


def resident(pid: int | str) -> int:
    pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    return int(pages) * 4096


@pytest.mark.parametrize(
    "rounds", [1000, pytest.param(10_000, marks=[pytest.mark.soak, pytest.mark.timeout(600)])]
)
async def test_rounds_leave_nothing(
    own_master: MooncakeMaster, open_desk: Open, rounds: int
) -> None:
    own_master.start()
    owner = await open_desk(own_master.extra("sender"))
    guest = await open_desk({**own_master.extra("receiver"), "segment": 0})

    async def some(count: int) -> None:
        for at in range(count):
            writer, reader = (owner, guest) if at % 2 else (guest, owner)
            await one_round(writer, reader, f"{at}@0_1", MIB if at % 10 == 0 else 4096)

    await some(300)
    before = own_master.figures(), resident("self"), resident(own_master.pid)
    await some(rounds)
    after = own_master.figures(), resident("self"), resident(own_master.pid)
    for figure in ("master_allocated_bytes", "master_key_count"):
        assert before[0][figure] == after[0][figure] == 0
    assert after[1] - before[1] < 8 * MIB
    assert after[2] - before[2] < 8 * MIB


async def one_round(writer: Desk, reader: Desk, name: str, nbytes: int) -> None:
    await writer.put_here(name, nbytes, pieces=2)
    assert await reader.size(name) == nbytes
    assert await reader.delete(name, own=True) is Gone.DELETED
