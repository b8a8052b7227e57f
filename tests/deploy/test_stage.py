"""open_stage: one call opens all edges of a stage, over real transports."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from omni_async import BackendUnavailable, ConfigError, UsageError, open_transport
from omni_async.deploy import Deploy, Stage, load_deploy, open_stage
from omni_async.deploy import stage as stage_module
from tests.deploy.addressed import registered

CHAIN = {
    "stages": [{"stage_id": 0}, {"stage_id": 1}, {"stage_id": 2}],
    "edges": [{"from": 0, "to": 1}, {"from": 1, "to": 2}, {"from": 2, "to": 0}],
}


async def test_a_value_goes_round_all_stages(namespace: str) -> None:
    deploy = load_deploy(CHAIN)
    async with (
        open_stage(deploy, 2, namespace=namespace) as last,
        open_stage(deploy, "0", namespace=namespace) as first,
        open_stage(deploy, stage_id=1, rank=0, replica=0, namespace=namespace) as middle,
    ):
        await first.output(1).put("req-1", [1])
        item = await middle.input("0").get("req-1", timeout=10)
        await middle.output("2").put("req-1", [*item.value, 2])
        item = await last.input(1).get("req-1", timeout=10)
        await last.output("0").put("req-1", [*item.value, 3])
        assert (await first.input(2).get("req-1", timeout=10)).value == [1, 2, 3]

        health = middle.health()
        assert set(health) == {"sender SharedMemoryConnector", "receiver SharedMemoryConnector"}
        assert health["sender SharedMemoryConnector"].puts == 1
        assert health["receiver SharedMemoryConnector"].gets == 1
        assert middle.id == "1"
        assert repr(middle) == "<Stage 1: from ['0'], to ['2']>"


async def test_one_sender_serves_all_outgoing_edges(namespace: str) -> None:
    deploy = load_deploy(
        {**CHAIN, "edges": [{"from": 0, "to": 1}, {"from": 0, "to": 2}, {"from": 1, "to": 2}]}
    )
    async with (
        open_stage(deploy, 0, namespace=namespace) as first,
        open_stage(deploy, 1, namespace=namespace) as middle,
        open_stage(deploy, 2, namespace=namespace) as last,
    ):
        assert list(first.transports) == ["sender SharedMemoryConnector"]
        assert list(last.transports) == ["receiver SharedMemoryConnector"]
        await first.output(1).put("k", "left")
        await first.output(2).put("k", "right")
        await middle.output(2).put("k", "below")
        assert (await middle.input(0).get("k", timeout=10)).value == "left"
        assert (await last.input(0).get("k", timeout=10)).value == "right"
        assert (await last.input(1).get("k", timeout=10)).value == "below"


async def test_inputs_with_other_options_get_a_receiver_of_their_own(namespace: str) -> None:
    def shm(ttl: float) -> dict[str, Any]:
        return {"name": "SharedMemoryConnector", "extra": {"buffer_ttl_seconds": ttl}}

    deploy = load_deploy(
        {
            "stages": [
                {"stage_id": 0},
                {"stage_id": 1},
                {
                    "stage_id": 2,
                    "input_connectors": {"from_stage_0": shm(1.0), "from_stage_1": shm(2.0)},
                },
            ]
        }
    )
    async with open_stage(deploy, 2, namespace=namespace) as last:
        assert list(last.transports) == [
            "receiver SharedMemoryConnector",
            "receiver SharedMemoryConnector 2",
        ]
        assert last.input(0).transport is not last.input(1).transport


async def test_an_edge_that_is_not_there_is_named(namespace: str) -> None:
    async with open_stage(load_deploy(CHAIN), 1, namespace=namespace) as middle:
        with pytest.raises(UsageError, match="no edge leads from stage 2 to 1; known: 0"):
            middle.input(2)
        with pytest.raises(UsageError, match="no edge leads from stage 1 to 0; known: 2"):
            middle.output("0")


async def test_a_stage_that_is_not_there_is_named() -> None:
    with pytest.raises(UsageError, match="has no stage '7'"):
        async with open_stage(load_deploy(CHAIN), 7):
            pass


async def test_opening_is_all_or_nothing(namespace: str) -> None:
    deploy = load_deploy(
        {
            "stages": [
                {"stage_id": 0},
                {
                    "stage_id": 1,
                    "input_connectors": {"from_stage_0": {"name": "YuanrongConnector"}},
                    "output_connectors": {"to_stage_0": {"name": "shm"}},
                },
            ]
        }
    )
    for _ in range(2):  # the second time would meet what the first one left open
        with pytest.raises((ConfigError, BackendUnavailable)):
            async with open_stage(deploy, 1, namespace=namespace):
                pass
    async with open_transport("shm", role="sender", stage=1, namespace=namespace):
        pass


async def test_closing_closes_all_even_after_an_error(namespace: str) -> None:
    opened: list[Stage] = []

    async def live() -> None:
        async with open_stage(load_deploy(CHAIN), 1, namespace=namespace) as middle:
            opened.append(middle)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await live()
    assert all(transport.closed for transport in opened[0].transports.values())


async def test_cancellation_while_open_closes_all(namespace: str) -> None:
    opened: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def live() -> None:
        async with open_stage(load_deploy(CHAIN), 1, namespace=namespace) as middle:
            opened.set_result(middle)
            await asyncio.Event().wait()

    task = asyncio.create_task(live())
    middle = await opened
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert all(transport.closed for transport in middle.transports.values())


# --- closing and opening, where something fails ---------------------------------------------------


async def test_one_that_fails_to_close_does_not_keep_the_others_open(
    namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Stage] = []

    async def live() -> None:
        async with open_stage(load_deploy(CHAIN), 1, namespace=namespace) as middle:
            opened.append(middle)
            last = middle.transports["receiver SharedMemoryConnector"]
            close = last._close

            async def failing(linger: float) -> None:
                await close(linger)
                raise ZeroDivisionError

            monkeypatch.setattr(last, "_close", failing)

    with pytest.raises(ZeroDivisionError):
        await live()
    assert all(transport.closed for transport in opened[0].transports.values())


# --- ranks and replicas ---------------------------------------------------------------------------


def sized(sender: dict[str, Any], receiver: dict[str, Any]) -> Deploy:
    return load_deploy(
        {
            "stages": [{"stage_id": 0, **sender}, {"stage_id": 1, **receiver}],
            "edges": [{"from": 0, "to": 1}],
        }
    )


async def exchange(
    deploy: Deploy, namespace: str, senders: list[tuple[int, int]], receivers: list[tuple[int, int]]
) -> dict[tuple[int, int], Any]:
    """What each receiver gets when each sender puts its own rank and replica for all who ask."""
    async with contextlib.AsyncExitStack() as stack:
        for rank, replica in senders:
            stage = await stack.enter_async_context(
                open_stage(deploy, 0, rank=rank, replica=replica, namespace=namespace)
            )
            for transport in stage.transports.values():
                stack.callback(transport.abort)  # not everything is fetched
            await stage.output(1).put("k", (rank, replica), consumers=100)
        found = {}
        for rank, replica in receivers:
            stage = await stack.enter_async_context(
                open_stage(deploy, 1, rank=rank, replica=replica, namespace=namespace)
            )
            found[rank, replica] = (await stage.input(0).get("k", timeout=10)).value
        return found


@pytest.fixture(params=["shm", "memory", "addressed"])
def wired(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """What makes the edge from 0 to 1 one over each kind of connector."""
    end = {"name": request.param}
    with registered():
        yield {"output_connectors": {"to_stage_1": end}}


@pytest.mark.parametrize(
    ("sender", "receiver", "expected"),
    [
        (2, 2, {0: 0, 1: 1}),
        (1, 2, {0: 0, 1: 0}),
        (2, 4, {0: 0, 1: 0, 2: 1, 3: 1}),
        (4, 2, {0: 0, 1: 2}),
    ],
)
async def test_each_rank_listens_to_its_counterpart(
    sender: int, receiver: int, expected: dict[int, int], wired: dict[str, Any], namespace: str
) -> None:
    first, second = ({"tensor_parallel_size": size} for size in (sender, receiver))
    deploy = sized({**first, **wired}, second)
    found = await exchange(
        deploy, namespace, [(r, 0) for r in range(sender)], [(r, 0) for r in range(receiver)]
    )
    assert found == {(to, 0): (from_, 0) for to, from_ in expected.items()}


async def test_each_replica_listens_to_its_counterpart(
    wired: dict[str, Any], namespace: str
) -> None:
    deploy = sized(
        {"num_replicas": 2, "tensor_parallel_size": 2, **wired},
        {"num_replicas": 3, "tensor_parallel_size": 1},
    )
    everyone = [(rank, replica) for replica in range(2) for rank in range(2)]
    found = await exchange(deploy, namespace, everyone, [(0, 0), (0, 1), (0, 2)])
    assert found == {(0, 0): (0, 0), (0, 1): (0, 1), (0, 2): (0, 0)}


async def test_ranks_that_the_file_does_not_know_of_find_their_like(namespace: str) -> None:
    found = await exchange(sized({}, {}), namespace, [(0, 0), (3, 2)], [(3, 2), (0, 0)])
    assert found == {(0, 0): (0, 0), (3, 2): (3, 2)}


async def test_the_environment_tells_rank_and_replica(
    namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    deploy = sized({"tensor_parallel_size": 2, "num_replicas": 4}, {})
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("VLLM_OMNI_REPLICA_ID", "3")
    async with open_stage(deploy, 0, namespace=namespace) as stage:
        assert next(iter(stage.transports.values())).endpoint == (namespace, "0", 1, 3)
    async with open_stage(deploy, 0, rank=0, replica=0, namespace=namespace) as stage:
        assert next(iter(stage.transports.values())).endpoint == (namespace, "0", 0, 0)
    monkeypatch.setenv("LOCAL_RANK", "x")
    with pytest.raises(ConfigError, match="LOCAL_RANK"):
        async with open_stage(deploy, 0, namespace=namespace):
            pass


@pytest.mark.parametrize(("rank", "replica", "text"), [
    (2, 0, r"no rank 2 \(from argument\): its tensor_parallel_size is 2"),
    (0, 1, r"no replica 1 \(from argument\): its num_replicas is 1"),
    (None, 0, r"no rank 5 \(from LOCAL_RANK\)"),
    (-1, 0, "rank must be an int of at least 0, not -1"),
    (True, 0, "rank must be an int"),
    (0, "0", "replica must be an int"),
])  # fmt: skip
async def test_who_is_outside_of_the_file_is_refused(
    rank: Any, replica: Any, text: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "5")
    deploy = sized({"tensor_parallel_size": 2, "num_replicas": 1}, {})
    with pytest.raises(UsageError, match=text):
        async with open_stage(deploy, 0, rank=rank, replica=replica, namespace=namespace):
            pass


async def test_where_ports_count_ranks_the_file_has_to_know_them(namespace: str) -> None:
    with registered():
        deploy = sized({"output_connectors": {"to_stage_1": {"name": "addressed"}}}, {})
    for stage in (0, 1):
        with pytest.raises(UsageError, match=r"no rank 1 .* its tensor_parallel_size is 1"):
            async with open_stage(deploy, stage, rank=1, namespace=namespace):
                pass


async def test_a_receiver_that_no_sender_can_serve_is_refused(namespace: str) -> None:
    deploy = sized({"tensor_parallel_size": 2}, {})
    async with open_stage(deploy, 1, rank=1, namespace=namespace):
        pass
    with pytest.raises(UsageError, match="write the tensor_parallel_size of stage 1"):
        async with open_stage(deploy, 1, rank=2, namespace=namespace):
            pass


async def test_another_sender_may_be_expected_later(namespace: str) -> None:
    where: dict[str, Any] = {"namespace": namespace, "stage": 0, "role": "sender"}
    async with (
        open_transport("shm", rank=0, **where) as zero,
        open_transport("shm", rank=1, replica=2, **where) as one,
        open_transport("shm", role="receiver", stage=1, namespace=namespace) as last,
    ):
        await zero.put("0", "1", "a", "zero")
        await one.put("0", "1", "b", "one")
        assert (await last.get("0", "1", "a", timeout=5)).value == "zero"
        last.expect_sender(0, 1, 2)
        assert (await last.get("0", "1", "b", timeout=5)).value == "one"
        with pytest.raises(UsageError, match="receiver"):
            zero.expect_sender(0, 1, 2)


# --- addresses ------------------------------------------------------------------------------------


@pytest.fixture
def specs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What stages open: role, rank, replica and options."""
    opened: list[Any] = []

    def noting(spec: Any, **where: Any) -> Any:
        opened.append((where["role"], where["rank"], where["replica"], spec["extra"]))
        return open_transport(spec, **where)

    monkeypatch.setattr(stage_module, "open_transport", noting)
    with registered():
        yield opened


def fan_in(**more: Any) -> Deploy:
    """Stages 0 and 1 send to 2, which sends to 0."""
    sizes = {"tensor_parallel_size": 2, "num_replicas": 3}
    ends = {"input_connectors": {"from_stage_0": "a", "from_stage_1": "a"}}
    return load_deploy(
        {
            "connectors": {
                "a": {
                    "name": "addressed",
                    "extra": {"buffer_ttl_seconds": 9.0, "port_scheme": "strided"},
                }
            },
            "stages": [
                {"stage_id": 0, **sizes},
                {"stage_id": 1, **sizes, **more},
                {"stage_id": 2, **sizes, **ends, "output_connectors": {"to_stage_0": "a"}},
            ],
        }
    )


async def test_resolve_tells_where_each_sender_is(namespace: str, specs: list[Any]) -> None:
    def resolve(stage: str, rank: int, replica: int) -> tuple[str, int]:
        return f"host-{stage}", 5000 + 10 * rank + replica

    async with open_stage(
        fan_in(), 2, rank=1, replica=2, namespace=namespace, resolve=resolve
    ) as last:
        assert set(last.inputs) == {"0", "1"}
        assert last.input(0).transport is not last.input(1).transport
        assert set(last.health()) == {
            "sender AddressedDouble",
            "receiver AddressedDouble",
            "receiver AddressedDouble 2",
        }
    own = {"buffer_ttl_seconds": 9.0, "port_scheme": "strided"}
    there = {**own, "sender_zmq_port": 5012}
    assert specs == [
        ("sender", 1, 2, {**own, "zmq_port": 50051 + 2 + 16 + 2048}),
        ("receiver", 1, 2, {**there, "sender_host": "host-0"}),
        ("receiver", 1, 2, {**there, "sender_host": "host-1"}),
    ]


async def test_file_and_environment_tell_where_senders_are(
    namespace: str, specs: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMNI_ASYNC_STAGE_0_HOST", "[fd00::5]:7000")
    async with open_stage(fan_in(host="node-1"), 2, rank=1, namespace=namespace):
        pass
    assert [
        (extra["sender_host"], extra["sender_zmq_port"])
        for role, _, _, extra in specs
        if role == "receiver"
    ] == [("fd00::5", 7000), ("node-1", 50051 + 1 + 16)]


async def test_an_error_of_resolve_arrives_and_leaves_nothing_open(
    namespace: str, specs: list[Any]
) -> None:
    def resolve(stage: str, rank: int, replica: int) -> tuple[str, int]:
        if stage == "1":
            raise ZeroDivisionError
        return "host", 5

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            async with open_stage(fan_in(), 2, namespace=namespace, resolve=resolve):
                pass
    assert specs == []


async def test_a_busy_port_opens_nothing(namespace: str, specs: list[Any]) -> None:
    """The sender that comes second closes what its stage had opened before."""
    ends = {"to_stage_2": {"name": "shm"}, "to_stage_1": {"name": "addressed"}}
    deploy = load_deploy(
        {
            "stages": [
                {"stage_id": 0, "output_connectors": ends},
                {"stage_id": 1},
                {"stage_id": 2},
            ]
        }
    )
    busy = {"name": "addressed", "extra": {"zmq_port": 50051}}
    async with open_transport(busy, role="sender", stage="x", namespace=namespace):
        for _ in range(2):
            with pytest.raises(UsageError, match="50051"):
                async with open_stage(deploy, 0, namespace=namespace):
                    pass
    assert [role for role, _, _, _ in specs] == ["sender"] * 4
    async with open_stage(deploy, 0, namespace=namespace) as stage:
        assert set(stage.transports) == {"sender SharedMemoryConnector", "sender AddressedDouble"}
