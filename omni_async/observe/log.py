"""Events with fields, to whatever the application has set up.

In: an event's name and its fields. Out: a structlog event where the application configured structlog,
else a record of the standard library's ``logging`` with the fields in its text.
Never: writes to stdout, sets up anything unless :func:`configure` is called.

The level is that of the standard logger ``omni_async`` in both cases, so an event that nobody wants
costs one look-up: ``logging.getLogger("omni_async").setLevel("DEBUG")`` shows them all.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, TextIO

ROOT = "omni_async"


class Logger:
    """One module's events. Immutable; :meth:`bind` makes one that says more."""

    __slots__ = ("_fields", "_standard")

    def __init__(self, standard: logging.Logger, fields: dict[str, Any]) -> None:
        self._standard = standard
        self._fields = fields

    def bind(self, **fields: Any) -> Logger:
        """A logger whose events carry these fields too."""
        return Logger(self._standard, {**self._fields, **fields})

    def enabled(self, level: int) -> bool:
        """Whether an event of this level goes anywhere."""
        return self._standard.isEnabledFor(level)

    def debug(self, event: str, **fields: Any) -> None:
        if self._standard.isEnabledFor(logging.DEBUG):
            self._emit(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: Any) -> None:
        if self._standard.isEnabledFor(logging.INFO):
            self._emit(logging.INFO, event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        if self._standard.isEnabledFor(logging.WARNING):
            self._emit(logging.WARNING, event, fields)

    def error(self, event: str, **fields: Any) -> None:
        if self._standard.isEnabledFor(logging.ERROR):
            self._emit(logging.ERROR, event, fields)

    def _emit(self, level: int, event: str, fields: dict[str, Any]) -> None:
        fields = {**self._fields, **fields}
        structlog = sys.modules.get("structlog")  # not imported means not configured
        if structlog is not None and structlog.is_configured():
            bound = structlog.get_logger(self._standard.name).bind(logger=self._standard.name)
            bound.log(level, event, **fields)
            return
        text = " ".join([event, *(f"{name}={value!r}" for name, value in fields.items())])
        # Two frames up is the line that reported the event.
        self._standard.log(level, "%s", text, stacklevel=3)


def get_logger(name: str, **fields: Any) -> Logger:
    """The logger of a module: ``get_logger(__name__)``. Names lie below ``omni_async``."""
    inside = name == ROOT or name.startswith(ROOT + ".")
    return Logger(logging.getLogger(name if inside else f"{ROOT}.{name}"), fields)


def configure(level: str = "INFO", *, json: bool = False, stream: TextIO | None = None) -> None:
    """Set up structlog for a program of ours: the command line calls this, a library never does.

    Args:
        level: the least level that is shown, such as ``"INFO"``.
        json: one JSON object a line instead of text for people.
        stream: where to; stderr by default, for stdout belongs to results.

    Raises:
        KeyError: there is no such level.
    """
    import structlog

    out = sys.stderr if stream is None else stream
    number = logging.getLevelName(level)
    if not isinstance(number, int):
        raise KeyError(level)
    renderer: Any = (
        structlog.processors.JSONRenderer()
        if json
        else structlog.dev.ConsoleRenderer(colors=out.isatty())
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(file=out),
        cache_logger_on_first_use=False,
    )
    logging.getLogger(ROOT).setLevel(number)
