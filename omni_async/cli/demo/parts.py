"""What each of the three stages does with its requests.

In: chunks of the stage before. Out: outputs for the stage behind, files of the last one.
Never: knows whether streaming is on, how long a chunk is, how it travels.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from time import perf_counter_ns

import anyio

from . import stages, words
from .audio import Recording
from .processors import talker2code2wav, thinker2talker
from .rounds import AT_ONCE
from .work import Work


async def think(work: Work) -> None:
    """The first stage: sound to hidden states, of some requests at a time. Cancellation: ends."""
    places = asyncio.Semaphore(AT_ONCE)

    async def of_one(request: words.Request) -> None:
        async with places:
            # One clock for all processes of a host: the last stage reads it, too.
            began = perf_counter_ns()
            with Recording(Path(work.job.recording)) as recording:
                recording.skip(request.skip)
                meta = {"rate": recording.rate, "samples": recording.left, "began": began}
                thinker, last = stages.Thinker(recording), False
                while not last:
                    states, last = await work.compute(thinker.step)
                    await work.hand_over(request.id, {"hidden": states, "meta": meta})
            await work.finish(request.id)

    async with anyio.create_task_group() as group:
        for request in work.job.requests:
            group.start_soon(of_one, request)


async def talk(work: Work) -> None:
    """The second stage: hidden states to codes, in the order in which they come. Cancellation: ends."""
    async for request, chunk in work.chunks():
        if chunk is None:
            await work.finish(request)
            continue
        # No name for the states here: it would keep their memory until the next chunk comes.
        codes = await work.compute(stages.talk, chunk.pop("hidden"))
        await work.hand_over(request, {"codes": codes, "meta": chunk["meta"]})


async def voice(work: Work) -> None:
    """The third stage: codes to sound in files. Cancellation: ends."""
    voices: dict[str, stages.Code2Wav] = {}
    first: dict[str, float] = {}
    async for request, chunk in work.chunks():
        if chunk is None:
            await work.compute(voices.pop(request).close)
            work.line.say(words.Finished(request, first.pop(request)))
            continue
        meta, known = chunk["meta"], chunk["left_context_frames"]
        if request not in voices:
            path = Path(work.job.work) / work.round.file(request)
            voices[request] = stages.Code2Wav(path, meta["rate"], meta["samples"])
        # A decoder that forgets would want the frames that it knows already; this one does not.
        heard = await work.compute(voices[request].step, chunk.pop("codes")[:, known:])
        if heard and request not in first:
            first[request] = (perf_counter_ns() - meta["began"]) / 1e6


PARTS = ((think, thinker2talker), (talk, talker2code2wav), (voice, None))
"""Of the stages in a row, each with the processor of what it hands over."""
