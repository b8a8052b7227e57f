"""``omni-async demo``: three stages turn a recording into hidden states, codes and sound again.

In: options of the command line. Out: WAV files, a table or JSON, an exit status.
Never: imports torch in its own process.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import json
import sys
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from omni_async import BackendUnavailable

if TYPE_CHECKING:
    from ..servers import Server

NAME = "demo"
HELP = "three stages turn a recording into hidden states, codec frames and sound again"

MOST_REQUESTS = 1000


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.description = (
        "Starts a process for each stage of the deploy file: Thinker (sound to hidden states), "
        "Talker (to codes of 16 codebooks), Code2Wav (to sound). Stages joined by a "
        "MemoryConnector share one. All requests stream from stage to stage; then the same again "
        "without streaming. Then computes the same without any transport and compares the files "
        "byte by byte."
    )
    parser.add_argument(
        "--input", type=Path, metavar="FILE.wav", help="the recording; default: one that is shipped"
    )
    parser.add_argument(
        "--deploy", type=Path, metavar="FILE", help="a deploy file with three stages in a row"
    )
    parser.add_argument(
        "--backend",
        metavar="NAME",
        help="what every edge goes over, such as mooncake; a store's server is started for it; default: what "
        "the deploy file says",
    )
    parser.add_argument(
        "--requests", type=_count, default=1, metavar="N", help="how many at once (default 1)"
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("demo-out"),
        metavar="DIR",
        help="where the WAV files go (default demo-out)",
    )
    parser.add_argument(
        "--no-compare",
        action="store_true",
        help="leave out the run without streaming that is compared with",
    )


def run(args: argparse.Namespace) -> int:
    """Run it; 0 when every file is identical, 130 after Ctrl-C."""
    if importlib.util.find_spec("torch") is None:
        raise BackendUnavailable(
            "the demo needs torch: pip install 'omni-async[demo]'",
            remedy="pip install 'omni-async[demo]'",
        )
    return asyncio.run(_run(args))


async def _run(args: argparse.Namespace) -> int:
    from ..free_ports import FreePorts
    from .audio import sample_recording
    from .served import server_of
    from .supervisor import Options, Run, cancelled_by_signals
    from .table import ProgressLine, report

    line = ProgressLine(shown=not args.json)
    options = Options(
        recording=args.input or sample_recording(),
        deploy=args.deploy or default_deploy(),
        requests=args.requests,
        output=args.output,
        compare=not args.no_compare,
        backend=args.backend,
    )
    with (
        FreePorts() as ports,
        closing(server_of(args.backend)) as server,
        cancelled_by_signals() as signalled,
    ):
        try:
            result = await Run(options, line, ports, server).result()
        except asyncio.CancelledError:
            number = signalled()
            if number is None:
                raise
            line.clear()
            print("ended: all processes are gone", file=sys.stderr)
            return 128 + number
        finally:
            line.clear()
    print(json.dumps(result.as_dict()) if args.json else report(result))
    return 0 if result.ok else 1


@contextlib.contextmanager
def closing(server: Server | None) -> Iterator[Server | None]:
    """The server, closed in the end."""
    try:
        yield server
    finally:
        if server is not None:
            server.close()


def default_deploy() -> Path:
    """The deploy file that ships with the package."""
    return Path(str(resources.files(__name__) / "demo.yaml"))


def _count(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if not 1 <= number <= MOST_REQUESTS:
        raise argparse.ArgumentTypeError(f"a number from 1 to {MOST_REQUESTS}, not {text!r}")
    return number
