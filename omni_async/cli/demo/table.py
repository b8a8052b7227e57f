"""What the demo shows to people.

In: a run under way, or its result. Out: a line that changes, then tables.
Never: writes to standard output, draws on what is no terminal.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from time import perf_counter

from . import dsp
from .layout import NAMES
from .result import EdgeResult, Result, RoundResult, StageResult
from .supervisor import Run

_FRAME_SECONDS = 0.05
_EDGE_HEAD = (
    *("edge", "cargo", "connector", "chunks", "bytes", "bytes/s"),
    *("latency p50", "p99", "waited"),
)


class ProgressLine:
    """One line on the terminal, drawn anew as the run goes on; nothing where there is none."""

    def __init__(self, shown: bool) -> None:
        self._shown = shown and sys.stderr.isatty()
        self._drawn = 0.0

    def __call__(self, run: Run) -> None:
        now = perf_counter()
        if self._shown and now - self._drawn >= _FRAME_SECONDS:
            self._drawn = now
            sys.stderr.write(f"\r\x1b[K{progress(run, now)}")
            sys.stderr.flush()

    def clear(self) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def progress(run: Run, now: float) -> str:
    """Where a run stands."""
    total = run.options.requests
    if not run.laps:
        ready = sum(child.rounds[0].ready.is_set() for child in run.processes)
        count = len(run.processes)
        return f"starting {count} process{'es' if count > 1 else ''}, {ready} ready"
    if run.checking:
        return f"checking against one process: {len(run.check.verdicts)} of {total} requests"
    lap = run.laps[-1]
    chunks = [max(stage.sent, stage.received) for stage in lap.progress]
    stages = " -> ".join(f"{name} {n}" for name, n in zip(NAMES, chunks, strict=True))
    seconds = now - lap.began
    speed = sum(stage.nbytes for stage in lap.progress) / seconds if seconds else 0
    finished = len(lap.finished)
    how = "" if lap.streaming else "without streaming: "
    line = f"{stages} chunks | {finished} of {total} requests | {size(speed)}/s | {seconds:.1f} s"
    return how + line


def report(result: Result) -> str:
    """The tables and the verdict."""
    first = result.rounds[0]
    rate = dsp.CODEBOOKS * 16 * result.rate / dsp.HOP / 1000
    many = f"{result.requests} requests" if result.requests > 1 else "1 request"
    likeness = "" if result.snr_db is None else f", signal to noise {result.snr_db:.1f} dB"
    by_process = groupby(first.stages, key=lambda stage: stage.process)
    lines = [
        f"{Path(result.recording).name}: {result.sound_seconds:.1f} s at {result.rate} Hz",
        f"{many} in {first.seconds:.2f} s; codes of {rate:.0f} kbit/s{likeness}",
        "",
        *_grid(
            _EDGE_HEAD,
            [_edge(edge) for edge in first.edges],
        ),
        "",
        *_grid(
            ("stage", "name", "event loop late by p50", "p99", "at most"),
            [_process(list(stages)) for _, stages in by_process],
        ),
        "",
        *_grid(
            ("streaming", "first audio after p50", "p99", "all requests", "files"),
            [_round(round) for round in result.rounds],
        ),
        *([] if result.not_compared is None else [f"not compared: {result.not_compared}"]),
        "",
        "latency: from a chunk's sending to usable tensors, about. waited: for credit or space before",
        "that (mean). first audio: from a request's start at the Thinker to its first sound written.",
        "Stages joined by + share a process.",
        "",
        f"written: {result.outputs[0]}"
        + (f" and {len(result.outputs) - 1} more" if len(result.outputs) > 1 else ""),
        _verdict(result),
    ]
    return "\n".join(lines)


def size(nbytes: float) -> str:
    """``12.3 MB``."""
    for unit in ("B", "KB", "MB"):
        if nbytes < 1000:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1000
    return f"{nbytes:.1f} GB"


def milliseconds(value: float) -> str:
    return f"{value:.2f} ms"


def _edge(edge: EdgeResult) -> tuple[str, ...]:
    lost = "" if edge.sent == edge.received else f" of {edge.sent}"
    return (
        edge.edge,
        edge.cargo,
        edge.connector,
        f"{edge.received}{lost}",
        size(edge.nbytes),
        f"{size(edge.nbytes_per_second)}/s",
        milliseconds(edge.latency_ms_p50),
        milliseconds(edge.latency_ms_p99),
        milliseconds(edge.waited_ms_mean),
    )


def _process(stages: Sequence[StageResult]) -> tuple[str, ...]:
    """Its stages share an event loop."""
    lag = stages[0].loop_lag_ms
    figures = [milliseconds(x) for x in (lag.p50, lag.p99, lag.worst)]
    both = (" + ".join(words) for words in zip(*((s.stage, s.name) for s in stages), strict=True))
    return (*both, *figures)


def _round(round: RoundResult) -> tuple[str, ...]:
    first, files = round.first_audio_ms, "identical" if round.identical else "DIFFERENT"
    times = (milliseconds(first.p50), milliseconds(first.p99), f"{round.seconds:.2f} s")
    return ("on" if round.streaming else "off", *times, files)


def _grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns under their heads; words to the left, figures to the right."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    words = [not any(row[i][:1].isdigit() for row in rows) or i == 0 for i in range(len(head))]

    def line(row: Sequence[str]) -> str:
        cells = [
            cell.ljust(width) if word else cell.rjust(width)
            for cell, width, word in zip(row, widths, words, strict=True)
        ]
        return "  ".join(cells).rstrip()

    return [line(head), "  ".join("-" * width for width in widths), *(line(row) for row in rows)]


def _verdict(result: Result) -> str:
    for round in result.rounds:
        how = "streaming" if round.streaming else "without streaming"
        if not round.identical:
            names = ", ".join(round.different)
            return f"DIFFERENT: {how}, {names}: not what one process computes"
        if not round.complete:
            return f"INCOMPLETE: {how}, not every chunk that was sent was received"
    many = "the file is" if result.requests == 1 else f"all {result.requests} files are"
    both = ", with streaming and without" if len(result.rounds) > 1 else ""
    return f"identical: {many} bit for bit what one process computes{both}"
