"""``bench mooncake``: this library, the peer's connector and the engine itself over TCP, in one run.

In: sizes, modes of streams, rounds, the peer's wheel. Out: both kinds of figures, and goals.
Never: measures; :mod:`.compare` and :mod:`.streams` do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import compare, stream_figures, streams
from .contest import MOONCAKE
from .stream_figures import Wanted

WANTED = (Wanted("paced-256", "p99_us", 30.0),)
MODES = tuple(wanted.mode for wanted in WANTED)
NO_STREAMS = "none"


def run(
    sizes: Sequence[int],
    modes: Sequence[str] = MODES,
    *,
    rounds: int = 5,
    scale: float = 1.0,
    peer: str | None = None,
    pin: bool = False,
    loops: Sequence[str] = ("asyncio", "uvloop"),
) -> dict[str, Any]:
    """Measure; see :func:`report`.

    Raises:
        BackendUnavailable: the connector cannot run here.
        PeerUnavailable: ``peer`` was given and is no usable wheel.
        WorkerFailed: a process ended, hung, or found wrong bytes.
    """
    one_way = compare.run(
        MOONCAKE, sizes, rounds=rounds, scale=scale, peer=peer, pin=pin, loops=loops
    )
    flowing = None
    if modes:
        flowing = streams.run(
            modes,
            rounds=min(rounds, 3),
            scale=scale,
            peer=peer,
            loops=loops,
            connector=MOONCAKE.connector,
            wanted=WANTED,
        )
    return {
        **one_way,
        "streams": flowing,
        "goals": [*one_way["goals"], *(flowing["goals"] if flowing else ())],
    }


def report(result: dict[str, Any]) -> str:
    """The result for people."""
    parts = [compare.report(result)]
    if result["streams"]:
        parts += [
            stream_figures.first_line(result["streams"]),
            stream_figures.report(result["streams"]),
        ]
    return "\n\n".join(parts)


first_line = compare.first_line
