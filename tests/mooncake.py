"""Mooncake's engine, for tests that need the real one.

In: a machine. Out: this process's engine; a skip where the vendor's package cannot be loaded.
Never: hides that an engine which was loaded does not start.
"""

from __future__ import annotations

import pytest

from omni_async.backends.mooncake import _native

HOST = "127.0.0.1"


def engine_or_skip() -> _native.NativeEngine:
    try:
        _native.load(HOST)
    except ImportError as error:
        pytest.skip(f"no Mooncake engine: {error}")
    return _native.shared_engine(HOST, "tcp", "")
