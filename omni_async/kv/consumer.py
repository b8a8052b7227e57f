"""Who gets KV caches: a decode instance, a diffusion stage.

In: blocks of an engine's caches, a request's name. Out: word of each layer that is in place, whole.
Never: reports a block usable before its last byte has landed, or free while a byte may still land.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ..errors import OmniAsyncError, ProtocolError, UsageError
from ..model import Region
from ..transport.guests import GuestLine
from .arguments import (
    Carrier,
    checked_blocks,
    checked_companions,
    checked_request,
    checked_text,
)
from .calm import Calm
from .end import DEFER_TIMEOUT, SETTLE_SECONDS, TRANSFER_TIMEOUT, KVEnd, Peer
from .landing import Landing
from .layout import KVLayout
from .memory import KVMemory
from .plan import KVPlan, check_blocks
from .progress import KVProgress
from .reads import Reads
from .sources import Source, Sources, check_rank
from .taking import TakenShare, Taking
from .transfers import Transfers
from .words import VERSION, AnyWord, Ask, Begun, Decline, Meet, Mode, Spot


class KVConsumer(KVEnd):
    """The receiving end of KV caches: an async context manager over a transport of role ``receiver``.

    Args:
        carrier: an open transport, or a stage that has exactly one of role ``receiver``. It goes on carrying
            payloads and streams, and stays open when this ends.
        layout: of this rank's caches.
        caches: one item a layer (a tensor, or a pair of keys and values), or a :class:`KVMemory`. They are
            registered once, and written in place.
        from_stage: the producers' stage, where channels find them by name (shared memory).
        source: where the producers are, unless :meth:`receive` says it: one item for each rank that this
            rank hears from. By default the configured sender, or the ranks of ``from_stage``.
        source_tp: ranks that share a producer's heads; by default as many as here.
        replica: which replica of ``from_stage``.
        landing: (engines that write) ``direct``: producers write into the blocks. ``staged``: into the
            transport's pool, from where they are copied. ``auto``: directly, but for tensors of the engine's
            own on the host, into which nothing could end a late write (see docs/explanation/kv.md); a
            :class:`KVMemory` never needs the copy.
        transfer_timeout: seconds in which something of a request has to move, once its producer has begun; more
            than 0, ``None`` for no limit.
        defer_timeout: seconds that its producer may take to be there and to begin; the same.

    Raises:
        UsageError: a role, limits, ranks or tensors that do not fit, or (on entering) a backend that does not
            reach them, or a transport that has a :class:`KVConsumer` already; says what does.

    All of its calls, and those of its progresses, belong to the loop that made it.

    ::

        async with KVConsumer(transport, layout, caches) as consumer:
            progress = await consumer.receive("tx-1", blocks)
            await progress.all()
    """

    role = "receiver"

    def __init__(
        self,
        carrier: Carrier,
        layout: KVLayout,
        caches: KVMemory | Sequence[Any],
        *,
        from_stage: str | int | None = None,
        source: Source | Sequence[Source] | None = None,
        source_tp: int | None = None,
        replica: int = 0,
        landing: Literal["auto", "direct", "staged"] = "auto",
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
        self.core = Taking(
            self.layout.layers,
            written_to=self.writes,
            plan=self._plan,
            describe=self._describe,
        )
        self._landing = Landing(
            self.guests,
            self.caches,
            self.core,
            landing,
            say=self._say_to,
            flush=self.flush,
            remap=self._remap,
        )
        self._sources = Sources(
            self.guests,
            self.layout,
            source,
            self.layout.tp_size if source_tp is None else source_tp,
            None if from_stage is None else str(from_stage),
            replica,
        )
        self._transfers = Transfers(
            self.core,
            self.deadlines,
            transfer_timeout=self.transfer_timeout,
            defer_timeout=self.defer_timeout,
            describe=self._describe,
            flush=self.flush,
        )
        self._reads = Reads(self.guests, self.caches, self._was_read)
        self._calm = Calm(lambda: len(self._transfers) > 0)
        self._declines: dict[str, list[Decline]] = {}

    # --- the caller -------------------------------------------------------------------------------

    async def receive(
        self,
        request_id: str,
        block_ids: Sequence[int],
        *,
        mode: str = "write",
        source: Source | Sequence[Source] | None = None,
        source_tp: int | None = None,
    ) -> KVProgress:
        """Ask for a request's cache into blocks of this rank; returns as soon as that is under way.

        Args:
            request_id: what the producer calls it too, such as a router's ``transfer_id``.
            block_ids: in the order of the tokens.
            mode: ``write``: layer by layer, while the producer computes; ``read``: at once, from a producer
                that has offered it.
            source: where the producers are, when it is not as the consumer was made.
            source_tp: how many ranks share their heads, likewise.

        Raises:
            UsageError: blocks that do not exist, or into which something else may still land; a mode or a
                source that makes no sense.
            ProtocolError: the producer's layout does not fit, as far as it is known; else the progress
                tells it.
            ClosedError: this end, or its transport, was closed.

        Cancellation: safe; it is given up.
        """
        blocks = self.check(request_id, block_ids)
        try:
            wanted = Mode(mode)
        except ValueError:
            raise UsageError(f"mode is 'write' or 'read', not {mode!r}") from None
        addresses = self._addresses(source, source_tp)
        progress = KVProgress(
            request_id, blocks, self.layout.layers, self.deadlines, self._give_up, self.here
        )
        staged = self._landing.staged
        shares = [
            self.core.want(address, request_id, blocks, wanted, staged=staged)
            for address in addresses
        ]
        self._transfers.begin(progress, shares)
        for address in addresses:
            self._recheck(address)
        self.flush()
        return progress

    def check(self, request_id: str, block_ids: Sequence[int]) -> list[int]:
        """What :meth:`receive` refuses whatever its producer is; the blocks.

        Raises:
            UsageError, ClosedError: as there.
        """
        self._ready()
        checked_request(request_id)
        blocks = checked_blocks(block_ids)
        check_blocks(self.layout, blocks, side="target")
        self._transfers.check_free(request_id, blocks)
        return blocks

    async def receive_all(
        self,
        requests: Mapping[str, tuple[str, Sequence[int]]],
        *,
        mode: str = "write",
        source: Source | Sequence[Source] | None = None,
        source_tp: int | None = None,
    ) -> dict[str, KVProgress]:
        """Several caches that are of use together only, such as the branches of classifier-free guidance.

        Waits until all are whole. When one fails, the others are given up, and :attr:`quarantined` has the blocks
        into which something may still land.

        Args:
            requests: role → request and blocks.
            mode, source, source_tp: of each, as for :meth:`receive`.

        Returns:
            Role → progress, each done.

        Raises:
            UsageError: ``requests`` is something else; nothing was asked for.
            OmniAsyncError: the first failure, as :meth:`receive` or :meth:`KVProgress.all` has it.

        Cancellation: safe; all are given up.
        """
        begun: dict[str, KVProgress] = {}
        try:
            for role, (request_id, block_ids) in checked_companions(requests).items():
                begun[role] = await self.receive(
                    request_id, block_ids, mode=mode, source=source, source_tp=source_tp
                )
            waits = [asyncio.ensure_future(progress.all()) for progress in begun.values()]
            try:
                await asyncio.gather(*waits)
            finally:
                for wait in waits:
                    wait.cancel()
        except BaseException as error:
            for role, progress in begun.items():
                progress.cancel(f"a companion of {role!r} failed: {error}")
            raise
        return begun

    def decline(
        self,
        request_id: str,
        reason: str = "the consumer has no use for it",
        *,
        source: Source | Sequence[Source] | None = None,
        source_tp: int | None = None,
        ranks: Sequence[int] | None = None,
    ) -> None:
        """Tell the producer that this request will never be asked for, so that it frees its blocks now.

        Returns at once; a producer that is not there yet is told when it is.

        Args:
            request_id: what the producer calls it too.
            reason: for people; the producer's error has it.
            source, source_tp: as for :meth:`receive`.
            ranks: which of the producer's, one for each source, where they are not those from which this rank
                would hear.

        Raises:
            UsageError: a source that makes no sense.
            ClosedError: this end was closed.
        """
        self._ready()
        checked_request(request_id)
        word = Decline(request_id, checked_text(reason))
        for address in self._addresses(source, source_tp, ranks):
            self._declines.setdefault(address, []).append(word)
        self.flush()

    def leave(self, source: Source) -> bool:
        """End the line to a producer rank that is not expected to be of use any more.

        Lines to ranks that were asked once are kept, and dialed again when they are lost, until then.

        Args:
            source: as it was told to :meth:`receive`.

        Returns:
            ``False`` where a transfer from there is under way, or it was not known.

        Raises:
            UsageError: that is no source (one is left at a time); a call from another loop.
        """
        self.here()
        address = self._sources.address_of(source)
        if address is None or any(share.address == address for share in self._transfers):
            return False
        self._sources.forget(source)
        self._declines.pop(address, None)
        return True

    @property
    def quarantined(self) -> frozenset[int]:
        """Blocks of failed transfers into which something may still land."""
        return self._transfers.quarantined

    # --- sources ----------------------------------------------------------------------------------

    def _addresses(
        self,
        source: Source | Sequence[Source] | None,
        source_tp: int | None,
        ranks: Sequence[int] | None = None,
    ) -> list[str]:
        """Where to ask; who is there already has to be whom it takes."""
        found = self._sources.resolve(source, source_tp, ranks)
        for address, expected in found:
            if self._sources.expected.get(address) != expected:
                for line, who in self._lines_to(address):
                    if who in self.peers:
                        check_rank(line, self.peers[who].layout, expected)
                self._sources.expected[address] = expected
        return [address for address, _ in found]

    def _recheck(self, address: str) -> None:
        """A producer that was refused before is refused again."""
        for _, who in self._lines_to(address):
            if who in self._refused:
                self.core.refused(address, self._refused[who])

    # --- peers ------------------------------------------------------------------------------------

    def register(self) -> list[Region]:
        return [] if self._landing.lay_out() else super().register()

    def meet_word(self) -> Meet:
        mapping = self._landing.mapping
        if mapping is not None:
            return Meet(VERSION, self.layout, self.spots([mapping.region], mapping.shift))
        if not self._regions:
            return Meet(VERSION, self.layout, [Spot(0, 0)] * len(self.caches.addresses))
        return Meet(VERSION, self.layout, self.spots(self._regions))

    def _remap(self) -> None:
        for line, name in self._lines.items():
            if name in self.peers:
                self.introduce(line, self.peers[name].meet.end)

    def expected(self, line: GuestLine, theirs: KVLayout) -> None:
        wanted = self._sources.expected.get(line.address)
        if wanted is not None:
            check_rank(line, theirs, wanted)

    def refused(self, address: str, error: Exception) -> None:
        if self._sources.keeps(address):
            self.core.refused(address, ProtocolError(str(error), peer=address))
            self.flush()

    def met(self, line: GuestLine) -> None:
        self.core.met(line.address, self.peers[self._lines[line]].who)

    def refuse(self, line: GuestLine, error: ProtocolError) -> None:
        self.core.refused(line.address, error)

    def word(self, line: GuestLine, word: AnyWord) -> None:
        self.core.heard(line.address, word)

    def gone(self, line: GuestLine, name: str, proven: bool) -> None:
        self.core.lost(line.address, proven=proven)

    def _describe(self, address: str) -> str:
        return next((line.name for line, _ in self._lines_to(address)), address)

    def _lines_to(self, address: str) -> list[tuple[GuestLine, str]]:
        """And the name under which each is known."""
        return [(line, name) for line, name in self._lines.items() if line.address == address]

    def _plan(self, share: TakenShare, word: Begun) -> None:
        peer = self._peer_at(share.address)
        assert peer is not None  # it has just spoken
        tokens = None if word.tokens < 0 else word.tokens
        share.holds = len(word.blocks) * peer.layout.block_size if tokens is None else tokens
        if self.writes and not word.staged:
            return
        share.plan = KVPlan.of(peer.layout, word.blocks, self.layout, share.blocks, tokens=tokens)

    # --- the core's decisions ---------------------------------------------------------------------

    def flush(self) -> None:
        core = self.core
        while (
            core.words or core.begun or core.reads or core.arrived or core.doubtful or core.stirred
        ):
            words, core.words = core.words, []
            for address, word in words:
                if isinstance(word, Ask):
                    asked = core.shares.get(word.ticket)
                    if asked is not None:  # else it was given up in the same breath
                        self._landing.asked(asked)
                self._say_at(address, word)
            begun, core.begun = core.begun, []
            for share in begun:
                self._landing.begin(share)
            reads, core.reads = core.reads, []
            for share, layers in reads:
                self._reads.begin(share, layers, self._peer_at(share.address))
            arrived, core.arrived = core.arrived, []
            for share, layers, slots in arrived:
                self._landing.arrived(share, layers, slots)
            doubtful, core.doubtful = core.doubtful, []
            for share in doubtful:
                self._landing.doubt(share)
            stirred, core.stirred = core.stirred, []
            for share in dict.fromkeys(stirred):
                if share.free:
                    self._landing.end(share)
                self._transfers.stir(share)
                self._calm.look()
        self._say_declines()

    def _say_at(self, address: str, word: AnyWord) -> None:
        for _, who in self._lines_to(address):
            self.say(who, word)

    def _say_to(self, share: TakenShare, word: AnyWord) -> None:
        self._say_at(share.address, word)

    def _say_declines(self) -> None:
        for line, who in self._lines.items():
            if who in self.peers or who in self._refused:
                for word in self._declines.pop(line.address, []):
                    self.say(who, word)

    def _peer_at(self, address: str) -> Peer | None:
        return next((peer for peer in self.peers.values() if peer.line.address == address), None)

    def _was_read(self, share: TakenShare, layers: list[int], problem: str | None) -> None:
        self.core.read(share, layers, problem)
        self.flush()
        self._calm.look()

    def _give_up(self, progress: KVProgress, error: OmniAsyncError) -> None:
        self.here()
        self._transfers.cancel(progress, error)

    # --- closing ----------------------------------------------------------------------------------

    def shut(self, reason: str) -> None:
        self._transfers.cancel_all(reason)

    @property
    def under_way(self) -> bool:
        return self._reads.under_way > 0

    async def settle(self) -> None:
        try:
            await self._calm.wait(SETTLE_SECONDS)
            await self._landing.close(self._transfers)
            self.flush()
        finally:
            self._end_all()

    def _end_all(self) -> None:
        """Leave the lines; tell who waits for blocks of which nothing is known any more."""
        self._landing.take_away(self._transfers)
        if self._transfers:
            warnings.warn(
                f"the KVConsumer of {self.transport.endpoint} was closed while "
                f"{len(self.quarantined)} blocks may still be written to, by producers that do not answer; "
                "do not use their memory again",
                ResourceWarning,
                stacklevel=2,
            )
        self._transfers.leave_behind()
        self._sources.close()

    def unregister(self) -> None:
        if not self._reads.under_way:
            super().unregister()
