"""One request at a prefill instance, the same in both modes.

In: layers that are ready, from the model's thread or the loop. Out: what is answered, word of the end.
Never: lets blocks be freed while a decode instance may still want or read them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import UsageError
from ..transport import DEFAULT
from .arguments import checked_blocks, checked_layer
from .control import TransferParams, ZmqAddress, prefilled_params
from .layout import KVLayout
from .plan import check_blocks
from .producer import KVProducer
from .session import Event, KVSession


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
        self._tokens = tokens
        self._given_up = False
        self._answered = False
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
            UsageError: blocks that do not exist, or it was told before.
        """
        if self._blocks is not None:
            raise UsageError(f"transfer {self.transfer_id!r} has its blocks already")
        if tokens is None:
            tokens = self._tokens
        blocks = checked_source(self._layout, block_ids, tokens, writes=self._writes)
        if self._session is not None:
            self._session.assign(blocks, tokens=tokens)
        self._blocks, self._tokens = blocks, tokens

    def layer_ready(self, layer: int, event: Event | None = None) -> None:
        """A layer is in its blocks. Never blocks, from any thread; see :meth:`KVSession.layer_ready`.

        In mode ``read`` it says nothing to anybody: all of it is ready at :meth:`seal`.
        """
        if self._session is not None:
            self._session.layer_ready(layer, event)
        else:
            checked_layer(layer, self._layout.layers)

    async def seal(self) -> dict[str, Any] | None:
        """All layers are ready, on the device as well. What is to be answered as ``kv_transfer_params``.

        ``None`` in mode ``write``: the decode instance knows already.

        Raises:
            UsageError: its blocks were not told; (mode ``read``) it was given up.
            OmniAsyncError: the transfer has failed; the same error as :meth:`delivered`.

        Cancellation: safe; it can be sealed again.
        """
        if self._blocks is None:
            raise UsageError(f"transfer {self.transfer_id!r}: tell its blocks first, by assign()")
        if self._writes:
            if self._session is not None:
                await self._session.seal()
            return None
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
