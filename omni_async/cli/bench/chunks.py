"""What the streams' benchmark sends: codec frames of a speech model, 6.4 KB a chunk, and who is busy with it.

In: the number of a chunk. Out: its tensor, a check of one that came, CPU time.
Never: makes a tensor while times are taken.
"""

from __future__ import annotations

import gc
import os
import time
from pathlib import Path
from typing import Any

from .payload import Mismatch

SHAPE = (25, 32)
"""Frames and codebooks, int64."""
NBYTES = 25 * 32 * 8
KINDS = 8
"""Different tensors; chunks take them in turn."""


def tensors() -> list[Any]:
    """The same in every process."""
    import torch

    generator = torch.Generator().manual_seed(25)
    return [
        torch.randint(0, 4096, SHAPE, dtype=torch.int64, generator=generator) for _ in range(KINDS)
    ]


def with_meta(tensor: Any) -> dict[str, Any]:
    """The tensor beside what the peer's stages say of a chunk."""
    return {"codes": {"audio": tensor}, "meta": {"left_context_size": 25, "codec_chunk_frames": 25}}


def tensor_of(value: Any) -> Any:
    """The tensor of what came."""
    return value["codes"]["audio"] if isinstance(value, dict) else value


def check(tensor: Any, reference: list[Any], number: int) -> None:
    """Whether this is the tensor of that chunk.

    Raises:
        Mismatch: it is another one.
    """
    import torch

    if not torch.equal(tensor, reference[number % KINDS]):
        raise Mismatch(f"chunk {number} of a stream is another one than was sent")


def cpu_seconds() -> float:
    """CPU time of this process and of those it has started."""
    used = time.process_time()
    ticks = os.sysconf("SC_CLK_TCK")
    for task in Path("/proc/self/task").iterdir():
        for child in (task / "children").read_text().split():
            fields = Path("/proc", child, "stat").read_text().rpartition(")")[2].split()
            used += (int(fields[11]) + int(fields[12])) / ticks
    return used


def settle() -> None:
    """What has been imported is garbage no more, as serving engines have it after their start.

    Otherwise a full collection walks through all of PyTorch: 90 ms now and then, on either side.
    """
    gc.collect()
    gc.freeze()
