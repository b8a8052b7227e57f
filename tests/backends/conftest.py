"""Test cases that engines share say as much when they fail as those in test modules."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(
    *(f"tests.backends.engine_{name}" for name in ("pair", "processes", "writes"))
)
