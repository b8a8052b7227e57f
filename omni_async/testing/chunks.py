"""One end of a stream as a test drives it, in this process or in another one.

In: recipes in the place of chunks. Out: how each one differed, and the errors a user would see.
Never: compares by the library's own codec; lets a test see in which process an end lives.

The functions of this module are carried out where the side lives; :class:`End` calls them there.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from typing import Any

import msgspec

from ..errors import OmniAsyncError, StreamClosed
from ..transport.direct_transport import DirectTransport
from ..transport.receiving import Receiving
from ..transport.streams import ChunkReader, ChunkWriter
from .orders import ErrorWord, error_word
from .recipes import Recipe
from .sides import EDGE, LocalSide, RemoteSide, Side, differs

Where = tuple[str, str]


class Story(msgspec.Struct):
    """What a reader got, to the end of its stream."""

    count: int = 0
    wrong: list[str] = []
    """How chunks differed from what was expected; nothing when they did not."""
    segments: list[int] = []
    """Chunks of each segment, where they were read as such."""
    error: ErrorWord | None = None
    """How it ended, if not by ``finish``."""


class End:
    """A writer or a reader under a name of its side."""

    def __init__(self, side: Side, name: str) -> None:
        self._side = side
        self._name = name

    async def _do(self, what: str, **arguments: Any) -> Any:
        if isinstance(self._side, LocalSide):
            return await globals()[what](self._side, self._name, **arguments)
        assert isinstance(self._side, RemoteSide)
        return await self._side.use(f"{__name__}:{what}", name=self._name, **arguments)

    async def send(self, recipe: Recipe) -> None:
        await self._do("send", recipes=[recipe])

    async def send_all(
        self, recipes: Iterable[Recipe], *, pause: float = 0.0, finish: bool = True
    ) -> None:
        await self._do("send", recipes=list(recipes), pause=pause, finish=finish)

    async def end_segment(self) -> None:
        await self._do("end_segment")

    async def finish(self) -> None:
        await self._do("finish")

    async def abort(self, reason: str) -> None:
        await self._do("abort", reason=reason)

    async def fail(self, text: str) -> None:
        """Leave by a ``ValueError``."""
        await self._do("fail", text=text)

    async def sent(self) -> int:
        count: int = await self._do("sent")
        return count

    async def read(self, want: Recipe | None = None, timeout: float | None = 20.0) -> str | None:
        """How the next chunk differs from what is wanted."""
        found: str | None = await self._do("read", want=want, timeout=timeout)
        return found

    async def read_nowait(self, want: Recipe | None = None) -> str | None:
        found: str | None = await self._do("read_nowait", want=want)
        return found

    async def read_all(
        self, want: Iterable[Recipe], *, pause: float = 0.0, segments: bool = False
    ) -> Story:
        arguments = {"want": list(want), "pause": pause, "segments": segments}
        return msgspec.convert(msgspec.to_builtins(await self._do("read_all", **arguments)), Story)

    async def leave(self) -> None:
        await self._do("leave")


async def writer(side: Side, key: str, window: int | None = None, edge: Where = EDGE) -> End:
    """Enter a stream to write it."""
    end = End(side, f"{key} to {edge[1]}")
    await end._do("enter_writer", key=key, window=window, edge=list(edge))
    return end


async def reader(
    side: Side,
    key: str,
    window: int | None = None,
    edge: Where = EDGE,
    metadata: dict[str, Any] | None = None,
    name: str = "",
) -> End:
    """Enter a stream to read it."""
    end = End(side, name or f"{key} from {edge[0]}")
    await end._do("enter_reader", key=key, window=window, edge=list(edge), metadata=metadata)
    return end


async def left_of_streams(side: Side) -> dict[str, int]:
    """What a side still keeps for streams, by table; empty tables are left out."""
    if isinstance(side, LocalSide):
        return await tables(side)
    assert isinstance(side, RemoteSide)
    found: dict[str, int] = await side.use(f"{__name__}:tables")
    return found


async def still(*sides: Side, within: float = 2.0) -> None:
    """Wait until these sides keep nothing for streams.

    Raises:
        AssertionError: they still do.
    """
    deadline = asyncio.get_running_loop().time() + within
    for side in sides:
        while left := await left_of_streams(side):
            assert asyncio.get_running_loop().time() < deadline, f"left of streams: {left}"
            await asyncio.sleep(0.005)


# --- where the side lives -----------------------------------------------------------------------


async def enter_writer(
    side: LocalSide, name: str, key: str, window: int | None, edge: list[str]
) -> None:
    side.owners.add(key)
    stream = side.transport.edge(*edge).writer(key, window=window)
    side.streams[name] = await stream.__aenter__()


async def enter_reader(
    side: LocalSide,
    name: str,
    key: str,
    window: int | None,
    edge: list[str],
    metadata: dict[str, Any] | None,
) -> None:
    stream = side.transport.edge(*edge).reader(key, window=window, metadata=metadata)
    side.streams[name] = await stream.__aenter__()


def _writer(side: LocalSide, name: str) -> ChunkWriter:
    stream = side.streams[name]
    assert isinstance(stream, ChunkWriter)
    return stream


def _reader(side: LocalSide, name: str) -> ChunkReader:
    stream = side.streams[name]
    assert isinstance(stream, ChunkReader)
    return stream


async def send(
    side: LocalSide, name: str, recipes: list[Any], pause: float = 0.0, finish: bool = False
) -> None:
    stream = _writer(side, name)
    for recipe in msgspec.convert(recipes, list[Recipe]):
        await stream.send(recipe.make())
        if pause:
            await asyncio.sleep(pause)
    if finish:
        await stream.finish()


async def end_segment(side: LocalSide, name: str) -> None:
    await _writer(side, name).end_segment()


async def finish(side: LocalSide, name: str) -> None:
    await _writer(side, name).__aexit__(None, None, None)


async def abort(side: LocalSide, name: str, reason: str) -> None:
    await _writer(side, name).abort(reason)


async def fail(side: LocalSide, name: str, text: str) -> None:
    await _writer(side, name).__aexit__(ValueError, ValueError(text), None)


async def sent(side: LocalSide, name: str) -> int:
    return _writer(side, name).sent


async def read(side: LocalSide, name: str, want: Any, timeout: float | None) -> str | None:
    return _compared(await _reader(side, name).read(timeout), want)


async def read_nowait(side: LocalSide, name: str, want: Any) -> str | None:
    return _compared(_reader(side, name).read_nowait(), want)


async def read_all(
    side: LocalSide, name: str, want: list[Any], pause: float, segments: bool
) -> Story:
    stream = _reader(side, name)
    story = Story(wrong=[], segments=[])
    try:
        if segments:
            async for segment in stream.segments():
                before = story.count
                await _read_on(segment, want, pause, story)
                story.segments.append(story.count - before)
        else:
            await _read_on(stream, want, pause, story)
            with contextlib.suppress(StreamClosed):  # it has finished, and says so again
                await stream.read()
    except OmniAsyncError as error:
        story.error = error_word(error)
    return story


async def _read_on(chunks: AsyncIterator[Any], want: list[Any], pause: float, story: Story) -> None:
    async for chunk in chunks:
        wanted = want[story.count] if story.count < len(want) else None
        wrong = "one too many" if wanted is None else _compared(chunk, wanted)
        if wrong is not None:
            story.wrong.append(f"chunk {story.count}: {wrong}")
        del chunk
        story.count += 1
        if pause:
            await asyncio.sleep(pause)


async def leave(side: LocalSide, name: str) -> None:
    await _reader(side, name).__aexit__(None, None, None)


async def tables(side: LocalSide) -> dict[str, int]:
    transport = side.transport
    found: dict[str, int] = {}
    if isinstance(transport, DirectTransport):
        if transport._sending is not None:
            core = transport._sending.core
            found = {
                "streams": len(core.streams),
                "unread": core.streams.unread,
                "readers that wait": core.streams.waiting,
                "payloads": len(core.directory),
            }
        if isinstance(transport._receiving, Receiving):
            links = transport._receiving._links.values()
            found = {
                "inlets": sum(len(link.core.streams) for link in links),
                "readers": len(transport._receiving.streams),
            }
    return {name: count for name, count in found.items() if count}


def _compared(value: Any, want: Any) -> str | None:
    return None if want is None else differs(value, msgspec.convert(want, Recipe))
