"""A request's cache on its way out, as a serving engine has it.

In: layers that are ready, from the model's thread or the loop. Out: word of the end, or its error.
Never: blocks the model; says that blocks may be freed while a byte of them may still be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..errors import ClosedError, TransferTimeout, UsageError
from ..transport import DEFAULT
from .arguments import checked_layer
from .given import Session, State
from .told import Event, Told
from .waiters import Waiters, deadline_of, failed

if TYPE_CHECKING:
    from .producer import KVProducer


def agreed_tokens(before: int | None, now: int | None) -> int | None:
    """How many tokens there are, where that could be told twice.

    Raises:
        UsageError: it was, and not the same.
    """
    if before is not None and now is not None and now != before:
        raise UsageError(f"{now!r} tokens, and it was told before that they are {before}")
    return before if now is None else now


class KVSession:
    """What :meth:`KVProducer.offer` and :meth:`KVProducer.write_to` return.

    ::

        for layer in range(layers):
            ...compute...
            session.layer_ready(layer)
        await session.seal()
        await session.delivered()      # only now may the blocks be freed
    """

    def __init__(self, producer: KVProducer, core: Session) -> None:
        self._producer = producer
        self.core = core
        self._waiters = Waiters(producer.deadlines)
        self.since = producer.loop.time()
        self.patience = producer.defer_timeout
        """Seconds in which the first consumer has to ask."""
        self.tokens: int | None = None
        """How many there are, where it was told."""
        self.told = Told(f"request {core.request_id!r}")
        self._missed: list[int] | None = None
        """Layers whose events had not come when it failed."""

    @property
    def request_id(self) -> str:
        """What both sides call it."""
        return self.core.request_id

    @property
    def mode(self) -> str:
        """``write`` or ``read``."""
        return self.core.mode.value

    @property
    def state(self) -> str:
        """``open``, ``sealed``, ``delivered``, ``failing`` or ``failed``; it only goes forward."""
        return self.core.state.name.lower()

    @property
    def asked(self) -> int:
        """Consumers' ranks that have asked for it until now."""
        return len(self.core.shares)

    # --- from the model ---------------------------------------------------------------------------

    def assign(self, block_ids: Sequence[int], *, tokens: int | None = None) -> None:
        """Tell in which blocks the cache is, once, where the session was begun without.

        Args:
            block_ids: in the order of the tokens.
            tokens: how many there are, where :meth:`KVProducer.write_to` was not told; without both the
                blocks are full.

        Raises:
            UsageError: blocks that do not exist, or it was told before; another number of tokens than was told
                before, or one that these blocks do not hold.
        """
        self._producer.check(self)
        if self.core.blocks is not None:
            raise UsageError(f"request {self.request_id!r} has its blocks already")
        self._producer.assign(self, block_ids, agreed_tokens(self.tokens, tokens))

    def layer_ready(self, layer: int, event: Event | None = None) -> None:
        """A layer's keys and values are in their blocks. Never blocks, and may be called from any thread.

        A :meth:`seal` that begins after this has returned, in whatever thread, waits for it and its event. Where
        the session has failed meanwhile it does nothing: :meth:`delivered` tells why.

        Args:
            layer: from 0, in any order, each once.
            event: when they are there, where the device is still computing them. Events of one session are
                waited for one after another, beside those of others; what one raises fails the session.

        Raises:
            UsageError: there is no such layer, it was told before, it was sealed, its blocks were not told, or
                the event has no ``synchronize``.
        """
        layer = checked_layer(layer, self._producer.layout.layers)
        if self.core.state > State.DELIVERED:
            return
        if self.core.blocks is None:
            raise UsageError(f"request {self.request_id!r}: tell its blocks first, by assign()")
        self.told.tell(layer, event)
        self._producer.computing.ready(self, layer, event)

    # --- from the loop ----------------------------------------------------------------------------

    async def seal(self) -> None:
        """No more layers will be told: those that were not are ready now. Returns when all were handed on, which
        is no delivery: see :meth:`delivered`.

        Layers that were told before are taken in first, from whatever thread, and their events waited for. An
        event that never comes is waited for until the session fails: see ``transfer_timeout`` of the consumer.

        Raises:
            OmniAsyncError: the session has failed; the same error as :meth:`delivered`.
            UsageError: its blocks were not told; a call from another loop.

        Cancellation: safe; it is sealed, or can be sealed again.
        """
        self._producer.check(self)
        if self.core.blocks is None and self.core.state < State.DELIVERED:
            raise UsageError(f"request {self.request_id!r}: tell its blocks first, by assign()")
        while not self.told.seal() and self.core.state < State.DELIVERED:
            await self._waiters.change(None, self._late)
        self._producer.seal(self)
        self._raise_if_failed()

    async def delivered(self, *, timeout: Any = DEFAULT) -> None:
        """Wait until every consumer has all of it: then, or when this raises, the blocks may be freed.

        Args:
            timeout: seconds for this wait alone, after which the session goes on; by default it is
                the session's own limits that end it.

        Raises:
            TransferTimeout: no consumer asked within ``defer_timeout``, or nothing moved for
                ``transfer_timeout``; or this wait's own time is over, which frees nothing.
            TransferCancelled: a consumer gave it up, it was aborted, or the producer was closed.
            PeerLost: a consumer has gone.
            EngineFault: the engine failed.
            ProtocolError: a consumer's layout, blocks or mode do not fit.
            ClosedError: the producer was closed while an engine was reading the blocks, and nobody can tell any
                more when that ends: they must not be used again.
            UsageError: a call from another loop, which frees nothing.

        Cancellation: safe; the session goes on.
        """
        self._producer.check(self)
        deadline = deadline_of(timeout)
        while not self.core.over:
            if self._producer.left_behind:
                raise ClosedError(
                    f"request {self.request_id!r}: its producer was closed while an engine was reading its "
                    "blocks, and nobody can tell any more when that ends"
                )
            await self._waiters.change(deadline, self._late)
        self._raise_if_failed()

    def abort(self, reason: str = "aborted by its producer") -> None:
        """Give it up; its consumers are told at once. On the loop; idempotent, and nothing after a delivery.

        The blocks may be freed when :meth:`delivered` raises, not before.

        Args:
            reason: for people; the consumers' errors have it.
        """
        self._producer.abort(self.request_id, reason, self.core)

    async def asked_for(self) -> None:
        """Wait until a consumer asks.

        Raises:
            OmniAsyncError: the session has failed before.
            UsageError: a call from another loop.

        Cancellation: safe.
        """
        self._producer.check(self)
        while not self.core.shares and self.core.state < State.DELIVERED:
            await self._waiters.change(None, self._late)
        if self.core.state is State.FAILING:
            await self.delivered()
        self._raise_if_failed()

    def stir(self) -> None:
        """Something has changed; on the loop."""
        if self._missed is None and self.core.state > State.DELIVERED:
            self._missed = list(self.told.awaited)
        self._waiters.stir()

    def _raise_if_failed(self) -> None:
        if self.core.error is None:
            return
        error = failed(self.core.error)
        if self._missed:
            layers = ", ".join(map(str, self._missed))
            error.args = (f"{error}; events of its layers had not come: {layers}", *error.args[1:])
        raise error

    def _late(self) -> TransferTimeout:
        return TransferTimeout(
            f"request {self.request_id!r} is not delivered yet ({self!r}); its blocks are in use",
            key=self.request_id,
            phase=self.state,
        )

    def __repr__(self) -> str:
        return f"<KVSession {self.request_id!r} {self.mode}, {self.state}, {self.asked} asked>"
