"""Copies out of a producer's mapped caches (MAP): many small pieces go by index, without the GIL.

In: a plan, spots that the producer told, its regions. Out: layers in their blocks.
Never: reads beyond a region, whatever was told; lets go of a mapping that a copy is reading.
"""

from __future__ import annotations

from .._aio.executor import OwnedExecutor
from ..errors import OmniAsyncError
from ..transport.guests import GuestLine
from .caches import Caches
from .gather import carry
from .plan import KVPlan
from .words import Spot


async def carry_layers(
    executor: OwnedExecutor,
    plan: KVPlan,
    caches: Caches,
    layers: list[int],
    spots: list[Spot],
    line: GuestLine,
) -> str | None:
    """Copy layers; what went wrong, or ``None``.

    Cancellation: ends after the layer under way has been copied.
    """
    count = len(plan.source_tensors)
    for layer in layers:
        theirs = spots[layer * count : (layer + 1) * count]
        regions = [line.region(spot.region) for spot in theirs]  # kept while they are read
        bases = []
        for spot, region, nbytes in zip(theirs, regions, plan.source_tensors, strict=True):
            if region is None:
                return "the producer has withdrawn its memory"
            if not 0 <= spot.offset <= region.nbytes - nbytes:
                return f"{nbytes} bytes at {spot.offset} lie outside the region that was announced"
            bases.append(region.address + spot.offset)
        try:
            await executor.finish(carry, plan, bases, caches.bases(layer))
        except OmniAsyncError as error:
            return str(error)
    return None
