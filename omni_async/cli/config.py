"""``omni-async config FILE``: what a deploy file means, or all that is wrong with it.

In: a file. Out: its stages and edges with the options that are in force.
Never: opens anything.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from omni_async import ConfigError, Deploy, load_deploy
from omni_async.deploy import Connector, Mistake

NAME = "config"
HELP = "what a deploy file means, or all that is wrong with it"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("file", type=Path, metavar="FILE", help="a deploy YAML or JSON")


def run(args: argparse.Namespace) -> int:
    """Show it; 0 when the file is right."""
    try:
        deploy = load_deploy(args.file)
    except ConfigError as error:
        if args.json:
            print(json.dumps({"ok": False, "errors": _errors(error)}))
        print(f"omni-async config: {error}", file=sys.stderr)
        return 1
    print(json.dumps({"ok": True, **meaning(deploy)}) if args.json else _text(deploy))
    return 0


def meaning(deploy: Deploy) -> dict[str, Any]:
    """Stages and edges as they are in force."""
    return {
        "file": deploy.source,
        "stages": [
            {
                "stage_id": plan.id,
                "inputs": [wire.name.from_stage for wire in plan.inputs],
                "outputs": [wire.name.to_stage for wire in plan.outputs],
                "async_chunk": plan.async_chunk,
            }
            for plan in deploy.stages.values()
        ],
        "edges": [
            {
                "from": wire.name.from_stage,
                "to": wire.name.to_stage,
                "window_size": wire.window_size,
                "max_inflight": wire.max_inflight,
                "sender": _connector(wire.sender),
                "receiver": _connector(wire.receiver),
            }
            for wire in deploy.wires
        ],
    }


def _connector(connector: Connector) -> dict[str, Any]:
    return {
        "name": connector.name,
        "alias": connector.alias,
        "options": dict(connector.options),
        "knobs": dict(connector.knobs),
    }


def _errors(error: ConfigError) -> list[dict[str, Any]]:
    mistakes = error.mistakes or (Mistake(error.path or "", str(error)),)
    return [mistake._asdict() for mistake in mistakes]


def _text(deploy: Deploy) -> str:
    lines = [f"{deploy.source}: {len(deploy.stages)} stages, {len(deploy.wires)} edges"]
    for plan in deploy.stages.values():
        lines.append(f"stage {plan.id}")
        for wire in plan.inputs:
            lines.append(f"  receives from {wire.name.from_stage} over {_said(wire.receiver)}")
        for wire in plan.outputs:
            lines.append(f"  sends to {wire.name.to_stage} over {_said(wire.sender)}")
    return "\n".join(lines)


def _said(connector: Connector) -> str:
    alias = f" ({connector.alias})" if connector.alias else ""
    both = {**connector.options, **connector.knobs}
    options = "".join(f", {key}={value}" for key, value in both.items())
    return f"{connector.name}{alias}{options}"
