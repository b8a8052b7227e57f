"""Processes that die, leave, pause and fork: what they shared is neither lost nor left behind."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.cases.processes import ROOT, AgentError, Processes
from tests.cases.steps import block
from tests.pairs import open_pair

pytestmark = pytest.mark.usefixtures("shm_listing")


# --- A8: a producer that was killed ---------------------------------------------------------------


async def test_a_killed_producer_does_not_block_its_successor(
    processes: Processes, namespace: str
) -> None:
    other = await processes.agent("sender", namespace=namespace + "-other")
    await other.do("put_series", count=3, nbytes=100_000)
    first = await processes.agent("sender")
    await first.do("put_series", count=20, nbytes=300_000)
    receiver = await processes.agent("receiver")
    assert (await receiver.do("get", key="k3"))[0] == [3]
    await first.kill()

    second = await processes.agent("sender")
    for index in range(20):
        await second.do("put", key=f"k{index}", fill=100 + index, nbytes=300_000)
    for index in range(20):
        assert await receiver.do("get", key=f"k{index}") == [[100 + index], 300_000]
    neighbour = await processes.agent("receiver", namespace=namespace + "-other")
    assert await neighbour.do("get_series", count=3) == 3
    assert namespace not in " ".join(os.listdir("/dev/shm"))


# --- A9, A10: readers that leave, and quiet exits -------------------------------------------------


async def test_a_reader_that_leaves_takes_nothing_along(processes: Processes) -> None:
    sender = await processes.agent("sender", linger=5.0)
    await sender.do("put_series", count=3, nbytes=200_000)
    first = await processes.agent("receiver")
    assert await first.do("get", key="k0") == [[0], 200_000]
    await first.do("close")
    assert await first.leave() == 0
    second = await processes.agent("receiver")
    for index in (1, 2):
        assert await second.do("get", key=f"k{index}") == [[index], 200_000]
    for process in (second, sender):
        await process.do("close")
        assert await process.leave() == 0
    assert [process.words() for process in (first, second, sender)] == ["", "", ""]


async def test_a_clean_run_says_nothing_on_stderr(processes: Processes) -> None:
    sender = processes.start(role="sender", linger=5.0)
    receiver = processes.start(role="receiver")
    await asyncio.gather(sender.do("open"), receiver.do("open"))
    receiver.tell("get_series", count=100)
    await sender.do("put_series", count=100, nbytes=50_000)
    assert await receiver.answer() == 100
    for process in (sender, receiver):
        await process.do("close")
        assert await process.leave() == 0
        assert process.words() == ""


# --- A12: views that outlive everything -----------------------------------------------------------

OUTLIVE = """
import asyncio, faulthandler, gc, sys, numpy as np, omni_async
faulthandler.enable()
sys.unraisablehook = lambda unraisable: sys.exit(f"unraisable: {unraisable}")
async def main():
    async with (
        omni_async.open_transport("shm", role="sender", stage="0", namespace=sys.argv[1]) as tx,
        omni_async.open_transport("shm", role="receiver", stage="1", namespace=sys.argv[1]) as rx,
    ):
        await tx.put("0", "1", "k", {"a": np.arange(50_000, dtype=np.int64)}, request_id="r")
        delivery = await rx.get("0", "1", "k", timeout=5)
        view = delivery.value["a"][10:]
        await rx.cleanup("r")
        await tx.cleanup("r")
        await rx.aclose()
        await tx.aclose()
    del delivery, tx, rx
    return view
view = asyncio.run(main())
gc.collect()
assert view[0] == 10 and view[-1] == 49_999 and view.sum() == sum(range(10, 50_000))
view[:] = 3
assert view.sum() == 3 * len(view)
del view
gc.collect()
print("passed")
"""


def test_a_view_outlives_cleanup_and_close(namespace: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", OUTLIVE, namespace],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "passed\n", "")


# --- other reports of this family -----------------------------------------------------------------


async def test_a_receiver_without_free_descriptors_says_so_and_recovers(
    processes: Processes,
) -> None:
    """pytorch#973: at the descriptor limit the kernel strips what was passed, and a hang follows."""
    sender, receiver = await processes.both()
    await sender.do("put", key="big", fill=9, nbytes=3_000_000)
    await receiver.do("descriptors", spare=0)
    with pytest.raises(AgentError) as caught:
        await receiver.do("get", key="big", timeout=3)
    assert "descriptor" in caught.value.text or "open files" in caught.value.text
    await receiver.do("descriptors", spare=50)
    assert await receiver.do("get", key="big") == [[9], 3_000_000]


async def test_a_paused_reader_keeps_its_memory(processes: Processes) -> None:
    """cloudtoid/interprocess#55: a lock that expires under a paused reader lets its bytes change."""
    sender, receiver = await processes.both(
        extra={"memory_pool_size": 4 << 20, "peer_timeout": 1.0}
    )
    await sender.do("put", key="held", fill=1, nbytes=1 << 20)
    await receiver.do("get", key="held", keep=True)
    receiver.signal(signal.SIGSTOP)
    await asyncio.sleep(2.0)
    for index in range(12):  # three times the pool
        await sender.attempt("put", key=f"k{index % 3}", fill=200, nbytes=1 << 20, timeout=0.2)
    receiver.signal(signal.SIGCONT)
    assert await receiver.do("look", key="held") == [[1], 1 << 20]


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
async def test_a_dead_peer_whose_memory_is_held_costs_no_cpu(
    processes: Processes, loop: str
) -> None:
    """uvloop#61: a descriptor that stays in the poller after its socket's end spins the loop."""
    pytest.importorskip("uvloop" if loop == "uvloop" else "asyncio")
    sender, receiver = await processes.both(loop=loop)
    await sender.do("put", key="held", fill=1, nbytes=1 << 20)
    await receiver.do("get", key="held", keep=True)
    await sender.kill()
    assert await receiver.do("cpu", seconds=1.0) < 0.2
    assert await receiver.do("look", key="held") == [[1], 1 << 20]


async def test_closing_closes_nobody_elses_descriptors(namespace: str) -> None:
    """uvloop#763: a descriptor closed twice may be somebody else's the second time."""
    for _ in range(5):
        async with open_pair("shm", namespace) as (tx, rx):
            await tx.put("0", "1", "k", block(1, 2_000_000))
            delivery = await rx.get("0", "1", "k", timeout=5)
        files = [os.open(os.devnull, os.O_RDONLY) for _ in range(40)]
        del delivery
        gc.collect()
        await asyncio.sleep(0.01)
        for file in files:
            os.close(file)  # OSError when somebody else did


def test_a_forked_child_leaves_its_parents_transport_alone(namespace: str) -> None:
    """DataLoader workers and subprocess pools fork engines that have transports open."""
    program = textwrap.dedent(
        """
        import asyncio, gc, os, sys, numpy as np, omni_async
        async def main():
            async with (
                omni_async.open_transport("shm", role="sender", stage="0", namespace=sys.argv[1]) as tx,
                omni_async.open_transport("shm", role="receiver", stage="1", namespace=sys.argv[1]) as rx,
            ):
                await tx.put("0", "1", "k", np.full(100_000, 5, np.uint8))
                held = await rx.get("0", "1", "k", timeout=5)
                child = os.fork()
                if child == 0:
                    held.release()
                    del held
                    gc.collect()
                    try:
                        tx.health()
                        tx.put("0", "1", "x", 1).send(None)
                    except omni_async.UsageError as error:
                        os._exit(7 if "fork" in str(error) else 8)
                    os._exit(9)
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
                assert (held.value == 5).all()
                assert tx.health().pool_used > 0
                for index in range(50):
                    await tx.put("0", "1", f"k{index}", np.full(100_000, index, np.uint8))
                    with await rx.get("0", "1", f"k{index}", timeout=5) as delivery:
                        assert (delivery.value == index).all()
                assert (held.value == 5).all()
                child = os.fork()
                if child == 0:
                    sys.exit(0)  # unwinds through everything that is open
                os.waitpid(child, 0)
                await tx.put("0", "1", "after", 1)
                assert (await rx.get("0", "1", "after", timeout=5)).value == 1
        asyncio.run(main())
        print("passed", flush=True)
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", program, namespace],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "passed\n", done.stderr


@pytest.mark.parametrize("kind", ["--pid", "--net"])
async def test_containers_that_share_a_folder_meet(
    processes: Processes, tmp_path: Path, kind: str
) -> None:
    """Two containers have the same process ids, or no network in common, but one volume."""
    unshare = shutil.which("unshare")
    if unshare is None or os.geteuid() != 0:
        pytest.skip("needs root and unshare(1) for namespaces of its own")
    wrapper = [unshare, kind, *(["--fork"] if kind == "--pid" else [])]
    extra = {"socket_dir": str(tmp_path)}
    sender = await processes.agent("sender", extra=extra)
    receiver = await processes.agent("receiver", extra=extra, wrapper=wrapper)
    await sender.do("put", key="k", fill=4, nbytes=1_000_000)
    assert await receiver.do("get", key="k") == [[4], 1_000_000]
