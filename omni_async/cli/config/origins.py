"""Values of a deployment, each with where it came from.

In: a Deploy. Out: values and the words for their origin.
Never: looks at the file again.
"""

from __future__ import annotations

import math
import os.path
from typing import Any, Literal, NamedTuple

from omni_async.deploy import Connector, Deploy, Origin, StagePlan, Wire
from omni_async.deploy.tree import DEFAULT
from omni_async.errors import UsageError

Side = Literal["sender", "receiver"]


class Known(NamedTuple):
    """A value in force."""

    value: Any
    origin: str
    """Such as ``file (line 12)``; :data:`BY_DEFAULT` where no file says it."""


BY_DEFAULT = "default"


def said(origin: Origin, deploy: Deploy) -> str:
    """``file (line 12)``, ``base qwen.yaml (line 4)``, ``environment $PORT`` and the like."""
    line = f" (line {origin.line})" if origin.line is not None else ""
    elsewhere = ""
    if origin.source not in ("", deploy.source):
        elsewhere = os.path.relpath(origin.source, os.path.dirname(deploy.source))
    if origin.kind == "call":
        return "call"
    if origin.kind == "environment":
        return f"environment {', '.join(f'${name}' for name in origin.variables)}"
    if origin.kind == "platform":
        of = f" of {elsewhere}" if elsewhere else ""
        return f"platform {deploy.platform}{of}{line}"
    return f"{origin.kind}{f' {elsewhere}' if elsewhere else ''}{line}"


def stage_values(deploy: Deploy, plan: StagePlan) -> dict[str, Known]:
    """What a stage is, beside its edges."""
    at = list(deploy.stages).index(plan.id)

    def known(key: str, value: Any) -> Known:
        origin = _origin(deploy, "stages", at, key)
        if origin is DEFAULT and key == "async_chunk":
            origin = _origin(deploy, key)
        return Known(value, said(origin, deploy))

    return {
        "host": known("host", plan.host),
        "num_replicas": known("num_replicas", plan.num_replicas),
        "tensor_parallel_size": known("tensor_parallel_size", plan.tensor_parallel_size),
        "async_chunk": known("async_chunk", plan.async_chunk),
    }


def edge_values(deploy: Deploy, wire: Wire) -> dict[str, Known]:
    """What an edge is, beside its connectors."""
    edges = [(edge.from_stage, edge.to_stage) for edge in deploy.model.edges]
    at = edges.index(wire.name) if wire.name in edges else len(edges)

    def known(key: str, value: int) -> Known:
        return Known(value, said(_origin(deploy, "edges", at, key), deploy))

    return {
        "window_size": known("window_size", wire.window_size),
        "max_inflight": known("max_inflight", wire.max_inflight),
    }


def connector_name(deploy: Deploy, wire: Wire, side: Side) -> Known:
    """Which connector an end of an edge uses, and where that was written."""
    connector: Connector = wire.sender if side == "sender" else wire.receiver
    ends = {
        "sender": (wire.name.from_stage, "output_connectors", f"to_stage_{wire.name.to_stage}"),
        "receiver": (wire.name.to_stage, "input_connectors", f"from_stage_{wire.name.from_stage}"),
    }
    # An end that names none uses that of the other end.
    for stage, field, key in (ends[side], *ends.values()):
        at = list(deploy.stages).index(stage)
        origin = _origin(deploy, "stages", at, field, key)
        if origin is not DEFAULT:
            return Known(connector.name, said(origin, deploy))
    return Known(connector.name, BY_DEFAULT)


def option_values(deploy: Deploy, connector: Connector) -> dict[str, Known]:
    """Every option of a connector, those with defaults too."""
    options = connector.settings.model_dump(mode="json")
    return {key: Known(v, said(connector.origin(key), deploy)) for key, v in options.items()}


def knob_values(deploy: Deploy, connector: Connector) -> dict[str, Known]:
    """What stage processors read."""
    knobs = connector.knobs
    return {
        key: Known(jsonable(value), said(connector.origin(key), deploy))
        for key, value in knobs.items()
    }


def jsonable(value: Any) -> Any:
    """A value of YAML as JSON can hold it: dates, bytes and what is no number as text."""
    if isinstance(value, dict):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [jsonable(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, (str, int, float, type(None))) else str(value)


def unused(deploy: Deploy) -> dict[str, str]:
    """Aliases of connectors that no edge uses, and where they were written."""
    used = {end.alias for wire in deploy.wires for end in (wire.sender, wire.receiver)}
    return {
        alias: said(_origin(deploy, "connectors", alias), deploy)
        for alias in deploy.connectors
        if alias not in used
    }


def _origin(deploy: Deploy, *place: str | int) -> Origin:
    try:
        return deploy.origin(*place)
    except UsageError:  # not written
        return DEFAULT
