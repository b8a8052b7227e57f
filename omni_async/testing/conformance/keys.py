"""Which keys there are, and that no two of them, no two edges and no two namespaces meet."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ...errors import KeyNotFound, UsageError
from ..recipes import literal, pattern
from ..rig import Rig
from ..sides import LocalSide, attempt
from .base import HERE, RECEIVER_HERE, SENDER_HERE, Conformance, runs

STRANGE = [
    "x" * 300,
    "y" * 1024,
    "é" * 512,
    *("a/b", "a_b", "a:b", "a b", "a\\b", "a%2Fb"),
    *("a\0b", "a\0c", "\0"),
    *("réq", "re\u0301q", "日本語", "\U0001f3b5"),
    *("..", ".", "/", "//", "../../etc/passwd", "-", "--help", "-rf"),
    *("*", "?", "a?", "$HOME", "`id`", "'", '"', "\n", " ", "\t", "None", "0", "CASE", "case"),
]


class Keys(Conformance):
    @runs(*HERE)
    async def test_every_key_of_up_to_1024_bytes(self, rig: Rig) -> None:
        tx, rx = await rig.pair()
        for number, key in enumerate(STRANGE):  # all there at once: none replaces another
            await tx.put(key, literal(number))
        for number, key in reversed(list(enumerate(STRANGE))):
            got = await rx.get(key, literal(number), timeout=5)
            assert got.wrong is None, repr(key)

    @runs(*HERE)
    async def test_strange_keys_with_large_payloads(self, rig: Rig) -> None:
        tx, rx = await rig.pair()
        for number, key in enumerate(STRANGE[::4]):
            await tx.put(key, pattern(20_000, number))
            assert (await rx.get(key, pattern(20_000, number))).wrong is None, repr(key)

    @pytest.mark.parametrize(
        "key", ["", "z" * 1025, "é" * 513], ids=["empty", "long", "long utf-8"]
    )
    @runs(*HERE)
    async def test_keys_that_are_refused(self, rig: Rig, key: str) -> None:
        tx, rx = await rig.pair()
        assert isinstance(await attempt(tx.put(key, literal(1))), UsageError)
        assert isinstance(await attempt(rx.get(key, timeout=0)), UsageError)
        await rig.quiet()

    @runs(*SENDER_HERE)
    async def test_keys_that_are_no_text_are_refused_at_put(self, rig: Rig) -> None:
        tx = await rig.sender()
        assert isinstance(tx, LocalSide)
        keys: list[Any] = [None, 5, b"k", ("a",), "\ud800"]
        for key in keys:
            with pytest.raises(UsageError):
                await tx.transport.put("0", "1", key, 1)

    @runs(*RECEIVER_HERE)
    async def test_keys_that_are_no_text_are_refused_at_get(self, rig: Rig) -> None:
        rx = await rig.receiver()
        assert isinstance(rx, LocalSide)
        keys: list[Any] = [None, 5, b"k", ("a",), "\ud800"]
        for key in keys:
            with pytest.raises(UsageError):
                await rx.transport.get("0", "1", key, timeout=0)

    @runs(*HERE)
    async def test_edges_never_mix(self, rig: Rig) -> None:
        tx = await rig.sender()
        one, two = await rig.receiver("1"), await rig.receiver("2")
        await tx.put("k", literal("for one"), edge=("0", "1"))
        assert isinstance(await attempt(two.get("k", edge=("0", "2"), timeout=0)), KeyNotFound)
        await tx.put("k", literal("for two"), edge=("0", "2"))
        got = await two.get("k", literal("for two"), edge=("0", "2"))
        assert got.wrong is None
        assert (await one.get("k", literal("for one"))).wrong is None

    @runs(*HERE)
    async def test_names_of_stages_never_run_together(self, rig: Rig) -> None:
        """Stage "1" with key "1:k" is not stage "1:1" with key "k"."""
        tx = await rig.sender("a")
        one = await rig.receiver("1", sender="a")
        two = await rig.receiver("1:1", sender="a")
        await tx.put("1:k", literal(1), edge=("a", "1"))
        await tx.put("k", literal(2), edge=("a", "1:1"))
        assert (await two.get("k", literal(2), edge=("a", "1:1"))).wrong is None
        assert (await one.get("1:k", literal(1), edge=("a", "1"))).wrong is None

    @runs(*HERE)
    async def test_namespaces_never_mix(self, rig: Rig) -> None:
        names = [f"{rig.namespace}-x", f"{rig.namespace}-x/0", f"{rig.namespace}-{'y' * 200}"]
        pairs = []
        for name in names:
            pairs.append((await rig.sender(namespace=name), await rig.receiver(namespace=name)))
        for number, (tx, _) in enumerate(pairs):
            await tx.put("k", literal(number))
        for number, (_, rx) in enumerate(pairs):
            assert (await rx.get("k", literal(number))).wrong is None
            assert isinstance(await attempt(rx.get("k", timeout=0)), KeyNotFound)

    @runs(*HERE)
    async def test_a_parked_get_hears_of_its_own_key_alone(self, rig: Rig) -> None:
        tx, rx = await rig.pair()
        waiting = asyncio.ensure_future(rx.get("a/b", literal("right")))
        for key in ("a_b", "a", "a/b/", "A/b"):
            await tx.put(key, literal("wrong"))
        await asyncio.sleep(0.02)
        assert not waiting.done()
        await tx.put("a/b", literal("right"))
        assert (await waiting).wrong is None
