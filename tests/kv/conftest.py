"""Where tests of both ends of KV caches run: over each double, or over the one that writes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.ends import Ends, ends
from tests.kv.pairs import DOUBLES, loopbacks


@pytest.fixture
def doubles() -> Iterator[None]:
    with loopbacks():
        yield


@pytest.fixture(params=DOUBLES)
def where(request: pytest.FixtureRequest, namespace: str, doubles: None) -> Iterator[Ends]:
    with ends(request.param, namespace) as found:
        yield found


@pytest.fixture
def written(namespace: str, doubles: None) -> Iterator[Ends]:
    with ends("loopback-write", namespace) as found:
        yield found
