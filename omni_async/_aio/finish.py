"""Finish before cancel: what must not be left half done is awaited to its end.

In: an operation. Out: its result, or the caller's cancellation after the operation has ended.
Never: swallows a cancellation, cancels the operation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def finish(operation: Awaitable[T]) -> T:
    """Await an operation to its end, however often the caller is cancelled meanwhile.

    The operation's own errors come through, also when it was cancelled by somebody else. When the
    caller was cancelled, that ``CancelledError`` is raised after the end and the operation's outcome
    is dropped. ``Task.cancelling()`` is left as the cancellers set it, so ``asyncio.timeout`` and
    task groups around this call work.

    Cancellation: ends after the operation has ended.
    """
    future = asyncio.ensure_future(operation)
    await finish_all((future,))
    return future.result()


async def finish_all(
    futures: Iterable[asyncio.Future[Any]], hurry: Callable[[], object] | None = None
) -> None:
    """Await the end of all futures; their outcomes stay in them.

    Args:
        futures: operations under way.
        hurry: called once when the caller is cancelled, to make the end come sooner.

    Cancellation: ends after all futures have ended; their errors then count as seen.
    """
    pending = {future for future in futures if not future.done()}
    ended = set(futures) - pending
    cancelled: asyncio.CancelledError | None = None
    try:
        while pending:
            try:
                # Not shield(): there the caller's cancellation and the operation's look the same.
                done, pending = await asyncio.wait(pending)
                ended |= done
            except asyncio.CancelledError as error:
                if cancelled is None:
                    cancelled = error
                    if hurry is not None:
                        hurry()
        if cancelled is not None:
            for future in ended:
                if not future.cancelled():
                    future.exception()
            raise cancelled
    finally:
        del cancelled  # its traceback refers to this frame
