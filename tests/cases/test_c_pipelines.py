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


# --- C8: a pipeline with async_chunk: false hangs -------------------------------------------------


@pytest.mark.parametrize(
    ("edges", "flags"),
    [
        ((SHM, SHM), (False, False)),
        ((MEMORY, SHM), (False, False)),
        ((SHM, SHM), (False, True)),  # one stage says it for itself
        ((SHM, SHM), (True, False)),
    ],
)
def test_streaming_off_and_on_give_the_same_sound(tmp_path: Path, edges: Any, flags: Any) -> None:
    recording = tmp_path / "tune.wav"
    recording.write_bytes(wav(tune(1.5).tobytes()))
    sound = {}
    for name, streaming in (("on", (True, True)), ("off", flags)):
        stages = [
            {"stage_id": 0, "output_connectors": {"to_stage_1": edges[0]}},
            {"stage_id": 1, "output_connectors": {"to_stage_2": edges[1]}},
            {"stage_id": 2},
        ]
        for stage, flag in zip(stages, streaming, strict=False):
            stage["async_chunk"] = flag
        deploy = tmp_path / f"{name}.json"
        deploy.write_text(json.dumps({"stages": stages}))
        command = ("--json", "--no-compare", "--requests", "2", "--input", recording)
        done = demo(*command, "--deploy", deploy, "--output", tmp_path / name)
        assert done.returncode == 0, done.stderr
        result = json.loads(done.stdout)
        assert result["streaming"] is any(streaming)
        assert result["identical"] is True
        sound[name] = [Path(path).read_bytes() for path in result["outputs"]]
    assert sound["on"] == sound["off"]
