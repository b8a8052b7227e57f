"""The demo as a user starts it: real processes, real signals, a real end."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import time
import wave
from pathlib import Path
from typing import Any

import pytest

from omni_async.cli.demo import default_deploy
from omni_async.cli.main import main

from .demos import AT_ONCE, DEMO, all_gone, demo, named, running, writing

pytest.importorskip("torch")


def test_it_says_identical_and_is(recording: Path, tmp_path: Path) -> None:
    done = demo("--json", "--input", recording, "--output", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["ok"] is result["identical"] is True
    assert result["different"] == []
    assert result["snr_db"] > 15
    assert result["outputs"] == [str(tmp_path / "out" / "req-0.wav")]
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["req-0.wav"]
    with wave.open(result["outputs"][0]) as output:
        assert (output.getframerate(), output.getnframes()) == (16_000, 24_000)

    from omni_async.cli.demo.audio import Recording
    from omni_async.cli.demo.stages import one_process

    with Recording(recording) as source:
        one_process(source, tmp_path / "alone.wav")
    assert (tmp_path / "alone.wav").read_bytes() == Path(result["outputs"][0]).read_bytes()

    hidden, codes = result["edges"]
    chunks = -(-(24_000 // 256 + 2) // 25)
    assert (hidden["edge"], hidden["sent"], hidden["received"]) == ("0->1", chunks, chunks)
    assert (codes["edge"], codes["sent"], codes["received"]) == ("1->2", chunks, chunks)
    assert hidden["nbytes"] > 24_000 // 256 * 2048 * 2
    assert 0 < hidden["latency_ms_p50"] <= hidden["latency_ms_p99"]
    assert [stage["name"] for stage in result["stages"]] == ["Thinker", "Talker", "Code2Wav"]
    assert all(stage["loop_lag_ms"]["worst"] > 0 for stage in result["stages"])

    off = result["without_streaming"]
    assert (result["streaming"], off["streaming"], result["not_compared"]) == (True, False, None)
    assert off["ok"] is off["identical"] is True
    assert [edge["received"] for edge in off["edges"]] == [chunks, chunks]
    assert 0 < result["first_audio_ms"]["p50"] <= result["first_audio_ms"]["p99"]
    assert result["first_audio_ms"]["p99"] < result["seconds"] * 1e3
    assert off["first_audio_ms"]["p50"] > 0


def test_many_requests_at_once_stay_apart(recording: Path, tmp_path: Path) -> None:
    """More of them than a stage works on at a time."""
    command = ("--requests", "12", "--json", "--no-compare")
    done = demo(*command, "--input", recording, "--output", tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["identical"] is True
    assert (result["without_streaming"], result["not_compared"]) == (None, "it was not wanted")
    files = [Path(name).read_bytes() for name in result["outputs"]]
    assert len(set(files)) == 12  # each request has another part of the recording


def test_a_terminal_gets_a_line_that_moves(recording: Path, tmp_path: Path) -> None:
    terminal, theirs = pty.openpty()
    command = [*DEMO, "--input", str(recording), "--output", str(tmp_path), "--requests", "4"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=theirs) as process:
        os.close(theirs)
        drawn = b""
        with contextlib.suppress(OSError):  # a terminal ends with EIO
            while piece := os.read(terminal, 4096):
                drawn += piece
    os.close(terminal)
    assert process.returncode == 0
    assert b"starting 3 processes" in drawn
    assert b"checking against one process" in drawn
    assert drawn.endswith(b"\r\x1b[K")  # and is gone when the table comes


def test_a_file_that_turns_streaming_off_is_run_as_it_says(recording: Path, tmp_path: Path) -> None:
    deploy = tmp_path / "deploy.yaml"
    deploy.write_text(
        default_deploy().read_text().replace("async_chunk: true", "async_chunk: false")
    )
    done = demo("--deploy", deploy, "--input", recording, "--output", tmp_path / "out")
    assert (done.returncode, done.stderr) == (0, "")
    assert "not compared: async_chunk is false in deploy.yaml\n" in done.stdout
    assert done.stdout.endswith("identical: the file is bit for bit what one process computes\n")
    [row] = [line for line in done.stdout.splitlines() if line.startswith(("on ", "off "))]
    assert row.startswith("off ")


def test_two_demos_at_once_do_not_meet(recording: Path, tmp_path: Path) -> None:
    """One for a machine, one for people."""
    command = [*DEMO, "--input", str(recording), "--output", str(tmp_path / "out")]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    machine = subprocess.Popen([*command, "--json"], **pipes)  # type: ignore[call-overload]
    people = subprocess.Popen(command, **pipes)  # type: ignore[call-overload]
    stdout, stderr = machine.communicate(timeout=50)
    assert (machine.returncode, stderr) == (0, "")
    assert json.loads(stdout)["identical"] is True
    stdout, stderr = people.communicate(timeout=50)
    assert (people.returncode, stderr) == (0, "")  # no terminal, no progress line
    assert "0->1  hidden states  SharedMemoryConnector" in stdout
    told = "what one process computes, with streaming and without\n"
    assert stdout.endswith(f"identical: the file is bit for bit {told}")
    rows = [line.split() for line in stdout.splitlines() if line.startswith(("on ", "off "))]
    assert [(row[0], row[-1]) for row in rows] == [("on", "identical"), ("off", "identical")]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["req-0.wav"]


@pytest.mark.parametrize("role", ["1", "check"])
def test_a_process_that_dies_ends_all(long_recording: Path, tmp_path: Path, role: str) -> None:
    output = tmp_path / "out"
    with running("--json", "--input", long_recording, "--output", output) as (process, children):
        writing(output)
        named(children, role).kill()
        began = time.monotonic()
        stdout, stderr = process.communicate(timeout=20)
        assert time.monotonic() - began < AT_ONCE
        assert process.returncode == 1
        assert all_gone(children)
    text = f"{'stage 1 (Talker)' if role == '1' else 'the check'} was killed by SIGKILL"
    assert stderr == f"omni-async demo: {text}\n"
    assert json.loads(stdout) == {"ok": False, "error": {"type": "DemoFailed", "text": text}}
    assert not output.exists()


def test_a_stage_that_fails_tells_why(recording: Path, tmp_path: Path) -> None:
    """A pool that can never hold a chunk: the Thinker's put says so, and the demo repeats it."""
    deploy = tmp_path / "deploy.json"
    stages = [
        {"stage_id": 0, "output_connectors": {"to_stage_1": shm(memory_pool_size=1 << 16)}},
        {"stage_id": 1, "output_connectors": {"to_stage_2": shm()}},
        {"stage_id": 2},
    ]
    deploy.write_text(json.dumps({"stages": stages}))
    done = demo("--deploy", deploy, "--input", recording, "--output", tmp_path / "out")
    assert (done.returncode, done.stdout) == (1, "")
    lines = done.stderr.splitlines()
    assert lines[-1].startswith("omni-async demo: stage 0 (Thinker) failed: PayloadTooLarge: ")
    assert "memory_pool_size" in lines[-1]
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_ctrl_c_ends_all_at_once(long_recording: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    with running("--input", long_recording, "--output", output) as (process, children):
        writing(output)
        process.send_signal(signal.SIGINT)
        began = time.monotonic()
        stdout, stderr = process.communicate(timeout=20)
        assert time.monotonic() - began < AT_ONCE
        assert all_gone(children)
    assert process.returncode == 130
    assert (stdout, stderr) == ("", "ended: all processes are gone\n")
    assert not output.exists()


def test_it_can_be_ended_while_it_starts(recording: Path, tmp_path: Path) -> None:
    with running("--input", recording, "--output", tmp_path / "out") as (process, children):
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=AT_ONCE)
        assert process.returncode == 128 + signal.SIGTERM
        assert all_gone(children)
    assert not (tmp_path / "out").exists()


def test_children_do_not_outlive_a_demo_that_was_killed(
    long_recording: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    with running("--input", long_recording, "--output", output) as (process, children):
        writing(output)
        process.kill()
        assert all_gone(children)
    assert list(output.iterdir()) == []


def shm(**extra: Any) -> dict[str, Any]:
    return {"name": "SharedMemoryConnector", "extra": extra}


def test_any_file_with_that_wiring_will_do(recording: Path, tmp_path: Path) -> None:
    """Also a pool that holds little more than one chunk: the Thinker then waits for the Talker."""
    deploy = tmp_path / "deploy.json"
    deploy.write_text(
        json.dumps(
            {
                "stages": [
                    {"stage_id": 2, "input_connectors": {"from_stage_1": shm(inline_limit=0)}},
                    {"stage_id": 0, "devices": "0"},
                    {"stage_id": 1, "input_connectors": {"from_stage_0": "tight"}},
                ],
                "connectors": {"tight": shm(memory_pool_size=1 << 18)},
            }
        )
    )
    done = demo(
        *("--deploy", deploy, "--input", recording, "--output", tmp_path, "--requests", "3"),
        "--json",
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["identical"] is True


def test_a_wiring_it_cannot_run_is_refused_before_anything_starts(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, output = tmp_path / "deploy.json", tmp_path / "out"
    path.write_text(json.dumps({"stages": [{"stage_id": 0}]}))
    command = ["demo", "--json", "--input", recording, "--deploy", path, "--output", output]
    assert main([*map(str, command)]) == 1
    said = capsys.readouterr()
    assert "needs three stages in a row" in said.err
    error = json.loads(said.out)["error"]
    assert error["type"] == "ConfigError"
    assert said.err == f"omni-async demo: {error['text']}\n"
    assert not output.exists()


def test_an_input_that_is_no_wav_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "words.wav"
    path.write_text("no sound")
    assert main(["demo", "--input", str(path), "--output", str(tmp_path / "out")]) == 1
    assert capsys.readouterr() == ("", f"omni-async demo: {path}: is not a WAV file\n")


def test_an_output_that_cannot_be_written_is_named(
    recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--input", str(recording), "--output", str(recording / "below")]) == 1
    assert "below: cannot be written (Not a directory)" in capsys.readouterr().err


@pytest.mark.parametrize("count", ["0", "-1", "1001", "many"])
def test_a_count_that_makes_no_sense_is_refused(count: str) -> None:
    done = demo("--requests", count)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--requests" in done.stderr


def test_without_torch_the_remedy_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert main(["demo", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"] == {
        "type": "BackendUnavailable",
        "text": "the demo needs torch: pip install 'omni-async[demo]'",
    }
