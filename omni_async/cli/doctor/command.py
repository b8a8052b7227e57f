"""The command: asks, waits, reports.

In: arguments. Out: lines or one JSON object; an exit status.
Never: changes anything of this host.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import shutil
import sys
from collections.abc import Awaitable, Sequence
from pathlib import Path

from ... import __version__, registry
from ...abc import Sight
from ...abc.findings import fault, ok
from ...backends.probes import limits
from ...deploy import Deploy, StagePlan, load_deploy
from ...errors import ConfigError, UsageError
from ..config.text import spelled
from ..usage import Refused
from . import questions, room, stages
from .asking import Asking
from .network import Network
from .questions import Subject
from .report import as_lines, as_object, count, settled
from .words import HOST, Job, Told

LIMIT = 60.0
"""Seconds that one backend may take."""
UNKNOWN_WIDTH = 100
UNBROKEN = 1 << 20
"""Columns where nothing tells how wide the terminal is."""
_DEPLOY = "deploy file"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.description = (
        "Looks at packages, devices, links, limits, variables, ports, addresses, services and memory, and "
        "tells of each whether it is as it has to be, and what to do where it is not. Without --deploy and "
        "--backend all backends are looked at, and what is missing for one of them is a warning."
    )
    parser.add_argument(
        "--deploy",
        type=Path,
        metavar="FILE",
        help="what this deploy file's stages need on this host",
    )
    parser.add_argument(
        "--backend",
        action="append",
        default=[],
        metavar="NAME",
        help="this backend; may be repeated",
    )
    parser.add_argument(
        "--stage",
        action="append",
        default=[],
        metavar="N",
        help="(with --deploy) this stage runs here, and others that are not named do not; may be repeated",
    )
    parser.add_argument("--platform", metavar="NAME", help="apply this section of 'platforms'")
    parser.add_argument(
        "--root",
        type=Path,
        default=Path("/"),
        metavar="DIR",
        help="where /dev, /proc and /sys are, such as /proc/PID/root for a container",
    )


def run(args: argparse.Namespace) -> int:
    """Look and tell; 0 when there is no fault.

    Raises:
        Refused: there is no such backend, stage or root.
    """
    names = [_alias(name) for name in args.backend]
    if args.stage and args.deploy is None:
        raise Refused("--stage means a stage of a deploy file: --deploy is missing")
    if not args.root.is_dir():
        raise Refused(f"--root {args.root} is no folder")
    told: list[tuple[Told, bool]] = []
    deploy: Deploy | None = None
    chosen: list[str] = []
    if args.deploy is not None:
        try:
            deploy = load_deploy(args.deploy, platform=args.platform)
            chosen = [deploy.stage(name).id for name in args.stage]
        except UsageError as error:
            raise Refused(str(error)) from None
        except ConfigError as error:
            told += [(one, True) for one in _mistakes(error, args.deploy)]
    if args.deploy is None and not names:
        subjects = list(questions.of_backends(registry.aliases(), asked=False))
    else:
        subjects = list(questions.of_backends(names, asked=True))
    sight = Sight(root=args.root)
    found = asyncio.run(_look(subjects, deploy, chosen, sight))
    order = [_DEPLOY]
    if deploy is not None:
        order += [f"stage {id}" for id in deploy.stages]
        order += [f"edge {wire.name}" for wire in deploy.wires]
    all_told = settled([*found, *told], order)
    source = None if args.deploy is None else str(args.deploy)
    if args.json:
        print(json.dumps(as_object(all_told, source)))
    else:
        # Whoever searches a file or a pipe finds a finding in one line.
        width = shutil.get_terminal_size((UNKNOWN_WIDTH, 24)).columns if _seen() else UNBROKEN
        encoding = sys.stdout.encoding or "utf-8"
        print("\n".join(spelled(line, encoding) for line in as_lines(all_told, width)))
    return 1 if count(all_told, "fault") else 0


def _seen() -> bool:
    """Whether a person reads it in a terminal."""
    return sys.stdout.isatty()


async def _look(
    subjects: Sequence[Subject], deploy: Deploy | None, chosen: Sequence[str], sight: Sight
) -> list[tuple[Told, bool]]:
    told = [(one, True) for one in _host(sight)]
    network = Network()
    try:
        looks: list[Awaitable[list[tuple[Told, bool]]]] = []
        if deploy is not None:
            here, placed = await stages.places(deploy, chosen, network)
            told += [(one, True) for one in placed]
            subjects = [*subjects, *questions.of_stages(here)]
            looks.append(_of_stages(deploy, here, network, sight))
        asking = Asking()
        looks += [_answered(asking, subject, sight) for subject in subjects]
        for found in await asyncio.gather(*looks):
            told += found
    finally:
        network.close()
    return told


async def _of_stages(
    deploy: Deploy, here: Sequence[StagePlan], network: Network, sight: Sight
) -> list[tuple[Told, bool]]:
    memory = [Told(HOST, one) for one in room.findings(here, room.allowance(sight))]
    listening = await stages.listening(deploy, here, network, sight)
    reaching = await stages.reaching(deploy, here, network)
    return [(one, True) for one in (*memory, *listening, *reaching)]


async def _answered(asking: Asking, subject: Subject, sight: Sight) -> list[tuple[Told, bool]]:
    job = Job(subject.backend, str(sight.root), subject.questions, LIMIT)
    return [(Told(subject.about, one), subject.asked) for one in await asking.findings(job)]


def _host(sight: Sight) -> list[Told]:
    """What every backend stands on."""
    there = room.allowance(sight)
    machine = f"Python {platform.python_version()}, {platform.system()} {platform.release()}"
    found = [
        ok("omni_async", f"{__version__} on {machine}, {platform.machine()}"),
        ok("memory", f"{there:,} bytes for this process (physical memory, cgroups, ulimit -v)"),
        limits.descriptors(),
    ]
    return [Told(HOST, one) for one in found]


def _alias(name: str) -> str:
    """The alias of a backend that was named.

    Raises:
        Refused: there is none of that name.
    """
    try:
        connector = registry.canonical(name)
    except ConfigError as error:
        raise Refused(str(error)) from None
    return next((one for one in registry.aliases() if registry.canonical(one) == connector), name)


def _mistakes(error: ConfigError, file: Path) -> list[Told]:
    remedy = f"correct it; omni-async config {file} tells all that a file means"
    texts = [
        f"{one.path}: {one.text}" + (f" (line {one.line})" if one.line else "")
        for one in error.mistakes
    ] or [str(error)]
    return [Told(_DEPLOY, fault("mistake", text, remedy)) for text in texts]
