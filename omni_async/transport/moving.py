"""The engine's moves to or from one peer: small ones first and together, large ones piece by piece.

In: moves of an operation, and how much of their source is there already. Out: calls of the engine, word of each end.
Never: lets a large payload hold up a small one; tells an end while a piece of the operation is under way.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence

from .._aio.tasks import spawn
from ..abc import RemoteRegion
from ..errors import OmniAsyncError
from ..model import Move, batches
from .filling import Filling

SMALL = 256 << 10
"""Bytes of an operation that is written in one piece, together with others of its kind."""
TOGETHER = 64
"""Small operations in one call of the engine."""
PIECE = 16 << 20
"""Bytes of a large operation that are handed to the engine at a time."""
PLANNED = 2 * PIECE
"""The same for planned operations, layers of a cache, that go together: each call of an engine has its price, and so
has word of its end."""
ABREAST = 2
"""Such pieces under way to one receiver. With two the engine is never idle between them; each more would
only make small operations wait longer for their share of the wire."""

Ended = Callable[[str | None], None]
"""Told at the end of an operation: what went wrong, or ``None``."""

Make = Callable[[], Sequence[Move]]
"""Works out moves; none, where they are not wanted any more."""

Mover = Callable[[str, Sequence[Move], dict[int, RemoteRegion]], Awaitable[None]]
"""What carries bytes: :meth:`Engine.write` or :meth:`Engine.read`."""


class _Job:
    """One operation."""

    __slots__ = ("ended", "error", "filling", "make", "nbytes", "pieces", "under_way")

    def __init__(
        self,
        nbytes: int,
        ended: Ended,
        make: Make | None = None,
        filling: Filling | None = None,
    ) -> None:
        self.nbytes = nbytes
        self.ended = ended
        self.make = make
        """What its pieces are not known without, until its turn comes."""
        self.filling = filling
        self.pieces: deque[Sequence[Move]] = deque()
        """Those that were not begun."""
        self.under_way = 0
        self.error: str | None = None

    @property
    def ready(self) -> bool:
        """Whether its next piece can be begun: there is one, and its source is there."""
        if self.make is not None:
            return True
        return bool(self.pieces) and self._covers(self.pieces[0])

    @property
    def next_nbytes(self) -> int:
        """What its next piece has at most."""
        return min(self.nbytes, PIECE) if self.make is not None else _nbytes(self.pieces[0])

    def next(self) -> Sequence[Move]:
        """Take it."""
        if self.make is not None:
            make, self.make = self.make, None
            self.pieces.extend(_batches(make()))
        return self.pieces.popleft()

    def _covers(self, piece: Sequence[Move]) -> bool:
        filling = self.filling
        return filling is None or all(filling.covers(move) for move in piece)

    @property
    def failed(self) -> bool:
        if self.error is None and self.filling is not None:
            self.error = self.filling.failure
        return self.error is not None


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
        move: Mover,
        peer: str,
        regions: dict[int, RemoteRegion],
        idle: Callable[[], None],
    ) -> None:
        self._move = move
        self._peer = peer
        self._regions = regions
        self._idle = idle
        self._small: deque[_Job] = deque()
        self._large: deque[_Job] = deque()
        """With pieces that were not begun; whose turn it is stands first."""
        self._together = False
        self._abreast = 0
        self._picking = False
        """One of those abreast has not begun. It picks its piece when it does: what was added in the same turn of
        the loop can go together then."""
        self._jobs = 0
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def busy(self) -> bool:
        """Whether an operation has not ended."""
        return self._jobs > 0

    def add(self, moves: Sequence[Move], filling: Filling | None, ended: Ended) -> None:
        """Move in turn; ``ended`` is called when no byte of it can be under way any more."""
        nbytes = _nbytes(moves)
        job = _Job(nbytes, ended, filling=filling)
        if nbytes <= SMALL and (filling is None or filling.full):
            job.pieces.append(moves)
            self._begin(job, self._small)
        elif job.failed:
            ended(job.error)
            self.go_on()
        else:
            job.pieces.extend(_pieces(moves) if filling is not None else _batches(moves))
            if filling is not None:
                filling.watch(self._filled)
            self._begin(job, self._large)

    def plan(self, nbytes: int, make: Make, ended: Ended) -> None:
        """The same for moves that are worked out when their turn comes.

        Args:
            nbytes: what they have together.
        """
        self._begin(_Job(nbytes, ended, make), self._small if nbytes <= SMALL else self._large)

    def _begin(self, job: _Job, queue: deque[_Job]) -> None:
        self._jobs += 1
        queue.append(job)
        self.go_on()

    def go_on(self) -> None:
        """Begin what may be begun."""
        if self._small and not self._together:
            self._together = True
            spawn(self._move_small(), self._tasks)
        self._begin_piece()
        if not self._jobs:
            self._idle()

    def _begin_piece(self) -> None:
        if self._abreast < ABREAST and not self._picking and any(job.ready for job in self._large):
            self._abreast += 1
            self._picking = True
            spawn(self._move_piece(), self._tasks)

    def _filled(self) -> None:
        """More of a source is there, or will never be."""
        for job in list(self._large):
            self._maybe_over(job)
        self.go_on()

    async def _move_small(self) -> None:
        jobs = [self._small.popleft() for _ in range(min(TOGETHER, len(self._small)))]
        await self._carry(jobs, [job.next() for job in jobs])
        self._together = False
        self._ended(jobs)

    async def _move_piece(self) -> None:
        jobs, moves = self._turn()
        self._picking = False
        # The engine begins with these while more are worked out.
        asyncio.get_running_loop().call_soon(self._begin_piece)
        if jobs:
            await self._carry(jobs, moves)
        self._abreast -= 1
        self._ended(jobs)

    def _turn(self) -> tuple[list[_Job], list[Sequence[Move]]]:
        """Whose turn it is, and its next piece; where others wait, as many of theirs as may go together."""
        jobs: list[_Job] = []
        moves: list[Sequence[Move]] = []
        total = 0
        for _ in range(len(self._large)):
            job = self._large[0]
            if job.ready:
                total += job.next_nbytes
                limit = PIECE if job.make is None else PLANNED
                if jobs and (total > limit or self._abreast < ABREAST):  # the first goes at once
                    break
                jobs.append(job)
                moves.append(job.next())
            self._large.rotate(-1)
        for job in jobs:
            if not job.pieces:
                self._large.remove(job)
        return jobs, moves

    async def _carry(self, jobs: list[_Job], moves: list[Sequence[Move]]) -> None:
        fit: list[Move] = []
        fitting = []
        for job, wanted in zip(jobs, moves, strict=True):
            job.under_way += 1
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

    def _ended(self, jobs: list[_Job]) -> None:
        for job in jobs:
            self._maybe_over(job)
        self.go_on()

    def _maybe_over(self, job: _Job) -> None:
        if job.pieces and job.failed:  # it needs no more of them
            job.pieces.clear()
            self._large.remove(job)
        if not (job.pieces or job.make or job.under_way):
            self._jobs -= 1
            job.ended(job.error)


def _nbytes(moves: Sequence[Move]) -> int:
    return sum([move.nbytes for move in moves])


def _outside(moves: Sequence[Move], regions: dict[int, RemoteRegion]) -> str | None:
    """Which landing slot is in no region that its receiver has announced, or in none any more."""
    known: int | None = None
    limit = 0
    for _, number, offset, nbytes in moves:
        if number != known:
            region = regions.get(number)
            known, limit = number, -1 if region is None else region.nbytes
        if not 0 <= offset <= limit - nbytes:
            return (
                f"{nbytes} bytes at {offset} of region {number} lie outside the "
                "regions that were announced"
            )
    return None


def _pieces(moves: Sequence[Move]) -> Iterator[list[Move]]:
    """One after another, as their source is filled."""
    for move in moves:
        yield from batches([move], PIECE)


def _batches(moves: Sequence[Move]) -> list[list[Move]]:
    """As many of them together as one piece may have bytes; one piece at least."""
    return [list(moves)] if _nbytes(moves) <= PIECE else list(batches(moves, PIECE))
