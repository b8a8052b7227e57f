"""Every program in examples/ runs as it stands, says something, and complains about nothing."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: str(path.stem))
def test_it_runs(path: Path, namespace: str, tmp_path: Path) -> None:
    if "import torch" in path.read_text() and importlib.util.find_spec("torch") is None:
        pytest.skip("needs torch")
    done = subprocess.run(
        [sys.executable, str(path)],
        cwd=tmp_path,
        env={**os.environ, "OMNI_ASYNC_NAMESPACE": namespace},
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert done.stderr == ""
