"""Planted mistakes, one in each file and all in one: each is named, and nothing else is.

In the files of ``planted/`` a wrong line ends in ``# WRONG path | what is said of it``.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from omni_async import ConfigError
from omni_async.cli.main import main
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


@pytest.mark.parametrize("path", [*SINGLE, FOLDER / "all.yaml"], ids=lambda path: path.stem)
def test_nothing_is_started(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The demo, which would start processes, refuses the file at once."""
    pytest.importorskip("torch", reason="without it the demo ends before it looks at the file")
    started: list[object] = []
    monkeypatch.setattr(subprocess, "Popen", started.append)
    assert main(["demo", "--deploy", str(path)]) == 1
    assert not started
    told = capsys.readouterr().err
    assert "mistake" in told
    for line, _, text in planted(path):
        assert f"line {line}" in told
        assert text in told
