"""What follows from a deploy file: who sends what to whom over which connector.

In: the parts of a file. Out: a Deploy, or mistakes.
Never: reads a file, opens anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ..errors import UsageError
from ..model import EdgeName
from .connectors import DEFAULT, Connector, check
from .mistakes import Mistakes, Place, hint
from .models import EdgeModel, FileModel, Parts, Reference, StageModel

_Side = Literal["sender", "receiver"]
_KEYS: dict[_Side, tuple[str, str]] = {
    "sender": ("output_connectors", "to_stage_"),
    "receiver": ("input_connectors", "from_stage_"),
}


@dataclass(frozen=True)
class Wire:
    """One edge: its two stages and the connector as each end uses it."""

    name: EdgeName
    sender: Connector
    receiver: Connector
    window_size: int = -1
    max_inflight: int = 1


@dataclass(frozen=True)
class StagePlan:
    """One stage with its edges."""

    id: str
    inputs: tuple[Wire, ...]
    outputs: tuple[Wire, ...]
    async_chunk: bool
    host: str | None = None
    """Where its senders listen; ``None`` where the file does not say."""
    num_replicas: int = 1
    tensor_parallel_size: int = 1
    others: Mapping[str, Any] = field(default_factory=dict)
    """The serving engine's keys, as they were."""


@dataclass(frozen=True)
class Deploy:
    """A file that was checked, and what follows from it."""

    source: str
    stages: Mapping[str, StagePlan]
    wires: tuple[Wire, ...]
    model: FileModel
    """The file as it was written."""

    def stage(self, stage_id: str | int) -> StagePlan:
        """The plan of one stage.

        Raises:
            UsageError: the file has no such stage.
        """
        plan = self.stages.get(str(stage_id))
        if plan is None:
            raise UsageError(
                f"{self.source} has no stage {str(stage_id)!r}" + hint(str(stage_id), self.stages)
            )
        return plan


@dataclass
class _Draft:
    """An edge while the file is being read: what each end said, and where."""

    place: Place
    ends: dict[_Side, tuple[Connector | None, Place]] = field(default_factory=dict)
    model: EdgeModel | None = None


def wire(parts: Parts, mistakes: Mistakes) -> tuple[dict[str, StagePlan], tuple[Wire, ...]]:
    """Stages and edges; only to be used when ``mistakes`` is still empty afterwards."""
    aliases = {
        alias: None if model is None else check(model, alias, ("connectors", alias), mistakes)
        for alias, model in parts.connectors.items()
    }
    ids = _ids(parts, mistakes)
    drafts: dict[EdgeName, _Draft] = {}
    for i, stage in parts.stages.items():
        for side in _KEYS:
            for name, connector, place in _ends(stage, i, side, aliases, mistakes):
                draft = drafts.setdefault(name, _Draft(place))
                draft.ends[side] = (connector, place)
    for i, edge in parts.edges.items():
        name = EdgeName(edge.from_stage, edge.to_stage)
        draft = drafts.setdefault(name, _Draft(("edges", i)))
        if draft.model is not None:
            mistakes.add(("edges", i), f"the edge {name} is listed twice")
        draft.model = edge
    wires = tuple(_wires(drafts, ids if parts.every_stage else None, mistakes))
    plans = {
        id: StagePlan(
            id,
            tuple(w for w in wires if w.name.to_stage == id),
            tuple(w for w in wires if w.name.from_stage == id),
            _first(stage.async_chunk, parts.model.async_chunk if parts.model else True),
            stage.host,
            stage.num_replicas,
            stage.tensor_parallel_size,
            stage.model_extra or {},
        )
        for id, stage in ids.items()
    }
    for i, stage in parts.stages.items():
        if ids[stage.stage_id] is stage:
            _one_sender_each(plans[stage.stage_id], ("stages", i), mistakes)
    return plans, wires


def _ids(parts: Parts, mistakes: Mistakes) -> dict[str, StageModel]:
    ids: dict[str, StageModel] = {}
    first: dict[str, int] = {}
    for i, stage in parts.stages.items():
        if stage.stage_id in ids:
            text = (
                f"stage {stage.stage_id} is listed twice, first as stages[{first[stage.stage_id]}]"
            )
            mistakes.add(("stages", i, "stage_id"), text)
        else:
            ids[stage.stage_id] = stage
            first[stage.stage_id] = i
    return ids


def _ends(
    stage: StageModel,
    index: int,
    side: _Side,
    aliases: Mapping[str, Connector | None],
    mistakes: Mistakes,
) -> Iterator[tuple[EdgeName, Connector | None, Place]]:
    field_name, prefix = _KEYS[side]
    references: Mapping[str, Reference] = getattr(stage, field_name)
    for key, reference in references.items():
        place: Place = ("stages", index, field_name, key)
        found = re.fullmatch(re.escape(prefix) + "(.+)", key)
        if found is None:
            mistakes.add(place, f"is not of the form '{prefix}<stage_id>'")
            continue
        here, there = stage.stage_id, found[1]
        name = EdgeName(here, there) if side == "sender" else EdgeName(there, here)
        if isinstance(reference, str):
            if reference not in aliases:
                text = f"no connector is called {reference!r}" + hint(reference, aliases)
                mistakes.add(place, text)
            connector = aliases.get(reference)
        else:
            connector = check(reference, None, place, mistakes)
        yield name, connector, place


def _wires(
    drafts: Mapping[EdgeName, _Draft], ids: Mapping[str, StageModel] | None, mistakes: Mistakes
) -> Iterator[Wire]:
    for name, draft in drafts.items():
        places = [place for _, place in draft.ends.values()] or [draft.place]
        if name.from_stage == name.to_stage:
            mistakes.add(places[0], f"stage {name.from_stage} cannot send to itself")
            continue
        for id in name if ids is not None else ():
            if ids is not None and id not in ids:
                for place in places:
                    mistakes.add(place, f"there is no stage {id!r}" + hint(id, ids))
        nothing = (None, draft.place)
        (sender, _), (receiver, there) = (
            draft.ends.get("sender", nothing),
            draft.ends.get("receiver", nothing),
        )
        if sender and receiver and sender.name != receiver.name:
            text = f"{name} ends in {receiver.name} here and begins in {sender.name}"
            mistakes.add(there, f"{text}; both ends need the same connector")
        sender = sender or receiver or Connector(DEFAULT)
        _one_host(name, sender, ids or {}, places[0], mistakes)
        yield Wire(
            name,
            sender,
            receiver or sender,
            draft.model.window_size if draft.model else -1,
            draft.model.max_inflight if draft.model else 1,
        )


def _one_host(
    name: EdgeName,
    connector: Connector,
    ids: Mapping[str, StageModel],
    place: Place,
    mistakes: Mistakes,
) -> None:
    """Memory of one host does not reach another one."""
    hosts = [ids[id].host if id in ids else None for id in name]
    if None not in hosts and hosts[0] != hosts[1] and not connector.cross_host:
        text = f"the edge {name} goes from host {hosts[0]} to host {hosts[1]}, and "
        text += f"{connector.name} stays on one host; use a connector that crosses hosts"
        mistakes.add(place, text)


def _one_sender_each(plan: StagePlan, place: Place, mistakes: Mistakes) -> None:
    """A stage has one sending endpoint of a kind, so one set of options for it."""
    seen: dict[str, Wire] = {}
    for out in plan.outputs:
        other = seen.setdefault(out.sender.name, out)
        if other.sender.options != out.sender.options:
            text = f"sends to {other.name.to_stage} and to {out.name.to_stage} over "
            text += f"{out.sender.name} with different options; one endpoint serves both"
            mistakes.add(place, text)


def _first(own: bool | None, inherited: bool) -> bool:
    return inherited if own is None else own
