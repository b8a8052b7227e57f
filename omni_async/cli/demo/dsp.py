"""The arithmetic of the demo: sound to spectrum to hidden states to codes, and back.

In: arrays. Out: arrays, the same to the last bit in every process and on every machine.
Never: keeps state, reads files, knows about stages.

Every sum below adds whole numbers (or whole numbers over a power of two) that stay under 2**53, so
float64 holds each of them exactly: neither the order of summation nor the number of threads nor the
BLAS at work can change a result. That is what lets the demo compare files bit by bit.

Four steps, each with its way back:

========  =========================  ===================================================
sound     ``HOP`` samples a frame    16-bit PCM as whole numbers
spectrum  ``HOP`` lines a frame      MDCT: windows of two hops, each half shared with a neighbour
hidden    ``WIDTH`` values a frame   the lines spread by an orthogonal matrix of signs
codes     ``CODEBOOKS`` a frame      the strongest line, then the strongest of what is left, ...
========  =========================  ===================================================
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

HOP = 256
"""Samples between two frames, and lines of a spectrum."""
WIDTH = 2048
"""Values in a hidden state."""
CODEBOOKS = 16
ENTRIES = 65_536
"""Entries of a codebook: 256 lines x 2 signs x 128 levels."""
LEVELS = 128

_FINE = 2.0**22
"""The MDCT's window and cosines are kept as whole multiples of 1 / 2**22."""

Floats = NDArray[np.float64]
Codes = NDArray[np.int32]
Samples = NDArray[np.int16]


def frames_of(samples: int) -> int:
    """How many frames a recording makes: every sample lies in two of them."""
    return -(-samples // HOP) + 1


def spectrum(sound: Floats) -> Floats:
    """MDCT of ``[(n + 1) * HOP]`` samples: ``[n, HOP]``, frame i from hops i and i + 1."""
    hops = sound.reshape(-1, HOP)
    frames = np.concatenate([hops[:-1], hops[1:]], axis=1)
    lines: Floats = frames @ _mdct() / _FINE
    return lines


def overlapping(lines: Floats) -> Floats:
    """The way back of :func:`spectrum`: ``[n, 2 * HOP]``.

    A hop of sound is the second half of its first frame plus the first half of its second.
    """
    halves: Floats = lines @ _mdct().T / _FINE
    return halves


def spread(lines: Floats) -> Floats:
    """``[n, HOP]`` lines to ``[n, WIDTH]`` hidden values, whole numbers."""
    hidden: Floats = np.rint(lines @ _signs())
    return hidden


def gathered(hidden: Floats) -> Floats:
    """The way back of :func:`spread`."""
    lines: Floats = hidden @ _signs().T / WIDTH
    return lines


def coded(lines: Floats) -> Codes:
    """``[n, HOP]`` lines to ``[CODEBOOKS, n]`` codes.

    Each codebook speaks for the strongest line that the ones before it left over: where it is, its
    sign and its level. The first codebooks already sound like the recording, the later ones refine.
    """
    left = lines.copy()
    frames = np.arange(len(lines))
    codes = np.empty((CODEBOOKS, len(lines)), np.int32)
    for book in codes:
        strongest = np.argmax(np.abs(left), axis=1)
        value = left[frames, strongest]
        level = np.searchsorted(_thresholds(), np.abs(value))
        negative = value < 0
        left[frames, strongest] -= np.where(negative, -1, 1) * _levels()[level]
        book[:] = (strongest * 2 + negative) * LEVELS + level
    return codes


def decoded(codes: Codes) -> Floats:
    """The way back of :func:`coded`: what the codebooks say, added up."""
    lines = np.zeros((codes.shape[1], HOP))
    frames = np.arange(codes.shape[1])
    for book in codes:
        where, level = np.divmod(book, LEVELS)
        line, negative = np.divmod(where, 2)
        lines[frames, line] += np.where(negative == 1, -1, 1) * _levels()[level]
    return lines


def rounded(sound: Floats) -> Samples:
    """Nearest 16-bit samples."""
    return np.clip(np.rint(sound), -32768, 32767).astype(np.int16)


def prepare() -> None:
    """Compute the tables now, so that no request waits for them."""
    for table in (_mdct, _signs, _levels, _thresholds):
        table()


@lru_cache(maxsize=1)
def _mdct() -> Floats:
    """``[2 * HOP, HOP]``, window and cosines, orthonormal over overlapping frames, times 2**22."""
    n = np.arange(2 * HOP)[:, None] + 0.5
    k = np.arange(HOP) + 0.5
    window = np.sin(np.pi * n / (2 * HOP))
    waves = np.cos(np.pi / HOP * (n + HOP / 2) * k)
    matrix: Floats = np.rint(window * waves * np.sqrt(2 / HOP) * _FINE)
    return matrix


@lru_cache(maxsize=1)
def _signs() -> Floats:
    """``[HOP, WIDTH]`` of +1 and -1: rows of a Hadamard matrix, its columns flipped at random.

    Any two rows are orthogonal; the fixed flips keep a single line from looking like a comb.
    """
    both = np.arange(HOP)[:, None] & np.arange(WIDTH)
    odd = np.zeros_like(both)
    while both.any():
        odd ^= both & 1
        both >>= 1
    flips = np.unpackbits(np.frombuffer(hashlib.shake_256(b"hidden").digest(WIDTH // 8), np.uint8))
    return (1.0 - 2.0 * odd) * (1.0 - 2.0 * flips)


@lru_cache(maxsize=1)
def _levels() -> Floats:
    """``[LEVELS]`` whole numbers in steps of 0.75 dB up to full scale; the first is silence."""
    loud = np.rint(2.0 ** (19 - np.arange(LEVELS - 1) / 8))
    return np.concatenate([[0.0], loud[::-1]])


@lru_cache(maxsize=1)
def _thresholds() -> Floats:
    """``[LEVELS - 1]``: halfway between neighbouring levels."""
    return (_levels()[:-1] + _levels()[1:]) / 2
