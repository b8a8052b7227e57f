"""Landing slots that a sender of vLLM-Omni writes into.

In: slots, pulls and their answers. Out: slots that have been written.
Never: frees a slot that may still be written into; loses a payload because its get was given up.

A pull cannot be called back. When its get is given up, the slot stays in quarantine until the answer
comes, or until access to it can be ended. By then the sender may have nothing more under that key: so what
lands for nobody is kept for the next get of it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from typing import TYPE_CHECKING

from ...abc import Revoke
from ...errors import ClosedError, ProtocolError
from ...interop.vllm_omni import words
from ...model import TransferKey
from ...pool import Lease
from ...rendezvous.completions import CompletionRegistry
from ..wiring import Wiring

if TYPE_CHECKING:
    from ...rendezvous.zmq_request import ZmqRequests

REMEMBERED = 4096
"""Keys of which it is known when their last pull has ended."""

REFUSED = object()
"""A pull came to nothing: the payload is not there, or the sender's engine has failed."""


class Landing:
    """One pull, and the slot that it is written into."""

    __slots__ = ("adopted", "asked", "info", "keep", "lease", "op", "task", "timer", "wanted", "where")  # fmt: skip

    def __init__(self, op: int, where: TransferKey, lease: Lease, info: words.Info) -> None:
        self.op = op
        self.where = where
        self.lease = lease
        self.info = info
        self.wanted = True
        """Its get was not given up."""
        self.keep = True
        """Should that happen, what lands is for the next one."""
        self.asked = False
        """The sender may have heard of it."""
        self.adopted = False
        """The get that waits for it has not begun it."""
        self.task: asyncio.Task[None] | None = None
        """``None`` once nothing can be written any more."""
        self.timer: asyncio.TimerHandle | None = None

    @property
    def data_size(self) -> int:
        return self.info.data_size

    def ask(self) -> None:
        self.asked = True


class Landings:
    """Those of one receiver at one sender."""

    def __init__(
        self, wiring: Wiring, requests: ZmqRequests, completions: CompletionRegistry
    ) -> None:
        self._wiring = wiring
        self._requests = requests
        self._completions = completions
        self._by_op: dict[int, Landing] = {}
        self._under_way: dict[TransferKey, Landing] = {}
        """Written to at this moment: never two of one key, or its payload would arrive twice."""
        self._ends: OrderedDict[TransferKey, float] = OrderedDict()
        """When the last pull of a key has ended."""
        self._kept: dict[TransferKey, Landing] = {}
        self.trouble: Exception | None = None
        """What the last pull ran into."""

    def __len__(self) -> int:
        """Pulls under way, and written slots that were not delivered yet."""
        return len(self._by_op)

    @property
    def under_way(self) -> list[asyncio.Task[None]]:
        return [landing.task for landing in self._under_way.values() if landing.task is not None]

    def busy(self, where: TransferKey) -> bool:
        """Whether a payload of that key is being written."""
        return where in self._under_way

    def ended_since(self, where: TransferKey, when: float) -> bool:
        """Whether a payload of that key was written until then: what was there before may be gone."""
        return self._ends.get(where, -1.0) >= when

    def pull(self, op: int, where: TransferKey, lease: Lease, info: words.Info) -> None:
        """Have it written into a slot, which is the sender's from here on.

        The operation is answered by its :class:`Landing`, :data:`REFUSED`, an error, or ``None`` where
        the sender was lost.
        """
        landing = self._by_op[op] = self._under_way[where] = Landing(op, where, lease, info)
        lease.pin()
        landing.task = self._wiring.loop.create_task(self._pull(landing))

    async def _pull(self, landing: Landing) -> None:
        host, _, port = self._wiring.engine.session.rpartition(":")
        lease, nbytes = landing.lease, landing.info.data_size
        written = refused = False
        outcome: object = None
        try:
            body = words.pull(landing.where, (host, int(port)), lease.address, nbytes)
            written = words.done(await self._requests.ask(body, landing.ask))
            refused = not written
            outcome = landing if written else REFUSED
        except ProtocolError as error:
            outcome = error
        except (OSError, ClosedError) as error:
            landing.asked &= not isinstance(error, ConnectionRefusedError)
            self.trouble = error
        finally:
            if landing.task is not None:
                self._ended(landing, written, refused, outcome)

    def _ended(self, landing: Landing, written: bool, refused: bool, outcome: object) -> None:
        landing.task = None
        del self._under_way[landing.where]
        self._ends[landing.where] = self._wiring.loop.time()
        self._ends.move_to_end(landing.where)
        if len(self._ends) > REMEMBERED:
            self._ends.popitem(last=False)
        if landing.timer is not None:
            landing.timer.cancel()
        if not written and landing.adopted:
            outcome = REFUSED
        if written:
            landing.lease.unpin()
            if not landing.wanted:
                self._leave(landing)
        else:
            if landing.asked:
                self._withdraw(landing.lease, refused)
            else:
                landing.lease.unpin()
            landing.lease.drop()
            del self._by_op[landing.op]
        if landing.wanted:
            self._completions.resolve(landing.op, outcome)

    def _withdraw(self, lease: Lease, refused: bool) -> None:
        """End access to a slot of which nobody knows whether something may still arrive there.

        A failed write proves nothing either where engines can be kept out: bytes of it may be under way.
        """
        if not self._wiring.pool.revoke(lease):
            if refused:
                lease.unpin()
            else:
                lease.quarantine()

    def taken(self, op: int) -> None:
        """The payload of a :class:`Landing` that was answered is delivered."""
        landing = self._by_op.pop(op, None)
        if landing is not None:  # else everything was closed meanwhile
            landing.lease.drop()

    def give_up(self, op: int, *, keep: bool) -> None:
        """Its get does not want it any more."""
        landing = self._by_op.get(op)
        if landing is None:
            return
        landing.wanted, landing.keep = False, keep
        if landing.task is None:
            self._leave(landing)
            return
        if not landing.asked:
            self._stop(landing)
            return
        landing.lease.quarantine()
        if self._wiring.engine.revoke is not Revoke.NOTHING:
            patience = self._wiring.options.peer_timeout
            landing.timer = self._wiring.loop.call_later(patience, landing.task.cancel)

    def _stop(self, landing: Landing) -> None:
        task = landing.task
        self._ended(landing, False, False, None)  # a task that never began would not
        if task is not None:
            task.cancel()

    def adopt(self, op: int, where: TransferKey) -> bool:
        """Have an operation answered by what is being written for a get that was given up, if anything."""
        landing = self._under_way.get(where)
        if landing is None or landing.wanted or not landing.keep:
            return False
        if landing.timer is not None:
            landing.timer.cancel()
        del self._by_op[landing.op]
        landing.op, landing.wanted, landing.adopted = op, True, True
        self._by_op[op] = landing
        return True

    # --- what landed for nobody -------------------------------------------------------------------

    def kept_for(self, op: int, where: TransferKey) -> Landing | None:
        """What has landed for a get that was given up, for another one."""
        landing = self._kept.pop(where, None)
        if landing is not None:
            if landing.timer is not None:
                landing.timer.cancel()
            landing.op, landing.wanted = op, True
            self._by_op[op] = landing
        return landing

    def _leave(self, landing: Landing) -> None:
        """Keep a written slot for the next get, like any payload that is on offer."""
        del self._by_op[landing.op]
        if not landing.keep:
            landing.lease.drop()
            return
        self.forget(landing.where)
        self._kept[landing.where] = landing
        with contextlib.suppress(OverflowError):  # kept for ever
            landing.timer = self._wiring.loop.call_later(
                self._wiring.options.ttl, self.forget, landing.where
            )

    def forget(self, where: TransferKey) -> bool:
        """Drop what was kept under a key; whether there was anything."""
        landing = self._kept.pop(where, None)
        if landing is None:
            return False
        if landing.timer is not None:
            landing.timer.cancel()
        landing.lease.drop()
        return True

    def clean_up(self, owner: str) -> int:
        """Drop what was kept, and what has yet to land for nobody, under a key of that name."""
        for landing in self._by_op.values():
            if landing.where.key == owner and not landing.wanted:
                landing.keep = False
        return sum(self.forget(where) for where in list(self._kept) if where.key == owner)

    # --- the end ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Keep nothing more for others; slots under a write stay theirs until :meth:`end`."""
        for landing in self._by_op.values():
            landing.keep = False
        for where in list(self._kept):
            self.forget(where)

    def end(self) -> None:
        """Wait for no answer any more. Idempotent."""
        for landing in list(self._under_way.values()):
            self._stop(landing)
        self._requests.close()
