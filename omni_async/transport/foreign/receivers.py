"""Receivers of vLLM-Omni at our sender's port: told what is there, and written to.

In: requests of strangers. Out: one answer to each; claims, writes and deliveries as of any receiver.
Never: writes another length than a receiver has told; frees or replaces what is being written; lets a write
or a slow form hold up another request.

Their wire has no operations, so each pull is a receiver of its own to the rendezvous: a claim that is
delivered when the engine has written it, and given back when it has not. ``trans_done`` is the end of
it: nobody there says when it has been read.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from functools import partial

from ...abc import Channel, Stranger
from ...errors import OmniAsyncError
from ...interop.vllm_omni import words
from ...model import Move, TransferKey
from ...observe.log import get_logger
from ...rendezvous.directory import Entry
from ...rendezvous.messages import Message, Offer, Release, Want
from ...rendezvous.payload import Payload
from ...rendezvous.sender import Sender
from ..wiring import Wiring
from .engines import ForeignEngines
from .forms import Form, Forms

_log = get_logger("omni_async.transport")

BEGIN_SECONDS = 30.0
"""A pull whose write has not begun by then is refused: its receiver may have given up, and the slot that
it named may be another payload's by now."""
PULLS = 4096
"""Pulls under way; more are refused."""

_OP = 1
"""Every pull is its receiver's first and only operation."""


class ForeignReceivers:
    """Answers strangers.

    Args:
        channels: the sender's lines by number. Each pull is one of them, under a negative number.
        pump: called when the core may have something to say.
    """

    def __init__(
        self,
        wiring: Wiring,
        core: Sender,
        channels: dict[int, Channel],
        pump: Callable[[], None],
    ) -> None:
        self._wiring = wiring
        self._core = core
        self._channels = channels
        self._pump = pump
        self._forms = Forms(wiring)
        self._engines = ForeignEngines(wiring)
        self._numbers = itertools.count(-1, -1)
        self._pulls: dict[int, _Pull] = {}
        self._beginning: set[asyncio.Task[None]] = set()
        self._over: asyncio.Future[None] | None = None
        self._closed = False
        self._told = ""

    def own(self, payload: Payload) -> None:
        """A payload was put for receivers of vLLM-Omni, in the form that they take."""
        self._forms.own(payload)

    # --- requests ---------------------------------------------------------------------------------

    def heard(self, stranger: Stranger) -> None:
        """A request has come."""
        request = words.request(stranger.body)
        if isinstance(request, words.Malformed):
            self._warn(stranger, request.why)
            stranger.answer(request.answer)
        elif isinstance(request, words.Query):
            self._query(stranger, request)
        elif self._closed or len(self._pulls) >= PULLS:
            stranger.answer(words.ERROR)
        else:
            number = next(self._numbers)
            pull = self._pulls[number] = _Pull(number, stranger, request, self._wiring.loop)
            task = self._wiring.loop.create_task(self._begin(pull))
            self._beginning.add(task)
            task.add_done_callback(self._beginning.discard)

    def _query(self, stranger: Stranger, query: words.Query) -> None:
        entry = self._entry(query.request_id)
        if entry is None or not (entry.available or entry.ahead is not None) or self._closed:
            stranger.answer(words.NOT_FOUND)
            return
        form = self._forms.of(entry.payload)

        def answer() -> None:
            if form.problem or not entry.listed:
                self._warn(stranger, form.problem and f"{query.request_id!r}: {form.problem}")
                stranger.answer(words.NOT_FOUND)
            else:
                stranger.answer(words.info(query.request_id, form.nbytes, form.fast))

        form.when_ready(answer)

    def _entry(self, request_id: str) -> Entry | None:
        """What is listed under a key as it is called there. Two of one name are told as none."""
        found = [
            entry
            for where in words.readings(request_id, self._wiring.endpoint.stage)
            if (entry := self._core.directory.get(where)) is not None
        ]
        return found[0] if len(found) == 1 else None

    # --- one pull ---------------------------------------------------------------------------------

    async def _begin(self, pull: _Pull) -> None:
        """Lead a pull to the begin of its write, or refuse it."""
        refusal: str | None = ""
        try:
            entry = self._entry(pull.request.request_id)
            if entry is not None:
                self._channels[pull.number] = pull
                form = await self._claim(pull, entry.key)
                refusal = form if isinstance(form, str) else self._write(pull, form)
        finally:
            if refusal is not None:
                self._end(pull, refusal)

    async def _claim(self, pull: _Pull, where: TransferKey) -> Form | str:
        """What is to be written, once it is claimed and there; else why not, ``""`` for no reason."""
        loop, core = self._wiring.loop, self._core
        until = loop.time() + BEGIN_SECONDS
        core.receive(pull.number, Want(_OP, *where, park=False))
        self._pump()
        if not await _in_time(loop, pull.told, until) or not pull.offered:
            return ""
        entry = core.directory.entry_of((pull.number, _OP))
        if entry is None:
            return ""
        form = self._forms.of(entry.payload)
        ready: asyncio.Future[None] = loop.create_future()
        form.when_ready(partial(_set, ready))
        if not await _in_time(loop, ready, until):
            return f"it was not ready in {BEGIN_SECONDS:g} s"
        told = pull.request.lengths[0]
        if (
            not form.problem and told != form.nbytes
        ):  # also more: it would take the rest for payload
            return (
                f"it has {form.nbytes} bytes, its receiver was told of {told}; a sender whose metadata "
                "is handed to receivers of vLLM-Omni needs peer: vllm-omni"
            )
        return form.problem or form

    def _write(self, pull: _Pull, form: Form) -> str | None:
        """Begin to write; why that is impossible, or ``None``."""
        ref = (pull.number, _OP)
        if form.dropped:
            return ""
        try:
            engine = self._engines.of(pull.request.session)
            region = engine.attach(pull.request.dst_addrs[0], form.nbytes)
        except OmniAsyncError as error:
            return str(error)
        payload = self._core.write_apart(ref)
        if payload is None:
            engine.detach(region)
            return ""
        filling = payload.filling
        if form.lease is not None:
            form.lease.pin()
            filling = None

        def written(problem: str | None) -> None:
            engine.detach(region)
            if form.lease is not None:
                form.lease.unpin()
            self._core.written(ref, problem)
            if problem is None:
                self._core.receive(pull.number, Release(_OP, True))
            self._end(pull, problem)

        engine.write(Move(form.address, region, 0, form.nbytes), filling, written)
        return None

    def _end(self, pull: _Pull, problem: str | None) -> None:
        """Answer; what was not delivered is on offer again."""
        del self._pulls[pull.number]
        self._channels.pop(pull.number, None)
        self._core.peer_ended(pull.number, proven=True)
        self._pump()
        self._warn(pull.stranger, problem and f"{pull.request.request_id!r}: {problem}")
        pull.stranger.answer(words.DONE if problem is None else words.ERROR)
        if self._over is not None and not self._pulls:
            _set(self._over)

    def _warn(self, stranger: Stranger, reason: str | None) -> None:
        """Say what is wrong, and not again for each time that they ask."""
        if reason and reason != self._told:
            self._told = reason
            _log.warning("request of another wire refused", peer=stranger.name, reason=reason)

    # --- the end ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Refuse what comes from now on, and pulls whose write has not begun; the others go on."""
        self._closed = True
        for pull in list(self._pulls.values()):
            pull.close()

    async def settle(self, timeout: float) -> None:
        """Wait for writes under way, and for forms that are being made.

        Cancellation: safe.
        """
        deadline = self._wiring.loop.time() + timeout
        if self._forms.under_way:
            await asyncio.wait(self._forms.under_way, timeout=timeout)
        if self._pulls:
            self._over = self._wiring.loop.create_future()
            await _in_time(self._wiring.loop, self._over, deadline)
        self.abandon()

    def abandon(self) -> None:
        """Wait for nothing more."""
        self._engines.close()


class _Pull(Channel):
    """One pull, and the line on which the rendezvous says whether there is something for it."""

    def __init__(
        self,
        number: int,
        stranger: Stranger,
        request: words.Pull,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.name = f"{stranger.name} (vLLM-Omni)"
        self.number = number
        self.stranger = stranger
        self.request = request
        self.told: asyncio.Future[None] = loop.create_future()
        self.offered = False

    def send(self, message: Message, fds: Sequence[int] = ()) -> None:
        if not self.told.done():
            self.offered = isinstance(message, Offer)
            self.told.set_result(None)

    def flush(self) -> None: ...

    @property
    def queued(self) -> int:
        return 0

    def close(self) -> None:
        _set(self.told)

    def detach(self) -> int:
        return -1


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def _in_time(
    loop: asyncio.AbstractEventLoop, future: asyncio.Future[None], until: float
) -> bool:
    """Whether it is done by then.

    Cancellation: safe.
    """
    done, _ = await asyncio.wait([future], timeout=max(0.0, until - loop.time()))
    return bool(done)
