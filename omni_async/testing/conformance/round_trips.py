"""Everything that can be sent comes back as what it was, and everything else is refused."""

from __future__ import annotations

import pytest

from ...errors import EncodeError
from ..recipes import family, literal, pattern, tree
from ..recipes import sample as one
from ..rig import Rig
from ..samples import FAMILIES, NEEDS, refused, refused_tensors
from ..sides import LocalSide
from .base import HERE, SENDER_HERE, Conformance, runs

SIZES = [0, 1, 63, 64, 65, 2000, 2048, 2049, 8191, 8193, 65_537, 1 << 20, (3 << 20) + 5]


class RoundTrips(Conformance):
    @pytest.mark.parametrize("name", list(FAMILIES))
    @runs(*HERE)
    async def test_a_family_in_one_payload(self, rig: Rig, name: str) -> None:
        _need(name)
        tx, rx = await rig.pair()
        await tx.put("all", family(name))
        assert (await rx.get("all", family(name))).wrong is None

    @pytest.mark.parametrize("name", list(FAMILIES))
    @runs(*HERE)
    async def test_each_sample_as_the_whole_value(self, rig: Rig, name: str) -> None:
        _need(name)
        tx, rx = await rig.pair()
        for sample in FAMILIES[name]():
            sent = await tx.put(sample, one(sample, name))
            got = await rx.get(sample, one(sample, name))
            assert got.wrong is None, f"{sample}: {got.wrong}"
            assert got.nbytes == sent.nbytes, sample

    @runs(*HERE)
    async def test_sizes(self, rig: Rig) -> None:
        tx, rx = await rig.pair()
        for nbytes in SIZES:
            receipt = await tx.put("alone", pattern(nbytes, nbytes))
            got = await rx.get("alone", pattern(nbytes, nbytes))
            assert got.wrong is None, nbytes
            assert receipt.nbytes == got.nbytes >= nbytes
            await tx.put("tree", tree(nbytes, 3))
            assert (await rx.get("tree", tree(nbytes, 3))).wrong is None, nbytes

    @runs(*HERE)
    async def test_repeated_keys(self, rig: Rig) -> None:
        tx, rx = await rig.pair()
        for seed in range(20):
            await tx.put("same", tree(5000, seed))
            assert (await rx.get("same", tree(5000, seed))).wrong is None

    @pytest.mark.parametrize("tensors", [False, True])
    @runs(*SENDER_HERE)
    async def test_what_cannot_be_sent_is_refused_at_put(self, rig: Rig, tensors: bool) -> None:
        if tensors:
            pytest.importorskip("torch")
        tx, rx = await rig.pair()
        assert isinstance(tx, LocalSide)
        for name, value in (refused_tensors() if tensors else refused()).items():
            for wrapped in (value, {"meta": [1, 2, {"deep": value}]}):
                with pytest.raises(EncodeError) as caught:
                    await tx.transport.put("0", "1", "refused", wrapped)
                expected = "value" if wrapped is value else "value['meta'][2]['deep']"
                assert expected in str(caught.value), f"{name}: {caught.value}"
                assert (caught.value.path or "").startswith(expected), name
        await rig.quiet()
        await tx.put("fine", literal(1))
        assert (await rx.get("fine", literal(1))).wrong is None

    @runs(*HERE)
    async def test_raw_bytes(self, rig: Rig) -> None:
        """A buffer as the whole value travels without a serializer; ``raw`` gives its bytes."""
        tx, rx = await rig.pair()
        if not (await tx.capabilities()).raw_data:
            pytest.skip("this backend sends no raw data")
        for nbytes in (1, 3000, 1 << 20):
            await tx.put("raw", pattern(nbytes, 5))
            got = await rx.get("raw", pattern(nbytes, 5), raw=True)
            assert (got.wrong, got.nbytes, got.kind) == (None, nbytes, "ManagedBuffer")

    @pytest.mark.parametrize("place", ["allocate", "empty"])
    @runs(*HERE)
    async def test_built_in_place(self, rig: Rig, place: str) -> None:
        pytest.importorskip("torch")
        tx, rx = await rig.pair()
        for nbytes in (1, 100, 70_000, 1 << 20):
            receipt = await tx.put("placed", pattern(nbytes, 1), place=place)  # type: ignore[arg-type]
            assert receipt.nbytes == nbytes
            got = await rx.get("placed", pattern(nbytes, 1))
            assert (got.wrong, got.kind) == (None, "Tensor")


def _need(name: str) -> None:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
