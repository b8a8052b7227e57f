"""One edge of one transport, so that callers need not repeat its stages.

In: keys and values. Out: the transport's own calls.
Never: keeps state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ..errors import UsageError
from ..model import EdgeName, Receipt
from .streams.window import DEFAULT_WINDOW

if TYPE_CHECKING:
    from .base import Transport
    from .delivery import Delivery
    from .streams import ChunkReader, ChunkWriter


class Edge:
    """``transport.edge(from_stage, to_stage)``; options as on :class:`Transport`."""

    __slots__ = ("knobs", "name", "transport", "window")

    def __init__(
        self,
        transport: Transport,
        name: EdgeName,
        window: int = DEFAULT_WINDOW,
        knobs: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.transport = transport
        self.name = name
        self.window = window
        """Chunks of one stream that may be under way."""
        self.knobs = knobs
        """What stage processors read, such as ``codec_chunk_frames``; set by the deploy file."""

    async def put(self, key: str, value: Any, **options: Any) -> Receipt:
        """:meth:`Transport.put` on this edge. Cancellation: safe."""
        return await self.transport.put(*self.name, key, value, **options)

    async def get(
        self, key: str, metadata: Mapping[str, Any] | None = None, **options: Any
    ) -> Delivery:
        """:meth:`Transport.get` on this edge. Cancellation: safe."""
        return await self.transport.get(*self.name, key, metadata, **options)

    async def put_many(
        self, values: Mapping[str, Any], **options: Any
    ) -> dict[str, Receipt | BaseException]:
        """:meth:`Transport.put_many` on this edge. Cancellation: safe."""
        return await self.transport.put_many(*self.name, values, **options)

    async def get_many(
        self, keys: Iterable[str], **options: Any
    ) -> dict[str, Delivery | BaseException]:
        """:meth:`Transport.get_many` on this edge. Cancellation: safe."""
        return await self.transport.get_many(*self.name, keys, **options)

    def stream(self, key: str, *, window: int | None = None, metadata: Any = None) -> Any:
        """A stream of chunks: a :class:`ChunkWriter` at a sender, a :class:`ChunkReader` at a receiver.

        Enter it by ``async with``. Either side may come first.

        Args:
            key: what it is called; one writer and one reader have it at a time.
            window: chunks that may be under way; by default what the deploy file says for the edge.
            metadata: (reader) where the sender is, as for :meth:`get`.

        Raises:
            UsageError: wrong edge, key or window.
        """
        if self.transport.role == "sender":
            return self.writer(key, window=window)
        return self.reader(key, window=window, metadata=metadata)

    def writer(self, key: str, *, window: int | None = None) -> ChunkWriter:
        """The writing end of a stream; see :meth:`stream`."""
        where = self.transport.enter("sender", *self.name, key)
        return self.transport.writer(where, self._window(window))

    def reader(self, key: str, *, window: int | None = None, metadata: Any = None) -> ChunkReader:
        """The reading end of a stream; see :meth:`stream`."""
        where = self.transport.enter("receiver", *self.name, key)
        if metadata is not None and not isinstance(metadata, Mapping):
            raise UsageError(f"metadata must be a mapping or None, not {metadata!r}")
        return self.transport.reader(where, self._window(window), metadata)

    def _window(self, window: int | None) -> int:
        if window is None:
            return self.window
        if type(window) is not int or window < 1:
            raise UsageError(f"window must be an int of at least 1, not {window!r}")
        return window

    def __repr__(self) -> str:
        return f"<Edge {self.name} of {self.transport!r}>"
