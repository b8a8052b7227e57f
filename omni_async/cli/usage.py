"""Wrong arguments: told once, in the same way by every command.

In: arguments that argparse or a command does not take. Out: an exception that :mod:`.main` tells.
Never: prints, exits.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NoReturn


class Refused(Exception):
    """The arguments are wrong; ``usage`` is how they should be, where that is known."""

    def __init__(self, text: str, usage: str = "") -> None:
        super().__init__(text)
        self.usage = usage


class Parser(argparse.ArgumentParser):
    """A parser that leaves it to its caller to tell what is wrong."""

    def error(self, message: str) -> NoReturn:
        raise Refused(message, self.format_usage())


def wants_json(argv: Sequence[str]) -> bool:
    """Whether the arguments ask for JSON, as far as can be told of wrong ones."""
    options = argv[: argv.index("--")] if "--" in argv else argv
    return any("--json".startswith(option) and len(option) > 2 for option in options)
