"""C, pipelines: the same stages with streaming on and off."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import tune, wav
from tests.cli.demos import demo

pytest.importorskip("torch")

SHM = {"name": "SharedMemoryConnector", "extra": {"codec_chunk_frames": 7}}
MEMORY = {"name": "MemoryConnector", "extra": {"codec_chunk_frames": 7}}


def sound(folder: Path, first: Any, flags: tuple[bool, bool]) -> list[bytes]:
    """What the pipeline makes of two requests when its first stages stream, or do not."""
    recording, deploy = folder / "tune.wav", folder / "deploy.json"
    recording.write_bytes(wav(tune(1.5).tobytes()))
    stages = [
        {"stage_id": 0, "async_chunk": flags[0], "output_connectors": {"to_stage_1": first}},
        {"stage_id": 1, "async_chunk": flags[1], "output_connectors": {"to_stage_2": SHM}},
        {"stage_id": 2},
    ]
    deploy.write_text(json.dumps({"stages": stages}))
    command = ("--json", "--no-compare", "--requests", "2", "--input", recording)
    done = demo(*command, "--deploy", deploy, "--output", folder / "out")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["streaming"] is any(flags)
    assert result["identical"] is True
    return [Path(path).read_bytes() for path in result["outputs"]]


# --- C8: a pipeline with async_chunk: false hangs -------------------------------------------------


@pytest.fixture(scope="module")
def streamed(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    return sound(tmp_path_factory.mktemp("on"), SHM, (True, True))


@pytest.mark.parametrize(("first", "flags"), [(SHM, (False, False)), (MEMORY, (False, True))])
def test_streaming_off_and_on_give_the_same_sound(
    streamed: list[bytes], tmp_path: Path, first: Any, flags: tuple[bool, bool]
) -> None:
    """Everywhere, and where one stage says it for itself."""
    assert sound(tmp_path, first, flags) == streamed
