"""How near GPUs and RDMA cards are to each other, and where a pool is best then.

In: what `nvidia-smi topo -m` or `rocm-smi --showtopo` prints. Out: facts, findings.
Never: knows an engine.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ...abc import Finding, Sight
from ...abc.findings import ok, warning
from . import tools

DIRECT = ("PIX",)
"""Ways by which a card reads memory of a GPU at full speed: one PCIe switch in between."""
_WAYS = ("X", "PIX", "PXB", "PHB", "NODE", "SYS")
_SUBJECT = "GPU and RDMA card"


class Topology(NamedTuple):
    """Ways between devices."""

    cards: Mapping[tuple[str, str], str]
    """(GPU, card) → ``PIX``, ``PXB``, ``PHB``, ``NODE`` or ``SYS``; GPUs are called ``0``, ``1``."""
    gpus: Mapping[tuple[str, str], str]
    """(GPU, GPU) → ``NV18``, ``XGMI``, ``PCIE`` and the like."""


def nvidia(text: str) -> Topology:
    """Of ``nvidia-smi topo -m``; cards are called as RDMA calls them."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if re.match(r"\s*GPU0\b", line)), None)
    if start is None:
        return Topology({}, {})
    columns = re.findall(r"GPU\d+|NIC\d+|[a-z]\w*_\w+", lines[start])
    legend = dict(re.findall(r"^\s*(NIC\d+):\s*(\S+)", text, re.MULTILINE))
    cards: dict[tuple[str, str], str] = {}
    gpus: dict[tuple[str, str], str] = {}
    for line in lines[start + 1 :]:
        row = re.match(r"\s*GPU(\d+)\s+(.*)", line)
        if row is None:
            continue
        for column, way in zip(columns, row[2].split(), strict=False):
            if column.startswith("GPU"):
                gpus[row[1], column[3:]] = way
            elif way in _WAYS:
                cards[row[1], legend.get(column, column)] = way
    return Topology(cards, gpus)


def rocm(text: str) -> Topology:
    """Of ``rocm-smi --showtopo``, which knows GPUs only."""
    gpus: dict[tuple[str, str], str] = {}
    _, found, rest = text.partition("Link Type between two GPUs")
    if found:
        for line in rest.splitlines()[1:]:
            row = re.match(r"\s*GPU(\d+)\s+(.*)", line)
            if row is not None and re.match(r"[A-Z0-9]", row[2]) and "GPU" not in row[2]:
                gpus |= {(row[1], str(i)): way for i, way in enumerate(row[2].split())}
            elif "====" in line:
                break
    return Topology({}, {pair: way for pair, way in gpus.items() if pair[0] != pair[1]})


def look(sight: Sight) -> tuple[Topology | None, list[Finding]]:
    """The topology of this host; ``None`` where no tool tells it. Blocks while a tool runs."""
    for tool, arguments, read in (
        ("nvidia-smi", ("topo", "-m"), nvidia),
        ("rocm-smi", ("--showtopo",), rocm),
    ):
        answer = tools.asked(sight, tool, *arguments)
        if answer is None:
            continue
        if answer.trouble is not None:
            trouble = warning(
                "GPU topology",
                answer.trouble,
                f"see {tool}; is the GPU's driver loaded?",
                of_host=True,
            )
            return None, [trouble]
        return read(answer.text), []
    return None, []


def advice(topology: Topology, device: str, cards: Sequence[str]) -> Iterator[Finding]:
    """Where the pool is best.

    Args:
        device: where it is: ``cpu``, ``cuda`` or ``cuda:1``.
        cards: the RDMA cards in use; all of them where it is empty.
    """
    ways = {pair: way for pair, way in topology.cards.items() if not cards or pair[1] in cards}
    if not ways:
        return
    if device == "cpu":
        yield ok(
            _SUBJECT, f"the pool is on the host, which is fast from every card ({_told(ways)})"
        )
        return
    gpu = device.partition(":")[2] or "0"
    mine = {pair: way for pair, way in ways.items() if pair[0] == gpu}
    if not mine:
        return
    near = sorted(card for (_, card), way in mine.items() if way in DIRECT)
    far = {card: way for (_, card), way in mine.items() if way not in DIRECT}
    if not far:
        yield ok(_SUBJECT, f"memory_pool_device {device} is right: {_told(mine)}")
        return
    elsewhere = sorted(
        card for (own, card), way in topology.cards.items() if own == gpu and way in DIRECT
    )
    choice = near or elsewhere
    remedy = "memory_pool_device: cpu"
    if choice:
        remedy = f"device_name: {','.join(choice)}, which is behind the same PCIe switch (PIX), or {remedy}"
    told = ", ".join(f"{card} by {way}" for card, way in sorted(far.items()))
    yield warning(
        _SUBJECT,
        f"the pool is on {device}, and it reaches {told}: not behind one PCIe switch (PIX), so a card reads the GPU's "
        "memory slower than pinned memory of the host",
        remedy,
    )


def between(topology: Topology, way: str) -> bool:
    """Whether every two GPUs are joined that way, such as ``XGMI``."""
    return bool(topology.gpus) and set(topology.gpus.values()) == {way}


def _told(ways: Mapping[tuple[str, str], str]) -> str:
    return ", ".join(
        f"GPU {gpu} and {card}: {way}" for (gpu, card), way in sorted(ways.items())[:4]
    ) + (f" and {len(ways) - 4} more" if len(ways) > 4 else "")
