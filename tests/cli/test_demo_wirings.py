"""The demo from other deploy files: stages that share a process, and a file of the peer's."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from omni_async import load_deploy

from .demos import AT_ONCE, all_gone, demo, named, running, writing

pytest.importorskip("torch")

EXAMPLES = Path(__file__).parents[2] / "examples" / "deploy"
QWEN = Path(__file__).parent / "data" / "qwen3_omni_moe.yaml"

FRAMES = 24_000 // 256 + 2
"""Of the recording; see ``Thinker``."""


def ran(recording: Path, deploy: Path, output: Path, requests: int = 1) -> dict[str, Any]:
    """The result of a demo that found all files identical and lost no chunk."""
    done = demo(
        *("--json", "--input", recording, "--deploy", deploy, "--output", output),
        *("--requests", str(requests)),
    )
    assert (done.returncode, done.stderr) == (0, "")
    result: dict[str, Any] = json.loads(done.stdout)
    assert result["ok"] is result["identical"] is True
    assert [edge["received"] for edge in result["edges"]] == [
        edge["sent"] for edge in result["edges"]
    ]
    assert len(result["outputs"]) == requests
    return result


def chunks(first: int, later: int) -> int:
    return 1 + -(-(FRAMES - first) // later)


@pytest.fixture
def one_process(tmp_path: Path) -> Path:
    """Both edges in memory, each with chunks of its own."""
    path = tmp_path / "memory.json"
    edges = [
        {"name": "MemoryConnector", "extra": {"codec_chunk_frames": 10}},
        {"name": "memory", "extra": {"initial_codec_chunk_frames": 1, "codec_chunk_frames": 7}},
    ]
    stages = [
        {"stage_id": 0, "output_connectors": {"to_stage_1": edges[0]}},
        {"stage_id": 1, "output_connectors": {"to_stage_2": edges[1]}},
        {"stage_id": 2},
    ]
    path.write_text(json.dumps({"stages": stages}))
    return path


def test_memory_on_one_edge_and_shared_memory_on_the_next(recording: Path, tmp_path: Path) -> None:
    result = ran(recording, EXAMPLES / "mixed.yaml", tmp_path / "out", requests=3)
    connectors = [edge["connector"] for edge in result["edges"]]
    assert connectors == ["MemoryConnector", "SharedMemoryConnector"]
    assert [stage["name"] for stage in result["stages"]] == ["Thinker", "Talker", "Code2Wav"]
    assert [stage["process"] for stage in result["stages"]] == [0, 0, 1]
    thinker, talker, code2wav = (stage["loop_lag_ms"] for stage in result["stages"])
    assert thinker == talker != code2wav
    assert all(edge["latency_ms_p50"] > 0 for edge in result["edges"])


def test_all_stages_in_one_process(recording: Path, one_process: Path, tmp_path: Path) -> None:
    result = ran(recording, one_process, tmp_path / "out", requests=2)
    assert [stage["process"] for stage in result["stages"]] == [0, 0, 0]
    first, second = result["edges"]
    later = -(-(24_000 - 24_000 // 4) // 256) + 1  # the second request begins a quarter later
    assert first["sent"] == chunks(10, 10) + -(-later // 10)
    assert second["sent"] == chunks(1, 7) + 1 + -(-(later - 1) // 7)


def test_the_wiring_of_the_peers_file(recording: Path, tmp_path: Path) -> None:
    result = ran(recording, QWEN, tmp_path / "out")
    assert [edge["sent"] for edge in result["edges"]] == [chunks(4, 25)] * 2
    assert {edge["connector"] for edge in result["edges"]} == {"SharedMemoryConnector"}


def test_the_peers_file_itself(recording: Path, tmp_path: Path, peer_wheel: Path) -> None:
    theirs = peer_wheel / "vllm_omni" / "deploy" / "qwen3_omni_moe.yaml"
    assert load_deploy(theirs).wires == load_deploy(QWEN).wires
    result = ran(recording, theirs, tmp_path / "out", requests=2)
    assert result["edges"][0]["edge"] == "0->1"


def test_ctrl_c_ends_stages_that_share_a_process(
    long_recording: Path, one_process: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    command = ("--input", long_recording, "--deploy", one_process, "--output", output)
    with running(*command, count=2) as (process, children):
        writing(output)
        named(children, "0-Thinker+1-Talker+2-Code2Wav")
        process.send_signal(signal.SIGINT)
        began = time.monotonic()
        stdout, stderr = process.communicate(timeout=20)
        assert time.monotonic() - began < AT_ONCE
        assert len(children) == 2  # the stages, the check
        assert all_gone(children)
    assert process.returncode == 130
    assert (stdout, stderr) == ("", "ended: all processes are gone\n")
    assert not output.exists()


def test_a_shared_process_that_dies_is_told_by_its_stages(
    long_recording: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    deploy = EXAMPLES / "mixed.yaml"
    command = ("--input", long_recording, "--deploy", deploy, "--output", output)
    with running(*command, count=3) as (process, children):
        writing(output)
        os.kill(named(children, "0-Thinker+1-Talker").pid, signal.SIGKILL)
        _, stderr = process.communicate(timeout=20)
        assert process.returncode == 1
        assert all_gone(children)
    text = "the process of stages 0 (Thinker), 1 (Talker) was killed by SIGKILL"
    assert stderr == f"omni-async demo: {text}\n"


def test_a_failure_in_a_shared_process_is_told(recording: Path, tmp_path: Path) -> None:
    deploy = tmp_path / "deploy.json"
    tight = {"name": "memory", "extra": {"memory_pool_size": 1 << 16}}
    stages = [
        {"stage_id": 0, "output_connectors": {"to_stage_1": tight}},
        {"stage_id": 1, "output_connectors": {"to_stage_2": {"name": "SharedMemoryConnector"}}},
        {"stage_id": 2},
    ]
    deploy.write_text(json.dumps({"stages": stages}))
    done = demo("--deploy", deploy, "--input", recording, "--output", tmp_path / "out")
    assert (done.returncode, done.stdout) == (1, "")
    last = done.stderr.splitlines()[-1]
    start = "omni-async demo: the process of stages 0 (Thinker), 1 (Talker) failed: "
    assert last.startswith(f"{start}PayloadTooLarge: ")
    assert "Traceback" not in done.stderr
