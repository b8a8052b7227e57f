"""The stages of a process, round by round: edges opened, all requests worked off, all closed.

In: a job. Out: a word for each round that is through.
Never: computes, knows what a stage does.
"""

from __future__ import annotations

import asyncio
import contextlib

import anyio

from omni_async import load_deploy, open_stage

from ..._aio.lag import LagMonitor
from . import dsp, words
from .layout import Layout
from .line import Line
from .parts import PARTS
from .work import Work

TICK_SECONDS = 0.005


async def run_stages(line: Line) -> words.Done:
    """All rounds, one after the other. Cancellation: ends."""
    dsp.prepare()
    for round in line.job.rounds:
        line.say(await _through(line, round))
    return words.Done()


async def _through(line: Line, round: words.Round) -> words.Through:
    job = line.job
    deploy = load_deploy(job.deploy, overrides=round.overrides)
    layout = Layout.of(deploy)
    namespace = f"{job.namespace}-{round.name}"
    works = []
    async with contextlib.AsyncExitStack() as stack:
        for id in job.stages:
            # One process of each stage is started, whatever a launcher's environment says of ranks.
            opening = open_stage(deploy, id, rank=0, replica=0, namespace=namespace)
            stage = await stack.enter_async_context(opening)
            part, processor = PARTS[layout.stages.index(id)]
            works.append((Work(line, round, stage, processor), part))
        await asyncio.to_thread(line.wait_for_go)
        with LagMonitor(TICK_SECONDS) as late:
            async with anyio.create_task_group() as group:
                for work, part in works:
                    group.start_soon(work.run, part)
        lag = late.lag()
    return words.Through(
        [work.passed() for work, _ in works],
        words.Lag(lag.p50 * 1e3, lag.p99 * 1e3, lag.max * 1e3),
    )
