"""What a payload is on the wire of vLLM-Omni: a range of registered memory, or why it is nothing.

In: payloads of our own wire. Out: addresses and lengths that an engine may write from.
Never: copies what can be written from where it lies; makes the same form twice.

Raw bytes, and what was encoded for that wire when it was put, are written from the payload's own slot.
Everything else is encoded once more when the first receiver asks, into a slot of its own, which goes
with the payload.
"""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from ..._aio.copying import INLINE_COPY
from ...codec import decode
from ...errors import CodecError, OmniAsyncError, PayloadTooLarge, TransferError
from ...interop.vllm_omni import objects
from ...interop.vllm_omni.writing import Pieces, write
from ...pool import Lease
from ...rendezvous.payload import Payload
from ..filling import Filling
from ..room import Array, Room
from ..taking import checked_offer, frames_of
from ..wiring import Wiring

ROOM_SECONDS = 5.0
"""How long a form waits for room in the pool: as long as those who ask wait for an answer."""


class Form:
    """One payload's form; :attr:`nbytes` from :attr:`address` on are written."""

    __slots__ = ("_waiting", "address", "dropped", "fast", "lease", "nbytes", "problem", "ready")

    def __init__(self) -> None:
        self.ready = False
        """It is known what is written, or why nothing can be."""
        self.problem = ""
        self.address = 0
        self.nbytes = 0
        self.fast = False
        """Raw bytes, not an object."""
        self.lease: Lease | None = None
        """A slot of its own."""
        self.dropped = False
        """Its payload is not on offer any more: nothing new is begun."""
        self._waiting: list[Callable[[], None]] = []

    def when_ready(self, call: Callable[[], None]) -> None:
        """Call back once :attr:`ready` is true; at once where it is."""
        if self.ready:
            call()
        else:
            self._waiting.append(call)

    def settle(self, address: int, nbytes: int, fast: bool, lease: Lease | None = None) -> None:
        """It is there."""
        self.address, self.nbytes, self.fast, self.lease = address, nbytes, fast, lease
        if self.dropped and lease is not None:
            lease.drop()
        self._tell()

    def fail(self, problem: str) -> None:
        """There will be none."""
        self.problem = problem
        self._tell()

    def drop(self) -> None:
        """Its payload is not on offer any more; a write from its slot ends first."""
        self.dropped = True
        if self.lease is not None:
            self.lease.drop()

    def _tell(self) -> None:
        self.ready = True
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            call()


class Forms:
    """Makes forms of payloads on demand."""

    def __init__(self, wiring: Wiring) -> None:
        self._wiring = wiring
        self._making: set[asyncio.Task[None]] = set()

    @property
    def under_way(self) -> set[asyncio.Task[None]]:
        """Forms that are being made."""
        return self._making

    def own(self, payload: Payload) -> None:
        """A payload was put in that wire's form: its last frame is what is written."""
        form = payload.form = Form()
        _, buffers = self._frames(payload)
        self._in_place(payload, form, buffers[-1], payload.fast)

    def of(self, payload: Payload) -> Form:
        """The form of a payload; made now, or begun."""
        if isinstance(payload.form, Form):
            return payload.form
        form = payload.form = Form()
        header, buffers = self._frames(payload)
        if payload.fast and objects.is_raw(bytes(header)):
            if payload.nbytes:
                self._in_place(payload, form, buffers[0], True)
            else:
                form.fail("nothing at all cannot be sent to vLLM-Omni; send it inside a dictionary")
        else:
            task = self._wiring.loop.create_task(self._cast(payload, form))
            self._making.add(task)
            task.add_done_callback(self._making.discard)
        return form

    def _frames(self, payload: Payload) -> tuple[memoryview, list[Array]]:
        """Header and buffers, where they lie."""
        offer = payload.offer(0, False)
        regions = self._wiring.pool.regions
        places = [
            _memory(regions[place.region].address + place.offset, place.nbytes)
            for place in payload.places
        ]
        return frames_of(Room(), offer, checked_offer(offer), places)

    def _in_place(self, payload: Payload, form: Form, buffer: Array, fast: bool) -> None:
        if payload.inline is not None and 1 not in payload.apart:
            # The engine writes from registered memory. Such a payload has a slot, and does not use it.
            slot = payload.leases[-1]
            assert isinstance(slot, Lease)
            ctypes.memmove(slot.address, _address(buffer), len(buffer))
            form.settle(slot.address, len(buffer), fast)
        else:
            form.settle(_address(buffer), len(buffer), fast)

    async def _cast(self, payload: Payload, form: Form) -> None:
        """Encode it once more. Its slots stay until that is done."""
        payload.pin()
        try:
            filling: Filling | None = payload.filling
            if filling is not None:
                await _filled(self._wiring.loop, filling)
            lease, nbytes = await self._cast_into_slot(payload)
        except CodecError as error:
            form.fail(str(error))
        except PayloadTooLarge as error:
            form.fail(f"{error}; with peer: vllm-omni it would take no room twice")
        except OmniAsyncError as error:
            _forget(payload, form)  # the next one who asks may have more luck
            form.fail(str(error))
        except BaseException:
            _forget(payload, form)
            form.fail("it was given up")
            raise
        else:
            form.settle(lease.address, nbytes, False, lease)
        finally:
            payload.unpin()

    async def _cast_into_slot(self, payload: Payload) -> tuple[Lease, int]:
        wiring = self._wiring
        large = payload.nbytes > INLINE_COPY
        pieces = (
            await wiring.executor.finish(self._write, payload) if large else self._write(payload)
        )
        lease = await wiring.pool.lease(
            pieces.nbytes, deadline=wiring.loop.time() + ROOM_SECONDS, findable=False
        )
        try:
            target = lease.view()
            if large:
                await wiring.executor.finish(pieces.copy_into, target)
            else:
                pieces.copy_into(target)
        except BaseException:
            lease.drop()
            raise
        return lease, pieces.nbytes

    def _write(self, payload: Payload) -> Pieces:
        header, buffers = self._frames(payload)
        return write(decode(header, buffers))


class _Memory:
    """Bytes at an address, for numpy; whoever has it knows that they stay."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__array_interface__: dict[str, Any] = {
            "version": 3,
            "typestr": "|u1",
            "shape": (nbytes,),
            "data": (address, False),
        }


def _memory(address: int, nbytes: int) -> Array:
    return np.asarray(_Memory(address, nbytes))


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


def _forget(payload: Payload, form: Form) -> None:
    if payload.form is form:
        payload.form = None


async def _filled(loop: asyncio.AbstractEventLoop, filling: Filling) -> None:
    """Wait until a payload that is still being copied is there.

    Cancellation: safe.
    """
    end = loop.create_future()

    def look() -> None:
        if (filling.full or filling.failure is not None) and not end.done():
            end.set_result(None)

    filling.watch(look)
    look()
    await end
    if filling.failure is not None:
        raise TransferError(filling.failure)
