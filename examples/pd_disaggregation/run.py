"""Start it all, send prompts, compare every token: ``python -m examples.pd_disaggregation.run``.

In: a backend, a mode, sizes. Out: a table or JSON; exit status 0 only where every token is the single process's.
Never: leaves a process or a port behind.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch

from omni_async.cli.on_this_host import check_here
from omni_async.cli.servers.running import ServerFailed
from omni_async.errors import BackendUnavailable, ConfigError

from .client import Answer, Client, Wanted, computed, prompts
from .cluster import Cluster, Plan

TOKENS = 16
QUIET = 1.0
"""Seconds of a loop alone, before each round."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m examples.pd_disaggregation.run",
        description="Prefill and decode instances behind vllm-router, compared with a single process.",
    )
    parser.add_argument("--backend", default="shm", help="shm, mooncake, nixl, or another one")
    parser.add_argument("--mode", default="write", choices=["write", "read"])
    for role in ("prefill", "decode"):
        parser.add_argument(f"--{role}-tp", type=int, default=1, choices=[1, 2, 4])
        parser.add_argument(f"--{role}s", type=int, default=1, metavar="N")
    parser.add_argument("--requests", type=int, default=16, metavar="N")
    parser.add_argument("--tokens", type=int, default=TOKENS, metavar="N", help="of each answer")
    parser.add_argument(
        "--rounds", type=int, default=1, metavar="N", help="how often they are sent, all at once"
    )
    parser.add_argument(
        "--gaps",
        action="store_true",
        help="measure how late the event loops of the instances get, too",
    )
    parser.add_argument("--json", action="store_true", help="figures for programs")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    torch.set_num_threads(1)
    plan = Plan(
        options.backend,
        options.mode,
        options.prefill_tp,
        options.decode_tp,
        options.prefills,
        options.decodes,
    )
    try:
        asyncio.run(check_here(plan.backend))
        result = run(
            plan, options.requests, options.tokens, rounds=options.rounds, gaps=options.gaps
        )
    except (BackendUnavailable, ConfigError, ServerFailed, TimeoutError) as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps(result) if options.json else table(result))
    return 0 if result["ok"] else 1


def run(
    plan: Plan, requests: int, tokens: int = TOKENS, *, rounds: int = 1, gaps: bool = False
) -> dict[str, Any]:
    """One run from its start to its end; on the main thread.

    Raises:
        ServerFailed: a process has ended.
        TimeoutError: no completion comes through.
    """
    begin = time.perf_counter()
    with Cluster(plan) as cluster:
        wanted = computed(prompts(requests), tokens)  # while they start
        cluster.wait()
        started = time.perf_counter() - begin
        result = asyncio.run(traffic(cluster, wanted, rounds=rounds, gaps=gaps))
    return {**plan._asdict(), "started_seconds": started, **result, "ok": _ok(result)}


async def traffic(
    cluster: Cluster, wanted: Sequence[Wanted], *, rounds: int = 1, gaps: bool = False
) -> dict[str, Any]:
    """All of these requests at once, and again when all are answered."""
    async with Client(cluster.router.url) as client:
        await client.ready()
        answers: list[Answer] = []
        seconds = 0.0
        for _ in range(rounds):
            if gaps:
                await _gaps(client, cluster, "alone")
                await asyncio.sleep(QUIET)
                await _gaps(client, cluster, "traffic")
            begin = time.perf_counter()
            answers += await asyncio.gather(
                *(
                    client.complete(one.prompt, len(one.said), stream=number % 2 == 0)
                    for number, one in enumerate(wanted)
                )
            )
            seconds += time.perf_counter() - begin
        found = await _gaps(client, cluster, None) if gaps else []
        stats = await settled(client, cluster)
    figures = _figures([*wanted] * rounds, answers)
    return {**figures, "seconds": seconds, "rounds": rounds, "gaps": found, "instances": stats}


async def settled(client: Client, cluster: Cluster, timeout: float = 5.0) -> list[dict[str, Any]]:
    """What instances tell of themselves, once no block is in use any more; or what there is after that time."""
    limit = time.monotonic() + timeout
    while True:
        urls = [f"{instance.url}/stats" for instance in cluster.instances]
        stats = [await client.ask(url) for url in urls]
        for instance, one in zip(cluster.instances, stats, strict=True):
            one["name"] = instance.name
        if all(one["free"] == one["blocks"] for one in stats) or time.monotonic() > limit:
            return stats
        await asyncio.sleep(0.02)


async def _gaps(client: Client, cluster: Cluster, phase: str | None) -> list[dict[str, Any]]:
    """By how much the loops' ticks came late in the phases before this one, of every rank."""
    urls = [f"{instance.url}/gaps" for instance in cluster.instances]
    found = await asyncio.gather(*(client.ask(url, {"phase": phase}) for url in urls))
    names = ("ticks", "p50_ms", "p999_ms", "max_ms")
    rows: list[dict[str, Any]] = []
    for instance, ranks in zip(cluster.instances, found, strict=True):
        for rank, phases in enumerate(ranks):
            row = {name: dict(zip(names, told, strict=True)) for name, told in phases.items()}
            if "traffic" in row:
                extra = row["traffic"]["p999_ms"] - row["alone"]["p999_ms"]
                rows.append({"rank": f"{instance.name} rank {rank}", **row, "extra_p999_ms": extra})
    return rows


def _figures(wanted: Sequence[Wanted], answers: Sequence[Answer]) -> dict[str, Any]:
    wrong = [
        {"prompt": one.prompt, "status": answer.status, "said": answer.text}
        for one, answer in zip(wanted, answers, strict=True)
        if not answer.is_right(one)
    ]
    streamed = sorted(answer.first_seconds for answer in answers if answer.streamed)
    return {
        "requests": len(wanted),
        "right": len(wanted) - len(wrong),
        "wrong": wrong,
        "tokens": sum(len(answer.tokens) for answer in answers),
        "margin": min(said.margin for one in wanted for said in one.said),
        "first_token_seconds": streamed[len(streamed) // 2],
    }


def _ok(result: dict[str, Any]) -> bool:
    """Every token is right, every cache has travelled, every block is free again."""
    stats = result["instances"]
    taken = sum(one["taken"] for one in stats)
    return (
        not result["wrong"]
        and taken >= result["requests"]
        and all(one["free"] == one["blocks"] and not one["failed"] for one in stats)
    )


def table(result: dict[str, Any]) -> str:
    """For people."""
    lines = [
        f"vllm-router, {result['prefills']} x prefill (TP {result['prefill_tp']}) and "
        f"{result['decodes']} x decode (TP {result['decode_tp']}), {result['mode'].upper()} over "
        f"{result['backend']}",
        "",
        f"{'instance':<12}{'requests':>10}{'given':>8}{'taken':>8}{'failed':>8}{'blocks free':>16}",
    ]
    lines += [
        f"{one['name']:<12}{one['requests']:>10}{one['given']:>8}{one['taken']:>8}{one['failed']:>8}"
        f"{one['free']:>9} of {one['blocks']}"
        for one in result["instances"]
    ]
    for gap in result["gaps"]:
        lines.append(
            f"{gap['rank']}: p99.9 of the event loop's gaps {gap['traffic']['p999_ms']:.2f} ms, alone "
            f"{gap['alone']['p999_ms']:.2f} ms"
        )
    lines += [
        "",
        f"started in {result['started_seconds']:.1f} s; {result['requests']} requests, "
        f"{result['requests'] // result['rounds']} at once, in {result['seconds']:.2f} s, first token after {result['first_token_seconds']:.2f} s (median)",
        *(f"WRONG: {one['prompt']!r}: {one['status']} {one['said']!r}" for one in result["wrong"]),
        *(f"{one['name']}: {one['last_failure']}" for one in result["instances"] if one["failed"]),
        f"{result['tokens']} tokens in {result['right']} of {result['requests']} answers are those of a "
        f"single process: {'ok' if result['ok'] else 'NOT OK'}",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
