"""``omni-async doctor``: whether this host has what backends, or a deploy file, need.

One file for each job: the command (`command`), what is asked of which backend (`questions`), a process for
each backend and its end of the line (`asking`, `process`), what a deploy file means on this host (`stages`,
`room`), addresses and ports (`network`), the report (`report`). What a vendor needs its own folder knows:
`Backend.examine`.

The command is imported when it is asked for: the process of a backend, which is begun for each of them, does
without all that reads deploy files.
"""

from __future__ import annotations

import argparse

NAME = "doctor"
HELP = "whether this host has what backends, or a deploy file, need"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    from . import command

    command.configure(parser)


def run(args: argparse.Namespace) -> int:
    """Look and tell; 0 when there is no fault.

    Raises:
        Refused: there is no such backend, stage or root.
    """
    from . import command

    return command.run(args)
