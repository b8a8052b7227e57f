"""``bench kv``: KV caches from process to process, against one write of the same bytes, and beside the model's compute.

In: backends, rounds. Out: times of a cache that is fetched at once, times of layers that are sent while more are
computed, goals. Never: measures ways one after the other; each round takes all of them once.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from ...errors import BackendUnavailable
from ..free_ports import FreePorts
from ..on_this_host import check_here
from .figures import Goal, Summary, duration, machine, summary, table
from .kv_blocks import BLOCKS, CONTIGUOUS, LAYER_BLOCKS, LAYERS, RUNS, SHUFFLED, layout_of
from .payload import size_name
from .workers import Worker, Workers

CONNECTORS = {
    "mooncake": "MooncakeTransferEngineConnector",
    "nixl": "NixlConnector",
    "shm": "SharedMemoryConnector",
}
MAPPED = frozenset({"shm"})
"""Whose consumers copy out of the producer's memory: one plain copy is what they are held against."""
ALL = "all"

LAYER_SECONDS = 0.002
"""What a layer's compute takes."""
OVERLAPS = 4
"""Requests of each kind in a round that are sent while they are computed."""

TIMES_ONE_WRITE = 1.3
LAYERS_LATE = 3
"""Layers whose compute would take as long as the last one may take to land."""


class Way(NamedTuple):
    """One line of the table of caches that are fetched at once.

    Those that are gathered have processes of their own: a connection remembers how fast the one before it was taken
    (TCP's congestion control, BBR most of all), and what is copied at its end is taken at half the pace.
    """

    name: str
    table: str = CONTIGUOUS
    apart: bool = False
    ranks: int = 1

    @property
    def pair(self) -> tuple[int, bool]:
        """By whom it is gone: ranks of the consumer, and whether they gather."""
        return self.ranks, self.table == SHUFFLED


ONE_WRITE = Way("one write of as many bytes (shm: one memcpy)")
READ_RUNS = Way("runs of 64 blocks", RUNS)
READ_SHUFFLED = Way("shuffled blocks", SHUFFLED)
READ_APART = Way("shuffled blocks, a piece each", SHUFFLED, apart=True)
READ_SPLIT = Way("runs of 64 blocks, heads split to 2 ranks", RUNS, ranks=2)
WAYS = (ONE_WRITE, Way("contiguous blocks"), READ_RUNS, READ_SHUFFLED, READ_APART, READ_SPLIT)

EACH, AT_END = "layer by layer", "all after the last"


class Pair:
    """A producer and the ranks of one consumer."""

    def __init__(self, producer: Worker, consumers: Sequence[Worker], blocks: int) -> None:
        self._producer = producer
        self._consumers = consumers
        self._blocks = blocks
        self._last = 0

    def _request(self) -> str:
        self._last += 1
        return f"request-{self._last}"

    def fetched(self, way: Way) -> int:
        """Nanoseconds from asking for a cache that is there until all ranks have it."""
        what = {"request": self._request(), "table": way.table, "count": self._blocks}
        _told(self._producer, "offer", **what, apart=way.apart)
        for consumer in self._consumers:
            consumer.ask({"do": "fetch", **what})
        moments = [consumer.answer() for consumer in self._consumers]
        _told(self._producer, "delivered")
        first = min(moment["start"] for moment in moments)
        last: int = max(moment["end"] for moment in moments) - first
        return last

    def one_write(self, nbytes: int, *, mapped: bool) -> int:
        """Nanoseconds of the engine's write of as many bytes, or of a plain copy."""
        [consumer] = self._consumers
        if mapped:
            return int(_told(consumer, "memcpy", nbytes=nbytes)["nanoseconds"])
        took: int = _told(self._producer, "one_write", nbytes=nbytes)["nanoseconds"]
        _told(consumer, "check_one_write", nbytes=nbytes)
        return took

    def late(self, *, each: bool) -> list[int]:
        """Nanoseconds from the end of a layer's compute until it is in place, of each layer."""
        [consumer] = self._consumers
        what = {"request": self._request(), "table": RUNS, "count": LAYER_BLOCKS}
        self._producer.ask({"do": "compute", **what, "seconds": LAYER_SECONDS, "each": each})
        consumer.ask({"do": "take", **what})
        landed, ends = consumer.answer()["landed"], self._producer.answer()["ends"]
        return [there - end for there, end in zip(landed, ends, strict=True)]


def _told(worker: Worker, do: str, **step: Any) -> dict[str, Any]:
    worker.ask({"do": do, **step})
    answer: dict[str, Any] = worker.answer()
    return answer


def run(
    backends: Sequence[str] = (ALL,),
    *,
    rounds: int = 5,
    scale: float = 1.0,
    form: str = "stacked",
) -> dict[str, Any]:
    """Measure; see :func:`report`.

    Args:
        backends: of :data:`CONNECTORS`. With :data:`ALL` those that cannot run here are left out.
        rounds: of which each takes every way once.
        scale: factor on the blocks of the cache that is fetched at once.
        form: of the caches, one of :data:`FORMS`.

    Raises:
        BackendUnavailable: one that was named cannot run here, or none can.
        WorkerFailed: a process ended, hung, or found wrong bytes.
    """
    before = machine()
    blocks = max(2, round(BLOCKS * scale))
    chosen, missing = _here(backends)
    results = [_measured(backend, blocks, form, rounds) for backend in chosen]
    return {
        "benchmark": "kv",
        "machine": before,
        "rounds": rounds,
        "layers": LAYERS,
        "blocks": blocks,
        "form": form,
        "nbytes": _nbytes(blocks),
        "layer_nbytes": _nbytes(LAYER_BLOCKS) // LAYERS,
        "layer_ms": LAYER_SECONDS * 1e3,
        "missing": missing,
        "rows": [row for result in results for row in result["rows"]],
        "overlap": [row for result in results for row in result["overlap"]],
        "goals": [goal.as_dict() for result in results for goal in result["goals"]],
    }


def _nbytes(blocks: int) -> int:
    return LAYERS * blocks * layout_of(blocks).block_nbytes


def _here(backends: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Those that can be measured, and why others cannot."""
    named = [backend for backend in CONNECTORS if backend in backends]
    if named:
        for backend in named:
            asyncio.run(check_here(CONNECTORS[backend]))
        return named, {}
    missing: dict[str, str] = {}
    for backend, connector in CONNECTORS.items():
        try:
            asyncio.run(check_here(connector))
        except BackendUnavailable as error:
            missing[backend] = str(error)
    if len(missing) == len(CONNECTORS):
        raise BackendUnavailable("; ".join(missing.values()))
    return [backend for backend in CONNECTORS if backend not in missing], missing


def _measured(backend: str, blocks: int, form: str, rounds: int) -> dict[str, Any]:
    mapped = backend in MAPPED
    ways = [way for way in WAYS if not (mapped and way.apart)]
    took: dict[Way, list[int]] = {way: [] for way in ways}
    late: dict[str, list[list[int]]] = {EACH: [], AT_END: []}
    with ExitStack() as stack:
        pairs = {
            pair: stack.enter_context(_open(backend, blocks, form, number, pair[0]))
            for number, pair in enumerate(dict.fromkeys(way.pair for way in ways))
        }
        whole = pairs[ONE_WRITE.pair]
        # The first round meets fresh pages and peers; it is not counted.
        for number in range(-1, rounds):
            for way in reversed(ways):  # who writes has to have met the other first
                if way is ONE_WRITE:
                    nanoseconds = whole.one_write(_nbytes(blocks), mapped=mapped)
                else:
                    nanoseconds = pairs[way.pair].fetched(way)
                if number >= 0:
                    took[way].append(nanoseconds)
            for _ in range(OVERLAPS if number >= 0 else 1):
                for kind, layers in late.items():
                    found = whole.late(each=kind == EACH)
                    if number >= 0:
                        layers.append(found)
    times = {way: summary(series) for way, series in took.items()}
    last = {kind: summary([layers[-1] for layers in found]) for kind, found in late.items()}
    return {
        "rows": [
            {
                "backend": backend,
                "way": way.name,
                **figures.as_dict(),
                "times_one_write": figures.median / times[ONE_WRITE].median,
            }
            for way, figures in times.items()
        ],
        "overlap": [
            {
                "backend": backend,
                "told": kind,
                **last[kind].as_dict(),
                "every_layer": summary([one for layers in found for one in layers]).as_dict(),
            }
            for kind, found in late.items()
        ],
        "goals": _goals(backend, size_name(_nbytes(blocks)), times, last),
    }


@contextmanager
def _open(backend: str, blocks: int, form: str, number: int, ranks: int) -> Iterator[Pair]:
    job = {
        "program": "sides.kv",
        "connector": CONNECTORS[backend],
        "namespace": f"bench-kv-{os.getpid()}-{backend}-{number}",
        "blocks": blocks,
        "form": form,
    }
    with FreePorts() as ports, Workers() as workers:
        job["port"] = ports.of(backend)
        producer = workers.start({**job, "role": "producer"})
        consumers = [
            workers.start({**job, "role": "consumer", "tp_size": ranks, "rank": rank})
            for rank in range(ranks)
        ]
        for worker in (producer, *consumers):
            worker.answer()
        yield Pair(producer, consumers, blocks)


def _goals(
    backend: str, size: str, times: dict[Way, Summary], last: dict[str, Summary]
) -> list[Goal]:
    against = "one memcpy" if backend in MAPPED else "one write"
    ours, other = times[READ_RUNS], times[ONE_WRITE]
    what = f"{backend}: {size} in runs of 64 blocks against {against}"
    goals = [
        Goal(f"{what}, medians", "at most", TIMES_ONE_WRITE, ours.median / other.median, "times"),
        Goal(f"{what}, best times", "at most", TIMES_ONE_WRITE, ours.best / other.best, "times"),
    ]
    if READ_APART in times:
        faster = times[READ_APART].median / times[READ_SHUFFLED].median
        what = f"{backend}: shuffled blocks, gathered faster than with a piece each"
        goals.append(Goal(what, "at least", 1, faster, "times"))
    limit = LAYERS_LATE * LAYER_SECONDS * 1e3
    what = f"{backend}: the last layer lands after its compute, median"
    goals += [
        Goal(what, "at most", limit, last[EACH].median / 1e3, "ms"),
        Goal(
            f"{what}, against all after the last",
            "at most",
            1,
            last[EACH].median / last[AT_END].median,
            "times",
        ),
    ]
    return goals


def report(result: dict[str, Any]) -> str:
    """The result for people."""
    backends = list(dict.fromkeys(row["backend"] for row in result["rows"]))
    found = {(row["way"], row["backend"]): row for row in result["rows"]}

    def cell(way: Way, backend: str) -> str:
        row = found.get((way.name, backend))
        if row is None:
            return "-"
        times = f"{duration(row['median_us'])} / {duration(row['min_us'])}"
        return times if way is ONE_WRITE else f"{times}  {row['times_one_write']:4.2f}x"

    size = size_name(result["nbytes"])
    rows = [[way.name, *(cell(way, backend) for backend in backends)] for way in WAYS]
    header = [f"{size} at once, median / best, times one write", *backends]
    lines = [table(header, rows), ""]
    late = {(row["told"], row["backend"]): row for row in result["overlap"]}
    rows = [
        [
            kind,
            *(
                f"{duration(late[kind, backend]['median_us'])} / "
                f"{duration(late[kind, backend]['max_us'])}"
                for backend in backends
            ),
        ]
        for kind in (EACH, AT_END)
    ]
    rows.append(
        [
            "layer by layer, every layer",
            *(
                f"{duration(late[EACH, backend]['every_layer']['median_us'])} / "
                f"{duration(late[EACH, backend]['every_layer']['max_us'])}"
                for backend in backends
            ),
        ]
    )
    lines.append(table(["the last layer lands after its compute, median / worst", *backends], rows))
    lines += [f"{backend} is not here: {why}" for backend, why in result["missing"].items()]
    return "\n".join(lines)


def first_line(result: dict[str, Any]) -> str:
    return (
        f"KV caches of {result['layers']} layers: {size_name(result['nbytes'])} in "
        f"{result['blocks']} blocks ({result['form']}) fetched at once; {size_name(result['layer_nbytes'])} a layer "
        f"sent while each is computed for {result['layer_ms']:g} ms"
    )
