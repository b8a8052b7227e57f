"""The demo's arithmetic: it sounds like its input, and it is exact."""

from __future__ import annotations

import hashlib
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from omni_async.cli.demo import dsp

from .conftest import tune, wav

LOUDEST = 32767


def padded(samples: NDArray[np.int16]) -> dsp.Floats:
    """Whole hops with a silent one at each end."""
    tail = -len(samples) % dsp.HOP + dsp.HOP
    return np.concatenate([np.zeros(dsp.HOP), samples.astype(np.float64), np.zeros(tail)])


def joined(halves: dsp.Floats) -> dsp.Floats:
    first, second = np.split(halves, 2, axis=1)
    hops: dsp.Floats = (first[1:] + second[:-1]).reshape(-1)
    return hops


def snr(signal: dsp.Floats, copy: dsp.Floats) -> float:
    return 10 * math.log10(float((signal**2).sum()) / float(((signal - copy) ** 2).sum()))


def test_the_spectrum_gives_the_sound_back() -> None:
    sound = padded(tune(0.5))
    back = dsp.rounded(joined(dsp.overlapping(dsp.spectrum(sound))))
    assert back.tolist() == sound[dsp.HOP : -dsp.HOP].tolist()


def test_the_hidden_space_keeps_lengths_and_angles() -> None:
    lines = np.random.default_rng(1).integers(-20_000, 20_000, (40, dsp.HOP)).astype(np.float64)
    hidden = dsp.spread(lines)
    assert hidden.shape == (40, dsp.WIDTH)
    assert (dsp.gathered(hidden) == lines).all()
    assert (hidden @ hidden.T == lines @ lines.T * dsp.WIDTH).all()


def test_hidden_states_look_like_noise_not_like_their_line() -> None:
    line = np.zeros((1, dsp.HOP))
    line[0, 17] = 1000
    hidden = dsp.spread(line)
    assert set(np.abs(hidden).ravel()) == {1000}
    assert abs(hidden.sum()) < 1000 * 6 * math.sqrt(dsp.WIDTH)


def test_codes_are_entries_of_sixteen_codebooks() -> None:
    codes = dsp.coded(dsp.spectrum(padded(tune(0.5))))
    assert codes.shape[0] == dsp.CODEBOOKS
    assert codes.dtype == np.int32
    assert codes.min() >= 0
    assert codes.max() < dsp.ENTRIES


def test_each_codebook_refines_what_those_before_it_said() -> None:
    lines = dsp.spectrum(padded(tune(0.5)))
    codes = dsp.coded(lines)
    quality = [snr(lines, dsp.decoded(codes[:n])) for n in range(1, dsp.CODEBOOKS + 1)]
    assert quality == sorted(quality)
    assert quality[-1] > 15


def test_silence_stays_silent_and_full_scale_stays_whole() -> None:
    silence = np.zeros((3, dsp.HOP))
    assert (dsp.decoded(dsp.coded(silence)) == 0).all()
    square = np.where(np.arange(8 * dsp.HOP) // 32 % 2, -32768.0, 32767.0)
    lines = dsp.spectrum(square)
    assert snr(lines, dsp.decoded(dsp.coded(lines))) > 10


@settings(max_examples=30, deadline=None)
@given(
    hnp.arrays(
        np.int16,
        hnp.array_shapes(min_dims=1, max_dims=1, min_side=1, max_side=3000),
        elements=st.integers(-32768, LOUDEST),
    )
)
def test_sums_are_exact_so_their_order_cannot_matter(samples: NDArray[np.int16]) -> None:
    """Backwards, by columns, frame by frame or all at once: the same bits."""
    sound = padded(samples)
    lines = dsp.spectrum(sound)
    frames = [dsp.spectrum(sound[i * dsp.HOP : (i + 2) * dsp.HOP]) for i in range(len(lines))]
    assert (np.concatenate(frames) == lines).all()
    matrix = dsp._mdct()
    hops = sound.reshape(-1, dsp.HOP)
    window = np.concatenate([hops[0], hops[1]])
    backwards = np.ascontiguousarray(window[::-1]) @ np.ascontiguousarray(matrix[::-1]) / 2**22
    assert (backwards == lines[0]).all()
    exact = sum(Fraction(a) * Fraction(b) for a, b in zip(window, matrix[:, 3], strict=True))
    assert Fraction(lines[0, 3]) == exact / 2**22
    hidden = dsp.spread(lines)
    exact = sum(Fraction(a) * int(b) for a, b in zip(lines[0], dsp._signs()[:, 5], strict=True))
    assert Fraction(hidden[0, 5]) == round(exact)
    codes = dsp.coded(lines)
    assert (np.concatenate([dsp.coded(line[None]) for line in lines], axis=1) == codes).all()


# With torch: the three stages in a row


def processed(tmp_path: Path, samples: NDArray[np.int16]) -> bytes:
    pytest.importorskip("torch")
    from omni_async.cli.demo.audio import Recording
    from omni_async.cli.demo.stages import one_process

    source, output = tmp_path / "in.wav", tmp_path / "out.wav"
    source.write_bytes(wav(samples.tobytes()))
    with Recording(source) as recording:
        one_process(recording, output)
    return output.read_bytes()


def test_the_file_is_the_same_on_every_machine(tmp_path: Path) -> None:
    """Not only in every process: the arithmetic has nothing in it that could differ."""
    i = np.arange(30_000)
    samples = ((i * i // 50 % 20_001 - 10_000) * (i % 7_000) // 7_000).astype(np.int16)
    digest = hashlib.sha256(processed(tmp_path, samples)).hexdigest()
    assert digest == "b83701d4298231573bf6bc590aca7a0dc2ec064a6c006e1229dce1fc11c3d44b"


def test_the_output_sounds_like_the_input(tmp_path: Path) -> None:
    samples = tune(2.0)
    output = np.frombuffer(processed(tmp_path, samples)[44:], "<i2")
    assert snr(samples.astype(np.float64), output.astype(np.float64)) > 15


def test_speech_sounds_like_itself(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("auditok")
    from omni_async.cli.demo.audio import Recording, sample_recording

    with Recording(sample_recording()) as recording:
        recording.skip(recording.frames // 4)
        spoken = recording.read(2 * recording.rate)
    output = np.frombuffer(processed(tmp_path, spoken.astype(np.int16))[44:], "<i2")
    assert snr(spoken, output.astype(np.float64)) > 15


@pytest.mark.parametrize(
    "length", [1, 255, 256, 257, 25 * 256 - 1, 25 * 256, 24 * 256 + 1, 26 * 256]
)
def test_every_length_comes_back_whole(tmp_path: Path, length: int) -> None:
    output = processed(tmp_path, tune(2.0)[:length])
    assert len(output) == 44 + 2 * length
