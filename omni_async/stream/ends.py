"""Which edges of a stage an adapter works on.

In: a stage, names of neighbours or edges. Out: edges.
Never: guesses where there are several.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from ..errors import UsageError
from ..transport import Edge

End = Edge | str | int | None
"""An edge, the neighbour's stage id, or the only one there is."""


class StageEdges(Protocol):
    """What :func:`omni_async.open_stage` yields, as far as it is needed here."""

    @property
    def inputs(self) -> Mapping[str, Edge]:
        """From the sending stage's id to the edge."""
        ...

    @property
    def outputs(self) -> Mapping[str, Edge]:
        """From the receiving stage's id to the edge."""
        ...


def input_of(stage: StageEdges | None, wanted: End) -> Edge | None:
    """Raises: UsageError: no such edge, or several and none was named."""
    edge = _chosen("input", {} if stage is None else stage.inputs, wanted)
    return _checked("input", "receiver", edge)


def output_of(stage: StageEdges | None, wanted: End) -> Edge | None:
    """Raises: UsageError: no such edge, or several and none was named."""
    edge = _chosen("output", {} if stage is None else stage.outputs, wanted)
    return _checked("output", "sender", edge)


def _chosen(what: str, edges: Mapping[str, Edge], wanted: End) -> Edge | None:
    if isinstance(wanted, Edge):
        return wanted
    names = ", ".join(f"{what}={name!r}" for name in edges) or "none"
    if wanted is None:
        if len(edges) > 1:
            raise UsageError(f"the stage has several {what}s; name one: {names}")
        return next(iter(edges.values()), None)
    edge = edges.get(str(wanted))
    if edge is None:
        raise UsageError(f"the stage has no {what} {str(wanted)!r}; it has {names}")
    return edge


def _checked(what: str, role: str, edge: Edge | None) -> Edge | None:
    if edge is not None and edge.transport.role != role:
        raise UsageError(
            f"{what} is {edge.name} of a {edge.transport.role}, and has to be a {role}'s"
        )
    return edge
