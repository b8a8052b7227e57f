"""What the three stages compute, piece by piece, with nothing between them.

In: sound, then hidden states, then codes. Out: hidden states, then codes, then sound.
Never: sends, waits or knows that the others run in other processes.

Each class holds what one request leaves behind from piece to piece; how long the pieces are changes
nothing. ``one_process`` runs all three in a row: that is what the demo compares its output with.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from . import dsp
from .audio import Recording, WavWriter

STEP_FRAMES = 20
"""Frames that the Thinker makes at a time, whatever a chunk is."""


class Hidden(NamedTuple):
    """What the Thinker makes in a step."""

    states: torch.Tensor
    """``[n, 2048]`` bfloat16."""
    last: bool


class Thinker:
    """Stage 0: listens to a recording and thinks of it in hidden states."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._left = dsp.frames_of(recording.left)
        self._before = np.zeros(dsp.HOP)

    def step(self) -> Hidden:
        """The next states. Blocks for about a millisecond."""
        frames = min(STEP_FRAMES, self._left)
        self._left -= frames
        heard = self._recording.read(frames * dsp.HOP)
        silence = np.zeros(frames * dsp.HOP - len(heard))
        sound = np.concatenate([self._before, heard, silence])
        self._before = sound[-dsp.HOP :]
        states = torch.from_numpy(dsp.spread(dsp.spectrum(sound))).to(torch.bfloat16)
        return Hidden(states, last=self._left == 0)


def talk(states: torch.Tensor) -> torch.Tensor:
    """Stage 1, the Talker: says hidden states ``[n, 2048]`` in the words of 16 codebooks.

    Returns codes ``[16, n]`` int32, each below 65,536. Blocks for about two milliseconds.
    """
    return torch.from_numpy(dsp.coded(dsp.gathered(states.to(torch.float64).numpy())))


class Code2Wav:
    """Stage 2: turns codes into a WAV file."""

    def __init__(self, path: Path, rate: int, samples: int) -> None:
        self._wav = WavWriter(path, rate)
        self._left = samples
        self._before: dsp.Floats | None = None

    def step(self, codes: torch.Tensor) -> int:
        """The next codes; returns how many samples of sound they were. Blocks for about a millisecond."""
        halves = dsp.overlapping(dsp.decoded(codes.numpy())).reshape(-1, 2, dsp.HOP)
        first, second = halves[:, 0], halves[:, 1]
        if self._before is None:  # the very first half frame lies before the recording
            hops = first[1:] + second[:-1]
        else:
            hops = first + np.concatenate([self._before, second[:-1]])
        self._before = second[-1:]
        sound = dsp.rounded(hops.reshape(-1))[: self._left]
        self._wav.write(sound)
        self._left -= len(sound)
        return len(sound)

    def close(self) -> None:
        """The file is whole. Blocks."""
        self._wav.close()


def one_process(recording: Recording, output: Path) -> None:
    """All three stages in a row, nothing between them. Blocks until the file is written."""
    thinker = Thinker(recording)
    code2wav = Code2Wav(output, recording.rate, recording.left)
    last = False
    while not last:
        states, last = thinker.step()
        code2wav.step(talk(states))
    code2wav.close()
