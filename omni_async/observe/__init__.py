"""What a transport says of itself: events, spans, counters.

In: events with fields. Out: log records, numbers.
Never: configures logging for the application, imports structlog or Prometheus by itself.

The Prometheus exporter is :mod:`omni_async.observe.prometheus`, behind the extra ``prometheus``.
"""

from __future__ import annotations

from .counters import Counters
from .log import Logger, configure, get_logger
from .spans import Span, span

__all__ = ["Counters", "Logger", "Span", "configure", "get_logger", "span"]
