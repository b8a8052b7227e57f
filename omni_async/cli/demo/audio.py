"""WAV files: any common one in, 16-bit mono out.

In: a path. Out: samples as whole numbers from -32768 to 32767, or an AudioError that says why not.
Never: holds a whole recording in memory, resamples.
"""

from __future__ import annotations

import importlib.metadata
import struct
import wave
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...errors import UsageError
from .dsp import Floats, Samples

SAMPLE_PACKAGE = "auditok"
"""Ships the recording that the demo uses when it is given none: a proverb, spoken, 17 seconds."""

_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_OTHER_CODINGS = {2: "ADPCM", 6: "A-law", 7: "mu-law", 0x11: "IMA ADPCM", 0x50: "MPEG", 0x55: "MP3"}
_OTHER_FILES = {
    b"OggS": "Ogg",
    b"fLaC": "FLAC",
    b"ID3": "MP3",
    b"\xff\xfb": "MP3",
    b"FORM": "AIFF",
    b"RF64": "RF64",
    b"RIFX": "big-endian RIFF",
    b"caff": "CAF",
}
_UNSIZED = 0xFFFFFFFF
"""Length that a WAV written into a pipe carries."""


class AudioError(UsageError):
    """A file is not a recording the demo can use."""


class Format(NamedTuple):
    """What the ``fmt`` chunk says."""

    coding: int
    channels: int
    rate: int
    bits: int

    @property
    def frame(self) -> int:
        """Bytes of one sample of all channels."""
        return self.channels * self.bits // 8


class Recording:
    """An open WAV file, read from front to back: ``frames`` at ``rate`` Hz, ``left`` to come."""

    def __init__(self, path: Path) -> None:
        """Open and check.

        Raises:
            AudioError: no file, not a WAV, a coding that is not plain samples, or no sound in it.
        """
        self.path = path
        try:
            self._file: BinaryIO = path.open("rb")
        except FileNotFoundError:
            raise AudioError(f"{path}: there is no such file") from None
        except IsADirectoryError:
            raise AudioError(f"{path}: is a directory, not a WAV file") from None
        except OSError as error:
            raise AudioError(f"{path}: cannot be read ({error.strerror})") from error
        try:
            self.format, length = self._head()
        except BaseException:
            self._file.close()
            raise
        self.rate = self.format.rate
        self.frames = length // self.format.frame
        self.left = self.frames

    def __enter__(self) -> Recording:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._file.close()

    def skip(self, frames: int) -> None:
        """Go on ``frames`` later, at most to the end."""
        frames = min(frames, self.left)
        self._file.seek(frames * self.format.frame, 1)
        self.left -= frames

    def read(self, frames: int) -> Floats:
        """The next samples, all channels mixed into one; fewer at the end.

        Raises:
            AudioError: the file became shorter while it was read.
        """
        frames = min(frames, self.left)
        data = self._file.read(frames * self.format.frame)
        if len(data) < frames * self.format.frame:
            raise AudioError(f"{self.path}: ends before its last sample")
        self.left -= frames
        return _mixed(data, self.format)

    def _head(self) -> tuple[Format, int]:
        """The format and the bytes of sound; the file stands at the first of them afterwards."""
        head = self._file.read(12)
        if not head:
            raise AudioError(f"{self.path}: is empty")
        if head[:4] != b"RIFF" or head[8:12] != b"WAVE":
            known = next(
                (name for magic, name in _OTHER_FILES.items() if head.startswith(magic)), None
            )
            raise AudioError(f"{self.path}: is {f'{known}, ' if known else ''}not a WAV file")
        format = None
        for name, length in self._chunks():
            if name == b"fmt ":
                format = self._format(length)
            elif name == b"data":
                if format is None:
                    raise AudioError(f"{self.path}: its sound comes before its format")
                return format, self._sound(format, length)
        raise AudioError(f"{self.path}: has no {'sound' if format else 'format'} in it")

    def _chunks(self) -> Iterator[tuple[bytes, int]]:
        while len(head := self._file.read(8)) == 8:
            name, length = struct.unpack("<4sI", head)
            start = self._file.tell()
            yield name, length
            self._file.seek(start + length + length % 2)

    def _format(self, length: int) -> Format:
        body = self._file.read(min(length, 40))
        if len(body) < 16:
            raise AudioError(f"{self.path}: its format is cut off")
        coding, channels, rate, _, _, bits = struct.unpack_from("<HHIIHH", body)
        if coding == _EXTENSIBLE and len(body) >= 26:
            (coding,) = struct.unpack_from("<H", body, 24)
        if coding not in (_PCM, _FLOAT):
            known = _OTHER_CODINGS.get(coding, f"coding {coding:#06x}")
            raise AudioError(
                f"{self.path}: holds {known}; the demo reads plain samples (PCM, float)"
            )
        if bits not in ((8, 16, 24, 32) if coding == _PCM else (32, 64)):
            raise AudioError(f"{self.path}: has samples of {bits} bits")
        if not 1 <= channels <= 64 or not 1_000 <= rate <= 1_000_000:
            raise AudioError(f"{self.path}: claims {channels} channels at {rate} Hz")
        return Format(coding, channels, rate, bits)

    def _sound(self, format: Format, length: int) -> int:
        start = self._file.tell()
        there = self._file.seek(0, 2) - start
        self._file.seek(start)
        if length == _UNSIZED:
            length = there
        if length > there:
            raise AudioError(
                f"{self.path}: is cut off, {length - there} bytes of sound are missing"
            )
        if length < format.frame:
            raise AudioError(f"{self.path}: has no sound in it")
        return length


def _mixed(data: bytes, format: Format) -> Floats:
    """Samples of all channels to one, as whole numbers of 16 bits."""
    raw: NDArray[np.generic]
    if format.bits == 24:  # to the upper three bytes of 32
        padded = np.zeros((len(data) // 3, 4), np.uint8)
        padded[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
        raw = padded.view("<i4")[:, 0]
    else:
        kind = "f" if format.coding == _FLOAT else "u" if format.bits == 8 else "i"
        raw = np.frombuffer(data, f"<{kind}{format.bits // 8}")
    wide = raw.astype(np.float64)
    if format.coding == _FLOAT:
        wide = np.nan_to_num(wide, nan=0.0, posinf=1.0, neginf=-1.0) * 32768
    elif format.bits == 8:
        wide = (wide - 128) * 256
    else:
        wide = wide / 2.0 ** (raw.itemsize * 8 - 16)
    # Rounded before they are added: sums of whole numbers do not depend on their order.
    whole = np.rint(wide.clip(-32768, 32767)).reshape(-1, format.channels)
    mono: Floats = np.rint(whole.sum(axis=1) / format.channels)
    return mono.clip(-32768, 32767)


class WavWriter:
    """Writes 16-bit mono samples as they come; the header is right once it is closed."""

    def __init__(self, path: Path, rate: int) -> None:
        self._file = wave.open(str(path), "wb")  # noqa: SIM115 - closed by close()
        self._file.setnchannels(1)
        self._file.setsampwidth(2)
        self._file.setframerate(rate)

    def write(self, samples: Samples) -> None:
        self._file.writeframesraw(samples.astype("<i2").tobytes())

    def close(self) -> None:
        self._file.close()


def sample_recording() -> Path:
    """The recording that a package of the extra ``demo`` ships.

    Raises:
        AudioError: the package is not installed, or ships no recording.
    """
    remedy = "install omni-async[demo], or name a file with --input"
    try:
        files = importlib.metadata.files(SAMPLE_PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        raise AudioError(f"no recording: {SAMPLE_PACKAGE} is not installed; {remedy}") from None
    found = [Path(str(file.locate())) for file in files if file.name.endswith(".wav")]
    found = [path for path in found if path.exists()]
    if not found:
        raise AudioError(f"no recording: {SAMPLE_PACKAGE} ships none in this version; {remedy}")
    return max(found, key=lambda path: path.stat().st_size)
