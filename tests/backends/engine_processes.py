"""Tests of any engine in two processes: bytes that arrive.

In: the fixture ``pair``. Out: test cases, for a class whose name begins with ``Test`` to inherit.
Never: knows whose engines they are.
"""

from __future__ import annotations

from .engine_pair import MIB, Pair


class Bytes:
    """Bytes of two that have met."""

    async def test_bytes_arrive(self, pair: Pair) -> None:
        await pair.arrives(1, nbytes=100)
        await pair.arrives(2, nbytes=64 * MIB, offset=4096)
        assert await pair.receiver.do("count", offset=0, nbytes=100, fill=1) == 100

    async def test_several_moves_end_together(self, pair: Pair) -> None:
        await pair.sender.do("fill", offset=0, nbytes=64 * MIB, fill=3)
        moves = [(n * 65536, (63 - n) * 65536, 65536) for n in range(64)]
        await pair.write(*moves, (0, 32 * MIB, 16 * MIB), (0, 128 * MIB, 0))
        assert await pair.receiver.do("count", offset=0, nbytes=4 * MIB, fill=3) == 4 * MIB
        landed = await pair.receiver.do("count", offset=32 * MIB, nbytes=17 * MIB, fill=3)
        assert landed == 16 * MIB
