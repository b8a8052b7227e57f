"""One edge of one transport, so that callers need not repeat its stages.

In: keys and values. Out: the transport's own calls.
Never: keeps state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ..model import EdgeName, Receipt

if TYPE_CHECKING:
    from .base import Transport
    from .delivery import Delivery


class Edge:
    """``transport.edge(from_stage, to_stage)``; options as on :class:`Transport`."""

    __slots__ = ("name", "transport")

    def __init__(self, transport: Transport, name: EdgeName) -> None:
        self.transport = transport
        self.name = name

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

    def __repr__(self) -> str:
        return f"<Edge {self.name} of {self.transport!r}>"
