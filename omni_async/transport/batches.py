"""Batches: puts one after another, gets side by side.

In: one put or get, and for what. Out: the outcome of each key, errors among them.
Never: lets a key's failure keep the others from theirs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

from .._aio.finish import finish_all
from ..errors import OmniAsyncError, UsageError
from ..model import Receipt
from .delivery import Delivery

GETS_PER_TURN = 64
"""Gets of a batch that begin in one turn of the loop: about a millisecond."""


async def put_each(
    put: Callable[[str, Any], Coroutine[Any, Any, Receipt]], values: Mapping[str, Any]
) -> dict[str, Receipt | BaseException]:
    """Put them all.

    Cancellation: safe; keys not yet put are not put.
    """
    outcomes: dict[str, Receipt | BaseException] = {}
    for key, value in values.items():
        try:
            outcomes[key] = await put(key, value)
        except OmniAsyncError as error:
            outcomes[key] = error
    return outcomes


async def get_each(
    get: Callable[[str], Coroutine[Any, Any, Delivery]], keys: Iterable[str]
) -> dict[str, Delivery | BaseException]:
    """Get them all.

    Raises:
        UsageError: one of them cannot be a key.

    Cancellation: safe; what was not delivered stays on offer.
    """
    try:
        distinct = list(dict.fromkeys(keys))
    except TypeError as error:  # one of them cannot even be looked up
        raise UsageError(f"a key is a str: {error}") from None
    gets: list[asyncio.Task[Delivery]] = []
    try:
        for key in distinct:
            gets.append(asyncio.create_task(get(key)))
            if len(gets) % GETS_PER_TURN == 0:  # thousands in one turn would hold up the loop
                await asyncio.sleep(0)
    except asyncio.CancelledError:
        for task in gets:
            task.cancel()
        await finish_all(gets)
        raise
    outcomes = await asyncio.gather(*gets, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not isinstance(outcome, OmniAsyncError):
            raise outcome
    return dict(zip(distinct, outcomes, strict=True))
