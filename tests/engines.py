"""Engines that most machines have and some lack.

In: nothing. Out: the engine can be used, or the test is skipped with the reason.
Never: lets a test pass without it.
"""

from __future__ import annotations

import pytest


def need_mooncake() -> None:
    """Skip where Mooncake's engine cannot be loaded."""
    from omni_async.backends.mooncake._native import load

    try:
        load("127.0.0.1")
    except ImportError as error:
        pytest.skip(f"Mooncake's engine cannot be loaded: {error}")


def need_nixl() -> None:
    """Skip where NIXL cannot be loaded."""
    from omni_async.backends.nixl._native import load

    try:
        load()
    except ImportError as error:
        pytest.skip(f"NIXL cannot be loaded: {error}")
