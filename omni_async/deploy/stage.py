"""open_stage: all edges of one stage, open together or not at all.

In: a Deploy and a stage's name. Out: a Stage with an Edge per neighbour.
Never: interprets a file, keeps a transport open that its caller has left.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping

from ..errors import UsageError
from ..model import Health, Role
from ..transport import Edge, Transport, open_transport
from .connectors import Connector
from .mistakes import hint
from .wiring import Deploy, StagePlan, Wire

Resolve = Callable[[str, int, int], tuple[str, int]]
"""``(stage, rank, replica) -> (host, port)`` of that sender."""


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
    rank: int = 0,
    replica: int = 0,
    namespace: str | None = None,
    resolve: Resolve | None = None,
) -> AsyncIterator[Stage]:
    """Open every transport that a stage needs.

    One sender serves all outgoing edges of a connector, one receiver all incoming ones. When one
    of them cannot be opened, those that were are closed before the error arrives here.

    Args:
        deploy: from :func:`load_deploy`.
        stage_id: which stage this process is.
        rank: tensor-parallel rank of this process, from 0.
        replica: data-parallel replica of this stage, from 0.
        namespace: the running pipeline; default ``$OMNI_ASYNC_NAMESPACE`` or ``default``.
        resolve: where a sender listens, for connectors that reach across hosts.

    Raises:
        UsageError: the deployment has no such stage.
        BackendUnavailable: a connector's package or device is missing.

    Cancellation: safe; what was opened is closed.
    """
    plan = deploy.stage(stage_id)
    async with contextlib.AsyncExitStack() as stack:
        transports: dict[str, Transport] = {}

        async def opened(role: Role, connector: Connector, options: dict[str, object]) -> Transport:
            spec = {"name": connector.name, "extra": {**connector.options, **options}}
            transport = await stack.enter_async_context(
                open_transport(
                    spec,
                    role=role,
                    stage=plan.id,
                    namespace=namespace,
                    rank=rank,
                    replica=replica,
                )
            )
            transports[_unused(f"{role} {connector.name}", transports)] = transport
            return transport

        outputs: dict[str, Edge] = {}
        for connector, wires in _grouped(plan.outputs, "sender"):
            transport = await opened("sender", connector, {})
            outputs |= {wire.name.to_stage: transport.edge(*wire.name) for wire in wires}

        inputs: dict[str, Edge] = {}
        for connector, wires in _grouped(plan.inputs, "receiver"):
            if resolve is None or not connector.addressed:
                transport = await opened("receiver", connector, {})
                inputs |= {wire.name.from_stage: transport.edge(*wire.name) for wire in wires}
                continue
            for wire in wires:  # one receiver has one address of a sender
                host, port = resolve(wire.name.from_stage, rank, replica)
                where = {"sender_host": host, "sender_zmq_port": port}
                transport = await opened("receiver", connector, where)
                inputs[wire.name.from_stage] = transport.edge(*wire.name)

        yield Stage(plan, inputs, outputs, transports)


def _grouped(wires: Iterable[Wire], role: Role) -> list[tuple[Connector, list[Wire]]]:
    """Edges that can share a transport: those whose connectors read the same options."""
    groups: list[tuple[Connector, list[Wire]]] = []
    for wire in wires:
        connector: Connector = getattr(wire, role)
        for known, members in groups:
            if (known.name, known.options) == (connector.name, connector.options):
                members.append(wire)
                break
        else:
            groups.append((connector, [wire]))
    return groups


def _unused(name: str, taken: Mapping[str, Transport]) -> str:
    if name not in taken:
        return name
    number = 2
    while f"{name} {number}" in taken:
        number += 1
    return f"{name} {number}"
