"""Is what the pipeline wrote what one process computes?

In: the pipeline's files of all rounds and the recording. Out: a verdict on each request.
Never: touches a transport.
"""

from __future__ import annotations

import filecmp
import math
from pathlib import Path

import numpy as np

from . import words
from .audio import Recording
from .line import Line
from .stages import one_process

_BLOCK = 1 << 16


def check(line: Line) -> words.Done:
    """Compute every request here, all stages in a row, and compare the files byte by byte."""
    job = line.job
    line.wait_for_go()
    for request in job.requests:
        piped = [Path(job.work) / round.file(request.id) for round in job.rounds]
        alone = Path(job.work) / f"{request.id}.alone.wav"
        with Recording(Path(job.recording)) as recording:
            recording.skip(request.skip)
            one_process(recording, alone)
        same = [filecmp.cmp(path, alone, shallow=False) for path in piped]
        alone.unlink()
        snr = likeness(Path(job.recording), request.skip, piped[0])
        line.say(words.Verdict(request.id, same, snr))
    return words.Done()


def likeness(original: Path, skip: int, copy: Path) -> float | None:
    """Signal-to-noise ratio of the copy in decibels; ``None`` when nothing was changed or heard."""
    signal = noise = 0.0
    with Recording(original) as first, Recording(copy) as second:
        first.skip(skip)
        while len(heard := first.read(_BLOCK)):
            signal += float(np.square(heard).sum())
            noise += float(np.square(heard - second.read(_BLOCK)).sum())
    return 10 * math.log10(signal / noise) if signal and noise else None
