"""Spans: the beginning and the end of an operation as two events.

In: a logger, an operation, its edge and key. Out: ``<operation>.start`` and ``<operation>.finish`` at
debug level, the latter with outcome and seconds.
Never: swallows an exception, costs more than a level check while debug events go nowhere.
"""

from __future__ import annotations

import logging
import time
from types import TracebackType
from typing import Any

from .log import Logger


class Span:
    """A context manager around one operation; :meth:`note` adds fields to its end."""

    __slots__ = ("_begin", "_fields", "_logger", "_operation")

    def __init__(self, logger: Logger | None, operation: str) -> None:
        self._logger = logger
        self._operation = operation
        self._fields: dict[str, Any] = {}
        self._begin = 0.0

    def note(self, **fields: Any) -> None:
        """Add fields to the finish event, such as ``nbytes``."""
        if self._logger is not None:
            self._fields.update(fields)

    def __enter__(self) -> Span:
        if self._logger is not None:
            self._begin = time.perf_counter()
            self._logger.debug(f"{self._operation}.start")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._logger is not None:
            self._logger.debug(
                f"{self._operation}.finish",
                outcome="ok" if kind is None else kind.__name__,
                seconds=round(time.perf_counter() - self._begin, 6),
                **self._fields,
            )


_SILENT = Span(None, "")


def span(logger: Logger, operation: str, *, edge: tuple[str, str], key: str) -> Span:
    """A span of ``operation`` (``put``, ``get``, …), with edge and key in both of its events."""
    if not logger.enabled(logging.DEBUG):
        return _SILENT
    return Span(logger.bind(edge=f"{edge[0]}->{edge[1]}", key=key), operation)
