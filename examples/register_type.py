"""Send classes of your own.

    python examples/register_type.py

Both sides register the class under the same name. What comes from the wire is only ever looked up
among the registered names: no module is imported and no code is run because a peer says so.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

import omni_async


@dataclass
class Utterance:
    speaker: str
    codes: np.ndarray  # [16, n]


# A dataclass, an enum, a msgspec.Struct or a pydantic model needs no more than this.
omni_async.register_type(Utterance, name="example.Utterance")

# Any other class says how it becomes plain values, and how it is made from them.
omni_async.register_type(
    Fraction,
    name="example.Fraction",
    encode=lambda value: [value.numerator, value.denominator],
    decode=lambda parts: Fraction(*parts),
)


async def main() -> None:
    async with (
        omni_async.open_transport("shm", role="sender", stage="0") as tx,
        omni_async.open_transport("shm", role="receiver", stage="1") as rx,
    ):
        said = Utterance("anna", np.zeros((16, 25), np.int32))
        await tx.put("0", "1", "req-1", {"said": said, "speed": Fraction(5, 4)})
        value = (await rx.get("0", "1", "req-1")).value
        print(value["said"].speaker, value["said"].codes.shape, repr(value["speed"]))

        # What nobody registered is refused where it is put, with its place in the payload.
        try:
            await tx.put("0", "1", "req-2", {"meta": [object()]})
        except omni_async.EncodeError as error:
            print(error)


asyncio.run(main())
