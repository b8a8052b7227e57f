"""Planted mistakes, one in each file and all in one: each is named, and nothing else is.

In the files of ``planted/`` a wrong line ends in ``# WRONG path | what is said of it``.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from omni_async import ConfigError
from omni_async.deploy import load_deploy

FOLDER = Path(__file__).parent / "planted"
SINGLE = sorted(FOLDER.glob("[0-9]*.yaml"))
MARK = re.compile(r"# WRONG ([^|]*) \| (.*)$")


def planted(path: Path) -> list[tuple[int, str, str]]:
    """Line, path and text of every mark of a file."""
    marks = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        found = MARK.search(line)
        if found is not None:
            marks.append((number, found[1].strip(), found[2]))
    return marks


def refused(path: Path) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load_deploy(path)
    return caught.value


def test_there_are_at_least_twenty_five() -> None:
    assert len(SINGLE) >= 25
    assert all(len(planted(path)) == 1 for path in SINGLE)


@pytest.mark.parametrize("path", SINGLE, ids=lambda path: path.stem)
def test_one_mistake(path: Path) -> None:
    ((line, place, text),) = planted(path)
    (mistake,) = refused(path).mistakes
    assert (mistake.line, mistake.path) == (line, place)
    assert text in mistake.text


def test_all_at_once() -> None:
    marks = planted(FOLDER / "all.yaml")
    assert len(marks) >= 25
    mistakes = refused(FOLDER / "all.yaml").mistakes
    assert [(m.line, m.path) for m in mistakes] == [(line, place) for line, place, _ in marks]
    for mistake, (_, _, text) in zip(mistakes, marks, strict=True):
        assert text in mistake.text


def test_nothing_is_started(tmp_path: Path) -> None:
    """The demo, which would start three processes, ends at once and starts none."""
    code = (
        "import subprocess, sys\n"
        "def refuse(*_, **__): raise AssertionError('a process was started')\n"
        "subprocess.Popen.__init__ = refuse\n"
        "from omni_async.cli.main import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    for path in (FOLDER / "all.yaml", FOLDER / "24-ports-that-meet.yaml"):
        done = subprocess.run(
            [sys.executable, "-c", code, "demo", "--deploy", str(path)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode not in (0, 1) or "mistake" in done.stderr
        assert "a process was started" not in done.stderr
        assert "line " in done.stderr
