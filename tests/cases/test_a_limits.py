"""Limits of memory: a full /dev/shm does not matter, the limit that does hold is told in time."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import omni_async
from tests.cases.processes import ROOT
from tests.cases.steps import block
from tests.pairs import open_pair

pytestmark = pytest.mark.usefixtures("shm_listing")


# --- A7: a full /dev/shm, and the limit that does hold --------------------------------------------

TINY = """
import asyncio, os, subprocess, numpy as np, omni_async
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", "/dev/shm"], check=True)
async def main():
    async with (
        omni_async.open_transport("shm", role="sender", stage="0", namespace="tiny") as tx,
        omni_async.open_transport("shm", role="receiver", stage="1", namespace="tiny") as rx,
    ):
        for nbytes in (8 << 20, 1 << 20):
            key = str(nbytes)
            await tx.put("0", "1", key, np.full(nbytes, 7, np.uint8))
            delivery = await rx.get("0", "1", key, timeout=5)
            assert delivery.value.nbytes == nbytes and (delivery.value == 7).all()
            delivery.release()
        assert os.listdir("/dev/shm") == []
asyncio.run(main())
print("passed")
"""


def test_a_tiny_dev_shm_does_not_matter() -> None:
    unshare = shutil.which("unshare")
    if unshare is None or os.geteuid() != 0:
        pytest.skip("needs root and unshare(1) for a mount namespace of its own")
    done = subprocess.run(
        [unshare, "-m", "--propagation", "private", sys.executable, "-c", TINY],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
    )
    if "mount" in done.stderr and "denied" in done.stderr:
        pytest.skip("mounting is not allowed here")
    assert (done.returncode, done.stdout) == (0, "passed\n"), done.stderr


async def test_larger_than_the_limit_is_refused_at_once_and_smaller_still_works(
    backend: str, namespace: str
) -> None:
    async with open_pair(backend, namespace, memory_pool_size=4 << 20) as (tx, rx):
        with pytest.raises(omni_async.PayloadTooLarge) as caught:
            await tx.put("0", "1", "k", block(1, 8 << 20))
        assert caught.value.limit == 4 << 20
        assert caught.value.nbytes >= 8 << 20
        assert "memory_pool_size" in str(caught.value)
        await tx.put("0", "1", "k", block(2, 1 << 20))
        assert ((await rx.get("0", "1", "k", timeout=5)).value == 2).all()


CAPPED = """
import asyncio, omni_async, sys
async def main():
    async with omni_async.open_transport("shm", role="sender", stage="0", namespace="capped") as tx:
        print(tx.health().pool_size)
    try:
        async with omni_async.open_transport(
            {"name": "shm", "extra": {"memory_pool_size": 1 << 30}},
            role="sender", stage="0", namespace="capped",
        ):
            print("opened")
    except (omni_async.ConfigError, omni_async.UsageError) as error:
        print(type(error).__name__, error)
asyncio.run(main())
"""


def memory_cgroup() -> Path:
    """A new control group of 400 MiB, by either version of the interface."""
    if os.geteuid() != 0:
        pytest.skip("needs root to make a control group")
    name = f"omni-test-{os.getpid()}"
    old = Path("/sys/fs/cgroup/memory")
    try:
        if (old / "memory.limit_in_bytes").exists():
            own = Path("/proc/self/cgroup").read_text()
            inside = next(line.split(":")[2] for line in own.splitlines() if ":memory:" in line)
            group = old / inside.lstrip("/") / name
            group.mkdir()
            (group / "memory.limit_in_bytes").write_text(str(400 << 20))
        else:
            group = Path("/sys/fs/cgroup") / name
            group.mkdir()
            (group / "memory.max").write_text(str(400 << 20))
    except OSError as error:
        pytest.skip(f"no control group with a memory limit can be made here: {error}")
    return group


def test_the_limit_follows_the_control_group() -> None:
    group = memory_cgroup()
    try:
        join = f"open({str(group / 'cgroup.procs')!r}, 'w').write('0')\n"
        done = subprocess.run(
            [sys.executable, "-c", join + CAPPED],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=30,
        )
    finally:
        group.rmdir()
    assert done.returncode == 0, done.stderr
    default, refusal = done.stdout.splitlines()
    assert int(default) <= 100 << 20
    assert refusal.startswith(("ConfigError", "UsageError"))
    assert "memory_pool_size" in refusal
