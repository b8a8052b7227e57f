"""What tests of deploy files share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def written(text: str, name: str = "deploy.yaml") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return written
