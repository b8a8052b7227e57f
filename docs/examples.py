"""Runs the code blocks of README and docs: `python -m pytest -p docs.examples README.md docs`.

In: Markdown. Out: one test for each block that can run.
Never: runs a block marked `sh`: such a command installs something or leaves the page's folder.

=====================  ====================================================================
block                  what is done with it
=====================  ====================================================================
`python`               executed; the blocks of a page share one namespace and one folder
any with a `:caption:` written into the page's folder under that name
`console`              lines after `$ ` are executed there; what follows is their output,
                       `...` stands for anything
=====================  ====================================================================
"""

from __future__ import annotations

import doctest
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sybil import Document, Example, Region, Sybil
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.myst import CodeBlockParser

ROOT = Path(__file__).parents[1]
COMMAND_LIMIT = 60.0

# Commands of this environment, for blocks of either kind.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])

run_python = PythonEvaluator()


class Blocks:
    """Parser of all fenced blocks in one language."""

    def __init__(self, language: str) -> None:
        self._parse = CodeBlockParser(language, self._evaluate)

    def __call__(self, document: Document) -> Iterable[Region]:
        for region in self._parse(document):
            named = "caption" in region.lexemes.get("options", {})
            if named or self._parse.language in {"python", "console"}:
                yield region

    def _evaluate(self, example: Example) -> None:
        caption = example.region.lexemes.get("options", {}).get("caption")
        if caption:
            Path(caption).write_text(str(example.parsed))
        elif self._parse.language == "console":
            for command, output in commands(str(example.parsed)):
                check_command(command, output)
        else:
            try:
                run_python(example)
            except Exception:  # noqa: BLE001 - any failure of an example is a failed test
                # Plain text, since Sybil cannot show an exception that has another behind it.
                raise AssertionError(traceback.format_exc()) from None


def commands(block: str) -> list[tuple[str, str]]:
    """Each command of a console block with the output that the page shows for it."""
    found: list[tuple[str, str]] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], ""))
        elif found and found[-1][0].endswith("\\"):
            found[-1] = (f"{found[-1][0]}\n{line.removeprefix('> ')}", "")
        else:
            found[-1] = (found[-1][0], f"{found[-1][1]}{line}\n")
    return found


def check_command(command: str, output: str) -> None:
    """Run it; it must succeed and print what the page shows, if the page shows anything."""
    done = subprocess.run(
        ["bash", "-euc", command],
        capture_output=True,
        text=True,
        timeout=COMMAND_LIMIT,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    matches = doctest.OutputChecker().check_output
    assert not output or matches(output, done.stdout, doctest.ELLIPSIS), (
        f"{command}\nshown:\n{output}\nprinted:\n{done.stdout}{done.stderr}"
    )


def enter_folder(namespace: dict[str, Any]) -> None:
    namespace["_home"] = os.getcwd()
    namespace["_folder"] = tempfile.TemporaryDirectory(prefix="omni-async-docs-")
    os.chdir(namespace["_folder"].name)


def leave_folder(namespace: dict[str, Any]) -> None:
    os.chdir(namespace["_home"])
    namespace["_folder"].cleanup()


pytest_collect_file = Sybil(
    parsers=[Blocks("python"), Blocks("console"), Blocks("yaml"), Blocks("text")],
    path=str(ROOT),
    patterns=["README.md", "docs/**/*.md"],
    setup=enter_folder,
    teardown=leave_folder,
).pytest()
