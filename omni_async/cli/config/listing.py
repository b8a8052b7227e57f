"""What a deploy file means, in words: each stage with its edges, every value and its origin.

In: a Deploy, perhaps one stage of it. Out: lines of text.
Never: prints, draws.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

from omni_async import Deploy
from omni_async.deploy import StagePlan, Wire
from omni_async.deploy.endpoints import sending_endpoints

from . import origins
from .graph import endpoint, feedback, told
from .origins import BY_DEFAULT, Known, Side

_VALUE = 40
"""Columns for values in a table; a longer one pushes its origin to the right."""


def listing(deploy: Deploy, width: int, stage: str | None = None) -> list[str]:
    """Stages in the order of the file."""
    lines: list[str] = []
    for plan in deploy.stages.values():
        if stage in (None, plan.id):
            lines += ["", f"stage {plan.id}"]
            lines += _table(origins.stage_values(deploy, plan), width, "  ")
            lines += _listening(deploy, plan, width)
            lines += _edges(deploy, plan.inputs, "receiver", width)
            lines += _edges(deploy, plan.outputs, "sender", width)
    if stage is None:
        unused = origins.unused(deploy)
        lines += ["", "connectors that no edge uses"] if unused else []
        lines += (f"  {alias}  {origin}" for alias, origin in unused.items())
    return lines[1:]


def _edges(deploy: Deploy, wires: Iterable[Wire], side: Side, width: int) -> Iterator[str]:
    """Edges with the same connector, found at the same place, under one heading."""
    back = feedback(deploy)
    verb, word = ("sends", "to") if side == "sender" else ("receives", "from")
    alike: dict[tuple[str, ...], dict[str, str]] = {}
    for wire in wires:
        other = wire.name.to_stage if side == "sender" else wire.name.from_stage
        name = origins.connector_name(deploy, wire, side)
        mark = " (feedback)" if wire.name in back else ""
        others = alike.setdefault(tuple(_edge(deploy, wire, side, width)), {})
        others[f"{word} {other}{mark}"] = name.origin
    for (heading, *rest), others in alike.items():
        yield f"  {verb} {heading}"
        wide = max(map(len, others))
        yield from (f"    {other:<{wide}}  {origin}" for other, origin in others.items())
        yield from rest


def _edge(deploy: Deploy, wire: Wire, side: Side, width: int) -> Iterator[str]:
    connector = wire.sender if side == "sender" else wire.receiver
    alias = f" {connector.alias!r}" if connector.alias is not None else ""
    where = endpoint(deploy, wire)
    yield f"over {connector.name}{alias}{f', {told(where)}' if where is not None else ''}"
    values = {
        **origins.edge_values(deploy, wire),
        **origins.option_values(deploy, connector),
        **origins.knob_values(deploy, connector),
    }
    yield from _table(values, width, "    ")


def _table(values: Mapping[str, Known], width: int, indent: str) -> Iterator[str]:
    """What was written, a line each; then what was not, together."""
    rows = [(key, _value(v.value), v.origin) for key, v in values.items() if v.origin != BY_DEFAULT]
    wide = max((len(key) for key, _, _ in rows), default=0)
    middle = min(max((len(value) for _, value, _ in rows), default=0), _VALUE)
    for key, value, origin in rows:
        yield f"{indent}{key:<{wide}}  {value:<{middle}}  {origin}"
    rest = [f"{k}={_value(v.value)}" for k, v in values.items() if v.origin == BY_DEFAULT]
    if rest:
        yield from _wrapped(f"{BY_DEFAULT}: {', '.join(rest)}", width, indent)


def _listening(deploy: Deploy, plan: StagePlan, width: int) -> Iterator[str]:
    """The ports of a stage's senders, all ranks and replicas."""
    own = [each for each in sending_endpoints(deploy.stages) if each.stage == plan.id]
    for (connector, purpose), members in groupby(own, lambda e: (e.connector, e.purpose)):
        ports = ", ".join(_ranges(each.port for each in members))
        yield from _wrapped(f"listens at {ports} for {purpose} over {connector}", width, "  ")


def _ranges(ports: Iterable[int]) -> Iterator[str]:
    """``50051-50054`` for ports in a row."""
    start = last = None
    for port in [*sorted(ports), None]:
        if start is not None and last is not None and port != last + 1:
            yield str(start) if start == last else f"{start}-{last}"
            start = None
        start = port if start is None else start
        last = port


def _wrapped(text: str, width: int, indent: str) -> list[str]:
    return textwrap.wrap(
        text,
        max(width, 40),
        initial_indent=indent,
        subsequent_indent=indent + "  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _value(value: Any) -> str:
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)
