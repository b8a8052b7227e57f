"""``omni-async``: the command line.

In: arguments. Out: a report for people or one JSON object on standard output, an exit status.
Never: does the work of a command, prints a traceback for an error that says it all.

A command is a module with ``NAME``, ``HELP``, ``configure(parser)`` and ``run(args) -> status``.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import Protocol

from omni_async import OmniAsyncError, __version__

from . import bench, config, demo, doctor
from .usage import Parser, Refused, wants_json


class Command(Protocol):
    """What a module of a command holds."""

    @property
    def NAME(self) -> str: ...

    @property
    def HELP(self) -> str: ...

    def configure(self, parser: argparse.ArgumentParser, /) -> None: ...

    def run(self, args: argparse.Namespace, /) -> int: ...


COMMANDS: tuple[Command, ...] = (demo, doctor, config, bench)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; 0 only when what was asked for holds.

    Raises:
        SystemExit: 2 when the arguments are wrong, 0 after ``--help`` and ``--version``.
    """
    argv = sys.argv[1:] if argv is None else argv
    parser = Parser(prog="omni-async", description="Asyncio-native transports between stages.")
    parser.add_argument("--version", action="version", version=f"omni-async {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in COMMANDS:
        sub = commands.add_parser(command.NAME, help=command.HELP)
        command.configure(sub)
        sub.add_argument("--json", action="store_true", help="one JSON object on standard output")
        sub.set_defaults(run=command.run, usage=sub.format_usage())
    name, usage = "", ""
    try:
        args = parser.parse_args(argv)
        name, usage = f" {args.command}", args.usage
        status = int(args.run(args))
        sys.stdout.flush()
        return status
    except Refused as error:
        if wants_json(argv):
            print(json.dumps(failure(error)))
        print(f"{error.usage or usage}omni-async{name}: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except OmniAsyncError as error:
        if wants_json(argv):
            print(json.dumps(failure(error)))
        print(f"omni-async{name}: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # whoever read it has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        return 130


def failure(error: OmniAsyncError | Refused) -> dict[str, object]:
    """An error as JSON."""
    kind = "UsageError" if isinstance(error, Refused) else type(error).__name__
    return {"ok": False, "error": {"type": kind, "text": str(error)}}


if __name__ == "__main__":
    sys.exit(main())
