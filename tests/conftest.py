"""What every test may use.

In: pytest. Out: names that no other test, run or clone of the repository uses at the same time.
Never: decides what is tested.
"""

from __future__ import annotations

import os
import uuid

import pytest


@pytest.fixture
def namespace() -> str:
    """A pipeline name of this test alone, so that runs side by side never meet."""
    return f"test-{os.getpid()}-{uuid.uuid4().hex[:12]}"
