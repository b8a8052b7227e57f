"""Whole transports over channels that lose, double and delay words.

In: a seed. Out: right values or typed errors, and nothing left when the lines are closed.
Never: expects every word to arrive; a line that loses words breaks its own promise.
"""

from __future__ import annotations

import asyncio
import random

import pytest

import omni_async
from omni_async.abc import Channels, Options
from omni_async.errors import ProtocolError, TransferError
from omni_async.registry import register_backend
from omni_async.testing.doubles.loopback import LoopbackMap, LoopbackRead, LoopbackWrite
from omni_async.testing.faults import FaultyChannels
from omni_async.testing.leaks import no_leaks
from omni_async.testing.recipes import pattern_array

KINDS = {"map": LoopbackMap, "write": LoopbackWrite, "read": LoopbackRead}


class _Faulty:
    """A loopback backend over faulty lines."""

    made: FaultyChannels | None = None


@pytest.fixture(params=list(KINDS))
def connector(request: pytest.FixtureRequest) -> str:
    kind = KINDS[request.param]

    class Faulty(kind):  # type: ignore[misc,valid-type]
        name = f"Faulty{kind.name}"
        alias = f"faulty-{kind.alias}"

        def channels(self, options: Options) -> Channels:
            _Faulty.made = FaultyChannels(
                super().channels(options),
                seed=len(request.node.name),
                lose=0.05,
                double=0.1,
                delay=0.2,
                longest=0.02,
            )
            return _Faulty.made

    register_backend(Faulty())
    return Faulty.alias


# A receiver that never heard the end of a WRITE keeps its landing slot, and says so.
@pytest.mark.filterwarnings("ignore:transport .* cannot be recalled:ResourceWarning")
@pytest.mark.parametrize("seed", [1, 2])
async def test_values_are_right_or_errors_typed(namespace: str, connector: str, seed: int) -> None:
    chance = random.Random(seed)
    delivered: dict[str, int] = {}
    async with no_leaks(mark=namespace):
        spec = {"name": connector, "extra": {"memory_pool_size": 32 << 20}}
        options = {"namespace": namespace, "linger": 0.0}
        async with (
            omni_async.open_transport(spec, role="sender", stage="0", **options) as tx,  # type: ignore[arg-type]
            omni_async.open_transport(spec, role="receiver", stage="1", **options) as rx,  # type: ignore[arg-type]
        ):

            async def exchange(number: int) -> None:
                key, nbytes = f"k{number}", chance.choice([10, 5000, 300_000])
                expected = pattern_array(nbytes, number)
                await tx.put("0", "1", key, expected, timeout=5)
                for _ in range(4):
                    try:
                        delivery = await rx.get("0", "1", key, timeout=0.15)
                    except (TransferError, ProtocolError):
                        continue
                    assert (delivery.value == expected).all()
                    delivered[key] = delivered.get(key, 0) + 1
                    return

            for start in range(0, 60, 10):
                await asyncio.gather(*(exchange(number) for number in range(start, start + 10)))
    assert _Faulty.made is not None
    assert len(delivered) > 20, "hardly anything arrived"
    assert set(delivered.values()) == {1}
