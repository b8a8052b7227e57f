"""The example as a newcomer runs it: behind the real vllm-router, each token that of a single process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from typing import Any, Literal

import pytest

pytest.importorskip("torch")
pytest.importorskip("vllm_router")
aiohttp = pytest.importorskip("aiohttp")
psutil = pytest.importorskip("psutil")

from examples.pd_disaggregation.client import Client, Wanted, computed, prompts  # noqa: E402
from examples.pd_disaggregation.cluster import Cluster, Instance, Plan, Role  # noqa: E402
from examples.pd_disaggregation.run import main, run, settled  # noqa: E402
from tests.engines import need_mooncake, need_nixl  # noqa: E402

pytestmark = pytest.mark.timeout(240)  # five processes may start slowly beside others

Mode = Literal["write", "read"]
NEEDS = {"mooncake": need_mooncake, "nixl": need_nixl}
BACKENDS = ["shm", "mooncake", "nixl"]
TTL = 6.0
"""Seconds after which the router has forgotten who does not beat any more."""


@pytest.fixture(scope="module", autouse=True)
def unmeasured() -> Iterator[None]:
    """Its processes are killed at the end, so what coverage would find in them is lost, and they start sooner."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("COVERAGE_PROCESS_CONFIG", raising=False)
        yield


def right(plan: Plan, requests: int, **options: Any) -> dict[str, Any]:
    """One run, of which everything is right."""
    NEEDS.get(plan.backend, lambda: None)()
    result = run(plan, requests, 8, **options)
    assert result["ok"], result
    return result


def of_this(cluster: Cluster) -> list[str]:
    """Processes of it, ranks included."""
    return [
        " ".join(process.cmdline())
        for process in psutil.process_iter(["pid", "cmdline"])
        if any(cluster.namespace in word for word in process.info["cmdline"] or ())
    ]


# --- in every run ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("backend", "mode", "prefill_tp", "decode_tp"),
    [("mooncake", "read", 2, 1), ("nixl", "write", 1, 2)],
)
def test_tokens_are_those_of_a_single_process(
    backend: str, mode: Mode, prefill_tp: int, decode_tp: int
) -> None:
    right(Plan(backend, mode, prefill_tp, decode_tp), 4)


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--backend", "no-such"]) == 2
    assert "no-such" in capsys.readouterr().err
    assert main(["--requests", "3", "--tokens", "4", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["right"], result["tokens"], result["mode"]) == (3, 12, "write")


# --- instances that go on -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(Plan()) as found:
        found.wait()
        yield found
    assert not of_this(found)


@pytest.mark.soak
async def test_clients_that_go_leave_no_block(cluster: Cluster) -> None:
    async with Client(cluster.router.url) as client:
        await client.ready()
        gone = [asyncio.create_task(client.complete("p" * 99, 2000, stream=True)) for _ in range(4)]
        await asyncio.sleep(1.0)
        for task in gone:
            task.cancel()
        await asyncio.wait(gone)
        stats = await settled(client, cluster)
        assert [one["free"] for one in stats] == [one["blocks"] for one in stats]


@pytest.mark.soak
async def test_what_instances_answer_besides(cluster: Cluster) -> None:
    async with Client(cluster.router.url) as client:
        await client.ready()
        for body in ({"prompt": 7}, {"prompt": ""}, {"prompt": "a", "max_tokens": 0}):
            async with client.session.post(
                f"{cluster.router.url}/v1/completions", json={"model": "m", **body}
            ) as response:
                assert response.status >= 400
        for instance in cluster.instances:
            for path in ("/health", "/health_generate", "/v1/models"):
                async with client.session.get(instance.url + path) as response:
                    assert response.status == 200
            body = {"prompt": "ab"}
            told = await client.ask(f"{instance.url}/tokenize", body)
            assert told["tokens"] == [97, 98]
            told = await client.ask(f"{instance.url}/v1/completions/render", body)
            assert told[0]["prompt_token_ids"] == [97, 98]
        [wanted] = computed(["by itself"], 4)
        for instance in cluster.instances:  # without a proxy it does both
            async with Client(instance.url) as direct:
                assert (await direct.complete(wanted.prompt, 4)).is_right(wanted)
        stats = await settled(client, cluster)
        assert [one["free"] for one in stats] == [one["blocks"] for one in stats]


# --- all combinations -----------------------------------------------------------------------------


@pytest.mark.soak
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mode", ["write", "read"])
@pytest.mark.parametrize(("prefill_tp", "decode_tp"), [(1, 1), (2, 1), (1, 2), (2, 2)])
def test_all_combinations(backend: str, mode: Mode, prefill_tp: int, decode_tp: int) -> None:
    right(Plan(backend, mode, prefill_tp, decode_tp), 16)


@pytest.mark.soak
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mode", ["write", "read"])
def test_64_requests_at_once(backend: str, mode: Mode) -> None:
    worst = []
    for _ in range(3):  # whoever else uses the cores makes loops late, too
        result = right(Plan(backend, mode), 64, rounds=4, gaps=True)
        worst.append(max(one["extra_p999_ms"] for one in result["gaps"]))
        if worst[-1] <= 10:
            break
    # 10 ms is the goal on a machine that does nothing else; this one may.
    assert min(worst) <= 30, worst


@pytest.mark.soak
@pytest.mark.parametrize("backend", BACKENDS)
def test_two_of_each(backend: str) -> None:
    result = right(Plan(backend, "write", 1, 1, 2, 2), 32)
    assert min(one["requests"] for one in result["instances"]) >= 8


# --- while traffic goes on ------------------------------------------------------------------------


class Traffic:
    """Completions one after the other by each of some clients, as long as it is entered.

    An answer with wrong tokens fails the test, whenever it comes. Requests that fail are counted.
    """

    def __init__(self, cluster: Cluster, wanted: list[Wanted], clients: int = 4) -> None:
        self._client = Client(cluster.router.url)
        self._wanted = wanted
        self._clients = clients
        self._tasks: list[asyncio.Task[None]] = []
        self.right = 0
        self.failed: list[str] = []

    async def more(self, count: int) -> None:
        """Until so many more have been answered right."""
        wanted = self.right + count
        for _ in range(6000):
            for task in self._tasks:
                if task.done():
                    task.result()
            if self.right >= wanted:
                return
            await asyncio.sleep(0.01)
        raise AssertionError(f"{wanted - self.right} are missing; failed: {self.failed[-3:]}")

    async def _one_after_the_other(self, first: int) -> None:
        number = first
        while True:
            wanted, number = self._wanted[number % len(self._wanted)], number + 1
            try:
                answer = await self._client.complete(
                    wanted.prompt, len(wanted.said), stream=number % 2 == 0
                )
            except (aiohttp.ClientError, json.JSONDecodeError) as error:
                self.failed.append(repr(error))
                await asyncio.sleep(0.05)
                continue
            if answer.status == 200:
                assert answer.is_right(wanted), (wanted, answer)
                self.right += 1
            else:
                self.failed.append(answer.text)
                await asyncio.sleep(0.05)

    async def __aenter__(self) -> Traffic:
        await self._client.ready()
        works = [self._one_after_the_other(first * 5) for first in range(self._clients)]
        self._tasks = [asyncio.create_task(work) for work in works]
        await self.more(10)
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._client.__aexit__(None, None, None)


@pytest.fixture(scope="module")
def wanted() -> list[Wanted]:
    return computed(prompts(12), 8)


@pytest.fixture(params=BACKENDS)
def two(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Two instances of each role, in mode write over one backend."""
    NEEDS.get(request.param, lambda: None)()
    with Cluster(Plan(request.param, "write", 1, 1, 2, 2)) as found:
        found.wait()
        yield found
    assert not of_this(found)


async def all_free(cluster: Cluster) -> None:
    async with Client(cluster.router.url) as client:
        stats = await settled(client, cluster, 30.0)
        assert [one["free"] for one in stats] == [one["blocks"] for one in stats], stats


async def requests_of(instance: Instance) -> int:
    async with Client(instance.url) as client:
        count: int = (await client.ask(f"{instance.url}/stats"))["requests"]
        return count


@pytest.mark.soak
async def test_the_router_is_restarted(two: Cluster, wanted: list[Wanted]) -> None:
    async with Traffic(two, wanted) as traffic:
        two.router.kill()
        await asyncio.sleep(1.0)
        two.router.begin()
        await asyncio.to_thread(two.router.wait)
        await traffic.more(10)  # they have told it of themselves
        await asyncio.sleep(2.5)  # all of them
        failed = len(traffic.failed)
        await traffic.more(40)
        assert len(traffic.failed) == failed, traffic.failed[failed:]
    await all_free(two)


@pytest.mark.soak
@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_an_instance_is_killed_and_started_again(
    two: Cluster, wanted: list[Wanted], role: Role
) -> None:
    instance = two.of(role)[0]
    async with Traffic(two, wanted) as traffic:
        instance.kill()
        await traffic.more(10)  # the others go on
        await asyncio.sleep(TTL)
        failed = len(traffic.failed)
        await traffic.more(20)
        assert len(traffic.failed) == failed, traffic.failed[failed:]
        instance.begin()
        await asyncio.to_thread(instance.wait)
        await asyncio.sleep(1.0)
        await traffic.more(40)
        assert len(traffic.failed) == failed, traffic.failed[failed:]
        assert await requests_of(instance) >= 5
    await all_free(two)


@pytest.mark.soak
@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_an_instance_leaves_without_a_request_lost(
    two: Cluster, wanted: list[Wanted], role: Role
) -> None:
    instance = two.of(role)[0]
    async with Traffic(two, wanted) as traffic:
        os.kill(instance.pid, signal.SIGTERM)
        for _ in range(600):
            if not instance.alive:
                break
            await asyncio.sleep(0.05)
        assert not instance.alive
        await traffic.more(20)
        assert not traffic.failed
    two.instances.remove(instance)
    await all_free(two)


@pytest.mark.soak
@pytest.mark.parametrize("backend", BACKENDS)
async def test_instances_are_added(backend: str, wanted: list[Wanted]) -> None:
    NEEDS.get(backend, lambda: None)()
    with Cluster(Plan(backend)) as cluster:
        await asyncio.to_thread(cluster.wait)
        async with Traffic(cluster, wanted) as traffic:
            added = [cluster.add("prefill"), cluster.add("decode")]
            for instance in added:
                await asyncio.to_thread(instance.wait)
            await asyncio.sleep(1.0)
            await traffic.more(40)
            assert [await requests_of(one) >= 5 for one in added] == [True, True]
            assert not traffic.failed
        await all_free(cluster)
