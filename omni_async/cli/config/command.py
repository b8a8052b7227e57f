"""The command: reads, shows, tells what is wrong.

In: arguments. Out: a drawing and a listing, or one JSON object; an exit status.
Never: opens anything of what the file describes.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from functools import partial
from pathlib import Path

from omni_async import ConfigError, Deploy, UsageError, load_deploy

from ..usage import Refused
from .graph import graph, legend
from .layout import layout
from .listing import listing
from .meaning import errors, meaning
from .svg import svg
from .terminal import drawn, glyphs_for, listed
from .text import spelled

NAME = "config"
HELP = "what a deploy file means, or all that is wrong with it"

UNKNOWN_WIDTH = 100
"""Columns where nothing tells how wide the terminal is."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.description = (
        "Draws the pipeline of a deploy file and lists every value in force with where it came "
        "from: the file, a base of it, a platform's section, the environment, or a default. Of a "
        "file that is wrong, tells every mistake with its path and line."
    )
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE", help="a deploy YAML or JSON")
    parser.add_argument("--stage", metavar="N", help="this stage alone, with its neighbours")
    parser.add_argument("--platform", metavar="NAME", help="apply this section of 'platforms'")
    parser.add_argument("--svg", type=Path, metavar="OUT.svg", help="write the drawing as SVG too")
    parser.add_argument(
        "--schema", action="store_true", help="print the JSON Schema of deploy files, for editors"
    )


def run(args: argparse.Namespace) -> int:
    """Show it; 0 when the file is right.

    Raises:
        Refused: no file was named, the stage is not in it, the SVG cannot be written.
    """
    if args.schema:
        from omni_async.deploy.schema import json_schema

        print(json.dumps(json_schema(), indent=2))
        return 0
    if args.file is None:
        raise Refused("FILE is missing; only --schema does without")
    encoding = sys.stdout.encoding or "utf-8"
    try:
        deploy = load_deploy(args.file, platform=args.platform)
        stage = None if args.stage is None else deploy.stage(args.stage).id
        if args.json:
            text = json.dumps({"ok": True, **meaning(deploy, stage)})
        else:
            width = shutil.get_terminal_size((UNKNOWN_WIDTH, 24)).columns
            text = "\n".join(page(deploy, stage, width, encoding))
        if args.svg is not None:
            _write(args.svg, figure(deploy, stage))
    except UsageError as error:
        raise Refused(str(error)) from None
    except ConfigError as error:
        if args.json:
            print(json.dumps(errors(error, str(args.file))))
        print(f"omni-async config: {error}", file=sys.stderr)
        return 1
    print(text)
    return 0


def page(deploy: Deploy, stage: str | None, width: int, encoding: str) -> list[str]:
    """All that a person is shown: a heading, the drawing, what it means, the listing."""
    spell = partial(spelled, encoding=encoding)
    shown, glyphs = graph(deploy, spell, stage), glyphs_for(encoding)
    stages, edges = _count(len(deploy.stages), "stage"), _count(len(deploy.wires), "edge")
    on = f" on platform {deploy.platform}" if deploy.platform is not None else ""
    lines = [f"{deploy.source}{on}: {stages}, {edges}", ""]
    drawing = drawn(shown.nodes, shown.arrows, glyphs, width)
    if drawing is None:
        drawing = listed(shown.nodes, shown.arrows, glyphs, width)
        lines += [f"(does not fit {width} columns as a graph; --svg draws it)", ""]
    lines += [*drawing, ""]
    explained = legend(shown, f"{glyphs.back} {glyphs.up}")
    lines += [*explained, ""] if explained else []
    lines += listing(deploy, width, stage)
    return [spell(line) for line in lines]


def figure(deploy: Deploy, stage: str | None) -> str:
    """The SVG file."""
    shown = graph(deploy, spelled, stage)
    picture = layout(shown.nodes, shown.arrows)
    assert picture is not None  # no limit, no failure
    tips = [f"{arrow.start} → {arrow.end}: {shown.backends[arrow.kind]}" for arrow in shown.arrows]
    stages, edges = _count(len(shown.nodes), "stage"), _count(len(shown.arrows), "edge")
    name = Path(deploy.source).name
    return svg(
        picture,
        title=spelled(name if stage is None else f"{name}, stage {stage}"),
        description=spelled(". ".join([f"{stages}, {edges}", *tips])),
        legend=list(map(spelled, legend(shown, "dashed"))),
        tips=list(map(spelled, tips)),
    )


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Refused(f"{path} cannot be written ({error.strerror})") from error


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number != 1 else ''}"
