"""A demo whose files differ, or whose chunks were lost, does not say that all is well."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from omni_async import EdgeName
from omni_async.cli import demo
from omni_async.cli.demo import default_deploy, words
from omni_async.cli.demo.line import Line
from omni_async.cli.demo.link import Figures, Traffic, quantile
from omni_async.cli.demo.result import EdgeResult, Result, StageResult
from omni_async.cli.demo.supervisor import Child, Options, Run
from omni_async.cli.demo.table import progress, report, size
from omni_async.cli.main import main

FIGURES = Figures(10, 1_000_000, 0.5, 0.25, 1.5, 0.0, 2.0)


def result(*, sent: int = 10, different: tuple[str, ...] = (), requests: int = 1) -> Result:
    return Result(
        recording="tune.wav",
        rate=16_000,
        sound_seconds=1.5,
        requests=requests,
        seconds=0.75,
        snr_db=19.5,
        different=list(different),
        edges=[EdgeResult.of(EdgeName("0", "1"), "hidden states", "SharedMemory", sent, FIGURES)],
        stages=[
            StageResult("0", "Thinker", 0, words.Lag(0.1, 1.0, 12.0)),
            StageResult("1", "Talker", 0, words.Lag(0.1, 1.0, 12.0)),
            StageResult("2", "C", 1, None),
        ],
        outputs=[f"out/req-{i}.wav" for i in range(requests)],
    )


def test_all_is_well() -> None:
    good = result(requests=3)
    assert good.ok
    text = report(good)
    assert "tune.wav: 1.5 s at 16000 Hz" in text
    assert "3 requests in 0.75 s; codes of 16 kbit/s, signal to noise 19.5 dB" in text
    assert "written: out/req-0.wav and 2 more" in text
    assert text.endswith("identical: all 3 files are bit for bit what one process computes")
    row = next(line for line in text.splitlines() if line.startswith("0->1"))
    assert "10  1.0 MB  2.0 MB/s      0.25 ms  1.50 ms  0.00 ms" in row
    assert [line.split() for line in text.splitlines() if line[:1].isdigit()][-2:] == [
        ["0", "+", "1", "Thinker", "+", "Talker", "0.10", "ms", "1.00", "ms", "12.00", "ms"],
        ["2", "C", "-", "-", "-"],
    ]


def test_a_file_that_differs_is_named() -> None:
    bad = result(different=("req-0",))
    assert not bad.ok
    assert report(bad).endswith("DIFFERENT: req-0: not what one process computes")
    assert bad.as_dict()["ok"] is bad.as_dict()["identical"] is False


def test_a_lost_chunk_is_seen() -> None:
    bad = result(sent=11)
    assert bad.identical
    assert not bad.ok
    assert "10 of 11" in report(bad)
    assert report(bad).endswith("INCOMPLETE: not every chunk that was sent was received")


def test_the_exit_status_follows_the_result(
    recording: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("torch")

    async def bad(_: Run) -> Result:
        return result(different=("req-0",))

    monkeypatch.setattr(Run, "result", bad)
    command = ["demo", "--input", str(recording), "--output", str(tmp_path)]
    assert main(command) == 1
    assert "DIFFERENT" in capsys.readouterr().out


def test_a_cancellation_that_no_signal_caused_is_not_hidden(
    recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")

    async def cancelled(_: Run) -> Result:
        raise asyncio.CancelledError

    monkeypatch.setattr(Run, "result", cancelled)
    with pytest.raises(asyncio.CancelledError):
        main(["demo", "--input", str(recording), "--output", str(tmp_path)])


async def test_a_process_that_never_began_has_ended(tmp_path: Path) -> None:
    await Child(words.Job(["0"], "", str(tmp_path), []), ["Thinker"]).end()


def test_a_process_that_meets_a_bug_tells_what_and_where(recording: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    job = words.Job([], str(recording), str(tmp_path / "nowhere"), [words.Request("req-0", 0)])
    command = [sys.executable, "-m", "omni_async.cli.demo.process", "check"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(words.encode(job) + b"\n")
        process.stdin.flush()
        assert words.decode_event(process.stdout.readline()) == words.Ready()
        process.stdin.write(b"go\n")
        process.stdin.flush()
        [event] = map(words.decode_event, process.stdout)
        assert b"Traceback" in process.stderr.read()
    assert process.returncode == 1
    assert isinstance(event, words.Failed)
    assert event.error.startswith("FileNotFoundError: ")


def test_the_check_hears_one_wrong_bit(recording: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from omni_async.cli.demo.audio import Recording
    from omni_async.cli.demo.check import check
    from omni_async.cli.demo.stages import one_process

    requests = [words.Request("right", 0), words.Request("wrong", 500)]
    for request in requests:
        with Recording(recording) as source:
            source.skip(request.skip)
            one_process(source, tmp_path / f"{request.id}.wav")
    wrong = tmp_path / "wrong.wav"
    data = bytearray(wrong.read_bytes())
    data[5000] ^= 1
    wrong.write_bytes(data)

    job = words.Job([], str(recording), str(tmp_path), requests)
    orders, events = os.pipe(), os.pipe()
    os.write(orders[1], words.encode(job) + b"\n")
    line = Line(orders[0], events[1])
    os.write(orders[1], b"go\n")
    assert check(line) == words.Done()
    said = [words.decode_event(text) for text in os.read(events[0], 1 << 16).splitlines()]
    assert isinstance(said[0], words.Ready)
    verdicts = {event.request: event for event in said if isinstance(event, words.Finished)}
    assert verdicts["right"].identical
    assert not verdicts["wrong"].identical
    assert verdicts["right"].snr is not None
    assert sorted(path.name for path in tmp_path.glob("*.wav")) == [
        "right.wav",
        "tune.wav",
        "wrong.wav",
    ]
    os.close(events[0])
    os.close(events[1])


def test_where_a_run_stands(recording: Path, tmp_path: Path) -> None:
    run = Run(Options(recording, default_deploy(), 4, tmp_path), lambda _: None)
    assert progress(run, 0.0) == "starting 3 processes, 0 ready"
    run.processes[0].ready.set()
    assert progress(run, 0.0) == "starting 3 processes, 1 ready"
    run.began = 10.0
    run.processes[0].progress["0"] = words.Progress("0", sent=7)
    run.processes[1].progress["1"] = words.Progress("1", 6, 5, 3_000_000)
    run.processes[2].finished["req-0"] = words.Finished("req-0")
    assert progress(run, 12.0) == (
        "Thinker 7 -> Talker 6 -> Code2Wav 0 chunks | 1 of 4 requests | 1.5 MB/s | 2.0 s"
    )
    run.seconds = 3.0
    assert progress(run, 13.0) == "checking against one process: 0 of 4 requests"


def test_stages_of_one_process_are_told_apart(recording: Path, tmp_path: Path) -> None:
    deploy = tmp_path / "deploy.yaml"
    deploy.write_text(
        "stages: [{stage_id: 0}, {stage_id: 1, input_connectors: {from_stage_0: {name: memory}}},"
        " {stage_id: 2, input_connectors: {from_stage_1: {name: memory}}}]"
    )
    run = Run(Options(recording, deploy, 1, tmp_path), lambda _: None)
    assert progress(run, 0.0) == "starting 1 process, 0 ready"
    run.began = 10.0
    [process] = run.processes
    assert process.name == "the process of stages 0 (Thinker), 1 (Talker), 2 (Code2Wav)"
    process.progress["1"] = words.Progress("1", 6, 5, 1000)
    process.progress["2"] = words.Progress("2", received=4)
    text = "Thinker 0 -> Talker 6 -> Code2Wav 4 chunks | 0 of 1 requests | 1.0 KB/s | 1.0 s"
    assert progress(run, 11.0) == text


def test_requests_begin_at_different_places_of_the_recording(
    recording: Path, tmp_path: Path
) -> None:
    run = Run(Options(recording, default_deploy(), 3, tmp_path), lambda _: None)
    assert [request.skip for request in run.check.job.requests] == [0, 4000, 8000]
    assert len({run.check.job.namespace, *(child.job.namespace for child in run.processes)}) == 1
    other = Run(Options(recording, default_deploy(), 3, tmp_path), lambda _: None)
    assert other.check.job.namespace != run.check.job.namespace
    assert other.work != run.work


def test_latency_begins_when_both_ends_are_there() -> None:
    traffic = Traffic()
    traffic.note(100, put=5_000_000, asked=1_000_000, usable=6_000_000)
    traffic.note(100, put=7_000_000, asked=9_000_000, usable=11_000_000)
    figures = traffic.figures()
    assert (figures.chunks, figures.nbytes, figures.seconds) == (2, 200, 0.006)
    assert (figures.latency_p50, figures.latency_p99) == (2.0, 2.0)
    assert (figures.waited_p50, figures.waited_p99) == (2.0, 2.0)


@pytest.mark.parametrize(("q", "value"), [(0.0, 1), (0.5, 3), (0.99, 4), (1.0, 4)])
def test_quantiles(q: float, value: int) -> None:
    assert quantile([1, 2, 3, 4], q) == value
    assert quantile([], q) == 0


@pytest.mark.parametrize(
    ("nbytes", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 KB"), (2.5e9, "2.5 GB")]
)
def test_sizes(nbytes: float, text: str) -> None:
    assert size(nbytes) == text


def test_a_result_is_plain_json() -> None:
    plain: dict[str, Any] = result().as_dict()
    assert msgspec.json.decode(msgspec.json.encode(plain)) == plain
    assert plain["edges"][0]["edge"] == "0->1"
    assert demo.NAME == "demo"
