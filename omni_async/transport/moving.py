"""The engine's moves to or from one peer: small ones first and together, large ones piece by piece.

In: moves of an operation, and how much of their source is there already. Out: calls of the engine, word of each end.
Never: lets a large payload hold up a small one; tells an end while a piece of the operation is under way.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from ..abc import RemoteRegion
from ..errors import OmniAsyncError
from ..model import Move
from .filling import Filling
from .wiring import Wiring

SMALL = 256 << 10
"""Bytes of an operation that is written in one piece, together with others of its kind."""
TOGETHER = 64
"""Small operations in one call of the engine."""
PIECE = 16 << 20
"""Bytes of a large operation that are handed to the engine at a time."""
ABREAST = 2
"""Such pieces under way to one receiver. With two the engine is never idle between them; each more would
only make small operations wait longer for their share of the wire."""

Ended = Callable[[str | None], None]
"""Told at the end of an operation: what went wrong, or ``None``."""

Mover = Callable[[str, Sequence[Move], dict[int, RemoteRegion]], Awaitable[None]]
"""What carries bytes: :meth:`Engine.write` or :meth:`Engine.read`."""


class _Job:
    """One operation."""

    __slots__ = ("ended", "error", "filling", "moves", "pieces", "under_way")

    def __init__(self, moves: Sequence[Move], filling: Filling | None, ended: Ended) -> None:
        self.moves = moves
        self.filling = filling
        self.ended = ended
        self.pieces: deque[list[Move]] = deque()
        self.under_way = 0
        self.error: str | None = None

    @property
    def ready(self) -> bool:
        """Whether the source of the next piece is there."""
        filling = self.filling
        return filling is None or all(filling.covers(move) for move in self.pieces[0])

    @property
    def failed(self) -> bool:
        if self.error is None and self.filling is not None:
            self.error = self.filling.failure
        return self.error is not None


_Then = Callable[[list[_Job]], None]


class PeerMoves:
    """What is to be written to one receiver, or read from one sender.

    Args:
        move: what carries the bytes.
        peer: its incarnation, as the engine knows it.
        regions: those that it has announced; they come and go.
        idle: called when nothing is under way any more.
    """

    def __init__(
        self,
        wiring: Wiring,
        move: Mover,
        peer: str,
        regions: dict[int, RemoteRegion],
        idle: Callable[[], None],
    ) -> None:
        self._wiring = wiring
        self._move = move
        self._peer = peer
        self._regions = regions
        self._idle = idle
        self._small: deque[_Job] = deque()
        self._large: deque[_Job] = deque()
        """With pieces that were not begun; whose turn it is stands first."""
        self._together = False
        self._abreast = 0
        self._jobs = 0
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def busy(self) -> bool:
        """Whether an operation has not ended."""
        return self._jobs > 0

    def add(self, moves: Sequence[Move], filling: Filling | None, ended: Ended) -> None:
        """Move in turn; ``ended`` is called when no byte of it can be under way any more."""
        job = _Job(moves, filling, ended)
        self._jobs += 1
        if _nbytes(moves) <= SMALL and (filling is None or filling.full):
            self._small.append(job)
        else:
            job.pieces.extend(_pieces(moves) if filling is not None else _batches(moves))
            self._large.append(job)
            if filling is not None:
                filling.watch(self.go_on)
        self.go_on()

    def go_on(self) -> None:
        """Begin what may be begun: call it when more of a source is there."""
        if self._small and not self._together:
            self._together = True
            jobs = [self._small.popleft() for _ in range(min(TOGETHER, len(self._small)))]
            self._start(jobs, [job.moves for job in jobs], self._together_ended)
        passed = 0
        while passed < len(self._large):
            job = self._large.popleft()
            if job.failed:  # it needs no more pieces
                job.pieces.clear()
                self._maybe_over(job)
            elif job.ready and self._abreast < ABREAST:
                self._abreast += 1
                passed = 0
                self._start(*self._turn(job), self._piece_ended)
            else:
                self._large.append(job)
                passed += 1
        if not self._jobs:
            self._idle()

    def _turn(self, job: _Job) -> tuple[list[_Job], list[Sequence[Move]]]:
        """Its next piece, and where others wait behind it as many of theirs as one piece may have bytes.

        Layers of a cache are such operations: each call of an engine has its price, and so has its end.
        """
        jobs, moves = [job], [job.pieces.popleft()]
        if self._abreast == ABREAST:
            room = PIECE - _nbytes(moves[0])
            while self._large:
                other = self._large[0]
                if other.failed or not other.ready or _nbytes(other.pieces[0]) > room:
                    break
                jobs.append(self._large.popleft())
                moves.append(other.pieces.popleft())
                room -= _nbytes(moves[-1])
        self._large += [one for one in jobs if one.pieces]
        return jobs, list(moves)

    def _start(self, jobs: list[_Job], moves: list[Sequence[Move]], ended: _Then) -> None:
        for job in jobs:
            job.under_way += 1
        task = self._wiring.loop.create_task(self._run(jobs, moves, ended))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, jobs: list[_Job], moves: list[Sequence[Move]], ended: _Then) -> None:
        fit: list[Move] = []
        fitting = []
        for job, wanted in zip(jobs, moves, strict=True):
            job.error = job.error or _outside(wanted, self._regions)
            if job.error is None:
                fit += wanted
                fitting.append(job)
        problem: str | None = None
        try:
            if fit:
                await self._move(self._peer, fit, self._regions)
        except OmniAsyncError as error:
            problem = str(error)
        except Exception as error:  # noqa: BLE001 - whatever it is, the receiver is told of it
            problem = f"the engine broke its contract: {error!r}"
        for job in fitting:
            job.error = job.error or problem
        for job in jobs:
            job.under_way -= 1
        ended(jobs)
        self.go_on()

    def _together_ended(self, jobs: list[_Job]) -> None:
        self._together = False
        for job in jobs:
            self._maybe_over(job)

    def _piece_ended(self, jobs: list[_Job]) -> None:
        self._abreast -= 1
        for job in jobs:
            self._maybe_over(job)

    def _maybe_over(self, job: _Job) -> None:
        if not job.pieces and not job.under_way:
            self._jobs -= 1
            job.ended(job.error)


def _nbytes(moves: Sequence[Move]) -> int:
    return sum([move.nbytes for move in moves])


def _outside(moves: Sequence[Move], regions: dict[int, RemoteRegion]) -> str | None:
    """Which landing slot is in no region that its receiver has announced, or in none any more."""
    for move in moves:
        region = regions.get(move.region)
        if region is None or not 0 <= move.offset <= region.nbytes - move.nbytes:
            return (
                f"{move.nbytes} bytes at {move.offset} of region {move.region} lie outside the "
                "regions that were announced"
            )
    return None


def _pieces(moves: Sequence[Move]) -> list[list[Move]]:
    """One after another, as their source is filled."""
    return [
        [Move(move.local + at, move.region, move.offset + at, min(PIECE, move.nbytes - at))]
        for move in moves
        for at in range(0, move.nbytes, PIECE)
    ]


def _batches(moves: Sequence[Move]) -> list[list[Move]]:
    """As many of them together as one piece may have bytes."""
    if _nbytes(moves) <= PIECE:
        return [list(moves)]
    batches: list[list[Move]] = []
    room = 0
    for [piece] in _pieces(moves):
        if piece.nbytes > room:
            batches.append([])
            room = PIECE
        batches[-1].append(piece)
        room -= piece.nbytes
    return batches
