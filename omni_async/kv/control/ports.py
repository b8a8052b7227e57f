"""Ports: each rank of an instance listens above its base.

In: bases, ranks, sizes. Out: ports.
Never: binds; takes a size that is not the listener's own.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...errors import UsageError

PORT_LIMIT = 1 << 16


def offset_of(dp_rank: int, tp_rank: int, tp_size: int) -> int:
    """How far above its base a rank listens.

    Args:
        tp_size: of the side that listens, whoever asks.

    Raises:
        UsageError: there is no such rank.
    """
    if tp_size < 1:
        raise UsageError(f"tp_size must be at least 1, it is {tp_size}")
    if dp_rank < 0 or not 0 <= tp_rank < tp_size:
        raise UsageError(f"there is no rank dp {dp_rank}, tp {tp_rank} where tp_size is {tp_size}")
    return dp_rank * tp_size + tp_rank


def port_of(base: int, dp_rank: int, tp_rank: int, tp_size: int) -> int:
    """A rank's own port.

    Raises:
        UsageError: there is no such rank, or it would be above the last port.
    """
    port = base + offset_of(dp_rank, tp_rank, tp_size)
    if not 0 < port < PORT_LIMIT:
        raise UsageError(
            f"rank dp {dp_rank}, tp {tp_rank} would listen at port {port}, {base} being the first"
        )
    return port


def clashes(
    bases: Mapping[str, int], dp_size: int, tp_size: int, single: Mapping[str, int]
) -> list[tuple[str, str]]:
    """What is wrong with an instance's ports: option and text of each.

    Args:
        bases: option → first port of a range with one for each rank.
        single: option → a port that is there once.
    """
    ranks = dp_size * tp_size
    wrong: list[tuple[str, str]] = []
    taken = {name: range(port, port + 1) for name, port in single.items()}
    for name, base in bases.items():
        mine = range(base, base + ranks)
        if mine.stop > PORT_LIMIT:
            wrong.append((name, f"{ranks} ranks need the ports {base} to {mine.stop - 1}"))
        for other, theirs in taken.items():
            if max(mine.start, theirs.start) < min(mine.stop, theirs.stop):
                wrong.append(
                    (name, f"{_told(mine)} of its ranks are {other}'s {_told(theirs)}, too")
                )
        taken[name] = mine
    return wrong


def _told(ports: range) -> str:
    return f"port {ports.start}" if len(ports) == 1 else f"ports {ports.start} to {ports.stop - 1}"
