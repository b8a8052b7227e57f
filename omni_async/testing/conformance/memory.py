"""Views of received payloads: whose memory they are, how long they live, what they may do."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from typing import Any

import numpy as np
import pytest

from ...errors import UsageError
from ..recipes import pattern, pattern_array
from ..rig import Rig, settle
from ..sides import LocalSide, Side
from .base import ONE_LOOP, RECEIVER_HERE, SENDER_HERE, Conformance, runs

NBYTES = 300_000


class MemoryOfViews(Conformance):
    @runs(*RECEIVER_HERE)
    async def test_views_are_aligned_contiguous_and_writable(self, rig: Rig) -> None:
        tx, rx = await rig.pair()
        writable = (await rx.capabilities()).writable
        for nbytes in (1, 100, 1999, 3001, NBYTES):
            delivery = await _deliver(tx, rx, nbytes)
            value = delivery.value
            assert value.ctypes.data % 64 == 0, nbytes
            assert value.flags.c_contiguous
            if writable:
                assert value.flags.writeable
                value[:] = 7
                assert (value == 7).all()
            del value
            delivery.release()
        await rig.quiet()

    @runs(*RECEIVER_HERE)
    async def test_memory_goes_back_when_the_last_view_dies(self, rig: Rig) -> None:
        tx, rx = await rig.pair()
        delivery = await _deliver(tx, rx, NBYTES)
        view = delivery.value[10:20]
        derived = view.view(np.uint16)
        del delivery, view
        await asyncio.sleep(0.02)
        expected = pattern_array(NBYTES, 1)[10:20].view(np.uint16)
        assert (derived == expected).all()
        assert await _held(tx, rx)
        del derived
        await rig.quiet()

    @runs(*RECEIVER_HERE)
    async def test_tensors_are_views_too(self, rig: Rig) -> None:
        torch = pytest.importorskip("torch")
        tx, rx = await rig.pair()
        delivery = await _deliver(tx, rx, NBYTES)
        tensor = torch.from_numpy(delivery.value)
        part = tensor[64:128].view(torch.int16)
        assert tensor.data_ptr() % 64 == 0
        del delivery, tensor
        assert await _held(tx, rx)
        assert part.numpy().tobytes() == pattern_array(NBYTES, 1)[64:128].tobytes()
        del part
        await rig.quiet()

    @runs(*RECEIVER_HERE)
    async def test_release_gives_up_the_deliverys_own_hold(self, rig: Rig) -> None:
        tx, rx = await rig.pair()
        delivery = await _deliver(tx, rx, NBYTES)
        delivery.release()
        delivery.release()
        await rig.quiet()
        with pytest.raises(UsageError):
            _ = delivery.value

        delivery = await _deliver(tx, rx, NBYTES)
        with delivery:
            value = delivery.value
        assert (value == pattern_array(NBYTES, 1)).all()
        assert await _held(tx, rx)
        del value
        await rig.quiet()

    @runs(*RECEIVER_HERE)
    async def test_memory_with_a_living_view_is_not_handed_out(self, rig: Rig) -> None:
        tx, rx = await rig.pair(memory_pool_size=2 << 20)
        delivery = await _deliver(tx, rx, NBYTES)
        value = delivery.value
        delivery.release()
        for seed in range(2, 30):
            other = await _deliver(tx, rx, NBYTES, seed)
            assert (other.value == pattern_array(NBYTES, seed)).all()
            other.release()
        assert (value == pattern_array(NBYTES, 1)).all()
        del value
        await rig.quiet()

    @runs(*RECEIVER_HERE)
    async def test_views_die_in_any_thread(self, rig: Rig) -> None:
        tx, rx = await rig.pair()
        for kind in ("release", "death", "cycle"):
            holder = [await _deliver(tx, rx, NBYTES)]

            def drop(holder: list[Any] = holder, kind: str = kind) -> None:
                delivery = holder.pop()
                if kind == "release":
                    delivery.release()
                elif kind == "cycle":
                    cycle: list[Any] = [delivery]
                    cycle.append(cycle)
                    del cycle, delivery
                    gc.collect()

            thread = threading.Thread(target=drop)
            thread.start()
            await asyncio.get_running_loop().run_in_executor(None, thread.join)
            await rig.quiet()
        await asyncio.get_running_loop().shutdown_default_executor()

    @runs(*RECEIVER_HERE)
    async def test_a_copy_is_independent(self, rig: Rig) -> None:
        tx, rx = await rig.pair()
        assert isinstance(rx, LocalSide)
        for nbytes in (100, NBYTES, 3 << 20):
            await tx.put("k", pattern(nbytes, 1))
            delivery = await rx.transport.get("0", "1", "k", copy=True)
            await rig.quiet()
            delivery.value[:] = 0  # our own
            assert delivery.value.flags.writeable

    @runs(*RECEIVER_HERE)
    async def test_views_outlive_the_transports(self, rig: Rig) -> None:
        tx, rx = await rig.pair()
        assert isinstance(rx, LocalSide)
        values: list[Any] = []
        for number in range(3):
            delivery = await _deliver(tx, rx, NBYTES, number)
            values.append(delivery.value)
            if number:
                delivery.release()
            del delivery
        await rx.cleanup("k")
        await tx.cleanup("k")
        await rx.close()
        await tx.close()
        gc.collect()
        for number, value in enumerate(values):
            assert (value == pattern_array(NBYTES, number)).all()
            value[:] = 255 - number
            assert (value == 255 - number).all()
            del value
        gone = weakref.ref(values[0])
        del values
        gc.collect()
        assert gone() is None

    @runs(*RECEIVER_HERE)
    async def test_views_outlive_a_sender_that_restarts(self, rig: Rig) -> None:
        tx, rx = await rig.pair()
        first = (await _deliver(tx, rx, NBYTES, 1)).value
        await tx.close()
        tx = await rig.sender()
        second = (await _deliver(tx, rx, NBYTES, 2)).value
        assert (first == pattern_array(NBYTES, 1)).all()
        assert (second == pattern_array(NBYTES, 2)).all()
        del first, second
        await rig.quiet(rx)

    @runs(*RECEIVER_HERE)
    async def test_a_raw_buffer(self, rig: Rig) -> None:
        torch = pytest.importorskip("torch")
        tx, rx = await rig.pair()
        assert isinstance(rx, LocalSide)
        await tx.put("k", pattern(NBYTES, 1))
        delivery = await rx.transport.get("0", "1", "k", raw=True)
        buffer = delivery.value
        expected = pattern_array(NBYTES, 1)
        assert buffer.to_bytes() == expected.tobytes()
        assert (buffer.tensor.dtype, tuple(buffer.tensor.shape)) == (torch.uint8, (NBYTES,))
        shaped = buffer.as_tensor(torch.bfloat16, (NBYTES // 4, 2))
        assert shaped.view(torch.uint8).numpy().tobytes() == expected.tobytes()
        with pytest.raises(UsageError):
            buffer.as_tensor(torch.float32, (NBYTES,))
        buffer.release()
        buffer.release()
        with pytest.raises(UsageError):
            _ = buffer.tensor
        delivery.release()
        assert await _held(tx, rx)  # by the tensor made of it
        assert shaped.view(torch.uint8).numpy().tobytes() == expected.tobytes()
        del shaped
        await rig.quiet()

    @runs(*SENDER_HERE)
    async def test_memory_that_was_allocated_and_not_put_goes_back(self, rig: Rig) -> None:
        torch = pytest.importorskip("torch")
        tx = await rig.sender()
        assert isinstance(tx, LocalSide)
        buffer = await tx.transport.allocate(NBYTES)
        assert tx.transport.health().pool_used >= NBYTES
        buffer.release()
        tensor = await tx.transport.empty((100, 3), torch.bfloat16)
        assert (tensor.dtype, tuple(tensor.shape)) == (torch.bfloat16, (100, 3))
        assert tensor.data_ptr() % 64 == 0
        del tensor, buffer
        await rig.quiet()
        for wrong in (-1, 1.5, "10", None):
            with pytest.raises(UsageError):
                await tx.transport.allocate(wrong)  # type: ignore[arg-type]

    @runs(*SENDER_HERE)
    async def test_what_is_sent_in_place_is_kept_for_the_senders_views_too(self, rig: Rig) -> None:
        torch = pytest.importorskip("torch")
        tx, rx = await rig.pair(memory_pool_size=2 << 20)
        assert isinstance(tx, LocalSide)
        tensor = await tx.transport.empty((NBYTES,), torch.uint8)
        tensor.copy_(torch.from_numpy(pattern_array(NBYTES, 1)))
        await tx.transport.put("0", "1", "k", {"in place": tensor, "copied": torch.ones(5)})
        await rx.get("k")
        for seed in range(2, 12):
            await tx.put("other", pattern(NBYTES, seed))
            assert (await rx.get("other", pattern(NBYTES, seed))).wrong is None
        assert tensor.numpy().tobytes() == pattern_array(NBYTES, 1).tobytes()
        del tensor
        await rig.quiet()

    @runs(*SENDER_HERE)
    async def test_what_is_sent_in_place_is_kept_for_the_receiver(self, rig: Rig) -> None:
        tx, rx = await rig.pair(memory_pool_size=2 << 20)
        await tx.put("k", pattern(NBYTES, 1), place="allocate")
        gc.collect()
        for seed in range(2, 8):
            await tx.put("other", pattern(NBYTES, seed))
            assert (await rx.get("other", pattern(NBYTES, seed))).wrong is None
        assert (await rx.get("k", pattern(NBYTES, 1))).wrong is None
        await rig.quiet()

    @runs(*ONE_LOOP)
    async def test_in_place_twice_and_after_failures(self, rig: Rig) -> None:
        torch = pytest.importorskip("torch")
        tx, rx = await rig.pair()
        assert isinstance(tx, LocalSide)
        tensor = await tx.transport.empty((1000,), torch.float32)
        tensor.fill_(2.0)
        await tx.transport.put("0", "1", "one", [tensor, tensor[100:200]])
        await tx.transport.put("0", "1", "two", tensor)
        with pytest.raises(UsageError):
            await tx.transport.put("0", "1", "", tensor)
        await rx.get("one")
        await tx.cleanup("two")
        assert (tensor == 2.0).all()
        del tensor
        await rig.quiet()

    @runs(*ONE_LOOP)
    async def test_the_caller_may_change_its_value_after_put(self, rig: Rig) -> None:
        tx, rx = await rig.pair()
        assert isinstance(tx, LocalSide)
        for nbytes in (100, NBYTES, 3 << 20):
            array = pattern_array(nbytes, 1)
            tree = {"array": array, "list": [1, 2]}
            await tx.transport.put("0", "1", "alone", array)
            await tx.transport.put("0", "1", "tree", tree)
            array[:] = 0
            tree["list"] = []
            assert (await rx.get("alone", pattern(nbytes, 1))).wrong is None
            assert isinstance(rx, LocalSide)
            delivery = await rx.transport.get("0", "1", "tree")
            assert (delivery.value["array"] == pattern_array(nbytes, 1)).all()
            assert delivery.value["list"] == [1, 2]
            del delivery


async def _deliver(tx: Side, rx: Side, nbytes: int, seed: int = 1) -> Any:
    assert isinstance(rx, LocalSide)
    await tx.put("k", pattern(nbytes, seed))
    return await rx.transport.get("0", "1", "k")


async def _held(tx: Side, rx: Side) -> bool:
    """Whether the memory of a delivery counts as used on either side."""
    await settle(tx, pool_used=None, in_flight=None)
    return bool((await tx.health()).pool_used or (await rx.health()).pool_used)
