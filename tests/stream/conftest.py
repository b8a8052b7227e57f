"""What every test of streams may use."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["memory", "shm"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[False, True], ids=["driven", "keyed"])
def keyed(request: pytest.FixtureRequest) -> bool:
    """Whether streams tell of credit, or each has a task."""
    return bool(request.param)
