"""A deployment as boxes and arrows, and where its edges' senders are found.

In: a Deploy, perhaps one stage of it. Out: what is to be drawn, and the words that explain it.
Never: draws.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

from omni_async import registry
from omni_async.deploy import Deploy, StagePlan, Wire
from omni_async.deploy.endpoints import Counterpart
from omni_async.deploy.finding import Address, find_sender

from .layers import against
from .layout import Arrow, Node
from .text import TIMES, clipped

SAME_HOST = "same host"
_LABEL = 26
"""Letters; the drawing clips longer labels, the listing below it has them whole."""


class Graph(NamedTuple):
    """What is to be drawn."""

    nodes: tuple[Node, ...]
    arrows: tuple[Arrow, ...]
    backends: dict[str, str]
    """Short name → connector name, of those in the drawing."""
    addressed: bool
    """Whether a label tells a host and a port."""


def graph(deploy: Deploy, spell: Callable[[str], str], stage: str | None = None) -> Graph:
    """Everything, or one stage with its neighbours. ``spell`` makes text that can be shown."""
    back = feedback(deploy)
    wires = [wire for wire in deploy.wires if stage is None or stage in wire.name]
    seen = {id for wire in wires for id in wire.name} | {stage}
    plans = [plan for plan in deploy.stages.values() if stage is None or plan.id in seen]
    arrows: list[Arrow] = []
    backends: dict[str, str] = {}
    addressed = False
    for wire in wires:
        kind, where = short_name(wire.sender.name), endpoint(deploy, wire)
        addressed |= isinstance(where, Address)
        lines = (kind, *([] if where is None else [told(where)]))
        label = tuple(spell(clipped(line, _LABEL)) for line in lines)
        arrows.append(Arrow(*wire.name, label, kind, wire.name in back))
        backends[kind] = wire.sender.name
    nodes = tuple(Node(plan.id, tuple(map(spell, _lines(plan)))) for plan in plans)
    return Graph(nodes, tuple(arrows), backends, addressed)


def feedback(deploy: Deploy) -> set[tuple[str, str]]:
    """The edges that lead back to an earlier stage: by number, or as the file lists them."""
    names = list(deploy.stages)
    if all(name.isdecimal() for name in names):
        names.sort(key=lambda name: (len(name), name))
    edges = [(wire.name.from_stage, wire.name.to_stage) for wire in deploy.wires]
    return {edges[i] for i in against(names, edges)}


def endpoint(deploy: Deploy, wire: Wire) -> Address | str | None:
    """Where a receiver finds rank 0 of replica 0 of the sender, ``None`` where a store is asked.

    Raises:
        ConfigError: an environment variable that should tell it does not hold an address.
    """
    if wire.sender.addressed:
        return find_sender(deploy.stages, wire, Counterpart(0, 0), os.environ, None)
    return None if wire.sender.cross_host else SAME_HOST


def told(where: Address | str) -> str:
    """An endpoint as people write it."""
    if isinstance(where, str):
        return where
    host = f"[{where.host}]" if ":" in where.host else where.host
    return f"{host}:{where.port}"


def short_name(connector: str) -> str:
    """The alias of a backend: ``shm`` for ``SharedMemoryConnector``."""
    for alias, (name, _) in registry.PLANNED.items():
        if connector == name:
            return alias
    return registry.backend_for(connector).alias


def processes(plan: StagePlan) -> str:
    """``2 replicas × 4 ranks``; empty where there is one of each."""
    counts = [(plan.num_replicas, "replicas"), (plan.tensor_parallel_size, "ranks")]
    return f" {TIMES} ".join(f"{count} {what}" for count, what in counts if count > 1)


def legend(shown: Graph, feedback: str) -> list[str]:
    """What the words in a drawing mean, and its lines that look like ``feedback``."""
    lines = [f"{short} = {name}" for short, name in shown.backends.items()]
    if shown.addressed:
        lines.append("host:port = where receivers find rank 0 of the sender's replica 0")
    if any(arrow.back for arrow in shown.arrows):
        lines.append(f"{feedback} = feedback, against the flow")
    return lines


def _lines(plan: StagePlan) -> list[str]:
    more = [processes(plan), f"on {plan.host}" if plan.host is not None else ""]
    return [f"stage {plan.id}", *(line for line in more if line)]
