"""A demo whose files differ, or whose chunks were lost, does not say that all is well."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from omni_async import EdgeName
from omni_async.cli import demo
from omni_async.cli.demo import default_deploy, words
from omni_async.cli.demo.child import Child
from omni_async.cli.demo.line import Line
from omni_async.cli.demo.result import EdgeResult, Quantiles, Result, RoundResult, StageResult
from omni_async.cli.demo.rounds import OFF, ON, Lap
from omni_async.cli.demo.supervisor import Options, Run
from omni_async.cli.demo.table import progress, report, size
from omni_async.cli.free_ports import FreePorts
from omni_async.cli.main import main

TRAFFIC = words.Traffic(10, 1_000_000, 0.5, 0.25, 1.5)
ROUNDS = [words.Round("streaming"), words.Round("whole")]


def round_result(streaming: bool, sent: int, different: list[str]) -> RoundResult:
    sender = words.Passed("0", sent, 0.03, words.Traffic())
    first = (7.5, 8.5) if streaming else (300.0, 310.0)
    return RoundResult(
        streaming=streaming,
        seconds=0.75,
        first_audio_ms=Quantiles(*first),
        different=different,
        edges=[EdgeResult.of(EdgeName("0", "1"), "hidden states", "SharedMemory", sender, TRAFFIC)],
        stages=[
            StageResult("0", "Thinker", 0, words.Lag(0.1, 1.0, 12.0)),
            StageResult("1", "Talker", 0, words.Lag(0.1, 1.0, 12.0)),
            StageResult("2", "C", 1, words.Lag(0.2, 2.0, 3.0)),
        ],
    )


def result(
    *,
    sent: int = 10,
    different: tuple[str, ...] = (),
    off: tuple[str, ...] | None = (),
    requests: int = 1,
) -> Result:
    """``off`` are the differences without streaming; ``None`` where that was not run."""
    rounds = [round_result(True, sent, list(different))]
    if off is not None:
        rounds.append(round_result(False, 10, list(off)))
    return Result(
        recording="tune.wav",
        rate=16_000,
        sound_seconds=1.5,
        requests=requests,
        snr_db=19.5,
        outputs=[f"out/req-{i}.wav" for i in range(requests)],
        rounds=rounds,
        not_compared="it was not wanted" if off is None else None,
    )


def test_all_is_well() -> None:
    good = result(requests=3)
    assert good.ok
    text = report(good)
    assert "tune.wav: 1.5 s at 16000 Hz" in text
    assert "3 requests in 0.75 s; codes of 16 kbit/s, signal to noise 19.5 dB" in text
    assert "written: out/req-0.wav and 2 more" in text
    told = "what one process computes, with streaming and without"
    assert text.endswith(f"identical: all 3 files are bit for bit {told}")
    row = next(line for line in text.splitlines() if line.startswith("0->1"))
    assert "10  1.0 MB  2.0 MB/s      0.25 ms  1.50 ms  3.00 ms" in row
    assert [line.split() for line in text.splitlines() if line[:1].isdigit()][-2:] == [
        ["0", "+", "1", "Thinker", "+", "Talker", "0.10", "ms", "1.00", "ms", "12.00", "ms"],
        ["2", "C", "0.20", "ms", "2.00", "ms", "3.00", "ms"],
    ]
    assert [line.split() for line in text.splitlines() if line.startswith(("on ", "off "))] == [
        ["on", "7.50", "ms", "8.50", "ms", "0.75", "s", "identical"],
        ["off", "300.00", "ms", "310.00", "ms", "0.75", "s", "identical"],
    ]
    assert "not compared" not in text


def test_what_was_not_compared_says_why() -> None:
    text = report(result(off=None))
    assert "not compared: it was not wanted\n" in text
    assert text.endswith("identical: the file is bit for bit what one process computes")
    assert result(off=None).as_dict()["without_streaming"] is None


def test_a_file_that_differs_is_named() -> None:
    bad = result(different=("req-0",))
    assert not bad.ok
    assert report(bad).endswith("DIFFERENT: streaming, req-0: not what one process computes")
    assert bad.as_dict()["ok"] is bad.as_dict()["identical"] is False


def test_a_file_that_differs_without_streaming_is_named() -> None:
    bad = result(off=("req-0",))
    assert not bad.ok
    told = "DIFFERENT: without streaming, req-0: not what one process computes"
    assert report(bad).endswith(told)
    plain = bad.as_dict()
    assert (plain["ok"], plain["identical"]) == (False, True)
    assert plain["without_streaming"]["ok"] is plain["without_streaming"]["identical"] is False


def test_a_lost_chunk_is_seen() -> None:
    bad = result(sent=11)
    assert bad.rounds[0].identical
    assert not bad.ok
    assert "10 of 11" in report(bad)
    assert report(bad).endswith("INCOMPLETE: streaming, not every chunk that was sent was received")


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
    await Child(words.Job(["0"], "", str(tmp_path), [], []), ["Thinker"]).end()


def test_a_process_that_meets_a_bug_tells_what_and_where(recording: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    requests = [words.Request("req-0", 0)]
    job = words.Job([], str(recording), str(tmp_path / "nowhere"), requests, ROUNDS)
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
            one_process(source, tmp_path / ROUNDS[0].file(request.id))
        shutil.copy(*(tmp_path / round.file(request.id) for round in ROUNDS))
    wrong = tmp_path / ROUNDS[1].file("wrong")
    data = bytearray(wrong.read_bytes())
    data[5000] ^= 1
    wrong.write_bytes(data)

    job = words.Job([], str(recording), str(tmp_path), requests, ROUNDS)
    orders, events = os.pipe(), os.pipe()
    os.write(orders[1], words.encode(job) + b"\n")
    line = Line(orders[0], events[1])
    os.write(orders[1], b"go\n")
    assert check(line) == words.Done()
    said = [words.decode_event(text) for text in os.read(events[0], 1 << 16).splitlines()]
    assert isinstance(said[0], words.Ready)
    verdicts = {event.request: event for event in said if isinstance(event, words.Verdict)}
    assert verdicts["right"].identical == [True, True]
    assert verdicts["wrong"].identical == [True, False]
    assert verdicts["right"].snr is not None
    assert len(list(tmp_path.glob("*.wav"))) == 5  # no file of its own is left
    os.close(events[0])
    os.close(events[1])


def begun(run: Run, number: int) -> Lap:
    """A round of it has begun ten seconds after the clock did."""
    heard = [child.rounds[number] for child in run.processes]
    run.laps.append(Lap(run.rounds[number], heard, run.options.requests))
    run.laps[-1].began = 10.0
    return run.laps[-1]


def test_where_a_run_stands(recording: Path, tmp_path: Path) -> None:
    run = Run(Options(recording, default_deploy(), 4, tmp_path), lambda _: None, FreePorts())
    assert [round.name for round in run.rounds] == [ON, OFF]
    assert progress(run, 0.0) == "starting 3 processes, 0 ready"
    run.processes[0].rounds[0].ready.set()
    assert progress(run, 0.0) == "starting 3 processes, 1 ready"
    first = begun(run, 0)
    first.heard[0].progress["0"] = words.Progress("0", sent=7)
    first.heard[1].progress["1"] = words.Progress("1", 6, 5, 3_000_000)
    first.heard[2].finished["req-0"] = words.Finished("req-0", 8.0)
    assert progress(run, 12.0) == (
        "Thinker 7 -> Talker 6 -> Code2Wav 0 chunks | 1 of 4 requests | 1.5 MB/s | 2.0 s"
    )
    begun(run, 1)
    assert progress(run, 13.0).startswith("without streaming: Thinker 0 -> Talker 0 -> Code2Wav 0")
    run.checking = True
    assert progress(run, 13.0) == "checking against one process: 0 of 4 requests"


def test_stages_of_one_process_are_told_apart(recording: Path, tmp_path: Path) -> None:
    deploy = tmp_path / "deploy.yaml"
    deploy.write_text(
        "stages: [{stage_id: 0}, {stage_id: 1, input_connectors: {from_stage_0: {name: memory}}},"
        " {stage_id: 2, input_connectors: {from_stage_1: {name: memory}}}]"
    )
    run = Run(Options(recording, deploy, 1, tmp_path), lambda _: None, FreePorts())
    assert progress(run, 0.0) == "starting 1 process, 0 ready"
    [process] = run.processes
    assert process.name == "the process of stages 0 (Thinker), 1 (Talker), 2 (Code2Wav)"
    heard = begun(run, 0).heard[0]
    heard.progress["1"] = words.Progress("1", 6, 5, 1000)
    heard.progress["2"] = words.Progress("2", received=4)
    text = "Thinker 0 -> Talker 6 -> Code2Wav 4 chunks | 0 of 1 requests | 1.0 KB/s | 1.0 s"
    assert progress(run, 11.0) == text


def test_requests_begin_at_different_places_of_the_recording(
    recording: Path, tmp_path: Path
) -> None:
    run = Run(Options(recording, default_deploy(), 3, tmp_path), lambda _: None, FreePorts())
    assert [request.skip for request in run.check.job.requests] == [0, 4000, 8000]
    assert len({run.check.job.namespace, *(child.job.namespace for child in run.processes)}) == 1
    other = Run(Options(recording, default_deploy(), 3, tmp_path), lambda _: None, FreePorts())
    assert other.check.job.namespace != run.check.job.namespace
    assert other.work != run.work


@pytest.mark.parametrize(
    ("values", "p50", "p99"), [([4, 1, 3, 2], 3, 4), ([7.5], 7.5, 7.5), ([], 0, 0)]
)
def test_quantiles(values: list[float], p50: float, p99: float) -> None:
    assert Quantiles.of(values) == Quantiles(p50, p99)


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
