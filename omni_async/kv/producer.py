"""Who has KV caches and gives them away: a prefill instance, an autoregressive stage.

In: blocks of an engine's caches, layers that are ready. Out: sessions that end when the blocks may be freed.
Never: copies a cache where the engine reaches it, frees or reuses a block, blocks the loop.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any

from .._aio.deadline import seconds
from ..errors import ProtocolError, UsageError
from ..model import Endpoint
from ..observe.log import get_logger
from ..transport import DEFAULT
from ..transport.guests import GuestLine
from . import sending
from .arguments import Carrier, checked_blocks, checked_request, checked_text
from .audience import Seat
from .calm import Calm
from .computing import Computing
from .end import DEFER_TIMEOUT, SETTLE_SECONDS, TRANSFER_TIMEOUT, KVEnd
from .given import GivenShare, Session
from .giving import Giving
from .layout import KVLayout
from .memory import KVMemory
from .plan import KVPlan, check_blocks, check_tokens, targets_of
from .session import KVSession
from .sessions import Sessions
from .words import ALL, VERSION, AnyWord, Ask, Decline, Drop, Meet, Mode, Reason, Spot
from .writes import Target, Writes

_log = get_logger("omni_async.kv")


class KVProducer(KVEnd):
    """The sending end of KV caches: an async context manager over a transport of role ``sender``.

    Args:
        carrier: an open transport, or a stage that has exactly one of role ``sender``. It goes on carrying
            payloads and streams, and stays open when this ends.
        layout: of this rank's caches.
        caches: one item a layer (a tensor, or a pair of keys and values), or a :class:`KVMemory`, which
            backends whose consumers map memory need. They are registered once, and read in place.
        transfer_timeout: seconds in which something of a sealed request has to move; more than 0, ``None`` for
            no limit. While the model computes there is none: an event that never comes is ended by the consumer's.
        defer_timeout: seconds that a request waits for its consumers; the same.

    Raises:
        UsageError: a role, limits or tensors that do not fit, or (on entering) a backend that does not reach
            them, or a transport that has a :class:`KVProducer` already; says what does.

    All of its calls belong to the loop that made it, but for :meth:`KVSession.layer_ready`.

    ::

        async with KVProducer(transport, layout, caches) as producer:
            session = await producer.write_to("tx-1", blocks)
            ...
    """

    role = "sender"

    def __init__(
        self,
        carrier: Carrier,
        layout: KVLayout,
        caches: KVMemory | Sequence[Any],
        *,
        transfer_timeout: float | None = TRANSFER_TIMEOUT,
        defer_timeout: float | None = DEFER_TIMEOUT,
    ) -> None:
        super().__init__(
            carrier,
            layout,
            caches,
            transfer_timeout=transfer_timeout,
            defer_timeout=defer_timeout,
        )
        self.core = Giving(
            self.layout.layers,
            writes=self.writes,
            plan=self._plan,
            seat=self._seat,
            describe=self._describe,
            who=self._who,
            where=self._where,
        )
        self.computing = Computing(self.core, self.flush)
        self._sessions = Sessions(self)
        self._writes = Writes(self.guests, self.caches, self._written)
        self._calm = Calm(lambda: self.under_way)
        self._loop = asyncio.get_running_loop()
        self._ends_due = False
        """Writes have ended in this turn of the loop, which the core knows and nobody else."""
        self.left_behind = False
        """Closed, with writes that have not ended."""

    # --- the caller -------------------------------------------------------------------------------

    async def offer(
        self,
        request_id: str,
        block_ids: Sequence[int],
        *,
        tokens: int | None = None,
        consumers: int = 1,
    ) -> KVSession:
        """(mode ``read``) A cache that is ready as a whole; a consumer fetches it when it is told to.

        Args:
            request_id: what both sides call it; :meth:`KVConsumer.receive` names the same.
            block_ids: in the order of the tokens.
            tokens: how many there are; without it the blocks are full.
            consumers: instances that get it. Each may consist of several ranks, which are counted by themselves.

        Raises:
            UsageError: blocks that do not exist; a request that is being sent.
            ClosedError: this end, or its transport, was closed.

        Cancellation: safe.
        """
        blocks, count = self._checked(block_ids, tokens)
        session = self._begin(request_id, Mode.READ, consumers)
        self._assign(session, blocks, count)
        session.told.seal()
        self.seal(session)
        return session

    async def write_to(
        self,
        request_id: str,
        block_ids: Sequence[int] | None = None,
        *,
        tokens: int | None = None,
        consumers: int = 1,
        timeout: Any = DEFAULT,
    ) -> KVSession:
        """(mode ``write``) Layer by layer, as they are computed; waits for a consumer's blocks first.

        Args:
            request_id: what both sides call it.
            block_ids: in the order of the tokens; they can be told later, by :meth:`KVSession.assign`.
            tokens: how many there are; without it, here and there, the blocks are full.
            consumers: instances that get it.
            timeout: seconds to wait for the first consumer; by default ``defer_timeout``. With 0 it is not
                waited for: layers that are ready before it asks are written when it does.

        Raises:
            TransferTimeout: nobody has asked.
            TransferCancelled: a consumer has declined.
            UsageError: blocks that do not exist; a request that is being sent.
            ClosedError: this end, or its transport, was closed.

        Cancellation: safe; the session is given up.
        """
        told = None if timeout is DEFAULT else seconds(timeout)
        limit = self.defer_timeout if timeout is DEFAULT else math.inf if told is None else told
        if block_ids is None:
            blocks, count = None, self._counted(tokens)
        else:
            blocks, count = self._checked(block_ids, tokens)
        session = self._begin(request_id, Mode.WRITE, consumers)
        session.patience, session.tokens = limit or self.defer_timeout, count
        try:
            if blocks is not None:
                self._assign(session, blocks, count)
            if limit:
                self._sessions.moved(session.core)
                await session.asked_for()
        except BaseException:
            self._withdraw(session)
            raise
        return session

    def abort(
        self, request_id: str, reason: str = "aborted by its producer", core: Session | None = None
    ) -> None:
        """Give a request up, begun or not: whoever asks for it is told at once. Idempotent.

        Where a session has begun, its blocks may be freed when :meth:`KVSession.delivered` raises. Where none has,
        consumers that ask within ``defer_timeout`` are told so.

        Args:
            request_id: what both sides call it.
            reason: for people; the consumers' errors have it.
            core: which session, where the request has had several.

        Raises:
            UsageError: no such name; a call from another loop.
        """
        self.here()
        checked_request(request_id)
        text = checked_text(reason)
        found = core or self.core.sessions.get(request_id)
        if found is None:
            self.core.abort(request_id, text)
        else:
            self.core.fail(found, Reason.ABORTED, text)
        self.flush()

    @property
    def waiting(self) -> int:
        """Consumers that ask for requests of which there is no session yet."""
        return self.core.waiting

    # --- sessions ---------------------------------------------------------------------------------

    def check(self, session: KVSession) -> None:
        """Raise for a call from another loop."""
        self.here()

    def assign(self, session: KVSession, block_ids: Sequence[int], tokens: int | None) -> None:
        """See :meth:`KVSession.assign`."""
        self._assign(session, *self._checked(block_ids, tokens))

    def _checked(
        self, block_ids: Sequence[int], tokens: int | None
    ) -> tuple[list[int], int | None]:
        self.here()
        blocks, count = checked_blocks(block_ids), self._counted(tokens)
        check_blocks(self.layout, blocks, side="source", tokens=count)
        return blocks, count

    def _counted(self, tokens: int | None) -> int | None:
        return None if tokens is None else check_tokens(self.layout, tokens)

    def _assign(self, session: KVSession, blocks: list[int], tokens: int | None) -> None:
        session.tokens = tokens
        self.core.assign(session.core, blocks, ALL if tokens is None else tokens)
        self.flush()

    def seal(self, session: KVSession) -> None:
        """See :meth:`KVSession.seal`."""
        self.core.seal(session.core)
        self._sessions.moved(session.core)
        self.flush()

    def _begin(self, request_id: str, mode: Mode, consumers: int) -> KVSession:
        checked_request(request_id)
        if isinstance(consumers, bool) or not isinstance(consumers, int) or consumers < 1:
            raise UsageError(f"consumers has to be a whole number of at least 1, not {consumers!r}")
        self._ready()
        session = self._sessions.begin(request_id, mode, consumers)
        self.flush()
        return session

    def _withdraw(self, session: KVSession) -> None:
        """Its caller never got it."""
        self.core.fail(session.core, Reason.ABORTED, "its producer gave it up before it began")
        self.flush()

    # --- peers ------------------------------------------------------------------------------------

    def meet_word(self) -> Meet:
        return Meet(VERSION, self.layout, self.spots(self._regions))

    def met(self, line: GuestLine) -> None:
        """It asks when it wants something."""

    def refuse(self, line: GuestLine, error: ProtocolError) -> None:
        """Each ask of it is refused with both layouts' values, also those of before."""
        self.core.refused(self._lines[line], str(error))

    def word(self, line: GuestLine, word: AnyWord) -> None:
        name = self._lines[line]
        refused = self._refused.get(name)
        if refused is None:
            self.core.heard(name, word)
        elif isinstance(word, Ask):
            self.core.turn_away(name, word, str(refused))
        elif isinstance(word, (Decline, Drop)):
            self.core.heard(name, word)

    def gone(self, line: GuestLine, name: str, proven: bool) -> None:
        self.core.lost(name, self.name_of(line))

    def _who(self, name: str) -> str:
        peer = self.peers.get(name)
        return name if peer is None else peer.who

    def _where(self, name: str) -> list[Spot]:
        peer = self.peers.get(name)
        return [] if peer is None else peer.meet.spots

    def _seat(self, who: str) -> Seat:
        theirs = self.peers[who].layout
        ranks = targets_of(self.layout, theirs.tp_size)
        return Seat(theirs.tp_size, theirs.tp_rank, tuple(ranks))

    def _describe(self, who: str) -> str:
        line = next((line for line, name in self._lines.items() if name == who), None)
        return "that has gone" if line is None else self.name_of(line)

    def name_of(self, line: GuestLine) -> str:
        """What it calls itself: the line's own name is of the socket here, at which all of them are."""
        who = line.peer
        end = Endpoint(who.namespace, who.stage, who.rank, who.replica)
        return f"{end} (process {who.pid})"

    def _plan(self, share: GivenShare) -> None:
        session = share.session
        peer = self.peers.get(share.peer)
        if session is None or session.blocks is None or peer is None:
            raise ProtocolError("the consumer has gone")
        tokens = None if session.tokens == ALL else session.tokens
        plan = KVPlan.of(self.layout, session.blocks, peer.layout, share.ask.blocks, tokens=tokens)
        share.plan = Target(plan, share.where)
        share.staged = self.writes and (share.ask.staged or sending.through_buffers(plan))

    # --- the core's decisions ---------------------------------------------------------------------

    def flush(self) -> None:
        core = self.core
        while core.words or core.writes or core.stirred:
            words, core.words = core.words, []
            for who, word in words:
                self.say(who, word)
            writes, core.writes = core.writes, []
            for share, layer, room in writes:
                peer = self.peers.get(share.peer)
                self._writes.begin(share, layer, room, None if peer is None else peer.line)
            stirred, core.stirred = core.stirred, []
            for session in dict.fromkeys(stirred):
                self._sessions.stir(session)
        self._sessions.forget_later(core.remembered())

    def _written(self, share: GivenShare, layer: int, problem: str | None) -> None:
        self.core.written(share, layer, problem)
        if not self._ends_due:  # layers that went together are told together
            self._ends_due = True
            self._loop.call_soon(self._tell_ends)

    def _tell_ends(self) -> None:
        self._ends_due = False
        self.flush()
        self._calm.look()

    # --- closing ----------------------------------------------------------------------------------

    def shut(self, reason: str) -> None:
        self.core.close(reason)
        self.computing.close()

    @property
    def under_way(self) -> bool:
        return self._writes.under_way > 0

    async def settle(self) -> None:
        await self._calm.wait(SETTLE_SECONDS)
        self.flush()
        if self.under_way:
            self.left_behind = True
            self._sessions.stir_all()

    def unregister(self) -> None:
        if not self.under_way:  # else the engine may still read: its regions go with it
            super().unregister()
