"""Shared-memory lifecycle: aborts, crashes, full disks and odd names leave nothing behind."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import omni_async
from tests.cases.conftest import open_pair
from tests.cases.memory_of import header_of
from tests.cases.processes import ROOT, AgentError, Processes

Pair = tuple[omni_async.Transport, omni_async.Transport]

pytestmark = pytest.mark.usefixtures("shm_listing")


def block(fill: int, nbytes: int = 100_000) -> Any:
    return np.full(nbytes, fill, dtype=np.uint8)


async def until(condition: Callable[[], bool], what: str, limit: float = 5.0) -> None:
    """Wait for a gauge; gauges tell nobody when they change."""
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end, what
        await asyncio.sleep(0.01)


# --- A1: chunks of an aborted request stay for ever ----------------------------------------------


async def test_abort_at_the_producer_frees_what_was_put_and_nothing_else(pair: Pair) -> None:
    tx, rx = pair
    await tx.put("0", "1", "alive", block(7))
    alone = tx.health().pool_used
    for index in range(50):
        await tx.put("0", "1", f"r-{index}", block(index), request_id="r")
    for index in range(10):
        (await rx.get("0", "1", f"r-{index}", timeout=5)).release()
    waiting = asyncio.create_task(rx.get("0", "1", "r-not-put", timeout=5))
    await tx.cleanup("r")
    await until(lambda: tx.health().pool_used == alone, "the aborted request keeps memory")
    with pytest.raises(omni_async.KeyNotFound):
        await rx.get("0", "1", "r-20", timeout=0)
    delivery = await rx.get("0", "1", "alive", timeout=5)
    assert (delivery.value == 7).all()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


async def test_abort_at_the_consumer_frees_within_the_time_limit(
    backend: str, namespace: str
) -> None:
    async with open_pair(backend, namespace, buffer_ttl_seconds=1.0) as (tx, rx):
        for index in range(50):
            await tx.put("0", "1", f"r-{index}", block(index), request_id="r")
        for index in range(10):
            (await rx.get("0", "1", f"r-{index}", timeout=5)).release()
        waiting = asyncio.create_task(rx.get("0", "1", "r", timeout=20))
        await asyncio.sleep(0.5)  # half of the limit, so that the other request is half as old
        await rx.cleanup("r")
        with pytest.raises(omni_async.TransferCancelled):
            await waiting
        await tx.put("0", "1", "alive", block(7))
        delivery_due = time.monotonic() + 0.9
        await until(
            lambda: tx.health().pool_used < 300_000, "unread payloads outlive their time limit", 3
        )
        if time.monotonic() < delivery_due:  # else the machine slept through the other's limit too
            delivery = await rx.get("0", "1", "alive", timeout=5)
            assert (delivery.value == 7).all()
        with pytest.raises(omni_async.KeyNotFound) as caught:
            await rx.get("0", "1", "r-20", timeout=0)
        assert caught.value.expired


# --- A2: state of aborted requests grows ----------------------------------------------------------


async def test_a_thousand_aborts_leave_no_state(pair: Pair) -> None:
    tx, rx = pair
    small = b"x" * 200

    async def abort(number: int) -> None:
        for part in range(3):
            await tx.put("0", "1", f"{number}-{part}", small, request_id=f"r{number}")
        waiting = asyncio.create_task(rx.get("0", "1", f"{number}-never", timeout=30))
        await asyncio.sleep(0)  # it waits
        (await rx.get("0", "1", f"{number}-0", timeout=5)).release()
        await tx.cleanup(f"r{number}")
        await rx.cleanup(f"{number}-never")
        with pytest.raises(omni_async.TransferCancelled):
            await waiting

    tracemalloc.start()  # from the start: what replaces something of before is no growth
    for number in range(200):
        await abort(number)
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    for number in range(200, 1000):
        await abort(number)
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown / 800 < 64, f"{grown / 800:.0f} bytes stay for each aborted request"

    def idle() -> bool:
        return all(
            not (health.in_flight or health.parked or health.quarantined or health.pool_used)
            for health in (tx.health(), rx.health())
        )

    await until(idle, "state of aborted requests is kept")


# --- A3: side files of failed and of falsy values -------------------------------------------------


async def test_a_failed_put_leaves_nothing(pair: Pair) -> None:
    tx, rx = pair
    with pytest.raises(omni_async.EncodeError, match=r"value\['a'\]\[1\]"):
        await tx.put("0", "1", "k", {"a": [block(1), object()]})
    assert tx.health().pool_used == 0
    with pytest.raises(omni_async.KeyNotFound):
        await rx.get("0", "1", "k", timeout=0)


async def test_a_payload_that_was_corrupted_is_an_error_and_leaves_nothing(
    processes: Processes, namespace: str
) -> None:
    sender = await processes.agent("sender")
    async with omni_async.open_transport(
        "shm", role="receiver", stage="1", namespace=namespace
    ) as rx:
        await sender.do("put", key="bad", value={"needle-in-the-header": "x"}, nbytes=50_000)
        with header_of(sender.pid, b"needle-in-the-header") as (segment, place):
            segment[place - 8 : place + 20] = b"\xc1" * 28
        with pytest.raises(omni_async.DecodeError):
            await rx.get("0", "1", "bad", timeout=5)
        await sender.do("put", key="good", value={"fine": 1})
        assert (await rx.get("0", "1", "good", timeout=5)).value == {"fine": 1}
        # nobody can ever read it: it is not kept on offer for another try
        for _ in range(200):
            if (await sender.do("health"))["pool_used"] == 0:
                return
            await asyncio.sleep(0.01)
        pytest.fail("a payload that cannot be decoded is kept")


@pytest.mark.parametrize(
    "value", [{}, [], (), set(), b"", bytearray(), "", 0, 0.0, False, None], ids=repr
)
async def test_falsy_values_arrive(pair: Pair, value: Any) -> None:
    tx, rx = pair
    await tx.put("0", "1", "k", value)
    received = (await rx.get("0", "1", "k", timeout=5)).value
    assert type(received) is type(value)
    assert received == value
    await until(lambda: tx.health().pool_used == 0, "a falsy value keeps its memory")


# --- A4: a stage without a successor ---------------------------------------------------------------

CHAIN: dict[str, Any] = {
    "stages": [
        {"stage_id": 0, "output_connectors": {"to_stage_1": "shared"}},
        {"stage_id": 1, "input_connectors": {"from_stage_0": "shared"}},
    ],
    "connectors": {"shared": {"name": "SharedMemoryConnector"}},
}


async def test_the_last_stage_sends_nothing(namespace: str) -> None:
    deploy = omni_async.load_deploy(CHAIN)
    async with (
        omni_async.open_stage(deploy, 0, namespace=namespace) as first,
        omni_async.open_stage(deploy, 1, namespace=namespace) as last,
    ):
        await first.output(1).put("r", "text only")
        assert (await last.input(0).get("r", timeout=5)).value == "text only"
        assert list(last.outputs) == []
        assert all(health.pool_size == 0 or health.puts == 0 for health in last.health().values())
        with pytest.raises(omni_async.UsageError, match="no edge leads from stage 1"):
            last.output(2)


# --- A6: a slow consumer --------------------------------------------------------------------------


@pytest.mark.parametrize("count", [400, pytest.param(2000, marks=pytest.mark.soak)])
async def test_a_slow_consumer_bounds_its_producer(
    backend: str, namespace: str, count: int
) -> None:
    limit = 8 << 20
    lags: list[float] = []
    used: list[int] = []

    async def tick() -> None:
        while True:
            begun = time.monotonic()
            await asyncio.sleep(0.002)
            lags.append(time.monotonic() - begun)

    async with open_pair(backend, namespace, memory_pool_size=limit) as (tx, rx):

        async def produce() -> None:
            for index in range(count):
                await tx.put("0", "1", f"k{index}", block(index % 251, 256 << 10), timeout=60)
                used.append(tx.health().pool_used)

        ticking = asyncio.create_task(tick())
        producing = asyncio.create_task(produce())
        for index in range(count):
            with await rx.get("0", "1", f"k{index}", timeout=60) as delivery:
                assert (delivery.value == index % 251).all()
            await asyncio.sleep(0.002)
        await producing
        ticking.cancel()
    assert max(used) <= limit
    assert max(used) > limit // 2, "the producer never ran ahead, so nothing was tried"
    assert sorted(lags)[int(len(lags) * 0.99)] < 0.05


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


# --- A13: names -----------------------------------------------------------------------------------

NAMES = [
    "x" * 300,
    "x" * 299 + "y",
    "a/b",
    "a_b",
    "a:b",
    "a\0b",
    "a\0c",
    "réq",
    "re\u0301q",  # the same letter in two code points is another key
    "..",
    "/",
    " ",
    "-",
    "--help",
    "%s",
    "🎧",
    "k" * 1024,
]


async def test_every_name_is_a_key_of_its_own(pair: Pair) -> None:
    tx, rx = pair
    for index, name in enumerate(NAMES):
        await tx.put("0", "1", name, {"number": index, "bulk": block(index)}, request_id=name)
    for index, name in reversed(list(enumerate(NAMES))):
        value = (await rx.get("0", "1", name, timeout=5)).value
        assert value["number"] == index
        assert (value["bulk"] == index).all()


@pytest.mark.parametrize("name", ["", "x" * 1025, "é" * 513, "\ud800", 5, None, b"k"], ids=repr)
async def test_what_is_no_key_is_refused_by_both_sides(pair: Pair, name: Any) -> None:
    tx, rx = pair
    with pytest.raises(omni_async.UsageError, match="key"):
        await tx.put("0", "1", name, 1)
    with pytest.raises(omni_async.UsageError, match="key"):
        await rx.get("0", "1", name, timeout=0)


@pytest.mark.parametrize("name", NAMES, ids=ascii)
async def test_every_name_is_a_namespace(name: str, namespace: str) -> None:
    name = f"{name}{namespace}"
    async with open_pair("shm", name) as (tx, rx), open_pair("shm", name + "'") as (other, _):
        await other.put("0", "1", "k", "another's")
        await tx.put("0", "1", "k", name)
        assert (await rx.get("0", "1", "k", timeout=5)).value == name


# --- A15: two writers of one key ------------------------------------------------------------------


async def test_two_writers_of_one_key_never_mix(pair: Pair) -> None:
    tx, rx = pair
    refused = 0

    async def write(first: int) -> None:
        nonlocal refused
        for number in range(200):
            try:
                await tx.put("0", "1", "k", block(first + number % 100))
            except omni_async.KeyExists:
                refused += 1
            await asyncio.sleep(0)

    writers = [asyncio.create_task(write(0)), asyncio.create_task(write(100))]
    read = 0
    while not all(writer.done() for writer in writers):
        try:
            delivery = await rx.get("0", "1", "k", timeout=0)
        except omni_async.KeyNotFound:
            await asyncio.sleep(0)
            continue
        assert len(np.unique(delivery.value)) == 1
        delivery.release()
        read += 1
    await asyncio.gather(*writers)
    assert read > 0
    assert read + refused <= 400


async def test_what_was_got_can_be_put_again(pair: Pair) -> None:
    """A payload is consumed when its get has returned, whatever words are still under way."""
    tx, rx = pair
    for number in range(100):
        value: Any = number if number % 2 else block(number)
        await tx.put("0", "1", "k", value)
        with await rx.get("0", "1", "k", timeout=5) as delivery:
            assert np.array_equal(delivery.value, value)


async def test_what_was_got_elsewhere_can_be_put_again(processes: Processes) -> None:
    sender, receiver = await processes.both()
    for number in range(50):
        await sender.do("put", key="k", fill=number, nbytes=10 if number % 2 else 100_000)
        assert (await receiver.do("get", key="k"))[0] == [number]


async def test_a_second_process_cannot_be_the_same_sender(processes: Processes) -> None:
    first = await processes.agent("sender")
    second = processes.start(role="sender")
    with pytest.raises(AgentError) as caught:
        await second.do("open")
    assert caught.value.kind == "UsageError"
    assert str(first.pid) in caught.value.text
    await first.do("put", key="k", fill=1, nbytes=1000)
    receiver = await processes.agent("receiver")
    assert await receiver.do("get", key="k") == [[1], 1000]


# --- A16: shared memory between hosts -------------------------------------------------------------


def test_shared_memory_between_hosts_is_refused_at_load() -> None:
    first, second = CHAIN["stages"]
    apart = {**CHAIN, "stages": [{**first, "host": "node-a"}, {**second, "host": "node-b"}]}
    with pytest.raises(omni_async.ConfigError, match="0->1") as caught:
        omni_async.load_deploy(apart)
    for word in ("SharedMemoryConnector", "node-a", "node-b"):
        assert word in str(caught.value)
    together = {**CHAIN, "stages": [{**first, "host": "node-a"}, {**second, "host": "node-a"}]}
    omni_async.load_deploy(together)


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
