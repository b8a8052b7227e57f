"""What follows from a deploy file: who sends what to whom over which connector.

In: the parts of a file. Out: stages and edges, or mistakes.
Never: reads a file, opens anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from ..model import EdgeName
from .connectors import Connector, check, differing, filled_in
from .deployment import StagePlan, Wire
from .endpoints import check_ports
from .hosts import may_be_one
from .mistakes import Mistakes, hint
from .models import EdgeModel, Parts, Reference, StageModel
from .tree import Place

_Side = Literal["sender", "receiver"]
_KEYS: dict[_Side, tuple[str, str]] = {
    "sender": ("output_connectors", "to_stage_"),
    "receiver": ("input_connectors", "from_stage_"),
}


@dataclass
class _Draft:
    """An edge while the file is being read: what each end said, and where."""

    place: Place
    ends: dict[_Side, tuple[Connector | None, Place]] = field(default_factory=dict)
    model: EdgeModel | None = None


def wire(
    parts: Parts, mistakes: Mistakes
) -> tuple[dict[str, StagePlan], tuple[Wire, ...], dict[str, Connector]]:
    """Stages, edges, connectors; only to be used when ``mistakes`` is still empty afterwards."""
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
        for source in stage.engine_input_source:
            drafts.setdefault(
                EdgeName(source, stage.stage_id), _Draft(("stages", i, "engine_input_source"))
            )
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
    places: dict[str, Place] = {}
    for i, stage in parts.stages.items():
        places.setdefault(stage.stage_id, ("stages", i))
    for id, plan in plans.items():
        _one_sender_each(plan, places[id], mistakes)
    if parts.every_stage:
        check_ports(plans, places, mistakes)
    known = {alias: connector for alias, connector in aliases.items() if connector is not None}
    return plans, wires, known


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
            if reference not in aliases and not mistakes.baseless:
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
        for id in name if ids is not None and not mistakes.baseless else ():
            if ids is not None and id not in ids:
                for place in places:
                    mistakes.add(place, f"there is no stage {id!r}" + hint(id, ids))
        nothing = (None, draft.place)
        (sender, _), (receiver, there) = (
            draft.ends.get("sender", nothing),
            draft.ends.get("receiver", nothing),
        )
        if sender and receiver:
            _agree(name, sender, receiver, there, mistakes)
        if draft.ends and not (sender or receiver):
            continue  # what it names is wrong, and told as that
        sender = sender or receiver or filled_in()
        _one_host(name, sender, ids or {}, places[0], mistakes)
        yield Wire(
            name,
            sender,
            receiver or sender,
            draft.model.window_size if draft.model else -1,
            draft.model.max_inflight if draft.model else -1,
        )


def _agree(
    name: EdgeName, sender: Connector, receiver: Connector, place: Place, mistakes: Mistakes
) -> None:
    """Both ends have the same connector, and what has to be the same at both of its ends is."""
    if sender.name != receiver.name:
        text = f"{name} ends in {receiver.name} here and begins in {sender.name}"
        mistakes.add(place, f"{text}; both ends need the same connector")
        return
    for option in differing(sender, receiver):
        here, there = (getattr(end.settings, option) for end in (receiver, sender))
        text = f"{option} of {receiver.name} is {here!r} where {name} ends and {there!r} where it begins"
        text += "; both ends need the same value"
        origin = receiver.origins.get(option)
        if origin is not None:
            mistakes.at(origin, text)
        else:
            mistakes.add(place, text)


def _one_host(
    name: EdgeName,
    connector: Connector,
    ids: Mapping[str, StageModel],
    place: Place,
    mistakes: Mistakes,
) -> None:
    """Memory of one host does not reach another one."""
    hosts = [ids[id].host if id in ids else None for id in name]
    if not may_be_one(*hosts) and not connector.cross_host:
        text = f"the edge {name} goes from host {hosts[0]} to host {hosts[1]}, and "
        text += f"{connector.name} stays on one host; use a connector that crosses hosts"
        mistakes.add(place, text)


def _one_sender_each(plan: StagePlan, place: Place, mistakes: Mistakes) -> None:
    """A stage has one sending endpoint of a kind, so one set of options for it."""
    seen: dict[str, Wire] = {}
    for out in plan.outputs:
        other = seen.setdefault(out.sender.name, out)
        if other.sender.settings != out.sender.settings:
            text = f"sends to {other.name.to_stage} and to {out.name.to_stage} over "
            text += f"{out.sender.name} with different options; one endpoint serves both"
            text += ": give them the same, or use another connector for one of them"
            mistakes.add(place, text)


def _first(own: bool | None, inherited: bool) -> bool:
    return inherited if own is None else own
