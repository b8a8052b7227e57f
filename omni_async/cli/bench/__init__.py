"""``omni-async bench``: what this library does here, in figures.

In: the name of a benchmark and its options. Out: a table or one JSON object, and goals beside what was measured.
Never: fails because a goal was missed, unless ``--check`` was given.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from typing import Any

from .figures import Goal
from .kv import ALL as ALL_OF_KV
from .kv import CONNECTORS as KV_CONNECTORS
from .kv_blocks import FORMS
from .mooncake import MODES as MOONCAKE_MODES
from .mooncake import NO_STREAMS
from .payload import SIZES, parse_size
from .peer import PeerUnavailable
from .stores import PARTS
from .streams import MODES
from .workers import WorkerFailed

STORES = {"mooncake-store": "Mooncake's store", "yuanrong": "Yuanrong's datasystem"}

NAME = "bench"
HELP = "measure here: against the peer, under load, waiting"


def configure(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    names = parser.add_subparsers(dest="benchmark", required=True, metavar="BENCHMARK")

    shm = names.add_parser("shm", help="one-way times against the peer's shared-memory connector")
    shm.add_argument("--floor", action="store_true", help="measure a bare arena as well")

    nixl = names.add_parser("nixl", help="the same over NIXL, by the way that UCX finds")

    mooncake = names.add_parser(
        "mooncake",
        help="the same over Mooncake's Transfer Engine and TCP, with its own best beside it",
    )
    mooncake.add_argument(
        "--modes",
        type=_modes_or_none,
        default=list(MOONCAKE_MODES),
        metavar="MODE,…",
        help=f"streams, of {', '.join(MODES)}, or none (default: {','.join(MOONCAKE_MODES)})",
    )
    stores = [
        names.add_parser(name, help=f"one-way times, gaps of the loop and waiting gets over {what}")
        for name, what in STORES.items()
    ]
    for name in stores:
        name.add_argument(
            "--parts",
            type=_parts,
            default=list(PARTS),
            metavar="PART,…",
            help=f"of {', '.join(PARTS)} (default: all)",
        )
    for name in (shm, nixl, mooncake, *stores):
        name.add_argument(
            "--sizes",
            type=_sizes,
            default=list(SIZES.values()),
            metavar="SIZE,…",
            help="payload sizes, such as 4K,1M,186M (default: %(metavar)s of 4K to 186M)",
        )
        name.add_argument(
            "--rounds", type=_positive, default=5, help="alternating rounds (default: 5)"
        )
        name.add_argument(
            "--scale", type=float, default=1.0, help="factor on the iterations of a round"
        )
        name.add_argument("--peer", metavar="PATH", help="the peer's wheel, or the folder it is in")
        name.add_argument(
            "--pin",
            action="store_true",
            help="each process on a core of its own, on a busy machine",
        )

    streams = names.add_parser("streams", help="chunk streams against the peer's chunk adapter")
    streams.add_argument(
        "--modes",
        type=_modes,
        default=list(MODES),
        metavar="MODE,…",
        help=f"of {', '.join(MODES)} (default: all)",
    )
    streams.add_argument(
        "--rounds", type=_positive, default=3, help="alternating rounds (default: 3)"
    )
    streams.add_argument(
        "--scale", type=float, default=1.0, help="factor on the number of streams and on idle time"
    )
    streams.add_argument("--peer", metavar="PATH", help="the peer's wheel, or the folder it is in")

    kv = names.add_parser(
        "kv",
        help="KV caches against one write of as many bytes, and beside the model's compute",
    )
    kv.add_argument(
        "--backend",
        choices=(*KV_CONNECTORS, ALL_OF_KV),
        default=ALL_OF_KV,
        help="(default: all that can run here)",
    )
    kv.add_argument("--rounds", type=_positive, default=5, help="alternating rounds (default: 5)")
    kv.add_argument(
        "--scale", type=float, default=1.0, help="factor on the blocks that are fetched at once"
    )
    kv.add_argument(
        "--form",
        choices=tuple(FORMS),
        default="stacked",
        help="keys of all blocks and then their values, or those of a block together (default: stacked)",
    )

    ticker = names.add_parser("ticker", help="event-loop gaps while large payloads move both ways")
    ticker.add_argument("--size", type=parse_size, default=SIZES["186M"], help="(default: 186M)")
    ticker.add_argument("--seconds", type=float, default=3.0, help="of a phase (default: 3)")
    ticker.add_argument(
        "--rounds", type=_positive, default=4, help="alternating rounds (default: 4)"
    )

    parked = names.add_parser("parked", help="cost and wake-up time of gets that wait")
    parked.add_argument(
        "--count", type=_positive, default=10_000, help="waiting gets (default: 10000)"
    )
    parked.add_argument("--seconds", type=float, default=10.0, help="of idling (default: 10)")

    load = names.add_parser("load", help="time to read and check a deploy file")
    load.add_argument("--stages", type=_positive, default=12, help="(default: 12)")

    for name in (shm, nixl, mooncake, *stores, streams, ticker):
        name.add_argument(
            "--loop",
            choices=("asyncio", "uvloop", "both"),
            default="both",
            help="event loops to try (default: both, where uvloop is installed)",
        )
    for name in (shm, nixl, mooncake, *stores, streams, kv, ticker, parked, load):
        name.add_argument(
            "--json",
            action="store_true",
            default=argparse.SUPPRESS,  # it may stand before the benchmark's name as well
            help="one JSON object on standard output",
        )
        name.add_argument("--check", action="store_true", help="exit with 1 when a goal was missed")


def run(arguments: argparse.Namespace) -> int:
    """Run the benchmark that ``arguments`` names; the exit code."""
    if importlib.util.find_spec("torch") is None:
        print("the benchmarks move tensors: pip install 'omni-async[torch]'", file=sys.stderr)
        return 2
    try:
        result, words = _measure(arguments)
    except (PeerUnavailable, WorkerFailed) as error:
        print(f"bench {arguments.benchmark}: {error}", file=sys.stderr)
        return 1
    goals = [Goal(**{name: goal[name] for name in Goal._fields}) for goal in result["goals"]]
    if arguments.json:
        print(json.dumps(result))
    else:
        print(words)
        print("\n".join(["", *map(str, goals)]))
    return int(arguments.check and not all(goal.met for goal in goals))


def _loops(choice: str) -> tuple[str, ...]:
    if choice == "both":
        uvloop = importlib.util.find_spec("uvloop") is not None
        return ("asyncio", "uvloop") if uvloop else ("asyncio",)
    return (choice,)


def _beside_a_peer(arguments: argparse.Namespace) -> dict[str, Any]:
    """What the benchmarks with a peer have in common."""
    return {
        "rounds": arguments.rounds,
        "scale": arguments.scale,
        "peer": arguments.peer,
        "loops": _loops(arguments.loop),
    }


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], str]:
    from . import (
        compare,
        contest,
        kv,
        load,
        mooncake,
        parked,
        stores,
        stream_figures,
        streams,
        ticker,
    )

    figures: Any
    if arguments.benchmark in ("shm", "nixl"):
        shm = arguments.benchmark == "shm"
        figures, result = (
            compare,
            compare.run(
                contest.SHM if shm else contest.NIXL,
                arguments.sizes,
                floor=shm and arguments.floor,
                pin=arguments.pin,
                **_beside_a_peer(arguments),
            ),
        )
    elif arguments.benchmark == "mooncake":
        figures, result = (
            mooncake,
            mooncake.run(
                arguments.sizes,
                arguments.modes,
                pin=arguments.pin,
                **_beside_a_peer(arguments),
            ),
        )
    elif arguments.benchmark in STORES:
        figures, result = (
            stores,
            stores.run(
                contest.STORES[arguments.benchmark],
                arguments.sizes,
                arguments.parts,
                pin=arguments.pin,
                **_beside_a_peer(arguments),
            ),
        )
    elif arguments.benchmark == "streams":
        figures, result = (
            stream_figures,
            streams.run(
                arguments.modes,
                **_beside_a_peer(arguments),
            ),
        )
    elif arguments.benchmark == "kv":
        figures, result = (
            kv,
            kv.run(
                [arguments.backend],
                rounds=arguments.rounds,
                scale=arguments.scale,
                form=arguments.form,
            ),
        )
    elif arguments.benchmark == "ticker":
        figures, result = (
            ticker,
            ticker.run(
                nbytes=arguments.size,
                seconds=arguments.seconds,
                rounds=arguments.rounds,
                loops=_loops(arguments.loop),
            ),
        )
    elif arguments.benchmark == "load":
        figures, result = load, load.run(stages=arguments.stages)
    else:
        figures, result = parked, parked.run(count=arguments.count, seconds=arguments.seconds)
    return result, f"{figures.first_line(result)}\n\n{figures.report(result)}"


def _sizes(text: str) -> list[int]:
    return list(dict.fromkeys(parse_size(part) for part in text.split(",")))


def _modes(text: str) -> list[str]:
    modes = list(dict.fromkeys(text.split(",")))
    if not set(modes) <= set(MODES):
        raise ValueError(text)
    return modes


def _modes_or_none(text: str) -> list[str]:
    return [] if text == NO_STREAMS else _modes(text)


def _parts(text: str) -> list[str]:
    parts = list(dict.fromkeys(text.split(",")))
    if not set(parts) <= set(PARTS):
        raise ValueError(text)
    return parts


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number
