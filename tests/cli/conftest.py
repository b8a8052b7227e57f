"""Recordings that the tests of the command line make themselves."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

WriteWav = Callable[..., Path]


def tune(seconds: float, rate: int = 16_000) -> NDArray[np.int16]:
    """A chord that swells and fades over a little noise; the same in every run."""
    t = np.arange(int(seconds * rate)) / rate
    chord = sum(np.sin(2 * np.pi * f * t) for f in (220.0, 277.2, 329.6, 1318.5))
    noise = np.random.default_rng(7).normal(0, 0.02, len(t))
    swell = 0.5 + 0.5 * np.sin(2 * np.pi * 1.5 * t)
    return np.rint((chord / 4 + noise) * swell * 20_000).astype(np.int16)


def wav(
    sound: bytes, *, coding: int = 1, channels: int = 1, rate: int = 16_000, bits: int = 16
) -> bytes:
    """A file with this sound, whatever it claims to be."""
    frame = channels * bits // 8
    form = struct.pack("<HHIIHH", coding, channels, rate, rate * frame, frame, bits)
    body = b"WAVE" + _chunk(b"fmt ", form) + _chunk(b"LIST", b"odd") + _chunk(b"data", sound)
    return _chunk(b"RIFF", body)


def _chunk(name: bytes, body: bytes) -> bytes:
    return name + struct.pack("<I", len(body)) + body + b"\0" * (len(body) % 2)


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """A second and a half of 16-bit mono sound."""
    path = tmp_path / "tune.wav"
    path.write_bytes(wav(tune(1.5).tobytes()))
    return path


@pytest.fixture
def long_recording(tmp_path: Path) -> Path:
    """More than any demo gets through before it is ended."""
    path = tmp_path / "long.wav"
    path.write_bytes(wav(tune(1.5).tobytes() * 4000))
    return path
