"""open_stage: all edges of one stage, open together or not at all.

In: a Deploy and a stage's name. Out: a Stage with an Edge per neighbour.
Never: interprets a file, keeps a transport open that its caller has left.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import NamedTuple

from ..abc.ranks import Told, rank_from, replica_from
from ..errors import BackendUnavailable, UsageError
from ..model import Health, Role
from ..transport import Edge, Transport, open_transport
from .connectors import Connector
from .deployment import Deploy, StagePlan, Wire
from .endpoints import Counterpart, counterpart, grouped, sender_port
from .finding import Resolve, find_sender
from .mistakes import hint


class Stage:
    """An open stage; made by :func:`open_stage`."""

    def __init__(
        self,
        plan: StagePlan,
        inputs: Mapping[str, Edge],
        outputs: Mapping[str, Edge],
        transports: Mapping[str, Transport],
    ) -> None:
        self.plan = plan
        self.inputs = inputs
        """From the sending stage's id to the edge."""
        self.outputs = outputs
        """From the receiving stage's id to the edge."""
        self.transports = transports
        """From ``sender SharedMemoryConnector`` and the like to the transport."""

    @property
    def id(self) -> str:
        return self.plan.id

    def input(self, from_stage: str | int) -> Edge:
        """The edge on which ``from_stage`` sends to this stage.

        Raises:
            UsageError: the deployment has no such edge.
        """
        return _chosen(
            self.inputs, from_stage, f"no edge leads from stage {from_stage} to {self.id}"
        )

    def output(self, to_stage: str | int) -> Edge:
        """The edge on which this stage sends to ``to_stage``.

        Raises:
            UsageError: the deployment has no such edge.
        """
        return _chosen(self.outputs, to_stage, f"no edge leads from stage {self.id} to {to_stage}")

    def health(self) -> dict[str, Health]:
        """A snapshot of every transport, under the names of :attr:`transports`."""
        return {name: transport.health() for name, transport in self.transports.items()}

    def __repr__(self) -> str:
        return f"<Stage {self.id}: from {list(self.inputs)}, to {list(self.outputs)}>"


def _chosen(edges: Mapping[str, Edge], stage: str | int, problem: str) -> Edge:
    edge = edges.get(str(stage))
    if edge is None:
        raise UsageError(problem + hint(str(stage), edges))
    return edge


@contextlib.asynccontextmanager
async def open_stage(
    deploy: Deploy,
    stage_id: str | int,
    *,
    rank: int | None = None,
    replica: int | None = None,
    namespace: str | None = None,
    resolve: Resolve | None = None,
) -> AsyncIterator[Stage]:
    """Open every transport that a stage needs.

    One sender serves all outgoing edges of a connector, one receiver all incoming ones (one for each
    sending stage where the connector is told addresses). When one of them cannot be opened, those
    that were are closed before the error arrives here; leaving closes all, also when one of them
    fails to close.

    Args:
        deploy: from :func:`load_deploy`.
        stage_id: which stage this process is.
        rank: tensor-parallel rank of this process, from 0; by default what the launcher's
            environment says (``LOCAL_RANK`` and others, see :mod:`.ranks`), else 0. Which rank of a
            sender a receiver listens to: :func:`.endpoints.counterpart`.
        replica: data-parallel replica of this stage, from 0; by default ``$VLLM_OMNI_REPLICA_ID``,
            else 0.
        namespace: the running pipeline; default ``$OMNI_ASYNC_NAMESPACE`` or ``default``.
        resolve: tells ``(host, port)`` of the sender with this stage, rank and replica, for connectors
            that reach across hosts. Without it see :func:`.finding.find_sender`. What it raises
            arrives here.

    Raises:
        UsageError: the deployment has no such stage, or the stage no such rank or replica;
            ``resolve`` returned no address.
        ConfigError: an environment variable makes no sense.
        BackendUnavailable: a connector's package or device is missing.

    Cancellation: safe; what was opened is closed.
    """
    plan = deploy.stage(stage_id)
    me = _coordinates(deploy, plan, rank, replica)
    openings = [*_senders(deploy, plan, me), *_receivers(deploy, plan, me, resolve)]
    async with contextlib.AsyncExitStack() as stack:
        transports: dict[str, Transport] = {}
        edges: dict[Role, dict[str, Edge]] = {"sender": {}, "receiver": {}}
        for role, connector, where, wires in openings:
            try:
                transport = await stack.enter_async_context(
                    open_transport(
                        {"name": connector.name, "extra": {**connector.options, **where}},
                        role=role,
                        stage=plan.id,
                        namespace=namespace,
                        rank=me.rank,
                        replica=me.replica,
                    )
                )
            except BackendUnavailable as error:  # say which line of the file asked for it
                names = ", ".join(str(wire.name) for wire in wires)
                raise BackendUnavailable(
                    f"{names}: {error}", backend=error.backend, remedy=error.remedy
                ) from error
            transports[_unused(f"{role} {connector.name}", transports)] = transport
            for wire in wires:
                other = wire.name.to_stage if role == "sender" else wire.name.from_stage
                knobs = (wire.sender if role == "sender" else wire.receiver).knobs
                edges[role][other] = Edge(transport, wire.name, wire.window, knobs)
                if role == "receiver":
                    transport.expect_sender(other, *_sender_of(deploy, plan, wire, me))
        yield Stage(plan, edges["receiver"], edges["sender"], transports)


class _Opening(NamedTuple):
    role: Role
    connector: Connector
    where: dict[str, object]
    """Final addresses among its options."""
    wires: list[Wire]


def _senders(deploy: Deploy, plan: StagePlan, me: Counterpart) -> Iterator[_Opening]:
    for connector, wires in grouped(plan.outputs, "sender"):
        where: dict[str, object] = {}
        if connector.addressed:
            where["zmq_port"] = sender_port(deploy.stages, plan.id, connector, *me)
        yield _Opening("sender", connector, where, wires)


def _receivers(
    deploy: Deploy, plan: StagePlan, me: Counterpart, resolve: Resolve | None
) -> Iterator[_Opening]:
    for connector, wires in grouped(plan.inputs, "receiver"):
        if not connector.addressed:
            yield _Opening("receiver", connector, {}, wires)
            continue
        for wire in wires:  # one receiver has one address of a sender
            sender = _sender_of(deploy, plan, wire, me)
            host, port = find_sender(deploy.stages, wire, sender, os.environ, resolve)
            yield _Opening(
                "receiver", connector, {"sender_host": host, "sender_zmq_port": port}, [wire]
            )


class _Count(NamedTuple):
    """How many ranks or replicas a stage has."""

    what: str
    key: str
    number: int
    written: bool
    """Whether the file tells it; else it does not know of them, and any may run."""


def _counts(deploy: Deploy, plan: StagePlan) -> tuple[_Count, _Count]:
    model = next(model for model in deploy.model.stages if model.stage_id == plan.id)
    ranks, replicas = "tensor_parallel_size", "num_replicas"
    return (
        _Count("rank", ranks, plan.tensor_parallel_size, ranks in model.model_fields_set),
        _Count("replica", replicas, plan.num_replicas, replicas in model.model_fields_set),
    )


def _coordinates(
    deploy: Deploy, plan: StagePlan, rank: int | None, replica: int | None
) -> Counterpart:
    """Who this process is: what the caller says, else the environment, inside of what the file says."""
    told = (
        Told(rank, "argument") if rank is not None else rank_from(os.environ),
        Told(replica, "argument") if replica is not None else replica_from(os.environ),
    )
    for count, (number, source) in zip(_counts(deploy, plan), told, strict=True):
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            raise UsageError(f"{count.what} must be an int of at least 0, not {number!r}")
        if number >= count.number and (count.written or _has_ports(plan)):
            raise UsageError(
                f"stage {plan.id} has no {count.what} {number} (from {source}): its {count.key} is "
                f"{count.number} in {deploy.source}"
            )
    return Counterpart(told[0].number, told[1].number)


def _sender_of(deploy: Deploy, plan: StagePlan, wire: Wire, me: Counterpart) -> Counterpart:
    sender = deploy.stages[wire.name.from_stage]
    found = counterpart(sender, plan, *me)
    for count, number in zip(_counts(deploy, sender), found, strict=True):
        if number >= count.number and count.written:
            raise UsageError(
                f"stage {sender.id} has no {count.what} {number} that could send to this one of "
                f"stage {plan.id}; write the {count.key} of stage {plan.id} into {deploy.source}"
            )
    return found


def _has_ports(plan: StagePlan) -> bool:
    """Ports count ranks and replicas, so that an unknown one would take another's port."""
    return any(wire.sender.addressed for wire in (*plan.inputs, *plan.outputs))


def _unused(name: str, taken: Mapping[str, Transport]) -> str:
    numbered = (f"{name} {number}" for number in itertools.count(2))
    return next(each for each in itertools.chain([name], numbered) if each not in taken)
