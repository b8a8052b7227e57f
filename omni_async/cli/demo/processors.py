"""What goes from stage to stage: processors, as a stage of your own would have them.

In: what a stage has just made of a request. Out: the chunks that are whole now.
Never: computes, waits, sends, keeps anything of one request in reach of another.

A stage makes outputs as it goes along; the next one wants them in chunks of a certain length, in a
certain shape. What lies between is a processor, a plain function that an adapter calls::

    async with ChunkTransferAdapter(stage, processor=talker2code2wav) as adapter:
        await adapter.send("req-1", {"codes": frames, "meta": meta})   # any number of times
        await adapter.send("req-1", None, finished=True)

It is called with each output of a request in turn, and once with ``None`` where the end comes by itself.
It returns a list of chunks: none while one is not full, several where one output fills them. Each is sent
as it is, so a chunk may be anything that can be put: here a dictionary of tensors, numbers and text.

``context`` is the request's. What has to be remembered from call to call goes into ``context.state``,
which begins empty for every request. ``context.knobs`` are those of the edge in the deploy file.
``context.last`` says that nothing follows: what is still held back has to be returned now.

A processor runs on the event loop, so it cuts, joins and renames; what takes longer than a fraction of a
millisecond belongs into the stage. When it raises, its request fails, here and at the next stage, and no
other one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from omni_async import FrameChunker
from omni_async.stream import Context

Output = Mapping[str, Any] | None
Chunks = list[dict[str, Any]]


def thinker2talker(output: Output, context: Context) -> Chunks:
    """Hidden states ``[n, 2048]``, in chunks of as many as ``codec_chunk_frames`` says.

    The whole of a processor by hand: states are held until a chunk is full. The first chunk may be
    shorter (``initial_codec_chunk_frames``), so that the Talker begins early; the last one is what is left.

    Args:
        output: ``{"hidden": tensor, "meta": mapping}``; ``meta`` goes along with every chunk.
        context: of the request.
    """
    state = context.state
    if not state:
        knobs = FrameChunker.from_knobs(context.knobs, f"edge {context.edge}")
        state.update(held=[], wanted=knobs.initial_chunk_frames, later=knobs.chunk_frames)
    if output is not None:
        state["held"].append(output["hidden"])
        state["meta"] = output["meta"]
    count = sum(map(len, state["held"]))
    if not count or (count < state["wanted"] and not context.last):
        return []
    held, chunks = torch.cat(state["held"]), []
    while len(held) >= state["wanted"] or (context.last and len(held)):
        chunk, held = held[: state["wanted"]], held[state["wanted"] :]
        chunks.append({"hidden": chunk, "meta": state["meta"]})
        state["wanted"] = state["later"]
    state["held"] = [held]
    return chunks


def talker2code2wav(output: Output, context: Context) -> Chunks:
    """Codes ``[16, n]``, in chunks of ``codec_chunk_frames`` with ``codec_left_context_frames`` before them.

    Codec frames are what :class:`FrameChunker` is for: it cuts them however they come in, and gives each
    chunk the frames to its left once more, for decoders that need to hear what was before.

    Args:
        output: ``{"codes": tensor, "meta": mapping}``; ``meta`` goes along with every chunk, which has
            ``left_context_frames`` beside it: how many of its frames were in chunks before.
        context: of the request.
    """
    state = context.state
    if not state:
        state["chunker"] = FrameChunker.from_knobs(context.knobs, f"edge {context.edge}")
    full = []
    if output is not None:
        state["meta"] = output["meta"]
        full += state["chunker"].push(output["codes"])
    if context.last:
        full += state["chunker"].flush()
    return [
        {
            "codes": chunk.frames,
            "left_context_frames": chunk.left_context_frames,
            "meta": state["meta"],
        }
        for chunk in full
    ]
