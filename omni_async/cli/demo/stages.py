"""What the three stages compute, chunk by chunk, with nothing between them.

In: sound, then hidden states, then codes. Out: hidden states, then codes, then sound.
Never: sends, waits or knows that the others run in other processes.

Each class holds what one request leaves behind from chunk to chunk. ``one_process`` runs all three
in a row: that is what the demo compares its output with.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from . import dsp
from .audio import Recording, WavWriter
from .chunking import Chunking

_USUAL = Chunking()


class Hidden(NamedTuple):
    """What the Thinker hands on."""

    states: torch.Tensor
    """``[n, 2048]`` bfloat16."""
    last: bool


class Speech(NamedTuple):
    """What the Talker hands on."""

    codes: torch.Tensor
    """``[16, n]`` int32, each below 65,536."""
    last: bool


class Thinker:
    """Stage 0: listens to a recording and thinks of it in hidden states."""

    def __init__(self, recording: Recording, chunking: Chunking = _USUAL) -> None:
        self._recording = recording
        self._lengths = chunking.lengths()
        self._left = -(-recording.left // dsp.HOP) + 1  # every sample lies in two frames
        self._before = np.zeros(dsp.HOP)

    def step(self) -> Hidden:
        """The next chunk. Blocks for about a millisecond."""
        frames = min(next(self._lengths), self._left)
        self._left -= frames
        heard = self._recording.read(frames * dsp.HOP)
        silence = np.zeros(frames * dsp.HOP - len(heard))
        sound = np.concatenate([self._before, heard, silence])
        self._before = sound[-dsp.HOP :]
        states = torch.from_numpy(dsp.spread(dsp.spectrum(sound))).to(torch.bfloat16)
        return Hidden(states, last=self._left == 0)


class Talker:
    """Stage 1: says hidden states in the words of 16 codebooks; keeps codes until a chunk is full."""

    def __init__(self, chunking: Chunking = _USUAL) -> None:
        self._lengths = chunking.lengths()
        self._wanted = next(self._lengths)
        self._codes: dsp.Codes = np.empty((dsp.CODEBOOKS, 0), np.int32)

    def step(self, hidden: Hidden) -> list[Speech]:
        """One chunk in, the chunks that are full out. Blocks for about two milliseconds."""
        lines = dsp.gathered(hidden.states.to(torch.float64).numpy())
        codes: dsp.Codes = np.concatenate([self._codes, dsp.coded(lines)], axis=1)
        full: list[Speech] = []
        while codes.shape[1] >= self._wanted or (hidden.last and codes.shape[1]):
            chunk, codes = codes[:, : self._wanted], codes[:, self._wanted :]
            last = hidden.last and not codes.shape[1]
            full.append(Speech(torch.from_numpy(np.ascontiguousarray(chunk)), last))
            self._wanted = next(self._lengths)
        self._codes = codes
        return full


class Code2Wav:
    """Stage 2: turns codes into a WAV file."""

    def __init__(self, path: Path, rate: int, samples: int) -> None:
        self._wav = WavWriter(path, rate)
        self._left = samples
        self._before: dsp.Floats | None = None

    def step(self, speech: Speech) -> None:
        """One chunk; the last one closes the file. Blocks for about a millisecond."""
        halves = dsp.overlapping(dsp.decoded(speech.codes.numpy())).reshape(-1, 2, dsp.HOP)
        first, second = halves[:, 0], halves[:, 1]
        if self._before is None:  # the very first half frame lies before the recording
            hops = first[1:] + second[:-1]
        else:
            hops = first + np.concatenate([self._before, second[:-1]])
        self._before = second[-1:]
        sound = dsp.rounded(hops.reshape(-1))[: self._left]
        self._wav.write(sound)
        self._left -= len(sound)
        if speech.last:
            self._wav.close()


def one_process(recording: Recording, output: Path) -> None:
    """All three stages in a row, nothing between them. Blocks until the file is written."""
    thinker, talker = Thinker(recording), Talker()
    code2wav = Code2Wav(output, recording.rate, recording.left)
    last = False
    while not last:
        for speech in talker.step(thinker.step()):
            code2wav.step(speech)
            last = speech.last
