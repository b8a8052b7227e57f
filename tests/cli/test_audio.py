"""WAV files in: every common coding sounds the same, everything else is named."""

from __future__ import annotations

import struct
import wave
from pathlib import Path

import numpy as np
import pytest

from omni_async import UsageError
from omni_async.cli.demo import audio
from omni_async.cli.demo.audio import AudioError, Recording, WavWriter

from .conftest import tune, wav

SOUND = tune(0.1)


def heard(path: Path) -> list[float]:
    with Recording(path) as recording:
        assert recording.rate == 16_000
        assert recording.frames == recording.left == len(SOUND)
        return list(recording.read(10**9))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "some.wav"


def test_sixteen_bits_arrive_as_they_are(path: Path) -> None:
    path.write_bytes(wav(SOUND.tobytes()))
    assert heard(path) == SOUND.tolist()


@pytest.mark.parametrize(
    ("coding", "bits", "data"),
    [
        (1, 32, (SOUND.astype("<i4") << 16).tobytes()),
        (1, 24, (SOUND.astype("<i4") << 8).view(np.uint8).reshape(-1, 4)[:, :3].tobytes()),
        (3, 32, (SOUND / 32768).astype("<f4").tobytes()),
        (3, 64, (SOUND / 32768).astype("<f8").tobytes()),
    ],
)
def test_wider_samples_are_the_same_sound(path: Path, coding: int, bits: int, data: bytes) -> None:
    path.write_bytes(wav(data, coding=coding, bits=bits))
    assert heard(path) == SOUND.tolist()


def test_eight_bits_are_unsigned(path: Path) -> None:
    path.write_bytes(wav((SOUND // 256 + 128).astype(np.uint8).tobytes(), bits=8))
    assert heard(path) == (SOUND // 256 * 256).tolist()


def test_channels_are_mixed(path: Path) -> None:
    both = np.stack([SOUND, np.zeros_like(SOUND)], axis=1)
    path.write_bytes(wav(both.tobytes(), channels=2))
    assert heard(path) == np.rint(SOUND / 2).tolist()


def test_floats_beyond_full_scale_are_clipped(path: Path) -> None:
    wild = np.array([np.nan, np.inf, -np.inf, 3.0, -3.0] * 320, "<f4")
    path.write_bytes(wav(wild.tobytes(), coding=3, bits=32))
    assert heard(path)[:5] == [0, 32767, -32768, 32767, -32768]


def test_the_extensible_header_is_read(path: Path) -> None:
    plain = wav(SOUND.tobytes())
    more = struct.pack("<HHI", 22, 16, 4) + struct.pack("<H", 1) + b"\0" * 14
    form = struct.pack("<HHIIHH", 0xFFFE, 1, 16_000, 32_000, 2, 16) + more
    assert plain[12:20] == b"fmt " + struct.pack("<I", 16)
    path.write_bytes(plain[:12] + b"fmt " + struct.pack("<I", len(form)) + form + plain[36:])
    assert heard(path) == SOUND.tolist()


def test_a_file_written_into_a_pipe_has_no_length(path: Path) -> None:
    data = bytearray(wav(SOUND.tobytes()))
    at = data.index(b"data") + 4
    data[at : at + 4] = b"\xff\xff\xff\xff"
    path.write_bytes(data)
    assert heard(path) == SOUND.tolist()


def test_reading_in_pieces_and_from_the_middle(path: Path) -> None:
    path.write_bytes(wav(SOUND.tobytes()))
    with Recording(path) as recording:
        recording.skip(600)
        assert recording.left == 1000
        pieces = [recording.read(300) for _ in range(5)]
        recording.skip(10)
    assert [len(piece) for piece in pieces] == [300, 300, 300, 100, 0]
    assert np.concatenate(pieces).tolist() == SOUND[600:].tolist()


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "is empty"),
        (b"not a wav at all, just words", "is not a WAV file"),
        (b"RIFF\0\0\0\0AVI LIST", "is not a WAV file"),
        (b"fLaC\0\0\0\x22" * 4, "is FLAC, not a WAV file"),
        (b"OggS\0\0\0\x22" * 4, "is Ogg, not a WAV file"),
        (b"ID3\x04\0\0\0\0" * 4, "is MP3, not a WAV file"),
        (wav(b"\0" * 64, coding=6, bits=8), "holds A-law"),
        (wav(b"\0" * 64, coding=0x161), "holds coding 0x0161"),
        (wav(b"\0" * 64, bits=12), "has samples of 12 bits"),
        (wav(b"\0" * 64, coding=3, bits=16), "has samples of 16 bits"),
        (wav(b"\0" * 64, channels=0), "claims 0 channels at 16000 Hz"),
        (wav(b"\0" * 64, rate=0), "claims 1 channels at 0 Hz"),
        (wav(b""), "has no sound in it"),
        (wav(b"\0"), "has no sound in it"),
        (wav(b"\0" * 64)[:-20], "is cut off, 20 bytes of sound are missing"),
        (wav(b"\0" * 64)[:20], "its format is cut off"),
        (wav(b"\0" * 64)[:36], "has no sound in it"),
        (b"RIFF\x04\0\0\0WAVE", "has no format in it"),
        (b"RIFF\x10\0\0\0WAVEdata\x04\0\0\0abcd", "its sound comes before its format"),
    ],
)
def test_what_cannot_be_used_is_named(path: Path, data: bytes, text: str) -> None:
    path.write_bytes(data)
    with pytest.raises(AudioError, match=text) as caught:
        Recording(path)
    assert str(path) in str(caught.value)
    assert isinstance(caught.value, UsageError)


def test_a_missing_file_and_a_directory_are_named(tmp_path: Path) -> None:
    with pytest.raises(AudioError, match="there is no such file"):
        Recording(tmp_path / "none.wav")
    with pytest.raises(AudioError, match="is a directory"):
        Recording(tmp_path)


def test_a_file_that_shrinks_while_it_is_read_is_named(path: Path) -> None:
    path.write_bytes(wav(tune(2.0).tobytes()))
    with Recording(path) as recording:
        recording.read(100)
        path.write_bytes(path.read_bytes()[:30_000])
        with pytest.raises(AudioError, match="ends before its last sample"):
            recording.read(30_000)


def test_what_is_written_is_what_others_read(path: Path) -> None:
    writer = WavWriter(path, 16_000)
    writer.write(SOUND[:700])
    writer.write(SOUND[700:])
    writer.close()
    with wave.open(str(path)) as other:
        assert other.getparams()[:4] == (1, 2, 16_000, len(SOUND))
        assert other.readframes(10**6) == SOUND.tobytes()
    assert heard(path) == SOUND.tolist()


def test_without_the_package_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audio, "SAMPLE_PACKAGE", "omni-async-no-such-package")
    with pytest.raises(AudioError, match=r"install omni-async\[demo\], or name a file"):
        audio.sample_recording()
    monkeypatch.setattr(audio, "SAMPLE_PACKAGE", "pytest")
    with pytest.raises(AudioError, match="ships none in this version"):
        audio.sample_recording()
