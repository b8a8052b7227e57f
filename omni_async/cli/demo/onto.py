"""``--backend``: every edge of a deploy file over one backend, on this host.

In: a Deploy, a backend's name. Out: what lies over the file.
Never: opens or imports a backend's vendor, uses a port that somebody else may get.
"""

from __future__ import annotations

from typing import Any

from omni_async import ConfigError, Deploy
from omni_async.deploy import Wire

from ... import registry
from ...abc import Options
from ...deploy.connectors import known_names
from ...deploy.environment import escaped
from ...deploy.mistakes import hint
from ...deploy.ports import stage_number
from ...model import Role
from ..free_ports import FreePorts
from ..on_this_host import LOOPBACK, anywhere
from ..servers import Server


def onto(
    backend: str, deploy: Deploy, ports: FreePorts, server: Server | None = None
) -> dict[str, Any]:
    """What lies over the file so that its bytes go over that backend.

    What an edge says of pools, time limits and chunks stays; the rest of the backend's options are its
    defaults, but for those that make it run between processes of one host, or lead to a store's ``server``.

    Raises:
        ConfigError: nobody has announced a backend of that name.
    """
    known = known_names()
    if backend not in known:
        raise ConfigError(f"no backend is called {backend!r}" + hint(backend, known))
    model = registry.options_for(backend)
    name = registry.canonical(backend)
    numbers = {id: stage_number(id, position) for position, id in enumerate(deploy.stages)}
    stages: dict[str, dict[str, Any]] = {id: {"stage_id": id} for id in deploy.stages}
    for wire in deploy.wires:
        sender, receiver = wire.name
        extra = _extra(model, wire)
        if model.addressed:
            # Its port is this base and the number of the stage; that sum is the one that is kept.
            extra |= {"host": LOOPBACK, "zmq_port": ports.of(sender) - numbers[sender]}

        def end(role: Role, extra: dict[str, Any] = extra) -> dict[str, Any]:
            told = {} if server is None else server.extra(role)
            return {"name": name, "extra": escaped({**extra, **told})}

        stages[sender].setdefault("output_connectors", {})[f"to_stage_{receiver}"] = end("sender")
        stages[receiver].setdefault("input_connectors", {})[f"from_stage_{sender}"] = end(
            "receiver"
        )
    return {"stages": list(stages.values())}


def _extra(model: type[Options], wire: Wire) -> dict[str, Any]:
    written = wire.sender.options
    kept = {key: written[key] for key in Options.model_fields if key in written}
    return {**kept, **anywhere(model), **wire.sender.knobs}


def together(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Both over a file; of one key of a stage the second's."""
    stages = {stage["stage_id"]: stage for stage in first.get("stages", ())}
    for stage in second.get("stages", ()):
        stages[stage["stage_id"]] = {**stages.get(stage["stage_id"], {}), **stage}
    merged = {**first, **second}
    return {**merged, "stages": list(stages.values())} if stages else merged
