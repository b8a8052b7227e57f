"""All that is on its way to one consumer: into which blocks, and when it is given up.

In: transfers that are asked for, word that something of a share has changed. Out: word to who waits for it.
Never: lets two transfers have a block; forgets one into whose blocks something may still land.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence

from .._aio.deadline import Deadlines
from ..errors import ClosedError, OmniAsyncError, ProtocolError, TransferTimeout, UsageError
from .progress import KVProgress
from .reasons import named
from .stillness import Stillness
from .taking import Step, TakenShare, Taking


class Transfers:
    """Those of one consumer.

    Args:
        transfer_timeout: seconds in which something of one has to move, once it has begun.
        defer_timeout: seconds that its producer may take to be there and to begin.
        describe: a producer at an address, for people.
        flush: called after the core was told something.
    """

    def __init__(
        self,
        core: Taking,
        deadlines: Deadlines,
        *,
        transfer_timeout: float,
        defer_timeout: float,
        describe: Callable[[str], str],
        flush: Callable[[], None],
    ) -> None:
        self._core = core
        self._transfer_timeout = transfer_timeout
        self._defer_timeout = defer_timeout
        self._describe = describe
        self._flush = flush
        self._progress: dict[TakenShare, KVProgress] = {}
        """Of shares for which something may still land."""
        self.busy: dict[int, KVProgress] = {}
        """Blocks that a transfer may write to."""
        self.still = Stillness(asyncio.get_running_loop(), deadlines, self._due, self._late)

    def __len__(self) -> int:
        return len(self._progress)

    def __iter__(self) -> Iterator[TakenShare]:
        return iter(self._progress)

    def check_free(self, request_id: str, blocks: Sequence[int]) -> None:
        """Refuse blocks of another transfer.

        Raises:
            UsageError: something may still land in one.
        """
        busy = [block for block in blocks if block in self.busy]
        if busy:
            other = self.busy[busy[0]]
            raise UsageError(
                f"request {request_id!r}: into {len(busy)} of its blocks, such as {busy[0]}, something may still "
                f"land for {other!r}; wait for its released()"
            )

    @property
    def quarantined(self) -> frozenset[int]:
        """Blocks of failed transfers into which something may still land."""
        return frozenset(
            block for block, progress in self.busy.items() if progress.error is not None
        )

    # --- their lives ------------------------------------------------------------------------------

    def begin(self, progress: KVProgress, shares: Sequence[TakenShare]) -> None:
        """One more, of these shares."""
        for block in progress.block_ids:
            self.busy[block] = progress
        for share in shares:
            self._progress[share] = progress
            progress.shares.append(share)
        self.still.moved(progress)

    def stir(self, share: TakenShare) -> None:
        """Something of it has changed."""
        progress = self._progress.get(share)
        if progress is None:
            return
        if share.free:
            del self._progress[share]
        if share.step in (Step.BEGUN, Step.DONE) and progress.error is None:
            self._compare(progress)
        if share.step is Step.FAILED and progress.error is None:
            assert share.error is not None
            self.cancel(progress, share.error)
        over = progress.done or progress.error is not None
        if over and progress.free:
            for block in progress.block_ids:
                if self.busy.get(block) is progress:
                    del self.busy[block]
        if over:
            self.still.forget(progress)
        else:
            self.still.moved(progress)
        progress.stir()

    def _compare(self, progress: KVProgress) -> None:
        """Ranks of a producer that have begun have to give as many tokens: a cache in part is none."""
        begun = [share for share in progress.shares if share.step in (Step.BEGUN, Step.DONE)]
        other = next((share for share in begun if share.holds != begun[0].holds), None)
        if other is not None:
            told = (
                f"{share.holds} by {self._describe(share.address)}" for share in (begun[0], other)
            )
            text = f"the producer's ranks tell different numbers of tokens: {', '.join(told)}"
            self.cancel(progress, ProtocolError(named(progress.request_id, text)))

    def cancel(self, progress: KVProgress, error: OmniAsyncError) -> None:
        """Give one up; nothing where it is over."""
        if progress.done or progress.error is not None:
            return
        progress.error = error
        for share in progress.shares:
            self._core.cancel(share, error)
        progress.stir()
        self._flush()

    def cancel_all(self, reason: str) -> None:
        """Their consumer is closed."""
        for progress in set(self._progress.values()):
            self.cancel(progress, ClosedError(f"request {progress.request_id!r}: {reason}"))

    def leave_behind(self) -> None:
        """Tell who waits for blocks of which nothing will be known any more."""
        for progress in set(self._progress.values()):
            progress.leave_behind()

    # --- time limits ------------------------------------------------------------------------------

    def _limit(self, progress: KVProgress) -> float:
        return self._transfer_timeout if progress.begun else self._defer_timeout

    def _due(self, progress: KVProgress, moved: float) -> float:
        return moved + self._limit(progress)

    def _late(self, progress: KVProgress) -> None:
        limit = self._limit(progress)
        where = ", ".join(self._describe(share.address) for share in progress.shares)
        if progress.begun:
            text = f"nothing has moved for {limit:g} s, {progress.landed} layers are in place"
            phase = "moving"
        elif all(share.step is Step.PARKED for share in progress.shares):
            text, phase = f"no producer was there within {limit:g} s", "looking for the producer"
        else:
            text = f"the producer has not begun within {limit:g} s"
            phase = "waiting for the producer"
        error = TransferTimeout(
            f"request {progress.request_id!r} from {where}: {text}",
            key=progress.request_id,
            peer=where,
            phase=phase,
            timeout=limit,
        )
        self.cancel(progress, error)
