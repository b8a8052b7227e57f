"""Which sending endpoints a deployment has, on which ports, and who sends to whom.

In: the plans of its stages. Out: endpoints, mistakes where ports meet, a receiver's counterpart.
Never: opens a socket, reads the environment.

An endpoint has a port where its connector is *addressed*: its receivers are told host and port.
Connectors that meet by name on one host, or by key in a store, have none and are not looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from ..abc import AddressedOptions
from ..model import Role
from .connectors import Connector
from .deployment import StagePlan, Wire
from .hosts import is_host
from .mistakes import Mistakes
from .ports import (
    FIRST_PORT,
    LAST_PORT,
    Purpose,
    SendingEndpoint,
    is_port,
    meetings,
    stage_number,
    way_out,
)
from .tree import Place

KV_KEYS = ("omni_kv_config", "kv_transfer_config")
"""Keys of the serving engine that give a stage's sender a second endpoint, for its KV caches."""

PEER_STAGES = 16
"""vLLM-Omni's formula has room for the stages 0 to 15."""


class Counterpart(NamedTuple):
    """Rank and replica of the sender that a receiver listens to."""

    rank: int
    replica: int


def counterpart(sender: StagePlan, receiver: StagePlan, rank: int, replica: int) -> Counterpart:
    """Which rank and replica of ``sender`` sends to this rank and replica of ``receiver``.

    - Receiver rank ``r`` listens to sender rank ``r * sender_size // receiver_size``, sizes being
      ``tensor_parallel_size``: with equal sizes its own, with 2 -> 4 ranks 0, 0, 1, 1, with 4 -> 2
      ranks 0, 2. Where one sender rank has several receivers, it puts for as many ``consumers``.
    - Receiver replica ``r`` listens to sender replica ``r % sender_replicas``. With more sending
      than receiving replicas the rest is reached by the ``metadata`` of a receipt alone.

    A rank or replica beyond what the receiver's stage says is one that the file does not know of; it
    listens to its own like.
    """
    if rank < receiver.tensor_parallel_size:
        rank = rank * sender.tensor_parallel_size // receiver.tensor_parallel_size
    if replica < receiver.num_replicas:
        replica %= sender.num_replicas
    return Counterpart(rank, replica)


def grouped(wires: Iterable[Wire], role: Role) -> list[tuple[Connector, list[Wire]]]:
    """Edges that can share a transport: those whose connectors read the same options."""
    groups: list[tuple[Connector, list[Wire]]] = []
    for wire in wires:
        connector = wire.sender if role == "sender" else wire.receiver
        for known, members in groups:
            if (known.name, known.settings) == (connector.name, connector.settings):
                members.append(wire)
                break
        else:
            groups.append((connector, [wire]))
    return groups


def sender_port(
    stages: Mapping[str, StagePlan], stage: str, connector: Connector, rank: int, replica: int
) -> int:
    """Where one process of ``stage`` listens for the receivers of an addressed connector."""
    first = _endpoint(stages, stages[stage], connector, Purpose.REQUEST_FORWARDING)
    return first._replace(rank=rank, replica=replica).port


def sending_endpoints(stages: Mapping[str, StagePlan]) -> list[SendingEndpoint]:
    """Every endpoint of every rank and replica.

    For each addressed connector that a stage sends over: one for requests, and one for KV caches
    where the stage has one of :data:`KV_KEYS`.
    """
    return [each for family in _families(stages) for each in family.members()]


def check_ports(
    stages: Mapping[str, StagePlan], places: Mapping[str, Place], mistakes: Mistakes
) -> None:
    """Note where an endpoint gets no port, and where two on one host get the same.

    Args:
        stages: the plans in the order of the file.
        places: where each of these stages is in the file.
        mistakes: gets one for each stage, connector and purpose, whatever the number of its ranks.
    """
    known: list[SendingEndpoint] = []
    for family in _families(stages):
        problem = family.unknown_to_peer() or family.outside()
        if problem is None:
            known += family.members()
        else:
            mistakes.add(places[family.first.stage], problem)
    told: set[tuple[str, str, Purpose]] = set()
    advice: str | None = None
    for collision in meetings(known):
        other, this = collision
        which = (this.stage, this.connector, this.purpose)
        if which in told:
            continue
        told.add(which)
        advice = advice or way_out(known)
        text = f"{other} and {this} would both listen at port {collision.port}; {advice}"
        if other.stage != this.stage and None in (other.host, this.host):
            text += ", or name the 'host' of each stage where they are on different ones"
        mistakes.add(places[this.stage], text)


class _Family(NamedTuple):
    """The same endpoint of every rank and replica of a stage."""

    first: SendingEndpoint
    replicas: int
    peer: str

    def members(self) -> list[SendingEndpoint]:
        return [
            self.first._replace(rank=rank, replica=replica)
            for replica in range(self.replicas)
            for rank in range(self.first.tensor_parallel_size)
        ]

    def outside(self) -> str | None:
        """Ports grow with rank and replica, so the first and the last tell of all."""
        ranks = self.first.tensor_parallel_size
        last = self.first._replace(rank=ranks - 1, replica=self.replicas - 1)
        for each in (self.first, last):
            if not is_port(each.port):
                return (
                    f"{each} would listen at port {each.port}, which is outside of {FIRST_PORT} to "
                    f"{LAST_PORT}; use another zmq_port than {each.base_port}, or fewer ranks"
                )
        return None

    def unknown_to_peer(self) -> str | None:
        first = self.first
        known = first.stage.isascii() and first.stage.isdigit() and first.number < PEER_STAGES
        if self.peer != "vllm-omni" or known:
            return None
        return (
            f"sends to vLLM-Omni ('peer: vllm-omni' of {first.connector}), which knows stages by the "
            f"numbers 0 to {PEER_STAGES - 1}; give it such a stage_id"
        )


def _families(stages: Mapping[str, StagePlan]) -> Iterator[_Family]:
    for plan in stages.values():
        purposes = [Purpose.REQUEST_FORWARDING]
        if any(plan.others.get(key) is not None for key in KV_KEYS):
            purposes.append(Purpose.KV_TRANSFER)
        for connector, _ in grouped(plan.outputs, "sender"):  # one endpoint serves a group
            if connector.addressed:
                for purpose in purposes:
                    first = _endpoint(stages, plan, connector, purpose)
                    yield _Family(first, plan.num_replicas, addressed(connector).peer)


def _endpoint(
    stages: Mapping[str, StagePlan], plan: StagePlan, connector: Connector, purpose: Purpose
) -> SendingEndpoint:
    """Rank 0 of replica 0."""
    settings = addressed(connector)
    return SendingEndpoint(
        connector=f"{connector.name} {connector.alias!r}" if connector.alias else connector.name,
        stage=plan.id,
        number=stage_number(plan.id, list(stages).index(plan.id)),
        rank=0,
        replica=0,
        tensor_parallel_size=plan.tensor_parallel_size,
        purpose=purpose,
        base_port=settings.zmq_port,
        scheme=settings.scheme,
        host=plan.host if is_host(plan.host) else None,
        address=settings.host if is_host(settings.host) else None,
    )


def addressed(connector: Connector) -> AddressedOptions:
    """The options of a connector that is addressed."""
    assert isinstance(connector.settings, AddressedOptions)
    return connector.settings
