"""The port formula: the documented table, and that nobody meets anybody unless it is told."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_async.deploy.ports import (
    Purpose,
    Scheme,
    SendingEndpoint,
    collisions,
    is_port,
    meetings,
    stage_number,
    way_out,
)

BASE = 50051


def endpoint(
    stage: int = 0,
    rank: int = 0,
    replica: int = 0,
    *,
    size: int = 1,
    purpose: Purpose = Purpose.REQUEST_FORWARDING,
    base: int = BASE,
    scheme: Scheme = "compact",
    host: str | None = "node",
    address: str | None = None,
    connector: str = "Some",
) -> SendingEndpoint:
    return SendingEndpoint(
        connector, str(stage), stage, rank, replica, size, purpose, base, scheme, host, address
    )


def family(replicas: int, size: int, stage: int = 0, **more: Any) -> list[SendingEndpoint]:
    first = endpoint(stage, size=size)._replace(**more)
    return [
        first._replace(rank=rank, replica=replica)
        for replica in range(replicas)
        for rank in range(size)
    ]


def test_the_documented_table() -> None:
    ports = [each.port for each in family(2, 2, purpose=Purpose.KV_TRANSFER)]
    assert ports == [50151, 50152, 50153, 50154]
    assert endpoint(purpose=Purpose.ORCHESTRATOR).port == 50251
    assert [each.port for each in family(2, 2)] == [50051, 50052, 50053, 50054]


@pytest.mark.parametrize(
    ("stage", "rank", "replica", "purpose", "port"),
    [
        (0, 0, 0, Purpose.REQUEST_FORWARDING, 50051),
        (2, 0, 0, Purpose.REQUEST_FORWARDING, 50053),
        (0, 1, 0, Purpose.REQUEST_FORWARDING, 50067),
        (3, 1, 2, Purpose.KV_TRANSFER, 50051 + 100 + 2048 + 16 + 3),
        (15, 0, 1, Purpose.ORCHESTRATOR, 50051 + 200 + 1024 + 15),
    ],
)
def test_strided_is_the_peers_formula(
    stage: int, rank: int, replica: int, purpose: Purpose, port: int
) -> None:
    assert endpoint(stage, rank, replica, size=2, purpose=purpose, scheme="strided").port == port


@pytest.mark.parametrize(
    ("stage", "number"),
    [("0", 0), ("12", 12), ("007", 7), ("0" * 9, 0), ("talker", 5), ("-1", 5), ("²", 5), ("1a", 5)],
)
def test_a_word_counts_by_its_position(stage: str, number: int) -> None:
    assert stage_number(stage, 5) == number


def test_a_number_beyond_all_ports_leads_to_none() -> None:
    for stage in ("65535", "123456", "9" * 5000):
        number = stage_number(stage, 0)
        assert not is_port(endpoint()._replace(number=number, base_port=1).port)


@pytest.mark.parametrize(("port", "right"), [(0, 0), (1, 1), (65535, 1), (65536, 0), (-1, 0)])
def test_ports_end_where_they_end(port: int, right: int) -> None:
    assert is_port(port) is bool(right)


def test_the_known_collision_names_both() -> None:
    """Stage 0 rank 1 and stage 1 rank 0."""
    both = [*family(1, 2, 0), *family(1, 2, 1)]
    [collision] = collisions(both)
    assert collision.port == 50052
    assert str(collision.first) == "stage 0 rank 1 replica 0 (request_forwarding over Some)"
    assert str(collision.second) == "stage 1 rank 0 replica 0 (request_forwarding over Some)"
    assert way_out(both) == "write 'port_scheme: strided' in the extra of Some"


def test_the_way_out_is_one() -> None:
    """Strided ports meet too, and two connectors of one process meet under either scheme."""
    wide = [*family(1, 16, 0), *family(1, 16, 12, purpose=Purpose.KV_TRANSFER)]
    wide = [each._replace(scheme="strided") for each in wide]
    assert any(collisions(wide))
    assert "another zmq_port" in way_out(wide)
    assert "another zmq_port" in way_out([endpoint(), endpoint(connector="Other")])


def test_a_way_out_beyond_the_last_port_is_none() -> None:
    both = [*family(4, 2, 0, base_port=64000), *family(4, 2, 1, base_port=64000)]
    assert any(collisions(both))
    assert "another zmq_port" in way_out(both)


@pytest.mark.parametrize(
    ("one", "other", "meet"),
    [
        (("a", None), ("a", None), True),
        (("a", None), ("b", None), False),
        (("a", None), (None, None), True),
        ((None, None), (None, None), True),
        (("a", "10.0.0.1"), ("a", "10.0.0.2"), False),
        (("a", "10.0.0.1"), ("a", None), True),
        (("a", "::1"), ("b", "::1"), False),
    ],
)
def test_only_one_host_and_address_can_meet(
    one: tuple[str | None, str | None], other: tuple[str | None, str | None], meet: bool
) -> None:
    both = [endpoint(host=host, address=address) for host, address in (one, other)]
    assert any(collisions(both)) is meet


HOSTS = st.sampled_from(["a", "b", None])
PURPOSES = st.lists(st.sampled_from(list(Purpose)), unique=True, min_size=1)


@st.composite
def topologies(draw: st.DrawFn) -> list[SendingEndpoint]:
    """1 to 8 stages, TP 1 to 16, DP 1 to 8, up to three purposes, any mixture of hosts and schemes."""
    found: list[SendingEndpoint] = []
    schemes = draw(st.sampled_from([["compact"], ["strided"], ["compact", "strided"]]))
    bases = draw(st.sampled_from([[BASE], [BASE, BASE + 1000], [1, BASE, 64000]]))
    for stage in range(draw(st.integers(1, 8))):
        more: dict[str, Any] = {
            "scheme": draw(st.sampled_from(schemes)),
            "host": draw(HOSTS),
            "base_port": draw(st.sampled_from(bases)),
        }
        replicas, size = draw(st.integers(1, 8)), draw(st.integers(1, 16))
        for purpose in draw(PURPOSES):
            found += family(replicas, size, stage, purpose=purpose, **more)
    return found


def by_the_book(each: SendingEndpoint) -> int:
    """The issue's words, once more: rank beside, not inside, the side channel's port."""
    if each.scheme == "strided":
        return (
            each.base_port
            + each.purpose.value
            + each.replica * 1024
            + each.rank * 16
            + int(each.stage)
        )
    side_channel = each.base_port + each.purpose.value + int(each.stage)
    side_channel += each.replica * each.tensor_parallel_size
    return side_channel + each.rank


def clashes(endpoints: Sequence[SendingEndpoint]) -> set[frozenset[SendingEndpoint]]:
    """Every two compared with each other."""
    ports = [by_the_book(each) for each in endpoints]
    return {
        frozenset((endpoints[i], endpoints[j]))
        for i, j in itertools.combinations(range(len(endpoints)), 2)
        if ports[i] == ports[j]
        and (
            endpoints[i].host == endpoints[j].host or None in (endpoints[i].host, endpoints[j].host)
        )
    }


@given(topologies())
def test_exactly_the_true_collisions_are_found(endpoints: list[SendingEndpoint]) -> None:
    assert [each.port for each in endpoints] == [by_the_book(each) for each in endpoints]
    chosen = endpoints[:: max(1, len(endpoints) // 150)]  # all pairs of 3,000 would take a second
    found = [frozenset(collision) for collision in collisions(chosen)]
    assert len(found) == len(set(found))
    assert set(found) == clashes(chosen)


@given(topologies())
def test_what_is_not_refused_has_a_port_of_its_own(endpoints: list[SendingEndpoint]) -> None:
    assert any(meetings(endpoints)) is any(collisions(endpoints))
    if any(collisions(endpoints)):
        return
    for host in ("a", "b"):
        here = [each.port for each in endpoints if each.host in (host, None)]
        assert len(here) == len(set(here))


@given(topologies())
def test_what_is_advised_helps(endpoints: list[SendingEndpoint]) -> None:
    if "strided" in way_out(endpoints):
        strided = [each._replace(scheme="strided") for each in endpoints]
        assert not any(collisions(strided))
        assert all(is_port(each.port) for each in strided)


def test_the_largest_topology_takes_milliseconds() -> None:
    endpoints = [
        each
        for stage in range(8)
        for purpose in Purpose
        for each in family(8, 16, stage, purpose=purpose, base_port=BASE + 500 * stage)
    ]
    assert len(endpoints) == 8 * 16 * 8 * 3
    times = []
    for _ in range(5):
        began = time.perf_counter()
        assert sum(1 for _ in collisions(endpoints)) == 448
        times.append(time.perf_counter() - began)
    assert min(times) < 0.02
