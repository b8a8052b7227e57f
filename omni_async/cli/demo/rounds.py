"""Which rounds a run has, and what each of them comes to.

In: a layout, what processes have said. Out: rounds to run, results of those that were.
Never: starts or waits for anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any

from . import dsp, words
from .child import Heard
from .layout import CARGO, Layout
from .onto import together
from .result import EdgeResult, Quantiles, RoundResult, StageResult

ON, OFF = "streaming", "whole"

WHOLE_NBYTES = 1 << 30
"""What stages may keep at a time while streaming is off, for the comparison to be made unasked."""
AT_ONCE = 8
"""Requests that a stage works on at a time; waiting for the others costs nobody anything."""


def planned(
    layout: Layout,
    source: str,
    samples: Sequence[int],
    compare: bool,
    over: dict[str, Any] | None = None,
) -> tuple[list[words.Round], str | None]:
    """The rounds, and why nothing is compared if so.

    Args:
        layout: of the deploy file.
        source: its name.
        samples: of each request's sound.
        compare: whether the user wants it.
        over: what lies over the file in every round.
    """
    over = over or {}
    if not layout.streaming:
        return [words.Round(OFF, over)], f"async_chunk is false in {source}"
    on, off = words.Round(ON, over), words.Round(OFF, together(over, layout.without_streaming()))
    if not compare:
        return [on], "it was not wanted"
    frames = sum(dsp.frames_of(count) for count in sorted(samples)[-AT_ONCE:])
    nbytes = frames * dsp.WIDTH * 2
    if nbytes > WHOLE_NBYTES:
        text = f"without streaming, stages would keep {nbytes / 1e9:.1f} GB of hidden states"
        return [on], text
    return [on, off], None


class Lap:
    """One round as it goes on."""

    def __init__(self, round: words.Round, heard: Sequence[Heard], requests: int) -> None:
        self.streaming = round.name == ON
        self.heard = heard
        """By each process, in the order of their stages."""
        self.began = perf_counter()
        self.seconds = 0.0
        """From the start of the first request to the end of the last one."""
        self._requests = requests

    @property
    def finished(self) -> Mapping[str, words.Finished]:
        """Requests that have left the last stage."""
        return self.heard[-1].finished

    @property
    def progress(self) -> list[words.Progress]:
        """Of each stage, in their order."""
        return [progress for heard in self.heard for progress in heard.progress.values()]

    def note(self) -> None:
        """Something has changed."""
        if not self.seconds and len(self.finished) == self._requests:
            self.seconds = perf_counter() - self.began

    def result(self, layout: Layout, different: list[str]) -> RoundResult:
        """What it came to, with the requests that were found to be different."""
        results = [heard.result for heard in self.heard if heard.result is not None]
        passed = {stage.stage: stage for result in results for stage in result.stages}
        return RoundResult(
            streaming=self.streaming,
            seconds=self.seconds,
            first_audio_ms=Quantiles.of([each.first_audio_ms for each in self.finished.values()]),
            different=different,
            edges=[
                EdgeResult.of(
                    wire.name,
                    cargo,
                    wire.receiver.name,
                    passed[wire.name.from_stage],
                    passed[wire.name.to_stage].received,
                )
                for wire, cargo in zip(layout.wires, CARGO, strict=True)
            ],
            stages=[
                StageResult(stage.stage, layout.name(stage.stage), number, result.lag)
                for number, result in enumerate(results)
                for stage in result.stages
            ],
        )
