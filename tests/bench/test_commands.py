"""The benchmarks end to end, small: they measure, report, and say which goals were met."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from omni_async import BackendUnavailable
from omni_async.backends.mooncake import MooncakeTransferEngineBackend
from omni_async.cli import main as command_line
from omni_async.cli.bench import (
    chunks,
    compare,
    contest,
    kv,
    kv_blocks,
    load,
    mooncake,
    parked,
    stores,
    stream_figures,
    streams,
)
from omni_async.cli.bench.pace import Pace
from omni_async.cli.bench.payload import Mismatch
from omni_async.cli.bench.workers import WorkerFailed, Workers
from omni_async.kv import KVMemory
from tests.engines import need_mooncake, need_nixl
from tests.stores import loaded_or_skip

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.timeout(180)


def bench(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = command_line.main(["bench", *arguments])
    return code, capsys.readouterr().out


@pytest.mark.usefixtures("clean_modules")
def test_shm_against_a_peer(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, wheel: Path
) -> None:
    few = {side.mode: side for side in reversed(contest.SHM.sides) if side.loop == "asyncio"}
    monkeypatch.setattr(contest, "SHM", contest.SHM._replace(sides=tuple(reversed(few.values()))))
    code, out = bench(
        capsys, "shm", "--json", "--floor", "--pin", "--sizes", "4K,1M",
        "--rounds", "1", "--scale", "0.02", "--loop", "asyncio", "--peer", str(wheel),
    )  # fmt: skip
    assert code == 0
    result = json.loads(out)
    assert "0.30.0" in result["peer"]
    assert {row["nbytes"] for row in result["rows"]} == {4096, 1 << 20}
    sides = {row["side"] for row in result["rows"]}
    assert {"ours, asyncio", "ours, asyncio, built in place", contest.PEER} <= sides
    assert "bare arena, one copy" in sides
    for row in result["rows"]:
        assert 0 < row["one_way"]["median_us"] <= row["touched"]["median_us"]
        assert row["one_way"]["count"] >= 2
    assert {goal["name"] for goal in result["goals"]} == {
        "4 KB faster than the peer",
        "1 MB faster than the peer",
    }
    text = compare.report(result)
    for word in ("peer, metadata handed over", "one warm memcpy", "times faster", "1 MB"):
        assert word in text


def test_shm_without_a_peer_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contest, "SHM", contest.SHM._replace(sides=contest.SHM.sides[:1]))
    code, out = bench(capsys, "shm", "--sizes", "4K", "--rounds", "1", "--scale", "0.02")
    assert code == 0
    assert out.startswith("omni_async alone: no wheel of the peer was given")
    assert "ours, asyncio" in out


@pytest.mark.soak
@pytest.mark.usefixtures("clean_modules")
def test_mooncake_against_a_peer_and_the_engine(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, wheel: Path
) -> None:
    need_mooncake()
    largest = [w._replace(nbytes=1 << 20) for w in contest.MOONCAKE.wanted if w.nbytes > 16 << 20]
    smaller = contest.MOONCAKE._replace(wanted=tuple(largest))
    monkeypatch.setattr(mooncake, "MOONCAKE", smaller)
    code, out = bench(
        capsys, "mooncake", "--json", "--sizes", "4K,1M", "--rounds", "1", "--scale", "0.02",
        "--loop", "asyncio", "--peer", str(wheel),
    )  # fmt: skip
    assert code == 0
    result = json.loads(out)
    assert "MooncakeTransferEngineConnector" in result["peer"]
    assert "Tensor.pin_memory" in result["peer"]
    sides = {side.name for side in contest.MOONCAKE.sides if side.loop == "asyncio"}
    assert {row["side"] for row in result["rows"]} == sides
    assert all(row["one_way"]["count"] >= 2 for row in result["rows"])
    assert {row["side"] for row in result["streams"]["rows"]} >= {"ours, asyncio", "peer"}
    assert [goal["name"] for goal in result["goals"]] == [
        "1 MB faster than the peer",
        "1 MB as fast as the peer, one tensor",
        "1 MB against the engine alone, medians",
        "1 MB against the engine alone, best times",
        "1 MB built in place, against the engine alone, medians",
        "1 MB built in place, against the engine alone, best times",
        "paced-256: p99 lower than the peer's",
    ]
    text = mooncake.report(result)
    for word in (contest.ENGINE, contest.PEER_TENSOR, "paced-256: peer", "1 MB"):
        assert word in text


@pytest.mark.soak
@pytest.mark.usefixtures("clean_modules")
def test_nixl_against_a_peer(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, wheel: Path
) -> None:
    need_nixl()
    few = [side for side in contest.NIXL.sides if side.name in ("ours, asyncio", contest.PEER)]
    monkeypatch.setattr(contest, "NIXL", contest.NIXL._replace(sides=tuple(few)))
    code, out = bench(
        capsys, "nixl", "--json", "--sizes", "4K", "--rounds", "1", "--scale", "0.02",
        "--loop", "asyncio", "--peer", str(wheel),
    )  # fmt: skip
    assert code == 0
    result = json.loads(out)
    assert "NixlConnector" in result["peer"]
    assert "vllm.distributed.nixl_utils" in result["peer"]
    assert {row["side"] for row in result["rows"]} == {"ours, asyncio", contest.PEER}
    assert [goal["name"] for goal in result["goals"]] == ["4 KB faster than the peer"]


@pytest.mark.soak
def test_mooncake_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    need_mooncake()
    monkeypatch.setattr(
        mooncake, "MOONCAKE", contest.MOONCAKE._replace(sides=contest.MOONCAKE.sides[:1])
    )
    code, out = bench(
        capsys, "mooncake", "--sizes", "4K", "--rounds", "1", "--scale", "0.02", "--modes", "none"
    )
    assert code == 0
    assert out.startswith("omni_async alone: no wheel of the peer was given")
    assert "paced" not in out


@pytest.mark.soak
@pytest.mark.usefixtures("clean_modules")
@pytest.mark.parametrize("benchmark", sorted(contest.STORES))
def test_stores_against_a_peer(
    capsys: pytest.CaptureFixture[str], wheel: Path, benchmark: str
) -> None:
    loaded_or_skip({"mooncake-store": "mooncake.store"}.get(benchmark, "yr.datasystem.kv_client"))
    code, out = bench(
        capsys, benchmark, "--json", "--sizes", "4K,1M", "--rounds", "1", "--scale", "0.02",
        "--loop", "asyncio", "--peer", str(wheel),
    )  # fmt: skip
    assert code == 0
    result = json.loads(out)
    assert "0.30.0" in result["peer"]
    assert {row["side"] for row in result["rows"]} == {
        "ours, asyncio, told when it is there",
        "ours, asyncio, get waits",
        contest.PEER_TOLD,
        contest.PEER_WAITS,
    }
    assert result["loop"]["waiting"] >= 10
    assert all(row["traffic"]["ticks"] for row in result["loop"]["rows"])
    assert result["waiting"]["alone"]["count"] >= 3
    assert min(result["waiting"]["cpu_percent"].values()) > 0
    names = [goal["name"] for goal in result["goals"]]
    if benchmark == "mooncake-store":
        assert names[:3] == [
            "4 KB faster than the peer",
            "4 KB sooner to a waiting get",
            "1 MB faster than the peer",
        ]
    assert "99.9th percentile gap above that of the ticker alone, asyncio, process 1" in names
    assert sum("gets wait" in name for name in names) == 3
    text = stores.report(result)
    for word in ("put to delivery", "gap between ticks", "1 MB", "times faster"):
        assert word in text


def test_a_part_of_the_benchmark_of_a_store(capsys: pytest.CaptureFixture[str]) -> None:
    loaded_or_skip("mooncake.store")
    code, out = bench(
        capsys, "mooncake-store", "--parts", "waiting", "--scale", "0.01", "--loop", "asyncio"
    )
    assert code == 0
    assert out.startswith("omni_async over MooncakeStoreConnector")
    assert "one way" not in out
    assert "ticks" not in out
    assert "100 gets wait" in out


@pytest.mark.usefixtures("clean_modules")
def test_streams_against_a_peer(capsys: pytest.CaptureFixture[str], wheel: Path) -> None:
    code, out = bench(
        capsys, "streams", "--json", "--rounds", "1", "--scale", "0.005", "--loop", "asyncio",
        "--peer", str(wheel),
    )  # fmt: skip
    assert code == 0
    result = json.loads(out)
    assert "OmniChunkTransferAdapter" in result["peer"]
    names = [side.name for side in streams.SIDES if side.loop == "asyncio"]
    modes = list(streams.MODES)
    assert [(row["mode"], row["side"]) for row in result["rows"]] == [
        (mode, name) for mode in modes for name in names
    ]
    for row in result["rows"]:
        assert 0 < row["p50_us"] <= row["p99_us"] <= row["max_us"]
        assert row["chunks"] >= 2 * streams.MODES[row["mode"]].chunks
        assert min(row["cpu_us_per_chunk"].values()) > 0
    paced = [row for row in result["rows"] if row["mode"] == "paced-2048"]
    assert all(200 < row["chunks_per_s"] < 1500 for row in paced)
    assert [goal["name"] for goal in result["goals"]] == [
        "paced-256: p99 lower than the peer's",
        "paced-256: p99",
        "paced-2048: p99 lower than the peer's",
        "paced-2048: p99",
        "burst: chunks per second, times the peer's",
        "idle: CPU of the producer",
        "idle: CPU of the consumer",
    ]
    text = stream_figures.report(result)
    assert all(f"{mode}: {name}" in text for mode in modes for name in names)


@pytest.mark.soak
def test_streams_alone(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = bench(
        capsys, "streams", "--rounds", "1", "--scale", "0.005", "--modes", "idle,burst"
    )
    assert code == 0
    assert out.startswith("omni_async alone: no wheel of the peer was given")
    assert "peer's" not in out.partition("idle: ours")[2]
    assert "idle: CPU of the consumer" in out


def test_a_wrong_chunk_ends_the_benchmark_of_streams() -> None:
    reference = chunks.tensors()
    chunks.check(chunks.tensor_of(chunks.with_meta(reference[3])), reference, 11)
    with pytest.raises(Mismatch, match="chunk 12"):
        chunks.check(reference[3], reference, 12)


async def test_a_pace_is_kept_and_what_was_missed_is_made_up_for() -> None:
    # Begun before the first tick: one that is told late is made up for as well.
    begun = time.perf_counter()
    with Pace(1000) as pace:
        for _ in range(51):
            await pace.tick()
        assert time.perf_counter() - begun > 0.048
        time.sleep(0.05)  # noqa: ASYNC251 - a caller that was held up
        await pace.tick()
        assert pace._due >= 48
    with pytest.raises(OSError, match="no timer"):
        Pace(-1)


def test_goals_decide_the_exit_code_when_asked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parked, "CPU_PERCENT", -1.0)
    code, out = bench(capsys, "parked", "--count", "5", "--seconds", "0.1", "--check")
    assert code == 1
    assert "MISSED" in out


def test_ticker(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = bench(
        capsys,
        "--json",
        "ticker",
        "--size",
        "64K",
        "--seconds",
        "0.2",
        "--rounds",
        "1",
        "--loop",
        "asyncio",
    )
    assert code == 0
    rows: list[dict[str, Any]] = json.loads(out)["rows"]
    assert {row["stage"] for row in rows} == {0, 1}
    for row in rows:
        assert row["received_gb_s"] > 0
        assert 1 <= row["alone"]["median_ms"] <= row["alone"]["max_ms"]


def test_parked(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = bench(capsys, "parked", "--count", "50", "--seconds", "0.3")
    assert code == 0
    assert out.startswith("50 gets that wait")
    assert out.count("met") + out.count("MISSED") == 3


@pytest.mark.parametrize(
    "backend",
    [
        "shm",
        pytest.param("mooncake", marks=pytest.mark.soak),
        pytest.param("nixl", marks=pytest.mark.soak),
    ],
)
def test_kv(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    {"shm": lambda: None, "mooncake": need_mooncake, "nixl": need_nixl}[backend]()
    monkeypatch.setattr(kv, "OVERLAPS", 1)
    code, out = bench(
        capsys, "kv", "--json", "--backend", backend, "--rounds", "1", "--scale", "0.125"
    )
    assert code == 0
    result = json.loads(out)
    assert (result["blocks"], result["layers"], result["missing"]) == (128, 48, {})
    assert result["form"] == "stacked"
    ways = [way.name for way in kv.WAYS if backend != "shm" or not way.apart]
    assert [row["way"] for row in result["rows"]] == ways
    assert all(0 < row["min_us"] <= row["median_us"] for row in result["rows"])
    assert [row["told"] for row in result["overlap"]] == [kv.EACH, kv.AT_END]
    for row in result["overlap"]:
        assert row["median_us"] > 0
        assert row["every_layer"]["count"] == 48
    # What is sent at the end is late by all the layers' compute.
    assert result["overlap"][1]["every_layer"]["max_us"] > 47 * 2000
    names = [goal["name"].partition(": ")[2] for goal in result["goals"]]
    assert names[:2] == [
        f"23808 KB in runs of 64 blocks against one {'memcpy' if backend == 'shm' else 'write'}, {kind}"
        for kind in ("medians", "best times")
    ]
    assert names[-2].startswith("the last layer lands after its compute")
    assert len(names) == (4 if backend == "shm" else 5)
    text = kv.report({**result, "missing": {"other": "libx is missing"}})
    for word in (*ways, backend, kv.AT_END, "other is not here: libx is missing"):
        assert word in text


def test_kv_over_what_can_run_here(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def prepare(connector: str) -> None:
        raise BackendUnavailable(f"no {connector}")

    monkeypatch.setattr(kv, "check_here", prepare)
    assert command_line.main(["bench", "kv"]) == 1
    assert "no SharedMemoryConnector" in capsys.readouterr().err
    with pytest.raises(BackendUnavailable, match="no NixlConnector"):
        kv.run(["nixl"])


@pytest.mark.parametrize("form", kv_blocks.FORMS)
def test_caches_that_are_not_those_of_the_source(form: str) -> None:
    """The check of ``bench kv`` can fail."""
    memory = KVMemory(kv_blocks.layout_of(2, form))
    caches: Any = memory.caches
    kv_blocks.fill(memory)
    kv_blocks.check(memory, [3, 5], [3, 5])
    with pytest.raises(Mismatch, match="layer 0"):
        kv_blocks.check(memory, [3, 5], [3, 6])
    caches[47][(1, 5) if form == "stacked" else (5, 1)][7, 1, 61] = 0
    with pytest.raises(Mismatch, match="layer 47"):
        kv_blocks.check(memory, [3, 5], [3, 5])
    half = memory.offsets[24]
    kv_blocks.check_beginning(memory, half)
    caches[23][(1, 5) if form == "stacked" else (5, 1)][7, 1, 61] = 0
    kv_blocks.check_beginning(memory, half - 1)
    with pytest.raises(Mismatch, match="layer 23"):
        kv_blocks.check_beginning(memory, half)
    assert len({*kv_blocks.blocks_of("runs", 1000, 2048, 1)}) == 1000
    assert kv_blocks.blocks_of("runs", 256, 512, 1) != kv_blocks.blocks_of("runs", 256, 512, 2)


def test_load(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    code, out = bench(capsys, "load", "--stages", "3", "--json")
    result = json.loads(out)
    assert (code, result["stages"], result["again"]["count"]) == (0, 3, 100)
    assert result["new_process"]["median_us"] > result["again"]["median_us"]
    monkeypatch.setattr(load, "_FRESH", "raise SystemExit('no')")
    assert command_line.main(["bench", "load"]) == 1
    assert "loading deploy.json failed: no" in capsys.readouterr().err


def test_a_bad_peer_is_an_error_in_words(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert command_line.main(["bench", "shm", "--peer", str(tmp_path)]) == 1
    assert "holds neither" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [[], ["shm", "--rounds", "0"], ["shm", "--sizes", "5"], ["streams", "--modes", "x"]],
)
def test_bad_arguments(arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        command_line.main(["bench", *arguments])


def test_torch_is_needed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert command_line.main(["bench", "parked"]) == 2
    assert "omni-async[torch]" in capsys.readouterr().err


def test_a_worker_that_fails_is_quoted_and_none_is_left() -> None:
    with Workers() as workers:
        worker = workers.start({"program": "no such"})
        with pytest.raises(WorkerFailed, match="no program 'no such'"):
            worker.answer(20)
    assert worker.process.poll() is not None


def test_a_worker_that_hangs_is_ended() -> None:
    started = []

    def hang() -> None:
        with Workers() as workers:
            started.append(workers.start({"program": "sides.bare", "role": "consumer"}))
            started[0].answer(0.3)

    begun = time.monotonic()
    with pytest.raises(WorkerFailed, match="no answer for 0 s"):
        hang()
    assert time.monotonic() - begun < 15
    with pytest.raises(ProcessLookupError):
        os.kill(started[0].process.pid, 0)


def test_without_the_engine_the_remedy_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def prepare(*_: Any) -> None:
        raise BackendUnavailable("libx is missing", remedy="apt-get install libx")

    monkeypatch.setattr(MooncakeTransferEngineBackend, "prepare", prepare)
    assert command_line.main(["bench", "mooncake"]) == 1
    assert capsys.readouterr().err == "omni-async bench: libx is missing; apt-get install libx\n"
