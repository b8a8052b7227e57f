"""One request at a prefill instance, the same in both modes.

In: layers that are ready, from the model's thread or the loop. Out: what is answered, word of the end.
Never: lets blocks be freed while a decode instance may still want or read them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from ..errors import EngineFault, UsageError
from ..transport import DEFAULT
from .arguments import checked_blocks, checked_layer
from .control import TransferParams, ZmqAddress, prefilled_params
from .layout import KVLayout
from .plan import check_blocks, check_tokens
from .producer import KVProducer
from .session import KVSession, agreed_tokens
from .told import Event, Told


class Prefill:
    """What :meth:`KVInstance.prefill` returns.

    ::

        job = await instance.prefill(params, request_id, block_ids=blocks, tokens=len(prompt))
        for layer in range(layers):
            ...compute...
            job.layer_ready(layer)
        answer["kv_transfer_params"] = await job.seal()
        await job.delivered()          # in the background: only then may the blocks be freed
    """

    def __init__(
        self,
        producer: KVProducer,
        params: TransferParams,
        address: ZmqAddress,
        ranks: tuple[int, int],
        session: KVSession | None,
        blocks: list[int] | None,
        tokens: int | None,
        *,
        writes: bool,
        wanted: bool,
    ) -> None:
        self.params = params
        self.wanted = wanted
        """Whether a rank of the decode instance hears from this one; else others have the same heads, and there is
        nothing to be sent or waited for."""
        self._producer = producer
        self._address = address
        self._ranks = ranks
        self._session = session
        self._blocks = blocks
        self._tokens = None if tokens is None else check_tokens(producer.layout, tokens)
        self._given_up = False
        self._answered = False
        self._told = Told(f"transfer {params.transfer_id!r}")
        """Where there is no session."""
        self._waits: set[asyncio.Future[BaseException | None]] = set()
        self._writes = writes

    @property
    def transfer_id(self) -> str:
        """What both sides call it."""
        return self.params.transfer_id

    @property
    def mode(self) -> str:
        """``write``: each layer is sent when it is ready; ``read``: all of them are kept to be fetched."""
        return "write" if self._writes else "read"

    @property
    def session(self) -> KVSession | None:
        """``None`` in mode ``read`` before :meth:`seal`, and where it is not :attr:`wanted`."""
        return self._session

    @property
    def kept_back(self) -> bool:
        """(mode ``read``) Neither sealed nor given up: the transfer's name is this one's, of which the producer does
        not know yet."""
        return not (self._writes or self._answered or self._given_up)

    def assign(self, block_ids: Sequence[int], *, tokens: int | None = None) -> None:
        """Tell in which blocks the cache is, once, where :meth:`KVInstance.prefill` was not told.

        Args:
            block_ids: in the order of the tokens.
            tokens: how many there are, where that was not told before either.

        Raises:
            UsageError: blocks that do not exist, or it was told before; another number of tokens than was told
                before, or one that these blocks do not hold.
        """
        self._producer.here()
        if self._blocks is not None:
            raise UsageError(f"transfer {self.transfer_id!r} has its blocks already")
        tokens = agreed_tokens(self._tokens, tokens)
        if tokens is not None:
            tokens = check_tokens(self._layout, tokens)
        blocks = checked_source(self._layout, block_ids, tokens, writes=self._writes)
        if self._session is not None:
            self._session.assign(blocks, tokens=tokens)
        self._blocks, self._tokens = blocks, tokens

    def layer_ready(self, layer: int, event: Event | None = None) -> None:
        """A layer is in its blocks. Never blocks, from any thread; see :meth:`KVSession.layer_ready`.

        In mode ``read`` it says nothing to anybody: all of it is ready at :meth:`seal`, which waits for the events.

        Raises:
            UsageError: there is no such layer, it was told before, or it was sealed.
        """
        if self._session is not None:
            self._session.layer_ready(layer, event)
            return
        layer = checked_layer(layer, self._layout.layers)
        if not self._given_up:
            self._told.tell(layer, event)
            if event is None:
                self._told.taken(layer)

    async def seal(self) -> dict[str, Any] | None:
        """All layers are ready, or are when the events that were told have come, which this waits for. What is to be
        answered as ``kv_transfer_params``.

        ``None`` in mode ``write``: the decode instance knows already.

        In mode ``read`` no time limit of the transfer has begun: an event that never comes is waited for until
        :meth:`abort`, or until the instance is closed.

        Raises:
            UsageError: its blocks were not told; (mode ``read``) it was given up.
            EngineFault: (mode ``read``) an event failed; decode is told that it was given up.
            ClosedError: (mode ``read``) the instance was closed.
            OmniAsyncError: the transfer has failed; the same error as :meth:`delivered`.

        Cancellation: safe; it can be sealed again.
        """
        self._producer.here()
        if self._blocks is None:
            raise UsageError(f"transfer {self.transfer_id!r}: tell its blocks first, by assign()")
        if self._writes:
            if self._session is not None:
                await self._session.seal()
            return None
        await self._computed()
        if self._given_up:
            raise UsageError(f"transfer {self.transfer_id!r} was given up")
        if self._session is None and self.wanted:
            self._session = await self._producer.offer(
                self.transfer_id, self._blocks, tokens=self._tokens
            )
        self._answered = True
        dp_rank, dp_size = self._ranks
        return prefilled_params(
            self.transfer_id,
            self._blocks,
            self._address,
            dp_rank=dp_rank,
            dp_size=dp_size,
            tp_size=self._layout.tp_size,
            num_tokens=self._tokens,
        )

    async def delivered(self, *, timeout: Any = DEFAULT) -> None:
        """Wait for the end; see :meth:`KVSession.delivered`. When it returns or fails the blocks may be freed.

        Raises:
            UsageError: (mode ``read``) it was not sealed, so there is nothing to wait for.
        """
        if self._session is not None:
            await self._session.delivered(timeout=timeout)
        elif self.wanted:
            raise UsageError(f"transfer {self.transfer_id!r} was not sealed")

    def abort(self, reason: str = "aborted by its prefill instance") -> None:
        """Give it up, begun or not; the decode instance is told at once. On the loop; idempotent.

        The blocks may be freed when :meth:`delivered` raises; at once where it was not sealed in mode ``read``.
        Whatever else has had the same name before or after goes on.
        """
        begun_by_another = self.transfer_id in self._producer.core.sessions
        if self._session is not None:
            self._session.abort(reason)
        elif self.wanted and not self._given_up and not begun_by_another:
            self._producer.abort(self.transfer_id, reason)
        self._given_up = True
        for wait in self._waits:
            if not wait.done():
                wait.set_result(None)

    async def _computed(self) -> None:
        """(mode ``read``) Wait for the events of all that was told; then no more is told."""
        while not self._given_up and not self._told.seal():
            for layer, event in self._told.awaited.items():
                wait = self._producer.computing.come(event)
                self._waits.add(wait)
                wait.add_done_callback(self._waits.discard)
                problem = await wait
                self._told.taken(layer)
                if self._given_up:
                    return
                if problem is not None:
                    text = f"layer {layer} was not computed: {problem!r}"
                    self.abort(text)
                    raise EngineFault(
                        f"transfer {self.transfer_id!r}: {text}", key=self.transfer_id
                    )

    @property
    def _layout(self) -> KVLayout:
        return self._producer.layout


def checked_source(
    layout: KVLayout, block_ids: object, tokens: int | None, *, writes: bool
) -> list[int]:
    """Blocks of a prefill instance, before its model computes them.

    Raises:
        UsageError: they do not exist, come twice, do not hold so many tokens; or there are none to be read.
    """
    blocks = checked_blocks(block_ids)
    check_blocks(layout, blocks, side="source", tokens=tokens)
    if not writes and not blocks:
        raise UsageError("a cache that can be read has at least one block")
    return blocks
