"""The contract's own sentences: what a call takes, what it refuses at once, what stays separate."""

from __future__ import annotations

import asyncio
import math
import threading
from typing import Any

import pytest

import omni_async
from omni_async.transport import taking
from tests.pairs import open_pair

# --- opening --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"namespace": "\ud800"},
        {"stage": "\ud800"},
        {"stage": True},
        {"rank": 1 << 31},
        {"replica": 10**30},
        {"linger": math.nan},
    ],
)
def test_an_endpoint_that_no_word_could_carry_is_refused(wrong: dict[str, Any]) -> None:
    right: dict[str, Any] = {"role": "sender", "stage": "0", "namespace": "contract"}
    with pytest.raises(omni_async.UsageError):
        omni_async.open_transport("shm", **{**right, **wrong})


@pytest.mark.parametrize("fields", [(5,), ("shm", 5), ("shm", [])])
def test_a_spec_with_fields_of_other_types_is_refused(fields: tuple[Any, ...]) -> None:
    with pytest.raises(omni_async.ConfigError):
        omni_async.open_transport(omni_async.ConnectorSpec(*fields), role="sender", stage="0")


@pytest.mark.usefixtures("later")
@pytest.mark.parametrize("name", ["later", "LaterConnector"])
def test_a_planned_connector_says_that_it_is_not_there(name: str) -> None:
    with pytest.raises(omni_async.BackendUnavailable) as caught:
        omni_async.open_transport(name, role="sender", stage="0")
    assert caught.value.backend == name
    assert caught.value.remedy
    assert isinstance(caught.value, ImportError)


# --- arguments ------------------------------------------------------------------------------------


async def test_stages_are_told_apart_by_type_after_they_were_used(
    backend: str, namespace: str
) -> None:
    async with open_pair(backend, namespace) as (tx, rx):
        await tx.put(0, 1, "k", 1)
        assert (await rx.get(0, 1, "k", timeout=5)).value == 1
        wrong: Any
        for wrong in (False, 0.0):
            with pytest.raises(omni_async.UsageError):
                await tx.put(wrong, 1, "k", 1)
        for wrong in (True, 1.0, "\ud800"):
            with pytest.raises(omni_async.UsageError):
                await tx.put(0, wrong, "k", 1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"raw": "yes"},
        {"copy": "no"},
        {"copy": 1},
        {"metadata": {"data_size": 5}},
        {"metadata": {"source_host": "h", "source_port": True}},
        {"metadata": {"source_host": "h", "source_port": -1}},
        {"metadata": {"source_host": "h", "source_port": 65536}},
    ],
)
async def test_a_get_with_a_senseless_argument_is_refused(
    backend: str, namespace: str, wrong: dict[str, Any]
) -> None:
    async with open_pair(backend, namespace) as (_, rx):
        with pytest.raises(omni_async.UsageError):
            await rx.get("0", "1", "k", **{"timeout": 5, **wrong})


async def test_batches_take_mappings_and_iterables_only(backend: str, namespace: str) -> None:
    async with open_pair(backend, namespace) as (tx, rx):
        wrong: Any
        for wrong in ([("a", 1)], None, "ab"):
            with pytest.raises(omni_async.UsageError):
                await tx.put_many("0", "1", wrong)
        for wrong in ("ab", b"ab", None, [[]]):
            with pytest.raises(omni_async.UsageError):
                await rx.get_many("0", "1", wrong, timeout=5)
        with pytest.raises(omni_async.UsageError, match="from_stage"):
            await tx.put_many("5", "1", {})
        with pytest.raises(omni_async.UsageError, match="role"):
            await rx.put_many("0", "1", {})


async def test_other_calls_refuse_senseless_arguments(backend: str, namespace: str) -> None:
    async with open_pair(backend, namespace) as (tx, rx):
        wrong: Any
        for wrong in (None, 5, "", b"x"):
            with pytest.raises(omni_async.UsageError):
                await tx.cleanup(wrong)
            with pytest.raises(omni_async.UsageError):
                await rx.cleanup(wrong)
        for wrong in (("", 1), ("h", -1), ("h", 70_000), ("h", True), ("h", 1, "0"), ("h", 1, -1)):
            with pytest.raises(omni_async.UsageError):
                rx.update_sender_info(*wrong)


async def test_shapes_are_what_counts_as_an_index(backend: str, namespace: str) -> None:
    torch = pytest.importorskip("torch")
    np = pytest.importorskip("numpy")
    async with open_pair(backend, namespace) as (tx, _):
        assert (await tx.empty(np.int64(3))).shape == (3,)
        assert (await tx.empty(torch.Size([2, 0]))).shape == (2, 0)
        wrong: Any
        for wrong in (None, 5.0, "ab", True, (True,), (-1,), -1, ((1,),)):
            with pytest.raises(omni_async.UsageError):
                await tx.empty(wrong)
        for wrong in ("float32", np.float32, torch.qint8):
            with pytest.raises(omni_async.UsageError):
                await tx.empty(4, wrong)


async def test_a_device_without_memory_is_refused(backend: str, namespace: str) -> None:
    pytest.importorskip("torch")
    async with open_pair(backend, namespace) as (_, rx):
        for wrong in ("meta", "nope", "cuda:99"):
            with pytest.raises(omni_async.UsageError):
                await rx.get("0", "1", "k", device=wrong, timeout=5)


# --- closing --------------------------------------------------------------------------------------


async def test_a_drain_that_is_closed_away_does_not_say_that_all_was_fetched(
    backend: str, namespace: str
) -> None:
    async with open_pair(backend, namespace) as (tx, _):
        await tx.put("0", "1", "k", 1)
        draining = asyncio.create_task(tx.drain())
        await asyncio.sleep(0)
        await tx.aclose()
        with pytest.raises(omni_async.ClosedError):
            await asyncio.wait_for(draining, 5)


# --- in place -------------------------------------------------------------------------------------


async def test_one_leaf_twice_in_a_payload_arrives_separate(backend: str, namespace: str) -> None:
    torch = pytest.importorskip("torch")
    async with open_pair(backend, namespace) as (tx, rx):
        leaf = await tx.empty((100, 64), torch.float32)
        leaf.fill_(1)
        half = leaf[50:]
        await tx.put(
            "0", "1", "k", {"half": half, "whole": leaf, "again": leaf, "first": leaf[:50]}
        )
        value = (await rx.get("0", "1", "k", timeout=5)).value
        for name in value:
            value[name].fill_(2)
            assert all((value[other] == 1).all() for other in value if other != name), name
            value[name].fill_(1)


async def test_one_leaf_under_two_keys_arrives_separate(backend: str, namespace: str) -> None:
    torch = pytest.importorskip("torch")
    async with open_pair(backend, namespace) as (tx, rx):
        leaf = await tx.empty((100, 64), torch.float32)
        leaf.fill_(1)
        for key in ("a", "b", "c"):
            await tx.put("0", "1", key, leaf if key != "c" else {"slice": leaf[3:]})
        first = await rx.get("0", "1", "a", timeout=5)
        first.value.fill_(2)
        assert ((await rx.get("0", "1", "b", timeout=5)).value == 1).all()
        assert ((await rx.get("0", "1", "c", timeout=5)).value["slice"] == 1).all()


async def test_parts_of_one_slot_that_do_not_overlap_are_not_copied(
    backend: str, namespace: str
) -> None:
    torch = pytest.importorskip("torch")
    async with open_pair(backend, namespace, memory_pool_size=5 << 20) as (tx, rx):
        slab = await tx.empty((4, 1 << 20), torch.uint8)
        for number, row in enumerate(slab):
            row.fill_(number)
        await tx.put("0", "1", "k", [slab[2], slab[0], slab[3], slab[1]], timeout=5)
        rows = (await rx.get("0", "1", "k", timeout=5)).value
        assert [int(row.min()) for row in rows] == [2, 0, 3, 1]


# --- batches --------------------------------------------------------------------------------------


async def test_a_large_batch_lets_the_loop_turn(backend: str, namespace: str) -> None:
    async with open_pair(backend, namespace) as (tx, rx):
        keys = [str(number) for number in range(3000)]
        turns = 0
        waiting = asyncio.create_task(rx.get_many("0", "1", keys, timeout=30))
        while rx.health().parked < len(keys):
            turns += 1
            await asyncio.sleep(0)
        assert turns > len(keys) / 100
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert rx.health().parked == 0
        await tx.put("0", "1", "7", 7)
        assert (await rx.get("0", "1", "7", timeout=5)).value == 7


async def test_a_batch_that_is_cancelled_while_it_begins_leaves_no_get(
    backend: str, namespace: str
) -> None:
    async with open_pair(backend, namespace) as (tx, rx):
        await tx.put("0", "1", "there", 1)
        keys = [str(number) for number in range(1000)]
        waiting = asyncio.create_task(rx.get_many("0", "1", keys, timeout=30))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert rx.health().parked == 0
        assert not [task for task in asyncio.all_tasks() if "Transport.get" in repr(task)]


# --- the event loop -------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [bytes(4 << 20), {"a": bytes(4 << 20), "b": 1}])
async def test_large_raw_copies_are_not_made_on_the_event_loop(
    backend: str, namespace: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[int] = set()
    copied = taking.raw_bytes

    def watched(*arguments: Any) -> omni_async.ManagedBuffer:
        threads.add(threading.get_ident())
        return copied(*arguments)

    monkeypatch.setattr(taking, "raw_bytes", watched)
    async with open_pair(backend, namespace) as (tx, rx):
        receipt = await tx.put("0", "1", "k", value)
        delivery = await rx.get("0", "1", "k", raw=True, copy=True, timeout=5)
        assert delivery.value.nbytes == receipt.nbytes
        assert len(threads) == 1
        assert threading.get_ident() not in threads


# --- peers that will not talk ---------------------------------------------------------------------


async def test_a_sender_that_refuses_is_told_at_once_and_not_waited_for(
    backend: str, namespace: str
) -> None:
    async with (
        open_pair(backend, f"{namespace}-other") as (tx, _),
        open_pair(backend, namespace) as (_, rx),
    ):
        waiting = [asyncio.create_task(rx.get("0", "1", "early", timeout=None))]
        await asyncio.sleep(0)  # it has asked the configured sender
        address = (await tx.put("0", "1", "k", 1)).metadata
        assert address is not None
        rx.update_sender_info(address["source_host"], address["source_port"])
        waiting += [
            asyncio.create_task(rx.get("0", "1", key, timeout=None)) for key in ("k", "other")
        ]
        for get in waiting[1:]:
            with pytest.raises(omni_async.ProtocolError, match=r"get of .* on 0->1: .*namespace"):
                await asyncio.wait_for(get, 5)
        assert not waiting[0].done()  # it waits for the other sender
        assert await rx.cleanup("early") == 1
        with pytest.raises(omni_async.TransferCancelled):
            await waiting[0]
