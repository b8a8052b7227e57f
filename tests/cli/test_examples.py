"""The examples run as a reader would run them, and say what their comments promise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from omni_async.cli.demo import default_deploy

EXAMPLES = Path(__file__).parents[2] / "examples"


def said(name: str, namespace: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / name],
        env={**os.environ, "OMNI_ASYNC_NAMESPACE": namespace},
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_hello(namespace: str) -> None:
    text = said("hello.py", namespace)
    assert "got 'hello' and float32 (3, 4), sum 66.0" in text
    assert "put " in text


def test_fan_out(namespace: str) -> None:
    text = said("fan_out.py", namespace)
    assert [f"reader {rank}: sum 1048576" in text for rank in range(3)] == [True] * 3
    assert "for 3 readers: 4.2 MB in the pool" in text


def test_in_place(namespace: str) -> None:
    pytest.importorskip("torch")
    text = said("in_place.py", namespace)
    took = {line.split(":")[0]: float(line.split()[-2]) for line in text.splitlines()}
    assert took["in place"] < took["copied"]


def test_raw_buffers(namespace: str) -> None:
    assert "1048576 bytes, as floats (262144,)" in said("raw_buffers.py", namespace)


def test_register_type(namespace: str) -> None:
    text = said("register_type.py", namespace)
    assert "anna (16, 25) Fraction(5, 4)" in text
    assert "value['meta'][0]: object of type object" in text


def test_the_demos_file_is_there_once_and_every_example_is_tested() -> None:
    assert (EXAMPLES / "demo.yaml").samefile(default_deploy())
    here = Path(__file__).read_text()
    assert [path.name for path in EXAMPLES.glob("*.py") if f'"{path.name}"' not in here] == []
