"""What a deploy file means: its stages, its edges, the connectors on them.

In: parts that were checked. Out: values to ask and to print.
Never: reads a file, opens anything, holds a mistake.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import UsageError
from ..model import EdgeName
from ..transport.streams.window import window_of
from .connectors import Connector
from .environment import OWN_OF_STAGE, escaped
from .mistakes import hint
from .models import FileModel
from .tree import Origin, Place, find

_OWN_SECTIONS = ("connectors", "stages", "edges", "async_chunk")


@dataclass(frozen=True)
class Wire:
    """One edge: its two stages and the connector as each end uses it."""

    name: EdgeName
    sender: Connector
    receiver: Connector
    window_size: int = -1
    max_inflight: int = -1

    @property
    def window(self) -> int:
        """Chunks of one stream that may be under way: sent, and not yet taken by its reader."""
        return window_of(self.window_size, self.max_inflight)


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

    source: str = field(compare=False)
    stages: Mapping[str, StagePlan]
    wires: tuple[Wire, ...]
    connectors: Mapping[str, Connector]
    """By alias, those that no edge uses too."""
    others: Mapping[str, Any] = field(repr=False)
    """``runtime`` and the serving engine's keys, as they were."""
    model: FileModel = field(compare=False, repr=False)
    """The file with its bases, its platform and the environment in it."""
    platform: str | None = field(default=None, compare=False)
    origins: Mapping[Place, Origin] = field(default_factory=dict, compare=False, repr=False)

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

    def origin(self, *place: str | int) -> Origin:
        """Where a value of :attr:`model` was written: ``deploy.origin("stages", 1, "host")``.

        Raises:
            UsageError: no such value; it is a default, or not there at all.
        """
        origin, rest = find(place, self.origins)
        if origin is None or rest:
            raise UsageError(f"{self.source} does not say {'.'.join(map(str, place))!r}")
        return origin

    def dump(self) -> dict[str, Any]:
        """The effective file as plain values: loaded again it gives an equal deployment.

        Without ``base_config``, ``platforms``, older shapes and references to the environment; what is a
        default stays unwritten.
        """
        tree = _plain(self.model)
        for alias, connector in self.connectors.items():
            tree["connectors"][alias] = _written(connector)
        if "edges" in tree:
            tree["edges"] = escaped(tree["edges"])
        for stage in tree.get("stages", []):
            self._dump_stage(stage, self.stages[stage["stage_id"]])
        return tree

    def _dump_stage(self, stage: dict[str, Any], plan: StagePlan) -> None:
        for key in OWN_OF_STAGE:
            if key in stage:
                stage[key] = escaped(stage[key])
        written = {f"from_stage_{w.name.from_stage}": w.receiver for w in plan.inputs}
        written |= {f"to_stage_{w.name.to_stage}": w.sender for w in plan.outputs}
        for key in ("input_connectors", "output_connectors"):
            for end, reference in stage.get(key, {}).items():
                if not isinstance(reference, str):
                    stage[key][end] = _written(written[end])


def others_of(model: FileModel) -> dict[str, Any]:
    """What a file says beside its connectors, stages and edges."""
    return {key: value for key, value in _plain(model).items() if key not in _OWN_SECTIONS}


def _plain(model: FileModel) -> dict[str, Any]:
    return model.model_dump(by_alias=True, exclude_unset=True, exclude={"platforms"})


def _written(connector: Connector) -> dict[str, Any]:
    extra = escaped({**connector.options, **connector.knobs})
    return {"name": connector.name, **({"extra": extra} if extra else {})}
