"""What a deploy file means, as one object for machines.

In: a Deploy, perhaps one stage of it; or what is wrong. Out: dictionaries that JSON can hold.
Never: prints.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omni_async import ConfigError, Deploy
from omni_async.deploy import Mistake, StagePlan, Wire
from omni_async.deploy.endpoints import sending_endpoints
from omni_async.deploy.finding import Address
from omni_async.deploy.ports import SendingEndpoint

from . import origins
from .graph import endpoint, feedback, short_name
from .origins import Known, Side


def meaning(deploy: Deploy, stage: str | None = None) -> dict[str, Any]:
    """Stages and edges as they are in force; each value with where it came ``from``."""
    back = feedback(deploy)
    endpoints = sending_endpoints(deploy.stages)
    return {
        "file": deploy.source,
        "platform": deploy.platform,
        "stages": [
            _stage(deploy, plan, [each for each in endpoints if each.stage == plan.id])
            for plan in deploy.stages.values()
            if stage in (None, plan.id)
        ],
        "edges": [
            _edge(deploy, wire, wire.name in back)
            for wire in deploy.wires
            if stage is None or stage in wire.name
        ],
        "unused_connectors": list(origins.unused(deploy)),
    }


def errors(error: ConfigError, file: str) -> dict[str, Any]:
    """All that is wrong with a file."""
    mistakes = error.mistakes or (Mistake(error.path or "", str(error)),)
    return {
        "ok": False,
        "errors": [
            {
                "path": mistake.path,
                "line": mistake.line,
                "file": mistake.file or file,
                "text": mistake.text,
            }
            for mistake in mistakes
        ],
    }


def _stage(deploy: Deploy, plan: StagePlan, listening: list[SendingEndpoint]) -> dict[str, Any]:
    return {
        "stage_id": plan.id,
        "inputs": [wire.name.from_stage for wire in plan.inputs],
        "outputs": [wire.name.to_stage for wire in plan.outputs],
        **_object(origins.stage_values(deploy, plan)),
        "endpoints": [
            {
                "connector": each.connector,
                "purpose": str(each.purpose),
                "replica": each.replica,
                "rank": each.rank,
                "host": each.address or each.host,
                "port": each.port,
            }
            for each in listening
        ],
    }


def _edge(deploy: Deploy, wire: Wire, back: bool) -> dict[str, Any]:
    where = endpoint(deploy, wire)
    return {
        "from": wire.name.from_stage,
        "to": wire.name.to_stage,
        "backend": short_name(wire.sender.name),
        "feedback": back,
        "same_host": isinstance(where, str),
        "endpoint": where._asdict() if isinstance(where, Address) else None,
        **_object(origins.edge_values(deploy, wire)),
        "sender": _end(deploy, wire, "sender"),
        "receiver": _end(deploy, wire, "receiver"),
    }


def _end(deploy: Deploy, wire: Wire, side: Side) -> dict[str, Any]:
    connector = wire.sender if side == "sender" else wire.receiver
    name = origins.connector_name(deploy, wire, side)
    return {
        **_object({"name": name}),
        "alias": connector.alias,
        "options": _object(origins.option_values(deploy, connector)),
        "knobs": _object(origins.knob_values(deploy, connector)),
    }


def _object(values: Mapping[str, Known]) -> dict[str, Any]:
    return {key: {"value": known.value, "from": known.origin} for key, known in values.items()}
