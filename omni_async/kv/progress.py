"""A request's cache on its way in, as a serving engine has it.

In: shares of it, as they come. Out: word of each layer, of all, of the moment in which blocks are free.
Never: says that a layer is there before its last byte is; that blocks are free while one may still land.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .._aio.deadline import Deadlines
from ..errors import ClosedError, OmniAsyncError, TransferCancelled, TransferTimeout
from ..transport import DEFAULT
from .arguments import checked_layer
from .taking import Step, TakenShare
from .waiters import Waiters, deadline_of, failed


class KVProgress:
    """What :meth:`KVConsumer.receive` returns.

    ::

        progress = await consumer.receive("tx-1", blocks)
        await progress.layer(0)        # attention of the first layer may begin
        await progress.all()           # every block is whole
    """

    def __init__(
        self,
        request_id: str,
        block_ids: Sequence[int],
        layers: int,
        deadlines: Deadlines,
        give_up: Callable[[KVProgress, OmniAsyncError], None],
        here: Callable[[], None],
    ) -> None:
        self.request_id = request_id
        self.block_ids = list(block_ids)
        self._layers = layers
        self._waiters = Waiters(deadlines)
        self._give_up = give_up
        self._here = here
        self.shares: list[TakenShare] = []
        self.error: OmniAsyncError | None = None
        self._left_behind = False

    # --- facts ------------------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        """Every layer is in place."""
        return self.error is None and all(share.step is Step.DONE for share in self.shares)

    @property
    def begun(self) -> bool:
        """Every producer rank has begun, or ended."""
        return all(share.step >= Step.BEGUN for share in self.shares)

    @property
    def free(self) -> bool:
        """Nothing can land in its blocks any more."""
        return all(share.free for share in self.shares)

    @property
    def landed(self) -> int:
        """Layers that are in place, all of them whole."""
        if not self.shares:
            return self._layers
        return len(set.intersection(*(share.landed for share in self.shares)))

    @property
    def tokens(self) -> int | None:
        """How many tokens the cache holds, once it has begun; ``None`` before, and where blocks are full."""
        told = [share.tokens for share in self.shares if share.step >= Step.BEGUN]
        return told[0] if told and told[0] >= 0 else None

    # --- waiting ----------------------------------------------------------------------------------

    async def layer(self, layer: int, *, timeout: Any = DEFAULT) -> None:
        """Wait until a layer is in place in all its blocks.

        Args:
            layer: from 0.
            timeout: seconds for this wait alone, after which the transfer goes on; by default it is the
                consumer's own limits that end the transfer.

        Raises:
            OmniAsyncError: as :meth:`all`; no layer of the request may be used then.

        Cancellation: safe; the transfer goes on.
        """
        self._here()
        layer = checked_layer(layer, self._layers)
        deadline = deadline_of(timeout)
        while not all(layer in share.landed for share in self.shares) or self.error is not None:
            self._raise_if_failed()
            await self._change(deadline, f"layer {layer}")

    async def all(self, *, timeout: Any = DEFAULT) -> None:
        """Wait until every layer is in place.

        Raises:
            TransferTimeout: no producer has begun within ``defer_timeout``, or nothing moved for
                ``transfer_timeout``; or this wait's own time is over, which ends nothing.
            TransferCancelled: the producer gave it up, or it was cancelled here.
            PeerLost: the producer has gone.
            EngineFault: the engine failed.
            ProtocolError: layouts, blocks or modes do not fit.
            UsageError: a call from another loop, which tells nothing of the transfer.

        After any of them but this wait's own time limit the blocks hold nothing to be used; they may be
        given to others after :meth:`released`.

        Cancellation: safe; the transfer goes on.
        """
        self._here()
        deadline = deadline_of(timeout)
        while not self.done:
            self._raise_if_failed()
            await self._change(deadline, "all layers")

    async def released(self, *, timeout: Any = DEFAULT) -> None:
        """Wait until the blocks may be given to others: at once after success, after a failure when no
        producer can write there any more.

        Raises:
            TransferTimeout: this wait's own time is over, and they may not.
            ClosedError: the consumer was closed, and nobody can tell any more when they may.
            UsageError: a call from another loop.

        Cancellation: safe.
        """
        self._here()
        deadline = deadline_of(timeout)
        while not (self.free and (self.done or self.error is not None)):
            if self._left_behind:
                raise ClosedError(
                    f"request {self.request_id!r}: its consumer was closed, and something may still land in its "
                    "blocks: do not use them again"
                )
            await self._change(deadline, "the last write")

    def cancel(self, reason: str = "cancelled by its consumer") -> None:
        """Give it up; the producer is told at once. On the loop; idempotent."""
        self._give_up(
            self,
            TransferCancelled(f"request {self.request_id!r}: {reason}", key=self.request_id),
        )

    # --- for the consumer -------------------------------------------------------------------------

    def stir(self) -> None:
        """Something has changed."""
        self._waiters.stir()

    def leave_behind(self) -> None:
        """Its consumer is closed, and the end of what may still land will not be known."""
        self._left_behind = True
        self.stir()

    async def _change(self, deadline: float | None, phase: str) -> None:
        def late() -> TransferTimeout:
            return TransferTimeout(
                f"request {self.request_id!r}: {phase} is not there yet ({self!r})",
                key=self.request_id,
                phase=phase,
            )

        await self._waiters.change(deadline, late)

    def _raise_if_failed(self) -> None:
        if self.error is not None:
            raise failed(self.error)

    def __repr__(self) -> str:
        state = "failed" if self.error else "done" if self.done else "under way"
        return (
            f"<KVProgress {self.request_id!r} {state}, {self.landed} of {self._layers} layers, "
            f"{len(self.block_ids)} blocks{'' if self.free else ' in use'}>"
        )
