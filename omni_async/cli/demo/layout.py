"""Which stage plays which part, which stages share a process, whether they stream.

In: a Deploy. Out: a Layout, or an error that says why the demo cannot run this file.
Never: opens or starts anything, imports torch.
"""

from __future__ import annotations

from itertools import permutations
from typing import Any, NamedTuple

from omni_async import BackendUnavailable, ConfigError, Deploy, FrameChunker
from omni_async.deploy import Wire

from ... import registry
from ..on_this_host import check_here

NAMES = ("Thinker", "Talker", "Code2Wav")
CARGO = ("hidden states", "codec frames")
"""What goes along the first edge, and along the second."""

MEMORY = "MemoryConnector"


class Layout(NamedTuple):
    """Three stages in a row, in this order."""

    stages: tuple[str, ...]
    """Their ids."""
    wires: tuple[Wire, Wire]
    processes: tuple[tuple[str, ...], ...]
    """The ids again: a MemoryConnector lives in one process, so its two stages share one."""
    streaming: bool
    """Whether any stage hands over what it makes before its request is done."""

    @classmethod
    def of(cls, deploy: Deploy) -> Layout:
        """What follows from a deploy file.

        Raises:
            ConfigError: other stages than three in a row, or a knob the demo cannot follow.
            BackendUnavailable: nothing here moves bytes over one of the edges.
        """
        first, second = wires = _in_a_row(deploy)
        _available(deploy, wires)
        processes: list[tuple[str, ...]] = [(first.name.from_stage,)]
        for wire in wires:
            if wire.sender.name == MEMORY:
                processes[-1] += (wire.name.to_stage,)
            else:
                processes.append((wire.name.to_stage,))
        for wire in wires:  # the sender's, as it is the one who cuts
            FrameChunker.from_knobs(wire.sender.knobs, f"{deploy.source}: {wire.name}")
        return cls(
            (*first.name, second.name.to_stage),
            wires,
            tuple(processes),
            any(deploy.stage(wire.name.from_stage).async_chunk for wire in wires),
        )

    def without_streaming(self) -> dict[str, Any]:
        """What lies over the deploy file when none of them streams; a stage may say it for itself."""
        stages = [{"stage_id": id, "async_chunk": False} for id in self.stages]
        return {"async_chunk": False, "stages": stages}

    async def check_backends(self) -> None:
        """See that every edge's backend can run here. Cancellation: safe.

        Raises:
            BackendUnavailable: a package, library or device is missing.
            ConfigError: options do not fit this machine.
        """
        for wire in self.wires:
            try:
                await check_here(wire.sender.name, wire.sender.settings)
            except BackendUnavailable as error:
                raise BackendUnavailable(
                    f"{wire.name}: {error}", backend=error.backend, remedy=error.remedy
                ) from error

    def name(self, stage: str) -> str:
        """What a stage is called by its part."""
        return NAMES[self.stages.index(stage)]


def _in_a_row(deploy: Deploy) -> tuple[Wire, Wire]:
    if len(deploy.stages) == 3 and len(deploy.wires) == 2:
        for first, second in permutations(deploy.wires):
            ends = {*first.name, second.name.to_stage}
            if first.name.to_stage == second.name.from_stage and len(ends) == 3:
                return first, second
    stages = ", ".join(deploy.stages)
    edges = ", ".join(str(wire.name) for wire in deploy.wires) or "no edge"
    raise ConfigError(
        f"{deploy.source}: the demo needs three stages in a row, {' -> '.join(NAMES)}; "
        f"there are stages {stages} with {edges}"
    )


def _available(deploy: Deploy, wires: tuple[Wire, ...]) -> None:
    missing: list[tuple[Wire, BackendUnavailable]] = []
    for wire in wires:
        try:
            registry.backend_for(wire.sender.name)
        except BackendUnavailable as error:
            missing.append((wire, error))
    if missing:
        text = "; ".join(f"{wire.name}: {error}" for wire, error in missing)
        remedy = missing[0][1].remedy
        raise BackendUnavailable(
            f"{deploy.source}: {text}; {remedy}", backend=missing[0][1].backend, remedy=remedy
        )
