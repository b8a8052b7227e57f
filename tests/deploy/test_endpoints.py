"""Which endpoints a deployment has, on which ports, and what is said where two meet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_async.deploy.connectors import Connector, filled_in
from omni_async.deploy.deployment import StagePlan, Wire
from omni_async.deploy.endpoints import (
    check_ports,
    counterpart,
    grouped,
    sender_port,
    sending_endpoints,
)
from omni_async.deploy.finding import find_sender
from omni_async.deploy.mistakes import Mistake, Mistakes
from omni_async.deploy.ports import Purpose, collisions
from omni_async.errors import ConfigError
from omni_async.model import EdgeName
from tests.deploy.addressed import AddressedDoubleOptions, registered

NAME = "AddressedDouble"


@pytest.fixture(autouse=True, scope="module")
def known() -> Iterator[None]:
    with registered():
        yield


def addressed(alias: str | None = "a", name: str = NAME, **options: Any) -> Connector:
    return Connector(name, AddressedDoubleOptions.model_validate(options), {}, alias)


def chain(
    *stages: Mapping[str, Any], connector: Connector | None = None, **of_all: Any
) -> dict[str, StagePlan]:
    """Each stage sends to the next; one more at the end only receives."""
    connector = addressed() if connector is None else connector
    plans: dict[str, StagePlan] = {}
    ids = [str(stage.get("id", number)) for number, stage in enumerate(stages)]
    for number, stage in enumerate(stages):
        there = ids[number + 1] if number + 1 < len(ids) else "end"
        wire = Wire(EdgeName(ids[number], there), connector, connector)
        fields = {"id": ids[number], "inputs": (), "async_chunk": True, **of_all, **stage}
        plans[ids[number]] = StagePlan(**{"outputs": (wire,), **fields})
    return plans


def problems(stages: Mapping[str, StagePlan]) -> list[Mistake]:
    mistakes = Mistakes("deploy.yaml")
    check_ports(stages, {id: ("stages", i) for i, id in enumerate(stages)}, mistakes)
    try:
        mistakes.settle()
    except ConfigError as error:
        return list(error.mistakes)
    return []


def test_an_endpoint_for_each_rank_replica_and_purpose() -> None:
    size: dict[str, Any] = {"num_replicas": 2, "tensor_parallel_size": 2}
    stages = chain({**size, "others": {"omni_kv_config": {}}})
    ports = {purpose: [] for purpose in Purpose}  # type: dict[Purpose, list[int]]
    for each in sending_endpoints(stages):
        ports[each.purpose].append(each.port)
    assert ports == {
        Purpose.REQUEST_FORWARDING: [50051, 50052, 50053, 50054],
        Purpose.KV_TRANSFER: [50151, 50152, 50153, 50154],
        Purpose.ORCHESTRATOR: [],
    }
    assert problems(stages) == []


@pytest.mark.parametrize(
    ("others", "endpoints"),
    [
        ({}, 1),
        ({"omni_kv_config": None}, 1),
        ({"omni_kv_config": {"need_send_cache": True}}, 2),
        ({"kv_transfer_config": {}, "omni_kv_config": {}}, 2),
    ],
)
def test_caches_have_an_endpoint_of_their_own(others: dict[str, Any], endpoints: int) -> None:
    assert len(sending_endpoints(chain({"others": others}))) == endpoints


def test_what_has_no_ports_has_no_endpoints() -> None:
    stages = chain({"num_replicas": 1 << 40}, connector=filled_in())
    assert sending_endpoints(stages) == []
    assert problems(stages) == []


def test_edges_of_one_connector_share_an_endpoint() -> None:
    one, same, other = addressed("a"), addressed(None), addressed("b", zmq_port=6000)
    wires = tuple(
        Wire(EdgeName("0", to), connector, filled_in())
        for to, connector in (("1", one), ("2", same), ("3", other))
    )
    stages = chain({"outputs": wires})
    assert [each.port for each in sending_endpoints(stages)] == [50051, 6000]
    assert [len(members) for _, members in grouped(wires, "sender")] == [2, 1]
    assert [len(members) for _, members in grouped(wires, "receiver")] == [3]


def test_a_word_counts_by_its_place_in_the_file() -> None:
    stages = chain({"id": "thinker"}, {"id": "talker"}, {"id": "7"})
    assert [each.port for each in sending_endpoints(stages)] == [50051, 50052, 50058]


def test_both_that_meet_are_named_with_the_way_out() -> None:
    [mistake] = problems(chain({}, {}, tensor_parallel_size=2, host="node"))
    assert mistake.path == "stages[1]"
    assert mistake.text == (
        "stage 0 rank 1 replica 0 (request_forwarding over AddressedDouble 'a') and "
        "stage 1 rank 0 replica 0 (request_forwarding over AddressedDouble 'a') would both listen "
        "at port 50052; write 'port_scheme: strided' in the extra of AddressedDouble 'a'"
    )


def test_each_stage_is_told_once() -> None:
    found = problems(chain(*[{}] * 8, tensor_parallel_size=16, num_replicas=8))
    assert [mistake.path for mistake in found] == [f"stages[{i}]" for i in range(1, 8)]


def test_hosts_that_nobody_names_may_be_one() -> None:
    [mistake] = problems(chain({}, {}, tensor_parallel_size=2))
    assert mistake.text.endswith(
        "or name the 'host' of each stage where they are on different ones"
    )
    [mistake] = problems(chain({"host": "a"}, {}, tensor_parallel_size=2))
    assert "name the 'host' of each stage" in mistake.text
    assert problems(chain({"host": "a"}, {"host": "b"}, tensor_parallel_size=2)) == []
    assert len(problems(chain({"host": "a"}, {"host": "auto"}, tensor_parallel_size=2))) == 1


def test_a_bound_address_keeps_others_out() -> None:
    wires = [
        Wire(EdgeName(str(i), "end"), addressed(None, host=f"10.0.0.{i}"), filled_in())
        for i in range(2)
    ]
    stages = chain(*({"outputs": (wire,)} for wire in wires), tensor_parallel_size=2)
    assert problems(stages) == []


def test_two_connectors_of_one_process_need_two_ports() -> None:
    wires = (
        Wire(EdgeName("0", "1"), addressed("a"), filled_in()),
        Wire(EdgeName("0", "2"), addressed("b", "OtherDouble"), filled_in()),
    )
    [mistake] = problems(chain({"outputs": wires}))
    assert "over AddressedDouble 'a') and" in mistake.text
    assert "over OtherDouble 'b') would both listen at port 50051" in mistake.text
    assert mistake.text.endswith("a connector with another zmq_port, or start fewer ranks")


def test_strided_keeps_them_apart() -> None:
    stages = chain(*[{}] * 8, connector=addressed(port_scheme="strided"), tensor_parallel_size=2)
    assert problems(stages) == []
    assert {each.scheme for each in sending_endpoints(stages)} == {"strided"}


def test_strided_is_checked_too() -> None:
    """Rank 7 of stage 0 is where the caches of stage 12 go: 112 is both 7 * 16 and 100 + 12."""
    strided = addressed(port_scheme="strided")
    kv = {"id": "12", "others": {"kv_transfer_config": {}}}
    [mistake] = problems(chain({}, kv, connector=strided, tensor_parallel_size=8, host="node"))
    assert "stage 0 rank 7 replica 0 (request_forwarding" in mistake.text
    assert "stage 12 rank 0 replica 0 (kv_transfer" in mistake.text
    assert "another zmq_port" in mistake.text


def test_vllm_omni_at_the_other_end_means_strided() -> None:
    stages = chain({}, {}, connector=addressed(peer="vllm-omni"), tensor_parallel_size=2)
    assert [each.port - 50051 for each in sending_endpoints(stages)] == [0, 16, 1, 17]
    assert problems(stages) == []


@pytest.mark.parametrize("stage", ["16", "talker", "-1", "٣"])
def test_vllm_omni_knows_sixteen_stages(stage: str) -> None:
    [mistake] = problems(chain({"id": stage}, connector=addressed(peer="vllm-omni")))
    assert mistake.path == "stages[0]"
    assert "'peer: vllm-omni' of AddressedDouble 'a'" in mistake.text
    assert "numbers 0 to 15" in mistake.text
    assert problems(chain({"id": stage}, connector=addressed(port_scheme="strided"))) == []


@pytest.mark.parametrize(
    ("size", "options", "port"),
    [
        ({"num_replicas": 17}, {"port_scheme": "strided"}, 50051 + 16 * 1024),
        ({"tensor_parallel_size": 1 << 40}, {}, 50051 + (1 << 40) - 1),
        ({"id": "99999"}, {}, 50051 + 99999),
        ({}, {"zmq_port": 65535, "port_scheme": "strided"}, None),
    ],
)
def test_a_port_that_is_none_is_refused(
    size: dict[str, Any], options: dict[str, Any], port: int | None
) -> None:
    found = problems(chain(size, connector=addressed(**options)))
    if port is None:
        assert found == []
        return
    [mistake] = found
    assert f"would listen at port {port}, which is outside of 1 to 65535" in mistake.text
    assert f"use another zmq_port than {options.get('zmq_port', 50051)}" in mistake.text


def test_a_stage_without_a_port_meets_nobody() -> None:
    """What is refused for one reason is not refused for what follows from it."""
    found = problems(chain({"num_replicas": 1 << 20}, {}, tensor_parallel_size=2))
    assert [mistake.path for mistake in found] == ["stages[0]"]


@pytest.mark.parametrize(
    ("sender", "receiver", "expected"),
    [
        (1, 1, [0]),
        (4, 4, [0, 1, 2, 3]),
        (2, 4, [0, 0, 1, 1]),
        (4, 2, [0, 2]),
        (1, 3, [0, 0, 0]),
        (3, 2, [0, 1]),
    ],
)
def test_ranks_have_their_counterparts(sender: int, receiver: int, expected: list[int]) -> None:
    from_, to = (chain({"tensor_parallel_size": size})["0"] for size in (sender, receiver))
    assert [counterpart(from_, to, rank, 0).rank for rank in range(receiver)] == expected


@pytest.mark.parametrize(
    ("sender", "receiver", "expected"),
    [(1, 3, [0, 0, 0]), (2, 4, [0, 1, 0, 1]), (4, 2, [0, 1])],
)
def test_replicas_have_their_counterparts(sender: int, receiver: int, expected: list[int]) -> None:
    from_, to = (chain({"num_replicas": size})["0"] for size in (sender, receiver))
    assert [counterpart(from_, to, 0, replica).replica for replica in range(receiver)] == expected


def test_who_is_not_in_the_file_has_its_own_like() -> None:
    plan = chain({})["0"]
    assert counterpart(plan, plan, 3, 2) == (3, 2)


SIZES = st.tuples(st.integers(1, 8), st.integers(1, 16))


@given(st.lists(SIZES, min_size=1, max_size=8), st.booleans(), st.sampled_from([None, "node"]))
def test_what_check_ports_lets_through_meets_nobody(
    sizes: list[tuple[int, int]], strided: bool, host: str | None
) -> None:
    connector = addressed(port_scheme="strided" if strided else "compact")
    stages = chain(
        *(
            {
                "num_replicas": replicas,
                "tensor_parallel_size": ranks,
                "others": {"omni_kv_config": 1},
            }
            for replicas, ranks in sizes
        ),
        connector=connector,
        host=host,
    )
    ports = [each.port for each in sending_endpoints(stages)]
    refused = bool(problems(stages))
    assert refused is (len(ports) != len(set(ports)) or max(ports) > 65535)
    assert refused is any(collisions(sending_endpoints(stages)))


@given(SIZES, SIZES, st.sampled_from([{}, {"port_scheme": "strided"}, {"peer": "vllm-omni"}]))
def test_a_receiver_computes_where_its_sender_listens(
    sender: tuple[int, int], receiver: tuple[int, int], options: dict[str, Any]
) -> None:
    connector = addressed(**options)
    keys = ("num_replicas", "tensor_parallel_size")
    sizes: list[dict[str, Any]] = [dict(zip(keys, s, strict=True)) for s in (sender, receiver)]
    stages = chain(*sizes, connector=connector)
    [wire] = stages["0"].outputs
    listening = {
        sender_port(stages, "0", connector, rank, replica): (rank, replica)
        for replica in range(sender[0])
        for rank in range(sender[1])
    }
    for replica in range(receiver[0]):
        for rank in range(receiver[1]):
            other = counterpart(stages["0"], stages["1"], rank, replica)
            found = find_sender(stages, wire, other, {}, None)
            assert listening[found.port] == other
